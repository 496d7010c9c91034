/* data/format/decimal.c -- converts decimal text to the nearest float.
 *
 * ch__decimal_read parses the text to a ch_decimal. ch__decimal_f64 and ch__decimal_f32 convert
 * it with the first of these methods that applies. data/format/number.c calls them.
 *
 * 1. An integer up to 2^53 is an exact double, and so is 10^k up to k = 22. The product or
 *    quotient of two exact doubles is rounded only once, by the CPU, so it is the nearest
 *    (Clinger 1990). Most numbers in files are of this kind.
 * 2. For up to 19 digits and exponents from -64 to 64, 128 bits of 5^k determine the nearest
 *    double, except in cases that are too close; these are detected (Lemire 2021). Programs
 *    write such numbers.
 * 3. All other numbers go to strtod in the C locale, as plain digits, and no more digits than
 *    matter.
 * 4. A float is the rounded double, unless the double is exactly between two floats. Then the
 *    double may itself be the result of rounding, so strtof converts the text.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "data/format/decimal.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FAST_DIGITS = 19, /* that many digits always fit 64 bits */
    MOST_DIGITS = 800 /* a double, or the midpoint of two doubles, has fewer than 770 digits */
};

/* Limit of the number behind an e. Any larger number has the same result. */
static const int64_t huge_power = 1000000000;

/* ---- reading ---- */

static bool is_digit(const char *at, const char *end)
{
    return at < end && (unsigned char)(*at - '0') < 10;
}

/* Adds digits to the mantissa while there is room. Returns the end of the digits. */
static const char *read_digits(const char *at, const char *end, bool behind_point, int *n,
                               ch_decimal *d)
{
    for (; is_digit(at, end); at++) {
        unsigned digit = (unsigned)(*at - '0');

        if (*n < FAST_DIGITS) {
            d->mantissa = d->mantissa * 10 + digit;
            *n += d->mantissa != 0;
            d->exponent -= behind_point;
        } else {
            d->is_cut |= digit != 0;
            d->exponent += !behind_point;
        }
    }
    return at;
}

/* Parses the number behind an e, up to `end`. */
static bool read_power(const char *at, const char *end, int64_t *out)
{
    bool    is_negative = false;
    int64_t power = 0;

    if (at < end && (*at == '+' || *at == '-'))
        is_negative = *at++ == '-';
    if (!is_digit(at, end))
        return false;
    for (; is_digit(at, end); at++)
        power = power < huge_power ? power * 10 + (*at - '0') : power;
    *out = is_negative ? -power : power;
    return at == end;
}

bool ch__decimal_read(const char *at, const char *end, ch_decimal *d)
{
    int  n = 0;
    bool has_digits;

    *d = (ch_decimal){0};
    if (at < end && (*at == '+' || *at == '-'))
        d->is_negative = *at++ == '-';
    d->at = at;
    at = read_digits(at, end, false, &n, d);
    has_digits = at > d->at;
    if (at < end && *at == '.') {
        const char *point = at;

        at = read_digits(at + 1, end, true, &n, d);
        has_digits |= at > point + 1;
    }
    d->end = at;
    if (!has_digits)
        return false;
    if (at < end && (*at == 'e' || *at == 'E')) {
        if (!read_power(at + 1, end, &d->power))
            return false;
        d->exponent += d->power;
        at = end;
    }
    return at == end;
}

/* ---- converting ---- */

/* Writes the number as at most MOST_DIGITS + 1 digits and an exponent. If the omitted digits
 * are not all 0, appends the digit 1. That is enough, because only the fact that the number is
 * larger can change the rounding. */
static void write_plain(const ch_decimal *d, char *text, size_t size)
{
    size_t  n = 0;
    bool    behind_point = false, is_more = false;
    int64_t power = d->power;

    for (const char *at = d->at; at < d->end; at++) {
        if (*at == '.') {
            behind_point = true;
        } else if (n == 0 && *at == '0') {
            power -= behind_point;
        } else if (n < MOST_DIGITS) {
            text[n++] = *at;
            power -= behind_point;
        } else {
            power += !behind_point;
            is_more |= *at != '0';
        }
    }
    if (is_more) {
        text[n++] = '1';
        power--;
    }
    snprintf(text + n, size - n, "e%lld", (long long)power);
}

/* Returns the locale "C". It always exists and needs no memory, so newlocale cannot fail. */
static locale_t plain_locale(void)
{
    return newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

static double slow_f64(const ch_decimal *d)
{
    char     text[MOST_DIGITS + 32];
    locale_t plain = plain_locale();
    double   x;

    write_plain(d, text, sizeof(text));
    x = strtod_l(text, NULL, plain);
    freelocale(plain);
    return x;
}

static float slow_f32(const ch_decimal *d)
{
    char     text[MOST_DIGITS + 32];
    locale_t plain = plain_locale();
    float    x;

    write_plain(d, text, sizeof(text));
    x = strtof_l(text, NULL, plain);
    freelocale(plain);
    return x;
}

/* ---- fast methods ---- */

typedef unsigned __int128 wide;

/* The 128 highest bits of 5^k, for k from -MOST_POWER to MOST_POWER. */
static const struct {
    uint64_t high, low;
} five[] = {
#include "data/format/decimal_powers.inc"
};

enum { MOST_POWER = (sizeof(five) / sizeof(five[0]) - 1) / 2 };

/* Sets *out to m * 10^k, rounded; m must not be 0. Returns false if the case is too close to
 * decide. The product of m and 5^k is computed to at least 128 bits. Its lower bits matter only
 * if the bits that decide the rounding are all ones, which the first product shows. In this
 * range no double is subnormal and none overflows. */
static bool nearest_f64(uint64_t m, int k, double *out)
{
    int      zeros = __builtin_clzll(m);
    wide     product = (wide)(m << zeros) * five[k + MOST_POWER].high;
    uint64_t high, low, bits;

    if (((uint64_t)(product >> 64) & 0x1ff) == 0x1ff)
        product += ((wide)(m << zeros) * five[k + MOST_POWER].low) >> 64;
    high = (uint64_t)(product >> 64);
    low = (uint64_t)product;
    if (low == UINT64_MAX && (k < -27 || k > 55))
        return false;
    int top = (int)(high >> 63), shift = top + 9;
    bits = high >> shift; /* 54 bits, the last for rounding */
    /* The product is exact and exactly between two doubles: rounds to the even double. */
    if (low <= 1 && k >= -4 && k <= 23 && (bits & 3) == 1 && bits << shift == high)
        bits--;
    bits = (bits + (bits & 1)) >> 1;
    /* The exponent is k * log2(10), with log2(10) as a fraction of sufficient precision. The
     * first of the 53 bits is not stored, so adding it increments the exponent; that is why 1
     * is subtracted. A carry out of the 53 bits increments the exponent too, as it must. */
    int64_t exponent = ((217706 * (int64_t)k) >> 16) + 63 + top - zeros + 1023;
    bits += (uint64_t)(exponent - 1) << 52;
    memcpy(out, &bits, sizeof(*out));
    return true;
}

/* Like nearest_f64 for a mantissa that may be cut. The true value lies between mantissa and
 * mantissa + 1. Returns false unless both round to the same double. */
static bool nearest_of_cut(const ch_decimal *d, double *out)
{
    int    k = (int)d->exponent;
    double more;

    if (!nearest_f64(d->mantissa, k, out))
        return false;
    return !d->is_cut || (nearest_f64(d->mantissa + 1, k, &more) && more == *out);
}

static bool fast_f64(const ch_decimal *d, double *out)
{
    static const double power[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                   1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                   1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

    *out = 0;
    if (d->mantissa == 0)
        return true;
    if (d->mantissa > (uint64_t)1 << 53 || d->is_cut || d->exponent < -22 || d->exponent > 22)
        return d->exponent >= -MOST_POWER && d->exponent <= MOST_POWER &&
               nearest_of_cut(d, out);
    *out = (double)d->mantissa;
    if (d->exponent < 0)
        *out /= power[-d->exponent];
    else
        *out *= power[d->exponent];
    return true;
}

double ch__decimal_f64(const ch_decimal *d)
{
    double x;

    if (!fast_f64(d, &x))
        x = slow_f64(d);
    return d->is_negative ? -x : x;
}

/* Returns true if x is exactly between two floats: a double has 29 more bits than a float. Also
 * returns true below 2^-126, where floats are subnormal and have fewer bits. */
static bool is_between_floats(double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return (bits & 0x1fffffff) == 0x10000000 || (x < 0x1p-126 && x != 0);
}

float ch__decimal_f32(const ch_decimal *d)
{
    double x;
    float  y = !fast_f64(d, &x) || is_between_floats(x) ? slow_f32(d) : (float)x;

    return d->is_negative ? -y : y;
}
