/* tensor/ragged.h -- ragged components: flat values, divided into rows by splits.
 *
 * The leaves "x/values" and "x/row_splits" are the two halves of the ragged component x. Row r
 * is the values from splits[r] (inclusive) to splits[r + 1] (exclusive), so there is one more
 * split than there are rows. Datasets, tuples and graphs find the halves by these names.
 *
 * The number of values differs from batch to batch, but a program is planned for exact sizes.
 * So a run plans for a capacity: the number of values, rounded up to one of a few sizes. The
 * memory between the last value and the capacity is called room. Its contents are undefined;
 * graph/room.h lists the ops that may read it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TENSOR_RAGGED_H
#define TENSOR_RAGGED_H

#include "tensor/tensor.h"

#define CH_RAGGED_VALUES "/values"
#define CH_RAGGED_SPLITS "/row_splits"

/* Returns the length of the component's name if `name` ends with `end` (CH_RAGGED_VALUES or
 * CH_RAGGED_SPLITS), otherwise -1. `name` may be NULL. */
int ch__ragged_stem(const char *name, const char *end);
/* Returns true if the names belong to the two halves of a component. Either may be NULL. */
bool ch__ragged_is_pair(const char *values, const char *splits);

/* Returns the leaf that is the other half of leaf i, or -1 if leaf i is not a half of a ragged
 * component. *is_values is true if leaf i has the values. */
int ch__tuple_ragged_half(const ch_tuple *t, int i, bool *is_values);

/* Returns the number of rows of a batch, summed over all replicas: the rows of leaf 0, or of
 * its component if leaf 0 is a half of a ragged component. A scalar counts as a row. */
int64_t ch__tuple_rows(const ch_tuple *t);

/* Returns the capacity for n values. Above CH_RAGGED_COARSE values it is the smallest number
 * >= n of the form 1, 1.25, 1.5 or 1.75 times a power of two; at most a fifth of it is room. Up
 * to CH_RAGGED_COARSE values it is a power of two, and at least CH_RAGGED_LEAST, because
 * planning takes longer than computing so few values. There are 20 capacities up to 4096. */
enum { CH_RAGGED_LEAST = 32, CH_RAGGED_COARSE = 256 };
int64_t ch__ragged_capacity(int64_t n);
/* Returns the number of values to allocate memory for, if pieces of the n values are used
 * later. A piece that begins at any value then has the memory of its capacity. */
int64_t ch__ragged_allocated(int64_t n);

#endif
