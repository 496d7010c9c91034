/* test/fit/test_fit.c -- compile, fit, evaluate and predict under every strategy, compared with
 * a training loop that the test writes itself.
 *
 * The results of ch_fit must have the bits of that loop. Further tests cover options, class
 * weights, scopes, callbacks, the time table, and ch_train_and_evaluate.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/thread.h"
#include "fit/history.h"
#include "fit_help.h"
#include "train/model.h"

enum { EPOCHS = 3 };

/* ---- a hand-written loop ---- */

typedef struct own {
    ch_model     *m;
    ch_optimizer *o;
    ch_metric    *accuracy, *loss;
} own;

static void own_step(ch_step *s, void *arg)
{
    own           *j = arg;
    ch_node       *logits = ch_model_call(j->m, s, ch_step_in(s, 0), true);
    ch_node       *each = ch_loss_sparse_categorical(logits, ch_step_in(s, 1));
    ch_node       *weights = ch_step_in_count(s) > 2 ? ch_step_in(s, 2) : NULL;
    ch_var *const *var;
    int            n = ch_model_trainable(j->m, &var);

    ch_metric_update(j->loss, s, NULL, weights != NULL ? ch_mul(each, weights) : each, NULL);
    ch_metric_update(j->accuracy, s, ch_step_in(s, 1), logits, NULL);
    ch_optimizer_minimize(j->o, s, ch_loss_average(each, weights), n, var);
}

typedef struct numbers {
    double loss[EPOCHS], accuracy[EPOCHS];
    float  var[MOST];
    int    n;
} numbers;

static void run_epoch(ch_strategy *st, ch_function *f, ch_iterator *it)
{
    ch_tuple *batch = NULL;

    for (;;) {
        t_ok(ch_iterator_next(it, &batch));
        if (batch == NULL)
            return;
        t_ok(ch_strategy_run(st, f, batch, NULL));
        ch_tuple_unref(batch);
    }
}

/* Options of a training that belong to the optimizer and the model, so that the loop uses them
 * too. */
typedef struct setting {
    ch_dtype             dtype;
    int                  parts; /* of an element; 3: with weights */
    ch_optimizer_options opt;
} setting;

static const setting settings[] = {
    {CH_F32, 2, {.name = NULL}},
    {CH_F32, 3, {.name = NULL}},
    {CH_F32, 3, {.accumulate = 4, .clip_global_norm = 0.05}},
    {CH_F32, 2, {.accumulate = 2, .clip_value = 0.01, .average = 0.9}},
    {CH_BF16, 2, {.clip_norm = 0.1, .weight_decay = 0.01}},
    {CH_F16, 3, {.accumulate = 2, .dynamic_loss_scale = true}},
};

static numbers by_hand(int which, const arrays *a, const setting *set)
{
    static numbers out;
    ch_strategy   *st = strategy_of(which);
    own            j = {.m = new_model_of(st, set->dtype)};
    ch_dataset    *d = batches(a, set->parts);
    ch_iterator   *it = NULL;
    ch_function   *f = t_function(own_step, &j);

    t_ok(ch_optimizer_adam(0.01, NULL, &set->opt, &j.o));
    t_ok(ch_metric_new(st, ch_metric_mean(), &j.loss));
    t_ok(ch_metric_new(st, ch_metric_sparse_accuracy(), &j.accuracy));
    t_ok(ch_strategy_distribute_dataset(st, d, NULL, &it));
    for (int e = 0; e < EPOCHS; e++) {
        run_epoch(st, f, it);
        t_ok(ch_metric_result(j.loss, &out.loss[e]));
        t_ok(ch_metric_result(j.accuracy, &out.accuracy[e]));
        t_ok(ch_metric_reset(j.loss));
        t_ok(ch_metric_reset(j.accuracy));
        t_ok(ch_iterator_restart(it));
    }
    out.n = vars_of(j.m, out.var);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    ch_function_unref(f);
    ch_metric_unref(j.loss);
    ch_metric_unref(j.accuracy);
    ch_optimizer_unref(j.o);
    ch_model_unref(j.m);
    ch_strategy_unref(st);
    return out;
}

/* Trains with ch_fit. */
static numbers by_fit(int which, const arrays *a, const setting *set)
{
    static numbers out;
    ch_strategy   *st = strategy_of(which);
    ch_model      *m = new_model_of(st, set->dtype);
    ch_dataset    *d = batches(a, set->parts);
    ch_history    *h = NULL;

    compile_with(m, &set->opt);
    t_ok(ch_fit(m, (ch_data){.dataset = d}, &(ch_fit_options){.epochs = EPOCHS}, &h));
    out.n = vars_of(m, out.var);
    assert_int_equal(ch_history_epochs(h), EPOCHS);
    for (int e = 0; e < EPOCHS; e++) {
        out.loss[e] = ch_history_at(h, "loss", e);
        out.accuracy[e] = ch_history_at(h, "sparse_accuracy", e);
    }
    ch_history_unref(h);
    ch_dataset_unref(d);
    ch_model_unref(m);
    ch_strategy_unref(st);
    return out;
}

static void fit_gives_the_numbers_of_a_loop_to_the_bit(void **state)
{
    arrays a = new_arrays(ROWS);

    for (int which = 0; which < STRATEGIES; which++)
        for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
            numbers want = by_hand(which, &a, &settings[i]);
            numbers got = by_fit(which, &a, &settings[i]);

            assert_int_equal(got.n, want.n);
            assert_memory_equal(got.var, want.var, (size_t)got.n * sizeof(float));
            assert_memory_equal(got.loss, want.loss, sizeof(got.loss));
            assert_memory_equal(got.accuracy, want.accuracy, sizeof(got.accuracy));
        }
    drop_arrays(&a);
    (void)state;
}

/* ---- arrays that fit in a batch ---- */

static ch_tensor *predicted(ch_model *m, ch_tensor *x, int64_t rows, int64_t batch)
{
    ch_tensor *part = NULL, *y = NULL;

    t_ok(ch_tensor_rows(x, 0, rows, &part));
    t_ok(ch_predict(m, (ch_data){.n = 1, .array = &part},
                    &(ch_evaluate_options){.batch = batch}, &y));
    ch_tensor_unref(part);
    return y;
}

/* Predicts through a dataset, which needs a pipeline. Returns the number of allocations of the
 * call. */
static int64_t allocs_of_pipeline(ch_model *m, ch_tensor *x, int64_t rows)
{
    ch_tensor  *part = NULL, *y = NULL;
    ch_dataset *d;
    int64_t     before;

    t_ok(ch_tensor_rows(x, 0, rows, &part));
    d = ch_dataset_batch(ch_dataset_slices(1, &part, NULL), BATCH, NULL);
    before = ch__mem_allocs();
    t_ok(ch_predict(m, (ch_data){.dataset = d}, NULL, &y));
    before = ch__mem_allocs() - before;
    ch_tensor_unref(y);
    ch_tensor_unref(part);
    ch_dataset_unref(d);
    return before;
}

/* A pipeline allocates stages, buffers and threads, so the number of allocations shows whether
 * it was started. */
static void predict_within_one_batch_starts_no_pipeline_and_gives_the_same_rows(void **state)
{
    for (int which = 0; which < STRATEGIES; which++) {
        fixture    x = new_fixture(which);
        ch_tensor *all = predicted(x.m, x.a.t[0], ROWS, BATCH);

        for (int64_t rows = 1; rows <= BATCH; rows++) {
            int64_t    pipeline = allocs_of_pipeline(x.m, x.a.t[0], rows), before;
            ch_tensor *y;

            before = ch__mem_allocs();
            y = predicted(x.m, x.a.t[0], rows, BATCH);
            assert_true(2 * (ch__mem_allocs() - before) < pipeline);
            assert_int_equal(ch_tensor_shape(y).dim[0], rows);
            for (int64_t i = 0; i < rows * CLASSES; i++)
                assert_true(fabsf(((const float *)ch_tensor_data(y))[i] -
                                  ((const float *)ch_tensor_data(all))[i]) < 1e-5f);
            ch_tensor_unref(y);
        }
        ch_tensor_unref(all);
        drop_fixture(&x);
    }
    (void)state;
}

/* A prediction has no time table. Only its start time is recorded, for callbacks. */
static void predict_reads_the_clock_once_when_no_trace_is_written(void **state)
{
    fixture    x = new_fixture(0);
    ch_tensor *y = predicted(x.m, x.a.t[0], 1, BATCH);
    int64_t    before;

    (void)state;
    ch_tensor_unref(y);
    before = ch__clock_reads();
    y = predicted(x.m, x.a.t[0], 1, BATCH);
    assert_int_equal(ch__clock_reads() - before, 1);
    ch_tensor_unref(y);
    drop_fixture(&x);
}

/* ---- evaluate and predict ---- */

/* Computes the model's results of each row separately. */
static void one_by_one(ch_model *m, const arrays *a, int rows, double *loss, double *right,
                       float *logits)
{
    *loss = *right = 0;
    for (int i = 0; i < rows; i++) {
        ch_tensor *x = NULL, *y = NULL;
        ch_data    d;
        float      sum = 0;
        int        best = 0, label = ((const int32_t *)ch_tensor_data(a->t[1]))[i];

        t_ok(ch_tensor_rows(a->t[0], i, i + 1, &x));
        d = (ch_data){.n = 1, .array = &x};
        t_ok(ch_predict(m, d, NULL, &y));
        for (int k = 0; k < CLASSES; k++) {
            float z = ((const float *)ch_tensor_data(y))[k];

            logits[i * CLASSES + k] = z;
            sum += expf(z);
            best = z > logits[i * CLASSES + best] ? k : best;
        }
        *loss += (double)(logf(sum) - logits[i * CLASSES + label]) / rows;
        *right += (double)(best == label) / rows;
        ch_tensor_unref(x);
        ch_tensor_unref(y);
    }
}

static void evaluate_counts_every_row_once_and_predict_keeps_their_order(void **state)
{
    static const int sizes[] = {1, 2, 7, 45};
    arrays           a = new_arrays(ROWS);

    for (int which = 0; which < STRATEGIES; which++) {
        ch_strategy *st = strategy_of(which);
        ch_model    *m = new_model(st);
        double       loss, right;
        float        logits[ROWS * CLASSES];

        compile(m);
        one_by_one(m, &a, ROWS, &loss, &right, logits);
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            ch_evaluate_options o = {.batch = sizes[i]};
            ch_history         *h = NULL;
            ch_tensor          *y = NULL;

            t_ok(ch_evaluate(m, (ch_data){.n = 2, .array = a.t}, &o, &h));
            assert_true(fabs(ch_history_last(h, "loss") - loss) < 1e-5);
            assert_true(fabs(ch_history_last(h, "sparse_accuracy") - right) < 1e-9);
            t_ok(ch_predict(m, (ch_data){.n = 2, .array = a.t}, &o, &y));
            assert_int_equal(ch_tensor_count(y), ROWS * CLASSES);
            for (int k = 0; k < ROWS * CLASSES; k++)
                assert_true(fabsf(((const float *)ch_tensor_data(y))[k] - logits[k]) < 1e-5f);
            ch_history_unref(h);
            ch_tensor_unref(y);
        }
        ch_model_unref(m);
        ch_strategy_unref(st);
    }
    drop_arrays(&a);
    (void)state;
}

/* ---- options ---- */

static void fit_batches_and_splits_arrays(void **state)
{
    fixture     x = new_fixture(MIRRORED_2);
    ch_data     d = {.n = 2, .array = x.a.t};
    ch_history *h = NULL;

    t_ok(ch_fit(x.m, d, &(ch_fit_options){.epochs = 2, .batch = 10, .validation_split = 0.2},
                &h));
    assert_int_equal(ch_history_time(h).examples, 2 * 36);
    assert_int_equal(ch_history_time(h).steps, 2 * 4);
    assert_false(isnan(ch_history_at(h, "val_loss", 0)));
    assert_false(isnan(ch_history_at(h, "val_sparse_accuracy", 1)));
    assert_string_equal(ch_history_name(h, 0), "loss");
    assert_true(h->is_of_arrays);
    ch_history_unref(h);
    t_refused(ch_fit(x.m, d, &(ch_fit_options){.validation_split = 1}, NULL),
              CH_INVALID_ARGUMENT, "validation_split", "1");
    drop_fixture(&x);
    (void)state;
}

static void fit_with_steps_per_epoch_continues_in_the_data(void **state)
{
    fixture     x = new_fixture(MIRRORED_2);
    ch_dataset *d = batches(&x.a, 2);
    ch_history *h = NULL;

    t_ok(ch_fit(x.m, (ch_data){.dataset = d},
                &(ch_fit_options){.epochs = 5, .steps_per_epoch = 4, .initial_epoch = 2}, &h));
    assert_int_equal(ch_history_epochs(h), 3);
    assert_int_equal(ch_history_time(h).steps, 12); /* two passes of six steps */
    assert_false(h->is_of_arrays);
    assert_int_equal(ch_history_time(h).examples, 2 * ROWS);
    ch_history_unref(h);
    ch_dataset_unref(d);
    drop_fixture(&x);
    (void)state;
}

static void note_number(ch_step *s, ch_model *m, void *arg)
{
    (void)m;
    (void)arg;
    ch_step_out(s, "number", ch_cast(ch_step_number(s), CH_F64));
}

/* ch_fit creates a new function when class weights change, and ch_compile creates new
 * functions. */
static void fit_goes_on_counting_steps_when_the_function_is_new(void **state)
{
    fixture      x = new_fixture(MIRRORED_2);
    const double weight[CLASSES] = {1, 1, 2};
    ch_history  *h = NULL;
    ch_data      d = {.n = 2, .array = x.a.t};

    t_ok(ch_fit(x.m, d, &(ch_fit_options){.batch = (ROWS + 1) / 2}, NULL));
    t_ok(ch_fit(x.m, d,
                &(ch_fit_options){.batch = ROWS, .n_classes = CLASSES, .class_weight = weight},
                NULL));
    assert_int_equal(ch__model_steps(x.m), 3);
    t_ok(ch_compile(x.m, &(ch_compile_options){.train_step = note_number}));
    t_ok(ch_fit(x.m, d, &(ch_fit_options){.batch = ROWS}, &h));
    assert_true(ch_history_at(h, "number", 0) == 3);
    ch_history_unref(h);
    drop_fixture(&x);
    (void)state;
}

/* With weights of 0 and 1, rows of weight 0 do not contribute to the sum; the mean is over all
 * rows. */
static void class_weight_multiplies_row_weights(void **state)
{
    fixture      x = new_fixture(ONE_DEVICE), y = new_fixture(ONE_DEVICE);
    const double weight[CLASSES] = {0.5, 0, 2};
    float        of_x[MOST], of_y[MOST];
    int          n;

    for (int i = 0; i < ROWS; i++)
        ((float *)ch_tensor_data_mut(y.a.t[2]))[i] =
            (float)weight[((const int32_t *)ch_tensor_data(y.a.t[1]))[i]];
    t_ok(ch_fit(x.m, (ch_data){.n = 2, .array = x.a.t},
                &(ch_fit_options){.n_classes = CLASSES, .class_weight = weight}, NULL));
    t_ok(ch_fit(y.m, (ch_data){.n = 3, .array = y.a.t}, NULL, NULL));
    n = vars_of(x.m, of_x);
    vars_of(y.m, of_y);
    assert_memory_equal(of_x, of_y, (size_t)n * sizeof(float));
    t_refused(ch_fit(x.m, (ch_data){.n = 2, .array = x.a.t},
                     &(ch_fit_options){.n_classes = 2, .class_weight = weight}, NULL),
              CH_INVALID_ARGUMENT, "id 2", "class_weight");
    drop_fixture(&x);
    drop_fixture(&y);
    (void)state;
}

/* A metric that the program has created counts rows without weights, as those of `metrics` do,
 * unless it was created as weighted. */
static void metric_of_the_program_uses_weights_only_when_weighted(void **state)
{
    for (int weighted = 0; weighted < 2; weighted++) {
        fixture       x = new_fixture(MIRRORED_2);
        ch_optimizer *o = NULL;
        ch_metric    *metric = NULL;
        ch_tensor    *counts = NULL;
        double        all = 0, want = 0;

        for (int i = 0; i < ROWS; i++)
            want += weighted ? ((const float *)ch_tensor_data(x.a.t[2]))[i] : 1;
        t_ok(ch_optimizer_sgd(0.1, NULL, NULL, &o));
        t_ok(ch_metric_new(x.st, ch_metric_confusion(CLASSES), &metric));
        t_ok(ch_compile(x.m, &(ch_compile_options){.optimizer = o,
                                                   .loss = ch_loss_sparse_categorical,
                                                   .n_own = 1,
                                                   .own = &metric,
                                                   .own_weighted = weighted}));
        t_ok(ch_fit(x.m, (ch_data){.n = 3, .array = x.a.t}, NULL, NULL));
        t_ok(ch_metric_tensor(metric, &counts));
        for (int i = 0; i < CLASSES * CLASSES; i++)
            all += ((const double *)ch_tensor_data(counts))[i];
        assert_true(fabs(all - want) < 1e-9);
        ch_tensor_unref(counts);
        ch_metric_unref(metric);
        ch_optimizer_unref(o);
        drop_fixture(&x);
    }
    (void)state;
}

static void custom(ch_step *s, ch_model *m, void *arg)
{
    ch_node *y = ch_model_call(m, s, ch_step_in(s, 0), true);
    ch_node *loss = ch_loss_average(ch_loss_sparse_categorical(y, ch_step_in(s, 1)), NULL);
    ch_var *const *var;
    int            n = ch_model_trainable(m, &var);

    ch_optimizer_minimize(arg, s, loss, n, var);
    ch_step_out(s, "mine", ch_all_reduce(CH_SUM, loss));
}

static void compile_train_step_replaces_the_step_of_fit(void **state)
{
    fixture       x = new_fixture(MIRRORED_2);
    ch_optimizer *o = NULL;
    ch_history   *h = NULL;

    t_ok(ch_optimizer_sgd(0.1, NULL, NULL, &o));
    t_ok(ch_compile(x.m, &(ch_compile_options){.train_step = custom, .step_arg = o}));
    t_ok(ch_fit(x.m, (ch_data){.n = 2, .array = x.a.t}, &(ch_fit_options){.epochs = 4}, &h));
    assert_true(ch_history_at(h, "mine", 3) < ch_history_at(h, "mine", 0));
    assert_true(isnan(ch_history_at(h, "loss", 0)));
    ch_history_unref(h);
    ch_optimizer_unref(o);
    drop_fixture(&x);
    (void)state;
}

static void fit_rejects_an_iterator_of_another_strategy_and_names_both(void **state)
{
    fixture      x = new_fixture(MIRRORED_2);
    ch_strategy *other = strategy_of(CENTRAL);
    ch_dataset  *d = batches(&x.a, 2);
    ch_iterator *it = NULL, *mine = NULL;

    t_ok(ch_strategy_distribute_dataset(other, d, NULL, &it));
    t_refused(ch_fit(x.m, (ch_data){.iterator = it}, NULL, NULL), CH_INVALID_ARGUMENT,
              "CentralStorage", "Mirrored");
    t_ok(ch_strategy_distribute_dataset(x.st, d, NULL, &mine));
    t_ok(ch_fit(x.m, (ch_data){.iterator = mine}, &(ch_fit_options){.epochs = 2}, NULL));
    t_refused(ch_fit(x.m, (ch_data){.iterator = mine, .dataset = d}, NULL, NULL),
              CH_INVALID_ARGUMENT, "2 kinds", "dataset");
    ch_iterator_unref(it);
    ch_iterator_unref(mine);
    ch_dataset_unref(d);
    ch_strategy_unref(other);
    drop_fixture(&x);
    (void)state;
}

/* Stores the results of compile, fit, evaluate and predict. The calls whose bits are set in
 * `inside` (bits 0 to 3) are made in the scope of the model's strategy. */
static void train_by_parts(int which, int inside, float *vars, double *loss, float *first)
{
    fixture     x = new_fixture(which);
    ch_data     data = {.n = 2, .array = x.a.t};
    ch_history *h = NULL;
    ch_tensor  *y = NULL;

    for (int part = 0; part < 4; part++) {
        if (inside >> part & 1)
            t_ok(ch_strategy_enter(x.st));
        if (part == 0) {
            compile(x.m);
        } else if (part == 1) {
            t_ok(ch_fit(x.m, data, &(ch_fit_options){.epochs = 2}, NULL));
        } else if (part == 2) {
            t_ok(ch_evaluate(x.m, data, NULL, &h));
        } else {
            t_ok(ch_predict(x.m, (ch_data){.n = 1, .array = x.a.t}, NULL, &y));
        }
        if (inside >> part & 1)
            ch_strategy_leave();
    }
    memset(vars, 0, MOST * sizeof(float));
    vars_of(x.m, vars);
    *loss = ch_history_at(h, "loss", 0);
    memcpy(first, ch_tensor_data(y), CLASSES * sizeof(float));
    ch_history_unref(h);
    ch_tensor_unref(y);
    drop_fixture(&x);
}

/* A model has a strategy: the results have the same bits in every scope. */
static void fit_has_the_same_bits_inside_and_outside_the_scope(void **state)
{
    static float want[MOST], vars[MOST];
    float        first[CLASSES], y[CLASSES];
    double       want_loss, loss;

    for (int which = ONE_DEVICE; which < STRATEGIES; which++) {
        train_by_parts(which, 0, want, &want_loss, first);
        assert_true(want_loss > 0);
        for (int inside = 1; inside < 16; inside++) {
            train_by_parts(which, inside, vars, &loss, y);
            assert_memory_equal(vars, want, sizeof(want));
            assert_true(loss == want_loss);
            assert_memory_equal(y, first, sizeof(first));
        }
    }
    (void)state;
}

static void call_it(ch_step *s, void *m)
{
    ch_step_out(s, "y", ch_model_call(m, s, ch_step_in(s, 0), false));
}

/* Calls the model on the first rows, under a strategy, with a new function. */
static void call_under(ch_strategy *st, ch_model *m, ch_tensor *x, float *out)
{
    ch_function *f = t_function(call_it, m);
    ch_tuple    *in = NULL, *y = NULL;

    t_ok(ch_tuple_of(1, &x, &in));
    t_ok(ch_strategy_run(st, f, in, &y));
    memcpy(out, t_floats(y, 0, 0), CLASSES * sizeof(float));
    ch_tuple_unref(y);
    ch_tuple_unref(in);
    ch_function_unref(f);
}

static void call_plainly(ch_model *m, ch_tensor *x, float *out)
{
    call_under(ch_model_strategy(m), m, x, out);
}

static ch_status call_in_a_step(ch_training *t, ch_event event, void *arg)
{
    float y[CLASSES];

    (void)event;
    call_plainly(ch_training_model(t), arg, y);
    return CH_OK;
}

static void copy_vars(ch_model *from, ch_model *to)
{
    ch_var *const *a, *const *b;
    int n = ch_model_vars(from, &a);

    assert_int_equal(ch_model_vars(to, &b), n);
    for (int i = 0; i < n; i++) {
        ch_tensor *t = NULL;

        t_ok(ch_var_get(a[i], &t));
        t_ok(ch_var_set(b[i], t));
        ch_tensor_unref(t);
    }
}

/* Compile, evaluate and predict do not change the result of a plain call, and a plain call does
 * not change a training. */
static void plain_call_of_a_model_is_not_changed_by_compile_and_predict(void **state)
{
    for (int which = 0; which < STRATEGIES; which++) {
        arrays       a = new_arrays(ROWS);
        ch_strategy *st = strategy_of(which);
        ch_model    *m = new_model(st);
        fixture      x = new_fixture(which);
        ch_data      d = {.n = 2, .array = a.t};
        float        before[CLASSES], after[CLASSES];
        ch_callback *c = NULL;
        ch_history  *h[2] = {NULL, NULL};

        call_plainly(m, a.t[0], before);
        compile(m);
        call_plainly(m, a.t[0], after);
        assert_memory_equal(before, after, sizeof(before));
        t_ok(ch_evaluate(m, d, NULL, NULL));
        call_plainly(m, a.t[0], after);
        assert_memory_equal(before, after, sizeof(before));
        copy_vars(m, x.m);
        t_ok(ch_callback_of(CH_ON_STEP, call_in_a_step, a.t[0], &c));
        t_ok(ch_fit(m, d, &(ch_fit_options){.n_callbacks = 1, .callback = &c}, &h[0]));
        t_ok(ch_fit(x.m, d, NULL, &h[1]));
        assert_true(ch_history_last(h[0], "loss") == ch_history_last(h[1], "loss"));
        call_plainly(m, a.t[0], before);
        call_under(NULL, m, a.t[0], after); /* the same result outside of its strategy */
        assert_memory_equal(before, after, sizeof(before));
        ch_callback_unref(c);
        ch_history_unref(h[0]);
        ch_history_unref(h[1]);
        drop_fixture(&x);
        ch_model_unref(m);
        ch_strategy_unref(st);
        drop_arrays(&a);
    }
    (void)state;
}

static void fit_error_names_what_compile_lacks(void **state)
{
    fixture     x = new_fixture(DEFAULT);
    ch_model   *m = new_model(x.st);
    ch_tensor  *y = NULL;
    ch_dataset *none = ch_dataset_take(batches(&x.a, 2), 0);

    t_refused(ch_fit(m, (ch_data){.n = 2, .array = x.a.t}, NULL, NULL), CH_FAILED_PRECONDITION,
              "compile", "optimizer");
    t_refused(ch_predict(m, (ch_data){.n = 1, .array = x.a.t}, NULL, &y),
              CH_FAILED_PRECONDITION, "compile", "predict");
    t_ok(ch_compile(m, NULL));
    t_refused(ch_fit(m, (ch_data){.n = 2, .array = x.a.t}, NULL, NULL), CH_FAILED_PRECONDITION,
              "without an optimizer", "ch_compile");
    t_refused(ch_fit(x.m, (ch_data){.dataset = NULL}, NULL, NULL), CH_INVALID_ARGUMENT,
              "no data", "dataset");
    t_refused(ch_fit(x.m, (ch_data){.dataset = none}, NULL, NULL), CH_INVALID_ARGUMENT,
              "no elements", "fit");
    t_refused(ch_fit(x.m, (ch_data){.n = 1, .array = x.a.t}, NULL, NULL), CH_INVALID_ARGUMENT,
              "1 component,", "the truth");
    ch_dataset_unref(none);
    ch_model_unref(m);
    drop_fixture(&x);
    (void)state;
}

/* ---- callbacks ---- */

typedef struct seen {
    char    text[400];
    int64_t steps;
    int     stop_at;
} seen;

static ch_status see(ch_training *t, ch_event event, void *arg)
{
    static const char letter[] = "bestvwxy";
    seen             *s = arg;
    size_t            n = strlen(s->text);
    int               at = 0;

    while (1 << at != (int)event)
        at++;
    s->text[n] = letter[at];
    if (event == CH_ON_STEP && ++s->steps == s->stop_at)
        ch_training_stop(t, "enough");
    return CH_OK;
}

/* b begin, e epoch, s step, t its end, v validation, w its step, x its end, y end. */
static void callbacks_of_fit_get_events_in_order_and_may_stop_it(void **state)
{
    fixture      x = new_fixture(MIRRORED_2);
    seen         s = {.stop_at = 0};
    ch_callback *c = NULL;
    ch_history  *h = NULL;
    ch_data      d = {.n = 2, .array = x.a.t};

    t_ok(ch_callback_of((CH_ON_END << 1) - 1, see, &s, &c));
    t_ok(
        ch_fit(x.m, d,
               &(ch_fit_options){
                   .epochs = 2, .batch = 20, .validation = d, .n_callbacks = 1, .callback = &c},
               &h));
    assert_string_equal(s.text, "besssvwwwxtesssvwwwxty");
    assert_null(ch_history_stopped(h));
    ch_history_unref(h);
    s = (seen){.stop_at = 4};
    t_ok(ch_fit(x.m, d,
                &(ch_fit_options){.epochs = 9, .batch = 20, .n_callbacks = 1, .callback = &c},
                &h));
    assert_string_equal(s.text, "bessstesty");
    assert_string_equal(ch_history_stopped(h), "enough");
    assert_int_equal(ch_history_epochs(h), 2);
    ch_history_unref(h);
    ch_callback_unref(c);
    drop_fixture(&x);
    (void)state;
}

/* Checks that the state that a callback can read agrees with the options of the call. */
static ch_status look(ch_training *t, ch_event event, void *arg)
{
    const fixture *x = arg;
    int            n = ch_training_logs(t);
    bool           has_loss = false;

    assert_ptr_equal(ch_training_model(t), x->m);
    assert_non_null(ch_training_optimizer(t));
    assert_false(ch_training_is_evaluation(t));
    assert_int_equal(ch_training_epochs(t), 2);
    assert_int_equal(ch_training_epoch_steps(t), 3);
    assert_true(ch_training_seconds(t) >= 0);
    assert_int_equal(ch_training_step(t), 3 * ch_training_epoch(t) + ch_training_epoch_step(t));
    for (int i = 0; i < n; i++)
        if (strcmp(ch_training_log_name(t, i), "loss") == 0) {
            has_loss = true;
            assert_true(ch_training_log(t, i) == ch_training_get(t, "loss"));
        }
    assert_true(has_loss);
    assert_null(ch_training_log_name(t, n));
    assert_true(isnan(ch_training_get(t, "nothing")));
    if (event == CH_ON_EPOCH_END)
        assert_int_equal(ch_training_examples(t), ROWS * (ch_training_epoch(t) + 1));
    return CH_OK;
}

static void training_gives_step_and_epoch_to_callbacks(void **state)
{
    fixture      x = new_fixture(MIRRORED_2);
    ch_callback *c = NULL;

    t_ok(ch_callback_of(CH_ON_STEP | CH_ON_EPOCH_END, look, &x, &c));
    t_ok(ch_fit(x.m, (ch_data){.n = 2, .array = x.a.t},
                &(ch_fit_options){.epochs = 2, .batch = 20, .n_callbacks = 1, .callback = &c},
                NULL));
    ch_callback_unref(c);
    drop_fixture(&x);
    (void)state;
}

static void history_gives_names_values_and_curve(void **state)
{
    fixture       x = new_fixture(MIRRORED_2);
    ch_history   *h = NULL, *same;
    const double *curve;
    char          text[4096];

    t_ok(ch_fit(x.m, (ch_data){.n = 2, .array = x.a.t},
                &(ch_fit_options){.epochs = 3, .batch = 10, .one_replica_step = 0.001}, &h));
    same = ch_history_ref(h);
    ch_history_unref(h);
    assert_int_equal(ch_history_count(same), 2);
    assert_int_equal(ch_history_curve(same, &curve), 15); /* five steps in each epoch */
    assert_true(isfinite(curve[0]) && isfinite(curve[14]));
    ch_history_print(same, text, sizeof(text));
    assert_non_null(strstr(text, "sparse_accuracy"));
    ch_history_print_time(same, text, sizeof(text));
    for (int i = CH_TIME_FORWARD; i <= CH_TIME_BACKWARD; i++)
        assert_non_null(strstr(text, ch_time_name((ch_time)i)));
    assert_non_null(strstr(text, "100.0 %"));
    assert_non_null(strstr(text, "times the speed of one replica"));
    assert_true(ch_history_plot(same, "loss", 40, 6, text, sizeof(text)) > 40);
    assert_true(ch_history_plot(same, "sparse_accuracy", 40, 6, text, sizeof(text)) > 40);
    ch_history_unref(same);
    drop_fixture(&x);
    (void)state;
}

/* Returns the seconds that are missing in the time table of a call with a prefetch stage, whose
 * threads end with the call. */
static double missing(fixture *x, bool evaluates)
{
    ch_dataset   *d = ch_dataset_prefetch(batches(&x->a, 2), 4);
    ch_history   *h = NULL;
    int64_t       from = ch__now_ns();
    double        outside, sum = 0;
    ch_time_table t;

    t_ok(evaluates ? ch_evaluate(x->m, (ch_data){.dataset = d}, NULL, &h)
                   : ch_fit(x->m, (ch_data){.dataset = d},
                            &(ch_fit_options){.epochs = 2, .validation = {.dataset = d}}, &h));
    outside = (double)(ch__now_ns() - from) * 1e-9;
    t = ch_history_time(h);
    for (int i = 0; i < CH_TIMES; i++) {
        assert_true(t.seconds[i] >= 0);
        sum += t.seconds[i];
    }
    assert_true(t.total > 0 && fabs(sum - t.total) <= 1e-9 * t.total);
    assert_true(t.total <= outside);
    assert_int_equal(t.replicas, 2);
    ch_history_unref(h);
    ch_dataset_unref(d);
    return outside - t.total < 0.01 * outside ? 0 : outside - t.total;
}

/* The time table must contain the whole time that a clock outside of the call measures, except
 * 1 % or 1 ms. Other load may disturb a measurement, so the best of several counts. */
static void time_table_sums_to_the_wall_clock_time(void **state)
{
    fixture x = new_fixture(MIRRORED_2);

    for (int evaluates = 0; evaluates < 2; evaluates++) {
        double least = 1;

        for (int i = 0; i < 20 && least > 1e-3; i++)
            least = fmin(least, missing(&x, evaluates));
        assert_true(least <= 1e-3);
    }
    drop_fixture(&x);
    (void)state;
}

/* ---- train and evaluate ---- */

/* Writes the path of a file in the directory to the caller's memory. */
static const char *named(char *path, size_t size, const char *directory, const char *name)
{
    snprintf(path, size, "%s/%s", directory, name);
    return path;
}

static void train_and_evaluate_exports_the_best_model(void **state)
{
    char        directory[] = "/tmp/cohort-fit-XXXXXX";
    fixture     x = new_fixture(MIRRORED_2);
    ch_data     d = {.n = 2, .array = x.a.t};
    ch_dataset *many = ch_dataset_repeat(batches(&x.a, 2), 3);
    ch_history *h = NULL;
    ch_tuple   *best = NULL;
    char        out[100], npz[120], json[120], line[400];
    FILE       *f;
    float       now[MOST];
    int         at = -1;

    assert_non_null(mkdtemp(directory));
    named(out, sizeof(out), directory, "export");
    named(npz, sizeof(npz), out, "best.npz");
    named(json, sizeof(json), out, "best.json");
    t_ok(ch_train_and_evaluate(
        x.m, (ch_data){.dataset = many}, d,
        &(ch_train_evaluate_options){.max_steps = 14, .evaluate_every = 4, .export_best = out},
        &h));
    assert_int_equal(ch_history_epochs(h), 4); /* after 4, 8, 12 and 14 steps */
    assert_int_equal(ch_history_time(h).steps, 14);
    ch_history_best(h, "val_loss", CH_GOAL_AUTO, &at);
    assert_int_equal(at, 3);
    t_ok(ch_npz_load(npz, NULL, &best));
    f = fopen(json, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof(line), f));
    fclose(f);
    assert_int_equal(strncmp(line, "{\"step\": 14, \"loss\": ", 21), 0);
    assert_non_null(strstr(line, "\"val_loss\": "));
    (void)vars_of(x.m, now);
    assert_memory_equal(ch_tensor_data(ch_value_at(ch_tuple_at(best, 0), 0)), now,
                        ch_tensor_bytes(ch_value_at(ch_tuple_at(best, 0), 0)));
    ch_tuple_unref(best);
    ch_history_unref(h);
    t_refused(ch_train_and_evaluate(x.m, d, (ch_data){.dataset = NULL}, NULL, NULL),
              CH_INVALID_ARGUMENT, "evaluate", "no data");
    ch_dataset_unref(many);
    remove(npz);
    remove(json);
    remove(out);
    remove(directory);
    drop_fixture(&x);
    (void)state;
}

static void train_and_evaluate_ends_with_the_data(void **state)
{
    fixture     x = new_fixture(DEFAULT);
    ch_dataset *d = batches(&x.a, 2);
    ch_history *h = NULL;

    t_ok(ch_train_and_evaluate(x.m, (ch_data){.dataset = d}, (ch_data){.dataset = d},
                               &(ch_train_evaluate_options){.evaluate_every = 4}, &h));
    assert_int_equal(ch_history_epochs(h), 2); /* of four steps, and of two steps */
    assert_int_equal(ch_history_time(h).steps, 6);
    ch_history_unref(h);
    ch_dataset_unref(d);
    drop_fixture(&x);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(predict_within_one_batch_starts_no_pipeline_and_gives_the_same_rows),
        cmocka_unit_test(predict_reads_the_clock_once_when_no_trace_is_written),
        cmocka_unit_test(fit_gives_the_numbers_of_a_loop_to_the_bit),
        cmocka_unit_test(evaluate_counts_every_row_once_and_predict_keeps_their_order),
        cmocka_unit_test(fit_batches_and_splits_arrays),
        cmocka_unit_test(fit_with_steps_per_epoch_continues_in_the_data),
        cmocka_unit_test(fit_goes_on_counting_steps_when_the_function_is_new),
        cmocka_unit_test(class_weight_multiplies_row_weights),
        cmocka_unit_test(metric_of_the_program_uses_weights_only_when_weighted),
        cmocka_unit_test(compile_train_step_replaces_the_step_of_fit),
        cmocka_unit_test(fit_rejects_an_iterator_of_another_strategy_and_names_both),
        cmocka_unit_test(fit_has_the_same_bits_inside_and_outside_the_scope),
        cmocka_unit_test(plain_call_of_a_model_is_not_changed_by_compile_and_predict),
        cmocka_unit_test(fit_error_names_what_compile_lacks),
        cmocka_unit_test(callbacks_of_fit_get_events_in_order_and_may_stop_it),
        cmocka_unit_test(training_gives_step_and_epoch_to_callbacks),
        cmocka_unit_test(history_gives_names_values_and_curve),
        cmocka_unit_test(time_table_sums_to_the_wall_clock_time),
        cmocka_unit_test(train_and_evaluate_exports_the_best_model),
        cmocka_unit_test(train_and_evaluate_ends_with_the_data),
    };

    return cmocka_run_group_tests(tests, t_four_gpus, NULL);
}
