/* kernel/math32.h -- f32 functions without branches, for loops that the compiler vectorises.
 *
 * Each function is a few additions and multiplications in a fixed order, so it gives the same
 * bits in a vector of any width and in a scalar. NaN gives NaN. Infinities, zeros of both signs
 * and subnormal numbers give the correct results. The largest errors over all arguments, in
 * units in the last place (test/kernel/test_block.c checks them):
 *
 *     exp 1     expm1 2   log 1    log1p 2.5   sin, cos, pow 0.51   tanh 1.5   sigmoid 2.75
 *     erf 1.6   silu 4    softplus 2.75   gelu 4   gelu_tanh 4
 *
 * Only sources that are compiled once for each SIMD level (kernel/simd.h) may include this
 * file. Its callers are block.c, norm_loops.c, reduce_loops.c and philox.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_MATH32_H
#define KERNEL_MATH32_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernel/simd.h"

CH_SIMD_INLINE uint32_t ch__bits32(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

CH_SIMD_INLINE float ch__float32(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof(x));
    return x;
}

CH_SIMD_INLINE double ch__float64(uint64_t u)
{
    double x;

    memcpy(&x, &u, sizeof(x));
    return x;
}

/* Returns 2^n for n in [-126, 127]. */
CH_SIMD_INLINE float ch__power32(int32_t n)
{
    return ch__float32((uint32_t)(n + 127) << 23);
}

/* Adding this constant rounds a number to an integer, which is then in the low bits of the
 * sum. */
#define CH_MAGIC32 0x1.8p23f

/* ln 2 in two parts: a number with few digits, so that small multiples are exact, and the
 * rest. */
#define CH_LN2_HIGH 0x1.63p-1f
#define CH_LN2_LOW  (-2.12194440e-4f)

/* Returns r^2 P(r), where exp(r) = 1 + r + r^2 P(r) for |r| <= ln 2 / 2. */
CH_SIMD_INLINE float ch__exp32_tail(float r)
{
    float p = 1.9875691500e-4f;

    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return p * r * r;
}

/* Sets a and b to normal powers of two with the product 2^n. |n| must be at most 252. */
CH_SIMD_INLINE void ch__powers32(int32_t n, float *a, float *b)
{
    int32_t half = n >> 1;

    *a = ch__power32(half);
    *b = ch__power32(n - half);
}

/* Returns y such that exp(x - low) = (1 + y) * a * b. a and b are normal even if the result is
 * subnormal, so a caller that multiplies by another factor first keeps the digits of a tail. x
 * must be in [-170, 170], and low must be less than a unit in the last place of x. */
CH_SIMD_INLINE float ch__exp32_parts(float x, float low, float *a, float *b)
{
    float t = x * 1.44269504089f + CH_MAGIC32, k = t - CH_MAGIC32, r;

    ch__powers32((int32_t)(ch__bits32(t) - ch__bits32(CH_MAGIC32)), a, b);
    r = x - k * CH_LN2_HIGH;
    r = r - (k * CH_LN2_LOW + low);
    return ch__exp32_tail(r) + r;
}

CH_SIMD_INLINE float ch__exp32(float x)
{
    float a, b, y;

    x = x < -104 ? -104 : x; /* the result is 0 from here down */
    x = x > 89 ? 89 : x;     /* and infinity from here up; NaN stays NaN */
    y = ch__exp32_parts(x, 0, &a, &b) + 1;
    return y * a * b;
}

/* Computes 2^n (exp(r) - 1) + (2^n - 1). The rounding error of r is added back. */
CH_SIMD_INLINE float ch__expm132(float x)
{
    float   t, k, high, low, r, y, scale, at = x;
    int32_t n;

    x = x < -20 ? -20 : x; /* the result is -1 from here down */
    x = x > 89 ? 89 : x;
    t = x * 1.44269504089f + CH_MAGIC32;
    k = t - CH_MAGIC32;
    n = (int32_t)(ch__bits32(t) - ch__bits32(CH_MAGIC32));
    high = x - k * CH_LN2_HIGH;
    low = k * CH_LN2_LOW;
    r = high - low;
    low = (high - r) - low;
    y = ch__exp32_tail(r) + (low + low * r) + r;
    scale = ch__power32(n - 1); /* 2^(n - 1), because 2^128 is not finite in f32 */
    y = 2 * (scale * y + (scale - 0.5f));
    return at == 0 ? at : y;
}

/* Returns T(f) with log(1 + f) = f - f^2 / 2 + T(f), for 1 + f between sqrt(1/2) and
 * sqrt(2). */
CH_SIMD_INLINE float ch__log32_tail(float f)
{
    float z = f * f, p = 7.0376836292e-2f;

    p = p * f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    return p * f * z;
}

/* Splits x = 2^n m with m between sqrt(1/2) and sqrt(2). Returns n. x must be normal and
 * positive. */
CH_SIMD_INLINE float ch__split32(float x, float *m)
{
    uint32_t u = ch__bits32(x) + (0x3f800000 - 0x3f3504f3);

    *m = ch__float32((u & 0x7fffff) + 0x3f3504f3);
    return (float)((int32_t)(u >> 23) - 127);
}

CH_SIMD_INLINE float ch__log32(float x)
{
    int   is_small = x < 0x1p-126f;
    float scaled = x * 0x1p23f, m, n, f, y;

    n = ch__split32(is_small ? scaled : x, &m);
    n = is_small ? n - 23 : n;
    f = m - 1;
    y = ch__log32_tail(f) + n * CH_LN2_LOW;
    y = y - 0.5f * f * f;
    y = (f + y) + n * CH_LN2_HIGH;
    y = x == 0 ? -INFINITY : y;
    y = x >= 0 ? y : NAN;
    return x < INFINITY ? y : x + x; /* infinity and NaN; y covers x < 0 */
}

/* Computes the log of u = 1 + x. The rounding error of u is added back. */
CH_SIMD_INLINE float ch__log1p32(float x)
{
    float u = 1 + x, m, n, f, lost, y;

    n = ch__split32(u, &m);
    lost = n > 0 ? 1 - (u - x) : x - (u - 1);
    lost = n == 0 ? 0 : lost / u;
    f = n == 0 ? x : m - 1;
    y = ch__log32_tail(f) + (n * CH_LN2_LOW + lost);
    y = y - 0.5f * f * f;
    y = (f + y) + n * CH_LN2_HIGH;
    y = x == 0 ? x : y;
    y = x == -1 ? -INFINITY : y;
    y = x >= -1 ? y : NAN;
    return x < INFINITY ? y : x + x;
}

/* The argument of the exponential is never positive, so neither end loses digits. */
CH_SIMD_INLINE float ch__sigmoid32(float x)
{
    float e = ch__exp32(-fabsf(x)), y = 1 / (1 + e), low = e * y;

    return x < 0 ? low : y;
}

CH_SIMD_INLINE float ch__tanh32(float x)
{
    float a = fabsf(x), z = x * x, p = -5.70498872745e-3f, large, small;

    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    small = p * z * a + a;
    large = 1 - 2 / (ch__exp32(2 * a) + 1);
    return copysignf(a < 0.625f ? small : large, x);
}

/* Returns log(1 - erf(t)) for t in [0.92, 4]. */
CH_SIMD_INLINE float ch__log_erfc32(float t)
{
    float s = t * t, r, u;

    r = -1.72853470e-5f * t + 3.83197126e-4f;
    u = -3.88396438e-3f * t + 2.42546219e-2f;
    r = r * s + u;
    r = r * t - 1.06777877e-1f;
    r = r * t - 6.34846687e-1f;
    r = r * t - 1.28717512e-1f;
    return r * t - t;
}

/* Returns erf(t) = t + t P(t^2) for t in [0, 0.93]. */
CH_SIMD_INLINE float ch__erf32_near(float t)
{
    float s = t * t, r = -5.96761703e-4f;

    r = r * s + 4.99119423e-3f;
    r = r * s - 2.67681349e-2f;
    r = r * s + 1.12819925e-1f;
    r = r * s - 3.76125336e-1f;
    r = r * s + 1.28379166e-1f;
    return r * t + t;
}

#define CH_ERF_CUT 0.927734375f

CH_SIMD_INLINE float ch__erf32(float x)
{
    float t = fabsf(x), near, far;

    near = ch__erf32_near(t);
    t = t > 4 ? 4 : t; /* the result is 1 from here up */
    far = 1 - ch__exp32(ch__log_erfc32(t));
    return copysignf(t > CH_ERF_CUT ? far : near, x);
}

/* Returns x e / (1 + e) for x < 0 and x / (1 + e) otherwise, where e = m a b is exp(-|u|). From
 * `least` down the result is -0; the clamp avoids infinity times 0. */
CH_SIMD_INLINE float ch__times_sigmoid32(float x, float least, float m, float a, float b)
{
    float y = 1 / (1 + m * a * b);

    return x < 0 ? (x < least ? least : x) * (m * y) * a * b : x * y;
}

/* Returns P(X > t) for a standard normal X and t in [0, 14.7]. e must be exp(-t^2 / 2) - 1. If
 * e is the result of ch__exp32_parts, the caller must multiply the result by its powers of two.
 *
 * P exp(t^2 / 2) is w = 1.5 / (1.5 + t) times a polynomial of w, fitted for the least relative
 * error (0.13 units). The rounding error of the sum 1.5 + t is added back to w. The last term
 * and e are added together, which saves a rounding. */
CH_SIMD_INLINE double ch__normal_tail32(float t, float e)
{
    float sum = 1.5f + t, lost = t - (sum - 1.5f), w = 1.5f / sum, z, p = -1.957158893e-1f;

    w = w - w * w * (lost * 0.666666667f);
    z = w - 0.5625f;
    p = p * z + 1.772648841e-1f;
    p = p * z + 6.217730045e-2f;
    p = p * z - 1.791503131e-1f;
    p = p * z + 1.400702745e-1f;
    p = p * z - 2.279397659e-2f;
    p = p * z - 1.077126339e-1f;
    p = p * z + 1.572610885e-1f;
    p = p * z - 5.211873353e-2f;
    p = p * z - 1.670346111e-1f;
    p = p * z + 2.400256544e-1f;
    p = p * z;
    return (double)w * (4.272001982e-1f + (p + e * (p + 4.272001982e-1f)));
}

/* Returns x P(X < x) for a standard normal X. The square of t = |x| is computed from the upper
 * half of the digits of t, which is exact. The rest of the square enters the exponential
 * separately. */
CH_SIMD_INLINE float ch__gelu32(float x)
{
    float  t = fabsf(x), high, e, a, b;
    double c;

    t = t > 14.6f ? 14.6f : t; /* the result is -0 or x from here on */
    high = ch__float32(ch__bits32(t) & 0xfffff000);
    e = ch__exp32_parts(-0.5f * (high * high), 0.5f * ((t - high) * (t + high)), &a, &b);
    c = ch__normal_tail32(t, e);
    return x < 0 ? (float)((double)(x < -14.6f ? -14.6f : x) * c) * a * b
                 : x * (1 - (float)c * a * b);
}

#define CH_MAGIC64 0x1.8p52

/* x (1 + tanh(u)) / 2 is x sigmoid(2 u). An absolute error of 2 u becomes a relative error of
 * the result, so 2 u is computed in f64. */
CH_SIMD_INLINE float ch__gelu_tanh32(float x)
{
    float  t = fabsf(x), a, b, m, r;
    double u, k;

    t = t > 11 ? 11 : t; /* the result is -0 or x from here on */
    u = (double)t * -(1.5957691216057308 + 0.07135481627260025 * ((double)t * (double)t));
    k = (u * 1.44269504088896340736 + CH_MAGIC64) - CH_MAGIC64;
    r = (float)(u - k * 0.69314718055994530942);
    ch__powers32((int32_t)k, &a, &b);
    m = ch__exp32_tail(r) + r + 1;
    return ch__times_sigmoid32(x, -11, m, a, b);
}

CH_SIMD_INLINE float ch__silu32(float x)
{
    float t = fabsf(x), a, b, m;

    t = t > 110 ? 110 : t; /* the result is -0 or x from here on */
    m = ch__exp32_parts(-t, 0, &a, &b) + 1;
    return ch__times_sigmoid32(x, -110, m, a, b);
}

CH_SIMD_INLINE float ch__softplus32(float x)
{
    return (x < 0 ? 0 : x) + ch__log1p32(ch__exp32(-fabsf(x)));
}

/* ---- computed in f64, with a single rounding at the end ---- */

/* sin32 and cos32 require |x| below this limit. For larger arguments and NaN the caller must
 * use libm. */
#define CH_WAVE_LIMIT 0x1p28f

/* Computes sin(r) and cos(r), where x = n pi / 2 + r and |r| <= pi / 4. Returns n mod 4. */
CH_SIMD_INLINE int32_t ch__wave32(float x, double *sine, double *cosine)
{
    double n = ((double)x * 0.636619772367581343076 + CH_MAGIC64) - CH_MAGIC64;
    double r = (double)x - n * 1.57079631090164184570 - n * 1.58932547735281966916e-8;
    double z = r * r, w = z * z, s = z * r;

    *sine = (r + s * (-0.166666666416265235595 + z * 0.0083333293858894631756)) +
            s * w * (-0.000198393348360966317347 + z * 0.0000027183114939898219064);
    *cosine = ((1 + z * -0.499999997251031003120) + w * 0.0416666233237390631894) +
              w * z * (-0.00138867637746099294692 + z * 0.0000243904487962774090654);
    return (int32_t)n & 3;
}

CH_SIMD_INLINE float ch__sin32(float x)
{
    double  s, c, y;
    int32_t q = ch__wave32(x, &s, &c);

    y = (q & 1) != 0 ? c : s;
    y = (q & 2) != 0 ? -y : y;
    return x == 0 ? x : (float)y;
}

CH_SIMD_INLINE float ch__cos32(float x)
{
    double  s, c, y;
    int32_t q = ch__wave32(x, &s, &c);

    y = (q & 1) != 0 ? s : c;
    return (float)(((q + 1) & 2) != 0 ? -y : y);
}

/* Returns log2 of a positive number to about 40 bits: 2 / ln 2 atanh(s) with s = (m - 1) / (m +
 * 1). */
CH_SIMD_INLINE double ch__log2_64(float x)
{
    int    is_small = x < 0x1p-126f;
    float  scaled = x * 0x1p23f, m32;
    double n = (double)ch__split32(is_small ? scaled : x, &m32), m = (double)m32;
    double s = (m - 1) / (m + 1), z = s * s, p = 0.0588235294117647;

    p = p * z + 0.0666666666666667;
    p = p * z + 0.0769230769230769;
    p = p * z + 0.0909090909090909;
    p = p * z + 0.111111111111111;
    p = p * z + 0.142857142857143;
    p = p * z + 0.2;
    p = p * z + 0.333333333333333;
    p = s + s * z * p;
    return (is_small ? n - 23 : n) + p * 2.88539008177792681472;
}

/* Returns 2^w as f32, for any w. Beyond the exponents of f32 the result is 0 or infinity. */
CH_SIMD_INLINE float ch__exp2_64(double w)
{
    double  t, f, p = 1.32154867901443094884e-6;
    int32_t n;

    w = w > -160 ? w : -160; /* NaN becomes -160; the caller handles NaN */
    w = w > 130 ? 130 : w;
    t = (w + CH_MAGIC64) - CH_MAGIC64;
    f = w - t;
    n = (int32_t)t;
    p = p * f + 1.52527338040598402800e-5;
    p = p * f + 1.54035303933816099544e-4;
    p = p * f + 1.33335581464284434234e-3;
    p = p * f + 9.61812910762847716198e-3;
    p = p * f + 5.55041086648215799532e-2;
    p = p * f + 2.40226506959100712333e-1;
    p = p * f + 6.93147180559945309417e-1;
    p = p * f + 1;
    return (float)(p * ch__float64((uint64_t)(n + 1023) << 52));
}

/* Computes |x|^y by way of log2, then the sign, then the cases that C defines for zeros, ones
 * and negative x. */
CH_SIMD_INLINE float ch__pow32(float x, float y)
{
    float  a = fabsf(x), whole = rintf(y), half = rintf(0.5f * y), r;
    double l = ch__log2_64(a);

    l = a == 0 ? -(double)INFINITY : l;
    l = a == INFINITY ? (double)INFINITY : l;
    r = ch__exp2_64((double)y * l);
    r = a == 1 && y == y ? 1 : r;
    r = x < 0 && a < INFINITY && whole != y ? NAN : r;
    r = (ch__bits32(x) >> 31) != 0 && whole == y && half * 2 != y ? -r : r;
    r = x == x && y == y ? r : x + y;
    return y == 0 || x == 1 ? 1 : r;
}

#endif
