/* examples/mixed_precision.c -- 16-bit training: loss scale, accumulated gradients, averages.
 *
 *     ./mixed_precision [short] [f32 | bf16 | f16]
 *
 * The dtype is an option of the model; everything else is an option of the optimizer. The
 * variables have that dtype. If it has 16 bits, the optimizer also keeps f32 copies, so that
 * updates that are too small for 16 bits are not lost.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "points.h"

enum { POINTS = 4096, BATCH = 64, BATCHES = 4 };

int main(int argc, char **argv)
{
    bool        brief = is_short(argc, argv);
    int         epochs = brief ? 15 : 60;
    int         updates = epochs * (POINTS / (BATCH * BATCHES));
    ch_schedule rate = ch_schedule_warm_up(ch_schedule_cosine(0.02, updates, 0.05), 20);
    ch_optimizer_options opt = {.schedule = &rate,
                                .accumulate = BATCHES, /* batches for each update */
                                .clip_global_norm = 1,
                                .average = 0.98,
                                .nonfinite = CH_NONFINITE_SKIP};
    ch_dtype             dtype = CH_BF16;
    ch_tensor           *train[2], *test[2];
    ch_strategy         *st = NULL;
    ch_model            *m;
    ch_optimizer        *adamw = NULL;
    ch_history          *now = NULL, *averaged = NULL;
    int64_t              applied = 0, skipped = 0;
    double               scale = 0, accuracy;
    char                 text[2048];

    if (argc > 1 + brief)
        must(ch_dtype_parse(argv[argc - 1], &dtype));
    opt.dynamic_loss_scale = dtype == CH_F16; /* else small gradients would be 0 */
    make_points(POINTS, 0, train);
    make_points(1000, 0, test);
    must(ch_strategy_mirrored(NULL, &st));
    m = new_network(st, 64, &(ch_model_options){.dtype = dtype});
    must(ch_optimizer_adamw(0.02, NULL, &opt, &adamw));
    compile_network(m, adamw);
    ch_model_print(m, text, sizeof(text));
    fputs(text, stdout);
    must(ch_fit(m, (ch_data){.n = 2, .array = train},
                &(ch_fit_options){.epochs = epochs,
                                  .batch = BATCH,
                                  .progress = CH_PROGRESS_AUTO,
                                  .catch_interrupt = true},
                NULL));

    must(ch_evaluate(m, (ch_data){.n = 2, .array = test}, NULL, &now));
    must(ch_optimizer_swap_averages(adamw)); /* moving averages: less noise */
    must(ch_evaluate(m, (ch_data){.n = 2, .array = test}, NULL, &averaged));
    must(ch_optimizer_iterations(adamw, &applied));
    must(ch_optimizer_skipped(adamw, &skipped));
    must(ch_optimizer_loss_scale(adamw, &scale));
    accuracy = ch_history_last(averaged, "sparse_accuracy");
    printf("%lld updates, each of %d batches of %d rows; %lld skipped; loss scale %g\n",
           (long long)applied, BATCHES, BATCH, (long long)skipped, scale);
    printf("accuracy %.1f %%, with averaged variables %.1f %%\n",
           100 * ch_history_last(now, "sparse_accuracy"), 100 * accuracy);
    ch_history_unref(averaged);
    ch_history_unref(now);
    ch_optimizer_unref(adamw);
    ch_model_unref(m);
    ch_strategy_unref(st);
    drop_points(train);
    drop_points(test);
    return accuracy > 0.85 ? 0 : 1;
}
