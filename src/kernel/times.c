/* kernel/times.c -- a row times a number; compiled for each level of kernel/simd.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/times.h"

static void add_f32(int64_t n, const float *row, float w, float *to)
{
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        to[i] += w * row[i];
}

static void add_f64(int64_t n, const double *row, double w, double *to)
{
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        to[i] += w * row[i];
}

static void set_f32(int64_t n, const float *row, float w, float *to)
{
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        to[i] = w * row[i];
}

static void set_f64(int64_t n, const double *row, double w, double *to)
{
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        to[i] = w * row[i];
}

const ch_times_table CH_SIMD_NAME(ch__times_table) = {add_f32, add_f64, set_f32, set_f64};
