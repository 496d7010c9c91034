/* ops/array.c -- the same elements in another shape: reshape, transpose, broadcast_to.
 *
 * reshape is a view of its input; ch_expand_dims and ch_squeeze record it. transpose and
 * broadcast_to copy elements as boxes (ops/box.h). The main difficulty is sizes with symbols: a
 * reshape is accepted while recording only if the products of all sizes are equal, symbols
 * included. Otherwise the step is recorded again with numbers (ch__infer_want_number).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "graph/step.h"
#include "kernel/block.h"
#include "ops/box.h"
#include "ops/ops.h"

/* ---- reshape: a view ---- */

typedef struct reshape_attrs {
    ch_dims dims; /* a size of -1 could not be resolved; the shape rule then fails */
} reshape_attrs;

static const ch_attr reshape_rows[] = {
    CH_ATTR_DIMS(reshape_attrs, dims),
    CH_ATTR_END,
};

/* The product of sizes: a number times symbols, which are in rising order. */
typedef struct product {
    int64_t n;
    int     n_syms, sym[CH_MAX_RANK];
} product;

/* Sets *p to the product of d. A size of -1 counts as 1. Returns false on overflow. */
static bool product_of(const ch_dims *d, product *p)
{
    *p = (product){.n = 1};
    for (int i = 0; i < d->rank; i++) {
        int k = p->n_syms;

        if (d->dim[i].n >= 0 && !ch__mul_size(p->n, d->dim[i].n, &p->n))
            return false;
        if (d->dim[i].sym == 0)
            continue;
        for (; k > 0 && p->sym[k - 1] > d->dim[i].sym; k--)
            p->sym[k] = p->sym[k - 1];
        p->sym[k] = d->dim[i].sym;
        p->n_syms++;
    }
    return true;
}

static bool product_same(const product *a, const product *b)
{
    return a->n == b->n &&
           (a->n == 0 || (a->n_syms == b->n_syms &&
                          memcmp(a->sym, b->sym, (size_t)a->n_syms * sizeof(a->sym[0])) == 0));
}

/* Divides the symbols of a by those of b. Sets *sym to the symbol that remains, or to 0 if none
 * does. Returns false if more than one remains, or if a does not contain all symbols of b. */
static bool product_rest(const product *a, const product *b, int *sym)
{
    int k = 0;

    *sym = 0;
    for (int i = 0; i < a->n_syms; i++) {
        if (k < b->n_syms && a->sym[i] == b->sym[k])
            k++;
        else if (*sym == 0)
            *sym = a->sym[i];
        else
            return false;
    }
    return k == b->n_syms;
}

/* Replaces the only -1 in d by the size that makes d fit x. Leaves d unchanged if there are
 * several -1, or if no such size exists. */
static void reshape_resolve(const ch_dims *x, ch_dims *d)
{
    product have, known;
    int     at = -1, sym;

    if (d->rank > CH_MAX_RANK)
        return; /* the shape rule fails */
    for (int i = 0; i < d->rank; i++) {
        if (d->dim[i].n >= 0)
            continue;
        if (at >= 0 || d->dim[i].n != -1)
            return;
        at = i;
    }
    if (at < 0 || !product_of(x, &have) || !product_of(d, &known) || known.n == 0 ||
        have.n % known.n != 0 || !product_rest(&have, &known, &sym))
        return;
    d->dim[at] = (ch_dim){have.n / known.n, sym};
}

/* Returns the error for a reshape of input 0 to `want` that is not possible. If a size is a
 * symbol, the step is recorded again with numbers. */
static ch_status reshape_fail(const ch_infer *c, const ch_dims *want)
{
    char text[160];
    int  unknown = 0;

    for (int i = 0; i < want->rank; i++)
        unknown += want->dim[i].n == -1;
    if (unknown > 1)
        return ch__infer_fail(c, "%d sizes are -1, want at most 1", unknown);
    for (int i = 0; i < c->in[0].rank; i++)
        if (c->in[0].dim[i].sym != 0)
            return ch__infer_want_number(c, c->in[0].dim[i]);
    for (int i = 0; i < want->rank; i++)
        if (want->dim[i].sym != 0)
            return ch__infer_want_number(c, want->dim[i]);
    ch__dims_print(want, text, sizeof(text));
    return ch__infer_fail(c, "the elements of the input do not fit shape %s", text);
}

static ch_status reshape_infer(ch_infer *c)
{
    const reshape_attrs *a = c->attrs;
    product              have, want;
    bool                 known = true;

    if (a->dims.rank < 0 || a->dims.rank > CH_MAX_RANK)
        return ch__infer_check_dims(c, &a->dims);
    for (int i = 0; i < a->dims.rank; i++) {
        if (a->dims.dim[i].n < -1 || a->dims.dim[i].sym < 0)
            return ch__infer_check_dims(c, &a->dims);
        known &= a->dims.dim[i].n >= 0;
    }
    if (!known || !product_of(&c->in[0], &have) || !product_of(&a->dims, &want) ||
        !product_same(&have, &want))
        return reshape_fail(c, &a->dims);
    return ch__infer_dims(c, 0, c->dtype[0], &a->dims);
}

static void reshape_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch__reshape_dims(dout[0], &n->in[0]->dims);
}

/* ---- the rule of reshape: the common refinement of two shapes ----
 *
 * Both shapes are read from the first axis on. A side is the rest of an axis that no factor
 * covers yet. A size that divides the rests of both sides is the next factor of both axes:
 *
 *     (6, 4) to (2, 12)    6 and 2: factor a of size 2;  3 and 12: factor b of size 3;
 *                          4 and 4: factor c of size 4.  x is (ab, c), y is (a, bc)
 *
 * Sizes without a common divisor, as 3 and 2 in (3, 2) to (2, 3), are not divided, up to the
 * axes where the products of both sides are equal again. */

enum { EMPTY = -1 }; /* stands for a size of 0 */

typedef struct side {
    ch_dims       d;    /* sizes of 0 are multiples of EMPTY */
    ch_axis_rule *axis; /* of the input or output */
    int           at;   /* the axis */
    ch_dim        left; /* the rest of the axis */
} side;

/* Moves to the next axis whose size is not 1. Returns false if there is none. */
static bool next_axis(side *s)
{
    for (int k = s->at + 1; k < s->d.rank; k++)
        if (!ch__dim_is(s->d.dim[k], 1)) {
            s->at = k;
            s->left = s->d.dim[k];
            return true;
        }
    return false;
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    return b == 0 ? a : common_divisor(b, a % b);
}

/* Adds factor k to the axis, and divides the rest of the axis by d, the size of the factor. */
static void add_factor(side *s, int k, ch_dim d)
{
    ch_axis_rule *a = &s->axis[s->at];

    a->factor[a->n++] = (unsigned char)k;
    s->left = (ch_dim){s->left.n / d.n, d.sym != 0 ? 0 : s->left.sym};
}

static int new_factor(ch_factors *f, ch_factor_kind kind, ch_dim d)
{
    int k = ch__factor(f, kind);

    f->factor[k].size = d.sym == EMPTY ? ch__dim(0) : d;
    return k;
}

static void fix_rest(ch_factors *f, side *s)
{
    if (!ch__dim_is(s->left, 1))
        add_factor(s, new_factor(f, CH_FIX, s->left), s->left);
}

/* Sets *p to the product of the axes up to the current one. */
static void product_to(const side *s, product *p)
{
    ch_dims d = s->d;

    d.rank = s->at + 1;
    (void)product_of(&d, p); /* cannot overflow, because the whole product does not */
}

/* Fixes the rests of both sides, and the axes after them up to those where the products of both
 * sides are equal. */
static void fix_unequal(ch_factors *f, side *x, side *y)
{
    product px, py;

    fix_rest(f, x);
    fix_rest(f, y);
    product_to(x, &px);
    product_to(y, &py);
    while (!product_same(&px, &py)) {
        bool  is_x = px.n < py.n || (px.n == py.n && px.n_syms < py.n_syms);
        side *first = is_x ? x : y, *second = is_x ? y : x;

        if (next_axis(first))
            fix_rest(f, first);
        else if (next_axis(second))
            fix_rest(f, second);
        else
            return;
        product_to(x, &px);
        product_to(y, &py);
    }
}

/* Replaces the only size of 0 of both shapes by multiples of the symbol EMPTY, so that their
 * products are equal. A batch without rows has the factors of other batches then. Returns false
 * if a shape has several such sizes. */
static bool name_empty(ch_dims *x, ch_dims *y)
{
    ch_dims *d[] = {x, y};
    int64_t  rest[] = {1, 1}, divisor;
    int      at[] = {-1, -1}, n_empty = 0;

    for (int i = 0; i < 2; i++)
        for (int k = 0; k < d[i]->rank; k++) {
            if (d[i]->dim[k].n == 0) {
                at[i] = k;
                n_empty++;
            } else if (!ch__mul_size(rest[i], d[i]->dim[k].n, &rest[i])) {
                return false;
            }
        }
    if (n_empty == 0)
        return true;
    if (n_empty != 2 || at[0] < 0 || at[1] < 0)
        return false;
    divisor = common_divisor(rest[0], rest[1]);
    x->dim[at[0]] = (ch_dim){rest[1] / divisor, EMPTY};
    y->dim[at[1]] = (ch_dim){rest[0] / divisor, EMPTY};
    return true;
}

static ch_status reshape_factors(const ch_node *n, ch_factors *f)
{
    side x = {.d = n->in[0]->dims, .axis = f->in[0], .at = -1},
         y = {.d = n->dims, .axis = f->out[0], .at = -1};
    bool more = name_empty(&x.d, &y.d);

    if (!more)
        return CH_OK;
    x.left = y.left = ch__dim(1);
    for (;;) {
        ch_dim d = {1, 0};
        int    k;

        more = (!ch__dim_is(x.left, 1) || next_axis(&x)) &
               (!ch__dim_is(y.left, 1) || next_axis(&y));
        if (!more)
            break;
        d.n = common_divisor(x.left.n, y.left.n);
        d.sym = x.left.sym == y.left.sym ? x.left.sym : 0;
        if (ch__dim_is(d, 1)) {
            fix_unequal(f, &x, &y);
            continue;
        }
        k = new_factor(f, CH_PAR, d);
        add_factor(&x, k, d);
        add_factor(&y, k, d);
    }
    f->n_set_out = 1;
    return CH_OK;
}

const ch_op ch__op_reshape = {
    .name = "reshape",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .flags = CH_OP_LINEAR,
    .attrs = reshape_rows,
    .attrs_bytes = sizeof(reshape_attrs),
    .infer = reshape_infer,
    .grad = reshape_grad,
    .factors = reshape_factors,
    .local = ch__local_dims,
    .kernels = (const ch_kernel *const[]){&ch__kernel_view, NULL},
    .room = CH_ROOM_ANY,
};

static ch_node *reshape_at(const void *caller, ch_node *x, const ch_dims *dims)
{
    reshape_attrs a = {.dims = *dims};

    if (x == NULL)
        return NULL;
    if (ch__dims_same(&x->dims, dims))
        return x;
    reshape_resolve(&x->dims, &a.dims);
    return ch__node_at(caller, &ch__op_reshape, &a, 1, &x);
}

ch_node *ch__reshape_dims(ch_node *x, const ch_dims *dims)
{
    return reshape_at(__builtin_return_address(0), x, dims);
}

ch_node *ch_reshape(ch_node *x, ch_shape shape)
{
    ch_dims d = ch__dims_of(shape);

    return reshape_at(__builtin_return_address(0), x, &d);
}

/* Records error rc in the step of x and returns NULL. */
static ch_node *fail_step(const void *caller, ch_node *x, ch_status rc)
{
    ch__step_record_error(ch_node_step(x), rc, caller);
    return NULL;
}

ch_node *ch_expand_dims(ch_node *x, int axis)
{
    const void *caller = __builtin_return_address(0);
    ch_dims     d;
    int         at;

    if (x == NULL || ch_step_status(ch_node_step(x)) != CH_OK)
        return NULL;
    d = x->dims;
    if (d.rank == CH_MAX_RANK)
        return fail_step(caller, x,
                         ch__fail(CH_INVALID_ARGUMENT,
                                  "expand_dims: x already has rank %d, the largest rank",
                                  CH_MAX_RANK));
    if (!ch__axis(axis, d.rank + 1, &at))
        return fail_step(caller, x,
                         ch__fail(CH_INVALID_ARGUMENT,
                                  "expand_dims: axis %d is out of range, want %d to %d", axis,
                                  -d.rank - 1, d.rank));
    for (int i = d.rank++; i > at; i--)
        d.dim[i] = d.dim[i - 1];
    d.dim[at] = ch__dim(1);
    return reshape_at(caller, x, &d);
}

/* Sets gone[i] for each axis to remove: the n given axes or, if n is 0, all axes of size 1. */
static ch_status squeeze_axes(const ch_node *x, int n, const int *axes, bool *gone)
{
    int at;

    for (int i = 0; i < x->dims.rank; i++)
        gone[i] = n == 0 && ch__dim_is(x->dims.dim[i], 1);
    for (int i = 0; i < n; i++) {
        if (!ch__axis(axes[i], x->dims.rank, &at))
            return ch__fail(CH_INVALID_ARGUMENT,
                            "squeeze: axis %d is out of range, want %d to %d", axes[i],
                            -x->dims.rank, x->dims.rank - 1);
        if (x->dims.dim[at].sym != 0) /* the symbol may stand for 1: record with numbers */
            ch__graph_root(x->graph)->wants_numbers = true;
        if (!ch__dim_is(x->dims.dim[at], 1))
            return ch__fail(CH_INVALID_ARGUMENT, "squeeze: the size of axis %d is %s, want 1",
                            at, ch__dim_text(NULL, x->dims.dim[at]));
        gone[at] = true;
    }
    return CH_OK;
}

ch_node *ch_squeeze(ch_node *x, int n, const int *axes)
{
    const void *caller = __builtin_return_address(0);
    bool        gone[CH_MAX_RANK];
    ch_dims     d = {0};
    ch_status   rc;

    if (x == NULL || !ch__step_want(ch_node_step(x), n <= 0 || axes != NULL, "squeeze",
                                    "the list of axes", caller))
        return NULL;
    rc = squeeze_axes(x, n, axes, gone);
    if (rc != CH_OK)
        return fail_step(caller, x, rc);
    for (int i = 0; i < x->dims.rank; i++)
        if (!gone[i])
            d.dim[d.rank++] = x->dims.dim[i];
    return reshape_at(caller, x, &d);
}

/* ---- transpose ---- */

typedef struct transpose_attrs {
    ch_ints perm; /* axis i of the result is axis perm[i] of x */
} transpose_attrs;

static const ch_attr transpose_rows[] = {
    CH_ATTR_INTS(transpose_attrs, perm),
    CH_ATTR_END,
};

static ch_status transpose_infer(ch_infer *c)
{
    const transpose_attrs *a = c->attrs;
    ch_dim                 dim[CH_MAX_RANK];
    unsigned               seen = 0;

    if (a->perm.n != c->in[0].rank)
        return ch__infer_fail(c, "perm has %d axes, want %d", a->perm.n, c->in[0].rank);
    for (int i = 0; i < a->perm.n; i++) {
        int64_t axis = a->perm.at[i];

        if (axis < 0 || axis >= a->perm.n || (seen >> axis & 1) != 0)
            return ch__infer_fail(c, "axis %lld %s", (long long)axis,
                                  axis < 0 || axis >= a->perm.n ? "does not exist"
                                                                : "is listed twice");
        seen |= 1u << axis;
        dim[i] = c->in[0].dim[axis];
    }
    return ch__infer_out(c, 0, c->dtype[0], a->perm.n, dim);
}

static ch_status transpose_prepare(const ch_node *n, ch_prep *p)
{
    const transpose_attrs *a = ch__attrs(n);
    int64_t                from[CH_MAX_RANK];
    ch_box_span            s = {.rank = n->dims.rank};
    ch_boxes              *b = ch__boxes_new(n, p, 1);

    if (b == NULL)
        return CH_RESOURCE_EXHAUSTED;
    ch__node_strides(n->in[0], from);
    ch__node_strides(n, s.to);
    for (int i = 0; i < s.rank; i++) {
        s.dim[i] = n->dims.dim[i].n;
        s.from[i] = from[a->perm.at[i]];
    }
    ch__boxes_set(b, 0, n, 0, 0, &s);
    return ch__boxes_done(b, p);
}

static void transpose_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const transpose_attrs *a = ch__attrs(n);
    int                    back[CH_MAX_RANK];

    (void)s;
    for (int i = 0; i < a->perm.n; i++)
        back[a->perm.at[i]] = i;
    din[0] = ch_transpose(dout[0], a->perm.n, back);
}

static ch_status transpose_factors(const ch_node *n, ch_factors *f)
{
    const transpose_attrs *a = ch__attrs(n);
    int                    in[CH_MAX_RANK], out[CH_MAX_RANK];

    for (int i = 0; i < a->perm.n; i++)
        in[i] = ch__factor(f, CH_PAR);
    for (int i = 0; i < a->perm.n; i++)
        out[i] = in[a->perm.at[i]];
    ch__factor_map(f, 0, a->perm.n, in);
    return ch__factor_out(f, a->perm.n, out);
}

static const ch_kernel transpose_move = {"move", .prepare = transpose_prepare,
                                         .run = ch__boxes_run};

const ch_op ch__op_transpose = {
    .name = "transpose",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .flags = CH_OP_LINEAR,
    .attrs = transpose_rows,
    .attrs_bytes = sizeof(transpose_attrs),
    .infer = transpose_infer,
    .grad = transpose_grad,
    .factors = transpose_factors,
    .kernels = (const ch_kernel *const[]){&transpose_move, NULL},
    .room_rows = 1,
};

ch_node *ch_transpose(ch_node *x, int n, const int *perm)
{
    transpose_attrs a = {.perm.n = n != 0 || x == NULL ? n : x->dims.rank};
    int             at;

    if (n > 0 && perm == NULL)
        n = a.perm.n = -1; /* makes the shape rule fail */
    if (a.perm.n > CH_MAX_RANK)
        a.perm.n = CH_MAX_RANK + 1;
    for (int i = 0; i < a.perm.n && a.perm.n <= CH_MAX_RANK; i++) {
        if (n > 0)
            a.perm.at[i] = ch__axis(perm[i], n, &at) ? at : perm[i];
        else
            a.perm.at[i] = a.perm.n - 1 - i;
    }
    return ch__node(&ch__op_transpose, &a, 1, &x);
}

/* ---- broadcast_to ---- */

typedef struct broadcast_attrs {
    ch_dims dims;
} broadcast_attrs;

static const ch_attr broadcast_rows[] = {
    CH_ATTR_DIMS(broadcast_attrs, dims),
    CH_ATTR_END,
};

static ch_status broadcast_infer(ch_infer *c)
{
    const broadcast_attrs *a = c->attrs;
    ch_status              rc = ch__infer_check_dims(c, &a->dims);
    int                    skip = a->dims.rank - c->in[0].rank;

    if (rc != CH_OK)
        return rc;
    if (skip < 0)
        return ch__infer_fail(c,
                              "the input has rank %d, more than %d, the rank of the new shape",
                              c->in[0].rank, a->dims.rank);
    for (int i = 0; i < c->in[0].rank; i++) {
        ch_dim have = c->in[0].dim[i], want = a->dims.dim[skip + i];

        if (ch__dim_is(have, 1) || ch__dim_same(have, want))
            continue;
        if (have.sym != 0)
            return ch__infer_want_number(c, have);
        return ch__infer_fail(c, "size %s of axis %d cannot become %s", ch__dim_text(c, have),
                              i, ch__dim_text(c, want));
    }
    return ch__infer_dims(c, 0, c->dtype[0], &a->dims);
}

static ch_status broadcast_prepare(const ch_node *n, ch_prep *p)
{
    const ch_node *x = n->in[0];
    int            skip = n->dims.rank - x->dims.rank;
    int64_t        from[CH_MAX_RANK];
    ch_box_span    s = {.rank = n->dims.rank};
    ch_boxes      *b = ch__boxes_new(n, p, 1);

    if (b == NULL)
        return CH_RESOURCE_EXHAUSTED;
    ch__node_strides(x, from);
    ch__node_strides(n, s.to);
    for (int i = 0; i < s.rank; i++) {
        s.dim[i] = n->dims.dim[i].n;
        s.from[i] = i < skip || x->dims.dim[i - skip].n == 1 ? 0 : from[i - skip];
    }
    ch__boxes_set(b, 0, n, 0, 0, &s);
    return ch__boxes_done(b, p);
}

static void broadcast_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch__unbroadcast(dout[0], n->in[0]);
}

/* In a fused chain a broadcast is a copy, which the kernel usually drops, because a chain
 * broadcasts its inputs itself (ops/fused.c). */
static bool broadcast_block(const ch_node *n, ch_block *b)
{
    b->compute = n->dtype == CH_BF16 || n->dtype == CH_F16 ? CH_F32 : n->dtype;
    b->fn = ch__blocks()->cast[b->compute][b->compute];
    return b->fn != NULL;
}

static const ch_kernel broadcast_move = {"move", .prepare = broadcast_prepare,
                                         .run = ch__boxes_run};

const ch_op ch__op_broadcast_to = {
    .name = "broadcast_to",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = broadcast_rows,
    .attrs_bytes = sizeof(broadcast_attrs),
    .infer = broadcast_infer,
    .grad = broadcast_grad,
    .factors = ch__factors_elementwise,
    .local = ch__local_dims,
    .kernels = (const ch_kernel *const[]){&broadcast_move, NULL},
    .block = broadcast_block,
    .room = CH_ROOM_ANY,
};

static ch_node *broadcast_at(const void *caller, ch_node *x, const ch_dims *dims)
{
    broadcast_attrs a = {.dims = *dims};

    if (x == NULL || ch__dims_same(&x->dims, dims))
        return x;
    return ch__node_at(caller, &ch__op_broadcast_to, &a, 1, &x);
}

ch_node *ch__broadcast_dims(ch_node *x, const ch_dims *dims)
{
    return broadcast_at(__builtin_return_address(0), x, dims);
}

ch_node *ch_broadcast_to(ch_node *x, ch_shape shape)
{
    ch_dims d = ch__dims_of(shape);
    int     skip;

    if (x == NULL)
        return NULL;
    /* -1 if the shape rule will fail. */
    skip = d.rank <= CH_MAX_RANK ? d.rank - x->dims.rank : -1;
    for (int i = 0; i < x->dims.rank && skip >= 0; i++) /* a size of -1 means: as in x */
        if (d.dim[skip + i].n == -1)
            d.dim[skip + i] = x->dims.dim[i];
    return broadcast_at(__builtin_return_address(0), x, &d);
}
