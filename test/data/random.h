/* test/data/random.h -- random numbers of tests: splitmix64.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_DATA_RANDOM_H
#define TEST_DATA_RANDOM_H

#include <stdint.h>

typedef struct dice {
    uint64_t state;
} dice;

static inline uint64_t roll_bits(dice *d)
{
    uint64_t z = (d->state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Returns a number in [0, n). */
static inline uint64_t roll(dice *d, uint64_t n)
{
    return roll_bits(d) % n;
}

#endif
