/* train/metric.h -- the inside of a metric: its state, and what its kind does with it.
 *
 * A kind says what a step adds to the state and what number the state means. The rest is the
 * same for all: the sum over replicas, the variables, their reading and zeroing.
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
    /* Checks the number of the spec, and writes the threshold or n, and the shape of the state. */
    ch_status (*prepare)(double number, ch_metric_parts *out);
    /* What this replica adds to the state: of its shape, f64. Or, if `is_kept`, rows to be put
     * behind those that are there. NULL: an error sticks to the step. */
    ch_node *(*add)(const ch_metric *m, ch_step *s, ch_node *truth, ch_node *guess,
                    ch_node *weights);
    /* The number that n rows of state mean. */
    ch_status (*result)(const ch_metric *m, int64_t n, const double *state, double *out);
    bool is_kept;
};

struct ch_metric {
    const ch_metric_kind *kind;
    atomic_int            refs;
    char                 *name;
    double                threshold;
    int64_t               n; /* k, thresholds, classes or capacity */
    int                   n_vars;
    ch_var               *var[2]; /* the state; if it is kept, how many rows are filled */
};

struct ch_metric_parts {
    double   threshold;
    int64_t  n;
    ch_shape state;
};

/* a / b, and 0 where b is nothing. */
static inline double ch__over(double a, double b)
{
    return b != 0 ? a / b : 0;
}

/* f64, in the shape of `each`: the weights, or ones. */
ch_node *ch__metric_weights(const ch_metric *m, ch_node *weights, ch_node *each);
/* True if truth has a label for each row of guess (..., classes); the error sticks if not. */
bool ch__metric_has_labels(const ch_metric *m, ch_node *truth, ch_node *guess);

#endif
