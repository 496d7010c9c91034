/* test/save/resumable.c -- trainings that test/save/resume.py kills and starts again.
 *
 *     resumable fit|fit-servers|loop|servers DIRECTORY [short]
 *
 * fit: ch_fit with a backup callback, early stopping, plateau and a CSV file, on two replicas.
 * fit-servers: the same on parameter servers, in rounds of ROUND steps that three workers run.
 * loop: a custom loop with a manager. servers: a custom loop on such servers. At its end, a
 * training writes DIRECTORY/result: the bytes of all variables, and its numbers.
 *
 * After SIGTERM each training saves and exits with CH_EXIT_RESTART. DIRECTORY/steps gets a line
 * with the number of each step when it has run, or when it was scheduled. This file belongs to
 * no checkpoint, so after SIGTERM it shows whether a step was lost or done twice.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "../../examples/clothes.h"

enum { BATCH = 64, WIDTH = 64, ROWS = 4000, ROUND = 4 };

typedef struct job {
    const char   *directory;
    bool          is_short;
    bool          has_servers;
    pictures      train, test;
    ch_strategy  *st;
    ch_model     *model;
    ch_optimizer *adam;
    ch_metric    *loss;
    ch_function  *step;
    int           steps; /* descriptor of DIRECTORY/steps */
} job;

static ch_layer *new_network(void)
{
    ch_layer *layer[] = {
        ch_layer_flatten(),
        ch_layer_dense(WIDTH, &(ch_layer_dense_options){.activation = CH_RELU}),
        ch_layer_dropout(0.3), ch_layer_dense(CLASSES, NULL)};

    return ch_layer_sequential("net", 4, layer);
}

static void begin_job(job *j, ch_strategy *st)
{
    ch_model_options opt = {.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, SIDE, SIDE, 1)}}};

    j->st = st;
    must(ch_model_new(st, new_network(), &opt, &j->model));
    must(ch_optimizer_adam(0.002, NULL, NULL, &j->adam));
}

static ch_strategy *new_mirrored(void)
{
    static const char *const device[] = {"GPU:0", "GPU:1"};
    ch_strategy             *st = NULL;

    must(ch_strategy_mirrored(&(ch_mirrored_options){.n_devices = 2, .device = device}, &st));
    return st;
}

/* Two parameter servers and three workers, which run steps in rounds. */
static ch_strategy *new_servers(ch_coordinator **coordinator)
{
    ch_local_cluster *cluster = NULL;
    ch_strategy      *st = NULL;

    must(ch_cluster_local(&(ch_local_cluster_options){.ps = 2, .workers = 3}, &cluster));
    must(ch_strategy_parameter_server(
        ch_local_cluster_resolver(cluster),
        &(ch_parameter_server_options){.partitioner = ch_partitioner_fixed(2)}, &st));
    must(ch_coordinator_new(
        st, &(ch_coordinator_options){.mode = CH_SYNCHRONOUS, .round = ROUND}, coordinator));
    return st;
}

static void scale(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, "image", ch_div(ch_cast(ch_step_in(s, 0), CH_F32), ch_number(s, 255)));
    ch_step_out(s, "label", ch_cast(ch_step_in(s, 1), CH_I32));
}

/* The first rows of the data, shuffled. */
static ch_dataset *new_dataset(const pictures *p, bool is_short, bool shuffle)
{
    ch_tensor  *t[2] = {NULL};
    int64_t     rows = is_short ? ROWS / 4 : ROWS;
    ch_dataset *d;

    for (int i = 0; i < 2; i++)
        must(ch_tensor_rows(p->t[i], 0, rows, &t[i]));
    d = ch_dataset_slices(2, t, NULL);
    if (shuffle)
        d = ch_dataset_shuffle(d, (int)rows / 2, NULL);
    for (int i = 0; i < 2; i++)
        ch_tensor_unref(t[i]);
    return ch_dataset_map(ch_dataset_batch(d, BATCH, NULL), scale, NULL, NULL);
}

static FILE *open_result(const job *j)
{
    char  path[600];
    FILE *f;

    snprintf(path, sizeof(path), "%s/result", j->directory);
    f = fopen(path, "wb");
    if (f == NULL)
        exit(1);
    return f;
}

static void write_vars(FILE *f, int n, ch_var *const *var)
{
    for (int i = 0; i < n; i++) {
        ch_tensor *t = NULL;

        must(ch_var_get(var[i], &t));
        fwrite(ch_tensor_data(t), 1, ch_tensor_bytes(t), f);
        ch_tensor_unref(t);
    }
}

static void write_result(job *j, const ch_history *h)
{
    FILE          *f = open_result(j);
    ch_var *const *var;
    const double  *curve;
    int64_t        iterations = 0;
    int            n;

    n = ch_model_vars(j->model, &var);
    write_vars(f, n, var);
    n = ch_optimizer_vars(j->adam, &var);
    write_vars(f, n, var);
    must(ch_optimizer_iterations(j->adam, &iterations));
    fprintf(f, "\niterations %lld\n", (long long)iterations);
    for (int i = 0; h != NULL && i < ch_history_count(h); i++)
        for (int e = 0; e < ch_history_epochs(h); e++)
            fprintf(f, "%s %a\n", ch_history_name(h, i),
                    ch_history_at(h, ch_history_name(h, i), e));
    /* On servers the curve depends on how many steps have ended at each of its points. */
    n = h != NULL && !j->has_servers ? ch_history_curve(h, &curve) : 0;
    for (int i = 0; i < n; i++)
        fprintf(f, "curve %a\n", curve[i]);
    fclose(f);
}

/* Appends the number of a step to DIRECTORY/steps. */
static void note_step(const job *j, int64_t step)
{
    char line[32];
    int  n = snprintf(line, sizeof(line), "%lld\n", (long long)step);

    if (write(j->steps, line, (size_t)n) != n)
        exit(1);
}

/* ---- fit ---- */

static ch_status note_step_of_fit(ch_training *t, ch_event event, void *arg)
{
    (void)event;
    note_step(arg, ch_training_step(t));
    return CH_OK;
}

static int fit(job *j, ch_strategy *st)
{
    ch_callback *callback[5] = {NULL};
    ch_history  *h = NULL;
    ch_dataset  *train = new_dataset(&j->train, j->is_short, true);
    ch_dataset  *test = new_dataset(&j->test, true, false);
    char         log[600];
    ch_status    rc;

    begin_job(j, st);
    must(ch_compile(j->model, &(ch_compile_options){.optimizer = j->adam,
                                                    .loss = ch_loss_sparse_categorical,
                                                    .metrics = {ch_metric_sparse_accuracy()}}));
    snprintf(log, sizeof(log), "%s/log.csv", j->directory);
    must(ch_callback_backup(
        j->directory, &(ch_backup_options){.every_steps = 7, .max_to_keep = 2, .signals = true},
        &callback[0]));
    must(ch_callback_early_stopping(
        &(ch_callback_early_stopping_options){.patience = 2, .restore_best = true},
        &callback[1]));
    must(ch_callback_reduce_on_plateau(
        &(ch_callback_plateau_options){.factor = 0.5, .patience = 1, .min_delta = 0.01},
        &callback[2]));
    must(ch_callback_csv_log(log, NULL, &callback[3]));
    must(ch_callback_of(CH_ON_STEP, note_step_of_fit, j, &callback[4]));
    rc = ch_fit(j->model, (ch_data){.dataset = train},
                &(ch_fit_options){.epochs = j->is_short ? 5 : 8,
                                  .validation = {.dataset = test},
                                  .n_callbacks = 5,
                                  .callback = callback},
                &h);
    if (rc == CH_CANCELLED) {
        fprintf(stderr, "%s\n", ch_error_message());
        return CH_EXIT_RESTART;
    }
    must(rc);
    write_result(j, h);
    return 0;
}

/* ---- custom loops ---- */

static volatile sig_atomic_t is_terminated;

static void terminate(int sig)
{
    (void)sig;
    is_terminated = 1;
}

static void train(ch_step *s, void *arg)
{
    job           *j = arg;
    ch_node       *logits = ch_model_call(j->model, s, ch_step_in(s, 0), true);
    ch_node       *each = ch_loss_sparse_categorical(logits, ch_step_in(s, 1));
    ch_var *const *var;
    int            n = ch_model_trainable(j->model, &var);

    ch_optimizer_minimize(j->adam, s, ch_loss_average(each, NULL), n, var);
    ch_metric_update(j->loss, s, NULL, each, NULL);
}

/* Saves the state after SIGTERM. Returns the exit code. */
static int save_and_end(ch_checkpoint_manager *m)
{
    must(ch_checkpoint_manager_save(m, true, NULL));
    ch_checkpoint_manager_unref(m); /* waits for the save */
    return CH_EXIT_RESTART;
}

static void begin_loop(job *j, ch_strategy *st, ch_checkpoint **c)
{
    signal(SIGTERM, terminate);
    begin_job(j, st);
    must(ch_metric_new(st, ch_metric_named(ch_metric_mean(), "loss"), &j->loss));
    must(ch_function_new("train", train, j, &j->step));
    must(ch_checkpoint_new(c));
    must(ch_checkpoint_add_model(*c, "model", j->model));
    must(ch_checkpoint_add_optimizer(*c, "optimizer", j->adam));
    must(ch_checkpoint_add_metric(*c, "loss", j->loss));
    must(ch_checkpoint_add_function(*c, "step", j->step));
}

static int loop(job *j)
{
    int                    steps = j->is_short ? 75 : 600;
    ch_dataset            *d = ch_dataset_repeat(new_dataset(&j->train, j->is_short, true), -1);
    ch_iterator           *it = NULL;
    ch_checkpoint         *c = NULL;
    ch_checkpoint_manager *m = NULL;

    begin_loop(j, new_mirrored(), &c);
    must(ch_strategy_distribute_dataset(j->st, d, NULL, &it));
    must(ch_checkpoint_add_iterator(c, "data", it));
    must(ch_checkpoint_manager_new(c, j->directory, &(ch_manager_options){.max_to_keep = 2},
                                   &m));
    must(ch_checkpoint_manager_restore(m, NULL, NULL));
    while (ch_function_runs(j->step) < steps) {
        ch_tuple *batch = NULL;

        must(ch_iterator_get_next(it, &batch));
        must(ch_strategy_run(j->st, j->step, batch, NULL));
        ch_tuple_unref(batch);
        note_step(j, ch_function_runs(j->step));
        if (is_terminated)
            return save_and_end(m);
        if (ch_function_runs(j->step) % 5 == 0)
            must(ch_checkpoint_manager_save(m, false, NULL));
    }
    write_result(j, NULL);
    ch_checkpoint_manager_unref(m);
    return 0;
}

static int servers(job *j)
{
    int                    rounds = j->is_short ? 20 : 120;
    ch_coordinator        *coordinator = NULL;
    ch_dataset            *d = ch_dataset_repeat(new_dataset(&j->train, j->is_short, true), -1);
    ch_per_worker         *data = NULL, *it = NULL;
    ch_checkpoint         *c = NULL;
    ch_checkpoint_manager *m = NULL;

    begin_loop(j, new_servers(&coordinator), &c);
    must(ch_coordinator_create_per_worker_dataset(coordinator, d, &data));
    must(ch_per_worker_iterate(data, &it));
    must(ch_checkpoint_add_per_worker(c, "data", it));
    must(ch_checkpoint_manager_new(c, j->directory, &(ch_manager_options){.max_to_keep = 2},
                                   &m));
    must(ch_checkpoint_manager_restore(m, NULL, NULL));
    while (ch_function_runs(j->step) < ROUND * rounds) {
        must(ch_coordinator_schedule(coordinator, j->step,
                                     &(ch_arguments){.n_each = 1, .each = &it}, NULL));
        note_step(j, ch_function_runs(j->step));
        if (is_terminated && ch_function_runs(j->step) % ROUND == 0) {
            must(ch_coordinator_join(coordinator));
            return save_and_end(m);
        }
        if (ch_function_runs(j->step) % (2 * ROUND) == 0)
            must(ch_checkpoint_manager_save(m, false, NULL));
    }
    /* The saves above may have been cut while steps were in the queue, so the last is made here. */
    must(ch_coordinator_join(coordinator));
    must(ch_checkpoint_manager_save(m, true, NULL));
    write_result(j, NULL);
    ch_checkpoint_manager_unref(m);
    return 0;
}

int main(int argc, char **argv)
{
    job             j = {.directory = argc > 2 ? argv[2] : "", .is_short = argc > 3};
    ch_coordinator *coordinator = NULL;
    char            path[600];

    if (argc < 3)
        return 2;
    must(ch_devices_configure(&(ch_devices_options){.spec = "GPU=2"}));
    if (j.is_short) { /* reading the data would take longer than the training */
        draw(&j.train);
        draw(&j.test);
    } else {
        load(FOLDER, "train", &j.train);
        load(FOLDER, "t10k", &j.test);
    }
    snprintf(path, sizeof(path), "%s/steps", j.directory);
    j.steps = open(path, O_WRONLY | O_APPEND | O_CREAT, 0666);
    if (j.steps < 0)
        return 1;
    if (strcmp(argv[1], "fit") == 0)
        return fit(&j, new_mirrored());
    j.has_servers = strcmp(argv[1], "loop") != 0;
    if (strcmp(argv[1], "fit-servers") == 0)
        return fit(&j, new_servers(&coordinator));
    return strcmp(argv[1], "loop") == 0 ? loop(&j) : servers(&j);
}
