/* kernel/finite_pick.c -- checks that floats are finite.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/finite.h"

bool ch__all_finite(ch_dtype dtype, int64_t n, const void *x)
{
    static const ch_finite_table *const levels[] = CH_SIMD_LIST(ch__finite_table);
    const ch_finite_table              *t = levels[ch__simd_level()];

    switch (dtype) {
    case CH_F32:
        return !t->has_nonfinite_4(n, x);
    case CH_F64:
        return !t->has_nonfinite_8(n, x);
    case CH_BF16:
        return !t->has_nonfinite_2(n, x, 0x7f80);
    case CH_F16:
        return !t->has_nonfinite_2(n, x, 0x7c00);
    default:
        return true;
    }
}

int64_t ch__first_not_finite(ch_dtype dtype, int64_t n, const void *x)
{
    const int64_t block = 256;
    int64_t       at = 0, size = (int64_t)ch_dtype_bytes(dtype);

    while (at < n &&
           ch__all_finite(dtype, n - at < block ? n - at : block, (const char *)x + at * size))
        at += block;
    while (at < n && ch__all_finite(dtype, 1, (const char *)x + at * size))
        at++;
    return at < n ? at : n;
}
