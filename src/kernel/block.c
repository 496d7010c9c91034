/* kernel/block.c -- block functions; compiled once for each SIMD level.
 *
 * The functions of an element (`x_of`) come from kernel/math32.h for f32 and from libm for f64.
 * The includes of block_cast.h and block_type.h turn them into functions of blocks, for each
 * element type. The rest is written out here: rounding to odd, 16-bit floats, repeat, sin and
 * cos, bool. The file ends with the table of all functions, ch_block_table. Callers reach it
 * through ch__blocks() (block_pick.c).
 *
 * Invariants:
 *   1. All SIMD levels give the same bits.
 *   2. No function reads an element of an input after it has written the same element of the
 *      output, so that the output may be an input.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/block.h"

#include <math.h>
#include <string.h>

#include "kernel/math32.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

/* ---- functions of an element, for the templates below ---- */

/* f32: from kernel/math32.h. */
#define OF_MATH32(name)                                                                        \
    CH_SIMD_INLINE float name##_of_f32(float x)                                                \
    {                                                                                          \
        return ch__##name##32(x);                                                              \
    }
OF_MATH32(exp)
OF_MATH32(expm1)
OF_MATH32(log)
OF_MATH32(log1p)
OF_MATH32(tanh)
OF_MATH32(sigmoid)
OF_MATH32(erf)
OF_MATH32(gelu)
OF_MATH32(gelu_tanh)
OF_MATH32(silu)
OF_MATH32(softplus)
#undef OF_MATH32

CH_SIMD_INLINE float pow_of_f32(float x, float y)
{
    return ch__pow32(x, y);
}

/* f64: most come from libm. */
#define OF_LIBM(name)                                                                          \
    CH_SIMD_INLINE double name##_of_f64(double x)                                              \
    {                                                                                          \
        return name(x);                                                                        \
    }
OF_LIBM(exp)
OF_LIBM(expm1)
OF_LIBM(log)
OF_LIBM(log1p)
OF_LIBM(tanh)
OF_LIBM(erf)
#undef OF_LIBM

CH_SIMD_INLINE double pow_of_f64(double x, double y)
{
    return pow(x, y);
}
CH_SIMD_INLINE double sigmoid_of_f64(double x)
{
    double e = exp(-fabs(x)); /* the exponent is never positive, so neither end loses digits */

    return x < 0 ? e / (1 + e) : 1 / (1 + e);
}
CH_SIMD_INLINE double gelu_of_f64(double x)
{
    return x <= -40 ? -0.0 : 0.5 * x * erfc(-x * 0.70710678118654752440);
}
CH_SIMD_INLINE double gelu_tanh_of_f64(double x)
{
    return x <= -40 ? -0.0
                    : x * sigmoid_of_f64(1.59576912160573071176 * (x + 0.044715 * x * x * x));
}
CH_SIMD_INLINE double silu_of_f64(double x)
{
    return x < -1000 ? -0.0 : x * sigmoid_of_f64(x);
}
CH_SIMD_INLINE double softplus_of_f64(double x)
{
    return (x < 0 ? 0 : x) + log1p(exp(-fabs(x)));
}

/* ---- casts ---- */

#define T        float
#define NAME(x)  x##_f32
#define IS_FLOAT 1
#include "kernel/block_cast.h"

#define T        double
#define NAME(x)  x##_f64
#define IS_FLOAT 1
#include "kernel/block_cast.h"

#define T        int8_t
#define NAME(x)  x##_i8
#define IS_FLOAT 0
#include "kernel/block_cast.h"

#define T        int16_t
#define NAME(x)  x##_i16
#define IS_FLOAT 0
#include "kernel/block_cast.h"

#define T        int32_t
#define NAME(x)  x##_i32
#define IS_FLOAT 0
#include "kernel/block_cast.h"

#define T        int64_t
#define NAME(x)  x##_i64
#define IS_FLOAT 0
#include "kernel/block_cast.h"

#define T        uint8_t
#define NAME(x)  x##_u8
#define IS_FLOAT 0
#include "kernel/block_cast.h"

#define T        uint16_t
#define NAME(x)  x##_u16
#define IS_FLOAT 0
#include "kernel/block_cast.h"

#define T        uint32_t
#define NAME(x)  x##_u32
#define IS_FLOAT 0
#include "kernel/block_cast.h"

#define T        uint64_t
#define NAME(x)  x##_u64
#define IS_FLOAT 0
#include "kernel/block_cast.h"

/* ---- casts to f32 that round inexact results to odd ---- */

/* Returns x if f32 holds it exactly, or NaN. Otherwise truncates x to f32 and sets the last
 * bit. */
CH_SIMD_INLINE float odd_of_f64(double x)
{
    float    f = (float)x;
    double   back = (double)f;
    uint32_t u = ch__bits32(f), odd = (u - (fabs(back) > fabs(x))) | 1;

    return ch__float32(back == x || x != x ? u : odd);
}

static void f64_to_odd(int64_t n, const void *const *in, void *out, const double *param)
{
    const double *x = in[0];
    float        *y = out;

    (void)param;
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        y[i] = odd_of_f64(x[i]);
}

static void i32_to_odd(int64_t n, const void *const *in, void *out, const double *param)
{
    const int32_t *x = in[0];
    float         *y = out;

    (void)param;
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        y[i] = odd_of_f64((double)x[i]);
}

static void u32_to_odd(int64_t n, const void *const *in, void *out, const double *param)
{
    const uint32_t *x = in[0];
    float          *y = out;

    (void)param;
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        y[i] = odd_of_f64((double)x[i]);
}

/* Makes a number of more than 52 bits exact in f64: clears the low 12 bits and sets bit 12 if
 * any of them was set. */
CH_SIMD_INLINE uint64_t sticky(uint64_t x)
{
    uint64_t folded = (x & ~(uint64_t)0xfff) | (uint64_t)((x & 0xfff) != 0) << 12;

    return x >> 52 == 0 ? x : folded;
}

static void i64_to_odd(int64_t n, const void *const *in, void *out, const double *param)
{
    const int64_t *x = in[0];
    float         *y = out;

    (void)param;
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++) {
        uint64_t magnitude = sticky(x[i] < 0 ? 0 - (uint64_t)x[i] : (uint64_t)x[i]);
        double   d = (double)magnitude;

        y[i] = odd_of_f64(x[i] < 0 ? -d : d);
    }
}

static void u64_to_odd(int64_t n, const void *const *in, void *out, const double *param)
{
    const uint64_t *x = in[0];
    float          *y = out;

    (void)param;
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        y[i] = odd_of_f64((double)sticky(x[i]));
}

/* ---- 16-bit floats ---- */

CH_SIMD_INLINE uint16_t bf16_of(float x)
{
    uint32_t u = ch__bits32(x);
    uint32_t nan = u >> 16 | 0x40, near = (u + 0x7fff + (u >> 16 & 1)) >> 16;

    return (uint16_t)(x != x ? nan : near);
}

static void widen_bf16(int64_t n, const void *const *in, void *out, const double *param)
{
    const uint16_t *x = in[0];
    float          *y = out;

    (void)param;
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        y[i] = ch__float32((uint32_t)x[i] << 16);
}

static void narrow_bf16(int64_t n, const void *const *in, void *out, const double *param)
{
    const float *x = in[0];
    uint16_t    *y = out;

    (void)param;
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        y[i] = bf16_of(x[i]);
}

static void round_bf16(int64_t n, const void *const *in, void *out, const double *param)
{
    const float *x = in[0];
    float       *y = out;

    (void)param;
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        y[i] = ch__float32((uint32_t)bf16_of(x[i]) << 16);
}

/* Converts f16 to f32. The exponent is shifted by a multiplication, which is correct for
 * subnormal numbers too. */
CH_SIMD_INLINE float f16_to(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, rest = (uint32_t)(x & 0x7fff) << 13;
    uint32_t special =
        rest | 0x7f800000 | (rest > 0x0f800000 ? 0x400000 : 0); /* infinity, quiet NaN */
    uint32_t finite = ch__bits32(ch__float32(rest) * 0x1p112f);

    return ch__float32(sign | (rest >= 0x0f800000 ? special : finite));
}

/* Converts f32 to f16 like ch__f16_of_f32 (tensor/half.c), but without branches: both
 * roundings, normal and subnormal, are computed and one of them is selected. */
CH_SIMD_INLINE uint16_t f16_of(float x)
{
    uint32_t u = ch__bits32(x), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
    uint32_t rebased = magnitude - ((uint32_t)(127 - 15) << 23);
    uint32_t normal = (rebased + 0xfff + (rebased >> 13 & 1)) >> 13;
    uint32_t small = ch__bits32(ch__float32(magnitude) + 0.5f) - ch__bits32(0.5f);
    uint32_t y = magnitude >= 0x38800000 ? normal : small; /* 2^-14 */

    /* 65520: half way from the largest number, 65504, to the next, which gives infinity. */
    y = magnitude >= 0x477ff000 ? 0x7c00 : y;
    y = magnitude > 0x7f800000 ? 0x7e00 | (magnitude >> 13 & 0x1ff) : y;
    return (uint16_t)(sign | y);
}

static void widen_f16(int64_t n, const void *const *in, void *out, const double *param)
{
    const uint16_t *x = in[0];
    float          *y = out;
    int64_t         i = 0;

    (void)param;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(x + i))));
#endif
    CH_SIMD_LOOP
    for (; i < n; i++)
        y[i] = f16_to(x[i]);
}

static void narrow_f16(int64_t n, const void *const *in, void *out, const double *param)
{
    const float *x = in[0];
    uint16_t    *y = out;
    int64_t      i = 0;

    (void)param;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((void *)(y + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), 0));
#endif
    CH_SIMD_LOOP
    for (; i < n; i++)
        y[i] = f16_of(x[i]);
}

static void round_f16(int64_t n, const void *const *in, void *out, const double *param)
{
    const float *x = in[0];
    float       *y = out;
    int64_t      i = 0;

    (void)param;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm256_cvtps_ph(_mm256_loadu_ps(x + i), 0)));
#endif
    CH_SIMD_LOOP
    for (; i < n; i++)
        y[i] = f16_to(f16_of(x[i]));
}

/* ---- all other functions, type by type ---- */

#define T           float
#define U           float
#define NAME(x)     x##_f32
#define LIBM(name)  name##f
#define SATURATE(x) (float)(x)
#define IS_FLOAT    1
#define IS_ARITH    1
#define IS_SIGNED   1
#include "kernel/block_type.h"

#define T           double
#define U           double
#define NAME(x)     x##_f64
#define LIBM(name)  name
#define SATURATE(x) (x)
#define IS_FLOAT    1
#define IS_ARITH    1
#define IS_SIGNED   1
#include "kernel/block_type.h"

#define T           int8_t
#define U           uint8_t
#define NAME(x)     x##_i8
#define SATURATE(x) to_i8_of_f64(x)
#define IS_FLOAT    0
#define IS_ARITH    1
#define IS_SIGNED   1
#include "kernel/block_type.h"

#define T           int32_t
#define U           uint32_t
#define NAME(x)     x##_i32
#define SATURATE(x) to_i32_of_f64(x)
#define IS_FLOAT    0
#define IS_ARITH    1
#define IS_SIGNED   1
#include "kernel/block_type.h"

#define T           int64_t
#define U           uint64_t
#define NAME(x)     x##_i64
#define SATURATE(x) to_i64_of_f64(x)
#define IS_FLOAT    0
#define IS_ARITH    1
#define IS_SIGNED   1
#include "kernel/block_type.h"

#define T           uint8_t
#define U           uint8_t
#define NAME(x)     x##_u8
#define SATURATE(x) to_u8_of_f64(x)
#define IS_FLOAT    0
#define IS_ARITH    1
#define IS_SIGNED   0
#include "kernel/block_type.h"

#define T           int16_t
#define NAME(x)     x##_i16
#define SATURATE(x) to_i16_of_f64(x)
#define IS_FLOAT    0
#define IS_ARITH    0
#include "kernel/block_type.h"

#define T           uint16_t
#define NAME(x)     x##_u16
#define SATURATE(x) to_u16_of_f64(x)
#define IS_FLOAT    0
#define IS_ARITH    0
#include "kernel/block_type.h"

#define T           uint32_t
#define NAME(x)     x##_u32
#define SATURATE(x) to_u32_of_f64(x)
#define IS_FLOAT    0
#define IS_ARITH    0
#include "kernel/block_type.h"

#define T           uint64_t
#define NAME(x)     x##_u64
#define SATURATE(x) to_u64_of_f64(x)
#define IS_FLOAT    0
#define IS_ARITH    0
#include "kernel/block_type.h"

/* ---- elements repeated ---- */

/* Elements of this size in bits, of any type. */
typedef uint8_t __attribute__((may_alias)) any8;
typedef uint16_t __attribute__((may_alias)) any16;
typedef uint32_t __attribute__((may_alias)) any32;
typedef uint64_t __attribute__((may_alias)) any64;

static void repeat1(int64_t n, int64_t times, const void *from, int64_t stride, void *to)
{
    const any8 *x = from;
    any8       *y = to;

    for (int64_t i = 0; i < n; i++, y += times) {
        any8 v = x[i * stride];

        for (int64_t k = 0; k < times; k++)
            y[k] = v;
    }
}

static void repeat2(int64_t n, int64_t times, const void *from, int64_t stride, void *to)
{
    const any16 *x = from;
    any16       *y = to;

    for (int64_t i = 0; i < n; i++, y += times) {
        any16 v = x[i * stride];

        for (int64_t k = 0; k < times; k++)
            y[k] = v;
    }
}

static void repeat4(int64_t n, int64_t times, const void *from, int64_t stride, void *to)
{
    const any32 *x = from;
    any32       *y = to;

    for (int64_t i = 0; i < n; i++, y += times) {
        any32 v = x[i * stride];

        for (int64_t k = 0; k < times; k++)
            y[k] = v;
    }
}

static void repeat8(int64_t n, int64_t times, const void *from, int64_t stride, void *to)
{
    const any64 *x = from;
    any64       *y = to;

    for (int64_t i = 0; i < n; i++, y += times) {
        any64 v = x[i * stride];

        for (int64_t k = 0; k < times; k++)
            y[k] = v;
    }
}

/* ---- sin and cos ---- */

/* Returns true if ch__sin32 and ch__cos32 are accurate for all n arguments. Larger arguments
 * need more digits of pi. They, infinities and NaN are rare, and libm computes them. */
static bool are_near(int64_t n, const float *x)
{
    int any = 0;

    for (int64_t i = 0; i < n; i++)
        any |= !(fabsf(x[i]) < CH_WAVE_LIMIT);
    return any == 0;
}

static void sin_f32(int64_t n, const void *const *in, void *out, const double *param)
{
    const float *x = in[0];
    float       *y = out;

    (void)param;
    if (!are_near(n, x)) {
        for (int64_t i = 0; i < n; i++)
            y[i] = fabsf(x[i]) < CH_WAVE_LIMIT ? ch__sin32(x[i]) : (float)sin((double)x[i]);
        return;
    }
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        y[i] = ch__sin32(x[i]);
}

static void cos_f32(int64_t n, const void *const *in, void *out, const double *param)
{
    const float *x = in[0];
    float       *y = out;

    (void)param;
    if (!are_near(n, x)) {
        for (int64_t i = 0; i < n; i++)
            y[i] = fabsf(x[i]) < CH_WAVE_LIMIT ? ch__cos32(x[i]) : (float)cos((double)x[i]);
        return;
    }
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        y[i] = ch__cos32(x[i]);
}

static void sin_f64(int64_t n, const void *const *in, void *out, const double *param)
{
    const double *x = in[0];
    double       *y = out;

    (void)param;
    for (int64_t i = 0; i < n; i++)
        y[i] = sin(x[i]);
}

static void cos_f64(int64_t n, const void *const *in, void *out, const double *param)
{
    const double *x = in[0];
    double       *y = out;

    (void)param;
    for (int64_t i = 0; i < n; i++)
        y[i] = cos(x[i]);
}

/* ---- bool: a byte, 0 or 1 ---- */

static void logical_and(int64_t n, const void *const *in, void *out, const double *param)
{
    const uint8_t *a = in[0], *b = in[1];
    uint8_t       *y = out;

    (void)param;
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        y[i] = (a[i] != 0) & (b[i] != 0);
}

static void logical_or(int64_t n, const void *const *in, void *out, const double *param)
{
    const uint8_t *a = in[0], *b = in[1];
    uint8_t       *y = out;

    (void)param;
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        y[i] = (a[i] | b[i]) != 0;
}

static void logical_xor(int64_t n, const void *const *in, void *out, const double *param)
{
    const uint8_t *a = in[0], *b = in[1];
    uint8_t       *y = out;

    (void)param;
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        y[i] = (a[i] != 0) != (b[i] != 0);
}

static void logical_not(int64_t n, const void *const *in, void *out, const double *param)
{
    const uint8_t *x = in[0];
    uint8_t       *y = out;

    (void)param;
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] == 0;
}

/* ---- the table ---- */

#define ARITH_ROW(op)                                                                          \
    [CH_BLOCK_##op] = {[CH_F32] = op##_f32, [CH_F64] = op##_f64, [CH_I8] = op##_i8,            \
                       [CH_I32] = op##_i32, [CH_I64] = op##_i64, [CH_U8] = op##_u8},
#define FLOAT_ROW(op) [CH_BLOCK_##op] = {[CH_F32] = op##_f32, [CH_F64] = op##_f64},
#define EVERY_ROW(op)                                                                          \
    [CH_BLOCK_##op] = {                                                                        \
        [CH_F32] = op##_f32, [CH_F64] = op##_f64, [CH_I8] = op##_i8,  [CH_I16] = op##_i16,     \
        [CH_I32] = op##_i32, [CH_I64] = op##_i64, [CH_U8] = op##_u8,  [CH_U16] = op##_u16,     \
        [CH_U32] = op##_u32, [CH_U64] = op##_u64, [CH_BOOL] = op##_u8},
#define LOGIC_ROW(op) [CH_BLOCK_##op] = {[CH_BOOL] = op},
#define CAST_ROW(from)                                                                         \
    {                                                                                          \
        [CH_F32] = to_f32_##from, [CH_F64] = to_f64_##from, [CH_I8] = to_i8_##from,            \
        [CH_I16] = to_i16_##from, [CH_I32] = to_i32_##from, [CH_I64] = to_i64_##from,          \
        [CH_U8] = to_u8_##from, [CH_U16] = to_u16_##from, [CH_U32] = to_u32_##from,            \
        [CH_U64] = to_u64_##from, [CH_BOOL] = to_bool_##from, [CH_BF16] = to_f32_##from,       \
        [CH_F16] = to_f32_##from                                                               \
    }
#define CAST_ROW_ODD(from, odd)                                                                \
    {                                                                                          \
        [CH_F32] = to_f32_##from, [CH_F64] = to_f64_##from, [CH_I8] = to_i8_##from,            \
        [CH_I16] = to_i16_##from, [CH_I32] = to_i32_##from, [CH_I64] = to_i64_##from,          \
        [CH_U8] = to_u8_##from, [CH_U16] = to_u16_##from, [CH_U32] = to_u32_##from,            \
        [CH_U64] = to_u64_##from, [CH_BOOL] = to_bool_##from, [CH_BF16] = odd, [CH_F16] = odd  \
    }

const ch_block_table CH_SIMD_NAME(ch__block_table) = {
    .fn = {CH_BLOCKS_UNARY(ARITH_ROW) CH_BLOCKS_BINARY(ARITH_ROW) CH_BLOCKS_PARAM(ARITH_ROW)
               CH_BLOCKS_FLOAT_UNARY(FLOAT_ROW) CH_BLOCKS_FLOAT_WAVE(FLOAT_ROW)
                   CH_BLOCKS_FLOAT_BINARY(FLOAT_ROW) CH_BLOCKS_FLOAT_PARAM(FLOAT_ROW)
                       CH_BLOCKS_COMPARE(EVERY_ROW) CH_BLOCKS_SELECT(EVERY_ROW)
                           CH_BLOCKS_FILL(EVERY_ROW) CH_BLOCKS_LOGIC(LOGIC_ROW)},
    .cast = {[CH_F32] = CAST_ROW(f32),
             [CH_F64] = CAST_ROW_ODD(f64, f64_to_odd),
             [CH_I8] = CAST_ROW(i8),
             [CH_I16] = CAST_ROW(i16),
             [CH_I32] = CAST_ROW_ODD(i32, i32_to_odd),
             [CH_I64] = CAST_ROW_ODD(i64, i64_to_odd),
             [CH_U8] = CAST_ROW(u8),
             [CH_U16] = CAST_ROW(u16),
             [CH_U32] = CAST_ROW_ODD(u32, u32_to_odd),
             [CH_U64] = CAST_ROW_ODD(u64, u64_to_odd),
             [CH_BOOL] = CAST_ROW(u8)},
    .widen = {[CH_BF16] = widen_bf16, [CH_F16] = widen_f16},
    .narrow = {[CH_BF16] = narrow_bf16, [CH_F16] = narrow_f16},
    .round = {[CH_BF16] = round_bf16, [CH_F16] = round_f16},
    .repeat = {[1] = repeat1, [2] = repeat2, [4] = repeat4, [8] = repeat8},
};
