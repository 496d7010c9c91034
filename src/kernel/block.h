/* kernel/block.h -- arithmetic on blocks: n contiguous elements at a time.
 *
 * A block function is the complete implementation of an elementwise op for an element type. The
 * kernel of the op and a fused chain of ops (ops/fused.c) call the same function, so both give
 * the same bits.
 *
 * Edge cases:
 *   - Integers wrap around. Division by zero (div, floordiv, mod) gives 0 and does not trap.
 *     The smallest number divided by -1 gives itself.
 *   - div of integers drops the fraction. floordiv and mod round toward minus infinity; for
 *     floats they follow numpy.
 *   - minimum and maximum give NaN if either side is NaN.
 *   - A cast from float to integer drops the fraction. A value out of range gives the nearer
 *     end of the range, and NaN gives 0. A cast from integer to integer wraps.
 *   - f64 functions come from libm. f32 functions come from kernel/math32.h, which states their
 *     errors.
 *
 * The output may be the same array as an input if their elements have the same size in bytes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_BLOCK_H
#define KERNEL_BLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "cohort/shape.h"
#include "kernel/simd.h"

/* The same type as in graph/op.h. */
typedef void (*ch_block_fn)(int64_t n, const void *const *in, void *out, const double *param);

/* Writes each of n elements, which are `stride` elements apart, `times` times in a row. Turns a
 * scalar or a column into a block. */
typedef void (*ch_repeat_fn)(int64_t n, int64_t times, const void *from, int64_t stride,
                             void *to);

/* clang-format off */
/* For f32 f64 i8 i32 i64 u8. */
#define CH_BLOCKS_UNARY(X)  X(neg) X(abs) X(sign) X(square) X(relu)
#define CH_BLOCKS_BINARY(X) X(add) X(sub) X(mul) X(div) X(floordiv) X(mod) X(minimum) \
                            X(maximum) X(relu_mask)
/* param: lower and upper bound. */
#define CH_BLOCKS_PARAM(X) X(clip)

/* For f32 and f64. */
#define CH_BLOCKS_FLOAT_UNARY(X)                                                              \
    X(sqrt) X(rsqrt) X(exp) X(expm1) X(log) X(log1p) X(tanh) X(sigmoid) X(erf)                \
    X(floor) X(ceil) X(round) X(gelu) X(gelu_tanh) X(silu) X(softplus)
#define CH_BLOCKS_FLOAT_WAVE(X)   X(sin) X(cos)
#define CH_BLOCKS_FLOAT_BINARY(X) X(pow)
/* param: alpha. */
#define CH_BLOCKS_FLOAT_PARAM(X) X(leaky_relu) X(elu)

/* For every type except strings; the result is bool. */
#define CH_BLOCKS_COMPARE(X)                                                                   \
    X(equal) X(not_equal) X(less) X(less_equal) X(greater) X(greater_equal)
/* For every type except strings; input 0 is bool. */
#define CH_BLOCKS_SELECT(X) X(select)
/* For every type except strings; no inputs. param: the value, which is converted to the
 * type. */
#define CH_BLOCKS_FILL(X) X(fill)

/* For bool. */
#define CH_BLOCKS_LOGIC(X) X(logical_and) X(logical_or) X(logical_xor) X(logical_not)

#define CH_BLOCKS(X)                                                                          \
    CH_BLOCKS_UNARY(X) CH_BLOCKS_BINARY(X) CH_BLOCKS_PARAM(X) CH_BLOCKS_FLOAT_UNARY(X)        \
    CH_BLOCKS_FLOAT_WAVE(X) CH_BLOCKS_FLOAT_BINARY(X) CH_BLOCKS_FLOAT_PARAM(X)                \
    CH_BLOCKS_COMPARE(X) CH_BLOCKS_SELECT(X) CH_BLOCKS_FILL(X) CH_BLOCKS_LOGIC(X)
/* clang-format on */

#define CH_BLOCK_CODE(name) CH_BLOCK_##name,
typedef enum ch_block_code { CH_BLOCKS(CH_BLOCK_CODE) CH_BLOCK_COUNT } ch_block_code;
#undef CH_BLOCK_CODE

typedef struct ch_block_table {
    ch_block_fn fn[CH_BLOCK_COUNT][CH_DTYPE_COUNT];
    /* cast[from][to]. A 16-bit float source must be widened first and uses the row of CH_F32. A
     * cast to a 16-bit float gives f32, which the caller must narrow. From F64, I32, I64, U32
     * and U64 this f32 is rounded to odd, so that narrowing gives the same bits as a single
     * rounding. */
    ch_block_fn  cast[CH_DTYPE_COUNT][CH_DTYPE_COUNT];
    ch_block_fn  widen[CH_DTYPE_COUNT];  /* from BF16 and F16 to f32 */
    ch_block_fn  narrow[CH_DTYPE_COUNT]; /* from f32, to nearest, ties to even */
    ch_block_fn  round[CH_DTYPE_COUNT];  /* f32 to f32: narrow, then widen */
    ch_repeat_fn repeat[9];              /* indexed by bytes of an element: 1, 2, 4, 8 */
} ch_block_table;

CH_SIMD_DECLARE(ch_block_table, ch__block_table)

/* Return the block functions of the SIMD level in use, and of a given level up to ch__simd_best
 * (for tests). */
const ch_block_table *ch__blocks(void);
const ch_block_table *ch__blocks_at(ch_simd level);
/* Returns the approximate cost of an element, in additions. Used to cut work into tiles. */
int ch__block_cost(ch_block_fn fn);

#endif
