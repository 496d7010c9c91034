/* test/fit/test_fit_servers.c -- compile, fit, evaluate and predict with the parameter-server
 * strategy: variables are on servers, and workers run the steps.
 *
 * Trainings with a single worker or in synchronous order must have the bits of the same
 * training on a single device. Further tests cover sharded variables, modes, callbacks, and
 * workers and servers that are lost.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "../file/folder.h"
#include "../job/help.h"
#include "base/thread.h"
#include "fit_help.h"

static fixture over(ch_strategy *st)
{
    fixture x = {new_arrays(ROWS), st, NULL};

    x.m = new_model(x.st);
    compile(x.m);
    return x;
}

static fixture over_servers(int workers, int devices)
{
    return over(
        t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = workers, .devices = devices},
                  NULL, NULL));
}

static void same_vars(ch_model *a, ch_model *b)
{
    static float x[MOST], y[MOST];
    int          n = vars_of(a, x);

    assert_int_equal(vars_of(b, y), n);
    assert_memory_equal(x, y, (size_t)n * sizeof(float));
}

static void same_history(const ch_history *a, const ch_history *b)
{
    assert_int_equal(ch_history_epochs(a), ch_history_epochs(b));
    assert_int_equal(ch_history_count(a), ch_history_count(b));
    for (int e = 0; e < ch_history_epochs(a); e++)
        for (int i = 0; i < ch_history_count(a); i++)
            assert_true(ch_history_at(a, ch_history_name(a, i), e) ==
                        ch_history_at(b, ch_history_name(a, i), e));
}

/* Trains for three epochs with a validation. The last batches are short. */
static ch_history *train(fixture *x)
{
    ch_dataset *d = batches(&x->a, 2);
    ch_history *h = NULL;

    t_ok(ch_fit(x->m, (ch_data){.dataset = d},
                &(ch_fit_options){.epochs = 3, .validation = {.dataset = d}}, &h));
    ch_dataset_unref(d);
    return h;
}

/* Trains the same model in both fixtures, compares the results, and drops the fixtures. */
static void compare(fixture a, fixture b)
{
    ch_history *h[2] = {train(&a), train(&b)};

    same_history(h[0], h[1]);
    same_vars(a.m, b.m);
    ch_history_unref(h[0]);
    ch_history_unref(h[1]);
    drop_fixture(&a);
    drop_fixture(&b);
}

static void fit_on_one_worker_equals_one_device_to_the_bit(void **state)
{
    compare(new_fixture(ONE_DEVICE), over_servers(1, 1));
    (void)state;
}

/* A batch of seven rows on two devices is divided into 4 and 3. */
static void fit_on_two_devices_of_a_worker_equals_mirrored_to_the_bit(void **state)
{
    compare(new_fixture(MIRRORED_2), over_servers(1, 2));
    (void)state;
}

/* Each step sees all earlier steps, so it does not matter which worker runs it. */
static void fit_in_synchronous_order_equals_one_device_to_the_bit(void **state)
{
    static const ch_coordinator_options how[] = {
        {.mode = CH_BOUNDED_STALENESS, .staleness = 0},
        {.mode = CH_SYNCHRONOUS, .round = 1},
    };

    for (int i = 0; i < 2; i++) {
        fixture         x = over_servers(3, 1);
        ch_coordinator *c = NULL;

        t_ok(ch_coordinator_new(x.st, &how[i], &c));
        compare(new_fixture(ONE_DEVICE), x);
        ch_coordinator_unref(c);
    }
    (void)state;
}

/* ---- sharded variables ---- */

static ch_strategy *cut_in_two(int workers)
{
    return t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = workers},
                     &(ch_parameter_server_options){.partitioner = ch_partitioner_fixed(2)},
                     NULL);
}

/* B20 */
static void model_variables_are_shards_with_part_names(void **state)
{
    static const char *const name[] = {"dense/kernel/part_0", "dense/kernel/part_1"};
    ch_strategy             *st = cut_in_two(1);
    ch_model                *m = NULL;
    ch_var *const *var, *const *whole;
    ch_tensor *all = NULL, *part = NULL;

    t_ok(ch_model_new(
        st, ch_layer_dense(10, &(ch_layer_dense_options){.bias = CH_OFF}),
        &(ch_model_options){.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, 100)}}}, &m));
    assert_int_equal(ch_model_trainable(m, &whole), 1);
    assert_true(ch_shape_equal(ch_var_shape(whole[0]), ch_shape_of(100, 10)));
    assert_int_equal(ch_model_vars(m, NULL), 1);
    assert_int_equal(ch_model_shards(m, &var), 2);
    t_ok(ch_var_get(whole[0], &all));
    for (int i = 0; i < 2; i++) {
        char device[64];

        (void)snprintf(device, sizeof(device), "/job:ps/replica:0/task:%d/device:CPU:0", i);
        assert_string_equal(ch_var_name(var[i]), name[i]);
        assert_string_equal(ch_var_device(var[i]), device);
        assert_true(ch_shape_equal(ch_var_shape(var[i]), ch_shape_of(50, 10)));
        t_ok(ch_var_get(var[i], &part));
        assert_memory_equal(ch_tensor_data(part), (const float *)ch_tensor_data(all) + i * 500,
                            500 * sizeof(float));
        ch_tensor_unref(part);
    }
    ch_tensor_unref(all);
    ch_model_unref(m);
    ch_strategy_unref(st);
    (void)state;
}

/* Along every axis. */
static void fit_of_shards_equals_one_device_to_the_bit(void **state)
{
    compare(new_fixture(ONE_DEVICE), over(cut_in_two(1)));
    (void)state;
}

static void set_zero(ch_model *m)
{
    ch_var *const *var;
    int            n = ch_model_shards(m, &var);

    for (int i = 0; i < n; i++) {
        ch_tensor *zero = NULL;

        t_ok(ch_tensor_new(ch_var_dtype(var[i]), ch_var_shape(var[i]), &zero));
        t_ok(ch_var_set(var[i], zero));
        ch_tensor_unref(zero);
    }
}

/* A 16-bit variable has a master copy. Setting the variable or a shard also sets the master,
 * which is sharded in the same way. */
static void early_stopping_restores_shards_and_16_bit_variables(void **state)
{
    ch_strategy *st[] = {strategy_of(ONE_DEVICE), cut_in_two(1)};
    arrays       a = new_arrays(ROWS);
    ch_model    *m[2] = {NULL};

    for (int i = 0; i < 2; i++) {
        ch_callback *stop = NULL;

        t_ok(ch_model_new(st[i], ch_layer_dense(CLASSES, NULL),
                          &(ch_model_options){.n_inputs = 1,
                                              .dtype = CH_BF16,
                                              .input = {{CH_F32, ch_shape_of(-1, WIDTH)}}},
                          &m[i]));
        compile(m[i]);
        t_ok(ch_callback_early_stopping(
            &(ch_callback_early_stopping_options){
                .monitor = "loss", .goal = CH_GOAL_MAX, .patience = 9, .restore_best = true},
            &stop));
        for (int k = 0; k < 3; k++) { /* the second call begins with the masters */
            if (k == 2)
                set_zero(m[i]);
            t_ok(ch_fit(m[i], (ch_data){.n = 2, .array = a.t},
                        &(ch_fit_options){.epochs = 3, .n_callbacks = 1, .callback = &stop},
                        NULL));
        }
        ch_callback_unref(stop);
    }
    for (int i = 0; i < 2; i++) {
        ch_var *const *v[2];
        ch_tensor     *value[2] = {NULL};

        assert_int_equal(ch_model_trainable(m[0], &v[0]), ch_model_trainable(m[1], &v[1]));
        for (int k = 0; k < 2; k++)
            t_ok(ch_var_get(v[k][i], &value[k]));
        assert_memory_equal(ch_tensor_data(value[0]), ch_tensor_data(value[1]),
                            ch_tensor_bytes(value[0]));
        ch_tensor_unref(value[0]);
        ch_tensor_unref(value[1]);
    }
    for (int i = 0; i < 2; i++) {
        ch_model_unref(m[i]);
        ch_strategy_unref(st[i]);
    }
    drop_arrays(&a);
    (void)state;
}

/* ---- modes ---- */

static int64_t count_steps(ch_strategy *st)
{
    ch_coordinator      *c = NULL;
    ch_coordinator_stats s;

    t_ok(ch_coordinator_new(st, NULL, &c));
    t_ok(ch_coordinator_get_stats(c, &s));
    assert_int_equal(s.queued + s.running + s.failed + s.cancelled, 0);
    ch_coordinator_unref(c);
    return s.finished;
}

static double iterations_of(ch_optimizer *o)
{
    int64_t n = 0;

    t_ok(ch_optimizer_iterations(o, &n));
    return (double)n;
}

/* Every row counts once, on whichever worker, and the optimizer counts every step. */
static void fit_counts_every_row_once_in_every_coordinator_mode(void **state)
{
    static const ch_coordinator_options how[] = {
        {.mode = CH_ASYNCHRONOUS},
        {.mode = CH_BOUNDED_STALENESS, .staleness = 2},
        {.mode = CH_SYNCHRONOUS},
    };

    for (int i = 0; i < 3; i++) {
        fixture         x = over_servers(3, 1);
        ch_coordinator *c = NULL;
        ch_metric      *rows = NULL;
        ch_optimizer   *o = NULL;
        ch_tensor      *n = NULL;
        ch_history     *h = NULL;
        double          all = 0;

        t_ok(ch_coordinator_new(x.st, &how[i], &c));
        t_ok(ch_optimizer_sgd(0.1, NULL, NULL, &o));
        t_ok(ch_metric_new(x.st, ch_metric_named(ch_metric_confusion(CLASSES), "rows"), &rows));
        t_ok(ch_compile(x.m, &(ch_compile_options){.optimizer = o,
                                                   .loss = ch_loss_sparse_categorical,
                                                   .n_own = 1,
                                                   .own = &rows}));
        t_ok(ch_fit(x.m, (ch_data){.n = 2, .array = x.a.t},
                    &(ch_fit_options){.epochs = 8, .batch = 4}, &h));
        assert_true(ch_history_at(h, "loss", 7) < ch_history_at(h, "loss", 0));
        t_ok(ch_metric_tensor(rows, &n));
        for (int k = 0; k < CLASSES * CLASSES; k++)
            all += ((const double *)ch_tensor_data(n))[k];
        assert_true(all == ROWS);
        assert_int_equal(count_steps(x.st), 8 * 12);
        assert_true(iterations_of(o) == 8 * 12);
        ch_tensor_unref(n);
        ch_history_unref(h);
        ch_metric_unref(rows);
        ch_optimizer_unref(o);
        ch_coordinator_unref(c);
        drop_fixture(&x);
    }
    (void)state;
}

/* ---- variables of Default ---- */

static ch_node *scale_inputs(ch_step *s, int n_in, ch_node *const *in, bool training,
                             ch_layer *const *layer, void *scale)
{
    (void)n_in;
    return ch_layer_call(layer[0], s, ch_mul(in[0], ch_var_read(s, scale)), training);
}

/* The scale changes in every step. Steps that wait for a worker use the scale from the time
 * when they were started. */
static ch_status change_scale(ch_training *t, ch_event event, void *scale)
{
    float      x = 1 + 0.1f * (float)ch_training_step(t);
    ch_tensor *value = t_f32(ch_shape_scalar(), &x);
    ch_status  rc = ch_var_set(scale, value);

    (void)event;
    ch_tensor_unref(value);
    return rc;
}

/* Trains, evaluates and predicts with a model that scales its inputs. */
static ch_history *use_scaled(fixture *x, ch_var *scale, ch_tensor **guess)
{
    ch_layer    *dense = ch_layer_dense(CLASSES, NULL);
    ch_callback *change = NULL;
    ch_data      d = {.n = 2, .array = x->a.t};
    ch_history  *h = NULL;

    t_ok(ch_model_new(
        x->st, ch_layer_function("scaled", scale_inputs, scale, 1, &dense),
        &(ch_model_options){.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, WIDTH)}}},
        &x->m));
    compile(x->m);
    t_ok(change_scale(NULL, CH_ON_STEP, scale));
    t_ok(ch_callback_of(CH_ON_STEP, change_scale, scale, &change));
    t_ok(ch_fit(
        x->m, d,
        &(ch_fit_options){.epochs = 3, .validation = d, .n_callbacks = 1, .callback = &change},
        &h));
    t_ok(ch_predict(x->m, (ch_data){.n = 1, .array = x->a.t}, NULL, guess));
    ch_callback_unref(change);
    return h;
}

static void model_that_reads_default_is_fitted_to_the_bit(void **state)
{
    fixture     x[] = {{new_arrays(ROWS), strategy_of(ONE_DEVICE), NULL},
                       {new_arrays(ROWS),
                        t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = 1}, NULL, NULL),
                        NULL}};
    ch_var     *scale = t_var_in(NULL, "scale", 1);
    ch_history *h[2];
    ch_tensor  *guess[2] = {NULL};

    for (int i = 0; i < 2; i++)
        h[i] = use_scaled(&x[i], scale, &guess[i]);
    same_history(h[0], h[1]);
    same_vars(x[0].m, x[1].m);
    assert_memory_equal(ch_tensor_data(guess[0]), ch_tensor_data(guess[1]),
                        ch_tensor_bytes(guess[0]));
    for (int i = 0; i < 2; i++) {
        ch_history_unref(h[i]);
        ch_tensor_unref(guess[i]);
        drop_fixture(&x[i]);
    }
    ch_var_unref(scale);
    (void)state;
}

/* ---- evaluate and predict ---- */

/* The sums of several workers are added in any order, so the last digits of the loss may
 * differ; predictions do not. */
static void evaluate_runs_on_several_workers(void **state)
{
    fixture         a = new_fixture(ONE_DEVICE), b = over_servers(3, 1);
    ch_history     *h[2] = {NULL};
    ch_tensor      *guess[2] = {NULL};
    fixture        *x[] = {&a, &b};
    ch_coordinator *c = NULL;
    int             n_busy = 0;

    for (int i = 0; i < 2; i++) {
        t_ok(ch_evaluate(x[i]->m, (ch_data){.n = 2, .array = x[i]->a.t},
                         &(ch_evaluate_options){.batch = 2}, &h[i]));
        t_ok(ch_predict(x[i]->m, (ch_data){.n = 1, .array = x[i]->a.t},
                        &(ch_evaluate_options){.batch = 2}, &guess[i]));
    }
    assert_true(ch_history_last(h[0], "sparse_accuracy") ==
                ch_history_last(h[1], "sparse_accuracy"));
    assert_true(fabs(ch_history_last(h[0], "loss") - ch_history_last(h[1], "loss")) < 1e-9);
    assert_int_equal(ch_tensor_shape(guess[1]).dim[0], ROWS);
    assert_memory_equal(ch_tensor_data(guess[0]), ch_tensor_data(guess[1]),
                        ch_tensor_bytes(guess[0]));
    t_ok(ch_coordinator_new(b.st, NULL, &c));
    for (int i = 0; i < 3; i++) {
        ch_worker_stats stats;

        t_ok(ch_coordinator_get_worker_stats(c, i, &stats));
        n_busy += stats.finished > 0;
    }
    assert_true(n_busy > 1);
    ch_coordinator_unref(c);
    for (int i = 0; i < 2; i++) {
        ch_history_unref(h[i]);
        ch_tensor_unref(guess[i]);
        drop_fixture(x[i]);
    }
    (void)state;
}

static ch_status spoil(ch_training *t, ch_event event, void *arg)
{
    (void)event;
    (void)arg;
    set_zero(ch_training_model(t));
    return CH_OK;
}

/* Even if the variables change during the evaluation. */
static void evaluate_on_servers_reads_one_version_of_variables(void **state)
{
    fixture             x = over_servers(2, 1);
    ch_history         *h[3] = {NULL};
    ch_tensor          *guess[2] = {NULL};
    ch_callback        *c = NULL;
    ch_data             d = {.n = 2, .array = x.a.t};
    ch_evaluate_options watched;

    t_ok(ch_callback_of(CH_ON_VALIDATION_STEP, spoil, NULL, &c));
    watched = (ch_evaluate_options){.n_callbacks = 1, .callback = &c, .batch = 8};
    t_ok(ch_evaluate(x.m, d, &(ch_evaluate_options){.batch = 8}, &h[0]));
    t_ok(ch_evaluate(x.m, d, &watched, &h[1]));
    t_ok(ch_evaluate(x.m, d, &(ch_evaluate_options){.batch = 8}, &h[2]));
    assert_true(fabs(ch_history_last(h[0], "loss") - ch_history_last(h[1], "loss")) < 1e-9);
    assert_true(fabs(ch_history_last(h[2], "loss") - log(CLASSES)) < 1e-6);
    drop_fixture(&x);
    x = over_servers(2, 1);
    t_ok(ch_predict(x.m, d, &(ch_evaluate_options){.batch = 8}, &guess[0]));
    t_ok(ch_predict(x.m, d, &watched, &guess[1]));
    assert_memory_equal(ch_tensor_data(guess[0]), ch_tensor_data(guess[1]),
                        ch_tensor_bytes(guess[0]));
    for (int i = 0; i < 3; i++)
        ch_history_unref(h[i]);
    ch_tensor_unref(guess[0]);
    ch_tensor_unref(guess[1]);
    ch_callback_unref(c);
    drop_fixture(&x);
    (void)state;
}

/* Every stored row has its own position, whichever worker adds it. */
static void auc_on_several_workers_equals_one_device(void **state)
{
    fixture    a = new_fixture(ONE_DEVICE), b = over_servers(3, 1);
    fixture   *x[] = {&a, &b};
    double     area[2];
    ch_tensor *truth = NULL;

    t_ok(ch_tensor_new(CH_F32, ch_shape_of(ROWS, 1), &truth));
    for (int i = 0; i < ROWS; i++)
        ((float *)ch_tensor_data_mut(truth))[i] = (float)(i % 3 == 0);
    for (int i = 0; i < 2; i++) {
        ch_model   *m = NULL;
        ch_metric  *auc = NULL;
        ch_history *h = NULL;

        t_ok(ch_model_new(
            x[i]->st, ch_layer_dense(1, &(ch_layer_dense_options){.activation = CH_SIGMOID}),
            &(ch_model_options){.n_inputs = 1, .input = {{CH_F32, ch_shape_of(-1, WIDTH)}}},
            &m));
        t_ok(ch_metric_new(x[i]->st, ch_metric_auc_exact(64), &auc));
        t_ok(ch_compile(m, &(ch_compile_options){.n_own = 1, .own = &auc}));
        t_ok(ch_evaluate(m, (ch_data){.n = 2, .array = (ch_tensor *[]){x[i]->a.t[0], truth}},
                         &(ch_evaluate_options){.batch = 2}, &h));
        area[i] = ch_history_last(h, "auc_exact");
        ch_history_unref(h);
        ch_metric_unref(auc);
        ch_model_unref(m);
        drop_fixture(x[i]);
    }
    assert_true(area[0] == area[1]);
    ch_tensor_unref(truth);
    (void)state;
}

/* ---- callbacks ---- */

typedef struct seen {
    int    n;
    double loss[64];
    int    n_saved;
    double iterations[64];
} seen;

static ch_status note(ch_training *t, ch_event event, void *arg)
{
    seen *s = arg;

    (void)event;
    s->loss[s->n++] = ch_training_get(t, "loss");
    return CH_OK;
}

static ch_status saved(ch_training *t, bool best, void *arg)
{
    seen *s = arg;

    (void)best;
    s->iterations[s->n_saved++] = iterations_of(ch_training_optimizer(t));
    return CH_OK;
}

/* A callback that reads numbers after a step gets those of all steps so far, and a callback
 * that saves gets the variables after these steps. */
static void callbacks_on_servers_see_the_values_of_all_steps_so_far(void **state)
{
    static seen s[2];
    fixture     a = new_fixture(ONE_DEVICE), b = over_servers(1, 1);
    fixture    *x[] = {&a, &b};

    for (int i = 0; i < 2; i++) {
        ch_callback *c[3] = {NULL};

        s[i] = (seen){.n = 0};
        t_ok(ch_callback_of(CH_ON_STEP, note, &s[i], &c[0]));
        t_ok(ch_callback_save_hook(&(ch_callback_save_hook_options){.every_steps = 4}, saved,
                                   &s[i], &c[1]));
        t_ok(ch_callback_stop_on_nan(0, &c[2]));
        t_ok(ch_fit(x[i]->m, (ch_data){.n = 2, .array = x[i]->a.t},
                    &(ch_fit_options){.epochs = 2,
                                      .batch = 7,
                                      .n_callbacks = 3,
                                      .callback = c,
                                      .progress = CH_PROGRESS_JSON},
                    NULL));
        for (int k = 0; k < 3; k++)
            ch_callback_unref(c[k]);
    }
    assert_int_equal(s[0].n, 14);
    assert_int_equal(s[0].n_saved, s[1].n_saved);
    assert_memory_equal(s[0].loss, s[1].loss, sizeof(s[0].loss));
    assert_memory_equal(s[0].iterations, s[1].iterations, sizeof(s[0].iterations));
    drop_fixture(&a);
    drop_fixture(&b);
    (void)state;
}

static ch_status evaluate_within(ch_training *t, ch_event event, void *arg)
{
    fixture    *x = arg;
    ch_history *h = NULL;
    ch_tensor  *guess = NULL;

    (void)event;
    if (ch_training_step(t) % 3 == 0) {
        t_ok(ch_evaluate(x->m, (ch_data){.n = 2, .array = x->a.t}, NULL, &h));
        t_ok(ch_predict(x->m, (ch_data){.n = 1, .array = x->a.t}, NULL, &guess));
    }
    ch_history_unref(h);
    ch_tensor_unref(guess);
    return CH_OK;
}

/* The evaluation does not change the training, although steps are in flight when it is
 * called. */
static void evaluate_in_a_callback_on_servers_does_not_change_the_training(void **state)
{
    fixture      a = new_fixture(ONE_DEVICE), b = over_servers(1, 1);
    ch_history  *h[2] = {NULL};
    ch_callback *c = NULL;

    t_ok(ch_callback_of(CH_ON_STEP, evaluate_within, &b, &c));
    t_ok(ch_fit(a.m, (ch_data){.n = 2, .array = a.a.t},
                &(ch_fit_options){.epochs = 2, .batch = 7}, &h[0]));
    t_ok(ch_fit(b.m, (ch_data){.n = 2, .array = b.a.t},
                &(ch_fit_options){.epochs = 2, .batch = 7, .n_callbacks = 1, .callback = &c},
                &h[1]));
    same_history(h[0], h[1]);
    same_vars(a.m, b.m);
    ch_history_unref(h[0]);
    ch_history_unref(h[1]);
    ch_callback_unref(c);
    drop_fixture(&a);
    drop_fixture(&b);
    (void)state;
}

static ch_status press(ch_training *t, ch_event event, void *arg)
{
    (void)event;
    (void)arg;
    if (ch_training_step(t) == 5)
        raise(SIGINT);
    return CH_OK;
}

static void interrupt_ends_fit_on_servers(void **state)
{
    fixture       x = over_servers(3, 1);
    ch_callback  *c = NULL;
    ch_history   *h = NULL;
    ch_time_table t;

    t_ok(ch_callback_of(CH_ON_STEP, press, NULL, &c));
    t_ok(ch_fit(x.m, (ch_data){.n = 2, .array = x.a.t},
                &(ch_fit_options){.epochs = 100,
                                  .batch = 4,
                                  .n_callbacks = 1,
                                  .callback = &c,
                                  .catch_interrupt = true},
                &h));
    t = ch_history_time(h);
    assert_string_equal(ch_history_stopped(h), "interrupted");
    assert_int_equal(ch_history_epochs(h), 1);
    assert_true(isfinite(ch_history_at(h, "loss", 0)));
    assert_int_equal(t.steps, 5);
    assert_int_equal(count_steps(x.st), 5); /* all started steps were finished */
    ch_callback_unref(c);
    ch_history_unref(h);
    drop_fixture(&x);
    (void)state;
}

/* ---- custom steps ---- */

static void custom(ch_step *s, ch_model *m, void *arg)
{
    ch_node *y = ch_model_call(m, s, ch_step_in(s, 0), true);
    ch_node *loss = ch_loss_average(ch_loss_sparse_categorical(y, ch_step_in(s, 1)), NULL);
    ch_var *const *var;
    int            n = ch_model_trainable(m, &var);

    ch_check(ch_less(ch_max_all(ch_step_in(s, 0)), ch_number(s, 100)), "too much");
    ch_optimizer_minimize(arg, s, loss, n, var);
    ch_step_out(s, "mine", ch_all_reduce(CH_SUM, loss));
}

/* Returns the optimizer, which the caller owns. */
static ch_optimizer *compile_custom(fixture *x)
{
    ch_optimizer *o = NULL;

    t_ok(ch_optimizer_sgd(0.1, NULL, NULL, &o));
    t_ok(ch_compile(x->m, &(ch_compile_options){.train_step = custom, .step_arg = o}));
    return o;
}

static void fit_on_servers_reads_results_of_steps_in_order(void **state)
{
    fixture       a = new_fixture(ONE_DEVICE), b = over_servers(1, 1);
    ch_optimizer *o[] = {compile_custom(&a), compile_custom(&b)};
    ch_history   *h[2] = {NULL};

    for (int i = 0; i < 2; i++) {
        fixture *x = i == 0 ? &a : &b;

        t_ok(ch_fit(x->m, (ch_data){.n = 2, .array = x->a.t},
                    &(ch_fit_options){.epochs = 3, .batch = 4}, &h[i]));
        assert_true(ch_history_at(h[i], "mine", 2) < ch_history_at(h[i], "mine", 0));
    }
    same_history(h[0], h[1]);
    same_vars(a.m, b.m);
    for (int i = 0; i < 2; i++) {
        ch_history_unref(h[i]);
        drop_fixture(i == 0 ? &a : &b);
        ch_optimizer_unref(o[i]);
    }
    (void)state;
}

/* The error is detected after later steps were started, and still names its epoch and step.
 * Afterwards the model is usable. */
static void fit_error_on_servers_names_epoch_and_step(void **state)
{
    fixture       x = over_servers(3, 1);
    ch_optimizer *o = compile_custom(&x);
    ch_history   *h = NULL;
    float        *in = ch_tensor_data_mut(x.a.t[0]), good = in[6 * 4 * WIDTH];

    in[6 * 4 * WIDTH] = 1000; /* in the seventh batch of four rows */
    t_refused(ch_fit(x.m, (ch_data){.n = 2, .array = x.a.t},
                     &(ch_fit_options){.batch = 4, .shuffle = CH_OFF}, &h),
              CH_INVALID_ARGUMENT, "fit: epoch 1, step 7: ", "too much");
    ch_history_unref(h);
    in[6 * 4 * WIDTH] = good;
    t_ok(ch_fit(x.m, (ch_data){.n = 2, .array = x.a.t}, &(ch_fit_options){.batch = 4}, &h));
    ch_history_unref(h);
    drop_fixture(&x);
    ch_optimizer_unref(o);
    (void)state;
}

/* ---- workers that are lost ---- */

static ch_status kill_one(ch_training *t, ch_event event, void *arg)
{
    int task = 0;

    (void)event;
    if (ch_training_step(t) == 4)
        t_ok(ch_local_cluster_kill(arg, "worker", 1));
    if (ch_training_step(t) == 20) { /* and a new worker is added */
        t_ok(ch_local_cluster_add_worker(arg, &task));
        assert_int_equal(task, 3);
    }
    return CH_OK;
}

static void fit_continues_when_a_worker_is_lost(void **state)
{
    ch_local_cluster *cluster = NULL;
    ch_strategy      *st =
        t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = 3}, NULL, &cluster);
    fixture       x = over(st);
    ch_optimizer *o = NULL;
    ch_callback  *c = NULL;
    ch_history   *h = NULL;

    t_ok(ch_optimizer_sgd(0.1, NULL, NULL, &o));
    t_ok(ch_compile(x.m, &(ch_compile_options){.optimizer = o,
                                               .loss = ch_loss_sparse_categorical,
                                               .metrics = {ch_metric_sparse_accuracy()}}));
    t_ok(ch_callback_of(CH_ON_STEP, kill_one, cluster, &c));
    t_ok(ch_fit(x.m, (ch_data){.n = 2, .array = x.a.t},
                &(ch_fit_options){.epochs = 4, .batch = 4, .n_callbacks = 1, .callback = &c},
                &h));
    assert_true(iterations_of(o) == 4 * 12);
    assert_true(ch_history_at(h, "loss", 3) < ch_history_at(h, "loss", 0));
    ch_history_unref(h);
    ch_callback_unref(c);
    ch_optimizer_unref(o);
    drop_fixture(&x);
    ch_local_cluster_unref(cluster);
    (void)state;
}

static ch_status kill_server(ch_training *t, ch_event event, void *arg)
{
    (void)event;
    if (ch_training_step(t) == 4)
        t_ok(ch_local_cluster_kill(arg, "ps", 1));
    return CH_OK;
}

/* The training ends, and the error names the server. */
static void fit_error_names_the_lost_server(void **state)
{
    ch_local_cluster *cluster = NULL;
    ch_strategy      *st =
        t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = 2}, NULL, &cluster);
    fixture      x = over(st);
    ch_callback *c = NULL;

    t_ok(ch_callback_of(CH_ON_STEP, kill_server, cluster, &c));
    t_refused(
        ch_fit(x.m, (ch_data){.n = 2, .array = x.a.t},
               &(ch_fit_options){.epochs = 100, .batch = 4, .n_callbacks = 1, .callback = &c},
               NULL),
        CH_UNAVAILABLE, "fit: epoch ", "ps/1");
    ch_callback_unref(c);
    drop_fixture(&x);
    ch_local_cluster_unref(cluster);
    (void)state;
}

/* ---- the time table ---- */

static void time_table_on_servers_sums_to_the_total(void **state)
{
    fixture       x = over_servers(2, 1);
    ch_history   *h = train(&x);
    ch_time_table t = ch_history_time(h);
    const double *curve;
    double        sum = 0;
    char          text[2048];

    for (int i = 0; i < CH_TIMES; i++) {
        assert_true(t.seconds[i] >= 0);
        sum += t.seconds[i];
    }
    assert_true(fabs(sum - t.total) <= 1e-9 * t.total);
    assert_true(t.seconds[CH_TIME_WORKERS] > 0 && t.seconds[CH_TIME_VALIDATE] > 0);
    assert_int_equal(t.workers, 2);
    ch_history_print_time(h, text, sizeof(text));
    assert_non_null(strstr(text, "waiting for workers"));
    assert_non_null(strstr(text, "on 2 workers of 1 replica\n"));
    assert_true(ch_history_curve(h, &curve) >= 3);
    ch_history_unref(h);
    drop_fixture(&x);
    (void)state;
}

/* ---- without epochs ---- */

static void train_and_evaluate_on_servers_equals_one_device(void **state)
{
    fixture     a = new_fixture(ONE_DEVICE), b = over_servers(1, 1);
    fixture    *x[] = {&a, &b};
    ch_history *h[2] = {NULL};

    for (int i = 0; i < 2; i++) {
        ch_data d = {.n = 2, .array = x[i]->a.t};

        t_ok(ch_train_and_evaluate(
            x[i]->m, d, d, &(ch_train_evaluate_options){.max_steps = 5, .evaluate_every = 2},
            &h[i]));
    }
    assert_int_equal(ch_history_epochs(h[1]), 1);
    same_history(h[0], h[1]);
    same_vars(a.m, b.m);
    for (int i = 0; i < 2; i++) {
        ch_history_unref(h[i]);
        drop_fixture(x[i]);
    }
    (void)state;
}

/* ---- backup ---- */

/* Ends the training after a step, as if the process had been killed. */
static ch_status kill_at(ch_training *t, ch_event event, void *arg)
{
    (void)event;
    return ch_training_step(t) == *(const int *)arg ? CH_ABORTED : CH_OK;
}

/* Trains as `train` does, with checkpoints after every second step. Returns the history; NULL if
 * the training was killed after step `at`. */
static ch_history *train_with_backup(fixture *x, const char *directory, int at)
{
    ch_dataset  *d = batches(&x->a, 2);
    ch_callback *c[2] = {NULL};
    ch_history  *h = NULL;
    ch_status    rc;

    t_ok(ch_callback_backup(directory, &(ch_backup_options){.every_steps = 2}, &c[0]));
    t_ok(ch_callback_of(CH_ON_STEP, kill_at, &at, &c[1]));
    rc = ch_fit(x->m, (ch_data){.dataset = d},
                &(ch_fit_options){
                    .epochs = 3, .validation = {.dataset = d}, .n_callbacks = 2, .callback = c},
                &h);
    assert_int_equal(rc, at > 0 ? CH_ABORTED : CH_OK);
    if (rc != CH_OK) {
        ch_history_unref(h);
        h = NULL;
    }
    ch_callback_unref(c[0]);
    ch_callback_unref(c[1]);
    ch_dataset_unref(d);
    return h;
}

/* The next job has other servers, and its variables are shards or whole. */
static void backup_on_servers_goes_on_with_the_same_bits(void **state)
{
    for (int i = 0; i < 2; i++) {
        const char *directory = t_path(i == 0 ? "whole" : "shards");
        fixture     want = new_fixture(ONE_DEVICE);
        fixture     killed = over_servers(1, 1);
        fixture     next = i == 0 ? over_servers(1, 1) : over(cut_in_two(1));
        ch_history *h[2] = {train(&want), NULL};

        assert_null(train_with_backup(&killed, directory, 9));
        h[1] = train_with_backup(&next, directory, 0);
        same_history(h[0], h[1]);
        same_vars(want.m, next.m);
        ch_history_unref(h[0]);
        ch_history_unref(h[1]);
        drop_fixture(&want);
        drop_fixture(&killed);
        drop_fixture(&next);
    }
    (void)state;
}

static int set_up(void **state)
{
    return t_four_gpus(state) != 0 ? -1 : t_folder_make(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fit_on_one_worker_equals_one_device_to_the_bit),
        cmocka_unit_test(fit_on_two_devices_of_a_worker_equals_mirrored_to_the_bit),
        cmocka_unit_test(fit_in_synchronous_order_equals_one_device_to_the_bit),
        cmocka_unit_test(model_variables_are_shards_with_part_names),
        cmocka_unit_test(fit_of_shards_equals_one_device_to_the_bit),
        cmocka_unit_test(early_stopping_restores_shards_and_16_bit_variables),
        cmocka_unit_test(fit_counts_every_row_once_in_every_coordinator_mode),
        cmocka_unit_test(model_that_reads_default_is_fitted_to_the_bit),
        cmocka_unit_test(evaluate_runs_on_several_workers),
        cmocka_unit_test(evaluate_on_servers_reads_one_version_of_variables),
        cmocka_unit_test(auc_on_several_workers_equals_one_device),
        cmocka_unit_test(callbacks_on_servers_see_the_values_of_all_steps_so_far),
        cmocka_unit_test(evaluate_in_a_callback_on_servers_does_not_change_the_training),
        cmocka_unit_test(interrupt_ends_fit_on_servers),
        cmocka_unit_test(fit_on_servers_reads_results_of_steps_in_order),
        cmocka_unit_test(fit_error_on_servers_names_epoch_and_step),
        cmocka_unit_test(fit_continues_when_a_worker_is_lost),
        cmocka_unit_test(fit_error_names_the_lost_server),
        cmocka_unit_test(time_table_on_servers_sums_to_the_total),
        cmocka_unit_test(train_and_evaluate_on_servers_equals_one_device),
        cmocka_unit_test(backup_on_servers_goes_on_with_the_same_bits),
    };

    return cmocka_run_group_tests(tests, set_up, t_folder_remove);
}
