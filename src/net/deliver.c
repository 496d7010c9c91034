/* net/deliver.c -- delivers events to a task: received frames, expired timers, finished work.
 *
 * The drivers (threads.c, sim.c) call these functions with the task's lock held; wire.h
 * documents them. Each event is a ch_net_event, which the task's on_event handles. A
 * pending call is removed from the task's table before its CH_EVENT_REPLY is delivered, so
 * it ends exactly once.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "net/wire.h"

/* Calls on_event. Reserves memory for the outbox first. */
static void deliver_event(ch_task *t, const ch_net_event *e)
{
    ch__outbox_reserve(t);
    t->now = t->net->driver->now(t);
    t->opt.ops->on_event(t->self, e, t->now, &t->outbox);
}

/* ---- endings ---- */

/* The status and the message of each ending. */
static const struct {
    ch_status   status;
    const char *text; /* follows "call to <peer>: " */
} endings[] = {
    [CH_ENDED_OK] = {CH_OK, ""},
    [CH_ENDED_ERROR] = {CH_UNKNOWN,
                        "error reply without its message, because memory was exhausted"},
    [CH_ENDED_TIMEOUT] = {CH_DEADLINE_EXCEEDED, "no reply before the deadline"},
    [CH_ENDED_CANCELLED] = {CH_CANCELLED, "cancelled by the caller"},
    [CH_ENDED_LOST] = {CH_UNAVAILABLE, "lost: the connection broke, or no task listens there"},
    [CH_ENDED_REPLACED] = {CH_ABORTED,
                           "made to an earlier incarnation; the task has restarted"},
    [CH_ENDED_NO_ROOM] = {CH_RESOURCE_EXHAUSTED,
                          "no room on the link; call again after a pending call has ended"},
};

/* Sets t->fault to the message of an ending. */
static void set_fault(ch_task *t, ch_ending ending, ch_status status, const char *peer)
{
    ch__fault_clear(&t->fault);
    ch__fail(status, "call to %s: %s", peer, endings[ending].text);
    ch__fault_record(&t->fault, status, -1, NULL);
    memcpy(t->fault.task, t->name, strlen(t->name) + 1);
}

static void set_peer(ch_peer *p, const char *name, uint64_t incarnation)
{
    memcpy(p->name, name, strlen(name) + 1);
    p->incarnation = incarnation;
}

static void deliver_ending(ch_task *t, uint64_t id, ch_ending ending, const char *peer)
{
    ch_net_event e = {.kind = CH_EVENT_REPLY, .ending = ending, .id = id};

    set_peer(&e.peer, peer, 0);
    set_fault(t, ending, endings[ending].status, peer);
    e.fault = &t->fault;
    deliver_event(t, &e);
}

int ch__task_deliver_endings(ch_task *t)
{
    int n = t->n_ended;

    for (int i = 0; i < n; i++) {
        ch_ended e = t->ended[i];

        deliver_ending(t, e.id, e.ending, e.link->name);
    }
    t->n_ended -= n;
    if (n > 0)
        memmove(t->ended, t->ended + n, (size_t)t->n_ended * sizeof(t->ended[0]));
    return n;
}

/* Ends the pending calls of a broken link as CH_ENDED_LOST, if they were made before the
 * table's sequence was `before`. */
static void link_lost(ch_task *t, const ch_link *l, uint64_t before)
{
    for (int i = 0; i < t->table.cap; i++) {
        ch_pending *e = &t->table.entry[i];

        if (e->kind != CH_PENDING_CALL || e->made.link != l || e->sequence >= before)
            continue;
        ch__outbox_ending(t, e->id, CH_ENDED_LOST, e->made.link);
        ch__call_drop(t, e);
    }
}

uint64_t ch__call_sequence(const ch_task *t, const ch_frame *f)
{
    const ch_pending *e = ch__pending_at(&t->table, CH_PENDING_CALL, f->call);

    return e != NULL ? e->sequence : 0; /* 0: it was cancelled before it was sent */
}

/* ---- frames ---- */

/* Replies to a call with an ending, without delivering an event. */
static void reply_ending(ch_task *t, const ch_frame *f, ch_ending ending)
{
    ch_frame reply = {.kind = CH_FRAME_REPLY,
                      .ending = ending,
                      .call = f->call,
                      .from = t->incarnation,
                      .to = f->from};

    f->back.wire->ops->reply(t, f->back, &reply);
}

void ch__call_end_lost(ch_task *t, const ch_frame *f)
{
    ch_frame reply = {
        .kind = CH_FRAME_REPLY, .ending = CH_ENDED_LOST, .call = f->call, .to = f->from};

    f->back.wire->ops->reply(t, f->back, &reply);
}

/* Ends a call that was not added to the table, as far as the wire counts calls. */
static void call_ended(const ch_frame *f)
{
    if (f->back.wire->counts_calls)
        ch__slots_call_ended(&f->back.wire->slots, f->back);
}

/* Returns true if a peer with this role may call the method. A method beyond the table is
 * passed on, because the task replies that it has no handler for it. */
static bool may_call(const ch_task_options *opt, uint32_t method, unsigned role)
{
    return opt->methods == NULL || method >= (uint32_t)opt->n_methods ||
           (opt->methods[method].callers & role) != 0;
}

/* Replies that the caller's role may not call the method. */
static void reply_denied(ch_task *t, const ch_frame *f)
{
    const char *method = t->opt.methods[f->message->method].name;
    ch_frame    reply = {.kind = CH_FRAME_REPLY,
                         .ending = CH_ENDED_ERROR,
                         .status = CH_PERMISSION_DENIED,
                         .call = f->call,
                         .from = t->incarnation,
                         .to = f->from};

    ch__fault_clear(&t->fault);
    ch__fail(CH_PERMISSION_DENIED, "call of %s (method %u) by %s: the role %s may not call it",
             method != NULL ? method : "an unknown method", f->message->method, f->name,
             ch__role_name(f->role));
    ch__fault_record(&t->fault, CH_PERMISSION_DENIED, -1, NULL);
    reply.fault = ch__fault_copy(&t->fault);
    f->back.wire->ops->reply(t, f->back, &reply);
}

static void receive_call(ch_task *t, const ch_frame *f)
{
    ch_net_event e = {.kind = CH_EVENT_CALL, .message = f->message};
    ch_pending  *o = NULL;

    if (f->to != 0 && f->to != t->incarnation && CH_KEEPS(ADDRESSEE)) {
        call_ended(f);
        reply_ending(t, f, CH_ENDED_REPLACED);
        return;
    }
    if (!may_call(&t->opt, f->message->method, f->role)) {
        call_ended(f);
        reply_denied(t, f);
        return;
    }
    if (ch__pending_reserve(&t->table, 1))
        o = ch__pending_add(&t->table, CH_PENDING_RECEIVED, f->call,
                            f->timeout > 0 && t->now < INT64_MAX - f->timeout
                                ? t->now + f->timeout
                                : INT64_MAX);
    if (o == NULL) {
        call_ended(f);
        reply_ending(t, f, CH_ENDED_LOST);
        return;
    }
    if (f->timeout > 0)
        ch__call_set_timeout(o, t->now, f->timeout);
    o->received.incarnation = f->from;
    o->received.back = f->back;
    o->received.name = f->name;
    e.call = ch__pending_number(&t->table, o);
    set_peer(&e.peer, f->name, f->from);
    deliver_event(t, &e);
}

static void deliver_cancel(ch_task *t, ch_pending *o)
{
    ch_net_event e = {.kind = CH_EVENT_CANCEL, .call = ch__pending_number(&t->table, o)};

    set_peer(&e.peer, o->received.name, o->received.incarnation);
    ch__received_drop(t, o);
    deliver_event(t, &e);
}

/* Delivers a CH_EVENT_CANCEL for each time that the call was received: a wire may
 * deliver it twice. */
static void receive_cancel(ch_task *t, const ch_frame *f)
{
    for (int i = 0; i < t->table.cap; i++) {
        ch_pending *o = &t->table.entry[i];

        if (o->kind == CH_PENDING_RECEIVED && o->id == f->call &&
            o->received.incarnation == f->from &&
            ch__return_path_is_same(o->received.back, f->back))
            deliver_cancel(t, o);
    }
}

/* Cancels the calls that came by a connection that has ended. */
static void callers_left(ch_task *t, ch_return_path back)
{
    for (int i = 0; i < t->table.cap && CH_KEEPS(LEFT); i++) {
        ch_pending *o = &t->table.entry[i];

        if (o->kind == CH_PENDING_RECEIVED && ch__return_path_is_same(o->received.back, back))
            deliver_cancel(t, o);
    }
}

/* Completes the fault of an error reply: sets t->fault if the frame has none, and the name of
 * the peer if the fault names no task. */
static void set_error_reply(ch_task *t, const ch_frame *f, const char *peer)
{
    if (f->fault == NULL) {
        set_fault(t, CH_ENDED_ERROR, f->status != CH_OK ? f->status : CH_UNKNOWN, peer);
    } else if (f->fault->task[0] == '\0') {
        snprintf(f->fault->task, sizeof(f->fault->task), "%s", peer);
    }
}

/* Drops a reply if its call has ended already, or was made by an earlier incarnation. */
static void receive_reply(ch_task *t, const ch_frame *f)
{
    ch_net_event e = {.kind = CH_EVENT_REPLY, .ending = f->ending};
    ch_pending  *o = ch__pending_at(&t->table, CH_PENDING_CALL, f->call);
    const char  *peer;

    if (f->to != t->incarnation || o == NULL)
        return;
    peer = o->made.link->name;
    if (f->from != 0)
        ch__link_received(o->made.link, t->now);
    e.id = o->id;
    ch__call_drop(t, o);
    set_peer(&e.peer, peer, f->from);
    if (f->ending == CH_ENDED_OK) {
        e.message = f->message;
    } else if (f->ending == CH_ENDED_ERROR) {
        set_error_reply(t, f, peer);
        e.fault = f->fault != NULL ? f->fault : &t->fault;
    } else {
        set_fault(t, f->ending, endings[f->ending].status, peer);
        e.fault = &t->fault;
    }
    deliver_event(t, &e);
}

static void receive(ch_task *t, ch_frame *f)
{
    if (f->kind == CH_FRAME_CALL)
        receive_call(t, f);
    else if (f->kind == CH_FRAME_REPLY)
        receive_reply(t, f);
    else
        receive_cancel(t, f);
    ch__frame_drop(f);
}

void ch__task_take(ch_task *t, ch_input *in)
{
    switch (in->kind) {
    case CH_INPUT_FRAME:
        receive(t, &in->frame);
        break;
    case CH_INPUT_BROKE:
        link_lost(t, in->broke.link, in->broke.before);
        break;
    case CH_INPUT_LEFT:
        callers_left(t, in->left);
        break;
    }
}

/* ---- timers and deadlines ---- */

void ch__call_set_timeout(ch_pending *call, int64_t now, int64_t timeout)
{
    enum { MOST = 64 }; /* times the timeout, while bytes move */
    int64_t most;

    call->timeout = timeout;
    if (__builtin_mul_overflow(timeout, MOST, &most) ||
        __builtin_add_overflow(now, most, &call->last))
        call->last = INT64_MAX;
}

/* Returns when bulk bytes last moved over the connection of a call. */
static int64_t moved_at(const ch_pending *o)
{
    const ch_slot *slot;

    if (o->kind == CH_PENDING_CALL)
        return atomic_load_explicit(&o->made.link->moved_at, memory_order_relaxed);
    slot = ch__slots_at(&o->received.back.wire->slots, o->received.back);
    return slot != NULL ? atomic_load_explicit(&slot->moved_at, memory_order_relaxed) : 0;
}

/* Gives an expired call more time if bulk bytes moved over its connection within its timeout: a
 * large message must not be sent again and again only because it takes long. */
static bool defer(ch_task *t, ch_pending *o, int64_t now)
{
    int64_t until;

    if (o->kind == CH_PENDING_TIMER || __builtin_add_overflow(moved_at(o), o->timeout, &until))
        return false;
    until = ch__min(until, o->last);
    if (until <= now)
        return false;
    ch__pending_defer(&t->table, o, until);
    return true;
}

int64_t ch__task_next_timer(const ch_task *t)
{
    const ch_pending *first = ch__pending_first(&t->table);

    return first != NULL ? first->at : INT64_MAX;
}

static void deliver_timeout(ch_task *t, ch_pending *o)
{
    uint64_t id = o->id, number = ch__pending_number(&t->table, o);
    ch_link *l = o->made.link;
    int64_t  bytes = o->made.bytes;

    ch__call_drop(t, o);
    ch__outbox_flush(&t->outbox); /* the call must be sent before its cancel */
    if (l->wire != NULL)
        l->wire->ops->cancel(l, number, bytes);
    deliver_ending(t, id, CH_ENDED_TIMEOUT, l->name);
}

static void deliver_timer(ch_task *t, ch_pending *o)
{
    ch_net_event e = {.kind = CH_EVENT_TIMER, .id = o->id};

    ch__pending_drop(&t->table, o);
    deliver_event(t, &e);
}

/* Skips timers that are set meanwhile. Otherwise a task that always sets a timer to `now` would
 * handle no other events. */
int ch__task_run_timers(ch_task *t)
{
    int64_t     now = t->now;
    uint64_t    before = t->table.sequence;
    int         n = 0;
    ch_pending *o;

    for (; (o = ch__pending_first(&t->table)) != NULL && o->at <= now && o->sequence < before;
         n++)
        if (defer(t, o, now))
            continue;
        else if (o->kind == CH_PENDING_TIMER)
            deliver_timer(t, o);
        else if (o->kind == CH_PENDING_CALL)
            deliver_timeout(t, o);
        else
            deliver_cancel(t, o);
    return n;
}

/* ---- work ---- */

bool ch__work_next(ch_task *t, ch_task_work *w)
{
    if (t->n_work == 0)
        return false;
    *w = t->work[0];
    memmove(t->work, t->work + 1, (size_t)--t->n_work * sizeof(t->work[0]));
    return true;
}

void ch__work_end(ch_task *t, ch_task_work *w)
{
    if (t->is_alive && t->incarnation == w->incarnation)
        deliver_event(t, &(ch_net_event){.kind = CH_EVENT_WORK, .id = w->id});
    else if (w->drop != NULL)
        w->drop(w->arg);
}
