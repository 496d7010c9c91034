/* job/worker/run.h -- one run of a step on a worker: from the call that asks for it to the answer.
 *
 * A run reads its elements, makes calls to servers, computes the segments between them and answers. It knows its workplace and
 * nothing of other runs: the worker (worker.c) has them in a list, tells the first one what happens, and looks afterwards
 * whether it is over. All of it happens in the worker's turn, except reading and computing:
 *
 *   the workplace   is the worker's. Outside the turn only `opt` and `group` of it are looked at, which do not change
 *   functions and   are the worker's, and are borrowed by the first run, from its first step on: they are not dropped
 *     streams       before it is freed
 *   variables of    are the worker's, and change in its turn alone, when a run has gone well; one that is gone by then
 *     its own       is not missed
 *   a run           is the worker's, who frees it when ch__worker_run_has_ended. It may be over before: then `stop` ends
 *                   the computation before its next kernel, and that is waited for
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_WORKER_RUN_H
#define JOB_WORKER_RUN_H

#include <stdatomic.h>

#include "base/fault.h"
#include "base/id_map.h"
#include "collective/group.h"
#include "graph/function.h"
#include "job/message.h"
#include "job/step_exec.h"
#include "job/worker.h"
#include "job/worker/stream.h"
#include "net/retry.h"

typedef struct ch_worker_run ch_worker_run;

/* What all runs of a worker use. */
typedef struct ch_run_env {
    ch_worker_options opt;
    ch_task          *task;
    uint64_t          n_ids;      /* ids of calls that were given */
    ch_retries        retries;    /* calls of the first run to servers */
    ch_map            functions;  /* ch_worker_function, by number */
    ch_map            streams;    /* ch_stream */
    ch_map            per_worker; /* ch_per_worker_var: variables of its own */
    ch_map            counted; /* steps that have changed those, of which some may come again */
    ch_group         *group;   /* NULL: one replica */
} ch_run_env;

/* A variable of the worker's own, as a function uses it. */
typedef struct ch_per_worker_use {
    uint64_t number;
    bool     is_read, is_written;
} ch_per_worker_use;

/* A worker's record of a function that steps run. Created when the coordinator sends it
 * (CH_WORKER_FUNCTION), owned by the worker (ch_run_env.functions), borrowed by the first
 * run. Freed when the coordinator drops it and the first run does not use it, or with the
 * worker. */
typedef struct ch_worker_function {
    ch_placed_plan sent;
    ch_function  **local_part; /* by index in the route */
    bool         **is_defined; /* by remote and shard: the server has the graph */
    int            n_servers;
    uint64_t      *server; /* incarnation of each server that has the variables */
    /* Variables of which each worker has its own: those that are read are the last inputs,
     * those that are written the last results. */
    int                n_per_worker, n_read, n_written;
    ch_per_worker_use *per_worker;
} ch_worker_function;

/* An element that is read before the step begins. */
typedef struct ch_worker_element {
    uint64_t   stream;
    int64_t    number;
    int        at; /* of the inputs: its first */
    ch_stream *from;
    ch_tuple  *got;
} ch_worker_element;

struct ch_worker_run {
    ch_worker_run     *next; /* the worker's */
    ch_run_env        *place;
    ch_call_id         call;
    uint64_t           step, number_of_function, retired, snapshot, seed, registration;
    int64_t            number, rows;
    ch_message        *message; /* with its inputs */
    int                n_elements;
    ch_worker_element *element;
    uint64_t           ended; /* the stream that has not so many; 0: none */
    int unreachable;          /* the server, counted from 1, that does not answer; 0: none */
    ch_worker_function *f;    /* NULL: it has not begun */
    ch_step_exec       *exec;
    bool                is_silent, has_read, is_computing, is_over;
    bool has_updated; /* it has sent an update, so that it can not be cancelled any more */
    atomic_bool stop; /* it is over: what is computed ends before its next kernel */
    /* Of what is read or computed, which writes them. */
    ch_tuple *in, *out;
    ch_status rc;
    ch_fault  fault;
};

/* Keeps the parcel, whose message `m` is. */
CH_MUST_CHECK ch_status ch__worker_run_new(ch_run_env *place, ch_call_id call, ch_message *p,
                                           const Cohort__WorkerRun *m, ch_worker_run **out);
void                    ch__worker_run_free(ch_worker_run *r);

/* As far as it can go now: to its end perhaps, as after all that follows. */
void ch__worker_run_advance(ch_worker_run *r, ch_outbox *outbox, int64_t now);
/* What it read or computed is there. */
void ch__worker_run_computed(ch_worker_run *r, ch_outbox *outbox, int64_t now);
/* Handles the end of a call to a server (ch__retries_on_reply), and frees the call. */
void ch__worker_run_replied(ch_worker_run *r, ch_retry *ended, const ch_net_event *e,
                            ch_outbox *outbox, int64_t now);
/* Ends the run without a reply and cancels its calls. If `outbox` is NULL, because the worker has
 * ended, sends nothing. */
void ch__worker_run_end(ch_worker_run *r, ch_outbox *outbox);

/* It is over, and computes nothing any more. */
static inline bool ch__worker_run_has_ended(const ch_worker_run *r)
{
    return r->is_over && !r->is_computing;
}

#endif
