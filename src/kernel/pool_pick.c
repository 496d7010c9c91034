/* kernel/pool_pick.c -- choice of the pooling functions by SIMD level.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/pool.h"

ch_pool_fn ch__pool(ch_pool_kind kind, ch_dtype dtype)
{
    static const ch_pool_table *const levels[] = CH_SIMD_LIST(ch__pool_table);

    return levels[ch__simd_level()]->fn[kind][dtype == CH_F64];
}
