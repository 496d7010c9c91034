/* train/layers_conv.c -- convolutional layers for images (N, H, W, C).
 *
 * Four kinds of layers: conv2d, depthwise_conv2d, conv2d_transpose and separable_conv2d. The
 * first three have a conv_self; they differ in their `build`, which creates the kernel, and in
 * their `call`. A separable layer contains a depthwise and a pointwise layer.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/math.h"
#include "train/layer.h"

typedef struct conv_self {
    int64_t         filters; /* number of filters; of a depthwise layer: for each channel */
    int64_t         window[2], channels;
    ch_conv_options options;
    ch_activation   activation;
    bool            has_bias;
    ch_init         kernel_init, bias_init;
    ch_var         *kernel, *bias;
} conv_self;

/* ---- building ---- */

/* Creates the kernel (height, width, in, out) and, if the layer has one, the bias. */
static ch_status add_weights(ch_layer *l, conv_self *c, int64_t in, int64_t out, int64_t biases)
{
    ch_layer_weight_spec kernel = {.name = "kernel",
                                   .shape = ch_shape_of(c->window[0], c->window[1], in, out),
                                   .init = &c->kernel_init};
    ch_layer_weight_spec bias = {
        .name = "bias", .shape = ch_shape_of(biases), .init = &c->bias_init};
    ch_status rc = ch_layer_weight(l, &kernel, &c->kernel);

    if (rc == CH_OK && c->has_bias)
        rc = ch_layer_weight(l, &bias, &c->bias);
    return rc;
}

static ch_status conv_build(ch_layer *l, void *self, int n, ch_node *const *in)
{
    conv_self *c = self;
    ch_status  rc = ch__layer_size(l, in[0], -1, &c->channels);
    int64_t    groups = c->options.groups;

    (void)n;
    if (rc != CH_OK)
        return rc;
    if (c->channels % groups != 0 || c->filters % groups != 0)
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "conv2d: %lld channels to %lld filters cannot be split into %lld groups",
            (long long)c->channels, (long long)c->filters, (long long)groups);
    return add_weights(l, c, c->channels / groups, c->filters, c->filters);
}

static ch_status depthwise_build(ch_layer *l, void *self, int n, ch_node *const *in)
{
    conv_self *c = self;
    ch_status  rc = ch__layer_size(l, in[0], -1, &c->channels);

    (void)n;
    return rc == CH_OK ? add_weights(l, c, c->channels, c->filters, c->channels * c->filters)
                       : rc;
}

static ch_status transpose_build(ch_layer *l, void *self, int n, ch_node *const *in)
{
    conv_self *c = self;
    ch_status  rc = ch__layer_size(l, in[0], -1, &c->channels);

    (void)n;
    return rc == CH_OK ? add_weights(l, c, c->filters, c->channels, c->filters) : rc;
}

/* ---- calling ---- */

/* Adds the bias and applies the activation. */
static ch_node *finish(const conv_self *c, ch_step *s, ch_node *y)
{
    if (c->has_bias)
        y = ch_add(y, ch_var_read(s, c->bias));
    return ch__activate(y, c->activation);
}

static ch_node *conv_call(ch_layer *l, void *self, ch_step *s, int n, ch_node *const *in,
                          bool training)
{
    conv_self *c = self;

    (void)n, (void)training;
    if (!ch__layer_check_width(l, s, in[0], c->channels))
        return NULL;
    return finish(c, s, ch_conv2d(in[0], ch_var_read(s, c->kernel), &c->options));
}

static ch_node *depthwise_call(ch_layer *l, void *self, ch_step *s, int n, ch_node *const *in,
                               bool training)
{
    conv_self *c = self;

    (void)n, (void)training;
    if (!ch__layer_check_width(l, s, in[0], c->channels))
        return NULL;
    return finish(c, s, ch_depthwise_conv2d(in[0], ch_var_read(s, c->kernel), &c->options));
}

/* Returns the output size of a transposed convolution along an axis: the size of an image from
 * which the convolution makes `in`. */
static int64_t size_before(const conv_self *c, int64_t in, int axis)
{
    const ch_conv_options *o = &c->options;
    int64_t                stride = o->stride[axis];
    int64_t                extent = (c->window[axis] - 1) * o->dilation[axis] + 1;

    if (o->padding == CH_PAD_SAME)
        return in * stride;
    if (o->padding == CH_PAD_EXPLICIT)
        return (in - 1) * stride + extent - o->pad[2 * axis] - o->pad[2 * axis + 1];
    return (in - 1) * stride + (extent > stride ? extent : stride);
}

static ch_node *transpose_call(ch_layer *l, void *self, ch_step *s, int n, ch_node *const *in,
                               bool training)
{
    conv_self *c = self;
    ch_shape   shape = ch_node_shape(in[0]);
    int64_t    size[2];

    (void)n, (void)training;
    if (!ch__layer_check_width(l, s, in[0], c->channels))
        return NULL;
    for (int i = 0; i < 2; i++) {
        size[i] = size_before(c, shape.dim[i + 1], i);
        if (shape.dim[i + 1] < 0 || size[i] < 1) {
            ch_step_fail(s,
                         shape.dim[i + 1] < 0
                             ? "conv2d_transpose: the size of axis %d is not known"
                             : "conv2d_transpose: axis %d (size %lld) has no size left after "
                               "its padding is removed",
                         i + 1, (long long)shape.dim[i + 1]);
            return NULL;
        }
    }
    return finish(
        c, s,
        ch_conv2d_transpose(in[0], ch_var_read(s, c->kernel), size[0], size[1], &c->options));
}

static ch_node *separable_call(ch_layer *l, void *self, ch_step *s, int n, ch_node *const *in,
                               bool training)
{
    (void)self, (void)n;
    return ch_layer_call(l->child[1], s, ch_layer_call(l->child[0], s, in[0], training),
                         training);
}

static const ch_layer_ops conv_ops = {
    .type = "conv2d", .build = conv_build, .call = conv_call, .n_in = {1, 1}, .rank = {{4, 4}}};
static const ch_layer_ops depthwise_ops = {.type = "depthwise_conv2d",
                                           .build = depthwise_build,
                                           .call = depthwise_call,
                                           .n_in = {1, 1},
                                           .rank = {{4, 4}}};
static const ch_layer_ops transpose_ops = {.type = "conv2d_transpose",
                                           .build = transpose_build,
                                           .call = transpose_call,
                                           .n_in = {1, 1},
                                           .rank = {{4, 4}}};
static const ch_layer_ops separable_ops = {
    .type = "separable_conv2d", .call = separable_call, .n_in = {1, 1}, .rank = {{4, 4}}};

/* ---- creation ---- */

/* Returns 1 for 0, the default. */
static int64_t or_one(int64_t n)
{
    return n == 0 ? 1 : n;
}

static bool check_pads(const char *type, const ch_conv_options *o)
{
    for (int i = 0; i < 4; i++)
        if (o->pad[i] < 0 || (o->pad[i] > 0 && o->padding != CH_PAD_EXPLICIT)) {
            (void)ch__layer_fail("%s: pad[%d] is %lld, want %s", type, i, (long long)o->pad[i],
                                 o->pad[i] < 0 ? "0 or more"
                                               : "0 unless padding is CH_PAD_EXPLICIT");
            return false;
        }
    return true;
}

static bool check(const char *type, const conv_self *c)
{
    const ch_conv_options *o = &c->options;

    if (c->filters < 1 || c->window[0] < 1 || c->window[1] < 1)
        (void)ch__layer_fail(
            "%s: %lld filters with a window of %lld x %lld, want at least 1 of each", type,
            (long long)c->filters, (long long)c->window[0], (long long)c->window[1]);
    else if (o->stride[0] < 1 || o->stride[1] < 1 || o->dilation[0] < 1 || o->dilation[1] < 1 ||
             o->groups < 1)
        (void)ch__layer_fail(
            "%s: a stride, dilation or number of groups is negative, want 0 or more", type);
    else if (o->padding != CH_PAD_VALID && o->padding != CH_PAD_SAME &&
             o->padding != CH_PAD_EXPLICIT)
        (void)ch__layer_fail("%s: padding is %d, want a value of ch_padding", type,
                             (int)o->padding);
    else if (!check_pads(type, o))
        return false;
    else if (!ch__is_activation(c->activation))
        (void)ch__layer_fail("%s: activation is %d, want a value of ch_activation", type,
                             (int)c->activation);
    else
        return true;
    return false;
}

/* Returns true if the kind of layer has all options that are set. Otherwise records the error
 * and returns false. */
static bool check_kind(const ch_layer_ops *ops, const ch_layer_conv_options *o)
{
    bool        multiplies = ops == &depthwise_ops || ops == &separable_ops;
    const char *option = o->groups > 1 && ops != &conv_ops  ? "groups"
                         : o->multiplier > 1 && !multiplies ? "multiplier"
                                                            : NULL;

    if (option != NULL)
        (void)ch__layer_fail("%s: option %s is not supported, want 0", ops->type, option);
    else if (o->multiplier < 0)
        (void)ch__layer_fail("%s: multiplier is %lld, want 0 or more", ops->type,
                             (long long)o->multiplier);
    return option == NULL && o->multiplier >= 0;
}

/* Fills *out from the options. Returns false, and records the error, if an option is
 * invalid. */
static bool fill_conv(const ch_layer_ops *ops, int64_t filters, int64_t height, int64_t width,
                      const ch_layer_conv_options *o, conv_self *out)
{
    conv_self c = {
        .filters = filters,
        .window = {height, width},
        .options = {.stride = {or_one(o->stride[0]), or_one(o->stride[1])},
                    .dilation = {or_one(o->dilation[0]), or_one(o->dilation[1])},
                    .padding = o->padding,
                    .pad = {o->pad[0], o->pad[1], o->pad[2], o->pad[3]},
                    .groups = or_one(o->groups)},
        .activation = o->activation,
        .has_bias = o->bias != CH_OFF,
        .kernel_init = ch__init_or(o->kernel_init, ch_init_glorot_uniform()),
        .bias_init = ch__init_or(o->bias_init, ch_init_zeros()),
    };

    *out = c;
    return check_kind(ops, o) && check(ops->type, &c);
}

static ch_layer *new_conv(const ch_layer_ops *ops, int64_t filters, int64_t height,
                          int64_t width, const ch_layer_conv_options *o)
{
    conv_self c;

    return fill_conv(ops, filters, height, width, o, &c)
               ? ch__layer_new(ops, &c, sizeof(c), 0, NULL)
               : NULL;
}

/* Returns the options, or the default options if `opt` is NULL. */
static ch_layer_conv_options options_or_default(const ch_layer_conv_options *opt)
{
    return opt != NULL ? *opt : (ch_layer_conv_options){0};
}

ch_layer *ch_layer_conv2d(int64_t filters, int64_t height, int64_t width,
                          const ch_layer_conv_options *opt)
{
    ch_layer_conv_options o = options_or_default(opt);

    return new_conv(&conv_ops, filters, height, width, &o);
}

ch_layer *ch_layer_depthwise_conv2d(int64_t height, int64_t width,
                                    const ch_layer_conv_options *opt)
{
    ch_layer_conv_options o = options_or_default(opt);

    return new_conv(&depthwise_ops, or_one(o.multiplier), height, width, &o);
}

ch_layer *ch_layer_conv2d_transpose(int64_t filters, int64_t height, int64_t width,
                                    const ch_layer_conv_options *opt)
{
    ch_layer_conv_options o = options_or_default(opt);

    return new_conv(&transpose_ops, filters, height, width, &o);
}

ch_layer *ch_layer_separable_conv2d(int64_t filters, int64_t height, int64_t width,
                                    const ch_layer_conv_options *opt)
{
    ch_layer_conv_options o = options_or_default(opt), first = o, second = {0};
    ch_layer             *child[2];
    conv_self             unused;

    if (!fill_conv(&separable_ops, filters, height, width, &o, &unused))
        return NULL; /* so that errors name the separable layer and not its parts */
    first.bias = CH_OFF;
    first.activation = CH_LINEAR;
    second.bias = o.bias;
    second.activation = o.activation;
    second.kernel_init = o.kernel_init;
    second.bias_init = o.bias_init;
    child[0] = ch_layer_named("depthwise", ch_layer_depthwise_conv2d(height, width, &first));
    child[1] = child[0] != NULL
                   ? ch_layer_named("pointwise", ch_layer_conv2d(filters, 1, 1, &second))
                   : NULL;
    return ch__layer_new(&separable_ops, NULL, 0, 2, child);
}
