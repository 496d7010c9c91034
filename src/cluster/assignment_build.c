/* cluster/assignment_build.c -- ch_tpu_assignment_build: divides a mesh among replicas.
 *
 * The steps are those of TensorFlow:
 *   1. count_replicas: how many replicas fit along each axis (`fits`). Blocks of shape * stride
 *      cores divide the mesh; along an axis, a block holds `stride` replicas, interleaved.
 *   2. If devices are missing, take_devices gives consecutive devices to the replicas.
 *   3. Otherwise choose_grid arranges the replicas in a grid (`grid`), as cubic as possible.
 *   4. place_ring or place_mesh numbers the replicas of the grid, and the cores of each
 *      replica.
 * All steps share a `build`.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "cluster/tpu.h"

static const char building[] = "building a TPU assignment";

/* ---- the request ---- */

typedef struct build {
    const ch_tpu_mesh *mesh;
    int                shape[CH_TPU_AXES], stride[CH_TPU_AXES];
    int                replicas;
    int                cores; /* of a replica: the product of `shape` */
    ch_tpu_order       order;
    int                fits[CH_TPU_AXES]; /* largest number of replicas along each axis */
    int                most;              /* product of `fits` */
    int                grid[CH_TPU_AXES]; /* number of replicas along each axis */
} build;

static int product(const int v[CH_TPU_AXES])
{
    return v[X] * v[Y] * v[Z] * v[CORE];
}

static bool is_zero(const int v[CH_TPU_AXES])
{
    return (v[X] | v[Y] | v[Z] | v[CORE]) == 0;
}

/* Copies a shape or a stride to `out`; all 1 if it is not given. Entries must not be 0 or
 * negative, but check_entries reports that, after all vectors are read. */
static ch_status read_vector(const char *label, int n, const int v[CH_TPU_AXES],
                             int out[CH_TPU_AXES])
{
    if (is_zero(v)) {
        for (int i = 0; i < CH_TPU_AXES; i++)
            out[i] = 1;
        return n == 0 || n == 3 || n == 4 ? CH_OK : ch__tpu_vector(building, n, v, 1, out);
    }
    if (n == 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: %s is given and n is 0; set n to its number of entries, 3 or 4",
                        building, label);
    if (n == 3 && v[3] != 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: %s has a fourth entry, %d, and n is 3; set n to 4", building,
                        label, v[3]);
    return ch__tpu_vector(building, n, v, 1, out);
}

static ch_status check_entries(const char *label, const int v[CH_TPU_AXES])
{
    char text[CH_TPU_VECTOR_TEXT];

    for (int i = 0; i < CH_TPU_AXES; i++)
        if (v[i] < 1)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "%s: %s %s: entries must be at least 1 (got %d)", building, label,
                            ch__tpu_vector_text(v, text), v[i]);
    return CH_OK;
}

/* Returns INVALID_ARGUMENT if shape * stride is larger than the mesh along an axis. */
static ch_status check_footprint(const build *b)
{
    char shape[CH_TPU_VECTOR_TEXT], stride[CH_TPU_VECTOR_TEXT], mesh[CH_TPU_VECTOR_TEXT];

    for (int i = 0; i < CH_TPU_AXES; i++)
        if ((int64_t)b->shape[i] * b->stride[i] > b->mesh->size[i])
            return ch__fail(CH_INVALID_ARGUMENT,
                            "%s: shape %s with stride %s is larger than the mesh %s", building,
                            ch__tpu_vector_text(b->shape, shape),
                            ch__tpu_vector_text(b->stride, stride),
                            ch__tpu_vector_text(b->mesh->size, mesh));
    return CH_OK;
}

/* Sets b->fits and b->most. Returns INVALID_ARGUMENT if there are more replicas. */
static ch_status count_replicas(build *b)
{
    char shape[CH_TPU_VECTOR_TEXT], mesh[CH_TPU_VECTOR_TEXT];

    for (int i = 0; i < CH_TPU_AXES; i++)
        b->fits[i] = b->mesh->size[i] / (b->shape[i] * b->stride[i]) * b->stride[i];
    b->most = product(b->fits);
    if (b->replicas >= 1 && b->replicas <= b->most)
        return CH_OK;
    return ch__fail(CH_INVALID_ARGUMENT,
                    "%s: %d replicas of shape %s on a mesh of %s, want 1 to %d", building,
                    b->replicas, ch__tpu_vector_text(b->shape, shape),
                    ch__tpu_vector_text(b->mesh->size, mesh), b->most);
}

/* Fills in `b` from the options, with the checks in the order of TensorFlow. */
static ch_status read_request(const ch_tpu_topology *t, const ch_tpu_build *from, build *b)
{
    static const ch_tpu_build none;
    ch_status                 rc;

    if (from == NULL)
        from = &none;
    *b = (build){.mesh = ch_tpu_topology_mesh(t),
                 .replicas = from->replicas == 0 ? 1 : from->replicas,
                 .order = from->order};
    if (from->order != CH_TPU_AUTO && from->order != CH_TPU_RING && from->order != CH_TPU_MESH)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: %d is not an order", building,
                        (int)from->order);
    rc = read_vector("shape", from->n, from->shape, b->shape);
    if (rc == CH_OK)
        rc = read_vector("stride", from->n, from->stride, b->stride);
    if (rc == CH_OK)
        rc = check_entries("shape", b->shape);
    if (rc == CH_OK)
        rc = check_entries("stride", b->stride);
    if (rc == CH_OK)
        rc = check_footprint(b);
    b->cores = rc == CH_OK ? product(b->shape) : 0;
    return rc == CH_OK ? count_replicas(b) : rc;
}

/* ---- topologies with missing devices ---- */

/* Gives consecutive devices to the replicas, without regard to the geometry. */
static ch_status take_devices(const build *b, ch_tpu_assignment *a)
{
    int     devices = b->mesh->tasks * b->mesh->devices;
    int64_t wanted = (int64_t)b->replicas * b->cores;

    if (product(b->stride) != 1)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: devices of the mesh are missing, so every stride must be 1",
                        building);
    if (wanted > devices)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: devices of the mesh are missing: %d replicas of %d cores need "
                        "%lld devices, and there are %d",
                        building, b->replicas, b->cores, (long long)wanted, devices);
    memcpy(ch__tpu_assignment_core(a, 0, 0), b->mesh->at,
           (size_t)wanted * CH_TPU_AXES * sizeof(int));
    return CH_OK;
}

/* ---- the grid of replicas ---- */

/* Returns the least k for which k to the power of n is at least `value`: the root, rounded
 * up. */
static int root(int value, int n)
{
    for (int k = 1;; k++) {
        int64_t power = 1;

        for (int i = 0; i < n && power < value; i++)
            power *= k;
        if (power >= value)
            return k;
    }
}

/* Returns the axis along which the fewest replicas fit, of those in the set `left`; if several
 * do, the first in the order core, x, y, z. */
static int tightest_axis(const build *b, unsigned left)
{
    static const int order[CH_TPU_AXES] = {CORE, X, Y, Z};
    int              best = -1;

    for (int i = 0; i < CH_TPU_AXES; i++)
        if ((left >> order[i] & 1) != 0 && (best < 0 || b->fits[order[i]] < b->fits[best]))
            best = order[i];
    return best;
}

/* Sets b->grid: at least as many replicas as are wanted, about as many along each axis, if they
 * fit. */
static void choose_grid(build *b)
{
    unsigned left = (1u << CH_TPU_AXES) - 1;
    int      remaining = b->replicas;

    for (int n = CH_TPU_AXES; n > 0; n--) {
        int axis = tightest_axis(b, left);
        int k = n == 1 ? remaining : root(remaining, n);

        b->grid[axis] = k < b->fits[axis] ? k : b->fits[axis];
        remaining = (int)ch__units(remaining, b->grid[axis]);
        left &= ~(1u << axis);
    }
}

/* ---- rings ---- */

/* A list of chips that is being written. */
typedef struct path {
    int (*chip)[3];
    int n;
} path;

/* Appends a chip: u and v along the axes `a` and `b`, w along the third axis. */
static void append(path *p, int a, int b, int u, int v, int w)
{
    int *chip = p->chip[p->n++];

    chip[a] = u;
    chip[b] = v;
    chip[3 - a - b] = w;
}

/* Appends the ring over the axes a and b of sizes nu and nv, which are even, at w on the third
 * axis. Leaves out the chip (0, 0): a row forward, the next one backward, without the first
 * column; then the first column backward. */
static void append_open_ring(path *p, int a, int b, int nu, int nv, int w)
{
    for (int v = 0; v < nv; v++)
        for (int i = 1; i < nu; i++)
            append(p, a, b, v % 2 == 0 ? i : nu - i, v, w);
    for (int v = nv - 1; v > 0; v--)
        append(p, a, b, 0, v, w);
}

/* Reverses the entries of the path from index `from` to its end. */
static void reverse(path *p, int from)
{
    for (int i = from, k = p->n - 1; i < k; i++, k--) {
        int kept[3];

        memcpy(kept, p->chip[i], sizeof(kept));
        memcpy(p->chip[i], p->chip[k], sizeof(kept));
        memcpy(p->chip[k], kept, sizeof(kept));
    }
}

/* Writes all chips in the order x, y, z, x the fastest. */
static void append_all(path *p, const int size[3])
{
    for (int z = 0; z < size[Z]; z++)
        for (int y = 0; y < size[Y]; y++)
            for (int x = 0; x < size[X]; x++)
                append(p, X, Y, x, y, z);
}

/* Writes a ring over three even axes: an open ring in each layer, back along the corners. */
static void append_solid_ring(path *p, const int size[3])
{
    append(p, X, Y, 0, 0, 0);
    for (int z = 0; z < size[Z]; z++) {
        int from = p->n;

        append_open_ring(p, X, Y, size[X], size[Y], z);
        if (z % 2 == 1)
            reverse(p, from);
    }
    for (int z = size[Z] - 1; z > 0; z--)
        append(p, X, Y, 0, 0, z);
}

/* Writes all chips of a box so that neighbours in the list are neighbours in the mesh, if the
 * sizes allow it. */
static void write_ring(const int size[3], int (*chip)[3])
{
    path p = {chip, 0};
    int  wide = 0; /* number of axes with more than one chip */
    bool is_odd = false;

    for (int i = 0; i < 3; i++) {
        wide += size[i] > 1;
        is_odd |= size[i] > 1 && size[i] % 2 == 1;
    }
    if (wide > 1 && is_odd)
        ch__log(CH_LOG_WARNING, "tpu",
                "%s: %dx%dx%d chips have an odd size, so they are not in the order of a ring",
                building, size[X], size[Y], size[Z]);
    if (wide <= 1 || is_odd) {
        append_all(&p, size);
    } else if (wide == 3) {
        append_solid_ring(&p, size);
    } else {
        int a = size[X] > 1 ? X : Y, b = size[Z] > 1 ? Z : Y;

        append(&p, a, b, 0, 0, 0);
        append_open_ring(&p, a, b, size[a], size[b], 0);
    }
}

static bool is_ring_possible(const build *b)
{
    return b->shape[CORE] == b->mesh->size[CORE] && product(b->stride) == 1 &&
           b->replicas == b->most;
}

/* Numbers the replicas along a ring of the grid, and the chips of each along a ring of its
 * shape. */
static ch_status place_ring(const build *b, ch_tpu_assignment *a)
{
    int per_chip = b->mesh->size[CORE];
    int chips = b->cores / per_chip;
    int(*outer)[3] = ch__calloc((size_t)b->replicas, sizeof(*outer));
    int(*inner)[3] = ch__calloc((size_t)chips, sizeof(*inner));
    ch_status rc = outer == NULL || inner == NULL ? ch__fail_memory(building) : CH_OK;

    if (rc == CH_OK) {
        write_ring(b->grid, outer);
        write_ring(b->shape, inner);
    }
    for (int r = 0; rc == CH_OK && r < b->replicas; r++)
        for (int k = 0; k < b->cores; k++) {
            int *at = ch__tpu_assignment_core(a, r, k);

            for (int i = X; i <= Z; i++)
                at[i] = outer[r][i] * b->shape[i] + inner[k / per_chip][i];
            at[CORE] = k % per_chip;
        }
    ch__free(outer);
    ch__free(inner);
    return rc;
}

/* ---- the order of the mesh ---- */

/* Writes the coordinates of the first core of replica r. */
static void find_offset(const build *b, int r, int offset[CH_TPU_AXES])
{
    static const int order[CH_TPU_AXES] = {CORE, X, Y, Z};

    for (int k = 0; k < CH_TPU_AXES; k++) {
        int i = order[k], position = r % b->grid[i];

        offset[i] =
            position / b->stride[i] * b->shape[i] * b->stride[i] + position % b->stride[i];
        r /= b->grid[i];
    }
}

/* Numbers the replicas with the core axis fastest, then x, y and z, and the cores of each
 * replica in row-major order. */
static void place_mesh(const build *b, ch_tpu_assignment *a)
{
    for (int r = 0; r < b->replicas; r++) {
        int offset[CH_TPU_AXES];

        find_offset(b, r, offset);
        for (int k = 0; k < b->cores; k++) {
            int *at = ch__tpu_assignment_core(a, r, k), rest = k;

            for (int i = CORE; i >= X; i--) {
                at[i] = offset[i] + rest % b->shape[i] * b->stride[i];
                rest /= b->shape[i];
            }
        }
    }
}

/* ---- the call ---- */

static ch_status place(build *b, const ch_tpu_topology *t, ch_tpu_assignment *a)
{
    bool is_ring = is_ring_possible(b);

    if (ch_tpu_topology_missing(t, 0, NULL) > 0)
        return take_devices(b, a);
    if (b->order == CH_TPU_RING && !is_ring)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: the order is CH_TPU_RING, so replicas must have all %d cores of "
                        "their chips (got %d), the stride must be 1, and there must be %d "
                        "replicas (got %d)",
                        building, b->mesh->size[CORE], b->shape[CORE], b->most, b->replicas);
    choose_grid(b);
    if (is_ring && b->order != CH_TPU_MESH)
        return place_ring(b, a);
    place_mesh(b, a);
    return CH_OK;
}

ch_status ch_tpu_assignment_build(ch_tpu_topology *t, const ch_tpu_build *b,
                                  ch_tpu_assignment **out)
{
    ch_tpu_assignment *a;
    build              request;
    ch_status          rc = ch__check_not_null(building, "the topology", t, "out", out);

    if (rc == CH_OK)
        rc = read_request(t, b, &request);
    if (rc != CH_OK)
        return rc;
    a = ch__tpu_assignment_alloc(t, request.replicas, request.cores);
    if (a == NULL)
        return ch__fail_memory(building);
    rc = place(&request, t, a);
    if (rc == CH_OK)
        *out = a;
    else
        ch_tpu_assignment_unref(a);
    return rc;
}
