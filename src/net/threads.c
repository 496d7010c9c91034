/* net/threads.c -- the driver that gives each task a thread.
 *
 * The main structs are ch_threads (a net) and ch_threads_task (threads.h). task.c calls the
 * functions of ch__threads_driver; inproc.c is a wire for it.
 *
 * Any thread that holds the task's lock (task_lock, a mutex) may take the inputs out of the
 * mailbox and deliver them. Three kinds of threads do so: the task's own thread; a thread of
 * the program that is in ch__task_wait, so that a reply need not wake two threads; and the
 * helper, while the task's own thread runs work. mailbox.c decides which of them reads a
 * mailbox, and which must be woken.
 *
 * To put an input into a mailbox takes the mailbox's lock only, for a few instructions. So no
 * two tasks can wait for each other's task lock.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/threads.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/config.h"
#include "base/log.h"

static const int64_t ns_per_ms = 1000000, ns_per_us = 1000;
/* While a batch of frames is delivered, the outbox is flushed when its frames are this old, or
 * when it has this many of them. */
static const int64_t flush_delay_ns = 5000;
enum { FLUSH_FRAMES = 32 };

static ch_threads_task *threads_task_of(ch_task *t)
{
    return (ch_threads_task *)(void *)t;
}

static ch_threads *net_of(const ch_threads_task *t)
{
    return (ch_threads *)(void *)t->task.net;
}

/* ---- the task's lock ---- */

static void task_lock(ch_threads_task *t)
{
    pthread_mutex_lock(&t->task_lock);
}

/* Releases the lock, and then wakes the threads for which frames were put into mailboxes. */
static void task_unlock(ch_threads_task *t)
{
    ch_wakes wakes = t->wakes;

    t->wakes.n = 0;
    atomic_store_explicit(&t->next_timer, ch__task_next_timer(&t->task), memory_order_relaxed);
    pthread_mutex_unlock(&t->task_lock);
    ch__wakes_open(t->task.net, &wakes);
}

/* Releases the lock, for a thread that is no reader of the mailbox: wakes the threads
 * that must continue. */
static void task_unlock_and_wake(ch_threads_task *t)
{
    bool has_more = t->task.n_ended > 0, has_work = t->task.n_work > 0 && !t->is_work_running;

    task_unlock(t);
    if (has_work)
        ch__mailbox_wake_worker(t);
    ch__mailbox_wake_waiters(t);
    ch__mailbox_ensure_reader(t, has_more);
}

/* ---- incarnations ---- */

/* Closes the mailbox. Calls in it end as lost. */
static void close_mailbox(ch_threads_task *t)
{
    int       n;
    ch_input *in = ch__mailbox_close(t, &n);

    for (int i = 0; i < n; i++) {
        if (in[i].kind != CH_INPUT_FRAME)
            continue;
        net_of(t)->frame_removed(&in[i].frame);
        if (in[i].frame.kind == CH_FRAME_CALL)
            ch__call_end_lost(&t->task, &in[i].frame);
        ch__frame_drop(&in[i].frame);
    }
    ch__free(in);
}

static ch_status incarnation_begin(ch_threads_task *t)
{
    ch_status st;

    ch__mailbox_open(t);
    st = ch__incarnation_begin(&t->task);
    if (st != CH_OK)
        close_mailbox(t);
    return st;
}

/* Ends the incarnation. Its `self` stays as a zombie if its work runs, because the work may use
 * data of `self`. */
static void incarnation_end(ch_threads_task *t)
{
    void *self;

    close_mailbox(t);
    self = ch__incarnation_end(&t->task);
    if (t->is_work_running)
        t->zombie = self;
    else
        t->task.opt.ops->close(self);
}

/* Closes the zombie, if there is one, because its work has ended. */
static void close_zombie(ch_threads_task *t)
{
    if (t->zombie == NULL)
        return;
    t->task.opt.ops->close(t->zombie);
    t->zombie = NULL;
    ch__gate_open(&t->zombie_closed);
}

/* Blocks until the work of an earlier incarnation has ended. Releases the lock meanwhile.
 * There is no time limit, because the work uses data that the incarnation owns; a warning is
 * logged instead. */
static void wait_for_zombie(ch_threads_task *t)
{
    char whom[128];

    snprintf(whom, sizeof(whom), "the running work of task %s, which was killed", t->task.name);
    while (t->zombie != NULL) {
        unsigned seen = atomic_load(&t->zombie_closed);

        task_unlock_and_wake(t);
        if (ch__gate_wait_for(&t->zombie_closed, seen, ch__config()->wait_limit_ms, whom) !=
            CH_OK)
            ch__log(CH_LOG_WARNING, "wait", "%s", ch_error_message());
        task_lock(t);
    }
}

/* ---- delivering ---- */

/* Flushes the outbox if it is large or old enough, so that its frames do not wait for the
 * end of a batch. */
static void flush_if_due(ch_threads_task *t)
{
    if (t->task.outbox.n == 0)
        return;
    if (t->task.outbox.n < FLUSH_FRAMES && t->task.now - t->flushed_at < flush_delay_ns)
        return;
    ch__outbox_flush(&t->task.outbox);
    ch__wakes_open(t->task.net, &t->wakes);
    t->flushed_at = t->task.now;
}

/* Delivers the inputs of the mailbox, and returns their number. */
static int deliver_inputs(ch_threads_task *t)
{
    ch_threads *net = net_of(t);
    int         n = ch__mailbox_get_all(t);

    if (n > 0)
        t->flushed_at = t->task.now = ch__now_ns();
    for (int i = 0; i < n; i++) {
        ch_input *in = &t->received[i];

        if (in->kind == CH_INPUT_FRAME)
            net->frame_removed(&in->frame);
        if (t->task.is_alive)
            ch__task_take(&t->task, in);
        else if (in->kind == CH_INPUT_FRAME)
            ch__frame_drop(&in->frame);
        flush_if_due(t);
    }
    return n;
}

/* Delivers inputs, expired timers and endings. Returns the number of inputs and events. Sets
 * *has_more if further endings can be delivered at once. Needs the task's lock. */
static int deliver(ch_threads_task *t, bool *has_more)
{
    int n = deliver_inputs(t);

    if (t->task.is_alive && ch__task_next_timer(&t->task) != INT64_MAX) {
        t->task.now = ch__now_ns();
        n += ch__task_run_timers(&t->task);
    }
    if (t->task.is_alive && t->task.n_ended > 0)
        n += ch__task_deliver_endings(&t->task);
    ch__outbox_flush(&t->task.outbox);
    if (t->task.is_broken) {
        ch__log(CH_LOG_ERROR, "net",
                "task %s ends: out of memory for a timer, for work or for the end of a call",
                t->task.name);
        incarnation_end(t);
    }
    *has_more = t->task.n_ended > 0;
    return n;
}

/* ---- the task's own thread ---- */

static void run_work(ch_threads_task *t, ch_task_work *w)
{
    bool has_more;

    ch__mailbox_set_working(t, true);
    ch__mailbox_ensure_reader(t, false);
    w->run(w->arg);
    ch__mailbox_set_working(t, false);
    task_lock(t);
    t->is_work_running = false;
    ch__work_end(&t->task, w);
    close_zombie(t);
    deliver(t, &has_more);
    task_unlock(t);
    ch__mailbox_wake_waiters(t);
}

/* Delivers events, and runs a piece of work or sleeps. Returns false if the thread must end. */
static bool thread_pass(ch_threads_task *t)
{
    bool         has_more, has_work, is_stopping;
    int          n;
    ch_task_work w;

    task_lock(t);
    n = deliver(t, &has_more);
    atomic_store_explicit(&t->has_new_work, false, memory_order_relaxed);
    is_stopping = t->is_stopping;
    has_work = ch__work_next(&t->task, &w);
    t->is_work_running = has_work;
    task_unlock(t);
    if (n > 0)
        ch__mailbox_wake_waiters(t);
    if (has_work)
        run_work(t, &w);
    else if (!has_more && !is_stopping)
        ch__mailbox_thread_sleep(t);
    if (atomic_load_explicit(&t->n_entering, memory_order_relaxed) > 0)
        sched_yield(); /* because a mutex is not fair, and this thread locks it again at once */
    return !is_stopping;
}

static void thread_main(void *arg)
{
    ch_threads_task *t = arg;

    while (thread_pass(t))
        ;
    atomic_fetch_sub(&net_of(t)->n_awake, 1);
}

/* ---- the helper ---- */

/* Delivers the events of a task whose own thread runs work. Returns the time at which the task
 * needs the helper again, or INT64_MAX. If another thread holds the task's lock, does nothing,
 * because that thread delivers the events. */
static int64_t help_task(ch_threads_task *t)
{
    bool has_more;

    if (!atomic_load(&t->is_thread_working))
        return INT64_MAX;
    if (!ch__mailbox_has_events(t) && atomic_load(&t->next_timer) > ch__now_ns())
        return atomic_load(&t->next_timer);
    if (pthread_mutex_trylock(&t->task_lock) != 0)
        return INT64_MAX;
    deliver(t, &has_more);
    task_unlock_and_wake(t);
    return atomic_load(&t->next_timer);
}

static void helper_main(void *arg)
{
    ch_threads *n = arg;

    while (!atomic_load(&n->is_stopping)) {
        unsigned seen = atomic_load(&n->helper_gate);
        int64_t  until = INT64_MAX;
        ch_task *t = NULL;
        bool     is_there;

        /* INT64_MAX: a task that sets any timer while the helper scans opens
         * the helper's gate. */
        atomic_store(&n->helper_sleeps_until, INT64_MAX);
        for (int i = 0; i == 0 || t != NULL; i++) {
            pthread_mutex_lock(&n->net.lock);
            t = i < n->net.n_tasks ? n->net.task[i] : NULL;
            is_there = t != NULL && t->is_started;
            pthread_mutex_unlock(&n->net.lock);
            if (is_there)
                until = ch__min(until, help_task(threads_task_of(t)));
        }
        atomic_store(&n->helper_sleeps_until, until);
        ch__threads_sleep(&n->net, &n->helper_gate, seen, until);
    }
}

/* ---- the functions of the driver ---- */

/* Ends the task's thread, and frees the mailbox. The task must have ended. */
static void stop(ch_threads_task *t)
{
    task_lock(t);
    t->is_stopping = true;
    task_unlock(t);
    ch__mailbox_wake_worker(t);
    ch__thread_join(t->thread);
    pthread_mutex_destroy(&t->task_lock);
    ch__free(t->in);
    ch__free(t->received);
}

/* Creates the thread first, with the lock held. If that fails, the task has sent nothing, and
 * no peer has found it. */
static ch_status start(ch_task *task)
{
    ch_threads_task *t = threads_task_of(task);
    ch_threads      *n = net_of(t);
    ch_status        st;

    if (pthread_mutex_init(&t->task_lock, NULL) != 0)
        return ch__fail(CH_RESOURCE_EXHAUSTED, "task %s: cannot create a mutex", task->name);
    task_lock(t);
    t->n_readers = 1; /* the task's own thread */
    atomic_fetch_add(&n->n_awake, 1);
    st = ch__thread_start(task->name, thread_main, t, &t->thread);
    if (st == CH_OK)
        st = incarnation_begin(t);
    else
        atomic_fetch_sub(&n->n_awake, 1);
    task_unlock(t);
    if (st != CH_OK)
        stop(t);
    return st;
}

static void enter(ch_task *task)
{
    ch_threads_task *t = threads_task_of(task);

    atomic_fetch_add_explicit(&t->n_entering, 1, memory_order_relaxed);
    task_lock(t);
    atomic_fetch_sub_explicit(&t->n_entering, 1, memory_order_relaxed);
    task->now = ch__now_ns();
    ch__outbox_reserve(task);
}

static void leave(ch_task *task)
{
    ch__outbox_flush(&task->outbox);
    task_unlock_and_wake(threads_task_of(task));
}

/* When a wait logs a warning, and when it fails. Times are in ns. */
typedef struct wait_limit {
    int64_t     begin, notice, limit, limit_ms;
    bool        is_own_limit; /* the caller of ch__task_wait set the limit */
    const char *whom;
} wait_limit;

static wait_limit wait_limit_of(int64_t limit_ms, const char *whom)
{
    const ch_config *c = ch__config();
    int64_t          now = ch__now_ns();
    wait_limit       p = {.begin = now, .whom = whom, .is_own_limit = limit_ms > 0};

    p.limit_ms = limit_ms > 0 ? limit_ms : c->wait_limit_ms;
    p.limit = now + p.limit_ms * ns_per_ms;
    p.notice = now + c->wait_notice_ms * ns_per_ms;
    return p;
}

/* Logs the warning when it is due. Returns DEADLINE_EXCEEDED when the limit has passed. */
static ch_status wait_limit_check(wait_limit *p, const char *task)
{
    int64_t now = ch__now_ns();

    if (now >= p->notice) {
        ch__log(CH_LOG_WARNING, "wait",
                "task %s: still waiting for %s after %lld ms; fails after %lld ms", task,
                p->whom, (long long)((now - p->begin) / ns_per_ms), (long long)p->limit_ms);
        p->notice = INT64_MAX;
    }
    if (now < p->limit)
        return CH_OK;
    return ch__fail(CH_DEADLINE_EXCEEDED, "task %s: waited %lld ms for %s%s", task,
                    (long long)p->limit_ms, p->whom,
                    p->is_own_limit ? "" : "; COHORT_WAIT_LIMIT_MS sets the limit");
}

/* Sleeps without the lock, unless there is more to deliver. */
static void wait_unlocked(ch_threads_task *t, const wait_limit *p, bool has_more)
{
    bool     has_work = t->task.n_work > 0 && !t->is_work_running;
    unsigned wait_seq = atomic_load(&t->wait_seq);

    task_unlock(t);
    if (has_work)
        ch__mailbox_wake_worker(t);
    if (!has_more)
        ch__mailbox_waiter_sleep(t, wait_seq, ch__min(p->notice, p->limit));
    task_lock(t);
}

/* Delivers events until is_done(arg) is true. The calling thread must count as a reader. */
static ch_status wait_as_reader(ch_threads_task *t, bool (*is_done)(void *arg), void *arg,
                                wait_limit *p)
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
        st = wait_limit_check(p, t->task.name);
        if (st != CH_OK)
            return st;
        wait_unlocked(t, p, has_more);
    }
}

static ch_status wait(ch_task *task, bool (*is_done)(void *arg), void *arg, int64_t limit_ms,
                      const char *whom)
{
    ch_threads_task *t = threads_task_of(task);
    wait_limit       p;
    ch_status        st;

    if (is_done(arg))
        return CH_OK;
    p = wait_limit_of(limit_ms, whom);
    atomic_fetch_add(&t->n_waiters, 1);
    atomic_fetch_add(&net_of(t)->n_awake, 1);
    ch__mailbox_add_reader(t, 1);
    st = wait_as_reader(t, is_done, arg, &p);
    ch__mailbox_add_reader(t, -1); /* leave() ensures that another thread reads */
    atomic_fetch_sub(&net_of(t)->n_awake, 1);
    atomic_fetch_sub(&t->n_waiters, 1);
    return st;
}

static int64_t now(const ch_task *t)
{
    (void)t;
    return ch__now_ns();
}

/* Returns bits that another process, started at the same moment, hardly has. */
static uint64_t random_bits(void)
{
    uint64_t bits;

    /* Not random early in the boot of a machine; then the clock and an address must do. */
    if (getrandom(&bits, sizeof(bits), GRND_NONBLOCK) != (ssize_t)sizeof(bits))
        bits = (uint64_t)ch__now_ns() ^ (uint64_t)(uintptr_t)&bits >> 4;
    return bits;
}

/* Nets of a process share the last number. */
static uint64_t incarnation(ch_net *net)
{
    static atomic_uint_least64_t last_of_process;
    uint_least64_t               last = atomic_load(&last_of_process);
    uint64_t                     number;
    struct timespec              t;

    (void)net;
    clock_gettime(CLOCK_REALTIME, &t);
    do
        number = ch__incarnation_number((int64_t)t.tv_sec * 1000 + t.tv_nsec / ns_per_ms,
                                        random_bits(), last);
    while (!atomic_compare_exchange_weak(&last_of_process, &last, number));
    return number;
}

static void kill(ch_task *task)
{
    ch_threads_task *t = threads_task_of(task);

    task_lock(t);
    if (task->is_alive)
        incarnation_end(t);
    wait_for_zombie(t);
    task_unlock_and_wake(t);
}

static ch_status restart(ch_task *task)
{
    ch_threads_task *t = threads_task_of(task);
    ch_status        st;

    task_lock(t);
    wait_for_zombie(t);
    st = task->is_alive
             ? ch__fail(CH_FAILED_PRECONDITION,
                        "task %s: cannot restart, because it is alive; kill it first",
                        task->name)
             : incarnation_begin(t);
    task_unlock_and_wake(t);
    return st;
}

/* ---- nets ---- */

static void threads_free(ch_net *net)
{
    ch_threads *n = (ch_threads *)(void *)net;

    atomic_store(&n->is_closing, true);
    for (int i = 0; i < net->n_tasks; i++)
        kill(net->task[i]);
    /* Before `stop` destroys the locks of the tasks, because the helper tries to lock them. */
    atomic_store(&n->is_stopping, true);
    ch__threads_wake(net, &n->helper_gate);
    ch__thread_join(n->helper);
    for (int i = 0; i < net->n_tasks; i++)
        stop(threads_task_of(net->task[i]));
    ch__net_close(net);
    ch__free(n);
}

ch_status ch__threads_init(ch_threads *n, ch_net_wire *wire, int spin_us)
{
    ch_status st = ch__net_init(&n->net);

    if (st != CH_OK)
        return st;
    n->net.driver = &ch__threads_driver;
    ch__net_add_wire(&n->net, wire);
    n->net.task_bytes = sizeof(ch_threads_task);
    n->n_cpus = ch__cpu_count();
    n->spin_ns = spin_us == CH_OFF ? 0 : (spin_us > 0 ? spin_us : 50) * ns_per_us;
    st = ch__thread_start("ch/helper", helper_main, n, &n->helper);
    if (st != CH_OK) {
        n->net.n_wires = 0;
        ch__net_close(&n->net);
    }
    return st;
}

const ch_driver_ops ch__threads_driver = {.start = start,
                                          .enter = enter,
                                          .leave = leave,
                                          .wait = wait,
                                          .now = now,
                                          .incarnation = incarnation,
                                          .kill = kill,
                                          .restart = restart,
                                          .free = threads_free};
