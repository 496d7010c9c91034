/* base/prefetch.h -- what lies at random in memory is asked for before it is needed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_PREFETCH_H
#define BASE_PREFETCH_H

#include <stdint.h>

enum { CH_PREFETCH_ROWS = 16 }; /* rows between asking and using */

/* GCC takes a function that only prefetches for one without effect, and drops the calls of it;
 * an empty piece of assembler is an effect. */
#define CH_HAS_EFFECT() __asm__ volatile("")

static inline void ch__prefetch_read(const char *row, int64_t bytes)
{
    int64_t most = bytes < 512 ? bytes : 512; /* the rest of a long row the CPU sees coming */

    for (int64_t i = 0; i < most; i += 64)
        __builtin_prefetch(row + i, 0, 3);
    CH_HAS_EFFECT();
}

static inline void ch__prefetch_write(const char *row, int64_t bytes)
{
    int64_t most = bytes < 512 ? bytes : 512;

    for (int64_t i = 0; i < most; i += 64)
        __builtin_prefetch(row + i, 1, 3);
    CH_HAS_EFFECT();
}

#endif
