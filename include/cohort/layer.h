/* cohort/layer.h -- layers: parts of a model that own variables and record a forward pass.
 *
 * A layer is a function of nodes that owns variables, like a layer in Keras. A layer may
 * contain other layers.
 *
 *     ch_layer *net = ch_layer_sequential("net", 3, (ch_layer *[]){
 *         ch_layer_dense(64, &(ch_layer_dense_options){.activation = CH_RELU}),
 *         ch_layer_dropout(0.5),
 *         ch_layer_dense(10, NULL)});
 *
 *     ch_node *logits = ch_layer_call(net, s, x, true);       // in a step
 *
 * The first call of a layer creates its variables, in the strategy that records the step. Their
 * sizes follow from the inputs of that call. Later calls must have the same sizes on the axes
 * that the variables depend on (usually the last axis). Other sizes, such as the number of
 * rows, may change. A layer that is called twice uses the same variables in both calls.
 *
 *   - Ownership: a layer that contains others takes over the caller's references to them, also
 *     on an error. A single unref of the outermost layer frees all of them. To use a layer in
 *     two places, pass ch_layer_ref(layer) for the second.
 *   - Errors: a constructor returns NULL on an error, and also if a layer that it is given is
 *     NULL. The thread keeps the last such error until a layer is called or a model is made. If
 *     ch_model_new or ch_layer_call gets the NULL layer, it fails with this error.
 *   - Names: the children of a layer have different names; a second "dense" becomes "dense_1".
 *     A child that already belongs to another layer keeps its name; two such children with the
 *     same name are an error. The name of a variable is its path, "net/dense_1/kernel", through
 *     the first layer that took each child.
 *   - Threads: steps that use the same layer must be recorded by one thread at a time. Running
 *     them has no such rule.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_LAYER_H
#define COHORT_LAYER_H

#include "cohort/array.h"
#include "cohort/init.h"
#include "cohort/nn.h"
#include "cohort/var.h"

typedef struct ch_layer ch_layer;

#define CH_LAYER_INPUTS 8 /* maximum number of input nodes of a call */

/* ---- using layers ---- */

/* Record a call of the layer in a step: ch_layer_call with a single node, ch_layer_call_n with
 * `n` nodes (1 to CH_LAYER_INPUTS). Both return the output node, or NULL after an error, which
 * the step keeps.
 *
 * If `training` is true, dropout is active, and batch norm uses the statistics of the batch and
 * updates its moving statistics. If the first call of a layer fails, the variables that it
 * created are dropped, and the next call builds the layer again. */
CH_API ch_node *ch_layer_call(ch_layer *l, ch_step *s, ch_node *x, bool training);
CH_API ch_node *ch_layer_call_n(ch_layer *l, ch_step *s, int n, ch_node *const *x,
                                bool training);

CH_API ch_layer   *ch_layer_ref(ch_layer *l);
CH_API void        ch_layer_unref(ch_layer *l); /* may be NULL */
CH_API const char *ch_layer_name(const ch_layer *l);
CH_API const char *ch_layer_type(const ch_layer *l); /* such as "dense" */
/* Renames a layer and returns it. The layer must not have been called, and must not belong to
 * another layer yet. The name must not contain "/". On an error, drops the caller's reference
 * to the layer and returns NULL. */
CH_API ch_layer *ch_layer_named(const char *name, ch_layer *l);
/* ch_layer_vars lists the variables of the layer, then those of the layers in it, in order.
 * ch_layer_trainable lists the trainable variables only. A shared variable is listed once. Both
 * return the number of variables, or -1 if memory is exhausted. `out` may be NULL. The layer
 * owns the array, which is valid until a layer is called for the first time. */
CH_API int ch_layer_vars(ch_layer *l, ch_var *const **out);
CH_API int ch_layer_trainable(ch_layer *l, ch_var *const **out);
/* Returns the variable at a path that starts below this layer, such as "dense_1/kernel".
 * Returns NULL if there is no such variable, or if the layer has not been called yet.
 * Borrowed. */
CH_API ch_var *ch_layer_var(ch_layer *l, const char *path);
/* Returns the number of layers directly in this layer, and lists them in *out. Borrowed. `out`
 * may be NULL. */
CH_API int ch_layer_children(const ch_layer *l, ch_layer *const **out);
/* Sets the dtype, a float type, of the variables of this layer and of the layers in it. Float
 * inputs are cast to this dtype. Layers that have been called already keep their dtype.
 *
 * With CH_BF16 or CH_F16 the values of a step take a little more than half of the memory (0.55
 * in a transformer). The variables take half, but an optimizer also keeps an f32 copy of each
 * and its slots (cohort/optimizer.h). */
CH_API void ch_layer_set_dtype(ch_layer *l, ch_dtype dtype);
/* Sets the seed of this layer and of the layers in it. The seed is part of the key of random
 * initial values and of dropout. Layers that have been called already keep their seed. */
CH_API void ch_layer_set_seed(ch_layer *l, uint64_t seed);

/* ---- the layers ---- */

typedef enum ch_activation {
    CH_LINEAR, /* none: the value itself */
    CH_RELU,
    CH_LEAKY_RELU, /* slope 0.2 below 0 */
    CH_ELU,        /* alpha 1 */
    CH_GELU,       /* exact, not the tanh approximation */
    CH_SILU,
    CH_TANH,
    CH_SIGMOID,
    CH_SOFTPLUS,
    CH_SOFTMAX /* over the last axis */
} ch_activation;

/* Returns a layer that calls `n` layers in order, each with the output of the layer before it.
 * The first layer gets all inputs. With n = 0 the output is the input. NULL name:
 * "sequential". */
CH_API ch_layer *ch_layer_sequential(const char *name, int n, ch_layer *const *layer);
/* Records the forward pass of a layer made by ch_layer_function. `layer` lists the layers that
 * were given there, in the same order. */
typedef ch_node *(*ch_layer_forward_fn)(ch_step *s, int n_in, ch_node *const *in, bool training,
                                        ch_layer *const *layer, void *arg);
/* Returns a layer whose forward pass is a C function that calls the given layers. `arg` is
 * borrowed as long as the layer exists. NULL name: "function". */
CH_API ch_layer *ch_layer_function(const char *name, ch_layer_forward_fn forward, void *arg,
                                   int n, ch_layer *const *layer);

typedef struct ch_layer_dense_options {
    ch_activation activation;
    int           bias; /* 0: with a bias; CH_OFF: without */
    /* Initial values; copied. NULL: Glorot uniform for the kernel, zeros for the bias. */
    const ch_init *kernel_init, *bias_init;
} ch_layer_dense_options;
/* Returns a fully connected layer: (..., units) = activation(x . kernel + bias), with x
 * (..., in) and kernel (in, units). */
CH_API ch_layer *ch_layer_dense(int64_t units, const ch_layer_dense_options *opt);

typedef struct ch_layer_conv_options {
    int64_t       stride[2], dilation[2]; /* height, width; 0: 1 */
    ch_padding    padding;                /* see cohort/nn.h */
    int64_t       groups;                 /* 0: 1; other values for ch_layer_conv2d only */
    int64_t       multiplier; /* 0: 1; other values for depthwise and separable layers only */
    ch_activation activation;
    int           bias; /* 0: with a bias; CH_OFF: without */
    /* Initial values; copied. NULL: Glorot uniform for the kernel, zeros for the bias. */
    const ch_init *kernel_init, *bias_init;
    int64_t        pad[4]; /* top, bottom, left, right; for CH_PAD_EXPLICIT only */
} ch_layer_conv_options;
/* ch_layer_conv2d returns a layer that convolves images (N, H, W, C) with a window of
 * (height, width). ch_layer_depthwise_conv2d convolves each channel by itself, with
 * `multiplier` filters. */
CH_API ch_layer *ch_layer_conv2d(int64_t filters, int64_t height, int64_t width,
                                 const ch_layer_conv_options *opt);
CH_API ch_layer *ch_layer_depthwise_conv2d(int64_t height, int64_t width,
                                           const ch_layer_conv_options *opt);
/* Returns a depthwise convolution followed by a 1x1 convolution to `filters` channels. The bias
 * and the activation belong to the second. */
CH_API ch_layer *ch_layer_separable_conv2d(int64_t filters, int64_t height, int64_t width,
                                           const ch_layer_conv_options *opt);
/* Returns a transposed convolution (deconvolution): the gradient of a convolution with respect
 * to its input. Let s be the stride and k the window size, or (window - 1) * dilation + 1 if
 * dilated. The output size for an input of size n is:
 *   - CH_PAD_SAME: n * s.
 *   - CH_PAD_VALID: (n - 1) * s + max(k, s), as in Keras.
 *   - CH_PAD_EXPLICIT: (n - 1) * s + k minus the padding on both sides, as in PyTorch. */
CH_API ch_layer *ch_layer_conv2d_transpose(int64_t filters, int64_t height, int64_t width,
                                           const ch_layer_conv_options *opt);

/* ch_layer_max_pool and ch_layer_average_pool return layers that pool images with a window of
 * (height, width). A stride of 0 means the size of the window. `padding` must be CH_PAD_VALID
 * or CH_PAD_SAME. */
CH_API ch_layer *ch_layer_max_pool(int64_t height, int64_t width, int64_t stride_h,
                                   int64_t stride_w, ch_padding padding);
CH_API ch_layer *ch_layer_average_pool(int64_t height, int64_t width, int64_t stride_h,
                                       int64_t stride_w, ch_padding padding);
CH_API ch_layer *ch_layer_global_average_pool(void); /* (N, H, W, C) to (N, C) */
CH_API ch_layer *ch_layer_global_max_pool(void);     /* (N, H, W, C) to (N, C) */

CH_API ch_layer *ch_layer_flatten(void); /* (N, ...) to (N, product of the other sizes) */
/* Returns a layer that gives each row another shape. A single size may be -1: it is
 * computed. */
CH_API ch_layer *ch_layer_reshape(ch_shape without_rows);
CH_API ch_layer *ch_layer_activation(ch_activation a);
CH_API ch_layer *ch_layer_dropout(double rate); /* 0 <= rate < 1; active in training only */

typedef struct ch_layer_batch_norm_options {
    double momentum, epsilon; /* 0: 0.99 and 1e-3 */
    int    center, scale;     /* 0: with beta, with gamma; CH_OFF: without */
    bool   synchronized;      /* true: statistics over the rows of all replicas */
} ch_layer_batch_norm_options;
/* Returns a batch normalisation over all axes except the last. Calls without `training` use
 * moving statistics. These are the same on all replicas: the mean over the replicas, weighted
 * by their rows. */
CH_API ch_layer *ch_layer_batch_norm(const ch_layer_batch_norm_options *opt);
/* Sets the option `synchronized` of all batch norms in a layer, for steps that are recorded
 * later. true: statistics over the rows of all replicas; false: each replica over its own
 * rows. */
CH_API void ch_layer_synchronize(ch_layer *l, bool on);

CH_API ch_layer *ch_layer_layer_norm(double epsilon); /* over the last axis; 0: 1e-5 */
CH_API ch_layer *ch_layer_rms_norm(double epsilon);   /* over the last axis; 0: 1e-6 */

typedef struct ch_layer_embedding_options {
    const ch_init *init;     /* of the table; copied. NULL: uniform in [-0.05, 0.05) */
    bool           weighted; /* embedding bags only: each id has a weight */
} ch_layer_embedding_options;
/* Returns a table (ids, width) whose rows are looked up: ids (...) give (..., width). The
 * gradient is sparse. */
CH_API ch_layer *ch_layer_embedding(int64_t ids, int64_t width,
                                    const ch_layer_embedding_options *opt);
/* Returns a table (ids, width) that gives (rows, width): the sum or the mean of the table rows
 * of each ragged row. The gradient is sparse.
 *
 * The inputs of a call are ids and row_splits as for ch_embedding_bag, then the weights of the
 * ids if the layer is weighted. A further input may be any node with as many rows as the
 * result, such as the labels: the result then has the same symbol for its rows. Without that
 * node the result may not be combined with nodes that have the rows of another input (see
 * `like` of ch_bag_options). */
CH_API ch_layer *ch_layer_embedding_bag(int64_t ids, int64_t width, ch_combiner combiner,
                                        const ch_layer_embedding_options *opt);

typedef struct ch_layer_multi_head_options {
    int64_t key_width; /* of a head; 0: width / heads */
    bool    causal;
    /* Rate of dropout on the output. Attention weights are not dropped, because they are never
     * all in memory. */
    double dropout;
    int    bias; /* 0: with biases; CH_OFF: without */
} ch_layer_multi_head_options;
/* Returns multi-head attention, (N, T, width) to (N, T, width). A call with a single node is
 * self-attention. With two nodes, the first gives the queries, and the second the keys and
 * values. A third node is the mask of ch_attention: it broadcasts to (N, heads, T, S), and true
 * means visible. */
CH_API ch_layer *ch_layer_multi_head_attention(int                                heads,
                                               const ch_layer_multi_head_options *opt);

typedef struct ch_layer_transformer_options {
    int64_t       hidden;     /* width of the hidden dense layer; 0: 4 times the input width */
    ch_activation activation; /* of the hidden layer; CH_LINEAR, which is 0: CH_GELU */
    bool          causal, rms_norm; /* rms_norm: RMS norms instead of layer norms */
    int           bias;             /* of the dense layers; 0: with biases; CH_OFF: without */
    double        dropout;          /* rate, after the attention and after the dense layers */
} ch_layer_transformer_options;
/* Returns a pre-norm transformer block: y = x + attention(norm(x)), then y +
 * dense(dense(norm(y))). (N, T, width) to the same shape. */
CH_API ch_layer *ch_layer_transformer_block(int heads, const ch_layer_transformer_options *opt);

typedef struct ch_layer_recurrent_options {
    bool return_sequence; /* true: all outputs, (N, T, units); false: the last, (N, units) */
} ch_layer_recurrent_options;
/* ch_layer_lstm and ch_layer_gru return recurrent layers over axis 1 of (N, T, in). Gates have
 * the order of Keras:
 *   - LSTM: i f c o; the forget bias starts at 1.
 *   - GRU: z r h, with the reset gate after the product; the bias is (2, 3 * units), a row for
 *     the input and a row for the state. */
CH_API ch_layer *ch_layer_lstm(int64_t units, const ch_layer_recurrent_options *opt);
CH_API ch_layer *ch_layer_gru(int64_t units, const ch_layer_recurrent_options *opt);

/* ---- custom layers ----
 *
 * A custom layer is a table of functions and a block of memory, `self`, which ch_layer_new
 * copies. `build` runs before the first call and creates the variables with ch_layer_weight. If
 * that call fails, the variables are dropped, and `build` runs again before the next call.
 * `drop` frees the resources that `self` holds. `build` and `drop` may be NULL.
 * ch_layer_children lists the children. */

/* A range, ends included. */
typedef struct ch_layer_bounds {
    int least, most; /* most 0: no upper bound */
} ch_layer_bounds;

typedef struct ch_layer_ops {
    const char *type; /* such as "dense"; without "/" */
    ch_status (*build)(ch_layer *l, void *self, int n_in, ch_node *const *in);
    ch_node *(*call)(ch_layer *l, void *self, ch_step *s, int n_in, ch_node *const *in,
                     bool training);
    void (*drop)(void *self);
    /* Number of input nodes, and number of axes of each. Checked before `build`. */
    ch_layer_bounds n_in, rank[CH_LAYER_INPUTS];
} ch_layer_ops;

/* Returns a layer with a copy of `self_bytes` bytes at `self`. `ops` is borrowed as long as the
 * layer exists. Takes over the references to the `n` children, also on an error. On an error,
 * `drop` is not called: the caller still owns the resources that `self` holds. */
CH_API ch_layer *ch_layer_new(const ch_layer_ops *ops, const void *self, size_t self_bytes,
                              int n, ch_layer *const *child);

typedef struct ch_layer_weight_spec {
    const char    *name; /* unique in the layer; without "/" */
    ch_shape       shape;
    const ch_init *init;      /* NULL: zeros */
    int            trainable; /* 0: yes; CH_OFF: no */
    bool           f32;       /* true: f32 if the layer's dtype is 16-bit; for statistics */
} ch_layer_weight_spec;
/* Creates a variable of the layer. Must be called from `build`, else it is FAILED_PRECONDITION.
 * The layer owns the variable. `out` may be NULL. */
CH_API CH_MUST_CHECK ch_status ch_layer_weight(ch_layer *l, const ch_layer_weight_spec *spec,
                                               ch_var **out);

#endif
