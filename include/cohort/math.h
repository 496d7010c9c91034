/* cohort/math.h -- math ops: elementwise arithmetic, functions, comparisons and reductions.
 *
 * A math op computes a node from the elements of other nodes.
 *
 *     ch_node *y = ch_relu(ch_add(ch_mul(x, w), b));
 *     ch_node *loss = ch_mean_all(ch_square(ch_sub(y, target)));
 *
 *   - The step owns every node: there is nothing to free. The thread that records the step
 *     calls the ops. cohort/step.h has the rules for nodes and errors.
 *   - Elementwise ops broadcast as in numpy. The inputs must have the same dtype, and the
 *     result has it too, unless a comment below says otherwise. The ops accept f32, f64, bf16
 *     and f16, and i8, i32, i64 and u8 where integers make sense.
 *   - A chain of elementwise ops runs as a single kernel. The bits are the same as op by op.
 *   - Integers wrap around. Integer division by zero gives 0. Floats follow IEEE 754: NaN and
 *     infinities propagate.
 *   - Functions of f32 are within 4 units in the last place, most within 1. Functions of f64
 *     are those of libm.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_MATH_H
#define COHORT_MATH_H

#include "cohort/step.h"

/* ---- arithmetic ---- */

CH_API ch_node *ch_add(ch_node *a, ch_node *b);
CH_API ch_node *ch_sub(ch_node *a, ch_node *b);
CH_API ch_node *ch_mul(ch_node *a, ch_node *b);
/* Returns a / b. Floats only; for integers use ch_floordiv, or cast them first. */
CH_API ch_node *ch_div(ch_node *a, ch_node *b);
/* ch_floordiv returns the quotient rounded toward minus infinity; ch_mod returns its remainder,
 * which has the sign of b. Both as in numpy. */
CH_API ch_node *ch_floordiv(ch_node *a, ch_node *b);
CH_API ch_node *ch_mod(ch_node *a, ch_node *b);
CH_API ch_node *ch_pow(ch_node *a, ch_node *b); /* floats only */
/* ch_minimum and ch_maximum return the smaller and the larger of two elements; NaN if either is
 * NaN. Where both are equal, the gradient goes to a. */
CH_API ch_node *ch_minimum(ch_node *a, ch_node *b);
CH_API ch_node *ch_maximum(ch_node *a, ch_node *b);

CH_API ch_node *ch_neg(ch_node *x);
CH_API ch_node *ch_abs(ch_node *x);
CH_API ch_node *ch_sign(ch_node *x); /* -1, 0 or 1; NaN for NaN */
CH_API ch_node *ch_square(ch_node *x);
/* Returns x limited to the range [least, most]. */
CH_API ch_node *ch_clip(ch_node *x, double least, double most);

/* ---- functions of floats ---- */

CH_API ch_node *ch_sqrt(ch_node *x);
CH_API ch_node *ch_rsqrt(ch_node *x); /* 1 / sqrt(x) */
CH_API ch_node *ch_exp(ch_node *x);
CH_API ch_node *ch_expm1(ch_node *x); /* exp(x) - 1, accurate near 0 */
CH_API ch_node *ch_log(ch_node *x);
CH_API ch_node *ch_log1p(ch_node *x); /* log(1 + x), accurate near 0 */
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
CH_API ch_node *ch_leaky_relu(ch_node *x, double alpha); /* x, or alpha * x below 0 */
CH_API ch_node *ch_elu(ch_node *x, double alpha); /* x, or alpha * (exp(x) - 1) below 0 */
/* The errors of ch_gelu, ch_gelu_tanh and ch_silu are bounded. In f32 they are at most 4 units
 * in the last place over the whole range, subnormal results included; in f64 at most 5 + 5 *
 * x^2 units. Their gradients in f32 differ from the exact slopes, which lie between -0.2 and
 * 1.2, by at most 2e-6. */
CH_API ch_node *ch_gelu(ch_node *x);      /* 0.5 * x * (1 + erf(x / sqrt(2))) */
CH_API ch_node *ch_gelu_tanh(ch_node *x); /* the tanh approximation of GELU, as in GPT-2 */
CH_API ch_node *ch_silu(ch_node *x);      /* x * sigmoid(x), also called swish */
CH_API ch_node *ch_softplus(ch_node *x);  /* log(1 + exp(x)) */

/* ---- comparisons and logic ---- */

/* These six functions compare two nodes of the same dtype, any except strings. The result is
 * bool. A comparison with NaN is false, except ch_not_equal, which is true. */
CH_API ch_node *ch_equal(ch_node *a, ch_node *b);
CH_API ch_node *ch_not_equal(ch_node *a, ch_node *b);
CH_API ch_node *ch_less(ch_node *a, ch_node *b);
CH_API ch_node *ch_less_equal(ch_node *a, ch_node *b);
CH_API ch_node *ch_greater(ch_node *a, ch_node *b);
CH_API ch_node *ch_greater_equal(ch_node *a, ch_node *b);
/* These four functions take bool nodes. The result is bool. */
CH_API ch_node *ch_logical_and(ch_node *a, ch_node *b);
CH_API ch_node *ch_logical_or(ch_node *a, ch_node *b);
CH_API ch_node *ch_logical_xor(ch_node *a, ch_node *b);
CH_API ch_node *ch_logical_not(ch_node *x);
/* Returns a where `condition` (bool) is true, else b, as tf.where. All three broadcast. */
CH_API ch_node *ch_select(ch_node *condition, ch_node *a, ch_node *b);

/* Returns x converted to another dtype. Float to integer drops the fraction; a value out of
 * range becomes the nearest limit of the type, and NaN becomes 0. Integer to integer wraps. To
 * bool: x != 0. */
CH_API ch_node *ch_cast(ch_node *x, ch_dtype dtype);

/* ---- reductions ----
 *
 * Reductions fold the n listed axes. No axis may be listed twice. If `keep` is true, these axes
 * stay with size 1. The functions ending in _all fold all axes, to a scalar. With n = 0 nothing
 * is reduced.
 *
 *     ch_node *per_row = ch_sum(x, 1, (int[]){-1}, false);      // (rows, 10) -> (rows)
 *
 * Floats are added in blocks, and the sums of the blocks are added in f64. Sums and products of
 * i8, u8, i32 and i64 wrap, as in numpy. If any element is NaN, the maximum and the minimum are
 * NaN. Over no elements, the sum is 0, the product 1, the mean NaN, the maximum -inf (integers:
 * the lowest value of the type) and the minimum +inf (integers: the highest value). */

CH_API ch_node *ch_sum(ch_node *x, int n, const int *axis, bool keep);
CH_API ch_node *ch_sum_all(ch_node *x);
CH_API ch_node *ch_mean(ch_node *x, int n, const int *axis, bool keep); /* floats only */
CH_API ch_node *ch_mean_all(ch_node *x);                                /* floats only */
CH_API ch_node *ch_prod(ch_node *x, int n, const int *axis, bool keep);
CH_API ch_node *ch_prod_all(ch_node *x);
/* ch_max and ch_min return the maximum and the minimum. Elements that are equal to it share the
 * gradient equally. */
CH_API ch_node *ch_max(ch_node *x, int n, const int *axis, bool keep);
CH_API ch_node *ch_max_all(ch_node *x);
CH_API ch_node *ch_min(ch_node *x, int n, const int *axis, bool keep);
CH_API ch_node *ch_min_all(ch_node *x);
/* Returns log(sum(exp(x))), computed without overflow. Floats only. */
CH_API ch_node *ch_logsumexp(ch_node *x, int n, const int *axis, bool keep);
CH_API ch_node *ch_logsumexp_all(ch_node *x);
/* ch_any returns whether any element is true, ch_all whether every element is. Bool only. */
CH_API ch_node *ch_any(ch_node *x, int n, const int *axis, bool keep);
CH_API ch_node *ch_any_all(ch_node *x);
CH_API ch_node *ch_all(ch_node *x, int n, const int *axis, bool keep);
CH_API ch_node *ch_all_all(ch_node *x);

/* ---- along one axis ---- */

/* ch_argmax and ch_argmin return the index of the largest and of the smallest element along an
 * axis, as i64, without that axis. Among equal elements the first counts. If there are NaNs,
 * the result is the index of the first NaN. If the axis is empty, it is -1. */
CH_API ch_node *ch_argmax(ch_node *x, int axis);
CH_API ch_node *ch_argmin(ch_node *x, int axis);
/* Returns running sums: element i is the sum of elements 0 to i. `exclusive`: without element
 * i. `reverse`: from the end. */
CH_API ch_node *ch_cumsum(ch_node *x, int axis, bool exclusive, bool reverse);
/* ch_sort returns the elements in order; ch_argsort returns the indices (i64) that sort them.
 * Equal elements keep their order. NaN counts as the largest value. Both also accept bool. */
CH_API ch_node *ch_sort(ch_node *x, int axis, bool descending);
CH_API ch_node *ch_argsort(ch_node *x, int axis, bool descending);
/* Writes the k largest elements along the last axis, largest first, and their indices (i64).
 * Among equal elements the first counts. `values` or `indices` may be NULL. */
CH_API void ch_top_k(ch_node *x, int64_t k, ch_node **values, ch_node **indices);

#endif
