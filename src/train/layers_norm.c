/* train/layers_norm.c -- normalisation layers: batch_norm, layer_norm and rms_norm.
 *
 * batch_norm normalises over the batch. In training it also updates moving statistics, which
 * inference uses. With several replicas each normalises over its own rows; if `synchronized` is
 * set, over the rows of all replicas. In both cases the moving statistics are equal on all
 * replicas. layer_norm and rms_norm normalise over the last axis.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/math.h"
#include "cohort/replica.h"
#include "ops/box.h"
#include "train/layer.h"

/* ---- batch norm ---- */

typedef struct batch_self {
    double  momentum, epsilon;
    bool    has_beta, has_gamma, synchronized;
    int64_t width;
    ch_var *gamma, *beta, *mean, *variance;
} batch_self;

/* Creates a variable of (width) with an initial value. A statistic is not trainable, and is f32
 * if the layer has a 16-bit dtype. */
static ch_status add_column(ch_layer *l, const char *name, int64_t width, double value,
                            bool is_statistic, ch_var **out)
{
    ch_init init = ch_init_constant(value);

    return ch_layer_weight(l,
                           &(ch_layer_weight_spec){.name = name,
                                                   .shape = ch_shape_of(width),
                                                   .init = &init,
                                                   .trainable = is_statistic ? CH_OFF : 0,
                                                   .f32 = is_statistic},
                           out);
}

static ch_status batch_build(ch_layer *l, void *self, int n, ch_node *const *in)
{
    batch_self *b = self;
    ch_status   rc = ch__layer_size(l, in[0], -1, &b->width);

    (void)n;
    if (rc == CH_OK && b->has_gamma)
        rc = add_column(l, "gamma", b->width, 1, false, &b->gamma);
    if (rc == CH_OK && b->has_beta)
        rc = add_column(l, "beta", b->width, 0, false, &b->beta);
    if (rc == CH_OK)
        rc = add_column(l, "moving_mean", b->width, 0, true, &b->mean);
    if (rc == CH_OK)
        rc = add_column(l, "moving_variance", b->width, 1, true, &b->variance);
    return rc;
}

/* Statistics of a batch, f32 or, if the input is f64, f64. */
typedef struct batch_stats {
    ch_node *mean, *variance; /* (channels) */
    ch_node *count;           /* (1): number of elements of each channel */
} batch_stats;

/* Returns the number of elements of each channel of x, as (1). If sizes other than the rows are
 * not known when the step is recorded, the step counts the elements. */
static ch_node *count_of(ch_step *s, ch_node *x, ch_dtype t)
{
    ch_dims  pixels = x->dims;
    ch_dim   per_row;
    ch_node *n;

    pixels.rank--;
    if (ch__dims_product(&pixels, 1, pixels.rank, &per_row) && per_row.sym == 0)
        n = ch_mul(ch_cast(ch_rows(x), t), ch_number(s, (double)per_row.n));
    else
        n = ch_sum_all(ch__fill_dims(s, t, &pixels, 1));
    return ch_expand_dims(n, 0);
}

/* Sums over all axes except the last. */
static ch_node *sum_rows(ch_node *x)
{
    static const int axis[CH_MAX_RANK] = {0, 1, 2, 3, 4, 5, 6, 7};

    return ch_sum(x, ch_node_shape(x).rank - 1, axis, false);
}

/* Returns the elements [from, from + size) of a vector. */
static ch_node *slice(ch_node *x, int64_t from, int64_t size)
{
    return ch_slice(x, 1, &from, &size);
}

/* Returns max(count, 1), a divisor that is never 0. */
static ch_node *at_least_one(ch_step *s, ch_node *count)
{
    return ch_maximum(count, ch_number(s, 1));
}

/* Returns the means of the statistics over the replicas, weighted by their counts, so that a
 * replica without rows has no effect. Uses a single collective. */
static batch_stats mean_over_replicas(ch_step *s, batch_stats b, int64_t width)
{
    ch_node *packed[] = {ch_mul(b.mean, b.count), ch_mul(b.variance, b.count), b.count};
    ch_node *sum = ch_all_reduce(CH_SUM, ch_concat(3, packed, 0));
    ch_node *count = slice(sum, 2 * width, 1), *by = at_least_one(s, count);

    return (batch_stats){ch_div(slice(sum, 0, width), by), ch_div(slice(sum, width, width), by),
                         count};
}

/* Returns the statistics of the rows of all replicas. Uses two passes, first the mean and then
 * the variance, for precision. */
static batch_stats stats_over_replicas(ch_step *s, ch_node *x, int64_t width, ch_dtype t)
{
    ch_node *wide = ch_cast(x, t);
    ch_node *both[] = {sum_rows(wide), count_of(s, x, t)};
    ch_node *sum = ch_all_reduce(CH_SUM, ch_concat(2, both, 0));
    ch_node *count = slice(sum, width, 1), *by = at_least_one(s, count);
    ch_node *mean = ch_div(slice(sum, 0, width), by);
    ch_node *squares = ch_all_reduce(CH_SUM, sum_rows(ch_square(ch_sub(wide, mean))));

    return (batch_stats){mean, ch_div(squares, by), count};
}

/* Moves v by the share 1 - momentum towards the statistic of this batch. Does nothing if the
 * batch has no rows. */
static void update_moving(ch_step *s, ch_var *v, ch_node *now, ch_node *count, double momentum)
{
    ch_node *old = ch_var_read(s, v);
    ch_node *share = ch_mul(ch_minimum(count, ch_number(s, 1)), ch_number(s, 1 - momentum));

    ch_var_assign_add(s, v, ch_mul(ch_sub(now, old), share));
}

static ch_node *batch_train(const batch_self *b, ch_step *s, ch_node *x, ch_node *gamma,
                            ch_node *beta)
{
    bool        many = ch_strategy_replicas(ch_step_strategy(s)) > 1;
    ch_dtype    t = ch_node_dtype(x) == CH_F64 ? CH_F64 : CH_F32;
    batch_stats stats;
    ch_node    *y;

    if (many && b->synchronized) {
        stats = stats_over_replicas(s, x, b->width, t);
        y = ch_batch_norm_inference(x, gamma, beta, stats.mean, stats.variance, b->epsilon);
    } else {
        y = ch_batch_norm(x, gamma, beta, b->epsilon, &stats.mean, &stats.variance);
        stats.count = count_of(s, x, t);
        if (many)
            stats = mean_over_replicas(s, stats, b->width);
    }
    update_moving(s, b->mean, stats.mean, stats.count, b->momentum);
    update_moving(s, b->variance, stats.variance, stats.count, b->momentum);
    return y;
}

static ch_node *batch_call(ch_layer *l, void *self, ch_step *s, int n, ch_node *const *in,
                           bool training)
{
    batch_self *b = self;
    ch_shape    column = ch_shape_of(b->width);
    ch_node    *gamma, *beta;

    (void)n;
    if (!ch__layer_check_width(l, s, in[0], b->width))
        return NULL;
    gamma = b->has_gamma ? ch_var_read(s, b->gamma) : ch_fill(s, l->dtype, column, 1);
    beta = b->has_beta ? ch_var_read(s, b->beta) : ch_fill(s, l->dtype, column, 0);
    if (training)
        return batch_train(b, s, in[0], gamma, beta);
    return ch_batch_norm_inference(in[0], gamma, beta, ch_var_read(s, b->mean),
                                   ch_var_read(s, b->variance), b->epsilon);
}

static const ch_layer_ops batch_ops = {.type = "batch_norm",
                                       .build = batch_build,
                                       .call = batch_call,
                                       .n_in = {1, 1},
                                       .rank = {{2, 0}}};

ch_layer *ch_layer_batch_norm(const ch_layer_batch_norm_options *opt)
{
    ch_layer_batch_norm_options o = opt != NULL ? *opt : (ch_layer_batch_norm_options){0};
    batch_self                  b = {.momentum = o.momentum == 0 ? 0.99 : o.momentum,
                                     .epsilon = o.epsilon == 0 ? 1e-3 : o.epsilon,
                                     .has_beta = o.center != CH_OFF,
                                     .has_gamma = o.scale != CH_OFF,
                                     .synchronized = o.synchronized};

    if (!(b.momentum > 0 && b.momentum < 1) || !(b.epsilon > 0))
        return ch__layer_fail(
            "batch_norm: momentum %g and epsilon %g, want 0 < momentum < 1 and epsilon > 0",
            o.momentum, o.epsilon);
    return ch__layer_new(&batch_ops, &b, sizeof(b), 0, NULL);
}

void ch_layer_synchronize(ch_layer *l, bool on)
{
    if (l == NULL)
        return;
    if (l->ops == &batch_ops) {
        batch_self *b = ch__layer_self(l);

        b->synchronized = on;
    }
    for (int i = 0; i < l->n_children; i++)
        ch_layer_synchronize(l->child[i], on);
}

/* ---- layer norm, rms norm ---- */

typedef struct row_self {
    double  epsilon;
    int64_t width;
    ch_var *gamma, *beta;
} row_self;

static ch_status layer_norm_build(ch_layer *l, void *self, int n, ch_node *const *in)
{
    row_self *r = self;
    ch_status rc = ch__layer_size(l, in[0], -1, &r->width);

    (void)n;
    if (rc == CH_OK)
        rc = add_column(l, "gamma", r->width, 1, false, &r->gamma);
    if (rc == CH_OK)
        rc = add_column(l, "beta", r->width, 0, false, &r->beta);
    return rc;
}

static ch_status rms_norm_build(ch_layer *l, void *self, int n, ch_node *const *in)
{
    row_self *r = self;
    ch_status rc = ch__layer_size(l, in[0], -1, &r->width);

    (void)n;
    return rc == CH_OK ? add_column(l, "gamma", r->width, 1, false, &r->gamma) : rc;
}

static ch_node *layer_norm_call(ch_layer *l, void *self, ch_step *s, int n, ch_node *const *in,
                                bool training)
{
    row_self *r = self;

    (void)n, (void)training;
    if (!ch__layer_check_width(l, s, in[0], r->width))
        return NULL;
    return ch_layer_norm(in[0], ch_var_read(s, r->gamma), ch_var_read(s, r->beta), r->epsilon);
}

static ch_node *rms_norm_call(ch_layer *l, void *self, ch_step *s, int n, ch_node *const *in,
                              bool training)
{
    row_self *r = self;

    (void)n, (void)training;
    if (!ch__layer_check_width(l, s, in[0], r->width))
        return NULL;
    return ch_rms_norm(in[0], ch_var_read(s, r->gamma), r->epsilon);
}

static const ch_layer_ops layer_norm_ops = {.type = "layer_norm",
                                            .build = layer_norm_build,
                                            .call = layer_norm_call,
                                            .n_in = {1, 1},
                                            .rank = {{1, 0}}};
static const ch_layer_ops rms_norm_ops = {.type = "rms_norm",
                                          .build = rms_norm_build,
                                          .call = rms_norm_call,
                                          .n_in = {1, 1},
                                          .rank = {{1, 0}}};

static ch_layer *new_row_norm(const ch_layer_ops *ops, double epsilon, double otherwise)
{
    row_self r = {.epsilon = epsilon == 0 ? otherwise : epsilon};

    if (!(r.epsilon > 0))
        return ch__layer_fail("%s: epsilon is %g, want more than 0", ops->type, epsilon);
    return ch__layer_new(ops, &r, sizeof(r), 0, NULL);
}

ch_layer *ch_layer_layer_norm(double epsilon)
{
    return new_row_norm(&layer_norm_ops, epsilon, 1e-5);
}

ch_layer *ch_layer_rms_norm(double epsilon)
{
    return new_row_norm(&rms_norm_ops, epsilon, 1e-6);
}
