/* cohort/loss.h -- losses: a number for each example, and their mean over the global batch.
 *
 * A loss function returns a node with a number for each example. ch_loss_average reduces these
 * numbers to a scalar that an optimizer can minimise.
 *
 *     ch_node *each = ch_loss_sparse_categorical(logits, labels);      // (rows)
 *     ch_node *loss = ch_loss_average(each, NULL);                     // a scalar
 *
 * The loss of a replica is the sum over its own examples, divided by the number of examples of
 * all replicas. Summed over the replicas, the loss is therefore the mean over the global batch,
 * however the rows are divided among replicas. A replica without rows contributes 0.
 *
 * Loss functions average over the last axis and return a number for each index of the other
 * axes. The last axis of categorical losses is the classes. A prediction with a single axis,
 * (rows), already has a number for each example, so nothing is averaged.
 *
 * Targets have the shape of the predictions, except sparse labels, and may have any dtype.
 * Losses of 16-bit floats are f32.
 *
 * These functions record nodes: cohort/step.h has the rules of ownership, errors and threads.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_LOSS_H
#define COHORT_LOSS_H

#include "cohort/step.h"

/* Returns the cross entropy of `logits` (..., classes) and `labels` (...), which are i32 or
 * i64. If a label is not in [0, classes), the run fails; the error names the label. */
CH_API ch_node *ch_loss_sparse_categorical(ch_node *logits, ch_node *labels);
/* Returns the cross entropy of `logits` and `targets`, both (..., classes). `smoothing`, in [0,
 * 1), is the share of each target that is spread evenly over all classes. */
CH_API ch_node *ch_loss_categorical(ch_node *logits, ch_node *targets, double smoothing);

CH_API ch_node *ch_loss_binary(ch_node *logits, ch_node *targets); /* sigmoid cross entropy */
CH_API ch_node *ch_loss_mse(ch_node *prediction, ch_node *target); /* mean squared error */
CH_API ch_node *ch_loss_mae(ch_node *prediction, ch_node *target); /* mean absolute error */
/* Returns the Huber loss: half of the squared error up to an error of `delta`, linear
 * beyond. */
CH_API ch_node *ch_loss_huber(ch_node *prediction, ch_node *target, double delta);
/* Returns minus the cosine of the angle between prediction and target: -1 if they have the same
 * direction, 0 if either of them is all zeros. Both must have at least two axes. */
CH_API ch_node *ch_loss_cosine(ch_node *prediction, ch_node *target);
/* Returns max(0, 1 - target * prediction). Targets must be -1 or 1, not 0 or 1. */
CH_API ch_node *ch_loss_hinge(ch_node *prediction, ch_node *target);
/* Returns the Kullback-Leibler divergence of two distributions: sum(target * log(target /
 * prediction)). Predictions below 1e-7 count as 1e-7. Both must have at least two axes. */
CH_API ch_node *ch_loss_kl(ch_node *prediction, ch_node *target);

/* Returns the sum of `each` divided by the number of examples of all replicas. Summed over the
 * replicas, the result is the mean over the global batch. If `each` has more axes than the rows
 * (such as a loss for each token), the divisor is the global number of rows times the other
 * sizes. A global batch without examples gives 0.
 *
 * `weights`, unless NULL, multiply `each`; they have its shape, or the shape of its first axes.
 * They do not change the divisor. */
CH_API ch_node *ch_loss_average(ch_node *each, ch_node *weights);
/* Returns the weighted sum of this replica, divided by the sum of the weights of all replicas.
 * Summed over the replicas, the result is the weighted mean. Use this function for weights that
 * mask. If all weights add up to 0 the result is 0. Records an all-reduce. */
CH_API ch_node *ch_loss_weighted_mean(ch_node *each, ch_node *weights);

#endif
