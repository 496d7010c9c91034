/* test/job/test_placement.c -- creation of the parameter-server strategy, placement of
 * variables and shards, and initial values.
 *
 * The tests check which server has each variable and shard, the printed placement table, the
 * calls of partitioners, and the memory that large tables need.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "rows.h"
#include "scene.h"

/* ---- creation ---- */

static ch_status strategy_of(const char *cluster, const ch_simple_options *opt)
{
    ch_cluster  *c = NULL;
    ch_resolver *r = NULL;
    ch_strategy *st = NULL;
    ch_status    rc;

    t_ok(ch_cluster_parse(cluster, &c));
    t_ok(ch_resolver_simple(c, opt, &r));
    rc = ch_strategy_parameter_server(r, NULL, &st);
    assert_null(st);
    ch_resolver_unref(r);
    ch_cluster_unref(c);
    return rc;
}

/* PS-1, PS-2: the faults are reported in this order. */
static void parameter_server_strategy_rejects_invalid_clusters_before_any_call(void **state)
{
    const ch_status no = CH_INVALID_ARGUMENT;
    ch_strategy    *st = NULL;

    (void)state;
    t_refused(strategy_of("{}", NULL), no, "parameter-server strategy", "non-empty");
    t_refused(strategy_of("{}", NULL), no, "COHORT_CLUSTER", "ch_cluster_local");
    t_refused(strategy_of("{\"other\": [\"a:1\"]}", NULL), no, "Disallowed", "other");
    t_refused(strategy_of("{\"chief\": [\"a:1\", \"b:1\"]}", NULL), no, "at most one", "chief");
    t_refused(strategy_of("{\"chief\": [\"a:1\"]}", NULL), no, "at least one", "ps");
    t_refused(strategy_of("{\"ps\": [], \"worker\": [\"a:1\"]}", NULL), no, "at least one",
              "ps");
    t_refused(strategy_of("{\"ps\": [\"a:1\"]}", NULL), no, "at least one", "worker");
    t_refused(strategy_of(
                  "{\"ps\": [\"a:1\"], \"worker\": [\"b:1\"], \"evaluator\": [\"c:1\"]}", NULL),
              CH_UNIMPLEMENTED, "other processes", "ch_cluster_local");
    t_refused(ch_strategy_parameter_server(NULL, NULL, &st), no, "cluster", "NULL");
}

/* PS-3: the coordinator is task 0 of "chief", which a local cluster has. */
static void local_cluster_coordinator_is_task_0_of_chief(void **state)
{
    ch_local_cluster *local = NULL;
    ch_resolver      *r;
    ch_cluster       *c = NULL;
    ch_strategy      *st = NULL, *second = NULL;
    char              type[32];
    int               id = -1, n = -1;

    (void)state;
    t_ok(ch_cluster_local(&(ch_local_cluster_options){.ps = 2, .workers = 3}, &local));
    r = ch_local_cluster_resolver(local);
    t_ok(ch_resolver_cluster(r, &c));
    t_ok(ch_resolver_task_type(r, type, sizeof(type)));
    t_ok(ch_resolver_task_id(r, &id));
    assert_string_equal(type, "chief");
    assert_int_equal(id, 0);
    t_ok(ch_cluster_num_tasks(c, "chief", &n));
    assert_int_equal(n, 1);
    t_ok(ch_cluster_num_tasks(c, "ps", &n));
    assert_int_equal(n, 2);
    t_ok(ch_cluster_num_tasks(c, "worker", &n));
    assert_int_equal(n, 3);
    t_ok(ch_strategy_parameter_server(r, NULL, &st));
    assert_ptr_equal(ch_strategy_resolver(st), r);
    t_refused(ch_strategy_parameter_server(r, NULL, &second), CH_FAILED_PRECONDITION, "already",
              "another cluster");
    ch_strategy_unref(st);
    ch_cluster_unref(c);
    ch_local_cluster_unref(local);
}

static void local_cluster_kill_names_the_existing_tasks_when_there_is_no_such_task(void **state)
{
    ch_local_cluster *local = NULL;

    (void)state;
    t_ok(ch_cluster_local(&(ch_local_cluster_options){.ps = 2, .workers = 3}, &local));
    t_refused(ch_local_cluster_kill(local, "workers", 0), CH_INVALID_ARGUMENT, "no workers 0",
              "ps 0 to 1 and worker 0 to 2");
    t_refused(ch_local_cluster_restart(local, "ps", 2), CH_INVALID_ARGUMENT, "no ps 2",
              "ps 0 to 1 and worker 0 to 2");
    ch_local_cluster_unref(local);
}

/* PS-4, PS-5: the constructor waits for all servers and a worker, and repeats its calls until
 * they reply, up to a limit. */
static void parameter_server_strategy_waits_for_all_servers_and_one_worker(void **state)
{
    scene s;

    (void)state;
    t_stage(&s, &(ch_local_cluster_options){.ps = 2, .workers = 2}, 1);
    t_ok(ch_local_cluster_kill(s.cluster, "ps", 1));
    t_ok(ch_local_cluster_kill(s.cluster, "worker", 0));
    t_restart_in(&s, 5000, "ps", 1);
    t_ok(ch_strategy_parameter_server(ch_local_cluster_resolver(s.cluster), NULL, &s.st));
    assert_true(ch__sim_now(s.net) >= 5000 * ms && ch__sim_now(s.net) < 6000 * ms);
    t_close(&s);

    t_stage(&s, &(ch_local_cluster_options){.ps = 2, .workers = 2}, 1);
    t_ok(ch_local_cluster_kill(s.cluster, "ps", 1));
    t_refused(ch_strategy_parameter_server(ch_local_cluster_resolver(s.cluster), NULL, &s.st),
              CH_DEADLINE_EXCEEDED, "parameter-server strategy", "no answer from ps/1: ");
    t_close(&s);

    t_stage(&s, &(ch_local_cluster_options){.ps = 2, .workers = 60}, 1);
    for (int i = 0; i < 60; i++)
        t_ok(ch_local_cluster_kill(s.cluster, "worker", i));
    t_refused(ch_strategy_parameter_server(ch_local_cluster_resolver(s.cluster), NULL, &s.st),
              CH_DEADLINE_EXCEEDED, "no answer from worker/0, worker/1, ", ", ...: ");
    t_close(&s);
}

/* PS-10, PS-11, CX-8: replicas are the devices of a worker, and workers are not counted. */
static void replicas_are_the_devices_of_one_worker(void **state)
{
    ch_strategy *st =
        t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = 3, .devices = 2}, NULL, NULL);
    ch_device *const *device = NULL;
    int               n = 0;

    (void)state;
    assert_string_equal(ch_strategy_name(st), "ParameterServer");
    assert_int_equal(ch_strategy_replicas(st), 2);
    t_ok(ch_strategy_worker_devices(st, &n, &device));
    assert_int_equal(n, 2);
    assert_string_equal(ch_device_name(device[1]), "/job:worker/replica:0/task:0/device:CPU:1");
    t_ok(ch_strategy_parameter_devices(st, &n, &device));
    assert_int_equal(n, 2);
    assert_string_equal(ch_device_name(device[1]), "/job:ps/replica:0/task:1/device:CPU:0");
    assert_true(ch_strategy_traits_of(st).is_multi_worker);
    ch_strategy_unref(st);
}

/* ---- placement ---- */

static const char *const ps_name[] = {"/job:ps/replica:0/task:0/device:CPU:0",
                                      "/job:ps/replica:0/task:1/device:CPU:0",
                                      "/job:ps/replica:0/task:2/device:CPU:0"};

static void is_on(ch_var *v, int server)
{
    assert_string_equal(ch_var_device(v), ps_name[server]);
}

/* VP-1, VP-2, 6.7.6, B19: four variables in the scope of three servers, a fifth outside of
 * it. */
static void variables_are_placed_in_turn(void **state)
{
    ch_strategy *st = t_cluster(&(ch_local_cluster_options){.ps = 3}, NULL, NULL);
    ch_var      *v[5];

    (void)state;
    v[0] = t_var_in(NULL, "v1", 0);
    t_ok(ch_strategy_enter(st));
    for (int i = 1; i < 5; i++)
        v[i] = t_var_in(NULL, "v", i);
    ch_strategy_leave();
    assert_ptr_equal(ch_var_strategy(v[0]), ch_strategy_current());
    assert_null(strstr(ch_var_device(v[0]), "/job:ps"));
    for (int i = 1; i < 5; i++) {
        is_on(v[i], (i - 1) % 3);
        assert_ptr_equal(ch_var_strategy(v[i]), st);
    }
    for (int i = 0; i < 5; i++) {
        assert_true(t_value_of(v[i]) == i);
        ch_var_unref(v[i]);
    }
    ch_strategy_unref(st);
}

static ch_status rename_it(ch_var_spec *spec, void *arg)
{
    spec->name = arg;
    return CH_OK;
}

/* VP-3: neither an entered device nor a hook changes the placement. */
static void variable_placement_on_servers_ignores_the_entered_device(void **state)
{
    static char  name[] = "renamed";
    ch_strategy *st = t_cluster(&(ch_local_cluster_options){.ps = 2}, NULL, NULL);
    ch_device   *host = NULL;
    ch_var      *v, *w;

    (void)state;
    t_ok(ch_var_creator_enter(rename_it, name));
    t_ok(ch_strategy_enter(st));
    t_ok(ch_device_find("CPU:0", &host));
    t_ok(ch_device_enter(host));
    v = t_var_in(NULL, "v", 1);
    ch_device_leave();
    w = t_var_in(NULL, "w", 1);
    ch_strategy_leave();
    ch_var_creator_leave();
    is_on(v, 0);
    is_on(w, 1);
    assert_string_equal(ch_var_name(v), "renamed");
    assert_string_equal(ch_var_name(w), "renamed_1");
    ch_var_unref(v);
    ch_var_unref(w);
    ch_strategy_unref(st);
}

static ch_var *beside(ch_strategy *st, ch_var *v, ch_shape shape)
{
    ch_var *made;

    t_ok(ch_strategy_enter(st));
    t_ok(ch_colocate_enter(st, v));
    made = t_table(NULL, "beside", shape);
    ch_colocate_leave();
    ch_strategy_leave();
    return made;
}

/* VP-4, PT-4, 6.7.6, B23: scalars, variables with a single partition, and variables that are
 * colocated with a shard are not sharded. */
static void colocated_variable_is_on_the_server_of_the_other(void **state)
{
    ch_strategy *st = t_in_shards(2);
    ch_var *row = t_table(st, "row", ch_shape_of(1, 4)), *scalar = t_var_in(st, "scalar", 1);
    ch_var *w = t_table(st, "w", ch_shape_of(6, 2));
    ch_var *own = beside(st, ch_var_shard(w, 0), ch_shape_of(5, 5));
    ch_var *other = beside(st, ch_var_shard(w, 1), ch_shape_of(5, 5));
    ch_var *next = t_var_in(st, "next", 1);

    (void)state;
    is_on(row, 0);
    is_on(scalar, 1);
    is_on(ch_var_shard(w, 0), 0);
    is_on(ch_var_shard(w, 1), 1);
    is_on(own, 0);
    is_on(other, 1);
    is_on(next, 0); /* placed as if the two colocated variables did not exist */
    assert_int_equal(ch_var_shards(row), 1);
    assert_int_equal(ch_var_shards(scalar), 1);
    assert_int_equal(ch_var_shards(own), 1);
    assert_ptr_equal(ch_var_shard(row, 0), row);
    ch_var_unref(row);
    ch_var_unref(scalar);
    ch_var_unref(w);
    ch_var_unref(own);
    ch_var_unref(other);
    ch_var_unref(next);
    ch_strategy_unref(st);
}

typedef struct training {
    ch_optimizer *optimizer;
    ch_var       *w;
} training;

static void train_step(ch_step *s, void *arg)
{
    const training *t = arg;

    ch_optimizer_minimize(t->optimizer, s, ch_sum_all(ch_square(ch_var_read(s, t->w))), 1,
                          (ch_var *[]){t->w});
}

/* VP-6: slots are created when a step is first scheduled, each on the server of its variable,
 * shard by shard. */
static void optimizer_slots_are_placed_beside_their_variable_shards(void **state)
{
    ch_strategy    *st = t_in_shards(2);
    ch_coordinator *co = NULL;
    training        t = {NULL, t_table(st, "w", ch_shape_of(6, 2))};
    ch_function    *f = t_function(train_step, &t);
    ch_var         *m;

    (void)state;
    t_ok(ch_coordinator_new(st, NULL, &co));
    t_ok(ch_optimizer_adam(0.1, NULL, NULL, &t.optimizer));
    t_ok(ch_coordinator_schedule(co, f, NULL, NULL));
    t_ok(ch_coordinator_join(co));
    m = ch_optimizer_slot(t.optimizer, t.w, "m");
    assert_non_null(m);
    assert_int_equal(ch_var_shards(m), 2);
    for (int i = 0; i < 2; i++)
        assert_string_equal(ch_var_device(ch_var_shard(m, i)),
                            ch_var_device(ch_var_shard(t.w, i)));
    ch_optimizer_unref(t.optimizer);
    ch_function_unref(f);
    ch_var_unref(t.w);
    ch_coordinator_unref(co);
    ch_strategy_unref(st);
}

static void table_of(char *text, size_t size, ch_placement placement)
{
    ch_strategy *st =
        t_cluster(&(ch_local_cluster_options){.ps = 2},
                  &(ch_parameter_server_options){.partitioner = ch_partitioner_fixed(3),
                                                 .placement = placement},
                  NULL);
    ch_var *v[] = {t_table(st, "a", ch_shape_of(7)), t_table(st, "b", ch_shape_of(100, 2)),
                   t_table(st, "c", ch_shape_of(1))};

    ch_strategy_print_placement(st, text, size);
    for (int i = 0; i < 3; i++)
        ch_var_unref(v[i]);
    ch_strategy_unref(st);
}

/* Each column of the table begins at the same position in every row, however long the names
 * are. */
static void placement_table_keeps_its_columns_when_names_are_long(void **state)
{
    ch_strategy *st = t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = 1}, NULL, NULL);
    ch_var      *v[2] = {
             t_table(st, "encoder/block_11/attention/output_projection/kernel", ch_shape_of(3, 2)),
             t_table(st, "b", ch_shape_of(2))};
    char   text[2048];
    size_t where = 0;

    (void)state;
    ch_strategy_print_placement(st, text, sizeof(text));
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        const char *at;

        *end = '\0';
        at = strstr(line, "/job:") != NULL ? strstr(line, "/job:") : strstr(line, "where");
        assert_non_null(at);
        where = where == 0 ? (size_t)(at - line) : where;
        assert_int_equal(at - line, where);
    }
    assert_true(where > 0);
    ch_var_unref(v[0]);
    ch_var_unref(v[1]);
    ch_strategy_unref(st);
}

/* VP-7, PS-8: the placement is the same each time and can be printed. Round robin of Fixed(3) over two
 * servers: 0, 1, 0, then 1, 0, 1. */
static void placement_is_the_same_each_time_and_can_be_printed(void **state)
{
    static const char want[] =
        "variable                         is                              bytes  where\n"
        "a/part_0                         f32(3,)                            12  "
        "/job:ps/replica:0/task:0/device:CPU:0\n"
        "a/part_1                         f32(2,)                             8  "
        "/job:ps/replica:0/task:1/device:CPU:0\n"
        "a/part_2                         f32(2,)                             8  "
        "/job:ps/replica:0/task:0/device:CPU:0\n"
        "b/part_0                         f32(34, 2)                        272  "
        "/job:ps/replica:0/task:1/device:CPU:0\n"
        "b/part_1                         f32(33, 2)                        264  "
        "/job:ps/replica:0/task:0/device:CPU:0\n"
        "b/part_2                         f32(33, 2)                        264  "
        "/job:ps/replica:0/task:1/device:CPU:0\n"
        "c                                f32(1,)                             4  "
        "/job:ps/replica:0/task:0/device:CPU:0\n"
        "                                 in all                            288  "
        "/job:ps/replica:0/task:0/device:CPU:0\n"
        "                                 in all                            544  "
        "/job:ps/replica:0/task:1/device:CPU:0\n";
    char text[2048], again[2048];

    (void)state;
    table_of(text, sizeof(text), CH_PLACE_ROUND_ROBIN);
    assert_string_equal(text, want);
    table_of(text, sizeof(text), CH_PLACE_BY_BYTES);
    table_of(again, sizeof(again), CH_PLACE_BY_BYTES);
    assert_string_equal(text, again);
}

/* By bytes, not by count; the shards of a variable are on different servers. */
static void placement_by_bytes_chooses_the_server_with_the_fewest_bytes(void **state)
{
    ch_strategy *st =
        t_cluster(&(ch_local_cluster_options){.ps = 3},
                  &(ch_parameter_server_options){.placement = CH_PLACE_BY_BYTES}, NULL);
    ch_var *large = t_table(st, "large", ch_shape_of(1000)), *v[4];

    (void)state;
    is_on(large, 0);
    for (int i = 0; i < 4; i++) {
        v[i] = t_table(st, "small", ch_shape_of(10));
        is_on(v[i], 1 + i % 2);
    }
    for (int i = 0; i < 4; i++)
        ch_var_unref(v[i]);
    ch_var_unref(large);
    v[0] = t_table(st, "small", ch_shape_of(10));
    is_on(v[0], 0); /* freed variables do not count */
    ch_var_unref(v[0]);
    ch_strategy_unref(st);
}

/* ---- partitioners ---- */

typedef struct questions {
    int            n;
    ch_tensor_spec last;
} questions;

static ch_status ask_me(void *arg, const ch_tensor_spec *of, int64_t *parts)
{
    questions *q = arg;

    q->n++;
    q->last = *of;
    parts[1] = 2;
    return CH_OK;
}

/* PT-1, PT-4: called once for each variable, with its shape and dtype; not called for scalars
 * and colocated variables. */
static void partitioner_is_called_once_for_each_variable(void **state)
{
    questions    q = {0};
    ch_strategy *st = t_cluster(
        &(ch_local_cluster_options){.ps = 2},
        &(ch_parameter_server_options){.partitioner = {.fn = ask_me, .arg = &q}}, NULL);
    ch_var *v = t_table(st, "w", ch_shape_of(3, 4)), *scalar = t_var_in(st, "s", 1), *near;

    (void)state;
    assert_int_equal(q.n, 1);
    assert_int_equal(q.last.dtype, CH_F32);
    assert_true(ch_shape_equal(q.last.shape, ch_shape_of(3, 4)));
    assert_int_equal(ch_var_shards(v), 2);
    assert_true(ch_shape_equal(ch_var_shape(ch_var_shard(v, 1)), ch_shape_of(3, 2)));
    t_var_is(ch_var_shard(v, 1), (float[]){2, 3, 6, 7, 10, 11});
    near = beside(st, v, ch_shape_of(3, 4));
    assert_int_equal(q.n, 1);
    assert_int_equal(ch_var_shards(near), 2);
    ch_var_unref(near);
    ch_var_unref(scalar);
    ch_var_unref(v);
    ch_strategy_unref(st);
}

static ch_status two_axes(void *arg, const ch_tensor_spec *of, int64_t *parts)
{
    (void)arg;
    (void)of;
    parts[0] = parts[1] = 2;
    return CH_OK;
}

/* PT-2: ch_var_new returns the error, and the variable is not created. */
static void var_new_reports_an_invalid_result_of_the_partitioner(void **state)
{
    ch_strategy *st =
        t_cluster(NULL, &(ch_parameter_server_options){.partitioner = {.fn = two_axes}}, NULL);
    ch_tensor *t = t_counted(ch_shape_of(3, 4, 1));
    ch_var    *v = NULL;

    (void)state;
    t_refused(ch_var_new(st, &(ch_var_spec){.name = "w", .initial = t}, &v),
              CH_INVALID_ARGUMENT, "variable w", "divided along one");
    assert_null(v);
    ch_tensor_unref(t);
    ch_strategy_unref(st);
}

/* B21: MinSize(256 KiB), at most a shard for each of three servers. */
static void min_size_partitioner_shards_variables_over_three_servers(void **state)
{
    const struct {
        ch_shape shape;
        int      shards;
        int64_t  rows[3];
    } c[] = {{ch_shape_of(1024, 1024), 3, {342, 341, 341}},
             {ch_shape_of(512, 256), 2, {256, 256}},
             {ch_shape_of(2048, 32), 1, {2048}},
             {ch_shape_of(1000, 64), 1, {1000}},
             {ch_shape_of(300, 256), 1, {300}}};
    ch_strategy *st = t_cluster(
        &(ch_local_cluster_options){.ps = 3},
        &(ch_parameter_server_options){.partitioner = ch_partitioner_min_size(256 << 10, 3)},
        NULL);

    (void)state;
    for (size_t i = 0; i < sizeof(c) / sizeof(c[0]); i++) {
        ch_var *v = NULL;

        t_ok(ch_var_new(st, &(ch_var_spec){.name = "w", .shape = c[i].shape}, &v));
        assert_int_equal(ch_var_shards(v), c[i].shards);
        for (int k = 0; k < c[i].shards; k++) {
            assert_int_equal(ch_var_shape(ch_var_shard(v, k)).dim[0], c[i].rows[k]);
            for (int j = 0; j < k; j++)
                assert_string_not_equal(ch_var_device(ch_var_shard(v, j)),
                                        ch_var_device(ch_var_shard(v, k)));
        }
        ch_var_unref(v);
    }
    ch_strategy_unref(st);
}

/* ---- initial values ---- */

/* IV-2, IV-7: each shard gets its rows, and its name is derived from that of the variable. */
static void initial_value_is_divided_among_shards(void **state)
{
    ch_strategy *st = t_in_shards(3);
    ch_tensor   *t = t_counted(ch_shape_of(5, 2));
    ch_var      *v = NULL;

    (void)state;
    t_ok(ch_var_new(st, &(ch_var_spec){.name = "w", .initial = t}, &v));
    *(float *)ch_tensor_data_mut(t) = 99; /* the variable has a copy */
    assert_string_equal(ch_var_name(v), "w");
    assert_string_equal(ch_var_name(ch_var_shard(v, 0)), "w/part_0");
    assert_string_equal(ch_var_name(ch_var_shard(v, 2)), "w/part_2");
    assert_null(ch_var_shard(v, 3));
    t_var_is(ch_var_shard(v, 0), (float[]){0, 1, 2, 3});
    t_var_is(ch_var_shard(v, 1), (float[]){4, 5, 6, 7});
    t_var_is(ch_var_shard(v, 2), (float[]){8, 9});
    ch_tensor_unref(t);
    ch_var_unref(v);
    ch_strategy_unref(st);
}

/* IV-1, IV-3, IV-4, IV-8: an initializer gives the same numbers as for a whole variable, so no
 * two shards are equal. Without an initializer the variable is zeros. */
static void sharded_variable_is_initialised_like_a_whole_one(void **state)
{
    ch_strategy      *st = t_in_shards(3);
    const ch_var_spec spec = {
        .name = "w", .shape = ch_shape_of(6, 4), .init = ch_init_normal(0, 1)};
    ch_var    *cut = NULL, *whole = NULL, *zeros = NULL;
    ch_tensor *a = NULL, *b = NULL, *want = NULL;

    (void)state;
    t_ok(ch_var_new(st, &spec, &cut));
    t_ok(ch_var_new(NULL, &spec, &whole));
    t_ok(ch_var_get(whole, &want));
    t_var_is(cut, ch_tensor_data(want));
    t_ok(ch_var_get(ch_var_shard(cut, 0), &a));
    t_ok(ch_var_get(ch_var_shard(cut, 1), &b));
    assert_memory_not_equal(ch_tensor_data(a), ch_tensor_data(b), ch_tensor_bytes(a));
    t_ok(ch_var_new(st, &(ch_var_spec){.name = "z", .shape = ch_shape_of(4)}, &zeros));
    t_var_is(zeros, (float[]){0, 0, 0, 0});
    ch_tensor_unref(a);
    ch_tensor_unref(b);
    ch_tensor_unref(want);
    ch_var_unref(zeros);
    ch_var_unref(whole);
    ch_var_unref(cut);
    ch_strategy_unref(st);
}

/* IV-4, IV-5: servers compute the numbers, so a table needs the memory of its shards and little
 * more. */
static void large_table_is_initialised_without_a_second_copy(void **state)
{
    enum { ROWS = 1 << 18, WIDTH = 64, BYTES = ROWS * WIDTH * 4 };
    ch_strategy *st = t_in_shards(4);
    ch_var      *table = NULL;

    (void)state;
    ch__mem_watch(true);
    t_ok(ch_var_new(st,
                    &(ch_var_spec){.name = "table",
                                   .shape = ch_shape_of(ROWS, WIDTH),
                                   .init = ch_init_uniform(-1, 1)},
                    &table));
    assert_in_range(ch__mem_peak(), BYTES, BYTES + BYTES / 4); /* shards begin at large pages */
    ch__mem_watch(false);
    ch_var_unref(table);
    ch_strategy_unref(st);
}

/* The shards are read directly into the result, so there is no second copy. */
static void var_get_of_a_sharded_table_takes_memory_for_one_copy(void **state)
{
    enum { ROWS = 1 << 18, WIDTH = 16, BYTES = ROWS * WIDTH * 4 };
    ch_tensor *t = NULL;

    (void)state;
    for (int n = 1; n <= 4; n += 3) {
        ch_strategy *st = t_in_shards(n);
        ch_var      *table = NULL;

        t_ok(ch_var_new(st, &(ch_var_spec){.name = "table", .shape = ch_shape_of(ROWS, WIDTH)},
                        &table));
        ch__mem_watch(true);
        t_ok(ch_var_get(table, &t));
        assert_in_range(ch__mem_peak(), BYTES, BYTES + BYTES / 4);
        ch__mem_watch(false);
        ch_tensor_unref(t);
        ch_var_unref(table);
        ch_strategy_unref(st);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameter_server_strategy_rejects_invalid_clusters_before_any_call),
        cmocka_unit_test(local_cluster_coordinator_is_task_0_of_chief),
        cmocka_unit_test(
            local_cluster_kill_names_the_existing_tasks_when_there_is_no_such_task),
        cmocka_unit_test(parameter_server_strategy_waits_for_all_servers_and_one_worker),
        cmocka_unit_test(replicas_are_the_devices_of_one_worker),
        cmocka_unit_test(variables_are_placed_in_turn),
        cmocka_unit_test(variable_placement_on_servers_ignores_the_entered_device),
        cmocka_unit_test(colocated_variable_is_on_the_server_of_the_other),
        cmocka_unit_test(optimizer_slots_are_placed_beside_their_variable_shards),
        cmocka_unit_test(placement_is_the_same_each_time_and_can_be_printed),
        cmocka_unit_test(placement_table_keeps_its_columns_when_names_are_long),
        cmocka_unit_test(placement_by_bytes_chooses_the_server_with_the_fewest_bytes),
        cmocka_unit_test(partitioner_is_called_once_for_each_variable),
        cmocka_unit_test(var_new_reports_an_invalid_result_of_the_partitioner),
        cmocka_unit_test(min_size_partitioner_shards_variables_over_three_servers),
        cmocka_unit_test(initial_value_is_divided_among_shards),
        cmocka_unit_test(sharded_variable_is_initialised_like_a_whole_one),
        cmocka_unit_test(large_table_is_initialised_without_a_second_copy),
        cmocka_unit_test(var_get_of_a_sharded_table_takes_memory_for_one_copy),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
