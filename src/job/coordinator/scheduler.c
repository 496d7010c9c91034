/* job/coordinator/scheduler.c -- decides which step runs on which worker, and when.
 *
 * ch__scheduler_send takes steps from the front of the queue while the mode of the coordinator
 * allows them to begin (may_begin), and gives each to the worker with the fewest attempts
 * (find_free_worker). It is called whenever a step or a worker may have become available. When
 * the queue is empty, idle workers steal waiting steps from workers that run a slow step
 * (balance), and run backups of slow steps (ch__scheduler_send_backups). It also settles the
 * steps of rounds that have run (settle.c).
 *
 * A step is sent by attempt.c, after the worker has received the step function and the streams
 * that the step needs (try_send).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mutant.h"
#include "job/coordinator/private.h"

/* Computing time of the steps that a worker has, in ns. */
static const int64_t backlog_ns = 1000000;
/* A step that takes less time is not slow: it gets no backup, and steps that wait for the same
 * worker are not moved. */
static const int64_t slow_ns = 10000000;
static const int     slow_times = 3; /* a step is slow at this multiple of the mean time */

/* ---- which steps may begin ---- */

uint64_t ch__round_size(const ch_coord *c)
{
    return (uint64_t)(c->opt.how.round > 0 ? c->opt.how.round : c->n_workers);
}

/* Handles a server's reply to the snapshot of a round. If the server replied with an error,
 * because its memory was exhausted, no step of the round may begin. After the last reply the
 * round is forgotten, and the next tick begins it again with a new snapshot. */
static void on_round_snapshot(const ch_coord_context *t, const ch_coord_call *call)
{
    ch_sync_round *r = &t->c->round;

    ch__snapshot_on_reply(t, call);
    if (call->arg != r->snapshot)
        return;
    r->has_failed |= call->reply == NULL;
    if (--r->n_pending > 0)
        return;
    if (!r->has_failed) {
        ch__scheduler_send(t);
    } else {
        ch__snapshot_release(t, r->snapshot);
        r->snapshot = 0;
    }
}

/* Returns true if the step belongs to the current round and all servers have its snapshot. If
 * the oldest step is not in the current round, begins the next round and returns false. */
static bool is_in_round(const ch_coord_context *t, const ch_scheduled *s)
{
    ch_coord      *c = t->c;
    ch_sync_round *r = &c->round;
    uint64_t n = ch__round_size(c), first = ch__queue_oldest(c)->order, before = r->snapshot;

    if (r->snapshot != 0 && first < r->end)
        return s->order < r->end && r->n_pending == 0;
    r->n_pending = c->opt.n_servers;
    r->has_failed = false;
    if (ch__snapshot_create(t, false, on_round_snapshot, &r->snapshot) != CH_OK) {
        r->snapshot = before;
        return false;
    }
    r->begin = r->base + (first - r->base) / n * n;
    r->end = r->begin + n;
    if (before != 0)
        ch__snapshot_release(t, before);
    return false;
}

/* Returns true if the updates of the step can be applied in the order of steps, if it begins
 * now: servers can defer them (settle.c), or no step is left before it. */
static bool keeps_order(const ch_coord *c, const ch_scheduled *s)
{
    return s->function == NULL || !s->function->has_results || ch__queue_oldest(c) == s;
}

/* Returns true if the mode of the coordinator allows the step to begin now. */
static bool may_begin(const ch_coord_context *t, const ch_scheduled *s)
{
    const ch_coord *c = t->c;

    if (s->is_own || s->snapshot != 0 || !CH_KEEPS(STALENESS))
        return true;
    switch (c->opt.how.mode) {
    case CH_BOUNDED_STALENESS:
        return s->order - ch__queue_oldest(c)->order <= (uint64_t)c->opt.how.staleness;
    case CH_SYNCHRONOUS:
        return is_in_round(t, s) && keeps_order(c, s);
    default:
        return true;
    }
}

/* ---- choosing a worker ---- */

/* Returns the number of attempts that a worker may have: enough that it never waits for the
 * next step, and no more, because other workers cannot run the steps that it has. */
static int depth_of(const ch_worker_entry *m)
{
    int64_t n = m->mean > 0 ? backlog_ns / m->mean : 2;

    return n < 2 ? 2 : n > CH_WORKER_ATTEMPTS ? CH_WORKER_ATTEMPTS : (int)n;
}

/* Returns true if the worker may receive a step now. */
static bool has_room(const ch_coord_context *t, const ch_worker_entry *m)
{
    enum { OTHERS = 8 }; /* room on the link that is left for other calls */

    return m->paused_until <= t->now && !m->is_overdue && m->state == CH_WORKER_READY &&
           m->n_sending == 0 && m->n_runs < depth_of(m) && ch__link_calls(m->link) > OTHERS;
}

/* Returns the worker with room that has the fewest attempts, or -1. `excluded` is a bit set of
 * the first 64 workers. */
static int find_free_worker(const ch_coord_context *t, uint64_t excluded)
{
    const ch_coord *c = t->c;
    int             best = -1;

    for (int i = 0; i < c->n_workers; i++)
        if (has_room(t, c->worker[i]) && (i >= 64 || (excluded >> i & 1) == 0) &&
            (best < 0 || c->worker[i]->n_runs < c->worker[best]->n_runs))
            best = i;
    return best;
}

/* ---- sending queued steps ---- */

typedef enum send_outcome {
    SENT,
    NOT_YET, /* the worker must receive something first, or memory is exhausted */
    ENDED    /* the step has failed */
} send_outcome;

/* Sends a step to a worker that has room, after the step function and the streams that it
 * needs. Leases its elements when all of them have arrived. */
static send_outcome try_send(const ch_coord_context *t, ch_scheduled *s, int worker)
{
    ch_coord        *c = t->c;
    ch_worker_entry *m = c->worker[worker];
    bool      joins_round = c->opt.how.mode == CH_SYNCHRONOUS && !s->is_own && s->snapshot == 0;
    ch_status rc;

    if (s->function == NULL) {
        ch__queue_fail_status(
            t, s,
            ch__fail(CH_NOT_FOUND, "its function was freed before the step was scheduled"));
        return ENDED;
    }
    if (!ch__workers_send_once(t, m, s->function->number, s->function->message))
        return NOT_YET;
    rc = ch__worker_input_choose(c, s, worker);
    if (rc != CH_OK) {
        ch__queue_fail_status(t, s, rc);
        return ENDED;
    }
    if (!ch__worker_input_is_sent(t, s, worker))
        return NOT_YET;
    if (joins_round) {
        s->snapshot = c->round.snapshot;
        s->defers = ch__queue_oldest(c) != s && CH_KEEPS(ORDER);
    }
    if (ch__worker_input_lease(s, worker) && ch__attempt_send(t, s, worker))
        return SENT;
    if (joins_round) { /* the step was not sent, so it may still run in another round */
        s->snapshot = 0;
        s->defers = false;
    }
    if (!s->was_sent)
        ch__worker_input_return(s); /* only steps that were sent may have leases (input.c) */
    return NOT_YET;
}

/* ---- moving steps between workers ---- */

/* Returns true if another worker may take the step over. A step that reads a stream which is
 * not shared must stay, because another worker would have to read all elements before. */
static bool may_move(const ch_scheduled *s)
{
    for (int i = 0; i < s->n_leases; i++)
        if (s->lease[i].input->n_values == 0 && !s->lease[i].input->is_shared)
            return false;
    return s->attempt[0].call != 0 && s->attempt[1].call == 0 && !ch__queue_is_parked(s);
}

/* Returns the worker with the most attempts among those that run a slow step, or -1. */
static int find_stuck_worker(const ch_coord_context *t)
{
    const ch_coord *c = t->c;
    int             worst = -1;

    for (int i = 0; i < c->n_workers; i++) {
        const ch_worker_entry *m = c->worker[i];

        if (m->state == CH_WORKER_READY && m->n_runs > 1 && t->now - m->began > slow_ns &&
            (worst < 0 || m->n_runs > c->worker[worst]->n_runs))
            worst = i;
    }
    return worst;
}

/* Returns the step that the worker would run next and that may be moved, or NULL. */
static ch_scheduled *find_movable(const ch_coord *c, int worker)
{
    for (const ch_attempt *a = c->worker[worker]->first->next; a != NULL; a = a->next) {
        ch_scheduled *s = ch__map_find(&c->calls, (ch_key){a->call, 0});

        if (may_move(s) && a == &s->attempt[0])
            return s;
    }
    return NULL;
}

/* Moves a waiting step to an idle worker. Cancels the call to the first worker, which then
 * drops the step. If that worker has already begun it, or the cancellation is lost, both run
 * the step. That is safe, because servers apply each update once. */
static void steal(const ch_coord_context *t, ch_scheduled *s, int worker)
{
    ch_coord *c = t->c;

    if (!ch__workers_send_once(t, c->worker[worker], s->function->number,
                               s->function->message) ||
        !ch__worker_input_is_sent(t, s, worker))
        return; /* it is moved later, when the worker has received them */
    (void)ch__worker_input_lease(s, worker); /* cannot fail: the step has its leases */
    ch__attempt_end(t, s, 0);
    c->stats.moved++;
    if (!ch__attempt_send(t, s, worker))
        ch__queue_requeue(t, s);
}

/* Lets idle workers steal steps that wait for a slow step of another worker, one step each. */
static void balance(const ch_coord_context *t)
{
    for (int i = 0; i < t->c->n_workers; i++) {
        ch_scheduled *s = NULL;
        int           from;

        if (t->c->worker[i]->n_runs > 0 || !has_room(t, t->c->worker[i]))
            continue;
        from = find_stuck_worker(t);
        if (from >= 0)
            s = find_movable(t->c, from);
        if (s == NULL)
            return;
        steal(t, s, i);
    }
}

/* Returns the step that is sent next, or NULL: the first of the queue, or the first that a cut
 * needs. The queue has own steps first, then the others. In each of the two, the steps that a
 * cut needs are the first. */
static ch_scheduled *next_step(const ch_coord *c)
{
    ch_scheduled *s = c->queue.first;

    while (c->cut != CH_CUT_NONE && s != NULL && !ch__cut_needs(c, s))
        s = s->is_own ? s->after : NULL;
    return s;
}

void ch__scheduler_send(const ch_coord_context *t)
{
    ch_coord     *c = t->c;
    ch_scheduled *s;
    uint64_t      excluded = 0; /* bit set of workers that must receive something first */

    ch__settle(t);
    while ((s = next_step(c)) != NULL && may_begin(t, s)) {
        int worker = find_free_worker(t, excluded);

        if (worker < 0)
            return;
        if (try_send(t, s, worker) == NOT_YET) {
            if (worker >= 64)
                return;
            excluded |= (uint64_t)1 << worker;
        }
    }
    balance(t);
}

/* ---- backups ---- */

/* Returns true if the step has a single attempt, which takes much longer than the mean time. */
static bool is_slow(const ch_coord_context *t, const ch_scheduled *s)
{
    const ch_attempt *a = &s->attempt[0];
    int64_t           mean = 0;
    int               n = 0;

    if (a->call == 0 || s->attempt[1].call != 0 || ch__queue_is_parked(s))
        return false;
    for (int i = 0; i < t->c->n_workers; i++)
        if (t->c->worker[i]->mean > 0) {
            mean += t->c->worker[i]->mean;
            n++;
        }
    mean = n > 0 ? mean / n : 0;
    return t->now - a->sent_at > (slow_times * mean > slow_ns ? slow_times * mean : slow_ns);
}

void ch__scheduler_send_backups(const ch_coord_context *t)
{
    ch_coord *c = t->c;

    for (ch_scheduled *s = c->running.first; s != NULL && c->queue.n == 0; s = s->after)
        for (int i = 0; i < c->n_workers && is_slow(t, s); i++) {
            ch_worker_entry *m = c->worker[i];

            if (i == s->attempt[0].worker || m->n_runs > 0 || !has_room(t, m) ||
                !ch__workers_send_once(t, m, s->function->number, s->function->message) ||
                !ch__worker_input_is_sent(t, s, i))
                continue;
            if (ch__attempt_send(t, s, i))
                c->stats.backups++;
        }
}
