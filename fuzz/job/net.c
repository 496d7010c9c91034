/* fuzz/job/net.c -- tasks without delays.
 *
 * An implementation of net/wire.h in a single thread. The struct `direct` holds a queue of
 * frames in flight and the time. direct_ask() delivers frames, work and timers until a call has
 * ended.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/net.h"

#include "base/mem.h"
#include "fuzz.h"
#include "net/wire.h"

enum { MOST_FRAMES = 64 };

static const int64_t ask_ns = 100000000;

typedef struct sent {
    ch_task *to;
    ch_frame frame;
} sent;

typedef struct direct {
    ch_net      net; /* must be first */
    ch_net_wire wire;
    int64_t     now;
    uint64_t    last_incarnation;
    sent        queue[MOST_FRAMES];
    int         first, n;
    uint64_t    n_asked;
    bool        has_ended;
    ch_ending   ending;
} direct;

static direct *direct_of(const ch_task *t)
{
    return (direct *)(void *)t->net;
}

/* ---- the wire ---- */

static bool push(direct *d, ch_task *to, const ch_frame *f)
{
    if (d->n == MOST_FRAMES)
        return false;
    d->queue[(d->first + d->n++) % MOST_FRAMES] = (sent){to, *f};
    return true;
}

static ch_status wire_connect(ch_net_wire *w, ch_link *l, const char *address)
{
    (void)address;
    if (ch__net_find(w->net, l->name) == NULL)
        return CH_NOT_FOUND;
    ch__link_set_credit(l, CH_LINK_CALLS, CH_LINK_BYTES);
    return CH_OK;
}

/* The slot of a return path: the place of the caller among the tasks. ASKER: direct_ask. */
enum { ASKER = UINT16_MAX };

static ch_return_path back_of(const ch_task *t)
{
    direct  *d = direct_of(t);
    uint32_t i = 0;

    while (d->net.task[i] != t)
        i++;
    return (ch_return_path){.wire = &d->wire, .slot = i};
}

static ch_ending wire_call(ch_link *l, ch_frame *f)
{
    ch_task *peer = ch__net_find(l->task->net, l->name);

    f->back = back_of(l->task);
    f->name = l->task->name;
    return peer != NULL && peer->is_alive && push(direct_of(l->task), peer, f) ? CH_ENDED_OK
                                                                               : CH_ENDED_LOST;
}

static void wire_cancel(ch_link *l, uint64_t call, int64_t bytes)
{
    ch_task *peer = ch__net_find(l->task->net, l->name);
    ch_frame f = {.kind = CH_FRAME_CANCEL,
                  .call = call,
                  .from = l->task->incarnation,
                  .back = back_of(l->task)};

    (void)bytes;
    if (peer != NULL)
        (void)push(direct_of(l->task), peer, &f);
}

/* Sends a reply to a task, or passes it to direct_ask. */
static void wire_answer(ch_task *t, ch_return_path back, ch_frame *f)
{
    direct *d = direct_of(t);

    if (back.slot != ASKER) {
        if (!push(d, d->net.task[back.slot], f))
            ch__frame_drop(f);
        return;
    }
    if (f->call == d->n_asked) {
        MUST(!d->has_ended);
        d->has_ended = true;
        d->ending = f->ending;
    }
    ch__frame_drop(f);
}

static void wire_close_link(ch_link *l)
{
    (void)l;
}

static void wire_close(ch_net_wire *w, ch_task *t)
{
    (void)w;
    (void)t;
}

/* ---- turns ---- */

static void end_incarnation(ch_task *t)
{
    t->opt.ops->close(ch__incarnation_end(t));
}

/* Ends the handling of an event: sends messages, runs work and delivers ended calls, until
 * nothing is left. */
static void end_turn(ch_task *t)
{
    ch_task_work w;

    ch__outbox_flush(&t->outbox);
    while (t->is_alive && !t->is_broken && (t->n_work > 0 || t->n_ended > 0)) {
        if (ch__work_next(t, &w)) {
            w.run(w.arg);
            ch__work_end(t, &w);
        } else {
            ch__task_deliver_endings(t);
        }
        ch__outbox_flush(&t->outbox);
    }
    if (t->is_alive && t->is_broken)
        end_incarnation(t);
}

static void begin_turn(ch_task *t)
{
    t->now = direct_of(t)->now;
    ch__outbox_reserve(t);
}

static void deliver(direct *d)
{
    sent s = d->queue[d->first];

    d->first = (d->first + 1) % MOST_FRAMES;
    d->n--;
    if (!s.to->is_alive) {
        ch__frame_drop(&s.frame);
        return;
    }
    begin_turn(s.to);
    ch__task_take(s.to, &(ch_input){.frame = s.frame});
    end_turn(s.to);
}

/* Fires the first timer of any task up to `until`. Returns false if there is none. */
static bool pass_time(direct *d, int64_t until)
{
    ch_task *first = NULL;
    int64_t  at = until;

    for (int i = 0; i < d->net.n_tasks; i++) {
        ch_task *t = d->net.task[i];

        if (t->is_alive && ch__task_next_timer(t) <= at) {
            first = t;
            at = ch__task_next_timer(t);
        }
    }
    d->now = at > d->now ? at : d->now;
    if (first == NULL)
        return false;
    begin_turn(first);
    ch__task_run_timers(first);
    end_turn(first);
    return true;
}

ch_ending direct_ask(ch_task *to, ch_message *p)
{
    direct  *d = direct_of(to);
    ch_frame f = {.kind = CH_FRAME_CALL,
                  .call = ++d->n_asked,
                  .from = 1,
                  .timeout = ask_ns,
                  .message = p,
                  .name = "asker/0",
                  .back = {.wire = &d->wire, .slot = ASKER}};
    int64_t  until = d->now + ask_ns;

    d->has_ended = false;
    MUST(d->n == 0 && push(d, to, &f));
    while (d->n > 0 || (!d->has_ended && pass_time(d, until)))
        if (d->n > 0)
            deliver(d);
    return d->has_ended ? d->ending : CH_ENDED_TIMEOUT;
}

/* ---- the driver ---- */

static ch_status drive_start(ch_task *t)
{
    ch_status st = ch__incarnation_begin(t);

    if (st == CH_OK)
        end_turn(t);
    return st;
}

static int64_t drive_now(const ch_task *t)
{
    return direct_of(t)->now;
}

static uint64_t drive_incarnation(ch_net *net)
{
    direct *d = (direct *)(void *)net;

    return d->last_incarnation = ch__incarnation_number(d->now, 0, d->last_incarnation);
}

static void drive_free(ch_net *net)
{
    for (int i = 0; i < net->n_tasks; i++)
        if (net->task[i]->is_alive)
            end_incarnation(net->task[i]);
    ch__net_close(net);
    ch__free(net);
}

/* Starts a task again. It keeps its links and its memory. */
void direct_begin(ch_task *t)
{
    direct_of(t)->last_incarnation = 0;
    MUST(!t->is_alive && drive_start(t) == CH_OK);
}

void direct_end(ch_task *t)
{
    direct *d = direct_of(t);

    if (t->is_alive)
        end_incarnation(t);
    MUST(d->n == 0);
    d->now = 0;
}

ch_net *direct_net(void)
{
    static const ch_wire_ops   wire = {.connect = wire_connect,
                                       .call = wire_call,
                                       .cancel = wire_cancel,
                                       .reply = wire_answer,
                                       .close_link = wire_close_link,
                                       .close = wire_close};
    static const ch_driver_ops driver = {.start = drive_start,
                                         .now = drive_now,
                                         .incarnation = drive_incarnation,
                                         .free = drive_free};
    direct                    *d = ch__calloc(1, sizeof(*d));

    MUST(d != NULL && ch__net_init(&d->net) == CH_OK);
    d->wire = (ch_net_wire){.ops = &wire, .reaches_names = true};
    ch__net_add_wire(&d->net, &d->wire);
    d->net.driver = &driver;
    d->net.task_bytes = sizeof(ch_task);
    return &d->net;
}
