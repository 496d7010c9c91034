/* job/coordinator/cancel.c -- cancelling steps, so that a cancelled step has changed nothing.
 *
 * A step that was never sent to a worker is cancelled at once. Of any other step an update may be on its way to a server, or
 * applied there. Such steps are cancelled in rounds, one after the other:
 *
 *   DROPPING   every worker is told to drop the steps of the round. A worker ends a step that has sent no update, and runs
 *              a step that has sent one to its end, which is near
 *   HOLDING    every server is asked to hold the steps that are left: from then on it refuses their updates, and it
 *              answers which of them it had applied, in whole or in part, until then
 *   RELEASING  a step that no server has applied is cancelled; servers are told so, and release the hold. Any other step
 *              has begun: it is run again, to its end. Servers apply the missing updates and no others
 *
 * Invariants:
 *   1. A step of a round (`is_held`) is not sent to a worker. It stays in the list of running steps, perhaps without an
 *      attempt, until the round is over.
 *   2. A step ends as CANCELLED only if all servers have answered that they have not applied it. Each of them refuses its
 *      updates from that answer on: first because of the hold, later because the step has ended.
 *   3. A step that has begun is not cancelled any more (`has_begun`).
 * Correctness depends on servers alone. Workers are told first because a step that runs to its end costs less than a step
 * that is run again, and because nothing may run when an error is reported.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "base/mutant.h"
#include "base/protobuf.h"
#include "job/coordinator/private.h"

static void look_at_phase(const ch_coord_context *t);

static size_t count_held(const ch_coord *c)
{
    size_t n = 0;

    for (const ch_scheduled *s = c->running.first; s != NULL; s = s->after)
        n += s->is_held;
    return n;
}

/* The steps of the round that have not ended, rising. The caller frees the list. NULL: no memory. */
static uint64_t *list_held(const ch_coord *c, size_t *n)
{
    uint64_t *step = ch__calloc(count_held(c) + 1, sizeof(*step));

    *n = 0;
    for (const ch_scheduled *s = c->running.first; s != NULL && step != NULL; s = s->after)
        if (s->is_held)
            step[(*n)++] = s->step;
    return step;
}

/* ---- workers ---- */

static void dropped(const ch_coord_context *t, const ch_coord_call *call)
{
    if (t->c->cancel.phase != CH_DROPPING || call->arg != t->c->cancel.round)
        return;
    t->c->cancel.n_waits--;
    look_at_phase(t);
}

static ch_status speak_drop(const ch_coord *c, ch_message **out)
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

static void tell_worker(const ch_coord_context *t, int worker)
{
    ch_message *p = NULL;

    if (speak_drop(t->c, &p) == CH_OK &&
        ch__coord_call(t, ch__to_worker(worker), p, dropped, t->c->cancel.round) == CH_OK)
        t->c->cancel.n_waits++;
    else /* the fence then keeps the steps of this worker from changing variables */
        ch__workers_declare_lost(t, t->c->worker[worker]);
}

static void drop_in_workers(const ch_coord_context *t)
{
    ch_coord *c = t->c;

    c->cancel.phase = CH_DROPPING;
    c->cancel.n_waits = 1; /* this loop, so that no call ends the phase */
    for (int i = 0; i < c->n_workers; i++)
        if (c->worker[i]->state == CH_WORKER_READY)
            tell_worker(t, i);
    c->cancel.n_waits--;
}

/* ---- servers ---- */

static ch_status speak_hold(const ch_coord *c, ch_message **out)
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

/* Both lists rise. */
static void take_begun(const ch_coord *c, size_t n, const uint64_t *begun)
{
    size_t i = 0;

    for (ch_scheduled *s = c->running.first; s != NULL; s = s->after) {
        while (i < n && begun[i] < s->step)
            i++;
        if (i < n && begun[i] == s->step && s->is_held)
            s->has_begun = true;
    }
}

static ch_status take_held(const ch_coord *c, const ch_message *answer)
{
    ProtobufCMessage      *m = NULL;
    const Cohort__PsReply *done;
    ch_status              rc = ch__message_parse(answer, &cohort__ps_reply__descriptor, &m);

    if (rc != CH_OK)
        return rc;
    done = (const void *)m;
    take_begun(c, done->n_begun, done->begun);
    ch__protobuf_free(m);
    return CH_OK;
}

/* If the server or this task had no memory, the server is called again at the next tick. */
static void server_replied(const ch_coord_context *t, const ch_coord_call *call)
{
    ch_coord *c = t->c;

    if (call->arg != c->cancel.n_tells)
        return; /* of an earlier phase */
    if (call->reply == NULL ||
        (c->cancel.phase == CH_HOLDING && take_held(c, call->reply) != CH_OK)) {
        c->server[call->to.index].is_told = false;
        return;
    }
    c->cancel.n_waits--;
    look_at_phase(t);
}

/* Calls the servers that have not been called in this phase. */
static void tell_servers(const ch_coord_context *t)
{
    ch_coord *c = t->c;

    for (int i = 0; i < c->opt.n_servers; i++) {
        ch_message *p = NULL;
        ch_status   rc;

        if (c->server[i].is_told)
            continue;
        rc = c->cancel.phase == CH_HOLDING ? speak_hold(c, &p) : ch__queue_pack_retired(c, &p);
        c->server[i].is_told = true; /* before the call, which may end at once */
        if (rc == CH_OK)
            rc = ch__coord_call(t, ch__to_server(i), p, server_replied, c->cancel.n_tells);
        if (rc != CH_OK) {
            c->server[i].is_told = false; /* it is called at the next tick */
            return;
        }
    }
}

static void begin_telling(const ch_coord_context *t, ch_cancel_phase phase)
{
    ch_coord *c = t->c;

    c->cancel.phase = phase;
    c->cancel.n_tells++;
    c->cancel.n_waits = c->opt.n_servers;
    for (int i = 0; i < c->opt.n_servers; i++)
        c->server[i].is_told = false;
    tell_servers(t);
}

void ch__cancel_tick(const ch_coord_context *t)
{
    if (t->c->cancel.phase == CH_HOLDING || t->c->cancel.phase == CH_RELEASING)
        tell_servers(t);
}

/* ---- the verdict ---- */

static void end_not_begun(const ch_coord_context *t)
{
    ch_scheduled *next;

    for (ch_scheduled *s = t->c->running.first; s != NULL; s = next) {
        next = s->after;
        if (s->is_held && !s->has_begun)
            ch__queue_end(t, s, CH_STEP_CANCELLED);
    }
}

/* The round is over: the steps of it that are left have begun, and are run again. */
static void resume(const ch_coord_context *t)
{
    ch_scheduled *next;

    t->c->cancel.phase = CH_CALM;
    for (ch_scheduled *s = t->c->running.first; s != NULL; s = next) {
        next = s->after;
        if (!s->is_held)
            continue;
        s->is_held = false;
        ch__queue_resume(t, s);
    }
}

/* ---- rounds ---- */

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
        end_not_begun(t);
    drop_in_workers(t);
}

/* Goes on to the next phase when all have answered. */
static void look_at_phase(const ch_coord_context *t)
{
    ch_coord *c = t->c;

    if (c->cancel.phase == CH_CALM || c->cancel.n_waits > 0)
        return;
    if (c->cancel.phase == CH_DROPPING && count_held(c) > 0) {
        begin_telling(t, CH_HOLDING);
    } else if (c->cancel.phase == CH_HOLDING) {
        end_not_begun(t);
        c->cancel.released = c->cancel.round;
        begin_telling(t, CH_RELEASING);
    } else { /* released, or all have ended while workers were told */
        resume(t);
        begin_round(t); /* of those that were asked for meanwhile */
        ch__queue_move(t);
    }
}

static void mark(const ch_coord_context *t, ch_scheduled *s, ch_cancel_reason why)
{
    if (s->is_assign || s->is_own || s->wants_cancel || s->state >= CH_STEP_DONE)
        return;
    s->wants_cancel = true;
    s->cancel_reason = why;
    t->c->cancel.n_wanted++;
    if (s->was_sent)
        ch__queue_park(t->c, s);
    else
        ch__queue_end(t, s, CH_STEP_CANCELLED);
}

static void begin_if_calm(const ch_coord_context *t)
{
    if (t->c->cancel.phase != CH_CALM)
        return;
    begin_round(t);
    look_at_phase(t); /* if no worker was asked, no answer comes */
}

void ch__cancel_step(const ch_coord_context *t, ch_scheduled *s, ch_cancel_reason why)
{
    mark(t, s, why);
    begin_if_calm(t);
}

void ch__cancel_all(const ch_coord_context *t, ch_cancel_reason why)
{
    ch_scheduled *next;

    for (ch_scheduled *s = t->c->oldest; s != NULL; s = next) {
        next = s->next;
        mark(t, s, why);
    }
    begin_if_calm(t);
}

void ch__cancel_give_up(ch_coord *c)
{
    c->cancel.phase = CH_CALM;
}

bool ch__cancel_is_quiet(const ch_coord *c)
{
    if (!CH_KEEPS(QUIET))
        return true;
    if (c->cancel.phase != CH_CALM || c->cancel.n_wanted > 0)
        return false;
    for (int i = 0; i < c->n_workers && !ch__fault_is_set(&c->broken); i++)
        if (c->worker[i]->state == CH_WORKER_FENCING)
            return false;
    return true;
}
