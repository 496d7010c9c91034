/* test/job/test_parameter_server.c -- the parameter-server strategy over a local cluster.
 *
 * Small programs schedule steps, join and fetch results. The tasks of the cluster run on
 * threads of this process.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

#include <string.h>

typedef struct counting {
    ch_var *n, *rows;
} counting;

static void count_rows(ch_step *s, void *arg)
{
    counting *c = arg;
    ch_node  *x = ch_step_in(s, 0);

    ch_var_assign_add(s, c->n, ch_number(s, 1));
    ch_var_assign_add(s, c->rows, ch_cast(ch_rows(x), CH_F32));
    ch_step_out(s, "n", ch_var_read(s, c->n));
}

static void parameter_server_step_updates_variables_on_servers(void **state)
{
    ch_strategy *st = t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = 2}, NULL, NULL);
    counting     c = {t_var_in(st, "n", 0), t_var_in(st, "rows", 0)};
    ch_function *f = NULL;
    ch_tuple    *in = t_tuple(1, (ch_tensor *[]){t_noise(ch_shape_of(3, 2), 1)}), *out = NULL;

    (void)state;
    t_ok(ch_function_new("count", count_rows, &c, &f));
    for (int i = 0; i < 10; i++) {
        t_ok(ch_strategy_run(st, f, in, &out));
        assert_true(*(const float *)ch_tensor_data(ch_value_at(ch_tuple_get(out, "n"), 0)) ==
                    i + 1);
        ch_tuple_unref(out);
    }
    assert_true(t_value_of(c.n) == 10);
    assert_true(t_value_of(c.rows) == 30);
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_var_unref(c.n);
    ch_var_unref(c.rows);
    ch_strategy_unref(st);
}

/* Tasks share no memory: a program may write to a result without changing a variable. */
static void step_result_is_a_copy_that_the_program_may_write(void **state)
{
    ch_strategy *st = t_cluster(&(ch_local_cluster_options){.ps = 1}, NULL, NULL);
    counting     c = {t_var_in(st, "n", 0), t_var_in(st, "rows", 0)};
    ch_function *f = t_function(count_rows, &c);
    ch_tuple    *in = t_tuple(1, (ch_tensor *[]){t_noise(ch_shape_of(3, 2), 1)}), *out = NULL;

    (void)state;
    for (int i = 1; i <= 3; i++) {
        t_ok(ch_strategy_run(st, f, in, &out));
        *(float *)ch_tensor_data_mut(ch_value_at(ch_tuple_get(out, "n"), 0)) = 42;
        ch_tuple_unref(out);
        assert_true(t_value_of(c.n) == i);
    }
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_var_unref(c.n);
    ch_var_unref(c.rows);
    ch_strategy_unref(st);
}

/* The program runs three epochs of four steps. */
static void parameter_server_program_counts_steps_of_three_epochs(void **state)
{
    ch_strategy *st = t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = 3}, NULL, NULL);
    ch_coordinator *co = NULL;
    ch_per_worker  *data = NULL;
    ch_remote      *r = NULL;
    ch_tuple    *in = t_tuple(1, (ch_tensor *[]){t_noise(ch_shape_of(2, 1), 1)}), *out = NULL;
    counting     c = {t_var_in(st, "n", 0), t_var_in(st, "rows", 0)};
    ch_function *f = NULL;
    ch_dataset *d = ch_dataset_repeat(ch_dataset_batch(ch_dataset_range(0, 8, 1), 2, NULL), -1);

    (void)state;
    t_ok(ch_coordinator_new(st, NULL, &co));
    t_ok(ch_function_new("count", count_rows, &c, &f));
    t_ok(ch_coordinator_schedule(co, f, &(ch_arguments){.in = in}, &r));
    ch_remote_unref(ch_remote_ref(r)); /* another reference keeps the object alive */
    t_ok(ch_remote_fetch(r, &out));
    ch_coordinator_unref(ch_coordinator_ref(co));
    t_ok(ch_coordinator_create_per_worker_dataset(co, d, &data));
    ch_dataset_unref(d);
    for (int epoch = 1; epoch <= 3; epoch++) {
        ch_per_worker *it = NULL;

        t_ok(ch_per_worker_iterate(data, &it));
        ch_per_worker_unref(ch_per_worker_ref(it));
        for (int i = 0; i < 4; i++)
            t_ok(ch_coordinator_schedule(co, f, &(ch_arguments){.n_each = 1, .each = &it},
                                         NULL));
        t_ok(ch_coordinator_join(co));
        assert_true(t_value_of(c.rows) == 2 + 8 * epoch);
        assert_true(t_value_of(c.n) == 1 + 4 * epoch);
        ch_per_worker_unref(it);
    }
    ch_tuple_unref(in);
    ch_tuple_unref(out);
    ch_remote_unref(r);
    ch_per_worker_unref(data);
    ch_function_unref(f);
    ch_var_unref(c.n);
    ch_var_unref(c.rows);
    ch_coordinator_unref(co);
    ch_strategy_unref(st);
}

enum { ROWS = 4 };

static ch_tensor *t_full(double value)
{
    ch_tensor *t = NULL;

    t_ok(ch_tensor_new(CH_F32, ch_shape_of(ROWS), &t));
    for (int64_t i = 0; i < ROWS; i++)
        t_ok(ch_tensor_set(t, &i, value));
    return t;
}

static ch_var *t_zeros(ch_strategy *st, const char *name)
{
    ch_var *v = NULL;

    t_ok(ch_var_new(st, &(ch_var_spec){.name = name, .shape = ch_shape_of(ROWS)}, &v));
    return v;
}

static void t_all_are(ch_var *v, double want)
{
    ch_tensor *t = NULL;
    double     x = 0;

    t_ok(ch_var_get(v, &t));
    for (int64_t i = 0; i < ROWS; i++) {
        t_ok(ch_tensor_get(t, &i, &x));
        assert_true(x == want);
    }
    ch_tensor_unref(t);
}

static void replace(ch_step *s, void *var)
{
    ch_step_out(s, "old", ch_var_read(s, var));
    ch_var_assign(s, var, ch_step_in(s, 0));
}

/* The read and the assignment may be sent in the same request. */
static void a_step_reads_the_old_value_of_a_variable_that_it_assigns(void **state)
{
    ch_strategy *st = t_cluster(NULL, NULL, NULL);
    ch_var      *v = t_zeros(st, "v");
    ch_function *f = t_function(replace, v);

    (void)state;
    ch_function_static_rows(f);
    for (int i = 1; i <= 4; i++) {
        ch_tuple *in = t_tuple(1, (ch_tensor *[]){t_full(i)}), *out = NULL;

        t_ok(ch_strategy_run(st, f, in, &out));
        assert_true(t_floats(out, 0, 0)[0] == (float)(i - 1));
        ch_tuple_unref(in);
        ch_tuple_unref(out);
    }
    ch_function_unref(f);
    ch_var_unref(v);
    ch_strategy_unref(st);
}

/* The last two values that a step received, and the sum of the values before them. */
typedef struct recent {
    ch_var *newest, *older, *sum;
} recent;

static void shift(ch_step *s, void *arg)
{
    recent *r = arg;

    ch_var_assign_add(s, r->sum, ch_var_read(s, r->older));
    ch_var_assign(s, r->older, ch_var_read(s, r->newest));
    ch_var_assign(s, r->newest, ch_step_in(s, 0));
}

static void t_shifts(const ch_parameter_server_options *opt)
{
    ch_strategy *st = t_cluster(&(ch_local_cluster_options){.ps = 2}, opt, NULL);
    recent       r = {t_zeros(st, "newest"), t_zeros(st, "older"), t_zeros(st, "sum")};
    ch_function *f = t_function(shift, &r);

    ch_function_static_rows(f);
    for (int i = 1; i <= 4; i++) {
        ch_tuple *in = t_tuple(1, (ch_tensor *[]){t_full(i)});

        t_ok(ch_strategy_run(st, f, in, NULL));
        ch_tuple_unref(in);
    }
    t_all_are(r.newest, 4);
    t_all_are(r.older, 3);
    t_all_are(r.sum, 3);
    ch_function_unref(f);
    ch_var_unref(r.newest);
    ch_var_unref(r.older);
    ch_var_unref(r.sum);
    ch_strategy_unref(st);
}

static void a_server_reads_a_variable_before_the_step_writes_it(void **state)
{
    (void)state;
    t_shifts(NULL);
    t_shifts(&(ch_parameter_server_options){.partitioner = ch_partitioner_fixed(2)});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameter_server_step_updates_variables_on_servers),
        cmocka_unit_test(step_result_is_a_copy_that_the_program_may_write),
        cmocka_unit_test(parameter_server_program_counts_steps_of_three_epochs),
        cmocka_unit_test(a_step_reads_the_old_value_of_a_variable_that_it_assigns),
        cmocka_unit_test(a_server_reads_a_variable_before_the_step_writes_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
