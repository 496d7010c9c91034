/* test/strategy/values.h -- helpers that create and compare values of several replicas.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_STRATEGY_VALUES_H
#define TEST_STRATEGY_VALUES_H

#include <math.h>

#include "help.h"

/* Returns a tensor with these numbers. */
static inline ch_tensor *t_of(ch_dtype dtype, ch_shape shape, const double *x)
{
    ch_tensor *flat = NULL, *t = NULL;

    t_ok(ch_tensor_new(dtype, ch_shape_of(ch_shape_count(shape)), &flat));
    for (int64_t i = 0; i < ch_shape_count(shape); i++)
        t_ok(ch_tensor_set(flat, &i, x[i]));
    t_ok(ch_tensor_reshape(flat, shape, &t));
    ch_tensor_unref(flat);
    return t;
}

/* Returns a tensor with the numbers first, first + 1, ... */
static inline ch_tensor *t_counting(ch_dtype dtype, ch_shape shape, double first)
{
    double x[64];

    assert_true(ch_shape_count(shape) <= 64);
    for (int i = 0; i < 64; i++)
        x[i] = first + i;
    return t_of(dtype, shape, x);
}

static inline ch_tensor *t_number(ch_dtype dtype, double x)
{
    return t_of(dtype, ch_shape_scalar(), &x);
}

/* Returns a value of these tensors. Takes over their references. */
static inline ch_value *t_value(ch_value_kind kind, int n, ch_tensor *const *t)
{
    ch_value *v = NULL;

    t_ok(ch_value_new(kind, n, t, &v));
    for (int i = 0; i < n; i++)
        ch_tensor_unref(t[i]);
    return v;
}

static inline ch_value *t_both(ch_tensor *a, ch_tensor *b)
{
    return t_value(CH_PER_REPLICA, 2, (ch_tensor *[]){a, b});
}

/* Returns a tuple of a single value. Takes over its reference. */
static inline ch_tuple *t_one(ch_value *v, const char *name)
{
    ch_tuple *t = NULL;

    t_ok(ch_tuple_new(1, &v, &name, &t));
    ch_value_unref(v);
    return t;
}

/* Checks the dtype, the shape and the numbers; NaN equals NaN. */
static inline void t_is(ch_tensor *t, ch_dtype dtype, ch_shape shape, const double *x)
{
    ch_tensor *flat = NULL;
    char       text[200];

    ch_tensor_print(t, text, sizeof(text));
    if (ch_tensor_dtype(t) != dtype || !ch_shape_equal(ch_tensor_shape(t), shape))
        fail_msg("%s is not %s of rank %d", text, ch_dtype_name(dtype), shape.rank);
    t_ok(ch_tensor_reshape(t, ch_shape_of(ch_shape_count(shape)), &flat));
    for (int64_t i = 0; i < ch_shape_count(shape); i++) {
        double got = 0;

        t_ok(ch_tensor_get(flat, &i, &got));
        if (got != x[i] && !(isnan(got) && isnan(x[i])))
            fail_msg("%s: element %d is not %g", text, (int)i, x[i]);
    }
    ch_tensor_unref(flat);
}

/* The same. Releases the tensor. */
static inline void t_gave(ch_tensor *t, ch_dtype dtype, ch_shape shape, const double *x)
{
    t_is(t, dtype, shape, x);
    ch_tensor_unref(t);
}

static inline void t_gave_number(ch_tensor *t, ch_dtype dtype, double x)
{
    t_gave(t, dtype, ch_shape_scalar(), &x);
}

static inline void t_on(const ch_tensor *t, const char *device)
{
    char want[100];

    snprintf(want, sizeof(want), "/job:localhost/replica:0/task:0/device:%s", device);
    assert_string_equal(ch_device_name(ch_tensor_device(t)), want);
}

static const char *const t_gpus[] = {"/gpu:0", "/gpu:1", "/gpu:2", "/gpu:3"};

static inline ch_strategy *t_one_device(void)
{
    ch_strategy *st = NULL;

    t_ok(ch_strategy_one_device("/gpu:0", &st));
    return st;
}

#endif
