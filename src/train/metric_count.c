/* train/metric_count.c -- metrics that count outcomes: precision, recall, F1, confusion.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/ops.h"
#include "train/loss.h"
#include "train/metric.h"

/* ---- binary: state (3), weights of true positives, false positives, false negatives ---- */

enum { TRUE_POSITIVE, FALSE_POSITIVE, FALSE_NEGATIVE, OUTCOMES };

static ch_node *add_outcomes(const ch_metric *m, ch_step *s, ch_node *truth, ch_node *guess,
                             ch_node *weights)
{
    ch_node *is_positive, *guessed_positive, *w, *outcome[OUTCOMES], *sum[OUTCOMES];

    if (!ch__same_shape(m->name, truth, guess))
        return NULL;
    is_positive = ch_cast(truth, CH_BOOL);
    guessed_positive =
        ch_greater(ch_dtype_is_float(guess->dtype) ? guess : ch_cast(guess, CH_F64),
                   ch_number(s, m->threshold));
    w = ch__metric_weights(m, weights, guess);
    outcome[TRUE_POSITIVE] = ch_logical_and(is_positive, guessed_positive);
    outcome[FALSE_POSITIVE] = ch_logical_and(ch_logical_not(is_positive), guessed_positive);
    outcome[FALSE_NEGATIVE] = ch_logical_and(is_positive, ch_logical_not(guessed_positive));
    for (int i = 0; i < OUTCOMES; i++)
        sum[i] = ch_sum_all(ch_mul(ch_cast(outcome[i], CH_F64), w));
    return ch_stack(OUTCOMES, sum, 0);
}

static ch_status precision_of(const ch_metric *m, int64_t n, const double *x, double *out)
{
    (void)m, (void)n;
    *out = ch__over(x[TRUE_POSITIVE], x[TRUE_POSITIVE] + x[FALSE_POSITIVE]);
    return CH_OK;
}

static ch_status recall_of(const ch_metric *m, int64_t n, const double *x, double *out)
{
    (void)m, (void)n;
    *out = ch__over(x[TRUE_POSITIVE], x[TRUE_POSITIVE] + x[FALSE_NEGATIVE]);
    return CH_OK;
}

static ch_status f1_of(const ch_metric *m, int64_t n, const double *x, double *out)
{
    (void)m, (void)n;
    *out = ch__over(2 * x[TRUE_POSITIVE],
                    2 * x[TRUE_POSITIVE] + x[FALSE_POSITIVE] + x[FALSE_NEGATIVE]);
    return CH_OK;
}

static ch_status prepare_outcomes(double threshold, ch_metric_parts *out)
{
    out->threshold = threshold;
    out->state = ch_shape_of(OUTCOMES);
    return CH_OK;
}

ch_metric_spec ch_metric_precision(double threshold)
{
    static const ch_metric_kind kind = {"precision", prepare_outcomes, add_outcomes,
                                        precision_of, false};

    return (ch_metric_spec){.number = threshold, .kind = &kind};
}

ch_metric_spec ch_metric_recall(double threshold)
{
    static const ch_metric_kind kind = {"recall", prepare_outcomes, add_outcomes, recall_of,
                                        false};

    return (ch_metric_spec){.number = threshold, .kind = &kind};
}

ch_metric_spec ch_metric_f1(double threshold)
{
    static const ch_metric_kind kind = {"f1", prepare_outcomes, add_outcomes, f1_of, false};

    return (ch_metric_spec){.number = threshold, .kind = &kind};
}

/* ---- confusion: state (classes, classes) ---- */

static ch_node *add_confusion(const ch_metric *m, ch_step *s, ch_node *truth, ch_node *guess,
                              ch_node *weights)
{
    ch_node *w, *at;

    if (truth != NULL && guess->dims.rank == truth->dims.rank + 1) {
        if (!ch__metric_has_labels(m, truth, guess))
            return NULL;
        guess = ch_argmax(guess, -1);
    }
    if (!ch__same_shape(m->name, truth, guess))
        return NULL;
    w = ch_reshape(ch__metric_weights(m, weights, guess), ch_shape_of(-1));
    at = ch_mul(ch_check_ids(ch_cast(truth, CH_I64), m->n), ch_number(s, (double)m->n));
    at = ch_add(at, ch_check_ids(ch_cast(guess, CH_I64), m->n));
    at = ch_segment_sum(w, ch_reshape(at, ch_shape_of(-1)), m->n * m->n);
    return ch_reshape(at, ch_shape_of(m->n, m->n));
}

static ch_status diagonal_share(const ch_metric *m, int64_t n, const double *state, double *out)
{
    double all = 0, diagonal = 0;

    (void)m;
    for (int64_t i = 0; i < n * n; i++)
        all += state[i];
    for (int64_t i = 0; i < n; i++)
        diagonal += state[i * n + i];
    *out = ch__over(diagonal, all);
    return CH_OK;
}

static ch_status prepare_confusion(double classes, ch_metric_parts *out)
{
    if (!(classes >= 1))
        return ch__fail(CH_INVALID_ARGUMENT, "metric confusion: %g classes, want 1 or more",
                        classes);
    out->n = (int64_t)classes;
    out->state = ch_shape_of(out->n, out->n);
    return CH_OK;
}

ch_metric_spec ch_metric_confusion(int classes)
{
    static const ch_metric_kind kind = {"confusion", prepare_confusion, add_confusion,
                                        diagonal_share, false};

    return (ch_metric_spec){.number = classes, .kind = &kind};
}
