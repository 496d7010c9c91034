/* base/thread.h -- threads, waiting with a deadline, and teams.
 *
 * A wait never lasts for ever and never in silence: it takes whom it waits for as text, logs
 * that text after the notice time and fails with DEADLINE_EXCEEDED after the limit
 * (base/config.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cohort/status.h"

int64_t ch__now_ns(void); /* monotonic */
int64_t ch__cpu_ns(void); /* that the processor worked for this thread; a call costs 0.2 us */
int64_t ch__clock_reads(void); /* how often this thread called these two: for tests */
/* Cores that this process may use: by its affinity, and by the CPU quotas of its control groups when they
 * were first asked for. At least 1. */
int ch__cpu_count(void);
/* The least CPU quota of this process's control groups, in cores; 0: there is none. `root` is put before
 * every path that is read: "" but for tests. */
double ch__cpu_quota(const char *root);

typedef struct ch_thread ch_thread;

CH_MUST_CHECK ch_status ch__thread_start(const char *name, void (*run)(void *), void *arg,
                                         ch_thread **out);
void ch__thread_join(ch_thread *t); /* waits for its end and frees it; NULL is fine */

/* Tells the processor that this is a loop which waits. */
static inline void ch__relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* A number that threads wait on: park until it is no longer `seen`. Spins `spin` rounds
 * first (0 where there are more threads than cores). */
typedef atomic_uint ch_gate;
void                ch__gate_open(ch_gate *g); /* adds one and wakes all who wait */
/* `whom` is for the notice and the error: "replica 1 in all_reduce". */
CH_MUST_CHECK ch_status ch__gate_wait(ch_gate *g, unsigned seen, int spin, const char *whom);
/* The same, parked at once, with a limit of its own. */
CH_MUST_CHECK ch_status ch__gate_wait_for(ch_gate *g, unsigned seen, int64_t limit_ms,
                                          const char *whom);
/* The same without a limit or a notice: for idle helper threads. */
void ch__gate_idle(ch_gate *g, unsigned seen, int spin);
/* The same, parked at once, and no longer than until `ns` of ch__now_ns; INT64_MAX: no matter how long. */
void ch__gate_idle_until(ch_gate *g, unsigned seen, int64_t ns);
/* How often a thread was woken out of a park, in this process: for tests. */
int64_t ch__wake_count(void);

/* A team: the calling thread and n - 1 helpers, which run the indices of a loop together. */
typedef struct ch_team ch_team;

CH_MUST_CHECK ch_status ch__team_new(const char *name, int n_threads, ch_team **out);
void                    ch__team_free(ch_team *t);
int                     ch__team_size(const ch_team *t); /* 1 for NULL */
/* Calls work(arg, i) once for every i in [0, n), and returns when all are done. Who runs
 * which index is not said, so results must not depend on it. NULL teams run them in order.
 * Not reentrant: only the thread that owns the team may call it, one loop at a time. */
void ch__team_run(ch_team *t, int n, void (*work)(void *arg, int i), void *arg);

#endif
