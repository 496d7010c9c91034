/* job/step_exec.h -- one run of a route: what is asked of servers, and what becomes of their answers.
 *
 * Whoever runs it makes the calls and runs the segments; a trip says which, and holds the values between them. It knows nothing
 * of time and of losses: a call may be made again as it is, since servers apply an update once.
 *
 *     while (!ch__step_exec_is_done(t)) {
 *         rc = ch__step_exec_next_calls(t, &n, &call);                   // all that can be asked now, a call for each server
 *         ... make them, and for each answer:
 *         rc = ch__step_exec_on_reply(t, call[i], parcel);
 *         while ((segment = ch__step_exec_local_part(t)) != NULL)    // whose inputs are there
 *             ... run it, then ch__step_exec_computed(t, results)
 *     }
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_STEP_EXEC_H
#define JOB_STEP_EXEC_H

#include "cohort/device.h"
#include "job/step_plan.h"
#include "net/net.h"

typedef struct ch_step_exec ch_step_exec;

/* Which attempt of which step it is. */
typedef struct ch_step_identity {
    uint64_t    step, retired, snapshot;
    const char *worker; /* borrowed as long as the trip */
    uint64_t    registration;
    ch_device *const
        *device; /* borrowed: of the replicas, where values are put; NULL: anywhere */
} ch_step_identity;

/* A call to one server. */
typedef struct ch_step_exec_call {
    int         server;
    ch_message *message; /* of the trip */
    double      bytes;   /* about: that go, that come, and that are changed */
    bool        is_answered;
    int         n; /* of the remotes in it, each with a shard */
    struct ch_step_exec_part {
        int remote, shard, replica;
    } * part;
} ch_step_exec_call;

/* `in` are the inputs of the replicas, one replica's after the other's; an input that all share may be the same tensor. The route, which is
 * borrowed, is one that came from ch__step_plan_decode. */
ch_status ch__step_exec_new(const ch_placed_plan *r, const ch_step_identity *attempt,
                            int n_replicas, ch_tensor *const *in, ch_step_exec **out);
void      ch__step_exec_free(ch_step_exec *t);
void      ch__step_exec_cache_free(struct ch_step_exec_cache *s); /* of a route that goes */

/* What can be asked now and was not yet; *n may be 0. They belong to the trip. */
ch_status ch__step_exec_next_calls(ch_step_exec *t, int *n, ch_step_exec_call *const **out);
/* The answer to one; a second one is passed over. What servers give is not trusted. */
ch_status ch__step_exec_on_reply(ch_step_exec *t, ch_step_exec_call *call,
                                 const ch_message *answer);

/* The next segment, if its inputs are there; else NULL. */
const ch_local_part *ch__step_exec_local_part(const ch_step_exec *t);
/* Its inputs, as a step's: per-replica where there are several. */
ch_status ch__step_exec_inputs(const ch_step_exec *t, ch_tuple **out);
/* It has run. */
ch_status ch__step_exec_computed(ch_step_exec *t, const ch_tuple *results);

bool ch__step_exec_is_done(const ch_step_exec *t);
/* Of one that is done: result i of a replica; borrowed. */
ch_tensor *ch__step_exec_result(const ch_step_exec *t, int i, int replica);

/* An update's number on servers, its graph for a shard and its variables there, for PsDefine. (*graph: a new reference) */
ch_status ch__step_exec_update(const ch_placed_plan *r, int remote, int shard,
                               uint64_t *function, ch_graph **graph);

#endif
