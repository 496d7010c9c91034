/* graph/plan.h -- the state that the steps of planning share. graph/plan.c runs the steps in
 * order.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_PLAN_H
#define GRAPH_PLAN_H

#include "graph/memory.h"
#include "graph/program.h"

/* Values of ch_planned_value.last_use besides schedule positions. */
enum { CH_NEVER = -1, CH_AT_END = 1 << 30 };

/* The plan for a value. The terms are explained in graph/plan.c. */
typedef struct ch_planned_value {
    ch_node *node;
    int      root;   /* id of the root value; its own id unless the value is a view */
    size_t   offset; /* byte offset in the root value */
    /* by core: a further offset in the root value, which then is an input or a constant; NULL:
     * none */
    const size_t *by_core;
    int           born, last_use; /* positions in the schedule; last_use of root values only */
    int           buffer;         /* buffer of the arena; -1: none */
    int           claim; /* 1 + resource that is updated in place through it; 0: none */
    /* location of a root value outside the arena; CH_AT_NOWHERE: not decided, or in the
     * arena */
    ch_location location;
} ch_planned_value;

/* The state of planning a program. */
typedef struct ch_planner {
    ch_graph              *g;
    const ch_plan_options *opt;
    ch_program            *p;
    int                    n_calls, n_values;
    ch_node              **call;     /* the schedule: calls in execution order */
    int                   *position; /* by head id: position of the call in the schedule */
    ch_prep               *prep;     /* by position; reordered with `call` */
    const ch_kernel      **kernel;
    ch_planned_value      *value;    /* by value id */
    bool                  *in_place; /* by resource: the new value is computed in its storage */
    bool                  *late;     /* by head id: late call (graph/plan.c) */
    bool                  *first_only; /* by head id: for the first replica only */
    /* With shared resources: position of the call before which replicas pass a barrier, because
     * the calls up to here write shared resources. */
    int        shared_end;
    bool      *used; /* by value id: a call or root reads the value */
    ch_buffers buffers;
    int       *scratch; /* by position: buffer of the call's scratch; -1: none */
} ch_planner;

/* Returns the root value of n. */
static inline ch_planned_value *ch__plan_root(ch_planner *pl, const ch_node *n)
{
    return &pl->value[pl->value[n->id].root];
}

/* Adds a buffer of the arena that is in use in calls [from, to]. -1: out of memory. (plan.c) */
int ch__plan_buffer(ch_planner *pl, int64_t bytes, int from, int to);

/* Returns true if output k of call c may be computed in the memory of input j.
 * (plan_update.c) */
bool ch__plan_may_overwrite(ch_planner *pl, const ch_node *c, int k, int j);
/* Decides which resources are updated in place, and reorders the calls accordingly.
 * (plan_update.c) */
ch_status ch__plan_updates(ch_planner *pl);

/* Returns true if all replicas share the storage of resource r. (plan_shared.c) */
bool ch__plan_is_shared(const ch_planner *pl, int r);
/* Decides which calls only the first replica executes. Sets *is_possible to false if the shared
 * resources cannot be updated in place. (plan_shared.c) */
ch_status ch__plan_share(ch_planner *pl, bool *is_possible);

/* Writes the instructions of the program. All locations must be decided. (plan_emit.c) */
ch_status ch__plan_emit(ch_planner *pl);

#endif
