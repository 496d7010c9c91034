/* ops/reduce.h -- reductions and ops along an axis: the list of ops and their shared functions.
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

/* Fails unless 0 <= axis < rank of input 0. The message contains the rank. */
ch_status ch__infer_want_axis(const ch_infer *c, int64_t axis);
/* Returns the axis counted from 0, so that equal calls have equal attributes. Returns `axis`
 * unchanged if x is NULL or has no such axis; the shape rule then fails. */
int64_t ch__axis_of(const ch_node *x, int axis);
/* Partition rule: every axis except `axis` may be cut. All inputs and outputs must have the
 * same rank. */
ch_status ch__factors_along(const ch_node *n, ch_factors *f, int axis);

/* Returns the number of tiles for `lines` lines of `cost` each. Every tile needs `tile_bytes`
 * of scratch; the number is limited so that all scratch stays below 32 MiB, if possible. The
 * result depends on the arguments only, and is at least 1. */
int ch__line_tiles(int64_t lines, int64_t cost, int64_t tile_bytes);

/* Returns x divided by the product of the sizes in `over`, which may contain symbols. A product
 * of 0 counts as 1. */
ch_node *ch__div_count(ch_node *x, const ch_dims *over);
/* Returns, for each element along the axis, the product of all other elements of its line.
 * There is no division, so elements that are 0 need no special case. */
ch_node *ch__prod_others(ch_node *x, int64_t axis);

#endif
