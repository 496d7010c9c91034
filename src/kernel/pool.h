/* kernel/pool.h -- the largest and the mean under a window, for images (h, w, c).
 *
 * Each function does one image, in f32 or f64, all channels side by side. Windows are cut off
 * at the edges of the image: what is outside is not seen and does not count. The largest is the
 * first of those that are equal, and NaN if there is one. Results that are sums are zeroed by
 * the caller.
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
    CH_POOL_MAX,       /* y of x */
    CH_POOL_MAX_PICK,  /* v at where x is largest, of x and v */
    CH_POOL_MAX_GRAD,  /* dx of x and dy */
    CH_POOL_MEAN,      /* y of x */
    CH_POOL_MEAN_GRAD, /* dx of dy */
    CH_POOL_KINDS
} ch_pool_kind;

typedef void (*ch_pool_fn)(const ch_pool_dims *d, const void *a, const void *b, void *out);

typedef struct ch_pool_table {
    ch_pool_fn fn[CH_POOL_KINDS][2]; /* [kind][f32, f64] */
} ch_pool_table;

CH_SIMD_DECLARE(ch_pool_table, ch__pool_table)
/* Of f32 or f64, for the level in use. */
ch_pool_fn ch__pool(ch_pool_kind kind, ch_dtype dtype);

#endif
