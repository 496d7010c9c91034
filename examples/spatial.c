/* examples/spatial.c -- a step that does not fit into the memory of one core: its images are
 * split by rows and columns.
 *
 *     ./spatial [short]
 *
 * A convolutional network removes noise from images. Each device of this program has 1 MiB. A
 * step needs more on one core. On eight cores a single annotation splits the images into 2x4
 * tiles, and every core gets the border of its tile from its neighbours.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "cores.h"

enum { IMAGES = 16, SIDE = 64, BATCH = 4, MEMORY = 1 << 20 };

/* Splits the rows of images (n, rows, columns, channels) over axis 0 of the mesh, and the
 * columns over axis 1. */
static ch_node *by_tiles(ch_step *s, int n, ch_node *const *in, bool training,
                         ch_layer *const *layer, void *arg)
{
    ch_node *tiles = ch_mesh_split(in[0], 4, (int[]){CH_OFF, 0, 1, CH_OFF});

    (void)n, (void)arg;
    return ch_layer_call(layer[0], s, tiles, training);
}

static ch_model *new_network(ch_strategy *st)
{
    ch_layer_conv_options same = {.padding = CH_PAD_SAME},
                          hidden = {.padding = CH_PAD_SAME, .activation = CH_RELU};
    ch_layer *layer[] = {ch_layer_conv2d(8, 3, 3, &hidden), ch_layer_conv2d(8, 3, 3, &hidden),
                         ch_layer_conv2d(1, 3, 3, &same)};
    ch_layer *net = ch_layer_sequential("net", 3, layer);
    ch_model *m = NULL;

    must(ch_model_new(
        st, ch_layer_function("tiles", by_tiles, NULL, 1, &net),
        &(ch_model_options){.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, SIDE, SIDE, 1)}}},
        &m));
    return m;
}

/* Makes images of waves, with and without noise. */
static void make_images(ch_tensor **t)
{
    for (int i = 0; i < 2; i++)
        must(ch_tensor_new(CH_F32, ch_shape_of(IMAGES, SIDE, SIDE, 1), &t[i]));
    for (int i = 0; i < IMAGES * SIDE * SIDE; i++) {
        int   row = i / SIDE % SIDE, column = i % SIDE, image = i / SIDE / SIDE;
        float wave = sinf((float)(row * image + column * (IMAGES - image)) / (2 * SIDE));

        ((float *)ch_tensor_data_mut(t[0]))[i] = wave + (float)rand() / (float)RAND_MAX - 0.5f;
        ((float *)ch_tensor_data_mut(t[1]))[i] = wave;
    }
}

/* Trains under a strategy, and unrefs it. Sets *loss to the last loss. */
static ch_status train(ch_strategy *st, ch_tensor **images, int epochs, double *loss)
{
    ch_model     *m = new_network(st);
    ch_optimizer *adam = NULL;
    ch_history   *h = NULL;
    ch_status     rc;

    must(ch_optimizer_adam(0.01, NULL, NULL, &adam));
    must(ch_compile(m, &(ch_compile_options){.optimizer = adam, .loss = ch_loss_mse}));
    rc = ch_fit(m, (ch_data){.n = 2, .array = images},
                &(ch_fit_options){.epochs = epochs, .batch = BATCH, .catch_interrupt = true},
                &h);
    if (rc == CH_OK)
        *loss = ch_history_last(h, "loss");
    ch_history_unref(h);
    ch_optimizer_unref(adam);
    ch_model_unref(m);
    ch_strategy_unref(st);
    return rc;
}

int main(int argc, char **argv)
{
    int              epochs = is_short(argc, argv) ? 5 : 40;
    ch_tpu_options   mesh = {.spmd = true, .n_mesh = 2, .mesh = {2, 4}};
    ch_tpu_topology *t = new_topology(MEMORY);
    ch_tensor       *images[2];
    double           loss = INFINITY;
    ch_status        rc;

    make_images(images);
    rc = train(new_replicas(t, 1, (int[]){1, 1, 1}, NULL), images, epochs, &loss);
    printf("on one core: %s: %s\n", ch_status_name(rc), ch_error_message());
    must(train(new_replicas(t, 1, (int[]){2, 2, 2}, &mesh), images, epochs, &loss));
    printf("on eight cores: loss %.4f\n", loss);
    ch_tensor_unref(images[0]);
    ch_tensor_unref(images[1]);
    ch_tpu_topology_unref(t);
    return rc == CH_RESOURCE_EXHAUSTED && loss < 0.05 ? 0 : 1;
}
