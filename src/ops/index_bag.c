/* ops/index_bag.c -- embedding_bag: sums of table rows over ragged lists of ids.
 *
 * A ragged list is (ids, row_splits). Row r, a bag, holds the ids at positions [row_splits[r],
 * row_splits[r + 1]). The list may be longer than the last split; the memory after it is room
 * (graph/room.h), which no kernel reads.
 *
 * The gradient uses ordinary lists without room, called entries. bag_entries converts a ragged
 * list to entries; after the last split an entry has the id -1, which names no row. bag_live
 * and bag_fill convert flat values to the length of entries and back.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "graph/step.h"
#include "kernel/bag.h"
#include "ops/box.h"
#include "ops/lookup.h"
#include "ops/ops.h"

/* ---- embedding_bag ---- */

enum { TABLE, IDS, SPLITS, WEIGHTS }; /* inputs; WEIGHTS is optional */

typedef struct bag_attrs {
    bool    mean;
    ch_dims rows; /* rank 1: the number of bags, if known at recording; rank 0: not known */
} bag_attrs;

static const ch_attr embedding_bag_rows[] = {
    CH_ATTR_BOOL(bag_attrs, mean),
    CH_ATTR_DIMS(bag_attrs, rows),
    CH_ATTR_END,
};

/* Checks input `weights`, if present: one weight for each id, of dtype `dtype`. */
static ch_status check_weights(const ch_infer *c, int weights, ch_dim n_ids, ch_dtype dtype)
{
    if (c->n_in <= weights)
        return CH_OK;
    if (c->n_in > weights + 1)
        return ch__infer_fail(c, "%d inputs, want %d or %d", c->n_in, weights, weights + 1);
    if (c->dtype[weights] != dtype)
        return ch__infer_fail(c, "weights are %s, want %s, the dtype of the table",
                              ch_dtype_name(c->dtype[weights]), ch_dtype_name(dtype));
    if (c->in[weights].rank != 1 || !ch__dim_same(c->in[weights].dim[0], n_ids))
        return ch__infer_fail(
            c, "weights must be a vector, with one weight for each of the %s ids",
            ch__dim_text(c, n_ids));
    return CH_OK;
}

/* Sets *out to the number of bags, which is one less than the number of splits. If the number
 * of splits is a symbol and no attribute gives the number of bags, *out is a new symbol. */
static ch_status bag_count(ch_infer *c, ch_dim splits, ch_dim *out)
{
    const bag_attrs *a = c->attrs;
    ch_dim           rows = ch__dim(splits.n > 0 ? splits.n - 1 : 0);

    if (a->rows.rank == 0) {
        *out = splits.sym != 0 ? ch__infer_symbol(c) : rows;
        return CH_OK;
    }
    *out = a->rows.dim[0];
    if (splits.sym == 0 && out->sym == 0 && out->n != rows.n)
        return ch__infer_fail(c, "there are %lld row splits for %lld rows, want one split more",
                              (long long)splits.n, (long long)out->n);
    return CH_OK;
}

static ch_status embedding_bag_infer(ch_infer *c)
{
    const bag_attrs *a = c->attrs;
    ch_dims          d;
    ch_status        rc;

    if (c->n_in < 3)
        return ch__infer_fail(c, "%d inputs, want 3 or 4", c->n_in);
    d = c->in[TABLE];
    if (d.rank < 1)
        return ch__infer_fail(c, "the table is a scalar, want rank 1 or more");
    rc = ch__infer_want_float(c, TABLE);
    for (int i = IDS; i <= SPLITS && rc == CH_OK; i++) {
        rc = ch__infer_want_ids(c, i);
        if (rc == CH_OK)
            rc = ch__infer_want_rank(c, i, 1);
    }
    if (rc == CH_OK)
        rc = check_weights(c, WEIGHTS, c->in[IDS].dim[0], c->dtype[TABLE]);
    if (rc == CH_OK)
        rc = ch__infer_check_dims(c, &a->rows);
    if (rc == CH_OK && a->rows.rank > 1)
        rc = ch__infer_fail(c, "rows has %d sizes, want at most 1", a->rows.rank);
    if (rc == CH_OK)
        rc = bag_count(c, c->in[SPLITS].dim[0], &d.dim[0]);
    return rc != CH_OK ? rc : ch__infer_dims(c, 0, c->dtype[TABLE], &d);
}

typedef struct bag_state {
    ch_bag  bag;
    int64_t n_table_rows; /* of the whole table */
    bool    wide_ids, wide_splits;
    int     tiles;
} bag_state;

static ch_status embedding_bag_prepare(const ch_node *n, ch_prep *p)
{
    const bag_attrs *a = ch__attrs(n);
    bag_state       *s = ch__prep_state(p, sizeof(*s));
    int64_t          each;

    if (s == NULL)
        return ch__fail_memory("embedding_bag");
    s->bag = (ch_bag){.dtype = n->dtype,
                      .n_rows = n->in[TABLE]->dims.dim[0].n,
                      .n_bags = n->dims.dim[0].n,
                      .n_ids = n->in[IDS]->dims.dim[0].n,
                      .mean = a->mean};
    s->bag.width = s->bag.n_bags > 0 ? ch__count(n) / s->bag.n_bags : 0;
    s->n_table_rows = n->origins != NULL ? n->origins->whole_in.dim[0].n : s->bag.n_rows;
    s->wide_ids = n->in[IDS]->dtype == CH_I64;
    s->wide_splits = n->in[SPLITS]->dtype == CH_I64;
    each = s->bag.n_bags > 0 ? s->bag.n_ids / s->bag.n_bags + 1 : 1;
    s->tiles = ch__tile_count(s->bag.n_bags, each * (s->bag.width + 8));
    p->scratch_bytes = ch__bag_scratch(&s->bag) * (size_t)s->tiles;
    p->n_phases = 1;
    p->tiles[0] = s->tiles;
    return CH_OK;
}

/* Fails unless the splits of bags [from, to) do not fall and the ids of these bags are in
 * range. */
static ch_status check_bags(const ch_call *c, const bag_state *s, int64_t from, int64_t to)
{
    ch_ids splits = ch__ids(c->in[SPLITS], s->wide_splits),
           ids = ch__ids(c->in[IDS], s->wide_ids);
    const int64_t *origin = ch__out_origin(c);
    int64_t        last = ch__id(splits, from);
    int64_t        limit =
                c->node->origins != NULL ? s->n_table_rows : ch__live_rows(c, s->bag.n_rows),
            bad;

    if (from == 0 && last != 0 && (origin == NULL || origin[0] == 0))
        return ch__call_fail(c, CH_INVALID_ARGUMENT,
                             "row split %lld at position 0, want 0: the first row begins with "
                             "the first id",
                             (long long)last);
    for (int64_t i = from; i <= to; i++) {
        int64_t at = ch__id(splits, i);

        if (at < last || at < 0 || at > s->bag.n_ids)
            return ch__call_fail(
                c, CH_INVALID_ARGUMENT,
                "row split %lld at position %lld, after %lld; want splits that "
                "do not fall and stay within the %lld ids",
                (long long)at, (long long)i, (long long)last, (long long)s->bag.n_ids);
        last = at;
    }
    bad = ch__ids_check(ids, ch__id(splits, from), last, limit);
    return bad < 0 ? CH_OK : ch__fail_id(c, ids, bad, limit);
}

static ch_status embedding_bag_run(const ch_call *c, ch_kernel_tile t)
{
    const bag_state *s = c->state;
    const void      *weights = c->node->n_in > WEIGHTS ? c->in[WEIGHTS] : NULL;
    int64_t          from, to;
    ch_status        rc;

    ch__tile_range(s->bag.n_bags, s->tiles, t.index, &from, &to);
    rc = check_bags(c, s, from, to);
    if (rc != CH_OK)
        return rc;
    ch__bag_sum(&s->bag, ch__ids(c->in[SPLITS], s->wide_splits),
                ch__ids_in(c, IDS, s->wide_ids, 0), weights, c->in[TABLE], from, to, c->out[0],
                (char *)c->scratch + ch__bag_scratch(&s->bag) * (size_t)t.index);
    return CH_OK;
}

static void embedding_bag_grad(ch_step *s, const ch_node *n, ch_node *const dout[],
                               ch_node *din[]);

/* A part of the bags needs its splits, and one more. Which ids it needs depends on the splits,
 * so it gets all. A part of the table adds its rows. */
static ch_status embedding_bag_factors(const ch_node *n, ch_factors *f)
{
    int table[CH_MAX_RANK], out[CH_MAX_RANK];

    out[0] = ch__factor(f, CH_PAR);
    table[0] = ch__factor(f, CH_IDX);
    for (int k = 1; k < n->dims.rank; k++)
        table[k] = out[k] = ch__factor(f, CH_PAR);
    ch__factor_map(f, TABLE, n->dims.rank, table);
    ch__factor_map(f, SPLITS, 1, out);
    ch__factor_window(f, SPLITS, 0, (ch_axis_map){1, 1, 0, 1});
    return ch__factor_out(f, n->dims.rank, out);
}

static ch_status embedding_bag_local(const ch_node *n, const ch_call_part *part, void *attrs)
{
    bag_attrs *a = attrs;

    (void)n;
    if (a->rows.rank == 1)
        a->rows.dim[0] = ch__dim(part->out[0].size[0]);
    return CH_OK;
}

static const ch_kernel embedding_bag_plain = {"plain", .prepare = embedding_bag_prepare,
                                              .run = embedding_bag_run};

const ch_op ch__op_embedding_bag = {
    .name = "embedding_bag",
    .version = 1,
    .n_in = -1,
    .n_out = 1,
    .flags = CH_OP_CAN_FAIL | CH_OP_ORIGIN,
    .attrs = embedding_bag_rows,
    .attrs_bytes = sizeof(bag_attrs),
    .infer = embedding_bag_infer,
    .grad = embedding_bag_grad,
    .factors = embedding_bag_factors,
    .local = embedding_bag_local,
    .kernels = (const ch_kernel *const[]){&embedding_bag_plain, NULL},
    .room = 1u << IDS | 1u << WEIGHTS,
    .room_splits = SPLITS + 1,
    .room_filled = 1u << TABLE,
    .room_counted = TABLE + 1,
};

/* Records embedding_bag. `weights` may be NULL. `rows` is the number of bags; NULL: not
 * known. */
static ch_node *bag_of(ch_node *table, ch_node *ids, ch_node *splits, ch_node *weights,
                       bool mean, const ch_dim *rows)
{
    bag_attrs a = {.mean = mean};

    if (rows != NULL)
        a.rows = (ch_dims){.rank = 1, .dim = {*rows}};
    return ch__node(&ch__op_embedding_bag, &a, weights != NULL ? 4 : 3,
                    ((ch_node *[]){table, ids, splits, weights}));
}

/* ---- bag_entries: converts a ragged list to ordinary lists ----
 *
 * For each position of the ragged list, output 0 has its id and output 1 its bag. Both are -1
 * after the last split. The outputs have a size symbol of their own, because their length is
 * the capacity of the list. All elements are defined, so any op may read them. */

static ch_status bag_entries_infer(ch_infer *c)
{
    ch_dims   d = {.rank = 1};
    ch_status rc = CH_OK;

    for (int i = 0; i < 2 && rc == CH_OK; i++) {
        rc = ch__infer_want_ids(c, i);
        if (rc == CH_OK)
            rc = ch__infer_want_rank(c, i, 1);
    }
    if (rc != CH_OK)
        return rc;
    d.dim[0] = c->in[0].dim[0].sym != 0 ? ch__infer_symbol(c) : c->in[0].dim[0];
    rc = ch__infer_dims(c, 0, c->dtype[0], &d);
    return rc == CH_OK ? ch__infer_dims(c, 1, c->dtype[1], &d) : rc;
}

static ch_status bag_entries_prepare(const ch_node *n, ch_prep *p)
{
    bag_state *s = ch__prep_state(p, sizeof(*s));
    int64_t    n_splits = ch__count(n->in[1]);

    if (s == NULL)
        return ch__fail_memory("bag_entries");
    s->bag = (ch_bag){.n_bags = n_splits > 0 ? n_splits - 1 : 0, .n_ids = ch__count(n)};
    s->wide_ids = n->in[0]->dtype == CH_I64;
    s->wide_splits = n->in[1]->dtype == CH_I64;
    s->tiles = ch__tile_count(s->bag.n_ids, 8);
    p->n_phases = 1;
    p->tiles[0] = s->tiles;
    return CH_OK;
}

static ch_status bag_entries_run(const ch_call *c, ch_kernel_tile t)
{
    const bag_state *s = c->state;
    ch_ids           ids = ch__ids(c->in[0], s->wide_ids);
    /* positions in this part of the list */
    ch_ids  splits = ch__ids_out(c, 1, s->wide_splits, 0);
    int64_t from, to, live;

    ch__tile_range(s->bag.n_ids, s->tiles, t.index, &from, &to);
    live = ch__bag_live(&s->bag, splits);
    for (int64_t i = from; i < to; i++) {
        int64_t id = i < live ? ch__id(ids, i) : -1;

        if (s->wide_ids)
            ((int64_t *)c->out[0])[i] = id;
        else
            ((int32_t *)c->out[0])[i] = (int32_t)id;
    }
    ch__bag_index(&s->bag, splits, from, to, c->out[1]);
    return CH_OK;
}

static ch_status bag_entries_factors(const ch_node *n, ch_factors *f)
{
    int entry = ch__factor(f, CH_PAR);

    ch__factor_map(f, 0, 1, &entry);
    (void)ch__factor_out(f, n->dims.rank, &entry);
    return ch__factor_out(f, n->dims.rank, &entry);
}

static const ch_kernel bag_entries_plain = {"plain", .prepare = bag_entries_prepare,
                                            .run = bag_entries_run};

const ch_op ch__op_bag_entries = {
    .name = "bag_entries",
    .version = 1,
    .n_in = 2,
    .n_out = 2,
    .flags = CH_OP_NO_GRAD | CH_OP_ORIGIN,
    .infer = bag_entries_infer,
    .factors = bag_entries_factors,
    .kernels = (const ch_kernel *const[]){&bag_entries_plain, NULL},
    .room = 1u << 0, /* ids */
    .room_splits = 2,
};

ch_node *ch__bag_entries(ch_node *ids, ch_node *splits)
{
    return ch__node(&ch__op_bag_entries, NULL, 2, ((ch_node *[]){ids, splits}));
}

/* ---- bag_live, bag_fill: convert flat values to the length of entries, and back ----
 *
 * bag_live(x, splits, entries) is the flat values x (n, ...) with the length of `entries`; rows
 * after the last split are 0. bag_fill(x, like, splits) is x, which has the length of entries,
 * with the length of the flat values `like`. Each is the gradient of the other. */

static ch_status bag_live_infer(ch_infer *c)
{
    ch_dims   d = c->in[0];
    ch_status rc = ch__infer_want_ids(c, 1);

    if (rc == CH_OK)
        rc = ch__infer_want_rank(c, 1, 1);
    if (rc == CH_OK && (d.rank < 1 || c->in[2].rank < 1))
        rc = ch__infer_fail(c, "a scalar has no rows");
    if (rc != CH_OK)
        return rc;
    if (d.dim[0].sym == 0 && c->in[2].dim[0].sym == 0 &&
        !ch__dim_same(d.dim[0], c->in[2].dim[0]))
        return ch__infer_fail(c, "x has %s rows and there are %s entries, want the same number",
                              ch__dim_text(c, d.dim[0]), ch__dim_text(c, c->in[2].dim[0]));
    d.dim[0] = c->in[2].dim[0];
    return ch__infer_dims(c, 0, c->dtype[0], &d);
}

typedef struct live_state {
    ch_bag bag;
    size_t bytes; /* of a row */
    bool   wide_splits;
    int    tiles;
} live_state;

static ch_status bag_live_prepare(const ch_node *n, ch_prep *p)
{
    live_state *s = ch__prep_state(p, sizeof(*s));
    int64_t     n_splits = ch__count(n->in[1]), rows = n->dims.dim[0].n;

    if (s == NULL)
        return ch__fail_memory("bag_live");
    s->bag = (ch_bag){.n_bags = n_splits > 0 ? n_splits - 1 : 0, .n_ids = rows};
    s->bytes = rows > 0 ? (size_t)(ch__bytes(n) / rows) : 0;
    s->wide_splits = n->in[1]->dtype == CH_I64;
    s->tiles = ch__tile_count(rows, (int64_t)s->bytes / 4 + 1);
    p->n_phases = 1;
    p->tiles[0] = s->tiles;
    return CH_OK;
}

static ch_status bag_live_run(const ch_call *c, ch_kernel_tile t)
{
    const live_state *s = c->state;
    int64_t           from, to, live;
    char             *out = c->out[0];

    ch__tile_range(s->bag.n_ids, s->tiles, t.index, &from, &to);
    live = ch__bag_live(&s->bag, ch__ids_out(c, 1, s->wide_splits, 0));
    live = live < from ? from : live > to ? to : live;
    if (live > from)
        memcpy(out + (size_t)from * s->bytes, (const char *)c->in[0] + (size_t)from * s->bytes,
               (size_t)(live - from) * s->bytes);
    if (to > live)
        memset(out + (size_t)live * s->bytes, 0, (size_t)(to - live) * s->bytes);
    return CH_OK;
}

static ch_node *bag_fill(ch_node *x, ch_node *like, ch_node *splits);

static void bag_live_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = bag_fill(ch__bag_live_rows(dout[0], n->in[1], n->in[2]), n->in[0], n->in[1]);
}

/* The rule of bag_live and bag_fill. Input `like` gives the number of rows only. */
static ch_status rows_factors(const ch_node *n, ch_factors *f, int like, int splits)
{
    int            all[CH_MAX_RANK];
    const ch_dims *d = &n->in[like]->dims;

    for (int k = 0; k < n->dims.rank; k++)
        all[k] = ch__factor(f, CH_PAR);
    ch__factor_map(f, 0, n->dims.rank, all);
    (void)ch__factor_out(f, n->dims.rank, all);
    for (int k = 1; k < CH_MAX_RANK; k++)
        if (k >= n->dims.rank || k >= d->rank || !ch__dim_same(d->dim[k], n->dims.dim[k]))
            all[k] = -1;
    ch__factor_map(f, like, d->rank, all);
    all[0] = -1;
    ch__factor_map(f, splits, 1, all);
    return CH_OK;
}

static ch_status bag_live_factors(const ch_node *n, ch_factors *f)
{
    return rows_factors(n, f, 2, 1);
}

static const ch_kernel bag_live_plain = {"plain", .prepare = bag_live_prepare,
                                         .run = bag_live_run};

const ch_op ch__op_bag_live = {
    .name = "bag_live",
    .version = 1,
    .n_in = 3,
    .n_out = 1,
    .flags = CH_OP_ORIGIN,
    .infer = bag_live_infer,
    .grad = bag_live_grad,
    .factors = bag_live_factors,
    .kernels = (const ch_kernel *const[]){&bag_live_plain, NULL},
    .room = 1u << 0, /* x */
    .room_splits = 2,
};

ch_node *ch__bag_live_rows(ch_node *x, ch_node *splits, ch_node *entries)
{
    return ch__node(&ch__op_bag_live, NULL, 3, ((ch_node *[]){x, splits, entries}));
}

static ch_status bag_fill_infer(ch_infer *c)
{
    ch_dims d = c->in[0];

    if (d.rank < 1 || c->in[1].rank < 1)
        return ch__infer_fail(c, "a scalar has no rows");
    if (d.dim[0].sym == 0 && c->in[1].dim[0].sym == 0 &&
        !ch__dim_same(d.dim[0], c->in[1].dim[0]))
        return ch__infer_fail(c, "there are %s entries and %s rows, want the same number",
                              ch__dim_text(c, d.dim[0]), ch__dim_text(c, c->in[1].dim[0]));
    d.dim[0] = c->in[1].dim[0];
    return ch__infer_dims(c, 0, c->dtype[0], &d);
}

static void bag_fill_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch__bag_live_rows(dout[0], n->in[2], n->in[0]);
}

static ch_status bag_fill_factors(const ch_node *n, ch_factors *f)
{
    return rows_factors(n, f, 1, 2);
}

const ch_op ch__op_bag_fill = {
    .name = "bag_fill",
    .version = 1,
    .n_in = 3,
    .n_out = 1,
    .infer = bag_fill_infer,
    .grad = bag_fill_grad,
    .factors = bag_fill_factors,
    .kernels = (const ch_kernel *const[]){&ch__kernel_view, NULL},
    .room = 1u << 1, /* like */
};

static ch_node *bag_fill(ch_node *x, ch_node *like, ch_node *splits)
{
    return ch__node(&ch__op_bag_fill, NULL, 3, ((ch_node *[]){x, like, splits}));
}

/* ---- gradient and public function of embedding_bag ---- */

/* Returns the dot product of each row of a with the same row of b, as (rows). Both are
 * (rows, ...). */
static ch_node *row_products(ch_node *a, ch_node *b)
{
    ch_node *p = ch_mul(a, b);
    ch_dims  one;

    if (p == NULL)
        return NULL;
    one = p->dims;
    for (int k = 1; k < one.rank; k++)
        one.dim[k] = ch__dim(1);
    p = ch__unbroadcast(p, ch__fill_dims(ch_node_step(p), p->dtype, &one, 0.0));
    one.rank = 1;
    return ch__reshape_dims(p, &one);
}

/* Returns x (rows) as (rows, 1, ...), which broadcasts to `like` (rows, ...). */
static ch_node *as_column(ch_node *x, const ch_node *like)
{
    ch_dims d = like->dims;

    for (int k = 1; k < d.rank; k++)
        d.dim[k] = ch__dim(1);
    return ch__reshape_dims(x, &d);
}

/* Returns the sum of the weights of each bag as (rows, 1, ...), a divisor: where the sum is 0,
 * the result is 1. The sum is the embedding_bag of a table that consists of a single 1. */
static ch_node *bag_weights(const ch_node *bags, ch_node *weights, ch_node *splits)
{
    ch_node *one, *ids, *sum;

    if (bags == NULL || weights == NULL)
        return NULL;
    one = ch_fill(ch_node_step(weights), weights->dtype, ch_shape_of(1), 1);
    ids = ch__fill_dims(ch_node_step(weights), CH_I32, &weights->dims, 0);
    sum = as_column(bag_of(one, ids, splits, weights, false, &bags->dims.dim[0]), bags);
    return ch_select(ch_equal(sum, ch__full_like(sum, 0)), ch__full_like(sum, 1), sum);
}

/* Returns d divided by the number of ids of each bag: the gradient of a mean is that
 * of a sum, divided by this number. The ids are counted in f32 or f64, because a
 * 16-bit float cannot hold large counts. */
static ch_node *divide_by_counts(ch_step *s, ch_node *d, ch_node *splits, ch_dim n_ids)
{
    ch_dtype dtype = d->dtype, wide = ch__dtype_is_half(dtype) ? CH_F32 : dtype;
    ch_node *ones = ch__fill_dims(s, wide, &(ch_dims){.rank = 1, .dim = {n_ids}}, 1);

    return ch_cast(ch_div(ch_cast(d, wide), bag_weights(d, ones, splits)), dtype);
}

/* The gradient of each id's row is the gradient of its bag, which is gathered by the bag index.
 * The planner can absorb this gather in an update (gather_absorb), so that no copy is made. An
 * entry after the last split has the id -1, a row of zeros and the weight 0. */
static void embedding_bag_grad(ch_step *s, const ch_node *n, ch_node *const dout[],
                               ch_node *din[])
{
    const bag_attrs *a = ch__attrs(n);
    ch_node         *table = n->in[TABLE], *splits = n->in[SPLITS];
    ch_node         *ids = ch__bag_entries(n->in[IDS], splits), *d = dout[0], *rows;

    if (ids == NULL)
        return;
    if (a->mean)
        d = divide_by_counts(s, d, splits, ids->dims.dim[0]);
    rows = ch__gather_or_zero(d, ch__out(ids, 1));
    if (n->n_in > WEIGHTS && rows != NULL) {
        ch_node *weights = n->in[WEIGHTS];
        ch_node *of_weights = row_products(ch__gather_or_zero(table, ids), rows);

        din[WEIGHTS] = bag_fill(of_weights, weights, splits);
        rows = ch_mul(rows, as_column(ch__bag_live_rows(weights, splits, ids), rows));
    }
    din[TABLE] = ch__sparse_rows(ids, rows, table->dims.dim[0]);
}

/* Returns the remote variable that `table` reads. Returns NULL if `table` is not the value of a
 * variable at the beginning of the step, or if the variable is local. */
static const ch_resource *remote_of(const ch_node *table)
{
    const ch_read_attrs *a = table->op == ch__roles.read ? ch__attrs(table) : NULL;
    const ch_resource   *r = a != NULL ? &table->graph->resource[a->resource] : NULL;

    return r != NULL && r->is_remote ? r : NULL;
}

/* Replaces a remote table by the rows that the bags need, so that a worker fetches only these
 * rows and their gradient is sparse. Returns the rows; sets *ids to positions in them, and
 * *weights, unless NULL, to weights without room. Ids after the last split become -1, so no
 * server sends a row for them. */
static ch_node *fetch_bag_rows(ch_node *table, ch_node **ids, ch_node *splits,
                               ch_node **weights)
{
    ch_node *entry = ch__bag_entries(ch_cast(*ids, CH_I64), splits), *is_none, *id;
    char     of[128];

    if (entry == NULL)
        return NULL;
    (void)snprintf(of, sizeof(of), "embedding_bag of table %s", remote_of(table)->name);
    is_none = ch_less(ch__out(entry, 1), ch_zeros_like(ch__out(entry, 1)));
    id = ch__check_ids_dim(ch_select(is_none, ch_zeros_like(entry), entry), table->dims.dim[0],
                           of);
    id = ch_select(is_none, ch__full_like(entry, -1), id);
    if (*weights != NULL)
        *weights = ch__bag_live_rows(*weights, splits, entry);
    *ids = ch_range_like(entry, 0, CH_I64);
    return ch__gather_or_zero(table, id);
}

ch_node *ch_embedding_bag(ch_node *table, ch_node *ids, ch_node *row_splits,
                          const ch_bag_options *opt)
{
    static const ch_bag_options none;
    ch_step                    *s = table != NULL ? ch_node_step(table) : NULL;
    const void                 *before;
    const ch_dim               *rows = NULL;
    ch_dim                      known;
    bool                        mean;
    ch_node                    *y, *weights;

    if (s == NULL || ch_step_status(s) != CH_OK)
        return NULL;
    opt = opt != NULL ? opt : &none;
    weights = opt->weights;
    if (opt->combiner != CH_COMBINE_SUM && opt->combiner != CH_COMBINE_MEAN) {
        ch_step_fail(s, "embedding_bag: combiner %d, want CH_COMBINE_SUM or CH_COMBINE_MEAN",
                     (int)opt->combiner);
        return NULL;
    }
    mean = opt->combiner == CH_COMBINE_MEAN;
    if (opt->like != NULL && opt->like->dims.rank > 0)
        rows = &opt->like->dims.dim[0];
    else if (row_splits != NULL && ch__splits_rows(row_splits, &known))
        rows = &known;
    before = ch__step_begin(s);
    if (ids != NULL && row_splits != NULL && ids->dims.rank == 1 && remote_of(table) != NULL)
        table = fetch_bag_rows(table, &ids, row_splits, &weights);
    y = bag_of(table, ids, row_splits, weights, mean && weights == NULL, rows);
    if (y != NULL && mean && weights != NULL)
        y = ch_div(y, bag_weights(y, weights, row_splits));
    ch__step_end(s, before);
    return y;
}
