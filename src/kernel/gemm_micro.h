/* kernel/gemm_micro.h -- the innermost block of our own matrix multiply, for each level of
 * vector instructions.
 *
 * A block is a few rows of C by one or two vectors. Its sums run over k in order, one product
 * after the other, so they do not depend on how C was cut. They are fused multiply-adds where
 * the level has them: here, unlike elsewhere, the bits depend on the level.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_GEMM_MICRO_H
#define KERNEL_GEMM_MICRO_H

#include <stdbool.h>
#include <stdint.h>

#include "cohort/shape.h"
#include "kernel/simd.h"

enum { CH_MICRO_ROWS = 12, CH_MICRO_VECTORS = 2 }; /* at most */

/* Types that are computed in; the others are widened to one of them when packed. */
typedef enum ch_micro_type {
    CH_MICRO_F32,
    CH_MICRO_F64,
    CH_MICRO_U32, /* integers: modulo 2^32 and 2^64 */
    CH_MICRO_U64,
    CH_MICRO_TYPES
} ch_micro_type;

enum { CH_MICRO_AHEAD = 16 }; /* steps of k from one look ahead to the next */

/* Where the operands of a block are: a[i * a_row + p * a_col], b[p * b_row + j], c[i * c_row + j]. Of
 * a_row and a_col one is 1. Meanwhile two lines at a time of what will be packed next are asked for. */
typedef struct ch_micro_call {
    int64_t     k;
    const void *a, *b;
    void       *c;
    int64_t     a_row, a_col, b_row, c_row; /* in elements */
    const char *ahead;                      /* any address */
    int64_t     ahead_gap, ahead_step;      /* in bytes: to the other line, to the next two */
    bool        add;                        /* to what c holds */
} ch_micro_call;

typedef void (*ch_micro_fn)(const ch_micro_call *x);

/* A panel: to[c * to_col + r] = from[r * row + c * col], widened. Of row and col one is 1. */
typedef void (*ch_pack_fn)(int64_t rows, int64_t cols, const void *from, int64_t row,
                           int64_t col, void *to, int64_t to_col);
/* Rows of results to where they belong, or added to what is there. */
typedef void (*ch_unpack_fn)(int64_t rows, int64_t cols, const void *from, int64_t from_row,
                             void *to, int64_t to_row, bool add);

/* How the elements of a dtype are computed with. */
typedef struct ch_micro_move {
    ch_micro_type type;
    int           bytes;   /* of an element of `type` */
    bool          is_same; /* as stored: nothing to widen */
    ch_pack_fn    pack;    /* NULL: not at all */
    ch_unpack_fn  unpack;
} ch_micro_move;

typedef struct ch_micro {
    int         vector_bytes;
    int         rows; /* of a full block: what the registers hold */
    ch_micro_fn fn[CH_MICRO_TYPES][CH_MICRO_ROWS]
                  [CH_MICRO_VECTORS]; /* [..][rows-1][vectors-1] */
    ch_micro_move move[CH_DTYPE_COUNT];
} ch_micro;

CH_SIMD_DECLARE(ch_micro, ch__micro)

#endif
