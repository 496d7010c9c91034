/* kernel/block.h -- arithmetic on blocks: n contiguous elements at a time.
 *
 * A block function is the whole of an elementwise op for one element type. The op's kernel and
 * a fused chain of ops (ops/fused.c) call the same one, so both give the same bits.
 *
 * What they do at the edges:
 *   - Integers wrap around. Division by zero (div, floordiv, mod) gives 0 and does not trap; the
 *     smallest number divided by -1 is itself.
 *   - div of integers drops the fraction; floordiv and mod round toward minus infinity, of
 *     floats as numpy does.
 *   - minimum and maximum are NaN if either side is.
 *   - float to integer drops the fraction; what is out of range goes to the nearer end, NaN to
 * 0. Integer to integer wraps.
 *   - f64 functions are libm's. Those of f32 are in kernel/math32.h, which says how exact they
 * are.
 *
 * The output may be exactly one of the inputs if its elements have as many bytes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_BLOCK_H
#define KERNEL_BLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "cohort/shape.h"
#include "kernel/simd.h"

/* The same type as graph/op.h has. */
typedef void (*ch_block_fn)(int64_t n, const void *const *in, void *out, const double *param);

/* Each of n elements, `stride` elements apart, `times` times in a row: how a scalar or a
 * column becomes a block. */
typedef void (*ch_repeat_fn)(int64_t n, int64_t times, const void *from, int64_t stride,
                             void *to);

/* clang-format off */
/* All of ARITH but bool: f32 f64 i8 i32 i64 u8. */
#define CH_BLOCKS_UNARY(X)  X(neg) X(abs) X(sign) X(square) X(relu)
#define CH_BLOCKS_BINARY(X) X(add) X(sub) X(mul) X(div) X(floordiv) X(mod) X(minimum) \
                            X(maximum) X(relu_mask)
/* param: least and most. */
#define CH_BLOCKS_PARAM(X) X(clip)

/* f32 and f64. */
#define CH_BLOCKS_FLOAT_UNARY(X)                                                              \
    X(sqrt) X(rsqrt) X(exp) X(expm1) X(log) X(log1p) X(tanh) X(sigmoid) X(erf)                \
    X(floor) X(ceil) X(round) X(gelu) X(gelu_tanh) X(silu) X(softplus)
#define CH_BLOCKS_FLOAT_WAVE(X)   X(sin) X(cos)
#define CH_BLOCKS_FLOAT_BINARY(X) X(pow)
/* param: alpha. */
#define CH_BLOCKS_FLOAT_PARAM(X) X(leaky_relu) X(elu)

/* Every type but strings; bool results. */
#define CH_BLOCKS_COMPARE(X)                                                                   \
    X(equal) X(not_equal) X(less) X(less_equal) X(greater) X(greater_equal)
/* Every type but strings; input 0 is bool. */
#define CH_BLOCKS_SELECT(X) X(select)
/* Every type but strings; no inputs. param: the value, as the type holds it. */
#define CH_BLOCKS_FILL(X) X(fill)

/* Bool. */
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
    /* cast[from][to]. A 16-bit float is CH_F32 on both sides, except that of F64, I32, I64, U32
     * and U64 to a 16-bit float: that gives f32 rounded to odd, so that rounding it to 16
     * bits is as if it were rounded once. */
    ch_block_fn  cast[CH_DTYPE_COUNT][CH_DTYPE_COUNT];
    ch_block_fn  widen[CH_DTYPE_COUNT];  /* BF16 and F16: to f32 */
    ch_block_fn  narrow[CH_DTYPE_COUNT]; /* f32 to it: to nearest, ties to even */
    ch_block_fn  round[CH_DTYPE_COUNT];  /* f32 to f32, the value that narrow and widen give */
    ch_repeat_fn repeat[9];              /* by the bytes of an element: 1, 2, 4, 8 */
} ch_block_table;

CH_SIMD_DECLARE(ch_block_table, ch__block_table)

/* The table of the level in use; and of any level up to ch__simd_best, for tests. */
const ch_block_table *ch__blocks(void);
const ch_block_table *ch__blocks_at(ch_simd level);
/* How many additions an element costs, roughly: for cutting work into tiles. */
int ch__block_cost(ch_block_fn fn);

#endif
