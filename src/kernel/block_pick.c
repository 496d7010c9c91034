/* kernel/block_pick.c -- the block functions of the level in use.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/block.h"

static const ch_block_table *const levels[CH_SIMD_LEVELS] = CH_SIMD_LIST(ch__block_table);

const ch_block_table *ch__blocks_at(ch_simd level)
{
    return levels[level];
}

const ch_block_table *ch__blocks(void)
{
    return levels[ch__simd_level()];
}
