/* fuzz/fuzz.h -- helpers of all fuzz targets.   SPDX-License-Identifier: Apache-2.0 */
#ifndef FUZZ_FUZZ_H
#define FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cohort/status.h"

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
int    LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int    LLVMFuzzerInitialize(int *argc, char ***argv);

#define MUST(claim) ((claim) ? (void)0 : fuzz_failed(#claim, __FILE__, __LINE__))

static inline _Noreturn void fuzz_failed(const char *text, const char *file, int line)
{
    fprintf(stderr, "%s:%d: %s does not hold: %s\n", file, line, text, ch_error_message());
    abort();
}

typedef struct dice {
    uint64_t state;
} dice;

/* Returns a pseudo-random number in [0, n). n must not be 0. */
static inline uint64_t roll(dice *d, uint64_t n)
{
    uint64_t z = (d->state += 0x9e3779b97f4a7c15u); /* splitmix64 */

    MUST(n > 0);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % n;
}

/* Returns true if the values have the same bits, also those of 0 and -0, and of NaNs. */
static inline bool fuzz_same_bits(const void *a, const void *b, size_t size)
{
    return memcmp(a, b, size) == 0;
}

/* Returns a hash of the bytes. Targets use it to select the inputs that get expensive
 * checks. */
static inline unsigned fuzz_hash(const uint8_t *data, size_t size)
{
    unsigned h = 2166136261u;

    for (size_t i = 0; i < size; i++)
        h = (h ^ data[i]) * 16777619u;
    return h >> 8;
}

/* Returns a copy of exactly this size, so that a sanitizer detects reads past its end. Free it
 * with free(). */
static inline char *fuzz_alone(const void *data, size_t size)
{
    char *copy = malloc(size > 0 ? size : 1);

    if (size > 0)
        memcpy(copy, data, size);
    return copy;
}

#endif
