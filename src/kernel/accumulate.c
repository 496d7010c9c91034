/* kernel/accumulate.c -- adding up arrays, in blocks that stay in the cache.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/accumulate.h"

#include <string.h>

#include "tensor/tensor.h"

enum { BLOCK = 2048 };

/* sum[i] += x[i], for each type. */
#define TYPES(X)                                                                               \
    X(f32, float) X(f64, double) X(i8, int8_t) X(i32, int32_t) X(i64, int64_t) X(u8, uint8_t)

#define DEFINE_ADD(name, type)                                                                 \
    static void add_##name(int64_t n, void *sum, const void *x)                                \
    {                                                                                          \
        type       *s = sum;                                                                   \
        const type *v = x;                                                                     \
                                                                                               \
        for (int64_t i = 0; i < n; i++)                                                        \
            s[i] = (type)(s[i] + v[i]);                                                        \
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

typedef void (*add_fn)(int64_t, void *, const void *);

static add_fn add_of(ch_dtype t)
{
    switch (t) {
    case CH_F32:
        return add_f32;
    case CH_F64:
        return add_f64;
    case CH_I8:
        return add_i8;
    case CH_I32:
        return add_i32;
    case CH_I64:
        return add_i64;
    case CH_U8:
        return add_u8;
    default:
        return NULL;
    }
}

bool ch__can_accumulate(ch_dtype t)
{
    return ch__dtype_is_half(t) || add_of(t) != NULL;
}

static float widen(ch_dtype t, uint16_t x)
{
    return t == CH_BF16 ? ch__bf16_to_f32(x) : ch__f16_to_f32(x);
}

static void accumulate_half(ch_dtype t, int64_t n, int n_src, const void *const *src,
                            uint16_t *dst, float divisor)
{
    for (int64_t i = 0; i < n; i++) {
        float sum = widen(t, ((const uint16_t *)src[0])[i]);

        for (int k = 1; k < n_src; k++)
            sum += widen(t, ((const uint16_t *)src[k])[i]);
        sum /= divisor;
        dst[i] = t == CH_BF16 ? ch__bf16_of_f32(sum) : ch__f16_of_f32(sum);
    }
}

void ch__accumulate(ch_dtype t, int64_t n, int n_src, const void *const *src, void *dst,
                    int divisor)
{
    _Alignas(64) char block[BLOCK * sizeof(double)];
    int64_t           bytes = (int64_t)ch_dtype_bytes(t);
    add_fn            add = add_of(t);

    if (ch__dtype_is_half(t)) {
        accumulate_half(t, n, n_src, src, dst, (float)divisor);
        return;
    }
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t m = n - at < BLOCK ? n - at : BLOCK;

        memcpy(block, (const char *)src[0] + at * bytes, (size_t)(m * bytes));
        for (int k = 1; k < n_src; k++)
            add(m, block, (const char *)src[k] + at * bytes);
        if (divisor != 1 && t == CH_F32)
            divide_f32(m, (float *)(void *)block, (float)divisor);
        if (divisor != 1 && t == CH_F64)
            divide_f64(m, (double *)(void *)block, divisor);
        memcpy((char *)dst + at * bytes, block, (size_t)(m * bytes));
    }
}
