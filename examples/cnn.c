/* examples/cnn.c -- a convolutional network classifies drawn shapes.
 *
 *     ./cnn [short] [f32 | bf16 | f16]
 *
 * Each step draws new disks, frames, crosses and stripes, with random sizes, positions and
 * noise. In bf16 and f16 the weights and activations take half the memory.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "example.h"

enum { DISK, FRAME, CROSS, STRIPES, SHAPES, SIDE = 16, ROWS = 64 };

typedef struct job {
    ch_model     *model;
    ch_optimizer *optimizer;
    ch_metric    *accuracy;
} job;

static void train(ch_step *s, void *arg)
{
    job           *j = arg;
    ch_node       *image = ch_step_in(s, 0), *shape = ch_step_in(s, 1);
    ch_node       *logits = ch_model_call(j->model, s, image, true);
    ch_node       *loss = ch_loss_average(ch_loss_sparse_categorical(logits, shape), NULL);
    ch_var *const *var;
    int            n = ch_model_trainable(j->model, &var);

    ch_optimizer_minimize(j->optimizer, s, loss, n, var);
    ch_metric_update(j->accuracy, s, shape, logits, NULL);
}

static void make_job(ch_dtype dtype, job *j)
{
    ch_layer_conv_options conv = {.padding = CH_PAD_SAME, .activation = CH_RELU};
    ch_layer             *layer[] = {ch_layer_conv2d(8, 3, 3, &conv),
                                     ch_layer_max_pool(2, 2, 0, 0, CH_PAD_VALID),
                                     ch_layer_conv2d(16, 3, 3, &conv),
                                     ch_layer_max_pool(2, 2, 0, 0, CH_PAD_VALID),
                                     ch_layer_flatten(),
                                     ch_layer_dense(SHAPES, NULL)};
    ch_model_options      images = {
             .n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, SIDE, SIDE, 1)}}, .dtype = dtype};

    must(ch_model_new(NULL, ch_layer_sequential("cnn", 6, layer), &images, &j->model));
    must(ch_optimizer_adam(3e-3, NULL,
                           &(ch_optimizer_options){.dynamic_loss_scale = dtype == CH_F16},
                           &j->optimizer));
    must(ch_metric_new(NULL, ch_metric_sparse_accuracy(), &j->accuracy));
}

static float uniform(float lo, float hi)
{
    return lo + (hi - lo) * (float)rand() / (float)RAND_MAX;
}

/* Returns true if a shape of radius r covers the point (x, y), relative to its centre. */
static bool is_lit(int shape, float x, float y, float r)
{
    float across = fabsf(x), down = fabsf(y);
    float far = across > down ? across : down, near = across + down - far;

    return far < r && (shape == DISK    ? x * x + y * y < r * r
                       : shape == FRAME ? r - far < 1.5f
                       : shape == CROSS ? near < 1
                                        : (int)(y + r) % 3 == 0);
}

static ch_tuple *next_batch(void)
{
    static float   image[ROWS][SIDE][SIDE];
    static int32_t shape[ROWS];
    ch_tensor     *t[2] = {NULL};

    for (int i = 0; i < ROWS; i++) {
        float r = uniform(3, 6), x = uniform(r, SIDE - r), y = uniform(r, SIDE - r);

        shape[i] = rand() % SHAPES;
        for (int row = 0; row < SIDE; row++)
            for (int col = 0; col < SIDE; col++)
                image[i][row][col] =
                    uniform(0, 0.5f) + is_lit(shape[i], (float)col - x, (float)row - y, r);
    }
    must(ch_tensor_copy_of(CH_F32, ch_shape_of(ROWS, SIDE, SIDE, 1), image, &t[0]));
    must(ch_tensor_copy_of(CH_I32, ch_shape_of(ROWS), shape, &t[1]));
    return batch_of(2, t);
}

int main(int argc, char **argv)
{
    int          steps = is_short(argc, argv) ? 200 : 800;
    ch_dtype     dtype = CH_F32;
    ch_function *step = NULL;
    job          j;
    double       accuracy = 0;

    if (argc > 1 + is_short(argc, argv))
        must(ch_dtype_parse(argv[argc - 1], &dtype));
    make_job(dtype, &j);
    must(ch_function_new("train", train, &j, &step));
    for (int i = 1; i <= steps; i++) {
        ch_tuple *batch = next_batch();

        must(ch_strategy_run(NULL, step, batch, NULL));
        ch_tuple_unref(batch);
        if (i % 100 == 0) {
            must(ch_metric_result(j.accuracy, &accuracy));
            must(ch_metric_reset(j.accuracy));
            printf("step %3d  accuracy %.2f %%\n", i, 100 * accuracy);
        }
    }
    ch_function_unref(step);
    ch_metric_unref(j.accuracy);
    ch_optimizer_unref(j.optimizer);
    ch_model_unref(j.model);
    return accuracy > 0.9 ? 0 : 1;
}
