/* bench/fit.c -- the overhead of ch_fit over a hand-written loop.
 *
 * A step takes about 1 ms on two replicas, and an epoch has 1000 steps. The limit is a loop
 * over the same data that gets a batch, runs the step, and reads loss and accuracy at the end
 * of the epoch. The last row is the share of the wall-clock time that the time table of a fit
 * accounts for. The struct `job` holds the model and the options of both variants.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench.h"
#include "must.h"

enum {
    ROWS = 128,
    IN = 784,
    HIDDEN = 256,
    OUT = 10,
    BATCHES = 50,
    STEPS = 1000,
    QUICK_STEPS = 20
};

typedef struct job {
    int           steps;
    ch_strategy  *strategy;
    ch_dataset   *data;
    ch_model     *model;
    ch_optimizer *optimizer;
    /* Used by ch_fit. */
    ch_progress  progress;
    int          n_callbacks;
    ch_callback *callback[1];
    /* Used by the loop. */
    ch_function *step;
    ch_metric   *loss, *accuracy;
    double       is; /* loss of the last epoch */
} job;

/* ---- the loop ---- */

static void train(ch_step *s, void *arg)
{
    job           *j = arg;
    ch_node       *x = ch_step_in(s, 0), *y = ch_step_in(s, 1);
    ch_node       *guess = ch_model_call(j->model, s, x, true);
    ch_node       *each = ch_loss_sparse_categorical(guess, y);
    ch_var *const *var;
    int            n = ch_model_trainable(j->model, &var);

    ch_metric_update(j->loss, s, NULL, each, NULL);
    ch_metric_update(j->accuracy, s, y, guess, NULL);
    ch_optimizer_minimize(j->optimizer, s, ch_loss_average(each, NULL), n, var);
}

static void run_epoch(job *j, ch_iterator *it)
{
    double accuracy = 0;

    must(ch_metric_reset(j->loss));
    must(ch_metric_reset(j->accuracy));
    for (int i = 0; i < j->steps; i++) {
        ch_tuple *batch = NULL;

        must(ch_iterator_next(it, &batch));
        must(ch_strategy_run(j->strategy, j->step, batch, NULL));
        ch_tuple_unref(batch);
    }
    must(ch_metric_result(j->loss, &j->is));
    must(ch_metric_result(j->accuracy, &accuracy));
}

static void by_hand(void *arg, int64_t n)
{
    job         *j = arg;
    ch_iterator *it = NULL;

    must(ch_strategy_distribute_dataset(j->strategy, j->data, NULL, &it));
    while (n-- > 0)
        run_epoch(j, it);
    ch_iterator_unref(it);
}

/* ---- ch_fit ---- */

static void by_fit(void *arg, int64_t n)
{
    job        *j = arg;
    ch_history *h = NULL;

    must(ch_fit(j->model, (ch_data){.dataset = j->data},
                &(ch_fit_options){.epochs = (int)n,
                                  .steps_per_epoch = j->steps,
                                  .progress = j->progress,
                                  .n_callbacks = j->n_callbacks,
                                  .callback = j->callback},
                &h));
    j->is = ch_history_last(h, "loss");
    ch_history_unref(h);
}

/* A callback that runs after each step. */
static ch_status look(ch_training *t, ch_event event, void *arg)
{
    int64_t *steps = arg;

    (void)t;
    *steps += event == CH_ON_STEP;
    return CH_OK;
}

/* ---- both ---- */

static float *numbers(size_t n, unsigned seed)
{
    float *x = malloc(n * sizeof(*x));

    if (x == NULL)
        exit(1);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / (1 << 24);
    }
    return x;
}

static ch_dataset *make_data(void)
{
    size_t     n = (size_t)BATCHES * ROWS;
    float     *x = numbers(n * IN, 1), *label = numbers(n, 2);
    int32_t   *y = malloc(n * sizeof(*y));
    ch_tensor *t[2] = {NULL, NULL};

    if (y == NULL)
        exit(1);
    for (size_t i = 0; i < n; i++)
        y[i] = (int32_t)(label[i] * OUT);
    must(ch_tensor_copy_of(CH_F32, ch_shape_of((int64_t)n, IN), x, &t[0]));
    must(ch_tensor_copy_of(CH_I32, ch_shape_of((int64_t)n), y, &t[1]));
    free(x);
    free(y);
    free(label);

    ch_dataset *d = ch_dataset_slices(2, t, NULL);

    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    return ch_dataset_repeat(ch_dataset_batch(d, ROWS, NULL), -1);
}

static void make_job(job *j, int steps)
{
    ch_layer *layer[] = {
        ch_layer_dense(HIDDEN, &(ch_layer_dense_options){.activation = CH_RELU}),
        ch_layer_dense(OUT, NULL)};

    *j = (job){.steps = steps, .data = make_data()};
    must(ch_strategy_mirrored(NULL, &j->strategy));
    must(ch_model_new(
        j->strategy, ch_layer_sequential("net", 2, layer),
        &(ch_model_options){.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, IN)}}},
        &j->model));
    must(ch_optimizer_sgd(1e-3, NULL, NULL, &j->optimizer));
    must(ch_compile(j->model, &(ch_compile_options){.optimizer = j->optimizer,
                                                    .loss = ch_loss_sparse_categorical,
                                                    .metrics = {ch_metric_sparse_accuracy()}}));
    must(ch_metric_new(j->strategy, ch_metric_named(ch_metric_mean(), "loss"), &j->loss));
    must(ch_metric_new(j->strategy, ch_metric_sparse_accuracy(), &j->accuracy));
    must(ch_function_new("train", train, j, &j->step));
}

static void drop_job(job *j)
{
    ch_function_unref(j->step);
    ch_metric_unref(j->loss);
    ch_metric_unref(j->accuracy);
    ch_optimizer_unref(j->optimizer);
    ch_model_unref(j->model);
    ch_dataset_unref(j->data);
    ch_strategy_unref(j->strategy);
    ch_callback_unref(j->callback[0]);
}

/* Checks that both train: the loss of the loop is close to the loss of the ch_fit before it. */
static bool check(void *arg, char *why, size_t size)
{
    job   *j = arg;
    double fitted;

    by_fit(j, 1);
    fitted = j->is;
    by_hand(j, 1);
    if (fabs(fitted - j->is) < 0.05 * fitted)
        return true;
    snprintf(why, size, "ch_fit ends with a loss of %g and the loop with %g", fitted, j->is);
    return false;
}

static void measure(bench *b, job *j, const char *name)
{
    bench_run(b, &(bench_case){.name = name,
                               .unit = "ms/step",
                               .scale = 1e3 / j->steps,
                               .ours = {.run = by_fit, .arg = j},
                               .limit = {.run = by_hand, .arg = j},
                               .check = check});
}

/* Compares the sum of the time table with the time measured outside of ch_fit. */
static void measure_table(bench *b, job *j)
{
    const char *name = "rows of the time table, of the time on the wall";
    ch_history *h = NULL;
    double      begin = bench_now(), sum = 0;

    if (!bench_wants(b, name))
        return;
    must(ch_fit(j->model, (ch_data){.dataset = j->data},
                &(ch_fit_options){.epochs = 1, .steps_per_epoch = j->steps}, &h));
    begin = bench_now() - begin;
    for (int i = 0; i < CH_TIMES; i++)
        sum += ch_history_time(h).seconds[i];
    bench_add(b, name, "of 1", BENCH_HIGHER, sum / begin, 1);
    ch_history_unref(h);
}

/* Redirects stderr to /dev/null, because of progress lines. Returns the old descriptor. */
static int hide_errors(void)
{
    int kept = dup(STDERR_FILENO), nowhere = open("/dev/null", O_WRONLY);

    if (kept < 0 || nowhere < 0 || dup2(nowhere, STDERR_FILENO) < 0)
        exit(1);
    close(nowhere);
    return kept;
}

int main(int argc, char **argv)
{
    bench  *b = bench_open("fit", argc, argv);
    job     j;
    int64_t seen = 0;
    int     kept;

    make_job(&j, bench_is_quick(b) ? QUICK_STEPS : STEPS);
    must(ch_callback_of(CH_ON_STEP, look, &seen, &j.callback[0]));
    measure(b, &j, "ch_fit, of the bare loop");
    measure_table(b, &j);
    j.n_callbacks = 1;
    j.progress = CH_PROGRESS_BAR;
    kept = hide_errors();
    measure(b, &j, "with a live line and a function after each step");
    (void)dup2(kept, STDERR_FILENO);
    close(kept);
    drop_job(&j);
    return bench_close(b);
}
