/* examples/gpt.h -- a small GPT, and a training step that teaches it a text character by
 * character.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef EXAMPLES_GPT_H
#define EXAMPLES_GPT_H

#include "example.h"

enum { CHARS = 128, TIME = 32, WIDTH = 64, HEADS = 4, LAYERS = 6, ROWS = 16 };

static char text[1024] = /* Lewis Carroll */
    "'Twas brillig, and the slithy toves\nDid gyre and gimble in the wabe:\n"
    "All mimsy were the borogoves,\nAnd the mome raths outgrabe.\n\n"
    "\"Beware the Jabberwock, my son!\nThe jaws that bite, the claws that catch!\n"
    "Beware the Jubjub bird, and shun\nThe frumious Bandersnatch!\"\n\n";

typedef struct job {
    ch_model     *model;
    ch_optimizer *optimizer;
    const int    *split; /* of the pieces over the mesh (ch_mesh_split); NULL: none */
} job;

/* Maps characters (N, TIME) to logits (N, TIME, CHARS). Layers 0 and 1 embed characters and
 * positions. */
static inline ch_node *forward(ch_step *s, int n, ch_node *const *in, bool training,
                               ch_layer *const *layer, void *arg)
{
    ch_node *x = ch_layer_call(layer[0], s, in[0], training);
    ch_node *place = ch_layer_call(layer[1], s, ch_range_like(in[0], 1, CH_I32), training);

    (void)n, (void)arg;
    x = ch_add(x, place);
    for (int i = 2; i < LAYERS; i++)
        x = ch_layer_call(layer[i], s, x, training);
    return x;
}

/* Returns TIME characters of each piece, from index 0 or 1. A piece has TIME + 1 characters. */
static inline ch_node *part(ch_node *pieces, int from)
{
    return ch_slice(pieces, 2, (int64_t[]){0, from}, (int64_t[]){-1, TIME});
}

static inline void train(ch_step *s, void *arg)
{
    job           *j = arg;
    ch_node       *pieces = ch_step_in(s, 0), *logits, *loss;
    ch_var *const *var;
    int            n = ch_model_trainable(j->model, &var);

    if (j->split != NULL)
        pieces = ch_mesh_split(pieces, 2, j->split);
    logits = ch_model_call(j->model, s, part(pieces, 0), true);
    loss = ch_loss_average(ch_loss_sparse_categorical(logits, part(pieces, 1)), NULL);
    ch_optimizer_minimize(j->optimizer, s, loss, n, var);
    ch_step_out(s, "loss", loss);
}

/* Returns a model of two transformer blocks. */
static inline ch_model *new_gpt(ch_strategy *st)
{
    ch_layer_transformer_options causal = {.causal = true};
    ch_layer                    *layer[LAYERS] = {ch_layer_embedding(CHARS, WIDTH, NULL),
                                                  ch_layer_embedding(TIME, WIDTH, NULL),
                                                  ch_layer_transformer_block(HEADS, &causal),
                                                  ch_layer_transformer_block(HEADS, &causal),
                                                  ch_layer_layer_norm(0),
                                                  ch_layer_dense(CHARS, NULL)};
    ch_layer                    *gpt = ch_layer_function("gpt", forward, NULL, LAYERS, layer);
    ch_model_options opt = {.n_inputs = 1, .input = {{CH_I32, ch_shape_of(-1, TIME)}}};
    ch_model        *m = NULL;

    must(ch_model_new(st, gpt, &opt, &m));
    return m;
}

/* Runs a step on pieces of the text from `at` on (-1: random pieces). Returns its output. */
static inline double run(ch_strategy *st, ch_function *step, int rows, int at)
{
    ch_tensor *t = NULL;
    ch_tuple  *in, *out = NULL;
    double     result = 0;

    must(ch_tensor_new(CH_I32, ch_shape_of(rows, TIME + 1), &t));
    for (int i = 0; i < rows; i++) {
        int from = at >= 0 ? at : rand() % ((int)strlen(text) - TIME);

        for (int k = 0; k <= TIME; k++)
            ((int32_t *)ch_tensor_data_mut(t))[i * (TIME + 1) + k] = text[from + k] % CHARS;
    }
    in = batch_of(1, &t);
    must(ch_strategy_run(st, step, in, &out));
    must(ch_tensor_item(ch_value_at(ch_tuple_at(out, 0), 0), &result));
    ch_tuple_unref(in);
    ch_tuple_unref(out);
    return result;
}

#endif
