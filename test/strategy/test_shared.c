/* test/strategy/test_shared.c -- values that all replicas share, which cannot be summed over
 * replicas.
 *
 * A literal or a plain input is the same value for all replicas. The tests assign, merge and
 * reduce such values. The numbers in comments are rows of doc/conformance.md.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

typedef ch_node *(*made)(ch_step *s);

static ch_node *literal(ch_step *s)
{
    return ch_number(s, 5);
}

static ch_node *literal_expression(ch_step *s)
{
    return ch_cast(ch_mul(ch_number(s, 2), ch_number(s, 2.5)), CH_F32);
}

static ch_node *input(ch_step *s)
{
    return ch_step_in(s, 0);
}

static ch_node *own_literal(ch_step *s)
{
    return ch_identity(ch_number(s, 5));
}

static ch_node *own_input(ch_step *s)
{
    return ch_identity(ch_step_in(s, 0));
}

static ch_node *computed(ch_step *s)
{
    return ch_sub(ch_step_in(s, 0), ch_number(s, 0));
}

typedef struct job {
    made         make;
    ch_var      *v; /* NULL: the job is a merge call, without a variable */
    ch_reduce_op op;
} job;

static void assign(ch_step *s, void *arg)
{
    const job *j = arg;

    ch_var_assign(s, j->v, j->make(s));
}

static void merged(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg)
{
    (void)s;
    (void)n;
    out[0] = ch_merge_reduce(((const job *)arg)->op, in[0]);
}

static void merge(ch_step *s, void *arg)
{
    ch_node *x = ((const job *)arg)->make(s), *out = NULL;

    ch_merge_call(s, merged, arg, 1, &x, 1, &out);
    ch_step_out(s, NULL, ch_cast(out, CH_F32));
}

/* Runs a function with the input 5: plain if is_plain, otherwise per-replica. */
static ch_status run_function(ch_strategy *st, ch_function *f, bool is_plain, ch_tuple **out)
{
    float      five = 5;
    ch_tensor *t = t_f32(ch_shape_scalar(), &five);
    ch_value  *v = NULL;
    ch_tuple  *in = NULL;
    ch_status  rc;

    t_ok(ch_value_new(is_plain ? CH_PLAIN : CH_PER_REPLICA, is_plain ? 1 : 2,
                      (ch_tensor *[]){t, t}, &v));
    t_ok(ch_tuple_new(1, &v, NULL, &in));
    rc = ch_strategy_run(st, f, in, out);
    ch_tuple_unref(in);
    ch_value_unref(v);
    ch_tensor_unref(t);
    return rc;
}

static ch_status run(ch_strategy *st, job *j, bool is_plain, ch_tuple **out)
{
    ch_function *f = t_function(j->v != NULL ? assign : merge, j);
    ch_status    rc = run_function(st, f, is_plain, out);

    ch_function_unref(f);
    return rc;
}

static ch_var *new_var(ch_strategy *st, ch_aggregation aggregation)
{
    ch_var *v = NULL;

    t_ok(ch_var_new(st, &(ch_var_spec){.name = "v", .aggregation = aggregation}, &v));
    return v;
}

static const struct {
    made  make;
    bool  is_plain;
    float sum; /* 0: the call is rejected */
} row[] = {{literal, true, 0},  {literal_expression, true, 0}, {input, true, 0},
           {input, false, 10},  {own_literal, true, 10},       {own_input, true, 10},
           {computed, true, 10}};

enum { ROWS = sizeof(row) / sizeof(row[0]) };

static void assign_rejects_a_sum_of_one_value_for_all_replicas(
    void **state) /* 3.3, 3.3.1, 3.3.6, 3.5.3, 8.8 */
{
    ch_strategy *st[] = {t_mirrored(2), t_central(2)};

    for (int k = 0; k < 2; k++) {
        ch_var *v = new_var(st[k], CH_AGGREGATE_SUM);

        for (int i = 0; i < ROWS; i++) {
            job       j = {row[i].make, v, CH_SUM};
            ch_status rc = run(st[k], &j, row[i].is_plain, NULL);

            if (row[i].sum == 0) {
                t_refused(rc, CH_INVALID_ARGUMENT, "same value for all replicas", "identity");
                continue;
            }
            t_ok(rc);
            assert_true(t_copy_of(v, 0, 0) == row[i].sum);
        }
        ch_var_unref(v);
        ch_strategy_unref(st[k]);
    }
    (void)state;
}

/* The value is not computed as the mean of three equal values, which could be rounded. */
static void assign_of_one_value_for_all_replicas_keeps_it_with_mean_or_first(
    void **state) /* 3.3, 3.3.2, 3.5.3 */
{
    const ch_aggregation how[] = {CH_AGGREGATE_MEAN, CH_AGGREGATE_FIRST};
    ch_strategy         *st[] = {t_mirrored(2), t_central(2)};

    for (int k = 0; k < 2; k++)
        for (int a = 0; a < 2; a++)
            for (int i = 0; i < ROWS; i++) {
                job j = {row[i].make, new_var(st[k], how[a]), CH_SUM};

                t_ok(run(st[k], &j, row[i].is_plain, NULL));
                assert_true(t_copy_of(j.v, 0, 0) == 5);
                ch_var_unref(j.v);
            }
    for (int k = 0; k < 2; k++)
        ch_strategy_unref(st[k]);
    (void)state;
}

static void
merge_reduce_rejects_a_sum_of_one_value_for_all_replicas(void **state) /* 4.1.14, 1.4.6 */
{
    ch_strategy *st = t_mirrored(2);

    for (int i = 0; i < ROWS; i++) {
        job       sum = {row[i].make, NULL, CH_SUM}, mean = {row[i].make, NULL, CH_MEAN};
        ch_tuple *out = NULL;
        ch_status rc = run(st, &sum, row[i].is_plain, &out);

        if (row[i].sum == 0) {
            t_refused(rc, CH_INVALID_ARGUMENT, "same for all replicas", "identity");
        } else {
            t_ok(rc);
            assert_true(t_floats(out, 0, 1)[0] == row[i].sum);
            ch_tuple_unref(out);
        }
        t_ok(run(st, &mean, row[i].is_plain, &out));
        assert_true(t_floats(out, 0, 1)[0] == 5);
        ch_tuple_unref(out);
    }
    ch_strategy_unref(st);
    (void)state;
}

/* A step that was recorded with a plain input is recorded again for a per-replica input, and
 * vice versa. */
static void a_plain_input_and_one_of_each_replica_are_two_recordings(void **state)
{
    ch_strategy *st = t_mirrored(2);
    job          j = {input, new_var(st, CH_AGGREGATE_SUM), CH_SUM};
    ch_function *f = t_function(assign, &j);

    t_ok(run_function(st, f, false, NULL));
    t_refused(run_function(st, f, true, NULL), CH_INVALID_ARGUMENT, "a plain input", "");
    t_ok(run_function(st, f, false, NULL));
    assert_int_equal(ch_function_recordings(f), 1); /* of the run that succeeded */
    assert_true(t_copy_of(j.v, 1, 0) == 10);
    ch_function_unref(f);
    ch_var_unref(j.v);
    ch_strategy_unref(st);
    (void)state;
}

static void all_reduced(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_cast(ch_all_reduce(CH_SUM, ch_number(s, 1)), CH_F32));
}

static void all_reduce_of_a_literal_one_counts_the_replicas(void **state) /* 4.4.1 */
{
    ch_strategy *st = t_mirrored(3);
    ch_function *f = t_function(all_reduced, NULL);
    ch_tuple    *out = NULL;

    t_ok(ch_strategy_run(st, f, NULL, &out));
    assert_true(t_floats(out, 0, 2)[0] == 3);
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_strategy_unref(st);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(assign_rejects_a_sum_of_one_value_for_all_replicas),
        cmocka_unit_test(assign_of_one_value_for_all_replicas_keeps_it_with_mean_or_first),
        cmocka_unit_test(merge_reduce_rejects_a_sum_of_one_value_for_all_replicas),
        cmocka_unit_test(a_plain_input_and_one_of_each_replica_are_two_recordings),
        cmocka_unit_test(all_reduce_of_a_literal_one_counts_the_replicas),
    };

    return cmocka_run_group_tests(tests, t_four_gpus, NULL);
}
