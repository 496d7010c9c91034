/* fit/compile.c -- ch_compile, and the metrics of a compiled model.
 *
 * ch_compile fills a new ch_compiled and attaches it to the model, which frees the previous
 * state. The rest of the file reads, resets, saves and restores the metrics for the loops in
 * fit.c and evaluate.c.
 *
 * Invariants:
 *
 *   1. The names of the metrics are unique, and none is "loss", because they become names of
 *      logs.
 *   2. ch_compile fails while a loop is open on the model (n_running > 0), so a loop may borrow
 *      the ch_compiled.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "fit/compiled.h"
#include "train/model.h"

ch_status ch__compiled_of(const char *call, ch_model *m, ch_compiled **out)
{
    if (m == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: the model is NULL", call);
    *out = ch__model_attached(m);
    if (*out != NULL)
        return CH_OK;
    return ch__fail(
        CH_FAILED_PRECONDITION,
        "%s: the model was not compiled; call ch_compile first, with an optimizer and a "
        "loss to train it, or with none to predict",
        call);
}

bool ch__compiled_has_loss(const ch_compiled *c)
{
    return c->loss != NULL || c->loss_with != NULL;
}

static void drop_compiled(void *compiled)
{
    ch_compiled *c = compiled;

    if (c == NULL)
        return;
    ch_function_unref(c->train);
    ch_function_unref(c->test);
    ch_function_unref(c->predict);
    for (int i = 0; i < c->n_metrics; i++)
        ch_metric_unref(c->metric[i].metric);
    ch_metric_unref(c->loss_mean);
    ch_optimizer_unref(c->optimizer);
    ch_tensor_unref(c->class_weight);
    ch__logs_drop(&c->output_sums);
    ch__free(c);
}

/* ---- metrics ---- */

static bool has_name(const ch_compiled *c, const char *name)
{
    if (strcmp(name, "loss") == 0)
        return true;
    for (int i = 0; i < c->n_metrics; i++)
        if (strcmp(ch_metric_name(c->metric[i].metric), name) == 0)
            return true;
    return false;
}

/* Adds the metric. Takes ownership of the reference, also on an error. */
static ch_status add_metric(ch_compiled *c, ch_metric *m, bool is_weighted, bool is_own)
{
    if (has_name(c, ch_metric_name(m))) {
        ch_status rc =
            ch__fail(CH_INVALID_ARGUMENT,
                     "compile: two logs are named \"%s\"; give one of the metrics another "
                     "name with ch_metric_named",
                     ch_metric_name(m));

        ch_metric_unref(m);
        return rc;
    }
    c->metric[c->n_metrics++] = (ch_compiled_metric){m, is_weighted, is_own};
    return CH_OK;
}

/* Creates a metric. spec.make may be a function of the program, so its result is not trusted:
 * it may fail without a message, or return CH_OK without a metric. */
static ch_status make_metric(ch_compiled *c, ch_metric_spec spec, ch_metric **out)
{
    uint64_t  mark = ch__fail_mark();
    ch_status rc = ch_metric_new(c->strategy, spec, out);

    if (rc == CH_OK && *out == NULL)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "its `make` function returned CH_OK but created no metric");
    return ch__fail_since(mark, rc);
}

static ch_status make_metrics(ch_compiled *c, const ch_metric_spec *spec, bool is_weighted)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < CH_COMPILE_METRICS && rc == CH_OK; i++) {
        ch_metric *m = NULL;

        if (spec[i].kind == NULL && spec[i].make == NULL) /* the end of the list */
            break;
        rc = make_metric(c, spec[i], &m);
        if (rc != CH_OK)
            return ch__fail_at(rc, "compile: %s %d", is_weighted ? "weighted metric" : "metric",
                               i);
        rc = add_metric(c, m, is_weighted, false);
    }
    return rc;
}

/* Adds the metrics of opt->own. */
static ch_status add_own(ch_compiled *c, const ch_compile_options *opt)
{
    ch_status rc = CH_OK;

    if (opt->n_own < 0 || opt->n_own > CH_COMPILE_METRICS ||
        (opt->n_own > 0 && opt->own == NULL))
        return ch__fail(CH_INVALID_ARGUMENT, "compile: n_own is %d%s, want 0 to %d", opt->n_own,
                        opt->own == NULL ? " and own is NULL" : "", CH_COMPILE_METRICS);
    for (int i = 0; i < opt->n_own && rc == CH_OK; i++) {
        ch_var *const *var;

        if (opt->own[i] == NULL)
            return ch__fail(CH_INVALID_ARGUMENT, "compile: own[%d] is NULL", i);
        if (ch_metric_vars(opt->own[i], &var) > 0 && ch_var_strategy(var[0]) != c->strategy)
            return ch__fail(
                CH_INVALID_ARGUMENT,
                "compile: metric \"%s\" belongs to %s, but the model belongs to %s; create the "
                "metric with ch_model_strategy(model)",
                ch_metric_name(opt->own[i]), ch_strategy_label(ch_var_strategy(var[0])),
                ch_strategy_label(c->strategy));
        rc = add_metric(c, ch_metric_ref(opt->own[i]), opt->own_weighted, true);
    }
    return rc;
}

/* ---- compile ---- */

static ch_status fill(ch_compiled *c, const ch_compile_options *opt)
{
    ch_status rc = CH_OK;

    if (opt->loss != NULL && opt->loss_with != NULL)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "compile: both loss and loss_with are given; give only one of them");
    c->optimizer = ch_optimizer_ref(opt->optimizer);
    c->loss = opt->loss;
    c->loss_with = opt->loss_with;
    c->loss_arg = opt->loss_arg;
    c->train_step = opt->train_step;
    c->test_step = opt->test_step;
    c->step_arg = opt->step_arg;
    if (ch__compiled_has_loss(c))
        rc = ch_metric_new(c->strategy, ch_metric_named(ch_metric_mean(), "loss"),
                           &c->loss_mean);
    if (rc == CH_OK)
        rc = make_metrics(c, opt->metrics, false);
    if (rc == CH_OK)
        rc = make_metrics(c, opt->weighted_metrics, true);
    if (rc == CH_OK)
        rc = add_own(c, opt);
    return rc == CH_OK ? ch__compiled_functions(c) : rc;
}

/* Fails if a loop is open on the model, because the loop uses the current state. */
static ch_status check_idle(const ch_model *m)
{
    const ch_compiled *now = ch__model_attached(m);

    if (now == NULL || atomic_load(&now->n_running) == 0)
        return CH_OK;
    return ch__fail(CH_FAILED_PRECONDITION,
                    "compile: ch_fit, ch_evaluate or ch_predict of this model is running; call "
                    "ch_compile after it has returned, not in a callback");
}

ch_status ch_compile(ch_model *m, const ch_compile_options *opt)
{
    static const ch_compile_options none;
    ch_compiled                    *c;
    ch_status                       rc;

    if (m == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "compile: the model is NULL");
    rc = check_idle(m);
    if (rc != CH_OK)
        return rc;
    c = ch__calloc(1, sizeof(*c));
    if (c == NULL)
        return ch__fail_memory("a compiled model");
    c->model = m;
    c->strategy = ch_model_strategy(m);
    rc = fill(c, opt != NULL ? opt : &none);
    if (rc != CH_OK) {
        drop_compiled(c);
        return rc;
    }
    ch__model_attach(m, c, drop_compiled);
    return CH_OK;
}

/* ---- read and reset the metrics ---- */

static ch_status read_metric(ch_metric *m, const char *prefix, ch_logs *logs)
{
    char      name[160];
    double    x = 0;
    ch_status rc = ch_metric_result(m, &x);

    snprintf(name, sizeof(name), "%s%s", prefix, ch_metric_name(m));
    return rc == CH_OK ? ch__logs_set(logs, name, x) : rc;
}

ch_status ch__compiled_read(ch_compiled *c, bool is_own_step, const char *prefix, ch_logs *logs)
{
    ch_status rc =
        c->loss_mean != NULL && !is_own_step ? read_metric(c->loss_mean, prefix, logs) : CH_OK;

    for (int i = 0; i < c->output_sums.n && c->n_output_steps > 0 && rc == CH_OK; i++) {
        char name[160];

        snprintf(name, sizeof(name), "%s%s", prefix, c->output_sums.at[i].name);
        rc = ch__logs_set(logs, name, c->output_sums.at[i].value / (double)c->n_output_steps);
    }
    for (int i = 0; i < c->n_metrics && rc == CH_OK; i++)
        if (!is_own_step || c->metric[i].is_own)
            rc = read_metric(c->metric[i].metric, prefix, logs);
    return rc;
}

ch_status ch__compiled_reset(ch_compiled *c)
{
    ch_status rc = c->loss_mean != NULL ? ch_metric_reset(c->loss_mean) : CH_OK;

    for (int i = 0; i < c->n_metrics && rc == CH_OK; i++)
        rc = ch_metric_reset(c->metric[i].metric);
    ch__logs_drop(&c->output_sums);
    c->n_output_steps = 0;
    return rc;
}

/* ---- save and restore the metrics ---- */

/* Returns metric i of c->n_metrics + 1; the last is the loss, or NULL if there is none. */
static ch_metric *metric_at(const ch_compiled *c, int i)
{
    return i < c->n_metrics ? c->metric[i].metric : c->loss_mean;
}

static int count_vars(const ch_compiled *c)
{
    ch_var *const *var;
    int            n = 0;

    for (int i = 0; i <= c->n_metrics; i++)
        n += metric_at(c, i) != NULL ? ch_metric_vars(metric_at(c, i), &var) : 0;
    return n;
}

static void drop_saved(ch_saved_metrics *a)
{
    for (int i = 0; a->value != NULL && i < a->n; i++)
        ch_tensor_unref(a->value[i]);
    ch__free(a->value);
    ch__logs_drop(&a->output_sums);
    *a = (ch_saved_metrics){0};
}

ch_status ch__compiled_save_metrics(ch_compiled *c, ch_saved_metrics *out)
{
    ch_status rc = CH_OK;

    *out = (ch_saved_metrics){.n_output_steps = c->n_output_steps};
    out->value = ch__calloc((size_t)count_vars(c) + 1, sizeof(ch_tensor *));
    if (out->value == NULL)
        return ch__fail_memory("saved metrics");
    for (int i = 0; i <= c->n_metrics && rc == CH_OK; i++) {
        ch_var *const *var;
        int            n = metric_at(c, i) != NULL ? ch_metric_vars(metric_at(c, i), &var) : 0;

        for (int k = 0; k < n && rc == CH_OK; k++) {
            rc = ch_var_get(var[k], &out->value[out->n]);
            out->n += rc == CH_OK;
        }
    }
    if (rc != CH_OK) {
        drop_saved(out);
        return rc;
    }
    out->output_sums = c->output_sums;
    c->output_sums = (ch_logs){0};
    c->n_output_steps = 0;
    return CH_OK;
}

ch_status ch__compiled_restore_metrics(ch_compiled *c, ch_saved_metrics *a)
{
    ch_status rc = CH_OK;
    int       at = 0;

    for (int i = 0; i <= c->n_metrics && rc == CH_OK && a->value != NULL; i++) {
        ch_var *const *var;
        int            n = metric_at(c, i) != NULL ? ch_metric_vars(metric_at(c, i), &var) : 0;

        for (int k = 0; k < n && rc == CH_OK; k++)
            rc = ch_var_set(var[k], a->value[at++]);
    }
    if (a->value != NULL) {
        ch__logs_drop(&c->output_sums);
        c->output_sums = a->output_sums;
        c->n_output_steps = a->n_output_steps;
        a->output_sums = (ch_logs){0};
    }
    drop_saved(a);
    return rc;
}

/* ---- outputs of custom steps ---- */

/* Adds the mean of the output over the replicas to the sum of that name. */
static ch_status add_output(ch_compiled *c, const char *name, const ch_value *v)
{
    double sum = 0;

    for (int r = 0; r < ch_value_count(v); r++) {
        double    x = 0;
        ch_status rc =
            ch_tensor_count(ch_value_at(v, r)) == 1
                ? ch_tensor_item(ch_value_at(v, r), &x)
                : ch__fail(
                      CH_INVALID_ARGUMENT,
                      "output \"%s\" of a custom step has %lld elements, want 1, because it "
                      "becomes a log",
                      name, (long long)ch_tensor_count(ch_value_at(v, r)));

        if (rc != CH_OK)
            return rc;
        sum += x;
    }
    sum /= ch_value_count(v);
    return ch__logs_set(&c->output_sums, name,
                        sum +
                            (c->n_output_steps > 0 ? ch__logs_get(&c->output_sums, name) : 0));
}

ch_status ch__compiled_add_outputs(ch_compiled *c, const ch_tuple *out)
{
    ch_status rc = CH_OK;
    int       n = out != NULL ? ch_tuple_count(out) : 0;

    for (int i = 0; i < n && rc == CH_OK; i++)
        if (ch_tuple_name(out, i) != NULL)
            rc = add_output(c, ch_tuple_name(out, i), ch_tuple_at(out, i));
    c->n_output_steps += n > 0;
    return rc;
}
