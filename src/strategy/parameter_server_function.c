/* strategy/parameter_server_function.c -- functions of the parameter-server strategy: the
 * graphs that workers run.
 *
 * ch__ps_function finds the function of a recorded graph, or makes it: it finds the variables
 * of the graph (located), makes a step plan (job/step_plan.h), encodes it, and sends it to the
 * coordinator task, which gives it a number. Functions are cached in ps->functions
 * (ch_ps_function). parameter_server_run.c and coordinator.c schedule steps by these numbers.
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
    int              *axis;      /* the sharded axis; -1: not sharded */
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
    ch__free(l->axis);
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
    l->axis = ch__calloc((size_t)g->n_resources + 1, sizeof(int));
    l->variable = ch__calloc((size_t)g->n_resources + 1, sizeof(*l->variable));
    if (l->var == NULL || l->placement == NULL || l->axis == NULL || l->variable == NULL)
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
    l->axis[i] = s->on_servers.n_shards > 1 ? s->on_servers.axis : -1;
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
        return ch__step_plan_new(g, l->placement, l->axis, out);
    rc = ch__ps_worker_graph(g, l->var, &inner);
    if (rc == CH_OK)
        rc = ch__step_plan_new(inner, l->placement, l->axis, out);
    if (rc == CH_OK && g->n_inputs == 0)
        (*out)->rows =
            (*out)->n_inputs; /* the inputs are variables; none has the rows of the step */
    ch_graph_unref(inner);
    return rc;
}

/* Notes that `caller` records an op of this name. */
static void list_op(const char *name, const void *caller, ch_function_spec *out)
{
    int i = 0;

    while (i < out->n_ops && strcmp(out->op[i].name, name) != 0)
        i++;
    if (i == out->n_ops)
        out->op[out->n_ops++] = (ch_recorded_op){name, caller};
    else if (out->op[i].caller != caller)
        out->op[i].caller = NULL; /* called from several lines */
}

/* Lists the ops and composite ops of a graph with the source lines that call them, for error
 * messages. If memory is exhausted, the list is empty and messages name no line. */
static void list_ops(const ch_graph *g, ch_function_spec *out)
{
    out->op = ch__calloc(2 * (size_t)g->n_calls + 1, sizeof(*out->op));
    for (const ch_node *n = g->first; n != NULL && out->op != NULL; n = n->next) {
        list_op(n->op->name, n->caller, out);
        if (n->composite != NULL)
            list_op(strncmp(n->composite, "ch_", 3) == 0 ? n->composite + 3 : n->composite,
                    n->caller, out);
    }
}

/* Sends a function to the coordinator task. Takes over the reference to `plan`, also on an
 * error. */
static ch_status add_function(ch_ps *ps, const ch_graph *g, const located *l, ch_tensor *plan,
                              const ch_updates *updates, bool has_results, uint64_t *number)
{
    ch_per_worker_spec *per_worker = ch__calloc((size_t)l->n + 1, sizeof(*per_worker));
    ch_function_spec    f = {.name = g->name,
                             .per_worker = per_worker,
                             .updates = *updates,
                             .has_results = has_results};
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

/* Returns true if an update of the plan returns results to the worker. */
static bool has_results(const ch_step_plan *plan)
{
    for (int i = 0; i < plan->n_remote_parts; i++)
        if (plan->remote[i].kind == CH_REMOTE_UPDATE && plan->remote[i].n_out > 0)
            return true;
    return false;
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
        rc = add_function(ps, g, l, bytes, &updates, has_results(plan), &f->number);
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
