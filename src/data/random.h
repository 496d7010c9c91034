/* data/random.h -- random numbers of pipelines: a function of seed, pass and place.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_RANDOM_H
#define DATA_RANDOM_H

#include "kernel/philox.h"

static inline uint64_t ch__draw(uint64_t seed, int64_t pass, int64_t place)
{
    const uint32_t counter[4] = {(uint32_t)place, (uint32_t)(place >> 32), (uint32_t)pass,
                                 (uint32_t)(pass >> 32)};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t       word[4];

    ch__philox_block(counter, key, word);
    return word[0] | (uint64_t)word[1] << 32;
}

/* A number in [0, n); n is at most 2^32, so that no number is likelier by more than 2^-32. */
static inline int64_t ch__draw_below(uint64_t seed, int64_t pass, int64_t place, int64_t n)
{
    return (int64_t)(((unsigned __int128)ch__draw(seed, pass, place) * (uint64_t)n) >> 64);
}

/* A number in [0, 1). */
static inline double ch__draw_unit(uint64_t seed, int64_t pass, int64_t place)
{
    return (double)(ch__draw(seed, pass, place) >> 11) * 0x1p-53;
}

#endif
