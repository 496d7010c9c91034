/* net/outbox.c -- what a task posts: calls take their room at once, and go out after the event.
 * SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "net/wire.h"

enum {
    AT_ONCE = 64
}; /* things that a task can post in an event without memory being asked for */

ch_fault *ch__fault_copy(const ch_fault *f)
{
    ch_fault *copy = ch__malloc(sizeof(*copy));

    if (copy == NULL)
        return NULL;
    ch__fault_clear(copy);
    copy->code = f->code;
    copy->replica = f->replica;
    copy->is_limit = f->is_limit;
    memcpy(copy->op, f->op, sizeof(f->op));
    memcpy(copy->task, f->task, sizeof(f->task));
    memcpy(copy->text, f->text, strnlen(f->text, sizeof(f->text) - 1) + 1);
    atomic_init(&copy->state, atomic_load_explicit(&f->state, memory_order_acquire));
    return copy;
}

void ch__frame_drop(ch_frame *f)
{
    ch__message_unref(f->message);
    ch__free(f->fault);
    f->message = NULL;
    f->fault = NULL;
}

bool ch__outbox_reserve(ch_task *t)
{
    return ch__grow((void **)&t->ended, &t->cap_ended, t->n_ended + AT_ONCE,
                    sizeof(ch_ended)) &&
           ch__grow((void **)&t->outbox.item, &t->outbox.cap, t->outbox.n + AT_ONCE,
                    sizeof(ch_outgoing)) &&
           ch__grow((void **)&t->work, &t->cap_work, t->n_work + AT_ONCE,
                    sizeof(ch_task_work)) &&
           ch__pending_reserve(&t->table, AT_ONCE);
}

void ch__outbox_ending(ch_task *t, uint64_t id, ch_ending ending, ch_link *l)
{
    if (ch__grow((void **)&t->ended, &t->cap_ended, t->n_ended + 1, sizeof(ch_ended)))
        t->ended[t->n_ended++] = (ch_ended){id, ending, l};
    else
        t->is_broken = true;
}

void ch__call_drop(ch_task *t, ch_pending *call)
{
    ch_link *l = call->link;

    l->n_calls--;
    l->n_bytes -= call->bytes;
    ch__pending_drop(&t->table, call);
}

static ch_outgoing *post_room(ch_outbox *outbox)
{
    if (!ch__grow((void **)&outbox->item, &outbox->cap, outbox->n + 1, sizeof(ch_outgoing)))
        return NULL;
    return &outbox->item[outbox->n++];
}

/* A parcel that is larger than all of the link's room goes when nothing else does. */
static bool has_room(const ch_link *l, int64_t bytes)
{
    int     calls;
    int64_t most;

    l->task->net->wire->room(l, &calls, &most);
    return l->n_calls < calls && (l->n_calls == 0 || l->n_bytes <= most - bytes);
}

void ch__outbox_call(ch_outbox *outbox, ch_link *to, ch_message *p, const ch_call_options *opt)
{
    ch_task     *t = outbox->task;
    int64_t      bytes = ch__message_size(p);
    ch_outgoing *item = NULL;
    ch_pending  *e = NULL;

    assert(ch__pending_find(&t->table, CH_PENDING_CALL, opt->id) == NULL);
    if (t->is_alive && has_room(to, bytes)) {
        if (ch__pending_reserve(&t->table, 1) && (item = post_room(outbox)) != NULL)
            e = ch__pending_add(&t->table, CH_PENDING_CALL, opt->id, opt->deadline);
        else
            ch__outbox_ending(t, opt->id, CH_ENDED_LOST, to);
    } else if (t->is_alive) {
        ch__outbox_ending(t, opt->id, CH_ENDED_NO_ROOM, to);
    }
    if (e == NULL) {
        ch__message_unref(p);
        return;
    }
    e->link = to;
    e->bytes = bytes;
    to->n_calls++;
    to->n_bytes += bytes;
    *item =
        (ch_outgoing){.frame = {.kind = CH_FRAME_CALL,
                                .call = ch__pending_number(&t->table, e),
                                .from = t->incarnation,
                                .to = opt->incarnation,
                                .timeout = opt->deadline > t->now ? opt->deadline - t->now : 1,
                                .message = p},
                      .link = to};
}

void ch__outbox_cancel(ch_outbox *outbox, uint64_t id)
{
    ch_task     *t = outbox->task;
    ch_pending  *e = ch__pending_find(&t->table, CH_PENDING_CALL, id);
    ch_outgoing *item;

    if (e == NULL)
        return;
    item = post_room(outbox); /* without it the callee finds out later */
    if (item != NULL)
        *item = (ch_outgoing){
            .frame = {.kind = CH_FRAME_CANCEL, .call = ch__pending_number(&t->table, e)},
            .link = e->link,
            .bytes = e->bytes};
    ch__outbox_ending(t, id, CH_ENDED_CANCELLED, e->link);
    ch__call_drop(t, e);
}

/* An answer that finds no memory is lost: the caller's deadline tells it. */
static void post_answer(ch_outbox *outbox, ch_call_id call, ch_frame f)
{
    ch_task     *t = outbox->task;
    ch_pending  *e = ch__pending_at(&t->table, CH_PENDING_RECEIVED, call);
    ch_outgoing *item = e != NULL ? post_room(outbox) : NULL;

    if (item == NULL) {
        ch__frame_drop(&f);
        return;
    }
    f.kind = CH_FRAME_REPLY;
    f.call = e->id;
    f.from = t->incarnation;
    f.to = e->incarnation;
    f.back = e->link;
    *item = (ch_outgoing){.frame = f};
    ch__pending_drop(&t->table, e);
}

void ch__outbox_reply(ch_outbox *outbox, ch_call_id call, ch_message *p)
{
    post_answer(outbox, call, (ch_frame){.ending = CH_ENDED_OK, .message = p});
}

void ch__outbox_reply_error(ch_outbox *outbox, ch_call_id call, const ch_fault *why)
{
    post_answer(outbox, call,
                (ch_frame){.ending = CH_ENDED_ERROR,
                           .status = why->code,
                           .fault = ch__fault_copy(why)});
}

void ch__outbox_timer(ch_outbox *outbox, uint64_t id, int64_t at)
{
    ch_task    *t = outbox->task;
    ch_pending *e = ch__pending_find(&t->table, CH_PENDING_TIMER, id);

    if (e != NULL && at == INT64_MAX)
        ch__pending_drop(&t->table, e);
    else if (e != NULL)
        ch__pending_move(&t->table, e, at);
    else if (t->is_alive && at != INT64_MAX &&
             (!ch__pending_reserve(&t->table, 1) ||
              ch__pending_add(&t->table, CH_PENDING_TIMER, id, at) == NULL))
        t->is_broken = true;
}

void ch__outbox_work(ch_outbox *outbox, uint64_t    id, void (*run)(void *arg),
                     void (*drop)(void *arg), void *arg)
{
    ch_task *t = outbox->task;

    if (t->is_alive &&
        ch__grow((void **)&t->work, &t->cap_work, t->n_work + 1, sizeof(ch_task_work))) {
        t->work[t->n_work++] = (ch_task_work){id, t->incarnation, run, drop, arg};
        return;
    }
    t->is_broken = t->is_alive;
    if (drop != NULL)
        drop(arg);
}

static void send_call(ch_task *t, ch_outgoing *item)
{
    ch_frame    f = item->frame;
    uint64_t    number = f.call;
    ch_ending   ending = t->net->wire->call(item->link, &f);
    ch_pending *e;

    if (ending == CH_ENDED_OK)
        return;
    ch__frame_drop(&f);
    e = ch__pending_at(&t->table, CH_PENDING_CALL, number);
    if (e == NULL) /* cancelled already */
        return;
    ch__outbox_ending(t, e->id, ending, item->link);
    ch__call_drop(t, e);
}

void ch__outbox_flush(ch_outbox *outbox)
{
    const ch_wire_ops *wire = outbox->task->net->wire;

    for (int i = 0; i < outbox->n; i++) {
        ch_outgoing *item = &outbox->item[i];

        if (item->frame.kind == CH_FRAME_CALL)
            send_call(outbox->task, item);
        else if (item->frame.kind == CH_FRAME_REPLY)
            wire->answer(outbox->task, item->frame.back, &item->frame);
        else
            wire->cancel(item->link, item->frame.call, item->bytes);
    }
    outbox->n = 0;
}
