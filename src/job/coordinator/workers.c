/* job/coordinator/workers.c -- the worker table: pings, lost workers, objects that were sent.
 *
 * ch_worker_entry (private.h) is an entry. Its state changes like this:
 *
 *   ABSENT  -> READY    the worker replies to a ping
 *   READY   -> FENCING  the worker is silent, unreachable or restarted: it is declared lost
 *   FENCING -> ABSENT   all servers have replied to FENCE; the worker's steps are queued again
 *
 * Invariants:
 *   1. The registration is incremented when the worker is declared lost, before FENCE is sent.
 *      So a worker that comes back receives steps under a registration that is not fenced.
 *   2. The attempts of a lost worker end only when all servers have replied to FENCE. Until
 *      then a step of the worker is not repeated, and a successful reply of the worker still
 *      counts.
 *   3. A step function or stream is sent to a worker once in each registration, before the
 *      first step that needs it (`sent`). No step is sent to a worker that has not yet received
 *      them all (`n_sending`).
 *
 * coordinator.c calls this file at each tick and at the end of a ping. scheduler.c, input.c and
 * step_function.c call it to send and drop step functions and streams.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/mutant.h"
#include "base/protobuf.h"
#include "job/coordinator/private.h"

ch_status ch__workers_add(ch_coord *c, ch_worker_entry **out)
{
    ch_worker_entry *m = ch__calloc(1, sizeof(*m));

    if (m == NULL || !ch__grow((void **)&c->worker, &c->cap_workers, c->n_workers + 1,
                               sizeof(ch_worker_entry *))) {
        ch__free(m);
        return ch__fail_memory("a worker");
    }
    (void)snprintf(m->name, sizeof(m->name), "worker/%d", c->n_workers);
    m->link = ch__task_link(c->task, m->name);
    if (m->link == NULL) {
        ch__free(m);
        return ch__fail_memory("a worker");
    }
    m->registration = 1;
    m->alarm = ++c->n_ids;
    m->alarm_at = INT64_MAX;
    c->worker[c->n_workers++] = m;
    *out = m;
    return CH_OK;
}

/* Returns the index of a worker. */
static int index_of(const ch_coord *c, const ch_worker_entry *m)
{
    int i = 0;

    while (c->worker[i] != m)
        i++;
    return i;
}

/* ---- pings ---- */

/* Returns the number of ticks for which a worker may be silent. A worker that is receiving
 * large step functions or streams may be silent for longer, because it handles them before the
 * ping. */
static int64_t patience(const ch_coord *c, const ch_worker_entry *m)
{
    enum { TICK_BYTES = 1 << 20 }; /* bytes that a worker receives per tick, at least */

    return c->opt.misses + m->sending_bytes / TICK_BYTES;
}

/* Sends a ping if it is due. Declares a worker lost that was silent for too long. */
static void send_ping(const ch_coord_context *t, ch_worker_entry *m)
{
    Cohort__WorkerPing message;
    ch_message        *p = NULL;
    ch_coord          *c = t->c;
    int64_t            most = patience(c, m);

    cohort__worker_ping__init(&message);
    if (ch__heartbeat_tick(&m->heartbeat, m->link, most, m->state != CH_WORKER_READY) &&
        ch__message_pack(CH_WORKER_PING, &message.base, 0, NULL, &p) == CH_OK)
        ch__heartbeat_ping(&m->heartbeat, t->outbox, m->link, p,
                           (struct ch_heartbeat_ping){++c->n_ids, t->now},
                           t->now + most * c->opt.tick);
    if (m->state == CH_WORKER_READY && m->heartbeat.n_silent > most)
        ch__workers_declare_lost(t, m);
}

/* Handles a successful reply to a ping that was sent at `pinged_at`. A worker that was absent
 * becomes ready. A worker that was restarted is declared lost. For any other, the reply lists
 * its steps. */
static void on_alive(const ch_coord_context *t, ch_worker_entry *m, const ch_net_event *e,
                     int64_t pinged_at)
{
    ProtobufCMessage          *m_done = NULL;
    const Cohort__WorkerReply *done;

    m->heartbeat.n_silent = 0;
    if (ch__message_parse(e->message, &cohort__worker_reply__descriptor, &m_done) != CH_OK)
        return;
    done = (const void *)m_done;
    if (m->state == CH_WORKER_ABSENT) {
        m->state = CH_WORKER_READY;
        m->incarnation = e->peer.incarnation;
        ch__map_drop(&m->sent);
        m->sent = (ch_map){0};
        m->is_overdue = done->busy; /* with a step from before it was declared lost */
        m->overdue_at = pinged_at;
        ch__scheduler_send(t);
    } else if (m->state == CH_WORKER_READY && m->incarnation != e->peer.incarnation &&
               CH_KEEPS(INCARNATION)) {
        ch__workers_declare_lost(t, m);
    } else if (m->state == CH_WORKER_READY) {
        m->is_overdue &= done->busy || pinged_at < m->overdue_at;
        ch__attempts_on_ping(t, m, done, pinged_at);
    }
    ch__protobuf_free(m_done);
}

void ch__workers_on_ping(const ch_coord_context *t, ch_worker_entry *m, const ch_net_event *e,
                         int64_t at)
{
    if (e->ending == CH_ENDED_OK)
        on_alive(t, m, e, at);
    else if (e->ending == CH_ENDED_LOST)
        ch__workers_declare_lost(t, m);
}

/* ---- lost workers ---- */

/* Begins a round of FENCE calls to all servers. Servers may receive FENCE several times. */
static void begin_fencing(const ch_coord *c, ch_worker_entry *m)
{
    m->fence_round++;
    m->n_fence_calls = 0;
    m->n_unfenced = c->opt.n_servers;
}

/* Handles a server's reply to FENCE. After the last reply, the steps of the worker are
 * repeated. If a server replied with an error, because its memory was exhausted, the next tick
 * sends FENCE to all servers again. `arg` is the round and the index of the worker. */
static void on_fenced(const ch_coord_context *t, const ch_coord_call *call)
{
    int              worker = (int)(call->arg & UINT32_MAX);
    ch_worker_entry *m = t->c->worker[worker];

    if (m->state != CH_WORKER_FENCING || m->fence_round != (uint32_t)(call->arg >> 32))
        return;
    if (call->reply == NULL) {
        begin_fencing(t->c, m);
        return;
    }
    if (--m->n_unfenced > 0)
        return;
    m->state = CH_WORKER_ABSENT;
    ch__attempts_worker_lost(t, worker);
    ch__scheduler_send(t);
}

/* Sends FENCE to the servers to which it was not sent in this round. If memory is exhausted,
 * the next tick begins a new round. */
static void send_fences(const ch_coord_context *t, ch_worker_entry *m)
{
    Cohort__PsFence message;
    uint32_t        round = m->fence_round;
    uint64_t        arg = (uint64_t)round << 32 | (uint32_t)index_of(t->c, m);

    cohort__ps_fence__init(&message);
    message.worker = m->name;
    message.registration = m->registration;
    while (m->n_fence_calls < t->c->opt.n_servers) {
        ch_message *p = NULL;

        if (ch__message_pack(CH_PS_FENCE, &message.base, 0, NULL, &p) != CH_OK ||
            ch__coord_call(t, ch__to_server(m->n_fence_calls++), p, on_fenced, arg) != CH_OK) {
            begin_fencing(t->c, m);
            return;
        }
        if (m->fence_round != round) /* the call ended at once, with an error */
            return;
    }
}

void ch__workers_declare_lost(const ch_coord_context *t, ch_worker_entry *m)
{
    if (m->state != CH_WORKER_READY)
        return;
    ch__log(
        CH_LOG_WARNING, "worker-lost",
        "%s (incarnation %llu) does not reply or was restarted; it had %d steps, which will be "
        "repeated",
        m->name, (unsigned long long)m->incarnation, m->n_runs);
    m->state = CH_WORKER_FENCING;
    m->registration++;
    ch__heartbeat_cancel(&m->heartbeat, t->outbox);
    begin_fencing(t->c, m);
    m->n_losses++;
    t->c->stats.workers_lost++;
    t->c->stats.last_lost = index_of(t->c, m);
    ch__coord_calls_end(t, ch__to_worker(index_of(t->c, m)));
    m->n_sending = 0;
    m->sending_bytes = 0;
    if (CH_KEEPS(FENCE)) {
        send_fences(t, m);
    } else {
        m->state = CH_WORKER_ABSENT;
        ch__attempts_worker_lost(t, index_of(t->c, m));
    }
}

void ch__workers_tick(const ch_coord_context *t)
{
    for (int i = 0; i < t->c->n_workers; i++) {
        send_ping(t, t->c->worker[i]);
        if (t->c->worker[i]->state == CH_WORKER_FENCING)
            send_fences(t, t->c->worker[i]);
    }
}

/* ---- step functions and streams ---- */

/* Sends DROP for one object to a worker. */
static void send_drop(const ch_coord_context *t, int worker, uint64_t number, ch_sent_kind kind)
{
    Cohort__WorkerDrop m;
    ch_message        *p = NULL;

    cohort__worker_drop__init(&m);
    m.n_functions = kind == CH_SENT_STEP_FUNCTION;
    m.n_streams = kind == CH_SENT_STREAM;
    m.n_per_worker = kind == CH_SENT_PER_WORKER;
    m.functions = m.streams = m.per_worker = &number;
    /* If memory is exhausted, the worker keeps the object until it ends. */
    if (ch__message_pack(CH_WORKER_DROP, &m.base, 0, NULL, &p) == CH_OK)
        (void)!ch__coord_call(t, ch__to_worker(worker), p, NULL, 0);
}

/* A per-worker variable arrives at a worker with the step functions that use it, so `sent` does
 * not list it, and DROP is sent to all workers. */
void ch__workers_drop(const ch_coord_context *t, uint64_t number, ch_sent_kind kind)
{
    for (int i = 0; i < t->c->n_workers && t->outbox != NULL; i++) {
        ch_worker_entry *m = t->c->worker[i];
        bool             has_object =
            ch__map_remove(&m->sent, (ch_key){number, 0}) != NULL || kind == CH_SENT_PER_WORKER;

        if (has_object && m->state == CH_WORKER_READY)
            send_drop(t, i, number, kind);
    }
}

/* Handles the reply to a step function or a stream. If the worker has rejected it, fails the
 * steps that need it. */
static void on_sent(const ch_coord_context *t, const ch_coord_call *call)
{
    ch_worker_entry *m = t->c->worker[call->to.index];

    if (m->registration != call->registration)
        return; /* the worker was declared lost meanwhile */
    m->n_sending--;
    m->sending_bytes -= ch__message_size(call->retry.message);
    if (call->reply == NULL) {
        (void)ch__map_remove(&m->sent, (ch_key){call->arg, 0});
        if (call->fault != NULL)
            ch__queue_fail_users(t, call->arg, call->fault);
    }
    ch__scheduler_send(t);
}

bool ch__workers_send_once(const ch_coord_context *t, ch_worker_entry *m, uint64_t number,
                           ch_message *message)
{
    if (ch__map_find(&m->sent, (ch_key){number, 0}) != NULL)
        return m->n_sending == 0;
    if (ch__map_set(&m->sent, (ch_key){number, 0}, m) != CH_OK)
        return false;
    if (ch__coord_call(t, ch__to_worker(index_of(t->c, m)), ch__message_ref(message), on_sent,
                       number) != CH_OK) {
        (void)ch__map_remove(&m->sent, (ch_key){number, 0});
        return false;
    }
    m->n_sending++;
    m->sending_bytes += ch__message_size(message);
    return false;
}
