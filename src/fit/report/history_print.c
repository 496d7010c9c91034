/* fit/report/history_print.c -- a history as text: numbers, plots, the table of times.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "fit/history.h"
#include "fit/report/plot.h"
#include "tensor/print.h"

/* ---- numbers of epochs ---- */

static int width_of(const char *name)
{
    int n = (int)strlen(name);

    return n > 9 ? n : 9;
}

/* Prints the log of that name. Prints "nan" if its value is NaN, and "-" if the epoch has no
 * such log. */
static void print_number(ch_text *o, const ch_logs *logs, const char *name)
{
    const double *x = ch__logs_find(logs, name);

    if (x != NULL)
        ch__text_add(o, "  %*.4g", width_of(name), isnan(*x) ? fabs(*x) : *x);
    else
        ch__text_add(o, "  %*s", width_of(name), "-");
}

/* Prints epochs counted from 1, as the progress line does. */
int ch_history_print(const ch_history *h, char *text, size_t size)
{
    ch_text o = ch__text(text, size);

    ch__text_add(&o, "epoch");
    for (int i = 0; i < ch_history_count(h); i++)
        ch__text_add(&o, "  %*s", width_of(ch_history_name(h, i)), ch_history_name(h, i));
    ch__text_add(&o, "\n");
    for (int e = 0; e < ch_history_epochs(h); e++) {
        ch__text_add(&o, "%5d", e + 1);
        for (int i = 0; i < ch_history_count(h); i++)
            print_number(&o, &h->epoch[e], ch_history_name(h, i));
        ch__text_add(&o, "\n");
    }
    return ch__text_length(&o);
}

/* ---- where the time went ---- */

static void print_speed(ch_text *o, const ch_time_table *t)
{
    /* Seconds spent in steps and between them, including waits. */
    double inside = t->total - t->seconds[CH_TIME_VALIDATE] - t->seconds[CH_TIME_CALLBACKS] -
                    t->seconds[CH_TIME_SAVE] - t->seconds[CH_TIME_PLANNING];
    double rate = (double)t->examples / inside;
    double ms = 1e3 * inside / (double)t->steps;

    if (t->steps == 0 || !(inside > 0))
        return;
    ch__text_add(o, "%lld step%s of %.*f ms; ", (long long)t->steps, t->steps == 1 ? "" : "s",
                 ms < 10    ? 2
                 : ms < 100 ? 1
                            : 0,
                 ms);
    ch__text_add(o, "%.*f examples/s on ", rate < 100 ? 1 : 0, rate);
    if (t->workers > 0)
        ch__text_add(o, "%d worker%s of ", t->workers, t->workers == 1 ? "" : "s");
    ch__text_add(o, "%d replica%s\n", t->replicas, t->replicas == 1 ? "" : "s");
    if (t->one_replica_step > 0 && t->replicas > 1)
        ch__text_add(o, "%.2f times the speed of one replica\n",
                     t->replicas * t->one_replica_step * (double)t->steps / inside);
}

/* Prints advice for each kind of waiting that takes more than a fifth of the total time. */
static void print_advice(ch_text *o, const ch_history *h)
{
    const struct {
        ch_time     row;
        const char *advice;
    } waits[] = {
        {CH_TIME_INPUT,
         h->is_of_arrays
             ? "Steps wait for data: use a larger batch, or a dataset whose batches are made "
               "once (ch_dataset_slices, ch_dataset_batch, ch_dataset_cache)."
             : "Steps wait for data: see which stage is slow (ch_iterator_profile), and "
               "cache, prefetch or use more threads there."},
        {CH_TIME_WAIT, "Replicas wait for each other: use a larger batch or fewer devices "
                       "(COHORT_DEVICES=CPU=1), and leave the cores to this program."},
        {CH_TIME_WORKERS, "Steps wait for workers: use more workers, or a larger batch if a "
                          "worker's step is short. ch_coordinator_get_worker_stats shows how "
                          "many steps each of them has run."},
    };

    for (size_t i = 0; i < sizeof(waits) / sizeof(waits[0]); i++)
        if (h->time.seconds[waits[i].row] > h->time.total / 5)
            ch__text_add(o, "%s\n", waits[i].advice);
}

/* Prints milliseconds if the total is less than a second, otherwise seconds. */
int ch_history_print_time(const ch_history *h, char *text, size_t size)
{
    ch_time_table t = ch_history_time(h);
    ch_text       o = ch__text(text, size);
    bool          is_short = t.total < 1;
    double        unit = is_short ? 1e-3 : 1;

    ch__text_add(&o, "%-25s %9s %7s\n", "where the time went", is_short ? "ms" : "seconds",
                 "share");
    for (int i = 0; i < CH_TIMES; i++)
        if (t.seconds[i] > 0)
            ch__text_add(&o, "  %-23s %9.3f %5.1f %%\n", ch_time_name((ch_time)i),
                         t.seconds[i] / unit, t.total > 0 ? 100 * t.seconds[i] / t.total : 0);
    ch__text_add(&o, "  %-23s %9.3f %5.1f %%\n", "all", t.total / unit, 100.0);
    print_speed(&o, &t);
    if (t.saves > 0)
        ch__text_add(&o, "%lld save%s", (long long)t.saves, t.saves == 1 ? "" : "s");
    if (t.saves > 0 && t.skipped_saves > 0)
        ch__text_add(&o, ", %lld skipped because another was being written",
                     (long long)t.skipped_saves);
    if (t.saves > 0)
        ch__text_add(&o, "\n");
    if (h != NULL && !h->has_failed)
        print_advice(&o, h);
    if (t.peak_bytes > 0)
        ch__text_add(&o, "at most %.0f MiB of memory\n", (double)t.peak_bytes / (1 << 20));
    return ch__text_length(&o);
}

/* ---- plots ---- */

static bool has_name(const ch_history *h, const char *name)
{
    for (int i = 0; i < ch_history_count(h); i++)
        if (name != NULL && strcmp(ch_history_name(h, i), name) == 0)
            return true;
    return false;
}

/* Prints a message with the names of the logs, because an empty plot would look as if there
 * were no numbers. */
static int print_names(const ch_history *h, const char *name, char *text, size_t size)
{
    ch_text o = ch__text(text, size);

    ch__text_add(&o, "no epoch has a log named \"%.60s\"; there %s", name != NULL ? name : "",
                 ch_history_count(h) == 1 ? "is" : "are");
    for (int i = 0; i < ch_history_count(h); i++)
        ch__text_add(&o, "%s %.60s", i > 0 ? "," : "", ch_history_name(h, i));
    ch__text_add(&o, "\n");
    return ch__text_length(&o);
}

/* Plots the curve of the loss over the steps. While the training runs the number of steps is
 * not known, so the axis counts the points. */
static int plot_curve(const ch_history *h, int columns, int rows, char *text, size_t size)
{
    ch_plot_axis axis = {"step", 1, h->time.steps};

    if (axis.last < h->n_curve) /* the training is still running */
        axis = (ch_plot_axis){NULL, 1, h->n_curve};
    return ch__plot(&axis, h->n_curve, h->curve, columns, rows, text, size);
}

/* Counts epochs from 1, as the progress line does. */
int ch_history_plot(const ch_history *h, const char *name, int columns, int rows, char *text,
                    size_t size)
{
    int          n = ch_history_epochs(h), result;
    double      *y;
    ch_plot_axis axis = {"epoch", n > 0, n};

    if (h != NULL && name != NULL && strcmp(name, "loss") == 0 && h->n_curve > 1)
        return plot_curve(h, columns, rows, text, size);
    if (ch_history_count(h) > 0 && !has_name(h, name))
        return print_names(h, name, text, size);
    y = ch__malloc(((size_t)n + 1) * sizeof(double));
    for (int i = 0; y != NULL && i < n; i++)
        y[i] = ch_history_at(h, name, i);
    result = ch__plot(&axis, y != NULL ? n : 0, y, columns, rows, text, size);
    ch__free(y);
    return result;
}
