/* net/mailbox.c -- a task's box: frames that came, and who looks for them, sleeps or must be woken.
 *
 * Invariants, under a box's lock:
 *   1. n_looking counts threads that will look into the box before they sleep. While it is not 0, nobody need be woken.
 *   2. The task's own thread looks, sleeps (is_own_asleep) or works (is_working), one of these.
 *   3. Who wakes a sleeper counts it as looking, so that it is woken once for all that comes until it runs.
 *   4. Who goes to sleep finds has_news false (its own thread: has_work_news too) under the lock, and sleeps until
 *      next_alarm at most.
 *   5. Who leaves a turn and does not look (a program's thread, the helper) sees whether somebody else must: ch__mailbox_attend().
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <sched.h>

#include "net/threads.h"

static ch_threads *net_of(const ch_threads_task *t)
{
    return (ch_threads *)(void *)t->task.net;
}

/* ---- whom to wake ---- */

void ch__wakes_open(ch_wakes *w)
{
    for (int i = 0; i < w->n; i++)
        ch__gate_open(w->gate[i]);
    w->n = 0;
}

static void wakes_add(ch_wakes *w, ch_gate *g)
{
    for (int i = 0; i < w->n; i++)
        if (w->gate[i] == g)
            return;
    if (w->n == CH_WAKES)
        ch__wakes_open(w);
    w->gate[w->n++] = g;
}

/* ---- the box ---- */

/* Held for some instructions: parking would cost more. But its holder may have been put aside by the system. */
static void lock(ch_threads_task *t)
{
    for (int i = 0; atomic_flag_test_and_set_explicit(&t->lock, memory_order_acquire); i++)
        if (i < 100)
            ch__relax();
        else
            sched_yield();
}

static void unlock(ch_threads_task *t)
{
    atomic_flag_clear_explicit(&t->lock, memory_order_release);
}

/* Under the lock: the gate of whoever shall look now; NULL: somebody does. */
static ch_gate *someone(ch_threads_task *t)
{
    if (t->n_looking > 0)
        return NULL;
    if (t->n_asleep > 0) {
        t->n_looking += t->n_asleep;
        t->n_asleep = 0;
        t->round++;
        return &t->wait_gate;
    }
    if (atomic_load_explicit(&t->is_working, memory_order_relaxed))
        return &net_of(t)->help;
    if (!t->is_own_asleep)
        return NULL; /* it has not started, or has ended */
    t->is_own_asleep = false;
    t->n_looking++;
    return &t->own_gate;
}

void ch__mailbox_open(ch_threads_task *t)
{
    lock(t);
    t->is_open = true;
    unlock(t);
}

ch_frame *ch__mailbox_close(ch_threads_task *t, int *n)
{
    ch_frame *frames;

    lock(t);
    t->is_open = false;
    frames = t->in;
    *n = t->n_in;
    t->in = NULL;
    t->n_in = t->cap_in = 0;
    unlock(t);
    return frames;
}

bool ch__mailbox_put(ch_threads_task *t, const ch_frame *f, ch_threads_task *from)
{
    ch_gate *g = NULL;
    bool     fits;

    lock(t);
    fits = t->is_open && !atomic_load_explicit(&net_of(t)->is_closing, memory_order_relaxed) &&
           ch__grow((void **)&t->in, &t->cap_in, t->n_in + 1, sizeof(ch_frame));
    if (fits) {
        t->in[t->n_in++] = *f;
        atomic_store_explicit(&t->has_news, true, memory_order_release);
        g = someone(t);
    }
    unlock(t);
    if (g != NULL && from != NULL)
        wakes_add(&from->wakes, g);
    else if (g != NULL)
        ch__gate_open(g);
    return fits;
}

/* All that is in it, into `taken`. */
int ch__mailbox_get_all(ch_threads_task *t)
{
    ch_frame *empty = t->taken;
    int       cap = t->cap_taken, n;

    if (!atomic_load_explicit(&t->has_news, memory_order_relaxed))
        return 0;
    lock(t);
    n = t->n_in;
    t->taken = t->in;
    t->cap_taken = t->cap_in;
    t->in = empty;
    t->cap_in = cap;
    t->n_in = 0;
    atomic_store_explicit(&t->has_news, false, memory_order_relaxed);
    unlock(t);
    return n;
}

/* ---- waking ---- */

/* Those who wait ask again whether what they wait for is there. */
void ch__mailbox_wake_waiters(ch_threads_task *t)
{
    bool any;

    if (atomic_load(&t->n_waiters) == 0)
        return;
    lock(t);
    any = t->n_asleep > 0;
    t->n_looking += t->n_asleep;
    t->n_asleep = 0;
    t->round++; /* also for one that is about to sleep */
    unlock(t);
    if (any)
        ch__gate_open(&t->wait_gate);
}

/* After a turn: its thread shall see that there is work. */
void ch__mailbox_wake_worker(ch_threads_task *t)
{
    bool is_asleep;

    lock(t);
    is_asleep = t->is_own_asleep;
    atomic_store_explicit(&t->has_work_news, true, memory_order_relaxed);
    t->n_looking += is_asleep;
    t->is_own_asleep = false;
    unlock(t);
    if (is_asleep)
        ch__gate_open(&t->own_gate);
}

/* After a turn of one who will not look again. */
void ch__mailbox_attend(ch_threads_task *t, bool has_more)
{
    int64_t  until;
    ch_gate *g = NULL;

    lock(t);
    until = atomic_load_explicit(&t->is_working, memory_order_relaxed)
                ? atomic_load(&net_of(t)->help_until)
                : t->own_until;
    if (has_more)
        atomic_store_explicit(&t->has_news, true, memory_order_relaxed);
    if (atomic_load_explicit(&t->has_news, memory_order_relaxed) ||
        atomic_load(&t->next_alarm) < until)
        g = someone(t);
    unlock(t);
    if (g != NULL)
        ch__gate_open(g);
}

void ch__mailbox_add_reader(ch_threads_task *t, int more)
{
    lock(t);
    t->n_looking += more;
    unlock(t);
}

void ch__mailbox_set_working(ch_threads_task *t, bool is_working)
{
    lock(t);
    t->n_looking += is_working ? -1 : 1;
    atomic_store(&t->is_working, is_working);
    unlock(t);
}

/* ---- sleeping ---- */

static bool may_spin(const ch_threads *net)
{
    return atomic_load_explicit(&net->n_awake, memory_order_relaxed) <= net->n_cpus;
}

bool ch__mailbox_has_news(const ch_threads_task *t)
{
    return atomic_load_explicit(&t->has_news, memory_order_acquire);
}

static bool has_work_news(const ch_threads_task *t)
{
    return atomic_load_explicit(&t->has_work_news, memory_order_acquire);
}

/* `round` is NULL for the task's own thread, which looks for work in place of rounds. */
static bool is_wanted(const ch_threads_task *t, const unsigned *round)
{
    return ch__mailbox_has_news(t) ||
           (round != NULL ? atomic_load(&t->round) != *round : has_work_news(t));
}

/* Systems like to wake a thread on the core of who woke it: then the one it waits for cannot run as long as it spins. So
 * it steps aside once, which costs nothing where nobody waits for the core. */
static bool wanted_while_spinning(const ch_threads_task *t, const unsigned *round)
{
    ch_threads *net = net_of(t);
    int64_t     until;
    bool        has_yielded = false;

    if (net->spin_ns == 0)
        return is_wanted(t, round);
    until = ch__now_ns() + net->spin_ns;
    do {
        for (int i = 0; i < 16; i++) {
            if (is_wanted(t, round))
                return true;
            ch__relax();
        }
        if (!has_yielded)
            sched_yield();
        has_yielded = true;
    } while (may_spin(net) && ch__now_ns() < until);
    return false;
}

static void park(ch_threads *net, ch_gate *g, unsigned seen, int64_t until)
{
    atomic_fetch_sub(&net->n_awake, 1);
    ch__gate_idle_until(g, seen, until);
    atomic_fetch_add(&net->n_awake, 1);
}

void ch__mailbox_own_sleep(ch_threads_task *t)
{
    unsigned seen;
    int64_t  until;

    if (wanted_while_spinning(t, NULL))
        return;
    lock(t);
    if (is_wanted(t, NULL)) {
        unlock(t);
        return;
    }
    t->n_looking--;
    t->is_own_asleep = true;
    t->own_until = until = atomic_load(&t->next_alarm);
    seen = atomic_load(&t->own_gate);
    unlock(t);
    park(net_of(t), &t->own_gate, seen, until);
    lock(t);
    t->n_looking += t->is_own_asleep; /* nobody woke it */
    t->is_own_asleep = false;
    t->own_until = INT64_MIN;
    unlock(t);
}

/* `round` is that of its last turn: whatever was told since then may be what it waits for. */
void ch__mailbox_waiter_sleep(ch_threads_task *t, unsigned round, int64_t until)
{
    unsigned seen;

    if (wanted_while_spinning(t, &round))
        return;
    lock(t);
    if (is_wanted(t, &round)) {
        unlock(t);
        return;
    }
    t->n_looking--;
    t->n_asleep++;
    until = ch__least(until, atomic_load(&t->next_alarm));
    seen = atomic_load(&t->wait_gate);
    unlock(t);
    park(net_of(t), &t->wait_gate, seen, until);
    lock(t);
    if (t->round == round) { /* nobody woke it */
        t->n_asleep--;
        t->n_looking++;
    }
    unlock(t);
}
