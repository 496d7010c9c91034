/* ops/apply_rows.c -- ops on sparse gradients: apply_rows, marked_ids, merge_rows, round_rows.
 *
 * apply_rows updates the rows of a variable that a sparse gradient (ids, rows) names. Rows with
 * equal ids form a group (ch_groups of kernel/rule.h); the rule is applied once to each group,
 * with the sum of its rows. A row of the variable is written by a single tile, so results do
 * not depend on the number of threads.
 *
 * Invariant: apply_rows and round_rows must not fail at run time, because they write over
 * variables. An id out of range names no row.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "graph/step.h"
#include "kernel/block.h"
#include "ops/apply.h"
#include "ops/apply_rule.h"
#include "ops/box.h"
#include "ops/lookup.h"
#include "ops/ops.h"

/* Fails if there are more ids than kernel/rule.h supports. */
static ch_status infer_few_ids(const ch_infer *c, int ids)
{
    ch_dim n = c->in[ids].dim[0];

    if (n.sym == 0 && n.n > INT32_MAX)
        return ch__infer_fail(c, "there are %lld ids, want at most %d", (long long)n.n,
                              INT32_MAX);
    return CH_OK;
}

/* Returns the groups of equal ids, divided into tiles. `cost` is the cost of an element. */
static ch_groups groups_of(const ch_node *ids, int64_t n_rows, int64_t width, int64_t cost)
{
    ch_groups g = {.scatter = {.n_ids = ids->dims.dim[0].n, .n_rows = n_rows, .width = width}};

    ch__groups_cut(&g, ch__tile_count(g.scatter.n_ids, cost * width + 16));
    return g;
}

/* Returns the ids of input i. A part of a call has the ids of the whole call, of which those in
 * its part of the table name rows. */
static ch_ids ids_of(const ch_call *c, int i, bool wide)
{
    const int64_t *origin = ch__in_origin(c);

    return (ch_ids){c->in[i], wide, origin != NULL ? origin[0] : 0};
}

/* ---- apply_rows ---- */

/* Indices of inputs. With `indexed`, input WHICH is a list that has, for each id, the index of
 * its row in ROWS; the indices of ROWS and of all inputs after it are then larger by 1. */
enum { VAR, IDS, ROWS, HYPER, SLOTS, WHICH = ROWS };

typedef struct rows_attrs {
    const char *rule;
    bool        indexed; /* set by the planner only (ch__apply_gathered) */
} rows_attrs;

static const ch_attr apply_rows_rows[] = {
    CH_ATTR_TEXT(rows_attrs, rule),
    CH_ATTR_BOOL(rows_attrs, indexed),
    CH_ATTR_END,
};

/* Fails unless each id has a row or, with `indexed`, the index of a row. */
static ch_status infer_rows(const ch_infer *c, bool indexed)
{
    ch_status rc;

    if (c->n_in < SLOTS + indexed)
        return ch__infer_fail(c, "there are %d inputs, want %d or more", c->n_in,
                              SLOTS + indexed);
    if (!indexed)
        return ch__infer_id_rows(c, IDS, ROWS);
    rc = ch__infer_want_ids(c, WHICH);
    return rc != CH_OK ? rc : ch__infer_id_rows(c, IDS, WHICH);
}

static ch_status apply_rows_infer(ch_infer *c)
{
    const rows_attrs *a = c->attrs;
    const ch_rule    *r = NULL;
    const ch_dims    *var = &c->in[VAR], *rows = &c->in[ROWS + a->indexed];
    ch_status         rc = infer_rows(c, a->indexed);

    if (rc == CH_OK)
        rc = infer_few_ids(c, IDS);
    if (rc == CH_OK)
        rc = ch__infer_apply(c, a->rule, &r, HYPER + a->indexed);
    if (rc != CH_OK)
        return rc;
    if (!r->is_sparse)
        return ch__infer_fail(c, "rule %s changes all rows; use a dense gradient", r->name);
    if (var->rank < 1 || var->rank != rows->rank)
        return ch__infer_fail(c,
                              "the variable has rank %d and rows rank %d, want the same, 1 or "
                              "more",
                              var->rank, rows->rank);
    for (int k = 1; k < var->rank; k++)
        if (!ch__dim_same(var->dim[k], rows->dim[k]))
            return ch__infer_fail(c,
                                  "the variable and rows have sizes %s and %s in axis %d, want "
                                  "the same",
                                  ch__dim_text(c, var->dim[k]), ch__dim_text(c, rows->dim[k]),
                                  k);
    return CH_OK;
}

typedef struct rows_state {
    const ch_rule *rule;
    ch_dtype       dtype;
    ch_groups      groups;
    bool           wide_ids, wide_which;
    int            indexed;   /* added to the indices of inputs: 1 if indexed, else 0 */
    int64_t        n_rows;    /* rows of the gradient */
    int64_t        bytes;     /* of the variable, or of a slot of the same shape */
    int64_t        row_bytes; /* of a slot with an element for each row */
    int            tiles;     /* tiles that copy old values, in phase 0 */
} rows_state;

/* Phases: 0 sorts the ids by the tile that owns their row, and copies old values to outputs
 * that are not the memory of their inputs; 1 updates the rows. */
static ch_status apply_rows_prepare(const ch_node *n, ch_prep *p)
{
    const rows_attrs *a = ch__attrs(n);
    rows_state       *s = ch__prep_state(p, sizeof(*s));
    int64_t           rows = n->dims.dim[0].n;

    if (s == NULL)
        return ch__fail_memory("apply_rows");
    s->rule = ch__rule_find(a->rule);
    s->indexed = a->indexed;
    s->n_rows = n->in[ROWS + s->indexed]->dims.dim[0].n;
    s->wide_which = n->in[WHICH]->dtype == CH_I64;
    s->dtype = n->dtype;
    s->bytes = ch__bytes(n);
    s->row_bytes = rows * (int64_t)ch_dtype_bytes(n->dtype);
    s->wide_ids = n->in[IDS]->dtype == CH_I64;
    s->groups = groups_of(n->in[IDS], rows, rows > 0 ? ch__count(n) / rows : 0,
                          2 + 2 * s->rule->n_slots);
    s->tiles = ch__move_tiles(s->bytes, s->bytes);
    p->scratch_bytes = ch__groups_scratch(&s->groups);
    p->n_phases = 2;
    p->tiles[0] = s->tiles + s->groups.scatter.chunks;
    p->tiles[1] = s->groups.scatter.tiles;
    ch__apply_over(s->rule, HYPER + s->indexed, p);
    return CH_OK;
}

/* Copies a tile's part of the old values to outputs that are not the memory of their inputs. */
static void copy_part(const ch_call *c, const rows_state *s, int tile)
{
    for (int k = 0; k <= s->rule->n_slots; k++) {
        const char *in = c->in[k == 0 ? VAR : HYPER + s->indexed + k];
        char       *out = c->out[k];
        int64_t     from, to;

        ch__tile_range(k > 0 && s->rule->by_row ? s->row_bytes : s->bytes, s->tiles, tile,
                       &from, &to);
        if (in != out)
            memcpy(out + from, in + from, (size_t)(to - from));
    }
}

static ch_status apply_rows_run(const ch_call *c, ch_kernel_tile t)
{
    const rows_state *s = c->state;
    const void       *hyper = c->in[HYPER + s->indexed];
    ch_ids            ids = ids_of(c, IDS, s->wide_ids);
    ch_grad_rows      grad = {.row = c->in[ROWS + s->indexed], .n = s->n_rows};

    if (s->indexed)
        grad.which = ch__ids(c->in[WHICH], s->wide_which);
    if (t.phase == 0 && t.index < s->tiles)
        copy_part(c, s, t.index);
    else if (!ch__hyper_applies(s->dtype, hyper))
        return CH_OK;
    else if (t.phase == 0)
        ch__groups_sort(&s->groups, ids, t.index - s->tiles, c->scratch);
    else
        ch__rule_rows(s->rule, s->dtype, &s->groups, ids, grad, c->out[0], c->out + 1, hyper,
                      t.index, c->scratch);
    return CH_OK;
}

static ch_status apply_rows_factors(const ch_node *n, ch_factors *f)
{
    const rows_attrs *a = ch__attrs(n);

    if (a->indexed) /* created by the planner, after calls have been partitioned */
        return CH_OK;
    return ch__apply_factors(n, ch__rule_find(a->rule), HYPER, true, false, f);
}

static const ch_kernel apply_rows_plain = {"plain", .prepare = apply_rows_prepare,
                                           .run = apply_rows_run};

const ch_op ch__op_apply_rows = {
    .name = "apply_rows",
    .version = 1,
    .n_in = -1,
    .n_out = -1,
    .flags = CH_OP_ORIGIN,
    .attrs = apply_rows_rows,
    .attrs_bytes = sizeof(rows_attrs),
    .infer = apply_rows_infer,
    .factors = apply_rows_factors,
    .kernels = (const ch_kernel *const[]){&apply_rows_plain, NULL},
    .changed_rows = 1 + IDS,
};

ch_node *ch__apply_rows(ch_rule_kind rule, ch_node *var, ch_node *ids, ch_node *rows,
                        ch_node *hyper, ch_node **slot)
{
    const ch_rule *r = ch__rule(rule);

    return ch__apply_node(__builtin_return_address(0), &ch__op_apply_rows,
                          &(rows_attrs){.rule = r->name}, r, SLOTS,
                          (ch_node *[]){var, ids, rows, hyper}, slot);
}

bool ch__apply_gathered(const ch_node *rows, const ch_node *user, ch_rewrite *w)
{
    const rows_attrs *a = user->op == &ch__op_apply_rows ? ch__attrs(user) : NULL;

    if (a == NULL || a->indexed || user->in[ROWS] != rows)
        return false;
    w->op = user->op;
    w->n_in = user->n_in + 1;
    memcpy(w->in, user->in, WHICH * sizeof(*w->in));
    w->in[WHICH] = rows->in[1];
    w->in[ROWS + 1] = rows->in[0];
    memcpy(w->in + HYPER + 1, user->in + HYPER, (size_t)(user->n_in - HYPER) * sizeof(*w->in));
    *(rows_attrs *)(void *)w->attrs = (rows_attrs){.rule = a->rule, .indexed = true};
    return true;
}

/* ---- marked_ids ---- */

static ch_status marked_ids_infer(ch_infer *c)
{
    if (c->dtype[0] != CH_BOOL || c->in[0].rank != 1)
        return ch__infer_fail(c, "input 0 is %s of rank %d, want a vector of bool",
                              ch_dtype_name(c->dtype[0]), c->in[0].rank);
    return ch__infer_out(c, 0, CH_I64, 1, c->in[0].dim);
}

static ch_status marked_ids_prepare(const ch_node *n, ch_prep *p)
{
    p->n_phases = 1;
    p->tiles[0] = ch__tile_count(ch__count(n), 2);
    return CH_OK;
}

static ch_status marked_ids_run(const ch_call *c, ch_kernel_tile t)
{
    const bool    *mark = c->in[0];
    const int64_t *origin = ch__in_origin(c);
    int64_t       *id = c->out[0], n = ch__count(c->node), from, to;
    int64_t        first = origin != NULL ? origin[0] : 0;

    ch__tile_range(n, ch__tile_count(n, 2), t.index, &from, &to);
    for (int64_t i = from; i < to; i++)
        id[i] = mark[i] ? first + i : -1;
    return CH_OK;
}

static const ch_kernel marked_ids_plain = {"plain", .prepare = marked_ids_prepare,
                                           .run = marked_ids_run};

const ch_op ch__op_marked_ids = {
    .name = "marked_ids",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .flags = CH_OP_NO_GRAD | CH_OP_ORIGIN,
    .infer = marked_ids_infer,
    .factors = ch__factors_elementwise,
    .kernels = (const ch_kernel *const[]){&marked_ids_plain, NULL},
};

ch_node *ch__marked_ids(ch_node *mark)
{
    return ch__node(&ch__op_marked_ids, NULL, 1, &mark);
}

/* ---- merge_rows ---- */

typedef struct merge_attrs {
    ch_dims n_rows; /* one size: the rows of the table; ids are below it */
} merge_attrs;

static const ch_attr merge_rows_rows[] = {
    CH_ATTR_DIMS(merge_attrs, n_rows),
    CH_ATTR_END,
};

static ch_status merge_rows_infer(ch_infer *c)
{
    const merge_attrs *a = c->attrs;
    ch_status          rc = ch__infer_id_rows(c, 0, 1);

    if (rc == CH_OK)
        rc = infer_few_ids(c, 0);
    if (rc == CH_OK)
        rc = ch__infer_check_dims(c, &a->n_rows);
    if (rc != CH_OK)
        return rc;
    if (a->n_rows.rank != 1)
        return ch__infer_fail(c, "n_rows has %d sizes, want 1", a->n_rows.rank);
    if (c->dtype[1] != CH_F32 && c->dtype[1] != CH_F64)
        return ch__infer_fail(c, "rows are %s, want f32 or f64", ch_dtype_name(c->dtype[1]));
    rc = ch__infer_like(c, 0, 0);
    return rc != CH_OK ? rc : ch__infer_like(c, 1, 1);
}

typedef struct merge_state {
    ch_groups groups;
    bool      wide_ids;
    int64_t   id_bytes, bytes;
    int       tiles;
} merge_state;

/* Phases: 0 sorts the ids, and sets all positions to the id -1 and zeros; 1 writes the sum of
 * each group to its first position. */
static ch_status merge_rows_prepare(const ch_node *n, ch_prep *p)
{
    const merge_attrs *a = ch__attrs(n);
    merge_state       *s = ch__prep_state(p, sizeof(*s));
    int64_t            n_ids = n->dims.dim[0].n;

    if (s == NULL)
        return ch__fail_memory("merge_rows");
    s->groups = groups_of(n, a->n_rows.dim[0].n, n_ids > 0 ? ch__count(&n[1]) / n_ids : 0, 2);
    s->wide_ids = n->dtype == CH_I64;
    s->id_bytes = ch__bytes(n);
    s->bytes = ch__bytes(&n[1]);
    s->tiles = ch__move_tiles(s->bytes, s->bytes);
    p->scratch_bytes = ch__groups_scratch(&s->groups);
    p->n_phases = 2;
    p->tiles[0] = s->tiles + s->groups.scatter.chunks;
    p->tiles[1] = s->groups.scatter.tiles;
    return CH_OK;
}

static ch_status merge_rows_run(const ch_call *c, ch_kernel_tile t)
{
    const merge_state *s = c->state;
    ch_ids             ids = ch__ids(c->in[0], s->wide_ids);
    int64_t            from, to;

    if (t.phase == 1) {
        ch__rows_merge(c->node[1].dtype, &s->groups, ids,
                       (ch_grad_rows){.row = c->in[1], .n = s->groups.scatter.n_ids}, c->out[0],
                       c->out[1], t.index, c->scratch);
    } else if (t.index >= s->tiles) {
        ch__groups_sort(&s->groups, ids, t.index - s->tiles, c->scratch);
    } else {
        ch__tile_range(s->id_bytes, s->tiles, t.index, &from, &to);
        memset((char *)c->out[0] + from, 0xff, (size_t)(to - from)); /* -1 */
        ch__tile_range(s->bytes, s->tiles, t.index, &from, &to);
        memset((char *)c->out[1] + from, 0, (size_t)(to - from));
    }
    return CH_OK;
}

/* Columns are divided. Every part computes the same ids, so the largest are the ids. */
static ch_status merge_rows_factors(const ch_node *n, ch_factors *f)
{
    int x[CH_MAX_RANK], rank = n[1].dims.rank;

    for (int k = 0; k < rank; k++)
        x[k] = k == 0 ? ch__factor(f, CH_FIX) : ch__factor_red(f, CH_PARTIAL_MAX);
    ch__factor_map(f, 0, 1, x);
    ch__factor_map(f, 1, rank, x);
    (void)ch__factor_out(f, 1, x);
    return ch__factor_out(f, rank, x);
}

static const ch_kernel merge_rows_plain = {"plain", .prepare = merge_rows_prepare,
                                           .run = merge_rows_run};

const ch_op ch__op_merge_rows = {
    .name = "merge_rows",
    .version = 1,
    .n_in = 2,
    .n_out = 2,
    .attrs = merge_rows_rows,
    .attrs_bytes = sizeof(merge_attrs),
    .infer = merge_rows_infer,
    .factors = merge_rows_factors,
    .kernels = (const ch_kernel *const[]){&merge_rows_plain, NULL},
};

void ch__merge_rows(ch_node *ids, ch_node *rows, ch_dim n_rows, ch_node **out_ids,
                    ch_node **out_rows)
{
    merge_attrs a = {.n_rows = {.rank = 1, .dim = {n_rows}}};
    ch_node    *y = ch__node(&ch__op_merge_rows, &a, 2, ((ch_node *[]){ids, rows}));

    *out_ids = y;
    *out_rows = y != NULL ? ch__out(y, 1) : NULL;
}

/* ---- round_rows ---- */

/* Inputs: a 16-bit table, ids, the same table in f32. */
static ch_status round_rows_infer(ch_infer *c)
{
    ch_status rc = ch__infer_want_ids(c, 1);

    if (rc == CH_OK)
        rc = ch__infer_want_rank(c, 1, 1);
    if (rc != CH_OK)
        return rc;
    if (c->dtype[0] != CH_BF16 && c->dtype[0] != CH_F16)
        return ch__infer_fail(c, "the table is %s, want bf16 or f16",
                              ch_dtype_name(c->dtype[0]));
    if (c->dtype[2] != CH_F32 || c->in[0].rank < 1 || !ch__dims_same(&c->in[0], &c->in[2]))
        return ch__infer_fail(c, "input 2 must be f32 and have the shape of the table");
    return ch__infer_like(c, 0, 0);
}

typedef struct round_state {
    ch_scatter scatter;
    bool       wide_ids;
    int64_t    bytes;
    int        tiles;
} round_state;

static ch_status round_rows_prepare(const ch_node *n, ch_prep *p)
{
    round_state *s = ch__prep_state(p, sizeof(*s));
    int64_t      rows = n->dims.dim[0].n;

    if (s == NULL)
        return ch__fail_memory("round_rows");
    s->scatter = (ch_scatter){.n_ids = n->in[1]->dims.dim[0].n,
                              .n_rows = rows,
                              .width = rows > 0 ? ch__count(n) / rows : 0};
    ch__scatter_cut(&s->scatter, ch__tile_count(s->scatter.n_ids, s->scatter.width + 8));
    s->wide_ids = n->in[1]->dtype == CH_I64;
    s->bytes = ch__bytes(n);
    s->tiles = ch__move_tiles(s->bytes, s->bytes);
    p->scratch_bytes = ch__scatter_scratch(&s->scatter);
    p->n_phases = 2;
    p->tiles[0] = s->tiles + s->scatter.chunks;
    p->tiles[1] = s->scatter.tiles;
    p->over[0] = 1;
    return CH_OK;
}

/* Rounds the row of an id; an id out of range names no row. */
static void round_row(const ch_call *c, const round_state *s, int64_t id)
{
    int64_t width = s->scatter.width;

    if ((uint64_t)id < (uint64_t)s->scatter.n_rows)
        ch__blocks()->narrow[c->node->dtype](
            width, (const void *[]){(const float *)c->in[2] + id * width},
            (uint16_t *)c->out[0] + id * width, NULL);
}

static ch_status round_rows_run(const ch_call *c, ch_kernel_tile t)
{
    const round_state *s = c->state;
    ch_ids             ids = ids_of(c, 1, s->wide_ids);
    int64_t            from, to, n;

    if (t.phase == 0 && t.index >= s->tiles) {
        ch__scatter_sort(&s->scatter, ids, t.index - s->tiles, c->scratch);
    } else if (t.phase == 0 && c->out[0] != c->in[0]) {
        ch__tile_range(s->bytes, s->tiles, t.index, &from, &to);
        memcpy((char *)c->out[0] + from, (const char *)c->in[0] + from, (size_t)(to - from));
    } else if (t.phase == 1) {
        for (int64_t i = 0; i < s->scatter.n_ids && s->scatter.tiles == 1; i++)
            round_row(c, s, ch__id(ids, i));
        for (int chunk = 0; chunk < s->scatter.chunks; chunk++) {
            const uint32_t *at = ch__scatter_owned(&s->scatter, c->scratch, chunk, t.index, &n);

            for (int64_t i = 0; i < n; i++)
                round_row(c, s, ch__id(ids, at[i]));
        }
    }
    return CH_OK;
}

static ch_status round_rows_factors(const ch_node *n, ch_factors *f)
{
    int x[CH_MAX_RANK], ids = ch__factor(f, CH_FIX);

    for (int k = 0; k < n->dims.rank; k++)
        x[k] = ch__factor(f, k == 0 ? CH_IDX : CH_PAR);
    ch__factor_map(f, 0, n->dims.rank, x);
    ch__factor_map(f, 1, 1, &ids);
    ch__factor_map(f, 2, n->dims.rank, x);
    return ch__factor_out(f, n->dims.rank, x);
}

static const ch_kernel round_rows_plain = {"plain", .prepare = round_rows_prepare,
                                           .run = round_rows_run};

const ch_op ch__op_round_rows = {
    .name = "round_rows",
    .version = 1,
    .n_in = 3,
    .n_out = 1,
    .flags = CH_OP_ORIGIN,
    .infer = round_rows_infer,
    .factors = round_rows_factors,
    .kernels = (const ch_kernel *const[]){&round_rows_plain, NULL},
    .changed_rows = 1 + 1,
};

ch_node *ch__round_rows(ch_node *x, ch_node *ids, ch_node *wide)
{
    return ch__node(&ch__op_round_rows, NULL, 3, (ch_node *[]){x, ids, wide});
}
