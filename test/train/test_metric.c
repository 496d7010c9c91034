/* test/train/test_metric.c -- metrics against plain references, over several steps and
 * replicas.
 *
 * All examples of all steps are in an array, from which the references compute each metric at
 * once. Other tests compare AUC with Keras and scikit-learn, and check memory and refusals.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "../strategy/help.h"
#include "base/mem.h"

enum { CLASSES = 4, STEPS = 5, MOST = 64, ROOM = 40 };

/* The number of rows of two replicas in each step. */
static const int deals[STEPS][2] = {{5, 3}, {0, 4}, {6, 0}, {0, 0}, {1, 1}};

/* All examples of all steps. */
typedef struct data {
    int    n;
    double guess[MOST][CLASSES]; /* binary metrics use the first class only */
    double hot[MOST][CLASSES];
    double label[MOST], yes[MOST], weight[MOST];
} data;

static double uniform(unsigned *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (double)(*seed >> 8) / (1 << 24);
}

/* Makes the data. Predictions are multiples of 1/8, so that many are equal, but all differ
 * within a row. */
static data make_data(void)
{
    data     d = {0};
    unsigned seed = 3;

    for (int s = 0; s < STEPS; s++)
        d.n += deals[s][0] + deals[s][1];
    for (int i = 0; i < d.n; i++) {
        int first = (int)(uniform(&seed) * 5), stride = 1 + (int)(uniform(&seed) * 2);

        d.label[i] = (int)(uniform(&seed) * CLASSES);
        d.yes[i] = uniform(&seed) < 0.4;
        d.weight[i] = floor(uniform(&seed) * 8) / 4;
        for (int k = 0; k < CLASSES; k++) {
            d.guess[i][k] = (first + k * stride) % 9 / 8.0;
            d.hot[i][k] = k == d.label[i];
        }
    }
    return d;
}

/* ---- references: of n examples with weights w, which may all be 1 ---- */

typedef double (*reference)(const data *d, const double *w);

static double over(double a, double b)
{
    return b != 0 ? a / b : 0;
}

static double ref_total(const data *d, const double *w)
{
    double x = 0;

    for (int i = 0; i < d->n; i++)
        for (int k = 0; k < CLASSES; k++)
            x += w[i] * d->guess[i][k];
    return x;
}

static double sum(const data *d, const double *w)
{
    double x = 0;

    for (int i = 0; i < d->n; i++)
        x += w[i];
    return x;
}

static double ref_mean(const data *d, const double *w)
{
    return over(ref_total(d, w), CLASSES * sum(d, w));
}

/* Returns the number of classes whose prediction is higher than that of the label. */
static int rank_of_label(const data *d, int i)
{
    int rank = 0;

    for (int k = 0; k < CLASSES; k++)
        rank += d->guess[i][k] > d->guess[i][(int)d->label[i]];
    return rank;
}

static double ref_within(const data *d, const double *w, int k)
{
    double x = 0;

    for (int i = 0; i < d->n; i++)
        x += rank_of_label(d, i) < k ? w[i] : 0;
    return over(x, sum(d, w));
}

static double ref_best(const data *d, const double *w)
{
    return ref_within(d, w, 1);
}

static double ref_top_2(const data *d, const double *w)
{
    return ref_within(d, w, 2);
}

static double ref_top_9(const data *d, const double *w)
{
    (void)d, (void)w;
    return 1;
}

/* Returns the weighted number of examples whose truth is `yes` and whose prediction is above
 * the threshold, or the reverse, as the arguments request. */
static double outcomes(const data *d, const double *w, bool yes, bool above, double threshold)
{
    double x = 0;

    for (int i = 0; i < d->n; i++)
        x += (d->yes[i] != 0) == yes && (d->guess[i][0] > threshold) == above ? w[i] : 0;
    return x;
}

static double ref_binary(const data *d, const double *w)
{
    return over(outcomes(d, w, true, true, 0.5) + outcomes(d, w, false, false, 0.5), sum(d, w));
}

static double ref_precision(const data *d, const double *w)
{
    double right = outcomes(d, w, true, true, 0.5);

    return over(right, right + outcomes(d, w, false, true, 0.5));
}

static double ref_recall(const data *d, const double *w)
{
    double right = outcomes(d, w, true, true, 0.5);

    return over(right, right + outcomes(d, w, true, false, 0.5));
}

static double ref_f1(const data *d, const double *w)
{
    double p = ref_precision(d, w), r = ref_recall(d, w);

    return over(2 * p * r, p + r);
}

static double ref_equal(const data *d, const double *w)
{
    double x = 0;

    for (int i = 0; i < d->n; i++)
        x += d->yes[i] == d->guess[i][0] ? w[i] : 0;
    return over(x, sum(d, w));
}

/* Returns the area below the curve through the points of all thresholds, by the trapezoidal
 * rule. */
static double area_of_thresholds(const data *d, const double *w, int n)
{
    double area = 0, x0 = 0, y0 = 0;

    for (int i = 0; i < n; i++) {
        double t = i == 0 ? -1e-7 : i == n - 1 ? 1 + 1e-7 : (double)i / (n - 1);
        double right = outcomes(d, w, true, true, t), wrong = outcomes(d, w, false, true, t);
        double y = over(right, right + outcomes(d, w, true, false, t));
        double x = over(wrong, wrong + outcomes(d, w, false, false, t));

        area += i > 0 ? (x0 - x) * (y0 + y) / 2 : 0;
        x0 = x;
        y0 = y;
    }
    return area;
}

static double ref_auc_4(const data *d, const double *w)
{
    return area_of_thresholds(d, w, 4);
}

static double ref_auc(const data *d, const double *w)
{
    return area_of_thresholds(d, w, 200);
}

/* Compares every pair of a positive and a negative example. */
static double ref_exact(const data *d, const double *w)
{
    double pairs = 0, all = 0;

    for (int i = 0; i < d->n; i++)
        for (int j = 0; j < d->n; j++)
            if (d->yes[i] != 0 && d->yes[j] == 0) {
                double a = d->guess[i][0], b = d->guess[j][0];

                pairs += w[i] * w[j] * (a > b ? 1 : a == b ? 0.5 : 0);
                all += w[i] * w[j];
            }
    return over(pairs, all);
}

static double ref_mse(const data *d, const double *w)
{
    double x = 0;

    for (int i = 0; i < d->n; i++)
        for (int k = 0; k < CLASSES; k++)
            x += w[i] * (d->guess[i][k] - d->hot[i][k]) * (d->guess[i][k] - d->hot[i][k]);
    return over(x, CLASSES * sum(d, w));
}

static double ref_rmse(const data *d, const double *w)
{
    return sqrt(ref_mse(d, w));
}

static double ref_mae(const data *d, const double *w)
{
    double x = 0;

    for (int i = 0; i < d->n; i++)
        for (int k = 0; k < CLASSES; k++)
            x += w[i] * fabs(d->guess[i][k] - d->hot[i][k]);
    return over(x, CLASSES * sum(d, w));
}

static double ref_sparse_loss(const data *d, const double *w)
{
    double x = 0;

    for (int i = 0; i < d->n; i++) {
        double all = 0;

        for (int k = 0; k < CLASSES; k++)
            all += exp(d->guess[i][k]);
        x += w[i] * (log(all) - d->guess[i][(int)d->label[i]]);
    }
    return over(x, sum(d, w));
}

static double ref_binary_loss(const data *d, const double *w)
{
    double x = 0;

    for (int i = 0; i < d->n; i++)
        x += w[i] * log(1 + exp(d->yes[i] != 0 ? -d->guess[i][0] : d->guess[i][0]));
    return over(x, sum(d, w));
}

/* ---- the metrics ---- */

static ch_metric_spec new_binary(void)
{
    return ch_metric_binary_accuracy(0.5);
}
static ch_metric_spec new_top_2(void)
{
    return ch_metric_top_k(2);
}
static ch_metric_spec new_top_9(void)
{
    return ch_metric_top_k(9);
}
static ch_metric_spec new_precision(void)
{
    return ch_metric_precision(0.5);
}
static ch_metric_spec new_recall(void)
{
    return ch_metric_recall(0.5);
}
static ch_metric_spec new_f1(void)
{
    return ch_metric_f1(0.5);
}
static ch_metric_spec new_auc(void)
{
    return ch_metric_auc(0);
}
static ch_metric_spec new_auc_4(void)
{
    return ch_metric_auc(4);
}
static ch_metric_spec new_exact(void)
{
    return ch_metric_auc_exact(ROOM);
}
static ch_metric_spec new_confusion(void)
{
    return ch_metric_confusion(CLASSES);
}

typedef enum form { OF_LABELS, OF_ROWS, OF_YES } form; /* of the truth; predictions match */

static const struct kind {
    const char *name; /* by default */
    ch_metric_spec (*spec)(void);
    form      form;
    reference ref;
} kinds[] = {
    {"mean", ch_metric_mean, OF_ROWS, ref_mean},
    {"sum", ch_metric_sum, OF_ROWS, ref_total},
    {"accuracy", ch_metric_accuracy, OF_YES, ref_equal},
    {"sparse_accuracy", ch_metric_sparse_accuracy, OF_LABELS, ref_best},
    {"categorical_accuracy", ch_metric_categorical_accuracy, OF_ROWS, ref_best},
    {"binary_accuracy", new_binary, OF_YES, ref_binary},
    {"top_k", new_top_2, OF_LABELS, ref_top_2},
    {"top_k", new_top_9, OF_LABELS, ref_top_9},
    {"precision", new_precision, OF_YES, ref_precision},
    {"recall", new_recall, OF_YES, ref_recall},
    {"f1", new_f1, OF_YES, ref_f1},
    {"auc", new_auc, OF_YES, ref_auc},
    {"auc", new_auc_4, OF_YES, ref_auc_4},
    {"auc_exact", new_exact, OF_YES, ref_exact},
    {"mse", ch_metric_mse, OF_ROWS, ref_mse},
    {"mae", ch_metric_mae, OF_ROWS, ref_mae},
    {"rmse", ch_metric_rmse, OF_ROWS, ref_rmse},
    {"sparse_cross_entropy", ch_metric_sparse_cross_entropy, OF_LABELS, ref_sparse_loss},
    {"categorical_cross_entropy", ch_metric_categorical_cross_entropy, OF_ROWS,
     ref_sparse_loss},
    {"binary_cross_entropy", ch_metric_binary_cross_entropy, OF_YES, ref_binary_loss},
    {"confusion", new_confusion, OF_LABELS, ref_best},
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static ch_strategy *replicas(int n)
{
    ch_strategy *st = NULL;

    t_ok(ch_strategy_mirrored(
        &(ch_mirrored_options){.n_devices = n,
                               .device = (const char *const[]){"CPU:0", "CPU:1"}},
        &st));
    return st;
}

/* Inputs: labels (n) i64, hot (n, 4), yes (n) bool, guess (n, 4), first guess (n), weights
 * (n). */
enum { LABELS, HOT, YES, GUESS, FIRST, WEIGHTS, INPUTS };

typedef struct job {
    const struct kind *kind;
    ch_metric         *metric;
    bool               weighted;
} job;

static void update_step(ch_step *s, void *arg)
{
    job *j = arg;

    ch_metric_update(j->metric, s,
                     ch_step_in(s, j->kind->form == OF_LABELS ? LABELS
                                   : j->kind->form == OF_ROWS ? HOT
                                                              : YES),
                     ch_step_in(s, j->kind->form == OF_YES ? FIRST : GUESS),
                     j->weighted ? ch_step_in(s, WEIGHTS) : NULL);
}

static ch_tensor *tensor_of(ch_dtype dtype, ch_shape shape, const double *x)
{
    ch_tensor *t = NULL, *flat = NULL;

    t_ok(ch_tensor_new(dtype, shape, &t));
    t_ok(ch_tensor_reshape(t, ch_shape_of(ch_shape_count(shape)), &flat));
    for (int64_t i = 0; i < ch_tensor_count(t); i++)
        t_ok(ch_tensor_set(flat, &i, x[i]));
    ch_tensor_unref(flat);
    return t;
}

/* Returns rows [from, from + n) as inputs. */
static void make_inputs(const data *d, int from, int n, ch_tensor **in)
{
    double first[MOST];

    for (int i = 0; i < n; i++)
        first[i] = d->guess[from + i][0];
    in[LABELS] = tensor_of(CH_I64, ch_shape_of(n), d->label + from);
    in[HOT] = tensor_of(CH_F32, ch_shape_of(n, CLASSES), d->hot[from]);
    in[YES] = tensor_of(CH_BOOL, ch_shape_of(n), d->yes + from);
    in[GUESS] = tensor_of(CH_F32, ch_shape_of(n, CLASSES), d->guess[from]);
    in[FIRST] = tensor_of(CH_BF16, ch_shape_of(n), first);
    in[WEIGHTS] = tensor_of(CH_F32, ch_shape_of(n), d->weight + from);
}

static ch_tuple *make_batch(const data *d, int step, int n_replicas)
{
    ch_tensor *t[2][INPUTS];
    ch_value  *v[INPUTS];
    ch_tuple  *in = NULL;
    int        from = 0;

    for (int i = 0; i < step; i++)
        from += deals[i][0] + deals[i][1];
    if (n_replicas == 1)
        make_inputs(d, from, deals[step][0] + deals[step][1], t[0]);
    for (int r = 0; r < n_replicas && n_replicas > 1; from += deals[step][r++])
        make_inputs(d, from, deals[step][r], t[r]);
    for (int i = 0; i < INPUTS; i++) {
        ch_tensor *all[2] = {NULL};

        for (int r = 0; r < n_replicas; r++) { /* on its device, so that no run copies it */
            t_ok(ch_tensor_to(t[r][i], ch_device_at(r), &all[r]));
            ch_tensor_unref(t[r][i]);
        }
        t_ok(ch_value_new(CH_PER_REPLICA, n_replicas, all, &v[i]));
        for (int r = 0; r < n_replicas; r++)
            ch_tensor_unref(all[r]);
    }
    t_ok(ch_tuple_new(INPUTS, v, NULL, &in));
    for (int i = 0; i < INPUTS; i++)
        ch_value_unref(v[i]);
    return in;
}

static void run_steps(ch_strategy *st, ch_function *f, const data *d, int n_replicas)
{
    for (int i = 0; i < STEPS; i++) {
        ch_tuple *in = make_batch(d, i, n_replicas);

        t_ok(ch_strategy_run(st, f, in, NULL));
        ch_tuple_unref(in);
    }
}

static double result(ch_metric *m)
{
    double x = -1;

    t_ok(ch_metric_result(m, &x));
    return x;
}

static void near(const char *what, double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance * (1 + fabs(want))))
        fail_msg("%s: got %.12g, want %.12g", what, got, want);
}

/* Checks that every replica holds the whole result. */
static void check_copies(ch_metric *m)
{
    ch_var *const *var;
    int            n = ch_metric_vars(m, &var);

    for (int i = 0; i < n; i++) {
        ch_value *all = NULL;

        t_ok(ch_var_copies(var[i], &all));
        assert_false(ch_var_is_trainable(var[i]));
        for (int r = 1; r < ch_value_count(all); r++)
            assert_memory_equal(ch_tensor_data(ch_value_at(all, 0)),
                                ch_tensor_data(ch_value_at(all, r)),
                                ch_tensor_bytes(ch_value_at(all, 0)));
        ch_value_unref(all);
    }
}

static void check_kind(const struct kind *k, const data *d, int n_replicas, bool weighted)
{
    ch_strategy *st = replicas(n_replicas);
    job          j = {.kind = k, .weighted = weighted};
    ch_function *f = t_function(update_step, &j);
    double       one[MOST], want;

    for (int i = 0; i < MOST; i++)
        one[i] = 1;
    want = k->ref(d, weighted ? d->weight : one);
    t_ok(ch_metric_new(st, k->spec(), &j.metric));
    assert_string_equal(ch_metric_name(j.metric), k->name);
    near(k->name, result(j.metric), 0, 0);
    for (int round = 0; round < 2; round++) { /* the second as the first, after a reset */
        run_steps(st, f, d, n_replicas);
        near(k->name, result(j.metric), want, 1e-6); /* losses are computed in f32 */
        check_copies(j.metric);
        t_ok(ch_metric_reset(j.metric));
        near(k->name, result(j.metric), 0, 0);
    }
    assert_int_equal(ch_function_recordings(f), 1);
    ch_function_unref(f);
    ch_metric_unref(j.metric);
    ch_strategy_unref(st);
}

static void metrics_agree_with_a_plain_count(void **state)
{
    data d = make_data();

    (void)state;
    for (int k = 0; k < KINDS; k++)
        for (int i = 0; i < 4; i++)
            check_kind(&kinds[k], &d, 1 + i % 2, i / 2 != 0);
}

/* ---- known numbers ---- */

static void known_step(ch_step *s, void *arg)
{
    ch_metric_update(*(ch_metric **)arg, s, ch_step_in(s, 0), ch_step_in(s, 1),
                     ch_step_in_count(s) > 2 ? ch_step_in(s, 2) : NULL);
}

static double known(ch_metric *m, int n, const float *truth, const float *guess,
                    const float *weight)
{
    ch_function *f = t_function(known_step, &m);
    ch_tensor   *t[] = {t_f32(ch_shape_of(n), truth), t_f32(ch_shape_of(n), guess),
                        t_f32(ch_shape_of(n), weight)};
    ch_tuple    *in = NULL;
    double       x;

    t_ok(ch_tuple_of(weight != NULL ? 3 : 2, t, &in));
    t_ok(ch_strategy_run(NULL, f, in, NULL));
    x = result(m);
    for (int i = 0; i < 3; i++)
        ch_tensor_unref(t[i]);
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_metric_unref(m);
    return x;
}

static ch_metric *auc(int thresholds)
{
    ch_metric *m = NULL;

    t_ok(ch_metric_new(NULL, ch_metric_named(ch_metric_auc(thresholds), "auc"), &m));
    return m;
}

static ch_metric *exact(int64_t capacity)
{
    ch_metric *m = NULL;

    t_ok(ch_metric_new(NULL, ch_metric_auc_exact(capacity), &m));
    return m;
}

/* From the documentation of Keras and of scikit-learn. */
static void auc_agrees_with_keras_and_scikit_learn(void **state)
{
    static const float yes[] = {0, 0, 1, 1}, keras[] = {0, 0.5f, 0.3f, 0.9f};
    static const float sk[] = {0.1f, 0.4f, 0.35f, 0.8f}, masked[] = {1, 0, 0, 1};
    static const float equal[] = {0.5f, 0.5f, 0.5f, 0.5f}, wild[] = {-30, 2, 2, 1e30f};

    (void)state;
    near("auc", known(auc(3), 4, yes, keras, NULL), 0.75, 1e-12);
    near("auc", known(auc(3), 4, yes, keras, masked), 1, 1e-12);
    near("auc", known(auc(2), 4, yes, equal, NULL), 0.5, 1e-12);
    near("exact", known(exact(4), 4, yes, sk, NULL), 0.75, 1e-12);
    near("exact", known(exact(4), 4, yes, sk, masked), 1, 1e-12);
    near("exact", known(exact(9), 4, yes, equal, NULL), 0.5, 1e-12);
    near("exact", known(exact(9), 4, yes, wild, NULL), 0.875, 1e-12);
    near("of one class", known(exact(2), 2, yes + 2, sk, NULL), 0, 0);
    near("of one class", known(exact(2), 2, yes, sk, NULL), 0, 0);
    assert_true(isnan(known(exact(2), 2, yes + 1, (float[]){NAN, 1}, NULL)));
}

static void auc_of_predictions_that_are_nan_or_out_of_range_is_right(void **state)
{
    static const float yes[] = {0, 1, 0, 1}, signs[] = {-1, 1, -1, 1};

    (void)state;
    for (int i = 0; i < 4; i++) {
        float guess[] = {0.1f, 0.4f, 0.35f, 0.8f};

        guess[i] = NAN;
        assert_true(isnan(known(auc(0), 4, yes, guess, NULL)));
    }
    near("beyond", known(auc(0), 4, yes, (float[]){-5, 1, -3, 7}, NULL), 1, 1e-12);
    /* All numbers that are not 0 are positive examples. Here all are, so there is no curve. */
    near("signs", known(auc(0), 4, signs, (float[]){0.1f, 0.9f, 0.2f, 0.8f}, NULL), 0, 0);
}

static void metric_functions_reject_a_null_metric(void **state)
{
    ch_tensor     *t = NULL;
    ch_var *const *v = NULL;
    double         x;

    (void)state;
    t_refused(ch_metric_reset(NULL), CH_INVALID_ARGUMENT, "metric", "NULL");
    t_refused(ch_metric_result(NULL, &x), CH_INVALID_ARGUMENT, "metric", "NULL");
    t_refused(ch_metric_tensor(NULL, &t), CH_INVALID_ARGUMENT, "metric", "NULL");
    assert_int_equal(ch_metric_vars(NULL, &v), 0);
    assert_null(ch_metric_name(NULL));
}

static void a_confusion_matrix_has_truth_in_its_rows(void **state)
{
    static const float  truth[] = {0, 1, 1, 2, 2}, guess[] = {0, 1, 2, 0, 0};
    static const double want[] = {1, 0, 0, 0, 1, 1, 2, 0, 0};
    ch_metric          *m = NULL;
    ch_tensor          *counts = NULL;

    (void)state;
    t_ok(ch_metric_new(NULL, ch_metric_named(ch_metric_confusion(3), "which"), &m));
    near("diagonal", known(ch_metric_ref(m), 5, truth, guess, NULL), 0.4, 1e-12);
    t_ok(ch_metric_tensor(m, &counts));
    assert_int_equal(ch_tensor_dtype(counts), CH_F64);
    assert_memory_equal(ch_tensor_data(counts), want, sizeof(want));
    ch_tensor_unref(counts);
    ch_metric_unref(m);
}

/* A count in f32 would stop growing. */
static void metric_sum_does_not_stop_at_16_million(void **state)
{
    static const double before[] = {1 << 25, 1 << 25};
    static const float  one = 1;
    ch_metric          *m = NULL;
    ch_tensor          *t = NULL;
    ch_var *const      *var;

    (void)state;
    t_ok(ch_metric_new(NULL, ch_metric_named(ch_metric_sum(), "many"), &m));
    assert_int_equal(ch_metric_vars(m, &var), 1);
    assert_string_equal(ch_var_name(var[0]), "many/state");
    t = tensor_of(CH_F64, ch_shape_of(2), before);
    t_ok(ch_var_set(var[0], t));
    ch_tensor_unref(t);
    near("sum", known(m, 1, &one, &one, NULL), (1 << 25) + 1, 0);
}

/* ---- memory ---- */

static void metric_updates_allocate_nothing(void **state)
{
    data d = make_data();

    (void)state;
    for (int k = 0; k < KINDS; k++)
        for (int n = 1; n <= 2; n++) {
            ch_strategy *st = replicas(n);
            job          j = {.kind = &kinds[k], .weighted = true};
            ch_function *f = t_function(update_step, &j);
            ch_tuple    *in = make_batch(&d, 0, n);
            int64_t      before;

            t_ok(ch_metric_new(st, kinds[k].spec(), &j.metric));
            t_ok(ch_strategy_run(st, f, in, NULL));
            t_ok(ch_strategy_run(st, f, in, NULL));
            before = ch__mem_allocs();
            t_ok(ch_strategy_run(st, f, in, NULL));
            if (ch__mem_allocs() != before)
                fail_msg("%s allocates in a step", kinds[k].name);
            ch_tuple_unref(in);
            ch_function_unref(f);
            ch_metric_unref(j.metric);
            ch_strategy_unref(st);
        }
}

static void metrics_leak_nothing_when_out_of_memory(void **state)
{
    data         d = make_data();
    ch_strategy *st = replicas(1);
    ch_tuple    *in = make_batch(&d, 0, 1);
    ch_status    rc = CH_RESOURCE_EXHAUSTED;
    int64_t      live = ch__mem_live();

    (void)state;
    for (int n = 1; rc != CH_OK; n++) {
        job          j = {.kind = &kinds[13]};
        ch_function *f = NULL;
        double       x;

        ch__mem_fail_at(n);
        rc = ch_metric_new(st, ch_metric_named(new_exact(), "area"), &j.metric);
        if (rc == CH_OK)
            rc = ch_function_new("step", update_step, &j, &f);
        if (rc == CH_OK)
            rc = ch_strategy_run(st, f, in, NULL);
        if (rc == CH_OK)
            rc = ch_metric_result(j.metric, &x);
        if (rc == CH_OK)
            rc = ch_metric_reset(j.metric);
        ch__mem_fail_at(0);
        ch_function_unref(f);
        ch_metric_unref(j.metric);
        assert_true(rc == CH_OK || rc == CH_RESOURCE_EXHAUSTED);
        if (n > 1) /* the first run leaves objects that are made once in a process */
            assert_int_equal(ch__mem_live(), live);
        live = ch__mem_live();
    }
    ch_tuple_unref(in);
    ch_strategy_unref(st);
}

/* ---- refusals ---- */

static void exact_auc_fails_the_step_unchanged_when_its_capacity_is_full(void **state)
{
    data d = make_data();

    (void)state;
    for (int n = 1; n <= 2; n++) {
        ch_strategy *st = replicas(n);
        job          j = {.kind = &kinds[13]};
        ch_function *f = t_function(update_step, &j);
        ch_tuple    *in = make_batch(&d, 0, n);
        double       before;

        t_ok(ch_metric_new(st, ch_metric_named(ch_metric_auc_exact(20), "area"), &j.metric));
        t_ok(ch_strategy_run(st, f, in, NULL));
        t_ok(ch_strategy_run(st, f, in, NULL));
        before = result(j.metric);
        t_refused(ch_strategy_run(st, f, in, NULL), CH_INVALID_ARGUMENT,
                  "metric area: there is room for 20 guesses", "larger capacity");
        near("area", result(j.metric), before, 0);
        t_ok(ch_metric_reset(j.metric));
        t_ok(ch_strategy_run(st, f, in, NULL));
        ch_tuple_unref(in);
        ch_function_unref(f);
        ch_metric_unref(j.metric);
        ch_strategy_unref(st);
    }
}

static void refusal_step(ch_step *s, void *arg)
{
    static const int truth[] = {HOT, LABELS, YES, HOT, LABELS, LABELS, LABELS};
    static const int guess[] = {FIRST, FIRST, GUESS, GUESS, GUESS, GUESS, GUESS};
    job             *j = arg;
    int              i = (int)(j->kind - kinds);

    ch_metric_update(i == 5 ? NULL : j->metric, s, ch_step_in(s, truth[i]),
                     i == 4 ? NULL : ch_step_in(s, guess[i]),
                     i == 3 ? ch_step_in(s, GUESS) : NULL);
    ch_step_out(s, NULL, ch_step_in(s, YES)); /* a tail call would not return to this line */
}

static void metrics_reject_invalid_arguments(void **state)
{
    static const struct {
        ch_metric_spec (*spec)(void);
        const char *word, *other;
    } row[] = {
        {ch_metric_mse, "odd: shapes (", "differ"},
        {ch_metric_sparse_accuracy, "odd", "(..., classes)"},
        {new_auc, "odd: shapes", "differ"},
        {ch_metric_categorical_accuracy, "odd: weights", "first axes"},
        {ch_metric_mean, "odd", "NULL"},
        {ch_metric_mean, "metric", "NULL"},
    };
    data       d = make_data();
    ch_tuple  *in = make_batch(&d, 0, 1);
    ch_metric *m = NULL;

    (void)state;
    for (int i = 0; i < (int)(sizeof(row) / sizeof(row[0])); i++) {
        job          j = {.kind = &kinds[i]};
        ch_function *f = t_function(refusal_step, &j);

        t_ok(ch_metric_new(NULL, ch_metric_named(row[i].spec(), "odd"), &j.metric));
        t_refused(ch_strategy_run(NULL, f, in, NULL), CH_INVALID_ARGUMENT, row[i].word,
                  row[i].other);
        assert_non_null(strstr(ch_error_message(), "test_metric.c"));
        ch_function_unref(f);
        ch_metric_unref(j.metric);
    }
    ch_tuple_unref(in);
    t_refused(ch_metric_new(NULL, ch_metric_named(ch_metric_mean(), ""), &m),
              CH_INVALID_ARGUMENT, "metric mean", "name");
    t_refused(ch_metric_new(NULL, ch_metric_top_k(0), &m), CH_INVALID_ARGUMENT, "top_k",
              "1 or more");
    t_refused(ch_metric_new(NULL, ch_metric_auc(1), &m), CH_INVALID_ARGUMENT, "auc", "2 ..");
    t_refused(ch_metric_new(NULL, ch_metric_auc_exact(0), &m), CH_INVALID_ARGUMENT, "auc_exact",
              "capacity");
    t_refused(ch_metric_new(NULL, ch_metric_precision(NAN), &m), CH_INVALID_ARGUMENT,
              "precision", "threshold");
    t_refused(ch_metric_new(NULL, ch_metric_binary_accuracy(NAN), &m), CH_INVALID_ARGUMENT,
              "binary_accuracy", "threshold");
    t_refused(ch_metric_new(NULL, ch_metric_confusion(0), &m), CH_INVALID_ARGUMENT, "confusion",
              "classes");
}

static void confusion_metric_fails_the_step_when_a_label_is_no_class(void **state)
{
    ch_metric   *m = NULL;
    ch_function *f = t_function(known_step, &m);
    ch_tuple    *in = t_tuple(2, (ch_tensor *[]){t_f32(ch_shape_of(2), (float[]){1, 5}),
                                                 t_f32(ch_shape_of(2), (float[]){0, 0})});

    (void)state;
    t_ok(ch_metric_new(NULL, ch_metric_confusion(3), &m));
    t_refused(ch_strategy_run(NULL, f, in, NULL), CH_INVALID_ARGUMENT, "5", "confusion");
    near("diagonal", result(m), 0, 0);
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_metric_unref(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metrics_agree_with_a_plain_count),
        cmocka_unit_test(auc_agrees_with_keras_and_scikit_learn),
        cmocka_unit_test(auc_of_predictions_that_are_nan_or_out_of_range_is_right),
        cmocka_unit_test(metric_functions_reject_a_null_metric),
        cmocka_unit_test(a_confusion_matrix_has_truth_in_its_rows),
        cmocka_unit_test(metric_sum_does_not_stop_at_16_million),
        cmocka_unit_test(metric_updates_allocate_nothing),
        cmocka_unit_test(metrics_leak_nothing_when_out_of_memory),
        cmocka_unit_test(exact_auc_fails_the_step_unchanged_when_its_capacity_is_full),
        cmocka_unit_test(metrics_reject_invalid_arguments),
        cmocka_unit_test(confusion_metric_fails_the_step_when_a_label_is_no_class),
    };

    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "CPU=2", .threads = 1}));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
