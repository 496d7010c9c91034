/* fit/stopping.c -- callbacks that stop a training.
 *
 * Three callbacks: early_stopping (a log has stopped improving), stop_on_nan (the loss is not
 * finite) and time_limit. Each resets its state at CH_ON_BEGIN or has none, so a callback may
 * be used in several trainings, one after the other. All of them ignore evaluations.
 *
 * The state of early_stopping is saved with the copy of the best variables. The copy is saved
 * by the order of ch_model_vars, because the variables may not exist yet when it is loaded.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <math.h>
#include <stdio.h>

#include "base/fault.h"
#include "base/mem.h"
#include "fit/callback.h"

enum { WHY_BYTES = 160 };

/* ---- early stopping ---- */

/* Values of the model's variables at the end of an epoch, in the order of ch_model_vars. */
typedef struct saved_vars {
    int n;
    struct saved_var {
        ch_var    *var; /* NULL: the values were loaded */
        ch_tensor *value;
    } * at; /* NULL: there is no copy */
} saved_vars;

typedef struct early {
    /* The options, except that opt.monitor is NULL: the name is in `monitor`. */
    ch_callback_early_stopping_options opt;
    ch_monitor                         monitor;
    int                                wait; /* epochs since the last improvement */
    int                                best_epoch;
    saved_vars                         best;
} early;

static void drop_vars(saved_vars *c)
{
    for (int i = 0; i < c->n; i++) {
        ch_var_unref(c->at[i].var);
        ch_tensor_unref(c->at[i].value);
    }
    ch__free(c->at);
    *c = (saved_vars){0};
}

/* Copies the variables of the model. Frees the old copy first, so that there is only one at a
 * time. After an error the copy is empty. */
static ch_status save_vars(saved_vars *c, ch_model *m)
{
    ch_var *const *v = NULL;
    int            n = ch_model_vars(m, &v);
    ch_status      rc = CH_OK;

    drop_vars(c);
    c->at = ch__calloc((size_t)n + 1, sizeof(*c->at));
    if (c->at == NULL)
        return ch__fail_memory("a copy of the model's variables");
    while (rc == CH_OK && c->n < n) {
        struct saved_var *x = &c->at[c->n];

        rc = ch_var_get(v[c->n], &x->value);
        if (rc == CH_OK) {
            x->var = ch_var_ref(v[c->n]);
            c->n++;
        }
    }
    if (rc != CH_OK)
        drop_vars(c);
    return rc;
}

/* Returns the variable of value number i; NULL if the model has no such variable. */
static ch_var *var_of(const saved_vars *c, ch_model *m, int i)
{
    ch_var *const *v = NULL;

    if (c->at[i].var != NULL)
        return c->at[i].var;
    return ch_model_vars(m, &v) == c->n ? v[i] : NULL;
}

static ch_status restore_vars(const saved_vars *c, ch_model *m)
{
    for (int i = 0; i < c->n; i++) {
        ch_var   *v = var_of(c, m, i);
        ch_status rc = v != NULL ? ch_var_set(v, c->at[i].value)
                                 : ch__fail(CH_FAILED_PRECONDITION,
                                            "the model has another number of variables than "
                                            "when the %d values were saved",
                                            c->n);

        if (rc != CH_OK)
            return ch__fail_at(rc, "the variables of the best epoch could not be restored: %s",
                               v != NULL ? ch_var_name(v) : "all");
    }
    return CH_OK;
}

/* Writes the name of value number i in a state. */
static const char *name_of_value(int i, char *name, size_t size)
{
    snprintf(name, size, "best_variable/%d", i);
    return name;
}

/* References the values, because tensors do not change. */
static void put_vars(ch_state *s, const saved_vars *c)
{
    char name[32];

    ch__state_put_int(s, "best_variables", c->at != NULL ? c->n : -1);
    for (int i = 0; c->at != NULL && i < c->n; i++)
        ch__state_put(s, name_of_value(i, name, sizeof(name)), c->at[i].value);
}

static ch_status get_vars(const ch_tuple *state, saved_vars *c)
{
    char      name[32];
    int       n = 0;
    ch_status rc = ch__state_get_int_in(state, "best_variables", -1, ch_tuple_count(state), &n);

    drop_vars(c);
    if (rc != CH_OK || n < 0)
        return rc;
    c->at = ch__calloc((size_t)n + 1, sizeof(*c->at));
    if (c->at == NULL)
        return ch__fail_memory("a copy of the model's variables");
    for (; c->n < n; c->n++) {
        ch_tensor *t = ch__state_get(state, name_of_value(c->n, name, sizeof(name)));

        if (t == NULL)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "the saved state has no leaf \"%s\"; it was saved by another "
                            "program or version",
                            name);
        c->at[c->n].value = ch_tensor_ref(t);
    }
    return CH_OK;
}

static void stop_early(const early *e, ch_training *t)
{
    char why[WHY_BYTES];

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

/* Handles the end of an epoch by the rules of Keras. An epoch that is the best so far never
 * stops the training, but it resets the count only if it also beats the baseline. The first
 * epoch never stops the training. */
static ch_status early_epoch(early *e, ch_training *t)
{
    double    value;
    bool      is_better;
    ch_status rc = CH_OK;

    if (ch_training_epoch(t) < e->opt.start_epoch || !ch__monitor_read(&e->monitor, t, &value))
        return CH_OK;
    is_better = ch__monitor_is_better(&e->monitor, value, e->monitor.best);
    if (e->opt.restore_best && (is_better || e->best.at == NULL))
        rc = save_vars(&e->best, ch_training_model(t));
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
        rc = restore_vars(&e->best, ch_training_model(t));
    drop_vars(&e->best);
    ch__monitor_reset(&e->monitor);
    e->wait = e->best_epoch = 0;
    return rc;
}

static void early_drop(void *self)
{
    early *e = self;

    drop_vars(&e->best);
    ch__monitor_drop(&e->monitor);
    ch__free(e);
}

static ch_status early_save(void *self, ch_tuple **out)
{
    const early *e = self;
    ch_state     s = {0};

    ch__monitor_save(&e->monitor, &s);
    ch__state_put_int(&s, "wait", e->wait);
    ch__state_put_int(&s, "best_epoch", e->best_epoch);
    put_vars(&s, &e->best);
    return ch__state_end(&s, out);
}

static ch_status early_load(void *self, ch_tuple *state)
{
    early    *e = self;
    ch_status rc = ch__monitor_load(&e->monitor, state);

    if (rc == CH_OK)
        rc = ch__state_get_int_in(state, "wait", 0, INT_MAX, &e->wait);
    if (rc == CH_OK)
        rc = ch__state_get_int_in(state, "best_epoch", 0, INT_MAX, &e->best_epoch);
    return rc == CH_OK ? get_vars(state, &e->best) : rc;
}

static const ch_callback_ops early_ops = {.name = "early_stopping",
                                          .events = CH_ON_BEGIN | CH_ON_EPOCH_END | CH_ON_END,
                                          .on = early_on,
                                          .drop = early_drop,
                                          .save = early_save,
                                          .load = early_load};

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
        return ch__fail(CH_INVALID_ARGUMENT, "early_stopping: baseline is NaN; want a number");
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

/* ---- stop on NaN ---- */

typedef struct nan_watch {
    ch_monitor loss;
    int64_t    every;
} nan_watch;

/* Reads the loss without a drain: a loss that is not finite stays so, hence there is no need to
 * wait for the steps in flight. */
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
    char       why[WHY_BYTES];

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

static const ch_callback_ops nan_ops = {.name = "stop_on_nan",
                                        .events = CH_ON_STEP | CH_ON_EPOCH_END,
                                        .on = nan_on,
                                        .drop = nan_drop};

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

/* ---- time limit ---- */

static ch_status limit_on(void *self, ch_training *t, ch_event event)
{
    const double *seconds = self;
    char          why[WHY_BYTES];

    (void)event;
    if (ch_training_is_evaluation(t) || ch_training_seconds(t) < *seconds)
        return CH_OK;
    snprintf(why, sizeof(why), "time_limit: %g seconds are over, after step %lld", *seconds,
             (long long)ch_training_step(t));
    ch__training_pause(t, why);
    return CH_OK;
}

static const ch_callback_ops limit_ops = {
    .name = "time_limit", .events = CH_ON_STEP, .on = limit_on, .drop = ch__free};

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
