/* examples/gpt.c -- a small GPT learns a text, character by character, and continues it.
 *
 *     ./gpt [short]
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "example.h"

enum { CHARS = 128, TIME = 32, WIDTH = 64, HEADS = 4, LAYERS = 6, ROWS = 16, MORE = 100 };

static char text[1024] = /* Lewis Carroll */
    "'Twas brillig, and the slithy toves\nDid gyre and gimble in the wabe:\n"
    "All mimsy were the borogoves,\nAnd the mome raths outgrabe.\n\n"
    "\"Beware the Jabberwock, my son!\nThe jaws that bite, the claws that catch!\n"
    "Beware the Jubjub bird, and shun\nThe frumious Bandersnatch!\"\n\n";

typedef struct job {
    ch_model     *model;
    ch_optimizer *optimizer;
} job;

/* Maps characters (N, TIME) to logits (N, TIME, CHARS). Layers 0 and 1 embed characters and
 * positions. */
static ch_node *forward(ch_step *s, int n, ch_node *const *in, bool training,
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
static ch_node *part(ch_step *s, int from)
{
    return ch_slice(ch_step_in(s, 0), 2, (int64_t[]){0, from}, (int64_t[]){-1, TIME});
}

static void train(ch_step *s, void *arg)
{
    job           *j = arg;
    ch_node       *logits = ch_model_call(j->model, s, part(s, 0), true);
    ch_node       *loss = ch_loss_average(ch_loss_sparse_categorical(logits, part(s, 1)), NULL);
    ch_var *const *var;
    int            n = ch_model_trainable(j->model, &var);

    ch_optimizer_minimize(j->optimizer, s, loss, n, var);
    ch_step_out(s, "loss", loss);
}

/* Predicts the most likely character after a piece. */
static void speak(ch_step *s, void *arg)
{
    job     *j = arg;
    ch_node *logits = ch_model_call(j->model, s, part(s, 1), false);

    logits = ch_slice(logits, 2, (int64_t[]){0, TIME - 1}, (int64_t[]){1, 1});
    ch_step_out(s, "character", ch_argmax(logits, -1));
}

/* Runs a step on pieces of the text from `at` on (-1: random pieces). Returns its output. */
static double run(ch_function *step, int rows, int at)
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
    must(ch_strategy_run(NULL, step, in, &out));
    must(ch_tensor_item(ch_value_at(ch_tuple_at(out, 0), 0), &result));
    ch_tuple_unref(in);
    ch_tuple_unref(out);
    return result;
}

int main(int argc, char **argv)
{
    int steps = is_short(argc, argv) ? 80 : 600, end = (int)strlen(text);
    ch_layer_transformer_options causal = {.causal = true};
    ch_layer                    *layer[LAYERS] = {ch_layer_embedding(CHARS, WIDTH, NULL),
                                                  ch_layer_embedding(TIME, WIDTH, NULL),
                                                  ch_layer_transformer_block(HEADS, &causal),
                                                  ch_layer_transformer_block(HEADS, &causal),
                                                  ch_layer_layer_norm(0),
                                                  ch_layer_dense(CHARS, NULL)};
    ch_layer                    *gpt = ch_layer_function("gpt", forward, NULL, LAYERS, layer);
    ch_model_options opt = {.n_inputs = 1, .input = {{CH_I32, ch_shape_of(-1, TIME)}}};
    ch_function     *learn = NULL, *next = NULL;
    job              j;
    double           loss = 0;

    must(ch_model_new(NULL, gpt, &opt, &j.model));
    must(ch_optimizer_adamw(3e-3, NULL, NULL, &j.optimizer));
    must(ch_function_new("learn", train, &j, &learn));
    must(ch_function_new("next", speak, &j, &next));
    for (int i = 0; i <= steps; i++) {
        loss = run(learn, ROWS, -1);
        if (i % 40 == 0)
            printf("step %3d  loss %.3f\n", i, loss);
    }
    for (int i = end; i < end + MORE; i++) /* each prediction is input for the next */
        text[i] = (char)run(next, 1, i - TIME - 1);
    printf("%s\n", text + end);
    ch_function_unref(next);
    ch_function_unref(learn);
    ch_optimizer_unref(j.optimizer);
    ch_model_unref(j.model);
    return loss < 1.5 ? 0 : 1;
}
