/* kernel/finite.c -- checks that floats are finite; compiled for each SIMD level.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/finite.h"

static bool has_nonfinite_2(int64_t n, const uint16_t *x, uint16_t exponent)
{
    uint16_t any = 0;

    for (int64_t i = 0; i < n; i++)
        any |= (x[i] & exponent) == exponent;
    return any != 0;
}

static bool has_nonfinite_4(int64_t n, const uint32_t *x)
{
    uint32_t any = 0;

    for (int64_t i = 0; i < n; i++)
        any |= (x[i] & 0x7f800000u) == 0x7f800000u;
    return any != 0;
}

static bool has_nonfinite_8(int64_t n, const uint64_t *x)
{
    uint64_t any = 0;

    for (int64_t i = 0; i < n; i++)
        any |= (x[i] & 0x7ff0000000000000u) == 0x7ff0000000000000u;
    return any != 0;
}

const ch_finite_table CH_SIMD_NAME(ch__finite_table) = {has_nonfinite_2, has_nonfinite_4,
                                                        has_nonfinite_8};
