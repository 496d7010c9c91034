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

/* Releases the wire of a link. */
static void link_close(ch_link *l)
{
    if (l->wire != NULL)
        l->wire->ops->close_link(l);
    l->wire = NULL;
    ch__free(l->address);
    l->address = NULL;
}

static void task_free(ch_task *t)
{
    for (int i = 0; i < t->n_links; i++) {
        link_close(t->link[i]);
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
    for (int i = 0; i < net->n_wires; i++)
        net->wire[i]->ops->close(net->wire[i], NULL);
    for (int i = 0; i < net->n_book; i++)
        ch__free(net->book[i].address);
    ch__free(net->book);
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

/* ---- wires and addresses ---- */

void ch__net_add_wire(ch_net *net, ch_net_wire *w)
{
    assert(net->n_wires < CH_NET_WIRES && net->n_tasks == 0);
    w->net = net;
    net->wire[net->n_wires++] = w;
    if (w->ops->sleep != NULL)
        atomic_store(&net->sleeper, w);
}

static ch_book_entry *book_find(const ch_net *net, const char *name)
{
    for (int i = 0; i < net->n_book; i++)
        if (strcmp(net->book[i].name, name) == 0)
            return &net->book[i];
    return NULL;
}

/* Returns the entry of a task, added if need be, or NULL if memory is exhausted. */
static ch_book_entry *book_add(ch_net *net, const char *name)
{
    ch_book_entry *e = book_find(net, name);

    if (e != NULL)
        return e;
    if (!ch__grow((void **)&net->book, &net->cap_book, net->n_book + 1, sizeof(*e)))
        return NULL;
    e = &net->book[net->n_book++];
    memcpy(e->name, name, strlen(name) + 1);
    e->address = NULL;
    return e;
}

ch_status ch__net_set_address(ch_net *net, const char *task, const char *address)
{
    ch_book_entry *e;
    char          *copy = address != NULL ? ch__strdup(address) : NULL;

    if (strlen(task) >= sizeof(e->name)) {
        ch__free(copy);
        return ch__fail(CH_INVALID_ARGUMENT,
                        "address book: the name of a task has %zu characters (want at most "
                        "%zu)",
                        strlen(task), sizeof(e->name) - 1);
    }
    pthread_mutex_lock(&net->lock);
    e = address == NULL || copy != NULL ? book_add(net, task) : NULL;
    if (e != NULL) {
        char *old = e->address;

        e->address = copy;
        copy = old;
        atomic_fetch_add(&net->book_version, 1);
    }
    pthread_mutex_unlock(&net->lock);
    ch__free(copy);
    return e != NULL ? CH_OK : ch__fail_memory("address book");
}

/* Copies the address of a task; "": there is none. Returns NULL if memory is exhausted. The
 * caller must free it. */
static char *copy_address(ch_net *net, const char *name)
{
    const ch_book_entry *e;
    char                *address;

    pthread_mutex_lock(&net->lock);
    e = book_find(net, name);
    address = ch__strdup(e != NULL && e->address != NULL ? e->address : "");
    pthread_mutex_unlock(&net->lock);
    return address;
}

/* ---- roles ---- */

static const struct {
    ch_net_role role;
    const char *name;
} roles[] = {{CH_ROLE_COORDINATOR, "chief"},
             {CH_ROLE_WORKER, "worker"},
             {CH_ROLE_PS, "ps"},
             {CH_ROLE_EVALUATOR, "evaluator"}};
enum { N_ROLES = sizeof(roles) / sizeof(roles[0]) };

ch_net_role ch__role_of(const char *task)
{
    size_t n = strcspn(task, "/");

    for (int i = 0; i < N_ROLES; i++)
        if (strlen(roles[i].name) == n && memcmp(roles[i].name, task, n) == 0)
            return roles[i].role;
    return CH_ROLE_OTHER;
}

const char *ch__role_name(unsigned role)
{
    for (int i = 0; i < N_ROLES; i++)
        if (roles[i].role == role)
            return roles[i].name;
    return "other";
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
    t->role = ch__role_of(t->name);
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
        if (t->table.entry[i].kind == CH_PENDING_RECEIVED)
            ch__received_drop(t, &t->table.entry[i]);
        else if (t->table.entry[i].kind != CH_PENDING_FREE)
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
    for (int i = 0; i < t->net->n_wires; i++)
        t->net->wire[i]->ops->close(t->net->wire[i], t);
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

/* Connects a link by the first wire that reaches the peer. */
static bool link_connect(ch_link *l, const char *address)
{
    ch_net *net = l->task->net;

    ch__link_set_credit(l, CH_LINK_FIRST_CALLS, CH_LINK_FIRST_BYTES);
    for (int i = 0; i < net->n_wires; i++)
        if (net->wire[i]->ops->connect(net->wire[i], l, address) == CH_OK) {
            l->wire = net->wire[i];
            return true;
        }
    return false;
}

/* Ends the calls of a link whose peer has another address now. */
static void link_leave(ch_link *l)
{
    ch_input broke = {.kind = CH_INPUT_BROKE, .broke = {l, UINT64_MAX}};

    ch__outbox_flush(&l->task->outbox);
    ch__task_take(l->task, &broke);
    link_close(l);
}

bool ch__link_choose_wire(ch_link *l)
{
    unsigned version = atomic_load_explicit(&l->task->net->book_version, memory_order_acquire);
    char    *address;

    if (l->wire != NULL && (l->wire->reaches_names || l->book_version == version))
        return true;
    address = copy_address(l->task->net, l->name);
    if (address == NULL)
        return l->wire != NULL;
    l->book_version = version;
    if (l->wire != NULL && strcmp(l->address, address) == 0) {
        ch__free(address);
        return true;
    }
    if (l->wire != NULL)
        link_leave(l);
    if (link_connect(l, address))
        l->address = address;
    else
        ch__free(address);
    return l->wire != NULL;
}

bool ch__return_path_may_deliver(const ch_task *t, ch_return_path back)
{
    ch_slot *slot = ch__slots_at(&back.wire->slots, back);

    return slot == NULL ||
           (atomic_load_explicit(&slot->n_calls, memory_order_relaxed) < 2 * t->opt.calls &&
            atomic_load_explicit(&slot->reply_bytes, memory_order_relaxed) <= CH_BACK_BYTES);
}

void ch__link_received(ch_link *l, int64_t now)
{
    atomic_store_explicit(&l->received_at, now, memory_order_relaxed);
}

void ch__link_moved(ch_link *l, int64_t now)
{
    atomic_store_explicit(&l->moved_at, now, memory_order_relaxed);
}

void ch__back_moved(ch_return_path back, int64_t now)
{
    ch_slot *slot = ch__slots_at(&back.wire->slots, back);

    if (slot != NULL)
        atomic_store_explicit(&slot->moved_at, now, memory_order_relaxed);
}

int64_t ch__link_received_at(const ch_link *l)
{
    return atomic_load_explicit(&l->received_at, memory_order_relaxed);
}

void ch__link_set_credit(ch_link *l, int calls, int64_t bytes)
{
    atomic_store_explicit(&l->credit_calls, calls, memory_order_relaxed);
    atomic_store_explicit(&l->credit_bytes, bytes, memory_order_relaxed);
}

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
    t->link[t->n_links++] = l;
    (void)ch__link_choose_wire(l);
    return l;
}

/* Returns how many calls, and how many bytes in them, may be pending on the link: the credit of
 * the peer, less the room that the wire holds. */
static int room_of(ch_link *l, int64_t *bytes)
{
    int calls;

    if (l->wire == NULL || !l->wire->reaches_names)
        (void)ch__link_choose_wire(l);
    calls = atomic_load_explicit(&l->credit_calls, memory_order_relaxed) -
            atomic_load_explicit(&l->n_held, memory_order_relaxed);
    *bytes = atomic_load_explicit(&l->credit_bytes, memory_order_relaxed) -
             atomic_load_explicit(&l->held_bytes, memory_order_relaxed);
    return *bytes > 0 ? calls : 0;
}

bool ch__link_has_room(ch_link *l, int64_t bytes)
{
    int64_t max_bytes;
    int     calls = room_of(l, &max_bytes);

    return (l->n_calls < calls && (l->n_calls == 0 || l->n_bytes <= max_bytes - bytes)) ||
           !CH_KEEPS(CREDIT);
}

int ch__link_calls(ch_link *l)
{
    int64_t bytes;
    int     calls = room_of(l, &bytes);

    return calls > l->n_calls && (bytes > l->n_bytes || l->n_calls == 0) ? calls - l->n_calls
                                                                         : 0;
}

int64_t ch__link_bytes(ch_link *l)
{
    int64_t bytes;
    int     calls = room_of(l, &bytes);

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
