/* job/worker/worker.c -- the task of a worker: step functions, streams and the list of runs.
 *
 * A worker has a handler for each method. It keeps step functions, streams and per-worker
 * variables by number until the coordinator drops them (CH_WORKER_DROP). It keeps runs (run.h)
 * in a list in the order of their calls. The first run is executed, the others wait. The main
 * struct is `worker`; worker.h describes the protocol with the coordinator.
 *
 * Invariants:
 *   1. Only the first run has begun: only it has calls to servers, a work item and borrowed
 *      objects.
 *   2. A step function or a stream is not freed while the first run uses it. The
 *      CH_WORKER_DROP call waits, and is answered when all its objects are freed.
 *   3. No run in the list has a registration older than `registration`, except a first run that
 *      is over while its work item still runs.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/worker.h"

#include <stdio.h>

#include "base/mem.h"
#include "base/protobuf.h"
#include "collective/group.h"
#include "graph/function.h"
#include "job/dispatch.h"
#include "job/worker/per_worker.h"
#include "job/worker/run.h"
#include "tensor/tensor.h"

/* A CH_WORKER_DROP call that has not been answered. */
typedef struct drop {
    ch_call_id  call;
    ch_message *message;
} drop;

typedef struct worker {
    ch_run_env env;
    uint64_t   registration; /* the newest that the worker has received; 0: none */
    /* The list of runs. The first run is executed; NULL: the list is empty. */
    ch_worker_run *first, *last;
    int            n_drops, cap_drops;
    drop          *drop; /* calls that wait until the first run has ended */
} worker;

static bool is_bytes(const ch_tensor *t)
{
    return t->dtype == CH_U8 && t->contiguous;
}

/* ---- step functions ---- */

static int shards_of(const ch_placed_plan *s, const ch_remote_part *r)
{
    return s->variable[r->variable[0]].n_shards;
}

static void drop_function(ch_worker_function *f)
{
    const ch_step_plan *r = f->placed.plan;

    for (int i = 0; f->local_part != NULL && i < r->n_local_parts; i++)
        ch_function_unref(f->local_part[i]);
    for (int i = 0; f->is_defined != NULL && i < r->n_remote_parts; i++)
        ch__free(f->is_defined[i]);
    ch__free(f->local_part);
    ch__free(f->is_defined);
    ch__free(f->incarnation);
    ch__free(f->per_worker);
    ch__step_plan_free(f->placed.plan);
    ch__free(f);
}

/* Checks that the message lists every server on which the plan has a shard. */
static ch_status check_servers(const ch_worker_function *f)
{
    for (int i = 0; i < f->placed.n_variables; i++)
        for (int k = 0; k < f->placed.variable[i].n_shards; k++)
            if (f->placed.variable[i].shard[k].server >= f->n_servers)
                return ch__fail(CH_INVALID_ARGUMENT,
                                "variable %s: server %d does not exist (the message lists %d)",
                                f->placed.variable[i].name,
                                f->placed.variable[i].shard[k].server, f->n_servers);
    return CH_OK;
}

static ch_status set_servers(ch_worker_function *f, const Cohort__WorkerFunction *m)
{
    f->incarnation = ch__calloc(m->n_servers + 1, sizeof(*f->incarnation));
    if (f->incarnation == NULL)
        return ch__fail_memory("a function");
    f->n_servers = (int)m->n_servers;
    for (size_t i = 0; i < m->n_servers; i++)
        f->incarnation[i] = m->servers[i];
    return check_servers(f);
}

/* Allocates the tables of a step function and prepares its local parts. */
static ch_status prepare_function(ch_worker_function *f, const Cohort__WorkerFunction *m)
{
    const ch_step_plan *r = f->placed.plan;
    ch_status           rc = set_servers(f, m);

    if (rc != CH_OK)
        return rc;
    f->local_part = ch__calloc((size_t)r->n_local_parts + 1, sizeof(*f->local_part));
    f->is_defined = ch__calloc((size_t)r->n_remote_parts + 1, sizeof(*f->is_defined));
    if (f->local_part == NULL || f->is_defined == NULL)
        return ch__fail_memory("a function");
    for (int i = 0; i < r->n_remote_parts && rc == CH_OK; i++) {
        f->is_defined[i] =
            ch__calloc((size_t)shards_of(&f->placed, &r->remote[i]), sizeof(bool));
        if (f->is_defined[i] == NULL)
            rc = ch__fail_memory("a function");
    }
    for (int i = 0; i < r->n_local_parts && rc == CH_OK; i++)
        rc = ch_function_of_graph(r->local_part[i].graph->name, r->local_part[i].graph,
                                  &f->local_part[i]);
    return rc;
}

/* Decodes the list of per-worker variables that a step function uses. */
static ch_status set_per_worker(ch_worker_function *f, const Cohort__WorkerFunction *m)
{
    f->per_worker = ch__calloc(m->n_per_worker + 1, sizeof(*f->per_worker));
    if (f->per_worker == NULL)
        return ch__fail_memory("a function");
    f->n_per_worker = (int)m->n_per_worker;
    for (int i = 0; i < f->n_per_worker; i++) {
        f->per_worker[i] = (ch_per_worker_use){
            m->per_worker[i]->variable, m->per_worker[i]->read, m->per_worker[i]->written};
        f->n_read += f->per_worker[i].is_read;
        f->n_written += f->per_worker[i].is_written;
    }
    if (f->n_read > f->placed.plan->n_inputs || f->n_written > f->placed.plan->n_outputs)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "a function of %d inputs and %d results cannot read %d per-worker "
                        "variables and write %d",
                        f->placed.plan->n_inputs, f->placed.plan->n_outputs, f->n_read,
                        f->n_written);
    return CH_OK;
}

/* Creates the per-worker variables of a step function that do not exist yet. */
static ch_status begin_per_worker(worker *w, const ch_worker_function *f,
                                  ch_tensor *const *initial)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < f->n_per_worker && rc == CH_OK; i++) {
        ch_key             key = ch__key(f->per_worker[i].number);
        ch_per_worker_var *k = NULL;

        if (ch__map_find(&w->env.per_worker, key) != NULL)
            continue; /* created with another step function */
        rc = ch__per_worker_new(w->env.opt.device[0], initial[i], &k);
        if (rc == CH_OK)
            rc = ch__map_set(&w->env.per_worker, key, k);
        if (rc != CH_OK)
            ch__per_worker_free(k);
    }
    return rc;
}

static ch_status reply_done(const ch_received *r)
{
    Cohort__WorkerReply m;

    cohort__worker_reply__init(&m);
    return ch__reply(r, &m.base, 0, NULL);
}

static ch_status on_function(const ch_received *r, const void *request)
{
    worker                       *w = r->self;
    const Cohort__WorkerFunction *m = request;
    const ch_message             *p = r->message;
    ch_worker_function           *f;
    ch_status                     rc;

    if (m->function == 0 || p->n_tensors < 1 || (size_t)p->n_tensors != 1 + m->n_per_worker ||
        !is_bytes(p->tensor[0]))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "a function needs a number, an encoded step plan and an initial value "
                        "for each per-worker variable");
    if (ch__map_find(&w->env.functions, ch__key(m->function)) != NULL)
        return reply_done(r); /* a repeated call */
    f = ch__calloc(1, sizeof(*f));
    if (f == NULL)
        return ch__fail_memory("a function");
    rc = ch__step_plan_decode(p->tensor[0]->data, ch_tensor_bytes(p->tensor[0]), &f->placed);
    if (rc == CH_OK)
        rc = prepare_function(f, m);
    if (rc == CH_OK)
        rc = set_per_worker(f, m);
    if (rc == CH_OK)
        rc = begin_per_worker(w, f, p->tensor + 1);
    if (rc == CH_OK)
        rc = ch__map_set(&w->env.functions, ch__key(m->function), f);
    if (rc == CH_OK)
        return reply_done(r);
    if (f->placed.plan != NULL)
        drop_function(f);
    else
        ch__free(f);
    return rc;
}

/* ---- streams ---- */

static ch_status on_stream(const ch_received *r, const void *request)
{
    worker                     *w = r->self;
    const Cohort__WorkerStream *m = request;
    const ch_message           *p = r->message;
    char                        name[48];
    ch_stream                  *s = NULL;
    ch_stream_options           o = {.name = name,
                                     .reader = m->reader,
                                     .pass = m->pass,
                                     .first = m->first,
                                     .n_replicas = w->env.opt.n_devices,
                                     .device = w->env.opt.device};
    ch_status                   rc;

    if (m->stream == 0 || p->n_tensors < 1 || p->n_tensors > 2 || !is_bytes(p->tensor[0]) ||
        !is_bytes(p->tensor[p->n_tensors - 1]))
        return ch__fail(CH_INVALID_ARGUMENT, "a stream needs a number and an encoded dataset");
    if (ch__map_find(&w->env.streams, ch__key(m->stream)) != NULL)
        return reply_done(r); /* a repeated call */
    (void)snprintf(name, sizeof(name), "stream %llu", (unsigned long long)m->stream);
    o.dataset = p->tensor[0]->data;
    o.n_dataset = ch_tensor_bytes(p->tensor[0]);
    if (p->n_tensors == 2) {
        o.position = p->tensor[1]->data;
        o.n_position = ch_tensor_bytes(p->tensor[1]);
    }
    rc = ch__stream_new(&o, &s);
    if (rc == CH_OK)
        rc = ch__map_set(&w->env.streams, ch__key(m->stream), s);
    if (rc == CH_OK)
        return reply_done(r);
    ch__stream_free(s);
    return rc;
}

/* ---- dropping ---- */

/* Frees the step functions, streams and per-worker variables of a request. */
static void drop_objects(worker *w, const Cohort__WorkerDrop *m)
{
    for (size_t i = 0; i < m->n_functions; i++) {
        ch_worker_function *f = ch__map_remove(&w->env.functions, ch__key(m->functions[i]));

        if (f != NULL)
            drop_function(f);
    }
    for (size_t i = 0; i < m->n_streams; i++)
        ch__stream_free(ch__map_remove(&w->env.streams, ch__key(m->streams[i])));
    for (size_t i = 0; i < m->n_per_worker; i++)
        ch__per_worker_free(ch__map_remove(&w->env.per_worker, ch__key(m->per_worker[i])));
}

static bool is_listed(size_t n, const uint64_t *list, uint64_t wanted)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] == wanted)
            return true;
    return false;
}

/* Returns true if the first run is over but has not ended, is a step of the request, or uses a
 * step function or a stream of the request. */
static bool is_in_use(const worker *w, const Cohort__WorkerDrop *m)
{
    const ch_worker_run *r = w->first;
    bool used = r != NULL && (r->is_over || is_listed(m->n_steps, m->steps, r->step));

    if (r != NULL && r->f != NULL)
        used |= is_listed(m->n_functions, m->functions, r->function_number);
    for (int i = 0; r != NULL && i < r->n_elements; i++)
        used |= is_listed(m->n_streams, m->streams, r->element[i].stream);
    return used;
}

/* Executes the drops that need not wait any more, and replies to their calls. */
static void do_drops(worker *w, ch_outbox *outbox)
{
    int n = 0;

    for (int i = 0; i < w->n_drops; i++) {
        drop                      d = w->drop[i];
        ProtobufCMessage         *request = NULL;
        const Cohort__WorkerDrop *m = NULL;
        ch_status                 rc;

        if (ch__message_parse(d.message, &cohort__worker_drop__descriptor, &request) == CH_OK)
            m = (const void *)request;
        if (m == NULL || is_in_use(w, m)) { /* NULL: out of memory; tried again later */
            w->drop[n++] = d;
        } else {
            drop_objects(w, m);
            rc = reply_done(
                &(ch_received){.message = d.message, .call = d.call, .outbox = outbox});
            if (rc != CH_OK)
                ch__reply_error(outbox, d.call, rc, "drop");
            ch__message_unref(d.message);
        }
        ch__protobuf_free(request);
    }
    w->n_drops = n;
}

/* ---- runs ---- */

/* Drops the runs for which `when` returns true. Waiting runs are freed. The first run is ended
 * and stays in the list until its work item has ended. Does not reply to their calls. */
static void drop_runs(worker *w, ch_outbox                                              *outbox,
                      bool (*when)(const ch_worker_run *r, const void *arg), const void *arg)
{
    ch_worker_run *before = w->first;

    while (before != NULL && before->next != NULL) {
        ch_worker_run *r = before->next;

        if (!when(r, arg)) {
            before = r;
            continue;
        }
        before->next = r->next;
        w->last = w->last == r ? before : w->last;
        ch__worker_run_free(r);
    }
    if (w->first != NULL && !w->first->is_over && when(w->first, arg))
        ch__worker_run_end(w->first, outbox);
}

/* For drop_runs: the run has an older registration. */
static bool is_older(const ch_worker_run *r, const void *registration)
{
    return r->registration < *(const uint64_t *)registration;
}

/* Sets all per-worker variables back to their initial values. */
static void reset_per_worker(worker *w)
{
    for (int i = 0; i < w->env.per_worker.cap; i++)
        if (w->env.per_worker.entry[i].value != NULL)
            ch__per_worker_reset(w->env.per_worker.entry[i].value);
    ch__map_drop(&w->env.committed);
    w->env.committed = (ch_map){0};
}

/* Checks the registration of a call. If it is newer, the coordinator has declared this worker
 * lost since: drops the runs of older registrations and resets the per-worker variables.
 * Returns ABORTED if it is older. */
static ch_status set_registration(worker *w, uint64_t registration, ch_outbox *outbox)
{
    if (registration < w->registration)
        return ch__fail(CH_ABORTED,
                        "the call is for registration %llu of this worker, which was "
                        "declared lost",
                        (unsigned long long)registration);
    if (registration > w->registration) {
        drop_runs(w, outbox, is_older, &registration);
        reset_per_worker(w);
    }
    w->registration = registration;
    return CH_OK;
}

/* Appends a run to the list. The run replies when it has ended. */
static ch_status on_run(const ch_received *r, const void *request)
{
    worker                  *w = r->self;
    const Cohort__WorkerRun *m = request;
    ch_worker_run           *run = NULL;
    ch_status                rc = set_registration(w, m->registration, r->outbox);

    if (rc == CH_OK)
        rc = ch__worker_run_new(&w->env, r->call, r->message, m, &run);
    if (rc != CH_OK)
        return rc;
    *(w->last != NULL ? &w->last->next : &w->first) = run;
    w->last = run;
    if (w->first == run)
        ch__worker_run_advance(run, r->outbox, r->now);
    return CH_OK;
}

/* For drop_runs: the request lists the step, and the step has sent no update. A step that has
 * sent an update is run to its end, because it cannot be cancelled any more. */
static bool is_dropped(const ch_worker_run *r, const void *arg)
{
    const Cohort__WorkerDrop *m = arg;

    return !r->has_updated && is_listed(m->n_steps, m->steps, r->step);
}

/* Drops steps at once. Replies when the first run uses nothing of the request any more. */
static ch_status on_drop(const ch_received *r, const void *request)
{
    worker *w = r->self;

    if (!ch__grow((void **)&w->drop, &w->cap_drops, w->n_drops + 1, sizeof(*w->drop)))
        return ch__fail_memory("a drop");
    w->drop[w->n_drops++] = (drop){r->call, ch__message_ref(r->message)};
    drop_runs(w, r->outbox, is_dropped, request);
    do_drops(w, r->outbox);
    return CH_OK;
}

/* For drop_runs: the run belongs to this call. */
static bool is_of_call(const ch_worker_run *r, const void *call)
{
    return r->call == *(const ch_call_id *)call;
}

/* ---- events ---- */

/* Replies with the steps that the worker has, and the step that it executes. */
static ch_status on_ping(const ch_received *r, const void *request)
{
    const worker       *w = r->self;
    Cohort__WorkerReply m;
    size_t              n = 0;
    ch_status           rc;

    (void)request;
    for (const ch_worker_run *run = w->first; run != NULL; run = run->next)
        n++;
    cohort__worker_reply__init(&m);
    m.busy = w->first != NULL;
    m.at = w->first != NULL && !w->first->is_over ? w->first->step : 0;
    m.steps = ch__calloc(n + 1, sizeof(*m.steps));
    if (m.steps == NULL)
        return ch__fail_memory("the list of steps");
    for (const ch_worker_run *run = w->first; run != NULL; run = run->next)
        if (!run->is_over)
            m.steps[m.n_steps++] = run->step;
    rc = ch__reply(r, &m.base, 0, NULL);
    ch__free(m.steps);
    return rc;
}

/* Replies with the value of a per-worker variable, or with no tensor if it does not exist. */
static ch_status on_read(const ch_received *r, const void *request)
{
    worker                   *w = r->self;
    const Cohort__WorkerRead *m = request;
    Cohort__WorkerReply       done;
    ch_status                 rc = set_registration(w, m->registration, r->outbox);
    const ch_per_worker_var  *k = ch__map_find(&w->env.per_worker, ch__key(m->variable));
    ch_tensor                *value = k != NULL ? ch__per_worker_value(k) : NULL;

    if (rc != CH_OK)
        return rc;
    cohort__worker_reply__init(&done);
    return ch__reply(r, &done.base, value != NULL, &(ch_tensor *){ch_tensor_ref(value)});
}

/* clang-format off */
static const ch_role role = {
    .name = "a worker",
    .handler = {
        [CH_WORKER_FUNCTION] = on_function,
        [CH_WORKER_RUN]      = on_run,
        [CH_WORKER_PING]     = on_ping,
        [CH_WORKER_STREAM]   = on_stream,
        [CH_WORKER_DROP]     = on_drop,
        [CH_WORKER_READ]     = on_read,
    }};
/* clang-format on */

/* Called after every event. If the first run has ended, frees it, executes the drops that
 * waited for it, and begins the next run. */
static void begin_next_run(worker *w, ch_outbox *outbox, int64_t now)
{
    while (w->first != NULL && ch__worker_run_has_ended(w->first)) {
        ch_worker_run *ended = w->first;

        w->first = ended->next;
        if (w->first == NULL)
            w->last = NULL;
        ch__worker_run_free(ended);
        do_drops(w, outbox);
        if (w->first != NULL)
            ch__worker_run_advance(w->first, outbox, now);
    }
}

static void on_event(void *self, const ch_net_event *e, int64_t now, ch_outbox *outbox)
{
    worker   *w = self;
    ch_retry *ended = NULL;

    switch (e->kind) {
    case CH_EVENT_CALL:
        ch__dispatch(&role, w, e, now, outbox);
        break;
    case CH_EVENT_CANCEL: /* the coordinator does not wait for the reply any more */
        drop_runs(w, outbox, is_of_call, &e->call);
        break;
    case CH_EVENT_REPLY:
        if (ch__retries_on_reply(&w->env.retries, e, now, outbox, &ended) && ended != NULL)
            ch__worker_run_replied(w->first, ended, e, outbox, now);
        break;
    case CH_EVENT_TIMER:
        (void)ch__retries_on_timer(&w->env.retries, e->id, now, outbox);
        break;
    case CH_EVENT_WORK:
        ch__worker_run_computed(w->first, outbox, now);
        break;
    }
    begin_next_run(w, outbox, now);
}

static void close_worker(void *self)
{
    worker *w = self;

    if (w->first != NULL)
        ch__worker_run_end(w->first, NULL);
    ch__retries_free(&w->env.retries);
    while (w->first != NULL) {
        ch_worker_run *r = w->first;

        w->first = r->next;
        ch__worker_run_free(r);
    }
    for (int i = 0; i < w->env.functions.cap; i++)
        if (w->env.functions.entry[i].value != NULL)
            drop_function(w->env.functions.entry[i].value);
    for (int i = 0; i < w->env.streams.cap; i++)
        ch__stream_free(w->env.streams.entry[i].value);
    for (int i = 0; i < w->n_drops; i++)
        ch__message_unref(w->drop[i].message);
    ch__free(w->drop);
    for (int i = 0; i < w->env.per_worker.cap; i++)
        ch__per_worker_free(w->env.per_worker.entry[i].value);
    ch__map_drop(&w->env.per_worker);
    ch__map_drop(&w->env.committed);
    ch__map_drop(&w->env.functions);
    ch__map_drop(&w->env.streams);
    ch__group_free(w->env.group);
    ch__free(w);
}

const ch_task_ops ch__worker_ops = {on_event, close_worker};

static int64_t or_default(int64_t value, int64_t by_default)
{
    return value > 0 ? value : by_default;
}

ch_status ch__worker_make(void *arg, ch_task *t, uint64_t incarnation, ch_outbox *outbox,
                          void **self)
{
    const ch_worker_options *opt = arg;
    worker                  *w = ch__calloc(1, sizeof(*w));
    ch_status                rc = w == NULL ? ch__fail_memory("a worker") : CH_OK;

    (void)outbox;
    (void)incarnation;
    if (rc != CH_OK)
        return rc;
    w->env.opt = *opt;
    w->env.opt.call_ns = or_default(opt->call_ns, 2000000000);
    w->env.opt.retry_ns = or_default(opt->retry_ns, 20000000);
    w->env.opt.patience_ns = or_default(opt->patience_ns, 5000000000);
    w->env.task = t;
    if (opt->n_devices > 1)
        rc = ch__group_new(&(ch_group_options){.n = opt->n_devices}, &w->env.group);
    if (rc != CH_OK) {
        ch__free(w);
        return rc;
    }
    *self = w;
    return CH_OK;
}
