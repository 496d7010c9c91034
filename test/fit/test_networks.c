/* test/fit/test_networks.c -- networks of every kind give the same result on any number of
 * replicas.
 *
 * 100 steps of ch_fit in f64, with a short last batch in each epoch. The variables on 2, 3, 4
 * and 8 replicas must equal those on a single device to 1e-10 of the largest variable.
 * test/train/test_replicas.c has the same test for every optimizer.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>

#include "../strategy/help.h"

enum {
    ROWS = 60,
    BATCH = 13,
    EPOCHS = 20,
    SIDE = 8,
    WORDS = 50,
    TIME = 6,
    CLASSES = 3,
    MOST = 2000
};

/* ---- networks ---- */

static ch_layer *pictures(void)
{
    ch_layer_conv_options same = {.padding = CH_PAD_SAME};

    return ch_layer_sequential(
        "net", 6,
        (ch_layer *[]){
            ch_layer_conv2d(4, 3, 3, &same),
            ch_layer_batch_norm(&(ch_layer_batch_norm_options){.synchronized = true}),
            ch_layer_activation(CH_TANH), ch_layer_max_pool(2, 2, 0, 0, CH_PAD_VALID),
            ch_layer_flatten(), ch_layer_dense(CLASSES, NULL)});
}

static ch_layer *attention(void)
{
    return ch_layer_sequential("net", 5,
                               (ch_layer *[]){ch_layer_embedding(WORDS, 8, NULL),
                                              ch_layer_transformer_block(2, NULL),
                                              ch_layer_layer_norm(0), ch_layer_flatten(),
                                              ch_layer_dense(CLASSES, NULL)});
}

static ch_layer *recurrence(void)
{
    return ch_layer_sequential("net", 3,
                               (ch_layer *[]){ch_layer_embedding(WORDS, 8, NULL),
                                              ch_layer_lstm(5, NULL),
                                              ch_layer_dense(CLASSES, NULL)});
}

typedef struct network {
    ch_layer *(*make)(void);
    bool takes_words; /* false: images */
} network;

/* ---- data ---- */

static ch_tensor *pictures_of_rows(void)
{
    ch_tensor *t = NULL;
    double    *x;

    t_ok(ch_tensor_new(CH_F64, ch_shape_of(ROWS, SIDE, SIDE, 1), &t));
    x = ch_tensor_data_mut(t);
    for (int i = 0; i < ROWS * SIDE * SIDE; i++)
        x[i] = sin(i * 0.37) * cos(i * 0.011);
    return t;
}

static ch_tensor *numbers_below(ch_shape shape, int end)
{
    ch_tensor *t = NULL;

    t_ok(ch_tensor_new(CH_I32, shape, &t));
    for (int i = 0; i < ch_tensor_count(t); i++)
        ((int32_t *)ch_tensor_data_mut(t))[i] = (i * i + i / 5) % end;
    return t;
}

/* ---- learning ---- */

static ch_strategy *strategy_of(int replicas)
{
    static const char *const name[] = {"GPU:0", "GPU:1", "GPU:2", "GPU:3",
                                       "GPU:4", "GPU:5", "GPU:6", "GPU:7"};
    ch_mirrored_options      opt = {.n_devices = replicas, .device = name};
    ch_strategy             *st = NULL;

    t_ok(replicas == 1 ? ch_strategy_one_device(name[0], &st)
                       : ch_strategy_mirrored(&opt, &st));
    return st;
}

static int vars_of(ch_model *m, double *out)
{
    ch_var *const *var;
    int            n = ch_model_vars(m, &var), count = 0;

    for (int i = 0; i < n; i++) {
        ch_tensor *t = NULL;

        t_ok(ch_var_get(var[i], &t));
        assert_int_equal(ch_tensor_dtype(t), CH_F64);
        assert_true(count + ch_tensor_count(t) <= MOST);
        memcpy(out + count, ch_tensor_data(t), ch_tensor_bytes(t));
        count += (int)ch_tensor_count(t);
        ch_tensor_unref(t);
    }
    return count;
}

/* Stores all variables after the training, including the statistics of batch norm. Returns the
 * number of elements. */
static int learn(const network *net, int replicas, double *out)
{
    ch_tensor *t[2] = {net->takes_words ? numbers_below(ch_shape_of(ROWS, TIME), WORDS)
                                        : pictures_of_rows(),
                       numbers_below(ch_shape_of(ROWS), CLASSES)};
    ch_model_options shapes = {.n_inputs = 1,
                               .input = {{ch_tensor_dtype(t[0]), ch_tensor_shape(t[0])}}};
    ch_strategy     *st = strategy_of(replicas);
    ch_layer        *layer = net->make();
    ch_optimizer    *o = NULL;
    ch_model        *m = NULL;
    ch_history      *h = NULL;
    int              n;

    shapes.input[0].shape.dim[0] = -1;
    ch_layer_set_dtype(layer, CH_F64);
    t_ok(ch_model_new(st, layer, &shapes, &m));
    t_ok(ch_optimizer_sgd(0.02, &(ch_optimizer_sgd_options){.momentum = 0.9}, NULL, &o));
    t_ok(ch_compile(m,
                    &(ch_compile_options){.optimizer = o, .loss = ch_loss_sparse_categorical}));
    t_ok(ch_fit(m, (ch_data){.n = 2, .array = t},
                &(ch_fit_options){.epochs = EPOCHS, .batch = BATCH}, &h));
    assert_int_equal(ch_history_time(h).steps, 100);
    assert_true(ch_history_last(h, "loss") < ch_history_at(h, "loss", 0));
    n = vars_of(m, out);
    ch_history_unref(h);
    ch_optimizer_unref(o);
    ch_model_unref(m);
    ch_strategy_unref(st);
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    return n;
}

static void learn_alike(const network *net)
{
    static const int replicas[] = {2, 3, 4, 8};
    double           one[MOST], many[MOST];
    int              n = learn(net, 1, one);

    for (int i = 0; i < 4; i++) {
        double largest = 0, apart = 0;

        assert_int_equal(learn(net, replicas[i], many), n);
        for (int k = 0; k < n; k++) {
            largest = fmax(largest, fabs(one[k]));
            apart = fmax(apart, fabs(one[k] - many[k]));
        }
        if (!(apart <= 1e-10 * largest))
            fail_msg("%d replicas: %g apart, the largest is %g", replicas[i], apart, largest);
    }
}

static void convolution_network_learns_alike_under_all_strategies(void **state)
{
    learn_alike(&(network){pictures, false});
    (void)state;
}

static void attention_network_learns_alike_under_all_strategies(void **state)
{
    learn_alike(&(network){attention, true});
    (void)state;
}

static void recurrent_network_learns_alike_under_all_strategies(void **state)
{
    learn_alike(&(network){recurrence, true});
    (void)state;
}

static int eight_gpus(void **state)
{
    (void)state;
    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "GPU=8", .threads = 1}));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolution_network_learns_alike_under_all_strategies),
        cmocka_unit_test(attention_network_learns_alike_under_all_strategies),
        cmocka_unit_test(recurrent_network_learns_alike_under_all_strategies),
    };

    setenv("COHORT_CHECK_COPIES", "true", 1);
    return cmocka_run_group_tests(tests, eight_gpus, NULL);
}
