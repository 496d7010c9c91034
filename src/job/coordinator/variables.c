/* job/coordinator/variables.c -- variables outside of steps, for threads of the program.
 *
 * Functions of job/coordinator.h that call servers or workers and wait for their replies: any
 * message to servers (ch__coord_request), assignments, and the copies of per-worker variables.
 * Snapshots are in snapshot.c. Callers are job/remote_var.c and the strategy (src/strategy/).
 *
 * An `awaited` is a call for which a thread waits. The thread owns it, so the thread must
 * cancel the call before it returns (free_awaited). After a wait the time must be read again
 * (ch_coord_context.now), and other threads may have changed the state (client.c).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "job/coordinator/private.h"
#include "tensor/tensor.h"

/* ---- calls for which a thread waits ---- */

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
    t->now = ch__task_now(coord);
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

    return ch__coord_leave(coord, call_and_wait(coord, &t, n, server, message, reply));
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

/* ---- assignments ---- */

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

/* An assignment is part of a cut as a whole, or not at all. */
ch_status ch__coord_assign(ch_task *coord, const ch_assignment *a)
{
    ch_coord_context t = ch__coord_enter(coord);
    ch_scheduled    *s = NULL;
    ch_status        rc = ch__cut_wait(coord, t.c);

    t.now = ch__task_now(coord);
    if (rc == CH_OK)
        rc = begin_assign(&t, &s);
    if (rc == CH_OK) {
        t.c->n_assigning++;
        rc = assign(coord, &t, s->step, a);
        t.c->n_assigning--;
    }
    if (s != NULL)
        ch__queue_end(&t, s, CH_STEP_DONE);
    return ch__coord_leave(coord, rc);
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
    t.now = ch__task_now(coord);
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
    return ch__coord_leave(coord, rc);
}

void ch__coord_forget_per_worker(ch_task *coord, uint64_t variable)
{
    ch_coord_context t = ch__coord_enter(coord);

    if (t.c != NULL)
        ch__workers_drop(&t, variable, CH_SENT_PER_WORKER);
    ch__task_leave(coord);
}
