/* bench/training.h -- what the rows that train a model share: a step, its batch, and how fast this machine
 * multiplies.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_TRAINING_H
#define BENCH_TRAINING_H

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"
#include "must.h"

/* The cores that ours and the limit use. */
enum { CORES = 2 };

/* The peer in its three sensible settings; the best of them counts. */
#define TORCH(what)                                                                            \
    {                                                                                          \
        {"PyTorch, 2 threads, OpenBLAS 1",                                                     \
         .command = "OPENBLAS_NUM_THREADS=1 exec $PYTHON $PEERS/torch_train.py " what " 2"},   \
            {"PyTorch, 1 thread, OpenBLAS 2",                                                  \
             .command =                                                                        \
                 "OPENBLAS_NUM_THREADS=2 exec $PYTHON $PEERS/torch_train.py " what " 1"},      \
            {"PyTorch, 1 thread, OpenBLAS 1",                                                  \
             .command =                                                                        \
                 "OPENBLAS_NUM_THREADS=1 exec $PYTHON $PEERS/torch_train.py " what " 1"},      \
    }

typedef struct training {
    ch_model     *model;
    ch_optimizer *opt;
    ch_function  *step;
    ch_tuple     *batch;
} training;

static inline uint32_t next_random(void)
{
    static uint32_t seed = 1;

    return (seed = seed * 1664525u + 1013904223u) >> 8;
}

/* Numbers in [-1, 1). */
static inline ch_tensor *noise(ch_shape shape)
{
    ch_tensor *t = NULL;
    float     *x;

    must(ch_tensor_new(CH_F32, shape, &t));
    x = ch_tensor_data_mut(t);
    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        x[i] = (float)next_random() / (1 << 23) - 1;
    return t;
}

static inline ch_tensor *random_ids(ch_shape shape, int64_t limit)
{
    ch_tensor *t = NULL;
    int32_t   *x;

    must(ch_tensor_new(CH_I32, shape, &t));
    x = ch_tensor_data_mut(t);
    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        x[i] = (int32_t)((uint64_t)next_random() * (uint64_t)limit >> 24);
    return t;
}

/* Inputs x and labels y; the labels' loss of what the model makes of x. */
static inline void classify(ch_step *s, void *arg)
{
    training      *t = arg;
    ch_node       *guess = ch_model_call(t->model, s, ch_step_in(s, 0), true);
    ch_node       *each = ch_loss_sparse_categorical(guess, ch_step_in(s, 1));
    ch_var *const *var;
    int            n;

    n = ch_model_trainable(t->model, &var);
    ch_optimizer_minimize(t->opt, s, ch_loss_average(each, NULL), n, var);
    ch_step_out(s, "loss", ch_mean_all(each));
}

static inline void take_batch(training *t, ch_tensor *x, ch_tensor *y)
{
    must(ch_tuple_of(2, (ch_tensor *[]){x, y}, &t->batch));
    ch_tensor_unref(x);
    ch_tensor_unref(y);
}

static inline double one_loss(training *t)
{
    ch_tuple *out = NULL;
    double    loss = 0;

    must(ch_strategy_run(NULL, t->step, t->batch, &out));
    must(ch_tensor_item(ch_value_at(ch_tuple_get(out, "loss"), 0), &loss));
    ch_tuple_unref(out);
    return loss;
}

static inline void run_training(void *arg, int64_t n)
{
    training *t = arg;

    while (n-- > 0)
        must(ch_strategy_run(NULL, t->step, t->batch, NULL));
}

/* A batch that is seen again and again is learned. */
static inline bool learns(void *arg, char *why, size_t size)
{
    double first = one_loss(arg), last;

    run_training(arg, 3);
    last = one_loss(arg);
    if (last < first)
        return true;
    snprintf(why, size, "the loss went from %g to %g", first, last);
    return false;
}

static inline void drop_training(training *t)
{
    ch_function_unref(t->step);
    ch_tuple_unref(t->batch);
    ch_optimizer_unref(t->opt);
    ch_model_unref(t->model);
}

/* As many multiplications as a step has, in one square shape, by OpenBLAS on all cores. */
typedef struct multiplying {
    double flops; /* of a step */
    float *a, *b, *c;
} multiplying;

enum { SIDE = 1024 };

static inline multiplying new_multiplying(double flops)
{
    multiplying m = {.flops = flops};

    m.a = calloc((size_t)SIDE * SIDE, sizeof(float));
    m.b = calloc((size_t)SIDE * SIDE, sizeof(float));
    m.c = calloc((size_t)SIDE * SIDE, sizeof(float));
    if (m.a == NULL || m.b == NULL || m.c == NULL)
        exit(1);
    for (int i = 0; i < SIDE * SIDE; i++)
        m.a[i] = m.b[i] = (float)(i % 7) - 3;
    return m;
}

static inline void multiply(void *arg, int64_t n)
{
    multiplying *m = arg;
    double       left = m->flops * (double)n;

    openblas_set_num_threads(CORES);
    while (left > 0) {
        double part = 2.0 * SIDE * SIDE * SIDE;
        int    rows = left < part ? (int)(SIDE * left / part) + 1 : SIDE;

        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, SIDE, SIDE, 1, m->a, SIDE,
                    m->b, SIDE, 0, m->c, SIDE);
        left -= part;
    }
}

static inline void drop_multiplying(multiplying *m)
{
    free(m->a);
    free(m->b);
    free(m->c);
}

#endif
