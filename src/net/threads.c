/* net/threads.c -- turns by threads: each task has one, and a box that others put frames into.
 *
 * Whoever holds a task's turn (a mutex) may take all frames out of its box and tell them: the task's own thread; a
 * thread of the program that is in ch__task_wait, so that an answer need not wake two threads; and, while the task's thread
 * works, the helper. Putting a frame into a box takes its lock only, for a few instructions, so no two tasks can
 * wait for each other's turn.
 *
 * Invariants, under a box's lock:
 *   1. n_looking counts threads that will look into the box before they sleep. While it is not 0, nobody need be woken.
 *   2. The task's own thread looks, sleeps (is_own_asleep) or works (is_working), one of these.
 *   3. Who wakes a sleeper counts it as looking, so that it is woken once for all that comes until it runs.
 *   4. Who goes to sleep finds has_news false (its own thread: has_work_news too) under the lock, and sleeps until
 *      next_alarm at most.
 *   5. Who leaves a turn and does not look (a program's thread, the helper) sees whether somebody else must: attend().
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/threads.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"

static const int64_t ns_per_ms = 1000000, ns_per_us = 1000;
static const int64_t flush_ns = 5000; /* that posts may wait for the next event's */
enum { FLUSH_AT = 32 };

static ch_threads_task *own(ch_task *t)
{
    return (ch_threads_task *)(void *)t;
}

static ch_threads *net_of(const ch_threads_task *t)
{
    return (ch_threads *)(void *)t->task.net;
}

/* ---- waking ---- */

static void wakes_open(ch_wakes *w)
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
        wakes_open(w);
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

void ch__box_open(ch_threads_task *t)
{
    lock(t);
    t->is_open = true;
    unlock(t);
}

ch_frame *ch__box_close(ch_threads_task *t, int *n)
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

bool ch__box_put(ch_threads_task *t, const ch_frame *f, ch_threads_task *from)
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
static int box_take(ch_threads_task *t)
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

/* ---- turns ---- */

static void turn_take(ch_threads_task *t)
{
    pthread_mutex_lock(&t->turn);
}

static void turn_leave(ch_threads_task *t)
{
    ch_wakes wakes = t->wakes;

    t->wakes.n = 0;
    atomic_store_explicit(&t->next_alarm, ch__task_next_alarm(&t->task), memory_order_relaxed);
    pthread_mutex_unlock(&t->turn);
    wakes_open(&wakes);
}

/* Those who wait ask again whether what they wait for is there. */
static void wake_waiters(ch_threads_task *t)
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
static void wake_worker(ch_threads_task *t)
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
static void attend(ch_threads_task *t, bool has_more)
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

/* The end of a turn of one who does not look. */
static void turn_end(ch_threads_task *t)
{
    bool has_more = t->task.n_ended > 0, has_work = t->task.n_work > 0 && !t->is_running;

    turn_leave(t);
    if (has_work)
        wake_worker(t);
    wake_waiters(t);
    attend(t, has_more);
}

/* ---- lives ---- */

static void life_end(ch_threads_task *t)
{
    void *self = ch__life_end(&t->task);

    if (t->is_running)
        t->zombie = self;
    else
        t->task.opt.ops->close(self);
}

static void bury(ch_threads_task *t)
{
    if (t->zombie == NULL)
        return;
    t->task.opt.ops->close(t->zombie);
    t->zombie = NULL;
    ch__gate_open(&t->buried);
}

/* In the turn, which is given up: until the work of an earlier life has ended. It uses what that life owns, so there is
 * no limit after which one could go on. */
static void wait_buried(ch_threads_task *t)
{
    char whom[128];

    snprintf(whom, sizeof(whom), "the work of task %s, which was killed", t->task.name);
    while (t->zombie != NULL) {
        unsigned seen = atomic_load(&t->buried);

        turn_end(t);
        if (ch__gate_wait_for(&t->buried, seen, ch__config()->wait_limit_ms, whom) != CH_OK)
            ch__log(CH_LOG_WARNING, "wait", "%s", ch_error_message());
        turn_take(t);
    }
}

/* ---- delivering ---- */

static void flush_some(ch_threads_task *t)
{
    if (t->task.post.n == 0)
        return;
    if (t->task.post.n < FLUSH_AT && t->task.now - t->flushed_at < flush_ns)
        return;
    ch__post_flush(&t->task.post);
    wakes_open(&t->wakes);
    t->flushed_at = t->task.now;
}

static int tell_frames(ch_threads_task *t)
{
    ch_threads *net = net_of(t);
    int         n = box_take(t);

    if (n > 0)
        t->flushed_at = t->task.now = ch__now_ns();
    for (int i = 0; i < n; i++) {
        net->took(&t->taken[i]);
        if (t->task.is_alive)
            ch__task_take(&t->task, &t->taken[i]);
        else
            ch__frame_drop(&t->taken[i]);
        flush_some(t);
    }
    return n;
}

/* In the turn: what came, what is due, what ended. Returns how many events it told; *has_more: more is due at once. */
static int deliver(ch_threads_task *t, bool *has_more)
{
    int n = tell_frames(t);

    if (t->task.is_alive && ch__task_next_alarm(&t->task) != INT64_MAX) {
        t->task.now = ch__now_ns();
        n += ch__task_alarms(&t->task);
    }
    if (t->task.is_alive && t->task.n_ended > 0)
        n += ch__task_endings(&t->task);
    ch__post_flush(&t->task.post);
    if (t->task.is_broken) {
        ch__log(CH_LOG_ERROR, "net", "task %s ends: no memory for what it waits for",
                t->task.name);
        life_end(t);
    }
    *has_more = t->task.n_ended > 0;
    return n;
}

/* ---- sleeping ---- */

static bool may_spin(const ch_threads *net)
{
    return atomic_load_explicit(&net->n_awake, memory_order_relaxed) <= net->n_cpus;
}

static bool has_news(const ch_threads_task *t)
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
    return has_news(t) || (round != NULL ? atomic_load(&t->round) != *round : has_work_news(t));
}

static bool wanted_while_spinning(const ch_threads_task *t, const unsigned *round)
{
    ch_threads *net = net_of(t);
    int64_t     until;

    if (net->spin_ns == 0)
        return is_wanted(t, round);
    until = ch__now_ns() + net->spin_ns;
    do {
        for (int i = 0; i < 64; i++) {
            if (is_wanted(t, round))
                return true;
            ch__relax();
        }
    } while (may_spin(net) && ch__now_ns() < until);
    return false;
}

static void park(ch_threads *net, ch_gate *g, unsigned seen, int64_t until)
{
    atomic_fetch_sub(&net->n_awake, 1);
    ch__gate_idle_until(g, seen, until);
    atomic_fetch_add(&net->n_awake, 1);
}

static void own_sleep(ch_threads_task *t)
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
static void waiter_sleep(ch_threads_task *t, unsigned round, int64_t until)
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

/* ---- the task's own thread ---- */

static void do_work(ch_threads_task *t, ch_work *w)
{
    bool has_more;

    lock(t);
    t->n_looking--;
    atomic_store(&t->is_working, true);
    unlock(t);
    attend(t, false);
    w->run(w->arg);
    lock(t);
    t->n_looking++;
    atomic_store(&t->is_working, false);
    unlock(t);
    turn_take(t);
    t->is_running = false;
    ch__work_end(&t->task, w);
    bury(t);
    deliver(t, &has_more);
    turn_leave(t);
    wake_waiters(t);
}

/* One pass; false: the end. */
static bool own_pass(ch_threads_task *t)
{
    bool    has_more, has_work, is_stopping;
    int     n;
    ch_work w;

    turn_take(t);
    n = deliver(t, &has_more);
    atomic_store_explicit(&t->has_work_news, false, memory_order_relaxed);
    is_stopping = t->is_stopping;
    has_work = ch__work_take(&t->task, &w);
    t->is_running = has_work;
    turn_leave(t);
    if (n > 0)
        wake_waiters(t);
    if (has_work)
        do_work(t, &w);
    else if (!has_more && !is_stopping)
        own_sleep(t);
    if (atomic_load_explicit(&t->n_entering, memory_order_relaxed) > 0)
        sched_yield(); /* a mutex is not fair, and this thread comes back at once */
    return !is_stopping;
}

static void own_main(void *arg)
{
    ch_threads_task *t = arg;

    while (own_pass(t))
        ;
    atomic_fetch_sub(&net_of(t)->n_awake, 1);
}

/* ---- the helper ---- */

/* Returns when the task has something again. One whose turn is taken is looked after by whoever has it. */
static int64_t help(ch_threads_task *t)
{
    bool has_more;

    if (!atomic_load(&t->is_working))
        return INT64_MAX;
    if (!has_news(t) && atomic_load(&t->next_alarm) > ch__now_ns())
        return atomic_load(&t->next_alarm);
    if (pthread_mutex_trylock(&t->turn) != 0)
        return INT64_MAX;
    deliver(t, &has_more);
    turn_end(t);
    return atomic_load(&t->next_alarm);
}

static void helper_main(void *arg)
{
    ch_threads *n = arg;

    while (!atomic_load(&n->is_stopping)) {
        unsigned seen = atomic_load(&n->help);
        int64_t  until = INT64_MAX;
        ch_task *t = NULL;
        bool     is_there;

        /* An alarm that is set while it looks around opens its gate. */
        atomic_store(&n->help_until, INT64_MAX);
        for (int i = 0; i == 0 || t != NULL; i++) {
            pthread_mutex_lock(&n->net.lock);
            t = i < n->net.n_tasks ? n->net.task[i] : NULL;
            is_there = t != NULL && t->is_started;
            pthread_mutex_unlock(&n->net.lock);
            if (is_there)
                until = ch__least(until, help(own(t)));
        }
        atomic_store(&n->help_until, until);
        ch__gate_idle_until(&n->help, seen, until);
    }
}

/* ---- what ch__task_... does ---- */

static void stop(ch_threads_task *t)
{
    turn_take(t);
    t->is_stopping = true;
    turn_leave(t);
    wake_worker(t);
    ch__thread_join(t->thread);
    pthread_mutex_destroy(&t->turn);
    ch__free(t->in);
    ch__free(t->taken);
}

/* The thread comes first, and waits for the turn: nothing was sent, and nobody has seen the task, until it is sure to live. */
static ch_status start(ch_task *task)
{
    ch_threads_task *t = own(task);
    ch_threads      *n = net_of(t);
    ch_status        st;

    if (pthread_mutex_init(&t->turn, NULL) != 0)
        return ch__fail(CH_RESOURCE_EXHAUSTED, "task %s: no mutex", task->name);
    turn_take(t);
    t->n_looking = 1; /* its thread */
    atomic_fetch_add(&n->n_awake, 1);
    st = ch__thread_start(task->name, own_main, t, &t->thread);
    if (st == CH_OK)
        st = ch__life_begin(task);
    else
        atomic_fetch_sub(&n->n_awake, 1);
    turn_leave(t);
    if (st != CH_OK)
        stop(t);
    return st;
}

static void enter(ch_task *task)
{
    ch_threads_task *t = own(task);

    atomic_fetch_add_explicit(&t->n_entering, 1, memory_order_relaxed);
    turn_take(t);
    atomic_fetch_sub_explicit(&t->n_entering, 1, memory_order_relaxed);
    task->now = ch__now_ns();
    ch__post_reserve(task);
}

static void leave(ch_task *task)
{
    ch__post_flush(&task->post);
    turn_end(own(task));
}

typedef struct patience {
    int64_t     begin, notice, limit, limit_ms;
    bool        is_own_limit;
    const char *whom;
} patience;

static patience patience_of(int64_t limit_ms, const char *whom)
{
    const ch_config *c = ch__config();
    int64_t          now = ch__now_ns();
    patience         p = {.begin = now, .whom = whom, .is_own_limit = limit_ms > 0};

    p.limit_ms = limit_ms > 0 ? limit_ms : c->wait_limit_ms;
    p.limit = now + p.limit_ms * ns_per_ms;
    p.notice = now + c->wait_notice_ms * ns_per_ms;
    return p;
}

/* As gates do it: the notice before the error. */
static ch_status patience_check(patience *p, const char *task)
{
    int64_t now = ch__now_ns();

    if (now >= p->notice) {
        ch__log(CH_LOG_WARNING, "wait",
                "task %s: waiting for %s since %lld ms; an error after %lld ms", task, p->whom,
                (long long)((now - p->begin) / ns_per_ms), (long long)p->limit_ms);
        p->notice = INT64_MAX;
    }
    if (now < p->limit)
        return CH_OK;
    return ch__fail(CH_DEADLINE_EXCEEDED, "task %s: waited %lld ms for %s%s", task,
                    (long long)p->limit_ms, p->whom,
                    p->is_own_limit ? "" : "; COHORT_WAIT_LIMIT_MS sets the limit");
}

/* Between two looks, outside the turn. */
static void wait_aside(ch_threads_task *t, const patience *p, bool has_more)
{
    bool     has_work = t->task.n_work > 0 && !t->is_running;
    unsigned round = atomic_load(&t->round);

    turn_leave(t);
    if (has_work)
        wake_worker(t);
    if (!has_more)
        waiter_sleep(t, round, ch__least(p->notice, p->limit));
    turn_take(t);
}

static ch_status wait_looking(ch_threads_task *t, bool (*is_done)(void *arg), void *arg,
                              patience *p)
{
    uint64_t  incarnation = t->task.incarnation;
    ch_status st = CH_OK;
    bool      has_more;

    ch__post_flush(&t->task.post);
    for (;;) {
        if (deliver(t, &has_more) > 0 && atomic_load(&t->n_waiters) > 1)
            wake_waiters(t);
        if (is_done(arg))
            return CH_OK;
        if (!t->task.is_alive || t->task.incarnation != incarnation)
            return ch__fail(CH_UNAVAILABLE, "task %s ended while it waited for %s",
                            t->task.name, p->whom);
        st = patience_check(p, t->task.name);
        if (st != CH_OK)
            return st;
        wait_aside(t, p, has_more);
    }
}

static ch_status wait(ch_task *task, bool (*is_done)(void *arg), void *arg, int64_t limit_ms,
                      const char *whom)
{
    ch_threads_task *t = own(task);
    patience         p;
    ch_status        st;

    if (is_done(arg))
        return CH_OK;
    p = patience_of(limit_ms, whom);
    atomic_fetch_add(&t->n_waiters, 1);
    atomic_fetch_add(&net_of(t)->n_awake, 1);
    lock(t);
    t->n_looking++;
    unlock(t);
    st = wait_looking(t, is_done, arg, &p);
    lock(t);
    t->n_looking--; /* leave() sees whether another must look */
    unlock(t);
    atomic_fetch_sub(&net_of(t)->n_awake, 1);
    atomic_fetch_sub(&t->n_waiters, 1);
    return st;
}

static int64_t now(const ch_task *t)
{
    (void)t;
    return ch__now_ns();
}

static void kill(ch_task *task)
{
    ch_threads_task *t = own(task);

    turn_take(t);
    if (task->is_alive)
        life_end(t);
    wait_buried(t);
    turn_end(t);
}

static ch_status restart(ch_task *task)
{
    ch_threads_task *t = own(task);
    ch_status        st;

    turn_take(t);
    wait_buried(t);
    st = task->is_alive
             ? ch__fail(CH_FAILED_PRECONDITION,
                        "task %s lives; only one that was killed is restarted", task->name)
             : ch__life_begin(task);
    turn_end(t);
    return st;
}

/* ---- nets ---- */

static void threads_free(ch_net *net)
{
    ch_threads *n = (ch_threads *)(void *)net;

    atomic_store(&n->is_closing, true);
    for (int i = 0; i < net->n_tasks; i++)
        kill(net->task[i]);
    for (int i = 0; i < net->n_tasks; i++)
        stop(own(net->task[i]));
    atomic_store(&n->is_stopping, true);
    ch__gate_open(&n->help);
    ch__thread_join(n->helper);
    ch__net_close(net);
    ch__free(n);
}

ch_status ch__threads_init(ch_threads *n, int spin_us)
{
    ch_status st = ch__net_init(&n->net);

    if (st != CH_OK)
        return st;
    n->net.drive = &ch__threads_drive;
    n->net.task_bytes = sizeof(ch_threads_task);
    n->n_cpus = ch__cpu_count();
    n->spin_ns = spin_us == CH_OFF ? 0 : (spin_us > 0 ? spin_us : 50) * ns_per_us;
    st = ch__thread_start("ch/helper", helper_main, n, &n->helper);
    if (st != CH_OK)
        ch__net_close(&n->net);
    return st;
}

const ch_drive_ops ch__threads_drive = {.start = start,
                                        .enter = enter,
                                        .leave = leave,
                                        .wait = wait,
                                        .now = now,
                                        .kill = kill,
                                        .restart = restart,
                                        .free = threads_free};
