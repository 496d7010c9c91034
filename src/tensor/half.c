/* tensor/half.c -- 16-bit floats, and conversion of elements to and from double.
 *
 *          sign  exponent  fraction  bias
 *    f16     1      5         10       15
 *   bf16     1      8          7      127    the upper half of an f32
 *    f32     1      8         23      127
 *
 * f16 and bf16 are converted by integer arithmetic on the bits of an f32. ch__load and
 * ch__store convert a single element of any numeric dtype; code of all modules that is not
 * time-critical calls them. Invariant: a conversion to a narrower float rounds once,
 * to nearest, ties to even.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "tensor/tensor.h"

static uint32_t bits_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

static float float_of(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof(x));
    return x;
}

float ch__bf16_to_f32(uint16_t x)
{
    return float_of((uint32_t)x << 16);
}

uint16_t ch__bf16_of_f32(float x)
{
    uint32_t u = bits_of(x);

    if (isnan(x))
        return (uint16_t)(u >> 16 | 0x40); /* set the quiet bit: the upper fraction may be 0 */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

float ch__f16_to_f32(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000) << 16;
    uint32_t exponent = x >> 10 & 0x1f, fraction = x & 0x3ff;

    if (exponent == 0x1f)
        return float_of(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0) { /* fraction * 2^-24, which is exact in f32 */
        float magnitude = (float)fraction * 0x1p-24f;

        return sign ? -magnitude : magnitude;
    }
    return float_of(sign | (exponent + 127 - 15) << 23 | fraction << 13);
}

/* Rounding may carry from the fraction into the exponent. The result is correct then: the next
 * larger number, or infinity after the largest exponent. */
uint16_t ch__f16_of_f32(float x)
{
    uint32_t u = bits_of(x);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    uint32_t magnitude = u & 0x7fffffff;

    if (isnan(x))
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x1ff));
    if (magnitude >= bits_of(65520.0f)) /* halfway between the largest f16 and the next */
        return sign | 0x7c00;
    if (magnitude >= bits_of(0x1p-14f)) {
        magnitude -= (uint32_t)(127 - 15) << 23;
        return (uint16_t)(sign | (magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13);
    }
    /* A subnormal f16 is a multiple of 2^-24, which is the unit in the last place of 0.5f.
     * Adding 0.5f therefore rounds to nearest even. */
    return (uint16_t)(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
}

/* Converts to f32 and rounds inexact results to the neighbour with an odd last bit. Rounding
 * that to 16 bits gives the same result as rounding `x` to 16 bits directly. */
static float to_odd_f32(double x)
{
    float    f = (float)x;
    uint32_t u = bits_of(f);

    if (isnan(x) || (double)f == x)
        return f;
    if (fabs((double)f) > fabs(x))
        u--;
    return float_of(u | 1);
}

/* Converts to an integer in [least, most], rounding toward zero. A number out of range becomes
 * the nearer limit, and NaN becomes 0, because both are undefined in C. */
static int64_t to_int(double x, int64_t least, int64_t most)
{
    if (isnan(x))
        return 0;
    if (x <= (double)least)
        return least;
    return x >= (double)most ? most : (int64_t)x;
}

static uint64_t to_u64(double x)
{
    if (!(x > 0))
        return 0;
    return x >= 0x1p64 ? UINT64_MAX : (uint64_t)x;
}

double ch__load(ch_dtype dtype, const void *at)
{
    switch (dtype) {
    case CH_F32:
        return *(const float *)at;
    case CH_F64:
        return *(const double *)at;
    case CH_BF16:
        return ch__bf16_to_f32(*(const uint16_t *)at);
    case CH_F16:
        return ch__f16_to_f32(*(const uint16_t *)at);
    case CH_I8:
        return *(const int8_t *)at;
    case CH_I16:
        return *(const int16_t *)at;
    case CH_I32:
        return *(const int32_t *)at;
    case CH_I64:
        return (double)*(const int64_t *)at;
    case CH_U8:
        return *(const uint8_t *)at;
    case CH_U16:
        return *(const uint16_t *)at;
    case CH_U32:
        return *(const uint32_t *)at;
    case CH_U64:
        return (double)*(const uint64_t *)at;
    case CH_BOOL:
        return *(const uint8_t *)at != 0;
    case CH_STR:
    case CH_DTYPE_COUNT:
        break;
    }
    return NAN;
}

void ch__store(ch_dtype dtype, void *at, double value)
{
    switch (dtype) {
    case CH_F32:
        *(float *)at = (float)value;
        break;
    case CH_F64:
        *(double *)at = value;
        break;
    case CH_BF16:
        *(uint16_t *)at = ch__bf16_of_f32(to_odd_f32(value));
        break;
    case CH_F16:
        *(uint16_t *)at = ch__f16_of_f32(to_odd_f32(value));
        break;
    case CH_I8:
        *(int8_t *)at = (int8_t)to_int(value, INT8_MIN, INT8_MAX);
        break;
    case CH_I16:
        *(int16_t *)at = (int16_t)to_int(value, INT16_MIN, INT16_MAX);
        break;
    case CH_I32:
        *(int32_t *)at = (int32_t)to_int(value, INT32_MIN, INT32_MAX);
        break;
    case CH_I64:
        *(int64_t *)at = to_int(value, INT64_MIN, INT64_MAX);
        break;
    case CH_U8:
        *(uint8_t *)at = (uint8_t)to_int(value, 0, UINT8_MAX);
        break;
    case CH_U16:
        *(uint16_t *)at = (uint16_t)to_int(value, 0, UINT16_MAX);
        break;
    case CH_U32:
        *(uint32_t *)at = (uint32_t)to_int(value, 0, UINT32_MAX);
        break;
    case CH_U64:
        *(uint64_t *)at = to_u64(value);
        break;
    case CH_BOOL:
        *(uint8_t *)at = value != 0;
        break;
    case CH_STR:
    case CH_DTYPE_COUNT:
        break;
    }
}

bool ch__dtype_holds(ch_dtype dtype, double value)
{
    char at[8];

    if (ch_dtype_is_float(dtype))
        return true;
    ch__store(dtype, at, value);
    return ch__load(dtype, at) == value;
}
