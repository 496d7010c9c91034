/* kernel/widen.h -- elements as the types that kernels compute in, and back.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_WIDEN_H
#define KERNEL_WIDEN_H

#include <stdint.h>

#include "cohort/shape.h"

/* n 16-bit floats to f32, and f32 rounded to them. */
void ch__widen(ch_dtype t, int64_t n, const void *from, void *to);
void ch__narrow(ch_dtype t, int64_t n, const void *from, void *to);

/* n elements of x as floats or i64: x itself if they are, else `room`, filled. */
const float   *ch__as_f32(ch_dtype t, int64_t n, const void *x, float *room);
const double  *ch__as_f64(ch_dtype t, int64_t n, const void *x, double *room);
const int64_t *ch__as_i64(ch_dtype t, int64_t n, const void *x, int64_t *room);

/* n results to a float type, rounded to nearest; and to an integer type, where what does not
 * fit wraps. `out` may be x if the type is the same. */
void ch__from_f32(ch_dtype t, int64_t n, const float *x, void *out);
void ch__from_f64(ch_dtype t, int64_t n, const double *x, void *out);
void ch__from_i64(ch_dtype t, int64_t n, const int64_t *x, void *out);

#endif
