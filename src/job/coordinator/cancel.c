/* job/coordinator/cancel.c -- cancelling steps, so that a cancelled step has changed nothing.
 *
 * A step that was never sent to a worker is cancelled at once. A step that was sent may have
 * updates on their way to a server, or applied there. Such steps are cancelled in rounds, one
 * round after the other. A round (ch_cancel) has these phases:
 *
 *   DROPPING   The coordinator calls DROP on every worker with the steps of the round. A worker
 *              ends a step that has sent no update. A step that has sent an update runs to its
 *              end, which is near. The worker replies when none of the steps is running.
 *   HOLDING    The coordinator calls HOLD on every server with the steps that are left. From
 *              then on the server rejects their updates. It replies which of the steps have
 *              begun: it has applied at least one of their updates.
 *   RELEASING  A step that has begun on no server is cancelled. The coordinator pings all
 *              servers with the list of live steps, and they release the hold. The steps that
 *              have begun are then queued again and run to their end. Servers apply only the
 *              updates that they have not applied yet.
 *
 * Invariants:
 *   1. A step of a round (`is_held`) is not sent to a worker. It stays in the list of running
 *      steps, perhaps without an attempt, until the round has ended.
 *   2. A step ends as CANCELLED only if all servers have replied that it has not begun there.
 *      From that reply on each server rejects its updates: first because of the hold, later
 *      because the step has ended.
 *   3. A step that has begun (`has_begun`) is not cancelled any more.
 *   4. Own steps and assignments are never cancelled.
 * Correctness depends on servers alone. Workers are called first for two reasons. A step that
 * runs to its end costs less than a step that is repeated. And no step may be running when an
 * error is reported to the program.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "base/mutant.h"
#include "base/protobuf.h"
#include "job/coordinator/private.h"

static void advance(const ch_coord_context *t);

/* Returns the number of steps of the round that have not ended. */
static size_t count_held(const ch_coord *c)
{
    size_t n = 0;

    for (const ch_scheduled *s = c->running.first; s != NULL; s = s->after)
        n += s->is_held;
    return n;
}

/* Returns the numbers of the round's steps that have not ended, ascending, or NULL if memory is
 * exhausted. The caller must free the list with ch__free. */
static uint64_t *list_held(const ch_coord *c, size_t *n)
{
    uint64_t *step = ch__calloc(count_held(c) + 1, sizeof(*step));

    *n = 0;
    for (const ch_scheduled *s = c->oldest; s != NULL && step != NULL; s = s->next)
        if (s->is_held)
            step[(*n)++] = s->step;
    return step;
}

/* ---- workers ---- */

/* Handles the end of a DROP call. If the worker was lost meanwhile, its fence stops the
 * steps. */
static void on_dropped(const ch_coord_context *t, const ch_coord_call *call)
{
    if (t->c->cancel.phase != CH_DROPPING || call->arg != t->c->cancel.round)
        return;
    t->c->cancel.n_pending--;
    advance(t);
}

static ch_status pack_drop(const ch_coord *c, ch_message **out)
{
    Cohort__WorkerDrop m;
    ch_status          rc;

    cohort__worker_drop__init(&m);
    m.steps = list_held(c, &m.n_steps);
    rc = m.steps == NULL ? ch__fail_memory("a drop")
                         : ch__message_pack(CH_WORKER_DROP, &m.base, 0, NULL, out);
    ch__free(m.steps);
    return rc;
}

static void send_drop(const ch_coord_context *t, int worker)
{
    ch_message *p = NULL;

    if (pack_drop(t->c, &p) == CH_OK &&
        ch__coord_call(t, ch__to_worker(worker), p, on_dropped, t->c->cancel.round) == CH_OK)
        t->c->cancel.n_pending++;
    else /* memory is exhausted: let the fence stop the steps of this worker instead */
        ch__workers_declare_lost(t, t->c->worker[worker]);
}

/* Begins the phase DROPPING. */
static void call_workers(const ch_coord_context *t)
{
    ch_coord *c = t->c;

    c->cancel.phase = CH_DROPPING;
    c->cancel.n_pending = 1; /* this loop counts too, so that no call ends the phase */
    for (int i = 0; i < c->n_workers; i++)
        if (c->worker[i]->state == CH_WORKER_READY)
            send_drop(t, i);
    c->cancel.n_pending--;
}

/* ---- servers ---- */

static ch_status pack_hold(const ch_coord *c, ch_message **out)
{
    Cohort__PsHold m;
    ch_status      rc;

    cohort__ps_hold__init(&m);
    m.round = c->cancel.round;
    m.steps = list_held(c, &m.n_steps);
    rc = m.steps == NULL ? ch__fail_memory("a hold")
                         : ch__message_pack(CH_PS_HOLD, &m.base, 0, NULL, out);
    ch__free(m.steps);
    return rc;
}

/* Marks the steps that have begun. `begun` is ascending, and so is the list of all steps that
 * have not ended. (c->running is not: own steps are first there.) */
static void mark_begun(const ch_coord *c, size_t n, const uint64_t *begun)
{
    size_t i = 0;

    for (ch_scheduled *s = c->oldest; s != NULL; s = s->next) {
        while (i < n && begun[i] < s->step)
            i++;
        if (i < n && begun[i] == s->step && s->is_held)
            s->has_begun = true;
    }
}

/* Reads from a reply to HOLD which steps have begun. */
static ch_status read_hold_reply(const ch_coord *c, const ch_message *reply)
{
    ProtobufCMessage      *m = NULL;
    const Cohort__PsReply *done;
    ch_status              rc = ch__message_parse(reply, &cohort__ps_reply__descriptor, &m);

    if (rc != CH_OK)
        return rc;
    done = (const void *)m;
    mark_begun(c, done->n_begun, done->begun);
    ch__protobuf_free(m);
    return CH_OK;
}

/* Handles a server's reply to HOLD or PING. If the server or this task was out of memory, the
 * server is called again at the next tick. */
static void on_server_reply(const ch_coord_context *t, const ch_coord_call *call)
{
    ch_coord *c = t->c;

    if (call->arg != c->cancel.n_server_phases)
        return; /* a reply of an earlier phase */
    if (call->reply == NULL ||
        (c->cancel.phase == CH_HOLDING && read_hold_reply(c, call->reply) != CH_OK)) {
        c->server[call->to.index].is_called = false;
        return;
    }
    c->cancel.n_pending--;
    advance(t);
}

/* Calls the servers that have not been called in this phase. */
static void call_servers(const ch_coord_context *t)
{
    ch_coord *c = t->c;

    for (int i = 0; i < c->opt.n_servers; i++) {
        ch_message *p = NULL;
        ch_status   rc;

        if (c->server[i].is_called)
            continue;
        rc = c->cancel.phase == CH_HOLDING ? pack_hold(c, &p) : ch__queue_pack_retired(c, &p);
        c->server[i].is_called = true; /* before the call, because the call may end at once */
        if (rc == CH_OK)
            rc = ch__coord_call(t, ch__to_server(i), p, on_server_reply,
                                c->cancel.n_server_phases);
        if (rc != CH_OK) {
            c->server[i].is_called = false; /* the next tick calls it */
            return;
        }
    }
}

/* Begins the phase HOLDING or RELEASING. */
static void begin_server_phase(const ch_coord_context *t, ch_cancel_phase phase)
{
    ch_coord *c = t->c;

    c->cancel.phase = phase;
    c->cancel.n_server_phases++;
    c->cancel.n_pending = c->opt.n_servers;
    for (int i = 0; i < c->opt.n_servers; i++)
        c->server[i].is_called = false;
    call_servers(t);
}

void ch__cancel_tick(const ch_coord_context *t)
{
    if (t->c->cancel.phase == CH_HOLDING || t->c->cancel.phase == CH_RELEASING)
        call_servers(t);
}

/* ---- the decision ---- */

/* Cancels the steps of the round that have begun on no server. */
static void cancel_not_begun(const ch_coord_context *t)
{
    ch_scheduled *next;

    for (ch_scheduled *s = t->c->running.first; s != NULL; s = next) {
        next = s->after;
        if (s->is_held && !s->has_begun)
            ch__queue_end(t, s, CH_STEP_CANCELLED);
    }
}

/* Ends the round. The steps that are left have begun, so they are queued again. */
static void resume(const ch_coord_context *t)
{
    ch_scheduled *next;

    t->c->cancel.phase = CH_CANCEL_IDLE;
    for (ch_scheduled *s = t->c->running.first; s != NULL; s = next) {
        next = s->after;
        if (!s->is_held)
            continue;
        s->is_held = false;
        ch__queue_resume(t, s);
    }
}

/* ---- rounds ---- */

/* Begins a round with all running steps that are to be cancelled. Does nothing if there are
 * none. */
static void begin_round(const ch_coord_context *t)
{
    ch_coord *c = t->c;
    bool      is_any = false;

    for (ch_scheduled *s = c->running.first; s != NULL; s = s->after)
        if (s->wants_cancel && !s->has_begun) {
            is_any = s->is_held = true;
            c->cancel.upto = s->step > c->cancel.upto ? s->step : c->cancel.upto;
        }
    if (!is_any)
        return;
    c->cancel.round++;
    if (!CH_KEEPS(DOUBT))
        cancel_not_begun(t);
    call_workers(t);
}

/* Begins the next phase if all workers or servers have replied. */
static void advance(const ch_coord_context *t)
{
    ch_coord *c = t->c;

    if (c->cancel.phase == CH_CANCEL_IDLE || c->cancel.n_pending > 0)
        return;
    if (c->cancel.phase == CH_DROPPING && count_held(c) > 0) {
        begin_server_phase(t, CH_HOLDING);
    } else if (c->cancel.phase == CH_HOLDING) {
        cancel_not_begun(t);
        c->cancel.released = c->cancel.round;
        begin_server_phase(t, CH_RELEASING);
    } else { /* the hold is released, or all steps ended in DROPPING */
        resume(t);
        begin_round(t); /* with the steps for which a cancel was requested meanwhile */
        advance(t);     /* if no worker was called, there is no reply that would do it */
        ch__scheduler_send(t);
    }
}

/* Marks a step as to be cancelled. Cancels it at once if it was never sent. */
static void request(const ch_coord_context *t, ch_scheduled *s, ch_cancel_reason why)
{
    if (s->is_assign || s->is_own || s->wants_cancel || s->state >= CH_STEP_DONE)
        return;
    s->wants_cancel = true;
    s->cancel_reason = why;
    t->c->cancel.n_wanted++;
    if (s->was_sent)
        ch__queue_set_running(t->c, s);
    else
        ch__queue_end(t, s, CH_STEP_CANCELLED);
}

static void begin_if_idle(const ch_coord_context *t)
{
    if (t->c->cancel.phase != CH_CANCEL_IDLE)
        return;
    begin_round(t);
    advance(t); /* if no worker was called, there is no reply that would do it */
}

void ch__cancel_step(const ch_coord_context *t, ch_scheduled *s, ch_cancel_reason why)
{
    request(t, s, why);
    begin_if_idle(t);
}

void ch__cancel_all(const ch_coord_context *t, ch_cancel_reason why)
{
    ch_scheduled *next;

    for (ch_scheduled *s = t->c->oldest; s != NULL; s = next) {
        next = s->next;
        request(t, s, why);
    }
    begin_if_idle(t);
}

void ch__cancel_abort(ch_coord *c)
{
    c->cancel.phase = CH_CANCEL_IDLE;
}

bool ch__cancel_is_quiet(const ch_coord *c)
{
    if (!CH_KEEPS(QUIET))
        return true;
    if (c->cancel.phase != CH_CANCEL_IDLE || c->cancel.n_wanted > 0)
        return false;
    for (int i = 0; i < c->n_workers && !ch__fault_is_set(&c->broken); i++)
        if (c->worker[i]->state == CH_WORKER_FENCING)
            return false;
    return true;
}
