/* net/wire.h -- the interface of an engine: a wire carries frames, a driver runs tasks.
 *
 * net/ has three parts, which use each other through this header only:
 *   - The core (task.c, outbox.c, deliver.c) is common to all engines: incarnations, links,
 *     pending calls with their deadlines and the room that they take, timers, the outbox. It
 *     runs with the task's lock held and never blocks.
 *   - A wire (ch_wire_ops) carries frames to a peer and passes received frames to
 *     ch__task_receive.
 *   - A driver (ch_driver_ops) provides the task's lock and the clock: threads.c, sim.c.
 *
 * inproc.c is a wire for the driver threads.c. sim.c is both a wire and a driver.
 * doc/transport.md describes how gRPC and UCX fit as wires.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_WIRE_H
#define NET_WIRE_H

#include <pthread.h>
#include <stdatomic.h>

#include "net/net.h"
#include "net/pending.h"

/* ---- frames ---- */

typedef enum ch_frame_kind { CH_FRAME_CALL = 1, CH_FRAME_REPLY, CH_FRAME_CANCEL } ch_frame_kind;

/* The unit that a wire carries from task to task. net/frame.h encodes it as bytes. */
typedef struct ch_frame {
    ch_frame_kind kind;
    ch_ending     ending;  /* reply: how the call ended */
    ch_status     status;  /* error reply: its code, even if `fault` is NULL */
    uint64_t      call;    /* number of the call at its caller; unique in an incarnation */
    uint64_t      from;    /* incarnation of the sender; 0: no task listens there */
    uint64_t      to;      /* incarnation of the receiver; 0: any */
    int64_t       timeout; /* call: ns that the caller waits; 0: until it sends a cancel */
    ch_message   *message; /* owned; of a call, and of a reply that is CH_ENDED_OK */
    ch_fault     *fault;   /* owned; of an error reply; NULL: out of memory when it was sent */
    /* Not sent. The receiving wire sets these two. */
    const char *name; /* of the sender; valid as long as the receiving task */
    void       *back; /* the wire's address for a reply to the sender */
} ch_frame;

/* Releases the message and the fault of a frame. */
void ch__frame_drop(ch_frame *f);
/* Returns a copy, to be freed with ch__free, or NULL if memory is exhausted. */
ch_fault *ch__fault_copy(const ch_fault *f);

/* ---- the wire ---- */

/* Every function is called with the lock of its task held, and must not block. */
typedef struct ch_wire_ops {
    /* Accepts frames for this task from now on. */
    ch_status (*listen)(ch_task *t);
    /* Creates l->end. The peer need not exist yet. */
    ch_status (*connect)(ch_link *l);
    /* Sends a call. CH_ENDED_OK: the wire has taken the frame over, and a reply may follow. Any
     * other ending: the frame was not sent, and the caller keeps it. */
    ch_ending (*call)(ch_link *l, ch_frame *f);
    /* Notifies the peer that the caller no longer waits for a call. `bytes` is the room that
     * the call took on the link. */
    void (*cancel)(ch_link *l, uint64_t call, int64_t bytes);
    /* Sends a reply to the caller that `back` identifies. Takes the frame over. */
    void (*reply)(ch_task *t, void *back, ch_frame *f);
    /* Returns how many calls, and how many bytes in them, may be pending on the link. */
    void (*room)(const ch_link *l, int *calls, int64_t *bytes);
    void (*close_link)(ch_link *l);
    /* Ends the incarnation. The task's table still holds its pending calls, so that the wire
     * can notify the peers. */
    void (*close)(ch_task *t);
} ch_wire_ops;

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

struct ch_net {
    const ch_wire_ops   *wire;
    const ch_driver_ops *driver;
    size_t          task_bytes; /* size of the engine's task, which begins with a ch_task */
    pthread_mutex_t lock;       /* guards the list; tasks are freed with the net */
    ch_task       **task;
    int             n_tasks, cap_tasks;
};

struct ch_link {
    ch_task *task;     /* the task that the link belongs to */
    char     name[64]; /* of the peer */
    void    *end;      /* the wire's data */
    int      n_calls;  /* pending calls */
    int64_t  n_bytes;  /* bytes in them */
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

/* Room of a link if ch_task_options has 0, or the peer is not known yet. */
#define CH_LINK_CALLS 64
#define CH_LINK_BYTES ((int64_t)1 << 30)

/* All fields except the first four are guarded by the task's lock. */
struct ch_task {
    ch_net          *net;
    bool             is_started; /* guarded by the net's lock: ch__net_find returns the task */
    char             name[64];
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

/* Returns a number for a new incarnation: the milliseconds since 1970 in the upper bits, and 20
 * of the `random` bits below them, so that two processes hardly ever have the same number. The
 * result is larger than `last`. */
uint64_t ch__incarnation_number(int64_t ms, uint64_t random, uint64_t last);
/* Begins the next incarnation: listens, and calls `make`. */
CH_MUST_CHECK ch_status ch__incarnation_begin(ch_task *t);
/* Ends the incarnation. Returns its `self`, which the driver must close when its running
 * work has ended. */
void *ch__incarnation_end(ch_task *t);

/* Handles a received frame, and takes over the frame's message and fault. Delivers at most one
 * event, except for a cancel of a call that was received twice. */
void ch__task_receive(ch_task *t, ch_frame *f);
/* Delivers the events of timers and deadlines that have expired at t->now. Returns the
 * number of events. */
int ch__task_run_timers(ch_task *t);
/* Returns the time of the next timer or deadline, or INT64_MAX. */
int64_t ch__task_next_timer(const ch_task *t);
/* Delivers the endings that are in t->ended now, but not those added meanwhile. Returns the
 * number of events. */
int ch__task_deliver_endings(ch_task *t);
/* Ends the pending calls of a broken link as CH_ENDED_LOST, if they were made before the
 * table's sequence was `before`. */
void ch__task_link_lost(ch_task *t, const ch_link *l, uint64_t before);
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
