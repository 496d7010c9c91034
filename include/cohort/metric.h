/* cohort/metric.h -- metrics: numbers that are accumulated over many steps.
 *
 * A metric has a state, in variables, to which every step adds, and a result, a number that is
 * computed from the state.
 *
 *     rc = ch_metric_new(st, ch_metric_sparse_accuracy(), &accuracy);
 *
 *     ch_metric_update(accuracy, s, labels, logits, NULL);         // in a step
 *
 *     rc = ch_metric_result(accuracy, &number);                    // after the steps
 *     rc = ch_metric_reset(accuracy);
 *
 * A ch_metric_spec describes a metric to be created, with its parameter if it has any.
 * ch_compile takes a list of specs:
 *
 *     rc = ch_compile(m, &(ch_compile_options){
 *         .metrics = {ch_metric_sparse_accuracy(), ch_metric_auc(200),
 *                     ch_metric_named(ch_metric_auc(1000), "fine_auc")}});
 *
 *   - The state is f64. A step adds the sum over all replicas, so every replica holds the whole
 *     state. A state can be saved, or added to the state of another job. Only the state of
 *     ch_metric_auc_exact is a list of rows and not a sum.
 *   - A result that would divide by zero is 0.
 *   - Metrics are reference counted. A metric owns its variables.
 *   - Steps that use the same metric must be recorded by one thread at a time. They must not
 *     run at the same time, unless parameter servers hold the variables
 *     (cohort/parameter_server.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_METRIC_H
#define COHORT_METRIC_H

#include "cohort/strategy.h"
#include "cohort/var.h"

typedef struct ch_metric      ch_metric;
typedef struct ch_metric_kind ch_metric_kind;

typedef struct ch_metric_spec {
    /* Threshold, number of thresholds, k, capacity or number of classes. This field is the
     * first, so that {ch_metric_auc}, a function without its call, does not compile. */
    double number;
    /* Kind of the metric, set by the functions below; NULL: `make` creates the metric. */
    const ch_metric_kind *kind;
    /* Name of the metric; NULL: the name of the function below, such as "auc". Borrowed until
     * the metric is created. */
    const char *name;
    /* Creates a metric in a way that the program defines, for example from other metrics. */
    ch_status (*make)(ch_strategy *st, const char *name, double number, ch_metric **out);
} ch_metric_spec;

/* ---- kinds of metrics ----
 *
 * Each function returns the spec of a metric. Its comment describes the result of the metric.
 * `guess` is the prediction and `truth` the target that ch_metric_update is given. */

/* The mean and the sum of the guesses. `truth` is not used and may be NULL. The guesses must
 * have a value for each example, as losses have before they are averaged. Then a replica with
 * few rows has little weight. */
CH_API ch_metric_spec ch_metric_mean(void);
CH_API ch_metric_spec ch_metric_sum(void);

/* The share of examples in which guess and truth agree:
 *   - ch_metric_accuracy: guess and truth are equal.
 *   - ch_metric_sparse_accuracy: the class with the largest score is the label.
 *   - ch_metric_categorical_accuracy: the class with the largest score is the largest of a
 *     one-hot row.
 *   - ch_metric_binary_accuracy: the guess is above `threshold` and truth is not 0, or neither
 *     holds. For logits use a threshold of 0.
 *   - ch_metric_top_k: the label is among the k classes with the largest scores. Among equal
 *     scores the first count.
 *
 * A label that is not a class counts as wrong. A label that means "none", such as -1, needs a
 * weight of 0. The cross entropies and ch_metric_confusion do not accept such a label: the step
 * fails, as with losses. */
CH_API ch_metric_spec ch_metric_accuracy(void);
CH_API ch_metric_spec ch_metric_sparse_accuracy(void);
CH_API ch_metric_spec ch_metric_categorical_accuracy(void);
CH_API ch_metric_spec ch_metric_binary_accuracy(double threshold);
CH_API ch_metric_spec ch_metric_top_k(int k);

/* Precision, recall and F1 score of binary classification. A guess above `threshold` is
 * positive. Truth, here and below, may have any dtype: 0 is negative, and every other value is
 * positive, as in Keras. Convert labels of -1 and 1 with ch_greater first. */
CH_API ch_metric_spec ch_metric_precision(double threshold);
CH_API ch_metric_spec ch_metric_recall(double threshold);
CH_API ch_metric_spec ch_metric_f1(double threshold);

/* The area under the ROC curve, from counts at evenly spaced thresholds (2 or more; 0: 200), as
 * in Keras. Guesses must be in [0, 1]: use sigmoids, not logits. Guesses outside count as 0 or
 * 1. If a guess is NaN, so is the result. */
CH_API ch_metric_spec ch_metric_auc(int thresholds);
/* The exact area under the ROC curve, of any guesses. Equal guesses count half, as in
 * scikit-learn. The metric keeps all guesses: it allocates memory for `capacity` guesses at
 * once, 24 bytes each, and a step that adds more fails. If a guess is NaN, so is the result. */
CH_API ch_metric_spec ch_metric_auc_exact(int64_t capacity);

/* Mean squared error, mean absolute error, and root of the mean squared error, over all
 * elements. */
CH_API ch_metric_spec ch_metric_mse(void);
CH_API ch_metric_spec ch_metric_mae(void);
CH_API ch_metric_spec ch_metric_rmse(void);
/* The mean of a cross-entropy loss. The guesses must be logits. */
CH_API ch_metric_spec ch_metric_sparse_cross_entropy(void);
CH_API ch_metric_spec ch_metric_categorical_cross_entropy(void);
CH_API ch_metric_spec ch_metric_binary_cross_entropy(void);
/* The confusion matrix counts[truth][guess], for labels (...) and predicted classes (...) or
 * logits (..., classes). The result is the share on the diagonal; ch_metric_tensor returns the
 * matrix. */
CH_API ch_metric_spec ch_metric_confusion(int classes);

/* Returns the same spec with another name. Two metrics of the same kind in a list need
 * different names. */
CH_API ch_metric_spec ch_metric_named(ch_metric_spec spec, const char *name);

/* ---- metrics ---- */

/* Creates a metric, with its variables in the strategy. INVALID_ARGUMENT: the spec is all
 * zeros, or its number is out of range. */
CH_API CH_MUST_CHECK ch_status ch_metric_new(ch_strategy *st, ch_metric_spec spec,
                                             ch_metric **out);
CH_API ch_metric              *ch_metric_ref(ch_metric *m);
CH_API void                    ch_metric_unref(ch_metric *m);
CH_API const char             *ch_metric_name(const ch_metric *m);

/* Records an update of the state, in a step. `weights` may be NULL, or have a number for each
 * example: the shape of the values that are averaged or counted, or of their first axes. */
CH_API void ch_metric_update(ch_metric *m, ch_step *s, ch_node *truth, ch_node *guess,
                             ch_node *weights);
/* ch_metric_result computes the result, ch_metric_tensor copies the state, ch_metric_reset sets
 * the state to zero. Must be called outside steps. */
CH_API CH_MUST_CHECK ch_status ch_metric_result(ch_metric *m, double *out);
CH_API CH_MUST_CHECK ch_status ch_metric_tensor(ch_metric *m, ch_tensor **out);
CH_API CH_MUST_CHECK ch_status ch_metric_reset(ch_metric *m);
/* Lists the variables of the metric and returns their number. The array and the variables are
 * borrowed. */
CH_API int ch_metric_vars(ch_metric *m, ch_var *const **out);

#endif
