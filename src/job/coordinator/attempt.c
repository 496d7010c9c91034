/* job/coordinator/attempt.c -- attempts: RUN calls of steps to workers, and their outcomes.
 *
 * A ch_attempt (private.h) begins in ch__attempt_send, which scheduler.c calls. It ends when
 * the worker replies, when the step exceeds its time limit, when the worker was lost and is
 * fenced, when replies to pings do not list the step, or when the step ends. Afterwards the
 * step has ended too, or it is queued again (ch__queue_requeue).
 *
 * Invariants:
 *   1. An attempt is in ch_coord.calls, by the id of its call, until that call ends. It is in
 *      the list of its worker until the attempt ends. For a lost worker that is after the
 *      fence.
 *   2. `first` of a worker is the attempt that the worker presumably runs, `began` the time
 *      since when. A reply to a ping confirms or corrects it (record_current).
 *   3. A worker has at most CH_WORKER_ATTEMPTS attempts, and a step at most CH_ATTEMPTS.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/mem.h"
#include "base/mutant.h"
#include "base/protobuf.h"
#include "job/coordinator/private.h"
#include "tensor/tensor.h"

enum { LOST_PINGS = 2 };   /* replies to pings in a row without a step: the step was lost */
enum { PAUSE_TICKS = 20 }; /* pause of a worker that could not reach a server */

/* ---- the RUN message ---- */

/* Returns the number of copies of the request's inputs: one, or one for each replica. */
static int ordered_copies(const ch_scheduled *s)
{
    int n = s->n_in - s->n_shared;

    return n > s->n_inputs ? n / s->n_inputs : 1;
}

/* Returns the number of copies of all inputs in a RUN message. If any input has a tensor for
 * each replica, all inputs are sent once for each replica. */
static int count_copies(const ch_scheduled *s)
{
    int copies = ordered_copies(s);

    for (int i = 0; i < s->n_leases; i++)
        if (s->lease[i].input->n_values > 0 && s->lease[i].input->copies > copies)
            copies = s->lease[i].input->copies;
    return copies;
}

/* Returns the number of inputs in a RUN message, for one copy. Elements are not sent. */
static int count_inputs(const ch_scheduled *s)
{
    int n = s->n_inputs + s->n_shared;

    for (int i = 0; i < s->n_leases; i++)
        n += s->lease[i].input->n_values > 0 ? s->lease[i].input->width : 0;
    return n;
}

/* Collects the inputs of a replica. Returns their number. The caller owns the references. */
static int collect_inputs(const ch_scheduled *s, int worker, int replica, ch_tensor **tensor)
{
    int n = 0, from = ordered_copies(s) > 1 ? replica * s->n_inputs : 0;

    for (; n < s->n_inputs; n++)
        tensor[n] = ch_tensor_ref(s->in[from + n]);
    for (int i = 0; i < s->n_leases; i++) {
        const ch_worker_input *f = s->lease[i].input;

        if (f->n_values == 0)
            continue;
        from = worker % f->n_values * f->copies + (f->copies > 1 ? replica : 0);
        for (int k = 0; k < f->width; k++)
            tensor[n++] = ch_tensor_ref(f->value[from * f->width + k]);
    }
    for (int i = s->n_in - s->n_shared; i < s->n_in; i++)
        tensor[n++] = ch_tensor_ref(s->in[i]);
    return n;
}

/* Collects the elements that the worker must read, with their index among the inputs. */
static int collect_elements(const ch_scheduled *s, Cohort__WorkerElement *element)
{
    int at = s->n_inputs, n = 0;

    for (int i = 0; i < s->n_leases; i++) {
        const ch_worker_input *f = s->lease[i].input;

        if (f->n_values == 0) {
            Cohort__WorkerElement *e = &element[n++];

            cohort__worker_element__init(e);
            e->stream = f->stream[s->lease[i].stream].number;
            e->number = s->lease[i].number;
            e->at = (uint32_t)at;
        }
        at += f->width;
    }
    return n;
}

/* Makes the RUN message of a step for a worker. */
static ch_status pack_run(const ch_coord *c, const ch_scheduled *s, int worker,
                          ch_message **out)
{
    enum { FEW = 16 };
    Cohort__WorkerRun     m;
    Cohort__WorkerElement few[FEW], *few_list[FEW], *element = few, **list = few_list;
    ch_tensor            *few_tensors[FEW], **tensor = few_tensors;
    int                   copies = count_copies(s), n = count_inputs(s) * copies, at = 0;
    ch_status             rc = CH_OK;

    if (n > FEW || s->n_leases > FEW) {
        tensor = ch__calloc((size_t)n + 1, sizeof(*tensor));
        element = ch__calloc((size_t)s->n_leases + 1, sizeof(*element));
        list = ch__calloc((size_t)s->n_leases + 1, sizeof(*list));
        if (tensor == NULL || element == NULL || list == NULL)
            rc = ch__fail_memory("a step");
    }
    if (rc == CH_OK) {
        cohort__worker_run__init(&m);
        m.step = s->step;
        m.function = s->function->number;
        m.retired = ch__queue_retired(c);
        m.number = s->number;
        m.seed = s->seed;
        m.snapshot = CH_KEEPS(SNAPSHOT) ? s->snapshot : 0;
        m.registration = c->worker[worker]->registration;
        m.silent = s->is_silent;
        m.defer = s->defers;
        for (int k = 0; k < copies; k++)
            at += collect_inputs(s, worker, k, &tensor[at]);
        m.n_elements = (size_t)collect_elements(s, element);
        m.elements = list;
        for (size_t i = 0; i < m.n_elements; i++)
            list[i] = &element[i];
        rc = ch__message_pack(CH_WORKER_RUN, &m.base, n, tensor, out);
    }
    if (tensor != few_tensors) {
        ch__free(tensor);
        ch__free(element);
        ch__free(list);
    }
    return rc;
}

/* ---- sending and ending ---- */

/* Restarts the time of `first`, because the worker now runs another attempt or none. */
static void restart_clock(const ch_coord_context *t, ch_worker_entry *m)
{
    m->began = t->now;
    m->is_confirmed = false;
}

static void unlink_attempt(ch_worker_entry *m, ch_attempt *a)
{
    *(a->prev != NULL ? &a->prev->next : &m->first) = a->next;
    *(a->next != NULL ? &a->next->prev : &m->last) = a->prev;
}

/* Inserts an attempt after `prev`, or at the front if `prev` is NULL. */
static void link_attempt(ch_worker_entry *m, ch_attempt *a, ch_attempt *prev)
{
    a->prev = prev;
    a->next = prev != NULL ? prev->next : m->first;
    *(a->prev != NULL ? &a->prev->next : &m->first) = a;
    *(a->next != NULL ? &a->next->prev : &m->last) = a;
}

/* Adds an attempt to the end of its worker's list. */
static void enter_worker(const ch_coord_context *t, ch_attempt *a)
{
    ch_worker_entry *m = t->c->worker[a->worker];

    link_attempt(m, a, m->last);
    if (m->n_runs++ == 0)
        restart_clock(t, m);
}

/* Removes an attempt from its worker's list. Afterwards the step does not have it. */
static void leave_worker(const ch_coord_context *t, ch_attempt *a)
{
    ch_worker_entry *m = t->c->worker[a->worker];

    if (m->first == a)
        restart_clock(t, m);
    unlink_attempt(m, a);
    m->n_runs--;
    a->call = 0;
}

void ch__attempt_end(const ch_coord_context *t, ch_scheduled *s, int i)
{
    ch_attempt *a = &s->attempt[i];

    if (a->call == 0)
        return;
    if (ch__map_remove(&t->c->calls, (ch_key){a->call, 0}) != NULL && t->outbox != NULL)
        ch__outbox_cancel(t->outbox, a->call);
    leave_worker(t, a);
}

/* Sets the alarm of a worker to the time limit of the step that it runs. An alarm that fires
 * earlier is left alone; it is set again when it fires. So steps that end in time need no
 * timer. */
static void set_alarm(const ch_coord_context *t, ch_worker_entry *m)
{
    int64_t at = m->began + t->c->opt.step;

    if (m->alarm_at <= at)
        return;
    m->alarm_at = at;
    ch__outbox_timer(t->outbox, m->alarm, at);
}

bool ch__attempt_send(const ch_coord_context *t, ch_scheduled *s, int worker)
{
    ch_coord   *c = t->c;
    ch_attempt *a = &s->attempt[s->attempt[0].call != 0];
    ch_message *p = NULL;
    /* Longer than all attempts of a worker may take, because the alarm enforces the time limit
     * of a step. If there is no reply until then, the step is sent again. */
    int64_t limit = c->opt.silence + c->opt.step * (CH_WORKER_ATTEMPTS + 1);

    if (pack_run(c, s, worker, &p) != CH_OK)
        return false;
    *a = (ch_attempt){.call = ++c->n_ids, .worker = worker, .sent_at = t->now};
    if (ch__map_set(&c->calls, (ch_key){a->call, 0}, s) != CH_OK) {
        ch__message_unref(p);
        a->call = 0;
        return false;
    }
    enter_worker(t, a);
    set_alarm(t, c->worker[worker]);
    s->was_sent = true;
    ch__outbox_call(t->outbox, c->worker[worker]->link, p,
                    &(ch_call_options){.id = a->call,
                                       .deadline = t->now + limit,
                                       .incarnation = CH_KEEPS(INCARNATION)
                                                          ? c->worker[worker]->incarnation
                                                          : 0});
    ch__queue_set_running(c, s);
    return true;
}

/* ---- replies ---- */

/* Updates the mean time of a worker's steps. A step begins when the step before it has
 * ended. */
static void record_time(const ch_coord_context *t, ch_worker_entry *m, int64_t sent_at)
{
    int64_t took = t->now - (sent_at > m->last_end ? sent_at : m->last_end);

    m->mean = m->mean == 0 ? took : m->mean + (took - m->mean) / 8;
    m->last_end = t->now;
}

/* Handles a successful reply to RUN: the step is done, or the worker could not reach a server,
 * or a stream has ended. */
static void on_ran(const ch_coord_context *t, ch_scheduled *s, ch_worker_entry *by,
                   const ch_net_event *e)
{
    ProtobufCMessage          *m = NULL;
    const Cohort__WorkerReply *done;
    ch_status rc = ch__message_parse(e->message, &cohort__worker_reply__descriptor, &m);

    if (rc != CH_OK) {
        ch__queue_fail_status(t, s, rc);
        return;
    }
    done = (const void *)m;
    if (done->position_stream != 0 && e->message->n_tensors > 0)
        ch__worker_input_position(t, done->position_stream, done->position_number,
                                  e->message->tensor[e->message->n_tensors - 1]);
    if (done->unreachable != 0) {
        by->paused_until = t->now + PAUSE_TICKS * t->c->opt.tick;
        t->c->stats.repeated++;
        ch__queue_requeue(t, s);
    } else if (done->ended_stream == 0) {
        if (!s->is_silent)
            s->result = ch__message_ref(e->message);
        by->n_finished++;
        if (s->defers)
            ch__settle_accept(t, s);
        else
            ch__queue_end(t, s, CH_STEP_DONE);
    } else {
        for (int i = 0; i < CH_ATTEMPTS; i++)
            ch__attempt_end(t, s, i); /* no attempt can read the element */
        if (ch__worker_input_ended(t, s, done->ended_stream))
            ch__queue_requeue(t, s);
        else
            ch__queue_fail_status(
                t, s,
                ch__fail(CH_OUT_OF_RANGE,
                         "no elements are left in the data that it reads; begin a "
                         "new pass with ch_per_worker_iterate"));
    }
    ch__protobuf_free(m);
}

/* Fails a step that has exceeded its time limit. */
static void fail_late(const ch_coord_context *t, ch_scheduled *s, const ch_worker_entry *m)
{
    ch_fault why;

    ch__fault_clear(&why);
    (void)ch__fault_record(
        &why,
        ch__fail(CH_DEADLINE_EXCEEDED,
                 "it has not ended within %g s; step_seconds of the coordinator sets "
                 "the limit",
                 (double)t->c->opt.step * 1e-9),
        -1, NULL);
    (void)snprintf(why.task, sizeof(why.task), "%s", m->name);
    ch__queue_fail(t, s, &why);
}

/* Fails the step that the worker runs if it has exceeded its time limit. Steps may arrive at a
 * worker in another order than they were sent. So if the worker has several, waits until a
 * reply to a ping has named the running step. */
static void check_time(const ch_coord_context *t, ch_worker_entry *m)
{
    ch_scheduled *s;

    if (m->first == NULL || m->state != CH_WORKER_READY)
        return;
    if (t->now - m->began < t->c->opt.step) {
        set_alarm(t, m);
        return;
    }
    if (m->n_runs > 1 && !m->is_confirmed)
        return;
    s = ch__map_find(&t->c->calls, (ch_key){m->first->call, 0});
    ch__attempt_end(t, s, m->first == &s->attempt[1]);
    fail_late(t, s, m);
    ch__attempts_worker_overdue(t, m);
    ch__scheduler_send(t);
}

void ch__attempts_on_timer(const ch_coord_context *t, uint64_t id)
{
    for (int i = 0; i < t->c->n_workers; i++)
        if (t->c->worker[i]->alarm == id) {
            t->c->worker[i]->alarm_at = INT64_MAX;
            check_time(t, t->c->worker[i]);
        }
}

void ch__attempt_on_reply(const ch_coord_context *t, ch_scheduled *s, int attempt,
                          const ch_net_event *e)
{
    ch_attempt      *a = &s->attempt[attempt];
    ch_worker_entry *m = t->c->worker[a->worker];
    int64_t          sent_at = a->sent_at;

    /* Of a worker that is being fenced only success counts. An error may come from the fence,
     * and the step is repeated anyway. */
    if (m->state == CH_WORKER_FENCING && e->ending != CH_ENDED_OK)
        return;
    if (e->ending == CH_ENDED_LOST || e->ending == CH_ENDED_REPLACED) {
        ch__workers_declare_lost(t, m); /* ends this attempt too, after the fence */
        return;
    }
    leave_worker(t, a);
    if (e->ending == CH_ENDED_OK || e->ending == CH_ENDED_ERROR)
        m->heartbeat.n_silent = 0;
    switch (e->ending) {
    case CH_ENDED_OK:
        record_time(t, m, sent_at);
        on_ran(t, s, m, e);
        break;
    case CH_ENDED_ERROR:
        /* In the other phases the error may come from the hold. */
        if (!s->is_held || t->c->cancel.phase == CH_DROPPING)
            ch__queue_fail(t, s, e->fault);
        break;
    default: /* no room or timeout: pause, or the next attempt would end like this too */
        m->paused_until = t->now + t->c->opt.retry;
        ch__queue_requeue(t, s);
    }
    ch__scheduler_send(t);
}

void ch__attempts_worker_lost(const ch_coord_context *t, int worker)
{
    ch_scheduled *next;

    for (ch_scheduled *s = t->c->running.first; s != NULL; s = next) {
        next = s->after;
        for (int i = 0; i < CH_ATTEMPTS; i++)
            if (s->attempt[i].call != 0 && s->attempt[i].worker == worker) {
                ch__attempt_end(t, s, i);
                t->c->stats.repeated++;
            }
        if (CH_KEEPS(ORPHANS))
            ch__queue_requeue(t, s);
    }
    ch__worker_input_worker_lost(t->c, worker);
}

void ch__attempts_worker_overdue(const ch_coord_context *t, ch_worker_entry *m)
{
    ch_scheduled *next;

    m->is_overdue = true;
    m->overdue_at = t->now;
    for (ch_scheduled *s = t->c->running.first; s != NULL; s = next) {
        next = s->after;
        for (int i = 0; i < CH_ATTEMPTS; i++)
            if (s->attempt[i].call != 0 && t->c->worker[s->attempt[i].worker] == m) {
                ch__attempt_end(t, s, i);
                t->c->stats.moved++;
                ch__queue_requeue(t, s);
            }
    }
}

/* ---- replies to pings ---- */

static bool is_listed(size_t n, const uint64_t *step, uint64_t wanted)
{
    for (size_t i = 0; i < n; i++)
        if (step[i] == wanted)
            return true;
    return false;
}

/* Repeats steps whose RUN message, or the reply to it, was lost: replies to pings do not list
 * them. */
static void requeue_missing(const ch_coord_context *t, const ch_worker_entry *m,
                            const Cohort__WorkerReply *reply, int64_t pinged_at)
{
    ch_scheduled *next;

    for (ch_scheduled *s = t->c->running.first; s != NULL && CH_KEEPS(COMPARE); s = next) {
        next = s->after;
        for (int i = 0; i < CH_ATTEMPTS && s->state == CH_STEP_RUNNING; i++) {
            ch_attempt *a = &s->attempt[i];

            if (a->call == 0 || t->c->worker[a->worker] != m || a->sent_at >= pinged_at)
                continue;
            a->n_absent =
                is_listed(reply->n_steps, reply->steps, s->step) ? 0 : a->n_absent + 1;
            if (a->n_absent < LOST_PINGS)
                continue;
            ch__attempt_end(t, s, i);
            t->c->stats.repeated++;
            ch__queue_requeue(t, s);
        }
    }
}

/* Records which step the worker runs, unless it has begun another since the ping was sent. */
static void record_current(const ch_coord_context *t, ch_worker_entry *m,
                           const Cohort__WorkerReply *reply, int64_t pinged_at)
{
    if (pinged_at < m->began)
        return;
    if (reply->at == 0 && reply->busy) /* it still computes a dropped step */
        restart_clock(t, m);
    for (ch_attempt *a = m->first; a != NULL && !m->is_confirmed; a = a->next) {
        const ch_scheduled *s = ch__map_find(&t->c->calls, (ch_key){a->call, 0});

        if (s->step != reply->at)
            continue;
        unlink_attempt(m, a);
        link_attempt(m, a, NULL);
        m->is_confirmed = true;
    }
}

void ch__attempts_on_ping(const ch_coord_context *t, ch_worker_entry *m,
                          const Cohort__WorkerReply *reply, int64_t pinged_at)
{
    record_current(t, m, reply, pinged_at);
    requeue_missing(t, m, reply, pinged_at);
    check_time(t, m);
    ch__scheduler_send(t);
}
