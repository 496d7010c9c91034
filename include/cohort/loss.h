/* cohort/loss.h -- losses, one number for each example.
 *
 *     ch_node *each = ch_loss_sparse_categorical(logits, labels);      // (rows)
 *     ch_node *loss = ch_loss_average(each, NULL);                     // for the optimizer
 *
 * A loss that is minimised is the sum over the examples of this replica, divided by how many
 * examples all replicas have together: summed over replicas it is the mean over the global
 * batch, however the rows were dealt, and a replica without rows weighs nothing.
 *
 * All give one number for each of the leading axes: the last axis is averaged away (categorical
 * ones: it is the classes). A prediction with one axis, (rows), has one number for each example
 * already, and nothing is averaged. Targets have the predictions' shape, but for sparse labels,
 * and any dtype. Losses of 16-bit floats are f32.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_LOSS_H
#define COHORT_LOSS_H

#include "cohort/step.h"

/* `logits` (..., classes), `labels` (...) of i32 or i64. A label that is no class makes the run
 * fail; the error names it. */
CH_API ch_node *ch_loss_sparse_categorical(ch_node *logits, ch_node *labels);
/* `smoothing` in [0, 1) moves that much of each target to all classes alike. */
CH_API ch_node *ch_loss_categorical(ch_node *logits, ch_node *targets, double smoothing);

CH_API ch_node *ch_loss_binary(ch_node *logits, ch_node *targets);
CH_API ch_node *ch_loss_mse(ch_node *prediction, ch_node *target);
CH_API ch_node *ch_loss_mae(ch_node *prediction, ch_node *target);
/* Half of the square up to `delta` from the target, lines beyond. */
CH_API ch_node *ch_loss_huber(ch_node *prediction, ch_node *target, double delta);
/* Minus the cosine of the angle between the two, -1 where they agree; 0 if either is zeros. */
CH_API ch_node *ch_loss_cosine(ch_node *prediction, ch_node *target);
/* max(0, 1 - target * prediction), targets -1 or 1; 0 and 1 will not do. */
CH_API ch_node *ch_loss_hinge(ch_node *prediction, ch_node *target);
/* sum(target * log(target / prediction)) of two distributions; a prediction below 1e-7 counts
 * as 1e-7. */
CH_API ch_node *ch_loss_kl(ch_node *prediction, ch_node *target);

/* The sum of `each` over the global number of examples: see above. Where `each` has more axes
 * than the rows (one loss for each token), it divides by rows * the rest. `weights`, if not
 * NULL, multiply: of the shape of `each`, or of its first axes. A global batch without examples
 * gives 0. */
CH_API ch_node *ch_loss_average(ch_node *each, ch_node *weights);
/* The weighted sum of this replica over the sum of all replicas' weights, so that the sum over
 * replicas is the weighted mean: for weights that mask. 0 where the weights add up to 0. It
 * holds an all-reduce. */
CH_API ch_node *ch_loss_weighted_mean(ch_node *each, ch_node *weights);

#endif
