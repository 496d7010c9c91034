/* kernel/attention.c -- scaled dot-product attention in blocks of queries.
 *
 * Forward, for a block of rows:             The gradient, for all blocks of a head, in order:
 *     scores = q . k'                           scores and weights as in the forward pass
 *     weights = softmax(scores)                 dw = do . v';  dv += weights' . do
 *     o = weights . v                           ds = scale * softmax_grad(weights, dw)
 *                                               dq = ds . k;   dk += ds' . q
 *
 * ch_attention_plan is the plan: block sizes, opened matrix products and the layout of the
 * scratch memory. It is read-only while tiles run. `struct block` holds the pointers of a block
 * while it is computed. The caller is ops/attention.c.
 *
 * Invariants:
 *   1. A tile writes only its own part of the scratch memory and the results of its own units.
 *   2. The sums over blocks of a head run in a fixed order, so that results do not depend on
 *      the number of threads.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/attention.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "kernel/widen.h"

enum {
    /* Elements of a block of scores, chosen so that the block fits the second-level cache. */
    SCORES = 256 << 10,
    MIN_ROWS = 16,
    MAX_ROWS = 128,
    CAUSAL_KEYS = 128,
    MAX_TILES = 16,
    /* Multiplications of the forward pass that are worth a tile. */
    TILE_WORK = 2 << 20
};

/* The products of the opening comment, in its order: scores, o, dw, dv, dq, dk. */
enum { QK, WV, DOV, WDO, DSK, DSQ };

static bool is_half(const ch_attention_plan *a)
{
    return a->compute != a->dims.dtype;
}

/* ---- opening ---- */

static ch_gemm_dims product_dims(const ch_attention_plan *a, int which, int64_t rows,
                                 int64_t keys, bool add)
{
    const ch_attention_dims *d = &a->dims;
    int64_t                  inner = which == QK || which == DSK || which == DSQ ? d->d : d->e;
    ch_gemm_dims             g = {.dtype = a->compute, .batch = 1, .add = add};

    switch (which) {
    case QK: /* (rows, inner) . (keys, inner)' */
    case DOV:
        g.m = rows, g.n = keys, g.k = inner;
        g.lda = g.ldb = inner;
        g.ldc = a->step;
        g.tb = true;
        break;
    case WV: /* (rows, keys) . (keys, inner) */
    case DSK:
        g.m = rows, g.n = inner, g.k = keys;
        g.lda = a->step;
        g.ldb = g.ldc = inner;
        break;
    default: /* (rows, keys)' . (rows, inner) */
        g.m = keys, g.n = inner, g.k = rows;
        g.lda = a->step;
        g.ldb = g.ldc = inner;
        g.ta = true;
        break;
    }
    return g;
}

/* Returns true if the computation uses this variant of a product. A sum over blocks of keys
 * (WV, DSK) starts without adding at the first block. A sum over blocks of rows (WDO, DSQ)
 * always adds, because its result is zeroed before. */
static bool is_used(const ch_attention_plan *a, int which, bool last_keys, bool add)
{
    if (!a->is_gradient && which != QK && which != WV)
        return false;
    if (a->is_gradient && which == WV)
        return false;
    if (which == QK || which == DOV)
        return !add;
    if (which == WDO || which == DSQ)
        return add;
    return add ? a->n_keys > 1 : !last_keys || a->n_keys == 1;
}

static ch_status open_product(ch_attention_plan *a, int which, int last_rows, int last_keys,
                              int add, size_t *most)
{
    ch_attention_product *p = &a->product[which][last_rows][last_keys][add];
    int64_t               rows = last_rows ? a->dims.t - (a->n_rows - 1) * a->rows : a->rows;
    int64_t               keys = last_keys ? a->dims.s - (a->n_keys - 1) * a->keys : a->keys;
    size_t                bytes = 0;
    ch_status             rc;

    if ((!last_rows && a->n_rows == 1) || (!last_keys && a->n_keys == 1) ||
        !is_used(a, which, last_keys != 0, add != 0))
        return CH_OK;
    p->dims = product_dims(a, which, rows, keys, add != 0);
    p->engine = ch__gemm_for(&p->dims);
    rc = p->engine->open(&p->dims, &p->state, &bytes);
    if (rc != CH_OK)
        p->engine = NULL;
    *most = bytes > *most ? bytes : *most;
    return rc;
}

static void plan_blocks(ch_attention_plan *a)
{
    const ch_attention_dims *d = &a->dims;
    int64_t                  fit = SCORES / (d->s > 0 ? d->s : 1), heads = d->batch * d->heads;
    double                   work;

    a->rows = fit < MIN_ROWS ? MIN_ROWS : fit > MAX_ROWS ? MAX_ROWS : fit / MIN_ROWS * MIN_ROWS;
    a->rows = ch__min(a->rows, d->t);
    a->keys = d->causal ? ch__min(CAUSAL_KEYS, d->s) : d->s;
    a->n_rows = a->rows > 0 ? ch__units(d->t, a->rows) : 0;
    a->n_keys = a->keys > 0 ? ch__units(d->s, a->keys) : 0;
    a->step = ch__units(d->s, 16) * 16;
    a->n_units = a->is_gradient ? heads : heads * a->n_rows;
    work = (double)heads * (double)d->t * (double)d->s * (double)(d->d + d->e) / TILE_WORK;
    work = work > MAX_TILES ? MAX_TILES : work;
    work = work > (double)a->n_units ? (double)a->n_units : work;
    a->n_tiles = work < 1 ? 1 : (int)work;
}

/* Returns the bytes for the operands and results of 16-bit floats when they are widened to f32:
 * of a head for the gradient, of a block of queries otherwise. Includes a row of the mask. Each
 * array is aligned, hence the slack of 8 * CH_ALIGN. */
static size_t wide_bytes(const ch_attention_plan *a)
{
    const ch_attention_dims *d = &a->dims;
    int64_t                  rows = a->is_gradient ? d->t : a->rows;
    int64_t                  floats = (rows + d->s) * (d->d + d->e) + d->s;

    if (a->is_gradient)
        floats += rows * d->d + d->s * (d->d + d->e);
    return ch__aligned((size_t)floats * sizeof(float)) + (size_t)8 * CH_ALIGN;
}

ch_status ch__attention_open(ch_attention_plan *a, const ch_attention_dims *d, bool is_gradient)
{
    size_t    most = 0;
    ch_status rc = CH_OK;

    memset(a, 0, sizeof(*a));
    a->dims = *d;
    a->is_gradient = is_gradient;
    a->compute = d->dtype == CH_F64 ? CH_F64 : CH_F32;
    a->loops = ch__rows_of(a->compute, 1, d->s).loops;
    plan_blocks(a);
    if (a->n_rows > 0 && a->n_keys > 0 && d->batch * d->heads > 0)
        for (int which = 0; which < CH_ATTENTION_PRODUCTS; which++)
            for (int i = 0; i < 8 && rc == CH_OK; i++) /* all variants of the product */
                rc = open_product(a, which, i >> 2, i >> 1 & 1, i & 1, &most);
    if (rc != CH_OK) {
        ch__attention_close(a);
        return rc;
    }
    a->scores_bytes = ch__aligned((size_t)(a->rows * a->step) * ch_dtype_bytes(a->compute));
    a->wide_at = a->scores_bytes * (is_gradient ? 2 : 1);
    a->product_at = a->wide_at + (is_half(a) ? wide_bytes(a) : 0);
    a->tile_bytes = a->product_at + ch__aligned(most) + CH_ALIGN; /* never 0 bytes */
    return CH_OK;
}

void ch__attention_close(ch_attention_plan *a)
{
    ch_attention_product *p = &a->product[0][0][0][0];

    for (int i = 0; i < CH_ATTENTION_PRODUCTS * 8; i++)
        if (p[i].engine != NULL)
            p[i].engine->close(p[i].state);
}

size_t ch__attention_scratch_bytes(const ch_attention_plan *a)
{
    return a->tile_bytes * (size_t)a->n_tiles;
}

/* ---- a block of queries ---- */

/* The operands of a block, in the compute type, and its scratch memory. */
typedef struct block {
    /* q and d (do) of the queries of this block; k and v of all keys. */
    const char *q, *k, *v, *d;
    const char *mask;                  /* mask of this head; NULL: none */
    char       *o, *dq, *dk, *dv;      /* results, laid out like q, k and v */
    char       *scores, *gemm_scratch; /* scratch: arrays of scores; of the products */
    char       *mask_buffer;           /* a widened row of the mask */
    int64_t     row, rows;
    int64_t     offset; /* query i may see the keys 0 .. i + offset */
} block;

static int64_t size_of(const ch_attention_plan *a)
{
    return (int64_t)ch_dtype_bytes(a->compute);
}

/* Returns the number of keys that query i may see. */
static int64_t seen_by(const ch_attention_plan *a, const block *b, int64_t i)
{
    int64_t n = i + b->offset + 1;

    if (!a->dims.causal)
        return a->dims.s;
    return n < 0 ? 0 : ch__min(n, a->dims.s);
}

/* Returns the number of blocks of keys that at least one query of the block may see. */
static int64_t key_blocks(const ch_attention_plan *a, const block *b)
{
    return a->n_keys > 0 ? ch__units(seen_by(a, b, b->row + b->rows - 1), a->keys) : 0;
}

static ch_status multiply(const ch_attention_plan *a, const block *b, int which, int64_t j,
                          bool add, const char *x, const char *y, char *z)
{
    bool last_rows = b->row + b->rows == a->dims.t, last_keys = j == a->n_keys - 1;
    const ch_attention_product *p = &a->product[which][last_rows][last_keys][add];

    return p->engine->run(&p->dims, p->state, x, y, z, b->gemm_scratch);
}

/* Computes (rows, inner) . (keys, inner)' into scores. */
static ch_status into_scores(const ch_attention_plan *a, const block *b, int which,
                             int64_t inner, const char *x, const char *y, char *scores)
{
    int64_t   size = size_of(a), n = key_blocks(a, b);
    ch_status rc = CH_OK;

    for (int64_t j = 0; j < n && rc == CH_OK; j++)
        rc = multiply(a, b, which, j, false, x, y + j * a->keys * inner * size,
                      scores + j * a->keys * size);
    return rc;
}

/* Computes (rows, keys) . (keys, inner), summed over the blocks of keys. */
static ch_status out_of_scores(const ch_attention_plan *a, const block *b, int which,
                               int64_t inner, const char *scores, const char *y, char *z)
{
    int64_t   size = size_of(a), n = key_blocks(a, b);
    ch_status rc = CH_OK;

    if (n == 0)
        memset(z, 0, (size_t)(b->rows * inner * size));
    for (int64_t j = 0; j < n && rc == CH_OK; j++)
        rc = multiply(a, b, which, j, j > 0, scores + j * a->keys * size,
                      y + j * a->keys * inner * size, z);
    return rc;
}

/* Adds (rows, keys)' . (rows, inner) to z. */
static ch_status add_by_key(const ch_attention_plan *a, const block *b, int which,
                            int64_t inner, const char *scores, const char *y, char *z)
{
    int64_t   size = size_of(a), n = key_blocks(a, b);
    ch_status rc = CH_OK;

    for (int64_t j = 0; j < n && rc == CH_OK; j++)
        rc = multiply(a, b, which, j, true, scores + j * a->keys * size, y,
                      z + j * a->keys * inner * size);
    return rc;
}

static const ch_score_loops *score_loops(const ch_attention_plan *a)
{
    static const ch_score_table *const levels[] = CH_SIMD_LIST(ch__score_table);
    const ch_score_table              *t = levels[ch__simd_level()];

    return a->compute == CH_F64 ? &t->f64 : &t->f32;
}

/* Returns true if at least one of n scores is not -infinity. */
static bool has_visible_key(const ch_attention_plan *a, int64_t n, const void *row)
{
    const float  *x = row;
    const double *y = row;

    for (int64_t i = 0; i < n; i++)
        if (a->compute == CH_F64 ? y[i] != -(double)INFINITY : x[i] != -INFINITY)
            return true;
    return false;
}

/* Returns the mask of query i, NULL if there is none. A mask that will be added is in the
 * compute type. */
static const void *mask_row(const ch_attention_plan *a, const block *b, int64_t i, int64_t n)
{
    const ch_attention_dims *d = &a->dims;
    const char              *row;

    if (b->mask == NULL)
        return NULL;
    row = b->mask + i * d->mask_step[2] * (int64_t)ch_dtype_bytes(d->mask_dtype);
    if (d->mask_dtype == CH_BOOL || !is_half(a))
        return row;
    return ch__as_f32(d->mask_dtype, d->mask_step[3] != 0 ? n : 1, row, (void *)b->mask_buffer);
}

/* Turns the scores of row i of the block into weights. The weights of keys that the query may
 * not see are 0. */
static void weigh_row(const ch_attention_plan *a, const block *b, int64_t i, char *row)
{
    const ch_attention_dims *d = &a->dims;
    const ch_score_loops    *l = score_loops(a);
    int64_t                  size = size_of(a), n = seen_by(a, b, b->row + i);
    int64_t                  all = ch__min(key_blocks(a, b) * a->keys, d->s);
    const void              *mask = mask_row(a, b, b->row + i, n);

    if (mask == NULL)
        l->scale(n, row, d->scale);
    else if (d->mask_dtype == CH_BOOL)
        l->hide(n, row, d->scale, mask, d->mask_step[3]);
    else
        l->add(n, row, d->scale, mask, d->mask_step[3]);
    if (mask != NULL && !has_visible_key(a, n, row))
        n = 0;
    if (n > 0)
        a->loops->softmax(n, row, row);
    memset(row + n * size, 0, (size_t)((all - n) * size));
}

/* Computes the weights of a block of queries into b->scores. */
static ch_status weigh(const ch_attention_plan *a, const block *b)
{
    int64_t   stride = a->step * size_of(a);
    ch_status rc = into_scores(a, b, QK, a->dims.d, b->q, b->k, b->scores);

    for (int64_t i = 0; i < b->rows && rc == CH_OK; i++)
        weigh_row(a, b, i, b->scores + i * stride);
    return rc;
}

static ch_status backward_block(const ch_attention_plan *a, const block *b)
{
    int64_t   size = size_of(a), all = ch__min(key_blocks(a, b) * a->keys, a->dims.s);
    char     *dw = b->scores + a->scores_bytes;
    ch_status rc = weigh(a, b);

    if (rc == CH_OK)
        rc = into_scores(a, b, DOV, a->dims.e, b->d, b->v, dw);
    if (rc == CH_OK)
        rc = add_by_key(a, b, WDO, a->dims.e, b->scores, b->d, b->dv);
    for (int64_t i = 0; i < b->rows && rc == CH_OK; i++) {
        char *to = dw + i * a->step * size;

        a->loops->softmax_grad(all, b->scores + i * a->step * size, to, to);
        score_loops(a)->scale(all, to, a->dims.scale);
    }
    if (rc == CH_OK)
        rc = out_of_scores(a, b, DSK, a->dims.d, dw, b->k, b->dq);
    if (rc == CH_OK)
        rc = add_by_key(a, b, DSQ, a->dims.d, dw, b->q, b->dk);
    return rc;
}

/* ---- tiles ---- */

/* Allocates n elements of scratch memory at *at and advances *at. */
static char *alloc(const ch_attention_plan *a, int64_t n, char **at)
{
    char *buffer = *at;

    *at += ch__aligned((size_t)(n * size_of(a)));
    return buffer;
}

/* Returns elements [from, from + n) of operand x in the compute type: x itself, or a widened
 * copy. */
static const char *operand(const ch_attention_plan *a, const void *x, int64_t from, int64_t n,
                           char **at)
{
    const char *src = (const char *)x + from * (int64_t)ch_dtype_bytes(a->dims.dtype);

    if (!is_half(a))
        return src;
    return (const char *)ch__as_f32(a->dims.dtype, n, src, (void *)alloc(a, n, at));
}

/* Returns where to compute elements [from, from + n) of result y: in y, or in scratch memory if
 * they must be rounded to 16 bits. finish() must be called afterwards. */
static char *result(const ch_attention_plan *a, void *y, int64_t from, int64_t n, char **at)
{
    if (is_half(a))
        return alloc(a, n, at);
    return (char *)y + from * (int64_t)ch_dtype_bytes(a->dims.dtype);
}

/* Rounds a result that was computed in scratch memory into y. Does nothing if it was computed
 * in y. */
static void finish(const ch_attention_plan *a, const char *computed, void *y, int64_t from,
                   int64_t n)
{
    if (is_half(a))
        ch__from_f32(a->dims.dtype, n, (const void *)computed,
                     (char *)y + from * (int64_t)ch_dtype_bytes(a->dims.dtype));
}

/* Returns a block with the scratch memory of a tile and the mask of a head. Sets *at to the
 * free part of the scratch memory. */
static block block_of(const ch_attention_plan *a, int tile, int64_t head, const void *mask,
                      char *scratch, char **at)
{
    const ch_attention_dims *d = &a->dims;
    char                    *own = scratch + (size_t)tile * a->tile_bytes;
    block                    b = {.scores = own, .gemm_scratch = own + a->product_at};
    int64_t to = head / d->heads * d->mask_step[0] + head % d->heads * d->mask_step[1];

    *at = own + a->wide_at;
    if (is_half(a))
        b.mask_buffer = alloc(a, d->s, at);
    if (d->has_mask)
        b.mask = (const char *)mask + to * (int64_t)ch_dtype_bytes(d->mask_dtype);
    return b;
}

static ch_status forward_unit(const ch_attention_plan *a, int tile, int64_t offset,
                              int64_t unit, const void *const *in, void *out, char *scratch)
{
    const ch_attention_dims *d = &a->dims;
    int64_t                  head = unit / a->n_rows, row = unit % a->n_rows * a->rows;
    int64_t                  rows = ch__min(a->rows, d->t - row), from = head * d->t + row;
    char                    *at = NULL;
    block                    b = block_of(a, tile, head, in[3], scratch, &at);
    ch_status                rc;

    b.offset = offset;
    b.row = row;
    b.rows = rows;
    b.q = operand(a, in[0], from * d->d, rows * d->d, &at);
    b.k = operand(a, in[1], head * d->s * d->d, d->s * d->d, &at);
    b.v = operand(a, in[2], head * d->s * d->e, d->s * d->e, &at);
    b.o = result(a, out, from * d->e, rows * d->e, &at);
    rc = weigh(a, &b);
    if (rc == CH_OK)
        rc = out_of_scores(a, &b, WV, d->e, b.scores, b.v, b.o);
    finish(a, b.o, out, from * d->e, rows * d->e);
    return rc;
}

ch_status ch__attention_run(const ch_attention_plan *a, int tile, int64_t offset,
                            const void *const *in, void *out, void *scratch)
{
    int64_t   from = a->n_units * tile / a->n_tiles, to = a->n_units * (tile + 1) / a->n_tiles;
    ch_status rc = CH_OK;

    for (int64_t unit = from; unit < to && rc == CH_OK; unit++)
        rc = forward_unit(a, tile, offset, unit, in, out, scratch);
    return rc;
}

static ch_status backward_head(const ch_attention_plan *a, int tile, int64_t offset,
                               int64_t head, const void *const *in, void *const *out,
                               char *scratch)
{
    const ch_attention_dims *d = &a->dims;
    int64_t                  q = d->t * d->d, k = d->s * d->d, v = d->s * d->e, o = d->t * d->e,
            size = size_of(a);
    char     *at = NULL;
    block     b = block_of(a, tile, head, in[4], scratch, &at);
    ch_status rc = CH_OK;

    const char *all_q = operand(a, in[0], head * q, q, &at);
    const char *all_do = operand(a, in[3], head * o, o, &at);
    char       *all_dq = result(a, out[0], head * q, q, &at);

    b.offset = offset;
    b.k = operand(a, in[1], head * k, k, &at);
    b.v = operand(a, in[2], head * v, v, &at);
    b.dk = result(a, out[1], head * k, k, &at);
    b.dv = result(a, out[2], head * v, v, &at);
    memset(b.dk, 0, (size_t)(k * size));
    memset(b.dv, 0, (size_t)(v * size));
    for (b.row = 0; b.row < d->t && rc == CH_OK; b.row += a->rows) {
        b.rows = ch__min(a->rows, d->t - b.row);
        b.q = all_q + b.row * d->d * size;
        b.d = all_do + b.row * d->e * size;
        b.dq = all_dq + b.row * d->d * size;
        rc = backward_block(a, &b);
    }
    finish(a, all_dq, out[0], head * q, q);
    finish(a, b.dk, out[1], head * k, k);
    finish(a, b.dv, out[2], head * v, v);
    return rc;
}

ch_status ch__attention_grad(const ch_attention_plan *a, int tile, int64_t offset,
                             const void *const *in, void *const *out, void *scratch)
{
    int64_t   from = a->n_units * tile / a->n_tiles, to = a->n_units * (tile + 1) / a->n_tiles;
    ch_status rc = CH_OK;

    for (int64_t head = from; head < to && rc == CH_OK; head++)
        rc = backward_head(a, tile, offset, head, in, out, scratch);
    return rc;
}
