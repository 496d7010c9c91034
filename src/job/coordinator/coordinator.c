/* job/coordinator/coordinator.c -- the coordinator's task: its events, its beat, and calls that are made until they are answered.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/mem.h"
#include "base/protobuf.h"
#include "job/coordinator/private.h"

enum { BEAT = 0 };        /* the timer */
enum { LOST_BEATS = 20 }; /* in which nobody listens at a server: then it is lost */

/* ---- errands ---- */

ch_status ch__errand_new(const ch_turn *t, ch_parcel *p, ch_errand **out)
{
    ch_errand *e = ch__calloc(1, sizeof(*e));

    if (e == NULL) {
        ch__parcel_unref(p);
        return ch__fail_memory("a call");
    }
    e->id = ++t->c->n_ids;
    e->server = e->worker = -1;
    e->parcel = p;
    e->next = t->c->errands;
    t->c->errands = e;
    *out = e;
    return CH_OK;
}

static void free_errand(ch_errand *e)
{
    ch__parcel_unref(e->parcel);
    ch__parcel_unref(e->answer);
    ch__free(e->fault);
    ch__free(e);
}

static void take_out(ch_chief *c, ch_errand *e)
{
    ch_errand **at = &c->errands;

    while (*at != NULL && *at != e)
        at = &(*at)->next;
    if (*at == e)
        *at = e->next;
}

void ch__errand_drop(const ch_turn *t, ch_errand *e)
{
    if (e->is_open)
        ch__post_cancel(t->post, e->id);
    ch__post_timer(t->post, e->id, INT64_MAX);
    take_out(t->c, e);
    free_errand(e);
}

/* It is over: who wanted to know is told. */
static void end_errand(const ch_turn *t, ch_errand *e)
{
    e->has_ended = true;
    if (e->then == NULL)
        return;
    take_out(t->c, e);
    e->then(t, e);
    free_errand(e);
}

static void fail_errand(const ch_turn *t, ch_errand *e, const ch_fault *why)
{
    e->fault = ch__malloc(sizeof(*e->fault));
    if (e->fault != NULL)
        *e->fault = *why;
    end_errand(t, e);
}

/* What may be large may take long, and is done anew for each call: one that was too slow is given twice the time. The others are
 * made again as often as before, so that nobody waits for long when a wire works again. */
static bool may_be_large(uint32_t method)
{
    return method == CH_PS_READ || method == CH_PS_ROWS || method == CH_PS_CREATE ||
           method == CH_PS_ASSIGN || method == CH_WORKER_FUNCTION || method == CH_WORKER_STREAM;
}

static int64_t patience(const ch_chief *c, ch_errand *e)
{
    enum { MOST = 5 };

    if (!may_be_large(e->parcel->method))
        return c->opt.call;
    return c->opt.call << (e->n_tries < MOST ? e->n_tries++ : MOST);
}

void ch__errand_go(const ch_turn *t, ch_errand *e)
{
    ch_chief *c = t->c;
    ch_link  *link = e->server >= 0 ? c->server[e->server].link : c->worker[e->worker]->link;
    ch_call_options opt = {.id = e->id,
                           .deadline = t->now + patience(c, e),
                           .incarnation = e->server >= 0 ? c->server[e->server].incarnation
                                                         : c->worker[e->worker]->incarnation};

    if (e->worker >= 0)
        e->life = c->worker[e->worker]->life;
    if (e->server >= 0 && c->server[e->server].is_lost) {
        fail_errand(t, e, &c->broken);
        return;
    }
    e->is_open = true;
    ch__post_call(t->post, link, ch__parcel_ref(e->parcel), &opt);
}

void ch__errands_of_worker(const ch_turn *t, int worker)
{
    ch_errand *next;

    for (ch_errand *e = t->c->errands; e != NULL; e = next) {
        next = e->next;
        if (e->worker != worker || e->has_ended)
            continue;
        if (e->is_open)
            ch__post_cancel(t->post, e->id);
        ch__post_timer(t->post, e->id, INT64_MAX);
        end_errand(t, e);
        next = t->c->errands; /* what was told may have changed the list */
    }
}

static ch_errand *open_errand_of(const ch_chief *c, int server)
{
    ch_errand *e = c->errands;

    while (e != NULL && (e->server != server || e->has_ended))
        e = e->next;
    return e;
}

static void errands_of_server(const ch_turn *t, int server)
{
    ch_errand *e;

    while ((e = open_errand_of(t->c, server)) != NULL) /* what is told may change the list */
        fail_errand(t, e, &t->c->broken);
}

static ch_errand *find_errand(const ch_chief *c, uint64_t id)
{
    ch_errand *e = c->errands;

    while (e != NULL && e->id != id)
        e = e->next;
    return e;
}

/* Who answers anything is there. */
static void hear(const ch_turn *t, const ch_errand *e)
{
    if (e->server >= 0)
        t->c->server[e->server].pulse.n_silent = 0;
    else
        t->c->worker[e->worker]->pulse.n_silent = 0;
}

static void errand_answered(const ch_turn *t, ch_errand *errand, const ch_net_event *e)
{
    errand->is_open = false;
    if (e->ending == CH_ENDED_OK || e->ending == CH_ENDED_REFUSED)
        hear(t, errand);
    switch (e->ending) {
    case CH_ENDED_OK:
        errand->answer = ch__parcel_ref(e->parcel);
        end_errand(t, errand);
        break;
    case CH_ENDED_REFUSED:
        fail_errand(t, errand, e->fault);
        break;
    case CH_ENDED_REPLACED:
        if (errand->server >= 0)
            ch__chief_break(t, errand->server, "was started again, without its variables");
        else
            ch__crew_give_up(t, t->c->worker[errand->worker]);
        break;
    default:
        ch__post_timer(t->post, errand->id, t->now + t->c->opt.retry);
    }
}

void ch__errand_ignored(const ch_turn *t, ch_errand *e)
{
    (void)t;
    (void)e;
}

ch_status ch__servers_tell(const ch_turn *t, ch_parcel *p, ch_errand_then then, uint64_t arg)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < t->c->opt.n_servers; i++) {
        ch_errand *e = NULL;
        ch_status  one = ch__errand_new(t, ch__parcel_ref(p), &e);

        if (one != CH_OK) {
            rc = one;
            then(t, &(ch_errand){.arg = arg});
            continue;
        }
        e->server = i;
        e->then = then;
        e->arg = arg;
        ch__errand_go(t, e);
    }
    ch__parcel_unref(p);
    return rc;
}

/* ---- pins ---- */

static ch_status speak_pin(uint64_t pin, bool release, ch_parcel **out)
{
    Cohort__PsPin m;

    cohort__ps_pin__init(&m);
    m.pin = pin;
    m.release = release;
    return ch__speak(CH_PS_PIN, &m.base, 0, NULL, out);
}

/* `then` is told of every server, whatever happens: who counts them need not look at the status. */
static void tell_of_none(const ch_turn *t, ch_errand_then then, uint64_t arg)
{
    for (int i = 0; i < t->c->opt.n_servers; i++)
        then(t, &(ch_errand){.arg = arg});
}

ch_status ch__pin_set(const ch_turn *t, ch_errand_then then, uint64_t *pin)
{
    ch_chief  *c = t->c;
    ch_parcel *p = NULL;
    ch_status  rc = CH_OK;

    *pin = ++c->n_pins;
    if (c->n_pinned == CH_PINS)
        rc = ch__fail(CH_RESOURCE_EXHAUSTED,
                      "%d versions of the variables are kept already; let one go first",
                      CH_PINS);
    if (rc == CH_OK)
        rc = speak_pin(*pin, false, &p);
    if (rc != CH_OK) {
        tell_of_none(t, then, *pin);
        return rc;
    }
    c->pinned[c->n_pinned++] = *pin;
    return ch__servers_tell(t, p, then, *pin);
}

void ch__servers_forget(const ch_turn *t, uint64_t first, uint64_t n)
{
    Cohort__PsFree m;
    ch_parcel     *p = NULL;

    cohort__ps_free__init(&m);
    m.first_function = first;
    m.functions = n;
    if (n > 0 && t->post != NULL && ch__speak(CH_PS_FREE, &m.base, 0, NULL, &p) == CH_OK)
        (void)ch__servers_tell(t, p, ch__errand_ignored, 0);
}

/* Servers let go of all up to a number: that below the first one which is used still. */
void ch__pin_drop(const ch_turn *t, uint64_t pin)
{
    ch_chief  *c = t->c;
    ch_parcel *p = NULL;
    uint64_t   upto;
    int        n = 0;

    for (int i = 0; i < c->n_pinned; i++)
        if (c->pinned[i] != pin)
            c->pinned[n++] = c->pinned[i];
    c->n_pinned = n;
    upto = n > 0 ? c->pinned[0] - 1 : c->n_pins;
    if (upto <= c->released || speak_pin(upto, true, &p) != CH_OK)
        return;
    if (ch__servers_tell(t, p, ch__errand_ignored, 0) == CH_OK)
        c->released = upto;
}

/* ---- servers ---- */

void ch__chief_break(const ch_turn *t, int server, const char *why)
{
    ch_chief *c = t->c;

    if (c->server[server].is_lost)
        return;
    c->server[server].is_lost = true;
    (void)ch__fail(CH_UNAVAILABLE,
                   "parameter server %s (life %llu) is lost: it %s; what it had is gone: start "
                   "the job again "
                   "from what was saved",
                   c->server[server].name, (unsigned long long)c->server[server].incarnation,
                   why);
    (void)ch__fault_take(&c->broken, CH_UNAVAILABLE, -1, NULL);
    errands_of_server(t, server);
    ch__queue_fail_all(t, &c->broken);
}

static void ping_server(const ch_turn *t, ch_peer_server *s)
{
    ch_chief  *c = t->c;
    ch_parcel *p = NULL;

    if (ch__queue_speak_retired(c, &p) != CH_OK)
        return;
    ch__pulse_ask(&s->pulse, t->post, s->link, p, (struct ch_pulse_ping){++c->n_ids, t->now},
                  t->now +
                      (s->incarnation != 0 ? c->opt.silence / 2 : c->opt.misses * c->opt.beat));
}

static void beat_server(const ch_turn *t, int i)
{
    ch_peer_server *s = &t->c->server[i];
    bool            has_come = s->incarnation != 0; /* else it is waited for, by who connects */
    int64_t         most = t->c->opt.silence / t->c->opt.beat;

    if (s->is_lost)
        return;
    if (ch__pulse_beat(&s->pulse, most, !has_come || s->n_lost > 0))
        ping_server(t, s);
    if (has_come && s->pulse.n_silent > most)
        ch__chief_break(t, i, "has not answered for too long");
}

/* What steps were given is kept by servers until they are told that these have ended. Beside a step that does not end that is not
 * said by every update: they are told when there are many. */
static void tell_ended(const ch_turn *t)
{
    enum { MANY = 64, OPEN = 4 };
    ch_chief *c = t->c;

    if (c->n_untold < MANY)
        return;
    c->n_untold = 0;
    if (ch__queue_retired(c) != c->oldest_told) {
        c->oldest_told = ch__queue_retired(c);
        return; /* it has ended since, or will soon */
    }
    for (int i = 0; i < c->opt.n_servers && c->oldest != NULL; i++)
        if (!c->server[i].is_lost && c->server[i].pulse.n < OPEN)
            ping_server(t, &c->server[i]);
}

static void server_pinged(const ch_turn *t, int i, const ch_net_event *e)
{
    ch_peer_server *s = &t->c->server[i];

    if (e->ending == CH_ENDED_OK) {
        s->n_lost = s->pulse.n_silent = 0;
        if (s->incarnation == 0)
            s->incarnation = e->peer.incarnation;
        if (s->incarnation != e->peer.incarnation)
            ch__chief_break(t, i, "was started again, without its variables");
        return;
    }
    if (e->ending == CH_ENDED_REFUSED) /* it had no memory, and is there */
        s->pulse.n_silent = 0;
    if (e->ending != CH_ENDED_LOST)
        return;
    ch__pulse_drop(&s->pulse, t->post); /* a connection that broke is one loss */
    if (++s->n_lost >= LOST_BEATS && s->incarnation != 0)
        ch__chief_break(t, i, "has ended: nobody listens there");
}

/* ---- events ---- */

static void beat(const ch_turn *t)
{
    for (int i = 0; i < t->c->opt.n_servers; i++)
        beat_server(t, i);
    ch__crew_beat(t);
    ch__cancel_beat(t);
    ch__queue_move(t); /* what waits comes before copies of what runs */
    if (t->c->opt.how.backups)
        ch__queue_backups(t);
    ch__post_timer(t->post, BEAT, t->now + t->c->opt.beat);
}

static void on_pinged(const ch_turn *t, const ch_net_event *e)
{
    int64_t at;

    for (int i = 0; i < t->c->opt.n_servers; i++)
        if (ch__pulse_take(&t->c->server[i].pulse, e->id, &at)) {
            server_pinged(t, i, e);
            return;
        }
    for (int i = 0; i < t->c->n_workers; i++)
        if (ch__pulse_take(&t->c->worker[i]->pulse, e->id, &at)) {
            ch__crew_pinged(t, t->c->worker[i], e, at);
            return;
        }
}

static int attempt_of(const ch_scheduled *s, uint64_t call)
{
    int i = 0;

    while (s->attempt[i].call != call)
        i++;
    return i;
}

static void on_answer(const ch_turn *t, const ch_net_event *e)
{
    ch_scheduled *s = ch__map_take(&t->c->calls, (ch_key){e->id, 0});
    ch_errand    *errand;

    if (s != NULL) {
        ch__queue_answered(t, s, attempt_of(s, e->id), e);
        tell_ended(t);
        return;
    }
    errand = find_errand(t->c, e->id);
    if (errand == NULL)
        on_pinged(t, e);
    else if (!errand->has_ended) /* else somebody waits for others too */
        errand_answered(t, errand, e);
}

static void on_timer(const ch_turn *t, uint64_t id)
{
    ch_errand *e = id != BEAT ? find_errand(t->c, id) : NULL;

    if (id == BEAT)
        beat(t);
    else if (e != NULL && !e->is_open && !e->has_ended)
        ch__errand_go(t, e);
}

static void on_event(void *self, const ch_net_event *e, int64_t now, ch_post *post)
{
    ch_turn t = {self, post, now};

    switch (e->kind) {
    case CH_EVENT_ANSWER:
        on_answer(&t, e);
        break;
    case CH_EVENT_TIMER:
        on_timer(&t, e->id);
        break;
    case CH_EVENT_CALL:
        ch__refuse(post, e->call, ch__fail(CH_UNIMPLEMENTED, "a coordinator is not called"),
                   "call");
        break;
    default:
        break;
    }
}

/* ---- life ---- */

static void drop_members(ch_chief *c)
{
    for (int i = 0; i < c->n_workers; i++) {
        ch__map_drop(&c->worker[i]->knows);
        ch__free(c->worker[i]);
    }
    ch__free(c->worker);
    ch__free(c->server);
}

static void close_chief(void *self)
{
    ch_chief *c = self;

    while (c->oldest != NULL)
        ch__queue_end(&(ch_turn){c, NULL, 0}, c->oldest, CH_STEP_CANCELLED);
    while (c->errands != NULL) {
        ch_errand *e = c->errands;

        c->errands = e->next;
        free_errand(e);
    }
    while (c->feeds != NULL)
        ch__feed_unref(&(ch_turn){c, NULL, 0}, c->feeds);
    for (int i = 0; i < c->functions.cap; i++)
        ch__told_function_free(c->functions.entry[i].value);
    ch__map_drop(&c->functions);
    ch__map_drop(&c->calls);
    drop_members(c);
    ch__free(c);
}

static int64_t or_else(int64_t value, int64_t usual)
{
    return value > 0 ? value : usual;
}

/* At most three years, so that steps behind each other, and now, can be added to it. */
static int64_t ns_of(double seconds)
{
    static const double most = 1e8;

    return (int64_t)ceil((seconds < most ? seconds : most) * 1e9);
}

void ch__chief_take_options(ch_chief *c, const ch_coordinator_options *how)
{
    c->opt.how = *how;
    c->opt.how.capacity = or_else(how->capacity, 262144);
    c->opt.how.capacity_bytes = or_else(how->capacity_bytes, 1 << 30);
    c->opt.step = how->step_seconds > 0 ? ns_of(how->step_seconds)
                                        : (int64_t)ch__config()->wait_limit_ms * 1000000;
}

static ch_status make_peers(ch_chief *c)
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
        rc = ch__crew_add(c, &(ch_member *){NULL});
    return rc;
}

static ch_status make_chief(void *arg, ch_task *task, uint64_t incarnation, ch_post *post,
                            void **self)
{
    ch_chief *c = ch__calloc(1, sizeof(*c));
    ch_status rc;

    (void)incarnation;
    if (c == NULL)
        return ch__fail_memory("a coordinator");
    c->opt = *(const ch_chief_options *)arg;
    c->task = task;
    c->stats.last_lost = -1;
    c->opt.beat = or_else(c->opt.beat, 100000000);
    c->opt.misses = (int)or_else(c->opt.misses, 5);
    c->opt.silence = or_else(c->opt.silence, 60000000000);
    c->opt.call = or_else(c->opt.call, 2000000000);
    c->opt.retry = or_else(c->opt.retry, 20000000);
    ch__chief_take_options(c, &((const ch_chief_options *)arg)->how);
    rc = make_peers(c);
    if (rc != CH_OK) {
        close_chief(c);
        return rc;
    }
    ch__post_timer(post, BEAT, 0);
    *self = c;
    return CH_OK;
}

ch_status ch__chief_start(ch_net *net, const ch_chief_options *opt, ch_task **out)
{
    static const ch_task_ops ops = {on_event, close_chief};
    ch_chief_options         own = *opt; /* read while it is made: it is not started again */

    return ch__task_start(
        net,
        &(ch_task_options){.name = "chief/0", .ops = &ops, .make = make_chief, .arg = &own},
        out);
}
