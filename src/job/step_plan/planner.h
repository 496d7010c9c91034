/* job/step_plan/planner.h -- divides the graph of a step into local and remote parts.
 *
 * ch_step_planner is a step plan under construction, with a table for each decision.
 * ch__step_plan_new makes the decisions in this order:
 *   1. mark_servers (place.c): the calls that run on servers, for each placement.
 *   2. join_updates (place.c): the calls on servers that belong to the same update.
 *   3. mark_worker (place.c): the values that the worker needs. Goes backwards from the results
 *      of the step and from the inputs of updates.
 *   4. add_reads, add_updates (remote_parts.c): the remote parts, with the graphs of the
 *      updates.
 *   5. set_levels (local_parts.c): for each value, the number of exchanges with servers before
 *      it is available.
 *   6. set_local_parts (local_parts.c): the local part in which each call of the worker runs.
 *   7. add_local_part (local_parts.c): the graphs of the local parts.
 * An update may return the new value of a variable to the worker. If the update needs an input
 * that depends on that value, or must wait for a read that does, then 5 finds a cycle. All is
 * then done again with `no_returns`: the worker computes the new value itself.
 *
 * Invariants:
 *   1. A call runs in one update, in one local part, or not at all. Exceptions: free calls
 *      (constants) are copied into each part that uses them, and the worker may compute a value
 *      again that an update computes too.
 *   2. The numbers of values begin with the inputs of the step. A value has a number if and
 *      only if it passes between parts, or is an input or a result of the step.
 *   3. A call runs on a server only if it cannot fail, is not random, and gives the same bits
 *      there.
 *
 * Only the files of this folder include this header.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_STEP_PLAN_PLANNER_H
#define JOB_STEP_PLAN_PLANNER_H

#include "job/step_plan.h"

enum { CH_NO_INDEX = -1 }; /* in a table of the planner: none */

typedef struct ch_step_planner {
    const ch_graph *g;
    const int      *placement; /* by resource */
    const int      *axis;      /* by resource: the sharded axis; -1: not sharded */
    int             n_calls;
    ch_node       **call; /* heads of the calls, in order */
    ch_step_plan   *plan; /* under construction */

    /* Tables by value id. The entry of a call is that of its head. */

    /* Of a call: the update to which it belongs, a union-find tree (ch__planner_find_update).
     * CH_NO_INDEX: the call does not run on a server. */
    int            *update;
    int            *placement_of; /* of a call on a server: its placement */
    unsigned char  *computable;   /* scratch for a placement: the value can be computed there */
    unsigned char  *needed;       /* the worker needs the value */
    unsigned char  *reads_whole;  /* of a read: the worker needs the whole variable */
    unsigned char  *on_worker;    /* of a call: the worker runs it */
    unsigned char  *returned;     /* an update computes the value and may return it */
    unsigned char  *in_part;      /* scratch: calls of the part that is being extracted */
    int            *level;        /* exchanges with servers before the value is available */
    int            *local_part;   /* of a call of the worker: index of its local part */
    int            *value_number; /* of the value in the plan; CH_NO_INDEX: it has no number */
    int            *remote_of; /* remote part that produces the value; CH_NO_INDEX: none does */
    const ch_node **first_of_symbol; /* by symbol: the first value that has such a size */
    bool            no_returns;      /* updates must not return values to the worker */
} ch_step_planner;

/* ---- the plan (step_plan.c) ---- */

/* Allocates n objects, at least one, in the arena of the plan. NULL: out of memory. */
void *ch__planner_alloc(ch_step_planner *c, int n, size_t size);
/* Returns the number of a value in the plan. Assigns the next number if it has none. */
int ch__planner_number(ch_step_planner *c, const ch_node *n);

/* ---- where calls run (place.c) ---- */

/* Makes decisions 1 to 3. */
void ch__planner_place_calls(ch_step_planner *c);
/* Returns the number of possible dependencies of a call: inputs, and a value for each axis. */
int ch__planner_count_dependencies(const ch_node *n);
/* Returns dependency k of a call; NULL: none. */
const ch_node *ch__planner_dependency(const ch_step_planner *c, const ch_node *n, int k);
/* Returns the root of the update to which a call belongs. */
int ch__planner_find_update(ch_step_planner *c, int id);
/* Returns true if the call of `n` runs on a server. */
bool ch__planner_is_on_server(const ch_step_planner *c, const ch_node *n);
/* Returns true if input k of a call on a server is computed on the same servers. */
bool ch__planner_is_on_same_server(const ch_step_planner *c, const ch_node *n, int k);
/* Returns true if a value is a free scalar, which the server computes itself. A free value with
 * axes does not count, because a shard would need its part of it. */
bool ch__planner_is_free_on_server(const ch_node *n);
/* Returns true if calls on its own server read the resource. */
bool ch__planner_is_read_on_server(const ch_step_planner *c, const ch_resource *r);
/* Returns true if the value that is written to a resource is not computed on its own server. */
bool ch__planner_is_assigned(const ch_step_planner *c, int resource);
/* Returns true if the call is a lookup that the servers do. The worker does the lookup itself
 * if it reads the whole table anyway. */
bool ch__planner_is_lookup(const ch_step_planner *c, const ch_node *n);
/* Returns true if the call computes norms of a variable and its slots that have the same
 * placement. Then each server computes the sum over its shard. */
bool ch__planner_is_shard_sum(const ch_step_planner *c, const ch_node *n);

/* Returns true if the value is a variable's value from before the step. */
static inline bool ch__planner_is_read(const ch_node *n)
{
    return n->head->op == ch__roles.read;
}

static inline bool ch__planner_is_written(const ch_resource *r)
{
    return r->value != r->read;
}

/* ---- parts (remote_parts.c, local_parts.c) ---- */

/* Makes decision 4: adds the remote parts. */
CH_MUST_CHECK ch_status ch__planner_add_remote_parts(ch_step_planner *c);
/* Makes decisions 5 to 7: adds the local parts. Returns CH_ABORTED, without a message, if
 * no_returns is needed. */
CH_MUST_CHECK ch_status ch__planner_add_local_parts(ch_step_planner *c);

#endif
