/* fuzz/topology.c -- decodes arbitrary bytes as a TPU topology, and builds assignments on it.
 *
 * A topology that is decoded must give the same bytes again, find each of its devices, and
 * equal the topology that is made from its contents. An assignment that is built on it must
 * have different devices of it.
 *
 * covers: src/cluster/topology.c src/cluster/assignment_build.c src/cluster/assignment.c
 * longest: 300
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "cohort/cohort.h"
#include "fuzz.h"

enum { FEW_CORES = 4096 }; /* larger meshes get fewer checks */

/* ---- checks ---- */

static int cores_of(const ch_tpu_mesh *m)
{
    return m->size[0] * m->size[1] * m->size[2] * m->size[3];
}

static void check_encode(const ch_tpu_topology *t, const void *data, size_t size)
{
    void  *bytes = NULL;
    size_t n = 0;

    MUST(ch_tpu_topology_encode(t, &bytes, &n) == CH_OK);
    MUST(n == size && memcmp(bytes, data, n) == 0);
    ch_bytes_free(bytes);
}

static void check_find(const ch_tpu_topology *t)
{
    const ch_tpu_mesh *m = ch_tpu_topology_mesh(t);
    int                devices = m->tasks * m->devices, task, ordinal, missing[4];
    char               name[64];

    for (int i = 0; i < devices; i++) {
        const int *at = m->at + 4 * i;

        MUST(ch_tpu_topology_find(t, 4, at, &task, &ordinal) == CH_OK);
        MUST(task * m->devices + ordinal == i);
        MUST(ch_tpu_topology_device_name(t, 4, at, "w", name, sizeof(name)) == CH_OK);
    }
    MUST(ch_tpu_topology_missing(t, 1, missing) == cores_of(m) - devices);
    if (cores_of(m) > devices)
        MUST(ch_tpu_topology_find(t, 4, missing, &task, &ordinal) == CH_NOT_FOUND);
}

/* Makes a topology from the contents, and from its bytes another. */
static void check_again(const ch_tpu_topology *t)
{
    ch_tpu_mesh        m = *ch_tpu_topology_mesh(t);
    const ch_tpu_mesh *n;
    ch_tpu_topology   *made = NULL, *read = NULL;
    void              *bytes = NULL;
    size_t             size = 0;

    if (m.tasks == 0 || m.devices == 0 || m.embedding < 0 || m.embedding > 2 ||
        m.embedding_devices < 0)
        return; /* only bytes have these */
    MUST(ch_tpu_topology_new(&m, &made) == CH_OK);
    MUST(ch_tpu_topology_encode(made, &bytes, &size) == CH_OK);
    MUST(ch_tpu_topology_parse(bytes, size, &read) == CH_OK);
    n = ch_tpu_topology_mesh(read);
    MUST(memcmp(n->size, m.size, sizeof(m.size)) == 0);
    MUST(n->tasks == m.tasks && n->devices == m.devices);
    MUST(n->embedding == m.embedding && n->embedding_devices == m.embedding_devices);
    MUST(memcmp(n->at, m.at, (size_t)(m.tasks * m.devices) * 4 * sizeof(int)) == 0);
    ch_bytes_free(bytes);
    ch_tpu_topology_unref(made);
    ch_tpu_topology_unref(read);
}

/* Copying the cores of an assignment fails if one is not a device or occurs twice. */
static void check_assignment(ch_tpu_topology *t, const ch_tpu_assignment *a)
{
    int                replicas = ch_tpu_assignment_replicas(a);
    int                cores = ch_tpu_assignment_cores(a);
    int               *at = malloc((size_t)replicas * (size_t)cores * 4 * sizeof(int));
    ch_tpu_assignment *copy = NULL;

    for (int i = 0; i < replicas * cores; i++)
        MUST(ch_tpu_assignment_coordinates(a, i / cores, i % cores, at + 4 * i) == CH_OK);
    MUST(ch_tpu_assignment_from_cores(t, replicas, cores, 4, at, &copy) == CH_OK);
    ch_tpu_assignment_unref(copy);
    free(at);
}

static void check_build(ch_tpu_topology *t, unsigned h)
{
    dice               d = {h};
    const ch_tpu_mesh *m = ch_tpu_topology_mesh(t);
    ch_tpu_build       b = {.n = 4, .order = (ch_tpu_order)roll(&d, 3)};
    ch_tpu_assignment *a = NULL;

    for (int i = 0; i < 4; i++) {
        b.shape[i] = 1 + (int)roll(&d, (uint64_t)m->size[i]);
        b.stride[i] = roll(&d, 4) == 0 ? 1 + (int)roll(&d, 3) : 1;
    }
    b.replicas = 1 + (int)roll(&d, roll(&d, 2) == 0 ? 4 : 64);
    if (ch_tpu_assignment_build(t, &b, &a) == CH_OK)
        check_assignment(t, a);
    else
        MUST(a == NULL);
    ch_tpu_assignment_unref(a);
}

static void ignore(const ch_log_record *r, void *arg)
{
    (void)r, (void)arg;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t          live = ch__mem_live();
    unsigned         h = fuzz_hash(data, size);
    char            *alone = fuzz_alone(data, size);
    ch_tpu_topology *t = NULL;
    ch_status        rc;

    ch_log_set_sink(ignore, NULL, CH_LOG_ERROR);
    if (h % 8 == 0) { /* with an allocation that fails */
        ch__mem_fail_at(1 + h / 8 % 8);
        rc = ch_tpu_topology_parse(alone, size, &t);
        ch__mem_fail_at(0);
        MUST((rc == CH_OK) == (t != NULL));
        ch_tpu_topology_unref(t);
        t = NULL;
    }
    rc = ch_tpu_topology_parse(alone, size, &t);
    MUST(rc == CH_OK ? t != NULL : t == NULL && rc == CH_INVALID_ARGUMENT);
    if (t != NULL) {
        check_encode(t, alone, size);
        if (cores_of(ch_tpu_topology_mesh(t)) <= FEW_CORES || h % 64 == 0) {
            check_find(t);
            check_again(t);
            check_build(t, h);
        }
    }
    ch_tpu_topology_unref(t);
    free(alone);
    MUST(ch__mem_live() == live);
    return 0;
}

/* ---- mutating ---- */

/* Returns a small size, and rarely a large one. */
static int pick_size(dice *d)
{
    return roll(d, 64) == 0 ? 1 << roll(d, 16) : 1 + (int)roll(d, 4);
}

/* Writes a message of a random mesh, most of which are valid. Returns its size; 0 if it does
 * not fit. */
static size_t write_message(dice *d, uint8_t *data, size_t max_size)
{
    int              size[4] = {pick_size(d), pick_size(d), pick_size(d), pick_size(d)}, at[64];
    ch_tpu_mesh      m = {.size = {size[0], size[1], size[2], size[3]}, .tasks = 1};
    ch_tpu_topology *t = NULL;
    void            *bytes = NULL;
    size_t           n = 0;
    bool             fits = false;

    m.devices = 1 + (int)roll(d, 16);
    if (roll(d, 2) == 0) {
        m.tasks = 1 + (int)roll(d, 3);
        m.devices = 1 + (int)roll(d, 4);
    }
    m.embedding = (int)roll(d, 3);
    if (roll(d, 2) == 0) {
        for (int i = 0; i < 64; i++)
            at[i] = (int)roll(d, (uint64_t)size[i % 4]);
        m.at = at;
    }
    if (ch_tpu_topology_new(&m, &t) == CH_OK && ch_tpu_topology_encode(t, &bytes, &n) == CH_OK)
        fits = n <= max_size;
    if (fits)
        memcpy(data, bytes, n);
    ch_bytes_free(bytes);
    ch_tpu_topology_unref(t);
    return fits ? n : 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    dice   d = {seed};
    size_t n = roll(&d, 4) == 0 ? write_message(&d, data, max_size) : 0;

    if (n > 0 && roll(&d, 4) != 0)
        return n;
    return LLVMFuzzerMutate(data, n > 0 ? n : size, max_size);
}
