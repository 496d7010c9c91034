/* job/worker/run.h -- a run of a step on a worker, from the CH_WORKER_RUN call to its reply.
 *
 * A run reads its elements, calls servers, computes the local parts of the step plan and
 * replies. It uses the worker's ch_run_env and no other run. The worker (worker.c) keeps the
 * runs in a list and executes the first. It passes events to the first run, and afterwards
 * checks whether the run has ended.
 *
 * Threads and ownership. The functions below are called on the task's thread, while the task
 * handles an event. Reading elements and computing local parts are work items
 * (ch__outbox_work), which run on another thread while the task receives further events.
 *
 *   ch_run_env     owned by the worker. Work items read only `opt` and `group`, which are
 *                  constant
 *   functions and  owned by the worker, borrowed by the first run. The worker must not free
 *                  them
 *     streams      before it frees that run
 *   per-worker owned by the worker. They change only at the end of a successful run, while the
 *     variables    task handles an event. A run ignores a variable that was dropped in the
 *                  meantime
 *   ch_worker_run  owned by the worker, which frees it when ch__worker_run_has_ended. A run may
 *                  be over while its work item still runs. Then `stop` ends the computation
 *                  before its next kernel, and the worker waits for the work item
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_WORKER_RUN_H
#define JOB_WORKER_RUN_H

#include <stdatomic.h>

#include "base/fault.h"
#include "base/map.h"
#include "collective/group.h"
#include "graph/function.h"
#include "job/message.h"
#include "job/step_exec.h"
#include "job/worker.h"
#include "job/worker/stream.h"
#include "net/retry.h"

typedef struct ch_worker_run ch_worker_run;

/* The part of a worker that all its runs use. */
typedef struct ch_run_env {
    ch_worker_options opt;
    ch_task          *task;
    uint64_t          n_ids;      /* number of call ids used so far; the next id is n_ids + 1 */
    ch_retries        retries;    /* calls of the first run to servers */
    ch_map            functions;  /* ch_worker_function, by number */
    ch_map            streams;    /* ch_stream, by number */
    ch_map            per_worker; /* ch_per_worker_var, by number */
    /* Steps that have changed per-worker variables. The coordinator may send such a step again
     * if the reply was lost; it must not change them twice. Retired steps are removed. */
    ch_map    committed;
    ch_group *group; /* collectives of the replicas; NULL: there is one replica */
} ch_run_env;

/* How a step function uses a per-worker variable. */
typedef struct ch_per_worker_use {
    uint64_t number; /* of the variable */
    bool     is_read, is_written;
} ch_per_worker_use;

/* A worker's record of a step function. Created when the coordinator sends it
 * (CH_WORKER_FUNCTION), owned by the worker (ch_run_env.functions), borrowed by the first run.
 * Freed when the coordinator drops it and the first run does not use it, or with the worker. */
typedef struct ch_worker_function {
    ch_placed_plan placed;
    ch_function  **local_part; /* by index in the plan */
    bool         **is_defined; /* by remote part and shard: the server has the update's graph */
    int            n_servers;
    /* By server: the incarnation that holds the variables. A call to another counts as lost. */
    uint64_t *incarnation;
    /* Per-worker variables. Those that are read are the plan's last inputs, those that are
     * written its last results, in this order. */
    int                n_per_worker, n_read, n_written;
    ch_per_worker_use *per_worker;
} ch_worker_function;

/* An element of a stream that is read before the step begins. */
typedef struct ch_worker_element {
    uint64_t   stream;      /* number of the stream */
    int64_t    number;      /* of the element */
    int        first_input; /* index of the step's input that gets the first component */
    ch_stream *from;        /* borrowed */
    ch_tuple  *element;     /* NULL: not read yet, or past the end of the data */
} ch_worker_element;

struct ch_worker_run {
    ch_worker_run *next; /* in the worker's list */
    ch_run_env    *env;
    ch_call_id     call; /* the CH_WORKER_RUN call to reply to */
    uint64_t       step, function_number, retired, snapshot, seed, registration;
    /* Number for ch_step_number and random numbers; rows of the step over all replicas. */
    int64_t            number, rows;
    ch_message        *message; /* the request, with its input tensors */
    int                n_elements;
    ch_worker_element *element;
    uint64_t           ended_stream; /* a stream that ends before the wanted element; 0: none */
    int                unreachable;  /* a server that does not reply, its index + 1; 0: none */
    ch_worker_function *f;           /* borrowed; NULL: the run has not begun */
    ch_step_exec       *exec;        /* NULL: elements are not read yet */
    /* The reply has no results; elements were read; a work item runs; nothing is left to do. */
    bool        is_silent, has_read, is_computing, is_over;
    bool        defers;      /* servers keep the step's updates until it is settled */
    bool        has_updated; /* an update was sent, so the step cannot be cancelled any more */
    atomic_bool stop; /* the run is over: the work item must end before its next kernel */
    /* Owned by the work item while is_computing: inputs, results and error. */
    ch_tuple *in, *out;
    ch_status rc;
    ch_fault  fault;
};

/* Creates a run for a call. References the message `p`; `m` is its decoded form, borrowed. */
CH_MUST_CHECK ch_status ch__worker_run_new(ch_run_env *env, ch_call_id call, ch_message *p,
                                           const Cohort__WorkerRun *m, ch_worker_run **out);
/* Frees a run that has ended or has not begun. */
void ch__worker_run_free(ch_worker_run *r);

/* Does all that can be done now: begins a work item, sends calls, or replies. This and the next
 * two functions may end the run. */
void ch__worker_run_advance(ch_worker_run *r, ch_outbox *outbox, int64_t now);
/* Handles the end of a work item (CH_EVENT_WORK). */
void ch__worker_run_computed(ch_worker_run *r, ch_outbox *outbox, int64_t now);
/* Handles the end of a call to a server (ch__retries_on_reply), and frees the call. */
void ch__worker_run_replied(ch_worker_run *r, ch_retry *ended, const ch_net_event *e,
                            ch_outbox *outbox, int64_t now);
/* Ends the run without a reply and cancels its calls. If `outbox` is NULL, because the worker
 * has ended, sends nothing. */
void ch__worker_run_end(ch_worker_run *r, ch_outbox *outbox);

/* Returns true if the run is over and no work item of it runs any more. */
static inline bool ch__worker_run_has_ended(const ch_worker_run *r)
{
    return r->is_over && !r->is_computing;
}

#endif
