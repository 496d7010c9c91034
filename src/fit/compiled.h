/* fit/compiled.h -- what ch_compile attaches to a model: its steps, and the numbers they
 * gather.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_COMPILED_H
#define FIT_COMPILED_H

#include <stdatomic.h>

#include "cohort/fit.h"
#include "fit/training.h"

typedef struct ch_compiled_metric {
    ch_metric *metric;
    bool       is_weighted;
    bool       is_own; /* the program has it too: its steps may update it */
} ch_compiled_metric;

typedef struct ch_compiled {
    ch_model        *model;    /* that it is attached to */
    ch_strategy     *strategy; /* the model's */
    ch_optimizer    *optimizer;
    ch_loss_fn       loss; /* NULL: `loss_with`; both NULL: none */
    ch_loss_arg_fn   loss_with;
    double           loss_arg;
    ch_model_step_fn train_step, test_step; /* NULL: the usual ones */
    void            *step_arg;
    ch_metric       *loss_mean; /* NULL: there is no loss */
    int              n_metrics;
    ch_compiled_metric      metric[3 * CH_COMPILE_METRICS];
    ch_tensor       *class_weight; /* of the fit that goes on; NULL: none */
    ch_function     *train, *test, *predict;
    const void      *caller; /* of the call that goes on: its line is in errors of the steps */
    atomic_int       n_running;  /* calls that go on */
    atomic_int       n_metric_users; /* of those, who use the metrics: not ch_predict */

    /* Sums of what steps of one's own gave, since the last reset. */
    ch_logs output_sums;
    int64_t n_output_steps;
} ch_compiled;

/* FAILED_PRECONDITION: ch_compile was not called. */
ch_status ch__compiled_of(const char *call, ch_model *m, ch_compiled **out);
bool      ch__compiled_has_loss(const ch_compiled *c);

/* The steps (steps.c): recorded when they first run. */
ch_status ch__compiled_functions(ch_compiled *c);
/* Weights of classes for the runs to come; n 0: none. */
ch_status ch__compiled_class_weights(ch_compiled *c, int n, const double *weight);

/* What the metrics have gathered, into logs with this before their names; and nothing again. A
 * step of one's own updates neither the loss nor the metrics that ch_compile made: what they
 * say is not of it. */
ch_status ch__compiled_read(ch_compiled *c, bool is_own_step, const char *prefix,
                            ch_logs *logs);
ch_status ch__compiled_reset(ch_compiled *c);
/* Adds what a step gave. */
ch_status ch__compiled_add_outputs(ch_compiled *c, const ch_tuple *out);

/* All that is gathered, put aside and put back: an evaluation in the midst of a training leaves
 * no trace in its numbers. `out` is zero before, and put back or dropped once. */
typedef struct ch_saved_metrics {
    int         n;
    ch_tensor **value; /* of each variable of each metric */
    ch_logs     output_sums;
    int64_t     n_output_steps;
} ch_saved_metrics;
ch_status ch__compiled_save_metrics(ch_compiled *c, ch_saved_metrics *out);
ch_status ch__compiled_restore_metrics(ch_compiled *c, ch_saved_metrics *a);

#endif
