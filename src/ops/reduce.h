/* ops/reduce.h -- the list of ops of this family, and what they lend each other.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_REDUCE_H
#define OPS_REDUCE_H

#include "graph/op.h"

/* clang-format off */
#define CH_OPS_REDUCE(X)                                                                      \
    X(sum) X(mean) X(prod) X(max) X(min) X(logsumexp) X(any) X(all) X(div_count)              \
    X(argmax) X(argmin) X(cumsum) X(prod_others) X(prod_pairs)                                \
    X(sort) X(top_k) X(take_along) X(put_along)
/* clang-format on */

/* Input 0 must be a float type, i8, i32, i64 or u8. */
ch_status ch__infer_want_arith(const ch_infer *c);
/* An axis of input 0, as the attribute has it; the reason says the rank. */
ch_status ch__infer_want_axis(const ch_infer *c, int64_t axis);
/* The axis counted from 0, if it is one of x's: equal calls then look equal. */
int64_t ch__axis_of(const ch_node *x, int axis);
/* Every size of inputs and outputs, all of one rank, may be cut but that of `axis`. */
ch_status ch__factors_along(const ch_node *n, ch_factors *f, int axis);

/* How many tiles for `lines` of this cost, each tile with room of its own: by shape only, and
 * few enough that the room stays small. */
int ch__line_tiles(int64_t lines, int64_t cost, int64_t room_bytes);

/* x divided by how many elements these sizes have, symbols included. */
ch_node *ch__div_count(ch_node *x, const ch_dims *over);
/* Over one axis: the product of all but each; no division, so zeros are no special case. */
ch_node *ch__prod_others(ch_node *x, int64_t axis);

#endif
