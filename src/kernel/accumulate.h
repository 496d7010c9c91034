/* kernel/accumulate.h -- adding up arrays.   SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_ACCUMULATE_H
#define KERNEL_ACCUMULATE_H

#include <stdbool.h>

#include "cohort/shape.h"
#include "kernel/simd.h"

/* True for the types that can be added. */
bool ch__can_accumulate(ch_dtype t);
/* dst[i] = (src[0][i] + src[1][i] + ...) / divisor, added in this order; 16-bit floats are
 * added in f32 and rounded once. dst may be one of the sources. Integers take divisor 1 only.
 */
void ch__accumulate(ch_dtype t, int64_t n, int n_src, const void *const *src, void *dst,
                    int divisor);
/* The same to several places, in one pass; any of them may be one of the sources. */
void ch__accumulate_all(ch_dtype t, int64_t n, int n_src, const void *const *src, int n_dst,
                        void *const *dst, int divisor);

/* x[i] = y[i] = a[i] + b[i]: x and y may be each other, and either a or b. */
typedef void (*ch_add_fn)(int64_t n, const void *a, const void *b, void *x, void *y);

typedef struct ch_accumulate_table {
    ch_add_fn f32, f64, i8, i32, i64, u8;
    void (*divide_f32)(int64_t n, float *x, float by);
    void (*divide_f64)(int64_t n, double *x, double by);
} ch_accumulate_table;

CH_SIMD_DECLARE(ch_accumulate_table, ch__accumulate_table)

#endif
