/* ops/array_make.c -- sources of arrays: fill, range, eye.
 *
 * These ops have no inputs; dtype, dims and values are attributes. The sizes of fill and range
 * may be symbols, so ch_zeros_like and ch_range_like of a node work while the number of rows is
 * not known. fill also has a block function, so the planner can fuse it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdalign.h>
#include <string.h>

#include "graph/step.h"
#include "kernel/block.h"
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
        return ch__infer_fail(c, "dtype is %s, want bool or a numeric dtype", ch_dtype_name(t));
    return CH_OK;
}

static ch_status fill_infer(ch_infer *c)
{
    const fill_attrs *a = c->attrs;
    ch_status         rc = check_dtype(c, a->dtype);

    if (rc == CH_OK)
        rc = ch__infer_check_dims(c, &a->dims);
    if (rc == CH_OK && !ch__dtype_holds(a->dtype, a->value))
        rc = ch__infer_fail(c, "%s does not hold %g", ch_dtype_name(a->dtype), a->value);
    return rc != CH_OK ? rc : ch__infer_dims(c, 0, a->dtype, &a->dims);
}

typedef struct fill_state {
    int64_t count;
    int     tiles;
    size_t  bytes;
    alignas(8) char value[8];
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

static ch_status fill_run(const ch_call *c, ch_kernel_tile t)
{
    const fill_state *f = c->state;
    int64_t           from, to;

    ch__tile_range(f->count, f->tiles, t.index, &from, &to);
    ch__fill((char *)c->out[0] + (size_t)from * f->bytes, to - from, f->bytes, f->value);
    return CH_OK;
}

static bool fill_block(const ch_node *n, ch_block *b)
{
    const fill_attrs *a = ch__attrs(n);
    int64_t           held = 0;

    ch__store(n->dtype, &held, a->value);
    b->param[0] = ch__load(n->dtype, &held);
    b->compute = n->dtype == CH_BF16 || n->dtype == CH_F16 ? CH_F32 : n->dtype;
    b->fn = ch__blocks()->fn[CH_BLOCK_fill][b->compute];
    return b->fn != NULL;
}

static const ch_kernel fill_plain = {"plain", .prepare = fill_prepare, .run = fill_run};

const ch_op ch__op_fill = {
    .name = "fill",
    .version = 1,
    .n_in = 0,
    .n_out = 1,
    .flags = CH_OP_NO_GRAD,
    .attrs = fill_rows,
    .attrs_bytes = sizeof(fill_attrs),
    .infer = fill_infer,
    .factors = ch__factors_elementwise,
    .local = ch__local_dims,
    .kernels = (const ch_kernel *const[]){&fill_plain, NULL},
    .block = fill_block,
    .room = CH_ROOM_ANY,
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
    return ch__source_at(caller, ch_node_step(x), &ch__op_fill, &a);
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

/* ---- range ---- */

typedef struct range_attrs {
    ch_dtype dtype;
    ch_dims  dims; /* rank 1 */
    double   start, step;
} range_attrs;

static const ch_attr range_rows[] = {
    CH_ATTR_DTYPE(range_attrs, dtype),
    CH_ATTR_DIMS(range_attrs, dims),
    CH_ATTR_FLOAT(range_attrs, start),
    CH_ATTR_FLOAT(range_attrs, step),
    CH_ATTR_END,
};

static ch_status range_infer(ch_infer *c)
{
    const range_attrs *a = c->attrs;
    ch_status          rc = check_dtype(c, a->dtype);
    int64_t            n;

    if (rc == CH_OK)
        rc = ch__infer_check_dims(c, &a->dims);
    if (rc != CH_OK)
        return rc;
    if (a->dims.rank != 1)
        return ch__infer_fail(c, "dims has rank %d, want 1", a->dims.rank);
    n = a->dims.dim[0].sym != 0 ? 1 : a->dims.dim[0].n;
    if (!isfinite(a->start) || !isfinite(a->step) || !ch__dtype_holds(a->dtype, a->start) ||
        (n > 1 && !ch_dtype_is_float(a->dtype) && a->step != floor(a->step)) ||
        (n > 1 && !ch__dtype_holds(a->dtype, a->start + (double)(n - 1) * a->step)))
        return ch__infer_fail(c, "%s does not hold %lld numbers from %g on, %g apart",
                              ch_dtype_name(a->dtype), (long long)n, a->start, a->step);
    return ch__infer_dims(c, 0, a->dtype, &a->dims);
}

typedef struct range_state {
    ch_dtype dtype;
    int64_t  n;
    double   start, step;
} range_state;

static ch_status range_prepare(const ch_node *n, ch_prep *p)
{
    const range_attrs *a = ch__attrs(n);
    range_state       *s = ch__prep_state(p, sizeof(*s));

    if (s == NULL)
        return ch__fail_memory("range");
    *s = (range_state){n->dtype, ch__count(n), a->start, a->step};
    return CH_OK;
}

static ch_status range_run(const ch_call *c, ch_kernel_tile t)
{
    const range_state *s = c->state;
    size_t             bytes = ch_dtype_bytes(s->dtype);
    const int64_t     *origin = ch__out_origin(c);
    int64_t            first = origin != NULL ? origin[0] : 0;

    (void)t;
    for (int64_t i = 0; i < s->n; i++)
        ch__store(s->dtype, (char *)c->out[0] + (size_t)i * bytes,
                  s->start + (double)(first + i) * s->step);
    return CH_OK;
}

static const ch_kernel range_plain = {"plain", .prepare = range_prepare, .run = range_run};

const ch_op ch__op_range = {
    .name = "range",
    .version = 1,
    .n_in = 0,
    .n_out = 1,
    .flags = CH_OP_NO_GRAD | CH_OP_ORIGIN,
    .attrs = range_rows,
    .attrs_bytes = sizeof(range_attrs),
    .infer = range_infer,
    .factors = ch__factors_elementwise,
    .local = ch__local_dims,
    .kernels = (const ch_kernel *const[]){&range_plain, NULL},
    .room = CH_ROOM_ANY,
};

ch_node *ch_range(ch_step *s, ch_dtype dtype, double start, double limit, double step)
{
    range_attrs a = {.dtype = dtype, .dims = {.rank = 1}, .start = start, .step = step};
    double      n = ceil((limit - start) / step);

    if (s == NULL)
        return NULL;
    if (!(fabs(n) < 9007199254740992.0)) { /* 2^53; the negation also catches NaN */
        ch__step_record_error(s,
                              ch__fail(CH_INVALID_ARGUMENT,
                                       "range: from %g to %g in steps of %g has no "
                                       "end; want finite numbers and a step that is not 0",
                                       start, limit, step),
                              __builtin_return_address(0));
        return NULL;
    }
    a.dims.dim[0] = ch__dim(n > 0 ? (int64_t)n : 0);
    return ch__source(s, &ch__op_range, &a);
}

ch_node *ch_range_like(ch_node *x, int axis, ch_dtype dtype)
{
    range_attrs a = {.dtype = dtype, .dims = {.rank = 1}, .step = 1};
    int         at;

    if (x == NULL)
        return NULL;
    if (!ch__axis(axis, x->dims.rank, &at)) {
        ch__step_record_error(ch_node_step(x),
                              ch__fail(CH_INVALID_ARGUMENT,
                                       "range_like: axis %d is out of range for rank %d", axis,
                                       x->dims.rank),
                              __builtin_return_address(0));
        return NULL;
    }
    a.dims.dim[0] = x->dims.dim[at];
    return ch__source(ch_node_step(x), &ch__op_range, &a);
}

/* ---- eye ---- */

typedef struct eye_attrs {
    ch_dtype dtype;
    ch_dims  dims; /* rank 2 */
} eye_attrs;

static const ch_attr eye_rows[] = {
    CH_ATTR_DTYPE(eye_attrs, dtype),
    CH_ATTR_DIMS(eye_attrs, dims),
    CH_ATTR_END,
};

static ch_status eye_infer(ch_infer *c)
{
    const eye_attrs *a = c->attrs;
    ch_status        rc = check_dtype(c, a->dtype);

    if (rc == CH_OK)
        rc = ch__infer_check_dims(c, &a->dims);
    if (rc == CH_OK && a->dims.rank != 2)
        rc = ch__infer_fail(c, "dims has rank %d, want 2", a->dims.rank);
    return rc != CH_OK ? rc : ch__infer_dims(c, 0, a->dtype, &a->dims);
}

typedef struct eye_state {
    int64_t rows, columns;
    size_t  bytes;
    alignas(8) char one[8];
} eye_state;

static ch_status eye_prepare(const ch_node *n, ch_prep *p)
{
    eye_state *s = ch__prep_state(p, sizeof(*s));

    if (s == NULL)
        return ch__fail_memory("eye");
    s->rows = n->dims.dim[0].n;
    s->columns = n->dims.dim[1].n;
    s->bytes = ch_dtype_bytes(n->dtype);
    ch__store(n->dtype, s->one, 1.0);
    return CH_OK;
}

static ch_status eye_run(const ch_call *c, ch_kernel_tile t)
{
    const eye_state *s = c->state;
    const int64_t   *origin = ch__out_origin(c);
    int64_t          shift = origin != NULL ? origin[0] - origin[1] : 0; /* 1s: column - row */
    int64_t          from = shift < 0 ? -shift : 0;
    int64_t          to = s->columns - shift < s->rows ? s->columns - shift : s->rows;

    (void)t;
    memset(c->out[0], 0, (size_t)(s->rows * s->columns) * s->bytes);
    for (int64_t i = from; i < to; i++)
        memcpy((char *)c->out[0] + (size_t)(i * s->columns + i + shift) * s->bytes, s->one,
               s->bytes);
    return CH_OK;
}

static const ch_kernel eye_plain = {"plain", .prepare = eye_prepare, .run = eye_run};

const ch_op ch__op_eye = {
    .name = "eye",
    .version = 1,
    .n_in = 0,
    .n_out = 1,
    .flags = CH_OP_NO_GRAD | CH_OP_ORIGIN,
    .attrs = eye_rows,
    .attrs_bytes = sizeof(eye_attrs),
    .infer = eye_infer,
    .factors = ch__factors_elementwise,
    .local = ch__local_dims,
    .kernels = (const ch_kernel *const[]){&eye_plain, NULL},
};

ch_node *ch_eye(ch_step *s, ch_dtype dtype, int64_t rows, int64_t columns)
{
    eye_attrs a = {.dtype = dtype, .dims = ch__dims_of(ch_shape_of(rows, columns))};

    return ch__source(s, &ch__op_eye, &a);
}
