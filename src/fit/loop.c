/* fit/loop.c -- runs, callbacks, the clock.   SPDX-License-Identifier: Apache-2.0 */
#include "fit/loop.h"

#include "base/fault.h"
#include "base/mem.h"
#include "fit/interrupt.h"
#include "fit/progress.h"
#include "graph/trace.h"
#include "strategy/strategy.h"

/* Numbers of steps so far, for who asks for them. */
static ch_status refresh(ch_training *t)
{
    return ch__compiled_read(((ch_loop *)t)->c, "", &t->logs);
}

/* The line is told first: what other callbacks print at the end of an epoch stands below it. */
static ch_status add_line(ch_loop *l, ch_progress progress)
{
    enum { STANDARD_ERROR = 2 };
    ch_status rc = CH_OK;

    if (progress != CH_PROGRESS_OFF)
        rc = ch__progress_new(progress, STANDARD_ERROR, &l->line);
    if (l->line != NULL)
        l->callback[l->n_callbacks++] = l->line;
    return rc;
}

ch_status ch__loop_open(ch_loop *l, ch_compiled *c, int n, ch_callback *const *callback,
                        ch_progress progress)
{
    ch_status rc;

    l->c = c;
    l->t.model = c->model;
    l->t.refresh = refresh;
    l->t.began_ns = ch__now_ns();
    ch__ledger_open(&l->ledger);
    l->callback = ch__calloc((size_t)n + 1, sizeof(ch_callback *));
    if (l->callback == NULL)
        return ch__fail_memory("callbacks");
    rc = add_line(l, progress);
    for (int i = 0; i < n && rc == CH_OK; i++) {
        if (callback[i] == NULL)
            rc = ch__fail(CH_INVALID_ARGUMENT, "callback %d is NULL: it could not be made", i);
        else
            l->callback[l->n_callbacks++] = callback[i];
    }
    return rc;
}

void ch__loop_close(ch_loop *l)
{
    ch__loop_catch(l, false);
    ch_callback_unref(l->line);
    ch__free(l->callback);
    ch__logs_drop(&l->t.logs);
}

void ch__loop_count(ch_loop *l, ch_time row)
{
    int64_t from = l->ledger.last;

    if (l->is_apart)
        return;
    l->ledger.ns[row] += ch__ledger_lap(&l->ledger);
    if (row != CH_TIME_OTHER && ch__trace_is_on())
        ch__trace_span("fit", ch_time_name(row), from, l->ledger.last);
}

ch_status ch__loop_tell(ch_loop *l, ch_event event)
{
    ch_status rc;

    ch__loop_count(l, CH_TIME_OTHER);
    rc = ch__callbacks_tell(l->n_callbacks, l->callback, &l->t, event);
    if (l->catches && ch__interrupted())
        ch_training_stop(&l->t, "interrupted");
    ch__loop_count(l, CH_TIME_CALLBACKS);
    return rc;
}

void ch__loop_catch(ch_loop *l, bool on)
{
    if (on && !l->catches)
        ch__interrupt_catch();
    else if (!on && l->catches)
        ch__interrupt_release();
    l->catches = on;
}

ch_status ch__loop_run(ch_loop *l, ch_function *f, ch_tuple *batch, ch_tuple **out)
{
    ch_timing timing = {.total_ns = 0};
    ch_status rc;

    if (l->is_apart)
        return ch_strategy_run(l->c->strategy, f, batch, out);
    if (!ch__ledger_times(&l->ledger)) {
        rc = ch_strategy_run(l->c->strategy, f, batch, out);
        ch__ledger_step(&l->ledger, NULL);
        return rc;
    }
    rc = ch__strategy_run_timed(l->c->strategy, f, batch, out, &timing);
    ch__ledger_step(&l->ledger, &timing);
    return rc;
}

ch_status ch__loop_step(ch_loop *l, ch_function *f, ch_tuple *batch, bool takes)
{
    ch_tuple *out = NULL;
    ch_status rc = ch__loop_run(l, f, batch, takes ? &out : NULL);

    if (rc == CH_OK && takes)
        rc = ch__compiled_take(l->c, out);
    ch_tuple_unref(out);
    return rc;
}

void ch__loop_table(ch_loop *l, ch_time_table *out)
{
    ch__loop_count(l, CH_TIME_OTHER);
    *out = (ch_time_table){.steps = l->t.step,
                           .examples = l->t.examples,
                           .replicas = ch_strategy_replicas(l->c->strategy),
                           .peak_bytes = ch__peak_bytes()};
    ch__ledger_table(&l->ledger, out);
}
