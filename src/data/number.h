/* data/number.h -- numbers into elements, and out of text.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_NUMBER_H
#define DATA_NUMBER_H

#include "tensor/tensor.h"

/* Stores n integers as elements of `dtype`, which is no string, at `to`, which is aligned for
 * it. Returns how many it stored: it stops at one that the dtype does not hold. Floats hold all,
 * rounded; a bool holds 0 and 1. */
int ch__integers_store(ch_dtype dtype, int n, const int64_t *from, void *to);

#endif
