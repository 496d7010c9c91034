/* net/mailbox.c -- a task's mailbox: its inputs, and the threads to be woken for them.
 *
 * A wire puts received frames, and other inputs (ch_input of wire.h), into the mailbox of a
 * ch_threads_task (threads.h). The threads of threads.c take them out. This file decides which
 * thread must be woken, and lets threads sleep. A reader is a thread that will read the mailbox
 * before it sleeps.
 *
 * Invariants, under box_lock:
 *   1. n_readers is the number of readers. While it is not 0, no thread needs to be woken.
 *   2. The task's own thread is in exactly one of three states: it is a reader, it sleeps
 *      (is_thread_asleep), or it runs work (is_thread_working).
 *   3. The thread that wakes a sleeper adds the sleeper to n_readers. So a sleeper is woken
 *      once for all inputs that arrive until it runs.
 *   4. A thread goes to sleep only if has_events is false under the lock, and for the task's
 *      own thread has_new_work too. It sleeps until next_timer at most.
 *   5. A thread that releases the task's lock and is no reader (a thread of the program, the
 *      helper) must call ch__mailbox_ensure_reader.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <sched.h>

#include "net/threads.h"

static ch_threads *net_of(const ch_threads_task *t)
{
    return (ch_threads *)(void *)t->task.net;
}

/* ---- sleeping and waking in the wire ---- */

void ch__threads_sleep(ch_net *net, ch_gate *g, unsigned seen, int64_t until)
{
    ch_net_wire *w = atomic_load_explicit(&net->sleeper, memory_order_acquire);

    w->ops->sleep(w, g, seen, until);
}

void ch__threads_wake(ch_net *net, ch_gate *g)
{
    ch_net_wire *w = atomic_load_explicit(&net->sleeper, memory_order_acquire);

    w->ops->wake(w, g);
}

/* ---- lists of gates ---- */

void ch__wakes_open(ch_net *net, ch_wakes *w)
{
    for (int i = 0; i < w->n; i++)
        ch__threads_wake(net, w->gate[i]);
    w->n = 0;
}

/* Adds a gate. Opens all gates first if the list is full. */
static void wakes_add(ch_net *net, ch_wakes *w, ch_gate *g)
{
    for (int i = 0; i < w->n; i++)
        if (w->gate[i] == g)
            return;
    if (w->n == CH_WAKES)
        ch__wakes_open(net, w);
    w->gate[w->n++] = g;
}

/* ---- inputs ---- */

/* Spins, because the lock is held for a few instructions only. Yields after 100 rounds, because
 * the system may have preempted the holder. */
static void box_lock(ch_threads_task *t)
{
    for (int i = 0; atomic_flag_test_and_set_explicit(&t->box_lock, memory_order_acquire); i++)
        if (i < 100)
            ch__relax();
        else
            sched_yield();
}

static void box_unlock(ch_threads_task *t)
{
    atomic_flag_clear_explicit(&t->box_lock, memory_order_release);
}

/* Returns the gate of the threads that must be woken to read the mailbox, and counts them as
 * readers, except the helper. Returns NULL if no thread needs to be woken. Needs box_lock. */
static ch_gate *pick_reader(ch_threads_task *t)
{
    if (t->n_readers > 0)
        return NULL;
    if (t->n_waiters_asleep > 0) {
        t->n_readers += t->n_waiters_asleep;
        t->n_waiters_asleep = 0;
        t->wait_seq++;
        return &t->waiter_gate;
    }
    if (atomic_load_explicit(&t->is_thread_working, memory_order_relaxed))
        return &net_of(t)->helper_gate;
    if (!t->is_thread_asleep)
        return NULL; /* the thread has not started, or has ended */
    t->is_thread_asleep = false;
    t->n_readers++;
    return &t->thread_gate;
}

void ch__mailbox_open(ch_threads_task *t)
{
    box_lock(t);
    t->is_open = true;
    box_unlock(t);
}

ch_input *ch__mailbox_close(ch_threads_task *t, int *n)
{
    ch_input *inputs;

    box_lock(t);
    t->is_open = false;
    inputs = t->in;
    *n = t->n_in;
    t->in = NULL;
    t->n_in = t->cap_in = 0;
    box_unlock(t);
    return inputs;
}

static bool accepts(const ch_threads_task *t)
{
    return t->is_open && !atomic_load_explicit(&net_of(t)->is_closing, memory_order_relaxed);
}

/* Returns a new last entry, or NULL if memory is exhausted. Needs box_lock. */
static ch_input *add_input(ch_threads_task *t, ch_input_kind kind)
{
    ch_input *in;

    if (!ch__grow((void **)&t->in, &t->cap_in, t->n_in + 1, sizeof(ch_input)))
        return NULL;
    in = &t->in[t->n_in++];
    in->kind = kind;
    return in;
}

/* Returns the gate to be opened for a new input, or NULL. Needs box_lock. */
static ch_gate *announce(ch_threads_task *t)
{
    atomic_store_explicit(&t->has_events, true, memory_order_release);
    return pick_reader(t);
}

/* Opens a gate now, or when `from` releases its lock. */
static void open_gate(ch_threads_task *t, ch_gate *g, ch_threads_task *from)
{
    if (g != NULL && from != NULL)
        wakes_add(from->task.net, &from->wakes, g);
    else if (g != NULL)
        ch__threads_wake(t->task.net, g);
}

bool ch__mailbox_put(ch_threads_task *t, const ch_frame *f, ch_threads_task *from)
{
    ch_gate  *g = NULL;
    ch_input *in;

    box_lock(t);
    in = accepts(t) ? add_input(t, CH_INPUT_FRAME) : NULL;
    if (in != NULL) {
        in->frame = *f;
        g = announce(t);
    }
    box_unlock(t);
    open_gate(t, g, from);
    return in != NULL;
}

/* Puts an input that is not a frame into the mailbox, unless it is closed. */
static bool put_notice(ch_threads_task *t, const ch_input *notice, ch_threads_task *from)
{
    ch_gate  *g = NULL;
    ch_input *in = NULL;
    bool      is_open;

    box_lock(t);
    is_open = accepts(t);
    if (is_open)
        in = add_input(t, notice->kind);
    if (in != NULL) {
        *in = *notice;
        g = announce(t);
    }
    box_unlock(t);
    open_gate(t, g, from);
    return in != NULL || !is_open;
}

bool ch__mailbox_put_broke(ch_threads_task *t, ch_link *l, uint64_t before,
                           ch_threads_task *from)
{
    return put_notice(t, &(ch_input){.kind = CH_INPUT_BROKE, .broke = {l, before}}, from);
}

bool ch__mailbox_put_left(ch_threads_task *t, ch_return_path left, ch_threads_task *from)
{
    return put_notice(t, &(ch_input){.kind = CH_INPUT_LEFT, .left = left}, from);
}

/* The emptied array of the last call becomes the new mailbox, so nothing is allocated. */
int ch__mailbox_get_all(ch_threads_task *t)
{
    ch_input *empty = t->received;
    int       cap = t->cap_received, n;

    if (!atomic_load_explicit(&t->has_events, memory_order_relaxed))
        return 0;
    box_lock(t);
    n = t->n_in;
    t->received = t->in;
    t->cap_received = t->cap_in;
    t->in = empty;
    t->cap_in = cap;
    t->n_in = 0;
    atomic_store_explicit(&t->has_events, false, memory_order_relaxed);
    box_unlock(t);
    return n;
}

/* ---- waking ---- */

void ch__mailbox_wake_waiters(ch_threads_task *t)
{
    bool any;

    if (atomic_load(&t->n_waiters) == 0)
        return;
    box_lock(t);
    any = t->n_waiters_asleep > 0;
    t->n_readers += t->n_waiters_asleep;
    t->n_waiters_asleep = 0;
    t->wait_seq++; /* also for a waiter that is about to sleep */
    box_unlock(t);
    if (any)
        ch__threads_wake(t->task.net, &t->waiter_gate);
}

void ch__mailbox_wake_worker(ch_threads_task *t)
{
    bool is_asleep;

    box_lock(t);
    is_asleep = t->is_thread_asleep;
    atomic_store_explicit(&t->has_new_work, true, memory_order_relaxed);
    t->n_readers += is_asleep;
    t->is_thread_asleep = false;
    box_unlock(t);
    if (is_asleep)
        ch__threads_wake(t->task.net, &t->thread_gate);
}

void ch__mailbox_ensure_reader(ch_threads_task *t, bool has_more)
{
    int64_t  until;
    ch_gate *g = NULL;

    box_lock(t);
    until = atomic_load_explicit(&t->is_thread_working, memory_order_relaxed)
                ? atomic_load(&net_of(t)->helper_sleeps_until)
                : t->thread_sleeps_until;
    if (has_more)
        atomic_store_explicit(&t->has_events, true, memory_order_relaxed);
    if (atomic_load_explicit(&t->has_events, memory_order_relaxed) ||
        atomic_load(&t->next_timer) < until)
        g = pick_reader(t);
    box_unlock(t);
    if (g != NULL)
        ch__threads_wake(t->task.net, g);
}

void ch__mailbox_add_reader(ch_threads_task *t, int more)
{
    box_lock(t);
    t->n_readers += more;
    box_unlock(t);
}

void ch__mailbox_set_working(ch_threads_task *t, bool is_thread_working)
{
    box_lock(t);
    t->n_readers += is_thread_working ? -1 : 1;
    atomic_store(&t->is_thread_working, is_thread_working);
    box_unlock(t);
}

/* ---- sleeping ---- */

static bool may_spin(const ch_threads *net)
{
    return atomic_load_explicit(&net->n_awake, memory_order_relaxed) <= net->n_cpus;
}

bool ch__mailbox_has_events(const ch_threads_task *t)
{
    return atomic_load_explicit(&t->has_events, memory_order_acquire);
}

static bool has_new_work(const ch_threads_task *t)
{
    return atomic_load_explicit(&t->has_new_work, memory_order_acquire);
}

/* Returns true if a thread must not sleep. `wait_seq` is NULL for the task's own thread, which
 * waits for work instead of a change of wait_seq. */
static bool must_run(const ch_threads_task *t, const unsigned *wait_seq)
{
    return ch__mailbox_has_events(t) ||
           (wait_seq != NULL ? atomic_load(&t->wait_seq) != *wait_seq : has_new_work(t));
}

/* Polls for up to spin_ns. Returns true if the thread must not sleep.
 *
 * Yields once, because the system tends to wake a thread on the core of the thread that woke
 * it, and that thread cannot run while this thread spins. The yield costs nothing if no thread
 * waits for the core. The thread makes progress on the engine meanwhile, if the wire asks. */
static bool spin(const ch_threads_task *t, const unsigned *wait_seq)
{
    ch_threads  *net = net_of(t);
    ch_net_wire *w = atomic_load_explicit(&net->net.sleeper, memory_order_acquire);
    int64_t      until;
    bool         has_yielded = false;

    if (net->spin_ns == 0)
        return must_run(t, wait_seq);
    until = ch__now_ns() + net->spin_ns;
    do {
        for (int i = 0; i < 16; i++) {
            if (must_run(t, wait_seq))
                return true;
            ch__relax();
        }
        if (!has_yielded)
            sched_yield();
        has_yielded = true;
        if (w->polls_while_spins)
            w->ops->sleep(w, NULL, 0, INT64_MIN);
    } while (may_spin(net) && ch__now_ns() < until);
    return false;
}

static void park(ch_threads *net, ch_gate *g, unsigned seen, int64_t until)
{
    atomic_fetch_sub(&net->n_awake, 1);
    ch__threads_sleep(&net->net, g, seen, until);
    atomic_fetch_add(&net->n_awake, 1);
}

void ch__mailbox_thread_sleep(ch_threads_task *t)
{
    unsigned seen;
    int64_t  until;

    if (spin(t, NULL))
        return;
    box_lock(t);
    if (must_run(t, NULL)) {
        box_unlock(t);
        return;
    }
    t->n_readers--;
    t->is_thread_asleep = true;
    t->thread_sleeps_until = until = atomic_load(&t->next_timer);
    seen = atomic_load(&t->thread_gate);
    box_unlock(t);
    park(net_of(t), &t->thread_gate, seen, until);
    box_lock(t);
    t->n_readers += t->is_thread_asleep; /* a timeout: no thread woke this thread */
    t->is_thread_asleep = false;
    t->thread_sleeps_until = INT64_MIN;
    box_unlock(t);
}

void ch__mailbox_waiter_sleep(ch_threads_task *t, unsigned wait_seq, int64_t until)
{
    unsigned seen;

    if (spin(t, &wait_seq))
        return;
    box_lock(t);
    if (must_run(t, &wait_seq)) {
        box_unlock(t);
        return;
    }
    t->n_readers--;
    t->n_waiters_asleep++;
    until = ch__min(until, atomic_load(&t->next_timer));
    seen = atomic_load(&t->waiter_gate);
    box_unlock(t);
    park(net_of(t), &t->waiter_gate, seen, until);
    box_lock(t);
    if (t->wait_seq == wait_seq) { /* a timeout: no thread woke this waiter */
        t->n_waiters_asleep--;
        t->n_readers++;
    }
    box_unlock(t);
}
