/* job/coordinator/workers.c -- the workers of a coordinator: who is there, who was told what, who is given up.
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

static int number_of(const ch_coord *c, const ch_worker_entry *m)
{
    int i = 0;

    while (c->worker[i] != m)
        i++;
    return i;
}

/* ---- the beat ---- */

/* Who is told something large has that to do first. */
static int64_t patience(const ch_coord *c, const ch_worker_entry *m)
{
    enum { TICK_BYTES = 1 << 20 }; /* that it takes in, in a beat, at least */

    return c->opt.misses + m->told / TICK_BYTES;
}

static void ping(const ch_coord_context *t, ch_worker_entry *m)
{
    Cohort__WorkerPing message;
    ch_message        *p = NULL;
    ch_coord          *c = t->c;
    int64_t            most = patience(c, m);

    cohort__worker_ping__init(&message);
    if (ch__heartbeat_tick(&m->heartbeat, most, m->state != CH_WORKER_READY) &&
        ch__message_pack(CH_WORKER_PING, &message.base, 0, NULL, &p) == CH_OK)
        ch__heartbeat_ping(&m->heartbeat, t->outbox, m->link, p,
                           (struct ch_heartbeat_ping){++c->n_ids, t->now},
                           t->now + most * c->opt.tick);
    if (m->state == CH_WORKER_READY && m->heartbeat.n_silent > most)
        ch__workers_declare_lost(t, m);
}

/* It is there: it was not before, or it says which steps it has. */
static void is_there(const ch_coord_context *t, ch_worker_entry *m, const ch_net_event *e,
                     int64_t asked)
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
        ch__map_drop(&m->knows);
        m->knows = (ch_map){0};
        m->is_overdue = done->busy; /* with a step from before it was given up */
        m->overdue_at = asked;
        ch__queue_move(t);
    } else if (m->state == CH_WORKER_READY && m->incarnation != e->peer.incarnation &&
               CH_KEEPS(INCARNATION)) {
        ch__workers_declare_lost(t, m);
    } else if (m->state == CH_WORKER_READY) {
        m->is_overdue &= done->busy || asked < m->overdue_at;
        ch__queue_pinged(t, m, done, asked);
    }
    ch__protobuf_free(m_done);
}

void ch__workers_on_ping(const ch_coord_context *t, ch_worker_entry *m, const ch_net_event *e,
                         int64_t at)
{
    if (e->ending == CH_ENDED_OK)
        is_there(t, m, e, at);
    else if (e->ending == CH_ENDED_LOST)
        ch__workers_declare_lost(t, m);
}

/* ---- giving up ---- */

static void fenced(const ch_coord_context *t, const ch_coord_call *call)
{
    ch_worker_entry *m = t->c->worker[call->arg];

    if (call->reply == NULL || m->state != CH_WORKER_FENCING)
        return; /* the server is lost, and so is the job */
    if (--m->n_fences > 0)
        return;
    m->state = CH_WORKER_ABSENT;
    ch__queue_orphans(t, (int)call->arg);
    ch__queue_move(t);
}

/* Calls the servers that were not called yet. Without memory the next tick does the rest. */
static void raise_fences(const ch_coord_context *t, ch_worker_entry *m)
{
    Cohort__PsFence message;

    cohort__ps_fence__init(&message);
    message.worker = m->name;
    message.registration = m->registration;
    while (m->n_fenced < t->c->opt.n_servers) {
        ch_message *p = NULL;

        if (ch__message_pack(CH_PS_FENCE, &message.base, 0, NULL, &p) != CH_OK ||
            ch__coord_call(t, ch__to_server(m->n_fenced), p, fenced,
                           (uint64_t)number_of(t->c, m)) != CH_OK)
            return;
        m->n_fenced++;
    }
}

void ch__workers_declare_lost(const ch_coord_context *t, ch_worker_entry *m)
{
    if (m->state != CH_WORKER_READY)
        return;
    ch__log(CH_LOG_WARNING, "worker-lost",
            "%s (life %llu), which had %d steps, does not answer or was started again: others "
            "run its steps",
            m->name, (unsigned long long)m->incarnation, m->n_runs);
    m->state = CH_WORKER_FENCING;
    m->registration++;
    ch__heartbeat_cancel(&m->heartbeat, t->outbox);
    m->n_fenced = 0;
    m->n_fences = t->c->opt.n_servers;
    m->n_losses++;
    t->c->stats.workers_lost++;
    t->c->stats.last_lost = number_of(t->c, m);
    ch__coord_calls_end(t, ch__to_worker(number_of(t->c, m)));
    m->n_told = 0;
    m->told = 0;
    if (CH_KEEPS(FENCE)) {
        raise_fences(t, m);
    } else {
        m->state = CH_WORKER_ABSENT;
        ch__queue_orphans(t, number_of(t->c, m));
    }
}

void ch__workers_tick(const ch_coord_context *t)
{
    for (int i = 0; i < t->c->n_workers; i++) {
        ping(t, t->c->worker[i]);
        if (t->c->worker[i]->state == CH_WORKER_FENCING)
            raise_fences(t, t->c->worker[i]);
    }
}

/* ---- telling ---- */

static void forget(const ch_coord_context *t, int worker, uint64_t number, ch_known what)
{
    Cohort__WorkerDrop m;
    ch_message        *p = NULL;

    cohort__worker_drop__init(&m);
    m.n_functions = what == CH_KNOWN_FUNCTION;
    m.n_streams = what == CH_KNOWN_STREAM;
    m.n_per_worker = what == CH_KNOWN_PER_WORKER;
    m.functions = m.streams = m.per_worker = &number;
    /* Without memory the worker keeps it until it ends. */
    if (ch__message_pack(CH_WORKER_DROP, &m.base, 0, NULL, &p) == CH_OK)
        (void)!ch__coord_call(t, ch__to_worker(worker), p, NULL, 0);
}

/* A variable that a worker keeps it knows with the functions that use it. */
void ch__workers_forget(const ch_coord_context *t, uint64_t number, ch_known what)
{
    for (int i = 0; i < t->c->n_workers && t->outbox != NULL; i++) {
        ch_worker_entry *m = t->c->worker[i];
        bool             knows = ch__map_remove(&m->knows, (ch_key){number, 0}) != NULL ||
                     what == CH_KNOWN_PER_WORKER;

        if (knows && m->state == CH_WORKER_READY)
            forget(t, i, number, what);
    }
}

/* A worker has received a function or a stream, or could not take it. */
static void told(const ch_coord_context *t, const ch_coord_call *call)
{
    ch_worker_entry *m = t->c->worker[call->to.index];

    if (m->registration != call->registration)
        return; /* the worker was declared lost meanwhile */
    m->n_told--;
    m->told -= ch__message_size(call->retry.message);
    if (call->reply == NULL) {
        (void)ch__map_remove(&m->knows, (ch_key){call->arg, 0});
        if (call->fault != NULL)
            ch__queue_unfit(t, call->arg, call->fault);
    }
    ch__queue_move(t);
}

bool ch__workers_send_once(const ch_coord_context *t, ch_worker_entry *m, uint64_t number,
                           ch_message *what)
{
    if (ch__map_find(&m->knows, (ch_key){number, 0}) != NULL)
        return m->n_told == 0;
    if (ch__map_set(&m->knows, (ch_key){number, 0}, m) != CH_OK)
        return false;
    if (ch__coord_call(t, ch__to_worker(number_of(t->c, m)), ch__message_ref(what), told,
                       number) != CH_OK) {
        (void)ch__map_remove(&m->knows, (ch_key){number, 0});
        return false;
    }
    m->n_told++;
    m->told += ch__message_size(what);
    return false;
}
