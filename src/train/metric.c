/* train/metric.c -- the metric object: variables, updates, results.
 *
 * Implements ch_metric for all kinds (train/metric.h). In a step ch_metric_update records the
 * contribution of the kind, sums it over the replicas, and adds it to the state. Outside a step
 * ch_metric_result reads the state and calls the kind.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "train/metric.h"
#include "cohort/replica.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cohort/ops.h"
#include "collective/collective.h"
#include "train/loss.h"
#include "train/parts.h"

/* ---- creation ---- */

/* Returns the name of variable i (ch_metric.var). */
static const char *var_name(int i)
{
    return i == 0 ? "state" : "filled";
}

/* Creates a variable "name/suffix" of zeros. */
static ch_status new_state(const ch_metric *m, ch_strategy *st, const char *suffix,
                           ch_dtype dtype, ch_shape shape, ch_var **out)
{
    ch_tensor *zeros = NULL;
    size_t     size = strlen(m->name) + strlen(suffix) + 2;
    char      *name = ch__malloc(size);
    ch_status  rc = name != NULL ? ch_tensor_new(dtype, shape, &zeros) : CH_OK;

    if (name == NULL)
        return ch__fail_memory("a metric");
    snprintf(name, size, "%s/%s", m->name, suffix);
    if (rc == CH_OK)
        rc = ch_var_new(st, &(ch_var_spec){.name = name, .initial = zeros, .trainable = CH_OFF},
                        out);
    ch_tensor_unref(zeros);
    ch__free(name);
    return rc;
}

ch_metric_spec ch_metric_named(ch_metric_spec spec, const char *name)
{
    spec.name = name;
    return spec;
}

ch_status ch_metric_new(ch_strategy *st, ch_metric_spec spec, ch_metric **out)
{
    ch_metric_parts parts = {.n = 0};
    ch_metric      *m;
    ch_status       rc = ch__check_not_null("metric new", "out", out, NULL, NULL);

    if (rc == CH_OK && spec.kind == NULL && spec.make != NULL)
        return spec.make(st, spec.name, spec.number, out);
    if (rc == CH_OK && spec.kind == NULL)
        rc =
            ch__fail(CH_INVALID_ARGUMENT,
                     "metric new: the spec is all zeros; want a spec such as ch_metric_auc(0)");
    if (rc == CH_OK)
        rc = spec.kind->prepare(spec.number, &parts);
    if (rc != CH_OK)
        return rc;
    if (spec.name != NULL && spec.name[0] == '\0')
        return ch__fail(CH_INVALID_ARGUMENT, "metric %s: the name is \"\", want a name or NULL",
                        spec.kind->name);
    if (isnan(parts.threshold))
        return ch__fail(CH_INVALID_ARGUMENT, "metric %s: the threshold is NaN, want a number",
                        spec.kind->name);
    m = ch__calloc(1, sizeof(*m));
    if (m == NULL)
        return ch__fail_memory("a metric");
    atomic_init(&m->refs, 1);
    m->kind = spec.kind;
    m->threshold = parts.threshold;
    m->n = parts.n;
    m->n_vars = spec.kind->is_kept ? 2 : 1;
    m->name = ch__strdup(spec.name != NULL ? spec.name : spec.kind->name);
    rc = m->name != NULL ? new_state(m, st, var_name(0), CH_F64, parts.state, &m->var[0])
                         : ch__fail_memory("a metric");
    if (rc == CH_OK && m->n_vars == 2)
        rc = new_state(m, st, var_name(1), CH_I64, (ch_shape){0}, &m->var[1]);
    if (rc != CH_OK) {
        ch_metric_unref(m);
        return rc;
    }
    *out = m;
    return CH_OK;
}

ch_metric *ch_metric_ref(ch_metric *m)
{
    if (m != NULL)
        atomic_fetch_add_explicit(&m->refs, 1, memory_order_relaxed);
    return m;
}

void ch_metric_unref(ch_metric *m)
{
    if (m == NULL || atomic_fetch_sub_explicit(&m->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (int i = 0; i < m->n_vars; i++)
        ch_var_unref(m->var[i]);
    ch__free(m->name);
    ch__free(m);
}

const char *ch_metric_name(const ch_metric *m)
{
    return m != NULL ? m->name : NULL;
}

int ch_metric_vars(ch_metric *m, ch_var *const **out)
{
    if (out != NULL)
        *out = m != NULL ? m->var : NULL;
    return m != NULL ? m->n_vars : 0;
}

void ch__metric_visit(const ch_metric *m, ch_part_visit visit, void *arg)
{
    for (int i = 0; i < m->n_vars; i++)
        if (!visit(arg, NULL, var_name(i), m->var[i]))
            return;
}

/* ---- in a step ---- */

ch_node *ch__metric_weights(const ch_metric *m, ch_node *weights, ch_node *each)
{
    ch_node *ones = ch_ones_like(ch_cast(each, CH_F64));

    return weights == NULL ? ones : ch_mul(ones, ch__weights_for(m->name, weights, ones));
}

bool ch__metric_has_labels(const ch_metric *m, ch_node *truth, ch_node *guess)
{
    ch_dims rows;

    if (truth == NULL || guess == NULL)
        return ch__same_shape(m->name, truth, guess);
    rows = guess->dims;
    rows.rank--;
    if (guess->dims.rank > 0 && ch__dims_same(&rows, &truth->dims))
        return true;
    ch_step_fail(ch_node_step(guess),
                 "%s: truth with %d axes for guesses with %d; want labels (...) and (..., "
                 "classes)",
                 m->name, truth->dims.rank, guess->dims.rank);
    return false;
}

/* Appends the rows of all replicas to the filled rows of the state. The positions follow from
 * the count after it was increased, so steps that run at the same time get different
 * positions. */
static void append_rows(ch_metric *m, ch_step *s, ch_node *rows)
{
    ch_node *filled, *all = NULL, *n, *ids;
    char     message[512];

    snprintf(message, sizeof(message),
             "metric %s: there is room for %lld guesses, but there are more; create it with a "
             "larger capacity, or reset it earlier",
             m->name, (long long)m->n);
    if (!ch__all_gather(1, &rows, 0, &all))
        return;
    n = ch_cast(ch_rows(all), CH_I64);
    filled = ch_var_assign_add(s, m->var[1], n);
    ids = ch_add(ch_range_like(all, 0, CH_I64), ch_sub(filled, n));
    ch_check(ch_less_equal(filled, ch_number(s, (double)m->n)), message);
    ch_var_scatter_update(s, m->var[0], ids, all);
}

void ch_metric_update(ch_metric *m, ch_step *s, ch_node *truth, ch_node *guess,
                      ch_node *weights)
{
    const void *before;
    ch_node    *n;

    if (s == NULL || s->rc != CH_OK)
        return;
    before = ch__step_begin(s);
    if (m == NULL || guess == NULL) {
        ch_step_fail(s, "metric %s: %s is NULL", m != NULL ? m->name : "to update",
                     m != NULL ? "the guess" : "it");
    } else {
        ch_step_enter(s, m->name);
        n = m->kind->add(m, s, truth, guess, weights);
        if (n != NULL && m->kind->is_kept)
            append_rows(m, s, n);
        else if (n != NULL)
            ch_var_assign_add(s, m->var[0], ch_all_reduce(CH_SUM, n));
        ch_step_leave(s);
    }
    ch__step_end(s, before);
}

/* ---- outside a step ---- */

ch_status ch_metric_tensor(ch_metric *m, ch_tensor **out)
{
    ch_tensor *all = NULL, *filled = NULL;
    double     n = 0;
    ch_status  rc = ch__check_not_null("metric tensor", "the metric", m, "out", out);

    if (rc == CH_OK)
        rc = ch_var_get(m->var[0], m->kind->is_kept ? &all : out);
    if (rc != CH_OK || !m->kind->is_kept)
        return rc;
    rc = ch_var_get(m->var[1], &filled);
    if (rc == CH_OK)
        rc = ch_tensor_item(filled, &n);
    if (rc == CH_OK)
        rc = ch_tensor_rows(all, 0, (int64_t)n, out);
    ch_tensor_unref(filled);
    ch_tensor_unref(all);
    return rc;
}

ch_status ch_metric_result(ch_metric *m, double *out)
{
    ch_tensor *state = NULL;
    ch_status  rc = ch__check_not_null("metric result", "the metric", m, "out", out);

    if (rc == CH_OK)
        rc = ch_metric_tensor(m, &state);
    if (rc == CH_OK)
        rc = m->kind->result(m, ch_tensor_shape(state).dim[0], ch_tensor_data(state), out);
    ch_tensor_unref(state);
    return rc;
}

ch_status ch_metric_reset(ch_metric *m)
{
    ch_status rc = ch__check_not_null("metric reset", "the metric", m, NULL, NULL);

    for (int i = 0; rc == CH_OK && i < m->n_vars; i++) {
        ch_tensor *zeros = NULL;

        rc = ch_tensor_new(ch_var_dtype(m->var[i]), ch_var_shape(m->var[i]), &zeros);
        if (rc == CH_OK)
            rc = ch_var_set(m->var[i], zeros);
        ch_tensor_unref(zeros);
    }
    return rc;
}
