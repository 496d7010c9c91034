/* kernel/hyper.h -- the numbers that an update rule needs in a run, from those that change.
 *
 * A plain function of numbers, so that whoever applies a rule can call it: the op `hyper`, or a
 * server of parameters. All of it is f64: the powers of Adam's betas lose most of their digits
 * in f32 in the first steps.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_HYPER_H
#define KERNEL_HYPER_H

#include "kernel/rule.h"

/* What a rule is told once and for all. Zero means 0 here, not a default. */
typedef struct ch_rule_numbers {
    double beta1, beta2, epsilon, momentum;
    double power, l1, l2, shrink, beta; /* FTRL */
    double decay;
    double clip_value, clip_norm, clip_global_norm; /* 0: none */
    double scale;                                   /* of the gradient */
} ch_rule_numbers;

/* ... and what it is told in each run. */
typedef struct ch_rule_run {
    int64_t iterations; /* steps that were applied before this one */
    double  rate;
    bool    apply;
    double  divisor;                    /* of the gradient: the loss scale */
    double  squares, squares_of_global; /* of the gradient as it is */
} ch_rule_run;

/* CH_HYPERS elements of `dtype` (f32 or f64) for the rules of kernel/rule.h. */
void ch__hyper_fill(const ch_rule *rule, ch_dtype dtype, const ch_rule_numbers *set,
                    const ch_rule_run *run, void *out);

#endif
