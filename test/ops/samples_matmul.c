/* test/ops/samples_matmul.c -- samples of matrix products, convolutions, pooling and attention.
 *
 * The references are nested loops in doubles. Gradients of convolutions and pools have their
 * own references.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "sample.h"

#include <math.h>

/* ---- matmul ---- */

static void nn(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_matmul(in[0], false, in[1], false);
}

static void tn(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_matmul(in[0], true, in[1], false);
}

static void nt(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_matmul(in[0], false, in[1], true);
}

static void tt(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_matmul(in[0], true, in[1], true);
}

/* Returns an element of a batched matrix, at the batch that is broadcast to batch i of the
 * result. */
static double element(const t_array *x, const ch_shape *out, int64_t batch, int64_t r,
                      int64_t c)
{
    int64_t at = 0, step = x->shape.dim[x->shape.rank - 1] * x->shape.dim[x->shape.rank - 2];

    for (int k = 3; k <= out->rank; k++) {
        int64_t i = batch % out->dim[out->rank - k];

        batch /= out->dim[out->rank - k];
        if (k <= x->shape.rank) {
            at += x->shape.dim[x->shape.rank - k] == 1 ? 0 : i * step;
            step *= x->shape.dim[x->shape.rank - k];
        }
    }
    return x->v[at + r * x->shape.dim[x->shape.rank - 1] + c];
}

static void product(const t_array *in, t_array *out, bool ta, bool tb)
{
    const ch_shape *a = &in[0].shape, *b = &in[1].shape;
    ch_shape        s = a->rank >= b->rank ? *a : *b;
    int64_t         m = a->dim[a->rank - (ta ? 1 : 2)], n = b->dim[b->rank - (tb ? 2 : 1)];
    int64_t         inner = a->dim[a->rank - (ta ? 2 : 1)], batches = 1;

    for (int k = 3; k <= s.rank; k++) {
        int64_t x = k <= a->rank ? a->dim[a->rank - k] : 1,
                y = k <= b->rank ? b->dim[b->rank - k] : 1;

        s.dim[s.rank - k] = x == 1 ? y : x;
        batches *= s.dim[s.rank - k];
    }
    s.dim[s.rank - 2] = m;
    s.dim[s.rank - 1] = n;
    t_out(&out[0], s);
    for (int64_t i = 0; i < batches; i++)
        for (int64_t r = 0; r < m; r++)
            for (int64_t c = 0; c < n; c++) {
                double sum = 0;

                for (int64_t p = 0; p < inner; p++)
                    sum += element(&in[0], &s, i, ta ? p : r, ta ? r : p) *
                           element(&in[1], &s, i, tb ? c : p, tb ? p : c);
                out[0].v[(i * m + r) * n + c] = sum;
            }
}

static void nn_is(const t_array *in, t_array *out)
{
    product(in, out, false, false);
}

static void tn_is(const t_array *in, t_array *out)
{
    product(in, out, true, false);
}

static void nt_is(const t_array *in, t_array *out)
{
    product(in, out, false, true);
}

static void tt_is(const t_array *in, t_array *out)
{
    product(in, out, true, true);
}

/* ---- ops that are fused into the product ---- */

static void linear_relu(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_relu(ch_linear(in[0], in[1], in[2]));
}

static void linear_relu_is(const t_array *in, t_array *out)
{
    product(in, out, false, false);
    for (int64_t k = 0, n = in[2].shape.dim[0]; k < ch_shape_count(out[0].shape); k++) {
        out[0].v[k] += in[2].v[k % n];
        out[0].v[k] = out[0].v[k] > 0 ? out[0].v[k] : 0;
    }
}

static void transposed_bias(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_add(in[2], ch_matmul(in[0], false, in[1], true));
}

static void transposed_bias_is(const t_array *in, t_array *out)
{
    product(in, out, false, true);
    for (int64_t k = 0, n = out[0].shape.dim[out[0].shape.rank - 1];
         k < ch_shape_count(out[0].shape); k++)
        out[0].v[k] += in[2].v[k % n];
}

static void activated(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *y = ch_linear(in[0], in[1], NULL);

    (void)s;
    out[0] = ch_gelu(y);
    out[1] = ch_tanh(ch_linear(in[0], in[1], in[2]));
}

static void activated_is(const t_array *in, t_array *out)
{
    product(in, &out[0], false, false);
    product(in, &out[1], false, false);
    for (int64_t k = 0, n = in[2].shape.dim[0]; k < ch_shape_count(out[0].shape); k++) {
        out[0].v[k] *= 0.5 * (1 + erf(out[0].v[k] / sqrt(2)));
        out[1].v[k] = tanh(out[1].v[k] + in[2].v[k % n]);
    }
}

/* ---- convolution ---- */

/* The parameters of a convolution in the reference. */
typedef struct window {
    int64_t stride, dilation, top, left, groups;
} window;

static int64_t outputs(int64_t size, int64_t taps, int64_t stride, int64_t dilation, bool same,
                       int64_t pads)
{
    if (same)
        return (size + stride - 1) / stride;
    return (size + pads - (taps - 1) * dilation - 1) / stride + 1;
}

/* Returns the number of zeros before the first element, as with padding SAME in TensorFlow. */
static int64_t zeros_before(int64_t size, int64_t taps, int64_t stride, int64_t dilation)
{
    int64_t n = outputs(size, taps, stride, dilation, true, 0);
    int64_t all = (n - 1) * stride + (taps - 1) * dilation + 1 - size;

    return all > 0 ? all / 2 : 0;
}

enum { OUTPUT, INPUT, FILTER };

/* For every product x . f in the sum y: adds it to y, or y . f to x, or x . y to f. */
static void correlate(int what, const window *w, t_array *x, t_array *f, t_array *y)
{
    const int64_t *a = x->shape.dim, *b = f->shape.dim, *c = y->shape.dim;
    int64_t        in = a[3] / w->groups, out = c[3] / w->groups;

    for (int64_t n = 0; n < c[0]; n++)
        for (int64_t i = 0; i < c[1]; i++)
            for (int64_t j = 0; j < c[2]; j++)
                for (int64_t o = 0; o < c[3]; o++)
                    for (int64_t u = 0; u < b[0]; u++)
                        for (int64_t v = 0; v < b[1]; v++)
                            for (int64_t k = 0; k < in; k++) {
                                int64_t r = i * w->stride + u * w->dilation - w->top;
                                int64_t s = j * w->stride + v * w->dilation - w->left;
                                int64_t to_x =
                                    ((n * a[1] + r) * a[2] + s) * a[3] + o / out * in + k;
                                int64_t to_f = ((u * b[1] + v) * in + k) * b[3] + o;
                                int64_t to_y = ((n * c[1] + i) * c[2] + j) * c[3] + o;

                                if (r < 0 || r >= a[1] || s < 0 || s >= a[2])
                                    continue;
                                if (what == OUTPUT)
                                    y->v[to_y] += x->v[to_x] * f->v[to_f];
                                else if (what == INPUT)
                                    x->v[to_x] += y->v[to_y] * f->v[to_f];
                                else
                                    f->v[to_f] += x->v[to_x] * y->v[to_y];
                            }
}

static void convolve(const t_array *in, t_array *out, int64_t stride, int64_t dilation,
                     bool same, const int64_t *pad, int64_t groups)
{
    t_array        x = in[0], f = in[1];
    const int64_t *a = x.shape.dim, *b = f.shape.dim;
    window         w = {stride, dilation, pad[0], pad[2], groups};

    if (same) {
        w.top = zeros_before(a[1], b[0], stride, dilation);
        w.left = zeros_before(a[2], b[1], stride, dilation);
    }
    t_out(&out[0],
          ch_shape_of(a[0], outputs(a[1], b[0], stride, dilation, same, pad[0] + pad[1]),
                      outputs(a[2], b[1], stride, dilation, same, pad[2] + pad[3]), b[3]));
    correlate(OUTPUT, &w, &x, &f, &out[0]);
}

static const int64_t no_pad[4] = {0};

static void conv_valid(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_conv2d(in[0], in[1], NULL);
}

static void conv_valid_is(const t_array *in, t_array *out)
{
    convolve(in, out, 1, 1, false, no_pad, 1);
}

static void conv_same(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_conv2d(in[0], in[1], &(ch_conv_options){.padding = CH_PAD_SAME});
}

static void conv_same_is(const t_array *in, t_array *out)
{
    convolve(in, out, 1, 1, true, no_pad, 1);
}

static void conv_biased(ch_step *s, ch_node *const *in, ch_node **out)
{
    conv_same(s, in, out);
    out[0] = ch_relu(ch_add(out[0], in[2]));
}

static void conv_biased_is(const t_array *in, t_array *out)
{
    convolve(in, out, 1, 1, true, no_pad, 1);
    for (int64_t k = 0, n = in[2].shape.dim[0]; k < ch_shape_count(out[0].shape); k++) {
        out[0].v[k] += in[2].v[k % n];
        out[0].v[k] = out[0].v[k] > 0 ? out[0].v[k] : 0;
    }
}

static void conv_strided(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] =
        ch_conv2d(in[0], in[1], &(ch_conv_options){.stride = {2, 2}, .padding = CH_PAD_SAME});
}

static void conv_strided_is(const t_array *in, t_array *out)
{
    convolve(in, out, 2, 1, true, no_pad, 1);
}

static void conv_dilated(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] =
        ch_conv2d(in[0], in[1],
                  &(ch_conv_options){
                      .dilation = {2, 2}, .padding = CH_PAD_EXPLICIT, .pad = {2, 1, 0, 3}});
}

static void conv_dilated_is(const t_array *in, t_array *out)
{
    convolve(in, out, 1, 2, false, (const int64_t[]){2, 1, 0, 3}, 1);
}

/* Some windows cover padding only. */
static void conv_padded(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_conv2d(in[0], in[1],
                       &(ch_conv_options){.padding = CH_PAD_EXPLICIT, .pad = {4, 3, 0, 6}});
}

static void conv_padded_is(const t_array *in, t_array *out)
{
    convolve(in, out, 1, 1, false, (const int64_t[]){4, 3, 0, 6}, 1);
}

/* Windows with gaps between them, and pixels behind the last. */
static void conv_sparse(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_conv2d(in[0], in[1], &(ch_conv_options){.stride = {3, 3}});
}

static void conv_sparse_is(const t_array *in, t_array *out)
{
    convolve(in, out, 3, 1, false, no_pad, 1);
}

static void conv_grouped(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_conv2d(in[0], in[1], &(ch_conv_options){.padding = CH_PAD_SAME, .groups = 2});
}

static void conv_grouped_is(const t_array *in, t_array *out)
{
    convolve(in, out, 1, 1, true, no_pad, 2);
}

static void depthwise(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_depthwise_conv2d(in[0], in[1], &(ch_conv_options){.padding = CH_PAD_SAME});
}

static void depthwise_is(const t_array *in, t_array *out)
{
    const int64_t *b = in[1].shape.dim;
    t_array        flat[2] = {in[0], {ch_shape_of(b[0], b[1], 1, b[2] * b[3]), in[1].v}};

    convolve(flat, out, 1, 1, true, no_pad, b[2]);
}

/* The transpose of the strided convolution, with a result of 7 x 6. */
static void transposed(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_conv2d_transpose(in[0], in[1], 7, 6,
                                 &(ch_conv_options){.stride = {2, 2}, .padding = CH_PAD_SAME});
}

static void transposed_is(const t_array *in, t_array *out)
{
    t_array        y = in[0], f = in[1];
    const int64_t *b = f.shape.dim;
    window         w = {2, 1, zeros_before(7, b[0], 2, 1), zeros_before(6, b[1], 2, 1), 1};

    t_out(&out[0], ch_shape_of(y.shape.dim[0], 7, 6, b[2]));
    correlate(INPUT, &w, &out[0], &f, &y);
}

static void transposed_null(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_conv2d_transpose(NULL, in[0], 7, 6, NULL);
}

static void depthwise_null(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_depthwise_conv2d(in[0], NULL, NULL);
}

/* With a result of 2 x 1. */
static void transposed_column(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] =
        ch_conv2d_transpose(in[0], in[1], 2, 1, &(ch_conv_options){.padding = CH_PAD_SAME});
}

static void transposed_column_is(const t_array *in, t_array *out)
{
    t_array        y = in[0], f = in[1];
    const int64_t *b = f.shape.dim;
    window         w = {1, 1, zeros_before(2, b[0], 1, 1), zeros_before(1, b[1], 1, 1), 1};

    t_out(&out[0], ch_shape_of(y.shape.dim[0], 2, 1, b[2]));
    correlate(INPUT, &w, &out[0], &f, &y);
}

/* The gradient with respect to the filter (3 x 2) of sum(y * conv(x, f)), strided. */
static void filter_grad(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_shape x = ch_node_shape(in[0]), y = ch_node_shape(in[1]);
    ch_node *f = ch_fill(s, ch_node_dtype(in[0]), ch_shape_of(3, 2, x.dim[3], y.dim[3]), 1.0),
            *c;

    conv_strided(s, (ch_node *[]){in[0], f}, &c);
    ch_gradients(c, in[1], 1, &f, out);
}

static void filter_grad_is(const t_array *in, t_array *out)
{
    t_array        x = in[0], y = in[1];
    const int64_t *a = x.shape.dim;
    window         w = {2, 1, zeros_before(a[1], 3, 2, 1), zeros_before(a[2], 2, 2, 1), 1};

    t_out(&out[0], ch_shape_of(3, 2, a[3], y.shape.dim[3]));
    correlate(FILTER, &w, &x, &out[0], &y);
}

static void conv_bad_stride(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_conv2d(in[0], in[1], &(ch_conv_options){.stride = {1, -1}});
}

static void conv_bad_pad(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_conv2d(in[0], in[1],
                       &(ch_conv_options){.padding = CH_PAD_EXPLICIT, .pad = {0, -1, 0, 0}});
}

/* ---- pooling ---- */

typedef struct pooling {
    int64_t window[2], stride[2];
    bool    same;
    int64_t pad[4];
} pooling;

static int64_t pool_axis(const pooling *p, int k, int64_t size, int64_t *before)
{
    *before = p->same ? zeros_before(size, p->window[k], p->stride[k], 1) : p->pad[2 * k];
    return outputs(size, p->window[k], p->stride[k], 1, p->same,
                   p->pad[2 * k] + p->pad[2 * k + 1]);
}

/* For each output, computes the largest element under its window (the first of equals) or the
 * mean. */
static void pool(const pooling *p, const t_array *in, t_array *out, bool is_max,
                 const t_array *pick)
{
    const int64_t *a = in->shape.dim;
    int64_t top, left, oh = pool_axis(p, 0, a[1], &top), ow = pool_axis(p, 1, a[2], &left);

    t_out(out, ch_shape_of(a[0], oh, ow, a[3]));
    for (int64_t k = 0; k < a[0] * oh * ow * a[3]; k++) {
        int64_t c = k % a[3], j = k / a[3] % ow, i = k / a[3] / ow % oh, n = k / a[3] / ow / oh;
        int64_t best = -1, count = 0;
        double  sum = 0;

        for (int64_t u = 0; u < p->window[0]; u++)
            for (int64_t v = 0; v < p->window[1]; v++) {
                int64_t r = i * p->stride[0] + u - top, s = j * p->stride[1] + v - left;
                int64_t at = ((n * a[1] + r) * a[2] + s) * a[3] + c;

                if (r < 0 || r >= a[1] || s < 0 || s >= a[2])
                    continue;
                count++;
                sum += in->v[at];
                if (best < 0 || in->v[at] > in->v[best])
                    best = at;
            }
        out->v[k] = is_max ? (pick != NULL ? pick : in)->v[best] : sum / (double)count;
    }
}

static const pooling pool_plain = {{2, 2}, {2, 2}, false, {0}};
static const pooling pool_same = {{3, 2}, {2, 1}, true, {0}};
static const pooling pool_sparse = {{1, 2}, {3, 3}, false, {0}};
static const pooling pool_padded = {{3, 3}, {1, 2}, false, {1, 2, 0, 1}};

static const ch_pool_options same_options = {
    .window = {3, 2}, .stride = {2, 1}, .padding = CH_PAD_SAME};
static const ch_pool_options padded_options = {
    .window = {3, 3}, .stride = {1, 2}, .padding = CH_PAD_EXPLICIT, .pad = {1, 2, 0, 1}};

static void max_plain(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_max_pool2d(in[0], NULL);
}

static void max_plain_is(const t_array *in, t_array *out)
{
    pool(&pool_plain, &in[0], &out[0], true, NULL);
}

static void max_same(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_max_pool2d(in[0], &same_options);
}

static void max_same_is(const t_array *in, t_array *out)
{
    pool(&pool_same, &in[0], &out[0], true, NULL);
}

static const ch_pool_options sparse_options = {.window = {1, 2}, .stride = {3, 3}};

static void max_sparse(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_max_pool2d(in[0], &sparse_options);
}

static void max_sparse_is(const t_array *in, t_array *out)
{
    pool(&pool_sparse, &in[0], &out[0], true, NULL);
}

static void mean_sparse(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_avg_pool2d(in[0], &sparse_options);
}

static void mean_sparse_is(const t_array *in, t_array *out)
{
    pool(&pool_sparse, &in[0], &out[0], false, NULL);
}

static void max_padded(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_max_pool2d(in[0], &padded_options);
}

static void max_padded_is(const t_array *in, t_array *out)
{
    pool(&pool_padded, &in[0], &out[0], true, NULL);
}

static void mean_plain(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_avg_pool2d(in[0], NULL);
}

static void mean_plain_is(const t_array *in, t_array *out)
{
    pool(&pool_plain, &in[0], &out[0], false, NULL);
}

static void mean_same(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_avg_pool2d(in[0], &same_options);
}

static void mean_same_is(const t_array *in, t_array *out)
{
    pool(&pool_same, &in[0], &out[0], false, NULL);
}

/* dx for x and dy; then the gradient of dx with respect to dy, which is v at the largest
 * element. */
static void max_grad(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *y;

    max_same(s, in, &y);
    ch_gradients(y, in[1], 1, &in[0], out);
}

static void max_grad_is(const t_array *in, t_array *out)
{
    t_array number = in[0], y;

    t_out(&number, in[0].shape); /* the index of each element */
    t_out(&out[0], in[0].shape);
    for (int64_t k = 0; k < ch_shape_count(in[0].shape); k++)
        number.v[k] = (double)k;
    pool(&pool_same, &in[0], &y, true, &number);
    for (int64_t k = 0; k < ch_shape_count(y.shape); k++)
        out[0].v[(int64_t)y.v[k]] += in[1].v[k];
}

static void max_pick(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *y, *dy, *dx;

    max_same(s, in, &y);
    dy = ch_mul(y, ch_number(s, 0.0)); /* any values of y's shape */
    ch_gradients(y, dy, 1, &in[0], &dx);
    ch_gradients(dx, in[1], 1, &dy, out);
}

static void max_pick_is(const t_array *in, t_array *out)
{
    pool(&pool_same, &in[0], &out[0], true, &in[1]);
}

static void mean_grad(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_shape shape;
    ch_node *x, *y;

    if (in[0] == NULL)
        return;
    shape = ch_node_shape(in[0]);
    shape.dim[1] = shape.dim[1] > 0 ? 2 * shape.dim[1] - 1 : 0; /* the stride is 2 */
    x = ch_fill(s, ch_node_dtype(in[0]), shape, 1.0);
    mean_same(s, &x, &y);
    ch_gradients(y, in[0], 1, &x, out);
}

static void mean_grad_is(const t_array *in, t_array *out)
{
    t_array x, y;

    t_out(&out[0], ch_shape_of(2, 5, 4, 3));
    t_out(&x, out[0].shape);
    for (int64_t k = 0; k < ch_shape_count(x.shape); k++) {
        x.v[k] = 1;
        pool(&pool_same, &x, &y, false, NULL);
        x.v[k] = 0;
        for (int64_t i = 0; i < ch_shape_count(y.shape); i++)
            out[0].v[k] += y.v[i] * in[0].v[i];
    }
}

static void max_bad_pad(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_max_pool2d(in[0],
                           &(ch_pool_options){.padding = CH_PAD_EXPLICIT, .pad = {2, 0, 0, 0}});
}

/* ---- attention ---- */

/* Returns mask element (b, h, i, j), or 0 without a mask. */
static double mask_at(const t_array *m, int64_t b, int64_t h, int64_t i, int64_t j)
{
    int64_t d[4] = {1, 1, 1, 1};

    for (int k = 0; k < m->shape.rank; k++)
        d[4 - m->shape.rank + k] = m->shape.dim[k];
    b = d[0] == 1 ? 0 : b;
    h = d[1] == 1 ? 0 : h;
    i = d[2] == 1 ? 0 : i;
    j = d[3] == 1 ? 0 : j;
    return m->v[((b * d[1] + h) * d[2] + i) * d[3] + j];
}

/* Computes a query. The mask is NULL, hides positions where it is 0, or is added. */
static void attend(const t_array *in, t_array *out, const t_array *mask, bool hides,
                   bool causal, double scale, const int64_t at[3])
{
    const int64_t *q = in[0].shape.dim, *k = in[1].shape.dim, *v = in[2].shape.dim;
    int64_t        head = at[0] * q[1] + at[1], i = at[2];
    double         sum = 0, w[512];

    for (int64_t j = 0; j < k[2]; j++) {
        double x = 0, m = mask != NULL ? mask_at(mask, at[0], at[1], i, j) : 0;

        for (int64_t p = 0; p < q[3]; p++)
            x += in[0].v[(head * q[2] + i) * q[3] + p] * in[1].v[(head * k[2] + j) * q[3] + p];
        x = exp(x * scale + (hides ? 0 : m));
        w[j] = (hides && m == 0) || (causal && j > i + k[2] - q[2]) ? 0 : x;
        sum += w[j];
    }
    for (int64_t j = 0; j < k[2] && sum > 0; j++)
        for (int64_t p = 0; p < v[3]; p++)
            out->v[(head * q[2] + i) * v[3] + p] +=
                w[j] / sum * in[2].v[(head * k[2] + j) * v[3] + p];
}

static void attention(const t_array *in, t_array *out, const t_array *mask, bool hides,
                      bool causal, double scale)
{
    const int64_t *q = in[0].shape.dim;

    t_out(&out[0], ch_shape_of(q[0], q[1], q[2], in[2].shape.dim[3]));
    for (int64_t k = 0; k < q[0] * q[1] * q[2]; k++)
        attend(in, &out[0], mask, hides, causal, scale,
               (const int64_t[]){k / q[2] / q[1], k / q[2] % q[1], k % q[2]});
}

static void attend_plain(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_attention(in[0], in[1], in[2], NULL, NULL);
}

static void attend_plain_is(const t_array *in, t_array *out)
{
    attention(in, out, NULL, false, false, 1 / sqrt((double)in[0].shape.dim[3]));
}

static void attend_causal(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_attention(in[0], in[1], in[2], NULL,
                          &(ch_attention_options){.causal = true, .scale = 0.7});
}

static void attend_causal_is(const t_array *in, t_array *out)
{
    attention(in, out, NULL, false, true, 0.7);
}

static void attend_masked(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_attention(in[0], in[1], in[2], in[3], &(ch_attention_options){.scale = 0.7});
}

static void attend_hidden_is(const t_array *in, t_array *out)
{
    attention(in, out, &in[3], true, false, 0.7);
}

static void attend_added_is(const t_array *in, t_array *out)
{
    attention(in, out, &in[3], false, false, 0.7);
}

static void attend_both(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_attention(in[0], in[1], in[2], in[3],
                          &(ch_attention_options){.causal = true, .scale = 0.7});
}

static void attend_both_is(const t_array *in, t_array *out)
{
    attention(in, out, &in[3], true, true, 0.7);
}

/* Self-attention: query, key and value are the same node. */
static void attend_self(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_attention(in[0], in[0], in[0], NULL, NULL);
}

static void attend_self_is(const t_array *in, t_array *out)
{
    attend_plain_is((const t_array[]){in[0], in[0], in[0]}, out);
}

/* The gradient of sum(o * do) with respect to v: transposed weights . do, without options. */
static void attend_grad(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *o;

    attend_plain(s, in, &o);
    ch_gradients(o, in[3], 1, &in[2], out);
}

static void attend_grad_is(const t_array *in, t_array *out)
{
    const int64_t *q = in[0].shape.dim, *k = in[1].shape.dim, *v = in[2].shape.dim;
    t_array        one = {.shape = in[2].shape}, o;

    t_out(&out[0], in[2].shape);
    t_out(&one, in[2].shape);
    for (int64_t j = 0; j < q[0] * q[1] * k[2] * v[3]; j++) {
        one.v[j] = 1;
        attend_plain_is((const t_array[]){in[0], in[1], one}, &o);
        one.v[j] = 0;
        for (int64_t i = 0; i < ch_shape_count(o.shape); i++)
            out[0].v[j] += o.v[i] * in[3].v[i];
    }
}

/* clang-format off */
static const t_sample samples[] = {
    {.op = "matmul", .name = "plain", .dtypes = T_FLOATS | T_INTS, .n_in = 2,
     .in = {{.shape = {2, {3, 5}}, .fill = T_SMALL}, {.shape = {2, {5, 4}}, .fill = T_SMALL, .is_static = true}},
     .record = nn, .reference = nn_is},
    {.op = "matmul", .name = "a transposed", .dtypes = T_FLOATS | T_INTS, .n_in = 2,
     .in = {{.shape = {2, {5, 3}}, .fill = T_SMALL}, {.shape = {2, {5, 4}}, .fill = T_SMALL}},
     .record = tn, .reference = tn_is},
    {.op = "matmul", .name = "b transposed", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {2, {7, 5}}}, {.shape = {2, {4, 5}}, .is_static = true}},
     .record = nt, .reference = nt_is},
    {.op = "matmul", .name = "both transposed", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {2, {5, 3}}, .is_static = true}, {.shape = {2, {4, 5}}, .is_static = true}},
     .record = tt, .reference = tt_is},
    {.op = "matmul", .name = "no rows", .dtypes = T_FLOATS | T_INTS, .n_in = 2,
     .in = {{.shape = {2, {0, 5}}}, {.shape = {2, {5, 4}}, .is_static = true}},
     .record = nn, .reference = nn_is},
    {.op = "matmul", .name = "a sum over nothing", .dtypes = T_FLOATS | T_INTS, .n_in = 2,
     .in = {{.shape = {2, {3, 0}}}, {.shape = {2, {0, 4}}, .is_static = true}},
     .record = nn, .reference = nn_is},
    {.op = "matmul", .name = "odd sizes", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {2, {37, 61}}}, {.shape = {2, {61, 43}}, .is_static = true}},
     .record = nn, .reference = nn_is},
    {.op = "matmul", .name = "one row", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {2, {1, 300}}}, {.shape = {2, {300, 77}}, .is_static = true}},
     .record = nn, .reference = nn_is, .tolerance = 2e-5},
    {.op = "matmul", .name = "one column", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {2, {70, 300}}}, {.shape = {2, {300, 1}}, .is_static = true}},
     .record = nn, .reference = nn_is, .tolerance = 2e-5},
    {.op = "matmul", .name = "blocks of every kind", .dtypes = T_WIDE | 1 << CH_I32, .n_in = 2,
     .in = {{.shape = {2, {101, 270}}, .fill = T_SMALL},
            {.shape = {2, {270, 263}}, .fill = T_SMALL, .is_static = true}},
     .record = nn, .reference = nn_is, .tolerance = 2e-5},
    {.op = "matmul", .name = "several tiles", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {2, {200, 130}}}, {.shape = {2, {350, 130}}, .is_static = true}},
     .record = nt, .reference = nt_is, .tolerance = 2e-5},
    {.op = "matmul", .name = "several tiles, a transposed", .dtypes = 1 << CH_F32 | 1 << CH_BF16, .n_in = 2,
     .in = {{.shape = {2, {130, 200}}, .is_static = true}, {.shape = {2, {130, 350}}, .is_static = true}},
     .record = tn, .reference = tn_is, .tolerance = 2e-5},
    {.op = "matmul", .name = "batched", .dtypes = T_FLOATS | T_INTS, .n_in = 2,
     .in = {{.shape = {3, {4, 3, 5}}, .fill = T_SMALL}, {.shape = {3, {4, 5, 2}}, .fill = T_SMALL}},
     .record = nn, .reference = nn_is},
    {.op = "matmul", .name = "batched, transposed", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {4, {2, 3, 5, 4}}}, {.shape = {4, {2, 3, 6, 5}}}},
     .record = tt, .reference = tt_is},
    {.op = "matmul", .name = "a batch by one matrix", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {4, {2, 3, 4, 5}}}, {.shape = {2, {5, 6}}, .is_static = true}},
     .record = nn, .reference = nn_is},
    {.op = "matmul", .name = "a batch by one matrix, transposed", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {3, {3, 4, 5}}}, {.shape = {2, {6, 5}}, .is_static = true}},
     .record = nt, .reference = nt_is},
    {.op = "matmul", .name = "a transposed batch by one matrix", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {3, {3, 5, 4}}}, {.shape = {2, {5, 6}}, .is_static = true}},
     .record = tn, .reference = tn_is},
    {.op = "matmul", .name = "one matrix by a batch", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {2, {4, 5}}, .is_static = true}, {.shape = {3, {3, 5, 6}}}},
     .record = nn, .reference = nn_is},
    {.op = "matmul", .name = "batches that broadcast", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {4, {2, 1, 3, 4}}, .is_static = true}, {.shape = {4, {1, 3, 4, 5}}, .is_static = true}},
     .record = nn, .reference = nn_is},
    {.op = "matmul", .name = "batches that broadcast both ways", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {5, {2, 1, 2, 3, 4}}}, {.shape = {4, {3, 1, 5, 4}}, .is_static = true}},
     .record = nt, .reference = nt_is},
    {.op = "matmul", .name = "a batch of tiles", .dtypes = 1 << CH_F32 | 1 << CH_F16, .n_in = 2,
     .in = {{.shape = {3, {40, 48, 64}}}, {.shape = {3, {40, 64, 80}}}},
     .record = nn, .reference = nn_is, .tolerance = 2e-5},
    {.op = "matmul", .name = "an empty batch", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {3, {0, 3, 4}}}, {.shape = {3, {0, 4, 5}}}},
     .record = nn, .reference = nn_is},
    {.op = "matmul", .name = "bias and relu taken in", .dtypes = T_FLOATS, .n_in = 3,
     .in = {{.shape = {2, {7, 5}}}, {.shape = {2, {5, 6}}, .is_static = true}, {.shape = {1, {6}}, .is_static = true}},
     .record = linear_relu, .reference = linear_relu_is},
    {.op = "matmul", .name = "bias and relu taken in, tiles", .dtypes = T_WIDE | 1 << CH_BF16, .n_in = 3,
     .in = {{.shape = {3, {20, 10, 130}}}, {.shape = {2, {130, 350}}, .is_static = true},
            {.shape = {1, {350}}, .is_static = true}},
     .record = linear_relu, .reference = linear_relu_is, .flags = T_NO_GRAD, .tolerance = 4e-5},
    {.op = "matmul", .name = "a bias of ones before it", .dtypes = T_FLOATS | T_INTS, .n_in = 3,
     .in = {{.shape = {2, {7, 5}}, .fill = T_SMALL}, {.shape = {2, {6, 5}}, .fill = T_SMALL, .is_static = true},
            {.shape = {2, {1, 6}}, .fill = T_SMALL, .is_static = true}},
     .record = transposed_bias, .reference = transposed_bias_is},
    {.op = "matmul", .name = "activations taken in", .dtypes = T_FLOATS, .n_in = 3, .n_out = 2,
     .in = {{.shape = {2, {3, 5}}}, {.shape = {2, {5, 6}}, .is_static = true}, {.shape = {1, {6}}, .is_static = true}},
     .record = activated, .reference = activated_is, .tolerance = 2e-5},

    {.op = "conv2d", .name = "valid", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {4, {2, 5, 6, 3}}}, {.shape = {4, {3, 2, 3, 4}}, .is_static = true}},
     .record = conv_valid, .reference = conv_valid_is},
    {.op = "conv2d", .name = "same", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {4, {2, 5, 6, 3}}}, {.shape = {4, {3, 4, 3, 5}}, .is_static = true}},
     .record = conv_same, .reference = conv_same_is},
    {.op = "conv2d", .name = "bias and relu taken in", .dtypes = T_FLOATS, .n_in = 3,
     .in = {{.shape = {4, {2, 5, 6, 3}}}, {.shape = {4, {3, 4, 3, 5}}, .is_static = true},
            {.shape = {1, {5}}, .is_static = true}},
     .record = conv_biased, .reference = conv_biased_is},
    {.op = "conv2d", .name = "bias and relu taken in, tiles", .dtypes = 1 << CH_F32 | 1 << CH_F16, .n_in = 3,
     .in = {{.shape = {4, {27, 12, 12, 16}}}, {.shape = {4, {3, 3, 16, 16}}, .is_static = true},
            {.shape = {1, {16}}, .is_static = true}},
     .record = conv_biased, .reference = conv_biased_is, .flags = T_NO_GRAD, .tolerance = 2e-5},
    {.op = "conv2d", .name = "one by one", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {4, {3, 4, 4, 5}}}, {.shape = {4, {1, 1, 5, 7}}, .is_static = true}},
     .record = conv_same, .reference = conv_same_is},
    {.op = "conv2d", .name = "strided", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {4, {2, 7, 6, 2}}}, {.shape = {4, {3, 2, 2, 3}}, .is_static = true}},
     .record = conv_strided, .reference = conv_strided_is},
    {.op = "conv2d", .name = "strided past the filter", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {4, {2, 7, 6, 2}}}, {.shape = {4, {1, 1, 2, 3}}, .is_static = true}},
     .record = conv_strided, .reference = conv_strided_is},
    {.op = "conv2d", .name = "dilated, zeros on some sides", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {4, {2, 6, 5, 2}}}, {.shape = {4, {3, 2, 2, 3}}, .is_static = true}},
     .record = conv_dilated, .reference = conv_dilated_is},
    {.op = "conv2d", .name = "windows of zeros only", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {4, {2, 3, 4, 2}}}, {.shape = {4, {2, 3, 2, 3}}, .is_static = true}},
     .record = conv_padded, .reference = conv_padded_is},
    {.op = "conv2d", .name = "gaps between the windows", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {4, {2, 9, 13, 2}}}, {.shape = {4, {1, 2, 2, 3}}, .is_static = true}},
     .record = conv_sparse, .reference = conv_sparse_is},
    {.op = "conv2d", .name = "in groups", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {4, {2, 5, 4, 4}}}, {.shape = {4, {3, 3, 2, 6}}, .is_static = true}},
     .record = conv_grouped, .reference = conv_grouped_is},
    {.op = "conv2d", .name = "each channel", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {4, {2, 5, 4, 3}}}, {.shape = {4, {3, 3, 3, 1}}, .is_static = true}},
     .record = depthwise, .reference = depthwise_is},
    {.op = "conv2d", .name = "each channel twice", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {4, {2, 5, 4, 3}}}, {.shape = {4, {2, 3, 3, 2}}, .is_static = true}},
     .record = depthwise, .reference = depthwise_is},
    {.op = "conv2d", .name = "many channels", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {4, {2, 6, 5, 32}}}, {.shape = {4, {3, 3, 32, 16}}, .is_static = true}},
     .record = conv_same, .reference = conv_same_is, .tolerance = 2e-5},
    {.op = "conv2d", .name = "tiles", .dtypes = 1 << CH_F32 | 1 << CH_BF16, .n_in = 2,
     .in = {{.shape = {4, {27, 12, 12, 16}}}, {.shape = {4, {3, 3, 16, 16}}, .is_static = true}},
     .record = conv_same, .reference = conv_same_is, .flags = T_NO_GRAD, .tolerance = 2e-5},
    {.op = "conv2d", .name = "no images", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {4, {0, 5, 6, 3}}}, {.shape = {4, {3, 2, 3, 4}}, .is_static = true}},
     .record = conv_valid, .reference = conv_valid_is},
    {.op = "conv2d", .name = "no channels", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {4, {2, 5, 6, 0}}}, {.shape = {4, {3, 2, 0, 4}}, .is_static = true}},
     .record = conv_valid, .reference = conv_valid_is},
    {.op = "conv2d_input_grad", .name = "transposed", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {4, {2, 4, 3, 3}}}, {.shape = {4, {3, 2, 2, 3}}, .is_static = true}},
     .record = transposed, .reference = transposed_is},
    {.op = "conv2d_input_grad", .name = "transposed, a column", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {4, {3, 2, 1, 5}}}, {.shape = {4, {2, 1, 4, 5}}, .is_static = true}},
     .record = transposed_column, .reference = transposed_column_is},
    {.op = "conv2d_filter_grad", .name = "strided, a column", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {4, {3, 2, 1, 5}}}, {.shape = {4, {3, 1, 1, 4}}}},
     .record = filter_grad, .reference = filter_grad_is},
    {.op = "conv2d_filter_grad", .name = "strided", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {4, {3, 7, 6, 2}}}, {.shape = {4, {3, 4, 3, 3}}}},
     .record = filter_grad, .reference = filter_grad_is},
    {.op = "conv2d_filter_grad", .name = "tiles", .dtypes = 1 << CH_F32 | 1 << CH_F16, .n_in = 2,
     .in = {{.shape = {4, {23, 16, 16, 16}}}, {.shape = {4, {23, 8, 8, 64}}}},
     .record = filter_grad, .reference = filter_grad_is, .flags = T_NO_GRAD, .tolerance = 4e-5},

    {.op = "max_pool2d", .name = "plain", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {4, {3, 5, 6, 4}}, .fill = T_DISTINCT}}, .record = max_plain, .reference = max_plain_is},
    {.op = "max_pool2d", .name = "same, overlapping", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {4, {2, 5, 4, 3}}, .fill = T_DISTINCT}}, .record = max_same, .reference = max_same_is},
    {.op = "max_pool2d", .name = "padded", .dtypes = T_WIDE, .n_in = 1,
     .in = {{.shape = {4, {2, 4, 5, 2}}, .fill = T_DISTINCT}}, .record = max_padded, .reference = max_padded_is},
    {.op = "max_pool2d", .name = "gaps between the windows", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {4, {2, 9, 12, 2}}, .fill = T_DISTINCT}}, .record = max_sparse, .reference = max_sparse_is},
    {.op = "max_pool2d", .name = "many channels, tiles", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {4, {5, 11, 10, 70}}}}, .record = max_plain, .reference = max_plain_is, .flags = T_NO_GRAD},
    {.op = "max_pool2d", .name = "no images", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {4, {0, 5, 6, 4}}}}, .record = max_plain, .reference = max_plain_is},
    {.op = "max_pool2d_grad", .name = "overlapping", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {4, {2, 5, 4, 3}}, .fill = T_DISTINCT}, {.shape = {4, {2, 3, 4, 3}}}},
     .record = max_grad, .reference = max_grad_is},
    {.op = "max_pool2d_grad", .name = "a column", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {4, {3, 2, 1, 5}}, .fill = T_DISTINCT}, {.shape = {4, {3, 1, 1, 5}}}},
     .record = max_grad, .reference = max_grad_is},
    {.op = "max_pool2d_grad", .name = "many channels, tiles", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {4, {5, 11, 10, 70}}, .fill = T_SMALL}, {.shape = {4, {5, 6, 10, 70}}}},
     .record = max_grad, .reference = max_grad_is, .flags = T_NO_GRAD},
    {.op = "max_pool2d_pick", .name = "overlapping", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {4, {2, 5, 4, 3}}, .fill = T_DISTINCT}, {.shape = {4, {2, 5, 4, 3}}}},
     .record = max_pick, .reference = max_pick_is},
    {.op = "max_pool2d_pick", .name = "a column", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {4, {3, 2, 1, 5}}, .fill = T_DISTINCT}, {.shape = {4, {3, 2, 1, 5}}}},
     .record = max_pick, .reference = max_pick_is},
    {.op = "avg_pool2d", .name = "plain", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {4, {3, 5, 6, 4}}}}, .record = mean_plain, .reference = mean_plain_is},
    {.op = "avg_pool2d", .name = "same, overlapping", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {4, {2, 5, 4, 3}}}}, .record = mean_same, .reference = mean_same_is},
    {.op = "avg_pool2d", .name = "gaps between the windows", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {4, {2, 9, 12, 2}}}}, .record = mean_sparse, .reference = mean_sparse_is},
    {.op = "avg_pool2d", .name = "many channels, tiles", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {4, {5, 11, 10, 70}}}}, .record = mean_same, .reference = mean_same_is, .flags = T_NO_GRAD},
    {.op = "avg_pool2d_grad", .name = "overlapping", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {4, {2, 3, 4, 3}}, .is_static = true}}, .record = mean_grad, .reference = mean_grad_is},

    {.op = "attention", .name = "plain", .dtypes = T_FLOATS, .n_in = 3,
     .in = {{.shape = {4, {2, 3, 4, 5}}}, {.shape = {4, {2, 3, 6, 5}}}, {.shape = {4, {2, 3, 6, 2}}}},
     .record = attend_plain, .reference = attend_plain_is, .tolerance = 2e-5},
    {.op = "attention", .name = "causal", .dtypes = T_FLOATS, .n_in = 3,
     .in = {{.shape = {4, {2, 2, 5, 3}}}, {.shape = {4, {2, 2, 5, 3}}}, {.shape = {4, {2, 2, 5, 4}}}},
     .record = attend_causal, .reference = attend_causal_is, .tolerance = 2e-5},
    {.op = "attention", .name = "causal, more keys", .dtypes = T_WIDE, .n_in = 3,
     .in = {{.shape = {4, {2, 1, 3, 3}}}, {.shape = {4, {2, 1, 5, 3}}}, {.shape = {4, {2, 1, 5, 4}}}},
     .record = attend_causal, .reference = attend_causal_is, .tolerance = 2e-5},
    {.op = "attention", .name = "causal, queries that see nothing", .dtypes = T_WIDE, .n_in = 3,
     .in = {{.shape = {4, {2, 1, 5, 3}}}, {.shape = {4, {2, 1, 3, 3}}}, {.shape = {4, {2, 1, 3, 4}}}},
     .record = attend_causal, .reference = attend_causal_is, .tolerance = 2e-5},
    {.op = "attention", .name = "keys hidden", .dtypes = T_FLOATS, .n_in = 4,
     .in = {{.shape = {4, {3, 2, 4, 3}}}, {.shape = {4, {3, 2, 6, 3}}}, {.shape = {4, {3, 2, 6, 4}}},
            {.shape = {4, {3, 1, 1, 6}}, .fill = T_BOOL}},
     .record = attend_masked, .reference = attend_hidden_is, .tolerance = 2e-5},
    {.op = "attention", .name = "some pairs hidden, causal", .dtypes = T_WIDE, .n_in = 4,
     .in = {{.shape = {4, {2, 2, 5, 3}}}, {.shape = {4, {2, 2, 5, 3}}}, {.shape = {4, {2, 2, 5, 4}}},
            {.shape = {4, {1, 2, 5, 5}}, .fill = T_BOOL, .is_static = true}},
     .record = attend_both, .reference = attend_both_is, .tolerance = 2e-5},
    {.op = "attention", .name = "a mask that is added", .dtypes = T_FLOATS, .n_in = 4,
     .in = {{.shape = {4, {2, 2, 4, 3}}}, {.shape = {4, {2, 2, 6, 3}}}, {.shape = {4, {2, 2, 6, 4}}},
            {.shape = {4, {1, 2, 4, 6}}, .is_static = true}},
     .record = attend_masked, .reference = attend_added_is, .tolerance = 2e-5},
    {.op = "attention", .name = "the same mask for all", .dtypes = T_WIDE, .n_in = 4,
     .in = {{.shape = {4, {2, 2, 4, 3}}}, {.shape = {4, {2, 2, 6, 3}}}, {.shape = {4, {2, 2, 6, 4}}},
            {.shape = {2, {4, 6}}, .is_static = true}},
     .record = attend_masked, .reference = attend_added_is, .tolerance = 2e-5},
    {.op = "attention", .name = "with itself", .dtypes = T_WIDE, .n_in = 1,
     .in = {{.shape = {4, {2, 2, 4, 3}}}}, .record = attend_self, .reference = attend_self_is, .tolerance = 2e-5},
    {.op = "attention", .name = "blocks of queries, tiles", .dtypes = 1 << CH_F32 | 1 << CH_BF16, .n_in = 3,
     .in = {{.shape = {4, {2, 3, 150, 16}}}, {.shape = {4, {2, 3, 170, 16}}}, {.shape = {4, {2, 3, 170, 16}}}},
     .record = attend_plain, .reference = attend_plain_is, .tolerance = 2e-5},
    {.op = "attention", .name = "causal, blocks of keys", .dtypes = T_WIDE, .n_in = 3,
     .in = {{.shape = {4, {1, 2, 290, 8}}}, {.shape = {4, {1, 2, 290, 8}}}, {.shape = {4, {1, 2, 290, 8}}}},
     .record = attend_causal, .reference = attend_causal_is, .tolerance = 2e-5},
    {.op = "attention", .name = "no keys", .dtypes = T_WIDE, .n_in = 3,
     .in = {{.shape = {4, {2, 2, 4, 3}}}, {.shape = {4, {2, 2, 0, 3}}}, {.shape = {4, {2, 2, 0, 4}}}},
     .record = attend_plain, .reference = attend_plain_is},
    {.op = "attention", .name = "no batch", .dtypes = T_FLOATS, .n_in = 3,
     .in = {{.shape = {4, {0, 2, 4, 3}}}, {.shape = {4, {0, 2, 5, 3}}}, {.shape = {4, {0, 2, 5, 4}}}},
     .record = attend_plain, .reference = attend_plain_is},
    {.op = "attention_grad", .name = "of the values", .dtypes = T_FLOATS, .n_in = 4,
     .in = {{.shape = {4, {2, 2, 4, 3}}}, {.shape = {4, {2, 2, 5, 3}}}, {.shape = {4, {2, 2, 5, 2}}},
            {.shape = {4, {2, 2, 4, 2}}}},
     .record = attend_grad, .reference = attend_grad_is, .tolerance = 2e-5},
    {0},
};

static const t_refusal refusals[] = {
    {.op = "conv2d_input_grad", .name = "an image that is NULL", .n_in = 1, .dtype = CH_F32,
     .in = {{.shape = {4, {3, 3, 2, 2}}}}, .record = transposed_null, .code = CH_INVALID_ARGUMENT,
     .words = {"conv2d_transpose: input 0 is NULL"}},
    {.op = "conv2d", .name = "a depthwise filter that is NULL", .n_in = 1, .dtype = CH_F32,
     .in = {{.shape = {4, {2, 5, 5, 2}}}}, .record = depthwise_null, .code = CH_INVALID_ARGUMENT,
     .words = {"depthwise_conv2d: input 1 is NULL"}},
    {.op = "attention", .name = "matrices", .n_in = 3, .dtype = CH_F32,
     .in = {{.shape = {2, {4, 5}}}, {.shape = {2, {6, 5}}}, {.shape = {2, {6, 2}}}},
     .record = attend_plain, .code = CH_INVALID_ARGUMENT, .words = {"attention(", "rank 2, want 4"}},
    {.op = "attention", .name = "keys of another size", .n_in = 3, .dtype = CH_F32,
     .in = {{.shape = {4, {2, 3, 4, 5}}}, {.shape = {4, {2, 3, 6, 7}}}, {.shape = {4, {2, 3, 6, 2}}}},
     .record = attend_plain, .code = CH_INVALID_ARGUMENT, .words = {"size 5", "keys 7"}},
    {.op = "attention", .name = "more values than keys", .n_in = 3, .dtype = CH_F32,
     .in = {{.shape = {4, {2, 3, 4, 5}}}, {.shape = {4, {2, 3, 6, 5}}}, {.shape = {4, {2, 3, 7, 2}}}},
     .record = attend_plain, .code = CH_INVALID_ARGUMENT, .words = {"6 keys and 7 values"}},
    {.op = "attention", .name = "other heads", .n_in = 3, .dtype = CH_F32,
     .in = {{.shape = {4, {2, 3, 4, 5}}}, {.shape = {4, {2, 1, 6, 5}}}, {.shape = {4, {2, 3, 6, 2}}}},
     .record = attend_plain, .code = CH_INVALID_ARGUMENT, .words = {"3 and 1 heads"}},
    {.op = "attention", .name = "a mask of another size", .n_in = 4, .dtype = CH_F32,
     .in = {{.shape = {4, {2, 3, 4, 5}}}, {.shape = {4, {2, 3, 6, 5}}}, {.shape = {4, {2, 3, 6, 2}}},
            {.shape = {4, {1, 1, 4, 5}}, .is_static = true}},
     .record = attend_masked, .code = CH_INVALID_ARGUMENT, .words = {"axis 3 of the mask", "5, want 6"}},
    {.op = "attention", .name = "integers", .n_in = 3, .dtype = CH_I32,
     .in = {{.shape = {4, {2, 3, 4, 5}}}, {.shape = {4, {2, 3, 6, 5}}}, {.shape = {4, {2, 3, 6, 2}}}},
     .record = attend_plain, .code = CH_INVALID_ARGUMENT, .words = {"i32", "float"}},
    {.op = "max_pool2d", .name = "a matrix", .n_in = 1, .dtype = CH_F32, .in = {{.shape = {2, {5, 6}}}},
     .record = max_plain, .code = CH_INVALID_ARGUMENT, .words = {"max_pool2d(", "rank 2, want 4"}},
    {.op = "max_pool2d", .name = "a window larger than the image", .n_in = 1, .dtype = CH_F32,
     .in = {{.shape = {4, {2, 1, 6, 3}}}}, .record = max_plain, .code = CH_INVALID_ARGUMENT,
     .words = {"larger than the image", "1x6", "2x2"}},
    {.op = "max_pool2d", .name = "a window of padding", .n_in = 1, .dtype = CH_F32,
     .in = {{.shape = {4, {2, 5, 6, 3}}}}, .record = max_bad_pad, .code = CH_INVALID_ARGUMENT,
     .words = {"padding of 2", "window of 2"}},
    {.op = "avg_pool2d", .name = "integers", .n_in = 1, .dtype = CH_I64,
     .in = {{.shape = {4, {2, 5, 6, 3}}, .fill = T_SMALL}}, .record = mean_plain, .code = CH_INVALID_ARGUMENT,
     .words = {"i64", "float"}},
    {.op = "conv2d", .name = "a matrix", .n_in = 2, .dtype = CH_F32,
     .in = {{.shape = {2, {5, 6}}}, {.shape = {4, {3, 2, 3, 4}}, .is_static = true}},
     .record = conv_valid, .code = CH_INVALID_ARGUMENT, .words = {"conv2d(", "rank 2, want 4"}},
    {.op = "conv2d", .name = "a filter of rank 3", .n_in = 2, .dtype = CH_F32,
     .in = {{.shape = {4, {2, 5, 6, 3}}}, {.shape = {3, {3, 2, 3}}, .is_static = true}},
     .record = conv_valid, .code = CH_INVALID_ARGUMENT, .words = {"filter has rank 3, want 4"}},
    {.op = "conv2d", .name = "other channels", .n_in = 2, .dtype = CH_F32,
     .in = {{.shape = {4, {2, 5, 6, 3}}}, {.shape = {4, {3, 2, 5, 4}}, .is_static = true}},
     .record = conv_valid, .code = CH_INVALID_ARGUMENT, .words = {"3 channels", "takes 5"}},
    {.op = "conv2d", .name = "groups that do not divide", .n_in = 2, .dtype = CH_F32,
     .in = {{.shape = {4, {2, 5, 6, 4}}}, {.shape = {4, {3, 2, 2, 5}}, .is_static = true}},
     .record = conv_grouped, .code = CH_INVALID_ARGUMENT, .words = {"2 groups do not divide 5"}},
    {.op = "conv2d", .name = "a window larger than the image", .n_in = 2, .dtype = CH_F32,
     .in = {{.shape = {4, {2, 5, 6, 3}}}, {.shape = {4, {6, 2, 3, 4}}, .is_static = true}},
     .record = conv_valid, .code = CH_INVALID_ARGUMENT, .words = {"larger than the image", "5x6", "6x2"}},
    {.op = "conv2d", .name = "a stride of -1", .n_in = 2, .dtype = CH_F32,
     .in = {{.shape = {4, {2, 5, 6, 3}}}, {.shape = {4, {3, 2, 3, 4}}, .is_static = true}},
     .record = conv_bad_stride, .code = CH_INVALID_ARGUMENT, .words = {"strides", "1 or more"}},
    {.op = "conv2d", .name = "a padding of -1", .n_in = 2, .dtype = CH_F32,
     .in = {{.shape = {4, {2, 5, 6, 3}}}, {.shape = {4, {3, 2, 3, 4}}, .is_static = true}},
     .record = conv_bad_pad, .code = CH_INVALID_ARGUMENT, .words = {"paddings", "0 or more"}},
    {.op = "conv2d", .name = "integers", .n_in = 2, .dtype = CH_I32,
     .in = {{.shape = {4, {2, 5, 6, 3}}, .fill = T_SMALL}, {.shape = {4, {3, 2, 3, 4}}, .fill = T_SMALL, .is_static = true}},
     .record = conv_valid, .code = CH_INVALID_ARGUMENT, .words = {"i32", "float"}},
    {.op = "conv2d_input_grad", .name = "of another size", .n_in = 2, .dtype = CH_F32,
     .in = {{.shape = {4, {2, 4, 4, 3}}}, {.shape = {4, {3, 2, 2, 3}}, .is_static = true}},
     .record = transposed, .code = CH_INVALID_ARGUMENT, .words = {"give 4x3x3"}},
    {.op = "matmul", .name = "inner sizes differ", .n_in = 2, .dtype = CH_F32,
     .in = {{.shape = {2, {2, 3}}}, {.shape = {2, {4, 5}}}},
     .record = nn, .code = CH_INVALID_ARGUMENT, .words = {"matmul(", "inner sizes 3 and"}},
    {.op = "matmul", .name = "transposed inner sizes differ", .n_in = 2, .dtype = CH_F32,
     .in = {{.shape = {2, {2, 3}}, .is_static = true}, {.shape = {2, {3, 5}}, .is_static = true}},
     .record = nt, .code = CH_INVALID_ARGUMENT, .words = {"inner sizes 3 and 5", "transposed"}},
    {.op = "matmul", .name = "a vector", .n_in = 2, .dtype = CH_F32,
     .in = {{.shape = {1, {3}}}, {.shape = {2, {3, 5}}}},
     .record = nn, .code = CH_INVALID_ARGUMENT, .words = {"ranks 1 and 2", "want 2 or more", "expand"}},
    {.op = "matmul", .name = "batches that do not broadcast", .n_in = 2, .dtype = CH_F32,
     .in = {{.shape = {3, {2, 3, 4}}, .is_static = true}, {.shape = {3, {3, 4, 5}}, .is_static = true}},
     .record = nn, .code = CH_INVALID_ARGUMENT, .words = {"batch sizes 2 and 3"}},
    {.op = "matmul", .name = "bool", .n_in = 2, .dtype = CH_BOOL,
     .in = {{.shape = {2, {2, 3}}, .fill = T_BOOL}, {.shape = {2, {3, 5}}, .fill = T_BOOL, .is_static = true}},
     .record = nn, .code = CH_INVALID_ARGUMENT, .words = {"bool", "cast"}},
    {.op = "matmul", .name = "two types", .n_in = 2, .dtype = CH_F32,
     .in = {{.shape = {2, {2, 3}}}, {.shape = {2, {3, 5}}, .is_ids = true, .is_static = true}},
     .record = nn, .code = CH_INVALID_ARGUMENT, .words = {"f32", "cast"}},
    {0},
};
/* clang-format on */

const t_family t_matmul = {"matmul", samples, refusals};
