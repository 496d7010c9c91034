/* test/job/test_null.c -- NULL and negative numbers as arguments: every function of
 * coordinator.h, local_cluster.h and parameter_server.h returns a status that names the
 * argument, and never crashes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "rows.h"
#include "scene.h"

static void refuses(ch_status rc, const char *what, const char *is)
{
    t_refused(rc, CH_INVALID_ARGUMENT, what, is);
}

static ch_dataset *no_dataset(const ch_input_context *c, void *arg)
{
    (void)c;
    (void)arg;
    return NULL;
}

static ch_status no_values(const ch_value_context *c, void *arg, ch_tuple **out)
{
    (void)c;
    (void)arg;
    (void)out;
    return CH_OK;
}

static void coordinator_calls_reject_null(void **state)
{
    scene s;

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.workers = 2}, 1, NULL);
    refuses(ch_coordinator_new(s.st, NULL, NULL), "out", "NULL");
    refuses(ch_coordinator_new(NULL, NULL, &s.co), "parameter servers", "Default");
    refuses(ch_coordinator_join(NULL), "the coordinator", "NULL");
    refuses(ch_coordinator_join_for(NULL, 1), "the coordinator", "NULL");
    refuses(ch_coordinator_cancel(NULL), "the coordinator", "NULL");
    refuses(ch_coordinator_get_worker_stats(NULL, 0, NULL), "the coordinator", "NULL");
    ch_error_get_info(NULL); /* nothing happens */
    refuses(ch_coordinator_done(NULL, &(bool){false}), "the coordinator", "NULL");
    refuses(ch_coordinator_done(s.co, NULL), "out", "NULL");
    refuses(ch_coordinator_get_stats(NULL, &(ch_coordinator_stats){0}), "the coordinator",
            "NULL");
    refuses(ch_coordinator_get_stats(s.co, NULL), "out", "NULL");
    assert_null(ch_coordinator_ref(NULL));
    assert_null(ch_coordinator_strategy(NULL));
    ch_coordinator_unref(NULL);
    t_close(&s);
}

static void schedule_rejects_null_arguments(void **state)
{
    scene              s;
    ch_per_worker     *none = NULL;
    const ch_arguments below = {.n_each = -1}, no_list = {.n_each = 2},
                       no_entry = {.n_each = 1, .each = &none};

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.workers = 2}, 1, NULL);
    refuses(ch_coordinator_schedule(NULL, s.count, NULL, NULL), "the coordinator", "NULL");
    refuses(ch_coordinator_schedule(s.co, NULL, NULL, NULL), "the function", "NULL");
    refuses(ch_coordinator_schedule(s.co, s.count, &below, NULL), "n_each", "-1");
    refuses(ch_coordinator_schedule(s.co, s.count, &no_list, NULL), "each is NULL", "2");
    refuses(ch_coordinator_schedule(s.co, s.count, &no_entry, NULL), "each[0]", "NULL");
    t_schedule(&s, 1);
    t_ok(ch_coordinator_join(s.co));
    assert_true(t_value_of(s.n) == 1);
    t_close(&s);
}

static void fetch_rejects_null_arguments(void **state)
{
    scene      s;
    ch_remote *r[2] = {NULL};
    ch_tuple  *out[2] = {NULL};

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.workers = 2}, 1, NULL);
    t_ok(ch_coordinator_schedule(s.co, s.count, NULL, &r[0]));
    refuses(ch_remote_fetch(NULL, out), "the remote value", "NULL");
    refuses(ch_remote_fetch(r[0], NULL), "out", "NULL");
    refuses(ch_remote_fetch_for(NULL, 1, out), "the remote value", "NULL");
    refuses(ch_remote_cancel(NULL), "the remote value", "NULL");
    refuses(ch_coordinator_fetch(NULL, 1, r, out), "the coordinator", "NULL");
    refuses(ch_coordinator_fetch(s.co, -3, NULL, NULL), "n is -3", "0 or more");
    refuses(ch_coordinator_fetch(s.co, 1, NULL, out), "the list of remote values", "NULL");
    refuses(ch_coordinator_fetch(s.co, 1, r, NULL), "out", "NULL");
    refuses(ch_coordinator_fetch(s.co, 2, r, out), "remote value 1 of 2", "NULL");
    assert_null(out[0]);
    t_ok(ch_coordinator_fetch(s.co, 0, NULL, NULL));
    t_ok(ch_coordinator_fetch(s.co, 1, r, out));
    ch_tuple_unref(out[0]);
    assert_true(ch_remote_has_ended(NULL));
    assert_null(ch_remote_ref(NULL));
    ch_remote_unref(NULL);
    ch_remote_unref(r[0]);
    t_close(&s);
}

static void
per_worker_data_suggests_padded_and_ragged_batches_when_axis_1_is_unknown(void **state)
{
    scene          s;
    ch_dataset    *rows = ch_dataset_batch(ch_dataset_range(0, 10, 1), 3, NULL);
    ch_dataset    *d = ch_dataset_padded_batch(rows, 2, NULL);
    ch_per_worker *p = NULL;

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.workers = 2}, 1, NULL);
    refuses(ch_coordinator_distribute_dataset(s.co, d, &p), "axis 1 is unknown",
            "ch_dataset_padded_batch");
    ch_dataset_unref(d);
    t_close(&s);
}

static void per_worker_data_calls_reject_null(void **state)
{
    scene          s;
    ch_dataset    *d = ch_dataset_range(0, 4, 1);
    ch_per_worker *p = NULL;

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.workers = 2}, 1, NULL);
    refuses(ch_coordinator_create_per_worker_dataset(NULL, d, &p), "the coordinator", "NULL");
    refuses(ch_coordinator_create_per_worker_dataset(s.co, d, NULL), "out", "NULL");
    refuses(ch_coordinator_create_per_worker_dataset(s.co, NULL, &p), "the dataset is NULL",
            "the last error of this thread");
    assert_null(ch_dataset_range(0, 4, 0));
    refuses(ch_coordinator_distribute_dataset(s.co, NULL, &p), "the dataset is NULL", "range");
    refuses(ch_coordinator_distribute_dataset(NULL, d, &p), "the coordinator", "NULL");
    refuses(ch_coordinator_distribute_dataset(s.co, d, NULL), "out", "NULL");
    refuses(ch_coordinator_create_per_worker_dataset_from_function(NULL, no_dataset, NULL, &p),
            "the coordinator", "NULL");
    refuses(ch_coordinator_create_per_worker_dataset_from_function(s.co, NULL, NULL, &p),
            "the function", "NULL");
    refuses(
        ch_coordinator_create_per_worker_dataset_from_function(s.co, no_dataset, NULL, NULL),
        "out", "NULL");
    refuses(ch_coordinator_create_per_worker_dataset_from_function(s.co, no_dataset, NULL, &p),
            "worker 0 of", "returned NULL");
    refuses(ch_coordinator_create_per_worker_values(NULL, no_values, NULL, &p),
            "the coordinator", "NULL");
    refuses(ch_coordinator_create_per_worker_values(s.co, NULL, NULL, &p), "the function",
            "NULL");
    refuses(ch_coordinator_create_per_worker_values(s.co, no_values, NULL, NULL), "out",
            "NULL");
    refuses(ch_coordinator_create_per_worker_values(s.co, no_values, NULL, &p), "worker 0",
            "no tuple");
    refuses(ch_per_worker_iterate(NULL, &p), "the dataset", "NULL");
    assert_null(p);
    t_ok(ch_coordinator_create_per_worker_dataset(s.co, d, &p));
    refuses(ch_per_worker_iterate(p, NULL), "out", "NULL");
    ch_per_worker_unref(p);
    assert_null(ch_per_worker_ref(NULL));
    ch_per_worker_unref(NULL);
    ch_dataset_unref(d);
    t_close(&s);
}

static void parameter_server_strategy_rejects_null_and_negative_counts(void **state)
{
    scene             s;
    ch_local_cluster *cluster = NULL;
    ch_strategy      *st = NULL;
    char              text[200];

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.workers = 2}, 1, NULL);
    refuses(ch_strategy_parameter_server(NULL, NULL, &st), "the cluster", "NULL");
    refuses(ch_strategy_parameter_server(ch_local_cluster_resolver(s.cluster), NULL, NULL),
            "out", "NULL");
    refuses(ch_cluster_local(NULL, NULL), "out", "NULL");
    refuses(ch_cluster_local(&(ch_local_cluster_options){.ps = -1}, &cluster), "-1 ps", "want");
    refuses(ch_cluster_local(&(ch_local_cluster_options){.workers = -2}, &cluster),
            "-2 workers", "want");
    refuses(ch_cluster_local(&(ch_local_cluster_options){.devices = -1}, &cluster),
            "-1 devices", "want");
    refuses(ch_local_cluster_kill(NULL, "worker", 0), "kill", "the cluster");
    refuses(ch_local_cluster_kill(s.cluster, NULL, 0), "the job", "NULL");
    refuses(ch_local_cluster_kill(s.cluster, "worker", -1), "no worker", "-1");
    refuses(ch_local_cluster_kill(s.cluster, "worker", 2), "no worker", "2");
    refuses(ch_local_cluster_restart(NULL, "worker", 0), "restart", "the cluster");
    refuses(ch_local_cluster_restart(s.cluster, NULL, 0), "the job", "NULL");
    refuses(ch_local_cluster_restart(s.cluster, "ps", 7), "no ps", "7");
    refuses(ch_local_cluster_add_worker(NULL, NULL), "add_worker", "the cluster");
    assert_true(ch_strategy_print_placement(s.st, NULL, 0) > 0);
    assert_true(ch_strategy_print_placement(NULL, text, sizeof(text)) > 0);
    t_close(&s);
}

static void var_slice_and_lookup_reject_null(void **state)
{
    scene          s;
    ch_tensor     *t = NULL, *ids = t_ids(ch_shape_of(1), (int64_t[]){0});
    ch_var        *v = NULL;
    ch_tensor_spec of = {.name = "v", .dtype = CH_F32, .shape = ch_shape_of(4)};
    ch_partitioner p = ch_partitioner_fixed(2), below = ch_partitioner_fixed(-2);
    ch_layout      layout = {.n_copies = 0};

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.workers = 2}, 1, NULL);
    t_ok(ch_var_new(s.st, &(ch_var_spec){.name = "v", .shape = ch_shape_of(4)}, &v));
    refuses(ch_var_slice(NULL, 0, 1, 1, &t), "the variable", "NULL");
    refuses(ch_var_slice(v, 0, 1, 1, NULL), "out", "NULL");
    refuses(ch_var_lookup(NULL, ids, &t), "the variable", "NULL");
    refuses(ch_var_lookup(v, NULL, &t), "ids", "NULL");
    refuses(ch_var_lookup(v, ids, NULL), "out", "NULL");
    refuses(ch_var_row(NULL, 0, &t), "the variable", "NULL");
    refuses(ch_var_row(v, 0, NULL), "out", "NULL");
    refuses(ch_partitioner_divide(&p, NULL, &layout), "spec", "NULL");
    refuses(ch_partitioner_divide(&p, &of, NULL), "out", "NULL");
    refuses(ch_partitioner_divide(&below, &of, &layout), "v", "-2");
    assert_null(t);
    ch_tensor_unref(ids);
    ch_var_unref(v);
    t_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(coordinator_calls_reject_null),
        cmocka_unit_test(schedule_rejects_null_arguments),
        cmocka_unit_test(fetch_rejects_null_arguments),
        cmocka_unit_test(per_worker_data_calls_reject_null),
        cmocka_unit_test(
            per_worker_data_suggests_padded_and_ragged_batches_when_axis_1_is_unknown),
        cmocka_unit_test(parameter_server_strategy_rejects_null_and_negative_counts),
        cmocka_unit_test(var_slice_and_lookup_reject_null),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
