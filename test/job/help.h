/* test/job/help.h -- local clusters and their strategies, for tests.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_JOB_HELP_H
#define TEST_JOB_HELP_H

#include "../strategy/help.h"
#include "cohort/coordinator.h"
#include "cohort/dataset.h"
#include "cohort/parameter_server.h"
#include "strategy/cut.h"

/* Returns a strategy over a new local cluster. `cluster` may be NULL; otherwise the caller owns
 * *cluster. */
static inline ch_strategy *t_cluster(const ch_local_cluster_options    *local,
                                     const ch_parameter_server_options *opt,
                                     ch_local_cluster                 **cluster)
{
    ch_local_cluster *c = NULL;
    ch_strategy      *st = NULL;

    t_ok(ch_cluster_local(local, &c));
    t_ok(ch_strategy_parameter_server(ch_local_cluster_resolver(c), opt, &st));
    if (cluster != NULL)
        *cluster = ch_local_cluster_ref(c);
    ch_local_cluster_unref(c);
    return st;
}

static inline ch_var *t_var_in(ch_strategy *st, const char *name, double value)
{
    ch_tensor *t = NULL;
    ch_var    *v = NULL;
    float      x = (float)value;

    t_ok(ch_tensor_copy_of(CH_F32, ch_shape_scalar(), &x, &t));
    t_ok(ch_var_new(st, &(ch_var_spec){.name = name, .initial = t}, &v));
    ch_tensor_unref(t);
    return v;
}

static inline double t_value_of(ch_var *v)
{
    ch_tensor *t = NULL;
    double     x;

    t_ok(ch_var_get(v, &t));
    x = ch_tensor_dtype(t) == CH_I64 ? (double)*(const int64_t *)ch_tensor_data(t)
                                     : *(const float *)ch_tensor_data(t);
    ch_tensor_unref(t);
    return x;
}

/* Continues a pass that ch__per_worker_save has saved. */
static inline ch_status t_continue_pass(ch_per_worker *p, const void *bytes, size_t n)
{
    ch_saved_pass *pass = NULL;
    ch_status      rc = ch__saved_pass_read(p, bytes, n, &pass);

    if (rc == CH_OK)
        ch__saved_pass_continue(pass);
    return rc;
}

#endif
