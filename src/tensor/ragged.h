/* tensor/ragged.h -- ragged components: flat values, and the row splits that cut them into rows.
 *
 * Leaves named "x/values" and "x/row_splits" are the two halves of the ragged component x: row r
 * is values[splits[r]] up to, without, values[splits[r + 1]], so there is one split more than
 * there are rows. Datasets, tuples and graphs find the halves by these names.
 *
 * The number of values differs from batch to batch. A program is planned for exact sizes, so a
 * run plans for a capacity instead: the number of values, rounded up to one of a few sizes. The
 * memory between the last value and the capacity is called room. It may hold anything; graph/room.h
 * says which ops may see it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TENSOR_RAGGED_H
#define TENSOR_RAGGED_H

#include "tensor/tensor.h"

#define CH_RAGGED_VALUES "/values"
#define CH_RAGGED_SPLITS "/row_splits"

/* Returns the length of the component's name if `name` ends with `end` (CH_RAGGED_VALUES or
 * CH_RAGGED_SPLITS); else -1. `name` may be NULL. */
int ch__ragged_stem(const char *name, const char *end);
/* Returns true if the names are those of the two halves of a component. Either may be NULL. */
bool ch__ragged_is_pair(const char *values, const char *splits);

/* Returns the leaf that is the other half of leaf i; -1 if leaf i is no half of a ragged component.
 * *is_values says which half leaf i is. */
int ch__tuple_ragged_half(const ch_tuple *t, int i, bool *is_values);

/* Returns the number of rows of a batch, over all replicas: of leaf 0 or, if that is half of a
 * ragged component, of the component. A scalar counts as a row. */
int64_t ch__tuple_rows(const ch_tuple *t);

/* Returns the capacity for n values: the least of 1, 1.25, 1.5 and 1.75 times a power of two that
 * is not below n. At most a fifth of it is room. */
int64_t ch__ragged_capacity(int64_t n);
/* Returns the values that memory should be allocated for, so that a piece of n values has its
 * capacity behind its first value, wherever the piece is cut. */
int64_t ch__ragged_allocated(int64_t n);

#endif
