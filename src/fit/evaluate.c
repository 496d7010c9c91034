/* fit/evaluate.c -- ch_evaluate and ch_predict.   SPDX-License-Identifier: Apache-2.0 */
#include "fit/evaluate.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "fit/history.h"
#include "tensor/tensor.h"

/* ---- a pass ---- */

typedef ch_status (*batch_fn)(ch_loop *l, ch_tuple *batch, void *arg);

static ch_status pass(ch_loop *l, ch_source *s, int64_t steps, batch_fn fn, void *arg)
{
    ch_training *t = &l->t;
    ch_status    rc = ch__source_restart(s);

    t->is_validating = true;
    t->validation_step = 0;
    t->validation_steps = steps > 0 ? steps : s->steps;
    if (rc == CH_OK)
        rc = ch__loop_tell(l, CH_ON_VALIDATION_BEGIN);
    while (rc == CH_OK && (steps == 0 || t->validation_step < steps)) {
        ch_tuple *batch = NULL;

        rc = ch__source_next(s, &batch);
        ch__loop_count(l, CH_TIME_INPUT);
        if (rc != CH_OK || batch == NULL)
            break;
        rc = fn(l, batch, arg);
        if (rc == CH_OK) {
            t->validation_step++;
            rc = ch__loop_tell(l, CH_ON_VALIDATION_STEP);
        }
        ch_tuple_unref(batch);
    }
    t->is_validating = false;
    return rc;
}

static ch_status test_batch(ch_loop *l, ch_tuple *batch, void *arg)
{
    ch_status rc = ch__loop_step(l, l->c->test, batch, l->c->test_step != NULL);

    (void)arg;
    if (rc == CH_OK && l->t.is_evaluation) {
        l->t.examples += ch__batch_rows(batch);
        l->t.is_stale = true;
    }
    return rc == CH_OK
               ? CH_OK
               : ch__fail_at(rc, "evaluation, step %lld", (long long)l->t.validation_step);
}

ch_status ch__evaluate_pass(ch_loop *l, ch_source *s, int64_t steps, const char *prefix)
{
    ch_status rc = ch__compiled_reset(l->c);

    if (rc == CH_OK)
        rc = pass(l, s, steps, test_batch, NULL);
    l->t.is_stale = false;
    if (rc == CH_OK)
        rc = ch__compiled_read(l->c, prefix, &l->t.logs);
    return rc == CH_OK ? ch__loop_tell(l, CH_ON_VALIDATION_END) : rc;
}

/* ---- by itself ---- */

static const ch_evaluate_options usual;

static ch_status check(const char *call, const ch_evaluate_options *o)
{
    if (o->batch >= 0 && o->steps >= 0 && o->n_callbacks >= 0 &&
        (o->n_callbacks == 0 || o->callback != NULL))
        return CH_OK;
    return ch__fail(CH_INVALID_ARGUMENT, "%s: want 0 or more for batch, steps and callbacks",
                    call);
}

static ch_status open_loop(const char *call, ch_model *m, const ch_data *d,
                           const ch_evaluate_options *o, ch_loop *l, ch_source *s)
{
    ch_compiled *c = NULL;
    ch_status    rc = ch__compiled_of(call, m, &c);

    if (rc == CH_OK)
        rc = check(call, o);
    if (rc == CH_OK)
        rc = ch__loop_open(l, c, o->n_callbacks, o->callback, o->progress);
    l->t.is_evaluation = true;
    l->t.epochs = 1;
    if (rc == CH_OK)
        rc = ch__source_open(
            call, c, d,
            &(ch_arrays_how){o->batch > 0 ? o->batch : CH_FIT_BATCH, false, 0, 0, 1}, s);
    return rc == CH_OK ? ch__loop_tell(l, CH_ON_BEGIN) : rc;
}

ch_status ch_evaluate(ch_model *m, ch_data data, const ch_evaluate_options *opt,
                      ch_history **out)
{
    ch_loop     l = {.c = NULL};
    ch_source   s = {.it = NULL};
    ch_history *h = NULL;
    ch_status   rc = ch__history_new(&h);

    if (out != NULL)
        *out = NULL;
    opt = opt != NULL ? opt : &usual;
    if (rc == CH_OK)
        rc = open_loop("evaluate", m, &data, opt, &l, &s);
    if (rc == CH_OK && l.c->loss == NULL && l.c->n_metrics == 0 && l.c->test_step == NULL)
        rc = ch__fail(CH_FAILED_PRECONDITION,
                      "evaluate: the model was compiled without a loss and metrics");
    if (rc == CH_OK)
        rc = ch__evaluate_pass(&l, &s, opt->steps, "");
    if (rc == CH_OK)
        rc = ch__history_add(h, &l.t.logs);
    if (rc == CH_OK)
        rc = ch__loop_tell(&l, CH_ON_END);
    if (rc == CH_OK)
        ch__loop_table(&l, &h->time);
    ch__loop_close(&l);
    ch__source_close(&s);
    if (rc == CH_OK && out != NULL)
        *out = h;
    else
        ch_history_unref(h);
    return rc;
}

/* ---- predict ---- */

/* What came, batch by batch, replica by replica. */
typedef struct guesses {
    int         n, capacity;
    ch_tensor **at;
    int64_t     rows;
} guesses;

static ch_status keep(guesses *g, ch_tensor *t)
{
    const ch_tensor *first = g->n > 0 ? g->at[0] : t;
    ch_shape         a = ch_tensor_shape(first), b = ch_tensor_shape(t);

    if (b.rank < 1)
        return ch__fail(CH_INVALID_ARGUMENT, "predict: the model gives a scalar, not rows");
    a.dim[0] = b.dim[0];
    if (!ch_shape_equal(a, b))
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "predict: the model gave rows of another shape for this batch than for the first");
    if (!ch__grow((void **)&g->at, &g->capacity, g->n + 1, sizeof(ch_tensor *)))
        return ch__fail_memory("predictions");
    g->rows += b.dim[0];
    g->at[g->n++] = ch_tensor_ref(t);
    return CH_OK;
}

static ch_status predict_batch(ch_loop *l, ch_tuple *batch, void *arg)
{
    ch_tuple *out = NULL;
    ch_status rc = ch__loop_run(l, l->c->predict, batch, &out);

    l->t.examples += ch__batch_rows(batch);
    for (int r = 0; rc == CH_OK && r < ch_value_count(ch_tuple_at(out, 0)); r++)
        rc = keep(arg, ch_value_at(ch_tuple_at(out, 0), r));
    ch_tuple_unref(out);
    return rc == CH_OK ? CH_OK
                       : ch__fail_at(rc, "predict, step %lld", (long long)l->t.validation_step);
}

/* All rows in one tensor. */
static ch_status join(const guesses *g, ch_tensor **out)
{
    ch_shape  shape = g->n > 0 ? ch_tensor_shape(g->at[0]) : ch_shape_of(0);
    ch_status rc;
    char     *to;

    shape.dim[0] = g->rows;
    rc = ch_tensor_new(g->n > 0 ? ch_tensor_dtype(g->at[0]) : CH_F32, shape, out);
    if (rc != CH_OK)
        return rc;
    to = ch_tensor_data_mut(*out);
    for (int i = 0; i < g->n; i++) {
        size_t bytes = ch_tensor_bytes(g->at[i]);

        if (bytes > 0)
            memcpy(to, ch_tensor_data(g->at[i]), bytes);
        to += bytes;
    }
    return CH_OK;
}

ch_status ch_predict(ch_model *m, ch_data data, const ch_evaluate_options *opt, ch_tensor **out)
{
    ch_loop   l = {.c = NULL};
    ch_source s = {.it = NULL};
    guesses   g = {0};
    ch_status rc = ch__want_given("predict", "out", out, NULL, NULL);

    opt = opt != NULL ? opt : &usual;
    if (rc == CH_OK)
        rc = open_loop("predict", m, &data, opt, &l, &s);
    if (rc == CH_OK)
        rc = pass(&l, &s, opt->steps, predict_batch, &g);
    if (rc == CH_OK)
        rc = ch__loop_tell(&l, CH_ON_VALIDATION_END);
    if (rc == CH_OK)
        rc = ch__loop_tell(&l, CH_ON_END);
    if (rc == CH_OK)
        rc = join(&g, out);
    for (int i = 0; i < g.n; i++)
        ch_tensor_unref(g.at[i]);
    ch__free(g.at);
    ch__loop_close(&l);
    ch__source_close(&s);
    return rc;
}
