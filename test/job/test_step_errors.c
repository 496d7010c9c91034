/* test/job/test_step_errors.c -- steps that fail: the call that returns the error, and the
 * effect on other steps.
 *
 * The steps run on a simulated cluster (scene.h) and take up to a given number of ms of the
 * virtual clock. A step fails if its input is not above 0.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "scene.h"

/* Fails if its input is not above 0. */
static void picky_step(ch_step *s, void *arg)
{
    scene   *c = arg;
    ch_node *x = ch_step_in(s, 0);

    ch_check(ch_greater(x, ch_number(s, 0)), "it is not above 0");
    ch_var_assign_add(s, c->n, ch_number(s, 1));
    ch_step_out(s, "x", x);
}

typedef struct act {
    scene        s;
    ch_function *picky;
    ch_tuple    *good, *bad;
} act;

static void begin(act *a, int workers, int step_ms)
{
    t_open(&a->s, &(ch_local_cluster_options){.ps = 2, .workers = workers}, step_ms, NULL);
    a->picky = t_function(picky_step, &a->s);
    a->good = t_tuple(1, (ch_tensor *[]){t_f32(ch_shape_scalar(), (float[]){1})});
    a->bad = t_tuple(1, (ch_tensor *[]){t_f32(ch_shape_scalar(), (float[]){-1})});
    t_ok(ch_coordinator_schedule(a->s.co, a->picky, &(ch_arguments){.in = a->good}, NULL));
    t_ok(ch_coordinator_join(a->s.co)); /* now the workers have the function */
}

static void end(act *a)
{
    ch_tuple_unref(a->good);
    ch_tuple_unref(a->bad);
    ch_function_unref(a->picky);
    t_close(&a->s);
}

static ch_remote *schedule(act *a, bool good)
{
    ch_remote *r = NULL;

    t_ok(ch_coordinator_schedule(a->s.co, a->picky,
                                 &(ch_arguments){.in = good ? a->good : a->bad}, &r));
    return r;
}

static void is_calm(act *a)
{
    bool done = false;

    t_ok(ch_coordinator_done(a->s.co, &done));
    assert_true(done);
    t_ok(ch_coordinator_join(a->s.co));
    assert_int_equal(t_stats(&a->s).queued + t_stats(&a->s).running, 0);
}

static void ended_as(ch_remote *r, ch_status want, const char *word)
{
    ch_tuple *out = NULL;

    assert_true(ch_remote_has_ended(r));
    if (want == CH_OK)
        t_ok(ch_remote_fetch(r, &out));
    else
        t_refused(ch_remote_fetch(r, &out), want, word, word);
    ch_tuple_unref(out);
    ch_remote_unref(r);
}

/* AE-1, AE-5: of several errors the first is reported, once. */
static void join_reports_the_first_error_once(void **state)
{
    act        a;
    ch_remote *r[3];

    (void)state;
    begin(&a, 1, 10);
    for (int i = 0; i < 3; i++)
        r[i] = schedule(&a, false);
    t_pass(&a.s, 1000);
    t_refused(ch_coordinator_join(a.s.co), CH_INVALID_ARGUMENT, "it is not above 0",
              "step 2 of step: worker/0: ");
    is_calm(&a);
    for (int i = 0; i < 3; i++) {
        char which[32];

        snprintf(which, sizeof(which), "step %d of step: ", 2 + i);
        ended_as(r[i], CH_INVALID_ARGUMENT, which);
    }
    assert_int_equal(t_stats(&a.s).failed, 3);
    end(&a);
}

/* AE-2: scheduled steps run until a call reports the error. */
static void steps_run_until_a_call_reports_the_error(void **state)
{
    act        a;
    ch_remote *bad, *good[20];

    (void)state;
    begin(&a, 3, 10);
    bad = schedule(&a, false);
    for (int i = 0; i < 20; i++)
        good[i] = schedule(&a, true);
    t_pass(&a.s, 1000);
    assert_int_equal(ch_coordinator_join(a.s.co), CH_INVALID_ARGUMENT);
    assert_true(t_value_of(a.s.n) == 21);
    assert_int_equal(t_stats(&a.s).cancelled, 0);
    ended_as(bad, CH_INVALID_ARGUMENT, "it is not above 0");
    for (int i = 0; i < 20; i++)
        ended_as(good[i], CH_OK, "");
    is_calm(&a);
    end(&a);
}

/* AE-3, AE-6, RV-1, RV-2, RV-4: join cancels queued and running steps, and returns when none
 * runs. A fetch of a failed step returns its error. A fetch of a cancelled step returns
 * CANCELLED, and the message asks to schedule the step again. */
static void join_cancels_other_steps_when_it_reports_an_error(void **state)
{
    act        a;
    ch_remote *bad, *other[50];
    double     n;
    int        n_cancelled = 0;

    (void)state;
    begin(&a, 3, 100);
    bad = schedule(&a, false);
    for (int i = 0; i < 50; i++)
        other[i] = schedule(&a, true);
    t_refused(ch_coordinator_join(a.s.co), CH_INVALID_ARGUMENT, "it is not above 0", "worker/");
    n = t_value_of(a.s.n);
    t_pass(&a.s, 10000);
    assert_true(t_value_of(a.s.n) == n); /* no step was running */
    ended_as(bad, CH_INVALID_ARGUMENT, "it is not above 0");
    for (int i = 0; i < 50; i++) {
        ch_tuple *out = NULL;
        ch_status rc = ch_remote_fetch(other[i], &out);

        assert_true(rc == CH_OK || rc == CH_CANCELLED);
        if (rc == CH_CANCELLED)
            t_refused(rc, CH_CANCELLED, "of step: cancelled because another step failed",
                      "schedule it again");
        n_cancelled += rc == CH_CANCELLED;
        ch_tuple_unref(out);
        ch_remote_unref(other[i]);
    }
    assert_true(n_cancelled > 30);
    assert_int_equal(t_stats(&a.s).cancelled, n_cancelled);
    is_calm(&a);
    end(&a);
}

/* AE-3, SC-8: done reports the error too. */
static void coordinator_done_reports_the_error(void **state)
{
    act        a;
    ch_remote *bad;
    bool       done = false;

    (void)state;
    begin(&a, 2, 10);
    bad = schedule(&a, false);
    t_pass(&a.s, 1000);
    assert_int_equal(ch_coordinator_done(a.s.co, &done), CH_INVALID_ARGUMENT);
    assert_false(done);
    ended_as(bad, CH_INVALID_ARGUMENT, "it is not above 0");
    is_calm(&a);
    end(&a);
}

/* AE-4: schedule reports the error, and its own step is cancelled with the others. */
static void schedule_reports_the_error_and_cancels_its_own_step(void **state)
{
    act        a;
    ch_remote *bad, *none = NULL;

    (void)state;
    begin(&a, 2, 10);
    bad = schedule(&a, false);
    t_pass(&a.s, 1000);
    t_refused(ch_coordinator_schedule(a.s.co, a.picky, &(ch_arguments){.in = a.good}, &none),
              CH_INVALID_ARGUMENT, "it is not above 0", "worker/");
    assert_null(none);
    assert_int_equal(t_stats(&a.s).cancelled, 1);
    ended_as(bad, CH_INVALID_ARGUMENT, "it is not above 0");
    is_calm(&a);
    assert_true(t_value_of(a.s.n) == 1);
    end(&a);
}

/* AE-5: after that the coordinator is usable, and so is the data that was being read. */
static void coordinator_goes_on_after_an_error_was_reported(void **state)
{
    act            a;
    ch_dataset    *d = ch_dataset_range(1, 100, 1);
    ch_per_worker *data = NULL, *it = NULL;
    ch_remote     *r = NULL, *bad;
    ch_tuple      *out = NULL;
    ch_function   *picky;

    (void)state;
    begin(&a, 1, 10);
    picky = t_function(picky_step, &a.s);
    t_ok(ch_coordinator_create_per_worker_dataset(a.s.co, d, &data));
    t_ok(ch_per_worker_iterate(data, &it));
    for (int i = 0; i < 5; i++)
        t_ok(ch_coordinator_schedule(a.s.co, picky, &(ch_arguments){.n_each = 1, .each = &it},
                                     NULL));
    t_ok(ch_coordinator_join(a.s.co));
    bad = schedule(&a, false);
    assert_int_equal(ch_coordinator_join(a.s.co), CH_INVALID_ARGUMENT);
    ended_as(bad, CH_INVALID_ARGUMENT, "it is not above 0");
    t_ok(ch_coordinator_schedule(a.s.co, picky, &(ch_arguments){.n_each = 1, .each = &it}, &r));
    t_ok(ch_remote_fetch(r, &out));
    assert_int_equal(*(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(out, 0), 0)), 6);
    t_ok(ch_coordinator_join(a.s.co));
    assert_true(t_value_of(a.s.n) == 7);
    ch_tuple_unref(out);
    ch_remote_unref(r);
    ch_per_worker_unref(it);
    ch_per_worker_unref(data);
    ch_dataset_unref(d);
    ch_function_unref(picky);
    end(&a);
}

/* AE-7, AE-8: if data cannot be read, the steps that read it fail with the unchanged error. If
 * no step reads it, there is no error. */
static void steps_fail_with_the_error_of_the_data_that_they_read(void **state)
{
    act         a;
    ch_dataset *d = ch_dataset_fixed_records(
        ch_dataset_file_list(1, (const char *[]){"/nowhere/to/be/found"}), 8, 0, 0, NULL);
    ch_per_worker *data = NULL, *it = NULL;
    ch_function   *f;

    (void)state;
    begin(&a, 2, 10);
    f = t_function(t_count_step, &a.s);
    t_ok(ch_coordinator_create_per_worker_dataset(a.s.co, d, &data));
    t_ok(ch_per_worker_iterate(data, &it));
    t_schedule(&a.s, 3);
    t_ok(ch_coordinator_join(a.s.co));
    t_ok(ch_coordinator_schedule(a.s.co, f, &(ch_arguments){.n_each = 1, .each = &it}, NULL));
    t_refused(ch_coordinator_join(a.s.co), CH_NOT_FOUND, "/nowhere/to/be/found", "worker/");
    is_calm(&a);
    ch_per_worker_unref(it);
    ch_per_worker_unref(data);
    ch_dataset_unref(d);
    ch_function_unref(f);
    end(&a);
}

/* The error of a run names the source line if only a single line has recorded such an op. */
static void step_error_names_the_line_that_recorded_the_op(void **state)
{
    act a;

    (void)state;
    begin(&a, 1, 10);
    ch_remote_unref(schedule(&a, false));
    t_refused(ch_coordinator_join(a.s.co), CH_INVALID_ARGUMENT, "it is not above 0",
              CH_HAVE_LIBDW ? ", at test_step_errors.c:" : ", at ");
    end(&a);
}

/* The same if the worker has several devices, so that the message has the replica before the
 * op. */
static void step_error_names_the_line_when_a_worker_has_two_devices(void **state)
{
    scene        s;
    ch_function *picky;
    ch_tuple    *bad = t_tuple(1, (ch_tensor *[]){t_f32(ch_shape_scalar(), (float[]){-1})});

    (void)state;
    t_open(&s, &(ch_local_cluster_options){.workers = 1, .devices = 2}, 1, NULL);
    picky = t_function(picky_step, &s);
    t_ok(ch_coordinator_schedule(s.co, picky, &(ch_arguments){.in = bad}, NULL));
    t_refused(ch_coordinator_join(s.co), CH_INVALID_ARGUMENT, "worker/0: replica 0: check(",
              CH_HAVE_LIBDW ? "it is not above 0, at test_step_errors.c:" : ", at ");
    ch_tuple_unref(bad);
    ch_function_unref(picky);
    t_close(&s);
}

static void add_step(ch_step *s, void *arg)
{
    ch_var_assign_add(s, arg, ch_number(s, 1));
}

/* The program must not free the variable. The error has the name of the variable. */
static void step_error_names_a_variable_that_was_freed(void **state)
{
    act          a;
    ch_var      *v;
    ch_function *f;

    (void)state;
    begin(&a, 1, 10);
    v = t_var_in(a.s.st, "freed", 0);
    f = t_function(add_step, v);
    t_ok(ch_coordinator_schedule(a.s.co, f, NULL, NULL));
    ch_var_unref(v);
    t_refused(ch_coordinator_join(a.s.co), CH_NOT_FOUND, "variable freed does not exist",
              "step 2 of step");
    is_calm(&a);
    ch_function_unref(f);
    end(&a);
}

/* The caller of a run waits for it, so only that caller gets its error. */
static void strategy_run_returns_its_own_error_and_join_does_not(void **state)
{
    act        a;
    ch_remote *good;

    (void)state;
    begin(&a, 2, 10);
    good = schedule(&a, true);
    t_refused(ch_strategy_run(a.s.st, a.picky, a.bad, NULL), CH_INVALID_ARGUMENT,
              "it is not above 0", "worker/");
    t_ok(ch_coordinator_join(a.s.co));
    ended_as(good, CH_OK, "");
    end(&a);
}

/* Another thread, which acts while a join waits for workers to stop. It gets the same error,
 * continues, and causes the next error. */
static void fail_again(void *arg)
{
    act *a = arg;

    assert_int_equal(ch_coordinator_join(a->s.co), CH_INVALID_ARGUMENT);
    ch_remote_unref(schedule(a, false));
    t_pass(&a->s, 1000);
}

/* AE-1, AE-5: an error that occurs while the previous error is being reported is not lost. */
static void join_reports_an_error_that_came_during_the_last_join(void **state)
{
    act        a;
    ch_remote *bad;

    (void)state;
    begin(&a, 2, 200);
    bad = schedule(&a, false);
    for (int i = 0; i < 8; i++)
        ch_remote_unref(schedule(&a, true));
    while (t_stats(&a.s).failed == 0)
        t_pass(&a.s, 1);
    t_ok(ch__sim_at(a.s.net, ch__sim_now(a.s.net) + 10000, fail_again, &a));
    assert_int_equal(ch_coordinator_join(a.s.co), CH_INVALID_ARGUMENT);
    assert_int_equal(t_stats(&a.s).failed, 2);
    assert_int_equal(ch_coordinator_join(a.s.co), CH_INVALID_ARGUMENT);
    ended_as(bad, CH_INVALID_ARGUMENT, "it is not above 0");
    is_calm(&a);
    end(&a);
}

/* ---- cancelled steps that read data ---- */

typedef struct reader {
    act            a;
    ch_var        *hits; /* for each element: the steps that have read it and ended well */
    ch_function   *read;
    ch_per_worker *data, *pass;
} reader;

/* As picky_step, with an element, which the step counts in `hits`. */
static void read_step(ch_step *s, void *arg)
{
    reader  *r = arg;
    ch_node *element = ch_reshape(ch_step_in(s, 1), ch_shape_of(1));

    ch_check(ch_greater(ch_step_in(s, 0), ch_number(s, 0)), "it is not above 0");
    ch_var_assign_add(s, r->a.s.n, ch_number(s, 1));
    ch_var_scatter_add(s, r->hits, element, ch_fill(s, CH_F32, ch_shape_of(1), 1));
}

static void begin_reading(reader *r, int n, bool is_shared)
{
    ch_dataset *d = ch_dataset_range(0, n, 1);

    memset(r, 0, sizeof(*r));
    begin(&r->a, 3, 2);
    r->hits = t_var(r->a.s.st, "hits", t_f32(ch_shape_of(n), NULL));
    r->read = t_function(read_step, r);
    t_ok(is_shared ? ch_coordinator_distribute_dataset(r->a.s.co, d, &r->data)
                   : ch_coordinator_create_per_worker_dataset(r->a.s.co, d, &r->data));
    t_ok(ch_per_worker_iterate(r->data, &r->pass));
    ch_dataset_unref(d);
}

static void end_reading(reader *r)
{
    ch_per_worker_unref(r->pass);
    ch_per_worker_unref(r->data);
    ch_function_unref(r->read);
    ch_var_unref(r->hits);
    end(&r->a);
}

static ch_remote *schedule_read(reader *r, bool good)
{
    ch_remote   *remote = NULL;
    ch_arguments args = {.in = good ? r->a.good : r->a.bad, .n_each = 1, .each = &r->pass};

    t_ok(ch_coordinator_schedule(r->a.s.co, r->read, &args, &remote));
    return remote;
}

/* Returns the number of steps that ended well. The others were cancelled. */
static int count_well(int n, ch_remote **remote)
{
    int n_well = 0;

    for (int i = 0; i < n; i++) {
        ch_tuple *out = NULL;
        ch_status rc = ch_remote_fetch(remote[i], &out);

        assert_true(rc == CH_OK || rc == CH_CANCELLED);
        n_well += rc == CH_OK;
        ch_tuple_unref(out);
        ch_remote_unref(remote[i]);
    }
    return n_well;
}

/* A step that is reported as cancelled has changed nothing. If the program schedules it again,
 * as the error asks, it counts once, and its element is read once too. The element of the step
 * that failed is not read again. */
static void cancelled_steps_that_are_scheduled_again_count_once(void **state)
{
    enum { STEPS = 40 };

    (void)state;
    for (int round = 0; round < 20; round++) {
        reader     r;
        ch_remote *bad = NULL, *good[STEPS];
        ch_tensor *hits = NULL;
        int        n = 1, n_never = 0; /* n: number of calls of begin */

        begin_reading(&r, STEPS + 1, true);
        for (int i = 0; i < STEPS; i++) {
            if (i == round)
                bad = schedule_read(&r, false);
            good[i] = schedule_read(&r, true);
        }
        assert_int_equal(ch_coordinator_join(r.a.s.co), CH_INVALID_ARGUMENT);
        n += count_well(STEPS, good);
        assert_true(t_value_of(r.a.s.n) == n);
        for (; n < STEPS + 1; n++)
            ch_remote_unref(schedule_read(&r, true));
        t_ok(ch_coordinator_join(r.a.s.co));
        assert_true(t_value_of(r.a.s.n) == STEPS + 1);
        t_ok(ch_var_get(r.hits, &hits));
        for (int i = 0; i < STEPS + 1; i++) {
            float x = ((const float *)ch_tensor_data(hits))[i];

            assert_true(x == 0 || x == 1);
            n_never += x == 0;
        }
        assert_int_equal(n_never, 1);
        ch_tensor_unref(hits);
        ended_as(bad, CH_INVALID_ARGUMENT, "it is not above 0");
        end_reading(&r);
    }
}

/* Each worker reads its own dataset from the beginning, without gaps. So no element was read by more workers than an element
 * before it. */
static void cancelled_steps_leave_no_gaps_in_per_worker_datasets(void **state)
{
    enum { STEPS = 40 };

    (void)state;
    for (int round = 0; round < 20; round++) {
        reader       r;
        ch_remote   *good[STEPS];
        ch_tensor   *t = NULL;
        const float *hits;

        begin_reading(&r, 3 * STEPS, false);
        for (int i = 0; i < STEPS; i++) {
            if (i == round)
                ch_remote_unref(schedule(&r.a, false)); /* reads no data */
            good[i] = schedule_read(&r, true);
        }
        assert_int_equal(ch_coordinator_join(r.a.s.co), CH_INVALID_ARGUMENT);
        assert_in_range(count_well(STEPS, good), 0, STEPS - 1);
        for (int i = 0; i < STEPS; i++)
            ch_remote_unref(schedule_read(&r, true));
        t_ok(ch_coordinator_join(r.a.s.co));
        t_ok(ch_var_get(r.hits, &t));
        hits = ch_tensor_data(t);
        for (int i = 1; i < 3 * STEPS; i++)
            assert_true(hits[i] <= hits[i - 1]);
        ch_tensor_unref(t);
        end_reading(&r);
    }
}

static void spin(ch_step *s, void *arg, ch_node *const *carry, ch_node *const *x,
                 ch_node **next, ch_node **y)
{
    (void)arg;
    (void)x;
    (void)y;
    next[0] = ch_add(carry[0], ch_number(s, 1));
}

/* Computes for years, then counts. If there are several replicas, they have a collective at the
 * end. */
static void endless_step(ch_step *s, void *arg)
{
    ch_node *first = ch_mul(ch_var_read(s, arg), ch_number(s, 1)), *last = NULL;

    ch_scan(s, &(ch_scan_spec){.n_carry = 1, .length = (int64_t)1 << 40}, spin, NULL, &first,
            NULL, &last, NULL);
    ch_var_assign_add(s, arg, ch_all_reduce(CH_SUM, last));
}

/* A running step is cancelled between two kernels, and has changed nothing. Its worker then
 * runs other steps. */
static void stop_a_step_that_computes(int devices)
{
    act                      a;
    ch_function             *endless;
    ch_remote               *r = NULL;
    ch_local_cluster_options local = {.workers = 2, .ps = 2, .devices = devices};

    memset(&a, 0, sizeof(a));
    a.s.st = t_cluster(&local, NULL, &a.s.cluster); /* on threads */
    t_ok(ch_coordinator_new(a.s.st, NULL, &a.s.co));
    t_ok(ch_var_new(a.s.st, &(ch_var_spec){.name = "n", .aggregation = CH_AGGREGATE_FIRST},
                    &a.s.n));
    a.s.count = t_function(t_count_step, &a.s);
    a.picky = t_function(picky_step, &a.s);
    a.good = t_tuple(1, (ch_tensor *[]){t_f32(ch_shape_scalar(), (float[]){1})});
    a.bad = t_tuple(1, (ch_tensor *[]){t_f32(ch_shape_scalar(), (float[]){-1})});
    endless = t_function(endless_step, a.s.n);
    for (int i = 0; i < 3; i++) {
        t_ok(ch_coordinator_schedule(a.s.co, endless, NULL, &r));
        ch_remote_unref(schedule(&a, false));
        t_refused(ch_coordinator_join(a.s.co), CH_INVALID_ARGUMENT, "it is not above 0",
                  "worker/");
        ended_as(r, CH_CANCELLED, "schedule it again");
        t_schedule(&a.s, 20);
        t_ok(ch_coordinator_join(a.s.co));
        assert_true(t_value_of(a.s.n) == 20 * (i + 1));
        assert_int_equal(t_stats(&a.s).workers_lost, 0);
    }
    ch_function_unref(endless);
    end(&a);
}

static void join_stops_a_step_that_computes_when_another_has_failed(void **state)
{
    (void)state;
    stop_a_step_that_computes(1);
    stop_a_step_that_computes(2);
}

/* The error info has fields for the step that failed and for its location. */
static void error_info_names_the_step_and_the_worker(void **state)
{
    act           a;
    ch_remote    *bad;
    ch_error_info at;
    ch_tuple     *out = NULL;

    (void)state;
    begin(&a, 2, 10);
    bad = schedule(&a, false);
    for (int i = 0; i < 2; i++) {
        ch_worker_stats w;

        assert_int_equal(i == 0 ? ch_remote_fetch(bad, &out) : ch_coordinator_join(a.s.co),
                         CH_INVALID_ARGUMENT);
        ch_error_get_info(&at);
        assert_int_equal(at.code, CH_INVALID_ARGUMENT);
        assert_true(at.step == ch_remote_step(bad) && at.step == 2);
        assert_string_equal(at.function, "step");
        assert_int_equal(strncmp(at.task, "worker/", 7), 0);
        t_ok(ch_coordinator_get_worker_stats(a.s.co, atoi(at.task + 7), &w));
    }
    assert_int_equal(ch_coordinator_join_for(a.s.co, -1), CH_INVALID_ARGUMENT);
    ch_error_get_info(&at); /* the info of another error has no such fields */
    assert_true(at.step == 0 && at.function[0] == '\0' && at.task[0] == '\0');
    assert_int_equal(at.replica, -1);
    assert_true(ch_remote_step(NULL) == 0);
    ch_remote_unref(bad);
    end(&a);
}

/* The program may cancel its own steps. A cancelled step has changed nothing, and join does not
 * report it. */
static void remote_cancel_changes_nothing_and_is_no_error_of_join(void **state)
{
    enum { STEPS = 12 };

    (void)state;
    for (int at = 0; at < 40; at += 2) {
        act        a;
        ch_remote *r[STEPS];
        int        n = 1, n_cancelled = 0;

        begin(&a, 2, 5);
        for (int i = 0; i < STEPS; i++)
            r[i] = schedule(&a, true);
        t_pass(&a.s, at);
        for (int i = 0; i < STEPS; i += 2)
            t_ok(ch_remote_cancel(r[i]));
        if (at % 4 == 0)
            t_ok(ch_coordinator_cancel(a.s.co));
        t_ok(ch_coordinator_join(a.s.co));
        for (int i = 0; i < STEPS; i++) {
            ch_tuple *out = NULL;
            ch_status rc = ch_remote_fetch(r[i], &out);

            if (rc != CH_OK)
                t_refused(rc, CH_CANCELLED, "of step: cancelled by the program", "step ");
            assert_true(rc == CH_OK || i % 2 == 0 || at % 4 == 0);
            n += rc == CH_OK;
            n_cancelled += rc != CH_OK;
            t_ok(ch_remote_cancel(r[i])); /* the step has ended: no effect */
            ch_tuple_unref(out);
            ch_remote_unref(r[i]);
        }
        assert_true(t_value_of(a.s.n) == n);
        assert_true(at > 0 || n_cancelled == STEPS);
        assert_int_equal(t_stats(&a.s).cancelled, n_cancelled);
        is_calm(&a);
        end(&a);
    }
}

/* CN-3: if a worker is lost while an error is being reported, its step is cancelled and not
 * repeated. */
static void step_of_a_lost_worker_is_cancelled_while_an_error_is_reported(void **state)
{
    act        a;
    ch_remote *bad, *other[12];

    (void)state;
    begin(&a, 3, 200);
    bad = schedule(&a, false);
    for (int i = 0; i < 12; i++)
        other[i] = schedule(&a, true);
    while (t_stats(&a.s).failed == 0)
        t_pass(&a.s, 1);
    t_ok(ch_local_cluster_kill(a.s.cluster, "worker", 1));
    t_ok(ch_local_cluster_kill(a.s.cluster, "worker", 2));
    assert_int_equal(ch_coordinator_join(a.s.co), CH_INVALID_ARGUMENT);
    ended_as(bad, CH_INVALID_ARGUMENT, "it is not above 0");
    for (int i = 0; i < 12; i++) {
        assert_true(ch_remote_has_ended(other[i]));
        ch_remote_unref(other[i]);
    }
    is_calm(&a);
    t_schedule(&a.s, 3);
    t_ok(ch_coordinator_join(a.s.co));
    end(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(join_reports_the_first_error_once),
        cmocka_unit_test(steps_run_until_a_call_reports_the_error),
        cmocka_unit_test(join_cancels_other_steps_when_it_reports_an_error),
        cmocka_unit_test(cancelled_steps_that_are_scheduled_again_count_once),
        cmocka_unit_test(cancelled_steps_leave_no_gaps_in_per_worker_datasets),
        cmocka_unit_test(join_stops_a_step_that_computes_when_another_has_failed),
        cmocka_unit_test(error_info_names_the_step_and_the_worker),
        cmocka_unit_test(remote_cancel_changes_nothing_and_is_no_error_of_join),
        cmocka_unit_test(coordinator_done_reports_the_error),
        cmocka_unit_test(schedule_reports_the_error_and_cancels_its_own_step),
        cmocka_unit_test(join_reports_an_error_that_came_during_the_last_join),
        cmocka_unit_test(coordinator_goes_on_after_an_error_was_reported),
        cmocka_unit_test(steps_fail_with_the_error_of_the_data_that_they_read),
        cmocka_unit_test(step_error_names_the_line_that_recorded_the_op),
        cmocka_unit_test(step_error_names_the_line_when_a_worker_has_two_devices),
        cmocka_unit_test(step_error_names_a_variable_that_was_freed),
        cmocka_unit_test(strategy_run_returns_its_own_error_and_join_does_not),
        cmocka_unit_test(step_of_a_lost_worker_is_cancelled_while_an_error_is_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
