/* examples/mlp.c -- a multilayer perceptron learns a chequerboard, on every core.
 *
 *     ./mlp [short]
 *
 * A custom step combines a model, a loss, an optimizer and a metric. Under Mirrored each device
 * is a replica and gets its share of the rows.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "example.h"

enum { ROWS = 256, MOST_REPLICAS = 1024 };

typedef struct job {
    ch_strategy  *strategy;
    ch_model     *model;
    ch_optimizer *optimizer;
    ch_metric    *loss, *accuracy;
} job;

/* Recorded once, for any number of rows and replicas. */
static void train(ch_step *s, void *arg)
{
    job           *j = arg;
    ch_node       *x = ch_step_in(s, 0), *colour = ch_step_in(s, 1);
    ch_node       *logits = ch_model_call(j->model, s, x, true);
    ch_node       *each = ch_loss_sparse_categorical(logits, colour);
    ch_var *const *var;
    int            n = ch_model_trainable(j->model, &var);

    ch_optimizer_minimize(j->optimizer, s, ch_loss_average(each, NULL), n, var);
    ch_metric_update(j->loss, s, NULL, each, NULL);
    ch_metric_update(j->accuracy, s, colour, logits, NULL);
}

/* Makes random points in a square, and the colours of their fields. */
static void make_points(int rows, ch_tensor **x, ch_tensor **colour)
{
    must(ch_tensor_new(CH_F32, ch_shape_of(rows, 2), x));
    must(ch_tensor_new(CH_I32, ch_shape_of(rows), colour));
    for (int i = 0; i < rows; i++) {
        float *p = (float *)ch_tensor_data_mut(*x) + 2 * i;

        p[0] = 2 * (float)rand() / (float)RAND_MAX - 1;
        p[1] = 2 * (float)rand() / (float)RAND_MAX - 1;
        ((int32_t *)ch_tensor_data_mut(*colour))[i] =
            ((int)(1.5f * p[0] + 1.5f) + (int)(1.5f * p[1] + 1.5f)) & 1;
    }
}

/* Returns ROWS points, divided among the replicas. The numbers of rows differ by at most 1. */
static ch_tuple *next_batch(int replicas)
{
    ch_tensor *x[MOST_REPLICAS], *colour[MOST_REPLICAS];
    ch_value  *value[2] = {NULL};
    ch_tuple  *batch = NULL;

    for (int r = 0; r < replicas; r++)
        make_points(ROWS * (r + 1) / replicas - ROWS * r / replicas, &x[r], &colour[r]);
    must(ch_value_new(CH_PER_REPLICA, replicas, x, &value[0]));
    must(ch_value_new(CH_PER_REPLICA, replicas, colour, &value[1]));
    must(ch_tuple_new(2, value, NULL, &batch));
    for (int r = 0; r < replicas; r++) {
        ch_tensor_unref(x[r]);
        ch_tensor_unref(colour[r]);
    }
    ch_value_unref(value[0]);
    ch_value_unref(value[1]);
    return batch;
}

int main(int argc, char **argv)
{
    int                    steps = is_short(argc, argv) ? 300 : 2000;
    ch_layer_dense_options hidden = {.activation = CH_RELU};
    ch_model_options       shapes = {.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, 2)}}};
    job                    j = {0};
    ch_function           *step = NULL;
    double                 loss = 0, accuracy = 0;

    must(ch_strategy_mirrored(NULL, &j.strategy)); /* trains on every core */
    must(ch_model_new(j.strategy,
                      ch_layer_sequential("mlp", 3,
                                          (ch_layer *[]){ch_layer_dense(64, &hidden),
                                                         ch_layer_dense(64, &hidden),
                                                         ch_layer_dense(2, NULL)}),
                      &shapes, &j.model));
    must(ch_optimizer_adam(0.01, NULL, NULL, &j.optimizer));
    must(ch_metric_new(j.strategy, ch_metric_named(ch_metric_mean(), "loss"), &j.loss));
    must(ch_metric_new(j.strategy, ch_metric_sparse_accuracy(), &j.accuracy));
    must(ch_function_new("train", train, &j, &step));
    for (int i = 1; i <= steps; i++) {
        ch_tuple *batch = next_batch(ch_strategy_replicas(j.strategy));

        must(ch_strategy_run(j.strategy, step, batch, NULL));
        ch_tuple_unref(batch);
        if (i % 100 != 0)
            continue;
        must(ch_metric_result(j.loss, &loss));
        must(ch_metric_reset(j.loss));
        must(ch_metric_result(j.accuracy, &accuracy));
        must(ch_metric_reset(j.accuracy));
        printf("step %4d  loss %.4f  accuracy %.1f %%\n", i, loss, 100 * accuracy);
    }
    ch_function_unref(step);
    ch_metric_unref(j.accuracy);
    ch_metric_unref(j.loss);
    ch_optimizer_unref(j.optimizer);
    ch_model_unref(j.model);
    ch_strategy_unref(j.strategy);
    return accuracy > 0.9 ? 0 : 1;
}
