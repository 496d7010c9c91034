/* data/format/number.h -- stores integers as elements of a dtype, and parses numbers from text.
 *
 * All parsers of text use this syntax. It does not depend on the program's locale:
 *
 *     number:   blanks [+-] mantissa [(e|E) [+-] digits] blanks
 *     mantissa: digits | digits.digits | .digits | digits.
 *     or:       blanks [+-] (inf | infinity | nan) blanks, in any case
 *     integer:  blanks [+-] digits blanks
 *     bool:     blanks (0 | 1 | true | false) blanks, in any case
 *
 * A blank is a space or a tab. f32 and f64 are rounded to nearest, ties to even, for any number
 * of digits; a number that is too large becomes infinite. 16-bit floats are rounded from the
 * f64.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_FORMAT_NUMBER_H
#define DATA_FORMAT_NUMBER_H

#include "tensor/tensor.h"

/* Stores `n` integers at `to` as elements of `dtype`. `dtype` must not be CH_STR, and `to` must
 * be aligned for it. Stops at the first integer that is out of the dtype's range, and returns
 * the number of integers stored. Floats hold every integer, rounded; a bool holds 0 and 1. */
int ch__integers_store(ch_dtype dtype, int n, const int64_t *from, void *to);

typedef enum ch_parsed {
    CH_PARSED,
    CH_NO_NUMBER, /* the text does not have the syntax of the dtype */
    CH_NOT_HELD   /* an integer out of the range of the dtype */
} ch_parsed;

/* Parses the whole of `s` as a number and stores it at `to` as an element of `dtype`. `dtype`
 * must not be CH_STR, and `to` must be aligned for it. `to` is written only if the result is
 * CH_PARSED. */
ch_parsed ch__number_parse(ch_dtype dtype, ch_str s, void *to);

#endif
