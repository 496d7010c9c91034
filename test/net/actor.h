/* test/net/actor.h -- a task for tests: counts its events, and replies to calls as its mode
 * demands.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_NET_ACTOR_H
#define TEST_NET_ACTOR_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"
#include "base/thread.h"
#include "net/net.h"

enum { KEPT = 16384, N_ENDINGS = CH_ENDED_NO_ROOM + 1, LIMIT_MS = 20000 };

typedef enum actor_mode { ECHO, KEEP, REFUSE, ANSWER_TWICE } actor_mode;

typedef struct actor {
    ch_task   *task;
    actor_mode mode;
    uint64_t   incarnation;
    int        n_made, n_closed, fails_to_begin;
    /* As a callee. */
    int        n_calls, n_cancels;
    ch_call_id kept[KEPT];
    ch_peer    caller;
    /* As a caller. */
    uint64_t    n_posted;
    int         n_ended, ended[N_ENDINGS];
    uint64_t    last_id;
    ch_peer     answerer;
    ch_message *answer; /* of the last call */
    ch_status   status;
    char        text[256], by[96], op[64];
    /* Ids of timers and work, in the order of their events. */
    int      n_timers, n_works;
    uint64_t timer[16], work[16];
    int64_t  timer_at[16];
    int64_t  now;
} actor;

static inline void actor_took_answer(actor *a, const ch_net_event *e)
{
    a->n_ended++;
    a->ended[e->ending]++;
    a->last_id = e->id;
    a->answerer = e->peer;
    if (e->ending == CH_ENDED_OK) {
        assert_null(e->fault);
        ch__message_unref(a->answer);
        a->answer = ch__message_ref(e->message);
        return;
    }
    assert_null(e->message);
    assert_true(ch__fault_is_set(e->fault));
    a->status = e->fault->code;
    memcpy(a->text, e->fault->text, sizeof(a->text) - 1);
    memcpy(a->by, e->fault->task, sizeof(a->by));
    memcpy(a->op, e->fault->op, sizeof(a->op));
}

static inline void actor_took_call(actor *a, const ch_net_event *e, ch_outbox *outbox)
{
    ch_fault why;

    a->caller = e->peer;
    a->n_calls++;
    switch (a->mode) {
    case ANSWER_TWICE:
        ch__outbox_reply(outbox, e->call, ch__message_ref(e->message));
        /* fall through */
    case ECHO:
        ch__outbox_reply(outbox, e->call, ch__message_ref(e->message));
        break;
    case KEEP:
        a->kept[(a->n_calls - 1) % KEPT] = e->call;
        break;
    case REFUSE:
        ch__fault_clear(&why);
        ch__fail(CH_OUT_OF_RANGE, "row 7 of 5");
        ch__fault_record(&why, CH_OUT_OF_RANGE, -1, "gather");
        ch__outbox_reply_error(outbox, e->call, &why);
        break;
    }
}

static inline void actor_on_event(void *self, const ch_net_event *e, int64_t now,
                                  ch_outbox *outbox)
{
    actor *a = self;

    assert_true(now >= a->now);
    a->now = now;
    switch (e->kind) {
    case CH_EVENT_CALL:
        actor_took_call(a, e, outbox);
        break;
    case CH_EVENT_CANCEL:
        a->n_cancels++;
        break;
    case CH_EVENT_REPLY:
        actor_took_answer(a, e);
        break;
    case CH_EVENT_TIMER:
        a->timer_at[a->n_timers % 16] = now;
        a->timer[a->n_timers++ % 16] = e->id;
        break;
    case CH_EVENT_WORK:
        a->work[a->n_works++ % 16] = e->id;
        break;
    }
}

static inline void actor_close(void *self)
{
    actor *a = self;

    a->n_closed++;
    ch__message_unref(a->answer);
    a->answer = NULL;
}

static const ch_task_ops actor_ops = {.on_event = actor_on_event, .close = actor_close};

static inline ch_status actor_make(void *arg, ch_task *t, uint64_t incarnation,
                                   ch_outbox *outbox, void **self)
{
    actor *a = arg;

    (void)t;
    if (a->fails_to_begin) {
        ch__outbox_timer(outbox, 1, 0); /* dropped, because the start fails */
        return ch__fail(CH_ABORTED, "it does not want to");
    }
    a->n_made++;
    a->incarnation = incarnation;
    *self = a;
    return CH_OK;
}

static inline ch_status actor_try(ch_net *net, actor *a, const char *name, int calls,
                                  int64_t bytes)
{
    return ch__task_start(net,
                          &(ch_task_options){.name = name,
                                             .ops = &actor_ops,
                                             .make = actor_make,
                                             .arg = a,
                                             .calls = calls,
                                             .bytes = bytes},
                          &a->task);
}

/* Starts a task whose methods certain roles may call. */
static inline void actor_start_for(ch_net *net, actor *a, const char *name, int n_methods,
                                   const ch_net_method *methods)
{
    ch_task_options opt = {.name = name,
                           .ops = &actor_ops,
                           .make = actor_make,
                           .arg = a,
                           .methods = methods,
                           .n_methods = n_methods};

    assert_int_equal(ch__task_start(net, &opt, &a->task), CH_OK);
}

static inline void actor_start(ch_net *net, actor *a, const char *name)
{
    assert_int_equal(actor_try(net, a, name, 0, 0), CH_OK);
}

static inline ch_message *message_of(uint32_t method, size_t n_bytes)
{
    void       *bytes;
    ch_message *p = NULL;

    if (ch__message_new(method, n_bytes, &bytes, 0, NULL, &p) == CH_OK && n_bytes > 0)
        memset(bytes, (int)method, n_bytes);
    return p;
}

/* Makes a call. Must be called in the task's turn. */
static inline void actor_post(actor *a, ch_outbox *outbox, const char *peer, ch_message *p,
                              int64_t wait_ns, uint64_t incarnation)
{
    ch__outbox_call(outbox, ch__task_link(a->task, peer), p,
                    &(ch_call_options){.id = ++a->n_posted,
                                       .deadline = ch__task_now(a->task) + wait_ns,
                                       .incarnation = incarnation});
}

static const int64_t s_ns = 1000000000, ms_ns = 1000000;

static inline void actor_call(actor *a, const char *peer, uint64_t incarnation)
{
    ch_outbox *outbox = ch__task_enter(a->task);

    actor_post(a, outbox, peer, message_of(5, 10), 10 * s_ns, incarnation);
    ch__task_leave(a->task);
}

/* The condition of a wait: a number has reached at least this value. */
typedef struct reached {
    const int *number;
    int        least;
} reached;

static inline bool has_reached(void *arg)
{
    const reached *r = arg;

    return *r->number >= r->least;
}

static inline void actor_wait(actor *a, const int *number, int least)
{
    reached r = {number, least};

    ch__task_enter(a->task);
    assert_int_equal(ch__task_wait(a->task, has_reached, &r, LIMIT_MS, "what a test wants"),
                     CH_OK);
    ch__task_leave(a->task);
}

#endif
