/* test/kernel/test_block.c -- accuracy of block functions, and equal bits at all SIMD levels.
 *
 * Block functions compute many elements of an elementwise op or a cast. The tests compare them
 * with libm in a wider type, with the conversions of tensors, and with each other at every
 * level; then they check limits, NaN, infinities and integer division.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/block.h"
#include "tensor/tensor.h"

enum { N = 4096 };

static const char *const names[] = {
#define NAME(op) #op,
    CH_BLOCKS(NAME)
#undef NAME
};

static uint64_t bits(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static float float_of(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof(x));
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

/* ---- exactness ---- */

static double sigmoid(double x)
{
    double e = exp(-fabs(x));

    return x < 0 ? e / (1 + e) : 1 / (1 + e);
}

static double gelu(double x)
{
    return x < -60 ? -0.0 : x * 0.5 * erfc(-x / sqrt(2));
}

static double gelu_tanh(double x)
{
    return x < -60 ? -0.0 : x * sigmoid(sqrt(8 / M_PI) * (x + 0.044715 * x * x * x));
}

static double silu(double x)
{
    return x < -800 ? -0.0 : x * sigmoid(x);
}

static double softplus(double x)
{
    return (x < 0 ? 0 : x) + log1p(exp(-fabs(x)));
}

static double rsqrt_(double x)
{
    return 1 / sqrt(x);
}

/* Returns the distance to the next float; y must be finite. */
static double unit(double y)
{
    int e;

    if (fabs(y) < 0x1p-126)
        return 0x1p-149;
    frexp(y, &e);
    return ldexp(1, e - 24);
}

typedef struct promise {
    ch_block_code code;
    double (*f)(double);
    double most; /* units in the last place of the result, */
    bool   of_x; /* or of the argument, whichever unit is larger */
} promise;

static const promise promises[] = {
    {CH_BLOCK_exp, exp, 1, false},        {CH_BLOCK_expm1, expm1, 2, false},
    {CH_BLOCK_log, log, 1, false},        {CH_BLOCK_log1p, log1p, 2.5, false},
    {CH_BLOCK_sin, sin, 0.51, false},     {CH_BLOCK_cos, cos, 0.51, false},
    {CH_BLOCK_tanh, tanh, 1.5, false},    {CH_BLOCK_sigmoid, sigmoid, 2.75, false},
    {CH_BLOCK_erf, erf, 1.6, false},      {CH_BLOCK_softplus, softplus, 2.75, false},
    {CH_BLOCK_rsqrt, rsqrt_, 1.5, false}, {CH_BLOCK_silu, silu, 4, false},
    {CH_BLOCK_gelu, gelu, 4, false},      {CH_BLOCK_gelu_tanh, gelu_tanh, 4, false},
    {CH_BLOCK_sqrt, sqrt, 0.5, false},    {CH_BLOCK_floor, floor, 0, false},
    {CH_BLOCK_ceil, ceil, 0, false},      {CH_BLOCK_round, nearbyint, 0, false},
};

static void check_value(const char *name, double x, float got, double want, double room)
{
    double value = isinf(got) ? copysign(0x1p128, got) : (double)got;

    if (isnan(want) ? isnan(got) : (float)want == got && (want != 0 || got == 0))
        return;
    if (isinf(want) || isnan(want) || isnan(got) || fabs(value - want) > room)
        fail_msg("%s(%.9g) is %.9g, want %.9g: %.3g units are allowed", name, x, (double)got,
                 want, room / unit((float)want));
}

static void check_promise(const promise *p, const float *x, int n)
{
    static float y[N];
    const void  *in[1] = {x};

    ch__blocks()->fn[p->code][CH_F32](n, in, y, NULL);
    for (int i = 0; i < n; i++) {
        double want = p->f((double)x[i]), u = unit(isfinite(want) ? want : 0x1p127);

        if (p->of_x && isfinite(x[i]))
            u = fmax(u, unit((double)x[i]));
        check_value(names[p->code], (double)x[i], y[i], want, p->most * u);
        if (want == 0 && !p->of_x && !signbit(want) != !signbit(y[i]))
            fail_msg("%s(%.9g) is a zero of the other sign", names[p->code], (double)x[i]);
    }
}

static const float special[] = {
    0.0f,       -0.0f,       0x1p-149f,   -0x1p-149f,  0x1p-126f, -0x1p-126f, 0x1.fffffep-127f,
    1.0f,       -1.0f,       0.5f,        -0.5f,       1.5f,      2.5f,       -2.5f,
    88.7f,      88.72283f,   88.8f,       -87.3f,      -103.9f,   -104.5f,    0x1p23f,
    0x1p24f,    0x1p28f,     -0x1p28f,    0x1p127f,    -0x1p127f, 3.4e38f,    -3.4e38f,
    INFINITY,   -INFINITY,   NAN,         0x1p31f,     -0x1p31f,  0x1p32f,    0x1p63f,
    -0x1p63f,   0x1p64f,     127.5f,      128.0f,      -128.5f,   -129.0f,    255.9f,
    256.0f,     32767.9f,    65535.9f,    65536.0f,    1e-40f,    1e-8f,      0.927734375f,
    0.9277344f, 0.41421354f, 0.70710677f, 16777217.0f, 1e10f,     -1e10f,     65520.0f,
};
enum { N_SPECIAL = sizeof(special) / sizeof(special[0]) };

/* Visits all floats in steps of a prime, and the special values. */
static void block_functions_of_f32_are_within_their_bounds(void **state)
{
    static float x[N];

    for (size_t k = 0; k < sizeof(promises) / sizeof(promises[0]); k++) {
        uint64_t u = 0;

        check_promise(&promises[k], special, N_SPECIAL);
        while (u <= UINT32_MAX) {
            int n = 0;

            for (; n < N && u <= UINT32_MAX; u += 8191)
                x[n++] = float_of((uint32_t)u);
            check_promise(&promises[k], x, n);
        }
    }
    (void)state;
}

/* The same functions in long double. x is an f64, so 11 more bits are enough to measure
 * units. */
static long double long_sigmoid(long double x)
{
    long double e = expl(-fabsl(x));

    return x < 0 ? e / (1 + e) : 1 / (1 + e);
}

static long double long_gelu(long double x)
{
    return 0.5L * x * erfcl(-x * 0.707106781186547524400844362104849039L);
}

static long double long_gelu_tanh(long double x)
{
    return x * long_sigmoid(1.595769121605730711759542332L * (x + 0.044715L * x * x * x));
}

static long double long_silu(long double x)
{
    return x * long_sigmoid(x);
}

/* include/cohort/math.h: within 5 (1 + x^2) units in the last place. For subnormal results the
 * unit is the smallest number. */
static void gelu_and_silu_in_f64_are_within_their_bound(void **state)
{
    static const struct {
        ch_block_code code;
        long double (*f)(long double);
        double from;
    } row[] = {{CH_BLOCK_gelu, long_gelu, -40},
               {CH_BLOCK_gelu_tanh, long_gelu_tanh, -25},
               {CH_BLOCK_silu, long_silu, -760}};
    static double x[N], y[N];
    const void   *in[1] = {x};

    for (size_t k = 0; k < sizeof(row) / sizeof(row[0]); k++)
        for (int part = 0; part < 20; part++) {
            for (int i = 0; i < N; i++)
                x[i] = row[k].from + (40 - row[k].from) * (part * N + i) / (20.0 * N);
            ch__blocks()->fn[row[k].code][CH_F64](N, in, y, NULL);
            for (int i = 0; i < N; i++) {
                long double want = row[k].f((long double)x[i]), room;
                int         e = -1021;

                if (fabsl(want) >= 0x1p-1022L)
                    frexpl(want, &e);
                room = 5 * (1 + (long double)x[i] * (long double)x[i]) * ldexpl(1, e - 53);
                if (!(fabsl((long double)y[i] - want) <= room))
                    fail_msg("%s(%.17g) is %.17g, want %.17Lg", names[row[k].code], x[i], y[i],
                             want);
            }
        }
    (void)state;
}

static void check_powers(int n, const float *x, const float *y)
{
    static float got[N];
    const void  *in[2] = {x, y};

    ch__blocks()->fn[CH_BLOCK_pow][CH_F32](n, in, got, NULL);
    for (int i = 0; i < n; i++) {
        double want = pow((double)x[i], (double)y[i]);

        if (isnan(want) ? isnan(got[i])
                        : (float)want == got[i] && !signbit(want) == !signbit(got[i]))
            continue;
        if (!(fabs((double)got[i] - want) <= 0.51 * unit(isfinite(want) ? want : 1)))
            fail_msg("pow(%.9g, %.9g) is %.9g, want %.9g", (double)x[i], (double)y[i],
                     (double)got[i], want);
    }
}

static void block_pow_is_exact_and_follows_c(void **state)
{
    static float x[N], y[N];
    uint64_t     seed = 7;

    for (int i = 0; i < N_SPECIAL; i++) {
        for (int k = 0; k < N_SPECIAL; k++)
            x[k] = special[i];
        check_powers(N_SPECIAL, x, special);
    }
    for (int turn = 0; turn < 100; turn++) {
        for (int i = 0; i < N; i++) {
            double l = (double)(bits(&seed) >> 11) * 0x1p-53 * 160 - 80;

            x[i] = turn % 2 == 0 ? float_of((uint32_t)bits(&seed)) : (float)exp(l / 4);
            y[i] = turn % 2 == 0
                       ? float_of((uint32_t)bits(&seed))
                       : (float)((double)((int64_t)bits(&seed) >> 11) * 0x1p-52 * 90 / l);
        }
        check_powers(N, x, y);
    }
    (void)state;
}

/* ---- levels ---- */

/* Fills random bits of all kinds, with small numbers among them. */
static void fill(ch_dtype t, void *at, int n, uint64_t *seed)
{
    size_t size = ch_dtype_bytes(t);

    for (int i = 0; i < n; i++) {
        uint64_t u = bits(seed);
        void    *to = (char *)at + (size_t)i * size;

        memcpy(to, &u, size);
        if (t == CH_BOOL)
            *(uint8_t *)to = u & 1;
        else if (u >> 60 < 8)
            ch__store(t, to, (double)((int)(u >> 20 & 63) - 32) / (u >> 60 < 4 ? 1 : 8));
        else if (u >> 60 == 8)
            ch__store(t, to, (double)special[(u >> 20) % N_SPECIAL]);
    }
}

/* Returns true if the bits are equal. All NaNs are equal, because the compiler chooses which of
 * two NaNs is the result. */
static bool alike(ch_dtype t, const void *a, const void *b)
{
    double x = ch__load(t, a), y = ch__load(t, b);

    return memcmp(a, b, ch_dtype_bytes(t)) == 0 ||
           (ch_dtype_is_float(t) && isnan(x) && isnan(y));
}

static void check_levels(const char *what, ch_dtype from, ch_dtype to, const ch_block_fn *fn,
                         const void *const *in)
{
    static const double      param[4] = {-0.75, 1.5};
    static _Alignas(64) char want[N * 8 + 64], got[N * 8 + 64];

    for (int n = 0; n < 200; n += n < 70 ? 1 : 61)
        for (int level = CH_SIMD_BASE; level <= (int)ch__simd_best(); level++) {
            size_t size = ch_dtype_bytes(to);

            memset(want, 0xa5, (size_t)n * size + 64);
            memset(got, 0xa5, (size_t)n * size + 64);
            fn[CH_SIMD_BASE](n, in, want, param);
            fn[level](n, in, got, param);
            for (int i = 0; i < n; i++)
                if (!alike(to, want + (size_t)i * size, got + (size_t)i * size))
                    fail_msg("%s of %s: level %s differs at %d of %d: %.17g, base has %.17g",
                             what, ch_dtype_name(from), ch__simd_name((ch_simd)level), i, n,
                             ch__load(to, got + (size_t)i * size),
                             ch__load(to, want + (size_t)i * size));
            assert_memory_equal(want + (size_t)n * size, got + (size_t)n * size, 64);
        }
}

static bool is_compare(int code)
{
    return code >= CH_BLOCK_equal && code <= CH_BLOCK_greater_equal;
}

static void block_functions_have_the_same_bits_at_every_level(void **state)
{
    static _Alignas(64) char a[N * 8], b[N * 8], c[N];
    uint64_t                 seed = 11;

    for (int code = 0; code < CH_BLOCK_COUNT; code++)
        for (int t = 0; t < CH_DTYPE_COUNT; t++) {
            ch_block_fn fn[3] = {0};
            const void *in[3] = {a, b, b};

            if (ch__blocks()->fn[code][t] == NULL)
                continue;
            for (int level = 0; level <= (int)ch__simd_best(); level++)
                fn[level] = ch__blocks_at((ch_simd)level)->fn[code][t];
            fill((ch_dtype)t, a, 256, &seed);
            fill((ch_dtype)t, b, 256, &seed);
            fill(CH_BOOL, c, 256, &seed);
            if (code == CH_BLOCK_select)
                in[0] = c, in[1] = a;
            check_levels(names[code], (ch_dtype)t, is_compare(code) ? CH_BOOL : (ch_dtype)t, fn,
                         in);
        }
    (void)state;
}

static void block_casts_have_the_same_bits_at_every_level(void **state)
{
    static _Alignas(64) char a[N * 8];
    uint64_t                 seed = 13;

    for (int from = 0; from < CH_DTYPE_COUNT; from++)
        for (int to = 0; to < CH_DTYPE_COUNT; to++) {
            ch_block_fn fn[3] = {0};
            const void *in[1] = {a};

            if (ch__blocks()->cast[from][to] == NULL)
                continue;
            for (int level = 0; level <= (int)ch__simd_best(); level++)
                fn[level] = ch__blocks_at((ch_simd)level)->cast[from][to];
            fill((ch_dtype)from, a, 256, &seed);
            check_levels("cast", (ch_dtype)from,
                         to == CH_BF16 || to == CH_F16 ? CH_F32 : (ch_dtype)to, fn, in);
        }
    (void)state;
}

/* The result may overwrite an input whose elements have the same size. */
static void block_functions_may_write_over_an_input(void **state)
{
    static _Alignas(64) char a[N * 8], b[N * 8], want[N * 8];
    static const double      param[4] = {-0.75, 1.5};
    uint64_t                 seed = 17;

    for (int code = 0; code < CH_BLOCK_COUNT; code++)
        for (int t = 0; t < CH_DTYPE_COUNT; t++) {
            ch_block_fn fn = ch__blocks()->fn[code][t];
            size_t      size = ch_dtype_bytes((ch_dtype)t);
            const void *in[3] = {a, b, b};

            if (fn == NULL || code == CH_BLOCK_select || (is_compare(code) && size != 1))
                continue;
            fill((ch_dtype)t, a, 1001, &seed);
            fill((ch_dtype)t, b, 1001, &seed);
            fn(1001, in, want, param);
            fn(1001, in, a, param);
            for (int i = 0; i < 1001; i++)
                if (!alike(is_compare(code) ? CH_BOOL : (ch_dtype)t, want + (size_t)i * size,
                           a + (size_t)i * size))
                    fail_msg("%s of %s over its input differs at %d", names[code],
                             ch_dtype_name((ch_dtype)t), i);
        }
    (void)state;
}

/* ---- 16-bit floats ---- */

static void check_widening(ch_dtype t, float (*want)(uint16_t))
{
    static uint16_t x[65536];
    static float    y[65536];
    const void     *in[1] = {x};

    for (int i = 0; i < 65536; i++)
        x[i] = (uint16_t)i;
    for (int level = CH_SIMD_BASE; level <= (int)ch__simd_best(); level++) {
        ch__blocks_at((ch_simd)level)->widen[t](65536, in, y, NULL);
        for (int i = 0; i < 65536; i++)
            if (bits_of(y[i]) != bits_of(want(x[i])) &&
                bits_of(y[i]) != (bits_of(want(x[i])) | 0x400000)) /* NaN becomes quiet */
                fail_msg("%s 0x%04x at level %s is %.9g", ch_dtype_name(t), (unsigned)i,
                         ch__simd_name((ch_simd)level), (double)y[i]);
    }
}

static void check_narrowing(ch_dtype t, uint16_t (*want)(float), float (*back)(uint16_t))
{
    static float    x[N], y[N];
    static uint16_t h[N];
    const void     *in[1] = {x};

    for (uint64_t u = 0; u <= UINT32_MAX;) {
        int n = 0;

        for (; n < N && u <= UINT32_MAX; u += 1021)
            x[n++] = float_of((uint32_t)u);
        for (int level = CH_SIMD_BASE; level <= (int)ch__simd_best(); level++) {
            ch__blocks_at((ch_simd)level)->narrow[t](n, in, h, NULL);
            ch__blocks_at((ch_simd)level)->round[t](n, in, y, NULL);
            for (int i = 0; i < n; i++) {
                uint16_t w = want(x[i]);

                if (h[i] != w || bits_of(y[i]) != bits_of(back(w)))
                    fail_msg("%.9g (0x%08x) as %s at level %s is 0x%04x and %.9g, want 0x%04x",
                             (double)x[i], bits_of(x[i]), ch_dtype_name(t),
                             ch__simd_name((ch_simd)level), h[i], (double)y[i], w);
            }
        }
    }
}

static void block_casts_of_f16_and_bf16_agree_with_tensors(void **state)
{
    check_widening(CH_BF16, ch__bf16_to_f32);
    check_widening(CH_F16, ch__f16_to_f32);
    check_narrowing(CH_BF16, ch__bf16_of_f32, ch__bf16_to_f32);
    check_narrowing(CH_F16, ch__f16_of_f32, ch__f16_to_f32);
    (void)state;
}

/* ---- casts ---- */

/* Casts of types that f64 holds exactly agree with the conversion of a double by tensors. */
static void block_casts_agree_with_tensors(void **state)
{
    static const ch_dtype    exact[] = {CH_F32, CH_F64, CH_I8,  CH_I16,
                                        CH_I32, CH_U8,  CH_U16, CH_U32};
    static _Alignas(64) char x[N * 8], y[N * 8];
    uint64_t                 seed = 19;

    for (size_t f = 0; f < sizeof(exact) / sizeof(exact[0]); f++)
        for (int t = 0; t < CH_DTYPE_COUNT; t++) {
            ch_dtype    from = exact[f], to = (ch_dtype)t;
            ch_block_fn fn = ch__blocks()->cast[from][to];
            bool        wraps = !ch_dtype_is_float(from) && ch_dtype_is_int(to);
            const void *in[1] = {x};

            if (fn == NULL || wraps)
                continue;
            fill(from, x, N, &seed);
            fn(N, in, y, NULL);
            if (to == CH_BF16 || to == CH_F16) {
                const void *wide[1] = {y};

                ch__blocks()->narrow[to](N, wide, y, NULL);
            }
            for (int i = 0; i < N; i++) {
                size_t   size = ch_dtype_bytes(to);
                double   v = ch__load(from, x + (size_t)i * ch_dtype_bytes(from));
                uint64_t want = 0;

                ch__store(to, &want, v);
                if (!alike(to, y + (size_t)i * size, &want))
                    fail_msg("%s %.17g as %s is %.17g, want %.17g", ch_dtype_name(from), v,
                             ch_dtype_name(to), ch__load(to, y + (size_t)i * size),
                             ch__load(to, &want));
            }
        }
    (void)state;
}

static void block_casts_wrap_integers(void **state)
{
    const int64_t x[] = {-1, 300, INT64_MIN, (int64_t)1 << 40, 0x12345678abcdefff};
    const void   *in[1] = {x};
    int8_t        i8[5];
    uint32_t      u32[5];
    uint64_t      u64[5];
    uint8_t       truth[5];

    ch__blocks()->cast[CH_I64][CH_I8](5, in, i8, NULL);
    ch__blocks()->cast[CH_I64][CH_U32](5, in, u32, NULL);
    ch__blocks()->cast[CH_I64][CH_U64](5, in, u64, NULL);
    ch__blocks()->cast[CH_I64][CH_BOOL](5, in, truth, NULL);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(i8[i], (int8_t)(uint8_t)(uint64_t)x[i]);
        assert_int_equal(u32[i], (uint32_t)(uint64_t)x[i]);
        assert_true(u64[i] == (uint64_t)x[i]);
        assert_int_equal(truth[i], 1);
    }
    (void)state;
}

/* The result must be as if all 64 bits were rounded once. */
static void block_casts_round_large_integers_to_the_nearest_16_bit_float(void **state)
{
    static int64_t x[N];
    static float   f[N];
    uint64_t       seed = 23;
    const void    *in[1] = {x};

    for (int i = 0; i < N; i++) {
        int shift = (int)(bits(&seed) % 40);

        /* Numbers half way between two bf16 numbers, and close to it. */
        x[i] = (int64_t)((bits(&seed) | (uint64_t)1 << 63) >> (1 + shift) &
                         ~((uint64_t)0xffffffffffffff >> (1 + shift)));
        x[i] |= (int64_t)((uint64_t)1 << 54 >> shift);
        x[i] += (int64_t)(bits(&seed) % 3) - 1;
        if (bits(&seed) % 2 == 0)
            x[i] = -x[i];
    }
    ch__blocks()->cast[CH_I64][CH_BF16](N, in, f, NULL);
    for (int i = 0; i < N; i++) {
        uint16_t    got = ch__bf16_of_f32(f[i]);
        long double v = (long double)x[i], at = (long double)ch__bf16_to_f32(got);
        long double up = (long double)ch__bf16_to_f32((uint16_t)(got + 1));
        long double down = (long double)ch__bf16_to_f32((uint16_t)(got - 1));
        long double off = fabsl(v - at);

        if (off > fabsl(v - up) || off > fabsl(v - down) ||
            ((off == fabsl(v - up) || off == fabsl(v - down)) && (got & 1) != 0))
            fail_msg("%lld becomes %Lg", (long long)x[i], at);
    }
    (void)state;
}

/* ---- edges ---- */

static int64_t floor_of(int64_t a, int64_t b)
{
    __int128 q = (__int128)a / b;

    return (int64_t)(q - ((__int128)a % b != 0 && (a < 0) != (b < 0)));
}

static int64_t trunc_of(int64_t a, int64_t b)
{
    int64_t size = llabs(a) / llabs(b);

    return (a < 0) != (b < 0) ? -size : size;
}

static void block_integer_division_never_traps(void **state)
{
    static const int32_t edge[] = {0,  1, -1, 2,         -2,        3,
                                   -3, 7, -7, INT32_MAX, INT32_MIN, 1000003};
    enum { EDGES = sizeof(edge) / sizeof(edge[0]) };
    int32_t     a[EDGES * EDGES], b[EDGES * EDGES], q[EDGES * EDGES], r[EDGES * EDGES];
    int32_t     whole[EDGES * EDGES];
    const void *in[2] = {a, b};

    for (int i = 0; i < EDGES * EDGES; i++) {
        a[i] = edge[i / EDGES];
        b[i] = edge[i % EDGES];
    }
    ch__blocks()->fn[CH_BLOCK_floordiv][CH_I32](EDGES * EDGES, in, q, NULL);
    ch__blocks()->fn[CH_BLOCK_mod][CH_I32](EDGES * EDGES, in, r, NULL);
    ch__blocks()->fn[CH_BLOCK_div][CH_I32](EDGES * EDGES, in, whole, NULL);
    for (int i = 0; i < EDGES * EDGES; i++) {
        int64_t want = b[i] == 0 ? 0 : floor_of(a[i], b[i]);

        assert_int_equal(q[i], (int32_t)want); /* smallest / -1 wraps to itself */
        assert_int_equal(r[i], b[i] == 0 ? 0 : (int32_t)(a[i] - want * b[i]));
        assert_int_equal(whole[i], b[i] == 0 ? 0 : (int32_t)trunc_of(a[i], b[i]));
    }
    (void)state;
}

static void block_floordiv_of_i8_is_right_for_all_pairs(void **state)
{
    static int8_t a[65536], b[65536], y[65536];
    const void   *in[2] = {a, b};

    for (int i = 0; i < 65536; i++) {
        a[i] = (int8_t)(i >> 8);
        b[i] = (int8_t)(i & 255);
    }
    ch__blocks()->fn[CH_BLOCK_floordiv][CH_I8](65536, in, y, NULL);
    for (int i = 0; i < 65536; i++)
        assert_int_equal(y[i], b[i] == 0 ? 0 : (int8_t)floor_of(a[i], b[i]));
    ch__blocks()->fn[CH_BLOCK_div][CH_I8](65536, in, y, NULL);
    for (int i = 0; i < 65536; i++)
        assert_int_equal(y[i], b[i] == 0 ? 0 : (int8_t)trunc_of(a[i], b[i]));
    ch__blocks()->fn[CH_BLOCK_mul][CH_I8](65536, in, y, NULL);
    for (int i = 0; i < 65536; i++)
        assert_int_equal(y[i], (int8_t)(a[i] * b[i]));
    ch__blocks()->fn[CH_BLOCK_abs][CH_I8](65536, in, y, NULL);
    for (int i = 0; i < 65536; i++)
        assert_int_equal(y[i], a[i] == INT8_MIN ? INT8_MIN : abs(a[i]));
    ch__blocks()->fn[CH_BLOCK_floordiv][CH_U8](65536, in, y, NULL);
    for (int i = 0; i < 65536; i++)
        assert_int_equal((uint8_t)y[i], b[i] == 0 ? 0 : (i >> 8) / (i & 255));
    ch__blocks()->fn[CH_BLOCK_div][CH_U8](65536, in, y, NULL);
    for (int i = 0; i < 65536; i++)
        assert_int_equal((uint8_t)y[i], b[i] == 0 ? 0 : (i >> 8) / (i & 255));
    (void)state;
}

/* The results of numpy. */
static void block_floordiv_of_floats_agrees_with_numpy(void **state)
{
    static const struct {
        double a, b, q, r;
    } row[] = {
        {7, 3, 2, 1},
        {-7, 3, -3, 2},
        {7, -3, -3, -2},
        {-7, -3, 2, -1},
        {1, 0.1, 9, 0.1 - 5.551115123125783e-17},
        {6, 3, 2, 0},
        {-6, 3, -2, 0},
        {-1, INFINITY, -1, INFINITY},
        {1, INFINITY, 0, 1},
        {1, -INFINITY, -1, -INFINITY},
        {5, 0, INFINITY, NAN},
        {-5, 0, -INFINITY, NAN},
        {0, 0, NAN, NAN},
        {INFINITY, 1, NAN, NAN},
        {NAN, 1, NAN, NAN},
    };

    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        const void *in[2] = {&row[i].a, &row[i].b};
        double      q, r;

        ch__blocks()->fn[CH_BLOCK_floordiv][CH_F64](1, in, &q, NULL);
        ch__blocks()->fn[CH_BLOCK_mod][CH_F64](1, in, &r, NULL);
        if (!(q == row[i].q || (isnan(q) && isnan(row[i].q))) ||
            !(fabs(r - row[i].r) < 1e-16 || r == row[i].r || (isnan(r) && isnan(row[i].r))))
            fail_msg("%g and %g: floordiv %.17g, mod %.17g", row[i].a, row[i].b, q, r);
    }
    (void)state;
}

static float one(ch_block_code code, float a, float b)
{
    const double param[4] = {-1, 1};
    const void  *in[2] = {&a, &b};
    float        y;

    ch__blocks()->fn[code][CH_F32](1, in, &y, param);
    return y;
}

static void block_functions_propagate_nan(void **state)
{
    static const ch_block_code all[] = {
        CH_BLOCK_minimum, CH_BLOCK_maximum, CH_BLOCK_relu,       CH_BLOCK_clip, CH_BLOCK_sign,
        CH_BLOCK_abs,     CH_BLOCK_neg,     CH_BLOCK_leaky_relu, CH_BLOCK_elu,  CH_BLOCK_add,
        CH_BLOCK_gelu,    CH_BLOCK_silu,    CH_BLOCK_gelu_tanh,  CH_BLOCK_mod};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (!isnan(one(all[i], NAN, 1)))
            fail_msg("%s(NaN) is %g", names[all[i]], (double)one(all[i], NAN, 1));
    assert_true(isnan(one(CH_BLOCK_minimum, 1, NAN)));
    assert_true(isnan(one(CH_BLOCK_maximum, 1, NAN)));
    (void)state;
}

static void block_activations_of_infinity_are_their_limits(void **state)
{
    assert_true(one(CH_BLOCK_gelu, -INFINITY, 0) == 0);
    assert_true(one(CH_BLOCK_gelu_tanh, -INFINITY, 0) == 0);
    assert_true(one(CH_BLOCK_silu, -INFINITY, 0) == 0);
    assert_true(one(CH_BLOCK_gelu, INFINITY, 0) == INFINITY);
    assert_true(one(CH_BLOCK_gelu_tanh, INFINITY, 0) == INFINITY);
    assert_true(one(CH_BLOCK_silu, INFINITY, 0) == INFINITY);
    assert_true(one(CH_BLOCK_softplus, -INFINITY, 0) == 0);
    assert_true(one(CH_BLOCK_elu, -INFINITY, 0) == 1); /* alpha is -1 here */
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gelu_and_silu_in_f64_are_within_their_bound),
        cmocka_unit_test(block_functions_of_f32_are_within_their_bounds),
        cmocka_unit_test(block_pow_is_exact_and_follows_c),
        cmocka_unit_test(block_functions_have_the_same_bits_at_every_level),
        cmocka_unit_test(block_casts_have_the_same_bits_at_every_level),
        cmocka_unit_test(block_functions_may_write_over_an_input),
        cmocka_unit_test(block_casts_of_f16_and_bf16_agree_with_tensors),
        cmocka_unit_test(block_casts_agree_with_tensors),
        cmocka_unit_test(block_casts_wrap_integers),
        cmocka_unit_test(block_casts_round_large_integers_to_the_nearest_16_bit_float),
        cmocka_unit_test(block_integer_division_never_traps),
        cmocka_unit_test(block_floordiv_of_i8_is_right_for_all_pairs),
        cmocka_unit_test(block_floordiv_of_floats_agrees_with_numpy),
        cmocka_unit_test(block_functions_propagate_nan),
        cmocka_unit_test(block_activations_of_infinity_are_their_limits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
