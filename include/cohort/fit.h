/* cohort/fit.h -- the training loop of Keras: compile, fit, evaluate and predict a model.
 *
 * ch_compile attaches an optimizer, a loss and metrics to a model. ch_fit trains the model on
 * data, with the strategy of the model.
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
 *   - Ownership: data, callbacks and options are borrowed for the call. The caller unrefs the
 *     results.
 *   - Threads: a model must be fitted or evaluated by one thread at a time. A callback may call
 *     ch_evaluate and ch_predict; the numbers of the training are not affected. In a callback
 *     ch_fit and ch_compile of the same model are FAILED_PRECONDITION.
 *   - Strategies: every strategy works. These functions may be called inside or outside its
 *     scope. The results have the same bits as a custom loop over the same step and data.
 *   - An element of the data has first the inputs of the model (as many as ch_model_options
 *     says, else 1), then the truth, then optionally a weight for each example.
 *   - A batch is the global batch of all replicas. The last batch may be short. Every row
 *     counts once.
 *   - By default nothing is printed: the progress line, the summary table and the handling of
 *     Ctrl-C are options.
 *   - With parameter servers (cohort/parameter_server.h) a batch is the batch of a single
 *     worker. Several steps are in flight, so that all workers are busy. The numbers of an
 *     epoch, and the numbers that a callback reads, are of finished steps. The error of a step
 *     may be returned some steps later; it names the step that failed. An evaluation reads a
 *     snapshot of the variables.
 *   - ch_model_call in a step of the program is not affected. It runs with
 *     ch_strategy_run(ch_model_strategy(m), ...), and updates no metric.
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

/* Record a loss for each example, such as ch_loss_mse; or a loss with a parameter, such as
 * ch_loss_huber. */
typedef ch_node *(*ch_loss_fn)(ch_node *guess, ch_node *truth);
typedef ch_node *(*ch_loss_arg_fn)(ch_node *guess, ch_node *truth, double arg);

/* Records a whole step in place of the default step, including the optimizer. Each named output
 * must have a single element. The logs contain the outputs by name, as means over the replicas
 * and the steps of the epoch. The logs also contain the metrics of `own`, which the function
 * must update itself. The loss and the other metrics of ch_compile are not updated. */
typedef void (*ch_model_step_fn)(ch_step *s, ch_model *m, void *arg);

#define CH_COMPILE_METRICS 16

typedef struct ch_compile_options {
    ch_optimizer  *optimizer; /* referenced; NULL: the model cannot be trained */
    ch_loss_fn     loss;      /* NULL: loss_with, or no loss */
    ch_loss_arg_fn loss_with; /* a loss with a parameter: ch_loss_huber, ch_loss_categorical */
    double         loss_arg;  /* the parameter of loss_with: delta, smoothing */
    /* Metrics to create, such as ch_metric_sparse_accuracy() and ch_metric_auc(200). The first
     * entry that is zero ends the list. */
    ch_metric_spec metrics[CH_COMPILE_METRICS];
    /* Metrics that use the weights of the examples. */
    ch_metric_spec    weighted_metrics[CH_COMPILE_METRICS];
    int               n_own; /* number of metrics in `own` */
    ch_metric *const *own;   /* existing metrics of the model's strategy; referenced */
    ch_model_step_fn  train_step, test_step; /* custom steps; NULL: the default steps */
    void             *step_arg;              /* argument of the custom steps */
    bool              own_weighted; /* the metrics of `own` use the weights of the examples */
} ch_compile_options;

/* Attaches an optimizer, a loss and metrics to a model. May be called again: it replaces all of
 * these. The variables of the model do not change. FAILED_PRECONDITION: ch_fit, ch_evaluate or
 * ch_predict of the model is running. */
CH_API CH_MUST_CHECK ch_status ch_compile(ch_model *m, const ch_compile_options *opt);

/* ---- data ---- */

/* One of three sources, borrowed: a dataset of batches; n arrays with a row for each example;
 * or an iterator of ch_strategy_distribute_dataset for the model's strategy. An iterator
 * continues at its position, and restarts if it has ended. All zero: no data. */
typedef struct ch_data {
    ch_dataset       *dataset;
    int               n; /* number of arrays */
    ch_tensor *const *array;
    ch_iterator      *iterator;
} ch_data;

/* ---- fit ---- */

/* How progress is shown, on standard error. */
typedef enum ch_progress {
    CH_PROGRESS_OFF,
    CH_PROGRESS_AUTO,  /* BAR if standard error is a capable terminal; else LINES */
    CH_PROGRESS_BAR,   /* a line that is updated in place */
    CH_PROGRESS_LINES, /* a new line now and then: for files and batch systems */
    CH_PROGRESS_JSON   /* a JSON object on each line: for programs */
} ch_progress;

typedef struct ch_fit_options {
    int epochs;        /* number of the last epoch, counted from 1; 0: 1 */
    int initial_epoch; /* first epoch, counted from 0; earlier epochs are skipped */
    /* 0: an epoch is a pass over the data, which must end. Else an epoch has this many steps:
     * the data continues from epoch to epoch, and restarts when it ends. */
    int64_t steps_per_epoch;

    ch_data validation; /* evaluated after an epoch; its logs have the prefix "val_" */
    /* Share of the rows of arrays, taken from the end, that is used for validation; 0: none. */
    double  validation_split;
    int64_t validation_steps; /* steps of a validation; 0: all data */
    int     validation_every; /* epochs between validations; 0: 1 */

    int64_t  batch;   /* batch size for arrays; 0: 32 */
    int      shuffle; /* shuffle arrays in each epoch; 0: yes; CH_OFF: no */
    uint64_t seed;    /* of the shuffle */

    int n_classes; /* entries of class_weight; 0: none */
    /* Weight of each label, multiplied with the weights of the examples. Used in training
     * only. */
    const double *class_weight;

    int                 n_callbacks;
    ch_callback *const *callback; /* borrowed */
    ch_progress         progress;
    bool                summary; /* print a table of times to standard error at the end */
    /* Seconds of a step on a single replica with as many rows for it, if the program has
     * measured them. The table then shows the speedup. */
    double one_replica_step;
    /* On Ctrl-C, finish the step and return the history so far. A second Ctrl-C ends the
     * process. */
    bool catch_interrupt;
    /* Write a trace for chrome://tracing or Perfetto to this file. NULL: COHORT_TRACE, or
     * none. */
    const char *trace;
} ch_fit_options;

/* Trains the model. `opt` may be NULL. `out` may be NULL; else it is set to the history, also
 * after a failure, and the caller unrefs it. It is NULL if the model was not compiled or memory
 * is exhausted.
 *
 * A training that a callback or Ctrl-C stopped is no failure. Its history has an epoch if at
 * least one step of it ran. A validation that was stopped has no numbers. INVALID_ARGUMENT: the
 * data for training or validation has no rows. */
CH_API CH_MUST_CHECK ch_status ch_fit(ch_model *m, ch_data data, const ch_fit_options *opt,
                                      ch_history **out);

typedef struct ch_evaluate_options {
    int64_t             batch; /* batch size for arrays; 0: 32 */
    int64_t             steps; /* 0: all data */
    int                 n_callbacks;
    ch_callback *const *callback; /* borrowed */
    ch_progress         progress;
} ch_evaluate_options;

/* Computes the loss and the metrics on the data, as a history of a single epoch. Every row
 * counts once. If a callback stops it, the numbers are of the rows so far. INVALID_ARGUMENT:
 * the data has no rows. */
CH_API CH_MUST_CHECK ch_status ch_evaluate(ch_model *m, ch_data data,
                                           const ch_evaluate_options *opt, ch_history **out);
/* Computes the output of the model for each row, in the order of the data. The dtype is that of
 * the model; ch_tensor_get converts 16-bit floats. Components of the data after the model's
 * inputs are ignored. If the data has no rows, the result has no rows either: (0, classes). If
 * a callback stops it, the result has the rows so far. */
CH_API CH_MUST_CHECK ch_status ch_predict(ch_model *m, ch_data data,
                                          const ch_evaluate_options *opt, ch_tensor **out);

/* ---- train and evaluate ---- */

typedef struct ch_train_evaluate_options {
    int64_t max_steps;      /* steps of training; 0: to the end of the data */
    int64_t evaluate_every; /* steps between evaluations; 0: 1000 */
    int64_t evaluate_steps; /* steps of an evaluation; 0: all data */
    /* Log that decides which evaluation is the best; NULL: "val_loss". INVALID_ARGUMENT: an
     * evaluation has no such log. */
    const char *monitor;
    ch_goal     goal; /* whether less or more is better */
    /* Directory for the best variables, best.npz, and their logs, best.json. It is created if
     * it does not exist. NULL: no export. */
    const char *export_best;
    /* Callbacks, progress and so on. Its epochs, steps and validation are ignored. */
    ch_fit_options fit;
} ch_train_evaluate_options;

/* Trains without epochs. Evaluates every `evaluate_every` steps and at the end; each evaluation
 * is an epoch of the history. The training ends after max_steps, or with the data if that is
 * earlier. Arrays are a single pass; use ch_dataset_repeat for more. `opt` and `out` may be
 * NULL. */
CH_API CH_MUST_CHECK ch_status ch_train_and_evaluate(ch_model *m, ch_data train, ch_data test,
                                                     const ch_train_evaluate_options *opt,
                                                     ch_history                     **out);

#endif
