/* bench/logical.h -- a strategy with one replica of several cores, for benchmarks.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_LOGICAL_H
#define BENCH_LOGICAL_H

#include "must.h"

typedef struct cores {
    int        n;
    ch_device *device[CH_LOGICAL_DEVICES_MAX];
} cores;

static inline ch_device *const *cores_devices(void *self)
{
    return ((cores *)self)->device;
}

static inline ch_status cores_place(void *self, const ch_var_spec *spec, ch_layout *out)
{
    (void)spec;
    out->device[0] = ((cores *)self)->device[0];
    out->n_copies = 1;
    return CH_OK;
}

/* Returns a strategy whose replica has the devices of `of`, which is copied. n_mesh 0: their
 * mesh has one axis. */
static inline ch_strategy *cores_strategy(const cores *of, int n_mesh, const int *mesh)
{
    static const ch_strategy_ops ops = {"Cores", cores_devices, cores_place, free};
    ch_strategy_parts            parts = {.n_replicas = 1, .n_cores = of->n, .n_mesh = n_mesh};
    cores                       *c = malloc(sizeof(*c));
    ch_strategy                 *st = NULL;

    if (c == NULL)
        exit(1);
    *c = *of;
    for (int i = 0; i < n_mesh; i++)
        parts.mesh[i] = mesh[i];
    must(ch_strategy_new(&ops, c, &parts, &st));
    return st;
}

#endif
