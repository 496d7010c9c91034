/* test/job/test_scheduling.c -- schedule, join, done and fetch; results of steps that have not
 * ended yet; modes, deadlines and statistics.
 *
 * Tests that depend on the time of an event run on a simulated cluster (scene.h), in which a
 * step takes up to a given number of ms of the virtual clock.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <math.h>
#include <pthread.h>

#include "base/config.h"
#include "base/mem.h"
#include "job/message.h"
#include "scene.h"
#include "strategy/exec.h"
#include "strategy/strategy.h"

static const ch_local_cluster_options three_workers = {.ps = 2, .workers = 3};

/* ---- the coordinator ---- */

/* CC-1 */
static void a_strategy_has_one_coordinator(void **state)
{
    ch_strategy    *st = t_cluster(NULL, NULL, NULL), *other = NULL;
    ch_coordinator *a = NULL, *b = NULL;

    (void)state;
    t_ok(ch_coordinator_new(st, &(ch_coordinator_options){.capacity = 7}, &a));
    t_ok(ch_coordinator_new(st, NULL, &b));
    assert_ptr_equal(a, b);
    assert_ptr_equal(ch_coordinator_strategy(a), st);
    ch_coordinator_unref(b);
    t_ok(ch_coordinator_new(st, &(ch_coordinator_options){.capacity = 7}, &b));
    assert_ptr_equal(a, b);
    ch_coordinator_unref(b);
    t_refused(ch_coordinator_new(st, &(ch_coordinator_options){.capacity = 8}, &b),
              CH_FAILED_PRECONDITION, "already", "capacity is 7 and not 8");
    t_refused(ch_coordinator_new(
                  st, &(ch_coordinator_options){.mode = CH_SYNCHRONOUS, .capacity = 7}, &b),
              CH_FAILED_PRECONDITION, "mode is CH_ASYNCHRONOUS and not CH_SYNCHRONOUS",
              "the first ch_coordinator_new");
    t_refused(
        ch_coordinator_new(st, &(ch_coordinator_options){.backups = true, .capacity = 7}, &b),
        CH_FAILED_PRECONDITION, "options: backups is false and not true", "NULL");
    t_ok(ch_strategy_one_device("CPU:0", &other));
    t_refused(ch_coordinator_new(other, NULL, &b), CH_INVALID_ARGUMENT, "OneDevice",
              "parameter servers");
    ch_coordinator_unref(a);
    ch_strategy_unref(other);
    ch_strategy_unref(st);
}

static void coordinator_new_names_an_invalid_option(void **state)
{
    static const struct {
        ch_coordinator_options opt;
        const char            *is, *want;
    } row[] = {{{.mode = (ch_coordinator_mode)7}, "mode is 7", "CH_BOUNDED_STALENESS"},
               {{.mode = (ch_coordinator_mode)-1}, "mode is -1", "CH_ASYNCHRONOUS"},
               {{.staleness = -1}, "staleness is -1", "0 or more"},
               {{.round = -2}, "round is -2", "0 or more"},
               {{.capacity = -3}, "capacity is -3", "0 or more"},
               {{.step_seconds = -0.5}, "step_seconds is -0.5", "0 or more"},
               {{.step_seconds = NAN}, "step_seconds is", "0 or more"},
               {{.step_seconds = INFINITY}, "step_seconds is inf", "0 or more"}};
    ch_strategy    *st = t_cluster(NULL, NULL, NULL);
    ch_coordinator *c = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++)
        t_refused(ch_coordinator_new(st, &row[i].opt, &c), CH_INVALID_ARGUMENT, row[i].is,
                  row[i].want);
    ch_strategy_unref(st);
}

static void schedule_step(ch_step *s, void *arg)
{
    scene *c = arg;

    t_refused(ch_coordinator_schedule(c->co, c->count, NULL, NULL), CH_FAILED_PRECONDITION,
              "schedule: it must be called outside steps",
              "a plain call of the other step's C function");
    t_count_step(s, c);
}

static void schedule_is_refused_inside_a_step(void **state)
{
    scene        s;
    ch_function *f;

    (void)state;
    t_open(&s, &three_workers, 1, NULL);
    f = t_function(schedule_step, &s);
    t_ok(ch_coordinator_schedule(s.co, f, NULL, NULL));
    t_ok(ch_coordinator_join(s.co));
    assert_true(t_value_of(s.n) == 1);
    ch_function_unref(f);
    t_close(&s);
}

/* CC-4: when the last reference is released, all scheduled steps end, and no memory is left. */
static void coordinator_ends_all_steps_when_its_last_reference_is_released(void **state)
{
    int64_t live = ch__mem_live();

    (void)state;
    for (int is_held = 0; is_held < 2; is_held++) {
        scene      s;
        ch_remote *r = NULL;

        t_open(&s, &three_workers, 100, NULL);
        t_schedule(&s, 20);
        t_ok(ch_coordinator_schedule(s.co, s.count, NULL, &r));
        if (is_held)
            t_close(&s);
        assert_false(ch_remote_has_ended(r));
        ch_remote_unref(r); /* the remote value is also a reference to the coordinator */
        if (!is_held)
            t_close(&s);
        assert_int_equal(ch__mem_live(), live);
    }
}

static int count_threads(void)
{
    DIR *d = opendir("/proc/self/task");
    int  n = 0;

    if (d == NULL)
        return 0;
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

/* CC-4: the threads of a cluster have ended when its last reference is released */
static void threads_end_with_the_strategy(void **state)
{
    int before = 0;

    (void)state;
    for (int i = 0; i < 4;
         i++) { /* the first round starts threads that stay, such as those of devices */
        scene s = {.st = t_cluster(&three_workers, NULL, NULL)};

        t_ok(ch_coordinator_new(s.st, NULL, &s.co));
        s.n = t_var_in(s.st, "n", 0);
        s.count = t_function(t_count_step, &s);
        t_schedule(&s, 50);
        t_close(&s);
        if (i == 0)
            before = count_threads();
        assert_int_equal(count_threads(), before);
    }
}

/* CC-2, SC-6, SC-8, SC-10: all workers run at the same time, each runs steps, and none runs
 * much more than its share. */
static void join_waits_for_all_that_was_scheduled(void **state)
{
    scene   s;
    bool    done = false;
    int64_t began;

    (void)state;
    t_open(&s, &three_workers, 100, NULL);
    t_ok(ch_coordinator_join(s.co)); /* without steps, join returns at once */
    t_ok(ch_coordinator_done(s.co, &done));
    assert_true(done);
    t_schedule(&s, 3); /* sends the function to the workers */
    t_ok(ch_coordinator_join(s.co));
    began = ch__sim_now(s.net);
    t_schedule(&s, 30);
    t_ok(ch_coordinator_done(s.co, &done));
    assert_false(done);
    assert_true(t_stats(&s).running > 3);
    t_ok(ch_coordinator_join(s.co));
    assert_true(ch__sim_now(s.net) - began <
                15 * 100 * ms); /* a single worker would need 30 times 50 ms on average */
    t_ok(ch_coordinator_done(s.co, &done));
    assert_true(done);
    assert_true(t_value_of(s.n) == 33);
    assert_int_equal(t_stats(&s).finished, 33);
    for (int i = 0; i < 3; i++) {
        ch_worker_stats w;

        t_ok(ch_coordinator_get_worker_stats(s.co, i, &w));
        assert_in_range(w.finished, 5, 20);
    }
    t_ok(ch_coordinator_join(s.co));
    t_close(&s);
}

/* SC-6: join waits as long as steps end, without a limit. */
static void join_has_no_limit_while_steps_end(void **state)
{
    scene s;

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.workers = 1}, 60000, NULL);
    t_schedule(&s, 60); /* half a minute each: half an hour */
    t_ok(ch_coordinator_join(s.co));
    assert_true(ch__sim_now(s.net) > 1000 * 1000 * ms);
    assert_true(t_value_of(s.n) == 60);
    t_close(&s);
}

/* ---- which worker runs a step ---- */

typedef struct slow_scene {
    scene        s;
    ch_var      *there;
    ch_function *slow;
} slow_scene;

static void slow_step(ch_step *s, void *arg)
{
    const slow_scene *c = arg;

    ch_var_assign_add(s, c->there, ch_number(s, 1));
}

/* A step that writes to a variable on ps/1 takes over a second; other steps take some
 * microseconds. */
static void open_slow(slow_scene *c, const ch_coordinator_options *opt)
{
    t_open(&c->s, &(ch_local_cluster_options){.ps = 2, .workers = 2}, 1, opt);
    ch__sim_faults(c->s.net, &(ch_sim_options){.seed = 7, .most_delay_us = 1, .work_us = 2});
    c->there = t_var_in(c->s.st, "there", 0);
    c->slow = t_function(slow_step, c);
    for (int i = 0; i < 50; i++) {
        t_schedule(&c->s, 10);
        t_ok(ch_coordinator_schedule(c->s.co, c->slow, NULL, NULL));
    }
    t_ok(ch_coordinator_join(c->s.co));
    ch__sim_slow(c->s.net, "ps/1", CH_PS_UPDATE, 1300 * ms);
}

static void close_slow(slow_scene *c)
{
    t_ok(ch_coordinator_join(c->s.co));
    assert_true(t_value_of(c->s.n) == 520);
    assert_true(t_value_of(c->there) == 51);
    ch_function_unref(c->slow);
    ch_var_unref(c->there);
    t_close(&c->s);
}

/* FC-4: an idle worker runs steps that were sent to another worker and have not begun there.
 * The first call of such a step ends as cancelled, which is no error: no step fails, and none is
 * repeated. With and without backups. In rounds the steps do not end before the slow step,
 * because updates are applied in the order of steps. */
static void idle_worker_takes_steps_that_wait_behind_a_slow_step(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        ch_coordinator_options how = {.backups = i % 2 != 0,
                                      .mode = i < 2 ? CH_ASYNCHRONOUS : CH_SYNCHRONOUS,
                                      .round = 100};
        slow_scene             c;

        open_slow(&c, &how);
        t_ok(ch_coordinator_schedule(c.s.co, c.slow, NULL, NULL));
        t_schedule(&c.s, 20);
        assert_true(i >= 2 || t_stats(&c.s).running > 4); /* the worker has received them */
        t_pass(&c.s, 50);
        assert_int_equal(t_stats(&c.s).finished, i < 2 ? 550 + 20 : 550);
        assert_int_equal(t_stats(&c.s).running, 1);
        assert_int_equal(t_stats(&c.s).repeated, 0);
        assert_true(i >= 2 || t_stats(&c.s).moved > 0);
        assert_int_equal(t_stats(&c.s).failed + t_stats(&c.s).cancelled, 0);
        close_slow(&c);
    }
}

static void add_to_step(ch_step *s, void *arg)
{
    ch_var_assign_add(s, arg, ch_number(s, 1));
}

/* A round has a slow step and two others. The program frees the variable of the second while a
 * server keeps its update. Only the second step fails. The third has run and is not cancelled:
 * it is applied. */
static void step_of_a_round_fails_when_its_update_cannot_be_applied(void **state)
{
    slow_scene   c;
    ch_var      *gone;
    ch_function *f, *last;
    ch_remote   *r = NULL;
    ch_tuple    *out = NULL;

    (void)state;
    open_slow(&c, &(ch_coordinator_options){.mode = CH_SYNCHRONOUS, .round = 100});
    gone = t_var_in(c.s.st, "gone", 0);
    f = t_function(add_to_step, gone);
    last = t_function(add_to_step, c.s.n);
    t_ok(ch_coordinator_schedule(c.s.co, c.slow, NULL, NULL));
    t_ok(ch_coordinator_schedule(c.s.co, f, NULL, NULL));
    t_ok(ch_coordinator_schedule(c.s.co, last, NULL, &r));
    t_pass(&c.s, 50);
    assert_int_equal(t_stats(&c.s).running, 3);
    assert_true(t_value_of(c.s.n) == 500);
    ch_var_unref(gone);
    t_refused(ch_coordinator_join(c.s.co), CH_NOT_FOUND, "do not free a variable", "ps/");
    t_ok(ch_remote_fetch(r, &out));
    ch_tuple_unref(out);
    assert_true(t_value_of(c.s.n) == 501);
    assert_int_equal(t_stats(&c.s).failed, 1);
    t_schedule(&c.s, 19);
    ch_remote_unref(r);
    ch_function_unref(f);
    ch_function_unref(last);
    close_slow(&c);
}

/* The same while a worker receives a function. */
static void idle_worker_takes_steps_of_a_worker_that_receives_a_function(void **state)
{
    slow_scene   c;
    ch_function *other;

    (void)state;
    open_slow(&c, NULL);
    other = t_function(t_count_step, &c.s);
    ch__sim_slow(c.s.net, "worker/1", CH_WORKER_FUNCTION, 30 * ms);
    t_ok(ch_coordinator_schedule(c.s.co, c.slow, NULL, NULL));
    for (int i = 0; i < 20; i++)
        t_ok(ch_coordinator_schedule(c.s.co, other, NULL, NULL));
    t_pass(&c.s, 150);
    assert_int_equal(t_stats(&c.s).finished, 550 + 20);
    close_slow(&c);
    ch_function_unref(other);
}

static void own_data_step(ch_step *s, void *arg)
{
    const slow_scene *c = arg;

    ch_var_assign_add(s, c->s.n, ch_cast(ch_equal(ch_step_in(s, 0), ch_step_in(s, 0)), CH_F32));
}

/* Steps that read the data of their worker are not moved to other workers. */
static void steps_that_read_a_worker_s_own_data_stay_with_it(void **state)
{
    slow_scene     c;
    ch_dataset    *d = ch_dataset_range(0, 100, 1);
    ch_per_worker *data = NULL, *it = NULL;
    ch_function   *f;

    (void)state;
    open_slow(&c, NULL);
    f = t_function(own_data_step, &c);
    t_ok(ch_coordinator_create_per_worker_dataset(c.s.co, d, &data));
    t_ok(ch_per_worker_iterate(data, &it));
    for (int i = 0; i < 20; i++) {
        if (i < 12 && i % 2 == 0)
            t_ok(ch_coordinator_join(c.s.co)); /* both workers have function and data */
        if (i == 12)
            t_ok(ch_coordinator_schedule(c.s.co, c.slow, NULL, NULL));
        t_ok(ch_coordinator_schedule(c.s.co, f, &(ch_arguments){.n_each = 1, .each = &it},
                                     NULL));
    }
    t_pass(&c.s, 50);
    assert_true(t_stats(&c.s).running > 1);
    close_slow(&c);
    ch_per_worker_unref(it);
    ch_per_worker_unref(data);
    ch_dataset_unref(d);
    ch_function_unref(f);
}

/* ---- steps and their results ---- */

static void nothing_step(ch_step *s, void *arg)
{
    (void)s;
    (void)arg;
}

static void wrong_step(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "x", ch_add(ch_step_in(s, 0), ch_fill(s, CH_F32, ch_shape_of(3, 7), 1)));
}

static void echo_step(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "a", ch_step_in(s, 0));
    ch_step_out(s, "b", ch_step_in(s, 1));
}

static ch_tensor *one_number(double x)
{
    return t_f32(ch_shape_scalar(), (float[]){(float)x});
}

/* SC-1, SC-3: schedule returns the error of a step that cannot be recorded. */
static void a_step_that_cannot_be_recorded_is_not_scheduled(void **state)
{
    scene        s;
    ch_function *f = t_function(wrong_step, NULL);
    ch_tuple    *in = t_tuple(1, (ch_tensor *[]){t_f32(ch_shape_of(2, 5), NULL)});
    ch_remote   *r = NULL;

    (void)state;
    t_open(&s, &three_workers, 1, NULL);
    assert_int_equal(ch_coordinator_schedule(s.co, f, &(ch_arguments){.in = in}, &r),
                     CH_INVALID_ARGUMENT);
    assert_null(r);
    assert_int_equal(ch_coordinator_schedule(s.co, NULL, NULL, &r), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_coordinator_schedule(NULL, f, NULL, &r), CH_INVALID_ARGUMENT);
    t_ok(ch_coordinator_join(s.co));
    assert_int_equal(t_stats(&s).failed, 0);
    ch_tuple_unref(in);
    ch_function_unref(f);
    t_close(&s);
}

/* SC-2, SC-9, RV-2: results have the structure and the names of the step's results; a result
 * may be fetched twice. */
static void remote_fetch_returns_results_with_their_names(void **state)
{
    scene        s;
    ch_function *f = t_function(echo_step, NULL);
    ch_tuple  *in = t_tuple(2, (ch_tensor *[]){one_number(3), one_number(4)}), *out[2] = {NULL};
    ch_remote *r = NULL;

    (void)state;
    t_open(&s, &three_workers, 20, NULL);
    t_ok(ch_coordinator_schedule(s.co, f, &(ch_arguments){.in = in}, &r));
    assert_false(ch_remote_has_ended(r));
    t_ok(ch_remote_fetch(r, &out[0]));
    assert_true(ch_remote_has_ended(r));
    assert_int_equal(ch_tuple_count(out[0]), 2);
    assert_string_equal(ch_tuple_name(out[0], 1), "b");
    assert_true(t_floats(out[0], 0, 0)[0] == 3 && t_floats(out[0], 1, 0)[0] == 4);
    ch_tuple_unref(out[0]);
    t_ok(ch_coordinator_fetch(s.co, 2, (ch_remote *[]){r, r}, out));
    assert_true(t_floats(out[1], 1, 0)[0] == 4);
    ch_tuple_unref(out[0]);
    ch_tuple_unref(out[1]);
    ch_remote_unref(r);
    ch_tuple_unref(in);
    ch_function_unref(f);
    t_close(&s);
}

/* RV-3 */
static void a_step_without_results_gives_an_empty_tuple(void **state)
{
    scene        s;
    ch_function *f = t_function(nothing_step, NULL);
    ch_remote   *r = NULL;
    ch_tuple    *out = NULL;

    (void)state;
    t_open(&s, &three_workers, 1, NULL);
    t_ok(ch_coordinator_schedule(s.co, f, NULL, &r));
    t_ok(ch_remote_fetch(r, &out));
    assert_int_equal(ch_tuple_count(out), 0);
    ch_tuple_unref(out);
    ch_remote_unref(r);
    ch_function_unref(f);
    t_close(&s);
}

/* SC-13: the result is in the program's process when its step has ended, even if the worker is
 * lost later. */
static void a_result_outlives_its_worker(void **state)
{
    scene      s;
    ch_remote *r = NULL;
    ch_tuple  *out = NULL;

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.workers = 1}, 1, NULL);
    t_ok(ch_coordinator_schedule(s.co, s.count, NULL, &r));
    t_ok(ch_coordinator_join(s.co));
    t_ok(ch_local_cluster_kill(s.cluster, "worker", 0));
    t_ok(ch_remote_fetch(r, &out));
    assert_true(t_floats(out, 0, 0)[0] == 1);
    ch_tuple_unref(out);
    ch_remote_unref(r);
    t_close(&s);
}

static void before_and_after_step(ch_step *s, void *arg)
{
    scene *c = arg;

    ch_step_out(s, "before", ch_var_read(s, c->n));
    ch_var_assign_add(s, c->n, ch_number(s, 1));
    ch_step_out(s, "after", ch_var_read(s, c->n));
}

/* SC-11, CC-3: a worker runs a step at a time, in the order of schedule. A step that is
 * repeated keeps its position in this order. */
static void worker_runs_steps_in_scheduling_order(void **state)
{
    enum { STEPS = 50 };

    (void)state;
    for (int is_lost = 0; is_lost < 2; is_lost++) {
        scene        s;
        ch_function *f;
        ch_remote   *r[STEPS] = {NULL};
        ch_tuple    *out[STEPS] = {NULL};

        t_open(&s, &(ch_local_cluster_options){.ps = 2, .workers = 1}, 5, NULL);
        f = t_function(before_and_after_step, &s);
        if (is_lost)
            t_kill_in(&s, 40, "worker", 0);
        if (is_lost)
            t_restart_in(&s, 90, "worker", 0);
        for (int i = 0; i < STEPS; i++)
            t_ok(ch_coordinator_schedule(s.co, f, NULL, &r[i]));
        t_ok(ch_coordinator_fetch(s.co, STEPS, r, out));
        assert_int_equal(t_stats(&s).workers_lost, is_lost);
        for (int i = 0; i < STEPS; i++) {
            float before = t_floats(out[i], 0, 0)[0];

            /* no other step runs in between; messages may overtake each other, but no step
             * moves to the end */
            assert_true(t_floats(out[i], 1, 0)[0] == before + 1);
            assert_true(fabsf(before - (float)i) <= (is_lost ? 3 : 0));
            ch_tuple_unref(out[i]);
            ch_remote_unref(r[i]);
        }
        ch_function_unref(f);
        t_close(&s);
    }
}

/* Makes calls while another caller is in join. The stack frame of that caller is below this
 * one, so its join cannot return before these calls. */
static void call_during_join(void *arg)
{
    scene *s = arg;
    bool   done = true;

    t_ok(ch_coordinator_done(s->co, &done));
    assert_false(done);
    t_refused(ch_coordinator_schedule(s->co, s->count, NULL, NULL), CH_DEADLINE_EXCEEDED,
              "for a join to return", "");
}

/* SC-7: while join waits, schedule of another caller waits for join to return; done does not wait */
static void schedule_waits_for_a_join(void **state)
{
    scene s;

    (void)state;
    t_open(&s, &three_workers, 100, NULL);
    t_schedule(&s, 10);
    t_ok(ch__sim_at(s.net, ch__sim_now(s.net) + 20 * ms, call_during_join, &s));
    t_ok(ch_coordinator_join(s.co));
    assert_int_equal(t_stats(&s).finished, 10); /* the rejected step was not scheduled */
    t_schedule(&s, 1);
    t_ok(ch_coordinator_join(s.co));
    assert_true(t_value_of(s.n) == 11);
    t_close(&s);
}

/* SC-5: when the queue is full, schedule waits until a step begins. */
static void a_full_queue_makes_schedule_wait(void **state)
{
    scene s;

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.workers = 1}, 100,
           &(ch_coordinator_options){.capacity = 4});
    for (int i = 0; i < 40; i++) {
        t_schedule(&s, 1);
        assert_true(t_stats(&s).queued <= 4);
    }
    assert_true(ch__sim_now(s.net) > 20 * 20 * ms);
    t_ok(ch_coordinator_join(s.co));
    assert_true(t_value_of(s.n) == 40);
    t_close(&s);
}

/* The limit in bytes: schedule accepts steps until the queue exceeds it, so a step that is
 * larger than the limit is accepted too. */
static void schedule_waits_when_the_queue_holds_capacity_bytes(void **state)
{
    static const int64_t sizes[] = {100, 5000}; /* elements of type f32 */

    (void)state;
    for (int k = 0; k < 2; k++) {
        scene        s;
        ch_function *f = t_function(echo_step, NULL);
        ch_tuple    *in =
            t_tuple(2, (ch_tensor *[]){t_f32(ch_shape_of(sizes[k]), NULL), one_number(4)});
        int64_t most = k == 0 ? 3 : 1;

        t_open(&s, &(ch_local_cluster_options){.workers = 1}, 100,
               &(ch_coordinator_options){.capacity_bytes = 1000});
        for (int i = 0; i < 40; i++) {
            t_ok(ch_coordinator_schedule(s.co, f, &(ch_arguments){.in = in}, NULL));
            assert_true(t_stats(&s).queued <= most);
        }
        t_ok(ch_coordinator_join(s.co));
        assert_int_equal(t_stats(&s).finished, 40);
        t_schedule(&s, 10);
        assert_true(t_stats(&s).queued > 3); /* steps without inputs have no bytes */
        t_ok(ch_coordinator_join(s.co));
        ch_tuple_unref(in);
        ch_function_unref(f);
        t_close(&s);
    }
}

/* ---- several threads ---- */

typedef struct program {
    ch_coordinator *co;
    ch_function    *f;
    int             n;
} program;

static void *schedules(void *arg)
{
    const program *p = arg;

    for (int i = 0; i < p->n; i++)
        if (ch_coordinator_schedule(p->co, p->f, NULL, NULL) != CH_OK)
            return fprintf(stderr, "%s\n", ch_error_message()), arg;
    return NULL;
}

/* CN-1, CN-5: several threads may call schedule, join and done at the same time. */
static void coordinator_schedules_and_joins_from_several_threads(void **state)
{
    enum { THREADS = 4, EACH = 200 };
    scene     s = {.st = t_cluster(&three_workers, NULL, NULL)};
    program   p;
    pthread_t thread[THREADS];
    bool      done = false;

    (void)state;
    t_ok(ch_coordinator_new(s.st, NULL, &s.co));
    s.n = t_var_in(s.st, "n", 0);
    s.count = t_function(t_count_step, &s);
    p = (program){s.co, s.count, EACH};
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, schedules, &p), 0);
    for (int i = 0; i < 10; i++) {
        t_ok(ch_coordinator_join(s.co));
        t_ok(ch_coordinator_done(s.co, &done));
    }
    for (int i = 0; i < THREADS; i++) {
        void *failed = NULL;

        pthread_join(thread[i], &failed);
        assert_null(failed);
    }
    t_ok(ch_coordinator_join(s.co));
    assert_true(t_value_of(s.n) == THREADS * EACH);
    t_close(&s);
}

/* ---- modes ---- */

/* A step sees all updates of the steps that were scheduled more than `staleness` before it. */
static void staleness_is_bounded(void **state)
{
    enum { STEPS = 60 };
    static const int bound[] = {0, 1, 3};

    (void)state;
    for (int b = 0; b < 3; b++) {
        scene      s;
        ch_remote *r[STEPS] = {NULL};
        ch_tuple  *out[STEPS] = {NULL};

        t_open(&s, &three_workers, 5,
               &(ch_coordinator_options){.mode = CH_BOUNDED_STALENESS, .staleness = bound[b]});
        for (int i = 0; i < STEPS; i++)
            t_ok(ch_coordinator_schedule(s.co, s.count, NULL, &r[i]));
        t_ok(ch_coordinator_fetch(s.co, STEPS, r, out));
        for (int i = 0; i < STEPS; i++) {
            double n = (double)t_floats(out[i], 0, 0)[0]; /* includes its own update */

            assert_true(n >= i + 1 - bound[b] && n <= i + 1 + bound[b]);
            ch_tuple_unref(out[i]);
            ch_remote_unref(r[i]);
        }
        t_close(&s);
    }
}

static void peek_step(ch_step *s, void *arg)
{
    scene *c = arg;

    ch_step_out(s, "before", ch_var_read(s, c->n));
    ch_var_assign_add(s, c->n, ch_number(s, 1));
}

/* All steps of a round read the values from the beginning of the round. */
static void synchronous_round_reads_the_values_of_its_beginning(void **state)
{
    enum { STEPS = 12, ROUND = 4 };
    scene        s;
    ch_function *f;
    ch_remote   *r[STEPS] = {NULL};

    (void)state;
    t_open(&s, &three_workers, 5,
           &(ch_coordinator_options){.mode = CH_SYNCHRONOUS, .round = ROUND});
    f = t_function(peek_step, &s);
    for (int i = 0; i < STEPS; i++)
        t_ok(ch_coordinator_schedule(s.co, f, NULL, &r[i]));
    for (int i = 0; i < STEPS; i++) {
        ch_tuple *out = NULL;

        t_ok(ch_remote_fetch(r[i], &out));
        assert_true(t_floats(out, 0, 0)[0] == (float)(i / ROUND * ROUND));
        ch_tuple_unref(out);
        ch_remote_unref(r[i]);
    }
    t_ok(ch_coordinator_join(s.co));
    assert_true(t_value_of(s.n) == STEPS);
    ch_function_unref(f);
    t_close(&s);
}

/* A step of a round: adds its input to n. The bits of the sum depend on the order. */
static void add_step(ch_step *s, void *arg)
{
    scene *c = arg;

    ch_var_assign_add(s, c->n, ch_step_in(s, 0));
}

/* The same, and returns the sum. */
static void add_and_read_step(ch_step *s, void *arg)
{
    scene *c = arg;

    ch_var_assign_add(s, c->n, ch_step_in(s, 0));
    ch_step_out(s, "n", ch_var_read(s, c->n));
}

static float addend(int i)
{
    return 1.0f / (float)(3 + i * 37 % 101);
}

static void schedule_add(scene *s, ch_function *f, int i, ch_remote **out)
{
    ch_tuple *in = t_tuple(1, (ch_tensor *[]){t_f32(ch_shape_scalar(), (float[]){addend(i)})});

    t_ok(ch_coordinator_schedule(s->co, f, &(ch_arguments){.in = in}, out));
    ch_tuple_unref(in);
}

/* The sum has the bits of the sum in the order of the steps, however long steps take, also if
 * workers are killed. */
static void synchronous_round_applies_updates_in_the_order_of_its_steps(void **state)
{
    enum { STEPS = 60 };

    (void)state;
    for (int round = 0; round <= 8; round += 2)
        for (int kills = 0; kills < 2; kills++) {
            scene        s;
            ch_function *f;
            float        sum = 0;

            t_open(&s, &three_workers, 5,
                   &(ch_coordinator_options){
                       .mode = CH_SYNCHRONOUS, .round = round, .backups = kills});
            f = t_function(add_step, &s);
            for (int i = 0; i < 3 && kills; i++) {
                t_kill_in(&s, 7 + 40 * i, "worker", i);
                t_restart_in(&s, 27 + 40 * i, "worker", i);
            }
            for (int i = 0; i < STEPS; i++) {
                schedule_add(&s, f, i, NULL);
                sum += addend(i);
            }
            t_ok(ch_coordinator_join(s.co));
            assert_true(t_value_of(s.n) == (double)sum);
            ch_function_unref(f);
            t_close(&s);
        }
}

/* Steps that use the results of their updates see the updates of the steps before them, and no
 * others. Other steps of the round may lie between them. */
static void synchronous_round_gives_results_in_the_order_of_its_steps(void **state)
{
    enum { STEPS = 24 };
    scene        s;
    ch_function *f[2];
    ch_remote   *r[STEPS] = {NULL};
    float        sum = 0;

    (void)state;
    t_open(&s, &three_workers, 5,
           &(ch_coordinator_options){.mode = CH_SYNCHRONOUS, .round = 6});
    f[0] = t_function(add_step, &s);
    f[1] = t_function(add_and_read_step, &s);
    for (int i = 0; i < STEPS; i++)
        schedule_add(&s, f[i % 5 % 2], i, &r[i]);
    for (int i = 0; i < STEPS; i++) {
        ch_tuple *out = NULL;

        t_ok(ch_remote_fetch(r[i], &out));
        sum += addend(i);
        if (i % 5 % 2 == 1)
            assert_true(t_floats(out, 0, 0)[0] == sum);
        ch_tuple_unref(out);
        ch_remote_unref(r[i]);
    }
    assert_true(t_value_of(s.n) == (double)sum);
    ch_function_unref(f[0]);
    ch_function_unref(f[1]);
    t_close(&s);
}

static void fail_step(ch_step *s, void *arg)
{
    (void)arg;
    ch_check(ch_greater(ch_step_in(s, 0), ch_number(s, 0)), "it is not above 0");
}

static void set_to(ch_var *v, float x)
{
    ch_tensor *t = t_f32(ch_shape_scalar(), &x);

    t_ok(ch_var_set(v, t));
    ch_tensor_unref(t);
}

/* An error ends a round. The next step begins a new round and reads the current values. */
static void a_round_begins_anew_when_join_has_returned_an_error(void **state)
{
    scene        s;
    ch_function *peek, *fails = t_function(fail_step, NULL);
    ch_tuple    *bad = t_tuple(1, (ch_tensor *[]){t_f32(ch_shape_scalar(), NULL)}), *out = NULL;
    ch_remote   *r = NULL;

    (void)state;
    t_open(&s, &three_workers, 5,
           &(ch_coordinator_options){.mode = CH_SYNCHRONOUS, .round = 8});
    peek = t_function(peek_step, &s);
    t_ok(ch_coordinator_schedule(s.co, peek, NULL, NULL));
    t_ok(ch_coordinator_schedule(s.co, fails, &(ch_arguments){.in = bad}, NULL));
    assert_int_equal(ch_coordinator_join(s.co), CH_INVALID_ARGUMENT);
    set_to(s.n, 100);
    for (int i = 0; i < 8; i++) { /* a whole round, counted from the join */
        t_ok(ch_coordinator_schedule(s.co, peek, NULL, &r));
        t_ok(ch_remote_fetch(r, &out));
        assert_true(t_floats(out, 0, 0)[0] == 100);
        ch_tuple_unref(out);
        ch_remote_unref(r);
    }
    t_ok(ch_coordinator_schedule(s.co, peek, NULL, &r));
    t_ok(ch_remote_fetch(r, &out));
    assert_true(t_floats(out, 0, 0)[0] == 108);
    ch_tuple_unref(out);
    ch_remote_unref(r);
    ch_tuple_unref(bad);
    ch_function_unref(peek);
    ch_function_unref(fails);
    t_close(&s);
}

/* ---- statistics and limits ---- */

/* DG-2, DG-3: two runs of a function are counted as 1 recording and 2 steps; a restart is
 * counted as 1 lost worker. */
static void coordinator_stats_count_steps_and_lost_workers(void **state)
{
    scene                s;
    ch_coordinator_stats stats;

    (void)state;
    t_open(&s, &three_workers, 10, NULL);
    t_schedule(&s, 2);
    stats = t_stats(&s);
    assert_int_equal(stats.queued + stats.running, 2);
    assert_int_equal(stats.workers, 3);
    t_ok(ch_coordinator_join(s.co));
    assert_int_equal(ch_function_recordings(s.count), 1);
    stats = t_stats(&s);
    assert_int_equal(stats.finished, 2);
    assert_int_equal(
        stats.queued + stats.running + stats.failed + stats.cancelled + stats.repeated, 0);
    t_ok(ch_local_cluster_kill(s.cluster, "worker", 1));
    t_ok(ch_local_cluster_restart(s.cluster, "worker", 1));
    t_pass(&s, 1000);
    stats = t_stats(&s);
    assert_int_equal(stats.workers_lost, 1);
    assert_int_equal(stats.ready, 3);
    t_close(&s);
}

/* DG-1: a step that takes too long fails with an error that names its worker; it is not only
 * logged. */
static void a_step_that_takes_too_long_is_an_error(void **state)
{
    scene      s;
    ch_remote *r = NULL;
    ch_tuple  *out = NULL;

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.workers = 1}, 60000,
           &(ch_coordinator_options){.step_seconds = 0.001});
    t_ok(ch_coordinator_schedule(s.co, s.count, NULL, &r));
    t_refused(ch_remote_fetch(r, &out), CH_DEADLINE_EXCEEDED, "worker/0", "in 0.001 s");
    t_refused(ch_coordinator_join(s.co), CH_DEADLINE_EXCEEDED, "worker/0", "step_seconds");
    ch_remote_unref(r);
    t_close(&s);
}

static void slow_down(scene *s, int step_ms)
{
    ch__sim_faults(s->net, &(ch_sim_options){.seed = 7, .work_us = 1000 * step_ms});
}

static ch_worker_stats stats_of(scene *s, int worker)
{
    ch_worker_stats stats;

    t_ok(ch_coordinator_get_worker_stats(s->co, worker, &stats));
    return stats;
}

/* A worker whose step exceeds the limit gets no steps until it is free: other workers run
 * them. */
static void steps_go_to_other_workers_when_one_is_overdue(void **state)
{
    scene      s;
    ch_remote *slow = NULL;
    ch_tuple  *out = NULL;
    int        overdue;
    int64_t    finished;

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.workers = 2}, 1,
           &(ch_coordinator_options){.step_seconds = 0.1});
    t_schedule(&s, 10);
    t_ok(ch_coordinator_join(s.co));
    slow_down(&s, 100000);
    t_ok(ch_coordinator_schedule(s.co, s.count, NULL, &slow));
    t_pass(&s, 10); /* a worker computes for some seconds */
    slow_down(&s, 1);
    t_refused(ch_remote_fetch(slow, &out), CH_DEADLINE_EXCEEDED, "worker/", "in 0.1 s");
    assert_int_equal(ch_coordinator_join(s.co), CH_DEADLINE_EXCEEDED);
    overdue = stats_of(&s, 0).is_ready ? 1 : 0;
    assert_false(stats_of(&s, overdue).is_ready);
    assert_true(stats_of(&s, 1 - overdue).is_ready);
    assert_int_equal(t_stats(&s).ready, 1);
    finished = stats_of(&s, overdue).finished;
    for (int i = 0; i < 20; i++) {
        t_schedule(&s, 10);
        for (int k = 0; k < 5; k++, t_pass(&s, 1))
            assert_int_equal(stats_of(&s, overdue).running, 0);
        t_ok(ch_coordinator_join(s.co));
    }
    assert_int_equal(stats_of(&s, overdue).finished, finished);
    assert_true(t_value_of(s.n) == 210);
    assert_int_equal(t_stats(&s).failed, 1);
    t_pass(&s, 200000); /* the overdue worker is free again and can run all steps */
    assert_true(stats_of(&s, overdue).is_ready);
    for (int i = 0; i < 2; i++) {
        t_ok(ch_local_cluster_kill(s.cluster, "worker", i));
        t_schedule(&s, 10);
        t_ok(ch_coordinator_join(s.co));
        t_ok(ch_local_cluster_restart(s.cluster, "worker", i));
        t_pass(&s, 1000);
    }
    assert_true(t_value_of(s.n) == 230);
    ch_remote_unref(slow);
    t_close(&s);
}

/* If there is no other worker, steps wait until the overdue worker is free, and then run. */
static void steps_wait_for_a_worker_that_is_overdue(void **state)
{
    scene      s;
    ch_remote *slow = NULL;
    ch_tuple  *out = NULL;

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.workers = 1}, 1,
           &(ch_coordinator_options){.step_seconds = 0.1});
    t_schedule(&s, 10);
    t_ok(ch_coordinator_join(s.co));
    slow_down(&s, 20000);
    t_ok(ch_coordinator_schedule(s.co, s.count, NULL, &slow));
    t_pass(&s, 10);
    t_schedule(&s, 3);
    slow_down(&s, 1);
    assert_int_equal(t_stats(&s).moved, 0);
    t_refused(ch_remote_fetch(slow, &out), CH_DEADLINE_EXCEEDED, "worker/0", "in 0.1 s");
    assert_int_equal(t_stats(&s).moved, 1); /* the step that the worker would have run next */
    assert_int_equal(stats_of(&s, 0).running, 0);
    assert_int_equal(ch_coordinator_join(s.co), CH_DEADLINE_EXCEEDED);
    assert_int_equal(t_stats(&s).ready, 0);
    t_schedule(&s, 10);
    t_pass(&s, 10);
    assert_int_equal(t_stats(&s).queued, 10);
    assert_int_equal(stats_of(&s, 0).running, 0);
    t_ok(ch_coordinator_join(s.co));
    assert_true(t_value_of(s.n) == 20);
    assert_int_equal(t_stats(&s).failed, 1);
    ch_remote_unref(slow);
    t_close(&s);
}

/* If step_seconds exceeds the limit of waits, join and fetch wait for step_seconds. */
static void join_and_fetch_wait_as_long_as_step_seconds(void **state)
{
    scene      s;
    ch_remote *r = NULL;
    int        n_long = 0;

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.workers = 1}, 1,
           &(ch_coordinator_options){.step_seconds = 3000});
    slow_down(&s, 2000000);
    for (int i = 0; i < 12; i++) {
        ch_tuple *out = NULL;
        int64_t   began = ch__sim_now(s.net);

        t_ok(ch_coordinator_schedule(s.co, s.count, NULL, &r));
        t_ok(i % 2 == 0 ? ch_coordinator_join(s.co) : ch_remote_fetch(r, &out));
        n_long += ch__sim_now(s.net) - began > ch__config()->wait_limit_ms * ms;
        ch_tuple_unref(out);
        ch_remote_unref(r);
    }
    assert_true(n_long > 4);
    t_close(&s);
}

/* When a wait reaches its deadline, the steps continue and can be waited for later. */
static void join_for_and_fetch_for_end_at_their_deadline(void **state)
{
    scene         s;
    ch_remote    *r = NULL;
    ch_tuple     *out = NULL;
    ch_error_info at;
    int64_t       began;

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.workers = 1}, 1, NULL);
    t_ok(ch_coordinator_join_for(s.co, 0)); /* no step is queued or running */
    slow_down(&s, 100000);
    t_ok(ch_coordinator_schedule(s.co, s.count, NULL, &r));
    began = ch__sim_now(s.net);
    t_refused(ch_coordinator_join_for(s.co, 0), CH_DEADLINE_EXCEEDED, "steps", "wait");
    t_refused(ch_remote_fetch_for(r, 0, &out), CH_DEADLINE_EXCEEDED,
              "fetch: step 1 of step: ", "would have to wait for the step to end");
    assert_true(ch__sim_now(s.net) == began);
    t_refused(ch_coordinator_join_for(s.co, 0.05), CH_DEADLINE_EXCEEDED,
              "join: waited 50 ms for scheduled steps", "; 1 of 1 workers are ready");
    t_refused(ch_remote_fetch_for(r, 0.05, &out), CH_DEADLINE_EXCEEDED,
              "fetch: step 1 of step: waited 50 ms for the step to end",
              "; 1 of 1 workers are ready");
    ch_error_get_info(&at);
    assert_int_equal(at.step, 1);
    assert_string_equal(at.function, "step");
    assert_true(ch__sim_now(s.net) - began < 200 * ms);
    assert_false(ch_remote_has_ended(r));
    t_refused(ch_coordinator_join_for(s.co, -1), CH_INVALID_ARGUMENT, "join: seconds",
              "got -1");
    t_refused(ch_remote_fetch_for(r, (double)NAN, &out), CH_INVALID_ARGUMENT, "fetch: seconds",
              "want 0 or more");
    t_ok(ch_remote_fetch_for(r, 1e300, &out));
    t_ok(ch_coordinator_join_for(s.co, 1e300));
    assert_true(t_value_of(s.n) == 1);
    ch_tuple_unref(out);
    ch_remote_unref(r);
    t_close(&s);
}

/* The statistics have the state of each worker and name the lost worker. */
static void statistics_say_which_worker_is_lost(void **state)
{
    scene           s;
    ch_worker_stats w[3];
    int64_t         n = 0;

    (void)state;
    t_open(&s, &three_workers, 10, NULL);
    t_schedule(&s, 30);
    t_ok(ch_coordinator_join(s.co));
    assert_int_equal(t_stats(&s).last_lost, -1);
    t_ok(ch_local_cluster_kill(s.cluster, "worker", 1));
    t_pass(&s, 1000);
    assert_int_equal(t_stats(&s).last_lost, 1);
    for (int i = 0; i < 3; i++) {
        t_ok(ch_coordinator_get_worker_stats(s.co, i, &w[i]));
        assert_int_equal(w[i].is_ready, i != 1);
        assert_int_equal(w[i].lost, i == 1);
        assert_int_equal(w[i].running, 0);
        assert_true(w[i].finished > 0);
        n += w[i].finished;
    }
    assert_int_equal(n, 30);
    t_refused(ch_coordinator_get_worker_stats(s.co, 3, w), CH_INVALID_ARGUMENT, "no worker 3",
              "want 0 to 2");
    t_refused(ch_coordinator_get_worker_stats(s.co, -1, w), CH_INVALID_ARGUMENT, "no worker -1",
              "want 0 to 2");
    t_close(&s);
}

/* A run whose caller waits begins before all scheduled steps, however many are queued. */
static void a_run_does_not_wait_behind_a_full_queue(void **state)
{
    scene s;

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.workers = 2}, 10,
           &(ch_coordinator_options){.capacity = 200});
    t_schedule(&s, 200);
    for (int i = 0; i < 3; i++)
        t_ok(ch_strategy_run(s.st, s.count, NULL, NULL));
    assert_true(t_stats(&s).queued > 150);
    t_ok(ch_coordinator_join(s.co));
    assert_true(t_value_of(s.n) == 203);
    t_close(&s);
}

/* Nor does a run that reads a snapshot, as those of ch_evaluate and ch_predict do. */
static void an_evaluation_does_not_wait_behind_a_full_queue(void **state)
{
    scene      s;
    uint64_t   snapshot = 0;
    ch_started run;

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.workers = 2}, 10,
           &(ch_coordinator_options){.capacity = 200});
    t_schedule(&s, 200);
    t_ok(s.st->exec->snapshot(s.st, &snapshot));
    t_ok(ch__strategy_start(s.st, s.count, NULL, snapshot, &run));
    t_ok(s.st->exec->wait(&run, NULL));
    assert_true(t_stats(&s).queued > 150);
    s.st->exec->release(s.st, snapshot);
    t_ok(ch_coordinator_join(s.co));
    assert_true(t_value_of(s.n) == 201);
    t_close(&s);
}

/* Very large values of step_seconds do not overflow. */
static void step_seconds_do_not_overflow(void **state)
{
    static const double seconds[] = {1e-12, 1e9, 1e10, 1e300};

    (void)state;
    for (int i = 0; i < 4; i++) {
        scene s;

        t_open(&s, &(ch_local_cluster_options){.workers = 1}, 100,
               &(ch_coordinator_options){.step_seconds = seconds[i]});
        t_schedule(&s, 10);
        if (i == 0)
            t_refused(ch_coordinator_join(s.co), CH_DEADLINE_EXCEEDED, "in 1e-09 s",
                      "step_seconds");
        else
            t_ok(ch_coordinator_join(s.co));
        t_close(&s);
    }
}

/* The time in which a step waits for the steps before it on the same worker does not count. */
static void a_step_that_waits_for_its_worker_is_not_late(void **state)
{
    scene s;

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.workers = 1}, 100,
           &(ch_coordinator_options){.step_seconds = 0.25});
    t_schedule(&s, 40);
    t_ok(ch_coordinator_join(s.co));
    assert_true(t_value_of(s.n) == 40);
    t_close(&s);
}

enum { FAST = 20 };

/* 20 fast steps, and after them a slow step, whose server takes 20 s. */
typedef struct late_scene {
    scene        s, on_ps_1;
    ch_function *f;
    ch_remote   *fast[FAST], *slow;
} late_scene;

static void open_late(late_scene *c, const ch_sim_options *net)
{
    memset(c, 0, sizeof(*c));
    t_open(&c->s, &(ch_local_cluster_options){.ps = 2, .workers = 1}, 1,
           &(ch_coordinator_options){.step_seconds = 0.5});
    ch__sim_faults(c->s.net, net);
    for (uint64_t i = 0; i < net->seed; i++)
        (void)ch__sim_draw(c->s.net, 2); /* advances the random numbers */
    c->on_ps_1.n = t_var_in(c->s.st, "on ps/1", 0);
    c->f = t_function(t_count_step, &c->on_ps_1);
    t_schedule(&c->s, 100); /* a fast worker gets many steps at a time */
    t_ok(ch_coordinator_schedule(c->s.co, c->f, NULL, NULL));
    t_ok(ch_coordinator_join(c->s.co));
    ch__sim_slow(c->s.net, "ps/1", CH_PS_UPDATE, 20000 * ms);
    for (int i = 0; i < FAST; i++)
        t_ok(ch_coordinator_schedule(c->s.co, c->s.count, NULL, &c->fast[i]));
    t_ok(ch_coordinator_schedule(c->s.co, c->f, NULL, &c->slow));
}

static void fetch_fast(late_scene *c)
{
    for (int i = 0; i < FAST; i++) {
        ch_tuple *out = NULL;

        t_ok(ch_remote_fetch(c->fast[i], &out));
        ch_tuple_unref(out);
    }
}

static void close_late(late_scene *c)
{
    for (int i = 0; i < FAST; i++)
        ch_remote_unref(c->fast[i]);
    ch_remote_unref(c->slow);
    ch_function_unref(c->f);
    ch_var_unref(c->on_ps_1.n);
    t_close(&c->s);
}

/* The number of steps that the worker received before does not matter. */
static void step_seconds_begin_when_the_step_before_has_ended(void **state)
{
    late_scene c;
    ch_tuple  *out = NULL;
    int64_t    began;

    (void)state;
    open_late(&c, &(ch_sim_options){.least_delay_us = 1, .most_delay_us = 1, .work_us = 10});
    fetch_fast(&c);
    began = ch__sim_now(c.s.net);
    t_refused(ch_remote_fetch(c.slow, &out), CH_DEADLINE_EXCEEDED, "worker/0", "in 0.5 s");
    assert_int_equal(ch__sim_now(c.s.net) - began, 500 * ms);
    close_late(&c);
}

/* The worker runs steps in the order in which the calls arrive, which may differ from the order
 * in which they were sent. */
static void step_seconds_are_of_the_step_that_the_worker_is_at_when_calls_overtake(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        late_scene c;
        ch_tuple  *out = NULL;

        open_late(&c, &(ch_sim_options){.seed = seed, .most_delay_us = 50, .work_us = 10});
        t_refused(ch_remote_fetch(c.slow, &out), CH_DEADLINE_EXCEEDED, "worker/0", "in 0.5 s");
        fetch_fast(&c);
        close_late(&c);
    }
}

/* A worker cannot be stopped inside a kernel. */
static void
step_seconds_begin_when_the_worker_is_done_with_a_step_that_was_dropped(void **state)
{
    scene      s;
    ch_remote *r = NULL;
    ch_tuple  *out = NULL;
    int64_t    began;

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.workers = 2}, 1,
           &(ch_coordinator_options){.step_seconds = 0.1, .backups = true});
    t_schedule(&s, 10);
    t_ok(ch_coordinator_join(s.co));
    slow_down(&s, 100000);
    t_schedule(&s, 1);
    t_pass(&s, 5); /* worker/0 computes for some seconds */
    slow_down(&s, 1);
    t_ok(ch_coordinator_join(s.co));
    assert_int_equal(t_stats(&s).backups, 1); /* worker/1 has run the step */
    t_ok(ch_local_cluster_kill(s.cluster, "worker", 1));
    began = ch__sim_now(s.net);
    t_ok(ch_coordinator_schedule(s.co, s.count, NULL, &r));
    t_ok(ch_remote_fetch(r, &out));
    assert_true(ch__sim_now(s.net) - began > 1000 * ms);
    ch_tuple_unref(out);
    ch_remote_unref(r);
    t_close(&s);
}

/* The strategy keeps a limited number of functions and drops the oldest. Scheduled steps keep
 * the function that they need. */
static void function_lives_as_long_as_its_scheduled_steps(void **state)
{
    enum { MANY = 300 };
    scene s;

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.workers = 2}, 1, NULL);
    for (int i = 0; i < MANY; i++) {
        ch_function *f = t_function(t_count_step, &s);

        t_ok(ch_coordinator_schedule(s.co, f, NULL, NULL));
        ch_function_unref(f);
    }
    t_ok(ch_coordinator_join(s.co));
    assert_true(t_value_of(s.n) == MANY);
    t_close(&s);
}

static void *fetch_often(void *arg)
{
    scene *s = arg;

    for (int i = 0; i < 20; i++) {
        ch_remote *r = NULL;
        ch_tuple  *out = NULL;

        t_ok(ch_coordinator_schedule(s->co, s->count, NULL, &r));
        t_ok(ch_remote_fetch(r, &out));
        ch_tuple_unref(out);
        ch_remote_unref(r);
    }
    return NULL;
}

/* Each thread creates the message that sends the function to workers. No thread frees a message
 * that the steps of another thread need. */
static void function_is_first_scheduled_by_several_threads_at_once(void **state)
{
    enum { THREADS = 4, TIMES = 20 };
    scene     s = {.st = t_cluster(&three_workers, NULL, NULL)};
    pthread_t thread[THREADS];

    (void)state;
    t_ok(ch_coordinator_new(s.st, NULL, &s.co));
    s.n = t_var_in(s.st, "n", 0);
    for (int k = 0; k < TIMES; k++) {
        s.count = t_function(t_count_step, &s);
        for (int i = 0; i < THREADS; i++)
            assert_int_equal(pthread_create(&thread[i], NULL, fetch_often, &s), 0);
        for (int i = 0; i < THREADS; i++)
            assert_int_equal(pthread_join(thread[i], NULL), 0);
        ch_function_unref(s.count);
    }
    s.count = NULL;
    assert_true(t_value_of(s.n) == 20 * THREADS * TIMES);
    t_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_strategy_has_one_coordinator),
        cmocka_unit_test(coordinator_new_names_an_invalid_option),
        cmocka_unit_test(schedule_is_refused_inside_a_step),
        cmocka_unit_test(coordinator_ends_all_steps_when_its_last_reference_is_released),
        cmocka_unit_test(threads_end_with_the_strategy),
        cmocka_unit_test(join_waits_for_all_that_was_scheduled),
        cmocka_unit_test(join_has_no_limit_while_steps_end),
        cmocka_unit_test(idle_worker_takes_steps_that_wait_behind_a_slow_step),
        cmocka_unit_test(step_of_a_round_fails_when_its_update_cannot_be_applied),
        cmocka_unit_test(idle_worker_takes_steps_of_a_worker_that_receives_a_function),
        cmocka_unit_test(steps_that_read_a_worker_s_own_data_stay_with_it),
        cmocka_unit_test(a_step_that_cannot_be_recorded_is_not_scheduled),
        cmocka_unit_test(remote_fetch_returns_results_with_their_names),
        cmocka_unit_test(a_step_without_results_gives_an_empty_tuple),
        cmocka_unit_test(a_result_outlives_its_worker),
        cmocka_unit_test(worker_runs_steps_in_scheduling_order),
        cmocka_unit_test(schedule_waits_for_a_join),
        cmocka_unit_test(a_full_queue_makes_schedule_wait),
        cmocka_unit_test(schedule_waits_when_the_queue_holds_capacity_bytes),
        cmocka_unit_test(coordinator_schedules_and_joins_from_several_threads),
        cmocka_unit_test(staleness_is_bounded),
        cmocka_unit_test(synchronous_round_reads_the_values_of_its_beginning),
        cmocka_unit_test(synchronous_round_applies_updates_in_the_order_of_its_steps),
        cmocka_unit_test(synchronous_round_gives_results_in_the_order_of_its_steps),
        cmocka_unit_test(a_round_begins_anew_when_join_has_returned_an_error),
        cmocka_unit_test(coordinator_stats_count_steps_and_lost_workers),
        cmocka_unit_test(a_step_that_takes_too_long_is_an_error),
        cmocka_unit_test(step_seconds_do_not_overflow),
        cmocka_unit_test(join_for_and_fetch_for_end_at_their_deadline),
        cmocka_unit_test(statistics_say_which_worker_is_lost),
        cmocka_unit_test(a_run_does_not_wait_behind_a_full_queue),
        cmocka_unit_test(an_evaluation_does_not_wait_behind_a_full_queue),
        cmocka_unit_test(steps_go_to_other_workers_when_one_is_overdue),
        cmocka_unit_test(steps_wait_for_a_worker_that_is_overdue),
        cmocka_unit_test(join_and_fetch_wait_as_long_as_step_seconds),
        cmocka_unit_test(a_step_that_waits_for_its_worker_is_not_late),
        cmocka_unit_test(step_seconds_begin_when_the_step_before_has_ended),
        cmocka_unit_test(
            step_seconds_are_of_the_step_that_the_worker_is_at_when_calls_overtake),
        cmocka_unit_test(
            step_seconds_begin_when_the_worker_is_done_with_a_step_that_was_dropped),
        cmocka_unit_test(function_lives_as_long_as_its_scheduled_steps),
        cmocka_unit_test(function_is_first_scheduled_by_several_threads_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
