/* job/coordinator/client.c -- what threads of the program do with the coordinator: in its turn, and waiting there.
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

static ch_status leave(ch_task *coord, ch_status rc)
{
    ch__task_leave(coord);
    return rc;
}

/* After a wait it is later. */
static void look_at_clock(ch_task *coord, ch_coord_context *t)
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

/* Adds a name to a list of them; "..." for those that find no room. */
static void add_name(char *text, size_t size, const char *name)
{
    size_t n = strlen(text), dots = sizeof(", ...");

    if (n + strlen(name) + sizeof(", ") + dots < size)
        (void)snprintf(text + n, size - n, "%s%s", n > 0 ? ", " : "", name);
    else if (strcmp(text + n - 3, "...") != 0)
        (void)snprintf(text + n, size - n, ", ...");
}

/* Who is waited for in vain: workers, if there is none. */
static ch_status say_missing(const ch_coord *c, ch_status rc)
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

    return leave(coord, rc == CH_DEADLINE_EXCEEDED ? say_missing(t.c, rc) : rc);
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
    int              n = 0; /* where the strategy has ended, nobody asks it */

    if (t.c != NULL)
        n = ch__workers_add(t.c, &m) == CH_OK ? t.c->n_workers - 1 : -1;
    ch__task_leave(coord);
    return n;
}

/* ---- servers ---- */

/* A call that a thread of the program waits for. Owned by that thread. */
typedef struct awaited {
    ch_coord_call *call;  /* NULL: the call has ended */
    ch_message    *reply; /* NULL: there is none, because of: */
    ch_status      code;  /* CH_OK: the worker was declared lost */
    ch_fault      *fault; /* NULL: no error, or no memory for it */
} awaited;

typedef struct awaited_calls {
    int      n;
    awaited *of;
} awaited_calls;

static void note_end(const ch_coord_context *t, const ch_coord_call *call)
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

/* Prepares a call, which is not sent yet. Takes the message over, on an error too. */
static ch_status await(const ch_coord_context *t, ch_callee to, ch_message *message, awaited *a)
{
    ch_status rc = ch__coord_call_new(t, to, message, &a->call);

    if (rc != CH_OK)
        return rc;
    a->call->then = note_end;
    a->call->waiter = a;
    return CH_OK;
}

static ch_status raise_call(const awaited *a)
{
    if (a->code == CH_OK)
        return CH_OK;
    return a->fault != NULL ? ch__fault_raise(a->fault)
                            : ch__fail(a->code, "a call failed: %s", ch_status_text(a->code));
}

/* Cancels calls that have not ended. If the task has ended, it has freed them. */
static void drop_awaited(ch_task *coord, const ch_coord_context *t, awaited_calls *a)
{
    for (int i = 0; a->of != NULL && i < a->n; i++) {
        if (a->of[i].call != NULL && ch__task_self(coord) == t->c)
            ch__coord_call_cancel(t, a->of[i].call);
        ch__message_unref(a->of[i].reply);
        ch__free(a->of[i].fault);
    }
    ch__free(a->of);
}

/* Calls n servers and waits for their replies. In the turn. Sends nothing unless there is
 * memory for all calls. */
static ch_status ask(ch_task *coord, ch_coord_context *t, int n, const int *server,
                     ch_message *const *message, ch_message **answer)
{
    awaited_calls a = {n, ch__calloc((size_t)n, sizeof(*a.of))};
    ch_status     rc = a.of == NULL ? ch__fail_memory("a call") : CH_OK;

    for (int i = 0; i < n; i++)
        if (rc == CH_OK)
            rc = await(t, ch__to_server(server[i]), message[i], &a.of[i]);
        else
            ch__message_unref(message[i]);
    for (int i = 0; i < n && rc == CH_OK; i++)
        ch__coord_call_send(t, a.of[i].call);
    if (rc == CH_OK)
        rc = ch__task_wait(coord, have_ended, &a, 0, "parameter servers");
    look_at_clock(coord, t);
    for (int i = 0; i < n && rc == CH_OK; i++)
        rc = raise_call(&a.of[i]);
    for (int i = 0; i < n && rc == CH_OK && answer != NULL; i++)
        answer[i] = ch__message_ref(a.of[i].reply);
    drop_awaited(coord, t, &a);
    return rc;
}

ch_status ch__coord_request(ch_task *coord, int n, const int *server,
                            ch_message *const *message, ch_message **answer)
{
    ch_coord_context t = ch__coord_enter(coord);

    return leave(coord, ask(coord, &t, n, server, message, answer));
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

/* A step of its own, so that it is older than what is scheduled behind it and no twin of it comes later. */
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

/* Makes the message with all values for one server: a server accepts the assignments of a step once. */
static ch_status speak_assign(const ch_coord *c, uint64_t step, const ch_assignment *a,
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

static bool is_first_there(const ch_assignment *a, int i)
{
    for (int k = 0; k < i; k++)
        if (a->server[k] == a->server[i])
            return false;
    return true;
}

/* A call for each server that has any of them. */
static ch_status assign(ch_task *coord, ch_coord_context *t, uint64_t step,
                        const ch_assignment *a)
{
    ch_message **message = ch__calloc((size_t)a->n, sizeof(ch_message *));
    int         *server = ch__calloc((size_t)a->n, sizeof(int)), n = 0;
    ch_status rc = message == NULL || server == NULL ? ch__fail_memory("an assignment") : CH_OK;

    for (int i = 0; i < a->n && rc == CH_OK; i++)
        if (is_first_there(a, i)) {
            server[n] = a->server[i];
            rc = speak_assign(t->c, step, a, server[n], &message[n]);
            n += rc == CH_OK;
        }
    if (rc == CH_OK)
        rc = ask(coord, t, n, server, message, NULL);
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

/* Takes the parcel over. */
static ch_status keep_function(ch_coord *c, uint64_t number, const ch_function_spec *spec,
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

/* Takes the route over. */
static ch_status speak_function(const ch_coord *c, uint64_t number, ch_tensor *plan, int n,
                                const ch_per_worker_spec *per_worker, ch_message **out)
{
    Cohort__WorkerFunction   m;
    uint64_t                *server = ch__calloc((size_t)c->opt.n_servers + 1, sizeof(*server));
    Cohort__WorkerVariable  *one = ch__calloc((size_t)n + 1, sizeof(*one));
    Cohort__WorkerVariable **list = ch__calloc((size_t)n + 1, sizeof(*list));
    ch_tensor              **tensor = ch__calloc((size_t)n + 1, sizeof(*tensor));
    ch_status                rc = CH_OK;

    cohort__worker_function__init(&m);
    m.function = number;
    m.servers = server;
    m.per_worker = list;
    if (server == NULL || one == NULL || list == NULL || tensor == NULL) {
        rc = ch__fail_memory("a function");
        ch_tensor_unref(plan);
    } else {
        for (int i = 0; i < c->opt.n_servers; i++)
            server[m.n_servers++] = c->server[i].incarnation;
        tensor[0] = plan;
        for (int i = 0; i < n; i++) {
            cohort__worker_variable__init(&one[i]);
            one[i].variable = per_worker[i].number;
            one[i].read = per_worker[i].is_read;
            one[i].written = per_worker[i].is_written;
            list[m.n_per_worker++] = &one[i];
            tensor[1 + i] = ch_tensor_ref(per_worker[i].initial);
        }
        rc = ch__message_pack(CH_WORKER_FUNCTION, &m.base, 1 + n, tensor, out);
    }
    ch__free(server);
    ch__free(one);
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
        speak_function(t.c, t.c->n_numbers + 1, plan, f->n_per_worker, f->per_worker, &p);

    if (rc == CH_OK)
        rc = keep_function(t.c, t.c->n_numbers + 1, f, p);
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
        ch__queue_look_forgotten(&t, f);
    }
    ch__task_leave(coord);
}

/* ---- what workers keep ---- */

static ch_status pack_per_worker(uint64_t variable, uint64_t registration, ch_message **out)
{
    Cohort__WorkerRead m;

    cohort__worker_read__init(&m);
    m.variable = variable;
    m.registration = registration;
    return ch__message_pack(CH_WORKER_READ, &m.base, 0, NULL, out);
}

/* Calls the workers that are ready. */
static ch_status ask_workers(const ch_coord_context *t, uint64_t variable, awaited_calls *a)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < a->n && rc == CH_OK; i++) {
        ch_message *p = NULL;

        if (t->c->worker[i]->state != CH_WORKER_READY)
            continue;
        rc = pack_per_worker(variable, t->c->worker[i]->registration, &p);
        if (rc == CH_OK)
            rc = await(t, ch__to_worker(i), p, &a->of[i]);
        if (rc == CH_OK)
            ch__coord_call_send(t, a->of[i].call);
    }
    return rc;
}

/* A worker that is not ready, or was declared lost meanwhile, has no value. */
ch_status ch__coord_read_per_worker(ch_task *coord, uint64_t variable, int *n, ch_tensor ***out)
{
    ch_coord_context t = ch__coord_enter(coord);
    size_t           most = (size_t)t.c->n_workers + 1;
    awaited_calls    a = {t.c->n_workers, ch__calloc(most, sizeof(*a.of))};
    ch_tensor      **given = ch__calloc(most, sizeof(ch_tensor *));
    ch_status        rc = a.of == NULL || given == NULL ? ch__fail_memory("values") : CH_OK;

    if (rc == CH_OK)
        rc = ask_workers(&t, variable, &a);
    if (rc == CH_OK)
        rc = ch__task_wait(coord, have_ended, &a, 0, "workers to say what they have");
    look_at_clock(coord, &t);
    for (int i = 0; i < a.n && rc == CH_OK; i++)
        rc = raise_call(&a.of[i]);
    for (int i = 0; i < a.n && rc == CH_OK; i++)
        if (a.of[i].reply != NULL && a.of[i].reply->n_tensors > 0)
            given[i] = ch_tensor_ref(a.of[i].reply->tensor[0]);
    drop_awaited(coord, &t, &a);
    if (rc == CH_OK) {
        *n = a.n;
        *out = given;
    } else {
        ch__free(given);
    }
    return leave(coord, rc);
}

void ch__coord_forget_per_worker(ch_task *coord, uint64_t variable)
{
    ch_coord_context t = ch__coord_enter(coord);

    if (t.c != NULL)
        ch__workers_forget(&t, variable, CH_KNOWN_PER_WORKER);
    ch__task_leave(coord);
}

/* ---- steps ---- */

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

static bool takes_steps(const ch_worker_entry *m)
{
    return m->state == CH_WORKER_READY && !m->is_overdue;
}

static int count_ready(const ch_coord *c)
{
    int n = 0;

    for (int i = 0; i < c->n_workers; i++)
        n += takes_steps(c->worker[i]);
    return n;
}

/* How long, in ns, a wait may last in which no step ends: as any other, and while steps run as long as a step may take besides. */
static int64_t patience(const ch_coord *c)
{
    int64_t usual = (int64_t)ch__config()->wait_limit_ms * 1000000;

    return c->running.n > 0 ? usual + c->opt.step : usual;
}

/* Without a limit of its own, a wait is too long when no step has ended for that time: however many steps there are. */
static ch_status wait_for_steps(ch_task *coord, const ch_coord *c, bool (*is_over)(void *arg),
                                void *arg, int64_t limit_ms, const char *whom)
{
    int64_t   ended = count_ended(&c->stats), began = ch__task_now(coord), since = began;
    ch_status rc;

    if (limit_ms == CH_AT_ONCE)
        return is_over(arg)
                   ? CH_OK
                   : ch__fail(CH_DEADLINE_EXCEEDED,
                              "would have to wait for %s, and was given no time", whom);
    do {
        rc = ch__task_wait(coord, is_over, arg, limit_ms, whom);
        if (count_ended(&c->stats) != ended)
            since = ch__task_now(coord);
        ended = count_ended(&c->stats);
    } while (rc == CH_DEADLINE_EXCEEDED && limit_ms == 0 &&
             ch__task_now(coord) - since < patience(c));
    return rc == CH_DEADLINE_EXCEEDED
               ? ch__fail(rc, "waited %lld ms for %s%s; %d of %d workers are there",
                          (long long)(ch__task_now(coord) - began) / 1000000, whom,
                          limit_ms == 0 ? " (COHORT_WAIT_LIMIT_MS sets the limit)" : "",
                          count_ready(c), c->n_workers)
               : rc;
}

static bool is_quiet(void *arg)
{
    return ch__cancel_is_quiet(arg);
}

/* The next round is counted from here, and no version need be kept for the last one. If another thread has scheduled steps
 * since, the rounds of these go on. */
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

/* An error of steps, if there is one: once all that was scheduled has been cancelled, and is not run by anybody. */
static ch_status raise(ch_task *coord, ch_coord_context *t, int64_t limit_ms)
{
    ch_fault  why = t->c->error;
    uint64_t  which = t->c->n_errors;
    ch_status rc = CH_OK;

    if (!ch__fault_is_set(&why))
        return ch__fault_raise(&t->c->broken);
    ch__cancel_all(t, CH_CANCEL_ERROR);
    rc = wait_for_steps(coord, t->c, is_quiet, t->c, limit_ms,
                        "workers to stop what was cancelled");
    look_at_clock(coord, t);
    if (rc != CH_OK)
        return rc;
    end_round(t);
    if (t->c->n_errors == which) /* else another thread was told too, and there is a new one */
        ch__fault_clear(&t->c->error);
    return ch__fault_raise(&why);
}

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
    look_at_clock(coord, &t);
    if (rc == CH_OK && !o->is_own && ch__fault_is_set(&t.c->error)) {
        rc = raise(coord, &t, 0);
        t.c->stats.cancelled++; /* this step, with the others */
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
    ch__queue_move(&t);
    if (out != NULL)
        *out = s;
    return leave(coord, CH_OK);
}

enum { EACH = 8 }; /* steps that a worker may have before it */

static bool has_room_for_own(void *arg)
{
    const ch_coord *c = arg;

    return c->queue.n_own < (int64_t)EACH * c->n_workers || ch__fault_is_set(&c->broken);
}

/* What is wrong is for the next call to say. */
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
                                       "workers to run steps"));
}

static bool is_done(void *arg)
{
    const ch_coord *c = arg;

    return (c->queue.n == 0 && c->running.n == 0 && ch__cancel_is_quiet(c)) ||
           ch__fault_is_set(&c->error) || ch__fault_is_set(&c->broken);
}

/* The rest of a limit that began then. */
static int64_t limit_left(ch_task *coord, int64_t limit_ms, int64_t began)
{
    int64_t left = limit_ms - (ch__task_now(coord) - began) / 1000000;

    return limit_ms <= 0 ? limit_ms : left > 0 ? left : CH_AT_ONCE;
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
    rc = wait_for_steps(coord, t.c, is_done, t.c, limit_ms, "steps that were scheduled");
    t.c->n_joining--;
    look_at_clock(coord, &t);
    if (rc == CH_DEADLINE_EXCEEDED)
        rc = ch__fail_at(rc, "join");
    if (rc == CH_OK)
        rc = raise(coord, &t, limit_left(coord, limit_ms, began));
    if (rc == CH_OK)
        end_round(&t);
    return leave(coord, rc);
}

ch_status ch__coord_done(ch_task *coord, bool *out)
{
    ch_coord_context t = ch__coord_enter(coord);
    ch_status        rc = raise(coord, &t, 0);

    if (rc == CH_OK)
        *out = is_done(t.c);
    return leave(coord, rc);
}

static bool has_ended(void *arg)
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

/* Raises an error of a step that there is no fault of. */
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
    ch_status        rc = wait_for_steps(coord, t.c, has_ended, s, limit_ms, "the step to end");

    if (rc == CH_DEADLINE_EXCEEDED)
        rc = fail_step(s, function, rc, ch_error_message());
    else if (rc == CH_OK && s->state == CH_STEP_CANCELLED)
        rc = fail_step(s, function, CH_CANCELLED,
                       s->cancel_reason == CH_CANCEL_CALL
                           ? "cancelled by the program; it has changed nothing"
                           : "cancelled because another step failed; it has changed nothing: "
                             "schedule it again");
    else if (rc == CH_OK && s->state == CH_STEP_FAILED)
        rc = s->fault != NULL ? ch__fault_raise(s->fault)
                              : fail_step(s, function, s->code, "it failed");
    if (rc == CH_OK)
        *out = s->result;
    return leave(coord, rc);
}

/* ---- versions ---- */

static bool is_pinned(void *arg)
{
    const int *left = arg;

    return *left == 0;
}

static void one_pinned(const ch_coord_context *t, const ch_coord_call *call)
{
    t->c->n_snapshotting--;
    (void)call;
}

ch_status ch__coord_snapshot(ch_task *coord, uint64_t *snapshot)
{
    ch_coord_context t = ch__coord_enter(coord);
    ch_status        rc;

    t.c->n_snapshotting += t.c->opt.n_servers;
    rc = ch__snapshot_create(&t, one_pinned, snapshot);
    if (rc == CH_OK)
        rc = ch__task_wait(coord, is_pinned, &t.c->n_snapshotting, 0, "parameter servers");
    look_at_clock(coord, &t);
    if (rc == CH_OK)
        rc = ch__fault_raise(&t.c->broken);
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
    *out = (ch_worker_stats){.is_ready = takes_steps(m),
                             .running = m->n_runs,
                             .finished = m->n_finished,
                             .lost = m->n_losses};
    return leave(coord, CH_OK);
}
