/* ops/array_join.c -- joining and splitting arrays: concat, stack, split.
 *
 * All ops copy elements as boxes (ops/box.h), one box for each joined or split array. stack is
 * a composite of expand_dims and concat. `part` is internal: it is the gradient of concat when
 * sizes along the axis are symbols. Its position and size are then sums of symbols, which a
 * slice cannot express.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "graph/step.h"
#include "ops/box.h"
#include "ops/ops.h"

/* ---- concat ---- */

typedef struct concat_attrs {
    int64_t axis;
    ch_dims total; /* rank 1: the sum of the sizes along the axis; rank 0: not known */
} concat_attrs;

static const ch_attr concat_rows[] = {
    CH_ATTR_INT(concat_attrs, axis),
    CH_ATTR_DIMS(concat_attrs, total),
    CH_ATTR_END,
};

/* Fails unless inputs 0 and i have the same rank and, except along the axis, the same sizes. */
static ch_status concat_check(const ch_infer *c, int i, int axis)
{
    if (c->in[i].rank != c->in[0].rank)
        return ch__infer_fail(c, "inputs 0 and %d have ranks %d and %d, want the same rank", i,
                              c->in[0].rank, c->in[i].rank);
    for (int k = 0; k < c->in[0].rank; k++) {
        ch_dim a = c->in[0].dim[k], b = c->in[i].dim[k];

        if (k == axis || ch__dim_same(a, b))
            continue;
        if (a.sym != 0 || b.sym != 0)
            return ch__infer_want_number(c, a.sym != 0 ? a : b);
        return ch__infer_fail(c, "sizes %s and %s of axis %d differ (inputs 0 and %d)",
                              ch__dim_text(c, a), ch__dim_text(c, b), k, i);
    }
    return CH_OK;
}

/* Sets *out to the sum of the sizes along the axis. The sum of different symbols is a new
 * symbol, unless the attribute `total` gives the sum. */
static ch_status concat_total(ch_infer *c, int axis, ch_dim *out)
{
    const concat_attrs *a = c->attrs;
    ch_dim              total = c->in[0].dim[axis];
    bool                known = total.sym == 0;

    for (int i = 1; i < c->n_in; i++) {
        int64_t sum;

        known &= c->in[i].dim[axis].sym == 0;
        if (__builtin_add_overflow(total.n, c->in[i].dim[axis].n, &sum))
            return ch__infer_fail(c, "the sizes of axis %d add up to more than 63 bits", axis);
        if (a->total.rank == 0 || known)
            total = ch__infer_add(c, total, c->in[i].dim[axis]);
    }
    *out = a->total.rank == 0 ? total : a->total.dim[0];
    if (known && !ch__dim_same(*out, total))
        return ch__infer_fail(c, "the sizes of axis %d add up to %s, want %s", axis,
                              ch__dim_text(c, total), ch__dim_text(c, *out));
    return CH_OK;
}

static ch_status concat_infer(ch_infer *c)
{
    const concat_attrs *a = c->attrs;
    ch_status           rc = ch__infer_check_dims(c, &a->total);
    ch_dims             d;
    int                 axis;

    if (rc != CH_OK || c->n_in == 0 || a->total.rank > 1)
        return rc != CH_OK ? rc : ch__infer_fail(c, "nothing to join");
    rc = ch__infer_want_same(c);
    if (rc == CH_OK)
        rc = ch__infer_axis(c, a->axis, c->in[0].rank, &axis);
    for (int i = 1; i < c->n_in && rc == CH_OK; i++)
        rc = concat_check(c, i, axis);
    if (rc != CH_OK)
        return rc;
    d = c->in[0];
    rc = concat_total(c, axis, &d.dim[axis]);
    return rc != CH_OK ? rc : ch__infer_dims(c, 0, c->dtype[0], &d);
}

static ch_status concat_prepare(const ch_node *n, ch_prep *p)
{
    const concat_attrs *a = ch__attrs(n);
    ch_box_span         s = {.rank = n->dims.rank};
    ch_boxes           *b = ch__boxes_new(n, p, n->n_in);
    int                 axis;

    if (b == NULL)
        return CH_RESOURCE_EXHAUSTED;
    (void)ch__axis(a->axis, s.rank, &axis);
    ch__node_strides(n, s.to);
    for (int i = 0; i < n->n_in; i++) {
        ch__node_strides(n->in[i], s.from);
        for (int k = 0; k < s.rank; k++)
            s.dim[k] = n->in[i]->dims.dim[k].n;
        ch__boxes_set(b, i, n, i, 0, &s);
        s.to_begin += s.dim[axis] * s.to[axis];
    }
    return ch__boxes_done(b, p);
}

/* The position of an input along the axis is known only if the sizes of the inputs before it
 * are numbers. A part may have no elements of an input. */
static ch_status concat_factors(const ch_node *n, ch_factors *f)
{
    const concat_attrs *a = ch__attrs(n);
    int64_t             at = 0;
    int                 all[CH_MAX_RANK], axis, rank = n->dims.rank;
    bool                is_known = true;

    if (!ch__axis(a->axis, rank, &axis))
        return CH_OK;
    for (int i = 0; i < n->n_in - 1; i++)
        is_known &= n->in[i]->dims.dim[axis].sym == 0;
    for (int k = 0; k < rank; k++)
        all[k] = ch__factor(f, k != axis || is_known ? CH_PAR : CH_FIX);
    f->factor[all[axis]].size = n->dims.dim[axis];
    (void)ch__factor_out(f, rank, all);
    all[axis] = is_known ? all[axis] : -1;
    for (int i = 0; i < n->n_in; i++) {
        ch__factor_map(f, i, rank, all);
        if (is_known)
            ch__factor_window(f, i, axis, (ch_axis_map){1, 1, -at, -at});
        at += n->in[i]->dims.dim[axis].n;
    }
    return CH_OK;
}

static ch_status concat_local(const ch_node *n, const ch_call_part *part, void *attrs)
{
    concat_attrs *a = attrs;
    int           axis;

    if (a->total.rank == 1 && ch__axis(a->axis, n->dims.rank, &axis))
        a->total.dim[0] = ch__dim(part->out[0].size[axis]);
    return CH_OK;
}

static const ch_kernel concat_move = {"move", .prepare = concat_prepare, .run = ch__boxes_run};

static void concat_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[]);

const ch_op ch__op_concat = {
    .name = "concat",
    .version = 1,
    .n_in = -1,
    .n_out = 1,
    .flags = CH_OP_SAME_DTYPE,
    .attrs = concat_rows,
    .attrs_bytes = sizeof(concat_attrs),
    .infer = concat_infer,
    .grad = concat_grad,
    .factors = concat_factors,
    .local = concat_local,
    .kernels = (const ch_kernel *const[]){&concat_move, NULL},
    .room_rows = CH_ROOM_ANY,
};

ch_node *ch_concat(int n, ch_node *const *x, int axis)
{
    n = x != NULL && n > 0 ? n : 0; /* the shape rule fails if there are no inputs */
    return ch__node(&ch__op_concat, &(concat_attrs){.axis = axis}, n, x);
}

ch_node *ch__concat_to(int n, ch_node *const *x, int axis, ch_dim total)
{
    concat_attrs a = {.axis = axis, .total = {.rank = 1, .dim = {total}}};

    return ch__node(&ch__op_concat, &a, n, x);
}

/* ---- part: elements [skip, skip + size) of an axis; sizes may contain symbols ---- */

typedef struct part_attrs {
    int64_t axis;
    /* Sums, each a list of terms: elements before the part, in the part (a single term) and
     * after the part. Together they are the size of the axis. */
    ch_dims skip, size, rest;
} part_attrs;

static const ch_attr part_rows[] = {
    CH_ATTR_INT(part_attrs, axis),
    CH_ATTR_DIMS(part_attrs, skip),
    CH_ATTR_DIMS(part_attrs, size),
    CH_ATTR_DIMS(part_attrs, rest),
    CH_ATTR_END,
};

/* Adds d to a list of terms, which has a term for each symbol. Returns false if the list is
 * full or the sum overflows. */
static bool add_term(ch_dims *terms, ch_dim d)
{
    int i = 0;

    while (i < terms->rank && terms->dim[i].sym != d.sym)
        i++;
    if (i == CH_MAX_RANK)
        return false;
    if (i == terms->rank)
        terms->dim[terms->rank++] = ch__dim(0);
    return !__builtin_add_overflow(terms->dim[i].n, d.n, &d.n) &&
           (terms->dim[i] = (ch_dim){d.n, d.sym}, true);
}

/* Returns true if no term has a symbol. */
static bool are_numbers(const ch_dims *terms)
{
    for (int i = 0; i < terms->rank; i++)
        if (terms->dim[i].sym != 0)
            return false;
    return true;
}

/* Sets *sum to the sum of terms that are numbers. Returns false on overflow. */
static bool sum_terms(const ch_dims *terms, int64_t *sum)
{
    *sum = 0;
    for (int i = 0; i < terms->rank; i++)
        if (__builtin_add_overflow(*sum, terms->dim[i].n, sum))
            return false;
    return true;
}

static ch_status part_infer(ch_infer *c)
{
    const part_attrs *a = c->attrs;
    int64_t           skip, size = 0, rest = 0, sum;
    ch_dims           d = c->in[0];
    int               axis;
    ch_status         rc = ch__infer_axis(c, a->axis, d.rank, &axis);

    if (rc == CH_OK)
        rc = ch__infer_check_dims(c, &a->skip);
    if (rc == CH_OK)
        rc = ch__infer_check_dims(c, &a->size);
    if (rc == CH_OK)
        rc = ch__infer_check_dims(c, &a->rest);
    if (rc != CH_OK)
        return rc;
    if (a->size.rank != 1)
        return ch__infer_fail(c, "size has %d terms, want 1", a->size.rank);
    if (d.dim[axis].sym == 0 && are_numbers(&a->skip) && are_numbers(&a->size) &&
        are_numbers(&a->rest) &&
        (!sum_terms(&a->skip, &skip) || !sum_terms(&a->size, &size) ||
         !sum_terms(&a->rest, &rest) || __builtin_add_overflow(skip, size, &sum) ||
         __builtin_add_overflow(sum, rest, &sum) || sum != d.dim[axis].n))
        return ch__infer_fail(c,
                              "skip, size and rest are %lld, %lld and %lld, want the size of "
                              "axis %d as their sum",
                              (long long)skip, (long long)size, (long long)rest, axis);
    d.dim[axis] = a->size.dim[0];
    return ch__infer_dims(c, 0, c->dtype[0], &d);
}

static ch_status part_prepare(const ch_node *n, ch_prep *p)
{
    const part_attrs *a = ch__attrs(n);
    ch_box_span       s = {.rank = n->dims.rank};
    ch_boxes         *b = ch__boxes_new(n, p, 1);
    int64_t           skip;
    int               axis;

    if (b == NULL)
        return CH_RESOURCE_EXHAUSTED;
    (void)ch__axis(a->axis, s.rank, &axis);
    (void)sum_terms(&a->skip, &skip);
    ch__node_strides(n->in[0], s.from);
    ch__node_strides(n, s.to);
    for (int k = 0; k < s.rank; k++)
        s.dim[k] = n->dims.dim[k].n;
    s.from_begin = skip * s.from[axis];
    ch__boxes_set(b, 0, n, 0, 0, &s);
    return ch__boxes_done(b, p);
}

/* Records zeros for each term, with d's dtype and sizes, except that the size along the axis is
 * the term. Returns the number of terms. */
static int zeros_for(ch_step *s, const ch_node *d, int axis, const ch_dims *terms,
                     ch_node **out)
{
    for (int i = 0; i < terms->rank; i++) {
        ch_dims dims = d->dims;

        dims.dim[axis] = terms->dim[i];
        out[i] = ch__fill_dims(s, d->dtype, &dims, 0.0);
    }
    return terms->rank;
}

static void part_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const part_attrs *a = ch__attrs(n);
    ch_node          *x[2 * CH_MAX_RANK + 1];
    int               axis, k;

    (void)ch__axis(a->axis, n->dims.rank, &axis);
    k = zeros_for(s, dout[0], axis, &a->skip, x);
    x[k++] = dout[0];
    k += zeros_for(s, dout[0], axis, &a->rest, x + k);
    din[0] = ch__concat_to(k, x, axis, n->in[0]->dims.dim[axis]);
}

static ch_status part_factors(const ch_node *n, ch_factors *f)
{
    const part_attrs *a = ch__attrs(n);
    int64_t           skip = 0;
    int               all[CH_MAX_RANK], axis, rank = n->dims.rank;
    bool              is_known = are_numbers(&a->skip) && sum_terms(&a->skip, &skip);

    if (!ch__axis(a->axis, rank, &axis))
        return CH_OK;
    for (int k = 0; k < rank; k++)
        all[k] = ch__factor(f, k != axis || is_known ? CH_PAR : CH_FIX);
    (void)ch__factor_out(f, rank, all);
    all[axis] = is_known ? all[axis] : -1;
    ch__factor_map(f, 0, rank, all);
    if (is_known)
        ch__factor_window(f, 0, axis, (ch_axis_map){1, 1, skip, skip});
    return CH_OK;
}

/* The input of a part of the call begins with its first element. */
static ch_status part_local(const ch_node *n, const ch_call_part *part, void *attrs)
{
    part_attrs *a = attrs;
    int64_t     skip, rest;
    int         axis;

    (void)ch__axis(a->axis, n->dims.rank, &axis);
    (void)sum_terms(&a->skip, &skip);
    skip += part->out[0].begin[axis] - part->in[0].begin[axis];
    rest = part->in[0].size[axis] - skip - part->out[0].size[axis];
    a->skip = (ch_dims){.rank = 1, .dim = {ch__dim(skip)}};
    a->size.dim[0] = ch__dim(part->out[0].size[axis]);
    a->rest = (ch_dims){.rank = 1, .dim = {ch__dim(rest)}};
    return CH_OK;
}

static const ch_kernel part_move = {"move", .prepare = part_prepare, .run = ch__boxes_run};

const ch_op ch__op_part = {
    .name = "part",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = part_rows,
    .attrs_bytes = sizeof(part_attrs),
    .infer = part_infer,
    .grad = part_grad,
    .factors = part_factors,
    .local = part_local,
    .kernels = (const ch_kernel *const[]){&part_move, NULL},
    .room_rows = 1,
};

/* Returns the part of d that belongs to input i of n. d has the shape of the concatenation of
 * n's inputs along the axis. */
static ch_node *part_of(const ch_node *n, ch_node *d, int axis, int i)
{
    part_attrs a = {.axis = axis, .size = {.rank = 1, .dim = {n->in[i]->dims.dim[axis]}}};
    bool       fits = true;

    for (int k = 0; k < n->n_in && fits; k++)
        if (k != i)
            fits = add_term(k < i ? &a.skip : &a.rest, n->in[k]->dims.dim[axis]);
    if (fits)
        return ch__node(&ch__op_part, &a, 1, &d);
    ch__graph_root(d->graph)->wants_numbers = true;
    ch__step_record_error(ch_node_step(d),
                          ch__fail(CH_INVALID_ARGUMENT,
                                   "concat: the gradient needs more than %d size symbols",
                                   CH_MAX_RANK),
                          n->caller);
    return NULL;
}

/* Records a `part` for each input along axis 0, where parts are views, and when a size is a
 * symbol. Otherwise a single split makes all gradients. */
static void concat_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const concat_attrs *a = ch__attrs(n);
    int64_t             sizes[CH_MAX_INTS];
    bool                parts = n->n_in > CH_MAX_INTS;
    int                 axis;

    (void)s;
    (void)ch__axis(a->axis, n->dims.rank, &axis);
    for (int i = 0; i < n->n_in && !parts; i++) {
        sizes[i] = n->in[i]->dims.dim[axis].n;
        parts = axis == 0 || n->in[i]->dims.dim[axis].sym != 0;
    }
    if (!parts)
        ch_split(dout[0], axis, n->n_in, sizes, din);
    for (int i = 0; i < n->n_in && parts; i++)
        din[i] = part_of(n, dout[0], axis, i);
}

/* ---- split ---- */

typedef struct split_attrs {
    int64_t axis, parts;
    ch_ints sizes; /* of the parts; empty: all parts have the same size */
} split_attrs;

static const ch_attr split_rows[] = {
    CH_ATTR_INT(split_attrs, axis),
    CH_ATTR_INT(split_attrs, parts),
    CH_ATTR_INTS(split_attrs, sizes),
    CH_ATTR_END,
};

static ch_status split_check(const ch_infer *c, int axis)
{
    const split_attrs *a = c->attrs;
    ch_dim             d = c->in[0].dim[axis];
    int64_t            sum = 0;
    ch_status          rc = ch__infer_want_number(c, d);

    if (rc != CH_OK)
        return rc;
    if (a->sizes.n < 0 || a->sizes.n > CH_MAX_INTS ||
        (a->sizes.n > 0 && a->sizes.n != a->parts))
        return ch__infer_fail(c, "there are %d sizes for %lld parts, want one for each part",
                              a->sizes.n, (long long)a->parts);
    if (a->parts < 1 || a->parts > CH_MAX_OUT)
        return ch__infer_fail(c, "%lld parts, want 1 to %d", (long long)a->parts, CH_MAX_OUT);
    if (a->sizes.n == 0)
        return d.n % a->parts == 0
                   ? CH_OK
                   : ch__infer_fail(
                         c, "size %lld of axis %d cannot be split into %lld equal parts",
                         (long long)d.n, axis, (long long)a->parts);
    for (int i = 0; i < a->sizes.n; i++)
        if (a->sizes.at[i] < 0 || __builtin_add_overflow(sum, a->sizes.at[i], &sum))
            return ch__infer_fail(c, "part %d has size %lld, want 0 or more", i,
                                  (long long)a->sizes.at[i]);
    return sum == d.n
               ? CH_OK
               : ch__infer_fail(c, "the parts have %lld elements in all, but axis %d has %lld",
                                (long long)sum, axis, (long long)d.n);
}

static ch_status split_infer(ch_infer *c)
{
    const split_attrs *a = c->attrs;
    ch_dims            d = c->in[0];
    int                axis;
    ch_status          rc = ch__infer_axis(c, a->axis, d.rank, &axis);

    if (rc == CH_OK)
        rc = split_check(c, axis);
    for (int i = 0; rc == CH_OK && i < a->parts; i++) {
        d.dim[axis] =
            ch__dim(a->sizes.n > 0 ? a->sizes.at[i] : c->in[0].dim[axis].n / a->parts);
        rc = ch__infer_dims(c, i, c->dtype[0], &d);
    }
    return rc;
}

static ch_status split_prepare(const ch_node *n, ch_prep *p)
{
    const split_attrs *a = ch__attrs(n);
    ch_box_span        s = {.rank = n->dims.rank};
    ch_boxes          *b = ch__boxes_new(n, p, n->n_out);
    int                axis;

    if (b == NULL)
        return CH_RESOURCE_EXHAUSTED;
    (void)ch__axis(a->axis, s.rank, &axis);
    ch__node_strides(n->in[0], s.from);
    for (int i = 0; i < n->n_out; i++) {
        ch__node_strides(&n[i], s.to);
        for (int k = 0; k < s.rank; k++)
            s.dim[k] = n[i].dims.dim[k].n;
        ch__boxes_set(b, i, n, 0, i, &s);
        s.from_begin += s.dim[axis] * s.from[axis];
    }
    return ch__boxes_done(b, p);
}

static void split_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const split_attrs *a = ch__attrs(n);
    ch_node           *d[CH_MAX_OUT];

    (void)s;
    for (int i = 0; i < n->n_out; i++)
        d[i] = dout[i] != NULL ? dout[i] : ch_zeros_like(ch__out(n, i));
    din[0] = ch_concat(n->n_out, d, (int)a->axis);
}

/* The outputs have different ranges of the axis, so a part of the axis would be parts of some
 * outputs only. If the axis is divided, split_expand takes its place. */
static ch_status split_factors(const ch_node *n, ch_factors *f)
{
    const split_attrs *a = ch__attrs(n);
    int                all[CH_MAX_RANK], axis, rank = n->dims.rank;

    if (!ch__axis(a->axis, rank, &axis))
        return CH_OK;
    for (int k = 0; k < rank; k++)
        all[k] = ch__factor(f, k == axis ? CH_FIX : CH_PAR);
    ch__factor_map(f, 0, rank, all);
    all[axis] = -1;
    for (int i = 0; i < n->n_out; i++)
        (void)ch__factor_out(f, rank, all);
    return CH_OK;
}

static void split_slices(ch_node *x, int axis, int n, const int64_t *sizes, ch_node **out);

static bool split_expand(ch_step *s, const ch_node *n, ch_node *const *in, ch_node **out)
{
    const split_attrs *a = ch__attrs(n);
    int                axis;

    (void)s;
    if (!ch__axis(a->axis, n->dims.rank, &axis))
        return false;
    split_slices(in[0], axis, n->n_out, a->sizes.n > 0 ? a->sizes.at : NULL, out);
    return out[n->n_out - 1] != NULL;
}

static const ch_kernel split_move = {"move", .prepare = split_prepare, .run = ch__boxes_run};

const ch_op ch__op_split = {
    .name = "split",
    .version = 1,
    .n_in = 1,
    .n_out = -1,
    .attrs = split_rows,
    .attrs_bytes = sizeof(split_attrs),
    .infer = split_infer,
    .grad = split_grad,
    .factors = split_factors,
    .expand = split_expand,
    .kernels = (const ch_kernel *const[]){&split_move, NULL},
    .room_rows = 1,
};

/* Records a slice for each part. sizes is NULL if all parts have the same size. */
static void split_slices(ch_node *x, int axis, int n, const int64_t *sizes, ch_node **out)
{
    int64_t begin[CH_MAX_RANK] = {0}, size[CH_MAX_RANK], each;
    int     rank = x->dims.rank;

    for (int k = 0; k < CH_MAX_RANK; k++)
        size[k] = -1;
    each = x->dims.dim[axis].n / n;
    for (int i = 0; i < n; i++) {
        size[axis] = sizes != NULL ? sizes[i] : each;
        out[i] = ch_slice(x, rank, begin, size);
        begin[axis] += size[axis];
    }
}

void ch_split(ch_node *x, int axis, int n, const int64_t *sizes, ch_node **out)
{
    split_attrs a = {.axis = axis, .parts = n};
    const void *before;
    ch_node    *first;
    int         at;

    if (n > 0 && out != NULL)
        memset(out, 0, (size_t)n * sizeof(*out));
    if (x == NULL || !ch__step_want(ch_node_step(x), n <= 0 || out != NULL, "split",
                                    "the list of results", __builtin_return_address(0)))
        return;
    if (n > (sizes != NULL ? CH_MAX_INTS : CH_MAX_OUT) && ch__axis(axis, x->dims.rank, &at) &&
        x->dims.dim[at].sym == 0 && (sizes != NULL || x->dims.dim[at].n % n == 0)) {
        before = ch__step_begin(ch_node_step(x));
        split_slices(x, at, n, sizes, out);
        ch__step_end(ch_node_step(x), before);
        return;
    }
    for (int i = 0; sizes != NULL && i < n && i < CH_MAX_INTS; i++)
        a.sizes.at[a.sizes.n++] = sizes[i];
    first = ch__node(&ch__op_split, &a, 1, &x);
    for (int i = 0; i < n && first != NULL; i++)
        out[i] = ch__out(first, i);
}

/* ---- stack: expand_dims of every input, then concat ---- */

ch_node *ch_stack(int n, ch_node *const *x, int axis)
{
    ch_node   **wide, *y = NULL;
    ch_step    *s = n > 0 && x != NULL && x[0] != NULL ? ch_node_step(x[0]) : NULL;
    const void *before;

    if (s == NULL) { /* no inputs, or input 0 is NULL: concat fails */
        n = x != NULL && n > 0 ? n : 0;
        return ch__node(&ch__op_concat, &(concat_attrs){.axis = axis}, n, x);
    }
    before = ch__step_begin(s);
    wide = ch__step_nodes(s, "stack", n);
    if (wide != NULL) {
        for (int i = 0; i < n; i++)
            wide[i] = ch_expand_dims(x[i], axis);
        y = ch_concat(n, wide, axis);
    }
    ch__step_end(s, before);
    return y;
}
