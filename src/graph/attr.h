/* graph/attr.h -- attributes by their rows.   SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_ATTR_H
#define GRAPH_ATTR_H

#include "graph/op.h"
#include "tensor/print.h"

/* A copy in the arena, row by row; texts too, tensors, tables and graphs referenced. NULL: no memory.
 */
void *ch__attrs_copy(ch_arena *a, const ch_op *op, const void *from);
/* Gives back what a copy referenced. */
void     ch__attrs_drop(const ch_op *op, void *attrs);
bool     ch__attrs_equal(const ch_op *op, const void *a, const void *b);
uint64_t ch__attrs_hash(const ch_op *op, const void *attrs);
/* " ta=true perm=(1, 0)". Left out are attributes that are off, or that a call's type shows
 * anyway, and bodies, which take more than one line. */
void ch__attrs_print(const ch_node *call, ch_text *t);

#endif
