/* ops/array_make.c -- arrays out of nothing: fill, range, eye.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "graph/step.h"
#include "ops/box.h"
#include "ops/ops.h"
#include "tensor/tensor.h"

/* ---- fill ---- */

typedef struct fill_attrs {
    ch_dtype dtype;
    ch_dims  dims;
    double   value;
} fill_attrs;

static const ch_attr fill_rows[] = {
    CH_ATTR_DTYPE(fill_attrs, dtype),
    CH_ATTR_DIMS(fill_attrs, dims),
    CH_ATTR_FLOAT(fill_attrs, value),
    CH_ATTR_END,
};

static ch_status check_dtype(const ch_infer *c, ch_dtype t)
{
    if ((unsigned)t >= CH_DTYPE_COUNT || t == CH_STR)
        return ch__infer_fail(c, "a number cannot be of type %s", ch_dtype_name(t));
    return CH_OK;
}

static ch_status fill_infer(ch_infer *c)
{
    const fill_attrs *a = c->attrs;
    ch_status         rc = check_dtype(c, a->dtype);

    if (rc == CH_OK)
        rc = ch__infer_check_dims(c, &a->dims);
    return rc != CH_OK ? rc : ch__infer_dims(c, 0, a->dtype, &a->dims);
}

typedef struct fill_state {
    int64_t count;
    int     tiles;
    size_t  bytes;
    char    value[8];
} fill_state;

static ch_status fill_prepare(const ch_node *n, ch_prep *p)
{
    const fill_attrs *a = ch__attrs(n);
    fill_state       *f = ch__prep_state(p, sizeof(*f));

    if (f == NULL)
        return ch__fail_memory("fill");
    f->count = ch__count(n);
    f->bytes = ch_dtype_bytes(n->dtype);
    f->tiles = ch__move_tiles(f->count, ch__bytes(n));
    ch__store(n->dtype, f->value, a->value);
    p->n_phases = 1;
    p->tiles[0] = f->tiles;
    return CH_OK;
}

static ch_status fill_run(const ch_call *c, ch_tile t)
{
    const fill_state *f = c->state;
    int64_t           from, to;

    ch__tile_range(f->count, f->tiles, t.index, &from, &to);
    ch__fill((char *)c->out[0] + (size_t)from * f->bytes, to - from, f->bytes, f->value);
    return CH_OK;
}

static ch_status fill_factors(const ch_node *n, ch_factors *f)
{
    int all[CH_MAX_RANK];

    for (int i = 0; i < n->dims.rank; i++)
        all[i] = ch__factor(f, CH_PAR);
    return ch__factor_out(f, n->dims.rank, all);
}

static const ch_kernel fill_plain = {"plain", ch__always, fill_prepare, fill_run, NULL};

const ch_op ch__op_fill = {
    .name = "fill",
    .version = 1,
    .n_in = 0,
    .n_out = 1,
    .flags = CH_OP_NO_GRAD,
    .attrs = fill_rows,
    .attrs_bytes = sizeof(fill_attrs),
    .infer = fill_infer,
    .factors = fill_factors,
    .kernels = (const ch_kernel *const[]){&fill_plain, NULL},
};

ch_node *ch_fill(ch_step *s, ch_dtype dtype, ch_shape shape, double value)
{
    fill_attrs a = {.dtype = dtype, .dims = ch__dims_of(shape), .value = value};

    return ch__source(s, &ch__op_fill, &a);
}

ch_node *ch__fill_dims(ch_step *s, ch_dtype dtype, const ch_dims *dims, double value)
{
    fill_attrs a = {.dtype = dtype, .dims = *dims, .value = value};

    return ch__source(s, &ch__op_fill, &a);
}

static ch_node *full_like_at(const void *caller, ch_node *x, double value)
{
    fill_attrs a = {.value = value};

    if (x == NULL)
        return NULL;
    a.dtype = x->dtype;
    a.dims = x->dims;
    return ch__source_at(caller, x->graph->step, &ch__op_fill, &a);
}

ch_node *ch__full_like(ch_node *x, double value)
{
    return full_like_at(__builtin_return_address(0), x, value);
}

ch_node *ch_full_like(ch_node *x, double value)
{
    return full_like_at(__builtin_return_address(0), x, value);
}

ch_node *ch_zeros_like(ch_node *x)
{
    return full_like_at(__builtin_return_address(0), x, 0.0);
}

ch_node *ch_ones_like(ch_node *x)
{
    return full_like_at(__builtin_return_address(0), x, 1.0);
}
