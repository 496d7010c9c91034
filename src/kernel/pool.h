/* kernel/pool.h -- max and mean pooling of images (h, w, c).
 *
 * Each function computes an image, in f32 or f64, with all channels side by side. Windows are
 * cut off at the edges of the image: pixels outside do not count. Among equal elements the
 * first is the largest; NaN is larger than all numbers. The caller must zero the results that
 * are sums (the gradients).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_POOL_H
#define KERNEL_POOL_H

#include <stdint.h>

#include "cohort/shape.h"
#include "kernel/simd.h"

typedef struct ch_pool_dims {
    int64_t h, w, c, kh, kw, oh, ow;
    int64_t stride[2], pad[2];
} ch_pool_dims;

typedef enum ch_pool_kind {
    CH_POOL_MAX,       /* y from x */
    CH_POOL_MAX_PICK,  /* v at the position of the largest x; from x and v */
    CH_POOL_MAX_GRAD,  /* dx from x and dy */
    CH_POOL_MEAN,      /* y from x */
    CH_POOL_MEAN_GRAD, /* dx from dy */
    CH_POOL_KINDS
} ch_pool_kind;

typedef void (*ch_pool_fn)(const ch_pool_dims *d, const void *a, const void *b, void *out);

typedef struct ch_pool_table {
    ch_pool_fn fn[CH_POOL_KINDS][2]; /* [kind][f32, f64] */
} ch_pool_table;

CH_SIMD_DECLARE(ch_pool_table, ch__pool_table)
/* Returns the function for f32 or f64 at the SIMD level in use. */
ch_pool_fn ch__pool(ch_pool_kind kind, ch_dtype dtype);

#endif
