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

/* c (rows, width) = or += a . b, where a[p * rows + i] and b[p * width + j] are packed. */
typedef void (*ch_micro_fn)(int64_t k, const void *a, const void *b, void *c, int64_t ldc,
                            bool add);

typedef struct ch_micro {
    int         vector_bytes;
    ch_micro_fn fn[CH_MICRO_TYPES][CH_MICRO_ROWS]
                  [CH_MICRO_VECTORS]; /* [type][rows-1][vectors-1] */
} ch_micro;

CH_SIMD_DECLARE(ch_micro, ch__micro)

#endif
