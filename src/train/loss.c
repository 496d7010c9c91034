/* train/loss.c -- losses, on public ops.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "cohort/loss.h"
#include "cohort/ops.h"
#include "cohort/replica.h"
#include "cohort/strategy.h"
#include "train/loss.h"

/* Below this a prediction of ch_loss_kl, or the length's square of ch_loss_cosine, is no number
 * to divide by. */
#define LEAST_PROBABILITY 1e-7
#define LEAST_SQUARE      1e-12

/* ---- what is given ---- */

bool ch__same_shape(const char *what, ch_node *a, ch_node *b)
{
    char     one[160], two[160];
    ch_step *s = a != NULL ? ch_node_step(a) : ch_node_step(b);

    if (s == NULL)
        return false;
    if (a == NULL || b == NULL) {
        ch_step_fail(s, "%s: one of the two is NULL", what);
        return false;
    }
    if (ch__dims_same(&a->dims, &b->dims))
        return true;
    ch__dims_print(&a->dims, one, sizeof(one));
    ch__dims_print(&b->dims, two, sizeof(two));
    ch_step_fail(s, "%s: shapes %s and %s differ; reshape one of them", what, one, two);
    return false;
}

static ch_dtype loss_dtype(const ch_node *x)
{
    return ch_node_dtype(x) == CH_F64 ? CH_F64 : CH_F32;
}

static ch_node *as(ch_node *x, ch_dtype dtype)
{
    return x == NULL || ch_node_dtype(x) == dtype ? x : ch_cast(x, dtype);
}

/* Both in the dtype of the loss, which a prediction of 16 bits is computed in. */
static bool take(const char *what, ch_node **prediction, ch_node **target, int least_rank)
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
    if (p->dims.rank < least_rank) {
        ch_step_fail(ch_node_step(p), "%s: the prediction has %d axes, want (rows, ..%s)", what,
                     p->dims.rank, least_rank > 1 ? "., n" : ".");
        return false;
    }
    dtype = loss_dtype(p);
    *prediction = as(p, dtype);
    *target = as(t, dtype);
    return true;
}

static ch_node *sum_last(ch_node *x, bool keep)
{
    return ch_sum(x, 1, (int[]){-1}, keep);
}

/* One number for each example, of one for each element. */
static ch_node *mean_last(ch_node *x)
{
    return x != NULL && x->dims.rank > 1 ? ch_mean(x, 1, (int[]){-1}, false) : x;
}

/* ---- losses ---- */

/* What a loss makes of two nodes and a number. Either node may be NULL. */
typedef ch_node *(*loss_fn)(ch_step *s, ch_node *a, ch_node *b, double x);

/* Records it as one call of its caller's. */
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

static bool has_classes(ch_step *s, const char *what, const ch_node *logits)
{
    const ch_dims *d = &logits->dims;
    char           has[160];

    if (ch_dtype_is_float(logits->dtype) && d->rank > 0 && d->dim[d->rank - 1].sym == 0)
        return true;
    ch__dims_print(d, has, sizeof(has));
    ch_step_fail(s, "%s: the logits are %s%s, want floats (..., classes)%s", what,
                 ch_dtype_name(logits->dtype), has,
                 d->rank == 1 ? "; an axis of rows alone has none" : "");
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
    return as(ch_sparse_softmax_cross_entropy(logits, labels), loss_dtype(logits));
}

/* The op takes logits of 16 bits, and computes in f32: they are not copied. */
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
        t = ch_mul(as(t, loss_dtype(logits)), ch_number(s, 1 - smoothing));
        t = ch_add(t, ch_number(s, smoothing / (double)(classes > 0 ? classes : 1)));
    }
    t = ch_softmax_cross_entropy(logits, as(t, logits->dtype));
    return as(t, loss_dtype(logits));
}

static ch_node *binary(ch_step *s, ch_node *p, ch_node *t, double x)
{
    (void)s, (void)x;
    return take("loss_binary", &p, &t, 1) ? mean_last(ch_sigmoid_cross_entropy(p, t)) : NULL;
}

static ch_node *mse(ch_step *s, ch_node *p, ch_node *t, double x)
{
    (void)s, (void)x;
    return take("loss_mse", &p, &t, 1) ? mean_last(ch_square(ch_sub(p, t))) : NULL;
}

static ch_node *mae(ch_step *s, ch_node *p, ch_node *t, double x)
{
    (void)s, (void)x;
    return take("loss_mae", &p, &t, 1) ? mean_last(ch_abs(ch_sub(p, t))) : NULL;
}

/* With a = min(|e|, delta): a |e| - a^2 / 2 is both the square and the line. */
static ch_node *huber(ch_step *s, ch_node *p, ch_node *t, double delta)
{
    ch_node *e, *a;

    if (!take("loss_huber", &p, &t, 1))
        return NULL;
    if (!(delta > 0)) {
        ch_step_fail(s, "loss_huber: delta is %g, want more than 0", delta);
        return NULL;
    }
    e = ch_abs(ch_sub(p, t));
    a = ch_minimum(e, ch_number(s, delta));
    return mean_last(ch_mul(a, ch_sub(e, ch_mul(ch_number(s, 0.5), a))));
}

static ch_node *over_length(ch_step *s, ch_node *x)
{
    ch_node *square = ch_maximum(sum_last(ch_square(x), true), ch_number(s, LEAST_SQUARE));

    return ch_mul(x, ch_rsqrt(square));
}

static ch_node *cosine(ch_step *s, ch_node *p, ch_node *t, double x)
{
    (void)x;
    if (!take("loss_cosine", &p, &t, 2))
        return NULL;
    return ch_neg(sum_last(ch_mul(over_length(s, p), over_length(s, t)), false));
}

static ch_node *hinge(ch_step *s, ch_node *p, ch_node *t, double x)
{
    (void)x;
    if (!take("loss_hinge", &p, &t, 1))
        return NULL;
    return mean_last(ch_relu(ch_sub(ch_number(s, 1), ch_mul(t, p))));
}

/* Of a target that is 0 nothing is left, for its logarithm is finite here. */
static ch_node *kl(ch_step *s, ch_node *p, ch_node *t, double x)
{
    ch_node *least = ch_number(s, LEAST_PROBABILITY);

    (void)x;
    if (!take("loss_kl", &p, &t, 2))
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

/* ---- one number of many ---- */

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
        ch_step_fail(ch_node_step(each),
                     "%s: weights of %s for examples of %s; want that or "
                     "its first axes",
                     what, one, two);
        return NULL;
    }
    weights = as(weights, each->dtype);
    for (int i = first.rank; i < each->dims.rank; i++)
        weights = ch_expand_dims(weights, -1);
    return weights;
}

/* A float that sums of many can be taken in. */
static ch_node *wide(ch_node *each)
{
    return each == NULL || ch_dtype_is_float(each->dtype) ? as(each, loss_dtype(each)) : each;
}

/* How many examples all replicas have. Rows that are those of input 0 are known before the run;
 * sizes that are numbers are the same on every replica; other rows have to be counted. */
static ch_node *global_count(ch_step *s, ch_node *each)
{
    const ch_step  *top = s;
    const ch_graph *g;
    ch_dim          all;

    while (top->outer != NULL)
        top = top->outer;
    g = top->graph;

    if (!ch__dims_product(&each->dims, 0, each->dims.rank, &all)) {
        ch_step_fail(s, "loss_average: its examples have two axes of unknown size");
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
        ch_step_fail(s, "loss_average: %s with %d axes, want one float for each example",
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
