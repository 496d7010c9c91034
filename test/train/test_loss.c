/* test/train/test_loss.c -- losses: their values and gradients, and how they are averaged.
 *
 * Each loss has a plain reference in doubles. The averages are computed on one and two replicas
 * with unequal numbers of rows, with and without weights, and compared with the whole batch.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "../strategy/help.h"

/* ---- each loss, by a plain reference ---- */

enum { CLASSES = 5, MOST = 256 };

/* Returns the loss of an example of n numbers. */
typedef double (*reference)(int n, const double *p, const double *t);

static double ref_log_softmax(int n, const double *p, int at)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += exp(p[i] - p[at]);
    return -log(sum);
}

static double ref_categorical(int n, const double *p, const double *t)
{
    double x = 0;

    for (int i = 0; i < n; i++)
        x -= t[i] * ref_log_softmax(n, p, i);
    return x;
}

static double ref_smoothed(int n, const double *p, const double *t)
{
    double x = 0;

    for (int i = 0; i < n; i++)
        x -= (t[i] * 0.9 + 0.1 / n) * ref_log_softmax(n, p, i);
    return x;
}

static double ref_binary(int n, const double *p, const double *t)
{
    double x = 0;

    for (int i = 0; i < n; i++)
        x -= t[i] * log(1 / (1 + exp(-p[i]))) + (1 - t[i]) * log(1 / (1 + exp(p[i])));
    return x / n;
}

static double ref_mse(int n, const double *p, const double *t)
{
    double x = 0;

    for (int i = 0; i < n; i++)
        x += (p[i] - t[i]) * (p[i] - t[i]);
    return x / n;
}

static double ref_mae(int n, const double *p, const double *t)
{
    double x = 0;

    for (int i = 0; i < n; i++)
        x += fabs(p[i] - t[i]);
    return x / n;
}

static double ref_huber(int n, const double *p, const double *t)
{
    double x = 0, d = 0.7;

    for (int i = 0; i < n; i++) {
        double e = fabs(p[i] - t[i]);

        x += e <= d ? 0.5 * e * e : d * e - 0.5 * d * d;
    }
    return x / n;
}

static double ref_cosine(int n, const double *p, const double *t)
{
    double pp = 0, tt = 0, pt = 0;

    for (int i = 0; i < n; i++) {
        pp += p[i] * p[i];
        tt += t[i] * t[i];
        pt += p[i] * t[i];
    }
    return -pt / sqrt(pp * tt);
}

static double ref_hinge(int n, const double *p, const double *t)
{
    double x = 0;

    for (int i = 0; i < n; i++)
        x += 1 - p[i] * t[i] > 0 ? 1 - p[i] * t[i] : 0;
    return x / n;
}

static double ref_kl(int n, const double *p, const double *t)
{
    double x = 0;

    for (int i = 0; i < n; i++)
        x += t[i] > 0 ? t[i] * log(t[i] / p[i]) : 0;
    return x;
}

static ch_node *smoothed(ch_node *p, ch_node *t)
{
    return ch_loss_categorical(p, t, 0.1);
}

static ch_node *dense(ch_node *p, ch_node *t)
{
    return ch_loss_categorical(p, t, 0);
}

static ch_node *huber(ch_node *p, ch_node *t)
{
    return ch_loss_huber(p, t, 0.7);
}

static ch_node *sparse(ch_node *p, ch_node *t)
{
    return ch_loss_sparse_categorical(p, ch_argmax(t, -1));
}

typedef enum fill { NOISE, BITS, SIGNS, SHARES, ONE_HOT } fill;

static const struct kind {
    const char *name;
    ch_node *(*loss)(ch_node *p, ch_node *t);
    reference ref;
    fill      prediction, target;
} kinds[] = {
    {"sparse categorical", sparse, ref_categorical, NOISE, ONE_HOT},
    {"categorical", dense, ref_categorical, NOISE, SHARES},
    {"smoothed", smoothed, ref_smoothed, NOISE, ONE_HOT},
    {"binary", ch_loss_binary, ref_binary, NOISE, BITS},
    {"mse", ch_loss_mse, ref_mse, NOISE, NOISE},
    {"mae", ch_loss_mae, ref_mae, NOISE, NOISE},
    {"huber", huber, ref_huber, NOISE, NOISE},
    {"cosine", ch_loss_cosine, ref_cosine, NOISE, NOISE},
    {"hinge", ch_loss_hinge, ref_hinge, NOISE, SIGNS},
    {"kl", ch_loss_kl, ref_kl, SHARES, SHARES},
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static double uniform(unsigned *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (double)(*seed >> 8) / (1 << 24);
}

static void fill_row(fill how, int n, unsigned *seed, double *x)
{
    double sum = 0;
    int    hot = (int)(uniform(seed) * n);

    for (int i = 0; i < n; i++) {
        double u = uniform(seed);

        x[i] = how == BITS ? u < 0.5 : how == SIGNS ? (u < 0.5 ? -1 : 1) : 4 * u - 2;
        if (how == ONE_HOT)
            x[i] = i == hot;
        if (how == SHARES)
            x[i] = u + 0.05;
        sum += x[i];
    }
    for (int i = 0; i < n && how == SHARES; i++)
        x[i] /= sum;
}

/* Makes `rows` rows of n numbers with few digits, so that 16 bits hold them; shares are of
 * f32. */
static void fill_rows(fill how, int rows, int n, unsigned seed, double *x)
{
    assert_true(rows * n <= MOST);
    for (int i = 0; i < rows; i++)
        fill_row(how, n, &seed, x + i * n);
    for (int i = 0; i < rows * n; i++)
        x[i] = how == SHARES ? (float)x[i] : round(x[i] * 64) / 64;
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

static double item(const ch_tuple *out, int leaf, int replica, int64_t i)
{
    ch_tensor *t = ch_value_at(ch_tuple_at(out, leaf), replica), *flat = NULL;
    double     x;

    t_ok(ch_tensor_reshape(t, ch_shape_of(ch_tensor_count(t)), &flat));
    t_ok(ch_tensor_get(flat, &i, &x));
    ch_tensor_unref(flat);
    return x;
}

static void near(const char *what, double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance * (1 + fabs(want))))
        fail_msg("%s: got %.9g, want %.9g", what, got, want);
}

/* ---- values and gradients ---- */

static void each_step(ch_step *s, void *arg)
{
    const struct kind *k = *(const struct kind **)arg;
    ch_node           *p = ch_step_in(s, 0), *each = k->loss(p, ch_step_in(s, 1));

    ch_step_out(s, "each", each);
    ch_step_out(s, "slope", ch_gradient(each, p));
}

static void check_kind(const struct kind *k, ch_dtype dtype, ch_shape shape)
{
    int    n = (int)shape.dim[shape.rank - 1], rows = (int)ch_shape_count(shape) / n;
    double p[MOST], t[MOST], tolerance = dtype == CH_F64 ? 1e-7 : dtype == CH_F32 ? 1e-5 : 2e-2;
    ch_function *f = t_function(each_step, &k);
    ch_tuple    *in, *out = NULL;

    fill_rows(k->prediction, rows, n, 1, p);
    fill_rows(k->target, rows, n, 2, t);
    in = t_tuple(2, (ch_tensor *[]){tensor_of(dtype, shape, p), tensor_of(CH_F32, shape, t)});
    t_ok(ch_strategy_run(NULL, f, in, &out));
    assert_int_equal(ch_tensor_dtype(ch_value_at(ch_tuple_at(out, 0), 0)),
                     dtype == CH_F64 ? CH_F64 : CH_F32);
    assert_int_equal(ch_tensor_count(ch_value_at(ch_tuple_at(out, 0), 0)), rows);
    for (int i = 0; i < rows; i++)
        near(k->name, item(out, 0, 0, i), k->ref(n, p + i * n, t + i * n), tolerance);
    for (int i = 0; i < rows * n; i++) {
        double h = 1e-5, was = p[i], up, down;

        p[i] = was + h;
        up = k->ref(n, p + i / n * n, t + i / n * n);
        p[i] = was - h;
        down = k->ref(n, p + i / n * n, t + i / n * n);
        p[i] = was;
        if (fabs(up + down - 2 * k->ref(n, p + i / n * n, t + i / n * n)) <
            1e-7) /* no point where the loss is not smooth */
            near(k->name, item(out, 1, 0, i), (up - down) / (2 * h), tolerance);
    }
    ch_tuple_unref(out);
    ch_tuple_unref(in);
    ch_function_unref(f);
}

static void losses_and_their_gradients_agree_with_the_reference(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        check_kind(&kinds[k], CH_F64, ch_shape_of(7, CLASSES));
        check_kind(&kinds[k], CH_F32, ch_shape_of(7, CLASSES));
        check_kind(&kinds[k], CH_F32, ch_shape_of(4, 3, CLASSES));
        check_kind(&kinds[k], CH_F32, ch_shape_of(0, CLASSES));
        check_kind(&kinds[k], CH_BF16, ch_shape_of(9, CLASSES));
        check_kind(&kinds[k], CH_F16, ch_shape_of(9, CLASSES));
    }
}

static void loss_of_one_axis_has_an_example_in_each_row(void **state)
{
    static const float       p[3] = {1, 2, 4}, t[3] = {0, 4, 4};
    static const struct kind kind = {"mse", ch_loss_mse, ref_mse, NOISE, NOISE};
    const struct kind       *mse = &kind;
    ch_function             *f = t_function(each_step, &mse);
    ch_tuple *out = NULL, *in = t_tuple(2, (ch_tensor *[]){t_f32(ch_shape_of(3), p),
                                                           t_f32(ch_shape_of(3), t)});

    (void)state;
    t_ok(ch_strategy_run(NULL, f, in, &out));
    for (int i = 0; i < 3; i++)
        near("mse", item(out, 0, 0, i), (p[i] - t[i]) * (p[i] - t[i]), 1e-6);
    ch_tuple_unref(out);
    ch_tuple_unref(in);
    ch_function_unref(f);
}

static void losses_of_extreme_numbers_are_finite(void **state)
{
    static const double p[] = {3e4, -3e4, 0, 3e4, 1e-30, -2e4}, t[] = {0, 1, 0, 1, 0, 0};
    static const double zero[6] = {0};

    (void)state;
    for (int k = 0; k < KINDS; k++)
        for (int zeros = 0; zeros < 2; zeros++) {
            const struct kind *kind = &kinds[k];
            ch_function       *f = t_function(each_step, &kind);
            ch_tuple          *in = t_tuple(
                         2, (ch_tensor *[]){tensor_of(CH_F32, ch_shape_of(2, 3), zeros ? zero : p),
                                            tensor_of(CH_F32, ch_shape_of(2, 3), zeros ? zero : t)});
            ch_tuple *out = NULL;

            t_ok(ch_strategy_run(NULL, f, in, &out));
            for (int i = 0; i < 6; i++)
                if (!isfinite(item(out, 0, 0, i / 3)) || !isfinite(item(out, 1, 0, i)))
                    fail_msg("%s: not finite", kinds[k].name);
            ch_tuple_unref(out);
            ch_tuple_unref(in);
            ch_function_unref(f);
        }
}

/* ---- averages ---- */

typedef struct averaging {
    ch_var *w;
    int     weights; /* 0: none, 1: of ch_loss_average, 2: of ch_loss_weighted_mean */
    int     tokens;  /* size of a second axis of the losses; 0: none */
    bool    is_flat; /* the second axis is merged with the rows */
    int     rows_of; /* rows are those of this input */
} averaging;

static void average_step(ch_step *s, void *arg)
{
    averaging *a = arg;
    ch_node   *w = ch_var_read(s, a->w), *x = ch_step_in(s, a->rows_of), *loss, *each;
    ch_node   *weights = a->weights > 0 ? ch_step_in(s, a->rows_of + 1) : NULL;

    each = ch_loss_mse(ch_mul(x, w), ch_full_like(x, 0.5));
    if (a->is_flat) {
        each = ch_reshape(each, ch_shape_of(-1));
        weights = weights != NULL ? ch_reshape(weights, ch_shape_of(-1)) : NULL;
    }
    loss =
        a->weights == 2 ? ch_loss_weighted_mean(each, weights) : ch_loss_average(each, weights);
    ch_step_out(s, "loss", ch_all_reduce(CH_SUM, loss));
    ch_step_out(s, "slope", ch_all_reduce(CH_SUM, ch_gradient(loss, w)));
}

static ch_strategy *replicas(int n)
{
    ch_strategy *st = NULL;

    t_ok(ch_strategy_mirrored(
        &(ch_mirrored_options){.n_devices = n,
                               .device = (const char *const[]){"CPU:0", "CPU:1"}},
        &st));
    return st;
}

static ch_value *dealt(ch_shape shape, const double *x, int n, const int *rows)
{
    ch_tensor *t[2];
    ch_value  *v = NULL;
    int64_t    width = 1;

    for (int i = 1; i < shape.rank; i++)
        width *= shape.dim[i];
    for (int r = 0; r < n; r++) {
        shape.dim[0] = rows[r];
        t[r] = tensor_of(CH_F32, shape, x);
        x += rows[r] * width;
    }
    t_ok(ch_value_new(CH_PER_REPLICA, n, t, &v));
    for (int r = 0; r < n; r++)
        ch_tensor_unref(t[r]);
    return v;
}

/* Computes loss and derivative of 7 rows, divided among one or two replicas. */
static void run_average(averaging a, int n, const int *rows, double *loss, double *slope)
{
    ch_strategy *st = replicas(n);
    ch_shape     shape = a.tokens > 0 ? ch_shape_of(-1, a.tokens, 3) : ch_shape_of(-1, 3);
    ch_shape     of_weights = a.tokens > 0 ? ch_shape_of(-1, a.tokens) : ch_shape_of(-1);
    double       x[7 * 4 * 3], weight[7 * 4];
    ch_value    *v[3] = {NULL};
    ch_tuple    *in = NULL, *out = NULL;
    ch_function *f = t_function(average_step, &a);
    int          one[2] = {1, 1}, many = 7 * (a.tokens > 0 ? a.tokens : 1);

    fill_rows(NOISE, many, 3, 5, x);
    fill_rows(BITS, many, 1, 6, weight);
    a.w = t_var(st, "w", t_f32(ch_shape_of(3), (float[]){0.5f, -1, 2}));
    if (a.rows_of == 1)
        v[0] = dealt(ch_shape_of(-1, 3), x, n, one);
    v[a.rows_of] = dealt(shape, x, n, rows);
    v[a.rows_of + 1] = dealt(of_weights, weight, n, rows);
    t_ok(ch_tuple_new(a.rows_of + 2, v, NULL, &in));
    t_ok(ch_strategy_run(st, f, in, &out));
    *loss = item(out, 0, 0, 0);
    for (int i = 0; i < 3; i++)
        slope[i] = item(out, 1, n - 1, i);
    for (int i = 0; i < a.rows_of + 2; i++)
        ch_value_unref(v[i]);
    ch_tuple_unref(out);
    ch_tuple_unref(in);
    ch_function_unref(f);
    ch_var_unref(a.w);
    ch_strategy_unref(st);
}

/* Computes the same for the whole batch, in a simple loop. */
static void plain_average(averaging a, double *loss, double *slope)
{
    static const double w[3] = {0.5, -1, 2};
    int                 many = 7 * (a.tokens > 0 ? a.tokens : 1);
    double              x[7 * 4 * 3], weight[7 * 4], total = 0;

    fill_rows(NOISE, many, 3, 5, x);
    fill_rows(BITS, many, 1, 6, weight);
    *loss = slope[0] = slope[1] = slope[2] = 0;
    for (int i = 0; i < many; i++) {
        double by = a.weights > 0 ? weight[i] : 1;

        total += a.weights == 2 ? by : 1;
        for (int k = 0; k < 3; k++) {
            double e = x[3 * i + k] * w[k] - 0.5;

            *loss += by * e * e / 3;
            slope[k] += by * 2 * e * x[3 * i + k] / 3;
        }
    }
    *loss /= total;
    for (int k = 0; k < 3; k++)
        slope[k] /= total;
}

/* 4.1.6, 4.1.13 */
static void loss_average_weighs_replicas_by_their_rows_and_weights(void **state)
{
    static const int deals[][2] = {{4, 3}, {6, 1}, {7, 0}, {0, 7}};

    (void)state;
    for (int form = 0; form < 3 * 3 * 2; form++) {
        averaging a = {.weights = form % 3,
                       .tokens = form / 3 % 3 > 0 ? 4 : 0,
                       .is_flat = form / 3 % 3 == 2,
                       .rows_of = form / 9};
        double    loss, slope[3], want, want_slope[3];

        plain_average(a, &want, want_slope);
        for (int d = -1; d < 4; d++) {
            run_average(a, d < 0 ? 1 : 2, d < 0 ? (int[]){7} : deals[d], &loss, slope);
            near("loss", loss, want, 1e-5);
            for (int k = 0; k < 3; k++)
                near("slope", slope[k], want_slope[k], 1e-5);
        }
    }
}

static void loss_average_of_an_empty_batch_is_0(void **state)
{
    double loss, slope[3];

    (void)state;
    for (int weights = 0; weights < 3; weights++) {
        run_average((averaging){.weights = weights}, 2, (int[]){0, 0}, &loss, slope);
        assert_true(loss == 0 && slope[0] == 0 && slope[1] == 0 && slope[2] == 0);
    }
}

/* Sizes that are numbers are the same on each replica. */
static void no_input_step(ch_step *s, void *arg)
{
    ch_node *x = ch_fill(s, CH_F32, ch_shape_of(6, 2), 3);

    (void)arg;
    ch_step_out(s, NULL,
                ch_all_reduce(CH_SUM, ch_loss_average(ch_loss_mse(x, ch_zeros_like(x)), NULL)));
}

static void loss_average_without_inputs_is_over_replicas(void **state)
{
    (void)state;
    for (int n = 1; n <= 2; n++) {
        ch_strategy *st = replicas(n);
        ch_function *f = t_function(no_input_step, NULL);
        ch_tuple    *out = NULL;

        t_ok(ch_strategy_run(st, f, NULL, &out));
        near("loss", item(out, 0, 0, 0), 9, 1e-6);
        ch_tuple_unref(out);
        ch_function_unref(f);
        ch_strategy_unref(st);
    }
}

/* A sum of many losses exceeds the range of f16, and their number exceeds the digits of
 * bf16. */
static void average_16_step(ch_step *s, void *arg)
{
    (void)arg;
    ch_step_out(s, NULL, ch_loss_average(ch_step_in(s, 0), NULL));
}

static void loss_average_of_16_bits_is_exact(void **state)
{
    static double x[5001];

    (void)state;
    for (int i = 0; i < 5001; i++)
        x[i] = 100;
    for (int half = 0; half < 2; half++) {
        ch_function *f = t_function(average_16_step, NULL);
        ch_tensor   *t = tensor_of(half ? CH_F16 : CH_BF16, ch_shape_of(5001), x);
        ch_tuple    *in = t_tuple(1, &t), *out = NULL;

        t_ok(ch_strategy_run(NULL, f, in, &out));
        near("average", item(out, 0, 0, 0), 100, 1e-6);
        ch_tuple_unref(out);
        ch_tuple_unref(in);
        ch_function_unref(f);
    }
}

/* ---- refusals ---- */

static void refusal_step(ch_step *s, void *arg)
{
    ch_node *x = ch_step_in(s, 0), *y = ch_step_in(s, 1), *z = NULL; /* (n, 3), (n) */

    switch (*(int *)arg) {
    case 0:
        z = ch_loss_mse(x, y);
        break;
    case 1:
        z = ch_loss_mse(x, NULL);
        break;
    case 2:
        z = ch_loss_huber(x, x, 0);
        break;
    case 3:
        z = ch_loss_categorical(x, x, 1);
        break;
    case 4:
        z = ch_loss_cosine(y, y);
        break;
    case 5:
        z = ch_loss_mse(ch_cast(x, CH_I32), x);
        break;
    case 6:
        z = ch_loss_average(y, x);
        break;
    case 7:
        z = ch_loss_average(ch_sum_all(y), NULL);
        break;
    case 8:
        z = ch_loss_weighted_mean(y, NULL);
        break;
    case 9:
        z = ch_loss_sparse_categorical(x, ch_cast(y, CH_I32));
        break;
    case 10:
        z = ch_loss_cosine(NULL, x);
        break;
    case 11:
        z = ch_loss_sparse_categorical(NULL, ch_cast(y, CH_I32));
        break;
    case 12:
        z = ch_loss_sparse_categorical(x, NULL);
        break;
    case 13:
        z = ch_loss_average(NULL, y);
        break;
    case 14:
        z = ch_loss_weighted_mean(NULL, y);
        break;
    case 15:
        z = ch_loss_categorical(NULL, x, 0);
        break;
    case 16:
        z = ch_loss_categorical(ch_cast(y, CH_I32), y, 0);
        break;
    case 17:
        z = ch_loss_sparse_categorical(y, ch_cast(ch_sum_all(y), CH_I32));
        break;
    default:
        z = ch_loss_average(ch_cast(y, CH_I64), NULL);
        break;
    }
    ch_step_out(s, NULL, z);
}

static void column_step(ch_step *s, void *arg)
{
    ch_node *y = ch_step_in(s, 1), *column = ch_expand_dims(y, -1);
    bool     is_first = *(bool *)arg;

    ch_step_out(s, NULL, ch_loss_mse(is_first ? column : y, is_first ? y : column));
}

/* A prediction (rows, 1) against labels (rows), as a CSV file gives them, or the reverse. */
static void losses_suggest_fields_when_an_axis_of_size_1_is_missing(void **state)
{
    ch_tuple *in = t_tuple(2, (ch_tensor *[]){t_noise(ch_shape_of(2, 3), 1),
                                              t_f32(ch_shape_of(2), (float[]){1, 7})});

    (void)state;
    for (int i = 0; i < 2; i++) {
        bool         is_first = i == 0;
        ch_function *f = t_function(column_step, &is_first);

        t_refused(ch_strategy_run(NULL, f, in, NULL), CH_INVALID_ARGUMENT, "loss_mse: shapes (",
                  "set .fields = 1");
        ch_function_unref(f);
    }
    ch_tuple_unref(in);
}

static void losses_reject_invalid_arguments(void **state)
{
    static const char *const words[][2] = {
        {"loss_mse: shapes (", "differ"},
        {"loss_mse", "NULL"},
        {"loss_huber", "more than 0"},
        {"loss_categorical: smoothing is 1", "less than 1"},
        {"loss_cosine", "(rows, ..., n)"},
        {"loss_mse", "i32"},
        {"loss_average: weights", "first axes"},
        {"loss_average", "0 axes"},
        {"loss_weighted_mean", "weights"},
        {"label 7", "position 1"},
        {"loss_cosine", "NULL"},
        {"loss_sparse_categorical: the logits", "NULL"},
        {"loss_sparse_categorical: the labels", "NULL"},
        {"loss_average: NULL", "want a float"},
        {"loss_weighted_mean: the losses", "NULL"},
        {"loss_categorical", "NULL"},
        {"loss_categorical: the logits are i32(", "want floats (..., classes)"},
        {"loss_sparse_categorical: the logits are f32(", "a single axis is the rows"},
        {"loss_average", "i64"},
    };
    ch_tuple *in = t_tuple(2, (ch_tensor *[]){t_noise(ch_shape_of(2, 3), 1),
                                              t_f32(ch_shape_of(2), (float[]){1, 7})});

    (void)state;
    for (int i = 0; i < (int)(sizeof(words) / sizeof(words[0])); i++) {
        ch_function *f = t_function(refusal_step, &i);

        t_refused(ch_strategy_run(NULL, f, in, NULL), CH_INVALID_ARGUMENT, words[i][0],
                  words[i][1]);
        if (strstr(ch_error_message(), "test_loss.c") == NULL)
            fail_msg("no line in \"%s\"", ch_error_message());
        ch_function_unref(f);
    }
    ch_tuple_unref(in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_and_their_gradients_agree_with_the_reference),
        cmocka_unit_test(loss_of_one_axis_has_an_example_in_each_row),
        cmocka_unit_test(losses_of_extreme_numbers_are_finite),
        cmocka_unit_test(loss_average_weighs_replicas_by_their_rows_and_weights),
        cmocka_unit_test(loss_average_of_an_empty_batch_is_0),
        cmocka_unit_test(loss_average_without_inputs_is_over_replicas),
        cmocka_unit_test(loss_average_of_16_bits_is_exact),
        cmocka_unit_test(losses_suggest_fields_when_an_axis_of_size_1_is_missing),
        cmocka_unit_test(losses_reject_invalid_arguments),
    };

    t_ok(ch_devices_configure(&(ch_devices_options){.spec = "CPU=2", .threads = 1}));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
