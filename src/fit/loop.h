/* fit/loop.h -- what the loops of ch_fit, ch_evaluate and ch_predict share: runs, callbacks, the clock.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_LOOP_H
#define FIT_LOOP_H

#include "fit/compiled.h"
#include "fit/inflight.h"
#include "fit/source.h"
#include "fit/time_account.h"

enum { CH_FIT_BATCH = 32 }; /* of arrays, if nothing is said */

typedef struct ch_loop ch_loop;
struct ch_loop {
    ch_training     t;           /* first: callbacks have this */
    ch_compiled    *c;           /* NULL: it was not opened */
    int             n_callbacks; /* with the progress line */
    ch_callback   **callback;
    ch_callback    *line;     /* NULL: none */
    bool            catches;  /* Ctrl-C */
    bool            counts;   /* uses the metrics */
    bool            is_apart; /* time is not counted: the caller does, or nobody */
    const void     *caller_before;
    ch_time_account account;
    ch_time         row;      /* of what is being done now, but for the steps */
    ch_inflight     inflight; /* runs whose results are not there yet */
    ch_loop        *outer;    /* of this thread: in a callback of that one this one is */
};

/* A call begins: its time counts from now on. Until it is closed the model stays, and is not compiled anew. `caller` is
 * the program's line, for errors of the steps. */
void ch__loop_open(ch_loop *l, ch_compiled *c, const void *caller);
void ch__loop_close(ch_loop *l);
/* It will use the metrics: how many others do already, further out in this thread. */
int ch__loop_counts(ch_loop *l);
/* INVALID_ARGUMENT: a callback is NULL. */
ch_status ch__loop_callbacks(ch_loop *l, int n, ch_callback *const *callback,
                             ch_progress progress);
/* Ctrl-C stops it, from now on until it is closed. */
void ch__loop_catch(ch_loop *l, bool on);

/* What has passed since the last call is this row's. */
void ch__loop_count(ch_loop *l, ch_time row);
/* Tells the callbacks, and looks whether somebody wants to stop. */
ch_status ch__loop_notify(ch_loop *l, ch_event event);
/* Tells them of the end, whatever happened: of `rc` and what they answer, the first error. */
ch_status ch__loop_end(ch_loop *l, ch_status rc);
/* A run on the clock, or the beginning of one (fit/inflight.h); and one whose results, if it `takes` them, are for the logs. On an
 * error *step is the one that failed, which may be another. */
ch_status ch__loop_run(ch_loop *l, ch_function *f, ch_tuple *batch, ch_result_handler taker,
                       int64_t *step);
ch_status ch__loop_step(ch_loop *l, ch_function *f, ch_tuple *batch, bool takes, int64_t *step);
/* All runs have ended, and their results were taken; also of those further out in this thread. */
ch_status ch__loop_settle(ch_loop *l);
ch_status ch__loop_settle_outer(const ch_loop *l);
/* From now on runs read the variables as they are now, whatever changes them; until this is over. */
ch_status ch__loop_snapshot(ch_loop *l);
void      ch__loop_unpin(ch_loop *l);
/* All time up to now. */
void ch__loop_table(ch_loop *l, ch_time_table *out);
/* Whether this process has all replicas: then what it does not see is not there. */
bool ch__loop_is_alone(const ch_loop *l);

/* What ends a training beside its epochs. */
typedef struct ch_fit_limits {
    int64_t     max_steps;      /* 0: none */
    bool        ends_with_data; /* also where epochs have a number of steps */
    const char *epoch_name;     /* what people call an epoch; NULL: "Epoch" */
} ch_fit_limits;

/* Epochs INT_MAX: nobody knows how many there will be. */
ch_status ch__fit(ch_model *m, const ch_data *d, const ch_fit_options *opt,
                  const ch_fit_limits *limits, const void *caller, ch_history **out);

#endif
