/* test/data/test_number.c -- numbers are read from text exactly, and stored if the dtype holds
 * them.
 *
 * The model of floats is strtod and strtof of the C library, in the C locale, which a program
 * has when it starts.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "help.h"

#include <math.h>

#include "data/format/number.h"
#include "data/format/show.h"
#include "random.h"

static uint64_t bits_of(double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static double f64_of(uint64_t bits)
{
    double x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

static ch_parsed parse(ch_dtype dtype, const char *s, void *to)
{
    char     *alone = t_alone(s, strlen(s));
    ch_parsed rc = ch__number_parse(dtype, (ch_str){alone, strlen(s)}, to);

    free(alone);
    return rc;
}

static void assert_as_the_library(const char *s)
{
    double x = 0, want = strtod(s, NULL);
    float  y = 0, want_y = strtof(s, NULL);

    if (parse(CH_F64, s, &x) != CH_PARSED || parse(CH_F32, s, &y) != CH_PARSED)
        fail_msg("\"%s\" was not parsed", s);
    if (bits_of(x) != bits_of(want))
        fail_msg("\"%.60s\": %a, and not %a", s, want, x);
    if (bits_of((double)y) != bits_of((double)want_y))
        fail_msg("\"%.60s\" as f32: %a, and not %a", s, (double)want_y, (double)y);
}

/* ---- floats ---- */

static void number_parse_rounds_hard_cases_right(void **state)
{
    static const char *const rows[] = {"0",
                                       "-0",
                                       "0.0",
                                       "0e999999999999",
                                       "1",
                                       "-1",
                                       "3.",
                                       ".5",
                                       "1e22",
                                       "1e23",
                                       "1E-22",
                                       "9007199254740992",
                                       "9007199254740993",
                                       "9007199254740993.00000000000000000000001",
                                       "9007199254740991e22",
                                       "9007199254740991e-22",
                                       "179769313486231580793728971405301e276",
                                       "1.7976931348623157e308",
                                       "1.7976931348623158e308",
                                       "1.797693134862315807e308",
                                       "1.7976931348623159e308",
                                       "1e309",
                                       "-1e400",
                                       "1e99999999999999999999",
                                       "1e-400",
                                       "1e-99999999999999999999",
                                       "4.9406564584124654e-324",
                                       "2.4703282292062327e-324",
                                       "2.4703282292062328e-324",
                                       "2.2250738585072011e-308",
                                       "2.2250738585072012e-308",
                                       "2.2250738585072014e-308",
                                       "6.631236846766476e-316",
                                       "1.00000005960464477539062",
                                       "1.000000059604644775390625",
                                       "1.00000005960464477539063",
                                       "16777217",
                                       "16777219",
                                       "16777217.0000000000000000001",
                                       "3.4028235677973366e38",
                                       "3.4028235677973365e38",
                                       "3.40282356779733661637539395458142568448e38",
                                       "1.1754943508222875e-38",
                                       "7.006492321624085e-46",
                                       "7.0064923216240853546186479164495807e-46",
                                       "7.0064923216240853546186479164495806e-46",
                                       "1.401298464324817e-45",
                                       "12345678901234567890123456789",
                                       "0.000000000000000000000000000000000012345678901234567",
                                       "123456789012345678901234567890e-40",
                                       "0000000000000000000000000000000000000000001.5"};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_as_the_library(rows[i]);
    (void)state;
}

/* Writes a number, the midpoint of two neighbours, or a number next to the midpoint. */
static void roll_float(dice *d, char *s, size_t size)
{
    double x = f64_of(roll_bits(d) & ~((uint64_t)1 << 62) &
                      (roll(d, 2) ? ~(uint64_t)0 : ~(uint64_t)7 << 29));
    int    n;

    if (!isfinite(x))
        x = 1;
    switch (roll(d, 6)) {
    case 0: /* short numbers, as people write them */
        snprintf(s, size, "%.*f", (int)roll(d, 8), (double)(int64_t)roll_bits(d) / 0x1p43);
        break;
    case 1: /* long numbers, as programs write them */
        snprintf(s, size, "%.*e", (int)roll(d, 20), f64_of(roll_bits(d) % 0x7fefffffffffffffu));
        break;
    case 2:
        snprintf(s, size, "%.17g", x);
        break;
    case 3:               /* between two doubles: the midpoint, or a little more */
        if (roll(d, 2)) { /* 54 bits, the last of which is 1, times a power of two */
            snprintf(s, size, "%llu", ((1ull << 53) | roll_bits(d) >> 11 | 1) << roll(d, 10));
            break;
        }
        x = (double)(roll_bits(d) >> 11);
        n = snprintf(s, size, "%.0f%s", x, roll(d, 2) ? ".5" : ".49999999999999999999999999");
        snprintf(s + n, size - (size_t)n, "%.*s", (int)roll(d, 3), "01");
        break;
    case 4: { /* between two floats */
        double mid =
            (double)(float)f64_of(0x3800000000000000u + roll_bits(d) % 0x0f00000000000000u);

        mid = f64_of(bits_of(mid) | 0x10000000);
        n = snprintf(s, size, "%.*e", 130, mid);
        if (roll(d, 2)) /* increments the last digit */
            s[n - 5] = '1';
        break;
    }
    default: /* between two subnormals */
        snprintf(s, size, "%.*e", (int)roll(d, 60), f64_of(roll_bits(d) >> (12 + roll(d, 52))));
    }
}

static void number_parse_rounds_random_numbers_as_strtod(void **state)
{
    for (uint64_t seed = 0; seed < 60000; seed++) {
        dice d = {seed};
        char s[512];

        roll_float(&d, s, sizeof(s));
        assert_as_the_library(s);
    }
    (void)state;
}

/* Few or many digits, with powers of ten at which the method of conversion changes. */
static void number_parse_rounds_random_digits_as_strtod(void **state)
{
    for (uint64_t seed = 0; seed < 60000; seed++) {
        dice d = {seed};
        char s[80];
        int  n =
            snprintf(s, sizeof(s), "%llu", (unsigned long long)(roll_bits(&d) >> roll(&d, 64)));

        if (roll(&d, 4) == 0)
            n += snprintf(s + n, sizeof(s) - (size_t)n, "%llu",
                          (unsigned long long)roll_bits(&d));
        if (roll(&d, 4) == 0) /* midpoints of doubles have few digits that are not 0 */
            n += snprintf(s + n, sizeof(s) - (size_t)n, "5");
        snprintf(s + n, sizeof(s) - (size_t)n, "e%d", (int)roll(&d, 140) - 70);
        assert_as_the_library(s);
    }
    (void)state;
}

static void number_parse_rounds_long_digits_as_strtod(void **state)
{
    for (uint64_t seed = 0; seed < 2000; seed++) {
        dice d = {seed};
        char s[2600];
        int  n = 0, digits = 1 + (int)roll(&d, 1200), point = (int)roll(&d, 1200);

        for (int i = 0; i < digits; i++) {
            if (i == point)
                s[n++] = '.';
            s[n++] = "0123456789000000"[roll(&d, seed % 2 ? 16 : 10)];
        }
        snprintf(s + n, sizeof(s) - (size_t)n, "e%d", (int)roll(&d, 2000) - 1000);
        assert_as_the_library(s);
    }
    (void)state;
}

/* A midpoint of doubles, with a 1 after a thousand zeros. */
static void number_parse_reads_a_decisive_digit_after_a_thousand_zeros(void **state)
{
    char   s[1200];
    double x;
    int    n = snprintf(s, sizeof(s), "9007199254740993.");

    memset(s + n, '0', 1000);
    snprintf(s + n + 1000, sizeof(s) - (size_t)n - 1000, "1");
    assert_int_equal(parse(CH_F64, s, &x), CH_PARSED);
    assert_true(x == 9007199254740994.0);
    s[n + 1000] = '0';
    assert_int_equal(parse(CH_F64, s, &x), CH_PARSED);
    assert_true(x == 9007199254740992.0);
    (void)state;
}

static void number_parse_reads_inf_and_nan_in_any_case(void **state)
{
    double x;
    float  y;

    assert_int_equal(parse(CH_F64, "inf", &x), CH_PARSED);
    assert_true(x == INFINITY);
    assert_int_equal(parse(CH_F32, "-Infinity", &y), CH_PARSED);
    assert_true(y == -INFINITY);
    assert_int_equal(parse(CH_F64, "+NaN", &x), CH_PARSED);
    assert_true(isnan(x));
    (void)state;
}

static void number_parse_rejects_text_that_is_no_number(void **state)
{
    static const char *const rows[] = {
        "",      " ",      "+",    "-",     ".",   "e5",  ".e5",   "1e",      "1e+",
        "1.5.2", "1,5",    "0x10", "1 2",   "--1", "+-1", "1e5.0", "infinit", "infinityy",
        "na",    "nan(1)", "1f",   "1_000", "\n1", "1\r", "1e5e5", "in",      "\v1"};
    double x = 7;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (parse(CH_F64, rows[i], &x) != CH_NO_NUMBER)
            fail_msg("\"%s\" was parsed", rows[i]);
        assert_int_equal(parse(CH_F32, rows[i], &x), CH_NO_NUMBER);
        assert_int_equal(parse(CH_I64, rows[i], &x), CH_NO_NUMBER);
        assert_int_equal(parse(CH_BOOL, rows[i], &x), CH_NO_NUMBER);
    }
    assert_int_equal(ch__number_parse(CH_F64, (ch_str){NULL, 0}, &x), CH_NO_NUMBER);
    assert_int_equal(ch__number_parse(CH_F64, (ch_str){"1\0002", 3}, &x), CH_NO_NUMBER);
    assert_true(x == 7);
    (void)state;
}

static void number_parse_ignores_blanks_around_it(void **state)
{
    double  x;
    int64_t i;
    uint8_t b;

    assert_int_equal(parse(CH_F64, " \t 1.5\t ", &x), CH_PARSED);
    assert_true(x == 1.5);
    assert_int_equal(parse(CH_I64, " -3 ", &i), CH_PARSED);
    assert_int_equal(i, -3);
    assert_int_equal(parse(CH_BOOL, " true", &b), CH_PARSED);
    assert_int_equal(b, 1);
    (void)state;
}

static void number_parse_rounds_16_bit_floats(void **state)
{
    uint16_t x;

    assert_int_equal(parse(CH_BF16, "1.0078125", &x), CH_PARSED);
    assert_true(ch__bf16_to_f32(x) == 1.0078125f);
    assert_int_equal(parse(CH_F16, "65504", &x), CH_PARSED);
    assert_true(ch__f16_to_f32(x) == 65504.0f);
    assert_int_equal(parse(CH_F16, "1e9", &x), CH_PARSED);
    assert_true(ch__f16_to_f32(x) == INFINITY);
    (void)state;
}

/* ---- integers ---- */

static void number_parse_accepts_integers_up_to_the_limits_of_their_dtype(void **state)
{
    static const struct {
        ch_dtype    dtype;
        const char *low, *high, *below, *above;
    } rows[] = {
        {CH_I8, "-128", "127", "-129", "128"},
        {CH_U8, "0", "255", "-1", "256"},
        {CH_I16, "-32768", "32767", "-32769", "32768"},
        {CH_U16, "-0", "65535", "-1", "65536"},
        {CH_I32, "-2147483648", "2147483647", "-2147483649", "2147483648"},
        {CH_U32, "0", "4294967295", "-1", "4294967296"},
        {CH_I64, "-9223372036854775808", "9223372036854775807", "-9223372036854775809",
         "9223372036854775808"},
        {CH_U64, "0", "18446744073709551615", "-1", "18446744073709551616"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char x[8], text_of[32];

        assert_int_equal(parse(rows[i].dtype, rows[i].low, x), CH_PARSED);
        assert_true(ch__load(rows[i].dtype, x) == strtod(rows[i].low, NULL));
        snprintf(text_of, sizeof(text_of), "+000%s", rows[i].high);
        assert_int_equal(parse(rows[i].dtype, text_of, x), CH_PARSED);
        assert_true(ch__load(rows[i].dtype, x) == strtod(rows[i].high, NULL));
        assert_int_equal(parse(rows[i].dtype, rows[i].below, x), CH_NOT_HELD);
        assert_int_equal(parse(rows[i].dtype, rows[i].above, x), CH_NOT_HELD);
        assert_int_equal(parse(rows[i].dtype, "99999999999999999999999999", x), CH_NOT_HELD);
        assert_int_equal(parse(rows[i].dtype, "-99999999999999999999999999", x), CH_NOT_HELD);
        assert_int_equal(parse(rows[i].dtype, "1.0", x), CH_NO_NUMBER);
        assert_int_equal(parse(rows[i].dtype, "inf", x), CH_NO_NUMBER);
    }
    (void)state;
}

static void number_parse_reads_a_bool_as_0_1_true_or_false(void **state)
{
    static const char *const no[] = {"2", "00", "t", "yes", "truee", "-1", "tru"};
    uint8_t                  x = 9;

    assert_int_equal(parse(CH_BOOL, "1", &x), CH_PARSED);
    assert_int_equal(x, 1);
    assert_int_equal(parse(CH_BOOL, "False", &x), CH_PARSED);
    assert_int_equal(x, 0);
    assert_int_equal(parse(CH_BOOL, "TRUE", &x), CH_PARSED);
    assert_int_equal(x, 1);
    assert_int_equal(parse(CH_BOOL, "0", &x), CH_PARSED);
    assert_int_equal(x, 0);
    for (size_t i = 0; i < sizeof(no) / sizeof(no[0]); i++)
        assert_int_equal(parse(CH_BOOL, no[i], &x), CH_NO_NUMBER);
    (void)state;
}

/* ---- text in messages ---- */

static void show_escapes_and_cuts_bytes_for_messages(void **state)
{
    char     long_text[100];
    ch_shown all;

    assert_string_equal(ch__show(t_text("a \"b\" \\ \t\x7f\xff")).text,
                        "\"a \\\"b\\\" \\\\ \\x09\\x7f\\xff\"");
    memset(long_text, 'x', sizeof(long_text));
    all = ch__show((ch_str){long_text, sizeof(long_text)});
    assert_int_equal(strlen(all.text), 40 + 5);
    assert_string_equal(all.text + 40, "x...\"");
    memset(long_text, 0, sizeof(long_text));
    all = ch__show((ch_str){long_text, sizeof(long_text)});
    assert_int_equal(strlen(all.text), 4 * 40 + 5); /* the text is not cut off */
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(number_parse_rounds_hard_cases_right),
        cmocka_unit_test(number_parse_rounds_random_numbers_as_strtod),
        cmocka_unit_test(number_parse_rounds_random_digits_as_strtod),
        cmocka_unit_test(number_parse_rounds_long_digits_as_strtod),
        cmocka_unit_test(number_parse_reads_a_decisive_digit_after_a_thousand_zeros),
        cmocka_unit_test(number_parse_reads_inf_and_nan_in_any_case),
        cmocka_unit_test(number_parse_rejects_text_that_is_no_number),
        cmocka_unit_test(number_parse_ignores_blanks_around_it),
        cmocka_unit_test(number_parse_rounds_16_bit_floats),
        cmocka_unit_test(number_parse_accepts_integers_up_to_the_limits_of_their_dtype),
        cmocka_unit_test(number_parse_reads_a_bool_as_0_1_true_or_false),
        cmocka_unit_test(show_escapes_and_cuts_bytes_for_messages),
    };
    return cmocka_run_group_tests_name("number", tests, NULL, NULL);
}
