/* fit/time_account.h -- the time account of a training: how its time divides into ch_time rows.
 *
 * Each interval of time is charged to exactly one row, so the rows add up to the total. The
 * parts of a step (forward, backward, ...) are measured only in timed steps: the first
 * CH_TIMED_FIRST steps, then every CH_TIMED_EVERY-th step. The time of the other steps is
 * divided in the same proportions.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_TIME_ACCOUNT_H
#define FIT_TIME_ACCOUNT_H

#include "base/thread.h"
#include "cohort/history.h"
#include "graph/timing.h"

enum {
    CH_TIMED_FIRST = 32, /* number of first steps that are all timed */
    CH_TIMED_EVERY = 16, /* after them every 16th step is timed */
    /* Number of first steps that do not count for the proportions, because they record and
     * plan. */
    CH_UNUSUAL = 2
};

typedef struct ch_time_account {
    int64_t last;         /* time of the last lap, of ch__now_ns */
    int64_t ns[CH_TIMES]; /* time charged to each row, without untimed_ns */
    int64_t n_steps;
    int64_t untimed_ns; /* time of the steps that were not timed, without planning */
    /* Time of the timed steps by kind of work, without the first CH_UNUSUAL steps. */
    int64_t usual_ns[CH_WORKS];
} ch_time_account;

static inline void ch__time_account_open(ch_time_account *l)
{
    *l = (ch_time_account){.last = ch__now_ns()};
}

/* Returns the time since the last lap in ns. The caller must charge it to a row. */
static inline int64_t ch__time_account_lap(ch_time_account *l)
{
    int64_t now = ch__now_ns(), passed = now - l->last;

    l->last = now;
    return passed;
}

/* Returns true if the next step must be timed. */
static inline bool ch__time_account_is_timed(const ch_time_account *l)
{
    return l->n_steps < CH_TIMED_FIRST || l->n_steps % CH_TIMED_EVERY == 0;
}

/* Charges the time since the last lap as a step. `t` is its timing; NULL: the step was not
 * timed. `planning_ns` is the part of the time that was spent on recording and planning; it is
 * known for untimed steps too. */
void ch__time_account_step(ch_time_account *l, const ch_timing *t, int64_t planning_ns);
/* Fills out->seconds and out->total. Divides the time of untimed steps in the proportions of
 * the timed steps; if there are no proportions yet, charges it to CH_TIME_OTHER. */
void ch__time_account_table(const ch_time_account *l, ch_time_table *out);

#endif
