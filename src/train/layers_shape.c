/* train/layers_shape.c -- layers without variables: pooling, shapes, activation, dropout.
 *
 * Each layer is a thin wrapper of an op: its constructor checks the options, and its `call`
 * records the op.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "cohort/math.h"
#include "cohort/random.h"
#include "ops/ops.h"
#include "train/layer.h"

/* ---- pools ---- */

typedef struct pool_self {
    ch_pool_options options;
} pool_self;

static ch_node *max_pool_call(ch_layer *l, void *self, ch_step *s, int n, ch_node *const *in,
                              bool training)
{
    (void)l, (void)s, (void)n, (void)training;
    return ch_max_pool2d(in[0], &((pool_self *)self)->options);
}

static ch_node *average_pool_call(ch_layer *l, void *self, ch_step *s, int n,
                                  ch_node *const *in, bool training)
{
    (void)l, (void)s, (void)n, (void)training;
    return ch_avg_pool2d(in[0], &((pool_self *)self)->options);
}

static const ch_layer_ops max_pool_ops = {
    .type = "max_pool", .call = max_pool_call, .n_in = {1, 1}, .rank = {{4, 4}}};
static const ch_layer_ops average_pool_ops = {
    .type = "average_pool", .call = average_pool_call, .n_in = {1, 1}, .rank = {{4, 4}}};

static ch_layer *new_pool(const ch_layer_ops *ops, int64_t height, int64_t width,
                          int64_t stride_h, int64_t stride_w, ch_padding padding)
{
    pool_self p = {{.window = {height, width}, .stride = {stride_h, stride_w}}};

    if (height < 1 || width < 1 || stride_h < 0 || stride_w < 0)
        return ch__layer_fail("%s: a window of %lld x %lld with strides of %lld and %lld; want "
                              "windows of at least 1, strides of at least 0",
                              ops->type, (long long)height, (long long)width,
                              (long long)stride_h, (long long)stride_w);
    if (padding != CH_PAD_VALID && padding != CH_PAD_SAME)
        return ch__layer_fail("%s: padding is %d, want CH_PAD_VALID or CH_PAD_SAME", ops->type,
                              (int)padding);
    p.options.padding = padding;
    return ch__layer_new(ops, &p, sizeof(p), 0, NULL);
}

ch_layer *ch_layer_max_pool(int64_t height, int64_t width, int64_t stride_h, int64_t stride_w,
                            ch_padding padding)
{
    return new_pool(&max_pool_ops, height, width, stride_h, stride_w, padding);
}

ch_layer *ch_layer_average_pool(int64_t height, int64_t width, int64_t stride_h,
                                int64_t stride_w, ch_padding padding)
{
    return new_pool(&average_pool_ops, height, width, stride_h, stride_w, padding);
}

/* Reduces all axes except the first and the last. */
static ch_node *reduce_middle(ch_node *x, ch_node *(*reduce)(ch_node *, int, const int *, bool))
{
    static const int axis[CH_MAX_RANK] = {1, 2, 3, 4, 5, 6, 7, 8};

    return reduce(x, ch_node_shape(x).rank - 2, axis, false);
}

static ch_node *global_average_call(ch_layer *l, void *self, ch_step *s, int n,
                                    ch_node *const *in, bool training)
{
    (void)l, (void)self, (void)s, (void)n, (void)training;
    return reduce_middle(in[0], ch_mean);
}

static ch_node *global_max_call(ch_layer *l, void *self, ch_step *s, int n, ch_node *const *in,
                                bool training)
{
    (void)l, (void)self, (void)s, (void)n, (void)training;
    return reduce_middle(in[0], ch_max);
}

static const ch_layer_ops global_average_ops = {.type = "global_average_pool",
                                                .call = global_average_call,
                                                .n_in = {1, 1},
                                                .rank = {{3, 0}}};
static const ch_layer_ops global_max_ops = {
    .type = "global_max_pool", .call = global_max_call, .n_in = {1, 1}, .rank = {{3, 0}}};

ch_layer *ch_layer_global_average_pool(void)
{
    return ch__layer_new(&global_average_ops, NULL, 0, 0, NULL);
}

ch_layer *ch_layer_global_max_pool(void)
{
    return ch__layer_new(&global_max_ops, NULL, 0, 0, NULL);
}

/* ---- shapes ---- */

static ch_node *flatten_call(ch_layer *l, void *self, ch_step *s, int n, ch_node *const *in,
                             bool training)
{
    ch_dims d = {.rank = 2};

    (void)l, (void)self, (void)n, (void)training;
    d.dim[0] = in[0]->dims.dim[0];
    if (!ch__dims_product(&in[0]->dims, 1, in[0]->dims.rank, &d.dim[1])) {
        ch_step_fail(
            s, "flatten: the product of the sizes after axis 0 is not known or too large");
        return NULL;
    }
    return ch__reshape_dims(in[0], &d);
}

static const ch_layer_ops flatten_ops = {
    .type = "flatten", .call = flatten_call, .n_in = {1, 1}, .rank = {{1, 0}}};

ch_layer *ch_layer_flatten(void)
{
    return ch__layer_new(&flatten_ops, NULL, 0, 0, NULL);
}

typedef struct reshape_self {
    ch_shape shape; /* sizes after axis 0; one may be -1 */
} reshape_self;

/* Computes the size that -1 stands for. Returns false if there is none. */
static bool infer_size(const ch_node *x, ch_shape shape, int64_t *out)
{
    int64_t known = 1;
    ch_dim  all;

    for (int i = 0; i < shape.rank; i++)
        if (shape.dim[i] >= 0 && !ch__mul_size(known, shape.dim[i], &known))
            return false;
    if (!ch__dims_product(&x->dims, 1, x->dims.rank, &all) || all.sym != 0)
        return false;
    *out = known > 0 ? all.n / known : 0;
    return known > 0 && all.n % known == 0;
}

static void fail_shape(ch_step *s, const ch_node *x, ch_shape want)
{
    ch_dims rest = {.rank = x->dims.rank - 1};
    char    have[160], text[160];

    for (int i = 0; i < rest.rank; i++)
        rest.dim[i] = x->dims.dim[i + 1];
    ch__dims_print(&rest, have, sizeof(have));
    ch_shape_print(want, text, sizeof(text));
    ch_step_fail(s, "reshape: the sizes after axis 0 are %s, which cannot become %s", have,
                 text);
}

static ch_node *reshape_call(ch_layer *l, void *self, ch_step *s, int n, ch_node *const *in,
                             bool training)
{
    ch_shape want = ((reshape_self *)self)->shape;
    ch_dims  d = {.rank = want.rank + 1};
    int64_t  size;

    (void)l, (void)n, (void)training;
    d.dim[0] = in[0]->dims.dim[0];
    for (int i = 0; i < want.rank; i++) {
        d.dim[i + 1] = ch__dim(want.dim[i]);
        if (want.dim[i] >= 0)
            continue;
        if (!infer_size(in[0], want, &size)) {
            fail_shape(s, in[0], want);
            return NULL;
        }
        d.dim[i + 1] = ch__dim(size);
    }
    return ch__reshape_dims(in[0], &d);
}

static const ch_layer_ops reshape_ops = {
    .type = "reshape", .call = reshape_call, .n_in = {1, 1}, .rank = {{1, 0}}};

ch_layer *ch_layer_reshape(ch_shape without_rows)
{
    reshape_self r = {without_rows};
    int          n_inferred = 0;

    for (int i = 0; i < without_rows.rank && i < CH_MAX_RANK; i++) {
        n_inferred += without_rows.dim[i] == -1;
        if (without_rows.dim[i] < -1)
            n_inferred = 2;
    }
    if (without_rows.rank < 0 || without_rows.rank >= CH_MAX_RANK || n_inferred > 1)
        return ch__layer_fail("reshape: want at most %d sizes of 0 or more; one may be -1",
                              CH_MAX_RANK - 1);
    return ch__layer_new(&reshape_ops, &r, sizeof(r), 0, NULL);
}

/* ---- activation, dropout ---- */

typedef struct activation_self {
    ch_activation activation;
} activation_self;

static ch_node *activation_call(ch_layer *l, void *self, ch_step *s, int n, ch_node *const *in,
                                bool training)
{
    (void)l, (void)s, (void)n, (void)training;
    return ch__activate(in[0], ((activation_self *)self)->activation);
}

static const ch_layer_ops activation_ops = {
    .type = "activation", .call = activation_call, .n_in = {1, 1}};

ch_layer *ch_layer_activation(ch_activation a)
{
    activation_self self = {a};

    if (!ch__is_activation(a))
        return ch__layer_fail("activation: activation is %d, want a value of ch_activation",
                              (int)a);
    return ch__layer_new(&activation_ops, &self, sizeof(self), 0, NULL);
}

typedef struct dropout_self {
    double rate;
} dropout_self;

static ch_node *dropout_call(ch_layer *l, void *self, ch_step *s, int n, ch_node *const *in,
                             bool training)
{
    (void)s, (void)n;
    return training ? ch_dropout(in[0], ((dropout_self *)self)->rate, l->seed) : in[0];
}

static const ch_layer_ops dropout_ops = {
    .type = "dropout", .call = dropout_call, .n_in = {1, 1}};

ch_layer *ch_layer_dropout(double rate)
{
    dropout_self d = {rate};

    if (!(rate >= 0 && rate < 1))
        return ch__layer_fail("dropout: rate is %g, want at least 0 and less than 1", rate);
    return ch__layer_new(&dropout_ops, &d, sizeof(d), 0, NULL);
}
