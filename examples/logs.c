/* examples/logs.c -- log files of a training: CSV, JSON, TensorBoard, a trace.
 *
 *     ./logs [short | FOLDER]
 *
 * Without a folder, the example prints the first lines of the files and removes them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <sys/stat.h>

#include "folder.h"
#include "points.h"

/* Prints the first lines of a file. Long lines are cut. */
static void show(const char *folder, const char *name, int lines)
{
    char  text[100];
    FILE *file = fopen(in_folder(folder, name), "r");

    want(file != NULL, "a file", name);
    printf("\n%s\n", name);
    for (int i = 0; i < lines && fgets(text, sizeof(text), file) != NULL; i++) {
        size_t n = strcspn(text, "\n");

        printf("  %.*s%s\n", (int)n, text, text[n] == '\n' ? "" : "...");
        while (text[n] != '\n' && fgets(text, sizeof(text), file) != NULL)
            n = strcspn(text, "\n");
    }
    fclose(file);
}

int main(int argc, char **argv)
{
    bool          is_kept = argc > 1 && !is_short(argc, argv);
    char          made[32] = "";
    const char   *folder = is_kept ? argv[1] : made;
    ch_callback  *callback[3] = {NULL};
    ch_tensor    *points[2];
    ch_strategy  *st = NULL;
    ch_model     *m;
    ch_optimizer *adam = NULL;
    ch_history   *h = NULL;
    char          text[8192];
    double        accuracy;

    if (is_kept)
        mkdir(folder, 0777);
    else
        make_folder(made);
    make_points(4000, 0, points);
    must(ch_strategy_mirrored(NULL, &st));
    m = new_network(st, 32, NULL);
    must(ch_optimizer_adam(0.01, NULL, NULL, &adam));
    compile_network(m, adam);

    must(ch_callback_csv_log(in_folder(folder, "epochs.csv"), NULL, &callback[0]));
    must(ch_callback_json_log(in_folder(folder, "steps.json"),
                              &(ch_callback_log_file_options){.every_steps = 50},
                              &callback[1]));
    must(ch_callback_tensorboard(
        in_folder(folder, "tensorboard"),
        &(ch_callback_tensorboard_options){.every_steps = 10, .histograms = 1}, &callback[2]));
    must(ch_fit(
        m, (ch_data){.n = 2, .array = points},
        &(ch_fit_options){.epochs = is_short(argc, argv) ? 3 : 10,
                          .validation_split = 0.2,
                          .n_callbacks = 3,
                          .callback = callback,
                          .progress = CH_PROGRESS_AUTO,
                          .catch_interrupt = true,
                          .trace = in_folder(folder, "trace.json")}, /* or set COHORT_TRACE */
        &h));
    accuracy = ch_history_last(h, "val_sparse_accuracy");

    show(folder, "epochs.csv", 4);
    show(folder, "steps.json", 4);
    show(folder, "trace.json", 4);
    ch_history_print(h, text, sizeof(text));
    printf("\nhistory (ch_history_last and others read it by name)\n%s", text);
    ch_history_print_time(h, text, sizeof(text));
    printf("\n%s", text);
    if (is_kept)
        printf("\nto view: tensorboard --logdir %s/tensorboard; %s/trace.json in "
               "https://ui.perfetto.dev\n",
               folder, folder);
    else
        drop_folder(made);

    ch_history_unref(h);
    for (int i = 0; i < 3; i++)
        ch_callback_unref(callback[i]);
    ch_optimizer_unref(adam);
    ch_model_unref(m);
    ch_strategy_unref(st);
    drop_points(points);
    return accuracy > 0.8 ? 0 : 1;
}
