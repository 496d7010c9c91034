/* base/hash.h -- FNV-1a, a small hash that is the same on every machine.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CH_HASH_START 0xcbf29ce484222325u /* hash of no bytes */

/* Returns hash `h`, continued over n more bytes. */
static inline uint64_t ch__hash(uint64_t h, const void *data, size_t n)
{
    const unsigned char *p = data;

    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

/* Returns the hash of a text, without its final zero. */
static inline uint64_t ch__hash_text(const char *text)
{
    return ch__hash(CH_HASH_START, text, strlen(text));
}

#endif
