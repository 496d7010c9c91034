/* bench/logical.h -- a strategy with replicas of several cores, for benchmarks.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_LOGICAL_H
#define BENCH_LOGICAL_H

#include "must.h"

typedef struct cores {
    int                  n;          /* of each replica */
    int                  n_replicas; /* 0: 1 */
    ch_device           *device[CH_LOGICAL_DEVICES_MAX];
    int                  n_rules;
    const ch_split_rule *rule; /* splits of variables by name */
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

/* Returns a strategy whose replicas have the devices of `of`, which is copied. n_mesh 0: the mesh
 * of a replica has one axis. */
static inline ch_strategy *cores_strategy(const cores *of, int n_mesh, const int *mesh)
{
    static const ch_strategy_ops ops = {"Cores", cores_devices, cores_place, free};
    ch_strategy_parts            parts = {
                   .n_cores = of->n, .n_mesh = n_mesh, .n_rules = of->n_rules, .rule = of->rule};
    cores       *c = malloc(sizeof(*c));
    ch_strategy *st = NULL;

    if (c == NULL)
        exit(1);
    *c = *of;
    c->n_replicas = parts.n_replicas = of->n_replicas > 0 ? of->n_replicas : 1;
    for (int i = 0; i < n_mesh; i++)
        parts.mesh[i] = mesh[i];
    must(ch_strategy_new(&ops, c, &parts, &st));
    return st;
}

#endif
