/* bench/predict.c -- predictions of a single row: the overhead of ch_predict, two threads.
 *
 * The limit of the first case is ch_strategy_run of the model's forward step on the same row.
 * In the second case two threads predict, each with its own model and device. The peer is a
 * single thread that makes as many predictions. The limit is two processes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench.h"
#include "must.h"

enum { IN = 16, HIDDEN = 64, OUT = 4 };

typedef struct job {
    ch_strategy *strategy;
    ch_model    *model;
    ch_function *step;
    ch_tensor   *row;
    ch_tuple    *batch;
} job;

static void forward(ch_step *s, void *arg)
{
    ch_step_out(s, "y", ch_model_call(((job *)arg)->model, s, ch_step_in(s, 0), false));
}

static void make_job(job *j, const char *device)
{
    ch_layer *layer[] = {
        ch_layer_dense(HIDDEN, &(ch_layer_dense_options){.activation = CH_RELU}),
        ch_layer_dense(OUT, NULL)};

    *j = (job){0};
    must(ch_strategy_one_device(device, &j->strategy));
    must(ch_model_new(
        j->strategy, ch_layer_sequential("net", 2, layer),
        &(ch_model_options){.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, IN)}}},
        &j->model));
    must(ch_compile(j->model, &(ch_compile_options){.loss = ch_loss_sparse_categorical}));
    must(ch_function_new("forward", forward, j, &j->step));
    must(ch_tensor_new(CH_F32, ch_shape_of(1, IN), &j->row));
    for (int i = 0; i < IN; i++)
        ((float *)ch_tensor_data_mut(j->row))[i] = (float)i / IN;
    must(ch_tuple_of(1, &j->row, &j->batch));
}

static void drop_job(job *j)
{
    ch_tuple_unref(j->batch);
    ch_tensor_unref(j->row);
    ch_function_unref(j->step);
    ch_model_unref(j->model);
    ch_strategy_unref(j->strategy);
}

static void by_predict(void *arg, int64_t n)
{
    job *j = arg;

    while (n-- > 0) {
        ch_tensor *y = NULL;

        must(ch_predict(j->model, (ch_data){.n = 1, .array = &j->row}, NULL, &y));
        ch_tensor_unref(y);
    }
}

static void by_run(void *arg, int64_t n)
{
    job *j = arg;

    while (n-- > 0) {
        ch_tuple *out = NULL;

        must(ch_strategy_run(j->strategy, j->step, j->batch, &out));
        ch_tuple_unref(out);
    }
}

/* Makes 2 n predictions on this thread. */
static void by_one(void *arg, int64_t n)
{
    by_predict(arg, 2 * n);
}

/* ---- a second thread and a second process, which wait for requests ---- */

/* Pipes to a helper and back. A request is the number of predictions to make. The reply is the
 * same number. */
typedef struct helper {
    job *job;
    int  order[2], answer[2];
} helper;

static helper in_thread, in_process;

/* Reads requests and makes the predictions, until the process ends. */
static void *serve(void *arg)
{
    helper *h = arg;
    int64_t n;

    while (read(h->order[0], &n, sizeof(n)) == sizeof(n)) {
        by_predict(h->job, n);
        if (write(h->answer[1], &n, sizeof(n)) != sizeof(n))
            break;
    }
    return NULL;
}

static void begin_thread(job *j)
{
    pthread_t thread;

    in_thread.job = j;
    if (pipe(in_thread.order) != 0 || pipe(in_thread.answer) != 0 ||
        pthread_create(&thread, NULL, serve, &in_thread) != 0)
        exit(1);
    (void)pthread_detach(thread);
}

/* Starts the process. Must be called before the first use of a device, because fork does not
 * copy the device's threads. */
static void begin_process(void)
{
    pid_t child;

    if (pipe(in_process.order) != 0 || pipe(in_process.answer) != 0 || (child = fork()) < 0)
        exit(1);
    if (child == 0) {
        job j;

        close(in_process.order[1]);
        make_job(&j, "CPU:0");
        in_process.job = &j;
        serve(&in_process);
        _exit(0);
    }
}

/* Makes n predictions on a helper and n on this thread, at the same time. */
static void by_both(helper *h, job *j, int64_t n)
{
    if (write(h->order[1], &n, sizeof(n)) != sizeof(n))
        exit(1);
    by_predict(j, n);
    if (read(h->answer[0], &n, sizeof(n)) != sizeof(n))
        exit(1);
}

static void by_two(void *arg, int64_t n)
{
    by_both(&in_thread, arg, n);
}

static void by_processes(void *arg, int64_t n)
{
    by_both(&in_process, arg, n);
}

int main(int argc, char **argv)
{
    bench *b = bench_open("predict", argc, argv);
    job    j[2];

    begin_process();
    make_job(&j[0], "CPU:0");
    make_job(&j[1], ch_device_count("CPU") > 1 ? "CPU:1" : "CPU:0");
    begin_thread(&j[1]);
    bench_run(b, &(bench_case){.name = "one row, of ch_strategy_run",
                               .unit = "us",
                               .scale = 1e6,
                               .ours = {.run = by_predict, .arg = &j[0]},
                               .limit = {.run = by_run, .arg = &j[0]}});
    bench_run(b, &(bench_case){.name = "two threads, to one thread",
                               .unit = "us/row",
                               .scale = 1e6 / 2,
                               .ours = {.run = by_two, .arg = &j[0]},
                               .peer = {{"one thread", .run = by_one, .arg = &j[0]}},
                               .limit = {.run = by_processes, .arg = &j[0]}});
    drop_job(&j[0]);
    drop_job(&j[1]);
    return bench_close(b);
}
