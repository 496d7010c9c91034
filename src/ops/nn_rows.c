/* ops/nn_rows.c -- functions that the ops on rows share (ops/nn.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/step.h"
#include "ops/ops.h"

ch_status ch__infer_want_rows(const ch_infer *c, int i)
{
    ch_status rc = ch__infer_want_float(c, i);

    if (rc == CH_OK && c->in[i].rank == 0)
        rc = ch__infer_fail(c, "input %d is a scalar, want at least one axis", i);
    return rc;
}

ch_status ch__infer_want_column(const ch_infer *c, int i)
{
    ch_dim last = c->in[0].dim[c->in[0].rank - 1];

    if (c->in[i].rank != 1 || !ch__dim_same(c->in[i].dim[0], last))
        return ch__infer_fail(c,
                              "input %d must have shape (%s), one value for each element of "
                              "the last axis of input 0",
                              i, ch__dim_text(c, last));
    if (c->dtype[i] != c->dtype[0] && c->dtype[i] != ch__stat_dtype(c->dtype[0]))
        return ch__infer_fail(c, "input %d is %s, want %s%s; cast it", i,
                              ch_dtype_name(c->dtype[i]), ch_dtype_name(c->dtype[0]),
                              c->dtype[0] == ch__stat_dtype(c->dtype[0]) ? "" : " or f32");
    return CH_OK;
}

ch_row_state *ch__rows_prepare(const ch_node *n, ch_prep *p, int cost, int n_buffers,
                               size_t extra_bytes)
{
    ch_row_state  *s = ch__prep_state(p, sizeof(*s));
    const ch_node *x = n->in[0];
    int64_t        last = x->dims.dim[x->dims.rank - 1].n, rows = 1;

    if (s == NULL)
        return NULL;
    for (int k = 0; k < x->dims.rank - 1; k++)
        rows *= x->dims.dim[k].n;
    s->x = ch__rows_of(x->dtype, rows, last);
    s->stat = ch__stat_dtype(x->dtype);
    s->tiles = ch__tile_count(rows, cost * last);
    s->n_buffers = s->x.is_direct ? 0 : n_buffers;
    s->buffer_bytes = ch__row_buffer_bytes(&s->x);
    s->extra_bytes = ch__aligned(extra_bytes);
    s->tile_bytes = (size_t)s->n_buffers * s->buffer_bytes + s->extra_bytes;
    p->scratch_bytes = (size_t)s->tiles * s->tile_bytes;
    p->n_phases = 1;
    p->tiles[0] = s->tiles;
    return s;
}

void ch__rows_tile(const ch_row_state *s, int tile, int64_t *from, int64_t *to)
{
    ch__tile_range(s->x.rows, s->tiles, tile, from, to);
}

void *ch__rows_buffer(const ch_row_state *s, const ch_call *c, int tile, int i)
{
    if (s->tile_bytes == 0)
        return NULL;
    if (i > s->n_buffers)
        i = s->n_buffers;
    return (char *)c->scratch + (size_t)tile * s->tile_bytes + (size_t)i * s->buffer_bytes;
}

double ch__stat_at(ch_dtype t, const void *x, int64_t i)
{
    return t == CH_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

void ch__stat_set(ch_dtype t, void *x, int64_t i, double value)
{
    if (t == CH_F64)
        ((double *)x)[i] = value;
    else
        ((float *)x)[i] = (float)value;
}

/* Records copies of the inputs for `parts`. A gradient must stop at the inputs, even if an
 * input was computed from another input. */
void ch__grad_of_parts(const ch_node *n, ch_node *const dout[], ch_node *din[], unsigned uses,
                       ch_parts_fn parts)
{
    ch_node *in[8] = {0}, *out[8] = {0}, *x[8], *dx[8];
    int      which[8], m = 0;

    for (int i = 0; i < n->n_in; i++) {
        in[i] = n->in[i];
        if ((uses >> i & 1) == 0)
            continue;
        x[m] = in[i] = ch_identity(in[i]);
        which[m++] = i;
    }
    parts(n, in, out);
    for (int k = 0; k < n->n_out; k++) {
        if (dout[k] == NULL || out[k] == NULL)
            continue;
        ch_gradients(out[k], dout[k], m, x, dx);
        for (int i = 0; i < m; i++) {
            ch_node **sum = &din[which[i]];

            *sum = *sum == NULL ? dx[i] : ch_add(*sum, dx[i]);
        }
    }
}

static ch_node *move_axis(ch_node *x, int from, int to)
{
    int perm[CH_MAX_RANK], rank, m = 0;

    if (x == NULL || from == to)
        return x;
    rank = x->dims.rank;
    for (int k = 0; k < rank; k++) {
        if (m == to)
            perm[m++] = from;
        if (k != from)
            perm[m++] = k;
    }
    if (m == to)
        perm[m++] = from;
    return ch_transpose(x, rank, perm);
}

ch_node *ch__axis_to_last(ch_node *x, int axis)
{
    return x == NULL ? NULL : move_axis(x, axis, x->dims.rank - 1);
}

ch_node *ch__axis_from_last(ch_node *x, int axis)
{
    return x == NULL ? NULL : move_axis(x, x->dims.rank - 1, axis);
}

ch_status ch__factors_rows(const ch_node *n, ch_factors *f)
{
    int map[CH_MAX_RANK], rank = n->in[0]->dims.rank;

    for (int k = 0; k < rank; k++)
        map[k] = ch__factor(f, k == rank - 1 ? CH_FIX : CH_PAR);
    for (int i = 0; i < n->n_in; i++)
        ch__factor_map(f, i, n->in[i]->dims.rank, map);
    for (int i = 0; i < n->n_out; i++)
        (void)ch__factor_out(f, n[i].dims.rank, map);
    return CH_OK;
}
