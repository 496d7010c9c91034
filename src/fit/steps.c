/* fit/steps.c -- the default steps of ch_fit, ch_evaluate and ch_predict.
 *
 * Records the functions train, test and predict of a ch_compiled with the public functions for
 * steps, as a program could write them itself. A function calls the custom step of ch_compile
 * instead, if there is one. Class weights are constants of the training step, so the function
 * is created again when they change.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "cohort/ops.h"
#include "fit/compiled.h"
#include "graph/step.h"
#include "tensor/ragged.h"
#include "train/loss.h"
#include "train/model.h"

/* Components of a batch, in the order of the data: the inputs of the model, the truth, the
 * weights. */
typedef struct batch {
    int      n;                                     /* number of inputs */
    ch_node *in[CH_MODEL_INPUTS], *truth, *weights; /* weights NULL: the data has none */
} batch;

/* Returns the number of components that are inputs of the model. If ch_model_options does not
 * say it, the model has one input. A ragged input has two components: its values and its
 * splits. */
static int count_inputs(const ch_step *s, const ch_compiled *c)
{
    const ch_graph *g = s->graph;
    int             n = ch__model_inputs(c->model);

    if (n > 0)
        return n;
    return g->n_inputs > 1 && ch__ragged_is_pair(g->input_name[0], g->input_name[1]) ? 2 : 1;
}

/* Splits the inputs of the step into the components of a batch. Fails the step and returns
 * false if their number is wrong, or if the data has no batches. */
static bool open_batch(ch_step *s, const ch_compiled *c, bool with_truth, batch *b)
{
    int n = count_inputs(s, c), has = ch_step_in_count(s);

    *b = (batch){.n = n};
    if (has < n + with_truth || (with_truth && has > n + 2)) {
        ch_step_fail(s, "an element of the data has %d component%s, want %d input%s%s", has,
                     has == 1 ? "" : "s", n, n == 1 ? "" : "s",
                     with_truth ? ", the truth, and optionally a weight for each example" : "");
        return false;
    }
    for (int i = 0; i < n; i++)
        b->in[i] = ch_step_in(s, i);
    if (with_truth)
        b->truth = ch_step_in(s, n);
    if (with_truth && has == n + 2)
        b->weights = ch_step_in(s, n + 1);
    if (ch_node_shape(with_truth ? b->truth : b->in[0]).rank == 0) {
        ch_step_fail(s,
                     "the dataset gives single elements (%s is a scalar), want batches of "
                     "rows; add ch_dataset_batch to the dataset",
                     with_truth ? "the truth" : "the input");
        return false;
    }
    return true;
}

/* ---- weights ---- */

/* Returns the class of each example. If the truth has as many axes as the guess and a row of
 * the guess has more than one number, the class is the index of the largest number in the row
 * of the truth. Otherwise the truth is the label. */
static ch_node *classes_of(const batch *b, ch_node *guess)
{
    ch_shape of_truth = ch_node_shape(b->truth), of_guess = ch_node_shape(guess);
    int      last = of_guess.rank - 1;

    if (of_truth.rank == of_guess.rank && last > 0 && of_guess.dim[last] > 1)
        return ch_argmax(b->truth, -1);
    if (of_truth.rank > 1 && of_truth.dim[of_truth.rank - 1] == 1)
        return ch_cast(ch_squeeze(b->truth, 1, (int[]){-1}), CH_I64);
    return ch_cast(b->truth, CH_I64);
}

/* Returns the weights of the examples, multiplied by the weights of their classes. NULL: all
 * examples have the same weight. */
static ch_node *weights_of(ch_step *s, const ch_compiled *c, const batch *b, ch_node *guess)
{
    ch_node *of_class;

    if (c->class_weight == NULL)
        return b->weights;
    /* The scope names an error for a label without a weight. */
    ch_step_enter(s, "class_weight");
    of_class = ch_gather(ch_constant(s, c->class_weight), classes_of(b, guess), 0);
    ch_step_leave(s);
    return b->weights != NULL ? ch_mul(ch_cast(b->weights, CH_F32), of_class) : of_class;
}

/* ---- the steps ---- */

/* Returns the loss of each example, and updates the metrics. NULL: no loss. The loss in the
 * logs is the mean, over the examples, of the loss times the weight: the number that training
 * minimises. */
static ch_node *update_metrics(ch_step *s, ch_compiled *c, const batch *b, ch_node *guess,
                               ch_node *weights)
{
    ch_node *each = NULL;

    if (ch__compiled_has_loss(c) && guess != NULL) {
        each = c->loss != NULL ? c->loss(guess, b->truth)
                               : c->loss_with(guess, b->truth, c->loss_arg);
        ch_metric_update(c->loss_mean, s, NULL,
                         weights == NULL || each == NULL
                             ? each
                             : ch_mul(each, ch__weights_for("fit", weights, each)),
                         NULL);
    }
    for (int i = 0; i < c->n_metrics; i++)
        ch_metric_update(c->metric[i].metric, s, b->truth, guess,
                         c->metric[i].is_weighted ? weights : NULL);
    return each;
}

static void record_train(ch_step *s, ch_compiled *c)
{
    batch          b;
    ch_node       *guess, *weights, *each;
    ch_var *const *var;
    int            n;

    if (!open_batch(s, c, true, &b))
        return;
    guess = ch_model_call_n(c->model, s, b.n, b.in, true);
    if (guess == NULL)
        return;
    weights = weights_of(s, c, &b, guess);
    each = update_metrics(s, c, &b, guess, weights);
    n = ch_model_trainable(c->model, &var);
    ch_optimizer_minimize(c->optimizer, s, ch_loss_average(each, weights), n, var);
}

static void record_test(ch_step *s, ch_compiled *c)
{
    batch    b;
    ch_node *guess;

    if (!open_batch(s, c, true, &b))
        return;
    guess = ch_model_call_n(c->model, s, b.n, b.in, false);
    (void)update_metrics(s, c, &b, guess, b.weights);
}

static void record_predict(ch_step *s, ch_compiled *c)
{
    batch b;

    if (open_batch(s, c, false, &b))
        ch_step_out(s, "guess", ch_model_call_n(c->model, s, b.n, b.in, false));
}

/* Records a default step with c->caller as the location for errors: they name the line of
 * ch_fit, ch_evaluate or ch_predict, because the program has no line in the step itself. */
static void record_for_caller(ch_step *s, ch_compiled *c,
                              void (*record)(ch_step *s, ch_compiled *c))
{
    const void *before = ch__step_begin_at(s, c->caller, NULL);

    record(s, c);
    ch__step_end(s, before);
}

static void train(ch_step *s, void *arg)
{
    ch_compiled *c = arg;

    if (c->train_step != NULL)
        c->train_step(s, c->model, c->step_arg);
    else
        record_for_caller(s, c, record_train);
}

static void test(ch_step *s, void *arg)
{
    ch_compiled *c = arg;

    if (c->test_step != NULL)
        c->test_step(s, c->model, c->step_arg);
    else
        record_for_caller(s, c, record_test);
}

static void predict(ch_step *s, void *arg)
{
    record_for_caller(s, arg, record_predict);
}

ch_status ch__compiled_functions(ch_compiled *c)
{
    ch_status rc = ch_function_new("train", train, c, &c->train);

    if (rc == CH_OK)
        rc = ch_function_new("test", test, c, &c->test);
    if (rc == CH_OK)
        rc = ch_function_new("predict", predict, c, &c->predict);
    return rc;
}

/* ---- class weights ---- */

/* Returns true if the weights are equal to those in `t`, as f32. n 0 and a NULL tensor are
 * equal. */
static bool is_same(const ch_tensor *t, int n, const double *weight)
{
    if (t == NULL || n == 0 || ch_tensor_count(t) != n)
        return t == NULL && n == 0;
    for (int i = 0; i < n; i++)
        if (((const float *)ch_tensor_data(t))[i] != (float)weight[i])
            return false;
    return true;
}

ch_status ch__compiled_class_weights(ch_compiled *c, int n, const double *weight)
{
    ch_tensor *t = NULL;
    ch_status  rc = CH_OK;

    if (n < 0 || (n > 0 && weight == NULL))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "fit: n_classes is %d%s, want 0 or more, and class_weight not NULL", n,
                        weight == NULL ? " and class_weight is NULL" : "");
    if (is_same(c->class_weight, n, weight))
        return CH_OK;
    if (n > 0)
        rc = ch_tensor_new(CH_F32, ch_shape_of(n), &t);
    for (int i = 0; i < n && rc == CH_OK; i++)
        ((float *)ch_tensor_data_mut(t))[i] = (float)weight[i];
    if (rc != CH_OK)
        return rc;
    ch_tensor_unref(c->class_weight);
    c->class_weight = t;
    ch_function_unref(c->train);
    c->train = NULL;
    return ch_function_new("train", train, c, &c->train);
}
