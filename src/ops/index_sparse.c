/* ops/index_sparse.c -- check_ids, and sparse gradients (ids, rows).
 *
 * The gradient of a lookup touches few rows of its table. It is a call of sparse_rows, whose
 * inputs are the ids and the rows. Ops that support sparse gradients (ch__is_sparse) read these
 * inputs: the sum of two sparse gradients joins their lists, an update writes only the named
 * rows. All other ops read the output of the call, which is the dense array. Then its kernel
 * runs and the conversion is logged once a process.
 *
 * Invariant: an id out of range names no row. Positions without an id hold -1. The lists of a
 * sparse gradient have no room (graph/room.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "graph/attr.h"
#include "graph/step.h"
#include "kernel/block.h"
#include "kernel/rows.h"
#include "ops/box.h"
#include "ops/lookup.h"
#include "ops/ops.h"

/* ---- check_ids: returns the ids, fails unless all are in [0, limit) ---- */

typedef struct check_ids_attrs {
    ch_dims     limit; /* one size */
    const char *of;    /* beginning of the error message, names the table; NULL: none */
} check_ids_attrs;

static const ch_attr check_ids_rows[] = {
    CH_ATTR_DIMS(check_ids_attrs, limit),
    CH_ATTR_TEXT(check_ids_attrs, of),
    CH_ATTR_END,
};

static ch_status check_ids_infer(ch_infer *c)
{
    const check_ids_attrs *a = c->attrs;
    ch_status              rc = ch__infer_want_ids(c, 0);

    if (rc == CH_OK)
        rc = ch__infer_check_dims(c, &a->limit);
    if (rc == CH_OK && a->limit.rank != 1)
        rc = ch__infer_fail(c, "limit has %d sizes, want 1", a->limit.rank);
    return rc != CH_OK ? rc : ch__infer_like(c, 0, 0);
}

typedef struct check_ids_state {
    int64_t n, limit;
    bool    wide;
} check_ids_state;

static ch_status check_ids_prepare(const ch_node *n, ch_prep *p)
{
    const check_ids_attrs *a = ch__attrs(n);
    check_ids_state       *s = ch__prep_state(p, sizeof(*s));

    if (s == NULL)
        return ch__fail_memory("check_ids");
    *s = (check_ids_state){ch__count(n), a->limit.dim[0].n, n->dtype == CH_I64};
    p->over[0] = 1;
    return CH_OK;
}

ch_status ch__fail_id(const ch_call *c, ch_ids ids, int64_t at, int64_t limit)
{
    return ch__call_fail(c, CH_INVALID_ARGUMENT, "id %lld at position %lld is not in [0, %lld)",
                         (long long)ch__id(ids, at), (long long)at, (long long)limit);
}

static ch_status check_ids_run(const ch_call *c, ch_kernel_tile t)
{
    const check_ids_state *s = c->state;
    const check_ids_attrs *a = ch__attrs(c->node);
    ch_ids                 ids = ch__ids(c->in[0], s->wide);
    int64_t                bad = ch__ids_check(ids, 0, ch__live_items(c, s->n), s->limit);

    (void)t;
    if (bad >= 0 && a->of != NULL)
        return ch__fail_in_call(
            ch__fail(CH_INVALID_ARGUMENT, "%s: id %lld at position %lld is not in [0, %lld)",
                     a->of, (long long)ch__id(ids, bad), (long long)bad, (long long)s->limit),
            c->node);
    if (bad >= 0)
        return ch__fail_id(c, ids, bad, s->limit);
    if (c->out[0] != c->in[0])
        memcpy(c->out[0], c->in[0], (size_t)s->n * (s->wide ? 8 : 4));
    return CH_OK;
}

static const ch_kernel check_ids_plain = {"plain", .prepare = check_ids_prepare,
                                          .run = check_ids_run};

const ch_op ch__op_check_ids = {
    .name = "check_ids",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .flags = CH_OP_CAN_FAIL | CH_OP_NO_GRAD,
    .attrs = check_ids_rows,
    .attrs_bytes = sizeof(check_ids_attrs),
    .infer = check_ids_infer,
    .factors = ch__factors_elementwise,
    .kernels = (const ch_kernel *const[]){&check_ids_plain, NULL},
    .room = 1,
};

static ch_node *check_ids_at(const void *caller, ch_node *ids, ch_dim limit, const char *of)
{
    check_ids_attrs a = {.limit = {.rank = 1, .dim = {limit}}, .of = of};

    if (ids != NULL && ids->head->op == &ch__op_check_ids &&
        ch__attrs_equal(&ch__op_check_ids, ch__attrs(ids), &a))
        return ids; /* already checked */
    return ch__node_at(caller, &ch__op_check_ids, &a, 1, &ids);
}

ch_node *ch_check_ids(ch_node *ids, int64_t limit)
{
    return check_ids_at(__builtin_return_address(0), ids, ch__dim(limit), NULL);
}

ch_node *ch__check_ids_dim(ch_node *ids, ch_dim limit, const char *of)
{
    return check_ids_at(__builtin_return_address(0), ids, limit, of);
}

/* ---- sparse_rows: an array of zeros to which rows are added at ids ---- */

typedef struct sparse_attrs {
    ch_dims n_rows; /* one size: the rows of the array */
    bool    dense;  /* true: the array is meant, the call is not a sparse gradient */
} sparse_attrs;

static const ch_attr sparse_rows_rows[] = {
    CH_ATTR_DIMS(sparse_attrs, n_rows),
    CH_ATTR_BOOL(sparse_attrs, dense),
    CH_ATTR_END,
};

ch_status ch__infer_id_rows(const ch_infer *c, int ids, int rows)
{
    ch_dim    a, b;
    ch_status rc = ch__infer_want_ids(c, ids);

    if (rc == CH_OK)
        rc = ch__infer_want_rank(c, ids, 1);
    if (rc != CH_OK)
        return rc;
    if (c->in[rows].rank < 1)
        return ch__infer_fail(c, "input %d is a scalar, want a row for each id", rows);
    a = c->in[ids].dim[0];
    b = c->in[rows].dim[0];
    if (ch__dim_same(a, b))
        return CH_OK;
    if (a.sym != 0 || b.sym != 0)
        return ch__infer_want_number(c, a.sym != 0 ? a : b);
    return ch__infer_fail(c, "there are %s ids and %s rows, want a row for each id",
                          ch__dim_text(c, a), ch__dim_text(c, b));
}

static ch_status sparse_rows_infer(ch_infer *c)
{
    const sparse_attrs *a = c->attrs;
    ch_status           rc = ch__infer_id_rows(c, 0, 1);
    ch_dims             d = c->in[1];

    if (rc == CH_OK)
        rc = ch__infer_want_arith(c, 1);
    if (rc == CH_OK)
        rc = ch__infer_check_dims(c, &a->n_rows);
    if (rc != CH_OK)
        return rc;
    if (a->n_rows.rank != 1)
        return ch__infer_fail(c, "n_rows has %d sizes, want 1", a->n_rows.rank);
    d.dim[0] = a->n_rows.dim[0];
    return ch__infer_dims(c, 0, c->dtype[1], &d);
}

/* Phases: 0 clears the sum and sorts the positions by the tile that owns their row; 1 adds the
 * rows; 2, for 16-bit floats only, rounds the sum, which is f32 in scratch, to the output. */
typedef struct sparse_state {
    ch_scatter scatter;
    bool       wide_ids;
    int64_t    count;
    /* Bytes of an element of the sum; bytes of the sum in scratch, 0 if it is in the output. */
    size_t sum_bytes, sum_scratch;
    int    tiles;
} sparse_state;

/* Logs that a sparse gradient becomes dense. Logs once a process, because one line is enough to
 * find the cause. */
static void log_dense(const ch_node *sparse)
{
    static atomic_flag logged = ATOMIC_FLAG_INIT;
    char               dims[160];

    if (atomic_flag_test_and_set_explicit(&logged, memory_order_relaxed))
        return;
    ch__dims_print(&sparse->dims, dims, sizeof(dims));
    ch__log(CH_LOG_INFO, "sparse-gradient-densified",
            "the sparse gradient of %s%s%s%s becomes dense, because an op reads all its rows",
            ch_dtype_name(sparse->dtype), dims, sparse->scope != NULL ? " in " : "",
            sparse->scope != NULL ? sparse->scope : "");
}

static ch_status sparse_rows_prepare(const ch_node *n, ch_prep *p)
{
    sparse_state *s = ch__prep_state(p, sizeof(*s));
    ch_scatter   *k;

    if (s == NULL)
        return ch__fail_memory("sparse_rows");
    if (ch__is_sparse(n))
        log_dense(n);
    k = &s->scatter;
    k->dtype = n->dtype;
    k->fold = CH_BLOCK_add;
    k->wide = n->dtype == CH_BF16 || n->dtype == CH_F16;
    k->n_ids = n->in[0]->dims.dim[0].n;
    k->n_rows = n->dims.dim[0].n;
    s->count = ch__count(n);
    k->width = k->n_rows > 0 ? s->count / k->n_rows : 0;
    ch__scatter_cut(k, ch__tile_count(k->n_ids, 2 * k->width + 8));
    s->wide_ids = n->in[0]->dtype == CH_I64;
    s->sum_bytes = k->wide ? sizeof(float) : ch_dtype_bytes(n->dtype);
    s->sum_scratch = k->wide ? (size_t)s->count * sizeof(float) : 0;
    s->tiles = ch__move_tiles(s->count, s->count * (int64_t)s->sum_bytes);
    p->scratch_bytes = s->sum_scratch + ch__scatter_scratch(k);
    p->n_phases = k->wide ? 3 : 2;
    p->tiles[0] = s->tiles + k->chunks;
    p->tiles[1] = k->tiles;
    p->tiles[2] = s->tiles;
    return CH_OK;
}

static ch_status sparse_rows_run(const ch_call *c, ch_kernel_tile t)
{
    const sparse_state *s = c->state;
    ch_ids              ids = ch__ids_out(c, 0, s->wide_ids, 0);
    char               *sum = s->scatter.wide ? c->scratch : c->out[0];
    char               *order = (char *)c->scratch + s->sum_scratch;
    int64_t             from, to;

    ch__tile_range(s->count, s->tiles, t.index, &from, &to);
    if (t.phase == 0 && t.index >= s->tiles)
        ch__scatter_sort(&s->scatter, ids, t.index - s->tiles, order);
    else if (t.phase == 0)
        memset(sum + (size_t)from * s->sum_bytes, 0, (size_t)(to - from) * s->sum_bytes);
    else if (t.phase == 1)
        ch__scatter_fold(&s->scatter, ids, c->in[1], sum, t.index, order);
    else
        ch__blocks()->narrow[s->scatter.dtype](
            to - from, (const void *[]){(const float *)c->scratch + from},
            (uint16_t *)c->out[0] + from, NULL);
    return CH_OK;
}

static void sparse_rows_grad(ch_step *s, const ch_node *n, ch_node *const dout[],
                             ch_node *din[])
{
    (void)s;
    din[1] = ch__gather_or_zero(dout[0], n->in[0]);
}

/* The position in the list is summed over, so a part of the list gives a partial result. A part
 * of the rows needs the whole list, and ignores ids outside its rows. */
static ch_status sparse_rows_factors(const ch_node *n, ch_factors *f)
{
    int in[CH_MAX_RANK], out[CH_MAX_RANK];

    in[0] = ch__factor_red(f, CH_PARTIAL_SUM);
    out[0] = ch__factor(f, CH_PAR);
    for (int k = 1; k < n->dims.rank; k++)
        in[k] = out[k] = ch__factor(f, CH_PAR);
    ch__factor_map(f, 0, 1, in);
    ch__factor_map(f, 1, n->dims.rank, in);
    return ch__factor_out(f, n->dims.rank, out);
}

static ch_status sparse_rows_local(const ch_node *n, const ch_call_part *part, void *attrs)
{
    (void)n;
    ((sparse_attrs *)attrs)->n_rows.dim[0] = ch__dim(part->out[0].size[0]);
    return CH_OK;
}

static const ch_kernel sparse_rows_plain = {"plain", .prepare = sparse_rows_prepare,
                                            .run = sparse_rows_run};

const ch_op ch__op_sparse_rows = {
    .name = "sparse_rows",
    .version = 1,
    .n_in = 2,
    .n_out = 1,
    .flags = CH_OP_ORIGIN,
    .attrs = sparse_rows_rows,
    .attrs_bytes = sizeof(sparse_attrs),
    .infer = sparse_rows_infer,
    .grad = sparse_rows_grad,
    .factors = sparse_rows_factors,
    .local = sparse_rows_local,
    .kernels = (const ch_kernel *const[]){&sparse_rows_plain, NULL},
    .room = 1u << 1,        /* rows */
    .room_filled = 1u << 0, /* ids */
    .room_fill = -1,
};

/* Records sparse_rows for a sparse gradient. Its lists must not have room, because optimizers
 * and collectives read all of them: the ids of room become -1. */
static ch_node *sparse_at(const void *caller, ch_node *ids, ch_node *rows, ch_dim n_rows)
{
    sparse_attrs a = {.n_rows = {.rank = 1, .dim = {n_rows}}};

    if (ids != NULL && rows != NULL && ids->dims.rank == 1 && rows->dims.rank > 0 &&
        ch__is_ragged(ids) && ch__dim_same(ids->dims.dim[0], rows->dims.dim[0])) {
        ids = ch__without_room(ids, -1);
        rows = ids != NULL ? ch__resize_rows(rows, 0, ids->dims.dim[0]) : NULL;
    }
    return ch__node_at(caller, &ch__op_sparse_rows, &a, 2, (ch_node *[]){ids, rows});
}

ch_node *ch__sparse_rows(ch_node *ids, ch_node *rows, ch_dim n_rows)
{
    return sparse_at(__builtin_return_address(0), ids, rows, n_rows);
}

ch_node *ch_sparse_rows(ch_node *ids, ch_node *rows, int64_t n_rows)
{
    const void *caller = __builtin_return_address(0);
    ch_node    *checked = check_ids_at(caller, ids, ch__dim(n_rows), NULL);

    return sparse_at(caller, checked, rows, ch__dim(n_rows));
}

bool ch_node_is_sparse(const ch_node *n)
{
    return ch__is_sparse(n);
}

/* Returns "<name>/<leaf>" in memory of the step's graph. Returns NULL and records an error in
 * the step if the name is NULL or memory is exhausted. */
static char *leaf_name(ch_step *s, const char *call, const char *name, const char *leaf,
                       const void *caller)
{
    size_t size;
    char  *text;

    if (!ch__step_want(s, name != NULL, call, "the name", caller))
        return NULL;
    size = strlen(name) + strlen(leaf) + 2;
    text = ch__arena_alloc(&s->graph->arena, size);
    if (text == NULL)
        ch__step_record_error(s, ch__fail_memory(call), caller);
    else
        snprintf(text, size, "%s/%s", name, leaf);
    return text;
}

ch_node *ch_step_in_sparse(ch_step *s, const char *name, int64_t n_rows)
{
    const void *caller = __builtin_return_address(0), *before;
    char       *ids = leaf_name(s, "step_in_sparse", name, "ids", caller), *rows;
    ch_node    *n;

    rows = ids != NULL ? leaf_name(s, "step_in_sparse", name, "rows", caller) : NULL;
    if (rows == NULL)
        return NULL;
    before = ch__step_begin_at(s, caller, "step_in_sparse");
    n = ch_step_in_named(s, ids);
    n = ch_sparse_rows(n, ch_step_in_named(s, rows), n_rows);
    ch__step_end(s, before);
    return n;
}

void ch_step_out_sparse(ch_step *s, const char *name, ch_node *n)
{
    const void *caller = __builtin_return_address(0), *before;
    char       *ids = leaf_name(s, "step_out_sparse", name, "ids", caller), *rows;

    rows = ids != NULL ? leaf_name(s, "step_out_sparse", name, "rows", caller) : NULL;
    if (rows == NULL)
        return;
    if (!ch__is_sparse(n)) {
        ch__step_record_error(
            s,
            ch__fail(CH_INVALID_ARGUMENT,
                     "step_out_sparse: \"%s\": the node is %s, want a sparse node "
                     "(ch_node_is_sparse); use ch_step_out",
                     name, n == NULL ? "NULL" : "dense"),
            caller);
        return;
    }
    before = ch__step_begin_at(s, caller, "step_out_sparse");
    /* flat values instead of lists without room, because a run cuts them to their live rows */
    ch_step_out(s, ids, ch__with_room(n->head->in[0]));
    ch_step_out(s, rows, ch__with_room(n->head->in[1]));
    ch__step_end(s, before);
}

ch_node *ch_segment_sum(ch_node *x, ch_node *segment_ids, int64_t n_segments)
{
    sparse_attrs a = {.n_rows = {.rank = 1, .dim = {ch__dim(n_segments)}}, .dense = true};
    ch_step     *s = ch_node_step(x != NULL ? x : segment_ids);
    const void  *before;
    ch_node     *checked;

    if (s == NULL)
        return NULL;
    before = ch__step_begin(s);
    checked = check_ids_at(NULL, segment_ids, ch__dim(n_segments), NULL);
    x = ch__node_at(NULL, &ch__op_sparse_rows, &a, 2, (ch_node *[]){checked, x});
    ch__step_end(s, before);
    return x;
}

/* ---- sums of gradients ---- */

bool ch__is_sparse(const ch_node *n)
{
    const sparse_attrs *a = n != NULL ? ch__attrs(n) : NULL;

    return n != NULL && n->head->op == &ch__op_sparse_rows && !a->dense;
}

ch_node *ch__dense(const ch_node *sparse)
{
    sparse_attrs a = *(const sparse_attrs *)ch__attrs(sparse);

    a.dense = true;
    return ch__node(&ch__op_sparse_rows, &a, 2, sparse->head->in);
}

/* Returns true if a + b is a sparse gradient that joins the lists of a and b. */
static bool can_join(const ch_node *a, const ch_node *b)
{
    return ch__is_sparse(a) && ch__is_sparse(b) && a->in[0]->dtype == b->in[0]->dtype &&
           a->dtype == b->dtype && ch__dims_same(&a->dims, &b->dims);
}

/* Returns true if a is dense and the rows of the sparse b can be added to a in place. Not for
 * 16-bit floats, because each addition would round. */
static bool can_add_rows(const ch_node *a, const ch_node *b)
{
    return !ch__is_sparse(a) && ch__is_sparse(b) && a->dtype == b->dtype &&
           a->dtype != CH_BF16 && a->dtype != CH_F16 && ch__dims_same(&a->dims, &b->dims);
}

ch_node *ch__add_gradients(ch_node *a, ch_node *b)
{
    ch_node *ids, *rows;

    if (a == NULL || b == NULL)
        return NULL;
    if (can_add_rows(a, b))
        return ch__add_sparse(a, b, false);
    if (can_add_rows(b, a))
        return ch__add_sparse(b, a, false);
    if (!can_join(a, b))
        return ch_add(a, b);
    ids = ch_concat(2, (ch_node *[]){a->in[0], b->in[0]}, 0);
    if (ids == NULL)
        return NULL;
    rows = ch__concat_to(2, (ch_node *[]){a->in[1], b->in[1]}, 0, ids->dims.dim[0]);
    return ch__sparse_rows(ids, rows, a->dims.dim[0]);
}
