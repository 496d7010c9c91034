/* ops/index.c -- reading by ids: gather, gather_nd, one_hot.
 *
 * gather reads rows of one or more tables. gather_nd is a composite: flat_ids converts the ids
 * of several axes to ids of a single axis, then gather reads. gather fails if an id is out of
 * range; the internal variant ch__gather_or_zero gives zeros instead. Ids in room
 * (graph/room.h) are not read. The gradient of gather along axis 0 is sparse
 * (ops/index_sparse.c).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdalign.h>
#include <string.h>

#include "graph/step.h"
#include "ops/box.h"
#include "ops/lookup.h"
#include "ops/ops.h"
#include "tensor/tensor.h"

ch_ids ch__ids_in(const ch_call *c, int ids, bool wide, int axis)
{
    const int64_t *origin = ch__in_origin(c);

    return (ch_ids){c->in[ids], wide, origin != NULL ? origin[axis] : 0};
}

ch_ids ch__ids_out(const ch_call *c, int ids, bool wide, int axis)
{
    const int64_t *origin = ch__out_origin(c);

    return (ch_ids){c->in[ids], wide, origin != NULL ? origin[axis] : 0};
}

/* ---- gather: x (pre..., n, post...), ids -> (pre..., ids..., post...) ---- */

typedef struct gather_attrs {
    int64_t axis;
    bool    or_zero; /* true: an id out of range gives zeros instead of an error */
} gather_attrs;

static const ch_attr gather_rows[] = {
    CH_ATTR_INT(gather_attrs, axis),
    CH_ATTR_BOOL(gather_attrs, or_zero),
    CH_ATTR_END,
};

static ch_status gather_infer(ch_infer *c)
{
    const gather_attrs *a = c->attrs;
    ch_dim              dim[2 * CH_MAX_RANK];
    int                 axis, k = 0;
    ch_status           rc = ch__infer_want_ids(c, 1);

    if (rc == CH_OK)
        rc = ch__infer_axis(c, a->axis, c->in[0].rank, &axis);
    if (rc != CH_OK)
        return rc;
    for (int i = 0; i < axis; i++)
        dim[k++] = c->in[0].dim[i];
    for (int i = 0; i < c->in[1].rank; i++)
        dim[k++] = c->in[1].dim[i];
    for (int i = axis + 1; i < c->in[0].rank; i++)
        dim[k++] = c->in[0].dim[i];
    return ch__infer_out(c, 0, c->dtype[0], k, dim);
}

/* The axes before `axis` enumerate tables. With a single table, each tile checks its ids and
 * copies its rows in the same phase. With several tables, phase 0 checks the ids once for all
 * tables and phase 1 copies. */
typedef struct gather_state {
    int64_t n_tables, n_rows, n_ids;
    int64_t limit; /* rows of the whole table: an id must be less; n_rows if it has no parts */
    int64_t bytes; /* of a row */
    bool    wide_ids, or_zero;
    int     axis, tiles;
} gather_state;

bool ch__gather_is_rows(const ch_node *n)
{
    return ((const gather_attrs *)ch__attrs(n))->axis == 0;
}

bool ch__gather_gives_zeros(const ch_node *n)
{
    return ((const gather_attrs *)ch__attrs(n))->or_zero;
}

static ch_status gather_prepare(const ch_node *n, ch_prep *p)
{
    const gather_attrs *a = ch__attrs(n);
    const ch_dims      *x = &n->in[0]->dims;
    gather_state       *s = ch__prep_state(p, sizeof(*s));
    int                 axis;

    if (s == NULL)
        return ch__fail_memory("gather");
    (void)ch__axis(a->axis, x->rank, &axis);
    s->n_tables = 1;
    s->bytes = (int64_t)ch_dtype_bytes(n->dtype);
    for (int i = 0; i < axis; i++)
        s->n_tables *= x->dim[i].n;
    for (int i = axis + 1; i < x->rank; i++)
        s->bytes *= x->dim[i].n;
    s->axis = axis;
    s->n_rows = s->limit = x->dim[axis].n;
    if (n->origins != NULL)
        s->limit = n->origins->whole_in.dim[axis].n;
    s->n_ids = ch__count(n->in[1]);
    s->wide_ids = n->in[1]->dtype == CH_I64;
    s->or_zero = a->or_zero;
    s->tiles = ch__tile_count(s->n_tables * s->n_ids, s->bytes / 4 + 8);
    p->n_phases = s->n_tables > 1 && !s->or_zero ? 2 : 1;
    p->tiles[0] = p->n_phases == 2 ? 1 : s->tiles;
    p->tiles[1] = s->tiles;
    return CH_OK;
}

static ch_status gather_check(const ch_call *c, const gather_state *s, int64_t from, int64_t to)
{
    ch_ids  ids = ch__ids(c->in[1], s->wide_ids);
    int64_t bad = s->or_zero ? -1 : ch__ids_check(ids, from, to, s->limit);

    return bad < 0 ? CH_OK : ch__fail_id(c, ids, bad, s->limit);
}

/* Copies rows [from, to) of the result. Row i is of table i / n_ids. */
static void gather_copy(const ch_call *c, const gather_state *s, int64_t from, int64_t to)
{
    ch_ids ids = ch__ids_in(c, 1, s->wide_ids, s->axis);

    while (from < to) {
        int64_t table = from / s->n_ids, first = from % s->n_ids;
        int64_t n = s->n_ids - first < to - from ? s->n_ids - first : to - from;

        ch__rows_gather(ids, first, first + n,
                        (const char *)c->in[0] + table * s->n_rows * s->bytes, s->n_rows,
                        s->bytes, (char *)c->out[0] + table * s->n_ids * s->bytes);
        from += n;
    }
}

static ch_status gather_run(const ch_call *c, ch_kernel_tile t)
{
    const gather_state *s = c->state;
    int64_t             from, to, end, live = ch__live_items(c, s->n_ids);
    ch_status           rc = CH_OK;

    if (s->n_tables > 1 && !s->or_zero && t.phase == 0)
        return gather_check(c, s, 0, s->n_ids);
    ch__tile_range(s->n_tables * s->n_ids, s->tiles, t.index, &from, &end);
    /* With room there is a single table, because the ids are on axis 0 of the result. */
    to = live < s->n_ids && end > live ? (from > live ? from : live) : end;
    memset((char *)c->out[0] + to * s->bytes, 0, (size_t)((end - to) * s->bytes));
    if (s->n_tables == 1)
        rc = gather_check(c, s, from, to);
    if (rc == CH_OK)
        gather_copy(c, s, from, to);
    return rc;
}

static ch_node *gather_at(const void *caller, ch_node *x, ch_node *ids, int axis, bool or_zero)
{
    gather_attrs a = {axis, or_zero};

    return ch__node_at(caller, &ch__op_gather, &a, 2, (ch_node *[]){x, ids});
}

/* Returns the product of the sizes [from, to). Returns -1 if the product is not a size (two
 * symbols, or an overflow); reshape then fails. */
static ch_dim flat(const ch_dims *d, int from, int to)
{
    ch_dim all;

    return ch__dims_product(d, from, to, &all) ? all : ch__dim(-1);
}

/* With the axis moved to the front, the gradient is a sum of rows, which sparse_rows
 * represents. For axis 0 the result is sparse. For other axes the result is transposed back and
 * so dense. */
static void gather_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const gather_attrs *a = ch__attrs(n);
    const ch_dims      *x = &n->in[0]->dims, *i = &n->in[1]->dims;
    ch_dims             rows = {.rank = x->rank}, line = {.rank = 1};
    int                 front[CH_MAX_RANK], back[CH_MAX_RANK], axis, k = 0;
    ch_node            *d = dout[0];

    (void)s;
    (void)ch__axis(a->axis, x->rank, &axis);
    for (int j = 0; j < i->rank; j++)
        front[k++] = axis + j;
    for (int j = 0; j < n->dims.rank; j++)
        if (j < axis || j >= axis + i->rank)
            front[k++] = j;
    if (axis > 0)
        d = ch_transpose(d, n->dims.rank, front);
    line.dim[0] = rows.dim[0] = flat(i, 0, i->rank);
    for (int j = 1; j < x->rank; j++)
        rows.dim[j] = x->dim[j <= axis ? j - 1 : j];
    d = ch__sparse_rows(ch__reshape_dims(n->in[1], &line), ch__reshape_dims(d, &rows),
                        x->dim[axis]);
    for (int j = 0; j < x->rank; j++)
        back[j] = j < axis ? j + 1 : j == axis ? 0 : j;
    din[0] = axis > 0 ? ch_transpose(d, x->rank, back) : d;
}

/* A part of the table has the rows of its ids, and zeros for the ids of other parts. So the sum
 * of the parts has a single summand for each id. */
static ch_status gather_factors(const ch_node *n, ch_factors *f)
{
    const gather_attrs *a = ch__attrs(n);
    const ch_dims      *x = &n->in[0]->dims;
    int in[CH_MAX_RANK] = {0}, ids[CH_MAX_RANK] = {0}, out[CH_MAX_RANK] = {0}, axis, k = 0;

    if (!ch__axis(a->axis, x->rank, &axis))
        return CH_OK;
    for (int i = 0; i < x->rank; i++)
        in[i] = ch__factor(f, i == axis ? CH_IDX : CH_PAR);
    for (int i = 0; i < n->in[1]->dims.rank; i++)
        ids[i] = ch__factor(f, CH_PAR);
    for (int i = 0; i < axis; i++)
        out[k++] = in[i];
    for (int i = 0; i < n->in[1]->dims.rank; i++)
        out[k++] = ids[i];
    for (int i = axis + 1; i < x->rank; i++)
        out[k++] = in[i];
    ch__factor_map(f, 0, x->rank, in);
    ch__factor_map(f, 1, n->in[1]->dims.rank, ids);
    return ch__factor_out(f, k, out);
}

/* Absorbs an apply_rows call that reads the gathered rows. The update then reads the rows by
 * their ids, and the gathered copy is not made. This is the gradient of embedding_bag. */
static bool gather_absorb(const ch_node *n, const ch_node *user, ch_rewrite *w)
{
    const gather_attrs *a = ch__attrs(n);

    return a->or_zero && a->axis == 0 && n->in[1]->dims.rank == 1 &&
           ch__apply_gathered(n, user, w);
}

static const ch_kernel gather_plain = {"plain", .prepare = gather_prepare, .run = gather_run};

const ch_op ch__op_gather = {
    .name = "gather",
    .version = 1,
    .n_in = 2,
    .n_out = 1,
    .flags = CH_OP_CAN_FAIL | CH_OP_ORIGIN,
    .attrs = gather_rows,
    .attrs_bytes = sizeof(gather_attrs),
    .infer = gather_infer,
    .grad = gather_grad,
    .factors = gather_factors,
    .absorb = gather_absorb,
    .kernels = (const ch_kernel *const[]){&gather_plain, NULL},
    .room = 1u << 1, /* ids */
};

ch_node *ch_gather(ch_node *x, ch_node *ids, int axis)
{
    return gather_at(__builtin_return_address(0), x, ids, axis, false);
}

ch_node *ch__gather_or_zero(ch_node *x, ch_node *ids)
{
    return gather_at(__builtin_return_address(0), x, ids, 0, true);
}

/* ---- flat_ids: converts ids of several axes to ids of these axes flattened into one ---- */

typedef struct flat_ids_attrs {
    ch_dims dims; /* sizes of the indexed axes; the last axis of the ids has an id for each */
} flat_ids_attrs;

static const ch_attr flat_ids_rows[] = {
    CH_ATTR_DIMS(flat_ids_attrs, dims),
    CH_ATTR_END,
};

static ch_status flat_ids_infer(ch_infer *c)
{
    const flat_ids_attrs *a = c->attrs;
    ch_dims               d = c->in[0];
    ch_dim                all;
    ch_status             rc = ch__infer_want_ids(c, 0);

    if (rc == CH_OK)
        rc = ch__infer_check_dims(c, &a->dims);
    if (rc != CH_OK)
        return rc;
    if (d.rank < 1 || !ch__dim_is(d.dim[d.rank - 1], a->dims.rank))
        return ch__infer_fail(c, "the last axis must have size %d, an id for each axis of x",
                              a->dims.rank);
    for (int i = 0; i < a->dims.rank; i++)
        if (!ch__dims_product(&a->dims, 0, i + 1, &all))
            return a->dims.dim[i].sym != 0
                       ? ch__infer_want_number(c, a->dims.dim[i])
                       : ch__infer_fail(c, "the number of elements does not fit 63 bits");
    d.rank--;
    return ch__infer_dims(c, 0, CH_I64, &d);
}

typedef struct flat_ids_state {
    int64_t n, limit[CH_MAX_RANK];
    int     rank;
    bool    wide;
} flat_ids_state;

static ch_status flat_ids_prepare(const ch_node *n, ch_prep *p)
{
    const flat_ids_attrs *a = ch__attrs(n);
    flat_ids_state       *s = ch__prep_state(p, sizeof(*s));

    if (s == NULL)
        return ch__fail_memory("flat_ids");
    s->n = ch__count(n);
    s->rank = a->dims.rank;
    s->wide = n->in[0]->dtype == CH_I64;
    for (int i = 0; i < s->rank; i++)
        s->limit[i] = a->dims.dim[i].n;
    return CH_OK;
}

static ch_status flat_ids_run(const ch_call *c, ch_kernel_tile t)
{
    const flat_ids_state *s = c->state;
    ch_ids                ids = ch__ids(c->in[0], s->wide);
    int64_t              *out = c->out[0], n = ch__live_items(c, s->n);

    (void)t;
    for (int64_t i = 0; i < n; i++) {
        out[i] = 0;
        for (int k = 0; k < s->rank; k++) {
            int64_t id = ch__id(ids, i * s->rank + k);

            if (id < 0 || id >= s->limit[k])
                return ch__fail_id(c, ids, i * s->rank + k, s->limit[k]);
            out[i] = out[i] * s->limit[k] + id;
        }
    }
    return CH_OK;
}

static ch_status flat_ids_factors(const ch_node *n, ch_factors *f)
{
    int all[CH_MAX_RANK], rank = n->dims.rank;

    for (int k = 0; k < rank; k++)
        all[k] = ch__factor(f, CH_PAR);
    all[rank] = -1;
    ch__factor_map(f, 0, rank + 1, all);
    return ch__factor_out(f, rank, all);
}

static const ch_kernel flat_ids_plain = {"plain", .prepare = flat_ids_prepare,
                                         .run = flat_ids_run};

const ch_op ch__op_flat_ids = {
    .name = "flat_ids",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .flags = CH_OP_CAN_FAIL | CH_OP_NO_GRAD,
    .attrs = flat_ids_rows,
    .attrs_bytes = sizeof(flat_ids_attrs),
    .infer = flat_ids_infer,
    .factors = flat_ids_factors,
    .kernels = (const ch_kernel *const[]){&flat_ids_plain, NULL},
    .room = 1,
};

/* Flattens the indexed axes of x into one, and gathers along it. */
static ch_node *gather_nd(ch_node *x, ch_node *ids)
{
    const ch_dims *i = &ids->dims;
    flat_ids_attrs a = {0};
    ch_dims        rows = {0};
    int64_t        k = i->rank > 0 && i->dim[i->rank - 1].sym == 0 ? i->dim[i->rank - 1].n : -1;

    if (k < 1 || k > x->dims.rank) {
        ch__step_record_error(
            ch_node_step(x),
            ch__fail(CH_INVALID_ARGUMENT,
                     "gather_nd: the last axis of the ids has size %lld, want 1 to %d, "
                     "the rank of x",
                     (long long)k, x->dims.rank),
            NULL);
        return NULL;
    }
    a.dims.rank = (int)k;
    rows.dim[rows.rank++] = flat(&x->dims, 0, (int)k);
    for (int j = 0; j < x->dims.rank; j++) {
        if (j < k)
            a.dims.dim[j] = x->dims.dim[j];
        else
            rows.dim[rows.rank++] = x->dims.dim[j];
    }
    ids = ch__node(&ch__op_flat_ids, &a, 1, &ids);
    return ch_gather(ch__reshape_dims(x, &rows), ids, 0);
}

ch_node *ch_gather_nd(ch_node *x, ch_node *ids)
{
    const void *before;
    ch_node    *y;

    if (x == NULL || ids == NULL || ch_step_status(ch_node_step(x)) != CH_OK)
        return NULL;
    before = ch__step_begin(ch_node_step(x));
    y = gather_nd(x, ids);
    ch__step_end(ch_node_step(x), before);
    return y;
}

/* ---- one_hot ---- */

typedef struct one_hot_attrs {
    ch_dtype dtype;
    int64_t  depth;
    double   on, off;
} one_hot_attrs;

static const ch_attr one_hot_rows[] = {
    CH_ATTR_DTYPE(one_hot_attrs, dtype),
    CH_ATTR_INT(one_hot_attrs, depth),
    CH_ATTR_FLOAT(one_hot_attrs, on),
    CH_ATTR_FLOAT(one_hot_attrs, off),
    CH_ATTR_END,
};

static ch_status one_hot_infer(ch_infer *c)
{
    const one_hot_attrs *a = c->attrs;
    ch_dims              d = c->in[0];
    ch_status            rc = ch__infer_want_ids(c, 0);

    if (rc != CH_OK)
        return rc;
    if ((unsigned)a->dtype >= CH_DTYPE_COUNT || a->dtype == CH_STR)
        return ch__infer_fail(c, "dtype is %s, want bool or a numeric dtype",
                              ch_dtype_name(a->dtype));
    if (a->depth < 0)
        return ch__infer_fail(c, "depth is %lld, want 0 or more", (long long)a->depth);
    if (d.rank == CH_MAX_RANK)
        return ch__infer_fail(c, "the result would have rank %d, more than %d", d.rank + 1,
                              CH_MAX_RANK);
    d.dim[d.rank++] = ch__dim(a->depth);
    return ch__infer_dims(c, 0, a->dtype, &d);
}

typedef struct one_hot_state {
    int64_t n, depth;
    size_t  bytes;
    bool    wide;
    int     tiles;
    alignas(8) char on[8], off[8];
} one_hot_state;

static ch_status one_hot_prepare(const ch_node *n, ch_prep *p)
{
    const one_hot_attrs *a = ch__attrs(n);
    one_hot_state       *s = ch__prep_state(p, sizeof(*s));

    if (s == NULL)
        return ch__fail_memory("one_hot");
    s->n = ch__count(n->in[0]);
    s->depth = a->depth;
    s->bytes = ch_dtype_bytes(n->dtype);
    s->wide = n->in[0]->dtype == CH_I64;
    s->tiles = ch__move_tiles(s->n, ch__bytes(n));
    ch__store(n->dtype, s->on, a->on);
    ch__store(n->dtype, s->off, a->off);
    p->n_phases = 1;
    p->tiles[0] = s->tiles;
    return CH_OK;
}

static ch_status one_hot_run(const ch_call *c, ch_kernel_tile t)
{
    const one_hot_state *s = c->state;
    ch_ids               ids = ch__ids_out(c, 0, s->wide, c->node->dims.rank - 1);
    char                *out = c->out[0];
    int64_t              from, to;

    ch__tile_range(s->n, s->tiles, t.index, &from, &to);
    ch__fill(out + (size_t)(from * s->depth) * s->bytes, (to - from) * s->depth, s->bytes,
             s->off);
    for (int64_t i = from; i < to; i++) {
        int64_t id = ch__id(ids, i);

        if (id >= 0 && id < s->depth)
            memcpy(out + (size_t)(i * s->depth + id) * s->bytes, s->on, s->bytes);
    }
    return CH_OK;
}

static ch_status one_hot_factors(const ch_node *n, ch_factors *f)
{
    int all[CH_MAX_RANK];

    for (int k = 0; k < n->dims.rank; k++)
        all[k] = ch__factor(f, CH_PAR);
    ch__factor_map(f, 0, n->dims.rank - 1, all);
    return ch__factor_out(f, n->dims.rank, all);
}

static ch_status one_hot_local(const ch_node *n, const ch_call_part *part, void *attrs)
{
    ((one_hot_attrs *)attrs)->depth = part->out[0].size[n->dims.rank - 1];
    return CH_OK;
}

static const ch_kernel one_hot_plain = {"plain", .prepare = one_hot_prepare,
                                        .run = one_hot_run};

const ch_op ch__op_one_hot = {
    .name = "one_hot",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .flags = CH_OP_NO_GRAD | CH_OP_ORIGIN,
    .attrs = one_hot_rows,
    .attrs_bytes = sizeof(one_hot_attrs),
    .infer = one_hot_infer,
    .factors = one_hot_factors,
    .local = one_hot_local,
    .kernels = (const ch_kernel *const[]){&one_hot_plain, NULL},
    .room = CH_ROOM_ANY,
};

ch_node *ch_one_hot(ch_node *ids, int64_t depth, double on, double off, ch_dtype dtype)
{
    one_hot_attrs a = {.dtype = dtype, .depth = depth, .on = on, .off = off};

    return ch__node(&ch__op_one_hot, &a, 1, &ids);
}
