/* test/job/test_cut.c -- cuts: snapshots in which every step is complete or absent, and the
 * positions of per-worker datasets that belong to them.
 *
 * Most tests run in the simulator. A step adds 1 to a variable on each of two servers, so a cut
 * is consistent if both have the same value. test_sim.c takes cuts under random faults.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdlib.h>

#include "base/fault.h"
#include "base/mem.h"
#include "job/coordinator/private.h"
#include "rows.h"
#include "scene.h"
#include "strategy/coordinator.h"
#include "strategy/cut.h"

enum { SERVERS = 2 };

/* ---- a job with a variable on each server ---- */

typedef struct job {
    scene        s;
    ch_var      *n[SERVERS];
    ch_function *step;
    int64_t      runs; /* of the step in the last cut */
} job;

static void add_one(ch_step *s, void *arg)
{
    const job *j = arg;

    for (int i = 0; i < SERVERS; i++)
        ch_var_assign_add(s, j->n[i], ch_number(s, 1));
}

static void open_job(job *j, int workers, int step_ms, const ch_coordinator_options *opt)
{
    t_open(&j->s, &(ch_local_cluster_options){.ps = SERVERS, .workers = workers}, step_ms, opt);
    j->n[0] = j->s.n; /* the scene's variable is on the first server */
    j->n[1] = t_var_in(j->s.st, "other", 0);
    assert_int_equal(ch__cut_server_of(j->n[0]), 0);
    assert_int_equal(ch__cut_server_of(j->n[1]), 1);
    j->step = t_function(add_one, j);
    j->runs = -1;
}

static void close_job(job *j)
{
    ch_function_unref(j->step);
    ch_var_unref(j->n[1]);
    t_close(&j->s);
}

static void schedule(job *j, int n)
{
    for (int i = 0; i < n; i++)
        t_ok(ch_coordinator_schedule(j->s.co, j->step, NULL, NULL));
}

/* Called while no step runs. */
static ch_status record(void *arg)
{
    job *j = arg;

    j->runs = ch__cut_function_runs(j->s.st, j->step);
    return CH_OK;
}

/* Returns the number of steps in a cut, which must be the same on both servers. */
static int steps_in(const job *j, const ch_cut *cut)
{
    float x[SERVERS];

    for (int i = 0; i < SERVERS; i++)
        t_ok(ch__cut_read(cut, j->n[i], NULL, &x[i]));
    assert_true(x[0] == x[1]);
    return (int)x[0];
}

static int take_and_end(job *j)
{
    ch_cut *cut = NULL;
    int     n;

    t_ok(ch__cut_take(j->s.st, CH_MARKS_KEEP, record, j, &cut));
    n = steps_in(j, cut);
    assert_int_equal(j->runs, n);
    ch__cut_end(cut);
    return n;
}

/* ---- steps ---- */

static void cut_has_a_step_on_all_servers_or_on_none(void **state)
{
    (void)state;
    for (ch_coordinator_mode mode = CH_ASYNCHRONOUS; mode <= CH_SYNCHRONOUS; mode++) {
        job j;
        int last = 0, n_inside = 0;

        open_job(&j, 3, 5, &(ch_coordinator_options){.mode = mode, .staleness = 2});
        schedule(&j, 60);
        for (int i = 0; i < 12; i++) {
            int n = take_and_end(&j);

            assert_in_range(n, last, 60);
            n_inside += n > 0 && n < 60;
            last = n;
            t_pass(&j.s, i);
        }
        assert_true(n_inside > 3);
        t_ok(ch_coordinator_join(j.s.co));
        assert_int_equal(take_and_end(&j), 60);
        close_job(&j);
    }
}

static void cut_does_not_wait_for_queued_steps(void **state)
{
    job                  j;
    ch_coordinator_stats stats;

    (void)state;
    open_job(&j, 2, 10, NULL);
    schedule(&j, 100);
    t_pass(&j.s, 25);
    assert_true(take_and_end(&j) < 30);
    stats = t_stats(&j.s);
    assert_true(stats.queued + stats.running > 70);
    t_ok(ch_coordinator_join(j.s.co));
    assert_int_equal(take_and_end(&j), 100);
    close_job(&j);
}

/* A prepared cut has the steps that were scheduled before it. The steps that are scheduled
 * meanwhile wait in the queue. */
static void prepared_cut_has_the_steps_that_were_scheduled_before(void **state)
{
    (void)state;
    for (ch_coordinator_mode mode = CH_ASYNCHRONOUS; mode <= CH_SYNCHRONOUS; mode++) {
        job     j;
        ch_cut *cut = NULL;
        bool    is_ready = false;

        open_job(&j, 3, 5, &(ch_coordinator_options){.mode = mode, .staleness = 2});
        schedule(&j, 30);
        t_pass(&j.s, 10);
        assert_true(ch__cut_prepare(j.s.st));
        assert_false(ch__cut_prepare(j.s.st));
        schedule(&j, 20);
        t_kill_in(&j.s, 3, "worker", 1);
        for (int i = 0; i < 1000 && !is_ready; i++) {
            t_pass(&j.s, 1);
            assert_true(ch__cut_is_prepared(j.s.st, &is_ready));
            assert_true(is_ready || t_stats(&j.s).finished < 30);
        }
        assert_true(is_ready);
        assert_int_equal(t_stats(&j.s).queued, 20);
        t_ok(ch__cut_take_prepared(j.s.st, CH_MARKS_KEEP, record, &j, &cut));
        assert_int_equal(steps_in(&j, cut), 30);
        assert_int_equal(j.runs, 30);
        assert_false(ch__cut_is_prepared(j.s.st, &is_ready));
        t_ok(ch_coordinator_join(j.s.co));
        assert_int_equal(steps_in(&j, cut), 30);
        ch__cut_end(cut);
        assert_int_equal(take_and_end(&j), 50);
        close_job(&j);
    }
}

/* A cut that is taken before its steps have ended waits for them. */
static void prepared_cut_waits_for_its_steps(void **state)
{
    job     j;
    ch_cut *cut = NULL;

    (void)state;
    open_job(&j, 2, 5, NULL);
    schedule(&j, 30);
    assert_true(ch__cut_prepare(j.s.st));
    schedule(&j, 7);
    t_ok(ch__cut_take_prepared(j.s.st, CH_MARKS_KEEP, record, &j, &cut));
    assert_int_equal(steps_in(&j, cut), 30);
    ch__cut_end(cut);
    t_ok(ch_coordinator_join(j.s.co));
    assert_int_equal(take_and_end(&j), 37);
    close_job(&j);
}

/* A thread that waits for the steps that a prepared cut holds back ends the wait: the cut is
 * given up, and the steps run. */
static void prepared_cut_is_given_up_when_a_thread_waits_for_its_steps(void **state)
{
    (void)state;
    for (int how = 0; how < 4; how++) {
        job     j;
        ch_cut *cut = NULL;
        bool    is_ready;

        open_job(&j, 2, 5, &(ch_coordinator_options){.capacity = 10});
        schedule(&j, 8);
        assert_true(ch__cut_prepare(j.s.st));
        schedule(&j, how == 1 ? 20 : 2); /* 20: the queue is full */
        if (how == 0)
            t_ok(ch_coordinator_join(j.s.co));
        if (how == 2)
            (void)take_and_end(&j);
        if (how == 3)
            ch__cut_give_up_prepared(j.s.st);
        assert_false(ch__cut_is_prepared(j.s.st, &is_ready));
        t_refused(ch__cut_take_prepared(j.s.st, CH_MARKS_KEEP, NULL, NULL, &cut),
                  CH_FAILED_PRECONDITION, "given up", "");
        t_ok(ch_coordinator_join(j.s.co));
        assert_int_equal(take_and_end(&j), how == 1 ? 28 : 10);
        close_job(&j);
    }
}

static void cut_values_do_not_change_when_steps_go_on(void **state)
{
    job     j;
    ch_cut *cut[3] = {NULL};
    int     n[3];

    (void)state;
    open_job(&j, 2, 5, NULL);
    schedule(&j, 100);
    for (int i = 0; i < 3; i++) {
        t_pass(&j.s, 10);
        t_ok(ch__cut_take(j.s.st, CH_MARKS_KEEP, NULL, NULL, &cut[i]));
        n[i] = steps_in(&j, cut[i]);
    }
    t_ok(ch_coordinator_join(j.s.co));
    assert_true(n[0] < n[1] && n[1] < n[2]);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(steps_in(&j, cut[i]), n[i]);
        ch__cut_end(cut[i]);
    }
    ch__cut_end(NULL);
    ch__cut_free_memory(j.s.st);
    assert_int_equal(take_and_end(&j), 100);
    close_job(&j);
}

/* Failures: a worker is lost during the cut. Other workers run its steps again before the
 * snapshot. */
static void cut_waits_until_other_workers_have_repeated_the_steps_of_a_lost_worker(void **state)
{
    (void)state;
    for (int at = 0; at < 30; at += 3) {
        job j;
        int n;

        open_job(&j, 3, 10, NULL);
        schedule(&j, 60);
        t_pass(&j.s, 20);
        t_at(&j.s, 1000 * at / 3, kill_on_cue, "worker", 1);
        n = take_and_end(&j);
        assert_in_range(n, 1, 60);
        t_ok(ch_coordinator_join(j.s.co));
        assert_int_equal(take_and_end(&j), 60);
        close_job(&j);
    }
}

/* Failures: a parameter server is lost during the cut. The job fails. */
static void cut_fails_with_the_job_when_a_server_is_lost(void **state)
{
    (void)state;
    for (int at = 0; at < 20; at += 4) {
        job     j;
        ch_cut *cut = NULL;

        open_job(&j, 2, 10, NULL);
        schedule(&j, 30);
        t_pass(&j.s, 15);
        t_at(&j.s, 500 * at, kill_on_cue, "ps", 1);
        t_pass(&j.s, at % 8);
        if (ch__cut_take(j.s.st, CH_MARKS_KEEP, NULL, NULL, &cut) ==
            CH_OK) { /* it was taken before */
            t_pass(&j.s, 60000);
            ch__cut_end(cut);
        }
        t_refused(ch__cut_take(j.s.st, CH_MARKS_KEEP, NULL, NULL, &cut), CH_UNAVAILABLE, "ps/1",
                  "lost");
        t_refused(ch_coordinator_join(j.s.co), CH_UNAVAILABLE, "ps/1", "lost");
        close_job(&j);
    }
}

static ch_status fail_between(void *arg)
{
    (void)arg;
    return ch__fail(CH_DATA_LOSS, "between");
}

static void cut_goes_on_with_the_steps_when_the_function_fails(void **state)
{
    job     j;
    ch_cut *cut = NULL;

    (void)state;
    open_job(&j, 2, 10, NULL);
    schedule(&j, 20);
    for (int i = 0; i < 100; i++) /* more than there may be snapshots */
        t_refused(ch__cut_take(j.s.st, CH_MARKS_KEEP, fail_between, NULL, &cut), CH_DATA_LOSS,
                  "between", "between");
    assert_null(cut);
    t_ok(ch_coordinator_join(j.s.co));
    assert_int_equal(take_and_end(&j), 20);
    close_job(&j);
}

static void gather_at(ch_step *s, void *arg)
{
    const job *j = arg;
    ch_node   *table = ch_reshape(ch_var_read(s, j->n[0]), ch_shape_of(1));

    ch_step_out(s, "x", ch_mul(ch_gather(table, ch_step_in(s, 0), 0), ch_number(s, 1)));
}

static void cut_returns_the_error_of_a_step_and_leaves_it_for_join(void **state)
{
    job          j;
    ch_tensor   *id = t_ids(ch_shape_of(1), (int64_t[]){5}); /* out of range */
    ch_tuple    *in = t_tuple(1, &id);
    ch_function *f;
    ch_cut      *cut = NULL;

    (void)state;
    open_job(&j, 2, 10, NULL);
    f = t_function(gather_at, &j);
    schedule(&j, 5);
    t_ok(ch_coordinator_schedule(j.s.co, f, &(ch_arguments){.in = in}, NULL));
    schedule(&j, 5);
    t_pass(&j.s, 100);
    t_refused(ch__cut_take(j.s.st, CH_MARKS_KEEP, NULL, NULL, &cut), CH_INVALID_ARGUMENT,
              "gather", "5");
    t_refused(ch_coordinator_join(j.s.co), CH_INVALID_ARGUMENT, "gather", "5");
    t_ok(ch_coordinator_join(j.s.co));
    (void)take_and_end(&j);
    ch_tuple_unref(in);
    ch_function_unref(f);
    close_job(&j);
}

static void cut_has_a_deadline_when_steps_do_not_end(void **state)
{
    job     j;
    ch_cut *cut = NULL;

    (void)state;
    open_job(&j, 1, 10, &(ch_coordinator_options){.step_seconds = 1});
    schedule(&j, 20);
    t_pass(&j.s, 15);
    t_ok(ch_local_cluster_kill(j.s.cluster, "worker", 0));
    t_refused(ch__cut_take(j.s.st, CH_MARKS_KEEP, NULL, NULL, &cut), CH_DEADLINE_EXCEEDED,
              "running steps to end", "0 of 1 workers are ready");
    t_ok(ch_local_cluster_restart(j.s.cluster, "worker", 0));
    t_ok(ch_coordinator_join(j.s.co)); /* the steps are not held back any more */
    assert_int_equal(take_and_end(&j), 20);
    close_job(&j);
}

static void cut_is_refused_without_servers(void **state)
{
    ch_strategy *st = NULL;
    ch_cut      *cut = NULL;
    ch_var      *v;

    (void)state;
    t_ok(ch_strategy_one_device("CPU:0", &st));
    v = t_var_in(st, "v", 0);
    assert_false(ch__cut_is_needed(st));
    assert_int_equal(ch__cut_count_servers(st), 0);
    assert_int_equal(ch__cut_server_of(v), -1);
    assert_false(ch__cut_divides_round(st));
    t_refused(ch__cut_take(st, CH_MARKS_KEEP, NULL, NULL, &cut), CH_INVALID_ARGUMENT,
              "OneDevice", "no parameter servers");
    ch_var_unref(v);
    ch_strategy_unref(st);
}

/* Every allocation of a cut fails in turn, here and on the servers. */
static void cut_leaves_a_usable_job_when_memory_is_exhausted(void **state)
{
    job       j;
    ch_cut   *cut = NULL;
    int64_t   live = 0;
    int       n = 0, n_failed = 0;
    ch_status rc;

    (void)state;
    open_job(&j, 2, 5, NULL);
    schedule(&j, 10);
    assert_in_range(take_and_end(&j), 0, 10);
    t_ok(ch_coordinator_join(j.s.co));
    t_pass(&j.s, 100);
    live = ch__mem_live();
    do {
        ch__mem_fail_at(++n);
        rc = ch__cut_take(j.s.st, CH_MARKS_KEEP, record, &j, &cut);
        ch__mem_fail_at(0);
        n_failed += rc != CH_OK;
        if (rc == CH_OK) {
            assert_int_equal(steps_in(&j, cut), 10);
            ch__cut_end(cut);
        } else { /* a server cannot tell a lack of memory from a message that is not valid */
            assert_true(rc == CH_RESOURCE_EXHAUSTED || rc == CH_INVALID_ARGUMENT);
        }
        t_pass(&j.s, 100);
    } while (n < 40 || (rc != CH_OK && n < 400));
    assert_int_equal(rc, CH_OK);
    assert_true(n_failed > 3);
    assert_int_equal(take_and_end(&j), 10);
    t_pass(&j.s, 100);
    assert_in_range(ch__mem_live(), live - 8, live + 8); /* tables of tasks may have grown */
    schedule(&j, 10);
    t_ok(ch_coordinator_join(j.s.co));
    assert_int_equal(take_and_end(&j), 20);
    close_job(&j);
}

/* ---- regions ---- */

/* A divided variable is read as a whole, by shards, and by regions. */
static void cut_reads_regions_of_divided_variables(void **state)
{
    unsigned seed = 5;

    (void)state;
    for (int axis = 0; axis < 2; axis++) {
        ch_partitioner p = ch_partitioner_fixed(3);
        ch_strategy   *st;
        ch_tensor     *value = t_noise(ch_shape_of(9, 7), 3), *zero = NULL;
        ch_var        *v = NULL, *words = NULL;
        ch_cut        *cut = NULL;

        p.axis = -axis;
        st = t_cluster(&(ch_local_cluster_options){.ps = 2},
                       &(ch_parameter_server_options){.partitioner = p}, NULL);
        t_ok(ch_var_new(st, &(ch_var_spec){.name = "v", .initial = value}, &v));
        t_ok(ch_tensor_new(CH_F32, ch_shape_of(9, 7), &zero));
        t_ok(ch__cut_take(st, CH_MARKS_KEEP, NULL, NULL, &cut));
        t_ok(ch_var_set(v, zero));
        for (int i = 0; i < 60; i++) {
            ch_region  r = {.begin = {0}};
            float      got[63];
            ch_tensor *view = NULL, *want = NULL;

            for (int k = 0; k < 2; k++) {
                int64_t size = ch_tensor_shape(value).dim[k];

                seed = seed * 1664525u + 1013904223u;
                r.begin[k] = (seed >> 8) % size;
                seed = seed * 1664525u + 1013904223u;
                r.size[k] = 1 + (seed >> 8) % (size - r.begin[k]);
            }
            t_ok(ch__cut_read(cut, v, &r, got));
            t_ok(ch__tensor_region(value, &r, &view));
            t_ok(ch_tensor_contiguous(view, &want));
            assert_memory_equal(got, ch_tensor_data(want), ch_tensor_bytes(want));
            ch_tensor_unref(view);
            ch_tensor_unref(want);
        }
        for (int i = 0; i < v->n_shards; i++) {
            ch_tensor *got = t_cut_value(cut, v->shard[i]), *want = NULL;

            assert_in_range(ch__cut_server_of(v->shard[i]), 0, 1);
            t_ok(ch__layout_cut(v->layout, v->shape, value, i, &want));
            assert_memory_equal(ch_tensor_data(got), ch_tensor_data(want),
                                ch_tensor_bytes(want));
            ch_tensor_unref(got);
            ch_tensor_unref(want);
        }
        assert_int_equal(ch__cut_server_of(v), -1);
        t_ok(ch_var_new(st, &(ch_var_spec){.name = "kept", .per_worker = true}, &words));
        assert_int_equal(ch__cut_server_of(words), -1);
        t_refused(ch__cut_read(cut, words, NULL, &seed), CH_INVALID_ARGUMENT, "kept",
                  "not on the parameter servers");
        ch__cut_end(cut);
        ch_var_unref(words);
        ch_var_unref(v);
        ch_tensor_unref(value);
        ch_tensor_unref(zero);
        ch_strategy_unref(st);
    }
}

/* ---- threads ---- */

typedef struct writer {
    ch_var         *v;
    ch_coordinator *co;
    ch_function    *step;
    atomic_bool    *stops;
    atomic_int      n;
} writer;

/* Sets all elements of a divided variable to the same number, again and again. */
static void *set_again(void *arg)
{
    writer *w = arg;

    while (!atomic_load(w->stops)) {
        ch_tensor *t = t_f32(ch_shape_of(8), NULL);

        for (int i = 0; i < 8; i++)
            ((float *)ch_tensor_data_mut(t))[i] = (float)w->n;
        w->n++;
        t_ok(ch_var_set(w->v, t));
        ch_tensor_unref(t);
    }
    return NULL;
}

static void add_to_all(ch_step *s, void *arg)
{
    ch_var_assign_add(s, arg, ch_number(s, 1));
}

static void *schedule_again(void *arg)
{
    writer *w = arg;

    for (; !atomic_load(w->stops); w->n++)
        t_ok(ch_coordinator_schedule(w->co, w->step, NULL, NULL));
    return NULL;
}

/* Other threads set a variable and schedule steps while cuts are taken. */
static void cut_is_consistent_when_threads_write_and_schedule(void **state)
{
    ch_strategy *st =
        t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = 2},
                  &(ch_parameter_server_options){.partitioner = ch_partitioner_fixed(2)}, NULL);
    atomic_bool     stops = false;
    ch_coordinator *co = NULL;
    ch_var         *set = t_var(st, "set", t_f32(ch_shape_of(8), NULL));
    ch_var         *added = t_var(st, "added", t_f32(ch_shape_of(8), NULL));
    ch_function    *step = t_function(add_to_all, added);
    writer          w[2] = {{.v = set, .stops = &stops}, {.step = step, .stops = &stops}};
    pthread_t       thread[2];

    (void)state;
    t_ok(ch_coordinator_new(st, &(ch_coordinator_options){.capacity = 16}, &co));
    w[1].co = co;
    assert_int_equal(pthread_create(&thread[0], NULL, set_again, &w[0]), 0);
    assert_int_equal(pthread_create(&thread[1], NULL, schedule_again, &w[1]), 0);
    for (int i = 0; i < 100 || w[0].n == 0 || w[1].n == 0; i++) {
        ch_cut *cut = NULL;
        float   x[8];

        t_ok(ch__cut_take(st, CH_MARKS_KEEP, NULL, NULL, &cut));
        for (int k = 0; k < 2; k++) {
            t_ok(ch__cut_read(cut, k == 0 ? set : added, NULL, x));
            for (int e = 1; e < 8; e++)
                assert_true(x[e] == x[0]);
        }
        ch__cut_end(cut);
    }
    atomic_store(&stops, true);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    t_ok(ch_coordinator_join(co));
    ch_function_unref(step);
    ch_var_unref(set);
    ch_var_unref(added);
    ch_coordinator_unref(co);
    ch_strategy_unref(st);
}

/* ---- per-worker datasets ---- */

enum { ELEMENTS = 23, MOST_STREAMS = 4 };
typedef enum data_kind { PARTS, WHOLE, FROM_FUNCTION } data_kind;

typedef struct reader {
    scene          s;
    ch_function   *report;
    ch_per_worker *data, *it;
    void          *bytes; /* the saved state */
    size_t         n_bytes;
} reader;

static void report(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "x", ch_step_in(s, 0));
}

static ch_dataset *range_of_worker(const ch_input_context *c, void *arg)
{
    (void)arg;
    return ch_dataset_range(ELEMENTS * c->worker, ELEMENTS * (c->worker + 1), 1);
}

static void open_reader(reader *r, int workers, data_kind kind)
{
    ch_dataset *d = ch_dataset_shuffle(ch_dataset_range(0, ELEMENTS, 1), 8, NULL);

    memset(r, 0, sizeof(*r));
    t_open(&r->s, &(ch_local_cluster_options){.ps = 1, .workers = workers}, 1, NULL);
    r->report = t_function(report, NULL);
    if (kind == PARTS)
        t_ok(ch_coordinator_distribute_dataset(r->s.co, d, &r->data));
    else if (kind == WHOLE)
        t_ok(ch_coordinator_create_per_worker_dataset(r->s.co, d, &r->data));
    else
        t_ok(ch_coordinator_create_per_worker_dataset_from_function(r->s.co, range_of_worker,
                                                                    NULL, &r->data));
    ch_dataset_unref(d);
}

static void close_reader(reader *r)
{
    ch__free(r->bytes);
    ch_per_worker_unref(r->it);
    ch_per_worker_unref(r->data);
    ch_function_unref(r->report);
    t_close(&r->s);
}

/* Reads n elements, several at the same time, and counts them. */
static void read_elements(reader *r, int n, int *seen)
{
    ch_remote *remote[MOST_STREAMS * ELEMENTS];

    for (int i = 0; i < n; i++)
        t_ok(ch_coordinator_schedule(r->s.co, r->report,
                                     &(ch_arguments){.n_each = 1, .each = &r->it}, &remote[i]));
    for (int i = 0; i < n; i++) {
        ch_tuple *out = NULL;

        t_ok(ch_remote_fetch(remote[i], &out));
        seen[*(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(out, 0), 0))]++;
        ch_tuple_unref(out);
        ch_remote_unref(remote[i]);
    }
    t_ok(ch_coordinator_join(r->s.co));
}

static void check_no_element_is_left(reader *r)
{
    t_ok(ch_coordinator_schedule(r->s.co, r->report,
                                 &(ch_arguments){.n_each = 1, .each = &r->it}, NULL));
    t_refused(ch_coordinator_join(r->s.co), CH_OUT_OF_RANGE, "elements", "left");
}

static ch_status save_reader(void *arg)
{
    reader *r = arg;

    return ch__per_worker_save(r->data, &r->bytes, &r->n_bytes);
}

static void save(reader *r)
{
    ch_cut *cut = NULL;

    t_ok(ch__cut_take(r->s.st, CH_MARKS_KEEP, save_reader, r, &cut));
    ch__cut_end(cut);
}

/* A pass that k workers began is finished by m workers, each element once. The next pass is
 * divided among the m workers. */
static void check_pass(int k, int m, data_kind kind)
{
    reader a, b;
    int    seen[MOST_STREAMS * ELEMENTS] = {0}, n_all = kind == PARTS ? ELEMENTS : k * ELEMENTS;

    open_reader(&a, k, kind);
    t_ok(ch_per_worker_iterate(a.data, &a.it));
    ch_per_worker_unref(a.it);
    t_ok(ch_per_worker_iterate(a.data, &a.it)); /* the second pass */
    read_elements(&a, 9, seen);
    save(&a);
    open_reader(&b, m, kind);
    t_ok(t_continue_pass(b.data, a.bytes, a.n_bytes));
    t_ok(ch_per_worker_iterate(b.data, &b.it));
    assert_int_equal(b.it->input->n_streams, k);
    assert_int_equal(b.it->input->pass, 1);
    read_elements(&b, n_all - 9, seen);
    check_no_element_is_left(&b);
    for (int i = 0; i < (kind == WHOLE ? ELEMENTS : n_all); i++)
        assert_int_equal(seen[i], kind == WHOLE ? k : 1);
    ch_per_worker_unref(b.it);
    t_ok(ch_per_worker_iterate(b.data, &b.it));
    assert_int_equal(b.it->input->n_streams, m);
    assert_int_equal(b.it->input->pass, 2);
    close_reader(&a);
    close_reader(&b);
}

static void saved_pass_is_finished_by_any_number_of_workers(void **state)
{
    (void)state;
    for (int k = 1; k <= MOST_STREAMS; k++)
        for (int m = 1; m <= MOST_STREAMS; m++) {
            check_pass(k, m, PARTS);
            if (k != m) { /* else each worker reads its own stream to the end */
                check_pass(k, m, WHOLE);
                check_pass(k, m, FROM_FUNCTION);
            }
        }
}

/* The iteration exists when its state is restored, as in a program that creates its objects
 * first. */
static void restore_continues_the_pass_of_an_iteration_that_exists(void **state)
{
    reader a, b;
    int    seen[ELEMENTS] = {0};

    (void)state;
    open_reader(&a, 2, PARTS);
    t_ok(ch_per_worker_iterate(a.data, &a.it));
    read_elements(&a, 10, seen);
    save(&a);
    open_reader(&b, 3, PARTS);
    t_ok(ch_per_worker_iterate(b.data, &b.it));
    t_ok(t_continue_pass(b.it, a.bytes, a.n_bytes));
    read_elements(&b, ELEMENTS - 10, seen);
    for (int i = 0; i < ELEMENTS; i++)
        assert_int_equal(seen[i], 1);
    check_no_element_is_left(&b);
    close_reader(&a);
    close_reader(&b);
}

/* A program that releases the iteration before it saves begins a new pass after a restore. */
static void released_pass_is_not_continued(void **state)
{
    reader a, b;
    int    seen[ELEMENTS] = {0};

    (void)state;
    open_reader(&a, 2, PARTS);
    t_ok(ch_per_worker_iterate(a.data, &a.it));
    read_elements(&a, 10, seen);
    ch_per_worker_unref(a.it);
    a.it = NULL;
    save(&a);
    open_reader(&b, 2, PARTS);
    t_ok(t_continue_pass(b.data, a.bytes, a.n_bytes));
    t_ok(ch_per_worker_iterate(b.data, &b.it));
    assert_int_equal(b.it->input->pass, 1);
    memset(seen, 0, sizeof(seen));
    read_elements(&b, ELEMENTS, seen);
    for (int i = 0; i < ELEMENTS; i++)
        assert_int_equal(seen[i], 1);
    close_reader(&a);
    close_reader(&b);
}

/* A state that was restored and not used yet can be saved again. */
static void restored_pass_can_be_saved_again(void **state)
{
    reader a, b;
    int    seen[ELEMENTS] = {0};

    (void)state;
    open_reader(&a, 2, PARTS);
    t_ok(ch_per_worker_iterate(a.data, &a.it));
    read_elements(&a, 10, seen);
    save(&a);
    open_reader(&b, 2, PARTS);
    t_ok(t_continue_pass(b.data, a.bytes, a.n_bytes));
    save(&b);
    assert_int_equal(a.n_bytes, b.n_bytes);
    assert_memory_equal(a.bytes, b.bytes, a.n_bytes);
    close_reader(&a);
    close_reader(&b);
}

static void state_of_a_dataset_is_refused_while_its_steps_run(void **state)
{
    reader r;
    void  *bytes = NULL;
    size_t n = 0;

    (void)state;
    open_reader(&r, 2, PARTS);
    t_ok(ch_per_worker_iterate(r.data, &r.it));
    for (int i = 0; i < 4; i++)
        t_ok(ch_coordinator_schedule(r.s.co, r.report,
                                     &(ch_arguments){.n_each = 1, .each = &r.it}, NULL));
    t_pass(&r.s, 1);
    t_refused(ch__per_worker_save(r.data, &bytes, &n), CH_FAILED_PRECONDITION, "running",
              "between steps");
    t_ok(ch_coordinator_join(r.s.co));
    t_ok(ch__per_worker_save(r.it, &bytes, &n));
    ch__free(bytes);
    close_reader(&r);
}

/* Bytes of a file are untrusted: a damaged state is refused, or is another valid state. */
static void damaged_state_of_a_dataset_is_refused(void **state)
{
    reader   r;
    int      seen[ELEMENTS] = {0}, n_refused = 0;
    uint8_t *bytes;

    (void)state;
    open_reader(&r, 3, PARTS);
    t_ok(ch_per_worker_iterate(r.data, &r.it));
    read_elements(&r, 10, seen);
    save(&r);
    bytes = r.bytes;
    for (size_t i = 0; i < 8 * r.n_bytes; i++) {
        ch_status rc;

        bytes[i / 8] ^= (uint8_t)(1 << i % 8);
        rc = t_continue_pass(r.data, bytes, r.n_bytes);
        assert_true(rc == CH_OK || rc == CH_DATA_LOSS || rc == CH_RESOURCE_EXHAUSTED);
        n_refused += rc != CH_OK;
        bytes[i / 8] ^= (uint8_t)(1 << i % 8);
    }
    for (size_t n = 0; n < r.n_bytes; n++)
        n_refused += t_continue_pass(r.data, bytes, n) != CH_OK;
    assert_true(n_refused > 100);
    t_ok(t_continue_pass(r.data, bytes, r.n_bytes));
    read_elements(&r, ELEMENTS - 10, seen);
    for (int i = 0; i < ELEMENTS; i++)
        assert_int_equal(seen[i], 1);
    close_reader(&r);
}

static void restore_of_a_dataset_changes_nothing_when_memory_is_exhausted(void **state)
{
    reader    a, b;
    int       seen[ELEMENTS] = {0}, n_failed = 0;
    int64_t   live;
    ch_status rc;

    (void)state;
    live = ch__mem_live();
    open_reader(&a, 3, PARTS);
    t_ok(ch_per_worker_iterate(a.data, &a.it));
    read_elements(&a, 10, seen);
    save(&a);
    open_reader(&b, 2, PARTS);
    t_ok(ch_per_worker_iterate(b.data, &b.it));
    for (int n = 1, n_ok = 0; n_ok < 20; n++) { /* a thread that reads ahead may fail instead */
        ch_worker_input *before = b.it->input;

        ch__mem_fail_at(n);
        rc = t_continue_pass(b.data, a.bytes, a.n_bytes);
        ch__mem_fail_at(0);
        if (rc == CH_OK) {
            n_ok++;
        } else {
            assert_ptr_equal(b.it->input, before);
            n_failed++;
        }
    }
    assert_true(n_failed > 10);
    t_ok(t_continue_pass(b.data, a.bytes, a.n_bytes));
    read_elements(&b, ELEMENTS - 10, seen);
    for (int i = 0; i < ELEMENTS; i++)
        assert_int_equal(seen[i], 1);
    close_reader(&a);
    close_reader(&b); /* ends the threads that read ahead; they allocate too */
    assert_int_equal(ch__mem_live(), live);
}

/* ---- rounds ---- */

enum { STEPS = 24 };

/* A training in rounds. The values depend on which step reads which element, on the numbers of
 * the steps and on the rounds. A worker computes the change of a variable from the variable on
 * the other server. All numbers are exact, so the order of updates in a round does not
 * matter. */
typedef struct training {
    scene          s;
    ch_function   *step;
    ch_var        *w[SERVERS];
    ch_per_worker *data, *it;
    void          *bytes;
    size_t         n_bytes;
    int64_t        runs;
} training;

static void train(ch_step *s, void *arg)
{
    const training *t = arg;
    ch_node        *x = ch_cast(ch_reshape(ch_step_in(s, 0), ch_shape_scalar()), CH_F64);
    ch_node        *number = ch_cast(ch_step_number(s), CH_F64);
    ch_node        *w[SERVERS] = {ch_var_read(s, t->w[0]), ch_var_read(s, t->w[1])};

    for (int i = 0; i < SERVERS; i++)
        ch_var_assign_add(s, t->w[i], ch_add(w[1 - i], ch_mul(x, number)));
}

static void open_training(training *t, int workers, int round)
{
    ch_dataset *d = ch_dataset_shuffle(ch_dataset_range(1, STEPS + 1, 1), 8, NULL);
    ch_tensor  *zero = NULL;

    memset(t, 0, sizeof(*t));
    t_open(&t->s, &(ch_local_cluster_options){.ps = 2, .workers = workers}, 5,
           &(ch_coordinator_options){.mode = CH_SYNCHRONOUS, .round = round});
    t_ok(ch_tensor_scalar(CH_F64, 0, &zero));
    for (int i = 0; i < SERVERS; i++)
        t_ok(ch_var_new(t->s.st, &(ch_var_spec){.name = "w", .initial = zero}, &t->w[i]));
    assert_int_not_equal(ch__cut_server_of(t->w[0]), ch__cut_server_of(t->w[1]));
    ch_tensor_unref(zero);
    t->step = t_function(train, t);
    t_ok(ch_coordinator_distribute_dataset(t->s.co, d, &t->data));
    ch_dataset_unref(d);
}

static void close_training(training *t)
{
    ch__free(t->bytes);
    ch_per_worker_unref(t->it);
    ch_per_worker_unref(t->data);
    for (int i = 0; i < SERVERS; i++)
        ch_var_unref(t->w[i]);
    ch_function_unref(t->step);
    t_close(&t->s);
}

static void schedule_training(training *t, int64_t first, int64_t end)
{
    for (int64_t i = first; i < end; i++)
        t_ok(ch_coordinator_schedule(t->s.co, t->step,
                                     &(ch_arguments){.n_each = 1, .each = &t->it}, NULL));
}

static double weight(training *t)
{
    ch_tensor *x = NULL;
    double     w = 0;

    for (int i = 0; i < SERVERS; i++) {
        t_ok(ch_var_get(t->w[i], &x));
        w += (i + 1) * *(const double *)ch_tensor_data(x);
        ch_tensor_unref(x);
    }
    return w;
}

static ch_status record_training(void *arg)
{
    training *t = arg;

    t->runs = ch__cut_function_runs(t->s.st, t->step);
    return ch__per_worker_save(t->data, &t->bytes, &t->n_bytes);
}

/* Trains to a cut at about this time, continues in another job, and returns the weight. */
static double train_in_two_jobs(int workers, int round, int ms_before, int64_t *runs)
{
    training   a, b;
    ch_cut    *cut = NULL;
    ch_tensor *w[SERVERS] = {NULL};
    double     x;

    open_training(&a, workers, round);
    t_ok(ch_per_worker_iterate(a.data, &a.it));
    schedule_training(&a, 0, STEPS);
    t_pass(&a.s, ms_before);
    t_ok(ch__cut_take(a.s.st, CH_MARKS_KEEP, record_training, &a, &cut));
    for (int i = 0; i < SERVERS; i++)
        w[i] = t_cut_value(cut, a.w[i]);
    ch__cut_end(cut);
    open_training(&b, workers, round);
    for (int i = 0; i < SERVERS; i++) {
        t_ok(ch_var_set(b.w[i], w[i]));
        ch_tensor_unref(w[i]);
    }
    t_ok(ch_function_set_runs(b.step, a.runs));
    t_ok(t_continue_pass(b.data, a.bytes, a.n_bytes));
    t_ok(ch_per_worker_iterate(b.data, &b.it));
    schedule_training(&b, a.runs, STEPS);
    t_ok(ch_coordinator_join(b.s.co));
    x = weight(&b);
    *runs = a.runs;
    close_training(&a);
    close_training(&b);
    return x;
}

static void training_in_rounds_continues_to_the_bit(void **state)
{
    (void)state;
    for (int workers = 1; workers <= 3; workers++)
        for (int round = 1; round <= 3; round++) {
            training t;
            double   want;
            int      n_inside = 0;

            open_training(&t, workers, round);
            t_ok(ch_per_worker_iterate(t.data, &t.it));
            schedule_training(&t, 0, STEPS);
            t_ok(ch_coordinator_join(t.s.co));
            want = weight(&t);
            close_training(&t);
            for (int ms_before = 0; ms_before < 60; ms_before += 13) {
                int64_t runs = 0;

                assert_true(train_in_two_jobs(workers, round, ms_before, &runs) == want);
                assert_int_equal(runs % round, 0); /* rounds are not divided */
                n_inside += runs > 0 && runs < STEPS;
            }
            assert_true(n_inside > 0);
        }
}

/* If the program has scheduled a part of a round, the cut ends the round. */
static void cut_ends_a_round_that_was_scheduled_in_part(void **state)
{
    training t;
    ch_cut  *cut = NULL;

    (void)state;
    open_training(&t, 2, 3);
    t_ok(ch_per_worker_iterate(t.data, &t.it));
    assert_false(ch__cut_divides_round(t.s.st));
    schedule_training(&t, 0, 4);
    assert_true(ch__cut_divides_round(t.s.st));
    t_pass(&t.s, 50); /* the first round has ended, and the second has begun */
    t_ok(ch__cut_take(t.s.st, CH_MARKS_KEEP, record_training, &t, &cut));
    assert_int_equal(t.runs, 4);
    ch__cut_end(cut);
    assert_false(ch__cut_divides_round(t.s.st));
    schedule_training(&t, 4, 7);
    assert_false(ch__cut_divides_round(t.s.st));
    t_ok(ch_coordinator_join(t.s.co));
    close_training(&t);
}

int main(void)
{
    (void)setenv("COHORT_WAIT_LIMIT_MS", "5000", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_has_a_step_on_all_servers_or_on_none),
        cmocka_unit_test(cut_does_not_wait_for_queued_steps),
        cmocka_unit_test(prepared_cut_has_the_steps_that_were_scheduled_before),
        cmocka_unit_test(prepared_cut_waits_for_its_steps),
        cmocka_unit_test(prepared_cut_is_given_up_when_a_thread_waits_for_its_steps),
        cmocka_unit_test(cut_values_do_not_change_when_steps_go_on),
        cmocka_unit_test(
            cut_waits_until_other_workers_have_repeated_the_steps_of_a_lost_worker),
        cmocka_unit_test(cut_fails_with_the_job_when_a_server_is_lost),
        cmocka_unit_test(cut_goes_on_with_the_steps_when_the_function_fails),
        cmocka_unit_test(cut_returns_the_error_of_a_step_and_leaves_it_for_join),
        cmocka_unit_test(cut_has_a_deadline_when_steps_do_not_end),
        cmocka_unit_test(cut_is_refused_without_servers),
        cmocka_unit_test(cut_leaves_a_usable_job_when_memory_is_exhausted),
        cmocka_unit_test(cut_reads_regions_of_divided_variables),
        cmocka_unit_test(cut_is_consistent_when_threads_write_and_schedule),
        cmocka_unit_test(saved_pass_is_finished_by_any_number_of_workers),
        cmocka_unit_test(restore_continues_the_pass_of_an_iteration_that_exists),
        cmocka_unit_test(released_pass_is_not_continued),
        cmocka_unit_test(restored_pass_can_be_saved_again),
        cmocka_unit_test(state_of_a_dataset_is_refused_while_its_steps_run),
        cmocka_unit_test(damaged_state_of_a_dataset_is_refused),
        cmocka_unit_test(restore_of_a_dataset_changes_nothing_when_memory_is_exhausted),
        cmocka_unit_test(training_in_rounds_continues_to_the_bit),
        cmocka_unit_test(cut_ends_a_round_that_was_scheduled_in_part),
    };

    return cmocka_run_group_tests_name("cut", tests, NULL, NULL);
}
