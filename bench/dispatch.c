/* bench/dispatch.c -- the overhead of a node.
 *
 * The first cases are a chain of 1000 additions of scalars, and a chain of 200 forward and
 * backward, with and without fusion. They compute almost nothing, so their time is overhead.
 * The last case is an SGD step of a small network; the limit is its five matrix products,
 * called directly.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "base/config.h"
#include "bench.h"
#include "must.h"

enum { CHAIN = 1000, GRAD = 200, ROWS = 32, IN = 784, HIDDEN = 64, OUT = 10 };

typedef struct job {
    ch_function *f;
    ch_tuple    *in;
} job;

static void run(void *arg, int64_t n)
{
    job *j = arg;

    while (n-- > 0)
        must(ch_strategy_run(NULL, j->f, j->in, NULL));
}

/* ---- chains ---- */

static ch_node *chain_of(ch_step *s, int n)
{
    ch_node *x = ch_step_in(s, 0), *one = ch_step_in(s, 1);

    for (int i = 0; i < n; i++)
        x = ch_add(x, one);
    return x;
}

static void record_chain(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, chain_of(s, CHAIN));
}

/* Uses two kinds of ops, so that the backward pass has its own work. */
static void record_grad(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0), *one = ch_step_in(s, 1), *y = x;

    (void)arg;
    for (int i = 0; i < GRAD; i++)
        y = i % 2 == 0 ? ch_mul(y, one) : ch_add(y, x);
    ch_step_out(s, NULL, y);
    ch_step_out(s, NULL, ch_gradient(y, x));
}

static job scalar_job(const char *name, ch_step_fn step, bool fuse)
{
    ch_tensor *x = NULL, *one = NULL;
    job        j = {0};

    must(ch_tensor_scalar(CH_F32, 1, &x));
    must(ch_tensor_scalar(CH_F32, 1, &one));
    must(ch_tuple_of(2, (ch_tensor *[]){x, one}, &j.in));
    must(ch_function_new(name, step, NULL, &j.f));
    must(ch__config_set("fuse", fuse ? "1" : "0"));
    run(&j, 1); /* records and plans, with this setting */
    must(ch__config_set("fuse", "1"));
    ch_tensor_unref(x);
    ch_tensor_unref(one);
    return j;
}

static bool check_chain(void *arg, char *why, size_t size)
{
    job      *j = arg;
    ch_tuple *out = NULL;
    double    x = NAN;

    must(ch_strategy_run(NULL, j->f, j->in, &out));
    must(ch_tensor_item(ch_value_at(ch_tuple_at(out, 0), 0), &x));
    ch_tuple_unref(out);
    if (x == 1.0 + CHAIN)
        return true;
    snprintf(why, size, "the sum is %g, not %d", x, 1 + CHAIN);
    return false;
}

/* ---- a small network ---- */

typedef struct network {
    job     job;
    ch_var *var[4];
    float  *x, *w1, *w2, *h, *logits; /* operands of the limit */
} network;

static void record_step(ch_step *s, void *arg)
{
    network *net = arg;
    ch_node *x = ch_step_in(s, 0), *y = ch_step_in(s, 1), *var[4], *d[4], *h, *loss;

    for (int i = 0; i < 4; i++)
        var[i] = ch_var_read(s, net->var[i]);
    h = ch_relu(ch_add(ch_matmul(x, false, var[0], false), var[1]));
    h = ch_add(ch_matmul(h, false, var[2], false), var[3]);
    loss = ch_div(ch_sum_all(ch_sparse_softmax_cross_entropy(h, y)), ch_step_global_rows(s));
    ch_gradients(loss, NULL, 4, var, d);
    for (int i = 0; i < 4; i++)
        ch_var_assign_sub(s, net->var[i], ch_mul(ch_number(s, 0.01), d[i]));
    ch_step_out(s, "loss", loss);
}

static float *noise(size_t n, float scale)
{
    float   *x = malloc(n * sizeof(*x));
    unsigned seed = 1;

    if (x == NULL)
        exit(1);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = scale * ((float)(seed >> 8) / (1 << 23) - 1);
    }
    return x;
}

static ch_var *new_var(const char *name, ch_shape shape, float scale)
{
    float     *data = noise((size_t)ch_shape_count(shape), scale);
    ch_tensor *t = NULL;
    ch_var    *v = NULL;

    must(ch_tensor_copy_of(CH_F32, shape, data, &t));
    must(ch_var_new(NULL, &(ch_var_spec){.name = name, .initial = t}, &v));
    ch_tensor_unref(t);
    free(data);
    return v;
}

static network new_network(void)
{
    network    net = {.x = noise(ROWS * IN, 1),
                      .w1 = noise(IN * HIDDEN, 0.1f),
                      .w2 = noise(HIDDEN * OUT, 0.1f),
                      .h = noise(ROWS * HIDDEN, 1),
                      .logits = noise(ROWS * OUT, 1)};
    int32_t    label[ROWS];
    ch_tensor *x = NULL, *y = NULL;

    for (int i = 0; i < ROWS; i++)
        label[i] = i % OUT;
    net.var[0] = new_var("w1", ch_shape_of(IN, HIDDEN), 0.05f);
    net.var[1] = new_var("b1", ch_shape_of(HIDDEN), 0);
    net.var[2] = new_var("w2", ch_shape_of(HIDDEN, OUT), 0.1f);
    net.var[3] = new_var("b2", ch_shape_of(OUT), 0);
    must(ch_tensor_copy_of(CH_F32, ch_shape_of(ROWS, IN), net.x, &x));
    must(ch_tensor_copy_of(CH_I32, ch_shape_of(ROWS), label, &y));
    must(ch_tuple_of(2, (ch_tensor *[]){x, y}, &net.job.in));
    ch_tensor_unref(x);
    ch_tensor_unref(y);
    return net;
}

/* Computes the five products of a step with direct calls of OpenBLAS. */
static void products(void *arg, int64_t n)
{
    network *p = arg;

    while (n-- > 0) {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, ROWS, HIDDEN, IN, 1, p->x, IN,
                    p->w1, HIDDEN, 0, p->h, HIDDEN);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, ROWS, OUT, HIDDEN, 1, p->h,
                    HIDDEN, p->w2, OUT, 0, p->logits, OUT);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, HIDDEN, OUT, ROWS, 1, p->h, HIDDEN,
                    p->logits, OUT, 0, p->w2, OUT);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, ROWS, HIDDEN, OUT, 1, p->logits,
                    OUT, p->w2, OUT, 0, p->h, HIDDEN);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, IN, HIDDEN, ROWS, 1, p->x, IN,
                    p->h, HIDDEN, 0, p->w1, HIDDEN);
    }
}

/* Counts allocations and page faults of a step that has run before. There must be none. */
static void count_steady(bench *b, job *j)
{
    struct rusage before, after;
    int64_t       allocs;

    run(j, 100);
    allocs = bench_allocations();
    getrusage(RUSAGE_SELF, &before);
    run(j, 1000);
    getrusage(RUSAGE_SELF, &after);
    allocs = bench_allocations() - allocs;
    bench_add(b, "allocations in 1000 steps", "", BENCH_LOWER, (double)allocs, 0);
    bench_add(b, "page faults in 1000 steps", "", BENCH_LOWER,
              (double)(after.ru_minflt - before.ru_minflt), 0);
    if (allocs > 0)
        bench_void(b, "allocations in 1000 steps", "a step that was seen before allocates");
}

int main(int argc, char **argv)
{
    bench  *b = bench_open("dispatch", argc, argv);
    network net;
    job     chain[2], grad[2];

    must(ch_devices_configure(&(ch_devices_options){.spec = "CPU=1", .threads = 1}));
    openblas_set_num_threads(1);
    for (int fuse = 0; fuse < 2; fuse++) {
        chain[fuse] = scalar_job("chain", record_chain, fuse);
        grad[fuse] = scalar_job("grad", record_grad, fuse);
    }
    for (int fuse = 0; fuse < 2; fuse++) {
        bench_run(b, &(bench_case){
                         .name = fuse ? "chain of 1000 adds, fused" : "chain of 1000 adds",
                         .unit = "ns/node",
                         .scale = 1e9 / CHAIN,
                         .ours = {.run = run, .arg = &chain[fuse]},
                         .peer = {{"PyTorch",
                                   .command = "exec $PYTHON $PEERS/torch_dispatch.py chain"}},
                         .check = check_chain,
                     });
        bench_run(b, &(bench_case){
                         .name = fuse ? "200 ops and gradient, fused" : "200 ops and gradient",
                         .unit = "ns/op",
                         .scale = 1e9 / GRAD,
                         .ours = {.run = run, .arg = &grad[fuse]},
                         .peer = {{"PyTorch",
                                   .command = "exec $PYTHON $PEERS/torch_dispatch.py grad"}},
                     });
    }
    net = new_network();
    must(ch_function_new("mlp", record_step, &net, &net.job.f));
    bench_run(b, &(bench_case){
                     .name = "MLP 784-64-10, 32 rows, SGD",
                     .unit = "us/step",
                     .scale = 1e6,
                     .ours = {.run = run, .arg = &net.job},
                     .peer = {{"PyTorch, 1 thread",
                               .command = "exec $PYTHON $PEERS/torch_dispatch.py mlp 1"},
                              {"PyTorch, 2 threads",
                               .command = "exec $PYTHON $PEERS/torch_dispatch.py mlp 2"}},
                     .limit = {.run = products, .arg = &net},
                     .rest = true,
                 });
    count_steady(b, &net.job);
    return bench_close(b);
}
