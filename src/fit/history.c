/* fit/history.c -- the history of a training: logs by name and epoch.
 *
 * A ch_history has the logs of each epoch and the curve of the loss. The loops of fit/ fill it;
 * resume.c saves and loads it with the training. It does not change once the program has it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "fit/history.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"

ch_status ch__history_new(ch_history **out)
{
    ch_history *h = ch__calloc(1, sizeof(*h));

    if (h == NULL)
        return ch__fail_memory("a history");
    atomic_init(&h->refs, 1);
    *out = h;
    return CH_OK;
}

ch_history *ch_history_ref(ch_history *h)
{
    if (h != NULL)
        atomic_fetch_add_explicit(&h->refs, 1, memory_order_relaxed);
    return h;
}

void ch_history_unref(ch_history *h)
{
    if (h == NULL || atomic_fetch_sub_explicit(&h->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (int i = 0; i < h->n_epochs; i++)
        ch__logs_drop(&h->epoch[i]);
    ch__free(h->epoch);
    ch__logs_drop(&h->names);
    ch__free(h->curve);
    ch__free(h);
}

ch_status ch__history_add(ch_history *h, const ch_logs *logs)
{
    ch_logs   copy = {0};
    ch_status rc = CH_OK;

    for (int i = 0; i < logs->n && rc == CH_OK; i++) {
        rc = ch__logs_set(&copy, logs->at[i].name, logs->at[i].value);
        if (rc == CH_OK)
            rc = ch__logs_set(&h->names, logs->at[i].name, 0);
    }
    if (rc == CH_OK &&
        !ch__grow((void **)&h->epoch, &h->epochs_capacity, h->n_epochs + 1, sizeof(*h->epoch)))
        rc = ch__fail_memory("a history");
    if (rc != CH_OK) {
        ch__logs_drop(&copy);
        return rc;
    }
    h->epoch[h->n_epochs++] = copy;
    return CH_OK;
}

ch_status ch__history_point(ch_history *h, double loss)
{
    if (!ch__grow((void **)&h->curve, &h->curve_capacity, h->n_curve + 1, sizeof(double)))
        return ch__fail_memory("a history");
    h->curve[h->n_curve++] = loss;
    return CH_OK;
}

/* ---- state ---- */

/* Saves the logs of all epochs as a single list, with the number of logs of each epoch. */
void ch__history_save(const ch_history *h, ch_state *s)
{
    ch_logs all = {0}; /* borrows the names */
    double *sizes = ch__calloc((size_t)h->n_epochs + 1, sizeof(double));

    for (int e = 0; e < h->n_epochs; e++)
        all.n += h->epoch[e].n;
    all.at = ch__calloc((size_t)all.n + 1, sizeof(*all.at));
    all.n = 0;
    if (s->rc == CH_OK && (sizes == NULL || all.at == NULL))
        s->rc = ch__fail_memory("a history");
    for (int e = 0; e < h->n_epochs && s->rc == CH_OK; e++) {
        sizes[e] = h->epoch[e].n;
        for (int i = 0; i < h->epoch[e].n; i++)
            all.at[all.n++] = h->epoch[e].at[i];
    }
    ch__state_put_logs(s, "history", &all);
    ch__state_put_numbers(s, "history/sizes", h->n_epochs, sizes);
    ch__state_put_numbers(s, "history/curve", h->n_curve, h->curve);
    ch__free(all.at);
    ch__free(sizes);
}

ch_status ch__history_load(ch_history *h, const ch_tuple *state)
{
    const double *sizes = NULL, *curve = NULL;
    int           n = 0, points = 0, from = 0;
    ch_logs       logs = {0};
    ch_status     rc = ch__state_get_numbers(state, "history/sizes", &n, &sizes);

    if (rc == CH_OK)
        rc = ch__state_get_numbers(state, "history/curve", &points, &curve);
    for (int e = 0; e < n && rc == CH_OK; e++) {
        int size = sizes[e] >= 0 && sizes[e] <= INT_MAX - from ? (int)sizes[e] : INT_MAX - from;

        rc = ch__state_get_logs_in(state, "history", from, from + size, &logs);
        if (rc == CH_OK)
            rc = ch__history_add(h, &logs);
        from += size;
    }
    ch__logs_drop(&logs);
    for (int i = 0; i < points && rc == CH_OK; i++)
        rc = ch__history_point(h, curve[i]);
    return rc;
}

/* ---- reading ---- */

int ch_history_epochs(const ch_history *h)
{
    return h != NULL ? h->n_epochs : 0;
}

int ch_history_count(const ch_history *h)
{
    return h != NULL ? h->names.n : 0;
}

const char *ch_history_name(const ch_history *h, int i)
{
    return h != NULL && i >= 0 && i < h->names.n ? h->names.at[i].name : NULL;
}

double ch_history_at(const ch_history *h, const char *name, int epoch)
{
    if (h == NULL || name == NULL || epoch < 0 || epoch >= h->n_epochs)
        return (double)NAN;
    return ch__logs_get(&h->epoch[epoch], name);
}

double ch_history_last(const ch_history *h, const char *name)
{
    return ch_history_at(h, name, ch_history_epochs(h) - 1);
}

double ch_history_best(const ch_history *h, const char *name, ch_goal goal, int *epoch)
{
    double best = (double)NAN;

    for (int i = 0; i < ch_history_epochs(h); i++) {
        double x = ch_history_at(h, name, i);

        if (isnan(x) || (!isnan(best) && !ch__is_better(name, goal, x, best, 0)))
            continue;
        best = x;
        if (epoch != NULL)
            *epoch = i;
    }
    return best;
}

int ch_history_curve(const ch_history *h, const double **out)
{
    if (out != NULL)
        *out = h != NULL ? h->curve : NULL;
    return h != NULL ? h->n_curve : 0;
}

const char *ch_history_stopped(const ch_history *h)
{
    return h != NULL && h->why[0] != '\0' ? h->why : NULL;
}

ch_time_table ch_history_time(const ch_history *h)
{
    return h != NULL ? h->time : (ch_time_table){.total = 0};
}

const char *ch_time_name(ch_time t)
{
    static const char *const name[CH_TIMES] = {
        [CH_TIME_INPUT] = "waiting for data",
        [CH_TIME_FORWARD] = "forward",
        [CH_TIME_BACKWARD] = "backward",
        [CH_TIME_WAIT] = "waiting for replicas",
        [CH_TIME_WORKERS] = "waiting for workers",
        [CH_TIME_REDUCE] = "reduction",
        [CH_TIME_UPDATE] = "update",
        [CH_TIME_VALIDATE] = "validation",
        [CH_TIME_CALLBACKS] = "callbacks",
        [CH_TIME_SAVE] = "saving",
        [CH_TIME_PLANNING] = "recording and planning",
        [CH_TIME_OTHER] = "the rest",
    };

    return (unsigned)t < CH_TIMES ? name[t] : "";
}
