/* kernel/finite.h -- whether floats are finite.   SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_FINITE_H
#define KERNEL_FINITE_H

#include <stdbool.h>
#include <stdint.h>

#include "cohort/shape.h"
#include "kernel/simd.h"

/* By bytes of an element; true if any has an exponent of ones. */
typedef struct ch_finite_table {
    bool (*odd_2)(int64_t n, const uint16_t *x, uint16_t exponent);
    bool (*odd_4)(int64_t n, const uint32_t *x);
    bool (*odd_8)(int64_t n, const uint64_t *x);
} ch_finite_table;

CH_SIMD_DECLARE(ch_finite_table, ch__finite_table)

/* True if all n floats are neither NaN nor infinite. */
bool ch__all_finite(ch_dtype dtype, int64_t n, const void *x);
/* Where the first is that is not; n if there is none. */
int64_t ch__first_not_finite(ch_dtype dtype, int64_t n, const void *x);

#endif
