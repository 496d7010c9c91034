/* job/step_exec/private.h -- the state of a step execution, for step_exec.c and requests.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_STEP_EXEC_PRIVATE_H
#define JOB_STEP_EXEC_PRIVATE_H

#include "job/shard.h"
#include "job/step_exec.h"

/* A pending remote op: the progress of a remote part. */
typedef struct ch_exec_pending {
    bool        is_sent;   /* its calls were built */
    int         n_missing; /* parts of calls that have no reply yet */
    ch_tensor **result; /* results of shards: [(replica * outputs + output) * shards + shard] */
    ch_id_split **split;     /* of lookups: the ids of each replica; owned by the execution */
    int           n_results; /* entries of the table of results */
} ch_exec_pending;

/* Identifies a division of ids: the value and replica that has the ids, and the number of
 * shards and rows of the variable. */
typedef struct ch_split_key {
    int     value, replica, n_shards;
    int64_t size;
} ch_split_key;

typedef struct ch_exec_split {
    ch_split_key key;
    ch_id_split *split;
} ch_exec_split;

enum { CH_SPLITS_CACHED = 16 }; /* divisions in a cache at most */

/* Unused ch_id_split objects, for the next execution of the plan. */
struct ch_step_exec_cache {
    int          n;
    ch_id_split *split[CH_SPLITS_CACHED];
};

struct ch_step_exec {
    const ch_placed_plan *placed;
    ch_step_identity      attempt;
    int                   n_replicas;
    ch_tensor           **value; /* [value * replicas + replica] */
    ch_exec_pending      *pending;
    int                   n_local_parts; /* number of local parts that have run */
    int                   n_splits, cap_splits;
    ch_exec_split        *split;
    int                   n_calls, cap_calls;
    ch_step_exec_call   **call; /* all calls so far */
};

/* ---- step_exec.c ---- */

/* Returns the entry of a value of a replica in the table of values. */
static inline ch_tensor **ch__exec_value(const ch_step_exec *t, int value, int replica)
{
    return &t->value[value * t->n_replicas + replica];
}

/* Returns the variable with the highest rank, with which the inputs are aligned. */
const ch_plan_variable *ch__exec_main_variable(const ch_placed_plan *r,
                                               const ch_remote_part *remote);

static inline ch_layout ch__exec_layout(const ch_plan_variable *v)
{
    return ch__layout_along(v->axis, v->n_shards);
}

void ch__exec_call_free(ch_step_exec_call *c);

/* ---- requests.c ---- */

/* A call under construction, in a list. */
typedef struct ch_exec_request ch_exec_request;

/* Adds the parts for all shards of a remote part to the requests. */
CH_MUST_CHECK ch_status ch__requests_add(ch_step_exec *t, ch_exec_request **list, int remote);
/* Packs the requests and adds their calls to the execution. */
CH_MUST_CHECK ch_status ch__requests_finish(ch_step_exec *t, ch_exec_request *list);
void                    ch__requests_free(ch_exec_request *list);

#endif
