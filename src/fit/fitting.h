/* fit/fitting.h -- the state of a call of ch_fit.
 *
 * fit.c runs the training. resume.c saves it between steps, and loads it in another process.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_FITTING_H
#define FIT_FITTING_H

#include "fit/history.h"
#include "fit/loop.h"

typedef struct ch_fitting {
    ch_loop               loop; /* must be the first member */
    const ch_fit_options *opt;
    const ch_fit_limits  *limits;
    ch_source             train, validation;
    bool                  validates;
    bool                  ended; /* the last step of the epoch was the last of the data */
    ch_history           *history;
    /* The state at an earlier step, for a save that waits for steps in flight; NULL: none. */
    ch_tuple *captured;
    /* Sum and count of the loss at the last point of its curve. */
    double total, count;
} ch_fitting;

#endif
