/* job/coordinator/private.h -- what the files of the coordinator task share.
 *
 *   coordinator.c  the task: its events, its tick, snapshots, servers that are lost
 *   call.c         retried calls to servers and workers
 *   heartbeat.c    whether a task replies, counted in ticks
 *   workers.c      the worker table: pings, functions and streams that were sent, lost workers
 *   queue.c        steps: their order, the worker that runs each, their end
 *   cancel.c       cancelling steps
 *   input.c        the elements that steps read
 *   client.c       functions for the program's threads
 *
 * All of them run in the turn of the task.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_COORDINATOR_PRIVATE_H
#define JOB_COORDINATOR_PRIVATE_H

#include "base/fault.h"
#include "base/id_map.h"
#include "job/coordinator.h"
#include "job/coordinator/heartbeat.h"
#include "job/message.h"
#include "net/retry.h"

typedef struct ch_coord ch_coord;

/* The turn: what every function of an event has. */
typedef struct ch_coord_context {
    ch_coord  *c;
    ch_outbox *outbox;
    int64_t    now;
} ch_coord_context;

/* For code that is not the task's: ch__task_enter. `c` is NULL once the task has ended. */
ch_coord_context ch__coord_enter(ch_task *coord);

/* ---- calls to servers and workers ---- */

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

/* A call that is made again until the callee replies, so it may reach the callee several times.
 * Owned by the coordinator task, and freed when the call has ended or is cancelled. */
struct ch_coord_call {
    ch_retry      retry; /* first */
    ch_callee     to;
    uint64_t      registration; /* of the worker when the call began; of a server 0 */
    ch_coord_then then;         /* called when the call has ended; NULL: nothing is called */
    uint64_t      arg;          /* for `then` */
    void         *waiter;       /* for `then` of a call that a client thread waits for */
    /* The outcome, borrowed for `then`. Both are NULL if the worker was declared lost, or if
     * there was no memory for the call (ch__coord_call_servers). */
    ch_message     *reply;
    const ch_fault *fault;
};

/* Calls a server or a worker. Takes the message over, on an error too. A call to a server that
 * is lost ends before this returns. */
CH_MUST_CHECK ch_status ch__coord_call(const ch_coord_context *t, ch_callee to,
                                       ch_message *message, ch_coord_then then, uint64_t arg);
/* The same in two steps, for several calls of which all are sent or none. The caller sets
 * `then` and `arg` between the steps. */
CH_MUST_CHECK ch_status ch__coord_call_new(const ch_coord_context *t, ch_callee to,
                                           ch_message *message, ch_coord_call **out);
void                    ch__coord_call_send(const ch_coord_context *t, ch_coord_call *call);
/* Calls all servers with the same message, which is taken over. `then` is called once for each
 * of them, also if there is no memory for a call; in that case an error is returned. */
ch_status ch__coord_call_servers(const ch_coord_context *t, ch_message *message,
                                 ch_coord_then then, uint64_t arg);
/* Cancels a call that has not ended, and frees it. `then` is not called. */
void ch__coord_call_cancel(const ch_coord_context *t, ch_coord_call *call);
/* Ends all calls to a server or a worker that was declared lost. */
void ch__coord_calls_end(const ch_coord_context *t, ch_callee to);
/* Handles the end of an attempt. Returns false if it is of no call here. */
bool ch__coord_call_on_reply(const ch_coord_context *t, const ch_net_event *e);
void ch__coord_calls_free(ch_coord *c);

/* ---- workers ---- */

typedef enum ch_worker_state {
    CH_WORKER_ABSENT,  /* has not answered yet, or was given up */
    CH_WORKER_FENCING, /* is being given up: servers are told */
    CH_WORKER_READY
} ch_worker_state;

typedef struct ch_worker_entry {
    char            name[32];
    ch_link        *link;
    ch_worker_state state;
    uint64_t        incarnation;  /* of the task that answered */
    uint64_t        registration; /* counted here; what servers hear */
    ch_heartbeat    heartbeat;
    int             n_fences; /* servers that have not said yet that they do not hear it */
    int             n_fenced; /* servers that have been asked to */
    int             n_told;   /* calls that have not ended and send it functions or streams */
    int64_t         told;     /* bytes of those */
    int             n_runs;   /* steps that it has */
    int64_t n_finished, n_losses; /* steps that it ended well; how often it was given up */
    ch_map  knows;                /* numbers of functions and streams, told or being told */
    int64_t last_end, mean;       /* ns: when its last step ended, what one takes */
    /* Attempts: the one that it is at, as far as is known, then the others in the order in which it was sent them. */
    struct ch_attempt *first, *last;
    int64_t            began;    /* when it got to `first`, as far as is known */
    bool               has_said; /* it has said since that it is at `first` */
    uint64_t           alarm;    /* id of the timer that ends a step that takes too long */
    int64_t            alarm_at; /* when that timer fires; INT64_MAX: it is not set */
    int64_t            rests;    /* until then it gets no steps: it did not reach a server */
    bool
        is_overdue; /* still computes a step past its time limit: gets no steps until it is free */
    int64_t overdue_at; /* when that was noticed */
} ch_worker_entry;

typedef struct ch_peer_server {
    char         name[32];
    ch_link     *link;
    uint64_t     incarnation; /* 0: has not answered yet */
    ch_heartbeat heartbeat;
    int          n_lost;  /* pings in a row that found no listener */
    bool         is_told; /* of the phase of a cancellation, or is being told */
    bool         is_lost;
} ch_peer_server;

void ch__workers_tick(const ch_coord_context *t);
/* A ping that was made at this time has ended. */
void ch__workers_on_ping(const ch_coord_context *t, ch_worker_entry *m, const ch_net_event *e,
                         int64_t at);
/* It does not answer, or is another: its steps go elsewhere once servers do not hear it any more. */
void ch__workers_declare_lost(const ch_coord_context *t, ch_worker_entry *m);
/* Whether a worker knows a number; if not it is told, and later it does. */
bool ch__workers_send_once(const ch_coord_context *t, ch_worker_entry *m, uint64_t number,
                           ch_message *what);
typedef enum ch_known { CH_KNOWN_FUNCTION, CH_KNOWN_STREAM, CH_KNOWN_PER_WORKER } ch_known;
/* Nobody uses this function any more, or this stream, or this variable: workers that may know it are told. */
void ch__workers_forget(const ch_coord_context *t, uint64_t number, ch_known what);
CH_MUST_CHECK ch_status ch__workers_add(ch_coord *c, ch_worker_entry **out);

/* ---- steps ---- */

typedef enum ch_scheduled_state {
    CH_STEP_QUEUED,
    CH_STEP_RUNNING,
    CH_STEP_DONE,
    CH_STEP_FAILED,
    CH_STEP_CANCELLED
} ch_scheduled_state;

/* Which element of a stream a step reads. */
typedef struct ch_lease {
    ch_worker_input *input; /* referenced */
    int              stream;
    int64_t          number; /* -1: none yet */
} ch_lease;

enum { CH_ATTEMPTS = 2 };

typedef enum ch_cancel_reason { CH_CANCEL_ERROR, CH_CANCEL_CALL } ch_cancel_reason;

/* Which worker has a step; call 0: none. A worker runs its attempts one after the other. */
typedef struct ch_attempt {
    struct ch_attempt *ahead, *behind; /* the neighbours in the worker's list */
    uint64_t           call;
    int                worker;
    int                n_absent; /* how often in a row the worker said that it has it not */
    int64_t            since;
} ch_attempt;

/* The coordinator's record of a function of the program. Created by ch__coord_add_function, owned
 * by the coordinator task (ch_coord.functions). Freed when the program has forgotten it
 * (ch__coord_forget_function) and the last step that uses it has ended, or with the task. */
typedef struct ch_coord_function {
    uint64_t        number;
    char            name[48]; /* for errors; cut if it is longer */
    int             n_ops;
    ch_recorded_op *op;                      /* owned */
    ch_message     *message;                 /* the call that sends it to a worker */
    uint64_t        first_update, n_updates; /* numbers of its functions on servers */
    int64_t         n_steps;                 /* steps that use it and have not ended */
    bool            is_forgotten;            /* by the program */
} ch_coord_function;

struct ch_scheduled {
    atomic_int    refs;        /* the chief's while it has not ended, and the program's */
    ch_scheduled *next, *prev; /* all that have not ended, by step */
    ch_scheduled *after,
        *before; /* those that wait; or those that run; own steps first, then by step */
    uint64_t           step, snapshot, seed;
    ch_coord_function *function; /* NULL: of an assignment, or it was not there any more */
    uint64_t order; /* among those that were scheduled: rounds and staleness count these */
    int64_t  number;
    ch_scheduled_state state;
    bool               is_own, is_silent, is_assign, was_sent;
    /* How it is cancelled: job/coordinator/cancel.c. */
    bool             wants_cancel; /* is to be cancelled, unless it has begun */
    bool             is_held;      /* is in the round of cancelling that goes on */
    bool             has_begun; /* a server has applied an update of it: it runs to its end */
    ch_cancel_reason cancel_reason;
    ch_attempt       attempt[CH_ATTEMPTS];
    ch_message      *result;
    ch_fault        *fault; /* NULL of one that failed: there was no memory for it */
    ch_status        code;
    int64_t          bytes;                              /* of `in` */
    int              n_in, n_inputs, n_shared, n_leases; /* as of ch_step_request */
    ch_lease        *lease;                              /* behind `in` */
    ch_tensor       *in[];
};

typedef struct ch_step_list {
    ch_scheduled *first, *last;
    int64_t       n, bytes; /* of inputs */
    int64_t       n_own;    /* of those, steps whose caller waits for them */
} ch_step_list;

/* Steps go to workers as far as they can. */
void ch__queue_move(const ch_coord_context *t);
/* The answer to an attempt. */
void ch__queue_on_reply(const ch_coord_context *t, ch_scheduled *s, int attempt,
                        const ch_net_event *e);
/* A timer has fired; if it is a worker's alarm, the step that the worker is at fails if it has taken too long. */
void ch__queue_alarm(const ch_coord_context *t, uint64_t id);
/* The worker is gone: the steps that only it had wait again. */
void ch__queue_orphans(const ch_coord_context *t, int worker);
/* The worker computes a step that took too long: it gets no steps until it is free, and those that it was given are given to
 * others. */
void ch__queue_overdue(const ch_coord_context *t, ch_worker_entry *m);
/* A worker has answered the ping of time `asked`. Steps that it was given before and has not are given again; the one that it is
 * at fails if it has taken too long. */
void ch__queue_pinged(const ch_coord_context *t, ch_worker_entry *m,
                      const Cohort__WorkerReply *has, int64_t asked);
/* Steps that take long are given to idle workers too. */
void ch__queue_backups(const ch_coord_context *t);
/* Workers cannot take a function or a stream: the steps that need it fail. */
void ch__queue_unfit(const ch_coord_context *t, uint64_t number, const ch_fault *why);
/* All that has not ended ends with this. */
void ch__queue_fail_all(const ch_coord_context *t, const ch_fault *why);
/* Takes a step that waits out of the queue, so that it is not sent until ch__queue_resume. */
void ch__queue_park(ch_coord *c, ch_scheduled *s);
/* Lets a parked step wait for a worker again. Its attempts end, except those of workers that are being fenced: these end with
 * the fence. */
void     ch__queue_resume(const ch_coord_context *t, ch_scheduled *s);
uint64_t ch__queue_retired(const ch_coord *c);
/* Returns the oldest step of the program's that has not ended and for which no caller waits by itself; NULL: none. */
const ch_scheduled *ch__queue_oldest(const ch_coord *c);
/* A server's ping, which says that, and which of those above it have not ended. */
CH_MUST_CHECK ch_status ch__queue_pack_retired(const ch_coord *c, ch_message **out);
/* Adds it behind all others, with the next number. */
void ch__queue_add(ch_coord *c, ch_scheduled *s);
void ch__queue_end(const ch_coord_context *t, ch_scheduled *s, ch_scheduled_state how);
void ch__coord_function_free(ch_coord_function *f); /* NULL is fine */
/* Frees a function if the program has forgotten it and no step uses it. Workers and servers
 * free their records of it. */
void ch__queue_look_forgotten(const ch_coord_context *t, ch_coord_function *f);

/* ---- cancelling ---- */

typedef enum ch_cancel_phase { CH_CALM, CH_DROPPING, CH_HOLDING, CH_RELEASING } ch_cancel_phase;

typedef struct ch_cancel {
    ch_cancel_phase phase;
    uint64_t        round;    /* number of the round that goes on, or was the last */
    uint64_t        released; /* the last round whose hold servers may release */
    uint64_t        upto;     /* the newest step of any round */
    uint64_t        n_tells;  /* phases ever in which servers were told something */
    int             n_waits;  /* workers or servers that have not answered in this phase */
    int64_t         n_wanted; /* steps with wants_cancel that have not ended */
} ch_cancel;

/* Cancels a step, or all that were scheduled, unless they have begun to change variables; cancel.c says how. Steps that were
 * not sent to a worker have ended when this returns. */
void ch__cancel_step(const ch_coord_context *t, ch_scheduled *s, ch_cancel_reason why);
void ch__cancel_all(const ch_coord_context *t, ch_cancel_reason why);
/* Asks those servers again that could not answer. */
void ch__cancel_tick(const ch_coord_context *t);
/* A server is lost: the round does not go on. */
void ch__cancel_give_up(ch_coord *c);
/* Returns whether all steps that were to be cancelled have ended, and no worker is being fenced. */
bool ch__cancel_is_quiet(const ch_coord *c);

/* ---- data ---- */

typedef struct ch_worker_input_stream {
    uint64_t   number; /* for workers */
    ch_tensor *dataset;
    ch_tensor
        *place; /* NULL: the beginning; no step that has not ended reads what is before it */
    ch_tensor
        *coming; /* the next one, when n_before steps have ended that read what is before it */
    int  n_before;
    int64_t place_at, coming_at, next, end; /* end: INT64_MAX until it is known */
    int     holder;                         /* the worker that read it last; -1: nobody */
} ch_worker_input_stream;

struct ch_worker_input {
    ch_worker_input        *next_input; /* in the chief's list */
    int                     refs;
    bool                    is_shared;
    int                     n_streams, width;
    int64_t                 pass;
    ch_worker_input_stream *stream;
    int         n_values; /* workers for which there are values; 0: it has streams */
    int         copies;   /* of those: how many replicas of a worker have their own */
    ch_tensor **value;
};

/* Which streams the step would read on this worker, if it has no elements yet. OUT_OF_RANGE: there is nothing left. */
CH_MUST_CHECK ch_status ch__worker_input_choose(ch_scheduled *s, int worker);
/* Whether the worker can read them; if not it is told. */
bool ch__worker_input_is_sent(const ch_coord_context *t, const ch_scheduled *s, int worker);
/* The step gets its elements, if it has none yet: from now on, in every attempt. */
void ch__worker_input_lease(ch_scheduled *s, int worker);
/* A worker found that a stream has no such element. True: the step can have another. */
bool ch__worker_input_ended(const ch_coord_context *t, ch_scheduled *s, uint64_t stream);
/* The step has ended, and reads nothing any more. */
void ch__worker_input_release(const ch_coord_context *t, ch_scheduled *s);
void ch__worker_input_position(const ch_coord_context *t, uint64_t stream, int64_t number,
                               ch_tensor *place);
void ch__worker_input_unref(const ch_coord_context *t, ch_worker_input *f);
void ch__worker_input_worker_lost(const ch_coord *c,
                                  int             worker); /* who is gone holds nothing */

/* ---- the chief ---- */

/* Of CH_SYNCHRONOUS. */
typedef struct ch_sync_round {
    uint64_t base;     /* the order of the first step since the last join */
    uint64_t end;      /* that of the first step behind this round */
    uint64_t snapshot; /* 0: there is no round */
    int      n_asked;  /* servers that have not set the pin yet */
} ch_sync_round;

enum { CH_SNAPSHOTS = 64 };

struct ch_coord {
    ch_coord_options     opt;
    ch_task             *task;
    int                  n_workers, cap_workers;
    ch_worker_entry    **worker;
    ch_peer_server      *server;
    uint64_t             n_ids, n_numbers, n_steps, n_orders, n_snapshots;
    int                  n_pinned;
    uint64_t             pinned[CH_SNAPSHOTS]; /* those that are used, rising */
    uint64_t             released;             /* servers were told of those up to this */
    ch_map               calls;                /* attempts, by the id of their call */
    ch_map               functions;            /* ch_coord_function */
    ch_retries           retries;              /* ch_coord_call */
    ch_worker_input     *inputs;
    ch_scheduled        *oldest, *newest; /* that have not ended */
    ch_step_list         queue, running;
    ch_fault             error;    /* the first of steps, until it is reported */
    uint64_t             n_errors; /* of those, ever: which one it is */
    ch_fault             broken;   /* a server is lost: for good */
    ch_cancel            cancel;
    int                  n_joining, n_snapshotting;
    ch_sync_round        round;
    int                  n_untold;    /* steps that have ended since servers were told which */
    uint64_t             oldest_told; /* the oldest one, then */
    ch_coordinator_stats stats;
};

void ch__coord_apply_options(ch_coord *c, const ch_coordinator_options *how);
/* Takes a snapshot on all servers; `then` is called once for each of them, on an error too.
 * Numbers of snapshots rise, and are released in that order. */
CH_MUST_CHECK ch_status ch__snapshot_create(const ch_coord_context *t, ch_coord_then then,
                                            uint64_t *snapshot);
void                    ch__snapshot_release(const ch_coord_context *t, uint64_t snapshot);
/* Servers forget so many functions, from this number on. */
void ch__servers_forget(const ch_coord_context *t, uint64_t first, uint64_t n);
/* A server is lost: the end of the job. */
void ch__coord_fail_job(const ch_coord_context *t, int server, const char *why);

#endif
