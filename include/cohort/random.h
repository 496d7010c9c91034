/* cohort/random.h -- random ops: random numbers, dropout and shuffling in a step.
 *
 * A random op draws numbers each time that the step runs.
 *
 *     ch_node *noise = ch_random_normal_like(x, 0, 0.1, 0);
 *     ch_node *y = ch_dropout(ch_add(x, noise), 0.5, 0);
 *
 * There is no generator state. Each number is a function of five keys: the seed of the run, the
 * position of the op in the recording, the step number, the replica and the element index.
 * Therefore a step that is repeated draws the same numbers, and the next step and the next
 * replica draw others. The number of threads has no effect.
 *
 *   - The step owns every node: there is nothing to free. The thread that records the step
 *     calls the ops. cohort/step.h has the rules for nodes and errors.
 *   - `seed` is the op's own seed, and may be 0. Two ops draw different numbers even if their
 *     seeds are equal.
 *   - Ops without _like take the step, a dtype and a shape of numbers. Ops ending in _like take
 *     the sizes of a node, rows included, and its dtype unless they have a dtype parameter.
 *   - bf16 and f16 numbers are f32 numbers, rounded.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_RANDOM_H
#define COHORT_RANDOM_H

#include "cohort/step.h"

/* ch_random_uniform and ch_random_uniform_like return floats from the uniform distribution in
 * [lo, hi), with lo < hi. */
CH_API ch_node *ch_random_uniform(ch_step *s, ch_dtype dtype, ch_shape shape, double lo,
                                  double hi, uint64_t seed);
CH_API ch_node *ch_random_uniform_like(ch_node *x, double lo, double hi, uint64_t seed);

/* ch_random_normal and ch_random_normal_like return floats from a normal distribution.
 * `deviation` is the standard deviation, 0 or more. */
CH_API ch_node *ch_random_normal(ch_step *s, ch_dtype dtype, ch_shape shape, double mean,
                                 double deviation, uint64_t seed);
CH_API ch_node *ch_random_normal_like(ch_node *x, double mean, double deviation, uint64_t seed);

/* ch_truncated_normal and ch_truncated_normal_like return floats from a normal distribution
 * truncated to two standard deviations around the mean. */
CH_API ch_node *ch_truncated_normal(ch_step *s, ch_dtype dtype, ch_shape shape, double mean,
                                    double deviation, uint64_t seed);
CH_API ch_node *ch_truncated_normal_like(ch_node *x, double mean, double deviation,
                                         uint64_t seed);

/* ch_bernoulli and ch_bernoulli_like return 1 with probability p, else 0, in any arithmetic
 * dtype, bool included. */
CH_API ch_node *ch_bernoulli(ch_step *s, ch_dtype dtype, ch_shape shape, double p,
                             uint64_t seed);
CH_API ch_node *ch_bernoulli_like(ch_node *x, double p, uint64_t seed);

/* ch_random_integers and ch_random_integers_like return integers in [lo, hi), all with the same
 * probability. The dtype is i8, u8, i32 or i64; lo < hi. */
CH_API ch_node *ch_random_integers(ch_step *s, ch_dtype dtype, ch_shape shape, int64_t lo,
                                   int64_t hi, uint64_t seed);
CH_API ch_node *ch_random_integers_like(ch_node *x, ch_dtype dtype, int64_t lo, int64_t hi,
                                        uint64_t seed);

/* Sets each element of x to 0 with probability `rate`, in [0, 1), and divides the others by 1 -
 * rate. The gradient draws the same elements again, so no mask is stored. A rate of 0 returns x
 * itself. */
CH_API ch_node *ch_dropout(ch_node *x, double rate, uint64_t seed);

/* Returns the rows of x (axis 0) in random order. */
CH_API ch_node *ch_shuffle(ch_node *x, uint64_t seed);

#endif
