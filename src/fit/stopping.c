/* fit/stopping.c -- callbacks that end a training: no better for long, not finite, out of time.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>

#include "base/fault.h"
#include "base/mem.h"
#include "fit/callback.h"

enum { WHY = 160 };

/* ---- early stopping ---- */

/* The model's variables as they were at the end of an epoch. */
typedef struct copy {
    int n;
    struct copied {
        ch_var    *var;
        ch_tensor *value;
    } * at;
} copy;

typedef struct early {
    ch_callback_early_stopping_options opt; /* without its text */
    ch_monitor                         monitor;
    int                                wait; /* epochs since the last that was better */
    int                                best_epoch;
    copy                               best;
} early;

static void drop_copy(copy *c)
{
    for (int i = 0; i < c->n; i++) {
        ch_var_unref(c->at[i].var);
        ch_tensor_unref(c->at[i].value);
    }
    ch__free(c->at);
    *c = (copy){0};
}

/* The old values go before the new ones come, so that there is one copy at a time; half a copy
 * is none. */
static ch_status take_copy(copy *c, ch_model *m)
{
    ch_var *const *v = NULL;
    int            n = ch_model_vars(m, &v);
    ch_status      rc = CH_OK;

    drop_copy(c);
    c->at = ch__calloc((size_t)n + 1, sizeof(*c->at));
    if (c->at == NULL)
        return ch__fail_memory("a copy of the model's variables");
    while (rc == CH_OK && c->n < n) {
        struct copied *x = &c->at[c->n];

        rc = ch_var_get(v[c->n], &x->value);
        if (rc == CH_OK) {
            x->var = ch_var_ref(v[c->n]);
            c->n++;
        }
    }
    if (rc != CH_OK)
        drop_copy(c);
    return rc;
}

static ch_status put_copy(const copy *c)
{
    for (int i = 0; i < c->n; i++) {
        ch_status rc = ch_var_set(c->at[i].var, c->at[i].value);

        if (rc != CH_OK)
            return ch__fail_at(rc, "the best epoch's variables could not be restored: %s",
                               ch_var_name(c->at[i].var));
    }
    return CH_OK;
}

static void stop_early(const early *e, ch_training *t)
{
    char why[WHY];

    if (isinf(e->monitor.best))
        snprintf(why, sizeof(why), "early_stopping: %s was no number in %d epochs",
                 e->monitor.name, e->wait);
    else
        snprintf(why, sizeof(why),
                 "early_stopping: %s was best in epoch %d (%g), and not %s in %d since",
                 e->monitor.name, e->best_epoch + 1, e->monitor.best,
                 e->opt.has_baseline ? "good enough" : "better", e->wait);
    ch_training_stop(t, why);
}

/* As Keras does it: an epoch that is better than all before it never stops, but starts the
 * count again only if it is better than the baseline too; the first epoch never stops. */
static ch_status early_epoch(early *e, ch_training *t)
{
    double    value;
    bool      is_better;
    ch_status rc = CH_OK;

    if (ch_training_epoch(t) < e->opt.start_epoch || !ch__monitor_read(&e->monitor, t, &value))
        return CH_OK;
    is_better = ch__monitor_is_better(&e->monitor, value, e->monitor.best);
    if (e->opt.restore_best && (is_better || e->best.at == NULL))
        rc = take_copy(&e->best, ch_training_model(t));
    e->wait++;
    if (is_better) {
        e->monitor.best = value;
        e->best_epoch = ch_training_epoch(t);
        if (!e->opt.has_baseline || ch__monitor_is_better(&e->monitor, value, e->opt.baseline))
            e->wait = 0;
    } else if (e->wait >= e->opt.patience && ch_training_epoch(t) > 0) {
        stop_early(e, t);
    }
    return rc;
}

static ch_status early_on(void *self, ch_training *t, ch_event event)
{
    early    *e = self;
    ch_status rc = CH_OK;

    if (ch_training_is_evaluation(t))
        return CH_OK;
    if (event == CH_ON_EPOCH_END)
        return early_epoch(e, t);
    if (event == CH_ON_END)
        rc = put_copy(&e->best);
    drop_copy(&e->best);
    ch__monitor_reset(&e->monitor);
    e->wait = e->best_epoch = 0;
    return rc;
}

static void early_drop(void *self)
{
    early *e = self;

    drop_copy(&e->best);
    ch__monitor_drop(&e->monitor);
    ch__free(e);
}

static const ch_callback_ops early_ops = {
    "early_stopping", CH_ON_BEGIN | CH_ON_EPOCH_END | CH_ON_END, early_on, early_drop};

ch_status ch_callback_early_stopping(const ch_callback_early_stopping_options *opt,
                                     ch_callback                             **out)
{
    static const ch_callback_early_stopping_options none;
    early                                          *e;
    ch_status                                       rc;

    opt = opt != NULL ? opt : &none;
    if (opt->patience < 0 || opt->start_epoch < 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "early_stopping: patience is %d and start_epoch %d, want 0 or more",
                        opt->patience, opt->start_epoch);
    if (opt->has_baseline && isnan(opt->baseline))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "early_stopping: the baseline is no number; nothing is better than it");
    e = ch__calloc(1, sizeof(*e));
    if (e == NULL)
        return ch__fail_memory("early_stopping");
    e->opt = *opt;
    e->opt.monitor = NULL;
    rc = ch__monitor_init(&e->monitor, "early_stopping",
                          opt->monitor != NULL ? opt->monitor : "val_loss", opt->goal,
                          opt->min_delta);
    if (rc != CH_OK) {
        early_drop(e);
        return rc;
    }
    return ch__callback_make(&early_ops, e, out);
}

/* ---- the loss is not finite ---- */

typedef struct nan_watch {
    ch_monitor loss;
    int64_t    every;
} nan_watch;

/* One that is not finite stays so: it need not wait for steps that go on. */
static bool read_loss(nan_watch *f, ch_training *t, double *loss)
{
    bool found;

    t->peeks = true;
    found = ch__monitor_read(&f->loss, t, loss);
    t->peeks = false;
    return found;
}

static ch_status nan_on(void *self, ch_training *t, ch_event event)
{
    nan_watch *f = self;
    double     loss;
    char       why[WHY];

    if (ch_training_is_evaluation(t) ||
        (event == CH_ON_STEP && ch_training_step(t) % f->every != 0) ||
        !read_loss(f, t, &loss) || isfinite(loss))
        return CH_OK;
    snprintf(why, sizeof(why), "stop_on_nan: the loss is %s after step %lld",
             isnan(loss) ? "nan" : "infinite", (long long)ch_training_step(t));
    ch_training_stop(t, why);
    return CH_OK;
}

static void nan_drop(void *self)
{
    nan_watch *f = self;

    ch__monitor_drop(&f->loss);
    ch__free(f);
}

static const ch_callback_ops nan_ops = {"stop_on_nan", CH_ON_STEP | CH_ON_EPOCH_END, nan_on,
                                        nan_drop};

ch_status ch_callback_stop_on_nan(int64_t every_steps, ch_callback **out)
{
    nan_watch *f;
    ch_status  rc;

    if (every_steps < 0)
        return ch__fail(CH_INVALID_ARGUMENT, "stop_on_nan: every_steps is %lld, want 0 or more",
                        (long long)every_steps);
    f = ch__calloc(1, sizeof(*f));
    if (f == NULL)
        return ch__fail_memory("stop_on_nan");
    f->every = every_steps > 0 ? every_steps : 1;
    rc = ch__monitor_init(&f->loss, "stop_on_nan", "loss", CH_GOAL_MIN, 0);
    if (rc != CH_OK) {
        nan_drop(f);
        return rc;
    }
    return ch__callback_make(&nan_ops, f, out);
}

/* ---- time is up ---- */

static ch_status limit_on(void *self, ch_training *t, ch_event event)
{
    const double *seconds = self;
    char          why[WHY];

    (void)event;
    if (ch_training_is_evaluation(t) || ch_training_seconds(t) < *seconds)
        return CH_OK;
    snprintf(why, sizeof(why), "time_limit: %g seconds are over, after step %lld", *seconds,
             (long long)ch_training_step(t));
    ch_training_stop(t, why);
    return CH_OK;
}

static const ch_callback_ops limit_ops = {"time_limit", CH_ON_STEP, limit_on, ch__free};

ch_status ch_callback_time_limit(double seconds, ch_callback **out)
{
    double *own;

    if (!(seconds > 0))
        return ch__fail(CH_INVALID_ARGUMENT, "time_limit: %g seconds, want more than 0",
                        seconds);
    own = ch__malloc(sizeof(*own));
    if (own != NULL)
        *own = seconds;
    return ch__callback_make(&limit_ops, own, out);
}
