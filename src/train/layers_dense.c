/* train/layers_dense.c -- sequential, function and dense layers.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "train/layer.h"

/* ---- sequential ---- */

static ch_node *sequential_call(ch_layer *l, void *self, ch_step *s, int n, ch_node *const *in,
                                bool training)
{
    ch_node *x = ch_layer_call_n(l->child[0], s, n, in, training);

    (void)self;
    for (int i = 1; i < l->n_children && x != NULL; i++)
        x = ch_layer_call(l->child[i], s, x, training);
    return x;
}

static ch_node *empty_call(ch_layer *l, void *self, ch_step *s, int n, ch_node *const *in,
                           bool training)
{
    (void)l, (void)self, (void)s, (void)n, (void)training;
    return in[0];
}

static const ch_layer_ops sequential_ops = {.type = "sequential", .call = sequential_call};
static const ch_layer_ops empty_ops = {
    .type = "sequential", .call = empty_call, .n_in = {1, 1}};

ch_layer *ch_layer_sequential(const char *name, int n, ch_layer *const *layer)
{
    ch_layer *l;

    if (n < 0 || (n > 0 && layer == NULL))
        return ch__layer_fail(
            "sequential: n is %d, want 0 or more, and layers that are not NULL", n);
    l = ch__layer_new(n > 0 ? &sequential_ops : &empty_ops, NULL, 0, n, layer);
    return name != NULL ? ch_layer_named(name, l) : l;
}

/* ---- layer made from a C function ---- */

typedef struct function_self {
    ch_layer_forward_fn forward;
    void               *arg;
} function_self;

static ch_node *function_call(ch_layer *l, void *self, ch_step *s, int n, ch_node *const *in,
                              bool training)
{
    function_self *f = self;

    return f->forward(s, n, in, training, l->child, f->arg);
}

static const ch_layer_ops function_ops = {.type = "function", .call = function_call};

ch_layer *ch_layer_function(const char *name, ch_layer_forward_fn forward, void *arg, int n,
                            ch_layer *const *layer)
{
    function_self f = {forward, arg};
    ch_layer     *l;

    if (forward == NULL) {
        for (int i = 0; i < n && layer != NULL; i++)
            ch_layer_unref(layer[i]);
        return ch__layer_fail("function layer: forward is NULL");
    }
    /* Not ch__layer_new: errors must name lines in the function of the program. */
    l = ch_layer_new(&function_ops, &f, sizeof(f), n, layer);
    return name != NULL ? ch_layer_named(name, l) : l;
}

/* ---- dense ---- */

typedef struct dense_self {
    int64_t       units, width; /* sizes of the last axis of the output and of the input */
    ch_activation activation;
    bool          has_bias;
    ch_init       kernel_init, bias_init;
    ch_var       *kernel, *bias; /* owned by the layer; bias NULL: none */
} dense_self;

static ch_status dense_build(ch_layer *l, void *self, int n, ch_node *const *in)
{
    dense_self *d = self;
    ch_status   rc = ch__layer_size(l, in[0], -1, &d->width);

    (void)n;
    if (rc == CH_OK)
        rc = ch_layer_weight(l,
                             &(ch_layer_weight_spec){.name = "kernel",
                                                     .shape = ch_shape_of(d->width, d->units),
                                                     .init = &d->kernel_init},
                             &d->kernel);
    if (rc == CH_OK && d->has_bias)
        rc = ch_layer_weight(l,
                             &(ch_layer_weight_spec){.name = "bias",
                                                     .shape = ch_shape_of(d->units),
                                                     .init = &d->bias_init},
                             &d->bias);
    return rc;
}

static ch_node *dense_call(ch_layer *l, void *self, ch_step *s, int n, ch_node *const *in,
                           bool training)
{
    dense_self *d = self;

    (void)n, (void)training;
    if (!ch__layer_check_width(l, s, in[0], d->width))
        return NULL;
    return ch__activate(ch_linear(in[0], ch_var_read(s, d->kernel),
                                  d->has_bias ? ch_var_read(s, d->bias) : NULL),
                        d->activation);
}

static const ch_layer_ops dense_ops = {.type = "dense",
                                       .build = dense_build,
                                       .call = dense_call,
                                       .n_in = {1, 1},
                                       .rank = {{1, 0}}};

ch_layer *ch_layer_dense(int64_t units, const ch_layer_dense_options *opt)
{
    ch_layer_dense_options o = opt != NULL ? *opt : (ch_layer_dense_options){0};
    dense_self             d = {.units = units,
                                .activation = o.activation,
                                .has_bias = o.bias != CH_OFF,
                                .kernel_init = ch__init_or(o.kernel_init, ch_init_glorot_uniform()),
                                .bias_init = ch__init_or(o.bias_init, ch_init_zeros())};

    if (units < 1)
        return ch__layer_fail("dense: %lld units, want at least 1", (long long)units);
    if (!ch__is_activation(o.activation))
        return ch__layer_fail("dense: activation is %d, want a value of ch_activation",
                              (int)o.activation);
    return ch__layer_new(&dense_ops, &d, sizeof(d), 0, NULL);
}

void ch__dense_set_units(ch_layer *dense, int64_t units)
{
    dense_self *d = ch__layer_self(dense);

    d->units = units;
}
