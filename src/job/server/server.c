/* job/server/server.c -- the task of a parameter server: a handler for each method.
 *
 * The state (state.h) does the work. The server replies to a call before it receives the next.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/server.h"

#include "base/fault.h"
#include "base/mem.h"
#include "job/dispatch.h"

/* Replies with the server's version and these tensors. Takes references to them over. */
static ch_status reply(const ch_received *r, Cohort__PsDone *m, size_t n,
                       ch_tensor *const *tensor)
{
    m->version = ch__store_version(r->self);
    return ch__reply(r, &m->base, (int)n, tensor);
}

/* Replies if `rc` is CH_OK; there are no tensors otherwise. */
static ch_status reply_if(ch_status rc, const ch_received *r, size_t n,
                          ch_tensor *const *tensor)
{
    Cohort__PsDone m;

    cohort__ps_done__init(&m);
    return rc == CH_OK ? reply(r, &m, n, tensor) : rc;
}

static ch_status on_create(const ch_received *r, const void *m)
{
    return reply_if(ch__store_create(r->self, m, r->parcel->n_tensors, r->parcel->tensor), r, 0,
                    NULL);
}

static ch_status on_free(const ch_received *r, const void *m)
{
    ch__store_remove(r->self, m);
    return reply_if(CH_OK, r, 0, NULL);
}

static ch_status on_define(const ch_received *r, const void *m)
{
    return reply_if(ch__store_define(r->self, m), r, 0, NULL);
}

static ch_status on_read(const ch_received *r, const void *request)
{
    const Cohort__PsRead *m = request;
    ch_tensor           **t = ch__calloc(m->n_variables + 1, sizeof(*t));
    ch_status rc = t == NULL ? ch__fail_memory("values") : ch__store_read(r->self, m, t);

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
        rc = ch__store_rows(r->self, m, r->parcel->n_tensors, r->parcel->tensor, t);
    rc = reply_if(rc, r, m->n_variables, t);
    ch__free(t);
    return rc;
}

/* Replies with the results of updates that were applied, now or by an earlier attempt. */
static ch_status reply_results(const ch_received *r, const Cohort__PsUpdate *m)
{
    Cohort__PsDone done;
    int            n = ch__store_given(r->self, m, NULL, NULL);
    ch_tensor    **t = ch__calloc((size_t)n + 1, sizeof(*t));
    uint32_t      *given = ch__calloc(m->n_updates + 1, sizeof(*given));
    ch_status      rc = t == NULL || given == NULL ? ch__fail_memory("results") : CH_OK;

    cohort__ps_done__init(&done);
    if (rc == CH_OK) {
        (void)ch__store_given(r->self, m, given, t);
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
    ch_status rc = ch__store_update(r->self, m, r->parcel->n_tensors, r->parcel->tensor);

    if (rc == CH_OK)
        rc = reply_results(r, m);
    ch__store_retire(r->self, m->retired);
    return rc;
}

static ch_status on_assign(const ch_received *r, const void *request)
{
    const Cohort__PsAssign *m = request;
    ch_status rc = ch__store_assign(r->self, m, r->parcel->n_tensors, r->parcel->tensor);

    ch__store_retire(r->self, m->retired);
    return reply_if(rc, r, 0, NULL);
}

static ch_status on_fence(const ch_received *r, const void *m)
{
    return reply_if(ch__store_fence(r->self, m), r, 0, NULL);
}

static ch_status on_pin(const ch_received *r, const void *m)
{
    return reply_if(ch__store_pin(r->self, m), r, 0, NULL);
}

static ch_status on_hold(const ch_received *r, const void *request)
{
    const Cohort__PsHold *m = request;
    Cohort__PsDone        done;
    ch_status             rc;

    cohort__ps_done__init(&done);
    done.begun = ch__calloc(m->n_steps + 1, sizeof(*done.begun));
    rc = done.begun == NULL ? ch__fail_memory("steps that have begun")
                            : ch__store_hold(r->self, m, done.begun, &done.n_begun);
    if (rc == CH_OK)
        rc = reply(r, &done, 0, NULL);
    ch__free(done.begun);
    return rc;
}

/* Holds are released after `live`, so that an update of a cancelled step is refused because the
 * step has ended when the hold refuses it no more. */
static ch_status on_ping(const ch_received *r, const void *request)
{
    const Cohort__PsPing *m = request;
    ch_status             rc;

    ch__store_retire(r->self, m->retired);
    rc = ch__store_live(r->self, m->below, m->n_live, m->live);
    if (rc == CH_OK)
        ch__store_release(r->self, m->released);
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
        [CH_PS_PIN]    = on_pin,
        [CH_PS_PING]   = on_ping,
        [CH_PS_ASSIGN] = on_assign,
        [CH_PS_HOLD]   = on_hold,
    }};
/* clang-format on */

static void on_event(void *self, const ch_net_event *e, int64_t now, ch_post *post)
{
    if (e->kind == CH_EVENT_CALL)
        ch__dispatch(&role, self, e, now, post);
}

static void close_server(void *self)
{
    ch__store_free(self);
}

const ch_task_ops ch__server_ops = {on_event, close_server};

ch_status ch__server_make(void *arg, ch_task *t, uint64_t incarnation, ch_post *post,
                          void **self)
{
    const ch_server_options *opt = arg;
    ch_store                *s = NULL;
    ch_status                rc = ch__store_new(opt->device, opt->most_bytes, &s);

    (void)t;
    (void)incarnation;
    (void)post;
    if (rc != CH_OK)
        return rc;
    ch__store_watch(s, opt->saw, opt->arg);
    *self = s;
    return CH_OK;
}
