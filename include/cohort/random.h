/* cohort/random.h -- random numbers in a step.
 *
 *     ch_node *noise = ch_random_normal_like(x, 0, 0.1, 0);
 *     ch_node *y = ch_dropout(ch_add(x, noise), 0.5, 0);
 *
 * Numbers have no state: each is a function of the run's seed, the op's place in the recording,
 * the step's number, the replica and the element's index. So a step that is run again draws the
 * same numbers, the next step and the next replica draw others, and threads make no difference.
 *
 *   - `seed` is the op's own and part of its key; 0 will do. Two ops differ even if their seeds
 *     are equal.
 *   - Sources take the step and a shape of numbers. The forms ending in _like take the sizes of
 *     a node, its rows included, and, where none is named, its dtype.
 *   - bf16 and f16 numbers are f32 ones, rounded.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_RANDOM_H
#define COHORT_RANDOM_H

#include "cohort/step.h"

/* Floats, uniform in [lo, hi); lo < hi. */
CH_API ch_node *ch_random_uniform(ch_step *s, ch_dtype dtype, ch_shape shape, double lo,
                                  double hi, uint64_t seed);
CH_API ch_node *ch_random_uniform_like(ch_node *x, double lo, double hi, uint64_t seed);

/* Floats of a normal distribution; the deviation is not negative. */
CH_API ch_node *ch_random_normal(ch_step *s, ch_dtype dtype, ch_shape shape, double mean,
                                 double deviation, uint64_t seed);
CH_API ch_node *ch_random_normal_like(ch_node *x, double mean, double deviation, uint64_t seed);

/* The same, given that it lies within two deviations of its mean. */
CH_API ch_node *ch_truncated_normal(ch_step *s, ch_dtype dtype, ch_shape shape, double mean,
                                    double deviation, uint64_t seed);
CH_API ch_node *ch_truncated_normal_like(ch_node *x, double mean, double deviation,
                                         uint64_t seed);

/* 1 with probability p, else 0; of any arithmetic dtype, bool too. */
CH_API ch_node *ch_bernoulli(ch_step *s, ch_dtype dtype, ch_shape shape, double p,
                             uint64_t seed);
CH_API ch_node *ch_bernoulli_like(ch_node *x, double p, uint64_t seed);

/* Whole numbers in [lo, hi), each as likely as the others: i8, u8, i32 or i64; lo < hi. */
CH_API ch_node *ch_random_integers(ch_step *s, ch_dtype dtype, ch_shape shape, int64_t lo,
                                   int64_t hi, uint64_t seed);
CH_API ch_node *ch_random_integers_like(ch_node *x, ch_dtype dtype, int64_t lo, int64_t hi,
                                        uint64_t seed);

/* Each element of x is 0 with probability `rate`, in [0, 1), else divided by 1 - rate. The
 * gradient draws the same elements again; nothing is kept for it. A rate of 0 gives x itself.
 */
CH_API ch_node *ch_dropout(ch_node *x, double rate, uint64_t seed);

/* The rows of x (axis 0) in random order. */
CH_API ch_node *ch_shuffle(ch_node *x, uint64_t seed);

#endif
