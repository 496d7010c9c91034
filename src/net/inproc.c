/* net/inproc.c -- the wire between tasks of one process: frames are passed on without encoding.
 *
 * Calls carry no timeout, because this wire delivers every cancel unless memory is exhausted. A
 * caller that cancels call after call must not fill the mailbox of a callee that does not read
 * it. So a cancelled call still counts for the link's room until the callee has taken the
 * cancel out of its mailbox.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/threads.h"

/* The wire's data of a link (ch_link.end), and the `back` of its calls. */
typedef struct inproc_link {
    ch_threads_task *task, *peer; /* caller, callee; callee NULL: not started yet */
    /* Cancelled calls, and the bytes in them, of which the callee has not seen
     * the cancel yet. */
    atomic_int           n_cancelled;
    atomic_int_least64_t cancelled_bytes;
} inproc_link;

static ch_threads_task *threads_task_of(ch_task *t)
{
    return (ch_threads_task *)(void *)t;
}

static ch_threads_task *peer_of(const ch_link *l)
{
    inproc_link *e = l->end;

    if (e->peer == NULL)
        e->peer = threads_task_of(ch__net_find(l->task->net, l->name));
    return e->peer;
}

static ch_status inproc_listen(ch_task *t)
{
    ch__mailbox_open(threads_task_of(t));
    return CH_OK;
}

static ch_status inproc_connect(ch_link *l)
{
    inproc_link *e = ch__calloc(1, sizeof(*e));

    if (e == NULL)
        return ch__fail_memory("link");
    e->task = threads_task_of(l->task);
    l->end = e;
    return CH_OK;
}

static ch_ending inproc_call(ch_link *l, ch_frame *f)
{
    ch_threads_task *peer = peer_of(l);

    f->timeout = 0;
    f->name = l->task->name;
    f->back = l->end;
    return peer != NULL && ch__mailbox_put(peer, f, threads_task_of(l->task)) ? CH_ENDED_OK
                                                                              : CH_ENDED_LOST;
}

/* Returns the room of a cancelled call to its link. The `timeout` of a cancel
 * holds its bytes. */
static void inproc_frame_removed(const ch_frame *f)
{
    inproc_link *e = f->back;

    if (f->kind != CH_FRAME_CANCEL)
        return;
    atomic_fetch_sub(&e->cancelled_bytes, f->timeout);
    atomic_fetch_sub(&e->n_cancelled, 1);
}

static void inproc_cancel(ch_link *l, uint64_t call, int64_t bytes)
{
    inproc_link     *e = l->end;
    ch_threads_task *peer = peer_of(l);
    ch_frame         f = {.kind = CH_FRAME_CANCEL,
                          .call = call,
                          .from = l->task->incarnation,
                          .timeout = bytes,
                          .name = l->task->name,
                          .back = e};

    atomic_fetch_add(&e->n_cancelled, 1);
    atomic_fetch_add(&e->cancelled_bytes, bytes);
    if (peer == NULL || !ch__mailbox_put(peer, &f, threads_task_of(l->task)))
        inproc_frame_removed(&f);
}

static void inproc_reply(ch_task *t, void *back, ch_frame *f)
{
    inproc_link *e = back;

    f->name = t->name;
    f->back = NULL;
    if (!ch__mailbox_put(e->task, f, threads_task_of(t)))
        ch__frame_drop(f);
}

static void inproc_room(const ch_link *l, int *calls, int64_t *bytes)
{
    const inproc_link     *e = l->end;
    const ch_threads_task *peer = peer_of(l);

    *calls = peer != NULL ? peer->task.opt.calls : CH_LINK_CALLS;
    *bytes = peer != NULL ? peer->task.opt.bytes : CH_LINK_BYTES;
    *calls -= atomic_load_explicit(&e->n_cancelled, memory_order_relaxed);
    *bytes -= atomic_load_explicit(&e->cancelled_bytes, memory_order_relaxed);
    if (*bytes <= 0)
        *calls = 0;
}

static void inproc_close_link(ch_link *l)
{
    ch__free(l->end);
}

/* Ends a call of a peer as CH_ENDED_LOST. */
static void reply_lost(ch_task *t, void *back, uint64_t call, uint64_t to)
{
    ch_frame f = {.kind = CH_FRAME_REPLY, .ending = CH_ENDED_LOST, .call = call, .to = to};

    inproc_reply(t, back, &f);
}

/* Notifies the peers at once: calls without a reply end as lost, and calls of the
 * task are cancelled. */
static void inproc_close(ch_task *t)
{
    int       n;
    ch_frame *frames = ch__mailbox_close(threads_task_of(t), &n);

    for (int i = 0; i < n; i++) {
        inproc_frame_removed(&frames[i]);
        if (frames[i].kind == CH_FRAME_CALL)
            reply_lost(t, frames[i].back, frames[i].call, frames[i].from);
        ch__frame_drop(&frames[i]);
    }
    ch__free(frames);
    for (int i = 0; i < t->table.cap; i++) {
        ch_pending *o = &t->table.entry[i];

        if (o->kind == CH_PENDING_RECEIVED)
            reply_lost(t, o->link, o->id, o->incarnation);
        else if (o->kind == CH_PENDING_CALL)
            inproc_cancel(o->link, ch__pending_number(&t->table, o), o->bytes);
    }
}

static const ch_wire_ops wire = {.listen = inproc_listen,
                                 .connect = inproc_connect,
                                 .call = inproc_call,
                                 .cancel = inproc_cancel,
                                 .reply = inproc_reply,
                                 .room = inproc_room,
                                 .close_link = inproc_close_link,
                                 .close = inproc_close};

ch_status ch__net_inproc(const ch_inproc_options *opt, ch_net **out)
{
    ch_threads *n = ch__calloc(1, sizeof(*n));
    ch_status   st;

    if (n == NULL)
        return ch__fail_memory("net");
    n->net.wire = &wire;
    n->frame_removed = inproc_frame_removed;
    st = ch__threads_init(n, opt != NULL ? opt->spin_us : 0);
    if (st != CH_OK) {
        ch__free(n);
        return st;
    }
    *out = &n->net;
    return CH_OK;
}
