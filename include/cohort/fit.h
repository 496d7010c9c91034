/* cohort/fit.h -- training a model without writing the loop: compile, fit, evaluate, predict.
 *
 *     rc = ch_compile(m, &(ch_compile_options){.optimizer = adam,
 *                                              .loss = ch_loss_sparse_categorical,
 *                                              .metrics = {ch_metric_sparse_accuracy()}});
 *     rc = ch_fit(m, (ch_data){.dataset = train},
 *                 &(ch_fit_options){.epochs = 5,
 *                                   .validation = {.dataset = test},
 *                                   .progress = CH_PROGRESS_AUTO}, &history);
 *     rc = ch_evaluate(m, (ch_data){.dataset = test}, NULL, &results);
 *     rc = ch_predict(m, (ch_data){.n = 1, .array = &images}, NULL, &guesses);
 *
 * It works over every strategy: a model remembers its own, so these are called inside its scope or outside.
 * A plain ch_model_call in a step of one's own is what it was before: it runs where the model's strategy runs it,
 * ch_strategy_run(ch_model_strategy(m), ...), and counts in no metric. The numbers are those of a loop of one's own
 * over the same step and data, to the bit.
 *
 *   - An element of the data is the model's inputs (as many as ch_model_options says; one, if it does not say),
 *     then the truth, then, if there is one more, a weight for each example.
 *   - A batch is of all replicas together; the last may be short, and every row counts once.
 *   - The library is quiet: the line on the terminal, the table at the end and the answer to Ctrl-C are options, and
 *     off. (The examples turn them on.)
 *   - With parameter servers (cohort/parameter_server.h) a batch is one worker's. Steps run ahead, so that all workers have something to
 *     do; the numbers of an epoch, and what a callback asks for, are of steps that have ended, and the progress line shows what there is. A step
 *     that fails is named by the error, which may come some steps later. Evaluations read one version of the variables.
 *   - One thread at a time fits a model, or evaluates it. In a callback ch_evaluate and ch_predict may be called, and
 *     leave no trace in what goes on; ch_fit and ch_compile of the same model are refused there.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_FIT_H
#define COHORT_FIT_H

#include "cohort/callback.h"
#include "cohort/input.h"
#include "cohort/loss.h"
#include "cohort/metric.h"
#include "cohort/model.h"
#include "cohort/optimizer.h"

/* ---- compile ---- */

/* One number for each example, such as ch_loss_mse; and the same of a loss that has a number of its own, such as
 * ch_loss_huber. */
typedef ch_node *(*ch_loss_fn)(ch_node *guess, ch_node *truth);
typedef ch_node *(*ch_loss_arg_fn)(ch_node *guess, ch_node *truth, double arg);

/* In place of what ch_fit records: the whole of a step, the optimizer's part too. Outputs that are scalars, one for
 * all replicas, are in the logs by their names, as means over an epoch's steps; so are metrics of `own`, which it updates
 * itself. The loss and the other metrics are of the usual steps alone. */
typedef void (*ch_model_step_fn)(ch_step *s, ch_model *m, void *arg);

#define CH_COMPILE_METRICS 16

typedef struct ch_compile_options {
    ch_optimizer *optimizer; /* referenced; NULL: the model is evaluated, and predicts */
    ch_loss_fn    loss;      /* NULL: the model predicts, or steps of one's own have one */
    /* In its place, one with a number: ch_loss_huber, ch_loss_categorical. */
    ch_loss_arg_fn loss_with;
    double         loss_arg; /* that number: delta, smoothing */
    /* With and without a number, such as ch_metric_sparse_accuracy() and ch_metric_auc(200): up to the first that is zero. */
    ch_metric_spec metrics[CH_COMPILE_METRICS];
    ch_metric_spec
        weighted_metrics[CH_COMPILE_METRICS]; /* which heed the weights of examples */
    int n_own; /* metrics that were made before, for the model's strategy: referenced */
    ch_metric *const *own;
    ch_model_step_fn  train_step, test_step; /* NULL: the usual ones */
    void             *step_arg;
    bool              own_weighted; /* those of `own` heed the weights of examples; else not */
} ch_compile_options;

/* May be called again: what was there is forgotten, but for the variables. FAILED_PRECONDITION in a callback of the
 * model's. */
CH_API CH_MUST_CHECK ch_status ch_compile(ch_model *m, const ch_compile_options *opt);

/* ---- data ---- */

/* One of three, all of them borrowed: a dataset of batches; arrays, whose rows are examples; or what
 * ch_strategy_distribute_dataset made, for the model's strategy: it goes on where it is, and begins anew if it has
 * ended. All zero: none. */
typedef struct ch_data {
    ch_dataset       *dataset;
    int               n;
    ch_tensor *const *array;
    ch_iterator      *iterator;
} ch_data;

/* ---- fit ---- */

typedef enum ch_progress {
    CH_PROGRESS_OFF,
    CH_PROGRESS_AUTO,  /* a live line if standard error is a terminal that can; else lines */
    CH_PROGRESS_BAR,   /* a live line */
    CH_PROGRESS_LINES, /* a line now and then: for files, and under batch systems */
    CH_PROGRESS_JSON   /* an object a line, for programs */
} ch_progress;

typedef struct ch_fit_options {
    int epochs;        /* 0: 1 */
    int initial_epoch; /* counted from 0: those before it were done before */
    /* 0: to the end of the data, which has one. Else the data goes on where the last epoch ended,
     * and begins anew when it ends. */
    int64_t steps_per_epoch;

    ch_data validation; /* evaluated at the end of an epoch; its logs begin with "val_" */
    /* Of arrays, the share of their rows, from the end, that is kept for it; 0: none. */
    double  validation_split;
    int64_t validation_steps; /* 0: all of it */
    int     validation_every; /* epochs; 0: 1 */

    int64_t  batch;   /* of arrays; 0: 32 */
    int      shuffle; /* of arrays, anew in each epoch: 0: yes; CH_OFF: no */
    uint64_t seed;    /* of that */

    int           n_classes;    /* 0: none have weights */
    const double *class_weight; /* of label i; multiplies with the weights of examples */

    int                 n_callbacks;
    ch_callback *const *callback; /* borrowed */
    ch_progress         progress; /* to standard error */
    /* Ends with a table of where the time went, to standard error. Where it was measured what a step takes on one
     * replica with as many rows for it (seconds), the table says what is gained. */
    bool   summary;
    double one_replica_step;
    /* Ctrl-C: the step is finished, and what is there is returned; a second one ends the process. */
    bool catch_interrupt;
    /* A file for chrome://tracing or Perfetto; NULL: what COHORT_TRACE says, else none. */
    const char *trace;
} ch_fit_options;

/* `out`, if not NULL, gets what happened in each epoch, after a failure too. That training was stopped, by a callback or by
 * Ctrl-C, is no failure: an epoch that had steps is there with their numbers, one that had none is not, and a validation
 * that was stopped before its end has no numbers. Data without rows, to train on or to validate with, is
 * INVALID_ARGUMENT. */
CH_API CH_MUST_CHECK ch_status ch_fit(ch_model *m, ch_data data, const ch_fit_options *opt,
                                      ch_history **out);

typedef struct ch_evaluate_options {
    int64_t             batch; /* of arrays; 0: 32 */
    int64_t             steps; /* 0: all of the data */
    int                 n_callbacks;
    ch_callback *const *callback;
    ch_progress         progress;
} ch_evaluate_options;

/* Loss and metrics as a history of one epoch; every row counts once. If a callback stops it, they are of the rows so far.
 * Data without rows is INVALID_ARGUMENT. */
CH_API CH_MUST_CHECK ch_status ch_evaluate(ch_model *m, ch_data data,
                                           const ch_evaluate_options *opt, ch_history **out);
/* What the model gives for each row, in the order of the data and of the model's dtype: one of 16 bits gives 16 bits, which
 * ch_tensor_get converts. Components behind the model's inputs are not looked at. Data without rows gives a tensor of no
 * rows, (0, classes); if a callback stops it, the rows so far are given. */
CH_API CH_MUST_CHECK ch_status ch_predict(ch_model *m, ch_data data,
                                          const ch_evaluate_options *opt, ch_tensor **out);

/* ---- train and evaluate ---- */

typedef struct ch_train_evaluate_options {
    int64_t max_steps;      /* 0: to the end of the data */
    int64_t evaluate_every; /* steps; 0: 1000 */
    int64_t evaluate_steps; /* 0: all of the data */
    /* NULL: "val_loss". One that the first evaluation has not is INVALID_ARGUMENT. */
    const char *monitor;
    ch_goal     goal;
    /* A directory, made if it is not there: the variables that were best, best.npz, and the
     * numbers, best.json. NULL: none. */
    const char *export_best;
    /* Callbacks, progress and the like; its epochs, steps and validation are not looked at. */
    ch_fit_options fit;
} ch_train_evaluate_options;

/* Trains without epochs, and evaluates every so many steps and at the end: each evaluation is an epoch of the history. It
 * ends after max_steps or with the data, whichever comes first: arrays are one pass, ch_dataset_repeat makes more. */
CH_API CH_MUST_CHECK ch_status ch_train_and_evaluate(ch_model *m, ch_data train, ch_data test,
                                                     const ch_train_evaluate_options *opt,
                                                     ch_history                     **out);

#endif
