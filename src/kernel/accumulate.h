/* kernel/accumulate.h -- sums of several arrays.   SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_ACCUMULATE_H
#define KERNEL_ACCUMULATE_H

#include <stdbool.h>

#include "cohort/shape.h"
#include "kernel/simd.h"

/* Returns true if ch__accumulate supports arrays of dtype t. */
bool ch__can_accumulate(ch_dtype t);
/* Computes dst[i] = (src[0][i] + src[1][i] + ...) / divisor for i in [0, n).
 *
 * The sources are added in this order. 16-bit floats are added in f32 and rounded once, at the
 * end. dst may be the same array as a source. For integers the divisor must be 1. */
void ch__accumulate(ch_dtype t, int64_t n, int n_src, const void *const *src, void *dst,
                    int divisor);
/* Writes the same result to n_dst arrays in a single pass. Each of them may be the same array
 * as a source. */
void ch__accumulate_all(ch_dtype t, int64_t n, int n_src, const void *const *src, int n_dst,
                        void *const *dst, int divisor);

/* Computes x[i] = y[i] = a[i] + b[i]. x and y may be the same array, and each may be a or b. */
typedef void (*ch_add_fn)(int64_t n, const void *a, const void *b, void *x, void *y);

typedef struct ch_accumulate_table {
    ch_add_fn f32, f64, i8, i32, i64, u8;
    void (*divide_f32)(int64_t n, float *x, float by);
    void (*divide_f64)(int64_t n, double *x, double by);
} ch_accumulate_table;

CH_SIMD_DECLARE(ch_accumulate_table, ch__accumulate_table)

#endif
