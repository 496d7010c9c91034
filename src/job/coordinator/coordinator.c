/* job/coordinator/coordinator.c -- the coordinator task: its events, its tick, lost servers.
 *
 * The task handles these events (on_event): the end of an attempt of a step (attempt.c), of a
 * retried call (call.c) or of a ping, and timers. At every tick it pings servers and workers,
 * declares silent tasks lost, continues a round of cancelling and sends queued steps.
 * The state is ch_coord (private.h). ch__coord_start is the only entry point; the functions for
 * the program's threads are in client.c.
 *
 * A lost server ends the job (ch__coord_fail_job): ch_coord.broken is set and never cleared.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/mem.h"
#include "base/protobuf.h"
#include "job/coordinator/private.h"
#include "job/dispatch.h"

enum { TICK = 0 };        /* id of the tick timer */
enum { LOST_TICKS = 20 }; /* unreachable ticks in a row after which a server is lost */

/* ---- servers ---- */

void ch__servers_free_updates(const ch_coord_context *t, uint64_t first, uint64_t n)
{
    Cohort__PsFree m;
    ch_message    *p = NULL;

    cohort__ps_free__init(&m);
    m.first_update = first;
    m.n_updates = n;
    if (n > 0 && t->outbox != NULL &&
        ch__message_pack(CH_PS_FREE, &m.base, 0, NULL, &p) == CH_OK)
        (void)ch__coord_call_servers(t, p, NULL, 0);
}

void ch__coord_fail_job(const ch_coord_context *t, int server, const char *why)
{
    ch_coord *c = t->c;

    if (c->server[server].is_lost)
        return;
    c->server[server].is_lost = true;
    (void)ch__fail(CH_UNAVAILABLE,
                   "parameter server %s (incarnation %llu) is lost: it %s; its variables are "
                   "gone: start the job again from saved values%s%s",
                   c->server[server].name, (unsigned long long)c->server[server].incarnation,
                   why, c->checkpoint != NULL ? "; the last checkpoint is " : "",
                   c->checkpoint != NULL ? c->checkpoint : "");
    (void)ch__fault_record(&c->broken, CH_UNAVAILABLE, -1, NULL);
    ch__coord_calls_end(t, ch__to_server(server));
    ch__queue_fail_all(t, &c->broken);
}

void ch__coord_name_checkpoint(ch_task *coord, const char *path)
{
    ch_coord_context t = ch__coord_enter(coord);

    if (t.c != NULL) {
        ch__free(t.c->checkpoint);
        t.c->checkpoint = ch__strdup(path);
    }
    ch__task_leave(coord);
}

/* Sends a ping to a server, unless memory is exhausted. */
static void ping_server(const ch_coord_context *t, ch_peer_server *s)
{
    ch_coord   *c = t->c;
    ch_message *p = NULL;

    if (ch__queue_pack_retired(c, &p) != CH_OK)
        return;
    ch__heartbeat_ping(
        &s->heartbeat, t->outbox, s->link, p, (struct ch_heartbeat_ping){++c->n_ids, t->now},
        t->now + (s->incarnation != 0 ? c->opt.silence / 2 : c->opt.misses * c->opt.tick));
}

static void tick_server(const ch_coord_context *t, int i)
{
    ch_peer_server *s = &t->c->server[i];
    bool            has_replied = s->incarnation != 0; /* if not, ch__coord_connect waits */
    int64_t         most = t->c->opt.silence / t->c->opt.tick;

    if (s->is_lost)
        return;
    if (ch__heartbeat_tick(&s->heartbeat, s->link, most, !has_replied || s->n_lost > 0))
        ping_server(t, s);
    if (has_replied && s->heartbeat.n_silent > most)
        ch__coord_fail_job(t, i, "has not replied for too long");
}

/* Pings servers if they keep records of many ended steps.
 *
 * A server keeps the results of a step's updates until it learns that the step has ended.
 * Usually the retired number in updates is enough. But while an old step does not end, that
 * number does not grow. A ping lists the steps that have not ended, so the records of all
 * others are freed. MANY is the number of ended steps per check; OPEN limits the open pings of
 * a server. */
static void report_ended(const ch_coord_context *t)
{
    enum { MANY = 64, OPEN = 4 };
    ch_coord *c = t->c;

    if (c->n_unreported < MANY)
        return;
    c->n_unreported = 0;
    if (ch__queue_retired(c) != c->oldest_reported) {
        c->oldest_reported = ch__queue_retired(c);
        return; /* the retired number grows, so updates carry it */
    }
    for (int i = 0; i < c->opt.n_servers && c->oldest != NULL; i++)
        if (!c->server[i].is_lost && c->server[i].heartbeat.n < OPEN)
            ping_server(t, &c->server[i]);
}

static void on_server_ping(const ch_coord_context *t, int i, const ch_net_event *e)
{
    ch_peer_server *s = &t->c->server[i];

    if (e->ending == CH_ENDED_OK) {
        s->n_lost = s->heartbeat.n_silent = 0;
        if (s->incarnation == 0)
            s->incarnation = e->peer.incarnation;
        if (s->incarnation != e->peer.incarnation)
            ch__coord_fail_job(t, i, "was restarted without its variables");
        return;
    }
    if (e->ending == CH_ENDED_ERROR) /* the server is alive, but out of memory */
        s->heartbeat.n_silent = 0;
    if (e->ending != CH_ENDED_LOST)
        return;
    /* All open pings are lost with the connection: count them once. */
    ch__heartbeat_cancel(&s->heartbeat, t->outbox);
    if (++s->n_lost >= LOST_TICKS && s->incarnation != 0)
        ch__coord_fail_job(t, i, "has ended: no task listens under its name");
}

/* ---- events ---- */

static void tick(const ch_coord_context *t)
{
    for (int i = 0; i < t->c->opt.n_servers; i++)
        tick_server(t, i);
    ch__workers_tick(t);
    ch__cancel_tick(t);
    ch__scheduler_send(t); /* before backups: queued steps have precedence */
    if (t->c->opt.how.backups)
        ch__scheduler_send_backups(t);
    ch__outbox_timer(t->outbox, TICK, t->now + t->c->opt.tick);
}

/* Handles the end of a call that is neither an attempt nor a retried call: a ping, or a call
 * that was cancelled. */
static void on_ping(const ch_coord_context *t, const ch_net_event *e)
{
    int64_t at;

    for (int i = 0; i < t->c->opt.n_servers; i++)
        if (ch__heartbeat_on_reply(&t->c->server[i].heartbeat, e->id, &at)) {
            on_server_ping(t, i, e);
            return;
        }
    for (int i = 0; i < t->c->n_workers; i++)
        if (ch__heartbeat_on_reply(&t->c->worker[i]->heartbeat, e->id, &at)) {
            ch__workers_on_ping(t, t->c->worker[i], e, at);
            return;
        }
}

/* Returns the index of the attempt with this call, which must exist. */
static int attempt_of(const ch_scheduled *s, uint64_t call)
{
    int i = 0;

    while (s->attempt[i].call != call)
        i++;
    return i;
}

static void on_reply(const ch_coord_context *t, const ch_net_event *e)
{
    ch_scheduled *s = ch__map_remove(&t->c->calls, (ch_key){e->id, 0});

    if (s != NULL) {
        ch__attempt_on_reply(t, s, attempt_of(s, e->id), e);
        report_ended(t);
    } else if (!ch__coord_call_on_reply(t, e)) {
        on_ping(t, e);
    }
}

static void on_event(void *self, const ch_net_event *e, int64_t now, ch_outbox *outbox)
{
    static const ch_role role = {.name = "a coordinator"};
    ch_coord_context     t = {self, outbox, now};

    switch (e->kind) {
    case CH_EVENT_REPLY:
        on_reply(&t, e);
        break;
    case CH_EVENT_TIMER:
        if (e->id == TICK)
            tick(&t);
        else if (!ch__retries_on_timer(&t.c->retries, e->id, now, outbox))
            ch__attempts_on_timer(&t, e->id);
        break;
    case CH_EVENT_CALL:
        ch__dispatch(&role, self, e, now, outbox);
        break;
    default:
        break;
    }
}

/* ---- start and end ---- */

static void free_peers(ch_coord *c)
{
    for (int i = 0; i < c->n_workers; i++) {
        ch__map_drop(&c->worker[i]->sent);
        ch__free(c->worker[i]);
    }
    ch__free(c->worker);
    ch__free(c->server);
    ch__free(c->checkpoint);
}

/* Ends all steps as cancelled, so that their references are released, and frees the state. */
static void close_coord(void *self)
{
    ch_coord *c = self;

    while (c->oldest != NULL)
        ch__queue_end(&(ch_coord_context){c, NULL, 0}, c->oldest, CH_STEP_CANCELLED);
    ch__coord_calls_free(c);
    while (c->inputs != NULL)
        ch__worker_input_unref(&(ch_coord_context){c, NULL, 0}, c->inputs);
    for (int i = 0; i < c->functions.cap; i++)
        ch__step_function_free(c->functions.entry[i].value);
    ch__map_drop(&c->functions);
    ch__map_drop(&c->calls);
    free_peers(c);
    ch__free(c);
}

static int64_t or_else(int64_t value, int64_t usual)
{
    return value > 0 ? value : usual;
}

/* Returns a time in ns, at most about three years, so that sums of several such times and the
 * current time do not overflow. */
static int64_t ns_of(double seconds)
{
    static const double most = 1e8;

    return (int64_t)ceil((seconds < most ? seconds : most) * 1e9);
}

void ch__coord_apply_options(ch_coord *c, const ch_coordinator_options *how)
{
    c->opt.how = *how;
    c->opt.how.capacity = or_else(how->capacity, 262144);
    c->opt.how.capacity_bytes = or_else(how->capacity_bytes, 1 << 30);
    c->opt.step = how->step_seconds > 0 ? ns_of(how->step_seconds)
                                        : (int64_t)ch__config()->wait_limit_ms * 1000000;
}

static ch_status make_peers(ch_coord *c)
{
    ch_status rc = CH_OK;

    c->server = ch__calloc((size_t)c->opt.n_servers + 1, sizeof(*c->server));
    if (c->server == NULL)
        return ch__fail_memory("a coordinator");
    for (int i = 0; i < c->opt.n_servers; i++) {
        (void)snprintf(c->server[i].name, sizeof(c->server[i].name), "ps/%d", i);
        c->server[i].link = ch__task_link(c->task, c->server[i].name);
        if (c->server[i].link == NULL)
            return ch__fail_memory("a coordinator");
    }
    for (int i = 0; i < c->opt.n_workers && rc == CH_OK; i++)
        rc = ch__workers_add(c, &(ch_worker_entry *){NULL});
    return rc;
}

static ch_status make_coord(void *arg, ch_task *task, uint64_t incarnation, ch_outbox *outbox,
                            void **self)
{
    ch_coord *c = ch__calloc(1, sizeof(*c));
    ch_status rc;

    (void)incarnation;
    if (c == NULL)
        return ch__fail_memory("a coordinator");
    c->opt = *(const ch_coord_options *)arg;
    c->task = task;
    c->stats.last_lost = -1;
    c->opt.tick = or_else(c->opt.tick, 100000000);
    c->opt.misses = (int)or_else(c->opt.misses, 5);
    c->opt.silence = or_else(c->opt.silence, 60000000000);
    c->opt.call = or_else(c->opt.call, 2000000000);
    c->opt.retry = or_else(c->opt.retry, 20000000);
    ch__coord_apply_options(c, &((const ch_coord_options *)arg)->how);
    rc = make_peers(c);
    if (rc != CH_OK) {
        close_coord(c);
        return rc;
    }
    ch__outbox_timer(outbox, TICK, 0);
    *self = c;
    return CH_OK;
}

ch_status ch__coord_start(ch_net *net, const ch_coord_options *opt, ch_task **out)
{
    static const ch_task_ops ops = {on_event, close_coord};
    /* make_coord reads it during ch__task_start only, because the task is never restarted. */
    ch_coord_options own = *opt;

    return ch__task_start(net,
                          &(ch_task_options){.name = "chief/0",
                                             .ops = &ops,
                                             .make = make_coord,
                                             .arg = &own,
                                             .methods = ch__method_callers,
                                             .n_methods = CH_METHOD_END},
                          out);
}
