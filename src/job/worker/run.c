/* job/worker/run.c -- a run of a step on a worker (run.h).
 *
 * ch__worker_run_advance does all that can be done now: it begins to read elements, sends calls
 * to servers, begins to compute a local part, or replies. It is called again after each event
 * of the run: a work item has ended (ch__worker_run_computed), or a call to a server has ended
 * (ch__worker_run_replied). Only worker.c calls these functions.
 *
 * Invariants:
 *   1. At most one work item of a run is under way (`is_computing`). Calls to servers may be
 *      open at the same time.
 *   2. A run replies to its CH_WORKER_RUN call once, unless it is dropped before (is_over is
 *      then set without a reply).
 *   3. A run that is over has no calls to servers left.
 *   4. An update is not sent before its server has the graph (`is_defined`).
 *   5. Per-worker variables change only directly before a successful reply, and once for a
 *      step.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/worker/run.h"

#include <stdio.h>

#include "base/mem.h"
#include "graph/run.h"
#include "job/worker/per_worker.h"
#include "tensor/tensor.h"

/* A call to a server: a call of the step execution, or the definition of an update's graph.
 * Created by add_call, owned by the list of retried calls (ch_run_env.retries), and freed when
 * the call or the run has ended. */
typedef struct server_call {
    ch_retry            retry; /* must be first, because a ch_retry is cast to server_call */
    int                 server;
    ch_step_exec_call  *call;          /* borrowed; NULL: this call defines a graph */
    int                 remote, shard; /* of a definition: the update that it defines */
    struct server_call *update;        /* of a definition: the call that waits for it */
    int                 n_missing;     /* definitions that this call waits for */
} server_call;

/* ---- create and free ---- */

static ch_status copy_elements(ch_worker_run *r, const Cohort__WorkerRun *m)
{
    r->element = ch__calloc(m->n_elements + 1, sizeof(*r->element));
    if (r->element == NULL)
        return ch__fail_memory("a step");
    for (size_t i = 0; i < m->n_elements; i++)
        r->element[r->n_elements++] =
            (ch_worker_element){.stream = m->elements[i]->stream,
                                .number = m->elements[i]->number,
                                .first_input = (int)(m->elements[i]->at & INT32_MAX)};
    return CH_OK;
}

ch_status ch__worker_run_new(ch_run_env *env, ch_call_id call, ch_message *p,
                             const Cohort__WorkerRun *m, ch_worker_run **out)
{
    ch_worker_run *r = ch__calloc(1, sizeof(*r));
    ch_status      rc;

    if (r == NULL)
        return ch__fail_memory("a step");
    r->env = env;
    r->call = call;
    r->step = m->step;
    r->function_number = m->function;
    r->retired = m->retired;
    r->snapshot = m->snapshot;
    r->seed = m->seed;
    r->registration = m->registration;
    r->number = m->number;
    r->is_silent = m->silent;
    r->defers = m->defer;
    rc = m->n_elements > 0 ? copy_elements(r, m) : CH_OK;
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
        ch_tuple_unref(r->element[i].element);
    ch__free(r->element);
    ch__step_exec_free(r->exec);
    ch_tuple_unref(r->in);
    ch_tuple_unref(r->out);
    ch__message_unref(r->message);
    ch__free(r);
}

/* ---- end ---- */

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
    while ((call = ch__retries_cancel_to(&r->env->retries, NULL, outbox)) != NULL)
        free_call(call);
}

/* Replies with this thread's error and ends the run. */
static void fail(ch_worker_run *r, ch_outbox *outbox, ch_status rc, const char *op)
{
    ch__reply_error(outbox, r->call, rc, op);
    ch__worker_run_end(r, outbox);
}

/* Replies with an error of a server or of a work item, and ends the run. */
static void fail_with(ch_worker_run *r, ch_outbox *outbox, const ch_fault *why)
{
    ch__outbox_reply_error(outbox, r->call, why);
    ch__worker_run_end(r, outbox);
}

/* Adds a saved position of a stream to the reply, as a tensor after the results. Does
 * so only if a new position may have been saved: every CH_STREAM_POSITION_INTERVAL elements. */
static ch_status add_position(const ch_worker_run *r, Cohort__WorkerReply *m, ch_tensor **out)
{
    for (int i = 0; i < r->n_elements; i++) {
        const void *bytes = NULL;
        size_t      n = 0;

        if (r->element[i].number % CH_STREAM_POSITION_INTERVAL != 0 ||
            !ch__stream_position(r->element[i].from, &m->position_number, &bytes, &n))
            continue;
        m->position_stream = r->element[i].stream;
        return ch_tensor_copy_of(CH_U8, ch_shape_of((int64_t)n), bytes, out);
    }
    return CH_OK;
}

/* Returns the number of the step's results, without the new values of per-worker variables. */
static int count_results(const ch_worker_run *r)
{
    return r->f->placed.plan->n_outputs - r->f->n_written;
}

/* Packs the reply. It has no results if the coordinator does not want them, if a stream has
 * ended or if a server cannot be reached. */
static ch_status pack_results(const ch_worker_run *r, ch_message **out)
{
    int n = r->is_silent || r->ended_stream != 0 || r->unreachable != 0 ? 0 : count_results(r);
    int n_replicas = r->env->opt.n_devices;
    ch_tensor         **t = ch__calloc((size_t)(n * n_replicas) + 1, sizeof(*t));
    Cohort__WorkerReply m;
    ch_status           rc;

    if (t == NULL)
        return ch__fail_memory("a reply");
    cohort__worker_reply__init(&m);
    m.replicas = (uint32_t)n_replicas;
    m.ended_stream = r->ended_stream;
    m.unreachable = (uint32_t)r->unreachable;
    rc = add_position(r, &m, &t[n * n_replicas]);
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
    return ch__map_find(&r->env->per_worker, ch__key(r->f->per_worker[i].number));
}

/* Prepares the new values of per-worker variables. They are the same for all replicas, like
 * those of variables on servers, so the value of replica 0 counts. */
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

/* Prepares the new values of per-worker variables unless an earlier run of the step has changed
 * them already (its reply was lost). Sets *is_first if they must be committed. */
static ch_status prepare_if_first(ch_worker_run *r, bool *is_first)
{
    enum { MANY = 64 };
    ch_map   *committed = &r->env->committed;
    ch_status rc;

    *is_first = r->f->n_written > 0 && ch__map_find(committed, ch__key(r->step)) == NULL;
    if (!*is_first)
        return CH_OK;
    rc = prepare_per_worker(r);
    if (committed->n >= MANY)
        ch__map_remove_if(committed, is_retired, r);
    return rc == CH_OK ? ch__map_set(committed, ch__key(r->step), r->env) : rc;
}

/* Makes the prepared values current. Cannot fail. */
static void commit_per_worker(const ch_worker_run *r)
{
    for (int i = 0; i < r->f->n_per_worker; i++)
        if (r->f->per_worker[i].is_written && find_per_worker(r, i) != NULL)
            ch__per_worker_commit(find_per_worker(r, i));
}

/* Replies and ends the run: the step is done, or a stream has ended, or a server cannot be
 * reached. The last two are not errors, because the coordinator can queue it again. */
static void finish(ch_worker_run *r, ch_outbox *outbox)
{
    ch_message *p = NULL;
    bool        is_done = r->exec != NULL && ch__step_exec_is_done(r->exec), changes = false;
    ch_status   rc = pack_results(r, &p);

    if (rc == CH_OK && is_done)
        rc = prepare_if_first(r, &changes);
    if (rc != CH_OK) {
        ch__message_unref(p);
        fail(r, outbox, rc, "reply");
        return;
    }
    if (changes)
        commit_per_worker(r);
    ch__outbox_reply(outbox, r->call, p);
    ch__worker_run_end(r, outbox);
}

/* ---- elements ---- */

/* Work item: reads the elements of the run. */
static void read_elements(void *arg)
{
    ch_worker_run *r = arg;

    r->rc = CH_OK;
    for (int i = 0; i < r->n_elements && r->rc == CH_OK && r->ended_stream == 0 &&
                    !atomic_load_explicit(&r->stop, memory_order_relaxed);
         i++) {
        ch_worker_element *e = &r->element[i];

        r->rc = ch__stream_element(e->from, e->number, &e->element);
        if (r->rc == CH_OK && e->element == NULL)
            r->ended_stream = e->stream;
    }
    if (r->rc != CH_OK)
        (void)ch__fault_record(&r->fault, r->rc, -1, NULL);
}

static ch_status begin_reading(ch_worker_run *r, ch_outbox *outbox)
{
    for (int i = 0; i < r->n_elements; i++) {
        ch_worker_element *e = &r->element[i];

        e->from = ch__map_find(&r->env->streams, ch__key(e->stream));
        if (e->from == NULL)
            return ch__fail(CH_NOT_FOUND, "stream %llu does not exist on this worker",
                            (unsigned long long)e->stream);
    }
    r->is_computing = true;
    ch__fault_clear(&r->fault);
    ch__outbox_work(outbox, 1, read_elements, NULL, r);
    return CH_OK;
}

/* ---- inputs ---- */

/* Returns the number of the step's inputs, without per-worker variables. */
static int count_plain_inputs(const ch_worker_run *r)
{
    return r->f->placed.plan->n_inputs - r->f->n_read;
}

/* Returns input i of a replica, borrowed: a component of an element, or a tensor of the
 * request. The request has a tensor per input for all replicas, or per input and replica.
 * NULL: there is no such tensor. */
static ch_tensor *input_of(const ch_worker_run *r, int i, int replica)
{
    int before = 0, n = count_plain_inputs(r), own;

    for (int k = 0; k < r->n_elements; k++) {
        const ch_worker_element *e = &r->element[k];
        int                      width = ch_tuple_count(e->element);

        if (i >= e->first_input && i < e->first_input + width)
            return ch_value_at(ch_tuple_at(e->element, i - e->first_input), replica);
        before += i >= e->first_input ? width : 0;
        n -= width;
    }
    own = r->message->n_tensors == n * r->env->opt.n_devices ? replica * n : 0;
    i += own - before; /* below 0 if elements of the request overlap */
    return i >= 0 && i < r->message->n_tensors ? r->message->tensor[i] : NULL;
}

/* Returns the number of the step's inputs without per-worker variables; -1 if the tensors of
 * the request and the components of the elements do not make up that number. */
static int count_inputs(const ch_worker_run *r)
{
    int width = 0, n = r->message->n_tensors, n_replicas = r->env->opt.n_devices;
    int want = count_plain_inputs(r);

    for (int i = 0; i < r->n_elements; i++)
        width += ch_tuple_count(r->element[i].element);
    if (n + width == want)
        return want;
    return n % n_replicas == 0 && n / n_replicas + width == want ? want : -1;
}

/* Returns the number of rows of the input that has the step's rows. */
static int64_t rows_of(const ch_step_plan *plan, const ch_tensor *t)
{
    if (t->shape.rank == 0)
        return 1;
    return plan->rows_are_split && t->shape.dim[0] > 0 ? t->shape.dim[0] - 1 : t->shape.dim[0];
}

/* Collects the inputs of all replicas in in[replica * n_inputs + input], and counts rows. */
static ch_status gather_inputs(ch_worker_run *r, ch_tensor **in)
{
    int n = r->f->placed.plan->n_inputs;

    for (int k = 0; k < r->env->opt.n_devices; k++)
        for (int i = 0; i < count_plain_inputs(r); i++) {
            ch_tensor *t = input_of(r, i, k);

            if (t == NULL)
                return ch__fail(CH_INVALID_ARGUMENT, "input %d of the step is missing", i);
            in[k * n + i] = t;
            if (i == r->f->placed.plan->rows)
                r->rows += rows_of(r->f->placed.plan, t);
        }
    return CH_OK;
}

/* Appends the per-worker variables that the step plan reads. All replicas share them. */
static ch_status gather_per_worker(const ch_worker_run *r, ch_tensor **in)
{
    int n = r->f->placed.plan->n_inputs, at = count_plain_inputs(r);

    for (int i = 0; i < r->f->n_per_worker; i++) {
        const ch_per_worker_var *per_worker = find_per_worker(r, i);

        if (per_worker == NULL)
            return ch__fail(CH_NOT_FOUND,
                            "per-worker variable %llu does not exist on this worker",
                            (unsigned long long)r->f->per_worker[i].number);
        for (int k = 0; r->f->per_worker[i].is_read && k < r->env->opt.n_devices; k++)
            in[k * n + at] = ch__per_worker_value(per_worker);
        at += r->f->per_worker[i].is_read;
    }
    return CH_OK;
}

/* Creates the step execution. The elements must have been read. */
static ch_status begin_exec(ch_worker_run *r)
{
    int              n = r->f->placed.plan->n_inputs, n_replicas = r->env->opt.n_devices;
    ch_tensor      **in;
    ch_step_identity a = {.step = r->step,
                          .retired = r->retired,
                          .snapshot = r->snapshot,
                          .worker = ch__task_name(r->env->task),
                          .registration = r->registration,
                          .defers = r->defers,
                          .device = r->env->opt.device};
    ch_status        rc;

    if (count_inputs(r) < 0)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%d input tensors for a step that takes %d inputs, elements included",
                        r->message->n_tensors, count_plain_inputs(r));
    in = ch__calloc((size_t)(n * n_replicas) + 1, sizeof(*in));
    if (in == NULL)
        return ch__fail_memory("a step");
    rc = gather_inputs(r, in);
    if (rc == CH_OK)
        rc = gather_per_worker(r, in);
    if (rc == CH_OK)
        rc = ch__step_exec_new(&r->f->placed, &a, n_replicas, in, &r->exec);
    ch__free(in);
    return rc;
}

/* ---- calls to servers ---- */

/* Returns the additional time in ns for a call that moves and changes this number of bytes. A
 * call must not be repeated only because it is large, even on a busy machine. */
static int64_t extra_ns(double bytes)
{
    static const double ns_per_byte = 20, most = 3600e9;

    return (int64_t)(bytes * ns_per_byte < most ? bytes * ns_per_byte : most);
}

/* Adds a call to a server and does not send it yet. Takes over the message, on an error too.
 *
 * The call is repeated until the server replies. The server may have executed an attempt whose
 * reply was lost; a repeated call has the same reply. When the patience is used up, the worker
 * gives the step back to the coordinator, because another worker may reach the server. */
static ch_status add_call(ch_worker_run *r, int server, ch_message *message, double bytes,
                          server_call **out)
{
    const ch_worker_options *opt = &r->env->opt;
    server_call             *c = ch__calloc(1, sizeof(*c));
    char                     name[32];
    ch_status                rc = CH_OK;

    if (c == NULL) {
        ch__message_unref(message);
        return ch__fail_memory("a call");
    }
    (void)snprintf(name, sizeof(name), "ps/%d", server);
    c->server = server;
    c->retry = (ch_retry){.id = ++r->env->n_ids,
                          .link = ch__task_link(r->env->task, name),
                          .incarnation = r->f->incarnation[server],
                          .message = message,
                          .policy = {.timeout = opt->call_ns + extra_ns(bytes),
                                     .pause = opt->retry_ns,
                                     .patience = opt->patience_ns + 2 * extra_ns(bytes)}};
    rc = c->retry.link == NULL ? ch__fail_memory("a link")
                               : ch__retries_add(&r->env->retries, &c->retry);
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

/* Packs the message that defines the graph of an update for a shard. */
static ch_status pack_graph(const ch_worker_function *f, int remote, int shard,
                            ch_message **out)
{
    const ch_remote_part *u = &f->placed.plan->remote[remote];
    Cohort__PsDefine      m;
    ch_graph             *g = NULL;
    void                 *bytes = NULL;
    uint64_t             *number = ch__calloc((size_t)u->n_variables, sizeof(*number));
    ch_status             rc = number == NULL ? ch__fail_memory("a call") : CH_OK;

    cohort__ps_define__init(&m);
    if (rc == CH_OK)
        rc = ch__step_exec_update(&f->placed, remote, shard, &m.update, &g);
    if (rc == CH_OK)
        rc = ch_graph_encode(g, &bytes, &m.graph.len);
    m.graph.data = bytes;
    m.n_variables = (size_t)u->n_variables;
    m.variables = number;
    for (int i = 0; i < u->n_variables && rc == CH_OK; i++)
        number[i] = f->placed.variable[u->variable[i]].shard[shard].variable;
    if (rc == CH_OK)
        rc = ch__message_pack(CH_PS_DEFINE, &m.base, 0, NULL, out);
    ch_graph_unref(g);
    ch_bytes_free(bytes);
    ch__free(number);
    return rc;
}

/* Sends the definition of an update's graph. The call `update` waits for it. */
static ch_status define_graph(ch_worker_run *r, server_call *update, struct ch_step_exec_part p,
                              ch_outbox *outbox, int64_t now)
{
    ch_message  *message = NULL;
    server_call *c = NULL;
    ch_status    rc = pack_graph(r->f, p.remote, p.shard, &message);

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

/* Returns true if the part is an update and its server does not have the graph yet. */
static bool is_missing(const ch_worker_run *r, struct ch_step_exec_part p)
{
    return r->f->placed.plan->remote[p.remote].kind == CH_REMOTE_UPDATE &&
           !r->f->is_defined[p.remote][p.shard];
}

/* Sends the calls that the step execution can make now. */
static ch_status call_servers(ch_worker_run *r, ch_outbox *outbox, int64_t now)
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

/* ---- local parts ---- */

/* ch_run_ops.resource: local parts have no variables. */
static ch_status no_resource(void *owner, const ch_resource *r, int local, int core, void **out)
{
    (void)owner;
    (void)local, (void)core;
    (void)out;
    return ch__fail(CH_INTERNAL, "a local part has variable %s", r->name);
}

/* Work item: runs a local part. Uses nothing of the worker that may change meanwhile. */
static void compute(void *arg)
{
    static const ch_run_ops  ops = {.resource = no_resource};
    ch_worker_run           *r = arg;
    const ch_worker_options *opt = &r->env->opt;
    const ch_local_part     *s = ch__step_exec_local_part(r->exec);

    r->rc = ch__run(&(ch_run){.function = r->f->local_part[s - r->f->placed.plan->local_part],
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
                              .group = r->env->group,
                              .group_ops = &ch__group_ops},
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

/* ---- progress ---- */

static ch_status find_function(ch_worker_run *r)
{
    r->f = ch__map_find(&r->env->functions, ch__key(r->function_number));
    if (r->f == NULL)
        return ch__fail(CH_NOT_FOUND, "function %llu does not exist on this worker",
                        (unsigned long long)r->function_number);
    return CH_OK;
}

/* Begins to read elements, or if they have been read, creates the step execution. */
static ch_status prepare(ch_worker_run *r, ch_outbox *outbox)
{
    ch_status rc = r->f == NULL ? find_function(r) : CH_OK;

    if (rc == CH_OK && r->n_elements > 0 && !r->has_read)
        return begin_reading(r, outbox);
    if (rc == CH_OK && r->ended_stream == 0)
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
        rc = call_servers(r, outbox, now);
    if (rc == CH_OK && !r->is_computing && r->exec != NULL &&
        ch__step_exec_local_part(r->exec) != NULL)
        rc = begin_computing(r, outbox);
    if (rc != CH_OK)
        fail(r, outbox, rc, "run");
    else if (r->ended_stream != 0 || (r->exec != NULL && ch__step_exec_is_done(r->exec)))
        finish(r, outbox);
}

void ch__worker_run_computed(ch_worker_run *r, ch_outbox *outbox, int64_t now)
{
    ch_status rc = CH_OK;

    r->is_computing = false;
    if (r->is_over)
        return;
    if (r->rc != CH_OK) {
        fail_with(r, outbox, &r->fault);
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

/* ---- replies of servers ---- */

/* Records that a server has a graph, and sends the update if it waited for this graph only. */
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
        fail_with(r, outbox, e->fault);
    } else if (e->ending != CH_ENDED_OK) {
        r->unreachable = c->server + 1;
        finish(r, outbox);
    } else {
        if (c->call != NULL)
            rc = ch__step_exec_on_reply(r->exec, c->call, e->message);
        else
            graph_defined(r, c, outbox, now);
        if (rc != CH_OK)
            fail(r, outbox, rc, "reply");
        else
            ch__worker_run_advance(r, outbox, now);
    }
    free_call(ended);
}
