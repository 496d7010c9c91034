/* kernel/times.h -- a row times a number.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_TIMES_H
#define KERNEL_TIMES_H

#include <stdint.h>

#include "kernel/simd.h"

typedef struct ch_times_table {
    /* to += w * row, and to = w * row, which may be over it. */
    void (*add_f32)(int64_t n, const float *row, float w, float *to);
    void (*add_f64)(int64_t n, const double *row, double w, double *to);
    void (*set_f32)(int64_t n, const float *row, float w, float *to);
    void (*set_f64)(int64_t n, const double *row, double w, double *to);
} ch_times_table;

CH_SIMD_DECLARE(ch_times_table, ch__times_table)

#endif
