/* kernel/norm_loops.c -- the loops of kernel/norm.h in f32 and f64; compiled for each SIMD
 * level.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernel/math32.h"
#include "kernel/norm.h"

/* RUN: elements that are summed in their own type before the sum is added to an f64 total.
 * PART: elements of a buffer. */
enum { RUN = 4096, PART = 512 };

/* Return the larger number, or NaN if a or b is NaN. */
CH_SIMD_INLINE float f32_max(float a, float b)
{
    return ((b > a) | (b != b)) ? b : a;
}
CH_SIMD_INLINE double f64_max(double a, double b)
{
    return ((b > a) | (b != b)) ? b : a;
}

#define T       float
#define LANES   32
#define EXP     ch__exp32
#define NAME(x) f32_##x
#include "kernel/norm_loops.inc"

#define T       double
#define LANES   16
#define EXP     exp
#define NAME(x) f64_##x
#include "kernel/norm_loops.inc"

#define LOOPS(x)                                                                               \
    {                                                                                          \
        .softmax = x##_softmax, .log_softmax = x##_log_softmax,                                \
        .softmax_grad = x##_softmax_grad, .log_softmax_grad = x##_log_softmax_grad,            \
        .logsumexp = x##_logsumexp, .exp_grad = x##_exp_grad, .cross = x##_cross,              \
        .sum = x##_sum, .layer = x##_layer, .layer_grad = x##_layer_grad,                      \
        .moments = x##_moments, .dy_moments = x##_dy_moments, .scale = x##_scale,              \
        .mix = x##_mix, .flush = x##_flush, .from_f64 = x##_from_f64,                          \
    }

const ch_norm_table CH_SIMD_NAME(ch__norm_table) = {LOOPS(f32), LOOPS(f64)};
