/* kernel/pool.c -- max and mean pooling; compiled for each SIMD level.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/pool.h"

enum { CHANNELS = 64 }; /* channels that are searched at a time */

/* The part of the image under a window: its first pixel, and its rows and columns. */
typedef struct view {
    int64_t first, rows, cols;
} view;

/* Clips the window [at, at + window) to [0, size). Sets its first index and its size. */
CH_SIMD_INLINE void clip(int64_t at, int64_t window, int64_t size, int64_t *from, int64_t *n)
{
    int64_t to = at + window < size ? at + window : size;

    *from = at > 0 ? at : 0;
    *n = to - *from;
}

/* Returns the part of the image under the window of output o. */
CH_SIMD_INLINE view view_of(const ch_pool_dims *d, int64_t o)
{
    int64_t row, col;
    view    v;

    clip(o / d->ow * d->stride[0] - d->pad[0], d->kh, d->h, &row, &v.rows);
    clip(o % d->ow * d->stride[1] - d->pad[1], d->kw, d->w, &col, &v.cols);
    v.first = row * d->w + col;
    return v;
}

#define ELEMENT float
#define INDEX   int32_t
#define NAME(x) f32_##x
#include "kernel/pool.inc"

#define ELEMENT double
#define INDEX   int64_t
#define NAME(x) f64_##x
#include "kernel/pool.inc"

const ch_pool_table CH_SIMD_NAME(ch__pool_table) = {{
    [CH_POOL_MAX] = {f32_max, f64_max},
    [CH_POOL_MAX_PICK] = {f32_max_pick, f64_max_pick},
    [CH_POOL_MAX_GRAD] = {f32_max_grad, f64_max_grad},
    [CH_POOL_MEAN] = {f32_mean, f64_mean},
    [CH_POOL_MEAN_GRAD] = {f32_mean_grad, f64_mean_grad},
}};
