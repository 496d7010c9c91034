/* cohort/layer.h -- layers: functions of nodes that own variables.
 *
 *     ch_layer *net = ch_layer_sequential("net", 3, (ch_layer *[]){
 *         ch_layer_dense(64, &(ch_layer_dense_options){.activation = CH_RELU}),
 *         ch_layer_dropout(0.5),
 *         ch_layer_dense(10, NULL)});
 *     ...
 *     ch_node *logits = ch_layer_call(net, s, x, true);       // in a step
 *
 * A layer is made before it knows its input. Its variables are made when it is first called, in
 * the strategy that runs the step, from the sizes of what it is given. From then on the sizes
 * that they depend on (the last axis, mostly) are fixed; rows and all else may change.
 *
 *   - Constructors return NULL on an error, and so does whatever is given NULL; ch_model_new
 *     then fails with that error, the last of this thread's since a layer was used. A layer that takes others owns
 *     them, on an error too: one unref of the outermost ends all. To be in two places, a layer
 *     is given with ch_layer_ref.
 *   - Names are unique among the children of one layer: "dense", "dense_1". One that is part of
 *     another layer already keeps its name; two such of one name are refused. A variable's name
 *     is the path to it, through the first layer that took it: "net/dense_1/kernel".
 *   - A layer that is called twice shares its variables.
 *   - Steps that use one layer are recorded by one thread at a time; they run as they like.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_LAYER_H
#define COHORT_LAYER_H

#include "cohort/array.h"
#include "cohort/init.h"
#include "cohort/nn.h"
#include "cohort/var.h"

typedef struct ch_layer ch_layer;

#define CH_LAYER_INPUTS 8 /* of one call, at most */

/* ---- using layers ---- */

/* Records the layer. `training`: dropout drops, batch norm uses the batch's statistics and
 * moves its own. At most CH_LAYER_INPUTS nodes. A first call that fails leaves no variables
 * behind: the next one builds anew. */
CH_API ch_node *ch_layer_call(ch_layer *l, ch_step *s, ch_node *x, bool training);
CH_API ch_node *ch_layer_call_n(ch_layer *l, ch_step *s, int n, ch_node *const *x,
                                bool training);

CH_API ch_layer   *ch_layer_ref(ch_layer *l);
CH_API void        ch_layer_unref(ch_layer *l); /* NULL is fine */
CH_API const char *ch_layer_name(const ch_layer *l);
CH_API const char *ch_layer_type(const ch_layer *l); /* "dense" */
/* Gives a layer that is not yet part of another a name; returns it. On an error the layer is
 * let go of, and NULL returned. */
CH_API ch_layer *ch_layer_named(const char *name, ch_layer *l);
/* The variables of the layer, then those of the layers in it, in order; a shared one once. The
 * array belongs to the layer and is good until a layer is called that was not called before.
 * `out` NULL: just how many. -1: out of memory. */
CH_API int ch_layer_vars(ch_layer *l, ch_var *const **out);
CH_API int ch_layer_trainable(ch_layer *l, ch_var *const **out);
/* "dense_1/kernel", from this layer on; NULL: none of this name (yet). Borrowed. */
CH_API ch_var *ch_layer_var(ch_layer *l, const char *path);
/* The layers in it; borrowed. Returns how many. */
CH_API int ch_layer_children(const ch_layer *l, ch_layer *const **out);
/* Variables of layers that are not yet called will have this dtype, and inputs that are floats
 * are cast to it: with CH_BF16 or CH_F16, a step's memory is a little more than half (0.55 in a
 * transformer). The variables themselves are half, but an optimizer keeps them in f32 beside,
 * and its slots: cohort/optimizer.h. */
CH_API void ch_layer_set_dtype(ch_layer *l, ch_dtype dtype);
/* Part of the key of every random first value, of layers not yet called. */
CH_API void ch_layer_set_seed(ch_layer *l, uint64_t seed);

/* ---- the layers ---- */

typedef enum ch_activation {
    CH_LINEAR,
    CH_RELU,
    CH_LEAKY_RELU, /* slope 0.2 */
    CH_ELU,
    CH_GELU, /* the exact one */
    CH_SILU,
    CH_TANH,
    CH_SIGMOID,
    CH_SOFTPLUS,
    CH_SOFTMAX /* over the last axis */
} ch_activation;

/* In sequence, each called with what the one before it gave. A name of NULL is "sequential". */
CH_API ch_layer *ch_layer_sequential(const char *name, int n, ch_layer *const *layer);
/* Any C function that records a forward pass with the layers it is given. `arg` is borrowed. */
typedef ch_node *(*ch_layer_forward_fn)(ch_step *s, int n_in, ch_node *const *in, bool training,
                                        ch_layer *const *layer, void *arg);
CH_API ch_layer *ch_layer_function(const char *name, ch_layer_forward_fn forward, void *arg,
                                   int n, ch_layer *const *layer);

typedef struct ch_layer_dense_options {
    ch_activation  activation;
    int            bias;                    /* 0: yes; CH_OFF: none */
    const ch_init *kernel_init, *bias_init; /* NULL: Glorot's uniform, zeros */
} ch_layer_dense_options;
/* (..., units) = activation(x (..., in) . kernel (in, units) + bias). */
CH_API ch_layer *ch_layer_dense(int64_t units, const ch_layer_dense_options *opt);

typedef struct ch_layer_conv_options {
    int64_t        stride[2], dilation[2]; /* 0: 1 */
    ch_padding     padding;                /* of cohort/nn.h */
    int64_t        groups;                 /* 0: 1; others with ch_layer_conv2d only */
    int64_t        multiplier;             /* 0: 1; others with depthwise and separable only */
    ch_activation  activation;
    int            bias; /* 0: yes; CH_OFF: none */
    const ch_init *kernel_init, *bias_init;
    int64_t        pad[4]; /* of CH_PAD_EXPLICIT: top, bottom, left, right */
} ch_layer_conv_options;
/* Images are NHWC. Window sizes are (height, width). */
CH_API ch_layer *ch_layer_conv2d(int64_t filters, int64_t height, int64_t width,
                                 const ch_layer_conv_options *opt);
CH_API ch_layer *ch_layer_depthwise_conv2d(int64_t height, int64_t width,
                                           const ch_layer_conv_options *opt);
/* Depthwise, then 1x1 to `filters`. */
CH_API ch_layer *ch_layer_separable_conv2d(int64_t filters, int64_t height, int64_t width,
                                           const ch_layer_conv_options *opt);
/* The gradient of a convolution with respect to its input, as a layer. With window k (dilated:
 * its reach) and stride s, an image of `in` becomes in s (CH_PAD_SAME), (in - 1) s + the larger
 * of k and s (CH_PAD_VALID, as Keras has it), or (in - 1) s + k less what is padded on both
 * sides (CH_PAD_EXPLICIT, as PyTorch has it). */
CH_API ch_layer *ch_layer_conv2d_transpose(int64_t filters, int64_t height, int64_t width,
                                           const ch_layer_conv_options *opt);

/* Windows of (height, width); strides 0: as the window. */
CH_API ch_layer *ch_layer_max_pool(int64_t height, int64_t width, int64_t stride_h,
                                   int64_t stride_w, ch_padding padding);
CH_API ch_layer *ch_layer_average_pool(int64_t height, int64_t width, int64_t stride_h,
                                       int64_t stride_w, ch_padding padding);
CH_API ch_layer *ch_layer_global_average_pool(void); /* (N, H, W, C) to (N, C) */
CH_API ch_layer *ch_layer_global_max_pool(void);

CH_API ch_layer *ch_layer_flatten(void);                  /* (N, ...) to (N, all of it) */
CH_API ch_layer *ch_layer_reshape(ch_shape without_rows); /* one size may be -1 */
CH_API ch_layer *ch_layer_activation(ch_activation a);
CH_API ch_layer *ch_layer_dropout(double rate);

typedef struct ch_layer_batch_norm_options {
    double momentum, epsilon; /* 0: 0.99, 1e-3 */
    int    center, scale;     /* 0: yes; CH_OFF: no */
    bool   synchronized;      /* statistics over the rows of all replicas */
} ch_layer_batch_norm_options;
/* Over all axes but the last, with moving statistics for when it is not training. Those are the
 * same on all replicas: the means over them, each weighed by its rows. */
CH_API ch_layer *ch_layer_batch_norm(const ch_layer_batch_norm_options *opt);
/* All batch norms in a layer: statistics over all replicas, or each over its own rows. */
CH_API void ch_layer_synchronize(ch_layer *l, bool on);

CH_API ch_layer *ch_layer_layer_norm(double epsilon); /* over the last axis; 0: 1e-5 */
CH_API ch_layer *ch_layer_rms_norm(double epsilon);   /* 0: 1e-6 */

typedef struct ch_layer_embedding_options {
    const ch_init *init;     /* NULL: uniform in [-0.05, 0.05) */
    bool           weighted; /* of a bag: each id has a weight */
} ch_layer_embedding_options;
/* (..., width) rows of a table (ids, width), for ids (...). Its gradient is sparse. */
CH_API ch_layer *ch_layer_embedding(int64_t ids, int64_t width,
                                    const ch_layer_embedding_options *opt);
/* Called with ids and row_splits as ch_embedding_bag takes them, and the weights of the ids if
 * it is weighted: (rows, width), the sum or mean of each row's. One node more, the labels
 * perhaps, may say how many rows that are: as many as it has. Without it, the result cannot
 * meet what has the rows of another input. */
CH_API ch_layer *ch_layer_embedding_bag(int64_t ids, int64_t width, ch_combiner combiner,
                                        const ch_layer_embedding_options *opt);

typedef struct ch_layer_multi_head_options {
    int64_t key_width; /* of a head; 0: width / heads */
    bool    causal;
    double  dropout; /* of what comes out; the weights of attention are never all in memory,
                        and none of them is dropped */
    int     bias;    /* 0: yes; CH_OFF: none */
} ch_layer_multi_head_options;
/* Multi-head attention. With one node it attends to itself; with two, the first asks and the
 * second is asked; a third is the mask that ch_attention takes: it broadcasts to (N, heads, T,
 * S), and true is seen. (N, T, width) to (N, T, width). */
CH_API ch_layer *ch_layer_multi_head_attention(int                                heads,
                                               const ch_layer_multi_head_options *opt);

typedef struct ch_layer_transformer_options {
    int64_t       hidden;     /* of the two dense layers; 0: 4 times the width */
    ch_activation activation; /* CH_LINEAR, zero, stands for CH_GELU */
    bool          causal, rms_norm;
    int           bias; /* of its dense layers; 0: yes; CH_OFF: none */
    double        dropout;
} ch_layer_transformer_options;
/* x + attention(norm(x)), then + dense(dense(norm(.))). (N, T, width) to the same. */
CH_API ch_layer *ch_layer_transformer_block(int heads, const ch_layer_transformer_options *opt);

typedef struct ch_layer_recurrent_options {
    bool return_sequence; /* (N, T, units); else the last, (N, units) */
} ch_layer_recurrent_options;
/* Over axis 1 of (N, T, in), gates in Keras's order (LSTM: i f c o, forget bias 1; GRU: z r h,
 * reset after, a bias (2, 3 units) for the input and for the state). */
CH_API ch_layer *ch_layer_lstm(int64_t units, const ch_layer_recurrent_options *opt);
CH_API ch_layer *ch_layer_gru(int64_t units, const ch_layer_recurrent_options *opt);

/* ---- layers of one's own ----
 *
 * `self` is the layer's own memory, a copy of what ch_layer_new was given. `build` runs before
 * the first call, and makes variables; if that call fails they are dropped, and build runs
 * again before the next. `drop` frees what self holds. Either may be NULL. The layers in it are
 * what ch_layer_children gives. */

/* At least and at most; a `most` of 0 is no bound. */
typedef struct ch_layer_bounds {
    int least, most;
} ch_layer_bounds;

typedef struct ch_layer_ops {
    const char *type;
    ch_status (*build)(ch_layer *l, void *self, int n_in, ch_node *const *in);
    ch_node *(*call)(ch_layer *l, void *self, ch_step *s, int n_in, ch_node *const *in,
                     bool training);
    void (*drop)(void *self);
    /* What a call is given, seen to before build: how many nodes, and how many axes each
     * has. */
    ch_layer_bounds n_in, rank[CH_LAYER_INPUTS];
} ch_layer_ops;

/* Takes `n` children over, on an error too; what self holds stays the caller's on an error. */
CH_API ch_layer *ch_layer_new(const ch_layer_ops *ops, const void *self, size_t self_bytes,
                              int n, ch_layer *const *child);

typedef struct ch_layer_weight_spec {
    const char    *name;
    ch_shape       shape;
    const ch_init *init;      /* NULL: zeros */
    int            trainable; /* 0: yes; CH_OFF: no */
    bool           f32;       /* not less than f32, whatever the layer's dtype: statistics */
} ch_layer_weight_spec;
/* In build: makes a variable of the layer. The layer owns it. */
CH_API CH_MUST_CHECK ch_status ch_layer_weight(ch_layer *l, const ch_layer_weight_spec *spec,
                                               ch_var **out);

#endif
