/* job/server/server.c -- a task that speaks for a store: what it hears, and what it answers.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/server.h"

#include "base/fault.h"
#include "base/mem.h"
#include "base/protobuf.h"
#include "job/message.h"

/* A call, which is answered before the next one comes. */
typedef struct asked {
    ch_store        *store;
    const ch_parcel *parcel;
    ch_call_id       call;
    ch_post         *post;
} asked;

/* ---- answers ---- */

/* References to the tensors are taken over. */
static void done(const asked *a, Cohort__PsDone *m, int n, ch_tensor *const *tensor)
{
    ch_parcel *p = NULL;
    ch_status  rc;

    m->version = ch__store_version(a->store);
    rc = ch__speak(a->parcel->method, &m->base, n, tensor, &p);
    if (rc == CH_OK)
        ch__post_answer(a->post, a->call, p);
    else
        ch__refuse(a->post, a->call, rc, "answer");
}

/* With tensors, of which there are none on an error. */
static void give(const asked *a, ch_status rc, const char *op, size_t n,
                 ch_tensor *const *tensor)
{
    Cohort__PsDone m;

    cohort__ps_done__init(&m);
    if (rc == CH_OK)
        done(a, &m, (int)n, tensor);
    else
        ch__refuse(a->post, a->call, rc, op);
}

static void answer(const asked *a, ch_status rc, const char *op)
{
    give(a, rc, op, 0, NULL);
}

/* ---- calls ---- */

static void on_create(const asked *a, const void *m)
{
    answer(a, ch__store_create(a->store, m, a->parcel->n_tensors, a->parcel->tensor), "create");
}

static void on_free(const asked *a, const void *m)
{
    ch__store_remove(a->store, m);
    answer(a, CH_OK, "free");
}

static void on_define(const asked *a, const void *m)
{
    answer(a, ch__store_define(a->store, m), "define");
}

static void on_read(const asked *a, const void *message)
{
    const Cohort__PsRead *m = message;
    ch_tensor           **t = ch__calloc(m->n_variables + 1, sizeof(*t));

    give(a, t == NULL ? ch__fail_memory("values") : ch__store_read(a->store, m, t), "read",
         m->n_variables, t);
    ch__free(t);
}

static void on_rows(const asked *a, const void *message)
{
    const Cohort__PsRows *m = message;
    ch_tensor           **t = ch__calloc(m->n_variables + 1, sizeof(*t));
    ch_status             rc =
        t == NULL ? ch__fail_memory("rows")
                              : ch__store_rows(a->store, m, a->parcel->n_tensors, a->parcel->tensor, t);

    give(a, rc, "rows", m->n_variables, t);
    ch__free(t);
}

static void give_results(const asked *a, const Cohort__PsUpdate *m)
{
    Cohort__PsDone answer;
    int            n = ch__store_given(a->store, m, NULL, NULL);
    ch_tensor    **t = ch__calloc((size_t)n + 1, sizeof(*t));
    uint32_t      *given = ch__calloc(m->n_updates + 1, sizeof(*given));

    if (t == NULL || given == NULL) {
        ch__refuse(a->post, a->call, ch__fail_memory("an answer"), "update");
    } else {
        cohort__ps_done__init(&answer);
        (void)ch__store_given(a->store, m, given, t);
        answer.n_given = m->n_updates;
        answer.given = given;
        done(a, &answer, n, t);
    }
    ch__free(t);
    ch__free(given);
}

static void on_update(const asked *a, const void *message)
{
    const Cohort__PsUpdate *m = message;
    ch_status rc = ch__store_update(a->store, m, a->parcel->n_tensors, a->parcel->tensor);

    if (rc == CH_OK)
        give_results(a, m);
    else
        ch__refuse(a->post, a->call, rc, "update");
    ch__store_retire(a->store, m->retired);
}

static void on_assign(const asked *a, const void *message)
{
    const Cohort__PsAssign *m = message;

    answer(a, ch__store_assign(a->store, m, a->parcel->n_tensors, a->parcel->tensor), "assign");
    ch__store_retire(a->store, m->retired);
}

static void on_fence(const asked *a, const void *m)
{
    answer(a, ch__store_fence(a->store, m), "fence");
}

static void on_pin(const asked *a, const void *m)
{
    answer(a, ch__store_pin(a->store, m), "pin");
}

static void on_hold(const asked *a, const void *message)
{
    const Cohort__PsHold *m = message;
    Cohort__PsDone        answer;
    uint64_t             *begun = ch__calloc(m->n_steps + 1, sizeof(*begun));
    size_t                n = 0;
    ch_status             rc =
        begun == NULL ? ch__fail_memory("an answer") : ch__store_hold(a->store, m, begun, &n);

    cohort__ps_done__init(&answer);
    answer.n_begun = n;
    answer.begun = begun;
    if (rc == CH_OK)
        done(a, &answer, 0, NULL);
    else
        ch__refuse(a->post, a->call, rc, "hold");
    ch__free(begun);
}

/* A step that is done and comes all the same finds that out here, not at its next update. */
static void on_ping(const asked *a, const void *message)
{
    const Cohort__PsPing *m = message;
    ch_status             rc;

    ch__store_retire(a->store, m->retired);
    rc = ch__store_live(a->store, m->below, m->n_live, m->live);
    if (rc == CH_OK)
        ch__store_release(a->store, m->released); /* cancelled steps have ended: see above */
    answer(a, rc, "ping");
}

/* ---- the task ---- */

typedef struct method {
    const ProtobufCMessageDescriptor *type; /* NULL: there is none */
    void (*on)(const asked *a, const void *message);
} method;

/* clang-format off */
static const method methods[] = {
    [CH_PS_CREATE] = {&cohort__ps_create__descriptor, on_create},
    [CH_PS_FREE]   = {&cohort__ps_free__descriptor,   on_free},
    [CH_PS_DEFINE] = {&cohort__ps_define__descriptor, on_define},
    [CH_PS_READ]   = {&cohort__ps_read__descriptor,   on_read},
    [CH_PS_ROWS]   = {&cohort__ps_rows__descriptor,   on_rows},
    [CH_PS_UPDATE] = {&cohort__ps_update__descriptor, on_update},
    [CH_PS_FENCE]  = {&cohort__ps_fence__descriptor,  on_fence},
    [CH_PS_PIN]    = {&cohort__ps_pin__descriptor,    on_pin},
    [CH_PS_PING]   = {&cohort__ps_ping__descriptor,   on_ping},
    [CH_PS_ASSIGN] = {&cohort__ps_assign__descriptor, on_assign},
    [CH_PS_HOLD]   = {&cohort__ps_hold__descriptor,   on_hold},
};
/* clang-format on */

static const method *method_of(uint32_t number)
{
    return number < sizeof(methods) / sizeof(methods[0]) && methods[number].type != NULL
               ? &methods[number]
               : NULL;
}

static void on_event(void *self, const ch_net_event *e, int64_t now, ch_post *post)
{
    const method     *how;
    ProtobufCMessage *m = NULL;
    ch_status         rc;

    (void)now;
    if (e->kind != CH_EVENT_CALL)
        return;
    how = method_of(e->parcel->method);
    rc = how != NULL ? ch__hear(e->parcel, how->type, &m)
                     : ch__fail(CH_UNIMPLEMENTED, "a parameter server knows no method %u",
                                e->parcel->method);
    if (rc == CH_OK)
        how->on(&(asked){self, e->parcel, e->call, post}, m);
    else
        ch__refuse(post, e->call, rc, "call");
    ch__message_free(m);
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
