/* cluster/assignment.c -- device assignments: the cores of each replica, and look-ups.
 *
 * An assignment is made by ch_tpu_assignment_build (assignment_build.c) or from coordinates,
 * and does not change after its creation.
 *
 * Invariant: each core of an assignment is a device of its topology, and occurs once.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "cluster/tpu.h"

struct ch_tpu_assignment {
    atomic_int       refs;
    ch_tpu_topology *topology; /* referenced */
    int              replicas, cores;
    int              at[]; /* coordinates, CH_TPU_AXES for each core of each replica */
};

/* ---- creation ---- */

ch_tpu_assignment *ch__tpu_assignment_alloc(ch_tpu_topology *t, int replicas, int cores)
{
    size_t             bytes = (size_t)replicas * (size_t)cores * CH_TPU_AXES * sizeof(int);
    ch_tpu_assignment *a = ch__calloc(1, sizeof(*a) + bytes);

    if (a == NULL)
        return NULL;
    atomic_init(&a->refs, 1);
    a->topology = ch_tpu_topology_ref(t);
    a->replicas = replicas;
    a->cores = cores;
    return a;
}

int *ch__tpu_assignment_core(ch_tpu_assignment *a, int replica, int core)
{
    return a->at + ((ptrdiff_t)replica * a->cores + core) * CH_TPU_AXES;
}

ch_tpu_assignment *ch_tpu_assignment_ref(ch_tpu_assignment *a)
{
    if (a != NULL)
        atomic_fetch_add_explicit(&a->refs, 1, memory_order_relaxed);
    return a;
}

void ch_tpu_assignment_unref(ch_tpu_assignment *a)
{
    if (a == NULL || atomic_fetch_sub_explicit(&a->refs, 1, memory_order_acq_rel) != 1)
        return;
    ch_tpu_topology_unref(a->topology);
    ch__free(a);
}

/* ---- assignments from coordinates ---- */

static const char listing[] = "a TPU assignment from cores";

/* Copies the coordinates and checks them. `taken` has a zero for each device. */
static ch_status copy_cores(ch_tpu_assignment *a, int n, const int *at, bool *taken)
{
    const ch_tpu_mesh *m = ch_tpu_topology_mesh(a->topology);

    for (int i = 0; i < a->replicas * a->cores; i++) {
        int      *to = ch__tpu_assignment_core(a, 0, i), task, ordinal;
        ch_status rc = ch__tpu_vector(listing, n, at + (ptrdiff_t)i * n, 0, to);

        if (rc != CH_OK)
            return rc;
        if (ch_tpu_topology_find(a->topology, CH_TPU_AXES, to, &task, &ordinal) != CH_OK)
            return ch__fail_at(CH_INVALID_ARGUMENT, "%s: core %d of replica %d", listing,
                               i % a->cores, i / a->cores);
        if (taken[(ptrdiff_t)task * m->devices + ordinal])
            return ch__fail(CH_INVALID_ARGUMENT,
                            "%s: core %d of replica %d, (%d, %d, %d, %d), occurs twice",
                            listing, i % a->cores, i / a->cores, to[X], to[Y], to[Z], to[CORE]);
        taken[(ptrdiff_t)task * m->devices + ordinal] = true;
    }
    return CH_OK;
}

ch_status ch_tpu_assignment_from_cores(ch_tpu_topology *t, int replicas, int cores, int n,
                                       const int *at, ch_tpu_assignment **out)
{
    const ch_tpu_mesh *m = ch_tpu_topology_mesh(t);
    ch_tpu_assignment *a;
    bool              *taken;
    int64_t            devices;
    ch_status          rc = ch__check_not_null(listing, "the topology", t, "out", out);

    if (rc == CH_OK)
        rc = ch__check_not_null(listing, "at", at, NULL, NULL);
    if (rc != CH_OK)
        return rc;
    devices = (int64_t)m->tasks * m->devices;
    if (replicas < 1 || cores < 1 || (int64_t)replicas * cores > devices)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: %d replicas of %d cores, want at least 1 of each and at most %lld "
                        "cores in total",
                        listing, replicas, cores, (long long)devices);
    a = ch__tpu_assignment_alloc(t, replicas, cores);
    taken = ch__calloc((size_t)devices, sizeof(*taken));
    rc = a == NULL || taken == NULL ? ch__fail_memory(listing) : copy_cores(a, n, at, taken);
    ch__free(taken);
    if (rc == CH_OK)
        *out = a;
    else
        ch_tpu_assignment_unref(a);
    return rc;
}

/* ---- look-ups ---- */

ch_tpu_topology *ch_tpu_assignment_topology(const ch_tpu_assignment *a)
{
    return a != NULL ? a->topology : NULL;
}

int ch_tpu_assignment_replicas(const ch_tpu_assignment *a)
{
    return a != NULL ? a->replicas : 0;
}

int ch_tpu_assignment_cores(const ch_tpu_assignment *a)
{
    return a != NULL ? a->cores : 0;
}

/* Checks the arguments of a look-up and returns the coordinates of the core in *at. */
static ch_status find_core(const char *call, const ch_tpu_assignment *a, int replica, int core,
                           const int **at)
{
    ch_status rc = ch__check_not_null(call, "the assignment", a, NULL, NULL);

    if (rc != CH_OK)
        return rc;
    if (replica < 0 || replica >= a->replicas || core < 0 || core >= a->cores)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: there is no core %d of replica %d (got %d replicas of %d cores)",
                        call, core, replica, a->replicas, a->cores);
    *at = a->at + ((ptrdiff_t)replica * a->cores + core) * CH_TPU_AXES;
    return CH_OK;
}

ch_status ch_tpu_assignment_coordinates(const ch_tpu_assignment *a, int replica, int core,
                                        int *at)
{
    static const char call[] = "coordinates of a TPU core";
    const int        *from = NULL;
    ch_status         rc = ch__check_not_null(call, "at", at, NULL, NULL);

    if (rc == CH_OK)
        rc = find_core(call, a, replica, core, &from);
    if (rc == CH_OK)
        memcpy(at, from, CH_TPU_AXES * sizeof(*at));
    return rc;
}

ch_status ch_tpu_assignment_find(const ch_tpu_assignment *a, int replica, int core, int *task,
                                 int *ordinal)
{
    const int *at = NULL;
    ch_status  rc = find_core("finding a TPU device", a, replica, core, &at);

    return rc == CH_OK ? ch_tpu_topology_find(a->topology, CH_TPU_AXES, at, task, ordinal) : rc;
}

ch_status ch_tpu_assignment_device_name(const ch_tpu_assignment *a, int replica, int core,
                                        const char *job, char *text, size_t size)
{
    const int *at = NULL;
    ch_status  rc = find_core("naming a TPU device", a, replica, core, &at);

    return rc == CH_OK
               ? ch_tpu_topology_device_name(a->topology, CH_TPU_AXES, at, job, text, size)
               : rc;
}

ch_status ch_tpu_assignment_host_name(const ch_tpu_assignment *a, int replica, int core,
                                      const char *job, char *text, size_t size)
{
    const int *at = NULL;
    ch_status  rc = find_core("naming the host of a TPU device", a, replica, core, &at);

    return rc == CH_OK
               ? ch_tpu_topology_host_name(a->topology, CH_TPU_AXES, at, job, text, size)
               : rc;
}

ch_status ch_tpu_assignment_lookup_replicas(const ch_tpu_assignment *a, int task, int core,
                                            int room, int *replica, int *n)
{
    static const char call[] = "looking up TPU replicas";
    int               found = 0;
    ch_status         rc = ch__check_not_null(call, "the assignment", a, "n", n);

    if (rc == CH_OK && room > 0)
        rc = ch__check_not_null(call, "replica", replica, NULL, NULL);
    for (int r = 0; rc == CH_OK && r < a->replicas && core >= 0 && core < a->cores; r++) {
        int of, ordinal;

        rc = ch_tpu_assignment_find(a, r, core, &of, &ordinal);
        if (rc != CH_OK || of != task)
            continue;
        if (found < room)
            replica[found] = r;
        found++;
    }
    if (rc == CH_OK && found == 0)
        rc = ch__fail(CH_INVALID_ARGUMENT, "%s: no replica has its core %d on task %d", call,
                      core, task);
    if (rc == CH_OK)
        *n = found;
    return rc;
}
