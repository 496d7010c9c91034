/* net/threads.h -- a task's box, into which a wire puts frames, and the thread that takes them out.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_THREADS_H
#define NET_THREADS_H

#include <stdalign.h>

#include "base/mem.h"
#include "base/thread.h"
#include "net/wire.h"

enum { CH_WAKES = 16 };

/* Gates to be opened when a turn is over: waking takes a system call. */
typedef struct ch_wakes {
    ch_gate *gate[CH_WAKES];
    int      n;
} ch_wakes;

typedef struct ch_threads_task {
    ch_task         task; /* first */
    pthread_mutex_t turn;
    atomic_int      n_entering; /* program's threads that wait for the turn */
    atomic_int      n_waiters;  /* of them in ch__task_wait */
    /* In the turn. */
    ch_frame *taken;
    int       cap_taken;
    ch_wakes  wakes;
    int64_t   flushed_at;
    bool      is_running; /* work, on the task's thread */
    bool      is_stopping;
    void     *zombie; /* a `self` that is closed when the work has ended */
    ch_gate   buried; /* moves when it was */
    /* The box. */
    alignas(CH_ALIGN) atomic_flag lock;
    atomic_bool has_news;      /* something for whoever delivers events */
    atomic_bool has_work_news; /* something for the task's own thread */
    bool        is_open;
    ch_frame   *in;
    int         n_in, cap_in;
    /* Who looks: under the lock. See the invariants of box.c. */
    int         n_looking;
    int         n_asleep; /* of those that wait */
    bool        is_own_asleep;
    atomic_bool is_working;
    atomic_uint round; /* moves when those that wait shall ask again; written under the lock */
    int64_t     own_until;
    atomic_int_least64_t next_alarm;
    ch_gate              own_gate, wait_gate;
    ch_thread           *thread;
} ch_threads_task;

typedef struct ch_threads {
    ch_net      net; /* first */
    int64_t     spin_ns;
    int         n_cpus;
    atomic_int  n_awake; /* threads that deliver events and do not sleep */
    atomic_bool is_closing;
    /* A frame is taken out of a box, or thrown away with it. */
    void (*took)(const ch_frame *f);
    ch_gate              help; /* the helper: delivers the events of tasks that work */
    atomic_int_least64_t help_until;
    atomic_bool          is_stopping;
    ch_thread           *helper;
} ch_threads;

extern const ch_drive_ops ch__threads_drive;

/* Fills all but the wire and `took`. */
CH_MUST_CHECK ch_status ch__threads_init(ch_threads *n, int spin_us);

void ch__mailbox_open(ch_threads_task *t);
/* Nothing comes any more; returns what is in it, *n frames, to be freed by the caller. */
ch_frame *ch__mailbox_close(ch_threads_task *t, int *n);
/* False: it is closed, or there is no memory, and the frame is not taken over. `from` is in its turn, and wakes whom it must
 * after that; NULL: at once. */
bool ch__mailbox_put(ch_threads_task *t, const ch_frame *f, ch_threads_task *from);
/* All that is in it, into t->taken; in the turn. */
int  ch__mailbox_get_all(ch_threads_task *t);
bool ch__mailbox_has_news(const ch_threads_task *t);

void ch__wakes_open(ch_wakes *w);
/* One more looks into the box, or one less. Its own thread works, and does not look; or has worked. */
void ch__mailbox_add_reader(ch_threads_task *t, int more);
void ch__mailbox_set_working(ch_threads_task *t, bool is_working);
/* After a turn, in which something was told: those who wait ask again whether what they wait for is there. */
void ch__mailbox_wake_waiters(ch_threads_task *t);
/* After a turn: its thread shall see that there is work. */
void ch__mailbox_wake_worker(ch_threads_task *t);
/* After a turn of one who will not look again: somebody else does, if that must be. */
void ch__mailbox_attend(ch_threads_task *t, bool has_more);
/* Until there is something to look for. */
void ch__mailbox_own_sleep(ch_threads_task *t);
/* `round` is that of its last turn: whatever was told since then may be what it waits for. */
void ch__mailbox_waiter_sleep(ch_threads_task *t, unsigned round, int64_t until);

#endif
