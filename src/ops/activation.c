/* ops/activation.c -- activation functions: relu, leaky_relu, elu, gelu, silu, softplus.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ops/blockwise.h"

/* ---- activations ---- */

/* relu_mask(y, d) is d where y > 0, and 0 elsewhere: the gradient of relu as a single op. */
static void relu_mask_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[1] = ch__unbroadcast(ch__relu_mask(n->in[0], dout[0]), n->in[1]);
}
ELEMENTWISE(relu_mask, 2, ch__infer_arith, relu_mask_grad, CH_OP_SAME_DTYPE)

ch_node *ch__relu_mask(ch_node *y, ch_node *d)
{
    return ch__node(&ch__op_relu_mask, NULL, 2, ((ch_node *[]){y, d}));
}

/* Uses the result instead of the input, so that the input's memory can be reused. */
static void relu_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch__relu_mask(ch__out(n, 0), dout[0]);
}
UNARY(relu, ch__infer_arith, relu_grad)

/* s * (1 + x * (1 - s)), where s = sigmoid(x) */
static void silu_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *x = n->in[0], *y = ch_sigmoid(x), *one = ch_number(s, 1);

    din[0] = ch_mul(dout[0], ch_mul(y, ch_add(one, ch_mul(x, ch_sub(one, y)))));
}
UNARY(silu, ch__infer_floats, silu_grad)

static void softplus_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch_mul(dout[0], ch_sigmoid(n->in[0]));
}
UNARY(softplus, ch__infer_floats, softplus_grad)

/* ---- activations with attributes ---- */

typedef struct slope_attrs {
    double alpha;
} slope_attrs;

static const ch_attr slope_rows[] = {CH_ATTR_FLOAT(slope_attrs, alpha), CH_ATTR_END};

static bool slope_block(ch_block_code code, const ch_node *n, ch_block *b)
{
    const slope_attrs *a = n->attrs;

    b->param[0] = a->alpha;
    return ch__find_block(code, n->in[0], b);
}

static bool leaky_relu_block(const ch_node *n, ch_block *b)
{
    return slope_block(CH_BLOCK_leaky_relu, n, b);
}

static void leaky_relu_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const slope_attrs *a = n->attrs;

    din[0] = ch_select(ch_less(n->in[0], ch_number(s, 0)),
                       ch_mul(dout[0], ch_number(s, a->alpha)), dout[0]);
}

const ch_op ch__op_leaky_relu = {
    .name = "leaky_relu",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = slope_rows,
    .attrs_bytes = sizeof(slope_attrs),
    .infer = ch__infer_floats,
    .kernels = ch__elementwise_kernels,
    .block = leaky_relu_block,
    .grad = leaky_relu_grad,
    .factors = ch__factors_elementwise,
};

ch_node *ch_leaky_relu(ch_node *x, double alpha)
{
    return ch__node(&ch__op_leaky_relu, &(slope_attrs){alpha}, 1, &x);
}

static bool elu_block(const ch_node *n, ch_block *b)
{
    return slope_block(CH_BLOCK_elu, n, b);
}

/* For x < 0 the derivative is alpha * exp(x) = y + alpha. */
static void elu_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const slope_attrs *a = n->attrs;

    din[0] = ch_select(ch_less(n->in[0], ch_number(s, 0)),
                       ch_mul(dout[0], ch_add(ch__out(n, 0), ch_number(s, a->alpha))), dout[0]);
}

const ch_op ch__op_elu = {
    .name = "elu",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = slope_rows,
    .attrs_bytes = sizeof(slope_attrs),
    .infer = ch__infer_floats,
    .kernels = ch__elementwise_kernels,
    .block = elu_block,
    .grad = elu_grad,
    .factors = ch__factors_elementwise,
};

ch_node *ch_elu(ch_node *x, double alpha)
{
    return ch__node(&ch__op_elu, &(slope_attrs){alpha}, 1, &x);
}

typedef struct gelu_attrs {
    bool by_tanh;
} gelu_attrs;

static const ch_attr gelu_rows[] = {CH_ATTR_BOOL(gelu_attrs, by_tanh), CH_ATTR_END};

static bool gelu_block(const ch_node *n, ch_block *b)
{
    const gelu_attrs *a = n->attrs;

    return ch__find_block(a->by_tanh ? CH_BLOCK_gelu_tanh : CH_BLOCK_gelu, n->in[0], b);
}

/* Returns the derivative of gelu: P(x) + x * p(x), where P is the distribution function of the
 * standard normal distribution and p its density. */
static ch_node *gelu_slope(ch_step *s, ch_node *x)
{
    ch_node *half = ch_number(s, 0.5);
    ch_node *p =
        ch_add(half, ch_mul(half, ch_erf(ch_mul(x, ch_number(s, 0.70710678118654752440)))));
    ch_node *density = ch_mul(ch_number(s, 0.39894228040143267794),
                              ch_exp(ch_mul(ch_square(x), ch_number(s, -0.5))));

    return ch_add(p, ch_mul(x, density));
}

/* Returns the derivative of gelu_tanh, which is x * q with q = sigmoid(u) and
 * u = k * (x + 0.044715 * x^3). The derivative is q + x * q * (1 - q) * u'. */
static ch_node *gelu_tanh_slope(ch_step *s, ch_node *x)
{
    const double k = 1.59576912160573071176; /* 2 sqrt(2 / pi) */
    ch_node     *one = ch_number(s, 1), *xx = ch_square(x);
    ch_node     *u = ch_mul(x, ch_add(ch_number(s, k), ch_mul(xx, ch_number(s, k * 0.044715))));
    ch_node     *du = ch_add(ch_number(s, k), ch_mul(xx, ch_number(s, 3 * k * 0.044715)));
    ch_node     *q = ch_sigmoid(u);

    return ch_mul(q, ch_add(one, ch_mul(ch_mul(x, ch_sub(one, q)), du)));
}

static void gelu_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const gelu_attrs *a = n->attrs;
    ch_node          *x = n->in[0];

    din[0] = ch_mul(dout[0], a->by_tanh ? gelu_tanh_slope(s, x) : gelu_slope(s, x));
}

const ch_op ch__op_gelu = {
    .name = "gelu",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = gelu_rows,
    .attrs_bytes = sizeof(gelu_attrs),
    .infer = ch__infer_floats,
    .kernels = ch__elementwise_kernels,
    .block = gelu_block,
    .grad = gelu_grad,
    .factors = ch__factors_elementwise,
};

ch_node *ch_gelu(ch_node *x)
{
    return ch__node(&ch__op_gelu, &(gelu_attrs){false}, 1, &x);
}

ch_node *ch_gelu_tanh(ch_node *x)
{
    return ch__node(&ch__op_gelu, &(gelu_attrs){true}, 1, &x);
}
