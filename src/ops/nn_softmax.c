/* ops/nn_softmax.c -- softmax and log_softmax.
 *
 * The ops work on the last axis; for another axis, ch_softmax and ch_log_softmax transpose
 * before and after. The gradients are ops too (softmax_grad, log_softmax_grad) and depend on
 * the result y only, so that x need not be kept. All kernels go over rows (ops/nn.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/step.h"
#include "ops/ops.h"

/* ---- over the last axis ---- */

static ch_status softmax_infer(ch_infer *c)
{
    ch_status rc = ch__infer_want_rows(c, 0);

    return rc == CH_OK ? ch__infer_like(c, 0, 0) : rc;
}

static ch_status grad_infer(ch_infer *c)
{
    ch_status rc = ch__infer_want_rows(c, 0);

    if (rc == CH_OK)
        rc = ch__infer_want_same(c);
    if (rc == CH_OK && !ch__dims_same(&c->in[0], &c->in[1]))
        rc = ch__infer_fail(c, "inputs 0 and 1 must have the same shape");
    return rc == CH_OK ? ch__infer_like(c, 0, 0) : rc;
}

static ch_status softmax_prepare(const ch_node *n, ch_prep *p)
{
    if (ch__rows_prepare(n, p, 8, n->n_in, 0) == NULL)
        return ch__fail_memory(n->op->name);
    p->over[0] = n->n_in == 1 ? 1 : 3;
    return CH_OK;
}

static void unary_tile(const ch_call *c, int tile,
                       void (*loop)(int64_t n, const void *x, void *y))
{
    const ch_row_state *s = c->state;
    void               *buffer = ch__rows_buffer(s, c, tile, 0);
    int64_t             from, to;

    ch__rows_tile(s, tile, &from, &to);
    for (int64_t i = from; i < to; i++) {
        void *y = ch__row_to(&s->x, c->out[0], i, buffer);

        loop(s->x.n, ch__row(&s->x, c->in[0], i, buffer), y);
        ch__row_done(&s->x, c->out[0], i, y);
    }
}

static void binary_tile(const ch_call *c, int tile,
                        void (*loop)(int64_t n, const void *y, const void *d, void *dx))
{
    const ch_row_state *s = c->state;
    void               *buffer = ch__rows_buffer(s, c, tile, 0);
    void               *other = ch__rows_buffer(s, c, tile, 1);
    int64_t             from, to;

    ch__rows_tile(s, tile, &from, &to);
    for (int64_t i = from; i < to; i++) {
        void *dx = ch__row_to(&s->x, c->out[0], i, buffer);

        loop(s->x.n, ch__row(&s->x, c->in[0], i, buffer), ch__row(&s->x, c->in[1], i, other),
             dx);
        ch__row_done(&s->x, c->out[0], i, dx);
    }
}

static const ch_norm_loops *loops_of(const ch_call *c)
{
    return ((const ch_row_state *)c->state)->x.loops;
}

static ch_status softmax_run(const ch_call *c, ch_kernel_tile t)
{
    unary_tile(c, t.index, loops_of(c)->softmax);
    return CH_OK;
}
static ch_status log_softmax_run(const ch_call *c, ch_kernel_tile t)
{
    unary_tile(c, t.index, loops_of(c)->log_softmax);
    return CH_OK;
}
static ch_status softmax_grad_run(const ch_call *c, ch_kernel_tile t)
{
    binary_tile(c, t.index, loops_of(c)->softmax_grad);
    return CH_OK;
}
static ch_status log_softmax_grad_run(const ch_call *c, ch_kernel_tile t)
{
    binary_tile(c, t.index, loops_of(c)->log_softmax_grad);
    return CH_OK;
}

static const ch_kernel softmax_rows = {"rows", .prepare = softmax_prepare, .run = softmax_run};
static const ch_kernel log_softmax_rows = {"rows", .prepare = softmax_prepare,
                                           .run = log_softmax_run};
static const ch_kernel softmax_grad_rows = {"rows", .prepare = softmax_prepare,
                                            .run = softmax_grad_run};
static const ch_kernel log_softmax_grad_rows = {"rows", .prepare = softmax_prepare,
                                                .run = log_softmax_grad_run};

/* ---- gradients: softmax: dx = y (d - sum(y d)); log_softmax: dx = d - exp(y) sum(d) ---- */

static void softmax_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch__node(&ch__op_softmax_grad, NULL, 2, (ch_node *[]){ch__out(n, 0), dout[0]});
}

static void log_softmax_grad(ch_step *s, const ch_node *n, ch_node *const dout[],
                             ch_node *din[])
{
    (void)s;
    din[0] = ch__node(&ch__op_log_softmax_grad, NULL, 2, (ch_node *[]){ch__out(n, 0), dout[0]});
}

/* With g the gradient of dx, the gradient of d is y (g - sum(y g)), a softmax_grad again, and
 * the gradient of y is g (d - sum(y d)) - d sum(y g). */
static void softmax_grad_grad(ch_step *s, const ch_node *n, ch_node *const dout[],
                              ch_node *din[])
{
    ch_node *y = n->in[0], *d = n->in[1], *g = dout[0];

    (void)s;
    din[0] = ch_sub(ch_mul(g, ch_sub(d, ch__sum_last(ch_mul(y, d), true))),
                    ch_mul(d, ch__sum_last(ch_mul(y, g), true)));
    din[1] = ch__node(&ch__op_softmax_grad, NULL, 2, (ch_node *[]){y, g});
}

static void log_softmax_grad_grad(ch_step *s, const ch_node *n, ch_node *const dout[],
                                  ch_node *din[])
{
    ch_node *d = n->in[1], *g = dout[0], *e = ch_mul(g, ch_exp(n->in[0]));

    (void)s;
    din[0] = ch_neg(ch_mul(e, ch__sum_last(d, true)));
    din[1] = ch_sub(g, ch__sum_last(e, true));
}

/* ---- in plain ops, for a last axis that is divided ---- */

/* Records exp(x - most) of each row, and x - most, where `most` is the largest element. It is
 * made finite, so that infinity is not subtracted from infinity. */
static ch_node *exp_of_rows(ch_node *x, ch_node **rest)
{
    ch_node *most = ch__finite(ch_max(x, 1, (int[]){-1}, true));

    *rest = ch_sub(x, most);
    return ch_exp(*rest);
}

static bool softmax_expand(ch_step *s, const ch_node *n, ch_node *const *in, ch_node **out)
{
    ch_node *rest, *e = exp_of_rows(ch_cast(in[0], ch__stat_dtype(n->dtype)), &rest);
    ch_node *sum = ch__sum_last(e, true);

    (void)s;
    out[0] = n->op == &ch__op_softmax ? ch_div(e, sum) : ch_sub(rest, ch_log(sum));
    out[0] = ch_cast(out[0], n->dtype);
    return out[0] != NULL;
}

static bool softmax_grad_expand(ch_step *s, const ch_node *n, ch_node *const *in, ch_node **out)
{
    ch_dtype t = ch__stat_dtype(n->dtype);
    ch_node *y = ch_cast(in[0], t), *d = ch_cast(in[1], t);

    (void)s;
    out[0] = n->op == &ch__op_softmax_grad
                 ? ch_mul(y, ch_sub(d, ch__sum_last(ch_mul(y, d), true)))
                 : ch_sub(d, ch_mul(ch_exp(y), ch__sum_last(d, true)));
    out[0] = ch_cast(out[0], n->dtype);
    return out[0] != NULL;
}

const ch_op ch__op_softmax = {
    .name = "softmax",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .infer = softmax_infer,
    .grad = softmax_grad,
    .factors = ch__factors_rows,
    .expand = softmax_expand,
    .kernels = (const ch_kernel *const[]){&softmax_rows, NULL},
    .room_rows = 1,
};
const ch_op ch__op_log_softmax = {
    .name = "log_softmax",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .infer = softmax_infer,
    .grad = log_softmax_grad,
    .factors = ch__factors_rows,
    .expand = softmax_expand,
    .kernels = (const ch_kernel *const[]){&log_softmax_rows, NULL},
    .room_rows = 1,
};
const ch_op ch__op_softmax_grad = {
    .name = "softmax_grad",
    .version = 1,
    .n_in = 2,
    .n_out = 1,
    .infer = grad_infer,
    .grad = softmax_grad_grad,
    .factors = ch__factors_rows,
    .expand = softmax_grad_expand,
    .kernels = (const ch_kernel *const[]){&softmax_grad_rows, NULL},
    .room_rows = 3,
};
const ch_op ch__op_log_softmax_grad = {
    .name = "log_softmax_grad",
    .version = 1,
    .n_in = 2,
    .n_out = 1,
    .infer = grad_infer,
    .grad = log_softmax_grad_grad,
    .factors = ch__factors_rows,
    .expand = softmax_grad_expand,
    .kernels = (const ch_kernel *const[]){&log_softmax_grad_rows, NULL},
    .room_rows = 3,
};

/* ---- over any axis ---- */

/* Records `op` over an axis: moves the axis to the end, and back. */

static ch_node *along_at(const void *caller, const ch_op *op, ch_node *x, int axis)
{
    ch_step    *s = x != NULL ? ch_node_step(x) : NULL;
    const void *before;
    int         k;

    if (s == NULL)
        return NULL;
    if (!ch__axis(axis, x->dims.rank, &k)) {
        ch__step_record_error(s,
                              ch__fail(CH_INVALID_ARGUMENT,
                                       "%s: axis %d is out of range for rank %d", op->name,
                                       axis, x->dims.rank),
                              caller);
        return NULL;
    }
    before = ch__step_begin_at(s, caller, NULL);
    x = ch__axis_to_last(x, k);
    x = ch__axis_from_last(ch__node_at(caller, op, NULL, 1, &x), k);
    ch__step_end(s, before);
    return x;
}

ch_node *ch_softmax(ch_node *x, int axis)
{
    return along_at(__builtin_return_address(0), &ch__op_softmax, x, axis);
}

ch_node *ch_log_softmax(ch_node *x, int axis)
{
    return along_at(__builtin_return_address(0), &ch__op_log_softmax, x, axis);
}
