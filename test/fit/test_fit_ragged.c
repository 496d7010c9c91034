/* test/fit/test_fit_ragged.c -- ch_fit, ch_evaluate and ch_predict on rows of unequal length.
 *
 * The model is a logistic regression: each row is a list of ids, and its logit is the sum of
 * their weights. The tests compare it with the same regression in plain C, in doubles.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "../job/help.h"
#include "fit/compiled.h"
#include "fit_help.h"
#include "graph/room.h"
#include "tensor/ragged.h"

enum { LINES = 230, PER_BATCH = 16, VOCABULARY = 40, MOST_IDS = 23 };

/* ---- the data ---- */

static int count_of(int line)
{
    return line * 7 % MOST_IDS; /* may be 0 */
}

static int64_t id_of(int line, int k)
{
    return (line * 13 + k * 5) % VOCABULARY;
}

static float truth_of(int line)
{
    return (float)(line * 7 % 11 % 2);
}

static float weight_of(int line)
{
    return 0.5f + (float)(line % 3);
}

/* Maps the number of a line to its ids, its label and its weight. */
static ch_status line_of(void *arg, ch_tuple *in, ch_tuple **out)
{
    int        line = (int)*(const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(in, 0), 0));
    int64_t    id[MOST_IDS];
    float      truth[] = {truth_of(line)}, weight = weight_of(line);
    ch_tensor *t[3] = {NULL};
    ch_status  rc;

    for (int k = 0; k < count_of(line); k++)
        id[k] = id_of(line, k);
    rc = ch_tensor_copy_of(CH_I64, ch_shape_of(count_of(line)), id, &t[0]);
    if (rc == CH_OK)
        rc = ch_tensor_copy_of(CH_F32, ch_shape_of(1), truth, &t[1]);
    if (rc == CH_OK)
        rc = ch_tensor_copy_of(CH_F32, ch_shape_scalar(), &weight, &t[2]);
    if (rc == CH_OK)
        rc = ch_tuple_of(*(const int *)arg, t, out);
    for (int i = 0; i < 3; i++)
        ch_tensor_unref(t[i]);
    return rc;
}

/* The elements have a weight if `parts` is 3. */
static ch_dataset *lines(int parts)
{
    static int           two = 2, three = 3;
    const ch_tensor_spec spec[] = {{"words", CH_I64, ch_shape_of(-1)},
                                   {"kind", CH_F32, ch_shape_of(1)},
                                   {"weight", CH_F32, ch_shape_scalar()}};
    ch_dataset          *d = ch_dataset_range(0, LINES, 1);

    d = ch_dataset_map_call(d, line_of, parts == 3 ? &three : &two, parts, spec, NULL);
    return ch_dataset_batch(d, PER_BATCH, &(ch_batch_options){.ragged = true});
}

static ch_model *new_regression(ch_strategy *st, double rate)
{
    ch_init       zero = ch_init_constant(0);
    ch_optimizer *sgd = NULL;
    ch_model     *m = NULL;

    t_ok(ch_model_new(st,
                      ch_layer_embedding_bag(VOCABULARY, 1, CH_COMBINE_SUM,
                                             &(ch_layer_embedding_options){.init = &zero}),
                      NULL, &m));
    t_ok(ch_optimizer_sgd(rate, NULL, NULL, &sgd));
    t_ok(ch_compile(m, &(ch_compile_options){.optimizer = sgd, .loss = ch_loss_binary}));
    ch_optimizer_unref(sgd);
    return m;
}

/* ---- the same in plain C ---- */

static double logit_of(const double *w, int line)
{
    double sum = 0;

    for (int k = 0; k < count_of(line); k++)
        sum += w[id_of(line, k)];
    return sum;
}

static void train_plainly(double *w, double rate, int epochs, bool is_weighted,
                          const double *of_class)
{
    memset(w, 0, VOCABULARY * sizeof(*w));
    for (int e = 0; e < epochs; e++)
        for (int from = 0; from < LINES; from += PER_BATCH) {
            int    rows = LINES - from < PER_BATCH ? LINES - from : PER_BATCH;
            double d[VOCABULARY] = {0};

            for (int line = from; line < from + rows; line++) {
                double z = logit_of(w, line), y = truth_of(line);
                double g = (1 / (1 + exp(-z)) - y) / rows;

                g *= is_weighted ? weight_of(line) : 1;
                g *= of_class != NULL ? of_class[(int)y] : 1;
                for (int k = 0; k < count_of(line); k++)
                    d[id_of(line, k)] += g;
            }
            for (int i = 0; i < VOCABULARY; i++)
                w[i] -= rate * d[i];
        }
}

static void assert_weights_near(ch_model *m, const double *want)
{
    static float w[MOST];

    assert_int_equal(vars_of(m, w), VOCABULARY);
    for (int i = 0; i < VOCABULARY; i++)
        if (!(fabs(w[i] - want[i]) < 1e-5))
            fail_msg("weight of id %d: got %.8g, want %.8g", i, w[i], want[i]);
}

/* ---- training ---- */

static ch_strategy *servers(int devices)
{
    return t_cluster(&(ch_local_cluster_options){.ps = 2, .workers = 1, .devices = devices},
                     NULL, NULL);
}

enum { SERVERS_1 = STRATEGIES, SERVERS_2, ALL };

static ch_strategy *any_strategy(int which)
{
    return which == SERVERS_1   ? servers(1)
           : which == SERVERS_2 ? servers(2)
                                : strategy_of(which);
}

static void check_training(int which, bool is_weighted, const double *of_class)
{
    ch_strategy *st = any_strategy(which);
    ch_model    *m = new_regression(st, 0.5);
    ch_dataset  *d = lines(is_weighted ? 3 : 2);
    double       want[VOCABULARY];

    t_ok(ch_fit(m, (ch_data){.dataset = d},
                &(ch_fit_options){.epochs = 2,
                                  .n_classes = of_class != NULL ? 2 : 0,
                                  .class_weight = of_class},
                NULL));
    train_plainly(want, 0.5, 2, is_weighted, of_class);
    assert_weights_near(m, want);
    ch_dataset_unref(d);
    ch_model_unref(m);
    ch_strategy_unref(st);
}

static void ragged_rows_train_as_in_plain_c(void **state)
{
    for (int which = 0; which < ALL; which++)
        check_training(which, false, NULL);
    (void)state;
}

static void ragged_rows_train_as_in_plain_c_when_room_is_nan(void **state)
{
    ch__room_poison(true);
    for (int which = 0; which < ALL; which++)
        check_training(which, false, NULL);
    ch__room_poison(false);
    (void)state;
}

static void row_and_class_weights_count_when_rows_are_ragged(void **state)
{
    static const double of_class[] = {0.5, 2};

    for (int which = 0; which < ALL; which++)
        check_training(which, true, of_class);
    (void)state;
}

/* ---- programs ---- */

static int programs_of(ch_model *m)
{
    ch_compiled *c = NULL;

    t_ok(ch__compiled_of("test", m, &c));
    return ch_function_programs(c->train);
}

/* Lines of 1 to 400 ids: no two batches have the same number of ids. */
static ch_status long_line(void *arg, ch_tuple *in, ch_tuple **out)
{
    uint64_t line =
        (uint64_t) * (const int64_t *)ch_tensor_data(ch_value_at(ch_tuple_at(in, 0), 0));
    uint64_t   n = 1 + (line * 0x9e3779b97f4a7c15u >> 40) % 400;
    ch_tensor *t[2] = {NULL};
    ch_status  rc = ch_tensor_new(CH_I64, ch_shape_of((int64_t)n), &t[0]);

    (void)arg;
    for (uint64_t k = 0; k < n && rc == CH_OK; k++)
        ((int64_t *)ch_tensor_data_mut(t[0]))[k] = (int64_t)((line + k) % VOCABULARY);
    if (rc == CH_OK)
        rc = ch_tensor_copy_of(CH_F32, ch_shape_of(1), (float[]){(float)(line % 2)}, &t[1]);
    if (rc == CH_OK)
        rc = ch_tuple_of(2, t, out);
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
    return rc;
}

/* Counts warnings: the tenth program of a function causes one. */
static void count_warnings(const ch_log_record *r, void *arg)
{
    *(int *)arg += strcmp(r->code, "program-cache") == 0;
}

static void fit_over_ragged_ids_plans_few_programs(void **state)
{
    const ch_tensor_spec spec[] = {{"words", CH_I64, ch_shape_of(-1)},
                                   {"kind", CH_F32, ch_shape_of(1)}};

    int warnings = 0;

    ch_log_set_sink(count_warnings, &warnings, CH_LOG_WARNING);
    for (int i = 0; i < 3 * (ALL - ONE_DEVICE); i++) {
        int          which = ONE_DEVICE + i / 3;
        int64_t      size = (int[]){1, 4, 16}[i % 3];
        ch_strategy *st = any_strategy(which);
        ch_model    *m = new_regression(st, 1e-3);
        ch_dataset  *d = ch_dataset_range(0, 250 * size, 1);

        d = ch_dataset_map_call(d, long_line, NULL, 2, spec, NULL);
        d = ch_dataset_batch(d, size, &(ch_batch_options){.ragged = true});
        t_ok(ch_fit(m, (ch_data){.dataset = d}, NULL, NULL));
        if (programs_of(m) > 20)
            fail_msg("strategy %d: %d programs for 250 batches of %d, want at most 20", which,
                     programs_of(m), (int)size);
        ch_dataset_unref(d);
        ch_model_unref(m);
        ch_strategy_unref(st);
    }
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
    assert_int_equal(warnings, 0); /* also none about programs of workers */
    (void)state;
}

/* With this room a step uses the pieces without a copy. */
static void pieces_of_a_ragged_batch_have_room_for_their_capacity(void **state)
{
    const ch_tensor_spec spec[] = {{"words", CH_I64, ch_shape_of(-1)},
                                   {"kind", CH_F32, ch_shape_of(1)}};
    ch_strategy         *st = strategy_of(MIRRORED_2);
    ch_dataset          *d = ch_dataset_range(0, 800, 1);
    ch_iterator         *it = NULL;
    ch_tuple            *batch = NULL;

    d = ch_dataset_map_call(d, long_line, NULL, 2, spec, NULL);
    d = ch_dataset_batch(d, 32, &(ch_batch_options){.ragged = true});
    t_ok(ch_strategy_distribute_dataset(st, d, NULL, &it));
    for (;;) {
        ch_value *v;
        int64_t   n[2], most;

        t_ok(ch_iterator_next(it, &batch));
        if (batch == NULL)
            break;
        v = ch_tuple_at(batch, 0);
        for (int r = 0; r < 2; r++)
            n[r] = ch_tensor_count(ch_value_at(v, r));
        most = ch__ragged_capacity(n[0] > n[1] ? n[0] : n[1]);
        for (int r = 0; r < 2; r++)
            assert_true(ch_value_at(v, r)->room >= (size_t)(most - n[r]) * sizeof(int64_t));
        ch_tuple_unref(batch);
    }
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    ch_strategy_unref(st);
    (void)state;
}

/* ---- numbers of a run ---- */

static void examples_are_rows_when_the_first_input_is_ragged(void **state)
{
    for (int which = 0; which < ALL; which++) {
        ch_strategy *st = any_strategy(which);
        ch_model    *m = new_regression(st, 0.1);
        ch_dataset  *d = lines(2);
        ch_history  *h = NULL;

        t_ok(ch_fit(m, (ch_data){.dataset = d}, &(ch_fit_options){.epochs = 2}, &h));
        assert_int_equal(ch_history_time(h).examples, 2 * LINES);
        ch_history_unref(h);
        ch_dataset_unref(d);
        ch_model_unref(m);
        ch_strategy_unref(st);
    }
    (void)state;
}

static void planning_is_a_row_of_the_time_table(void **state)
{
    ch_strategy  *st = strategy_of(MIRRORED_2);
    ch_model     *m = new_regression(st, 0.1);
    ch_dataset   *d = lines(2);
    ch_history   *h = NULL;
    ch_time_table t;
    char          text[2000];
    double        sum = 0;

    t_ok(ch_fit(m, (ch_data){.dataset = d}, &(ch_fit_options){.epochs = 5}, &h));
    t = ch_history_time(h);
    for (int i = 0; i < CH_TIMES; i++) {
        assert_true(t.seconds[i] >= 0);
        sum += t.seconds[i];
    }
    assert_true(fabs(sum - t.total) < 1e-9);
    assert_true(t.seconds[CH_TIME_PLANNING] > 0);
    ch_history_print_time(h, text, sizeof(text));
    assert_non_null(strstr(text, "recording and planning"));
    ch_history_unref(h);
    ch_dataset_unref(d);
    ch_model_unref(m);
    ch_strategy_unref(st);
    (void)state;
}

/* ---- metrics ---- */

static void compile_accepts_metric_specs_with_and_without_arguments(void **state)
{
    ch_strategy  *st = strategy_of(MIRRORED_2);
    ch_model     *m = new_regression(st, 0.5);
    ch_optimizer *sgd = NULL;
    ch_dataset   *d = lines(2);
    ch_history   *h = NULL;
    ch_metric    *none = NULL;

    t_ok(ch_optimizer_sgd(0.5, NULL, NULL, &sgd));
    t_ok(ch_compile(
        m, &(ch_compile_options){.optimizer = sgd,
                                 .loss = ch_loss_binary,
                                 .metrics = {ch_metric_mse(), ch_metric_binary_accuracy(0),
                                             ch_metric_auc(0),
                                             ch_metric_named(ch_metric_auc(50), "coarse")},
                                 .weighted_metrics = {ch_metric_recall(0)}}));
    t_ok(ch_fit(m, (ch_data){.dataset = d}, &(ch_fit_options){.epochs = 3}, &h));
    assert_true(ch_history_last(h, "binary_accuracy") > 0.3);
    assert_true(ch_history_last(h, "auc") > 0.3 && ch_history_last(h, "coarse") > 0.3);
    assert_true(ch_history_last(h, "mse") > 0 && ch_history_last(h, "recall") > 0);
    t_refused(
        ch_compile(m, &(ch_compile_options){.metrics = {ch_metric_auc(0), ch_metric_auc(50)}}),
        CH_INVALID_ARGUMENT, "\"auc\"", "ch_metric_named");
    t_refused(ch_compile(m, &(ch_compile_options){.metrics = {ch_metric_auc(1)}}),
              CH_INVALID_ARGUMENT, "metric 0", "1 thresholds");
    t_refused(ch_metric_new(st, (ch_metric_spec){0}, &none), CH_INVALID_ARGUMENT, "metric new",
              "ch_metric_auc");
    ch_history_unref(h);
    ch_optimizer_unref(sgd);
    ch_dataset_unref(d);
    ch_model_unref(m);
    ch_strategy_unref(st);
    (void)state;
}

static void metric_spec_makes_the_metric_of_its_name(void **state)
{
    const struct {
        ch_metric_spec spec;
        const char    *name;
    } row[] = {
        {ch_metric_accuracy(), "accuracy"},
        {ch_metric_sparse_accuracy(), "sparse_accuracy"},
        {ch_metric_categorical_accuracy(), "categorical_accuracy"},
        {ch_metric_binary_accuracy(0.5), "binary_accuracy"},
        {ch_metric_top_k(3), "top_k"},
        {ch_metric_precision(0.5), "precision"},
        {ch_metric_recall(0.5), "recall"},
        {ch_metric_f1(0.5), "f1"},
        {ch_metric_auc(10), "auc"},
        {ch_metric_auc_exact(10), "auc_exact"},
        {ch_metric_mse(), "mse"},
        {ch_metric_mae(), "mae"},
        {ch_metric_rmse(), "rmse"},
        {ch_metric_sparse_cross_entropy(), "sparse_cross_entropy"},
        {ch_metric_categorical_cross_entropy(), "categorical_cross_entropy"},
        {ch_metric_binary_cross_entropy(), "binary_cross_entropy"},
        {ch_metric_confusion(3), "confusion"},
    };

    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        ch_metric *m = NULL;

        t_ok(ch_metric_new(NULL, row[i].spec, &m));
        assert_string_equal(ch_metric_name(m), row[i].name);
        ch_metric_unref(m);
    }
    (void)state;
}

/* ---- evaluating and predicting ---- */

static void ragged_rows_are_validated_and_predicted_in_order(void **state)
{
    for (int which = 0; which < ALL; which++) {
        ch_strategy *st = any_strategy(which);
        ch_model    *m = new_regression(st, 0.5);
        ch_dataset  *d = lines(2);
        ch_history  *h = NULL;
        ch_tensor   *guess = NULL;
        double       w[VOCABULARY], loss = 0;

        t_ok(ch_fit(m, (ch_data){.dataset = d},
                    &(ch_fit_options){.epochs = 2, .validation = {.dataset = d}}, &h));
        train_plainly(w, 0.5, 2, false, NULL);
        t_ok(ch_predict(m, (ch_data){.dataset = d}, NULL, &guess));
        assert_int_equal(ch_tensor_count(guess), LINES);
        for (int i = 0; i < LINES; i++) {
            double z = logit_of(w, i), y = truth_of(i);

            assert_true(fabs(((const float *)ch_tensor_data(guess))[i] - z) < 1e-4);
            loss += log1p(exp(-fabs(z))) + fmax(z, 0) - z * y;
        }
        assert_true(fabs(ch_history_last(h, "val_loss") - loss / LINES) < 1e-5);
        ch_tensor_unref(guess);
        ch_history_unref(h);
        ch_dataset_unref(d);
        ch_model_unref(m);
        ch_strategy_unref(st);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ragged_rows_train_as_in_plain_c),
        cmocka_unit_test(ragged_rows_train_as_in_plain_c_when_room_is_nan),
        cmocka_unit_test(row_and_class_weights_count_when_rows_are_ragged),
        cmocka_unit_test(fit_over_ragged_ids_plans_few_programs),
        cmocka_unit_test(pieces_of_a_ragged_batch_have_room_for_their_capacity),
        cmocka_unit_test(examples_are_rows_when_the_first_input_is_ragged),
        cmocka_unit_test(planning_is_a_row_of_the_time_table),
        cmocka_unit_test(metric_spec_makes_the_metric_of_its_name),
        cmocka_unit_test(compile_accepts_metric_specs_with_and_without_arguments),
        cmocka_unit_test(ragged_rows_are_validated_and_predicted_in_order),
    };

    return cmocka_run_group_tests(tests, t_four_gpus, NULL);
}
