/* graph/launch.h -- the state of a run, for graph/run.c and graph/launch.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_LAUNCH_H
#define GRAPH_LAUNCH_H

#include "graph/function.h"

/* inline capacity: inputs of all replicas, or resources, that need no allocation */
#define CH_LAUNCH_FEW 32

/* The part of a run that belongs to a member (graph/run.h). */
typedef struct ch_member_job {
    struct ch_launch *launch;
    int               member;
    ch_env            env;
    ch_bind           bind;
    ch_workspace      workspace;
    bool              has_ended; /* in turns: the member has finished or failed */
} ch_member_job;

/* The state of a run. few_tensors, few_shapes and few_borrowed are inline memory for small
 * runs. */
typedef struct ch_launch {
    const ch_run         *run;
    ch_prepared          *p;
    ch_args               args;
    struct ch_result_set *result_set;
    ch_fault              fault; /* first error of a member */
    ch_node_see           see;
    void                 *see_arg;
    ch_member_job        *job;
    ch_clock             *clock;   /* by member; NULL: the run is not timed */
    ch_traffic_counts    *traffic; /* by member */
    ch_tensor            *few_tensors[CH_LAUNCH_FEW];
    /* Values of borrowed variables: that of resource i for local replica r at
     * i * n_local + r. NULL: none. */
    ch_tensor **borrowed;
    ch_tensor  *few_borrowed[CH_LAUNCH_FEW];
    ch_shape    few_shapes[CH_LAUNCH_FEW];
} ch_launch;

/* Runs l->p on all members, with the inputs l->args, and writes the results to
 * l->result_set. Holds all devices. `number` is the number of the run. */
ch_status ch__launch(ch_launch *l, int64_t number);

#endif
