/* data/random.h -- the random numbers of pipelines.
 *
 * A number is a function of the stage's seed, the stream, the epoch and an index. A stream is
 * named by (reader, pass): the worker that reads its share of the data, and the number of the
 * pass that the program began. Epochs are counted inside a pass, by the stages that rewind
 * their inputs (repeat). The name of the stream is hashed into the key of Philox; the epoch is
 * a part of its counter. Names and epochs are never added, so sequences do not overlap:
 * (worker 1, epoch 0) has nothing in common with (worker 0, epoch 1).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_RANDOM_H
#define DATA_RANDOM_H

#include <stdbool.h>

#include "data/data.h"
#include "kernel/philox.h"

/* A sequence of random numbers. Any number of it can be computed from its index. */
typedef struct ch_draws {
    uint64_t key;   /* the seed of the stage xor the key of the stream */
    int64_t  epoch; /* epoch of the cursor */
} ch_draws;

/* Returns the sequence that a stage with this seed draws in the cursor's current epoch. If
 * `same_each_time` is true, returns the sequence of the reader's first epoch in its first
 * pass. */
static inline ch_draws ch__draws(const ch_cursor *c, uint64_t seed, bool same_each_time)
{
    return same_each_time ? (ch_draws){seed ^ c->reader_key, 0}
                          : (ch_draws){seed ^ c->pass_key, c->epoch};
}

/* Returns number `index` of the sequence: 64 random bits. */
static inline uint64_t ch__draw(ch_draws from, int64_t index)
{
    const uint64_t at = (uint64_t)index, epoch = (uint64_t)from.epoch;
    const uint32_t counter[4] = {(uint32_t)at, (uint32_t)(at >> 32), (uint32_t)epoch,
                                 (uint32_t)(epoch >> 32)};
    const uint32_t key[2] = {(uint32_t)from.key, (uint32_t)(from.key >> 32)};
    uint32_t       word[4];

    ch__philox_block(counter, key, word);
    return word[0] | (uint64_t)word[1] << 32;
}

/* Returns a number in [0, n). `n` must be at most 2^32; the relative bias of a number is then
 * below 2^-32. */
static inline int64_t ch__draw_below(ch_draws from, int64_t index, int64_t n)
{
    return (int64_t)(((unsigned __int128)ch__draw(from, index) * (uint64_t)n) >> 64);
}

/* Returns a number in [0, 1). */
static inline double ch__draw_unit(ch_draws from, int64_t index)
{
    return (double)(ch__draw(from, index) >> 11) * 0x1p-53;
}

/* Returns the key of a stream, which a stage combines with its seed. Two names have equal keys
 * with a probability of 2^-64. The key of (0, 0) is 0. So reader 0 in pass 0 draws the same
 * numbers as an iterator of the program, and as older versions without named streams. */
static inline uint64_t ch__stream_key(int64_t reader, int64_t pass)
{
    static const uint64_t salt = UINT64_C(0x636f686f72742e31); /* any constant will do */

    if (reader == 0 && pass == 0)
        return 0;
    return ch__draw((ch_draws){salt, pass}, reader);
}

#endif
