/* graph/room.h -- decides which inputs of a graph may have room.
 *
 * The number of flat values of a ragged component differs from batch to batch. So that a
 * program fits many batches, it is planned for a capacity (tensor/ragged.h). The rows after the
 * last value are the room; their contents are arbitrary. An input may have room only if no
 * result depends on it:
 *
 *   - Axis 0 of the input is a symbol of flat values. In every value of the graph, this symbol
 *     is the size of axis 0 or does not occur. So the live rows are the first in memory.
 *   - Every call with such an input computes its live rows from live rows only. Elementwise ops
 *     do, and ops with ch_op.room or room_rows. Ops that read the row splits at run time
 *     (ch_op.room_splits) must read those of the same component, because only these have been
 *     compared with the number of values. Reductions, and ops that check values, such as the
 *     ids of a lookup, read the number of live rows at run time (ch__live_rows).
 *   - Other ops that mix rows, such as a product that sums over axis 0, may get room that is
 *     filled with a number that does not change the result (ch_op.room_filled). Specialisation
 *     inserts the call of fill_room.
 *   - Sparse gradients have no room. Their ids and rows are results of fill_room with a size
 *     symbol of their own, in which room has become ids that name no row (ops/room.c).
 *   - An output with the symbol is cut to its live rows after the run.
 *
 * Ops that would mix live rows with room are planned for the exact sizes, with a program for
 * each size. An example is an op that reverses axis 0.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_ROOM_H
#define GRAPH_ROOM_H

#include "graph/graph.h"

/* Sets may[i] for each input: true if its axis 0 may have room. */
ch_status ch__graph_room(const ch_graph *g, bool *may);

/* What a call does with room in axis 0 of an input. */
typedef enum ch_room_use {
    CH_ROOM_REFUSED, /* the call needs exact sizes */
    CH_ROOM_KEPT,    /* the call accepts any contents of the room */
    CH_ROOM_FILLED   /* the room must be filled with ch_op.room_fill before */
} ch_room_use;
/* Returns what call n of g does with room in input i. */
ch_room_use ch__room_use(const ch_graph *g, const ch_node *n, int i);

/* For tests. While poisoning is on, inputs that may have room get CH_ROOM_POISONED rows in
 * addition to their capacity. The room is filled with NaN or, for integers, with a number that
 * is not a valid id. */
enum { CH_ROOM_POISONED = 3 };
void ch__room_poison(bool on);
bool ch__room_is_poisoned(void);
/* Fills n elements with the poison value. */
void ch__room_fill(ch_dtype dtype, void *at, int64_t n);

#endif
