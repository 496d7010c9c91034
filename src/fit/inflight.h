/* fit/inflight.h -- runs ahead of their results: where workers run the steps, several at a time, and the program goes on.
 *
 * Of a strategy that runs steps here there are none. Else:
 *   1. A step is begun when the workers have not enough to do, and its results are taken later, in the order of the steps.
 *   2. Who looks at what steps have changed settles first: then all that were begun have ended. So do the end of an epoch, an
 *      evaluation, a callback that asks for numbers, and one that saves. What a settled training shows is what it did.
 *   3. The progress line, the loss's curve and stop_on_nan look without settling, at the numbers of those that have ended:
 *      twenty looks a second would else be twenty times that workers have nothing to do.
 *   4. A step that fails ends all that were begun behind it. Its error is that of the call which first hears of it, and of all
 *      after that; it names the step which failed, and not the one that was to come next.
 *   5. Evaluations read one version of the variables, whatever is trained meanwhile: they are begun with a pin.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_INFLIGHT_H
#define FIT_INFLIGHT_H

#include "base/fault.h"
#include "strategy/strategy.h"

/* Is given what a run gave. */
typedef ch_status (*ch_result_fn)(void *arg, const ch_tuple *out);

/* Who takes what a run gives; `fn` NULL: nobody. */
typedef struct ch_result_handler {
    ch_result_fn fn;
    void        *arg;
} ch_result_handler;

/* Those that were begun, and not taken yet. All zeros is one without any, whose strategy is yet to be said. */
typedef struct ch_inflight {
    ch_strategy *strategy; /* borrowed */
    uint64_t     snapshot; /* that they read; 0: the current values */
    bool         is_open;  /* something was begun since they were settled */
    bool         was_cancelled;
    int          first, n, capacity;
    struct ch_begun {
        ch_started        run;
        int64_t           step; /* for messages */
        ch_result_handler taker;
    } * at;
    ch_fault fault;  /* of the first that failed, */
    int64_t  failed; /* which was this step */
} ch_inflight;

/* Waits while workers have enough to do. */
ch_status ch__inflight_wait_for_room(ch_inflight *a);
/* Begins a run, and takes what has ended meanwhile. */
ch_status ch__inflight_run(ch_inflight *a, ch_function *f, ch_tuple *batch, int64_t step,
                           ch_result_handler taker);
/* All that were begun have ended, and were taken. */
ch_status ch__inflight_drain(ch_inflight *a);
/* The same, and nobody asks how they ended. */
void ch__inflight_close(ch_inflight *a);

#endif
