/* job/coordinator/client.c -- the functions of job/coordinator.h, for threads of the program.
 *
 * The strategy (src/strategy/) calls them. Each function locks the task with ch__coord_enter,
 * works on ch_coord, and unlocks the task with ch__task_leave. ch__task_wait unlocks the task
 * while it waits, and delivers the task's events. So after a wait the time must be read again
 * (update_now), and other threads may have changed the state.
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

/* Unlocks the task and returns `rc`. */
static ch_status leave(ch_task *coord, ch_status rc)
{
    ch__task_leave(coord);
    return rc;
}

/* Reads the time again. Must be called after every wait. */
static void update_now(ch_task *coord, ch_coord_context *t)
{
    t->now = ch__task_now(coord);
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

    return leave(coord, rc == CH_DEADLINE_EXCEEDED ? fail_missing(t.c, rc) : rc);
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

/* ---- servers ---- */

/* A call that a thread of the program waits for. Owned by that thread. */
typedef struct awaited {
    ch_coord_call *call;  /* NULL: the call has ended */
    ch_message    *reply; /* NULL: there was an error, or the worker was declared lost */
    ch_status      code;  /* of the error; CH_OK: there was none */
    ch_fault      *fault; /* NULL: no error, or no memory for it */
} awaited;

typedef struct awaited_calls {
    int      n;
    awaited *of;
} awaited_calls;

/* Records the outcome of a call for the thread that waits for it. */
static void on_call_end(const ch_coord_context *t, const ch_coord_call *call)
{
    awaited *a = call->waiter;

    (void)t;
    a->call = NULL;
    if (call->reply != NULL)
        a->reply = ch__message_ref(call->reply);
    if (call->fault == NULL)
        return;
    a->code = call->fault->code;
    a->fault = ch__malloc(sizeof(*a->fault));
    if (a->fault != NULL)
        *a->fault = *call->fault;
}

static bool have_ended(void *arg)
{
    const awaited_calls *a = arg;

    for (int i = 0; i < a->n; i++)
        if (a->of[i].call != NULL)
            return false;
    return true;
}

/* Creates a call and does not send it yet. Takes the message over, on an error too. */
static ch_status prepare_call(const ch_coord_context *t, ch_callee to, ch_message *message,
                              awaited *a)
{
    ch_status rc = ch__coord_call_new(t, to, message, &a->call);

    if (rc != CH_OK)
        return rc;
    a->call->then = on_call_end;
    a->call->waiter = a;
    return CH_OK;
}

/* Returns the error of a call, or CH_OK. */
static ch_status raise_call(const awaited *a)
{
    if (a->code == CH_OK)
        return CH_OK;
    return a->fault != NULL ? ch__fault_raise(a->fault)
                            : ch__fail(a->code, "a call failed: %s", ch_status_text(a->code));
}

/* Cancels the calls that have not ended, and frees the list. If the task has ended, it has
 * already freed the calls. */
static void free_awaited(ch_task *coord, const ch_coord_context *t, awaited_calls *a)
{
    for (int i = 0; a->of != NULL && i < a->n; i++) {
        if (a->of[i].call != NULL && ch__task_self(coord) == t->c)
            ch__coord_call_cancel(t, a->of[i].call);
        ch__message_unref(a->of[i].reply);
        ch__free(a->of[i].fault);
    }
    ch__free(a->of);
}

/* Calls n servers and blocks until they have replied. The task must be locked. Sends nothing
 * unless there is memory for all calls. `reply` may be NULL. */
static ch_status call_and_wait(ch_task *coord, ch_coord_context *t, int n, const int *server,
                               ch_message *const *message, ch_message **reply)
{
    awaited_calls a = {n, ch__calloc((size_t)n, sizeof(*a.of))};
    ch_status     rc = a.of == NULL ? ch__fail_memory("a call") : CH_OK;

    for (int i = 0; i < n; i++)
        if (rc == CH_OK)
            rc = prepare_call(t, ch__to_server(server[i]), message[i], &a.of[i]);
        else
            ch__message_unref(message[i]);
    for (int i = 0; i < n && rc == CH_OK; i++)
        ch__coord_call_send(t, a.of[i].call);
    if (rc == CH_OK)
        rc = ch__task_wait(coord, have_ended, &a, 0, "parameter servers to reply");
    update_now(coord, t);
    for (int i = 0; i < n && rc == CH_OK; i++)
        rc = raise_call(&a.of[i]);
    for (int i = 0; i < n && rc == CH_OK && reply != NULL; i++)
        reply[i] = ch__message_ref(a.of[i].reply);
    free_awaited(coord, t, &a);
    return rc;
}

ch_status ch__coord_request(ch_task *coord, int n, const int *server,
                            ch_message *const *message, ch_message **reply)
{
    ch_coord_context t = ch__coord_enter(coord);

    return leave(coord, call_and_wait(coord, &t, n, server, message, reply));
}

void ch__coord_send(ch_task *coord, int server, ch_message *message)
{
    ch_coord_context t = ch__coord_enter(coord);

    if (t.c == NULL)
        ch__message_unref(message);
    else
        (void)!ch__coord_call(&t, ch__to_server(server), message, NULL, 0);
    ch__task_leave(coord);
}

/* Begins an assignment as a step of its own. So its number is below those of all steps that are
 * scheduled later, and a copy of its message that arrives late is rejected. */
static ch_status begin_assign(const ch_coord_context *t, ch_scheduled **out)
{
    ch_scheduled *s = ch__calloc(1, sizeof(*s));

    if (s == NULL)
        return ch__fail_memory("an assignment");
    atomic_init(&s->refs, 1);
    s->is_assign = true;
    ch__queue_add(t->c, s);
    *out = s;
    return CH_OK;
}

/* Makes a single message with all values for a server, because a server accepts the assignment
 * of a step once. */
static ch_status pack_assign(const ch_coord *c, uint64_t step, const ch_assignment *a,
                             int server, ch_message **out)
{
    Cohort__PsAssign   m;
    size_t             n = (size_t)a->n;
    uint64_t          *variable = ch__calloc(n, sizeof(*variable));
    ch_tensor        **value = ch__calloc(n, sizeof(ch_tensor *));
    Cohort__PsRegion  *region = ch__calloc(n, sizeof(*region));
    Cohort__PsRegion **list = ch__calloc(n, sizeof(Cohort__PsRegion *));
    ch_region         *copy = ch__calloc(n, sizeof(*copy));
    bool               has_all =
        variable != NULL && value != NULL && region != NULL && list != NULL && copy != NULL;
    ch_status rc = has_all ? CH_OK : ch__fail_memory("an assignment");

    cohort__ps_assign__init(&m);
    m.step = step;
    m.retired = ch__queue_retired(c);
    m.variables = variable;
    m.regions = list;
    for (int i = 0; i < a->n && rc == CH_OK; i++) {
        size_t k = m.n_variables;

        if (a->server[i] != server)
            continue;
        variable[k] = a->variable[i];
        value[k] = ch_tensor_ref(a->value[i]);
        m.n_variables++;
        if (a->region == NULL)
            continue;
        copy[k] = a->region[i];
        cohort__ps_region__init(&region[k]);
        region[k].n_begin = region[k].n_size = (size_t)a->rank;
        region[k].begin = copy[k].begin;
        region[k].size = copy[k].size;
        list[k] = &region[k];
        m.n_regions++;
    }
    if (rc == CH_OK)
        rc = ch__message_pack(CH_PS_ASSIGN, &m.base, (int)m.n_variables, value, out);
    ch__free(variable);
    ch__free(value);
    ch__free(region);
    ch__free(list);
    ch__free(copy);
    return rc;
}

/* Returns true if no variable before i is on the same server. */
static bool is_first_of_server(const ch_assignment *a, int i)
{
    for (int k = 0; k < i; k++)
        if (a->server[k] == a->server[i])
            return false;
    return true;
}

/* Calls each server that has any of the variables. */
static ch_status assign(ch_task *coord, ch_coord_context *t, uint64_t step,
                        const ch_assignment *a)
{
    ch_message **message = ch__calloc((size_t)a->n, sizeof(ch_message *));
    int         *server = ch__calloc((size_t)a->n, sizeof(int)), n = 0;
    ch_status rc = message == NULL || server == NULL ? ch__fail_memory("an assignment") : CH_OK;

    for (int i = 0; i < a->n && rc == CH_OK; i++)
        if (is_first_of_server(a, i)) {
            server[n] = a->server[i];
            rc = pack_assign(t->c, step, a, server[n], &message[n]);
            n += rc == CH_OK;
        }
    if (rc == CH_OK)
        rc = call_and_wait(coord, t, n, server, message, NULL);
    else
        while (n > 0)
            ch__message_unref(message[--n]);
    ch__free(message);
    ch__free(server);
    return rc;
}

ch_status ch__coord_assign(ch_task *coord, const ch_assignment *a)
{
    ch_coord_context t = ch__coord_enter(coord);
    ch_scheduled    *s = NULL;
    ch_status        rc = begin_assign(&t, &s);

    if (rc == CH_OK)
        rc = assign(coord, &t, s->step, a);
    if (s != NULL)
        ch__queue_end(&t, s, CH_STEP_DONE);
    return leave(coord, rc);
}

uint64_t ch__coord_new_numbers(ch_task *coord, int n)
{
    ch_coord_context t = ch__coord_enter(coord);
    uint64_t         first = t.c->n_numbers + 1;

    t.c->n_numbers += (uint64_t)n;
    ch__task_leave(coord);
    return first;
}

/* ---- functions ---- */

/* Creates the record of a function. Takes the message over, on an error too. */
static ch_status record_function(ch_coord *c, uint64_t number, const ch_function_spec *spec,
                                 ch_message *p)
{
    ch_coord_function *f = ch__calloc(1, sizeof(*f));
    ch_status          rc = f == NULL ? ch__fail_memory("a function")
                                      : ch__map_set(&c->functions, (ch_key){number, 0}, f);

    if (rc != CH_OK) {
        ch__message_unref(p);
        ch__free(f);
        return rc;
    }
    f->number = number;
    (void)snprintf(f->name, sizeof(f->name), "%s", spec->name);
    f->n_ops = spec->n_ops;
    f->op = spec->op;
    f->message = p;
    f->first_update = spec->updates.first;
    f->n_updates = spec->updates.n;
    return CH_OK;
}

/* Makes the FUNCTION message: the plan and the initial values of per-worker variables. Takes
 * the plan over, on an error too. */
static ch_status pack_function(const ch_coord *c, uint64_t number, ch_tensor *plan, int n,
                               const ch_per_worker_spec *per_worker, ch_message **out)
{
    Cohort__WorkerFunction   m;
    uint64_t                *server = ch__calloc((size_t)c->opt.n_servers + 1, sizeof(*server));
    Cohort__WorkerVariable  *entry = ch__calloc((size_t)n + 1, sizeof(*entry));
    Cohort__WorkerVariable **list = ch__calloc((size_t)n + 1, sizeof(*list));
    ch_tensor              **tensor = ch__calloc((size_t)n + 1, sizeof(*tensor));
    ch_status                rc = CH_OK;

    cohort__worker_function__init(&m);
    m.function = number;
    m.servers = server;
    m.per_worker = list;
    if (server == NULL || entry == NULL || list == NULL || tensor == NULL) {
        rc = ch__fail_memory("a function");
        ch_tensor_unref(plan);
    } else {
        for (int i = 0; i < c->opt.n_servers; i++)
            server[m.n_servers++] = c->server[i].incarnation;
        tensor[0] = plan;
        for (int i = 0; i < n; i++) {
            cohort__worker_variable__init(&entry[i]);
            entry[i].variable = per_worker[i].number;
            entry[i].read = per_worker[i].is_read;
            entry[i].written = per_worker[i].is_written;
            list[m.n_per_worker++] = &entry[i];
            tensor[1 + i] = ch_tensor_ref(per_worker[i].initial);
        }
        rc = ch__message_pack(CH_WORKER_FUNCTION, &m.base, 1 + n, tensor, out);
    }
    ch__free(server);
    ch__free(entry);
    ch__free(list);
    ch__free(tensor);
    return rc;
}

ch_status ch__coord_add_function(ch_task *coord, const ch_function_spec *f, ch_tensor *plan,
                                 uint64_t *number)
{
    ch_coord_context t = ch__coord_enter(coord);
    ch_message      *p = NULL;
    ch_status        rc =
        pack_function(t.c, t.c->n_numbers + 1, plan, f->n_per_worker, f->per_worker, &p);

    if (rc == CH_OK)
        rc = record_function(t.c, t.c->n_numbers + 1, f, p);
    if (rc == CH_OK)
        *number = ++t.c->n_numbers;
    else
        ch__free(f->op);
    return leave(coord, rc);
}

void ch__coord_forget_function(ch_task *coord, uint64_t function)
{
    ch_coord_context   t = ch__coord_enter(coord);
    ch_coord_function *f =
        t.c != NULL ? ch__map_find(&t.c->functions, (ch_key){function, 0}) : NULL;

    if (f != NULL) {
        f->is_forgotten = true;
        ch__coord_function_free_unused(&t, f);
    }
    ch__task_leave(coord);
}

/* ---- per-worker variables ---- */

static ch_status pack_per_worker(uint64_t variable, uint64_t registration, ch_message **out)
{
    Cohort__WorkerRead m;

    cohort__worker_read__init(&m);
    m.variable = variable;
    m.registration = registration;
    return ch__message_pack(CH_WORKER_READ, &m.base, 0, NULL, out);
}

/* Sends READ to the workers that are ready. */
static ch_status call_workers(const ch_coord_context *t, uint64_t variable, awaited_calls *a)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < a->n && rc == CH_OK; i++) {
        ch_message *p = NULL;

        if (t->c->worker[i]->state != CH_WORKER_READY)
            continue;
        rc = pack_per_worker(variable, t->c->worker[i]->registration, &p);
        if (rc == CH_OK)
            rc = prepare_call(t, ch__to_worker(i), p, &a->of[i]);
        if (rc == CH_OK)
            ch__coord_call_send(t, a->of[i].call);
    }
    return rc;
}

/* The value is NULL if the worker is not ready or was declared lost meanwhile. */
ch_status ch__coord_read_per_worker(ch_task *coord, uint64_t variable, int *n, ch_tensor ***out)
{
    ch_coord_context t = ch__coord_enter(coord);
    size_t           most = (size_t)t.c->n_workers + 1;
    awaited_calls    a = {t.c->n_workers, ch__calloc(most, sizeof(*a.of))};
    ch_tensor      **value = ch__calloc(most, sizeof(ch_tensor *));
    ch_status        rc = a.of == NULL || value == NULL ? ch__fail_memory("values") : CH_OK;

    if (rc == CH_OK)
        rc = call_workers(&t, variable, &a);
    if (rc == CH_OK)
        rc = ch__task_wait(coord, have_ended, &a, 0,
                           "workers to send their per-worker variables");
    update_now(coord, &t);
    for (int i = 0; i < a.n && rc == CH_OK; i++)
        rc = raise_call(&a.of[i]);
    for (int i = 0; i < a.n && rc == CH_OK; i++)
        if (a.of[i].reply != NULL && a.of[i].reply->n_tensors > 0)
            value[i] = ch_tensor_ref(a.of[i].reply->tensor[0]);
    free_awaited(coord, &t, &a);
    if (rc == CH_OK) {
        *n = a.n;
        *out = value;
    } else {
        ch__free(value);
    }
    return leave(coord, rc);
}

void ch__coord_forget_per_worker(ch_task *coord, uint64_t variable)
{
    ch_coord_context t = ch__coord_enter(coord);

    if (t.c != NULL)
        ch__workers_drop(&t, variable, CH_SENT_PER_WORKER);
    ch__task_leave(coord);
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

/* Blocks until is_over(arg) is true. If limit_ms is 0, fails only when no step has ended for
 * the time of patience(), so that the number of scheduled steps does not matter. `condition`
 * describes the awaited event for the error message. */
static ch_status wait_for_steps(ch_task *coord, const ch_coord *c, bool (*is_over)(void *arg),
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
    ch__cancel_all(t, CH_CANCEL_ERROR);
    rc = wait_for_steps(coord, t->c, is_quiet, t->c, limit_ms,
                        "workers to stop cancelled steps");
    update_now(coord, t);
    if (rc != CH_OK)
        return rc;
    end_round(t);
    if (t->c->n_errors ==
        which) /* if not, another thread has cleared it, and this is a new error */
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

ch_status ch__coord_schedule(ch_task *coord, const ch_step_request *o, ch_scheduled **out)
{
    ch_coord_context t = ch__coord_enter(coord);
    ch_scheduled    *s = NULL;
    ch_status        rc = new_scheduled(o, &s);

    if (rc == CH_OK && !o->is_own && !may_add(t.c))
        rc = wait_for_steps(coord, t.c, may_add, t.c, 0,
                            t.c->n_joining > 0 ? "a join to return"
                                               : "a step to end: the queue is full");
    update_now(coord, &t);
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
        return leave(coord, rc);
    }
    s->is_silent = out == NULL;
    atomic_fetch_add(&s->refs, out != NULL);
    s->function = ch__map_find(&t.c->functions, (ch_key){o->function, 0});
    if (s->function != NULL)
        s->function->n_steps++;
    ch__queue_add(t.c, s);
    ch__queue_send(&t);
    if (out != NULL)
        *out = s;
    return leave(coord, CH_OK);
}

enum { EACH = 8 }; /* queued steps per worker that keep it busy */

static bool has_room_for_own(void *arg)
{
    const ch_coord *c = arg;

    return c->queue.n_own < (int64_t)EACH * c->n_workers || ch__fault_is_set(&c->broken);
}

/* Returns true after an error too, because the next call returns the error. */
static bool has_room(void *arg)
{
    const ch_coord *c = arg;

    return c->queue.n - c->queue.n_own < (int64_t)EACH * c->n_workers ||
           ch__fault_is_set(&c->error) || ch__fault_is_set(&c->broken);
}

ch_status ch__coord_wait_for_room(ch_task *coord, bool is_own)
{
    ch_coord_context t = ch__coord_enter(coord);

    return leave(coord, wait_for_steps(coord, t.c, is_own ? has_room_for_own : has_room, t.c, 0,
                                       "workers to run queued steps"));
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

    t.c->n_joining++;
    rc = wait_for_steps(coord, t.c, is_done, t.c, limit_ms, "scheduled steps to end");
    t.c->n_joining--;
    update_now(coord, &t);
    if (rc == CH_DEADLINE_EXCEEDED)
        rc = ch__fail_at(rc, "join");
    if (rc == CH_OK)
        rc = raise_step_error(coord, &t, limit_left(coord, limit_ms, began));
    if (rc == CH_OK)
        end_round(&t);
    return leave(coord, rc);
}

ch_status ch__coord_done(ch_task *coord, bool *out)
{
    ch_coord_context t = ch__coord_enter(coord);
    ch_status        rc = raise_step_error(coord, &t, 0);

    if (rc == CH_OK)
        *out = is_done(t.c);
    return leave(coord, rc);
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

/* Makes an error of a step that has no fault. Adds the step's number and function. */
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
    ch_status        rc = wait_for_steps(coord, t.c, is_ended, s, limit_ms, "the step to end");

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
    return leave(coord, rc);
}

/* ---- snapshots and statistics ---- */

static bool is_zero(void *arg)
{
    const int *left = arg;

    return *left == 0;
}

/* Handles a server's reply to a snapshot, or an error in its place. */
static void on_snapshot(const ch_coord_context *t, const ch_coord_call *call)
{
    ch_coord *c = t->c;

    c->n_snapshotting--;
    for (int i = 0; i < c->n_in_use; i++)
        if (c->in_use[i].number == call->arg && call->reply == NULL)
            c->in_use[i].has_failed = true;
}

static bool snapshot_has_failed(const ch_coord *c, uint64_t snapshot)
{
    for (int i = 0; i < c->n_in_use; i++)
        if (c->in_use[i].number == snapshot)
            return c->in_use[i].has_failed;
    return false;
}

ch_status ch__coord_snapshot(ch_task *coord, uint64_t *snapshot)
{
    ch_coord_context t = ch__coord_enter(coord);
    ch_status        rc;

    t.c->n_snapshotting += t.c->opt.n_servers;
    rc = ch__snapshot_create(&t, on_snapshot, snapshot);
    if (rc == CH_OK)
        rc = ch__task_wait(coord, is_zero, &t.c->n_snapshotting, 0,
                           "parameter servers to reply");
    update_now(coord, &t);
    if (rc == CH_OK)
        rc = ch__fault_raise(&t.c->broken);
    if (rc == CH_OK && snapshot_has_failed(t.c, *snapshot)) {
        ch__snapshot_release(&t, *snapshot);
        rc = ch__fail(CH_RESOURCE_EXHAUSTED,
                      "snapshot of the variables: a parameter server is out of memory; release "
                      "other snapshots, or use more servers");
    }
    return leave(coord, rc);
}

void ch__coord_release_snapshot(ch_task *coord, uint64_t snapshot)
{
    ch_coord_context t = ch__coord_enter(coord);

    if (t.c != NULL)
        ch__snapshot_release(&t, snapshot);
    ch__task_leave(coord);
}

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
        return leave(coord, ch__fail(CH_INVALID_ARGUMENT,
                                     "there is no worker %d (got %d, want 0 to %d)", worker,
                                     worker, t.c->n_workers - 1));
    m = t.c->worker[worker];
    *out = (ch_worker_stats){.is_ready = accepts_steps(m),
                             .running = m->n_runs,
                             .finished = m->n_finished,
                             .lost = m->n_losses};
    return leave(coord, CH_OK);
}
