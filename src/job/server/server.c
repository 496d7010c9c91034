/* job/server/server.c -- the task of a parameter server: a handler for each method.
 *
 * Each handler passes its decoded request to the server state (state.h) and replies before it
 * returns. If a handler returns an error, ch__dispatch replies with that error. `self` of the
 * task is the ch_server_state. The task makes no calls and sets no timers.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/server.h"

#include <stdio.h>

#include "base/fault.h"
#include "base/mem.h"
#include "job/dispatch.h"

/* Sets the version in the reply and sends it with n tensors, which are taken over. */
static ch_status reply(const ch_received *r, Cohort__PsReply *m, size_t n,
                       ch_tensor *const *tensor)
{
    m->version = ch__server_state_version(r->self);
    return ch__reply(r, &m->base, (int)n, tensor);
}

/* Replies with n tensors if `rc` is CH_OK; otherwise returns `rc` and there are no tensors. */
static ch_status reply_if(ch_status rc, const ch_received *r, size_t n,
                          ch_tensor *const *tensor)
{
    Cohort__PsReply m;

    cohort__ps_reply__init(&m);
    return rc == CH_OK ? reply(r, &m, n, tensor) : rc;
}

static ch_status on_create(const ch_received *r, const void *m)
{
    return reply_if(
        ch__server_state_create(r->self, m, r->message->n_tensors, r->message->tensor), r, 0,
        NULL);
}

static ch_status on_free(const ch_received *r, const void *m)
{
    ch__server_state_remove(r->self, m);
    return reply_if(CH_OK, r, 0, NULL);
}

static ch_status on_define(const ch_received *r, const void *m)
{
    return reply_if(ch__server_state_define(r->self, m), r, 0, NULL);
}

static ch_status on_read(const ch_received *r, const void *request)
{
    const Cohort__PsRead *m = request;
    ch_tensor           **t = ch__calloc(m->n_variables + 1, sizeof(*t));
    ch_status rc = t == NULL ? ch__fail_memory("values") : ch__server_state_read(r->self, m, t);

    rc = reply_if(rc, r, m->n_variables, t);
    ch__free(t);
    return rc;
}

static ch_status on_rows(const ch_received *r, const void *request)
{
    const Cohort__PsRows *m = request;
    ch_tensor           **t = ch__calloc(m->n_variables + 1, sizeof(*t));
    ch_status             rc;

    if (t == NULL)
        rc = ch__fail_memory("rows");
    else
        rc = ch__server_state_rows(r->self, m, r->message->n_tensors, r->message->tensor, t);
    rc = reply_if(rc, r, m->n_variables, t);
    ch__free(t);
    return rc;
}

/* Replies with the results of the updates, whether they were applied now or earlier. */
static ch_status reply_results(const ch_received *r, const Cohort__PsUpdate *m)
{
    Cohort__PsReply done;
    int             n = ch__server_state_results(r->self, m, NULL, NULL);
    ch_tensor     **t = ch__calloc((size_t)n + 1, sizeof(*t));
    uint32_t       *given = ch__calloc(m->n_updates + 1, sizeof(*given));
    ch_status       rc = t == NULL || given == NULL ? ch__fail_memory("results") : CH_OK;

    cohort__ps_reply__init(&done);
    if (rc == CH_OK) {
        (void)ch__server_state_results(r->self, m, given, t);
        done.n_given = m->n_updates;
        done.given = given;
        rc = reply(r, &done, (size_t)n, t);
    }
    ch__free(t);
    ch__free(given);
    return rc;
}

static ch_status on_update(const ch_received *r, const void *request)
{
    const Cohort__PsUpdate *m = request;
    ch_status               rc =
        ch__server_state_update(r->self, m, r->message->n_tensors, r->message->tensor);

    if (rc == CH_OK)
        rc = reply_results(r, m);
    ch__server_state_retire(r->self, m->retired);
    return rc;
}

/* Replies with the failure of an update, if there is one. It is a failure of the update's step,
 * not of this call. */
static ch_status on_settle(const ch_received *r, const void *request)
{
    Cohort__PsReply done;
    char            text[CH_FAULT_TEXT];
    ch_status       rc;

    cohort__ps_reply__init(&done);
    rc = ch__server_state_settle(r->self, request, &done.failed);
    if (done.failed == 0)
        return reply_if(rc, r, 0, NULL);
    (void)snprintf(text, sizeof(text), "%s", ch_error_message());
    done.code = (uint32_t)rc;
    done.text = text;
    return reply(r, &done, 0, NULL);
}

static ch_status on_assign(const ch_received *r, const void *request)
{
    const Cohort__PsAssign *m = request;
    ch_status               rc =
        ch__server_state_assign(r->self, m, r->message->n_tensors, r->message->tensor);

    ch__server_state_retire(r->self, m->retired);
    return reply_if(rc, r, 0, NULL);
}

static ch_status on_fence(const ch_received *r, const void *m)
{
    return reply_if(ch__server_state_fence(r->self, m), r, 0, NULL);
}

static ch_status on_snapshot(const ch_received *r, const void *m)
{
    return reply_if(ch__server_state_snapshot(r->self, m), r, 0, NULL);
}

static ch_status on_hold(const ch_received *r, const void *request)
{
    const Cohort__PsHold *m = request;
    Cohort__PsReply       done;
    ch_status             rc;

    cohort__ps_reply__init(&done);
    done.begun = ch__calloc(m->n_steps + 1, sizeof(*done.begun));
    rc = done.begun == NULL ? ch__fail_memory("the list of steps that have begun")
                            : ch__server_state_hold(r->self, m, done.begun, &done.n_begun);
    if (rc == CH_OK)
        rc = reply(r, &done, 0, NULL);
    ch__free(done.begun);
    return rc;
}

static ch_status on_reserve(const ch_received *r, const void *request)
{
    Cohort__PsReply done;
    ch_status       rc;

    cohort__ps_reply__init(&done);
    rc = ch__server_state_reserve(r->self, request, &done.left);
    return rc == CH_OK ? reply(r, &done, 0, NULL) : rc;
}

/* Processes `live` before it releases holds. A cancelled step must have ended before its hold
 * is released, because otherwise a late update of it would be applied. */
static ch_status on_ping(const ch_received *r, const void *request)
{
    const Cohort__PsPing *m = request;
    ch_status             rc;

    ch__server_state_retire(r->self, m->retired);
    rc = ch__server_state_live(r->self, m->below, m->n_live, m->live);
    if (rc == CH_OK)
        ch__server_state_release(r->self, m->released);
    return reply_if(rc, r, 0, NULL);
}

/* clang-format off */
static const ch_role role = {
    .name = "a parameter server",
    .handler = {
        [CH_PS_CREATE] = on_create,
        [CH_PS_FREE]   = on_free,
        [CH_PS_DEFINE] = on_define,
        [CH_PS_READ]   = on_read,
        [CH_PS_ROWS]   = on_rows,
        [CH_PS_UPDATE] = on_update,
        [CH_PS_FENCE]  = on_fence,
        [CH_PS_SNAPSHOT]    = on_snapshot,
        [CH_PS_PING]   = on_ping,
        [CH_PS_ASSIGN] = on_assign,
        [CH_PS_HOLD]   = on_hold,
        [CH_PS_RESERVE] = on_reserve,
        [CH_PS_SETTLE] = on_settle,
    }};
/* clang-format on */

static void on_event(void *self, const ch_net_event *e, int64_t now, ch_outbox *outbox)
{
    if (e->kind == CH_EVENT_CALL)
        ch__dispatch(&role, self, e, now, outbox);
}

static void close_server(void *self)
{
    ch__server_state_free(self);
}

const ch_task_ops ch__server_ops = {on_event, close_server};

ch_status ch__server_make(void *arg, ch_task *t, uint64_t incarnation, ch_outbox *outbox,
                          void **self)
{
    const ch_server_options *opt = arg;
    ch_server_state         *s = NULL;
    ch_status                rc = ch__server_state_new(opt->device, opt->max_init_bytes, &s);

    (void)t;
    (void)incarnation;
    (void)outbox;
    if (rc != CH_OK)
        return rc;
    ch__server_state_watch(s, opt->watch, opt->arg);
    *self = s;
    return CH_OK;
}
