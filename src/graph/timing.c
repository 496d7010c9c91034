/* graph/timing.c -- measures how a run spends its time: clocks of replicas, and their summary.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/timing.h"

#include <stdio.h>
#include <string.h>

#include "base/thread.h"
#include "base/trace.h"

const char *ch__work_name(ch_work_kind work)
{
    static const char *const name[] = {
        [CH_WORK_FORWARD] = "forward", [CH_WORK_BACKWARD] = "backward",
        [CH_WORK_REDUCE] = "reduce",   [CH_WORK_UPDATE] = "update",
        [CH_WORK_WAIT] = "wait",       [CH_WORK_OTHER] = "other",
    };

    return (unsigned)work < CH_WORKS ? name[work] : "unknown";
}

/* ---- clocks ---- */

void ch__clock_start(ch_clock *c, const char *track)
{
    memset(c, 0, sizeof(*c));
    c->work = CH_WORK_OTHER;
    c->track = track;
    c->began_ns = c->since_ns = ch__now_ns();
}

ch_work_kind ch__clock_switch(ch_clock *c, ch_work_kind work)
{
    ch_work_kind before = c->work;
    int64_t      now;

    if (before == work)
        return before;
    now = ch__now_ns();
    c->ns[before] += now - c->since_ns;
    c->since_ns = now;
    c->work = work;
    return before;
}

void ch__clock_stop(ch_clock *c, const char *function, int failed)
{
    char name[128];

    c->ended_ns = ch__now_ns();
    c->ns[c->work] += c->ended_ns - c->since_ns;
    if (c->track == NULL)
        return;
    snprintf(name, sizeof(name), "%s%s", function, failed ? " (failed)" : "");
    ch__trace_span(c->track, name, c->began_ns, c->ended_ns);
}

int64_t ch__clock_begin_span(const ch_clock *c)
{
    return c->track != NULL ? ch__now_ns() : 0;
}

void ch__clock_end_span(const ch_clock *c, int64_t began_ns, const char *scope,
                        const char *name)
{
    char    text[256];
    int64_t now;

    if (c->track == NULL)
        return;
    now = ch__now_ns(); /* read first, so that the span does not include formatting its name */
    if (scope == NULL && c->work != CH_WORK_FORWARD)
        scope = ch__work_name(c->work);
    snprintf(text, sizeof(text), "%s%s%s", scope != NULL ? scope : "", scope != NULL ? "/" : "",
             name);
    ch__trace_span(c->track, text, began_ns, now);
}

void ch__clock_suspend(ch_clock *c)
{
    int64_t now = ch__now_ns();

    c->ns[c->work] += now - c->since_ns;
    c->since_ns = now;
}

void ch__clock_continue(ch_clock *c)
{
    int64_t began = c->since_ns;

    c->since_ns = ch__now_ns();
    if (c->track != NULL)
        ch__trace_span(c->track, "wait (turns of others)", began, c->since_ns);
}

ch_pause ch__clock_pause(ch_clock *c)
{
    ch_work_kind before = ch__clock_switch(c, CH_WORK_WAIT);

    return (ch_pause){before, c->since_ns};
}

void ch__clock_resume(ch_clock *c, ch_pause p, const char *what)
{
    char name[96];

    (void)ch__clock_switch(c, p.before);
    if (c->track == NULL)
        return;
    snprintf(name, sizeof(name), "wait (%s)", what);
    ch__trace_span(c->track, name, p.began_ns, c->since_ns);
}

/* ---- the time of a run ---- */

void ch__timing_mean(ch_timing *t, int n, const ch_clock *clock)
{
    int64_t last = 0;

    memset(t, 0, sizeof(*t));
    for (int r = 0; r < n; r++)
        last = clock[r].ended_ns > last ? clock[r].ended_ns : last;
    for (int r = 0; r < n; r++) {
        for (int w = 0; w < CH_WORK_OTHER; w++)
            t->ns[w] += clock[r].ns[w];
        t->ns[CH_WORK_WAIT] += last - clock[r].ended_ns;
    }
    for (int w = 0; w < CH_WORK_OTHER; w++)
        t->ns[w] /= n;
}

void ch__timing_sum(ch_timing *t, int n, const ch_clock *clock)
{
    memset(t, 0, sizeof(*t));
    for (int r = 0; r < n; r++)
        for (int w = 0; w < CH_WORK_OTHER; w++)
            t->ns[w] += clock[r].ns[w];
}

void ch__timing_close(ch_timing *t, int64_t total_ns)
{
    t->total_ns = total_ns;
    t->ns[CH_WORK_OTHER] = total_ns;
    for (int w = 0; w < CH_WORK_OTHER; w++)
        t->ns[CH_WORK_OTHER] -= t->ns[w];
}
