/* examples/resume.c -- a training that may be killed at any moment, and is started again.
 *
 *     ./resume [short] DIRECTORY
 *
 * Trains a perceptron on Fashion-MNIST, with dropout, early stopping and a rate that falls on
 * a plateau. Killed at any moment and started again, it goes on from the newest checkpoint, and
 * ends with the weights, numbers and DIRECTORY/log.csv of a run that was never killed. After
 * SIGTERM it saves and exits with status 42.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "clothes.h"

enum { BATCH = 128, WIDTH = 256, CALLBACKS = 4 };

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

static ch_dataset *new_dataset(const pictures *p, bool brief)
{
    ch_dataset *d = ch_dataset_shuffle(ch_dataset_slices(2, p->t, NULL), 10000, NULL);

    d = ch_dataset_take(ch_dataset_batch(d, BATCH, NULL), brief ? 40 : CH_INFINITE);
    return ch_dataset_map(d, scale, NULL, NULL);
}

static void new_callbacks(const char *directory, ch_callback **out)
{
    ch_backup_options backup = {.overhead = 0.035, .monitor = "val_loss", .signals = true};
    ch_callback_early_stopping_options stopping = {.patience = 3, .restore_best = true};
    ch_callback_plateau_options        plateau = {.factor = 0.3, .patience = 1};
    char                               log[600];

    snprintf(log, sizeof(log), "%s/log.csv", directory);
    must(ch_callback_backup(directory, &backup, &out[0]));
    must(ch_callback_early_stopping(&stopping, &out[1]));
    must(ch_callback_reduce_on_plateau(&plateau, &out[2]));
    must(ch_callback_csv_log(log, NULL, &out[3]));
}

int main(int argc, char **argv)
{
    bool         brief = is_short(argc, argv);
    pictures     train, test;
    ch_callback *callback[CALLBACKS] = {NULL};
    ch_strategy *st = NULL;
    ch_history  *h = NULL;

    load(FOLDER, "train", &train);
    load(FOLDER, "t10k", &test);
    new_callbacks(argc > 1 + brief ? argv[1 + brief] : "resume-run", callback);
    must(ch_strategy_mirrored(NULL, &st));
    ch_model      *m = new_model(st);
    ch_dataset    *learn = new_dataset(&train, brief), *check = new_dataset(&test, brief);
    ch_fit_options opt = {.epochs = brief ? 3 : 20,
                          .validation = {.dataset = check},
                          .n_callbacks = CALLBACKS,
                          .callback = callback,
                          .progress = CH_PROGRESS_AUTO};
    ch_status      rc = ch_fit(m, (ch_data){.dataset = learn}, &opt, &h);

    if (rc == CH_CANCELLED) /* SIGTERM */
        return fprintf(stderr, "%s\n", ch_error_message()), CH_EXIT_RESTART;
    must(rc);
    printf("validation loss %.4f\n", ch_history_last(h, "val_loss"));
    for (int i = 0; i < CALLBACKS; i++)
        ch_callback_unref(callback[i]);
    ch_history_unref(h);
    ch_model_unref(m);
    ch_strategy_unref(st);
    ch_dataset_unref(learn);
    ch_dataset_unref(check);
    drop(&train);
    drop(&test);
    return 0;
}
