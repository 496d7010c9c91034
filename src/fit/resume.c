/* fit/resume.c -- the state of a training: saved at a save point, loaded in another process.
 *
 * Reads and writes the ch_fitting of fit.c. A field belongs to the state if a function of fit.c
 * sets it in a step and uses it in a later one.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "fit/resume.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/thread.h"
#include "data/iterator.h"
#include "fit/callback.h"
#include "fit/fitting.h"
#include "train/model.h"

static ch_fitting *fitting_of(ch_training *t)
{
    assert(!t->is_evaluation);
    return (ch_fitting *)t;
}

/* ---- parts ---- */

static ch_status visit_metrics(const ch_compiled *c, ch_training_part_fn fn, void *arg)
{
    ch_status rc = CH_OK;

    for (int i = 0; i <= c->n_metrics && rc == CH_OK; i++) {
        ch_metric *m = i < c->n_metrics ? c->metric[i].metric : c->loss_mean;
        char       name[160];

        if (m == NULL)
            continue;
        snprintf(name, sizeof(name), "metric_%s", ch_metric_name(m));
        rc = fn(arg, &(ch_training_part){.name = name, .metric = m});
    }
    return rc;
}

ch_status ch__training_visit(ch_training *t, ch_training_part_fn fn, void *arg)
{
    const ch_fitting *f = fitting_of(t);
    ch_status         rc = fn(arg, &(ch_training_part){.name = "model", .model = t->model});

    if (rc == CH_OK && t->optimizer != NULL)
        rc = fn(arg, &(ch_training_part){.name = "optimizer", .optimizer = t->optimizer});
    if (rc == CH_OK)
        rc = visit_metrics(f->loop.c, fn, arg);
    if (rc == CH_OK)
        rc = fn(arg, &(ch_training_part){.name = "data", .iterator = f->train.it});
    if (rc == CH_OK && f->validates)
        rc = fn(arg,
                &(ch_training_part){.name = "validation_data", .iterator = f->validation.it});
    return rc;
}

/* ---- callbacks ---- */

/* Returns the number of callbacks of the program, and sets *out to the first of them. */
static int callbacks_of(const ch_loop *l, ch_callback *const **out)
{
    int first = l->line != NULL ? 1 : 0;

    *out = l->callback + first;
    return l->n_callbacks - first;
}

/* Saves the name of each callback as "callback/<i>", and its state as "state/<i>/...". */
static void save_callbacks(const ch_loop *l, ch_state *s)
{
    ch_callback *const *c;
    int                 n = callbacks_of(l, &c);
    char                name[32];

    ch__state_put_int(s, "callbacks", n);
    for (int i = 0; i < n && s->rc == CH_OK; i++) {
        ch_tuple *state = NULL;

        snprintf(name, sizeof(name), "callback/%d", i);
        ch__state_put_text(s, name, ch__callback_name(c[i]));
        if (s->rc == CH_OK)
            s->rc = ch__callback_save(c[i], &state);
        snprintf(name, sizeof(name), "state/%d", i);
        ch__state_put_tuple(s, name, state);
        ch_tuple_unref(state);
    }
}

/* Fails if callback number i was another callback when the training was saved. */
static ch_status check_name(const ch_tuple *state, int i, const ch_callback *c)
{
    char      leaf[32], name[128];
    ch_status rc;

    snprintf(leaf, sizeof(leaf), "callback/%d", i);
    rc = ch__state_get_text(state, leaf, name, sizeof(name));
    if (rc != CH_OK || strncmp(name, ch__callback_name(c), sizeof(name) - 1) == 0)
        return rc;
    return ch__fail(CH_FAILED_PRECONDITION,
                    "callback %d is %s, but the training was saved with %s there; pass the "
                    "callbacks in the same order, and new ones at the end",
                    i, ch__callback_name(c), name);
}

static ch_status load_callback(const ch_tuple *state, int i, const ch_callback *c)
{
    char      leaf[32];
    ch_tuple *own = NULL;
    ch_status rc;

    snprintf(leaf, sizeof(leaf), "state/%d", i);
    rc = ch__state_get_tuple(state, leaf, &own);
    if (rc == CH_OK && own != NULL)
        rc = ch__callback_load(c, own);
    ch_tuple_unref(own);
    return rc;
}

/* Loads the states by position. Callbacks that were added begin without a state, and states of
 * callbacks that were removed are left out. */
static ch_status load_callbacks(const ch_loop *l, const ch_tuple *state)
{
    ch_callback *const *c;
    int                 n = callbacks_of(l, &c), saved = 0, both;
    ch_status           rc = ch__state_get_int_in(state, "callbacks", 0, INT_MAX, &saved);

    both = saved < n ? saved : n;
    for (int i = 0; i < both && rc == CH_OK; i++)
        rc = check_name(state, i, c[i]);
    for (int i = 0; i < both && rc == CH_OK; i++)
        rc = load_callback(state, i, c[i]);
    if (rc == CH_OK && saved != n)
        ch__log(CH_LOG_WARNING, "resume",
                "the training had %d callback%s when it was saved, and goes on with %d; %s",
                saved, saved == 1 ? "" : "s", n,
                saved > n ? "the states of the others are not used"
                          : "the others begin without a state");
    return rc;
}

/* ---- the training ---- */

static void save_position(const ch_fitting *f, ch_state *s)
{
    const ch_training *t = &f->loop.t;

    ch__state_put_int(s, "epoch", t->epoch);
    ch__state_put_int(s, "phase", (int)t->phase);
    ch__state_put_int(s, "step", t->step);
    ch__state_put_int(s, "model_steps", ch__model_steps(t->model));
    ch__state_put_int(s, "examples", t->examples);
    ch__state_put_int(s, "epoch_step", t->epoch_step);
    ch__state_put_int(s, "epoch_steps", t->epoch_steps);
    ch__state_put_int(s, "epoch_examples", t->epoch_examples);
    ch__state_put_int(s, "validation_step", t->validation_step);
    ch__state_put_int(s, "validation_rows", t->validation_rows);
    ch__state_put_int(s, "test_runs", ch_function_runs(f->loop.c->test));
    ch__state_put_int(s, "ended", f->ended);
    ch__state_put_int(s, "train_was_read", f->train.was_read);
    ch__state_put_int(s, "validation_was_read", f->validation.was_read);
}

static ch_status load_int(const ch_tuple *state, const char *name, int64_t *out, ch_status rc)
{
    return rc == CH_OK ? ch__state_get_int(state, name, out) : rc;
}

static ch_status load_bool(const ch_tuple *state, const char *name, bool *out, ch_status rc)
{
    int x = 0;

    if (rc == CH_OK)
        rc = ch__state_get_int_in(state, name, 0, 1, &x);
    if (rc == CH_OK)
        *out = x != 0;
    return rc;
}

static ch_status load_position(ch_fitting *f, const ch_tuple *state)
{
    ch_training *t = &f->loop.t;
    int          phase = 0;
    int64_t      test_runs = 0, model_steps = 0;
    ch_status    rc = ch__state_get_int_in(state, "epoch", 0, INT_MAX - 1, &t->epoch);

    if (rc == CH_OK)
        rc = ch__state_get_int_in(state, "phase", CH_PHASE_BEGIN, CH_PHASE_ENDED, &phase);
    rc = load_int(state, "step", &t->step, rc);
    rc = load_int(state, "model_steps", &model_steps, rc);
    rc = load_int(state, "examples", &t->examples, rc);
    rc = load_int(state, "epoch_step", &t->epoch_step, rc);
    rc = load_int(state, "epoch_steps", &t->epoch_steps, rc);
    rc = load_int(state, "epoch_examples", &t->epoch_examples, rc);
    rc = load_int(state, "validation_step", &t->validation_step, rc);
    rc = load_int(state, "validation_rows", &t->validation_rows, rc);
    rc = load_int(state, "test_runs", &test_runs, rc);
    rc = load_bool(state, "ended", &f->ended, rc);
    rc = load_bool(state, "train_was_read", &f->train.was_read, rc);
    rc = load_bool(state, "validation_was_read", &f->validation.was_read, rc);
    if (rc == CH_OK)
        rc = ch_function_set_runs(f->loop.c->test, test_runs);
    if (rc != CH_OK)
        return rc;
    ch__model_set_steps(t->model, model_steps); /* the model's own number may be later */
    t->phase = (ch_phase)phase;
    f->loop.loaded_steps = t->step;
    f->loop.loaded_examples = t->examples;
    return CH_OK;
}

/* Saves the numbers of the epoch so far. The variables of the metrics are parts. */
static void save_numbers(const ch_fitting *f, ch_state *s)
{
    const ch_training *t = &f->loop.t;

    ch__state_put_number(s, "curve_total", f->total);
    ch__state_put_number(s, "curve_count", f->count);
    ch__state_put_logs(s, "logs", &t->logs);
    ch__history_save(f->history, s);
}

/* Saves the sums over the outputs of the steps that have ended. */
static void save_outputs(ch_fitting *f, ch_state *s)
{
    ch__inflight_collect(&f->loop.inflight);
    ch__state_put_logs(s, "output_sums", &f->loop.c->output_sums);
    ch__state_put_int(s, "output_steps", f->loop.c->n_output_steps);
}

static ch_status load_numbers(ch_fitting *f, const ch_tuple *state)
{
    ch_training *t = &f->loop.t;
    ch_status    rc = ch__state_get_number(state, "curve_total", &f->total);

    if (rc == CH_OK)
        rc = ch__state_get_number(state, "curve_count", &f->count);
    if (rc == CH_OK)
        rc = ch__state_get_logs(state, "logs", &t->logs);
    if (rc == CH_OK)
        rc = ch__state_get_logs(state, "output_sums", &f->loop.c->output_sums);
    rc = load_int(state, "output_steps", &f->loop.c->n_output_steps, rc);
    t->is_stale = t->phase == CH_PHASE_STEPS && t->epoch_step > 0;
    t->epoch_began_ns = ch__now_ns();
    return rc == CH_OK ? ch__history_load(f->history, state) : rc;
}

/* Saves all but the outputs. A pause is not saved, because the next process goes on. */
static void save_all(const ch_fitting *f, ch_state *s)
{
    const ch_training *t = &f->loop.t;

    save_position(f, s);
    save_numbers(f, s);
    ch__state_put_int(s, "stops", t->stops && !t->pauses);
    ch__state_put_text(s, "why", t->stops && !t->pauses ? t->why : "");
    save_callbacks(&f->loop, s);
}

ch_status ch__training_save(ch_training *t, ch_tuple **out)
{
    ch_fitting *f = fitting_of(t);
    ch_state    s = {0};

    if (f->captured == NULL)
        save_all(f, &s);
    for (int i = 0; i < ch_tuple_count(f->captured); i++)
        ch__state_put(&s, ch_tuple_name(f->captured, i),
                      ch_value_at(ch_tuple_at(f->captured, i), 0));
    save_outputs(f, &s);
    return ch__state_end(&s, out);
}

bool ch__training_is_in_flight(const ch_training *t)
{
    return t->drain != NULL && ((const ch_loop *)t)->inflight.is_open;
}

ch_status ch__training_capture(ch_training *t)
{
    ch_fitting *f = fitting_of(t);
    ch_state    s = {0};
    ch_status   rc;

    ch__training_release(t);
    save_all(f, &s);
    rc = ch__state_end(&s, &f->captured);
    if (rc == CH_OK)
        rc = ch__iterator_capture(f->train.it);
    if (rc != CH_OK)
        ch__training_release(t);
    return rc;
}

void ch__training_release(ch_training *t)
{
    ch_fitting *f = fitting_of(t);

    ch_tuple_unref(f->captured);
    f->captured = NULL;
    ch__iterator_release(f->train.it);
}

ch_status ch__training_load(ch_training *t, ch_tuple *state)
{
    ch_fitting *f = fitting_of(t);
    bool        stops = false;
    char        why[sizeof(t->why)];
    ch_status   rc = load_position(f, state);

    if (rc == CH_OK)
        rc = load_numbers(f, state);
    rc = load_bool(state, "stops", &stops, rc);
    if (rc == CH_OK)
        rc = ch__state_get_text(state, "why", why, sizeof(why));
    if (rc == CH_OK)
        rc = load_callbacks(&f->loop, state);
    if (rc == CH_OK && stops)
        ch_training_stop(t, why);
    return rc;
}
