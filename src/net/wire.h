/* net/wire.h -- the interface of an engine: a wire carries frames, a driver runs tasks.
 *
 * net/ has three parts, which use each other through this header only:
 *   - The core (task.c, outbox.c, deliver.c) is common to all engines: incarnations, links,
 *     pending calls with their deadlines and the room that they take, timers, the outbox. It
 *     runs with the task's lock held and never blocks.
 *   - A wire (ch_wire_ops) carries frames to the peers that it reaches, and puts received
 *     frames into the mailboxes of tasks. A net may have several wires; each link has one.
 *   - A driver (ch_driver_ops) provides the task's lock and the clock, and passes the inputs of
 *     the mailbox to ch__task_take: threads.c, sim.c.
 *
 * inproc.c is a wire for the driver threads.c. sim.c is both a wire and a driver.
 * doc/transport.md describes the contract of a wire.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_WIRE_H
#define NET_WIRE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/thread.h"
#include "net/net.h"
#include "net/pending.h"
#include "net/slots.h"

/* ---- frames ---- */

typedef enum ch_frame_kind {
    CH_FRAME_CALL = 1,
    CH_FRAME_REPLY,
    CH_FRAME_CANCEL,
    /* Of a connection; tasks do not receive them. */
    CH_FRAME_HELLO,   /* the first frame in both directions; the message is a hello (hello.h) */
    CH_FRAME_REFUSAL, /* this side cannot go on, because of `status` and `fault` */
    CH_FRAME_BYE      /* this side sends no further calls */
} ch_frame_kind;

/* The unit that a wire carries from task to task. net/frame.h encodes it as bytes. */
typedef struct ch_frame {
    ch_frame_kind kind;
    ch_ending     ending;  /* reply: how the call ended */
    ch_status     status;  /* error reply: its code, even if `fault` is NULL */
    uint64_t      call;    /* number of the call at its caller; unique in an incarnation */
    uint64_t      from;    /* incarnation of the sender; 0: no task listens there */
    uint64_t      to;      /* incarnation of the receiver; 0: any */
    int64_t       timeout; /* call: ns that the caller waits; 0: until it sends a cancel */
    ch_message *message; /* owned; of a call, of a reply that is CH_ENDED_OK, and of a hello */
    ch_fault   *fault;   /* owned; of an error reply or a refusal; NULL: out of memory then */
    /* Not sent. The receiving wire sets these two. */
    const char    *name; /* of the sender; valid as long as the receiving task */
    unsigned       role; /* call: ch_net_role that the sender's connection proved */
    ch_return_path back; /* call or cancel: the return path to the sender */
} ch_frame;

/* Releases the message and the fault of a frame. */
void ch__frame_drop(ch_frame *f);
/* Returns a copy, to be freed with ch__free, or NULL if memory is exhausted. */
ch_fault *ch__fault_copy(const ch_fault *f);

/* ---- inputs of a task ---- */

typedef enum ch_input_kind {
    CH_INPUT_FRAME,
    CH_INPUT_BROKE, /* the connection of a link broke: its earlier calls are lost */
    CH_INPUT_LEFT   /* the connection of a return path ended: its callers are gone */
} ch_input_kind;

/* An entry of a mailbox. Any thread may put it there; the task's next turn handles it. */
typedef struct ch_input {
    ch_input_kind kind;
    union {
        ch_frame frame;
        struct {
            ch_link *link;   /* of this task */
            uint64_t before; /* calls with a smaller ch__call_sequence are lost */
        } broke;
        ch_return_path left;
    };
} ch_input;

/* ---- the wire ---- */

/* A wire of a net. The engine's struct begins with it. */
typedef struct ch_net_wire ch_net_wire;

/* The functions with a link or a task are called with the lock of that task held. No function
 * may block, except `sleep`. */
typedef struct ch_wire_ops {
    /* Creates l->end, and sets the credit of the link if it is known already. The peer need not
     * exist yet. `address` is the peer's in the book; "": the book has none. Returns NOT_FOUND,
     * without a message, if the wire does not reach the peer. */
    ch_status (*connect)(ch_net_wire *w, ch_link *l, const char *address);
    /* Sends a call. CH_ENDED_OK: the wire has taken the frame over, and a reply may follow. Any
     * other ending: the frame was not sent, and the caller keeps it. The wire must not refuse a
     * call for lack of room: the link's credit is the only limit. */
    ch_ending (*call)(ch_link *l, ch_frame *f);
    /* Notifies the peer that the caller no longer waits for a call. `bytes` is the room that
     * the call took on the link. */
    void (*cancel)(ch_link *l, uint64_t call, int64_t bytes);
    /* Sends a reply of the task along a return path; does nothing if the path is stale. Takes
     * the frame over. */
    void (*reply)(ch_task *t, ch_return_path back, ch_frame *f);
    void (*close_link)(ch_link *l);
    /* Ends the incarnation of a task. Its table still holds its pending calls, so that the wire
     * can notify the peers. NULL: the net ends; frees the wire. */
    void (*close)(ch_net_wire *w, ch_task *t);
    /* Blocks a thread that has nothing to do until the gate has moved on from `seen`, and until
     * the time `until` at most. Meanwhile the thread makes progress on the engine. If `g` is
     * NULL, makes progress without blocking. A net's threads sleep in the wire that was added
     * last. */
    void (*sleep)(ch_net_wire *w, ch_gate *g, unsigned seen, int64_t until);
    /* Opens the gate, and wakes the threads that sleep at it. Any thread may call it. */
    void (*wake)(ch_net_wire *w, ch_gate *g);
} ch_wire_ops;

struct ch_net_wire {
    const ch_wire_ops *ops;
    ch_net            *net;
    bool     reaches_names;     /* the tasks of the net, by name: addresses do not matter */
    bool     counts_calls;      /* the wire asks ch__return_path_may_deliver */
    bool     polls_while_spins; /* `sleep` must be called while a thread spins */
    ch_slots slots;
};

/* ---- the driver ---- */

/* net.h documents these under the names of ch__task_start, ch__task_enter and so on. */
typedef struct ch_driver_ops {
    ch_status (*start)(ch_task *t); /* begins the first incarnation too */
    void (*enter)(ch_task *t);
    void (*leave)(ch_task *t);
    ch_status (*wait)(ch_task *t, bool (*is_done)(void *arg), void *arg, int64_t limit_ms,
                      const char *whom);
    int64_t (*now)(const ch_task *t);
    /* Returns the number of a new incarnation, made by ch__incarnation_number. */
    uint64_t (*incarnation)(ch_net *net);
    void (*kill)(ch_task *t);
    ch_status (*restart)(ch_task *t);
    void (*free)(ch_net *net); /* must call ch__net_close, which frees the tasks */
} ch_driver_ops;

/* An address of the book. */
typedef struct ch_book_entry {
    char  name[64]; /* of the task */
    char *address;
} ch_book_entry;

enum { CH_NET_WIRES = 4 };

struct ch_net {
    const ch_driver_ops *driver;
    ch_net_wire         *wire[CH_NET_WIRES]; /* in the order in which links try them */
    int                  n_wires;
    ch_net_wire *_Atomic sleeper; /* the wire in which idle threads sleep */
    size_t          task_bytes;   /* size of the engine's task, which begins with a ch_task */
    pthread_mutex_t lock; /* guards the list and the book; tasks are freed with the net */
    ch_task       **task;
    int             n_tasks, cap_tasks;
    ch_book_entry  *book;
    int             n_book, cap_book;
    atomic_uint     book_version; /* number of changes of the book */
};

struct ch_link {
    ch_task     *task;         /* the task that the link belongs to */
    char         name[64];     /* of the peer */
    ch_net_wire *wire;         /* NULL: no wire reaches the peer yet */
    void        *end;          /* the wire's data */
    unsigned     book_version; /* of the book when the wire was chosen */
    char        *address;      /* with which the wire was chosen; NULL: none */
    int          n_calls;      /* pending calls */
    int64_t      n_bytes;      /* bytes in them */
    /* The room of the link, which the peer has announced. The wire may set it in any thread. */
    atomic_int           credit_calls;
    atomic_int_least64_t credit_bytes;
    /* Times in ns, in the clock of the task's driver: when anything was last received from the
     * peer, and when bulk bytes last moved, in either direction. */
    atomic_int_least64_t received_at, moved_at;
    /* Room of calls that have ended here, but that the wire holds until the peer has received
     * their cancels. */
    atomic_int           n_held;
    atomic_int_least64_t held_bytes;
};

/* A frame of the outbox. */
typedef struct ch_outgoing {
    ch_frame frame;
    ch_link *link;  /* of a call or a cancel */
    int64_t  bytes; /* cancel: room that the call took */
} ch_outgoing;

/* Frames to be sent after the event, in order. */
struct ch_outbox {
    ch_task     *task;
    ch_outgoing *item;
    int          n, cap;
};

/* The end of a call without a reply, to be delivered as a CH_EVENT_REPLY. The call was not
 * sent, was cancelled, or its link broke. */
typedef struct ch_ended {
    uint64_t  id;
    ch_ending ending;
    ch_link  *link;
} ch_ended;

/* A piece of work of ch__outbox_work. */
typedef struct ch_task_work {
    uint64_t id, incarnation;
    void (*run)(void *arg);
    void (*drop)(void *arg);
    void *arg;
} ch_task_work;

/* Room of a link if ch_task_options has 0. */
#define CH_LINK_CALLS 64
#define CH_LINK_BYTES ((int64_t)1 << 30)
/* Room of a link until the peer has announced its own. */
#define CH_LINK_FIRST_CALLS 8
#define CH_LINK_FIRST_BYTES ((int64_t)1 << 20)

/* All fields except the first four are guarded by the task's lock. */
struct ch_task {
    ch_net          *net;
    bool             is_started; /* guarded by the net's lock: ch__net_find returns the task */
    char             name[64];
    unsigned         role; /* ch_net_role of the name */
    ch_task_options  opt;
    uint64_t         incarnation;
    bool             is_alive;
    bool             is_broken; /* out of memory for an event of the task: see net.h */
    void            *self;      /* NULL while the task is not alive */
    int64_t          now;       /* time of the current event in ns */
    ch_pending_table table;     /* pending calls, received calls and timers */
    ch_outbox        outbox;
    ch_ended        *ended; /* to be delivered */
    int              n_ended, cap_ended;
    ch_task_work    *work; /* not yet begun, in order */
    int              n_work, cap_work;
    ch_link        **link;
    int              n_links, cap_links;
    ch_fault         fault; /* of the event being delivered, if the core made it */
};

/* ---- the core, for wires and drivers: to be called with the task's lock held ---- */

CH_MUST_CHECK ch_status ch__net_init(ch_net *net);
/* Frees the tasks, none of which may be alive, and the list. */
void ch__net_close(ch_net *net);
/* Returns the task of this name, or NULL if it was not started yet. */
ch_task *ch__net_find(ch_net *net, const char *name);
/* Adds a wire behind the others. The net owns it. No task may have been started. */
void ch__net_add_wire(ch_net *net, ch_net_wire *w);
/* Chooses the wire of a link again if it has none or the peer's address has changed. Then its
 * pending calls end as CH_ENDED_LOST. Returns false if no wire reaches the peer. */
bool ch__link_choose_wire(ch_link *l);
/* Returns true if a call with this number of bytes may be made. A message that is larger than
 * the room of the link may be sent if no other call is pending. */
bool ch__link_has_room(ch_link *l, int64_t bytes);
/* Sets the room that the peer of a link has announced. Any thread may call it. */
void ch__link_set_credit(ch_link *l, int calls, int64_t bytes);

/* Returns a number for a new incarnation: the milliseconds since 1970 in the upper bits, and 20
 * of the `random` bits below them, so that two processes hardly ever have the same number. The
 * result is larger than `last`. */
uint64_t ch__incarnation_number(int64_t ms, uint64_t random, uint64_t last);
/* Begins the next incarnation: calls `make`. */
CH_MUST_CHECK ch_status ch__incarnation_begin(ch_task *t);
/* Ends the incarnation. Returns its `self`, which the driver must close when its running
 * work has ended. */
void *ch__incarnation_end(ch_task *t);

/* Returns true if a wire may put a further call from this path into the task's mailbox. Returns
 * false if the peer has twice the task's room of calls that have not ended, or if more than
 * CH_BACK_BYTES of replies to it have not been sent. Then the wire must not read from the
 * connection, so that a slow or hostile peer blocks only itself. It must ask again after each
 * reply that it has sent and each time it polls. Any thread may call it. */
#define CH_BACK_BYTES ((int64_t)64 << 20)
bool ch__return_path_may_deliver(const ch_task *t, ch_return_path back);
/* Record that something was received from the peer of a link, and that bulk bytes (a frame of
 * at least CH_BULK_BYTES, or a part of it) moved over the connection of a link or a path. Any
 * thread may call them. */
#define CH_BULK_BYTES ((size_t)64 << 10)
void ch__link_received(ch_link *l, int64_t now);
void ch__link_moved(ch_link *l, int64_t now);
void ch__back_moved(ch_return_path back, int64_t now);
/* Sets how long a call may wait: see ch_pending. */
void ch__call_set_timeout(ch_pending *call, int64_t now, int64_t timeout);
/* Removes a received call from the table. */
void ch__received_drop(ch_task *t, ch_pending *call);

/* Handles an input, and takes over the frame's message and fault. Delivers at most one event,
 * except for CH_INPUT_LEFT and for a cancel of a call that was received twice. */
void ch__task_take(ch_task *t, ch_input *in);
/* Ends a received call as CH_ENDED_LOST at its caller, without an event: the task has ended. */
void ch__call_end_lost(ch_task *t, const ch_frame *f);
/* Returns the place of a call of this task among its calls, in the order in which they were
 * made: the wire of a connection remembers that of the last call, for CH_INPUT_BROKE. */
uint64_t ch__call_sequence(const ch_task *t, const ch_frame *f);
/* Delivers the events of timers and deadlines that have expired at t->now. Returns the
 * number of events. */
int ch__task_run_timers(ch_task *t);
/* Returns the time of the next timer or deadline, or INT64_MAX. */
int64_t ch__task_next_timer(const ch_task *t);
/* Delivers the endings that are in t->ended now, but not those added meanwhile. Returns the
 * number of events. */
int ch__task_deliver_endings(ch_task *t);
/* Removes the next piece of work from the queue. Returns false if there is none. */
bool ch__work_next(ch_task *t, ch_task_work *w);
/* Ends a piece of work. Delivers its event, or calls `drop` if its incarnation has ended. */
void ch__work_end(ch_task *t, ch_task_work *w);
/* Passes all frames of the outbox to the wire. */
void ch__outbox_flush(ch_outbox *outbox);
/* Reserves memory for the outbox, endings, work and pending calls of an event. Returns false if
 * only some of it could be allocated. */
bool ch__outbox_reserve(ch_task *t);
/* Adds an ending, to be delivered after this event. */
void ch__outbox_ending(ch_task *t, uint64_t id, ch_ending ending, ch_link *l);
/* Removes a pending call from the table, and returns its room to the link. */
void ch__call_drop(ch_task *t, ch_pending *call);

#endif
