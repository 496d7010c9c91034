/* collective/combine.c -- combination of partial results: sum, max, min, product, and, or.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "collective/group.h"
#include "kernel/accumulate.h"
#include "kernel/widen.h"

enum { BLOCK = 1024 }; /* elements of 16-bit floats that are converted together */

/* x op y. The largest and the smallest of values that include NaN is NaN, as in reductions.
 * Products of integers wrap around. */
#define MAX(T, x, y)     ((x) > (y) || (x) != (x) ? (x) : (y))
#define MIN(T, x, y)     ((x) < (y) || (x) != (x) ? (x) : (y))
#define PRODUCT(T, x, y) ((T)((x) * (y)))

#define LOOP(name, T, U, op)                                                                   \
    static void name(int64_t n, const void *src, void *dst)                                    \
    {                                                                                          \
        const T *x = src;                                                                      \
        T       *y = dst;                                                                      \
                                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                      \
            U a = (U)y[i], b = (U)x[i];                                                        \
                                                                                               \
            y[i] = (T)op(U, a, b);                                                             \
        }                                                                                      \
    }

/* The three loops of a type. The second type is that of the arithmetic. */
#define LOOPS(name, T, U)                                                                      \
    LOOP(max_##name, T, T, MAX)                                                                \
    LOOP(min_##name, T, T, MIN)                                                                \
    LOOP(product_##name, T, U, PRODUCT)

LOOPS(f32, float, float)
LOOPS(f64, double, double)
LOOPS(i8, int8_t, uint32_t)
LOOPS(u8, uint8_t, uint32_t)
LOOPS(i32, int32_t, uint32_t)
LOOPS(i64, int64_t, uint64_t)

/* Combines src with dst, and writes the result to dst. */
typedef void (*combine_fn)(int64_t n, const void *src, void *dst);

static combine_fn loop_of(ch_partial_op op, ch_dtype t)
{
#define ROW(name)                                                                              \
    {                                                                                          \
        max_##name, min_##name, product_##name                                                 \
    }
    static const combine_fn
        table[][3] =
            {
                [CH_F32] = ROW(f32), [CH_F64] = ROW(f64), [CH_I8] = ROW(i8),
                [CH_U8] = ROW(u8),   [CH_I32] = ROW(i32), [CH_I64] = ROW(i64),
                [CH_BOOL] = ROW(u8), /* 0 and 1: and is the smallest, or the largest */
            };
#undef ROW
    switch (op) {
    case CH_PARTIAL_MAX:
    case CH_PARTIAL_OR:
        return table[t][0];
    case CH_PARTIAL_MIN:
    case CH_PARTIAL_AND:
        return table[t][1];
    default:
        return table[t][2];
    }
}

/* Combines 16-bit floats in f32, and rounds once. */
static void combine_half(ch_partial_op op, ch_dtype t, int64_t count, int n,
                         const void *const *src, uint16_t *dst)
{
    combine_fn loop = loop_of(op, CH_F32);
    float      sum[BLOCK], x[BLOCK];

    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t m = count - at < BLOCK ? count - at : BLOCK;

        ch__widen(t, m, (const uint16_t *)src[0] + at, sum);
        for (int k = 1; k < n; k++) {
            ch__widen(t, m, (const uint16_t *)src[k] + at, x);
            loop(m, x, sum);
        }
        ch__narrow(t, m, sum, dst + at);
    }
}

/* Sources that are dst are combined in their turn: their block is copied before dst is
 * written. */
static void combine_plain(combine_fn loop, size_t each, int64_t count, int n,
                          const void *const *src, char *dst)
{
    _Alignas(16) char buffer[BLOCK * sizeof(double)];

    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t m = count - at < BLOCK ? count - at : BLOCK;
        size_t  begin = (size_t)at * each, bytes = (size_t)m * each;

        memcpy(buffer, (const char *)src[0] + begin, bytes);
        for (int k = 1; k < n; k++)
            loop(m, (const char *)src[k] + begin, buffer);
        memcpy(dst + begin, buffer, bytes);
    }
}

void ch__combine(ch_partial_op op, ch_dtype t, int64_t count, int n, const void *const *src,
                 void *dst)
{
    if (op == CH_PARTIAL_SUM && t == CH_BOOL)
        op = CH_PARTIAL_OR; /* at most one of them is true: the row of a lookup */
    if (op == CH_PARTIAL_SUM)
        ch__accumulate(t, count, n, src, dst, 1);
    else if (ch_dtype_bytes(t) == 2 && ch_dtype_is_float(t))
        combine_half(op, t, count, n, src, dst);
    else
        combine_plain(loop_of(op, t), ch_dtype_bytes(t), count, n, src, dst);
}
