/* test/ops/samples_reduce.c -- samples of reductions, and of ops that order elements along an
 * axis.
 *
 * The reference of all reductions adds each element to its output, in order. Other samples
 * cover sorts, cumulative sums, and the ops from which gradients are built.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sample.h"

/* ---- reference of all reductions: each element in order, to its output ---- */

typedef enum fold { SUM, MEAN, PROD, MAX, MIN, LOGSUMEXP, ANY, ALL } fold;

static const double first_of[] = {[MAX] = -INFINITY, [MIN] = INFINITY, [PROD] = 1, [ALL] = 1};

static double step_of(fold kind, double a, double x)
{
    switch (kind) {
    case PROD:
        return a * x;
    case MAX:
        return isnan(x) || x > a ? x : a;
    case MIN:
        return isnan(x) || x < a ? x : a;
    case LOGSUMEXP:
        return a + exp(x);
    case ANY:
        return a != 0 || x != 0;
    case ALL:
        return a != 0 && x != 0;
    default:
        return a + x;
    }
}

static bool is_in(int k, int rank, int n, const int *axis)
{
    for (int i = 0; i < n; i++)
        if (k == axis[i] || k - rank == axis[i])
            return true;
    return false;
}

/* Returns the output element to which element `i` of the input belongs. */
static int64_t target(const ch_shape *s, int64_t i, int n, const int *axis)
{
    int64_t at = 0, stride = 1;

    for (int k = s->rank - 1; k >= 0; k--) {
        if (!is_in(k, s->rank, n, axis)) {
            at += i % s->dim[k] * stride;
            stride *= s->dim[k];
        }
        i /= s->dim[k];
    }
    return at;
}

static void want_fold(fold kind, const t_array *x, int n, const int *axis, bool keep,
                      t_array *out)
{
    ch_shape shape = {0};
    int64_t  count = ch_shape_count(x->shape), folded = 1;

    for (int k = 0; k < x->shape.rank; k++) {
        bool gone = is_in(k, x->shape.rank, n, axis);

        folded *= gone ? x->shape.dim[k] : 1;
        if (!gone || keep)
            shape.dim[shape.rank++] = gone ? 1 : x->shape.dim[k];
    }
    t_out(out, shape);
    for (int64_t i = 0; i < ch_shape_count(shape); i++)
        out->v[i] = first_of[kind];
    for (int64_t i = 0; i < count; i++) {
        double *at = &out->v[target(&x->shape, i, n, axis)];

        *at = step_of(kind, *at, x->v[i]);
    }
    for (int64_t i = 0; i < ch_shape_count(shape); i++)
        out->v[i] = kind == MEAN        ? out->v[i] / (double)folded
                    : kind == LOGSUMEXP ? log(out->v[i])
                                        : out->v[i];
}

/* Defines a call of a reduction and its reference. */
#define FOLD(id, op, kind, keep, ...)                                                          \
    static void id(ch_step *s, ch_node *const *in, ch_node **out)                              \
    {                                                                                          \
        static const int axis[] = {__VA_ARGS__};                                               \
        (void)s;                                                                               \
        out[0] = ch_##op(in[0], (int)(sizeof(axis) / sizeof(axis[0])), axis, keep);            \
    }                                                                                          \
    static void id##_want(const t_array *in, t_array *out)                                     \
    {                                                                                          \
        static const int axis[] = {__VA_ARGS__};                                               \
        want_fold(kind, &in[0], (int)(sizeof(axis) / sizeof(axis[0])), axis, keep, out);       \
    }
#define FOLD_ALL(id, op, kind)                                                                 \
    static void id(ch_step *s, ch_node *const *in, ch_node **out)                              \
    {                                                                                          \
        (void)s;                                                                               \
        out[0] = ch_##op##_all(in[0]);                                                         \
    }                                                                                          \
    static void id##_want(const t_array *in, t_array *out)                                     \
    {                                                                                          \
        want_fold(kind, &in[0], in[0].shape.rank, (const int[]){0, 1, 2, 3, 4, 5, 6, 7},       \
                  false, out);                                                                 \
    }
/* Defines every reduction for the axes that have their own loops. */
#define FOLD_WAYS(op, kind)                                                                    \
    FOLD(op##_last, op, kind, false, -1)                                                       \
    FOLD(op##_first, op, kind, false, 0)                                                       \
    FOLD(op##_middle, op, kind, true, 1)                                                       \
    FOLD(op##_outer, op, kind, false, 0, -1)                                                   \
    FOLD_ALL(op##_whole, op, kind)

FOLD_WAYS(sum, SUM)
FOLD_WAYS(mean, MEAN)
FOLD_WAYS(prod, PROD)
FOLD_WAYS(max, MAX)
FOLD_WAYS(min, MIN)
FOLD_WAYS(logsumexp, LOGSUMEXP)
FOLD_WAYS(any, ANY)
FOLD_WAYS(all, ALL)
FOLD(sum_image, sum, SUM, false, 0, 1, 2)
FOLD(sum_every_other, sum, SUM, true, 0, 2, 4)
FOLD(sum_other_every, sum, SUM, false, 1, 3)

static void sum_of_none(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_sum(in[0], 0, NULL, false);
}

static void sum_of_none_want(const t_array *in, t_array *out)
{
    t_out(out, in[0].shape);
    memcpy(out->v, in[0].v, (size_t)ch_shape_count(in[0].shape) * sizeof(double));
}

static void wrapped_want(const t_array *in, t_array *out)
{
    want_fold(SUM, &in[0], 1, (const int[]){1}, false, out);
    for (int64_t i = 0; i < ch_shape_count(out->shape); i++)
        out->v[i] = (double)(int8_t)(uint8_t)(int64_t)out->v[i];
}

/* Puts NaN and infinities into some rows only. */
static void poison(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *zero = ch_sub(in[0], in[0]), *bad = ch_div(zero, zero);

    (void)s;
    out[0] = ch_max(ch_select(ch_greater(in[0], ch_number(s, 0.8)), bad, in[0]), 1,
                    (const int[]){1}, false);
    out[1] = ch_min(ch_select(ch_greater(in[0], ch_number(s, 0.8)), bad, in[0]), 1,
                    (const int[]){0}, false);
}

static void poison_want(const t_array *in, t_array *out)
{
    t_array x;

    t_out(&x, in[0].shape);
    for (int64_t i = 0; i < ch_shape_count(x.shape); i++)
        x.v[i] = in[0].v[i] > 0.8 ? NAN : in[0].v[i];
    want_fold(MAX, &x, 1, (const int[]){1}, false, &out[0]);
    want_fold(MIN, &x, 1, (const int[]){0}, false, &out[1]);
}

/* ---- along an axis: (outer, n, inner) ---- */

typedef struct view {
    int64_t outer, n, inner;
} view;

static view along(const ch_shape *s, int axis)
{
    view v = {1, 0, 1};

    if (axis < 0)
        axis += s->rank;
    for (int k = 0; k < axis; k++)
        v.outer *= s->dim[k];
    v.n = s->dim[axis];
    for (int k = axis + 1; k < s->rank; k++)
        v.inner *= s->dim[k];
    return v;
}

static ch_shape without(ch_shape s, int axis)
{
    ch_shape r = {0};

    for (int k = 0; k < s.rank; k++)
        if (k != axis && k - s.rank != axis)
            r.dim[r.rank++] = s.dim[k];
    return r;
}

static void want_arg(const t_array *x, int axis, double sign, t_array *out)
{
    view v = along(&x->shape, axis);

    t_out(out, without(x->shape, axis));
    for (int64_t o = 0; o < v.outer; o++)
        for (int64_t j = 0; j < v.inner; j++) {
            const double *line = x->v + o * v.n * v.inner + j;
            int64_t       best = v.n > 0 ? 0 : -1;

            for (int64_t i = 1; i < v.n; i++)
                if (sign * line[i * v.inner] > sign * line[best * v.inner])
                    best = i;
            out->v[o * v.inner + j] = (double)best;
        }
}

static void want_cumsum(const t_array *x, int axis, bool exclusive, bool reverse, t_array *out)
{
    view v = along(&x->shape, axis);

    t_out(out, x->shape);
    for (int64_t k = 0; k < ch_shape_count(x->shape); k++) {
        int64_t i = k / v.inner % v.n, start = k - i * v.inner;

        for (int64_t m = 0; m < v.n; m++)
            if ((reverse ? m > i : m < i) || (m == i && !exclusive))
                out->v[k] += x->v[start + m * v.inner];
    }
}

typedef struct ranked {
    double  x;
    int64_t i;
} ranked;

static int rising(const void *a, const void *b)
{
    const ranked *x = a, *y = b;

    return x->x != y->x ? (x->x > y->x) - (x->x < y->x) : (x->i > y->i) - (x->i < y->i);
}

static void want_sort(const t_array *x, int axis, bool descending, int64_t k, t_array *values,
                      t_array *index)
{
    view     v = along(&x->shape, axis);
    ch_shape shape = x->shape;
    ranked  *line = malloc((size_t)(v.n + 1) * sizeof(*line));

    shape.dim[axis < 0 ? axis + shape.rank : axis] = k;
    t_out(values, shape);
    t_out(index, shape);
    for (int64_t o = 0; o < v.outer; o++)
        for (int64_t j = 0; j < v.inner; j++) {
            for (int64_t i = 0; i < v.n; i++) {
                double at = x->v[(o * v.n + i) * v.inner + j];

                line[i] = (ranked){descending ? -at : at, i};
            }
            qsort(line, (size_t)v.n, sizeof(*line), rising);
            for (int64_t i = 0; i < k; i++) {
                values->v[(o * k + i) * v.inner + j] = descending ? -line[i].x : line[i].x;
                index->v[(o * k + i) * v.inner + j] = (double)line[i].i;
            }
        }
    free(line);
}

#define ARG(id, op, axis, sign)                                                                \
    static void id(ch_step *s, ch_node *const *in, ch_node **out)                              \
    {                                                                                          \
        (void)s;                                                                               \
        out[0] = ch_##op(in[0], axis);                                                         \
    }                                                                                          \
    static void id##_want(const t_array *in, t_array *out)                                     \
    {                                                                                          \
        want_arg(&in[0], axis, sign, out);                                                     \
    }
ARG(argmax_last, argmax, -1, 1)
ARG(argmax_first, argmax, 0, 1)
ARG(argmax_middle, argmax, 1, 1)
ARG(argmin_last, argmin, -1, -1)
ARG(argmin_first, argmin, 0, -1)

#define CUMSUM(id, axis, exclusive, reverse)                                                   \
    static void id(ch_step *s, ch_node *const *in, ch_node **out)                              \
    {                                                                                          \
        (void)s;                                                                               \
        out[0] = ch_cumsum(in[0], axis, exclusive, reverse);                                   \
    }                                                                                          \
    static void id##_want(const t_array *in, t_array *out)                                     \
    {                                                                                          \
        want_cumsum(&in[0], axis, exclusive, reverse, out);                                    \
    }
CUMSUM(cumsum_last, -1, false, false)
CUMSUM(cumsum_first, 0, false, false)
CUMSUM(cumsum_exclusive, 1, true, false)
CUMSUM(cumsum_reverse, -1, false, true)
CUMSUM(cumsum_both, 0, true, true)

#define SORT(id, axis, descending)                                                             \
    static void id(ch_step *s, ch_node *const *in, ch_node **out)                              \
    {                                                                                          \
        (void)s;                                                                               \
        out[0] = ch_sort(in[0], axis, descending);                                             \
        out[1] = ch_argsort(in[0], axis, descending);                                          \
    }                                                                                          \
    static void id##_want(const t_array *in, t_array *out)                                     \
    {                                                                                          \
        int k = axis < 0 ? axis + in[0].shape.rank : axis;                                     \
        want_sort(&in[0], axis, descending, in[0].shape.dim[k], &out[0], &out[1]);             \
    }
SORT(sort_last, -1, false)
SORT(sort_down, -1, true)
SORT(sort_first, 0, false)
SORT(sort_middle, 1, true)

#define TOP_K(id, k)                                                                           \
    static void id(ch_step *s, ch_node *const *in, ch_node **out)                              \
    {                                                                                          \
        (void)s;                                                                               \
        ch_top_k(in[0], k, &out[0], &out[1]);                                                  \
    }                                                                                          \
    static void id##_want(const t_array *in, t_array *out)                                     \
    {                                                                                          \
        want_sort(&in[0], -1, true, k, &out[0], &out[1]);                                      \
    }
TOP_K(top_3, 3)
TOP_K(top_20, 20)
TOP_K(top_0, 0)

/* ---- ops in gradients ---- */

static void others(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_gradient(ch_prod(in[0], 1, (const int[]){1}, false), in[0]);
}

static void others_want(const t_array *in, t_array *out)
{
    view v = along(&in[0].shape, 1);

    t_out(out, in[0].shape);
    for (int64_t k = 0; k < ch_shape_count(in[0].shape); k++) {
        int64_t i = k / v.inner % v.n, start = k - i * v.inner;

        out->v[k] = 1;
        for (int64_t m = 0; m < v.n; m++)
            out->v[k] *= m == i ? 1 : in[0].v[start + m * v.inner];
    }
}

/* The same with a zero, or two zeros, in every line: relu of T_UNIT has many. */
static void others_of_zeros(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *x = ch_relu(in[0]);

    (void)s;
    out[0] = ch_gradient(ch_prod(x, 1, (const int[]){1}, false), x);
}

static void others_of_zeros_want(const t_array *in, t_array *out)
{
    t_array x;

    t_out(&x, in[0].shape);
    for (int64_t k = 0; k < ch_shape_count(x.shape); k++)
        x.v[k] = in[0].v[k] > 0 ? in[0].v[k] : 0;
    others_want(&x, out);
}

static void pairs(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *d = ch_gradient(ch_prod(in[0], 1, (const int[]){1}, false), in[0]);

    (void)s;
    ch_gradients(d, in[1], 1, &in[0], out);
}

static void pairs_want(const t_array *in, t_array *out)
{
    view v = along(&in[0].shape, 1);

    t_out(out, in[0].shape);
    for (int64_t k = 0; k < ch_shape_count(in[0].shape); k++) {
        int64_t j = k / v.inner % v.n, start = k - j * v.inner;

        for (int64_t i = 0; i < v.n; i++) {
            double p = i == j ? 0 : in[1].v[start + i * v.inner];

            for (int64_t m = 0; m < v.n; m++)
                p *= m == i || m == j ? 1 : in[0].v[start + m * v.inner];
            out->v[k] += p;
        }
    }
}

static void mean_gradient(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    ch_gradients(ch_mean(in[0], 1, (const int[]){0}, false), in[1], 1, &in[0], out);
}

static void mean_gradient_want(const t_array *in, t_array *out)
{
    int64_t columns = in[0].shape.dim[1];

    t_out(out, in[0].shape);
    for (int64_t k = 0; k < ch_shape_count(in[0].shape); k++)
        out->v[k] = in[1].v[k % columns] / (double)in[0].shape.dim[0];
}

static void put(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *top = NULL;

    (void)s;
    ch_top_k(in[0], 3, &top, NULL);
    ch_gradients(top, in[1], 1, &in[0], out);
}

static void put_want(const t_array *in, t_array *out)
{
    t_array value, index;
    int64_t n = in[0].shape.dim[1];

    want_sort(&in[0], -1, true, 3, &value, &index);
    t_out(out, in[0].shape);
    for (int64_t k = 0; k < ch_shape_count(index.shape); k++)
        out->v[k / 3 * n + (int64_t)index.v[k]] = in[1].v[k];
}

/* The derivative of `put` with respect to the elements that it writes. */
static void take(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_node *d = NULL;

    put(s, in, &d);
    ch_gradients(d, in[2], 1, &in[1], out);
}

static void take_want(const t_array *in, t_array *out)
{
    t_array value, index;
    int64_t n = in[0].shape.dim[1];

    want_sort(&in[0], -1, true, 3, &value, &index);
    t_out(out, index.shape);
    for (int64_t k = 0; k < ch_shape_count(index.shape); k++)
        out->v[k] = in[2].v[k / 3 * n + (int64_t)index.v[k]];
}

enum { F32 = 1 << CH_F32, INTS = T_FLOATS | T_INTS };

#define IN(fill_, ...)                                                                         \
    {                                                                                          \
        .shape = {__VA_ARGS__}, .fill = fill_                                                  \
    }
#define FIXED(fill_, ...)                                                                      \
    {                                                                                          \
        .shape = {__VA_ARGS__}, .fill = fill_, .is_static = true                               \
    }
#define ROW(op_, name_, dtypes_, fn, n_out_, flags_, ...)                                      \
    {                                                                                          \
        .op = op_, .name = name_, .dtypes = dtypes_, .n_in = 1, .in = {__VA_ARGS__},           \
        .n_out = n_out_, .record = fn, .reference = fn##_want, .flags = flags_                 \
    }

/* The large samples have several tiles. */
#define SAMPLES_OF(op, fill, dtypes, flags, flags_of_nothing)                                  \
    ROW(#op, "last axis", dtypes, op##_last, 1, flags, IN(fill, 2, {5, 3})),                   \
        ROW(#op, "last axis, long", dtypes, op##_last, 1, flags, IN(fill, 2, {2, 5003})),      \
        ROW(#op, "last axis, many", F32, op##_last, 1, flags, IN(fill, 2, {140, 1003})),       \
        ROW(#op, "last of nothing", dtypes, op##_last, 1, flags_of_nothing,                    \
            FIXED(fill, 2, {3, 0})),                                                           \
        ROW(#op, "rows", dtypes, op##_first, 1, flags, IN(fill, 2, {9, 7})),                   \
        ROW(#op, "rows, some", dtypes, op##_first, 1, flags, IN(fill, 2, {150, 70})),          \
        ROW(#op, "rows, many", F32, op##_first, 1, flags, IN(fill, 2, {1900, 70})),            \
        ROW(#op, "rows, wide", F32, op##_first, 1, flags, IN(fill, 2, {130, 1031})),           \
        ROW(#op, "middle axis, kept", dtypes, op##_middle, 1, flags, IN(fill, 3, {4, 5, 3})),  \
        ROW(#op, "first and last", dtypes, op##_outer, 1, flags, IN(fill, 3, {4, 3, 5})),      \
        ROW(#op, "first and last, large", F32, op##_outer, 1, flags,                           \
            IN(fill, 3, {330, 3, 140})),                                                       \
        ROW(#op, "everything", dtypes, op##_whole, 1, flags, IN(fill, 3, {3, 4, 2})),          \
        ROW(#op, "everything, large", F32, op##_whole, 1, flags, IN(fill, 2, {311, 433})),     \
        ROW(#op, "a scalar", dtypes, op##_whole, 1, flags, IN(fill, 0, {0}))

#define SAMPLES_OF_BOOL(op)                                                                    \
    ROW(#op, "last axis", 1 << CH_BOOL, op##_last, 1, T_NO_GRAD, IN(T_BOOL, 2, {50, 3})),      \
        ROW(#op, "rows", 1 << CH_BOOL, op##_first, 1, T_NO_GRAD, IN(T_BOOL, 2, {3, 70})),      \
        ROW(#op, "middle", 1 << CH_BOOL, op##_middle, 1, T_NO_GRAD, IN(T_BOOL, 3, {3, 4, 5})), \
        ROW(#op, "first and last", 1 << CH_BOOL, op##_outer, 1, T_NO_GRAD,                     \
            IN(T_BOOL, 3, {2, 9, 2})),                                                         \
        ROW(#op, "everything", 1 << CH_BOOL, op##_whole, 1, T_NO_GRAD,                         \
            IN(T_BOOL, 2, {300, 700}))

static const t_sample samples[] = {
    SAMPLES_OF(sum, T_UNIT, T_FLOATS, 0, 0),
    ROW("sum", "integers", INTS, sum_last, 1, 0, IN(T_SMALL, 2, {5, 7})),
    ROW("sum", "integers, rows", INTS, sum_first, 1, 0, IN(T_SMALL, 2, {7, 5})),
    {.op = "sum",
     .name = "it wraps",
     .dtypes = 1 << CH_I8,
     .n_in = 1,
     .in = {IN(T_DISTINCT, 2, {3, 70})},
     .record = sum_last,
     .reference = wrapped_want},
    ROW("sum", "channels of images", T_FLOATS, sum_image, 1, 0, IN(T_UNIT, 4, {3, 4, 5, 6})),
    ROW("sum", "every other axis", T_WIDE, sum_every_other, 1, 0,
        IN(T_UNIT, 5, {3, 2, 4, 3, 5})),
    ROW("sum", "the other axes", T_WIDE, sum_other_every, 1, 0, IN(T_UNIT, 5, {3, 2, 4, 3, 5})),
    ROW("sum", "no axes", T_WIDE, sum_of_none, 1, 0, IN(T_UNIT, 2, {3, 2})),
    ROW("sum", "an axis of one", T_FLOATS, sum_last, 1, 0, IN(T_UNIT, 2, {3, 1})),
    SAMPLES_OF(mean, T_UNIT, T_FLOATS, 0, 0),
    ROW("prod", "last axis", T_FLOATS, prod_last, 1, 0, IN(T_POSITIVE, 2, {5, 3})),
    ROW("prod", "rows", T_FLOATS, prod_first, 1, 0, IN(T_UNIT, 2, {4, 3})),
    ROW("prod", "middle", T_FLOATS, prod_middle, 1, 0, IN(T_UNIT, 3, {2, 3, 4})),
    ROW("prod", "first and last", T_FLOATS, prod_outer, 1, 0, IN(T_UNIT, 3, {2, 3, 2})),
    ROW("prod", "everything", T_FLOATS, prod_whole, 1, 0, IN(T_UNIT, 2, {3, 2})),
    ROW("prod", "long", T_WIDE, prod_last, 1, T_NO_GRAD, IN(T_UNIT, 2, {400, 311})),
    ROW("prod", "integers", INTS, prod_last, 1, 0, IN(T_SMALL, 2, {5, 3})),
    ROW("prod", "of nothing", INTS, prod_last, 1, T_NO_GRAD, FIXED(T_SMALL, 2, {5, 0})),
    SAMPLES_OF(max, T_DISTINCT, T_WIDE, 0, T_GRAD_ONCE),
    SAMPLES_OF(min, T_DISTINCT, T_WIDE, 0, T_GRAD_ONCE),
    ROW("max", "integers", INTS, max_last, 1, T_NO_GRAD, IN(T_SMALL, 2, {40, 3})),
    ROW("min", "integers", INTS, min_first, 1, T_NO_GRAD, IN(T_SMALL, 2, {3, 40})),
    {.op = "max",
     .name = "NaN goes through",
     .dtypes = T_FLOATS,
     .n_in = 1,
     .in = {IN(T_UNIT, 2, {40, 45})},
     .n_out = 2,
     .record = poison,
     .reference = poison_want,
     .flags = T_NO_GRAD},
    SAMPLES_OF(logsumexp, T_UNIT, T_FLOATS, 0, 0),
    SAMPLES_OF_BOOL(any),
    SAMPLES_OF_BOOL(all),
    {.op = "div_count",
     .name = "gradient of a mean",
     .dtypes = T_FLOATS,
     .n_in = 2,
     .in = {IN(T_UNIT, 2, {5, 3}), FIXED(T_UNIT, 1, {3})},
     .record = mean_gradient,
     .reference = mean_gradient_want},

    ROW("argmax", "last axis", INTS, argmax_last, 1, T_NO_GRAD, IN(T_SMALL, 2, {50, 7})),
    ROW("argmax", "long", T_FLOATS, argmax_last, 1, T_NO_GRAD, IN(T_UNIT, 2, {400, 600})),
    ROW("argmax", "rows", INTS, argmax_first, 1, T_NO_GRAD, IN(T_SMALL, 2, {7, 300})),
    ROW("argmax", "middle", T_FLOATS, argmax_middle, 1, T_NO_GRAD, IN(T_UNIT, 3, {3, 9, 5})),
    ROW("argmax", "of nothing", T_WIDE, argmax_last, 1, T_NO_GRAD, FIXED(T_UNIT, 2, {3, 0})),
    ROW("argmin", "last axis", INTS, argmin_last, 1, T_NO_GRAD, IN(T_SMALL, 2, {50, 7})),
    ROW("argmin", "rows", INTS, argmin_first, 1, T_NO_GRAD, IN(T_SMALL, 2, {7, 300})),

    ROW("cumsum", "last axis", INTS, cumsum_last, 1, 0, IN(T_SMALL, 2, {5, 7})),
    ROW("cumsum", "long", T_WIDE, cumsum_last, 1, 0, IN(T_UNIT, 2, {30, 1100})),
    ROW("cumsum", "rows", INTS, cumsum_first, 1, 0, IN(T_SMALL, 2, {7, 5})),
    ROW("cumsum", "rows, wide", T_WIDE, cumsum_first, 1, 0, IN(T_UNIT, 2, {60, 700})),
    ROW("cumsum", "exclusive", INTS, cumsum_exclusive, 1, 0, IN(T_SMALL, 3, {2, 5, 3})),
    ROW("cumsum", "exclusive, last", T_FLOATS, cumsum_exclusive, 1, 0,
        IN(T_SMALL, 2, {2, 300})),
    ROW("cumsum", "reverse", INTS, cumsum_reverse, 1, 0, IN(T_SMALL, 2, {5, 7})),
    ROW("cumsum", "reverse, long", T_WIDE, cumsum_reverse, 1, 0, IN(T_UNIT, 2, {3, 1100})),
    ROW("cumsum", "both", INTS, cumsum_both, 1, 0, IN(T_SMALL, 2, {7, 5})),
    {.op = "prod_others",
     .name = "one axis",
     .dtypes = T_FLOATS,
     .n_in = 1,
     .in = {IN(T_UNIT, 3, {3, 4, 2})},
     .record = others,
     .reference = others_want,
     .flags = T_GRAD_ONCE},
    {.op = "prod_others",
     .name = "zeros",
     .dtypes = T_FLOATS,
     .n_in = 1,
     .in = {IN(T_UNIT, 3, {6, 4, 5})},
     .record = others_of_zeros,
     .reference = others_of_zeros_want,
     .flags = T_GRAD_ONCE},
    {.op = "prod_pairs",
     .name = "one axis",
     .dtypes = T_FLOATS,
     .n_in = 2,
     .in = {IN(T_UNIT, 3, {3, 4, 2}), IN(T_UNIT, 3, {3, 4, 2})},
     .record = pairs,
     .reference = pairs_want,
     .flags = T_NO_GRAD},
    {.op = "prod_pairs",
     .name = "many lines",
     .dtypes = T_WIDE,
     .n_in = 2,
     .in = {IN(T_UNIT, 3, {100, 8, 50}), IN(T_UNIT, 3, {100, 8, 50})},
     .record = pairs,
     .reference = pairs_want,
     .flags = T_NO_GRAD},

    ROW("sort", "last axis", T_WIDE, sort_last, 2, 0, IN(T_DISTINCT, 2, {4, 9})),
    ROW("sort", "equal ones", INTS, sort_last, 2, T_NO_GRAD, IN(T_SMALL, 2, {4, 40})),
    ROW("sort", "descending, equal ones", INTS, sort_down, 2, T_NO_GRAD,
        IN(T_SMALL, 2, {4, 40})),
    ROW("sort", "long", INTS, sort_last, 2, T_NO_GRAD, IN(T_SMALL, 2, {4, 300})),
    ROW("sort", "long, descending", T_FLOATS, sort_down, 2, T_NO_GRAD,
        IN(T_UNIT, 2, {40, 700})),
    ROW("sort", "rows", T_WIDE, sort_first, 2, 0, IN(T_DISTINCT, 2, {9, 4})),
    ROW("sort", "rows, many", INTS, sort_first, 2, T_NO_GRAD, IN(T_SMALL, 2, {90, 40})),
    ROW("sort", "middle", T_FLOATS, sort_middle, 2, T_NO_GRAD, IN(T_UNIT, 3, {3, 9, 4})),
    ROW("sort", "bools", 1 << CH_BOOL, sort_last, 2, T_NO_GRAD, IN(T_BOOL, 2, {3, 9})),
    ROW("top_k", "three", T_WIDE, top_3, 2, 0, IN(T_DISTINCT, 2, {4, 9})),
    ROW("top_k", "of equal ones", INTS, top_3, 2, T_NO_GRAD, IN(T_SMALL, 2, {40, 30})),
    ROW("top_k", "all of them", T_FLOATS, top_20, 2, T_NO_GRAD, IN(T_UNIT, 2, {5, 20})),
    ROW("top_k", "of many", T_FLOATS, top_20, 2, T_NO_GRAD, IN(T_UNIT, 3, {40, 3, 600})),
    ROW("top_k", "none", T_WIDE, top_0, 2, T_NO_GRAD, IN(T_UNIT, 2, {5, 20})),
    {.op = "put_along",
     .name = "gradient of top_k",
     .dtypes = T_WIDE,
     .n_in = 2,
     .in = {IN(T_DISTINCT, 2, {5, 9}), IN(T_UNIT, 2, {5, 3})},
     .record = put,
     .reference = put_want},
    {.op = "take_along",
     .name = "and of that",
     .dtypes = T_WIDE,
     .n_in = 3,
     .in = {IN(T_DISTINCT, 2, {5, 9}), IN(T_UNIT, 2, {5, 3}), IN(T_UNIT, 2, {5, 9})},
     .record = take,
     .reference = take_want},
    {.op = NULL},
};

/* ---- refusals ---- */

static void sum_far(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_sum(in[0], 2, (const int[]){0, 2}, false);
}
static void sum_twice(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_sum(in[0], 2, (const int[]){1, -1}, false);
}
static void sum_too_many(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_sum(in[0], 20, (const int[20]){0}, false);
}
static void cumsum_far(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_cumsum(in[0], -3, false, false);
}
static void sort_far(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_sort(in[0], 2, false);
}

#define REFUSED(op_, name_, fn, dtype_, in_, ...)                                              \
    {                                                                                          \
        .op = op_, .name = name_, .n_in = 1, .in = {in_}, .dtype = dtype_, .record = fn,       \
        .code = CH_INVALID_ARGUMENT, .words = {                                                \
            __VA_ARGS__                                                                        \
        }                                                                                      \
    }

static const t_refusal refusals[] = {
    REFUSED("sum", "an axis that is not there", sum_far, CH_F32, IN(T_UNIT, 2, {3, 4}),
            "axis 2", "rank 2"),
    REFUSED("sum", "an axis twice", sum_twice, CH_F32, IN(T_UNIT, 2, {3, 4}), "axis 1",
            "twice"),
    REFUSED("sum", "too many axes", sum_too_many, CH_F32, IN(T_UNIT, 2, {3, 4}), "20 axes"),
    REFUSED("sum", "bools", sum_last, CH_BOOL, IN(T_BOOL, 2, {3, 4}), "bool", "cast"),
    REFUSED("sum", "u32", sum_last, CH_U32, IN(T_SMALL, 2, {3, 4}), "u32", "cast"),
    REFUSED("mean", "integers", mean_last, CH_I32, IN(T_SMALL, 2, {3, 4}), "i32", "cast"),
    REFUSED("logsumexp", "integers", logsumexp_last, CH_I32, IN(T_SMALL, 2, {3, 4}), "i32",
            "cast"),
    REFUSED("any", "numbers", any_last, CH_F32, IN(T_UNIT, 2, {3, 4}), "f32", "bool"),
    REFUSED("max", "a scalar's axis", max_last, CH_F32, IN(T_UNIT, 0, {0}), "axis -1",
            "rank 0"),
    REFUSED("argmax", "a scalar", argmax_last, CH_F32, IN(T_UNIT, 0, {0}), "axis -1", "rank 0"),
    REFUSED("argmin", "bools", argmin_last, CH_BOOL, IN(T_BOOL, 1, {3}), "bool"),
    REFUSED("cumsum", "an axis that is not there", cumsum_far, CH_F32, IN(T_UNIT, 2, {3, 4}),
            "axis -3", "rank 2"),
    REFUSED("sort", "an axis that is not there", sort_far, CH_F32, IN(T_UNIT, 2, {3, 4}),
            "axis 2", "rank 2"),
    REFUSED("sort", "u16", sort_last, CH_U16, IN(T_SMALL, 2, {3, 4}), "u16"),
    REFUSED("top_k", "more than there are", top_20, CH_F32, IN(T_UNIT, 2, {3, 4}), "k is 20",
            "4"),
    REFUSED("top_k", "a scalar", top_0, CH_F32, IN(T_UNIT, 0, {0}), "scalar"),
    {.op = NULL},
};

const t_family t_reduce = {"reduce", samples, refusals};
