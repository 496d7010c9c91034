/* ops/cast.c -- select and cast, the elementwise ops with inputs and outputs of mixed dtypes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ops/blockwise.h"

/* ---- select ---- */

static ch_status select_infer(ch_infer *c)
{
    ch_dims   d;
    ch_status rc = ch__infer_want_bool(c, 0);

    if (rc == CH_OK && c->dtype[1] != c->dtype[2])
        rc = ch__infer_fail(c, "inputs 1 and 2 are %s and %s; cast one of them",
                            ch_dtype_name(c->dtype[1]), ch_dtype_name(c->dtype[2]));
    if (rc == CH_OK)
        rc = ch__infer_broadcast(c, 0, 3, &d);
    return rc == CH_OK ? ch__infer_dims(c, 0, c->dtype[1], &d) : rc;
}

static bool select_block(const ch_node *n, ch_block *b)
{
    return ch__find_block(CH_BLOCK_select, n->in[1], b);
}

static void select_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *zero = ch_cast(ch_number(s, 0), dout[0]->dtype);

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

/* Returns a cast to b's dtype if a is weak and the dtypes differ; otherwise returns a. A float
 * is not cast to an integer. ch_select does this itself, because its condition is always bool
 * and CH_OP_SAME_DTYPE would include the condition. */
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

    if ((unsigned)a->dtype >= CH_DTYPE_COUNT || a->dtype == CH_STR)
        return ch__infer_fail(c, "the target dtype is %s, want bool or a numeric dtype",
                              ch_dtype_name(a->dtype));
    return ch__infer_dims(c, 0, a->dtype, &c->in[0]);
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

/* The result is not weak, because the caller asked for the dtype explicitly. A sparse gradient
 * stays sparse if both dtypes are floats: except for rounding, the sum of the cast rows is the
 * cast of their sum. */
ch_node *ch_cast(ch_node *x, ch_dtype dtype)
{
    const void *caller = __builtin_return_address(0);
    cast_attrs  a = {dtype};
    ch_node    *n;

    if (x != NULL && x->dtype == dtype && !x->weak)
        return x;
    if (x != NULL && ch__is_sparse(x) && ch_dtype_is_float(x->dtype) &&
        ch_dtype_is_float(dtype))
        return ch__map_rows(caller, &ch__op_cast, &a, x, NULL);
    n = ch__node_at(caller, &ch__op_cast, &a, 1, &x);
    if (n != NULL)
        n->weak = false;
    return n;
}
