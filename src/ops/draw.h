/* ops/draw.h -- drawing words for the elements of an output.
 *
 * Words are drawn in chunks. Chunk i of an output holds the same words whoever draws it
 * (kernel/philox.h), so tiles are chunks.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_DRAW_H
#define OPS_DRAW_H

#include "graph/op.h"
#include "kernel/philox.h"

/* The stream of a call. `ordinal` is of the call whose numbers are drawn; 0: its own, else one
 * more than that. */
ch_philox ch__draw_stream(const ch_call *c, int64_t own, int64_t ordinal);

/* How the elements of an output fall into chunks and those into tiles. */
typedef struct ch_chunks {
    int64_t n, each, count; /* elements; of a chunk; chunks */
    int     tiles, words;   /* words of an element */
} ch_chunks;

/* Cuts the output of a call into them; `cost` as ch__tile_count takes it, for each element. */
ch_chunks ch__draw_cut(const ch_node *n, int words, int64_t cost, ch_prep *p);
/* Draws the words of a chunk into room for CH_PHILOX_CHUNK, and returns how many elements it
 * has. */
int64_t ch__draw(const ch_philox_table *t, const ch_philox *s, const ch_chunks *c,
                 int64_t chunk, uint32_t *w);

#endif
