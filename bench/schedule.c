/* bench/schedule.c -- steps that a coordinator schedules on two workers: empty, or 100 us.
 *
 * The limit of the steps of about 100 us is two threads that run the same step without a
 * coordinator. A ratio of 1.00 means that both workers are always busy.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>

#include "bench.h"
#include "must.h"

enum { WORKERS = 2, WIDTH = 96, MOST = 64 };

typedef struct job {
    ch_local_cluster *cluster;
    ch_strategy      *st, *own[WORKERS];
    ch_coordinator   *c;
    ch_function      *f, *own_f[WORKERS];
    ch_tuple         *in, *own_in[WORKERS];
    int               n_products;
} job;

/* Records n_products matrix products, and no variable. */
static void work(ch_step *s, void *arg)
{
    const job *j = arg;
    ch_node   *x = j->n_products > 0 ? ch_step_in(s, 0) : NULL, *y = x;

    for (int i = 0; i < j->n_products;
         i++) /* the inner size of the first product is a symbol */
        y = ch_matmul(y, i == 0, i == 0 ? x : y, false);
    if (y != NULL)
        ch_step_out(s, "sum", ch_sum_all(y));
}

static void run_scheduled(void *arg, int64_t n)
{
    job *j = arg;

    for (int64_t i = 0; i < n; i++)
        must(ch_coordinator_schedule(j->c, j->f, &(ch_arguments){.in = j->in}, NULL));
    must(ch_coordinator_join(j->c));
}

/* ---- the limit ---- */

typedef struct half {
    job    *j;
    int     i;
    int64_t n;
} half;

static void *run_half(void *arg)
{
    half *h = arg;

    for (int64_t i = 0; i < h->n; i++)
        must(ch_strategy_run(h->j->own[h->i], h->j->own_f[h->i], h->j->own_in[h->i], NULL));
    return NULL;
}

static void run_alone(void *arg, int64_t n)
{
    half      h[WORKERS];
    pthread_t other;

    for (int i = 0; i < WORKERS; i++)
        h[i] = (half){arg, i, n / WORKERS + (i < n % WORKERS)};
    if (pthread_create(&other, NULL, run_half, &h[1]) != 0)
        exit(1);
    (void)run_half(&h[0]);
    pthread_join(other, NULL);
}

/* ---- a job ---- */

static ch_tuple *square(ch_device *d)
{
    ch_tensor *t = NULL;
    ch_tuple  *in = NULL;

    must(ch_tensor_new_on(d, CH_F32, ch_shape_of(WIDTH, WIDTH), &t));
    for (int i = 0; i < WIDTH * WIDTH; i++)
        ((float *)ch_tensor_data_mut(t))[i] = i % WIDTH == i / WIDTH ? 1 : 0;
    must(ch_tuple_of(1, &t, &in));
    ch_tensor_unref(t);
    return in;
}

static double time_of(const job *j)
{
    double best = 1;

    for (int i = 0; i < 50; i++) {
        double from = bench_now();

        must(ch_strategy_run(j->own[0], j->own_f[0], j->own_in[0], NULL));
        best = bench_now() - from < best ? bench_now() - from : best;
    }
    return best;
}

static void set_up_own(job *j)
{
    for (int i = 0; i < WORKERS; i++) {
        char name[16];

        snprintf(name, sizeof(name), "CPU:%d", i % ch_device_count("CPU"));
        must(ch_strategy_one_device(name, &j->own[i]));
        must(ch_function_new("work", work, j, &j->own_f[i]));
        j->own_in[i] = square(ch_device_at(i % ch_device_count("CPU")));
    }
}

/* Sets n_products so that a step takes about 100 us. */
static void choose_products(job *j)
{
    for (j->n_products = 1; j->n_products < MOST; j->n_products++) {
        ch_function_unref(j->own_f[0]);
        must(ch_function_new("work", work, j, &j->own_f[0]));
        if (time_of(j) > 90e-6)
            return;
    }
}

static void set_up(job *j, bool is_empty)
{
    *j = (job){.n_products = 0};
    if (!is_empty) {
        set_up_own(j);
        choose_products(j);
        j->in = square(ch_device_at(0));
    }
    must(ch_cluster_local(&(ch_local_cluster_options){.ps = 1, .workers = WORKERS},
                          &j->cluster));
    must(ch_strategy_parameter_server(ch_local_cluster_resolver(j->cluster), NULL, &j->st));
    must(ch_coordinator_new(j->st, NULL, &j->c));
    must(ch_function_new("work", work, j, &j->f));
}

static void tear_down(job *j)
{
    for (int i = 0; i < WORKERS; i++) {
        ch_function_unref(j->own_f[i]);
        ch_tuple_unref(j->own_in[i]);
        ch_strategy_unref(j->own[i]);
    }
    ch_tuple_unref(j->in);
    ch_function_unref(j->f);
    ch_coordinator_unref(j->c);
    ch_strategy_unref(j->st);
    ch_local_cluster_unref(j->cluster);
}

int main(int argc, char **argv)
{
    static job j;
    bench     *b = bench_open("schedule", argc, argv);
    bench_case c = {.name = "empty steps",
                    .unit = "k steps/s",
                    .better = BENCH_HIGHER,
                    .scale = 1e-3,
                    .ours = {.run = run_scheduled, .arg = &j},
                    .peer = {{.name = "PyTorch RPC, 3 processes",
                              .command = "exec $PYTHON $PEERS/torch_rpc.py empty 64"}}};

    if (bench_wants(b, c.name)) {
        set_up(&j, true);
        bench_run(b, &c);
        tear_down(&j);
    }
    c.name = "steps of 100 us";
    c.peer[0].command = "exec $PYTHON $PEERS/torch_rpc.py busy 64";
    c.limit = (bench_side){.run = run_alone, .arg = &j};
    if (bench_wants(b, c.name)) {
        set_up(&j, false);
        bench_run(b, &c);
        tear_down(&j);
    }
    return bench_close(b);
}
