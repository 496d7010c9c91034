/* fit/inflight.c -- runs ahead of their results.   SPDX-License-Identifier: Apache-2.0 */
#include "fit/inflight.h"

#include "base/mem.h"

/* This thread's error, if it is the first. */
static ch_status fail(ch_inflight *a, ch_status rc, int64_t step)
{
    if (ch__fault_record(&a->fault, rc, -1, NULL))
        a->failed = step;
    return rc;
}

/* A queue in an array: what was taken is in front, until there is as much of it as of the rest. */
static bool make_room(ch_inflight *a)
{
    if (a->first > 0 && a->first >= a->n) {
        for (int i = 0; i < a->n; i++)
            a->at[i] = a->at[a->first + i];
        a->first = 0;
    }
    return ch__grow((void **)&a->at, &a->capacity, a->first + a->n + 1, sizeof(a->at[0]));
}

/* Waits for the oldest. One that was cancelled is not what failed. */
static void take_first(ch_inflight *a)
{
    struct ch_begun b = a->at[a->first++];
    ch_tuple       *out = NULL;
    ch_status       rc = a->strategy->exec->wait(&b.run, b.taker.fn != NULL ? &out : NULL);

    a->n--;
    if (rc == CH_OK && b.taker.fn != NULL && !ch__fault_is_set(&a->fault))
        rc = b.taker.fn(b.taker.arg, out);
    if (rc == CH_CANCELLED)
        a->was_cancelled = true;
    else if (rc != CH_OK)
        (void)fail(a, rc, b.step);
    ch_tuple_unref(out);
}

/* Of all that has ended, the first that failed is what counts; else what the strategy says, which may be another's. */
static ch_status end_all(ch_inflight *a, ch_status rc, int64_t step)
{
    ch_fault said;

    ch__fault_clear(&said);
    if (rc != CH_OK)
        ch__fault_record(&said, rc, -1, NULL);
    if (a->snapshot == 0)
        rc = a->strategy->exec->drain(a->strategy);
    if (rc != CH_OK)
        ch__fault_record(&said, rc, -1, NULL);
    while (a->n > 0)
        take_first(a);
    a->is_open = false;
    rc = ch__fault_raise(&said);
    if (rc == CH_OK && a->was_cancelled)
        rc = ch__fail(CH_CANCELLED, "steps were cancelled, since one failed that somebody else "
                                    "had scheduled with the same coordinator");
    return rc == CH_OK ? CH_OK : fail(a, rc, step);
}

ch_status ch__inflight_drain(ch_inflight *a)
{
    if (a->is_open && !ch__fault_is_set(&a->fault))
        (void)end_all(a, CH_OK, a->n > 0 ? a->at[a->first + a->n - 1].step : 0);
    return ch__fault_raise(&a->fault);
}

static ch_status begin(ch_inflight *a, ch_function *f, ch_tuple *batch, int64_t step,
                       ch_result_handler taker)
{
    struct ch_begun b = {.step = step, .taker = taker};
    ch_status       rc = make_room(a) ? CH_OK : ch__fail_memory("steps that run ahead");

    if (rc == CH_OK)
        rc = ch__strategy_start(a->strategy, f, batch, a->snapshot, &b.run);
    if (rc == CH_OK)
        a->at[a->first + a->n++] = b;
    a->is_open |= rc == CH_OK;
    return rc;
}

/* What is wrong with earlier ones is for the next run to say. */
ch_status ch__inflight_wait_for_room(ch_inflight *a)
{
    return ch__fault_is_set(&a->fault)
               ? CH_OK
               : a->strategy->exec->wait_capacity(a->strategy, a->snapshot != 0);
}

ch_status ch__inflight_run(ch_inflight *a, ch_function *f, ch_tuple *batch, int64_t step,
                           ch_result_handler taker)
{
    ch_status rc;

    if (ch__fault_is_set(&a->fault))
        return ch__fault_raise(&a->fault);
    rc = begin(a, f, batch, step, taker);
    while (rc == CH_OK && a->n > 0 && !ch__fault_is_set(&a->fault) && !a->was_cancelled &&
           a->strategy->exec->poll(&a->at[a->first].run))
        take_first(a);
    if (rc != CH_OK || ch__fault_is_set(&a->fault) || a->was_cancelled)
        (void)end_all(a, rc, step);
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
