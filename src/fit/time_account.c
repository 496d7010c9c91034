/* fit/time_account.c -- the rows of the time table.   SPDX-License-Identifier: Apache-2.0 */
#include "fit/time_account.h"

/* The row of each kind of work in a step. */
static const ch_time row_of[CH_WORKS] = {
    [CH_WORK_FORWARD] = CH_TIME_FORWARD, [CH_WORK_BACKWARD] = CH_TIME_BACKWARD,
    [CH_WORK_REDUCE] = CH_TIME_REDUCE,   [CH_WORK_UPDATE] = CH_TIME_UPDATE,
    [CH_WORK_WAIT] = CH_TIME_WAIT,       [CH_WORK_OTHER] = CH_TIME_OTHER,
};

void ch__time_account_step(ch_time_account *l, const ch_timing *t, int64_t planning_ns)
{
    int64_t passed = ch__time_account_lap(l);
    bool    is_usual = l->n_steps++ >= CH_UNUSUAL;

    l->ns[CH_TIME_PLANNING] += planning_ns;
    if (t == NULL) {
        l->untimed_ns += passed - planning_ns;
        return;
    }
    for (int i = 0; i < CH_WORKS; i++) {
        int64_t ns = t->ns[i] - (i == CH_WORK_OTHER ? planning_ns : 0);

        l->ns[row_of[i]] += ns;
        l->usual_ns[i] += is_usual ? ns : 0;
        passed -= t->ns[i];
    }
    l->ns[CH_TIME_OTHER] += passed; /* time of the step outside the run */
}

void ch__time_account_table(const ch_time_account *l, ch_time_table *out)
{
    double all = 0;

    for (int i = 0; i < CH_TIMES; i++)
        out->seconds[i] = (double)l->ns[i] * 1e-9;
    for (int i = 0; i < CH_WORKS; i++)
        all += (double)l->usual_ns[i];
    for (int i = 0; i < CH_WORKS && all > 0; i++)
        out->seconds[row_of[i]] += (double)l->untimed_ns * 1e-9 * (double)l->usual_ns[i] / all;
    if (!(all > 0))
        out->seconds[CH_TIME_OTHER] += (double)l->untimed_ns * 1e-9;
    out->total = 0;
    for (int i = 0; i < CH_TIMES; i++)
        out->total += out->seconds[i];
}
