/* fuzz/decode/decode.h -- the mutators of fuzz/decode.c.   SPDX-License-Identifier: Apache-2.0
 */
#ifndef FUZZ_DECODE_H
#define FUZZ_DECODE_H

#include <stddef.h>
#include <stdint.h>

#include "graph/graph.h"

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
int    LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int    LLVMFuzzerInitialize(int *argc, char ***argv);

typedef struct dice {
    uint64_t state;
} dice;

/* A number in [0, n). */
static inline uint64_t roll(dice *d, uint64_t n)
{
    uint64_t z = (d->state += 0x9e3779b97f4a7c15u); /* splitmix64 */

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % n;
}

/* Small numbers most of the time, and those at which things break. */
int64_t some_integer(dice *d);
double  some_number(dice *d);

/* Change the encoded graph in `data` and return its new size; 0 if that was not possible. */
size_t alter(dice *d, uint8_t *data, size_t size, size_t max_size);
size_t grow(dice *d, uint8_t *data, size_t size, size_t max_size);

#endif
