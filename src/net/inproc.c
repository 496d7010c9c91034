/* net/inproc.c -- the wire between tasks of one process: frames are handed over as they are.
 *
 * A cancel is never lost, so calls carry no timeout. But a caller that gives up on call after call must not fill the box of
 * one that does not look: what was cancelled counts for the link's room until the callee has taken the cancel out of its box.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/threads.h"

/* A link's end. Also the `back` of its calls. */
typedef struct end {
    ch_threads_task     *task, *peer; /* NULL: not started yet */
    atomic_int           n_cancelled;
    atomic_int_least64_t cancelled_bytes;
} end;

static ch_threads_task *own(ch_task *t)
{
    return (ch_threads_task *)(void *)t;
}

static ch_threads_task *peer_of(const ch_link *l)
{
    end *e = l->end;

    if (e->peer == NULL)
        e->peer = own(ch__net_find(l->task->net, l->name));
    return e->peer;
}

static ch_status inproc_listen(ch_task *t)
{
    ch__mailbox_open(own(t));
    return CH_OK;
}

static ch_status inproc_connect(ch_link *l)
{
    end *e = ch__calloc(1, sizeof(*e));

    if (e == NULL)
        return ch__fail_memory("link");
    e->task = own(l->task);
    l->end = e;
    return CH_OK;
}

static ch_ending inproc_call(ch_link *l, ch_frame *f)
{
    ch_threads_task *peer = peer_of(l);

    f->timeout = 0;
    f->name = l->task->name;
    f->back = l->end;
    return peer != NULL && ch__mailbox_put(peer, f, own(l->task)) ? CH_ENDED_OK : CH_ENDED_LOST;
}

/* The timeout's place carries the bytes. */
static void inproc_took(const ch_frame *f)
{
    end *e = f->back;

    if (f->kind != CH_FRAME_CANCEL)
        return;
    atomic_fetch_sub(&e->cancelled_bytes, f->timeout);
    atomic_fetch_sub(&e->n_cancelled, 1);
}

static void inproc_cancel(ch_link *l, uint64_t call, int64_t bytes)
{
    end             *e = l->end;
    ch_threads_task *peer = peer_of(l);
    ch_frame         f = {.kind = CH_FRAME_CANCEL,
                          .call = call,
                          .from = l->task->incarnation,
                          .timeout = bytes,
                          .name = l->task->name,
                          .back = e};

    atomic_fetch_add(&e->n_cancelled, 1);
    atomic_fetch_add(&e->cancelled_bytes, bytes);
    if (peer == NULL || !ch__mailbox_put(peer, &f, own(l->task)))
        inproc_took(&f);
}

static void inproc_answer(ch_task *t, void *back, ch_frame *f)
{
    end *e = back;

    f->name = t->name;
    f->back = NULL;
    if (!ch__mailbox_put(e->task, f, own(t)))
        ch__frame_drop(f);
}

static void inproc_room(const ch_link *l, int *calls, int64_t *bytes)
{
    const end             *e = l->end;
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

static void tell_lost(ch_task *t, void *back, uint64_t call, uint64_t to)
{
    ch_frame f = {.kind = CH_FRAME_REPLY, .ending = CH_ENDED_LOST, .call = call, .to = to};

    inproc_answer(t, back, &f);
}

/* Peers learn of it at once: calls that it has not answered are lost, those it made are cancelled. */
static void inproc_close(ch_task *t)
{
    int       n;
    ch_frame *frames = ch__mailbox_close(own(t), &n);

    for (int i = 0; i < n; i++) {
        inproc_took(&frames[i]);
        if (frames[i].kind == CH_FRAME_CALL)
            tell_lost(t, frames[i].back, frames[i].call, frames[i].from);
        ch__frame_drop(&frames[i]);
    }
    ch__free(frames);
    for (int i = 0; i < t->table.cap; i++) {
        ch_pending *o = &t->table.place[i];

        if (o->kind == CH_PENDING_RECEIVED)
            tell_lost(t, o->link, o->id, o->incarnation);
        else if (o->kind == CH_PENDING_CALL)
            inproc_cancel(o->link, ch__pending_number(&t->table, o), o->bytes);
    }
}

static const ch_wire_ops wire = {.listen = inproc_listen,
                                 .connect = inproc_connect,
                                 .call = inproc_call,
                                 .cancel = inproc_cancel,
                                 .answer = inproc_answer,
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
    n->took = inproc_took;
    st = ch__threads_init(n, opt != NULL ? opt->spin_us : 0);
    if (st != CH_OK) {
        ch__free(n);
        return st;
    }
    *out = &n->net;
    return CH_OK;
}
