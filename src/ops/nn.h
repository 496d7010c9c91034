/* ops/nn.h -- softmax, normalisations, losses: the list of ops and their shared functions.
 *
 * These ops work on the rows of input 0. A row is the elements of its last axis.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_NN_H
#define OPS_NN_H

#include "graph/op.h"
#include "kernel/norm.h"

/* clang-format off */
#define CH_OPS_NN(X)                                                                          \
    X(softmax) X(softmax_grad) X(log_softmax) X(log_softmax_grad)                             \
    X(layer_norm) X(layer_norm_grad) X(rms_norm) X(rms_norm_grad)                             \
    X(batch_norm) X(batch_norm_grad)                                                          \
    X(sparse_softmax_cross_entropy) X(sparse_softmax_cross_entropy_grad)                      \
    X(softmax_cross_entropy) X(softmax_cross_entropy_grad) X(sigmoid_cross_entropy)
/* clang-format on */

/* Returns the dtype of statistics (means, variances, logs of sums) of an x of this dtype: f64
 * for f64, otherwise f32, because 16-bit floats are too coarse. */
static inline ch_dtype ch__stat_dtype(ch_dtype x)
{
    return x == CH_F64 ? CH_F64 : CH_F32;
}
/* Returns the sizes of x without the last axis. */
static inline ch_dims ch__rows_dims(const ch_dims *x)
{
    ch_dims d = *x;

    d.rank--;
    return d;
}
/* Fails unless input i is a float type and has rank 1 or more. (ops/nn_rows.c) */
ch_status ch__infer_want_rows(const ch_infer *c, int i);
/* Fails unless input i is a vector with one value for each element of input 0's last axis, of
 * input 0's dtype or of the dtype of its statistics. (ops/nn_rows.c) */
ch_status ch__infer_want_column(const ch_infer *c, int i);

/* The state of a kernel that goes over the rows of input 0. 16-bit rows are widened to buffers
 * in scratch. The scratch of a tile is n_buffers buffers, then extra_bytes. */
typedef struct ch_row_state {
    ch_rows_of x;
    ch_dtype   stat; /* dtype of statistics */
    double     eps;
    bool       center; /* layer_norm: the mean is subtracted */
    int        tiles;
    int        n_buffers; /* row buffers of a tile; 0 if x is f32 or f64 */
    size_t     buffer_bytes, extra_bytes, tile_bytes;
} ch_row_state;

/* Creates the state, and sets tiles and scratch of p. `cost` is the cost of an element,
 * `n_buffers` the number of row buffers that 16-bit floats need. Returns NULL if memory is
 * exhausted; sets no error. */
ch_row_state *ch__rows_prepare(const ch_node *n, ch_prep *p, int cost, int n_buffers,
                               size_t extra_bytes);
/* Sets the rows [*from, *to) of a tile. */
void ch__rows_tile(const ch_row_state *s, int tile, int64_t *from, int64_t *to);
/* Returns row buffer i of a tile, or the extra bytes if i is n_buffers or more. Returns NULL if
 * tiles have no scratch. */
void *ch__rows_buffer(const ch_row_state *s, const ch_call *c, int tile, int i);

/* Read and write element i of an array of statistics of dtype t (f32 or f64). */
double ch__stat_at(ch_dtype t, const void *x, int64_t i);
void   ch__stat_set(ch_dtype t, void *x, int64_t i, double value);

/* Computes the gradient of call n by recording simpler ops with the same result. `parts`
 * records these ops; they are then differentiated with respect to the inputs whose bits are set
 * in `uses`. Used for second derivatives, which must be correct but need not be fast. */
typedef void (*ch_parts_fn)(const ch_node *n, ch_node *const *in, ch_node **out);
void ch__grad_of_parts(const ch_node *n, ch_node *const dout[], ch_node *din[], unsigned uses,
                       ch_parts_fn parts);

/* Move an axis of x to the last position, and back. Softmax works on the last axis. */
ch_node *ch__axis_to_last(ch_node *x, int axis);
ch_node *ch__axis_from_last(ch_node *x, int axis);
/* Partition rule: every axis may be cut except the last axis of input 0. An input or output of
 * lower rank has the first axes of input 0. */
ch_status ch__factors_rows(const ch_node *n, ch_factors *f);

#endif
