/* ops/index_scatter.c -- writing rows by ids: scatter_add, scatter_fold, scatter_update.
 *
 * Each op takes (x, ids, rows) and returns x with some rows changed. If no later call reads x,
 * the planner lets the op write over the memory of x. All ops use ch_scatter of kernel/rows.h
 * and the state scatter_state. A row is written by a single tile, in order of position, so
 * results do not depend on the number of threads.
 *
 * Invariant: these ops must not fail at run time, because x may be a variable that is updated
 * in place. The public functions therefore record check_ids before them, and kernels ignore ids
 * out of range.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "graph/step.h"
#include "ops/box.h"
#include "ops/lookup.h"
#include "ops/ops.h"

enum { X, IDS, ROWS }; /* inputs */

static ch_status scatter_check(const ch_infer *c)
{
    const ch_dims *x = &c->in[X], *rows = &c->in[ROWS];
    ch_status      rc = ch__infer_id_rows(c, IDS, ROWS);

    if (rc != CH_OK)
        return rc;
    if (x->rank < 1 || x->rank != rows->rank)
        return ch__infer_fail(c, "x has rank %d and rows rank %d, want the same, 1 or more",
                              x->rank, rows->rank);
    if (c->dtype[X] != c->dtype[ROWS])
        return ch__infer_fail(c, "rows are %s and x is %s; cast one of them",
                              ch_dtype_name(c->dtype[ROWS]), ch_dtype_name(c->dtype[X]));
    for (int k = 1; k < x->rank; k++)
        if (!ch__dim_same(x->dim[k], rows->dim[k]))
            return ch__infer_fail(c,
                                  "x and rows have sizes %s and %s in axis %d, want the same",
                                  ch__dim_text(c, x->dim[k]), ch__dim_text(c, rows->dim[k]), k);
    return CH_OK;
}

typedef struct scatter_state {
    ch_scatter scatter;
    bool       wide_ids;
    int64_t    bytes; /* of x */
    int        tiles;
} scatter_state;

/* Phases: 0 copies x, unless the output is x's memory, and sorts positions by the tile that
 * owns their row; 1 writes the rows. `fold` combines old and new rows. */
static ch_status scatter_prepare(const ch_node *n, ch_prep *p, ch_block_code fold)
{
    scatter_state *s = ch__prep_state(p, sizeof(*s));
    ch_scatter    *k;

    if (s == NULL)
        return ch__fail_memory(n->op->name);
    k = &s->scatter;
    k->dtype = n->dtype;
    k->fold = fold;
    k->n_ids = n->in[IDS]->dims.dim[0].n;
    k->n_rows = n->dims.dim[0].n;
    k->width = k->n_rows > 0 ? ch__count(n) / k->n_rows : 0;
    ch__scatter_cut(k, ch__tile_count(k->n_ids, 2 * k->width + 8));
    s->wide_ids = n->in[IDS]->dtype == CH_I64;
    s->bytes = ch__bytes(n);
    s->tiles = ch__move_tiles(s->bytes, s->bytes);
    p->scratch_bytes = ch__scatter_scratch(k);
    p->n_phases = 2;
    p->tiles[0] = s->tiles + k->chunks;
    p->tiles[1] = k->tiles;
    p->over[0] = 1u << X;
    return CH_OK;
}

/* Runs a tile of phase 0: copies part of x, or sorts a chunk of the ids. */
static void prepare_rows(const ch_call *c, const scatter_state *s, int tile)
{
    int64_t from, to;

    if (tile >= s->tiles) {
        ch__scatter_sort(&s->scatter, ch__ids_in(c, IDS, s->wide_ids, 0), tile - s->tiles,
                         c->scratch);
    } else if (c->out[0] != c->in[X]) {
        ch__tile_range(s->bytes, s->tiles, tile, &from, &to);
        memcpy((char *)c->out[0] + from, (const char *)c->in[X] + from, (size_t)(to - from));
    }
}

static ch_status fold_run(const ch_call *c, ch_kernel_tile t)
{
    const scatter_state *s = c->state;

    if (t.phase == 0)
        prepare_rows(c, s, t.index);
    else
        ch__scatter_fold(&s->scatter, ch__ids_in(c, IDS, s->wide_ids, 0), c->in[ROWS],
                         c->out[0], t.index, c->scratch);
    return CH_OK;
}

/* Every part needs all ids, and writes those of its rows. The list of ids is not divided,
 * because then a part of the list would give a partial result that contains x, which must be
 * added only once. */
static ch_status scatter_factors(const ch_node *n, ch_factors *f)
{
    int x[CH_MAX_RANK], rows[CH_MAX_RANK];

    x[0] = ch__factor(f, CH_IDX);
    rows[0] = -1;
    for (int k = 1; k < n->dims.rank; k++)
        x[k] = rows[k] = ch__factor(f, CH_PAR);
    ch__factor_map(f, X, n->dims.rank, x);
    ch__factor_map(f, IDS, 1, rows);
    ch__factor_map(f, ROWS, n->dims.rank, rows);
    return ch__factor_out(f, n->dims.rank, x);
}

/* Records check_ids and then `op`. `name` is the public function, for messages. */
static ch_node *scatter_at(const void *caller, const char *name, const ch_op *op,
                           const void *attrs, ch_node *x, ch_node *ids, ch_node *rows)
{
    char        of[160];
    const void *before;
    ch_step    *s = x != NULL ? ch_node_step(x) : NULL;
    ch_node    *y;

    if (s == NULL || ids == NULL || rows == NULL || ch_step_status(s) != CH_OK)
        return NULL;
    before = ch__step_begin_at(s, caller, name);
    if (s->verb != NULL) /* a change of a variable */
        snprintf(of, sizeof(of), "%s of %s", s->verb, s->object);
    if (x->dims.rank > 0)
        ids = ch__check_ids_dim(ids, x->dims.dim[0], s->verb != NULL ? of : NULL);
    y = ch__node(op, attrs, 3, (ch_node *[]){x, ids, rows});
    ch__step_end(s, before);
    return y;
}

/* ---- scatter_add ---- */

typedef struct add_attrs {
    bool negative; /* true: rows are subtracted */
} add_attrs;

static const ch_attr scatter_add_rows[] = {
    CH_ATTR_BOOL(add_attrs, negative),
    CH_ATTR_END,
};

static ch_status scatter_add_infer(ch_infer *c)
{
    ch_status rc = scatter_check(c);

    if (rc == CH_OK)
        rc = ch__infer_want_arith(c, X);
    return rc != CH_OK ? rc : ch__infer_like(c, 0, X);
}

static ch_status scatter_add_prepare(const ch_node *n, ch_prep *p)
{
    const add_attrs *a = ch__attrs(n);

    return scatter_prepare(n, p, a->negative ? CH_BLOCK_sub : CH_BLOCK_add);
}

static void scatter_add_grad(ch_step *s, const ch_node *n, ch_node *const dout[],
                             ch_node *din[])
{
    const add_attrs *a = ch__attrs(n);

    (void)s;
    din[X] = dout[0];
    din[ROWS] = ch__gather_or_zero(dout[0], n->in[IDS]);
    if (a->negative)
        din[ROWS] = ch_neg(din[ROWS]);
}

static const ch_kernel scatter_add_plain = {"plain", .prepare = scatter_add_prepare,
                                            .run = fold_run};

const ch_op ch__op_scatter_add = {
    .name = "scatter_add",
    .version = 1,
    .n_in = 3,
    .n_out = 1,
    .flags = CH_OP_ORIGIN,
    .attrs = scatter_add_rows,
    .attrs_bytes = sizeof(add_attrs),
    .infer = scatter_add_infer,
    .grad = scatter_add_grad,
    .factors = scatter_factors,
    .kernels = (const ch_kernel *const[]){&scatter_add_plain, NULL},
    .changed_rows = 1 + IDS,
    .room = 1u << ROWS,
    .room_filled = 1u << IDS,
    .room_fill = -1,
};

ch_node *ch_scatter_add(ch_node *x, ch_node *ids, ch_node *rows)
{
    return scatter_at(__builtin_return_address(0), __func__, &ch__op_scatter_add,
                      &(add_attrs){false}, x, ids, rows);
}

ch_node *ch_scatter_sub(ch_node *x, ch_node *ids, ch_node *rows)
{
    return scatter_at(__builtin_return_address(0), __func__, &ch__op_scatter_add,
                      &(add_attrs){true}, x, ids, rows);
}

ch_node *ch__add_sparse(ch_node *x, const ch_node *sparse, bool negative)
{
    const ch_node *n = sparse->head;

    return ch__node(&ch__op_scatter_add, &(add_attrs){negative}, 3,
                    (ch_node *[]){x, n->in[0], n->in[1]});
}

/* ---- scatter_fold ---- */

enum { FOLD_MUL, FOLD_DIV, FOLD_MIN, FOLD_MAX, FOLD_COUNT };

static const ch_block_code fold_codes[FOLD_COUNT] = {CH_BLOCK_mul, CH_BLOCK_div,
                                                     CH_BLOCK_minimum, CH_BLOCK_maximum};

typedef struct fold_attrs {
    int64_t how; /* FOLD_MUL ...; encoded in graphs, so the numbers must not change */
} fold_attrs;

static const ch_attr scatter_fold_rows[] = {
    CH_ATTR_INT(fold_attrs, how),
    CH_ATTR_END,
};

static ch_status scatter_fold_infer(ch_infer *c)
{
    const fold_attrs *a = c->attrs;

    if (a->how < 0 || a->how >= FOLD_COUNT)
        return ch__infer_fail(c, "how is %lld, want 0 to %d", (long long)a->how,
                              FOLD_COUNT - 1);
    return scatter_add_infer(c);
}

static ch_status scatter_fold_prepare(const ch_node *n, ch_prep *p)
{
    const fold_attrs *a = ch__attrs(n);

    return scatter_prepare(n, p, fold_codes[a->how]);
}

static const ch_kernel scatter_fold_plain = {"plain", .prepare = scatter_fold_prepare,
                                             .run = fold_run};

/* Has no gradient; asking for it is an error. The derivative of a row would depend on all rows
 * that are folded into the same row of x before and after it. */
const ch_op ch__op_scatter_fold = {
    .name = "scatter_fold",
    .version = 1,
    .n_in = 3,
    .n_out = 1,
    .flags = CH_OP_ORIGIN,
    .attrs = scatter_fold_rows,
    .attrs_bytes = sizeof(fold_attrs),
    .infer = scatter_fold_infer,
    .factors = scatter_factors,
    .kernels = (const ch_kernel *const[]){&scatter_fold_plain, NULL},
    .changed_rows = 1 + IDS,
    .room = 1u << ROWS,
    .room_filled = 1u << IDS,
    .room_fill = -1,
};

ch_node *ch_scatter_mul(ch_node *x, ch_node *ids, ch_node *rows)
{
    return scatter_at(__builtin_return_address(0), __func__, &ch__op_scatter_fold,
                      &(fold_attrs){FOLD_MUL}, x, ids, rows);
}

ch_node *ch_scatter_div(ch_node *x, ch_node *ids, ch_node *rows)
{
    return scatter_at(__builtin_return_address(0), __func__, &ch__op_scatter_fold,
                      &(fold_attrs){FOLD_DIV}, x, ids, rows);
}

ch_node *ch_scatter_min(ch_node *x, ch_node *ids, ch_node *rows)
{
    return scatter_at(__builtin_return_address(0), __func__, &ch__op_scatter_fold,
                      &(fold_attrs){FOLD_MIN}, x, ids, rows);
}

ch_node *ch_scatter_max(ch_node *x, ch_node *ids, ch_node *rows)
{
    return scatter_at(__builtin_return_address(0), __func__, &ch__op_scatter_fold,
                      &(fold_attrs){FOLD_MAX}, x, ids, rows);
}

/* ---- last_ids: replaces every id that occurs again later in the list by -1 ---- */

static ch_status last_ids_infer(ch_infer *c)
{
    ch_status rc = ch__infer_want_ids(c, 0);

    return rc != CH_OK ? rc : ch__infer_like(c, 0, 0);
}

typedef struct last_ids_state {
    int64_t n;
    bool    wide;
} last_ids_state;

static ch_status last_ids_prepare(const ch_node *n, ch_prep *p)
{
    last_ids_state *s = ch__prep_state(p, sizeof(*s));

    if (s == NULL)
        return ch__fail_memory("last_ids");
    *s = (last_ids_state){ch__count(n), n->dtype == CH_I64};
    p->scratch_bytes = ch__ids_keep_last_scratch(s->n);
    return CH_OK;
}

static ch_status last_ids_run(const ch_call *c, ch_kernel_tile t)
{
    const last_ids_state *s = c->state;

    (void)t;
    ch__ids_keep_last(ch__ids(c->in[0], s->wide), s->n, c->out[0], c->scratch);
    return CH_OK;
}

static const ch_kernel last_ids_plain = {"plain", .prepare = last_ids_prepare,
                                         .run = last_ids_run};

const ch_op ch__op_last_ids = {
    .name = "last_ids",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .flags = CH_OP_NO_GRAD,
    .infer = last_ids_infer,
    .replicated = "whether an id is the last of its kind depends on all later ids",
    .kernels = (const ch_kernel *const[]){&last_ids_plain, NULL},
};

/* ---- scatter_update ---- */

static ch_status scatter_update_infer(ch_infer *c)
{
    ch_status rc = scatter_check(c);

    return rc != CH_OK ? rc : ch__infer_like(c, 0, X);
}

static ch_status scatter_update_prepare(const ch_node *n, ch_prep *p)
{
    return scatter_prepare(n, p, CH_BLOCK_COUNT); /* no fold: new rows replace old rows */
}

static ch_status scatter_update_run(const ch_call *c, ch_kernel_tile t)
{
    const scatter_state *s = c->state;

    if (t.phase == 0)
        prepare_rows(c, s, t.index);
    else
        ch__scatter_set(&s->scatter, ch__ids_in(c, IDS, s->wide_ids, 0), c->in[ROWS], c->out[0],
                        t.index, c->scratch);
    return CH_OK;
}

/* x gets the gradient of the rows that were not replaced. `rows` gets the gradient of the
 * replaced rows; if an id occurs several times, only its last row counts. */
static void scatter_update_grad(ch_step *s, const ch_node *n, ch_node *const dout[],
                                ch_node *din[])
{
    ch_node *last = ch__node(&ch__op_last_ids, NULL, 1, &n->in[IDS]);

    (void)s;
    din[X] = ch__node(&ch__op_scatter_update, NULL, 3,
                      ((ch_node *[]){dout[0], n->in[IDS], ch__full_like(n->in[ROWS], 0)}));
    din[ROWS] = ch__gather_or_zero(dout[0], last);
}

static const ch_kernel scatter_update_plain = {"plain", .prepare = scatter_update_prepare,
                                               .run = scatter_update_run};

const ch_op ch__op_scatter_update = {
    .name = "scatter_update",
    .version = 1,
    .n_in = 3,
    .n_out = 1,
    .flags = CH_OP_ORIGIN,
    .infer = scatter_update_infer,
    .grad = scatter_update_grad,
    .factors = scatter_factors,
    .kernels = (const ch_kernel *const[]){&scatter_update_plain, NULL},
    .changed_rows = 1 + IDS,
    .room = 1u << ROWS,
    .room_filled = 1u << IDS,
    .room_fill = -1,
};

ch_node *ch_scatter_update(ch_node *x, ch_node *ids, ch_node *rows)
{
    return scatter_at(__builtin_return_address(0), __func__, &ch__op_scatter_update, NULL, x,
                      ids, rows);
}
