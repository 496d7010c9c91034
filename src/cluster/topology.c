/* cluster/topology.c -- topologies: the devices of each task in the mesh of a TPU system.
 *
 * A topology is made from arrays (ch_tpu_topology_new) or from bytes (ch_tpu_topology_parse),
 * and does not change. Both ways end in topology_make, which checks all coordinates. Its
 * callers are assignment.c, tpu_system.c and programs.
 *
 * Invariants:
 *   1. Every device is inside the mesh, and no two devices are at the same coordinates.
 *   2. A cell is a core of the mesh. Cells are numbered in row-major order: x is slowest, the
 *      core fastest. device_of[cell] is task * mesh.devices + ordinal, or -1.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/protobuf.h"
#include "cluster/resolver.h"
#include "cluster/topology.pb-c.h"
#include "cluster/tpu.h"

struct ch_tpu_topology {
    atomic_int  refs;
    ch_arena    arena; /* memory of the lists */
    ch_tpu_mesh mesh;  /* n is 4; `at` has all coordinates */
    int         cells;
    int        *device_of; /* the device of each cell; -1: missing */
    void       *bytes;     /* the message that was parsed; NULL: made from arrays */
    size_t      n_bytes;
};

/* ---- vectors and meshes ---- */

ch_status ch__tpu_vector(const char *call, int n, const int *v, int z, int out[CH_TPU_AXES])
{
    if (n != 3 && n != 4)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: a vector of %d entries, want 3 (x, y, core) or 4 (x, y, z, core)",
                        call, n);
    out[X] = v[0];
    out[Y] = v[1];
    out[Z] = n == 4 ? v[2] : z;
    out[CORE] = v[n - 1];
    return CH_OK;
}

const char *ch__tpu_vector_text(const int v[CH_TPU_AXES], char text[CH_TPU_VECTOR_TEXT])
{
    snprintf(text, CH_TPU_VECTOR_TEXT, "%dx%dx%dx%d", v[X], v[Y], v[Z], v[CORE]);
    return text;
}

ch_status ch__tpu_mesh_cores(const char *call, const int size[CH_TPU_AXES], int *out)
{
    char    text[CH_TPU_VECTOR_TEXT];
    int64_t cores = 1;

    for (int i = 0; i < CH_TPU_AXES; i++)
        if (size[i] < 1)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "%s: mesh %s: the size of axis %d is %d, want at least 1", call,
                            ch__tpu_vector_text(size, text), i, size[i]);
    for (int i = 0; i < CH_TPU_AXES && cores <= CH_TPU_CORES_MAX; i++)
        cores *= size[i];
    if (cores > CH_TPU_CORES_MAX)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: mesh %s has more than %d cores", call,
                        ch__tpu_vector_text(size, text), CH_TPU_CORES_MAX);
    *out = (int)cores;
    return CH_OK;
}

/* Parses the numbers of "2x2x1x2". Returns how many there are; 0 if the text has another form
 * or too many numbers. */
static int parse_sizes(const char *text, int entry[CH_TPU_AXES])
{
    for (int n = 0; n < CH_TPU_AXES; n++) {
        size_t digits = strcspn(text, "x");

        if (!ch__parse_number(text, digits, CH_TPU_CORES_MAX + 1, &entry[n]))
            return 0;
        if (text[digits] == '\0')
            return n + 1;
        text += digits + 1;
    }
    return 0;
}

ch_status ch__tpu_mesh_parse(const char *call, const char *text, int size[CH_TPU_AXES])
{
    int entry[CH_TPU_AXES] = {0}, n = parse_sizes(text, entry), cores;

    if (n != 1 && n != 3 && n != 4)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: \"%.60s\" is not a mesh of TPU cores (want sizes of x, y, z and "
                        "core, such as 2x2x1x2)",
                        call, text);
    if (n == 1) {
        size[X] = size[Y] = size[Z] = 1;
        size[CORE] = entry[0];
    } else {
        ch_status rc = ch__tpu_vector(call, n, entry, 1, size);

        if (rc != CH_OK)
            return rc;
    }
    return ch__tpu_mesh_cores(call, size, &cores);
}

/* Returns the cell at these coordinates; -1 if they are outside the mesh. */
static int cell_at(const int size[CH_TPU_AXES], const int at[CH_TPU_AXES])
{
    int cell = 0;

    for (int i = 0; i < CH_TPU_AXES; i++) {
        if (at[i] < 0 || at[i] >= size[i])
            return -1;
        cell = cell * size[i] + at[i];
    }
    return cell;
}

static ch_status fail_outside(const char *call, const int size[CH_TPU_AXES],
                              const int at[CH_TPU_AXES])
{
    char text[CH_TPU_VECTOR_TEXT];

    return ch__fail(CH_INVALID_ARGUMENT,
                    "%s: coordinates (%d, %d, %d, %d) are outside the mesh %s", call, at[X],
                    at[Y], at[Z], at[CORE], ch__tpu_vector_text(size, text));
}

/* ---- creation ---- */

static const char creating[] = "creating a TPU topology";

static void drop(ch_tpu_topology *t)
{
    ch__arena_drop(&t->arena);
    ch__free(t);
}

/* Writes the coordinates of device i of a topology without a list: the core changes fastest,
 * then x, y and z. */
static void consecutive(const int size[CH_TPU_AXES], int i, int at[CH_TPU_AXES])
{
    static const int axis[CH_TPU_AXES] = {CORE, X, Y, Z};

    for (int k = 0; k < CH_TPU_AXES; k++) {
        at[axis[k]] = i % size[axis[k]];
        i /= size[axis[k]];
    }
}

/* Fills in the coordinates of all devices, and device_of. The vectors of `m` have m->n
 * entries. */
static ch_status place_devices(ch_tpu_topology *t, const ch_tpu_mesh *m, int devices, int *at)
{
    memset(t->device_of, -1, (size_t)t->cells * sizeof(*t->device_of));
    for (int i = 0; i < devices; i++, at += CH_TPU_AXES) {
        int       cell, other;
        ch_status rc = CH_OK;

        if (m->at == NULL)
            consecutive(t->mesh.size, i, at);
        else
            rc = ch__tpu_vector(creating, m->n, m->at + (ptrdiff_t)i * m->n, 0, at);
        if (rc != CH_OK)
            return rc;
        cell = cell_at(t->mesh.size, at);
        if (cell < 0)
            return fail_outside(creating, t->mesh.size, at);
        other = t->device_of[cell];
        if (other >= 0)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "%s: device %d of task %d and device %d of task %d are both at "
                            "(%d, %d, %d, %d)",
                            creating, other % t->mesh.devices, other / t->mesh.devices,
                            i % t->mesh.devices, i / t->mesh.devices, at[X], at[Y], at[Z],
                            at[CORE]);
        t->device_of[cell] = i;
    }
    return CH_OK;
}

/* Creates a topology. The sizes of `m` are normalised to 4 entries and checked, tasks and
 * devices are final; m->n is the number of entries of its coordinates. */
static ch_status topology_make(const ch_tpu_mesh *m, int cells, ch_tpu_topology **out)
{
    int64_t          devices = (int64_t)m->tasks * m->devices;
    char             text[CH_TPU_VECTOR_TEXT];
    ch_tpu_topology *t;
    int             *at;
    ch_status        rc;

    if (devices > cells)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: %d tasks with %d devices each are more than the %d cores of the "
                        "mesh %s",
                        creating, m->tasks, m->devices, cells,
                        ch__tpu_vector_text(m->size, text));
    t = ch__calloc(1, sizeof(*t));
    if (t == NULL)
        return ch__fail_memory(creating);
    atomic_init(&t->refs, 1);
    at = ch__arena_alloc(&t->arena, ((size_t)devices + 1) * CH_TPU_AXES * sizeof(*at));
    t->device_of = ch__arena_alloc(&t->arena, (size_t)cells * sizeof(*t->device_of));
    t->cells = cells;
    t->mesh = *m;
    t->mesh.n = CH_TPU_AXES;
    t->mesh.at = at;
    rc = at == NULL || t->device_of == NULL ? ch__fail_memory(creating)
                                            : place_devices(t, m, (int)devices, at);
    if (rc == CH_OK)
        *out = t;
    else
        drop(t);
    return rc;
}

/* Checks the numbers of devices and the hardware of a mesh that a program gives. */
static ch_status check_counts(const ch_tpu_mesh *m)
{
    if (m->tasks < 0 || m->devices < 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: %d tasks with %d devices each, want numbers of at least 0",
                        creating, m->tasks, m->devices);
    if (m->embedding < 0 || m->embedding > 2 || m->embedding_devices < 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: embedding %d with %d devices on each chip, want 0, 1 or 2, and at "
                        "least 0 devices",
                        creating, m->embedding, m->embedding_devices);
    return CH_OK;
}

ch_status ch_tpu_topology_new(const ch_tpu_mesh *mesh, ch_tpu_topology **out)
{
    ch_tpu_mesh m;
    int         cells;
    ch_status   rc = ch__check_not_null(creating, "mesh", mesh, "out", out);

    if (rc != CH_OK)
        return rc;
    m = *mesh;
    if (m.n == 0)
        m.n = CH_TPU_AXES;
    if (m.n == 3 && m.size[3] != 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: size has a fourth entry, %d, and n is 3; set n to 4", creating,
                        m.size[3]);
    rc = ch__tpu_vector(creating, m.n, mesh->size, 1, m.size);
    if (rc == CH_OK)
        rc = ch__tpu_mesh_cores(creating, m.size, &cells);
    if (rc == CH_OK)
        rc = check_counts(&m);
    if (rc != CH_OK)
        return rc;
    if (m.tasks == 0)
        m.tasks = 1;
    if (m.devices == 0 && cells % m.tasks != 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: the number of devices of each task is not given, and %d cores are "
                        "not a multiple of %d tasks",
                        creating, cells, m.tasks);
    if (m.devices == 0)
        m.devices = cells / m.tasks;
    return topology_make(&m, cells, out);
}

ch_tpu_topology *ch_tpu_topology_ref(ch_tpu_topology *t)
{
    if (t != NULL)
        atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    return t;
}

void ch_tpu_topology_unref(ch_tpu_topology *t)
{
    if (t != NULL && atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) == 1)
        drop(t);
}

/* ---- bytes ---- */

static const char parsing[] = "parsing a TPU topology";

/* Checks the message and makes the topology from it. */
static ch_status read_message(const Cohort__TopologyProto *p, ch_tpu_topology **out)
{
    ch_tpu_mesh m = {.n = CH_TPU_AXES,
                     .tasks = p->num_tasks,
                     .devices = p->num_tpu_devices_per_task,
                     .at = p->device_coordinates};
    int         cells;
    ch_status   rc;

    if (p->n_mesh_shape != CH_TPU_AXES)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: mesh_shape has %zu entries, want %d", parsing,
                        p->n_mesh_shape, CH_TPU_AXES);
    memcpy(m.size, p->mesh_shape, sizeof(m.size));
    rc = ch__tpu_mesh_cores(parsing, m.size, &cells);
    if (rc != CH_OK)
        return rc;
    if (m.tasks < 0)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: num_tasks is %d, want at least 0", parsing,
                        m.tasks);
    if (m.devices < 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: num_tpu_devices_per_task is %d, want at least 0", parsing,
                        m.devices);
    if (p->n_device_coordinates % CH_TPU_AXES != 0 ||
        p->n_device_coordinates / CH_TPU_AXES != (size_t)m.tasks * (size_t)m.devices)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: %zu device_coordinates, want %d for each of %d devices of %d "
                        "tasks",
                        parsing, p->n_device_coordinates, CH_TPU_AXES, m.devices, m.tasks);
    if (p->tpu_hardware_feature != NULL) {
        m.embedding = p->tpu_hardware_feature->embedding_feature;
        m.embedding_devices = p->tpu_hardware_feature->num_embedding_devices_per_chip;
    }
    return topology_make(&m, cells, out);
}

ch_status ch_tpu_topology_parse(const void *bytes, size_t n, ch_tpu_topology **out)
{
    size_t            budget = ((size_t)1 << 20) + 8 * n;
    ProtobufCMessage *message = NULL;
    ch_tpu_topology  *t = NULL;
    ch_status rc = ch__check_not_null(parsing, n > 0 ? "bytes" : NULL, bytes, "out", out);

    if (rc != CH_OK)
        return rc;
    rc = ch__protobuf_unpack_within(&cohort__topology_proto__descriptor, bytes, n, budget,
                                    &message);
    if (rc == CH_INVALID_ARGUMENT)
        return ch__fail(rc,
                        "%s: the %zu bytes are not a TopologyProto message, or need more than "
                        "%zu bytes of memory",
                        parsing, n, budget);
    if (rc != CH_OK)
        return ch__fail_at(rc, "%s", parsing);
    rc = read_message((const Cohort__TopologyProto *)message, &t);
    ch__protobuf_free(message);
    if (rc != CH_OK)
        return rc;
    t->bytes = ch__arena_copy(&t->arena, bytes, n);
    t->n_bytes = n;
    if (t->bytes == NULL) {
        drop(t);
        return ch__fail_memory(parsing);
    }
    *out = t;
    return CH_OK;
}

ch_status ch_tpu_topology_encode(const ch_tpu_topology *t, void **bytes, size_t *n)
{
    Cohort__TopologyProto      p = COHORT__TOPOLOGY_PROTO__INIT;
    Cohort__TPUHardwareFeature hardware = COHORT__TPUHARDWARE_FEATURE__INIT;
    ch_arena                   a = {0};
    ch_status rc = ch__check_not_null("encoding a TPU topology", "the topology", t, NULL, NULL);

    if (rc == CH_OK)
        rc = ch__check_not_null("encoding a TPU topology", "bytes", bytes, "n", n);
    if (rc != CH_OK)
        return rc;
    if (t->bytes != NULL) {
        void *copy = ch__malloc(t->n_bytes);

        if (copy == NULL)
            return ch__fail_memory("encoding a TPU topology");
        memcpy(copy, t->bytes, t->n_bytes);
        *bytes = copy;
        *n = t->n_bytes;
        return CH_OK;
    }
    p.num_tasks = t->mesh.tasks;
    p.num_tpu_devices_per_task = t->mesh.devices;
    p.n_mesh_shape = CH_TPU_AXES;
    p.mesh_shape = ch__arena_copy(&a, t->mesh.size, sizeof(t->mesh.size));
    p.n_device_coordinates = (size_t)t->mesh.tasks * (size_t)t->mesh.devices * CH_TPU_AXES;
    p.device_coordinates =
        ch__arena_copy(&a, t->mesh.at, p.n_device_coordinates * sizeof(*t->mesh.at));
    hardware.embedding_feature = t->mesh.embedding;
    hardware.num_embedding_devices_per_chip = t->mesh.embedding_devices;
    if (t->mesh.embedding != 0 || t->mesh.embedding_devices != 0)
        p.tpu_hardware_feature = &hardware;
    rc = p.mesh_shape == NULL || p.device_coordinates == NULL
             ? ch__fail_memory("encoding a TPU topology")
             : ch__protobuf_pack(&p.base, bytes, n);
    ch__arena_drop(&a);
    return rc;
}

/* ---- look-ups ---- */

const ch_tpu_mesh *ch_tpu_topology_mesh(const ch_tpu_topology *t)
{
    return t != NULL ? &t->mesh : NULL;
}

/* Checks the arguments and finds the device at the coordinates `v`. */
static ch_status find(const char *call, const ch_tpu_topology *t, int n, const int *v,
                      int *device)
{
    int       at[CH_TPU_AXES] = {0}, cell;
    ch_status rc = ch__check_not_null(call, "the topology", t, "at", v);

    if (rc == CH_OK)
        rc = ch__tpu_vector(call, n, v, 0, at);
    if (rc != CH_OK)
        return rc;
    cell = cell_at(t->mesh.size, at);
    if (cell < 0)
        return fail_outside(call, t->mesh.size, at);
    if (t->device_of[cell] < 0)
        return ch__fail(CH_NOT_FOUND, "%s: there is no device at (%d, %d, %d, %d)", call, at[X],
                        at[Y], at[Z], at[CORE]);
    *device = t->device_of[cell];
    return CH_OK;
}

ch_status ch_tpu_topology_find(const ch_tpu_topology *t, int n, const int *at, int *task,
                               int *ordinal)
{
    static const char call[] = "finding a TPU device";
    int               device;
    ch_status         rc = ch__check_not_null(call, "task", task, "ordinal", ordinal);

    if (rc == CH_OK)
        rc = find(call, t, n, at, &device);
    if (rc != CH_OK)
        return rc;
    *task = device / t->mesh.devices;
    *ordinal = device % t->mesh.devices;
    return CH_OK;
}

/* Writes the name of a device, or of the CPU of its task. */
static ch_status write_name(const char *call, const ch_tpu_topology *t, int n, const int *at,
                            const char *job, bool is_host, char *text, size_t size)
{
    char      name[CH_JOB_BYTES + 64];
    int       device;
    ch_status rc = ch__check_not_null(call, "text", text, NULL, NULL);

    if (rc == CH_OK && job != NULL)
        rc = ch__job_name_check(job);
    if (rc == CH_OK)
        rc = find(call, t, n, at, &device);
    if (rc != CH_OK)
        return rc;
    snprintf(name, sizeof(name), "%s%s/task:%d/device:%s:%d", job != NULL ? "/job:" : "",
             job != NULL ? job : "", device / t->mesh.devices, is_host ? "CPU" : "TPU",
             is_host ? 0 : device % t->mesh.devices);
    return ch__store_text("device name", name, text, size);
}

ch_status ch_tpu_topology_device_name(const ch_tpu_topology *t, int n, const int *at,
                                      const char *job, char *text, size_t size)
{
    return write_name("naming a TPU device", t, n, at, job, false, text, size);
}

ch_status ch_tpu_topology_host_name(const ch_tpu_topology *t, int n, const int *at,
                                    const char *job, char *text, size_t size)
{
    return write_name("naming the host of a TPU device", t, n, at, job, true, text, size);
}

int ch_tpu_topology_missing(const ch_tpu_topology *t, int room, int *at)
{
    int n = 0;

    for (int cell = 0; t != NULL && cell < t->cells; cell++) {
        if (t->device_of[cell] >= 0)
            continue;
        if (n < room && at != NULL)
            for (int axis = CH_TPU_AXES - 1, rest = cell; axis >= 0; axis--) {
                at[n * CH_TPU_AXES + axis] = rest % t->mesh.size[axis];
                rest /= t->mesh.size[axis];
            }
        n++;
    }
    return n;
}
