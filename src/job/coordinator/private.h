/* job/coordinator/private.h -- the parts of the coordinator task that its files share.
 *
 *   coordinator.c    the task: its events, its tick, lost servers
 *   call.c           retried calls to servers and workers
 *   heartbeat.c      pings, and the count of ticks without a reply
 *   workers.c        the worker table: pings, what each worker was sent, lost workers
 *   step_function.c  the step plans that workers receive
 *   queue.c          the lists of steps: their order, and how steps end
 *   scheduler.c      which step runs on which worker, and when
 *   snapshot.c       snapshots of the variables, and cuts: snapshots between steps
 *   attempt.c        RUN calls of steps to workers, and their outcomes
 *   settle.c         the updates of rounds, applied in the order of their steps
 *   cancel.c         cancelling steps
 *   input.c          the elements that steps read
 *   client.c         connect, schedule, wait and join, for the program's threads
 *   variables.c      variables outside of steps, for the program's threads
 *
 * ch_coord is the state of the task. The main structs in it:
 *   ch_worker_entry    a worker: its state, registration, and the list of its attempts
 *   ch_peer_server     a parameter server
 *   ch_scheduled       a step that has not ended, or that the program still refers to
 *   ch_attempt         a RUN call of a step to a worker; a step has at most two at a time
 *   ch_coord_call      any other call, repeated until the callee replies
 *   ch_step_function   a step function: a step plan that workers receive
 *   ch_worker_input    the data streams or tensors that steps read on each worker
 *   ch_settle          the call that applies the updates of a round
 *   ch_cancel          the round of cancelling
 *
 * All functions run inside the task: in an event handler, or in a program's thread that has
 * locked the task (ch__coord_enter). Nothing here needs another lock.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_COORDINATOR_PRIVATE_H
#define JOB_COORDINATOR_PRIVATE_H

#include "base/fault.h"
#include "base/map.h"
#include "job/coordinator.h"
#include "job/coordinator/heartbeat.h"
#include "job/message.h"
#include "net/retry.h"

typedef struct ch_coord ch_coord;

/* The arguments of every function that runs inside the task. */
typedef struct ch_coord_context {
    ch_coord  *c;
    ch_outbox *outbox; /* NULL: the task is ending, and nothing is sent */
    int64_t    now;    /* time in ns */
} ch_coord_context;

/* Locks the task for a thread of the program (ch__task_enter). The caller must call
 * ch__coord_leave or ch__task_leave. `c` is NULL if the task has ended. After a wait
 * (ch__task_wait) the caller must read `now` again. */
ch_coord_context ch__coord_enter(ch_task *coord);
/* Unlocks the task and returns `rc`. */
ch_status ch__coord_leave(ch_task *coord, ch_status rc);
/* Blocks a thread of the program until is_over(arg) is true. If limit_ms is 0, fails only when
 * no step has ended for a long time (client.c), so that the number of scheduled steps does not
 * matter. `condition` describes the awaited event for the error message. */
CH_MUST_CHECK ch_status ch__coord_wait_steps(ch_task *coord, const ch_coord   *c,
                                             bool (*is_over)(void *arg), void *arg,
                                             int64_t limit_ms, const char *condition);

/* ---- calls to servers and workers ---- */

/* A server or a worker, by its index. */
typedef struct ch_callee {
    bool is_worker;
    int  index;
} ch_callee;

static inline ch_callee ch__to_server(int i)
{
    return (ch_callee){false, i};
}

static inline ch_callee ch__to_worker(int i)
{
    return (ch_callee){true, i};
}

typedef struct ch_coord_call ch_coord_call;
typedef void (*ch_coord_then)(const ch_coord_context *t, const ch_coord_call *call);

/* A call that is repeated until the callee replies. The callee may receive it several times.
 * The coordinator task owns the call and frees it when the call has ended or is cancelled. */
struct ch_coord_call {
    ch_retry      retry; /* must be first */
    ch_callee     to;
    uint64_t      registration; /* of the worker when the call began; 0 for a server */
    ch_coord_then then;         /* called when the call has ended; may be NULL */
    uint64_t      arg;          /* for `then` */
    void         *waiter; /* for `then` of a call that a thread of the program waits for */
    /* The outcome, borrowed during `then`: a reply or a fault. Both are NULL if the worker was
     * declared lost, or if there was no memory for the call (ch__coord_call_servers). */
    ch_message     *reply;
    const ch_fault *fault;
};

/* Calls a server or a worker. Takes the message over, on an error too. If the server is lost,
 * the call ends, with the job's error, before this function returns. */
CH_MUST_CHECK ch_status ch__coord_call(const ch_coord_context *t, ch_callee to,
                                       ch_message *message, ch_coord_then then, uint64_t arg);
/* ch__coord_call in two steps, for several calls of which all must be sent or none. The caller
 * sets `then` and `arg` between the steps. ch__coord_call_new takes the message over, on an
 * error too. */
CH_MUST_CHECK ch_status ch__coord_call_new(const ch_coord_context *t, ch_callee to,
                                           ch_message *message, ch_coord_call **out);
void                    ch__coord_call_send(const ch_coord_context *t, ch_coord_call *call);
/* Calls all servers with the same message, which is taken over. Calls `then`, which may be
 * NULL, once for each server. If there is no memory for a call, `then` is called with neither
 * reply nor fault, and an error is returned. */
ch_status ch__coord_call_servers(const ch_coord_context *t, ch_message *message,
                                 ch_coord_then then, uint64_t arg);
/* Cancels a call that has not ended, and frees it. Does not call `then`. */
void ch__coord_call_cancel(const ch_coord_context *t, ch_coord_call *call);
/* Ends all calls to a server or a worker that was declared lost. */
void ch__coord_calls_end(const ch_coord_context *t, ch_callee to);
/* Handles the end of an attempt (CH_EVENT_REPLY). Returns false if the event belongs to no call
 * of this list. */
bool ch__coord_call_on_reply(const ch_coord_context *t, const ch_net_event *e);
/* Frees all calls without sending anything. Does not call `then`. */
void ch__coord_calls_free(ch_coord *c);

/* ---- workers ---- */

typedef enum ch_worker_state {
    CH_WORKER_ABSENT,  /* has never replied, or was lost and is fenced */
    CH_WORKER_FENCING, /* was declared lost; not all servers have replied to FENCE yet */
    CH_WORKER_READY    /* replies to pings; may receive steps */
} ch_worker_state;

/* An entry of the worker table. It is never removed. Times are in ns. */
typedef struct ch_worker_entry {
    char            name[32]; /* "worker/0" */
    ch_link        *link;
    ch_worker_state state;
    uint64_t        incarnation; /* of the task that replied last as a new worker */
    /* Begins at 1, incremented when the worker is declared lost. RUN carries it to the worker,
     * UPDATE from there to servers, which reject a fenced registration. */
    uint64_t     registration;
    ch_heartbeat heartbeat;
    int          n_unfenced;           /* servers that have not replied to FENCE yet */
    int          n_fence_calls;        /* servers to which FENCE was sent */
    uint32_t     fence_round;          /* number of times that FENCE was sent to all servers */
    int          n_sending;            /* open calls that send step functions, streams */
    int64_t      sending_bytes;        /* of these calls */
    int          n_runs;               /* attempts in the list below */
    int64_t      n_finished, n_losses; /* steps done by it; times it was declared lost */
    ch_map  sent; /* numbers of step functions and streams that were sent or are being sent */
    int64_t last_end, mean; /* time when its last step ended; mean time of a step */
    /* The attempts of this worker. `first` is the attempt that the worker presumably runs; the
     * others follow in the order in which they were sent. */
    struct ch_attempt *first, *last;
    int64_t            began;        /* time since when `first` presumably runs */
    bool               is_confirmed; /* a reply to a ping has named `first` as running */
    uint64_t           alarm;        /* id of the timer that checks the step time limit */
    int64_t            alarm_at;     /* time when the timer fires; INT64_MAX: it is not set */
    /* No steps are sent before this time, because the worker could not reach a server or its
     * link had no room. */
    int64_t paused_until;
    /* The worker still computes a step that has failed because of its time limit, or a step
     * from before it was declared lost. It receives no steps until a reply to a ping says that
     * it is idle. The ping must have been sent at `overdue_at` or later. */
    bool    is_overdue;
    int64_t overdue_at;
} ch_worker_entry;

typedef struct ch_peer_server {
    char         name[32]; /* "ps/0" */
    ch_link     *link;
    uint64_t     incarnation; /* 0: has not replied yet */
    ch_heartbeat heartbeat;
    int          n_lost;    /* pings in a row that ended as CH_ENDED_LOST */
    bool         is_called; /* in the current phase of cancelling (cancel.c) */
    bool         is_lost;   /* the job has failed */
} ch_peer_server;

/* Pings all workers, declares the silent ones lost, and sends FENCE calls that are missing. */
void ch__workers_tick(const ch_coord_context *t);
/* Handles the end of a ping that was sent at time `at`. */
void ch__workers_on_ping(const ch_coord_context *t, ch_worker_entry *m, const ch_net_event *e,
                         int64_t at);
/* Declares a worker lost, unless it is lost already: increments its registration and fences the
 * old one on all servers. When all have replied, the worker's steps are queued again. */
void ch__workers_declare_lost(const ch_coord_context *t, ch_worker_entry *m);
/* Returns true if the worker has received the step function or stream of this number, and no
 * other is being sent to it. Otherwise returns false, and sends `message` if it was not sent
 * before. When the worker has replied, queued steps are sent (ch__scheduler_send). */
bool ch__workers_send_once(const ch_coord_context *t, ch_worker_entry *m, uint64_t number,
                           ch_message *message);
typedef enum ch_sent_kind {
    CH_SENT_STEP_FUNCTION,
    CH_SENT_STREAM,
    CH_SENT_PER_WORKER
} ch_sent_kind;
/* Sends DROP for a step function, stream or per-worker variable that is no longer used, to all
 * workers that may have it. Does nothing if the task is ending. */
void ch__workers_drop(const ch_coord_context *t, uint64_t number, ch_sent_kind kind);
/* Adds an entry for the next worker. */
CH_MUST_CHECK ch_status ch__workers_add(ch_coord *c, ch_worker_entry **out);

/* ---- steps ---- */

typedef enum ch_scheduled_state {
    CH_STEP_QUEUED,  /* in ch_coord.queue */
    CH_STEP_RUNNING, /* in ch_coord.running: has an attempt, or is parked (cancel.c) */
    CH_STEP_DONE,    /* from here on: has ended */
    CH_STEP_FAILED,
    CH_STEP_CANCELLED
} ch_scheduled_state;

/* The element that a step reads from a worker input. */
typedef struct ch_lease {
    ch_worker_input *input;  /* referenced */
    int              stream; /* index in input->stream */
    int64_t          number; /* of the element; -1: none leased yet */
} ch_lease;

/* Attempts of a step at the same time: the second is a backup. */
enum { CH_ATTEMPTS = 2 };

typedef enum ch_cancel_reason { CH_CANCEL_ERROR, CH_CANCEL_CALL } ch_cancel_reason;

/* A RUN call of a step to a worker. A worker runs its attempts one after the other. */
typedef struct ch_attempt {
    struct ch_attempt *prev, *next; /* in the worker's list */
    uint64_t           call;        /* id of the call; 0: no attempt */
    int                worker;      /* index */
    int                n_absent;    /* replies to pings in a row that do not list the step */
    int64_t            sent_at;     /* time in ns */
} ch_attempt;

/* The coordinator's record of a step function. Created by ch__coord_add_function,
 * owned by the coordinator task (ch_coord.functions). Freed when the program has forgotten it
 * (ch__coord_forget_function) and the last step that uses it has ended, or with the task. */
typedef struct ch_step_function {
    uint64_t        number;
    char            name[48]; /* for error messages; cut if it is longer */
    int             n_ops;
    ch_recorded_op *op;                      /* owned */
    ch_message     *message;                 /* the FUNCTION call that sends it to a worker */
    uint64_t        first_update, n_updates; /* numbers of its updates on servers */
    int64_t         n_steps;                 /* steps that use it and have not ended */
    bool            is_forgotten;            /* by the program */
    bool            has_results;             /* as in ch_function_spec */
} ch_step_function;

/* A step, or an assignment (is_assign). An assignment has a step number and is in the list of
 * steps that have not ended, but it is neither queued nor running. */
struct ch_scheduled {
    atomic_int    refs; /* the coordinator's until the step has ended, and the program's */
    ch_scheduled *next, *prev; /* in the list of all steps that have not ended, by number */
    /* In ch_coord.queue or ch_coord.running: own steps first, then by number. */
    ch_scheduled     *after, *before;
    uint64_t          step, snapshot, seed; /* `step` is the step's number */
    ch_step_function *function;             /* NULL: an assignment, or it was freed before */
    uint64_t          order; /* index among the steps that are not own: for rounds, staleness */
    const void       *owner; /* as in ch_step_request */
    int64_t           number; /* for ch_step_number */
    ch_scheduled_state state;
    /* is_own: see ch_step_request. is_silent: the results are not needed. was_sent: the step
     * has or had an attempt. */
    bool is_own, is_silent, is_assign, was_sent;
    /* For settle.c. defers: servers keep the step's updates until it is settled; fixed when the
     * step is sent first. is_accepted: the step has run, and all servers have its updates.
     * is_settling: the current SETTLE call names the step. */
    bool defers, is_accepted, is_settling;
    /* For cancel.c. */
    bool             wants_cancel; /* to be cancelled unless it has begun */
    bool             is_held;      /* belongs to the current round of cancelling */
    bool             has_begun; /* a server has applied an update of it: must run to its end */
    ch_cancel_reason cancel_reason;
    ch_attempt       attempt[CH_ATTEMPTS];
    ch_message      *result; /* of a step that is done; NULL if is_silent */
    ch_fault        *fault;  /* of a step that failed; NULL if there was no memory for it */
    ch_status        code;   /* of a step that failed */
    int64_t          bytes;  /* of the tensors in `in` */
    int              n_in, n_inputs, n_shared, n_leases; /* as in ch_step_request */
    ch_lease        *lease; /* one for each worker input; in the same allocation, after `in` */
    ch_tensor       *in[];
};

typedef struct ch_step_list {
    ch_scheduled *first, *last;
    int64_t       n, bytes; /* number of steps; bytes of their inputs */
    int64_t       n_own;    /* own steps among them */
} ch_step_list;

/* Gives a step the next number and adds it to the queue. Takes the coordinator's reference
 * over. */
void ch__queue_add(ch_coord *c, ch_scheduled *s);
/* Moves a queued step to the list of running steps. A running step stays there. A step without
 * an attempt is then parked: it is not sent until ch__queue_resume. */
void ch__queue_set_running(ch_coord *c, ch_scheduled *s);
/* Returns true if the step must not be sent: it has run already (is_accepted), or a round of
 * cancelling has not ended. */
bool ch__queue_is_parked(const ch_scheduled *s);
/* Queues a running step again, unless it has another attempt or is parked. */
void ch__queue_requeue(const ch_coord_context *t, ch_scheduled *s);
/* Queues a parked step again. Ends its attempts, except those on workers that are being fenced:
 * these end when the fence is complete. */
void ch__queue_resume(const ch_coord_context *t, ch_scheduled *s);
/* Ends a step in state `how`: ends its attempts, removes it from all lists and releases its
 * inputs. Releases the coordinator's reference, so the step may be freed. */
void ch__queue_end(const ch_coord_context *t, ch_scheduled *s, ch_scheduled_state how);
/* Fails a step. Adds the step's number, step function and program line to the error. */
void ch__queue_fail(const ch_coord_context *t, ch_scheduled *s, const ch_fault *why);
/* Fails a step with this thread's error. */
void ch__queue_fail_status(const ch_coord_context *t, ch_scheduled *s, ch_status rc);
/* Fails the queued steps that need a step function or stream which a worker has rejected. */
void ch__queue_fail_users(const ch_coord_context *t, uint64_t number, const ch_fault *why);
/* Fails all steps that have not ended, because the job has failed. */
void ch__queue_fail_all(const ch_coord_context *t, const ch_fault *why);
/* Returns the number below which all steps have ended. */
uint64_t ch__queue_retired(const ch_coord *c);
/* Returns the oldest step that has not ended and is neither own nor an assignment, or NULL. */
const ch_scheduled *ch__queue_oldest(const ch_coord *c);
/* Makes a PING for servers. It carries the retired number, the steps above it that have not
 * ended, and the round of cancelling up to which holds may be released. */
CH_MUST_CHECK ch_status ch__queue_pack_retired(const ch_coord *c, ch_message **out);

/* ---- scheduling ---- */

/* Sends queued steps to workers, as many as the mode of the coordinator and the workers
 * allow. */
void ch__scheduler_send(const ch_coord_context *t);
/* Returns the number of steps in a round of CH_SYNCHRONOUS. */
uint64_t ch__round_size(const ch_coord *c);
/* Sends slow steps to idle workers as a second attempt (ch_coordinator_options.backups). */
void ch__scheduler_send_backups(const ch_coord_context *t);

/* ---- attempts ---- */

enum { CH_WORKER_ATTEMPTS = 32 }; /* attempts that a worker has at the same time, at most */

/* Sends RUN to a worker that has the step function and the streams. Returns false if memory is
 * exhausted. */
bool ch__attempt_send(const ch_coord_context *t, ch_scheduled *s, int worker);
/* Ends attempt i of a step, if there is one, and cancels its call. */
void ch__attempt_end(const ch_coord_context *t, ch_scheduled *s, int i);
/* Handles the end of an attempt's call. */
void ch__attempt_on_reply(const ch_coord_context *t, ch_scheduled *s, int attempt,
                          const ch_net_event *e);
/* Handles a timer. If the timer is a worker's alarm, and the step that the worker runs has
 * exceeded its time limit, fails the step. */
void ch__attempts_on_timer(const ch_coord_context *t, uint64_t id);
/* Handles a worker's reply to a ping that was sent at time `pinged_at`. Repeats the steps that
 * were sent before that time and that two replies in a row have not listed. Fails the step that
 * the worker runs if it has exceeded its time limit. */
void ch__attempts_on_ping(const ch_coord_context *t, ch_worker_entry *m,
                          const Cohort__WorkerReply *reply, int64_t pinged_at);
/* Ends the attempts of a worker that is lost and fenced. Queues its steps again, except those
 * that have another attempt. */
void ch__attempts_worker_lost(const ch_coord_context *t, int worker);
/* Marks a worker as overdue (ch_worker_entry.is_overdue), and queues its steps again. */
void ch__attempts_worker_overdue(const ch_coord_context *t, ch_worker_entry *m);

/* ---- step functions ---- */

void ch__step_function_free(ch_step_function *f); /* NULL is allowed */
/* Frees a step function here, on workers and on servers, if the program has forgotten it and no
 * step uses it. */
void ch__step_function_free_unused(const ch_coord_context *t, ch_step_function *f);

/* ---- settling ---- */

/* The current SETTLE call to all servers: see settle.c. */
typedef struct ch_settle {
    uint64_t number;     /* of the call, or of the last */
    int64_t  n_accepted; /* steps with is_accepted */
    int      n_pending;  /* servers that have not replied; 0: there is no call */
    bool     has_failed; /* a call was not carried out; the next tick repeats it */
    uint64_t failed;     /* the first step of which an update has failed; 0: none */
    ch_fault fault;      /* its error */
} ch_settle;

/* Records that a step has run and that servers have deferred its updates. The step ends when
 * they have been applied. */
void ch__settle_accept(const ch_coord_context *t, ch_scheduled *s);
/* Settles the accepted steps before which no step is left, unless a call is pending. */
void ch__settle(const ch_coord_context *t);
/* Ignores the replies that are pending, because the job has failed. */
void ch__settle_abort(ch_coord *c);

/* ---- cancelling ---- */

/* The phases of a round: see cancel.c. */
typedef enum ch_cancel_phase {
    CH_CANCEL_IDLE,
    CH_DROPPING,
    CH_HOLDING,
    CH_RELEASING
} ch_cancel_phase;

typedef struct ch_cancel {
    ch_cancel_phase phase;
    uint64_t        round;           /* number of the current round, or of the last */
    uint64_t        released;        /* the last round whose hold servers may release */
    uint64_t        upto;            /* the newest step of any round so far */
    uint64_t        n_server_phases; /* phases so far in which servers were called */
    int             n_pending; /* workers or servers that have not replied in this phase */
    int64_t         n_wanted;  /* steps with wants_cancel that have not ended */
} ch_cancel;

/* Cancels a step, or all scheduled steps, except own steps and steps that have begun to change
 * variables. A step that was never sent to a worker has ended when this returns. */
void ch__cancel_step(const ch_coord_context *t, ch_scheduled *s, ch_cancel_reason why);
void ch__cancel_all(const ch_coord_context *t, ch_cancel_reason why);
/* Calls the servers again that could not reply, or for which there was no memory. */
void ch__cancel_tick(const ch_coord_context *t);
/* Ends the current round without a decision, because the job has failed. */
void ch__cancel_abort(ch_coord *c);
/* Returns true if all steps to be cancelled have ended and no worker is being fenced, so that
 * no update of an ended step can still be applied. */
bool ch__cancel_is_quiet(const ch_coord *c);

/* ---- worker inputs ---- */

/* A data stream. Elements are numbered from 0. A position is a saved state of the dataset's
 * iterator, as bytes, which a worker sends with a step's results. Another worker can continue
 * there. */
typedef struct ch_worker_input_stream {
    uint64_t   number;  /* for workers */
    ch_tensor *dataset; /* encoded */
    /* Where a worker that receives the stream begins; NULL: at the beginning. No element before
     * it is leased or returned. */
    ch_tensor *position;
    /* A later position, or NULL. It becomes `position` when the n_before elements before it
     * that are leased or returned have been used up. */
    ch_tensor *pending;
    int        n_before;
    /* Number of the first element after `position` and after `pending`; of the next element to
     * be leased; of elements in the stream (INT64_MAX until a worker has found the end). */
    int64_t position_at, pending_at, next, end;
    /* Elements of cancelled steps, which are leased again before `next`: a heap of n_returned
     * numbers. n_leased: elements that are leased to steps that have not ended. */
    int64_t *returned;
    int      n_returned, cap_returned, n_leased;
    int      holder; /* index of the worker that was last sent a step with it; -1: none */
} ch_worker_input_stream;

/* Data streams (n_values is 0) or fixed tensors. */
struct ch_worker_input {
    ch_worker_input        *next_input; /* in ch_coord.inputs */
    int                     refs;       /* the program's, and one for each step that reads it */
    bool                    is_shared;  /* any worker may read any stream */
    int                     n_streams, width; /* width: components of an element */
    int64_t                 pass;
    int64_t                 n_turns; /* leases so far: in rounds they take turns of streams */
    ch_worker_input_stream *stream;
    int                     n_values; /* workers that have tensors of their own; 0: streams */
    int                     copies;   /* replicas of a worker that have tensors of their own */
    ch_tensor             **value;    /* n_values * copies * width tensors */
};

/* Chooses the streams that the step would read on this worker, if no elements are leased yet.
 * Returns CH_OUT_OF_RANGE if all streams have ended. */
CH_MUST_CHECK ch_status ch__worker_input_choose(const ch_coord *c, ch_scheduled *s, int worker);
/* Returns true if the worker has received the chosen streams. Otherwise sends them. */
bool ch__worker_input_is_sent(const ch_coord_context *t, const ch_scheduled *s, int worker);
/* Leases the next elements of the chosen streams to the step, unless it has leases. The step
 * reads the same elements in every attempt. Returns false if memory is exhausted; the step may
 * then have some of the leases. */
bool ch__worker_input_lease(ch_scheduled *s, int worker);
/* Ends the leases of a step that has changed nothing. Returns the elements to their streams:
 * the next steps read them. */
void ch__worker_input_return(ch_scheduled *s);
/* Handles a worker's report that a stream does not have the leased element. Ends the lease.
 * Returns true if another stream has elements for the step. */
bool ch__worker_input_ended(const ch_coord_context *t, ch_scheduled *s, uint64_t stream);
/* Ends the leases of a step that has ended, and releases its worker inputs. The elements are
 * returned if the step was cancelled. Otherwise they are used up. */
void ch__worker_input_release(const ch_coord_context *t, ch_scheduled *s);
/* Records a position that a worker sent: element `number` is the next element there. */
void ch__worker_input_position(const ch_coord_context *t, uint64_t stream, int64_t number,
                               ch_tensor *position);
/* Releases a reference. The last one frees the input and drops its streams on workers. NULL is
 * allowed. */
void ch__worker_input_unref(const ch_coord_context *t, ch_worker_input *f);
/* Clears the `holder` of the streams of a lost worker. */
void ch__worker_input_worker_lost(const ch_coord *c, int worker);

/* ---- the coordinator ---- */

/* The current round of CH_SYNCHRONOUS. Its steps read the same snapshot. */
typedef struct ch_sync_round {
    uint64_t base;       /* ch_scheduled.order of the first step since the last join */
    uint64_t begin;      /* order of the first step of this round */
    uint64_t end;        /* order of the first step after this round */
    uint64_t snapshot;   /* 0: there is no round */
    int      n_pending;  /* servers that have not taken the snapshot yet */
    bool     has_failed; /* a server could not take it: the round begins again */
} ch_sync_round;

/* The phase of a cut: see snapshot.c. */
typedef enum ch_cut_phase {
    CH_CUT_NONE,
    CH_CUT_PREPARED,
    CH_CUT_HOLDING,
    CH_CUT_FROZEN
} ch_cut_phase;

enum { CH_SNAPSHOTS = 64 }; /* snapshots in use at the same time, at most */

struct ch_coord {
    ch_coord_options  opt;
    ch_task          *task;
    int               n_workers, cap_workers;
    ch_worker_entry **worker;
    ch_peer_server   *server;
    /* Counters: ids of calls and timers; numbers of step functions, updates, streams and
     * variables; steps; steps that are not own; snapshots. */
    uint64_t n_ids, n_numbers, n_steps, n_orders, n_snapshots;
    int      n_in_use;
    struct {
        uint64_t number;
        int      n_pending;           /* servers that have not replied yet */
        bool     has_failed;          /* a server could not take it */
    } in_use[CH_SNAPSHOTS];           /* snapshots that are in use, by ascending number */
    bool             must_release;    /* servers still have snapshots that are not in use */
    ch_map           calls;           /* ch_scheduled of each open attempt, by id of its call */
    ch_map           functions;       /* ch_step_function, by number */
    ch_retries       retries;         /* ch_coord_call */
    ch_worker_input *inputs;          /* list of all */
    ch_scheduled    *oldest, *newest; /* list of all steps that have not ended, by number */
    ch_step_list     queue, running;
    ch_fault         error;      /* first error of a step, until a call returns it */
    uint64_t         n_errors;   /* number of such errors so far: identifies `error` */
    ch_fault         broken;     /* a server is lost: the error of all later calls */
    char            *checkpoint; /* path of the newest; NULL: not known */
    ch_cancel        cancel;
    ch_settle        settle;
    /* Threads in join; replies that threads wait for that take snapshots; assignments that are
     * being made. */
    int                  n_joining, n_snapshotting, n_assigning;
    ch_cut_phase         cut;
    uint64_t             cut_last; /* last step of a cut that was prepared; 0: any */
    ch_sync_round        round;
    int                  n_unreported;    /* steps ended since report_ended last checked */
    uint64_t             oldest_reported; /* the retired number at that time */
    ch_coordinator_stats stats;
};

/* Sets the options of ch_coordinator_new; replaces 0 by the default. */
void ch__coord_apply_options(ch_coord *c, const ch_coordinator_options *how);
/* Takes a snapshot on all servers. Calls `then` once for each of them, on an error too; `then`
 * must call ch__snapshot_on_reply. Numbers of snapshots are ascending. CH_RESOURCE_EXHAUSTED:
 * CH_SNAPSHOTS are in use. */
CH_MUST_CHECK ch_status ch__snapshot_create(const ch_coord_context *t, bool begin_marks,
                                            ch_coord_then then, uint64_t *snapshot);
/* Records the reply of a server to a snapshot, or an error in its place. */
void ch__snapshot_on_reply(const ch_coord_context *t, const ch_coord_call *call);
/* Ends the use of a snapshot. Servers release it, whether older ones are in use or not. */
void ch__snapshot_release(const ch_coord_context *t, uint64_t snapshot);
/* Returns true if a queued step must end before the cut that is being made. While a cut is
 * made, no other steps are sent. */
bool ch__cut_needs(const ch_coord *c, const ch_scheduled *s);
/* Gives a cut up that is prepared and not being made, because a thread waits for the steps
 * that the cut holds back. */
void ch__cut_give_up(const ch_coord_context *t);
/* Returns true if all steps of a prepared cut have ended. */
bool ch__cut_is_ready(const ch_coord *c);
/* Blocks while a cut is made. The task must be locked. */
CH_MUST_CHECK ch_status ch__cut_wait(ch_task *coord, ch_coord *c);
/* Frees n updates on all servers, from number `first` on. */
void ch__servers_free_updates(const ch_coord_context *t, uint64_t first, uint64_t n);
/* Declares a server lost. The job has failed: all steps and all calls to the server end with
 * this error. */
void ch__coord_fail_job(const ch_coord_context *t, int server, const char *why);

#endif
