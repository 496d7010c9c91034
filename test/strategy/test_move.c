/* test/strategy/test_move.c -- ch_strategy_reduce_to, batch_reduce_to and broadcast_to:
 * reductions and copies with a destination.
 *
 * The destination is a device, a variable or a value. The numbers in comments are rows of
 * doc/conformance.md.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "values.h"

#define N(...) ((const double[]){__VA_ARGS__})

/* Returns a value with a scalar on each of n GPUs: first, first + 1, ... */
static ch_value *on_gpus(ch_value_kind kind, ch_dtype dtype, int n, double first, double step)
{
    ch_tensor *t[4];

    for (int i = 0; i < n; i++) {
        ch_device *d = NULL;

        t_ok(ch_device_find(t_gpus[i], &d));
        t_ok(ch_device_enter(d));
        t[i] = t_number(dtype, first + i * step);
        ch_device_leave();
    }
    return t_value(kind, n, t);
}

/* Checks that `v` is this number on each of n GPUs, or on the CPU if n is 0. Takes over the
 * reference `v`. */
static void is_there(ch_value *v, int n, ch_dtype dtype, double x)
{
    static const char *const gpu[] = {"GPU:0", "GPU:1", "GPU:2", "GPU:3"};

    assert_int_equal(ch_value_kind_of(v), n > 1 ? CH_MIRRORED : CH_PLAIN);
    assert_int_equal(ch_value_count(v), n > 1 ? n : 1);
    for (int i = 0; i < ch_value_count(v); i++) {
        t_is(ch_value_at(v, i), dtype, ch_shape_scalar(), &x);
        t_on(ch_value_at(v, i), n == 0 ? "CPU:0" : gpu[i]);
    }
    ch_value_unref(v);
}

/* 4.2.1, 4.2.3, 4.2.4, 4.2.12 */
static void reduce_to_puts_the_result_at_its_destination(void **state)
{
    for (int i = 0; i < 2; i++)
        for (int n = 2; n <= 4; n++) {
            ch_strategy *st = i == 0 ? t_mirrored(n) : t_central(n);
            ch_value    *v = on_gpus(CH_PER_REPLICA, CH_F32, n, 0, 1), *out = NULL;
            ch_value    *cpu = t_value(CH_PLAIN, 1, (ch_tensor *[]){t_number(CH_F32, 9)});
            const ch_destination to[] = {{.value = v}, {.value = cpu}, {.device = "/cpu:0"}};

            for (int k = 0; k < 3; k++) {
                t_ok(ch_strategy_reduce_to(st, CH_MEAN, v, &to[k], &out));
                is_there(out, k == 0 ? n : 0, CH_F32, (n - 1) / 2.0);
                t_ok(ch_strategy_reduce_to(st, CH_SUM, v, &to[k], &out));
                is_there(out, k == 0 ? n : 0, CH_F32, n * (n - 1) / 2.0);
            }
            ch_value_unref(v);
            ch_value_unref(cpu);
            ch_strategy_unref(st);
        }
    (void)state;
}

/* 4.2.4, 4.2.8, 4.2.9, 8.9: any pair of destinations, any dtypes */
static void batch_reduce_to_returns_results_in_order(void **state)
{
    ch_strategy *st = t_mirrored(3);
    ch_value    *a = on_gpus(CH_PER_REPLICA, CH_F32, 3, 0, 1);
    ch_value    *b = on_gpus(CH_PER_REPLICA, CH_I32, 3, 1, 1);
    ch_value    *host =
        t_value(CH_PER_REPLICA, 3,
                (ch_tensor *[]){t_number(CH_I32, 5), t_number(CH_I32, 6), t_number(CH_I32, 7)});
    const ch_value      *v[] = {a, b, host};
    const ch_destination all[] = {{.value = v[0]}, {.device = "/cpu:0"}};

    for (int i = 0; i < 4; i++) {
        const ch_destination to[] = {all[i % 2], all[i / 2], all[0]};
        ch_value            *out[3] = {NULL, NULL, NULL};

        t_ok(ch_strategy_batch_reduce_to(st, CH_MEAN, 3, v, to, out));
        is_there(out[2], 3, CH_F64, 6);
        is_there(out[0], i % 2 == 0 ? 3 : 0, CH_F32, 1);
        is_there(out[1], i / 2 == 0 ? 3 : 0, CH_F64, 2);
        t_ok(ch_strategy_batch_reduce_to(st, CH_SUM, 3, v, to, out));
        is_there(out[2], 3, CH_I32, 18);
        is_there(out[0], i % 2 == 0 ? 3 : 0, CH_F32, 3);
        is_there(out[1], i / 2 == 0 ? 3 : 0, CH_I32, 6);
    }
    t_ok(ch_strategy_batch_reduce_to(st, CH_SUM, 0, NULL, NULL, NULL));
    ch_value_unref(a);
    ch_value_unref(b);
    ch_value_unref(host);
    ch_strategy_unref(st);
    (void)state;
}

/* If a value of a batch fails, the whole call fails, and nothing leaks. */
static void batch_reduce_to_gives_all_results_or_none(void **state)
{
    ch_strategy         *st = t_mirrored(2);
    ch_value            *a = on_gpus(CH_PER_REPLICA, CH_F32, 2, 0, 1);
    ch_value            *b = t_value(CH_PLAIN, 1, (ch_tensor *[]){t_number(CH_F32, 1)});
    const ch_value      *v[] = {a, b};
    const ch_destination to[] = {{.value = a}, {.value = a}};
    ch_value            *out[2] = {NULL, NULL};
    ch_status            rc = CH_RESOURCE_EXHAUSTED;
    int64_t              live = ch__mem_live();

    t_refused(ch_strategy_batch_reduce_to(st, CH_SUM, 2, v, to, out), CH_INVALID_ARGUMENT,
              "value 1 of 2", "plain");
    t_refused(ch_strategy_batch_reduce_to(st, CH_SUM, -1, v, to, out), CH_INVALID_ARGUMENT,
              "-1 values", "");
    t_refused(ch_strategy_batch_reduce_to(st, CH_SUM, 2, v, NULL, out), CH_INVALID_ARGUMENT,
              "2 values", "NULL");
    v[1] = a;
    for (int n = 1; rc != CH_OK; n++) {
        assert_null(out[0]);
        assert_int_equal(ch__mem_live(), live);
        ch__mem_fail_at(n);
        rc = ch_strategy_batch_reduce_to(st, CH_SUM, 2, v, to, out);
        ch__mem_fail_at(0);
    }
    is_there(out[0], 2, CH_F32, 1);
    is_there(out[1], 2, CH_F32, 1);
    ch_value_unref(a);
    ch_value_unref(b);
    ch_strategy_unref(st);
    (void)state;
}

/* 4.2.1, 4.2.2 */
static void destination_must_be_one_of_device_value_and_variable(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_value    *v = on_gpus(CH_PER_REPLICA, CH_F32, 2, 0, 1), *out = NULL;
    ch_tensor   *t = t_number(CH_F32, 1);

    t_refused(ch_strategy_reduce_to(st, CH_SUM, v, NULL, &out), CH_INVALID_ARGUMENT,
              "the destination", "NULL");
    t_refused(ch_strategy_reduce_to(st, CH_SUM, v, &(ch_destination){0}, &out),
              CH_INVALID_ARGUMENT, "empty", "device");
    t_refused(ch_strategy_reduce_to(st, CH_SUM, v,
                                    &(ch_destination){.device = "/cpu:0", .value = v}, &out),
              CH_INVALID_ARGUMENT, "more than one", "device");
    t_refused(ch_strategy_reduce_to(st, CH_SUM, v, &(ch_destination){.device = "/gpu:9"}, &out),
              CH_INVALID_ARGUMENT, "reduce to, destination", "GPU:9");
    t_refused(
        ch_strategy_reduce_to(st, (ch_reduce_op)3, v, &(ch_destination){.value = v}, &out),
        CH_INVALID_ARGUMENT, "ch_reduce_op", "3");
    t_refused(ch_strategy_reduce_to(st, CH_SUM, NULL, &(ch_destination){.value = v}, &out),
              CH_INVALID_ARGUMENT, "the value", "NULL");
    t_refused(ch_strategy_reduce_to(st, CH_SUM, v, &(ch_destination){.value = v}, NULL),
              CH_INVALID_ARGUMENT, "out", "NULL");
    t_refused(ch_strategy_broadcast_to(st, t, NULL, &out), CH_INVALID_ARGUMENT,
              "the destination", "NULL");
    t_refused(ch_strategy_broadcast_to(st, NULL, &(ch_destination){.value = v}, &out),
              CH_INVALID_ARGUMENT, "the tensor", "NULL");
    assert_null(out);
    ch_tensor_unref(t);
    ch_value_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

/* 4.2.5, 4.2.7 */
static void reduce_to_returns_a_mirrored_value_as_its_mean(void **state)
{
    ch_strategy *st = t_mirrored(2), *one = t_mirrored(1);
    ch_value    *m = on_gpus(CH_MIRRORED, CH_F32, 2, 7, 0), *out = NULL;
    ch_value    *single = on_gpus(CH_PER_REPLICA, CH_F32, 1, 7, 0);
    ch_value    *whole = on_gpus(CH_MIRRORED, CH_I32, 2, 7, 0);

    t_ok(ch_strategy_reduce_to(st, CH_MEAN, m, &(ch_destination){.device = "/cpu:0"}, &out));
    assert_ptr_equal(ch_value_at(out, 1), ch_value_at(m, 1)); /* unchanged */
    is_there(out, 2, CH_F32, 7);
    t_refused(ch_strategy_reduce_to(st, CH_SUM, m, &(ch_destination){.value = m}, &out),
              CH_INVALID_ARGUMENT, "reduce to", "mirrored");
    t_ok(
        ch_strategy_reduce_to(st, CH_MEAN, whole, &(ch_destination){.device = "/cpu:0"}, &out));
    is_there(out, 0, CH_F64, 7); /* the mean of integers is a float, so not the value itself */
    ch_value_unref(whole);
    t_ok(ch_strategy_reduce_to(one, CH_MEAN, single, &(ch_destination){.value = single}, &out));
    is_there(out, 1, CH_F32, 7);
    t_ok(ch_strategy_reduce_to(one, CH_SUM, single, &(ch_destination){.device = "/cpu:0"},
                               &out));
    is_there(out, 0, CH_F32, 7);
    ch_value_unref(m);
    ch_value_unref(single);
    ch_strategy_unref(st);
    ch_strategy_unref(one);
    (void)state;
}

/* 4.2.6, 4.2.13: the result is placed where the variable is; the variable itself is not
 * assigned */
static void reduce_to_accepts_a_variable_as_destination(void **state)
{
    ch_strategy *st[] = {t_mirrored(2), t_central(2), t_one_device()};

    for (int i = 0; i < 3; i++) {
        int       n = ch_strategy_replicas(st[i]);
        ch_var   *w = t_var(st[i], "w", t_number(CH_F32, 0));
        ch_value *v = i < 2 ? on_gpus(CH_PER_REPLICA, CH_F32, 2, 1, 0)
                            : on_gpus(CH_PLAIN, CH_F32, 1, 1, 0);
        ch_value *out = NULL;

        t_ok(ch_strategy_reduce_to(st[i], CH_SUM, v, &(ch_destination){.var = w}, &out));
        assert_float_equal(t_copy_of(w, 0, 0), 0, 0);
        t_ok(ch_var_set(w, ch_value_at(out, 0)));
        assert_float_equal(t_copy_of(w, 0, 0), (float)n, 0);
        is_there(out, i == 0 ? 2 : i == 1 ? 0 : 1, CH_F32, n);
        ch_value_unref(v);
        ch_var_unref(w);
        ch_strategy_unref(st[i]);
    }
    (void)state;
}

/* 4.2.11, 1.5.2, 6.3.7 */
static void reduce_to_under_one_device_returns_its_argument(void **state)
{
    ch_strategy *st[] = {NULL, t_one_device()};
    ch_value *v = on_gpus(CH_PLAIN, CH_F32, 1, 5, 0), *w = on_gpus(CH_PLAIN, CH_F32, 1, 6, 0);

    for (int i = 0; i < 2; i++)
        for (int op = CH_SUM; op <= CH_MEAN; op++) {
            const ch_destination cpu = {.device = "/cpu:0"};
            ch_value            *out[2] = {NULL, NULL};

            t_ok(ch_strategy_reduce_to(st[i], (ch_reduce_op)op, v, &cpu, out));
            assert_ptr_equal(ch_value_at(out[0], 0), ch_value_at(v, 0));
            ch_value_unref(out[0]);
            t_ok(ch_strategy_batch_reduce_to(st[i], (ch_reduce_op)op, 2,
                                             (const ch_value *const[]){v, w},
                                             (const ch_destination[]){cpu, cpu}, out));
            assert_ptr_equal(ch_value_at(out[0], 0), ch_value_at(v, 0));
            assert_ptr_equal(ch_value_at(out[1], 0), ch_value_at(w, 0));
            ch_value_unref(out[0]);
            ch_value_unref(out[1]);
        }
    ch_value_unref(v);
    ch_value_unref(w);
    ch_strategy_unref(st[1]);
    (void)state;
}

/* 4.2.10, 1.5.4 */
static void broadcast_to_copies_a_tensor_to_its_destination(void **state)
{
    ch_strategy *st = t_mirrored(2), *one = t_one_device();
    ch_value    *v = on_gpus(CH_PER_REPLICA, CH_F32, 2, 0, 1), *out = NULL;
    ch_tensor   *t = t_number(CH_F32, 3);

    t_ok(ch_strategy_broadcast_to(st, t, &(ch_destination){.value = v}, &out));
    is_there(out, 2, CH_F32, 3);
    t_ok(ch_strategy_broadcast_to(st, t, &(ch_destination){.device = "/gpu:0"}, &out));
    is_there(out, 1, CH_F32, 3);
    t_ok(ch_strategy_broadcast_to(one, t, &(ch_destination){.device = "/gpu:0"}, &out));
    assert_ptr_equal(ch_value_at(out, 0), t);
    ch_value_unref(out);
    t_refused(ch_strategy_broadcast_to(NULL, t, &(ch_destination){.device = "/gpu:0"}, &out),
              CH_UNIMPLEMENTED, "Default", "ch_tensor_to");
    ch_tensor_unref(t);
    ch_value_unref(v);
    ch_strategy_unref(st);
    ch_strategy_unref(one);
    (void)state;
}

static void move_inside(ch_step *s, void *arg)
{
    ch_value *out = NULL;

    t_refused(ch_strategy_reduce_to(arg, CH_SUM, NULL, NULL, &out), CH_FAILED_PRECONDITION,
              "reduce to", "outside steps");
    t_refused(ch_strategy_batch_reduce_to(arg, CH_SUM, 0, NULL, NULL, &out),
              CH_FAILED_PRECONDITION, "batch reduce to", "outside steps");
    t_refused(ch_strategy_broadcast_to(arg, NULL, NULL, &out), CH_FAILED_PRECONDITION,
              "broadcast to", "outside steps");
    ch_step_out(s, "x", ch_number(s, 1));
}

/* 1.3.5, 1.3.12 */
static void reduce_to_and_broadcast_to_are_refused_in_replica_context(void **state)
{
    ch_strategy *st = t_mirrored(2), *other = t_mirrored(2);
    ch_function *f = t_function(move_inside, st);
    ch_value    *v = on_gpus(CH_PER_REPLICA, CH_F32, 2, 0, 1), *out = NULL;

    t_ok(ch_strategy_run(st, f, NULL, NULL));
    for (int i = 0; i < 2; i++) {
        ch_status want = i == 0 ? CH_FAILED_PRECONDITION : CH_OK;

        t_ok(ch_strategy_enter(i == 0 ? other : st));
        assert_int_equal(
            ch_strategy_reduce_to(st, CH_SUM, v, &(ch_destination){.value = v}, &out), want);
        ch_value_unref(out);
        out = NULL;
        assert_int_equal(ch_strategy_broadcast_to(st, ch_value_at(v, 0),
                                                  &(ch_destination){.value = v}, &out),
                         want);
        ch_value_unref(out);
        out = NULL;
        ch_strategy_leave();
    }
    ch_value_unref(v);
    ch_function_unref(f);
    ch_strategy_unref(st);
    ch_strategy_unref(other);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reduce_to_puts_the_result_at_its_destination),
        cmocka_unit_test(batch_reduce_to_returns_results_in_order),
        cmocka_unit_test(batch_reduce_to_gives_all_results_or_none),
        cmocka_unit_test(destination_must_be_one_of_device_value_and_variable),
        cmocka_unit_test(reduce_to_returns_a_mirrored_value_as_its_mean),
        cmocka_unit_test(reduce_to_accepts_a_variable_as_destination),
        cmocka_unit_test(reduce_to_under_one_device_returns_its_argument),
        cmocka_unit_test(broadcast_to_copies_a_tensor_to_its_destination),
        cmocka_unit_test(reduce_to_and_broadcast_to_are_refused_in_replica_context),
    };

    return cmocka_run_group_tests(tests, t_four_gpus, NULL);
}
