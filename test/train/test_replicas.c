/* test/train/test_replicas.c -- the same training on any number of replicas.
 *
 * The same rows in the same batches are divided among 1, 2, 3, 4 and 8 replicas. The last batch
 * is short, so that some replicas get no rows. The trained weights are equal except for
 * rounding. After every step all copies of all variables are compared bit by bit
 * (COHORT_CHECK_COPIES). Two runs of a configuration give the same bits, with any number of
 * threads in a device, with any delays of replicas, and in turns.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/config.h"
#include "layer_help.h"
#include "tensor/device.h"

enum { ROWS = 100, BATCH = 24, WIDE = 6, HIDDEN = 8, CLASSES = 3, STEPS = 100, MOST = 1 << 15 };

/* The model that is trained, and disturbances. */
typedef struct lesson {
    int      hidden, n_hidden, steps;
    bool     calls;   /* every replica calls a C function in each step */
    unsigned dawdles; /* seed of the duration of these calls; 0: no delay */
} lesson;

static const lesson usual = {HIDDEN, 1, STEPS, false, 0};

typedef struct training {
    ch_strategy  *st;
    ch_model     *model;
    ch_optimizer *optimizer;
    ch_function  *step;
    lesson        lesson;
    atomic_uint   n_calls;
} training;

/* Delays a replica, so that a different replica is first at the next collective each time. */
static ch_status dawdle(void *arg, int n_in, ch_tensor *const *in, int n_out,
                        ch_tensor *const *out)
{
    training *t = arg;
    unsigned  x = (atomic_fetch_add(&t->n_calls, 1) ^ t->lesson.dawdles) * 2654435761u;

    (void)n_in;
    (void)in;
    (void)n_out;
    (void)out;
    for (unsigned i = 0; t->lesson.dawdles != 0 && i < x >> 28; i++)
        sched_yield();
    return CH_OK;
}

static void train(ch_step *s, void *arg)
{
    training      *t = arg;
    ch_node       *logits = ch_model_call(t->model, s, ch_step_in(s, 0), true);
    ch_node       *each = ch_loss_sparse_categorical(logits, ch_step_in(s, 1));
    ch_node       *late[] = {ch_step_in(s, 0), logits, each};
    ch_var *const *var;
    int            n = ch_model_trainable(t->model, &var);

    for (int i = 0; i < 3 && t->lesson.calls; i++)
        ch_host_call(s, &(ch_host_spec){.name = "dawdle", .fn = dawdle, .arg = t}, 1, &late[i],
                     NULL);
    ch_optimizer_minimize(t->optimizer, s, ch_loss_average(each, NULL), n, var);
}

/* Returns numbers in [-1, 1) that depend on i. */
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

/* Divides rows [from, from + n) in order. A replica gets BATCH / replicas rows, and the first
 * replicas get a row more. */
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
        t_ok(ch_optimizer_adam(0.01, NULL, NULL, &o));
    else
        t_ok(ch_optimizer_sgd(
            0.1, &(ch_optimizer_sgd_options){.momentum = which == MOMENTUM ? 0.9 : 0}, NULL,
            &o));
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

/* Copies the weights after all steps. Returns their number. */
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

static ch_layer *network(const lesson *l)
{
    ch_layer_dense_options hidden = {.activation = CH_TANH};
    ch_layer              *layer[4];

    for (int i = 0; i < l->n_hidden; i++)
        layer[i] = ch_layer_dense(l->hidden, &hidden);
    layer[l->n_hidden] = ch_layer_dense(CLASSES, NULL);
    return ch_layer_sequential("net", l->n_hidden + 1, layer);
}

static int learn(const lesson *l, rule which, ch_dtype dtype, int replicas, bool shares,
                 double *out)
{
    ch_model_options shapes = {.n_inputs = 1, .input = {{dtype, ch_shape_of(-1, WIDE)}}};
    training         t = {
                .st = strategy_of(replicas, shares), .optimizer = optimizer_of(which), .lesson = *l};
    ch_layer *net = network(l);
    int       count, from = 0;

    ch_layer_set_dtype(net, dtype);
    t_ok(ch_model_new(t.st, net, &shapes, &t.model));
    t_ok(ch_function_new("train", train, &t, &t.step));
    for (int i = 0; i < l->steps; i++) {
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

/* Checks that training on several replicas gives the weights of a single replica, with copies
 * and with shared variables. */
static void learn_alike(rule which, ch_dtype dtype, double tolerance)
{
    static const int replicas[] = {2, 3, 4, 8};
    static double    one[MOST], many[MOST], again[MOST];
    int              n = learn(&usual, which, dtype, 1, false, one);

    for (int i = 0; i < 4; i++)
        for (int shares = 0; shares < 2; shares++) {
            t_ok(ch__config_set("replicas", "threads"));
            assert_int_equal(learn(&usual, which, dtype, replicas[i], shares, many), n);
            agree(one, many, n, tolerance, replicas[i]);
            t_ok(ch__config_set("replicas", "turns"));
            (void)learn(&usual, which, dtype, replicas[i], shares, again);
            assert_memory_equal(many, again, (size_t)n * sizeof(*many));
            t_ok(ch__config_set("replicas", "auto"));
            (void)learn(&usual, which, dtype, replicas[i], shares, again);
            assert_memory_equal(many, again, (size_t)n * sizeof(*many));
        }
}

static void sgd_learns_alike_with_any_number_of_replicas(void **state)
{
    learn_alike(SGD, CH_F64, 1e-10);
    learn_alike(SGD, CH_F32, 1e-4);
    (void)state;
}

static void momentum_learns_alike_with_any_number_of_replicas(void **state)
{
    learn_alike(MOMENTUM, CH_F64, 1e-10);
    learn_alike(MOMENTUM, CH_F32, 1e-4);
    (void)state;
}

static void adam_learns_alike_with_any_number_of_replicas(void **state)
{
    learn_alike(ADAM, CH_F64, 1e-10);
    (void)state;
}

static void devices_of(int threads)
{
    ch__devices_reset();
    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "GPU=8", .threads = threads}));
}

/* The bits are the same with any number of threads in a device and any delays. The layers are
 * wide enough that the threads of a device share them. */
static void training_has_the_same_bits_with_any_threads_and_delays(void **state)
{
    static const int replicas[] = {2, 3};
    static double    first[MOST], again[MOST];
    lesson           l = {128, 2, 10, true, 0};

    for (int i = 0; i < 4; i++) {
        int n = 0;

        for (int threads = 1; threads <= 3; threads++) {
            devices_of(threads);
            for (unsigned late = 0; late < 3; late++) {
                l.dawdles = late * (unsigned)threads * 77;
                n = learn(&l, MOMENTUM, CH_F32, replicas[i / 2], i % 2 != 0,
                          threads == 1 && late == 0 ? first : again);
                if (threads > 1 || late > 0)
                    assert_memory_equal(first, again, (size_t)n * sizeof(*first));
            }
        }
        assert_true(n == WIDE * 128 + 128 + 128 * 128 + 128 + 128 * CLASSES + CLASSES);
    }
    devices_of(1);
    (void)state;
}

static int set_up(void **state)
{
    (void)state;
    t_ok(ch__config_set("check_copies", "true"));
    devices_of(1);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sgd_learns_alike_with_any_number_of_replicas),
        cmocka_unit_test(momentum_learns_alike_with_any_number_of_replicas),
        cmocka_unit_test(adam_learns_alike_with_any_number_of_replicas),
        cmocka_unit_test(training_has_the_same_bits_with_any_threads_and_delays),
    };

    return cmocka_run_group_tests_name("replicas", tests, set_up, NULL);
}
