/* test/job/test_per_worker.c -- per-worker variables: each worker has a copy, and the program
 * has another.
 *
 * The tests compare the copies after steps, after the loss of workers, and while several
 * threads use them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>

#include "../strategy/source.h"
#include "rows.h"
#include "scene.h"

static ch_var *own_var(ch_strategy *st, const char *name, float value, ch_aggregation how)
{
    ch_tensor *t = t_f32(ch_shape_scalar(), &value);
    ch_var    *v = NULL;

    t_ok(ch_var_new(
        st, &(ch_var_spec){.name = name, .initial = t, .aggregation = how, .per_worker = true},
        &v));
    ch_tensor_unref(t);
    return v;
}

/* Returns the value on worker i of n workers. */
static float of_worker(ch_var *v, int i, int n)
{
    ch_tuple *all = NULL;
    float     x;

    t_ok(ch_var_get_all(v, &all));
    assert_int_equal(ch_tuple_count(all), n);
    assert_int_equal(ch_value_count(ch_tuple_at(all, i)), 1);
    x = *t_floats(all, i, 0);
    ch_tuple_unref(all);
    return x;
}

static float sum_of(ch_var *v, int n)
{
    float sum = 0;

    for (int i = 0; i < n; i++)
        sum += of_worker(v, i, n);
    return sum;
}

/* A step that counts in a per-worker variable and in a variable on a server. */
typedef struct counting {
    scene        s;
    ch_var      *own;
    ch_function *f;
} counting;

static void count_both(ch_step *s, void *arg)
{
    counting *c = arg;

    ch_step_out(s, "before", ch_var_read(s, c->own));
    ch_var_assign_add(s, c->own, ch_number(s, 1));
    ch_step_out(s, "own", ch_var_read(s, c->own));
    ch_step_out(s, "all", ch_var_assign_add(s, c->s.n, ch_number(s, 1)));
}

static void open_counting(counting *c, int workers, int step_ms)
{
    t_open(&c->s, &(ch_local_cluster_options){.ps = 2, .workers = workers}, step_ms, NULL);
    c->own = own_var(c->s.st, "own", 100, CH_AGGREGATE_NONE);
    c->f = t_function(count_both, c);
}

static void close_counting(counting *c)
{
    ch_function_unref(c->f);
    ch_var_unref(c->own);
    t_close(&c->s);
}

static void count_steps(counting *c, int n)
{
    for (int i = 0; i < n; i++)
        t_ok(ch_coordinator_schedule(c->s.co, c->f, NULL, NULL));
    t_ok(ch_coordinator_join(c->s.co));
}

/* ---- copies ---- */

/* PW-1: a step uses the copy of the worker that runs it; ch_var_get and ch_var_set use the
 * program's copy; all copies can be read at any time. */
static void per_worker_variable_has_a_copy_on_each_worker_and_in_the_program(void **state)
{
    counting   c;
    ch_tensor *t = t_f32(ch_shape_scalar(), &(float){7});

    (void)state;
    open_counting(&c, 3, 5);
    for (int i = 0; i < 3; i++)
        assert_true(of_worker(c.own, i, 3) == 100);
    count_steps(&c, 30);
    assert_true(t_value_of(c.s.n) == 30);
    assert_true(sum_of(c.own, 3) == 330);
    for (int i = 0; i < 3; i++)
        assert_true(of_worker(c.own, i, 3) > 100);
    assert_true(t_value_of(c.own) == 100);
    t_ok(ch_var_set(c.own, t));
    t_ok(ch_var_add(c.own, t));
    assert_true(t_value_of(c.own) == 14);
    assert_true(sum_of(c.own, 3) == 330);
    count_steps(&c, 12);
    assert_true(sum_of(c.own, 3) == 342);
    assert_true(t_value_of(c.own) == 14);
    ch_tensor_unref(t);
    close_counting(&c);
}

/* PW-1: a copy exists from the first step that uses it. A worker that joined later, or that
 * never ran such a step, has the initial value. */
static void per_worker_variable_copy_begins_with_the_initial_value(void **state)
{
    counting  c;
    ch_tuple *out = NULL;
    int       added = -1;

    (void)state;
    open_counting(&c, 1, 1);
    for (int i = 0; i < 3; i++) {
        t_ok(ch_strategy_run(c.s.st, c.f, NULL, &out));
        assert_int_equal(ch_tuple_count(out), 3);
        assert_true(*t_floats(out, 0, 0) == 100 + (float)i);
        assert_true(*t_floats(out, 1, 0) == 101 + (float)i);
        ch_tuple_unref(out);
    }
    t_ok(ch_local_cluster_add_worker(c.s.cluster, &added));
    assert_int_equal(added, 1);
    assert_true(of_worker(c.own, 0, 2) == 103);
    assert_true(of_worker(c.own, 1, 2) == 100);
    close_counting(&c);
}

/* A restore sets the program's copy and the value that workers start with, also if the workers
 * have copies already. */
static void per_worker_variable_starts_with_the_value_of_a_source(void **state)
{
    counting        c;
    t_source        s = {.value = t_f32(ch_shape_scalar(), &(float){500})};
    ch_value_source from = t_source_of(&s);
    ch_var         *v = NULL;

    (void)state;
    open_counting(&c, 3, 5);
    count_steps(&c, 30);
    for (int again = 0; again < 2; again++) {
        t_ok(ch__var_write_from(c.own, &from));
        assert_true(t_value_of(c.own) == 500);
        for (int i = 0; i < 3; i++)
            assert_true(of_worker(c.own, i, 3) == 500);
        count_steps(&c, 12);
        assert_true(sum_of(c.own, 3) == 1512);
        assert_true(t_value_of(c.own) == 500);
    }
    assert_true(t_value_of(c.s.n) == 54);
    t_ok(ch__var_new_from(c.s.st, &(ch_var_spec){.name = "new", .per_worker = true}, NULL,
                          &from, &v));
    assert_true(t_value_of(v) == 500);
    for (int i = 0; i < 3; i++)
        assert_true(of_worker(v, i, 3) == 500);
    ch_var_unref(v);
    ch_tensor_unref(s.value);
    close_counting(&c);
}

/* VP-5, PT-4: a per-worker variable is on no server and is not sharded. The next variable is
 * placed as if it did not exist. */
static void per_worker_variable_is_on_no_server_and_not_sharded(void **state)
{
    ch_strategy *st =
        t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = 2},
                  &(ch_parameter_server_options){.partitioner = ch_partitioner_fixed(2)}, NULL);
    ch_var    *a = t_var_in(st, "a", 0), *own = NULL, *b = NULL;
    ch_device *device = NULL;
    char       text[2048];

    (void)state;
    t_ok(ch_strategy_enter(st));
    t_ok(ch_device_find("CPU:0", &device));
    t_ok(ch_device_enter(device));
    t_ok(ch_var_new(
        NULL, &(ch_var_spec){.name = "own", .shape = ch_shape_of(6, 2), .per_worker = true},
        &own));
    ch_device_leave();
    ch_strategy_leave();
    b = t_var_in(st, "b", 0);
    assert_string_equal(ch_var_device(a), "/job:ps/replica:0/task:0/device:CPU:0");
    assert_string_equal(ch_var_device(b), "/job:ps/replica:0/task:1/device:CPU:0");
    assert_string_equal(ch_var_device(own), "/job:chief/replica:0/task:0/device:CPU:0");
    assert_int_equal(ch_var_shards(own), 1);
    assert_false(ch_var_is_trainable(own));
    assert_true(ch_strategy_print_placement(st, text, sizeof(text)) < (int)sizeof(text));
    assert_non_null(strstr(text, "own "));
    assert_non_null(strstr(text, "          48  each worker, and /job:chief/"));
    ch_var_unref(a);
    ch_var_unref(own);
    ch_var_unref(b);
    ch_strategy_unref(st);
}

/* ---- options that are rejected ---- */

static void make_in_step(ch_step *s, void *arg)
{
    ch_var  **v = arg;
    ch_status rc = ch_var_new(NULL, &(ch_var_spec){.name = "late", .per_worker = true}, v);

    (void)s;
    t_refused(rc, CH_FAILED_PRECONDITION, "late", "create it before");
}

static void check_refusals(ch_strategy *st)
{
    ch_var      *v = NULL;
    ch_function *f = t_function(make_in_step, &v);
    ch_var_spec  spec = {.name = "own", .per_worker = true, .trainable = 1};

    t_refused(ch_var_new(st, &spec, &v), CH_INVALID_ARGUMENT, "own", "trainable");
    spec.trainable = 0;
    spec.shape = ch_shape_of(3, -1);
    t_refused(ch_var_new(st, &spec, &v), CH_INVALID_ARGUMENT, "axis 1", "fully defined");
    t_ok(ch_strategy_run(st, f, NULL, NULL));
    assert_null(v);
    ch_function_unref(f);
}

/* PW-2: under every strategy alike. */
static void per_worker_variable_must_not_be_trainable_or_colocated_with(void **state)
{
    ch_strategy *st = t_cluster(NULL, NULL, NULL), *one = NULL;
    ch_var      *own, *v = NULL;

    (void)state;
    check_refusals(st);
    t_ok(ch_strategy_one_device("CPU:0", &one));
    check_refusals(one);
    own = own_var(st, "own", 1, CH_AGGREGATE_NONE);
    t_ok(ch_strategy_enter(st));
    t_ok(ch_colocate_enter(st, own));
    t_refused(ch_var_new(NULL, &(ch_var_spec){.name = "v"}, &v), CH_INVALID_ARGUMENT,
              "colocated with own", "per_worker");
    ch_colocate_leave();
    ch_strategy_leave();
    ch_var_unref(own);
    ch_strategy_unref(one);
    ch_strategy_unref(st);
}

static void get_all_in_step(ch_step *s, void *arg)
{
    ch_tuple *all = NULL;

    (void)s;
    t_refused(ch_var_get_all(arg, &all), CH_FAILED_PRECONDITION, "outside steps",
              "ch_var_read");
}

/* PW-2 */
static void var_get_all_rejects_a_variable_that_is_not_per_worker(void **state)
{
    ch_strategy *st = t_cluster(NULL, NULL, NULL);
    ch_var      *v = t_var_in(st, "v", 1), *own = own_var(st, "own", 1, CH_AGGREGATE_NONE);
    ch_function *f = t_function(get_all_in_step, own);
    ch_tuple    *all = NULL;

    (void)state;
    t_refused(ch_var_get_all(v, &all), CH_INVALID_ARGUMENT, "v: ", "ch_var_get");
    t_refused(ch_var_get_all(NULL, &all), CH_INVALID_ARGUMENT, "NULL", "variable");
    t_refused(ch_var_get_all(own, NULL), CH_INVALID_ARGUMENT, "NULL", "out");
    t_ok(ch_strategy_run(st, f, NULL, NULL));
    ch_function_unref(f);
    ch_var_unref(v);
    ch_var_unref(own);
    ch_strategy_unref(st);
}

/* ---- workers that are lost ---- */

/* PW-3: when a worker is lost its copy is reset, and its next incarnation begins with the initial value. */
static void per_worker_variable_resets_when_its_worker_is_lost(void **state)
{
    counting c;
    float    others;

    (void)state;
    open_counting(&c, 3, 5);
    count_steps(&c, 30);
    others = of_worker(c.own, 0, 3) + of_worker(c.own, 2, 3);
    t_ok(ch_local_cluster_kill(c.s.cluster, "worker", 1));
    assert_true(of_worker(c.own, 1, 3) == 100); /* the loss is not detected yet */
    t_pass(&c.s, 200);
    assert_true(of_worker(c.own, 1, 3) == 100);
    t_ok(ch_local_cluster_restart(c.s.cluster, "worker", 1));
    t_pass(&c.s, 200);
    assert_true(of_worker(c.own, 1, 3) == 100);
    assert_true(sum_of(c.own, 3) == others + 100);
    count_steps(&c, 30);
    assert_true(of_worker(c.own, 1, 3) > 100);
    assert_true(sum_of(c.own, 3) == others + 130);
    close_counting(&c);
}

static void cut_off(counting *c, bool is_cut)
{
    ch__sim_cut(c->s.net, "chief/0", "worker/1", is_cut);
    t_pass(&c->s, 2000);
}

/* PW-3: also if the worker was declared lost while it was running and still has its memory. */
static void per_worker_variable_resets_when_its_live_worker_is_declared_lost(void **state)
{
    counting c;
    float    others;

    (void)state;
    open_counting(&c, 2, 5);
    count_steps(&c, 20);
    others = of_worker(c.own, 0, 2);
    assert_true(of_worker(c.own, 1, 2) > 100);
    cut_off(&c, true);
    assert_int_equal(t_stats(&c.s).ready, 1);
    assert_true(of_worker(c.own, 1, 2) == 100);
    cut_off(&c, false);
    assert_int_equal(t_stats(&c.s).ready, 2);
    assert_true(of_worker(c.own, 1, 2) == 100);
    count_steps(&c, 20);
    assert_true(sum_of(c.own, 2) == others + 120);
    close_counting(&c);
}

/* PW-3: the worker is lost during steps. Its steps are repeated and count in the copies of
 * other workers. Steps of its next incarnation count in the new copy. */
static void per_worker_variable_counts_repeated_steps_on_the_new_worker(void **state)
{
    (void)state;
    for (int at = 1; at < 60; at += 7) {
        counting c;
        float    now;

        open_counting(&c, 3, 20);
        t_kill_in(&c.s, at, "worker", 1);
        t_restart_in(&c.s, at + 40, "worker", 1);
        count_steps(&c, 40);
        assert_true(t_value_of(c.s.n) == 40);
        now = sum_of(c.own, 3);
        assert_true(now <= 340 && now > 300);
        count_steps(&c, 10);
        assert_true(sum_of(c.own, 3) == now + 10);
        close_counting(&c);
    }
}

/* ---- steps ---- */

/* The step reads the variable to choose the rows of a lookup, assigns a value that depends on
 * these rows, and then reads and assigns again. */
typedef struct chained {
    ch_var *table, *own, *slow;
} chained;

static void chain(ch_step *s, void *arg)
{
    chained *c = arg;
    ch_node *at = ch_reshape(ch_cast(ch_var_read(s, c->own), CH_I64), ch_shape_of(1));
    ch_node *row = ch_sum_all(ch_gather(ch_var_read(s, c->table), at, 0)), *ids, *next;

    ch_var_assign(s, c->own,
                  ch_mod(ch_add(row, ch_sum_all(ch_step_in(s, 0))), ch_number(s, 5)));
    ids = ch_reshape(ch_cast(ch_var_read(s, c->own), CH_I64), ch_shape_of(1));
    next = ch_sum_all(ch_gather(ch_var_read(s, c->table), ids, 0));
    ch_var_assign_add(s, c->slow, ch_mul(ch_var_read(s, c->own), ch_number(s, 0.1)));
    ch_var_assign(s, c->own, ch_mod(ch_add(next, ch_var_read(s, c->slow)), ch_number(s, 5)));
    ch_step_out(s, "row", row);
    ch_step_out(s, "own", ch_var_read(s, c->own));
}

static void run_chain(ch_strategy *st, float *out)
{
    chained      c = {.table = t_table(st, "table", ch_shape_of(5, 3)),
                      .own = own_var(st, "own", 1, CH_AGGREGATE_NONE),
                      .slow = own_var(st, "slow", 0.5F, CH_AGGREGATE_NONE)};
    ch_function *f = t_function(chain, &c);

    for (int i = 0; i < 8; i++) {
        ch_tuple *in = t_tuple(1, (ch_tensor *[]){t_noise(ch_shape_of(4), (unsigned)i)});
        ch_tuple *result = NULL;

        t_ok(ch_strategy_run(st, f, in, &result));
        out[2 * i] = *t_floats(result, 0, 0);
        out[2 * i + 1] = *t_floats(result, 1, 0);
        ch_tuple_unref(in);
        ch_tuple_unref(result);
    }
    out[16] = of_worker(c.own, 0, 1);
    out[17] = of_worker(c.slow, 0, 1);
    ch_function_unref(f);
    ch_var_unref(c.table);
    ch_var_unref(c.own);
    ch_var_unref(c.slow);
}

/* PW-1: whichever local parts read and write the variable, a step gives the results of
 * OneDevice, where the variable is an ordinary variable. */
static void per_worker_variable_gives_equal_results_under_every_strategy(void **state)
{
    ch_strategy *st[3] = {NULL};
    float        is[3][18];

    (void)state;
    t_ok(ch_strategy_one_device("CPU:0", &st[0]));
    st[1] = t_cluster(&(ch_local_cluster_options){.ps = 2}, NULL, NULL);
    st[2] =
        t_cluster(&(ch_local_cluster_options){.ps = 2},
                  &(ch_parameter_server_options){.partitioner = ch_partitioner_fixed(3)}, NULL);
    for (int i = 0; i < 3; i++) {
        run_chain(st[i], is[i]);
        assert_memory_equal(is[i], is[0], sizeof(is[0]));
        ch_strategy_unref(st[i]);
    }
    assert_true(is[0][1] != is[0][3]);
}

typedef struct giving {
    ch_var *own, *other, *server;
} giving;

/* Assigns to the variable, without computing, an input, a constant, the value of a variable on
 * a server and the value of another per-worker variable. */
static void hand_over(ch_step *s, void *arg)
{
    giving *g = arg;

    ch_var_assign(s, g->server, ch_var_read(s, g->own));
    ch_var_assign(s, g->own, ch_step_in(s, 0));
    ch_var_assign(s, g->other, ch_number(s, 5));
}

static void take_back(ch_step *s, void *arg)
{
    giving *g = arg;

    ch_var_assign(s, g->own, ch_var_assign_add(s, g->server, ch_var_read(s, g->other)));
}

/* PW-1: the variable has a copy of the assigned value, so the caller may overwrite the
 * input. */
static void per_worker_variable_keeps_a_copy_of_an_assigned_input(void **state)
{
    ch_strategy *st = t_cluster(NULL, NULL, NULL);
    giving g = {own_var(st, "own", 3, 0), own_var(st, "other", 4, 0), t_var_in(st, "s", 0)};
    ch_function *give = t_function(hand_over, &g), *take = t_function(take_back, &g);
    ch_tensor   *x = t_f32(ch_shape_scalar(), &(float){9});
    ch_tuple    *in = NULL;

    (void)state;
    t_ok(ch_tuple_of(1, &x, &in));
    t_ok(ch_strategy_run(st, give, in, NULL));
    *(float *)ch_tensor_data_mut(x) = -1;
    assert_true(t_value_of(g.server) == 3);
    assert_true(of_worker(g.own, 0, 1) == 9);
    assert_true(of_worker(g.other, 0, 1) == 5);
    t_ok(ch_strategy_run(st, take, NULL, NULL));
    assert_true(t_value_of(g.server) == 8);
    assert_true(of_worker(g.own, 0, 1) == 8);
    ch_tensor_unref(x);
    ch_tuple_unref(in);
    ch_function_unref(give);
    ch_function_unref(take);
    ch_var_unref(g.own);
    ch_var_unref(g.other);
    ch_var_unref(g.server);
    ch_strategy_unref(st);
}

static void fail_late(ch_step *s, void *arg)
{
    counting *c = arg;
    ch_node  *n = ch_var_assign_add(s, c->own, ch_number(s, 1));

    ch_check(ch_less(n, ch_step_in(s, 0)), "too many");
}

/* PW-1: as with any variable. */
static void per_worker_variable_is_unchanged_when_its_step_fails(void **state)
{
    counting     c;
    ch_function *f;
    ch_tuple    *in = NULL;
    ch_tensor   *most = t_f32(ch_shape_scalar(), &(float){103});

    (void)state;
    open_counting(&c, 1, 1);
    f = t_function(fail_late, &c);
    t_ok(ch_tuple_of(1, &most, &in));
    t_ok(ch_strategy_run(c.s.st, f, in, NULL));
    t_ok(ch_strategy_run(c.s.st, f, in, NULL));
    for (int i = 0; i < 3; i++)
        t_refused(ch_strategy_run(c.s.st, f, in, NULL), CH_INVALID_ARGUMENT, "too many", "");
    assert_true(of_worker(c.own, 0, 1) == 102);
    ch_tensor_unref(most);
    ch_tuple_unref(in);
    ch_function_unref(f);
    close_counting(&c);
}

static void add_own_row(ch_step *s, void *arg)
{
    ch_var_assign_add(s, arg, ch_sum_all(ch_step_in(s, 0)));
}

static float add_of_replicas(ch_aggregation how)
{
    ch_strategy *st = t_cluster(&(ch_local_cluster_options){.devices = 2}, NULL, NULL);
    ch_var      *own = own_var(st, "own", 1, how);
    ch_function *f = t_function(add_own_row, own);
    ch_tensor *t[2] = {t_f32(ch_shape_of(1), &(float){2}), t_f32(ch_shape_of(1), &(float){6})};
    ch_value  *v = NULL;
    ch_tuple  *in = NULL;
    ch_status  rc;
    float      is;

    t_ok(ch_value_new(CH_PER_REPLICA, 2, t, &v));
    t_ok(ch_tuple_new(1, &v, NULL, &in));
    rc = ch_strategy_run(st, f, in, NULL);
    if (how == CH_AGGREGATE_NONE)
        t_refused(rc, CH_INVALID_ARGUMENT, "own", "aggregation");
    else
        t_ok(rc);
    is = of_worker(own, 0, 1);
    for (int i = 0; i < 2; i++)
        ch_tensor_unref(t[i]);
    ch_value_unref(v);
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_var_unref(own);
    ch_strategy_unref(st);
    return is;
}

/* PW-1, AV-2: the devices of a worker share its copy. */
static void per_worker_variable_aggregates_assignments_of_replicas(void **state)
{
    (void)state;
    assert_true(add_of_replicas(CH_AGGREGATE_SUM) == 9);
    assert_true(add_of_replicas(CH_AGGREGATE_MEAN) == 5);
    assert_true(add_of_replicas(CH_AGGREGATE_FIRST) == 3);
    assert_true(add_of_replicas(CH_AGGREGATE_NONE) == 1);
}

/* ---- the copy of the program ---- */

static void add_to_both(ch_step *s, void *arg)
{
    counting *c = arg;

    ch_var_assign_add(s, c->own, ch_number(s, 1));
    ch_var_assign_add(s, c->s.n, ch_number(s, 1));
}

static void add_to_own(ch_step *s, void *arg)
{
    ch_var_assign_add(s, arg, ch_number(s, 1));
}

/* PW-1: an update outside of a step changes the program's copy in this process. A variable on a
 * server is updated on the server. */
static void strategy_update_changes_the_programs_copy_of_a_per_worker_variable(void **state)
{
    counting     c;
    ch_function *f, *g;

    (void)state;
    open_counting(&c, 1, 1);
    f = t_function(add_to_own, c.own);
    g = t_function(add_to_both, &c);
    t_ok(ch_strategy_update(c.s.st, c.own, f, NULL, NULL));
    assert_true(t_value_of(c.own) == 101);
    assert_true(of_worker(c.own, 0, 1) == 100);
    t_refused(ch_strategy_update(c.s.st, c.own, g, NULL, NULL), CH_FAILED_PRECONDITION,
              "variable n is on", "ch_strategy_run");
    assert_true(t_value_of(c.own) == 101);
    ch_function_unref(f);
    ch_function_unref(g);
    close_counting(&c);
}

static void per_worker_variable_clone_begins_with_the_programs_copy(void **state)
{
    counting c;
    ch_var  *twin = NULL, *before;

    (void)state;
    open_counting(&c, 1, 1);
    count_steps(&c, 3);
    t_ok(ch_var_clone(c.own, &twin));
    assert_true(t_value_of(twin) == 100);
    assert_true(of_worker(twin, 0, 1) == 100);
    before = c.own;
    c.own = twin;
    ch_function_unref(c.f);
    c.f = t_function(count_both, &c);
    count_steps(&c, 2);
    assert_true(of_worker(twin, 0, 1) == 102);
    assert_true(of_worker(before, 0, 1) == 103);
    ch_var_unref(before);
    close_counting(&c);
}

/* PW-1: a recorded step uses the next variable of the same name, which begins with its own
 * initial value. */
static void per_worker_variable_is_replaced_by_the_next_of_its_name(void **state)
{
    counting c;

    (void)state;
    open_counting(&c, 2, 2);
    count_steps(&c, 10);
    ch_var_unref(c.own);
    c.own = own_var(c.s.st, "own", 1000, CH_AGGREGATE_NONE);
    assert_true(sum_of(c.own, 2) == 2000);
    count_steps(&c, 10);
    assert_true(sum_of(c.own, 2) == 2010);
    close_counting(&c);
}

/* ---- on threads ---- */

typedef struct watcher {
    ch_var    *own;
    atomic_int is_over;
    float      last;
} watcher;

static void *watch(void *arg)
{
    watcher *w = arg;

    while (!atomic_load(&w->is_over)) {
        ch_tuple *all = NULL;
        float     sum = 0;

        if (ch_var_get_all(w->own, &all) != CH_OK)
            return arg;
        for (int i = 0; i < ch_tuple_count(all); i++)
            sum += *t_floats(all, i, 0);
        ch_tuple_unref(all);
        if (sum < w->last)
            return arg;
        w->last = sum;
    }
    return NULL;
}

/* PW-1: workers run steps while other threads read all copies. */
static void per_worker_variable_is_read_while_workers_on_threads_update_it(void **state)
{
    enum { STEPS = 400 };
    counting  c = {0};
    watcher   w = {0};
    pthread_t thread;
    void     *failed = NULL;

    (void)state;
    c.s.st = t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = 3}, NULL, &c.s.cluster);
    t_ok(ch_coordinator_new(c.s.st, NULL, &c.s.co));
    c.s.n = t_var_in(c.s.st, "n", 0);
    w.own = c.own = own_var(c.s.st, "own", 0, CH_AGGREGATE_NONE);
    c.f = t_function(count_both, &c);
    assert_int_equal(pthread_create(&thread, NULL, watch, &w), 0);
    count_steps(&c, STEPS);
    atomic_store(&w.is_over, 1);
    pthread_join(thread, &failed);
    assert_null(failed);
    assert_true(t_value_of(c.s.n) == STEPS);
    assert_true(sum_of(c.own, 3) == STEPS);
    close_counting(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(per_worker_variable_has_a_copy_on_each_worker_and_in_the_program),
        cmocka_unit_test(per_worker_variable_copy_begins_with_the_initial_value),
        cmocka_unit_test(per_worker_variable_starts_with_the_value_of_a_source),
        cmocka_unit_test(per_worker_variable_is_on_no_server_and_not_sharded),
        cmocka_unit_test(per_worker_variable_must_not_be_trainable_or_colocated_with),
        cmocka_unit_test(var_get_all_rejects_a_variable_that_is_not_per_worker),
        cmocka_unit_test(per_worker_variable_resets_when_its_worker_is_lost),
        cmocka_unit_test(per_worker_variable_resets_when_its_live_worker_is_declared_lost),
        cmocka_unit_test(per_worker_variable_counts_repeated_steps_on_the_new_worker),
        cmocka_unit_test(per_worker_variable_gives_equal_results_under_every_strategy),
        cmocka_unit_test(per_worker_variable_keeps_a_copy_of_an_assigned_input),
        cmocka_unit_test(per_worker_variable_is_unchanged_when_its_step_fails),
        cmocka_unit_test(per_worker_variable_aggregates_assignments_of_replicas),
        cmocka_unit_test(strategy_update_changes_the_programs_copy_of_a_per_worker_variable),
        cmocka_unit_test(per_worker_variable_clone_begins_with_the_programs_copy),
        cmocka_unit_test(per_worker_variable_is_replaced_by_the_next_of_its_name),
        cmocka_unit_test(per_worker_variable_is_read_while_workers_on_threads_update_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
