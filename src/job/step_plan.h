/* job/step_plan.h -- the plan of a step whose variables are on parameter servers.
 *
 * A step is recorded as a graph like any other step. ch__step_plan_new divides the graph into
 * two kinds of parts:
 *
 *   remote part  an operation on servers: read a variable, look up rows of it, or update
 *                variables. An update is itself a graph. Each server runs it on its shards in
 *                one go, so concurrent updates of several workers do not overwrite each other
 *   local part   a graph without variables, which the worker runs on its devices
 *
 * The tensors that pass between parts are called values and have numbers. The inputs of the
 * step are the first values. Example: a dense training step reads the weights (remote),
 * computes the gradients (local) and updates the weights (remote). A step with an embedding
 * table has another local part before the lookup, which computes the ids of the rows.
 *
 * Order of execution (job/step_exec.h):
 *   1. Local parts run in the order of the plan, each when its inputs are available.
 *   2. A remote part is sent as soon as its inputs are available, with two exceptions.
 *   3. An update without results is sent only when all local parts have run, because a local
 *      part may fail, and a step that fails before its first update has changed nothing.
 *   4. An update that writes a variable is sent only when all reads of that variable have been
 *      answered, because the step must read the value from before its own update.
 *
 * Which calls of the graph go to servers: ch__step_plan_new begins at each value that is
 * written to a variable and follows its inputs back to the read of the variable. The calls on
 * this path that keep the sizes of the variable, and do not need its sharded axis whole, belong
 * to the update: additions, scatters, optimizer rules. They use the value that the variable has
 * when the update runs. Their other inputs, for example a gradient, were computed from the
 * values that the worker has read. No op needs special code for this, so every graph that can
 * be recorded can be divided.
 *
 * The norms of an optimizer rule (op apply_norms) are sums over a whole variable. Each server
 * computes the sum over its shard, in an update that writes nothing (`is_sum`). The worker adds
 * the sums, and the update that needs the total follows.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_STEP_PLAN_H
#define JOB_STEP_PLAN_H

#include "graph/graph.h"

typedef enum ch_remote_kind {
    CH_REMOTE_READ,  /* read a whole variable */
    CH_REMOTE_ROWS,  /* look up rows of a variable by ids */
    CH_REMOTE_UPDATE /* run a graph on variables */
} ch_remote_kind;

/* The part of an update's input that each shard receives. */
typedef enum ch_shard_role {
    CH_SHARD_WHOLE, /* the whole tensor */
    /* The slice along the sharded axis. Axes are aligned with the variable's from the last. */
    CH_SHARD_SLICE,
    CH_SHARD_IDS, /* the ids of rows in this shard, counted from the shard's first row */
    CH_SHARD_ROWS /* the rows that belong to the ids of another input (ch_plan_input.ids) */
} ch_shard_role;

typedef struct ch_plan_input {
    int           value; /* number of the value */
    ch_shard_role role;
    int           ids; /* of CH_SHARD_ROWS: index of the input with the ids; else -1 */
} ch_plan_input;

typedef struct ch_remote_part {
    ch_remote_kind kind;
    int            placement; /* of its variables, as in ch__step_plan_new; not encoded */
    int            n_variables;
    /* Indices of the step's resources. READ, ROWS: 1 entry. UPDATE: those of its graph. */
    int           *variable;
    bool           or_zero; /* of ROWS: an id out of range gives a row of zeros, not an error */
    ch_graph      *graph;   /* of UPDATE: over whole variables, resources by name; else NULL */
    int            n_in;    /* READ: 0. ROWS: 1, the ids. UPDATE: inputs of its graph */
    ch_plan_input *in;
    int            n_out; /* READ, ROWS: 1. UPDATE: outputs of its graph, perhaps 0 */
    /* Of UPDATE: the results are f64, and the results of the shards are added in shard order.
     * Otherwise they are joined along the sharded axis. */
    bool is_sum;
    int *out; /* numbers of the values that it produces */
} ch_remote_part;

typedef struct ch_local_part {
    ch_graph *graph; /* has no resources */
    int       n_in, n_out;
    int      *in, *out; /* numbers of values */
} ch_local_part;

typedef struct ch_step_plan {
    int             n_values, n_inputs;
    int             rows; /* index of the input that has the step's rows; n_inputs: none */
    bool            rows_are_split; /* that input is row splits: one element more than rows */
    int             n_remote_parts;
    ch_remote_part *remote; /* an update's index is part of its sequence number on servers */
    int             n_local_parts;
    ch_local_part  *local_part; /* in the order in which they run */
    int             n_outputs;
    int            *output; /* numbers of the values that are the step's results */
    ch_arena        arena;  /* memory of all lists */
    /* Buffers that an execution of the plan leaves for the next (job/step_exec/); NULL: none.
     * Executions of the same plan must not run concurrently. */
    struct ch_step_exec_cache *cache;
} ch_step_plan;

/* Returns true if update `r` writes a variable that `other` reads. Then `r` must not be sent
 * before `other` has been answered. */
bool ch__remote_follows(const ch_remote_part *r, const ch_remote_part *other);

/* Divides a graph into a step plan, which the caller must free with ch__step_plan_free.
 *
 * placement[i] is a number for the placement of resource i of the graph. Two resources may have
 * the same number only if they are on the same servers and, if they are sharded, are cut at the
 * same rows. One update can then use both. axis[i] is the sharded axis of the resource; -1: the
 * resource is not sharded. Returns UNIMPLEMENTED if an update would have too many results or
 * would need an input both cut and in another form. */
ch_status ch__step_plan_new(const ch_graph *g, const int *placement, const int *axis,
                            ch_step_plan **out);
/* Frees a plan. NULL is allowed. */
void ch__step_plan_free(ch_step_plan *r);

/* ---- encoding (step_plan/codec.c) ---- */

/* The placement of a variable that a plan reads or updates. */
typedef struct ch_plan_variable {
    const char *name;
    ch_dtype    dtype;
    ch_shape    shape;          /* of the whole variable */
    int         axis, n_shards; /* the sharded axis; 1 shard: the variable is not divided */
    const struct ch_plan_shard {
        int      server;   /* index of the server */
        uint64_t variable; /* number of the variable on that server */
    } * shard;
} ch_plan_variable;

/* A plan with the placement of its variables, as it is sent to workers. */
typedef struct ch_placed_plan {
    ch_step_plan           *plan;
    int                     n_variables;
    const ch_plan_variable *variable; /* by index of the graph's resource */
    /* Numbers of updates, by remote part. Shard k of update i has number update[i] + k on its
     * server. Reads and lookups do not use their numbers. */
    const uint64_t *update;
} ch_placed_plan;

/* Encodes a plan. The caller must free *bytes with ch__free. Returns UNIMPLEMENTED if the plan
 * exceeds the limits of the format. */
ch_status ch__step_plan_encode(const ch_placed_plan *r, void **bytes, size_t *n);
/* Decodes a plan from untrusted bytes. All pointers of *r belong to r->plan, which the caller
 * must free with ch__step_plan_free. If the bytes are not a valid plan, returns an error and
 * leaves *r unchanged. */
ch_status ch__step_plan_decode(const void *bytes, size_t n, ch_placed_plan *r);

#endif
