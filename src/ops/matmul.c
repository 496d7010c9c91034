/* ops/matmul.c -- matmul: products of matrices and of batches of matrices.
 *
 * The arithmetic is ch_product (kernel/product.h), which divides a product into tiles for one
 * of three engines: oneDNN, our own, and our own with 16-bit floats widened to f32.
 * matmul_absorb turns a product and the bias and activation that follow it into matmul_fused;
 * its kernels apply both to each tile while the tile is in the cache. The functions that find
 * bias and activation are shared with ops/conv.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "graph/step.h"
#include "kernel/epilogue.h"
#include "kernel/product.h"
#include "ops/ops.h"

/* ---- matmul: c (..., m, n) = a (..., m, k) . b (..., k, n) ---- */

typedef struct {
    bool    ta, tb;     /* a is stored as (..., k, m); b is stored as (..., n, k) */
    int64_t activation; /* matmul_fused: of kernel/epilogue.h; otherwise 0 */
} matmul_attrs;

static const ch_attr matmul_rows[] = {
    CH_ATTR_BOOL(matmul_attrs, ta),
    CH_ATTR_BOOL(matmul_attrs, tb),
    CH_ATTR_END,
};

/* Returns batch size k, counted from the right, without the last two axes. Returns 1 if d has
 * fewer batch axes. */
static ch_dim batch_dim(const ch_dims *d, int k)
{
    return k < d->rank - 2 ? d->dim[d->rank - 3 - k] : ch__dim(1);
}

/* Sets the rank and the batch sizes of *out, by numpy's rule over the axes before the last
 * two. */
static ch_status matmul_batch(const ch_infer *c, ch_dims *out)
{
    const ch_dims *a = &c->in[0], *b = &c->in[1];

    out->rank = a->rank > b->rank ? a->rank : b->rank;
    for (int k = 0; k < out->rank - 2; k++) {
        ch_dim x = batch_dim(a, k), y = batch_dim(b, k);

        if (!ch__dim_same(x, y) && !ch__dim_is(x, 1) && !ch__dim_is(y, 1))
            return ch__infer_fail(c, "batch sizes %s and %s do not fit together",
                                  ch__dim_text(c, x), ch__dim_text(c, y));
        out->dim[out->rank - 3 - k] = ch__dim_is(x, 1) ? y : x;
    }
    return CH_OK;
}

static ch_status matmul_infer(ch_infer *c)
{
    const matmul_attrs *t = c->attrs;
    const ch_dims      *a = &c->in[0], *b = &c->in[1];
    ch_dims             out = {0};
    ch_status           rc = ch__infer_want_same(c);
    ch_dim              inner_a, inner_b;
    ch_dtype            dtype = c->dtype[0];

    if (rc != CH_OK)
        return rc;
    if (!ch_dtype_is_float(dtype) && dtype != CH_I8 && dtype != CH_U8 && dtype != CH_I32 &&
        dtype != CH_I64)
        return ch__infer_fail(
            c, "%s cannot be multiplied; cast it to a float, i8, u8, i32 or i64 first",
            ch_dtype_name(c->dtype[0]));
    if (a->rank < 2 || b->rank < 2)
        return ch__infer_fail(c, "ranks %d and %d, want 2 or more; expand a vector to a matrix",
                              a->rank, b->rank);
    inner_a = a->dim[a->rank - (t->ta ? 2 : 1)];
    inner_b = b->dim[b->rank - (t->tb ? 1 : 2)];
    if (!ch__dim_same(inner_a, inner_b))
        return ch__infer_fail(c, "inner sizes %s and %s differ, want the same%s",
                              ch__dim_text(c, inner_a), ch__dim_text(c, inner_b),
                              t->ta || t->tb ? " (with transposed inputs)" : "");
    rc = matmul_batch(c, &out);
    if (rc != CH_OK)
        return rc;
    out.dim[out.rank - 2] = a->dim[a->rank - (t->ta ? 1 : 2)];
    out.dim[out.rank - 1] = b->dim[b->rank - (t->tb ? 2 : 1)];
    return ch__infer_dims(c, 0, c->dtype[0], &out);
}

/* ---- kernels of matmul and matmul_fused ---- */

typedef struct {
    ch_product  product;
    ch_epilogue then; /* matmul_fused only */
} matmul_state;

static void matmul_plan(const ch_node *n, int threads, ch_product *p)
{
    const matmul_attrs *t = ch__attrs(n);

    ch__product_plan(p, n->dtype, ch__shape(n->in[0]), t->ta, ch__shape(n->in[1]), t->tb,
                     threads);
}

static bool matmul_fits(const ch_node *n, const void *engine)
{
    ch_product p;

    matmul_plan(n, 1, &p);
    return ch__product_fits(&p, engine);
}

static ch_status matmul_prepare(const ch_node *n, ch_prep *p)
{
    const matmul_attrs *t = ch__attrs(n);
    matmul_state       *x = ch__prep_state(p, sizeof(*x));
    ch_status           rc;

    if (x == NULL)
        return ch__fail_memory("matmul");
    matmul_plan(n, p->threads, &x->product);
    (void)ch__epilogue_make(n->dtype, n->n_in > 2, t->activation, &x->then);
    rc = ch__product_open(&x->product, p->arg);
    if (rc != CH_OK) {
        p->state = NULL;
        return rc;
    }
    p->n_phases = 1;
    p->tiles[0] = x->product.n_tiles;
    p->scratch_bytes = ch__product_scratch_bytes(&x->product);
    return CH_OK;
}

static ch_status matmul_run(const ch_call *c, ch_kernel_tile t)
{
    const matmul_state *x = c->state;

    return ch__product_run(&x->product, t.index, c->in[0], c->in[1], c->out[0], c->scratch);
}

static ch_status fused_run(const ch_call *c, ch_kernel_tile t)
{
    const matmul_state *x = c->state;
    int64_t             step = x->product.dims.ldc, row, rows, col, cols;
    int64_t             bytes = (int64_t)ch_dtype_bytes(x->then.dtype);
    const char         *bias = x->then.has_bias ? c->in[2] : NULL;
    ch_status           rc = matmul_run(c, t);

    if (rc != CH_OK)
        return rc;
    ch__product_region(&x->product, t.index, &row, &rows, &col, &cols);
    ch__epilogue_run(&x->then, rows, cols, step, (char *)c->out[0] + (row * step + col) * bytes,
                     bias != NULL ? bias + col * bytes : NULL);
    return CH_OK;
}

static void matmul_drop(void *state)
{
    ch__product_close(&((matmul_state *)state)->product);
}

/* The kernels of matmul and matmul_fused, one for each engine. */
static const ch_kernel matmul_onednn = {"onednn",   matmul_fits, matmul_prepare,
                                        matmul_run, matmul_drop, &ch__gemm_onednn};
static const ch_kernel matmul_wide = {"widened",  matmul_fits, matmul_prepare,
                                      matmul_run, matmul_drop, &ch__gemm_wide};
static const ch_kernel matmul_own = {"own",      matmul_fits, matmul_prepare,
                                     matmul_run, matmul_drop, &ch__gemm_own};
static const ch_kernel fused_onednn = {"onednn",  matmul_fits, matmul_prepare,
                                       fused_run, matmul_drop, &ch__gemm_onednn};
static const ch_kernel fused_wide = {"widened", matmul_fits, matmul_prepare,
                                     fused_run, matmul_drop, &ch__gemm_wide};
static const ch_kernel fused_own = {"own",     matmul_fits, matmul_prepare,
                                    fused_run, matmul_drop, &ch__gemm_own};

/* Returns x (..., m, n) as (rows, n). Returns x itself if the number of rows is not a size that
 * ch_dim can express. */
static ch_node *as_matrix(ch_node *x)
{
    ch_dims two = {.rank = 2};

    if (x->dims.rank == 2 || !ch__dims_product(&x->dims, 0, x->dims.rank - 1, &two.dim[0]))
        return x;
    two.dim[1] = x->dims.dim[x->dims.rank - 1];
    return ch__reshape_dims(x, &two);
}

/* da = dc . b', db = a' . dc. The gradient of a transposed operand is transposed too. */
static void matmul_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const matmul_attrs *t = ch__attrs(n);
    ch_node            *a = n->in[0], *b = n->in[1], *dc = dout[0];
    ch_dim              rows;
    bool                shares_b = b->dims.rank == 2 && a->dims.rank > 2 && !t->ta &&
                    ch__dims_product(&a->dims, 0, a->dims.rank - 1, &rows);

    (void)s;
    din[0] = t->ta ? ch_matmul(b, t->tb, dc, true) : ch_matmul(dc, false, b, !t->tb);
    din[0] = ch__unbroadcast(din[0], a);
    if (shares_b) { /* the common case: the product of two matrices sums over the batch */
        a = as_matrix(a);
        dc = as_matrix(dc);
    }
    din[1] = t->tb ? ch_matmul(dc, true, a, t->ta) : ch_matmul(a, !t->ta, dc, false);
    din[1] = ch__unbroadcast(din[1], b);
}

/* m and n may be cut freely. Cutting k leaves partial sums. */
static ch_status matmul_factors(const ch_node *n, ch_factors *f)
{
    const matmul_attrs *t = ch__attrs(n);
    int                 rank = n->dims.rank, all[CH_MAX_RANK], some[CH_MAX_RANK], m, k, w;

    for (int i = 0; i < rank - 2; i++)
        all[i] = ch__factor(f, CH_PAR);
    m = ch__factor(f, CH_PAR);
    k = ch__factor(f, CH_RED);
    w = ch__factor(f, CH_PAR);
    for (int i = 0; i < 2; i++) {
        const ch_dims *d = &n->in[i]->dims;
        bool           swap = i == 0 ? t->ta : t->tb;

        for (int j = 0; j < d->rank - 2; j++) /* -1: the operand is repeated along the axis */
            some[j] = ch__dim_is(d->dim[j], 1) ? -1 : all[rank - d->rank + j];
        some[d->rank - (swap ? 1 : 2)] = i == 0 ? m : k;
        some[d->rank - (swap ? 2 : 1)] = i == 0 ? k : w;
        ch__factor_map(f, i, d->rank, some);
    }
    all[rank - 2] = m;
    all[rank - 1] = w;
    return ch__factor_out(f, rank, all);
}

/* ---- absorbing the bias and the activation that follow a product ---- */

int64_t ch__activation_of(const ch_node *call)
{
    ch_block    b = {0};
    ch_epilogue e;

    if (call->n_in != 1 || call->op->block == NULL || !call->op->block(call, &b))
        return 0;
    for (int64_t i = 1; i < CH_ACTIVATION_COUNT; i++)
        if (ch__epilogue_make(call->in[0]->dtype, false, i, &e) && e.activate == b.fn &&
            call->dtype == call->in[0]->dtype)
            return i;
    return 0;
}

bool ch__is_bias(const ch_dims *bias, const ch_dims *dims)
{
    if (bias->rank < 1 || bias->rank > dims->rank || dims->rank < 1 ||
        !ch__dim_same(bias->dim[bias->rank - 1], dims->dim[dims->rank - 1]))
        return false;
    for (int k = 0; k < bias->rank - 1; k++)
        if (!ch__dim_is(bias->dim[k], 1))
            return false;
    return true;
}

ch_node *ch__bias_of(const ch_node *n, const ch_node *user)
{
    ch_node *other;

    if (user->op != &ch__op_add || user->in[0] == user->in[1])
        return NULL;
    other = user->in[user->in[0] == n];
    return ch__dims_same(&n->dims, &user->dims) && ch__is_bias(&other->dims, &n->dims) ? other
                                                                                       : NULL;
}

static bool matmul_absorb(const ch_node *n, const ch_node *user, ch_rewrite *out)
{
    matmul_attrs t = *(const matmul_attrs *)ch__attrs(n);
    ch_node     *bias = n->n_in == 2 ? ch__bias_of(n, user) : NULL;

    /* If b is a single matrix and a is not transposed, a batch of a is a single matrix of rows,
     * and each tile of c is a block of its rows and columns. */
    if (t.activation != 0 || t.ta || n->in[1]->dims.rank != 2)
        return false;
    t.activation = ch__activation_of(user);
    if (bias == NULL && t.activation == 0)
        return false;
    out->op = &ch__op_matmul_fused;
    memcpy(out->attrs, &t, sizeof(t));
    for (int i = 0; i < n->n_in; i++)
        out->in[i] = n->in[i];
    out->in[n->n_in] = bias;
    out->n_in = n->n_in + (bias != NULL);
    return true;
}

const ch_op ch__op_matmul = {
    .name = "matmul",
    .version = 1,
    .n_in = 2,
    .n_out = 1,
    .flags = CH_OP_SAME_DTYPE,
    .attrs = matmul_rows,
    .attrs_bytes = sizeof(matmul_attrs),
    .infer = matmul_infer,
    .grad = matmul_grad,
    .factors = matmul_factors,
    .absorb = matmul_absorb,
    .kernels = (const ch_kernel *const[]){&matmul_onednn, &matmul_wide, &matmul_own, NULL},
    .room_rows = 3,
    .room_filled = 3,
};

/* ---- matmul_fused: activation(x . w + bias), bias optional; matmul_absorb creates it ---- */

static const ch_attr fused_rows[] = {
    CH_ATTR_BOOL(matmul_attrs, ta),
    CH_ATTR_BOOL(matmul_attrs, tb),
    CH_ATTR_INT(matmul_attrs, activation),
    CH_ATTR_END,
};

static ch_status fused_infer(ch_infer *c)
{
    const matmul_attrs *t = c->attrs;
    ch_epilogue         e;
    ch_status           rc;

    if (c->n_in != 2 && c->n_in != 3)
        return ch__infer_fail(c, "%d inputs, want 2 or 3", c->n_in);
    rc = matmul_infer(c);
    if (rc != CH_OK)
        return rc;
    if (t->ta || c->in[1].rank != 2)
        return ch__infer_fail(c, "input 0 must not be transposed and input 1 must have rank 2");
    if (c->n_in == 3 && !ch__is_bias(&c->in[2], &c->out[0]))
        return ch__infer_fail(
            c, "the bias must have one number for each element of the last axis");
    if (!ch__epilogue_make(c->dtype[0], c->n_in == 3, t->activation, &e))
        return ch__infer_fail(c, "activation %lld does not exist for %s",
                              (long long)t->activation, ch_dtype_name(c->dtype[0]));
    return CH_OK;
}

const ch_op ch__op_matmul_fused = {
    .name = "matmul_fused",
    .version = 1,
    .n_in = -1,
    .n_out = 1,
    .flags = CH_OP_SAME_DTYPE,
    .attrs = fused_rows,
    .attrs_bytes = sizeof(matmul_attrs),
    .infer = fused_infer,
    .replicated = CH_MADE_BY_PASS,
    .absorb = matmul_absorb,
    .kernels = (const ch_kernel *const[]){&fused_onednn, &fused_wide, &fused_own, NULL},
};

ch_node *ch_matmul(ch_node *a, bool ta, ch_node *b, bool tb)
{
    return ch__node(&ch__op_matmul, &(matmul_attrs){.ta = ta, .tb = tb}, 2,
                    (ch_node *[]){a, b});
}

ch_node *ch_linear(ch_node *x, ch_node *w, ch_node *bias)
{
    const void *before;
    ch_node    *y;

    if (x == NULL)
        return NULL;
    before = ch__step_begin(ch_node_step(x));
    y = ch_matmul(x, false, w, false);
    if (bias != NULL)
        y = ch_add(y, bias);
    ch__step_end(ch_node_step(x), before);
    return y;
}
