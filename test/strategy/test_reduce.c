/* test/strategy/test_reduce.c -- ch_strategy_reduce.
 *
 * The tests reduce values of all kinds, with and without axes, under several strategies. The
 * numbers in comments are rows of doc/conformance.md.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "cohort/strategy_ops.h"
#include "values.h"

#define N(...) ((const double[]){__VA_ARGS__})

/* Returns the result of a reduction. Takes over the reference `v`. */
static ch_tensor *reduced(ch_strategy *st, ch_reduce_op op, ch_value *v, int axis)
{
    ch_tensor *t = NULL;

    t_ok(ch_strategy_reduce(st, op, v, axis, &t));
    ch_value_unref(v);
    return t;
}

static ch_value *zero_to_seven(ch_dtype t)
{
    return t_both(t_counting(t, ch_shape_of(4), 0), t_counting(t, ch_shape_of(4), 4));
}

static ch_value *zero_to_five(void)
{
    return t_both(t_counting(CH_I64, ch_shape_of(4), 0), t_counting(CH_I64, ch_shape_of(2), 4));
}

/* 4.1.1, B9 */
static void reduce_op_parse_accepts_sum_and_mean_in_any_case(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_reduce_op op = CH_MEAN;
    ch_value    *v = t_both(t_number(CH_I32, 0), t_number(CH_I32, 1));
    ch_tensor   *t = NULL;

    t_ok(ch_reduce_op_parse("SUM", &op));
    assert_int_equal(op, CH_SUM);
    t_ok(ch_reduce_op_parse("Mean", &op));
    assert_int_equal(op, CH_MEAN);
    t_ok(ch_reduce_op_parse("sum", &op));
    t_gave_number(reduced(st, op, ch_value_ref(v), CH_NO_AXIS), CH_I32, 1);
    t_refused(ch_reduce_op_parse("max", &op), CH_INVALID_ARGUMENT, "\"max\"", "\"sum\"");
    t_refused(ch_strategy_reduce(st, (ch_reduce_op)7, v, CH_NO_AXIS, &t), CH_INVALID_ARGUMENT,
              "7 is no ch_reduce_op", "CH_SUM");
    ch_value_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

/* 4.1.3, 4.1.4, 4.1.5, 4.1.11, 4.1.20, B11 */
static void reduce_combines_components_elementwise_or_along_an_axis(void **state)
{
    ch_strategy *st[] = {t_mirrored(2), t_central(2)};

    for (int i = 0; i < 4; i++) { /* inside and outside of the scope */
        ch_strategy *s = st[i / 2], *arg = i % 2 ? NULL : s;

        if (arg == NULL)
            t_ok(ch_strategy_enter(s));
        t_gave(reduced(arg, CH_SUM, zero_to_seven(CH_I64), CH_NO_AXIS), CH_I64, ch_shape_of(4),
               N(4, 6, 8, 10));
        t_gave(reduced(arg, CH_SUM, zero_to_seven(CH_F32), CH_NO_AXIS), CH_F32, ch_shape_of(4),
               N(4, 6, 8, 10));
        t_gave_number(reduced(arg, CH_SUM, zero_to_seven(CH_I64), 0), CH_I64, 28);
        t_gave_number(reduced(arg, CH_SUM, zero_to_seven(CH_F32), 0), CH_F32, 28);
        t_gave(reduced(arg, CH_MEAN, zero_to_seven(CH_I64), CH_NO_AXIS), CH_F64, ch_shape_of(4),
               N(2, 3, 4, 5));
        t_gave(reduced(arg, CH_MEAN, zero_to_seven(CH_F32), CH_NO_AXIS), CH_F32, ch_shape_of(4),
               N(2, 3, 4, 5));
        t_gave_number(reduced(arg, CH_MEAN, zero_to_seven(CH_I64), 0), CH_F64, 3.5);
        t_gave_number(reduced(arg, CH_MEAN, zero_to_seven(CH_F32), 0), CH_F32, 3.5);
        if (arg == NULL)
            ch_strategy_leave();
    }
    ch_strategy_unref(st[0]);
    ch_strategy_unref(st[1]);
    (void)state;
}

/* 4.1.6, 4.1.12, B12 */
static void reduce_mean_weighs_a_short_batch_by_its_rows(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_value    *v = zero_to_five(), *means;
    ch_tensor   *t = NULL;

    t_refused(ch_strategy_reduce(st, CH_SUM, v, CH_NO_AXIS, &t), CH_INVALID_ARGUMENT, "(4,)",
              "(2,)");
    assert_null(t);
    t_gave_number(reduced(st, CH_SUM, ch_value_ref(v), 0), CH_I64, 15);
    t_gave_number(reduced(st, CH_MEAN, v, 0), CH_F64, 2.5);
    means = t_both(t_number(CH_F32, 1.5), t_number(CH_F32, 4.5));
    t_gave_number(reduced(st, CH_MEAN, means, CH_NO_AXIS), CH_F32, 3);
    v = t_both(t_counting(CH_F32, ch_shape_of(2), 5), t_counting(CH_F32, ch_shape_of(1), 7));
    t_gave_number(reduced(st, CH_MEAN, v, 0), CH_F32, 6);
    v = t_both(t_of(CH_F32, ch_shape_of(2, 2), N(1, 1, 1, 1)),
               t_of(CH_F32, ch_shape_of(1, 2), N(1, 1)));
    t_gave(reduced(st, CH_MEAN, ch_value_ref(v), 0), CH_F32, ch_shape_of(2), N(1, 1));
    t_refused(ch_strategy_reduce(st, CH_MEAN, v, 1, &t), CH_INVALID_ARGUMENT, "(2, 2)",
              "(1, 2)"); /* the other sizes must agree */
    ch_value_unref(v);
    v = t_both(t_number(CH_F32, 1), t_counting(CH_F32, ch_shape_of(2), 0));
    t_refused(ch_strategy_reduce(st, CH_SUM, v, CH_NO_AXIS, &t), CH_INVALID_ARGUMENT, "()",
              "(2,)");
    ch_value_unref(v);
    v = t_both(t_number(CH_F32, 1), t_number(CH_I32, 1));
    t_refused(ch_strategy_reduce(st, CH_SUM, v, CH_NO_AXIS, &t), CH_INVALID_ARGUMENT, "f32",
              "i32");
    ch_value_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

/* 4.1.7: replica r has the value r in r + 1 rows */
static void reduce_along_an_axis_accepts_unequal_sizes(void **state)
{
    const ch_dtype type[] = {CH_F32, CH_I32};

    for (int n = 2; n <= 4; n += 2)
        for (int i = 0; i < 2; i++) {
            ch_strategy *st = t_mirrored(n);
            ch_tensor   *t[4];
            ch_value    *v;
            double       sum = 0, count = 0;

            for (int r = 0; r < n; r++) {
                t[r] = t_of(type[i], ch_shape_of(r + 1), N(r, r, r, r));
                sum += r * (r + 1);
                count += r + 1;
            }
            v = t_value(CH_PER_REPLICA, n, t);
            t_gave_number(reduced(st, CH_SUM, ch_value_ref(v), 0), type[i], sum);
            t_gave_number(reduced(st, CH_MEAN, v, 0), i == 0 ? CH_F32 : CH_F64,
                          i == 0 ? (float)sum / (float)count : sum / count);
            ch_strategy_unref(st);
        }
    (void)state;
}

/* 4.1.8, 4.1.9, 4.1.10 */
static void reduce_rejects_an_axis_out_of_range(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_value    *v = t_both(t_counting(CH_F32, ch_shape_of(2, 3), 0),
                            t_counting(CH_F32, ch_shape_of(2, 3), 0));
    ch_value    *scalar = t_both(t_number(CH_F32, 1), t_number(CH_F32, 2));
    ch_tensor   *t = NULL;

    t_gave(reduced(st, CH_SUM, ch_value_ref(v), -1), CH_F32, ch_shape_of(2), N(6, 24));
    t_gave(reduced(st, CH_MEAN, ch_value_ref(v), -2), CH_F32, ch_shape_of(3), N(1.5, 2.5, 3.5));
    for (int op = CH_SUM; op <= CH_MEAN; op++) {
        t_refused(ch_strategy_reduce(st, (ch_reduce_op)op, v, 2, &t), CH_INVALID_ARGUMENT,
                  "axis 2", "rank 2");
        t_refused(ch_strategy_reduce(st, (ch_reduce_op)op, v, -3, &t), CH_INVALID_ARGUMENT,
                  "axis -3", "rank 2");
        t_refused(ch_strategy_reduce(st, (ch_reduce_op)op, scalar, 0, &t), CH_INVALID_ARGUMENT,
                  "axis 0", "rank 0");
    }
    t_refused(ch_strategy_reduce_axes(st, CH_SUM, v, 2, (int[]){1, -1}, &t),
              CH_INVALID_ARGUMENT, "axis 1", "twice");
    t_refused(ch_strategy_reduce_axes(st, CH_SUM, v, -1, NULL, &t), CH_INVALID_ARGUMENT,
              "-1 axes", "");
    t_refused(ch_strategy_reduce_axes(st, CH_SUM, v, 1, NULL, &t), CH_INVALID_ARGUMENT,
              "1 axes", "NULL");
    t_ok(ch_strategy_reduce_axes(st, CH_SUM, v, 0, NULL, &t)); /* no axes: CH_NO_AXIS */
    t_gave(t, CH_F32, ch_shape_of(2, 3), N(0, 2, 4, 6, 8, 10));
    ch_value_unref(v);
    ch_value_unref(scalar);
    ch_strategy_unref(st);
    (void)state;
}

/* 4.1.4: with several axes, the elements of all of them are reduced */
static void reduce_axes_reduces_several_axes_together(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_value    *v = t_both(t_counting(CH_I32, ch_shape_of(2, 2, 3), 0),
                            t_counting(CH_I32, ch_shape_of(1, 2, 3), 12));
    ch_tensor   *t = NULL;

    t_ok(ch_strategy_reduce_axes(st, CH_MEAN, v, 2, (int[]){0, 2}, &t));
    t_gave(t, CH_F64, ch_shape_of(2),
           N((0 + 1 + 2 + 6 + 7 + 8 + 12 + 13 + 14) / 9.0,
             (3 + 4 + 5 + 9 + 10 + 11 + 15 + 16 + 17) / 9.0));
    t_ok(ch_strategy_reduce_axes(st, CH_MEAN, v, 3, (int[]){2, 0, 1}, &t));
    t_gave_number(t, CH_F64, 8.5);
    t_ok(ch_strategy_reduce_axes(st, CH_SUM, v, 3, (int[]){-1, -2, -3}, &t));
    t_gave_number(t, CH_I32, 153);
    ch_value_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

/* 4.1.11, 8.14 */
static void reduce_mean_of_integers_is_a_float(void **state)
{
    static const struct {
        ch_dtype from, to;
    } row[] = {{CH_I8, CH_F32},  {CH_U8, CH_F32},   {CH_I16, CH_F32}, {CH_U16, CH_F32},
               {CH_I32, CH_F64}, {CH_U32, CH_F64},  {CH_I64, CH_F64}, {CH_U64, CH_F64},
               {CH_F16, CH_F16}, {CH_BF16, CH_BF16}};
    ch_strategy *st = t_mirrored(2);
    ch_tensor   *t = NULL;
    ch_value    *v;

    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        t_gave(reduced(st, CH_MEAN,
                       t_both(t_of(row[i].from, ch_shape_of(2), N(100, 7)),
                              t_of(row[i].from, ch_shape_of(2), N(120, 8))),
                       CH_NO_AXIS),
               row[i].to, ch_shape_of(2), N(110, 7.5)); /* the sum 220 exceeds i8 */
        t_gave_number(reduced(st, CH_MEAN,
                              t_both(t_of(row[i].from, ch_shape_of(2), N(100, 120)),
                                     t_of(row[i].from, ch_shape_of(2), N(120, 100))),
                              0),
                      row[i].to, 110);
        t_gave_number(reduced(st, CH_SUM,
                              t_both(t_number(row[i].from, 40), t_number(row[i].from, 50)),
                              CH_NO_AXIS),
                      row[i].from, 90);
    }
    t_gave_number(reduced(NULL, CH_MEAN,
                          t_value(CH_PLAIN, 1, (ch_tensor *[]){t_number(CH_I32, 3)}),
                          CH_NO_AXIS),
                  CH_F64, 3); /* also for a single replica */
    t_gave_number(reduced(st, CH_MEAN,
                          t_both(t_number(CH_U64, 0x1p63), t_number(CH_U64, 0x1p63)),
                          CH_NO_AXIS),
                  CH_F64, 0x1p63); /* above the range of i64; the sum exceeds u64 */
    v = t_both(t_number(CH_BOOL, 1), t_number(CH_BOOL, 1));
    t_refused(ch_strategy_reduce(st, CH_SUM, v, CH_NO_AXIS, &t), CH_INVALID_ARGUMENT, "bool",
              "cast");
    ch_value_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

/* 16-bit sums along an axis are rounded once, and integers do not pass through floats. */
static void reduce_rounds_sums_once(void **state)
{
    ch_strategy *st = t_mirrored(2);
    int64_t      big = (1LL << 62) + 1;
    ch_tensor   *a = NULL, *b = NULL, *t;
    double       many[64];

    for (int i = 0; i < 64; i++)
        many[i] = 2000;
    t_gave_number(reduced(st, CH_MEAN,
                          t_both(t_of(CH_F16, ch_shape_of(64), many),
                                 t_of(CH_F16, ch_shape_of(64), many)),
                          0),
                  CH_F16, 2000); /* the sum exceeds f16 */
    t_ok(ch_tensor_copy_of(CH_U64, ch_shape_of(1), &big, &a));
    t_ok(ch_tensor_copy_of(CH_U64, ch_shape_of(1), &(int64_t){1}, &b));
    t = reduced(st, CH_SUM, t_both(a, b), 0);
    assert_true(*(const int64_t *)ch_tensor_data(t) == big + 1);
    ch_tensor_unref(t);
    ch_strategy_unref(st);
    (void)state;
}

/* 4.1.13 */
static void reduce_mean_gives_an_empty_replica_no_weight(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_value    *v =
        t_both(t_counting(CH_F32, ch_shape_of(3, 2), 0), t_f32(ch_shape_of(0, 2), NULL));
    const double nan2[] = {NAN, NAN};

    t_gave(reduced(st, CH_MEAN, ch_value_ref(v), 0), CH_F32, ch_shape_of(2), N(2, 3));
    t_gave(reduced(st, CH_SUM, v, 0), CH_F32, ch_shape_of(2), N(6, 9));
    v = t_both(t_f32(ch_shape_of(0, 2), NULL), t_f32(ch_shape_of(0, 2), NULL));
    t_gave(reduced(st, CH_MEAN, ch_value_ref(v), 0), CH_F32, ch_shape_of(2), nan2);
    t_gave(reduced(st, CH_SUM, ch_value_ref(v), 0), CH_F32, ch_shape_of(2), N(0, 0));
    t_gave(reduced(st, CH_SUM, v, CH_NO_AXIS), CH_F32, ch_shape_of(0, 2), N(0));
    v = t_both(t_of(CH_I64, ch_shape_of(0), N(0)), t_of(CH_I64, ch_shape_of(0), N(0)));
    t_gave_number(reduced(st, CH_MEAN, v, 0), CH_F64, NAN);
    ch_strategy_unref(st);
    (void)state;
}

/* 4.1.14, 8.8, 3.3.12: any value, any op, zero too */
static void reduce_rejects_plain_values_and_sums_of_mirrored_values(void **state)
{
    ch_strategy *st[] = {t_mirrored(2), t_central(2)};
    ch_value    *plain = t_value(CH_PLAIN, 1, (ch_tensor *[]){t_number(CH_F32, 0)});
    ch_value    *three =
        t_value(CH_PER_REPLICA, 3,
                (ch_tensor *[]){t_number(CH_F32, 0), t_number(CH_F32, 0), t_number(CH_F32, 0)});
    ch_tensor *t = NULL;

    for (int i = 0; i < 2; i++) {
        for (int op = CH_SUM; op <= CH_MEAN; op++)
            t_refused(ch_strategy_reduce(st[i], (ch_reduce_op)op, plain, CH_NO_AXIS, &t),
                      CH_INVALID_ARGUMENT, "plain value", "2 replicas");
        t_refused(ch_strategy_reduce(st[i], CH_SUM, three, CH_NO_AXIS, &t), CH_INVALID_ARGUMENT,
                  "3 components", "2 replicas");
    }
    for (int i = 0; i < 2; i++) {
        ch_value *v = t_value(CH_MIRRORED, 2,
                              (ch_tensor *[]){t_counting(CH_F32, ch_shape_of(2), 1),
                                              t_counting(CH_F32, ch_shape_of(2), 1)});

        t_refused(ch_strategy_reduce(st[i], CH_SUM, v, CH_NO_AXIS, &t), CH_INVALID_ARGUMENT,
                  "mirrored", "CH_MEAN");
        t_refused(ch_strategy_reduce(st[i], CH_SUM, v, 0, &t), CH_INVALID_ARGUMENT, "mirrored",
                  "CH_MEAN");
        t_gave(reduced(st[i], CH_MEAN, ch_value_ref(v), CH_NO_AXIS), CH_F32, ch_shape_of(2),
               N(1, 2));
        t_gave_number(reduced(st[i], CH_MEAN, v, 0), CH_F32, 1.5);
    }
    ch_value_unref(plain);
    ch_value_unref(three);
    ch_strategy_unref(st[0]);
    ch_strategy_unref(st[1]);
    (void)state;
}

/* 4.1.14, 4.1.18, 1.5.2, 6.3.7: a single replica */
static void reduce_with_one_replica_accepts_a_plain_value(void **state)
{
    ch_strategy *st[] = {NULL, t_one_device(), t_mirrored(1), t_central(1)};

    for (int i = 0; i < 4; i++) {
        ch_value *v =
            t_value(CH_PLAIN, 1, (ch_tensor *[]){t_counting(CH_F32, ch_shape_of(2, 2), 1)});
        ch_tensor *t = NULL;

        for (int op = CH_SUM; op <= CH_MEAN; op++)
            t_gave(reduced(st[i], (ch_reduce_op)op, ch_value_ref(v), CH_NO_AXIS), CH_F32,
                   ch_shape_of(2, 2), N(1, 2, 3, 4));
        t_gave(reduced(st[i], CH_MEAN, ch_value_ref(v), 0), CH_F32, ch_shape_of(2), N(2, 3));
        t_gave(reduced(st[i], CH_SUM, ch_value_ref(v), 0), CH_F32, ch_shape_of(2), N(4, 6));
        t_ok(ch_strategy_reduce_axes(st[i], CH_MEAN, v, 2, (int[]){0, 1}, &t));
        t_gave_number(t, CH_F32, 2.5);
        t_ok(ch_strategy_reduce_axes(st[i], CH_SUM, v, 2, (int[]){0, 1}, &t));
        t_gave_number(t, CH_F32, 10);
        ch_value_unref(v);
        ch_strategy_unref(st[i]);
    }
    (void)state;
}

static void one_two(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "x", ch_range(s, CH_F32, 1, 3, 1));
}

/* 4.1.19 */
static void reduce_accepts_results_of_a_step(void **state)
{
    ch_strategy *st[] = {NULL, t_one_device(), t_mirrored(1), t_mirrored(3), t_central(2)};

    for (int i = 0; i < 5; i++) {
        ch_function *f = t_function(one_two, NULL);
        ch_tuple    *out = NULL;
        ch_value    *v;

        t_ok(ch_strategy_run(st[i], f, NULL, &out));
        v = ch_tuple_get(out, "x");
        t_gave_number(reduced(st[i], CH_MEAN, ch_value_ref(v), 0), CH_F32, 1.5);
        t_gave_number(reduced(st[i], CH_SUM, ch_value_ref(v), 0), CH_F32,
                      3 * ch_strategy_replicas(st[i]));
        ch_tuple_unref(out);
        ch_function_unref(f);
        ch_strategy_unref(st[i]);
    }
    (void)state;
}

static void own_id(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "id", ch_step_replica_id(s));
}

/* 4.1.17, B10 */
static void reduce_puts_its_result_on_the_current_device(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_function *f = t_function(own_id, NULL);
    ch_tuple    *out = NULL, *each[2];
    ch_tensor   *total = NULL;
    ch_device   *gpu = NULL;

    t_ok(ch_strategy_run(st, f, NULL, &out));
    t_ok(ch_strategy_local_results(st, out, 2, each));
    for (int r = 0; r < 2; r++) {
        ch_tensor *id = ch_value_at(ch_tuple_at(each[r], 0), 0);

        t_is(id, CH_I32, ch_shape_scalar(), N(r));
        t_on(id, r == 0 ? "GPU:0" : "GPU:1");
        ch_tuple_unref(each[r]);
    }
    t_ok(ch_strategy_reduce(st, CH_SUM, ch_tuple_at(out, 0), CH_NO_AXIS, &total));
    t_on(total, "CPU:0");
    t_gave_number(total, CH_I32, 1);
    t_ok(ch_device_find("/gpu:1", &gpu));
    t_ok(ch_device_enter(gpu));
    t_ok(ch_strategy_reduce(st, CH_MEAN, ch_tuple_at(out, 0), CH_NO_AXIS, &total));
    ch_device_leave();
    t_on(total, "GPU:1");
    t_gave_number(total, CH_F64, 0.5);
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

/* 4.1.16 */
static void a_tuple_is_reduced_leaf_by_leaf(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_value    *v[] = {t_both(t_number(CH_F32, 4), t_number(CH_F32, 4)),
                        t_both(t_number(CH_F32, 2), t_number(CH_F32, 2))};
    ch_tuple    *t = NULL, *sum = NULL;

    t_ok(ch_tuple_new(2, v, (const char *[]){"a", "b/c"}, &t));
    t_ok(ch_strategy_reduce_tuple(st, CH_SUM, t, CH_NO_AXIS, &sum));
    assert_int_equal(ch_tuple_count(sum), 2);
    assert_int_equal(ch_value_kind_of(ch_tuple_get(sum, "a")), CH_PLAIN);
    t_is(ch_value_at(ch_tuple_get(sum, "a"), 0), CH_F32, ch_shape_scalar(), N(8));
    t_is(ch_value_at(ch_tuple_get(sum, "b/c"), 0), CH_F32, ch_shape_scalar(), N(4));
    ch_tuple_unref(sum);
    t_refused(ch_strategy_reduce_tuple(st, CH_SUM, t, 0, &sum), CH_INVALID_ARGUMENT, "\"a\"",
              "axis 0");
    ch_tuple_unref(t);
    ch_value_unref(v[0]);
    ch_value_unref(v[1]);
    ch_strategy_unref(st);
    (void)state;
}

/* The calls that a step makes while it is recorded. */
typedef struct attempt {
    ch_strategy *st;
    ch_value    *v;
} attempt;

static void reduce_inside(ch_step *s, void *arg)
{
    const attempt *a = arg;
    ch_tensor     *t = NULL;

    t_refused(ch_strategy_reduce(a->st, CH_SUM, a->v, CH_NO_AXIS, &t), CH_FAILED_PRECONDITION,
              "outside steps", "ch_all_reduce");
    t_refused(ch_strategy_reduce_tuple(a->st, CH_SUM, NULL, CH_NO_AXIS, NULL),
              CH_FAILED_PRECONDITION, "outside steps", "ch_all_reduce");
    ch_step_out(s, "x", ch_number(s, 1));
}

/* 1.3.3 */
static void reduce_is_refused_in_steps_and_in_scopes_of_other_strategies(void **state)
{
    attempt      a = {t_mirrored(2), zero_to_seven(CH_F32)};
    ch_strategy *other = t_mirrored(2);
    ch_function *f = t_function(reduce_inside, &a);
    ch_tensor   *t = NULL;

    t_ok(ch_strategy_run(a.st, f, NULL, NULL));
    t_ok(ch_strategy_enter(other));
    t_refused(ch_strategy_reduce(a.st, CH_SUM, a.v, CH_NO_AXIS, &t), CH_FAILED_PRECONDITION,
              "reduce", "mixing different strategies");
    ch_strategy_leave();
    ch_function_unref(f);
    ch_value_unref(a.v);
    ch_strategy_unref(a.st);
    ch_strategy_unref(other);
    (void)state;
}

/* Programs reduce a loss after every step, so the call must allocate only the result. */
static void reduce_of_scalars_allocates_only_the_result(void **state)
{
    ch_strategy *st = t_mirrored(4);
    ch_value    *v = t_value(CH_PER_REPLICA, 4,
                             (ch_tensor *[]){t_number(CH_F32, 1), t_number(CH_F32, 2),
                                             t_number(CH_F32, 3), t_number(CH_F32, 4)});
    ch_tensor   *t = NULL;
    int64_t      before, one;

    before = ch__mem_allocs();
    t_ok(ch_tensor_new(CH_F32, ch_shape_scalar(), &t));
    one = ch__mem_allocs() - before;
    ch_tensor_unref(t);
    before = ch__mem_allocs();
    t_ok(ch_strategy_reduce(st, CH_MEAN, v, CH_NO_AXIS, &t));
    assert_int_equal(ch__mem_allocs() - before, one);
    t_gave_number(t, CH_F32, 2.5);
    ch_value_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

static ch_value *many(int n)
{
    ch_tensor *t[17];

    for (int i = 0; i < n; i++)
        t[i] = t_counting(CH_I16, ch_shape_of(2, 2), i);
    return t_value(CH_PER_REPLICA, n, t);
}

static ch_device *const *seventeen_devices(void *self)
{
    static ch_device *d[17];

    (void)self;
    for (int i = 0; i < 17; i++)
        d[i] = ch_device_at(i);
    return d;
}

static ch_status place_nowhere(void *self, const ch_var_spec *spec, ch_layout *out)
{
    (void)self;
    (void)spec;
    (void)out;
    return CH_OK;
}

static void close_nothing(void *self)
{
    (void)self;
}

static void reduce_sums_seventeen_replicas(void **state)
{
    static const ch_strategy_ops ops = {"Many", seventeen_devices, place_nowhere,
                                        close_nothing};
    ch_strategy                 *st = NULL;

    t_ok(ch_strategy_new(&ops, NULL, &(ch_strategy_parts){.n_replicas = 17}, &st));
    t_gave(reduced(st, CH_SUM, many(17), CH_NO_AXIS), CH_I16, ch_shape_of(2, 2),
           N(136, 153, 170, 187));
    ch_strategy_unref(st);
    (void)state;
}

/* If any allocation fails, nothing leaks. */
static void reduce_leaks_nothing_when_memory_is_short(void **state)
{
    ch_strategy *st = t_mirrored(2);
    ch_value    *v = many(2);
    ch_tuple    *t = t_one(ch_value_ref(v), "x"), *out = NULL;
    ch_status    rc = CH_RESOURCE_EXHAUSTED;
    int64_t      live = ch__mem_live();

    for (int n = 1; rc != CH_OK; n++) {
        ch__mem_fail_at(n);
        rc = ch_strategy_reduce_tuple(st, CH_MEAN, t, 1, &out);
        ch__mem_fail_at(0);
        if (rc != CH_OK) {
            t_refused(rc, CH_RESOURCE_EXHAUSTED, "out of memory", "");
            assert_int_equal(ch__mem_live(), live);
        }
    }
    t_is(ch_value_at(ch_tuple_at(out, 0), 0), CH_F32, ch_shape_of(2), N(1, 3));
    ch_tuple_unref(out);
    ch_tuple_unref(t);
    ch_value_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

static int seventeen_places(void **state)
{
    (void)state;
    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "GPU=16", .threads = 1}));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reduce_op_parse_accepts_sum_and_mean_in_any_case),
        cmocka_unit_test(reduce_combines_components_elementwise_or_along_an_axis),
        cmocka_unit_test(reduce_mean_weighs_a_short_batch_by_its_rows),
        cmocka_unit_test(reduce_along_an_axis_accepts_unequal_sizes),
        cmocka_unit_test(reduce_rejects_an_axis_out_of_range),
        cmocka_unit_test(reduce_axes_reduces_several_axes_together),
        cmocka_unit_test(reduce_mean_of_integers_is_a_float),
        cmocka_unit_test(reduce_rounds_sums_once),
        cmocka_unit_test(reduce_mean_gives_an_empty_replica_no_weight),
        cmocka_unit_test(reduce_rejects_plain_values_and_sums_of_mirrored_values),
        cmocka_unit_test(reduce_with_one_replica_accepts_a_plain_value),
        cmocka_unit_test(reduce_accepts_results_of_a_step),
        cmocka_unit_test(reduce_puts_its_result_on_the_current_device),
        cmocka_unit_test(a_tuple_is_reduced_leaf_by_leaf),
        cmocka_unit_test(reduce_is_refused_in_steps_and_in_scopes_of_other_strategies),
        cmocka_unit_test(reduce_of_scalars_allocates_only_the_result),
        cmocka_unit_test(reduce_sums_seventeen_replicas),
        cmocka_unit_test(reduce_leaks_nothing_when_memory_is_short),
    };

    return cmocka_run_group_tests(tests, seventeen_places, NULL);
}
