/* base/thread.h -- clocks, threads, gates (waits with a deadline) and teams.
 *
 * Every wait for a peer has a limit and a name. ch__gate_wait takes a text that names the
 * peer, logs it after the setting wait_notice_ms and fails with DEADLINE_EXCEEDED after
 * wait_limit_ms (base/config.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cohort/status.h"

int64_t ch__now_ns(void);      /* monotonic time in nanoseconds */
int64_t ch__cpu_ns(void);      /* CPU time of this thread in nanoseconds; a call takes 0.2 us */
int64_t ch__clock_reads(void); /* number of calls of these two by this thread; for tests */
/* Returns the number of cores that this process may use, at least 1, by its affinity and by the
 * CPU quotas of its control groups. The quotas are read on the first call. */
int ch__cpu_count(void);
/* Returns the number of the `n` cores that a quota leaves, at least 1; quota 0: all of them. */
int ch__cpus_within(int n, double quota);
/* Returns the smallest CPU quota of this process's control groups, in cores; 0: there is no
 * quota. `root` is put before every path that is read; it is "" except in tests. */
double ch__cpu_quota(const char *root);

typedef struct ch_thread ch_thread;

/* Starts a thread that runs run(arg), with all signals blocked. Names are cut to 15 bytes. The
 * caller must call ch__thread_join. Returns RESOURCE_EXHAUSTED if the thread cannot start. */
CH_MUST_CHECK ch_status ch__thread_start(const char *name, void (*run)(void *), void *arg,
                                         ch_thread **out);
/* Blocks until the thread has ended, and frees it. `t` may be NULL. */
void ch__thread_join(ch_thread *t);

/* Hint to the processor that this is a loop that waits. */
static inline void ch__relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* A gate: a counter that threads wait on. A thread reads it (`seen`), checks its condition, and
 * waits until the counter is no longer `seen`. A wait first spins for `spin` rounds, then
 * sleeps. `spin` must be 0 if there are more threads than cores. */
typedef atomic_uint ch_gate;
/* Increments the counter and wakes all waiting threads. */
void ch__gate_open(ch_gate *g);
/* Blocks until the gate has moved on from `seen`. Returns DEADLINE_EXCEEDED after
 * wait_limit_ms. `peer` names the peer in the warning and the error, such as "replica 1 in
 * all_reduce". */
CH_MUST_CHECK ch_status ch__gate_wait(ch_gate *g, unsigned seen, int spin, const char *peer);
/* The same without spinning, with a limit in milliseconds of the caller. */
CH_MUST_CHECK ch_status ch__gate_wait_for(ch_gate *g, unsigned seen, int64_t limit_ms,
                                          const char *peer);
/* The same without a limit and without a warning: for idle helper threads. */
void ch__gate_idle(ch_gate *g, unsigned seen, int spin);
/* The same without spinning, until the time `ns` of ch__now_ns at most; INT64_MAX: no limit. */
void ch__gate_idle_until(ch_gate *g, unsigned seen, int64_t ns);
/* Returns how often a sleeping thread of this process was woken; for tests. */
int64_t ch__wake_count(void);

/* A team: the calling thread and n_threads - 1 helper threads, which run the indices of a loop
 * together. */
typedef struct ch_team ch_team;

/* Creates a team and starts its helpers. The caller must free it with ch__team_free. */
CH_MUST_CHECK ch_status ch__team_new(const char *name, int n_threads, ch_team **out);
/* Stops the helpers and frees the team. `t` may be NULL. */
void ch__team_free(ch_team *t);
/* Returns the number of threads, including the caller; 1 if `t` is NULL. */
int ch__team_size(const ch_team *t);
/* Calls work(arg, i) once for every i in [0, n), and returns when all calls have returned. Any
 * thread may run any index, so results must not depend on the assignment. If `t` is NULL, the
 * caller runs all indices in order. Not reentrant: only the thread that owns the team may call
 * it, with one loop at a time. */
void ch__team_run(ch_team *t, int n, void (*work)(void *arg, int i), void *arg);

#endif
