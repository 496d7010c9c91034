/* data/decimal.c -- decimal text to the nearest float.
 *
 * 1. Up to 2^53 an integer is a double, and so is 10^k up to k = 22: the product or quotient of two
 *    such is rounded once, by the machine, and hence right (Clinger 1990). Most numbers in
 *    files are of this kind.
 * 2. Up to 19 digits and 10^64 either way, 128 bits of 5^k say what the nearest double is, but for
 *    cases that it can see are too close (Lemire 2021). Programs write such numbers.
 * 3. The rest goes to strtod in the C locale, digits alone, no more than matter.
 * 4. A double is rounded to the float that the text would be rounded to, unless it is just between
 *    two floats: then it was perhaps rounded to there, and strtof decides.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "data/decimal.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FAST_DIGITS = 19, /* always fit 64 bits */
    MOST_DIGITS = 800 /* a double and the point between two have fewer than 770 */
};

static const int64_t huge_power = 1000000000; /* behind an e; larger ones are as good as this */

/* ---- reading ---- */

static bool is_digit(const char *at, const char *end)
{
    return at < end && (unsigned char)(*at - '0') < 10;
}

/* Takes digits into the mantissa while there is room; returns where they end. */
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

/* The e and what is behind it. */
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

/* Writes the number as digits and an exponent, at most MOST_DIGITS + 1 of them. If what is left
 * out is not 0 a last digit says so: no more than that can matter. */
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

/* The locale "C" is always there: making it takes no memory. */
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

/* ---- quickly ---- */

typedef unsigned __int128 wide;

/* The 128 highest bits of 5^k. */
static const struct {
    uint64_t high, low;
} five[] = {
#include "data/decimal_powers.inc"
};

enum { MOST_POWER = (sizeof(five) / sizeof(five[0]) - 1) / 2 };

/* m * 10^k, rounded; m is not 0. The product of m and 5^k is computed to 128 bits at least; the
 * lower ones matter only if those that decide are all ones, which the first product shows. In this
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
    bits = high >> shift; /* 54 of them, the last for rounding */
    /* Just between two doubles, to the last bit, if the product is exact: the even one. */
    if (low <= 1 && k >= -4 && k <= 23 && (bits & 3) == 1 && bits << shift == high)
        bits--;
    bits = (bits + (bits & 1)) >> 1;
    /* The exponent: k * log2(10), by a fraction that is near enough. The first of the 53 bits is
     * not stored, so it counts into the exponent; a carry out of them does too, as it should. */
    int64_t exponent = ((217706 * (int64_t)k) >> 16) + 63 + top - zeros + 1023;
    bits += (uint64_t)(exponent - 1) << 52;
    memcpy(out, &bits, sizeof(*out));
    return true;
}

/* The same, where m may be a little more than what is there. */
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

/* A double has 29 bits that a float has not. Below 2^-126 it has more. */
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
