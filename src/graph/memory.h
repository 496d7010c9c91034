/* graph/memory.h -- assigns offsets in an arena to buffers with limited lifetimes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_MEMORY_H
#define GRAPH_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include "cohort/status.h"

/* A buffer of the arena. */
typedef struct ch_memory_span {
    size_t bytes;
    int    from, to; /* lifetime: calls [from, to], both included */
    /* an output that also ends in call `to` uses the buffer already, so no other output may */
    bool   is_reused;
    size_t offset; /* set by ch__buffers_assign */
} ch_memory_span;

typedef struct ch_buffers {
    int             n, cap;
    ch_memory_span *at;
    size_t          total; /* sum of all sizes in bytes */
} ch_buffers;

/* Adds a buffer and returns its number; -1: out of memory, or too large. */
int ch__buffers_add(ch_buffers *b, size_t bytes, int from, int to);
/* Sets the offset of every buffer, CH_ALIGN-aligned, so that buffers with overlapping lifetimes
 * do not overlap in memory. *arena is the size of the arena. *live is the largest number of
 * bytes that are in use at the same time, a lower bound of *arena. */
ch_status ch__buffers_assign(ch_buffers *b, size_t *arena, size_t *live);
void      ch__buffers_drop(ch_buffers *b);

#endif
