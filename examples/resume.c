/* examples/resume.c -- a training that may be killed at any moment, and is started again.
 *
 *     ./resume [short] DIRECTORY
 *
 * Trains a perceptron on Fashion-MNIST on two replicas, with dropout, early stopping and a rate
 * that is reduced on a plateau. Checkpoints are in DIRECTORY. Kill the program with Ctrl-\, or
 * turn the machine off, and start it again: it continues where it was, and ends with the
 * weights, the numbers and the file DIRECTORY/log.csv of a run that was never killed. After
 * SIGTERM it saves and exits with status 42, for a batch system that starts jobs again.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "clothes.h"

enum { BATCH = 128, WIDTH = 256 };

static ch_model *new_model(ch_strategy *st)
{
    ch_layer *layer[] = {
        ch_layer_flatten(),
        ch_layer_dense(WIDTH, &(ch_layer_dense_options){.activation = CH_RELU}),
        ch_layer_dropout(0.3), ch_layer_dense(CLASSES, NULL)};
    ch_model_options opt = {.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, SIDE, SIDE, 1)}}};
    ch_optimizer    *adam = NULL;
    ch_model        *m = NULL;

    must(ch_model_new(st, ch_layer_sequential("net", 4, layer), &opt, &m));
    must(ch_optimizer_adam(0.001, NULL, NULL, &adam));
    must(ch_compile(m, &(ch_compile_options){.optimizer = adam,
                                             .loss = ch_loss_sparse_categorical,
                                             .metrics = {ch_metric_sparse_accuracy()}}));
    ch_optimizer_unref(adam);
    return m;
}

/* Converts pixels to numbers from 0 to 1, and labels to i32. */
static void scale(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "image", ch_div(ch_cast(ch_step_in(s, 0), CH_F32), ch_number(s, 255)));
    ch_step_out(s, "label", ch_cast(ch_step_in(s, 1), CH_I32));
}

static ch_dataset *new_dataset(const pictures *p, bool shuffle)
{
    ch_dataset *d = ch_dataset_slices(2, p->t, NULL);

    if (shuffle)
        d = ch_dataset_shuffle(d, 10000, NULL);
    return ch_dataset_map(ch_dataset_batch(d, BATCH, NULL), scale, NULL, NULL);
}

int main(int argc, char **argv)
{
    bool         brief = is_short(argc, argv);
    const char  *directory = argc > 1 + brief ? argv[1 + brief] : "resume-run";
    const char  *core[MOST_CORES];
    char         log[600];
    pictures     p[2];
    ch_dataset  *train, *test;
    ch_strategy *st = NULL;
    ch_model    *m;
    ch_callback *callback[4] = {NULL};
    ch_history  *h = NULL;
    ch_status    rc;

    name_cores(core);
    load(FOLDER, "train", &p[0]);
    load(FOLDER, "t10k", &p[1]);
    train = new_dataset(&p[0], true);
    test = new_dataset(&p[1], false);
    must(ch_strategy_mirrored(
        &(ch_mirrored_options){.n_devices = ch_device_count("CPU") > 1 ? 2 : 1, .device = core},
        &st));
    m = new_model(st);
    snprintf(log, sizeof(log), "%s/log.csv", directory);
    must(ch_callback_backup(
        directory,
        &(ch_backup_options){
            .overhead = 0.035, .every_epochs = 1, .monitor = "val_loss", .signals = true},
        &callback[0]));
    must(ch_callback_early_stopping(
        &(ch_callback_early_stopping_options){.patience = 3, .restore_best = true},
        &callback[1]));
    must(ch_callback_reduce_on_plateau(
        &(ch_callback_plateau_options){.factor = 0.3, .patience = 1}, &callback[2]));
    must(ch_callback_csv_log(log, NULL, &callback[3]));
    rc = ch_fit(m, (ch_data){.dataset = train},
                &(ch_fit_options){.epochs = brief ? 3 : 20,
                                  .validation = {.dataset = test},
                                  .n_callbacks = 4,
                                  .callback = callback,
                                  .progress = CH_PROGRESS_AUTO},
                &h);
    if (rc == CH_CANCELLED) { /* SIGTERM */
        fprintf(stderr, "%s\n", ch_error_message());
        return CH_EXIT_RESTART;
    }
    must(rc);
    printf("%d epochs, validation loss %.4f\n", ch_history_epochs(h),
           ch_history_last(h, "val_loss"));
    for (int i = 0; i < 4; i++)
        ch_callback_unref(callback[i]);
    ch_history_unref(h);
    ch_model_unref(m);
    ch_strategy_unref(st);
    ch_dataset_unref(train);
    ch_dataset_unref(test);
    for (int i = 0; i < 4; i++)
        ch_tensor_unref(p[i / 2].t[i % 2]);
    return 0;
}
