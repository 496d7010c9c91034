/* kernel/hyper.h -- the hyperparameters that an update rule needs in a step.
 *
 * A plain function of numbers, so that every caller that applies a rule can use it: the op
 * `hyper` or a parameter server. It computes in f64, because in f32 the powers of Adam's betas
 * lose most of their digits in the first steps.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_HYPER_H
#define KERNEL_HYPER_H

#include "kernel/rule.h"

/* The constants of a rule. 0 means the number 0, not a default. */
typedef struct ch_rule_numbers {
    double beta1, beta2, epsilon, momentum;
    double power, l1, l2, shrink, beta; /* FTRL only */
    double decay;
    double clip_value, clip_norm, clip_global_norm; /* 0: no clipping */
    double scale;                                   /* factor of the gradient */
} ch_rule_numbers;

/* The inputs of a rule that change in each step. */
typedef struct ch_rule_run {
    int64_t iterations; /* steps that were applied before this one */
    double  rate;
    bool    apply;
    double  divisor; /* the gradient is divided by it: the loss scale */
    /* Sums of squares of the gradient of this variable and of all gradients, before scaling. */
    double squares, squares_of_global;
} ch_rule_run;

/* Fills `out` with CH_HYPERS elements of `dtype` (f32 or f64) for the rules of
 * kernel/rule.h. */
void ch__hyper_fill(const ch_rule *rule, ch_dtype dtype, const ch_rule_numbers *set,
                    const ch_rule_run *run, void *out);

#endif
