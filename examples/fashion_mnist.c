/* examples/fashion_mnist.c -- a convolutional network classifies clothes, on every core.
 *
 *     ./fashion_mnist [short | EPOCHS] [FOLDER]
 *
 * Fashion-MNIST is Debian's package dataset-fashion-mnist. If the data set is not installed,
 * the example trains on synthetic striped images.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "clothes.h"

enum { BATCH = 128 };

/* Converts pixels to numbers from 0 to 1, and labels to i32. Runs on the pipeline's threads. */
static void scale(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "image", ch_div(ch_cast(ch_step_in(s, 0), CH_F32), ch_number(s, 255)));
    ch_step_out(s, "label", ch_cast(ch_step_in(s, 1), CH_I32));
}

static ch_layer *network(void)
{
    ch_layer_conv_options conv = {.padding = CH_PAD_SAME, .activation = CH_RELU};
    ch_layer             *layer[] = {ch_layer_conv2d(16, 3, 3, &conv),
                                     ch_layer_max_pool(2, 2, 0, 0, CH_PAD_VALID),
                                     ch_layer_conv2d(32, 3, 3, &conv),
                                     ch_layer_max_pool(2, 2, 0, 0, CH_PAD_VALID),
                                     ch_layer_flatten(),
                                     ch_layer_dense(128, &(ch_layer_dense_options){.activation = CH_RELU}),
                                     ch_layer_dense(CLASSES, NULL)};

    return ch_layer_sequential("net", 7, layer);
}

static int epochs_of(const char *text)
{
    char *end;
    long  n = strtol(text, &end, 10);

    want(n >= 1 && n <= 1000 && *end == '\0', "short, or 1 to 1000 epochs", text);
    return (int)n;
}

int main(int argc, char **argv)
{
    bool          brief = is_short(argc, argv);
    int           epochs = brief ? 1 : argc > 1 ? epochs_of(argv[1]) : 5;
    const char   *folder = argc > 2 ? argv[2] : FOLDER;
    pictures      train, test;
    ch_strategy  *st = NULL;
    ch_model     *m = NULL;
    ch_optimizer *adam = NULL;
    ch_history   *h = NULL, *result = NULL;
    ch_tensor    *guess = NULL;
    static char   text[8192];

    load(folder, "train", &train);
    load(folder, "t10k", &test);
    if (train.is_drawn || test.is_drawn)
        printf("Fashion-MNIST is not in %s.\n"
               "The example trains on synthetic striped images.\n",
               folder);
    ch_dataset *learn = ch_dataset_shuffle(ch_dataset_slices(2, train.t, NULL), 10000, NULL);
    ch_dataset *check = ch_dataset_slices(2, test.t, NULL);
    if (brief) {
        learn = ch_dataset_take(learn, 1000);
        check = ch_dataset_take(check, 500);
    }
    learn = ch_dataset_map(ch_dataset_batch(learn, BATCH, NULL), scale, NULL, NULL);
    check = ch_dataset_map(ch_dataset_batch(check, BATCH, NULL), scale, NULL, NULL);

    must(ch_strategy_mirrored(NULL, &st)); /* trains on every core */
    must(ch_model_new(
        st, network(),
        &(ch_model_options){.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, SIDE, SIDE, 1)}}},
        &m));
    /* The learning rate falls to 0 at the last step. */
    ch_schedule fall =
        ch_schedule_cosine(3e-3, (double)(epochs * ch_dataset_cardinality(learn)), 0);
    must(ch_optimizer_adam(3e-3, NULL, &(ch_optimizer_options){.schedule = &fall}, &adam));
    must(ch_compile(m, &(ch_compile_options){.optimizer = adam,
                                             .loss = ch_loss_sparse_categorical,
                                             .metrics = {ch_metric_sparse_accuracy()}}));
    must(ch_fit(m, (ch_data){.dataset = learn},
                &(ch_fit_options){.epochs = epochs,
                                  .validation = {.dataset = check},
                                  .progress = CH_PROGRESS_AUTO,
                                  .summary = true,
                                  .catch_interrupt = true},
                &h));
    ch_history_plot(h, "loss", 72, 10, text, sizeof(text));
    printf("\nloss\n%s\n", text);
    must(
        ch_predict(m, (ch_data){.dataset = check}, &(ch_evaluate_options){.steps = 1}, &guess));
    show(&test, guess);
    must(ch_evaluate(m, (ch_data){.dataset = check}, NULL, &result));
    printf("\ntest accuracy %.1f %%\n", 100 * ch_history_last(result, "sparse_accuracy"));
    puts("\nWhat to try next\n"
         "  COHORT_DEVICES=CPU=1 ./dev demo       one replica\n"
         "  COHORT_TRACE=trace.json ./dev demo    a trace for https://ui.perfetto.dev\n"
         "  doc/guide/first-model.md, and examples/README.md for the other programs");
    ch_history_unref(result);
    ch_tensor_unref(guess);
    ch_history_unref(h);
    ch_dataset_unref(learn);
    ch_dataset_unref(check);
    ch_optimizer_unref(adam);
    ch_model_unref(m);
    ch_strategy_unref(st);
    drop(&train);
    drop(&test);
    return 0;
}
