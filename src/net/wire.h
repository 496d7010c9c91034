/* net/wire.h -- what an engine does: eight calls to carry frames, eight to give turns.
 *
 * Three parts, which know each other through this header alone:
 *   - The core (task.c, post.c, tell.c) has what all engines have in common: calls with their deadlines and the room that
 *     they take, timers, the outbox, incarnations. It runs in a task's turn, and never blocks.
 *   - A wire (ch_wire_ops) carries frames to a peer and hands over those that come, by ch__task_receive.
 *   - A driver (ch_drive_ops) says when it is a task's turn and what time it is: threads.c, sim.c.
 * inproc.c is a wire under threads.c. doc/transport.md says how gRPC and UCX will be others.
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

/* What goes from task to task. net/frame.h writes it as bytes. */
typedef struct ch_frame {
    ch_frame_kind kind;
    ch_ending     ending; /* of an answer */
    ch_status     status; /* of a refusal: what is known of it even without its fault */
    uint64_t      call;   /* as the caller numbers it: of two calls of a life never the same */
    uint64_t      from;   /* the sender's incarnation; 0: nobody's */
    uint64_t      to;     /* the receiver's; 0: whoever is there */
    int64_t timeout; /* of a call: ns after which nobody waits for it; 0: a cancel will say */
    ch_message *message; /* the frame's own; of a call and of an answer that is CH_ENDED_OK */
    ch_fault   *fault;   /* the frame's own; of a refusal, NULL for want of memory */
    /* Not part of what is sent: the wire sets them where the frame arrives. */
    const char *name; /* the sender's; as long as the task that takes it lives */
    void       *back; /* where an answer goes: the wire's */
} ch_frame;

void      ch__frame_drop(ch_frame *f);       /* what is its own */
ch_fault *ch__fault_copy(const ch_fault *f); /* NULL: no memory */

/* ---- the wire ---- */

/* All are called in a turn of the task that they are about, and none of them blocks. */
typedef struct ch_wire_ops {
    /* From now on frames for this task may come. */
    ch_status (*listen)(ch_task *t);
    /* Makes l->end. Nobody need be there. */
    ch_status (*connect)(ch_link *l);
    /* CH_ENDED_OK: the frame is taken over, and its answer will come or not. Anything else: it was not sent. */
    ch_ending (*call)(ch_link *l, ch_frame *f);
    /* Nobody waits for this call any more; it took so many bytes of the link's room. */
    void (*cancel)(ch_link *l, uint64_t call, int64_t bytes);
    /* Takes the frame over and sends it where `back` says. */
    void (*answer)(ch_task *t, void *back, ch_frame *f);
    /* How many calls, and bytes in them, the peer lets be open at once. */
    void (*room)(const ch_link *l, int *calls, int64_t *bytes);
    void (*close_link)(ch_link *l);
    /* This life of the task is over: open calls are in its table still, for a wire that tells its peers of it. */
    void (*close)(ch_task *t);
} ch_wire_ops;

/* ---- the driver ---- */

typedef struct ch_drive_ops {
    ch_status (*start)(ch_task *t); /* and its first life */
    void (*enter)(ch_task *t);
    void (*leave)(ch_task *t);
    ch_status (*wait)(ch_task *t, bool (*is_done)(void *arg), void *arg, int64_t limit_ms,
                      const char *whom);
    int64_t (*now)(const ch_task *t);
    void (*kill)(ch_task *t);
    ch_status (*restart)(ch_task *t);
    void (*free)(ch_net *net); /* all but what ch__net_close frees */
} ch_drive_ops;

struct ch_net {
    const ch_wire_ops  *wire;
    const ch_drive_ops *drive;
    size_t              task_bytes; /* of an engine's task, whose first member is a ch_task */
    pthread_mutex_t     lock;       /* guards the list; tasks stay until the net goes */
    ch_task           **task;
    int                 n_tasks, cap_tasks;
};

struct ch_link {
    ch_task *task;
    char     name[64]; /* of the peer */
    void    *end;      /* the wire's */
    int      n_calls;  /* open */
    int64_t  n_bytes;
};

/* What is to be sent after an event, in order. */
typedef struct ch_outgoing {
    ch_frame frame;
    ch_link *link; /* of a call or a cancel */
    int64_t  bytes;
} ch_outgoing;

struct ch_outbox {
    ch_task     *task;
    ch_outgoing *item;
    int          n, cap;
};

/* An ending that the task will be told, of a call that did not come to a wire or has left it. */
typedef struct ch_ended {
    uint64_t  id;
    ch_ending ending;
    ch_link  *link;
} ch_ended;

typedef struct ch_task_work {
    uint64_t id, incarnation;
    void (*run)(void *arg);
    void (*drop)(void *arg);
    void *arg;
} ch_task_work;

#define CH_LINK_CALLS 64
#define CH_LINK_BYTES ((int64_t)1 << 30)

/* All but the first four is used in the task's turn. */
struct ch_task {
    ch_net          *net;
    bool             is_started; /* under the net's lock: it stays until the net goes */
    char             name[64];
    ch_task_options  opt;
    uint64_t         incarnation;
    bool             is_alive;
    bool             is_broken; /* had no memory for what it must not forget: see net.h */
    void            *self;
    int64_t          now;
    ch_pending_table table; /* open calls, both ways, and timers */
    ch_outbox        outbox;
    ch_ended        *ended;
    int              n_ended, cap_ended;
    ch_task_work    *work; /* that has not begun */
    int              n_work, cap_work;
    ch_link        **link;
    int              n_links, cap_links;
    ch_fault         fault; /* of the event being told */
};

/* ---- the core, for wires and drivers: all in the task's turn ---- */

CH_MUST_CHECK ch_status ch__net_init(ch_net *net);
/* Frees the tasks, which are dead, and the list. */
void     ch__net_close(ch_net *net);
ch_task *ch__net_find(ch_net *net, const char *name); /* NULL: not started yet */

/* A life: from listen to close. `end` returns `self`, to be closed when its work is over. */
CH_MUST_CHECK ch_status ch__incarnation_begin(ch_task *t);
void                   *ch__incarnation_end(ch_task *t);

/* A frame that came; what it owns is taken over. Tells the task at most one event. */
void ch__task_receive(ch_task *t, ch_frame *f);
/* Timers and deadlines that are due at t->now. Returns how many events were told. */
int ch__task_run_timers(ch_task *t);
/* When the next is due; INT64_MAX: none. */
int64_t ch__task_next_timer(const ch_task *t);
/* Endings that were found while things were posted, as many as there are at the beginning. */
int ch__task_deliver_endings(ch_task *t);
/* Ends calls over a link that were made before the table's sequence was this: the connection broke. */
void ch__task_link_lost(ch_task *t, const ch_link *l, uint64_t before);
/* The next piece of work; false: none. */
bool ch__work_next(ch_task *t, ch_task_work *w);
/* It was done: the event, or `drop` if it is of another life. */
void ch__work_end(ch_task *t, ch_task_work *w);
/* Hands what was posted to the wire. */
void ch__outbox_flush(ch_outbox *outbox);
/* Room for what a task posts in an event; false: only some of it. */
bool ch__outbox_reserve(ch_task *t);
/* An ending to be told after this event. */
void ch__outbox_ending(ch_task *t, uint64_t id, ch_ending ending, ch_link *l);
/* Gives back what an open call takes of its link, and forgets it. */
void ch__call_drop(ch_task *t, ch_pending *call);

#endif
