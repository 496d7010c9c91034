/* train/metric_mean.c -- metrics that are the mean of a number for each example.
 *
 * The state is (2): the weighted sum and the sum of the weights. The add_ functions record the
 * number for each example and its sums; the _of functions compute the result. The macro MEAN
 * defines the metrics without a parameter.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "cohort/loss.h"
#include "cohort/ops.h"
#include "train/loss.h"
#include "train/metric.h"

enum { TOTAL, COUNT };

static ch_node *sums_of(const ch_metric *m, ch_node *each, ch_node *weights)
{
    ch_node *w = ch__metric_weights(m, weights, each);

    return ch_stack(
        2, (ch_node *[]){ch_sum_all(ch_mul(ch_cast(each, CH_F64), w)), ch_sum_all(w)}, 0);
}

static ch_status mean_of(const ch_metric *m, int64_t n, const double *state, double *out)
{
    (void)m, (void)n;
    *out = ch__over(state[TOTAL], state[COUNT]);
    return CH_OK;
}

static ch_status total_of(const ch_metric *m, int64_t n, const double *state, double *out)
{
    (void)m, (void)n;
    *out = state[TOTAL];
    return CH_OK;
}

static ch_status root_of(const ch_metric *m, int64_t n, const double *state, double *out)
{
    (void)mean_of(m, n, state, out);
    *out = sqrt(*out);
    return CH_OK;
}

/* ---- numbers for each example ---- */

static ch_node *add_values(const ch_metric *m, ch_step *s, ch_node *truth, ch_node *guess,
                           ch_node *weights)
{
    (void)s, (void)truth;
    return sums_of(m, guess, weights);
}

static ch_node *add_equal(const ch_metric *m, ch_step *s, ch_node *truth, ch_node *guess,
                          ch_node *weights)
{
    (void)s;
    if (!ch__same_shape(m->name, truth, guess))
        return NULL;
    if (truth->dtype != guess->dtype) {
        truth = ch_cast(truth, CH_F64);
        guess = ch_cast(guess, CH_F64);
    }
    return sums_of(m, ch_equal(truth, guess), weights);
}

static ch_node *add_label(const ch_metric *m, ch_step *s, ch_node *truth, ch_node *guess,
                          ch_node *weights)
{
    (void)s;
    if (!ch__metric_has_labels(m, truth, guess))
        return NULL;
    return sums_of(m, ch_equal(ch_cast(truth, CH_I64), ch_argmax(guess, -1)), weights);
}

static ch_node *add_one_hot(const ch_metric *m, ch_step *s, ch_node *truth, ch_node *guess,
                            ch_node *weights)
{
    (void)s;
    if (!ch__same_shape(m->name, truth, guess))
        return NULL;
    return sums_of(m, ch_equal(ch_argmax(truth, -1), ch_argmax(guess, -1)), weights);
}

static ch_node *add_side(const ch_metric *m, ch_step *s, ch_node *truth, ch_node *guess,
                         ch_node *weights)
{
    ch_node *yes;

    if (!ch__same_shape(m->name, truth, guess))
        return NULL;
    yes = ch_greater(ch_dtype_is_float(guess->dtype) ? guess : ch_cast(guess, CH_F64),
                     ch_number(s, m->threshold));
    return sums_of(m, ch_equal(ch_cast(truth, CH_BOOL), yes), weights);
}

static ch_node *add_top_k(const ch_metric *m, ch_step *s, ch_node *truth, ch_node *guess,
                          ch_node *weights)
{
    ch_node *best = NULL, *label;
    ch_dim   classes;

    (void)s;
    if (!ch__metric_has_labels(m, truth, guess))
        return NULL;
    classes = guess->dims.dim[guess->dims.rank - 1];
    ch_top_k(guess, classes.sym == 0 && classes.n < m->n ? classes.n : m->n, NULL, &best);
    label = ch_expand_dims(ch_cast(truth, CH_I64), -1);
    return sums_of(m, ch_any(ch_equal(best, label), 1, (int[]){-1}, false), weights);
}

static ch_node *difference(const ch_metric *m, ch_node *truth, ch_node *guess)
{
    if (!ch__same_shape(m->name, truth, guess))
        return NULL;
    return ch_sub(ch_cast(guess, CH_F64), ch_cast(truth, CH_F64));
}

static ch_node *add_square(const ch_metric *m, ch_step *s, ch_node *truth, ch_node *guess,
                           ch_node *weights)
{
    (void)s;
    return sums_of(m, ch_square(difference(m, truth, guess)), weights);
}

static ch_node *add_absolute(const ch_metric *m, ch_step *s, ch_node *truth, ch_node *guess,
                             ch_node *weights)
{
    (void)s;
    return sums_of(m, ch_abs(difference(m, truth, guess)), weights);
}

static ch_node *add_sparse_loss(const ch_metric *m, ch_step *s, ch_node *truth, ch_node *guess,
                                ch_node *weights)
{
    (void)s;
    if (!ch__metric_has_labels(m, truth, guess))
        return NULL;
    return sums_of(m, ch_loss_sparse_categorical(guess, truth), weights);
}

static ch_node *add_dense_loss(const ch_metric *m, ch_step *s, ch_node *truth, ch_node *guess,
                               ch_node *weights)
{
    (void)s;
    if (!ch__same_shape(m->name, truth, guess))
        return NULL;
    return sums_of(m, ch_loss_categorical(guess, truth, 0), weights);
}

static ch_node *add_binary_loss(const ch_metric *m, ch_step *s, ch_node *truth, ch_node *guess,
                                ch_node *weights)
{
    (void)s;
    return sums_of(m, ch_loss_binary(guess, truth), weights);
}

/* ---- the metrics ---- */

static ch_status prepare_mean(double number, ch_metric_parts *out)
{
    (void)number;
    out->state = ch_shape_of(2);
    return CH_OK;
}

static ch_status prepare_binary(double threshold, ch_metric_parts *out)
{
    out->threshold = threshold;
    return prepare_mean(0, out);
}

static ch_status prepare_top_k(double k, ch_metric_parts *out)
{
    if (!(k >= 1))
        return ch__fail(CH_INVALID_ARGUMENT, "metric top_k: k is %g, want 1 or more", k);
    out->n = (int64_t)k;
    return prepare_mean(0, out);
}

/* Defines a metric that has no parameter. */
#define MEAN(metric_, add_, result_)                                                           \
    ch_metric_spec ch_metric_##metric_(void)                                                   \
    {                                                                                          \
        static const ch_metric_kind kind = {#metric_, prepare_mean, add_, result_, false};     \
                                                                                               \
        return (ch_metric_spec){.kind = &kind};                                                \
    }

MEAN(mean, add_values, mean_of)
MEAN(sum, add_values, total_of)
MEAN(accuracy, add_equal, mean_of)
MEAN(sparse_accuracy, add_label, mean_of)
MEAN(categorical_accuracy, add_one_hot, mean_of)
MEAN(mse, add_square, mean_of)
MEAN(mae, add_absolute, mean_of)
MEAN(rmse, add_square, root_of)
MEAN(sparse_cross_entropy, add_sparse_loss, mean_of)
MEAN(categorical_cross_entropy, add_dense_loss, mean_of)
MEAN(binary_cross_entropy, add_binary_loss, mean_of)

ch_metric_spec ch_metric_binary_accuracy(double threshold)
{
    static const ch_metric_kind kind = {"binary_accuracy", prepare_binary, add_side, mean_of,
                                        false};

    return (ch_metric_spec){.number = threshold, .kind = &kind};
}

ch_metric_spec ch_metric_top_k(int k)
{
    static const ch_metric_kind kind = {"top_k", prepare_top_k, add_top_k, mean_of, false};

    return (ch_metric_spec){.number = k, .kind = &kind};
}
