/* data/number.h -- numbers into elements, and out of text.
 *
 * Text is read in one way everywhere, whatever the program's locale:
 *
 *     number:   blanks [+-] (digits | digits.digits | .digits | digits.) [(e|E) [+-] digits] blanks
 *     or:       blanks [+-] (inf | infinity | nan) blanks, in any case
 *     integer:  blanks [+-] digits blanks
 *     bool:     blanks (0 | 1 | true | false) blanks, in any case
 *
 * A blank is a space or a tab. f32 and f64 are the nearest there are, ties to even, however many
 * digits there are; what is too large is infinite. 16-bit floats are rounded from the f64.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_NUMBER_H
#define DATA_NUMBER_H

#include "tensor/tensor.h"

/* Stores n integers as elements of `dtype`, which is no string, at `to`, which is aligned for
 * it. Returns how many it stored: it stops at one that the dtype does not hold. Floats hold all,
 * rounded; a bool holds 0 and 1. */
int ch__integers_store(ch_dtype dtype, int n, const int64_t *from, void *to);

typedef enum ch_parsed {
    CH_PARSED,
    CH_NO_NUMBER, /* not what the dtype is written like */
    CH_NOT_HELD   /* an integer that the dtype does not hold */
} ch_parsed;

/* Stores the number that is all of `s` as an element of `dtype`, which is no string, at `to`,
 * which is aligned for it and untouched unless the number was parsed. */
ch_parsed ch__number_parse(ch_dtype dtype, ch_str s, void *to);

#endif
