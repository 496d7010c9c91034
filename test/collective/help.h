/* test/collective/help.h -- steps on several replicas, each with its own input.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_COLLECTIVE_HELP_H
#define TEST_COLLECTIVE_HELP_H

#include "../strategy/help.h"

#define MOST 8 /* replicas */

static inline ch_strategy *t_replicas_with(int n, ch_communication_options how)
{
    static const char *const gpu[MOST] = {"GPU:0", "GPU:1", "GPU:2", "GPU:3",
                                          "GPU:4", "GPU:5", "GPU:6", "GPU:7"};
    ch_strategy             *st = NULL;

    t_ok(ch_strategy_mirrored(
        &(ch_mirrored_options){.n_devices = n, .device = gpu, .communication = how}, &st));
    return st;
}

static inline ch_strategy *t_replicas(int n)
{
    return t_replicas_with(n, (ch_communication_options){0});
}

/* Returns a tensor with the elements first, first + 1, ... */
static inline ch_tensor *t_count(ch_dtype dtype, ch_shape shape, double first)
{
    ch_tensor *wide = NULL, *t = NULL;

    t_ok(ch_tensor_new(CH_F64, shape, &wide));
    for (int64_t i = 0; i < ch_tensor_count(wide); i++)
        ((double *)ch_tensor_data_mut(wide))[i] = first + (double)i;
    t_ok(ch_tensor_new(dtype, shape, &t));
    for (int64_t i = 0; i < ch_tensor_count(t); i++) {
        double x = ((double *)ch_tensor_data_mut(wide))[i];
        void  *to = ch_tensor_data_mut(t);

        if (dtype == CH_F64)
            ((double *)to)[i] = x;
        else if (dtype == CH_F32)
            ((float *)to)[i] = (float)x;
        else if (dtype == CH_I32)
            ((int32_t *)to)[i] = (int32_t)x;
        else
            ((int64_t *)to)[i] = (int64_t)x;
    }
    ch_tensor_unref(wide);
    return t;
}

/* Returns element i of a replica's component of a leaf. */
static inline double t_number(const ch_tuple *out, int leaf, int replica, int64_t i)
{
    const ch_tensor *t = ch_value_at(ch_tuple_at(out, leaf), replica);
    const void      *data = ch_tensor_data(t);

    assert_true(i < ch_tensor_count(t));
    switch (ch_tensor_dtype(t)) {
    case CH_F64:
        return ((const double *)data)[i];
    case CH_F32:
        return ((const float *)data)[i];
    case CH_I32:
        return ((const int32_t *)data)[i];
    default:
        return (double)((const int64_t *)data)[i];
    }
}

/* Checks that the leaf has this shape and these numbers on every replica. */
static inline void t_all_have(const ch_tuple *out, int leaf, ch_shape shape, const double *want)
{
    const ch_value *v = ch_tuple_at(out, leaf);

    for (int r = 0; r < ch_value_count(v); r++) {
        if (!ch_shape_equal(ch_tensor_shape(ch_value_at(v, r)), shape))
            fail_msg("leaf %d of replica %d has another shape", leaf, r);
        for (int64_t i = 0; i < ch_shape_count(shape); i++)
            if (t_number(out, leaf, r, i) != want[i])
                fail_msg("leaf %d of replica %d: [%d] is %g, want %g", leaf, r, (int)i,
                         t_number(out, leaf, r, i), want[i]);
    }
}

/* Returns a leaf with a component for each of n replicas. Takes over the references to the
 * tensors. */
static inline ch_value *t_each(int n, ch_tensor *const *t)
{
    ch_value *v = NULL;

    t_ok(ch_value_new(n > 1 ? CH_PER_REPLICA : CH_PLAIN, n, t, &v));
    for (int i = 0; i < n; i++)
        ch_tensor_unref(t[i]);
    return v;
}

static inline ch_tuple *t_values(int n, ch_value *const *v)
{
    ch_tuple *t = NULL;

    t_ok(ch_tuple_new(n, v, NULL, &t));
    for (int i = 0; i < n; i++)
        ch_value_unref(v[i]);
    return t;
}

/* Runs a step once. Takes over the reference `in`. The caller must release the result. */
static inline ch_tuple *t_run(ch_strategy *st, ch_step_fn step, void *arg, ch_tuple *in)
{
    ch_function *f = t_function(step, arg);
    ch_tuple    *out = NULL;

    t_ok(ch_strategy_run(st, f, in, &out));
    ch_function_unref(f);
    ch_tuple_unref(in);
    return out;
}

/* Checks that a run fails with this code and message. */
static inline void t_run_refused(ch_strategy *st, ch_step_fn step, void *arg, ch_tuple *in,
                                 ch_status code, const char *word, const char *other)
{
    ch_function *f = t_function(step, arg);
    ch_tuple    *out = NULL;

    t_refused(ch_strategy_run(st, f, in, &out), code, word, other);
    ch_function_unref(f);
    ch_tuple_unref(in);
}

#endif
