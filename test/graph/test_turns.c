/* test/graph/test_turns.c -- the choice between threads and turns follows the durations of
 * runs.
 *
 * The tests simulate the durations: no test reads a clock.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "graph/turns.h"

/* A simulated machine, with the duration of a run in each mode. */
typedef struct machine {
    int64_t  threads_ns, turns_ns;
    int64_t  stall_ns; /* additional duration of a run in ten; on threads, of a run in three */
    unsigned dice;
    int64_t  total_ns; /* duration of all runs so far */
    int64_t  trial_ns; /* duration of the trials among them */
} machine;

static unsigned roll(machine *m, unsigned sides)
{
    m->dice = m->dice * 1664525u + 1013904223u;
    return (m->dice >> 16) % sides;
}

static void run(machine *m, ch_turns *t, int64_t total_ns)
{
    for (int64_t until = m->total_ns + total_ns; m->total_ns < until;) {
        bool    in_turns = ch__turns_next(t);
        int64_t ns = in_turns ? m->turns_ns : m->threads_ns;

        ns += ns * roll(m, 20) / 100;
        if (m->stall_ns > 0 && roll(m, in_turns ? 10 : 3) == 0)
            ns += m->stall_ns;
        m->total_ns += ns;
        if (t->on_trial)
            m->trial_ns += ns;
        ch__turns_note(t, ns);
    }
}

enum { US = 1000, MS = 1000000 };
static const int64_t second = 1000000000;

static void turns_finds_the_faster_way_from_either_guess(void **state)
{
    static const int64_t ns[][2] = {{60 * US, 20 * US},   {20 * US, 30 * US},
                                    {300 * US, 200 * US}, {110 * US, 200 * US},
                                    {10 * MS, 18 * MS},   {1 * MS, 900 * US}};

    for (size_t i = 0; i < sizeof(ns) / sizeof(ns[0]); i++)
        for (int guess = 0; guess < 2; guess++) {
            machine  m = {.threads_ns = ns[i][0], .turns_ns = ns[i][1], .dice = 1};
            ch_turns t;

            ch__turns_init(&t, guess);
            run(&m, &t, second);
            assert_int_equal(t.in_turns, ns[i][1] < ns[i][0]);
        }
    (void)state;
}

static void turns_tries_a_long_program_in_turns_once_and_then_seldom(void **state)
{
    machine  m = {.threads_ns = 500 * (int64_t)MS, .turns_ns = second, .dice = 1};
    ch_turns t;

    ch__turns_init(&t, false);
    for (int i = 0, n = 0; i < 40; i++) {
        n += ch__turns_next(&t);
        run(&m, &t, 1);
        assert_true(n <= 1);
    }
    assert_false(t.in_turns);
    (void)state;
}

static void turns_spends_at_most_a_64th_of_the_time_on_trials(void **state)
{
    machine  m = {.threads_ns = 100 * US, .turns_ns = 102 * US, .dice = 1};
    ch_turns t;

    ch__turns_init(&t, false);
    run(&m, &t, second);
    m.total_ns = m.trial_ns = 0;
    run(&m, &t, 10 * second);
    assert_true(m.trial_ns > 0 && m.trial_ns * 60 < m.total_ns);
    m.turns_ns = 300 * US;
    run(&m, &t, 10 * second);
    m.total_ns = m.trial_ns = 0;
    run(&m, &t, 10 * second);
    assert_true(m.trial_ns * 500 < m.total_ns);
    (void)state;
}

/* Returns the share of runs in turns during the next `total_ns` of simulated time. */
static double share_in_turns(machine *m, ch_turns *t, int64_t total_ns)
{
    int n = 0, n_turns = 0;

    for (int64_t until = m->total_ns + total_ns; m->total_ns < until; n++) {
        n_turns += ch__turns_next(t);
        run(m, t, 1);
    }
    return (double)n_turns / n;
}

static void turns_changes_the_way_when_the_load_changes(void **state)
{
    machine  m = {.threads_ns = 110 * US, .turns_ns = 200 * US, .dice = 7};
    ch_turns t;

    ch__turns_init(&t, true);
    for (int i = 0; i < 5; i++) {
        m.stall_ns = 0;
        run(&m, &t, second);
        assert_true(share_in_turns(&m, &t, second) < 0.1);
        m.stall_ns = 4 * MS;
        run(&m, &t, second);
        assert_true(share_in_turns(&m, &t, second) > 0.8);
    }
    (void)state;
}

/* If both modes take equally long, trials do not switch from each to the other every time. */
static void turns_seldom_changes_between_equal_ways(void **state)
{
    machine  m = {.threads_ns = 100 * US, .turns_ns = 100 * US, .dice = 3};
    ch_turns t;
    int      n = 0;

    ch__turns_init(&t, false);
    for (int i = 0; i < 1000; i++) {
        bool before = t.in_turns;

        run(&m, &t, 10 * MS);
        n += t.in_turns != before;
    }
    assert_true(n < 20);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_finds_the_faster_way_from_either_guess),
        cmocka_unit_test(turns_tries_a_long_program_in_turns_once_and_then_seldom),
        cmocka_unit_test(turns_spends_at_most_a_64th_of_the_time_on_trials),
        cmocka_unit_test(turns_changes_the_way_when_the_load_changes),
        cmocka_unit_test(turns_seldom_changes_between_equal_ways),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
