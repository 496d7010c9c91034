/* ops/nn_batch.c -- batch_norm: normalises each column (channel) over all rows.
 *
 * x is (..., channels): (batch, channels) or NHWC. A kernel has three phases:
 *   0. Each tile sums its rows, column by column.
 *   1. A single tile adds these sums. From the totals it computes the mean and the variance of
 *      each column, and the coefficients of phase 2.
 *   2. Each tile computes its rows as a linear function of x (forward) or of x and dy
 *      (backward).
 *
 * The sums are over x minus its first row (the origin), so that a mean far from zero does not
 * cost precision. Outputs 1 and 2 of batch_norm are the mean and the variance.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "graph/step.h"
#include "kernel/widen.h"
#include "ops/ops.h"

typedef struct batch_attrs {
    double eps;
} batch_attrs;

static const ch_attr batch_rows[] = {CH_ATTR_FLOAT(batch_attrs, eps), CH_ATTR_END};

/* ---- shape rules ---- */

/* Checks x, the n_columns vectors after it, and epsilon. */
static ch_status check_batch(const ch_infer *c, int n_columns)
{
    const batch_attrs *a = c->attrs;
    ch_status          rc = ch__infer_want_rows(c, 0);

    if (rc == CH_OK && c->in[0].rank < 2)
        rc = ch__infer_fail(c, "input 0 has rank 1, want 2 or more: (..., channels)");
    for (int i = 1; i <= n_columns && rc == CH_OK; i++)
        rc = ch__infer_want_column(c, i);
    if (rc == CH_OK && !(a->eps >= 0))
        rc = ch__infer_fail(c, "epsilon is %g, want 0 or more", a->eps);
    return rc;
}

static ch_status batch_infer(ch_infer *c)
{
    ch_status rc = check_batch(c, 2);

    if (rc != CH_OK)
        return rc;
    (void)ch__infer_like(c, 0, 0);
    for (int i = 1; i <= 2; i++)
        (void)ch__infer_dims(c, i, ch__stat_dtype(c->dtype[0]), &c->in[1]);
    return CH_OK;
}

/* Inputs: x, gamma, mean, variance, dy. Outputs: dx, dgamma, dbeta. */
static ch_status batch_grad_infer(ch_infer *c)
{
    ch_status rc = check_batch(c, 3);

    for (int i = 2; i <= 3 && rc == CH_OK; i++)
        if (c->dtype[i] != ch__stat_dtype(c->dtype[0]))
            rc = ch__infer_fail(c, "input %d is %s, want %s", i, ch_dtype_name(c->dtype[i]),
                                ch_dtype_name(ch__stat_dtype(c->dtype[0])));
    if (rc == CH_OK && (c->dtype[4] != c->dtype[0] || !ch__dims_same(&c->in[4], &c->in[0])))
        rc = ch__infer_fail(c, "inputs 0 and 4 must have the same dtype and shape");
    if (rc != CH_OK)
        return rc;
    (void)ch__infer_like(c, 0, 0);
    (void)ch__infer_like(c, 1, 1);
    return ch__infer_like(c, 2, 1);
}

/* ---- tiles ---- */

enum { N_COEFFICIENTS = 4 };

/* The extra scratch of a tile: two sums of a block of rows for each column, their totals in
 * f64, and coefficients. Only the coefficients of tile 0 are used. */
typedef struct tile_scratch {
    void   *sum[2];
    double *total[2];
    char   *coefficient;
} tile_scratch;

static tile_scratch scratch_of(const ch_row_state *s, const ch_call *c, int tile)
{
    char   *at = ch__rows_buffer(s, c, tile, s->n_buffers);
    double *total = (double *)(at + 2 * s->buffer_bytes);

    return (tile_scratch){{at, at + s->buffer_bytes},
                          {total, total + s->x.n},
                          at + s->extra_bytes - N_COEFFICIENTS * s->buffer_bytes};
}

/* Returns coefficient vector i, which has an element for each column. */
static void *coefficient(const ch_row_state *s, const ch_call *c, int i)
{
    return scratch_of(s, c, 0).coefficient + (size_t)i * s->buffer_bytes;
}

static ch_status batch_prepare(const ch_node *n, ch_prep *p)
{
    const batch_attrs *a = ch__attrs(n);
    const ch_node     *x = n->in[0];
    ch_rows_of         r = ch__rows_of(x->dtype, 0, x->dims.dim[x->dims.rank - 1].n);
    size_t             totals = 2 * (size_t)r.n * sizeof(double);
    size_t             extra = (2 + N_COEFFICIENTS) * ch__row_buffer_bytes(&r) + totals;
    ch_row_state      *s = ch__rows_prepare(n, p, 4, 3, extra);

    if (s == NULL)
        return ch__fail_memory(n->op->name);
    s->eps = a->eps;
    p->over[0] = n->n_in == 3 ? 1 : 1 | 1 << 4;
    p->n_phases = 3;
    p->tiles[1] = 1;
    p->tiles[2] = s->tiles;
    return CH_OK;
}

/* Adds the sums of a block of rows to the totals, and clears the sums. */
static void flush(const ch_row_state *s, const tile_scratch *r)
{
    s->x.loops->flush(s->x.n, r->sum[0], r->total[0]);
    s->x.loops->flush(s->x.n, r->sum[1], r->total[1]);
}

/* Returns the number of rows, from `from` on, that a call of a loop can process: a block of
 * rows, or a single row if rows must be widened. */
static int64_t rows_at_once(const ch_row_state *s, int64_t from, int64_t to)
{
    int64_t most = s->x.is_direct ? CH_NORM_ROWS : 1;

    return to - from < most ? to - from : most;
}

/* Adds the totals of all tiles, in order, to those of tile 0, and returns these. */
static tile_scratch join(const ch_row_state *s, const ch_call *c)
{
    tile_scratch all = scratch_of(s, c, 0);

    for (int tile = 1; tile < s->tiles; tile++) {
        tile_scratch part = scratch_of(s, c, tile);

        for (int64_t j = 0; j < s->x.n; j++) {
            all.total[0][j] += part.total[0][j];
            all.total[1][j] += part.total[1][j];
        }
    }
    return all;
}

/* Returns element j of a vector of any float dtype as f64. */
static double value_at(ch_dtype t, const void *x, int64_t j)
{
    double      v;
    const char *at = (const char *)x + (size_t)j * ch_dtype_bytes(t);

    return *ch__as_f64(t, 1, at, &v);
}

/* ---- forward ---- */

/* Phase 0 of the forward kernel. */
static void sum_rows(const ch_call *c, int tile)
{
    const ch_row_state *s = c->state;
    tile_scratch        r = scratch_of(s, c, tile);
    const void         *origin;
    int64_t             from, to, n;

    memset(r.sum[0], 0, s->extra_bytes);
    ch__rows_tile(s, tile, &from, &to);
    if (from == to)
        return;
    origin = ch__row(&s->x, c->in[0], 0, ch__rows_buffer(s, c, tile, 1));
    for (int64_t i = from; i < to; i += n) {
        n = rows_at_once(s, i, to);
        s->x.loops->moments(n, s->x.n,
                            ch__row(&s->x, c->in[0], i, ch__rows_buffer(s, c, tile, 0)), origin,
                            r.sum[0], r.sum[1]);
        if (s->x.is_direct || (i - from) % CH_NORM_ROWS == CH_NORM_ROWS - 1)
            flush(s, &r);
    }
    flush(s, &r);
}

/* Phase 1 of the forward kernel: computes the statistics and the coefficients of y = (x -
 * origin) scale + shift. The origin is the first row; with the mean, which is rounded, more
 * precision would be lost. Without rows the mean is 0 and the variance 1, so that a replica
 * without rows has defined statistics. */
static void find_scales(const ch_call *c)
{
    const ch_row_state *s = c->state;
    tile_scratch        all = join(s, c);
    double              rows = (double)s->x.rows;
    void               *origin = coefficient(s, c, 0), *scale = coefficient(s, c, 1);
    void               *shift = coefficient(s, c, 2);

    for (int64_t j = 0; j < s->x.n; j++) {
        double k = 0, m = 0, v = 1, factor;

        if (s->x.rows > 0) {
            k = value_at(s->x.dtype, c->in[0], j);
            m = all.total[0][j] / rows; /* mean, relative to the origin k */
            v = all.total[1][j] / rows - m * m;
            v = v < 0 ? 0 : v;
        }
        factor = value_at(c->node->in[1]->dtype, c->in[1], j) / sqrt(v + s->eps);
        ch__stat_set(s->stat, c->out[1], j, k + m);
        ch__stat_set(s->stat, c->out[2], j, v);
        ch__stat_set(s->stat, origin, j, k);
        ch__stat_set(s->stat, scale, j, factor);
        ch__stat_set(s->stat, shift, j,
                     value_at(c->node->in[2]->dtype, c->in[2], j) - m * factor);
    }
}

/* Phase 2 of the forward kernel. */
static void scale_rows(const ch_call *c, int tile)
{
    const ch_row_state *s = c->state;
    void               *buffer = ch__rows_buffer(s, c, tile, 0);
    int64_t             from, to, n;

    ch__rows_tile(s, tile, &from, &to);
    for (int64_t i = from; i < to; i += n) {
        void *y = ch__row_to(&s->x, c->out[0], i, buffer);

        n = rows_at_once(s, i, to);
        s->x.loops->scale(n, s->x.n, ch__row(&s->x, c->in[0], i, buffer), coefficient(s, c, 0),
                          coefficient(s, c, 1), coefficient(s, c, 2), y);
        ch__row_done(&s->x, c->out[0], i, y);
    }
}

static ch_status batch_run(const ch_call *c, ch_kernel_tile t)
{
    if (t.phase == 0)
        sum_rows(c, t.index);
    else if (t.phase == 1)
        find_scales(c);
    else
        scale_rows(c, t.index);
    return CH_OK;
}

/* ---- backward ---- */

/* Phase 0 of the backward kernel. */
static void sum_dy_rows(const ch_call *c, int tile)
{
    const ch_row_state *s = c->state;
    tile_scratch        r = scratch_of(s, c, tile);
    int64_t             from, to, n;

    memset(r.sum[0], 0, s->extra_bytes);
    ch__rows_tile(s, tile, &from, &to);
    for (int64_t i = from; i < to; i += n) {
        n = rows_at_once(s, i, to);
        s->x.loops->dy_moments(n, s->x.n,
                               ch__row(&s->x, c->in[0], i, ch__rows_buffer(s, c, tile, 0)),
                               ch__row(&s->x, c->in[4], i, ch__rows_buffer(s, c, tile, 1)),
                               c->in[2], r.sum[0], r.sum[1]);
        if (s->x.is_direct || (i - from) % CH_NORM_ROWS == CH_NORM_ROWS - 1)
            flush(s, &r);
    }
    flush(s, &r);
}

/* Phase 1 of the backward kernel: computes dgamma, dbeta and the coefficients a, b, c.
 * With r = 1 / standard deviation and h = (x - mean) r:
 *     dx = gamma r (dy - average(dy) - h average(dy h)) = a dy + b (x - mean) + c. */
static void find_mix(const ch_call *c)
{
    const ch_row_state *s = c->state;
    tile_scratch        all = join(s, c);
    ch_dtype            t = c->node->in[1]->dtype;
    double              rows = s->x.rows > 0 ? (double)s->x.rows : 1;

    for (int64_t j = 0; j < s->x.n; j++) {
        double r = 1 / sqrt(ch__stat_at(s->stat, c->in[3], j) + s->eps);
        double a = value_at(t, c->in[1], j) * r, dgamma = all.total[1][j] * r;
        size_t skip = (size_t)j * ch_dtype_bytes(t);

        ch__stat_set(s->stat, coefficient(s, c, 0), j, a);
        ch__stat_set(s->stat, coefficient(s, c, 1), j, -a * r * dgamma / rows);
        ch__stat_set(s->stat, coefficient(s, c, 2), j, -a * all.total[0][j] / rows);
        ch__from_f64(t, 1, &dgamma, (char *)c->out[1] + skip);
        ch__from_f64(t, 1, &all.total[0][j], (char *)c->out[2] + skip);
    }
}

/* Phase 2 of the backward kernel. */
static void mix_rows(const ch_call *c, int tile)
{
    const ch_row_state *s = c->state;
    void               *buffer = ch__rows_buffer(s, c, tile, 0);
    int64_t             from, to, n;

    ch__rows_tile(s, tile, &from, &to);
    for (int64_t i = from; i < to; i += n) {
        void *dx = ch__row_to(&s->x, c->out[0], i, buffer);

        n = rows_at_once(s, i, to);
        s->x.loops->mix(n, s->x.n, ch__row(&s->x, c->in[0], i, buffer),
                        ch__row(&s->x, c->in[4], i, ch__rows_buffer(s, c, tile, 1)), c->in[2],
                        coefficient(s, c, 0), coefficient(s, c, 1), coefficient(s, c, 2), dx);
        ch__row_done(&s->x, c->out[0], i, dx);
    }
}

static ch_status batch_grad_run(const ch_call *c, ch_kernel_tile t)
{
    if (t.phase == 0)
        sum_dy_rows(c, t.index);
    else if (t.phase == 1)
        find_mix(c);
    else
        mix_rows(c, t.index);
    return CH_OK;
}

static const ch_kernel batch_kernel = {"columns", .prepare = batch_prepare, .run = batch_run};
static const ch_kernel batch_grad_kernel = {"columns", .prepare = batch_prepare,
                                            .run = batch_grad_run};

/* ---- gradients ---- */

static const int axes[CH_MAX_RANK] = {0, 1, 2, 3, 4, 5, 6, 7};

/* Returns the mean of each column. */
static ch_node *mean_rows(ch_node *x)
{
    return x == NULL ? NULL : ch_mean(x, x->dims.rank - 1, axes, false);
}

static ch_node *plus(ch_node *a, ch_node *b)
{
    return a == NULL ? b : ch_add(a, b);
}

/* The gradient through y is a kernel. The gradient through the outputs mean and variance, if
 * they are used, is recorded with simpler ops. */
static void batch_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *x = n->in[0], *mean = ch__out(n, 1), *more = NULL, *d = NULL;
    ch_dims  rows = ch__rows_dims(&x->dims);

    if (dout[0] != NULL)
        d = ch__node(&ch__op_batch_norm_grad, ch__attrs(n), 5,
                     (ch_node *[]){x, n->in[1], mean, ch__out(n, 2), dout[0]});
    if (d != NULL) {
        din[0] = d;
        din[1] = ch__out(d, 1);
        din[2] = ch_cast(ch__out(d, 2), n->in[2]->dtype);
    }
    if (dout[1] != NULL)
        more = ch__broadcast_dims(ch__div_count(dout[1], &rows), &x->dims);
    if (dout[2] != NULL)
        more = plus(more, ch_mul(ch_mul(ch_sub(ch_cast(x, mean->dtype), mean), ch_number(s, 2)),
                                 ch__div_count(dout[2], &rows)));
    if (more != NULL)
        din[0] = plus(din[0], ch_cast(more, x->dtype));
}

/* Records the gradient with simpler ops. Computes the statistics from x, so that their share of
 * the derivative is included. */
static void batch_grad_parts(const ch_node *n, ch_node *const *in, ch_node **out)
{
    const batch_attrs *a = ch__attrs(n);
    ch_dtype           t = ch__stat_dtype(in[0]->dtype);
    ch_node           *x = ch_cast(in[0], t), *gamma = ch_cast(in[1], t);
    ch_node           *dy = ch_cast(in[4], t), *c = ch_sub(x, mean_rows(x));
    ch_node           *eps = ch_number(ch_node_step(n), a->eps);
    ch_node           *r = ch_rsqrt(ch_add(mean_rows(ch_square(c)), eps)), *h = ch_mul(c, r);
    ch_node *rest = ch_sub(ch_sub(dy, mean_rows(dy)), ch_mul(h, mean_rows(ch_mul(dy, h))));

    out[0] = ch_cast(ch_mul(ch_mul(gamma, r), rest), in[0]->dtype);
    out[1] = ch_cast(ch__unbroadcast(ch_mul(dy, h), gamma), in[1]->dtype);
    out[2] = ch_cast(ch__unbroadcast(dy, gamma), in[1]->dtype);
}

static void batch_grad_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    ch__grad_of_parts(n, dout, din, 1 << 0 | 1 << 1 | 1 << 4, batch_grad_parts);
}

/* Channels are independent. All elements of a channel depend on each other. */
static ch_status batch_factors(const ch_node *n, ch_factors *f)
{
    int map[CH_MAX_RANK], rank = n->in[0]->dims.rank;

    for (int k = 0; k < rank; k++)
        map[k] = ch__factor(f, k == rank - 1 ? CH_PAR : CH_FIX);
    for (int i = 0; i < n->n_in; i++)
        ch__factor_map(f, i, n->in[i]->dims.rank, map + rank - n->in[i]->dims.rank);
    for (int i = 0; i < n->n_out; i++)
        (void)ch__factor_out(f, n[i].dims.rank, map + rank - n[i].dims.rank);
    return CH_OK;
}

/* ---- in plain ops, for rows that are divided ---- */

static bool has_rows(const ch_node *n)
{
    ch_dims rows = ch__rows_dims(&n->in[0]->dims);
    ch_dim  count;

    return ch__dims_product(&rows, 0, rows.rank, &count) && count.n > 0;
}

/* Returns the mean of each column; 0 without rows, where ch_mean is NaN. */
static ch_node *mean_or_0(ch_node *x, const ch_dims *rows)
{
    return x == NULL ? NULL : ch__div_count(ch_sum(x, rows->rank, axes, false), rows);
}

/* The mean is subtracted before the squares are added. Without rows the statistics are those of
 * find_scales. The calls are the same then: all replicas must have the same calls, and some
 * replicas may have no row. */
static bool batch_expand(ch_step *s, const ch_node *n, ch_node *const *in, ch_node **out)
{
    const batch_attrs *a = ch__attrs(n);
    ch_dims            rows = ch__rows_dims(&n->in[0]->dims);
    ch_dtype           t = ch__stat_dtype(n->dtype);
    ch_node           *x = ch_cast(in[0], t), *c, *scale;

    out[1] = mean_or_0(x, &rows);
    c = ch_sub(x, out[1]);
    out[2] = ch_add(mean_or_0(ch_square(c), &rows), ch_number(s, has_rows(n) ? 0 : 1));
    scale = ch_mul(ch_cast(in[1], t), ch_rsqrt(ch_add(out[2], ch_number(s, a->eps))));
    out[0] = ch_cast(ch_add(ch_mul(c, scale), ch_cast(in[2], t)), n->dtype);
    return out[0] != NULL;
}

static bool batch_grad_expand(ch_step *s, const ch_node *n, ch_node *const *in, ch_node **out)
{
    const batch_attrs *a = ch__attrs(n);
    ch_dims            rows = ch__rows_dims(&n->in[0]->dims);
    ch_dtype           t = ch__stat_dtype(n->dtype);
    ch_node           *x = ch_cast(in[0], t), *gamma = ch_cast(in[1], t);
    ch_node           *dy = ch_cast(in[4], t), *r, *h, *dgamma, *dbeta, *rest;

    r = ch_rsqrt(ch_add(in[3], ch_number(s, a->eps)));
    h = ch_mul(ch_sub(x, in[2]), r);
    dgamma = ch__unbroadcast(ch_mul(dy, h), gamma);
    dbeta = ch__unbroadcast(dy, gamma);
    rest = ch_sub(dy, ch__div_count(dbeta, &rows));
    rest = ch_sub(rest, ch_mul(h, ch__div_count(dgamma, &rows)));
    out[0] = ch_cast(ch_mul(ch_mul(gamma, r), rest), n->dtype);
    out[1] = ch_cast(dgamma, n[1].dtype);
    out[2] = ch_cast(dbeta, n[2].dtype);
    return out[0] != NULL;
}

/* ---- ops ---- */

const ch_op ch__op_batch_norm = {
    .name = "batch_norm",
    .version = 1,
    .n_in = 3,
    .n_out = 3,
    .attrs = batch_rows,
    .attrs_bytes = sizeof(batch_attrs),
    .infer = batch_infer,
    .grad = batch_grad,
    .factors = batch_factors,
    .expand = batch_expand,
    .kernels = (const ch_kernel *const[]){&batch_kernel, NULL},
};
const ch_op ch__op_batch_norm_grad = {
    .name = "batch_norm_grad",
    .version = 1,
    .n_in = 5,
    .n_out = 3,
    .attrs = batch_rows,
    .attrs_bytes = sizeof(batch_attrs),
    .infer = batch_grad_infer,
    .grad = batch_grad_grad,
    .factors = batch_factors,
    .expand = batch_grad_expand,
    .kernels = (const ch_kernel *const[]){&batch_grad_kernel, NULL},
};

ch_node *ch_batch_norm(ch_node *x, ch_node *gamma, ch_node *beta, double eps, ch_node **mean,
                       ch_node **variance)
{
    ch_node *y =
        ch__node(&ch__op_batch_norm, &(batch_attrs){eps}, 3, (ch_node *[]){x, gamma, beta});

    if (mean != NULL)
        *mean = y != NULL ? ch__out(y, 1) : NULL;
    if (variance != NULL)
        *variance = y != NULL ? ch__out(y, 2) : NULL;
    return y;
}

/* Returns true if all four vectors have one value for each channel of x. Otherwise records an
 * error that names the first invalid vector, and returns false. */
static bool are_columns(ch_step *s, const ch_node *x, ch_node *const *column,
                        const void *caller)
{
    static const char *const name[] = {"gamma", "beta", "the mean", "the variance"};
    char                     text[64] = "()";

    for (int i = 0; i < 4; i++) {
        const ch_dims *d = &column[i]->dims;

        if (x->dims.rank >= 2 && d->rank == 1 &&
            ch__dim_same(d->dim[0], x->dims.dim[x->dims.rank - 1]))
            continue;
        ch_shape_print(ch__dims_shape(d), text, sizeof(text));
        ch__step_record_error(
            s,
            ch__fail(CH_INVALID_ARGUMENT,
                     "batch_norm_inference: %s is %s, want one value for each channel "
                     "of x, which is (..., channels)",
                     name[i], text),
            caller);
        return false;
    }
    return true;
}

ch_node *ch_batch_norm_inference(ch_node *x, ch_node *gamma, ch_node *beta, ch_node *mean,
                                 ch_node *variance, double eps)
{
    const void *caller = __builtin_return_address(0), *before;
    ch_step    *s;
    ch_dtype    t;
    ch_node    *scale, *y;

    if (x == NULL || gamma == NULL || beta == NULL || mean == NULL || variance == NULL)
        return ch__null_input("batch_norm_inference", 5,
                              (ch_node *[]){x, gamma, beta, mean, variance});
    s = ch_node_step(x);
    if (!are_columns(s, x, (ch_node *[]){gamma, beta, mean, variance}, caller))
        return NULL;
    before = ch__step_begin_at(s, caller, NULL);
    t = ch__stat_dtype(x->dtype);
    scale =
        ch_mul(ch_cast(gamma, t), ch_rsqrt(ch_add(ch_cast(variance, t), ch_number(s, eps))));
    y = ch_mul(ch_sub(ch_cast(x, t), ch_cast(mean, t)), scale);
    y = ch_cast(ch_add(y, ch_cast(beta, t)), x->dtype);
    ch__step_end(s, before);
    return y;
}
