/* test/fit/test_fit_edges.c -- compile, fit, evaluate and predict in unusual cases: data that
 * is empty or has ended, invalid arguments, calls inside callbacks, and trainings that are
 * stopped.
 *
 * Errors must name the call and a line of the program.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "cohort/ops.h"
#include "fit_help.h"

/* ---- data that is empty or has ended ---- */

static ch_data arrays_of(const fixture *x)
{
    return (ch_data){.n = 2, .array = x->a.t};
}

/* Each call reads all of the data: an iterator that has ended is restarted. */
static void evaluate_restarts_an_iterator_that_has_ended(void **state)
{
    fixture      x = new_fixture(MIRRORED_2);
    ch_dataset  *d = batches(&x.a, 2);
    ch_iterator *it = NULL;
    ch_history  *h[2] = {NULL, NULL};
    ch_tensor   *y = NULL;

    t_ok(ch_strategy_distribute_dataset(x.st, d, NULL, &it));
    for (int i = 0; i < 2; i++) {
        t_ok(ch_evaluate(x.m, (ch_data){.iterator = it}, NULL, &h[i]));
        assert_int_equal(ch_history_time(h[i]).examples, ROWS);
    }
    assert_true(ch_history_last(h[0], "sparse_accuracy") ==
                ch_history_last(h[1], "sparse_accuracy"));
    t_ok(ch_predict(x.m, (ch_data){.iterator = it}, NULL, &y));
    assert_int_equal(ch_tensor_shape(y).dim[0], ROWS);
    ch_history_unref(h[0]);
    t_ok(ch_fit(x.m, arrays_of(&x),
                &(ch_fit_options){.epochs = 2, .validation = {.iterator = it}}, &h[0]));
    assert_true(ch_history_at(h[0], "val_loss", 0) > 0);
    assert_true(ch_history_at(h[0], "val_loss", 1) > 0);
    ch_history_unref(h[0]);
    t_ok(ch_fit(x.m, (ch_data){.iterator = it}, NULL, &h[0]));
    assert_int_equal(ch_history_time(h[0]).examples, ROWS);
    ch_history_unref(h[0]);
    ch_history_unref(h[1]);
    ch_tensor_unref(y);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    drop_fixture(&x);
    (void)state;
}

/* The call continues at the iterator's position: after two of six batches it reads four. */
static void evaluate_continues_an_iterator_at_its_position(void **state)
{
    fixture      x = new_fixture(DEFAULT);
    ch_dataset  *d = batches(&x.a, 2);
    ch_iterator *it = NULL;
    ch_history  *h = NULL;

    t_ok(ch_strategy_distribute_dataset(x.st, d, NULL, &it));
    t_ok(ch_evaluate(x.m, (ch_data){.iterator = it}, &(ch_evaluate_options){.steps = 2}, &h));
    assert_int_equal(ch_history_time(h).examples, 2 * BATCH);
    ch_history_unref(h);
    t_ok(ch_evaluate(x.m, (ch_data){.iterator = it}, NULL, &h));
    assert_int_equal(ch_history_time(h).examples, ROWS - 2 * BATCH);
    ch_history_unref(h);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    drop_fixture(&x);
    (void)state;
}

static void evaluate_rejects_data_without_rows(void **state)
{
    fixture     x = new_fixture(MIRRORED_2);
    ch_dataset *none = ch_dataset_take(batches(&x.a, 2), 0);
    ch_tensor  *empty[2] = {t_f32(ch_shape_of(0, WIDTH), NULL), labels(0)};
    ch_data     no[2] = {{.dataset = none}, {.n = 2, .array = empty}};
    ch_history *h = NULL;

    for (int i = 0; i < 2; i++) {
        t_refused(ch_evaluate(x.m, no[i], NULL, &h), CH_INVALID_ARGUMENT, "evaluate",
                  "no elements");
        assert_null(h);
        t_refused(ch_fit(x.m, arrays_of(&x), &(ch_fit_options){.validation = no[i]}, NULL),
                  CH_INVALID_ARGUMENT, "validation", "no elements");
        t_refused(ch_fit(x.m, no[i], NULL, NULL), CH_INVALID_ARGUMENT, "fit", "no elements");
    }
    ch_tensor_unref(empty[0]);
    ch_tensor_unref(empty[1]);
    ch_dataset_unref(none);
    drop_fixture(&x);
    (void)state;
}

static void fit_names_ch_dataset_batch_when_the_data_has_no_batches(void **state)
{
    fixture     x = new_fixture(DEFAULT);
    ch_dataset *d = ch_dataset_slices(2, x.a.t, NULL);
    ch_history *h = NULL;
    char        text[2048];

    t_refused(ch_fit(x.m, (ch_data){.dataset = d}, NULL, &h), CH_INVALID_ARGUMENT,
              "gives single elements (the truth is a scalar)", "add ch_dataset_batch");
    ch_history_print_time(h, text, sizeof(text));
    assert_null(strstr(text, " wait for ")); /* no advice after a failure */
    ch_history_unref(h);
    t_refused(ch_evaluate(x.m, (ch_data){.dataset = d}, NULL, NULL), CH_INVALID_ARGUMENT,
              "gives single elements", "add ch_dataset_batch");
    ch_dataset_unref(d);
    drop_fixture(&x);
    (void)state;
}

/* A pass over endless data would never return. */
static void fit_rejects_endless_data_without_a_number_of_steps(void **state)
{
    fixture      x = new_fixture(MIRRORED_2);
    ch_dataset  *d = ch_dataset_repeat(batches(&x.a, 2), CH_INFINITE);
    ch_data      endless = {.dataset = d};
    ch_tensor   *y = NULL;
    ch_iterator *it = NULL;

    t_ok(ch_strategy_distribute_dataset(x.st, d, NULL, &it));
    t_refused(ch_fit(x.m, endless, NULL, NULL), CH_INVALID_ARGUMENT, "fit", "infinite");
    t_refused(ch_fit(x.m, (ch_data){.iterator = it}, NULL, NULL), CH_INVALID_ARGUMENT, "fit",
              "infinite");
    t_refused(ch_fit(x.m, arrays_of(&x), &(ch_fit_options){.validation = endless}, NULL),
              CH_INVALID_ARGUMENT, "validation", "infinite");
    t_refused(ch_evaluate(x.m, endless, NULL, NULL), CH_INVALID_ARGUMENT, "evaluate",
              "infinite");
    t_refused(ch_predict(x.m, endless, NULL, &y), CH_INVALID_ARGUMENT, "predict", "infinite");
    assert_null(y);
    t_ok(ch_fit(
        x.m, endless,
        &(ch_fit_options){.steps_per_epoch = 3, .validation = endless, .validation_steps = 2},
        NULL));
    t_ok(ch_predict(x.m, endless, &(ch_evaluate_options){.steps = 2}, &y));
    assert_int_equal(ch_tensor_shape(y).dim[0], 2 * BATCH);
    ch_tensor_unref(y);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    drop_fixture(&x);
    (void)state;
}

static void predict_of_no_rows_has_the_shape_of_the_output(void **state)
{
    for (int which = 0; which < STRATEGIES; which++) {
        fixture    x = new_fixture(which);
        ch_tensor *empty = t_f32(ch_shape_of(0, WIDTH), NULL), *y = NULL;

        t_ok(ch_predict(x.m, (ch_data){.n = 1, .array = &empty}, NULL, &y));
        assert_int_equal(ch_tensor_shape(y).rank, 2);
        assert_int_equal(ch_tensor_shape(y).dim[0], 0);
        assert_int_equal(ch_tensor_shape(y).dim[1], CLASSES);
        ch_tensor_unref(y);
        ch_tensor_unref(empty);
        drop_fixture(&x);
    }
    (void)state;
}

/* Shares that f64 cannot represent exactly: of ten rows 0.8 leaves two, and 0.9 a single
 * row. */
static void validation_split_counts_whole_rows(void **state)
{
    static const struct {
        double  split;
        int64_t rows;
    } want[] = {{0.1, 9}, {0.2, 8}, {0.3, 7}, {0.7, 3}, {0.8, 2}, {0.9, 1}, {0.25, 7}};
    fixture x = new_fixture(DEFAULT);
    arrays  ten = new_arrays(10);

    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        ch_history *h = NULL;

        t_ok(ch_fit(x.m, (ch_data){.n = 2, .array = ten.t},
                    &(ch_fit_options){.validation_split = want[i].split}, &h));
        assert_int_equal(ch_history_time(h).examples, want[i].rows);
        assert_true(ch_history_at(h, "val_loss", 0) > 0);
        ch_history_unref(h);
    }
    t_refused(ch_fit(x.m, (ch_data){.n = 2, .array = ten.t},
                     &(ch_fit_options){.validation_split = 0.95}, NULL),
              CH_INVALID_ARGUMENT, "validation_split", "none of 10 rows");
    drop_arrays(&ten);
    drop_fixture(&x);
    (void)state;
}

/* An earlier error is not reported as the reason, unless it was the failed creation of a
 * dataset. */
static void fit_without_data_reports_the_error_of_the_dataset(void **state)
{
    fixture x = new_fixture(DEFAULT);

    t_refused(ch_fit(NULL, (ch_data){.dataset = NULL}, NULL, NULL), CH_INVALID_ARGUMENT, "fit",
              "the model is NULL");
    t_refused(ch_fit(x.m, (ch_data){.dataset = NULL}, NULL, NULL), CH_INVALID_ARGUMENT,
              "no data", "give a dataset");
    assert_null(strstr(ch_error_message(), "the model is NULL"));
    t_refused(ch_fit(x.m, (ch_data){.dataset = ch_dataset_batch(batches(&x.a, 2), -3, NULL)},
                     NULL, NULL),
              CH_INVALID_ARGUMENT, "could not be made", "-3");
    t_refused(ch_fit(x.m, (ch_data){.dataset = NULL}, NULL, NULL), CH_INVALID_ARGUMENT,
              "no data", "give a dataset");
    drop_fixture(&x);
    (void)state;
}

/* ---- losses ---- */

static ch_node *of_two_shapes(ch_node *guess, ch_node *truth)
{
    return ch_matmul(guess, false, truth, false);
}

static void silent(ch_step *s, ch_model *m, void *arg)
{
    ch_node       *y = ch_model_call(m, s, ch_step_in(s, 0), true);
    ch_node       *each = ch_loss_sparse_categorical(y, ch_step_in(s, 1));
    ch_var *const *var;
    int            n = ch_model_trainable(m, &var);

    ch_optimizer_minimize(arg, s, ch_loss_average(each, NULL), n, var);
}

static ch_optimizer *new_sgd(void)
{
    ch_optimizer *o = NULL;

    t_ok(ch_optimizer_sgd(0.1, NULL, NULL, &o));
    return o;
}

/* Returns the labels as one-hot rows. */
static ch_tensor *one_hot(const arrays *a)
{
    ch_tensor *t = t_f32(ch_shape_of(ROWS, CLASSES), NULL);

    for (int i = 0; i < ROWS * CLASSES; i++)
        ((float *)ch_tensor_data_mut(t))[i] =
            ((const int32_t *)ch_tensor_data(a->t[1]))[i / CLASSES] == i % CLASSES ? 1 : 0;
    return t;
}

/* Computes the loss of a prediction and a target by the formula. */
static double huber_by_hand(const float *y, const float *t, double delta)
{
    double sum = 0;

    for (int i = 0; i < ROWS * CLASSES; i++) {
        double e = fabs((double)y[i] - (double)t[i]);

        sum += e <= delta ? e * e / 2 : delta * (e - delta / 2);
    }
    return sum / (ROWS * CLASSES);
}

static void compile_accepts_a_loss_with_an_argument(void **state)
{
    fixture       x = new_fixture(MIRRORED_2);
    ch_tensor    *truth = one_hot(&x.a), *y = NULL;
    ch_optimizer *o = new_sgd();
    ch_data       d = {.n = 2, .array = (ch_tensor *[]){x.a.t[0], truth}};
    double        before = 0;

    t_ok(ch_predict(x.m, d, NULL, &y));
    for (double delta = 0.1; delta < 1; delta += 0.4) {
        ch_history *h = NULL;

        t_ok(ch_compile(x.m, &(ch_compile_options){.optimizer = o,
                                                   .loss_with = ch_loss_huber,
                                                   .loss_arg = delta}));
        t_ok(ch_evaluate(x.m, d, NULL, &h));
        assert_true(fabs(ch_history_last(h, "loss") -
                         huber_by_hand(ch_tensor_data(y), ch_tensor_data(truth), delta)) <
                    1e-5);
        assert_true(ch_history_last(h, "loss") != before);
        before = ch_history_last(h, "loss");
        ch_history_unref(h);
    }
    t_ok(ch_fit(x.m, d, NULL, NULL));
    t_ok(ch_compile(x.m,
                    &(ch_compile_options){.optimizer = o, .loss_with = ch_loss_categorical}));
    t_ok(ch_fit(x.m, d, NULL, NULL));
    t_refused(
        ch_compile(x.m, &(ch_compile_options){.loss = ch_loss_mse, .loss_with = ch_loss_huber}),
        CH_INVALID_ARGUMENT, "loss", "loss_with");
    ch_tensor_unref(y);
    ch_tensor_unref(truth);
    ch_optimizer_unref(o);
    drop_fixture(&x);
    (void)state;
}

/* A value without any logged number is NaN. */
static void train_step_without_logs_has_no_loss(void **state)
{
    fixture       x = new_fixture(MIRRORED_2);
    ch_optimizer *o = new_sgd();
    ch_history   *h = NULL;

    t_ok(ch_compile(x.m, &(ch_compile_options){.loss = ch_loss_sparse_categorical,
                                               .metrics = {ch_metric_sparse_accuracy()},
                                               .train_step = silent,
                                               .step_arg = o}));
    t_ok(ch_fit(x.m, arrays_of(&x), &(ch_fit_options){.epochs = 2, .validation = arrays_of(&x)},
                &h));
    assert_int_equal(ch_history_epochs(h), 2);
    assert_true(isnan(ch_history_at(h, "loss", 0)));
    assert_true(isnan(ch_history_at(h, "sparse_accuracy", 0)));
    assert_true(ch_history_at(h, "val_loss", 1) > 0);
    assert_false(isnan(ch_history_at(h, "val_sparse_accuracy", 1)));
    ch_history_unref(h);
    ch_optimizer_unref(o);
    drop_fixture(&x);
    (void)state;
}

/* If the message contains a source line, the line must be in this file. */
static void names_a_line_of_ours(void)
{
    const char *text = ch_error_message();

    if (strstr(text, ".c:") != NULL && strstr(text, "test_fit_edges.c:") == NULL)
        fail_msg("%s", text);
}

/* The line is that of the call, whatever fails in a step that the library records. */
static void fit_errors_name_a_line_of_the_program(void **state)
{
    fixture       x = new_fixture(DEFAULT);
    ch_tensor    *truth = one_hot(&x.a), *y = NULL;
    ch_data       d = {.n = 2, .array = (ch_tensor *[]){x.a.t[0], truth}};
    ch_optimizer *o = new_sgd();

    t_refused(ch_fit(x.m, d, NULL, NULL), CH_INVALID_ARGUMENT, "fit", "want i32");
    names_a_line_of_ours();
    t_refused(ch_evaluate(x.m, d, NULL, NULL), CH_INVALID_ARGUMENT, "evaluation", "want i32");
    names_a_line_of_ours();
    t_refused(ch_predict(x.m, (ch_data){.n = 1, .array = &x.a.t[1]}, NULL, &y),
              CH_INVALID_ARGUMENT, "predict", "dense");
    names_a_line_of_ours();
    t_ok(ch_compile(x.m, &(ch_compile_options){.optimizer = o, .loss = of_two_shapes}));
    t_refused(ch_fit(x.m, arrays_of(&x), NULL, NULL), CH_INVALID_ARGUMENT, "fit", "matmul");
    names_a_line_of_ours();
    ch_optimizer_unref(o);
    ch_tensor_unref(truth);
    drop_fixture(&x);
    (void)state;
}

/* ---- invalid arguments ---- */

static ch_status make_nothing(ch_strategy *st, const char *name, double number, ch_metric **out)
{
    (void)st, (void)name, (void)number, (void)out;
    return CH_OK;
}

static ch_status fail_silently(ch_strategy *st, const char *name, double number,
                               ch_metric **out)
{
    (void)st, (void)name, (void)number, (void)out;
    return CH_INTERNAL;
}

static void compile_error_names_a_metric_that_was_not_made(void **state)
{
    fixture x = new_fixture(DEFAULT);

    t_refused(ch_compile(x.m, &(ch_compile_options){.metrics = {{.make = make_nothing}}}),
              CH_INVALID_ARGUMENT, "metric 0", "no metric");
    t_refused(
        ch_compile(x.m, &(ch_compile_options){.weighted_metrics = {ch_metric_mse(),
                                                                   {.make = fail_silently}}}),
        CH_INTERNAL, "weighted metric 1", ch_status_text(CH_INTERNAL));
    drop_fixture(&x);
    (void)state;
}

static void fit_rejects_invalid_lists_of_callbacks(void **state)
{
    fixture      x = new_fixture(DEFAULT);
    ch_callback *none = NULL;

    t_refused(ch_fit(x.m, arrays_of(&x), &(ch_fit_options){.n_callbacks = 1}, NULL),
              CH_INVALID_ARGUMENT, "fit", "callbacks");
    t_refused(ch_fit(x.m, arrays_of(&x),
                     &(ch_fit_options){.n_callbacks = -1, .progress = CH_PROGRESS_JSON}, NULL),
              CH_INVALID_ARGUMENT, "fit", "callbacks");
    t_refused(ch_fit(x.m, arrays_of(&x), &(ch_fit_options){.n_callbacks = 1, .callback = &none},
                     NULL),
              CH_INVALID_ARGUMENT, "callback 0", "NULL");
    t_refused(ch_evaluate(x.m, arrays_of(&x), &(ch_evaluate_options){.n_callbacks = -1}, NULL),
              CH_INVALID_ARGUMENT, "evaluate", "callbacks");
    drop_fixture(&x);
    (void)state;
}

/* ---- calls inside callbacks ---- */

typedef struct inner {
    fixture *x;
    double   loss; /* of the evaluation in the training */
    int      n;
} inner;

static ch_status evaluate_inside(ch_training *t, ch_event event, void *arg)
{
    inner      *in = arg;
    ch_history *h = NULL;
    ch_tensor  *y = NULL;
    double      before = ch_training_get(t, "loss");

    (void)event;
    t_ok(ch_evaluate(in->x->m, (ch_data){.n = 2, .array = in->x->a.t}, NULL, &h));
    t_ok(ch_predict(in->x->m, (ch_data){.n = 1, .array = in->x->a.t}, NULL, &y));
    in->loss = ch_history_last(h, "loss");
    in->n++;
    assert_true(ch_training_get(t, "loss") == before);
    ch_tensor_unref(y);
    ch_history_unref(h);
    return CH_OK;
}

/* The results and the variables of a training have the same bits whether a callback evaluates
 * or not. */
static void evaluate_in_a_callback_does_not_change_the_training(void **state)
{
    double       loss[2], accuracy[2];
    float        var[2][MOST];
    int          n = 0;
    ch_callback *c = NULL;

    for (int inside = 0; inside < 2; inside++) {
        fixture     x = new_fixture(MIRRORED_2);
        inner       in = {.x = &x};
        ch_history *h = NULL;

        t_ok(ch_callback_of(CH_ON_STEP | CH_ON_VALIDATION_STEP | CH_ON_EPOCH_END,
                            evaluate_inside, &in, &c));
        t_ok(ch_fit(x.m, arrays_of(&x),
                    &(ch_fit_options){.epochs = 2,
                                      .batch = 20,
                                      .validation = arrays_of(&x),
                                      .n_callbacks = inside,
                                      .callback = &c},
                    &h));
        loss[inside] = ch_history_last(h, "loss") + ch_history_last(h, "val_loss");
        accuracy[inside] = ch_history_last(h, "sparse_accuracy");
        n = vars_of(x.m, var[inside]);
        if (inside)
            assert_true(in.n == 14 && fabs(in.loss - ch_history_last(h, "val_loss")) < 1e-6);
        ch_history_unref(h);
        ch_callback_unref(c);
        drop_fixture(&x);
    }
    assert_true(loss[0] == loss[1] && accuracy[0] == accuracy[1]);
    assert_memory_equal(var[0], var[1], (size_t)n * sizeof(float));
    (void)state;
}

static ch_status meddle(ch_training *t, ch_event event, void *arg)
{
    fixture *x = arg;

    (void)t, (void)event;
    t_refused(ch_compile(x->m, NULL), CH_FAILED_PRECONDITION, "compile", "callback");
    t_refused(ch_fit(x->m, (ch_data){.n = 2, .array = x->a.t}, NULL, NULL),
              CH_FAILED_PRECONDITION, "fit", "callback");
    return CH_OK;
}

static void model_in_use_rejects_compile_and_fit(void **state)
{
    fixture      x = new_fixture(MIRRORED_2);
    ch_callback *c = NULL;
    ch_tensor   *y = NULL;

    t_ok(ch_callback_of(CH_ON_BEGIN | CH_ON_STEP | CH_ON_END, meddle, &x, &c));
    t_ok(ch_fit(x.m, arrays_of(&x), &(ch_fit_options){.n_callbacks = 1, .callback = &c}, NULL));
    t_ok(ch_evaluate(x.m, arrays_of(&x),
                     &(ch_evaluate_options){.n_callbacks = 1, .callback = &c}, NULL));
    compile(x.m);
    t_ok(ch_fit(x.m, arrays_of(&x), NULL, NULL));
    t_ok(ch_predict(x.m, arrays_of(&x), NULL, &y));
    ch_tensor_unref(y);
    ch_callback_unref(c);
    drop_fixture(&x);
    (void)state;
}

/* ---- stopping ---- */

typedef struct stopping {
    ch_event when;
    int      after; /* number of events of that kind */
    bool     fails; /* returns an error instead of stopping */
    int      n, ends;
    int      epoch; /* number of epochs at the end */
    int64_t  steps; /* steps of an epoch, read at the beginning */
} stopping;

static ch_status stop_then(ch_training *t, ch_event event, void *arg)
{
    stopping *s = arg;

    if (event == CH_ON_BEGIN)
        s->steps = ch_training_epoch_steps(t);
    if (event == CH_ON_END) {
        s->ends++;
        s->epoch = ch_training_epoch(t);
    }
    if (event != s->when || ++s->n < s->after)
        return CH_OK;
    if (s->fails)
        return CH_UNAVAILABLE;
    ch_training_stop(t, "enough");
    return CH_OK;
}

static ch_callback *stop_at(stopping *s)
{
    ch_callback *c = NULL;

    t_ok(ch_callback_of((CH_ON_END << 1) - 1, stop_then, s, &c));
    return c;
}

/* An epoch that was stopped before its first step is not recorded, because its loss would be
 * the best of all. */
static void epoch_stopped_before_its_first_step_is_not_in_the_history(void **state)
{
    fixture      x = new_fixture(MIRRORED_2);
    stopping     s = {.when = CH_ON_EPOCH_BEGIN, .after = 2};
    ch_callback *c = stop_at(&s);
    ch_history  *h = NULL;

    t_ok(ch_fit(x.m, arrays_of(&x),
                &(ch_fit_options){.epochs = 5, .n_callbacks = 1, .callback = &c}, &h));
    assert_int_equal(ch_history_epochs(h), 1);
    assert_true(ch_history_at(h, "loss", 0) > 0);
    assert_string_equal(ch_history_stopped(h), "enough");
    assert_int_equal(s.epoch, 0);
    ch_history_unref(h);
    s = (stopping){.when = CH_ON_EPOCH_BEGIN, .after = 1};
    t_ok(ch_fit(x.m, arrays_of(&x),
                &(ch_fit_options){.epochs = 5, .n_callbacks = 1, .callback = &c}, &h));
    assert_int_equal(ch_history_epochs(h), 0);
    ch_history_unref(h);
    ch_callback_unref(c);
    drop_fixture(&x);
    (void)state;
}

/* A validation ends with the step in which it is stopped, and gives no values, because
 * callbacks could take them for the best. */
static void validation_stopped_by_a_callback_has_no_values(void **state)
{
    fixture      x = new_fixture(MIRRORED_2);
    stopping     s = {.when = CH_ON_VALIDATION_STEP, .after = 2};
    ch_callback *c = stop_at(&s);
    ch_history  *h = NULL;
    ch_tensor   *y = NULL;

    t_ok(ch_fit(x.m, arrays_of(&x),
                &(ch_fit_options){.epochs = 5,
                                  .batch = 5,
                                  .validation = arrays_of(&x),
                                  .n_callbacks = 1,
                                  .callback = &c},
                &h));
    assert_int_equal(s.n, 2);
    assert_int_equal(ch_history_epochs(h), 1);
    assert_true(isnan(ch_history_at(h, "val_loss", 0)) && ch_history_at(h, "loss", 0) > 0);
    assert_string_equal(ch_history_stopped(h), "enough");
    ch_history_unref(h);
    s = (stopping){.when = CH_ON_VALIDATION_STEP, .after = 3};
    ch_evaluate_options o = {.batch = 5, .n_callbacks = 1, .callback = &c};
    t_ok(ch_evaluate(x.m, arrays_of(&x), &o, &h));
    assert_int_equal(ch_history_time(h).examples, 15);
    assert_string_equal(ch_history_stopped(h), "enough");
    ch_history_unref(h);
    s = (stopping){.when = CH_ON_VALIDATION_STEP, .after = 3};
    t_ok(ch_predict(x.m, arrays_of(&x), &o, &y));
    assert_int_equal(ch_tensor_shape(y).dim[0], 15);
    ch_tensor_unref(y);
    ch_callback_unref(c);
    drop_fixture(&x);
    (void)state;
}

/* The arrays fit in a single batch, so there is no iterator. */
static void predict_that_is_stopped_before_its_only_batch_gives_no_rows(void **state)
{
    fixture      x = new_fixture(MIRRORED_2);
    stopping     s = {.when = CH_ON_VALIDATION_BEGIN, .after = 1};
    ch_callback *c = stop_at(&s);
    ch_tensor   *y = NULL;

    t_ok(ch_predict(x.m, (ch_data){.n = 1, .array = x.a.t},
                    &(ch_evaluate_options){.batch = 1000, .n_callbacks = 1, .callback = &c},
                    &y));
    assert_int_equal(s.n, 1);
    assert_int_equal(ch_tensor_shape(y).dim[0], 0);
    assert_int_equal(ch_tensor_shape(y).dim[1], CLASSES);
    ch_tensor_unref(y);
    ch_callback_unref(c);
    drop_fixture(&x);
    (void)state;
}

/* A training that was stopped in a step is still validated, because callbacks such as early
 * stopping need the value. */
static void fit_stopped_in_a_step_is_still_validated(void **state)
{
    fixture      x = new_fixture(MIRRORED_2);
    stopping     s = {.when = CH_ON_STEP, .after = 2};
    ch_callback *c = stop_at(&s);
    ch_history  *h = NULL;

    t_ok(ch_fit(x.m, arrays_of(&x),
                &(ch_fit_options){
                    .epochs = 5, .validation = arrays_of(&x), .n_callbacks = 1, .callback = &c},
                &h));
    assert_true(ch_history_last(h, "val_loss") > 0);
    ch_history_unref(h);
    ch_callback_unref(c);
    drop_fixture(&x);
    (void)state;
}

static void callbacks_get_the_end_event_after_an_error(void **state)
{
    fixture             x = new_fixture(MIRRORED_2);
    stopping            s = {.when = CH_ON_VALIDATION_STEP, .after = 2, .fails = true};
    ch_callback        *c = stop_at(&s);
    ch_evaluate_options o = {.batch = 5, .n_callbacks = 1, .callback = &c};
    ch_tensor          *y = NULL;

    t_refused(ch_evaluate(x.m, arrays_of(&x), &o, NULL), CH_UNAVAILABLE, "callback", "");
    assert_int_equal(s.ends, 1);
    s = (stopping){.when = CH_ON_VALIDATION_STEP, .after = 2, .fails = true};
    t_refused(ch_predict(x.m, arrays_of(&x), &o, &y), CH_UNAVAILABLE, "callback", "");
    assert_int_equal(s.ends, 1);
    s = (stopping){.when = CH_ON_BEGIN, .after = 1, .fails = true};
    t_refused(
        ch_fit(x.m, arrays_of(&x), &(ch_fit_options){.n_callbacks = 1, .callback = &c}, NULL),
        CH_UNAVAILABLE, "callback", "");
    assert_int_equal(s.ends, 1);
    ch_callback_unref(c);
    drop_fixture(&x);
    (void)state;
}

static void fit_counts_epochs_from_initial_epoch(void **state)
{
    fixture      x = new_fixture(MIRRORED_2);
    stopping     s = {.when = (ch_event)0};
    ch_callback *c = stop_at(&s);

    t_ok(ch_fit(
        x.m, arrays_of(&x),
        &(ch_fit_options){
            .epochs = 4, .initial_epoch = 2, .batch = 10, .n_callbacks = 1, .callback = &c},
        NULL));
    assert_int_equal(s.steps, 5);
    assert_int_equal(s.epoch, 3);
    t_ok(ch_evaluate(x.m, arrays_of(&x),
                     &(ch_evaluate_options){.batch = 10, .n_callbacks = 1, .callback = &c},
                     NULL));
    assert_int_equal(s.steps, 5);
    assert_int_equal(s.epoch, 0);
    ch_callback_unref(c);
    drop_fixture(&x);
    (void)state;
}

/* ---- train and evaluate ---- */

static ch_status see_epochs(ch_training *t, ch_event event, void *arg)
{
    (void)event;
    *(int *)arg = ch_training_epochs(t);
    return CH_OK;
}

static void train_and_evaluate_rejects_invalid_options(void **state)
{
    fixture      x = new_fixture(MIRRORED_2);
    ch_data      d = arrays_of(&x);
    int          epochs = -1;
    ch_callback *c = NULL;

    t_refused(ch_train_and_evaluate(x.m, d, d,
                                    &(ch_train_evaluate_options){.monitor = "val_los"}, NULL),
              CH_INVALID_ARGUMENT, "\"val_los\"", "val_loss");
    t_refused(ch_train_and_evaluate(x.m, d, d,
                                    &(ch_train_evaluate_options){.goal = (ch_goal)99}, NULL),
              CH_INVALID_ARGUMENT, "goal", "99");
    t_ok(ch_callback_of(CH_ON_END, see_epochs, &epochs, &c));
    t_ok(ch_train_and_evaluate(
        x.m, d, d, &(ch_train_evaluate_options){.fit = {.n_callbacks = 1, .callback = &c}},
        NULL));
    assert_int_equal(epochs, 0);
    ch_callback_unref(c);
    drop_fixture(&x);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(predict_that_is_stopped_before_its_only_batch_gives_no_rows),
        cmocka_unit_test(evaluate_restarts_an_iterator_that_has_ended),
        cmocka_unit_test(evaluate_continues_an_iterator_at_its_position),
        cmocka_unit_test(evaluate_rejects_data_without_rows),
        cmocka_unit_test(fit_names_ch_dataset_batch_when_the_data_has_no_batches),
        cmocka_unit_test(fit_rejects_endless_data_without_a_number_of_steps),
        cmocka_unit_test(predict_of_no_rows_has_the_shape_of_the_output),
        cmocka_unit_test(validation_split_counts_whole_rows),
        cmocka_unit_test(fit_without_data_reports_the_error_of_the_dataset),
        cmocka_unit_test(compile_accepts_a_loss_with_an_argument),
        cmocka_unit_test(train_step_without_logs_has_no_loss),
        cmocka_unit_test(fit_errors_name_a_line_of_the_program),
        cmocka_unit_test(compile_error_names_a_metric_that_was_not_made),
        cmocka_unit_test(fit_rejects_invalid_lists_of_callbacks),
        cmocka_unit_test(evaluate_in_a_callback_does_not_change_the_training),
        cmocka_unit_test(model_in_use_rejects_compile_and_fit),
        cmocka_unit_test(epoch_stopped_before_its_first_step_is_not_in_the_history),
        cmocka_unit_test(validation_stopped_by_a_callback_has_no_values),
        cmocka_unit_test(fit_stopped_in_a_step_is_still_validated),
        cmocka_unit_test(callbacks_get_the_end_event_after_an_error),
        cmocka_unit_test(fit_counts_epochs_from_initial_epoch),
        cmocka_unit_test(train_and_evaluate_rejects_invalid_options),
    };

    return cmocka_run_group_tests(tests, t_four_gpus, NULL);
}
