/* strategy/parameter_server_run.c -- runs steps of the parameter-server strategy.
 *
 * Implements ch_exec_ops, and the functions that strategy/coordinator.c uses for its own steps.
 * A step goes through these stages:
 *
 *   1. ch__run_record records its graph, or finds it.
 *   2. ch__ps_function makes a step plan for the graph and sends it to the coordinator task as
 *      a function with a number. Functions are cached in ps->functions (ch_ps_function).
 *   3. ch__ps_inputs_read lists its input tensors.
 *   4. ch__coord_schedule queues the step. The coordinator task sends it to a worker.
 *   5. ch__ps_results makes a tuple from the reply of the worker.
 *
 * Invariants:
 *   1. A cached function is used only for the variables that it was made for. Their numbers are
 *      in ch_ps_function.shard. They are compared only if the strategy's generation differs.
 *   2. The cache is read and written only between ch__task_enter and ch__task_leave, and never
 *      while a plan is made. Two threads may make the same function; the second is freed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "job/step_plan.h"
#include "strategy/parameter_server.h"
#include "tensor/tensor.h"

/* Size of the cache of functions. The least recently used function is removed first. */
enum { MAX_FUNCTIONS = 256 };

struct ch_ps_function {
    ch_ps_function *next;       /* the list is sorted by last use, newest first */
    ch_graph       *graph;      /* referenced */
    unsigned        generation; /* ch_strategy.generation when the variables were last found */
    uint64_t        number;
    int             n; /* number of entries of shard */
    /* Numbers of all shards and per-worker variables of the graph; they identify the
     * variables. */
    uint64_t shard[];
};

/* ---- locations of the variables of a graph ---- */

/* The variables of a graph and their locations. */
typedef struct located {
    int      n;   /* number of resources found */
    ch_var **var; /* variable of each resource, referenced */
    /* The variables on servers, in the order of the resources: */
    int               n_variables;
    int              *placement; /* equal numbers: same servers and same division into shards */
    ch_plan_variable *variable;
    /* Shards of all variables on servers. A per-worker variable has an entry with its number
     * only. */
    struct ch_plan_shard *shard;
    int                   n_shards;
} located;

static void drop_located(located *l)
{
    for (int i = 0; l->var != NULL && i < l->n; i++)
        ch_var_unref(l->var[i]);
    ch__free(l->var);
    ch__free(l->placement);
    ch__free(l->variable);
    ch__free(l->shard);
}

/* Returns true if both variables are on the same servers and are divided at the same rows. */
static bool is_same_placement(const ch_plan_variable *a, const ch_plan_variable *b)
{
    if (a->n_shards != b->n_shards || a->axis != b->axis ||
        (a->n_shards > 1 && a->shape.dim[a->axis] != b->shape.dim[b->axis]))
        return false;
    for (int i = 0; i < a->n_shards; i++)
        if (a->shard[i].server != b->shard[i].server)
            return false;
    return true;
}

/* Returns the number of entries of a resource in located.shard. */
static int count_shards(const ch_resource *r, const ch_var *v)
{
    if (ch__is_borrowed(r))
        return 0;
    return ch__ps_is_per_worker(v) ? 1 : ((const ch_ps_var *)v->storage)->on_servers.n_shards;
}

/* Stores a new reference to the variable of a resource. A borrowed variable belongs to Default,
 * and the resource itself refers to it. */
static ch_status find_var(ch_strategy *st, const ch_resource *r, ch_var **out)
{
    if (!ch__is_borrowed(r))
        return ch__var_of_resource(st, r, out);
    *out = ch_var_ref(r->key);
    return CH_OK;
}

/* Finds the variable of each resource, and counts the shards. */
static ch_status find_vars(ch_strategy *st, const ch_graph *g, located *l)
{
    ch_status rc = CH_OK;

    l->var = ch__calloc((size_t)g->n_resources + 1, sizeof(ch_var *));
    l->placement = ch__calloc((size_t)g->n_resources + 1, sizeof(int));
    l->variable = ch__calloc((size_t)g->n_resources + 1, sizeof(*l->variable));
    if (l->var == NULL || l->placement == NULL || l->variable == NULL)
        return ch__fail_memory("a step");
    for (; l->n < g->n_resources && rc == CH_OK; l->n += rc == CH_OK) {
        rc = find_var(st, &g->resource[l->n], &l->var[l->n]);
        if (rc == CH_OK)
            l->n_shards += count_shards(&g->resource[l->n], l->var[l->n]);
    }
    return rc;
}

/* Adds a variable on servers. *at is the next free entry of l->shard. */
static void locate_var(located *l, const ch_var *v, const char *name, int *at)
{
    const ch_ps_var *s = v->storage;
    int              i = l->n_variables++;

    l->variable[i] = s->on_servers;
    l->variable[i].name = name;
    l->variable[i].shard = &l->shard[*at];
    for (int k = 0; k < s->on_servers.n_shards; k++)
        l->shard[(*at)++] = s->on_servers.shard[k];
    l->placement[i] = i;
    for (int k = i - 1; k >= 0; k--)
        if (is_same_placement(&l->variable[k], &l->variable[i]))
            l->placement[i] = l->placement[k];
}

/* Fills *l. The caller must call drop_located, also on an error. */
static ch_status locate(ch_strategy *st, const ch_graph *g, located *l)
{
    ch_status rc = find_vars(st, g, l);
    int       at = 0;

    l->shard = rc == CH_OK ? ch__calloc((size_t)l->n_shards + 1, sizeof(*l->shard)) : NULL;
    if (rc == CH_OK && l->shard == NULL)
        rc = ch__fail_memory("a step");
    for (int i = 0; i < l->n && rc == CH_OK; i++) {
        const ch_ps_var *s = l->var[i]->storage;

        if (ch__is_borrowed(&g->resource[i]))
            continue;
        if (ch__ps_is_per_worker(l->var[i]))
            l->shard[at++].variable = s->number;
        else
            locate_var(l, l->var[i], g->resource[i].name, &at);
    }
    return rc;
}

/* ---- functions ---- */

static void free_function(ch_ps_function *f)
{
    ch_graph_unref(f->graph);
    ch__free(f);
}

void ch__ps_functions_drop(ch_ps *ps)
{
    while (ps->functions != NULL) {
        ch_ps_function *f = ps->functions;

        ps->functions = f->next;
        free_function(f);
    }
}

/* Reserves numbers for the updates of a plan on the servers: a number for each shard of each
 * update. */
static ch_updates number_updates(ch_ps *ps, const ch_step_plan *r, const located *l)
{
    int n = 0;

    for (int i = 0; i < r->n_remote_parts; i++)
        n += l->variable[r->remote[i].variable[0]].n_shards;
    return (ch_updates){ch__coord_new_numbers(ps->coord, n), (uint64_t)n};
}

/* Encodes a plan into a new u8 tensor. `next` is the first number of its updates. */
static ch_status encode(const ch_step_plan *r, const located *l, uint64_t next, ch_tensor **out)
{
    uint64_t    *function = ch__calloc((size_t)r->n_remote_parts + 1, sizeof(*function));
    void        *bytes = NULL;
    size_t       n = 0;
    ch_step_plan copy = *r;
    ch_status    rc;

    if (function == NULL)
        return ch__fail_memory("a step");
    for (int i = 0; i < r->n_remote_parts; i++) {
        function[i] = next;
        next += (uint64_t)l->variable[r->remote[i].variable[0]].n_shards;
    }
    rc = ch__step_plan_encode(&(ch_placed_plan){&copy, l->n_variables, l->variable, function},
                              &bytes, &n);
    if (rc == CH_OK)
        rc = ch_tensor_copy_of(CH_U8, ch_shape_of((int64_t)n), bytes, out);
    ch__free(bytes);
    ch__free(function);
    return rc;
}

/* Makes the step plan of a graph. Variables of Default and per-worker variables become inputs
 * first. */
static ch_status make_plan(const ch_graph *g, const located *l, ch_step_plan **out)
{
    ch_graph *inner = NULL;
    ch_status rc;

    if (l->n_variables == l->n)
        return ch__step_plan_new(g, l->placement, out);
    rc = ch__ps_worker_graph(g, l->var, &inner);
    if (rc == CH_OK)
        rc = ch__step_plan_new(inner, l->placement, out);
    if (rc == CH_OK && g->n_inputs == 0)
        (*out)->rows =
            (*out)->n_inputs; /* the inputs are variables; none has the rows of the step */
    ch_graph_unref(inner);
    return rc;
}

static ch_recorded_op *find_op(const ch_function_spec *f, const char *name)
{
    for (int i = 0; i < f->n_ops; i++)
        if (strcmp(f->op[i].name, name) == 0)
            return &f->op[i];
    return NULL;
}

/* Lists the ops of a graph with the source lines that call them, for error messages. If memory
 * is exhausted, the list is empty and messages name no line. */
static void list_ops(const ch_graph *g, ch_function_spec *out)
{
    out->op = ch__calloc((size_t)g->n_calls + 1, sizeof(*out->op));
    for (const ch_node *n = g->first; n != NULL && out->op != NULL; n = n->next) {
        ch_recorded_op *op = find_op(out, n->op->name);

        if (op == NULL)
            out->op[out->n_ops++] = (ch_recorded_op){n->op->name, n->caller};
        else if (op->caller != n->caller)
            op->caller = NULL; /* called from several lines */
    }
}

/* Sends a function to the coordinator task. Takes over the reference to `plan`, also on an
 * error. */
static ch_status add_function(ch_ps *ps, const ch_graph *g, const located *l, ch_tensor *plan,
                              const ch_updates *updates, uint64_t *number)
{
    ch_per_worker_spec *per_worker = ch__calloc((size_t)l->n + 1, sizeof(*per_worker));
    ch_function_spec    f = {.name = g->name, .per_worker = per_worker, .updates = *updates};
    ch_status           rc;

    if (per_worker == NULL) {
        ch_tensor_unref(plan);
        return ch__fail_memory("a step");
    }
    f.n_per_worker = ch__ps_per_worker_list(g, l->var, per_worker);
    list_ops(g, &f);
    rc = ch__coord_add_function(ps->coord, &f, plan, number);
    ch__free(per_worker);
    return rc;
}

/* Makes a function for a graph and its variables, and sends it to the coordinator task. */
static ch_status make_function(ch_ps *ps, ch_graph *g, const located *l, ch_ps_function **out)
{
    ch_ps_function *f = ch__calloc(1, sizeof(*f) + (size_t)l->n_shards * sizeof(f->shard[0]));
    ch_step_plan   *plan = NULL;
    ch_tensor      *bytes = NULL;
    ch_updates      updates = {0};
    ch_status       rc = f == NULL ? ch__fail_memory("a step") : make_plan(g, l, &plan);

    if (rc == CH_OK) {
        updates = number_updates(ps, plan, l);
        rc = encode(plan, l, updates.first, &bytes);
    }
    if (rc == CH_OK)
        rc = add_function(ps, g, l, bytes, &updates, &f->number);
    ch__step_plan_free(plan);
    if (rc != CH_OK) {
        ch__free(f);
        return ch__fail_at(rc, "step plan of %s", g->name);
    }
    f->graph = ch_graph_ref(g);
    f->n = l->n_shards;
    for (int i = 0; i < f->n; i++)
        f->shard[i] = l->shard[i].variable;
    *out = f;
    return CH_OK;
}

/* Returns true if the function was made for these variables. */
static bool matches(const ch_ps_function *f, const located *l)
{
    if (f->n != l->n_shards)
        return false;
    for (int i = 0; i < f->n; i++)
        if (f->shard[i] != l->shard[i].variable)
            return false;
    return true;
}

/* Removes the function of a graph from the cache and returns it; NULL if there is none. Must be
 * called after ch__task_enter. */
static ch_ps_function *remove_function(ch_ps *ps, const ch_graph *g)
{
    ch_ps_function **at = &ps->functions, *f;

    while (*at != NULL && (*at)->graph != g)
        at = &(*at)->next;
    f = *at;
    if (f != NULL) {
        *at = f->next;
        ps->n_functions--;
    }
    return f;
}

/* Adds a function at the front of the cache. Must be called after ch__task_enter. */
static void push_function(ch_ps *ps, ch_ps_function *f)
{
    f->next = ps->functions;
    ps->functions = f;
    ps->n_functions++;
}

/* Removes and returns the least recently used function if the cache is too large; otherwise
 * returns NULL. Must be called after ch__task_enter. */
static ch_ps_function *remove_oldest(ch_ps *ps)
{
    ch_ps_function **at = &ps->functions, *f = NULL;

    if (ps->n_functions <= MAX_FUNCTIONS)
        return NULL;
    while ((*at)->next != NULL)
        at = &(*at)->next;
    f = *at;
    *at = NULL;
    ps->n_functions--;
    return f;
}

/* Frees a function that was removed from the cache. Steps that are queued with it still run. */
static void forget_function(ch_ps *ps, ch_ps_function *f)
{
    if (f == NULL)
        return;
    ch__coord_forget_function(ps->coord, f->number);
    free_function(f);
}

/* Moves the cached function of `g` to the front if it was made for these variables, and frees
 * `made`. Otherwise adds `made`, which may be NULL, and frees the cached function. An existing
 * function is preferred because steps may be queued with it. Returns false if there is no
 * function after that. */
static bool use_function(ch_ps *ps, const ch_graph *g, const located *l, unsigned generation,
                         ch_ps_function *made, uint64_t *number)
{
    ch_ps_function *f, *other = made, *last = NULL;

    (void)ch__task_enter(ps->coord);
    f = remove_function(ps, g);
    if (f == NULL || !matches(f, l)) {
        other = f;
        f = made;
    }
    if (f != NULL) {
        f->generation = generation;
        *number = f->number;
        push_function(ps, f);
        last = remove_oldest(ps);
    }
    ch__task_leave(ps->coord);
    forget_function(ps, other);
    forget_function(ps, last);
    return f != NULL;
}

/* Returns true if the cache has a function of `g` and the variables have not changed since they
 * were last found. Moves the function to the front. */
static bool find_current(ch_ps *ps, const ch_graph *g, unsigned generation, uint64_t *number)
{
    ch_ps_function *f;
    bool            known;

    (void)ch__task_enter(ps->coord);
    f = ps->functions;
    if (f == NULL || f->graph != g) {
        f = remove_function(ps, g);
        if (f != NULL)
            push_function(ps, f);
    }
    known = f != NULL && f->generation == generation;
    if (known)
        *number = f->number;
    ch__task_leave(ps->coord);
    return known;
}

ch_status ch__ps_function(ch_ps *ps, ch_graph *g, uint64_t *number)
{
    unsigned        generation = atomic_load(&ps->strategy->generation);
    located         l = {0};
    ch_ps_function *f = NULL;
    ch_status       rc;

    if (find_current(ps, g, generation, number))
        return CH_OK;
    rc = locate(ps->strategy, g, &l);
    if (rc == CH_OK && !use_function(ps, g, &l, generation, NULL, number)) {
        rc = make_function(ps, g, &l, &f);
        if (rc == CH_OK)
            (void)use_function(ps, g, &l, generation, f, number);
    }
    drop_located(&l);
    return rc;
}

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
    ch_step_request o = {.seed = run->seed, .snapshot = snapshot, .is_own = is_own};
    ch_ps_inputs    in;
    ch_status       rc = ch__run_record(run, g, &o.number);

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
