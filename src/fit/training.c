/* fit/training.c -- the state of a running training, as callbacks read it.
 *
 * Implements ch_logs, the comparison of monitored values, and the ch_training functions of
 * cohort/callback.h. Logs are read lazily: a step only marks them as stale, and the next access
 * reads the metrics. So callbacks that do not read the logs cost nothing.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "fit/training.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/thread.h"
#include "cohort/dataset.h"

/* ---- logs ---- */

static struct ch_log_entry *find(const ch_logs *l, const char *name)
{
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->at[i].name, name) == 0)
            return &l->at[i];
    return NULL;
}

ch_status ch__logs_set(ch_logs *l, const char *name, double value)
{
    struct ch_log_entry *e = find(l, name);
    char                *own;

    if (e != NULL) {
        e->value = value;
        return CH_OK;
    }
    own = ch__strdup(name);
    if (own == NULL || !ch__grow((void **)&l->at, &l->capacity, l->n + 1, sizeof(*l->at))) {
        ch__free(own);
        return ch__fail_memory("logs");
    }
    l->at[l->n++] = (struct ch_log_entry){own, value};
    return CH_OK;
}

const double *ch__logs_find(const ch_logs *l, const char *name)
{
    const struct ch_log_entry *e = find(l, name);

    return e != NULL ? &e->value : NULL;
}

double ch__logs_get(const ch_logs *l, const char *name)
{
    const double *value = ch__logs_find(l, name);

    return value != NULL ? *value : (double)NAN;
}

void ch__logs_drop(ch_logs *l)
{
    for (int i = 0; i < l->n; i++)
        ch__free(l->at[i].name);
    ch__free(l->at);
    *l = (ch_logs){0};
}

bool ch__is_of_validation(const char *name)
{
    return strncmp(name, "val_", 4) == 0;
}

/* ---- comparison of values ---- */

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);

    return n >= m && strcmp(name + n - m, end) == 0;
}

static bool more_is_better(const char *name, ch_goal goal)
{
    static const char *const good[] = {"accuracy",  "precision", "recall",    "auc",
                                       "auc_exact", "f1",        "confusion", "top_k"};

    if (goal != CH_GOAL_AUTO)
        return goal == CH_GOAL_MAX;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        if (ends_in(name, good[i]))
            return true;
    return false;
}

bool ch__is_better(const char *name, ch_goal goal, double value, double best, double delta)
{
    return more_is_better(name, goal) ? value > best + delta : value < best - delta;
}

double ch__worst(const char *name, ch_goal goal)
{
    return more_is_better(name, goal) ? -(double)INFINITY : (double)INFINITY;
}

/* ---- functions for callbacks ---- */

ch_model *ch_training_model(const ch_training *t)
{
    return t != NULL ? t->model : NULL;
}

ch_optimizer *ch_training_optimizer(const ch_training *t)
{
    return t != NULL ? t->optimizer : NULL;
}

bool ch_training_is_evaluation(const ch_training *t)
{
    return t != NULL && t->is_evaluation;
}

int ch_training_epoch(const ch_training *t)
{
    return t != NULL ? t->epoch : 0;
}

int ch_training_epochs(const ch_training *t)
{
    return t != NULL ? t->epochs : 0;
}

int64_t ch_training_step(const ch_training *t)
{
    return t != NULL ? t->step : 0;
}

int64_t ch_training_epoch_step(const ch_training *t)
{
    return t != NULL ? t->epoch_step : 0;
}

int64_t ch_training_epoch_steps(const ch_training *t)
{
    return t != NULL ? t->epoch_steps : 0;
}

int64_t ch_training_examples(const ch_training *t)
{
    return t != NULL ? t->examples : 0;
}

double ch_training_seconds(const ch_training *t)
{
    return t != NULL ? (double)(ch__now_ns() - t->began_ns) * 1e-9 : 0;
}

/* If a read fails, all logs are NaN; the training returns the error later by itself. */
const ch_logs *ch__training_logs(ch_training *t)
{
    bool      peeks = t->peeks && t->drain != NULL;
    ch_status rc = CH_OK;

    if (!t->is_stale && (peeks || !t->is_peeked))
        return &t->logs;
    if (!peeks)
        (void)ch__training_drain(t); /* the error of a failed step is returned later */
    if (t->refresh != NULL)
        rc = t->refresh(t);
    for (int i = 0; i < t->logs.n && rc != CH_OK; i++)
        t->logs.at[i].value = (double)NAN;
    t->is_stale = false;
    t->is_peeked = peeks;
    return &t->logs;
}

ch_status ch__training_drain(ch_training *t)
{
    return t->drain != NULL ? t->drain(t) : CH_OK;
}

int ch_training_logs(ch_training *t)
{
    return t != NULL ? ch__training_logs(t)->n : 0;
}

const char *ch_training_log_name(ch_training *t, int i)
{
    const ch_logs *l = t != NULL ? ch__training_logs(t) : NULL;

    return l != NULL && i >= 0 && i < l->n ? l->at[i].name : NULL;
}

double ch_training_log(ch_training *t, int i)
{
    const ch_logs *l = t != NULL ? ch__training_logs(t) : NULL;

    return l != NULL && i >= 0 && i < l->n ? l->at[i].value : (double)NAN;
}

double ch_training_get(ch_training *t, const char *name)
{
    return t != NULL && name != NULL ? ch__logs_get(ch__training_logs(t), name) : (double)NAN;
}

void ch_training_stop(ch_training *t, const char *why)
{
    if (t == NULL)
        return;
    t->n_stop_requests++;
    if (t->stops)
        return;
    t->stops = true;
    snprintf(t->why, sizeof(t->why), "%s", why != NULL ? why : "stopped");
}

void ch__training_pause(ch_training *t, const char *why)
{
    t->pauses = t->pauses || !t->stops;
    ch_training_stop(t, why);
}
