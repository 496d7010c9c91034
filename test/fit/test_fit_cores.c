/* test/fit/test_fit_cores.c -- ch_fit, ch_evaluate and ch_predict under a strategy whose
 * replicas have several logical devices: the numbers are those of replicas of one device.
 *
 * The models are f64 networks with dropout whose kernels are split over the logical devices.
 * The last batch is short.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "fit_help.h"

#include "../file/folder.h"
#include "../strategy/cores.h"

enum {
    EPOCHS = 4,
    MOST_LOGS = 24,
    MOST_STEPS = 64,
    STEPS_OF_EPOCH = (ROWS + BATCH - 1) / BATCH
};

/* All numbers of a training, an evaluation and a prediction. */
typedef struct numbers {
    int    n_steps, n_logs;
    double step[MOST_STEPS];       /* the loss after each step */
    double log[EPOCHS][MOST_LOGS]; /* the history of the training */
    double evaluated[MOST_LOGS];   /* that of the evaluation */
    double predicted[ROWS * CLASSES];
    double var[MOST];
} numbers;

static ch_strategy *new_strategy(int n_replicas, int n_cores)
{
    ch_strategy *st = NULL;

    if (n_cores > 1)
        return t_cores_strategy(n_replicas, n_cores, NULL);
    if (n_replicas > 1)
        return t_mirrored(n_replicas);
    t_ok(ch_strategy_one_device("GPU:0", &st));
    return st;
}

/* ---- models ---- */

static ch_model *new_split_model(ch_strategy *st, int n_out, ch_activation last)
{
    ch_layer *net = ch_layer_sequential(
        "net", 4,
        (ch_layer *[]){ch_layer_dense(7, &(ch_layer_dense_options){.activation = CH_TANH}),
                       ch_layer_batch_norm(NULL), ch_layer_dropout(0.25),
                       ch_layer_dense(n_out, &(ch_layer_dense_options){.activation = last})});
    ch_model *m = NULL;

    t_ok(ch_model_new(st, net,
                      &(ch_model_options){.n_inputs = 1,
                                          .input = {{CH_F32, ch_shape_of(-1, WIDTH)}},
                                          .dtype = CH_F64},
                      &m));
    t_ok(ch_var_split(ch_layer_var(net, "dense/kernel"), 2, (int[]){CH_OFF, 0}));
    t_ok(ch_var_split(ch_layer_var(net, "dense/bias"), 1, (int[]){0}));
    t_ok(ch_var_split(ch_layer_var(net, "dense_1/kernel"), 2, (int[]){0, CH_OFF}));
    return m;
}

/* A network that tells three classes apart, with the metrics of labels. */
static ch_model *new_classifier(ch_strategy *st)
{
    ch_model     *m = new_split_model(st, CLASSES, CH_LINEAR);
    ch_optimizer *o = NULL;

    t_ok(ch_optimizer_adam(
        0.01, NULL, &(ch_optimizer_options){.clip_global_norm = 0.5, .average = 0.9}, &o));
    t_ok(ch_compile(
        m,
        &(ch_compile_options){
            .optimizer = o,
            .loss = ch_loss_sparse_categorical,
            .metrics = {ch_metric_sparse_accuracy(), ch_metric_top_k(2),
                        ch_metric_confusion(CLASSES), ch_metric_sparse_cross_entropy()},
            .weighted_metrics = {ch_metric_named(ch_metric_sparse_accuracy(), "weighted")}}));
    ch_optimizer_unref(o);
    return m;
}

/* A network whose output is a probability, with the metrics of two classes. */
static ch_model *new_detector(ch_strategy *st)
{
    ch_model     *m = new_split_model(st, 1, CH_SIGMOID);
    ch_optimizer *o = NULL;

    t_ok(ch_optimizer_lamb(0.02, NULL, &(ch_optimizer_options){.clip_norm = 0.5}, &o));
    t_ok(
        ch_compile(m, &(ch_compile_options){.optimizer = o,
                                            .loss = ch_loss_mse,
                                            .metrics = {ch_metric_mean(), ch_metric_auc(50),
                                                        ch_metric_auc_exact(EPOCHS * ROWS),
                                                        ch_metric_binary_accuracy(0.5),
                                                        ch_metric_f1(0.4), ch_metric_rmse()}}));
    ch_optimizer_unref(o);
    return m;
}

typedef struct network {
    ch_model *(*make)(ch_strategy *st);
    bool is_binary; /* the truth is (rows, 1), of 0 and 1 */
} network;

static const network classifier = {new_classifier, false}, detector = {new_detector, true};

/* Returns inputs, truth and weights. */
static arrays data_of(const network *n)
{
    arrays     a = new_arrays(ROWS);
    ch_tensor *yes;

    if (!n->is_binary)
        return a;
    yes = t_f32(ch_shape_of(ROWS, 1), NULL);
    for (int i = 0; i < ROWS; i++)
        ((float *)ch_tensor_data_mut(yes))[i] = i * 7 % 11 % CLASSES > 0;
    ch_tensor_unref(a.t[1]);
    a.t[1] = yes;
    return a;
}

/* ---- trainings ---- */

static ch_status note_loss(ch_training *t, ch_event event, void *arg)
{
    numbers *out = arg;

    (void)event;
    assert_in_range(out->n_steps, 0, MOST_STEPS - 1);
    out->step[out->n_steps++] = ch_training_get(t, "loss");
    return CH_OK;
}

static int logs_of(const ch_history *h, int epoch, double *out)
{
    int n = ch_history_count(h);

    assert_in_range(n, 1, MOST_LOGS);
    for (int i = 0; i < n; i++)
        out[i] = ch_history_at(h, ch_history_name(h, i), epoch);
    return n;
}

static void copy_vars(ch_model *m, double *out)
{
    ch_var *const *var;
    int            n = ch_model_vars(m, &var), count = 0;

    for (int i = 0; i < n; i++) {
        ch_tensor *t = NULL;

        t_ok(ch_var_get(var[i], &t));
        assert_true(count + ch_tensor_count(t) <= MOST);
        memcpy(out + count, ch_tensor_data(t), ch_tensor_bytes(t));
        count += (int)ch_tensor_count(t);
        ch_tensor_unref(t);
    }
}

/* Trains, evaluates and predicts. Takes over the reference to the strategy. */
static void work_under(ch_strategy *st, const network *net, numbers *out)
{
    ch_model    *m = net->make(st);
    arrays       a = data_of(net);
    ch_data      data = {.n = 3, .array = a.t};
    ch_history  *h = NULL;
    ch_tensor   *guess = NULL;
    ch_callback *callback[2] = {NULL, NULL};

    memset(out, 0, sizeof(*out));
    t_ok(ch_callback_of(CH_ON_STEP, note_loss, out, &callback[0]));
    t_ok(ch_callback_early_stopping(&(ch_callback_early_stopping_options){.monitor = "loss",
                                                                          .patience = EPOCHS,
                                                                          .restore_best = true},
                                    &callback[1]));
    t_ok(ch_fit(m, data,
                &(ch_fit_options){.epochs = EPOCHS,
                                  .batch = BATCH,
                                  .validation = data,
                                  .n_callbacks = 2,
                                  .callback = callback},
                &h));
    assert_int_equal(ch_history_epochs(h), EPOCHS);
    for (int i = 0; i < EPOCHS; i++)
        out->n_logs = logs_of(h, i, out->log[i]);
    ch_history_unref(h);
    copy_vars(m, out->var);
    t_ok(ch_evaluate(m, data, &(ch_evaluate_options){.batch = BATCH}, &h));
    (void)logs_of(h, 0, out->evaluated);
    ch_history_unref(h);
    t_ok(ch_predict(m, data, &(ch_evaluate_options){.batch = BATCH}, &guess));
    memcpy(out->predicted, ch_tensor_data(guess), ch_tensor_bytes(guess));
    ch_tensor_unref(guess);
    for (int i = 0; i < 2; i++)
        ch_callback_unref(callback[i]);
    drop_arrays(&a);
    ch_model_unref(m);
    ch_strategy_unref(st);
}

static void check_numbers(const char *what, int n, const double *got, const double *want)
{
    for (int i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= 1e-9 * (1 + fabs(want[i]))))
            fail_msg("%s %d is %.12g, want %.12g", what, i, got[i], want[i]);
}

static void check_same(const numbers *got, const numbers *want)
{
    assert_int_equal(got->n_steps, want->n_steps);
    assert_int_equal(got->n_logs, want->n_logs);
    check_numbers("loss after step", want->n_steps, got->step, want->step);
    for (int i = 0; i < EPOCHS; i++)
        check_numbers("log", want->n_logs, got->log[i], want->log[i]);
    check_numbers("log of the evaluation", MOST_LOGS, got->evaluated, want->evaluated);
    check_numbers("prediction", ROWS * CLASSES, got->predicted, want->predicted);
    check_numbers("weight", MOST, got->var, want->var);
}

static void check_network(const network *n)
{
    static const int number[][2] = {{1, 2}, {1, 3}, {1, 4}, {1, 6},
                                    {1, 8}, {2, 2}, {2, 3}, {2, 4}};
    static numbers   want[2], got, again;

    work_under(new_strategy(1, 1), n, &want[0]);
    work_under(new_strategy(2, 1), n, &want[1]);
    assert_int_equal(want[0].n_steps, EPOCHS * STEPS_OF_EPOCH);
    for (size_t i = 0; i < sizeof(number) / sizeof(number[0]); i++) {
        work_under(new_strategy(number[i][0], number[i][1]), n, &got);
        check_same(&got, &want[number[i][0] - 1]);
        work_under(new_strategy(number[i][0], number[i][1]), n, &again);
        assert_memory_equal(&got, &again, sizeof(got));
    }
}

static void fit_evaluate_and_predict_on_cores_give_the_numbers_of_one_device(void **state)
{
    (void)state;
    check_network(&classifier);
}

static void metrics_of_two_classes_on_cores_are_those_of_one_device(void **state)
{
    (void)state;
    check_network(&detector);
}

/* ---- images ---- */

enum { IMAGES = 9, SIDE = 8 };

/* Divides the lines of images. */
static ch_node *divide_lines(ch_step *s, int n, ch_node *const *in, bool training,
                             ch_layer *const *layer, void *arg)
{
    ch_node *x = ch_mesh_split(in[0], 4, (int[]){CH_OFF, 0, CH_OFF, CH_OFF});

    (void)n;
    (void)arg;
    return ch_layer_call(layer[0], s, x, training);
}

/* Trains a network on images, evaluates it, and copies its variables. Takes over the reference
 * to the strategy. */
static void train_on_images(ch_strategy *st, double *loss, double *var)
{
    ch_layer *net = ch_layer_sequential(
        "net", 4,
        (ch_layer *[]){
            ch_layer_conv2d(4, 3, 3, &(ch_layer_conv_options){.padding = CH_PAD_SAME}),
            ch_layer_batch_norm(NULL), ch_layer_flatten(), ch_layer_dense(1, NULL)});
    ch_tensor    *t[2] = {t_noise(ch_shape_of(IMAGES, SIDE, SIDE, 1), 5),
                          t_noise(ch_shape_of(IMAGES, 1), 6)};
    ch_data       data = {.n = 2, .array = t};
    ch_model     *m = NULL;
    ch_optimizer *o = NULL;
    ch_history   *h = NULL;

    t_ok(ch_model_new(st, ch_layer_function("divided", divide_lines, NULL, 1, &net),
                      &(ch_model_options){.n_inputs = 1,
                                          .input = {{CH_F32, ch_shape_of(-1, SIDE, SIDE, 1)}},
                                          .dtype = CH_F64},
                      &m));
    t_ok(ch_optimizer_adam(0.01, NULL, NULL, &o));
    t_ok(ch_compile(m, &(ch_compile_options){.optimizer = o, .loss = ch_loss_mse}));
    t_ok(ch_fit(m, data, &(ch_fit_options){.epochs = 2, .batch = BATCH}, &h));
    loss[0] = ch_history_last(h, "loss");
    ch_history_unref(h);
    t_ok(ch_evaluate(m, data, &(ch_evaluate_options){.batch = BATCH}, &h));
    loss[1] = ch_history_last(h, "loss");
    ch_history_unref(h);
    copy_vars(m, var);
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    ch_optimizer_unref(o);
    ch_model_unref(m);
    ch_strategy_unref(st);
}

/* The last batch has one image: the second replica has none. */
static void batch_norm_of_divided_images_trains_when_a_replica_has_no_rows(void **state)
{
    double want[MOST] = {0}, got[MOST] = {0}, want_loss[2], got_loss[2];

    (void)state;
    train_on_images(new_strategy(2, 1), want_loss, want);
    for (int n_cores = 2; n_cores <= 4; n_cores++) {
        train_on_images(new_strategy(2, n_cores), got_loss, got);
        check_numbers("loss", 2, got_loss, want_loss);
        check_numbers("weight", MOST, got, want);
    }
}

/* ---- checkpoints ---- */

enum { STOP = 9 }; /* steps after which a training fails */

static ch_status fail_at_stop(ch_training *t, ch_event event, void *arg)
{
    (void)event;
    if (*(const bool *)arg && ch_training_step(t) == STOP)
        return ch_fail(CH_CANCELLED, "it stops here");
    return CH_OK;
}

/* Trains, and saves in `folder` if that is not NULL. Takes over the reference to the
 * strategy. */
static ch_status train(ch_strategy *st, const char *folder, bool stops, double *var)
{
    ch_model    *m = new_classifier(st);
    arrays       a = data_of(&classifier);
    ch_callback *callback[2] = {NULL, NULL};
    ch_status    rc;

    t_ok(ch_callback_of(CH_ON_STEP, fail_at_stop, &stops, &callback[0]));
    if (folder != NULL)
        t_ok(ch_callback_backup(folder, &(ch_backup_options){.every_steps = 5}, &callback[1]));
    rc = ch_fit(m, (ch_data){.n = 2, .array = a.t},
                &(ch_fit_options){.epochs = EPOCHS,
                                  .batch = BATCH,
                                  .n_callbacks = folder != NULL ? 2 : 1,
                                  .callback = callback},
                NULL);
    copy_vars(m, var);
    for (int i = 0; i < 2; i++)
        ch_callback_unref(callback[i]);
    drop_arrays(&a);
    ch_model_unref(m);
    ch_strategy_unref(st);
    return rc;
}

/* A training continues on other numbers of logical devices than those that it was saved on. */
static void training_continues_from_a_checkpoint_on_other_cores(void **state)
{
    static const int number[][2] = {{4, 4}, {4, 3}, {1, 4}, {4, 1}, {8, 2}};
    double           want[MOST] = {0}, got[MOST] = {0}, same[MOST] = {0};

    (void)state;
    t_ok(train(new_strategy(1, 1), NULL, false, want));
    t_ok(train(new_strategy(1, 4), NULL, false, same));
    for (size_t i = 0; i < sizeof(number) / sizeof(number[0]); i++) {
        char name[16];

        snprintf(name, sizeof(name), "run-%d", (int)i);
        assert_int_equal(train(new_strategy(1, number[i][0]), t_path(name), true, got),
                         CH_CANCELLED);
        t_ok(train(new_strategy(1, number[i][1]), t_path(name), false, got));
        check_numbers("weight", MOST, got, want);
        if (i == 0)
            assert_memory_equal(got, same, sizeof(got));
    }
}

static int set_up(void **state)
{
    return t_folder_make(state) == 0 ? t_eight_gpus(state) : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fit_evaluate_and_predict_on_cores_give_the_numbers_of_one_device),
        cmocka_unit_test(metrics_of_two_classes_on_cores_are_those_of_one_device),
        cmocka_unit_test(batch_norm_of_divided_images_trains_when_a_replica_has_no_rows),
        cmocka_unit_test(training_continues_from_a_checkpoint_on_other_cores),
    };

    return cmocka_run_group_tests(tests, set_up, t_folder_remove);
}
