/* data/format/decimal.h -- converts decimal text to the nearest float.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_FORMAT_DECIMAL_H
#define DATA_FORMAT_DECIMAL_H

#include "cohort/shape.h"

/* A parsed number: mantissa * 10^exponent, plus the digits that did not fit the mantissa. */
typedef struct ch_decimal {
    bool        is_negative;
    bool        is_cut;   /* some digit behind those of the mantissa is not 0 */
    uint64_t    mantissa; /* the first 19 digits, from the first that is not 0 */
    int64_t     exponent;
    int64_t     power;    /* the number behind the e; 0: there is none */
    const char *at, *end; /* the digits and the point in the text */
} ch_decimal;

/* Parses all of [at, end) as a number: digits, without blanks and without names such as "nan".
 * Returns false if the text is not a number. *out points into the text. */
bool ch__decimal_read(const char *at, const char *end, ch_decimal *out);

/* Return the nearest double and the nearest float. Text that is too large becomes infinite. */
double ch__decimal_f64(const ch_decimal *d);
float  ch__decimal_f32(const ch_decimal *d);

#endif
