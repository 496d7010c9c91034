/* ops/draw.h -- random words for the elements of an output.
 *
 * Kernels draw words in chunks of CH_PHILOX_CHUNK. The words of chunk i depend on the stream
 * and on i only (kernel/philox.h), so chunks can be divided among tiles in any way.
 *
 * The words of an element depend on its position in the whole output. So a part of a call
 * (ch_node.origins) draws the same numbers as the whole call. The chunks of a part consist of
 * elements of the part; ch__draw puts their words at the places where the words of a whole
 * output would be.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_DRAW_H
#define OPS_DRAW_H

#include "graph/op.h"
#include "kernel/philox.h"

/* Returns the random stream of a call. `own` is the seed attribute of the op. `ordinal` selects
 * the call that the stream belongs to: 0 is this call, k > 0 is the call with ordinal k - 1. */
ch_philox ch__draw_stream(const ch_call *c, int64_t own, int64_t ordinal);

/* The division of an output into chunks, and of the chunks into tiles. */
typedef struct ch_chunks {
    int64_t n, each, count; /* elements in all; elements of a chunk; number of chunks */
    int     tiles, words;   /* number of tiles; random words of an element */
} ch_chunks;

/* Divides the output of call n into chunks, and sets the tiles of p. `cost` is the cost of an
 * element, as for ch__tile_count. */
ch_chunks ch__draw_cut(const ch_node *n, int words, int64_t cost, ch_prep *p);
/* Writes the words of a chunk to w, which must have CH_PHILOX_CHUNK elements. Returns the
 * number of elements of the chunk. */
int64_t ch__draw(const ch_call *call, const ch_philox_table *t, const ch_philox *s,
                 const ch_chunks *c, int64_t chunk, uint32_t *w);

#endif
