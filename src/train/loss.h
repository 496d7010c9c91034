/* train/loss.h -- what losses and metrics share.   SPDX-License-Identifier: Apache-2.0 */
#ifndef TRAIN_LOSS_H
#define TRAIN_LOSS_H

#include "graph/step.h"

/* True if both are there and of one shape: a size of 1 is not stretched, for that hides that
 * (rows, 1) met (rows). The error sticks if not; `what` names the two. */
bool ch__same_shape(const char *what, ch_node *a, ch_node *b);
/* `weights` in the dtype of `each`, with axes of size 1 behind up to its rank, so that they
 * broadcast over what they are not given for. */
ch_node *ch__weights_for(const char *what, ch_node *weights, ch_node *each);

#endif
