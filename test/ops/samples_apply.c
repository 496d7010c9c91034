/* test/ops/samples_apply.c -- samples of update rules, on whole arrays and on rows.
 *
 * The reference of each rule is step_of, which updates a single element in doubles. Other
 * samples cover the computation of hyperparameters, sums of squares, and merged, marked and
 * rounded rows.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "ops/apply.h"
#include "ops/lookup.h"
#include "sample.h"

static int64_t width_of(ch_shape s)
{
    int64_t n = 1;

    for (int i = 1; i < s.rank; i++)
        n *= s.dim[i];
    return n;
}

/* ---- the rules, element by element ---- */

static const double numbers[CH_HYPERS] = {
    [CH_HYPER_APPLY] = 1,       [CH_HYPER_SCALE] = 0.75,     [CH_HYPER_CLIP] = 0.5,
    [CH_HYPER_RATE] = 0.125,    [CH_HYPER_DECAY] = 0.01,     [CH_HYPER_BETA1] = 0.9,
    [CH_HYPER_REST1] = 0.1,     [CH_HYPER_BETA2] = 0.99,     [CH_HYPER_REST2] = 0.01,
    [CH_HYPER_EPSILON] = 1e-3,  [CH_HYPER_MOMENTUM] = 0.8,   [CH_HYPER_POWER] = -0.5,
    [CH_HYPER_L1] = 0.05,       [CH_HYPER_L2] = 0.02,        [CH_HYPER_SHRINK] = 0.03,
    [CH_HYPER_CORRECTION1] = 3, [CH_HYPER_CORRECTION2] = 30,
};

static const double *h = numbers;

static double cut(double g)
{
    return fmin(fmax(g * h[CH_HYPER_SCALE], -h[CH_HYPER_CLIP]), h[CH_HYPER_CLIP]);
}

static double moment(double old, double new, int rest)
{
    return old * (1 - h[rest]) + new *h[rest];
}

/* Updates an element: its variable, its gradient, its slots. */
static void step_of(ch_rule_kind rule, double *w, double g, double *a, double *b, double *c)
{
    double rate = h[CH_HYPER_RATE], eps = h[CH_HYPER_EPSILON], mu = h[CH_HYPER_MOMENTUM];
    double x = cut(g), before;

    if (rule != CH_RULE_LAMB)
        *w *= 1 - h[CH_HYPER_DECAY];
    switch (rule) {
    case CH_RULE_SGD:
        *w -= rate * x;
        break;
    case CH_RULE_MOMENTUM:
        *a = mu * *a - rate * x;
        *w += *a;
        break;
    case CH_RULE_NESTEROV:
        *a = mu * *a - rate * x;
        *w += mu * *a - rate * x;
        break;
    case CH_RULE_ADAGRAD:
        *a += x * x;
        *w -= rate * x / sqrt(*a + eps);
        break;
    case CH_RULE_RMSPROP:
        *a = moment(*a, x * x, CH_HYPER_REST2);
        *w -= rate * x / sqrt(*a + eps);
        break;
    case CH_RULE_RMSPROP_MOMENTUM:
        *a = moment(*a, x * x, CH_HYPER_REST2);
        *b = mu * *b + rate * x / sqrt(*a + eps);
        *w -= *b;
        break;
    case CH_RULE_RMSPROP_CENTERED:
        *a = moment(*a, x * x, CH_HYPER_REST2);
        *b = moment(*b, x, CH_HYPER_REST2);
        *w -= rate * x / sqrt(*a - *b * *b + eps);
        break;
    case CH_RULE_RMSPROP_CENTERED_MOMENTUM:
        *a = moment(*a, x * x, CH_HYPER_REST2);
        *b = moment(*b, x, CH_HYPER_REST2);
        *c = mu * *c + rate * x / sqrt(*a - *b * *b + eps);
        *w -= *c;
        break;
    case CH_RULE_ADAM:
        *a = moment(*a, x, CH_HYPER_REST1);
        *b = moment(*b, x * x, CH_HYPER_REST2);
        *w -= rate * *a / (sqrt(*b) + eps);
        break;
    case CH_RULE_AMSGRAD:
        *a = moment(*a, x, CH_HYPER_REST1);
        *b = moment(*b, x * x, CH_HYPER_REST2);
        *c = fmax(*c, *b);
        *w -= rate * *a / (sqrt(*c) + eps);
        break;
    case CH_RULE_ADAMAX:
        *a = moment(*a, x, CH_HYPER_REST1);
        *b = fmax(h[CH_HYPER_BETA2] * *b, fabs(x));
        *w -= rate * *a / (*b + eps);
        break;
    case CH_RULE_FTRL:
        before = *a;
        *a += x * x;
        *b += x + 2 * h[CH_HYPER_SHRINK] * *w -
              (pow(*a, -h[CH_HYPER_POWER]) - pow(before, -h[CH_HYPER_POWER])) / rate * *w;
        x = fmin(fmax(*b, -h[CH_HYPER_L1]), h[CH_HYPER_L1]);
        *w = (x - *b) / (pow(*a, -h[CH_HYPER_POWER]) / rate + 2 * h[CH_HYPER_L2]);
        break;
    default:
        t_expect(false, "rule %d has no reference", (int)rule);
    }
}

/* Updates n elements at offset `at` of all arrays. */
static void steps_of(ch_rule_kind rule, int64_t n, const double *g, t_array *out, int64_t at)
{
    for (int64_t i = 0; i < n; i++)
        step_of(rule, &out[0].v[at + i], g[i], &out[1].v[at + i], &out[2].v[at + i],
                &out[3].v[at + i]);
}

static void row_of(int64_t width, const double *g, double *w, double *a)
{
    double sum = 0;

    for (int64_t i = 0; i < width; i++)
        sum += cut(g[i]) * cut(g[i]);
    *a += sum / (double)width;
    for (int64_t i = 0; i < width; i++)
        w[i] = (1 - h[CH_HYPER_DECAY]) * w[i] -
               h[CH_HYPER_RATE] * cut(g[i]) / sqrt(*a + h[CH_HYPER_EPSILON]);
}

static void lamb_of(int64_t n, const double *g, t_array *out)
{
    double *w = out[0].v, *m = out[1].v, *v = out[2].v, weight = 0, length = 0;

    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < n; i++) {
            double u;

            m[i] = pass == 0 ? moment(m[i], cut(g[i]), CH_HYPER_REST1) : m[i];
            v[i] = pass == 0 ? moment(v[i], cut(g[i]) * cut(g[i]), CH_HYPER_REST2) : v[i];
            u = h[CH_HYPER_CORRECTION1] * m[i] /
                    (sqrt(h[CH_HYPER_CORRECTION2] * v[i]) + h[CH_HYPER_EPSILON]) +
                h[CH_HYPER_DECAY] * w[i];
            if (pass == 1)
                w[i] -= h[CH_HYPER_RATE] * sqrt(weight) / sqrt(length) * u;
            weight += pass == 0 ? w[i] * w[i] : 0;
            length += pass == 0 ? u * u : 0;
        }
}

static bool is_centered(ch_rule_kind rule)
{
    return rule == CH_RULE_RMSPROP_CENTERED || rule == CH_RULE_RMSPROP_CENTERED_MOMENTUM;
}

/* Copies all four arrays, so that rules without slots need no special case. */
static void begin(ch_rule_kind rule, const t_array *var, const t_array *slot, t_array *out)
{
    int n = ch__rule(rule)->n_slots;

    for (int k = 0; k < 4; k++) {
        const t_array *from = k == 0 ? var : &slot[k - 1];

        t_out(&out[k], k <= n ? from->shape : var->shape);
        if (k <= n)
            memcpy(out[k].v, from->v, (size_t)ch_shape_count(from->shape) * sizeof(double));
    }
}

static void applied(ch_rule_kind rule, const t_array *in, t_array *out)
{
    t_array full[4];
    int64_t n = ch_shape_count(in[0].shape), width = width_of(in[0].shape);

    begin(rule, &in[0], &in[2], full);
    for (int64_t i = 0; i < n && is_centered(rule); i++)
        full[2].v[i] *= 0.2;
    if (rule == CH_RULE_LAMB)
        lamb_of(n, in[1].v, full);
    else if (rule == CH_RULE_ADAGRAD_ROWS)
        for (int64_t i = 0; i < n; i += width)
            row_of(width, in[1].v + i, full[0].v + i, full[1].v + i / width);
    else
        steps_of(rule, n, in[1].v, full, 0);
    memcpy(out, full, (size_t)(1 + ch__rule(rule)->n_slots) * sizeof(*out));
}

/* in: var, ids, rows, slots. Ids below `skip` denote no row; id denotes row id - skip
 * otherwise. */
static void applied_rows(ch_rule_kind rule, const t_array *in, t_array *out, int64_t skip)
{
    t_array full[4], sum, seen;
    int64_t n_ids = in[1].shape.dim[0], width = width_of(in[0].shape);
    int64_t n_rows = in[0].shape.dim[0];

    begin(rule, &in[0], &in[3], full);
    t_out(&sum, in[0].shape);
    t_out(&seen, ch_shape_of(n_rows));
    for (int64_t i = 0; i < n_ids; i++) {
        int64_t id = (int64_t)in[1].v[i] - skip;

        for (int64_t k = 0; k < width && id >= 0 && id < n_rows; k++)
            sum.v[id * width + k] += in[2].v[i * width + k];
        if (id >= 0 && id < n_rows)
            seen.v[id] = 1;
    }
    for (int64_t id = 0; id < n_rows; id++)
        if (seen.v[id] != 0 && rule == CH_RULE_ADAGRAD_ROWS)
            row_of(width, sum.v + id * width, full[0].v + id * width, full[1].v + id);
        else if (seen.v[id] != 0)
            steps_of(rule, width, sum.v + id * width, full, id * width);
    memcpy(out, full, (size_t)(1 + ch__rule(rule)->n_slots) * sizeof(*out));
}

/* ---- recording ---- */

static ch_node *vector(ch_step *s, ch_dtype dtype, const double *v, int n)
{
    ch_node *x[CH_HYPERS];

    for (int i = 0; i < n; i++)
        x[i] = ch_fill(s, dtype, ch_shape_scalar(), v[i]);
    return ch_stack(n, x, 0);
}

static ch_node *hyper(ch_step *s, const ch_node *like)
{
    return vector(s, ch_node_dtype(like), numbers, CH_HYPERS);
}

static void apply(ch_rule_kind rule, ch_step *s, ch_node *const *in, ch_node **out)
{
    for (int k = 0; k < ch__rule(rule)->n_slots; k++)
        out[1 + k] = in[2 + k];
    if (is_centered(rule)) /* a mean whose square is less than the mean of squares */
        out[2] = ch_mul(out[2], ch_number(s, 0.2));
    out[0] = ch__apply(rule, in[0], in[1], NULL, hyper(s, in[0]), out + 1);
}

static void apply_rows(ch_rule_kind rule, ch_step *s, ch_node *const *in, ch_node **out)
{
    for (int k = 0; k < ch__rule(rule)->n_slots; k++)
        out[1 + k] = in[3 + k];
    out[0] = ch__apply_rows(rule, in[0], in[1], in[2], hyper(s, in[0]), out + 1);
}

#define DENSE_RULES(X)                                                                         \
    X(SGD)                                                                                     \
    X(MOMENTUM)                                                                                \
    X(NESTEROV)                                                                                \
    X(ADAGRAD)                                                                                 \
    X(ADAGRAD_ROWS)                                                                            \
    X(RMSPROP)                                                                                 \
    X(RMSPROP_MOMENTUM)                                                                        \
    X(RMSPROP_CENTERED)                                                                        \
    X(RMSPROP_CENTERED_MOMENTUM)                                                               \
    X(ADAM)                                                                                    \
    X(AMSGRAD)                                                                                 \
    X(ADAMAX)                                                                                  \
    X(FTRL)                                                                                    \
    X(LAMB)
#define SPARSE_RULES(X)                                                                        \
    X(SGD) X(MOMENTUM) X(NESTEROV) X(ADAGRAD) X(ADAGRAD_ROWS) X(ADAM) X(AMSGRAD) X(FTRL)

#define DENSE_FUNCTIONS(RULE)                                                                  \
    static void apply_##RULE(ch_step *s, ch_node *const *in, ch_node **out)                    \
    {                                                                                          \
        apply(CH_RULE_##RULE, s, in, out);                                                     \
    }                                                                                          \
    static void is_##RULE(const t_array *in, t_array *out)                                     \
    {                                                                                          \
        applied(CH_RULE_##RULE, in, out);                                                      \
    }
DENSE_RULES(DENSE_FUNCTIONS)

#define SPARSE_FUNCTIONS(RULE)                                                                 \
    static void rows_##RULE(ch_step *s, ch_node *const *in, ch_node **out)                     \
    {                                                                                          \
        apply_rows(CH_RULE_##RULE, s, in, out);                                                \
    }                                                                                          \
    static void are_##RULE(const t_array *in, t_array *out)                                    \
    {                                                                                          \
        applied_rows(CH_RULE_##RULE, in, out, 0);                                              \
    }
SPARSE_RULES(SPARSE_FUNCTIONS)

/* Passes the norms of these elements as an argument. The result must be the same. */
static void apply_normed(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *norms = ch__apply_norms(CH_RULE_LAMB, in[0], in[1], hyper(s, in[0]), in + 2);

    out[1] = in[2];
    out[2] = in[3];
    out[0] = ch__apply(CH_RULE_LAMB, in[0], in[1], norms, hyper(s, in[0]), out + 1);
}

static void norms(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_cast(ch__apply_norms(CH_RULE_LAMB, in[0], in[1], hyper(s, in[0]), in + 2),
                     ch_node_dtype(in[0]));
}

static void are_norms(const t_array *in, t_array *out)
{
    t_array after[3];

    applied(CH_RULE_LAMB, in, after);
    t_out(out, ch_shape_of(2));
    for (int64_t i = 0; i < ch_shape_count(in[0].shape); i++) {
        double m = after[1].v[i] * numbers[CH_HYPER_CORRECTION1];
        double v = after[2].v[i] * numbers[CH_HYPER_CORRECTION2];
        double step =
            m / (sqrt(v) + numbers[CH_HYPER_EPSILON]) + numbers[CH_HYPER_DECAY] * in[0].v[i];

        out->v[0] += in[0].v[i] * in[0].v[i];
        out->v[1] += step * step;
    }
}

static void marks(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_cast(ch__marked_ids(ch_greater(in[0], ch_number(s, 0))), CH_F32);
}

static void are_marks(const t_array *in, t_array *out)
{
    t_out(out, in[0].shape);
    for (int64_t i = 0; i < ch_shape_count(in[0].shape); i++)
        out->v[i] = in[0].v[i] > 0 ? (double)i : -1;
}

/* If the hyperparameter APPLY is 0, nothing changes. */
static void apply_none(ch_step *s, ch_node *const *in, ch_node **out)
{
    double off[CH_HYPERS];

    memcpy(off, numbers, sizeof(off));
    off[CH_HYPER_APPLY] = 0;
    out[1] = in[2];
    out[2] = in[3];
    out[0] = ch__apply(CH_RULE_LAMB, in[0], in[1], NULL,
                       vector(s, ch_node_dtype(in[0]), off, CH_HYPERS), out + 1);
}

static void are_as_before(const t_array *in, t_array *out)
{
    t_array full[4];

    begin(CH_RULE_LAMB, &in[0], &in[2], full);
    memcpy(out, full, 3 * sizeof(*out));
}

/* Ids in [0, 9), minus 2: negative ids and ids behind the last row denote no row. */
static void rows_missing(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *ids = ch_sub(in[1], ch_number(s, 2));

    out[1] = in[3];
    out[0] = ch__apply_rows(CH_RULE_ADAGRAD, in[0], ids, in[2], hyper(s, in[0]), out + 1);
}

static void are_missing(const t_array *in, t_array *out)
{
    applied_rows(CH_RULE_ADAGRAD, in, out, 2);
}

/* Looks up the row of each id among few rows. -1 and 4 denote no row. */
static void rows_looked_up(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *which = ch_sub(ch_mod(in[1], ch_number(s, 6)), ch_number(s, 1));

    out[1] = in[3];
    out[0] = ch__apply_rows(CH_RULE_MOMENTUM, in[0], in[1], ch__gather_or_zero(in[2], which),
                            hyper(s, in[0]), out + 1);
}

static void are_looked_up(const t_array *in, t_array *out)
{
    static double row[4096];
    t_array       full[4] = {in[0], in[1], {.shape = in[2].shape, .v = row}, in[3]};
    int64_t       n = in[1].shape.dim[0], width = in[2].shape.dim[1];

    full[2].shape.dim[0] = n;
    for (int64_t i = 0; i < n; i++) {
        int64_t which = (int64_t)in[1].v[i] % 6 - 1;

        for (int64_t k = 0; k < width; k++)
            row[i * width + k] = which >= 0 && which < 4 ? in[2].v[which * width + k] : 0;
    }
    applied_rows(CH_RULE_MOMENTUM, full, out, 0);
}

/* ---- hyperparameters ---- */

static ch_node *scalar(ch_step *s, ch_dtype dtype, double x)
{
    return ch_fill(s, dtype, ch_shape_scalar(), x);
}

/* Computes them from two floats: the rate and the loss scale. */
static void hyper_of(ch_rule_kind rule, ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_rule_numbers set = {.beta1 = 0.9,
                           .beta2 = 0.999,
                           .epsilon = 1e-7,
                           .momentum = 0.5,
                           .power = -0.5,
                           .l1 = 0.25,
                           .l2 = 0.125,
                           .shrink = 0.75,
                           .beta = 2,
                           .decay = 0.5,
                           .clip_norm = 3,
                           .scale = 2};
    ch_rule_inputs  each = {.iterations = scalar(s, CH_I64, 4),
                            .rate = ch_cast(ch_sum_all(in[0]), CH_F64),
                            .apply = ch_greater(ch_sum_all(in[0]), ch_number(s, 0)),
                            .divisor = ch_cast(ch_sum_all(in[1]), CH_F32),
                            .squares = scalar(s, CH_F64, 49),
                            .squares_of_global = scalar(s, CH_F64, 0)};

    out[0] = ch__hyper(rule, ch_node_dtype(in[0]), &set, &each);
}

static void numbers_of(ch_rule_kind rule, const t_array *in, t_array *out)
{
    double rate = 0, divisor = 0, scale, *v;
    double right1 = 1 - pow(0.9, 5), right2 = 1 - pow(0.999, 5);

    for (int64_t i = 0; i < ch_shape_count(in[0].shape); i++) {
        rate += in[0].v[i];
        divisor += in[1].v[i];
    }
    divisor = (double)(float)divisor;
    scale = 7 * 2 / divisor > 3 ? 3.0 / 7 : 2 / divisor;
    t_out(out, ch_shape_of(CH_HYPERS));
    v = out->v;
    v[CH_HYPER_APPLY] = rate > 0;
    v[CH_HYPER_SCALE] = scale;
    v[CH_HYPER_CLIP] = INFINITY;
    v[CH_HYPER_RATE] = rule == CH_RULE_ADAM     ? rate * sqrt(right2) / right1
                       : rule == CH_RULE_ADAMAX ? rate / right1
                                                : rate;
    v[CH_HYPER_DECAY] = rule == CH_RULE_LAMB ? 0.5 : 0.5 * rate;
    v[CH_HYPER_BETA1] = 0.9;
    v[CH_HYPER_REST1] = 0.1;
    v[CH_HYPER_BETA2] = 0.999;
    v[CH_HYPER_REST2] = 0.001;
    v[CH_HYPER_EPSILON] = 1e-7;
    v[CH_HYPER_MOMENTUM] = 0.5;
    v[CH_HYPER_POWER] = -0.5;
    v[CH_HYPER_L1] = 0.25;
    v[CH_HYPER_L2] = 0.125 + 1 / rate;
    v[CH_HYPER_SHRINK] = 0.75;
    v[CH_HYPER_CORRECTION1] = 1 / right1;
    v[CH_HYPER_CORRECTION2] = 1 / right2;
}

#define HYPER_FUNCTIONS(RULE)                                                                  \
    static void hyper_##RULE(ch_step *s, ch_node *const *in, ch_node **out)                    \
    {                                                                                          \
        hyper_of(CH_RULE_##RULE, s, in, out);                                                  \
    }                                                                                          \
    static void numbers_##RULE(const t_array *in, t_array *out)                                \
    {                                                                                          \
        numbers_of(CH_RULE_##RULE, in, out);                                                   \
    }
HYPER_FUNCTIONS(SGD)
HYPER_FUNCTIONS(ADAM)
HYPER_FUNCTIONS(ADAMAX)
HYPER_FUNCTIONS(LAMB)

/* ---- conditions on all elements ---- */

static void whether_finite(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *odd = ch_div(in[1], ch_sub(in[0], in[0]));

    out[0] = ch__are_finite(s, 2, in);
    out[1] = ch__are_finite(s, 3, (ch_node *[]){in[0], in[1], odd});
    out[2] = ch__are_finite(s, 0, NULL);
}

static void are_finite(const t_array *in, t_array *out)
{
    for (int i = 0; i < 3; i++) {
        t_out(&out[i], ch_shape_scalar());
        out[i].v[0] = i != 1 || ch_shape_count(in[1].shape) == 0;
    }
}

static void squares(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_cast(ch__sum_squares(s, 2, in), ch_node_dtype(in[0]));
    out[1] = ch_cast(ch__sum_squares(s, 0, NULL), ch_node_dtype(in[0]));
}

static void are_squares(const t_array *in, t_array *out)
{
    t_out(&out[0], ch_shape_scalar());
    t_out(&out[1], ch_shape_scalar());
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < ch_shape_count(in[k].shape); i++)
            out[0].v[0] += in[k].v[i] * in[k].v[i];
}

/* ---- merge_rows, clear_if ---- */

/* Ids in [0, 9), for 7 existing rows. */
static void merge(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    ch__merge_rows(in[0], in[1], ch__dim(7), &out[0], &out[1]);
}

static void merge_many(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    ch__merge_rows(in[0], in[1], ch__dim(1000), &out[0], &out[1]);
}

static void merged(const t_array *in, t_array *out, int64_t n_rows)
{
    int64_t n = in[0].shape.dim[0], width = width_of(in[1].shape);

    t_out(&out[0], in[0].shape);
    t_out(&out[1], in[1].shape);
    for (int64_t i = 0; i < n; i++) {
        int64_t first = 0;

        out[0].v[i] = -1;
        while (in[0].v[first] != in[0].v[i])
            first++;
        if (in[0].v[i] >= (double)n_rows)
            continue;
        out[0].v[first] = in[0].v[i];
        for (int64_t k = 0; k < width; k++)
            out[1].v[first * width + k] += in[1].v[i * width + k];
    }
}

static void is_merged(const t_array *in, t_array *out)
{
    merged(in, out, 7);
}

static void is_merged_1000(const t_array *in, t_array *out)
{
    merged(in, out, 1000);
}

/* Ids in [0, 9), minus 2: negative ids and ids from 5 on denote no row. */
static void round_to(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *x = ch_mul(in[2], ch_number(s, 0.5));

    out[0] = ch__round_rows(in[0], ch_sub(in[1], ch_number(s, 2)), ch_cast(x, CH_F32));
}

static void is_rounded(const t_array *in, t_array *out)
{
    int64_t width = width_of(in[0].shape);

    t_out(out, in[0].shape);
    memcpy(out->v, in[0].v, (size_t)ch_shape_count(in[0].shape) * sizeof(double));
    for (int64_t i = 0; i < in[1].shape.dim[0]; i++) {
        int64_t id = (int64_t)in[1].v[i] - 2;

        for (int64_t k = id * width; k < (id + 1) * width && id >= 0 && id < in[0].shape.dim[0];
             k++)
            out->v[k] = 0.5 * in[2].v[k];
    }
}

static void round_over(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch__round_over(in[0], ch_cast(in[1], CH_F32));
}

static void is_second(const t_array *in, t_array *out)
{
    t_out(out, in[1].shape);
    memcpy(out->v, in[1].v, (size_t)ch_shape_count(in[1].shape) * sizeof(double));
}

static void clear(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *zero = ch_number(s, 0), *some = ch_sum_all(ch_abs(in[0]));

    out[0] = ch__clear_if(in[0], ch_less(some, zero));
    out[1] = ch__clear_if(ch_neg(in[0]), ch_greater_equal(some, zero));
    out[2] = ch__clear_if(ch_neg(in[0]), ch_less(some, zero));
}

static void is_cleared(const t_array *in, t_array *out)
{
    for (int k = 0; k < 3; k++) {
        t_out(&out[k], in[0].shape);
        for (int64_t i = 0; i < ch_shape_count(in[0].shape) && k != 1; i++)
            out[k].v[i] = k == 0 ? in[0].v[i] : -in[0].v[i];
    }
}

/* ---- refusals ---- */

static void slots_short(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[1] = out[2] = ch_slice(in[0], 1, (int64_t[]){0}, (int64_t[]){1});
    out[0] = ch__apply(CH_RULE_ADAM, in[0], in[0], NULL, hyper(s, in[0]), out + 1);
}

static void gradient_short(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch__apply(CH_RULE_SGD, in[0], ch_sum(in[0], 1, (int[]){0}, false), NULL,
                       hyper(s, in[0]), NULL);
}

static void gradient_wide(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch__apply(CH_RULE_SGD, in[0], ch_cast(in[0], CH_F64), NULL, hyper(s, in[0]), NULL);
}

static void few_numbers(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch__apply(CH_RULE_SGD, in[0], in[0], NULL, vector(s, CH_F32, numbers, 3), NULL);
}

static void norms_of_none(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch__apply_norms(CH_RULE_ADAM, in[0], in[0], hyper(s, in[0]),
                             (ch_node *[]){in[0], in[0]});
}

static void norms_narrow(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[1] = out[2] = in[0];
    out[0] = ch__apply(CH_RULE_LAMB, in[0], in[0], vector(s, CH_F32, numbers, 2),
                       hyper(s, in[0]), out + 1);
}

static void norms_of_sgd(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch__apply(CH_RULE_SGD, in[0], in[0], vector(s, CH_F64, numbers, 2),
                       hyper(s, in[0]), NULL);
}

static void mark_numbers(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch__marked_ids(in[0]);
}

static void rule_not_sparse(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[1] = out[2] = in[0];
    out[0] = ch__apply_rows(CH_RULE_LAMB, in[0], ch_range_like(in[0], 0, CH_I64), in[0],
                            hyper(s, in[0]), out + 1);
}

static void rows_narrow(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *rows = ch_slice(in[0], 2, (int64_t[]){0, 0}, (int64_t[]){-1, 2});

    out[0] = ch__apply_rows(CH_RULE_SGD, in[0], ch_range_like(in[0], 0, CH_I64), rows,
                            hyper(s, in[0]), NULL);
}

static void clear_by_number(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch__clear_if(in[0], ch_fill(s, CH_F32, ch_shape_scalar(), 1));
}

static void round_wide(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch__round_rows(in[0], ch_range_like(in[0], 0, CH_I64), in[0]);
}

static void round_over_wide(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch__round_over(in[0], in[0]);
}

static void merge_ints(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    ch__merge_rows(ch_range_like(in[0], 0, CH_I64), ch_cast(in[0], CH_I32), ch__dim(3), &out[0],
                   &out[1]);
}

/* clang-format off */
#define SMALL {2, {5, 3}}
#define LARGE {2, {331, 301}}
/* The variable and its slots. */
enum {
    OUTS_SGD = 1, OUTS_MOMENTUM, OUTS_NESTEROV = 2, OUTS_ADAGRAD = 2, OUTS_ADAGRAD_ROWS = 2,
    OUTS_RMSPROP = 2, OUTS_RMSPROP_MOMENTUM, OUTS_RMSPROP_CENTERED = 3,
    OUTS_RMSPROP_CENTERED_MOMENTUM, OUTS_ADAM = 3, OUTS_AMSGRAD, OUTS_ADAMAX = 3, OUTS_FTRL = 3,
    OUTS_LAMB = 3
};

#define DENSE(RULE, NAME, SHAPE, ROWS, STATIC) \
    {.op = "apply", .name = #RULE NAME, .dtypes = T_WIDE, .n_in = 1 + OUTS_##RULE, \
     .in = {{.shape = SHAPE, .is_static = STATIC}, {.shape = SHAPE, .is_static = STATIC}, \
            {.shape = ROWS, .fill = T_POSITIVE, .is_static = STATIC}, \
            {.shape = SHAPE, .fill = T_POSITIVE, .is_static = STATIC}, \
            {.shape = SHAPE, .fill = T_POSITIVE, .is_static = STATIC}}, \
     .n_out = OUTS_##RULE, .record = apply_##RULE, .reference = is_##RULE, .flags = T_NO_GRAD, \
     .tolerance = 1e-4},
#define ROWS_OF(RULE, NAME, TABLE_, SLOT_, IDS, RANK, WIDTH, LIMIT) \
    {.op = "apply_rows", .name = #RULE NAME, .dtypes = T_WIDE, .n_in = 2 + OUTS_##RULE, \
     .in = {{.shape = TABLE_, .is_static = true}, \
            {.shape = {1, {IDS}}, .fill = T_IDS, .limit = LIMIT, .is_ids = true}, \
            {.shape = {RANK, {IDS, WIDTH}}}, \
            {.shape = SLOT_, .fill = T_POSITIVE, .is_static = true}, \
            {.shape = TABLE_, .fill = T_POSITIVE, .is_static = true}, \
            {.shape = TABLE_, .fill = T_POSITIVE, .is_static = true}}, \
     .n_out = OUTS_##RULE, .record = rows_##RULE, .reference = are_##RULE, .flags = T_NO_GRAD, \
     .tolerance = 1e-4},

#define DIM1(a)       {1, {a}}
#define DIM2(a, b)    {2, {a, b}}
#define DIM3(a, b, c) {3, {a, b, c}}
#define PLAIN(RULE) \
    DENSE(RULE, "", DIM2(5, 3), DIM2(5, 3), false) \
    DENSE(RULE, ", a variable", DIM2(171, 111), \
          DIM2(171, 111), true)
#define SPARSE(RULE) \
    ROWS_OF(RULE, "", DIM2(7, 3), DIM2(7, 3), 12, 2, 3, 7)

static const t_sample samples[] = {
    PLAIN(SGD) PLAIN(MOMENTUM) PLAIN(NESTEROV) PLAIN(ADAGRAD) PLAIN(RMSPROP)
    PLAIN(RMSPROP_MOMENTUM) PLAIN(RMSPROP_CENTERED) PLAIN(RMSPROP_CENTERED_MOMENTUM) PLAIN(ADAM)
    PLAIN(AMSGRAD) PLAIN(ADAMAX) PLAIN(FTRL) PLAIN(LAMB)
    DENSE(SGD, ", several tiles", DIM2(331, 301), DIM2(331, 301), true)
    DENSE(LAMB, ", several tiles", DIM2(231, 301), DIM2(231, 301), true)
    DENSE(ADAGRAD_ROWS, "", DIM2(5, 3), DIM1(5), false)
    DENSE(ADAGRAD_ROWS, ", several tiles", DIM2(331, 301), DIM1(331), true)
    DENSE(ADAGRAD_ROWS, ", wide rows", DIM3(3, 3, 1001), DIM1(3), true)
    DENSE(ADAGRAD_ROWS, ", rows of nothing", DIM2(5, 0), DIM1(5), true)
    DENSE(ADAM, ", of nothing", DIM2(0, 3), DIM2(0, 3), true)
    DENSE(SGD, ", a scalar", {0}, {0}, true)
#define NORMED(OP, NAME, SHAPE, OUTS, RECORD, REFERENCE) \
    {.op = OP, .name = NAME, .dtypes = T_WIDE, .n_in = 4, \
     .in = {{.shape = SHAPE, .is_static = true}, {.shape = SHAPE, .is_static = true}, \
            {.shape = SHAPE, .fill = T_POSITIVE, .is_static = true}, \
            {.shape = SHAPE, .fill = T_POSITIVE, .is_static = true}}, \
     .n_out = OUTS, .record = RECORD, .reference = REFERENCE, .flags = T_NO_GRAD, \
     .tolerance = 1e-4},
    NORMED("apply", "norms that are given", DIM2(171, 111), 3, apply_normed, is_LAMB)
    NORMED("apply_norms", "of a few", DIM2(5, 3), 1, norms, are_norms)
    NORMED("apply_norms", "several tiles", DIM2(231, 301), 1, norms, are_norms)
    NORMED("apply_norms", "of nothing", DIM2(0, 3), 1, norms, are_norms)
    {.op = "marked_ids", .name = "several tiles", .dtypes = 1u << CH_F32, .n_in = 1,
     .in = {{.shape = DIM1(70001), .is_static = true}}, .n_out = 1, .record = marks,
     .reference = are_marks, .flags = T_NO_GRAD},
    {.op = "apply", .name = "not applied", .dtypes = T_WIDE, .n_in = 4,
     .in = {{.shape = SMALL}, {.shape = SMALL}, {.shape = SMALL}, {.shape = SMALL}},
     .n_out = 3, .record = apply_none, .reference = are_as_before, .flags = T_NO_GRAD},

    SPARSE(SGD) SPARSE(MOMENTUM) SPARSE(NESTEROV) SPARSE(ADAGRAD) SPARSE(ADAM) SPARSE(AMSGRAD)
    SPARSE(FTRL)
    ROWS_OF(ADAGRAD_ROWS, "", DIM2(7, 3), DIM1(7), 12, 2, 3, 7)
    ROWS_OF(ADAGRAD_ROWS, ", several tiles", DIM2(900, 9), DIM1(900), 20001, 2,
            9, 900)
    ROWS_OF(ADAGRAD_ROWS, ", wide rows", DIM2(7, 1501), DIM1(7), 10, 2, 1501, 7)
    ROWS_OF(SGD, ", wide rows", DIM2(7, 1501), DIM2(7, 1501), 10, 2, 1501,
            7)
    ROWS_OF(SGD, ", several tiles", DIM2(900, 9), DIM2(900, 9), 20001, 2,
            9, 900)
    ROWS_OF(ADAM, ", several tiles", DIM2(900, 16), DIM2(900, 16), 12001,
            2, 16, 900)
    ROWS_OF(ADAM, ", a vector", DIM1(7), DIM1(7), 12, 1, 0, 7)
    {.op = "apply_rows", .name = "ids that stand for no row", .dtypes = T_WIDE, .n_in = 4,
     .in = {{.shape = {2, {5, 3}}, .is_static = true},
            {.shape = {1, {20}}, .fill = T_IDS, .limit = 9, .is_ids = true},
            {.shape = {2, {20, 3}}}, {.shape = {2, {5, 3}}, .fill = T_POSITIVE, .is_static = true}},
     .n_out = 2, .record = rows_missing, .reference = are_missing, .flags = T_NO_GRAD,
     .tolerance = 1e-4},

    {.op = "apply_rows", .name = "rows that are looked up", .dtypes = T_WIDE, .n_in = 4,
     .in = {{.shape = {2, {9, 70}}, .is_static = true},
            {.shape = {1, {20}}, .fill = T_IDS, .limit = 9, .is_ids = true},
            {.shape = {2, {4, 70}}},
            {.shape = {2, {9, 70}}, .fill = T_POSITIVE, .is_static = true}},
     .n_out = 2, .record = rows_looked_up, .reference = are_looked_up, .flags = T_NO_GRAD,
     .tolerance = 1e-4},

#define NUMBERS(RULE) \
    {.op = "hyper", .name = #RULE, .dtypes = T_WIDE, .n_in = 2, \
     .in = {{.shape = {1, {3}}, .fill = T_POSITIVE, .is_static = true}, \
            {.shape = {1, {3}}, .fill = T_POSITIVE, .is_static = true}}, \
     .record = hyper_##RULE, .reference = numbers_##RULE, .flags = T_NO_GRAD},
    NUMBERS(SGD) NUMBERS(ADAM) NUMBERS(ADAMAX) NUMBERS(LAMB)

    {.op = "all_finite", .name = "of a few", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = SMALL}, {.shape = SMALL}}, .n_out = 3, .record = whether_finite,
     .reference = are_finite, .flags = T_NO_GRAD},
    {.op = "all_finite", .name = "several tiles", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = LARGE}, {.shape = LARGE}}, .n_out = 3, .record = whether_finite,
     .reference = are_finite, .flags = T_NO_GRAD},
    {.op = "sum_squares", .name = "of a few", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = SMALL}, {.shape = {1, {4}}}}, .n_out = 2, .record = squares,
     .reference = are_squares},
    {.op = "sum_squares", .name = "several tiles", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = LARGE}, {.shape = {1, {40}}}}, .n_out = 2, .record = squares,
     .reference = are_squares, .flags = T_NO_GRAD},

    {.op = "merge_rows", .name = "with some out of range", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {1, {15}}, .fill = T_IDS, .limit = 9, .is_ids = true},
            {.shape = {2, {15, 3}}}},
     .n_out = 2, .record = merge, .reference = is_merged, .flags = T_NO_GRAD},
    {.op = "merge_rows", .name = "several tiles", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {1, {9001}}, .fill = T_IDS, .limit = 800, .is_ids = true},
            {.shape = {2, {9001, 30}}}},
     .n_out = 2, .record = merge_many, .reference = is_merged_1000, .flags = T_NO_GRAD,
     .tolerance = 1e-4},
    {.op = "merge_rows", .name = "wide rows", .dtypes = T_WIDE, .n_in = 2,
     .in = {{.shape = {1, {15}}, .fill = T_IDS, .limit = 9, .is_ids = true},
            {.shape = {2, {15, 1201}}}},
     .n_out = 2, .record = merge, .reference = is_merged, .flags = T_NO_GRAD},

    {.op = "round_rows", .name = "with some out of range", .dtypes = 1 << CH_BF16 | 1 << CH_F16,
     .n_in = 3,
     .in = {{.shape = {2, {5, 3}}, .is_static = true},
            {.shape = {1, {9}}, .fill = T_IDS, .limit = 9, .is_ids = true},
            {.shape = {2, {5, 3}}, .is_static = true}},
     .record = round_to, .reference = is_rounded, .flags = T_NO_GRAD},
    {.op = "round_rows", .name = "several tiles", .dtypes = 1 << CH_BF16 | 1 << CH_F16,
     .n_in = 3,
     .in = {{.shape = {2, {800, 30}}, .is_static = true},
            {.shape = {1, {9001}}, .fill = T_IDS, .limit = 900, .is_ids = true},
            {.shape = {2, {800, 30}}, .is_static = true}},
     .record = round_to, .reference = is_rounded, .flags = T_NO_GRAD},

    {.op = "round_over", .name = "of a matrix", .dtypes = 1 << CH_BF16 | 1 << CH_F16, .n_in = 2,
     .in = {{.shape = SMALL}, {.shape = SMALL}}, .record = round_over, .reference = is_second,
     .flags = T_NO_GRAD},
    {.op = "round_over", .name = "several tiles", .dtypes = 1 << CH_BF16 | 1 << CH_F16, .n_in = 2,
     .in = {{.shape = LARGE, .is_static = true}, {.shape = LARGE, .is_static = true}},
     .record = round_over, .reference = is_second, .flags = T_NO_GRAD},

    {.op = "clear_if", .name = "of a matrix", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = SMALL}}, .n_out = 3, .record = clear, .reference = is_cleared,
     .flags = T_NO_GRAD},
    {.op = "clear_if", .name = "several tiles", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = LARGE}}, .n_out = 3, .record = clear, .reference = is_cleared,
     .flags = T_NO_GRAD},
    {0},
};

#define BAD(op_, name_, record_, ...) \
    {.op = op_, .name = name_, .n_in = 1, .in = {{.shape = {2, {3, 4}}, .is_static = true}}, \
     .dtype = CH_F32, .record = record_, .code = CH_INVALID_ARGUMENT, .words = {__VA_ARGS__}}

static const t_refusal refusals[] = {
    BAD("apply", "slots of another size", slots_short, "slot m"),
    BAD("apply", "norms in f32", norms_narrow, "2 norms in f64"),
    BAD("apply", "norms of a rule without", norms_of_sgd, "rule sgd has no norms"),
    BAD("apply_norms", "a rule without norms", norms_of_none, "\"adam\" has no norms"),
    BAD("marked_ids", "no bools", mark_numbers, "a vector of bool"),
    BAD("apply", "a gradient of another size", gradient_short, "the shape of the variable"),
    BAD("apply", "a gradient of another dtype", gradient_wide, "input 1 is f64, want f32"),
    BAD("apply", "too few numbers", few_numbers, "a vector of 17 hyperparameters"),
    BAD("apply_rows", "a rule that is not sparse", rule_not_sparse, "rule lamb"),
    BAD("apply_rows", "rows of another width", rows_narrow, "sizes 4 and 2 in axis 1"),
    BAD("round_over", "of f32", round_over_wide, "f32, want bf16 or f16"),
    BAD("round_rows", "of f32", round_wide, "f32, want bf16 or f16"),
    BAD("clear_if", "by a number", clear_by_number, "must be a bool scalar"),
    BAD("merge_rows", "of integers", merge_ints, "rows are i32"),
    {0},
};
/* clang-format on */

const t_family t_apply = {"apply", samples, refusals};
