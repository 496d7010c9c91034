/* job/coordinator/snapshot.c -- snapshots of the variables, and cuts: snapshots between steps.
 *
 * A snapshot (ch_coord.in_use) keeps the values of all variables on servers for the steps that
 * name it, or for a checkpoint. scheduler.c takes snapshots for rounds of CH_SYNCHRONOUS, the
 * strategy (src/strategy/) takes them for evaluations and cuts.
 *
 * A cut is a snapshot in which every step is complete or absent, although the updates of a step
 * go to several servers. It has these phases (ch_cut_phase):
 *
 *   PREPARED Only if the caller has captured the rest of its state before the cut
 *            (ch__coord_prepare_cut). The steps that were scheduled so far run to their end.
 *            Later steps stay in the queue, which the program fills meanwhile.
 *   HOLDING  Steps that were never sent stay in the queue. Steps that were sent run to their
 *            end. If their worker is lost, other workers run them again. A round of
 *            CH_SYNCHRONOUS that has begun runs to its end too, as far as it was scheduled,
 *            because its other steps would have to read the values from its beginning.
 *   FROZEN   No step runs. The servers take the snapshot. Then the caller records everything
 *            that must agree with it, such as the positions of worker inputs.
 *
 * Invariants:
 *   1. While FROZEN, no step has an attempt, no step in the queue was ever sent, no element is
 *      leased, and no assignment is being made. So the values on servers do not change.
 *   2. One cut is made at a time. A cut that fails resumes the steps too.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "base/mutant.h"
#include "base/protobuf.h"
#include "job/coordinator/private.h"

/* ---- snapshots ---- */

static ch_status pack_snapshot(uint64_t snapshot, bool begin_marks, ch_message **out)
{
    Cohort__PsSnapshot m;

    cohort__ps_snapshot__init(&m);
    m.snapshot = snapshot;
    m.begin_marks = begin_marks;
    return ch__message_pack(CH_PS_SNAPSHOT, &m.base, 0, NULL, out);
}

ch_status ch__snapshot_create(const ch_coord_context *t, bool begin_marks, ch_coord_then then,
                              uint64_t *snapshot)
{
    ch_coord   *c = t->c;
    ch_message *p = NULL;
    ch_status   rc = CH_OK;

    *snapshot = ++c->n_snapshots;
    if (c->n_in_use == CH_SNAPSHOTS)
        rc = ch__fail(CH_RESOURCE_EXHAUSTED,
                      "all %d snapshots of the variables are in use; release a snapshot first",
                      CH_SNAPSHOTS);
    if (rc == CH_OK)
        rc = pack_snapshot(*snapshot, begin_marks, &p);
    if (rc != CH_OK) {
        for (int i = 0; i < c->opt.n_servers; i++)
            then(t, &(ch_coord_call){.to = ch__to_server(i), .arg = *snapshot});
        return rc;
    }
    c->in_use[c->n_in_use].number = *snapshot;
    c->in_use[c->n_in_use].n_pending = c->opt.n_servers;
    c->in_use[c->n_in_use++].has_failed = false;
    rc = ch__coord_call_servers(t, p, then, *snapshot);
    if (rc != CH_OK)
        ch__snapshot_release(t, *snapshot);
    return rc;
}

/* Releases the snapshots on servers that are not in use: all up to a number, except those that
 * are in use. A server that has released up to a number does not take an older snapshot any
 * more. So the number is smaller than those of the snapshots that are being taken. If memory is
 * exhausted, the next release does it. */
static void release_unused(const ch_coord_context *t)
{
    ch_coord          *c = t->c;
    Cohort__PsSnapshot m;
    ch_message        *p = NULL;
    uint64_t           kept[CH_SNAPSHOTS];

    cohort__ps_snapshot__init(&m);
    m.snapshot = c->n_snapshots;
    m.release = true;
    m.kept = kept;
    while (m.n_kept < (size_t)c->n_in_use && c->in_use[m.n_kept].n_pending == 0) {
        kept[m.n_kept] = c->in_use[m.n_kept].number;
        m.n_kept++;
    }
    if (m.n_kept < (size_t)c->n_in_use)
        m.snapshot = c->in_use[m.n_kept].number - 1;
    c->must_release = c->n_snapshots - m.snapshot > (uint64_t)c->n_in_use - m.n_kept;
    if (ch__message_pack(CH_PS_SNAPSHOT, &m.base, 0, NULL, &p) == CH_OK)
        (void)ch__coord_call_servers(t, p, NULL, 0);
}

void ch__snapshot_on_reply(const ch_coord_context *t, const ch_coord_call *call)
{
    ch_coord *c = t->c;

    for (int i = 0; i < c->n_in_use; i++)
        if (c->in_use[i].number == call->arg) {
            c->in_use[i].has_failed |= call->reply == NULL;
            if (--c->in_use[i].n_pending == 0 && c->must_release)
                release_unused(t);
            return;
        }
}

void ch__snapshot_release(const ch_coord_context *t, uint64_t snapshot)
{
    ch_coord *c = t->c;
    int       n = 0;

    for (int i = 0; i < c->n_in_use; i++)
        if (c->in_use[i].number != snapshot)
            c->in_use[n++] = c->in_use[i];
    c->n_in_use = n;
    release_unused(t);
}

/* ---- for threads of the program ---- */

static bool is_zero(void *arg)
{
    const int *left = arg;

    return *left == 0;
}

/* Handles a server's reply to a snapshot, or an error in its place. */
static void on_snapshot(const ch_coord_context *t, const ch_coord_call *call)
{
    ch__snapshot_on_reply(t, call);
    t->c->n_snapshotting--;
}

static bool has_failed(const ch_coord *c, uint64_t snapshot)
{
    for (int i = 0; i < c->n_in_use; i++)
        if (c->in_use[i].number == snapshot)
            return c->in_use[i].has_failed;
    return false;
}

/* Takes a snapshot and blocks until every server has replied. The task must be locked. */
static ch_status take_snapshot(ch_task *coord, ch_coord_context *t, bool begin_marks,
                               uint64_t *snapshot)
{
    ch_status rc;

    t->c->n_snapshotting += t->c->opt.n_servers;
    rc = ch__snapshot_create(t, begin_marks, on_snapshot, snapshot);
    if (rc == CH_OK)
        rc = ch__task_wait(coord, is_zero, &t->c->n_snapshotting, 0,
                           "parameter servers to reply");
    t->now = ch__task_now(coord);
    if (ch__task_self(coord) != t->c)
        return rc; /* the task has ended */
    if (rc == CH_OK)
        rc = ch__fault_raise(&t->c->broken);
    if (rc == CH_OK && has_failed(t->c, *snapshot))
        rc = ch__fail(CH_RESOURCE_EXHAUSTED,
                      "snapshot of the variables: a parameter server is out of memory; release "
                      "other snapshots, or use more servers");
    if (rc != CH_OK)
        ch__snapshot_release(t, *snapshot);
    return rc;
}

ch_status ch__coord_snapshot(ch_task *coord, uint64_t *snapshot)
{
    ch_coord_context t = ch__coord_enter(coord);

    return ch__coord_leave(coord, take_snapshot(coord, &t, false, snapshot));
}

void ch__coord_release_snapshot(ch_task *coord, uint64_t snapshot)
{
    ch_coord_context t = ch__coord_enter(coord);

    if (t.c != NULL)
        ch__snapshot_release(&t, snapshot);
    ch__task_leave(coord);
}

/* ---- spare memory on servers ---- */

static ch_status pack_reserve(bool release, ch_message **out)
{
    enum { BYTES = 64 << 20 }; /* in a call, so that the server soon replies to others */
    Cohort__PsReserve m;

    cohort__ps_reserve__init(&m);
    m.bytes = release ? 0 : BYTES;
    m.release = release;
    return ch__message_pack(CH_PS_RESERVE, &m.base, 0, NULL, out);
}

/* Sends RESERVE to a server. Stores the number of bytes that are left there. */
static ch_status reserve_some(ch_task *coord, int server, uint64_t *left)
{
    ch_message       *p = NULL, *reply = NULL;
    ProtobufCMessage *m = NULL;
    ch_status         rc = pack_reserve(false, &p);

    if (rc == CH_OK)
        rc = ch__coord_request(coord, 1, &server, &p, &reply);
    if (rc == CH_OK)
        rc = ch__message_parse(reply, &cohort__ps_reply__descriptor, &m);
    if (rc == CH_OK)
        *left = ((const Cohort__PsReply *)(const void *)m)->left;
    ch__protobuf_free(m);
    ch__message_unref(reply);
    return rc;
}

static int count_servers(ch_task *coord)
{
    ch_coord_context t = ch__coord_enter(coord);
    int              n = t.c != NULL ? t.c->opt.n_servers : 0;

    ch__task_leave(coord);
    return n;
}

/* Replies are untrusted: a server whose bytes do not become fewer is not called again. */
ch_status ch__coord_reserve(ch_task *coord)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < count_servers(coord) && rc == CH_OK; i++) {
        uint64_t left = UINT64_MAX, before;

        do {
            before = left;
            rc = reserve_some(coord, i, &left);
        } while (rc == CH_OK && left > 0 && left < before);
    }
    return rc;
}

void ch__coord_unreserve(ch_task *coord)
{
    ch_message      *p = NULL;
    ch_coord_context t = ch__coord_enter(coord);

    if (t.c != NULL && pack_reserve(true, &p) == CH_OK)
        (void)ch__coord_call_servers(&t, p, NULL, 0);
    ch__task_leave(coord);
}

void ch__coord_end_marks(ch_task *coord)
{
    ch_coord_context   t = ch__coord_enter(coord);
    ch_message        *p = NULL;
    Cohort__PsSnapshot m;

    cohort__ps_snapshot__init(&m);
    m.end_marks = true;
    if (t.c != NULL && ch__message_pack(CH_PS_SNAPSHOT, &m.base, 0, NULL, &p) == CH_OK)
        (void)ch__coord_call_servers(&t, p, NULL, 0);
    ch__task_leave(coord);
}

/* ---- cuts ---- */

/* Returns true if a step of the current round of CH_SYNCHRONOUS was sent, and not all steps of
 * the round have ended. */
static bool is_in_mid_round(const ch_coord *c)
{
    const ch_sync_round *r = &c->round;
    const ch_scheduled  *oldest = ch__queue_oldest(c);
    uint64_t             next = oldest != NULL ? oldest->order : c->n_orders;

    return c->opt.how.mode == CH_SYNCHRONOUS && r->snapshot != 0 && next < r->end &&
           (next > r->begin || (oldest != NULL && oldest->was_sent));
}

bool ch__cut_needs(const ch_coord *c, const ch_scheduled *s)
{
    if (c->cut == CH_CUT_PREPARED)
        return s->is_own || s->step <= c->cut_last;
    if (c->cut != CH_CUT_HOLDING)
        return false;
    return s->was_sent || s->step <= c->cut_last ||
           (c->cut_last == 0 && !s->is_own && s->snapshot == 0 && is_in_mid_round(c) &&
            s->order < c->round.end);
}

/* Returns true if no step runs that a cut must wait for, or if there is an error to return. */
static bool have_ended(const ch_coord *c)
{
    if (ch__fault_is_set(&c->error) || ch__fault_is_set(&c->broken) || !CH_KEEPS(CUT))
        return true;
    for (const ch_scheduled *s = c->queue.first; s != NULL; s = s->is_own ? s->after : NULL)
        if (ch__cut_needs(c, s))
            return false;
    return c->running.n == 0 && c->n_assigning == 0 && ch__cancel_is_quiet(c);
}

static bool is_still(void *arg)
{
    return have_ended(arg);
}

bool ch__cut_is_ready(const ch_coord *c)
{
    return c->cut == CH_CUT_PREPARED && have_ended(c);
}

void ch__cut_give_up(const ch_coord_context *t)
{
    if (t->c->cut != CH_CUT_PREPARED)
        return;
    t->c->cut = CH_CUT_NONE;
    t->c->cut_last = 0;
    ch__scheduler_send(t);
}

bool ch__coord_prepare_cut(ch_task *coord)
{
    ch_coord_context t = ch__coord_enter(coord);
    bool             is_free = t.c->cut == CH_CUT_NONE;

    if (is_free) {
        t.c->cut = CH_CUT_PREPARED;
        t.c->cut_last = t.c->n_steps;
    }
    ch__task_leave(coord);
    return is_free;
}

void ch__coord_give_up_cut(ch_task *coord)
{
    ch_coord_context t = ch__coord_enter(coord);

    if (t.c != NULL)
        ch__cut_give_up(&t);
    ch__task_leave(coord);
}

bool ch__coord_is_cut_prepared(ch_task *coord, bool *is_ready)
{
    ch_coord_context t = ch__coord_enter(coord);
    bool             is_prepared = t.c->cut == CH_CUT_PREPARED;

    *is_ready = ch__cut_is_ready(t.c);
    ch__task_leave(coord);
    return is_prepared;
}

static bool is_not_cut(void *arg)
{
    return ((const ch_coord *)arg)->cut == CH_CUT_NONE;
}

ch_status ch__cut_wait(ch_task *coord, ch_coord *c)
{
    return is_not_cut(c) ? CH_OK
                         : ch__coord_wait_steps(coord, c, is_not_cut, c, 0,
                                                "a snapshot between steps to be taken");
}

/* Begins the phase FROZEN. If the program has scheduled only a part of a round, the round ends
 * here, as it does at a join. So the next step begins a round, here and after a restore. */
static void freeze(const ch_coord_context *t)
{
    ch_coord           *c = t->c;
    ch_sync_round      *r = &c->round;
    const ch_scheduled *oldest = ch__queue_oldest(c);

    c->cut = CH_CUT_FROZEN;
    if (!is_in_mid_round(c))
        return;
    r->base = r->end = oldest != NULL ? oldest->order : c->n_orders;
    ch__snapshot_release(t, r->snapshot);
    r->snapshot = 0;
}

/* Ends a cut. The steps that it held back are sent. */
static void end_cut(const ch_coord_context *t)
{
    t->c->cut = CH_CUT_NONE;
    t->c->cut_last = 0;
    ch__scheduler_send(t);
}

/* Waits until no step runs. The error of a step stays for the next join. */
static ch_status hold(ch_task *coord, ch_coord_context *t, bool is_prepared)
{
    ch_status rc = CH_OK;

    if (is_prepared && t->c->cut != CH_CUT_PREPARED)
        return ch__fail(CH_FAILED_PRECONDITION, "the cut was not prepared, or was given up");
    if (!is_prepared) {
        ch__cut_give_up(t);
        rc = ch__cut_wait(coord, t->c);
    }
    if (rc != CH_OK)
        return rc;
    t->c->cut = CH_CUT_HOLDING;
    rc = ch__coord_wait_steps(coord, t->c, is_still, t->c, 0,
                              "running steps to end before a snapshot");
    t->now = ch__task_now(coord);
    if (rc == CH_OK)
        rc = ch__fault_raise(&t->c->broken);
    if (rc == CH_OK)
        rc = ch__fault_raise(&t->c->error);
    if (rc == CH_OK)
        freeze(t);
    else
        end_cut(t);
    return rc;
}

ch_status ch__coord_cut(ch_task *coord, bool is_prepared, ch_status (*between)(void *arg),
                        void *arg, bool begin_marks, uint64_t *snapshot)
{
    ch_coord_context t = ch__coord_enter(coord);
    ch_status        rc = hold(coord, &t, is_prepared);

    if (rc != CH_OK)
        return ch__coord_leave(coord, rc);
    rc = take_snapshot(coord, &t, begin_marks, snapshot);
    if (rc == CH_OK && between != NULL) {
        ch__task_leave(coord);
        rc = between(arg);
        t = ch__coord_enter(coord);
        if (rc != CH_OK)
            ch__snapshot_release(&t, *snapshot);
    }
    end_cut(&t);
    return ch__coord_leave(coord, rc);
}

bool ch__coord_is_in_mid_round(ch_task *coord)
{
    ch_coord_context t = ch__coord_enter(coord);
    bool             is_in;

    is_in = t.c->opt.how.mode == CH_SYNCHRONOUS &&
            (t.c->n_orders - t.c->round.base) % ch__round_size(t.c) != 0;
    ch__task_leave(coord);
    return is_in;
}

int64_t ch__coord_count_queued(ch_task *coord, const void *owner)
{
    ch_coord_context t = ch__coord_enter(coord);
    int64_t          n = 0;

    for (const ch_scheduled *s = t.c->queue.first; s != NULL; s = s->after)
        n += s->owner == owner;
    ch__task_leave(coord);
    return n;
}
