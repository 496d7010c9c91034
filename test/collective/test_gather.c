/* test/collective/test_gather.c -- all_gather and broadcast in a step, and their gradients.
 *
 * The tests gather along every axis, with equal and different sizes on the replicas, and
 * differentiate twice.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

static void gather(ch_step *s, void *arg)
{
    ch_step_out(s, NULL, ch_all_gather(ch_step_in(s, 0), *(int *)arg));
}

/* Gathers from n replicas, each with the same array of this shape that counts from 0: along the
 * axis the array occurs n times. */
static void check_same_shape(int n, ch_dtype dtype, ch_shape shape, int axis)
{
    ch_strategy *st = t_replicas(n);
    ch_tensor   *t[MOST];
    ch_shape     whole = shape;
    int64_t      run = 1, at = 0;
    double       want[512];
    ch_value    *v;
    ch_tuple    *out;

    for (int r = 0; r < n; r++)
        t[r] = t_count(dtype, shape, 100 * r);
    v = t_each(n, t);
    whole.dim[axis] *= n;
    for (int k = axis; k < shape.rank; k++)
        run *= shape.dim[k];
    for (int64_t o = 0; run > 0 && o < ch_shape_count(shape) / run; o++)
        for (int r = 0; r < n; r++)
            for (int64_t i = 0; i < run; i++)
                want[at++] = 100 * r + (double)(o * run + i);
    out = t_run(st, gather, &axis, t_values(1, &v));
    t_all_have(out, 0, whole, want);
    ch_tuple_unref(out);
    ch_strategy_unref(st);
}

/* 4.3.1, 4.3.2 */
static void all_gather_joins_equal_shapes_in_replica_order_along_any_axis(void **state)
{
    const ch_dtype dtype[] = {CH_F32, CH_F64, CH_I32, CH_I64};

    for (int n = 1; n <= 4; n++)
        for (int d = 0; d < 4; d++) {
            check_same_shape(n, dtype[d], ch_shape_of(3), 0);
            check_same_shape(n, dtype[d], ch_shape_of(1, 3), 0);
            check_same_shape(n, dtype[d], ch_shape_of(1, 3), 1);
            for (int axis = 0; axis < 3; axis++)
                check_same_shape(n, dtype[d], ch_shape_of(1, 2, 2), axis);
        }
    check_same_shape(3, CH_F32, ch_shape_of(2, 3, 4), 1);
    check_same_shape(3, CH_F32, ch_shape_of(0, 3), 0);
    (void)state;
}

/* 4.3.3 */
static void all_gather_joins_four_replicas_along_the_last_axis(void **state)
{
    ch_strategy *st = t_replicas(4);
    ch_tensor   *x = t_count(CH_F32, ch_shape_of(1, 2, 3), 0);
    ch_tuple    *out;
    double       want[24];
    int          axis = 2;

    for (int i = 0; i < 24; i++)
        want[i] = i % 3 + (i < 12 ? 0 : 3);
    out = t_run(st, gather, &axis, t_tuple(1, &x));
    t_all_have(out, 0, ch_shape_of(1, 2, 12), want);
    ch_tuple_unref(out);
    ch_strategy_unref(st);
    (void)state;
}

/* Gathers a transposed input. */
static void gather_columns(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_all_gather(ch_transpose(ch_step_in(s, 0), 2, (int[]){1, 0}), 1));
}

/* 4.3.4: (r + 1, 1) along axis 0, and as (1, r + 1) along axis 1; then with replicas that have
 * no rows. */
static void all_gather_accepts_different_sizes_along_its_axis(void **state)
{
    ch_strategy *st = t_replicas(4);
    int          axis = 0;

    for (int way = 0; way < 4; way++) {
        ch_tensor *t[4];
        double     want[16];
        int        at = 0;
        ch_value  *v;
        ch_tuple  *out;

        for (int r = 0; r < 4; r++) {
            int rows = way < 2 ? r + 1 : r % 2 == 0 ? 0 : r;

            t[r] = t_count(CH_F32, ch_shape_of(rows, 1), 10 * r);
            for (int i = 0; i < rows; i++)
                want[at++] = 10 * r + i;
        }
        v = t_each(4, t);
        out = t_run(st, way % 2 == 0 ? gather : gather_columns, &axis, t_values(1, &v));
        t_all_have(out, 0, way % 2 == 0 ? ch_shape_of(at, 1) : ch_shape_of(1, at), want);
        ch_tuple_unref(out);
    }
    ch_strategy_unref(st);
    (void)state;
}

/* Returns element (o, i, k) of replica r, whose shape is (2, 3, 4) except for r + 1 along
 * `axis`. */
static double element(int r, int64_t o, int64_t i, int64_t k)
{
    return 1000 * r + 100 * (double)o + 10 * (double)i + (double)k;
}

static ch_tensor *of_replica(int r, int axis, int64_t size)
{
    ch_shape   shape = ch_shape_of(2, 3, 4);
    ch_tensor *t = NULL;
    float     *x;

    shape.dim[axis] = size;
    t_ok(ch_tensor_new(CH_F32, shape, &t));
    x = ch_tensor_data_mut(t);
    for (int64_t o = 0; o < shape.dim[0]; o++)
        for (int64_t i = 0; i < shape.dim[1]; i++)
            for (int64_t k = 0; k < shape.dim[2]; k++)
                *x++ = (float)element(r, o, i, k);
    return t;
}

/* 4.3.1, 4.3.4: inputs of the step whose sizes differ along any axis, along none, and along
 * that axis by other sizes. */
static void all_gather_joins_step_inputs_along_the_axis_in_which_they_differ(void **state)
{
    ch_strategy *st = t_replicas(3);

    for (int axis = 0; axis < 3; axis++) {
        ch_function *f = t_function(gather, &axis);

        for (int times = 0; times < 3; times++) {
            ch_tensor *t[3];
            ch_shape   whole = ch_shape_of(2, 3, 4);
            int64_t    at[3] = {0}, from[4] = {0}, n = 0;
            double     want[512];
            ch_tuple  *in, *out = NULL;
            ch_value  *v;

            for (int r = 0; r < 3; r++) {
                int64_t size = times == 1 ? 2 : times == 0 ? r + 1 : 2 * r;

                t[r] = of_replica(r, axis, size);
                from[r + 1] = from[r] + size;
            }
            whole.dim[axis] = from[3];
            for (int64_t c = 0; c < ch_shape_count(whole); c++) {
                int r = 0;

                at[2] = c % whole.dim[2];
                at[1] = c / whole.dim[2] % whole.dim[1];
                at[0] = c / whole.dim[2] / whole.dim[1];
                while (at[axis] >= from[r + 1])
                    r++;
                at[axis] -= from[r];
                want[n++] = element(r, at[0], at[1], at[2]);
            }
            v = t_each(3, t);
            in = t_values(1, &v);
            t_ok(ch_strategy_run(st, f, in, &out));
            t_all_have(out, 0, whole, want);
            ch_tuple_unref(in);
            ch_tuple_unref(out);
        }
        ch_function_unref(f);
    }
    ch_strategy_unref(st);
    (void)state;
}

/* The derivative of sum(gathered * (replica + 1)) is the sum of all replicas' numbers, in the
 * shape of the input. */
static void gather_inputs_back(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0);
    ch_node *c = ch_add(ch_cast(ch_step_replica_id(s), CH_F32), ch_number(s, 1));

    ch_step_out(s, NULL, ch_gradient(ch_sum_all(ch_mul(ch_all_gather(x, *(int *)arg), c)), x));
}

static void all_gather_of_inputs_that_differ_in_axis_1_has_a_gradient(void **state)
{
    ch_strategy *st = t_replicas(3);
    int          axis = 1;
    ch_tensor   *t[3];
    ch_value    *v;
    ch_tuple    *out;

    for (int r = 0; r < 3; r++)
        t[r] = of_replica(r, axis, r + 1);
    v = t_each(3, t);
    out = t_run(st, gather_inputs_back, &axis, t_values(1, &v));
    for (int r = 0; r < 3; r++) {
        const ch_tensor *d = ch_value_at(ch_tuple_at(out, 0), r);

        assert_true(ch_shape_equal(ch_tensor_shape(d), ch_shape_of(2, r + 1, 4)));
        for (int64_t i = 0; i < ch_tensor_count(d); i++)
            assert_true(t_number(out, 0, r, i) == 6);
    }
    ch_tuple_unref(out);
    ch_strategy_unref(st);
    (void)state;
}

/* 4.3.5 */
static void all_gather_rejects_different_sizes_of_other_axes(void **state)
{
    ch_strategy *st = t_replicas(2);
    ch_tensor   *t[2] = {t_count(CH_F32, ch_shape_of(1, 2), 0),
                         t_count(CH_F32, ch_shape_of(3, 2), 0)};
    ch_value    *v = t_each(2, t);
    int          axis = 1;

    t_run_refused(st, gather, &axis, t_values(1, &v), CH_INVALID_ARGUMENT,
                  "replica 0 has f32(1, 2) and replica 1 has f32(3, 2)", "axis 1 only");
    ch_strategy_unref(st);
    (void)state;
}

static void gather_sparse(ch_step *s, void *arg)
{
    ch_node *table = ch_var_read(s, arg);
    ch_node *loss = ch_sum_all(ch_gather(table, ch_step_in(s, 0), 0));

    ch_step_out(s, NULL, ch_all_gather(ch_gradient(loss, table), 0));
}

/* 4.3.6, B8 */
static void all_gather_rejects_a_sparse_gradient(void **state)
{
    ch_strategy *st = t_replicas(2);
    ch_var      *v = t_var(st, "table", t_f32(ch_shape_of(5, 2), NULL));
    ch_tensor   *ids = t_count(CH_I32, ch_shape_of(2), 0);

    t_run_refused(st, gather_sparse, v, t_tuple(1, &ids), CH_UNIMPLEMENTED, "all_gather",
                  "does not support sparse");
    ch_var_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

/* 4.3.7 */
static void all_gather_rejects_scalars_and_invalid_axes(void **state)
{
    const int    wrong[] = {-1, 2, 100};
    ch_strategy *st = t_replicas(2);

    for (int i = 0; i < 3; i++) {
        ch_tensor *x = t_f32(ch_shape_of(2, 2), NULL);
        int        axis = wrong[i];
        char       word[32];

        snprintf(word, sizeof(word), "axis %d ", axis);
        t_run_refused(st, gather, &axis, t_tuple(1, &x), CH_INVALID_ARGUMENT, word, "rank 2");
    }
    for (int axis = -1; axis < 2; axis++) {
        ch_tensor *x = t_f32(ch_shape_scalar(), NULL);

        t_run_refused(st, gather, &axis, t_tuple(1, &x), CH_INVALID_ARGUMENT, "scalar",
                      "rank 0");
    }
    ch_strategy_unref(st);
    (void)state;
}

/* 4.3.8: with a single replica the result is the value itself; with more, the result is
 * per-replica. */
static void all_gather_of_one_replica_is_the_value_and_of_two_is_per_replica(void **state)
{
    ch_strategy *one = NULL, *two = t_replicas(2);
    ch_tensor   *x = t_count(CH_F32, ch_shape_of(2, 2), 0);
    int          axis = 1;
    ch_tuple    *out;

    t_ok(ch_strategy_one_device("/gpu:1", &one));
    out = t_run(one, gather, &axis, t_tuple(1, &x));
    t_all_have(out, 0, ch_shape_of(2, 2), (double[]){0, 1, 2, 3});
    ch_tuple_unref(out);
    x = t_count(CH_F32, ch_shape_of(2, 2), 0);
    out = t_run(two, gather, &axis, t_tuple(1, &x));
    assert_int_equal(ch_value_kind_of(ch_tuple_at(out, 0)), CH_PER_REPLICA);
    for (int r = 0; r < 2; r++)
        assert_string_equal(
            ch_device_name(ch_tensor_device(ch_value_at(ch_tuple_at(out, 0), r))),
            r == 0 ? "/job:localhost/replica:0/task:0/device:GPU:0"
                   : "/job:localhost/replica:0/task:0/device:GPU:1");
    ch_tuple_unref(out);
    ch_strategy_unref(one);
    ch_strategy_unref(two);
    (void)state;
}

static void gather_all(ch_step *s, void *arg)
{
    ch_node *in[3] = {ch_step_in(s, 0), ch_step_in(s, 1), NULL}, *out[3];

    (void)arg;
    in[2] = ch_mul(in[1], ch_number(s, 2));
    ch_all_gather_all(3, in, 0, out);
    ch_step_out(s, "a", out[0]);
    ch_step_out(s, "b", out[1]);
    ch_step_out(s, "sum", ch_add(out[1], out[2])); /* both have the same number of rows */
}

/* 4.3.9, 8.19 */
static void all_gather_joins_several_values_one_by_one(void **state)
{
    ch_strategy *st = t_replicas(2);
    ch_tensor *a[2] = {t_count(CH_F32, ch_shape_of(1), 0), t_count(CH_F32, ch_shape_of(1), 1)};
    ch_tensor *b[2] = {t_count(CH_F32, ch_shape_of(1, 2), 0),
                       t_count(CH_F32, ch_shape_of(2, 2), 2)};
    ch_value  *v[2] = {t_each(2, a), t_each(2, b)};
    ch_tuple  *out = t_run(st, gather_all, NULL, t_values(2, v));

    t_all_have(out, 0, ch_shape_of(2), (double[]){0, 1});
    t_all_have(out, 1, ch_shape_of(3, 2), (double[]){0, 1, 2, 3, 4, 5});
    t_all_have(out, 2, ch_shape_of(3, 2), (double[]){0, 3, 6, 9, 12, 15});
    ch_tuple_unref(out);
    ch_strategy_unref(st);
    (void)state;
}

/* ---- gradients ---- */

/* Computes y = all_gather(x) * (replica + 1), summed, and its gradient. */
static void gather_and_back(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0);
    ch_node *c = ch_add(ch_cast(ch_step_replica_id(s), ch_node_dtype(x)), ch_number(s, 1));
    ch_node *y = ch_mul(ch_all_gather(x, *(int *)arg), c);

    ch_step_out(s, NULL, ch_gradient(ch_sum_all(y), x));
}

/* 4.3.10 */
static void the_gradient_of_all_gather_is_this_replicas_part_of_the_sum(void **state)
{
    for (int n = 1; n <= 5; n++)
        for (int axis = 0; axis < 2; axis++) {
            ch_strategy *st = t_replicas(n);
            ch_tensor   *x = t_count(n % 2 == 0 ? CH_F64 : CH_F32, ch_shape_of(3, 2), 0);
            ch_tuple    *out = t_run(st, gather_and_back, &axis, t_tuple(1, &x));
            double       sum = n * (n + 1) / 2, want[] = {sum, sum, sum, sum, sum, sum};

            t_all_have(out, 0, ch_shape_of(3, 2), want);
            ch_tuple_unref(out);
            ch_strategy_unref(st);
        }
    (void)state;
}

/* The square of each gathered element, times the replica's number + 1, so that the gradient
 * identifies the element. */
static void gather_squares(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0);
    ch_node *c = ch_add(ch_cast(ch_step_replica_id(s), CH_F32), ch_number(s, 1));
    ch_node *turned = *(int *)arg == 0 ? x : ch_transpose(x, 2, (int[]){1, 0});
    ch_node *y = ch_mul(ch_square(ch_all_gather(turned, *(int *)arg)), c);

    ch_step_out(s, NULL, ch_gradient(ch_sum_all(y), x));
}

/* 4.3.10: different sizes, also 0: dx = 2 x (1 + 2 + 3). */
static void all_gather_gradient_is_right_when_sizes_differ(void **state)
{
    ch_strategy *st = t_replicas(3);

    for (int axis = 0; axis < 2; axis++) {
        const int  rows[] = {2, 0, 3};
        ch_tensor *t[3];
        ch_value  *v;
        ch_tuple  *out;

        for (int r = 0; r < 3; r++)
            t[r] = t_count(CH_F32, ch_shape_of(rows[r], 2), 10 * r);
        v = t_each(3, t);
        out = t_run(st, gather_squares, &axis, t_values(1, &v));
        for (int r = 0; r < 3; r++) {
            assert_int_equal(ch_tensor_count(ch_value_at(ch_tuple_at(out, 0), r)), 2 * rows[r]);
            for (int i = 0; i < 2 * rows[r]; i++)
                assert_true(t_number(out, 0, r, i) == 12.0 * (10 * r + i));
        }
        ch_tuple_unref(out);
    }
    ch_strategy_unref(st);
    (void)state;
}

/* The derivative of the derivative: reduce_scatter's gradient is all_gather again. */
static void gather_twice_differentiated(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0), *y = ch_all_gather(x, 0);
    ch_node *d = ch_gradient(ch_sum_all(ch_mul(ch_square(y), y)), x); /* n 3 x^2 */

    (void)arg;
    ch_step_out(s, NULL, ch_gradient(ch_sum_all(d), x)); /* n 6 x */
}

static void all_gather_gradient_can_be_differentiated_again(void **state)
{
    ch_strategy *st = t_replicas(2);
    ch_tensor   *x = t_count(CH_F64, ch_shape_of(3), 1);
    ch_tuple    *out = t_run(st, gather_twice_differentiated, NULL, t_tuple(1, &x));

    t_all_have(out, 0, ch_shape_of(3), (double[]){12, 24, 36});
    ch_tuple_unref(out);
    ch_strategy_unref(st);
    (void)state;
}

/* ---- broadcast ---- */

static void from_first(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0), *y = ch_broadcast(x);

    ch_step_out(s, NULL, y);
    if (arg != NULL)
        ch_step_out(
            s, NULL,
            ch_gradient(ch_sum_all(ch_mul(y, ch_add(ch_cast(ch_step_replica_id(s), CH_F32),
                                                    ch_number(s, 1)))),
                        x));
}

static void broadcast_gives_all_replicas_the_value_of_replica_0(void **state)
{
    const ch_dtype dtype[] = {CH_F32, CH_F64, CH_I32, CH_I64};
    const int      count[] = {0, 1, 7, 5000}; /* some fit in a slot, others do not */

    for (int n = 1; n <= 4; n++)
        for (int d = 0; d < 4; d++)
            for (int c = 0; c < 4; c++) {
                ch_strategy *st = t_replicas(n);
                ch_tensor   *t[MOST];
                double       want[5000];
                ch_value    *v;
                ch_tuple    *out;

                for (int r = 0; r < n; r++)
                    t[r] = t_count(dtype[d], ch_shape_of(count[c]), 10000 * r);
                v = t_each(n, t);
                for (int i = 0; i < count[c]; i++)
                    want[i] = i;
                out = t_run(st, from_first, NULL, t_values(1, &v));
                t_all_have(out, 0, ch_shape_of(count[c]), want);
                ch_tuple_unref(out);
                ch_strategy_unref(st);
            }
    (void)state;
}

static void the_gradient_of_broadcast_is_the_sum_at_replica_0(void **state)
{
    ch_strategy *st = t_replicas(3);
    ch_tensor   *x = t_count(CH_F32, ch_shape_of(2), 1);
    ch_tuple    *out = t_run(st, from_first, st, t_tuple(1, &x));

    for (int r = 0; r < 3; r++)
        for (int i = 0; i < 2; i++)
            assert_true(t_number(out, 1, r, i) == (r == 0 ? 6 : 0));
    ch_tuple_unref(out);
    ch_strategy_unref(st);
    (void)state;
}

/* Replica 0 has fewer rows than the others, none, or more. Its gradient has its own number of
 * rows. */
static void broadcast_accepts_replicas_of_other_shapes_than_replica_0(void **state)
{
    static const int rows[][3] = {{1, 3, 0}, {0, 3, 1}, {4, 0, 2}};
    ch_strategy     *st = t_replicas(3);

    for (int i = 0; i < 3; i++) {
        ch_tensor   *t[3];
        const double want[8] = {0, 1, 2, 3, 4, 5, 6, 7};
        ch_value    *v;
        ch_tuple    *out;

        for (int r = 0; r < 3; r++)
            t[r] = t_count(CH_F32, ch_shape_of(rows[i][r], 2), 100 * r);
        v = t_each(3, t);
        out = t_run(st, from_first, st, t_values(1, &v));
        t_all_have(out, 0, ch_shape_of(rows[i][0], 2), want);
        for (int r = 0; r < 3; r++) {
            assert_int_equal(ch_tensor_count(ch_value_at(ch_tuple_at(out, 1), r)),
                             2 * rows[i][r]);
            for (int k = 0; k < 2 * rows[i][r]; k++)
                assert_true(t_number(out, 1, r, k) == (r == 0 ? 6 : 0));
        }
        ch_tuple_unref(out);
    }
    ch_strategy_unref(st);
    (void)state;
}

static void broadcast_twice_differentiated(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0), *y = ch_broadcast(x);
    ch_node *d = ch_gradient(ch_sum_all(ch_mul(ch_square(y), y)), x); /* n 3 x^2 at replica 0 */

    (void)arg;
    ch_step_out(s, NULL, ch_gradient(ch_sum_all(d), x)); /* n 6 x there */
}

static void the_gradient_of_broadcast_can_be_differentiated_again(void **state)
{
    ch_strategy *st = t_replicas(2);
    ch_tensor *t[2] = {t_count(CH_F64, ch_shape_of(3), 1), t_count(CH_F64, ch_shape_of(2), 7)};
    ch_value  *v = t_each(2, t);
    ch_tuple  *out = t_run(st, broadcast_twice_differentiated, NULL, t_values(1, &v));

    for (int i = 0; i < 3; i++)
        assert_true(t_number(out, 0, 0, i) == 12 * (i + 1));
    for (int i = 0; i < 2; i++)
        assert_true(t_number(out, 0, 1, i) == 0);
    ch_tuple_unref(out);
    ch_strategy_unref(st);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_gather_joins_equal_shapes_in_replica_order_along_any_axis),
        cmocka_unit_test(all_gather_joins_four_replicas_along_the_last_axis),
        cmocka_unit_test(all_gather_accepts_different_sizes_along_its_axis),
        cmocka_unit_test(all_gather_joins_step_inputs_along_the_axis_in_which_they_differ),
        cmocka_unit_test(all_gather_of_inputs_that_differ_in_axis_1_has_a_gradient),
        cmocka_unit_test(all_gather_rejects_different_sizes_of_other_axes),
        cmocka_unit_test(all_gather_rejects_a_sparse_gradient),
        cmocka_unit_test(all_gather_rejects_scalars_and_invalid_axes),
        cmocka_unit_test(all_gather_of_one_replica_is_the_value_and_of_two_is_per_replica),
        cmocka_unit_test(all_gather_joins_several_values_one_by_one),
        cmocka_unit_test(the_gradient_of_all_gather_is_this_replicas_part_of_the_sum),
        cmocka_unit_test(all_gather_gradient_is_right_when_sizes_differ),
        cmocka_unit_test(all_gather_gradient_can_be_differentiated_again),
        cmocka_unit_test(broadcast_gives_all_replicas_the_value_of_replica_0),
        cmocka_unit_test(the_gradient_of_broadcast_is_the_sum_at_replica_0),
        cmocka_unit_test(broadcast_accepts_replicas_of_other_shapes_than_replica_0),
        cmocka_unit_test(the_gradient_of_broadcast_can_be_differentiated_again),
    };

    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "GPU=8"}));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
