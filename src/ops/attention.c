/* ops/attention.c -- scaled dot-product attention.
 *
 *    o (b, h, t, e) = softmax(scale * q (b, h, t, d) . k (b, h, s, d)' + mask) . v (b, h, s, e)
 *
 * There are two ops with a kernel each: attention, and attention_grad for the gradients of q, k
 * and v. The second derivative has no kernel. It is recorded with softmax and matmul
 * (written_out), which can be differentiated any number of times. The gradient of a mask that
 * is added to the scores is recorded the same way.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/attention.h"

#include <math.h>

#include "graph/step.h"
#include "ops/ops.h"

typedef struct {
    bool   causal;
    double scale;
} attention_attrs;

static const ch_attr attention_rows[] = {
    CH_ATTR_BOOL(attention_attrs, causal),
    CH_ATTR_FLOAT(attention_attrs, scale),
    CH_ATTR_END,
};

/* ---- shapes: inputs are q, k, v, do (attention_grad only), and optionally the mask ---- */

/* Checks the first n inputs, which are arrays (batch, heads, time, size). */

static ch_status want_arrays(const ch_infer *c, int n)
{
    static const char *const name[] = {"q", "k", "v", "the gradient"};

    if (c->n_in != n && c->n_in != n + 1)
        return ch__infer_fail(c, "%d inputs, want %d or %d", c->n_in, n, n + 1);
    for (int i = 0; i < n; i++) {
        ch_status rc = ch__infer_want_float(c, i);

        if (rc != CH_OK)
            return rc;
        if (c->dtype[i] != c->dtype[0])
            return ch__infer_fail(c, "q and %s are %s and %s; cast one of them", name[i],
                                  ch_dtype_name(c->dtype[0]), ch_dtype_name(c->dtype[i]));
        if (c->in[i].rank != 4)
            return ch__infer_fail(c, "%s has rank %d, want 4: (batch, heads, time, size)",
                                  name[i], c->in[i].rank);
        for (int axis = 0; axis < 2; axis++)
            if (!ch__dim_same(c->in[i].dim[axis], c->in[0].dim[axis]))
                return ch__infer_fail(c, "q and %s have %s and %s %s, want the same number",
                                      name[i], ch__dim_text(c, c->in[0].dim[axis]),
                                      ch__dim_text(c, c->in[i].dim[axis]),
                                      axis == 0 ? "batches" : "heads");
    }
    return CH_OK;
}

/* Fails unless input i, the mask, broadcasts to (batch, heads, t, s). */
static ch_status want_mask(const ch_infer *c, int i)
{
    const ch_dims *m = &c->in[i];
    ch_dim         to[] = {c->in[0].dim[0], c->in[0].dim[1], c->in[0].dim[2], c->in[1].dim[2]};

    if (c->dtype[i] != CH_BOOL && c->dtype[i] != c->dtype[0])
        return ch__infer_fail(c, "the mask is %s, want bool or %s", ch_dtype_name(c->dtype[i]),
                              ch_dtype_name(c->dtype[0]));
    if (m->rank != 4)
        return ch__infer_fail(c, "the mask has rank %d, want 4: (batch, heads, time, time)",
                              m->rank);
    for (int k = 0; k < 4; k++)
        if (!ch__dim_same(m->dim[k], to[k]) && !ch__dim_is(m->dim[k], 1))
            return ch__infer_fail(c, "axis %d of the mask has size %s, want %s or 1", k,
                                  ch__dim_text(c, m->dim[k]), ch__dim_text(c, to[k]));
    return CH_OK;
}

/* Checks all inputs of attention (n is 3) or attention_grad (n is 4). */
static ch_status want_attention(const ch_infer *c, int n)
{
    const ch_dims         *q = &c->in[0], *k = &c->in[1], *v = &c->in[2];
    const attention_attrs *t = c->attrs;
    ch_status              rc = want_arrays(c, n);

    if (rc != CH_OK)
        return rc;
    if (!isfinite(t->scale))
        return ch__infer_fail(c, "the scale is NaN or infinite, want a finite number");
    if (t->scale == 0 && (rc = ch__infer_want_number(c, q->dim[3])) != CH_OK)
        return rc; /* the default scale depends on the size of a query */
    if (!ch__dim_same(q->dim[3], k->dim[3]))
        return ch__infer_fail(c, "queries have size %s and keys %s, want the same size",
                              ch__dim_text(c, q->dim[3]), ch__dim_text(c, k->dim[3]));
    if (!ch__dim_same(k->dim[2], v->dim[2]))
        return ch__infer_fail(c, "there are %s keys and %s values, want the same number",
                              ch__dim_text(c, k->dim[2]), ch__dim_text(c, v->dim[2]));
    return c->n_in > n ? want_mask(c, n) : CH_OK;
}

static ch_status attention_infer(ch_infer *c)
{
    ch_status rc = want_attention(c, 3);
    ch_dims   o;

    if (rc != CH_OK)
        return rc;
    o = c->in[0];
    o.dim[3] = c->in[2].dim[3];
    return ch__infer_dims(c, 0, c->dtype[0], &o);
}

static ch_status attention_grad_infer(ch_infer *c)
{
    ch_status rc = want_attention(c, 4);

    if (rc != CH_OK)
        return rc;
    if (!ch__dim_same(c->in[3].dim[2], c->in[0].dim[2]) ||
        !ch__dim_same(c->in[3].dim[3], c->in[2].dim[3]))
        return ch__infer_fail(c, "the gradient must have the shape of the result");
    for (int i = 0; i < 3; i++)
        (void)ch__infer_like(c, i, i);
    return CH_OK;
}

/* ---- kernels ---- */

static ch_attention_dims dims_of(const ch_node *n)
{
    const attention_attrs *t = ch__attrs(n);
    int                    plain = n->op == &ch__op_attention ? 3 : 4;
    ch_shape          q = ch__shape(n->in[0]), k = ch__shape(n->in[1]), v = ch__shape(n->in[2]);
    ch_attention_dims d = {.dtype = n->dtype,
                           .batch = q.dim[0],
                           .heads = q.dim[1],
                           .t = q.dim[2],
                           .s = k.dim[2],
                           .d = q.dim[3],
                           .e = v.dim[3],
                           .scale = t->scale,
                           .causal = t->causal,
                           .has_mask = n->n_in > plain};
    int64_t           step = 1;

    if (d.has_mask) {
        ch_shape m = ch__shape(n->in[plain]);

        d.mask_dtype = n->in[plain]->dtype;
        for (int i = 3; i >= 0; i--) {
            d.mask_step[i] = m.dim[i] == 1 ? 0 : step;
            step *= m.dim[i];
        }
    }
    return d;
}

static ch_status prepare(const ch_node *n, ch_prep *p)
{
    ch_attention_dims  d = dims_of(n);
    ch_attention_plan *a = ch__prep_state(p, sizeof(*a));
    ch_status          rc;

    if (a == NULL)
        return ch__fail_memory(n->op->name);
    rc = ch__attention_open(a, &d, n->op != &ch__op_attention);
    if (rc != CH_OK) {
        p->state = NULL;
        return rc;
    }
    p->n_phases = 1;
    p->tiles[0] = a->n_tiles;
    p->scratch_bytes = ch__attention_scratch_bytes(a);
    return CH_OK;
}

static ch_status attention_run(const ch_call *c, ch_kernel_tile t)
{
    const ch_attention_plan *a = c->state;
    const void *const in[] = {c->in[0], c->in[1], c->in[2], a->dims.has_mask ? c->in[3] : NULL};

    return ch__attention_run(a, t.index, a->dims.s - a->dims.t, in, c->out[0], c->scratch);
}

/* A part of the queries has all keys. A part of attention needs no offset, because it has the
 * keys up to that of its last query. */
static ch_status attention_grad_run(const ch_call *c, ch_kernel_tile t)
{
    const ch_attention_plan *a = c->state;
    const void *const        in[] = {c->in[0], c->in[1], c->in[2], c->in[3],
                              a->dims.has_mask ? c->in[4] : NULL};
    const int64_t           *origin = ch__in_origin(c);
    int64_t                  offset = a->dims.s - a->dims.t;

    if (origin != NULL)
        offset = a->dims.s - c->node->origins->whole_in.dim[2].n + origin[2];
    return ch__attention_grad(a, t.index, offset, in, c->out, c->scratch);
}

static void drop(void *state)
{
    ch__attention_close(state);
}

/* ---- attention in ops that can be differentiated any number of times ---- */

/* Returns a bool array: true where a query may see a key. Returns NULL if every query sees
 * every key, or after an error. */
static ch_node *visible(ch_step *s, const attention_attrs *t, ch_node *scores, ch_node *mask)
{
    ch_dim   rows = scores->dims.dim[2], keys = scores->dims.dim[3];
    double   offset = ch__dim_same(rows, keys) ? 0 : (double)(keys.n - rows.n);
    ch_node *i, *j, *order;

    if (mask != NULL && mask->dtype != CH_BOOL)
        mask = NULL;
    if (!t->causal)
        return mask;
    if (!ch__dim_same(rows, keys) && (rows.sym != 0 || keys.sym != 0)) {
        ch_step_fail(s, "attention: this derivative needs fixed numbers of queries and keys");
        return NULL;
    }
    i = ch_add(ch_range_like(scores, 2, CH_F64), ch_number(s, offset));
    j = ch_range_like(scores, 3, CH_F64);
    order = ch_less_equal(j, ch_expand_dims(i, 1));
    return mask != NULL ? ch_logical_and(mask, order) : order;
}

/* Records attention with matmul and softmax. `in` is q, k, v and the mask, which may be
 * NULL. */
static ch_node *written_out(ch_step *s, const attention_attrs *t, ch_node *const in[4])
{
    ch_node *scores = ch_mul(ch_matmul(in[0], false, in[1], true), ch_number(s, t->scale));
    ch_node *seen, *weights, *mask = in[3];

    if (scores == NULL)
        return NULL;
    if (mask != NULL && mask->dtype != CH_BOOL)
        scores = ch_add(scores, mask);
    seen = visible(s, t, scores, mask);
    if (seen == NULL)
        return ch_matmul(ch_softmax(scores, -1), false, in[2], false);
    /* Not -infinity, because the weights of a query that sees no key would be NaN. */
    scores =
        ch_select(seen, scores, ch__full_like(scores, scores->dtype == CH_F16 ? -3e4 : -1e30));
    weights = ch_softmax(scores, -1);
    weights = ch_select(seen, weights, ch__full_like(weights, 0));
    return ch_matmul(weights, false, in[2], false);
}

/* ---- gradients ---- */

/* Records copies of the inputs. A derivative with respect to a copy holds the other inputs
 * constant, even if they are the same node or depend on each other. */
static void copy_inputs(int n, ch_node *const *in, ch_node **out)
{
    for (int i = 0; i < n; i++)
        out[i] = ch_identity(in[i]);
}

/* Returns true if the mask is added to the scores; a bool mask hides keys instead. */
static bool is_added(const ch_node *mask)
{
    return mask != NULL && mask->dtype != CH_BOOL;
}

static void attention_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *mask = n->n_in > 3 ? n->in[3] : NULL;
    ch_node *in[] = {n->in[0], n->in[1], n->in[2], dout[0], mask}, *copy[4] = {0};
    ch_node *d = ch__node(&ch__op_attention_grad, ch__attrs(n), n->n_in + 1, in);

    for (int i = 0; i < 3 && d != NULL; i++)
        din[i] = ch__out(d, i);
    if (is_added(mask)) { /* rarely used; the planner drops the calls if it is not used */
        copy_inputs(4, n->in, copy);
        ch_gradients(written_out(s, ch__attrs(n), copy), dout[0], 1, &copy[3], &din[3]);
    }
}

/* Records the gradient a second time, as the derivative of written_out. Then each of its three
 * results can be differentiated. */
static void attention_grad_grad(ch_step *s, const ch_node *n, ch_node *const dout[],
                                ch_node *din[])
{
    ch_node *copy[5] = {0}, *first[3] = {0}, *second[5] = {0};
    ch_node *mask = n->n_in > 4 ? n->in[4] : NULL;
    int      n_x = is_added(mask) ? 5 : 4;

    copy_inputs(n->n_in, n->in, copy);
    ch_gradients(
        written_out(s, ch__attrs(n), (ch_node *[]){copy[0], copy[1], copy[2], copy[4]}),
        copy[3], 3, copy, first);
    for (int i = 0; i < 3; i++) {
        if (dout[i] == NULL || first[i] == NULL)
            continue;
        ch_gradients(first[i], dout[i], n_x, copy, second);
        for (int j = 0; j < n_x; j++)
            din[j] = din[j] != NULL ? ch__add_gradients(din[j], second[j]) : second[j];
    }
}

/* ---- the ops ---- */

static const ch_kernel attention_blocks = {"blocks", .prepare = prepare, .run = attention_run,
                                           .drop = drop};
static const ch_kernel attention_grad_blocks = {"blocks", .prepare = prepare,
                                                .run = attention_grad_run, .drop = drop};

/* The factors of attention_factors. */
enum { BATCH, HEAD, QUERY, KEY, SIZE, VALUE };

/* Batches, heads and queries are independent. The gradients of k and v are sums over queries,
 * and those of q and k sums over the elements of a value. A part of causal attention needs the
 * keys up to that of its last query. */
static ch_status attention_factors(const ch_node *n, ch_factors *f)
{
    const attention_attrs *t = ch__attrs(n);
    bool is_grad = n->op != &ch__op_attention, is_causal = t->causal && !is_grad;
    int  q[] = {BATCH, HEAD, QUERY, SIZE}, k[] = {BATCH, HEAD, is_causal ? QUERY : KEY, SIZE};
    int  v[] = {BATCH, HEAD, is_causal ? QUERY : KEY, VALUE}, o[] = {BATCH, HEAD, QUERY, VALUE};
    int  mask[] = {BATCH, HEAD, QUERY, is_causal ? QUERY : KEY}, i_mask = is_grad ? 4 : 3;
    ch_dim      queries = n->in[0]->dims.dim[2], keys = n->in[1]->dims.dim[2];
    ch_axis_map seen = {1, 1, -queries.n, keys.n - queries.n};

    (void)ch__factor(f, CH_PAR);
    (void)ch__factor(f, CH_PAR);
    (void)ch__factor(f, is_grad ? CH_RED : CH_PAR);
    (void)ch__factor(f, CH_FIX);
    (void)ch__factor(f, CH_FIX);
    (void)ch__factor(f, is_grad ? CH_RED : CH_PAR);
    if (queries.sym != 0 || keys.sym != 0)
        f->factor[QUERY].kind = CH_FIX; /* the map needs numbers */
    ch__factor_map(f, 0, 4, q);
    ch__factor_map(f, 1, 4, k);
    ch__factor_map(f, 2, 4, v);
    for (int i = 1; i <= 2 && is_causal; i++)
        ch__factor_window(f, i, 2, seen);
    if (is_grad)
        ch__factor_map(f, 3, 4, o);
    if (n->n_in > i_mask) {
        for (int i = 0; i < 4; i++)
            mask[i] = ch__dim_is(n->in[i_mask]->dims.dim[i], 1) ? -1 : mask[i];
        ch__factor_map(f, i_mask, 4, mask);
        if (is_causal && mask[3] >= 0)
            ch__factor_window(f, i_mask, 3, seen);
    }
    if (!is_grad)
        return ch__factor_out(f, 4, o);
    (void)ch__factor_out(f, 4, q);
    (void)ch__factor_out(f, 4, k);
    return ch__factor_out(f, 4, v);
}

/* Records attention with matmul and softmax, for keys or sizes that are divided. */
static bool attention_expand(ch_step *s, const ch_node *n, ch_node *const *in, ch_node **out)
{
    bool     is_grad = n->op != &ch__op_attention;
    ch_dtype t = n->dtype == CH_F64 ? CH_F64 : CH_F32;
    ch_node *x[5] = {0}, *mask, *d[3];

    for (int i = 0; i < n->n_in; i++)
        x[i] = in[i] != NULL && in[i]->dtype != CH_BOOL ? ch_cast(in[i], t) : in[i];
    if (!is_grad) {
        out[0] = ch_cast(written_out(s, ch__attrs(n), x), n->dtype);
        return out[0] != NULL;
    }
    mask = x[4];
    copy_inputs(3, x, x);
    ch_gradients(written_out(s, ch__attrs(n), (ch_node *[]){x[0], x[1], x[2], mask}), x[3], 3,
                 x, d);
    for (int i = 0; i < 3; i++)
        out[i] = ch_cast(d[i], n->dtype);
    return out[0] != NULL && out[1] != NULL && out[2] != NULL;
}

const ch_op ch__op_attention = {
    .name = "attention",
    .version = 1,
    .n_in = -1,
    .n_out = 1,
    .attrs = attention_rows,
    .attrs_bytes = sizeof(attention_attrs),
    .infer = attention_infer,
    .kernels = (const ch_kernel *const[]){&attention_blocks, NULL},
    .grad = attention_grad,
    .factors = attention_factors,
    .expand = attention_expand,
};

const ch_op ch__op_attention_grad = {
    .name = "attention_grad",
    .version = 1,
    .n_in = -1,
    .n_out = 3,
    .flags = CH_OP_ORIGIN,
    .attrs = attention_rows,
    .attrs_bytes = sizeof(attention_attrs),
    .infer = attention_grad_infer,
    .kernels = (const ch_kernel *const[]){&attention_grad_blocks, NULL},
    .grad = attention_grad_grad,
    .factors = attention_factors,
    .expand = attention_expand,
};

ch_node *ch_attention(ch_node *q, ch_node *k, ch_node *v, ch_node *mask,
                      const ch_attention_options *opt)
{
    static const ch_attention_options none;
    const ch_attention_options       *o = opt != NULL ? opt : &none;
    attention_attrs                   a = {.causal = o->causal, .scale = o->scale};
    ch_node                          *in[] = {q, k, v, mask};

    while (mask != NULL && mask->dims.rank < 4 && (mask = ch_expand_dims(mask, 0)) != NULL)
        in[3] = mask;
    if (a.scale == 0 && q != NULL && q->dims.rank == 4 && q->dims.dim[3].n > 0)
        a.scale = 1 / sqrt((double)q->dims.dim[3].n);
    return ch__node(&ch__op_attention, &a, mask != NULL ? 4 : 3, in);
}
