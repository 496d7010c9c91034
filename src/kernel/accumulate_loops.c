/* kernel/accumulate_loops.c -- additions and divisions; compiled for each SIMD level.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/accumulate.h"

/* Signed integers are added as unsigned integers because their sums must wrap. */
#define TYPES(X)                                                                               \
    X(f32, float)                                                                              \
    X(f64, double) X(i8, uint8_t) X(i32, uint32_t) X(i64, uint64_t) X(u8, uint8_t)

#define DEFINE_ADD(name, type)                                                                 \
    static void add_##name(int64_t n, const void *a, const void *b, void *x, void *y)          \
    {                                                                                          \
        const type *p = a, *q = b;                                                             \
        type       *s = x, *t = y;                                                             \
                                                                                               \
        CH_SIMD_LOOP                                                                           \
        for (int64_t i = 0; i < n; i++) {                                                      \
            type sum = (type)(p[i] + q[i]);                                                    \
                                                                                               \
            s[i] = sum;                                                                        \
            t[i] = sum;                                                                        \
        }                                                                                      \
    }
TYPES(DEFINE_ADD)

static void divide_f32(int64_t n, float *x, float by)
{
    for (int64_t i = 0; i < n; i++)
        x[i] /= by;
}

static void divide_f64(int64_t n, double *x, double by)
{
    for (int64_t i = 0; i < n; i++)
        x[i] /= by;
}

const ch_accumulate_table CH_SIMD_NAME(ch__accumulate_table) = {
    add_f32, add_f64, add_i8, add_i32, add_i64, add_u8, divide_f32, divide_f64,
};
