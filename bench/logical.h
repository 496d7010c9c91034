/* bench/logical.h -- a strategy with replicas of several cores, for benchmarks.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_LOGICAL_H
#define BENCH_LOGICAL_H

#include "must.h"

typedef struct cores {
    int        n;          /* of each replica */
    int        n_replicas; /* 0: 1 */
    ch_device *device[CH_LOGICAL_DEVICES_MAX];
} cores;

static inline ch_device *const *cores_devices(void *self)
{
    return ((cores *)self)->device;
}

static inline ch_status cores_place(void *self, const ch_var_spec *spec, ch_layout *out)
{
    const cores *c = self;

    (void)spec;
    for (int r = 0; r < c->n_replicas; r++)
        out->device[r] = c->device[r * c->n];
    out->n_copies = c->n_replicas;
    return CH_OK;
}

/* Returns a strategy with these parts, whose replicas have the devices of `of`, which is
 * copied. */
static inline ch_strategy *cores_strategy_of(const cores *of, ch_strategy_parts parts)
{
    static const ch_strategy_ops ops = {"Cores", cores_devices, cores_place, free};
    cores                       *c = malloc(sizeof(*c));
    ch_strategy                 *st = NULL;

    if (c == NULL)
        exit(1);
    *c = *of;
    parts.n_cores = of->n;
    c->n_replicas = parts.n_replicas = of->n_replicas > 0 ? of->n_replicas : 1;
    must(ch_strategy_new(&ops, c, &parts, &st));
    return st;
}

/* The same with a logical mesh. n_mesh 0: the mesh of a replica has one axis. */
static inline ch_strategy *cores_strategy(const cores *of, int n_mesh, const int *mesh)
{
    ch_strategy_parts parts = {.n_mesh = n_mesh};

    for (int i = 0; i < n_mesh; i++)
        parts.mesh[i] = mesh[i];
    return cores_strategy_of(of, parts);
}

#endif
