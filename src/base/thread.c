/* base/thread.c -- clocks, threads, gates over futexes, and teams.
 *
 * A gate is a counter on which threads wait with a futex. A team (struct ch_team) is a calling
 * thread and helper threads, which run the indices of a loop together. Each device has a team
 * (tensor/device.c); replicas, tasks and data threads wait at gates.
 *
 * The `door` of a team counts the helpers that take part in the current job. Invariants:
 *   1. A helper reads the job only between team_join and team_leave, and can join only while
 *      the door is open.
 *   2. The caller writes the job only while the door is shut and no helper is inside.
 *   3. So a helper that wakes late finds a shut door or joins the job that is open then. It
 *      never reads a job that is half written.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "base/thread.h"

#include <assert.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdalign.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/config.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"

static const int64_t ns_per_s = 1000000000, ns_per_ms = 1000000;

static _Thread_local int64_t n_clock_reads;

int64_t ch__clock_reads(void)
{
    return n_clock_reads;
}

int64_t ch__now_ns(void)
{
    struct timespec t;

    n_clock_reads++;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * ns_per_s + t.tv_nsec;
}

int64_t ch__cpu_ns(void)
{
    struct timespec t;

    n_clock_reads++;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * ns_per_s + t.tv_nsec;
}

enum { THREAD_NAME = 16 }; /* bytes, including the terminating 0: the limit of Linux */

struct ch_thread {
    pthread_t id;
    void (*run)(void *);
    void *arg;
    char  name[THREAD_NAME];
};

static void *thread_main(void *arg)
{
    ch_thread *t = arg;

    pthread_setname_np(pthread_self(), t->name);
    t->run(t->arg);
    return NULL;
}

/* Starts a thread that blocks all signals, because signals are for the program's own threads.
 * The new thread inherits the mask, so it cannot receive a signal even at its beginning. */
static int create_without_signals(ch_thread *t)
{
    sigset_t all, before;
    int      error;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&t->id, NULL, thread_main, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

ch_status ch__thread_start(const char *name, void (*run)(void *), void *arg, ch_thread **out)
{
    ch_thread *t = ch__calloc(1, sizeof(*t));
    char       why[128];
    int        error;

    if (t == NULL)
        return ch__fail_memory(name);
    t->run = run;
    t->arg = arg;
    memcpy(t->name, name, strnlen(name, THREAD_NAME - 1)); /* the rest is zero */
    error = create_without_signals(t);
    if (error != 0) {
        ch__free(t);
        return ch__fail(CH_RESOURCE_EXHAUSTED, "thread %s: cannot start: %s", name,
                        strerror_r(error, why, sizeof(why)));
    }
    *out = t;
    return CH_OK;
}

void ch__thread_join(ch_thread *t)
{
    if (t == NULL)
        return;
    pthread_join(t->id, NULL);
    ch__free(t);
}

/* Numbers of parked threads, by a hash of the gate's address. Waking costs a system call even
 * if no thread is parked, which is usual between threads that spin. If two gates have the same
 * hash, the only cost is a needless call. */
enum { N_PARKING = 64 };
static struct {
    alignas(CH_ALIGN) atomic_int n_parked;
} parking[N_PARKING];

static atomic_int_least64_t n_wakes;

static atomic_int *parked_at(const ch_gate *g)
{
    uint32_t hash = (uint32_t)((uintptr_t)g >> 2) * 2654435769u; /* 2^32 / golden ratio */

    return &parking[hash >> 26].n_parked;
}
_Static_assert(N_PARKING == 1 << (32 - 26), "the top bits of the hash choose the counter");

static bool gate_moved(const ch_gate *g, unsigned seen)
{
    return atomic_load_explicit(g, memory_order_acquire) != seen;
}

static bool gate_moves_within(const ch_gate *g, unsigned seen, int spin)
{
    for (int i = 0; i < spin; i++) {
        if (gate_moved(g, seen))
            return true;
        ch__relax();
    }
    return gate_moved(g, seen);
}

/* Sleeps until woken or until `until` (CLOCK_MONOTONIC; NULL: no limit). May return early
 * without a reason. No wake is lost: this function increments the count before the kernel reads
 * the gate, and ch__gate_open changes the gate before it reads the count. At least one of them
 * sees the other's change. */
static void gate_park(ch_gate *g, unsigned seen, const struct timespec *until)
{
    atomic_int *n_parked = parked_at(g);
    long        rc;

    atomic_fetch_add(n_parked, 1);
    rc = syscall(SYS_futex, g, FUTEX_WAIT_BITSET_PRIVATE, seen, until, NULL,
                 FUTEX_BITSET_MATCH_ANY);
    atomic_fetch_sub(n_parked, 1);
    if (rc == 0)
        atomic_fetch_add_explicit(&n_wakes, 1, memory_order_relaxed);
}

void ch__gate_open(ch_gate *g)
{
    atomic_fetch_add(g, 1);
    if (atomic_load(parked_at(g)) > 0)
        syscall(SYS_futex, g, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void gate_park_until(ch_gate *g, unsigned seen, int64_t ns)
{
    gate_park(g, seen, &(struct timespec){.tv_sec = ns / ns_per_s, .tv_nsec = ns % ns_per_s});
}

/* Waits with a notice and a limit, without a message. The notice is logged before the limit
 * fails, even if this thread has slept past both times. */
static ch_status gate_wait_limited(ch_gate *g, unsigned seen, int64_t limit_ms,
                                   const char *peer)
{
    const ch_config *c = ch__config();
    int64_t          begin = ch__now_ns();
    int64_t          limit = begin + limit_ms * ns_per_ms;
    int64_t          notice = begin + c->wait_notice_ms * ns_per_ms;

    while (!gate_moved(g, seen)) {
        int64_t now = ch__now_ns();

        if (now >= notice) {
            ch__log(CH_LOG_WARNING, "wait", "waiting for %s for %d ms; fails after %lld ms",
                    peer, c->wait_notice_ms, (long long)limit_ms);
            notice = INT64_MAX;
        }
        if (now >= limit)
            return CH_DEADLINE_EXCEEDED;
        gate_park_until(g, seen, notice < limit ? notice : limit);
    }
    return CH_OK;
}

ch_status ch__gate_wait_for(ch_gate *g, unsigned seen, int64_t limit_ms, const char *peer)
{
    ch_status st = gate_wait_limited(g, seen, limit_ms, peer);

    return st == CH_OK ? CH_OK
                       : ch__fail(st, "waited %lld ms for %s", (long long)limit_ms, peer);
}

ch_status ch__gate_wait(ch_gate *g, unsigned seen, int spin, const char *peer)
{
    int       limit_ms = ch__config()->wait_limit_ms;
    ch_status st = CH_OK;

    if (!gate_moves_within(g, seen, spin))
        st = gate_wait_limited(g, seen, limit_ms, peer);
    return st == CH_OK
               ? CH_OK
               : ch__fail(st, "waited %d ms for %s; COHORT_WAIT_LIMIT_MS sets the limit",
                          limit_ms, peer);
}

void ch__gate_idle(ch_gate *g, unsigned seen, int spin)
{
    if (gate_moves_within(g, seen, spin))
        return;
    while (!gate_moved(g, seen))
        gate_park(g, seen, NULL);
}

void ch__gate_idle_until(ch_gate *g, unsigned seen, int64_t ns)
{
    if (ns == INT64_MAX) {
        ch__gate_idle(g, seen, 0);
        return;
    }
    while (!gate_moved(g, seen) && ch__now_ns() < ns)
        gate_park_until(g, seen, ns);
}

int64_t ch__wake_count(void)
{
    return atomic_load_explicit(&n_wakes, memory_order_relaxed);
}

/* Rounds that a team spins: about the time that a wake takes. */
enum { TEAM_SPIN = 2000 };

/* The door is a number: this bit, set while a job may be joined, plus the number of helpers
 * inside. */
static const unsigned door_open = 1u << 31;

struct ch_team {
    alignas(CH_ALIGN) ch_gate posted; /* opened for every job, and to stop the helpers */
    atomic_bool is_stopping;
    alignas(CH_ALIGN) atomic_uint door;
    ch_gate emptied; /* opened when the last helper leaves a shut door */
    alignas(CH_ALIGN) atomic_int_least64_t next; /* next index; exceeds n, so wider than int */
    alignas(CH_ALIGN) void (*work)(void *, int i); /* the job, to n: see invariants 1 and 2 */
    void      *arg;
    int        n;
    int        n_cpus, n_threads, n_helpers; /* n_threads: requested; n_helpers: started */
    ch_thread *helpers[];
};

/* Number of threads of all teams, including callers. If there are more of them than cores,
 * teams do not spin, because a spinning thread may keep the thread that it waits for from
 * running. */
static atomic_int n_all_threads;

static int team_spin(const ch_team *t)
{
    return atomic_load_explicit(&n_all_threads, memory_order_relaxed) <= t->n_cpus ? TEAM_SPIN
                                                                                   : 0;
}

static bool team_join(ch_team *t)
{
    unsigned door = atomic_load_explicit(&t->door, memory_order_relaxed);

    while ((door & door_open) != 0)
        if (atomic_compare_exchange_weak_explicit(&t->door, &door, door + 1,
                                                  memory_order_acquire, memory_order_relaxed))
            return true;
    return false;
}

static void team_leave(ch_team *t)
{
    if (atomic_fetch_sub_explicit(&t->door, 1, memory_order_acq_rel) == 1)
        ch__gate_open(&t->emptied);
}

static void team_run_indices(ch_team *t)
{
    int64_t i;

    while ((i = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed)) < t->n)
        t->work(t->arg, (int)i);
}

/* Reads `seen` before joining, so that a job posted after that is not missed. */
static void helper_main(void *arg)
{
    ch_team *t = arg;

    for (unsigned seen = 0;;) {
        ch__gate_idle(&t->posted, seen, team_spin(t));
        seen = atomic_load(&t->posted);
        if (atomic_load(&t->is_stopping))
            return;
        if (team_join(t)) {
            team_run_indices(t);
            team_leave(t);
        }
    }
}

static ch_status team_start_helper(ch_team *t, const char *name)
{
    char      helper_name[THREAD_NAME];
    ch_status st;

    snprintf(helper_name, sizeof(helper_name), "%.9s/%d", name, (t->n_helpers + 1) % 10000);
    st = ch__thread_start(helper_name, helper_main, t, &t->helpers[t->n_helpers]);
    if (st == CH_OK)
        t->n_helpers++;
    return st;
}

ch_status ch__team_new(const char *name, int n_threads, ch_team **out)
{
    ch_team *t;

    if (n_threads < 1)
        return ch__fail(CH_INVALID_ARGUMENT, "team %s: got %d threads, want 1 or more", name,
                        n_threads);
    t = ch__alloc_aligned(sizeof(*t) + (size_t)(n_threads - 1) * sizeof(t->helpers[0]));
    if (t == NULL)
        return ch__fail_memory(name);
    t->n_cpus = ch__cpu_count();
    t->n_threads = n_threads;
    atomic_fetch_add(&n_all_threads, n_threads);
    for (int i = 1; i < n_threads; i++) {
        ch_status st = team_start_helper(t, name);

        if (st != CH_OK) {
            ch__team_free(t);
            return st;
        }
    }
    *out = t;
    return CH_OK;
}

void ch__team_free(ch_team *t)
{
    if (t == NULL)
        return;
    atomic_store(&t->is_stopping, true);
    ch__gate_open(&t->posted);
    for (int i = 0; i < t->n_helpers; i++)
        ch__thread_join(t->helpers[i]);
    atomic_fetch_sub(&n_all_threads, t->n_threads);
    ch__free_aligned(t);
}

int ch__team_size(const ch_team *t)
{
    return t != NULL ? t->n_threads : 1;
}

static void team_post(ch_team *t, int n, void (*work)(void *arg, int i), void *arg)
{
    assert(atomic_load(&t->door) == 0);
    t->n = n;
    t->work = work;
    t->arg = arg;
    atomic_store_explicit(&t->next, 0, memory_order_relaxed);
    atomic_store_explicit(&t->door, door_open, memory_order_release);
    ch__gate_open(&t->posted);
}

/* Shuts the door and waits until all helpers have left. There is no time limit, because the
 * helpers use the caller's `arg`. */
static void team_finish(ch_team *t)
{
    unsigned seen = atomic_load(&t->emptied);

    if (atomic_fetch_and(&t->door, ~door_open) != door_open)
        ch__gate_idle(&t->emptied, seen, team_spin(t));
}

void ch__team_run(ch_team *t, int n, void (*work)(void *arg, int i), void *arg)
{
    if (t == NULL || t->n_helpers == 0 || n <= 1) {
        for (int i = 0; i < n; i++)
            work(arg, i);
        return;
    }
    team_post(t, n, work, arg);
    team_run_indices(t);
    team_finish(t);
}
