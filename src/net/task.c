/* net/task.c -- tasks, their incarnations and their links, for all engines.
 *
 * A ch_net holds the list of its tasks (wire.h). A ch_task is created once under its name, and
 * stays in the list until the net is freed. The drivers begin and end its incarnations. They
 * call the functions of wire.h; the code of tasks and of the program calls those of net.h, most
 * of which pass the call on to the driver.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "net/wire.h"

ch_status ch__net_init(ch_net *net)
{
    return pthread_mutex_init(&net->lock, NULL) == 0
               ? CH_OK
               : ch__fail(CH_RESOURCE_EXHAUSTED, "net: cannot create a mutex");
}

static void task_free(ch_task *t)
{
    for (int i = 0; i < t->n_links; i++) {
        t->net->wire->close_link(t->link[i]);
        ch__free(t->link[i]);
    }
    ch__pending_free(&t->table);
    ch__free(t->outbox.item);
    ch__free(t->ended);
    ch__free(t->work);
    ch__free(t->link);
    ch__free_aligned(t);
}

void ch__net_close(ch_net *net)
{
    for (int i = 0; i < net->n_tasks; i++)
        task_free(net->task[i]);
    ch__free(net->task);
    pthread_mutex_destroy(&net->lock);
}

static ch_task *find_task(const ch_net *net, const char *name)
{
    for (int i = 0; i < net->n_tasks; i++)
        if (strcmp(net->task[i]->name, name) == 0)
            return net->task[i];
    return NULL;
}

ch_task *ch__net_find(ch_net *net, const char *name)
{
    ch_task *t;

    pthread_mutex_lock(&net->lock);
    t = find_task(net, name);
    if (t != NULL && !t->is_started)
        t = NULL;
    pthread_mutex_unlock(&net->lock);
    return t;
}

void ch__net_free(ch_net *net)
{
    if (net != NULL)
        net->driver->free(net);
}

/* ---- starting ---- */

static ch_status check_options(const ch_task_options *opt)
{
    size_t length = opt->name != NULL ? strlen(opt->name) : 0;

    if (length == 0 || length >= sizeof(((ch_task *)0)->name))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "task start: the name has %zu characters (want 1 to %zu)", length,
                        sizeof(((ch_task *)0)->name) - 1);
    if (opt->calls < 0 || opt->bytes < 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "task start: %s: room for %d calls and %lld bytes (want 0 or more)",
                        opt->name, opt->calls, (long long)opt->bytes);
    assert(opt->ops != NULL && opt->make != NULL);
    return CH_OK;
}

static void task_init(ch_task *t, ch_net *net, const ch_task_options *opt)
{
    t->net = net;
    memcpy(t->name, opt->name, strlen(opt->name) + 1);
    t->opt = *opt;
    t->opt.name = t->name;
    if (opt->calls == 0)
        t->opt.calls = CH_LINK_CALLS;
    if (opt->bytes == 0)
        t->opt.bytes = CH_LINK_BYTES;
    t->outbox.task = t;
}

/* Appends the task to the list. Returns ALREADY_EXISTS if its name is taken. */
static ch_status list_add(ch_net *net, ch_task *t)
{
    ch_status st = CH_OK;

    pthread_mutex_lock(&net->lock);
    if (find_task(net, t->name) != NULL)
        st = ch__fail(CH_ALREADY_EXISTS,
                      "task start: %s: name in use; if that task was killed, restart it",
                      t->name);
    else if (!ch__grow((void **)&net->task, &net->cap_tasks, net->n_tasks + 1,
                       sizeof(ch_task *)))
        st = ch__fail_memory("list of tasks");
    else
        net->task[net->n_tasks++] = t;
    pthread_mutex_unlock(&net->lock);
    return st;
}

static void list_remove(ch_net *net, const ch_task *t)
{
    int at = 0;

    pthread_mutex_lock(&net->lock);
    while (net->task[at] != t)
        at++;
    memmove(&net->task[at], &net->task[at + 1],
            (size_t)(--net->n_tasks - at) * sizeof(net->task[0]));
    pthread_mutex_unlock(&net->lock);
}

ch_status ch__task_start(ch_net *net, const ch_task_options *opt, ch_task **out)
{
    ch_task  *t;
    ch_status st = check_options(opt);

    if (st != CH_OK)
        return st;
    t = ch__alloc_aligned(net->task_bytes);
    if (t == NULL)
        return ch__fail_memory("task");
    task_init(t, net, opt);
    st = list_add(net, t);
    if (st == CH_OK) {
        st = net->driver->start(t);
        if (st == CH_OK) {
            *out = t;
            return CH_OK;
        }
        list_remove(net, t);
    }
    task_free(t);
    return st;
}

/* ---- incarnations ---- */

uint64_t ch__incarnation_number(int64_t ms, uint64_t random, uint64_t last)
{
    enum { RANDOM_BITS = 20 };
    uint64_t number = (uint64_t)ms << RANDOM_BITS | (random & ((1u << RANDOM_BITS) - 1));

    return number > last ? number : last + 1;
}

/* Drops the frames and endings that were not sent or delivered. */
static void clear_outbox(ch_task *t)
{
    for (int i = 0; i < t->outbox.n; i++)
        ch__frame_drop(&t->outbox.item[i].frame);
    t->outbox.n = t->n_ended = 0;
}

static void drop_work(ch_task *t)
{
    ch_task_work w;

    while (ch__work_next(t, &w))
        if (w.drop != NULL)
            w.drop(w.arg);
}

static void drop_pending(ch_task *t)
{
    for (int i = 0; i < t->table.cap; i++)
        if (t->table.entry[i].kind != CH_PENDING_FREE)
            ch__pending_drop(&t->table, &t->table.entry[i]);
    for (int i = 0; i < t->n_links; i++) {
        t->link[i]->n_calls = 0;
        t->link[i]->n_bytes = 0;
    }
}

void *ch__incarnation_end(ch_task *t)
{
    void *self = t->self;

    clear_outbox(t);
    t->net->wire->close(t);
    drop_pending(t);
    drop_work(t);
    t->is_alive = t->is_broken = false;
    t->self = NULL;
    return self;
}

/* Lets ch__net_find return the task. Must be called before the task sends a frame, because the
 * callee may call back at once. */
static void publish(ch_task *t)
{
    pthread_mutex_lock(&t->net->lock);
    t->is_started = true;
    pthread_mutex_unlock(&t->net->lock);
}

ch_status ch__incarnation_begin(ch_task *t)
{
    ch_status st;

    if (!ch__outbox_reserve(t))
        return ch__fail_memory("task");
    t->incarnation = t->net->driver->incarnation(t->net);
    st = t->net->wire->listen(t);
    if (st != CH_OK)
        return st;
    t->is_alive = true;
    t->now = t->net->driver->now(t);
    st = t->opt.make(t->opt.arg, t, t->incarnation, &t->outbox, &t->self);
    if (st == CH_OK && t->is_broken) {
        t->opt.ops->close(t->self);
        st = ch__fail_memory("initial timers and work of a task");
    }
    if (st != CH_OK) {
        t->self = NULL;
        ch__incarnation_end(t);
        return ch__fail_at(st, "task %s", t->name);
    }
    publish(t);
    ch__outbox_flush(&t->outbox);
    return CH_OK;
}

/* ---- links ---- */

ch_link *ch__task_link(ch_task *t, const char *peer)
{
    ch_link *l;

    for (int i = 0; i < t->n_links; i++)
        if (strcmp(t->link[i]->name, peer) == 0)
            return t->link[i];
    if (strlen(peer) >= sizeof(l->name) ||
        !ch__grow((void **)&t->link, &t->cap_links, t->n_links + 1, sizeof(l)))
        return NULL;
    l = ch__calloc(1, sizeof(*l));
    if (l == NULL)
        return NULL;
    l->task = t;
    memcpy(l->name, peer, strlen(peer) + 1);
    if (t->net->wire->connect(l) != CH_OK) {
        ch__free(l);
        return NULL;
    }
    t->link[t->n_links++] = l;
    return l;
}

int ch__link_calls(const ch_link *l)
{
    int     calls;
    int64_t bytes;

    l->task->net->wire->room(l, &calls, &bytes);
    return calls > l->n_calls && (bytes > l->n_bytes || l->n_calls == 0) ? calls - l->n_calls
                                                                         : 0;
}

int64_t ch__link_bytes(const ch_link *l)
{
    int     calls;
    int64_t bytes;

    l->task->net->wire->room(l, &calls, &bytes);
    return calls > l->n_calls && bytes > l->n_bytes ? bytes - l->n_bytes : 0;
}

const char *ch__link_name(const ch_link *l)
{
    return l->name;
}

/* ---- functions that the driver implements ---- */

const char *ch__task_name(const ch_task *t)
{
    return t->name;
}

void *ch__task_self(ch_task *t)
{
    return t->self;
}

uint64_t ch__task_incarnation(ch_task *t)
{
    return t->incarnation;
}

ch_outbox *ch__task_enter(ch_task *t)
{
    t->net->driver->enter(t);
    return &t->outbox;
}

void ch__task_leave(ch_task *t)
{
    t->net->driver->leave(t);
}

ch_status ch__task_wait(ch_task *t, bool (*is_done)(void *arg), void *arg, int64_t limit_ms,
                        const char *whom)
{
    return t->net->driver->wait(t, is_done, arg, limit_ms, whom);
}

int64_t ch__task_now(const ch_task *t)
{
    return t->net->driver->now(t);
}

void ch__task_kill(ch_task *t)
{
    t->net->driver->kill(t);
}

ch_status ch__task_restart(ch_task *t)
{
    return t->net->driver->restart(t);
}
