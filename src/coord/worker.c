/* coord/worker.c -- a worker.   SPDX-License-Identifier: Apache-2.0 */
#include "coord/worker.h"

#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "collective/group.h"
#include "coord/stream.h"
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
    int           n_servers;
    uint64_t     *server; /* which life of each has the variables */
} function;

/* An element that a run reads before it begins. */
typedef struct element {
    uint64_t   stream;
    int64_t    number;
    int        at; /* of the inputs: its first */
    ch_stream *from;
    ch_tuple  *got;
} element;

/* A call to a server, until it is answered. */
typedef struct exchange {
    struct exchange *next;
    uint64_t         id;
    int              server, n_tries;
    int64_t          since; /* when it was made first */
    bool is_open; /* false: it waits for its timer, or for graphs that its server needs first */
    ch_parcel    *parcel;
    ch_trip_call *call; /* NULL: it tells a graph, of: */
    int           remote, shard;
} exchange;

typedef struct run {
    struct run *next;
    ch_call_id  call;
    uint64_t    step, number_of_function, retired, pin, seed, life;
    int64_t     number, rows;
    ch_parcel  *parcel; /* with its inputs */
    int         n_elements;
    element    *element;
    uint64_t    ended;       /* the stream that has not so many; 0: none */
    int         unreachable; /* the server, counted from 1, that does not answer; 0: none */
    function   *f;
    ch_trip    *trip;
    exchange   *exchanges;
    bool        is_silent, has_read, is_computing, is_over;
    /* Of the segment that is computed. */
    struct worker *worker;
    ch_tuple      *in, *out;
    ch_status      rc;
    ch_fault       fault;
} run;

/* A call that asked to drop something. */
typedef struct drop {
    ch_call_id call;
    ch_parcel *parcel;
} drop;

typedef struct worker {
    ch_worker_options opt;
    ch_task          *task;
    uint64_t  life, n_ids; /* the coordinator's number for this life, as far as it is known */
    ch_map    functions, streams;
    run      *now, *last; /* first in the list is the one that runs */
    ch_group *group;      /* NULL: one replica */
    int       n_drops, cap_drops;
    drop     *drop; /* that wait until what runs can be ended */
} worker;

static ch_key key(uint64_t number)
{
    return (ch_key){number, 0};
}

/* ---- functions ---- */

static int shards_of(const ch_sent_route *s, const ch_route_remote *r)
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
    ch__free(f->server);
    ch__route_free(f->sent.route);
    ch__free(f);
}

/* Every server that it needs is one of those that were said. */
static ch_status check_servers(const function *f)
{
    for (int i = 0; i < f->sent.n_variables; i++)
        for (int k = 0; k < f->sent.variable[i].n_shards; k++)
            if (f->sent.variable[i].shard[k].server >= f->n_servers)
                return ch__fail(CH_INVALID_ARGUMENT, "variable %s is on server %d of %d",
                                f->sent.variable[i].name, f->sent.variable[i].shard[k].server,
                                f->n_servers);
    return CH_OK;
}

static ch_status take_servers(function *f, const Cohort__WorkerFunction *m)
{
    f->server = ch__calloc(m->n_servers + 1, sizeof(*f->server));
    if (f->server == NULL)
        return ch__fail_memory("a function");
    f->n_servers = (int)m->n_servers;
    for (size_t i = 0; i < m->n_servers; i++)
        f->server[i] = m->servers[i];
    return check_servers(f);
}

static ch_status prepare_function(function *f, const Cohort__WorkerFunction *m)
{
    const ch_route *r = f->sent.route;
    ch_status       rc = take_servers(f, m);

    if (rc != CH_OK)
        return rc;
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
        rc = prepare_function(f, m);
    if (rc == CH_OK)
        rc = ch__map_set(&w->functions, key(m->function), f);
    if (rc != CH_OK && f->sent.route != NULL)
        drop_function(f);
    else if (rc != CH_OK)
        ch__free(f);
    return rc;
}

/* ---- streams ---- */

static bool is_bytes(const ch_tensor *t)
{
    return t->dtype == CH_U8 && t->contiguous;
}

static ch_status take_stream(worker *w, const ch_parcel *p, const Cohort__WorkerStream *m)
{
    char              name[48];
    ch_stream        *s = NULL;
    ch_stream_options o = {.name = name,
                           .pass = m->pass,
                           .first = m->first,
                           .n_replicas = w->opt.n_devices,
                           .device = w->opt.device};
    ch_status         rc;

    if (m->stream == 0 || p->n_tensors < 1 || p->n_tensors > 2 || !is_bytes(p->tensor[0]) ||
        !is_bytes(p->tensor[p->n_tensors - 1]))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "a stream comes with a number and a dataset, as bytes");
    if (ch__map_find(&w->streams, key(m->stream)) != NULL)
        return CH_OK; /* the call came twice */
    (void)snprintf(name, sizeof(name), "stream %llu", (unsigned long long)m->stream);
    o.dataset = p->tensor[0]->data;
    o.n_dataset = ch_tensor_bytes(p->tensor[0]);
    if (p->n_tensors == 2) {
        o.place = p->tensor[1]->data;
        o.n_place = ch_tensor_bytes(p->tensor[1]);
    }
    rc = ch__stream_new(&o, &s);
    if (rc == CH_OK)
        rc = ch__map_set(&w->streams, key(m->stream), s);
    if (rc != CH_OK)
        ch__stream_free(s);
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
    for (int i = 0; i < r->n_elements; i++)
        ch_tuple_unref(r->element[i].got);
    ch__free(r->element);
    ch__trip_free(r->trip);
    ch_tuple_unref(r->in);
    ch_tuple_unref(r->out);
    ch__parcel_unref(r->parcel);
    ch__free(r);
}

static void advance(worker *w, ch_post *post, int64_t now);
static void do_drops(worker *w, ch_post *post);

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
    do_drops(w, post);
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

/* A place of a stream that it read, if there is a new one: behind the results. */
static ch_status add_place(const run *r, Cohort__WorkerDone *m, ch_tensor **out)
{
    for (int i = 0; i < r->n_elements; i++) {
        const void *bytes = NULL;
        size_t      n = 0;

        if (r->element[i].number % CH_STREAM_PLACES != 0 ||
            !ch__stream_place(r->element[i].from, &m->place_number, &bytes, &n))
            continue;
        m->place_stream = r->element[i].stream;
        return ch_tensor_copy_of(CH_U8, ch_shape_of((int64_t)n), bytes, out);
    }
    return CH_OK;
}

static ch_status speak_results(const worker *w, const run *r, ch_parcel **out)
{
    int n =
        r->is_silent || r->ended != 0 || r->unreachable != 0 ? 0 : r->f->sent.route->n_outputs;
    int                n_replicas = w->opt.n_devices;
    ch_tensor        **t = ch__calloc((size_t)(n * n_replicas) + 1, sizeof(*t));
    Cohort__WorkerDone m;
    ch_status          rc;

    if (t == NULL)
        return ch__fail_memory("an answer");
    cohort__worker_done__init(&m);
    m.replicas = (uint32_t)n_replicas;
    m.ended_stream = r->ended;
    m.unreachable = (uint32_t)r->unreachable;
    rc = add_place(r, &m, &t[n * n_replicas]);
    for (int k = 0; k < n_replicas && rc == CH_OK; k++)
        for (int i = 0; i < n; i++)
            t[k * n + i] = ch_tensor_ref(ch__trip_result(r->trip, i, k));
    if (rc == CH_OK)
        rc = ch__speak(CH_WORKER_RUN, &m.base, n * n_replicas + (m.place_stream != 0), t, out);
    ch__free(t);
    return rc;
}

static void finish_run(worker *w, ch_post *post, int64_t now)
{
    ch_parcel *p = NULL;
    ch_status  rc = speak_results(w, w->now, &p);

    if (rc != CH_OK) {
        fail_run(w, post, now, rc, "answer");
        return;
    }
    ch__post_answer(post, w->now->call, p);
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
    x->since = x->n_tries++ == 0 ? now : x->since;
    if (link == NULL)
        ch__post_timer(post, x->id, now + w->opt.retry_ns);
    else
        ch__post_call(post, link, ch__parcel_ref(x->parcel),
                      &(ch_call_options){.id = x->id,
                                         .deadline = now + w->opt.call_ns,
                                         .incarnation = w->now->f->server[x->server]});
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
    const ch_route_remote *u = &f->sent.route->remote[remote];
    Cohort__PsDefine       m;
    ch_graph              *g = NULL;
    void                  *bytes = NULL;
    uint64_t              *number = ch__calloc((size_t)u->n_variables, sizeof(*number));
    ch_status              rc = number == NULL ? ch__fail_memory("a call") : CH_OK;

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
                              .global_rows = r->rows,
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

/* Outside the turn: reading takes long. */
static void read_elements(void *arg)
{
    run *r = arg;

    r->rc = CH_OK;
    for (int i = 0; i < r->n_elements && r->rc == CH_OK && r->ended == 0; i++) {
        element *e = &r->element[i];

        r->rc = ch__stream_element(e->from, e->number, &e->got);
        if (r->rc == CH_OK && e->got == NULL)
            r->ended = e->stream;
    }
    if (r->rc != CH_OK)
        (void)ch__fault_take(&r->fault, r->rc, -1, NULL);
}

static ch_status begin_reading(worker *w, ch_post *post)
{
    run *r = w->now;

    for (int i = 0; i < r->n_elements; i++) {
        r->element[i].from = ch__map_find(&w->streams, key(r->element[i].stream));
        if (r->element[i].from == NULL)
            return ch__fail(CH_NOT_FOUND, "this worker knows no stream %llu",
                            (unsigned long long)r->element[i].stream);
    }
    r->is_computing = true;
    ch__fault_clear(&r->fault);
    ch__post_work(post, 1, read_elements, NULL, r);
    return CH_OK;
}

static void on_computed(worker *w, ch_post *post, int64_t now)
{
    run      *r = w->now;
    ch_status rc = CH_OK;

    r->is_computing = false;
    if (r->is_over) {
        end_run(w, post, now);
        return;
    }
    if (r->rc != CH_OK) {
        refuse_run(w, post, now, &r->fault);
        return;
    }
    if (r->has_read || r->n_elements == 0)
        rc = ch__trip_ran(r->trip, r->out);
    r->has_read = true;
    ch_tuple_unref(r->in);
    ch_tuple_unref(r->out);
    r->in = r->out = NULL;
    if (rc != CH_OK)
        fail_run(w, post, now, rc, "run");
    else
        advance(w, post, now);
}

/* ---- runs ---- */

/* Input i of a replica: of an element, or of those that came along, which all share or each has its own of. NULL: there is none. */
static ch_tensor *input_of(const worker *w, const run *r, int i, int replica)
{
    int before = 0, n = r->f->sent.route->n_inputs, own;

    for (int k = 0; k < r->n_elements; k++) {
        const element *e = &r->element[k];
        int            width = ch_tuple_count(e->got);

        if (i >= e->at && i < e->at + width)
            return ch_value_at(ch_tuple_at(e->got, i - e->at), replica);
        before += i >= e->at ? width : 0;
        n -= width;
    }
    own = r->parcel->n_tensors == n * w->opt.n_devices ? replica * n : 0;
    i += own - before; /* less than 0 if elements stand at one place */
    return i >= 0 && i < r->parcel->n_tensors ? r->parcel->tensor[i] : NULL;
}

/* How many inputs there are, with those of elements; -1: not so many for each replica. */
static int count_inputs(const worker *w, const run *r)
{
    int width = 0, n = r->parcel->n_tensors, want = r->f->sent.route->n_inputs;

    for (int i = 0; i < r->n_elements; i++)
        width += ch_tuple_count(r->element[i].got);
    if (n + width == want)
        return want;
    return n % w->opt.n_devices == 0 && n / w->opt.n_devices + width == want ? want : -1;
}

static ch_status gather_inputs(const worker *w, run *r, ch_tensor **in)
{
    int n = r->f->sent.route->n_inputs;

    for (int k = 0; k < w->opt.n_devices; k++)
        for (int i = 0; i < n; i++) {
            ch_tensor *t = input_of(w, r, i, k);

            if (t == NULL)
                return ch__fail(CH_INVALID_ARGUMENT, "input %d of a step is not there", i);
            in[k * n + i] = t;
            if (i == 0)
                r->rows += t->shape.rank > 0 ? t->shape.dim[0] : 1;
        }
    return CH_OK;
}

static ch_status begin_run(worker *w, run *r)
{
    int         n = r->f->sent.route->n_inputs;
    ch_tensor **in;
    ch_attempt  a = {.step = r->step,
                     .retired = r->retired,
                     .pin = r->pin,
                     .worker = ch__task_name(w->task),
                     .incarnation = r->life,
                     .device = w->opt.device};
    ch_status   rc;

    if (count_inputs(w, r) < 0)
        return ch__fail(CH_INVALID_ARGUMENT, "%d inputs for a step that takes %d",
                        r->parcel->n_tensors, n);
    in = ch__calloc((size_t)(n * w->opt.n_devices) + 1, sizeof(*in));
    if (in == NULL)
        return ch__fail_memory("a step");
    rc = gather_inputs(w, r, in);
    if (rc == CH_OK)
        rc = ch__trip_new(&r->f->sent, &a, w->opt.n_devices, in, &r->trip);
    ch__free(in);
    return rc;
}

static ch_status find_function(const worker *w, run *r)
{
    r->f = ch__map_find(&w->functions, key(r->number_of_function));
    if (r->f == NULL)
        return ch__fail(CH_NOT_FOUND, "this worker knows no function %llu",
                        (unsigned long long)r->number_of_function);
    return CH_OK;
}

/* Up to where calls can be made: elements are read, and the trip begins. */
static ch_status prepare_run(worker *w, run *r, ch_post *post)
{
    ch_status rc = r->f == NULL ? find_function(w, r) : CH_OK;

    if (rc == CH_OK && r->n_elements > 0 && !r->has_read)
        return begin_reading(w, post);
    if (rc == CH_OK && r->ended == 0)
        rc = begin_run(w, r);
    return rc;
}

/* As far as the first run can go now. */
static void advance(worker *w, ch_post *post, int64_t now)
{
    run      *r = w->now;
    ch_status rc = CH_OK;

    if (r == NULL || r->is_over || (r->is_computing && r->trip == NULL))
        return;
    if (r->trip == NULL)
        rc = prepare_run(w, r, post);
    if (rc == CH_OK && r->trip != NULL)
        rc = ask_servers(w, post, now);
    if (rc == CH_OK && !r->is_computing && r->trip != NULL && ch__trip_segment(r->trip) != NULL)
        rc = begin_computing(w, post);
    if (rc != CH_OK)
        fail_run(w, post, now, rc, "run");
    else if (r->ended != 0 || (r->trip != NULL && ch__trip_is_done(r->trip)))
        finish_run(w, post, now);
}

/* Those behind the first that `when` is true of are forgotten; the first, if it is, is ended. */
static void drop_runs(worker *w, bool (*when)(const run *r, const void *arg), const void *arg,
                      ch_post *post, int64_t now)
{
    run *before = w->now;

    while (before != NULL && before->next != NULL) {
        run *r = before->next;

        if (!when(r, arg)) {
            before = r;
            continue;
        }
        before->next = r->next;
        w->last = w->last == r ? before : w->last;
        drop_run(r);
    }
    if (w->now != NULL && !w->now->is_over && when(w->now, arg))
        end_run(w, post, now);
}

static bool is_older(const run *r, const void *life)
{
    return r->life < *(const uint64_t *)life;
}

/* What it was given before it was given up is nobody's any more. */
static ch_status take_life(worker *w, uint64_t life, ch_post *post, int64_t now)
{
    if (life < w->life)
        return ch__fail(CH_ABORTED, "it is for life %llu of this worker, which was given up",
                        (unsigned long long)life);
    if (life > w->life)
        drop_runs(w, is_older, &life, post, now);
    w->life = life;
    return CH_OK;
}

static ch_status take_elements(run *r, const Cohort__WorkerRun *m)
{
    r->element = ch__calloc(m->n_elements + 1, sizeof(*r->element));
    if (r->element == NULL)
        return ch__fail_memory("a step");
    for (size_t i = 0; i < m->n_elements; i++)
        r->element[r->n_elements++] = (element){.stream = m->elements[i]->stream,
                                                .number = m->elements[i]->number,
                                                .at = (int)(m->elements[i]->at & INT32_MAX)};
    return CH_OK;
}

static ch_status take_run(worker *w, const ch_net_event *e, const Cohort__WorkerRun *m,
                          ch_post *post, int64_t now)
{
    ch_status rc = take_life(w, m->life, post, now);
    run      *r = rc == CH_OK ? ch__calloc(1, sizeof(*r)) : NULL;

    if (rc != CH_OK)
        return rc;
    if (r == NULL)
        return ch__fail_memory("a step");
    r->worker = w;
    r->call = e->call;
    r->step = m->step;
    r->number_of_function = m->function;
    r->retired = m->retired;
    r->pin = m->pin;
    r->seed = m->seed;
    r->life = m->life;
    r->number = m->number;
    r->is_silent = m->silent;
    rc = m->n_elements > 0 ? take_elements(r, m) : CH_OK;
    if (rc != CH_OK) {
        drop_run(r);
        return rc;
    }
    r->parcel = ch__parcel_ref(e->parcel);
    *(w->last != NULL ? &w->last->next : &w->now) = r;
    w->last = r;
    return CH_OK;
}

/* ---- dropping ---- */

static void answer_done(ch_call_id call, uint32_t method, ch_post *post)
{
    Cohort__WorkerDone m;
    ch_parcel         *p = NULL;
    ch_status          rc;

    cohort__worker_done__init(&m);
    rc = ch__speak(method, &m.base, 0, NULL, &p);
    if (rc == CH_OK)
        ch__post_answer(post, call, p);
    else
        ch__refuse(post, call, rc, "answer");
}

static void drop_things(worker *w, const Cohort__WorkerDrop *m)
{
    for (size_t i = 0; i < m->n_functions; i++) {
        function *f = ch__map_take(&w->functions, key(m->functions[i]));

        if (f != NULL)
            drop_function(f);
    }
    for (size_t i = 0; i < m->n_streams; i++)
        ch__stream_free(ch__map_take(&w->streams, key(m->streams[i])));
}

static bool is_listed(size_t n, const uint64_t *list, uint64_t wanted)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] == wanted)
            return true;
    return false;
}

/* Whether what runs needs what is to be dropped, or is that and computes still. */
static bool is_in_use(const worker *w, const Cohort__WorkerDrop *m)
{
    const run *r = w->now;
    bool       used =
        r != NULL && (r->is_over || (r->f != NULL && is_listed(m->n_functions, m->functions,
                                                               r->number_of_function)));

    for (int i = 0; r != NULL && i < r->n_elements; i++)
        used |= is_listed(m->n_streams, m->streams, r->element[i].stream);
    return used;
}

/* Those that can be done now; the others when the run ends. */
static void do_drops(worker *w, ch_post *post)
{
    int n = 0;

    for (int i = 0; i < w->n_drops; i++) {
        drop                      d = w->drop[i];
        ProtobufCMessage         *heard = NULL;
        const Cohort__WorkerDrop *m = NULL;

        if (ch__hear(d.parcel, &cohort__worker_drop__descriptor, &heard) == CH_OK)
            m = (const void *)heard;
        if (m == NULL || is_in_use(w, m)) { /* without memory: later */
            w->drop[n++] = d;
        } else {
            drop_things(w, m);
            answer_done(d.call, CH_WORKER_DROP, post);
            ch__parcel_unref(d.parcel);
        }
        ch__message_free(heard);
    }
    w->n_drops = n;
}

static bool is_dropped(const run *r, const void *arg)
{
    const Cohort__WorkerDrop *m = arg;

    return is_listed(m->n_steps, m->steps, r->step);
}

static ch_status take_drop(worker *w, const ch_net_event *e, const Cohort__WorkerDrop *m,
                           ch_post *post, int64_t now)
{
    if (!ch__grow((void **)&w->drop, &w->cap_drops, w->n_drops + 1, sizeof(*w->drop)))
        return ch__fail_memory("a drop");
    w->drop[w->n_drops++] = (drop){e->call, ch__parcel_ref(e->parcel)};
    drop_runs(w, is_dropped, m, post, now);
    do_drops(w, post);
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

/* It may have been carried out: made again, it is answered as it was the first time. After a while another worker may have more luck. */
static void on_lost(worker *w, exchange *x, ch_post *post, int64_t now)
{
    x->is_open = false;
    if (now - x->since <= w->opt.patience_ns) {
        ch__post_timer(post, x->id, now + w->opt.retry_ns);
        return;
    }
    w->now->unreachable = x->server + 1;
    finish_run(w, post, now);
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
        on_lost(w, x, post, now);
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

static void answer_ping(const worker *w, ch_call_id call, ch_post *post)
{
    Cohort__WorkerDone m;
    ch_parcel         *p = NULL;
    size_t             n = 0;
    uint64_t          *step;
    ch_status          rc;

    for (const run *r = w->now; r != NULL; r = r->next)
        n++;
    step = ch__calloc(n + 1, sizeof(*step));
    cohort__worker_done__init(&m);
    m.steps = step;
    for (const run *r = w->now; r != NULL && step != NULL; r = r->next)
        if (!r->is_over)
            step[m.n_steps++] = r->step;
    rc = step != NULL ? ch__speak(CH_WORKER_PING, &m.base, 0, NULL, &p)
                      : ch__fail_memory("an answer");
    if (rc == CH_OK)
        ch__post_answer(post, call, p);
    else
        ch__refuse(post, call, rc, "ping");
    ch__free(step);
}

static const ProtobufCMessageDescriptor *type_of(uint32_t method)
{
    switch (method) {
    case CH_WORKER_RUN:
        return &cohort__worker_run__descriptor;
    case CH_WORKER_FUNCTION:
        return &cohort__worker_function__descriptor;
    case CH_WORKER_STREAM:
        return &cohort__worker_stream__descriptor;
    case CH_WORKER_DROP:
        return &cohort__worker_drop__descriptor;
    case CH_WORKER_PING:
        return &cohort__worker_ping__descriptor;
    default:
        return NULL;
    }
}

/* Answers at once, or takes something that is answered later. */
static ch_status take_call(worker *w, const ch_net_event *e, const void *m, ch_post *post,
                           int64_t now)
{
    ch_status rc = CH_OK;

    switch (e->parcel->method) {
    case CH_WORKER_RUN:
        return take_run(w, e, m, post, now);
    case CH_WORKER_DROP:
        return take_drop(w, e, m, post, now);
    case CH_WORKER_PING:
        answer_ping(w, e->call, post);
        return CH_OK;
    case CH_WORKER_FUNCTION:
        rc = take_function(w, e->parcel, m);
        break;
    default:
        rc = take_stream(w, e->parcel, m);
    }
    if (rc == CH_OK)
        answer_done(e->call, e->parcel->method, post);
    return rc;
}

static void on_call(worker *w, const ch_net_event *e, ch_post *post, int64_t now)
{
    const ProtobufCMessageDescriptor *type = type_of(e->parcel->method);
    ProtobufCMessage                 *m = NULL;
    ch_status                         rc;

    rc = type != NULL
             ? ch__hear(e->parcel, type, &m)
             : ch__fail(CH_UNIMPLEMENTED, "a worker knows no method %u", e->parcel->method);
    if (rc == CH_OK)
        rc = take_call(w, e, m, post, now);
    if (rc != CH_OK)
        ch__refuse(post, e->call, rc, "call");
    else if (w->now != NULL && w->now->f == NULL)
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
    for (int i = 0; i < w->streams.cap; i++)
        ch__stream_free(w->streams.entry[i].value);
    for (int i = 0; i < w->n_drops; i++)
        ch__parcel_unref(w->drop[i].parcel);
    ch__free(w->drop);
    ch__map_drop(&w->functions);
    ch__map_drop(&w->streams);
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
    (void)incarnation;
    if (rc != CH_OK)
        return rc;
    w->opt = *opt;
    w->opt.call_ns = or_else(opt->call_ns, 2000000000);
    w->opt.retry_ns = or_else(opt->retry_ns, 20000000);
    w->opt.patience_ns = or_else(opt->patience_ns, 5000000000);
    w->task = t;
    if (opt->n_devices > 1)
        rc = ch__group_new(&(ch_group_options){.n = opt->n_devices}, &w->group);
    if (rc != CH_OK) {
        ch__free(w);
        return rc;
    }
    *self = w;
    return CH_OK;
}
