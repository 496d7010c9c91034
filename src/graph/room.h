/* graph/room.h -- which inputs of a graph may be longer than they are filled.
 *
 * The flat values of a ragged component are as many as the batch happens to have. So that a program
 * fits many batches, it is planned for a capacity (tensor/ragged.h), and the rows behind the last
 * value, the room, hold anything. A graph may get room in an input only if no result can tell:
 *
 *   - The input's axis 0 is a symbol that stands for flat values. In every value of the graph the
 *     symbol is the size of axis 0 or does not occur, so that live rows are the first in memory.
 *   - Every call that takes such a value computes its live rows from live rows alone: elementwise
 *     ops, and ops that say so (ch_op.room), which read the splits at run time.
 *   - An output that has the symbol is cut to its live rows when the run is done.
 *
 * Ops that would mix live rows with room (a sum over axis 0, the number of rows, a lookup that
 * refuses ids out of range) therefore see exact sizes, and their step is planned for each size.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_ROOM_H
#define GRAPH_ROOM_H

#include "graph/graph.h"

/* Sets may[i] for each input of the graph: whether its axis 0 may have room. */
ch_status ch__graph_room(const ch_graph *g, bool *may);

/* While it is on, inputs that may have room get this many rows more than their capacity, and all of
 * the room is filled with NaN or, in integers, with a number that is no id. For tests. */
enum { CH_ROOM_POISONED = 3 };
void ch__room_poison(bool on);
bool ch__room_is_poisoned(void);
/* Fills n elements with that. */
void ch__room_fill(ch_dtype dtype, void *at, int64_t n);

#endif
