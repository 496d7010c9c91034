/* kernel/rule_loops.c -- the loops of kernel/rule.h in f32 and f64; compiled for each SIMD
 * level.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stddef.h>

#include "kernel/rule.h"

#define T       float
#define SQRT    sqrtf
#define NAME(x) f32_##x
#include "kernel/rule_loops.inc"

#define T       double
#define SQRT    sqrt
#define NAME(x) f64_##x
#include "kernel/rule_loops.inc"

#define LOOPS(x)                                                                               \
    {                                                                                          \
        .update =                                                                              \
            {                                                                                  \
                [CH_RULE_SGD] = x##_sgd,                                                       \
                [CH_RULE_MOMENTUM] = x##_momentum,                                             \
                [CH_RULE_NESTEROV] = x##_nesterov,                                             \
                [CH_RULE_ADAGRAD] = x##_adagrad,                                               \
                [CH_RULE_RMSPROP] = x##_rmsprop,                                               \
                [CH_RULE_RMSPROP_MOMENTUM] = x##_rmsprop_momentum,                             \
                [CH_RULE_RMSPROP_CENTERED] = x##_rmsprop_centered,                             \
                [CH_RULE_RMSPROP_CENTERED_MOMENTUM] = x##_rmsprop_centered_momentum,           \
                [CH_RULE_ADAM] = x##_adam,                                                     \
                [CH_RULE_AMSGRAD] = x##_amsgrad,                                               \
                [CH_RULE_ADAMAX] = x##_adamax,                                                 \
                [CH_RULE_FTRL] = x##_ftrl,                                                     \
            },                                                                                 \
        .squares = x##_squares, .row = x##_row, .norms = x##_norms, .finish = x##_finish,      \
        .add = x##_add, .sum_squares = x##_sum_squares,                                        \
    }

const ch_rule_table CH_SIMD_NAME(ch__rule_table) = {LOOPS(f32), LOOPS(f64)};
