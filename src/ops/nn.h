/* ops/nn.h -- the list of ops of this family, and what they lend each other.
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

/* The type of statistics (means, variances, logs of sums) beside x: 16-bit floats are too
 * coarse for them. */
static inline ch_dtype ch__stat_dtype(ch_dtype x)
{
    return x == CH_F64 ? CH_F64 : CH_F32;
}
/* The sizes of all axes but the last. */
static inline ch_dims ch__rows_dims(const ch_dims *x)
{
    ch_dims d = *x;

    d.rank--;
    return d;
}
/* Input i is a float type and has at least one axis. */
ch_status ch__infer_want_rows(const ch_infer *c, int i);
/* Input i is one value for each element of input 0's last axis, of its dtype or its
 * statistics'. */
ch_status ch__infer_want_column(const ch_infer *c, int i);

/* A kernel that goes over the rows of input 0: all axes but the last, which is `n`. */
typedef struct ch_row_state {
    ch_rows_of x;
    ch_dtype   stat;
    double     eps;
    bool       center;
    int        tiles;
    int        n_rooms; /* rows of room that each tile has; beside those, `extra_bytes` */
    size_t     room_bytes, extra_bytes, tile_bytes;
} ch_row_state;

/* Lays it out: `cost` for each element, `rooms` rows of room for 16-bit floats. NULL: no
 * memory. */
ch_row_state *ch__rows_prepare(const ch_node *n, ch_prep *p, int cost, int rooms,
                               size_t extra_bytes);
/* A tile's rows, and its room number i; after the last of them is what is extra. */
void  ch__rows_tile(const ch_row_state *s, int tile, int64_t *from, int64_t *to);
void *ch__rows_room(const ch_row_state *s, const ch_call *c, int tile, int i);

/* One statistic, to and from memory. */
double ch__stat_at(ch_dtype t, const void *x, int64_t i);
void   ch__stat_set(ch_dtype t, void *x, int64_t i, double value);

/* The gradient of a call for which there is a row of simpler ops that give the same: `parts`
 * records them, from the inputs whose bits are in `uses`, and they are differentiated. For
 * derivatives of derivatives, which must be right but need not be fast. */
typedef void (*ch_parts_fn)(const ch_node *n, ch_node *const *in, ch_node **out);
void ch__grad_of_parts(const ch_node *n, ch_node *const dout[], ch_node *din[], unsigned uses,
                       ch_parts_fn parts);

/* x with that axis last, and back again: softmax and the like work on the last. */
ch_node *ch__axis_to_last(ch_node *x, int axis);
ch_node *ch__axis_from_last(ch_node *x, int axis);
/* Every size of inputs and outputs may be cut but the last of input 0; those of lower rank
 * have its first sizes. */
ch_status ch__factors_rows(const ch_node *n, ch_factors *f);

#endif
