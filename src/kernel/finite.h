/* kernel/finite.h -- checks that floats are finite.   SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_FINITE_H
#define KERNEL_FINITE_H

#include <stdbool.h>
#include <stdint.h>

#include "cohort/shape.h"
#include "kernel/simd.h"

/* Functions by bytes of an element. Each returns true if all exponent bits of an element are
 * set. */
typedef struct ch_finite_table {
    bool (*has_nonfinite_2)(int64_t n, const uint16_t *x, uint16_t exponent);
    bool (*has_nonfinite_4)(int64_t n, const uint32_t *x);
    bool (*has_nonfinite_8)(int64_t n, const uint64_t *x);
} ch_finite_table;

CH_SIMD_DECLARE(ch_finite_table, ch__finite_table)

/* Returns true if none of n floats is NaN or infinite. */
bool ch__all_finite(ch_dtype dtype, int64_t n, const void *x);
/* Returns the index of the first element that is NaN or infinite; n if there is none. */
int64_t ch__first_not_finite(ch_dtype dtype, int64_t n, const void *x);

#endif
