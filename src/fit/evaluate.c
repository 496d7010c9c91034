/* fit/evaluate.c -- ch_evaluate and ch_predict.
 *
 * Both run a pass over the data: `pass` reads the batches, calls a batch_fn for each and sends
 * the validation events. ch_fit validates with ch__evaluate_pass. With parameter servers a pass
 * reads a snapshot of the variables, and its steps are in flight (fit/inflight.h). ch_evaluate
 * and ch_predict may be called in a callback of a training. Then they first drain the steps of
 * the training, and ch_evaluate saves and restores its metrics.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "fit/evaluate.h"

#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/trace.h"
#include "fit/history.h"
#include "tensor/ragged.h"

/* ---- a pass ---- */

typedef ch_status (*batch_fn)(ch_loop *l, ch_tuple *batch, void *arg);

/* Begins a pass, unless the training was loaded in the middle of it. */
static ch_status begin_pass(ch_loop *l, ch_source *s)
{
    ch_training *t = &l->t;
    ch_status    rc;

    if (t->phase == CH_PHASE_VALIDATING)
        return CH_OK;
    t->validation_step = t->validation_rows = 0;
    rc = ch__source_restart(s);
    if (rc == CH_OK)
        rc = ch__loop_notify(l, CH_ON_VALIDATION_BEGIN);
    if (!t->is_evaluation)
        t->phase = CH_PHASE_VALIDATING;
    return rc;
}

/* Runs `fn` on at most `steps` batches (0: all) and sends the validation events. Ends early if
 * ch_training_stop is called during the pass. Sets *is_cut if the pass was not complete. */
static ch_status pass(ch_loop *l, ch_source *s, int64_t steps, batch_fn fn, void *arg,
                      bool *is_cut)
{
    ch_training *t = &l->t;
    int          stop_requests = t->n_stop_requests;
    ch_status    rc;

    t->is_validating = true;
    t->validation_steps = steps > 0 ? steps : s->steps;
    rc = begin_pass(l, s);
    while (rc == CH_OK) {
        ch_tuple *batch = NULL;

        rc = ch__loop_save_point(l, CH_SAVE_POINT_STEP);
        if (rc != CH_OK || t->n_stop_requests != stop_requests ||
            (steps > 0 && t->validation_step >= steps))
            break;
        rc = ch__source_next(s, &batch);
        ch__loop_charge(l, CH_TIME_INPUT);
        if (rc != CH_OK || batch == NULL)
            break;
        rc = fn(l, batch, arg);
        t->validation_rows += ch__tuple_rows(batch);
        if (rc == CH_OK) {
            t->validation_step++;
            rc = ch__loop_notify(l, CH_ON_VALIDATION_STEP);
        }
        ch_tuple_unref(batch);
    }
    t->is_validating = false;
    *is_cut = t->n_stop_requests != stop_requests &&
              !(t->validation_steps > 0 && t->validation_step >= t->validation_steps);
    return rc;
}

/* Fails if the pass found no data: the mean loss would be 0, which looks like the best possible
 * loss. */
static ch_status check_passed(const ch_loop *l, const char *call)
{
    if (l->t.validation_step == 0)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: the data has no elements", call);
    if (l->t.validation_rows == 0 && ch__loop_has_all_replicas(l))
        return ch__fail(CH_INVALID_ARGUMENT, "%s: the data has no rows", call);
    return CH_OK;
}

/* Ends a pass that reads a snapshot: drains the steps, then releases the snapshot. Returns the
 * first error of: `rc`, the drain. */
static ch_status end_snapshot(ch_loop *l, const char *name, ch_status rc)
{
    ch_fault  first;
    ch_status last;

    ch__fault_clear(&first);
    if (rc != CH_OK)
        ch__fault_record(&first, rc, -1, NULL);
    last = ch__loop_drain(l);
    if (last != CH_OK)
        last = ch__fail_at(last, "%s, step %lld", name, (long long)l->inflight.failed);
    if (last != CH_OK)
        ch__fault_record(&first, last, -1, NULL);
    ch__loop_release_snapshot(l);
    return ch__fault_raise(&first);
}

static ch_status test_batch(ch_loop *l, ch_tuple *batch, void *arg)
{
    int64_t   step = l->t.validation_step + 1;
    ch_status rc = ch__loop_step(l, l->c->test, batch, l->c->test_step != NULL, &step);

    (void)arg;
    if (rc == CH_OK && l->t.is_evaluation) {
        l->t.examples += ch__tuple_rows(batch);
        l->t.is_stale = true;
    }
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "evaluation, step %lld", (long long)step);
}

ch_status ch__evaluate_pass(ch_loop *l, const char *call, ch_source *s, int64_t steps,
                            const char *prefix)
{
    bool      is_cut = false;
    ch_status rc = l->t.phase == CH_PHASE_VALIDATING ? CH_OK : ch__compiled_reset(l->c);

    if (rc == CH_OK)
        rc = ch__loop_snapshot(l);
    if (rc == CH_OK)
        rc = end_snapshot(l, "evaluation", pass(l, s, steps, test_batch, NULL, &is_cut));
    if (rc == CH_OK && !is_cut)
        rc = check_passed(l, call);
    l->t.is_stale = l->t.is_peeked = false;
    if (rc == CH_OK && (!is_cut || (l->t.is_evaluation && l->t.validation_rows > 0)))
        rc = ch__compiled_read(l->c, l->c->test_step != NULL, prefix, &l->t.logs);
    return rc == CH_OK ? ch__loop_notify(l, CH_ON_VALIDATION_END) : rc;
}

/* ---- evaluate ---- */

static const ch_evaluate_options usual;

static ch_status check(const char *call, const ch_evaluate_options *o)
{
    if (o->batch >= 0 && o->steps >= 0 && o->n_callbacks >= 0 &&
        (o->n_callbacks == 0 || o->callback != NULL))
        return CH_OK;
    return ch__fail(
        CH_INVALID_ARGUMENT,
        "%s: want 0 or more for batch, steps and n_callbacks, and callback not NULL", call);
}

/* Prepares a loop up to its first event: options, callbacks, data. */
static ch_status open_loop(const char *call, ch_compiled *c, const ch_data *d,
                           const ch_evaluate_options *o, ch_loop *l, ch_source *s)
{
    int64_t   batch = o->batch > 0 ? o->batch : CH_FIT_BATCH;
    ch_status rc = check(call, o);

    l->t.is_evaluation = true;
    l->t.epochs = 1;
    if (rc == CH_OK)
        rc = ch__loop_callbacks(l, o->n_callbacks, o->callback, o->progress);
    if (rc == CH_OK)
        rc = ch__source_open(call, c, d, &(ch_array_options){batch, false, 0, 0, 1, true}, s);
    if (rc == CH_OK)
        rc = ch__source_check_end(call, s, o->steps);
    l->t.validation_steps = o->steps > 0 ? o->steps : s->steps;
    l->t.epoch_steps = l->t.validation_steps > 0 ? l->t.validation_steps : CH_UNKNOWN;
    return rc;
}

static ch_status check_numbers(const ch_compiled *c)
{
    if (ch__compiled_has_loss(c) || c->n_metrics > 0 || c->test_step != NULL)
        return CH_OK;
    return ch__fail(CH_FAILED_PRECONDITION,
                    "evaluate: the model was compiled without a loss and metrics; pass one to "
                    "ch_compile");
}

static ch_status evaluate(ch_loop *l, ch_source *s, const ch_evaluate_options *opt,
                          ch_history *h)
{
    ch_status rc = ch__loop_notify(l, CH_ON_BEGIN);

    if (rc == CH_OK)
        rc = ch__evaluate_pass(l, "evaluate", s, opt->steps, "");
    if (rc == CH_OK)
        rc = ch__history_add(h, &l->t.logs);
    rc = ch__loop_end(l, rc);
    snprintf(h->why, sizeof(h->why), "%s", l->t.stops ? l->t.why : "");
    return rc;
}

/* Saves the metrics if this is called in a callback of another loop that uses them, and
 * restores them at the end. */
ch_status ch_evaluate(ch_model *m, ch_data data, const ch_evaluate_options *opt,
                      ch_history **out)
{
    ch_loop          l = {.c = NULL};
    ch_source        s = {.it = NULL};
    ch_saved_metrics saved = {0};
    ch_history      *h = NULL;
    ch_compiled     *c = NULL;
    ch_status        rc = ch__compiled_of("evaluate", m, &c), back;

    if (out != NULL)
        *out = NULL;
    opt = opt != NULL ? opt : &usual;
    if (rc == CH_OK)
        rc = check_numbers(c);
    if (rc == CH_OK)
        rc = ch__history_new(&h);
    if (rc != CH_OK)
        return rc;
    ch__loop_open(&l, c, __builtin_return_address(0));
    rc = ch__loop_drain_outer(&l);
    if (ch__loop_use_metrics(&l) > 0 && rc == CH_OK)
        rc = ch__compiled_save_metrics(c, &saved);
    if (rc == CH_OK)
        rc = open_loop("evaluate", c, &data, opt, &l, &s);
    if (rc == CH_OK)
        rc = evaluate(&l, &s, opt, h);
    back = ch__compiled_restore_metrics(c, &saved);
    rc = rc != CH_OK ? rc : back;
    ch__source_close(&s);
    ch__loop_table(&l, &h->time);
    ch__loop_close(&l);
    if (rc == CH_OK && out != NULL)
        *out = h;
    else
        ch_history_unref(h);
    return rc;
}

/* ---- predict ---- */

/* The outputs of the model, in the order of the batches and, within a batch, of the
 * replicas. */
typedef struct predictions {
    int         n, capacity;
    ch_tensor **at;
    int64_t     rows;
} predictions;

/* Adds the output of a replica for a batch. */
static ch_status add_result(predictions *g, ch_tensor *t)
{
    const ch_tensor *first = g->n > 0 ? g->at[0] : t;
    ch_shape         a = ch_tensor_shape(first), b = ch_tensor_shape(t);

    if (b.rank < 1)
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "predict: the output of the model is a scalar, want a row for each example");
    a.dim[0] = b.dim[0];
    if (!ch_shape_equal(a, b))
        return ch__fail(
            CH_INVALID_ARGUMENT,
            "predict: the rows of this batch have another shape than those of the first batch");
    if (!ch__grow((void **)&g->at, &g->capacity, g->n + 1, sizeof(ch_tensor *)))
        return ch__fail_memory("predictions");
    g->rows += b.dim[0];
    g->at[g->n++] = ch_tensor_ref(t);
    return CH_OK;
}

static ch_status add_results(void *arg, const ch_tuple *out)
{
    ch_status rc = CH_OK;

    for (int r = 0; rc == CH_OK && r < ch_value_count(ch_tuple_at(out, 0)); r++)
        rc = add_result(arg, ch_value_at(ch_tuple_at(out, 0), r));
    return rc;
}

static ch_status predict_batch(ch_loop *l, ch_tuple *batch, void *arg)
{
    int64_t   step = l->t.validation_step + 1;
    ch_status rc =
        ch__loop_run(l, l->c->predict, batch, (ch_result_handler){add_results, arg}, &step);

    l->t.examples += ch__tuple_rows(batch);
    return rc == CH_OK ? CH_OK : ch__fail_at(rc, "predict, step %lld", (long long)step);
}

/* Concatenates all rows into one tensor. */
static ch_status concatenate(const predictions *g, ch_tensor **out)
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

/* Runs the model on a batch without rows, so that the result for data without rows has the
 * right shape and dtype. */
static ch_status predict_nothing(ch_loop *l, ch_source *s, predictions *g)
{
    ch_tuple *batch = NULL;
    ch_status rc = ch__source_no_rows(s, &batch);

    if (rc == CH_OK && batch != NULL)
        rc = predict_batch(l, batch, g);
    ch_tuple_unref(batch);
    return rc;
}

static ch_status predict_all(ch_loop *l, ch_source *s, int64_t steps, predictions *g)
{
    bool      is_cut;
    ch_status rc = pass(l, s, steps, predict_batch, g, &is_cut);

    if (rc == CH_OK && l->t.validation_step == 0)
        rc = predict_nothing(l, s, g);
    return rc;
}

static ch_status predict(ch_loop *l, ch_source *s, const ch_evaluate_options *opt,
                         predictions *g)
{
    ch_status rc = ch__loop_notify(l, CH_ON_BEGIN);

    if (rc == CH_OK)
        rc = ch__loop_snapshot(l);
    if (rc == CH_OK)
        rc = end_snapshot(l, "predict", predict_all(l, s, opt->steps, g));
    if (rc == CH_OK)
        rc = ch__loop_notify(l, CH_ON_VALIDATION_END);
    return ch__loop_end(l, rc);
}

ch_status ch_predict(ch_model *m, ch_data data, const ch_evaluate_options *opt, ch_tensor **out)
{
    ch_loop      l = {.c = NULL};
    ch_source    s = {.it = NULL};
    predictions  g = {0};
    ch_compiled *c = NULL;
    ch_status    rc = ch__check_not_null("predict", "out", out, NULL, NULL);

    opt = opt != NULL ? opt : &usual;
    if (rc == CH_OK)
        rc = ch__compiled_of("predict", m, &c);
    if (rc != CH_OK)
        return rc;
    ch__loop_open(&l, c, __builtin_return_address(0));
    l.is_untimed = !ch__trace_is_on(); /* the times of a prediction are only used in a trace */
    rc = ch__loop_drain_outer(&l);
    if (rc == CH_OK)
        rc = open_loop("predict", c, &data, opt, &l, &s);
    if (rc == CH_OK)
        rc = predict(&l, &s, opt, &g);
    if (rc == CH_OK)
        rc = concatenate(&g, out);
    for (int i = 0; i < g.n; i++)
        ch_tensor_unref(g.at[i]);
    ch__free(g.at);
    ch__source_close(&s);
    ch__loop_close(&l);
    return rc;
}
