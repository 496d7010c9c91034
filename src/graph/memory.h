/* graph/memory.h -- where in an arena buffers go that live for a while.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_MEMORY_H
#define GRAPH_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include "cohort/status.h"

typedef struct ch_memory_span {
    size_t bytes;
    int    from, to; /* alive in calls [from, to], both included */
    bool   is_reused;    /* handed on in its last call already */
    size_t offset;   /* set by ch__buffers_assign */
} ch_memory_span;

typedef struct ch_buffers {
    int             n, cap;
    ch_memory_span *at;
    size_t          total; /* bytes of all */
} ch_buffers;

/* A new buffer's number; -1 when out of memory. */
int ch__buffers_add(ch_buffers *b, size_t bytes, int from, int to);
/* Gives every buffer a CH_ALIGN-aligned offset such that no two that live at one time overlap.
 * *arena is the end of the last one, *live the most bytes alive at one time: no placement
 * can have a smaller arena. */
ch_status ch__buffers_assign(ch_buffers *b, size_t *arena, size_t *live);
void      ch__buffers_drop(ch_buffers *b);

#endif
