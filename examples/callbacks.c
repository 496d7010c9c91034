/* examples/callbacks.c -- callbacks of ch_fit: early stopping, falling rate, a C function.
 *
 *     ./callbacks [short]
 *
 * The training set is small and has wrong labels, so the model overfits: the training loss
 * falls, but the validation loss rises.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "points.h"

/* Runs after every epoch. Prints a line if the learning rate has changed. A callback may call
 * ch_training_stop to end the training. */
static ch_status on_epoch(ch_training *t, ch_event event, void *arg)
{
    double *last = arg, rate = 0;

    (void)event;
    must(ch_optimizer_rate(ch_training_optimizer(t), &rate));
    if (rate != *last)
        printf("epoch %3d  rate %-7.2g loss %.3f  validation loss %.3f\n",
               ch_training_epoch(t) + 1, rate, ch_training_get(t, "loss"),
               ch_training_get(t, "val_loss"));
    *last = rate;
    return CH_OK; /* an error, set with ch_fail, would end the training */
}

int main(int argc, char **argv)
{
    bool          brief = is_short(argc, argv);
    ch_callback  *callback[5] = {NULL};
    ch_tensor    *train[2], *test[2];
    ch_model     *m = new_network(NULL, 64, NULL);
    ch_optimizer *adam = NULL;
    ch_history   *h = NULL, *after = NULL;
    double        best, last_rate = 0;
    int           epoch = 0;
    char          text[4096];

    make_points(200, 0.2f, train);
    make_points(1000, 0, test);
    must(ch_optimizer_adam(0.01, NULL, NULL, &adam));
    compile_network(m, adam);

    /* Stops if the validation loss does not improve for 12 epochs; restores the best values. */
    must(ch_callback_early_stopping(
        &(ch_callback_early_stopping_options){.patience = 12, .restore_best = true},
        &callback[0]));
    must(ch_callback_reduce_on_plateau(
        &(ch_callback_plateau_options){.factor = 0.3, .patience = 4}, &callback[1]));
    must(ch_callback_of(CH_ON_EPOCH_END, on_epoch, &last_rate, &callback[2]));
    must(ch_callback_stop_on_nan(0, &callback[3]));
    must(ch_callback_time_limit(60, &callback[4]));

    must(ch_fit(m, (ch_data){.n = 2, .array = train},
                &(ch_fit_options){.epochs = brief ? 100 : 1000,
                                  .validation = {.n = 2, .array = test},
                                  .n_callbacks = 5,
                                  .callback = callback,
                                  .progress = CH_PROGRESS_AUTO,
                                  .catch_interrupt = true},
                &h));
    must(ch_evaluate(m, (ch_data){.n = 2, .array = test}, NULL, &after));
    best = ch_history_best(h, "val_loss", CH_GOAL_AUTO, &epoch);
    ch_history_plot(h, "val_loss", 72, 10, text, sizeof(text));
    printf("\nvalidation loss\n%s\n", text);
    printf("stopped after %d epochs: %s\n", ch_history_epochs(h),
           ch_history_stopped(h) != NULL ? ch_history_stopped(h) : "all epochs done");
    printf("epoch %d was the best (loss %.3f); loss of the model now: %.3f\n", epoch + 1, best,
           ch_history_last(after, "loss"));

    ch_history_unref(after);
    ch_history_unref(h);
    for (int i = 0; i < 5; i++)
        ch_callback_unref(callback[i]);
    ch_optimizer_unref(adam);
    ch_model_unref(m);
    drop_points(train);
    drop_points(test);
    return best < 0.5 ? 0 : 1;
}
