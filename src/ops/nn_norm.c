/* ops/nn_norm.c -- layer_norm and rms_norm: normalise each row on its own.
 *
 * Both ops share kernels; `center` is true for layer_norm. Output 0 is y. The other outputs are
 * statistics of each row, which the gradient reads: the mean (layer_norm only) and
 * 1 / standard deviation, in f32 if x is a 16-bit float. The gradient kernel has two phases:
 * rows in tiles, then the sum of the tiles' dgamma and dbeta.
 *
 * Invariant: the statistics are functions of x. Their share of the derivative is part of dx, so
 * they have no gradient of their own.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "graph/step.h"
#include "kernel/widen.h"
#include "ops/ops.h"

typedef struct norm_attrs {
    double eps;
} norm_attrs;

static const ch_attr norm_rows[] = {CH_ATTR_FLOAT(norm_attrs, eps), CH_ATTR_END};

/* ---- shape rules ---- */

/* Checks x, the n_columns vectors (gamma, beta) after it, and epsilon. */
static ch_status check_norm(const ch_infer *c, int n_columns)
{
    const norm_attrs *a = c->attrs;
    ch_status         rc = ch__infer_want_rows(c, 0);

    for (int i = 1; i <= n_columns && rc == CH_OK; i++)
        rc = ch__infer_want_column(c, i);
    if (rc == CH_OK && !(a->eps >= 0))
        rc = ch__infer_fail(c, "epsilon is %g, want 0 or more", a->eps);
    return rc;
}

/* Sets output 0 to y, and n_stats outputs to a number for each row. */
static ch_status norm_out(ch_infer *c, int n_stats)
{
    ch_dims rows = c->in[0];

    rows.rank--;
    (void)ch__infer_like(c, 0, 0);
    for (int i = 1; i <= n_stats; i++)
        (void)ch__infer_dims(c, i, ch__stat_dtype(c->dtype[0]), &rows);
    return CH_OK;
}

static ch_status layer_infer(ch_infer *c)
{
    ch_status rc = check_norm(c, 2);

    return rc == CH_OK ? norm_out(c, 2) : rc;
}

static ch_status rms_infer(ch_infer *c)
{
    ch_status rc = check_norm(c, 1);

    return rc == CH_OK ? norm_out(c, 1) : rc;
}

/* Inputs: x, gamma, the statistics, dy. Outputs: dx, dgamma and, for layer_norm, dbeta. */
static ch_status norm_grad_infer(ch_infer *c)
{
    ch_dims   rows = c->in[0];
    ch_status rc = check_norm(c, 1);
    int       last = c->n_in - 1;

    if (rc != CH_OK)
        return rc;
    rows.rank--;
    for (int i = 2; i < last; i++)
        if (c->dtype[i] != ch__stat_dtype(c->dtype[0]) || !ch__dims_same(&c->in[i], &rows))
            return ch__infer_fail(c, "input %d must have one statistic for each row of input 0",
                                  i);
    if (c->dtype[last] != c->dtype[0] || !ch__dims_same(&c->in[last], &c->in[0]))
        return ch__infer_fail(c, "inputs 0 and %d must have the same dtype and shape", last);
    (void)ch__infer_like(c, 0, 0);
    for (int i = 1; i < (last == 4 ? 3 : 2); i++)
        (void)ch__infer_like(c, i, 1);
    return CH_OK;
}

/* ---- kernels ---- */

/* Returns gamma or beta in the dtype of the computation, in its own memory or in `buffer`. */
static const void *column(const ch_row_state *s, ch_dtype t, const void *x, void *buffer)
{
    if (s->x.dtype == CH_F64)
        return x;
    return ch__as_f32(t, s->x.n, x, buffer);
}

static ch_status norm_prepare(const ch_node *n, ch_prep *p)
{
    const norm_attrs *a = ch__attrs(n);
    ch_row_state     *s = ch__rows_prepare(n, p, 4, 3, 0);

    if (s == NULL)
        return ch__fail_memory(n->op->name);
    s->eps = a->eps;
    s->center = n->n_in == 3;
    p->over[0] = 1;
    return CH_OK;
}

static ch_status norm_run(const ch_call *c, ch_kernel_tile t)
{
    const ch_row_state *s = c->state;
    const ch_node      *n = c->node;
    void               *buffer = ch__rows_buffer(s, c, t.index, 0);
    const void         *gamma, *beta = NULL;
    int64_t             from, to;

    gamma = column(s, n->in[1]->dtype, c->in[1], ch__rows_buffer(s, c, t.index, 1));
    if (s->center)
        beta = column(s, n->in[2]->dtype, c->in[2], ch__rows_buffer(s, c, t.index, 2));
    ch__rows_tile(s, t.index, &from, &to);
    for (int64_t i = from; i < to; i++) {
        void  *y = ch__row_to(&s->x, c->out[0], i, buffer);
        double stat[2];

        s->x.loops->layer(s->x.n, ch__row(&s->x, c->in[0], i, buffer), gamma, beta, s->eps,
                          s->center, y, stat);
        ch__row_done(&s->x, c->out[0], i, y);
        if (s->center)
            ch__stat_set(s->stat, c->out[1], i, stat[0]);
        ch__stat_set(s->stat, c->out[s->center ? 2 : 1], i, stat[1]);
    }
    return CH_OK;
}

/* ---- the kernel of the gradient ---- */

enum { GRAD_COST = 8 }; /* of an element */

/* The extra scratch of a tile: dgamma and dbeta of a block of rows, then their totals in
 * f64. */
static ch_status norm_grad_prepare(const ch_node *n, ch_prep *p)
{
    const ch_node *x = n->in[0];
    ch_rows_of     r = ch__rows_of(x->dtype, 0, x->dims.dim[x->dims.rank - 1].n);
    size_t         totals = 2 * (size_t)r.n * sizeof(double);
    ch_row_state  *s =
        ch__rows_prepare(n, p, GRAD_COST, 3, 2 * ch__row_buffer_bytes(&r) + totals);

    if (s == NULL)
        return ch__fail_memory(n->op->name);
    s->center = n->n_in == 5;
    p->over[0] = 1 | 1u << (n->n_in - 1);
    p->n_phases = 2;
    p->tiles[1] = 1;
    return CH_OK;
}

typedef struct tile_sums {
    void   *dgamma, *dbeta;
    double *totals; /* of dgamma, then of dbeta */
} tile_sums;

static tile_sums sums_of(const ch_row_state *s, const ch_call *c, int tile)
{
    char *at = ch__rows_buffer(s, c, tile, s->n_buffers);

    return (tile_sums){at, at + s->buffer_bytes, (double *)(at + 2 * s->buffer_bytes)};
}

/* Adds the sums of a block of rows to the totals, and clears the sums. */
static void flush(const ch_row_state *s, const tile_sums *sums)
{
    s->x.loops->flush(s->x.n, sums->dgamma, sums->totals);
    s->x.loops->flush(s->x.n, sums->dbeta, sums->totals + s->x.n);
}

/* Returns the state for the live rows only (graph/room.h). They are cut into tiles like a value
 * without room, so the sums have the same bits. */
static ch_row_state live_state(const ch_call *c)
{
    ch_row_state s = *(const ch_row_state *)c->state;

    if (c->node->live_input != 0) {
        s.x.rows = ch__live_items(c, s.x.rows);
        s.tiles = ch__tile_count(s.x.rows, GRAD_COST * s.x.n);
    }
    return s;
}

static void norm_grad_rows(const ch_call *c, const ch_row_state *s, int tile)
{
    const ch_node *n = c->node;
    void          *buffer = ch__rows_buffer(s, c, tile, 0);
    tile_sums      sums = sums_of(s, c, tile);
    const void    *gamma, *dy = c->in[n->n_in - 1], *r = c->in[n->n_in - 2];
    int64_t        from, to;

    gamma = column(s, n->in[1]->dtype, c->in[1], ch__rows_buffer(s, c, tile, 2));
    memset(sums.dgamma, 0, s->extra_bytes);
    ch__rows_tile(s, tile, &from, &to);
    for (int64_t i = from; i < to; i++) {
        void       *dx = ch__row_to(&s->x, c->out[0], i, buffer);
        const void *x = ch__row(&s->x, c->in[0], i, buffer);
        double      stat[2] = {s->center ? ch__stat_at(s->stat, c->in[2], i) : 0,
                          ch__stat_at(s->stat, r, i)};

        s->x.loops->layer_grad(s->x.n, x, gamma, stat,
                               ch__row(&s->x, dy, i, ch__rows_buffer(s, c, tile, 1)), s->center,
                               dx, sums.dgamma, s->center ? sums.dbeta : NULL);
        ch__row_done(&s->x, c->out[0], i, dx);
        if ((i - from) % CH_NORM_ROWS == CH_NORM_ROWS - 1)
            flush(s, &sums);
    }
    flush(s, &sums);
}

/* Adds the totals of all tiles in order, and writes them in gamma's dtype. */
static void norm_grad_join(const ch_call *c, const ch_row_state *s)
{
    ch_dtype dtype = c->node->in[1]->dtype;
    double  *total = sums_of(s, c, 0).totals;

    for (int tile = 1; tile < s->tiles; tile++) {
        const double *part = sums_of(s, c, tile).totals;

        for (int64_t j = 0; j < 2 * s->x.n; j++)
            total[j] += part[j];
    }
    ch__from_f64(dtype, s->x.n, total, c->out[1]);
    if (s->center)
        ch__from_f64(dtype, s->x.n, total + s->x.n, c->out[2]);
}

static ch_status norm_grad_run(const ch_call *c, ch_kernel_tile t)
{
    const ch_row_state s = live_state(c);

    if (t.phase == 1)
        norm_grad_join(c, &s);
    else if (t.index < s.tiles)
        norm_grad_rows(c, &s, t.index);
    return CH_OK;
}

static const ch_kernel norm_kernel = {"rows", .prepare = norm_prepare, .run = norm_run};
static const ch_kernel norm_grad_kernel = {"rows", .prepare = norm_grad_prepare,
                                           .run = norm_grad_run};

/* ---- gradients ---- */

static ch_node *mean_last(ch_node *x)
{
    return ch_mean(x, 1, (int[]){-1}, true);
}

static void layer_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *d;

    (void)s;
    if (dout[0] == NULL)
        return;
    d = ch__node(&ch__op_layer_norm_grad, ch__attrs(n), 5,
                 (ch_node *[]){n->in[0], n->in[1], ch__out(n, 1), ch__out(n, 2), dout[0]});
    if (d == NULL)
        return;
    din[0] = d;
    din[1] = ch__out(d, 1);
    din[2] = ch_cast(ch__out(d, 2), n->in[2]->dtype);
}

static void rms_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *d;

    (void)s;
    if (dout[0] == NULL)
        return;
    d = ch__node(&ch__op_rms_norm_grad, ch__attrs(n), 4,
                 (ch_node *[]){n->in[0], n->in[1], ch__out(n, 1), dout[0]});
    if (d == NULL)
        return;
    din[0] = d;
    din[1] = ch__out(d, 1);
}

/* Records the gradient with simpler ops. Computes the statistics from x, so that their share of
 * the derivative is included. */
static void norm_parts(const ch_node *n, ch_node *const *in, ch_node **out)
{
    const norm_attrs *a = ch__attrs(n);
    bool              center = n->n_in == 5;
    ch_dtype          t = ch__stat_dtype(in[0]->dtype);
    ch_node          *x = ch_cast(in[0], t), *gamma = ch_cast(in[1], t);
    ch_node          *dy = ch_cast(in[n->n_in - 1], t);
    ch_node          *c = center ? ch_sub(x, mean_last(x)) : x;
    ch_node          *eps = ch_number(ch_node_step(n), a->eps);
    ch_node          *r = ch_rsqrt(ch_add(mean_last(ch_square(c)), eps));
    ch_node          *h = ch_mul(c, r), *g = ch_mul(dy, gamma);
    ch_node          *rest = ch_sub(g, ch_mul(h, mean_last(ch_mul(g, h))));

    if (center)
        rest = ch_sub(rest, mean_last(g));
    out[0] = ch_cast(ch_mul(r, rest), in[0]->dtype);
    out[1] = ch_cast(ch__unbroadcast(ch_mul(dy, h), gamma), in[1]->dtype);
    if (center)
        out[2] = ch_cast(ch__unbroadcast(dy, gamma), in[1]->dtype);
}

static void norm_grad_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    ch__grad_of_parts(n, dout, din, 1u << 0 | 1u << 1 | 1u << (n->n_in - 1), norm_parts);
}

/* ---- partition rules ---- */

/* Rows are independent, except that dgamma and dbeta are sums over rows. */
static ch_status norm_factors(const ch_node *n, ch_factors *f)
{
    bool is_grad = n->op == &ch__op_layer_norm_grad || n->op == &ch__op_rms_norm_grad;
    int  map[CH_MAX_RANK], rank = n->in[0]->dims.rank, last = is_grad ? n->n_in - 1 : 0;

    for (int k = 0; k < rank; k++)
        map[k] = ch__factor(f, k == rank - 1 ? CH_FIX : is_grad ? CH_RED : CH_PAR);
    for (int i = 0; i < n->n_in; i++) {
        bool is_column = i == 1 || (i == 2 && !is_grad);

        ch__factor_map(f, i,
                       is_column             ? 1
                       : i == 0 || i == last ? rank
                                             : rank - 1,
                       is_column ? map + rank - 1 : map);
    }
    for (int i = 0; i < n->n_out; i++)
        (void)ch__factor_out(f, n[i].dims.rank, is_grad && i > 0 ? map + rank - 1 : map);
    return CH_OK;
}

/* ---- in plain ops, for a last axis that is divided ---- */

/* Returns a statistic of each row with an axis of size 1 in place of the row. */
static ch_node *spread(ch_node *stat)
{
    return ch_expand_dims(stat, -1);
}

/* The mean is subtracted before the squares are added, as in the kernel. */
static bool norm_expand(ch_step *s, const ch_node *n, ch_node *const *in, ch_node **out)
{
    const norm_attrs *a = ch__attrs(n);
    bool              center = n->n_in == 3;
    ch_dtype          t = ch__stat_dtype(n->dtype);
    ch_node          *x = ch_cast(in[0], t), *mean = center ? mean_last(x) : NULL, *r, *y;

    if (center)
        x = ch_sub(x, mean);
    r = ch_rsqrt(ch_add(mean_last(ch_square(x)), ch_number(s, a->eps)));
    y = ch_mul(ch_mul(x, r), ch_cast(in[1], t));
    out[0] = ch_cast(center ? ch_add(y, ch_cast(in[2], t)) : y, n->dtype);
    if (center)
        out[1] = ch__reshape_dims(mean, &n[1].dims);
    out[n->n_out - 1] = ch__reshape_dims(r, &n[1].dims);
    return out[0] != NULL;
}

/* With the statistics of the inputs; norm_parts computes them again. */
static bool norm_grad_expand(ch_step *s, const ch_node *n, ch_node *const *in, ch_node **out)
{
    bool     center = n->n_in == 5;
    ch_dtype t = ch__stat_dtype(n->dtype);
    ch_node *x = ch_cast(in[0], t), *gamma = ch_cast(in[1], t), *r = spread(in[n->n_in - 2]);
    ch_node *dy = ch_cast(in[n->n_in - 1], t), *g = ch_mul(dy, gamma);
    ch_node *h = ch_mul(center ? ch_sub(x, spread(in[2])) : x, r);
    ch_node *rest = ch_sub(g, ch_mul(h, mean_last(ch_mul(g, h))));

    (void)s;
    if (center)
        rest = ch_sub(rest, mean_last(g));
    out[0] = ch_cast(ch_mul(r, rest), n->dtype);
    out[1] = ch_cast(ch__unbroadcast(ch_mul(dy, h), gamma), n[1].dtype);
    if (center)
        out[2] = ch_cast(ch__unbroadcast(dy, gamma), n[2].dtype);
    return out[0] != NULL;
}

/* ---- ops ---- */

const ch_op ch__op_layer_norm = {
    .name = "layer_norm",
    .version = 1,
    .n_in = 3,
    .n_out = 3,
    .attrs = norm_rows,
    .attrs_bytes = sizeof(norm_attrs),
    .infer = layer_infer,
    .grad = layer_grad,
    .factors = norm_factors,
    .expand = norm_expand,
    .kernels = (const ch_kernel *const[]){&norm_kernel, NULL},
    .room_rows = 1,
};
const ch_op ch__op_layer_norm_grad = {
    .name = "layer_norm_grad",
    .version = 1,
    .n_in = 5,
    .n_out = 3,
    .attrs = norm_rows,
    .attrs_bytes = sizeof(norm_attrs),
    .infer = norm_grad_infer,
    .grad = norm_grad_grad,
    .factors = norm_factors,
    .expand = norm_grad_expand,
    .kernels = (const ch_kernel *const[]){&norm_grad_kernel, NULL},
    .room = 1u << 0 | 1u << 2 | 1u << 3 | 1u << 4, /* all but gamma */
};
const ch_op ch__op_rms_norm = {
    .name = "rms_norm",
    .version = 1,
    .n_in = 2,
    .n_out = 2,
    .attrs = norm_rows,
    .attrs_bytes = sizeof(norm_attrs),
    .infer = rms_infer,
    .grad = rms_grad,
    .factors = norm_factors,
    .expand = norm_expand,
    .kernels = (const ch_kernel *const[]){&norm_kernel, NULL},
    .room_rows = 1,
};
const ch_op ch__op_rms_norm_grad = {
    .name = "rms_norm_grad",
    .version = 1,
    .n_in = 4,
    .n_out = 2,
    .attrs = norm_rows,
    .attrs_bytes = sizeof(norm_attrs),
    .infer = norm_grad_infer,
    .grad = norm_grad_grad,
    .factors = norm_factors,
    .expand = norm_grad_expand,
    .kernels = (const ch_kernel *const[]){&norm_grad_kernel, NULL},
    .room = 1u << 0 | 1u << 2 | 1u << 3, /* all but gamma */
};

ch_node *ch_layer_norm(ch_node *x, ch_node *gamma, ch_node *beta, double eps)
{
    return ch__node(&ch__op_layer_norm, &(norm_attrs){eps}, 3, (ch_node *[]){x, gamma, beta});
}

ch_node *ch_rms_norm(ch_node *x, ch_node *gamma, double eps)
{
    return ch__node(&ch__op_rms_norm, &(norm_attrs){eps}, 2, (ch_node *[]){x, gamma});
}
