/* test/strategy/cores.h -- a strategy whose replicas have several logical devices, for tests.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_STRATEGY_CORES_H
#define TEST_STRATEGY_CORES_H

#include <stdlib.h>

#include "help.h"

enum { T_MOST_DEVICES = 8 };

typedef struct t_cores {
    int        n_replicas, n_cores;
    ch_device *device[T_MOST_DEVICES];
} t_cores;

static inline ch_device *const *t_cores_devices(void *self)
{
    return ((t_cores *)self)->device;
}

static inline ch_status t_cores_place(void *self, const ch_var_spec *spec, ch_layout *out)
{
    const t_cores *c = self;

    (void)spec;
    for (int r = 0; r < c->n_replicas; r++)
        out->device[r] = c->device[r * c->n_cores];
    out->n_copies = c->n_replicas;
    return CH_OK;
}

static inline void t_cores_close(void *self)
{
    free(self);
}

/* Creates a strategy on the first n_replicas * n_cores GPUs. mesh[0] 0: one axis. */
static inline ch_status t_cores_new(int n_replicas, int n_cores, const int *mesh, int n_rules,
                                    const ch_split_rule *rule, ch_strategy **out)
{
    static const ch_strategy_ops ops = {"Cores", t_cores_devices, t_cores_place, t_cores_close};
    t_cores                     *c = calloc(1, sizeof(*c));
    ch_strategy_parts            parts = {
                   .n_replicas = n_replicas, .n_cores = n_cores, .n_rules = n_rules, .rule = rule};
    ch_status rc;

    assert_non_null(c);
    c->n_replicas = n_replicas;
    c->n_cores = n_cores;
    for (int i = 0; i < n_replicas * n_cores; i++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "GPU:%d", i);
        t_ok(ch_device_find(name, &c->device[i]));
    }
    for (int i = 0; mesh != NULL && mesh[i] > 0; i++)
        parts.mesh[parts.n_mesh++] = mesh[i];
    rc = ch_strategy_new(&ops, c, &parts, out);
    if (rc != CH_OK)
        free(c);
    return rc;
}

static inline ch_strategy *t_cores_strategy(int n_replicas, int n_cores, const int *mesh)
{
    ch_strategy *st = NULL;

    t_ok(t_cores_new(n_replicas, n_cores, mesh, 0, NULL, &st));
    return st;
}

static inline int t_eight_gpus(void **state)
{
    (void)state;
    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "GPU=8", .threads = 1}));
    return 0;
}

#endif
