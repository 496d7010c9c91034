/* ops/nn_loss.c -- cross entropies of logits.
 *
 * sparse_softmax_cross_entropy takes labels (an id for each row), softmax_cross_entropy takes
 * probabilities; in names they are `sparse` and `dense`. Output 0 is the loss of each row.
 * Output 1 is lse, the log of the row's sum of exponentials: exp(x - lse) is the softmax, so
 * the gradient is a single pass over x. sigmoid_cross_entropy is elementwise.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "graph/step.h"
#include "kernel/block.h"
#include "kernel/widen.h"
#include "ops/ops.h"

/* ---- shape rules ---- */

/* Checks lse (...) and dloss (...), which are inputs 2 and 3 of a gradient. Inputs 0 and 1 are
 * the logits (..., classes) and the labels or probabilities. */
static ch_status check_grad(const ch_infer *c, const ch_dims *rows)
{
    if (c->dtype[2] != ch__stat_dtype(c->dtype[0]) || c->dtype[3] != c->dtype[0])
        return ch__infer_fail(c, "inputs 2 and 3 are %s and %s, want %s and %s",
                              ch_dtype_name(c->dtype[2]), ch_dtype_name(c->dtype[3]),
                              ch_dtype_name(ch__stat_dtype(c->dtype[0])),
                              ch_dtype_name(c->dtype[0]));
    if (!ch__dims_same(&c->in[2], rows) || !ch__dims_same(&c->in[3], rows))
        return ch__infer_fail(c, "inputs 2 and 3 must have one value for each row of input 0");
    return CH_OK;
}

static ch_status check_sparse(const ch_infer *c)
{
    ch_status rc = ch__infer_want_rows(c, 0);
    ch_dims   rows;

    if (rc == CH_OK)
        rc = ch__infer_want_ids(c, 1);
    if (rc != CH_OK)
        return rc;
    rows = ch__rows_dims(&c->in[0]);
    if (!ch__dims_same(&rows, &c->in[1]))
        return ch__infer_fail(c, "labels must have the shape of the logits without the last "
                                 "axis: one class for each row");
    return c->n_in == 4 ? check_grad(c, &rows) : CH_OK;
}

static ch_status check_dense(const ch_infer *c)
{
    ch_status rc = ch__infer_want_rows(c, 0);
    ch_dims   rows;

    if (rc == CH_OK && c->dtype[0] != c->dtype[1])
        rc = ch__infer_fail(c, "inputs 0 and 1 are %s and %s; cast one of them",
                            ch_dtype_name(c->dtype[0]), ch_dtype_name(c->dtype[1]));
    if (rc == CH_OK && !ch__dims_same(&c->in[0], &c->in[1]))
        rc = ch__infer_fail(c, "logits and probabilities must have the same shape");
    if (rc != CH_OK)
        return rc;
    rows = ch__rows_dims(&c->in[0]);
    return c->n_in == 4 ? check_grad(c, &rows) : CH_OK;
}

/* Sets the outputs of a loss, unless rc is an error. */
static ch_status loss_out(ch_infer *c, ch_status rc)
{
    ch_dims rows;

    if (rc != CH_OK)
        return rc;
    rows = ch__rows_dims(&c->in[0]);
    (void)ch__infer_dims(c, 0, c->dtype[0], &rows);
    return ch__infer_dims(c, 1, ch__stat_dtype(c->dtype[0]), &rows);
}

static ch_status sparse_infer(ch_infer *c)
{
    return loss_out(c, check_sparse(c));
}
static ch_status dense_infer(ch_infer *c)
{
    return loss_out(c, check_dense(c));
}
static ch_status sparse_grad_infer(ch_infer *c)
{
    ch_status rc = check_sparse(c);

    return rc == CH_OK ? ch__infer_like(c, 0, 0) : rc;
}
static ch_status dense_grad_infer(ch_infer *c)
{
    ch_status rc = check_dense(c);

    return rc == CH_OK ? ch__infer_like(c, 0, 0) : rc;
}

/* ---- kernels ---- */

static ch_status loss_prepare(const ch_node *n, ch_prep *p)
{
    if (ch__rows_prepare(n, p, 8, 2, 0) == NULL)
        return ch__fail_memory(n->op->name);
    p->over[0] = n->n_in == 4 ? 1 : 0; /* a gradient may be written over the logits */
    return CH_OK;
}

static int64_t label_at(const ch_call *c, int64_t i)
{
    return c->node->in[1]->dtype == CH_I64 ? ((const int64_t *)c->in[1])[i]
                                           : ((const int32_t *)c->in[1])[i];
}

/* Writes the loss of row i, in the dtype of the logits. */
static void set_loss(const ch_row_state *s, void *loss, int64_t i, double value)
{
    ch__from_f64(s->x.dtype, 1, &value, (char *)loss + (size_t)i * ch_dtype_bytes(s->x.dtype));
}

static double dloss_at(const ch_row_state *s, const void *d, int64_t i)
{
    double      value;
    const char *at = (const char *)d + (size_t)i * ch_dtype_bytes(s->x.dtype);

    return *ch__as_f64(s->x.dtype, 1, at, &value);
}

/* Returns element j of a row in the dtype of the computation. */
static double element(const ch_row_state *s, const void *row, int64_t j)
{
    return ch__stat_at(s->stat, row, j);
}

static ch_status sparse_run(const ch_call *c, ch_kernel_tile t)
{
    const ch_row_state *s = c->state;
    void               *buffer = ch__rows_buffer(s, c, t.index, 0);
    int64_t             from, to;

    ch__rows_tile(s, t.index, &from, &to);
    to = ch__min(to, ch__live_items(c, s->x.rows)); /* labels in room are not read */
    for (int64_t i = from; i < to; i++) {
        const void *x = ch__row(&s->x, c->in[0], i, buffer);
        int64_t     label = label_at(c, i);
        double      lse;

        if (label < 0 || label >= s->x.n)
            return ch__call_fail(c, CH_INVALID_ARGUMENT,
                                 "label %lld at position %lld is not in 0 .. %lld",
                                 (long long)label, (long long)i, (long long)s->x.n - 1);
        lse = s->x.loops->logsumexp(s->x.n, x);
        set_loss(s, c->out[0], i, lse - element(s, x, label));
        ch__stat_set(s->stat, c->out[1], i, lse);
    }
    return CH_OK;
}

static ch_status dense_run(const ch_call *c, ch_kernel_tile t)
{
    const ch_row_state *s = c->state;
    void               *buffer = ch__rows_buffer(s, c, t.index, 0);
    void               *other = ch__rows_buffer(s, c, t.index, 1);
    int64_t             from, to;

    ch__rows_tile(s, t.index, &from, &to);
    for (int64_t i = from; i < to; i++) {
        const void *x = ch__row(&s->x, c->in[0], i, buffer);
        const void *p = ch__row(&s->x, c->in[1], i, other);
        double      lse = s->x.loops->logsumexp(s->x.n, x);

        set_loss(s, c->out[0], i, s->x.loops->cross(s->x.n, x, p, lse));
        ch__stat_set(s->stat, c->out[1], i, lse);
    }
    return CH_OK;
}

/* dx = softmax(x) d, minus d at the label. The check of the label is for safety only, because
 * the loss has failed if a label is out of range. */
static ch_status sparse_grad_run(const ch_call *c, ch_kernel_tile t)
{
    const ch_row_state *s = c->state;
    void               *buffer = ch__rows_buffer(s, c, t.index, 0);
    int64_t             from, to;

    ch__rows_tile(s, t.index, &from, &to);
    for (int64_t i = from; i < to; i++) {
        void   *dx = ch__row_to(&s->x, c->out[0], i, buffer);
        double  d = dloss_at(s, c->in[3], i);
        int64_t label = label_at(c, i);

        s->x.loops->exp_grad(s->x.n, ch__row(&s->x, c->in[0], i, buffer),
                             ch__stat_at(s->stat, c->in[2], i), 1, NULL, d, dx);
        if (label >= 0 && label < s->x.n)
            ch__stat_set(s->stat, dx, label, element(s, dx, label) - d);
        ch__row_done(&s->x, c->out[0], i, dx);
    }
    return CH_OK;
}

/* dx = (softmax(x) sum(p) - p) d. */
static ch_status dense_grad_run(const ch_call *c, ch_kernel_tile t)
{
    const ch_row_state *s = c->state;
    void               *buffer = ch__rows_buffer(s, c, t.index, 0);
    void               *other = ch__rows_buffer(s, c, t.index, 1);
    int64_t             from, to;

    ch__rows_tile(s, t.index, &from, &to);
    for (int64_t i = from; i < to; i++) {
        void       *dx = ch__row_to(&s->x, c->out[0], i, buffer);
        const void *x = ch__row(&s->x, c->in[0], i, buffer);
        const void *p = ch__row(&s->x, c->in[1], i, other);

        s->x.loops->exp_grad(s->x.n, x, ch__stat_at(s->stat, c->in[2], i),
                             s->x.loops->sum(s->x.n, p), p, dloss_at(s, c->in[3], i), dx);
        ch__row_done(&s->x, c->out[0], i, dx);
    }
    return CH_OK;
}

static const ch_kernel sparse_rows = {"rows", .prepare = loss_prepare, .run = sparse_run};
static const ch_kernel dense_rows = {"rows", .prepare = loss_prepare, .run = dense_run};
static const ch_kernel sparse_grad_rows = {"rows", .prepare = loss_prepare,
                                           .run = sparse_grad_run};
static const ch_kernel dense_grad_rows = {"rows", .prepare = loss_prepare,
                                          .run = dense_grad_run};

/* ---- gradients ---- */

/* Returns d with an axis of size 1 appended, so that it broadcasts over classes. */
static ch_node *last_axis(ch_node *d)
{
    return ch_expand_dims(d, -1);
}

static void sparse_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    if (dout[0] != NULL)
        din[0] = ch__node(&ch__op_sparse_softmax_cross_entropy_grad, NULL, 4,
                          (ch_node *[]){n->in[0], n->in[1], ch__out(n, 1), dout[0]});
}

static void dense_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    if (dout[0] == NULL)
        return;
    din[0] = ch__node(&ch__op_softmax_cross_entropy_grad, NULL, 4,
                      (ch_node *[]){n->in[0], n->in[1], ch__out(n, 1), dout[0]});
    din[1] = ch_mul(ch_neg(ch_log_softmax(n->in[0], -1)), last_axis(dout[0]));
}

/* dx = (softmax(x) - one_hot(label)) d is linear in d. lse is a function of x; its share of the
 * derivative is part of the derivative of softmax. */
static void sparse_grad_grad(ch_step *s, const ch_node *n, ch_node *const dout[],
                             ch_node *din[])
{
    ch_node *x = n->in[0], *d = n->in[3], *g = dout[0];
    ch_node *one =
        ch__node(n->op, NULL, 4, (ch_node *[]){x, n->in[1], n->in[2], ch__full_like(d, 1)});
    ch_node *gd = ch_mul(g, last_axis(d));

    (void)s;
    din[0] = ch__node(&ch__op_softmax_grad, NULL, 2, (ch_node *[]){ch_softmax(x, -1), gd});
    din[3] = ch__sum_last(ch_mul(g, one), false);
}

static void dense_parts(const ch_node *n, ch_node *const *in, ch_node **out)
{
    ch_node *p = in[1], *y = ch_mul(ch_softmax(in[0], -1), ch__sum_last(p, true));

    (void)n;
    out[0] = ch_mul(ch_sub(y, p), last_axis(in[3]));
}

static void dense_grad_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    ch__grad_of_parts(n, dout, din, 1 << 0 | 1 << 1 | 1 << 3, dense_parts);
}

/* ---- in plain ops, for classes that are divided ---- */

/* Returns lse with an axis of size 1 in place of the classes. The largest logit is made finite,
 * so that infinity is not subtracted from infinity. */
static ch_node *log_sum_exp(ch_node *x)
{
    ch_node *most = ch__finite(ch_max(x, 1, (int[]){-1}, true));

    return ch_add(ch_log(ch__sum_last(ch_exp(ch_sub(x, most)), true)), most);
}

/* Returns a bool array of the shape of x, true at the label of each row. */
static ch_node *at_labels(ch_node *x, ch_node *labels)
{
    return ch_equal(last_axis(labels), ch_range_like(x, -1, labels->dtype));
}

/* The logit of the label is a sum in which all other logits are replaced by zero. */
static bool sparse_expand(ch_step *s, const ch_node *n, ch_node *const *in, ch_node **out)
{
    ch_dim   classes = n->in[0]->dims.dim[n->in[0]->dims.rank - 1];
    ch_node *x = ch_cast(in[0], ch__stat_dtype(n->dtype)), *lse = log_sum_exp(x);
    ch_node *label = ch_check_ids(in[1], classes.n), *hit = NULL, *logit;

    (void)s;
    if (label != NULL)
        hit = at_labels(x, label);
    logit = ch__sum_last(ch_select(hit, x, ch__full_like(x, 0)), true);
    out[0] = ch_cast(ch__reshape_dims(ch_sub(lse, logit), &n->dims), n->dtype);
    out[1] = ch__reshape_dims(lse, &n->dims);
    return out[0] != NULL;
}

/* A class of probability 0 counts nothing, even if its logit is -infinity. */
static bool dense_expand(ch_step *s, const ch_node *n, ch_node *const *in, ch_node **out)
{
    ch_dtype t = ch__stat_dtype(n->dtype);
    ch_node *x = ch_cast(in[0], t), *p = ch_cast(in[1], t), *lse = log_sum_exp(x);
    ch_node *zero = ch__full_like(p, 0), *each = ch_mul(p, ch_sub(lse, x));

    (void)s;
    each = ch_select(ch_equal(p, zero), zero, each);
    out[0] = ch_cast(ch__sum_last(each, false), n->dtype);
    out[1] = ch__reshape_dims(lse, &n->dims);
    return out[0] != NULL;
}

static bool sparse_grad_expand(ch_step *s, const ch_node *n, ch_node *const *in, ch_node **out)
{
    ch_dtype t = ch__stat_dtype(n->dtype);
    ch_node *x = ch_cast(in[0], t), *y = ch_exp(ch_sub(x, last_axis(in[2]))), *hit;

    (void)s;
    if (y == NULL)
        return false;
    hit = ch_cast(at_labels(x, in[1]), t);
    out[0] = ch_cast(ch_mul(ch_sub(y, hit), last_axis(ch_cast(in[3], t))), n->dtype);
    return out[0] != NULL;
}

static bool dense_grad_expand(ch_step *s, const ch_node *n, ch_node *const *in, ch_node **out)
{
    ch_dtype t = ch__stat_dtype(n->dtype);
    ch_node *x = ch_cast(in[0], t), *p = ch_cast(in[1], t);
    ch_node *y = ch_mul(ch_exp(ch_sub(x, last_axis(in[2]))), ch__sum_last(p, true));

    (void)s;
    out[0] = ch_cast(ch_mul(ch_sub(y, p), last_axis(ch_cast(in[3], t))), n->dtype);
    return out[0] != NULL;
}

/* ---- ops ---- */

const ch_op ch__op_sparse_softmax_cross_entropy = {
    .name = "sparse_softmax_cross_entropy",
    .version = 1,
    .n_in = 2,
    .n_out = 2,
    .flags = CH_OP_CAN_FAIL,
    .infer = sparse_infer,
    .grad = sparse_grad,
    .factors = ch__factors_rows,
    .expand = sparse_expand,
    .kernels = (const ch_kernel *const[]){&sparse_rows, NULL},
    .room = 1u << 1, /* labels */
    .room_rows = 1,
};
const ch_op ch__op_sparse_softmax_cross_entropy_grad = {
    .name = "sparse_softmax_cross_entropy_grad",
    .version = 1,
    .n_in = 4,
    .n_out = 1,
    .infer = sparse_grad_infer,
    .grad = sparse_grad_grad,
    .factors = ch__factors_rows,
    .expand = sparse_grad_expand,
    .kernels = (const ch_kernel *const[]){&sparse_grad_rows, NULL},
    .room = 1u << 1 | 1u << 2 | 1u << 3, /* all but logits */
    .room_rows = 1,
};
const ch_op ch__op_softmax_cross_entropy = {
    .name = "softmax_cross_entropy",
    .version = 1,
    .n_in = 2,
    .n_out = 2,
    .flags = CH_OP_SAME_DTYPE,
    .infer = dense_infer,
    .grad = dense_grad,
    .factors = ch__factors_rows,
    .expand = dense_expand,
    .kernels = (const ch_kernel *const[]){&dense_rows, NULL},
    .room_rows = 3,
};
const ch_op ch__op_softmax_cross_entropy_grad = {
    .name = "softmax_cross_entropy_grad",
    .version = 1,
    .n_in = 4,
    .n_out = 1,
    .infer = dense_grad_infer,
    .grad = dense_grad_grad,
    .factors = ch__factors_rows,
    .expand = dense_grad_expand,
    .kernels = (const ch_kernel *const[]){&dense_grad_rows, NULL},
    .room = 1u << 2 | 1u << 3, /* numbers of the rows */
    .room_rows = 3,
};

ch_node *ch_sparse_softmax_cross_entropy(ch_node *logits, ch_node *labels)
{
    return ch__node(&ch__op_sparse_softmax_cross_entropy, NULL, 2,
                    (ch_node *[]){logits, labels});
}

ch_node *ch_softmax_cross_entropy(ch_node *logits, ch_node *probabilities)
{
    return ch__node(&ch__op_softmax_cross_entropy, NULL, 2,
                    (ch_node *[]){logits, probabilities});
}

/* ---- sigmoid_cross_entropy: elementwise ---- */

enum { PART = 512 }; /* elements that a call of sigmoid_block can process */

/* Computes max(x, 0) - x z + log(1 + exp(-|x|)), which is accurate for large x of either
 * sign. */
static void sigmoid_block(ch_dtype t, int64_t n, const void *const *in, void *out)
{
    static const double none[4];
    union {
        float  f32[PART];
        double f64[PART];
    } buffer;
    const void *at = &buffer;

    for (int64_t i = 0; i < n && t == CH_F32; i++)
        buffer.f32[i] = -fabsf(((const float *)in[0])[i]);
    for (int64_t i = 0; i < n && t == CH_F64; i++)
        buffer.f64[i] = -fabs(((const double *)in[0])[i]);
    ch__blocks()->fn[CH_BLOCK_exp][t](n, &at, &buffer, none);
    ch__blocks()->fn[CH_BLOCK_log1p][t](n, &at, &buffer, none);
    for (int64_t i = 0; i < n && t == CH_F32; i++) {
        float x = ((const float *)in[0])[i], z = ((const float *)in[1])[i];

        ((float *)out)[i] = (x > 0 ? x : 0) - x * z + buffer.f32[i];
    }
    for (int64_t i = 0; i < n && t == CH_F64; i++) {
        double x = ((const double *)in[0])[i], z = ((const double *)in[1])[i];

        ((double *)out)[i] = (x > 0 ? x : 0) - x * z + buffer.f64[i];
    }
}

static void sigmoid_blocks(ch_dtype t, int64_t n, const void *const *in, void *out)
{
    size_t bytes = ch_dtype_bytes(t);

    for (int64_t i = 0; i < n; i += PART) {
        const void *at[2] = {(const char *)in[0] + (size_t)i * bytes,
                             (const char *)in[1] + (size_t)i * bytes};

        sigmoid_block(t, n - i < PART ? n - i : PART, at, (char *)out + (size_t)i * bytes);
    }
}

static void sigmoid_f32(int64_t n, const void *const *in, void *out, const double *param)
{
    (void)param;
    sigmoid_blocks(CH_F32, n, in, out);
}

static void sigmoid_f64(int64_t n, const void *const *in, void *out, const double *param)
{
    (void)param;
    sigmoid_blocks(CH_F64, n, in, out);
}

/* The `block` function of the op: 16-bit floats compute in f32. */
static bool sigmoid_pick(const ch_node *n, ch_block *b)
{
    b->compute = ch__stat_dtype(n->in[0]->dtype);
    b->fn = b->compute == CH_F64 ? sigmoid_f64 : sigmoid_f32;
    return true;
}

static ch_status sigmoid_infer(ch_infer *c)
{
    ch_dims   d;
    ch_status rc = ch__infer_want_float(c, 0);

    if (rc == CH_OK)
        rc = ch__infer_want_same(c);
    if (rc == CH_OK)
        rc = ch__infer_broadcast(c, 0, 2, &d);
    return rc == CH_OK ? ch__infer_dims(c, 0, c->dtype[0], &d) : rc;
}

static void sigmoid_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *x = n->in[0], *z = n->in[1], *d = dout[0];

    (void)s;
    din[0] = ch__unbroadcast(ch_mul(d, ch_sub(ch_sigmoid(x), z)), x);
    din[1] = ch__unbroadcast(ch_mul(d, ch_neg(x)), z);
}

const ch_op ch__op_sigmoid_cross_entropy = {
    .name = "sigmoid_cross_entropy",
    .version = 1,
    .n_in = 2,
    .n_out = 1,
    .flags = CH_OP_SAME_DTYPE,
    .infer = sigmoid_infer,
    .block = sigmoid_pick,
    .grad = sigmoid_grad,
    .factors = ch__factors_elementwise,
    .kernels = (const ch_kernel *const[]){&ch__kernel_elementwise, NULL},
};

ch_node *ch_sigmoid_cross_entropy(ch_node *logits, ch_node *labels)
{
    return ch__node(&ch__op_sigmoid_cross_entropy, NULL, 2, (ch_node *[]){logits, labels});
}
