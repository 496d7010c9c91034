/* ops/elementwise.c -- arithmetic and functions, element by element.
 *
 * Each op is a line: its name, its shape rule, its gradient. Its arithmetic is the block
 * function of its name (kernel/block.h), and its kernel is everybody's (ops/fused.c).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/step.h"
#include "kernel/block.h"
#include "ops/lookup.h"
#include "ops/ops.h"

/* ---- what all have in common ---- */

/* The block function for the inputs' dtype; 16-bit floats compute in f32. */
static bool find_block(ch_block_code code, const ch_node *like, ch_block *b)
{
    b->compute = like->dtype == CH_BF16 || like->dtype == CH_F16 ? CH_F32 : like->dtype;
    b->fn = ch__blocks()->fn[code][b->compute];
    return b->fn != NULL;
}

#define ELEMENTWISE(name_, n_in_, infer_, grad_, flags_)                                       \
    static bool name_##_block(const ch_node *n, ch_block *b)                                   \
    {                                                                                          \
        return find_block(CH_BLOCK_##name_, n->in[0], b);                                      \
    }                                                                                          \
    const ch_op ch__op_##name_ = {                                                             \
        .name = #name_,                                                                        \
        .version = 1,                                                                          \
        .n_in = n_in_,                                                                         \
        .n_out = 1,                                                                            \
        .flags = flags_,                                                                       \
        .infer = infer_,                                                                       \
        .kernels = ch__elementwise_kernels,                                                    \
        .block = name_##_block,                                                                \
        .grad = grad_,                                                                         \
        .factors = ch__factors_elementwise,                                                    \
    }

static const ch_kernel *const ch__elementwise_kernels[] = {&ch__kernel_elementwise, NULL};

/* Those that have no gradient have none because it is zero wherever it exists. */
#define UNARY(name, infer, grad)  ELEMENTWISE(name, 1, infer, grad, 0)
#define BINARY(name, infer, grad) ELEMENTWISE(name, 2, infer, grad, CH_OP_SAME_DTYPE)
#define UNARY_FLAT(name, infer)   ELEMENTWISE(name, 1, infer, NULL, CH_OP_NO_GRAD)
#define BINARY_FLAT(name, infer)                                                               \
    ELEMENTWISE(name, 2, infer, NULL, CH_OP_SAME_DTYPE | CH_OP_NO_GRAD)

/* ---- shape rules ---- */

static ch_status want_arith(const ch_infer *c, int i)
{
    ch_dtype t = c->dtype[i];

    if (ch_dtype_is_float(t) || t == CH_I8 || t == CH_I32 || t == CH_I64 || t == CH_U8)
        return CH_OK;
    return ch__infer_fail(c, "input %d is %s, want a type to compute in; cast it first", i,
                          ch_dtype_name(t));
}

static ch_status want_bool(const ch_infer *c, int i)
{
    if (c->dtype[i] == CH_BOOL)
        return CH_OK;
    return ch__infer_fail(c, "input %d is %s, want bool; compare it first", i,
                          ch_dtype_name(c->dtype[i]));
}

static ch_status want_no_string(const ch_infer *c, int i)
{
    if ((unsigned)c->dtype[i] < CH_DTYPE_COUNT && c->dtype[i] != CH_STR)
        return CH_OK;
    return ch__infer_fail(c, "input %d is %s", i, ch_dtype_name(c->dtype[i]));
}

/* All inputs broadcast together; the result has dtype t. */
static ch_status broadcast_to(ch_infer *c, ch_dtype t)
{
    ch_dims   d;
    ch_status rc = ch__infer_want_same(c);

    if (rc == CH_OK)
        rc = ch__infer_broadcast(c, 0, c->n_in, &d);
    return rc == CH_OK ? ch__infer_dims(c, 0, t, &d) : rc;
}

static ch_status arith(ch_infer *c)
{
    ch_status rc = want_arith(c, 0);

    return rc == CH_OK ? broadcast_to(c, c->dtype[0]) : rc;
}

static ch_status floats(ch_infer *c)
{
    ch_status rc = ch__infer_want_float(c, 0);

    return rc == CH_OK ? broadcast_to(c, c->dtype[0]) : rc;
}

static ch_status compared(ch_infer *c)
{
    ch_status rc = want_no_string(c, 0);

    return rc == CH_OK ? broadcast_to(c, CH_BOOL) : rc;
}

static ch_status truths(ch_infer *c)
{
    ch_status rc = want_bool(c, 0);

    return rc == CH_OK ? broadcast_to(c, CH_BOOL) : rc;
}

/* ---- gradients are written with these ---- */

static ch_node *number(ch_step *s, double x)
{
    return ch_number(s, x);
}

/* d where `condition` holds, else 0. */
static ch_node *where(ch_step *s, ch_node *condition, ch_node *d)
{
    return ch_select(condition, d, ch_cast(number(s, 0), d->dtype));
}

/* ---- arithmetic of two ---- */

static void add_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch__unbroadcast(dout[0], n->in[0]);
    din[1] = ch__unbroadcast(dout[0], n->in[1]);
}
BINARY(add, arith, add_grad);

static void sub_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch__unbroadcast(dout[0], n->in[0]);
    din[1] = ch_neg(ch__unbroadcast(dout[0], n->in[1]));
}
BINARY(sub, arith, sub_grad);

static void mul_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch__unbroadcast(ch_mul(dout[0], n->in[1]), n->in[0]);
    din[1] = ch__unbroadcast(ch_mul(dout[0], n->in[0]), n->in[1]);
}
BINARY(mul, arith, mul_grad);

/* y = a / b: da = d / b, db = -d y / b. */
static void div_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *da = ch_div(dout[0], n->in[1]);

    (void)s;
    din[0] = ch__unbroadcast(da, n->in[0]);
    din[1] = ch__unbroadcast(ch_neg(ch_mul(da, ch__out(n, 0))), n->in[1]);
}
BINARY(div, floats, div_grad);

BINARY_FLAT(floordiv, arith);

/* a mod b = a - floordiv(a, b) b. */
static void mod_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch__unbroadcast(dout[0], n->in[0]);
    din[1] =
        ch__unbroadcast(ch_neg(ch_mul(dout[0], ch_floordiv(n->in[0], n->in[1]))), n->in[1]);
}
BINARY(mod, arith, mod_grad);

/* The exponent's gradient has log a, which below 0 is nothing: there it is 0. */
static void pow_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *a = n->in[0], *b = n->in[1], *is_positive = ch_greater(a, number(s, 0));
    ch_node *log_a = ch_log(ch_select(is_positive, a, number(s, 1)));

    din[0] = ch__unbroadcast(ch_mul(dout[0], ch_mul(b, ch_pow(a, ch_sub(b, number(s, 1))))), a);
    din[1] = ch__unbroadcast(ch_mul(dout[0], ch_mul(ch__out(n, 0), log_a)), b);
}
BINARY(pow, floats, pow_grad);

static void minimum_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *is_a = ch_less_equal(n->in[0], n->in[1]);

    din[0] = ch__unbroadcast(where(s, is_a, dout[0]), n->in[0]);
    din[1] = ch__unbroadcast(where(s, ch_logical_not(is_a), dout[0]), n->in[1]);
}
BINARY(minimum, arith, minimum_grad);

static void maximum_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *is_a = ch_greater_equal(n->in[0], n->in[1]);

    din[0] = ch__unbroadcast(where(s, is_a, dout[0]), n->in[0]);
    din[1] = ch__unbroadcast(where(s, ch_logical_not(is_a), dout[0]), n->in[1]);
}
BINARY(maximum, arith, maximum_grad);

/* ---- arithmetic of one ---- */

static void neg_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s, (void)n;
    din[0] = ch_neg(dout[0]);
}
UNARY(neg, arith, neg_grad);

static void abs_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch_mul(dout[0], ch_sign(n->in[0]));
}
UNARY(abs, arith, abs_grad);

UNARY_FLAT(sign, arith);

static void square_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    din[0] = ch_mul(ch_mul(dout[0], number(s, 2)), n->in[0]);
}
UNARY(square, arith, square_grad);

/* ---- functions: y is the result, d its derivative ---- */

static void sqrt_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    din[0] = ch_div(ch_mul(dout[0], number(s, 0.5)), ch__out(n, 0));
}
UNARY(sqrt, floats, sqrt_grad);

/* -1/2 y^3 */
static void rsqrt_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *y = ch__out(n, 0);

    din[0] = ch_mul(ch_mul(dout[0], number(s, -0.5)), ch_mul(ch_square(y), y));
}
UNARY(rsqrt, floats, rsqrt_grad);

static void exp_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch_mul(dout[0], ch__out(n, 0));
}
UNARY(exp, floats, exp_grad);

static void expm1_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    din[0] = ch_mul(dout[0], ch_add(ch__out(n, 0), number(s, 1)));
}
UNARY(expm1, floats, expm1_grad);

static void log_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch_div(dout[0], n->in[0]);
}
UNARY(log, floats, log_grad);

static void log1p_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    din[0] = ch_div(dout[0], ch_add(n->in[0], number(s, 1)));
}
UNARY(log1p, floats, log1p_grad);

static void sin_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch_mul(dout[0], ch_cos(n->in[0]));
}
UNARY(sin, floats, sin_grad);

static void cos_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch_neg(ch_mul(dout[0], ch_sin(n->in[0])));
}
UNARY(cos, floats, cos_grad);

/* 1 - y^2 */
static void tanh_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    din[0] = ch_mul(dout[0], ch_sub(number(s, 1), ch_square(ch__out(n, 0))));
}
UNARY(tanh, floats, tanh_grad);

/* y (1 - y) */
static void sigmoid_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *y = ch__out(n, 0);

    din[0] = ch_mul(dout[0], ch_mul(y, ch_sub(number(s, 1), y)));
}
UNARY(sigmoid, floats, sigmoid_grad);

/* 2 / sqrt(pi) exp(-x^2) */
static void erf_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    din[0] = ch_mul(ch_mul(dout[0], number(s, 1.12837916709551257390)),
                    ch_exp(ch_neg(ch_square(n->in[0]))));
}
UNARY(erf, floats, erf_grad);

UNARY_FLAT(floor, floats);
UNARY_FLAT(ceil, floats);
UNARY_FLAT(round, floats);

/* ---- activations ---- */

/* By the result, so that the input need not be kept. */
static void relu_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    din[0] = where(s, ch_greater(ch__out(n, 0), number(s, 0)), dout[0]);
}
UNARY(relu, arith, relu_grad);

/* s (1 + x (1 - s)), s = sigmoid(x) */
static void silu_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *x = n->in[0], *y = ch_sigmoid(x), *one = number(s, 1);

    din[0] = ch_mul(dout[0], ch_mul(y, ch_add(one, ch_mul(x, ch_sub(one, y)))));
}
UNARY(silu, floats, silu_grad);

static void softplus_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch_mul(dout[0], ch_sigmoid(n->in[0]));
}
UNARY(softplus, floats, softplus_grad);

/* ---- truth ---- */

BINARY_FLAT(equal, compared);
BINARY_FLAT(not_equal, compared);
BINARY_FLAT(less, compared);
BINARY_FLAT(less_equal, compared);
BINARY_FLAT(greater, compared);
BINARY_FLAT(greater_equal, compared);

BINARY_FLAT(logical_and, truths);
BINARY_FLAT(logical_or, truths);
BINARY_FLAT(logical_xor, truths);
UNARY_FLAT(logical_not, truths);

/* ---- the functions that record them ---- */

#define RECORD_UNARY(name)                                                                     \
    ch_node *ch_##name(ch_node *x)                                                             \
    {                                                                                          \
        return ch__node(&ch__op_##name, NULL, 1, &x);                                          \
    }
RECORD_UNARY(abs)
RECORD_UNARY(sign)
RECORD_UNARY(square)
RECORD_UNARY(sqrt)
RECORD_UNARY(rsqrt)
RECORD_UNARY(exp)
RECORD_UNARY(expm1)
RECORD_UNARY(log)
RECORD_UNARY(log1p)
RECORD_UNARY(sin)
RECORD_UNARY(cos)
RECORD_UNARY(tanh)
RECORD_UNARY(sigmoid)
RECORD_UNARY(erf)
RECORD_UNARY(floor)
RECORD_UNARY(ceil)
RECORD_UNARY(round)
RECORD_UNARY(relu)
RECORD_UNARY(silu)
RECORD_UNARY(softplus)
RECORD_UNARY(logical_not)

#define RECORD_BINARY(name)                                                                    \
    ch_node *ch_##name(ch_node *a, ch_node *b)                                                 \
    {                                                                                          \
        return ch__node(&ch__op_##name, NULL, 2, ((ch_node *[]){a, b}));                       \
    }
RECORD_BINARY(add)
RECORD_BINARY(sub)
RECORD_BINARY(floordiv)
RECORD_BINARY(mod)
RECORD_BINARY(pow)
RECORD_BINARY(minimum)
RECORD_BINARY(maximum)
RECORD_BINARY(equal)
RECORD_BINARY(not_equal)
RECORD_BINARY(less)
RECORD_BINARY(less_equal)
RECORD_BINARY(greater)
RECORD_BINARY(greater_equal)
RECORD_BINARY(logical_and)
RECORD_BINARY(logical_or)
RECORD_BINARY(logical_xor)

/* ---- linear ones, which leave a gradient of a few rows what it is ---- */

static bool is_scalar(const ch_node *x)
{
    if (x == NULL)
        return false;
    for (int k = 0; k < x->dims.rank; k++)
        if (!ch__dim_is(x->dims.dim[k], 1))
            return false;
    return true;
}

/* True if b scales a sparse one: c (ids, rows) is (ids, c rows). */
static bool scales(const ch_node *a, const ch_node *b)
{
    return ch__is_sparse(a) && is_scalar(b) && b->dims.rank <= a->dims.rank;
}

/* The op of the rows, at the same ids. */
static ch_node *of_rows(const void *caller, const ch_op *op, const void *attrs, ch_node *sparse,
                        ch_node *scale)
{
    const ch_node *x = sparse->head;
    ch_step       *s = x->graph->step;
    const void    *before = ch__step_begin_at(s, caller);
    ch_node       *in[2] = {x->in[1], scale};
    ch_node       *rows = ch__node_at(caller, op, attrs, scale != NULL ? 2 : 1, in);
    ch_node       *y = rows != NULL ? ch__sparse_rows(x->in[0], rows, x->dims.dim[0]) : NULL;

    ch__step_end(s, before);
    return y;
}

ch_node *ch_mul(ch_node *a, ch_node *b)
{
    const void *caller = __builtin_return_address(0);

    if (scales(a, b))
        return of_rows(caller, &ch__op_mul, NULL, a, b);
    if (scales(b, a))
        return of_rows(caller, &ch__op_mul, NULL, b, a);
    return ch__node_at(caller, &ch__op_mul, NULL, 2, (ch_node *[]){a, b});
}

ch_node *ch_div(ch_node *a, ch_node *b)
{
    const void *caller = __builtin_return_address(0);

    if (scales(a, b))
        return of_rows(caller, &ch__op_div, NULL, a, b);
    return ch__node_at(caller, &ch__op_div, NULL, 2, (ch_node *[]){a, b});
}

ch_node *ch_neg(ch_node *x)
{
    const void *caller = __builtin_return_address(0);

    if (ch__is_sparse(x))
        return of_rows(caller, &ch__op_neg, NULL, x, NULL);
    return ch__node_at(caller, &ch__op_neg, NULL, 1, &x);
}

/* ---- with attributes ---- */

typedef struct clip_attrs {
    double least, most;
} clip_attrs;

static const ch_attr clip_rows[] = {
    CH_ATTR_FLOAT(clip_attrs, least),
    CH_ATTR_FLOAT(clip_attrs, most),
    CH_ATTR_END,
};

static ch_status clip_infer(ch_infer *c)
{
    const clip_attrs *a = c->attrs;

    if (!(a->least <= a->most))
        return ch__infer_fail(c, "least %g is not below most %g", a->least, a->most);
    return arith(c);
}

static bool clip_block(const ch_node *n, ch_block *b)
{
    const clip_attrs *a = n->attrs;

    b->param[0] = a->least;
    b->param[1] = a->most;
    return find_block(CH_BLOCK_clip, n->in[0], b);
}

static void clip_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const clip_attrs *a = n->attrs;
    ch_node          *x = n->in[0];

    din[0] = where(s,
                   ch_logical_and(ch_greater_equal(x, number(s, a->least)),
                                  ch_less_equal(x, number(s, a->most))),
                   dout[0]);
}

const ch_op ch__op_clip = {
    .name = "clip",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = clip_rows,
    .attrs_bytes = sizeof(clip_attrs),
    .infer = clip_infer,
    .kernels = ch__elementwise_kernels,
    .block = clip_block,
    .grad = clip_grad,
    .factors = ch__factors_elementwise,
};

ch_node *ch_clip(ch_node *x, double least, double most)
{
    return ch__node(&ch__op_clip, (&(clip_attrs){least, most}), 1, &x);
}

typedef struct slope_attrs {
    double alpha;
} slope_attrs;

static const ch_attr slope_rows[] = {CH_ATTR_FLOAT(slope_attrs, alpha), CH_ATTR_END};

static bool slope_block(ch_block_code code, const ch_node *n, ch_block *b)
{
    const slope_attrs *a = n->attrs;

    b->param[0] = a->alpha;
    return find_block(code, n->in[0], b);
}

static bool leaky_relu_block(const ch_node *n, ch_block *b)
{
    return slope_block(CH_BLOCK_leaky_relu, n, b);
}

static void leaky_relu_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const slope_attrs *a = n->attrs;

    din[0] = ch_select(ch_less(n->in[0], number(s, 0)), ch_mul(dout[0], number(s, a->alpha)),
                       dout[0]);
}

const ch_op ch__op_leaky_relu = {
    .name = "leaky_relu",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = slope_rows,
    .attrs_bytes = sizeof(slope_attrs),
    .infer = floats,
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

/* Below 0: alpha exp(x) = y + alpha. */
static void elu_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const slope_attrs *a = n->attrs;

    din[0] = ch_select(ch_less(n->in[0], number(s, 0)),
                       ch_mul(dout[0], ch_add(ch__out(n, 0), number(s, a->alpha))), dout[0]);
}

const ch_op ch__op_elu = {
    .name = "elu",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = slope_rows,
    .attrs_bytes = sizeof(slope_attrs),
    .infer = floats,
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

    return find_block(a->by_tanh ? CH_BLOCK_gelu_tanh : CH_BLOCK_gelu, n->in[0], b);
}

/* P(x) + x p(x): the normal distribution and its density. */
static ch_node *gelu_slope(ch_step *s, ch_node *x)
{
    ch_node *half = number(s, 0.5);
    ch_node *p =
        ch_add(half, ch_mul(half, ch_erf(ch_mul(x, number(s, 0.70710678118654752440)))));
    ch_node *density = ch_mul(number(s, 0.39894228040143267794),
                              ch_exp(ch_mul(ch_square(x), number(s, -0.5))));

    return ch_add(p, ch_mul(x, density));
}

/* x sigmoid(u), u = k (x + 0.044715 x^3): q + x q (1 - q) u'. */
static ch_node *gelu_tanh_slope(ch_step *s, ch_node *x)
{
    const double k = 1.59576912160573071176; /* 2 sqrt(2 / pi) */
    ch_node     *one = number(s, 1), *xx = ch_square(x);
    ch_node     *u = ch_mul(x, ch_add(number(s, k), ch_mul(xx, number(s, k * 0.044715))));
    ch_node     *du = ch_add(number(s, k), ch_mul(xx, number(s, 3 * k * 0.044715)));
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
    .infer = floats,
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

/* ---- select ---- */

static ch_status select_infer(ch_infer *c)
{
    ch_dims   d;
    ch_status rc = want_bool(c, 0);

    if (rc == CH_OK)
        rc = want_no_string(c, 1);
    if (rc == CH_OK && c->dtype[1] != c->dtype[2])
        rc = ch__infer_fail(c, "inputs 1 and 2 are %s and %s; cast one of them",
                            ch_dtype_name(c->dtype[1]), ch_dtype_name(c->dtype[2]));
    if (rc == CH_OK)
        rc = ch__infer_broadcast(c, 0, 3, &d);
    return rc == CH_OK ? ch__infer_dims(c, 0, c->dtype[1], &d) : rc;
}

static bool select_block(const ch_node *n, ch_block *b)
{
    return find_block(CH_BLOCK_select, n->in[1], b);
}

static void select_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *zero = ch_cast(number(s, 0), dout[0]->dtype);

    din[1] = ch__unbroadcast(ch_select(n->in[0], dout[0], zero), n->in[1]);
    din[2] = ch__unbroadcast(ch_select(n->in[0], zero, dout[0]), n->in[2]);
}

const ch_op ch__op_select = {
    .name = "select",
    .version = 1,
    .n_in = 3,
    .n_out = 1,
    .infer = select_infer,
    .kernels = ch__elementwise_kernels,
    .block = select_block,
    .grad = select_grad,
    .factors = ch__factors_elementwise,
};

/* a as b's dtype if only a is weak. The condition keeps out of it: it is bool. */
static ch_node *like(ch_node *a, const ch_node *b)
{
    bool narrows =
        a != NULL && b != NULL && ch_dtype_is_float(a->dtype) && !ch_dtype_is_float(b->dtype);

    if (a == NULL || b == NULL || !a->weak || a->dtype == b->dtype || narrows)
        return a;
    return ch__cast_weak(a, b->dtype);
}

ch_node *ch_select(ch_node *condition, ch_node *a, ch_node *b)
{
    ch_node *x = like(a, b);

    return ch__node(&ch__op_select, NULL, 3, ((ch_node *[]){condition, x, like(b, x)}));
}

/* ---- cast ---- */

typedef struct cast_attrs {
    ch_dtype dtype;
} cast_attrs;

static const ch_attr cast_rows[] = {CH_ATTR_DTYPE(cast_attrs, dtype), CH_ATTR_END};

static ch_status cast_infer(ch_infer *c)
{
    const cast_attrs *a = c->attrs;
    ch_status         rc = want_no_string(c, 0);

    if (rc == CH_OK && ((unsigned)a->dtype >= CH_DTYPE_COUNT || a->dtype == CH_STR))
        rc = ch__infer_fail(c, "to %s, want a type of numbers", ch_dtype_name(a->dtype));
    return rc == CH_OK ? ch__infer_dims(c, 0, a->dtype, &c->in[0]) : rc;
}

static bool cast_block(const ch_node *n, ch_block *b)
{
    ch_dtype from = n->in[0]->dtype;

    b->compute = from == CH_BF16 || from == CH_F16 ? CH_F32 : from;
    b->fn = ch__blocks()->cast[b->compute][n->dtype];
    return b->fn != NULL;
}

static void cast_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    if (ch_dtype_is_float(n->dtype) && ch_dtype_is_float(n->in[0]->dtype))
        din[0] = ch_cast(dout[0], n->in[0]->dtype);
}

const ch_op ch__op_cast = {
    .name = "cast",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = cast_rows,
    .attrs_bytes = sizeof(cast_attrs),
    .infer = cast_infer,
    .kernels = ch__elementwise_kernels,
    .block = cast_block,
    .grad = cast_grad,
    .factors = ch__factors_elementwise,
};

ch_node *ch__cast_weak(ch_node *x, ch_dtype dtype)
{
    return ch__node(&ch__op_cast, &(cast_attrs){dtype}, 1, &x);
}

/* Who asks for a type means it: the result is not weak. A few rows stay so between floats, where
 * the sum of casts is the cast of the sum but for rounding. */
ch_node *ch_cast(ch_node *x, ch_dtype dtype)
{
    const void *caller = __builtin_return_address(0);
    cast_attrs  a = {dtype};
    ch_node    *n;

    if (x != NULL && x->dtype == dtype && !x->weak)
        return x;
    if (x != NULL && ch__is_sparse(x) && ch_dtype_is_float(x->dtype) &&
        ch_dtype_is_float(dtype))
        return of_rows(caller, &ch__op_cast, &a, x, NULL);
    n = ch__node_at(caller, &ch__op_cast, &a, 1, &x);
    if (n != NULL)
        n->weak = false;
    return n;
}
