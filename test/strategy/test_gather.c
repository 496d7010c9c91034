/* test/strategy/test_gather.c -- ch_strategy_gather.
 *
 * The tests gather values of up to four replicas along every axis. The numbers in comments are
 * rows of doc/conformance.md.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "values.h"

#define N(...) ((const double[]){__VA_ARGS__})

/* Returns the gathered value. Takes over the reference `v`. */
static ch_tensor *gathered(ch_strategy *st, ch_value *v, int axis)
{
    ch_tensor *t = NULL;

    t_ok(ch_strategy_gather(st, v, axis, &t));
    ch_value_unref(v);
    return t;
}

/* Returns a value with the same component for each of n replicas. */
static ch_value *all_have(int n, ch_shape shape, double first)
{
    ch_tensor *t[4];

    for (int r = 0; r < n; r++)
        t[r] = t_counting(CH_I32, shape, first);
    return t_value(CH_PER_REPLICA, n, t);
}

/* 4.3.1, 4.3.8, B6 */
static void gather_concatenates_components(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_device   *gpu = NULL;
    ch_tensor   *t = gathered(st, all_have(2, ch_shape_of(2, 1), 1), 0);

    t_on(t, "CPU:0");
    t_gave(t, CH_I32, ch_shape_of(4, 1), N(1, 2, 1, 2));
    t_ok(ch_device_find("/gpu:1", &gpu));
    t_ok(ch_device_enter(gpu));
    t = gathered(st, all_have(2, ch_shape_of(2, 1), 1), 1);
    ch_device_leave();
    t_on(t, "GPU:1");
    t_gave(t, CH_I32, ch_shape_of(2, 2), N(1, 1, 2, 2));
    ch_strategy_unref(st);
    (void)state;
}

/* 4.3.2, 4.3.3, B7 */
static void gather_concatenates_along_any_axis(void **state)
{
    ch_strategy *st = t_mirrored(4);
    ch_shape     shape = ch_shape_of(1, 2, 3);

    t_gave(gathered(st, all_have(4, shape, 0), 0), CH_I32, ch_shape_of(4, 2, 3),
           N(0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5));
    t_gave(gathered(st, all_have(4, shape, 0), 1), CH_I32, ch_shape_of(1, 8, 3),
           N(0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5));
    t_gave(gathered(st, all_have(4, shape, 0), 2), CH_I32, ch_shape_of(1, 2, 12),
           N(0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5, 3, 4, 5, 3, 4, 5));
    t_gave(gathered(st, all_have(4, ch_shape_of(3), 1), 0), CH_I32, ch_shape_of(12),
           N(1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3));
    t_gave(gathered(st, all_have(4, ch_shape_of(1, 3), 1), 1), CH_I32, ch_shape_of(1, 12),
           N(1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3));
    t_gave(gathered(st, all_have(4, ch_shape_of(1, 2, 2), 1), 2), CH_I32, ch_shape_of(1, 2, 8),
           N(1, 2, 1, 2, 1, 2, 1, 2, 3, 4, 3, 4, 3, 4, 3, 4));
    ch_strategy_unref(st);
    (void)state;
}

/* 4.3.4 */
static void gather_accepts_unequal_sizes_along_its_axis(void **state)
{
    ch_strategy *st = t_mirrored(4);
    ch_tensor   *down[4], *across[4];

    for (int r = 0; r < 4; r++) {
        down[r] = t_of(CH_I32, ch_shape_of(r + 1, 1), N(r, r, r, r));
        across[r] = t_of(CH_I32, ch_shape_of(1, r + 1), N(r, r, r, r));
    }
    t_gave(gathered(st, t_value(CH_PER_REPLICA, 4, down), 0), CH_I32, ch_shape_of(10, 1),
           N(0, 1, 1, 2, 2, 2, 3, 3, 3, 3));
    t_gave(gathered(st, t_value(CH_PER_REPLICA, 4, across), 1), CH_I32, ch_shape_of(1, 10),
           N(0, 1, 1, 2, 2, 2, 3, 3, 3, 3));
    ch_strategy_unref(st);
    st = t_mirrored(2);
    t_gave(gathered(
               st,
               t_both(t_counting(CH_F32, ch_shape_of(2, 2), 0), t_f32(ch_shape_of(0, 2), NULL)),
               0),
           CH_F32, ch_shape_of(2, 2), N(0, 1, 2, 3)); /* a component without rows */
    ch_strategy_unref(st);
    (void)state;
}

/* 4.3.5, 4.3.7, B8: sparse values exist in steps only */
static void gather_rejects_scalars_and_unequal_shapes(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_value    *v = t_both(t_counting(CH_I32, ch_shape_of(1, 2, 3), 0),
                            t_counting(CH_I32, ch_shape_of(1, 3, 3), 0));
    ch_value    *scalar = t_both(t_number(CH_I32, 0), t_number(CH_I32, 1));
    ch_value    *ranks =
        t_both(t_counting(CH_I32, ch_shape_of(2), 0), t_counting(CH_I32, ch_shape_of(2, 1), 0));
    ch_tensor *t = NULL;

    t_gave(gathered(st, ch_value_ref(v), 1), CH_I32, ch_shape_of(1, 5, 3),
           N(0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 6, 7, 8));
    t_refused(ch_strategy_gather(st, v, 0, &t), CH_INVALID_ARGUMENT, "dimension 1",
              "sizes 2 and 3");
    t_refused(ch_strategy_gather(st, v, 2, &t), CH_INVALID_ARGUMENT, "dimension 1",
              "sizes 2 and 3");
    t_refused(ch_strategy_gather(st, v, 3, &t), CH_INVALID_ARGUMENT, "axis 3", "rank 3");
    t_refused(ch_strategy_gather(st, v, -1, &t), CH_INVALID_ARGUMENT, "axis -1", "rank 3");
    t_refused(ch_strategy_gather(st, scalar, 0, &t), CH_INVALID_ARGUMENT, "scalar",
              "expand_dims");
    t_refused(ch_strategy_gather(st, ranks, 0, &t), CH_INVALID_ARGUMENT, "ranks 1 and 2",
              "equal");
    ch_value_unref(ranks);
    ranks =
        t_both(t_counting(CH_I32, ch_shape_of(2), 0), t_counting(CH_F32, ch_shape_of(2), 0));
    t_refused(ch_strategy_gather(st, ranks, 0, &t), CH_INVALID_ARGUMENT, "i32", "f32");
    t_refused(ch_strategy_gather(st, NULL, 0, &t), CH_INVALID_ARGUMENT, "the value", "NULL");
    t_refused(ch_strategy_gather(st, v, 1, NULL), CH_INVALID_ARGUMENT, "out", "NULL");
    assert_null(t);
    ch_value_unref(ranks);
    ch_value_unref(scalar);
    ch_value_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

/* 4.3.8, 8.8, 1.5.2, 6.3.7 */
static void gather_rejects_a_plain_value_with_several_replicas(void **state)
{
    ch_strategy *one[] = {NULL, t_one_device(), t_mirrored(1), t_central(1)};
    ch_strategy *two[] = {t_mirrored(2), t_central(2)};
    ch_value  *v = t_value(CH_PLAIN, 1, (ch_tensor *[]){t_counting(CH_I32, ch_shape_of(2), 0)});
    ch_tensor *t = NULL;

    for (int i = 0; i < 4; i++) {
        t_gave(gathered(one[i], ch_value_ref(v), 0), CH_I32, ch_shape_of(2), N(0, 1));
        ch_strategy_unref(one[i]);
    }
    for (int i = 0; i < 2; i++) {
        t_refused(ch_strategy_gather(two[i], v, 0, &t), CH_INVALID_ARGUMENT, "plain value",
                  "2 replicas");
        ch_strategy_unref(two[i]);
    }
    ch_value_unref(v);
    (void)state;
}

static void gather_accepts_strings_and_strided_tensors(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_tensor   *a = NULL, *b = NULL, *all;
    ch_str       s = {0};

    t_ok(ch_tensor_new(CH_STR, ch_shape_of(1), &a));
    t_ok(ch_tensor_set_str(a, (int64_t[]){0}, (ch_str){"left", 4}));
    t_ok(ch_tensor_new(CH_STR, ch_shape_of(1), &b));
    t_ok(ch_tensor_set_str(b, (int64_t[]){0}, (ch_str){"right", 5}));
    all = gathered(st, t_both(a, b), 0);
    t_ok(ch_tensor_str(all, (int64_t[]){1}, &s));
    assert_int_equal(s.size, 5);
    assert_memory_equal(s.data, "right", 5);
    ch_tensor_unref(all);
    all = t_counting(CH_I32, ch_shape_of(2, 2), 0);
    t_ok(ch_tensor_transpose(all, (int[]){1, 0}, &a));
    t_gave(gathered(st, t_both(a, all), 1), CH_I32, ch_shape_of(2, 4),
           N(0, 2, 0, 1, 1, 3, 2, 3));
    ch_strategy_unref(st);
    (void)state;
}

/* 4.3.9: outside a step */
static void a_tuple_is_gathered_leaf_by_leaf(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_value    *v[] = {
           t_both(t_counting(CH_I32, ch_shape_of(1), 0), t_counting(CH_I32, ch_shape_of(1), 1)),
           t_both(t_counting(CH_I32, ch_shape_of(1, 2), 0),
                  t_counting(CH_I32, ch_shape_of(2, 2), 2))};
    ch_tuple *t = NULL, *all = NULL;
    ch_status rc = CH_RESOURCE_EXHAUSTED;
    int64_t   live;

    t_ok(ch_tuple_new(2, v, (const char *[]){"a", NULL}, &t));
    live = ch__mem_live();
    for (int n = 1; rc != CH_OK; n++) { /* if any allocation fails, nothing leaks */
        ch__mem_fail_at(n);
        rc = ch_strategy_gather_tuple(st, t, 0, &all);
        ch__mem_fail_at(0);
        if (rc != CH_OK) {
            t_refused(rc, CH_RESOURCE_EXHAUSTED, "out of memory", "");
            assert_int_equal(ch__mem_live(), live);
        }
    }
    t_is(ch_value_at(ch_tuple_get(all, "a"), 0), CH_I32, ch_shape_of(2), N(0, 1));
    t_is(ch_value_at(ch_tuple_at(all, 1), 0), CH_I32, ch_shape_of(3, 2), N(0, 1, 2, 3, 4, 5));
    assert_null(ch_tuple_name(all, 1));
    ch_tuple_unref(all);
    t_refused(ch_strategy_gather_tuple(st, t, 1, &all), CH_INVALID_ARGUMENT, "\"a\"", "axis 1");
    ch_tuple_unref(t);
    ch_value_unref(v[0]);
    ch_value_unref(v[1]);
    ch_strategy_unref(st);
    (void)state;
}

static void gather_inside(ch_step *s, void *arg)
{
    ch_tensor *t = NULL;

    t_refused(ch_strategy_gather(arg, NULL, 0, &t), CH_FAILED_PRECONDITION, "gather",
              "ch_all_gather");
    t_refused(ch_strategy_gather_tuple(arg, NULL, 0, NULL), CH_FAILED_PRECONDITION, "gather",
              "ch_all_gather");
    ch_step_out(s, "x", ch_number(s, 1));
}

/* 1.3.4, B8 */
static void gather_is_refused_in_steps_and_in_scopes_of_other_strategies(void **state)
{
    ch_strategy *st = t_mirrored(2), *other = t_central(2);
    ch_function *f = t_function(gather_inside, st);
    ch_value    *v = all_have(2, ch_shape_of(2), 0);
    ch_tensor   *t = NULL;

    t_ok(ch_strategy_run(st, f, NULL, NULL));
    t_ok(ch_strategy_enter(other));
    t_refused(ch_strategy_gather(st, v, 0, &t), CH_FAILED_PRECONDITION, "gather",
              "mixing different strategies");
    ch_strategy_leave();
    t_ok(ch_strategy_enter(st));
    t_gave(gathered(NULL, v, 0), CH_I32, ch_shape_of(4), N(0, 1, 0, 1));
    ch_strategy_leave();
    ch_function_unref(f);
    ch_strategy_unref(st);
    ch_strategy_unref(other);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gather_concatenates_components),
        cmocka_unit_test(gather_concatenates_along_any_axis),
        cmocka_unit_test(gather_accepts_unequal_sizes_along_its_axis),
        cmocka_unit_test(gather_rejects_scalars_and_unequal_shapes),
        cmocka_unit_test(gather_rejects_a_plain_value_with_several_replicas),
        cmocka_unit_test(gather_accepts_strings_and_strided_tensors),
        cmocka_unit_test(a_tuple_is_gathered_leaf_by_leaf),
        cmocka_unit_test(gather_is_refused_in_steps_and_in_scopes_of_other_strategies),
    };

    return cmocka_run_group_tests(tests, t_four_gpus, NULL);
}
