/* test/tensor/test_half.c -- 16-bit floats round to nearest, ties to even.
 *
 * The model searches the nearest 16-bit number among all of them. The tests compare it with the
 * conversions of f32 and f64 for all exponents and next to every tie.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "tensor/tensor.h"

static float float_of(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof(x));
    return x;
}

static void f16_to_f32_and_back_is_unchanged(void **state)
{
    for (uint32_t i = 0; i <= UINT16_MAX; i++) {
        float    x = ch__f16_to_f32((uint16_t)i);
        uint16_t back = ch__f16_of_f32(x);

        if (isnan(x))
            assert_int_equal(back, i | 0x200); /* NaN is made quiet */
        else
            assert_int_equal(back, i);
    }
    (void)state;
}

static void bf16_to_f32_and_back_is_unchanged(void **state)
{
    for (uint32_t i = 0; i <= UINT16_MAX; i++) {
        float    x = ch__bf16_to_f32((uint16_t)i);
        uint16_t back = ch__bf16_of_f32(x);

        if (isnan(x))
            assert_int_equal(back, i | 0x40);
        else
            assert_int_equal(back, i);
    }
    (void)state;
}

/* Returns the value of the bits of an f16, by the definition. */
static double f16_by_definition(uint16_t x)
{
    int    exponent = x >> 10 & 0x1f, fraction = x & 0x3ff;
    double magnitude;

    if (exponent == 0x1f)
        magnitude = fraction != 0 ? NAN : INFINITY;
    else if (exponent == 0)
        magnitude = ldexp(fraction, -24);
    else
        magnitude = ldexp(1024 + fraction, exponent - 25);
    return x & 0x8000 ? -magnitude : magnitude;
}

static void f16_to_f32_agrees_with_the_definition(void **state)
{
    for (uint32_t i = 0; i <= UINT16_MAX; i++) {
        double want = f16_by_definition((uint16_t)i);
        double got = (double)ch__f16_to_f32((uint16_t)i);

        assert_true(isnan(want) ? isnan(got) : got == want && signbit(got) == signbit(want));
    }
    (void)state;
}

/* Finds the nearest 16-bit number by search: for |x|, the largest that is not above it, or its
 * successor. Infinity stands for the number after the largest, so that overflow rounds as in
 * IEEE 754. */
static uint16_t nearest_by_search(double x, double (*decode)(uint16_t), uint16_t infinity,
                                  double beyond)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0, low = 0, high = infinity;
    double   m = fabs(x);

    if (isinf(x))
        return sign | infinity;
    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);

        *(decode(middle) <= m ? &low : &high) = middle;
    }
    double below = m - decode(low), above = (high == infinity ? beyond : decode(high)) - m;
    bool   up = above < below || (above == below && (low & 1) != 0);
    return sign | (up ? high : low);
}

static double bf16_by_definition(uint16_t x)
{
    return (double)float_of((uint32_t)x << 16);
}

static uint16_t f16_nearest(double x)
{
    return nearest_by_search(x, f16_by_definition, 0x7c00, 65536.0);
}

static uint16_t bf16_nearest(double x)
{
    return nearest_by_search(x, bf16_by_definition, 0x7f80, 0x1p128);
}

static void assert_rounds(uint32_t bits)
{
    float x = float_of(bits);

    if (isnan(x)) {
        assert_true(isnan(ch__f16_to_f32(ch__f16_of_f32(x))));
        assert_true(isnan(ch__bf16_to_f32(ch__bf16_of_f32(x))));
        return;
    }
    assert_int_equal(ch__f16_of_f32(x), f16_nearest((double)x));
    assert_int_equal(ch__bf16_of_f32(x), bf16_nearest((double)x));
}

static void f32_rounds_to_the_nearest_and_ties_to_even(void **state)
{
    for (uint64_t u = 0; u <= UINT32_MAX; u += 9973) /* a prime: all exponents, all endings */
        assert_rounds((uint32_t)u);
    (void)state;
}

static void f32_beside_every_f16_and_every_middle_rounds_right(void **state)
{
    for (uint16_t i = 0; i < 0x7c00; i++) {
        float x = ch__f16_to_f32(i), next = i + 1 < 0x7c00 ? ch__f16_to_f32(i + 1) : 65536.0f;
        float at[] = {x, x / 2 + next / 2};

        for (int k = 0; k < 2; k++) {
            uint32_t u;

            memcpy(&u, &at[k], sizeof(u));
            assert_rounds(u);
            assert_rounds(u + 1);
            assert_rounds(u > 0 ? u - 1 : 0);
            assert_rounds(u | 0x80000000);
        }
    }
    (void)state;
}

#if defined(__FLT16_MANT_DIG__)
static void f16_agrees_with_the_compiler(void **state)
{
    for (uint64_t u = 0; u <= UINT32_MAX; u += 65521) {
        float    x = float_of((uint32_t)u);
        _Float16 want = (_Float16)x;
        uint16_t bits;

        memcpy(&bits, &want, sizeof(bits));
        if (!isnan(x))
            assert_int_equal(ch__f16_of_f32(x), bits);
    }
    (void)state;
}
#endif

/* A conversion through f32 would round these twice: to a tie, and then to even. */
static void f64_to_16_bits_is_rounded_once(void **state)
{
    uint16_t got;

    for (uint32_t i = 1; i < 0x7bff; i += 7) {
        double middle =
            (f16_by_definition((uint16_t)i) + f16_by_definition((uint16_t)(i + 1))) / 2;

        ch__store(CH_F16, &got, nextafter(middle, INFINITY));
        assert_int_equal(got, i + 1);
        ch__store(CH_F16, &got, nextafter(middle, 0));
        assert_int_equal(got, i);
    }
    ch__store(CH_BF16, &got, 1.0 + 0x1p-8 + 0x1p-50);
    assert_int_equal(got, 0x3f81);
    ch__store(CH_BF16, &got, 1e300);
    assert_int_equal(got, 0x7f80);
    ch__store(CH_F16, &got, -1e-300);
    assert_int_equal(got, 0x8000);
    (void)state;
}

static double stored(ch_dtype dtype, double value)
{
    char at[16] __attribute__((aligned(16))) = {0};

    ch__store(dtype, at, value);
    return ch__load(dtype, at);
}

static void store_of_a_double_out_of_range_saturates_integers(void **state)
{
    static const struct {
        ch_dtype dtype;
        double   least, most;
    } rows[] = {{CH_I8, -128, 127},
                {CH_U8, 0, 255},
                {CH_I16, -32768, 32767},
                {CH_U16, 0, 65535},
                {CH_I32, -0x1p31, 0x1p31 - 1},
                {CH_U32, 0, 0x1p32 - 1},
                {CH_I64, -0x1p63, 0x1p63},
                {CH_U64, 0, 0x1p64}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_true(stored(rows[i].dtype, 1e300) == rows[i].most);
        assert_true(stored(rows[i].dtype, -INFINITY) == rows[i].least);
        assert_true(stored(rows[i].dtype, NAN) == 0);
        assert_true(stored(rows[i].dtype, 7.9) == 7);
    }
    assert_true(stored(CH_I32, -7.9) == -7);
    assert_true(stored(CH_BOOL, 0.5) == 1);
    assert_true(stored(CH_F64, 0.1) == 0.1);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_to_f32_and_back_is_unchanged),
        cmocka_unit_test(bf16_to_f32_and_back_is_unchanged),
        cmocka_unit_test(f16_to_f32_agrees_with_the_definition),
        cmocka_unit_test(f32_rounds_to_the_nearest_and_ties_to_even),
        cmocka_unit_test(f32_beside_every_f16_and_every_middle_rounds_right),
#if defined(__FLT16_MANT_DIG__)
        cmocka_unit_test(f16_agrees_with_the_compiler),
#endif
        cmocka_unit_test(f64_to_16_bits_is_rounded_once),
        cmocka_unit_test(store_of_a_double_out_of_range_saturates_integers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
