/* bench/small.c -- short steps on two replicas, compared with a single device.
 *
 * A step that takes 20 to 200 us on a single device is too short to wake a thread. There
 * ch_strategy_mirrored should have little overhead. The limit is the same training on a single
 * device, with the same global batch. Cases with "shorter" or "longer" in their names are
 * outside of that range on the machine of doc/performance.md. Each case is measured twice: on
 * an idle machine, and while a process on each of two cores computes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* sched_setaffinity */
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "deal.h"
#include "must.h"

enum { CORES = 2, POINTS = 2048 };

/* ---- load ---- */

static pid_t hogs[CORES];

/* Pins the process to the i-th CPU that it may use. Otherwise both busy processes could stay on
 * the same core during a measurement, and the other core would be idle. */
static void keep_to_cpu(int i)
{
    cpu_set_t all, one;
    int       cpu = 0;

    if (sched_getaffinity(0, sizeof(all), &all) != 0 || CPU_COUNT(&all) <= i)
        return;
    while (!CPU_ISSET(cpu, &all) || i-- > 0)
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    (void)sched_setaffinity(0, sizeof(one), &one);
}

/* Starts a process on each core that computes without end, and stops it (SIGSTOP) until it is
 * needed. */
static void begin_load(void)
{
    for (int i = 0; i < CORES; i++) {
        hogs[i] = fork();
        if (hogs[i] < 0)
            exit(1);
        if (hogs[i] == 0) {
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            keep_to_cpu(i);
            for (volatile unsigned x = 0;; x++)
                ;
        }
        (void)kill(hogs[i], SIGSTOP);
    }
}

static void set_load(bool is_on)
{
    for (int i = 0; i < CORES; i++)
        (void)kill(hogs[i], is_on ? SIGCONT : SIGSTOP);
}

static void end_load(void)
{
    for (int i = 0; i < CORES; i++) {
        (void)kill(hogs[i], SIGKILL);
        (void)waitpid(hogs[i], NULL, 0);
    }
}

/* ---- training ---- */

typedef struct network {
    const char *name;
    int         n_in, n_hidden, n_out;
    int         rows; /* in the global batch */
} network;

typedef struct job {
    const network *net;
    ch_strategy   *strategy;
    ch_model      *model;
    ch_optimizer  *optimizer;
    ch_function   *step;
    ch_tuple      *batch;    /* for the loop */
    ch_tensor     *array[2]; /* for ch_fit */
} job;

static ch_tensor *numbers(ch_shape shape, unsigned seed)
{
    ch_tensor *t = NULL;
    float     *x;

    must(ch_tensor_new(CH_F32, shape, &t));
    x = ch_tensor_data_mut(t);
    for (int64_t i = 0; i < ch_tensor_count(t); i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / (1 << 23) - 1;
    }
    return t;
}

static ch_tensor *labels(int64_t n, int classes, unsigned seed)
{
    ch_tensor *t = NULL;
    int32_t   *x;

    must(ch_tensor_new(CH_I32, ch_shape_of(n), &t));
    x = ch_tensor_data_mut(t);
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (int32_t)((uint64_t)(seed >> 8) * (uint64_t)classes >> 24);
    }
    return t;
}

static void train(ch_step *s, void *arg)
{
    job           *j = arg;
    ch_node       *guess = ch_model_call(j->model, s, ch_step_in(s, 0), true);
    ch_node       *each = ch_loss_sparse_categorical(guess, ch_step_in(s, 1));
    ch_var *const *var;
    int            n = ch_model_trainable(j->model, &var);
    ch_node       *loss = ch_loss_average(each, NULL);

    ch_optimizer_minimize(j->optimizer, s, loss, n, var);
    ch_step_out(s, "loss", ch_all_reduce(CH_SUM, loss));
}

static void make_strategy(job *j, int replicas)
{
    if (replicas == 1)
        must(ch_strategy_one_device("CPU:0", &j->strategy));
    else
        must(ch_strategy_mirrored(NULL, &j->strategy));
}

static void make_model(job *j)
{
    ch_layer *layer[] = {
        ch_layer_dense(j->net->n_hidden, &(ch_layer_dense_options){.activation = CH_RELU}),
        ch_layer_dense(j->net->n_out, NULL)};

    must(ch_model_new(
        j->strategy, ch_layer_sequential("net", 2, layer),
        &(ch_model_options){.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, j->net->n_in)}}},
        &j->model));
    must(ch_optimizer_adam(1e-3, NULL, NULL, &j->optimizer));
    must(ch_compile(j->model, &(ch_compile_options){.optimizer = j->optimizer,
                                                    .loss = ch_loss_sparse_categorical,
                                                    .metrics = {ch_metric_sparse_accuracy()}}));
    must(ch_function_new("train", train, j, &j->step));
}

static void make_job(job *j, const network *net, int replicas)
{
    ch_value *v[2];

    *j = (job){.net = net};
    make_strategy(j, replicas);
    make_model(j);
    v[0] = deal(numbers(ch_shape_of(net->rows, net->n_in), 1), replicas);
    v[1] = deal(labels(net->rows, net->n_out, 2), replicas);
    must(ch_tuple_new(2, v, NULL, &j->batch));
    ch_value_unref(v[0]);
    ch_value_unref(v[1]);
    j->array[0] = numbers(ch_shape_of(POINTS, net->n_in), 3);
    j->array[1] = labels(POINTS, net->n_out, 4);
}

static void drop_job(job *j)
{
    ch_tensor_unref(j->array[0]);
    ch_tensor_unref(j->array[1]);
    ch_tuple_unref(j->batch);
    ch_function_unref(j->step);
    ch_optimizer_unref(j->optimizer);
    ch_model_unref(j->model);
    ch_strategy_unref(j->strategy);
}

static void by_step(void *arg, int64_t n)
{
    job *j = arg;

    while (n-- > 0)
        must(ch_strategy_run(j->strategy, j->step, j->batch, NULL));
}

static void by_fit(void *arg, int64_t n)
{
    job        *j = arg;
    ch_history *h = NULL;

    must(ch_fit(j->model, (ch_data){.n = 2, .array = j->array},
                &(ch_fit_options){.epochs = (int)n, .batch = j->net->rows}, &h));
    ch_history_unref(h);
}

static double loss_of(job *j)
{
    ch_tuple *out = NULL;
    double    loss = 0;

    must(ch_strategy_run(j->strategy, j->step, j->batch, &out));
    must(ch_tensor_item(ch_value_at(ch_tuple_get(out, "loss"), 0), &loss));
    ch_tuple_unref(out);
    return loss;
}

/* ---- both ---- */

/* Checks that two jobs with the same initial weights have the same losses. */
static bool agrees(const network *net, char *why, size_t size)
{
    job    one, two;
    double a, b;

    make_job(&one, net, 1);
    make_job(&two, net, CORES);
    by_step(&one, 4);
    by_step(&two, 4);
    a = loss_of(&one);
    b = loss_of(&two);
    drop_job(&one);
    drop_job(&two);
    if (fabs(a - b) <= 1e-4 * fabs(a))
        return true;
    snprintf(why, size, "the loss is %g on one device and %g on two", a, b);
    return false;
}

static bool check(void *arg, char *why, size_t size)
{
    return agrees(((job *)arg)->net, why, size);
}

static void measure(bench *b, const network *net, bool fits, bool is_busy)
{
    char name[96];
    job  one, two;

    snprintf(name, sizeof(name), "%s%s, %s", net->name, fits ? ", ch_fit" : "",
             is_busy ? "busy" : "idle");
    if (!bench_wants(b, name))
        return;
    make_job(&one, net, 1);
    make_job(&two, net, CORES);
    set_load(is_busy);
    bench_run(b, &(bench_case){.name = name,
                               .unit = "us/step",
                               .scale = fits ? 1e6 * net->rows / POINTS : 1e6,
                               .ours = {.run = fits ? by_fit : by_step, .arg = &two},
                               .limit = {.run = fits ? by_fit : by_step, .arg = &one},
                               .check = check});
    set_load(false);
    drop_job(&one);
    drop_job(&two);
}

int main(int argc, char **argv)
{
    static const network nets[] = {
        {"shorter: 2-32-2, 32 rows", 2, 32, 2, 32},
        {"table: 32-128-8, 64 rows", 32, 128, 8, 64},
        {"digits: 784-64-10, 32 rows", 784, 64, 10, 32},
        {"digits: 784-64-10, 64 rows", 784, 64, 10, 64},
        {"longer: 784-64-10, 128 rows", 784, 64, 10, 128},
    };
    bench *b = bench_open("small", argc, argv);

    begin_load();
    for (int busy = 0; busy < 2; busy++) {
        for (size_t i = 0; i < sizeof(nets) / sizeof(nets[0]); i++)
            measure(b, &nets[i], false, busy);
        for (int i = 0; i < 2; i++) /* the first is the README's program */
            measure(b, &nets[i], true, busy);
    }
    end_load();
    return bench_close(b);
}
