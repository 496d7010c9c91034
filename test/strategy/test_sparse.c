/* test/strategy/test_sparse.c -- sparse values as arguments and results of steps.
 *
 * The numbers in comments are rows of doc/conformance.md.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

#include "cohort/parameter_server.h"

enum { ROWS = 5, WIDE = 2 };

typedef struct slices {
    int          n;
    const int   *ids;
    const float *rows; /* n * WIDE */
} slices;

/* Returns the argument "g" for a number of replicas; plain if there is a single replica. */
static ch_tuple *argument(int replicas, const slices *each)
{
    const char *const name[] = {"g/ids", "g/rows"};
    ch_tensor        *ids[4], *rows[4];
    ch_value         *v[2] = {NULL};
    ch_value_kind     kind = replicas > 1 ? CH_PER_REPLICA : CH_PLAIN;
    ch_tuple         *t = NULL;

    for (int r = 0; r < replicas; r++) {
        t_ok(ch_tensor_copy_of(CH_I32, ch_shape_of(each[r].n), each[r].ids, &ids[r]));
        rows[r] = t_f32(ch_shape_of(each[r].n, WIDE), each[r].rows);
    }
    t_ok(ch_value_new(kind, replicas, ids, &v[0]));
    t_ok(ch_value_new(kind, replicas, rows, &v[1]));
    t_ok(ch_tuple_new(2, v, name, &t));
    for (int r = 0; r < replicas; r++) {
        ch_tensor_unref(ids[r]);
        ch_tensor_unref(rows[r]);
    }
    ch_value_unref(v[0]);
    ch_value_unref(v[1]);
    return t;
}

static void are(const ch_tuple *t, int replica, const slices *want)
{
    const ch_tensor *ids = ch_value_at(ch_tuple_get(t, "g/ids"), replica);
    const ch_tensor *rows = ch_value_at(ch_tuple_get(t, "g/rows"), replica);

    assert_int_equal(ch_tensor_count(ids), want->n);
    assert_int_equal(ch_tensor_count(rows), want->n * WIDE);
    assert_memory_equal(ch_tensor_data(ids), want->ids, (size_t)want->n * sizeof(int));
    assert_memory_equal(ch_tensor_data(rows), want->rows,
                        (size_t)want->n * WIDE * sizeof(float));
}

static const slices of_two[] = {
    {1, (int[]){1}, (float[]){1, 2}},
    {2, (int[]){1, 3}, (float[]){3, 4, 5, 6}},
};

static void reduce(ch_step *s, void *op)
{
    ch_node *g = ch_step_in_sparse(s, "g", ROWS), *sum = ch_all_reduce(*(ch_reduce_op *)op, g);

    assert_true(ch_node_is_sparse(g) && ch_node_is_sparse(sum));
    assert_false(ch_node_is_sparse(ch_add(g, g)));
    assert_false(ch_node_is_sparse(ch_step_in(s, 1)));
    ch_step_out_sparse(s, "g", sum);
}

static void subtract(ch_step *s, void *v)
{
    ch_var_assign_sub(s, v, ch_step_in_sparse(s, "g", ROWS));
    ch_step_out(s, "v", ch_var_read(s, v));
}

/* 4.5.1, 4.5.2: the sum of the arguments of two replicas is the argument of a step that updates a variable. */
static void sparse_argument_is_reduced_and_is_an_argument_again(void **state)
{
    const slices sum = {3, (int[]){1, 1, 3}, (float[]){1, 2, 3, 4, 5, 6}};
    const slices mean = {3, (int[]){1, 1, 3}, (float[]){.5F, 1, 1.5F, 2, 2.5F, 3}};

    for (int i = 0; i < 4; i++) {
        ch_strategy  *st = i < 2 ? t_mirrored(2) : t_central(2);
        ch_reduce_op  op = i % 2 == 0 ? CH_SUM : CH_MEAN;
        const slices *want = op == CH_SUM ? &sum : &mean;
        ch_tuple     *in = argument(2, of_two), *out = NULL, *after = NULL, *one;
        ch_var       *v = NULL;
        ch_function  *f = t_function(reduce, &op), *g;
        ch_tensor    *zero = t_f32(ch_shape_of(ROWS, WIDE), NULL);

        memset(ch_tensor_data_mut(zero), 0, ROWS * WIDE * sizeof(float));
        t_ok(ch_strategy_run(st, f, in, &out));
        are(out, 0, want);
        are(out, 1, want);
        t_ok(ch_var_new(st, &(ch_var_spec){.initial = zero, .aggregation = CH_AGGREGATE_MEAN},
                        &v));
        g = t_function(subtract, v);
        t_ok(ch_strategy_run(st, g, out, &after)); /* both replicas give the same rows */
        assert_true(t_copy_of(v, 0, 1 * WIDE) == -(want->rows[0] + want->rows[2]));
        assert_true(t_copy_of(v, 0, 3 * WIDE + 1) == -want->rows[5]);
        assert_true(t_copy_of(v, 0, 0) == 0);
        one = argument(1, &of_two[1]); /* every replica gets a plain argument */
        ch_tuple_unref(after);
        t_ok(ch_strategy_run(st, g, one, &after));
        assert_true(t_copy_of(v, 0, 3 * WIDE + 1) == -want->rows[5] - 6);
        ch_tuple_unref(one);
        ch_tuple_unref(after);
        ch_tuple_unref(out);
        ch_tuple_unref(in);
        ch_tensor_unref(zero);
        ch_var_unref(v);
        ch_function_unref(f);
        ch_function_unref(g);
        ch_strategy_unref(st);
    }
    (void)state;
}

/* Servers have the table whole, or in two shards. */
static void sparse_argument_changes_a_table_on_servers(void **state)
{
    for (int shards = 1; shards <= 2; shards++) {
        ch_parameter_server_options opt = {.partitioner = ch_partitioner_fixed(shards)};
        ch_local_cluster           *cluster = NULL;
        ch_strategy                *st = NULL;
        ch_var                     *v = NULL;
        ch_tensor                  *zero = t_f32(ch_shape_of(ROWS, WIDE), NULL), *now = NULL;
        ch_tuple                   *in = argument(1, &of_two[1]), *out = NULL;
        ch_function                *f;

        memset(ch_tensor_data_mut(zero), 0, ROWS * WIDE * sizeof(float));
        t_ok(ch_cluster_local(&(ch_local_cluster_options){.ps = 2, .workers = 1}, &cluster));
        t_ok(ch_strategy_parameter_server(ch_local_cluster_resolver(cluster), &opt, &st));
        t_ok(ch_var_new(st, &(ch_var_spec){.initial = zero}, &v));
        f = t_function(subtract, v);
        t_ok(ch_strategy_run(st, f, in, &out));
        t_ok(ch_strategy_run(st, f, in, NULL));
        t_ok(ch_var_get(v, &now));
        for (int i = 0; i < ROWS * WIDE; i++) {
            const float row = i / WIDE == 1 ? 3 : i / WIDE == 3 ? 5 : 0;

            assert_true(((const float *)ch_tensor_data(now))[i] ==
                        (row > 0 ? -2 * (row + (float)(i % WIDE)) : 0));
        }
        ch_tensor_unref(now);
        ch_tensor_unref(zero);
        ch_tuple_unref(in);
        ch_tuple_unref(out);
        ch_var_unref(v);
        ch_function_unref(f);
        ch_strategy_unref(st);
        ch_local_cluster_unref(cluster);
    }
    (void)state;
}

static void sparse_argument_without_rows_is_zero(void **state)
{
    const slices some[] = {{0, (int[]){0}, (float[]){0}},
                           {2, (int[]){1, 3}, (float[]){3, 4, 5, 6}}};
    ch_strategy *st = t_mirrored(2);
    ch_reduce_op op = CH_SUM;
    ch_function *f = t_function(reduce, &op);
    ch_tuple    *in = argument(2, some), *out = NULL;

    t_ok(ch_strategy_run(st, f, in, &out));
    are(out, 0, &some[1]);
    ch_tuple_unref(in);
    ch_tuple_unref(out);
    in = argument(1, &some[0]);
    t_ok(ch_strategy_run(NULL, f, in, &out));
    are(out, 0, &some[0]);
    ch_tuple_unref(in);
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

static void three_rows(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "sum", ch_sum_all(ch_step_in_sparse(s, "g", 3)));
}

static void wrong_name(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "sum", ch_sum_all(ch_step_in_sparse(s, "h", 3)));
}

static void dense_result(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out_sparse(s, "g", ch_step_in(s, 1));
    ch_step_out(s, "x", ch_step_in(s, 0));
}

static void sparse_argument_names_what_is_wrong(void **state)
{
    static const struct {
        ch_step_fn  step;
        const char *word, *other;
    } row[] = {{three_rows, "id 3", "[0, 3)"},
               {wrong_name, "h/ids", "step_in_sparse"},
               {dense_result, "step_out_sparse: \"g\"", "ch_step_out"}};
    ch_tuple *in = argument(1, &of_two[1]);

    for (int i = 0; i < 3; i++) {
        ch_function *f = t_function(row[i].step, NULL);

        t_refused(ch_strategy_run(NULL, f, in, NULL), CH_INVALID_ARGUMENT, row[i].word,
                  row[i].other);
        ch_function_unref(f);
    }
    assert_false(ch_node_is_sparse(NULL));
    ch_tuple_unref(in);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sparse_argument_is_reduced_and_is_an_argument_again),
        cmocka_unit_test(sparse_argument_changes_a_table_on_servers),
        cmocka_unit_test(sparse_argument_without_rows_is_zero),
        cmocka_unit_test(sparse_argument_names_what_is_wrong),
    };

    return cmocka_run_group_tests(tests, t_four_gpus, NULL);
}
