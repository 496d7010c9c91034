/* job/step_exec.h -- one run of a route: what is asked of servers, and what becomes of their answers.
 *
 * Whoever runs it makes the calls and runs the segments; a trip says which, and holds the values between them. It knows nothing
 * of time and of losses: a call may be made again as it is, since servers apply an update once.
 *
 *     while (!ch__trip_is_done(t)) {
 *         rc = ch__trip_ask(t, &n, &call);                   // all that can be asked now, a call for each server
 *         ... make them, and for each answer:
 *         rc = ch__trip_answer(t, call[i], parcel);
 *         while ((segment = ch__trip_segment(t)) != NULL)    // whose inputs are there
 *             ... run it, then ch__trip_ran(t, results)
 *     }
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_STEP_EXEC_H
#define JOB_STEP_EXEC_H

#include "cohort/device.h"
#include "job/step_plan.h"
#include "net/net.h"

typedef struct ch_trip ch_trip;

/* Which attempt of which step it is. */
typedef struct ch_attempt {
    uint64_t    step, retired, pin;
    const char *worker; /* borrowed as long as the trip */
    uint64_t    incarnation;
    ch_device *const
        *device; /* borrowed: of the replicas, where values are put; NULL: anywhere */
} ch_attempt;

/* A call to one server. */
typedef struct ch_trip_call {
    int        server;
    ch_parcel *parcel; /* of the trip */
    double     bytes;  /* about: that go, that come, and that are changed */
    bool       is_answered;
    int        n; /* of the remotes in it, each with a shard */
    struct ch_trip_part {
        int remote, shard, replica;
    } * part;
} ch_trip_call;

/* `in` are the inputs of the replicas, one replica's after the other's; an input that all share may be the same tensor. The route, which is
 * borrowed, is one that came from ch__route_decode. */
ch_status ch__trip_new(const ch_sent_route *r, const ch_attempt *attempt, int n_replicas,
                       ch_tensor *const *in, ch_trip **out);
void      ch__trip_free(ch_trip *t);
void      ch__trip_store_free(struct ch_trip_store *s); /* of a route that goes */

/* What can be asked now and was not yet; *n may be 0. They belong to the trip. */
ch_status ch__trip_ask(ch_trip *t, int *n, ch_trip_call *const **out);
/* The answer to one; a second one is passed over. What servers give is not trusted. */
ch_status ch__trip_answer(ch_trip *t, ch_trip_call *call, const ch_parcel *answer);

/* The next segment, if its inputs are there; else NULL. */
const ch_segment *ch__trip_segment(const ch_trip *t);
/* Its inputs, as a step's: per-replica where there are several. */
ch_status ch__trip_inputs(const ch_trip *t, ch_tuple **out);
/* It has run. */
ch_status ch__trip_ran(ch_trip *t, const ch_tuple *results);

bool ch__trip_is_done(const ch_trip *t);
/* Of one that is done: result i of a replica; borrowed. */
ch_tensor *ch__trip_result(const ch_trip *t, int i, int replica);

/* An update's number on servers, its graph for a shard and its variables there, for PsDefine. (*graph: a new reference) */
ch_status ch__trip_update(const ch_sent_route *r, int remote, int shard, uint64_t *function,
                          ch_graph **graph);

#endif
