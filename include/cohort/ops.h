/* cohort/ops.h -- the ops a step is written with.
 *
 * Conventions of all of them:
 *   - Ops take nodes and return nodes. One that is given NULL returns NULL: the step keeps the
 *     first error.
 *   - Sizes broadcast as in numpy, except that rows (a symbol) equal only themselves.
 *   - Inputs of an op have one dtype; weak numbers (ch_number, ch_rows) take the others'.
 *   - An axis counts from 0; -1 is the last. Lists are (n, array).
 *   - bf16 and f16 are stored so and computed in f32.
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
