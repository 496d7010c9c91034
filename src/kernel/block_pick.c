/* kernel/block_pick.c -- choice of the block functions by SIMD level.
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

/* Costs of f32 functions, measured. A function that is not listed costs 1. */
static const unsigned char costs[CH_BLOCK_COUNT] = {
    [CH_BLOCK_div] = 3,    [CH_BLOCK_sqrt] = 4,      [CH_BLOCK_rsqrt] = 7,
    [CH_BLOCK_exp] = 7,    [CH_BLOCK_expm1] = 8,     [CH_BLOCK_log] = 11,
    [CH_BLOCK_log1p] = 11, [CH_BLOCK_tanh] = 13,     [CH_BLOCK_sigmoid] = 11,
    [CH_BLOCK_erf] = 18,   [CH_BLOCK_gelu] = 19,     [CH_BLOCK_gelu_tanh] = 14,
    [CH_BLOCK_silu] = 12,  [CH_BLOCK_softplus] = 30, [CH_BLOCK_elu] = 10,
    [CH_BLOCK_sin] = 17,   [CH_BLOCK_cos] = 17,      [CH_BLOCK_pow] = 50,
    [CH_BLOCK_mod] = 60,   [CH_BLOCK_floordiv] = 80,
};

int ch__block_cost(ch_block_fn fn)
{
    const ch_block_table *t = ch__blocks();

    for (int code = 0; code < CH_BLOCK_COUNT; code++) {
        if (costs[code] > 0 && fn == t->fn[code][CH_F32])
            return costs[code];
        if (costs[code] > 0 && fn == t->fn[code][CH_F64])
            return 8 * costs[code]; /* libm computes one element at a time */
    }
    return 1;
}
