/* coord/worker.c -- a worker.   SPDX-License-Identifier: Apache-2.0 */
#include "coord/worker.h"

#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "collective/group.h"
#include "data/message.h"
#include "graph/function.h"
#include "graph/run.h"
#include "ps/map.h"
#include "ps/speak.h"
#include "ps/trip.h"
#include "tensor/tensor.h"

typedef struct function {
    ch_sent_route sent;
    ch_function **segment;
    bool        **is_defined; /* of each remote, by shard: its graph is on its server */
} function;

/* A call to a server, until it is answered. */
typedef struct exchange {
    struct exchange *next;
    uint64_t         id;
    int              server, n_tries;
    bool is_open; /* false: it waits for its timer, or for graphs that its server needs first */
    ch_parcel    *parcel;
    ch_trip_call *call; /* NULL: it tells a graph, of: */
    int           remote, shard;
} exchange;

typedef struct run {
    struct run *next;
    ch_call_id  call;
    uint64_t    step, number_of_function, retired, pin, seed;
    int64_t     number;
    ch_parcel  *parcel; /* with its inputs */
    function   *f;
    ch_trip    *trip;
    exchange   *exchanges;
    bool        is_computing, is_over;
    /* Of the segment that is computed. */
    struct worker *worker;
    ch_tuple      *in, *out;
    ch_status      rc;
    ch_fault       fault;
} run;

typedef struct worker {
    ch_worker_options opt;
    ch_task          *task;
    uint64_t          incarnation, n_ids;
    ch_map            functions;
    run              *now, *last; /* first in the list is the one that runs */
    ch_group         *group;      /* NULL: one replica */
} worker;

static ch_key key(uint64_t number)
{
    return (ch_key){number, 0};
}

/* ---- functions ---- */

static int shards_of(const ch_sent_route *s, const ch_remote *r)
{
    return s->variable[r->variable[0]].n_shards;
}

static void drop_function(function *f)
{
    const ch_route *r = f->sent.route;

    for (int i = 0; f->segment != NULL && i < r->n_segments; i++)
        ch_function_unref(f->segment[i]);
    for (int i = 0; f->is_defined != NULL && i < r->n_remotes; i++)
        ch__free(f->is_defined[i]);
    ch__free(f->segment);
    ch__free(f->is_defined);
    ch__route_free(f->sent.route);
    ch__free(f);
}

static ch_status prepare_function(function *f)
{
    const ch_route *r = f->sent.route;
    ch_status       rc = CH_OK;

    f->segment = ch__calloc((size_t)r->n_segments + 1, sizeof(*f->segment));
    f->is_defined = ch__calloc((size_t)r->n_remotes + 1, sizeof(*f->is_defined));
    if (f->segment == NULL || f->is_defined == NULL)
        return ch__fail_memory("a function");
    for (int i = 0; i < r->n_remotes && rc == CH_OK; i++) {
        f->is_defined[i] = ch__calloc((size_t)shards_of(&f->sent, &r->remote[i]), sizeof(bool));
        if (f->is_defined[i] == NULL)
            rc = ch__fail_memory("a function");
    }
    for (int i = 0; i < r->n_segments && rc == CH_OK; i++)
        rc = ch_function_of_graph(r->segment[i].graph->name, r->segment[i].graph,
                                  &f->segment[i]);
    return rc;
}

static ch_status take_function(worker *w, const ch_parcel *p, const Cohort__WorkerFunction *m)
{
    function *f;
    ch_status rc;

    if (m->function == 0 || p->n_tensors != 1 || p->tensor[0]->dtype != CH_U8 ||
        !p->tensor[0]->contiguous)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "a function comes with a number and a route, as bytes");
    if (ch__map_find(&w->functions, key(m->function)) != NULL)
        return CH_OK; /* the call came twice */
    f = ch__calloc(1, sizeof(*f));
    if (f == NULL)
        return ch__fail_memory("a function");
    rc = ch__route_decode(p->tensor[0]->data, ch_tensor_bytes(p->tensor[0]), &f->sent);
    if (rc == CH_OK)
        rc = prepare_function(f);
    if (rc == CH_OK)
        rc = ch__map_set(&w->functions, key(m->function), f);
    if (rc != CH_OK && f->sent.route != NULL)
        drop_function(f);
    else if (rc != CH_OK)
        ch__free(f);
    return rc;
}

/* ---- runs: their life ---- */

static void drop_exchange(exchange *x)
{
    ch__parcel_unref(x->parcel);
    ch__free(x);
}

static void drop_run(run *r)
{
    while (r->exchanges != NULL) {
        exchange *x = r->exchanges;

        r->exchanges = x->next;
        drop_exchange(x);
    }
    ch__trip_free(r->trip);
    ch_tuple_unref(r->in);
    ch_tuple_unref(r->out);
    ch__parcel_unref(r->parcel);
    ch__free(r);
}

static void advance(worker *w, ch_post *post, int64_t now);

/* The run that is first is over: calls of it end, and the next one begins. What is computed is waited for. */
static void end_run(worker *w, ch_post *post, int64_t now)
{
    run *r = w->now;

    r->is_over = true;
    for (exchange *x = r->exchanges; x != NULL; x = x->next) {
        if (x->is_open)
            ch__post_cancel(post, x->id);
        ch__post_timer(post, x->id, INT64_MAX);
    }
    if (r->is_computing)
        return;
    w->now = r->next;
    if (w->now == NULL)
        w->last = NULL;
    drop_run(r);
    advance(w, post, now);
}

static void fail_run(worker *w, ch_post *post, int64_t now, ch_status rc, const char *op)
{
    ch__refuse(post, w->now->call, rc, op);
    end_run(w, post, now);
}

static void refuse_run(worker *w, ch_post *post, int64_t now, const ch_fault *why)
{
    ch__post_refusal(post, w->now->call, why);
    end_run(w, post, now);
}

static void finish_run(worker *w, ch_post *post, int64_t now)
{
    run               *r = w->now;
    int                n = r->f->sent.route->n_outputs, n_replicas = w->opt.n_devices;
    ch_tensor        **t = ch__calloc((size_t)(n * n_replicas) + 1, sizeof(*t));
    Cohort__WorkerDone m;
    ch_parcel         *p = NULL;
    ch_status          rc = t == NULL ? ch__fail_memory("an answer") : CH_OK;

    for (int k = 0; k < n_replicas && rc == CH_OK; k++)
        for (int i = 0; i < n; i++)
            t[k * n + i] = ch_tensor_ref(ch__trip_result(r->trip, i, k));
    cohort__worker_done__init(&m);
    m.replicas = (uint32_t)n_replicas;
    if (rc == CH_OK)
        rc = ch__speak(CH_WORKER_RUN, &m.base, n * n_replicas, t, &p);
    ch__free(t);
    if (rc != CH_OK) {
        fail_run(w, post, now, rc, "answer");
        return;
    }
    ch__post_answer(post, r->call, p);
    end_run(w, post, now);
}

/* ---- calls to servers ---- */

static void make_call(worker *w, exchange *x, ch_post *post, int64_t now)
{
    char     name[32];
    ch_link *link;

    (void)snprintf(name, sizeof(name), "ps/%d", x->server);
    link = ch__task_link(w->task, name);
    x->is_open = link != NULL;
    x->n_tries++;
    if (link == NULL)
        ch__post_timer(post, x->id, now + w->opt.retry_ns);
    else
        ch__post_call(post, link, ch__parcel_ref(x->parcel),
                      &(ch_call_options){.id = x->id, .deadline = now + w->opt.call_ns});
}

static ch_status add_exchange(worker *w, int server, ch_parcel *p, exchange **out)
{
    exchange *x = ch__calloc(1, sizeof(*x));

    if (x == NULL) {
        ch__parcel_unref(p);
        return ch__fail_memory("a call");
    }
    x->id = ++w->n_ids;
    x->server = server;
    x->parcel = p;
    x->next = w->now->exchanges;
    w->now->exchanges = x;
    *out = x;
    return CH_OK;
}

/* A graph that a server needs before it can apply an update. */
static ch_status speak_graph(const function *f, int remote, int shard, ch_parcel **out)
{
    const ch_remote *u = &f->sent.route->remote[remote];
    Cohort__PsDefine m;
    ch_graph        *g = NULL;
    void            *bytes = NULL;
    uint64_t        *number = ch__calloc((size_t)u->n_variables, sizeof(*number));
    ch_status        rc = number == NULL ? ch__fail_memory("a call") : CH_OK;

    cohort__ps_define__init(&m);
    if (rc == CH_OK)
        rc = ch__trip_update(&f->sent, remote, shard, &m.function, &g);
    if (rc == CH_OK)
        rc = ch_graph_encode(g, &bytes, &m.graph.len);
    m.graph.data = bytes;
    m.n_variables = (size_t)u->n_variables;
    m.variables = number;
    for (int i = 0; i < u->n_variables && rc == CH_OK; i++)
        number[i] = f->sent.variable[u->variable[i]].shard[shard].variable;
    if (rc == CH_OK)
        rc = ch__speak(CH_PS_DEFINE, &m.base, 0, NULL, out);
    ch_graph_unref(g);
    ch_bytes_free(bytes);
    ch__free(number);
    return rc;
}

static bool is_told(const run *r, int remote, int shard)
{
    for (const exchange *x = r->exchanges; x != NULL; x = x->next)
        if (x->call == NULL && x->remote == remote && x->shard == shard)
            return true;
    return false;
}

/* The graphs of an update that its server has not been told yet are told first. */
static ch_status tell_graphs(worker *w, const ch_trip_call *c, ch_post *post, int64_t now,
                             bool *waits)
{
    run      *r = w->now;
    ch_status rc = CH_OK;

    *waits = false;
    for (int i = 0; i < c->n && rc == CH_OK; i++) {
        struct ch_trip_part p = c->part[i];
        exchange           *x = NULL;
        ch_parcel          *parcel = NULL;

        if (r->f->sent.route->remote[p.remote].kind != CH_REMOTE_UPDATE ||
            r->f->is_defined[p.remote][p.shard])
            continue;
        *waits = true;
        if (is_told(r, p.remote, p.shard))
            continue;
        rc = speak_graph(r->f, p.remote, p.shard, &parcel);
        if (rc == CH_OK)
            rc = add_exchange(w, c->server, parcel, &x);
        if (rc != CH_OK)
            break;
        x->remote = p.remote;
        x->shard = p.shard;
        make_call(w, x, post, now);
    }
    return rc;
}

static ch_status ask_servers(worker *w, ch_post *post, int64_t now)
{
    ch_trip_call *const *call = NULL;
    int                  n = 0;
    ch_status            rc = ch__trip_ask(w->now->trip, &n, &call);

    for (int i = 0; i < n && rc == CH_OK; i++) {
        exchange *x = NULL;
        bool      waits = false;

        rc = add_exchange(w, call[i]->server, ch__parcel_ref(call[i]->parcel), &x);
        if (rc != CH_OK)
            break;
        x->call = call[i];
        rc = tell_graphs(w, call[i], post, now, &waits);
        if (rc == CH_OK && !waits)
            make_call(w, x, post, now);
    }
    return rc;
}

/* ---- computing ---- */

static ch_status no_resource(void *owner, const ch_resource *r, int local, void **out)
{
    (void)owner;
    (void)local;
    (void)out;
    return ch__fail(CH_INTERNAL, "a segment has variable %s", r->name);
}

/* Of the first input, over the replicas. */
static int64_t rows_of(const run *r, int n_replicas)
{
    int     n = r->f->sent.route->n_inputs;
    int64_t rows = 0;

    for (int k = 0; k < n_replicas && n > 0; k++) {
        const ch_tensor *t = r->parcel->tensor[r->parcel->n_tensors == n ? 0 : k * n];

        rows += t->shape.rank > 0 ? t->shape.dim[0] : 1;
    }
    return rows;
}

/* Outside the turn: uses nothing of the worker that changes. */
static void compute(void *arg)
{
    static const ch_run_ops ops = {.resource = no_resource};
    run                    *r = arg;
    worker                 *w = r->worker;
    const ch_segment       *s = ch__trip_segment(r->trip);

    r->rc = ch__run(&(ch_run){.function = r->f->segment[s - r->f->sent.route->segment],
                              .owner = r->f,
                              .ops = &ops,
                              .n_local = w->opt.n_devices,
                              .device = w->opt.device,
                              .n_replicas = w->opt.n_devices,
                              .in = r->in,
                              .has_rows = true,
                              .global_rows = rows_of(r, w->opt.n_devices),
                              .step = r->number,
                              .seed = r->seed,
                              .group = w->group,
                              .meet = &ch__group_as_meet},
                    &r->out);
    if (r->rc != CH_OK)
        (void)ch__fault_take(&r->fault, r->rc, -1, NULL);
}

static ch_status begin_computing(worker *w, ch_post *post)
{
    run      *r = w->now;
    ch_status rc = ch__trip_inputs(r->trip, &r->in);

    if (rc != CH_OK)
        return rc;
    r->is_computing = true;
    ch__fault_clear(&r->fault);
    ch__post_work(post, 1, compute, NULL, r);
    return CH_OK;
}

static void on_computed(worker *w, ch_post *post, int64_t now)
{
    run      *r = w->now;
    ch_status rc;

    r->is_computing = false;
    if (r->is_over) {
        end_run(w, post, now);
        return;
    }
    if (r->rc != CH_OK) {
        refuse_run(w, post, now, &r->fault);
        return;
    }
    rc = ch__trip_ran(r->trip, r->out);
    ch_tuple_unref(r->in);
    ch_tuple_unref(r->out);
    r->in = r->out = NULL;
    if (rc != CH_OK)
        fail_run(w, post, now, rc, "run");
    else
        advance(w, post, now);
}

/* ---- runs ---- */

static ch_status begin_run(worker *w, run *r)
{
    int         n;
    ch_tensor **in;
    ch_attempt  a = {.step = r->step,
                     .retired = r->retired,
                     .pin = r->pin,
                     .worker = ch__task_name(w->task),
                     .incarnation = w->incarnation};
    ch_status   rc;

    r->f = ch__map_find(&w->functions, key(r->number_of_function));
    if (r->f == NULL)
        return ch__fail(CH_NOT_FOUND, "this worker knows no function %llu",
                        (unsigned long long)r->number_of_function);
    n = r->f->sent.route->n_inputs;
    if (r->parcel->n_tensors != n && r->parcel->n_tensors != n * w->opt.n_devices)
        return ch__fail(CH_INVALID_ARGUMENT, "%d inputs for a step that takes %d",
                        r->parcel->n_tensors, n);
    in = ch__calloc((size_t)(n * w->opt.n_devices) + 1, sizeof(*in));
    if (in == NULL)
        return ch__fail_memory("a step");
    for (int i = 0; i < n * w->opt.n_devices; i++)
        in[i] = r->parcel->tensor[r->parcel->n_tensors == n ? i % n : i];
    rc = ch__trip_new(&r->f->sent, &a, w->opt.n_devices, in, &r->trip);
    ch__free(in);
    return rc;
}

/* As far as the first run can go now. */
static void advance(worker *w, ch_post *post, int64_t now)
{
    run      *r = w->now;
    ch_status rc = CH_OK;

    if (r == NULL || r->is_over)
        return;
    if (r->trip == NULL)
        rc = begin_run(w, r);
    if (rc == CH_OK)
        rc = ask_servers(w, post, now);
    if (rc == CH_OK && !r->is_computing && ch__trip_segment(r->trip) != NULL)
        rc = begin_computing(w, post);
    if (rc != CH_OK)
        fail_run(w, post, now, rc, "run");
    else if (ch__trip_is_done(r->trip))
        finish_run(w, post, now);
}

static ch_status take_run(worker *w, const ch_net_event *e, const Cohort__WorkerRun *m)
{
    run *r = ch__calloc(1, sizeof(*r));

    if (r == NULL)
        return ch__fail_memory("a step");
    r->worker = w;
    r->call = e->call;
    r->step = m->step;
    r->number_of_function = m->function;
    r->retired = m->retired;
    r->pin = m->pin;
    r->seed = m->seed;
    r->number = m->number;
    r->parcel = ch__parcel_ref(e->parcel);
    *(w->last != NULL ? &w->last->next : &w->now) = r;
    w->last = r;
    return CH_OK;
}

/* ---- events ---- */

static exchange *find_exchange(const worker *w, uint64_t id)
{
    exchange *x = w->now != NULL ? w->now->exchanges : NULL;

    while (x != NULL && x->id != id)
        x = x->next;
    return x;
}

static void take_out(run *r, exchange *x)
{
    exchange **at = &r->exchanges;

    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    drop_exchange(x);
}

/* A graph has come to its server: updates that waited for it are sent, unless they wait for another. */
static ch_status send_waiting(worker *w, ch_post *post, int64_t now)
{
    ch_status rc = CH_OK;

    for (exchange *x = w->now->exchanges; x != NULL && rc == CH_OK; x = x->next) {
        bool waits = false;

        if (x->call == NULL || x->n_tries > 0)
            continue;
        rc = tell_graphs(w, x->call, post, now, &waits);
        if (rc == CH_OK && !waits)
            make_call(w, x, post, now);
    }
    return rc;
}

static void on_answered(worker *w, exchange *x, const ch_parcel *p, ch_post *post, int64_t now)
{
    run      *r = w->now;
    ch_status rc;

    if (x->call != NULL) {
        rc = ch__trip_answer(r->trip, x->call, p);
        take_out(r, x);
    } else {
        r->f->is_defined[x->remote][x->shard] = true;
        take_out(r, x);
        rc = send_waiting(w, post, now);
    }
    if (rc != CH_OK)
        fail_run(w, post, now, rc, "answer");
    else
        advance(w, post, now);
}

/* It may have been carried out: made again, it is answered as it was the first time. */
static void on_lost(worker *w, exchange *x, const ch_net_event *e, ch_post *post, int64_t now)
{
    x->is_open = false;
    if (x->n_tries <= w->opt.retries) {
        ch__post_timer(post, x->id, now + w->opt.retry_ns);
        return;
    }
    refuse_run(w, post, now, e->fault);
}

static void on_answer(worker *w, const ch_net_event *e, ch_post *post, int64_t now)
{
    exchange *x = find_exchange(w, e->id);

    if (x == NULL || w->now->is_over)
        return;
    switch (e->ending) {
    case CH_ENDED_OK:
        on_answered(w, x, e->parcel, post, now);
        break;
    case CH_ENDED_REFUSED:
        refuse_run(w, post, now, e->fault);
        break;
    default:
        on_lost(w, x, e, post, now);
    }
}

/* Nobody waits for a run any more: one that has not begun is forgotten, the first one is ended. */
static void on_cancel(worker *w, ch_call_id call, ch_post *post, int64_t now)
{
    run *before = NULL, *r = w->now;

    while (r != NULL && r->call != call) {
        before = r;
        r = r->next;
    }
    if (r == NULL)
        return;
    if (before == NULL) {
        if (!r->is_over)
            end_run(w, post, now);
        return;
    }
    before->next = r->next;
    if (w->last == r)
        w->last = before;
    drop_run(r);
}

static void on_call(worker *w, const ch_net_event *e, ch_post *post, int64_t now)
{
    uint32_t           method = e->parcel->method;
    ProtobufCMessage  *m = NULL;
    ch_parcel         *p = NULL;
    Cohort__WorkerDone done;
    ch_status          rc = CH_OK;

    cohort__worker_done__init(&done);
    if (method == CH_WORKER_RUN) {
        rc = ch__hear(e->parcel, &cohort__worker_run__descriptor, &m);
        if (rc == CH_OK)
            rc = take_run(w, e, (const Cohort__WorkerRun *)(const void *)m);
    } else if (method == CH_WORKER_FUNCTION) {
        rc = ch__hear(e->parcel, &cohort__worker_function__descriptor, &m);
        if (rc == CH_OK)
            rc = take_function(w, e->parcel, (const Cohort__WorkerFunction *)(const void *)m);
    } else if (method != CH_WORKER_PING) {
        rc = ch__fail(CH_UNIMPLEMENTED, "a worker knows no method %u", method);
    }
    if (rc == CH_OK && method != CH_WORKER_RUN)
        rc = ch__speak(method, &done.base, 0, NULL, &p);
    if (rc != CH_OK)
        ch__refuse(post, e->call, rc, "call");
    else if (p != NULL)
        ch__post_answer(post, e->call, p);
    else if (w->now != NULL && w->now->trip == NULL)
        advance(w, post, now);
    ch__message_free(m);
}

static void on_event(void *self, const ch_net_event *e, int64_t now, ch_post *post)
{
    worker   *w = self;
    exchange *x;

    switch (e->kind) {
    case CH_EVENT_CALL:
        on_call(w, e, post, now);
        break;
    case CH_EVENT_CANCEL:
        on_cancel(w, e->call, post, now);
        break;
    case CH_EVENT_ANSWER:
        on_answer(w, e, post, now);
        break;
    case CH_EVENT_TIMER:
        x = find_exchange(w, e->id);
        if (x != NULL && !w->now->is_over && !x->is_open)
            make_call(w, x, post, now);
        break;
    case CH_EVENT_WORK:
        on_computed(w, post, now);
        break;
    }
}

static void close_worker(void *self)
{
    worker *w = self;

    while (w->now != NULL) {
        run *r = w->now;

        w->now = r->next;
        drop_run(r);
    }
    for (int i = 0; i < w->functions.cap; i++)
        if (w->functions.entry[i].value != NULL)
            drop_function(w->functions.entry[i].value);
    ch__map_drop(&w->functions);
    ch__group_free(w->group);
    ch__free(w);
}

const ch_task_ops ch__worker_ops = {on_event, close_worker};

static int64_t or_else(int64_t value, int64_t usual)
{
    return value > 0 ? value : usual;
}

ch_status ch__worker_make(void *arg, ch_task *t, uint64_t incarnation, ch_post *post,
                          void **self)
{
    const ch_worker_options *opt = arg;
    worker                  *w = ch__calloc(1, sizeof(*w));
    ch_status                rc = w == NULL ? ch__fail_memory("a worker") : CH_OK;

    (void)post;
    if (rc != CH_OK)
        return rc;
    w->opt = *opt;
    w->opt.call_ns = or_else(opt->call_ns, 2000000000);
    w->opt.retry_ns = or_else(opt->retry_ns, 20000000);
    w->opt.retries = (int)or_else(opt->retries, 50);
    w->task = t;
    w->incarnation = incarnation;
    if (opt->n_devices > 1)
        rc = ch__group_new(&(ch_group_options){.n = opt->n_devices}, &w->group);
    if (rc != CH_OK) {
        ch__free(w);
        return rc;
    }
    *self = w;
    return CH_OK;
}
