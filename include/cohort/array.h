/* cohort/array.h -- array ops: reshape, cut, join and index tensors in a step.
 *
 * An array op moves elements and computes nothing with them, except the ops that add up rows.
 *
 *     ch_node *x = ch_step_in(s, 0);                               // (rows, 28, 28)
 *     ch_node *flat = ch_reshape(x, ch_shape_of(-1, 784));         // (rows, 784)
 *     ch_node *both = ch_concat(2, (ch_node *[]){flat, other}, 1); // (rows, 784 + ...)
 *     ch_node *e = ch_gather(table, ids, 0);                       // (ids..., width)
 *
 *   - The step owns every node: there is nothing to free. The thread that records the step
 *     calls the ops. cohort/step.h has the rules for nodes and errors.
 *   - The ops accept every dtype except strings, unless their comment says otherwise.
 *   - A negative axis counts from the last axis: -1 is the last.
 *   - While a step is recorded, the number of rows is a symbol and not a number. Shapes are
 *     given as numbers; -1 stands for the rows where a comment below allows it. If an op needs
 *     the rows as a number, the library records the step again for each number of rows.
 *   - Reshapes, and slices of axis 0, are views: they copy nothing.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_ARRAY_H
#define COHORT_ARRAY_H

#include "cohort/step.h"

/* ---- shape ---- */

/* Returns the same elements in another shape. One size may be -1: it is computed from the
 * others, and may be the number of rows. */
CH_API ch_node *ch_reshape(ch_node *x, ch_shape shape);
/* Inserts an axis of size 1. `axis` is its position in the result; -1 appends it. */
CH_API ch_node *ch_expand_dims(ch_node *x, int axis);
/* Removes the n axes, which must have size 1. n = 0 removes every axis of size 1. */
CH_API ch_node *ch_squeeze(ch_node *x, int n, const int *axes);
/* Permutes the axes: axis i of the result is axis perm[i] of x. n is the rank of x; n = 0
 * reverses the order of the axes, and `perm` is not read. */
CH_API ch_node *ch_transpose(ch_node *x, int n, const int *perm);
/* Repeats x to fill `shape`, by the broadcasting rule of numpy. A size of -1 keeps the size
 * that x has. */
CH_API ch_node *ch_broadcast_to(ch_node *x, ch_shape shape);

/* ---- joining and cutting ---- */

/* Joins n nodes along an existing axis. All other sizes must be equal. */
CH_API ch_node *ch_concat(int n, ch_node *const *x, int axis);
/* Joins n nodes of equal shape along a new axis. `axis` is its position in the result. */
CH_API ch_node *ch_stack(int n, ch_node *const *x, int axis);
/* Cuts x along an axis into n parts, and writes n nodes to `out`. `sizes` must add up to the
 * size of the axis; NULL: n parts of equal size. */
CH_API void ch_split(ch_node *x, int axis, int n, const int64_t *sizes, ch_node **out);

/* Returns `size` elements from index `begin` on, along each of the first n axes, and all of the
 * other axes. A size of -1 means up to the end. */
CH_API ch_node *ch_slice(ch_node *x, int n, const int64_t *begin, const int64_t *size);
/* Returns x[begin:end:stride] along each of the first n axes, as in numpy: a negative index
 * counts from the end, and a negative stride goes backwards. `stride` NULL means 1
 * everywhere. */
#define CH_END INT64_MAX /* as `end`: up to the last element in the direction of the stride */
CH_API ch_node *ch_strided_slice(ch_node *x, int n, const int64_t *begin, const int64_t *end,
                                 const int64_t *stride);
/* Adds before[i] elements before axis i and after[i] elements after it, all equal to `value`. n
 * must be the rank of x. */
CH_API ch_node *ch_pad(ch_node *x, int n, const int64_t *before, const int64_t *after,
                       double value);
/* Repeats x times[i] times along axis i. n must be the rank of x. */
CH_API ch_node *ch_tile(ch_node *x, int n, const int64_t *times);
/* Reverses the order of the elements along the n axes. */
CH_API ch_node *ch_reverse(ch_node *x, int n, const int *axes);

/* ---- new arrays ---- */

/* Returns an array in which every element is `value`. */
CH_API ch_node *ch_fill(ch_step *s, ch_dtype dtype, ch_shape shape, double value);
/* Return an array with the dtype and the shape of x, rows included. Every element is `value`
 * (ch_full_like), 0 (ch_zeros_like) or 1 (ch_ones_like). */
CH_API ch_node *ch_full_like(ch_node *x, double value);
CH_API ch_node *ch_zeros_like(ch_node *x);
CH_API ch_node *ch_ones_like(ch_node *x);
/* Returns the vector start, start + step, ... up to `limit`, which is not included. */
CH_API ch_node *ch_range(ch_step *s, ch_dtype dtype, double start, double limit, double step);
/* Returns the vector 0, 1, ..., n - 1, where n is the size of an axis of x. The axis may be the
 * rows. */
CH_API ch_node *ch_range_like(ch_node *x, int axis, ch_dtype dtype);
/* Returns a matrix with ones on its diagonal and zeros elsewhere. */
CH_API ch_node *ch_eye(ch_step *s, ch_dtype dtype, int64_t rows, int64_t columns);

/* ---- by id ----
 * Ids are row numbers, of dtype i32 or i64. If an id is out of range, the run fails with
 * INVALID_ARGUMENT, and the error names the id. */

/* Returns the slices of x at `ids` along an axis. The result has the shape of x, with the shape
 * of `ids` in place of that axis. Along axis 0 the gradient of x stays sparse, so that an
 * update changes only the rows that were read. */
CH_API ch_node *ch_gather(ch_node *x, ch_node *ids, int axis);
/* Returns the slices of x at positions in its first k axes. `ids` has the shape (..., k); the
 * result has the shape (..., remaining axes of x). */
CH_API ch_node *ch_gather_nd(ch_node *x, ch_node *ids);
/* Returns an array of shape (ids..., depth), with `on` at index id of the last axis and `off`
 * elsewhere. An id outside [0, depth) is no error: its whole vector is `off`. */
CH_API ch_node *ch_one_hot(ch_node *ids, int64_t depth, double on, double off, ch_dtype dtype);

/* How ch_embedding_bag combines the rows of a list. */
typedef enum ch_combiner { CH_COMBINE_SUM, CH_COMBINE_MEAN } ch_combiner;

typedef struct ch_bag_options {
    ch_combiner combiner;
    /* (n): a weight for each id, in the dtype of the table. CH_COMBINE_MEAN is then the
     * weighted mean. NULL: every weight is 1. */
    ch_node *weights;
    /* A node that has as many rows as the result: the result gets the same symbol for its rows.
     * Not needed if row_splits is an input "x/row_splits", because its rows are known. */
    ch_node *like;
} ch_bag_options;

/* Looks up rows of a table and adds them up over ragged lists of ids.
 *
 * `table` has the shape (n_rows, ...) and a float dtype. Row r of the result combines the rows
 * of ids[row_splits[r]] up to ids[row_splits[r + 1]], which is not included. The first split
 * must be 0. Ids and weights after the last split are not read, so a list may be padded. A list
 * without ids gives zeros. `opt` may be NULL. */
CH_API ch_node *ch_embedding_bag(ch_node *table, ch_node *ids, ch_node *row_splits,
                                 const ch_bag_options *opt);
/* Return x with rows[i] added to row ids[i] (ch_scatter_add), subtracted from that row
 * (ch_scatter_sub) or stored in its place (ch_scatter_update). x has the shape (n, ...), `ids`
 * (k) and `rows` (k, ...). If an id is there several times, ch_scatter_add and ch_scatter_sub
 * apply all of its rows in order, and ch_scatter_update stores the last one. For a variable,
 * use ch_var_scatter_add and its relatives in cohort/var.h. */
CH_API ch_node *ch_scatter_add(ch_node *x, ch_node *ids, ch_node *rows);
CH_API ch_node *ch_scatter_sub(ch_node *x, ch_node *ids, ch_node *rows);
CH_API ch_node *ch_scatter_update(ch_node *x, ch_node *ids, ch_node *rows);
/* Return x with row ids[i] replaced by the product, the quotient, the minimum or the maximum of
 * that row and rows[i]. If an id is there several times, its rows are applied in order. Integer
 * division truncates, and division by 0 gives 0. The minimum and the maximum of NaN and a
 * number are NaN. These ops have no gradient: ch_gradient through them is an error. */
CH_API ch_node *ch_scatter_mul(ch_node *x, ch_node *ids, ch_node *rows);
CH_API ch_node *ch_scatter_div(ch_node *x, ch_node *ids, ch_node *rows);
CH_API ch_node *ch_scatter_min(ch_node *x, ch_node *ids, ch_node *rows);
CH_API ch_node *ch_scatter_max(ch_node *x, ch_node *ids, ch_node *rows);
/* Returns the ids unchanged. The run fails with INVALID_ARGUMENT if an id is not in
 * [0, limit). */
CH_API ch_node *ch_check_ids(ch_node *ids, int64_t limit);
/* Returns a sparse node: zeros of shape (n_rows, ...) with rows[i] added to row ids[i]. `ids`
 * has the shape (n), `rows` (n, ...). As a gradient the node stays a pair of ids and rows until
 * the update. */
CH_API ch_node *ch_sparse_rows(ch_node *ids, ch_node *rows, int64_t n_rows);
/* Returns true if a node is sparse, that is, held as ids and rows: the gradient of a lookup, a
 * node of ch_sparse_rows, or a sum of sparse nodes. False for NULL. */
CH_API bool ch_node_is_sparse(const ch_node *n);
/* Read and write sparse arguments and results of a step. Each is two leaves of a tuple:
 * "<name>/ids" (n), of i32 or i64, and "<name>/rows" (n, ...). n may be 0, and may differ
 * between replicas.
 *
 * ch_step_in_sparse returns the argument as a sparse node with n_rows rows. An id outside
 * [0, n_rows) makes the run fail with INVALID_ARGUMENT. ch_step_out_sparse makes a sparse node
 * a result of the step. Another run can have that result as its argument. A dense node is
 * INVALID_ARGUMENT. */
CH_API ch_node *ch_step_in_sparse(ch_step *s, const char *name, int64_t n_rows);
CH_API void     ch_step_out_sparse(ch_step *s, const char *name, ch_node *n);
/* Returns the sum of the rows of x in each of n_segments segments. x has the shape (n, ...).
 * segment_ids (n) has the segment of each row, in any order. */
CH_API ch_node *ch_segment_sum(ch_node *x, ch_node *segment_ids, int64_t n_segments);

#endif
