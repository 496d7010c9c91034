/* test/collective/test_all_reduce.c -- all_reduce in a step, dense and sparse, and its
 * gradient.
 *
 * Results are compared with sums computed by hand, for every reduction, for several dtypes, and
 * for dense and sparse values in the same call.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/op.h"
#include "help.h"

static const ch_reduce_op both[] = {CH_SUM, CH_MEAN};

static void reduce_all(ch_step *s, void *arg)
{
    ch_node *in[8], *out[8];
    int      n = ch_step_in_count(s);

    for (int i = 0; i < n; i++)
        in[i] = ch_step_in(s, i);
    ch_all_reduce_all(*(const ch_reduce_op *)arg, n, in, out);
    for (int i = 0; i < n; i++)
        ch_step_out(s, NULL, out[i]);
}

static void reduce_ones(ch_step *s, void *arg)
{
    ch_node *in[2] = {ch_number(s, 1), ch_number(s, 2)}, *out[2];

    (void)arg;
    ch_step_out(s, NULL, ch_all_reduce(CH_SUM, in[0]));
    ch_all_reduce_all(CH_SUM, 2, in, out);
    ch_step_out(s, NULL, out[0]);
    ch_step_out(s, NULL, out[1]);
}

/* 4.4.1 */
static void all_reduce_of_ones_is_the_number_of_replicas(void **state)
{
    for (int n = 1; n <= 8; n++) {
        ch_strategy *st = t_replicas(n);
        ch_tuple    *out = t_run(st, reduce_ones, NULL, NULL);

        t_all_have(out, 0, ch_shape_scalar(), (double[]){n});
        t_all_have(out, 1, ch_shape_scalar(), (double[]){n});
        t_all_have(out, 2, ch_shape_scalar(), (double[]){2 * n});
        ch_tuple_unref(out);
        ch_strategy_unref(st);
    }
    (void)state;
}

/* Returns the inputs of n replicas, 1 and 3, and [39, 2] and [3, 41]; a single replica has both
 * sums. */
static ch_tuple *pair(int n)
{
    const float a[] = {1, 3, 4}, b[][2] = {{39, 2}, {3, 41}, {42, 43}};
    ch_tensor  *x[2], *y[2];
    ch_value   *v[2];

    for (int r = 0; r < n; r++) {
        x[r] = t_f32(ch_shape_scalar(), &a[n == 1 ? 2 : r]);
        y[r] = t_f32(ch_shape_of(2), b[n == 1 ? 2 : r]);
    }
    v[0] = t_each(n, x);
    v[1] = t_each(n, y);
    return t_values(2, v);
}

/* 4.4.2 */
static void all_reduce_gives_sum_and_mean_of_one_and_two_replicas(void **state)
{
    for (int n = 1; n <= 2; n++)
        for (int k = 0; k < 2; k++) {
            ch_reduce_op op = both[k];
            double       by = op == CH_MEAN ? n : 1;
            ch_strategy *st = t_replicas(n);
            ch_tuple    *out = t_run(st, reduce_all, &op, pair(n));

            t_all_have(out, 0, ch_shape_scalar(), (double[]){4 / by});
            t_all_have(out, 1, ch_shape_of(2), (double[]){42 / by, 43 / by});
            ch_tuple_unref(out);
            ch_strategy_unref(st);
        }
    (void)state;
}

/* y = all_reduce(x) * c; arg: the reduction. */
static void slope(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0), *c = ch_step_in(s, 1);
    ch_node *y = ch_mul(ch_all_reduce(*(const ch_reduce_op *)arg, x), c);

    ch_step_out(s, NULL, ch_gradient(y, x));
}

/* 4.4.3 */
static void all_reduce_gradient_is_the_same_reduction(void **state)
{
    const float  x[] = {1, 3}, c[] = {1, 3, 4, 5};
    ch_strategy *two = t_replicas(2), *one = t_replicas(1);

    for (int k = 0; k < 2; k++) {
        ch_reduce_op op = both[k];
        ch_tensor   *tx[2], *tc[2];
        ch_value    *v[2];
        ch_tuple    *out;

        for (int r = 0; r < 2; r++) {
            tx[r] = t_f32(ch_shape_scalar(), &x[r]);
            tc[r] = t_f32(ch_shape_scalar(), &c[r]);
        }
        v[0] = t_each(2, tx);
        v[1] = t_each(2, tc);
        out = t_run(two, slope, &op, t_values(2, v));
        t_all_have(out, 0, ch_shape_scalar(), (double[]){op == CH_SUM ? 4 : 2});
        ch_tuple_unref(out);
        tx[0] = t_f32(ch_shape_scalar(), &x[0]);
        tc[0] = t_f32(ch_shape_scalar(), &c[2 + k]);
        out = t_run(one, slope, &op, t_tuple(2, (ch_tensor *[]){tx[0], tc[0]}));
        t_all_have(out, 0, ch_shape_scalar(), (double[]){4 + k});
        ch_tuple_unref(out);
    }
    ch_strategy_unref(one);
    ch_strategy_unref(two);
    (void)state;
}

/* Reduces three values together, and uses only the second. */
static void slope_of_one_of_three(ch_step *s, void *arg)
{
    ch_node *x[3] = {ch_step_in(s, 0), ch_step_in(s, 0), ch_step_in(s, 0)}, *y[3];

    (void)arg;
    for (int i = 0; i < 3; i++)
        x[i] = ch_mul(x[i], ch_number(s, i + 1));
    ch_all_reduce_all(CH_SUM, 3, x, y);
    ch_step_out(s, NULL, ch_gradient(ch_sum_all(ch_square(y[1])), x[1]));
    ch_step_out(s, NULL, ch_gradient(ch_sum_all(ch_square(y[1])), x[0]));
}

static void all_reduce_gives_each_of_several_arrays_its_own_gradient(void **state)
{
    ch_strategy *st = t_replicas(2);
    ch_tensor   *x = t_count(CH_F64, ch_shape_of(2), 1);
    ch_tuple    *out = t_run(st, slope_of_one_of_three, NULL, t_tuple(1, &x));

    /* y = 2 * 2x; 2y from each of two */
    t_all_have(out, 0, ch_shape_of(2), (double[]){16, 32});
    t_all_have(out, 1, ch_shape_of(2), (double[]){0, 0});
    ch_tuple_unref(out);
    ch_strategy_unref(st);
    (void)state;
}

/* 4.4.5 */
static void all_reduce_rejects_unequal_shapes_and_names_both_replicas(void **state)
{
    ch_strategy *st = t_replicas(3);
    ch_reduce_op op = CH_SUM;
    ch_tensor   *t[3] = {t_f32(ch_shape_of(2, 3), NULL), t_f32(ch_shape_of(2, 3), NULL),
                         t_f32(ch_shape_of(5, 3), NULL)};
    ch_value    *v = t_each(3, t);

    t_run_refused(st, reduce_all, &op, t_values(1, &v), CH_INVALID_ARGUMENT, "all_reduce",
                  "replica 0 has f32(2, 3) and replica 2 has f32(5, 3)");
    ch_strategy_unref(st);
    (void)state;
}

static void reduce_ids(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_all_reduce(CH_SUM, ch_step_replica_id(s)));
}

/* 4.4.6, 4.4.7 */
static void all_reduce_result_is_on_the_device_of_each_replica(void **state)
{
    ch_strategy *st = t_replicas(2);
    ch_tuple    *out = t_run(st, reduce_ids, NULL, NULL);

    t_all_have(out, 0, ch_shape_scalar(), (double[]){1});
    for (int r = 0; r < 2; r++) {
        const char *name =
            ch_device_name(ch_tensor_device(ch_value_at(ch_tuple_at(out, 0), r)));

        assert_non_null(strstr(name, r == 0 ? "GPU:0" : "GPU:1"));
    }
    ch_tuple_unref(out);
    ch_strategy_unref(st);
    (void)state;
}

/* Adds up the input after a cast to another dtype. */
static void reduce_as(ch_step *s, void *dtype)
{
    ch_node *x = ch_cast(ch_step_in(s, 0), *(const ch_dtype *)dtype);

    ch_step_out(s, NULL, ch_cast(ch_all_reduce(CH_SUM, x), CH_F64));
}

/* 4.4.1: all dtypes that steps compute with, also if a replica has no rows; others are
 * rejected. */
static void all_reduce_accepts_number_dtypes_and_rejects_others(void **state)
{
    static const ch_dtype dtype[] = {CH_F16, CH_BF16, CH_F32, CH_F64,
                                     CH_I8,  CH_U8,   CH_I32, CH_I64};
    static const ch_dtype other[] = {CH_BOOL, CH_I16, CH_U64};
    enum { DTYPES = sizeof(dtype) / sizeof(dtype[0]) };
    ch_strategy *st = t_replicas(3);
    ch_tensor   *x;

    for (int d = 0; d < DTYPES; d++)
        for (int rows = 0; rows < 3; rows++) {
            ch_dtype   as = dtype[d];
            ch_tensor *t[3];
            double     want[4];
            ch_value  *v;
            ch_tuple  *out;

            for (int r = 0; r < 3; r++)
                t[r] = t_count(CH_F64, ch_shape_of(rows, 2), r);
            v = t_each(3, t);
            for (int i = 0; i < 2 * rows; i++)
                want[i] = 3 + 3 * i;
            out = t_run(st, reduce_as, &as, t_values(1, &v));
            t_all_have(out, 0, ch_shape_of(rows, 2), want);
            ch_tuple_unref(out);
        }
    for (int i = 0; i < 3; i++) {
        ch_dtype as = other[i];

        x = t_count(CH_F64, ch_shape_of(2), 0);
        t_run_refused(st, reduce_as, &as, t_tuple(1, &x), CH_INVALID_ARGUMENT, "all_reduce",
                      ch_dtype_name(as));
    }
    ch_strategy_unref(st);
    (void)state;
}

static void t_store(ch_tensor *t, int i, int x)
{
    void *data = ch_tensor_data_mut(t);

    if (ch_tensor_dtype(t) == CH_I64)
        ((int64_t *)data)[i] = x;
    else if (ch_tensor_dtype(t) == CH_I32)
        ((int32_t *)data)[i] = x;
    else
        ((int8_t *)data)[i] = (int8_t)x;
}

/* 8.14: the same as ch_strategy_reduce of the same values, also if all replicas have equal
 * values, or there is a single replica. */
static void all_reduce_mean_of_integers_is_floating_point_as_on_the_host(void **state)
{
    static const ch_dtype dtype[] = {CH_I32, CH_I64, CH_I8, CH_U8};

    for (int c = 0; c < 16; c++) {
        int          n = c % 4 + 1;
        ch_dtype     from = dtype[c / 4];
        ch_strategy *st = t_replicas(n);
        ch_reduce_op op = CH_MEAN;
        ch_tensor   *t[4], *host = NULL;
        ch_value    *v;
        ch_tuple    *in, *out = NULL;
        ch_function *f = t_function(reduce_all, &op);

        for (int r = 0; r < n; r++) {
            t_ok(ch_tensor_new(from, ch_shape_of(3), &t[r]));
            for (int i = 0; i < 3; i++) /* the sum exceeds the range of i8 */
                t_store(t[r], i, 90 + 11 * r + i);
        }
        v = t_each(n, t);
        t_ok(ch_strategy_reduce(st, CH_MEAN, v, CH_NO_AXIS, &host));
        in = t_values(1, &v);
        t_ok(ch_strategy_run(st, f, in, &out));
        for (int r = 0; r < n; r++) {
            const ch_tensor *got = ch_value_at(ch_tuple_at(out, 0), r);

            assert_int_equal(ch_tensor_dtype(got), ch_tensor_dtype(host));
            assert_int_equal(ch_tensor_dtype(got), ch_dtype_bytes(from) > 2 ? CH_F64 : CH_F32);
            assert_memory_equal(ch_tensor_data(got), ch_tensor_data(host),
                                3 * ch_dtype_bytes(ch_tensor_dtype(host)));
        }
        ch_tensor_unref(host);
        ch_tuple_unref(in);
        ch_tuple_unref(out);
        ch_function_unref(f);
        ch_strategy_unref(st);
    }
    (void)state;
}

/* ---- sparse ---- */

/* The inputs are ids and rows for each of `pairs`, and then `dense` dense values. Each sparse
 * gradient is that of a table with respect to a lookup, times the rows. */
typedef struct sparse_job {
    ch_reduce_op op;
    int          pairs, dense;
    ch_var      *table;
    bool         dense_first;
} sparse_job;

static ch_node *sparse_of(ch_step *s, ch_var *v, ch_node *ids, ch_node *rows)
{
    ch_node *table = ch_var_read(s, v);

    return ch_gradient(ch_sum_all(ch_mul(ch_gather(table, ids, 0), rows)), table);
}

static void reduce_sparse(ch_step *s, void *arg)
{
    const sparse_job *j = arg;
    int               n = j->pairs + j->dense, first = j->dense_first ? j->dense : 0;
    ch_node          *in[8], *out[8];

    for (int i = 0; i < j->dense; i++)
        in[j->dense_first ? i : j->pairs + i] = ch_step_in(s, 2 * j->pairs + i);
    for (int i = 0; i < j->pairs; i++)
        in[first + i] = sparse_of(s, j->table, ch_step_in(s, 2 * i), ch_step_in(s, 2 * i + 1));
    ch_all_reduce_all(j->op, n, in, out);
    for (int i = 0; i < n; i++) {
        bool is_pair = i >= first && i < first + j->pairs;

        ch_step_out(s, NULL, out[i]);
        if (is_pair && out[i] != NULL) {
            ch_step_out(s, NULL, out[i]->head->in[0]); /* the result is sparse: ids, rows */
            ch_step_out(s, NULL, out[i]->head->in[1]);
        }
    }
}

static ch_tensor *ids_of(int n, const int32_t *id)
{
    ch_tensor *t = NULL;

    t_ok(ch_tensor_copy_of(CH_I32, ch_shape_of(n), id, &t));
    return t;
}

/* ([1,2]@1) and ([3,4]@1, [5,6]@3) of 5 rows. */
static ch_tuple *two_slices(void)
{
    ch_tensor *ids[2] = {ids_of(1, (int32_t[]){1}), ids_of(2, (int32_t[]){1, 3})};
    ch_tensor *rows[2] = {t_count(CH_F32, ch_shape_of(1, 2), 1),
                          t_count(CH_F32, ch_shape_of(2, 2), 3)};
    ch_value  *v[2] = {t_each(2, ids), t_each(2, rows)};

    return t_values(2, v);
}

/* 4.5.1, 4.5.2, 4.5.5, 4.5.8 */
static void all_reduce_concatenates_sparse_gradients_and_mean_divides_the_rows(void **state)
{
    ch_strategy *st = t_replicas(2);
    ch_var      *v = t_var(st, "table", t_f32(ch_shape_of(5, 2), NULL));

    for (int k = 0; k < 2; k++) {
        sparse_job j = {.op = both[k], .pairs = 1, .table = v};
        double     by = k == 0 ? 1 : 2;
        ch_tuple  *out = t_run(st, reduce_sparse, &j, two_slices());

        t_all_have(out, 0, ch_shape_of(5, 2),
                   (double[]){0, 0, 4 / by, 6 / by, 0, 0, 5 / by, 6 / by, 0, 0});
        t_all_have(out, 1, ch_shape_of(3), (double[]){1, 1, 3});
        t_all_have(out, 2, ch_shape_of(3, 2),
                   (double[]){1 / by, 2 / by, 3 / by, 4 / by, 5 / by, 6 / by});
        ch_tuple_unref(out);
    }
    ch_var_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

/* 4.5.3: 1 at 0, and 2, 3, 4 at 0, 1, 2 */
static void sparse_all_reduce_accepts_different_numbers_of_rows(void **state)
{
    ch_strategy *st = t_replicas(2);
    ch_var      *table = t_var(st, "table", t_f32(ch_shape_of(3, 1), NULL));
    sparse_job   j = {.op = CH_SUM, .pairs = 1, .table = table};
    ch_tensor   *ids[2] = {ids_of(1, (int32_t[]){0}), ids_of(3, (int32_t[]){0, 1, 2})};
    ch_tensor   *rows[2] = {t_count(CH_F32, ch_shape_of(1, 1), 1),
                            t_count(CH_F32, ch_shape_of(3, 1), 2)};
    ch_value    *v[2] = {t_each(2, ids), t_each(2, rows)};
    ch_tuple    *out = t_run(st, reduce_sparse, &j, t_values(2, v));

    t_all_have(out, 0, ch_shape_of(3, 1), (double[]){3, 3, 4});
    t_all_have(out, 1, ch_shape_of(4), (double[]){0, 0, 1, 2});
    t_all_have(out, 2, ch_shape_of(4, 1), (double[]){1, 2, 3, 4});
    ch_tuple_unref(out);
    ch_var_unref(table);
    ch_strategy_unref(st);
    (void)state;
}

/* 4.5.4 */
static void sparse_all_reduce_joins_the_rows_of_four_replicas(void **state)
{
    const int32_t id[4][2] = {{0, 1}, {1, 2}, {7, 8}, {3, 2}};
    ch_strategy  *st = t_replicas(4);
    ch_var       *table = t_var(st, "table", t_f32(ch_shape_of(9, 1), NULL));
    sparse_job    j = {.op = CH_SUM, .pairs = 1, .table = table};
    ch_tensor    *ids[4], *rows[4];
    ch_value     *v[2];
    ch_tuple     *out;

    for (int r = 0; r < 4; r++) {
        ids[r] = ids_of(2, id[r]);
        rows[r] = t_count(CH_F32, ch_shape_of(2, 1), 2 * r + 1);
    }
    v[0] = t_each(4, ids);
    v[1] = t_each(4, rows);
    out = t_run(st, reduce_sparse, &j, t_values(2, v));
    t_all_have(out, 1, ch_shape_of(8), (double[]){0, 1, 1, 2, 7, 8, 3, 2});
    t_all_have(out, 2, ch_shape_of(8, 1), (double[]){1, 2, 3, 4, 5, 6, 7, 8});
    ch_tuple_unref(out);
    ch_var_unref(table);
    ch_strategy_unref(st);
    (void)state;
}

/* 4.4.1, 4.5.7: a replica has no slices */
static void all_reduce_of_dense_and_sparse_values_keeps_their_order(void **state)
{
    ch_strategy *st = t_replicas(2);
    ch_var      *table = t_var(st, "table", t_f32(ch_shape_of(4, 1), NULL));

    for (int k = 0; k < 2; k++) {
        sparse_job j = {CH_SUM, 2, 2, table, k == 1};
        ch_tensor *ids[2] = {ids_of(1, (int32_t[]){1}), ids_of(0, (int32_t[]){0})};
        ch_tensor *rows[2] = {t_count(CH_F32, ch_shape_of(1, 1), 5),
                              t_count(CH_F32, ch_shape_of(0, 1), 0)};
        ch_tensor *more_ids[2] = {ids_of(1, (int32_t[]){2}), ids_of(1, (int32_t[]){3})};
        ch_tensor *more_rows[2] = {t_count(CH_F32, ch_shape_of(1, 1), 6),
                                   t_count(CH_F32, ch_shape_of(1, 1), 7)};
        ch_tensor *a[2] = {t_count(CH_F32, ch_shape_of(1), 1),
                           t_count(CH_F32, ch_shape_of(1), 3)};
        ch_tensor *b[2] = {t_count(CH_F32, ch_shape_of(1), 2),
                           t_count(CH_F32, ch_shape_of(1), 4)};
        ch_value  *v[6] = {t_each(2, ids),       t_each(2, rows), t_each(2, more_ids),
                           t_each(2, more_rows), t_each(2, a),    t_each(2, b)};
        ch_tuple  *out = t_run(st, reduce_sparse, &j, t_values(6, v));
        int        dense = k == 1 ? 0 : 6, sparse = k == 1 ? 2 : 0;

        t_all_have(out, dense, ch_shape_of(1), (double[]){4});
        t_all_have(out, dense + 1, ch_shape_of(1), (double[]){6});
        t_all_have(out, sparse, ch_shape_of(4, 1), (double[]){0, 5, 0, 0});
        t_all_have(out, sparse + 1, ch_shape_of(1), (double[]){1});
        t_all_have(out, sparse + 3, ch_shape_of(4, 1), (double[]){0, 0, 6, 7});
        t_all_have(out, sparse + 4, ch_shape_of(2), (double[]){2, 3});
        ch_tuple_unref(out);
    }
    ch_var_unref(table);
    ch_strategy_unref(st);
    (void)state;
}

/* Computes the gradient of the sum of a sparse gradient, times the replica's number + 1, with
 * respect to its rows. */
static void slope_through_sparse(ch_step *s, void *arg)
{
    ch_node *rows = ch_step_in(s, 1);
    ch_node *sum = ch_all_reduce(CH_SUM, sparse_of(s, arg, ch_step_in(s, 0), rows));
    ch_node *c = ch_add(ch_cast(ch_step_replica_id(s), CH_F32), ch_number(s, 1));

    ch_step_out(s, NULL, ch_gradient(ch_sum_all(ch_mul(sum, c)), rows));
}

/* 4.4.4: here the gradient exists. */
static void sparse_all_reduce_has_a_gradient(void **state)
{
    ch_strategy *st = t_replicas(2);
    ch_var      *v = t_var(st, "table", t_f32(ch_shape_of(5, 2), NULL));
    ch_tuple    *out = t_run(st, slope_through_sparse, v, two_slices());

    for (int r = 0; r < 2; r++)
        for (int i = 0; i < 2 * (r + 1); i++)
            assert_true(t_number(out, 0, r, i) == 3);
    ch_tuple_unref(out);
    ch_var_unref(v);
    ch_strategy_unref(st);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_reduce_of_ones_is_the_number_of_replicas),
        cmocka_unit_test(all_reduce_gives_sum_and_mean_of_one_and_two_replicas),
        cmocka_unit_test(all_reduce_gradient_is_the_same_reduction),
        cmocka_unit_test(all_reduce_gives_each_of_several_arrays_its_own_gradient),
        cmocka_unit_test(all_reduce_rejects_unequal_shapes_and_names_both_replicas),
        cmocka_unit_test(all_reduce_result_is_on_the_device_of_each_replica),
        cmocka_unit_test(all_reduce_accepts_number_dtypes_and_rejects_others),
        cmocka_unit_test(all_reduce_mean_of_integers_is_floating_point_as_on_the_host),
        cmocka_unit_test(all_reduce_concatenates_sparse_gradients_and_mean_divides_the_rows),
        cmocka_unit_test(sparse_all_reduce_accepts_different_numbers_of_rows),
        cmocka_unit_test(sparse_all_reduce_joins_the_rows_of_four_replicas),
        cmocka_unit_test(all_reduce_of_dense_and_sparse_values_keeps_their_order),
        cmocka_unit_test(sparse_all_reduce_has_a_gradient),
    };

    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "GPU=8"}));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
