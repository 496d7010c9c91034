/* fit/compiled.h -- the state that ch_compile attaches to a model.
 *
 * A ch_compiled has the optimizer, the loss and the metrics of the model, and the recorded
 * steps for training, evaluation and prediction. compile.c creates it, steps.c records its
 * steps, and the loops of fit/ run them. The model owns it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_COMPILED_H
#define FIT_COMPILED_H

#include <stdatomic.h>

#include "cohort/fit.h"
#include "fit/training.h"

typedef struct ch_compiled_metric {
    ch_metric *metric;      /* owned reference */
    bool       is_weighted; /* uses the weights of the examples */
    bool       is_own;      /* from ch_compile_options.own: custom steps update it themselves */
} ch_compiled_metric;

typedef struct ch_compiled {
    ch_model          *model;     /* the model that owns this struct */
    ch_strategy       *strategy;  /* strategy of the model; borrowed */
    ch_optimizer      *optimizer; /* NULL: the model cannot be trained */
    ch_loss_fn         loss;      /* NULL: loss_with is used; both NULL: no loss */
    ch_loss_arg_fn     loss_with;
    double             loss_arg;
    ch_model_step_fn   train_step, test_step; /* custom steps; NULL: the default steps */
    void              *step_arg;
    ch_metric         *loss_mean; /* mean of the loss; NULL: there is no loss */
    int                n_metrics;
    ch_compiled_metric metric[3 * CH_COMPILE_METRICS];
    ch_tensor   *class_weight; /* weight of each class in the running ch_fit; NULL: none */
    ch_function *train, *test, *predict;
    /* Return address in the program that called ch_fit, ch_evaluate or ch_predict. Errors of
     * steps name its line. */
    const void *caller;
    atomic_int  n_running; /* open loops on this model */
    /* Open loops that use the metrics: all except those of ch_predict. */
    atomic_int n_metric_users;

    /* Sums of the outputs of custom steps since the last reset, by name, and the number of
     * steps that were added. */
    ch_logs output_sums;
    int64_t n_output_steps;
} ch_compiled;

/* Returns the state of the model, borrowed. FAILED_PRECONDITION: ch_compile was not called.
 * INVALID_ARGUMENT: the model is NULL. `call` is the name of the public function, for
 * messages. */
ch_status ch__compiled_of(const char *call, ch_model *m, ch_compiled **out);
bool      ch__compiled_has_loss(const ch_compiled *c);

/* Creates the functions train, test and predict (steps.c). Their steps are recorded at their
 * first run. */
ch_status ch__compiled_functions(ch_compiled *c);
/* Sets the class weights for the next training steps. `weight` has n entries and is copied. If
 * n is 0, there are no weights. */
ch_status ch__compiled_class_weights(ch_compiled *c, int n, const double *weight);

/* Writes the values of the metrics to the logs. Their names get the prefix. If `is_own_step` is
 * true, skips the loss and the metrics that ch_compile created, because a custom step does not
 * update them. */
ch_status ch__compiled_read(ch_compiled *c, bool is_own_step, const char *prefix,
                            ch_logs *logs);
/* Sets all metrics and output_sums to their initial state. */
ch_status ch__compiled_reset(ch_compiled *c);
/* Adds the named outputs of a custom step to output_sums. `out` may be NULL. INVALID_ARGUMENT:
 * an output does not have exactly one element. */
ch_status ch__compiled_add_outputs(ch_compiled *c, const ch_tuple *out);

/* The state of all metrics, saved so that an evaluation in the middle of a training does not
 * change the numbers of the training. All zeros is an empty state, which restores nothing. A
 * saved state must be restored, which also frees it. */
typedef struct ch_saved_metrics {
    int         n;
    ch_tensor **value; /* value of each variable of each metric */
    ch_logs     output_sums;
    int64_t     n_output_steps;
} ch_saved_metrics;
ch_status ch__compiled_save_metrics(ch_compiled *c, ch_saved_metrics *out);
ch_status ch__compiled_restore_metrics(ch_compiled *c, ch_saved_metrics *a);

#endif
