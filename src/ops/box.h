/* ops/box.h -- ops that only move elements: a call as a list of boxes to copy.
 *
 * Each op says which box of which input goes where in which output; how it is copied, cut
 * into tiles, or not copied at all because the output is a piece of the input, is the same for
 * all.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_BOX_H
#define OPS_BOX_H

#include "graph/op.h"
#include "kernel/move.h"

typedef struct ch_box {
    int     in, out;  /* of the call */
    int64_t from, to; /* where the box begins in them, in bytes */
    ch_move move;
} ch_box;

typedef struct ch_boxes {
    int     n, tiles;
    int64_t n_shares; /* each a part of every box: what is written together stays together */
    ch_box  at[];
} ch_boxes;

/* Strides and beginnings of a box, in elements, as ops think of them. */
typedef struct ch_box_span {
    int     rank;
    int64_t dim[CH_MOVE_RANK], from[CH_MOVE_RANK], to[CH_MOVE_RANK];
    int64_t from_begin, to_begin;
} ch_box_span;

/* A kernel's state for n boxes; NULL, with the error set, when out of memory. */
ch_boxes *ch__boxes_new(const ch_node *n, ch_prep *p, int n_boxes);
/* Box i copies this span of input `in` into output `out`. */
void ch__boxes_set(ch_boxes *b, int i, const ch_node *n, int in, int out, const ch_box_span *s);
/* Asks for tiles; or for no call, if output 0 is a run of input 0. The prepare's last word. */
ch_status ch__boxes_done(ch_boxes *b, ch_prep *p);
ch_status ch__boxes_run(const ch_call *c, ch_piece t);

/* Strides of a specialised node, in elements. */
void ch__node_strides(const ch_node *n, int64_t stride[CH_MAX_RANK]);
/* How many tiles to cut the writing of so many bytes into. */
int ch__move_tiles(int64_t n_pieces, int64_t bytes);

/* `value` everywhere, of these dims. (ops/array_make.c) */
ch_node *ch__fill_dims(ch_step *s, ch_dtype dtype, const ch_dims *dims, double value);

/* ch_concat where it is known what the sizes along the axis add up to. (ops/array_join.c) */
ch_node *ch__concat_to(int n, ch_node *const *x, int axis, ch_dim total);

/* ch_pad with gaps too: `between` neighbours of each axis. (ops/array_cut.c) */
ch_node *ch__pad(ch_node *x, int n, const int64_t *before, const int64_t *after,
                 const int64_t *between, double value);

/* Shape rules: an axis; sizes that came as an attribute. */
ch_status ch__infer_axis(const ch_infer *c, int64_t axis, int rank, int *out);
ch_status ch__infer_check_dims(const ch_infer *c, const ch_dims *d);

#endif
