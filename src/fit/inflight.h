/* fit/inflight.h -- steps in flight: started steps with unread results.
 *
 * With parameter servers the workers run the steps, several at a time, and the loops of fit/
 * start further steps meanwhile. If the strategy runs its steps synchronously
 * (ch_exec_ops.is_synchronous), the loops do not use a ch_inflight. Rules:
 *
 *   1. A step is started when the workers have too little to do. Results are read later, in the
 *      order of the steps.
 *   2. Code that reads the effects of steps must drain first, that is, wait until all started
 *      steps have ended. The end of an epoch, evaluations, callbacks that read logs and
 *      callbacks that save do so. After a drain the numbers include all started steps.
 *   3. The progress line, the curve of the loss and stop_on_nan do not drain. They read the
 *      numbers of the steps that have ended. Otherwise the workers would be idle at each update
 *      of the progress line, twenty times a second.
 *   4. If a step fails, all steps that were started after it end too. The next call on the
 *      ch_inflight returns the error, and so do all later calls. `failed` is the number of the
 *      step that failed, which is not the step that the caller wanted to start.
 *   5. The steps of an evaluation read a snapshot of the variables, so that a training that
 *      runs at the same time does not change their results.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_INFLIGHT_H
#define FIT_INFLIGHT_H

#include "base/fault.h"
#include "strategy/strategy.h"

/* Handles the outputs of a step. `out` is borrowed. An error counts as the error of the
 * step. */
typedef ch_status (*ch_result_fn)(void *arg, const ch_tuple *out);

/* The function for the outputs of a step, and its argument. `fn` NULL: outputs are dropped. */
typedef struct ch_result_handler {
    ch_result_fn fn;
    void        *arg;
} ch_result_handler;

/* The queue of steps in flight. All zeros is an empty queue; the owner must set `strategy`
 * before the first step. */
typedef struct ch_inflight {
    ch_strategy *strategy;           /* borrowed */
    uint64_t     snapshot;           /* read by the steps; 0: they read the current values */
    bool         is_open;            /* a step was started since the last drain */
    bool         was_cancelled;      /* a step ended as CH_CANCELLED */
    int          first, n, capacity; /* the queue is at[first .. first + n - 1] */
    struct ch_inflight_step {
        ch_started        run;
        int64_t           step; /* number of the step, for messages */
        ch_result_handler handler;
    } * at;
    ch_fault fault;  /* error of the first step that failed */
    int64_t  failed; /* number of that step; valid if `fault` is set */
} ch_inflight;

/* Blocks while the workers have enough to do. Returns CH_OK at once if a step has failed: the
 * next ch__inflight_run returns that error. */
ch_status ch__inflight_wait_for_room(ch_inflight *a);
/* Starts step number `step`, and handles the results of steps that have ended. Returns the
 * error of the first step that failed, if any. After an error no step is in flight. */
ch_status ch__inflight_run(ch_inflight *a, ch_function *f, ch_tuple *batch, int64_t step,
                           ch_result_handler handler);
/* Handles the results of the steps that have ended, up to the first that has not. Their errors
 * are returned by the next call. */
void ch__inflight_collect(ch_inflight *a);
/* Blocks until all started steps have ended and their results are handled. Returns the error of
 * the first step that failed, if any. */
ch_status ch__inflight_drain(ch_inflight *a);
/* Drains, ignores the errors, and frees the queue. */
void ch__inflight_close(ch_inflight *a);

#endif
