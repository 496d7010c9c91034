/* job/step_plan.h -- how a step runs whose variables are elsewhere.
 *
 * A step is recorded as any other, and then its graph is cut in two kinds of parts:
 *
 *   remote   what is asked of servers: the value of a variable, rows of it, or an update. An update is a graph too: it runs
 *            where its variables are, in one go, so that no two of them lose anything of each other
 *   segment  what the worker computes between them
 *
 * and what passes from one part to another is a value with a number; the step's inputs are the first ones. So a step that
 * trains is: read the weights, run the one segment, update. One that looks rows up runs a segment before that computes
 * their ids. Remotes begin as soon as their inputs are there; updates whose results nobody wants only when all
 * segments have run, since a segment may fail, and an update that writes a variable only when all reads of that variable are
 * answered, since the step reads the old value. Workers and servers know no op for this: whatever can be recorded can be cut.
 *
 * Some numbers are of a variable as a whole, but need what only servers have: the norms of a rule (apply_norms). Each shard's
 * server computes its part, in an update that writes nothing. The worker adds the parts, and the update that uses the sum follows.
 *
 * What of a graph goes to the servers: from the value that is written to a variable back to where it was read, the calls that
 * keep a variable's sizes (sums, scatters, the rules of optimizers). They see the variable as it is when they run; what
 * else they take, a gradient, was computed from what the worker has read.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_STEP_PLAN_H
#define JOB_STEP_PLAN_H

#include "graph/graph.h"

typedef enum ch_remote_kind { CH_REMOTE_READ, CH_REMOTE_ROWS, CH_REMOTE_UPDATE } ch_remote_kind;

/* What a shard gets of an input of an update whose variables are in shards. */
typedef enum ch_shard_role {
    CH_SHARD_WHOLE, /* all of it */
    CH_SHARD_CUT,   /* what lies along its part of the axis, which is counted from the last */
    CH_SHARD_IDS,   /* ids of rows: its own, counted from its first */
    CH_SHARD_ROWS   /* the rows of those: of input `ids` of the remote */
} ch_shard_role;

typedef struct ch_plan_input {
    int           value;
    ch_shard_role role;
    int           ids; /* of CH_SHARD_ROWS; else -1 */
} ch_plan_input;

typedef struct ch_remote_part {
    ch_remote_kind kind;
    int            place; /* of its resources */
    int            n_variables;
    int            *
        variable; /* which of the step's resources: of READ and ROWS one; of UPDATE those of its graph */
    bool           or_zero; /* of ROWS: ids out of range give zeros, and are no error */
    ch_graph      *graph;   /* of UPDATE: over whole variables; its resources are by name */
    int            n_in;    /* ROWS: the ids */
    ch_plan_input *in;
    int            n_out; /* READ, ROWS: one. UPDATE: what its graph gives, if anything */
    bool
        is_sum; /* of UPDATE: f64 results of shards are added, in their order, and not joined */
    int *out;
} ch_remote_part;

typedef struct ch_local_part {
    ch_graph *graph;
    int       n_in, n_out;
    int      *in, *out; /* values */
} ch_local_part;

typedef struct ch_step_plan {
    int             n_values, n_inputs;
    int             rows; /* the input that has the rows of the step; n_inputs: none has */
    bool            rows_are_split; /* it is row splits: one more than there are rows */
    int             n_remote_parts;
    ch_remote_part *remote; /* an update's place in this list is its sequence number */
    int             n_local_parts;
    ch_local_part  *local_part; /* run in this order */
    int             n_outputs;
    int            *output; /* the step's results: values */
    ch_arena        arena;  /* of all lists */
    /* What one trip leaves for the next (trip.c): trips of a route come one after the other. */
    struct ch_step_exec_cache *store;
} ch_step_plan;

/* Returns whether update `r` must wait for `other`, because it writes what that one reads. */
bool ch__remote_follows(const ch_remote_part *r, const ch_remote_part *other);

/* `place` says for each resource of the graph where it is: resources of one place are on the same servers, cut at the same rows if they are. */
ch_status ch__step_plan_new(const ch_graph *g, const int *place, ch_step_plan **out);
void      ch__step_plan_free(ch_step_plan *r);

/* ---- as bytes ---- */

/* Where a variable is that a route reads or changes. */
typedef struct ch_plan_variable {
    const char *name;
    ch_dtype    dtype;
    ch_shape    shape;
    int         axis, n_shards;
    const struct ch_plan_shard {
        int      server;
        uint64_t variable; /* its number there */
    } * shard;
} ch_plan_variable;

/* A route that can be sent: the variables of its graph's resources, in their order, and numbers for its updates on servers. */
typedef struct ch_placed_plan {
    ch_step_plan           *plan;
    int                     n_variables;
    const ch_plan_variable *variable;
    const uint64_t
        *function; /* of each remote; of an update in n shards, this one and the next n - 1 */
} ch_placed_plan;

/* Into memory that ch__free returns. (route_codec.c) */
ch_status ch__step_plan_encode(const ch_placed_plan *r, void **bytes, size_t *n);
/* From anywhere. All that r points to belongs to r->route. */
ch_status ch__step_plan_decode(const void *bytes, size_t n, ch_placed_plan *r);

#endif
