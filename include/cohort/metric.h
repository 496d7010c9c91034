/* cohort/metric.h -- metrics: numbers that gather over many steps.
 *
 *     ch_metric *accuracy = NULL;
 *     rc = ch_metric_sparse_accuracy(st, NULL, &accuracy);
 *     ...
 *     ch_metric_update(accuracy, s, labels, logits, NULL);         // in a step
 *     ...
 *     rc = ch_metric_result(accuracy, &x);                         // after it
 *     rc = ch_metric_reset(accuracy);
 *
 * A metric's state is variables of f64, to which a step adds the sum over all replicas: so
 * every replica holds the whole, and a state can be saved, or summed with that of another job.
 * Only the state of ch_metric_auc_exact is no sum: it is rows, and those of two jobs are put
 * together. `weights` may be NULL, or one for each example: of the shape of what is averaged or
 * counted, or of its first axes. `name` NULL is the kind's, "auc". What divides by nothing is
 * 0. Steps that use one metric are recorded, and run, one after the other.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_METRIC_H
#define COHORT_METRIC_H

#include "cohort/strategy.h"
#include "cohort/var.h"

typedef struct ch_metric ch_metric;

/* Of values themselves: `truth` is not looked at and may be NULL. Give it one value for each
 * example, as losses are before they are averaged, so that a replica with few rows weighs
 * little. */
CH_API CH_MUST_CHECK ch_status ch_metric_mean(ch_strategy *st, const char *name,
                                              ch_metric **out);
CH_API CH_MUST_CHECK ch_status ch_metric_sum(ch_strategy *st, const char *name,
                                             ch_metric **out);

/* How often they agree: exactly; the largest of classes with a label, or with the largest of
 * one-hot rows; either side of `threshold` with 0 or 1; a label is within the best k (of equals
 * the first are). A label that is no class agrees with nothing: it counts as wrong, and one that
 * stands for nothing (-1, say) wants a weight of 0. The cross entropies and ch_metric_confusion
 * refuse such a label, as losses do: the step fails. */
CH_API CH_MUST_CHECK ch_status ch_metric_accuracy(ch_strategy *st, const char *name,
                                                  ch_metric **out);
CH_API CH_MUST_CHECK ch_status ch_metric_sparse_accuracy(ch_strategy *st, const char *name,
                                                         ch_metric **out);
CH_API CH_MUST_CHECK ch_status ch_metric_categorical_accuracy(ch_strategy *st, const char *name,
                                                              ch_metric **out);
CH_API CH_MUST_CHECK ch_status ch_metric_binary_accuracy(ch_strategy *st, const char *name,
                                                         double threshold, ch_metric **out);
CH_API CH_MUST_CHECK ch_status ch_metric_top_k(ch_strategy *st, const char *name, int k,
                                               ch_metric **out);

/* Of yes and no; a guess is yes above `threshold`. Truth, here and below, is of any type: 0 is
 * no, and all else is yes, as Keras has it. So labels of -1 and 1 want a ch_greater before. */
CH_API CH_MUST_CHECK ch_status ch_metric_precision(ch_strategy *st, const char *name,
                                                   double threshold, ch_metric **out);
CH_API CH_MUST_CHECK ch_status ch_metric_recall(ch_strategy *st, const char *name,
                                                double threshold, ch_metric **out);
CH_API CH_MUST_CHECK ch_status ch_metric_f1(ch_strategy *st, const char *name, double threshold,
                                            ch_metric **out);

/* The area under the ROC curve, of guesses in [0, 1]: from counts at `thresholds` (2 or more;
 * 0: 200) even steps, as Keras has it. Guesses below 0 or above 1 count as those: of logits,
 * ask for that of their sigmoids. NaN if a guess is. */
CH_API CH_MUST_CHECK ch_status ch_metric_auc(ch_strategy *st, const char *name, int thresholds,
                                             ch_metric **out);
/* The same exactly, of any guesses, equal ones counted half, as in scikit-learn. All are kept:
 * room for `capacity` of them (24 bytes each) is made at once, and a step that brings more
 * fails. NaN if a guess is. */
CH_API CH_MUST_CHECK ch_status ch_metric_auc_exact(ch_strategy *st, const char *name,
                                                   int64_t capacity, ch_metric **out);

/* Of guesses less truth, over all elements. */
CH_API CH_MUST_CHECK ch_status ch_metric_mse(ch_strategy *st, const char *name,
                                             ch_metric **out);
CH_API CH_MUST_CHECK ch_status ch_metric_mae(ch_strategy *st, const char *name,
                                             ch_metric **out);
CH_API CH_MUST_CHECK ch_status ch_metric_rmse(ch_strategy *st, const char *name,
                                              ch_metric **out);
/* Of logits: the mean of the loss of this name. */
CH_API CH_MUST_CHECK ch_status ch_metric_sparse_cross_entropy(ch_strategy *st, const char *name,
                                                              ch_metric **out);
CH_API CH_MUST_CHECK ch_status ch_metric_categorical_cross_entropy(ch_strategy *st,
                                                                   const char  *name,
                                                                   ch_metric  **out);
CH_API CH_MUST_CHECK ch_status ch_metric_binary_cross_entropy(ch_strategy *st, const char *name,
                                                              ch_metric **out);
/* counts[truth][guess], of labels (...) and guessed classes (...) or logits (..., classes). Its
 * result is the share on the diagonal; ch_metric_tensor gives the matrix. */
CH_API CH_MUST_CHECK ch_status ch_metric_confusion(ch_strategy *st, const char *name,
                                                   int classes, ch_metric **out);

/* ---- metrics to be made ----
 *
 * A ch_metric_spec says which metric to make, with its number if it has one:
 *
 *     .metrics = {ch_sparse_accuracy(), ch_auc(200), ch_metric_named(ch_auc(1000), "fine_auc")}
 *
 * Lists of metrics (ch_compile) are lists of these, so that all metrics are given alike. Each is
 * the metric of its name above, and its number is that of the function there. A function that is
 * not called, ch_auc for ch_auc(0), does not compile: `number` is first, and no function is one. */
typedef struct ch_metric_spec {
    double number; /* threshold, thresholds, k, capacity or classes */
    ch_status (*make)(ch_strategy *st, const char *name, double number, ch_metric **out);
    const char *name; /* NULL: the kind's. Borrowed until the metric is made */
} ch_metric_spec;

CH_API ch_metric_spec ch_accuracy(void);
CH_API ch_metric_spec ch_sparse_accuracy(void);
CH_API ch_metric_spec ch_categorical_accuracy(void);
CH_API ch_metric_spec ch_binary_accuracy(double threshold); /* of logits: 0 */
CH_API ch_metric_spec ch_top_k_accuracy(int k);
CH_API ch_metric_spec ch_precision(double threshold);
CH_API ch_metric_spec ch_recall(double threshold);
CH_API ch_metric_spec ch_f1(double threshold);
CH_API ch_metric_spec ch_auc(int thresholds); /* 0: 200 */
CH_API ch_metric_spec ch_auc_exact(int64_t capacity);
CH_API ch_metric_spec ch_mse(void);
CH_API ch_metric_spec ch_mae(void);
CH_API ch_metric_spec ch_rmse(void);
CH_API ch_metric_spec ch_sparse_cross_entropy(void);
CH_API ch_metric_spec ch_categorical_cross_entropy(void);
CH_API ch_metric_spec ch_binary_cross_entropy(void);
CH_API ch_metric_spec ch_confusion(int classes);

/* The same metric with another name, which is borrowed until the metric is made: two of a kind in
 * one list need two names. */
CH_API ch_metric_spec ch_metric_named(ch_metric_spec spec, const char *name);
/* Makes the metric. INVALID_ARGUMENT if the spec is zero. */
CH_API CH_MUST_CHECK ch_status ch_metric_new(ch_strategy *st, ch_metric_spec spec,
                                             ch_metric **out);

CH_API ch_metric  *ch_metric_ref(ch_metric *m);
CH_API void        ch_metric_unref(ch_metric *m);
CH_API const char *ch_metric_name(const ch_metric *m);

/* In a step. */
CH_API void ch_metric_update(ch_metric *m, ch_step *s, ch_node *truth, ch_node *guess,
                             ch_node *weights);
/* Outside a step: the number; the state that it is computed from, a copy; zeros again. */
CH_API CH_MUST_CHECK ch_status ch_metric_result(ch_metric *m, double *out);
CH_API CH_MUST_CHECK ch_status ch_metric_tensor(ch_metric *m, ch_tensor **out);
CH_API CH_MUST_CHECK ch_status ch_metric_reset(ch_metric *m);
/* All of its variables, borrowed. */
CH_API int ch_metric_vars(ch_metric *m, ch_var *const **out);

#endif
