/* train/metric_auc.c -- the area under the ROC curve, by thresholds and exactly.
 *
 * The area is the probability that a guess for a positive example is above a guess for a
 * negative example; equal guesses count half. With thresholds, guesses between the same two
 * thresholds count as equal. That is the linear interpolation of Keras.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "cohort/ops.h"
#include "train/loss.h"
#include "train/metric.h"

/* ---- thresholds ----
 *
 * State (2, thresholds): the weight of the guesses that are above a threshold and not above the
 * next, for negative examples and then for positive examples. */

enum { DEFAULT_THRESHOLDS = 200, MAX_THRESHOLDS = 1 << 20 };

/* Records the histogram in a single pass. Threshold i is i / (n - 1), except that the first is
 * below all guesses. So guess > threshold holds for the first ceil(guess * (n - 1)) thresholds.
 * A NaN guess adds NaN to the state. */
static ch_node *add_histogram(const ch_metric *m, ch_step *s, ch_node *truth, ch_node *guess,
                              ch_node *weights)
{
    double   n = (double)m->n;
    ch_node *at, *w, *is_number;

    if (!ch__same_shape(m->name, truth, guess))
        return NULL;
    guess = ch_cast(guess, CH_F64);
    is_number = ch_equal(guess, guess);
    w = ch_select(is_number, ch__metric_weights(m, weights, guess), ch_number(s, NAN));
    w = ch_reshape(w, ch_shape_of(-1));
    at = ch_mul(ch_clip(guess, 0, 1), ch_number(s, n - 1));
    at = ch_maximum(ch_sub(ch_ceil(at), ch_number(s, 1)), ch_number(s, 0));
    at = ch_add(at, ch_mul(ch_cast(ch_cast(truth, CH_BOOL), CH_F64), ch_number(s, n)));
    at = ch_reshape(ch_cast(at, CH_I64), ch_shape_of(-1));
    return ch_reshape(ch_segment_sum(w, at, 2 * m->n), ch_shape_of(2, m->n));
}

static ch_status histogram_area(const ch_metric *m, int64_t n, const double *state, double *out)
{
    const double *negative = state, *positive = state + m->n;
    double        negative_below = 0, all_positive = 0, pairs = 0;

    (void)n;
    for (int64_t i = 0; i < m->n; i++) {
        pairs += positive[i] * (negative_below + negative[i] / 2);
        negative_below += negative[i];
        all_positive += positive[i];
    }
    *out = ch__over(pairs, all_positive * negative_below);
    return CH_OK;
}

static ch_status prepare_auc(double thresholds, ch_metric_parts *out)
{
    double n = thresholds == 0 ? DEFAULT_THRESHOLDS : thresholds;

    if (!(n >= 2 && n <= MAX_THRESHOLDS))
        return ch__fail(CH_INVALID_ARGUMENT, "metric auc: %g thresholds, want 2 .. %d", n,
                        MAX_THRESHOLDS);
    out->n = (int64_t)n;
    out->state = ch_shape_of(2, out->n);
    return CH_OK;
}

ch_metric_spec ch_metric_auc(int thresholds)
{
    static const ch_metric_kind kind = {"auc", prepare_auc, add_histogram, histogram_area,
                                        false};

    return (ch_metric_spec){.number = thresholds, .kind = &kind};
}

/* ---- exact: state (capacity, 3), rows of a guess, its truth and its weight ---- */

enum { GUESS, TRUTH, WEIGHT, COLUMNS };

static ch_node *add_rows(const ch_metric *m, ch_step *s, ch_node *truth, ch_node *guess,
                         ch_node *weights)
{
    ch_node *column[COLUMNS];

    (void)s;
    if (!ch__same_shape(m->name, truth, guess))
        return NULL;
    column[GUESS] = ch_cast(guess, CH_F64);
    column[TRUTH] = ch_cast(ch_cast(truth, CH_BOOL), CH_F64);
    column[WEIGHT] = ch__metric_weights(m, weights, guess);
    for (int i = 0; i < COLUMNS; i++)
        column[i] = ch_reshape(column[i], ch_shape_of(-1));
    return ch_stack(COLUMNS, column, 1);
}

static int by_guess(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Returns the area for rows that are sorted by their guesses. Equal guesses are handled
 * together. */
static double sorted_area(int64_t n, const double *row)
{
    double pairs = 0, all_positive = 0, negative_below = 0;

    for (int64_t i = 0; i < n;) {
        double guess = row[i * COLUMNS + GUESS], weight[2] = {0, 0};

        for (; i < n && row[i * COLUMNS + GUESS] == guess; i++)
            weight[row[i * COLUMNS + TRUTH] != 0] += row[i * COLUMNS + WEIGHT];
        pairs += weight[1] * (negative_below + weight[0] / 2);
        negative_below += weight[0];
        all_positive += weight[1];
    }
    return ch__over(pairs, all_positive * negative_below);
}

static ch_status exact_area(const ch_metric *m, int64_t n, const double *state, double *out)
{
    double *row = ch__malloc((size_t)n * COLUMNS * sizeof(*row) + 1);

    if (row == NULL)
        return ch__fail_memory(m->name);
    for (int64_t i = 0; i < n * COLUMNS; i++) {
        row[i] = state[i];
        if (i % COLUMNS == GUESS && isnan(row[i])) {
            *out = NAN;
            ch__free(row);
            return CH_OK;
        }
    }
    qsort(row, (size_t)n, COLUMNS * sizeof(*row), by_guess);
    *out = sorted_area(n, row);
    ch__free(row);
    return CH_OK;
}

static ch_status prepare_exact(double capacity, ch_metric_parts *out)
{
    if (!(capacity >= 1))
        return ch__fail(CH_INVALID_ARGUMENT, "metric auc_exact: capacity %g, want at least 1",
                        capacity);
    out->n = capacity < (double)INT64_MAX ? (int64_t)capacity : INT64_MAX;
    out->state = ch_shape_of(out->n, COLUMNS);
    return CH_OK;
}

ch_metric_spec ch_metric_auc_exact(int64_t capacity)
{
    static const ch_metric_kind kind = {"auc_exact", prepare_exact, add_rows, exact_area, true};

    return (ch_metric_spec){.number = (double)capacity, .kind = &kind};
}
