/* job/coordinator/queue.c -- the steps of a coordinator: in which order, to whom, how they end.
 *
 * A step that has not ended is in the list of those (oldest ... newest, by number); one that waits is in `queue` too, one that runs in
 * `running`. A step that runs has one attempt or two; each is a call to a worker, found by the call's id.
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

enum { DEPTH = 32 };      /* steps that a worker has at most */
enum { ABSENT = 2 };      /* pings in a row that do not know a step: it was lost */
enum { REST_TICKS = 20 }; /* for which a worker gets no steps that did not reach a server */
static const int64_t ahead_ns = 1000000; /* as long as a worker has steps for */
static const int64_t slow_ns =
    10000000; /* below this no step is slow, for a backup or for those behind it */
static const int slow_times = 3; /* as slow as this, for a backup */

/* ---- lists ---- */

/* Where a step stands in a list: its caller waits for it, or not; then by number. */
static bool comes_before(const ch_scheduled *a, const ch_scheduled *b)
{
    return a->is_own != b->is_own ? a->is_own : a->step < b->step;
}

/* Finds the step behind which another one goes; NULL: it is the first. Steps whose caller waits are few, and go ahead of
 * all others, however many of these there are. A step that was put back comes before those behind it. */
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

static void forget(ch_coord *c, ch_scheduled *s)
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

/* The worker is at another attempt, or at none. */
static void begin_first(const ch_coord_context *t, ch_worker_entry *m)
{
    m->began = t->now;
    m->has_said = false;
}

static void unlink_attempt(ch_worker_entry *m, ch_attempt *a)
{
    *(a->ahead != NULL ? &a->ahead->behind : &m->first) = a->behind;
    *(a->behind != NULL ? &a->behind->ahead : &m->last) = a->ahead;
}

/* Puts it behind another one; NULL: before all. */
static void link_attempt(ch_worker_entry *m, ch_attempt *a, ch_attempt *ahead)
{
    a->ahead = ahead;
    a->behind = ahead != NULL ? ahead->behind : m->first;
    *(a->ahead != NULL ? &a->ahead->behind : &m->first) = a;
    *(a->behind != NULL ? &a->behind->ahead : &m->last) = a;
}

static void enter_worker(const ch_coord_context *t, ch_attempt *a)
{
    ch_worker_entry *m = t->c->worker[a->worker];

    link_attempt(m, a, m->last);
    if (m->n_runs++ == 0)
        begin_first(t, m);
}

static void leave_worker(const ch_coord_context *t, ch_attempt *a)
{
    ch_worker_entry *m = t->c->worker[a->worker];

    if (m->first == a)
        begin_first(t, m);
    unlink_attempt(m, a);
    m->n_runs--;
    a->call = 0;
}

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

void ch__queue_look_forgotten(const ch_coord_context *t, ch_coord_function *f)
{
    if (!f->is_forgotten || f->n_steps > 0)
        return;
    (void)ch__map_remove(&t->c->functions, (ch_key){f->number, 0});
    ch__workers_forget(t, f->number, CH_KNOWN_FUNCTION);
    ch__servers_forget(t, f->first_update, f->n_updates);
    ch__coord_function_free(f);
}

static void release_function(const ch_coord_context *t, ch_scheduled *s)
{
    ch_coord_function *f = s->function;

    s->function = NULL;
    if (f == NULL)
        return;
    f->n_steps--;
    ch__queue_look_forgotten(t, f);
}

void ch__queue_end(const ch_coord_context *t, ch_scheduled *s, ch_scheduled_state how)
{
    ch_coord *c = t->c;

    for (int i = 0; i < CH_ATTEMPTS; i++)
        end_attempt(t, s, i);
    if (!s->is_assign)
        list_remove(s->state == CH_STEP_QUEUED ? &c->queue : &c->running, s);
    forget(c, s);
    s->state = how;
    if (!s->is_assign)
        count_end(&c->stats, how);
    c->cancel.n_wanted -= s->wants_cancel;
    ch__worker_input_release(t, s);
    release_function(t, s);
    ch__scheduled_unref(s);
    c->n_untold++;
}

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

/* Returns the text behind "replica 1: ", with which it begins if a worker has several devices. */
static const char *behind_replica(const char *text)
{
    static const char word[] = "replica ";
    const char       *c = text + strlen(word);

    if (strncmp(text, word, strlen(word)) != 0)
        return text;
    c += strspn(c, "0123456789");
    return strncmp(c, ": ", 2) == 0 ? c + 2 : text;
}

/* Finds the call of the op that a fault begins with. */
static const void *caller_of(const ch_coord_function *f, const char *text)
{
    text = behind_replica(text);
    for (int i = 0; i < f->n_ops; i++) {
        size_t n = strlen(f->op[i].name);

        if (strncmp(text, f->op[i].name, n) == 0 && (text[n] == '(' || text[n] == ':'))
            return f->op[i].caller;
    }
    return NULL;
}

/* Workers know no lines. If all calls of the op are in one line, it is that. */
static void add_line(const ch_coord_function *f, ch_fault *why)
{
    const void *caller = caller_of(f, why->text);
    size_t      n = strlen(why->text);
    char        line[256] = "";

    ch__where(caller, line, sizeof(line));
    if (line[0] != '\0' && n + sizeof(", at ") + strlen(line) <= sizeof(why->text))
        (void)snprintf(why->text + n, sizeof(why->text) - n, ", at %s", line);
}

/* What its worker said of it, or was said of its worker: with which step it was. */
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

/* With this thread's error. */
static void fail_with(const ch_coord_context *t, ch_scheduled *s, ch_status rc)
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
        if (!s->is_assign) /* its calls end it */
            fail(t, s, why);
    }
    ch__fault_clear(&t->c->error); /* from now on every call says it */
    ch__cancel_give_up(t->c);
}

void ch__queue_unfit(const ch_coord_context *t, uint64_t number, const ch_fault *why)
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

/* ---- which may begin ---- */

const ch_scheduled *ch__queue_oldest(const ch_coord *c)
{
    const ch_scheduled *s = c->oldest;

    while (s != NULL && (s->is_assign || s->is_own))
        s = s->next;
    return s;
}

static uint64_t round_size(const ch_coord *c)
{
    return (uint64_t)(c->opt.how.round > 0 ? c->opt.how.round : c->n_workers);
}

static void round_set(const ch_coord_context *t, const ch_coord_call *call)
{
    if (call->arg != t->c->round.snapshot)
        return;
    t->c->round.n_asked--;
    if (call->reply != NULL)
        ch__queue_move(t);
}

/* The round of the oldest step begins, when it is not the one that there is. */
static bool is_in_round(const ch_coord_context *t, const ch_scheduled *s)
{
    ch_coord      *c = t->c;
    ch_sync_round *r = &c->round;
    uint64_t       n = round_size(c), first = ch__queue_oldest(c)->order, before = r->snapshot;

    if (r->snapshot != 0 && first < r->end)
        return s->order < r->end && r->n_asked == 0;
    r->n_asked = c->opt.n_servers;
    if (ch__snapshot_create(t, round_set, &r->snapshot) != CH_OK) {
        r->snapshot = before;
        return false;
    }
    r->end = r->base + ((first - r->base) / n + 1) * n;
    if (before != 0)
        ch__snapshot_release(t, before);
    return false;
}

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

/* ---- to whom ---- */

/* So many that the worker does not wait for the next one, and no more: what it has, others cannot do. */
static int depth_of(const ch_worker_entry *m)
{
    int64_t n = m->mean > 0 ? ahead_ns / m->mean : 2;

    return n < 2 ? 2 : n > DEPTH ? DEPTH : (int)n;
}

static bool has_room(const ch_coord_context *t, const ch_worker_entry *m)
{
    enum { OTHERS = 8 }; /* calls of other kinds */

    return m->rests <= t->now && !m->is_overdue && m->state == CH_WORKER_READY &&
           m->n_told == 0 && m->n_runs < depth_of(m) && ch__link_calls(m->link) > OTHERS;
}

static int free_worker(const ch_coord_context *t, uint64_t not_these)
{
    const ch_coord *c = t->c;
    int             best = -1;

    for (int i = 0; i < c->n_workers; i++)
        if (has_room(t, c->worker[i]) && (i >= 64 || (not_these >> i & 1) == 0) &&
            (best < 0 || c->worker[i]->n_runs < c->worker[best]->n_runs))
            best = i;
    return best;
}

/* ---- sending ---- */

/* Returns how many replicas have their own of the inputs that came with the order. */
static int ordered_copies(const ch_scheduled *s)
{
    int n = s->n_in - s->n_shared;

    return n > s->n_inputs ? n / s->n_inputs : 1;
}

/* How many tensors an input is: one that replicas share, or, where any input is so, one for each of them. */
static int count_copies(const ch_scheduled *s)
{
    int copies = ordered_copies(s);

    for (int i = 0; i < s->n_leases; i++)
        if (s->lease[i].input->n_values > 0 && s->lease[i].input->copies > copies)
            copies = s->lease[i].input->copies;
    return copies;
}

/* That are sent along. */
static int count_inputs(const ch_scheduled *s)
{
    int n = s->n_inputs + s->n_shared;

    for (int i = 0; i < s->n_leases; i++)
        n += s->lease[i].input->n_values > 0 ? s->lease[i].input->width : 0;
    return n;
}

/* Those of a replica. */
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

/* Where elements stand among the inputs of a step. */
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

static ch_status speak_run(const ch_coord *c, const ch_scheduled *s, int worker,
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

/* Sets the worker's alarm, unless it fires before the step that the worker is at has taken too long: then it is set again. So
 * steps that end in time cost no timer. */
static void set_alarm(const ch_coord_context *t, ch_worker_entry *m)
{
    int64_t at = m->began + t->c->opt.step;

    if (m->alarm_at <= at)
        return;
    m->alarm_at = at;
    ch__outbox_timer(t->outbox, m->alarm, at);
}

/* An attempt of a step, which the worker can run. False: no memory now. */
static bool send(const ch_coord_context *t, ch_scheduled *s, int worker)
{
    ch_coord   *c = t->c;
    ch_attempt *a = &s->attempt[s->attempt[0].call != 0];
    ch_message *p = NULL;
    /* Longer than all that a worker has may take: the alarm ends a step that takes too long. A call that is not answered until
     * then is made again. */
    int64_t limit = c->opt.silence + c->opt.step * (DEPTH + 1);

    if (speak_run(c, s, worker, &p) != CH_OK)
        return false;
    *a = (ch_attempt){.call = ++c->n_ids, .worker = worker, .since = t->now};
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

/* Whether it is not sent before a round of cancelling is over. */
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

/* It waits again, unless another has it. */
static void put_back(const ch_coord_context *t, ch_scheduled *s)
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
    put_back(t, s);
}

typedef enum given { GIVEN, NOT_YET, ENDED } given; /* by this worker; it has failed */

static given give(const ch_coord_context *t, ch_scheduled *s, int worker)
{
    ch_coord        *c = t->c;
    ch_worker_entry *m = c->worker[worker];
    ch_status        rc;

    if (s->function == NULL) {
        fail_with(t, s, ch__fail(CH_NOT_FOUND, "its function is not there any more"));
        return ENDED;
    }
    if (!ch__workers_send_once(t, m, s->function->number, s->function->message))
        return NOT_YET;
    rc = ch__worker_input_choose(s, worker);
    if (rc != CH_OK) {
        fail_with(t, s, rc);
        return ENDED;
    }
    if (!ch__worker_input_is_sent(t, s, worker))
        return NOT_YET;
    ch__worker_input_lease(s, worker);
    if (c->opt.how.mode == CH_SYNCHRONOUS && !s->is_own && s->snapshot == 0)
        s->snapshot = c->round.snapshot;
    return send(t, s, worker) ? GIVEN : NOT_YET;
}

/* ---- to another one ---- */

/* Not one of a stream that its worker alone reads: others would have to read all that is before it. */
static bool may_move(const ch_scheduled *s)
{
    for (int i = 0; i < s->n_leases; i++)
        if (s->lease[i].input->n_values == 0 && !s->lease[i].input->is_shared)
            return false;
    return s->attempt[0].call != 0 && s->attempt[1].call == 0 && !is_parked(s);
}

/* Who has most steps behind one that takes long; -1: nobody has. */
static int stuck_worker(const ch_coord_context *t)
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

/* The next one that it will begin, of those that may move; NULL: none. */
static ch_scheduled *next_of(const ch_coord *c, int worker)
{
    for (const ch_attempt *a = c->worker[worker]->first->behind; a != NULL; a = a->behind) {
        ch_scheduled *s = ch__map_find(&c->calls, (ch_key){a->call, 0});

        if (may_move(s) && a == &s->attempt[0])
            return s;
    }
    return NULL;
}

/* Its call is cancelled, and the worker forgets it. Should it have begun, or not hear that, two run it, as with a backup: all that a step
 * does is done once. */
static void take_over(const ch_coord_context *t, ch_scheduled *s, int worker)
{
    ch_coord *c = t->c;

    if (!ch__workers_send_once(t, c->worker[worker], s->function->number,
                               s->function->message) ||
        !ch__worker_input_is_sent(t, s, worker))
        return; /* it is, when it has been told */
    ch__worker_input_lease(s, worker);
    end_attempt(t, s, 0);
    c->stats.moved++;
    if (!send(t, s, worker))
        put_back(t, s);
}

/* Nothing waits that could begin: who has nothing to do takes what waits behind a step that takes long, one at a time. */
static void level(const ch_coord_context *t)
{
    for (int i = 0; i < t->c->n_workers; i++) {
        ch_scheduled *s = NULL;
        int           from;

        if (t->c->worker[i]->n_runs > 0 || !has_room(t, t->c->worker[i]))
            continue;
        from = stuck_worker(t);
        if (from >= 0)
            s = next_of(t->c, from);
        if (s == NULL)
            return;
        take_over(t, s, i);
    }
}

void ch__queue_move(const ch_coord_context *t)
{
    ch_coord *c = t->c;
    uint64_t  not_these = 0; /* workers that have to be told something first */

    while (c->queue.first != NULL && may_begin(t, c->queue.first)) {
        ch_scheduled *s = c->queue.first;
        int           worker = free_worker(t, not_these);

        if (worker < 0)
            return;
        if (give(t, s, worker) == NOT_YET) {
            if (worker >= 64)
                return;
            not_these |= (uint64_t)1 << worker;
        }
    }
    level(t);
}

/* ---- answers ---- */

static void take_time(const ch_coord_context *t, ch_worker_entry *m, int64_t since)
{
    int64_t took = t->now - (since > m->last_end ? since : m->last_end);

    m->mean = m->mean == 0 ? took : m->mean + (took - m->mean) / 8;
    m->last_end = t->now;
}

/* There is no such element, for other attempts neither. True: it can have another. */
static bool is_without(const ch_coord_context *t, ch_scheduled *s, uint64_t stream)
{
    for (int i = 0; i < CH_ATTEMPTS; i++)
        end_attempt(t, s, i);
    return ch__worker_input_ended(t, s, stream);
}

static void ran(const ch_coord_context *t, ch_scheduled *s, ch_worker_entry *by,
                const ch_net_event *e)
{
    ProtobufCMessage          *m = NULL;
    const Cohort__WorkerReply *done;
    ch_status rc = ch__message_parse(e->message, &cohort__worker_reply__descriptor, &m);

    if (rc != CH_OK) {
        fail_with(t, s, rc);
        return;
    }
    done = (const void *)m;
    if (done->position_stream != 0 && e->message->n_tensors > 0)
        ch__worker_input_position(t, done->position_stream, done->position_number,
                                  e->message->tensor[e->message->n_tensors - 1]);
    if (done->unreachable != 0) {
        by->rests = t->now + REST_TICKS * t->c->opt.tick;
        t->c->stats.repeated++;
        put_back(t, s);
    } else if (done->ended_stream == 0) {
        if (!s->is_silent)
            s->result = ch__message_ref(e->message);
        by->n_finished++;
        ch__queue_end(t, s, CH_STEP_DONE);
    } else if (is_without(t, s, done->ended_stream)) {
        put_back(t, s);
    } else {
        fail_with(t, s,
                  ch__fail(CH_OUT_OF_RANGE,
                           "the data that it reads has ended; ch_per_worker_iterate begins a "
                           "new pass"));
    }
    ch__protobuf_free(m);
}

static void late(const ch_coord_context *t, ch_scheduled *s, const ch_worker_entry *m)
{
    ch_fault why;

    ch__fault_clear(&why);
    (void)ch__fault_record(
        &why,
        ch__fail(CH_DEADLINE_EXCEEDED,
                 "it has not ended in %g s (step_seconds of the coordinator)",
                 (double)t->c->opt.step * 1e-9),
        -1, NULL);
    (void)snprintf(why.task, sizeof(why.task), "%s", m->name);
    fail_named(t, s, &why);
}

/* Ends the step that the worker is at if it has taken too long. Steps may have reached the worker in another order than they were
 * sent: if it has several, and has not said yet which it is at, its next answer to a ping does. */
static void check_time(const ch_coord_context *t, ch_worker_entry *m)
{
    ch_scheduled *s;

    if (m->first == NULL || m->state != CH_WORKER_READY)
        return;
    if (t->now - m->began < t->c->opt.step) {
        set_alarm(t, m);
        return;
    }
    if (m->n_runs > 1 && !m->has_said)
        return;
    s = ch__map_find(&t->c->calls, (ch_key){m->first->call, 0});
    end_attempt(t, s, m->first == &s->attempt[1]);
    late(t, s, m);
    ch__queue_overdue(t, m);
    ch__queue_move(t);
}

void ch__queue_alarm(const ch_coord_context *t, uint64_t id)
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
    int64_t          since = a->since;

    /* Of one that is being given up only success counts: servers may have refused what it did since, and its steps are run again. */
    if (m->state == CH_WORKER_FENCING && e->ending != CH_ENDED_OK)
        return;
    if (e->ending == CH_ENDED_LOST || e->ending == CH_ENDED_REPLACED) {
        ch__workers_declare_lost(t, m); /* this attempt is one of its */
        return;
    }
    leave_worker(t, a);
    if (e->ending == CH_ENDED_OK || e->ending == CH_ENDED_ERROR)
        m->heartbeat.n_silent = 0;
    switch (e->ending) {
    case CH_ENDED_OK:
        take_time(t, m, since);
        ran(t, s, m, e);
        break;
    case CH_ENDED_ERROR:
        if (!s->is_held || t->c->cancel.phase == CH_DROPPING) /* else the hold may be why */
            fail_named(t, s, e->fault);
        break;
    default: /* if it were sent at once, there would be no room again */
        m->rests = t->now + t->c->opt.retry;
        put_back(t, s);
    }
    ch__queue_move(t);
}

void ch__queue_orphans(const ch_coord_context *t, int worker)
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
            put_back(t, s);
    }
    ch__worker_input_worker_lost(t->c, worker);
}

void ch__queue_overdue(const ch_coord_context *t, ch_worker_entry *m)
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
                put_back(t, s);
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

/* Steps that were lost, on the way there or back, are given again. */
static void compare(const ch_coord_context *t, const ch_worker_entry *m,
                    const Cohort__WorkerReply *has, int64_t asked)
{
    ch_scheduled *next;

    for (ch_scheduled *s = t->c->running.first; s != NULL && CH_KEEPS(COMPARE); s = next) {
        next = s->after;
        for (int i = 0; i < CH_ATTEMPTS && s->state == CH_STEP_RUNNING; i++) {
            ch_attempt *a = &s->attempt[i];

            if (a->call == 0 || t->c->worker[a->worker] != m || a->since >= asked)
                continue;
            a->n_absent = is_listed(has->n_steps, has->steps, s->step) ? 0 : a->n_absent + 1;
            if (a->n_absent < ABSENT)
                continue;
            end_attempt(t, s, i);
            t->c->stats.repeated++;
            put_back(t, s);
        }
    }
}

/* The worker has said which step it is at, unless it has ended one since. */
static void take_position(const ch_coord_context *t, ch_worker_entry *m,
                          const Cohort__WorkerReply *has, int64_t asked)
{
    if (asked < m->began)
        return;
    if (has->at == 0 && has->busy) /* it computes a step that was dropped, and begins none */
        begin_first(t, m);
    for (ch_attempt *a = m->first; a != NULL && !m->has_said; a = a->behind) {
        const ch_scheduled *s = ch__map_find(&t->c->calls, (ch_key){a->call, 0});

        if (s->step != has->at)
            continue;
        unlink_attempt(m, a);
        link_attempt(m, a, NULL);
        m->has_said = true;
    }
}

void ch__queue_pinged(const ch_coord_context *t, ch_worker_entry *m,
                      const Cohort__WorkerReply *has, int64_t asked)
{
    take_position(t, m, has, asked);
    compare(t, m, has, asked);
    check_time(t, m);
    ch__queue_move(t);
}

/* ---- backups ---- */

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
    return t->now - a->since > (slow_times * mean > slow_ns ? slow_times * mean : slow_ns);
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

/* ---- what servers are told of steps that have ended ---- */

/* Steps of the program are sent in their order: from the first on that was not, no server can have heard of a later one. A
 * later one that runs all the same, because its caller waits for it, is remembered by servers until those before it have ended.
 * Up to the last step that was cancelled, all steps are listed: servers must refuse the cancelled ones. */
static bool is_listed_live(const ch_coord *c, const ch_scheduled *s)
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
    for (const ch_scheduled *s = c->oldest; s != NULL && is_listed_live(c, s); s = s->next)
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
