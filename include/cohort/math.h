/* cohort/math.h -- ops on numbers: elementwise ones, and reductions.
 *
 *     ch_node *y = ch_relu(ch_add(ch_mul(x, w), b));
 *     ch_node *loss = ch_mean_all(ch_square(ch_sub(y, want)));
 *
 * Elementwise: sizes broadcast as in numpy; inputs have one dtype and so has the result, unless
 * said otherwise. Each works for f32, f64, bf16 and f16, and where it makes sense for i8, i32,
 * i64 and u8. Chains of them become one kernel with the same bits as one by one.
 *
 * Edges: integers wrap around; integer division by zero gives 0. Float results follow IEEE: NaN
 * and infinities go through. f32 functions are within 4 units in the last place, most within 1;
 * f64 ones are libm's.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_MATH_H
#define COHORT_MATH_H

#include "cohort/step.h"

/* ---- arithmetic ---- */

CH_API ch_node *ch_add(ch_node *a, ch_node *b);
CH_API ch_node *ch_sub(ch_node *a, ch_node *b);
CH_API ch_node *ch_mul(ch_node *a, ch_node *b);
CH_API ch_node *ch_div(ch_node *a,
                       ch_node *b); /* floats; of integers use ch_floordiv or cast */
/* Rounded toward minus infinity, and the remainder, which has the sign of b: as in numpy. */
CH_API ch_node *ch_floordiv(ch_node *a, ch_node *b);
CH_API ch_node *ch_mod(ch_node *a, ch_node *b);
CH_API ch_node *ch_pow(ch_node *a, ch_node *b); /* floats */
/* NaN if either is. Where both are equal the gradient goes to a. */
CH_API ch_node *ch_minimum(ch_node *a, ch_node *b);
CH_API ch_node *ch_maximum(ch_node *a, ch_node *b);

CH_API ch_node *ch_neg(ch_node *x);
CH_API ch_node *ch_abs(ch_node *x);
CH_API ch_node *ch_sign(ch_node *x); /* -1, 0 or 1; NaN of NaN */
CH_API ch_node *ch_square(ch_node *x);
/* x between least and most; their ends included. */
CH_API ch_node *ch_clip(ch_node *x, double least, double most);

/* ---- functions of floats ---- */

CH_API ch_node *ch_sqrt(ch_node *x);
CH_API ch_node *ch_rsqrt(ch_node *x); /* 1 / sqrt(x) */
CH_API ch_node *ch_exp(ch_node *x);
CH_API ch_node *ch_expm1(ch_node *x); /* exp(x) - 1, exact near 0 */
CH_API ch_node *ch_log(ch_node *x);
CH_API ch_node *ch_log1p(ch_node *x); /* log(1 + x), exact near 0 */
CH_API ch_node *ch_sin(ch_node *x);
CH_API ch_node *ch_cos(ch_node *x);
CH_API ch_node *ch_tanh(ch_node *x);
CH_API ch_node *ch_sigmoid(ch_node *x); /* 1 / (1 + exp(-x)) */
CH_API ch_node *ch_erf(ch_node *x);
CH_API ch_node *ch_floor(ch_node *x);
CH_API ch_node *ch_ceil(ch_node *x);
CH_API ch_node *ch_round(ch_node *x); /* half to even */

/* ---- activations ---- */

CH_API ch_node *ch_relu(ch_node *x);                     /* max(x, 0); integers too */
CH_API ch_node *ch_leaky_relu(ch_node *x, double alpha); /* x, or alpha x below 0 */
CH_API ch_node *ch_elu(ch_node *x, double alpha);        /* x, or alpha (exp(x) - 1) below 0 */
CH_API ch_node *ch_gelu(ch_node *x); /* x P(X < x), X normal: 0.5 x (1 + erf(x / sqrt 2)) */
CH_API ch_node *ch_gelu_tanh(ch_node *x); /* its approximation by tanh, as GPT-2 has it */
CH_API ch_node *ch_silu(ch_node *x);      /* x sigmoid(x), also called swish */
CH_API ch_node *ch_softplus(ch_node *x);  /* log(1 + exp(x)) */

/* ---- truth ---- */

/* bool results; of any dtype but strings. Nothing compares with NaN but not_equal. */
CH_API ch_node *ch_equal(ch_node *a, ch_node *b);
CH_API ch_node *ch_not_equal(ch_node *a, ch_node *b);
CH_API ch_node *ch_less(ch_node *a, ch_node *b);
CH_API ch_node *ch_less_equal(ch_node *a, ch_node *b);
CH_API ch_node *ch_greater(ch_node *a, ch_node *b);
CH_API ch_node *ch_greater_equal(ch_node *a, ch_node *b);
/* bool inputs and results. */
CH_API ch_node *ch_logical_and(ch_node *a, ch_node *b);
CH_API ch_node *ch_logical_or(ch_node *a, ch_node *b);
CH_API ch_node *ch_logical_xor(ch_node *a, ch_node *b);
CH_API ch_node *ch_logical_not(ch_node *x);
/* a where `condition` (bool) holds, else b; all three broadcast. */
CH_API ch_node *ch_select(ch_node *condition, ch_node *a, ch_node *b);

/* x as another dtype. Float to integer drops the fraction; what is out of range goes to the
 * nearer end and NaN to 0. Integer to integer wraps. To bool: whether it is not 0. */
CH_API ch_node *ch_cast(ch_node *x, ch_dtype dtype);

#endif
