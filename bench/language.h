/* bench/language.h -- language models of the shape of GPT-2: the rows `transformer` and `gpt2`.
 *
 * A model embeds tokens and positions, applies transformer blocks, and multiplies by the token
 * table to get the logits. The limit is 6 multiplications for each parameter and token, at the
 * speed of this machine.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_LANGUAGE_H
#define BENCH_LANGUAGE_H

#include "training.h"

typedef struct language {
    const char *name;
    int         vocabulary, layers, width, heads, rows, length;
} language;

enum { MAX_LAYERS = 16 };

/* Maps ids (rows, length) to logits (rows, length, vocabulary). layer: tokens, positions, norm,
 * blocks. */
static inline ch_node *speak(ch_step *s, int n_in, ch_node *const *in, bool is_training,
                             ch_layer *const *layer, void *arg)
{
    const language *l = arg;
    ch_node        *place = ch_range(s, CH_I32, 0, l->length, 1), *table;
    ch_node        *x = ch_add(ch_layer_call(layer[0], s, in[0], is_training),
                               ch_layer_call(layer[1], s, place, is_training));

    (void)n_in;
    for (int i = 0; i < l->layers; i++)
        x = ch_layer_call(layer[3 + i], s, x, is_training);
    table = ch_var_read(s, ch_layer_var(layer[0], "table"));
    return ch_matmul(ch_layer_call(layer[2], s, x, is_training), false, table, true);
}

static inline ch_layer *language_layer(language *l)
{
    const ch_init small = ch_init_normal(0, 0.02);
    ch_layer     *layer[3 + MAX_LAYERS];

    layer[0] = ch_layer_named(
        "tokens", ch_layer_embedding(l->vocabulary, l->width,
                                     &(ch_layer_embedding_options){.init = &small}));
    layer[1] = ch_layer_named(
        "places",
        ch_layer_embedding(l->length, l->width, &(ch_layer_embedding_options){.init = &small}));
    layer[2] = ch_layer_layer_norm(0);
    for (int i = 0; i < l->layers; i++)
        layer[3 + i] = ch_layer_transformer_block(
            l->heads, &(ch_layer_transformer_options){.causal = true});
    return ch_layer_function(l->name, speak, l, 3 + l->layers, layer);
}

static inline double parameters(ch_model *m)
{
    ch_var *const *var;
    int            n = ch_model_trainable(m, &var);
    double         sum = 0;

    for (int i = 0; i < n; i++)
        sum += (double)ch_shape_count(ch_var_shape(var[i]));
    return sum;
}

static inline void measure_language(bench *b, language *l, const bench_side *peer, int n_peers)
{
    training    t = {0};
    multiplying limit;
    bench_case  c = {.name = l->name,
                     .unit = "ms/step",
                     .scale = 1e3,
                     .rest = true,
                     .check = learns,
                     .result = fifth_loss,
                     .tolerance = 2e-5};

    if (bench_is_small(b))
        *l = (language){l->name, 100, 1, 32, 2, 2, 16};
    must(ch_devices_configure(&(ch_devices_options){.spec = "CPU=1", .threads = CORES}));
    must(ch_model_new(
        NULL, language_layer(l),
        &(ch_model_options){.n_inputs = 1, .input = {{CH_I32, ch_shape_of(-1, l->length)}}},
        &t.model));
    fill_model(t.model);
    /* PyTorch's AdamW adds epsilon at another point; a tiny epsilon makes the results equal. */
    must(
        ch_optimizer_adamw(1e-4, &(ch_optimizer_adam_options){.epsilon = 1e-12}, NULL, &t.opt));
    must(ch_function_new("language", classify, &t, &t.step));
    take_batch(&t, labels(BATCH_X, ch_shape_of(l->rows, l->length), l->vocabulary),
               labels(BATCH_Y, ch_shape_of(l->rows, l->length), l->vocabulary));
    limit = new_multiplying(6 * parameters(t.model) * l->rows * l->length);
    c.ours = (bench_side){.run = run_training, .arg = &t};
    c.limit = (bench_side){.run = multiply, .arg = &limit};
    for (int i = 0; i < n_peers; i++)
        c.peer[i] = peer[i];
    bench_run(b, &c);
    drop_multiplying(&limit);
    drop_training(&t);
}

#endif
