/* cohort/model.h -- models: a layer with a strategy and input shapes, ready for training.
 *
 * A model is the outermost layer of a network, the strategy that holds its variables, and the
 * shapes of its inputs. ch_compile and ch_fit (cohort/fit.h) train it.
 *
 *     ch_layer *net = ch_layer_sequential("net", 2, (ch_layer *[]){
 *         ch_layer_dense(64, &(ch_layer_dense_options){.activation = CH_RELU}),
 *         ch_layer_dense(10, NULL)});
 *     rc = ch_model_new(st, net,
 *                       &(ch_model_options){.n_inputs = 1,
 *                                           .input = {{CH_F32, ch_shape_of(-1, 784)}}}, &m);
 *     ch_model_print(m, text, sizeof(text));                       // a table of layers
 *
 *     ch_node *logits = ch_model_call(m, s, x, true);              // in a step
 *
 *   - If the options list inputs, ch_model_new creates the variables. If not, the first call of
 *     the model does.
 *   - Models are reference counted. A model owns its layer and holds a reference to its
 *     strategy.
 *   - Steps that call the same model must be recorded by one thread at a time, as for layers
 *     (cohort/layer.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_MODEL_H
#define COHORT_MODEL_H

#include "cohort/layer.h"
#include "cohort/strategy.h"

typedef struct ch_model ch_model;

#define CH_MODEL_INPUTS 8 /* maximum number of inputs of a model */

typedef struct ch_input_spec {
    ch_dtype dtype;
    ch_shape shape; /* axis 0 is the rows and may be -1; other sizes are numbers */
} ch_input_spec;

typedef struct ch_model_options {
    int           n_inputs; /* 0: not known yet */
    ch_input_spec input[CH_MODEL_INPUTS];
    ch_dtype dtype; /* of the variables; CH_F32, which is 0, keeps the dtype of the layers */
    uint64_t seed;  /* of random initial values; 0 keeps the seed of the layers */
} ch_model_options;

/* Creates a model. Takes over the caller's reference to `root`, also on an error. If `root` is
 * NULL, returns the error of the constructor that returned NULL. `st` NULL: the current
 * strategy. `opt` may be NULL. */
CH_API CH_MUST_CHECK ch_status ch_model_new(ch_strategy *st, ch_layer *root,
                                            const ch_model_options *opt, ch_model **out);
CH_API ch_model               *ch_model_ref(ch_model *m);
CH_API void                    ch_model_unref(ch_model *m);

/* Record a call of the model in a step: ch_model_call with a single node, ch_model_call_n with
 * `n` nodes. They work as ch_layer_call does. The step must run under the model's strategy. A
 * step of Default may also call the model, and any step may call a model of Default, once the
 * variables exist. */
CH_API ch_node *ch_model_call(ch_model *m, ch_step *s, ch_node *x, bool training);
CH_API ch_node *ch_model_call_n(ch_model *m, ch_step *s, int n, ch_node *const *x,
                                bool training);

CH_API ch_layer    *ch_model_layer(const ch_model *m);    /* the outermost layer; borrowed */
CH_API ch_strategy *ch_model_strategy(const ch_model *m); /* borrowed */
/* ch_model_vars and ch_model_trainable list variables as ch_layer_vars and ch_layer_trainable
 * do. */
CH_API int ch_model_vars(ch_model *m, ch_var *const **out);
CH_API int ch_model_trainable(ch_model *m, ch_var *const **out);
/* Lists the variables as they are stored: like ch_model_vars, but a variable that the strategy
 * has divided into shards (cohort/parameter_server.h) is replaced by its shards. Returns their
 * number, or -1 if memory is exhausted. The array is valid until the next call. */
CH_API int ch_model_shards(ch_model *m, ch_var *const **out);
/* Writes a table of the layers with their outputs and numbers of parameters. The number of a
 * layer includes the layers in it. The last lines are the totals, with their bytes. Returns the
 * length needed, as snprintf does. */
CH_API int ch_model_print(ch_model *m, char *text, size_t size);

#endif
