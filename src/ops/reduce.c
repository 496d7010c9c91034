/* ops/reduce.c -- reductions over axes: sum, mean, prod, max, min, logsumexp, any, all.
 *
 * All ops share attributes (the list of folded axes), shape rule, partition rule and kernel;
 * the arithmetic is ch_fold of kernel/reduce.h. `any` and `all` are max and min of bool.
 * div_count, an elementwise op, is here because the gradient of mean needs it. The recording
 * functions store axes counted from 0 in rising order, so that equal calls have equal
 * attributes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/reduce.h"

#include <float.h>
#include <string.h>

#include "graph/step.h"
#include "ops/ops.h"

typedef struct reduce_attrs {
    ch_ints axes; /* folded axes, counted from 0, in rising order */
    bool    keep; /* folded axes stay in the result, with size 1 */
} reduce_attrs;

static const ch_attr reduce_rows[] = {
    CH_ATTR_INTS(reduce_attrs, axes),
    CH_ATTR_BOOL(reduce_attrs, keep),
    CH_ATTR_END,
};

/* ---- shape ---- */

/* Checks the list of axes, and sets is_folded[k] for each axis k of input 0. */
static ch_status read_axes(const ch_infer *c, bool *is_folded)
{
    const reduce_attrs *a = c->attrs;

    memset(is_folded, 0, CH_MAX_RANK * sizeof(*is_folded));
    if (a->axes.n < 0 || a->axes.n > CH_MAX_RANK)
        return a->axes.n < 0
                   ? ch__infer_fail(c, "the list of axes is NULL or has a negative length")
                   : ch__infer_fail(c, "%d axes, want at most %d", a->axes.n, CH_MAX_RANK);
    for (int i = 0; i < a->axes.n; i++) {
        ch_status rc = ch__infer_want_axis(c, a->axes.at[i]);

        if (rc != CH_OK)
            return rc;
        if (is_folded[a->axes.at[i]])
            return ch__infer_fail(c, "axis %lld is listed twice", (long long)a->axes.at[i]);
        is_folded[a->axes.at[i]] = true;
    }
    return CH_OK;
}

static ch_status reduce_infer(ch_infer *c)
{
    const reduce_attrs *a = c->attrs;
    bool                is_folded[CH_MAX_RANK];
    ch_dims             out = {0};
    ch_status           rc = read_axes(c, is_folded);

    if (rc != CH_OK)
        return rc;
    for (int k = 0; k < c->in[0].rank; k++) {
        if (!is_folded[k])
            out.dim[out.rank++] = c->in[0].dim[k];
        else if (a->keep)
            out.dim[out.rank++] = ch__dim(1);
    }
    return ch__infer_dims(c, 0, c->dtype[0], &out);
}

static ch_status float_infer(ch_infer *c)
{
    ch_status rc = ch__infer_want_float(c, 0);

    return rc != CH_OK ? rc : reduce_infer(c);
}

static ch_status number_infer(ch_infer *c)
{
    ch_status rc = ch__infer_want_arith(c, 0);

    return rc != CH_OK ? rc : reduce_infer(c);
}

static ch_status bool_infer(ch_infer *c)
{
    if (c->dtype[0] != CH_BOOL)
        return ch__infer_fail(c, "input 0 is %s, want bool; compare it with something first",
                              ch_dtype_name(c->dtype[0]));
    return reduce_infer(c);
}

/* Returns the operation that folds the partial results of the parts of a call. */
static ch_partial_op combiner_of(const ch_op *op)
{
    return op == &ch__op_prod  ? CH_PARTIAL_PRODUCT
           : op == &ch__op_max ? CH_PARTIAL_MAX
           : op == &ch__op_min ? CH_PARTIAL_MIN
           : op == &ch__op_any ? CH_PARTIAL_OR
           : op == &ch__op_all ? CH_PARTIAL_AND
                               : CH_PARTIAL_SUM;
}

/* Axes that remain are independent. The parts of a folded axis give partial results, except
 * those of logsumexp, which would need the largest element of all parts. */
static ch_status reduce_factors(const ch_node *n, ch_factors *f)
{
    const reduce_attrs *a = ch__attrs(n);
    int                 rank = n->in[0]->dims.rank, in[CH_MAX_RANK], out[CH_MAX_RANK], m = 0;
    bool                is_folded[CH_MAX_RANK] = {false};

    for (int i = 0; i < a->axes.n; i++)
        is_folded[a->axes.at[i]] = true;
    for (int k = 0; k < rank; k++) {
        in[k] = !is_folded[k]                ? ch__factor(f, CH_PAR)
                : n->op == &ch__op_logsumexp ? ch__factor(f, CH_FIX)
                                             : ch__factor_red(f, combiner_of(n->op));
        if (!is_folded[k] || a->keep)
            out[m++] = is_folded[k] ? -1 : in[k];
    }
    ch__factor_map(f, 0, rank, in);
    return ch__factor_out(f, m, out);
}

/* ---- kernel ---- */

typedef struct fold_state {
    ch_fold fold; /* for the planned sizes */
    bool    is_folded[CH_MAX_RANK];
} fold_state;

static int most_tiles(ch_fold_kind kind, ch_shape shape)
{
    return ch__tile_count(ch_shape_count(shape), kind == CH_FOLD_LOGSUMEXP ? 8 : 1);
}

static ch_status fold_prepare(const ch_node *n, ch_prep *p)
{
    const reduce_attrs *a = ch__attrs(n);
    ch_fold_kind        kind = *(const ch_fold_kind *)p->arg;
    fold_state         *s = ch__prep_state(p, sizeof(*s));
    int                 tiles;

    if (s == NULL)
        return ch__fail_memory(n->op->name);
    for (int i = 0; i < a->axes.n; i++)
        s->is_folded[a->axes.at[i]] = true;
    tiles = most_tiles(kind, ch__shape(n->in[0]));
    ch__fold_init(&s->fold, kind, n->in[0]->dtype, ch__shape(n->in[0]), s->is_folded, tiles);
    if (kind == CH_FOLD_MEAN && n->origins != NULL) { /* a part divides by the whole count */
        s->fold.count = 1;
        for (int i = 0; i < a->axes.n; i++)
            s->fold.count *= n->origins->whole_in.dim[a->axes.at[i]].n;
    }
    p->is_view = s->fold.count == 1; /* a fold of a single element is that element */
    p->scratch_bytes = ch__fold_scratch(&s->fold);
    p->n_phases = s->fold.parts > 1 ? 2 : 1;
    p->tiles[0] = s->fold.tiles;
    p->tiles[1] = 1;
    if (n->live_input != 0) { /* fewer rows may be cut into more parts, up to `tiles` */
        p->scratch_bytes = (size_t)tiles * sizeof(ch_fold_acc) *
                           (size_t)ch__min(s->fold.outputs, CH_FOLD_STRIP);
        p->n_phases = 2;
    }
    return CH_OK;
}

/* Folds the live rows only. They are cut like a value without room, so the result has the same
 * bits. */
static void fold_live(const ch_call *c, ch_kernel_tile t)
{
    const fold_state *s = c->state;
    const ch_node    *x = c->node->in[0];
    ch_shape          shape = ch__shape(x);
    ch_fold           live;

    shape.dim[0] = ch__live_rows(c, shape.dim[0]);
    ch__fold_init(&live, s->fold.kind, x->dtype, shape, s->is_folded,
                  most_tiles(s->fold.kind, shape));
    for (int i = t.index; t.phase == 0 && i < live.tiles; i += s->fold.tiles)
        ch__fold_tile(&live, i, c->in[0], c->out[0], c->scratch);
    if (t.phase == 1 && live.parts > 1)
        ch__fold_join(&live, c->scratch, c->out[0]);
}

static ch_status fold_run(const ch_call *c, ch_kernel_tile t)
{
    const fold_state *s = c->state;

    if (c->node->live_input != 0)
        fold_live(c, t);
    else if (t.phase == 0)
        ch__fold_tile(&s->fold, t.index, c->in[0], c->out[0], c->scratch);
    else
        ch__fold_join(&s->fold, c->scratch, c->out[0]);
    return CH_OK;
}

/* ---- div_count: x divided by the product of some sizes ----
 * The product is computed in f64 when the graph is specialised. It is not a node, because it
 * might be too large for a 16-bit float. */

typedef struct count_attrs {
    ch_dims over;
} count_attrs;

static const ch_attr count_rows[] = {CH_ATTR_DIMS(count_attrs, over), CH_ATTR_END};

static ch_status count_infer(ch_infer *c)
{
    const count_attrs *a = c->attrs;
    ch_status          rc = ch__infer_want_float(c, 0);

    for (int k = 0; k < a->over.rank && rc == CH_OK; k++)
        if (a->over.dim[k].n < 0)
            rc = ch__infer_fail(c, "a size is %lld, want 0 or more",
                                (long long)a->over.dim[k].n);
    return rc == CH_OK ? ch__infer_like(c, 0, 0) : rc;
}

static void div_f32(int64_t n, const void *const *in, void *out, const double *param)
{
    const float *x = in[0];
    float       *y = out, count = (float)param[0];

    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] / count;
}

static void div_f64(int64_t n, const void *const *in, void *out, const double *param)
{
    const double *x = in[0];
    double       *y = out;

    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] / param[0];
}

static bool count_block(const ch_node *n, ch_block *b)
{
    const count_attrs *a = ch__attrs(n);

    b->compute = n->dtype == CH_F64 ? CH_F64 : CH_F32;
    b->fn = n->dtype == CH_F64 ? div_f64 : div_f32;
    b->param[0] = 1;
    for (int k = 0; k < a->over.rank; k++)
        b->param[0] *= (double)a->over.dim[k].n;
    if (b->param[0] == 0)
        b->param[0] = 1;
    return true;
}

static void count_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const count_attrs *a = ch__attrs(n);

    (void)s;
    din[0] = ch__div_count(dout[0], &a->over);
}

const ch_op ch__op_div_count = {
    .name = "div_count",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = count_rows,
    .attrs_bytes = sizeof(count_attrs),
    .infer = count_infer,
    .block = count_block,
    .grad = count_grad,
    .factors = ch__factors_elementwise,
    .kernels = (const ch_kernel *const[]){&ch__kernel_elementwise, NULL},
};

ch_node *ch__div_count(ch_node *x, const ch_dims *over)
{
    return ch__node(&ch__op_div_count, &(count_attrs){*over}, 1, &x);
}

/* ---- gradients ---- */

/* Returns y, which has the shape of a result of n, with the folded axes inserted as size 1. The
 * return value broadcasts to the input of n. */
static ch_node *restore_axes(const ch_node *n, ch_node *y)
{
    const reduce_attrs *a = ch__attrs(n);
    ch_dims             dims = n->in[0]->dims;

    for (int i = 0; i < a->axes.n; i++)
        dims.dim[a->axes.at[i]] = ch__dim(1);
    return a->keep || y == NULL ? y : ch__reshape_dims(y, &dims);
}

/* Returns the sum of x over the axes that n folds. */
static ch_node *sum_folded(const ch_node *n, ch_node *x, bool keep)
{
    reduce_attrs a = *(const reduce_attrs *)ch__attrs(n);

    a.keep = keep;
    return ch__node(&ch__op_sum, &a, 1, &x);
}

static void sum_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    (void)s;
    din[0] = ch__broadcast_dims(restore_axes(n, dout[0]), &n->in[0]->dims);
}

/* Returns true if n folds the axis of flat values. Their number is then computed by ch_rows,
 * which leaves out room (graph/room.h). Sets *count to the product of the other folded sizes.
 * Returns false for 16-bit floats too, which could not hold the number. */
static bool counts_values(const ch_node *n, int64_t *count)
{
    const reduce_attrs *a = ch__attrs(n);

    *count = 1;
    for (int i = 1; i < a->axes.n; i++) {
        ch_dim d = n->in[0]->dims.dim[a->axes.at[i]];

        if (d.sym != 0 || __builtin_mul_overflow(*count, d.n, count))
            return false;
    }
    return a->axes.n > 0 && a->axes.at[0] == 0 && ch__is_ragged(n->in[0]) &&
           !ch__dtype_is_half(n->dtype);
}

static void mean_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const reduce_attrs *a = ch__attrs(n);
    ch_dims             over = {.rank = a->axes.n};
    ch_node            *d = restore_axes(n, dout[0]);
    int64_t             count;

    (void)s;
    for (int i = 0; i < a->axes.n; i++)
        over.dim[i] = n->in[0]->dims.dim[a->axes.at[i]];
    if (d != NULL && counts_values(n, &count))
        d = ch_div(d,
                   ch_cast(ch_mul(ch_rows(n->in[0]), ch_number(s, (double)count)), d->dtype));
    else
        d = ch__div_count(d, &over);
    din[0] = ch__broadcast_dims(d, &n->in[0]->dims);
}

/* Folds one axis after the other. Along an axis, the derivative of each factor is the product
 * of the other factors, which is correct for factors of 0 too. */
static void prod_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    const reduce_attrs *a = ch__attrs(n);
    ch_node            *x[CH_MAX_RANK + 1] = {n->in[0]}, *d = restore_axes(n, dout[0]);

    (void)s;
    for (int i = 0; i < a->axes.n; i++)
        x[i + 1] = ch_prod(x[i], 1, (int[]){(int)a->axes.at[i]}, true);
    for (int i = a->axes.n - 1; i >= 0; i--)
        d = ch_mul(d, ch__prod_others(x[i], a->axes.at[i]));
    din[0] = d;
}

/* If several elements equal the maximum or minimum, each gets the same share of the
 * gradient. */
static void extreme_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *x = n->in[0], *y = restore_axes(n, ch__out(n, 0));
    ch_node *hit = ch_cast(ch_equal(x, y), x->dtype);
    ch_node *share = ch_div(restore_axes(n, dout[0]), sum_folded(n, hit, true));

    (void)s;
    din[0] = ch_mul(hit, share);
}

/* exp(x - y) is the share of each element. For 16-bit floats the shares contain the rounding
 * error of y; division by their sum removes it. */
static void logsumexp_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *y = restore_axes(n, ch__out(n, 0)), *share = ch_exp(ch_sub(n->in[0], y));

    (void)s;
    if (n->dtype == CH_BF16 || n->dtype == CH_F16)
        share = ch_div(share, sum_folded(n, share, true));
    din[0] = ch_mul(restore_axes(n, dout[0]), share);
}

/* log(sum(exp(x - most))) + most, where `most` is finite, so that infinity is not subtracted
 * from infinity. */
static bool logsumexp_expand(ch_step *s, const ch_node *n, ch_node *const *in, ch_node **out)
{
    const reduce_attrs *a = ch__attrs(n);
    reduce_attrs        keep = {a->axes, true};
    ch_node            *x = ch_cast(in[0], n->dtype == CH_F64 ? CH_F64 : CH_F32);
    ch_node            *most = ch__finite(ch__node(&ch__op_max, &keep, 1, &x)), *y;

    (void)s;
    y = ch_exp(ch_sub(x, most));
    y = ch_add(ch_log(ch__node(&ch__op_sum, &keep, 1, &y)), most);
    out[0] = ch_cast(ch__reshape_dims(y, &n->dims), n->dtype);
    return out[0] != NULL;
}

ch_node *ch__finite(ch_node *x)
{
    double most = x != NULL && x->dtype == CH_F64 ? DBL_MAX : FLT_MAX;

    return ch_clip(x, -most, most);
}

ch_node *ch__sum_last(ch_node *x, bool keep)
{
    return ch_sum(x, 1, (int[]){-1}, keep);
}

ch_node *ch__unbroadcast(ch_node *d, const ch_node *like)
{
    int axis[CH_MAX_RANK], n = 0, skip;

    if (d == NULL || like == NULL)
        return NULL;
    skip = d->dims.rank - like->dims.rank;
    for (int k = 0; k < d->dims.rank; k++)
        if (k < skip || !ch__dim_same(d->dims.dim[k], like->dims.dim[k - skip]))
            axis[n++] = k;
    if (n > 0)
        d = ch_sum(d, n, axis, false);
    if (d != NULL && !ch__dims_same(&d->dims, &like->dims))
        d = ch__reshape_dims(d, &like->dims);
    return d;
}

/* ---- ops ---- */

#define REDUCE_OP(title, rule, kind)                                                           \
    .name = title, .version = 1, .n_in = 1, .n_out = 1, .attrs = reduce_rows,                  \
    .attrs_bytes = sizeof(reduce_attrs), .infer = rule, .factors = reduce_factors, .room = 1,  \
    .room_counted = 1, .kernels = (const ch_kernel *const[])                                   \
    {                                                                                          \
        &(const ch_kernel){"fold", .prepare = fold_prepare, .run = fold_run,                   \
                           .arg = &(const ch_fold_kind){kind}},                                \
            NULL                                                                               \
    }

const ch_op ch__op_sum = {REDUCE_OP("sum", number_infer, CH_FOLD_SUM), .flags = CH_OP_LINEAR,
                          .grad = sum_grad};
const ch_op ch__op_mean = {REDUCE_OP("mean", float_infer, CH_FOLD_MEAN), .flags = CH_OP_ORIGIN,
                           .grad = mean_grad};
const ch_op ch__op_prod = {REDUCE_OP("prod", number_infer, CH_FOLD_PROD), .grad = prod_grad};
const ch_op ch__op_max = {REDUCE_OP("max", number_infer, CH_FOLD_MAX), .grad = extreme_grad};
const ch_op ch__op_min = {REDUCE_OP("min", number_infer, CH_FOLD_MIN), .grad = extreme_grad};
const ch_op ch__op_logsumexp = {REDUCE_OP("logsumexp", float_infer, CH_FOLD_LOGSUMEXP),
                                .grad = logsumexp_grad, .expand = logsumexp_expand};
const ch_op ch__op_any = {REDUCE_OP("any", bool_infer, CH_FOLD_MAX), .flags = CH_OP_NO_GRAD};
const ch_op ch__op_all = {REDUCE_OP("all", bool_infer, CH_FOLD_MIN), .flags = CH_OP_NO_GRAD};

/* ---- recording ---- */

/* Stores the axes counted from 0 in rising order, so that equal calls have equal attributes. A
 * list with invalid axes is stored in the given order; the shape rule then fails. */
static void set_axes(reduce_attrs *a, int rank, int n, const int *axis)
{
    bool is_folded[CH_MAX_RANK] = {false}, ok = n <= CH_MAX_RANK;

    for (int i = 0, k; i < n && ok; i++) {
        ok = ch__axis(axis[i], rank, &k) && !is_folded[k];
        if (ok)
            is_folded[k] = true;
    }
    for (int k = 0; k < rank && ok; k++)
        if (is_folded[k])
            a->axes.at[a->axes.n++] = k;
    if (ok)
        return;
    a->axes.n = n;
    for (int i = 0, k; i < n && n <= CH_MAX_RANK; i++)
        a->axes.at[i] = ch__axis(axis[i], rank, &k) ? k : axis[i];
}

static ch_node *reduce_at(const void *caller, const ch_op *op, ch_node *x, int n,
                          const int *axis, bool keep)
{
    reduce_attrs a = {.keep = keep};

    if (n < 0 || (n > 0 && axis == NULL))
        a.axes.n = -1; /* makes the shape rule fail */
    else if (x != NULL)
        set_axes(&a, x->dims.rank, n, axis);
    return ch__node_at(caller, op, &a, 1, &x);
}

static ch_node *reduce_all_at(const void *caller, const ch_op *op, ch_node *x)
{
    static const int every[CH_MAX_RANK] = {0, 1, 2, 3, 4, 5, 6, 7};

    return reduce_at(caller, op, x, x != NULL ? x->dims.rank : 0, every, false);
}

ch_node *ch_sum(ch_node *x, int n, const int *axis, bool keep)
{
    return reduce_at(__builtin_return_address(0), &ch__op_sum, x, n, axis, keep);
}

ch_node *ch_sum_all(ch_node *x)
{
    return reduce_all_at(__builtin_return_address(0), &ch__op_sum, x);
}

ch_node *ch_mean(ch_node *x, int n, const int *axis, bool keep)
{
    return reduce_at(__builtin_return_address(0), &ch__op_mean, x, n, axis, keep);
}

ch_node *ch_mean_all(ch_node *x)
{
    return reduce_all_at(__builtin_return_address(0), &ch__op_mean, x);
}

ch_node *ch_prod(ch_node *x, int n, const int *axis, bool keep)
{
    return reduce_at(__builtin_return_address(0), &ch__op_prod, x, n, axis, keep);
}

ch_node *ch_prod_all(ch_node *x)
{
    return reduce_all_at(__builtin_return_address(0), &ch__op_prod, x);
}

ch_node *ch_max(ch_node *x, int n, const int *axis, bool keep)
{
    return reduce_at(__builtin_return_address(0), &ch__op_max, x, n, axis, keep);
}

ch_node *ch_max_all(ch_node *x)
{
    return reduce_all_at(__builtin_return_address(0), &ch__op_max, x);
}

ch_node *ch_min(ch_node *x, int n, const int *axis, bool keep)
{
    return reduce_at(__builtin_return_address(0), &ch__op_min, x, n, axis, keep);
}

ch_node *ch_min_all(ch_node *x)
{
    return reduce_all_at(__builtin_return_address(0), &ch__op_min, x);
}

ch_node *ch_logsumexp(ch_node *x, int n, const int *axis, bool keep)
{
    return reduce_at(__builtin_return_address(0), &ch__op_logsumexp, x, n, axis, keep);
}

ch_node *ch_logsumexp_all(ch_node *x)
{
    return reduce_all_at(__builtin_return_address(0), &ch__op_logsumexp, x);
}

ch_node *ch_any(ch_node *x, int n, const int *axis, bool keep)
{
    return reduce_at(__builtin_return_address(0), &ch__op_any, x, n, axis, keep);
}

ch_node *ch_any_all(ch_node *x)
{
    return reduce_all_at(__builtin_return_address(0), &ch__op_any, x);
}

ch_node *ch_all(ch_node *x, int n, const int *axis, bool keep)
{
    return reduce_at(__builtin_return_address(0), &ch__op_all, x, n, axis, keep);
}

ch_node *ch_all_all(ch_node *x)
{
    return reduce_all_at(__builtin_return_address(0), &ch__op_all, x);
}
