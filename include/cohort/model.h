/* cohort/model.h -- a model: a layer with a strategy and inputs, ready to be trained.
 *
 *     ch_model *m = NULL;
 *     rc = ch_model_new(st, ch_layer_sequential("net", 2, (ch_layer *[]){
 *                                ch_layer_dense(64, &(ch_layer_dense_options){.activation = CH_RELU}),
 *                                ch_layer_dense(10, NULL)}),
 *                       &(ch_model_options){.n_inputs = 1,
 *                                           .input = {{CH_F32, ch_shape_of(-1, 784)}}}, &m);
 *     ch_model_print(m, text, sizeof(text));                       // a table
 *     ...
 *     ch_node *logits = ch_model_call(m, s, x, true);              // in a step
 *
 * With inputs given, the variables are made at once; without, when the model is first called.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_MODEL_H
#define COHORT_MODEL_H

#include "cohort/layer.h"
#include "cohort/strategy.h"

typedef struct ch_model ch_model;

#define CH_MODEL_INPUTS 8

typedef struct ch_input_spec {
    ch_dtype dtype;
    ch_shape shape; /* axis 0 are the rows, -1 */
} ch_input_spec;

typedef struct ch_model_options {
    int           n_inputs; /* 0: not known yet */
    ch_input_spec input[CH_MODEL_INPUTS];
    ch_dtype      dtype; /* of variables; CH_F32, which is zero, leaves it to the layers */
    uint64_t      seed;  /* of their first values; 0 leaves it to the layers */
} ch_model_options;

/* Takes the layer over, on an error too. `root` NULL: fails with what went wrong when it was
 * made. `st` NULL: the current strategy. */
CH_API CH_MUST_CHECK ch_status ch_model_new(ch_strategy *st, ch_layer *root,
                                            const ch_model_options *opt, ch_model **out);
CH_API ch_model               *ch_model_ref(ch_model *m);
CH_API void                    ch_model_unref(ch_model *m);

CH_API ch_node *ch_model_call(ch_model *m, ch_step *s, ch_node *x, bool training);
CH_API ch_node *ch_model_call_n(ch_model *m, ch_step *s, int n, ch_node *const *x,
                                bool training);

CH_API ch_layer    *ch_model_layer(const ch_model *m); /* the outermost; borrowed */
CH_API ch_strategy *ch_model_strategy(const ch_model *m);
/* As ch_layer_vars and ch_layer_trainable. */
CH_API int ch_model_vars(ch_model *m, ch_var *const **out);
CH_API int ch_model_trainable(ch_model *m, ch_var *const **out);
/* As ch_model_vars, with the shards of those that a strategy has cut (cohort/parameter_server.h) in their place: all that is stored. The
 * array is good until the next call. */
CH_API int ch_model_shards(ch_model *m, ch_var *const **out);
/* A table of layers with their outputs and numbers of parameters, those in them included; then
 * all of them, and their bytes. As snprintf does. */
CH_API int ch_model_print(ch_model *m, char *text, size_t size);

#endif
