/* test/strategy/tpu.h -- TPU strategies, for tests.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_STRATEGY_TPU_H
#define TEST_STRATEGY_TPU_H

#include "help.h"

enum { T_TPUS = 8 }; /* TPU devices of this process: by default a mesh of 2x2x1x2 */

/* Creates a strategy on a TPU system, such as "virtual:2x2x1x2". `b` NULL: no assignment. */
static inline ch_status t_tpu_new(const char *system, const ch_tpu_build *b,
                                  const ch_tpu_options *opt, ch_strategy **out)
{
    ch_resolver       *r = NULL;
    ch_tpu_topology   *t = NULL;
    ch_tpu_assignment *a = NULL;
    ch_status          rc;

    t_ok(ch_resolver_tpu(system, NULL, &r));
    t_ok(ch_resolver_connect(r));
    t_ok(ch_tpu_initialize(r, &t));
    rc = b != NULL ? ch_tpu_assignment_build(t, b, &a) : CH_OK;
    if (rc == CH_OK)
        rc = ch_strategy_tpu(r, a, opt, out);
    t_ok(ch_tpu_shutdown(r));
    ch_tpu_assignment_unref(a);
    ch_tpu_topology_unref(t);
    ch_resolver_unref(r);
    return rc;
}

/* Returns the assignment of replicas of 1, 2, 4 or 8 cores on the default mesh. */
static inline ch_tpu_build t_tpu_build(int n_replicas, int n_cores)
{
    return (ch_tpu_build){
        .n = 3,
        .shape = {n_cores >= 4 ? 2 : 1, n_cores >= 8 ? 2 : 1, n_cores >= 2 ? 2 : 1},
        .replicas = n_replicas};
}

static inline ch_strategy *t_tpu_with(int n_replicas, int n_cores, const ch_tpu_options *opt)
{
    ch_tpu_build b = t_tpu_build(n_replicas, n_cores);
    ch_strategy *st = NULL;

    t_ok(t_tpu_new("", &b, opt, &st));
    return st;
}

static inline ch_strategy *t_tpu(int n_replicas, int n_cores, bool spmd)
{
    return t_tpu_with(n_replicas, n_cores, &(ch_tpu_options){.spmd = spmd});
}

/* Creates a strategy with these devices: core c of replica r is TPU:at[r * n_cores + c]. */
static inline ch_strategy *t_tpu_on(int n_replicas, int n_cores, const int *at, bool spmd)
{
    int                core[T_TPUS][CH_TPU_AXES];
    ch_resolver       *r = NULL;
    ch_tpu_topology   *t = NULL;
    ch_tpu_assignment *a = NULL;
    ch_strategy       *st = NULL;

    t_ok(ch_resolver_tpu("", NULL, &r));
    t_ok(ch_tpu_initialize(r, &t));
    for (int i = 0; i < n_replicas * n_cores; i++)
        memcpy(core[i], &ch_tpu_topology_mesh(t)->at[at[i] * CH_TPU_AXES], sizeof(core[i]));
    t_ok(ch_tpu_assignment_from_cores(t, n_replicas, n_cores, CH_TPU_AXES, core[0], &a));
    t_ok(ch_strategy_tpu(r, a, &(ch_tpu_options){.spmd = spmd}, &st));
    t_ok(ch_tpu_shutdown(r));
    ch_tpu_assignment_unref(a);
    ch_tpu_topology_unref(t);
    ch_resolver_unref(r);
    return st;
}

/* Returns a tuple of one per-replica value (plain for one replica): t[r] is of replica r. Takes
 * over the references. */
static inline ch_tuple *t_each(int n, ch_tensor *const *t)
{
    ch_value *v = NULL;
    ch_tuple *tuple = NULL;

    t_ok(ch_value_new(n > 1 ? CH_PER_REPLICA : CH_PLAIN, n, t, &v));
    t_ok(ch_tuple_new(1, &v, NULL, &tuple));
    for (int i = 0; i < n; i++)
        ch_tensor_unref(t[i]);
    ch_value_unref(v);
    return tuple;
}

static inline int t_eight_tpus(void **state)
{
    (void)state;
    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "TPU=8", .threads = 1}));
    return 0;
}

#endif
