/* test/ops/samples_nn.c -- samples of softmax, normalisations and losses.
 *
 * The references view an array as (outer, n, inner) around an axis, or as rows and columns.
 * Gradients of softmax and normalisations are written out term by term.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "sample.h"

/* ---- along an axis: (outer, n, inner) ---- */

typedef struct view {
    int64_t outer, n, inner;
} view;

static view along(const ch_shape *s, int axis)
{
    view v = {1, 0, 1};

    if (axis < 0)
        axis += s->rank;
    for (int k = 0; k < axis; k++)
        v.outer *= s->dim[k];
    v.n = s->dim[axis];
    for (int k = axis + 1; k < s->rank; k++)
        v.inner *= s->dim[k];
    return v;
}

/* The shape without its last axis. */
static ch_shape rows_of(ch_shape s)
{
    s.dim[--s.rank] = 0;
    return s;
}

static int64_t last(const t_array *x)
{
    return x->shape.dim[x->shape.rank - 1];
}

static int64_t rows(const t_array *x)
{
    return ch_shape_count(rows_of(x->shape));
}

/* ---- softmax ---- */

static void want_softmax(const t_array *x, int axis, bool logarithm, t_array *out)
{
    view v = along(&x->shape, axis);

    t_out(out, x->shape);
    for (int64_t k = 0; k < ch_shape_count(x->shape); k++) {
        int64_t start = k - k / v.inner % v.n * v.inner;
        double  sum = 0;

        for (int64_t i = 0; i < v.n; i++)
            sum += exp(x->v[start + i * v.inner] - x->v[k]);
        out->v[k] = logarithm ? -log(sum) : 1 / sum;
    }
}

#define SOFTMAX(id, op, axis, logarithm)                                                       \
    static void id(ch_step *s, ch_node *const *in, ch_node **out)                              \
    {                                                                                          \
        (void)s;                                                                               \
        out[0] = ch_##op(in[0], axis);                                                         \
    }                                                                                          \
    static void id##_want(const t_array *in, t_array *out)                                     \
    {                                                                                          \
        want_softmax(&in[0], axis, logarithm, out);                                            \
    }
SOFTMAX(softmax_last, softmax, -1, false)
SOFTMAX(softmax_first, softmax, 0, false)
SOFTMAX(softmax_middle, softmax, 1, false)
SOFTMAX(log_softmax_last, log_softmax, -1, true)
SOFTMAX(log_softmax_middle, log_softmax, 1, true)

/* Logits that would overflow: 1000 is added to all, and some are minus infinity. */
static void softmax_far(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *x = ch_add(in[0], ch_number(s, 1000)), *zero = ch_sub(in[0], in[0]);
    ch_node *least = ch_div(ch_sub(zero, ch_number(s, 1)), zero);

    out[0] = ch_softmax(ch_select(ch_greater(in[0], ch_number(s, 2)), least, x), -1);
    out[1] = ch_log_softmax(ch_select(ch_greater(in[0], ch_number(s, 2)), least, x), -1);
}

static void softmax_far_want(const t_array *in, t_array *out)
{
    t_array x;

    t_out(&x, in[0].shape);
    for (int64_t k = 0; k < ch_shape_count(x.shape); k++)
        x.v[k] = in[0].v[k] > 2 ? -INFINITY : in[0].v[k];
    want_softmax(&x, -1, false, &out[0]);
    want_softmax(&x, -1, true, &out[1]);
    for (int64_t k = 0; k < ch_shape_count(x.shape); k++)
        if (in[0].v[k] > 2) {
            out[0].v[k] = 0;
            out[1].v[k] = -INFINITY;
        }
}

/* dx = sum over j of d[j] * dy[j]/dx[i], term by term. */
static void softmax_back(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    ch_gradients(ch_softmax(in[0], -1), in[1], 1, &in[0], out);
}

static void softmax_back_want(const t_array *in, t_array *out)
{
    t_array y;
    int64_t n = last(&in[0]);

    want_softmax(&in[0], -1, false, &y);
    t_out(out, y.shape);
    for (int64_t k = 0; k < ch_shape_count(y.shape); k++)
        for (int64_t j = 0; j < n; j++) {
            int64_t m = k / n * n + j;

            out->v[k] += in[1].v[m] * y.v[m] * ((m == k) - y.v[k]);
        }
}

static void log_softmax_back(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    ch_gradients(ch_log_softmax(in[0], -1), in[1], 1, &in[0], out);
}

static void log_softmax_back_want(const t_array *in, t_array *out)
{
    t_array y;
    int64_t n = last(&in[0]);

    want_softmax(&in[0], -1, false, &y);
    t_out(out, y.shape);
    for (int64_t k = 0; k < ch_shape_count(y.shape); k++)
        for (int64_t j = 0; j < n; j++) {
            int64_t m = k / n * n + j;

            out->v[k] += in[1].v[m] * ((m == k) - y.v[k]);
        }
}

/* ---- layer_norm, rms_norm: x, gamma, beta or dy ---- */

static const double EPS = 1e-3;

static void stats_of(const double *x, int64_t n, bool center, double *mean, double *r)
{
    double square = 0;

    *mean = 0;
    for (int64_t j = 0; j < n && center; j++)
        *mean += x[j] / (double)n;
    for (int64_t j = 0; j < n; j++)
        square += (x[j] - *mean) * (x[j] - *mean) / (double)n;
    *r = 1 / sqrt(square + EPS);
}

static void want_norm(const t_array *in, bool center, t_array *out)
{
    int64_t n = last(&in[0]);

    t_out(out, in[0].shape);
    for (int64_t i = 0; i < rows(&in[0]); i++) {
        double mean, r;

        stats_of(in[0].v + i * n, n, center, &mean, &r);
        for (int64_t j = 0; j < n; j++)
            out->v[i * n + j] =
                (in[0].v[i * n + j] - mean) * r * in[1].v[j] + (center ? in[2].v[j] : 0);
    }
}

/* With h = (x - mean) r: dh[j]/dx[k] = r ((j == k) - 1/n - h[j] h[k]/n), without 1/n if there
 * is no mean. */
static void want_norm_back(const t_array *x, const t_array *gamma, const t_array *dy,
                           bool center, t_array *out)
{
    int64_t n = last(x);

    t_out(&out[0], x->shape);
    t_out(&out[1], gamma->shape);
    t_out(&out[2], gamma->shape);
    for (int64_t i = 0; i < rows(x); i++) {
        const double *row = x->v + i * n, *d = dy->v + i * n;
        double        mean, r;

        stats_of(row, n, center, &mean, &r);
        for (int64_t j = 0; j < n; j++) {
            double h = (row[j] - mean) * r;

            out[1].v[j] += d[j] * h;
            out[2].v[j] += d[j];
            for (int64_t k = 0; k < n; k++)
                out[0].v[i * n + k] += d[j] * gamma->v[j] * r *
                                       ((j == k) - (center ? 1 / (double)n : 0) -
                                        h * (row[k] - mean) * r / (double)n);
        }
    }
}

static void layer(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_layer_norm(in[0], in[1], in[2], EPS);
}

static void layer_want(const t_array *in, t_array *out)
{
    want_norm(in, true, out);
}

static void rms(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_rms_norm(in[0], in[1], EPS);
}

static void rms_want(const t_array *in, t_array *out)
{
    want_norm(in, false, out);
}

static void layer_back(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    ch_gradients(ch_layer_norm(in[0], in[1], in[2], EPS), in[3], 3, in, out);
}

static void layer_back_want(const t_array *in, t_array *out)
{
    want_norm_back(&in[0], &in[1], &in[3], true, out);
}

static void rms_back(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    ch_gradients(ch_rms_norm(in[0], in[1], EPS), in[2], 2, in, out);
}

static void rms_back_want(const t_array *in, t_array *out)
{
    want_norm_back(&in[0], &in[1], &in[2], false, out);
}

/* A 16-bit x with f32 parameters, and their gradients. */
static void mixed(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *gamma = ch_cast(in[1], CH_F32), *beta = ch_cast(in[2], CH_F32);
    ch_node *y = ch_layer_norm(in[0], gamma, beta, EPS), *d[3];

    (void)s;
    ch_gradients(y, in[3], 3, (ch_node *[]){in[0], gamma, beta}, d);
    out[0] = y;
    out[1] = d[0];
    out[2] = ch_cast(d[1], ch_node_dtype(in[0]));
    out[3] = ch_cast(d[2], ch_node_dtype(in[0]));
}

static void mixed_want(const t_array *in, t_array *out)
{
    want_norm(in, true, out);
    want_norm_back(&in[0], &in[1], &in[3], true, out + 1);
}

/* ---- batch_norm ---- */

static void column_stats(const t_array *x, int64_t j, double *mean, double *variance)
{
    int64_t n = last(x), m = rows(x);

    *mean = 0;
    *variance = 0;
    for (int64_t i = 0; i < m; i++)
        *mean += x->v[i * n + j] / (double)m;
    for (int64_t i = 0; i < m; i++)
        *variance += pow(x->v[i * n + j] - *mean, 2) / (double)m;
    if (m == 0)
        *variance = 1;
}

static void want_batch(const t_array *x, const t_array *gamma, const t_array *beta,
                       t_array *out)
{
    int64_t n = last(x);

    t_out(&out[0], x->shape);
    t_out(&out[1], gamma->shape);
    t_out(&out[2], gamma->shape);
    for (int64_t j = 0; j < n; j++) {
        column_stats(x, j, &out[1].v[j], &out[2].v[j]);
        for (int64_t i = 0; i < rows(x); i++)
            out[0].v[i * n + j] =
                (x->v[i * n + j] - out[1].v[j]) / sqrt(out[2].v[j] + EPS) * gamma->v[j] +
                beta->v[j];
    }
}

/* Casts the statistics to x's dtype, so that all outputs have the same dtype. */
static void batch(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_batch_norm(in[0], in[1], in[2], EPS, &out[1], &out[2]);
    for (int i = 1; i <= 2 && out[0] != NULL; i++)
        out[i] = ch_cast(out[i], ch_node_dtype(in[0]));
}

static void batch_want(const t_array *in, t_array *out)
{
    want_batch(&in[0], &in[1], &in[2], out);
}

/* A mean that is large compared to the deviation. */
static void batch_far(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] =
        ch_batch_norm(ch_add(in[0], ch_number(s, 5000)), in[1], in[2], EPS, &out[1], &out[2]);
}

static void batch_far_want(const t_array *in, t_array *out)
{
    t_array x;

    t_out(&x, in[0].shape);
    for (int64_t k = 0; k < ch_shape_count(x.shape); k++)
        x.v[k] = in[0].v[k] + 5000;
    want_batch(&x, &in[1], &in[2], out);
}

static void batch_back(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *y = ch_batch_norm(in[0], in[1], in[2], EPS, NULL, NULL);

    (void)s;
    ch_gradients(y, in[3], 3, in, out);
}

/* Like the gradient of layer_norm, along columns; gamma has a number for each column. */
static void batch_back_want(const t_array *in, t_array *out)
{
    int64_t n = last(&in[0]), m = rows(&in[0]);

    t_out(&out[0], in[0].shape);
    t_out(&out[1], in[1].shape);
    t_out(&out[2], in[1].shape);
    for (int64_t j = 0; j < n; j++) {
        double mean, variance, r;

        column_stats(&in[0], j, &mean, &variance);
        r = 1 / sqrt(variance + EPS);
        for (int64_t i = 0; i < m; i++) {
            double h = (in[0].v[i * n + j] - mean) * r, d = in[3].v[i * n + j];

            out[1].v[j] += d * h;
            out[2].v[j] += d;
            for (int64_t k = 0; k < m; k++)
                out[0].v[k * n + j] += d * in[1].v[j] * r *
                                       ((i == k) - 1 / (double)m -
                                        h * (in[0].v[k * n + j] - mean) * r / (double)m);
        }
    }
}

static void inference(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_batch_norm_inference(in[0], in[1], in[2], in[3], in[4], EPS);
}

static void inference_of_null(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_batch_norm_inference(in[0], in[1], in[2], NULL, in[3], EPS);
}

static void inference_want(const t_array *in, t_array *out)
{
    int64_t n = last(&in[0]);

    t_out(out, in[0].shape);
    for (int64_t k = 0; k < ch_shape_count(in[0].shape); k++)
        out->v[k] =
            (in[0].v[k] - in[3].v[k % n]) / sqrt(in[4].v[k % n] + EPS) * in[1].v[k % n] +
            in[2].v[k % n];
}

/* ---- cross entropies ---- */

static void sparse(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_sparse_softmax_cross_entropy(in[0], in[1]);
}

static void sparse_want(const t_array *in, t_array *out)
{
    t_array y;
    int64_t n = last(&in[0]);

    want_softmax(&in[0], -1, true, &y);
    t_out(out, in[1].shape);
    for (int64_t i = 0; i < rows(&in[0]); i++)
        out->v[i] = -y.v[i * n + (int64_t)in[1].v[i]];
}

static void sparse_back(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    ch_gradients(ch_sparse_softmax_cross_entropy(in[0], in[1]), in[2], 1, in, out);
}

static void sparse_back_want(const t_array *in, t_array *out)
{
    int64_t n = last(&in[0]);

    want_softmax(&in[0], -1, false, out);
    for (int64_t k = 0; k < ch_shape_count(in[0].shape); k++)
        out->v[k] = (out->v[k] - (k % n == (int64_t)in[1].v[k / n])) * in[2].v[k / n];
}

static void dense(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_softmax_cross_entropy(in[0], in[1]);
}

static void dense_want(const t_array *in, t_array *out)
{
    t_array y;
    int64_t n = last(&in[0]);

    want_softmax(&in[0], -1, true, &y);
    t_out(out, rows_of(in[0].shape));
    for (int64_t k = 0; k < ch_shape_count(y.shape); k++)
        out->v[k / n] -= in[1].v[k] * y.v[k];
}

/* Classes of probability zero may have logits of minus infinity. */
static void dense_masked(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *zero = ch_sub(in[0], in[0]), *gone = ch_less(in[0], ch_number(s, -0.5));
    ch_node *least = ch_div(ch_sub(zero, ch_number(s, 1)), zero);

    out[0] =
        ch_softmax_cross_entropy(ch_select(gone, least, in[0]), ch_select(gone, zero, in[1]));
}

static void dense_masked_want(const t_array *in, t_array *out)
{
    t_array x, y;
    int64_t n = last(&in[0]);

    t_out(&x, in[0].shape);
    for (int64_t k = 0; k < ch_shape_count(x.shape); k++)
        x.v[k] = in[0].v[k] < -0.5 ? -INFINITY : in[0].v[k];
    want_softmax(&x, -1, true, &y);
    t_out(out, rows_of(in[0].shape));
    for (int64_t k = 0; k < ch_shape_count(y.shape); k++)
        out->v[k / n] -= in[0].v[k] < -0.5 ? 0 : in[1].v[k] * y.v[k];
}

static void dense_back(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    ch_gradients(ch_softmax_cross_entropy(in[0], in[1]), in[2], 2, in, out);
}

static void dense_back_want(const t_array *in, t_array *out)
{
    int64_t n = last(&in[0]);

    want_softmax(&in[0], -1, false, &out[0]);
    want_softmax(&in[0], -1, true, &out[1]);
    for (int64_t k = 0; k < ch_shape_count(in[0].shape); k++) {
        double sum = 0;

        for (int64_t j = 0; j < n; j++)
            sum += in[1].v[k / n * n + j];
        out[0].v[k] = (out[0].v[k] * sum - in[1].v[k]) * in[2].v[k / n];
        out[1].v[k] *= -in[2].v[k / n];
    }
}

static void sigmoid(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_sigmoid_cross_entropy(in[0], in[1]);
}

static void sigmoid_want(const t_array *in, t_array *out)
{
    int64_t n = ch_shape_count(in[1].shape);

    t_out(out, in[0].shape);
    for (int64_t k = 0; k < ch_shape_count(in[0].shape); k++) {
        double x = in[0].v[k], z = in[1].v[k % n];

        out->v[k] = -z * -log1p(exp(-x)) - (1 - z) * -log1p(exp(x));
    }
}

/* Far from 0 the loss is x or 0; at 0 the gradient is 0.5 - z. */
static void sigmoid_edges(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *zero = ch_sub(in[0], in[0]), *far = ch_mul(ch_sign(in[0]), ch_number(s, 60));
    ch_node *loss = ch_sigmoid_cross_entropy(far, in[1]);

    out[0] = loss;
    ch_gradients(ch_sigmoid_cross_entropy(zero, in[1]), NULL, 1, &zero, &out[1]);
}

static void sigmoid_edges_want(const t_array *in, t_array *out)
{
    t_out(&out[0], in[0].shape);
    t_out(&out[1], in[0].shape);
    for (int64_t k = 0; k < ch_shape_count(in[0].shape); k++) {
        double z = in[1].v[k];

        out[0].v[k] = in[0].v[k] > 0 ? 60 - 60 * z : 60 * z;
        out[1].v[k] = 0.5 - z;
    }
}

#define IN(fill_, ...)                                                                         \
    {                                                                                          \
        .shape = {__VA_ARGS__}, .fill = fill_                                                  \
    }
#define FIXED(fill_, ...)                                                                      \
    {                                                                                          \
        .shape = {__VA_ARGS__}, .fill = fill_, .is_static = true                               \
    }
#define LABELS(limit_, ...)                                                                    \
    {                                                                                          \
        .shape = {__VA_ARGS__}, .fill = T_IDS, .limit = limit_, .is_ids = true                 \
    }
#define ROW(op_, name_, dtypes_, fn, n_in_, n_out_, flags_, ...)                               \
    {                                                                                          \
        .op = op_, .name = name_, .dtypes = dtypes_, .n_in = n_in_, .in = {__VA_ARGS__},       \
        .n_out = n_out_, .record = fn, .reference = fn##_want, .flags = flags_                 \
    }

enum { F32 = 1 << CH_F32, HALVES = 1 << CH_BF16 | 1 << CH_F16 };

static const t_sample samples[] = {
    ROW("softmax", "rows", T_FLOATS, softmax_last, 1, 1, 0, IN(T_UNIT, 2, {5, 7})),
    ROW("softmax", "long rows", T_WIDE, softmax_last, 1, 1, 0, IN(T_UNIT, 2, {3, 1203})),
    ROW("softmax", "many rows", F32, softmax_last, 1, 1, 0, IN(T_UNIT, 3, {30, 10, 100})),
    ROW("softmax", "of one", T_WIDE, softmax_last, 1, 1, 0, IN(T_UNIT, 2, {3, 1})),
    ROW("softmax", "of none", T_WIDE, softmax_last, 1, 1, T_NO_GRAD, FIXED(T_UNIT, 2, {3, 0})),
    ROW("softmax", "first axis", T_FLOATS, softmax_first, 1, 1, 0, IN(T_UNIT, 2, {5, 3})),
    ROW("softmax", "middle axis", T_FLOATS, softmax_middle, 1, 1, 0, IN(T_UNIT, 3, {2, 5, 3})),
    ROW("softmax", "a vector", T_FLOATS, softmax_last, 1, 1, 0, IN(T_UNIT, 1, {6})),
    ROW("softmax", "far from zero", T_WIDE, softmax_far, 1, 2, T_NO_GRAD,
        FIXED(T_SMALL, 2, {6, 9})),
    ROW("log_softmax", "rows", T_FLOATS, log_softmax_last, 1, 1, 0, IN(T_UNIT, 2, {5, 7})),
    ROW("log_softmax", "long rows", T_WIDE, log_softmax_last, 1, 1, 0,
        IN(T_UNIT, 2, {3, 1203})),
    ROW("log_softmax", "many rows", F32, log_softmax_last, 1, 1, 0, IN(T_UNIT, 2, {300, 100})),
    ROW("log_softmax", "middle axis", T_FLOATS, log_softmax_middle, 1, 1, 0,
        IN(T_UNIT, 3, {2, 5, 3})),
    ROW("softmax_grad", "rows", T_FLOATS, softmax_back, 2, 1, 0, IN(T_UNIT, 2, {4, 5}),
        IN(T_UNIT, 2, {4, 5})),
    ROW("softmax_grad", "many rows", F32, softmax_back, 2, 1, 0, IN(T_UNIT, 2, {300, 70}),
        IN(T_UNIT, 2, {300, 70})),
    ROW("log_softmax_grad", "rows", T_FLOATS, log_softmax_back, 2, 1, 0, IN(T_UNIT, 2, {4, 5}),
        IN(T_UNIT, 2, {4, 5})),

    ROW("layer_norm", "rows", T_FLOATS, layer, 3, 1, 0, IN(T_UNIT, 2, {5, 7}),
        FIXED(T_UNIT, 1, {7}), FIXED(T_UNIT, 1, {7})),
    ROW("layer_norm", "long rows", T_WIDE, layer, 3, 1, 0, IN(T_UNIT, 3, {2, 2, 1203}),
        FIXED(T_UNIT, 1, {1203}), FIXED(T_UNIT, 1, {1203})),
    ROW("layer_norm", "many rows", F32, layer, 3, 1, 0, IN(T_UNIT, 2, {400, 100}),
        FIXED(T_UNIT, 1, {100}), FIXED(T_UNIT, 1, {100})),
    ROW("layer_norm", "of none", T_WIDE, layer, 3, 1, T_NO_GRAD, FIXED(T_UNIT, 2, {4, 0}),
        FIXED(T_UNIT, 1, {0}), FIXED(T_UNIT, 1, {0})),
    ROW("layer_norm", "f32 beside 16 bits", HALVES, mixed, 4, 4, T_NO_GRAD,
        IN(T_UNIT, 2, {5, 7}), FIXED(T_UNIT, 1, {7}), FIXED(T_UNIT, 1, {7}),
        IN(T_UNIT, 2, {5, 7})),
    ROW("layer_norm_grad", "rows", T_FLOATS, layer_back, 4, 3, 0, IN(T_UNIT, 2, {5, 7}),
        FIXED(T_UNIT, 1, {7}), FIXED(T_UNIT, 1, {7}), IN(T_UNIT, 2, {5, 7})),
    ROW("layer_norm_grad", "many rows", F32, layer_back, 4, 3, T_GRAD_ONCE,
        IN(T_UNIT, 2, {450, 40}), FIXED(T_UNIT, 1, {40}), FIXED(T_UNIT, 1, {40}),
        IN(T_UNIT, 2, {450, 40})),
    ROW("rms_norm", "rows", T_FLOATS, rms, 2, 1, 0, IN(T_UNIT, 2, {5, 7}),
        FIXED(T_UNIT, 1, {7})),
    ROW("rms_norm", "many rows", F32, rms, 2, 1, 0, IN(T_UNIT, 2, {400, 100}),
        FIXED(T_UNIT, 1, {100})),
    ROW("rms_norm_grad", "rows", T_FLOATS, rms_back, 3, 2, 0, IN(T_UNIT, 2, {5, 7}),
        FIXED(T_UNIT, 1, {7}), IN(T_UNIT, 2, {5, 7})),

    ROW("batch_norm", "rows", T_FLOATS, batch, 3, 3, 0, IN(T_UNIT, 2, {8, 3}),
        FIXED(T_UNIT, 1, {3}), FIXED(T_UNIT, 1, {3})),
    ROW("batch_norm", "images", T_FLOATS, batch, 3, 3, 0, IN(T_UNIT, 4, {2, 3, 4, 5}),
        FIXED(T_UNIT, 1, {5}), FIXED(T_UNIT, 1, {5})),
    ROW("batch_norm", "many rows", T_FLOATS, batch, 3, 3, T_GRAD_ONCE, IN(T_UNIT, 2, {700, 50}),
        FIXED(T_UNIT, 1, {50}), FIXED(T_UNIT, 1, {50})),
    ROW("batch_norm", "far from zero", F32, batch_far, 3, 3, T_NO_GRAD,
        IN(T_SMALL, 2, {200, 9}), FIXED(T_UNIT, 1, {9}), FIXED(T_UNIT, 1, {9})),
    ROW("batch_norm_grad", "rows", T_FLOATS, batch_back, 4, 3, 0, IN(T_UNIT, 2, {8, 3}),
        FIXED(T_UNIT, 1, {3}), FIXED(T_UNIT, 1, {3}), IN(T_UNIT, 2, {8, 3})),
    ROW("batch_norm_grad", "many rows", F32, batch_back, 4, 3, T_GRAD_ONCE,
        IN(T_UNIT, 2, {700, 50}), FIXED(T_UNIT, 1, {50}), FIXED(T_UNIT, 1, {50}),
        IN(T_UNIT, 2, {700, 50})),
    ROW("mul", "batch_norm as it is used", T_FLOATS, inference, 5, 1, 0,
        IN(T_UNIT, 3, {3, 4, 5}), FIXED(T_UNIT, 1, {5}), FIXED(T_UNIT, 1, {5}),
        FIXED(T_UNIT, 1, {5}), FIXED(T_POSITIVE, 1, {5})),

    ROW("sparse_softmax_cross_entropy", "rows", T_FLOATS, sparse, 2, 1, 0,
        IN(T_UNIT, 2, {5, 7}), LABELS(7, 1, {5})),
    ROW("sparse_softmax_cross_entropy", "positions", T_WIDE, sparse, 2, 1, 0,
        IN(T_UNIT, 3, {3, 4, 5}), LABELS(5, 2, {3, 4})),
    ROW("sparse_softmax_cross_entropy", "many classes", T_WIDE, sparse, 2, 1, 0,
        IN(T_UNIT, 2, {9, 2001}), LABELS(2001, 1, {9})),
    ROW("sparse_softmax_cross_entropy_grad", "rows", T_FLOATS, sparse_back, 3, 1, 0,
        IN(T_UNIT, 2, {5, 7}), LABELS(7, 1, {5}), IN(T_UNIT, 1, {5})),
    ROW("sparse_softmax_cross_entropy_grad", "many rows", F32, sparse_back, 3, 1, 0,
        IN(T_UNIT, 2, {400, 50}), LABELS(50, 1, {400}), IN(T_UNIT, 1, {400})),
    ROW("softmax_cross_entropy", "rows", T_FLOATS, dense, 2, 1, 0, IN(T_UNIT, 2, {5, 7}),
        IN(T_POSITIVE, 2, {5, 7})),
    ROW("softmax_cross_entropy", "many rows", F32, dense, 2, 1, 0, IN(T_UNIT, 3, {20, 20, 50}),
        IN(T_POSITIVE, 3, {20, 20, 50})),
    ROW("softmax_cross_entropy", "masked", T_FLOATS, dense_masked, 2, 1, T_NO_GRAD,
        IN(T_UNIT, 2, {5, 9}), IN(T_POSITIVE, 2, {5, 9})),
    ROW("softmax_cross_entropy_grad", "rows", T_FLOATS, dense_back, 3, 2, 0,
        IN(T_UNIT, 2, {5, 7}), IN(T_POSITIVE, 2, {5, 7}), IN(T_UNIT, 1, {5})),
    ROW("sigmoid_cross_entropy", "elements", T_FLOATS, sigmoid, 2, 1, 0, IN(T_UNIT, 2, {5, 7}),
        IN(T_POSITIVE, 2, {5, 7})),
    ROW("sigmoid_cross_entropy", "broadcast", T_WIDE, sigmoid, 2, 1, 0, IN(T_UNIT, 2, {5, 7}),
        FIXED(T_POSITIVE, 1, {7})),
    ROW("sigmoid_cross_entropy", "many", F32, sigmoid, 2, 1, 0, IN(T_UNIT, 2, {300, 70}),
        IN(T_POSITIVE, 2, {300, 70})),
    ROW("sigmoid_cross_entropy", "edges", T_WIDE, sigmoid_edges, 2, 2, T_NO_GRAD,
        IN(T_UNIT, 2, {5, 7}), IN(T_POSITIVE, 2, {5, 7})),
    {.op = NULL},
};

/* ---- refusals ---- */

#define REFUSED(op_, name_, fn, n_in_, dtype_, words_, ...)                                    \
    {                                                                                          \
        .op = op_, .name = name_, .n_in = n_in_, .in = {__VA_ARGS__}, .dtype = dtype_,         \
        .record = fn, .code = CH_INVALID_ARGUMENT, .words = words_                             \
    }
#define WORDS(...)                                                                             \
    {                                                                                          \
        __VA_ARGS__                                                                            \
    }

static void softmax_axis(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_softmax(in[0], 2);
}

static void layer_eps(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_layer_norm(in[0], in[1], in[2], -1);
}

static void layer_ids(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_layer_norm(in[0], ch_cast(in[1], CH_F64), in[2], EPS);
}

static const t_refusal refusals[] = {
    REFUSED("softmax", "an axis that is not there", softmax_axis, 1, CH_F32,
            WORDS("softmax", "axis 2", "rank 2"), IN(T_UNIT, 2, {3, 4})),
    REFUSED("softmax", "a scalar", softmax_last, 1, CH_F32, WORDS("softmax", "rank 0"),
            IN(T_UNIT, 0, {0})),
    REFUSED("softmax", "integers", softmax_last, 1, CH_I32, WORDS("i32", "float"),
            IN(T_SMALL, 2, {3, 4})),
    REFUSED("layer_norm", "gamma of another size", layer, 3, CH_F32, WORDS("input 1", "(4)"),
            IN(T_UNIT, 2, {3, 4}), FIXED(T_UNIT, 1, {3}), FIXED(T_UNIT, 1, {4})),
    REFUSED("layer_norm", "beta of another rank", layer, 3, CH_F32, WORDS("input 2", "(4)"),
            IN(T_UNIT, 2, {3, 4}), FIXED(T_UNIT, 1, {4}), FIXED(T_UNIT, 2, {1, 4})),
    REFUSED("layer_norm", "gamma of another type", layer_ids, 3, CH_F32,
            WORDS("input 1", "f64", "cast"), IN(T_UNIT, 2, {3, 4}), FIXED(T_UNIT, 1, {4}),
            FIXED(T_UNIT, 1, {4})),
    REFUSED("layer_norm", "a negative epsilon", layer_eps, 3, CH_F32, WORDS("epsilon is -1"),
            IN(T_UNIT, 2, {3, 4}), FIXED(T_UNIT, 1, {4}), FIXED(T_UNIT, 1, {4})),
    REFUSED("rms_norm", "a scalar", rms, 2, CH_F32, WORDS("scalar"), IN(T_UNIT, 0, {0}),
            FIXED(T_UNIT, 1, {4})),
    REFUSED("batch_norm", "a vector", batch, 3, CH_F32, WORDS("rank 1"), IN(T_UNIT, 1, {4}),
            FIXED(T_UNIT, 1, {4}), FIXED(T_UNIT, 1, {4})),
    REFUSED("batch_norm", "gamma of another size", batch, 3, CH_F32, WORDS("input 1", "(4)"),
            IN(T_UNIT, 2, {3, 4}), FIXED(T_UNIT, 1, {3}), FIXED(T_UNIT, 1, {4})),
    REFUSED("mul", "a mean of another size", inference, 5, CH_F32,
            WORDS("batch_norm_inference", "mean is (3,)"), IN(T_UNIT, 2, {3, 4}),
            FIXED(T_UNIT, 1, {4}), FIXED(T_UNIT, 1, {4}), FIXED(T_UNIT, 1, {3}),
            FIXED(T_UNIT, 1, {4})),
    REFUSED("mul", "a mean that is NULL", inference_of_null, 4, CH_F32,
            WORDS("batch_norm_inference: input 3 is NULL"), IN(T_UNIT, 2, {3, 4}),
            FIXED(T_UNIT, 1, {4}), FIXED(T_UNIT, 1, {4}), FIXED(T_UNIT, 1, {4})),
    REFUSED("sparse_softmax_cross_entropy", "a label that is no class", sparse, 2, CH_F32,
            WORDS("label", "position 0", "0 .. 2"), IN(T_UNIT, 2, {1, 3}),
            {.shape = {1, {1}}, .fill = T_IDS, .limit = 1 << 30, .is_ids = true}),
    REFUSED("sparse_softmax_cross_entropy", "no classes", sparse, 2, CH_F32,
            WORDS("label", "position 0"), FIXED(T_UNIT, 2, {1, 0}),
            {.shape = {1, {1}}, .fill = T_IDS, .limit = 1, .is_ids = true, .is_static = true}),
    REFUSED("sparse_softmax_cross_entropy", "labels of another shape", sparse, 2, CH_F32,
            WORDS("labels", "without the last"), IN(T_UNIT, 2, {2, 3}), LABELS(3, 2, {2, 3})),
    REFUSED("sparse_softmax_cross_entropy", "labels that are floats", sparse, 2, CH_F32,
            WORDS("input 1", "f32", "i64"), IN(T_UNIT, 2, {2, 3}), IN(T_UNIT, 1, {2})),
    REFUSED("softmax_cross_entropy", "other sizes", dense, 2, CH_F32, WORDS("the same shape"),
            IN(T_UNIT, 2, {2, 3}), IN(T_UNIT, 2, {2, 4})),
    REFUSED("sigmoid_cross_entropy", "other sizes", sigmoid, 2, CH_F32, WORDS("3", "4", "fit"),
            IN(T_UNIT, 2, {2, 3}), IN(T_UNIT, 2, {2, 4})),
    {.op = NULL},
};

const t_family t_nn = {"nn", samples, refusals};
