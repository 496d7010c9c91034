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

void ch__task_link_lost(ch_task *t, const ch_link *l, uint64_t before)
{
    for (int i = 0; i < t->table.cap; i++) {
        ch_pending *e = &t->table.entry[i];

        if (e->kind != CH_PENDING_CALL || e->link != l || e->sequence >= before)
            continue;
        ch__outbox_ending(t, e->id, CH_ENDED_LOST, e->link);
        ch__call_drop(t, e);
    }
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

    t->net->wire->reply(t, f->back, &reply);
}

static void receive_call(ch_task *t, const ch_frame *f)
{
    ch_net_event e = {.kind = CH_EVENT_CALL, .message = f->message};
    ch_pending  *o = NULL;

    if (f->to != 0 && f->to != t->incarnation) {
        reply_ending(t, f, CH_ENDED_REPLACED);
        return;
    }
    if (ch__pending_reserve(&t->table, 1))
        o = ch__pending_add(&t->table, CH_PENDING_RECEIVED, f->call,
                            f->timeout > 0 && t->now < INT64_MAX - f->timeout
                                ? t->now + f->timeout
                                : INT64_MAX);
    if (o == NULL) {
        reply_ending(t, f, CH_ENDED_LOST);
        return;
    }
    o->incarnation = f->from;
    o->link = f->back;
    o->name = f->name;
    e.call = ch__pending_number(&t->table, o);
    set_peer(&e.peer, f->name, f->from);
    deliver_event(t, &e);
}

static void deliver_cancel(ch_task *t, ch_pending *o)
{
    ch_net_event e = {.kind = CH_EVENT_CANCEL, .call = ch__pending_number(&t->table, o)};

    set_peer(&e.peer, o->name, o->incarnation);
    ch__pending_drop(&t->table, o);
    deliver_event(t, &e);
}

/* Delivers a CH_EVENT_CANCEL for each time that the call was received: a wire may
 * deliver it twice. */
static void receive_cancel(ch_task *t, const ch_frame *f)
{
    for (int i = 0; i < t->table.cap; i++) {
        ch_pending *o = &t->table.entry[i];

        if (o->kind == CH_PENDING_RECEIVED && o->id == f->call && o->incarnation == f->from &&
            o->link == f->back)
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
    peer = ((ch_link *)o->link)->name;
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

void ch__task_receive(ch_task *t, ch_frame *f)
{
    if (f->kind == CH_FRAME_CALL)
        receive_call(t, f);
    else if (f->kind == CH_FRAME_REPLY)
        receive_reply(t, f);
    else
        receive_cancel(t, f);
    ch__frame_drop(f);
}

/* ---- timers and deadlines ---- */

int64_t ch__task_next_timer(const ch_task *t)
{
    const ch_pending *first = ch__pending_first(&t->table);

    return first != NULL ? first->at : INT64_MAX;
}

static void deliver_timeout(ch_task *t, ch_pending *o)
{
    uint64_t id = o->id, number = ch__pending_number(&t->table, o);
    ch_link *l = o->link;
    int64_t  bytes = o->bytes;

    ch__call_drop(t, o);
    ch__outbox_flush(&t->outbox); /* the call must be sent before its cancel */
    t->net->wire->cancel(l, number, bytes);
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
        if (o->kind == CH_PENDING_TIMER)
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
