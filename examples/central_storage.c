/* examples/central_storage.c -- a single copy of a large embedding table for all replicas.
 *
 *     ./central_storage [short]
 *
 * The model predicts ratings. Each user and each item has a row in the table. Mirrored copies
 * the table and the optimizer's slots to every device. CentralStorage keeps a single copy on
 * CPU:0, from which all replicas read the rows that they need.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "example.h"

enum { IDS = 20000, WIDTH = 16, RATINGS = 100000 };

/* Maps ids (N, 2), the user and the item of each rating, to predicted ratings (N, 1). */
static ch_node *forward(ch_step *s, int n, ch_node *const *in, bool training,
                        ch_layer *const *layer, void *arg)
{
    ch_node *rows = ch_layer_call(layer[0], s, in[0], training); /* (N, 2, WIDTH) */
    ch_node *both = ch_sum(rows, 1, (int[]){1}, false);

    (void)n, (void)arg;
    return ch_layer_call(layer[1], s, both, training);
}

/* Returns the taste of a user or an item: a fixed number from -0.5 to 0.5. */
static float taste(int id)
{
    return (float)(id * 37 % 101) / 100 - 0.5f;
}

/* Makes ids and ratings. A rating is the sum of the tastes of the user and of the item. */
static void make_ratings(ch_tensor **t)
{
    must(ch_tensor_new(CH_I32, ch_shape_of(RATINGS, 2), &t[0]));
    must(ch_tensor_new(CH_F32, ch_shape_of(RATINGS, 1), &t[1]));
    for (int i = 0; i < RATINGS; i++) {
        int32_t *id = (int32_t *)ch_tensor_data_mut(t[0]) + 2 * i;

        id[0] = rand() % (IDS / 2);
        id[1] = rand() % (IDS / 2) + IDS / 2;
        ((float *)ch_tensor_data_mut(t[1]))[i] = taste(id[0]) + taste(id[1]);
    }
}

/* Trains, prints the memory in use on each device, unrefs the strategy. Returns the error. */
static double train(ch_strategy *st, ch_tensor **ratings, int epochs)
{
    ch_layer     *layer[] = {ch_layer_embedding(IDS, WIDTH, NULL), ch_layer_dense(1, NULL)};
    ch_model     *m = NULL;
    ch_optimizer *adagrad = NULL;
    ch_history   *h = NULL;
    double        error;

    must(ch_model_new(
        st, ch_layer_function("ratings", forward, NULL, 2, layer),
        &(ch_model_options){.n_inputs = 1, .input = {{CH_I32, ch_shape_of(-1, 2)}}}, &m));
    must(ch_optimizer_adagrad(0.3, NULL, NULL,
                              &adagrad)); /* a step updates only the rows that it has read */
    must(ch_compile(m, &(ch_compile_options){.optimizer = adagrad,
                                             .loss = ch_loss_mse,
                                             .metrics = {ch_metric_rmse()}}));
    must(ch_fit(m, (ch_data){.n = 2, .array = ratings},
                &(ch_fit_options){.epochs = epochs,
                                  .batch = 512,
                                  .progress = CH_PROGRESS_AUTO,
                                  .catch_interrupt = true},
                &h));
    error = ch_history_last(h, "rmse");
    printf("%s, error %.3f;", ch_strategy_name(st), error);
    for (int i = 0; i < ch_device_count("CPU"); i++)
        printf(" CPU:%d has %.1f MiB", i, (double)ch_device_bytes(ch_device_at(i)) / (1 << 20));
    putchar('\n');
    ch_history_unref(h);
    ch_optimizer_unref(adagrad);
    ch_model_unref(m);
    ch_strategy_unref(st);
    return error;
}

int main(int argc, char **argv)
{
    int          epochs = is_short(argc, argv) ? 2 : 10;
    const char  *core[MOST_CORES];
    ch_strategy *mirrored = NULL, *central = NULL;
    ch_tensor   *ratings[2];
    double       error;

    make_ratings(ratings);
    must(ch_strategy_mirrored(NULL, &mirrored));
    train(mirrored, ratings, epochs);
    must(ch_strategy_central_storage(
        &(ch_central_storage_options){
            .n_compute = name_cores(core), .compute = core, .parameter = "CPU:0"},
        &central));
    error = train(central, ratings, epochs);
    ch_tensor_unref(ratings[0]);
    ch_tensor_unref(ratings[1]);
    return error < 0.5 ? 0 : 1;
}
