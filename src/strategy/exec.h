/* strategy/exec.h -- interface for the execution of steps: ch_exec_ops.
 *
 * Every strategy has a ch_exec_ops. There are two implementations. exec_local.c runs a step on
 * the devices of this process, and the run has ended when `start` returns.
 * parameter_server_run.c schedules the step for a worker. Callers are strategy.c, update.c and
 * fit/.
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

/* A started run. The caller owns the struct, the implementation owns its contents. The caller
 * must pass each started run to `wait` or `abandon`. After that the struct is all zeros. */
typedef struct ch_started {
    /* Results of a run that has ended in `start`; NULL if there are none or the run is
     * remote. */
    ch_tuple *results;
    void     *step; /* state of a remote run; NULL if the run was local */
} ch_started;

typedef struct ch_start_options {
    /* Snapshot that the run reads, from ch_exec_ops.snapshot; 0: the current values. */
    uint64_t snapshot;
    /* True if the caller waits for this run, so that only `wait` returns its error. If false,
     * the error is also returned by `drain` or by the next `start`, and it cancels all other
     * runs that were started with false. A run that reads a snapshot is always treated as
     * own. */
    bool is_own;
    bool no_results; /* true: the caller does not want the results */
} ch_start_options;

typedef struct ch_exec_ops {
    /* True if a run has ended when `start` returns. Then the functions below never block. */
    bool is_synchronous;
    /* Starts a run. If it returns an error, there is nothing to wait for. */
    ch_status (*start)(const ch_run *run, const ch_start_options *opt, ch_started *out);
    /* Returns true if the run has ended. */
    bool (*poll)(const ch_started *s);
    /* Blocks until the run has ended. Returns its error, or CH_OK and its results. `out` may be
     * NULL. */
    ch_status (*wait)(ch_started *s, ch_tuple **out);
    /* Releases the handle of a run without waiting. The run itself continues. */
    void (*abandon)(ch_started *s);
    /* Blocks until all runs that are not own have ended. Returns the first error among them. */
    ch_status (*drain)(ch_strategy *st);
    /* Blocks while more runs are queued than are needed to keep the workers busy. Counts only
     * own runs if is_own is true, otherwise only the others. */
    ch_status (*wait_capacity)(ch_strategy *st, bool is_own);
    /* Returns the number of worker tasks; 0 if this process runs the steps. */
    int (*workers)(ch_strategy *st);
    /* Makes a snapshot of all variables for runs that read it, and stores its number in *out.
     * The caller must release it. Synchronous implementations store 0, because there the values
     * do not change during a run. */
    ch_status (*snapshot)(ch_strategy *st, uint64_t *out);
    /* Releases a snapshot. 0 is allowed and does nothing. */
    void (*release)(ch_strategy *st, uint64_t snapshot);
} ch_exec_ops;

extern const ch_exec_ops ch__exec_local;

/* Starts a run and waits for its end. `out` may be NULL. */
ch_status ch__exec_run(const ch_exec_ops *exec, const ch_run *run, ch_tuple **out);

#endif
