/* kernel/gemm_micro.h -- the innermost block of our own matrix multiply, for each level of
 * vector instructions.
 *
 * A block is a few rows of C by one or two vectors. Its sums run over k in order, one product
 * after the other, never contracted: so every level gives the same bits.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_GEMM_MICRO_H
#define KERNEL_GEMM_MICRO_H

#include <stdbool.h>
#include <stdint.h>

#include "cohort/shape.h"
#include "kernel/simd.h"

enum { CH_MICRO_ROWS = 6, CH_MICRO_VECTORS = 2 };

/* Types that are computed in; the others are widened to one of them when packed. */
typedef enum ch_micro_type {
    CH_MICRO_F32,
    CH_MICRO_F64,
    CH_MICRO_U32, /* integers: modulo 2^32 and 2^64 */
    CH_MICRO_U64,
    CH_MICRO_TYPES
} ch_micro_type;

/* Where the operands of a block are: a[i * a_row + p * a_col], b[p * b_row + j], c[i * c_row + j]. */
typedef struct ch_micro_call {
    int64_t     k;
    const void *a, *b;
    void       *c;
    int64_t     a_row, a_col, b_row, c_row; /* in elements */
    bool        add;                        /* to what c holds */
} ch_micro_call;

typedef void (*ch_micro_fn)(const ch_micro_call *x);

/* to[r * to_row + c * to_col] = from[r * from_row + c * from_col], widened. */
typedef void (*ch_widen_fn)(int64_t rows, int64_t cols, const void *from, int64_t from_row,
                            int64_t from_col, void *to, int64_t to_row, int64_t to_col);
/* Rows of results to where they belong, or added to what is there. */
typedef void (*ch_narrow_fn)(int64_t rows, int64_t cols, const void *from, int64_t from_row,
                             void *to, int64_t to_row, bool add);

/* How the elements of a dtype are computed with. */
typedef struct ch_micro_move {
    ch_micro_type type;
    int           bytes;   /* of an element of `type` */
    bool          is_same; /* as stored: nothing to widen */
    ch_widen_fn   widen;   /* NULL: not at all */
    ch_narrow_fn  narrow;
} ch_micro_move;

typedef struct ch_micro {
    int         vector_bytes;
    ch_micro_fn fn[CH_MICRO_TYPES][CH_MICRO_ROWS]
                  [CH_MICRO_VECTORS]; /* [..][rows-1][vectors-1] */
    ch_micro_move move[CH_DTYPE_COUNT];
} ch_micro;

CH_SIMD_DECLARE(ch_micro, ch__micro)

#endif
