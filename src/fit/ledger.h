/* fit/ledger.h -- where the time of a training goes: every moment belongs to one row of the table.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_LEDGER_H
#define FIT_LEDGER_H

#include "base/thread.h"
#include "cohort/history.h"

typedef struct ch_ledger {
    int64_t last;
    int64_t ns[CH_TIMES];
    int64_t step_ns; /* of steps: the table divides it by what timed steps showed */
} ch_ledger;

static inline void ch__ledger_open(ch_ledger *l)
{
    *l = (ch_ledger){.last = ch__now_ns()};
}

/* What has passed since the last call: returned, for who says where it belongs. */
static inline int64_t ch__ledger_lap(ch_ledger *l)
{
    int64_t now = ch__now_ns(), passed = now - l->last;

    l->last = now;
    return passed;
}

#endif
