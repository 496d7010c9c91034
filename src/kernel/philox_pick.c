/* kernel/philox_pick.c -- streams, integers and permutations, which need no lanes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/philox.h"

const ch_philox_table *ch__philox_at(ch_simd level)
{
    static const ch_philox_table *const levels[] = CH_SIMD_LIST(ch__philox_table);

    return levels[level];
}

const ch_philox_table *ch__philox(void)
{
    return ch__philox_at(ch__simd_level());
}

void ch__philox_block(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];

    for (int r = 0; r < 10; r++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;

        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Computes the stream of a name. The first block is a bijection of the seeds. The other parts
 * of the name are combined with it by XOR, and the result goes through a block again. So two
 * names with the same seeds never collide: their streams have different keys or different
 * counters. */
ch_philox ch__philox_stream(const ch_philox_name *name)
{
    static const uint32_t seeds[2] = {0x243f6a88u, 0x85a308d3u}; /* digits of pi */
    static const uint32_t names[2] = {0x13198a2eu, 0x03707344u};
    static const uint32_t loops[2] = {0xa4093822u, 0x299f31d0u};
    uint32_t c[4] = {(uint32_t)name->seed, (uint32_t)(name->seed >> 32), (uint32_t)name->own,
                     (uint32_t)(name->own >> 32)};
    uint64_t step = (uint64_t)name->step;

    ch__philox_block(c, seeds, c);
    c[0] ^= (uint32_t)step;
    c[1] ^= (uint32_t)(step >> 32);
    c[2] ^= name->ordinal;
    c[3] ^= name->replica;
    ch__philox_block(c, names, c);
    if (name->iteration != 0) {
        c[0] ^= (uint32_t)name->iteration;
        c[1] ^= (uint32_t)((uint64_t)name->iteration >> 32);
        ch__philox_block(c, loops, c);
    }
    return (ch_philox){.key = {c[0], c[1]}, .high = {c[2], c[3]}};
}

/* ---- integers: the upper half of word * range ---- */

static uint64_t times(uint64_t a, uint64_t b, uint64_t *low)
{
    unsigned __int128 p = (unsigned __int128)a * b;

    *low = (uint64_t)p;
    return (uint64_t)(p >> 64);
}

void ch__philox_below_2(int64_t n, const uint32_t *w, uint64_t range, uint64_t *out)
{
    for (int64_t i = 0; i < n; i++) {
        const uint32_t *v = w + i / CH_PHILOX_LANES * 2 * CH_PHILOX_LANES + i % CH_PHILOX_LANES;
        uint64_t        low;

        out[i] = times((uint64_t)v[0] << 32 | v[CH_PHILOX_LANES], range, &low);
    }
}

void ch__philox_below_4(int64_t n, const uint32_t *w, uint64_t range, uint64_t *out)
{
    for (int64_t i = 0; i < n; i++) {
        const uint32_t *v = w + i / CH_PHILOX_LANES * CH_PHILOX_GROUP + i % CH_PHILOX_LANES;
        uint64_t        high = (uint64_t)v[0] << 32 | v[CH_PHILOX_LANES], rest, low;
        uint64_t        more =
            times((uint64_t)v[2 * CH_PHILOX_LANES] << 32 | v[3 * CH_PHILOX_LANES], range, &low);

        out[i] = times(high, range, &rest);
        out[i] += rest + more < rest; /* the carry of the lower halves */
    }
}

/* ---- permutations ---- */

enum { DRAWS = CH_PHILOX_CHUNK / 2 };

/* The inside-out Fisher-Yates shuffle: number i goes to a random position up to i, and the
 * number that was there goes to position i. */
void ch__philox_permutation(const ch_philox *p, int64_t n, int64_t *out)
{
    const ch_philox_table *t = ch__philox();
    uint32_t               w[CH_PHILOX_CHUNK];

    for (int64_t i = 0; i < n; i++) {
        int64_t  draw = i % DRAWS;
        int64_t  left = n - i < DRAWS ? n - i : DRAWS;
        uint64_t at;

        if (draw == 0)
            t->words(p, i / DRAWS * (CH_PHILOX_CHUNK / CH_PHILOX_GROUP),
                     (left * 2 + CH_PHILOX_GROUP - 1) / CH_PHILOX_GROUP, w);
        ch__philox_below_2(
            1, w + draw / CH_PHILOX_LANES * 2 * CH_PHILOX_LANES + draw % CH_PHILOX_LANES,
            (uint64_t)i + 1, &at);
        if ((int64_t)at != i)
            out[i] = out[at];
        out[at] = i;
    }
}
