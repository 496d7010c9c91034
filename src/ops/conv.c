/* ops/conv.c -- convolution over images, and its gradients.
 *
 * Three arrays belong to a convolution: x (n, h, w, c), the filter f (kh, kw, c / groups, o)
 * and y (n, oh, ow, o). Three ops compute each of them from the other two: conv2d (y),
 * conv2d_input_grad (x) and conv2d_filter_grad (f). Each sums products over the same taps. So
 * the gradients of each op are the two other ops, and derivatives of any order exist. The
 * arithmetic is ch_conv (kernel/conv.h). conv2d_fused adds a bias and an activation;
 * conv_absorb creates it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/conv.h"

#include <string.h>

#include "graph/step.h"
#include "kernel/epilogue.h"
#include "ops/ops.h"
#include "ops/window.h"

static ch_conv_kind kind_of(const ch_op *op)
{
    return op == &ch__op_conv2d_input_grad    ? CH_CONV_INPUT
           : op == &ch__op_conv2d_filter_grad ? CH_CONV_FILTER
                                              : CH_CONV_OUTPUT;
}

/* ---- sizes ---- */

enum { WHY = 200 }; /* bytes of a reason */

/* Computes the sizes of all three arrays from the inputs a and b and the attributes. Returns
 * false and writes a reason to `why` if the window does not fit the image. */
static bool sizes_of(ch_conv_kind kind, const ch_window_attrs *t, const ch_dims *a,
                     const ch_dims *b, ch_conv_dims *d, char why[WHY])
{
    ch_window w;

    *d = (ch_conv_dims){.n = a->dim[0].n, .groups = t->groups, .o = b->dim[3].n};
    if (kind == CH_CONV_INPUT) {
        d->h = t->size.at[0];
        d->w = t->size.at[1];
        d->c = b->dim[2].n * t->groups;
    } else {
        d->h = a->dim[1].n;
        d->w = a->dim[2].n;
        d->c = a->dim[3].n;
    }
    d->kh = kind == CH_CONV_FILTER ? t->size.at[0] : b->dim[0].n;
    d->kw = kind == CH_CONV_FILTER ? t->size.at[1] : b->dim[1].n;
    if (!ch__window_layout(t, d->h, d->w, d->kh, d->kw, &w, why, WHY))
        return false;
    d->oh = w.oh;
    d->ow = w.ow;
    for (int i = 0; i < 2; i++) {
        d->stride[i] = w.stride[i];
        d->spread[i] = w.dilation[i];
        d->pad[i] = w.pad[i];
    }
    return true;
}

/* Returns the sizes of a specialised call; its shape rule has checked them. */
static ch_conv_dims dims_of(const ch_node *n)
{
    ch_conv_dims d;
    char         why[WHY];

    (void)sizes_of(kind_of(n->op), ch__attrs(n), &n->in[0]->dims, &n->in[1]->dims, &d, why);
    return d;
}

/* Checks dtypes, ranks, groups and attributes: everything that does not need the sizes of all
 * three arrays. */
static ch_status want_arrays(const ch_infer *c, ch_conv_kind kind)
{
    const ch_window_attrs *t = c->attrs;
    const ch_dims         *b = &c->in[1];
    int64_t                whole;
    ch_status              rc = ch__infer_want_same(c);

    if (rc == CH_OK)
        rc = ch__window_want_image(c, 0);
    if (rc == CH_OK && kind == CH_CONV_FILTER)
        rc = ch__window_want_image(c, 1);
    if (rc == CH_OK && b->rank != 4)
        rc = ch__infer_fail(
            c, "the filter has rank %d, want 4: (rows, columns, channels, filters)", b->rank);
    for (int k = 0; k < 4 && rc == CH_OK && kind != CH_CONV_FILTER; k++)
        rc = ch__infer_want_number(c, b->dim[k]);
    if (rc != CH_OK)
        return rc;
    if (t->groups < 1 || b->dim[3].n % t->groups != 0 ||
        !ch__mul_size(b->dim[2].n, t->groups, &whole))
        return ch__infer_fail(c, "%lld groups do not divide %s filters", (long long)t->groups,
                              ch__dim_text(c, b->dim[3]));
    if (kind != CH_CONV_OUTPUT && t->size.n != 2)
        return ch__infer_fail(c, "size has %d numbers, want 2", t->size.n);
    if (t->activation != 0 && c->op != &ch__op_conv2d_fused)
        return ch__infer_fail(c, "activation must be 0 for this op");
    return CH_OK;
}

/* Fails unless the inputs belong to the same convolution. Sets *d to its sizes. */
static ch_status infer_sizes(const ch_infer *c, ch_conv_kind kind, ch_conv_dims *d)
{
    const ch_dims *a = &c->in[0], *b = &c->in[1], *y = kind == CH_CONV_INPUT ? a : b;
    char           why[WHY];
    int64_t        takes;
    ch_status      rc = want_arrays(c, kind);

    if (rc != CH_OK)
        return rc;
    if (!sizes_of(kind, c->attrs, a, b, d, why))
        return ch__infer_fail(c, "%s", why);
    takes = b->dim[2].n * d->groups;
    if (kind == CH_CONV_OUTPUT && d->c != takes)
        return ch__infer_fail(c, "x has %lld channels and the filter takes %lld%s",
                              (long long)d->c, (long long)takes,
                              d->groups > 1 ? " in all groups" : "");
    if (d->c % d->groups != 0)
        return ch__infer_fail(c, "%lld groups do not divide %lld channels",
                              (long long)d->groups, (long long)d->c);
    if (kind == CH_CONV_OUTPUT)
        return CH_OK;
    if (y->dim[1].n != d->oh || y->dim[2].n != d->ow || y->dim[3].n != d->o)
        return ch__infer_fail(
            c, "an image of %lldx%lld and this filter give %lldx%lldx%lld, but y is %s",
            (long long)d->h, (long long)d->w, (long long)d->oh, (long long)d->ow,
            (long long)d->o, ch__type_text(c->dtype[0], y));
    if (kind == CH_CONV_FILTER && !ch__dim_same(a->dim[0], b->dim[0]))
        return ch__infer_fail(c, "x and y have batches of %s and %s, want the same",
                              ch__dim_text(c, a->dim[0]), ch__dim_text(c, b->dim[0]));
    return CH_OK;
}

static ch_status conv_infer(ch_infer *c)
{
    ch_conv_kind kind = kind_of(c->op);
    ch_dim       n = c->in[0].rank > 0 ? c->in[0].dim[0] : ch__dim(0);
    ch_conv_dims d;
    ch_status    rc = infer_sizes(c, kind, &d);

    if (rc != CH_OK)
        return rc;
    if (kind == CH_CONV_OUTPUT)
        return ch__infer_out(c, 0, c->dtype[0], 4,
                             (ch_dim[]){n, ch__dim(d.oh), ch__dim(d.ow), ch__dim(d.o)});
    if (kind == CH_CONV_INPUT)
        return ch__infer_out(c, 0, c->dtype[0], 4,
                             (ch_dim[]){n, ch__dim(d.h), ch__dim(d.w), ch__dim(d.c)});
    return ch__infer_out(
        c, 0, c->dtype[0], 4,
        (ch_dim[]){ch__dim(d.kh), ch__dim(d.kw), ch__dim(d.c / d.groups), ch__dim(d.o)});
}

/* ---- kernels, the same for all ops ---- */

static bool conv_fits(const ch_node *n, const void *engine)
{
    ch_conv_dims d = dims_of(n);

    return ch__conv_fits(engine, kind_of(n->op), n->dtype, &d);
}

typedef struct conv_state {
    ch_conv     conv;
    ch_epilogue then; /* conv2d_fused only */
} conv_state;

static ch_status conv_prepare(const ch_node *n, ch_prep *p)
{
    const ch_window_attrs *t = ch__attrs(n);
    conv_state            *x = ch__prep_state(p, sizeof(*x));
    ch_conv               *v;
    ch_conv_dims           d = dims_of(n);
    ch_status              rc;

    if (x == NULL)
        return ch__fail_memory(n->op->name);
    v = &x->conv;
    (void)ch__epilogue_make(n->dtype, n->n_in > 2, t->activation, &x->then);
    rc = ch__conv_open(v, p->arg, kind_of(n->op), n->dtype, &d);
    if (rc != CH_OK) {
        p->state = NULL;
        return rc;
    }
    p->n_phases = v->n_phases;
    for (int i = 0; i < v->n_phases; i++)
        p->tiles[i] = v->phase_tiles[i];
    p->scratch_bytes = v->scratch_bytes;
    return CH_OK;
}

static ch_status conv_run(const ch_call *c, ch_kernel_tile t)
{
    const conv_state *x = c->state;

    return ch__conv_run(&x->conv, t.phase, t.index, c->in[0], c->in[1], c->out[0], c->scratch);
}

static ch_status fused_run(const ch_call *c, ch_kernel_tile t)
{
    const conv_state *x = c->state;
    int64_t           step = x->conv.dims.o, row, rows;
    int64_t           bytes = (int64_t)ch_dtype_bytes(x->then.dtype);
    ch_status         rc = conv_run(c, t);

    if (rc != CH_OK || t.phase < x->conv.n_phases - 1)
        return rc;
    ch__conv_region(&x->conv, t.index, &row, &rows);
    ch__epilogue_run(&x->then, rows, step, step, (char *)c->out[0] + row * step * bytes,
                     x->then.has_bias ? c->in[2] : NULL);
    return CH_OK;
}

static void conv_drop(void *state)
{
    ch__conv_close(&((conv_state *)state)->conv);
}

static const ch_kernel        conv_onednn = {"onednn", conv_fits, conv_prepare,
                                             conv_run, conv_drop, &ch__conv_onednn};
static const ch_kernel        conv_own = {"own",    conv_fits, conv_prepare,
                                          conv_run, conv_drop, &ch__conv_own};
static const ch_kernel        fused_onednn = {"onednn",  conv_fits, conv_prepare,
                                              fused_run, conv_drop, &ch__conv_onednn};
static const ch_kernel        fused_own = {"own",     conv_fits, conv_prepare,
                                           fused_run, conv_drop, &ch__conv_own};
static const ch_kernel *const conv_kernels[] = {&conv_onednn, &conv_own, NULL};

/* ---- gradients: each op has the two others as gradients ---- */

/* Records `op` with the attributes of a call of another of the three ops. `rows` and `cols` are
 * the attribute `size`; conv2d ignores them. */

static ch_node *record(const ch_op *op, const ch_window_attrs *like, int64_t rows, int64_t cols,
                       ch_node *a, ch_node *b)
{
    ch_window_attrs t = *like;

    t.size = (ch_ints){.n = op == &ch__op_conv2d ? 0 : 2};
    if (t.size.n > 0) {
        t.size.at[0] = rows;
        t.size.at[1] = cols;
    }
    return ch__node(op, &t, 2, ((ch_node *[]){a, b}));
}

static ch_node *input_grad(const ch_window_attrs *t, const ch_node *like, ch_node *dy,
                           ch_node *f)
{
    return record(&ch__op_conv2d_input_grad, t, like->dims.dim[1].n, like->dims.dim[2].n, dy,
                  f);
}

static ch_node *filter_grad(const ch_window_attrs *t, const ch_node *like, ch_node *x,
                            ch_node *dy)
{
    return record(&ch__op_conv2d_filter_grad, t, like->dims.dim[0].n, like->dims.dim[1].n, x,
                  dy);
}

static void conv2d_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *x = n->in[0], *f = n->in[1];

    (void)s;
    din[0] = input_grad(ch__attrs(n), x, dout[0], f);
    din[1] = filter_grad(ch__attrs(n), f, x, dout[0]);
}

static void input_grad_grad(ch_step *s, const ch_node *n, ch_node *const dout[], ch_node *din[])
{
    ch_node *dy = n->in[0], *f = n->in[1];

    (void)s;
    din[0] = record(&ch__op_conv2d, ch__attrs(n), 0, 0, dout[0], f);
    din[1] = filter_grad(ch__attrs(n), f, dout[0], dy);
}

static void filter_grad_grad(ch_step *s, const ch_node *n, ch_node *const dout[],
                             ch_node *din[])
{
    ch_node *x = n->in[0], *dy = n->in[1];

    (void)s;
    din[0] = input_grad(ch__attrs(n), x, dy, dout[0]);
    din[1] = record(&ch__op_conv2d, ch__attrs(n), 0, 0, x, dout[0]);
}

/* ---- partition rules ---- */

/* The factors of conv_factors. With several groups, the channels of image and result consist of
 * the factors GROUP and CHANNEL or FILTER. */
enum { BATCH, ROW, COLUMN, CHANNEL, FILTER, TAP_ROW, TAP_COLUMN, GROUP };

static ch_window window_of(const ch_node *n)
{
    ch_conv_dims d = dims_of(n);
    ch_window    w;
    char         why[WHY];

    (void)ch__window_layout(ch__attrs(n), d.h, d.w, d.kh, d.kw, &w, why, WHY);
    return w;
}

/* Returns the map from pixels of the image to those of the result. So that a part of the image
 * always gets a row of the result, and none of its windows begins after its first pixel, the
 * map may include a row that the part does not need: if strides are larger than windows, and
 * where the last windows end before the image. */
static ch_axis_map map_back(const ch_window *w, int axis)
{
    ch_axis_map m = ch__window_map_back(w, axis);
    int64_t     outputs = axis == 0 ? w->oh : w->ow, size = axis == 0 ? w->h : w->w;
    int64_t     gap = w->pad[axis] - w->stride[axis] + 1;
    int64_t     last = w->stride[axis] * (outputs - 1) - (size - 1);

    m.low = gap < m.low ? gap : m.low;
    m.low = last < m.low ? last : m.low;
    return m;
}

/* The loops are over batch, rows and columns, channels, filters and taps; image (batch, row,
 * column, channel), filter (tap row, tap column, channel, filter), result (batch, row, column,
 * filter). Rows and columns are those of the output; the gradient of the filter sums over those
 * of the result. */
static ch_status conv_factors(const ch_node *n, ch_factors *f)
{
    const ch_window_attrs *t = ch__attrs(n);
    ch_conv_kind           kind = kind_of(n->op);
    ch_conv_dims           d = dims_of(n);
    ch_window              w = window_of(n);
    ch_factor_kind         pixels = kind == CH_CONV_FILTER ? CH_RED : CH_PAR;
    int image[] = {BATCH, ROW, COLUMN, CHANNEL}, result[] = {BATCH, ROW, COLUMN, FILTER};
    int filter[] = {TAP_ROW, TAP_COLUMN, CHANNEL, FILTER};
    int i_image = kind == CH_CONV_INPUT ? -1 : 0, i_filter = kind == CH_CONV_FILTER ? -1 : 1;
    int i_result = kind == CH_CONV_OUTPUT ? -1 : kind == CH_CONV_INPUT ? 0 : 1;

    for (int i = BATCH; i <= COLUMN; i++)
        (void)ch__factor(f, pixels);
    (void)ch__factor(f, kind == CH_CONV_OUTPUT ? CH_RED : CH_PAR);
    (void)ch__factor(f, kind == CH_CONV_INPUT ? CH_RED : CH_PAR);
    (void)ch__factor(f, CH_FIX);
    (void)ch__factor(f, CH_FIX);
    if (i_image >= 0)
        ch__factor_map(f, i_image, 4, image);
    if (i_filter >= 0)
        ch__factor_map(f, i_filter, 4, filter);
    if (i_result >= 0)
        ch__factor_map(f, i_result, 4, result);
    for (int i = 0; i < 2; i++)
        if (kind == CH_CONV_INPUT)
            ch__factor_window(f, i_result, 1 + i, map_back(&w, i));
        else
            ch__factor_window(f, i_image, 1 + i, ch__window_map(&w, i));
    (void)ch__factor_out(f, 4, i_image < 0 ? image : i_result < 0 ? result : filter);
    if (t->groups > 1) {
        ch_axis_rule channels = {.n = 2, .factor = {GROUP, CHANNEL}};
        ch_axis_rule filters = {.n = 2, .factor = {GROUP, FILTER}};

        (void)ch__factor(f, CH_PAR);
        f->factor[GROUP].size = ch__dim(t->groups);
        f->factor[CHANNEL].size = ch__dim(d.c / t->groups);
        f->factor[FILTER].size = ch__dim(d.o / t->groups);
        (i_image < 0 ? f->out[0] : f->in[i_image])[3] = channels;
        (i_result < 0 ? f->out[0] : f->in[i_result])[3] = filters;
        (i_filter < 0 ? f->out[0] : f->in[i_filter])[3] = filters;
    }
    return CH_OK;
}

/* Sets the padding, the size of the image and the number of groups of a part. */
static ch_status conv_local(const ch_node *n, const ch_call_part *p, void *attrs)
{
    ch_window_attrs *t = attrs;
    ch_conv_kind     kind = kind_of(n->op);
    ch_window        w = window_of(n);
    const ch_region *image = kind == CH_CONV_INPUT ? &p->out[0] : &p->in[0];
    const ch_region *result = kind == CH_CONV_OUTPUT  ? &p->out[0]
                              : kind == CH_CONV_INPUT ? &p->in[0]
                                                      : &p->in[1];

    for (int i = 0; i < 2; i++) {
        ch__window_part(&w, i, image->begin[1 + i], image->size[1 + i], result->begin[1 + i],
                        result->size[1 + i], t);
        if (kind == CH_CONV_INPUT)
            t->size.at[i] = image->size[1 + i];
    }
    if (t->groups > 1)
        t->groups = p->to[GROUP] - p->from[GROUP];
    return CH_OK;
}

/* ---- conv2d_fused: activation(conv2d(x, f) + bias); bias is optional ---- */

_Static_assert(sizeof(ch_window_attrs) <= sizeof(((ch_rewrite *)0)->attrs),
               "the attributes fit a ch_rewrite");

static bool conv_absorb(const ch_node *n, const ch_node *user, ch_rewrite *out)
{
    ch_window_attrs t = *(const ch_window_attrs *)ch__attrs(n);
    ch_node        *bias = n->n_in == 2 ? ch__bias_of(n, user) : NULL;

    if (t.activation != 0)
        return false;
    t.activation = ch__activation_of(user);
    if (bias == NULL && t.activation == 0)
        return false;
    out->op = &ch__op_conv2d_fused;
    memcpy(out->attrs, &t, sizeof(t));
    for (int i = 0; i < n->n_in; i++)
        out->in[i] = n->in[i];
    out->in[n->n_in] = bias;
    out->n_in = n->n_in + (bias != NULL);
    return true;
}

static ch_status fused_infer(ch_infer *c)
{
    const ch_window_attrs *t = c->attrs;
    ch_epilogue            e;
    ch_status              rc;

    if (c->n_in != 2 && c->n_in != 3)
        return ch__infer_fail(c, "%d inputs, want 2 or 3", c->n_in);
    rc = conv_infer(c);
    if (rc != CH_OK)
        return rc;
    if (c->n_in == 3 && !ch__is_bias(&c->in[2], &c->out[0]))
        return ch__infer_fail(c, "the bias must have one number for each filter");
    if (!ch__epilogue_make(c->dtype[0], c->n_in == 3, t->activation, &e))
        return ch__infer_fail(c, "activation %lld does not exist for %s",
                              (long long)t->activation, ch_dtype_name(c->dtype[0]));
    return CH_OK;
}

/* ---- the ops ---- */

const ch_op ch__op_conv2d_fused = {
    .name = "conv2d_fused",
    .version = 1,
    .n_in = -1,
    .n_out = 1,
    .flags = CH_OP_SAME_DTYPE,
    .attrs = ch__window_rows,
    .attrs_bytes = sizeof(ch_window_attrs),
    .infer = fused_infer,
    .replicated = CH_MADE_BY_PASS,
    .absorb = conv_absorb,
    .kernels = (const ch_kernel *const[]){&fused_onednn, &fused_own, NULL},
};

const ch_op ch__op_conv2d = {
    .name = "conv2d",
    .version = 1,
    .n_in = 2,
    .n_out = 1,
    .flags = CH_OP_SAME_DTYPE,
    .attrs = ch__window_rows,
    .attrs_bytes = sizeof(ch_window_attrs),
    .infer = conv_infer,
    .kernels = conv_kernels,
    .grad = conv2d_grad,
    .factors = conv_factors,
    .local = conv_local,
    .absorb = conv_absorb,
};

const ch_op ch__op_conv2d_input_grad = {
    .name = "conv2d_input_grad",
    .version = 1,
    .n_in = 2,
    .n_out = 1,
    .flags = CH_OP_SAME_DTYPE,
    .attrs = ch__window_rows,
    .attrs_bytes = sizeof(ch_window_attrs),
    .infer = conv_infer,
    .kernels = conv_kernels,
    .grad = input_grad_grad,
    .factors = conv_factors,
    .local = conv_local,
};

const ch_op ch__op_conv2d_filter_grad = {
    .name = "conv2d_filter_grad",
    .version = 1,
    .n_in = 2,
    .n_out = 1,
    .flags = CH_OP_SAME_DTYPE,
    .attrs = ch__window_rows,
    .attrs_bytes = sizeof(ch_window_attrs),
    .infer = conv_infer,
    .kernels = conv_kernels,
    .grad = filter_grad_grad,
    .factors = conv_factors,
    .local = conv_local,
};

/* Returns the attributes for the user's options. `opt` may be NULL. */
static ch_window_attrs attrs_of(const ch_conv_options *opt)
{
    static const ch_conv_options none;
    const ch_conv_options       *o = opt != NULL ? opt : &none;
    ch_window_attrs a = ch__window_attrs(o->stride, o->dilation, o->padding, o->pad);

    a.groups = o->groups != 0 ? o->groups : 1;
    return a;
}

ch_node *ch_conv2d(ch_node *x, ch_node *filter, const ch_conv_options *opt)
{
    ch_window_attrs a = attrs_of(opt);

    return ch__node(&ch__op_conv2d, &a, 2, ((ch_node *[]){x, filter}));
}

ch_node *ch_conv2d_transpose(ch_node *x, ch_node *filter, int64_t rows, int64_t cols,
                             const ch_conv_options *opt)
{
    ch_window_attrs a = attrs_of(opt);
    const void     *before;
    ch_node        *y;

    if (x == NULL || filter == NULL)
        return ch__null_input("conv2d_transpose", 2, (ch_node *[]){x, filter});
    before = ch__step_begin(ch_node_step(x));
    a.size = (ch_ints){.n = 2, .at = {rows, cols}};
    y = ch__node(&ch__op_conv2d_input_grad, &a, 2, ((ch_node *[]){x, filter}));
    ch__step_end(ch_node_step(x), before);
    return y;
}

/* A depthwise filter (kh, kw, c, times) is a filter (kh, kw, 1, c * times) with c groups. The
 * elements and their order are the same, so a reshape is enough. */
ch_node *ch_depthwise_conv2d(ch_node *x, ch_node *filter, const ch_conv_options *opt)
{
    ch_window_attrs a = attrs_of(opt);
    ch_dims         flat;
    const void     *before;
    ch_node        *y;

    if (x == NULL || filter == NULL)
        return ch__null_input("depthwise_conv2d", 2, (ch_node *[]){x, filter});
    before = ch__step_begin(ch_node_step(x));
    flat = filter->dims;
    if (flat.rank == 4 && ch__dims_product(&filter->dims, 2, 4, &flat.dim[3])) {
        a.groups = filter->dims.dim[2].n;
        flat.dim[2] = ch__dim(1);
        filter = ch__reshape_dims(filter, &flat);
    }
    y = ch__node(&ch__op_conv2d, &a, 2, ((ch_node *[]){x, filter}));
    ch__step_end(ch_node_step(x), before);
    return y;
}
