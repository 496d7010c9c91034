/* data/random.h -- random numbers of pipelines.
 *
 * A number is a function of four things: the stage's seed, the stream, the epoch and the place. A stream
 * is named by (reader, pass): the worker whose share of the data is read, and the pass over it that the
 * program began. Epochs are counted inside a pass, by the stages that rewind their inputs (repeat). The
 * names of streams are hashed into Philox's key, and the epoch is a part of its counter. So no sum of
 * them can make two sequences meet: (worker 1, epoch 0) has nothing in common with (worker 0, epoch 1).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_RANDOM_H
#define DATA_RANDOM_H

#include <stdbool.h>

#include "data/data.h"
#include "kernel/philox.h"

/* A sequence of numbers, of which `place` is the index. */
typedef struct ch_draws {
    uint64_t key;
    int64_t  epoch;
} ch_draws;

/* Returns the sequence that a stage with this seed draws in the cursor's epoch. With `same_each_time`
 * that is the sequence of the first epoch of the first pass, for this reader. */
static inline ch_draws ch__draws(const ch_cursor *c, uint64_t seed, bool same_each_time)
{
    return same_each_time ? (ch_draws){seed ^ c->reader_key, 0}
                          : (ch_draws){seed ^ c->pass_key, c->epoch};
}

static inline uint64_t ch__draw(ch_draws from, int64_t place)
{
    const uint64_t at = (uint64_t)place, epoch = (uint64_t)from.epoch;
    const uint32_t counter[4] = {(uint32_t)at, (uint32_t)(at >> 32), (uint32_t)epoch,
                                 (uint32_t)(epoch >> 32)};
    const uint32_t key[2] = {(uint32_t)from.key, (uint32_t)(from.key >> 32)};
    uint32_t       word[4];

    ch__philox_block(counter, key, word);
    return word[0] | (uint64_t)word[1] << 32;
}

/* A number in [0, n); n is at most 2^32, so that no number is likelier by more than 2^-32. */
static inline int64_t ch__draw_below(ch_draws from, int64_t place, int64_t n)
{
    return (int64_t)(((unsigned __int128)ch__draw(from, place) * (uint64_t)n) >> 64);
}

/* A number in [0, 1). */
static inline double ch__draw_unit(ch_draws from, int64_t place)
{
    return (double)(ch__draw(from, place) >> 11) * 0x1p-53;
}

/* Returns the key of a stream, which a stage combines with its seed. Different for different names,
 * but for a chance of 2^-64. The key of (0, 0) is 0: reader 0 draws in pass 0 as an iterator of the
 * program does, and as it did before streams had names. */
static inline uint64_t ch__stream_key(int64_t reader, int64_t pass)
{
    static const uint64_t salt = UINT64_C(0x636f686f72742e31); /* any constant will do */

    if (reader == 0 && pass == 0)
        return 0;
    return ch__draw((ch_draws){salt, pass}, reader);
}

#endif
