/* cohort/array.h -- ops that move elements: shapes, pieces, rows by id.
 *
 *     ch_node *x = ch_step_in(s, 0);                                  // (rows, 28, 28)
 *     ch_node *flat = ch_reshape(x, ch_shape_of(-1, 784));            // (rows, 784)
 *     ch_node *both = ch_concat(2, (ch_node *[]){flat, other}, 1);    // (rows, 784 + ...)
 *     ch_node *e = ch_gather(table, ids, 0);                          // (ids..., width)
 *
 * They take every dtype but strings. Sizes are given as numbers; where rows (a symbol) are
 * meant, -1 says so, as each function tells. What needs the number of rows as a number works
 * too: the step is then recorded again for every number of rows.
 *
 * Reshapes, and slices of axis 0, cost nothing: they are views.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_ARRAY_H
#define COHORT_ARRAY_H

#include "cohort/step.h"

/* ---- shape ---- */

/* The same elements in another shape. One size may be -1: what is left, rows included. */
CH_API ch_node *ch_reshape(ch_node *x, ch_shape shape);
/* A new axis of size 1, at this place of the result; -1 is behind the last. */
CH_API ch_node *ch_expand_dims(ch_node *x, int axis);
/* Without these axes, which must be of size 1; n = 0: without all that are. */
CH_API ch_node *ch_squeeze(ch_node *x, int n, const int *axes);
/* Axis i of the result is axis perm[i] of x. n = 0: the axes in reverse order. */
CH_API ch_node *ch_transpose(ch_node *x, int n, const int *perm);
/* Repeated to this shape, by numpy's rule. A size of -1 stays as it is in x. */
CH_API ch_node *ch_broadcast_to(ch_node *x, ch_shape shape);

/* ---- together and apart ---- */

/* One after another along an axis; their other sizes are equal. */
CH_API ch_node *ch_concat(int n, ch_node *const *x, int axis);
/* Side by side along a new axis, at this place of the result; their sizes are equal. */
CH_API ch_node *ch_stack(int n, ch_node *const *x, int axis);
/* Along an axis into n parts of these sizes, which add up to the axis; NULL: of one size. */
CH_API void ch_split(ch_node *x, int axis, int n, const int64_t *sizes, ch_node **out);

/* Of the first n axes, `size` elements from `begin` on, -1: to the end; all of the other axes.
 */
CH_API ch_node *ch_slice(ch_node *x, int n, const int64_t *begin, const int64_t *size);
/* x[begin:end:stride] of the first n axes, as numpy means it: negative positions count from the
 * end, and a negative stride goes backwards. Strides of NULL are 1. */
#define CH_END INT64_MAX /* as `end`: as far as there are elements, in either direction */
CH_API ch_node *ch_strided_slice(ch_node *x, int n, const int64_t *begin, const int64_t *end,
                                 const int64_t *stride);
/* With so many elements of `value` before and after each axis; n is the rank. */
CH_API ch_node *ch_pad(ch_node *x, int n, const int64_t *before, const int64_t *after,
                       double value);
/* Each axis so many times; n is the rank. */
CH_API ch_node *ch_tile(ch_node *x, int n, const int64_t *times);
/* The elements of these axes in reverse order. */
CH_API ch_node *ch_reverse(ch_node *x, int n, const int *axes);

/* ---- out of nothing ---- */

/* `value` everywhere. */
CH_API ch_node *ch_fill(ch_step *s, ch_dtype dtype, ch_shape shape, double value);
/* The same, in the dtype and shape of x, rows included. */
CH_API ch_node *ch_full_like(ch_node *x, double value);
CH_API ch_node *ch_zeros_like(ch_node *x);
CH_API ch_node *ch_ones_like(ch_node *x);
/* start, start + step, ... up to but without limit. */
CH_API ch_node *ch_range(ch_step *s, ch_dtype dtype, double start, double limit, double step);
/* 0, 1, ... as many as an axis of x has, rows included. */
CH_API ch_node *ch_range_like(ch_node *x, int axis, ch_dtype dtype);
/* Ones where row and column are equal, zeros elsewhere. */
CH_API ch_node *ch_eye(ch_step *s, ch_dtype dtype, int64_t rows, int64_t columns);

/* ---- by id ----
 * Ids are i32 or i64. One that is out of range makes the run fail; the error names it. */

/* Slices of x along an axis, by their ids: (before the axis..., ids..., behind it...). Along
 * axis 0 the gradient with respect to x stays sparse: an update then touches these rows alone.
 */
CH_API ch_node *ch_gather(ch_node *x, ch_node *ids, int axis);
/* x at positions of its first k axes: ids (..., k), result (..., behind those axes...). */
CH_API ch_node *ch_gather_nd(ch_node *x, ch_node *ids);
/* (ids..., depth): `on` at the id's place, `off` elsewhere, and everywhere for an id that is
 * not in [0, depth). */
CH_API ch_node *ch_one_hot(ch_node *ids, int64_t depth, double on, double off, ch_dtype dtype);

typedef enum ch_combiner { CH_COMBINE_SUM, CH_COMBINE_MEAN } ch_combiner;

typedef struct ch_bag_options {
    ch_combiner combiner;
    ch_node *weights; /* (n): of each id, in the dtype of the table; a mean is then weighted */
    ch_node *like; /* any node with as many rows as the result: it then has the same symbol. Not
                      needed if the splits are an input "x/row_splits": the result has its rows */
} ch_bag_options;

/* Rows of a table (n_rows, ...) added up over a ragged list: result row r is the sum, or the
 * mean, of the rows whose ids are ids[row_splits[r]] up to, without, ids[row_splits[r + 1]]. The
 * first split is 0; ids and weights past the last one are not looked at, so that lists may be
 * padded. A row without ids is zeros. */
CH_API ch_node *ch_embedding_bag(ch_node *table, ch_node *ids, ch_node *row_splits,
                                 const ch_bag_options *opt);
/* x with rows[i] added to row ids[i], taken from it, or put in its place: x (n, ...), ids (k),
 * rows (k, ...). Duplicate ids add up in order; of rows to be put, the last wins. For a
 * variable, use ch_var_scatter_add and ch_var_scatter_update (cohort/var.h). */
CH_API ch_node *ch_scatter_add(ch_node *x, ch_node *ids, ch_node *rows);
CH_API ch_node *ch_scatter_sub(ch_node *x, ch_node *ids, ch_node *rows);
CH_API ch_node *ch_scatter_update(ch_node *x, ch_node *ids, ch_node *rows);
/* x with row ids[i] multiplied by rows[i], divided by it, or the smaller or larger of both, one
 * after another where ids are duplicate. Division of integers drops the fraction, and by zero
 * gives 0; of min and max, NaN wins. These have no gradient: it is an error to ask for it. */
CH_API ch_node *ch_scatter_mul(ch_node *x, ch_node *ids, ch_node *rows);
CH_API ch_node *ch_scatter_div(ch_node *x, ch_node *ids, ch_node *rows);
CH_API ch_node *ch_scatter_min(ch_node *x, ch_node *ids, ch_node *rows);
CH_API ch_node *ch_scatter_max(ch_node *x, ch_node *ids, ch_node *rows);
/* The ids themselves, once it is known that all are in [0, limit). */
CH_API ch_node *ch_check_ids(ch_node *ids, int64_t limit);
/* Zeros of (n_rows, ...) with rows[i] added to row ids[i]: ids (n), rows (n, ...). As a
 * gradient it stays (ids, rows) up to the update. */
CH_API ch_node *ch_sparse_rows(ch_node *ids, ch_node *rows, int64_t n_rows);
/* Returns whether a node is held as ids and rows: a gradient of rows that were looked up, a node of
 * ch_sparse_rows, or a sum of such nodes. False for NULL. */
CH_API bool ch_node_is_sparse(const ch_node *n);
/* Sparse arguments and results of a step are two leaves: "<name>/ids" (n), i32 or i64, and "<name>/rows"
 * (n, ...). Replicas may have different n, 0 included.
 *
 * ch_step_in_sparse returns such an argument as a sparse node of n_rows rows; an id outside
 * [0, n_rows) is INVALID_ARGUMENT when the step runs. ch_step_out_sparse makes a sparse node such a
 * result, which can be the argument of another run; a dense node is INVALID_ARGUMENT. */
CH_API ch_node *ch_step_in_sparse(ch_step *s, const char *name, int64_t n_rows);
CH_API void     ch_step_out_sparse(ch_step *s, const char *name, ch_node *n);
/* The sum of the rows of x (n, ...) in each segment; ids (n), in any order. */
CH_API ch_node *ch_segment_sum(ch_node *x, ch_node *segment_ids, int64_t n_segments);

#endif
