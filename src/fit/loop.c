/* fit/loop.c -- runs, callbacks, the clock.   SPDX-License-Identifier: Apache-2.0 */
#include "fit/loop.h"

#include "base/fault.h"
#include "base/mem.h"
#include "fit/interrupt.h"
#include "fit/progress.h"
#include "graph/function.h"
#include "graph/trace.h"
#include "strategy/strategy.h"

/* Numbers of steps so far, for who asks for them. */
static ch_status refresh(ch_training *t)
{
    ch_compiled *c = ((ch_loop *)t)->c;

    return ch__compiled_read(c, (t->is_evaluation ? c->test_step : c->train_step) != NULL, "",
                             &t->logs);
}

static ch_status settle(ch_training *t)
{
    return ch__loop_settle((ch_loop *)t);
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

/* The loops of this thread, the innermost first: each in a callback of the next. */
static _Thread_local ch_loop *innermost;

void ch__loop_open(ch_loop *l, ch_compiled *c, const void *caller)
{
    ch__ledger_open(&l->ledger);
    l->c = c;
    l->t.model = ch_model_ref(c->model);
    l->t.refresh = refresh;
    l->row = CH_TIME_OTHER;
    l->ahead.strategy = c->strategy;
    if (!c->strategy->exec->is_synchronous)
        l->t.settle = settle;
    l->outer = innermost;
    innermost = l;
    l->t.began_ns = l->ledger.last;
    l->caller_before = c->caller;
    c->caller = caller;
    atomic_fetch_add(&c->n_running, 1);
}

void ch__loop_close(ch_loop *l)
{
    if (l->c == NULL)
        return;
    ch__ahead_close(&l->ahead);
    ch__loop_unpin(l);
    innermost = l->outer;
    ch__loop_catch(l, false);
    ch_callback_unref(l->line);
    ch__free(l->callback);
    ch__logs_drop(&l->t.logs);
    l->c->caller = l->caller_before;
    if (l->counts)
        atomic_fetch_sub(&l->c->n_counting, 1);
    atomic_fetch_sub(&l->c->n_running, 1);
    ch_model_unref(l->t.model);
    l->c = NULL;
}

int ch__loop_counts(ch_loop *l)
{
    l->counts = true;
    return atomic_fetch_add(&l->c->n_counting, 1);
}

ch_status ch__loop_callbacks(ch_loop *l, int n, ch_callback *const *callback,
                             ch_progress progress)
{
    ch_status rc;

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
    l->row = CH_TIME_CALLBACKS;
    rc = ch__callbacks_tell(l->n_callbacks, l->callback, &l->t, event);
    if (l->catches && ch__interrupted())
        ch_training_stop(&l->t, "interrupted");
    ch__loop_count(l, l->row);
    l->row = CH_TIME_OTHER;
    return rc;
}

ch_status ch__loop_end(ch_loop *l, ch_status rc)
{
    ch_fault  first;
    ch_status last;

    ch__fault_clear(&first);
    if (rc != CH_OK)
        ch__fault_take(&first, rc, -1, NULL);
    last = ch__loop_settle(l); /* after an error something may run */
    if (last != CH_OK)
        ch__fault_take(&first, last, -1, NULL);
    last = ch__loop_tell(l, CH_ON_END);
    if (last != CH_OK)
        ch__fault_take(&first, last, -1, NULL);
    return ch__fault_raise(&first);
}

void ch__loop_catch(ch_loop *l, bool on)
{
    if (on && !l->catches)
        ch__interrupt_catch();
    else if (!on && l->catches)
        ch__interrupt_release();
    l->catches = on;
}

/* ---- runs ---- */

static ch_status run_here(ch_loop *l, ch_function *f, ch_tuple *batch, ch_tuple **out)
{
    ch_timing timing = {.total_ns = 0};
    bool      is_timed = ch__ledger_times(&l->ledger);
    int64_t   planned;
    ch_status rc;

    if (l->is_apart)
        return ch_strategy_run(l->c->strategy, f, batch, out);
    planned = ch__function_planning_ns(f);
    rc = is_timed ? ch__strategy_run_timed(l->c->strategy, f, batch, out, &timing)
                  : ch_strategy_run(l->c->strategy, f, batch, out);
    ch__ledger_step(&l->ledger, is_timed && rc == CH_OK ? &timing : NULL,
                    ch__function_planning_ns(f) - planned);
    return rc;
}

/* Waiting until there is something to do for workers is waiting for them; the rest is recording, and sending. */
static ch_status run_ahead(ch_loop *l, ch_function *f, ch_tuple *batch, ch_taker taker,
                           int64_t *step)
{
    int64_t   planned = ch__function_planning_ns(f);
    ch_status rc;

    ch__loop_count(l, CH_TIME_OTHER);
    rc = ch__ahead_room(&l->ahead);
    ch__loop_count(l, CH_TIME_WORKERS);
    if (rc == CH_OK)
        rc = ch__ahead_run(&l->ahead, f, batch, *step, taker);
    if (ch__fault_is_set(&l->ahead.fault))
        *step = l->ahead.failed;
    ch__loop_count(l, CH_TIME_OTHER);
    planned = l->is_apart ? 0 : ch__function_planning_ns(f) - planned;
    l->ledger.ns[CH_TIME_PLANNING] += planned;
    l->ledger.ns[CH_TIME_OTHER] -= planned;
    return rc;
}

ch_status ch__loop_run(ch_loop *l, ch_function *f, ch_tuple *batch, ch_taker taker,
                       int64_t *step)
{
    ch_tuple *out = NULL;
    ch_status rc;

    if (!l->c->strategy->exec->is_synchronous)
        return run_ahead(l, f, batch, taker, step);
    rc = run_here(l, f, batch, taker.fn != NULL ? &out : NULL);
    if (rc == CH_OK && taker.fn != NULL)
        rc = taker.fn(taker.arg, out);
    ch_tuple_unref(out);
    return rc;
}

static ch_status take(void *arg, const ch_tuple *out)
{
    return ch__compiled_take(arg, out);
}

ch_status ch__loop_step(ch_loop *l, ch_function *f, ch_tuple *batch, bool takes, int64_t *step)
{
    return ch__loop_run(l, f, batch, (ch_taker){takes ? take : NULL, l->c}, step);
}

ch_status ch__loop_settle(ch_loop *l)
{
    ch_status rc;

    if (!l->ahead.is_open)
        return ch__ahead_settle(&l->ahead);
    ch__loop_count(l, l->row);
    rc = ch__ahead_settle(&l->ahead);
    ch__loop_count(l, CH_TIME_WORKERS);
    return rc;
}

ch_status ch__loop_settle_outer(const ch_loop *l)
{
    ch_status rc = CH_OK;

    for (ch_loop *o = l->outer; o != NULL && rc == CH_OK; o = o->outer)
        rc = ch__loop_settle(o);
    return rc;
}

ch_status ch__loop_pin(ch_loop *l)
{
    return l->c->strategy->exec->snapshot(l->c->strategy, &l->ahead.snapshot);
}

void ch__loop_unpin(ch_loop *l)
{
    l->c->strategy->exec->release(l->c->strategy, l->ahead.snapshot);
    l->ahead.snapshot = 0;
}

void ch__loop_table(ch_loop *l, ch_time_table *out)
{
    *out = (ch_time_table){.steps = l->t.step,
                           .examples = l->t.examples,
                           .replicas = ch_strategy_replicas(l->c->strategy),
                           .workers = l->c->strategy->exec->workers(l->c->strategy),
                           .peak_bytes = ch__peak_bytes()};
    ch__loop_count(l, CH_TIME_OTHER);
    ch__ledger_table(&l->ledger, out);
}

bool ch__loop_is_alone(const ch_loop *l)
{
    return ch_strategy_local_replicas(l->c->strategy) == ch_strategy_replicas(l->c->strategy);
}
