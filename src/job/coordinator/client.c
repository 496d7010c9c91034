/* job/coordinator/client.c -- connect, schedule, wait and join, for threads of the program.
 *
 * The strategy (src/strategy/) calls the functions of job/coordinator.h from threads of the
 * program. Those that concern steps are here, variables are in variables.c, step functions in
 * step_function.c, worker inputs in input.c. Each function locks the task with ch__coord_enter,
 * works on ch_coord, and unlocks the task with ch__coord_leave. ch__task_wait unlocks the task
 * while it waits, and delivers the task's events. So after a wait the time must be read again
 * (ch_coord_context.now), and other threads may have changed the state.
 *
 * Errors of steps: ch_coord.error is the first error of a step that is not own. The next call
 * of schedule, join or done cancels all steps, waits until they have ended, and returns the
 * error once (raise_step_error). ch_coord.broken, the loss of a server, is never cleared; every
 * later call that needs a server returns it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/mem.h"
#include "job/coordinator/private.h"
#include "tensor/tensor.h"

ch_coord_context ch__coord_enter(ch_task *coord)
{
    ch_outbox *outbox = ch__task_enter(coord);

    return (ch_coord_context){ch__task_self(coord), outbox, ch__task_now(coord)};
}

ch_status ch__coord_leave(ch_task *coord, ch_status rc)
{
    ch__task_leave(coord);
    return rc;
}

/* ---- connecting ---- */

static bool is_connected(void *arg)
{
    const ch_coord *c = arg;
    bool            has_worker = false;

    for (int i = 0; i < c->opt.n_servers; i++)
        if (c->server[i].incarnation == 0)
            return false;
    for (int i = 0; i < c->n_workers; i++)
        has_worker |= c->worker[i]->state == CH_WORKER_READY;
    return has_worker;
}

/* Adds a name to a list. Adds "..." once if there is no room for the name. */
static void add_name(char *text, size_t size, const char *name)
{
    size_t n = strlen(text), dots = sizeof(", ...");

    if (n + strlen(name) + sizeof(", ") + dots < size)
        (void)snprintf(text + n, size - n, "%s%s", n > 0 ? ", " : "", name);
    else if (strcmp(text + n - 3, "...") != 0)
        (void)snprintf(text + n, size - n, ", ...");
}

/* Adds the names of the servers that have not replied to the error, and of all workers if none
 * has replied. */
static ch_status fail_missing(const ch_coord *c, ch_status rc)
{
    char missing[256] = "";
    bool has_worker = false;

    for (int i = 0; i < c->opt.n_servers; i++)
        if (c->server[i].incarnation == 0)
            add_name(missing, sizeof(missing), c->server[i].name);
    for (int i = 0; i < c->n_workers; i++)
        has_worker |= c->worker[i]->state == CH_WORKER_READY;
    for (int i = 0; i < c->n_workers && !has_worker; i++)
        add_name(missing, sizeof(missing), c->worker[i]->name);
    return ch__fail_at(rc, "no answer from %s", missing);
}

ch_status ch__coord_connect(ch_task *coord)
{
    ch_coord_context t = ch__coord_enter(coord);
    ch_status        rc =
        ch__task_wait(coord, is_connected, t.c, 0,
                      "every parameter server and a worker of the cluster to answer");

    return ch__coord_leave(coord, rc == CH_DEADLINE_EXCEEDED ? fail_missing(t.c, rc) : rc);
}

void ch__coord_set_options(ch_task *coord, const ch_coordinator_options *how)
{
    ch_coord_context t = ch__coord_enter(coord);

    ch__coord_apply_options(t.c, how);
    ch__task_leave(coord);
}

int ch__coord_add_worker(ch_task *coord)
{
    ch_coord_context t = ch__coord_enter(coord);
    ch_worker_entry *m = NULL;
    int              n = 0; /* if the coordinator has ended, no caller uses the index */

    if (t.c != NULL)
        n = ch__workers_add(t.c, &m) == CH_OK ? t.c->n_workers - 1 : -1;
    ch__task_leave(coord);
    return n;
}

uint64_t ch__coord_new_numbers(ch_task *coord, int n)
{
    ch_coord_context t = ch__coord_enter(coord);
    uint64_t         first = t.c->n_numbers + 1;

    t.c->n_numbers += (uint64_t)n;
    ch__task_leave(coord);
    return first;
}

/* ---- steps ---- */

/* Creates a step. References its inputs. */
static ch_status new_scheduled(const ch_step_request *o, ch_scheduled **out)
{
    size_t        list = (size_t)o->n_in * sizeof(ch_tensor *);
    ch_scheduled *s =
        ch__calloc(1, sizeof(*s) + list + (size_t)o->n_worker_inputs * sizeof(ch_lease));

    if (s == NULL)
        return ch__fail_memory("a step");
    atomic_init(&s->refs, 1);
    s->number = o->number;
    s->seed = o->seed;
    s->snapshot = o->snapshot;
    s->is_own = o->is_own;
    s->owner = o->owner;
    s->n_inputs = o->n_inputs;
    s->n_shared = o->n_shared;
    for (; s->n_in < o->n_in; s->n_in++) {
        s->in[s->n_in] = ch_tensor_ref(o->in[s->n_in]);
        s->bytes += (int64_t)ch_tensor_bytes(o->in[s->n_in]);
    }
    s->lease = (ch_lease *)(void *)&s->in[o->n_in];
    for (; s->n_leases < o->n_worker_inputs; s->n_leases++) {
        s->lease[s->n_leases] = (ch_lease){.input = o->input[s->n_leases], .number = -1};
        o->input[s->n_leases]->refs++;
    }
    *out = s;
    return CH_OK;
}

static int64_t count_ended(const ch_coordinator_stats *s)
{
    return s->finished + s->failed + s->cancelled;
}

/* Returns true if the worker may receive steps. */
static bool accepts_steps(const ch_worker_entry *m)
{
    return m->state == CH_WORKER_READY && !m->is_overdue;
}

static int count_ready(const ch_coord *c)
{
    int n = 0;

    for (int i = 0; i < c->n_workers; i++)
        n += accepts_steps(c->worker[i]);
    return n;
}

/* Returns the time in ns for which a wait may last while no step ends: the usual limit, and
 * while steps run the time limit of a step in addition. */
static int64_t patience(const ch_coord *c)
{
    int64_t usual = (int64_t)ch__config()->wait_limit_ms * 1000000;

    return c->running.n > 0 ? usual + c->opt.step : usual;
}

/* If limit_ms is 0, fails when no step has ended for the time of patience(). */
ch_status ch__coord_wait_steps(ch_task *coord, const ch_coord *c, bool (*is_over)(void *arg),
                               void *arg, int64_t limit_ms, const char *condition)
{
    int64_t   ended = count_ended(&c->stats), began = ch__task_now(coord), since = began;
    ch_status rc;

    if (limit_ms == CH_NO_WAIT)
        return is_over(arg)
                   ? CH_OK
                   : ch__fail(CH_DEADLINE_EXCEEDED,
                              "would have to wait for %s, but no time is left", condition);
    do {
        rc = ch__task_wait(coord, is_over, arg, limit_ms, condition);
        if (count_ended(&c->stats) != ended)
            since = ch__task_now(coord);
        ended = count_ended(&c->stats);
    } while (rc == CH_DEADLINE_EXCEEDED && limit_ms == 0 &&
             ch__task_now(coord) - since < patience(c));
    return rc == CH_DEADLINE_EXCEEDED
               ? ch__fail(rc, "waited %lld ms for %s%s; %d of %d workers are ready",
                          (long long)(ch__task_now(coord) - began) / 1000000, condition,
                          limit_ms == 0 ? " (COHORT_WAIT_LIMIT_MS sets the limit)" : "",
                          count_ready(c), c->n_workers)
               : rc;
}

static bool is_quiet(void *arg)
{
    return ch__cancel_is_quiet(arg);
}

/* Ends the current round of CH_SYNCHRONOUS and releases its snapshot. The next round begins
 * with the next step. Does nothing if another thread has scheduled steps meanwhile, because
 * their rounds continue. */
static void end_round(const ch_coord_context *t)
{
    ch_sync_round *r = &t->c->round;

    if (ch__queue_oldest(t->c) != NULL)
        return;
    r->base = r->end = t->c->n_orders;
    if (r->snapshot != 0)
        ch__snapshot_release(t, r->snapshot);
    r->snapshot = 0;
}

/* Returns the first error of a step, or CH_OK if there is none. Before that, cancels all
 * scheduled steps and waits until they have ended and no worker runs them. Clears the error. If
 * a server is lost, returns that error. */
static ch_status raise_step_error(ch_task *coord, ch_coord_context *t, int64_t limit_ms)
{
    ch_fault  why = t->c->error;
    uint64_t  which = t->c->n_errors;
    ch_status rc = CH_OK;

    if (!ch__fault_is_set(&why))
        return ch__fault_raise(&t->c->broken);
    ch__cut_give_up(t);
    ch__cancel_all(t, CH_CANCEL_ERROR);
    rc = ch__coord_wait_steps(coord, t->c, is_quiet, t->c, limit_ms,
                              "workers to stop cancelled steps");
    t->now = ch__task_now(coord);
    if (rc != CH_OK)
        return rc;
    end_round(t);
    if (t->c->n_errors == which) /* otherwise another thread has cleared it, and this is new */
        ch__fault_clear(&t->c->error);
    return ch__fault_raise(&why);
}

/* Returns true if a step may be added to the queue, or if there is an error to return
 * instead. */
static bool may_add(void *arg)
{
    const ch_coord *c = arg;

    return (c->queue.n < c->opt.how.capacity && c->queue.bytes < c->opt.how.capacity_bytes &&
            c->n_joining == 0) ||
           ch__fault_is_set(&c->error) || ch__fault_is_set(&c->broken);
}

/* Returns the event that a thread waits for before it adds a step. */
static const char *why_not_add(const ch_coord *c)
{
    return c->n_joining > 0        ? "a join to return"
           : c->cut != CH_CUT_NONE ? "a snapshot between steps to be taken: the queue is full"
                                   : "a step to end: the queue is full";
}

ch_status ch__coord_schedule(ch_task *coord, const ch_step_request *o, ch_scheduled **out)
{
    ch_coord_context t = ch__coord_enter(coord);
    ch_scheduled    *s = NULL;
    ch_status        rc = new_scheduled(o, &s);

    if (rc == CH_OK && !o->is_own && !may_add(t.c)) {
        ch__cut_give_up(&t);
        rc = ch__coord_wait_steps(coord, t.c, may_add, t.c, 0, why_not_add(t.c));
    }
    t.now = ch__task_now(coord);
    if (rc == CH_OK && !o->is_own && ch__fault_is_set(&t.c->error)) {
        rc = raise_step_error(coord, &t, 0);
        t.c->stats.cancelled++; /* this step counts too */
    }
    if (rc == CH_OK)
        rc = ch__fault_raise(&t.c->broken);
    if (rc != CH_OK) {
        if (s != NULL)
            ch__worker_input_release(&t, s);
        ch__scheduled_unref(s);
        return ch__coord_leave(coord, rc);
    }
    s->is_silent = out == NULL;
    atomic_fetch_add(&s->refs, out != NULL);
    s->function = ch__map_find(&t.c->functions, (ch_key){o->function, 0});
    if (s->function != NULL)
        s->function->n_steps++;
    ch__queue_add(t.c, s);
    ch__scheduler_send(&t);
    if (out != NULL)
        *out = s;
    return ch__coord_leave(coord, CH_OK);
}

enum { EACH = 8 }; /* queued steps per worker that keep it busy */

static bool has_room_for_own(void *arg)
{
    const ch_coord *c = arg;

    return c->queue.n_own < (int64_t)EACH * c->n_workers || ch__fault_is_set(&c->broken);
}

/* Returns true after an error too, because the next call returns the error. Also if a prepared
 * cut is ready: it holds the queue back, and the caller must take it. */
static bool has_room(void *arg)
{
    const ch_coord *c = arg;

    return c->queue.n - c->queue.n_own < (int64_t)EACH * c->n_workers ||
           ch__fault_is_set(&c->error) || ch__fault_is_set(&c->broken) || ch__cut_is_ready(c);
}

ch_status ch__coord_wait_for_room(ch_task *coord, bool is_own)
{
    ch_coord_context t = ch__coord_enter(coord);

    return ch__coord_leave(coord, ch__coord_wait_steps(coord, t.c,
                                                       is_own ? has_room_for_own : has_room,
                                                       t.c, 0, "workers to run queued steps"));
}

/* Returns true if no step is queued, running or being cancelled, or if there is an error to
 * return. */
static bool is_done(void *arg)
{
    const ch_coord *c = arg;

    return (c->queue.n == 0 && c->running.n == 0 && ch__cancel_is_quiet(c)) ||
           ch__fault_is_set(&c->error) || ch__fault_is_set(&c->broken);
}

/* Returns the rest of a time limit in ms that began at time `began` (ns). */
static int64_t limit_left(ch_task *coord, int64_t limit_ms, int64_t began)
{
    int64_t left = limit_ms - (ch__task_now(coord) - began) / 1000000;

    return limit_ms <= 0 ? limit_ms : left > 0 ? left : CH_NO_WAIT;
}

void ch__coord_cancel(ch_task *coord, ch_scheduled *s)
{
    ch_coord_context t = ch__coord_enter(coord);

    if (t.c != NULL && s != NULL)
        ch__cancel_step(&t, s, CH_CANCEL_CALL);
    else if (t.c != NULL)
        ch__cancel_all(&t, CH_CANCEL_CALL);
    ch__task_leave(coord);
}

ch_status ch__coord_join(ch_task *coord, int64_t limit_ms)
{
    ch_coord_context t = ch__coord_enter(coord);
    int64_t          began = t.now;
    ch_status        rc;

    ch__cut_give_up(&t);
    t.c->n_joining++;
    rc = ch__coord_wait_steps(coord, t.c, is_done, t.c, limit_ms, "scheduled steps to end");
    t.c->n_joining--;
    t.now = ch__task_now(coord);
    if (rc == CH_DEADLINE_EXCEEDED)
        rc = ch__fail_at(rc, "join");
    if (rc == CH_OK)
        rc = raise_step_error(coord, &t, limit_left(coord, limit_ms, began));
    if (rc == CH_OK)
        end_round(&t);
    return ch__coord_leave(coord, rc);
}

ch_status ch__coord_done(ch_task *coord, bool *out)
{
    ch_coord_context t = ch__coord_enter(coord);
    ch_status        rc = raise_step_error(coord, &t, 0);

    if (rc == CH_OK)
        *out = is_done(t.c);
    return ch__coord_leave(coord, rc);
}

static bool is_ended(void *arg)
{
    return ((const ch_scheduled *)arg)->state >= CH_STEP_DONE;
}

bool ch__coord_has_ended(ch_task *coord, const ch_scheduled *s)
{
    bool ended;

    (void)ch__coord_enter(coord);
    ended = s->state >= CH_STEP_DONE;
    ch__task_leave(coord);
    return ended;
}

uint64_t ch__scheduled_number(const ch_scheduled *s)
{
    return s->step;
}

/* Makes an error of a step that has no fault. Adds the step's number and step function. */
static ch_status fail_step(const ch_scheduled *s, const char *function, ch_status rc,
                           const char *text)
{
    ch_fault why;

    ch__fault_clear(&why);
    (void)ch__fault_record(&why, ch__fail(rc, "%s", text), -1, NULL);
    why.step = (int64_t)s->step;
    (void)snprintf(why.function, sizeof(why.function), "%s", function);
    return ch__fault_raise(&why);
}

ch_status ch__coord_wait(ch_task *coord, ch_scheduled *s, const char *function,
                         int64_t limit_ms, const ch_message **out)
{
    ch_coord_context t = ch__coord_enter(coord);
    ch_status rc = ch__coord_wait_steps(coord, t.c, is_ended, s, limit_ms, "the step to end");

    if (rc == CH_DEADLINE_EXCEEDED)
        rc = fail_step(s, function, rc, ch_error_message());
    else if (rc == CH_OK && s->state == CH_STEP_CANCELLED)
        rc = fail_step(s, function, CH_CANCELLED,
                       s->cancel_reason == CH_CANCEL_CALL
                           ? "cancelled by the program; it has changed nothing"
                           : "cancelled because another step failed; it has changed nothing: "
                             "schedule it again");
    else if (rc == CH_OK && s->state == CH_STEP_FAILED)
        rc = s->fault != NULL
                 ? ch__fault_raise(s->fault)
                 : fail_step(s, function, s->code,
                             "it failed; its error message was lost: out of memory");
    if (rc == CH_OK)
        *out = s->result;
    return ch__coord_leave(coord, rc);
}

/* ---- statistics ---- */

void ch__coord_stats(ch_task *coord, ch_coordinator_stats *out)
{
    ch_coord_context t = ch__coord_enter(coord);

    *out = t.c->stats;
    out->queued = t.c->queue.n;
    out->running = t.c->running.n;
    out->workers = t.c->n_workers;
    out->ready = count_ready(t.c);
    ch__task_leave(coord);
}

ch_status ch__coord_worker_stats(ch_task *coord, int worker, ch_worker_stats *out)
{
    ch_coord_context       t = ch__coord_enter(coord);
    const ch_worker_entry *m;

    if (worker < 0 || worker >= t.c->n_workers)
        return ch__coord_leave(coord, ch__fail(CH_INVALID_ARGUMENT,
                                               "there is no worker %d (got %d, want 0 to %d)",
                                               worker, worker, t.c->n_workers - 1));
    m = t.c->worker[worker];
    *out = (ch_worker_stats){.is_ready = accepts_steps(m),
                             .running = m->n_runs,
                             .finished = m->n_finished,
                             .lost = m->n_losses};
    return ch__coord_leave(coord, CH_OK);
}
