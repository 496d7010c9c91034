/* net/threads.h -- the driver with a thread per task: the task's lock, its mailbox, its thread.
 *
 * A ch_threads_task has two locks. `task_lock` is the task's lock of net.h. `box_lock` is a
 * spin lock of the mailbox, into which a wire puts inputs, and is held for a few instructions
 * only. threads.c delivers events; mailbox.c stores inputs and decides which thread must be
 * woken for them. Threads sleep in a wire of the net (ch_wire_ops.sleep), so that the thread
 * that has nothing to do makes progress on the engine.
 *
 * Three kinds of threads deliver the events of a task:
 *   - the task's own thread, which also runs the task's work;
 *   - waiters: threads of the program that are in ch__task_wait;
 *   - the helper thread of the net, while the own thread runs work and there is no waiter.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_THREADS_H
#define NET_THREADS_H

#include <stdalign.h>

#include "base/mem.h"
#include "base/thread.h"
#include "net/wire.h"

enum { CH_WAKES = 16 };

/* Gates to be opened when the task's lock is released. They are not opened under the lock,
 * because waking a thread takes a system call. */
typedef struct ch_wakes {
    ch_gate *gate[CH_WAKES];
    int      n;
} ch_wakes;

typedef struct ch_threads_task {
    ch_task         task; /* must be first */
    pthread_mutex_t task_lock;
    atomic_int      n_entering; /* threads of the program that wait for task_lock */
    atomic_int      n_waiters;  /* threads of the program that are in ch__task_wait */
    /* Guarded by task_lock. */
    ch_input *received; /* inputs taken out of the mailbox, being delivered */
    int       cap_received;
    ch_wakes  wakes;
    int64_t   flushed_at;      /* time of the last flush of the outbox in ns */
    bool      is_work_running; /* on the task's thread */
    bool      is_stopping;     /* the task's thread must end */
    void     *zombie;          /* `self` of an ended incarnation, to be closed after its work */
    ch_gate   zombie_closed;   /* opened when `zombie` was closed */
    /* The mailbox, guarded by box_lock. */
    alignas(CH_ALIGN) atomic_flag box_lock;
    atomic_bool has_events;   /* inputs or endings to be delivered */
    atomic_bool has_new_work; /* for the task's own thread */
    bool        is_open;      /* inputs are accepted */
    ch_input   *in;
    int         n_in, cap_in;
    /* The state of the threads that deliver events. See the invariants of mailbox.c. */
    int         n_readers;         /* threads that will read the mailbox before they sleep */
    int         n_waiters_asleep;  /* waiters that sleep */
    bool        is_thread_asleep;  /* the task's own thread sleeps */
    atomic_bool is_thread_working; /* the task's own thread runs work */
    /* Incremented when waiters must evaluate their conditions again; written under box_lock. */
    atomic_uint          wait_seq;
    int64_t              thread_sleeps_until; /* ns; INT64_MIN: the thread is awake */
    atomic_int_least64_t next_timer; /* of the task in ns; set when task_lock is released */
    ch_gate              thread_gate, waiter_gate;
    ch_thread           *thread;
} ch_threads_task;

typedef struct ch_threads {
    ch_net      net; /* must be first */
    int64_t     spin_ns;
    int         n_cpus;
    atomic_int  n_awake;    /* threads that deliver events and do not sleep */
    atomic_bool is_closing; /* mailboxes accept no more frames */
    /* Called when a frame is taken out of a mailbox, to be delivered or dropped. */
    void (*frame_removed)(const ch_frame *f);
    ch_gate              helper_gate;
    atomic_int_least64_t helper_sleeps_until; /* ns; INT64_MAX: no timer, or it is awake */
    atomic_bool          is_stopping;         /* the helper must end */
    ch_thread           *helper; /* delivers the events of tasks whose own thread runs work */
} ch_threads;

extern const ch_driver_ops ch__threads_driver;

/* Initialises all fields except `frame_removed`, adds the wire, and starts the helper.
 * `spin_us` is that of ch_inproc_options. Takes over the wire, unless it fails. */
CH_MUST_CHECK ch_status ch__threads_init(ch_threads *n, ch_net_wire *wire, int spin_us);

void ch__mailbox_open(ch_threads_task *t);
/* Closes the mailbox, which then accepts no inputs. Returns the *n inputs that are in it. The
 * caller owns them and must free the array. */
ch_input *ch__mailbox_close(ch_threads_task *t, int *n);
/* Puts a frame into the mailbox. Returns false if the mailbox is closed or memory is exhausted;
 * the caller then keeps the frame.
 *
 * `from` is the task whose lock the caller holds: readers are woken when that lock is released.
 * NULL: they are woken at once. */
bool ch__mailbox_put(ch_threads_task *t, const ch_frame *f, ch_threads_task *from);
/* Put the other kinds of inputs into the mailbox (ch_input_kind). They are dropped if the
 * mailbox is closed. Return false if memory is exhausted. */
bool ch__mailbox_put_broke(ch_threads_task *t, ch_link *l, uint64_t before,
                           ch_threads_task *from);
bool ch__mailbox_put_left(ch_threads_task *t, ch_return_path left, ch_threads_task *from);
/* Moves all inputs into t->received, and returns their number. Needs the task's lock. */
int  ch__mailbox_get_all(ch_threads_task *t);
bool ch__mailbox_has_events(const ch_threads_task *t);

/* Wakes the threads at all gates of a list, and empties it. */
void ch__wakes_open(ch_net *net, ch_wakes *w);
/* Blocks a thread at a gate until the time `until` at most, and wakes the threads at a gate. */
void ch__threads_sleep(ch_net *net, ch_gate *g, unsigned seen, int64_t until);
void ch__threads_wake(ch_net *net, ch_gate *g);
/* Adds `more` (1 or -1) to the number of readers. */
void ch__mailbox_add_reader(ch_threads_task *t, int more);
/* Records that the task's own thread begins or ends work, during which it is no reader. */
void ch__mailbox_set_working(ch_threads_task *t, bool is_thread_working);
/* Wakes all waiters after events were delivered, so that they evaluate their
 * conditions again. */
void ch__mailbox_wake_waiters(ch_threads_task *t);
/* Wakes the task's own thread, because there is work. */
void ch__mailbox_wake_worker(ch_threads_task *t);
/* Wakes a thread to read the mailbox, if events or a timer need one and no thread reads it. A
 * thread that has released the task's lock and will not read the mailbox again must call this.
 * `has_more`: endings are to be delivered. */
void ch__mailbox_ensure_reader(ch_threads_task *t, bool has_more);
/* Blocks the task's own thread until there is work, or events or a timer to deliver. */
void ch__mailbox_thread_sleep(ch_threads_task *t);
/* Blocks a waiter until there are events or a timer to deliver, or the time is `until`.
 * `wait_seq` is the value of t->wait_seq when the waiter last evaluated its condition. If
 * t->wait_seq has changed since, returns at once. */
void ch__mailbox_waiter_sleep(ch_threads_task *t, unsigned wait_seq, int64_t until);

#endif
