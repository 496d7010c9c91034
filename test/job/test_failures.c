/* test/job/test_failures.c -- workers and parameter servers that are lost: a test for each
 * scenario.
 *
 * Every step adds 1 to a variable, and takes up to a given number of ms of the virtual clock.
 * Tasks are killed and restarted at chosen times. After each scenario the variable must equal
 * the number of steps: no step was lost, and none was applied twice.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <unistd.h>

#include "job/message.h"
#include "scene.h"
#include "tensor/device.h"

static const ch_local_cluster_options three_workers = {.ps = 2, .workers = 3};

static void all_ran(scene *s, int n)
{
    t_ok(ch_coordinator_join(s->co));
    assert_true(t_value_of(s->n) == n);
    assert_int_equal(t_stats(s).finished, n);
}

/* ---- workers ---- */

/* Compares the state of each of three workers with the expected state: `lost` is lost, the
 * others are ready. -1: all are ready. */
static void is_there_but_for(scene *s, int lost)
{
    for (int i = 0; i < 3; i++) {
        ch_worker_stats w;

        t_ok(ch_coordinator_get_worker_stats(s->co, i, &w));
        assert_int_equal(w.is_ready, i != lost);
    }
    assert_int_equal(t_stats(s).workers, 3);
    assert_int_equal(t_stats(s).ready, lost < 0 ? 3 : 2);
}

/* WR-1, CSH-1, CSH-2, PS-9, FC-6: a heartbeat detects the loss of an idle worker too, and the
 * loss is counted. Each worker has its own state. */
static void job_goes_on_when_an_idle_worker_is_lost(void **state)
{
    scene s;

    (void)state;
    t_open(&s, &three_workers, 10, NULL);
    t_schedule(&s, 10);
    all_ran(&s, 10);
    is_there_but_for(&s, -1);
    t_ok(ch_local_cluster_kill(s.cluster, "worker", 1));
    t_pass(&s, 200);
    is_there_but_for(&s, 1);
    assert_int_equal(t_stats(&s).last_lost, 1);
    assert_int_equal(t_stats(&s).workers_lost, 1);
    t_schedule(&s, 10);
    all_ran(&s, 20);
    t_ok(ch_local_cluster_restart(s.cluster, "worker", 1));
    t_pass(&s, 200);
    is_there_but_for(&s, -1);
    t_schedule(&s, 10);
    all_ran(&s, 30);
    t_close(&s);
}

/* WR-2, SC-12, UP-5, FC-5: other workers run its steps. Updates that it had already sent are
 * not applied twice. */
static void job_runs_each_step_once_when_a_worker_is_lost_during_steps(void **state)
{
    (void)state;
    for (int at = 1; at < 60; at += 7) {
        scene s;

        t_open(&s, &three_workers, 20, NULL);
        t_schedule(&s, 30);
        t_kill_in(&s, at, "worker", 1);
        all_ran(&s, 30);
        assert_int_equal(t_stats(&s).workers_lost, 1);
        t_close(&s);
    }
}

static void first_step(ch_step *s, void *arg)
{
    scene *c = arg;

    ch_var_assign_add(s, c->n, ch_cast(ch_step_in(s, 0), CH_F32));
}

/* Kills and restarts a worker at this time, while it receives the description of its data. */
static void lose_it_while_data_is_made(int64_t at_us)
{
    scene          s;
    ch_dataset    *d = ch_dataset_range(1, 11, 1);
    ch_per_worker *data = NULL, *it = NULL;
    ch_function   *f;

    t_open(&s, &(ch_local_cluster_options){.ps = 1, .workers = 1}, 1, NULL);
    f = t_function(first_step, &s);
    t_at(&s, at_us, kill_on_cue, "worker", 0);
    t_at(&s, at_us + 30000, restart_on_cue, "worker", 0);
    t_ok(ch_coordinator_create_per_worker_dataset(s.co, d, &data));
    t_ok(ch_per_worker_iterate(data, &it));
    for (int i = 0; i < 10; i++)
        t_ok(ch_coordinator_schedule(s.co, f, &(ch_arguments){.n_each = 1, .each = &it}, NULL));
    t_ok(ch_coordinator_join(s.co));
    assert_true(t_value_of(s.n) == 55);
    ch_per_worker_unref(it);
    ch_per_worker_unref(data);
    ch_dataset_unref(d);
    ch_function_unref(f);
    t_close(&s);
}

/* WR-3, WR-10, RD-8 */
static void per_worker_dataset_is_read_once_when_its_worker_is_lost_at_creation(void **state)
{
    (void)state;
    for (int64_t us = 0; us < 1500; us += 50)
        lose_it_while_data_is_made(us);
}

static void read_one_step(ch_step *s, void *arg)
{
    scene *c = arg;

    ch_var_assign_add(s, c->n, ch_number(s, 1));
    ch_step_out(s, "x", ch_step_in(s, 0));
}

/* WR-5: both workers come back, get their data again and run steps. Each loss is counted
 * once. */
static void job_counts_losses_and_sends_data_again_when_two_workers_are_lost(void **state)
{
    enum { STEPS = 80 };
    scene          s;
    ch_dataset    *d = ch_dataset_range(0, 1000, 1);
    ch_per_worker *data = NULL, *it = NULL;
    ch_function   *f;
    ch_remote     *r[STEPS] = {NULL};
    int            n_seen[STEPS] = {0}, n_read[3] = {0};

    (void)state;
    t_open(&s, &three_workers, 20, NULL);
    f = t_function(read_one_step, &s);
    t_ok(ch_coordinator_create_per_worker_dataset(s.co, d, &data));
    t_ok(ch_per_worker_iterate(data, &it));
    t_kill_in(&s, 33, "worker", 0);
    t_kill_in(&s, 33, "worker", 2);
    t_restart_in(&s, 90, "worker", 0);
    t_restart_in(&s, 90, "worker", 2);
    for (int i = 0; i < STEPS; i++) {
        if (i == STEPS / 2) {
            t_ok(ch_coordinator_join(s.co));
            t_pass(&s, 300);
            assert_int_equal(t_stats(&s).ready, 3);
        }
        t_ok(
            ch_coordinator_schedule(s.co, f, &(ch_arguments){.n_each = 1, .each = &it}, &r[i]));
    }
    all_ran(&s, STEPS);
    assert_int_equal(t_stats(&s).workers_lost, 2);
    for (int i = 0; i < STEPS; i++) { /* each worker's numbers: 0, 1, 2, ... */
        ch_tuple *out = NULL;

        t_ok(ch_remote_fetch(r[i], &out));
        n_seen[*(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(out, 0), 0))]++;
        ch_tuple_unref(out);
        ch_remote_unref(r[i]);
    }
    for (int i = 0; i < STEPS; i++) {
        assert_in_range(n_seen[i], 0, i > 0 ? n_seen[i - 1] : 3);
        for (int w = 0; w < n_seen[i]; w++)
            n_read[w]++;
    }
    assert_true(n_read[1] > 0 && n_read[2] > 0); /* also the restarted workers have read */
    ch_per_worker_unref(it);
    ch_per_worker_unref(data);
    ch_dataset_unref(d);
    ch_function_unref(f);
    t_close(&s);
}

/* WR-5: if a restarted worker fails to create its data with another error, the steps that read
 * the data fail with that error. */
static void steps_fail_with_the_data_error_when_a_restarted_worker_has_no_data(void **state)
{
    char           path[] = "/tmp/cohort-failures-XXXXXX";
    int            fd = mkstemp(path);
    scene          s;
    ch_dataset    *d;
    ch_per_worker *data = NULL, *it = NULL;
    ch_function   *f;

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "12345678", 8), 8);
    assert_int_equal(close(fd), 0);
    d = ch_dataset_repeat(ch_dataset_fixed_records(
                              ch_dataset_file_list(1, (const char *[]){path}), 8, 0, 0, NULL),
                          CH_INFINITE);
    t_open(&s, &(ch_local_cluster_options){.ps = 1, .workers = 1}, 1, NULL);
    f = t_function(t_count_step, &s);
    t_ok(ch_coordinator_create_per_worker_dataset(s.co, d, &data));
    t_ok(ch_per_worker_iterate(data, &it));
    t_ok(ch_coordinator_schedule(s.co, f, &(ch_arguments){.n_each = 1, .each = &it}, NULL));
    all_ran(&s, 1);
    t_ok(ch_local_cluster_kill(s.cluster, "worker", 0));
    assert_int_equal(unlink(path), 0);
    t_ok(ch_coordinator_schedule(s.co, f, &(ch_arguments){.n_each = 1, .each = &it}, NULL));
    t_restart_in(&s, 100, "worker", 0);
    t_refused(ch_coordinator_join(s.co), CH_NOT_FOUND, path, "worker/0");
    t_schedule(&s, 1); /* the worker runs steps that do not read the data */
    all_ran(&s, 2);
    assert_int_equal(t_stats(&s).workers_lost, 1);
    ch_per_worker_unref(it);
    ch_per_worker_unref(data);
    ch_dataset_unref(d);
    ch_function_unref(f);
    t_close(&s);
}

/* The worker runs and can reach the servers, but the coordinator cannot reach it. Another
 * worker runs its steps. Servers must reject its further updates, because they belong to a
 * fenced registration. */
static void server_rejects_updates_of_a_live_worker_that_was_declared_lost(void **state)
{
    (void)state;
    for (int at = 1; at < 1000; at += 111) {
        scene  s;
        double before;

        t_open(&s, &(ch_local_cluster_options){.ps = 2, .workers = 1}, 1000, NULL);
        t_schedule(&s, 6);
        t_pass(&s, at);
        ch__sim_cut(s.net, "chief/0", "worker/0", true);
        t_pass(&s, 200);
        assert_int_equal(t_stats(&s).ready, 0);
        before = t_value_of(s.n);
        t_pass(&s, 5000);
        assert_true(t_value_of(s.n) == before);
        ch__sim_cut(s.net, "chief/0", "worker/0", false);
        all_ran(&s, 6);
        assert_int_equal(t_stats(&s).workers_lost, 1);
        t_close(&s);
    }
}

static void job_runs_each_step_once_when_a_worker_is_lost_twice(void **state)
{
    scene s;

    (void)state;
    t_open(&s, &three_workers, 20, NULL);
    t_schedule(&s, 60);
    t_kill_in(&s, 15, "worker", 1);
    t_restart_in(&s, 16, "worker", 1);
    t_kill_in(&s, 70, "worker", 1);
    t_restart_in(&s, 95, "worker", 1);
    all_ran(&s, 60);
    assert_int_equal(t_stats(&s).workers_lost, 2);
    t_pass(&s, 200);
    assert_int_equal(t_stats(&s).ready, 3);
    t_close(&s);
}

/* WR-7, WR-9: join waits for a worker that comes back, although the queue is full as well. */
static void join_waits_for_a_restarted_worker_when_all_are_lost(void **state)
{
    scene s;

    (void)state;
    t_open(&s, &three_workers, 20, &(ch_coordinator_options){.capacity = 8});
    for (int i = 0; i < 3; i++)
        t_kill_in(&s, 30, "worker", i);
    t_restart_in(&s, 5000, "worker", 2);
    t_schedule(&s, 60); /* waits for space in the queue: no worker runs steps */
    assert_true(ch__sim_now(s.net) > 5000 * ms);
    all_ran(&s, 60);
    assert_int_equal(t_stats(&s).ready, 1);
    t_close(&s);
}

/* WR-6: join does not wait for ever. It returns the error of the wait. When a worker comes
 * back, the steps continue. */
static void join_ends_at_its_deadline_when_no_worker_comes_back(void **state)
{
    scene s;

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.workers = 2}, 20, NULL);
    t_schedule(&s, 10);
    t_kill_in(&s, 15, "worker", 0);
    t_kill_in(&s, 15, "worker", 1);
    t_refused(ch_coordinator_join(s.co), CH_DEADLINE_EXCEEDED, "0 of 2 workers", "scheduled");
    assert_true(t_stats(&s).queued > 0);
    t_ok(ch_local_cluster_restart(s.cluster, "worker", 1));
    all_ran(&s, 10);
    t_close(&s);
}

/* WR-8: a worker that never returns does not prevent other workers from returning. */
static void restarted_worker_is_used_while_another_stays_lost(void **state)
{
    scene s;

    (void)state;
    t_open(&s, &three_workers, 20, NULL);
    t_schedule(&s, 30);
    t_kill_in(&s, 20, "worker", 0);
    t_kill_in(&s, 25, "worker", 1);
    t_restart_in(&s, 60, "worker", 1);
    all_ran(&s, 30);
    t_pass(&s, 200);
    assert_int_equal(t_stats(&s).ready, 2);
    t_close(&s);
}

/* WR-4, FC-3: a worker runs and can reach the servers, but not the coordinator. The servers
 * reject its late updates, and other workers run its steps. This may happen any number of
 * times. */
static void job_applies_each_step_once_when_a_worker_is_cut_off_repeatedly(void **state)
{
    enum { TIMES = 12, STEPS = 200 };
    scene s;

    (void)state;
    t_open(&s, &three_workers, 100, NULL);
    t_schedule(&s, STEPS);
    for (int i = 0; i < TIMES; i++) {
        t_pass(&s, 60);
        ch__sim_cut(s.net, "chief/0", "worker/1", true);
        t_pass(&s, 300);
        assert_int_equal(t_stats(&s).ready, 2);
        assert_int_equal(t_stats(&s).workers_lost, i + 1);
        ch__sim_cut(s.net, "chief/0", "worker/1", false);
        t_pass(&s, 200);
        assert_int_equal(t_stats(&s).ready, 3);
    }
    all_ran(&s, STEPS); /* each was applied once, although some were started twice */
    assert_true(t_stats(&s).repeated > 0);
    assert_int_equal(t_stats(&s).failed + t_stats(&s).cancelled, 0);
    t_pass(&s, 1000);
    assert_true(t_value_of(s.n) == STEPS); /* no late update arrives either */
    t_close(&s);
}

/* FC-1, FC-2: the worker cannot reach any server for a while, several times; then it can
 * again. */
static void job_finishes_when_a_server_is_unreachable_for_a_while(void **state)
{
    scene s;

    (void)state;
    t_open(&s, &three_workers, 10, NULL);
    t_schedule(&s, 200);
    for (int i = 0; i < 10; i++) {
        ch__sim_cut(s.net, "worker/0", "ps/0", true);
        ch__sim_cut(s.net, "chief/0", "ps/0", i % 2 == 0);
        t_pass(&s, 40);
        ch__sim_cut(s.net, "worker/0", "ps/0", false);
        ch__sim_cut(s.net, "chief/0", "ps/0", false);
        t_pass(&s, 10);
    }
    all_ran(&s, 200);
    t_close(&s);
}

/* WR-11: variables are read and set while a worker is being replaced. */
static void variables_are_read_and_set_while_a_worker_is_lost(void **state)
{
    scene      s;
    ch_var    *v;
    ch_tensor *t = t_f32(ch_shape_scalar(), (float[]){7});

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.ps = 2, .workers = 1}, 20, NULL);
    t_schedule(&s, 10);
    t_pass(&s, 30);
    t_ok(ch_local_cluster_kill(s.cluster, "worker", 0));
    v = t_var_in(s.st, "v", 3);
    assert_true(t_value_of(v) == 3);
    t_ok(ch_var_set(v, t));
    assert_true(t_value_of(v) == 7);
    t_pass(&s, 300);
    assert_true(t_value_of(v) == 7);
    t_ok(ch_local_cluster_restart(s.cluster, "worker", 0));
    all_ran(&s, 10);
    ch_tensor_unref(t);
    ch_var_unref(v);
    t_close(&s);
}

static void added_worker_runs_steps_of_a_running_job(void **state)
{
    scene s;
    int   task = -1;

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.workers = 1}, 20, NULL);
    t_schedule(&s, 50);
    t_pass(&s, 50);
    t_ok(ch_local_cluster_add_worker(s.cluster, &task));
    assert_int_equal(task, 1);
    t_pass(&s, 50);
    assert_int_equal(t_stats(&s).ready, 2);
    t_ok(ch_local_cluster_kill(s.cluster, "worker", 0)); /* worker 1 runs the other steps */
    all_ran(&s, 50);
    assert_int_equal(t_stats(&s).workers, 2);
    t_close(&s);
}

/* The cluster outlives the strategy. The new worker gets no steps. */
static void local_cluster_adds_a_worker_after_its_strategy_is_freed(void **state)
{
    ch_local_cluster *cluster = NULL;
    ch_strategy      *st = t_cluster(NULL, NULL, &cluster);
    int               task = -1;

    (void)state;
    ch_strategy_unref(st);
    t_ok(ch_local_cluster_add_worker(cluster, &task));
    assert_int_equal(task, 1);
    ch_local_cluster_unref(cluster);
}

/* In synchronous and bounded-staleness mode, a step of a lost worker delays the other steps
 * until another worker has run it. */
static void synchronous_and_bounded_modes_finish_when_workers_are_lost(void **state)
{
    static const ch_coordinator_options how[] = {
        {.mode = CH_SYNCHRONOUS, .round = 4},
        {.mode = CH_SYNCHRONOUS},
        {.mode = CH_BOUNDED_STALENESS, .staleness = 2},
        {.mode = CH_BOUNDED_STALENESS},
    };

    (void)state;
    for (int i = 0; i < 4; i++) {
        scene s;

        t_open(&s, &three_workers, 20, &how[i]);
        t_kill_in(&s, 25, "worker", 0);
        t_kill_in(&s, 55, "worker", 1);
        t_restart_in(&s, 90, "worker", 0);
        t_schedule(&s, 41);
        all_ran(&s, 41);
        assert_int_equal(t_stats(&s).workers_lost, 2);
        t_close(&s);
    }
}

/* A worker that cannot reach any server keeps its steps. With backups, other workers run them
 * too, and its late updates are not applied twice. */
static void backups_run_the_steps_of_a_worker_that_reaches_no_server(void **state)
{
    scene s;

    (void)state;
    t_open(&s, &three_workers, 20, &(ch_coordinator_options){.backups = true});
    t_schedule(&s, 3);
    all_ran(&s, 3);
    ch__sim_cut(s.net, "worker/1", "ps/0", true);
    t_schedule(&s, 30);
    all_ran(&s, 33);
    assert_true(t_stats(&s).backups > 0);
    assert_true(ch__sim_now(s.net) < 10000 * ms);
    ch__sim_cut(s.net, "worker/1", "ps/0", false);
    t_pass(&s, 1000);
    assert_true(t_value_of(s.n) == 33);
    t_close(&s);
}

/* ---- cancellation ---- */

static void fail_step(ch_step *s, void *arg)
{
    (void)arg;
    ch_check(ch_greater(ch_step_in(s, 0), ch_number(s, 0)), "it is not above 0");
}

/* A worker is lost and comes back while a join cancels the scheduled steps. */
static void cancel_and_lose(int64_t at_us)
{
    scene        s;
    ch_function *f = t_function(fail_step, NULL);
    ch_tuple    *bad = t_tuple(1, (ch_tensor *[]){t_f32(ch_shape_scalar(), NULL)});
    double       n;

    t_open(&s, &three_workers, 20, NULL);
    t_schedule(&s, 3);
    t_ok(ch_coordinator_schedule(s.co, f, &(ch_arguments){.in = bad}, NULL));
    t_schedule(&s, 30);
    while (t_stats(&s).failed == 0)
        t_pass(&s, 1);
    t_at(&s, at_us, kill_on_cue, "worker", 1);
    t_at(&s, at_us + 400, restart_on_cue, "worker", 1);
    assert_int_equal(ch_coordinator_join(s.co), CH_INVALID_ARGUMENT);
    n = t_value_of(s.n);
    t_pass(&s, 500);
    assert_true(t_value_of(s.n) == n); /* no cancelled step runs any more */
    assert_true((double)t_stats(&s).finished == n);
    t_schedule(&s, 10);
    t_ok(ch_coordinator_join(s.co));
    assert_true(t_value_of(s.n) == n + 10);
    ch_tuple_unref(bad);
    ch_function_unref(f);
    t_close(&s);
}

static void join_cancels_steps_once_when_a_worker_is_lost_at_the_same_time(void **state)
{
    (void)state;
    for (int64_t us = 0; us < 1200; us += 60)
        cancel_and_lose(us);
    for (int64_t ms_ = 2; ms_ < 40; ms_ += 5)
        cancel_and_lose(1000 * ms_);
}

/* ---- parameter servers ---- */

static void says_which_is_lost(ch_status rc)
{
    t_refused(rc, CH_UNAVAILABLE, "ps/1 (incarnation", "lost");
    assert_null(strstr(ch_error_message(), "ps/1: "));
}

static void lose_a_server(bool comes_back)
{
    scene      s;
    ch_var    *there;
    ch_remote *done = NULL, *r = NULL;
    ch_tensor *t = NULL;
    ch_tuple  *out = NULL;
    bool       is_done = false;

    t_open(&s, &three_workers, 20, NULL);
    there = t_var_in(s.st, "there", 5); /* on ps 1; n is on ps 0 */
    t_ok(ch_coordinator_schedule(s.co, s.count, NULL, &done));
    t_ok(ch_coordinator_join(s.co));
    t_schedule(&s, 20);
    t_ok(ch_coordinator_schedule(s.co, s.count, NULL, &r));
    t_kill_in(&s, 10, "ps", 1);
    if (comes_back)
        t_restart_in(&s, 15, "ps", 1);
    t_pass(&s, 5000);
    says_which_is_lost(ch_coordinator_join(s.co));
    says_which_is_lost(ch_coordinator_join(s.co));
    says_which_is_lost(ch_coordinator_done(s.co, &is_done));
    says_which_is_lost(ch_coordinator_schedule(s.co, s.count, NULL, NULL));
    says_which_is_lost(ch_strategy_run(s.st, s.count, NULL, NULL));
    says_which_is_lost(ch_var_get(there, &t));
    t_ok(ch_remote_fetch(done, &out)); /* results from before the loss can be fetched */
    ch_tuple_unref(out);
    assert_true(ch_remote_has_ended(r));
    assert_true(t_value_of(s.n) >= 1);
    ch_remote_unref(done);
    ch_remote_unref(r);
    ch_var_unref(there);
    t_close(&s);
}

/* FC-7, FC-8, CSH-4: the job ends with an error that names the server, and every later call returns it. The
 * variables of other servers can still be read. */
static void job_ends_with_unavailable_when_a_parameter_server_is_lost(void **state)
{
    (void)state;
    lose_a_server(false);
}

/* FC-8: a server that comes back has lost its variables. */
static void job_stays_ended_when_a_lost_parameter_server_comes_back(void **state)
{
    (void)state;
    lose_a_server(true);
}

/* WR-10b: the only worker is lost with it, and join still reports the loss */
static void join_reports_a_parameter_server_that_is_lost_while_it_waits(void **state)
{
    scene s;

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.ps = 2, .workers = 1}, 20, NULL);
    t_schedule(&s, 100);
    t_kill_in(&s, 100, "ps", 1);
    t_kill_in(&s, 100, "worker", 0);
    says_which_is_lost(ch_coordinator_join(s.co));
    assert_true(ch__sim_now(s.net) < 60000 * ms);
    t_close(&s);
}

/* FC-7: calls that wait for the server and later calls return the error. */
static void variable_calls_name_the_server_when_it_is_lost(void **state)
{
    scene      s;
    ch_var    *there, *more = NULL;
    ch_tensor *t = NULL, *value = t_f32(ch_shape_scalar(), NULL);

    (void)state;
    t_open(&s, &three_workers, 20, NULL);
    there = t_var_in(s.st, "there", 5);
    t_ok(ch_local_cluster_kill(s.cluster, "ps", 1));
    says_which_is_lost(ch_var_get(there, &t));
    says_which_is_lost(ch_var_get(there, &t));
    says_which_is_lost(ch_var_set(there, value));
    assert_true(t_value_of(s.n) == 0);
    t_ok(ch_var_set(s.n, value));
    t_ok(ch_var_new(s.st, &(ch_var_spec){.name = "on 0", .initial = value}, &more));
    ch_var_unref(more);
    says_which_is_lost(
        ch_var_new(s.st, &(ch_var_spec){.name = "on 1", .initial = value}, &more));
    ch_tensor_unref(value);
    ch_var_unref(there);
    t_close(&s);
}

/* FC-1, FC-7, CSH-1: a server that runs but does not reply is lost after a minute, and not
 * before. Then every call returns UNAVAILABLE and names the server. */
static void parameter_server_is_lost_after_a_minute_without_replies(void **state)
{
    scene s;

    (void)state;
    t_open(&s, &three_workers, 20, NULL);
    ch__sim_cut(s.net, "chief/0", "ps/1", true);
    t_pass(&s, 50000);
    t_ok(ch_coordinator_join(s.co));
    ch__sim_cut(s.net, "chief/0", "ps/1", false);
    t_pass(&s, 1000);
    ch__sim_cut(s.net, "chief/0", "ps/1", true);
    t_pass(&s, 50000);
    t_ok(ch_coordinator_join(s.co));
    t_pass(&s, 20000);
    says_which_is_lost(ch_coordinator_join(s.co));
    t_close(&s);
}

/* A busy server replies late. It is not declared lost, and calls to it succeed. */
static void a_parameter_server_that_works_slowly_is_not_lost(void **state)
{
    scene s;

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.ps = 1, .workers = 6}, 1, NULL);
    t_schedule(&s, 6);
    all_ran(&s, 6);
    ch__sim_slow(s.net, "ps/0", CH_PS_UPDATE, 200 * ms); /* 20 ticks each */
    t_schedule(&s, 500);
    t_pass(&s, 65000);
    assert_true(t_value_of(s.n) < 400);
    all_ran(&s, 506);
    assert_true(ch__sim_now(s.net) > 100000 * ms);
    assert_int_equal(t_stats(&s).workers_lost, 0);
    t_close(&s);
}

/* If a call takes longer than its deadline, it is repeated with a longer deadline until it
 * ends. */
static void variable_read_waits_longer_each_time_when_the_server_is_slow(void **state)
{
    scene s;

    (void)state;
    t_open(&s, &three_workers, 20, NULL);
    ch__sim_slow(s.net, "ps/0", CH_PS_READ, 7000 * ms);
    assert_true(t_value_of(s.n) == 0);
    t_close(&s);
}

static void large_step(ch_step *s, void *arg)
{
    ch_step_out(s, "is",
                ch_var_assign_add(s, arg, ch_fill(s, CH_F32, ch_shape_of(1 << 14), 1)));
}

/* While a single step does not end, servers do not keep the records of other steps that have
 * ended. */
static void server_memory_is_bounded_when_a_step_does_not_end(void **state)
{
    enum { STEPS = 500 };
    scene        s;
    ch_tensor   *t = t_f32(ch_shape_of(1 << 14), NULL);
    ch_var      *v;
    ch_function *f;
    ch_device   *device = NULL;
    size_t       bytes = 0;

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.workers = 2}, 1, NULL);
    t_ok(ch_var_new(s.st, &(ch_var_spec){.name = "v", .initial = t}, &v));
    t_ok(ch__device_of_task("ps", 0, 0, &device));
    f = t_function(large_step, v);
    t_schedule(&s, 10);
    all_ran(&s, 10);
    ch__sim_cut(s.net, "worker/1", "ps/0", true);
    for (int i = 0; i < 4; i++) {
        int64_t before = t_stats(&s).finished;

        for (int k = 0; k < STEPS; k++)
            t_ok(ch_coordinator_schedule(s.co, f, NULL, NULL));
        while (t_stats(&s).finished < before + STEPS - 40)
            t_pass(&s, 1);
        assert_true(t_stats(&s).running > 0);
        assert_true(i == 0 || ch_device_bytes(device) < 4 * bytes / 3);
        bytes = i == 0 ? ch_device_bytes(device) : bytes;
    }
    assert_true(bytes < 400 * ((size_t)4 << 14));
    ch__sim_cut(s.net, "worker/1", "ps/0", false);
    t_ok(ch_coordinator_join(s.co));
    assert_int_equal(t_stats(&s).finished, 10 + 4 * STEPS);
    ch_tensor_unref(t);
    ch_function_unref(f);
    ch_var_unref(v);
    t_close(&s);
}

/* Many replies of the server are lost, but the server is not declared lost. */
static void parameter_server_is_not_lost_when_most_messages_are_dropped(void **state)
{
    scene s;

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.ps = 1, .workers = 1}, 1, NULL);
    ch__sim_faults(s.net, &(ch_sim_options){.seed = 7, .drop = 700});
    t_pass(&s, 300000);
    ch__sim_faults(s.net, &(ch_sim_options){.seed = 7});
    t_schedule(&s, 10);
    all_ran(&s, 10);
    t_close(&s);
}

/* A pause of the coordinator itself is not mistaken for the loss of its peers. */
static void coordinator_declares_no_worker_lost_after_its_own_pause(void **state)
{
    scene s;

    (void)state;
    t_open(&s, &three_workers, 20, NULL);
    for (int i = 0; i < 5; i++) {
        t_schedule(&s, 10);
        t_pass(&s, 33);
        ch__sim_jump(s.net, 100000 * ms);
    }
    all_ran(&s, 50);
    assert_int_equal(t_stats(&s).workers_lost, 0);
    t_close(&s);
}

/* Reading a large message takes the worker some time. The coordinator waits that long before it
 * declares the worker lost. */
static void coordinator_waits_for_a_worker_that_receives_a_large_dataset(void **state)
{
    enum { ELEMENTS = 1 << 21 };
    scene          s;
    ch_tensor     *large = t_f32(ch_shape_of(ELEMENTS), NULL);
    ch_dataset    *d = ch_dataset_slices(1, &large, NULL);
    ch_per_worker *data = NULL, *it = NULL;
    ch_function   *f;

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.workers = 1}, 1, NULL);
    f = t_function(first_step, &s);
    t_ok(ch_coordinator_create_per_worker_dataset(s.co, d, &data));
    t_ok(ch_per_worker_iterate(data, &it));
    ch__sim_slow(s.net, "worker/0", CH_WORKER_STREAM, 100 * ms); /* 10 ticks */
    for (int i = 0; i < 10; i++)
        t_ok(ch_coordinator_schedule(s.co, f, &(ch_arguments){.n_each = 1, .each = &it}, NULL));
    t_ok(ch_coordinator_join(s.co));
    assert_int_equal(t_stats(&s).workers_lost, 0);
    ch__sim_slow(s.net, "worker/0", CH_WORKER_PING, 10000 * ms); /* now it is lost */
    t_pass(&s, 100);
    assert_int_equal(t_stats(&s).workers_lost, 1);
    ch_per_worker_unref(it);
    ch_per_worker_unref(data);
    ch_dataset_unref(d);
    ch_tensor_unref(large);
    ch_function_unref(f);
    t_close(&s);
}

/* ---- on threads ---- */

/* The same on real threads: workers are killed and started again while steps run. */
static void job_runs_each_step_once_when_workers_restart_on_threads(void **state)
{
    enum { STEPS = 2000 };
    scene s = {0};

    (void)state;
    s.st = t_cluster(&three_workers, NULL, &s.cluster);
    t_ok(ch_coordinator_new(s.st, NULL, &s.co));
    s.n = t_var_in(s.st, "n", 0);
    s.count = t_function(t_count_step, &s);
    for (int i = 0; i < STEPS; i++) {
        t_schedule(&s, 1);
        if (i % 200 == 50)
            t_ok(ch_local_cluster_kill(s.cluster, "worker", i / 200 % 3));
        if (i % 200 == 150)
            t_ok(ch_local_cluster_restart(s.cluster, "worker", i / 200 % 3));
    }
    all_ran(&s, STEPS);
    t_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(job_goes_on_when_an_idle_worker_is_lost),
        cmocka_unit_test(job_runs_each_step_once_when_a_worker_is_lost_during_steps),
        cmocka_unit_test(per_worker_dataset_is_read_once_when_its_worker_is_lost_at_creation),
        cmocka_unit_test(job_counts_losses_and_sends_data_again_when_two_workers_are_lost),
        cmocka_unit_test(steps_fail_with_the_data_error_when_a_restarted_worker_has_no_data),
        cmocka_unit_test(server_rejects_updates_of_a_live_worker_that_was_declared_lost),
        cmocka_unit_test(job_runs_each_step_once_when_a_worker_is_lost_twice),
        cmocka_unit_test(join_waits_for_a_restarted_worker_when_all_are_lost),
        cmocka_unit_test(join_ends_at_its_deadline_when_no_worker_comes_back),
        cmocka_unit_test(restarted_worker_is_used_while_another_stays_lost),
        cmocka_unit_test(job_applies_each_step_once_when_a_worker_is_cut_off_repeatedly),
        cmocka_unit_test(job_finishes_when_a_server_is_unreachable_for_a_while),
        cmocka_unit_test(variables_are_read_and_set_while_a_worker_is_lost),
        cmocka_unit_test(added_worker_runs_steps_of_a_running_job),
        cmocka_unit_test(local_cluster_adds_a_worker_after_its_strategy_is_freed),
        cmocka_unit_test(synchronous_and_bounded_modes_finish_when_workers_are_lost),
        cmocka_unit_test(backups_run_the_steps_of_a_worker_that_reaches_no_server),
        cmocka_unit_test(join_cancels_steps_once_when_a_worker_is_lost_at_the_same_time),
        cmocka_unit_test(job_ends_with_unavailable_when_a_parameter_server_is_lost),
        cmocka_unit_test(job_stays_ended_when_a_lost_parameter_server_comes_back),
        cmocka_unit_test(join_reports_a_parameter_server_that_is_lost_while_it_waits),
        cmocka_unit_test(variable_calls_name_the_server_when_it_is_lost),
        cmocka_unit_test(parameter_server_is_lost_after_a_minute_without_replies),
        cmocka_unit_test(a_parameter_server_that_works_slowly_is_not_lost),
        cmocka_unit_test(variable_read_waits_longer_each_time_when_the_server_is_slow),
        cmocka_unit_test(server_memory_is_bounded_when_a_step_does_not_end),
        cmocka_unit_test(parameter_server_is_not_lost_when_most_messages_are_dropped),
        cmocka_unit_test(coordinator_declares_no_worker_lost_after_its_own_pause),
        cmocka_unit_test(coordinator_waits_for_a_worker_that_receives_a_large_dataset),
        cmocka_unit_test(job_runs_each_step_once_when_workers_restart_on_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
