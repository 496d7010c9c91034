/* kernel/widen.h -- conversion of elements to the types in which kernels compute, and back.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_WIDEN_H
#define KERNEL_WIDEN_H

#include <stdint.h>

#include "cohort/shape.h"

/* Convert n 16-bit floats of dtype t to f32, and f32 to t with rounding. */
void ch__widen(ch_dtype t, int64_t n, const void *from, void *to);
void ch__narrow(ch_dtype t, int64_t n, const void *from, void *to);

/* Return n elements of x as f32, f64 or i64: x itself if it has that type, otherwise `buffer`,
 * filled. */
const float   *ch__as_f32(ch_dtype t, int64_t n, const void *x, float *buffer);
const double  *ch__as_f64(ch_dtype t, int64_t n, const void *x, double *buffer);
const int64_t *ch__as_i64(ch_dtype t, int64_t n, const void *x, int64_t *buffer);

/* Convert n results to a float dtype, rounded to nearest, or to an integer dtype, wrapping
 * around. `out` may be x if the type is the same. */
void ch__from_f32(ch_dtype t, int64_t n, const float *x, void *out);
void ch__from_f64(ch_dtype t, int64_t n, const double *x, void *out);
void ch__from_i64(ch_dtype t, int64_t n, const int64_t *x, void *out);

#endif
