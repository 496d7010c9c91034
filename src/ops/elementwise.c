/* ops/elementwise.c -- elementwise ops: arithmetic, functions, comparisons, logic.
 *
 * Most ops are a gradient and a macro line (ops/blockwise.h). The arithmetic is in the block
 * functions of kernel/block.h, and all ops use the kernel of ops/fused.c.
 *
 * Invariant: ch_mul, ch_div and ch_neg of a sparse gradient with a scalar stay sparse. They are
 * applied to the rows, and the ids stay the same.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ops/blockwise.h"
#include "ops/lookup.h"

/* ---- common functions ---- */

bool ch__find_block(ch_block_code code, const ch_node *like, ch_block *b)
{
    b->compute = like->dtype == CH_BF16 || like->dtype == CH_F16 ? CH_F32 : like->dtype;
    b->fn = ch__blocks()->fn[code][b->compute];
    return b->fn != NULL;
}

const ch_kernel *const ch__elementwise_kernels[] = {&ch__kernel_elementwise, NULL};

ch_node *ch__masked(ch_step *s, ch_node *condition, ch_node *d)
{
    return ch_select(condition, d, ch_cast(ch_number(s, 0), ch_node_dtype(d)));
}

/* ---- shape rules ---- */

ch_status ch__infer_want_arith(const ch_infer *c, int i)
{
    ch_dtype t = c->dtype[i];

    if (ch_dtype_is_float(t) || t == CH_I8 || t == CH_I32 || t == CH_I64 || t == CH_U8)
        return CH_OK;
    return ch__infer_fail(
        c, "input %d is %s, want a float type, i8, i32, i64 or u8; cast it first", i,
        ch_dtype_name(t));
}

ch_status ch__infer_want_bool(const ch_infer *c, int i)
{
    if (c->dtype[i] == CH_BOOL)
        return CH_OK;
    return ch__infer_fail(c, "input %d is %s, want bool; compare it first", i,
                          ch_dtype_name(c->dtype[i]));
}

/* Broadcasts all inputs, which must have the same dtype, and sets output 0 to dtype t. */
static ch_status broadcast_to(ch_infer *c, ch_dtype t)
{
    ch_dims   d;
    ch_status rc = ch__infer_want_same(c);

    if (rc == CH_OK)
        rc = ch__infer_broadcast(c, 0, c->n_in, &d);
    return rc == CH_OK ? ch__infer_dims(c, 0, t, &d) : rc;
}

ch_status ch__infer_arith(ch_infer *c)
{
    ch_status rc = ch__infer_want_arith(c, 0);

    return rc == CH_OK ? broadcast_to(c, c->dtype[0]) : rc;
}

ch_status ch__infer_floats(ch_infer *c)
{
    ch_status rc = ch__infer_want_float(c, 0);

    return rc == CH_OK ? broadcast_to(c, c->dtype[0]) : rc;
}

ch_status ch__infer_compared(ch_infer *c)
{
    return broadcast_to(c, CH_BOOL);
}

ch_status ch__infer_logical(ch_infer *c)
{
    ch_status rc = ch__infer_want_bool(c, 0);

    return rc == CH_OK ? broadcast_to(c, CH_BOOL) : rc;
}

/* ---- sparse gradients ---- */

static bool is_scalar(const ch_node *x)
{
    if (x == NULL)
        return false;
    for (int k = 0; k < x->dims.rank; k++)
        if (!ch__dim_is(x->dims.dim[k], 1))
            return false;
    return true;
}

/* Returns true if a is a sparse gradient and b a scalar: then a * b is (ids, rows * b). */
static bool scales(const ch_node *a, const ch_node *b)
{
    return ch__is_sparse(a) && is_scalar(b) && b->dims.rank <= a->dims.rank;
}

ch_node *ch__map_rows(const void *caller, const ch_op *op, const void *attrs, ch_node *sparse,
                      ch_node *scale)
{
    const ch_node *x = sparse->head;
    ch_step       *s = ch_node_step(x);
    const void    *before = ch__step_begin_at(s, caller, NULL);
    ch_node       *in[2] = {x->in[1], scale};
    ch_node       *rows = ch__node_at(caller, op, attrs, scale != NULL ? 2 : 1, in);
    ch_node       *y = rows != NULL ? ch__sparse_rows(x->in[0], rows, x->dims.dim[0]) : NULL;

    ch__step_end(s, before);
    return y;
}

/* ---- binary arithmetic ---- */

static void add_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch__unbroadcast(dout[0], n->in[0]);
    din[1] = ch__unbroadcast(dout[0], n->in[1]);
}
ELEMENTWISE(add, 2, ch__infer_arith, add_grad, CH_OP_SAME_DTYPE | CH_OP_LINEAR)
RECORD_BINARY(add)

static void sub_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch__unbroadcast(dout[0], n->in[0]);
    din[1] = ch_neg(ch__unbroadcast(dout[0], n->in[1]));
}
ELEMENTWISE(sub, 2, ch__infer_arith, sub_grad, CH_OP_SAME_DTYPE | CH_OP_LINEAR)
RECORD_BINARY(sub)

static void mul_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch__unbroadcast(ch_mul(dout[0], n->in[1]), n->in[0]);
    din[1] = ch__unbroadcast(ch_mul(dout[0], n->in[0]), n->in[1]);
}
ELEMENTWISE(mul, 2, ch__infer_arith, mul_grad,
            CH_OP_SAME_DTYPE | CH_OP_LINEAR_0 | CH_OP_LINEAR_1)

ch_node *ch_mul(ch_node *a, ch_node *b)
{
    const void *caller = __builtin_return_address(0);

    if (scales(a, b))
        return ch__map_rows(caller, &ch__op_mul, NULL, a, b);
    if (scales(b, a))
        return ch__map_rows(caller, &ch__op_mul, NULL, b, a);
    return ch__node_at(caller, &ch__op_mul, NULL, 2, (ch_node *[]){a, b});
}

/* y = a / b: da = d / b, db = -d y / b. */
static void div_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *da = ch_div(dout[0], n->in[1]);

    (void)s;
    din[0] = ch__unbroadcast(da, n->in[0]);
    din[1] = ch__unbroadcast(ch_neg(ch_mul(da, ch__out(n, 0))), n->in[1]);
}
ELEMENTWISE(div, 2, ch__infer_floats, div_grad, CH_OP_SAME_DTYPE | CH_OP_LINEAR_0)

ch_node *ch_div(ch_node *a, ch_node *b)
{
    const void *caller = __builtin_return_address(0);

    if (scales(a, b))
        return ch__map_rows(caller, &ch__op_div, NULL, a, b);
    return ch__node_at(caller, &ch__op_div, NULL, 2, (ch_node *[]){a, b});
}

BINARY_FLAT(floordiv, ch__infer_arith)

/* a mod b = a - floordiv(a, b) b. */
static void mod_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch__unbroadcast(dout[0], n->in[0]);
    din[1] =
        ch__unbroadcast(ch_neg(ch_mul(dout[0], ch_floordiv(n->in[0], n->in[1]))), n->in[1]);
}
BINARY(mod, ch__infer_arith, mod_grad)

/* The gradient of the exponent contains log a, which is not defined for a <= 0. There this
 * gradient is 0. */
static void pow_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *a = n->in[0], *b = n->in[1], *is_positive = ch_greater(a, ch_number(s, 0));
    ch_node *log_a = ch_log(ch_select(is_positive, a, ch_number(s, 1)));
    /* a^0 is 1 for every a, including 0. So b * a^(b - 1) must not become 0 * infinity. */
    ch_node *is_flat = ch_equal(b, ch_number(s, 0));
    ch_node *power = ch_pow(a, ch_sub(ch_select(is_flat, ch_number(s, 1), b), ch_number(s, 1)));

    din[0] = ch__unbroadcast(ch_mul(dout[0], ch_mul(b, power)), a);
    din[1] = ch__unbroadcast(ch_mul(dout[0], ch_mul(ch__out(n, 0), log_a)), b);
}
BINARY(pow, ch__infer_floats, pow_grad)

static void minimum_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *is_a = ch_less_equal(n->in[0], n->in[1]);

    din[0] = ch__unbroadcast(ch__masked(s, is_a, dout[0]), n->in[0]);
    din[1] = ch__unbroadcast(ch__masked(s, ch_logical_not(is_a), dout[0]), n->in[1]);
}
BINARY(minimum, ch__infer_arith, minimum_grad)

static void maximum_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *is_a = ch_greater_equal(n->in[0], n->in[1]);

    din[0] = ch__unbroadcast(ch__masked(s, is_a, dout[0]), n->in[0]);
    din[1] = ch__unbroadcast(ch__masked(s, ch_logical_not(is_a), dout[0]), n->in[1]);
}
BINARY(maximum, ch__infer_arith, maximum_grad)

/* ---- unary arithmetic ---- */

static void neg_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s, (void)n;
    din[0] = ch_neg(dout[0]);
}
ELEMENTWISE(neg, 1, ch__infer_arith, neg_grad, CH_OP_LINEAR)

ch_node *ch_neg(ch_node *x)
{
    const void *caller = __builtin_return_address(0);

    if (ch__is_sparse(x))
        return ch__map_rows(caller, &ch__op_neg, NULL, x, NULL);
    return ch__node_at(caller, &ch__op_neg, NULL, 1, &x);
}

static void abs_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch_mul(dout[0], ch_sign(n->in[0]));
}
UNARY(abs, ch__infer_arith, abs_grad)

UNARY_FLAT(sign, ch__infer_arith)

static void square_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    din[0] = ch_mul(ch_mul(dout[0], ch_number(s, 2)), n->in[0]);
}
UNARY(square, ch__infer_arith, square_grad)

/* ---- clip ---- */

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
        return ch__infer_fail(c, "least is %g and most %g, want least <= most", a->least,
                              a->most);
    return ch__infer_arith(c);
}

static bool clip_block(const ch_node *n, ch_block *b)
{
    const clip_attrs *a = n->attrs;

    b->param[0] = a->least;
    b->param[1] = a->most;
    return ch__find_block(CH_BLOCK_clip, n->in[0], b);
}

static void clip_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const clip_attrs *a = n->attrs;
    ch_node          *x = n->in[0];

    din[0] = ch__masked(s,
                        ch_logical_and(ch_greater_equal(x, ch_number(s, a->least)),
                                       ch_less_equal(x, ch_number(s, a->most))),
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

/* ---- functions; y in the formulas is the result ---- */

static void sqrt_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    din[0] = ch_div(ch_mul(dout[0], ch_number(s, 0.5)), ch__out(n, 0));
}
UNARY(sqrt, ch__infer_floats, sqrt_grad)

/* -1/2 y^3 */
static void rsqrt_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *y = ch__out(n, 0);

    din[0] = ch_mul(ch_mul(dout[0], ch_number(s, -0.5)), ch_mul(ch_square(y), y));
}
UNARY(rsqrt, ch__infer_floats, rsqrt_grad)

static void exp_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch_mul(dout[0], ch__out(n, 0));
}
UNARY(exp, ch__infer_floats, exp_grad)

static void expm1_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    din[0] = ch_mul(dout[0], ch_add(ch__out(n, 0), ch_number(s, 1)));
}
UNARY(expm1, ch__infer_floats, expm1_grad)

static void log_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch_div(dout[0], n->in[0]);
}
UNARY(log, ch__infer_floats, log_grad)

static void log1p_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    din[0] = ch_div(dout[0], ch_add(n->in[0], ch_number(s, 1)));
}
UNARY(log1p, ch__infer_floats, log1p_grad)

static void sin_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch_mul(dout[0], ch_cos(n->in[0]));
}
UNARY(sin, ch__infer_floats, sin_grad)

static void cos_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch_neg(ch_mul(dout[0], ch_sin(n->in[0])));
}
UNARY(cos, ch__infer_floats, cos_grad)

/* 1 - y^2 */
static void tanh_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    din[0] = ch_mul(dout[0], ch_sub(ch_number(s, 1), ch_square(ch__out(n, 0))));
}
UNARY(tanh, ch__infer_floats, tanh_grad)

/* y (1 - y) */
static void sigmoid_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *y = ch__out(n, 0);

    din[0] = ch_mul(dout[0], ch_mul(y, ch_sub(ch_number(s, 1), y)));
}
UNARY(sigmoid, ch__infer_floats, sigmoid_grad)

/* 2 / sqrt(pi) exp(-x^2) */
static void erf_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    din[0] = ch_mul(ch_mul(dout[0], ch_number(s, 1.12837916709551257390)),
                    ch_exp(ch_neg(ch_square(n->in[0]))));
}
UNARY(erf, ch__infer_floats, erf_grad)

UNARY_FLAT(floor, ch__infer_floats)
UNARY_FLAT(ceil, ch__infer_floats)
UNARY_FLAT(round, ch__infer_floats)

/* ---- comparisons and logic ---- */

BINARY_FLAT(equal, ch__infer_compared)
BINARY_FLAT(not_equal, ch__infer_compared)
BINARY_FLAT(less, ch__infer_compared)
BINARY_FLAT(less_equal, ch__infer_compared)
BINARY_FLAT(greater, ch__infer_compared)
BINARY_FLAT(greater_equal, ch__infer_compared)

BINARY_FLAT(logical_and, ch__infer_logical)
BINARY_FLAT(logical_or, ch__infer_logical)
BINARY_FLAT(logical_xor, ch__infer_logical)
UNARY_FLAT(logical_not, ch__infer_logical)
