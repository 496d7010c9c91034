/* net/sim.c -- the simulator: all tasks on one thread, with a virtual clock and random faults.
 *
 * A `sim` is a net, a `sim_task` a task. sim.c is both the wire and the driver. Tests create it
 * with ch__net_sim, and move the clock with ch__sim_step, ch__sim_run_until or ch__task_wait.
 *
 * Future events are in two places. A heap, ordered by (time, sequence), holds frames, broken
 * links and functions of ch__sim_at. Each task has its own next time: a timer, the end of its
 * work, or an ending to be delivered. The earliest event is executed next. At equal times the
 * heap comes first, then the tasks in the order in which they were started.
 *
 * Two tasks that call each other have a connection, which begins with the first call and has a
 * slot of the wire (slots.h). It ends when a task ends, and when a test breaks it. Both tasks
 * notice it later: their calls over it are lost, and the calls that they received by it are
 * cancelled. Frames that were sent before may still arrive. Replies to these are ignored.
 *
 * Invariants:
 *   1. Every random number is a function of the seed and a counter, and nothing depends on an
 *      address or a real clock. So a seed replays exactly, and gives the same ch__sim_hash.
 *   2. There is no lock, because there is one thread. is_locked marks the task whose lock a
 *      driver would hold, for assertions.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <string.h>

#include "base/config.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "net/frame.h"

static const int64_t ns_per_us = 1000, ns_per_ms = 1000000;

typedef struct sim_task {
    ch_task      task; /* must be first */
    bool         is_locked;
    bool         is_working; /* `work` runs until work_until */
    ch_task_work work;
    int64_t      work_until;
    int64_t      endings_at;  /* time at which the endings are delivered; INT64_MAX: unset */
    uint32_t     slow_method; /* ch__sim_slow: calls of this method take slow_ns */
    int64_t      slow_ns, busy_until; /* 0: not slow; end of the received calls */
} sim_task;

typedef enum sim_event_kind { SIM_FRAME, SIM_BREAK, SIM_FUNCTION } sim_event_kind;

/* An event of the heap. */
typedef struct sim_event {
    int64_t        at;
    uint64_t       sequence;
    sim_event_kind kind;
    sim_task      *from, *to; /* NULL in a SIM_FUNCTION */
    ch_frame       frame;     /* SIM_BREAK: `back` is the connection that has ended */
    uint64_t       before;    /* SIM_BREAK: ends calls made before this sequence of the table */
    bool           is_queued; /* a slow task handles the call, or calls before it */
    void (*fn)(void *arg);
    void *arg;
} sim_event;

/* The connection in a slot: the latest, if it has ended. */
typedef struct sim_connection {
    ch_task       *a, *b;
    ch_return_path back;
    bool           is_open;
} sim_connection;

/* The two ends of a network partition. */
typedef struct cut {
    char a[64], b[64];
} cut;

typedef struct sim {
    ch_net          net; /* must be first */
    ch_net_wire     wire;
    ch_sim_options  opt;
    int64_t         now;
    uint64_t        n_drawn, n_begun, sequence, hash;
    uint64_t        last_incarnation;
    sim_event      *heap;
    int             n_heap, cap_heap;
    cut            *cuts;
    int             n_cuts, cap_cuts;
    sim_connection *connection; /* by slot */
    int             n_connections, cap_connections;
} sim;

static sim *sim_of(const ch_task *t)
{
    return (sim *)(void *)t->net;
}

static sim_task *sim_task_of(ch_task *t)
{
    return (sim_task *)(void *)t;
}

/* ---- random numbers ---- */

/* Returns number n of the sequence of a seed: splitmix64. */
static uint64_t random_of(uint64_t seed, uint64_t n)
{
    uint64_t z = seed * 0xd1342543de82ef95u + n * 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Returns the next random number. */
static uint64_t draw(sim *s)
{
    return random_of(s->opt.seed, ++s->n_drawn);
}

static int64_t draw_below(sim *s, int64_t n)
{
    return n > 0 ? (int64_t)(((unsigned __int128)draw(s) * (uint64_t)n) >> 64) : 0;
}

static bool draw_chance(sim *s, int in_a_thousand)
{
    return in_a_thousand > 0 && draw_below(s, 1000) < in_a_thousand;
}

static int64_t draw_delay(sim *s)
{
    int64_t lowest = s->opt.least_delay_us * ns_per_us,
            highest = s->opt.most_delay_us * ns_per_us;
    int64_t delay = lowest + draw_below(s, highest - lowest + 1);

    return draw_chance(s, s->opt.late) ? delay * (1 + draw_below(s, 100)) : delay;
}

/* ---- the hash of all events ---- */

/* Adds an event to the hash. */
static void record(sim *s, const char *label, const ch_task *t, uint64_t number)
{
    s->hash = ch__hash(s->hash, &s->now, sizeof(s->now));
    s->hash = ch__hash(s->hash, label, strlen(label));
    if (t != NULL)
        s->hash = ch__hash(s->hash, t->name, strlen(t->name));
    s->hash = ch__hash(s->hash, &number, sizeof(number));
}

static void record_frame(sim *s, const ch_task *to, const ch_frame *f)
{
    const ch_message *p = f->message;

    record(s, "frame", to, f->call);
    record(s, f->name, NULL, (uint64_t)f->kind << 8 | (uint64_t)f->ending);
    if (p == NULL)
        return;
    record(s, "message", NULL, (uint64_t)p->method << 32 | (uint64_t)p->n_tensors);
    s->hash = ch__hash(s->hash, p->bytes, p->n_bytes);
}

/* ---- the heap ---- */

static bool is_before(const sim_event *a, const sim_event *b)
{
    return a->at < b->at || (a->at == b->at && a->sequence < b->sequence);
}

/* Returns false if memory is exhausted; the caller then keeps the frame. */
static bool heap_add(sim *s, sim_event c)
{
    int i = s->n_heap;

    if (!ch__grow((void **)&s->heap, &s->cap_heap, s->n_heap + 1, sizeof(sim_event)))
        return false;
    c.sequence = s->sequence++;
    for (s->n_heap++; i > 0 && is_before(&c, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = c;
    return true;
}

static sim_event heap_pop(sim *s)
{
    sim_event first = s->heap[0], last = s->heap[--s->n_heap];
    int       i = 0;

    for (int child; (child = 2 * i + 1) < s->n_heap; i = child) {
        if (child + 1 < s->n_heap && is_before(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!is_before(&s->heap[child], &last))
            break;
        s->heap[i] = s->heap[child];
    }
    s->heap[i] = last;
    return first;
}

/* ---- the wire ---- */

static int find_cut(const sim *s, const char *a, const char *b)
{
    for (int i = 0; i < s->n_cuts; i++)
        if ((strcmp(s->cuts[i].a, a) == 0 && strcmp(s->cuts[i].b, b) == 0) ||
            (strcmp(s->cuts[i].a, b) == 0 && strcmp(s->cuts[i].b, a) == 0))
            return i;
    return -1;
}

/* Encodes the frame as bytes and decodes it again, as a network would. */
static ch_status recode(ch_frame *f)
{
    ch_frame_reader r = {.max_bytes = INT64_MAX, .has_checksums = true};
    void           *bytes;
    size_t          size, used = 0;
    bool            is_whole = false;
    ch_status       st = ch__frame_encode(f, true, &bytes, &size);

    if (st != CH_OK)
        return st;
    st = ch__frame_read(&r, bytes, size, &used, &is_whole);
    ch__free(bytes);
    if (st == CH_OK && (!is_whole || used != size))
        st =
            ch__fail(CH_INTERNAL, "sim: the decoder did not read the encoded frame to its end");
    if (st != CH_OK) {
        ch__frame_reader_drop(&r);
        return st;
    }
    r.frame.name = f->name;
    r.frame.role = f->role;
    r.frame.back = f->back;
    ch__frame_drop(f);
    *f = r.frame;
    r.frame = (ch_frame){0};
    ch__frame_reader_drop(&r);
    return CH_OK;
}

static ch_link *link_between(ch_task *t, const ch_task *peer)
{
    for (int i = 0; i < t->n_links; i++)
        if (strcmp(t->link[i]->name, peer->name) == 0)
            return t->link[i];
    return NULL;
}

/* Records that bulk bytes move over the connection of two tasks until the time `at`. */
static void bulk_moves(ch_task *a, ch_task *b, ch_return_path back, int64_t at)
{
    ch_link *ab = link_between(a, b), *ba = link_between(b, a);

    if (ab != NULL)
        ch__link_moved(ab, at);
    if (ba != NULL)
        ch__link_moved(ba, at);
    ch__back_moved(back, at);
}

/* Returns how long a frame is on its way because of its size. Its bytes move until then. */
static int64_t transfer_time(const sim *s, const ch_frame *f)
{
    int64_t bytes = f->message != NULL ? ch__message_size(f->message) : 0;

    return s->opt.bytes_per_ms > 0 && bytes >= (int64_t)CH_BULK_BYTES
               ? bytes * ns_per_ms / s->opt.bytes_per_ms
               : 0;
}

/* Counts a reply as unsent, or no longer so (sign -1). */
static void count_reply(sim *s, const ch_frame *f, int sign)
{
    ch_slot *slot = ch__slots_at(&s->wire.slots, f->back);

    if (f->kind == CH_FRAME_REPLY && f->message != NULL && slot != NULL)
        atomic_fetch_add(&slot->reply_bytes, sign * ch__message_size(f->message));
}

/* Puts a frame on the heap with a random delay, or drops it. Takes the frame over. */
static void send_copy(sim *s, ch_task *from, ch_task *to, ch_frame f)
{
    int64_t transfer;

    if (find_cut(s, from->name, to->name) >= 0 || draw_chance(s, s->opt.drop)) {
        record(s, "dropped", to, f.call);
        ch__frame_drop(&f);
        return;
    }
    if (s->opt.encode && recode(&f) != CH_OK) {
        ch__log(CH_LOG_ERROR, "net", "frame from %s to %s dropped: %s", from->name, to->name,
                ch_error_message());
        ch__frame_drop(&f);
        return;
    }
    transfer = transfer_time(s, &f);
    if (!heap_add(s, (sim_event){.at = s->now + draw_delay(s) + transfer,
                                 .kind = SIM_FRAME,
                                 .from = sim_task_of(from),
                                 .to = sim_task_of(to),
                                 .frame = f})) {
        ch__frame_drop(&f);
        return;
    }
    count_reply(s, &f, 1);
    if (transfer > 0)
        bulk_moves(from, to, f.back, s->now + transfer);
}

static void send(sim *s, ch_task *from, ch_task *to, ch_frame *f)
{
    f->name = from->name;
    f->role = from->role;
    if (draw_chance(s, s->opt.twice)) {
        ch_frame other = *f;

        if (f->message != NULL)
            ch__message_ref(f->message);
        other.fault = f->fault != NULL ? ch__fault_copy(f->fault) : NULL;
        send_copy(s, from, to, other);
    }
    send_copy(s, from, to, *f);
}

/* ---- connections ---- */

/* Returns the open connection between two tasks, or NULL. */
static sim_connection *find_connection(const sim *s, const ch_task *a, const ch_task *b)
{
    for (int i = 0; i < s->n_connections; i++) {
        sim_connection *c = &s->connection[i];

        if (c->is_open && ((c->a == a && c->b == b) || (c->a == b && c->b == a)))
            return c;
    }
    return NULL;
}

/* Opens a connection. Returns NULL if memory is exhausted. */
static sim_connection *connect(sim *s, ch_task *a, ch_task *b)
{
    ch_return_path  back;
    sim_connection *c;

    if (!ch__grow((void **)&s->connection, &s->cap_connections, s->n_connections + 1,
                  sizeof(*c)) ||
        !ch__slots_add(&s->wire.slots, &s->wire, NULL, &back))
        return NULL;
    if ((int)back.slot == s->n_connections)
        s->n_connections++;
    c = &s->connection[back.slot];
    *c = (sim_connection){a, b, back, true};
    return c;
}

/* Tells a task, after a delay, that its connection with `peer` has ended. */
static void announce_break(sim *s, ch_task *t, ch_task *peer, ch_return_path back)
{
    if (t->is_alive)
        heap_add(s, (sim_event){.at = s->now + draw_delay(s),
                                .kind = SIM_BREAK,
                                .from = sim_task_of(peer),
                                .to = sim_task_of(t),
                                .frame = {.back = back},
                                .before = t->table.sequence});
}

static ch_return_path disconnect(sim *s, sim_connection *c)
{
    c->is_open = false;
    bulk_moves(c->a, c->b, c->back, 0);
    ch__slots_end(&s->wire.slots, c->back);
    return c->back;
}

static ch_status sim_connect(ch_net_wire *w, ch_link *l, const char *address)
{
    const ch_task *peer = ch__net_find(w->net, l->name);

    (void)address;
    if (peer == NULL)
        return CH_NOT_FOUND;
    ch__link_set_credit(l, peer->opt.calls, peer->opt.bytes);
    return CH_OK;
}

/* Returns the path of a link's calls, over the connection to the peer. Returns false if memory
 * is exhausted. */
static bool path_of(ch_link *l, ch_task **peer, ch_return_path *back)
{
    sim            *s = sim_of(l->task);
    sim_connection *c;

    *peer = ch__net_find(l->task->net, l->name);
    c = find_connection(s, l->task, *peer);
    if (c == NULL)
        c = connect(s, l->task, *peer);
    if (c != NULL)
        *back = c->back;
    return c != NULL;
}

static ch_ending sim_call(ch_link *l, ch_frame *f)
{
    ch_task *peer;

    if (!path_of(l, &peer, &f->back))
        return CH_ENDED_LOST;
    send(sim_of(l->task), l->task, peer, f);
    return CH_ENDED_OK;
}

static void sim_cancel(ch_link *l, uint64_t call, int64_t bytes)
{
    ch_task *peer;
    ch_frame f = {.kind = CH_FRAME_CANCEL, .call = call, .from = l->task->incarnation};

    (void)bytes;
    if (path_of(l, &peer, &f.back))
        send(sim_of(l->task), l->task, peer, &f);
}

static void sim_reply(ch_task *t, ch_return_path back, ch_frame *f)
{
    sim                  *s = sim_of(t);
    const sim_connection *c = &s->connection[back.slot];

    if (ch__slots_at(&s->wire.slots, back) == NULL) {
        record(s, "stale", t, f->call);
        ch__frame_drop(f);
        return;
    }
    f->back = back;
    send(s, t, c->a == t ? c->b : c->a, f);
}

static void sim_close_link(ch_link *l)
{
    (void)l;
}

/* Ends the connections of a task that has ended, each with a probability of 70 %, as if the
 * system closed them. The others stay open, as if the machine lost its power. */
static void sim_close(ch_net_wire *w, ch_task *t)
{
    sim *s;

    if (t == NULL) {
        ch__slots_free(&w->slots);
        return;
    }
    s = sim_of(t);
    for (int i = 0; i < s->n_connections; i++) {
        sim_connection *c = &s->connection[i];

        if (!c->is_open || (c->a != t && c->b != t) || !draw_chance(s, 700))
            continue;
        announce_break(s, c->a == t ? c->b : c->a, t, disconnect(s, c));
    }
}

/* ---- the task's lock ---- */

static void task_lock(sim_task *t)
{
    assert(!t->is_locked);
    t->is_locked = true;
    t->task.now = sim_of(&t->task)->now;
    ch__outbox_reserve(&t->task);
}

static void incarnation_end(sim_task *t)
{
    void *self;

    record(sim_of(&t->task), "ended", &t->task, t->task.incarnation);
    self = ch__incarnation_end(&t->task);
    if (t->is_working && t->work.drop != NULL)
        t->work.drop(t->work.arg);
    t->is_working = false;
    t->endings_at = INT64_MAX;
    t->busy_until = 0;
    t->task.opt.ops->close(self);
}

/* Flushes the outbox, begins the next work, and releases the task. Endings are
 * delivered 1 us later, so that the clock advances even if a task repeats a call for
 * which there is no room. */
static void task_unlock(sim_task *t)
{
    sim *s = sim_of(&t->task);

    ch__outbox_flush(&t->task.outbox);
    if (t->task.is_broken) {
        ch__log(CH_LOG_ERROR, "net",
                "task %s ends: out of memory for a timer, for work or for the end of a call",
                t->task.name);
        incarnation_end(t);
    }
    if (t->task.n_ended > 0 && t->endings_at == INT64_MAX)
        t->endings_at = s->now + ns_per_us;
    if (!t->is_working && ch__work_next(&t->task, &t->work)) {
        t->is_working = true;
        t->work_until = s->now + 1 + draw_below(s, s->opt.work_us * ns_per_us);
    }
    t->is_locked = false;
}

/* ---- events ---- */

/* Drops a frame that arrives at a task that is not alive. With a probability of 70 % a call is
 * replied to as lost, as a system does if no process listens. */
static void arrive_at_dead_task(sim *s, sim_event *c)
{
    if (c->frame.kind == CH_FRAME_CALL && draw_chance(s, 700))
        ch__call_end_lost(&c->to->task, &c->frame);
    ch__frame_drop(&c->frame);
}

/* Queues a call of a slow task (ch__sim_slow), which handles its calls sequentially. Returns
 * true if the call is on the heap again, at the time when the task has finished it. */
static bool queue_if_busy(sim *s, sim_event *c)
{
    sim_task *to = c->to;

    if (to->slow_ns == 0 || c->frame.kind != CH_FRAME_CALL || c->is_queued)
        return false;
    to->busy_until = to->busy_until > s->now ? to->busy_until : s->now;
    if (c->frame.message->method == to->slow_method)
        to->busy_until += to->slow_ns;
    c->is_queued = true;
    c->at = to->busy_until;
    return heap_add(s, *c);
}

/* Handles an input in a turn of the task, if it is alive. */
static void take(sim_task *t, ch_input *in)
{
    if (!t->task.is_alive)
        return;
    task_lock(t);
    ch__task_take(&t->task, in);
    task_unlock(t);
}

/* Puts a call off for a while if its connection has too many calls or replies pending. */
static bool wait_for_room(sim *s, sim_event *c)
{
    if (c->frame.kind != CH_FRAME_CALL ||
        ch__return_path_may_deliver(&c->to->task, c->frame.back))
        return false;
    c->at = s->now + 100 * ns_per_us;
    return heap_add(s, *c);
}

static void pass_frame(sim *s, sim_event *c)
{
    ch_link *l = link_between(&c->to->task, &c->from->task);

    record_frame(s, &c->to->task, &c->frame);
    if (l != NULL && c->frame.from != 0)
        ch__link_received(l, s->now);
    if (c->frame.kind == CH_FRAME_CALL)
        ch__slots_deliver(&s->wire.slots, c->frame.back);
    take(c->to, &(ch_input){.frame = c->frame});
}

static void arrive_frame(sim *s, sim_event *c)
{
    ch_task *to = &c->to->task;

    count_reply(s, &c->frame, -1);

    if (find_cut(s, c->from->task.name, to->name) >= 0) {
        record(s, "cut", to, c->frame.call);
        ch__frame_drop(&c->frame);
    } else if (!to->is_alive) {
        arrive_at_dead_task(s, c);
    } else if (wait_for_room(s, c) || queue_if_busy(s, c)) {
        record(s, "waits", to, c->frame.call);
    } else {
        pass_frame(s, c);
    }
}

static void break_link(sim *s, const sim_event *c)
{
    ch_task *t = &c->to->task;

    if (!t->is_alive)
        return;
    record(s, "broke", t, c->before);
    for (int i = 0; i < t->n_links; i++)
        if (strcmp(t->link[i]->name, c->from->task.name) == 0)
            take(c->to, &(ch_input){.kind = CH_INPUT_BROKE, .broke = {t->link[i], c->before}});
    take(c->to, &(ch_input){.kind = CH_INPUT_LEFT, .left = c->frame.back});
}

static void run_heap_event(sim *s)
{
    sim_event c = heap_pop(s);

    s->now = c.at > s->now ? c.at : s->now;
    if (c.kind == SIM_FRAME)
        arrive_frame(s, &c);
    else if (c.kind == SIM_BREAK)
        break_link(s, &c);
    else
        c.fn(c.arg);
}

/* Returns the time of the task's next event that is not on the heap, or INT64_MAX. */
static int64_t task_next_time(const sim_task *t)
{
    int64_t at = INT64_MAX;

    if (!t->task.is_alive)
        return at;
    at = ch__min(at, ch__task_next_timer(&t->task));
    if (t->task.n_ended > 0)
        at = ch__min(at, t->endings_at);
    if (t->is_working)
        at = ch__min(at, t->work_until);
    return at;
}

static void run_task_event(sim *s, sim_task *t)
{
    record(s, "own", &t->task, (uint64_t)t->task.n_ended << 1 | t->is_working);
    task_lock(t);
    if (t->is_working && t->work_until <= s->now) {
        ch_task_work w = t->work;

        w.run(w.arg);
        t->is_working = false;
        ch__work_end(&t->task, &w);
    } else if (t->task.n_ended > 0 && t->endings_at <= s->now) {
        t->endings_at = INT64_MAX;
        ch__task_deliver_endings(&t->task);
    } else {
        ch__task_run_timers(&t->task);
    }
    task_unlock(t);
}

/* Returns the task with the earliest event of its own, and that time. Returns NULL
 * if there is none. */
static sim_task *next_task(const sim *s, int64_t *at)
{
    sim_task *first = NULL;

    *at = INT64_MAX;
    for (int i = 0; i < s->net.n_tasks; i++) {
        sim_task *t = sim_task_of(s->net.task[i]);
        int64_t   next = task_next_time(t);

        if (next < *at) {
            first = t;
            *at = next;
        }
    }
    return first;
}

static int64_t next_time(const sim *s)
{
    int64_t at;

    next_task(s, &at);
    return s->n_heap > 0 ? ch__min(at, s->heap[0].at) : at;
}

static bool step(sim *s)
{
    int64_t   at;
    sim_task *t = next_task(s, &at);

    if (s->n_heap > 0 && s->heap[0].at <= at) {
        run_heap_event(s);
        return true;
    }
    if (t == NULL)
        return false;
    s->now = at > s->now ? at : s->now;
    run_task_event(s, t);
    return true;
}

/* ---- the driver ---- */

static ch_status sim_start(ch_task *task)
{
    sim_task *t = sim_task_of(task);
    ch_status st;

    t->endings_at = INT64_MAX;
    t->is_locked = true;
    st = ch__incarnation_begin(task);
    task_unlock(t);
    return st;
}

static void sim_enter(ch_task *t)
{
    task_lock(sim_task_of(t));
}

static void sim_leave(ch_task *t)
{
    task_unlock(sim_task_of(t));
}

static ch_status sim_wait(ch_task *t, bool (*is_done)(void *arg), void *arg, int64_t limit_ms,
                          const char *whom)
{
    sim      *s = sim_of(t);
    int64_t   ms = limit_ms > 0 ? limit_ms : ch__config()->wait_limit_ms;
    int64_t   limit = s->now + ms * ns_per_ms;
    uint64_t  incarnation = t->incarnation;
    ch_status st = CH_OK;

    while (st == CH_OK && !is_done(arg)) {
        int64_t next;

        task_unlock(sim_task_of(t));
        next = next_time(s);
        if (!t->is_alive || t->incarnation != incarnation)
            st =
                ch__fail(CH_UNAVAILABLE, "task %s ended while it waited for %s", t->name, whom);
        else if (next == INT64_MAX)
            st = ch__fail(CH_FAILED_PRECONDITION,
                          "task %s: waits for %s, but the simulation has no more events",
                          t->name, whom);
        else if (next > limit)
            st = ch__fail(CH_DEADLINE_EXCEEDED, "task %s: waited %lld ms for %s", t->name,
                          (long long)ms, whom);
        if (next > limit && st == CH_DEADLINE_EXCEEDED)
            s->now = limit;
        else if (st == CH_OK)
            step(s);
        task_lock(sim_task_of(t));
    }
    return st;
}

static int64_t sim_now(const ch_task *t)
{
    return sim_of(t)->now;
}

/* The random bits are a sequence of their own, so that they do not depend on other draws. The
 * simulation begins on a day in 2023. */
static uint64_t sim_incarnation(ch_net *net)
{
    static const int64_t first_ms = 1700000000000;
    sim                 *s = (sim *)(void *)net;

    s->last_incarnation =
        ch__incarnation_number(first_ms + s->now / ns_per_ms,
                               random_of(~s->opt.seed, ++s->n_begun), s->last_incarnation);
    return s->last_incarnation;
}

static void sim_kill(ch_task *t)
{
    assert(!sim_task_of(t)->is_locked);
    if (t->is_alive)
        incarnation_end(sim_task_of(t));
}

static ch_status sim_restart(ch_task *task)
{
    sim_task *t = sim_task_of(task);
    ch_status st;

    assert(!t->is_locked);
    if (task->is_alive)
        return ch__fail(CH_FAILED_PRECONDITION,
                        "task %s: cannot restart, because it is alive; kill it first",
                        task->name);
    record(sim_of(task), "restart", task, task->incarnation);
    t->is_locked = true;
    st = ch__incarnation_begin(task);
    task_unlock(t);
    return st;
}

static void sim_free(ch_net *net)
{
    sim *s = (sim *)(void *)net;

    for (int i = 0; i < net->n_tasks; i++)
        if (net->task[i]->is_alive)
            incarnation_end(sim_task_of(net->task[i]));
    for (int i = 0; i < s->n_heap; i++)
        ch__frame_drop(&s->heap[i].frame);
    ch__free(s->heap);
    ch__free(s->cuts);
    ch__free(s->connection);
    ch__net_close(net);
    ch__free(s);
}

static const ch_wire_ops wire = {.connect = sim_connect,
                                 .call = sim_call,
                                 .cancel = sim_cancel,
                                 .reply = sim_reply,
                                 .close_link = sim_close_link,
                                 .close = sim_close};

static const ch_driver_ops driver = {.start = sim_start,
                                     .enter = sim_enter,
                                     .leave = sim_leave,
                                     .wait = sim_wait,
                                     .now = sim_now,
                                     .incarnation = sim_incarnation,
                                     .kill = sim_kill,
                                     .restart = sim_restart,
                                     .free = sim_free};

/* ---- functions for tests ---- */

static void set_options(sim *s, const ch_sim_options *opt)
{
    s->opt = *opt;
    if (opt->least_delay_us == 0 && opt->most_delay_us == 0) {
        s->opt.least_delay_us = 1;
        s->opt.most_delay_us = 100;
    }
    if (s->opt.most_delay_us < s->opt.least_delay_us)
        s->opt.most_delay_us = s->opt.least_delay_us;
    if (opt->work_us == 0)
        s->opt.work_us = 1000;
}

ch_status ch__net_sim(const ch_sim_options *opt, ch_net **out)
{
    sim      *s = ch__calloc(1, sizeof(*s));
    ch_status st = s != NULL ? ch__net_init(&s->net) : ch__fail_memory("net");

    if (st != CH_OK) {
        ch__free(s);
        return st;
    }
    s->wire.ops = &wire;
    s->wire.reaches_names = s->wire.counts_calls = true;
    ch__net_add_wire(&s->net, &s->wire);
    s->net.driver = &driver;
    s->net.task_bytes = sizeof(sim_task);
    s->hash = CH_HASH_START;
    set_options(s, opt != NULL ? opt : &(ch_sim_options){0});
    *out = &s->net;
    return CH_OK;
}

static sim *as_sim(ch_net *net)
{
    assert(net->driver == &driver);
    return (sim *)(void *)net;
}

bool ch__sim_step(ch_net *net)
{
    return step(as_sim(net));
}

void ch__sim_run_until(ch_net *net, int64_t now)
{
    sim *s = as_sim(net);

    while (next_time(s) <= now)
        step(s);
    s->now = now > s->now ? now : s->now;
}

int64_t ch__sim_now(const ch_net *net)
{
    return ((const sim *)(const void *)net)->now;
}

void ch__sim_cut(ch_net *net, const char *a, const char *b, bool is_cut)
{
    sim *s = as_sim(net);
    int  i = find_cut(s, a, b);

    if (i >= 0 && !is_cut)
        s->cuts[i] = s->cuts[--s->n_cuts];
    if (i >= 0 || !is_cut ||
        !ch__grow((void **)&s->cuts, &s->cap_cuts, s->n_cuts + 1, sizeof(cut)))
        return;
    s->cuts[s->n_cuts] = (cut){{0}, {0}};
    memcpy(s->cuts[s->n_cuts].a, a, strnlen(a, sizeof(s->cuts->a) - 1));
    memcpy(s->cuts[s->n_cuts++].b, b, strnlen(b, sizeof(s->cuts->b) - 1));
}

void ch__sim_break(ch_net *net, const char *a, const char *b)
{
    sim            *s = as_sim(net);
    ch_task        *x = ch__net_find(net, a), *y = ch__net_find(net, b);
    sim_connection *c = find_connection(s, x, y);
    ch_return_path  back;

    if (c == NULL)
        return;
    back = disconnect(s, c);
    announce_break(s, x, y, back);
    announce_break(s, y, x, back);
}

void ch__sim_jump(ch_net *net, int64_t ns)
{
    as_sim(net)->now += ns;
}

void ch__sim_slow(ch_net *net, const char *task, uint32_t method, int64_t ns)
{
    ch_task *t = ch__net_find(net, task);

    if (t == NULL)
        return;
    sim_task_of(t)->slow_method = method;
    sim_task_of(t)->slow_ns = ns;
}

void ch__sim_faults(ch_net *net, const ch_sim_options *opt)
{
    sim     *s = as_sim(net);
    uint64_t seed = s->opt.seed;

    set_options(s, opt != NULL ? opt : &(ch_sim_options){0});
    s->opt.seed = seed;
}

ch_status ch__sim_at(ch_net *net, int64_t when, void (*fn)(void *arg), void *arg)
{
    return heap_add(as_sim(net),
                    (sim_event){.at = when, .kind = SIM_FUNCTION, .fn = fn, .arg = arg})
               ? CH_OK
               : ch__fail_memory("event of a simulation");
}

uint64_t ch__sim_hash(const ch_net *net)
{
    return ((const sim *)(const void *)net)->hash;
}

int64_t ch__sim_draw(ch_net *net, int64_t n)
{
    return draw_below(as_sim(net), n);
}
