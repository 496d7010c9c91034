/* job/worker/worker.c -- the task of a worker: functions, streams and the queue of runs.
 *
 * A worker has a handler for each method. Functions and streams are kept by number until the
 * coordinator drops them. Runs (run.h) are kept in a list in the order of their calls: the
 * first is executed, the others wait. A call to drop something that the first run uses waits
 * until that run has ended.
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

/* A call that asked to drop something. */
typedef struct drop {
    ch_call_id  call;
    ch_message *message;
} drop;

typedef struct worker {
    ch_run_env place;
    uint64_t   registration; /* the coordinator's number for this life, as far as it is known */
    ch_worker_run *now, *last; /* first in the list is the one that runs */
    int            n_drops, cap_drops;
    drop          *drop; /* that wait until what runs can be ended */
} worker;

static bool is_bytes(const ch_tensor *t)
{
    return t->dtype == CH_U8 && t->contiguous;
}

/* ---- functions ---- */

static int shards_of(const ch_placed_plan *s, const ch_remote_part *r)
{
    return s->variable[r->variable[0]].n_shards;
}

static void drop_function(ch_worker_function *f)
{
    const ch_step_plan *r = f->sent.plan;

    for (int i = 0; f->local_part != NULL && i < r->n_local_parts; i++)
        ch_function_unref(f->local_part[i]);
    for (int i = 0; f->is_defined != NULL && i < r->n_remote_parts; i++)
        ch__free(f->is_defined[i]);
    ch__free(f->local_part);
    ch__free(f->is_defined);
    ch__free(f->server);
    ch__free(f->per_worker);
    ch__step_plan_free(f->sent.plan);
    ch__free(f);
}

/* Every server that it needs is one of those that were said. */
static ch_status check_servers(const ch_worker_function *f)
{
    for (int i = 0; i < f->sent.n_variables; i++)
        for (int k = 0; k < f->sent.variable[i].n_shards; k++)
            if (f->sent.variable[i].shard[k].server >= f->n_servers)
                return ch__fail(CH_INVALID_ARGUMENT, "variable %s is on server %d of %d",
                                f->sent.variable[i].name, f->sent.variable[i].shard[k].server,
                                f->n_servers);
    return CH_OK;
}

static ch_status take_servers(ch_worker_function *f, const Cohort__WorkerFunction *m)
{
    f->server = ch__calloc(m->n_servers + 1, sizeof(*f->server));
    if (f->server == NULL)
        return ch__fail_memory("a function");
    f->n_servers = (int)m->n_servers;
    for (size_t i = 0; i < m->n_servers; i++)
        f->server[i] = m->servers[i];
    return check_servers(f);
}

static ch_status prepare_function(ch_worker_function *f, const Cohort__WorkerFunction *m)
{
    const ch_step_plan *r = f->sent.plan;
    ch_status           rc = take_servers(f, m);

    if (rc != CH_OK)
        return rc;
    f->local_part = ch__calloc((size_t)r->n_local_parts + 1, sizeof(*f->local_part));
    f->is_defined = ch__calloc((size_t)r->n_remote_parts + 1, sizeof(*f->is_defined));
    if (f->local_part == NULL || f->is_defined == NULL)
        return ch__fail_memory("a function");
    for (int i = 0; i < r->n_remote_parts && rc == CH_OK; i++) {
        f->is_defined[i] = ch__calloc((size_t)shards_of(&f->sent, &r->remote[i]), sizeof(bool));
        if (f->is_defined[i] == NULL)
            rc = ch__fail_memory("a function");
    }
    for (int i = 0; i < r->n_local_parts && rc == CH_OK; i++)
        rc = ch_function_of_graph(r->local_part[i].graph->name, r->local_part[i].graph,
                                  &f->local_part[i]);
    return rc;
}

/* The variables of its own that a function uses, which begin to be there with it. */
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
    if (f->n_read > f->sent.plan->n_inputs || f->n_written > f->sent.plan->n_outputs)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "a function of %d inputs and %d results reads %d variables of this "
                        "worker's, and writes %d",
                        f->sent.plan->n_inputs, f->sent.plan->n_outputs, f->n_read,
                        f->n_written);
    return CH_OK;
}

static ch_status begin_per_worker(worker *w, const ch_worker_function *f,
                                  ch_tensor *const *initial)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < f->n_per_worker && rc == CH_OK; i++) {
        ch_key             key = ch__key(f->per_worker[i].number);
        ch_per_worker_var *k = NULL;

        if (ch__map_find(&w->place.per_worker, key) != NULL)
            continue; /* of another function */
        rc = ch__per_worker_new(w->place.opt.device[0], initial[i], &k);
        if (rc == CH_OK)
            rc = ch__map_set(&w->place.per_worker, key, k);
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
                        "a function comes with a number, a route, as bytes, and a value for "
                        "each variable of the worker's own");
    if (ch__map_find(&w->place.functions, ch__key(m->function)) != NULL)
        return reply_done(r); /* the call came twice */
    f = ch__calloc(1, sizeof(*f));
    if (f == NULL)
        return ch__fail_memory("a function");
    rc = ch__step_plan_decode(p->tensor[0]->data, ch_tensor_bytes(p->tensor[0]), &f->sent);
    if (rc == CH_OK)
        rc = prepare_function(f, m);
    if (rc == CH_OK)
        rc = set_per_worker(f, m);
    if (rc == CH_OK)
        rc = begin_per_worker(w, f, p->tensor + 1);
    if (rc == CH_OK)
        rc = ch__map_set(&w->place.functions, ch__key(m->function), f);
    if (rc == CH_OK)
        return reply_done(r);
    if (f->sent.plan != NULL)
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
                                     .n_replicas = w->place.opt.n_devices,
                                     .device = w->place.opt.device};
    ch_status                   rc;

    if (m->stream == 0 || p->n_tensors < 1 || p->n_tensors > 2 || !is_bytes(p->tensor[0]) ||
        !is_bytes(p->tensor[p->n_tensors - 1]))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "a stream comes with a number and a dataset, as bytes");
    if (ch__map_find(&w->place.streams, ch__key(m->stream)) != NULL)
        return reply_done(r); /* the call came twice */
    (void)snprintf(name, sizeof(name), "stream %llu", (unsigned long long)m->stream);
    o.dataset = p->tensor[0]->data;
    o.n_dataset = ch_tensor_bytes(p->tensor[0]);
    if (p->n_tensors == 2) {
        o.place = p->tensor[1]->data;
        o.n_place = ch_tensor_bytes(p->tensor[1]);
    }
    rc = ch__stream_new(&o, &s);
    if (rc == CH_OK)
        rc = ch__map_set(&w->place.streams, ch__key(m->stream), s);
    if (rc == CH_OK)
        return reply_done(r);
    ch__stream_free(s);
    return rc;
}

/* ---- dropping ---- */

static void drop_things(worker *w, const Cohort__WorkerDrop *m)
{
    for (size_t i = 0; i < m->n_functions; i++) {
        ch_worker_function *f = ch__map_remove(&w->place.functions, ch__key(m->functions[i]));

        if (f != NULL)
            drop_function(f);
    }
    for (size_t i = 0; i < m->n_streams; i++)
        ch__stream_free(ch__map_remove(&w->place.streams, ch__key(m->streams[i])));
    for (size_t i = 0; i < m->n_per_worker; i++)
        ch__per_worker_free(ch__map_remove(&w->place.per_worker, ch__key(m->per_worker[i])));
}

static bool is_listed(size_t n, const uint64_t *list, uint64_t wanted)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] == wanted)
            return true;
    return false;
}

/* Whether the run needs what is to be dropped, or is to be dropped itself and has not ended yet. */
static bool is_in_use(const worker *w, const Cohort__WorkerDrop *m)
{
    const ch_worker_run *r = w->now;
    bool used = r != NULL && (r->is_over || is_listed(m->n_steps, m->steps, r->step));

    if (r != NULL && r->f != NULL)
        used |= is_listed(m->n_functions, m->functions, r->number_of_function);
    for (int i = 0; r != NULL && i < r->n_elements; i++)
        used |= is_listed(m->n_streams, m->streams, r->element[i].stream);
    return used;
}

/* Does the drops that wait for nothing any more, and replies to their calls. */
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
        if (m == NULL || is_in_use(w, m)) { /* NULL: no memory; the next drop tries again */
            w->drop[n++] = d;
        } else {
            drop_things(w, m);
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

/* Those behind the first that `when` is true of are forgotten; the first, if it is, is ended. */
static void drop_runs(worker *w, ch_outbox                                              *outbox,
                      bool (*when)(const ch_worker_run *r, const void *arg), const void *arg)
{
    ch_worker_run *before = w->now;

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
    if (w->now != NULL && !w->now->is_over && when(w->now, arg))
        ch__worker_run_end(w->now, outbox);
}

static bool is_older(const ch_worker_run *r, const void *registration)
{
    return r->registration < *(const uint64_t *)registration;
}

static void reset_per_worker(worker *w)
{
    for (int i = 0; i < w->place.per_worker.cap; i++)
        if (w->place.per_worker.entry[i].value != NULL)
            ch__per_worker_reset(w->place.per_worker.entry[i].value);
    ch__map_drop(&w->place.counted);
    w->place.counted = (ch_map){0};
}

/* What it was given before it was given up is nobody's any more, and what it kept is as it began. */
static ch_status set_registration(worker *w, uint64_t registration, ch_outbox *outbox)
{
    if (registration < w->registration)
        return ch__fail(CH_ABORTED, "it is for life %llu of this worker, which was given up",
                        (unsigned long long)registration);
    if (registration > w->registration) {
        drop_runs(w, outbox, is_older, &registration);
        reset_per_worker(w);
    }
    w->registration = registration;
    return CH_OK;
}

/* Replies when the run has ended. */
static ch_status on_run(const ch_received *r, const void *request)
{
    worker                  *w = r->self;
    const Cohort__WorkerRun *m = request;
    ch_worker_run           *run = NULL;
    ch_status                rc = set_registration(w, m->registration, r->outbox);

    if (rc == CH_OK)
        rc = ch__worker_run_new(&w->place, r->call, r->message, m, &run);
    if (rc != CH_OK)
        return rc;
    *(w->last != NULL ? &w->last->next : &w->now) = run;
    w->last = run;
    if (w->now == run)
        ch__worker_run_advance(run, r->outbox, r->now);
    return CH_OK;
}

/* A step that has sent an update is run to its end: it can not be cancelled any more. */
static bool is_dropped(const ch_worker_run *r, const void *arg)
{
    const Cohort__WorkerDrop *m = arg;

    return !r->has_updated && is_listed(m->n_steps, m->steps, r->step);
}

/* Replies when nothing of the request is in use any more. */
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

static bool is_asked_by(const ch_worker_run *r, const void *call)
{
    return r->call == *(const ch_call_id *)call;
}

/* ---- events ---- */

static ch_status on_ping(const ch_received *r, const void *request)
{
    const worker       *w = r->self;
    Cohort__WorkerReply m;
    size_t              n = 0;
    ch_status           rc;

    (void)request;
    for (const ch_worker_run *run = w->now; run != NULL; run = run->next)
        n++;
    cohort__worker_reply__init(&m);
    m.busy = w->now != NULL;
    m.at = w->now != NULL && !w->now->is_over ? w->now->step : 0;
    m.steps = ch__calloc(n + 1, sizeof(*m.steps));
    if (m.steps == NULL)
        return ch__fail_memory("the list of steps");
    for (const ch_worker_run *run = w->now; run != NULL; run = run->next)
        if (!run->is_over)
            m.steps[m.n_steps++] = run->step;
    rc = ch__reply(r, &m.base, 0, NULL);
    ch__free(m.steps);
    return rc;
}

static ch_status on_read(const ch_received *r, const void *request)
{
    worker                   *w = r->self;
    const Cohort__WorkerRead *m = request;
    Cohort__WorkerReply       done;
    ch_status                 rc = set_registration(w, m->registration, r->outbox);
    const ch_per_worker_var  *k = ch__map_find(&w->place.per_worker, ch__key(m->variable));
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

/* Behind every event: when the first one has ended, what it used can be dropped, and the next one begins. */
static void settle(worker *w, ch_outbox *outbox, int64_t now)
{
    while (w->now != NULL && ch__worker_run_has_ended(w->now)) {
        ch_worker_run *ended = w->now;

        w->now = ended->next;
        if (w->now == NULL)
            w->last = NULL;
        ch__worker_run_free(ended);
        do_drops(w, outbox);
        if (w->now != NULL)
            ch__worker_run_advance(w->now, outbox, now);
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
    case CH_EVENT_CANCEL: /* nobody waits for it any more */
        drop_runs(w, outbox, is_asked_by, &e->call);
        break;
    case CH_EVENT_REPLY:
        if (ch__retries_on_reply(&w->place.retries, e, now, outbox, &ended) && ended != NULL)
            ch__worker_run_replied(w->now, ended, e, outbox, now);
        break;
    case CH_EVENT_TIMER:
        (void)ch__retries_on_timer(&w->place.retries, e->id, now, outbox);
        break;
    case CH_EVENT_WORK:
        ch__worker_run_computed(w->now, outbox, now);
        break;
    }
    settle(w, outbox, now);
}

static void close_worker(void *self)
{
    worker *w = self;

    if (w->now != NULL)
        ch__worker_run_end(w->now, NULL);
    ch__retries_free(&w->place.retries);
    while (w->now != NULL) {
        ch_worker_run *r = w->now;

        w->now = r->next;
        ch__worker_run_free(r);
    }
    for (int i = 0; i < w->place.functions.cap; i++)
        if (w->place.functions.entry[i].value != NULL)
            drop_function(w->place.functions.entry[i].value);
    for (int i = 0; i < w->place.streams.cap; i++)
        ch__stream_free(w->place.streams.entry[i].value);
    for (int i = 0; i < w->n_drops; i++)
        ch__message_unref(w->drop[i].message);
    ch__free(w->drop);
    for (int i = 0; i < w->place.per_worker.cap; i++)
        ch__per_worker_free(w->place.per_worker.entry[i].value);
    ch__map_drop(&w->place.per_worker);
    ch__map_drop(&w->place.counted);
    ch__map_drop(&w->place.functions);
    ch__map_drop(&w->place.streams);
    ch__group_free(w->place.group);
    ch__free(w);
}

const ch_task_ops ch__worker_ops = {on_event, close_worker};

static int64_t or_else(int64_t value, int64_t usual)
{
    return value > 0 ? value : usual;
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
    w->place.opt = *opt;
    w->place.opt.call_ns = or_else(opt->call_ns, 2000000000);
    w->place.opt.retry_ns = or_else(opt->retry_ns, 20000000);
    w->place.opt.patience_ns = or_else(opt->patience_ns, 5000000000);
    w->place.task = t;
    if (opt->n_devices > 1)
        rc = ch__group_new(&(ch_group_options){.n = opt->n_devices}, &w->place.group);
    if (rc != CH_OK) {
        ch__free(w);
        return rc;
    }
    *self = w;
    return CH_OK;
}
