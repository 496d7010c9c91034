/* examples/sharded.c -- two options keep only an eighth of every large variable on a core.
 *
 *     ./sharded [short]
 *
 * Mirrored copies the variables of a perceptron, and the slots of Adam, to all of eight
 * devices. TPUStrategy can give each device an eighth of them: split_bytes splits the
 * variables of 4 KiB or more, and split_rows the batches. The model is unchanged, and learns
 * the same.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "cores.h"

enum { IN = 64, UNITS = 512, LAYERS = 6, CLASSES = 10, ROWS = 1024, BATCH = 128 };

/* Makes rows of numbers in [0, 1]. The label of a row is the first of its largest numbers among
 * the first CLASSES. */
static void make_data(ch_tensor **t)
{
    must(ch_tensor_new(CH_F32, ch_shape_of(ROWS, IN), &t[0]));
    must(ch_tensor_new(CH_I32, ch_shape_of(ROWS), &t[1]));
    for (int i = 0; i < ROWS; i++) {
        float   *x = (float *)ch_tensor_data_mut(t[0]) + i * IN;
        int32_t *label = (int32_t *)ch_tensor_data_mut(t[1]) + i;

        for (int k = 0; k < IN; k++)
            x[k] = (float)rand() / (float)RAND_MAX;
        for (int k = *label = 0; k < CLASSES; k++)
            *label = x[k] > x[*label] ? k : *label;
    }
}

static ch_model *new_perceptron(ch_strategy *st)
{
    ch_layer_dense_options hidden = {.activation = CH_RELU};
    ch_layer              *layer[LAYERS];
    ch_model              *m = NULL;

    for (int i = 0; i < LAYERS; i++)
        layer[i] =
            i < LAYERS - 1 ? ch_layer_dense(UNITS, &hidden) : ch_layer_dense(CLASSES, NULL);
    must(ch_model_new(
        st, ch_layer_sequential("net", LAYERS, layer),
        &(ch_model_options){.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, IN)}}}, &m));
    return m;
}

/* Trains under a strategy, and unrefs it. Sets *most to the largest number of bytes that a
 * device had for variables and values. Returns the last loss. */
static double train(ch_strategy *st, ch_tensor **data, int epochs, size_t *most)
{
    ch_model     *m = new_perceptron(st);
    ch_optimizer *adam = NULL;
    ch_history   *h = NULL;
    double        loss;

    must(ch_optimizer_adam(0.001, NULL, NULL, &adam));
    must(ch_compile(
        m, &(ch_compile_options){.optimizer = adam, .loss = ch_loss_sparse_categorical}));
    must(ch_fit(m, (ch_data){.n = 2, .array = data},
                &(ch_fit_options){.epochs = epochs, .batch = BATCH, .catch_interrupt = true},
                &h));
    loss = ch_history_last(h, "loss");
    *most = 0;
    for (int i = 0; i < 8; i++) {
        char       name[16];
        ch_device *d = NULL;

        (void)snprintf(name, sizeof(name), "TPU:%d", i);
        must(ch_device_find(name, &d));
        *most = ch_device_peak_bytes(d) > *most ? ch_device_peak_bytes(d) : *most;
    }
    ch_history_unref(h);
    ch_optimizer_unref(adam);
    ch_model_unref(m);
    ch_strategy_unref(st);
    return loss;
}

int main(int argc, char **argv)
{
    int              epochs = is_short(argc, argv) ? 2 : 20;
    ch_tpu_options   sharded = {.spmd = true, .split_rows = true, .split_bytes = 4096};
    ch_tpu_topology *t = new_topology(0);
    ch_strategy     *mirrored = NULL;
    ch_tensor       *data[2];
    double           loss[2];
    size_t           bytes[2];

    make_data(data);
    loss[0] = train(new_replicas(t, 1, (int[]){2, 2, 2}, &sharded), data, epochs, &bytes[0]);
    must(ch_strategy_mirrored(NULL, &mirrored)); /* on the same devices */
    loss[1] = train(mirrored, data, epochs, &bytes[1]);
    printf("bytes of a device: %zu, Mirrored %zu; loss %.4f, Mirrored %.4f\n", bytes[0],
           bytes[1], loss[0], loss[1]);
    ch_tensor_unref(data[0]);
    ch_tensor_unref(data[1]);
    ch_tpu_topology_unref(t);
    return bytes[0] < bytes[1] / 4 && fabs(loss[0] - loss[1]) < 0.001 * loss[1] ? 0 : 1;
}
