/* fit/inflight.c -- the queue of steps in flight.   SPDX-License-Identifier: Apache-2.0 */
#include "fit/inflight.h"

#include "base/mem.h"

/* Records the error of this thread as the error of step number `step`, unless an earlier error
 * is recorded. Returns `rc`. */
static ch_status fail(ch_inflight *a, ch_status rc, int64_t step)
{
    if (ch__fault_record(&a->fault, rc, -1, NULL))
        a->failed = step;
    return rc;
}

/* Makes room for a step at the end of the queue. Entries before `first` are free. They are
 * reused, by moving the queue to the front of the array, when they are at least as many as the
 * queue is long. Returns false if memory is exhausted. */
static bool reserve(ch_inflight *a)
{
    if (a->first > 0 && a->first >= a->n) {
        for (int i = 0; i < a->n; i++)
            a->at[i] = a->at[a->first + i];
        a->first = 0;
    }
    return ch__grow((void **)&a->at, &a->capacity, a->first + a->n + 1, sizeof(a->at[0]));
}

/* Blocks until the oldest step has ended, and handles its results. Results are dropped if an
 * earlier step failed. CH_CANCELLED is not recorded as an error, because another step is its
 * cause. */
static void finish_first(ch_inflight *a)
{
    struct ch_inflight_step b = a->at[a->first++];
    ch_tuple               *out = NULL;
    ch_status rc = a->strategy->exec->wait(&b.run, b.handler.fn != NULL ? &out : NULL);

    a->n--;
    if (rc == CH_OK && b.handler.fn != NULL && !ch__fault_is_set(&a->fault))
        rc = b.handler.fn(b.handler.arg, out);
    if (rc == CH_CANCELLED)
        a->was_cancelled = true;
    else if (rc != CH_OK)
        (void)fail(a, rc, b.step);
    ch_tuple_unref(out);
}

/* Ends all steps in flight. The recorded error is the first of: the error of a step in flight,
 * the error `rc` of the caller, the error that the strategy reports. The strategy may report
 * the error of a step that other code scheduled. `step` is the number recorded with the last
 * two. */
static ch_status finish_all(ch_inflight *a, ch_status rc, int64_t step)
{
    ch_fault first;

    ch__fault_clear(&first);
    if (rc != CH_OK)
        ch__fault_record(&first, rc, -1, NULL);
    if (a->snapshot == 0)
        rc = a->strategy->exec->drain(a->strategy);
    if (rc != CH_OK)
        ch__fault_record(&first, rc, -1, NULL);
    while (a->n > 0)
        finish_first(a);
    a->is_open = false;
    rc = ch__fault_raise(&first);
    if (rc == CH_OK && a->was_cancelled)
        rc = ch__fail(CH_CANCELLED, "steps were cancelled because a step failed that other "
                                    "code had scheduled with the same coordinator");
    return rc == CH_OK ? CH_OK : fail(a, rc, step);
}

ch_status ch__inflight_drain(ch_inflight *a)
{
    if (a->is_open && !ch__fault_is_set(&a->fault))
        (void)finish_all(a, CH_OK, a->n > 0 ? a->at[a->first + a->n - 1].step : 0);
    return ch__fault_raise(&a->fault);
}

static ch_status start(ch_inflight *a, ch_function *f, ch_tuple *batch, int64_t step,
                       ch_result_handler handler)
{
    struct ch_inflight_step b = {.step = step, .handler = handler};
    ch_status               rc = reserve(a) ? CH_OK : ch__fail_memory("steps in flight");

    if (rc == CH_OK)
        rc = ch__strategy_start(a->strategy, f, batch, a->snapshot, &b.run);
    if (rc == CH_OK)
        a->at[a->first + a->n++] = b;
    a->is_open |= rc == CH_OK;
    return rc;
}

ch_status ch__inflight_wait_for_room(ch_inflight *a)
{
    return ch__fault_is_set(&a->fault)
               ? CH_OK
               : a->strategy->exec->wait_capacity(a->strategy, a->snapshot != 0);
}

void ch__inflight_collect(ch_inflight *a)
{
    while (a->n > 0 && !ch__fault_is_set(&a->fault) && !a->was_cancelled &&
           a->strategy->exec->poll(&a->at[a->first].run))
        finish_first(a);
}

ch_status ch__inflight_run(ch_inflight *a, ch_function *f, ch_tuple *batch, int64_t step,
                           ch_result_handler handler)
{
    ch_status rc;

    if (ch__fault_is_set(&a->fault))
        return ch__fault_raise(&a->fault);
    rc = start(a, f, batch, step, handler);
    if (rc == CH_OK)
        ch__inflight_collect(a);
    if (rc != CH_OK || ch__fault_is_set(&a->fault) || a->was_cancelled)
        (void)finish_all(a, rc, step);
    return ch__fault_raise(&a->fault);
}

void ch__inflight_close(ch_inflight *a)
{
    if (a->is_open)
        (void)ch__inflight_drain(a);
    ch__free(a->at);
    a->at = NULL;
    a->first = a->capacity = 0;
}
