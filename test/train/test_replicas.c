/* test/train/test_replicas.c -- the same training, on any number of replicas.
 *
 * The same rows in the same batches, dealt to 1, 2, 3, 4 and 8 replicas, the last batch a short one of which
 * some get nothing: what was learned is the same, but for rounding. After every step all copies of all
 * variables are compared bit for bit (COHORT_CHECK_COPIES).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "base/config.h"
#include "layer_help.h"

enum { ROWS = 100, BATCH = 24, WIDE = 6, HIDDEN = 8, CLASSES = 3, STEPS = 100, MOST = 256 };

typedef struct training {
    ch_strategy  *st;
    ch_model     *model;
    ch_optimizer *optimizer;
    ch_function  *step;
} training;

static void train(ch_step *s, void *arg)
{
    training      *t = arg;
    ch_node       *logits = ch_model_call(t->model, s, ch_step_in(s, 0), true);
    ch_node       *each = ch_loss_sparse_categorical(logits, ch_step_in(s, 1));
    ch_var *const *var;
    int            n = ch_model_trainable(t->model, &var);

    ch_optimizer_minimize(t->optimizer, s, ch_loss_average(each, NULL), n, var);
}

/* Numbers in [-1, 1) that depend on i. */
static double noise(unsigned i)
{
    i = (i ^ 61u) * 2654435761u;
    i = (i ^ i >> 15) * 2246822519u;
    return (double)(i >> 8) / (1 << 23) - 1;
}

static ch_tensor *features(ch_dtype dtype, int from, int n)
{
    ch_tensor *t = NULL;

    t_ok(ch_tensor_new(dtype, ch_shape_of(n, WIDE), &t));
    for (int i = 0; i < n * WIDE; i++)
        if (dtype == CH_F32)
            ((float *)ch_tensor_data_mut(t))[i] = (float)noise((unsigned)(from * WIDE + i));
        else
            ((double *)ch_tensor_data_mut(t))[i] = noise((unsigned)(from * WIDE + i));
    return t;
}

static ch_tensor *labels(int from, int n)
{
    ch_tensor *t = NULL;

    t_ok(ch_tensor_new(CH_I32, ch_shape_of(n), &t));
    for (int i = 0; i < n; i++)
        ((int32_t *)ch_tensor_data_mut(t))[i] = (from + i) * 7 % CLASSES;
    return t;
}

/* Rows [from, from + n) dealt in order; a replica gets BATCH / replicas, the first ones one more. */
static ch_tuple *deal(ch_dtype dtype, int from, int n, int replicas)
{
    ch_tensor *x[8], *y[8];
    ch_value  *v[2] = {NULL};
    ch_tuple  *out = NULL;

    for (int r = 0, left = n; r < replicas; r++) {
        int share = BATCH / replicas + (r < BATCH % replicas),
            mine = share < left ? share : left;

        x[r] = features(dtype, from + n - left, mine);
        y[r] = labels(from + n - left, mine);
        left -= mine;
    }
    t_ok(ch_value_new(replicas > 1 ? CH_PER_REPLICA : CH_PLAIN, replicas, x, &v[0]));
    t_ok(ch_value_new(replicas > 1 ? CH_PER_REPLICA : CH_PLAIN, replicas, y, &v[1]));
    t_ok(ch_tuple_new(2, v, NULL, &out));
    for (int r = 0; r < replicas; r++) {
        ch_tensor_unref(x[r]);
        ch_tensor_unref(y[r]);
    }
    ch_value_unref(v[0]);
    ch_value_unref(v[1]);
    return out;
}

typedef enum rule { SGD, MOMENTUM, ADAM } rule;

static ch_optimizer *optimizer_of(rule which)
{
    ch_optimizer *o = NULL;

    if (which == ADAM)
        t_ok(ch_adam(0.01, NULL, NULL, &o));
    else
        t_ok(ch_sgd(0.1, &(ch_sgd_options){.momentum = which == MOMENTUM ? 0.9 : 0}, NULL, &o));
    return o;
}

static ch_strategy *strategy_of(int replicas, bool shares)
{
    const char  *name[8];
    char         text[8][16];
    ch_strategy *st = NULL;

    for (int i = 0; i < replicas; i++) {
        snprintf(text[i], sizeof(text[i]), "GPU:%d", i);
        name[i] = text[i];
    }
    if (shares)
        t_ok(ch_strategy_central_storage(
            &(ch_central_storage_options){.n_compute = replicas, .compute = name}, &st));
    else
        t_ok(ch_strategy_mirrored(&(ch_mirrored_options){.n_devices = replicas, .device = name},
                                  &st));
    return st;
}

/* The weights after all steps, one after another; returns how many. */
static int weights_of(training *t, double *out)
{
    ch_var *const *var;
    int            n = ch_model_trainable(t->model, &var), count = 0;

    for (int i = 0; i < n; i++) {
        ch_tensor *x = NULL;

        t_ok(ch_var_get(var[i], &x));
        for (int64_t k = 0; k < ch_tensor_count(x); k++)
            out[count++] = ch_tensor_dtype(x) == CH_F32
                               ? (double)((const float *)ch_tensor_data(x))[k]
                               : ((const double *)ch_tensor_data(x))[k];
        ch_tensor_unref(x);
    }
    return count;
}

static int learn(rule which, ch_dtype dtype, int replicas, bool shares, double *out)
{
    ch_model_options shapes = {.n_inputs = 1, .input = {{dtype, ch_shape_of(-1, WIDE)}}};
    ch_dense_options hidden = {.activation = CH_TANH};
    training  t = {.st = strategy_of(replicas, shares), .optimizer = optimizer_of(which)};
    ch_layer *net = ch_sequential(
        "net", 2, (ch_layer *[]){ch_dense(HIDDEN, &hidden), ch_dense(CLASSES, NULL)});
    int count, from = 0;

    ch_layer_set_dtype(net, dtype);
    t_ok(ch_model_new(t.st, net, &shapes, &t.model));
    t_ok(ch_function_new("train", train, &t, &t.step));
    for (int i = 0; i < STEPS; i++) {
        int       n = from + BATCH <= ROWS ? BATCH : ROWS - from;
        ch_tuple *batch = deal(dtype, from, n, replicas);

        t_ok(ch_strategy_run(t.st, t.step, batch, NULL));
        ch_tuple_unref(batch);
        from = from + n == ROWS ? 0 : from + n;
    }
    count = weights_of(&t, out);
    ch_function_unref(t.step);
    ch_optimizer_unref(t.optimizer);
    ch_model_unref(t.model);
    ch_strategy_unref(t.st);
    return count;
}

static void agree(const double *a, const double *b, int n, double tolerance, int replicas)
{
    double largest = 0, apart = 0;

    for (int i = 0; i < n; i++) {
        largest = fmax(largest, fabs(a[i]));
        apart = fmax(apart, fabs(a[i] - b[i]));
    }
    if (!(apart <= tolerance * largest))
        fail_msg("%d replicas: %g apart, the largest is %g", replicas, apart, largest);
}

/* As many replicas as there are learn what one does, with copies and with shared variables. */
static void learn_alike(rule which, ch_dtype dtype, double tolerance)
{
    static const int replicas[] = {2, 3, 4, 8};
    double           one[MOST], many[MOST], again[MOST];
    int              n = learn(which, dtype, 1, false, one);

    for (int i = 0; i < 4; i++)
        for (int shares = 0; shares < 2; shares++) {
            assert_int_equal(learn(which, dtype, replicas[i], shares, many), n);
            agree(one, many, n, tolerance, replicas[i]);
            (void)learn(which, dtype, replicas[i], shares, again);
            assert_memory_equal(many, again, (size_t)n * sizeof(*many));
        }
}

static void sgd_learns_alike(void **state)
{
    learn_alike(SGD, CH_F64, 1e-10);
    learn_alike(SGD, CH_F32, 1e-4);
    (void)state;
}

static void momentum_learns_alike(void **state)
{
    learn_alike(MOMENTUM, CH_F64, 1e-10);
    learn_alike(MOMENTUM, CH_F32, 1e-4);
    (void)state;
}

static void adam_learns_alike(void **state)
{
    learn_alike(ADAM, CH_F64, 1e-10);
    (void)state;
}

static int set_up(void **state)
{
    (void)state;
    t_ok(ch__config_set("check_copies", "true"));
    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "GPU=8", .threads = 1}));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sgd_learns_alike),
        cmocka_unit_test(momentum_learns_alike),
        cmocka_unit_test(adam_learns_alike),
    };

    return cmocka_run_group_tests_name("replicas", tests, set_up, NULL);
}
