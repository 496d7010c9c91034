/* test/save/test_overhead.c -- managers with an overhead: the share of the time that saves take.
 *
 * The clock of base/thread.h is a variable here. A step, and a write in the background, advance it
 * by a given time, so the test knows in which steps saves are due.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdatomic.h>

#include "base/sys.h"
#include "base/thread.h"
#include "counted.h"

enum { MS = 1000000, STEP = 10 * MS, SAVES = 6 };

static _Atomic int64_t now_ns = 1;

/* Linked instead of the function of base/thread.h. Waits of threads use the real clock. */
int64_t __wrap_ch__now_ns(void);

int64_t __wrap_ch__now_ns(void)
{
    return atomic_load(&now_ns);
}

/* A disk that takes a time for each save, and may be closed for a while. */
typedef struct timed_disk {
    pthread_t   program;
    int64_t     save_ns;
    atomic_bool has_begun; /* the time of the last save was added */
    atomic_bool is_closed;
    ch_gate     gate;
} timed_disk;

static void write_slowly(void *arg, const ch_file_op *op)
{
    timed_disk *d = arg;

    if (op->kind != CH_FILE_WRITE || pthread_equal(pthread_self(), d->program))
        return;
    if (!atomic_exchange(&d->has_begun, true))
        atomic_fetch_add(&now_ns, d->save_ns);
    while (atomic_load(&d->is_closed)) {
        unsigned seen = atomic_load(&d->gate);

        if (atomic_load(&d->is_closed))
            ch__gate_idle_until(&d->gate, seen, INT64_MAX);
    }
}

/* Trains a step of `ns`, and saves if a save is due. Returns whether it was. */
static bool step(t_counted *x, timed_disk *d, int64_t ns)
{
    const char *path = NULL;

    atomic_store(&d->has_begun, false);
    atomic_fetch_add(&now_ns, ns);
    t_set_number(x, t_get_number(x) + 1);
    t_ok(ch_checkpoint_manager_save(x->m, false, &path));
    return path != NULL;
}

static int steps_to_save(t_counted *x, timed_disk *d)
{
    int n = 1;

    while (!step(x, d, STEP))
        n++;
    return n;
}

/* Saves that take 3, 6, ... steps. The next is due in the first step in which the time since the
 * last save, times the overhead, is its cost. */
static void saves_take_no_more_than_the_share_of_the_overhead(void **state)
{
    static const double share[] = {0.1, 0.5};
    timed_disk          d = {.program = pthread_self()};

    ch__file_observe(write_slowly, &d);
    for (int k = 0; k < 2; k++) {
        int64_t   began, cost = 0;
        t_counted x;

        t_begin_counted(&x, k == 0 ? "tenth" : "half",
                        (ch_manager_options){.overhead = share[k], .write = {.wait = true}});
        began = atomic_load(&now_ns);
        d.save_ns = 3 * STEP;
        assert_true(step(&x, &d, STEP)); /* the first, of which no cost is known */
        for (int i = 2; i <= SAVES; i++) {
            int n = (int)((double)d.save_ns / share[k] / STEP + 0.5);

            cost += d.save_ns;
            d.save_ns = (int64_t)i * 3 * STEP;
            assert_int_equal(steps_to_save(&x, &d), n);
            assert_true((double)cost <=
                        share[k] * (double)(atomic_load(&now_ns) - d.save_ns - began));
        }
        t_end_counted(&x);
    }
    ch__file_observe(NULL, NULL);
    (void)state;
}

/* With an interval too, a save is due when both allow it. */
static void save_is_due_when_the_overhead_and_the_interval_allow_it(void **state)
{
    static const int interval[] = {7, 50};
    timed_disk       d = {.program = pthread_self(), .save_ns = 3 * STEP};

    ch__file_observe(write_slowly, &d);
    for (int k = 0; k < 2; k++) {
        t_counted x;

        t_begin_counted(&x, k == 0 ? "short" : "long",
                        (ch_manager_options){
                            .overhead = 0.1, .interval = interval[k], .write = {.wait = true}});
        assert_true(step(&x, &d, STEP));
        for (int i = 0; i < SAVES; i++)
            assert_int_equal(steps_to_save(&x, &d), k == 0 ? 30 : 50);
        t_end_counted(&x);
    }
    ch__file_observe(NULL, NULL);
    (void)state;
}

/* Steps that are slower while a save is written are a part of its cost, and no save is due before
 * the write has ended. */
static void slower_steps_during_a_write_count(void **state)
{
    enum { SLOW_STEPS = 5, MORE = 4 * MS }; /* that many steps take so much longer */
    timed_disk d = {.program = pthread_self()};
    t_counted  x;

    t_begin_counted(&x, "background", (ch_manager_options){.overhead = 0.1});
    for (int i = 0; i < 3; i++) { /* saves cost nothing yet; the time of a step is measured */
        assert_true(step(&x, &d, STEP));
        t_ok(ch_checkpoint_wait(x.c));
    }
    ch__file_observe(write_slowly, &d);
    atomic_store(&d.is_closed, true);
    assert_true(step(&x, &d, STEP));
    for (int i = 0; i < SLOW_STEPS; i++)
        assert_false(step(&x, &d, STEP + MORE));
    atomic_store(&d.is_closed, false);
    ch__gate_open(&d.gate);
    t_ok(ch_checkpoint_wait(x.c));
    ch__file_observe(NULL, NULL);
    /* The cost is 5 x 4 ms, a tenth of 200 ms; 5 steps of 14 ms are over. */
    assert_int_equal(steps_to_save(&x, &d), 13);
    t_end_counted(&x);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saves_take_no_more_than_the_share_of_the_overhead),
        cmocka_unit_test(save_is_due_when_the_overhead_and_the_interval_allow_it),
        cmocka_unit_test(slower_steps_during_a_write_count),
    };

    return cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}
