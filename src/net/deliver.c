/* net/deliver.c -- what a task is told: frames that come, times that pass, work that is done.
 * SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "net/wire.h"

/* Room comes first, so that what the task posts finds some. */
static void tell(ch_task *t, const ch_net_event *e)
{
    ch__outbox_reserve(t);
    t->now = t->net->drive->now(t);
    t->opt.ops->on_event(t->self, e, t->now, &t->outbox);
}

/* ---- endings ---- */

static const struct {
    ch_status   status;
    const char *text; /* behind "a call to <peer>" */
} in_words[] = {
    [CH_ENDED_OK] = {CH_OK, ""},
    [CH_ENDED_ERROR] = {CH_UNKNOWN, "was refused; there was no memory for why"},
    [CH_ENDED_TIMEOUT] = {CH_DEADLINE_EXCEEDED, "was not answered until its deadline"},
    [CH_ENDED_CANCELLED] = {CH_CANCELLED, "was cancelled by who made it"},
    [CH_ENDED_LOST] = {CH_UNAVAILABLE, "was lost: the connection broke, or nobody listens"},
    [CH_ENDED_REPLACED] = {CH_ABORTED, "was for an earlier life of it: it was started again"},
    [CH_ENDED_NO_ROOM] = {CH_RESOURCE_EXHAUSTED, "found no room on the link to it"},
};

static void set_fault(ch_task *t, ch_ending ending, ch_status status, const char *peer)
{
    ch__fault_clear(&t->fault);
    ch__fail(status, "a call to %s %s", peer, in_words[ending].text);
    ch__fault_record(&t->fault, status, -1, NULL);
    memcpy(t->fault.task, t->name, strlen(t->name) + 1);
}

static void set_peer(ch_peer *p, const char *name, uint64_t incarnation)
{
    memcpy(p->name, name, strlen(name) + 1);
    p->incarnation = incarnation;
}

static void tell_ending(ch_task *t, uint64_t id, ch_ending ending, const char *peer)
{
    ch_net_event e = {.kind = CH_EVENT_REPLY, .ending = ending, .id = id};

    set_peer(&e.peer, peer, 0);
    set_fault(t, ending, in_words[ending].status, peer);
    e.fault = &t->fault;
    tell(t, &e);
}

int ch__task_deliver_endings(ch_task *t)
{
    int n = t->n_ended;

    for (int i = 0; i < n; i++) {
        ch_ended e = t->ended[i];

        tell_ending(t, e.id, e.ending, e.link->name);
    }
    t->n_ended -= n;
    if (n > 0)
        memmove(t->ended, t->ended + n, (size_t)t->n_ended * sizeof(t->ended[0]));
    return n;
}

void ch__task_link_lost(ch_task *t, const ch_link *l, uint64_t before)
{
    for (int i = 0; i < t->table.cap; i++) {
        ch_pending *e = &t->table.place[i];

        if (e->kind != CH_PENDING_CALL || e->link != l || e->sequence >= before)
            continue;
        ch__outbox_ending(t, e->id, CH_ENDED_LOST, e->link);
        ch__call_drop(t, e);
    }
}

/* ---- frames ---- */

static void send_back(ch_task *t, const ch_frame *f, ch_ending ending)
{
    ch_frame answer = {.kind = CH_FRAME_REPLY,
                       .ending = ending,
                       .call = f->call,
                       .from = t->incarnation,
                       .to = f->from};

    t->net->wire->answer(t, f->back, &answer);
}

static void take_call(ch_task *t, const ch_frame *f)
{
    ch_net_event e = {.kind = CH_EVENT_CALL, .message = f->message};
    ch_pending  *o = NULL;

    if (f->to != 0 && f->to != t->incarnation) {
        send_back(t, f, CH_ENDED_REPLACED);
        return;
    }
    if (ch__pending_reserve(&t->table, 1))
        o = ch__pending_add(&t->table, CH_PENDING_RECEIVED, f->call,
                            f->timeout > 0 && t->now < INT64_MAX - f->timeout
                                ? t->now + f->timeout
                                : INT64_MAX);
    if (o == NULL) {
        send_back(t, f, CH_ENDED_LOST);
        return;
    }
    o->incarnation = f->from;
    o->link = f->back;
    o->name = f->name;
    e.call = ch__pending_number(&t->table, o);
    set_peer(&e.peer, f->name, f->from);
    tell(t, &e);
}

static void tell_cancel(ch_task *t, ch_pending *o)
{
    ch_net_event e = {.kind = CH_EVENT_CANCEL, .call = ch__pending_number(&t->table, o)};

    set_peer(&e.peer, o->name, o->incarnation);
    ch__pending_drop(&t->table, o);
    tell(t, &e);
}

/* A call that came twice is cancelled once for each time. */
static void take_cancel(ch_task *t, const ch_frame *f)
{
    for (int i = 0; i < t->table.cap; i++) {
        ch_pending *o = &t->table.place[i];

        if (o->kind == CH_PENDING_RECEIVED && o->id == f->call && o->incarnation == f->from &&
            o->link == f->back)
            tell_cancel(t, o);
    }
}

static void set_refusal(ch_task *t, const ch_frame *f, const char *peer)
{
    if (f->fault == NULL) {
        set_fault(t, CH_ENDED_ERROR, f->status != CH_OK ? f->status : CH_UNKNOWN, peer);
    } else if (f->fault->task[0] == '\0') {
        snprintf(f->fault->task, sizeof(f->fault->task), "%s", peer);
    }
}

/* One that is not waited for any more, or comes a second time, is nobody's. */
static void take_answer(ch_task *t, const ch_frame *f)
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
        set_refusal(t, f, peer);
        e.fault = f->fault != NULL ? f->fault : &t->fault;
    } else {
        set_fault(t, f->ending, in_words[f->ending].status, peer);
        e.fault = &t->fault;
    }
    tell(t, &e);
}

void ch__task_receive(ch_task *t, ch_frame *f)
{
    if (f->kind == CH_FRAME_CALL)
        take_call(t, f);
    else if (f->kind == CH_FRAME_REPLY)
        take_answer(t, f);
    else
        take_cancel(t, f);
    ch__frame_drop(f);
}

/* ---- times ---- */

int64_t ch__task_next_timer(const ch_task *t)
{
    const ch_pending *first = ch__pending_first(&t->table);

    return first != NULL ? first->at : INT64_MAX;
}

static void tell_late(ch_task *t, ch_pending *o)
{
    uint64_t id = o->id, number = ch__pending_number(&t->table, o);
    ch_link *l = o->link;
    int64_t  bytes = o->bytes;

    ch__call_drop(t, o);
    ch__outbox_flush(&t->outbox); /* so that a call goes before its cancel */
    t->net->wire->cancel(l, number, bytes);
    tell_ending(t, id, CH_ENDED_TIMEOUT, l->name);
}

static void tell_timer(ch_task *t, ch_pending *o)
{
    ch_net_event e = {.kind = CH_EVENT_TIMER, .id = o->id};

    ch__pending_drop(&t->table, o);
    tell(t, &e);
}

/* Not those that are posted meanwhile: a task that sets a timer to now would be told of nothing else. */
int ch__task_run_timers(ch_task *t)
{
    int64_t     now = t->now;
    uint64_t    before = t->table.sequence;
    int         n = 0;
    ch_pending *o;

    for (; (o = ch__pending_first(&t->table)) != NULL && o->at <= now && o->sequence < before;
         n++)
        if (o->kind == CH_PENDING_TIMER)
            tell_timer(t, o);
        else if (o->kind == CH_PENDING_CALL)
            tell_late(t, o);
        else
            tell_cancel(t, o);
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
        tell(t, &(ch_net_event){.kind = CH_EVENT_WORK, .id = w->id});
    else if (w->drop != NULL)
        w->drop(w->arg);
}
