/* graph/plan.h -- what the steps of planning share: graph/plan.c goes through them in order.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_PLAN_H
#define GRAPH_PLAN_H

#include "graph/memory.h"
#include "graph/program.h"

enum { CH_NEVER = -1, CH_AT_END = 1 << 30 };

typedef struct ch_planned_value {
    ch_node    *node;
    int         root;           /* value id */
    size_t      offset;         /* in the root */
    int         born, last_use; /* positions in the schedule; of roots */
    int         buffer;         /* -1: not in the arena */
    int         claim;          /* 1 + the resource in whose storage it is to be; 0: none */
    ch_location location;
} ch_planned_value;

typedef struct ch_planner {
    ch_graph              *g;
    const ch_plan_options *opt;
    ch_program            *p;
    int                    n_calls, n_values;
    ch_node              **call;     /* in order of the schedule */
    int                   *position; /* of a call, by its head's value id */
    ch_prep               *prep;     /* by schedule position at first; moves with call */
    const ch_kernel      **kernel;
    ch_planned_value            *value;
    bool                  *in_place; /* by resource: its new value is computed in its storage */
    bool                  *late;     /* by head id: comes after the point of no return */
    bool                  *first_only; /* by head id: the first replica does it for all */
    int                    shared_end;  /* calls before this one may write what is shared */
    bool                  *used;       /* by value id: somebody reads it */
    ch_buffers             buffers;
    int                   *scratch; /* buffer of each call's scratch; -1: none */
} ch_planner;

/* The value whose memory n is. */
static inline ch_planned_value *ch__plan_root(ch_planner *pl, const ch_node *n)
{
    return &pl->value[pl->value[n->id].root];
}

/* A piece of the arena, alive in calls [from, to] of the schedule; -1: no memory. (plan.c) */
int ch__plan_buffer(ch_planner *pl, int64_t bytes, int from, int to);

/* True if output k of call c may be written over its input j. (plan_update.c) */
bool ch__plan_may_overwrite(ch_planner *pl, const ch_node *c, int k, int j);
/* Which resources are updated in place, and the order of calls that follows. (plan_update.c) */
ch_status ch__plan_updates(ch_planner *pl);

bool ch__plan_is_shared(const ch_planner *pl, int r);
/* What is done by the first replica alone, if resources are shared. False in *works: no shared one may be
 * updated in place. (plan_shared.c) */
ch_status ch__plan_share(ch_planner *pl, bool *is_possible);

/* The instructions, once every value has its place. (plan_emit.c) */
ch_status ch__plan_emit(ch_planner *pl);

#endif
