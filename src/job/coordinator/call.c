/* job/coordinator/call.c -- calls of the coordinator to servers and workers.
 *
 * Each call is repeated until the callee replies (net/retry.h). A call ends once: with a reply,
 * with an error, or with neither if its worker was declared lost. A call to a lost server ends
 * with the error of the job (ch_coord.broken). RUN calls are not made here: see attempt.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "job/coordinator/private.h"

static ch_link *link_to(const ch_coord *c, ch_callee to)
{
    return to.is_worker ? c->worker[to.index]->link : c->server[to.index].link;
}

static void free_call(ch_coord_call *call)
{
    ch__message_unref(call->retry.message);
    ch__free(call);
}

/* Calls `then` and frees the call, which must have been removed from the list. */
static void end_call(const ch_coord_context *t, ch_coord_call *call, ch_message *reply,
                     const ch_fault *fault)
{
    call->reply = reply;
    call->fault = fault;
    if (call->then != NULL)
        call->then(t, call);
    free_call(call);
}

/* The timeout of a call that may be large doubles with each attempt, because the callee repeats
 * all of the work. Other calls keep their timeout, so that they end soon after a broken
 * connection works again. */
ch_status ch__coord_call_new(const ch_coord_context *t, ch_callee to, ch_message *message,
                             ch_coord_call **out)
{
    enum { DOUBLINGS = 5 };
    ch_coord        *c = t->c;
    const ch_method *method = ch__method(message->method);
    ch_coord_call   *call = ch__calloc(1, sizeof(*call));
    ch_status        rc;

    if (call == NULL) {
        ch__message_unref(message);
        return ch__fail_memory("a call");
    }
    call->to = to;
    call->registration = to.is_worker ? c->worker[to.index]->registration : 0;
    call->retry = (ch_retry){.id = ++c->n_ids,
                             .link = link_to(c, to),
                             .incarnation = to.is_worker ? c->worker[to.index]->incarnation
                                                         : c->server[to.index].incarnation,
                             .message = message,
                             .policy = {.timeout = c->opt.call,
                                        .doublings = method->may_be_large ? DOUBLINGS : 0,
                                        .pause = c->opt.retry,
                                        .patience = INT64_MAX,
                                        .ends_if_replaced = true}};
    rc = ch__retries_add(&c->retries, &call->retry);
    if (rc == CH_OK)
        *out = call;
    else
        free_call(call);
    return rc;
}

void ch__coord_call_send(const ch_coord_context *t, ch_coord_call *call)
{
    if (call->to.is_worker || !t->c->server[call->to.index].is_lost) {
        ch__retry_call(&call->retry, t->now, t->outbox);
        return;
    }
    (void)ch__retries_cancel(&t->c->retries, call->retry.id, t->outbox);
    end_call(t, call, NULL, &t->c->broken);
}

ch_status ch__coord_call(const ch_coord_context *t, ch_callee to, ch_message *message,
                         ch_coord_then then, uint64_t arg)
{
    ch_coord_call *call = NULL;
    ch_status      rc = ch__coord_call_new(t, to, message, &call);

    if (rc != CH_OK)
        return rc;
    call->then = then;
    call->arg = arg;
    ch__coord_call_send(t, call);
    return CH_OK;
}

ch_status ch__coord_call_servers(const ch_coord_context *t, ch_message *message,
                                 ch_coord_then then, uint64_t arg)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < t->c->opt.n_servers; i++) {
        ch_status one =
            ch__coord_call(t, ch__to_server(i), ch__message_ref(message), then, arg);

        if (one != CH_OK) {
            rc = one;
            if (then != NULL)
                then(t, &(ch_coord_call){.to = ch__to_server(i), .arg = arg});
        }
    }
    ch__message_unref(message);
    return rc;
}

void ch__coord_call_cancel(const ch_coord_context *t, ch_coord_call *call)
{
    (void)ch__retries_cancel(&t->c->retries, call->retry.id, t->outbox);
    free_call(call);
}

void ch__coord_calls_end(const ch_coord_context *t, ch_callee to)
{
    const ch_link *link = link_to(t->c, to);
    ch_retry      *r;

    while ((r = ch__retries_cancel_to(&t->c->retries, link, t->outbox)) != NULL)
        end_call(t, (ch_coord_call *)(void *)r, NULL, to.is_worker ? NULL : &t->c->broken);
}

bool ch__coord_call_on_reply(const ch_coord_context *t, const ch_net_event *e)
{
    ch_retry *ended = NULL;
    bool      is_known = ch__retries_on_reply(&t->c->retries, e, t->now, t->outbox, &ended);
    ch_coord_call *call = (ch_coord_call *)(void *)ended;

    if (call == NULL)
        return is_known;
    if (e->ending != CH_ENDED_REPLACED) { /* a reply of any kind is a sign of life */
        if (call->to.is_worker)
            t->c->worker[call->to.index]->heartbeat.n_silent = 0;
        else
            t->c->server[call->to.index].heartbeat.n_silent = 0;
        end_call(t, call, e->message, e->fault);
    } else if (call->to.is_worker) {
        ch__workers_declare_lost(t, t->c->worker[call->to.index]);
        end_call(t, call, NULL, NULL);
    } else {
        ch__coord_fail_job(t, call->to.index, "was restarted without its variables");
        end_call(t, call, NULL, &t->c->broken);
    }
    return true;
}

void ch__coord_calls_free(ch_coord *c)
{
    ch_retry *r;

    while ((r = ch__retries_cancel_to(&c->retries, NULL, NULL)) != NULL)
        free_call((ch_coord_call *)(void *)r);
    ch__retries_free(&c->retries);
}
