/* test/job/rows.h -- tables, ids and rows, for tests of sharded variables.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_JOB_ROWS_H
#define TEST_JOB_ROWS_H

#include "help.h"
#include "strategy/cut.h"

/* 0, 1, 2, ... in a shape. */
static inline ch_tensor *t_counted(ch_shape shape)
{
    ch_tensor *t = t_f32(shape, NULL);
    float     *x = ch_tensor_data_mut(t);

    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        x[i] = (float)i;
    return t;
}

static inline ch_var *t_table(ch_strategy *st, const char *name, ch_shape shape)
{
    return t_var(st, name, t_counted(shape));
}

/* Returns a strategy with two servers, which cuts each variable along axis 0 into this many
 * shards. */
static inline ch_strategy *t_in_shards(int shards)
{
    return t_cluster(
        &(ch_local_cluster_options){.ps = 2, .workers = 2},
        &(ch_parameter_server_options){.partitioner = ch_partitioner_fixed(shards)}, NULL);
}

static inline ch_tensor *t_ids(ch_shape shape, const int64_t *id)
{
    ch_tensor *t = NULL;

    t_ok(ch_tensor_copy_of(CH_I64, shape, id, &t));
    return t;
}

/* Returns the value of a variable in a cut. */
static inline ch_tensor *t_cut_value(const ch_cut *cut, ch_var *v)
{
    ch_tensor *t = NULL;

    t_ok(ch_tensor_new(ch_var_dtype(v), ch_var_shape(v), &t));
    t_ok(ch__cut_read(cut, v, NULL, ch_tensor_data_mut(t)));
    return t;
}

/* Compares a tensor with the expected shape and values. Takes over the reference `is`. */
static inline void t_same(ch_tensor *is, ch_shape shape, const float *want)
{
    const float *x = ch_tensor_data(is);

    if (!ch_shape_equal(ch_tensor_shape(is), shape))
        fail_msg("another shape");
    for (int64_t i = 0; i < ch_tensor_count(is); i++)
        if (x[i] != want[i])
            fail_msg("element %d is %g, want %g", (int)i, (double)x[i], (double)want[i]);
    ch_tensor_unref(is);
}

/* Compares the value of a variable with `want`; `want` NULL: zeros. */
static inline void t_var_is(ch_var *v, const float *want)
{
    ch_tensor *t = NULL;

    t_ok(ch_var_get(v, &t));
    t_same(t, ch_var_shape(v), want);
}

#endif
