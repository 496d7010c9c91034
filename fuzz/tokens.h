/* fuzz/tokens.h -- a mutator of text: inserts and removes tokens of a format.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FUZZ_TOKENS_H
#define FUZZ_TOKENS_H

#include "fuzz.h"

/* Inserts n bytes at `at`. Returns the new size; 0 if the result does not fit. */
static inline size_t fuzz_insert(uint8_t *data, size_t size, size_t max_size, size_t at,
                                 const void *what, size_t n)
{
    if (n > max_size - size)
        return 0;
    memmove(data + at + n, data + at, size - at);
    memcpy(data + at, what, n);
    return size + n;
}

/* Makes a change after the first `fixed` bytes. `token` ends with NULL. Returns the new size; 0
 * if that is not possible. */
static inline size_t fuzz_mutate_text(dice *d, uint8_t *data, size_t size, size_t max_size,
                                      size_t fixed, const char *const *token)
{
    size_t n_tokens = 0, at, n;
    char   copy[64];

    if (size < fixed || size > max_size)
        return 0;
    while (token[n_tokens] != NULL)
        n_tokens++;
    at = fixed + roll(d, size - fixed + 1);
    n = roll(d, (size - at < sizeof(copy) ? size - at : sizeof(copy)) + 1);
    switch (roll(d, 8)) {
    case 0: /* removes some bytes */
        memmove(data + at, data + at + n, size - at - n);
        return size - n;
    case 1: /* copies some bytes to another point */
        memcpy(copy, data + at, n);
        return fuzz_insert(data, size, max_size, fixed + roll(d, size - fixed + 1), copy, n);
    case 2:
        return 0; /* libFuzzer's mutator is used instead */
    default: {
        const char *t = token[roll(d, n_tokens)];

        return fuzz_insert(data, size, max_size, at, t, strlen(t));
    }
    }
}

#endif
