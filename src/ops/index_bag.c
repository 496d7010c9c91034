/* ops/index_bag.c -- embeddings added up over ragged lists of ids.
 *
 * A ragged list is (ids, row_splits): row r holds ids[row_splits[r]] up to ids[row_splits[r +
 * 1]]. There is room for more ids than there are: what is behind the last split is padding,
 * which is never looked at. In the gradient it has the id -1, which stands for no row.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "graph/step.h"
#include "kernel/bag.h"
#include "ops/box.h"
#include "ops/lookup.h"
#include "ops/ops.h"

/* ---- embedding_bag ---- */

enum { TABLE, IDS, SPLITS, WEIGHTS }; /* inputs; the last may be missing */

typedef struct bag_attrs {
    bool    mean;
    ch_dims rows; /* one size, where it is known how many rows there are; else none */
} bag_attrs;

static const ch_attr embedding_bag_rows[] = {
    CH_ATTR_BOOL(bag_attrs, mean),
    CH_ATTR_DIMS(bag_attrs, rows),
    CH_ATTR_END,
};

/* Weights, if there are any, are like the ids, in the dtype of the table. */
static ch_status check_weights(const ch_infer *c, int weights, ch_dim n_ids, ch_dtype dtype)
{
    if (c->n_in <= weights)
        return CH_OK;
    if (c->n_in > weights + 1)
        return ch__infer_fail(c, "%d inputs, want %d or %d", c->n_in, weights, weights + 1);
    if (c->dtype[weights] != dtype)
        return ch__infer_fail(c, "weights of %s, want %s", ch_dtype_name(c->dtype[weights]),
                              ch_dtype_name(dtype));
    if (c->in[weights].rank != 1 || !ch__dim_same(c->in[weights].dim[0], n_ids))
        return ch__infer_fail(c, "weights must be one for each of the %s ids",
                              ch__dim_text(c, n_ids));
    return CH_OK;
}

/* The number of rows is one less than that of splits. */
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
        return ch__infer_fail(c, "%lld row splits for %lld rows, want one more",
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
        return ch__infer_fail(c, "a scalar is no table");
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
        rc = ch__infer_fail(c, "%d numbers of rows", a->rows.rank);
    if (rc == CH_OK)
        rc = bag_count(c, c->in[SPLITS].dim[0], &d.dim[0]);
    return rc != CH_OK ? rc : ch__infer_dims(c, 0, c->dtype[TABLE], &d);
}

typedef struct bag_state {
    ch_bag bag;
    bool   wide_ids, wide_splits;
    int    tiles;
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
    s->wide_ids = n->in[IDS]->dtype == CH_I64;
    s->wide_splits = n->in[SPLITS]->dtype == CH_I64;
    each = s->bag.n_bags > 0 ? s->bag.n_ids / s->bag.n_bags + 1 : 1;
    s->tiles = ch__tile_count(s->bag.n_bags, each * (s->bag.width + 8));
    p->scratch_bytes = ch__bag_scratch(&s->bag) * (size_t)s->tiles;
    p->n_phases = 1;
    p->tiles[0] = s->tiles;
    return CH_OK;
}

/* Splits of bags [from, to) must be in order, and their ids in range. */
static ch_status check_bags(const ch_call *c, const bag_state *s, int64_t from, int64_t to)
{
    ch_ids  splits = {c->in[SPLITS], s->wide_splits}, ids = {c->in[IDS], s->wide_ids};
    int64_t last = ch__id(splits, from), bad;

    if (from == 0 && last != 0)
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
                "rise and end within the %lld ids",
                (long long)at, (long long)i, (long long)last, (long long)s->bag.n_ids);
        last = at;
    }
    bad = ch__ids_check(ids, ch__id(splits, from), last, s->bag.n_rows);
    return bad < 0 ? CH_OK : ch__fail_id(c, ids, bad, s->bag.n_rows);
}

static ch_status embedding_bag_run(const ch_call *c, ch_piece t)
{
    const bag_state *s = c->state;
    const void      *weights = c->node->n_in > WEIGHTS ? c->in[WEIGHTS] : NULL;
    int64_t          from, to;
    ch_status        rc;

    ch__tile_range(s->bag.n_bags, s->tiles, t.index, &from, &to);
    rc = check_bags(c, s, from, to);
    if (rc != CH_OK)
        return rc;
    ch__bag_sum(&s->bag, (ch_ids){c->in[SPLITS], s->wide_splits},
                (ch_ids){c->in[IDS], s->wide_ids}, weights, c->in[TABLE], from, to, c->out[0],
                (char *)c->scratch + ch__bag_scratch(&s->bag) * (size_t)t.index);
    return CH_OK;
}

static void embedding_bag_grad(ch_step *s, const ch_node *n, ch_node *const dout[],
                               ch_node *din[]);

static ch_status embedding_bag_factors(const ch_node *n, ch_factors *f)
{
    int table[CH_MAX_RANK], out[CH_MAX_RANK];
    int list = ch__factor(f, CH_FIX), splits = ch__factor(f, CH_FIX);

    table[0] = ch__factor(f, CH_IDX);
    out[0] = splits;
    for (int k = 1; k < n->dims.rank; k++)
        table[k] = out[k] = ch__factor(f, CH_PAR);
    ch__factor_map(f, TABLE, n->dims.rank, table);
    ch__factor_map(f, IDS, 1, &list);
    ch__factor_map(f, SPLITS, 1, &splits);
    if (n->n_in > WEIGHTS)
        ch__factor_map(f, WEIGHTS, 1, &list);
    return ch__factor_out(f, n->dims.rank, out);
}

static const ch_kernel embedding_bag_plain = {"plain", ch__always, embedding_bag_prepare,
                                              embedding_bag_run, NULL};

const ch_op ch__op_embedding_bag = {
    .name = "embedding_bag",
    .version = 1,
    .n_in = -1,
    .n_out = 1,
    .flags = CH_OP_CAN_FAIL,
    .attrs = embedding_bag_rows,
    .attrs_bytes = sizeof(bag_attrs),
    .infer = embedding_bag_infer,
    .grad = embedding_bag_grad,
    .factors = embedding_bag_factors,
    .kernels = (const ch_kernel *const[]){&embedding_bag_plain, NULL},
};

static ch_node *bag_of(ch_node *table, ch_node *ids, ch_node *splits, ch_node *weights,
                       bool mean, const ch_dim *rows)
{
    bag_attrs a = {.mean = mean};

    if (rows != NULL)
        a.rows = (ch_dims){.rank = 1, .dim = {*rows}};
    return ch__node(&ch__op_embedding_bag, &a, weights != NULL ? 4 : 3,
                    ((ch_node *[]){table, ids, splits, weights}));
}

/* ---- bag_index: which bag an id is in; -1: none ---- */

typedef struct bag_index_attrs {
    ch_dims n_ids; /* one size */
} bag_index_attrs;

static const ch_attr bag_index_rows[] = {
    CH_ATTR_DIMS(bag_index_attrs, n_ids),
    CH_ATTR_END,
};

static ch_status bag_index_infer(ch_infer *c)
{
    const bag_index_attrs *a = c->attrs;
    ch_status              rc = ch__infer_want_ids(c, 0);

    if (rc == CH_OK)
        rc = ch__infer_want_rank(c, 0, 1);
    if (rc == CH_OK)
        rc = ch__infer_check_dims(c, &a->n_ids);
    if (rc == CH_OK && a->n_ids.rank != 1)
        rc = ch__infer_fail(c, "%d numbers of ids, want 1", a->n_ids.rank);
    return rc != CH_OK ? rc : ch__infer_dims(c, 0, c->dtype[0], &a->n_ids);
}

static ch_status bag_index_prepare(const ch_node *n, ch_prep *p)
{
    bag_state *s = ch__prep_state(p, sizeof(*s));
    int64_t    n_splits = ch__count(n->in[0]);

    if (s == NULL)
        return ch__fail_memory("bag_index");
    s->bag = (ch_bag){.n_bags = n_splits > 0 ? n_splits - 1 : 0, .n_ids = ch__count(n)};
    s->wide_splits = n->dtype == CH_I64;
    s->tiles = ch__tile_count(s->bag.n_ids, 8);
    p->n_phases = 1;
    p->tiles[0] = s->tiles;
    return CH_OK;
}

static ch_status bag_index_run(const ch_call *c, ch_piece t)
{
    const bag_state *s = c->state;
    int64_t          from, to;

    ch__tile_range(s->bag.n_ids, s->tiles, t.index, &from, &to);
    ch__bag_index(&s->bag, (ch_ids){c->in[0], s->wide_splits}, from, to, c->out[0]);
    return CH_OK;
}

static const ch_kernel bag_index_plain = {"plain", ch__always, bag_index_prepare, bag_index_run,
                                          NULL};

const ch_op ch__op_bag_index = {
    .name = "bag_index",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .flags = CH_OP_NO_GRAD,
    .attrs = bag_index_rows,
    .attrs_bytes = sizeof(bag_index_attrs),
    .infer = bag_index_infer,
    .kernels = (const ch_kernel *const[]){&bag_index_plain, NULL},
};

/* ---- the gradient, and the function ---- */

/* One number for each row: the product of a and b, both (rows, ...), summed. */
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

/* x (rows) as (rows, 1, ...), to go with `like` (rows, ...). */
static ch_node *as_column(ch_node *x, const ch_node *like)
{
    ch_dims d = like->dims;

    for (int k = 1; k < d.rank; k++)
        d.dim[k] = ch__dim(1);
    return ch__reshape_dims(x, &d);
}

/* The weights of each bag added up, as (rows, 1, ...); 1 where that is 0, to divide by. */
static ch_node *bag_weights(const ch_node *bags, ch_node *weights, ch_node *splits)
{
    ch_node *ids = ch_range_like(weights, 0, CH_I64);
    ch_node *sum = bag_of(weights, ids, splits, NULL, false, &bags->dims.dim[0]);

    sum = as_column(sum, bags);
    return ch_select(ch_equal(sum, ch__full_like(sum, 0)), ch__full_like(sum, 1), sum);
}

/* The gradient of a mean is that of a sum, divided by how many ids there are. They are counted
 * in f32 at least: 16 bits do not hold their number. */
static ch_node *divided(ch_step *s, ch_node *d, ch_node *splits, ch_dim n_ids)
{
    ch_dtype dtype = d->dtype, wide = ch__dtype_is_half(dtype) ? CH_F32 : dtype;
    ch_node *ones = ch__fill_dims(s, wide, &(ch_dims){.rank = 1, .dim = {n_ids}}, 1);

    return ch_cast(ch_div(ch_cast(d, wide), bag_weights(d, ones, splits)), dtype);
}

/* Each id's row is its bag's, looked up: an update of rows needs but the bags' and the index.
 * What is in no bag has the id -1, a row of zeros and the weight 0. */
static void embedding_bag_grad(ch_step *s, const ch_node *n, ch_node *const dout[],
                               ch_node *din[])
{
    const bag_attrs *a = ch__attrs(n);
    ch_node         *table = n->in[TABLE], *splits = n->in[SPLITS], *ids = n->in[IDS];
    ch_dim           n_ids = ids->dims.dim[0];
    bag_index_attrs  index_attrs = {{.rank = 1, .dim = {n_ids}}};
    ch_node         *bag = ch__node(&ch__op_bag_index, &index_attrs, 1, &splits);
    ch_node         *d = a->mean ? divided(s, dout[0], splits, n_ids) : dout[0];
    ch_node         *in_none = ch_less(bag, ch__full_like(bag, 0)), *rows;

    ids = ch_select(in_none, ch__full_like(ids, -1), ids);
    rows = ch__gather_or_zero(d, bag);
    if (n->n_in > WEIGHTS && rows != NULL) {
        ch_node *w = n->in[WEIGHTS];

        din[WEIGHTS] = row_products(ch__gather_or_zero(table, ids), rows);
        w = ch_select(in_none, ch__full_like(w, 0), w);
        rows = ch_mul(rows, as_column(w, rows));
    }
    din[TABLE] = ch__sparse_rows(ids, rows, table->dims.dim[0]);
}

ch_node *ch_embedding_bag(ch_node *table, ch_node *ids, ch_node *row_splits,
                          const ch_bag_options *opt)
{
    static const ch_bag_options none;
    ch_step                    *s = table != NULL ? ch_node_step(table) : NULL;
    const void                 *before;
    const ch_dim               *rows = NULL;
    bool                        mean;
    ch_node                    *y;

    if (s == NULL || ch_step_status(s) != CH_OK)
        return NULL;
    opt = opt != NULL ? opt : &none;
    if (opt->combiner != CH_COMBINE_SUM && opt->combiner != CH_COMBINE_MEAN) {
        ch_step_fail(s, "embedding_bag: combiner %d, want CH_COMBINE_SUM or CH_COMBINE_MEAN",
                     (int)opt->combiner);
        return NULL;
    }
    mean = opt->combiner == CH_COMBINE_MEAN;
    if (opt->like != NULL && opt->like->dims.rank > 0)
        rows = &opt->like->dims.dim[0];
    before = ch__step_begin(s);
    y = bag_of(table, ids, row_splits, opt->weights, mean && opt->weights == NULL, rows);
    if (y != NULL && mean && opt->weights != NULL)
        y = ch_div(y, bag_weights(y, opt->weights, row_splits));
    ch__step_end(s, before);
    return y;
}
