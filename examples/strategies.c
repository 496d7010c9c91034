/* examples/strategies.c -- the same program under four strategies.
 *
 *     ./strategies [short] [default | one_device | mirrored | central_storage]
 *
 * Without a name, all strategies run in turn. They start with the same weights and read the
 * same batches, so their losses are equal except for rounding in the sums over replicas.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "points.h"

enum { POINTS = 4000, BATCH = 64 };

static const char *const names[] = {"default", "one_device", "mirrored", "central_storage"};

/* Creates a strategy. The rest of the file is independent of the choice. */
static ch_strategy *choose(const char *name)
{
    const char                *core[MOST_CORES];
    ch_central_storage_options cores = {.n_compute = name_cores(core), .compute = core};
    ch_strategy               *st = NULL; /* Default: everything on the current device */

    if (strcmp(name, "one_device") == 0)
        must(ch_strategy_one_device("CPU:0", &st));
    else if (strcmp(name, "mirrored") == 0)
        must(ch_strategy_mirrored(NULL, &st));
    else if (strcmp(name, "central_storage") == 0)
        must(ch_strategy_central_storage(&cores, &st));
    else
        want(strcmp(name, "default") == 0, "the name of a strategy", name);
    return st;
}

/* Returns the last loss. */
static double train(ch_strategy *st, ch_tensor **points, int epochs)
{
    ch_model      *m = new_network(st, 32, NULL);
    ch_optimizer  *adam = NULL;
    ch_history    *h = NULL;
    ch_value      *copies = NULL;
    ch_var *const *var;
    double         loss;

    must(ch_optimizer_adam(0.01, NULL, NULL, &adam));
    compile_network(m, adam);
    must(ch_fit(m, (ch_data){.n = 2, .array = points},
                &(ch_fit_options){.epochs = epochs,
                                  .batch = BATCH, /* rows for all replicas together */
                                  .progress = CH_PROGRESS_AUTO,
                                  .catch_interrupt = true},
                &h));
    loss = ch_history_last(h, "loss");
    ch_model_trainable(m, &var);
    must(ch_var_copies(var[0], &copies));
    printf("%-16s %8d %17d %9.5f %8.1f %%\n", ch_strategy_name(st), ch_strategy_replicas(st),
           ch_value_count(copies), loss, 100 * ch_history_last(h, "sparse_accuracy"));
    ch_value_unref(copies);
    ch_history_unref(h);
    ch_optimizer_unref(adam);
    ch_model_unref(m);
    return loss;
}

int main(int argc, char **argv)
{
    bool       brief = is_short(argc, argv), one = argc > 1 + brief;
    double     loss[4], far = 0;
    ch_tensor *points[2];

    make_points(POINTS, 0, points);
    puts("strategy         replicas  copies of weights      loss   accuracy");
    for (int i = 0; i < (one ? 1 : 4); i++) {
        ch_strategy *st = choose(one ? argv[1 + brief] : names[i]);

        loss[i] = train(st, points, brief ? 3 : 20);
        far = fabs(loss[i] - loss[0]) > far ? fabs(loss[i] - loss[0]) : far;
        ch_strategy_unref(st);
    }
    drop_points(points);
    return far < 0.01 ? 0 : 1;
}
