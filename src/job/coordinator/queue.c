/* job/coordinator/queue.c -- the lists of steps: their order, and how steps end.
 *
 * ch_scheduled is a step (private.h). client.c adds steps. scheduler.c decides which step runs
 * where, attempt.c calls the workers; both move steps between the lists with the functions of
 * this file. Steps end in ch__queue_end.
 *
 * Invariants:
 *   1. Every step that has not ended is in the list ch_coord.oldest ... newest, by number. A
 *      queued step is also in `queue`, a running step in `running`; an assignment is in
 *      neither.
 *   2. Both lists have own steps first, then the others, each part by number.
 *   3. A running step has one or two attempts, or none while it is parked: being cancelled
 *      (cancel.c), or accepted (settle.c).
 *   4. Every step ends once, whatever its attempts reply. When it ends, its attempts are
 *      cancelled.
 *   5. A step that is queued again keeps its number, leases and seed. So servers recognise the
 *      updates that an earlier attempt sent.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/mutant.h"
#include "graph/where.h"
#include "job/coordinator/private.h"
#include "tensor/tensor.h"

/* ---- lists ---- */

/* Returns true if a comes before b: own steps first, then by number. */
static bool comes_before(const ch_scheduled *a, const ch_scheduled *b)
{
    return a->is_own != b->is_own ? a->is_own : a->step < b->step;
}

/* Returns the step after which `s` must be inserted, or NULL if it must be the first. Own steps
 * are few, so they are searched from the front. Other steps are searched from the back, because
 * a new step has the largest number. */
static ch_scheduled *find_before(const ch_step_list *l, const ch_scheduled *s)
{
    ch_scheduled *at = s->is_own ? l->first : l->last;

    if (!s->is_own) {
        while (at != NULL && comes_before(s, at))
            at = at->before;
        return at;
    }
    while (at != NULL && comes_before(at, s))
        at = at->after;
    return at != NULL ? at->before : l->last;
}

static void list_add(ch_step_list *l, ch_scheduled *s)
{
    ch_scheduled *at = find_before(l, s);

    s->before = at;
    s->after = at != NULL ? at->after : l->first;
    *(at != NULL ? &at->after : &l->first) = s;
    *(s->after != NULL ? &s->after->before : &l->last) = s;
    l->n++;
    l->n_own += s->is_own;
    l->bytes += s->bytes;
}

static void list_remove(ch_step_list *l, ch_scheduled *s)
{
    *(s->before != NULL ? &s->before->after : &l->first) = s->after;
    *(s->after != NULL ? &s->after->before : &l->last) = s->before;
    s->after = s->before = NULL;
    l->n--;
    l->n_own -= s->is_own;
    l->bytes -= s->bytes;
}

void ch__queue_add(ch_coord *c, ch_scheduled *s)
{
    s->step = ++c->n_steps;
    s->prev = c->newest;
    *(c->newest != NULL ? &c->newest->next : &c->oldest) = s;
    c->newest = s;
    if (s->is_assign)
        return;
    s->order = c->n_orders;
    c->n_orders += !s->is_own;
    list_add(&c->queue, s);
}

uint64_t ch__queue_retired(const ch_coord *c)
{
    return c->oldest != NULL ? c->oldest->step : c->n_steps + 1;
}

const ch_scheduled *ch__queue_oldest(const ch_coord *c)
{
    const ch_scheduled *s = c->oldest;

    while (s != NULL && (s->is_assign || s->is_own))
        s = s->next;
    return s;
}

/* ---- queued and running ---- */

bool ch__queue_is_parked(const ch_scheduled *s)
{
    return s->is_held || s->is_accepted || (s->wants_cancel && !s->has_begun);
}

void ch__queue_set_running(ch_coord *c, ch_scheduled *s)
{
    if (s->state != CH_STEP_QUEUED)
        return;
    list_remove(&c->queue, s);
    s->state = CH_STEP_RUNNING;
    list_add(&c->running, s);
}

void ch__queue_requeue(const ch_coord_context *t, ch_scheduled *s)
{
    if (s->attempt[0].call != 0 || s->attempt[1].call != 0 || ch__queue_is_parked(s))
        return;
    if (!CH_KEEPS(LEASE))
        for (int i = 0; i < s->n_leases; i++)
            s->lease[i].number = -1;
    list_remove(&t->c->running, s);
    s->state = CH_STEP_QUEUED;
    list_add(&t->c->queue, s);
}

void ch__queue_resume(const ch_coord_context *t, ch_scheduled *s)
{
    for (int i = 0; i < CH_ATTEMPTS; i++)
        if (t->c->worker[s->attempt[i].worker]->state == CH_WORKER_READY)
            ch__attempt_end(t, s, i);
    ch__queue_requeue(t, s);
}

/* ---- the end of a step ---- */

void ch__scheduled_unref(ch_scheduled *s)
{
    if (s == NULL || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (int i = 0; i < s->n_in; i++)
        ch_tensor_unref(s->in[i]);
    ch__message_unref(s->result);
    ch__free(s->fault);
    ch__free(s);
}

void ch__queue_end(const ch_coord_context *t, ch_scheduled *s, ch_scheduled_state how)
{
    ch_coord *c = t->c;

    for (int i = 0; i < CH_ATTEMPTS; i++)
        ch__attempt_end(t, s, i);
    if (!s->is_assign)
        list_remove(s->state == CH_STEP_QUEUED ? &c->queue : &c->running, s);
    *(s->prev != NULL ? &s->prev->next : &c->oldest) = s->next;
    *(s->next != NULL ? &s->next->prev : &c->newest) = s->prev;
    s->next = s->prev = NULL;
    s->state = how;
    if (!s->is_assign) {
        c->stats.finished += how == CH_STEP_DONE;
        c->stats.failed += how == CH_STEP_FAILED;
        c->stats.cancelled += how == CH_STEP_CANCELLED;
    }
    c->cancel.n_wanted -= s->wants_cancel;
    c->settle.n_accepted -= s->is_accepted;
    ch__worker_input_release(t, s);
    if (s->function != NULL) {
        s->function->n_steps--;
        ch__step_function_free_unused(t, s->function);
        s->function = NULL;
    }
    ch__scheduled_unref(s);
    c->n_unreported++;
}

/* Fails a step. The first error of a step that is not own is kept for join. */
static void fail(const ch_coord_context *t, ch_scheduled *s, const ch_fault *why)
{
    s->code = why->code;
    s->fault = ch__malloc(sizeof(*s->fault));
    if (s->fault != NULL)
        *s->fault = *why;
    if (!s->is_own && !ch__fault_is_set(&t->c->error)) {
        t->c->error = *why;
        t->c->n_errors++;
    }
    ch__queue_end(t, s, CH_STEP_FAILED);
}

/* Skips "replica 1: ", with which an error begins if the worker has several devices. */
static const char *skip_replica(const char *text)
{
    static const char word[] = "replica ";
    const char       *c = text + strlen(word);

    if (strncmp(text, word, strlen(word)) != 0)
        return text;
    c += strspn(c, "0123456789");
    return strncmp(c, ": ", 2) == 0 ? c + 2 : text;
}

/* Returns the program line of the op, or composite op, with whose name an error begins. Returns
 * NULL if it is unknown, or if several lines record the op. */
static const void *caller_of(const ch_step_function *f, const char *text)
{
    text = skip_replica(text);
    for (int i = 0; i < f->n_ops; i++) {
        size_t n = strlen(f->op[i].name);

        if (strncmp(text, f->op[i].name, n) == 0 && strchr("(: ", text[n]) != NULL)
            return f->op[i].caller;
    }
    return NULL;
}

/* Appends the program line to an error, because workers do not have lines. Does nothing if
 * several lines of the program record the op. */
static void add_line(const ch_step_function *f, ch_fault *why)
{
    const void *caller = caller_of(f, why->text);
    size_t      n = strlen(why->text);
    char        line[256] = "";

    ch__where(caller, line, sizeof(line));
    if (line[0] != '\0' && n + sizeof(", at ") + strlen(line) <= sizeof(why->text))
        (void)snprintf(why->text + n, sizeof(why->text) - n, ", at %s", line);
}

void ch__queue_fail(const ch_coord_context *t, ch_scheduled *s, const ch_fault *why)
{
    ch_fault named = *why;

    if (s->function != NULL)
        add_line(s->function, &named);
    named.step = (int64_t)s->step;
    (void)snprintf(named.function, sizeof(named.function), "%s",
                   s->function != NULL ? s->function->name : "a function");
    fail(t, s, &named);
}

void ch__queue_fail_status(const ch_coord_context *t, ch_scheduled *s, ch_status rc)
{
    ch_fault why;

    ch__fault_clear(&why);
    (void)ch__fault_record(&why, rc, -1, NULL);
    ch__queue_fail(t, s, &why);
}

void ch__queue_fail_all(const ch_coord_context *t, const ch_fault *why)
{
    ch_scheduled *next;

    for (ch_scheduled *s = t->c->oldest; s != NULL; s = next) {
        next = s->next;
        if (!s->is_assign) /* an assignment ends when its calls end */
            fail(t, s, why);
    }
    ch__fault_clear(&t->c->error); /* every later call returns `broken` instead */
    ch__cancel_abort(t->c);
    ch__settle_abort(t->c);
}

void ch__queue_fail_users(const ch_coord_context *t, uint64_t number, const ch_fault *why)
{
    ch_scheduled *next;

    for (ch_scheduled *s = t->c->queue.first; s != NULL; s = next) {
        bool needs = s->function != NULL && s->function->number == number;

        next = s->after;
        for (int i = 0; i < s->n_leases; i++)
            for (int k = 0; k < s->lease[i].input->n_streams; k++)
                needs |= s->lease[i].input->stream[k].number == number;
        if (needs)
            ch__queue_fail(t, s, why);
    }
}

/* ---- the list of live steps for servers ---- */

/* Returns true if the list of live steps in a PING must go on with this step.
 *
 * Steps are sent in the order of their numbers. So the list may end at the first step that was
 * not sent: no server can have records of a later step. An own step may overtake; servers then
 * keep its records until the steps before it have ended. Up to the newest step that was
 * cancelled, all live steps are listed, because servers must reject the cancelled steps between
 * them. */
static bool must_be_listed(const ch_coord *c, const ch_scheduled *s)
{
    return s->was_sent || s->is_assign || s->step <= c->cancel.upto;
}

ch_status ch__queue_pack_retired(const ch_coord *c, ch_message **out)
{
    Cohort__PsPing m;
    ch_status      rc;
    size_t         n = 0;

    cohort__ps_ping__init(&m);
    m.retired = m.below = ch__queue_retired(c);
    m.released = c->cancel.released;
    for (const ch_scheduled *s = c->oldest; s != NULL && must_be_listed(c, s); s = s->next)
        n++;
    m.live = ch__calloc(n + 1, sizeof(*m.live));
    if (m.live == NULL)
        return ch__fail_memory("a ping");
    for (const ch_scheduled *s = c->oldest; m.n_live < n; s = s->next) {
        m.live[m.n_live++] = s->step;
        m.below = s->next != NULL ? s->next->step : c->n_steps + 1;
    }
    rc = ch__message_pack(CH_PS_PING, &m.base, 0, NULL, out);
    ch__free(m.live);
    return rc;
}
