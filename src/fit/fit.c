/* fit/fit.c -- ch_fit: the training loop.
 *
 * A ch_fitting (fit/fitting.h) is the state of a call of ch_fit. It extends ch_loop
 * (fit/loop.h), which runs the steps, sends the events and charges the time. ch__fit is also
 * called by train_evaluate.c.
 *
 * The training may be loaded at a save point (fit/resume.h), and then begins in the middle of
 * an epoch. So each part of an epoch looks at the phase (ch_phase) first, and all that the next
 * part needs is in the ch_fitting.
 *
 * Each interval of time is charged to exactly one row of the time account, so the rows of the
 * table add up to the total. A call of ch__loop_charge ends an interval.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/terminal.h"
#include "base/trace.h"
#include "fit/evaluate.h"
#include "fit/fitting.h"
#include "fit/interrupt.h"
#include "strategy/cut.h"
#include "strategy/strategy.h"
#include "tensor/ragged.h"
#include "train/model.h"

enum { POINTS = 32 }; /* points of the curve of the loss in an epoch */

/* ---- options ---- */

static ch_status check_options(const ch_compiled *c, const ch_data *d, const ch_fit_options *o)
{
    const char *options = NULL;

    if (c->train_step == NULL && (c->optimizer == NULL || !ch__compiled_has_loss(c)))
        return ch__fail(CH_FAILED_PRECONDITION,
                        "fit: the model was compiled without %s; pass it to ch_compile",
                        c->optimizer == NULL ? "an optimizer" : "a loss");
    if (o->epochs < 0 || o->initial_epoch < 0)
        options = "epochs and initial_epoch";
    else if (o->steps_per_epoch < 0 || o->validation_steps < 0 || o->validation_every < 0)
        options = "steps_per_epoch, validation_steps and validation_every";
    else if (o->batch < 0)
        options = "batch";
    else if (o->n_callbacks < 0 || (o->n_callbacks > 0 && o->callback == NULL))
        options = "n_callbacks, and callback not NULL";
    if (options != NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "fit: want 0 or more for %s", options);
    if (!(o->validation_split >= 0 && o->validation_split < 1))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "fit: validation_split is %g, want at least 0 and less than 1",
                        o->validation_split);
    if (o->validation_split > 0 && (d->array == NULL || ch__data_is_given(&o->validation)))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "fit: validation_split needs arrays and no validation "
                        "data; split a dataset with ch_dataset_take and "
                        "ch_dataset_skip");
    return CH_OK;
}

static ch_status open_data(ch_fitting *f, const ch_data *d)
{
    const ch_fit_options *o = f->opt;
    const ch_compiled    *c = f->loop.c;
    double                split = 1 - o->validation_split;
    int64_t               batch = o->batch > 0 ? o->batch : CH_FIT_BATCH;
    ch_array_options      how = {batch, o->shuffle != CH_OFF, o->seed, 0, split, false};
    ch_status             rc = ch__source_open("fit", c, d, &how, &f->train);

    if (rc == CH_OK)
        rc = ch__source_check_end("fit", &f->train, o->steps_per_epoch);
    f->validates = o->validation_split > 0 || ch__data_is_given(&o->validation);
    if (rc != CH_OK || !f->validates)
        return rc;
    how = (ch_array_options){batch, false, 0, o->validation_split > 0 ? split : 0, 1, false};
    rc = ch__source_open("fit: validation", c, o->validation_split > 0 ? d : &o->validation,
                         &how, &f->validation);
    if (rc == CH_OK)
        rc = ch__source_check_end("fit: validation", &f->validation, o->validation_steps);
    return rc;
}

/* ---- an epoch ---- */

/* Returns true if the curve of the loss gets a point after this step. */
static bool is_point(const ch_fitting *f)
{
    const ch_training *t = &f->loop.t;
    int64_t            steps = t->epoch_steps > 0 ? t->epoch_steps : 10 * POINTS;

    return t->epoch_step % (steps > POINTS ? steps / POINTS : 1) == 0;
}

/* Adds a point to the curve of the loss: the mean since the last point. With steps in flight it
 * reads the steps that have ended. */
static ch_status add_point(ch_fitting *f)
{
    ch_tensor *state = NULL;
    ch_status  rc;

    if (f->loop.c->loss_mean == NULL || f->loop.c->train_step != NULL)
        return CH_OK;
    rc = ch_metric_tensor(f->loop.c->loss_mean, &state);
    if (rc != CH_OK)
        return rc;
    const double *now = ch_tensor_data(state);
    if (now[1] > f->count)
        rc = ch__history_point(f->history, (now[0] - f->total) / (now[1] - f->count));
    f->total = now[0];
    f->count = now[1];
    ch_tensor_unref(state);
    return rc;
}

/* Reads the next batch. *batch is NULL at the end of the data. If an epoch has a number of
 * steps, the data restarts at its end, unless it ends the training. */
static ch_status next_batch(ch_fitting *f, ch_tuple **batch)
{
    ch_status rc = ch__source_next(&f->train, batch);

    if (rc == CH_OK && *batch == NULL && f->opt->steps_per_epoch > 0 &&
        !f->limits->ends_with_data) {
        rc = ch__source_restart(&f->train);
        if (rc == CH_OK)
            rc = ch__source_next(&f->train, batch);
    }
    ch__loop_charge(&f->loop, CH_TIME_INPUT);
    return rc;
}

static ch_status fail_at_step(const ch_fitting *f, ch_status rc, int64_t step)
{
    return ch__fail_at(rc, "fit: epoch %d, step %lld", f->loop.t.epoch + 1, (long long)step);
}

static ch_status run_step(ch_fitting *f, ch_tuple *batch)
{
    ch_training *t = &f->loop.t;
    int64_t      step = t->epoch_step + 1, number = ch__model_steps(t->model);
    ch_status    rc;

    /* The function may be new (class weights, ch_compile); the numbers of its steps go on. */
    rc = ch_function_set_runs(f->loop.c->train, number);
    if (rc == CH_OK)
        rc = ch__loop_step(&f->loop, f->loop.c->train, batch, f->loop.c->train_step != NULL,
                           &step);
    if (rc != CH_OK)
        return fail_at_step(f, rc, step);
    ch__model_set_steps(t->model, number + 1);
    t->step++;
    t->epoch_step++;
    t->examples += ch__tuple_rows(batch);
    t->epoch_examples += ch__tuple_rows(batch);
    t->is_stale = true;
    rc = is_point(f) ? add_point(f) : CH_OK;
    return rc == CH_OK ? ch__loop_notify(&f->loop, CH_ON_STEP) : rc;
}

/* Returns true if the training pauses in the middle of a round of CH_SYNCHRONOUS, and a
 * callback saves it: such callbacks wait for the end of the round (rule 4 of fit/backup.c). */
static bool runs_to_round_end(const ch_fitting *f)
{
    return f->loop.t.pauses && (f->loop.events & CH_SAVE_POINT_STEP) != 0 &&
           ch__cut_divides_round(ch_model_strategy(f->loop.t.model));
}

/* Returns true if the epoch has no further steps. */
static bool is_done(const ch_fitting *f)
{
    const ch_training *t = &f->loop.t;

    return (t->stops && !runs_to_round_end(f)) ||
           (f->opt->steps_per_epoch > 0 && t->epoch_step >= f->opt->steps_per_epoch) ||
           (f->limits->max_steps > 0 && t->step >= f->limits->max_steps);
}

/* Runs the steps of an epoch, or those that are left. Sets `ended` if it reached the end of the
 * data. */
static ch_status run_steps(ch_fitting *f)
{
    ch_status rc = CH_OK;

    f->ended = false;
    while (rc == CH_OK) {
        ch_tuple *batch = NULL;

        rc = ch__loop_save_point(&f->loop, CH_SAVE_POINT_STEP);
        if (rc != CH_OK || is_done(f))
            break;
        rc = next_batch(f, &batch);
        f->ended = rc == CH_OK && batch == NULL;
        if (rc != CH_OK || f->ended)
            break;
        rc = run_step(f, batch);
        ch_tuple_unref(batch);
    }
    return rc;
}

/* Runs the validation if this epoch has one. After Ctrl-C there is none, because the user
 * waits. */
static ch_status validate(ch_fitting *f)
{
    ch_training *t = &f->loop.t;
    int          every = f->opt->validation_every > 0 ? f->opt->validation_every : 1;
    bool         is_interrupted = f->loop.catches && ch__interrupted();
    ch_status    rc;

    if (is_interrupted)
        ch__training_pause(t, "interrupted");
    rc = ch__loop_save_point(&f->loop, CH_SAVE_POINT_STEP);
    if (rc != CH_OK || !f->validates || is_interrupted ||
        (t->epoch + 1 - f->opt->initial_epoch) % every != 0)
        return rc;
    ch__loop_charge(&f->loop, CH_TIME_OTHER);
    f->loop.is_untimed = true;
    rc = ch__evaluate_pass(&f->loop, "fit: validation", &f->validation,
                           f->opt->validation_steps, "val_");
    f->loop.is_untimed = false;
    ch__loop_charge(&f->loop, CH_TIME_VALIDATE);
    return rc;
}

static ch_status begin_epoch(ch_fitting *f)
{
    ch_training *t = &f->loop.t;
    ch_status    rc = ch__compiled_reset(f->loop.c);

    ch__logs_drop(&t->logs);
    t->epoch_step = t->epoch_examples = 0;
    t->is_stale = t->is_peeked = false;
    t->epoch_began_ns = ch__now_ns();
    f->total = f->count = 0;
    if (rc == CH_OK && f->opt->steps_per_epoch == 0)
        rc = ch__source_restart(&f->train);
    t->phase = CH_PHASE_STEPS;
    return rc == CH_OK ? ch__loop_notify(&f->loop, CH_ON_EPOCH_BEGIN) : rc;
}

/* Blocks until no step is in flight. If the steps were in flight, adds a point to the curve for
 * the last of them. */
static ch_status drain(ch_fitting *f)
{
    ch_status rc = ch__loop_drain(&f->loop);

    if (rc != CH_OK)
        return fail_at_step(f, rc, f->loop.inflight.failed);
    return f->loop.t.drain != NULL ? add_point(f) : CH_OK;
}

/* Reads the logs of the epoch after its last step. */
static ch_status end_steps(ch_fitting *f)
{
    ch_training *t = &f->loop.t;
    ch_compiled *c = f->loop.c;
    ch_status    rc = drain(f);

    if (rc == CH_OK)
        rc = ch__compiled_read(c, c->train_step != NULL, "", &t->logs);
    t->is_stale = t->is_peeked = false;
    t->phase = CH_PHASE_TRAINED;
    return rc;
}

/* Validates, and adds the logs of the epoch to the history. */
static ch_status end_epoch(ch_fitting *f)
{
    ch_status rc = validate(f);

    if (rc == CH_OK)
        rc = ch__history_add(f->history, &f->loop.t.logs);
    if (rc == CH_OK)
        rc = ch__loop_notify(&f->loop, CH_ON_EPOCH_END);
    if (rc != CH_OK)
        return rc;
    f->loop.t.phase = CH_PHASE_ENDED;
    return ch__loop_save_point(&f->loop, CH_SAVE_POINT_EPOCH);
}

/* Fails if the training found no data. */
static ch_status check_not_empty(const ch_fitting *f)
{
    const ch_training *t = &f->loop.t;

    if (t->step == 0 && f->ended)
        return ch__fail(CH_INVALID_ARGUMENT, "fit: the data has no elements");
    if (t->step > 0 && t->examples == 0 && ch__loop_has_all_replicas(&f->loop))
        return ch__fail(CH_INVALID_ARGUMENT, "fit: the data has no rows");
    return CH_OK;
}

/* Runs an epoch, or the rest of the epoch that was loaded. An epoch without steps, because the
 * data ended or a callback stopped the training before, is not added to the history. */
static ch_status run_epoch(ch_fitting *f)
{
    ch_training *t = &f->loop.t;
    ch_status    rc = t->phase == CH_PHASE_BEGIN ? begin_epoch(f) : CH_OK;

    if (rc == CH_OK && t->phase == CH_PHASE_STEPS) {
        rc = run_steps(f);
        if (rc == CH_OK)
            rc = check_not_empty(f);
        if (rc != CH_OK || t->epoch_step == 0)
            return rc;
        if (f->ended && f->opt->steps_per_epoch == 0)
            t->epoch_steps = t->epoch_step;
        rc = end_steps(f);
    }
    return rc == CH_OK ? end_epoch(f) : rc;
}

/* ---- the whole training ---- */

/* Returns true if the training has no further epochs. */
static bool is_over(const ch_fitting *f)
{
    const ch_training *t = &f->loop.t;

    return t->stops || (f->ended && f->limits->ends_with_data) ||
           (f->limits->max_steps > 0 && t->step >= f->limits->max_steps);
}

/* Runs all epochs. At the end `epoch` is the last epoch that had steps. */
static ch_status run_epochs(ch_fitting *f)
{
    ch_training *t = &f->loop.t;
    int          end = f->opt->epochs > 0 ? f->opt->epochs : 1;
    int64_t      steps = f->opt->steps_per_epoch > 0 ? f->opt->steps_per_epoch : f->train.steps;
    ch_status    rc;

    t->epoch = f->opt->initial_epoch;
    t->epoch_steps = steps > 0 ? steps : CH_UNKNOWN;
    rc = ch__loop_notify(&f->loop, CH_ON_BEGIN);
    if (rc == CH_OK)
        rc = ch__loop_save_point(&f->loop, CH_SAVE_POINT_BEGIN);
    while (rc == CH_OK && !t->stops && t->epoch < end) {
        if (t->phase != CH_PHASE_ENDED)
            rc = run_epoch(f);
        if (rc != CH_OK || is_over(f) || t->epoch + 1 == end)
            break;
        t->epoch++;
        t->phase = CH_PHASE_BEGIN;
    }
    if (rc == CH_OK)
        rc = ch__loop_save_point(&f->loop, CH_SAVE_POINT_END);
    if (rc == CH_OK && t->epoch_step == 0 && t->epoch > f->opt->initial_epoch)
        t->epoch--;
    return rc;
}

static ch_status prepare(ch_fitting *f, const ch_data *d)
{
    ch_compiled          *c = f->loop.c;
    const ch_fit_options *o = f->opt;
    ch_status             rc = check_options(c, d, o);

    if (rc == CH_OK)
        rc = ch__loop_callbacks(&f->loop, o->n_callbacks, o->callback, o->progress);
    if (rc == CH_OK)
        rc = ch__compiled_class_weights(c, o->n_classes, o->class_weight);
    if (rc == CH_OK)
        rc = open_data(f, d);
    if (rc == CH_OK && o->trace != NULL)
        rc = ch__trace_open(o->trace);
    f->loop.t.function = c->train;
    return rc;
}

static void print_summary(const ch_history *h)
{
    enum { STANDARD_ERROR = 2 };
    char text[2048];

    ch_history_print_time(h, text, sizeof(text));
    ch__print_above(STANDARD_ERROR, text, strlen(text));
}

/* Closes the trace file of opt->trace, if any. Returns `rc` or, if that is CH_OK, the error of
 * the trace. */
static ch_status close_trace(const ch_fitting *f, ch_status rc)
{
    ch_fault  first;
    ch_status last;

    ch__fault_clear(&first);
    if (f->opt->trace == NULL)
        return rc;
    if (rc != CH_OK)
        ch__fault_record(&first, rc, -1, NULL);
    last = ch__trace_close();
    if (last != CH_OK)
        ch__fault_record(&first, last, -1, NULL);
    return ch__fault_raise(&first);
}

/* Ends the training and fills the history. Closes the data before it fills the table of times,
 * because closing joins the prefetch threads and that time must be in the table. */
static ch_status finish(ch_fitting *f, ch_status rc)
{
    ch_training *t = &f->loop.t;

    rc = ch__loop_end(&f->loop, rc);
    snprintf(f->history->why, sizeof(f->history->why), "%s", t->stops ? t->why : "");
    ch__source_close(&f->train);
    ch__source_close(&f->validation);
    ch__loop_charge(&f->loop, CH_TIME_OTHER);
    rc = close_trace(f, rc);
    ch__loop_table(&f->loop, &f->history->time);
    f->history->time.one_replica_step = f->opt->one_replica_step;
    f->history->has_failed = rc != CH_OK;
    if (f->opt->summary)
        print_summary(f->history);
    return rc;
}

/* Fails if another loop uses the metrics of the model, because two trainings would mix their
 * numbers. */
static ch_status check_alone(ch_loop *l)
{
    if (ch__loop_use_metrics(l) == 0)
        return CH_OK;
    return ch__fail(CH_FAILED_PRECONDITION,
                    "fit: ch_fit or ch_evaluate of this model is running; call ch_fit after it "
                    "has returned, not in a callback");
}

ch_status ch__fit(ch_model *m, const ch_data *d, const ch_fit_options *opt,
                  const ch_fit_limits *limits, const void *caller, ch_history **out)
{
    ch_fitting   f = {.opt = opt, .limits = limits};
    ch_compiled *c = NULL;
    ch_status    rc = ch__compiled_of("fit", m, &c);

    if (rc == CH_OK)
        rc = ch__history_new(&f.history);
    if (rc != CH_OK)
        return rc;
    f.history->is_of_arrays = d->array != NULL;
    ch__loop_open(&f.loop, c, caller);
    f.loop.t.epochs = opt->epochs == INT_MAX ? 0 : opt->epochs > 0 ? opt->epochs : 1;
    f.loop.t.epoch_name = limits->epoch_name;
    f.loop.t.optimizer = c->optimizer;
    ch__loop_catch(&f.loop, opt->catch_interrupt);
    rc = check_alone(&f.loop);
    if (rc == CH_OK)
        rc = prepare(&f, d);
    if (rc == CH_OK && c->strategy == ch__strategy_default())
        ch__warn_of_copies(c->strategy->label);
    if (rc == CH_OK)
        rc = finish(&f, run_epochs(&f));
    ch__source_close(&f.train);
    ch__source_close(&f.validation);
    ch__loop_close(&f.loop);
    if (out != NULL)
        *out = f.history;
    else
        ch_history_unref(f.history);
    return rc;
}

ch_status ch_fit(ch_model *m, ch_data data, const ch_fit_options *opt, ch_history **out)
{
    static const ch_fit_options none;
    static const ch_fit_limits  no_limits;

    if (out != NULL)
        *out = NULL;
    return ch__fit(m, &data, opt != NULL ? opt : &none, &no_limits, __builtin_return_address(0),
                   out);
}
