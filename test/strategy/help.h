/* test/strategy/help.h -- helpers that create values, variables and strategies, for tests of
 * whole steps.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_STRATEGY_HELP_H
#define TEST_STRATEGY_HELP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "cohort/cohort.h"

static inline void t_ok(ch_status rc)
{
    if (rc != CH_OK)
        fail_msg("%s: %s", ch_status_name(rc), ch_error_message());
}

/* Checks that the call failed with this code, and that its message contains these words. */
static inline void t_refused(ch_status rc, ch_status code, const char *word, const char *other)
{
    if (rc != code)
        fail_msg("got %s (%s), want %s", ch_status_name(rc), ch_error_message(),
                 ch_status_name(code));
    if (strstr(ch_error_message(), word) == NULL || strstr(ch_error_message(), other) == NULL)
        fail_msg("\"%s\" has not both \"%s\" and \"%s\"", ch_error_message(), word, other);
}

static inline ch_tensor *t_f32(ch_shape shape, const float *data)
{
    ch_tensor *t = NULL;

    t_ok(data != NULL ? ch_tensor_copy_of(CH_F32, shape, data, &t)
                      : ch_tensor_new(CH_F32, shape, &t));
    return t;
}

/* Returns a tensor of numbers in [-1, 1) that depend only on the seed. */
static inline ch_tensor *t_noise(ch_shape shape, unsigned seed)
{
    ch_tensor *t = t_f32(shape, NULL);
    float     *x = ch_tensor_data_mut(t);

    for (int64_t i = 0; i < ch_tensor_count(t); i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / (1 << 23) - 1;
    }
    return t;
}

/* Returns a strategy with replicas on the first n virtual GPUs. Tests configure four GPUs. */
static inline ch_strategy *t_mirrored(int n)
{
    static const char *const name[] = {"GPU:0", "GPU:1", "GPU:2", "GPU:3"};
    ch_strategy             *st = NULL;

    t_ok(ch_strategy_mirrored(&(ch_mirrored_options){.n_devices = n, .device = name}, &st));
    return st;
}

static inline ch_strategy *t_central(int n)
{
    static const char *const name[] = {"GPU:0", "GPU:1", "GPU:2", "GPU:3"};
    ch_strategy             *st = NULL;

    t_ok(ch_strategy_central_storage(
        &(ch_central_storage_options){.n_compute = n, .compute = name}, &st));
    return st;
}

static inline int t_four_gpus(void **state)
{
    (void)state;
    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "GPU=4"}));
    return 0;
}

/* Takes over the reference to `initial`. */
static inline ch_var *t_var(ch_strategy *st, const char *name, ch_tensor *initial)
{
    ch_var *v = NULL;

    t_ok(ch_var_new(st, &(ch_var_spec){.name = name, .initial = initial}, &v));
    ch_tensor_unref(initial);
    return v;
}

static inline ch_function *t_function(ch_step_fn step, void *arg)
{
    ch_function *f = NULL;

    t_ok(ch_function_new("step", step, arg, &f));
    return f;
}

/* Returns a tuple of plain tensors. Takes over their references. */
static inline ch_tuple *t_tuple(int n, ch_tensor *const *t)
{
    ch_tuple *tuple = NULL;

    t_ok(ch_tuple_of(n, t, &tuple));
    for (int i = 0; i < n; i++)
        ch_tensor_unref(t[i]);
    return tuple;
}

static inline const float *t_floats(const ch_tuple *out, int leaf, int replica)
{
    return ch_tensor_data(ch_value_at(ch_tuple_at(out, leaf), replica));
}

/* Returns element i of a copy of a variable. */
static inline float t_copy_of(ch_var *v, int copy, int i)
{
    ch_value *all = NULL;
    float     x;

    t_ok(ch_var_copies(v, &all));
    x = ((const float *)ch_tensor_data(ch_value_at(all, copy)))[i];
    ch_value_unref(all);
    return x;
}

/* Returns the bytes of the arena that the plan of the step needs. */
static inline double t_arena_bytes(ch_function *f)
{
    static char text[1 << 16];
    const char *at;
    double      bytes = 0;

    ch_function_print_plan(f, text, sizeof(text));
    at = strstr(text, "\narena ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, " arena %lf bytes", &bytes), 1);
    return bytes;
}

#endif
