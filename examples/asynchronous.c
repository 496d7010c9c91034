/* examples/asynchronous.c -- asynchronous training with ch_fit, compared with Mirrored.
 *
 *     ./asynchronous [short] [EPOCHS] [FOLDER]
 *
 * Trains a perceptron on Fashion-MNIST twice. Under Mirrored, all replicas add up their
 * gradients in each step. Under ParameterServer, three workers update the variables
 * independently, so their gradients may belong to slightly older values. The example checks
 * that both runs reach nearly the same accuracy. FOLDER holds the data set. If the data set is
 * not installed, the example trains on synthetic striped images.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "clothes.h"

enum { BATCH = 64 };

static void scale(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_mul(ch_cast(ch_step_in(s, 0), CH_F32), ch_number(s, 1 / 255.0)));
    ch_step_out(s, NULL, ch_cast(ch_step_in(s, 1), CH_I32));
}

/* Returns batches of the first `rows` images (0: all images); `scale` converts each batch. */
static ch_dataset *batches(pictures *p, int64_t rows, bool shuffles)
{
    ch_dataset *d = ch_dataset_slices(2, p->t, NULL);

    if (rows > 0)
        d = ch_dataset_take(d, rows);
    if (shuffles)
        d = ch_dataset_shuffle(d, 10000, NULL);
    return ch_dataset_map(ch_dataset_batch(d, BATCH, NULL), scale, NULL, NULL);
}

static ch_layer *network(void)
{
    return ch_layer_sequential(
        "net", 3,
        (ch_layer *[]){ch_layer_flatten(),
                       ch_layer_dense(128, &(ch_layer_dense_options){.activation = CH_RELU}),
                       ch_layer_dense(CLASSES, NULL)});
}

/* Trains a new model. Returns the share of test images that it classifies correctly. */
static double learn(ch_strategy *st, ch_dataset *train, ch_dataset *test, int epochs)
{
    ch_model     *m = NULL;
    ch_optimizer *adam = NULL;
    ch_history   *h = NULL;
    ch_schedule   fall;
    ch_time_table time;
    double        accuracy;

    must(ch_model_new(
        st, network(),
        &(ch_model_options){.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, SIDE, SIDE, 1)}}},
        &m));
    fall = ch_schedule_cosine(1e-3, (double)(epochs * ch_dataset_cardinality(train)), 0);
    must(ch_optimizer_adam(1e-3, NULL, &(ch_optimizer_options){.schedule = &fall}, &adam));
    must(ch_compile(m, &(ch_compile_options){.optimizer = adam,
                                             .loss = ch_loss_sparse_categorical,
                                             .metrics = {ch_metric_sparse_accuracy()}}));
    must(ch_fit(m, (ch_data){.dataset = train},
                &(ch_fit_options){.epochs = epochs,
                                  .validation = {.dataset = test},
                                  .progress = CH_PROGRESS_AUTO,
                                  .catch_interrupt = true},
                &h));
    accuracy = ch_history_last(h, "val_sparse_accuracy");
    time = ch_history_time(h);
    printf("%-16s %d %s: test accuracy %.2f %% after %lld steps\n", ch_strategy_name(st),
           time.workers > 0 ? time.workers : time.replicas,
           time.workers > 0 ? "workers" : "replicas", 100 * accuracy, (long long)time.steps);
    ch_history_unref(h);
    ch_optimizer_unref(adam);
    ch_model_unref(m);
    return accuracy;
}

int main(int argc, char **argv)
{
    bool              brief = is_short(argc, argv);
    int               at = 1 + brief, epochs = argc > at ? atoi(argv[at]) : brief ? 3 : 5;
    const char       *folder = argc > at + 1 ? argv[at + 1] : FOLDER;
    ch_local_cluster *cluster = NULL;
    ch_strategy      *st[2] = {NULL};
    double            accuracy[2];
    pictures          train, test;

    want(epochs > 0, "a number of epochs", argc > at ? argv[at] : "");
    load(folder, "train", &train);
    load(folder, "t10k", &test);
    ch_dataset *learned = batches(&train, brief ? 4000 : 0, true);
    ch_dataset *checked = batches(&test, brief ? 1000 : 0, false);
    must(ch_cluster_local(&(ch_local_cluster_options){.ps = 2, .workers = 3}, &cluster));
    must(ch_strategy_mirrored(NULL, &st[0]));
    must(ch_strategy_parameter_server(ch_local_cluster_resolver(cluster), NULL, &st[1]));
    for (int i = 0; i < 2; i++) {
        accuracy[i] = learn(st[i], learned, checked, epochs);
        ch_strategy_unref(st[i]);
    }
    ch_dataset_unref(learned);
    ch_dataset_unref(checked);
    ch_local_cluster_unref(cluster);
    drop(&train);
    drop(&test);
    return accuracy[1] > accuracy[0] - (brief ? 0.05 : 0.01) ? 0 : 1;
}
