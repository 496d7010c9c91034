/* base/prefetch.h -- prefetches rows at random addresses before they are used.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_PREFETCH_H
#define BASE_PREFETCH_H

#include <stdint.h>

enum { CH_PREFETCH_ROWS = 16 }; /* distance in rows between the prefetch and the use */

/* GCC treats a function that only prefetches as a function without effect and drops calls of
 * it. An empty assembler statement is an effect. */
#define CH_KEEP_CALL() __asm__ volatile("")

/* Prefetches at most the first 512 bytes of a row for reading. The CPU's own prefetcher
 * recognises the rest of a long row. */
static inline void ch__prefetch_read(const char *row, int64_t bytes)
{
    int64_t most = bytes < 512 ? bytes : 512;

    for (int64_t i = 0; i < most; i += 64)
        __builtin_prefetch(row + i, 0, 3);
    CH_KEEP_CALL();
}

/* The same for writing. */
static inline void ch__prefetch_write(const char *row, int64_t bytes)
{
    int64_t most = bytes < 512 ? bytes : 512;

    for (int64_t i = 0; i < most; i += 64)
        __builtin_prefetch(row + i, 1, 3);
    CH_KEEP_CALL();
}

#endif
