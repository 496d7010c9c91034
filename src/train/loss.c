/* train/loss.c -- losses, recorded with public ops.
 *
 * A loss function records a number for each example: the ch_loss functions call `record`, which
 * calls a loss_fn. ch_loss_average and ch_loss_weighted_mean record the mean over the examples
 * of all replicas. Predictions of 16 bits are computed in f32.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/loss.h"
#include "cohort/ops.h"
#include "cohort/replica.h"
#include "cohort/strategy.h"
#include "train/loss.h"

/* Least prediction of ch_loss_kl, and least squared length of ch_loss_cosine. Smaller values
 * are replaced by these, because they are used as divisors or in logarithms. */
#define MIN_PROBABILITY 1e-7
#define MIN_SQUARE      1e-12

/* ---- checks and casts ---- */

/* Returns true if the shape of `wide` is that of `x` with a last axis of size 1. */
static bool is_column_of(const ch_node *wide, const ch_node *x)
{
    ch_dims d = wide->dims;

    if (d.rank != x->dims.rank + 1 || d.dim[d.rank - 1].sym != 0 || d.dim[d.rank - 1].n != 1)
        return false;
    d.rank--;
    return ch__dims_same(&d, &x->dims);
}

bool ch__same_shape(const char *what, ch_node *a, ch_node *b)
{
    char           one[160], two[160];
    ch_step       *s = a != NULL ? ch_node_step(a) : ch_node_step(b);
    const ch_node *wide;

    if (s == NULL)
        return false;
    if (a == NULL || b == NULL) {
        ch_step_fail(s, "%s: an argument is NULL", what);
        return false;
    }
    if (ch__dims_same(&a->dims, &b->dims))
        return true;
    ch__dims_print(&a->dims, one, sizeof(one));
    ch__dims_print(&b->dims, two, sizeof(two));
    wide = a->dims.rank > b->dims.rank ? a : b;
    if (is_column_of(wide, wide == a ? b : a))
        ch_step_fail(s,
                     "%s: shapes %s and %s differ by an axis of size 1; for labels from a CSV "
                     "file set .fields = 1 in their ch_csv_column, otherwise reshape one of "
                     "the two (ch_expand_dims, ch_squeeze, ch_tensor_reshape)",
                     what, one, two);
    else
        ch_step_fail(s, "%s: shapes %s and %s differ; reshape one of them", what, one, two);
    return false;
}

static ch_dtype loss_dtype(const ch_node *x)
{
    return ch_node_dtype(x) == CH_F64 ? CH_F64 : CH_F32;
}

static ch_node *cast(ch_node *x, ch_dtype dtype)
{
    return x == NULL || ch_node_dtype(x) == dtype ? x : ch_cast(x, dtype);
}

/* Checks the shapes and casts both nodes to the dtype of the loss. Fails the step and returns
 * false on an error. */
static bool check_and_cast(const char *what, ch_node **prediction, ch_node **target,
                           int min_rank)
{
    ch_node *p = *prediction, *t = *target;
    ch_dtype dtype;

    if (!ch__same_shape(what, p, t))
        return false;
    if (!ch_dtype_is_float(p->dtype)) {
        ch_step_fail(ch_node_step(p), "%s: the prediction is %s, want a float type", what,
                     ch_dtype_name(p->dtype));
        return false;
    }
    if (p->dims.rank < min_rank) {
        ch_step_fail(ch_node_step(p), "%s: the prediction has %d axes, want (rows, ..%s)", what,
                     p->dims.rank, min_rank > 1 ? "., n" : ".");
        return false;
    }
    dtype = loss_dtype(p);
    *prediction = cast(p, dtype);
    *target = cast(t, dtype);
    return true;
}

static ch_node *sum_last(ch_node *x, bool keep)
{
    return ch_sum(x, 1, (int[]){-1}, keep);
}

/* Returns the mean over the last axis: a number for each example. A vector is returned as it
 * is. */
static ch_node *mean_last(ch_node *x)
{
    return x != NULL && x->dims.rank > 1 ? ch_mean(x, 1, (int[]){-1}, false) : x;
}

/* ---- losses ---- */

/* Records a loss from two nodes and a parameter. Either node may be NULL. */
typedef ch_node *(*loss_fn)(ch_step *s, ch_node *a, ch_node *b, double x);

/* Records a loss so that errors name the line of the caller. Returns NULL after an error. */
static ch_node *record(const void *caller, loss_fn fn, ch_node *a, ch_node *b, double x)
{
    ch_step    *s = ch_node_step(a != NULL ? a : b);
    const void *before;
    ch_node    *y;

    if (s == NULL || ch_step_status(s) != CH_OK)
        return NULL;
    before = ch__step_begin_at(s, caller, NULL);
    y = fn(s, a, b, x);
    ch__step_end(s, before);
    return y;
}

/* Returns true if the logits are floats with a constant number of classes on the last axis.
 * Otherwise fails the step. */
static bool has_classes(ch_step *s, const char *what, const ch_node *logits)
{
    const ch_dims *d = &logits->dims;
    char           has[160];

    if (ch_dtype_is_float(logits->dtype) && d->rank > 0 && d->dim[d->rank - 1].sym == 0)
        return true;
    ch__dims_print(d, has, sizeof(has));
    ch_step_fail(s, "%s: the logits are %s%s, want floats (..., classes)%s", what,
                 ch_dtype_name(logits->dtype), has,
                 d->rank == 1 ? "; a single axis is the rows, and has no classes" : "");
    return false;
}

static ch_node *sparse_categorical(ch_step *s, ch_node *logits, ch_node *labels, double x)
{
    (void)x;
    if (logits == NULL || labels == NULL) {
        ch_step_fail(s, "loss_sparse_categorical: the %s are NULL",
                     logits == NULL ? "logits" : "labels");
        return NULL;
    }
    if (!has_classes(s, "loss_sparse_categorical", logits))
        return NULL;
    return cast(ch_sparse_softmax_cross_entropy(logits, labels), loss_dtype(logits));
}

/* The logits are not cast, because the op accepts 16-bit logits and computes in f32. */
static ch_node *categorical(ch_step *s, ch_node *logits, ch_node *targets, double smoothing)
{
    ch_node *t = targets;
    int64_t  classes;

    if (!ch__same_shape("loss_categorical", logits, targets) ||
        !has_classes(s, "loss_categorical", logits))
        return NULL;
    if (!(smoothing >= 0 && smoothing < 1)) {
        ch_step_fail(s, "loss_categorical: smoothing is %g, want at least 0 and less than 1",
                     smoothing);
        return NULL;
    }
    classes = logits->dims.dim[logits->dims.rank - 1].n;
    if (smoothing > 0) {
        t = ch_mul(cast(t, loss_dtype(logits)), ch_number(s, 1 - smoothing));
        t = ch_add(t, ch_number(s, smoothing / (double)(classes > 0 ? classes : 1)));
    }
    t = ch_softmax_cross_entropy(logits, cast(t, logits->dtype));
    return cast(t, loss_dtype(logits));
}

static ch_node *binary(ch_step *s, ch_node *p, ch_node *t, double x)
{
    (void)s, (void)x;
    return check_and_cast("loss_binary", &p, &t, 1) ? mean_last(ch_sigmoid_cross_entropy(p, t))
                                                    : NULL;
}

static ch_node *mse(ch_step *s, ch_node *p, ch_node *t, double x)
{
    (void)s, (void)x;
    return check_and_cast("loss_mse", &p, &t, 1) ? mean_last(ch_square(ch_sub(p, t))) : NULL;
}

static ch_node *mae(ch_step *s, ch_node *p, ch_node *t, double x)
{
    (void)s, (void)x;
    return check_and_cast("loss_mae", &p, &t, 1) ? mean_last(ch_abs(ch_sub(p, t))) : NULL;
}

/* With a = min(|e|, delta), a |e| - a^2 / 2 is the square below delta and the line above it. */
static ch_node *huber(ch_step *s, ch_node *p, ch_node *t, double delta)
{
    ch_node *e, *a;

    if (!check_and_cast("loss_huber", &p, &t, 1))
        return NULL;
    if (!(delta > 0)) {
        ch_step_fail(s, "loss_huber: delta is %g, want more than 0", delta);
        return NULL;
    }
    e = ch_abs(ch_sub(p, t));
    a = ch_minimum(e, ch_number(s, delta));
    return mean_last(ch_mul(a, ch_sub(e, ch_mul(ch_number(s, 0.5), a))));
}

/* Divides x by its length along the last axis. */
static ch_node *normalise(ch_step *s, ch_node *x)
{
    ch_node *square = ch_maximum(sum_last(ch_square(x), true), ch_number(s, MIN_SQUARE));

    return ch_mul(x, ch_rsqrt(square));
}

static ch_node *cosine(ch_step *s, ch_node *p, ch_node *t, double x)
{
    (void)x;
    if (!check_and_cast("loss_cosine", &p, &t, 2))
        return NULL;
    return ch_neg(sum_last(ch_mul(normalise(s, p), normalise(s, t)), false));
}

static ch_node *hinge(ch_step *s, ch_node *p, ch_node *t, double x)
{
    (void)x;
    if (!check_and_cast("loss_hinge", &p, &t, 1))
        return NULL;
    return mean_last(ch_relu(ch_sub(ch_number(s, 1), ch_mul(t, p))));
}

/* A target of 0 contributes 0, because the logarithm is finite here. */
static ch_node *kl(ch_step *s, ch_node *p, ch_node *t, double x)
{
    ch_node *least = ch_number(s, MIN_PROBABILITY);

    (void)x;
    if (!check_and_cast("loss_kl", &p, &t, 2))
        return NULL;
    p = ch_log(ch_maximum(p, least));
    return sum_last(ch_mul(t, ch_sub(ch_log(ch_maximum(t, least)), p)), false);
}

ch_node *ch_loss_sparse_categorical(ch_node *logits, ch_node *labels)
{
    return record(__builtin_return_address(0), sparse_categorical, logits, labels, 0);
}

ch_node *ch_loss_categorical(ch_node *logits, ch_node *targets, double smoothing)
{
    return record(__builtin_return_address(0), categorical, logits, targets, smoothing);
}

ch_node *ch_loss_binary(ch_node *logits, ch_node *targets)
{
    return record(__builtin_return_address(0), binary, logits, targets, 0);
}

ch_node *ch_loss_mse(ch_node *prediction, ch_node *target)
{
    return record(__builtin_return_address(0), mse, prediction, target, 0);
}

ch_node *ch_loss_mae(ch_node *prediction, ch_node *target)
{
    return record(__builtin_return_address(0), mae, prediction, target, 0);
}

ch_node *ch_loss_huber(ch_node *prediction, ch_node *target, double delta)
{
    return record(__builtin_return_address(0), huber, prediction, target, delta);
}

ch_node *ch_loss_cosine(ch_node *prediction, ch_node *target)
{
    return record(__builtin_return_address(0), cosine, prediction, target, 0);
}

ch_node *ch_loss_hinge(ch_node *prediction, ch_node *target)
{
    return record(__builtin_return_address(0), hinge, prediction, target, 0);
}

ch_node *ch_loss_kl(ch_node *prediction, ch_node *target)
{
    return record(__builtin_return_address(0), kl, prediction, target, 0);
}

/* ---- means over the examples ---- */

ch_node *ch__weights_for(const char *what, ch_node *weights, ch_node *each)
{
    char    one[160], two[160];
    ch_dims first;

    if (weights == NULL || each == NULL)
        return NULL;
    first = each->dims;
    if (weights->dims.rank < first.rank)
        first.rank = weights->dims.rank;
    if (!ch__dims_same(&first, &weights->dims)) {
        ch__dims_print(&weights->dims, one, sizeof(one));
        ch__dims_print(&each->dims, two, sizeof(two));
        ch_step_fail(
            ch_node_step(each),
            "%s: weights of %s for examples of %s, want the same shape or its first axes", what,
            one, two);
        return NULL;
    }
    weights = cast(weights, each->dtype);
    for (int i = first.rank; i < each->dims.rank; i++)
        weights = ch_expand_dims(weights, -1);
    return weights;
}

/* Casts 16-bit floats to f32, for sums of many numbers. */
static ch_node *wide(ch_node *each)
{
    return each == NULL || ch_dtype_is_float(each->dtype) ? cast(each, loss_dtype(each)) : each;
}

/* Returns the number of examples of all replicas. If the rows are those of input 0, they are
 * known before the run. Sizes that are constants are the same on every replica. Otherwise the
 * examples are counted with a collective. */
static ch_node *global_count(ch_step *s, ch_node *each)
{
    const ch_graph *g = ch__step_outermost(s)->graph;
    ch_dim          all;

    if (!ch__dims_product(&each->dims, 0, each->dims.rank, &all)) {
        ch_step_fail(
            s, "loss_average: two axes of the losses have unknown sizes, want at most one");
        return NULL;
    }
    if (all.sym == 0)
        return ch_mul(ch_step_replica_count(s), ch_number(s, (double)all.n));
    if (g->n_inputs > 0 && g->input[0]->dims.rank > 0 &&
        g->input[0]->dims.dim[0].sym == all.sym)
        return all.n == 1 ? ch_step_global_rows(s)
                          : ch_mul(ch_step_global_rows(s), ch_number(s, (double)all.n));
    return ch_all_reduce(CH_SUM, ch_sum_all(ch_ones_like(each)));
}

static ch_node *average(ch_step *s, ch_node *each, ch_node *weights, double x)
{
    ch_node *sum, *count;

    (void)x;
    each = wide(each);
    if (each == NULL || !ch_dtype_is_float(each->dtype) || each->dims.rank < 1) {
        ch_step_fail(s, "loss_average: %s with %d axes, want a float for each example",
                     each != NULL ? ch_dtype_name(each->dtype) : "NULL",
                     each != NULL ? each->dims.rank : 0);
        return NULL;
    }
    count = global_count(s, each);
    sum = ch_sum_all(
        weights == NULL ? each : ch_mul(each, ch__weights_for("loss_average", weights, each)));
    return ch_div(sum, ch_cast(ch_maximum(count, ch_number(s, 1)), each->dtype));
}

ch_node *ch_loss_average(ch_node *each, ch_node *weights)
{
    return record(__builtin_return_address(0), average, each, weights, 0);
}

static ch_node *weighted_mean(ch_step *s, ch_node *each, ch_node *weights, double x)
{
    ch_node *total;

    (void)x;
    if (each == NULL || weights == NULL) {
        ch_step_fail(s, "loss_weighted_mean: the %s are NULL",
                     each == NULL ? "losses" : "weights");
        return NULL;
    }
    each = wide(each);
    weights = ch__weights_for("loss_weighted_mean", weights, each);
    total = ch_all_reduce(CH_SUM, ch_sum_all(ch_mul(ch_ones_like(each), weights)));
    total = ch_select(ch_equal(total, ch_number(s, 0)), ch_number(s, 1), total);
    return ch_div(ch_sum_all(ch_mul(each, weights)), total);
}

ch_node *ch_loss_weighted_mean(ch_node *each, ch_node *weights)
{
    return record(__builtin_return_address(0), weighted_mean, each, weights, 0);
}
