/* test/fit/fit_help.h -- a small model with its data, under every strategy.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_FIT_FIT_HELP_H
#define TEST_FIT_FIT_HELP_H

#include "../strategy/help.h"

enum { ROWS = 45, WIDTH = 5, CLASSES = 3, BATCH = 8, MOST = 1000 };

enum { DEFAULT, ONE_DEVICE, MIRRORED_2, MIRRORED_3, CENTRAL, STRATEGIES };

static inline ch_strategy *strategy_of(int which)
{
    ch_strategy *st = NULL;

    switch (which) {
    case DEFAULT:
        return ch_strategy_ref(ch_strategy_current());
    case ONE_DEVICE:
        t_ok(ch_strategy_one_device("GPU:1", &st));
        return st;
    case MIRRORED_2:
    case MIRRORED_3:
        return t_mirrored(which == MIRRORED_2 ? 2 : 3);
    default:
        return t_central(2);
    }
}

/* ---- a model and its data ---- */

static inline ch_tensor *labels(int rows)
{
    ch_tensor *t = NULL;

    t_ok(ch_tensor_new(CH_I32, ch_shape_of(rows), &t));
    for (int i = 0; i < rows; i++)
        ((int32_t *)ch_tensor_data_mut(t))[i] = i * 7 % 11 % CLASSES;
    return t;
}

typedef struct arrays {
    ch_tensor *t[3];
} arrays;

/* Returns inputs, labels, and a weight for each row. */
static inline arrays new_arrays(int rows)
{
    arrays a = {{t_noise(ch_shape_of(rows, WIDTH), 5), labels(rows), NULL}};

    t_ok(ch_tensor_new(CH_F32, ch_shape_of(rows), &a.t[2]));
    for (int i = 0; i < rows; i++)
        ((float *)ch_tensor_data_mut(a.t[2]))[i] = (float)(i % 4) * 0.5f;
    return a;
}

static inline void drop_arrays(arrays *a)
{
    for (int i = 0; i < 3; i++)
        ch_tensor_unref(a->t[i]);
}

/* Returns the first n arrays as a dataset of batches. The last batch is short. */
static inline ch_dataset *batches(const arrays *a, int n)
{
    return ch_dataset_batch(ch_dataset_shuffle(ch_dataset_slices(n, a->t, NULL), 16, NULL),
                            BATCH, NULL);
}

static inline ch_model *new_model_of(ch_strategy *st, ch_dtype dtype)
{
    ch_model *m = NULL;

    t_ok(ch_model_new(
        st,
        ch_layer_sequential(
            "net", 2,
            (ch_layer *[]){ch_layer_dense(7, &(ch_layer_dense_options){.activation = CH_TANH}),
                           ch_layer_dense(CLASSES, NULL)}),
        &(ch_model_options){
            .n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, WIDTH)}}, .dtype = dtype},
        &m));
    return m;
}

static inline ch_model *new_model(ch_strategy *st)
{
    return new_model_of(st, CH_F32);
}

static inline void compile_with(ch_model *m, const ch_optimizer_options *opt)
{
    ch_optimizer *o = NULL;

    t_ok(ch_optimizer_adam(0.01, NULL, opt, &o));
    t_ok(ch_compile(m, &(ch_compile_options){.optimizer = o,
                                             .loss = ch_loss_sparse_categorical,
                                             .metrics = {ch_metric_sparse_accuracy()}}));
    ch_optimizer_unref(o);
}

static inline void compile(ch_model *m)
{
    compile_with(m, NULL);
}

/* Copies the bits of all variables. Elements of fewer than 32 bits are padded with zeros.
 * Returns the number of elements. */
static inline int vars_of(ch_model *m, float *out)
{
    ch_var *const *var;
    int            n = ch_model_vars(m, &var), count = 0;

    for (int i = 0; i < n; i++) {
        ch_tensor *t = NULL;

        t_ok(ch_var_get(var[i], &t));
        assert_true(count + ch_tensor_count(t) <= MOST);
        memset(out + count, 0, (size_t)ch_tensor_count(t) * sizeof(float));
        memcpy(out + count, ch_tensor_data(t), ch_tensor_bytes(t));
        count += (int)ch_tensor_count(t);
        ch_tensor_unref(t);
    }
    return count;
}

typedef struct fixture {
    arrays       a;
    ch_strategy *st;
    ch_model    *m;
} fixture;

static inline fixture new_fixture(int which)
{
    fixture x = {new_arrays(ROWS), strategy_of(which), NULL};

    x.m = new_model(x.st);
    compile(x.m);
    return x;
}

static inline void drop_fixture(fixture *x)
{
    ch_model_unref(x->m);
    ch_strategy_unref(x->st);
    drop_arrays(&x->a);
}

#endif
