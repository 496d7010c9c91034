/* strategy/exec.h -- how steps of a strategy are executed.
 *
 * Every strategy has a ch_exec_ops. There are two implementations: exec_local.c runs a step on the devices of this process,
 * and the run has ended when `start` returns; parameter_server_run.c schedules it for a worker.
 *
 *     rc = st->exec->start(&run, &(ch_start_options){.is_own = true}, &started);
 *     if (rc == CH_OK)
 *         rc = st->exec->wait(&started, &out);
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef STRATEGY_EXEC_H
#define STRATEGY_EXEC_H

#include "cohort/strategy.h"
#include "graph/run.h"

/* A run that was started: the caller's memory, its contents are the implementation's. Each must be waited for or
 * abandoned. All zeros is a run that has been. */
typedef struct ch_started {
    ch_tuple *results;
    void     *step; /* in another task */
} ch_started;

typedef struct ch_start_options {
    /* The values that the run reads: of ch_exec_ops.snapshot. 0: the current values. */
    uint64_t snapshot;
    /* The caller waits for this run, so its error belongs to the caller alone. If false, an error is also that of `drain`
     * or of the next start, and cancels everything that was started like this. Runs that read a snapshot are always own. */
    bool is_own;
    bool no_results; /* nobody wants the results */
} ch_start_options;

typedef struct ch_exec_ops {
    bool
        is_synchronous; /* a run has ended when `start` returns; then the functions below never block */
    ch_status (*start)(const ch_run *run, const ch_start_options *opt, ch_started *out);
    /* Returns true if the run has ended. */
    bool (*poll)(const ch_started *s);
    /* Blocks until the run has ended. Returns its error, or CH_OK and its results; `out` may be NULL. */
    ch_status (*wait)(ch_started *s, ch_tuple **out);
    /* Lets the run go on without its caller. */
    void (*abandon)(ch_started *s);
    /* Blocks until all runs that are not own have ended. Returns their first error. */
    ch_status (*drain)(ch_strategy *st);
    /* Blocks while more runs are waiting than keep the workers busy; counts own runs, or the others. */
    ch_status (*wait_capacity)(ch_strategy *st, bool is_own);
    /* Returns the number of tasks that run steps; 0: this process does. */
    int (*workers)(ch_strategy *st);
    /* Keeps the current values of all variables for runs that read this snapshot. 0: the values do not change meanwhile,
     * because runs are synchronous. */
    ch_status (*snapshot)(ch_strategy *st, uint64_t *out);
    void (*release)(ch_strategy *st, uint64_t snapshot); /* 0 is fine */
} ch_exec_ops;

extern const ch_exec_ops ch__exec_local;

/* Starts a run and waits for it. */
ch_status ch__exec_run(const ch_exec_ops *exec, const ch_run *run, ch_tuple **out);

#endif
