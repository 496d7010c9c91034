/* examples/choose.c -- three ways to divide a GPT among 4 cores: by hand, by rows, by search.
 *
 *     ./choose [short]
 *
 * By hand, rules split the kernels by heads and hidden units. By rows, every core has some rows
 * of the batch and a part of every variable. The search needs nothing from the program.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "example.h"

enum { CHARS = 128, TIME = 32, WIDTH = 64, HEADS = 4, ROWS = 16 };

typedef struct job {
    ch_model     *model;
    ch_optimizer *optimizer;
} job;

static void train(ch_step *s, void *arg)
{
    job           *j = arg;
    ch_node       *logits = ch_model_call(j->model, s, ch_step_in(s, 0), true);
    ch_node       *each = ch_loss_sparse_categorical(logits, ch_step_in(s, 1));
    ch_node       *loss = ch_loss_average(each, NULL);
    ch_var *const *var;
    int            n = ch_model_trainable(j->model, &var);

    ch_optimizer_minimize(j->optimizer, s, loss, n, var);
    ch_step_out(s, "loss", loss);
}

/* A GPT without positions: it learns them from the order of causal attention. */
static ch_layer *gpt(void)
{
    ch_layer_transformer_options causal = {.causal = true};
    ch_layer                    *layer[] = {ch_layer_embedding(CHARS, WIDTH, NULL),
                                            ch_layer_transformer_block(HEADS, &causal),
                                            ch_layer_transformer_block(HEADS, &causal), ch_layer_layer_norm(0),
                                            ch_layer_dense(CHARS, NULL)};

    return ch_layer_sequential("gpt", 5, layer);
}

/* Pieces of a text that repeats, and the characters that follow. */
static ch_tuple *batch(void)
{
    static const unsigned char text[] = "one two three four five six seven eight nine ten, ";
    ch_tensor                 *t[2] = {NULL, NULL};

    for (int i = 0; i < 2; i++) {
        must(ch_tensor_new(CH_I32, ch_shape_of(ROWS, TIME), &t[i]));
        for (int k = 0; k < ROWS * TIME; k++)
            ((int32_t *)ch_tensor_data_mut(t[i]))[k] =
                text[(size_t)(k / TIME * 3 + k % TIME + i) % (sizeof(text) - 1)];
    }
    return batch_of(2, t);
}

/* Trains under TPUStrategy with some options. Prints a line, and returns the loss. */
static double train_with(const char *name, const ch_tpu_options *opt, int steps, int64_t *bytes)
{
    ch_tpu_build       build = {.n = 4, .shape = {2, 1, 1, 2}, .replicas = 1};
    ch_tpu_topology   *cores = NULL;
    ch_tpu_assignment *assignment = NULL;
    ch_strategy       *st = NULL;
    ch_tuple          *in = batch(), *out = NULL;
    ch_function       *step = NULL;
    ch_model_options   of = {.n_inputs = 1, .input = {{CH_I32, ch_shape_of(-1, TIME)}}};
    ch_layout_report   r;
    job                j;
    double             loss = 0;

    must(ch_tpu_initialize(NULL, &cores)); /* a mesh of 2x1x1x2 */
    must(ch_tpu_assignment_build(cores, &build, &assignment));
    must(ch_strategy_tpu(NULL, assignment, opt, &st));
    must(ch_model_new(st, gpt(), &of, &j.model));
    must(ch_optimizer_adamw(3e-3, NULL, NULL, &j.optimizer));
    must(ch_function_new("train", train, &j, &step));
    for (int i = 0; i < steps; i++) {
        must(ch_strategy_run(st, step, in, &out));
        loss = number_of(out, "loss");
        ch_tuple_unref(out);
    }
    must(ch_function_report_layouts(step, &r, NULL));
    *bytes = r.all_reduce.bytes + r.reduce_scatter.bytes + r.all_gather.bytes +
             r.all_to_all.bytes + r.halo.bytes + r.other.bytes;
    printf("%-9s  %9lld B move in a step, a core needs %7lld B, loss %.4f\n", name,
           (long long)*bytes, (long long)r.peak_bytes[0], loss);
    must(ch_tpu_shutdown(NULL));
    ch_function_unref(step);
    ch_optimizer_unref(j.optimizer);
    ch_model_unref(j.model);
    ch_tuple_unref(in);
    ch_strategy_unref(st);
    ch_tpu_assignment_unref(assignment);
    ch_tpu_topology_unref(cores);
    return loss;
}

int main(int argc, char **argv)
{
    const ch_split_rule rule[] = {
        {"*query/kernel", 2, {CH_OFF, 0}},  {"*key/kernel", 2, {CH_OFF, 0}},
        {"*value/kernel", 2, {CH_OFF, 0}},  {"*attention/output/kernel", 2, {0, CH_OFF}},
        {"*hidden/kernel", 2, {CH_OFF, 0}}, {"*output/kernel", 2, {0, CH_OFF}}};
    const ch_tpu_options by_hand = {.spmd = true, .n_rules = 6, .rule = rule};
    const ch_tpu_options by_rows = {.spmd = true, .split_rows = true, .split_bytes = 4096};
    const ch_tpu_options by_search = {.spmd = true, .choose_layouts = true};
    int                  steps = is_short(argc, argv) ? 10 : 100;
    int64_t              bytes[3];
    double               loss[3];

    must(ch_devices_configure(&(ch_devices_options){.spec = "TPU=4", .threads = 1}));
    loss[0] = train_with("by hand", &by_hand, steps, &bytes[0]);
    loss[1] = train_with("by rows", &by_rows, steps, &bytes[1]);
    loss[2] = train_with("by search", &by_search, steps, &bytes[2]);
    for (int i = 0; i < 2; i++)
        if (bytes[2] > bytes[i] || loss[2] - loss[i] > 1e-2 || loss[i] - loss[2] > 1e-2)
            return 1;
    return loss[2] < (steps > 10 ? 0.5 : 4) ? 0 : 1;
}
