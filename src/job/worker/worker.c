/* job/worker/worker.c -- a worker: what it knows, what it hears, and whose turn it is.   SPDX-License-Identifier: Apache-2.0 */
#include "job/worker.h"

#include <stdio.h>

#include "base/mem.h"
#include "base/protobuf.h"
#include "collective/group.h"
#include "graph/function.h"
#include "job/worker/per_worker.h"
#include "job/worker/run.h"
#include "tensor/tensor.h"

/* A call that asked to drop something. */
typedef struct drop {
    ch_call_id call;
    ch_parcel *parcel;
} drop;

typedef struct worker {
    ch_workplace   place;
    uint64_t       life; /* the coordinator's number for this life, as far as it is known */
    ch_worker_run *now, *last; /* first in the list is the one that runs */
    int            n_drops, cap_drops;
    drop          *drop; /* that wait until what runs can be ended */
} worker;

static bool is_bytes(const ch_tensor *t)
{
    return t->dtype == CH_U8 && t->contiguous;
}

/* ---- functions ---- */

static int shards_of(const ch_sent_route *s, const ch_route_remote *r)
{
    return s->variable[r->variable[0]].n_shards;
}

static void drop_function(ch_worker_function *f)
{
    const ch_route *r = f->sent.route;

    for (int i = 0; f->segment != NULL && i < r->n_segments; i++)
        ch_function_unref(f->segment[i]);
    for (int i = 0; f->is_defined != NULL && i < r->n_remotes; i++)
        ch__free(f->is_defined[i]);
    ch__free(f->segment);
    ch__free(f->is_defined);
    ch__free(f->server);
    ch__free(f->kept);
    ch__route_free(f->sent.route);
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

/* The variables of its own that a function uses, which begin to be there with it. */
static ch_status take_kept(ch_worker_function *f, const Cohort__WorkerFunction *m)
{
    f->kept = ch__calloc(m->n_kept + 1, sizeof(*f->kept));
    if (f->kept == NULL)
        return ch__fail_memory("a function");
    f->n_kept = (int)m->n_kept;
    for (int i = 0; i < f->n_kept; i++) {
        f->kept[i] =
            (ch_worker_kept){m->kept[i]->variable, m->kept[i]->read, m->kept[i]->written};
        f->n_read += f->kept[i].is_read;
        f->n_written += f->kept[i].is_written;
    }
    if (f->n_read > f->sent.route->n_inputs || f->n_written > f->sent.route->n_outputs)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "a function of %d inputs and %d results reads %d variables of this "
                        "worker's, and writes %d",
                        f->sent.route->n_inputs, f->sent.route->n_outputs, f->n_read,
                        f->n_written);
    return CH_OK;
}

static ch_status begin_kept(worker *w, const ch_worker_function *f, ch_tensor *const *initial)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < f->n_kept && rc == CH_OK; i++) {
        ch_key   key = ch__key(f->kept[i].number);
        ch_kept *k = NULL;

        if (ch__map_find(&w->place.kept, key) != NULL)
            continue; /* of another function */
        rc = ch__kept_new(w->place.opt.device[0], initial[i], &k);
        if (rc == CH_OK)
            rc = ch__map_set(&w->place.kept, key, k);
        if (rc != CH_OK)
            ch__kept_free(k);
    }
    return rc;
}

static ch_status take_function(worker *w, const ch_parcel *p, const Cohort__WorkerFunction *m)
{
    ch_worker_function *f;
    ch_status           rc;

    if (m->function == 0 || p->n_tensors < 1 || (size_t)p->n_tensors != 1 + m->n_kept ||
        !is_bytes(p->tensor[0]))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "a function comes with a number, a route, as bytes, and a value for "
                        "each variable of the worker's own");
    if (ch__map_find(&w->place.functions, ch__key(m->function)) != NULL)
        return CH_OK; /* the call came twice */
    f = ch__calloc(1, sizeof(*f));
    if (f == NULL)
        return ch__fail_memory("a function");
    rc = ch__route_decode(p->tensor[0]->data, ch_tensor_bytes(p->tensor[0]), &f->sent);
    if (rc == CH_OK)
        rc = prepare_function(f, m);
    if (rc == CH_OK)
        rc = take_kept(f, m);
    if (rc == CH_OK)
        rc = begin_kept(w, f, p->tensor + 1);
    if (rc == CH_OK)
        rc = ch__map_set(&w->place.functions, ch__key(m->function), f);
    if (rc != CH_OK && f->sent.route != NULL)
        drop_function(f);
    else if (rc != CH_OK)
        ch__free(f);
    return rc;
}

/* ---- streams ---- */

static ch_status take_stream(worker *w, const ch_parcel *p, const Cohort__WorkerStream *m)
{
    char              name[48];
    ch_stream        *s = NULL;
    ch_stream_options o = {.name = name,
                           .reader = m->reader,
                           .pass = m->pass,
                           .first = m->first,
                           .n_replicas = w->place.opt.n_devices,
                           .device = w->place.opt.device};
    ch_status         rc;

    if (m->stream == 0 || p->n_tensors < 1 || p->n_tensors > 2 || !is_bytes(p->tensor[0]) ||
        !is_bytes(p->tensor[p->n_tensors - 1]))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "a stream comes with a number and a dataset, as bytes");
    if (ch__map_find(&w->place.streams, ch__key(m->stream)) != NULL)
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
        rc = ch__map_set(&w->place.streams, ch__key(m->stream), s);
    if (rc != CH_OK)
        ch__stream_free(s);
    return rc;
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
        ch_worker_function *f = ch__map_take(&w->place.functions, ch__key(m->functions[i]));

        if (f != NULL)
            drop_function(f);
    }
    for (size_t i = 0; i < m->n_streams; i++)
        ch__stream_free(ch__map_take(&w->place.streams, ch__key(m->streams[i])));
    for (size_t i = 0; i < m->n_kept; i++)
        ch__kept_free(ch__map_take(&w->place.kept, ch__key(m->kept[i])));
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

/* ---- runs ---- */

/* Those behind the first that `when` is true of are forgotten; the first, if it is, is ended. */
static void drop_runs(worker *w, ch_post                                                *post,
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
        ch__worker_run_end(w->now, post);
}

static bool is_older(const ch_worker_run *r, const void *life)
{
    return r->life < *(const uint64_t *)life;
}

static void reset_kept(worker *w)
{
    for (int i = 0; i < w->place.kept.cap; i++)
        if (w->place.kept.entry[i].value != NULL)
            ch__kept_reset(w->place.kept.entry[i].value);
    ch__map_drop(&w->place.counted);
    w->place.counted = (ch_map){0};
}

/* What it was given before it was given up is nobody's any more, and what it kept is as it began. */
static ch_status take_life(worker *w, uint64_t life, ch_post *post)
{
    if (life < w->life)
        return ch__fail(CH_ABORTED, "it is for life %llu of this worker, which was given up",
                        (unsigned long long)life);
    if (life > w->life) {
        drop_runs(w, post, is_older, &life);
        reset_kept(w);
    }
    w->life = life;
    return CH_OK;
}

static ch_status take_run(worker *w, const ch_net_event *e, const Cohort__WorkerRun *m,
                          ch_post *post)
{
    ch_worker_run *r = NULL;
    ch_status      rc = take_life(w, m->life, post);

    if (rc == CH_OK)
        rc = ch__worker_run_new(&w->place, e->call, e->parcel, m, &r);
    if (rc != CH_OK)
        return rc;
    *(w->last != NULL ? &w->last->next : &w->now) = r;
    w->last = r;
    return CH_OK;
}

/* A step that has sent an update is run to its end: it can not be cancelled any more. */
static bool is_dropped(const ch_worker_run *r, const void *arg)
{
    const Cohort__WorkerDrop *m = arg;

    return !r->has_updated && is_listed(m->n_steps, m->steps, r->step);
}

static ch_status take_drop(worker *w, const ch_net_event *e, const Cohort__WorkerDrop *m,
                           ch_post *post)
{
    if (!ch__grow((void **)&w->drop, &w->cap_drops, w->n_drops + 1, sizeof(*w->drop)))
        return ch__fail_memory("a drop");
    w->drop[w->n_drops++] = (drop){e->call, ch__parcel_ref(e->parcel)};
    drop_runs(w, post, is_dropped, m);
    do_drops(w, post);
    return CH_OK;
}

static bool is_asked_by(const ch_worker_run *r, const void *call)
{
    return r->call == *(const ch_call_id *)call;
}

/* ---- events ---- */

static void answer_ping(const worker *w, ch_call_id call, ch_post *post)
{
    Cohort__WorkerDone m;
    ch_parcel         *p = NULL;
    size_t             n = 0;
    uint64_t          *step;
    ch_status          rc;

    for (const ch_worker_run *r = w->now; r != NULL; r = r->next)
        n++;
    step = ch__calloc(n + 1, sizeof(*step));
    cohort__worker_done__init(&m);
    m.steps = step;
    m.busy = w->now != NULL;
    for (const ch_worker_run *r = w->now; r != NULL && step != NULL; r = r->next)
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

static ch_status answer_read(worker *w, const ch_net_event *e, const Cohort__WorkerRead *m,
                             ch_post *post)
{
    Cohort__WorkerDone done;
    ch_parcel         *p = NULL;
    ch_status          rc = take_life(w, m->life, post);
    const ch_kept     *k = ch__map_find(&w->place.kept, ch__key(m->variable));
    ch_tensor         *value = k != NULL ? ch__kept_value(k) : NULL;

    if (rc != CH_OK)
        return rc;
    cohort__worker_done__init(&done);
    rc = ch__speak(CH_WORKER_READ, &done.base, value != NULL,
                   &(ch_tensor *){ch_tensor_ref(value)}, &p);
    if (rc == CH_OK)
        ch__post_answer(post, e->call, p);
    return rc;
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
    case CH_WORKER_READ:
        return &cohort__worker_read__descriptor;
    default:
        return NULL;
    }
}

/* Answers at once, or takes something that is answered later. */
static ch_status take_call(worker *w, const ch_net_event *e, const void *m, ch_post *post)
{
    ch_status rc = CH_OK;

    switch (e->parcel->method) {
    case CH_WORKER_RUN:
        return take_run(w, e, m, post);
    case CH_WORKER_DROP:
        return take_drop(w, e, m, post);
    case CH_WORKER_PING:
        answer_ping(w, e->call, post);
        return CH_OK;
    case CH_WORKER_READ:
        return answer_read(w, e, m, post);
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
        rc = take_call(w, e, m, post);
    if (rc != CH_OK)
        ch__refuse(post, e->call, rc, "call");
    else if (w->now != NULL && w->now->f == NULL)
        ch__worker_run_advance(w->now, post, now);
    ch__message_free(m);
}

/* Behind every event: when the first one has ended, what it used can be dropped, and the next one begins. */
static void settle(worker *w, ch_post *post, int64_t now)
{
    while (w->now != NULL && ch__worker_run_has_ended(w->now)) {
        ch_worker_run *ended = w->now;

        w->now = ended->next;
        if (w->now == NULL)
            w->last = NULL;
        ch__worker_run_free(ended);
        do_drops(w, post);
        if (w->now != NULL)
            ch__worker_run_advance(w->now, post, now);
    }
}

static void on_event(void *self, const ch_net_event *e, int64_t now, ch_post *post)
{
    worker *w = self;

    switch (e->kind) {
    case CH_EVENT_CALL:
        on_call(w, e, post, now);
        break;
    case CH_EVENT_CANCEL: /* nobody waits for it any more */
        drop_runs(w, post, is_asked_by, &e->call);
        break;
    case CH_EVENT_ANSWER:
        if (w->now != NULL)
            ch__worker_run_answered(w->now, e, post, now);
        break;
    case CH_EVENT_TIMER:
        if (w->now != NULL)
            ch__worker_run_timer(w->now, e->id, post, now);
        break;
    case CH_EVENT_WORK:
        ch__worker_run_computed(w->now, post, now);
        break;
    }
    settle(w, post, now);
}

static void close_worker(void *self)
{
    worker *w = self;

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
        ch__parcel_unref(w->drop[i].parcel);
    ch__free(w->drop);
    for (int i = 0; i < w->place.kept.cap; i++)
        ch__kept_free(w->place.kept.entry[i].value);
    ch__map_drop(&w->place.kept);
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
