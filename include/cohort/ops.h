/* cohort/ops.h -- all ops of a step: includes the headers of ops.
 *
 * An op is a function that takes nodes and returns a node, while a step is recorded
 * (cohort/step.h).
 *
 *     ch_node *scores = ch_relu(ch_linear(x, w, b));
 *     ch_node *label = ch_argmax(scores, -1);
 *
 * Conventions of all ops:
 *   - The step owns every node: there is nothing to free. The thread that records the step
 *     calls the ops.
 *   - An op that is given NULL returns NULL. The step keeps the first error, so code need not
 *     check each op.
 *   - Sizes broadcast as in numpy, except that rows (a symbol) are equal only to themselves.
 *   - The inputs of an op have the same dtype. A weak number (ch_number, ch_rows) takes the
 *     dtype of the other inputs.
 *   - Axes count from 0. -1 is the last axis. A list is a number n and an array.
 *   - bf16 and f16 are stored in 16 bits and computed in f32.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_OPS_H
#define COHORT_OPS_H

#include "cohort/array.h"
#include "cohort/control.h"
#include "cohort/effect.h"
#include "cohort/math.h"
#include "cohort/nn.h"
#include "cohort/random.h"

#endif
