/* test/strategy/test_turns.c -- replicas that run in turns on the caller's thread.
 *
 * test_order.c and, for training, test/train/test_replicas.c compare the results with those of
 * replicas on threads. This file tests errors, host calls, wake-ups, allocations, times and
 * traces.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>

#include "../base/trace_help.h"
#include "../file/folder.h"
#include "base/config.h"
#include "base/mem.h"
#include "base/thread.h"
#include "base/trace.h"
#include "strategy/strategy.h"

enum { REPLICAS = 3, WIDE = 4096 };

static int in_turns(void **state)
{
    (void)state;
    t_ok(ch__config_set("replicas", "turns"));
    return 0;
}

typedef struct job {
    ch_strategy *st;
    ch_var      *v;
    ch_function *f;
} job;

static void drop_job(job *j)
{
    ch_function_unref(j->f);
    ch_var_unref(j->v);
    ch_strategy_unref(j->st);
}

/* Records sums, a gather and a broadcast over the replicas, with a check after each; then a
 * variable changes. Input 0 is the number of the check that fails, input 1 the replica. */
static void checked(ch_step *s, void *v)
{
    ch_node *at = ch_step_in(s, 0), *who = ch_step_in(s, 1), *id = ch_step_replica_id(s);
    ch_node *x = ch_add(ch_fill(s, CH_F32, ch_shape_of(1, WIDE), 1), ch_cast(id, CH_F32));

    for (int i = 0; i < 6; i++) {
        ch_node *fails = ch_logical_and(ch_equal(at, ch_number(s, i)), ch_equal(who, id));

        ch_check(ch_logical_not(fails), "as it was to");
        if (i % 3 == 0)
            x = ch_all_reduce(CH_MEAN, x);
        else if (i % 3 == 1)
            x = ch_broadcast(x);
        else
            x = ch_mean(ch_all_gather(x, 0), 1, (int[]){0}, true);
    }
    ch_var_assign_add(
        s, v,
        ch_reshape(ch_slice(x, 2, (int64_t[]){0, 0}, (int64_t[]){1, 1}), ch_shape_scalar()));
}

static ch_tuple *numbers(int at, int who)
{
    ch_tensor *t[2] = {NULL, NULL};

    t_ok(ch_tensor_copy_of(CH_I32, ch_shape_scalar(), &(int32_t){at}, &t[0]));
    t_ok(ch_tensor_copy_of(CH_I32, ch_shape_scalar(), &(int32_t){who}, &t[1]));
    return t_tuple(2, t);
}

static void a_replica_that_fails_in_turns_ends_the_step_and_changes_nothing(void **state)
{
    job j = {.st = t_mirrored(REPLICAS)};
    int good = 0;

    j.v = t_var(j.st, "v", t_f32(ch_shape_scalar(), NULL));
    j.f = t_function(checked, j.v);
    for (int at = -1; at < 6; at++)
        for (int who = 0; who < REPLICAS; who++) {
            ch_tuple *in = numbers(at, who);
            char      name[32];

            snprintf(name, sizeof(name), "replica %d", who);
            if (at < 0) {
                t_ok(ch_strategy_run(j.st, j.f, in, NULL));
                good++;
            } else {
                t_refused(ch_strategy_run(j.st, j.f, in, NULL), CH_INVALID_ARGUMENT, name,
                          "as it was to");
            }
            for (int r = 0; r < REPLICAS; r++)
                assert_true(t_copy_of(j.v, r, 0) == 2 * (float)good);
            ch_tuple_unref(in);
        }
    drop_job(&j);
    (void)state;
}

/* ---- host calls ---- */

/* The state that the two host calls of a step share. */
static struct {
    pthread_t  thread[2];
    atomic_int n_here;
} hosts;

/* Returns when the call on the other replica has begun too. In turns this would never
 * happen. */
static ch_status meet(void *arg, int n_in, ch_tensor *const *in, int n_out,
                      ch_tensor *const *out)
{
    int id = *(const int32_t *)ch_tensor_data(in[0]);

    (void)arg, (void)n_in, (void)n_out, (void)out;
    hosts.thread[id] = pthread_self();
    atomic_fetch_add(&hosts.n_here, 1);
    while (atomic_load(&hosts.n_here) < 2)
        ch__relax();
    return CH_OK;
}

static void call_host(ch_step *s, ch_node *id)
{
    ch_host_call(s, &(ch_host_spec){.name = "meet", .fn = meet}, 1, &id, NULL);
}

static void with_host_call(ch_step *s, void *arg)
{
    (void)arg;
    call_host(s, ch_step_replica_id(s));
    ch_step_out(s, NULL, ch_all_reduce(CH_SUM, ch_fill(s, CH_F32, ch_shape_of(WIDE), 1)));
}

static void call_in_body(ch_step *s, void *arg, ch_node **out)
{
    call_host(s, arg);
    out[0] = ch_cast(arg, CH_F32);
}

static void with_call_in_body(ch_step *s, void *arg)
{
    ch_node *id = ch_step_replica_id(s), *y = NULL;

    (void)arg;
    ch_cond(ch_less(id, ch_number(s, 7)), 1, call_in_body, call_in_body, id, &y);
    ch_step_out(s, NULL, ch_all_reduce(CH_SUM, y));
}

static void
host_calls_of_replicas_run_at_the_same_time_even_if_turns_are_asked_for(void **state)
{
    const ch_step_fn step[] = {with_host_call, with_call_in_body};

    for (int i = 0; i < 2; i++) {
        job j = {.st = t_mirrored(2), .f = t_function(step[i], NULL)};

        for (int k = 0; k < 20; k++) {
            atomic_store(&hosts.n_here, 0);
            t_ok(ch_strategy_run(j.st, j.f, NULL, NULL));
            assert_false(pthread_equal(hosts.thread[0], hosts.thread[1]));
        }
        drop_job(&j);
    }
    (void)state;
}

/* ---- cost ---- */

static void many_sums(ch_step *s, void *v)
{
    ch_node *x = ch_cast(ch_step_replica_id(s), CH_F32);

    for (int i = 0; i < 4; i++)
        x = ch_all_reduce(CH_MEAN, ch_add(x, ch_fill(s, CH_F32, ch_shape_of(WIDE), 1)));
    ch_var_assign_add(s, v, ch_mean_all(x));
}

static void a_step_in_turns_wakes_no_thread_and_allocates_nothing(void **state)
{
    job     j = {.st = t_mirrored(REPLICAS)};
    int64_t allocs, wakes;

    j.v = t_var(j.st, "v", t_f32(ch_shape_scalar(), NULL));
    j.f = t_function(many_sums, j.v);
    for (int i = 0; i < 3; i++)
        t_ok(ch_strategy_run(j.st, j.f, NULL, NULL));
    allocs = ch__mem_allocs();
    wakes = ch__wake_count();
    for (int i = 0; i < 100; i++)
        t_ok(ch_strategy_run(j.st, j.f, NULL, NULL));
    assert_int_equal(ch__mem_allocs(), allocs);
    assert_int_equal(ch__wake_count(), wakes);
    assert_true(t_copy_of(j.v, 2, 0) == 103 * 5);
    drop_job(&j);
    (void)state;
}

/* The loop is long enough that both ways are tried and measured. */
static void step_that_switches_between_turns_and_threads_allocates_nothing(void **state)
{
    job     j = {.st = t_mirrored(REPLICAS)};
    int64_t allocs;

    t_ok(ch__config_set("replicas", "auto"));
    j.v = t_var(j.st, "v", t_f32(ch_shape_scalar(), NULL));
    j.f = t_function(many_sums, j.v);
    t_ok(ch_strategy_run(j.st, j.f, NULL, NULL));
    allocs = ch__mem_allocs();
    for (int i = 0; i < 500; i++)
        t_ok(ch_strategy_run(j.st, j.f, NULL, NULL));
    assert_int_equal(ch__mem_allocs(), allocs);
    assert_true(t_copy_of(j.v, 2, 0) == 501 * 5);
    drop_job(&j);
    (void)state;
}

static void timing_in_turns_has_no_waits_and_adds_up(void **state)
{
    job       j = {.st = t_mirrored(REPLICAS)};
    ch_timing t;
    int64_t   sum = 0;

    j.v = t_var(j.st, "v", t_f32(ch_shape_scalar(), NULL));
    j.f = t_function(many_sums, j.v);
    t_ok(ch_strategy_run(j.st, j.f, NULL, NULL));
    t_ok(ch__strategy_run_timed(j.st, j.f, NULL, NULL, &t));
    for (int w = 0; w < CH_WORKS; w++) {
        assert_true(t.ns[w] >= 0);
        sum += t.ns[w];
    }
    assert_int_equal(sum, t.total_ns);
    assert_int_equal(t.ns[CH_WORK_WAIT], 0);
    assert_true(t.ns[CH_WORK_REDUCE] > 0 && t.ns[CH_WORK_FORWARD] > 0);
    drop_job(&j);
    (void)state;
}

/* A call that is interrupted and continued is a single span, around the spans of the other
 * turns. */
static void a_trace_of_turns_has_a_span_for_each_call_and_each_turn_of_others(void **state)
{
    static const char *const name[] = {"GPU:0", "GPU:1", "GPU:2"};
    job                      j = {.st = t_mirrored(REPLICAS)};
    t_trace                 *trace;

    j.v = t_var(j.st, "v", t_f32(ch_shape_scalar(), NULL));
    j.f = t_function(many_sums, j.v);
    t_ok(ch__trace_open(t_path("turns.json")));
    for (int i = 0; i < 2; i++)
        t_ok(ch_strategy_run(j.st, j.f, NULL, NULL));
    t_ok(ch__trace_close());
    trace = t_trace_read(t_path("turns.json"));
    assert_int_equal(trace->n_tracks, REPLICAS);
    for (int r = 0; r < REPLICAS; r++) {
        assert_int_equal(t_count(trace, name[r], "step"), 2);
        assert_int_equal(t_count(trace, name[r], "reduce/all_reduce"), 2 * 4);
    }
    assert_true(t_count(trace, name[0], "wait (turns of others)") >= 2 * 4);
    free(trace);
    drop_job(&j);
    (void)state;
}

static int set_up(void **state)
{
    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "GPU=4"}));
    return t_folder_make(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_replica_that_fails_in_turns_ends_the_step_and_changes_nothing,
                               in_turns),
        cmocka_unit_test_setup(
            host_calls_of_replicas_run_at_the_same_time_even_if_turns_are_asked_for, in_turns),
        cmocka_unit_test_setup(a_step_in_turns_wakes_no_thread_and_allocates_nothing, in_turns),
        cmocka_unit_test(step_that_switches_between_turns_and_threads_allocates_nothing),
        cmocka_unit_test_setup(timing_in_turns_has_no_waits_and_adds_up, in_turns),
        cmocka_unit_test_setup(
            a_trace_of_turns_has_a_span_for_each_call_and_each_turn_of_others, in_turns),
    };

    return cmocka_run_group_tests(tests, set_up, t_folder_remove);
}
