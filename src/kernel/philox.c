/* kernel/philox.c -- Philox in lanes, and the distributions of its words; compiled for each
 * SIMD level.
 *
 * words() computes the random words. The other functions of ch_philox_table turn words into
 * uniform numbers, normal numbers, and decisions (dropout, Bernoulli). Callers reach the table
 * through ch__philox() (philox_pick.c): ops/ and kernel/init.c.
 *
 * Invariant: all SIMD levels give the same bits. So the logarithm of f64 and the quantiles are
 * written here, without branches and without the logarithm of libm.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/philox.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernel/math32.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* ---- words ----
 *
 * Each 32-bit word is in a 64-bit lane, because its products have 64 bits. The upper half of a
 * lane is ignored. Two vectors are computed at a time to hide the latency of the multiplier. */

enum {
    LANES = CH_PHILOX_LANES,
    GROUP = CH_PHILOX_GROUP,
#if defined(__AVX512F__)
    WIDTH = 8,
#elif defined(__AVX2__)
    WIDTH = 4,
#else
    WIDTH = 2,
#endif
};

typedef uint64_t wide __attribute__((vector_size(WIDTH * 8)));
typedef uint32_t narrow __attribute__((vector_size(WIDTH * 4)));

CH_SIMD_INLINE wide times(wide a, wide b)
{
#if defined(__AVX512F__)
    return (wide)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (wide)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
    return (wide)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
    return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

typedef struct counter {
    wide at[4];
} counter;

CH_SIMD_INLINE counter philox_round(counter c, uint32_t k0, uint32_t k1)
{
    wide a = times((wide){0} + 0xD2511F53u, c.at[0]),
         b = times((wide){0} + 0xCD9E8D57u, c.at[2]);

    return (counter){{(b >> 32) ^ c.at[1] ^ k0, b, (a >> 32) ^ c.at[3] ^ k1, a}};
}

CH_SIMD_INLINE void store(counter c, uint32_t *w)
{
    for (int k = 0; k < 4; k++) {
        narrow n = __builtin_convertvector(c.at[k], narrow);

        memcpy(w + k * LANES, &n, sizeof(n));
    }
}

/* Computes 2 * WIDTH blocks from block `first` on. `first` must be a multiple of 2 * WIDTH, so
 * that no lane carries. */
CH_SIMD_INLINE void two_vectors(const ch_philox *p, uint64_t first, uint32_t *w)
{
    static const uint64_t number[] = {0, 1, 2, 3, 4, 5, 6, 7};
    const wide            none = {0};
    wide                  lane;
    counter               c, d;

    memcpy(&lane, number, sizeof(lane));
    c = (counter){
        {lane + (uint32_t)first, none + (first >> 32), none + p->high[0], none + p->high[1]}};
    d = c;
    d.at[0] += WIDTH;
    for (uint32_t r = 0; r < 10; r++) {
        uint32_t k0 = p->key[0] + r * 0x9E3779B9u, k1 = p->key[1] + r * 0xBB67AE85u;

        c = philox_round(c, k0, k1);
        d = philox_round(d, k0, k1);
    }
    store(c, w);
    store(d, w + WIDTH);
}

static void words(const ch_philox *p, int64_t group, int64_t n_groups, uint32_t *w)
{
    for (int64_t g = 0; g < n_groups; g++)
        for (int i = 0; i < LANES; i += 2 * WIDTH)
            two_vectors(p, (uint64_t)(group + g) * LANES + (uint64_t)i, w + g * GROUP + i);
}

/* ---- uniform ---- */

static void uniform_f32(int64_t n, const uint32_t *w, float lo, float size, float top,
                        float *out)
{
    for (int64_t i = 0; i < n; i++) {
        float x = lo + (float)(int32_t)(w[i] >> 8) * 0x1p-24f * size;

        out[i] = x < top ? x : top;
    }
}

/* Returns the 52 upper bits of a draw of two words as a number in [0, 1). */
CH_SIMD_INLINE double unit(uint32_t high, uint32_t low)
{
    uint64_t bits = (((uint64_t)high << 32 | low) >> 12) | 0x3ff0000000000000u;
    double   x;

    memcpy(&x, &bits, sizeof(x));
    return x - 1;
}

/* Returns the words of draw i of two words. The draw is in lane i % 16, in the first or second
 * half of its group. */
CH_SIMD_INLINE const uint32_t *pair(const uint32_t *w, int64_t i)
{
    return w + i / LANES * 2 * LANES;
}

static void uniform_f64(int64_t n, const uint32_t *w, double lo, double size, double top,
                        double *out)
{
    for (int64_t i = 0; i < n; i += LANES) {
        const uint32_t *v = pair(w, i);
        int             m = n - i < LANES ? (int)(n - i) : LANES;

        for (int k = 0; k < m; k++) {
            double x = lo + unit(v[k], v[k + LANES]) * size;

            out[i + k] = x < top ? x : top;
        }
    }
}

/* ---- normal ---- */

/* Returns the natural logarithm of a normal number, to about an ulp, without a branch. As in
 * FreeBSD's e_log.c, x = 2^e (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2). */
CH_SIMD_INLINE double log_of(double x)
{
    uint64_t bits, shifted;
    double   f, e, s, z, r, half;

    memcpy(&bits, &x, sizeof(bits));
    bits += 0x3ff0000000000000u - 0x3fe6a09e667f3bcdu; /* exponent of 2^e */
    shifted = (bits >> 52) | 0x4330000000000000u;
    memcpy(&e, &shifted, sizeof(e));
    e -= 4503599627370496.0 + 1023;
    bits = (bits & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu;
    memcpy(&f, &bits, sizeof(f));
    f -= 1;
    s = f / (2 + f);
    z = s * s;
    r = z *
        (6.666666666666735130e-01 +
         z * (3.999999999940941908e-01 +
              z * (2.857142874366239149e-01 +
                   z * (2.222219843214978396e-01 +
                        z * (1.818357216161805012e-01 +
                             z * (1.531383769920937332e-01 + z * 1.479819860511658591e-01))))));
    half = 0.5 * f * f;
    return e * 6.93147180369123816490e-01 -
           ((half - (s * (half + r) + e * 1.90821492927058770002e-10)) - f);
}

/* A quotient. The quantile follows Wichura, algorithm AS 241 (PPND16): within 0.425 of the
 * middle it is a rational function of the distance from the middle; beyond, another rational
 * function of sqrt(-log(p)). Both are computed and only one is divided, so that the lanes stay
 * together. */
typedef struct ratio {
    double over, under;
} ratio;

CH_SIMD_INLINE ratio near_middle(double q)
{
    double r = 0.180625 - q * q;
    double a = 2.5090809287301226727e3, b = 5.2264952788528545610e3;

    a = a * r + 3.3430575583588128105e4;
    a = a * r + 6.7265770927008700853e4;
    a = a * r + 4.5921953931549871457e4;
    a = a * r + 1.3731693765509461125e4;
    a = a * r + 1.9715909503065514427e3;
    a = a * r + 1.3314166789178437745e2;
    a = a * r + 3.3871328727963666080e0;
    b = b * r + 2.8729085735721942674e4;
    b = b * r + 3.9307895800092710610e4;
    b = b * r + 2.1213794301586595867e4;
    b = b * r + 5.3941960214247511077e3;
    b = b * r + 6.8718700749205790830e2;
    b = b * r + 4.2313330701600911252e1;
    b = b * r + 1;
    return (ratio){q * a, b};
}

CH_SIMD_INLINE ratio far_out(double p)
{
    double r = sqrt(-log_of(p)) - 1.6;
    double c = 7.74545014278341407640e-4, d = 1.05075007164441684324e-9;

    c = c * r + 2.27238449892691845833e-2;
    c = c * r + 2.41780725177450611770e-1;
    c = c * r + 1.27045825245236838258e0;
    c = c * r + 3.64784832476320460504e0;
    c = c * r + 5.76949722146069140550e0;
    c = c * r + 4.63033784615654529590e0;
    c = c * r + 1.42343711074968357734e0;
    d = d * r + 5.47593808499534494600e-4;
    d = d * r + 1.51986665636164571966e-2;
    d = d * r + 1.48103976427480074590e-1;
    d = d * r + 6.89767334985100004550e-1;
    d = d * r + 1.67638483018380384940e0;
    d = d * r + 2.05319162663775882187e0;
    d = d * r + 1;
    return (ratio){c, d};
}

CH_SIMD_INLINE double quantile(double u)
{
    double q = u - 0.5, p = q < 0 ? u : 1 - u;
    bool   is_near = q >= -0.425 && q <= 0.425;
    ratio  middle = near_middle(q), out;

    p = p > 1.4e-11 ? p : 1.4e-11; /* limit of these coefficients: 6.65 deviations */
    out = far_out(p);
    out.over = q < 0 ? -out.over : out.over;
    return (is_near ? middle.over : out.over) / (is_near ? middle.under : out.under);
}

/* Returns the quantile for f32 (PPND7). q is the distance from the middle, p the distance from
 * the nearer end. Both come from the word itself, so neither loses digits. */
CH_SIMD_INLINE float quantile32(float q, float p)
{
    float r = 0.180625f - q * q, t = sqrtf(-ch__log32(p)) - 1.6f;
    float a = 59.109374720f, b = 67.187563600f, c = 0.17023821103f, d = 0.12021132975f;
    bool  is_near = q >= -0.425f && q <= 0.425f;

    a = a * r + 159.29113202f;
    a = a * r + 50.434271938f;
    a = a * r + 3.3871327179f;
    b = b * r + 78.757757664f;
    b = b * r + 17.895169469f;
    b = b * r + 1;
    c = c * t + 1.3067284816f;
    c = c * t + 2.7568153900f;
    c = c * t + 1.4234372777f;
    d = d * t + 0.73700164250f;
    d = d * t + 1;
    c = q < 0 ? -c : c;
    return (is_near ? q * a : c) / (is_near ? b : d);
}

static void normal_f32(int64_t n, const uint32_t *w, const ch_normal *p, float *out)
{
    float mean = (float)p->mean, deviation = (float)p->deviation;
    float from = (float)p->from, width = (float)p->width;

    for (int64_t i = 0; i < n; i++) {
        uint32_t flip = 0u - (w[i] >> 31);
        float    q = ((float)(int32_t)(w[i] ^ 0x80000000u) + 0.5f) * 0x1p-32f;
        float    end = ((float)(int32_t)(w[i] ^ flip) + 0.5f) * 0x1p-32f;

        out[i] = mean + deviation * quantile32(width * q, from + width * end);
    }
}

static void normal_f64(int64_t n, const uint32_t *w, const ch_normal *p, double *out)
{
    double mean = p->mean, deviation = p->deviation, from = p->from, width = p->width;

    for (int64_t i = 0; i < n; i += LANES) {
        const uint32_t *v = pair(w, i);
        int             m = n - i < LANES ? (int)(n - i) : LANES;

        for (int k = 0; k < m; k++)
            out[i + k] =
                mean +
                deviation * quantile(from + width * (unit(v[k], v[k + LANES]) + 0x1p-53));
    }
}

/* ---- decisions ---- */

static void keep_f32(int64_t n, const uint32_t *w, uint32_t least, float scale, const float *x,
                     float *out)
{
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        out[i] = w[i] >= least ? x[i] * scale : 0;
}

static void keep_f64(int64_t n, const uint32_t *w, uint32_t least, double scale,
                     const double *x, double *out)
{
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        out[i] = w[i] >= least ? x[i] * scale : 0;
}

static void pick_1(int64_t n, const uint32_t *w, uint32_t most, uint8_t one, uint8_t *out)
{
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        out[i] = w[i] <= most ? one : 0;
}

static void pick_2(int64_t n, const uint32_t *w, uint32_t most, uint16_t one, uint16_t *out)
{
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        out[i] = w[i] <= most ? one : 0;
}

static void pick_4(int64_t n, const uint32_t *w, uint32_t most, uint32_t one, uint32_t *out)
{
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        out[i] = w[i] <= most ? one : 0;
}

static void pick_8(int64_t n, const uint32_t *w, uint32_t most, uint64_t one, uint64_t *out)
{
    CH_SIMD_LOOP
    for (int64_t i = 0; i < n; i++)
        out[i] = w[i] <= most ? one : 0;
}

const ch_philox_table CH_SIMD_NAME(ch__philox_table) = {
    .words = words,
    .uniform_f32 = uniform_f32,
    .uniform_f64 = uniform_f64,
    .normal_f32 = normal_f32,
    .normal_f64 = normal_f64,
    .keep_f32 = keep_f32,
    .keep_f64 = keep_f64,
    .pick_1 = pick_1,
    .pick_2 = pick_2,
    .pick_4 = pick_4,
    .pick_8 = pick_8,
};
