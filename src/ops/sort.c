/* ops/sort.c -- order along one axis: sort, argsort, top_k, take_along, put_along.
 *
 * A line is the elements along the axis with all other indices fixed. Lines are independent, so
 * tiles are groups of lines; line_state is the state of all kernels here. sort and top_k have
 * the positions of their values as output 1. Their gradient moves the gradient of the values
 * back to these positions (put_along).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/sort.h"

#include "ops/ops.h"

typedef struct line_state {
    ch_axis_view along;
    bool         descending;
    int64_t      k; /* top_k, take_along, put_along: elements of a line that are selected */
    int64_t      lines;
    int64_t      tile_scratch; /* scratch of each tile, in elements of ch_ranked */
    int          tiles;
} line_state;

/* Lays out the lines of `whole` along the axis, and reserves scratch for `tile_scratch`
 * elements of ch_ranked in each tile. Returns NULL if memory is exhausted; sets no error. */
static line_state *line_prepare(const ch_node *n, ch_prep *p, const ch_node *whole,
                                int64_t axis, int64_t tile_scratch)
{
    line_state *s = ch__prep_state(p, sizeof(*s));

    if (s == NULL)
        return NULL;
    s->along = ch__axis_view(n->dtype, ch__shape(whole), (int)axis);
    s->lines = s->along.outer * s->along.inner;
    s->tile_scratch = tile_scratch;
    s->tiles =
        ch__line_tiles(s->lines, 16 * s->along.n, tile_scratch * (int64_t)sizeof(ch_ranked));
    p->scratch_bytes = (size_t)s->tiles * (size_t)tile_scratch * sizeof(ch_ranked);
    p->n_phases = 1;
    p->tiles[0] = s->tiles;
    return s;
}

static ch_ranked *tile_buffer(const ch_call *c, int tile)
{
    const line_state *s = c->state;

    return (ch_ranked *)c->scratch + tile * s->tile_scratch;
}

static ch_status want_sortable(const ch_infer *c)
{
    return c->dtype[0] == CH_BOOL ? CH_OK : ch__infer_want_arith(c, 0);
}

/* ---- sort: output 0 has the sorted values, output 1 their positions in the input ---- */

typedef struct sort_attrs {
    int64_t axis;
    bool    descending;
} sort_attrs;

static const ch_attr sort_rows[] = {
    CH_ATTR_INT(sort_attrs, axis),
    CH_ATTR_BOOL(sort_attrs, descending),
    CH_ATTR_END,
};

static ch_status sort_infer(ch_infer *c)
{
    const sort_attrs *a = c->attrs;
    ch_status         rc = want_sortable(c);

    if (rc == CH_OK)
        rc = ch__infer_want_axis(c, a->axis);
    if (rc == CH_OK)
        rc = ch__infer_like(c, 0, 0);
    return rc == CH_OK ? ch__infer_dims(c, 1, CH_I64, &c->in[0]) : rc;
}

static ch_status sort_prepare(const ch_node *n, ch_prep *p)
{
    const sort_attrs *a = ch__attrs(n);
    line_state       *s = line_prepare(n, p, n, a->axis, 2 * n->dims.dim[a->axis].n);

    if (s == NULL)
        return ch__fail_memory("sort");
    s->descending = a->descending;
    return CH_OK;
}

static ch_status sort_run(const ch_call *c, ch_kernel_tile t)
{
    const line_state *s = c->state;
    int64_t           from, to;

    ch__tile_range(s->lines, s->tiles, t.index, &from, &to);
    ch__sort(&s->along, s->descending, from, to, c->in[0], c->out[0], c->out[1],
             tile_buffer(c, t.index));
    return CH_OK;
}

/* Returns zeros of shape `dims`, with the elements of d at positions `index` along the axis. */
static ch_node *put_along(ch_node *d, ch_node *index, const ch_dims *dims, int64_t axis);

static void sort_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const sort_attrs *a = ch__attrs(n);

    (void)s;
    if (dout[0] != NULL)
        din[0] = put_along(dout[0], ch__out(n, 1), &n->dims, a->axis);
}

static ch_status sort_factors(const ch_node *n, ch_factors *f)
{
    return ch__factors_along(n, f, (int)((const sort_attrs *)ch__attrs(n))->axis);
}

static const ch_kernel sort_radix = {"radix", .prepare = sort_prepare, .run = sort_run};

const ch_op ch__op_sort = {
    .name = "sort",
    .version = 1,
    .n_in = 1,
    .n_out = 2,
    .attrs = sort_rows,
    .attrs_bytes = sizeof(sort_attrs),
    .infer = sort_infer,
    .grad = sort_grad,
    .factors = sort_factors,
    .kernels = (const ch_kernel *const[]){&sort_radix, NULL},
};

ch_node *ch_sort(ch_node *x, int axis, bool descending)
{
    return ch__node(&ch__op_sort, &(sort_attrs){ch__axis_of(x, axis), descending}, 1, &x);
}

ch_node *ch_argsort(ch_node *x, int axis, bool descending)
{
    ch_node *n = ch__node(&ch__op_sort, &(sort_attrs){ch__axis_of(x, axis), descending}, 1, &x);

    return n != NULL ? ch__out(n, 1) : NULL;
}

/* ---- top_k, over the last axis ---- */

typedef struct top_k_attrs {
    int64_t k;
} top_k_attrs;

static const ch_attr top_k_rows[] = {CH_ATTR_INT(top_k_attrs, k), CH_ATTR_END};

static ch_status top_k_infer(ch_infer *c)
{
    const top_k_attrs *a = c->attrs;
    ch_dims            out = c->in[0];
    ch_status          rc = want_sortable(c);

    if (rc != CH_OK)
        return rc;
    if (out.rank == 0)
        return ch__infer_fail(c, "a scalar has no last axis");
    rc = ch__infer_want_number(c, out.dim[out.rank - 1]);
    if (rc != CH_OK)
        return rc;
    if (a->k < 0 || a->k > out.dim[out.rank - 1].n)
        return ch__infer_fail(c, "k is %lld, want 0 to %s, the size of the last axis",
                              (long long)a->k, ch__dim_text(c, out.dim[out.rank - 1]));
    out.dim[out.rank - 1] = ch__dim(a->k);
    (void)ch__infer_dims(c, 0, c->dtype[0], &out);
    return ch__infer_dims(c, 1, CH_I64, &out);
}

static ch_status top_k_prepare(const ch_node *n, ch_prep *p)
{
    const top_k_attrs *a = ch__attrs(n);
    line_state        *s = line_prepare(n, p, n->in[0], n->dims.rank - 1, a->k);

    if (s == NULL)
        return ch__fail_memory("top_k");
    s->k = a->k;
    return CH_OK;
}

static ch_status top_k_run(const ch_call *c, ch_kernel_tile t)
{
    const line_state *s = c->state;
    int64_t           from, to;

    ch__tile_range(s->lines, s->tiles, t.index, &from, &to);
    ch__top_k(&s->along, s->k, from, to, c->in[0], c->out[0], c->out[1],
              tile_buffer(c, t.index));
    return CH_OK;
}

static void top_k_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    if (dout[0] != NULL)
        din[0] = put_along(dout[0], ch__out(n, 1), &n->in[0]->dims, n->dims.rank - 1);
}

static ch_status top_k_factors(const ch_node *n, ch_factors *f)
{
    return ch__factors_along(n, f, n->dims.rank - 1);
}

static const ch_kernel top_k_heap = {"heap", .prepare = top_k_prepare, .run = top_k_run};

const ch_op ch__op_top_k = {
    .name = "top_k",
    .version = 1,
    .n_in = 1,
    .n_out = 2,
    .attrs = top_k_rows,
    .attrs_bytes = sizeof(top_k_attrs),
    .infer = top_k_infer,
    .grad = top_k_grad,
    .factors = top_k_factors,
    .kernels = (const ch_kernel *const[]){&top_k_heap, NULL},
};

void ch_top_k(ch_node *x, int64_t k, ch_node **values, ch_node **indices)
{
    ch_node *n = ch__node(&ch__op_top_k, &(top_k_attrs){k}, 1, &x);

    if (values != NULL)
        *values = n;
    if (indices != NULL)
        *indices = n != NULL ? ch__out(n, 1) : NULL;
}

/* ---- take_along, put_along: each is the gradient of the other ----
 * take_along(x, index) selects elements of x along the axis by position. put_along(d, index)
 * writes the elements of d to these positions of an array of zeros. */

typedef struct along_attrs {
    int64_t axis;
    ch_dims dims; /* shape of the result of put_along; take_along ignores it */
} along_attrs;

static const ch_attr along_rows[] = {
    CH_ATTR_INT(along_attrs, axis),
    CH_ATTR_DIMS(along_attrs, dims),
    CH_ATTR_END,
};

/* Returns true if a and b have the same rank and the same sizes, except along the axis. */
static bool same_except_axis(const ch_dims *a, const ch_dims *b, int64_t axis)
{
    for (int k = 0; k < a->rank && a->rank == b->rank; k++)
        if (k != axis && !ch__dim_same(a->dim[k], b->dim[k]))
            return false;
    return a->rank == b->rank;
}

static ch_status along_check(const ch_infer *c)
{
    const along_attrs *a = c->attrs;
    ch_status          rc = ch__infer_want_axis(c, a->axis);

    if (rc == CH_OK && !ch_dtype_is_float(c->dtype[0]))
        rc = ch__infer_want_float(c, 0);
    if (rc == CH_OK && c->dtype[1] != CH_I64)
        rc = ch__infer_fail(c, "input 1 holds positions and is %s, want i64",
                            ch_dtype_name(c->dtype[1]));
    if (rc == CH_OK && !same_except_axis(&c->in[0], &c->in[1], a->axis))
        rc = ch__infer_fail(c, "inputs 0 and 1 may have different sizes only in axis %lld",
                            (long long)a->axis);
    return rc;
}

static ch_status take_infer(ch_infer *c)
{
    ch_status rc = along_check(c);

    return rc == CH_OK ? ch__infer_dims(c, 0, c->dtype[0], &c->in[1]) : rc;
}

static ch_status put_infer(ch_infer *c)
{
    const along_attrs *a = c->attrs;
    ch_status          rc = along_check(c);

    if (rc == CH_OK && !ch__dims_same(&c->in[0], &c->in[1]))
        rc = ch__infer_fail(c, "inputs 0 and 1 must have the same shape");
    if (rc == CH_OK && !same_except_axis(&c->in[0], &a->dims, a->axis))
        rc = ch__infer_fail(c, "dims and input 0 may have different sizes only in axis %lld",
                            (long long)a->axis);
    if (rc == CH_OK && a->dims.dim[a->axis].n < 0)
        rc = ch__infer_fail(c, "the size of the axis is %lld, want 0 or more",
                            (long long)a->dims.dim[a->axis].n);
    return rc == CH_OK ? ch__infer_dims(c, 0, c->dtype[0], &a->dims) : rc;
}

static ch_status take_prepare(const ch_node *n, ch_prep *p)
{
    const along_attrs *a = ch__attrs(n);
    line_state        *s = line_prepare(n, p, n->in[0], a->axis, 0);

    if (s == NULL)
        return ch__fail_memory(n->op->name);
    s->k = n->dims.dim[a->axis].n;
    return CH_OK;
}

static ch_status put_prepare(const ch_node *n, ch_prep *p)
{
    const along_attrs *a = ch__attrs(n);
    line_state        *s = line_prepare(n, p, n, a->axis, 0);

    if (s == NULL)
        return ch__fail_memory(n->op->name);
    s->k = n->in[0]->dims.dim[a->axis].n;
    return CH_OK;
}

static ch_status take_run(const ch_call *c, ch_kernel_tile t)
{
    const line_state *s = c->state;
    int64_t           from, to;

    ch__tile_range(s->lines, s->tiles, t.index, &from, &to);
    ch__take_along(&s->along, s->k, from, to, c->in[0], c->in[1], c->out[0]);
    return CH_OK;
}

static ch_status put_run(const ch_call *c, ch_kernel_tile t)
{
    const line_state *s = c->state;
    int64_t           from, to;

    ch__tile_range(s->lines, s->tiles, t.index, &from, &to);
    ch__put_along(&s->along, s->k, from, to, c->in[0], c->in[1], c->out[0]);
    return CH_OK;
}

static void take_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const along_attrs *a = ch__attrs(n);

    (void)s;
    din[0] = put_along(dout[0], n->in[1], &n->in[0]->dims, a->axis);
}

static void put_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch__node(&ch__op_take_along, ch__attrs(n), 2, (ch_node *[]){dout[0], n->in[1]});
}

/* A part selects its elements from whole lines. */
static ch_status take_factors(const ch_node *n, ch_factors *f)
{
    const along_attrs *a = ch__attrs(n);
    int                map[CH_MAX_RANK], rank = n->dims.rank;

    for (int k = 0; k < rank; k++)
        map[k] = ch__factor(f, CH_PAR);
    ch__factor_map(f, 1, rank, map);
    (void)ch__factor_out(f, rank, map);
    map[a->axis] = -1;
    ch__factor_map(f, 0, rank, map);
    return CH_OK;
}

static ch_status put_factors(const ch_node *n, ch_factors *f)
{
    return ch__factors_along(n, f, (int)((const along_attrs *)ch__attrs(n))->axis);
}

static const ch_kernel take_plain = {"plain", .prepare = take_prepare, .run = take_run};
static const ch_kernel put_plain = {"plain", .prepare = put_prepare, .run = put_run};

const ch_op ch__op_take_along = {
    .name = "take_along",
    .version = 1,
    .n_in = 2,
    .n_out = 1,
    .attrs = along_rows,
    .attrs_bytes = sizeof(along_attrs),
    .infer = take_infer,
    .grad = take_grad,
    .factors = take_factors,
    .kernels = (const ch_kernel *const[]){&take_plain, NULL},
};
const ch_op ch__op_put_along = {
    .name = "put_along",
    .version = 1,
    .n_in = 2,
    .n_out = 1,
    .attrs = along_rows,
    .attrs_bytes = sizeof(along_attrs),
    .infer = put_infer,
    .grad = put_grad,
    .factors = put_factors,
    .local = ch__local_dims,
    .kernels = (const ch_kernel *const[]){&put_plain, NULL},
};

static ch_node *put_along(ch_node *d, ch_node *index, const ch_dims *dims, int64_t axis)
{
    return ch__node(&ch__op_put_along, &(along_attrs){axis, *dims}, 2, (ch_node *[]){d, index});
}
