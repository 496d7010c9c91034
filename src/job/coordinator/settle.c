/* job/coordinator/settle.c -- the updates of rounds, applied in the order of their steps.
 *
 * The result of a round of CH_SYNCHRONOUS must not depend on the order in which its steps end,
 * because sums of floats do. So a step of a round that is not the oldest runs with `defers`:
 * servers keep its updates. When the worker has replied, the step is accepted
 * (ch__settle_accept). Then ch__settle, which scheduler.c calls, sends SETTLE to all servers
 * with the accepted steps before which no step is left. Servers apply the updates of these
 * steps in the order of their numbers. When all servers have replied, the steps end.
 *
 * The oldest step applies its updates at once, because no other step comes before it. A step
 * whose updates have results (ch_step_function.has_results) cannot be deferred, because the
 * worker needs the results; it begins when it is the oldest (scheduler.c).
 *
 * Invariants:
 *   1. An accepted step is in the list of running steps, has no attempt, is not sent again and
 *      is not cancelled. If its worker is lost, nothing is lost: servers have the updates.
 *   2. One SETTLE call is pending at a time. A call that was not carried out is repeated at the
 *      next tick. Servers apply an update once, so a repeated call is safe.
 *   3. If an update fails, its step fails. The accepted steps after it are settled by the next
 *      call. Servers that have already applied their updates do nothing then.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/mem.h"
#include "base/protobuf.h"
#include "job/coordinator/private.h"

void ch__settle_accept(const ch_coord_context *t, ch_scheduled *s)
{
    for (int i = 0; i < CH_ATTEMPTS; i++)
        ch__attempt_end(t, s, i);
    s->is_accepted = true;
    s->has_begun = true; /* so it is not cancelled any more */
    s->is_held = false;
    t->c->settle.n_accepted++;
}

/* Marks the accepted steps before which no step is left. Returns their number. */
static size_t mark_steps(const ch_coord *c)
{
    size_t n = 0;

    for (ch_scheduled *s = c->oldest; s != NULL; s = s->next) {
        if (s->is_own || s->is_assign)
            continue; /* no part of rounds */
        if (!s->is_accepted)
            break;
        s->is_settling = true;
        n++;
    }
    return n;
}

/* Makes a SETTLE message with the n marked steps. */
static ch_status pack_settle(const ch_coord *c, size_t n, ch_message **out)
{
    Cohort__PsSettle m;
    ch_status        rc;

    cohort__ps_settle__init(&m);
    m.steps = ch__calloc(n, sizeof(*m.steps));
    for (const ch_scheduled *s = c->oldest; m.steps != NULL && m.n_steps < n; s = s->next)
        if (s->is_settling)
            m.steps[m.n_steps++] = s->step;
    rc = m.steps == NULL ? ch__fail_memory("a settle")
                         : ch__message_pack(CH_PS_SETTLE, &m.base, 0, NULL, out);
    ch__free(m.steps);
    return rc;
}

/* Ends the marked steps: those before a failed step as done, the failed step as failed. The
 * steps after it stay accepted. */
static void end_steps(const ch_coord_context *t)
{
    ch_settle    *now = &t->c->settle;
    ch_scheduled *next;

    for (ch_scheduled *s = t->c->oldest; s != NULL; s = next) {
        next = s->next;
        if (!s->is_settling)
            continue;
        s->is_settling = false;
        if (now->has_failed || (now->failed != 0 && s->step > now->failed))
            continue;
        if (s->step == now->failed)
            ch__queue_fail(t, s, &now->fault);
        else
            ch__queue_end(t, s, CH_STEP_DONE);
    }
}

/* Records the failure of a step's update, unless an earlier step has failed too. */
static void record_failure(const ch_coord *c, ch_settle *now, int server,
                           const Cohort__PsReply *reply)
{
    if (reply->failed == 0 || (now->failed != 0 && now->failed <= reply->failed))
        return;
    now->failed = reply->failed;
    ch__fault_clear(&now->fault);
    (void)ch__fault_record(&now->fault,
                           ch__fail(reply->code > 0 && reply->code <= CH_UNAUTHENTICATED
                                        ? (ch_status)reply->code
                                        : CH_INTERNAL,
                                    "%s", reply->text),
                           -1, NULL);
    (void)snprintf(now->fault.task, sizeof(now->fault.task), "%s", c->server[server].name);
}

/* Handles a server's reply to SETTLE, or an error in its place. */
static void on_settled(const ch_coord_context *t, const ch_coord_call *call)
{
    ch_settle        *now = &t->c->settle;
    ProtobufCMessage *m = NULL;

    if (call->arg != now->number)
        return;
    if (call->reply == NULL ||
        ch__message_parse(call->reply, &cohort__ps_reply__descriptor, &m) != CH_OK)
        now->has_failed = true;
    else
        record_failure(t->c, now, call->to.index, (const void *)m);
    ch__protobuf_free(m);
    if (--now->n_pending > 0)
        return;
    end_steps(t);
    if (!now->has_failed) /* otherwise the next tick repeats the call */
        ch__scheduler_send(t);
}

void ch__settle(const ch_coord_context *t)
{
    ch_settle  *now = &t->c->settle;
    ch_message *p = NULL;
    size_t      n;

    if (now->n_accepted == 0 || now->n_pending > 0)
        return;
    n = mark_steps(t->c);
    if (n == 0 || pack_settle(t->c, n, &p) != CH_OK)
        return;
    now->n_pending = t->c->opt.n_servers;
    now->has_failed = false;
    now->failed = 0;
    (void)ch__coord_call_servers(t, p, on_settled, ++now->number);
}

void ch__settle_abort(ch_coord *c)
{
    c->settle.number++;
    c->settle.n_pending = 0;
}
