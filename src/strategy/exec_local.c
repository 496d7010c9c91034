/* strategy/exec_local.c -- runs steps in this process.
 *
 * Implements ch_exec_ops on the calling thread and the threads of the devices. A run has ended
 * when `start` returns, so `wait` only passes the results on, and there is nothing to drain.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "strategy/exec.h"

static ch_status start(const ch_run *run, const ch_start_options *opt, ch_started *out)
{
    *out = (ch_started){.results = NULL};
    return ch__run(run, opt->no_results ? NULL : &out->results);
}

static bool poll_started(const ch_started *s)
{
    (void)s;
    return true;
}

static ch_status wait_started(ch_started *s, ch_tuple **out)
{
    if (out != NULL)
        *out = s->results;
    else
        ch_tuple_unref(s->results);
    s->results = NULL;
    return CH_OK;
}

static void abandon(ch_started *s)
{
    (void)wait_started(s, NULL);
}

static ch_status drain(ch_strategy *st)
{
    (void)st;
    return CH_OK;
}

static ch_status wait_capacity(ch_strategy *st, bool is_own)
{
    (void)st;
    (void)is_own;
    return CH_OK;
}

static int workers(ch_strategy *st)
{
    (void)st;
    return 0;
}

static ch_status snapshot(ch_strategy *st, uint64_t *out)
{
    (void)st;
    *out = 0;
    return CH_OK;
}

static void release(ch_strategy *st, uint64_t number)
{
    (void)st;
    (void)number;
}

const ch_exec_ops ch__exec_local = {.is_synchronous = true,
                                    .start = start,
                                    .poll = poll_started,
                                    .wait = wait_started,
                                    .abandon = abandon,
                                    .drain = drain,
                                    .wait_capacity = wait_capacity,
                                    .workers = workers,
                                    .snapshot = snapshot,
                                    .release = release};

ch_status ch__exec_run(const ch_exec_ops *exec, const ch_run *run, ch_tuple **out)
{
    ch_started s;
    ch_status  rc =
        exec->start(run, &(ch_start_options){.is_own = true, .no_results = out == NULL}, &s);

    return rc == CH_OK ? exec->wait(&s, out) : rc;
}
