/* test/ops/samples_random.c -- samples of random numbers: their distributions, at a fixed seed.
 *
 * Each bound has a false alarm rate of about 0.001. Because the seed is fixed, a check that
 * passes once always passes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- statistics ---- */

static int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static void has_mean(const t_array *x, double mean, double deviation)
{
    double  sum = 0;
    int64_t n = ch_shape_count(x->shape);

    for (int64_t i = 0; i < n; i++)
        sum += x->v[i];
    t_expect(fabs(sum / (double)n - mean) < 4 * deviation / sqrt((double)n) + 2e-3 * deviation,
             "the mean is %g, want %g", sum / (double)n, mean);
}

static void has_deviation(const t_array *x, double mean, double deviation)
{
    double  sum = 0;
    int64_t n = ch_shape_count(x->shape);

    for (int64_t i = 0; i < n; i++)
        sum += (x->v[i] - mean) * (x->v[i] - mean);
    sum = sqrt(sum / (double)n);
    t_expect(fabs(sum - deviation) < 0.02 * deviation, "the deviation is %g, want %g", sum,
             deviation);
}

/* Kolmogorov-Smirnov test: checks the largest difference between the share of numbers below x
 * and its expected value. The 16-bit floats are coarse, so 0.5% more is allowed. */
static void has_distribution(const t_array *x, double (*below)(double))
{
    int64_t n = ch_shape_count(x->shape);
    double *v = malloc((size_t)n * sizeof(*v)), most = 0;

    memcpy(v, x->v, (size_t)n * sizeof(*v));
    qsort(v, (size_t)n, sizeof(*v), by_size);
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fmax(fabs(below(v[i]) - (double)i / (double)n),
                               fabs(below(v[i]) - (double)(i + 1) / (double)n)));
    free(v);
    t_expect(most < 1.95 / sqrt((double)n) + 5e-3, "it is %g away from its distribution", most);
}

/* Checks that neighbours are not correlated. */
static void is_uncorrelated(const t_array *x, double mean, double deviation)
{
    static const int64_t lag[] = {1, 2, 16, 32, 64, 100};
    int64_t              n = ch_shape_count(x->shape);

    for (int k = 0; k < 6; k++) {
        double sum = 0;

        for (int64_t i = 0; i + lag[k] < n; i++)
            sum += (x->v[i] - mean) * (x->v[i + lag[k]] - mean);
        sum /= deviation * deviation * (double)n;
        t_expect(fabs(sum) < 4 / sqrt((double)n) + 1e-3, "numbers %lld apart correlate by %g",
                 (long long)lag[k], sum);
    }
}

static void lies_within(const t_array *x, double least, double most)
{
    int64_t n = ch_shape_count(x->shape);

    for (int64_t i = 0; i < n; i++)
        t_expect(x->v[i] >= least && x->v[i] <= most, "element %lld is %.17g, want %g to %g",
                 (long long)i, x->v[i], least, most);
}

static void has_shape(const t_array *x, ch_shape want)
{
    char have[160];

    ch_shape_print(x->shape, have, sizeof(have));
    t_expect(ch_shape_equal(x->shape, want), "its shape is %s", have);
}

/* ---- uniform ---- */

static void uniform_many(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_random_uniform(s, ch_node_dtype(in[0]), ch_shape_of(100, 1001), 0, 1, 0);
}

static double below_unit(double x)
{
    return x < 0 ? 0 : x > 1 ? 1 : x;
}

static void check_uniform_many(const t_array *in, const t_array *out)
{
    (void)in;
    has_shape(out, ch_shape_of(100, 1001));
    lies_within(out, 0, 0x1.fffffffffffffp-1);
    has_mean(out, 0.5, sqrt(1 / 12.0));
    has_deviation(out, 0.5, sqrt(1 / 12.0));
    has_distribution(out, below_unit);
    is_uncorrelated(out, 0.5, sqrt(1 / 12.0));
}

static void uniform_like(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_random_uniform_like(in[0], -3, 5, 17);
}

static void check_uniform_like(const t_array *in, const t_array *out)
{
    has_shape(out, in[0].shape);
    lies_within(out, -3, 0x1.3ffffffffffffp2);
}

/* An interval so narrow that rounding up would reach hi. */
static void uniform_narrow(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_random_uniform(s, ch_node_dtype(in[0]), ch_shape_of(5000), 1, 1.0625, 0);
}

static void check_uniform_narrow(const t_array *in, const t_array *out)
{
    (void)in;
    lies_within(out, 1, 0x1.0ffffffffffffp0);
}

static void uniform_negative(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_random_uniform(s, ch_node_dtype(in[0]), ch_shape_of(5000), -1, 0, 0);
}

static void check_uniform_negative(const t_array *in, const t_array *out)
{
    (void)in;
    for (int64_t i = 0; i < 5000; i++)
        t_expect(out->v[i] >= -1 && out->v[i] < 0, "element %lld is %g", (long long)i,
                 out->v[i]);
}

static void uniform_backward(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_random_uniform(s, ch_node_dtype(in[0]), ch_shape_of(2), 1, 1, 0);
}

static void uniform_nan(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_random_uniform(s, ch_node_dtype(in[0]), ch_shape_of(2), 0, NAN, 0);
}

static void uniform_too_wide(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_random_uniform(s, ch_node_dtype(in[0]), ch_shape_of(2), 0, 1e6, 0);
}

static void uniform_unknown_size(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_random_uniform(s, ch_node_dtype(in[0]), ch_shape_of(-1, 2), 0, 1, 0);
}

/* ---- normal ---- */

static void normal_many(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_random_normal(s, ch_node_dtype(in[0]), ch_shape_of(333, 301), 0, 1, 0);
}

static double below_normal(double x)
{
    return 0.5 * erfc(-x / sqrt(2));
}

static void check_normal_many(const t_array *in, const t_array *out)
{
    (void)in;
    lies_within(out, -6.7, 6.7);
    has_mean(out, 0, 1);
    has_deviation(out, 0, 1);
    has_distribution(out, below_normal);
    is_uncorrelated(out, 0, 1);
}

static void normal_like(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_random_normal_like(in[0], 10, 0.5, 1);
}

static void check_normal_like(const t_array *in, const t_array *out)
{
    has_shape(out, in[0].shape);
    lies_within(out, 10 - 6.7 / 2, 10 + 6.7 / 2);
}

static void normal_constant(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_random_normal_like(in[0], 3, 0, 0);
}

static void is_three(const t_array *in, t_array *out)
{
    t_out(out, in[0].shape);
    for (int64_t i = 0; i < ch_shape_count(out->shape); i++)
        out->v[i] = 3;
}

static void normal_negative(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_random_normal_like(in[0], 0, -1, 0);
}

static void truncated_many(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_truncated_normal(s, ch_node_dtype(in[0]), ch_shape_of(400, 251), 0, 1, 0);
}

static double below_truncated(double x)
{
    double least = below_normal(-2);

    return (below_normal(x) - least) / (1 - 2 * least);
}

static void check_truncated_many(const t_array *in, const t_array *out)
{
    (void)in;
    lies_within(out, -2, 2);
    has_mean(out, 0, 0.88);
    has_deviation(out, 0, 0.8796);
    has_distribution(out, below_truncated);
}

static void truncated_like(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_truncated_normal_like(in[0], 1, 3, 5);
}

static void check_truncated_like(const t_array *in, const t_array *out)
{
    has_shape(out, in[0].shape);
    lies_within(out, -5, 7);
}

/* ---- bernoulli ---- */

static void bernoulli_many(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_bernoulli(s, ch_node_dtype(in[0]), ch_shape_of(100, 1003), 0.3, 0);
}

static void check_bernoulli_many(const t_array *in, const t_array *out)
{
    (void)in;
    for (int64_t i = 0; i < ch_shape_count(out->shape); i++)
        t_expect(out->v[i] == 0 || out->v[i] == 1, "element %lld is %g", (long long)i,
                 out->v[i]);
    has_mean(out, 0.3, sqrt(0.21));
    is_uncorrelated(out, 0.3, sqrt(0.21));
}

static void bernoulli_never(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_bernoulli_like(in[0], 0, 0);
}

static void bernoulli_always(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_bernoulli_like(in[0], 1, 0);
}

static void is_nothing(const t_array *in, t_array *out)
{
    t_out(out, in[0].shape);
}

static void is_one(const t_array *in, t_array *out)
{
    t_out(out, in[0].shape);
    for (int64_t i = 0; i < ch_shape_count(out->shape); i++)
        out->v[i] = 1;
}

static void bernoulli_too_likely(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_bernoulli_like(in[0], 1.5, 0);
}

/* ---- integers ---- */

static void integers_many(ch_step *s, ch_node *const *in, ch_node **out)
{
    out[0] = ch_random_integers(s, ch_node_dtype(in[0]), ch_shape_of(60000), 0, 6, 0);
}

static void check_integers_many(const t_array *in, const t_array *out)
{
    int    count[6] = {0};
    double chi = 0;

    (void)in;
    lies_within(out, 0, 5);
    for (int64_t i = 0; i < 60000; i++)
        count[(int)out->v[i]]++;
    for (int i = 0; i < 6; i++)
        chi += (count[i] - 10000.0) * (count[i] - 10000.0) / 10000;
    t_expect(chi < 20.5, "chi squared is %g", chi);
}

static void integers_like(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_random_integers_like(in[0], CH_I8, -128, 128, 3);
}

static void check_integers_like(const t_array *in, const t_array *out)
{
    has_shape(out, in[0].shape);
    lies_within(out, -128, 127);
}

static void integers_wide(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)in;
    out[0] = ch_random_integers(s, CH_I64, ch_shape_of(10000), -(INT64_C(3) << 60),
                                INT64_C(3) << 60, 3);
}

static void check_integers_wide(const t_array *in, const t_array *out)
{
    double half = 3 * 0x1p60;

    (void)in;
    lies_within(out, -half, half);
    has_mean(out, 0, half / sqrt(3));
    has_deviation(out, 0, half / sqrt(3));
}

static void integers_backward(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)in;
    out[0] = ch_random_integers(s, CH_I32, ch_shape_of(3), 5, 5, 0);
}

static void integers_too_large(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)in;
    out[0] = ch_random_integers(s, CH_U8, ch_shape_of(3), 0, 257, 0);
}

static void integers_float(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)in;
    out[0] = ch_random_integers(s, CH_F32, ch_shape_of(3), 0, 257, 0);
}

/* ---- dropout ---- */

static void dropout_third(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_dropout(in[0], 1.0 / 3, 0);
}

/* Checks that each element is 0 or 1.5 times its input. */
static void check_dropout(const t_array *in, const t_array *out)
{
    int64_t n = ch_shape_count(in[0].shape), dropped = 0;

    has_shape(out, in[0].shape);
    for (int64_t i = 0; i < n; i++) {
        double x = in[0].v[i] * 1.5;

        t_expect(out->v[i] == 0 || fabs(out->v[i] - x) <= 0.004 * fabs(x),
                 "element %lld is %g, want 0 or %g", (long long)i, out->v[i], x);
        dropped += out->v[i] == 0;
    }
    if (n > 10000)
        t_expect(fabs((double)dropped / (double)n - 1.0 / 3) < 4 * 0.47 / sqrt((double)n),
                 "%lld of %lld are dropped", (long long)dropped, (long long)n);
}

static void drop_slice(ch_step *s, void *arg, ch_node *const *carry, ch_node *const *x,
                       ch_node **next, ch_node **y)
{
    (void)s, (void)arg;
    next[0] = carry[0];
    y[0] = ch_dropout(x[0], 1.0 / 3, 0);
}

/* Each iteration drops different elements, and the gradient drops the same elements again. */
static void dropout_in_loop(ch_step *s, ch_node *const *in, ch_node **out)
{
    ch_scan_spec spec = {.n_carry = 1, .n_x = 1, .n_y = 1};

    ch_scan(s, &spec, drop_slice, NULL, &in[1], &in[0], &out[1], &out[0]);
}

static void check_dropout_in_loop(const t_array *in, const t_array *out)
{
    int64_t cols = in[0].shape.dim[1];
    bool    differ = false;

    check_dropout(in, out);
    for (int64_t i = 0; i < cols; i++)
        differ |= (out->v[i] == 0) != (out->v[i + cols] == 0);
    t_expect(differ, "two iterations drop the same elements");
}

static void dropout_none(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_dropout(ch_dropout(in[0], 1e-30, 0), 0, 0); /* the outer one records no call */
}

static void is_same(const t_array *in, t_array *out)
{
    t_out(out, in[0].shape);
    memcpy(out->v, in[0].v, (size_t)ch_shape_count(in[0].shape) * sizeof(double));
}

static void dropout_all(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_dropout(in[0], 1, 0);
}

static void dropout_negative(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_dropout(in[0], -0.1, 0);
}

static void dropout_nan(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_dropout(in[0], NAN, 0);
}

/* ---- shuffle ---- */

static void shuffle(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_shuffle(in[0], 0);
}

/* Checks that the rows are those of the input, each once. */
static void check_shuffle(const t_array *in, const t_array *out)
{
    int64_t rows = in[0].shape.dim[0];
    int64_t size = rows > 0 ? ch_shape_count(in[0].shape) / rows : 0;
    bool   *used = calloc((size_t)rows + 1, sizeof(*used));

    has_shape(out, in[0].shape);
    for (int64_t i = 0; i < rows; i++) {
        int64_t k = 0;

        while (k < rows && (used[k] || memcmp(out->v + i * size, in[0].v + k * size,
                                              (size_t)size * sizeof(double)) != 0))
            k++;
        t_expect(k < rows, "row %lld is none of those that came in", (long long)i);
        used[k] = true;
    }
    free(used);
}

static void shuffle_twice(ch_step *s, ch_node *const *in, ch_node **out)
{
    (void)s;
    out[0] = ch_shuffle(in[0], 0);
    out[1] = ch_shuffle(in[0], 0);
}

static void check_shuffle_twice(const t_array *in, const t_array *out)
{
    check_shuffle(in, out);
    check_shuffle(in, out + 1);
    t_expect(memcmp(out[0].v, out[1].v, (size_t)ch_shape_count(out->shape) * sizeof(double)) !=
                 0,
             "two calls have the same order");
}

#define SCALAR                                                                                 \
    {                                                                                          \
        .shape = { 0 }                                                                         \
    }
#define ARRAY(...)                                                                             \
    {                                                                                          \
        .shape = {.rank = sizeof((int[]){__VA_ARGS__}) / sizeof(int), .dim = {__VA_ARGS__} }   \
    }
#define STRONG(...)                                                                            \
    {                                                                                          \
        .shape = {.rank = sizeof((int[]){__VA_ARGS__}) / sizeof(int), .dim = {__VA_ARGS__}},   \
        .fill = T_DISTINCT                                                                     \
    }

/* clang-format off */
static const t_sample samples[] = {
    {.op = "random_uniform", .name = "many", .dtypes = T_FLOATS, .n_in = 1, .in = {SCALAR},
     .record = uniform_many, .check = check_uniform_many, .flags = T_NO_GRAD | T_RANDOM},
    {.op = "random_uniform", .name = "like rows", .dtypes = T_FLOATS, .n_in = 1,
     .in = {ARRAY(37, 3)}, .record = uniform_like, .check = check_uniform_like,
     .flags = T_NO_GRAD | T_RANDOM},
    {.op = "random_uniform", .name = "none", .dtypes = T_FLOATS, .n_in = 1,
     .in = {ARRAY(4, 0)}, .record = uniform_like, .check = check_uniform_like, .flags = T_NO_GRAD},
    {.op = "random_uniform", .name = "one", .dtypes = T_FLOATS, .n_in = 1,
     .in = {SCALAR}, .record = uniform_like, .check = check_uniform_like, .flags = T_NO_GRAD},
    {.op = "random_uniform", .name = "narrow", .dtypes = T_FLOATS, .n_in = 1, .in = {SCALAR},
     .record = uniform_narrow, .check = check_uniform_narrow, .flags = T_NO_GRAD | T_RANDOM},
    {.op = "random_uniform", .name = "negative", .dtypes = T_FLOATS, .n_in = 1, .in = {SCALAR},
     .record = uniform_negative, .check = check_uniform_negative, .flags = T_NO_GRAD | T_RANDOM},

    {.op = "random_normal", .name = "many", .dtypes = T_FLOATS, .n_in = 1, .in = {SCALAR},
     .record = normal_many, .check = check_normal_many, .flags = T_NO_GRAD | T_RANDOM},
    {.op = "random_normal", .name = "like rows", .dtypes = T_FLOATS, .n_in = 1,
     .in = {ARRAY(7, 5)}, .record = normal_like, .check = check_normal_like,
     .flags = T_NO_GRAD | T_RANDOM},
    {.op = "random_normal", .name = "without deviation", .dtypes = T_FLOATS, .n_in = 1,
     .in = {ARRAY(70)}, .record = normal_constant, .reference = is_three, .flags = T_NO_GRAD},
    {.op = "random_normal", .name = "none", .dtypes = T_FLOATS, .n_in = 1,
     .in = {ARRAY(0, 4)}, .record = normal_like, .check = check_normal_like, .flags = T_NO_GRAD},

    {.op = "truncated_normal", .name = "many", .dtypes = T_FLOATS, .n_in = 1, .in = {SCALAR},
     .record = truncated_many, .check = check_truncated_many, .flags = T_NO_GRAD | T_RANDOM},
    {.op = "truncated_normal", .name = "like rows", .dtypes = T_FLOATS, .n_in = 1,
     .in = {ARRAY(513)}, .record = truncated_like, .check = check_truncated_like,
     .flags = T_NO_GRAD | T_RANDOM},

    {.op = "bernoulli", .name = "many", .dtypes = T_FLOATS | T_INTS | 1 << CH_BOOL, .n_in = 1,
     .in = {SCALAR}, .record = bernoulli_many, .check = check_bernoulli_many,
     .flags = T_NO_GRAD | T_RANDOM},
    {.op = "bernoulli", .name = "never", .dtypes = T_FLOATS | T_INTS | 1 << CH_BOOL, .n_in = 1,
     .in = {ARRAY(9, 9)}, .record = bernoulli_never, .reference = is_nothing, .flags = T_NO_GRAD},
    {.op = "bernoulli", .name = "always", .dtypes = T_FLOATS | T_INTS | 1 << CH_BOOL, .n_in = 1,
     .in = {ARRAY(9, 9)}, .record = bernoulli_always, .reference = is_one, .flags = T_NO_GRAD},
    {.op = "bernoulli", .name = "none", .dtypes = T_FLOATS, .n_in = 1, .in = {ARRAY(0)},
     .record = bernoulli_always, .reference = is_one, .flags = T_NO_GRAD},

    {.op = "random_integers", .name = "a die", .dtypes = T_INTS, .n_in = 1, .in = {SCALAR},
     .record = integers_many, .check = check_integers_many, .flags = T_NO_GRAD | T_RANDOM},
    {.op = "random_integers", .name = "all of i8, like rows", .dtypes = T_FLOATS, .n_in = 1,
     .in = {ARRAY(31, 21)}, .record = integers_like, .check = check_integers_like,
     .flags = T_NO_GRAD | T_RANDOM},
    {.op = "random_integers", .name = "wide", .dtypes = 1 << CH_F32, .n_in = 1, .in = {SCALAR},
     .record = integers_wide, .check = check_integers_wide, .flags = T_NO_GRAD | T_RANDOM},
    {.op = "random_integers", .name = "none", .dtypes = T_FLOATS, .n_in = 1, .in = {ARRAY(0, 3)},
     .record = integers_like, .check = check_integers_like, .flags = T_NO_GRAD},

    {.op = "dropout", .name = "of a third", .dtypes = T_FLOATS, .n_in = 1, .in = {ARRAY(7, 9)},
     .record = dropout_third, .check = check_dropout, .flags = T_RANDOM},
    {.op = "dropout", .name = "several tiles", .dtypes = T_FLOATS, .n_in = 1,
     .in = {ARRAY(100, 1001)}, .record = dropout_third, .check = check_dropout,
     .flags = T_RANDOM},
    {.op = "dropout", .name = "of nothing", .dtypes = T_FLOATS, .n_in = 1, .in = {ARRAY(0, 9)},
     .record = dropout_third, .check = check_dropout},
    {.op = "dropout", .name = "of weights", .dtypes = T_FLOATS, .n_in = 1,
     .in = {{.shape = {3, {3, 5, 2}}, .is_static = true}}, .record = dropout_third,
     .check = check_dropout, .flags = T_RANDOM},
    {.op = "dropout", .name = "so rare that it never comes", .dtypes = T_FLOATS, .n_in = 1,
     .in = {ARRAY(8, 9)}, .record = dropout_none, .reference = is_same},

    {.op = "dropout", .name = "in a loop", .dtypes = T_FLOATS, .n_in = 2,
     .in = {{.shape = {2, {3, 13}}, .is_static = true}, SCALAR}, .n_out = 2,
     .record = dropout_in_loop, .check = check_dropout_in_loop, .flags = T_RANDOM},

    {.op = "shuffle", .name = "rows", .dtypes = T_FLOATS | T_INTS, .n_in = 1,
     .in = {STRONG(11, 3)}, .record = shuffle, .check = check_shuffle, .flags = T_RANDOM},
    {.op = "shuffle", .name = "several tiles", .dtypes = T_WIDE, .n_in = 1,
     .in = {STRONG(700, 400)}, .record = shuffle, .check = check_shuffle, .flags = T_RANDOM},
    {.op = "shuffle", .name = "one row", .dtypes = T_WIDE, .n_in = 1, .in = {STRONG(1, 4)},
     .record = shuffle, .check = check_shuffle},
    {.op = "shuffle", .name = "rows without elements", .dtypes = T_WIDE, .n_in = 1,
     .in = {STRONG(5, 0)}, .record = shuffle, .check = check_shuffle},
    {.op = "shuffle", .name = "no rows", .dtypes = T_WIDE, .n_in = 1, .in = {STRONG(0, 5)},
     .record = shuffle, .check = check_shuffle},
    {.op = "shuffle", .name = "twice", .dtypes = T_WIDE, .n_in = 1, .in = {STRONG(40)},
     .n_out = 2, .record = shuffle_twice, .check = check_shuffle_twice, .flags = T_RANDOM},
    {0},
};

static const t_refusal refusals[] = {
    {.op = "random_uniform", .name = "nothing between", .n_in = 1, .in = {SCALAR},
     .dtype = CH_F32, .record = uniform_backward, .code = CH_INVALID_ARGUMENT,
     .words = {"random_uniform", "lo is 1 and hi 1", "lo < hi"}},
    {.op = "random_uniform", .name = "up to NaN", .n_in = 1, .in = {SCALAR}, .dtype = CH_F64,
     .record = uniform_nan, .code = CH_INVALID_ARGUMENT, .words = {"lo < hi"}},
    {.op = "random_uniform", .name = "beyond f16", .n_in = 1, .in = {SCALAR}, .dtype = CH_F16,
     .record = uniform_too_wide, .code = CH_INVALID_ARGUMENT, .words = {"within f16"}},
    {.op = "random_uniform", .name = "of integers", .n_in = 1, .in = {SCALAR}, .dtype = CH_I32,
     .record = uniform_many, .code = CH_INVALID_ARGUMENT, .words = {"dtype is i32", "float"}},
    {.op = "random_uniform", .name = "of unknown size", .n_in = 1, .in = {SCALAR},
     .dtype = CH_F32, .record = uniform_unknown_size, .code = CH_INVALID_ARGUMENT,
     .words = {"-1 elements"}},
    {.op = "random_normal", .name = "negative deviation", .n_in = 1, .in = {ARRAY(3)},
     .dtype = CH_F32, .record = normal_negative, .code = CH_INVALID_ARGUMENT,
     .words = {"random_normal", "deviation -1"}},
    {.op = "random_normal", .name = "of integers", .n_in = 1, .in = {ARRAY(3)}, .dtype = CH_I64,
     .record = normal_like, .code = CH_INVALID_ARGUMENT, .words = {"i64", "float"}},
    {.op = "truncated_normal", .name = "of integers", .n_in = 1, .in = {ARRAY(3)},
     .dtype = CH_I64, .record = truncated_like, .code = CH_INVALID_ARGUMENT,
     .words = {"truncated_normal", "i64", "float"}},
    {.op = "bernoulli", .name = "more than certain", .n_in = 1, .in = {ARRAY(3)},
     .dtype = CH_F32, .record = bernoulli_too_likely, .code = CH_INVALID_ARGUMENT,
     .words = {"bernoulli", "p is 1.5", "0 to 1"}},
    {.op = "bernoulli", .name = "of a type that only moves", .n_in = 1, .in = {ARRAY(3)},
     .dtype = CH_U16, .record = bernoulli_always, .code = CH_INVALID_ARGUMENT,
     .words = {"u16"}},
    {.op = "random_integers", .name = "nothing between", .n_in = 1, .in = {SCALAR},
     .dtype = CH_F32, .record = integers_backward, .code = CH_INVALID_ARGUMENT,
     .words = {"random_integers", "lo is 5 and hi 5"}},
    {.op = "random_integers", .name = "beyond u8", .n_in = 1, .in = {SCALAR}, .dtype = CH_F32,
     .record = integers_too_large, .code = CH_INVALID_ARGUMENT, .words = {"257", "within u8"}},
    {.op = "random_integers", .name = "as floats", .n_in = 1, .in = {SCALAR}, .dtype = CH_F32,
     .record = integers_float, .code = CH_INVALID_ARGUMENT, .words = {"f32", "i8, u8"}},
    {.op = "dropout", .name = "of all", .n_in = 1, .in = {ARRAY(3)}, .dtype = CH_F32,
     .record = dropout_all, .code = CH_INVALID_ARGUMENT,
     .words = {"dropout(f32(rows))", "rate is 1", "rate < 1"}},
    {.op = "dropout", .name = "negative", .n_in = 1, .in = {ARRAY(3)}, .dtype = CH_F32,
     .record = dropout_negative, .code = CH_INVALID_ARGUMENT, .words = {"rate is -0.1"}},
    {.op = "dropout", .name = "NaN", .n_in = 1, .in = {ARRAY(3)}, .dtype = CH_F32,
     .record = dropout_nan, .code = CH_INVALID_ARGUMENT, .words = {"rate is nan"}},
    {.op = "dropout", .name = "of integers", .n_in = 1, .in = {ARRAY(3)}, .dtype = CH_I32,
     .record = dropout_third, .code = CH_INVALID_ARGUMENT, .words = {"i32", "float"}},
    {.op = "shuffle", .name = "of a scalar", .n_in = 1, .in = {SCALAR}, .dtype = CH_F32,
     .record = shuffle, .code = CH_INVALID_ARGUMENT, .words = {"shuffle", "scalar"}},
    {0},
};
/* clang-format on */

const t_family t_random = {"random", samples, refusals};
