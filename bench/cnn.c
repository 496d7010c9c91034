/* bench/cnn.c -- an SGD step of a convolutional network on 128 images of 28x28, two cores.
 *
 * The limit: both convolutions, their three gradients.   SPDX-License-Identifier: Apache-2.0 */
#include "training.h"

enum { ROWS = 128 };

/* Records only the convolutions of a step. */
static void convolve(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0), *pooled = ch_step_in(s, 1);
    ch_node *w1 = ch_random_uniform(s, CH_F32, ch_shape_of(3, 3, 1, 32), -1, 1, 1);
    ch_node *w2 = ch_random_uniform(s, CH_F32, ch_shape_of(3, 3, 32, 64), -1, 1, 2);
    ch_node *y1 = ch_conv2d(x, w1, NULL), *y2 = ch_conv2d(pooled, w2, NULL), *d[2];

    (void)arg;
    ch_step_out(s, "dw1", ch_gradient(y1, w1));
    ch_gradients(y2, NULL, 2, (ch_node *[]){w2, pooled}, d);
    ch_step_out(s, "y1", y1);
    ch_step_out(s, "y2", y2);
    ch_step_out(s, "dw2", d[0]);
    ch_step_out(s, "dx2", d[1]);
}

int main(int argc, char **argv)
{
    bench   *b = bench_open("cnn", argc, argv);
    training t = {0}, limit = {0};

    must(ch_devices_configure(&(ch_devices_options){.spec = "CPU=1", .threads = CORES}));
    must(ch_model_new(
        NULL, convolutional(),
        &(ch_model_options){.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, 28, 28, 1)}}},
        &t.model));
    must(ch_optimizer_sgd(0.01, NULL, NULL, &t.opt));
    must(ch_function_new("cnn", classify, &t, &t.step));
    must(ch_function_new("convolutions", convolve, NULL, &limit.step));
    fill_model(t.model);
    take_batch(&t, noise(BATCH_X, ch_shape_of(ROWS, 28, 28, 1), 0, 1),
               labels(BATCH_Y, ch_shape_of(ROWS), 10));
    take_batch(&limit, noise(BATCH_X, ch_shape_of(ROWS, 28, 28, 1), 0, 1),
               noise(BATCH_Y, ch_shape_of(ROWS, 13, 13, 32), 0, 1));
    bench_run(b, &(bench_case){.name = "conv 32, conv 64, dense 128, 128 rows, SGD",
                               .unit = "ms/step",
                               .scale = 1e3,
                               .ours = {.run = run_training, .arg = &t},
                               .peer = TORCH("cnn"),
                               .limit = {.run = run_training, .arg = &limit},
                               .rest = true,
                               .check = learns,
                               .result = fifth_loss,
                               .tolerance = 1e-5});
    drop_training(&t);
    drop_training(&limit);
    return bench_close(b);
}
