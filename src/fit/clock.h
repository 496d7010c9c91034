/* fit/clock.h -- where the time of a training goes: every moment belongs to one row of the table.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_CLOCK_H
#define FIT_CLOCK_H

#include "base/thread.h"
#include "cohort/history.h"

typedef struct ch_clock {
    int64_t last;
    int64_t ns[CH_TIMES];
    int64_t step_ns; /* of steps: the table divides it by what timed steps showed */
} ch_clock;

static inline void ch__clock_start(ch_clock *c)
{
    *c = (ch_clock){.last = ch__now_ns()};
}

/* What has passed since the last call: returned, for who says where it belongs. */
static inline int64_t ch__clock_lap(ch_clock *c)
{
    int64_t now = ch__now_ns(), passed = now - c->last;

    c->last = now;
    return passed;
}

#endif
