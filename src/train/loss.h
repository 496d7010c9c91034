/* train/loss.h -- helpers that losses and metrics share.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAIN_LOSS_H
#define TRAIN_LOSS_H

#include "graph/step.h"

/* Returns true if both nodes are not NULL and have the same shape. Otherwise fails the step and
 * returns false. A size of 1 is not broadcast, because that would hide mistakes such as (rows,
 * 1) with (rows). `what` is the name of the function, for messages. */
bool ch__same_shape(const char *what, ch_node *a, ch_node *b);
/* Returns the weights in the dtype of `each`, with axes of size 1 appended up to its rank, so
 * that they broadcast. Returns NULL, and fails the step, if their shape is not that of the
 * first axes of `each`. */
ch_node *ch__weights_for(const char *what, ch_node *weights, ch_node *each);

#endif
