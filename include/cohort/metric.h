/* cohort/metric.h -- metrics: numbers that are gathered over many steps.
 *
 *     ch_metric *accuracy = NULL;
 *     rc = ch_metric_new(st, ch_metric_sparse_accuracy(), &accuracy);
 *     ...
 *     ch_metric_update(accuracy, s, labels, logits, NULL);         // in a step
 *     ...
 *     rc = ch_metric_result(accuracy, &x);                         // after it
 *     rc = ch_metric_reset(accuracy);
 *
 * A ch_metric_spec says which metric to make, with its number if it has one. Lists of metrics (ch_compile) are lists of
 * specs:
 *
 *     .metrics = {ch_metric_sparse_accuracy(), ch_metric_auc(200), ch_metric_named(ch_metric_auc(1000), "fine_auc")}
 *
 * The state of a metric is variables of f64, to which a step adds the sum over all replicas. So every replica holds the
 * whole state, and a state can be saved, or summed with that of another job. Only the state of ch_metric_auc_exact is not
 * a sum: it is a list of rows. A result that would divide by zero is 0.
 *
 * Steps that use one metric must be recorded, and must run, one after the other.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_METRIC_H
#define COHORT_METRIC_H

#include "cohort/strategy.h"
#include "cohort/var.h"

typedef struct ch_metric      ch_metric;
typedef struct ch_metric_kind ch_metric_kind;

typedef struct ch_metric_spec {
    /* Threshold, number of thresholds, k, capacity or number of classes. It comes first, so that a function that is not
     * called, as in {ch_metric_auc}, does not compile. */
    double                number;
    const ch_metric_kind *kind; /* one of those below; NULL: as `make` says */
    /* NULL: the name of the function below, "auc". Borrowed until the metric is made. */
    const char *name;
    /* Makes a metric of the program's own, out of others. */
    ch_status (*make)(ch_strategy *st, const char *name, double number, ch_metric **out);
} ch_metric_spec;

/* ---- kinds of metrics ---- */

/* The mean and the sum of the guesses: `truth` is not used and may be NULL. The guesses must be one value for each example, as
 * losses are before they are averaged, so that a replica with few rows counts little. */
CH_API ch_metric_spec ch_metric_mean(void);
CH_API ch_metric_spec ch_metric_sum(void);

/* How often guess and truth agree:
 *   accuracy              they are equal
 *   sparse_accuracy       the class with the largest score is the label
 *   categorical_accuracy  the class with the largest score is the largest of a one-hot row
 *   binary_accuracy       the guess is above `threshold` if truth is 1, and not above if it is 0; of logits, threshold 0
 *   top_k                 the label is among the k classes with the largest scores; of equal scores the first count
 * A label that is not a class counts as wrong. A label that means "none" (-1, say) needs a weight of 0. The cross entropies
 * and ch_metric_confusion refuse such a label, as losses do: the step fails. */
CH_API ch_metric_spec ch_metric_accuracy(void);
CH_API ch_metric_spec ch_metric_sparse_accuracy(void);
CH_API ch_metric_spec ch_metric_categorical_accuracy(void);
CH_API ch_metric_spec ch_metric_binary_accuracy(double threshold);
CH_API ch_metric_spec ch_metric_top_k(int k);

/* Of yes and no: a guess above `threshold` is yes. Truth, here and below, has any dtype: 0 is no, and any other value is yes, as
 * in Keras. Labels of -1 and 1 therefore need a ch_greater first. */
CH_API ch_metric_spec ch_metric_precision(double threshold);
CH_API ch_metric_spec ch_metric_recall(double threshold);
CH_API ch_metric_spec ch_metric_f1(double threshold);

/* The area under the ROC curve of guesses in [0, 1], from counts at evenly spaced thresholds (2 or more; 0: 200), as in Keras.
 * Guesses outside [0, 1] count as 0 or 1: give sigmoids, not logits. NaN if a guess is NaN. */
CH_API ch_metric_spec ch_metric_auc(int thresholds);
/* The same area, exact, of any guesses; equal guesses count half, as in scikit-learn. All guesses are kept: memory for
 * `capacity` of them (24 bytes each) is allocated at once, and a step that brings more fails. NaN if a guess is NaN. */
CH_API ch_metric_spec ch_metric_auc_exact(int64_t capacity);

/* Of guess minus truth, over all elements: mean square, mean absolute value, root of the mean square. */
CH_API ch_metric_spec ch_metric_mse(void);
CH_API ch_metric_spec ch_metric_mae(void);
CH_API ch_metric_spec ch_metric_rmse(void);
/* Of logits: the mean of the loss of this name. */
CH_API ch_metric_spec ch_metric_sparse_cross_entropy(void);
CH_API ch_metric_spec ch_metric_categorical_cross_entropy(void);
CH_API ch_metric_spec ch_metric_binary_cross_entropy(void);
/* counts[truth][guess], of labels (...) and guessed classes (...) or logits (..., classes). The result is the share on the
 * diagonal; ch_metric_tensor gives the matrix. */
CH_API ch_metric_spec ch_metric_confusion(int classes);

/* Returns the same spec with another name: two metrics of a kind in one list need two names. */
CH_API ch_metric_spec ch_metric_named(ch_metric_spec spec, const char *name);

/* ---- metrics ---- */

/* Makes a metric, whose variables belong to the strategy. INVALID_ARGUMENT: the spec is zero, or its number is out of range. */
CH_API CH_MUST_CHECK ch_status ch_metric_new(ch_strategy *st, ch_metric_spec spec,
                                             ch_metric **out);
CH_API ch_metric              *ch_metric_ref(ch_metric *m);
CH_API void                    ch_metric_unref(ch_metric *m);
CH_API const char             *ch_metric_name(const ch_metric *m);

/* Adds to the state, in a step. `weights` may be NULL, or have a number for each example: it has the shape of the values that are
 * averaged or counted, or of their first axes. */
CH_API void ch_metric_update(ch_metric *m, ch_step *s, ch_node *truth, ch_node *guess,
                             ch_node *weights);
/* Outside a step: computes the number; copies the state; sets the state to zero. */
CH_API CH_MUST_CHECK ch_status ch_metric_result(ch_metric *m, double *out);
CH_API CH_MUST_CHECK ch_status ch_metric_tensor(ch_metric *m, ch_tensor **out);
CH_API CH_MUST_CHECK ch_status ch_metric_reset(ch_metric *m);
/* Lists its variables. The array and the variables are borrowed. Returns how many there are. */
CH_API int ch_metric_vars(ch_metric *m, ch_var *const **out);

#endif
