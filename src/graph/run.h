/* graph/run.h -- running a function on the replicas of this process.
 *
 * Strategies fill in a ch_run: which devices, which inputs, where variables are, how replicas
 * meet. Recording, specialising, planning and launching are the same for all of them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_RUN_H
#define GRAPH_RUN_H

#include <stdatomic.h>

#include "cohort/function.h"
#include "cohort/value.h"
#include "graph/graph.h"

/* Not an error: a call that waits for other replicas returns it if replicas run in turns. It has no
 * message. The call must be made again, with the same arguments, when the others had a turn. */
#define CH__BLOCKED CH_STATUS_COUNT

/* How the replicas of a run meet, for whoever runs them. */
typedef struct ch_meet {
    /* Where a replica says what it is doing, for the others' messages. */
    ch_doing *(*doing)(void *group, int local);
    /* Returns when every replica has come here; an error if one has given up, or CH__BLOCKED. */
    ch_status (*barrier)(void *group, int local);
    /* Lets everybody who waits, or will wait in this run, go with CH_ABORTED. */
    void (*give_up)(void *group);
    /* Before each run: nobody has given up. Replicas tell their clocks when they wait; NULL: there are none.
     * in_turns: all replicas are on one thread, and what would wait returns CH__BLOCKED. */
    void (*reset)(void *group, ch_clock *clock, bool in_turns);
} ch_meet;

typedef struct ch_run ch_run;

/* What a strategy does for a run. */
typedef struct ch_run_ops {
    /* Rewrites a graph that was just recorded: cross-replica nodes become collectives. */
    ch_status (*lower)(void *owner, ch_graph *g);
    /* The storage of a variable for a local replica; an error if there is none of this name,
     * dtype and shape. Asked again whenever `generation` changes. */
    ch_status (*resource)(void *owner, const ch_resource *r, int local, void **out);
    /* The value for one run of a variable that belongs to another owner (ch__is_borrowed): all replicas
     * read this tensor, which is contiguous, and the run unrefs it. Called before every run, while no
     * device is held, so that it may wait for another task. NULL if no graph has such variables. */
    ch_status (*borrow)(void *owner, const ch_resource *r, ch_tensor **out);
    /* Before the replicas run, and after all went well, while their devices are held. An error is that of
     * the run. Either may be NULL. */
    ch_status (*begin)(const ch_run *run, const ch_graph *g);
    ch_status (*end)(const ch_run *run, const ch_graph *g);
} ch_run_ops;

struct ch_run {
    ch_function      *function;
    void             *owner; /* a graph is recorded for one owner */
    const ch_run_ops *ops;
    unsigned          generation;                /* of the owner's variables */
    int               n_local;                   /* replicas here */
    ch_device *const *device;                    /* of each */
    int               first_replica, n_replicas; /* in the job */
    ch_tuple         *in;                        /* may be NULL */
    bool              rows_unknown; /* those of `in` mean nothing: for ch__run_declare */
    bool              has_rows;     /* false: the global rows are those of the first input */
    int64_t           global_rows;
    int64_t           step; /* -1: the function's own count */
    uint64_t          seed;
    ch_speaks_of      speaks_of; /* of a replica, or of a copy */
    void             *group;     /* NULL where n_replicas is 1 */
    const ch_meet    *meet;
    /* When another thread sets it, the run ends before its next instruction, also inside loops, with CANCELLED. A kernel
     * that runs is waited for. The variables must be elsewhere: a run that writes them could end amid its writes. NULL: the
     * run can not be stopped. */
    const atomic_bool *stop;
    ch_timing *timing; /* for what its replicas did, but for CH_WORK_OTHER; NULL: not asked */
};

/* True on a thread that is inside a run: in a host function. */
bool ch__run_is_here(void);

/* The graph of the step for such inputs, referenced, and the number of this run; it is not run. */
ch_status ch__run_record(const ch_run *run, ch_graph **out, int64_t *number);
/* Records the step for such inputs, and has the function run nothing but that graph from now on. */
ch_status ch__run_declare(const ch_run *run);

/* Runs and returns the results, per-replica where there is more than one replica. */
ch_status ch__run(const ch_run *run, ch_tuple **out);

#endif
