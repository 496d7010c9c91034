/* examples/train_evaluate.c -- training by steps, with evaluations; saves the best values.
 *
 *     ./train_evaluate [short]
 *
 * The training data is repeated without end. best.npz holds the variables by name; numpy can
 * read it too.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "folder.h"
#include "points.h"

enum { BATCH = 64 };

static ch_dataset *batches_of(int n, bool for_ever)
{
    ch_tensor  *points[2];
    ch_dataset *d;

    make_points(n, for_ever ? 0.1f : 0, points);
    d = ch_dataset_slices(2, points, NULL);
    if (for_ever)
        d = ch_dataset_repeat(ch_dataset_shuffle(d, n, NULL), CH_INFINITE);
    drop_points(points);
    return ch_dataset_batch(d, BATCH, NULL);
}

/* Sets the variables of a model to the values in a file. */
static void load(ch_model *m, const char *path)
{
    ch_tuple      *file = NULL;
    ch_var *const *var;
    int            n = ch_model_vars(m, &var);

    must(ch_npz_load(path, NULL, &file));
    for (int i = 0; i < n; i++) {
        ch_value *v = ch_tuple_get(file, ch_var_name(var[i]));

        want(v != NULL, "a variable of this name in the file", ch_var_name(var[i]));
        must(ch_var_set(var[i], ch_value_at(v, 0)));
        printf("  %s\n", ch_var_name(var[i]));
    }
    ch_tuple_unref(file);
}

int main(int argc, char **argv)
{
    bool          brief = is_short(argc, argv);
    ch_dataset   *train = batches_of(4000, true), *test = batches_of(1000, false);
    ch_strategy  *st = NULL;
    ch_model     *m, *again;
    ch_optimizer *adam = NULL;
    ch_history   *h = NULL, *after = NULL;
    char          folder[32], text[8192];
    double        best, loaded;
    int           which = 0;

    make_folder(folder);
    must(ch_strategy_mirrored(NULL, &st));
    m = new_network(st, 32, NULL);
    must(ch_optimizer_adam(0.01, NULL, NULL, &adam));
    compile_network(m, adam);
    must(
        ch_train_and_evaluate(m, (ch_data){.dataset = train}, (ch_data){.dataset = test},
                              &(ch_train_evaluate_options){.max_steps = brief ? 300 : 3000,
                                                           .evaluate_every = brief ? 50 : 250,
                                                           .export_best = folder,
                                                           .fit = {.progress = CH_PROGRESS_AUTO,
                                                                   .catch_interrupt = true}},
                              &h));
    ch_history_print(h, text, sizeof(text));
    best = ch_history_best(h, "val_loss", CH_GOAL_AUTO, &which);
    printf("%sevaluation %d was the best (loss %.4f)\n", text, which + 1, best);

    /* This part could be another program. The model needs the same layers, but no optimizer,
     * and may have any strategy. */
    again = new_network(NULL, 32, NULL);
    compile_network(again, NULL);
    printf("loaded variables\n");
    load(again, in_folder(folder, "best.npz"));
    must(ch_evaluate(again, (ch_data){.dataset = test}, NULL, &after));
    loaded = ch_history_last(after, "loss");
    printf("loss of the loaded model: %.4f\n", loaded);

    drop_folder(folder);
    ch_history_unref(after);
    ch_history_unref(h);
    ch_model_unref(again);
    ch_optimizer_unref(adam);
    ch_model_unref(m);
    ch_strategy_unref(st);
    ch_dataset_unref(train);
    ch_dataset_unref(test);
    return loaded - best < 1e-4 && best - loaded < 1e-4 && best < 0.4 ? 0 : 1;
}
