/* fit/loop.h -- the common part of ch_fit, ch_evaluate and ch_predict.
 *
 * A ch_loop is the state of such a call: the training that callbacks see, the callbacks, the
 * steps in flight and the time account. Loops nest, because a callback may call ch_evaluate or
 * ch_predict. A ch_loop belongs to the thread that opened it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_LOOP_H
#define FIT_LOOP_H

#include "fit/compiled.h"
#include "fit/inflight.h"
#include "fit/source.h"
#include "fit/time_account.h"

enum { CH_FIT_BATCH = 32 }; /* default batch size for arrays */

typedef struct ch_loop ch_loop;
struct ch_loop {
    ch_training   t;            /* passed to callbacks; must be the first member */
    ch_compiled  *c;            /* borrowed; NULL: the loop is not open */
    int           n_callbacks;  /* including the progress line */
    ch_callback **callback;     /* borrowed, except `line`; the progress line is the first */
    unsigned      events;       /* events and save points that any callback handles */
    ch_callback  *line;         /* progress line, owned; NULL: none */
    bool          catches;      /* Ctrl-C stops the loop */
    bool          uses_metrics; /* the loop is counted in c->n_metric_users */
    bool is_untimed; /* time is not charged: the caller charges it, or does not need it */
    const void     *outer_caller; /* value of c->caller before this loop */
    ch_time_account account;
    ch_time         row;      /* row of the time account for the current work outside steps */
    ch_inflight     inflight; /* used only if the strategy is not synchronous */
    /* Steps and examples of the training before this process loaded it. They are not in the
     * table of times. */
    int64_t  loaded_steps, loaded_examples;
    ch_loop *outer; /* loop of this thread in whose callback this loop was opened; NULL: none */
};

/* Opens a loop, which must be all zeros, and starts its time account. Until it is closed the
 * loop holds a reference to the model, and ch_compile of the model fails. `caller` is the
 * return address in the program; errors of steps name its line. */
void ch__loop_open(ch_loop *l, ch_compiled *c, const void *caller);
/* Waits for steps in flight, ignoring their errors, and releases everything. Does nothing if
 * the loop is not open. Loops must be closed in reverse order of opening. */
void ch__loop_close(ch_loop *l);
/* Declares that this loop uses the metrics of the model. Returns the number of other open loops
 * that use them. */
int ch__loop_use_metrics(ch_loop *l);
/* Sets the callbacks, which are borrowed, and creates the progress line. INVALID_ARGUMENT: a
 * callback is NULL. */
ch_status ch__loop_callbacks(ch_loop *l, int n, ch_callback *const *callback,
                             ch_progress progress);
/* Sets whether Ctrl-C stops the loop. ch__loop_close resets it. */
void ch__loop_catch(ch_loop *l, bool on);

/* Charges the time since the last charge to a row of the time account. */
void ch__loop_charge(ch_loop *l, ch_time row);
/* Sends an event to the callbacks, in the order of the list. If Ctrl-C was pressed and the loop
 * catches it, requests a stop. */
ch_status ch__loop_notify(ch_loop *l, ch_event event);
/* Sends a save point to the callbacks that handle it. Costs nothing if there are none. */
ch_status ch__loop_save_point(ch_loop *l, int save_point);
/* Ends a loop that sent CH_ON_BEGIN: drains, and sends CH_ON_END to all callbacks, also if `rc`
 * is an error. Returns the first error of: `rc`, the drain, the callbacks. */
ch_status ch__loop_end(ch_loop *l, ch_status rc);
/* Runs a step, or starts it if the strategy is not synchronous (fit/inflight.h), and charges
 * its time. `handler` gets the outputs. *step is the number of the step, for messages. On an
 * error *step is set to the number of the step that failed, which may be an earlier step. */
ch_status ch__loop_run(ch_loop *l, ch_function *f, ch_tuple *batch, ch_result_handler handler,
                       int64_t *step);
/* Does the same. If `reads_outputs` is true, adds the outputs to the logs of the model. */
ch_status ch__loop_step(ch_loop *l, ch_function *f, ch_tuple *batch, bool reads_outputs,
                        int64_t *step);
/* Blocks until all steps in flight have ended and their results are handled. Returns the first
 * error. ch__loop_drain_outer drains the outer loops of this thread, but not `l`. */
ch_status ch__loop_drain(ch_loop *l);
ch_status ch__loop_drain_outer(const ch_loop *l);
/* Makes a snapshot of the variables on the servers. Later steps of this loop read the snapshot,
 * until it is released. Does nothing if the strategy is synchronous. */
ch_status ch__loop_snapshot(ch_loop *l);
void      ch__loop_release_snapshot(ch_loop *l);
/* Charges the time up to now, and fills the table of times. */
void ch__loop_table(ch_loop *l, ch_time_table *out);
/* Returns true if all replicas are in this process. Only then the number of rows that this
 * process has read is the number of rows of the data. */
bool ch__loop_has_all_replicas(const ch_loop *l);

/* Conditions that end a training before its last epoch. */
typedef struct ch_fit_limits {
    int64_t max_steps;   /* steps of the whole training; 0: no limit */
    bool ends_with_data; /* the training ends with the data, also if steps_per_epoch is set */
    const char *epoch_name; /* name of an epoch in the progress line; NULL: "Epoch" */
} ch_fit_limits;

/* Does the work of ch_fit. opt->epochs INT_MAX: the number of epochs is not known. `caller` is
 * the return address in the program, for errors of steps. */
ch_status ch__fit(ch_model *m, const ch_data *d, const ch_fit_options *opt,
                  const ch_fit_limits *limits, const void *caller, ch_history **out);

#endif
