/* fit/training.h -- a training as it goes on: what ch_fit writes, and callbacks and the
 * progress line read.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_TRAINING_H
#define FIT_TRAINING_H

#include "cohort/callback.h"
#include "cohort/function.h"

/* Numbers by name, in the order in which they came. One that is zero is empty. */
typedef struct ch_logs {
    int n, capacity;
    struct ch_log_entry {
        char  *name;
        double value;
    } * at;
} ch_logs;

/* Sets one that is there, or adds it. */
ch_status ch__logs_set(ch_logs *l, const char *name, double value);
/* NaN: there is none. */
double ch__logs_get(const ch_logs *l, const char *name);
void   ch__logs_drop(ch_logs *l);

struct ch_training {
    ch_model     *model;
    ch_optimizer *optimizer;
    ch_function  *function; /* the step of training; NULL: not known */
    bool          is_evaluation;
    int           epoch, epochs; /* epochs 0: nobody knows how many there will be */
    const char   *epoch_name;    /* what people call one; NULL: "Epoch" */
    int64_t       step, epoch_step,
        epoch_steps; /* epoch_steps: CH_UNKNOWN until the first has ended */
    int64_t examples, epoch_examples;
    int64_t began_ns, epoch_began_ns; /* ch__now_ns */
    bool    is_validating;
    int64_t validation_step, validation_steps;

    ch_logs logs;
    bool    is_stale;                     /* the logs are to be read anew: */
    ch_status (*refresh)(ch_training *t); /* does it; NULL: they are as they are */
    ch_status (*drain)(ch_training *t);  /* waits for steps that run ahead; NULL: none do */
    bool
        peeks; /* who asks now does not want that, but the numbers as they are (fit/inflight.h) */
    bool is_peeked; /* so the logs were read: they are stale for others */

    bool stops;
    int  n_stop_requests; /* how often somebody wanted to stop: a validation heeds those that come while it runs */
    char why[160];
};

/* All steps so far have ended: for who looks at what they have changed. */
ch_status ch__training_drain(ch_training *t);

/* Tells all of them, in their order; the first error ends it, but for CH_ON_END, which all are
 * told of. */
ch_status ch__callbacks_notify(int n, ch_callback *const *c, ch_training *t, ch_event event);

/* Whether `value` is better than `best` by more than `delta`, for this name and goal. NaN is
 * never better. */
bool ch__is_better(const char *name, ch_goal goal, double value, double best, double delta);
/* The worst there is: what everything is better than. */
double ch__worst(const char *name, ch_goal goal);

#endif
