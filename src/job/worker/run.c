/* job/worker/run.c -- one run of a step on a worker (run.h).
 *
 * ch__worker_run_advance does everything that can be done now: it begins to read elements,
 * sends calls to servers, begins to compute a segment, or replies. The events of the worker
 * call it again: elements were read or a segment was computed (ch__worker_run_computed), a call
 * to a server has ended (ch__worker_run_replied). A run that is over has no calls left.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/worker/run.h"

#include <stdio.h>

#include "base/mem.h"
#include "graph/run.h"
#include "job/worker/per_worker.h"
#include "tensor/tensor.h"

/* A call to a server. Created by add_call, owned by the list of retried calls, and freed when
 * the call or the run has ended. */
typedef struct server_call {
    ch_retry            retry; /* first */
    int                 server;
    ch_step_exec_call  *call; /* NULL: it defines a graph, of: */
    int                 remote, shard;
    struct server_call *update; /* that needs the graph, and is not sent before it is defined */
    int n_missing;              /* graphs that this update needs and the server has not yet */
} server_call;

/* ---- its life ---- */

static ch_status take_elements(ch_worker_run *r, const Cohort__WorkerRun *m)
{
    r->element = ch__calloc(m->n_elements + 1, sizeof(*r->element));
    if (r->element == NULL)
        return ch__fail_memory("a step");
    for (size_t i = 0; i < m->n_elements; i++)
        r->element[r->n_elements++] =
            (ch_worker_element){.stream = m->elements[i]->stream,
                                .number = m->elements[i]->number,
                                .at = (int)(m->elements[i]->at & INT32_MAX)};
    return CH_OK;
}

ch_status ch__worker_run_new(ch_run_env *place, ch_call_id call, ch_message *p,
                             const Cohort__WorkerRun *m, ch_worker_run **out)
{
    ch_worker_run *r = ch__calloc(1, sizeof(*r));
    ch_status      rc;

    if (r == NULL)
        return ch__fail_memory("a step");
    r->place = place;
    r->call = call;
    r->step = m->step;
    r->number_of_function = m->function;
    r->retired = m->retired;
    r->snapshot = m->snapshot;
    r->seed = m->seed;
    r->registration = m->registration;
    r->number = m->number;
    r->is_silent = m->silent;
    rc = m->n_elements > 0 ? take_elements(r, m) : CH_OK;
    if (rc != CH_OK) {
        ch__worker_run_free(r);
        return rc;
    }
    r->message = ch__message_ref(p);
    *out = r;
    return CH_OK;
}

void ch__worker_run_free(ch_worker_run *r)
{
    for (int i = 0; i < r->n_elements; i++)
        ch_tuple_unref(r->element[i].got);
    ch__free(r->element);
    ch__step_exec_free(r->exec);
    ch_tuple_unref(r->in);
    ch_tuple_unref(r->out);
    ch__message_unref(r->message);
    ch__free(r);
}

/* ---- how it ends ---- */

static void free_call(ch_retry *retry)
{
    ch__message_unref(retry->message);
    ch__free(retry);
}

void ch__worker_run_end(ch_worker_run *r, ch_outbox *outbox)
{
    ch_retry *call;

    r->is_over = true;
    atomic_store_explicit(&r->stop, true, memory_order_relaxed);
    while ((call = ch__retries_cancel_to(&r->place->retries, NULL, outbox)) != NULL)
        free_call(call);
}

static void fail(ch_worker_run *r, ch_outbox *outbox, ch_status rc, const char *op)
{
    ch__reply_error(outbox, r->call, rc, op);
    ch__worker_run_end(r, outbox);
}

static void refuse(ch_worker_run *r, ch_outbox *outbox, const ch_fault *why)
{
    ch__outbox_reply_error(outbox, r->call, why);
    ch__worker_run_end(r, outbox);
}

/* A place of a stream that it read, if there is a new one: behind the results. */
static ch_status add_place(const ch_worker_run *r, Cohort__WorkerReply *m, ch_tensor **out)
{
    for (int i = 0; i < r->n_elements; i++) {
        const void *bytes = NULL;
        size_t      n = 0;

        if (r->element[i].number % CH_STREAM_POSITIONS != 0 ||
            !ch__stream_position(r->element[i].from, &m->position_number, &bytes, &n))
            continue;
        m->position_stream = r->element[i].stream;
        return ch_tensor_copy_of(CH_U8, ch_shape_of((int64_t)n), bytes, out);
    }
    return CH_OK;
}

/* Those of the step, and not what it assigns to variables of the worker's own. */
static int count_results(const ch_worker_run *r)
{
    return r->f->sent.plan->n_outputs - r->f->n_written;
}

static ch_status speak_results(const ch_worker_run *r, ch_message **out)
{
    int         n = r->is_silent || r->ended != 0 || r->unreachable != 0 ? 0 : count_results(r);
    int         n_replicas = r->place->opt.n_devices;
    ch_tensor **t = ch__calloc((size_t)(n * n_replicas) + 1, sizeof(*t));
    Cohort__WorkerReply m;
    ch_status           rc;

    if (t == NULL)
        return ch__fail_memory("an answer");
    cohort__worker_reply__init(&m);
    m.replicas = (uint32_t)n_replicas;
    m.ended_stream = r->ended;
    m.unreachable = (uint32_t)r->unreachable;
    rc = add_place(r, &m, &t[n * n_replicas]);
    for (int k = 0; k < n_replicas && rc == CH_OK; k++)
        for (int i = 0; i < n; i++)
            t[k * n + i] = ch_tensor_ref(ch__step_exec_result(r->exec, i, k));
    if (rc == CH_OK)
        rc = ch__message_pack(CH_WORKER_RUN, &m.base, n * n_replicas + (m.position_stream != 0),
                              t, out);
    ch__free(t);
    return rc;
}

static ch_per_worker_var *find_per_worker(const ch_worker_run *r, int i)
{
    return ch__map_find(&r->place->per_worker, ch__key(r->f->per_worker[i].number));
}

/* What it assigned to variables of the worker's own. Replicas have one value for it, as they have for a server's. */
static ch_status prepare_per_worker(const ch_worker_run *r)
{
    int       at = count_results(r);
    ch_status rc = CH_OK;

    for (int i = 0; i < r->f->n_per_worker && rc == CH_OK; i++)
        if (r->f->per_worker[i].is_written) {
            ch_per_worker_var *k = find_per_worker(r, i);

            if (k != NULL)
                rc = ch__per_worker_prepare(k, ch__step_exec_result(r->exec, at, 0));
            at++;
        }
    return rc;
}

static bool is_retired(void *arg, ch_key step, void *value)
{
    const ch_worker_run *r = arg;

    (void)value;
    return step.a < r->retired;
}

/* A step that comes again, since its answer was lost, has changed it already. */
static ch_status prepare_once(ch_worker_run *r, bool *is_first)
{
    enum { MANY = 64 };
    ch_map   *counted = &r->place->counted;
    ch_status rc;

    *is_first = r->f->n_written > 0 && ch__map_find(counted, ch__key(r->step)) == NULL;
    if (!*is_first)
        return CH_OK;
    rc = prepare_per_worker(r);
    if (counted->n >= MANY)
        ch__map_sift(counted, is_retired, r);
    return rc == CH_OK ? ch__map_set(counted, ch__key(r->step), r->place) : rc;
}

static void commit_per_worker(const ch_worker_run *r)
{
    for (int i = 0; i < r->f->n_per_worker; i++)
        if (r->f->per_worker[i].is_written && find_per_worker(r, i) != NULL)
            ch__per_worker_commit(find_per_worker(r, i));
}

/* It has ended, well or with a reason why not, that is no error. */
static void finish(ch_worker_run *r, ch_outbox *outbox)
{
    ch_message *p = NULL;
    bool        is_done = r->exec != NULL && ch__step_exec_is_done(r->exec), changes = false;
    ch_status   rc = speak_results(r, &p);

    if (rc == CH_OK && is_done)
        rc = prepare_once(r, &changes);
    if (rc != CH_OK) {
        ch__message_unref(p);
        fail(r, outbox, rc, "answer");
        return;
    }
    if (changes)
        commit_per_worker(r);
    ch__outbox_reply(outbox, r->call, p);
    ch__worker_run_end(r, outbox);
}

/* ---- its elements ---- */

/* Outside the turn: reading takes long. */
static void read_elements(void *arg)
{
    ch_worker_run *r = arg;

    r->rc = CH_OK;
    for (int i = 0; i < r->n_elements && r->rc == CH_OK && r->ended == 0 &&
                    !atomic_load_explicit(&r->stop, memory_order_relaxed);
         i++) {
        ch_worker_element *e = &r->element[i];

        r->rc = ch__stream_element(e->from, e->number, &e->got);
        if (r->rc == CH_OK && e->got == NULL)
            r->ended = e->stream;
    }
    if (r->rc != CH_OK)
        (void)ch__fault_record(&r->fault, r->rc, -1, NULL);
}

static ch_status begin_reading(ch_worker_run *r, ch_outbox *outbox)
{
    for (int i = 0; i < r->n_elements; i++) {
        ch_worker_element *e = &r->element[i];

        e->from = ch__map_find(&r->place->streams, ch__key(e->stream));
        if (e->from == NULL)
            return ch__fail(CH_NOT_FOUND, "this worker knows no stream %llu",
                            (unsigned long long)e->stream);
    }
    r->is_computing = true;
    ch__fault_clear(&r->fault);
    ch__outbox_work(outbox, 1, read_elements, NULL, r);
    return CH_OK;
}

/* ---- its inputs ---- */

/* Those of the step, without variables of the worker's own. */
static int plain_inputs(const ch_worker_run *r)
{
    return r->f->sent.plan->n_inputs - r->f->n_read;
}

/* Input i of a replica: of an element, or of those that came along, which all share or each has its own of. NULL: there is none. */
static ch_tensor *input_of(const ch_worker_run *r, int i, int replica)
{
    int before = 0, n = plain_inputs(r), own;

    for (int k = 0; k < r->n_elements; k++) {
        const ch_worker_element *e = &r->element[k];
        int                      width = ch_tuple_count(e->got);

        if (i >= e->at && i < e->at + width)
            return ch_value_at(ch_tuple_at(e->got, i - e->at), replica);
        before += i >= e->at ? width : 0;
        n -= width;
    }
    own = r->message->n_tensors == n * r->place->opt.n_devices ? replica * n : 0;
    i += own - before; /* less than 0 if elements stand at one place */
    return i >= 0 && i < r->message->n_tensors ? r->message->tensor[i] : NULL;
}

/* How many inputs there are, with those of elements; -1: not so many for each replica. */
static int count_inputs(const ch_worker_run *r)
{
    int width = 0, n = r->message->n_tensors, n_replicas = r->place->opt.n_devices;
    int want = plain_inputs(r);

    for (int i = 0; i < r->n_elements; i++)
        width += ch_tuple_count(r->element[i].got);
    if (n + width == want)
        return want;
    return n % n_replicas == 0 && n / n_replicas + width == want ? want : -1;
}

static int64_t rows_of(const ch_step_plan *plan, const ch_tensor *t)
{
    if (t->shape.rank == 0)
        return 1;
    return plan->rows_are_split && t->shape.dim[0] > 0 ? t->shape.dim[0] - 1 : t->shape.dim[0];
}

static ch_status gather_inputs(ch_worker_run *r, ch_tensor **in)
{
    int n = r->f->sent.plan->n_inputs;

    for (int k = 0; k < r->place->opt.n_devices; k++)
        for (int i = 0; i < plain_inputs(r); i++) {
            ch_tensor *t = input_of(r, i, k);

            if (t == NULL)
                return ch__fail(CH_INVALID_ARGUMENT, "input %d of a step is not there", i);
            in[k * n + i] = t;
            if (i == r->f->sent.plan->rows)
                r->rows += rows_of(r->f->sent.plan, t);
        }
    return CH_OK;
}

/* Behind them the variables of the worker's own, which replicas share. */
static ch_status gather_per_worker(const ch_worker_run *r, ch_tensor **in)
{
    int n = r->f->sent.plan->n_inputs, at = plain_inputs(r);

    for (int i = 0; i < r->f->n_per_worker; i++) {
        const ch_per_worker_var *per_worker = find_per_worker(r, i);

        if (per_worker == NULL)
            return ch__fail(CH_NOT_FOUND, "this worker has no variable %llu of its own",
                            (unsigned long long)r->f->per_worker[i].number);
        for (int k = 0; r->f->per_worker[i].is_read && k < r->place->opt.n_devices; k++)
            in[k * n + at] = ch__per_worker_value(per_worker);
        at += r->f->per_worker[i].is_read;
    }
    return CH_OK;
}

static ch_status begin_exec(ch_worker_run *r)
{
    int              n = r->f->sent.plan->n_inputs, n_replicas = r->place->opt.n_devices;
    ch_tensor      **in;
    ch_step_identity a = {.step = r->step,
                          .retired = r->retired,
                          .snapshot = r->snapshot,
                          .worker = ch__task_name(r->place->task),
                          .registration = r->registration,
                          .device = r->place->opt.device};
    ch_status        rc;

    if (count_inputs(r) < 0)
        return ch__fail(CH_INVALID_ARGUMENT, "%d inputs for a step that takes %d",
                        r->message->n_tensors, plain_inputs(r));
    in = ch__calloc((size_t)(n * n_replicas) + 1, sizeof(*in));
    if (in == NULL)
        return ch__fail_memory("a step");
    rc = gather_inputs(r, in);
    if (rc == CH_OK)
        rc = gather_per_worker(r, in);
    if (rc == CH_OK)
        rc = ch__step_exec_new(&r->f->sent, &a, n_replicas, in, &r->exec);
    ch__free(in);
    return rc;
}

/* ---- its calls to servers ---- */

/* Additional ns for a call that moves and changes so many bytes: it must not be made again only
 * because it is large, on a machine that is busy too. */
static int64_t ns_for(double bytes)
{
    static const double ns_per_byte = 20, most = 3600e9;

    return (int64_t)(bytes * ns_per_byte < most ? bytes * ns_per_byte : most);
}

/* Adds a call to a server and does not send it yet. Takes the message over, on an error too.
 *
 * The server may have carried out a call that was lost: repeated, it has the same reply. When
 * the patience is used up, the step is given back to the coordinator, because another worker
 * may reach the server. */
static ch_status add_call(ch_worker_run *r, int server, ch_message *message, double bytes,
                          server_call **out)
{
    const ch_worker_options *opt = &r->place->opt;
    server_call             *c = ch__calloc(1, sizeof(*c));
    char                     name[32];
    ch_status                rc = CH_OK;

    if (c == NULL) {
        ch__message_unref(message);
        return ch__fail_memory("a call");
    }
    (void)snprintf(name, sizeof(name), "ps/%d", server);
    c->server = server;
    c->retry = (ch_retry){.id = ++r->place->n_ids,
                          .link = ch__task_link(r->place->task, name),
                          .incarnation = r->f->server[server],
                          .message = message,
                          .policy = {.timeout = opt->call_ns + ns_for(bytes),
                                     .pause = opt->retry_ns,
                                     .patience = opt->patience_ns + 2 * ns_for(bytes)}};
    rc = c->retry.link == NULL ? ch__fail_memory("a link")
                               : ch__retries_add(&r->place->retries, &c->retry);
    if (rc != CH_OK) {
        free_call(&c->retry);
        return rc;
    }
    *out = c;
    return CH_OK;
}

static void send(ch_worker_run *r, server_call *c, ch_outbox *outbox, int64_t now)
{
    r->has_updated |= c->retry.message->method == CH_PS_UPDATE;
    ch__retry_call(&c->retry, now, outbox);
}

/* A graph that a server needs before it can apply an update. */
static ch_status speak_graph(const ch_worker_function *f, int remote, int shard,
                             ch_message **out)
{
    const ch_remote_part *u = &f->sent.plan->remote[remote];
    Cohort__PsDefine      m;
    ch_graph             *g = NULL;
    void                 *bytes = NULL;
    uint64_t             *number = ch__calloc((size_t)u->n_variables, sizeof(*number));
    ch_status             rc = number == NULL ? ch__fail_memory("a call") : CH_OK;

    cohort__ps_define__init(&m);
    if (rc == CH_OK)
        rc = ch__step_exec_update(&f->sent, remote, shard, &m.function, &g);
    if (rc == CH_OK)
        rc = ch_graph_encode(g, &bytes, &m.graph.len);
    m.graph.data = bytes;
    m.n_variables = (size_t)u->n_variables;
    m.variables = number;
    for (int i = 0; i < u->n_variables && rc == CH_OK; i++)
        number[i] = f->sent.variable[u->variable[i]].shard[shard].variable;
    if (rc == CH_OK)
        rc = ch__message_pack(CH_PS_DEFINE, &m.base, 0, NULL, out);
    ch_graph_unref(g);
    ch_bytes_free(bytes);
    ch__free(number);
    return rc;
}

/* Makes a server define the graph of a part of an update, which is sent after that. */
static ch_status define_graph(ch_worker_run *r, server_call *update, struct ch_step_exec_part p,
                              ch_outbox *outbox, int64_t now)
{
    ch_message  *message = NULL;
    server_call *c = NULL;
    ch_status    rc = speak_graph(r->f, p.remote, p.shard, &message);

    if (rc == CH_OK)
        rc = add_call(r, update->server, message, 0, &c);
    if (rc != CH_OK)
        return rc;
    c->remote = p.remote;
    c->shard = p.shard;
    c->update = update;
    update->n_missing++;
    send(r, c, outbox, now);
    return CH_OK;
}

static bool is_missing(const ch_worker_run *r, struct ch_step_exec_part p)
{
    return r->f->sent.plan->remote[p.remote].kind == CH_REMOTE_UPDATE &&
           !r->f->is_defined[p.remote][p.shard];
}

static ch_status ask_servers(ch_worker_run *r, ch_outbox *outbox, int64_t now)
{
    ch_step_exec_call *const *call = NULL;
    int                       n = 0;
    ch_status                 rc = ch__step_exec_next_calls(r->exec, &n, &call);

    for (int i = 0; i < n && rc == CH_OK; i++) {
        server_call *c = NULL;

        rc =
            add_call(r, call[i]->server, ch__message_ref(call[i]->message), call[i]->bytes, &c);
        if (rc == CH_OK)
            c->call = call[i];
        for (int k = 0; k < call[i]->n && rc == CH_OK; k++)
            if (is_missing(r, call[i]->part[k]))
                rc = define_graph(r, c, call[i]->part[k], outbox, now);
        if (rc == CH_OK && c->n_missing == 0)
            send(r, c, outbox, now);
    }
    return rc;
}

/* ---- its segments ---- */

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
    static const ch_run_ops  ops = {.resource = no_resource};
    ch_worker_run           *r = arg;
    const ch_worker_options *opt = &r->place->opt;
    const ch_local_part     *s = ch__step_exec_local_part(r->exec);

    r->rc = ch__run(&(ch_run){.function = r->f->local_part[s - r->f->sent.plan->local_part],
                              .owner = r->f,
                              .ops = &ops,
                              .n_local = opt->n_devices,
                              .device = opt->device,
                              .n_replicas = opt->n_devices,
                              .in = r->in,
                              .has_rows = true,
                              .global_rows = r->rows,
                              .step = r->number,
                              .seed = r->seed,
                              .stop = &r->stop,
                              .group = r->place->group,
                              .meet = &ch__group_as_meet},
                    &r->out);
    if (r->rc != CH_OK)
        (void)ch__fault_record(&r->fault, r->rc, -1, NULL);
}

static ch_status begin_computing(ch_worker_run *r, ch_outbox *outbox)
{
    ch_status rc = ch__step_exec_inputs(r->exec, &r->in);

    if (rc != CH_OK)
        return rc;
    r->is_computing = true;
    ch__fault_clear(&r->fault);
    ch__outbox_work(outbox, 1, compute, NULL, r);
    return CH_OK;
}

/* ---- one thing after the other ---- */

static ch_status find_function(ch_worker_run *r)
{
    r->f = ch__map_find(&r->place->functions, ch__key(r->number_of_function));
    if (r->f == NULL)
        return ch__fail(CH_NOT_FOUND, "this worker knows no function %llu",
                        (unsigned long long)r->number_of_function);
    return CH_OK;
}

/* Up to where calls can be made: elements are read, and the trip begins. */
static ch_status prepare(ch_worker_run *r, ch_outbox *outbox)
{
    ch_status rc = r->f == NULL ? find_function(r) : CH_OK;

    if (rc == CH_OK && r->n_elements > 0 && !r->has_read)
        return begin_reading(r, outbox);
    if (rc == CH_OK && r->ended == 0)
        rc = begin_exec(r);
    return rc;
}

void ch__worker_run_advance(ch_worker_run *r, ch_outbox *outbox, int64_t now)
{
    ch_status rc = CH_OK;

    if (r->is_over || (r->is_computing && r->exec == NULL))
        return;
    if (r->exec == NULL)
        rc = prepare(r, outbox);
    if (rc == CH_OK && r->exec != NULL)
        rc = ask_servers(r, outbox, now);
    if (rc == CH_OK && !r->is_computing && r->exec != NULL &&
        ch__step_exec_local_part(r->exec) != NULL)
        rc = begin_computing(r, outbox);
    if (rc != CH_OK)
        fail(r, outbox, rc, "run");
    else if (r->ended != 0 || (r->exec != NULL && ch__step_exec_is_done(r->exec)))
        finish(r, outbox);
}

void ch__worker_run_computed(ch_worker_run *r, ch_outbox *outbox, int64_t now)
{
    ch_status rc = CH_OK;

    r->is_computing = false;
    if (r->is_over)
        return;
    if (r->rc != CH_OK) {
        refuse(r, outbox, &r->fault);
        return;
    }
    if (r->has_read || r->n_elements == 0)
        rc = ch__step_exec_computed(r->exec, r->out);
    r->has_read = true;
    ch_tuple_unref(r->in);
    ch_tuple_unref(r->out);
    r->in = r->out = NULL;
    if (rc != CH_OK)
        fail(r, outbox, rc, "run");
    else
        ch__worker_run_advance(r, outbox, now);
}

/* ---- the end of a call ---- */

static void graph_defined(ch_worker_run *r, const server_call *c, ch_outbox *outbox,
                          int64_t now)
{
    r->f->is_defined[c->remote][c->shard] = true;
    if (--c->update->n_missing == 0)
        send(r, c->update, outbox, now);
}

void ch__worker_run_replied(ch_worker_run *r, ch_retry *ended, const ch_net_event *e,
                            ch_outbox *outbox, int64_t now)
{
    const server_call *c = (const void *)ended;
    ch_status          rc = CH_OK;

    if (e->ending == CH_ENDED_ERROR) {
        refuse(r, outbox, e->fault);
    } else if (e->ending != CH_ENDED_OK) {
        r->unreachable = c->server + 1;
        finish(r, outbox);
    } else {
        if (c->call != NULL)
            rc = ch__step_exec_on_reply(r->exec, c->call, e->message);
        else
            graph_defined(r, c, outbox, now);
        if (rc != CH_OK)
            fail(r, outbox, rc, "answer");
        else
            ch__worker_run_advance(r, outbox, now);
    }
    free_call(ended);
}
