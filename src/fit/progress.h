/* fit/progress.h -- the progress line of ch_fit and ch_evaluate, as a callback.
 *
 *   BAR    One live line, drawn at most 20 times a second, as wide as the window is then; at
 *   the end of an epoch what
 *          stays: step, bar, seconds, time a step, examples a second, loss and metrics.
 *   LINES  A line at the end of each epoch. In long ones also every 30 seconds, and at each
 *   tenth if the last line is
 *          5 seconds old.
 *   JSON   An object a line: "begin", "step" (once a second), "epoch" (at the end of one),
 *   "evaluation", "end".
 *
 * Numbers are asked for when they are shown, and not after each step. What cannot be written is
 * lost: a training does not fail because nobody looks.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_PROGRESS_H
#define FIT_PROGRESS_H

#include "cohort/fit.h"

/* `fd` is borrowed: 2 for users. CH_PROGRESS_OFF is INVALID_ARGUMENT: there is nothing to be
 * made. */
CH_MUST_CHECK ch_status ch__progress_new(ch_progress how, int fd, ch_callback **out);

/* For tests: the time in nanoseconds; NULL: ch__now_ns again. */
void ch__progress_clock(int64_t (*now_ns)(void));

#endif
