/* strategy/parameter_server_run.c -- runs steps of the parameter-server strategy.
 *
 * Implements ch_exec_ops, and the functions that strategy/coordinator.c uses for its own steps.
 * A step goes through these stages:
 *
 *   1. ch__run_record records its graph, or finds it.
 *   2. ch__ps_function gives the number of the function that workers run for the graph
 *      (parameter_server_function.c).
 *   3. ch__ps_inputs_read lists its input tensors.
 *   4. ch__coord_schedule queues the step. The coordinator task sends it to a worker.
 *   5. ch__ps_results makes a tuple from the reply of the worker.
 *
 * A started run (ch_started.step) is a struct started, which holds the graph and the scheduled
 * step until the caller waits for the run or abandons it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "base/mem.h"
#include "strategy/parameter_server.h"
#include "tensor/tensor.h"

/* ---- results ---- */

/* Stores a reference to `t` in *out if no other reference exists. Otherwise stores a copy,
 * because the program may change the result while a server or worker still uses `t`. */
static ch_status private_copy(ch_tensor *t, ch_tensor **out)
{
    ch_status rc;

    if (atomic_load(&t->refs) == 1 && atomic_load(&t->buffer->refs) == 1) {
        *out = ch_tensor_ref(t);
        return CH_OK;
    }
    rc = ch_tensor_new(t->dtype, t->shape, out);
    return rc == CH_OK ? ch_tensor_copy(t, *out) : rc;
}

/* Makes the value of result i, with components for the first n replicas. */
static ch_status result(const ch_graph *g, int n, const ch_message *p, int i, ch_value **out)
{
    ch_tensor *t[64] = {NULL};
    ch_status  rc = CH_OK;

    for (int k = 0; k < n && rc == CH_OK; k++)
        rc = private_copy(p->tensor[k * g->n_outputs + i], &t[k]);
    if (rc == CH_OK)
        rc = ch_value_new(n > 1 ? CH_PER_REPLICA : CH_PLAIN, n, t, out);
    for (int k = 0; k < n; k++)
        ch_tensor_unref(t[k]);
    return rc;
}

ch_status ch__ps_results(const ch_ps *ps, const ch_graph *g, int n_replicas,
                         const ch_message *p, ch_tuple **out)
{
    size_t       n = (size_t)g->n_outputs;
    ch_value   **v = ch__calloc(n + 1, sizeof(ch_value *));
    const char **name = ch__calloc(n + 1, sizeof(char *));
    ch_status    rc = v == NULL || name == NULL ? ch__fail_memory("results") : CH_OK;

    if (rc == CH_OK && p->n_tensors < g->n_outputs * ps->n_devices)
        rc =
            ch__fail(CH_INTERNAL, "%s: wrong number of results from a worker (got %d, want %d)",
                     g->name, p->n_tensors, g->n_outputs * ps->n_devices);
    for (int i = 0; i < g->n_outputs && rc == CH_OK; i++) {
        name[i] = g->output[i].name;
        rc = result(g, n_replicas, p, i, &v[i]);
    }
    if (rc == CH_OK)
        rc = ch_tuple_new(g->n_outputs, v, name, out);
    for (size_t i = 0; v != NULL && i < n; i++)
        ch_value_unref(v[i]);
    ch__free(v);
    ch__free(name);
    return rc;
}

/* ---- runs ---- */

/* Returns the number of variables of Default that the graph reads. */
static int count_borrowed(const ch_graph *g)
{
    int n = 0;

    for (int i = 0; i < g->n_resources; i++)
        n += ch__is_borrowed(&g->resource[i]);
    return n;
}

/* Appends the values of the variables of Default, in the order of ch__ps_worker_graph. */
static ch_status read_borrowed(const ch_graph *g, ch_ps_inputs *out)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < g->n_resources && rc == CH_OK; i++) {
        if (!ch__is_borrowed(&g->resource[i]))
            continue;
        rc = ch__var_snapshot(g->resource[i].key, &out->in[out->n_in]);
        out->n_in += rc == CH_OK;
        out->n_shared += rc == CH_OK;
    }
    return rc;
}

ch_status ch__ps_inputs_read(const ch_ps *ps, const ch_graph *g, const ch_tuple *in,
                             ch_ps_inputs *out)
{
    enum { FEW = sizeof(out->inline_in) / sizeof(out->inline_in[0]) };
    int       n = in != NULL ? ch_tuple_count(in) : 0, copies = 1, most;
    ch_status rc;

    for (int i = 0; i < n; i++)
        copies = ch_value_count(ch_tuple_at(in, i)) > 1 ? ps->n_devices : copies;
    most = n * copies + count_borrowed(g);
    *out = (ch_ps_inputs){.n_in = n * copies, .n_inputs = n, .in = out->inline_in};
    if (most > FEW)
        out->in = ch__calloc((size_t)most, sizeof(ch_tensor *));
    if (out->in == NULL)
        return ch__fail_memory("a step");
    for (int k = 0; k < copies; k++)
        for (int i = 0; i < n; i++)
            out->in[k * n + i] = ch_value_at(ch_tuple_at(in, i), k);
    rc = read_borrowed(g, out);
    if (rc != CH_OK)
        ch__ps_inputs_drop(out);
    return rc;
}

void ch__ps_inputs_drop(ch_ps_inputs *i)
{
    for (int k = i->n_in - i->n_shared; k < i->n_in; k++)
        ch_tensor_unref(i->in[k]);
    if (i->in != i->inline_in)
        ch__free(i->in);
}

/* Records the step of a run and sends it to the queue of the coordinator task. Stores a
 * reference to the graph. */
static ch_status schedule_step(const ch_run *run, uint64_t snapshot, bool is_own, ch_graph **g,
                               ch_scheduled **out)
{
    ch_strategy    *st = run->owner;
    ch_ps          *ps = st->self;
    ch_step_request o = {
        .seed = run->seed, .snapshot = snapshot, .is_own = is_own, .owner = run->function};
    ch_ps_inputs in;
    ch_status    rc = ch__run_record(run, g, &o.number);

    if (rc == CH_OK)
        rc = ch__ps_function(ps, *g, &o.function);
    if (rc == CH_OK)
        rc = ch__ps_inputs_read(ps, *g, run->in, &in);
    if (rc != CH_OK)
        return rc;
    o.n_in = in.n_in;
    o.n_inputs = in.n_inputs;
    o.n_shared = in.n_shared;
    o.in = in.in;
    rc = ch__coord_schedule(ps->coord, &o, out);
    ch__ps_inputs_drop(&in);
    return rc;
}

/* A started run: ch_started.step. */
typedef struct started {
    ch_ps        *ps;
    ch_graph     *graph; /* graph of the step; names its results */
    ch_scheduled *step;
    /* Number of replicas with results. An update of a remote variable has 1, because all
     * replicas of the worker compute the same. */
    int n_replicas;
} started;

static void free_started(started *s)
{
    ch__scheduled_unref(s->step);
    ch_graph_unref(s->graph);
    ch__free(s);
}

static ch_status start(const ch_run *run, const ch_start_options *opt, ch_started *out)
{
    const ch_strategy *st = run->owner;
    started           *s = ch__calloc(1, sizeof(*s));
    ch_status          rc;

    if (s == NULL)
        return ch__fail_memory("a step");
    s->ps = st->self;
    s->n_replicas = run->n_local;
    rc = schedule_step(run, opt->snapshot, opt->is_own || opt->snapshot != 0, &s->graph,
                       &s->step);
    if (rc == CH_OK)
        *out = (ch_started){.step = s};
    else
        free_started(s);
    return rc;
}

static bool poll_started(const ch_started *r)
{
    const started *s = r->step;

    return s == NULL || ch__coord_has_ended(s->ps->coord, s->step);
}

static void abandon(ch_started *r)
{
    if (r->step != NULL)
        free_started(r->step);
    r->step = NULL;
}

static ch_status wait_started(ch_started *r, ch_tuple **out)
{
    started          *s = r->step;
    const ch_message *p = NULL;
    ch_status         rc = ch__coord_wait(s->ps->coord, s->step, s->graph->name, 0, &p);

    if (rc == CH_OK && out != NULL)
        rc = ch__ps_results(s->ps, s->graph, s->n_replicas, p, out);
    abandon(r);
    return rc;
}

static ch_status drain(ch_strategy *st)
{
    return ch__coord_join(((ch_ps *)st->self)->coord, 0);
}

static ch_status wait_capacity(ch_strategy *st, bool is_own)
{
    return ch__coord_wait_for_room(((ch_ps *)st->self)->coord, is_own);
}

static int workers(ch_strategy *st)
{
    ch_coordinator_stats s = {0};

    ch__coord_stats(((ch_ps *)st->self)->coord, &s);
    return s.workers;
}

static ch_status snapshot(ch_strategy *st, uint64_t *out)
{
    return ch__coord_snapshot(((ch_ps *)st->self)->coord, out);
}

static void release(ch_strategy *st, uint64_t number)
{
    if (number != 0)
        ch__coord_release_snapshot(((ch_ps *)st->self)->coord, number);
}

const ch_exec_ops ch__ps_exec = {.start = start,
                                 .poll = poll_started,
                                 .wait = wait_started,
                                 .abandon = abandon,
                                 .drain = drain,
                                 .wait_capacity = wait_capacity,
                                 .workers = workers,
                                 .snapshot = snapshot,
                                 .release = release};
