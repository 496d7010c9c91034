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
/* Errors of gelu, gelu_tanh and silu: in f32 at most 4 units in the last place over the whole range,
 * subnormal results included; in f64 at most 5 (1 + x^2) units. Their gradients in f32 differ from
 * the exact slopes, which lie between -0.2 and 1.2, by at most 2e-6. */
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

/* ---- reductions ----
 *
 * Over the n listed axes, none twice; `keep` leaves them with size 1. The _all forms reduce all
 * axes to a scalar. With n = 0 nothing is reduced.
 *
 *     ch_node *per_row = ch_sum(x, 1, (int[]){-1}, false);      // (rows, 10) -> (rows)
 *
 * Floats are added in pieces whose sums are added in f64; i8, u8, i32 and i64 wrap, as in
 * numpy. NaN anywhere makes the largest and the smallest NaN. Of nothing, the sum is 0, the
 * product 1, the mean NaN, the largest -inf (of integers the type's lowest), the smallest +inf
 * (its highest). */

CH_API ch_node *ch_sum(ch_node *x, int n, const int *axis, bool keep);
CH_API ch_node *ch_sum_all(ch_node *x);
CH_API ch_node *ch_mean(ch_node *x, int n, const int *axis, bool keep); /* floats; cast first */
CH_API ch_node *ch_mean_all(ch_node *x);
CH_API ch_node *ch_prod(ch_node *x, int n, const int *axis, bool keep);
CH_API ch_node *ch_prod_all(ch_node *x);
/* The gradient is shared by all that are equally large. */
CH_API ch_node *ch_max(ch_node *x, int n, const int *axis, bool keep);
CH_API ch_node *ch_max_all(ch_node *x);
CH_API ch_node *ch_min(ch_node *x, int n, const int *axis, bool keep);
CH_API ch_node *ch_min_all(ch_node *x);
/* log(sum(exp(x))), without overflow. Floats. */
CH_API ch_node *ch_logsumexp(ch_node *x, int n, const int *axis, bool keep);
CH_API ch_node *ch_logsumexp_all(ch_node *x);
/* Of bool. */
CH_API ch_node *ch_any(ch_node *x, int n, const int *axis, bool keep);
CH_API ch_node *ch_any_all(ch_node *x);
CH_API ch_node *ch_all(ch_node *x, int n, const int *axis, bool keep);
CH_API ch_node *ch_all_all(ch_node *x);

/* ---- along one axis ---- */

/* Where the largest (smallest) is, as i64 without that axis: the first of equals; the first NaN
 * if there is one; -1 if the axis is empty. */
CH_API ch_node *ch_argmax(ch_node *x, int axis);
CH_API ch_node *ch_argmin(ch_node *x, int axis);
/* Running sums: of all up to each element; exclusive: of all before it; reverse: from the end.
 */
CH_API ch_node *ch_cumsum(ch_node *x, int axis, bool exclusive, bool reverse);
/* Sorted, and the positions (i64) that would sort it. Equal ones keep their order; NaN counts
 * as largest. Of bool too. */
CH_API ch_node *ch_sort(ch_node *x, int axis, bool descending);
CH_API ch_node *ch_argsort(ch_node *x, int axis, bool descending);
/* The k largest of the last axis, the largest first, and their positions (i64); of equals the
 * first. Either of the results may be NULL. */
CH_API void ch_top_k(ch_node *x, int64_t k, ch_node **values, ch_node **indices);

#endif
