/* fit/history.h -- the struct behind ch_history, and functions that fill it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_HISTORY_H
#define FIT_HISTORY_H

#include <stdatomic.h>

#include "fit/state.h"
#include "fit/training.h"

struct ch_history {
    atomic_int refs;
    int        n_epochs, epochs_capacity;
    ch_logs   *epoch; /* logs of each epoch */
    /* All names of logs, in the order of their first appearance; values unused. */
    ch_logs       names;
    int           n_curve, curve_capacity;
    double       *curve; /* points of the curve of the loss, in order */
    ch_time_table time;
    /* The data was arrays, so advice on a slow pipeline does not apply. */
    bool is_of_arrays;
    bool
        has_failed; /* the training ended with an error, so its times say nothing about speed */
    char why[160];  /* reason of an early stop; "": the training was not stopped */
};

ch_status ch__history_new(ch_history **out);
/* Adds an epoch with a copy of the logs. */
ch_status ch__history_add(ch_history *h, const ch_logs *logs);
/* Adds a point to the curve of the loss. */
ch_status ch__history_point(ch_history *h, double loss);
/* Add the epochs and the curve to a state, and append those of a state to an empty history. */
void      ch__history_save(const ch_history *h, ch_state *s);
ch_status ch__history_load(ch_history *h, const ch_tuple *state);

#endif
