/* data/decimal.h -- decimal text to the nearest float.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_DECIMAL_H
#define DATA_DECIMAL_H

#include "cohort/shape.h"

/* A number as it was written: mantissa * 10^exponent, but for what did not fit the mantissa. */
typedef struct ch_decimal {
    bool        is_negative;
    bool        is_cut;   /* there are digits beyond those of the mantissa that are not 0 */
    uint64_t    mantissa; /* the first 19 digits, from the first that is not 0 */
    int64_t     exponent;
    int64_t     power;    /* what was written behind the e */
    const char *at, *end; /* the digits and the point */
} ch_decimal;

/* Reads what is all of [at, end): a number, without blanks, that is no name. */
bool ch__decimal_read(const char *at, const char *end, ch_decimal *out);

double ch__decimal_f64(const ch_decimal *d);
float  ch__decimal_f32(const ch_decimal *d);

#endif
