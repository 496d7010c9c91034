/* graph/attr.h -- generic operations on the attributes of calls.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_ATTR_H
#define GRAPH_ATTR_H

#include "graph/op.h"
#include "tensor/print.h"

/* Copies attributes to the arena by their rows. Texts are copied; tensors, tables and graphs
 * are referenced. NULL: out of memory. */
void *ch__attrs_copy(ch_arena *a, const ch_op *op, const void *from);
/* Unrefs the tensors, tables and graphs that a copy references. `attrs` may be NULL. */
void     ch__attrs_drop(const ch_op *op, void *attrs);
bool     ch__attrs_equal(const ch_op *op, const void *a, const void *b);
uint64_t ch__attrs_hash(const ch_op *op, const void *attrs);
/* Prints the attributes of a call, as " ta=true perm=(1, 0)". Omits attributes that are zero or
 * equal to the type of output 0, and bodies, which need several lines. */
void ch__attrs_print(const ch_node *call, ch_text *t);

#endif
