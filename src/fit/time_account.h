/* fit/time_account.h -- where the time of a training goes: every moment belongs to one row of the table.
 *
 * What a step is made of is known of those that are timed, which is each of the first and then one in a few;
 * the time of the others is divided as theirs is.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_TIME_ACCOUNT_H
#define FIT_TIME_ACCOUNT_H

#include "base/thread.h"
#include "cohort/history.h"
#include "graph/timing.h"

enum {
    CH_TIMED_FIRST = 32, /* steps that are all timed */
    CH_TIMED_EVERY = 16, /* and then one of so many */
    CH_UNUSUAL = 2       /* the first record and plan: they say nothing of the others */
};

typedef struct ch_time_account {
    int64_t last;
    int64_t ns[CH_TIMES];
    int64_t n_steps;
    int64_t untimed_ns;         /* of steps that were not timed */
    int64_t usual_ns[CH_WORKS]; /* of those that were, but for the first */
} ch_time_account;

static inline void ch__time_account_open(ch_time_account *l)
{
    *l = (ch_time_account){.last = ch__now_ns()};
}

/* What has passed since the last call: returned, for who says where it belongs. */
static inline int64_t ch__time_account_lap(ch_time_account *l)
{
    int64_t now = ch__now_ns(), passed = now - l->last;

    l->last = now;
    return passed;
}

/* Whether the next step is to be timed. */
static inline bool ch__time_account_is_timed(const ch_time_account *l)
{
    return l->n_steps < CH_TIMED_FIRST || l->n_steps % CH_TIMED_EVERY == 0;
}

/* A step is done; `t` NULL: it was not timed. `planning_ns` of it were spent on recording and
 * planning, which is known of every step. */
void ch__time_account_step(ch_time_account *l, const ch_timing *t, int64_t planning_ns);
void ch__time_account_table(const ch_time_account *l, ch_time_table *out);

#endif
