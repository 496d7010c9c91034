/* job/coordinator/queue.c -- steps: their order, the worker that runs each step, how they end.
 *
 * ch_scheduled is a step, ch_attempt a RUN call of it to a worker (private.h). Steps are added
 * by client.c. They are sent to workers by ch__queue_send, which is called whenever a step or a
 * worker may have become available. They end in ch__queue_end.
 *
 * Invariants:
 *   1. Every step that has not ended is in the list ch_coord.oldest ... newest, by number. A
 *      queued step is also in `queue`, a running step in `running`; an assignment is in
 *      neither.
 *   2. Both lists have own steps first, then the others, each part by number.
 *   3. A running step has one or two attempts, or none while it is parked (cancel.c).
 *   4. An attempt is in ch_coord.calls, by the id of its call, until that call ends. It is in
 *      the list of its worker until the attempt ends. For a lost worker that is after the
 *      fence.
 *   5. Every step ends once, whatever its attempts reply. When it ends, its attempts are
 *      cancelled.
 *   6. A step that is queued again keeps its number, leases and seed. So servers recognise the
 *      updates that an earlier attempt sent.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/mutant.h"
#include "base/protobuf.h"
#include "graph/where.h"
#include "job/coordinator/private.h"
#include "tensor/tensor.h"

enum { DEPTH = 32 };       /* attempts that a worker has at the same time, at most */
enum { LOST_PINGS = 2 };   /* replies to pings in a row without a step: the step was lost */
enum { PAUSE_TICKS = 20 }; /* pause of a worker that could not reach a server */
static const int64_t backlog_ns = 1000000; /* computing time of the steps that a worker has */
/* A step that takes less time is not slow: it gets no backup, and steps that wait for the same
 * worker are not moved. */
static const int64_t slow_ns = 10000000;
static const int     slow_times = 3; /* a step is slow at this multiple of the mean time */

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

/* Removes a step from the list of steps that have not ended. */
static void unlink_step(ch_coord *c, ch_scheduled *s)
{
    *(s->prev != NULL ? &s->prev->next : &c->oldest) = s->next;
    *(s->next != NULL ? &s->next->prev : &c->newest) = s->prev;
    s->next = s->prev = NULL;
}

uint64_t ch__queue_retired(const ch_coord *c)
{
    return c->oldest != NULL ? c->oldest->step : c->n_steps + 1;
}

/* ---- the end of a step ---- */

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

/* Ends an attempt, if there is one, and cancels its call. */
static void end_attempt(const ch_coord_context *t, ch_scheduled *s, int i)
{
    ch_attempt *a = &s->attempt[i];

    if (a->call == 0)
        return;
    if (ch__map_remove(&t->c->calls, (ch_key){a->call, 0}) != NULL && t->outbox != NULL)
        ch__outbox_cancel(t->outbox, a->call);
    leave_worker(t, a);
}

static bool has_attempt(const ch_scheduled *s)
{
    return s->attempt[0].call != 0 || s->attempt[1].call != 0;
}

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

static void count_end(ch_coordinator_stats *s, ch_scheduled_state how)
{
    s->finished += how == CH_STEP_DONE;
    s->failed += how == CH_STEP_FAILED;
    s->cancelled += how == CH_STEP_CANCELLED;
}

void ch__coord_function_free(ch_coord_function *f)
{
    if (f == NULL)
        return;
    ch__message_unref(f->message);
    ch__free(f->op);
    ch__free(f);
}

void ch__coord_function_free_unused(const ch_coord_context *t, ch_coord_function *f)
{
    if (!f->is_forgotten || f->n_steps > 0)
        return;
    (void)ch__map_remove(&t->c->functions, (ch_key){f->number, 0});
    ch__workers_drop(t, f->number, CH_SENT_FUNCTION);
    ch__servers_free_functions(t, f->first_update, f->n_updates);
    ch__coord_function_free(f);
}

static void release_function(const ch_coord_context *t, ch_scheduled *s)
{
    ch_coord_function *f = s->function;

    s->function = NULL;
    if (f == NULL)
        return;
    f->n_steps--;
    ch__coord_function_free_unused(t, f);
}

void ch__queue_end(const ch_coord_context *t, ch_scheduled *s, ch_scheduled_state how)
{
    ch_coord *c = t->c;

    for (int i = 0; i < CH_ATTEMPTS; i++)
        end_attempt(t, s, i);
    if (!s->is_assign)
        list_remove(s->state == CH_STEP_QUEUED ? &c->queue : &c->running, s);
    unlink_step(c, s);
    s->state = how;
    if (!s->is_assign)
        count_end(&c->stats, how);
    c->cancel.n_wanted -= s->wants_cancel;
    ch__worker_input_release(t, s);
    release_function(t, s);
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

/* Returns the program line of the op with whose name an error begins. Returns NULL if it is
 * unknown, or if several lines record the op. */
static const void *caller_of(const ch_coord_function *f, const char *text)
{
    text = skip_replica(text);
    for (int i = 0; i < f->n_ops; i++) {
        size_t n = strlen(f->op[i].name);

        if (strncmp(text, f->op[i].name, n) == 0 && (text[n] == '(' || text[n] == ':'))
            return f->op[i].caller;
    }
    return NULL;
}

/* Appends the program line to an error, because workers do not have lines. Does nothing if
 * several lines of the program record the op. */
static void add_line(const ch_coord_function *f, ch_fault *why)
{
    const void *caller = caller_of(f, why->text);
    size_t      n = strlen(why->text);
    char        line[256] = "";

    ch__where(caller, line, sizeof(line));
    if (line[0] != '\0' && n + sizeof(", at ") + strlen(line) <= sizeof(why->text))
        (void)snprintf(why->text + n, sizeof(why->text) - n, ", at %s", line);
}

/* Fails a step. Adds the step's number, function and program line to the error. */
static void fail_named(const ch_coord_context *t, ch_scheduled *s, const ch_fault *why)
{
    ch_fault named = *why;

    if (s->function != NULL)
        add_line(s->function, &named);
    named.step = (int64_t)s->step;
    (void)snprintf(named.function, sizeof(named.function), "%s",
                   s->function != NULL ? s->function->name : "a function");
    fail(t, s, &named);
}

/* Fails a step with this thread's error. */
static void fail_with_status(const ch_coord_context *t, ch_scheduled *s, ch_status rc)
{
    ch_fault why;

    ch__fault_clear(&why);
    (void)ch__fault_record(&why, rc, -1, NULL);
    fail_named(t, s, &why);
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
            fail_named(t, s, why);
    }
}

/* ---- which steps may begin ---- */

const ch_scheduled *ch__queue_oldest(const ch_coord *c)
{
    const ch_scheduled *s = c->oldest;

    while (s != NULL && (s->is_assign || s->is_own))
        s = s->next;
    return s;
}

/* Returns the number of steps in a round of CH_SYNCHRONOUS. */
static uint64_t round_size(const ch_coord *c)
{
    return (uint64_t)(c->opt.how.round > 0 ? c->opt.how.round : c->n_workers);
}

/* Handles a server's reply to the snapshot of a round. If the server replied with an error,
 * because its memory was exhausted, no step of the round may begin. After the last reply the
 * round is forgotten, and the next tick begins it again with a new snapshot. */
static void on_round_snapshot(const ch_coord_context *t, const ch_coord_call *call)
{
    ch_sync_round *r = &t->c->round;

    if (call->arg != r->snapshot)
        return;
    r->has_failed |= call->reply == NULL;
    if (--r->n_pending > 0)
        return;
    if (!r->has_failed) {
        ch__queue_send(t);
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
    uint64_t       n = round_size(c), first = ch__queue_oldest(c)->order, before = r->snapshot;

    if (r->snapshot != 0 && first < r->end)
        return s->order < r->end && r->n_pending == 0;
    r->n_pending = c->opt.n_servers;
    r->has_failed = false;
    if (ch__snapshot_create(t, on_round_snapshot, &r->snapshot) != CH_OK) {
        r->snapshot = before;
        return false;
    }
    r->end = r->base + ((first - r->base) / n + 1) * n;
    if (before != 0)
        ch__snapshot_release(t, before);
    return false;
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
        return is_in_round(t, s);
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

    return n < 2 ? 2 : n > DEPTH ? DEPTH : (int)n;
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

/* ---- sending ---- */

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

/* Sends RUN to a worker that has the function and the streams. Returns false if memory is
 * exhausted. */
static bool send(const ch_coord_context *t, ch_scheduled *s, int worker)
{
    ch_coord   *c = t->c;
    ch_attempt *a = &s->attempt[s->attempt[0].call != 0];
    ch_message *p = NULL;
    /* Longer than all attempts of a worker may take, because the alarm enforces the time limit
     * of a step. If there is no reply until then, the step is sent again. */
    int64_t limit = c->opt.silence + c->opt.step * (DEPTH + 1);

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
    if (s->state == CH_STEP_QUEUED) {
        list_remove(&c->queue, s);
        s->state = CH_STEP_RUNNING;
        list_add(&c->running, s);
    }
    return true;
}

/* Returns true if the step must not be sent before a round of cancelling has ended. */
static bool is_parked(const ch_scheduled *s)
{
    return s->is_held || (s->wants_cancel && !s->has_begun);
}

void ch__queue_park(ch_coord *c, ch_scheduled *s)
{
    if (s->state != CH_STEP_QUEUED)
        return;
    list_remove(&c->queue, s);
    s->state = CH_STEP_RUNNING;
    list_add(&c->running, s);
}

/* Queues a running step again, unless it has another attempt or is parked. */
static void requeue(const ch_coord_context *t, ch_scheduled *s)
{
    if (has_attempt(s) || is_parked(s))
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
            end_attempt(t, s, i);
    requeue(t, s);
}

typedef enum send_outcome {
    SENT,
    NOT_YET, /* the worker must receive a function or stream first, or memory is exhausted */
    ENDED    /* the step has failed */
} send_outcome;

/* Sends a step to a worker that has room, after the function and the streams that it needs.
 * Leases its elements when all of them have arrived. */
static send_outcome try_send(const ch_coord_context *t, ch_scheduled *s, int worker)
{
    ch_coord        *c = t->c;
    ch_worker_entry *m = c->worker[worker];
    ch_status        rc;

    if (s->function == NULL) {
        fail_with_status(
            t, s,
            ch__fail(CH_NOT_FOUND, "its function was freed before the step was scheduled"));
        return ENDED;
    }
    if (!ch__workers_send_once(t, m, s->function->number, s->function->message))
        return NOT_YET;
    rc = ch__worker_input_choose(s, worker);
    if (rc != CH_OK) {
        fail_with_status(t, s, rc);
        return ENDED;
    }
    if (!ch__worker_input_is_sent(t, s, worker))
        return NOT_YET;
    ch__worker_input_lease(s, worker);
    if (c->opt.how.mode == CH_SYNCHRONOUS && !s->is_own && s->snapshot == 0)
        s->snapshot = c->round.snapshot;
    return send(t, s, worker) ? SENT : NOT_YET;
}

/* ---- moving steps between workers ---- */

/* Returns true if another worker may take the step over. A step that reads a stream which is
 * not shared must stay, because another worker would have to read all elements before. */
static bool may_move(const ch_scheduled *s)
{
    for (int i = 0; i < s->n_leases; i++)
        if (s->lease[i].input->n_values == 0 && !s->lease[i].input->is_shared)
            return false;
    return s->attempt[0].call != 0 && s->attempt[1].call == 0 && !is_parked(s);
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
    ch__worker_input_lease(s, worker);
    end_attempt(t, s, 0);
    c->stats.moved++;
    if (!send(t, s, worker))
        requeue(t, s);
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

void ch__queue_send(const ch_coord_context *t)
{
    ch_coord *c = t->c;
    uint64_t  excluded = 0; /* bit set of workers that must receive something first */

    while (c->queue.first != NULL && may_begin(t, c->queue.first)) {
        ch_scheduled *s = c->queue.first;
        int           worker = find_free_worker(t, excluded);

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

/* ---- replies ---- */

/* Updates the mean time of a worker's steps. A step begins when the step before it has
 * ended. */
static void record_time(const ch_coord_context *t, ch_worker_entry *m, int64_t sent_at)
{
    int64_t took = t->now - (sent_at > m->last_end ? sent_at : m->last_end);

    m->mean = m->mean == 0 ? took : m->mean + (took - m->mean) / 8;
    m->last_end = t->now;
}

/* Ends all attempts of a step, because the stream has no such element for any of them. Returns
 * true if the step can read another stream. */
static bool has_other_element(const ch_coord_context *t, ch_scheduled *s, uint64_t stream)
{
    for (int i = 0; i < CH_ATTEMPTS; i++)
        end_attempt(t, s, i);
    return ch__worker_input_ended(t, s, stream);
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
        fail_with_status(t, s, rc);
        return;
    }
    done = (const void *)m;
    if (done->position_stream != 0 && e->message->n_tensors > 0)
        ch__worker_input_position(t, done->position_stream, done->position_number,
                                  e->message->tensor[e->message->n_tensors - 1]);
    if (done->unreachable != 0) {
        by->paused_until = t->now + PAUSE_TICKS * t->c->opt.tick;
        t->c->stats.repeated++;
        requeue(t, s);
    } else if (done->ended_stream == 0) {
        if (!s->is_silent)
            s->result = ch__message_ref(e->message);
        by->n_finished++;
        ch__queue_end(t, s, CH_STEP_DONE);
    } else if (has_other_element(t, s, done->ended_stream)) {
        requeue(t, s);
    } else {
        fail_with_status(t, s,
                         ch__fail(CH_OUT_OF_RANGE,
                                  "no elements are left in the data that it reads; begin a new "
                                  "pass with ch_per_worker_iterate"));
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
    fail_named(t, s, &why);
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
    end_attempt(t, s, m->first == &s->attempt[1]);
    fail_late(t, s, m);
    ch__queue_worker_overdue(t, m);
    ch__queue_send(t);
}

void ch__queue_on_timer(const ch_coord_context *t, uint64_t id)
{
    for (int i = 0; i < t->c->n_workers; i++)
        if (t->c->worker[i]->alarm == id) {
            t->c->worker[i]->alarm_at = INT64_MAX;
            check_time(t, t->c->worker[i]);
        }
}

void ch__queue_on_reply(const ch_coord_context *t, ch_scheduled *s, int attempt,
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
            fail_named(t, s, e->fault);
        break;
    default: /* no room or timeout: pause, or the next attempt would end like this too */
        m->paused_until = t->now + t->c->opt.retry;
        requeue(t, s);
    }
    ch__queue_send(t);
}

void ch__queue_worker_lost(const ch_coord_context *t, int worker)
{
    ch_scheduled *next;

    for (ch_scheduled *s = t->c->running.first; s != NULL; s = next) {
        next = s->after;
        for (int i = 0; i < CH_ATTEMPTS; i++)
            if (s->attempt[i].call != 0 && s->attempt[i].worker == worker) {
                end_attempt(t, s, i);
                t->c->stats.repeated++;
            }
        if (CH_KEEPS(ORPHANS))
            requeue(t, s);
    }
    ch__worker_input_worker_lost(t->c, worker);
}

void ch__queue_worker_overdue(const ch_coord_context *t, ch_worker_entry *m)
{
    ch_scheduled *next;

    m->is_overdue = true;
    m->overdue_at = t->now;
    for (ch_scheduled *s = t->c->running.first; s != NULL; s = next) {
        next = s->after;
        for (int i = 0; i < CH_ATTEMPTS; i++)
            if (s->attempt[i].call != 0 && t->c->worker[s->attempt[i].worker] == m) {
                end_attempt(t, s, i);
                t->c->stats.moved++;
                requeue(t, s);
            }
    }
}

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
            end_attempt(t, s, i);
            t->c->stats.repeated++;
            requeue(t, s);
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

void ch__queue_on_ping(const ch_coord_context *t, ch_worker_entry *m,
                       const Cohort__WorkerReply *reply, int64_t pinged_at)
{
    record_current(t, m, reply, pinged_at);
    requeue_missing(t, m, reply, pinged_at);
    check_time(t, m);
    ch__queue_send(t);
}

/* ---- backups ---- */

/* Returns true if the step has a single attempt, which takes much longer than the mean time. */
static bool is_slow(const ch_coord_context *t, const ch_scheduled *s)
{
    const ch_attempt *a = &s->attempt[0];
    int64_t           mean = 0;
    int               n = 0;

    if (a->call == 0 || s->attempt[1].call != 0 || is_parked(s))
        return false;
    for (int i = 0; i < t->c->n_workers; i++)
        if (t->c->worker[i]->mean > 0) {
            mean += t->c->worker[i]->mean;
            n++;
        }
    mean = n > 0 ? mean / n : 0;
    return t->now - a->sent_at > (slow_times * mean > slow_ns ? slow_times * mean : slow_ns);
}

void ch__queue_backups(const ch_coord_context *t)
{
    ch_coord *c = t->c;

    for (ch_scheduled *s = c->running.first; s != NULL && c->queue.n == 0; s = s->after)
        for (int i = 0; i < c->n_workers && is_slow(t, s); i++) {
            ch_worker_entry *m = c->worker[i];

            if (i == s->attempt[0].worker || m->n_runs > 0 || !has_room(t, m) ||
                !ch__workers_send_once(t, m, s->function->number, s->function->message) ||
                !ch__worker_input_is_sent(t, s, i))
                continue;
            if (send(t, s, i))
                c->stats.backups++;
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
