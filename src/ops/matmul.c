/* ops/matmul.c -- products of matrices, and batches of them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/step.h"
#include "kernel/product.h"
#include "ops/ops.h"

/* ---- matmul: c (..., m, n) = a (..., m, k) . b (..., k, n) ---- */

typedef struct {
    bool ta, tb; /* stored as (..., k, m), (..., n, k) */
} matmul_attrs;

static const ch_attr matmul_rows[] = {
    CH_ATTR_BOOL(matmul_attrs, ta),
    CH_ATTR_BOOL(matmul_attrs, tb),
    CH_ATTR_END,
};

static bool is_number_type(ch_dtype t)
{
    return ch_dtype_is_float(t) || t == CH_I8 || t == CH_U8 || t == CH_I32 || t == CH_I64;
}

/* The k-th size before the last two, counted from the right; 1 where there is none. */
static ch_dim batch_dim(const ch_dims *d, int k)
{
    return k < d->rank - 2 ? d->dim[d->rank - 3 - k] : ch__dim(1);
}

/* numpy's rule over the axes before the last two. */
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

    if (rc != CH_OK)
        return rc;
    if (!is_number_type(c->dtype[0]))
        return ch__infer_fail(c,
                              "%s cannot be multiplied; cast it to a float or an integer first",
                              ch_dtype_name(c->dtype[0]));
    if (a->rank < 2 || b->rank < 2)
        return ch__infer_fail(c, "ranks %d and %d, want 2 or more; expand a vector to a matrix",
                              a->rank, b->rank);
    inner_a = a->dim[a->rank - (t->ta ? 2 : 1)];
    inner_b = b->dim[b->rank - (t->tb ? 1 : 2)];
    if (!ch__dim_same(inner_a, inner_b))
        return ch__infer_fail(c, "inner sizes %s and %s differ%s", ch__dim_text(c, inner_a),
                              ch__dim_text(c, inner_b),
                              t->ta || t->tb ? " (as transposed)" : "");
    rc = matmul_batch(c, &out);
    if (rc != CH_OK)
        return rc;
    out.dim[out.rank - 2] = a->dim[a->rank - (t->ta ? 1 : 2)];
    out.dim[out.rank - 1] = b->dim[b->rank - (t->tb ? 2 : 1)];
    return ch__infer_dims(c, 0, c->dtype[0], &out);
}

static void matmul_plan(const ch_node *n, ch_product *p)
{
    const matmul_attrs *t = ch__attrs(n);

    ch__product_plan(p, n->dtype, ch__shape(n->in[0]), t->ta, ch__shape(n->in[1]), t->tb);
}

static bool matmul_fits(const ch_node *n, const ch_gemm_engine *e)
{
    ch_product p;

    matmul_plan(n, &p);
    return ch__product_fits(&p, e);
}

static ch_status matmul_prepare(const ch_node *n, ch_prep *p, const ch_gemm_engine *e)
{
    ch_product *x = ch__prep_state(p, sizeof(*x));
    ch_status   rc;

    if (x == NULL)
        return ch__fail_memory("matmul");
    matmul_plan(n, x);
    rc = ch__product_open(x, e);
    if (rc != CH_OK) {
        p->state = NULL;
        return rc;
    }
    p->n_phases = 1;
    p->tiles[0] = x->n_tiles;
    p->scratch_bytes = ch__product_scratch_bytes(x);
    return CH_OK;
}

static ch_status matmul_run(const ch_call *c, ch_tile t)
{
    return ch__product_run(c->state, t.index, c->in[0], c->in[1], c->out[0], c->scratch);
}

static void matmul_drop(void *state)
{
    ch__product_close(state);
}

static bool fits_onednn(const ch_node *n)
{
    return matmul_fits(n, &ch__gemm_onednn);
}

static bool fits_blas(const ch_node *n)
{
    return matmul_fits(n, &ch__gemm_blas);
}

static bool fits_own(const ch_node *n)
{
    return matmul_fits(n, &ch__gemm_own);
}

static ch_status prepare_onednn(const ch_node *n, ch_prep *p)
{
    return matmul_prepare(n, p, &ch__gemm_onednn);
}

static ch_status prepare_blas(const ch_node *n, ch_prep *p)
{
    return matmul_prepare(n, p, &ch__gemm_blas);
}

static ch_status prepare_own(const ch_node *n, ch_prep *p)
{
    return matmul_prepare(n, p, &ch__gemm_own);
}

static const ch_kernel matmul_onednn = {"onednn", fits_onednn, prepare_onednn, matmul_run,
                                        matmul_drop};
static const ch_kernel matmul_blas = {"openblas", fits_blas, prepare_blas, matmul_run,
                                      matmul_drop};
static const ch_kernel matmul_own = {"own", fits_own, prepare_own, matmul_run, matmul_drop};

/* x (..., m, n) as (rows, n), if that many rows can be written down. */
static ch_node *as_matrix(ch_node *x)
{
    ch_dims two = {.rank = 2};

    if (x->dims.rank == 2 || !ch__dims_product(&x->dims, 0, x->dims.rank - 1, &two.dim[0]))
        return x;
    two.dim[1] = x->dims.dim[x->dims.rank - 1];
    return ch__reshape_dims(x, &two);
}

/* db of the common case of one b for a batch of a: the batch is summed within the product. */
static ch_node *shared_b_grad(ch_node *a, ch_node *dc, bool tb)
{
    ch_node *a2 = as_matrix(a), *dc2 = as_matrix(dc);

    return tb ? ch_matmul(dc2, true, a2, false) : ch_matmul(a2, true, dc2, false);
}

/* da = dc . b', db = a' . dc; an operand stored transposed gets its gradient so too. */
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
    if (shares_b)
        din[1] = shared_b_grad(a, dc, t->tb);
    else
        din[1] = t->tb ? ch_matmul(dc, true, a, t->ta) : ch_matmul(a, !t->ta, dc, false);
    din[1] = ch__unbroadcast(din[1], b);
}

/* The factors of the batch axes of one operand: none where it repeats. */
static void batch_factors(const ch_dims *d, int rank, const int *batch, int *out)
{
    for (int k = 0; k < d->rank - 2; k++)
        out[k] = ch__dim_is(d->dim[k], 1) ? -1 : batch[rank - d->rank + k];
}

/* m and n may be cut freely; cutting k leaves partial sums for whoever reads c. */
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

        batch_factors(d, rank, all, some);
        some[d->rank - (swap ? 1 : 2)] = i == 0 ? m : k;
        some[d->rank - (swap ? 2 : 1)] = i == 0 ? k : w;
        ch__factor_map(f, i, d->rank, some);
    }
    all[rank - 2] = m;
    all[rank - 1] = w;
    return ch__factor_out(f, rank, all);
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
    .kernels = (const ch_kernel *const[]){&matmul_onednn, &matmul_blas, &matmul_own, NULL},
};

ch_node *ch_matmul(ch_node *a, bool ta, ch_node *b, bool tb)
{
    return ch__node(&ch__op_matmul, (&(matmul_attrs){.ta = ta, .tb = tb}), 2,
                    ((ch_node *[]){a, b}));
}
