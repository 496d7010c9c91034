/* kernel/bag_loops.c -- sums of the rows of a bag; compiled for each SIMD level.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/bag_loops.h"

#define SUM(T, NAME)                                                                           \
    static void NAME(const ch_bag_rows *r, T *out)                                             \
    {                                                                                          \
        const T *weight = r->weight;                                                           \
                                                                                               \
        for (int64_t k = 0; k < r->width; k++)                                                 \
            out[k] = 0;                                                                        \
        for (int64_t i = r->first; i < r->last; i++) {                                         \
            const T *row = ch__bag_row(r, i);                                                  \
            const T  w = weight != NULL ? weight[i] : 1;                                       \
                                                                                               \
            if (row == NULL)                                                                   \
                continue;                                                                      \
            CH_SIMD_LOOP                                                                       \
            for (int64_t k = 0; k < r->width; k++)                                             \
                out[k] += w * row[k];                                                          \
        }                                                                                      \
    }

SUM(float, sum_f32)
SUM(double, sum_f64)

static void add_f32(int64_t n, const float *row, float w, float *to)
{
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        to[i] += w * row[i];
}

const ch_bag_loops CH_SIMD_NAME(ch__bag_loops) = {sum_f32, sum_f64, add_f32};
