/* test/base/test_thread.c -- threads, gates and teams.
 *
 * A gate is a counter that threads wait for; a team runs the indices of a loop on several
 * threads. The tests check that no wake-up is lost and that every index runs once.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/mem.h"
#include "base/thread.h"
#include "cohort/log.h"

typedef struct {
    char name[32];
    bool takes_interrupts;
} traits;

static void look_at_myself(void *arg)
{
    traits  *t = arg;
    sigset_t blocked;

    pthread_getname_np(pthread_self(), t->name, sizeof(t->name));
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    t->takes_interrupts = !sigismember(&blocked, SIGINT);
}

static void a_thread_has_its_name_and_takes_no_signals(void **state)
{
    ch_thread *t = NULL;
    traits     mine = {0}, other = {0};

    assert_int_equal(ch__thread_start("a name that is too long", look_at_myself, &other, &t),
                     CH_OK);
    ch__thread_join(t);
    assert_string_equal(other.name, "a name that is ");
    assert_false(other.takes_interrupts);
    look_at_myself(&mine);
    assert_true(mine.takes_interrupts); /* unchanged by starting a thread */
    ch__thread_join(NULL);
    (void)state;
}

static void thread_start_fails_when_out_of_memory(void **state)
{
    ch_thread *t = NULL;

    ch__mem_fail_at(1);
    assert_int_equal(ch__thread_start("poor", look_at_myself, NULL, &t), CH_RESOURCE_EXHAUSTED);
    assert_null(t);
    assert_string_equal(ch_error_message(), "poor: out of memory");
    (void)state;
}

static void now_ns_does_not_run_backwards(void **state)
{
    int64_t before = ch__now_ns();

    assert_true(before > 0);
    assert_true(ch__now_ns() >= before);
    assert_true(ch__cpu_count() >= 1);
    (void)state;
}

/* Two threads that take turns by means of gates. */
typedef struct {
    ch_gate     ping, pong;
    atomic_bool is_over;
    int         spin;
} table;

static void answer_pings(void *arg)
{
    table *t = arg;

    for (unsigned seen = 0; !atomic_load(&t->is_over); seen++) {
        ch__gate_idle(&t->ping, seen, t->spin);
        ch__gate_open(&t->pong);
    }
}

static ch_thread *table_start(table *t)
{
    ch_thread *other = NULL;

    assert_int_equal(ch__thread_start("pong", answer_pings, t, &other), CH_OK);
    return other;
}

static void table_turn(table *t)
{
    unsigned seen = atomic_load(&t->pong);

    ch__gate_open(&t->ping);
    assert_int_equal(ch__gate_wait(&t->pong, seen, t->spin, "pong"), CH_OK);
}

static void table_stop(table *t, ch_thread *other)
{
    atomic_store(&t->is_over, true);
    ch__gate_open(&t->ping);
    ch__thread_join(other);
}

static void gate_wait_misses_no_opening(void **state)
{
    static const int spins[] = {0, 1, 100};

    for (int i = 0; i < 3; i++) {
        table      t = {.spin = spins[i]};
        ch_thread *other = table_start(&t);

        for (int turn = 0; turn < 500; turn++)
            table_turn(&t);
        table_stop(&t, other);
    }
    (void)state;
}

static void wake_count_counts_parked_threads_that_are_woken(void **state)
{
    table      t = {.spin = 0};
    ch_thread *other = table_start(&t);
    int64_t    before = ch__wake_count();

    while (ch__wake_count() == before) /* until a thread was asleep when it was woken */
        table_turn(&t);
    table_stop(&t, other);
    (void)state;
}

static void gate_wait_returns_at_once_when_the_gate_has_moved(void **state)
{
    ch_gate g = 5;

    assert_int_equal(ch__gate_wait(&g, 4, 0, "nobody"), CH_OK);
    ch__gate_idle(&g, 4, 0);
    ch__gate_open(&g);
    assert_int_equal(atomic_load(&g), 6);
    (void)state;
}

static void keep_text(const ch_log_record *r, void *arg)
{
    snprintf(arg, 256, "%s: %s", r->code, r->text);
}

static void gate_wait_names_its_peer_and_fails_at_the_limit(void **state)
{
    ch_gate g = 0;
    char    notice[256] = "";

    assert_int_equal(ch__config_set("wait_notice_ms", "1"), CH_OK);
    assert_int_equal(ch__config_set("wait_limit_ms", "2"), CH_OK);
    ch_log_set_sink(keep_text, notice, CH_LOG_WARNING);
    assert_int_equal(ch__gate_wait(&g, 0, 10, "replica 1 in all_reduce"), CH_DEADLINE_EXCEEDED);
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
    assert_int_equal(ch__config_set("wait_notice_ms", "10000"), CH_OK);
    assert_int_equal(ch__config_set("wait_limit_ms", "600000"), CH_OK);
    assert_non_null(strstr(notice, "wait: waiting for replica 1 in all_reduce"));
    assert_non_null(strstr(ch_error_message(), "waited 2 ms for replica 1 in all_reduce"));
    (void)state;
}

static void gate_wait_for_has_its_own_limit(void **state)
{
    ch_gate g = 0;

    assert_int_equal(ch__gate_wait_for(&g, 0, 2, "replica 1"), CH_DEADLINE_EXCEEDED);
    assert_string_equal(ch_error_message(), "waited 2 ms for replica 1");
    ch__gate_open(&g);
    assert_int_equal(ch__gate_wait_for(&g, 0, 0, "replica 1"), CH_OK);
    (void)state;
}

enum { MOST = 1000 };

/* This counter is not atomic on purpose. The sums and the thread sanitizer find an index that
 * runs twice, or work that continues after the loop has ended. */
static void count_index(void *arg, int i)
{
    int *times = arg;

    times[i]++;
}

static void assert_each_once(ch_team *team, int n)
{
    int times[MOST] = {0};

    ch__team_run(team, n, count_index, times);
    for (int i = 0; i < MOST; i++)
        assert_int_equal(times[i], i < n);
}

static void a_team_runs_every_index_once(void **state)
{
    for (int size = 1; size <= 5; size++) {
        ch_team *team = NULL;

        assert_int_equal(ch__team_new("test", size, &team), CH_OK);
        assert_int_equal(ch__team_size(team), size);
        for (int n = 0; n <= 8; n++)
            assert_each_once(team, n);
        assert_each_once(team, MOST);
        ch__team_free(team);
    }
    (void)state;
}

static void expect_next(void *arg, int i)
{
    int *next = arg;

    assert_int_equal(i, (*next)++);
}

static void team_run_is_in_order_when_the_team_is_null(void **state)
{
    int next = 0;

    assert_int_equal(ch__team_size(NULL), 1);
    ch__team_run(NULL, 10, expect_next, &next);
    assert_int_equal(next, 10);
    ch__team_free(NULL);
    (void)state;
}

/* Runs short jobs on changing stack frames. A helper that wakes late finds a later job, or
 * none. */
static void team_helper_that_wakes_late_leaves_later_jobs_alone(void **state)
{
    ch_team *team = NULL;

    assert_int_equal(ch__team_new("late", 4, &team), CH_OK);
    for (int job = 0; job < 2000; job++) {
        int times[3] = {0}, n = 2 + job % 2;

        ch__team_run(team, n, count_index, times);
        for (int i = 0; i < 3; i++)
            assert_int_equal(times[i], i < n);
    }
    ch__team_free(team);
    (void)state;
}

typedef struct {
    atomic_int n_here;
    int        n_wanted;
} arrivals;

/* Returns when all indices have arrived, so each index must have its own thread. */
static void arrive_and_wait(void *arg, int i)
{
    arrivals *a = arg;

    atomic_fetch_add(&a->n_here, 1);
    while (atomic_load(&a->n_here) < a->n_wanted)
        sched_yield();
    (void)i;
}

static void team_run_uses_all_members(void **state)
{
    arrivals a = {.n_wanted = 4};
    ch_team *team = NULL;

    assert_int_equal(ch__team_new("all", 4, &team), CH_OK);
    ch__team_run(team, 4, arrive_and_wait, &a);
    assert_int_equal(atomic_load(&a.n_here), 4);
    ch__team_free(team);
    (void)state;
}

static void team_run_allocates_nothing(void **state)
{
    int      times[MOST] = {0};
    ch_team *team = NULL;
    int64_t  allocs;

    assert_int_equal(ch__team_new("lean", 3, &team), CH_OK);
    allocs = ch__mem_allocs();
    ch__team_run(team, MOST, count_index, times);
    assert_int_equal(ch__mem_allocs(), allocs);
    ch__team_free(team);
    (void)state;
}

static void team_new_rejects_size_0(void **state)
{
    ch_team *team = NULL;

    assert_int_equal(ch__team_new("none", 0, &team), CH_INVALID_ARGUMENT);
    assert_null(team);
    assert_non_null(strstr(ch_error_message(), "none"));
    (void)state;
}

static void team_new_leaks_nothing_when_out_of_memory(void **state)
{
    int64_t  live = ch__mem_live();
    ch_team *team = NULL;

    for (int n = 1; n <= 4; n++) { /* the team, and its three helpers */
        ch__mem_fail_at(n);
        assert_int_equal(ch__team_new("poor", 4, &team), CH_RESOURCE_EXHAUSTED);
        assert_null(team);
        assert_int_equal(ch__mem_live(), live);
    }
    assert_int_equal(ch__team_new("rich", 4, &team), CH_OK);
    ch__team_free(team);
    assert_int_equal(ch__mem_live(), live);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_has_its_name_and_takes_no_signals),
        cmocka_unit_test(thread_start_fails_when_out_of_memory),
        cmocka_unit_test(now_ns_does_not_run_backwards),
        cmocka_unit_test(gate_wait_misses_no_opening),
        cmocka_unit_test(wake_count_counts_parked_threads_that_are_woken),
        cmocka_unit_test(gate_wait_returns_at_once_when_the_gate_has_moved),
        cmocka_unit_test(gate_wait_names_its_peer_and_fails_at_the_limit),
        cmocka_unit_test(gate_wait_for_has_its_own_limit),
        cmocka_unit_test(a_team_runs_every_index_once),
        cmocka_unit_test(team_run_is_in_order_when_the_team_is_null),
        cmocka_unit_test(team_helper_that_wakes_late_leaves_later_jobs_alone),
        cmocka_unit_test(team_run_uses_all_members),
        cmocka_unit_test(team_run_allocates_nothing),
        cmocka_unit_test(team_new_rejects_size_0),
        cmocka_unit_test(team_new_leaks_nothing_when_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
