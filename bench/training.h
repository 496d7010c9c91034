/* bench/training.h -- the training step and its batch, for benchmarks that train a model.
 *
 * Weights and batches are equal to those of bench/peers/torch_train.py, number by number, so
 * that both must have the same loss. The struct `training` holds a model and its step. The
 * struct `multiplying` measures the speed of matrix products on this machine, for limits.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_TRAINING_H
#define BENCH_TRAINING_H

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "must.h"

/* Cores that ours and the limit use. */
enum { CORES = 2 };

/* The peer in its three sensible settings; the best counts. */
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
    ch_strategy  *strategy; /* NULL: the default strategy */
    ch_model     *model;
    ch_optimizer *opt;
    ch_function  *step;
    ch_tuple     *batch;
    double        loss; /* of the fifth step, after four updates */
} training;

static inline uint32_t next_random(void)
{
    static uint32_t seed = 1;

    return (seed = seed * 1664525u + 1013904223u) >> 8;
}

/* Returns 24 pseudo-random bits for element i of an array. Every array has its own number. */
static inline uint32_t mixed(uint32_t array, uint32_t i)
{
    uint32_t x = i * 2654435761u + (array + 1) * 40503u;

    x = (x ^ x >> 16) * 73244475u;
    x = (x ^ x >> 16) * 73244475u;
    return (x ^ x >> 16) >> 8;
}

/* Returns pseudo-random numbers in [middle - scale, middle + scale). */
static inline ch_tensor *noise(uint32_t array, ch_shape shape, float middle, float scale)
{
    ch_tensor *t = NULL;
    float     *x;

    must(ch_tensor_new(CH_F32, shape, &t));
    x = ch_tensor_data_mut(t);
    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        x[i] = middle + scale * ((float)mixed(array, (uint32_t)i) / (1 << 23) - 1);
    return t;
}

static inline ch_tensor *labels(uint32_t array, ch_shape shape, int64_t limit)
{
    ch_tensor *t = NULL;
    int32_t   *x;

    must(ch_tensor_new(CH_I32, shape, &t));
    x = ch_tensor_data_mut(t);
    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        x[i] = (int32_t)((uint64_t)mixed(array, (uint32_t)i) * (uint64_t)limit >> 24);
    return t;
}

/* Numbers of the arrays of a batch. The number of a variable is its index in the list. */
enum { BATCH_X = 1000, BATCH_Y };

/* Sets the variables: kernels are scaled by the size of their sums, tables are small, gammas
 * are around 1, and biases around 0. */
static inline void fill_model(ch_model *m)
{
    ch_var *const *var;
    int            n = ch_model_trainable(m, &var);

    for (int i = 0; i < n; i++) {
        const char *name = strrchr(ch_var_name(var[i]), '/') + 1;
        ch_shape    shape = ch_var_shape(var[i]);
        int64_t     last = shape.dim[shape.rank - 1];
        bool   is_kernel = strcmp(name, "kernel") == 0, is_table = strcmp(name, "table") == 0;
        double scale = is_kernel  ? 1 / sqrt((double)(ch_shape_count(shape) / last))
                       : is_table ? 0.02
                                  : 0.1;
        ch_tensor *t =
            noise((uint32_t)i, shape, strcmp(name, "gamma") == 0 ? 1 : 0, (float)scale);

        must(ch_var_set(var[i], t));
        ch_tensor_unref(t);
    }
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

/* ---- networks ---- */

static inline ch_layer *perceptron(void)
{
    const ch_layer_dense_options hidden = {.activation = CH_RELU};

    return ch_layer_sequential("mlp", 3,
                               (ch_layer *[]){ch_layer_dense(512, &hidden),
                                              ch_layer_dense(512, &hidden),
                                              ch_layer_dense(10, NULL)});
}

static inline ch_layer *convolutional(void)
{
    const ch_layer_conv_options conv = {.activation = CH_RELU};

    return ch_layer_sequential(
        "cnn", 7,
        (ch_layer *[]){ch_layer_conv2d(32, 3, 3, &conv),
                       ch_layer_max_pool(2, 2, 0, 0, CH_PAD_VALID),
                       ch_layer_conv2d(64, 3, 3, &conv),
                       ch_layer_max_pool(2, 2, 0, 0, CH_PAD_VALID), ch_layer_flatten(),
                       ch_layer_dense(128, &(ch_layer_dense_options){.activation = CH_RELU}),
                       ch_layer_dense(10, NULL)});
}

/* ---- training ---- */

/* Records a training step with inputs x and labels y. Outputs the loss. */
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

    must(ch_strategy_run(t->strategy, t->step, t->batch, &out));
    must(ch_tensor_item(ch_value_at(ch_tuple_get(out, "loss"), 0), &loss));
    ch_tuple_unref(out);
    return loss;
}

static inline void run_training(void *arg, int64_t n)
{
    training *t = arg;

    while (n-- > 0)
        must(ch_strategy_run(t->strategy, t->step, t->batch, NULL));
}

/* Checks that the loss falls when a batch is repeated. Keeps the loss of the fifth step, which
 * depends on the updates of four steps. */
static inline bool learns(void *arg, char *why, size_t size)
{
    training *t = arg;
    double    first = one_loss(t);

    run_training(t, 3);
    t->loss = one_loss(t);
    if (t->loss < first)
        return true;
    snprintf(why, size, "the loss went from %g to %g", first, t->loss);
    return false;
}

static inline double fifth_loss(void *arg)
{
    return ((training *)arg)->loss;
}

static inline void drop_training(training *t)
{
    ch_function_unref(t->step);
    ch_tuple_unref(t->batch);
    ch_optimizer_unref(t->opt);
    ch_model_unref(t->model);
    ch_strategy_unref(t->strategy);
}

/* Square matrix products by OpenBLAS on all cores, with as many operations as a step has. */
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
