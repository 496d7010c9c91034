/* net/net.h -- tasks, which share no memory, and the messages between them.
 *
 * A task (the coordinator, a worker, a parameter server) is a state machine, which handles
 * events sequentially. While it handles an event it adds to its outbox: calls to other tasks,
 * replies, timers and work. A task owns no thread, lock, clock or random source; these belong
 * to the engine that runs it. The engine of net/inproc.c gives each task of a process a thread.
 * The engine of net/sim.c runs all tasks on the caller's thread, with a virtual clock and with
 * faults drawn from a seed. The code of a task is the same for both engines, and for peers in
 * this process and in others.
 *
 *     static void on_event(void *self, const ch_net_event *e, int64_t now, ch_outbox *outbox)
 *     {
 *         if (e->kind == CH_EVENT_CALL && e->message->method == GREET)
 *             ch__outbox_reply(outbox, e->call, greeting);
 *     }
 *
 * The task's lock. An engine holds the lock of a task while the task handles an event. Other
 * code holds it between ch__task_enter and ch__task_leave. "With the task's lock held" below
 * means either of the two.
 *
 * Calls. A call has a deadline and ends exactly once: with a reply, or with the reason why
 * there is none (ch_ending). The deadline counts silence: while bulk bytes move over the link,
 * a call gets up to 64 times its time. The network may lose a call, deliver it twice, and
 * deliver calls in another order than they were made. A second reply to a call is dropped.
 *
 * Limits. No queue grows without bound. A link has room for a number of pending calls and for a
 * number of bytes in them, which the peer announces; until then for 8 calls and 1 MiB. A call
 * beyond that ends at once as CH_ENDED_NO_ROOM, and the task
 * may make it again later. The end of a call, for any reason, is an event of its own: no event
 * is delivered while the task handles another.
 *
 * Memory. Before each event the core reserves room for 64 calls, replies, timers and pieces of
 * work. If memory is exhausted beyond that, a call ends as CH_ENDED_LOST, and a reply is
 * dropped. If a timer, a piece of work or the end of a call cannot be stored, this incarnation
 * of the task ends as in a crash, because the task would wait for the lost event for ever.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_NET_H
#define NET_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/fault.h"
#include "cohort/tensor.h"

typedef struct ch_net    ch_net;  /* an engine and the tasks that were started on it */
typedef struct ch_task   ch_task; /* a task of this process */
typedef struct ch_link   ch_link; /* a task's connection to a peer; lives as long as the task */
typedef struct ch_outbox ch_outbox; /* calls, replies, timers and work of a task */

/* ---- messages ---- */

/* The content of a call or a reply: a packed protobuf message, and tensors. Reference-counted.
 * Immutable, tensors included, because tasks of one process share the same ch_message. */
typedef struct ch_message {
    uint32_t    method; /* reply: that of the call */
    size_t      n_bytes;
    const void *bytes;
    int         n_tensors;
    ch_tensor **tensor;
} ch_message;

/* The largest packed protobuf message, in bytes. Larger data must go into a tensor. */
#define CH_MESSAGE_MAX_BYTES ((size_t)8 << 20)

/* Creates a message with room for n_bytes. The caller must write these through *bytes before it
 * passes the message on; *bytes is NULL if n_bytes is 0. Takes over the references to the
 * tensors, on an error too. Makes one allocation. */
CH_MUST_CHECK ch_status ch__message_new(uint32_t method, size_t n_bytes, void **bytes,
                                        int n_tensors, ch_tensor *const *tensor,
                                        ch_message **out);
ch_message             *ch__message_ref(ch_message *m);
void                    ch__message_unref(ch_message *m); /* NULL is allowed */
/* Returns the bytes that the message takes of a link's room: the protobuf message, the tensors
 * and the text of their strings. */
int64_t ch__message_size(const ch_message *m);

/* ---- events ---- */

/* A task and its incarnation: one run of the task, from start or restart to its end. No two
 * incarnations have the same number, not even in two processes. Of the incarnations that a
 * process begins, the later one has the larger number. A task of that name in another process
 * may have a smaller number, because the clocks of machines differ. */
typedef struct ch_peer {
    char     name[64]; /* "worker/1" */
    uint64_t incarnation;
} ch_peer;

typedef enum ch_event_kind {
    CH_EVENT_CALL, /* the task has received e->call; it must reply once, now or later */
    /* The caller of e->call has ended or no longer waits: a reply would be dropped. */
    CH_EVENT_CANCEL,
    CH_EVENT_REPLY, /* a call that the task made has ended: e->id, e->ending */
    CH_EVENT_TIMER, /* timer e->id has expired */
    CH_EVENT_WORK   /* work e->id is done */
} ch_event_kind;

/* How a call ended. After CH_ENDED_TIMEOUT, CH_ENDED_CANCELLED and CH_ENDED_LOST the peer may
 * have executed the call, may execute it later, or may never execute it. */
typedef enum ch_ending {
    CH_ENDED_OK,        /* e->message is the reply */
    CH_ENDED_ERROR,     /* the peer sent an error reply: e->fault */
    CH_ENDED_TIMEOUT,   /* no reply before the deadline */
    CH_ENDED_CANCELLED, /* this task cancelled the call */
    CH_ENDED_LOST,      /* the connection broke, or no task listens under the peer's name */
    CH_ENDED_REPLACED,  /* the peer has another incarnation, which has not executed the call */
    CH_ENDED_NO_ROOM    /* the link has no room: the call was not sent */
} ch_ending;

typedef uint64_t ch_call_id; /* identifies a received call at its callee; never 0 */

/* Fields that do not belong to the kind of the event are 0 or NULL. */
typedef struct ch_net_event {
    ch_event_kind kind;
    ch_ending     ending;
    ch_call_id    call;
    uint64_t      id; /* the id that this task gave to the call, timer or work */
    /* The caller, or the peer that was called. Incarnation 0: that peer sent no reply. */
    ch_peer     peer;
    ch_message *message; /* borrowed; of a call, and of a reply that is CH_ENDED_OK */
    /* Borrowed. CH_ENDED_ERROR: the peer's error. Endings without a reply: the reason. */
    const ch_fault *fault;
} ch_net_event;

typedef struct ch_task_ops {
    /* Handles an event. `now` is in ns, never decreases, and must not be compared with the time
     * of another task. */
    void (*on_event)(void *self, const ch_net_event *e, int64_t now, ch_outbox *outbox);
    /* Frees `self`. Called when the incarnation has ended: its calls, timers and work are gone,
     * and no other thread uses `self`. */
    void (*close)(void *self);
} ch_task_ops;

/* ---- the outbox ---- */

typedef struct ch_call_options {
    uint64_t id; /* returned in the CH_EVENT_REPLY; unique among the task's pending calls */
    int64_t  deadline;    /* in the time of `now`; required */
    uint64_t incarnation; /* of the peer; 0: any */
} ch_call_options;

/* All functions below must be called with the task's lock held. Calls, cancels and replies are
 * sent after the event, in the order of these functions' calls. If the task has ended, nothing
 * is sent. */

/* Makes a call to a peer. Takes over the reference to the message. The call takes its room on
 * the link at once. */
void ch__outbox_call(ch_outbox *outbox, ch_link *to, ch_message *m, const ch_call_options *opt);
/* Cancels a pending call, which ends as CH_ENDED_CANCELLED. Does nothing if it has ended. */
void ch__outbox_cancel(ch_outbox *outbox, uint64_t id);
/* Replies to a received call. Takes over the reference to the message. The reply is dropped if
 * the call already has a reply, was cancelled, or came to an earlier incarnation. */
void ch__outbox_reply(ch_outbox *outbox, ch_call_id call, ch_message *m);
/* Replies with an error, under the same conditions. Copies `why`. */
void ch__outbox_reply_error(ch_outbox *outbox, ch_call_id call, const ch_fault *why);
/* Sets a timer: one CH_EVENT_TIMER at `at` or later. A second call with the same id moves the
 * timer, and INT64_MAX removes it. The ids of timers, of calls and of work are independent. */
void ch__outbox_timer(ch_outbox *outbox, uint64_t id, int64_t at);
/* Calls run(arg) without the task's lock, so that the task handles events during a long
 * computation. `run` must not use the state of the task. The work of a task runs in the order
 * of these calls, one piece at a time. CH_EVENT_WORK follows, after which the task owns `arg`
 * again. If the incarnation ends before that event, drop(arg) is called instead, whether
 * run(arg) was called or not. A `drop` of NULL does nothing. */
void ch__outbox_work(ch_outbox *outbox, uint64_t    id, void (*run)(void *arg),
                     void (*drop)(void *arg), void *arg);

/* Return how many more calls, and how many more bytes, a link has room for. 0: a call would end
 * as CH_ENDED_NO_ROOM. */
int         ch__link_calls(ch_link *l);
int64_t     ch__link_bytes(ch_link *l);
const char *ch__link_name(const ch_link *l); /* name of the peer */
/* Returns the time at which anything was last received from the peer; 0: never. It is in the
 * task's time. */
int64_t ch__link_received_at(const ch_link *l);

/* ---- roles ---- */

/* The role of a task in its job, as a bit: the first part of its name ("worker" of "worker/1").
 * The role of a peer in another process is the role that its connection has proved. */
typedef enum ch_net_role {
    CH_ROLE_COORDINATOR = 1,
    CH_ROLE_WORKER = 2,
    CH_ROLE_PS = 4,
    CH_ROLE_EVALUATOR = 8,
    CH_ROLE_OTHER = 16
} ch_net_role;

ch_net_role ch__role_of(const char *task);
const char *ch__role_name(unsigned role);

/* A method of a task, and the roles that may call it. Calls of other roles end with
 * PERMISSION_DENIED, and the task does not receive them. */
typedef struct ch_net_method {
    const char *name;    /* for error messages; NULL: there is no such method */
    unsigned    callers; /* ch_net_role bits */
} ch_net_method;

/* ---- tasks ---- */

typedef struct ch_task_options {
    const char        *name; /* under which peers connect, as "ps/0"; unique on the net */
    const ch_task_ops *ops;
    /* Creates the state of an incarnation, at start and at each restart, with the task's lock
     * held. May add to the outbox. If it fails, the outbox is discarded. */
    ch_status (*make)(void *arg, ch_task *t, uint64_t incarnation, ch_outbox *outbox,
                      void **self);
    void *arg;
    /* By number of the method; NULL: every role may call every method. Not copied. */
    const ch_net_method *methods;
    int                  n_methods;
    /* Room of each link to this task. 0: 64 calls, and 1 GiB. A larger message is sent if the
     * link has no other pending call. */
    int     calls;
    int64_t bytes;
} ch_task_options;

/* Starts a task. The net keeps `ops` and `arg`, and copies the name. Returns ALREADY_EXISTS if
 * a task of this name was started before, even if it has ended. */
CH_MUST_CHECK ch_status ch__task_start(ch_net *net, const ch_task_options *opt, ch_task **out);
/* Returns the link to a peer, the same for each call with this name. The peer need not have
 * started yet. Returns NULL if memory is exhausted or the name is longer than 63 bytes. Must be
 * called with the task's lock held. */
ch_link    *ch__task_link(ch_task *t, const char *peer);
const char *ch__task_name(const ch_task *t);
/* Returns the state that `make` created, or NULL if the task has ended. Needs the lock. */
void *ch__task_self(ch_task *t);
/* Returns the current incarnation, or the last if the task has ended. Needs the lock. */
uint64_t ch__task_incarnation(ch_task *t);

/* Lock and unlock a task, for blocking functions that run outside of any task. Between
 * the two the caller may use `self` and the outbox. Must not be called while an event is
 * handled or while the thread holds the lock of this or another task. */
ch_outbox *ch__task_enter(ch_task *t);
void       ch__task_leave(ch_task *t);
/* Blocks until is_done(arg) is true. Must be called between ch__task_enter and ch__task_leave.
 * The task's lock is released during the wait, and is_done is called with the lock held: first,
 * and after events. The waiting thread itself delivers the task's events.
 *
 * `whom` names the awaited event, for messages. A warning is logged after the notice time
 * (base/config.h). Returns DEADLINE_EXCEEDED after `limit_ms` (0: COHORT_WAIT_LIMIT_MS),
 * UNAVAILABLE if this incarnation of the task ends, and FAILED_PRECONDITION if a simulation has
 * no further events. */
CH_MUST_CHECK ch_status ch__task_wait(ch_task *t, bool (*is_done)(void *arg), void *arg,
                                      int64_t limit_ms, const char *whom);
/* Returns the task's clock in ns: the time that on_event is passed as `now`. */
int64_t ch__task_now(const ch_task *t);

/* Ends the incarnation as a crash would: nothing more is sent, and peers find out as they would
 * find out about a crash. Blocks until running work has ended. Does nothing if the task has
 * ended. The caller must hold no task's lock. */
void ch__task_kill(ch_task *t);
/* Starts the next incarnation of a task that has ended. Returns FAILED_PRECONDITION if the task
 * is alive. The caller must hold no task's lock. */
CH_MUST_CHECK ch_status ch__task_restart(ch_task *t);

/* Sets the address of a task of another process in the net's book, or removes it if `address`
 * is NULL. Links find the wire to a peer by the peer's address; tasks of this process need
 * none. If the address changes, pending calls on links to the old one end as CH_ENDED_LOST. Any
 * thread may call it. Returns INVALID_ARGUMENT if the name is longer than 63 bytes. */
CH_MUST_CHECK ch_status ch__net_set_address(ch_net *net, const char *task, const char *address);

/* Kills all tasks and frees them with their links. Peers are not notified. NULL is allowed. */
void ch__net_free(ch_net *net);

/* ---- engines ---- */

typedef struct ch_inproc_options {
    /* Microseconds that a thread polls for events before it sleeps. It does not poll while more
     * threads of tasks are awake than there are cores. 0: 50 us; CH_OFF: never. */
    int spin_us;
} ch_inproc_options;
CH_MUST_CHECK ch_status ch__net_inproc(const ch_inproc_options *opt, ch_net **out);

/* Options of a simulation. Its virtual clock begins at 0. Probabilities are in thousandths, of
 * each frame. */
typedef struct ch_sim_options {
    uint64_t seed;
    int      least_delay_us, most_delay_us; /* range of a frame's delay; 0 and 0: 1 to 100 */
    /* Probabilities that a frame is lost, that it is delivered twice, and that its delay is
     * multiplied by 1 to 100. */
    int     drop, twice, late;
    int     work_us;      /* longest virtual duration of work; 0: 1000 */
    int64_t bytes_per_ms; /* speed of frames of 64 KiB and more; 0: no limit */
    bool    encode; /* encode every frame as bytes and decode it again, as a network would */
} ch_sim_options;
CH_MUST_CHECK ch_status ch__net_sim(const ch_sim_options *opt, ch_net **out);
/* Executes the next event. Returns false if there is none, and there never will be. */
bool ch__sim_step(ch_net *net);
/* Executes all events up to a time, and sets the clock to it. */
void    ch__sim_run_until(ch_net *net, int64_t now);
int64_t ch__sim_now(const ch_net *net); /* the virtual clock in ns */
/* Starts or ends a network partition between two tasks: frames both ways are lost. */
void ch__sim_cut(ch_net *net, const char *a, const char *b, bool is_cut);
/* Breaks the connection between two tasks, if they have one. Both notice it after a delay. The
 * next call between them makes another connection. */
void ch__sim_break(ch_net *net, const char *a, const char *b);
/* Advances the clock by `ns` without executing events, as if the machine had been suspended. */
void ch__sim_jump(ch_net *net, int64_t ns);
/* Makes a task take `ns` for each call of a method from now on. Later calls wait. */
void ch__sim_slow(ch_net *net, const char *task, uint32_t method, int64_t ns);
/* Replaces all options except the seed. NULL: no faults. Used at the end of a test, so that all
 * pending calls can end. */
void ch__sim_faults(ch_net *net, const ch_sim_options *opt);
/* Calls fn(arg) at a time, with no task's lock held. Tests use it to kill and restart tasks. */
CH_MUST_CHECK ch_status ch__sim_at(ch_net *net, int64_t when, void (*fn)(void *arg), void *arg);
/* Returns a hash of all events so far, in order. It is the same for the same seed. */
uint64_t ch__sim_hash(const ch_net *net);
/* Returns a random number in [0, n), drawn from the seed, for choices of a test. */
int64_t ch__sim_draw(ch_net *net, int64_t n);

#endif
