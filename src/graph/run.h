/* graph/run.h -- runs a function on the replicas of this process.
 *
 * A strategy fills in a ch_run: the devices, the inputs, the storage of variables, and the
 * groups of the members. ch__run records, specialises and plans the step if necessary, and runs
 * it. This code is the same for all strategies.
 *
 * A replica has one core, or several (logical devices), which execute its step together. The
 * cores of all local replicas are the members of the run: core c of local replica r is member
 * r * n_cores + c. Each has a device, a program and a thread of its own. Inputs and results
 * belong to a replica, and all its cores share them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_RUN_H
#define GRAPH_RUN_H

#include <stdatomic.h>

#include "cohort/function.h"
#include "cohort/value.h"
#include "graph/graph.h"
#include "tensor/row_marks.h"

/* A status that is not an error. If members run in turns, a call that must wait for other
 * members returns it, without a message. The caller must repeat the call with the same
 * arguments after the other members had a turn. */
#define CH__BLOCKED CH_STATUS_COUNT

/* The state of a run that its groups need. The arrays have an element for each member, and must
 * stay valid until the run is over. */
typedef struct ch_group_run {
    ch_device *const *device; /* for messages; NULL: they do not name devices */
    ch_clock         *clock;  /* measures waits; NULL: the run is not timed */
    /* receive the bytes of collectives between replicas; NULL: they are not counted */
    ch_traffic_counts *traffic;
    /* All members run on the same thread, so calls return CH__BLOCKED instead of waiting. */
    bool in_turns;
} ch_group_run;

/* The functions of the group of all members that a run needs. collective/barrier.c implements
 * them. */
typedef struct ch_group_ops {
    /* Returns where a member stores its current call, for error messages of other members. */
    ch_current_call *(*doing)(void *group, int member);
    /* Blocks until all members have arrived. Returns CH_ABORTED if a member has failed, or
     * CH__BLOCKED. */
    ch_status (*barrier)(void *group, int member);
    /* Aborts the run: ends every wait of a member in any group of the run, now and later in
     * this run, with CH_ABORTED. */
    void (*abort_run)(void *group);
    /* Prepares all groups of the run; must be called before each run. */
    void (*reset)(void *group, const ch_group_run *run);
    /* Returns the bytes that a member of a group adds to CH_TRAFFIC_CROSS in a call of its
     * graph, or -1 if the call is no collective between replicas. `member` is its number in
     * this group. */
    int64_t (*cross_bytes)(const void *group, int member, const ch_node *call);
} ch_group_ops;

/* The groups of a run whose replicas have several cores. */
typedef struct ch_run_groups {
    void *const *replicas; /* by core: the cores with this number; NULL: there is one replica */
    void *const *cores;    /* by local replica: its cores */
} ch_run_groups;

typedef struct ch_run ch_run;

/* The functions of a strategy that a run needs. */
typedef struct ch_run_ops {
    /* Sets *out to the storage of a variable for a core of a local replica; NULL: the core does
     * not use the variable. Returns an error if there is no variable with this name, dtype and
     * shape. Called again when `generation` has changed. */
    ch_status (*resource)(void *owner, const ch_resource *r, int local, int core, void **out);
    /* Returns the marks of the rows of a variable, in which the run marks the rows that local
     * replica 0 writes; NULL: its rows are not marked. Called after `resource` has found the
     * variable for replica 0. NULL if no variables of the owner are marked. */
    ch_row_marks *(*marks)(void *owner, const ch_resource *r);
    /* Sets out[i] to the value of a borrowed variable (ch__is_borrowed) for local replica i in
     * this run: a contiguous tensor. out[i] may stay NULL if i > 0; the replica then reads
     * out[0]. The run unrefs the tensors. Called before every run, while no device is held, so
     * it may wait for another task. NULL if no graph has borrowed variables. */
    ch_status (*borrow)(const ch_run *run, const ch_resource *r, ch_tensor **out);
    /* Called before the replicas run, and after all of them have succeeded, while the devices
     * are held. An error becomes the error of the run. Both may be NULL. */
    ch_status (*begin)(const ch_run *run, const ch_graph *g);
    ch_status (*end)(const ch_run *run, const ch_graph *g);
    /* Divides the specialised graphs of the replicas among their cores. variant[r] is the graph
     * of local replica r; equal pointers are replicas with equal shapes. Sets core[m] to the
     * graph of member m, referenced; members with equal pointers share a program. A graph of a
     * core must have the inputs, outputs and resources of the variant, in the same order:
     *   - An input or output is the whole value, even if the core reads or computes a part of
     *     it only (ch_prep.view_by_core, put_by_core).
     *   - A resource has the shape of the storage that ch_run_ops.resource returns.
     * *report may be set to an object that describes the division of replica 0. The run keeps
     * it as long as the graphs, and does not use it. NULL: n_cores is 1. */
    ch_status (*partition)(void *owner, const ch_run *run, ch_graph *const *variant,
                           ch_graph **core, void **report);
    void (*report_free)(void *report); /* frees such an object; NULL: there are none */
} ch_run_ops;

struct ch_run {
    ch_function      *function;
    void             *owner; /* the strategy; a recording is used for a single owner */
    const ch_run_ops *ops;
    /* generation of the owner's variables: changes when their storage or marks change */
    unsigned          generation;
    int               n_local; /* number of replicas in this process */
    int               n_cores; /* cores of each replica; 0 means 1 */
    ch_device *const *device;  /* by member */
    /* index of the first local replica, and number of replicas, in the job */
    int       first_replica, n_replicas;
    ch_tuple *in;      /* inputs; NULL: none */
    bool rows_unknown; /* the numbers of rows in `in` are placeholders; for ch__run_declare */
    /* global_rows is set; false: use the rows of the first input, over all replicas */
    bool            has_rows;
    int64_t         global_rows;
    int64_t         step; /* number of the run; -1: the function counts its runs */
    uint64_t        seed;
    ch_step_context context; /* CH_STEP_CONTEXT_REPLICA or CH_STEP_CONTEXT_UPDATE */
    /* The group of all members: the argument of the functions of `group_ops`. NULL if there is
     * one member in the job. */
    void               *group;
    const ch_group_ops *group_ops;
    ch_run_groups       groups; /* if n_cores is 2 or more */
    /* If another thread sets *stop, the run returns CANCELLED before its next instruction, also
     * inside loops. A kernel that is running is completed. The run must not write variables,
     * because it could end after some of its writes. NULL: the run cannot be stopped. */
    const atomic_bool *stop;
    /* Receives the time of all work kinds except CH_WORK_OTHER; ch__timing_close completes it.
     * NULL: the run is not timed. */
    ch_timing *timing;
};

/* Returns the number of cores of each replica, and of the members of a run. */
static inline int ch__run_cores(const ch_run *run)
{
    return run->n_cores > 0 ? run->n_cores : 1;
}
static inline int ch__run_members(const ch_run *run)
{
    return run->n_local * ch__run_cores(run);
}

/* Prints the name of a member for messages: "replica 1" or, if replicas have several cores,
 * "replica 1, core 2 (TPU:3)". `device` is by member and may be NULL. (launch.c) */
enum { CH_MEMBER_NAME = 96 }; /* enough for every name */
void ch__run_member_print(int member, int n_cores, ch_device *const *device, char *text,
                          size_t size);

/* Returns true if this thread is inside a run, that is, in a host function. */
bool ch__run_is_on_thread(void);

/* Records the step for the inputs of `run`, or finds the recording. Does not run it. Sets *out
 * to the graph, which the caller must unref, and *number to the number of this run. */
ch_status ch__run_record(const ch_run *run, ch_graph **out, int64_t *number);
/* Records the step for the inputs of `run`. From now on the function uses only this graph.
 * FAILED_PRECONDITION: the function has a fixed graph already. */
ch_status ch__run_declare(const ch_run *run);

/* Runs the function on all local replicas. Sets *out to the results, which the caller must
 * unref: per-replica values if there are several replicas. If `out` is NULL, the results are
 * discarded. Several threads may run the same function. Must not be called from a host
 * function. */
ch_status ch__run(const ch_run *run, ch_tuple **out);

#endif
