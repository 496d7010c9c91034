/* ops/box.h -- kernels of ops that only move elements: a call is a list of boxes to copy.
 *
 * A box is a block of elements with strides in an input and in an output. Each op lists its
 * boxes in `prepare`; ch__boxes_run is the common `run`. ch__boxes_done divides the boxes into
 * tiles. If output 0 is a contiguous range of input 0, it makes the output a view instead, and
 * nothing is copied.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_BOX_H
#define OPS_BOX_H

#include "graph/op.h"
#include "kernel/move.h"

typedef struct ch_box {
    int     in, out;  /* indices of an input and an output of the call */
    int64_t from, to; /* offsets of the box in them, in bytes */
    ch_move move;
} ch_box;

typedef struct ch_boxes {
    int     n, tiles;
    int64_t n_shares; /* units of work; share i is the i-th part of every box */
    ch_box  at[];
} ch_boxes;

/* A box as ops describe it. `from` and `to` are its strides in the input and the output,
 * from_begin and to_begin the offsets of its first element; all are in elements. */
typedef struct ch_box_span {
    int     rank;
    int64_t dim[CH_MOVE_RANK], from[CH_MOVE_RANK], to[CH_MOVE_RANK];
    int64_t from_begin, to_begin;
} ch_box_span;

/* Returns the kernel state for n_boxes boxes, which the program frees. Returns NULL and sets
 * the thread's error message if memory is exhausted. */
ch_boxes *ch__boxes_new(const ch_node *n, ch_prep *p, int n_boxes);
/* Sets box i: copies span s of input `in` to output `out`. */
void ch__boxes_set(ch_boxes *b, int i, const ch_node *n, int in, int out, const ch_box_span *s);
/* Sets the tiles of p; makes output 0 a view if it is a contiguous range of input 0. A
 * `prepare` must call it last. Returns CH_OK. */
ch_status ch__boxes_done(ch_boxes *b, ch_prep *p);
/* Copies a tile: the `run` of kernels with a ch_boxes state. */
ch_status ch__boxes_run(const ch_call *c, ch_kernel_tile t);

/* Sets the strides of a specialised node, in elements. */
void ch__node_strides(const ch_node *n, int64_t stride[CH_MAX_RANK]);
/* Returns the number of tiles for a kernel that writes `bytes` bytes; at most n_pieces, at
 * least 1. */
int ch__move_tiles(int64_t n_pieces, int64_t bytes);

/* Returns an array of the given dims, filled with `value`. (ops/array_make.c) */
ch_node *ch__fill_dims(ch_step *s, ch_dtype dtype, const ch_dims *dims, double value);

/* Like ch_concat, when the sum of the sizes along the axis is known to be `total`. So no new
 * size symbol is needed. (ops/array_join.c) */
ch_node *ch__concat_to(int n, ch_node *const *x, int axis, ch_dim total);

/* Like ch_pad, and inserts between[k] elements between neighbours along axis k. `between` may
 * be NULL. (ops/array_cut.c) */
ch_node *ch__pad(ch_node *x, int n, const int64_t *before, const int64_t *after,
                 const int64_t *between, double value);

/* Parts of shape rules. ch__infer_axis sets *out to the axis counted from 0, and fails if it is
 * out of range. ch__infer_check_dims fails if d, an attribute, has an invalid rank or size. */
ch_status ch__infer_axis(const ch_infer *c, int64_t axis, int rank, int *out);
ch_status ch__infer_check_dims(const ch_infer *c, const ch_dims *d);

#endif
