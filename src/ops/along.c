/* ops/along.c -- ops along one axis: argmax, argmin, cumsum, and the derivatives of prod.
 *
 * All kernels see an array as (outer, n, inner), where n is the axis (kernel/scan.h). Lines
 * along the axis are independent, so tiles are groups of lines. Also here: functions that the
 * other files of this family share (ops/reduce.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/scan.h"
#include "kernel/sort.h"

#include "ops/ops.h"

ch_status ch__infer_want_axis(const ch_infer *c, int64_t axis)
{
    if (axis >= 0 && axis < c->in[0].rank)
        return CH_OK;
    return ch__infer_fail(c, "axis %lld is out of range for rank %d", (long long)axis,
                          c->in[0].rank);
}

int64_t ch__axis_of(const ch_node *x, int axis)
{
    int k;

    return x != NULL && ch__axis(axis, x->dims.rank, &k) ? k : axis;
}

ch_status ch__factors_along(const ch_node *n, ch_factors *f, int axis)
{
    int map[CH_MAX_RANK], rank = n->in[0]->dims.rank;

    for (int k = 0; k < rank; k++)
        map[k] = k == axis ? -1 : ch__factor(f, CH_PAR);
    for (int i = 0; i < n->n_in; i++)
        ch__factor_map(f, i, rank, map);
    map[axis] = ch__factor(f, CH_FIX);
    for (int i = 0; i < n->n_out; i++)
        (void)ch__factor_out(f, rank, map);
    return CH_OK;
}

int ch__line_tiles(int64_t lines, int64_t cost, int64_t tile_bytes)
{
    const int64_t limit = 32 << 20;
    int           tiles = ch__tile_count(lines, cost);

    if (tile_bytes > 0 && tiles > limit / tile_bytes)
        tiles = (int)(limit / tile_bytes);
    return tiles < 1 ? 1 : tiles;
}

/* ---- argmax, argmin ---- */

typedef struct arg_attrs {
    int64_t axis;
} arg_attrs;

static const ch_attr arg_rows[] = {CH_ATTR_INT(arg_attrs, axis), CH_ATTR_END};

static ch_status arg_infer(ch_infer *c)
{
    const arg_attrs *a = c->attrs;
    ch_dims          out = {0};
    ch_status        rc = ch__infer_want_arith(c, 0);

    if (rc == CH_OK)
        rc = ch__infer_want_axis(c, a->axis);
    if (rc != CH_OK)
        return rc;
    for (int k = 0; k < c->in[0].rank; k++)
        if (k != a->axis)
            out.dim[out.rank++] = c->in[0].dim[k];
    return ch__infer_dims(c, 0, CH_I64, &out);
}

static ch_status arg_factors(const ch_node *n, ch_factors *f)
{
    const arg_attrs *a = ch__attrs(n);
    int              in[CH_MAX_RANK], out[CH_MAX_RANK], m = 0, rank = n->in[0]->dims.rank;

    for (int k = 0; k < rank; k++) {
        in[k] = k == a->axis ? -1 : ch__factor(f, CH_PAR);
        if (k != a->axis)
            out[m++] = in[k];
    }
    ch__factor_map(f, 0, rank, in);
    return ch__factor_out(f, m, out);
}

typedef struct scan_state {
    ch_axis_view along;
    bool         exclusive, reverse; /* cumsum only */
    int64_t      units;              /* lines or strips of lines, see kernel/scan.h */
    int          tiles;
} scan_state;

static scan_state *scan_prepare(const ch_node *n, ch_prep *p, int64_t axis)
{
    scan_state *s = ch__prep_state(p, sizeof(*s));

    if (s == NULL)
        return NULL;
    s->along = ch__axis_view(n->in[0]->dtype, ch__shape(n->in[0]), (int)axis);
    s->units = ch__axis_view_units(&s->along);
    s->tiles = ch__tile_count(
        s->units,
        4 * s->along.n * (s->along.inner < CH_SCAN_STRIP ? s->along.inner : CH_SCAN_STRIP));
    p->n_phases = 1;
    p->tiles[0] = s->tiles;
    return s;
}

static ch_status arg_prepare(const ch_node *n, ch_prep *p)
{
    const arg_attrs *a = ch__attrs(n);

    return scan_prepare(n, p, a->axis) == NULL ? ch__fail_memory(n->op->name) : CH_OK;
}

static ch_status arg_run(const ch_call *c, ch_kernel_tile t)
{
    const scan_state *s = c->state;
    int64_t           from, to;

    ch__tile_range(s->units, s->tiles, t.index, &from, &to);
    ch__argmax(&s->along, c->node->op == &ch__op_argmin, from, to, c->in[0], c->out[0]);
    return CH_OK;
}

static const ch_kernel arg_scan = {"scan", .prepare = arg_prepare, .run = arg_run};

const ch_op ch__op_argmax = {
    .name = "argmax",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = arg_rows,
    .attrs_bytes = sizeof(arg_attrs),
    .infer = arg_infer,
    .factors = arg_factors,
    .flags = CH_OP_NO_GRAD,
    .kernels = (const ch_kernel *const[]){&arg_scan, NULL},
};
const ch_op ch__op_argmin = {
    .name = "argmin",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = arg_rows,
    .attrs_bytes = sizeof(arg_attrs),
    .infer = arg_infer,
    .factors = arg_factors,
    .flags = CH_OP_NO_GRAD,
    .kernels = (const ch_kernel *const[]){&arg_scan, NULL},
};

ch_node *ch_argmax(ch_node *x, int axis)
{
    return ch__node(&ch__op_argmax, &(arg_attrs){ch__axis_of(x, axis)}, 1, &x);
}

ch_node *ch_argmin(ch_node *x, int axis)
{
    return ch__node(&ch__op_argmin, &(arg_attrs){ch__axis_of(x, axis)}, 1, &x);
}

/* ---- cumsum ---- */

typedef struct cumsum_attrs {
    int64_t axis;
    bool    exclusive, reverse;
} cumsum_attrs;

static const ch_attr cumsum_rows[] = {
    CH_ATTR_INT(cumsum_attrs, axis),
    CH_ATTR_BOOL(cumsum_attrs, exclusive),
    CH_ATTR_BOOL(cumsum_attrs, reverse),
    CH_ATTR_END,
};

static ch_status cumsum_infer(ch_infer *c)
{
    const cumsum_attrs *a = c->attrs;
    ch_status           rc = ch__infer_want_arith(c, 0);

    if (rc == CH_OK)
        rc = ch__infer_want_axis(c, a->axis);
    return rc == CH_OK ? ch__infer_like(c, 0, 0) : rc;
}

static ch_status cumsum_prepare(const ch_node *n, ch_prep *p)
{
    const cumsum_attrs *a = ch__attrs(n);
    scan_state         *s = scan_prepare(n, p, a->axis);

    if (s == NULL)
        return ch__fail_memory("cumsum");
    s->exclusive = a->exclusive;
    s->reverse = a->reverse;
    p->over[0] = 1; /* each element is read once, before it is written */
    return CH_OK;
}

static ch_status cumsum_run(const ch_call *c, ch_kernel_tile t)
{
    const scan_state *s = c->state;
    int64_t           from, to;

    ch__tile_range(s->units, s->tiles, t.index, &from, &to);
    ch__cumsum(&s->along, s->exclusive, s->reverse, from, to, c->in[0], c->out[0]);
    return CH_OK;
}

/* Element i contributes to the sums from i on, so its gradient is the cumsum in the opposite
 * direction. */
static void cumsum_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const cumsum_attrs *a = ch__attrs(n);

    (void)s;
    din[0] = ch_cumsum(dout[0], (int)a->axis, a->exclusive, !a->reverse);
}

static ch_status cumsum_factors(const ch_node *n, ch_factors *f)
{
    return ch__factors_along(n, f, (int)((const cumsum_attrs *)ch__attrs(n))->axis);
}

static const ch_kernel cumsum_scan = {"scan", .prepare = cumsum_prepare, .run = cumsum_run};

const ch_op ch__op_cumsum = {
    .name = "cumsum",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = cumsum_rows,
    .attrs_bytes = sizeof(cumsum_attrs),
    .infer = cumsum_infer,
    .grad = cumsum_grad,
    .factors = cumsum_factors,
    .kernels = (const ch_kernel *const[]){&cumsum_scan, NULL},
};

ch_node *ch_cumsum(ch_node *x, int axis, bool exclusive, bool reverse)
{
    return ch__node(&ch__op_cumsum, &(cumsum_attrs){ch__axis_of(x, axis), exclusive, reverse},
                    1, &x);
}

/* ---- prod_others, prod_pairs: the first and second derivative of prod ---- */

static ch_status others_infer(ch_infer *c)
{
    const arg_attrs *a = c->attrs;
    ch_status        rc = ch__infer_want_float(c, 0);

    if (rc == CH_OK)
        rc = ch__infer_want_same(c);
    if (rc == CH_OK)
        rc = ch__infer_want_axis(c, a->axis);
    if (rc == CH_OK && c->n_in == 2 && !ch__dims_same(&c->in[0], &c->in[1]))
        rc = ch__infer_fail(c, "inputs 0 and 1 must have the same shape");
    return rc == CH_OK ? ch__infer_like(c, 0, 0) : rc;
}

static ch_status others_prepare(const ch_node *n, ch_prep *p)
{
    const arg_attrs *a = ch__attrs(n);
    scan_state      *s = ch__prep_state(p, sizeof(*s));

    if (s == NULL)
        return ch__fail_memory(n->op->name);
    s->along = ch__axis_view(n->dtype, ch__shape(n), (int)a->axis);
    s->units = s->along.outer * s->along.inner;
    s->tiles = ch__line_tiles(s->units, 16 * s->along.n, s->along.n * CH_OTHERS_BYTES);
    p->scratch_bytes = (size_t)s->tiles * (size_t)s->along.n * CH_OTHERS_BYTES;
    p->n_phases = 1;
    p->tiles[0] = s->tiles;
    return CH_OK;
}

static ch_status others_run(const ch_call *c, ch_kernel_tile t)
{
    const scan_state *s = c->state;
    int64_t           from, to;
    char             *buffer = (char *)c->scratch + t.index * s->along.n * CH_OTHERS_BYTES;

    ch__tile_range(s->units, s->tiles, t.index, &from, &to);
    ch__product_of_others(&s->along, from, to, c->in[0], c->node->n_in == 2 ? c->in[1] : NULL,
                          c->out[0], buffer);
    return CH_OK;
}

static ch_status others_factors(const ch_node *n, ch_factors *f)
{
    return ch__factors_along(n, f, (int)((const arg_attrs *)ch__attrs(n))->axis);
}

static const ch_kernel others_scan = {"scan", .prepare = others_prepare, .run = others_run};

/* The matrix of second derivatives of a product is symmetric and has zeros on its diagonal. So
 * prod_pairs computes the product of that matrix with dout. */
static void prod_others_grad(ch_step *s, const ch_node *n, ch_node *const dout[],
                             ch_node *din[])
{
    (void)s;
    din[0] = ch__node(&ch__op_prod_pairs, ch__attrs(n), 2, (ch_node *[]){n->in[0], dout[0]});
}

const ch_op ch__op_prod_others = {
    .name = "prod_others",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = arg_rows,
    .attrs_bytes = sizeof(arg_attrs),
    .infer = others_infer,
    .grad = prod_others_grad,
    .factors = others_factors,
    .kernels = (const ch_kernel *const[]){&others_scan, NULL},
};
const ch_op ch__op_prod_pairs = {
    .name = "prod_pairs",
    .version = 1,
    .n_in = 2,
    .n_out = 1,
    .attrs = arg_rows,
    .attrs_bytes = sizeof(arg_attrs),
    .infer = others_infer,
    .factors = others_factors,
    .kernels = (const ch_kernel *const[]){&others_scan, NULL},
};

ch_node *ch__prod_others(ch_node *x, int64_t axis)
{
    return ch__node(&ch__op_prod_others, &(arg_attrs){axis}, 1, &x);
}
