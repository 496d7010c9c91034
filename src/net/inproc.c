/* net/inproc.c -- the wire between tasks of one process: frames are passed on without encoding.
 *
 * A link has a slot (slots.h), whose number is in the return path of its calls. The generation
 * of the slot changes when the incarnation that made the calls ends.
 *
 * Calls carry no timeout, because this wire delivers every cancel unless memory is exhausted. A
 * caller that cancels call after call must not fill the mailbox of a callee that does not read
 * it. So the link holds the room of a cancelled call (ch_link.n_held) until the callee has
 * taken the cancel out of its mailbox.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/threads.h"

/* The wire's data of a link (ch_link.end), and of its slot. */
typedef struct inproc_link {
    ch_link         *link;
    ch_threads_task *peer;
    ch_return_path   back; /* of the calls of the current incarnation */
} inproc_link;

static ch_threads_task *threads_task_of(ch_task *t)
{
    return (ch_threads_task *)(void *)t;
}

/* Reaches every task that was started on the net. Its room is known at once. */
static ch_status inproc_connect(ch_net_wire *w, ch_link *l, const char *address)
{
    ch_task     *peer = ch__net_find(w->net, l->name);
    inproc_link *e = peer != NULL ? ch__calloc(1, sizeof(*e)) : NULL;
    bool         has_slot = false;

    (void)address;
    if (peer == NULL)
        return CH_NOT_FOUND;
    if (e != NULL) {
        pthread_mutex_lock(&w->net->lock);
        has_slot = ch__slots_add(&w->slots, w, e, &e->back);
        pthread_mutex_unlock(&w->net->lock);
    }
    if (!has_slot) {
        ch__free(e);
        return ch__fail_memory("link");
    }
    e->link = l;
    e->peer = threads_task_of(peer);
    l->end = e;
    ch__link_set_credit(l, peer->opt.calls, peer->opt.bytes);
    return CH_OK;
}

static ch_ending inproc_call(ch_link *l, ch_frame *f)
{
    inproc_link *e = l->end;

    f->timeout = 0;
    f->name = l->task->name;
    f->role = l->task->role;
    f->back = e->back;
    return ch__mailbox_put(e->peer, f, threads_task_of(l->task)) ? CH_ENDED_OK : CH_ENDED_LOST;
}

static void hold(ch_link *l, int calls, int64_t bytes)
{
    atomic_fetch_add(&l->n_held, calls);
    atomic_fetch_add(&l->held_bytes, bytes);
}

static void inproc_cancel(ch_link *l, uint64_t call, int64_t bytes)
{
    inproc_link *e = l->end;
    ch_frame     f = {.kind = CH_FRAME_CANCEL,
                      .call = call,
                      .from = l->task->incarnation,
                      .timeout = bytes,
                      .name = l->task->name,
                      .back = e->back};

    hold(l, 1, bytes);
    if (!ch__mailbox_put(e->peer, &f, threads_task_of(l->task)))
        hold(l, -1, -bytes);
}

static void inproc_reply(ch_task *t, ch_return_path back, ch_frame *f)
{
    ch_slot           *slot = ch__slots_at(&back.wire->slots, back);
    const inproc_link *e = slot != NULL ? slot->end : NULL;

    f->name = t->name;
    if (e == NULL || !ch__mailbox_put(threads_task_of(e->link->task), f, threads_task_of(t)))
        ch__frame_drop(f);
}

static void inproc_close_link(ch_link *l)
{
    inproc_link *e = l->end;

    ch__slots_end(&l->wire->slots, e->back);
    ch__free(e);
}

/* Ends the return paths of the task's calls, and notifies the callees. */
static void leave_callees(ch_net_wire *w, ch_task *t)
{
    for (int i = 0; i < t->n_links; i++) {
        inproc_link *e = t->link[i]->end;

        if (t->link[i]->wire != w)
            continue;
        if (t->link[i]->n_calls > 0)
            (void)ch__mailbox_put_left(e->peer, e->back, threads_task_of(t));
        e->back.generation = ch__slots_renew(&w->slots, e->back);
    }
}

static void inproc_close(ch_net_wire *w, ch_task *t)
{
    if (t == NULL) {
        ch__slots_free(&w->slots);
        ch__free(w);
        return;
    }
    for (int i = 0; i < t->table.cap; i++) {
        const ch_pending *o = &t->table.entry[i];

        if (o->kind == CH_PENDING_RECEIVED && o->received.back.wire == w)
            ch__call_end_lost(t, &(ch_frame){.call = o->id,
                                             .from = o->received.incarnation,
                                             .back = o->received.back});
    }
    leave_callees(w, t);
}

/* ---- threads ---- */

static void inproc_sleep(ch_net_wire *w, ch_gate *g, unsigned seen, int64_t until)
{
    (void)w;
    ch__gate_idle_until(g, seen, until);
}

static void inproc_wake(ch_net_wire *w, ch_gate *g)
{
    (void)w;
    ch__gate_open(g);
}

static const ch_wire_ops ops = {.connect = inproc_connect,
                                .call = inproc_call,
                                .cancel = inproc_cancel,
                                .reply = inproc_reply,
                                .close_link = inproc_close_link,
                                .close = inproc_close,
                                .sleep = inproc_sleep,
                                .wake = inproc_wake};

/* Returns the room of a cancelled call to its link. The `timeout` of a cancel holds its
 * bytes. */
static void frame_removed(const ch_frame *f)
{
    if (f->kind != CH_FRAME_CANCEL || f->back.wire->ops != &ops)
        return;
    hold(((inproc_link *)ch__slots_get(&f->back.wire->slots, f->back.slot)->end)->link, -1,
         -f->timeout);
}

ch_status ch__net_inproc(const ch_inproc_options *opt, ch_net **out)
{
    ch_threads  *n = ch__calloc(1, sizeof(*n));
    ch_net_wire *w = ch__calloc(1, sizeof(*w));
    ch_status    st = n != NULL && w != NULL ? CH_OK : ch__fail_memory("net");

    if (st == CH_OK) {
        w->ops = &ops;
        w->reaches_names = true;
        n->frame_removed = frame_removed;
        st = ch__threads_init(n, w, opt != NULL ? opt->spin_us : 0);
    }
    if (st != CH_OK) {
        ch__free(n);
        ch__free(w);
        return st;
    }
    *out = &n->net;
    return CH_OK;
}
