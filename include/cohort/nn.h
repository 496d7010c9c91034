/* cohort/nn.h -- neural-network ops: softmax, normalisation, matmul, convolution, attention.
 *
 * These ops are the building blocks of networks. cohort/layer.h has layers, which own the
 * variables too.
 *
 *     ch_node *h = ch_layer_norm(x, gamma, beta, 1e-5);
 *     ch_node *each = ch_sparse_softmax_cross_entropy(logits, labels);     // (rows)
 *     ch_node *loss = ch_div(ch_sum_all(each), ch_step_global_rows(s));
 *
 *   - The step owns every node: there is nothing to free. The thread that records the step
 *     calls the ops. cohort/step.h has the rules for nodes and errors.
 *   - Most ops run as a single kernel, and so do their gradients.
 *   - bf16 and f16 are computed in f32. The other inputs of such an op
 *     (gamma, beta, mean, variance) may be f32.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_NN_H
#define COHORT_NN_H

#include "cohort/step.h"

/* ---- softmax, normalisation, losses ---- */

/* ch_softmax returns exp(x) / sum(exp(x)) along an axis, ch_log_softmax its logarithm. */
CH_API ch_node *ch_softmax(ch_node *x, int axis);
CH_API ch_node *ch_log_softmax(ch_node *x, int axis);

/* Normalises each row of x (..., n): (row - mean) / standard deviation * gamma + beta, with
 * gamma and beta (n). `eps` is added to the variance. */
CH_API ch_node *ch_layer_norm(ch_node *x, ch_node *gamma, ch_node *beta, double eps);
/* Divides each row of x (..., n) by the root of its mean square and multiplies it by gamma (n).
 * `eps` is added to the mean square. */
CH_API ch_node *ch_rms_norm(ch_node *x, ch_node *gamma, double eps);
/* Normalises each channel of x (..., channels), that is (batch, channels) or NHWC, over the
 * batch, for training: (x - mean) / standard deviation * gamma + beta. `eps` is added to the
 * variance.
 *
 * Also writes the mean and the variance of this batch, for moving averages. The divisor of the
 * variance is the number of elements, not that number less 1. Both are f32 if x is bf16 or f16.
 * For a batch without rows they are 0 and 1. `mean` and `variance` may be NULL. */
CH_API ch_node *ch_batch_norm(ch_node *x, ch_node *gamma, ch_node *beta, double eps,
                              ch_node **mean, ch_node **variance);
/* Normalises each channel as ch_batch_norm does, with a given mean and variance. */
CH_API ch_node *ch_batch_norm_inference(ch_node *x, ch_node *gamma, ch_node *beta,
                                        ch_node *mean, ch_node *variance, double eps);

/* Returns -log(softmax(logits)[label]) for logits (..., classes) and labels (...), i32 or i64.
 * If a label is not in [0, classes), the run fails; the error names the label and its
 * position. */
CH_API ch_node *ch_sparse_softmax_cross_entropy(ch_node *logits, ch_node *labels);
/* Returns -sum(p * log(softmax(logits))) over the last axis. Both inputs are (..., classes). */
CH_API ch_node *ch_softmax_cross_entropy(ch_node *logits, ch_node *probabilities);
/* Returns -z * log(sigmoid(x)) - (1 - z) * log(1 - sigmoid(x)), elementwise, for logits x and
 * labels z. */
CH_API ch_node *ch_sigmoid_cross_entropy(ch_node *logits, ch_node *labels);

/* ---- linear algebra and convolution ----
 *
 * Convolutions, and products of bf16, use oneDNN where it is fastest. oneDNN always runs
 * single-threaded, because the device divides large calls among its own threads. The library
 * limits OpenMP to a single thread for the duration of each oneDNN call, and does not change
 * the program's OpenMP settings. The setting COHORT_ENGINES=false disables oneDNN. */

/* Multiplies matrices: (..., m, n) = a (..., m, k) . b (..., k, n). If `ta` is true, a is
 * stored transposed, as (..., k, m); if `tb` is true, b is stored as (..., n, k). The axes
 * before the last two broadcast. Floats and integers; integers wrap. */
CH_API ch_node *ch_matmul(ch_node *a, bool ta, ch_node *b, bool tb);
/* Returns (..., n) = x (..., k) . w (k, n) + bias (n). `bias` may be NULL. An activation of the
 * result runs in the same kernel call. */
CH_API ch_node *ch_linear(ch_node *x, ch_node *w, ch_node *bias);

/* The padding of an image, for windows that reach over its edge. */
typedef enum ch_padding {
    CH_PAD_VALID,   /* none: windows stay inside the image */
    CH_PAD_SAME,    /* zeros, so that the output size is the input size / stride, rounded up */
    CH_PAD_EXPLICIT /* as many zeros as `pad` says */
} ch_padding;

/* Options of convolutions. Pairs are (rows, columns). */
typedef struct ch_conv_options {
    int64_t    stride[2], dilation[2]; /* 0: 1 */
    ch_padding padding;
    int64_t    pad[4]; /* top, bottom, left, right; for CH_PAD_EXPLICIT only */
    int64_t    groups; /* groups of channels that are convolved separately; 0: 1 */
} ch_conv_options;

/* Convolves images: (n, oh, ow, o) from x (n, h, w, c) and filter (kh, kw, c / groups, o),
 * floats. As in other libraries, the filter is not flipped: the op is a cross-correlation.
 * `opt` may be NULL. */
CH_API ch_node *ch_conv2d(ch_node *x, ch_node *filter, const ch_conv_options *opt);
/* Convolves each channel separately: (n, oh, ow, c * times) with filter (kh, kw, c, times).
 * `opt` may be NULL. */
CH_API ch_node *ch_depthwise_conv2d(ch_node *x, ch_node *filter, const ch_conv_options *opt);
/* Returns the transposed convolution (deconvolution): (n, rows, cols, c) from x (n, h, w, o)
 * and filter (kh, kw, c / groups, o). This is the gradient of the convolution that maps
 * (rows, cols) to (h, w), with respect to its input. `opt` may be NULL. */
CH_API ch_node *ch_conv2d_transpose(ch_node *x, ch_node *filter, int64_t rows, int64_t cols,
                                    const ch_conv_options *opt);

/* Options of pooling. Pairs are (rows, columns). */
typedef struct ch_pool_options {
    int64_t    window[2], stride[2]; /* 0: a window of 2 x 2, strides equal to the window */
    ch_padding padding;
    /* Top, bottom, left, right; each less than the window. For CH_PAD_EXPLICIT only. */
    int64_t pad[4];
} ch_pool_options;

/* ch_max_pool2d and ch_avg_pool2d return (n, oh, ow, c): the maximum or the mean under each
 * window of x (n, h, w, c), floats. Padding is ignored: it is neither a maximum nor counted in
 * the mean. The gradient of the maximum goes to the first of equal elements. `opt` may be
 * NULL. */
CH_API ch_node *ch_max_pool2d(ch_node *x, const ch_pool_options *opt);
CH_API ch_node *ch_avg_pool2d(ch_node *x, const ch_pool_options *opt);

typedef struct ch_attention_options {
    /* true: a query sees the keys up to its own time. The last query sees all keys. */
    bool   causal;
    double scale; /* 0: 1 / sqrt(d) */
} ch_attention_options;

/* Returns scaled dot-product attention: (b, h, t, e) = softmax(scale * q . k' + mask) . v, for
 * q (b, h, t, d), k (b, h, s, d) and v (b, h, s, e), floats. `mask` may be NULL; it has 4 axes,
 * broadcasts to (b, h, t, s), and is bool (true: visible) or of q's dtype (added to the
 * scores). A query that sees no key gives zeros. The scores are never all in memory. `opt` may
 * be NULL. */
CH_API ch_node *ch_attention(ch_node *q, ch_node *k, ch_node *v, ch_node *mask,
                             const ch_attention_options *opt);

#endif
