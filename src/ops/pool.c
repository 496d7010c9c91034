/* ops/pool.c -- max and average pooling over images (n, h, w, c).
 *
 * Five ops share shape rule, kernel and partition rule. Given the positions of the maxima, all
 * of them are linear, so derivatives of any order exist. The gradient of avg_pool2d is
 * avg_pool2d_grad, and the reverse. The gradient of max_pool2d is max_pool2d_grad, which adds
 * each gradient at the position of the maximum. Its gradient is max_pool2d_pick, which reads an
 * array at these positions.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/pool.h"

#include <stdio.h>
#include <string.h>

#include "kernel/block.h"
#include "ops/ops.h"
#include "ops/window.h"

static ch_pool_kind kind_of(const ch_op *op)
{
    return op == &ch__op_max_pool2d        ? CH_POOL_MAX
           : op == &ch__op_max_pool2d_pick ? CH_POOL_MAX_PICK
           : op == &ch__op_max_pool2d_grad ? CH_POOL_MAX_GRAD
           : op == &ch__op_avg_pool2d      ? CH_POOL_MEAN
                                           : CH_POOL_MEAN_GRAD;
}

/* ---- sizes ----
 *
 * The attribute `size` is the window. avg_pool2d_grad appends the rows and columns of the
 * image, which is no input of the call.
 *
 * A part of a gradient has the rows of the result whose windows contain its pixels. These
 * windows reach beyond its pixels. So the part computes a larger image, which contains them,
 * and keeps a section of it. For these parts `size` is the window, the larger image, the
 * section (first row, rows, first column, columns). The padding may then be negative: the first
 * window begins behind the first pixel. */

enum { WHY = 200 }; /* bytes of a reason */
enum { SECTION = 4, PART_SIZES = 8 };

static bool is_grad(ch_pool_kind kind)
{
    return kind == CH_POOL_MAX_GRAD || kind == CH_POOL_MEAN_GRAD;
}

static bool is_part(const ch_window_attrs *t)
{
    return t->size.n == PART_SIZES;
}

/* Computes the layout of the window of a part of a gradient. dy is the last input. Returns
 * false and writes a reason to `why` if a window does not touch the image, or the section is
 * not in the image. */
static bool layout_part(const ch_window_attrs *t, const ch_dims *dy, ch_window *w,
                        char why[WHY])
{
    const int64_t  limit = (int64_t)1 << 40;
    const int64_t *at = t->size.at;
    const char    *reason = NULL;
    int64_t        pixels;

    *w = (ch_window){.h = at[2],
                     .w = at[3],
                     .kh = at[0],
                     .kw = at[1],
                     .oh = dy->dim[1].n,
                     .ow = dy->dim[2].n};
    if (t->stride.n != 2 || t->dilation.n != 2 || t->pad.n != 4 || t->same)
        reason = "strides, dilations and paddings of a part must be given";
    for (int i = 0; i < 2 && reason == NULL; i++) {
        int64_t size = at[2 + i], outputs = i == 0 ? w->oh : w->ow, step = t->stride.at[i];
        int64_t first = at[SECTION + 2 * i], count = at[SECTION + 2 * i + 1];
        int64_t before = t->pad.at[2 * i];

        w->stride[i] = step;
        w->dilation[i] = t->dilation.at[i];
        w->pad[i] = before;
        if (at[i] < 1 || at[i] > limit || step < 1 || step > limit || size < 0 ||
            size > limit || outputs < 0 || outputs > limit || before < -limit)
            reason = "sizes are out of range";
        else if (first < 0 || count < 0 || first > size || count > size - first)
            reason = "the section of a part is not in its image";
        else if (outputs > 0 &&
                 (before >= at[i] || (outputs - 1) > (size - 1 + before) / step ||
                  size - 1 + before < 0))
            reason = "a window does not touch the image of a part";
    }
    if (reason == NULL && !ch__mul_size(w->h, w->w, &pixels))
        reason = "sizes are out of range";
    if (reason != NULL)
        snprintf(why, WHY, "%s", reason);
    return reason == NULL;
}

/* Computes the layout of the window. x is input 0, dy the last input. Returns false and writes
 * a reason to `why` if the window does not fit the image. */
static bool layout_window(ch_pool_kind kind, const ch_window_attrs *t, const ch_dims *x,
                          const ch_dims *dy, ch_window *w, char why[WHY])
{
    bool    is_spread = kind == CH_POOL_MEAN_GRAD;
    int64_t h = is_spread ? t->size.at[2] : x->dim[1].n;

    if (is_part(t))
        return layout_part(t, dy, w, why);
    return ch__window_layout(t, h, is_spread ? t->size.at[3] : x->dim[2].n, t->size.at[0],
                             t->size.at[1], w, why, WHY);
}

/* Computes the layout of the window, and checks the attributes. */
static ch_status check_window(const ch_infer *c, ch_pool_kind kind, ch_window *w)
{
    const ch_window_attrs *t = c->attrs;
    char                   why[WHY];

    if (t->size.n != (kind == CH_POOL_MEAN_GRAD ? 4 : 2) && !(is_grad(kind) && is_part(t)))
        return ch__infer_fail(c, "size has the wrong number of elements (%d)", t->size.n);
    if (!layout_window(kind, t, &c->in[0], &c->in[c->n_in - 1], w, why))
        return ch__infer_fail(c, "%s", why);
    if (w->h * w->w == 0 && w->oh * w->ow > 0)
        return ch__infer_fail(c, "the image is empty: the window would cover padding only");
    if (w->dilation[0] != 1 || w->dilation[1] != 1 || t->groups != 1 || t->activation != 0)
        return ch__infer_fail(c, "dilations and groups must be 1 and activation 0");
    for (int i = 0; i < 4; i++)
        if (!t->same && !is_part(t) && t->pad.at[i] >= t->size.at[i / 2])
            return ch__infer_fail(c,
                                  "a padding of %lld is too large for a window of %lld, want "
                                  "less than the window",
                                  (long long)t->pad.at[i], (long long)t->size.at[i / 2]);
    return CH_OK;
}

static ch_status pool_infer(ch_infer *c)
{
    ch_pool_kind   kind = kind_of(c->op);
    const ch_dims *x = &c->in[0];
    ch_window      w = {0};
    ch_status      rc = ch__infer_want_same(c);

    for (int i = 0; i < c->n_in && rc == CH_OK; i++)
        rc = ch__window_want_image(c, i);
    if (rc == CH_OK)
        rc = check_window(c, kind, &w);
    if (rc != CH_OK)
        return rc;
    ch_dim  image[] = {x->dim[0], ch__dim(w.h), ch__dim(w.w), x->dim[3]};
    ch_dims small = {.rank = 4, .dim = {x->dim[0], ch__dim(w.oh), ch__dim(w.ow), x->dim[3]}};

    if ((kind == CH_POOL_MEAN_GRAD && !ch__dims_same(x, &small)) ||
        (kind == CH_POOL_MAX_GRAD && !ch__dims_same(&c->in[1], &small)))
        return ch__infer_fail(c, "the gradient of the result must be of size %lldx%lld",
                              (long long)w.oh, (long long)w.ow);
    if (kind == CH_POOL_MAX_PICK && !ch__dims_same(&c->in[1], x))
        return ch__infer_fail(c, "inputs 0 and 1 must have the same shape");
    if (kind == CH_POOL_MAX_GRAD && (x->dim[1].n != w.h || x->dim[2].n != w.w))
        return ch__infer_fail(c, "the image of a part must be input 0");
    if (is_part(c->attrs)) {
        const int64_t *at = ((const ch_window_attrs *)c->attrs)->size.at;

        if (!ch__size_is_supported(
                c->dtype[0],
                &(ch_dims){.rank = 4, .dim = {image[0], image[1], image[2], image[3]}}))
            return ch__infer_fail(c, "the image of a part is too large");
        image[1] = ch__dim(at[SECTION + 1]);
        image[2] = ch__dim(at[SECTION + 3]);
    }
    if (is_grad(kind))
        return ch__infer_out(c, 0, c->dtype[0], 4, image);
    return ch__infer_dims(c, 0, c->dtype[0], &small);
}

/* ---- the kernel ---- */

typedef struct pool {
    ch_pool_dims dims;
    ch_pool_fn   fn;
    ch_block_fn  widen, narrow; /* for 16-bit floats; otherwise NULL */
    bool         is_sum;        /* fn adds to its output, which must be zeroed before */
    int          n_in, n_tiles;
    int64_t      images, in[2], out; /* number of images; elements of an image of each array */
    int64_t      image;              /* elements of the computed image */
    int64_t      bytes;              /* of an element */
    /* of a part of a gradient: the section of the computed image that is the output */
    bool    is_section;
    int64_t row, rows, col, cols;
    /* 16-bit floats and sections: offsets of input 1 and the output in the scratch of a tile;
     * its size. */
    size_t b_at, out_at, tile_bytes;
} pool;

/* Copies the section of a computed image to the output. */
static void copy_section(const pool *v, const char *image, char *out)
{
    int64_t c = v->dims.c, size = v->narrow != NULL ? (int64_t)sizeof(float) : v->bytes;

    for (int64_t i = 0; i < v->rows; i++) {
        const char *from = image + ((v->row + i) * v->dims.w + v->col) * c * size;
        char       *to = out + i * v->cols * c * v->bytes;

        if (v->narrow != NULL)
            v->narrow(v->cols * c, (const void *const[]){from}, to, NULL);
        else
            memcpy(to, from, (size_t)(v->cols * c * size));
    }
}

static ch_status pool_prepare(const ch_node *n, ch_prep *p)
{
    ch_pool_kind kind = kind_of(n->op);
    pool        *v = ch__prep_state(p, sizeof(*v));

    const ch_window_attrs *t = ch__attrs(n);
    ch_window              w = {0};
    char                   why[WHY];
    bool                   is_short = n->dtype == CH_BF16 || n->dtype == CH_F16;

    if (v == NULL)
        return ch__fail_memory(n->op->name);
    (void)layout_window(kind, t, &n->in[0]->dims, &n->in[n->n_in - 1]->dims, &w, why);
    v->is_section = is_part(t);
    v->row = t->size.at[SECTION];
    v->rows = t->size.at[SECTION + 1];
    v->col = t->size.at[SECTION + 2];
    v->cols = t->size.at[SECTION + 3];
    v->dims = (ch_pool_dims){w.h,
                             w.w,
                             n->dims.dim[3].n,
                             w.kh,
                             w.kw,
                             w.oh,
                             w.ow,
                             {w.stride[0], w.stride[1]},
                             {w.pad[0], w.pad[1]}};
    v->fn = ch__pool(kind, n->dtype);
    v->is_sum = is_grad(kind);
    v->n_in = n->n_in;
    v->images = n->dims.dim[0].n;
    v->bytes = (int64_t)ch_dtype_bytes(n->dtype);
    v->out = n->dims.dim[1].n * n->dims.dim[2].n * n->dims.dim[3].n;
    for (int i = 0; i < n->n_in; i++) {
        const ch_dim *d = n->in[i]->dims.dim;

        v->in[i] = d[1].n * d[2].n * d[3].n;
    }
    v->n_tiles = ch__tile_count(v->images, (v->in[0] + v->out) * (v->is_sum ? 4 : 2));
    if ((is_short || v->is_section) && v->n_tiles > 2 * p->threads)
        v->n_tiles = 2 * p->threads; /* limits scratch: each tile holds an image */
    p->n_phases = 1;
    p->tiles[0] = v->n_tiles;
    if (is_short) {
        v->widen = ch__blocks()->widen[n->dtype];
        v->narrow = ch__blocks()->narrow[n->dtype];
        v->b_at = ch__aligned((size_t)v->in[0] * sizeof(float));
        v->out_at = v->b_at + ch__aligned((size_t)v->in[1] * sizeof(float));
    }
    if (is_short || v->is_section) {
        v->image = v->is_section ? w.h * w.w * v->dims.c : v->out;
        v->tile_bytes = v->out_at + ch__aligned((size_t)v->image *
                                                (is_short ? sizeof(float) : (size_t)v->bytes));
        p->scratch_bytes = v->tile_bytes * (size_t)v->n_tiles;
    } else {
        v->image = v->out;
    }
    return CH_OK;
}

static ch_status pool_run(const ch_call *c, ch_kernel_tile t)
{
    const pool *v = c->state;
    char       *tile_scratch =
        v->tile_bytes > 0 ? (char *)c->scratch + (size_t)t.index * v->tile_bytes : NULL;
    size_t  size = v->widen != NULL ? sizeof(float) : (size_t)v->bytes;
    int64_t from, to;

    ch__tile_range(v->images, v->n_tiles, t.index, &from, &to);
    for (int64_t i = from; i < to; i++) {
        const void *in[2] = {NULL, NULL};
        char       *out = (char *)c->out[0] + i * v->out * v->bytes;
        void       *to_out = tile_scratch != NULL ? tile_scratch + v->out_at : out;

        for (int k = 0; k < v->n_in; k++) {
            in[k] = (const char *)c->in[k] + i * v->in[k] * v->bytes;
            if (v->widen != NULL) {
                v->widen(v->in[k], &in[k], tile_scratch + (k == 0 ? 0 : v->b_at), NULL);
                in[k] = tile_scratch + (k == 0 ? 0 : v->b_at);
            }
        }
        if (v->is_sum)
            memset(to_out, 0, (size_t)v->image * size);
        v->fn(&v->dims, in[0], in[1], to_out);
        if (v->is_section)
            copy_section(v, to_out, out);
        else if (v->narrow != NULL)
            v->narrow(v->out, (const void *const[]){to_out}, out, NULL);
    }
    return CH_OK;
}

static const ch_kernel        pool_plain = {"plain", .prepare = pool_prepare, .run = pool_run};
static const ch_kernel *const pool_kernels[] = {&pool_plain, NULL};

/* ---- gradients ---- */

static void max_pool2d_grad_of(ch_step *s, const ch_node *n, ch_node *const dout[],
                               ch_node *din[])
{
    (void)s;
    din[0] =
        ch__node(&ch__op_max_pool2d_grad, ch__attrs(n), 2, ((ch_node *[]){n->in[0], dout[0]}));
}

/* The positions of the maxima are constant, so input 0 has no gradient, here and below. */
static void max_pool2d_pick_grad(ch_step *s, const ch_node *n, ch_node *const dout[],
                                 ch_node *din[])
{
    (void)s;
    din[1] =
        ch__node(&ch__op_max_pool2d_grad, ch__attrs(n), 2, ((ch_node *[]){n->in[0], dout[0]}));
}

static void max_pool2d_grad_grad(ch_step *s, const ch_node *n, ch_node *const dout[],
                                 ch_node *din[])
{
    (void)s;
    din[1] =
        ch__node(&ch__op_max_pool2d_pick, ch__attrs(n), 2, ((ch_node *[]){n->in[0], dout[0]}));
}

static void avg_pool2d_grad_of(ch_step *s, const ch_node *n, ch_node *const dout[],
                               ch_node *din[])
{
    ch_window_attrs t = *(const ch_window_attrs *)ch__attrs(n);

    (void)s;
    t.size.n = 4;
    t.size.at[2] = n->in[0]->dims.dim[1].n;
    t.size.at[3] = n->in[0]->dims.dim[2].n;
    din[0] = ch__node(&ch__op_avg_pool2d_grad, &t, 1, &dout[0]);
}

static void avg_pool2d_grad_grad(ch_step *s, const ch_node *n, ch_node *const dout[],
                                 ch_node *din[])
{
    ch_window_attrs t = *(const ch_window_attrs *)ch__attrs(n);

    (void)s;
    t.size.n = 2;
    t.size.at[2] = t.size.at[3] = 0;
    din[0] = ch__node(&ch__op_avg_pool2d, &t, 1, &dout[0]);
}

/* ---- the ops ---- */

/* The window of a whole call; its shape rule has checked it. */
static ch_window window_of(const ch_node *n)
{
    ch_window w = {0};
    char      why[WHY];

    (void)layout_window(kind_of(n->op), ch__attrs(n), &n->in[0]->dims,
                        &n->in[n->n_in - 1]->dims, &w, why);
    return w;
}

/* All axes of the output are independent. A part needs the pixels under its windows. A part of
 * a gradient needs the outputs whose windows contain its pixels and, for the positions of the
 * maxima, all pixels under these windows. */
static ch_status pool_factors(const ch_node *n, ch_factors *f)
{
    ch_pool_kind kind = kind_of(n->op);
    ch_window    w = window_of(n);
    int          all[4];

    for (int i = 0; i < 4; i++)
        all[i] = ch__factor(f, CH_PAR);
    for (int i = 0; i < n->n_in; i++)
        ch__factor_map(f, i, 4, all);
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < n->n_in && !is_grad(kind); k++)
            ch__factor_window(f, k, 1 + i, ch__window_map(&w, i));
        if (is_grad(kind))
            ch__factor_window(f, n->n_in - 1, 1 + i, ch__window_map_back(&w, i));
        if (kind == CH_POOL_MAX_GRAD)
            ch__factor_neighbours(f, 0, 1 + i, ch__window_map_back(&w, i),
                                  i == 0 ? w.oh : w.ow);
    }
    return ch__factor_out(f, 4, all);
}

/* Sets, along an axis, the padding, the larger image and the section of a part of a
 * gradient. */
static void set_section(const ch_window *w, ch_pool_kind kind, int axis, const ch_call_part *p,
                        ch_window_attrs *t)
{
    const ch_region *dx = &p->out[0], *dy = &p->in[kind == CH_POOL_MAX_GRAD];
    int64_t          from = dx->begin[1 + axis], to = from + dx->size[1 + axis];
    int64_t          whole = axis == 0 ? w->h : w->w, window = axis == 0 ? w->kh : w->kw;
    int64_t          begin = dy->begin[1 + axis] * w->stride[axis] - w->pad[axis];
    int64_t          end = begin + (dy->size[1 + axis] - 1) * w->stride[axis] + window;

    if (dy->size[1 + axis] == 0) { /* no window contains a pixel of the part */
        begin = from;
        end = to;
    }
    begin = begin < from ? begin : from;
    end = end > to ? end : to;
    begin = begin > 0 ? begin : 0;
    end = end < whole ? end : whole;
    if (kind == CH_POOL_MAX_GRAD) {
        begin = p->in[0].begin[1 + axis];
        end = begin + p->in[0].size[1 + axis];
    }
    t->size.at[2 + axis] = end - begin;
    t->size.at[SECTION + 2 * axis] = from - begin;
    t->size.at[SECTION + 2 * axis + 1] = to - from;
    t->pad.at[(ptrdiff_t)2 * axis] =
        begin - (dy->begin[1 + axis] * w->stride[axis] - w->pad[axis]);
    t->pad.at[2 * axis + 1] = 0;
}

/* Sets the padding of a part. */
static ch_status pool_local(const ch_node *n, const ch_call_part *p, void *attrs)
{
    ch_pool_kind     kind = kind_of(n->op);
    ch_window        w = window_of(n);
    ch_window_attrs *t = attrs;

    if (is_grad(kind) && p->out[0].size[1] == w.h && p->out[0].size[2] == w.w)
        return CH_OK; /* whole images need no section */
    for (int i = 0; i < 2; i++)
        if (is_grad(kind))
            set_section(&w, kind, i, p, t);
        else
            ch__window_part(&w, i, p->in[0].begin[1 + i], p->in[0].size[1 + i],
                            p->out[0].begin[1 + i], p->out[0].size[1 + i], t);
    if (is_grad(kind)) {
        t->same = false;
        t->pad.n = 4;
        t->size.n = PART_SIZES;
    }
    return CH_OK;
}

const ch_op ch__op_max_pool2d = {
    .name = "max_pool2d",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = ch__window_rows,
    .attrs_bytes = sizeof(ch_window_attrs),
    .infer = pool_infer,
    .kernels = pool_kernels,
    .grad = max_pool2d_grad_of,
    .factors = pool_factors,
    .local = pool_local,
};

const ch_op ch__op_max_pool2d_pick = {
    .name = "max_pool2d_pick",
    .version = 1,
    .n_in = 2,
    .n_out = 1,
    .attrs = ch__window_rows,
    .attrs_bytes = sizeof(ch_window_attrs),
    .infer = pool_infer,
    .kernels = pool_kernels,
    .grad = max_pool2d_pick_grad,
    .factors = pool_factors,
    .local = pool_local,
};

const ch_op ch__op_max_pool2d_grad = {
    .name = "max_pool2d_grad",
    .version = 1,
    .n_in = 2,
    .n_out = 1,
    .attrs = ch__window_rows,
    .attrs_bytes = sizeof(ch_window_attrs),
    .infer = pool_infer,
    .kernels = pool_kernels,
    .grad = max_pool2d_grad_grad,
    .factors = pool_factors,
    .local = pool_local,
};

const ch_op ch__op_avg_pool2d = {
    .name = "avg_pool2d",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = ch__window_rows,
    .attrs_bytes = sizeof(ch_window_attrs),
    .infer = pool_infer,
    .kernels = pool_kernels,
    .grad = avg_pool2d_grad_of,
    .factors = pool_factors,
    .local = pool_local,
};

const ch_op ch__op_avg_pool2d_grad = {
    .name = "avg_pool2d_grad",
    .version = 1,
    .n_in = 1,
    .n_out = 1,
    .attrs = ch__window_rows,
    .attrs_bytes = sizeof(ch_window_attrs),
    .infer = pool_infer,
    .kernels = pool_kernels,
    .grad = avg_pool2d_grad_grad,
    .factors = pool_factors,
    .local = pool_local,
};

/* Returns the attributes for the user's options. `opt` may be NULL. */
static ch_window_attrs attrs_of(const ch_pool_options *opt)
{
    static const ch_pool_options none;
    static const int64_t         one[2] = {1, 1};
    const ch_pool_options       *o = opt != NULL ? opt : &none;
    ch_ints                      window = {.n = 2};
    ch_window_attrs              a;
    int64_t                      stride[2];

    for (int i = 0; i < 2; i++) {
        window.at[i] = o->window[i] != 0 ? o->window[i] : 2;
        stride[i] = o->stride[i] != 0 ? o->stride[i] : window.at[i];
    }
    a = ch__window_attrs(stride, one, o->padding, o->pad);
    a.size = window;
    return a;
}

ch_node *ch_max_pool2d(ch_node *x, const ch_pool_options *opt)
{
    ch_window_attrs a = attrs_of(opt);

    return ch__node(&ch__op_max_pool2d, &a, 1, &x);
}

ch_node *ch_avg_pool2d(ch_node *x, const ch_pool_options *opt)
{
    ch_window_attrs a = attrs_of(opt);

    return ch__node(&ch__op_avg_pool2d, &a, 1, &x);
}
