/* test/job/test_worker_steps.c -- run, reduce, gather and scopes of the parameter-server
 * strategy.
 *
 * ch_strategy_run runs a step on a worker and waits for it. The tests check its results for
 * workers with a single device and with two devices.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "rows.h"
#include "scene.h"

static const ch_local_cluster_options two_replicas = {.ps = 2, .workers = 3, .devices = 2};

static void replica_step(ch_step *s, void *arg)
{
    (void)arg;
    assert_int_equal(ch_context_now(), CH_CONTEXT_REPLICA);
    ch_step_out(s, "id", ch_cast(ch_step_replica_id(s), CH_F32));
    ch_step_out(s, "n", ch_step_replica_count(s));
}

static void count_warnings(const ch_log_record *r, void *arg)
{
    (void)r;
    *(int *)arg += 1;
}

/* RR-1, PS-12: no coordinator is needed, and there is no warning. A worker runs the step. If
 * there is no worker, the call reports that none is ready. */
static void strategy_run_uses_a_worker_without_a_coordinator(void **state)
{
    scene        s;
    ch_function *f = t_function(replica_step, NULL);
    ch_tuple    *out = NULL;
    int          n_warnings = 0;

    (void)state;
    t_stage(&s, &(ch_local_cluster_options){.ps = 1, .workers = 2}, 1);
    t_ok(ch_strategy_parameter_server(ch_local_cluster_resolver(s.cluster), NULL, &s.st));
    ch_log_set_sink(count_warnings, &n_warnings, CH_LOG_WARNING);
    for (int i = 0; i < 3; i++) {
        t_ok(ch_strategy_run(s.st, f, NULL, &out));
        assert_true(t_floats(out, 0, 0)[0] == 0);
        ch_tuple_unref(out);
    }
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
    assert_int_equal(n_warnings, 0);
    t_ok(ch_local_cluster_kill(s.cluster, "worker", 0));
    t_ok(ch_strategy_run(s.st, f, NULL, NULL)); /* now on the other worker */
    t_ok(ch_local_cluster_kill(s.cluster, "worker", 1));
    t_refused(ch_strategy_run(s.st, f, NULL, NULL), CH_DEADLINE_EXCEEDED, "0 of 2 workers", "");
    ch_function_unref(f);
    t_close(&s);
}

/* RR-2: the results of a single replica are plain tensors. */
static void worker_with_one_device_returns_plain_results(void **state)
{
    ch_strategy *st = t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = 2}, NULL, NULL);
    ch_function *f = t_function(replica_step, NULL);
    ch_tuple    *out = NULL;

    (void)state;
    t_ok(ch_strategy_run(st, f, NULL, &out));
    assert_int_equal(ch_value_count(ch_tuple_at(out, 0)), 1);
    assert_int_equal(ch_value_kind_of(ch_tuple_at(out, 0)), CH_PLAIN);
    assert_true(t_floats(out, 0, 0)[0] == 0);
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_strategy_unref(st);
}

/* RR-2, RR-5, CX-3: once for each replica of a single worker; the replicas are numbered within
 * the worker. */
static void a_step_runs_once_on_each_replica_of_one_worker(void **state)
{
    ch_strategy *st = t_cluster(&two_replicas, NULL, NULL);
    ch_function *f = t_function(replica_step, NULL);
    ch_tuple    *out = NULL;

    (void)state;
    t_ok(ch_strategy_run(st, f, NULL, &out));
    assert_int_equal(ch_value_kind_of(ch_tuple_get(out, "id")), CH_PER_REPLICA);
    assert_int_equal(ch_value_count(ch_tuple_get(out, "id")), 2);
    for (int i = 0; i < 2; i++) {
        assert_true(t_floats(out, 0, i)[0] == i);
        assert_int_equal(
            *(const int32_t *)ch_tensor_data(ch_value_at(ch_tuple_get(out, "n"), i)), 2);
    }
    ch_tuple_unref(out);
    ch_function_unref(f);
    ch_strategy_unref(st);
}

static void twice_step(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "x", ch_mul(ch_number(s, 2), ch_step_in(s, 0)));
}

/* Returns the results of a step that doubles per-replica inputs: n0 and n1 numbers from 0
 * on. */
static ch_tuple *doubled(ch_strategy *st, int n0, int n1)
{
    ch_function *f = t_function(twice_step, NULL);
    ch_tensor   *t[] = {t_counted(ch_shape_of(n0)), t_counted(ch_shape_of(n1))};
    ch_value    *v = NULL;
    ch_tuple    *in = NULL, *out = NULL;

    for (int i = 0; i < n1; i++)
        ((float *)ch_tensor_data_mut(t[1]))[i] += (float)n0;
    t_ok(ch_value_new(CH_PER_REPLICA, 2, t, &v));
    t_ok(ch_tuple_new(1, &v, NULL, &in));
    t_ok(ch_strategy_run(st, f, in, &out));
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    ch_value_unref(v);
    ch_tuple_unref(in);
    ch_function_unref(f);
    return out;
}

static ch_tensor *reduced(ch_strategy *st, ch_reduce_op op, const ch_tuple *t, int axis)
{
    ch_tensor *out = NULL;

    t_ok(ch_strategy_reduce(st, op, ch_tuple_at(t, 0), axis, &out));
    return out;
}

/* RR-3, RR-4, CX-7: [0,1,2,3] and [4,5,6,7], doubled by the step; reduced over the replicas of
 * the worker. */
static void results_are_reduced_over_the_replicas_of_a_worker(void **state)
{
    ch_strategy *st = t_cluster(&two_replicas, NULL, NULL);
    ch_tuple    *even = doubled(st, 4, 4), *uneven = doubled(st, 4, 2);
    ch_tensor   *t = NULL;
    ch_reduce_op op = CH_SUM;

    (void)state;
    t_same(reduced(st, CH_SUM, even, CH_NO_AXIS), ch_shape_of(4), (float[]){8, 12, 16, 20});
    t_same(reduced(st, CH_MEAN, even, CH_NO_AXIS), ch_shape_of(4), (float[]){4, 6, 8, 10});
    t_same(reduced(st, CH_SUM, even, 0), ch_shape_scalar(), (float[]){56});
    t_same(reduced(st, CH_MEAN, uneven, 0), ch_shape_scalar(), (float[]){5});
    t_refused(ch_strategy_reduce(st, CH_SUM, ch_tuple_at(uneven, 0), CH_NO_AXIS, &t),
              CH_INVALID_ARGUMENT, "4", "2");
    assert_int_equal(ch_strategy_reduce(st, CH_SUM, ch_tuple_at(even, 0), 1, &t),
                     CH_INVALID_ARGUMENT);
    t_ok(ch_reduce_op_parse("Mean", &op));
    assert_int_equal(op, CH_MEAN);
    assert_int_equal(ch_reduce_op_parse("max", &op), CH_INVALID_ARGUMENT);
    ch_tuple_unref(even);
    ch_tuple_unref(uneven);
    ch_strategy_unref(st);
}

/* RR-3, RR-6: the sum, mean and gathering of a single replica's value are the value itself. */
static void reduce_and_gather_return_a_plain_value_of_one_replica(void **state)
{
    ch_strategy *st = t_cluster(&(ch_local_cluster_options){.workers = 2}, NULL, NULL);
    ch_tuple    *in = t_tuple(1, (ch_tensor *[]){t_counted(ch_shape_of(2))});
    ch_tensor   *t = NULL;

    (void)state;
    t_same(reduced(st, CH_SUM, in, CH_NO_AXIS), ch_shape_of(2), (float[]){0, 1});
    t_same(reduced(st, CH_MEAN, in, CH_NO_AXIS), ch_shape_of(2), (float[]){0, 1});
    t_ok(ch_strategy_gather(st, ch_tuple_at(in, 0), 0, &t));
    t_same(t, ch_shape_of(2), (float[]){0, 1});
    ch_tuple_unref(in);
    ch_strategy_unref(st);
}

/* RR-6, CX-5 */
static void results_of_a_worker_are_gathered_and_split_by_replica(void **state)
{
    ch_strategy *st = t_cluster(&two_replicas, NULL, NULL);
    ch_tuple    *x = doubled(st, 2, 1), *local[2] = {NULL};
    ch_tensor   *t = NULL;

    (void)state;
    t_ok(ch_strategy_gather(st, ch_tuple_at(x, 0), 0, &t));
    t_same(t, ch_shape_of(3), (float[]){0, 2, 4});
    assert_int_equal(ch_strategy_local_replicas(st), 2);
    t_ok(ch_strategy_local_results(st, x, 2, local));
    assert_true(t_floats(local[0], 0, 0)[1] == 2);
    assert_true(t_floats(local[1], 0, 0)[0] == 4);
    ch_tuple_unref(local[0]);
    ch_tuple_unref(local[1]);
    ch_tuple_unref(x);
    ch_strategy_unref(st);
}

static ch_status number_of(const ch_value_context *c, void *arg, ch_tuple **out)
{
    ch_tensor *t =
        t_f32(ch_shape_scalar(), (float[]){(float)(10 * c->n_replicas + c->replica)});

    ++*(int *)arg;
    *out = t_tuple(1, &t);
    return CH_OK;
}

/* CX-6: called once for each replica. */
static void value_function_is_called_for_each_replica_of_a_worker(void **state)
{
    ch_strategy *two = t_cluster(&two_replicas, NULL, NULL), *one = t_cluster(NULL, NULL, NULL);
    ch_tuple    *v = NULL;
    int          n_calls = 0;

    (void)state;
    t_ok(ch_strategy_distribute_values_from_function(two, number_of, &n_calls, &v));
    assert_int_equal(n_calls, 2);
    assert_true(t_floats(v, 0, 0)[0] == 20);
    assert_true(t_floats(v, 0, 1)[0] == 21);
    ch_tuple_unref(v);
    t_ok(ch_strategy_distribute_values_from_function(one, number_of, &n_calls, &v));
    assert_int_equal(n_calls, 3);
    assert_int_equal(ch_value_kind_of(ch_tuple_at(v, 0)), CH_PER_REPLICA);
    assert_int_equal(ch_value_count(ch_tuple_at(v, 0)), 1);
    assert_true(t_floats(v, 0, 0)[0] == 10);
    ch_tuple_unref(v);
    ch_strategy_unref(one);
    ch_strategy_unref(two);
}

/* CX-1, CX-2, CX-4 */
static void parameter_server_scope_behaves_like_that_of_other_strategies(void **state)
{
    ch_strategy *st = t_cluster(NULL, NULL, NULL), *other = NULL;
    ch_function *f = t_function(replica_step, NULL);
    ch_var      *v, *w = NULL;
    ch_tensor   *two = t_f32(ch_shape_scalar(), (float[]){2});

    (void)state;
    assert_int_equal(ch_context_now(), CH_CONTEXT_DEFAULT);
    t_ok(ch_strategy_enter(st));
    assert_ptr_equal(ch_strategy_current(), st);
    assert_int_equal(ch_context_now(), CH_CONTEXT_CROSS);
    v = t_var_in(NULL, "v", 1);
    t_ok(ch_strategy_one_device("CPU:0", &other));
    assert_int_equal(ch_strategy_enter(other), CH_FAILED_PRECONDITION);
    ch_strategy_leave();
    t_ok(ch_strategy_run(st, f, NULL, NULL)); /* a run needs no scope */
    t_ok(ch_var_set(v, two));                 /* ch_var_set needs none either */
    assert_true(t_value_of(v) == 2);
    t_ok(ch_strategy_enter(other));
    assert_int_equal(ch_var_new(st, &(ch_var_spec){.initial = two}, &w),
                     CH_FAILED_PRECONDITION);
    assert_int_equal(ch_var_set(v, two), CH_FAILED_PRECONDITION);
    ch_strategy_leave();
    ch_tensor_unref(two);
    ch_function_unref(f);
    ch_var_unref(v);
    ch_strategy_unref(other);
    ch_strategy_unref(st);
}

static void rows_step(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "rows", ch_cast(ch_rows(ch_step_in(s, 0)), CH_F32));
    ch_step_out(s, "first", ch_cast(ch_sum_all(ch_step_in(s, 0)), CH_F32));
}

/* RR-7, RR-9, CX-9: the program reads data and workers run steps on it; a batch of 5 over two
 * replicas is 3 and 2, of 4 over a single replica is 4. */
static void a_loop_over_distributed_data_runs_on_workers(void **state)
{
    ch_strategy *two = t_cluster(&two_replicas, NULL, NULL), *one = t_cluster(NULL, NULL, NULL);
    ch_function *f = t_function(rows_step, NULL);
    ch_dataset  *d = ch_dataset_batch(ch_dataset_range(1, 11, 1), 5, NULL),
               *plain = ch_dataset_range(0, 4, 1);
    ch_iterator *it = NULL;
    ch_tuple    *batch = NULL, *out = NULL;

    (void)state;
    t_ok(ch_strategy_distribute_dataset(two, d, NULL, &it));
    t_ok(ch_iterator_next(it, &batch));
    t_ok(ch_strategy_run(two, f, batch, &out));
    assert_true(t_floats(out, 0, 0)[0] == 3 && t_floats(out, 0, 1)[0] == 2);
    assert_true(t_floats(out, 1, 0)[0] == 6 && t_floats(out, 1, 1)[0] == 9);
    ch_tuple_unref(out);
    ch_tuple_unref(batch);
    ch_iterator_unref(it);
    assert_int_equal(ch_strategy_distribute_dataset(two, plain, NULL, &it),
                     CH_INVALID_ARGUMENT);
    ch_dataset_unref(d);
    d = ch_dataset_batch(ch_dataset_range(1, 11, 1), 4, NULL);
    t_ok(ch_strategy_distribute_dataset(one, d, NULL, &it));
    t_ok(ch_iterator_next(it, &batch));
    t_ok(ch_strategy_run(one, f, batch, &out));
    assert_true(t_floats(out, 0, 0)[0] == 4 && t_floats(out, 1, 0)[0] == 10);
    ch_tuple_unref(out);
    ch_tuple_unref(batch);
    ch_iterator_unref(it);
    ch_dataset_unref(plain);
    ch_dataset_unref(d);
    ch_function_unref(f);
    ch_strategy_unref(one);
    ch_strategy_unref(two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strategy_run_uses_a_worker_without_a_coordinator),
        cmocka_unit_test(worker_with_one_device_returns_plain_results),
        cmocka_unit_test(a_step_runs_once_on_each_replica_of_one_worker),
        cmocka_unit_test(results_are_reduced_over_the_replicas_of_a_worker),
        cmocka_unit_test(reduce_and_gather_return_a_plain_value_of_one_replica),
        cmocka_unit_test(results_of_a_worker_are_gathered_and_split_by_replica),
        cmocka_unit_test(value_function_is_called_for_each_replica_of_a_worker),
        cmocka_unit_test(parameter_server_scope_behaves_like_that_of_other_strategies),
        cmocka_unit_test(a_loop_over_distributed_data_runs_on_workers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
