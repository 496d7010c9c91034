/* fit/history_print.c -- a history for people.   SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "fit/history.h"
#include "fit/plot.h"
#include "tensor/print.h"

/* ---- numbers of epochs ---- */

static int width_of(const char *name)
{
    int n = 0;

    while (name[n] != '\0')
        n++;
    return n > 9 ? n : 9;
}

int ch_history_print(const ch_history *h, char *text, size_t size)
{
    ch_text o = ch__text(text, size);

    ch__text_add(&o, "epoch");
    for (int i = 0; i < ch_history_count(h); i++)
        ch__text_add(&o, "  %*s", width_of(ch_history_name(h, i)), ch_history_name(h, i));
    ch__text_add(&o, "\n");
    for (int e = 0; e < ch_history_epochs(h); e++) {
        ch__text_add(&o, "%5d", e);
        for (int i = 0; i < ch_history_count(h); i++) {
            const char *name = ch_history_name(h, i);
            double      x = ch_history_at(h, name, e);

            if (isnan(x))
                ch__text_add(&o, "  %*s", width_of(name), "-");
            else
                ch__text_add(&o, "  %*.4g", width_of(name), x);
        }
        ch__text_add(&o, "\n");
    }
    return ch__text_length(&o);
}

/* ---- where the time went ---- */

static void print_speed(ch_text *o, const ch_time_table *t)
{
    double inside = t->total - t->seconds[CH_TIME_VALIDATE];

    if (t->steps == 0 || inside <= 0)
        return;
    ch__text_add(o, "%lld steps, %.3g ms each; %.4g examples/s on %d replica%s\n",
                 (long long)t->steps, 1e3 * inside / (double)t->steps,
                 (double)t->examples / inside, t->replicas, t->replicas == 1 ? "" : "s");
    if (t->one_replica_step > 0 && t->replicas > 1)
        ch__text_add(o, "%.2f times the speed of one replica\n",
                     t->replicas * t->one_replica_step * (double)t->steps / inside);
}

int ch_history_print_time(const ch_history *h, char *text, size_t size)
{
    ch_time_table t = ch_history_time(h);
    ch_text       o = ch__text(text, size);

    ch__text_add(&o, "%-25s %9s %7s\n", "where the time went", "seconds", "share");
    for (int i = 0; i < CH_TIMES; i++)
        if (t.seconds[i] > 0)
            ch__text_add(&o, "  %-23s %9.3f %5.1f %%\n", ch_time_name((ch_time)i), t.seconds[i],
                         t.total > 0 ? 100 * t.seconds[i] / t.total : 0);
    ch__text_add(&o, "  %-23s %9.3f %5.1f %%\n", "all", t.total, 100.0);
    print_speed(&o, &t);
    if (t.peak_bytes > 0)
        ch__text_add(&o, "at most %.0f MiB of memory\n", (double)t.peak_bytes / (1 << 20));
    return ch__text_length(&o);
}
