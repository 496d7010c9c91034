/* cluster/tpu_system.c -- ch_tpu_initialize: the TPU devices of this process as a topology.
 *
 * The mesh of the topology comes from the resolver's name, a setting, or the number of devices.
 * The resolver and the process remember the topology, so that ch_strategy_tpu can compare it
 * with that of a device assignment.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "cluster/tpu.h"

/* The topology of the last ch_tpu_initialize, referenced; NULL: the system is not initialized.
 * A process has a single TPU system, because its devices belong to the process. cohort/tpu.h
 * says which calls must not overlap, so a reader can take a reference. */
static ch_tpu_topology *_Atomic system_topology;

/* Sets the topology of the system, NULL: none. Returns true if it had one before. */
static bool set_system(ch_tpu_topology *t)
{
    ch_tpu_topology *before = atomic_exchange(&system_topology, ch_tpu_topology_ref(t));

    ch_tpu_topology_unref(before);
    return before != NULL;
}

/* ---- description ---- */

static int compare_devices(const void *a, const void *b)
{
    const ch_device_spec *x = ch_device_where(*(ch_device *const *)a);
    const ch_device_spec *y = ch_device_where(*(ch_device *const *)b);
    int                   by_job = strcmp(x->job, y->job), by_type = strcmp(x->type, y->type);

    if (by_job != 0)
        return by_job;
    if (x->task != y->task)
        return x->task < y->task ? -1 : 1;
    return by_type != 0 ? by_type : (x->index > y->index) - (x->index < y->index);
}

ch_status ch_resolver_tpu_system(ch_resolver *r, ch_tpu_system *out, int room,
                                 ch_device **device)
{
    static const char call[] = "describing a TPU system";
    const int        *mesh;
    ch_tpu_system     s = {.cores = ch_device_count("TPU"), .devices = ch_device_count(NULL)};
    ch_device       **all;
    ch_status         rc = ch__check_not_null(call, "the resolver", r, "out", out);

    if (rc == CH_OK && room > 0)
        rc = ch__check_not_null(call, "device", device, NULL, NULL);
    if (rc == CH_OK)
        rc = ch__resolver_tpu_local(r, call, &mesh);
    if (rc != CH_OK)
        return rc;
    s.hosts = s.cores > 0 ? 1 : 0;
    s.cores_per_host = s.cores;
    all = ch__calloc((size_t)s.devices + 1, sizeof(*all));
    if (all == NULL)
        return ch__fail_memory(call);
    for (int i = 0; i < s.devices; i++)
        all[i] = ch_device_at(i);
    qsort(all, (size_t)s.devices, sizeof(ch_device *), compare_devices);
    for (int i = 0; i < s.devices && i < room; i++)
        device[i] = all[i];
    ch__free(all);
    *out = s;
    return CH_OK;
}

/* ---- the mesh ---- */

/* Writes the mesh of n devices that nothing else describes: chips of two cores, as square as
 * possible; a single chip if n is odd. */
static void default_mesh(int n, int size[CH_TPU_AXES])
{
    int chips = n / 2, short_side = 1;

    size[X] = size[Y] = size[Z] = 1;
    size[CORE] = n;
    if (n % 2 != 0)
        return;
    for (int i = 2; i * i <= chips; i++)
        if (chips % i == 0)
            short_side = i;
    size[X] = chips / short_side;
    size[Y] = short_side;
    size[CORE] = 2;
}

/* Writes the mesh of n devices: that of the name (NULL: it has none), else of COHORT_TPU_MESH,
 * else the default. */
static ch_status find_mesh(const char *call, const int *of_name, int n, int size[CH_TPU_AXES])
{
    const char *setting = ch__config()->tpu_mesh;
    bool        is_set = setting[0] != '\0';
    char        text[CH_TPU_VECTOR_TEXT];
    int         cores = n;
    ch_status   rc = CH_OK;

    if (of_name != NULL)
        memcpy(size, of_name, CH_TPU_AXES * sizeof(*size));
    else if (is_set)
        rc = ch__tpu_mesh_parse("COHORT_TPU_MESH", setting, size);
    else
        default_mesh(n, size);
    if (rc == CH_OK)
        rc = ch__tpu_mesh_cores(call, size, &cores);
    if (rc == CH_OK && cores != n)
        rc =
            ch__fail(CH_INVALID_ARGUMENT,
                     "%s: the mesh %s%s has %d cores, and this process has %d TPU devices; set "
                     "COHORT_DEVICES=TPU=%d, or call ch_devices_configure before the first use "
                     "of a device",
                     call, ch__tpu_vector_text(size, text),
                     of_name == NULL ? " of COHORT_TPU_MESH" : "", cores, n, cores);
    return rc;
}

/* ---- initializing ---- */

/* Takes a reference to `r`, or makes a resolver without a name if `r` is NULL. */
static ch_status get_resolver(ch_resolver *r, ch_resolver **out)
{
    *out = ch_resolver_ref(r);
    return r != NULL ? CH_OK : ch_resolver_tpu(NULL, NULL, out);
}

ch_status ch__tpu_no_devices(const char *call)
{
    return ch__fail(CH_NOT_FOUND,
                    "%s: this process has no TPU devices; for virtual devices over this "
                    "machine's cores, set COHORT_DEVICES=TPU=8, or call ch_devices_configure "
                    "before the first use of a device",
                    call);
}

static ch_status make_topology(const char *call, const ch_resolver *r, ch_tpu_topology **out)
{
    int         n = ch_device_count("TPU");
    const int  *of_name;
    ch_tpu_mesh mesh = {.n = CH_TPU_AXES};
    ch_status   rc = ch__resolver_tpu_local(r, call, &of_name);

    if (rc == CH_OK && n == 0)
        rc = ch__tpu_no_devices(call);
    if (rc == CH_OK)
        rc = find_mesh(call, of_name, n, mesh.size);
    return rc == CH_OK ? ch_tpu_topology_new(&mesh, out) : rc;
}

ch_status ch__tpu_system_topology(const ch_resolver *r, const char *call, ch_tpu_topology **out)
{
    const int *of_name = NULL;
    ch_status  rc = ch__resolver_tpu_local(r, call, &of_name);

    *out = NULL;
    if (rc != CH_OK)
        return rc;
    *out = ch_tpu_topology_ref(ch_resolver_tpu_topology(r));
    if (*out == NULL && of_name == NULL)
        *out = ch_tpu_topology_ref(atomic_load(&system_topology));
    if (*out != NULL || (of_name == NULL && ch__config()->tpu_mesh[0] == '\0'))
        return CH_OK;
    return make_topology(call, r, out);
}

ch_status ch_tpu_initialize(ch_resolver *r, ch_tpu_topology **out)
{
    static const char call[] = "initializing the TPU system";
    ch_resolver      *of = NULL;
    ch_tpu_topology  *t = NULL;
    ch_status         rc = ch__check_not_null(call, "out", out, NULL, NULL);

    if (rc == CH_OK)
        rc = get_resolver(r, &of);
    if (rc == CH_OK)
        rc = make_topology(call, of, &t);
    if (rc == CH_OK) {
        ch__resolver_tpu_set_topology(of, t);
        if (set_system(t))
            ch__log(CH_LOG_WARNING, "tpu",
                    "the TPU system is initialized again; its devices and variables stay as "
                    "they are");
        *out = t;
    }
    ch_resolver_unref(of);
    return rc;
}

ch_status ch_tpu_shutdown(ch_resolver *r)
{
    static const char call[] = "shutting down the TPU system";
    const int        *mesh;
    ch_resolver      *of = NULL;
    ch_status         rc = get_resolver(r, &of);

    if (rc == CH_OK)
        rc = ch__resolver_tpu_local(of, call, &mesh);
    if (rc == CH_OK) {
        ch__resolver_tpu_set_topology(of, NULL);
        if (!set_system(NULL))
            ch__log(CH_LOG_WARNING, "tpu",
                    "the TPU system is shut down, and was not initialized");
    }
    ch_resolver_unref(of);
    return rc;
}
