/* kernel/widen.c -- conversion of elements to the types in which kernels compute, and back.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/widen.h"
#include "tensor/tensor.h"

#include <string.h>

#include "kernel/block.h"

enum { PART = 256 };

void ch__widen(ch_dtype t, int64_t n, const void *from, void *to)
{
    ch__blocks()->widen[t](n, &from, to, NULL);
}

void ch__narrow(ch_dtype t, int64_t n, const void *from, void *to)
{
    ch__blocks()->narrow[t](n, &from, to, NULL);
}

const float *ch__as_f32(ch_dtype t, int64_t n, const void *x, float *buffer)
{
    if (t == CH_F32)
        return x;
    ch__blocks()->widen[t](n, &x, buffer, NULL);
    return buffer;
}

const double *ch__as_f64(ch_dtype t, int64_t n, const void *x, double *buffer)
{
    float part[PART];

    if (t == CH_F64)
        return x;
    for (int64_t i = 0, k; i < n; i += k) {
        const void *from = (const char *)x + (size_t)i * ch_dtype_bytes(t);

        k = n - i < PART ? n - i : PART;
        from = ch__dtype_is_half(t) ? ch__as_f32(t, k, from, part) : from;
        ch__blocks()->cast[CH_F32][CH_F64](k, &from, buffer + i, NULL);
    }
    return buffer;
}

const int64_t *ch__as_i64(ch_dtype t, int64_t n, const void *x, int64_t *buffer)
{
    if (t == CH_I64)
        return x;
    ch__blocks()->cast[t == CH_BOOL ? CH_U8 : t][CH_I64](n, &x, buffer, NULL);
    return buffer;
}

void ch__from_f32(ch_dtype t, int64_t n, const float *x, void *out)
{
    const void *from = x;

    if (t != CH_F32)
        ch__blocks()->narrow[t](n, &from, out, NULL);
    else if (out != from)
        memcpy(out, x, (size_t)n * sizeof(*x));
}

void ch__from_f64(ch_dtype t, int64_t n, const double *x, void *out)
{
    float part[PART];

    if (t == CH_F64) {
        if (out != x)
            memcpy(out, x, (size_t)n * sizeof(*x));
        return;
    }
    for (int64_t i = 0, k; i < n; i += k) {
        char       *to = (char *)out + (size_t)i * ch_dtype_bytes(t);
        const void *from = x + i;

        k = n - i < PART ? n - i : PART;
        ch__blocks()->cast[CH_F64][t](k, &from, ch__dtype_is_half(t) ? (void *)part : to, NULL);
        if (ch__dtype_is_half(t))
            ch__from_f32(t, k, part, to);
    }
}

void ch__from_i64(ch_dtype t, int64_t n, const int64_t *x, void *out)
{
    const void *from = x;

    if (t != CH_I64)
        ch__blocks()->cast[CH_I64][t == CH_BOOL ? CH_U8 : t](n, &from, out, NULL);
    else if (out != x)
        memcpy(out, x, (size_t)n * sizeof(*x));
}
