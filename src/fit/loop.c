/* fit/loop.c -- the common part of ch_fit, ch_evaluate and ch_predict.
 *
 * Implements ch_loop: it runs steps, sends events to callbacks and charges time. fit.c and
 * evaluate.c call it. Invariants:
 *
 *   1. All time between ch__loop_open and ch__loop_table is charged to exactly one row of the
 *      time account, unless the loop is untimed. So the rows add up to the total.
 *   2. The open loops of a thread form a list from the innermost to the outermost loop.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "fit/loop.h"

#include "base/fault.h"
#include "base/mem.h"
#include "base/trace.h"
#include "fit/callback.h"
#include "fit/interrupt.h"
#include "fit/report/progress.h"
#include "graph/function.h"
#include "strategy/strategy.h"

/* Reads the metrics of the steps so far into the logs. */
static ch_status refresh(ch_training *t)
{
    ch_compiled *c = ((ch_loop *)t)->c;

    return ch__compiled_read(c, (t->is_evaluation ? c->test_step : c->train_step) != NULL, "",
                             &t->logs);
}

static ch_status drain(ch_training *t)
{
    return ch__loop_drain((ch_loop *)t);
}

/* Creates the progress line and adds it as the first callback, so that text which other
 * callbacks print at the end of an epoch appears below the line. */
static ch_status add_progress(ch_loop *l, ch_progress progress)
{
    enum { STANDARD_ERROR = 2 };
    ch_status rc = CH_OK;

    if (progress != CH_PROGRESS_OFF)
        rc = ch__progress_new(progress, STANDARD_ERROR, &l->line);
    if (l->line != NULL)
        l->callback[l->n_callbacks++] = l->line;
    return rc;
}

/* The innermost open loop of this thread; NULL: none. Each loop was opened in a callback of its
 * `outer` loop. */
static _Thread_local ch_loop *innermost;

void ch__loop_open(ch_loop *l, ch_compiled *c, const void *caller)
{
    ch__time_account_open(&l->account);
    l->c = c;
    l->t.model = ch_model_ref(c->model);
    l->t.refresh = refresh;
    l->row = CH_TIME_OTHER;
    l->inflight.strategy = c->strategy;
    if (!c->strategy->exec->is_synchronous)
        l->t.drain = drain;
    l->outer = innermost;
    innermost = l;
    l->t.began_ns = l->account.last;
    l->outer_caller = c->caller;
    c->caller = caller;
    atomic_fetch_add(&c->n_running, 1);
}

void ch__loop_close(ch_loop *l)
{
    if (l->c == NULL)
        return;
    ch__inflight_close(&l->inflight);
    ch__loop_release_snapshot(l);
    innermost = l->outer;
    ch__loop_catch(l, false);
    ch_callback_unref(l->line);
    ch__free(l->callback);
    ch__logs_drop(&l->t.logs);
    l->c->caller = l->outer_caller;
    if (l->uses_metrics)
        atomic_fetch_sub(&l->c->n_metric_users, 1);
    atomic_fetch_sub(&l->c->n_running, 1);
    ch_model_unref(l->t.model);
    l->c = NULL;
}

int ch__loop_use_metrics(ch_loop *l)
{
    l->uses_metrics = true;
    return atomic_fetch_add(&l->c->n_metric_users, 1);
}

ch_status ch__loop_callbacks(ch_loop *l, int n, ch_callback *const *callback,
                             ch_progress progress)
{
    ch_status rc;

    l->callback = ch__calloc((size_t)n + 1, sizeof(ch_callback *));
    if (l->callback == NULL)
        return ch__fail_memory("callbacks");
    rc = add_progress(l, progress);
    for (int i = 0; i < n && rc == CH_OK; i++) {
        if (callback[i] == NULL)
            rc = ch__fail(CH_INVALID_ARGUMENT, "callback %d is NULL: it could not be created",
                          i);
        else
            l->callback[l->n_callbacks++] = callback[i];
    }
    for (int i = 0; i < l->n_callbacks; i++)
        l->events |= ch__callback_events(l->callback[i]);
    return rc;
}

void ch__loop_charge(ch_loop *l, ch_time row)
{
    int64_t from = l->account.last;

    if (l->is_untimed)
        return;
    l->account.ns[row] += ch__time_account_lap(&l->account);
    if (row != CH_TIME_OTHER && ch__trace_is_on())
        ch__trace_span("fit", ch_time_name(row), from, l->account.last);
}

/* Sends an event, and charges its time to `row`. */
static ch_status notify(ch_loop *l, ch_event event, ch_time row)
{
    ch_status rc;

    ch__loop_charge(l, CH_TIME_OTHER);
    l->row = row;
    rc = ch__callbacks_notify(l->n_callbacks, l->callback, &l->t, event);
    ch__loop_charge(l, l->row);
    l->row = CH_TIME_OTHER;
    return rc;
}

ch_status ch__loop_notify(ch_loop *l, ch_event event)
{
    ch_status rc = notify(l, event, CH_TIME_CALLBACKS);

    if (l->catches && ch__interrupted())
        ch__training_pause(&l->t, "interrupted");
    return rc;
}

ch_status ch__loop_save_point(ch_loop *l, int save_point)
{
    if ((l->events & (unsigned)save_point) == 0)
        return CH_OK;
    return notify(l, (ch_event)save_point, CH_TIME_SAVE);
}

ch_status ch__loop_end(ch_loop *l, ch_status rc)
{
    ch_fault  first;
    ch_status last;

    ch__fault_clear(&first);
    if (rc != CH_OK)
        ch__fault_record(&first, rc, -1, NULL);
    last = ch__loop_drain(l); /* after an error steps may be in flight */
    if (last != CH_OK)
        ch__fault_record(&first, last, -1, NULL);
    last = ch__loop_notify(l, CH_ON_END);
    if (last != CH_OK)
        ch__fault_record(&first, last, -1, NULL);
    return ch__fault_raise(&first);
}

void ch__loop_catch(ch_loop *l, bool on)
{
    if (on && !l->catches)
        ch__interrupt_catch(CH_INTERRUPT_STOP);
    else if (!on && l->catches)
        ch__interrupt_release(CH_INTERRUPT_STOP);
    l->catches = on;
}

/* ---- steps ---- */

/* Runs a step and returns when it has ended. */
static ch_status run_now(ch_loop *l, ch_function *f, ch_tuple *batch, ch_tuple **out)
{
    ch_timing timing = {.total_ns = 0};
    bool      is_timed = ch__time_account_is_timed(&l->account);
    int64_t   planned;
    ch_status rc;

    if (l->is_untimed)
        return ch_strategy_run(l->c->strategy, f, batch, out);
    planned = ch__function_planning_ns(f);
    rc = is_timed ? ch__strategy_run_timed(l->c->strategy, f, batch, out, &timing)
                  : ch_strategy_run(l->c->strategy, f, batch, out);
    ch__time_account_step(&l->account, is_timed && rc == CH_OK ? &timing : NULL,
                          ch__function_planning_ns(f) - planned);
    return rc;
}

/* Starts a step. Charges the wait for a free worker to CH_TIME_WORKERS, recording and planning
 * to CH_TIME_PLANNING, and the rest to CH_TIME_OTHER. */
static ch_status run_inflight(ch_loop *l, ch_function *f, ch_tuple *batch,
                              ch_result_handler handler, int64_t *step)
{
    int64_t   planned = ch__function_planning_ns(f);
    ch_status rc;

    ch__loop_charge(l, CH_TIME_OTHER);
    rc = ch__inflight_wait_for_room(&l->inflight);
    ch__loop_charge(l, CH_TIME_WORKERS);
    if (rc == CH_OK)
        rc = ch__inflight_run(&l->inflight, f, batch, *step, handler);
    if (ch__fault_is_set(&l->inflight.fault))
        *step = l->inflight.failed;
    ch__loop_charge(l, CH_TIME_OTHER);
    planned = l->is_untimed ? 0 : ch__function_planning_ns(f) - planned;
    l->account.ns[CH_TIME_PLANNING] += planned;
    l->account.ns[CH_TIME_OTHER] -= planned;
    return rc;
}

ch_status ch__loop_run(ch_loop *l, ch_function *f, ch_tuple *batch, ch_result_handler handler,
                       int64_t *step)
{
    ch_tuple *out = NULL;
    ch_status rc;

    if (!l->c->strategy->exec->is_synchronous)
        return run_inflight(l, f, batch, handler, step);
    rc = run_now(l, f, batch, handler.fn != NULL ? &out : NULL);
    if (rc == CH_OK && handler.fn != NULL)
        rc = handler.fn(handler.arg, out);
    ch_tuple_unref(out);
    return rc;
}

static ch_status add_outputs(void *arg, const ch_tuple *out)
{
    return ch__compiled_add_outputs(arg, out);
}

ch_status ch__loop_step(ch_loop *l, ch_function *f, ch_tuple *batch, bool reads_outputs,
                        int64_t *step)
{
    return ch__loop_run(l, f, batch,
                        (ch_result_handler){reads_outputs ? add_outputs : NULL, l->c}, step);
}

ch_status ch__loop_drain(ch_loop *l)
{
    ch_status rc;

    if (!l->inflight.is_open)
        return ch__inflight_drain(&l->inflight);
    ch__loop_charge(l, l->row);
    rc = ch__inflight_drain(&l->inflight);
    ch__loop_charge(l, CH_TIME_WORKERS);
    return rc;
}

ch_status ch__loop_drain_outer(const ch_loop *l)
{
    ch_status rc = CH_OK;

    for (ch_loop *o = l->outer; o != NULL && rc == CH_OK; o = o->outer)
        rc = ch__loop_drain(o);
    return rc;
}

ch_status ch__loop_snapshot(ch_loop *l)
{
    return l->c->strategy->exec->snapshot(l->c->strategy, &l->inflight.snapshot);
}

void ch__loop_release_snapshot(ch_loop *l)
{
    l->c->strategy->exec->release(l->c->strategy, l->inflight.snapshot);
    l->inflight.snapshot = 0;
}

void ch__loop_table(ch_loop *l, ch_time_table *out)
{
    *out = (ch_time_table){.steps = l->t.step - l->loaded_steps,
                           .examples = l->t.examples - l->loaded_examples,
                           .replicas = ch_strategy_replicas(l->c->strategy),
                           .workers = l->c->strategy->exec->workers(l->c->strategy),
                           .saves = l->t.n_saves,
                           .skipped_saves = l->t.n_skipped_saves,
                           .peak_bytes = ch__peak_bytes()};
    ch__loop_charge(l, CH_TIME_OTHER);
    ch__time_account_table(&l->account, out);
}

bool ch__loop_has_all_replicas(const ch_loop *l)
{
    return ch_strategy_local_replicas(l->c->strategy) == ch_strategy_replicas(l->c->strategy);
}
