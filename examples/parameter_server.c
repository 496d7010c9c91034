/* examples/parameter_server.c -- two parameter servers and three workers; a worker fails.
 *
 *     ./parameter_server [short] [DIRECTORY]
 *
 * The coordinator kills a worker in epoch 2, whose steps the others run, and restarts it. Each
 * epoch is saved in DIRECTORY; evaluator.c evaluates it. Started again, the program goes on.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "points.h"

enum { POINTS = 4000, BATCH = 50, STEPS = POINTS / BATCH };

typedef struct job {
    ch_model     *model;
    ch_optimizer *optimizer;
    ch_metric    *accuracy;
} job;

/* Workers run this step on their next batch. */
static void train(ch_step *s, void *arg)
{
    job           *j = arg;
    ch_node       *truth = ch_step_in(s, 1);
    ch_node       *logits = ch_model_call(j->model, s, ch_step_in(s, 0), true);
    ch_node       *loss = ch_loss_average(ch_loss_sparse_categorical(logits, truth), NULL);
    ch_var *const *var;
    int            n = ch_model_trainable(j->model, &var);

    ch_optimizer_minimize(j->optimizer, s, loss, n, var);
    ch_metric_update(j->accuracy, s, truth, logits, NULL);
}

/* Every worker reads the whole dataset, in its own order. */
static ch_per_worker *new_dataset(ch_coordinator *c)
{
    ch_tensor     *points[2];
    ch_dataset    *d;
    ch_per_worker *each = NULL;

    make_points(POINTS, 0, points);
    d = ch_dataset_repeat(ch_dataset_shuffle(ch_dataset_slices(2, points, NULL), POINTS, NULL),
                          -1);
    d = ch_dataset_batch(d, BATCH, NULL);
    must(ch_coordinator_create_per_worker_dataset(c, d, &each));
    ch_dataset_unref(d);
    drop_points(points);
    return each;
}

/* Opens a directory of checkpoints, and restores the newest. */
static ch_checkpoint_manager *new_manager(const char *directory, const job *j,
                                          ch_function *step, ch_per_worker *data)
{
    ch_checkpoint         *c = NULL;
    ch_checkpoint_manager *m = NULL;

    must(ch_checkpoint_new(&c));
    must(ch_checkpoint_add_model(c, "model", j->model));
    must(ch_checkpoint_add_optimizer(c, "optimizer", j->optimizer));
    must(ch_checkpoint_add_function(c, "step", step));
    must(ch_checkpoint_add_per_worker(c, "data", data));
    must(ch_checkpoint_manager_new(c, directory, &(ch_manager_options){.max_to_keep = 3}, &m));
    must(ch_checkpoint_manager_restore(m, NULL, NULL));
    ch_checkpoint_unref(c);
    return m;
}

int main(int argc, char **argv)
{
    int                    brief = is_short(argc, argv), epochs = brief ? 12 : 30;
    ch_local_cluster      *cluster = NULL;
    ch_strategy           *st = NULL;
    ch_coordinator        *c = NULL;
    ch_per_worker         *data, *it = NULL;
    ch_function           *step = NULL;
    ch_checkpoint_manager *manager = NULL;
    job                    j = {NULL};
    int64_t                updates = 0;
    double                 accuracy;

    must(ch_cluster_local(&(ch_local_cluster_options){.ps = 2, .workers = 3}, &cluster));
    must(ch_strategy_parameter_server(ch_local_cluster_resolver(cluster), NULL, &st));
    must(ch_coordinator_new(st, NULL, &c));
    data = new_dataset(c);
    j.model = new_network(st, 32, NULL);
    must(ch_optimizer_adam(0.003, NULL, NULL, &j.optimizer));
    must(ch_metric_new(st, ch_metric_sparse_accuracy(), &j.accuracy));
    must(ch_function_new("train", train, &j, &step));
    if (argc > 1 + brief)
        manager = new_manager(argv[1 + brief], &j, step, data);
    for (int epoch = 1 + (int)(ch_function_runs(step) / STEPS); epoch <= epochs; epoch++) {
        must(ch_per_worker_iterate(data, &it)); /* a new iterator on every worker */
        for (int i = 0; i < STEPS; i++) {       /* returns before the step has run */
            must(ch_coordinator_schedule(c, step, &(ch_arguments){.n_each = 1, .each = &it},
                                         NULL));
            if (epoch == 2 && i == STEPS / 2)
                must(ch_local_cluster_kill(cluster, "worker", 1));
        }
        must(ch_coordinator_join(c)); /* waits until all steps have run */
        must(ch_metric_result(j.accuracy, &accuracy));
        must(ch_metric_reset(j.accuracy));
        printf("epoch %d: accuracy %.1f %%\n", epoch, 100 * accuracy);
        ch_per_worker_unref(it);
        if (manager != NULL)
            must(ch_checkpoint_manager_save(manager, false, NULL));
        if (epoch == 2)
            must(ch_local_cluster_restart(cluster, "worker", 1));
    }
    must(ch_optimizer_iterations(j.optimizer, &updates));
    ch_checkpoint_manager_unref(manager);
    ch_function_unref(step);
    ch_metric_unref(j.accuracy);
    ch_optimizer_unref(j.optimizer);
    ch_model_unref(j.model);
    ch_per_worker_unref(data);
    ch_coordinator_unref(c);
    ch_strategy_unref(st);
    ch_local_cluster_unref(cluster);
    return updates == epochs * STEPS ? 0 : 1; /* every update was applied exactly once */
}
