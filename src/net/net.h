/* net/net.h -- tasks that share no memory, and what carries word between them.
 *
 * A task (the coordinator, a worker, a parameter server) is a state machine. It is told events, one at a time, and
 * posts what should be done about them: calls to other tasks, answers, timers, work. It owns no thread, lock, clock or
 * random source; those belong to whoever drives it. net/inproc.c gives each task of a process a thread;
 * net/sim.c runs all of them on the caller's, with a clock of its own and with faults by a seed. What is above
 * cannot tell which it is, nor whether the other task is in this process.
 *
 *     static void on_event(void *self, const ch_net_event *e, int64_t now, ch_outbox *post)
 *     {
 *         if (e->kind == CH_EVENT_CALL && e->parcel->method == GREET)
 *             ch__outbox_reply(post, e->call, greeting);
 *     }
 *
 * A call is asked of a peer, ends at its deadline at the latest, and ends once: with an answer, or with how it
 * ended without one (ch_ending), never to be guessed from a text. Calls may be lost, come twice, and come in
 * another order than they were made; an answer is taken once. That is what a network can do to them, and all
 * that it can do.
 *
 * No queue is without bound: a link has room for so many calls that have not ended and so many bytes in them; a
 * call beyond that ends at once with CH_ENDED_NO_ROOM, and who made it keeps it for later. Endings of every kind
 * are events of their own: nothing is told while a task is being told something.
 *
 * Memory: for the first 64 things that a task posts in an event there is room beforehand. A call beyond those that
 * finds none ends as CH_ENDED_LOST; a timer, work or an ending that finds none is the end of this life of the
 * task, as in a crash: a task that forgets what it waits for would wait for ever.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_NET_H
#define NET_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/fault.h"
#include "cohort/tensor.h"

typedef struct ch_net    ch_net;    /* an engine, and the tasks that listen on it here */
typedef struct ch_task   ch_task;   /* one of those */
typedef struct ch_link   ch_link;   /* a task's way to a peer; lives as long as the task */
typedef struct ch_outbox ch_outbox; /* what a task wants done, while it is told an event */

/* ---- parcels ---- */

/* What a call carries, and an answer: a protobuf message, packed, and tensors beside it. Counted, and never changed
 * once it is made, tensors included: tasks of one process are given the very same one. */
typedef struct ch_message {
    uint32_t    method; /* of an answer: the call's */
    size_t      n_bytes;
    const void *bytes;
    int         n_tensors;
    ch_tensor **tensor;
} ch_message;

#define CH_MESSAGE_MAX_BYTES                                                                   \
    ((size_t)8 << 20) /* bytes of a message at most: what is larger goes into a tensor */

/* Room for n_bytes, which the caller writes at once through *bytes (NULL where n_bytes is 0); references to the tensors are
 * taken over, on an error too. One allocation. */
CH_MUST_CHECK ch_status ch__message_new(uint32_t method, size_t n_bytes, void **bytes,
                                        int n_tensors, ch_tensor *const *tensor,
                                        ch_message **out);
ch_message             *ch__message_ref(ch_message *p);
void                    ch__message_unref(ch_message *p);
/* With its tensors and the text of their strings: what counts for a link's room. */
int64_t ch__message_size(const ch_message *p);

/* ---- events ---- */

/* A task and which life of it. Tasks that are started again under a name get a larger number. */
typedef struct ch_peer {
    char     name[64]; /* "worker/1" */
    uint64_t incarnation;
} ch_peer;

typedef enum ch_event_kind {
    CH_EVENT_CALL, /* somebody calls: e->call is to be answered, once, now or later */
    CH_EVENT_CANCEL, /* who made e->call does not wait for it any more, or is gone: an answer would be dropped */
    CH_EVENT_REPLY, /* a call of this task's has ended: e->id, e->ending */
    CH_EVENT_TIMER, /* e->id */
    CH_EVENT_WORK   /* work is done: e->id */
} ch_event_kind;

typedef enum ch_ending {
    CH_ENDED_OK,    /* e->parcel is the answer */
    CH_ENDED_ERROR, /* the peer answered with e->fault */
    CH_ENDED_TIMEOUT, /* no answer until the deadline: it may have been carried out, or may yet be */
    CH_ENDED_CANCELLED, /* by this task; the same is true of it */
    CH_ENDED_LOST, /* the connection broke, or nobody listens there: the same is true of it */
    CH_ENDED_REPLACED, /* another life than the one asked for is there, which has not carried it out */
    CH_ENDED_NO_ROOM /* not carried out: the link has no room for it */
} ch_ending;

typedef uint64_t ch_call_id; /* a call that came, at its callee; never 0 */

/* What is not of its kind is 0 or NULL. */
typedef struct ch_net_event {
    ch_event_kind kind;
    ch_ending     ending;
    ch_call_id    call;
    uint64_t      id;      /* as this task gave it */
    ch_peer       peer;    /* who called; whose answer it is, incarnation 0 if it never said */
    ch_message   *message; /* borrowed; of a call and of CH_ENDED_OK */
    const ch_fault
        *fault; /* borrowed; of CH_ENDED_ERROR; of the others: in words, what happened */
} ch_net_event;

typedef struct ch_task_ops {
    /* `now` is in ns and never goes back; it means nothing to another task. */
    void (*on_event)(void *self, const ch_net_event *e, int64_t now, ch_outbox *outbox);
    /* This life has ended: calls, timers and work of it are gone, and nobody else uses `self`. */
    void (*close)(void *self);
} ch_task_ops;

/* ---- what a task does about them ---- */

typedef struct ch_call_options {
    uint64_t id;          /* the answer has it; of two calls that are open it is not the same */
    int64_t  deadline;    /* in `now`'s time: there always is one */
    uint64_t incarnation; /* of the peer; 0: whoever is there */
} ch_call_options;

/* References to parcels are taken over. What is posted is done after the event, in this order. Answers to calls that
 * were answered, cancelled or made to an earlier life are dropped. */
void ch__outbox_call(ch_outbox *outbox, ch_link *to, ch_message *p, const ch_call_options *opt);
/* Ends it as CH_ENDED_CANCELLED; of one that has ended, nothing. */
void ch__outbox_cancel(ch_outbox *outbox, uint64_t id);
void ch__outbox_reply(ch_outbox *outbox, ch_call_id call, ch_message *p);
void ch__outbox_reply_error(ch_outbox *outbox, ch_call_id call, const ch_fault *why);
/* One event at `at` or later; another post with this id moves it, one with INT64_MAX ends it. Ids of timers, of calls and of
 * work have nothing to do with each other. */
void ch__outbox_timer(ch_outbox *outbox, uint64_t id, int64_t at);
/* Calls run(arg) outside the task's turn, so that it is told events meanwhile: computing takes long. One piece of work of
 * a task runs at a time, in the order in which they were posted. `run` uses nothing that the task does. Then comes the
 * event, and `arg` is the task's again; if the task ends before that, drop(arg) is called in the event's place, whether it ran or not. NULL: nothing. */
void ch__outbox_work(ch_outbox *outbox, uint64_t    id, void (*run)(void *arg),
                     void (*drop)(void *arg), void *arg);

/* What a link has room for now: 0 where a call would end as CH_ENDED_NO_ROOM. */
int         ch__link_calls(const ch_link *l);
int64_t     ch__link_bytes(const ch_link *l);
const char *ch__link_name(const ch_link *l); /* of the peer */

/* ---- tasks ---- */

typedef struct ch_task_options {
    const char        *name; /* "ps/0": under which others connect to it; unique on a net */
    const ch_task_ops *ops;
    /* Makes the state machine of a life of the task, in its turn; also when it is started again. Posts what it begins
     * with; that is forgotten if it fails. */
    ch_status (*make)(void *arg, ch_task *t, uint64_t incarnation, ch_outbox *outbox,
                      void **self);
    void *arg;
    /* What each link to this task has room for; 0: 64 calls, 1 GiB (a parcel that is larger goes alone). */
    int     calls;
    int64_t bytes;
} ch_task_options;

/* ALREADY_EXISTS for a name that was started before, dead or alive. `ops` and `arg` are kept. */
CH_MUST_CHECK ch_status ch__task_start(ch_net *net, const ch_task_options *opt, ch_task **out);
/* The way to a peer, the same one each time; nobody need listen there yet. NULL: no memory. In the task's turn. */
ch_link    *ch__task_link(ch_task *t, const char *peer);
const char *ch__task_name(const ch_task *t);
void       *ch__task_self(ch_task *t);        /* in its turn; NULL while it is dead */
uint64_t    ch__task_incarnation(ch_task *t); /* in its turn; of one that is dead, the last */

/* For code that is not a task's, of which blocking calls are made: in the task's turn, between enter and leave, `self` may
 * be used and things be posted. Not in an event, and not in a turn of this or another task. What is posted of a task that is dead
 * is dropped. */
ch_outbox *ch__task_enter(ch_task *t);
void       ch__task_leave(ch_task *t);
/* In the turn, which is given up meanwhile: returns when is_done(arg) is true, which is asked in the turn, first and
 * after events. Says whom it waits for after the notice time, and is DEADLINE_EXCEEDED after `limit_ms` (0:
 * COHORT_WAIT_LIMIT_MS), UNAVAILABLE once this life of the task has ended, and FAILED_PRECONDITION in a simulation
 * in which nothing will ever happen again. The thread that waits delivers the task's events itself. */
CH_MUST_CHECK ch_status ch__task_wait(ch_task *t, bool (*is_done)(void *arg), void *arg,
                                      int64_t limit_ms, const char *whom);
int64_t                 ch__task_now(const ch_task *t);

/* As a crash does it: nothing more is said, and its peers learn of it as they would. Work that runs is waited for. Neither
 * this nor the next in any turn. Of one that is dead: nothing. */
void ch__task_kill(ch_task *t);
/* Of one that was killed: another life, with a larger incarnation. FAILED_PRECONDITION of one that lives. */
CH_MUST_CHECK ch_status ch__task_restart(ch_task *t);

/* Kills what lives; nobody is told of that any more. Tasks and links are gone with it. NULL is fine. */
void ch__net_free(ch_net *net);

/* ---- engines ---- */

typedef struct ch_inproc_options {
    /* That a thread looks for events before it sleeps, unless more threads of tasks are awake than there are cores;
     * 0: 50, CH_OFF: never. */
    int spin_us;
} ch_inproc_options;
CH_MUST_CHECK ch_status ch__net_inproc(const ch_inproc_options *opt, ch_net **out);

/* The virtual clock begins at 0. Chances are in a thousand, delays in microseconds; a chance of 0 never happens. */
typedef struct ch_sim_options {
    uint64_t seed;
    int      least_delay_us, most_delay_us; /* of a call or an answer; 0 and 0: 1 to 100 */
    int      drop, twice, late; /* of each; a late one takes up to 100 times as long */
    int      work_us;           /* that work takes at most, virtually; 0: 1000 */
    bool
        encode; /* every parcel becomes bytes and a parcel again: what a wire would lose is lost */
} ch_sim_options;
CH_MUST_CHECK ch_status ch__net_sim(const ch_sim_options *opt, ch_net **out);
/* One event; false: there is none, and never will be. */
bool    ch__sim_step(ch_net *net);
void    ch__sim_run_until(ch_net *net, int64_t now);
int64_t ch__sim_now(const ch_net *net);
/* Between the two, both ways, calls and answers are lost, or not any more. */
void ch__sim_cut(ch_net *net, const char *a, const char *b, bool is_cut);
/* The clock goes on by so many ns, and nothing happened meanwhile: as if the machine had stood still. */
void ch__sim_jump(ch_net *net, int64_t ns);
/* From now on this task takes so many ns over each call of a method, and answers others behind it. */
void ch__sim_slow(ch_net *net, const char *task, uint32_t method, int64_t ns);
/* From now on faults happen, or do not: for the end of a test, where all must come to rest. The seed stays. */
void ch__sim_faults(ch_net *net, const ch_sim_options *opt);
/* Calls fn(arg) at a time, outside any turn: for what a test does to the job. */
CH_MUST_CHECK ch_status ch__sim_at(ch_net *net, int64_t when, void (*fn)(void *arg), void *arg);
/* Of all that happened so far, in order: the same for the same seed. */
uint64_t ch__sim_hash(const ch_net *net);
/* A number of the seed's, below n: for tests that choose. */
int64_t ch__sim_draw(ch_net *net, int64_t n);

#endif
