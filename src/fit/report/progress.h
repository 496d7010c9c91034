/* fit/report/progress.h -- the progress line of ch_fit and ch_evaluate, as a callback.
 *
 *   - BAR: a live line, redrawn at most 20 times a second, as wide as the window is at that
 *     time. It shows the step, a bar, seconds, time per step, examples per second, the loss and
 *     the metrics. At the end of an epoch a final version stays.
 *   - LINES: a line at the end of each epoch. In long epochs also a line every 30 seconds, and
 *     at each tenth of the epoch if the last line is at least 5 seconds old.
 *   - JSON: an object on each line, with the event "begin", "step" (once a second), "epoch" (at
 *     the end of an epoch), "evaluation" or "end".
 *
 * Logs are read when they are shown, and not after each step, because reading them is slow.
 * Write errors are ignored: a training must not fail because its progress cannot be shown.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_REPORT_PROGRESS_H
#define FIT_REPORT_PROGRESS_H

#include "cohort/fit.h"

/* Creates the callback. `fd` is borrowed; ch_fit uses 2. INVALID_ARGUMENT: `how` is
 * CH_PROGRESS_OFF or not in the enum. */
CH_MUST_CHECK ch_status ch__progress_new(ch_progress how, int fd, ch_callback **out);

/* For tests: sets the clock, in nanoseconds. NULL: ch__now_ns. */
void ch__progress_clock(int64_t (*now_ns)(void));

#endif
