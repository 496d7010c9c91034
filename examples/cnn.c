/* examples/cnn.c -- a convolutional network tells drawn shapes apart.
 *
 *     ./cnn [short] [f32 | bf16 | f16]
 *
 * Disks, frames, crosses and stripes of any size, at any place, in noise, drawn anew for every
 * step. In bf16 and f16 what the layers hold and hand on takes half the memory.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cohort/cohort.h"

enum { SIDE = 16, SHAPES = 4, ROWS = 64 };

typedef struct job {
    ch_model     *model;
    ch_optimizer *optimizer;
    ch_metric    *accuracy;
} job;

static void must(ch_status rc)
{
    if (rc == CH_OK)
        return;
    fprintf(stderr, "%s: %s\n", ch_status_name(rc), ch_error_message());
    exit(1);
}

static void train(ch_step *s, void *arg)
{
    job           *j = arg;
    ch_node       *logits = ch_model_call(j->model, s, ch_step_in(s, 0), true);
    ch_node       *each = ch_loss_sparse_categorical(logits, ch_step_in(s, 1));
    ch_var *const *var;
    int            n = ch_model_trainable(j->model, &var);

    ch_optimizer_minimize(j->optimizer, s, ch_loss_average(each, NULL), n, var);
    ch_metric_update(j->accuracy, s, ch_step_in(s, 1), logits, NULL);
}

static float uniform(float lo, float hi)
{
    return lo + (hi - lo) * (float)rand() / (float)RAND_MAX;
}

/* How bright a shape of radius r is at (x, y) from its middle. */
static float bright(int shape, float x, float y, float r)
{
    float far = fmaxf(fabsf(x), fabsf(y)), near = fminf(fabsf(x), fabsf(y));
    bool  in[SHAPES] = {x * x + y * y<r * r, far> r - 1.5f, near < 1, fmodf(y + r, 3) < 1};

    return far < r && in[shape];
}

static ch_tuple *next_batch(void)
{
    ch_tensor *t[2] = {NULL};
    ch_tuple  *batch = NULL;

    must(ch_tensor_new(CH_F32, ch_shape_of(ROWS, SIDE, SIDE, 1), &t[0]));
    must(ch_tensor_new(CH_I32, ch_shape_of(ROWS), &t[1]));
    for (int i = 0; i < ROWS; i++) {
        float *pixel = (float *)ch_tensor_data_mut(t[0]) + i * SIDE * SIDE;
        int    shape = rand() % SHAPES;
        float  r = uniform(3, 6), x = uniform(r, SIDE - r), y = uniform(r, SIDE - r);

        ((int32_t *)ch_tensor_data_mut(t[1]))[i] = shape;
        for (int k = 0; k < SIDE * SIDE; k++)
            pixel[k] = uniform(0, 0.5f) +
                       bright(shape, (float)(k % SIDE) - x, (float)(k / SIDE) - y, r);
    }
    must(ch_tuple_of(2, t, &batch));
    ch_tensor_unref(t[0]), ch_tensor_unref(t[1]);
    return batch;
}

int main(int argc, char **argv)
{
    bool                  is_short = argc > 1 && strcmp(argv[1], "short") == 0;
    ch_model_options      opt = {1, {{CH_F32, ch_shape_of(-1, SIDE, SIDE, 1)}}, CH_F32, 0};
    ch_conv_layer_options conv = {.padding = CH_PAD_SAME, .activation = CH_RELU};
    ch_layer             *layer[] = {ch_conv2d_layer(8, 3, 3, &conv),
                                     ch_max_pool_layer(2, 2, 0, 0, CH_PAD_VALID),
                                     ch_conv2d_layer(16, 3, 3, &conv),
                                     ch_max_pool_layer(2, 2, 0, 0, CH_PAD_VALID),
                                     ch_flatten_layer(),
                                     ch_dense(SHAPES, NULL)};
    job                   j = {0};
    ch_function          *step = NULL;
    int                   steps = is_short ? 200 : 800;
    double                accuracy = 0;

    if (argc > 1 + is_short)
        must(ch_dtype_parse(argv[1 + is_short], &opt.dtype));
    must(ch_model_new(NULL, ch_sequential("cnn", 6, layer), &opt, &j.model));
    must(ch_adam(3e-3, NULL, &(ch_optimizer_options){.dynamic_loss_scale = opt.dtype == CH_F16},
                 &j.optimizer));
    must(ch_metric_sparse_accuracy(NULL, NULL, &j.accuracy));
    must(ch_function_new("train", train, &j, &step));
    for (int i = 1; i <= steps; i++) {
        ch_tuple *batch = next_batch();

        must(ch_strategy_run(NULL, step, batch, NULL));
        ch_tuple_unref(batch);
        if (i % 100 != 0)
            continue;
        must(ch_metric_result(j.accuracy, &accuracy));
        must(ch_metric_reset(j.accuracy));
        printf("%s  step %3d  accuracy %.2f %%\n", ch_dtype_name(opt.dtype), i, 100 * accuracy);
    }
    ch_function_unref(step);
    ch_metric_unref(j.accuracy);
    ch_optimizer_unref(j.optimizer);
    ch_model_unref(j.model);
    return accuracy > 0.9 ? 0 : 1;
}
