/* cohort/nn.h -- ops that networks are made of.
 *
 *     ch_node *h = ch_layer_norm(x, gamma, beta, 1e-5);
 *     ch_node *loss = ch_sparse_softmax_cross_entropy(logits, labels);     // one for each row
 *     ch_node *mean = ch_div(ch_sum_all(loss), ch_step_global_rows(s));
 *
 * Each is one kernel, and so is its gradient. bf16 and f16 are computed in f32; what is given
 * beside them (gamma, means) may be f32.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_NN_H
#define COHORT_NN_H

#include "cohort/step.h"

/* ---- softmax, normalisation, losses ---- */

/* exp(x) / sum(exp(x)) along an axis, and its logarithm. */
CH_API ch_node *ch_softmax(ch_node *x, int axis);
CH_API ch_node *ch_log_softmax(ch_node *x, int axis);

/* x (..., n): each row less its mean, over its standard deviation, times gamma (n), plus beta
 * (n). */
CH_API ch_node *ch_layer_norm(ch_node *x, ch_node *gamma, ch_node *beta, double eps);
/* Each row over the root of its mean square, times gamma (n). */
CH_API ch_node *ch_rms_norm(ch_node *x, ch_node *gamma, double eps);
/* x (..., channels), that is (batch, channels) or NHWC: each channel less its mean over the
 * batch, over its standard deviation, times gamma, plus beta. For training: also gives the mean
 * and the variance (divided by the count) of this batch, for moving averages; f32 beside 16-bit
 * floats. Of no rows they are 0 and 1. */
CH_API ch_node *ch_batch_norm(ch_node *x, ch_node *gamma, ch_node *beta, double eps,
                              ch_node **mean, ch_node **variance);
/* The same with a mean and a variance that are given. */
CH_API ch_node *ch_batch_norm_inference(ch_node *x, ch_node *gamma, ch_node *beta,
                                        ch_node *mean, ch_node *variance, double eps);

/* -log(softmax(logits)[label]): logits (..., classes), labels (...) of i32 or i64. A label that
 * is no class makes the run fail; the error names it and its position. */
CH_API ch_node *ch_sparse_softmax_cross_entropy(ch_node *logits, ch_node *labels);
/* -sum(p * log(softmax(logits))) over the last axis; both (..., classes). */
CH_API ch_node *ch_softmax_cross_entropy(ch_node *logits, ch_node *probabilities);
/* -z log(sigmoid(x)) - (1 - z) log(1 - sigmoid(x)), element by element. */
CH_API ch_node *ch_sigmoid_cross_entropy(ch_node *logits, ch_node *labels);

/* ---- linear algebra and convolution ----
 *
 * Convolutions and products of bf16 run on oneDNN where it is fastest, always single-threaded:
 * a device shares large ones among its threads itself. oneDNN's OpenMP is told so for the
 * length of a call, and the program's own OpenMP settings stay as they were.
 * COHORT_ENGINES=false leaves oneDNN alone. */

/* (..., m, n) = a (..., m, k) . b (..., k, n); with `ta`, a is stored as (..., k, m), with
 * `tb`, b as (..., n, k). The axes before the last two broadcast. Floats and integers; integers wrap. */
CH_API ch_node *ch_matmul(ch_node *a, bool ta, ch_node *b, bool tb);
/* (..., n) = x (..., k) . w (k, n) + bias (n), if there is one. With an activation behind it,
 * it is still one call when it runs. */
CH_API ch_node *ch_linear(ch_node *x, ch_node *w, ch_node *bias);

/* What stands around an image where a window reaches over its edge: nothing, so that it never
 * does; zeros, so that there is an output for every stride; or as many zeros as said. */
typedef enum ch_padding { CH_PAD_VALID, CH_PAD_SAME, CH_PAD_EXPLICIT } ch_padding;

/* Pairs are of rows and columns. A zero is the default: strides and dilations of 1, VALID, 1
 * group. */
typedef struct ch_conv_options {
    int64_t    stride[2], dilation[2];
    ch_padding padding;
    int64_t    pad[4]; /* of CH_PAD_EXPLICIT: top, bottom, left, right */
    int64_t    groups; /* channels that are convolved apart from the others */
} ch_conv_options;

/* (n, oh, ow, o) = x (n, h, w, c) with filter (kh, kw, c / groups, o), floats. The window is
 * not turned round: it is a correlation, as everywhere in this trade. */
CH_API ch_node *ch_conv2d(ch_node *x, ch_node *filter, const ch_conv_options *opt);
/* (n, oh, ow, c * times) with filter (kh, kw, c, times): each channel by itself. */
CH_API ch_node *ch_depthwise_conv2d(ch_node *x, ch_node *filter, const ch_conv_options *opt);
/* (n, rows, cols, c) = x (n, h, w, o) with filter (kh, kw, c / groups, o): the gradient of the
 * convolution that makes (h, w) of (rows, cols), also known as deconvolution. */
CH_API ch_node *ch_conv2d_transpose(ch_node *x, ch_node *filter, int64_t rows, int64_t cols,
                                    const ch_conv_options *opt);

/* A zero is the default: a window of 2 x 2, strides as large as the window, VALID. */
typedef struct ch_pool_options {
    int64_t    window[2], stride[2];
    ch_padding padding;
    int64_t    pad[4]; /* of CH_PAD_EXPLICIT: top, bottom, left, right; less than the window */
} ch_pool_options;

/* (n, oh, ow, c) of x (n, h, w, c), floats: the largest under the window, and the mean. What is
 * outside of the image is not seen and does not count. The gradient of the largest goes to the
 * first of equals. */
CH_API ch_node *ch_max_pool2d(ch_node *x, const ch_pool_options *opt);
CH_API ch_node *ch_avg_pool2d(ch_node *x, const ch_pool_options *opt);

typedef struct ch_attention_options {
    bool   causal; /* a query sees the keys up to its own time; the last query sees all */
    double scale;  /* 0: 1 / sqrt(d) */
} ch_attention_options;

/* (b, h, t, e) = softmax(scale * q . k' + mask) . v, of q (b, h, t, d), k (b, h, s, d) and
 * v (b, h, s, e), floats. The mask may be NULL; it broadcasts to (b, h, t, s) and is bool (true:
 * seen) or of q's type (added). A query that sees no key gives zeros. The scores are never all
 * in memory. */
CH_API ch_node *ch_attention(ch_node *q, ch_node *k, ch_node *v, ch_node *mask,
                             const ch_attention_options *opt);

#endif
