/* net/outbox.c -- the outbox: calls, replies, timers and work that a task adds in an event.
 *
 * The code of tasks calls the ch__outbox_ functions of net.h with the task's lock held. A call
 * takes its entry in the table of pending calls and its room on the link at once. Its frame is
 * sent after the event, when the driver calls ch__outbox_flush. Timers and work need no frame:
 * they go into the task's table and its work queue at once.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "net/wire.h"

/* Entries of each kind that a task can add in an event without an allocation. */
enum { N_RESERVED = 64 };

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
    return ch__grow((void **)&t->ended, &t->cap_ended, t->n_ended + N_RESERVED,
                    sizeof(ch_ended)) &&
           ch__grow((void **)&t->outbox.item, &t->outbox.cap, t->outbox.n + N_RESERVED,
                    sizeof(ch_outgoing)) &&
           ch__grow((void **)&t->work, &t->cap_work, t->n_work + N_RESERVED,
                    sizeof(ch_task_work)) &&
           ch__pending_reserve(&t->table, N_RESERVED);
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
    ch_link *l = call->made.link;

    l->n_calls--;
    l->n_bytes -= call->made.bytes;
    ch__pending_drop(&t->table, call);
}

void ch__received_drop(ch_task *t, ch_pending *call)
{
    ch_return_path back = call->received.back;

    if (back.wire->counts_calls)
        ch__slots_call_ended(&back.wire->slots, back);
    ch__pending_drop(&t->table, call);
}

/* Returns a new last entry, or NULL if memory is exhausted. */
static ch_outgoing *add_outgoing(ch_outbox *outbox)
{
    if (!ch__grow((void **)&outbox->item, &outbox->cap, outbox->n + 1, sizeof(ch_outgoing)))
        return NULL;
    return &outbox->item[outbox->n++];
}

void ch__outbox_call(ch_outbox *outbox, ch_link *to, ch_message *m, const ch_call_options *opt)
{
    ch_task     *t = outbox->task;
    int64_t      bytes = ch__message_size(m);
    ch_outgoing *item = NULL;
    ch_pending  *e = NULL;

    assert(ch__pending_find(&t->table, CH_PENDING_CALL, opt->id) == NULL);
    if (t->is_alive && ch__link_has_room(to, bytes)) {
        if (ch__pending_reserve(&t->table, 1) && (item = add_outgoing(outbox)) != NULL)
            e = ch__pending_add(&t->table, CH_PENDING_CALL, opt->id, opt->deadline);
        else
            ch__outbox_ending(t, opt->id, CH_ENDED_LOST, to);
    } else if (t->is_alive) {
        ch__outbox_ending(t, opt->id, CH_ENDED_NO_ROOM, to);
    }
    if (e == NULL) {
        ch__message_unref(m);
        return;
    }
    ch__call_set_timeout(e, t->now, opt->deadline > t->now ? opt->deadline - t->now : 1);
    e->made.link = to;
    e->made.bytes = bytes;
    to->n_calls++;
    to->n_bytes += bytes;
    *item = (ch_outgoing){.frame = {.kind = CH_FRAME_CALL,
                                    .call = ch__pending_number(&t->table, e),
                                    .from = t->incarnation,
                                    .to = opt->incarnation,
                                    .timeout = e->timeout,
                                    .message = m},
                          .link = to};
}

void ch__outbox_cancel(ch_outbox *outbox, uint64_t id)
{
    ch_task     *t = outbox->task;
    ch_pending  *e = ch__pending_find(&t->table, CH_PENDING_CALL, id);
    ch_outgoing *item;

    if (e == NULL)
        return;
    item = add_outgoing(outbox); /* NULL, out of memory: the cancel is not sent */
    if (item != NULL)
        *item = (ch_outgoing){
            .frame = {.kind = CH_FRAME_CANCEL, .call = ch__pending_number(&t->table, e)},
            .link = e->made.link,
            .bytes = e->made.bytes};
    ch__outbox_ending(t, id, CH_ENDED_CANCELLED, e->made.link);
    ch__call_drop(t, e);
}

/* Drops the reply if memory is exhausted: the call then ends at its deadline. */
static void add_reply(ch_outbox *outbox, ch_call_id call, ch_frame f)
{
    ch_task     *t = outbox->task;
    ch_pending  *e = ch__pending_at(&t->table, CH_PENDING_RECEIVED, call);
    ch_outgoing *item = e != NULL ? add_outgoing(outbox) : NULL;

    if (item == NULL) {
        ch__frame_drop(&f);
        return;
    }
    f.kind = CH_FRAME_REPLY;
    f.call = e->id;
    f.from = t->incarnation;
    f.to = e->received.incarnation;
    f.back = e->received.back;
    *item = (ch_outgoing){.frame = f};
    ch__received_drop(t, e);
}

void ch__outbox_reply(ch_outbox *outbox, ch_call_id call, ch_message *m)
{
    add_reply(outbox, call, (ch_frame){.ending = CH_ENDED_OK, .message = m});
}

void ch__outbox_reply_error(ch_outbox *outbox, ch_call_id call, const ch_fault *why)
{
    add_reply(outbox, call,
              (ch_frame){
                  .ending = CH_ENDED_ERROR, .status = why->code, .fault = ch__fault_copy(why)});
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

/* Sends a call. If the wire does not take the frame, ends the call with the wire's ending. */
static void send_call(ch_task *t, ch_outgoing *item)
{
    ch_frame     f = item->frame;
    uint64_t     number = f.call;
    ch_net_wire *wire = item->link->wire;
    ch_ending    ending = wire != NULL ? wire->ops->call(item->link, &f) : CH_ENDED_LOST;
    ch_pending  *e;

    if (ending == CH_ENDED_OK)
        return;
    ch__frame_drop(&f);
    e = ch__pending_at(&t->table, CH_PENDING_CALL, number);
    if (e == NULL) /* it was cancelled */
        return;
    ch__outbox_ending(t, e->id, ending, item->link);
    ch__call_drop(t, e);
}

void ch__outbox_flush(ch_outbox *outbox)
{
    for (int i = 0; i < outbox->n; i++) {
        ch_outgoing *item = &outbox->item[i];

        if (item->frame.kind == CH_FRAME_CALL)
            send_call(outbox->task, item);
        else if (item->frame.kind == CH_FRAME_REPLY)
            item->frame.back.wire->ops->reply(outbox->task, item->frame.back, &item->frame);
        else if (item->link->wire != NULL)
            item->link->wire->ops->cancel(item->link, item->frame.call, item->bytes);
    }
    outbox->n = 0;
}
