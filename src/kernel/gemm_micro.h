/* kernel/gemm_micro.h -- the innermost block of our own matrix multiply, for each SIMD level.
 *
 * A block is a few rows of C by one or two vectors. Its sums run over k in order, product after
 * product, so they do not depend on how C is cut. They are fused multiply-adds if the level has
 * that instruction. So here, unlike in all other kernels, the bits depend on the level.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_GEMM_MICRO_H
#define KERNEL_GEMM_MICRO_H

#include <stdbool.h>
#include <stdint.h>

#include "cohort/shape.h"
#include "kernel/simd.h"

enum { CH_MICRO_ROWS = 12, CH_MICRO_VECTORS = 2 }; /* maximum size of a block */

/* Compute types. Other types are widened to one of them when they are packed. */
typedef enum ch_micro_type {
    CH_MICRO_F32,
    CH_MICRO_F64,
    CH_MICRO_U32, /* integers: modulo 2^32 and 2^64 */
    CH_MICRO_U64,
    CH_MICRO_TYPES
} ch_micro_type;

enum { CH_MICRO_PREFETCH = 16 }; /* steps of k between two prefetches */

/* A call of a block function. The operands are a[i * a_row + p * a_col], b[p * b_row + j] and
 * c[i * c_row + j]. Either a_row or a_col must be 1. Every CH_MICRO_PREFETCH steps of k the
 * block prefetches two cache lines of the panel that will be packed next. */
typedef struct ch_micro_call {
    int64_t     k;
    const void *a, *b;
    void       *c;
    int64_t     a_row, a_col, b_row, c_row;  /* in elements */
    const char *prefetch;                    /* address of the first line; need not be valid */
    int64_t     prefetch_gap, prefetch_step; /* bytes to the second line; to the next pair */
    bool        add;                         /* add the product to c */
} ch_micro_call;

typedef void (*ch_micro_fn)(const ch_micro_call *x);

/* Packs a panel: to[c * to_col + r] = from[r * row + c * col], widened. Either row or col must
 * be 1. */
typedef void (*ch_pack_fn)(int64_t rows, int64_t cols, const void *from, int64_t row,
                           int64_t col, void *to, int64_t to_col);
/* Copies rows of results to C, or adds them to C. */
typedef void (*ch_unpack_fn)(int64_t rows, int64_t cols, const void *from, int64_t from_row,
                             void *to, int64_t to_row, bool add);

/* How the elements of a dtype are computed. */
typedef struct ch_micro_move {
    ch_micro_type type;
    int           bytes;   /* of an element of `type` */
    bool          is_same; /* the stored type is the compute type */
    ch_pack_fn    pack;    /* NULL: the dtype is not supported */
    ch_unpack_fn  unpack;
} ch_micro_move;

typedef struct ch_micro {
    int vector_bytes;
    int rows; /* of a full block: as many as the registers hold */
    /* Indexed by [type][rows - 1][vectors - 1]. */
    ch_micro_fn   fn[CH_MICRO_TYPES][CH_MICRO_ROWS][CH_MICRO_VECTORS];
    ch_micro_move move[CH_DTYPE_COUNT];
} ch_micro;

CH_SIMD_DECLARE(ch_micro, ch__micro)

#endif
