/* kernel/accumulate.c -- sums of several arrays, computed in blocks that fit the cache.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/accumulate.h"

#include <string.h>

#include "kernel/widen.h"
#include "tensor/tensor.h"

enum { BLOCK = 2048 }; /* elements */

static const ch_accumulate_table *loops(void)
{
    static const ch_accumulate_table *const levels[] = CH_SIMD_LIST(ch__accumulate_table);

    return levels[ch__simd_level()];
}

static ch_add_fn add_of(ch_dtype t)
{
    switch (t) {
    case CH_F32:
        return loops()->f32;
    case CH_F64:
        return loops()->f64;
    case CH_I8:
        return loops()->i8;
    case CH_I32:
        return loops()->i32;
    case CH_I64:
        return loops()->i64;
    case CH_U8:
        return loops()->u8;
    default:
        return NULL;
    }
}

bool ch__can_accumulate(ch_dtype t)
{
    return ch__dtype_is_half(t) || add_of(t) != NULL;
}

static void divide(ch_dtype t, int64_t n, void *x, int by)
{
    if (by != 1 && t == CH_F32)
        loops()->divide_f32(n, x, (float)by);
    if (by != 1 && t == CH_F64)
        loops()->divide_f64(n, x, by);
}

/* Copies a block of `bytes` bytes from `result` to offset `at` of dst[from], dst[from + 1], ...
 * Skips a target if the block is already stored there. */
static void copy_to_all(const void *result, int from, int n_dst, void *const *dst, size_t at,
                        size_t bytes)
{
    for (int k = from; k < n_dst; k++)
        if ((char *)dst[k] + at != result)
            memcpy((char *)dst[k] + at, result, bytes);
}

/* Sums a block of 16-bit floats in f32 and rounds the sum once. */
static void sum_half_block(ch_dtype t, int64_t at, int64_t n, int n_src, const void *const *src,
                           int n_dst, void *const *dst, int divisor)
{
    _Alignas(64) float    sum[BLOCK], x[BLOCK];
    _Alignas(64) uint16_t result[BLOCK];

    ch__widen(t, n, (const uint16_t *)src[0] + at, sum);
    for (int k = 1; k < n_src; k++) {
        ch__widen(t, n, (const uint16_t *)src[k] + at, x);
        loops()->f32(n, sum, x, sum, sum);
    }
    divide(CH_F32, n, sum, divisor);
    ch__narrow(t, n, sum, result);
    copy_to_all(result, 0, n_dst, dst, (size_t)at * sizeof(*result),
                (size_t)n * sizeof(*result));
}

/* Sums a block of n elements of any other dtype. If there is no division, the last addition
 * writes directly to the first two targets. */
static void sum_block(ch_dtype t, int64_t at, int64_t n, int n_src, const void *const *src,
                      int n_dst, void *const *dst, int divisor)
{
    _Alignas(64) char buffer[BLOCK * sizeof(double)];
    size_t            size = ch_dtype_bytes(t), begin = (size_t)at * size;
    const void       *sum = (const char *)src[0] + begin;
    ch_add_fn         add = add_of(t);

    for (int k = 1; k < n_src - 1 || (k < n_src && divisor != 1); k++) {
        add(n, sum, (const char *)src[k] + begin, buffer, buffer);
        sum = buffer;
    }
    if (divisor == 1 && n_src > 1) {
        add(n, sum, (const char *)src[n_src - 1] + begin, (char *)dst[0] + begin,
            (char *)dst[n_dst > 1 ? 1 : 0] + begin);
        copy_to_all((char *)dst[0] + begin, 2, n_dst, dst, begin, (size_t)n * size);
        return;
    }
    if (sum != buffer)
        memcpy(buffer, sum, (size_t)n * size);
    divide(t, n, buffer, divisor);
    copy_to_all(buffer, 0, n_dst, dst, begin, (size_t)n * size);
}

void ch__accumulate_all(ch_dtype t, int64_t n, int n_src, const void *const *src, int n_dst,
                        void *const *dst, int divisor)
{
    if (n_src == 2 && n_dst <= 2 && divisor == 1 && !ch__dtype_is_half(t)) {
        add_of(t)(n, src[0], src[1], dst[0], dst[n_dst - 1]);
        return;
    }
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t m = n - at < BLOCK ? n - at : BLOCK;

        if (ch__dtype_is_half(t))
            sum_half_block(t, at, m, n_src, src, n_dst, dst, divisor);
        else
            sum_block(t, at, m, n_src, src, n_dst, dst, divisor);
    }
}

void ch__accumulate(ch_dtype t, int64_t n, int n_src, const void *const *src, void *dst,
                    int divisor)
{
    ch__accumulate_all(t, n, n_src, src, 1, &dst, divisor);
}
