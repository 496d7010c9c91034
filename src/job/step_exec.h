/* job/step_exec.h -- the execution of a step plan.
 *
 * A step execution (ch_step_exec) holds the values of an attempt of a step. It decides which
 * calls to servers and which local part are next. Its owner makes the calls and runs the local
 * parts: a worker run (job/worker/run.c) or a test.
 *
 *     rc = ch__step_exec_new(placed, &identity, n_replicas, inputs, &t);
 *     while (!ch__step_exec_is_done(t)) {
 *         rc = ch__step_exec_next_calls(t, &n, &call);  // at most one per server and kind
 *         ... send call[i]->message to call[i]->server, and for each reply:
 *         rc = ch__step_exec_on_reply(t, call[i], reply);
 *         while ((part = ch__step_exec_local_part(t)) != NULL) // its inputs are available
 *             ... ch__step_exec_inputs, run part->graph, ch__step_exec_computed(t, results)
 *     }
 *
 * A step execution has no timers and does not handle lost messages. Its owner may send a call
 * several times with the same message, because servers apply an update once. If the worker
 * dies, its step execution is lost with it. Another worker begins a new execution with the same
 * step number.
 *
 * Reads and lookups are answered with the current values, or with the values of a snapshot.
 * Values and updates are the same for all replicas of the worker; rows are looked up for each
 * replica. One thread at a time may use a step execution.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_STEP_EXEC_H
#define JOB_STEP_EXEC_H

#include "cohort/device.h"
#include "job/step_plan.h"
#include "net/net.h"

typedef struct ch_step_exec ch_step_exec;

/* Identifies an attempt of a step. Servers receive these numbers with every update. */
typedef struct ch_step_identity {
    /* Number of the step; number of the oldest step that has not ended; snapshot from which
     * variables are read (0: their current values). */
    uint64_t    step, retired, snapshot;
    const char *worker;       /* task name; borrowed, must outlive the step execution */
    uint64_t    registration; /* of the worker with the coordinator */
    bool        defers;       /* servers keep the step's updates until it is settled */
    /* Devices of the replicas, on which values are placed; borrowed. NULL: values stay on the
     * devices where they are. */
    ch_device *const *device;
} ch_step_identity;

/* A call to a server. The step execution owns it. */
typedef struct ch_step_exec_call {
    int         server;
    ch_message *message;   /* the request; owned by the step execution */
    double      bytes;     /* estimate: bytes that are sent, received and changed */
    bool        has_reply; /* ch__step_exec_on_reply was called */
    int         n;         /* number of entries of `part` */
    struct ch_step_exec_part {
        int remote, shard, replica; /* index of the remote part; replica: 0 except for ROWS */
    } * part;
} ch_step_exec_call;

/* Begins an execution of a plan that came from ch__step_plan_decode. The caller must keep the
 * plan until it frees the execution. Executions of the same plan must not run concurrently.
 *
 * `in` has the inputs of all replicas: in[replica * n_inputs + input]. Entries of several
 * replicas may be the same tensor. The tensors are referenced. */
ch_status ch__step_exec_new(const ch_placed_plan *r, const ch_step_identity *attempt,
                            int n_replicas, ch_tensor *const *in, ch_step_exec **out);
/* Frees an execution, whether or not it is done. NULL is allowed. */
void ch__step_exec_free(ch_step_exec *t);
/* Frees the buffers that executions left in a plan (ch_step_plan.cache). NULL is allowed. */
void ch__step_exec_cache_free(struct ch_step_exec_cache *s);

/* Builds the calls for all remote parts that can be sent now and were not sent before (*n may
 * be 0). The calls belong to the execution. The list *out is valid until the next call. */
ch_status ch__step_exec_next_calls(ch_step_exec *t, int *n, ch_step_exec_call *const **out);
/* Stores the results of a reply. Ignores a second reply to the same call. The reply is
 * untrusted: returns INTERNAL if it has too few tensors, or another dtype or shape. */
ch_status ch__step_exec_on_reply(ch_step_exec *t, ch_step_exec_call *call,
                                 const ch_message *reply);

/* Returns the next local part if its inputs are available. Returns NULL if they are not, or if
 * all local parts have run. */
const ch_local_part *ch__step_exec_local_part(const ch_step_exec *t);
/* Creates the inputs of that local part as a tuple, which the caller must unref. An input is a
 * per-replica value unless all replicas have the same tensor. */
ch_status ch__step_exec_inputs(const ch_step_exec *t, ch_tuple **out);
/* Stores the results of that local part and goes on to the next. References the tensors. */
ch_status ch__step_exec_computed(ch_step_exec *t, const ch_tuple *results);

/* Returns true if every remote part has all its replies and every local part has run. */
bool ch__step_exec_is_done(const ch_step_exec *t);
/* Returns result i of a replica, borrowed. The execution must be done. */
ch_tensor *ch__step_exec_result(const ch_step_exec *t, int i, int replica);

/* Gives the number and the graph of an update for a shard, as CH_PS_DEFINE needs
 * them. The caller must unref *graph. */
ch_status ch__step_exec_update(const ch_placed_plan *r, int remote, int shard, uint64_t *number,
                               ch_graph **graph);

#endif
