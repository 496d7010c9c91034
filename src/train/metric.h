/* train/metric.h -- the struct behind ch_metric, and the interface of its kinds.
 *
 * A metric is a state of variables and a kind (ch_metric_kind). The kind records the
 * contribution of a step to the state, and computes the result from the state. metric.c does
 * the rest for all kinds: the sum over the replicas, and creating, reading and resetting the
 * variables. metric_*.c implement the kinds.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAIN_METRIC_H
#define TRAIN_METRIC_H

#include <stdatomic.h>

#include "cohort/metric.h"
#include "graph/step.h"

typedef struct ch_metric_parts ch_metric_parts;

struct ch_metric_kind {
    const char *name;
    /* Checks the number of the spec. Sets the threshold or n, and the shape of the state. */
    ch_status (*prepare)(double number, ch_metric_parts *out);
    /* Records the contribution of this replica to the state: f64, with the shape of the state.
     * If `is_kept` is true, the contribution is rows that are appended to the state. Returns
     * NULL after an error, which the step keeps. */
    ch_node *(*add)(const ch_metric *m, ch_step *s, ch_node *truth, ch_node *guess,
                    ch_node *weights);
    /* Computes the result from n rows of state. */
    ch_status (*result)(const ch_metric *m, int64_t n, const double *state, double *out);
    bool is_kept; /* the state keeps rows of all examples, instead of sums */
};

struct ch_metric {
    const ch_metric_kind *kind;
    atomic_int            refs;
    char                 *name;
    double                threshold;
    /* The k of top_k, or the number of thresholds, classes or rows, depending on the kind. */
    int64_t n;
    int     n_vars;
    /* The state; if kind->is_kept, also the number of filled rows. */
    ch_var *var[2];
};

/* The result of ch_metric_kind.prepare. */
struct ch_metric_parts {
    double   threshold;
    int64_t  n;
    ch_shape state;
};

/* Returns a / b, or 0 if b is 0. */
static inline double ch__over(double a, double b)
{
    return b != 0 ? a / b : 0;
}

/* Returns the weights as f64 in the shape of `each`; ones if `weights` is NULL. */
ch_node *ch__metric_weights(const ch_metric *m, ch_node *weights, ch_node *each);
/* Returns true if `truth` has a label for each row of `guess` (..., classes). Otherwise fails
 * the step and returns false. */
bool ch__metric_has_labels(const ch_metric *m, ch_node *truth, ch_node *guess);

#endif
