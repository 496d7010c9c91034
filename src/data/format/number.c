/* data/format/number.c -- stores integers as elements of a dtype, and parses numbers from text.
 *
 * Used by the parsers of CSV, LibSVM (text) and tf.train.Example (integers). Decimal text
 * becomes a float in data/format/decimal.c. The functions are pure: no locale, no state, no
 * allocation.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/format/number.h"

#include <math.h>
#include <string.h>

#include "data/format/decimal.h"

/* ---- integers into elements ---- */

typedef struct range {
    int64_t low, high;
} range;

/* Returns the integers that the dtype holds, as far as an int64_t does. */
static range range_of(ch_dtype dtype)
{
    switch (dtype) {
    case CH_BOOL:
        return (range){0, 1};
    case CH_I8:
        return (range){INT8_MIN, INT8_MAX};
    case CH_U8:
        return (range){0, UINT8_MAX};
    case CH_I16:
        return (range){INT16_MIN, INT16_MAX};
    case CH_U16:
        return (range){0, UINT16_MAX};
    case CH_I32:
        return (range){INT32_MIN, INT32_MAX};
    case CH_U32:
        return (range){0, UINT32_MAX};
    case CH_U64:
        return (range){0, INT64_MAX};
    default:
        return (range){INT64_MIN, INT64_MAX};
    }
}

/* Returns how many integers come before the first that is out of range. */
static int count_held(range r, int n, const int64_t *from)
{
    int i = 0;

    while (i < n && from[i] >= r.low && from[i] <= r.high)
        i++;
    return i;
}

/* Stores the low bytes of each integer. They are the number in two's complement if the integer
 * is in the range of the dtype, signed or not. */
static void store_low(size_t bytes, int n, const int64_t *from, void *to)
{
    switch (bytes) {
    case 1:
        for (int i = 0; i < n; i++)
            ((uint8_t *)to)[i] = (uint8_t)from[i];
        break;
    case 2:
        for (int i = 0; i < n; i++)
            ((uint16_t *)to)[i] = (uint16_t)from[i];
        break;
    case 4:
        for (int i = 0; i < n; i++)
            ((uint32_t *)to)[i] = (uint32_t)from[i];
        break;
    default:
        memcpy(to, from, (size_t)n * sizeof(*from));
    }
}

int ch__integers_store(ch_dtype dtype, int n, const int64_t *from, void *to)
{
    size_t bytes = ch_dtype_bytes(dtype);

    if (!ch_dtype_is_float(dtype)) {
        n = count_held(range_of(dtype), n, from);
        store_low(bytes, n, from, to);
        return n;
    }
    for (int i = 0; i < n; i++)
        if (dtype == CH_F32) /* not through double, which would round twice */
            ((float *)to)[i] = (float)from[i];
        else
            ch__store(dtype, (char *)to + (size_t)i * bytes, (double)from[i]);
    return n;
}

/* ---- numbers from text ---- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static ch_str without_blanks(ch_str s)
{
    while (s.size > 0 && is_blank(s.data[0]))
        s = (ch_str){s.data + 1, s.size - 1};
    while (s.size > 0 && is_blank(s.data[s.size - 1]))
        s.size--;
    return s;
}

/* Returns true if `s` is the word in any case. `word` must be in lower case. */
static bool is_word(ch_str s, const char *word)
{
    for (size_t i = 0; i < s.size; i++)
        if (word[i] == '\0' || (s.data[i] | 0x20) != word[i])
            return false;
    return word[s.size] == '\0';
}

/* Parses inf, infinity and nan, with or without a sign. Returns false if `s` is none of
 * them. */
static bool read_name(ch_str s, double *out)
{
    bool is_negative = s.data[0] == '-';

    if (is_negative || s.data[0] == '+')
        s = (ch_str){s.data + 1, s.size - 1};
    if (is_word(s, "inf") || is_word(s, "infinity"))
        *out = is_negative ? -INFINITY : INFINITY;
    else if (is_word(s, "nan"))
        *out = NAN;
    else
        return false;
    return true;
}

static ch_parsed parse_float(ch_dtype dtype, ch_str s, void *to)
{
    ch_decimal d;
    double     x;

    if (ch__decimal_read(s.data, s.data + s.size, &d)) {
        if (dtype == CH_F32) {
            *(float *)to = ch__decimal_f32(&d);
            return CH_PARSED;
        }
        x = ch__decimal_f64(&d);
    } else if (!read_name(s, &x)) {
        return CH_NO_NUMBER;
    }
    ch__store(dtype, to, x);
    return CH_PARSED;
}

/* Parses decimal digits. Returns false if there are none, or if a byte is not a digit. *fits is
 * false if the number is above 2^64 - 1. */
static bool read_integer(const char *at, const char *end, uint64_t *out, bool *fits)
{
    uint64_t x = 0;

    *fits = true;
    if (at == end)
        return false;
    for (; at < end; at++) {
        unsigned digit = (unsigned char)(*at - '0');

        if (digit > 9)
            return false;
        *fits &= !__builtin_mul_overflow(x, 10, &x) && !__builtin_add_overflow(x, digit, &x);
    }
    *out = x;
    return true;
}

static ch_parsed parse_integer(ch_dtype dtype, ch_str s, void *to)
{
    bool     is_negative = s.data[0] == '-', fits;
    bool     has_sign = is_negative || s.data[0] == '+';
    uint64_t x;

    if (!read_integer(s.data + has_sign, s.data + s.size, &x, &fits))
        return CH_NO_NUMBER;
    if (!fits || (is_negative && x > (uint64_t)INT64_MAX + 1))
        return CH_NOT_HELD;
    if (!is_negative && x > INT64_MAX) {
        if (dtype == CH_U64)
            memcpy(to, &x, sizeof(x));
        return dtype == CH_U64 ? CH_PARSED : CH_NOT_HELD;
    }
    int64_t number = (int64_t)(is_negative ? -x : x);
    return ch__integers_store(dtype, 1, &number, to) == 1 ? CH_PARSED : CH_NOT_HELD;
}

static ch_parsed parse_bool(ch_str s, void *to)
{
    bool is_true = is_word(s, "true") || (s.size == 1 && s.data[0] == '1');

    if (!is_true && !is_word(s, "false") && !(s.size == 1 && s.data[0] == '0'))
        return CH_NO_NUMBER;
    *(uint8_t *)to = is_true;
    return CH_PARSED;
}

ch_parsed ch__number_parse(ch_dtype dtype, ch_str s, void *to)
{
    s = without_blanks(s);
    if (s.size == 0)
        return CH_NO_NUMBER;
    if (ch_dtype_is_float(dtype))
        return parse_float(dtype, s, to);
    return dtype == CH_BOOL ? parse_bool(s, to) : parse_integer(dtype, s, to);
}
