/* net/threads.c -- turns by threads: each task has one, and a box that others put frames into.
 *
 * Whoever holds a task's turn (a mutex) may take all frames out of its box and tell them: the task's own thread; a
 * thread of the program that is in ch__task_wait, so that an answer need not wake two threads; and, while the task's thread
 * works, the helper. Putting a frame into a box takes its lock only, for a few instructions, so no two tasks can
 * wait for each other's turn. box.c says who looks into a box and who must be woken.
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

/* ---- turns ---- */

static void turn_take(ch_threads_task *t)
{
    pthread_mutex_lock(&t->turn);
}

static void turn_leave(ch_threads_task *t)
{
    ch_wakes wakes = t->wakes;

    t->wakes.n = 0;
    atomic_store_explicit(&t->next_alarm, ch__task_next_timer(&t->task), memory_order_relaxed);
    pthread_mutex_unlock(&t->turn);
    ch__wakes_open(&wakes);
}

/* The end of a turn of one who does not look. */
static void turn_end(ch_threads_task *t)
{
    bool has_more = t->task.n_ended > 0, has_work = t->task.n_work > 0 && !t->is_running;

    turn_leave(t);
    if (has_work)
        ch__mailbox_wake_worker(t);
    ch__mailbox_wake_waiters(t);
    ch__mailbox_attend(t, has_more);
}

/* ---- lives ---- */

static void life_end(ch_threads_task *t)
{
    void *self = ch__incarnation_end(&t->task);

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
    if (t->task.outbox.n == 0)
        return;
    if (t->task.outbox.n < FLUSH_AT && t->task.now - t->flushed_at < flush_ns)
        return;
    ch__outbox_flush(&t->task.outbox);
    ch__wakes_open(&t->wakes);
    t->flushed_at = t->task.now;
}

static int tell_frames(ch_threads_task *t)
{
    ch_threads *net = net_of(t);
    int         n = ch__mailbox_get_all(t);

    if (n > 0)
        t->flushed_at = t->task.now = ch__now_ns();
    for (int i = 0; i < n; i++) {
        net->took(&t->taken[i]);
        if (t->task.is_alive)
            ch__task_receive(&t->task, &t->taken[i]);
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

    if (t->task.is_alive && ch__task_next_timer(&t->task) != INT64_MAX) {
        t->task.now = ch__now_ns();
        n += ch__task_run_timers(&t->task);
    }
    if (t->task.is_alive && t->task.n_ended > 0)
        n += ch__task_deliver_endings(&t->task);
    ch__outbox_flush(&t->task.outbox);
    if (t->task.is_broken) {
        ch__log(CH_LOG_ERROR, "net", "task %s ends: no memory for what it waits for",
                t->task.name);
        life_end(t);
    }
    *has_more = t->task.n_ended > 0;
    return n;
}

/* ---- the task's own thread ---- */

static void do_work(ch_threads_task *t, ch_task_work *w)
{
    bool has_more;

    ch__mailbox_set_working(t, true);
    ch__mailbox_attend(t, false);
    w->run(w->arg);
    ch__mailbox_set_working(t, false);
    turn_take(t);
    t->is_running = false;
    ch__work_end(&t->task, w);
    bury(t);
    deliver(t, &has_more);
    turn_leave(t);
    ch__mailbox_wake_waiters(t);
}

/* One pass; false: the end. */
static bool own_pass(ch_threads_task *t)
{
    bool         has_more, has_work, is_stopping;
    int          n;
    ch_task_work w;

    turn_take(t);
    n = deliver(t, &has_more);
    atomic_store_explicit(&t->has_work_news, false, memory_order_relaxed);
    is_stopping = t->is_stopping;
    has_work = ch__work_next(&t->task, &w);
    t->is_running = has_work;
    turn_leave(t);
    if (n > 0)
        ch__mailbox_wake_waiters(t);
    if (has_work)
        do_work(t, &w);
    else if (!has_more && !is_stopping)
        ch__mailbox_own_sleep(t);
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
    if (!ch__mailbox_has_news(t) && atomic_load(&t->next_alarm) > ch__now_ns())
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
    ch__mailbox_wake_worker(t);
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
        st = ch__incarnation_begin(task);
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
    ch__outbox_reserve(task);
}

static void leave(ch_task *task)
{
    ch__outbox_flush(&task->outbox);
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
        ch__mailbox_wake_worker(t);
    if (!has_more)
        ch__mailbox_waiter_sleep(t, round, ch__least(p->notice, p->limit));
    turn_take(t);
}

static ch_status wait_looking(ch_threads_task *t, bool (*is_done)(void *arg), void *arg,
                              patience *p)
{
    uint64_t  incarnation = t->task.incarnation;
    ch_status st = CH_OK;
    bool      has_more;

    ch__outbox_flush(&t->task.outbox);
    for (;;) {
        if (deliver(t, &has_more) > 0 && atomic_load(&t->n_waiters) > 1)
            ch__mailbox_wake_waiters(t);
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
    ch__mailbox_add_reader(t, 1);
    st = wait_looking(t, is_done, arg, &p);
    ch__mailbox_add_reader(t, -1); /* leave() sees whether another must */
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
             : ch__incarnation_begin(task);
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
