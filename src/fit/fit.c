/* fit/fit.c -- the loop.
 *
 * Between two looks at the clock all time belongs to one row of the table: so the rows add up to the whole.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/terminal.h"
#include "fit/evaluate.h"
#include "fit/history.h"
#include "fit/interrupt.h"
#include "fit/loop.h"
#include "graph/trace.h"

enum { POINTS = 32 }; /* of the loss's curve, an epoch */

typedef struct fitting {
    ch_loop               loop; /* first */
    const ch_fit_options *opt;
    const ch_fit_limits  *limits;
    ch_source             train, validation;
    bool                  validates;
    ch_history           *history;
    double                total, count; /* of the loss, when its curve got its last point */
} fitting;

/* ---- options ---- */

static ch_status check_options(const ch_compiled *c, const ch_data *d, const ch_fit_options *o)
{
    const char *what = NULL;

    if (c->train_step == NULL && (c->optimizer == NULL || c->loss == NULL))
        return ch__fail(CH_FAILED_PRECONDITION,
                        "fit: the model was compiled without %s; give ch_compile one",
                        c->optimizer == NULL ? "an optimizer" : "a loss");
    if (o->epochs < 0 || o->initial_epoch < 0)
        what = "epochs and initial_epoch";
    else if (o->steps_per_epoch < 0 || o->validation_steps < 0 || o->validation_every < 0)
        what = "steps_per_epoch, validation_steps and validation_every";
    else if (o->batch < 0)
        what = "batch";
    else if (o->n_callbacks < 0 || (o->n_callbacks > 0 && o->callback == NULL))
        what = "n_callbacks, with callbacks";
    if (what != NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "fit: want 0 or more for %s", what);
    if (!(o->validation_split >= 0 && o->validation_split < 1))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "fit: validation_split is %g, want 0 up to, not including, 1",
                        o->validation_split);
    if (o->validation_split > 0 && (d->array == NULL || ch__data_is_given(&o->validation)))
        return ch__fail(CH_INVALID_ARGUMENT, "fit: validation_split is for arrays, where no "
                                             "validation is given: of a dataset, use "
                                             "ch_dataset_take and ch_dataset_skip");
    return CH_OK;
}

static ch_status open_data(fitting *f, const ch_data *d)
{
    const ch_fit_options *o = f->opt;
    const ch_compiled    *c = f->loop.c;
    double                split = 1 - o->validation_split;
    int64_t               batch = o->batch > 0 ? o->batch : CH_FIT_BATCH;
    ch_arrays_how         how = {batch, o->shuffle != CH_OFF, o->seed, 0, split};
    ch_status             rc = ch__source_open("fit", c, d, &how, &f->train);

    f->validates = o->validation_split > 0 || ch__data_is_given(&o->validation);
    if (rc != CH_OK || !f->validates)
        return rc;
    how = (ch_arrays_how){batch, false, 0, o->validation_split > 0 ? split : 0, 1};
    return ch__source_open("fit: validation", c, o->validation_split > 0 ? d : &o->validation,
                           &how, &f->validation);
}

/* ---- an epoch ---- */

/* The mean of the loss since the last point of its curve. */
static ch_status add_point(fitting *f)
{
    ch_training *t = &f->loop.t;
    int64_t      steps = t->epoch_steps > 0 ? t->epoch_steps : 10 * POINTS;
    ch_tensor   *state = NULL;
    ch_status    rc;

    if (f->loop.c->loss_mean == NULL || f->loop.c->train_step != NULL ||
        t->epoch_step % (steps > POINTS ? steps / POINTS : 1) != 0)
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

static ch_status next_batch(fitting *f, ch_tuple **batch)
{
    ch_status rc = ch__source_next(&f->train, batch);

    if (rc == CH_OK && *batch == NULL && f->opt->steps_per_epoch > 0 &&
        !f->limits->ends_with_data) {
        rc = ch__source_restart(&f->train);
        if (rc == CH_OK)
            rc = ch__source_next(&f->train, batch);
    }
    ch__loop_count(&f->loop, CH_TIME_INPUT);
    return rc;
}

static ch_status run_step(fitting *f, ch_tuple *batch)
{
    ch_training *t = &f->loop.t;
    ch_status    rc =
        ch__loop_step(&f->loop, f->loop.c->train, batch, f->loop.c->train_step != NULL);

    if (rc != CH_OK)
        return ch__fail_at(rc, "fit: epoch %d, step %lld", t->epoch, (long long)t->epoch_step);
    t->step++;
    t->epoch_step++;
    t->examples += ch__batch_rows(batch);
    t->epoch_examples += ch__batch_rows(batch);
    t->is_stale = true;
    rc = add_point(f);
    return rc == CH_OK ? ch__loop_tell(&f->loop, CH_ON_STEP) : rc;
}

static bool is_done(const fitting *f)
{
    const ch_training *t = &f->loop.t;

    return t->stops ||
           (f->opt->steps_per_epoch > 0 && t->epoch_step >= f->opt->steps_per_epoch) ||
           (f->limits->max_steps > 0 && t->step >= f->limits->max_steps);
}

/* *ended: there was no more data. */
static ch_status run_steps(fitting *f, bool *ended)
{
    ch_status rc = CH_OK;

    *ended = false;
    while (rc == CH_OK && !is_done(f)) {
        ch_tuple *batch = NULL;

        rc = next_batch(f, &batch);
        *ended = rc == CH_OK && batch == NULL;
        if (rc != CH_OK || *ended)
            break;
        rc = run_step(f, batch);
        ch_tuple_unref(batch);
    }
    return rc;
}

/* Who pressed Ctrl-C does not wait for an evaluation. */
static bool is_interrupted(const fitting *f)
{
    return f->loop.catches && ch__interrupted();
}

static ch_status validate(fitting *f)
{
    ch_training *t = &f->loop.t;
    int          every = f->opt->validation_every > 0 ? f->opt->validation_every : 1;
    ch_status    rc;

    if (!f->validates || is_interrupted(f) ||
        (t->epoch + 1 - f->opt->initial_epoch) % every != 0)
        return CH_OK;
    ch__loop_count(&f->loop, CH_TIME_OTHER);
    f->loop.is_apart = true;
    rc = ch__evaluate_pass(&f->loop, &f->validation, f->opt->validation_steps, "val_");
    f->loop.is_apart = false;
    ch__loop_count(&f->loop, CH_TIME_VALIDATE);
    return rc;
}

static ch_status begin_epoch(fitting *f)
{
    ch_training *t = &f->loop.t;
    ch_status    rc = ch__compiled_reset(f->loop.c);

    ch__logs_drop(&t->logs);
    t->epoch_step = t->epoch_examples = 0;
    t->is_stale = false;
    t->epoch_began_ns = ch__now_ns();
    f->total = f->count = 0;
    if (rc == CH_OK && f->opt->steps_per_epoch == 0)
        rc = ch__source_restart(&f->train);
    return rc == CH_OK ? ch__loop_tell(&f->loop, CH_ON_EPOCH_BEGIN) : rc;
}

static ch_status run_epoch(fitting *f, bool *ended)
{
    ch_training *t = &f->loop.t;
    ch_status    rc = begin_epoch(f);

    if (rc == CH_OK)
        rc = run_steps(f, ended);
    if (rc == CH_OK && t->step == 0 && !t->stops)
        rc = ch__fail(CH_INVALID_ARGUMENT, "fit: the data has no elements");
    if (rc != CH_OK || (t->epoch_step == 0 && *ended))
        return rc;
    if (*ended && f->opt->steps_per_epoch == 0)
        t->epoch_steps = t->epoch_step;
    rc = ch__compiled_read(f->loop.c, "", &t->logs);
    t->is_stale = false;
    if (rc == CH_OK)
        rc = validate(f);
    if (rc == CH_OK)
        rc = ch__history_add(f->history, &t->logs);
    return rc == CH_OK ? ch__loop_tell(&f->loop, CH_ON_EPOCH_END) : rc;
}

/* ---- all of it ---- */

static ch_status run_epochs(fitting *f)
{
    ch_training *t = &f->loop.t;
    bool         ended = false;
    ch_status    rc = ch__loop_tell(&f->loop, CH_ON_BEGIN);

    t->epoch_steps = f->opt->steps_per_epoch > 0 ? f->opt->steps_per_epoch : f->train.steps;
    for (t->epoch = f->opt->initial_epoch; t->epoch < t->epochs && rc == CH_OK && !t->stops;
         t->epoch++) {
        rc = run_epoch(f, &ended);
        if ((ended && f->limits->ends_with_data) ||
            (f->limits->max_steps > 0 && t->step >= f->limits->max_steps))
            break;
    }
    return rc;
}

static ch_status prepare(fitting *f, const ch_data *d)
{
    ch_compiled *c = f->loop.c;
    ch_status    rc = check_options(c, d, f->opt);

    if (rc == CH_OK)
        rc = ch__compiled_class_weights(c, f->opt->n_classes, f->opt->class_weight);
    if (rc == CH_OK)
        rc = open_data(f, d);
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

/* CH_ON_END is told whatever happened; the first error is the one that counts. */
static ch_status finish(fitting *f, ch_status rc)
{
    ch_fault first;

    ch__fault_clear(&first);
    if (rc != CH_OK)
        ch__fault_take(&first, rc, -1, NULL);
    ch_status last = ch__loop_tell(&f->loop, CH_ON_END);
    if (last != CH_OK && !ch__fault_is_set(&first))
        ch__fault_take(&first, last, -1, NULL);
    snprintf(f->history->why, sizeof(f->history->why), "%s",
             f->loop.t.stops ? f->loop.t.why : "");
    ch__loop_table(&f->loop, &f->history->time);
    f->history->time.one_replica_step = f->opt->one_replica_step;
    if (f->opt->summary)
        print_summary(f->history);
    last = f->opt->trace != NULL ? ch__trace_close() : CH_OK;
    if (last != CH_OK && !ch__fault_is_set(&first))
        ch__fault_take(&first, last, -1, NULL);
    return ch__fault_is_set(&first) ? ch__fault_raise(&first) : CH_OK;
}

ch_status ch__fit(ch_model *m, const ch_data *d, const ch_fit_options *opt,
                  const ch_fit_limits *limits, ch_history **out)
{
    fitting      f = {.opt = opt, .limits = limits};
    ch_compiled *c = NULL;
    ch_status    rc = ch__compiled_of("fit", m, &c);

    if (rc == CH_OK)
        rc = ch__history_new(&f.history);
    if (rc != CH_OK)
        return rc;
    rc = ch__loop_open(&f.loop, c, opt->n_callbacks, opt->callback, opt->progress);
    f.loop.t.epochs = opt->epochs > 0 ? opt->epochs : 1;
    f.loop.t.optimizer = c->optimizer;
    ch__loop_catch(&f.loop, opt->catch_interrupt);
    if (rc == CH_OK)
        rc = prepare(&f, d);
    if (rc == CH_OK && opt->trace != NULL)
        rc = ch__trace_open(opt->trace);
    if (rc == CH_OK)
        rc = finish(&f, run_epochs(&f));
    ch__loop_close(&f.loop);
    ch__source_close(&f.train);
    ch__source_close(&f.validation);
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
    return ch__fit(m, &data, opt != NULL ? opt : &none, &no_limits, out);
}
