/* ops/box.c -- kernels of ops that only move elements: a call is a list of boxes to copy.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ops/box.h"

#include "tensor/tensor.h"

#define SHARE (128 << 10) /* bytes of a share: fits the L2 cache together with its source */

ch_boxes *ch__boxes_new(const ch_node *n, ch_prep *p, int n_boxes)
{
    ch_boxes *b = ch__prep_state(p, sizeof(*b) + (size_t)n_boxes * sizeof(b->at[0]));

    if (b == NULL)
        (void)ch__fail_memory(n->op->name);
    else
        b->n = n_boxes;
    return b;
}

void ch__boxes_set(ch_boxes *b, int i, const ch_node *n, int in, int out, const ch_box_span *s)
{
    int64_t bytes = (int64_t)ch_dtype_bytes(n->dtype);
    ch_box *x = &b->at[i];

    x->in = in;
    x->out = out;
    x->from = s->from_begin * bytes;
    x->to = s->to_begin * bytes;
    ch__move_make(&x->move, s->rank, s->dim, s->from, s->to, (size_t)bytes);
}

int ch__move_tiles(int64_t n_pieces, int64_t bytes)
{
    int tiles = ch__tile_count(bytes / 64 + 1, 16);

    return tiles > n_pieces ? (int)(n_pieces > 0 ? n_pieces : 1) : tiles;
}

ch_status ch__boxes_done(ch_boxes *b, ch_prep *p)
{
    int64_t bytes = 0, pieces = 0;

    for (int i = 0; i < b->n; i++) {
        bytes += ch__move_bytes(&b->at[i].move);
        if (b->at[i].move.n_pieces > pieces)
            pieces = b->at[i].move.n_pieces;
    }
    if (b->n == 1 && b->at[0].in == 0 && b->at[0].out == 0 && b->at[0].to == 0 &&
        bytes == ch__bytes(p->node) && ch__move_is_run(&b->at[0].move)) {
        p->is_view = true;
        p->view_offset = (size_t)b->at[0].from;
    }
    b->tiles = ch__move_tiles(pieces, bytes);
    b->n_shares = bytes / SHARE > b->tiles ? bytes / SHARE : b->tiles;
    p->n_phases = 1;
    p->tiles[0] = b->tiles;
    return CH_OK;
}

/* Copies a share: the same part of every box. Boxes of a concat or split write to the same
 * cache lines, so these parts should be copied together. */
static void copy_share(const ch_boxes *b, const ch_call *c, int64_t share)
{
    for (int i = 0; i < b->n; i++) {
        const ch_box *x = &b->at[i];
        int64_t       n = x->move.n_pieces;

        ch__move_pieces(&x->move, (const char *)c->in[x->in] + x->from,
                        (char *)c->out[x->out] + x->to, n * share / b->n_shares,
                        n * (share + 1) / b->n_shares);
    }
}

ch_status ch__boxes_run(const ch_call *c, ch_kernel_tile t)
{
    const ch_boxes *b = c->state;
    int64_t         from, to;

    ch__tile_range(b->n_shares, b->tiles, t.index, &from, &to);
    for (int64_t share = from; share < to; share++)
        copy_share(b, c, share);
    return CH_OK;
}

void ch__node_strides(const ch_node *n, int64_t stride[CH_MAX_RANK])
{
    ch__strides(ch__shape(n), stride);
}

ch_status ch__infer_axis(const ch_infer *c, int64_t axis, int rank, int *out)
{
    if (ch__axis(axis, rank, out))
        return CH_OK;
    if (rank == 0)
        return ch__infer_fail(c, "axis %lld is out of range: a scalar has no axes",
                              (long long)axis);
    return ch__infer_fail(c, "axis %lld is out of range, want %d to %d", (long long)axis, -rank,
                          rank - 1);
}

ch_status ch__infer_check_dims(const ch_infer *c, const ch_dims *d)
{
    if (d->rank < 0 || d->rank > CH_MAX_RANK)
        return ch__infer_fail(c, "rank %d is out of range, want 0 to %d", d->rank, CH_MAX_RANK);
    for (int i = 0; i < d->rank; i++)
        if (d->dim[i].n < 0 || d->dim[i].sym < 0)
            return ch__infer_fail(c, "size %lld of axis %d is negative", (long long)d->dim[i].n,
                                  i);
    return CH_OK;
}
