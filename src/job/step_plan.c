/* job/step_plan.c -- divides the graph of a step into local and remote parts (step_plan.h).
 *
 * ch__step_plan_new makes its decisions in this order. The struct `planner` holds them.
 *   1. mark_servers: the calls that run on servers, for each placement.
 *   2. join_updates: the calls on servers that belong to the same update.
 *   3. mark_worker: the values that the worker needs. Goes backwards from the results of the
 *      step and from the inputs of updates.
 *   4. add_reads, add_updates: the remote parts, with the graphs of the updates.
 *   5. set_levels: for each value, the number of exchanges with servers before it is available.
 *   6. set_local_parts: the local part in which each call of the worker runs.
 *   7. add_local_parts: the graphs of the local parts.
 * An update may return the new value of a variable to the worker. If the update needs an input
 * that depends on that value, or must wait for a read that does, then 5 finds a cycle. All is
 * then done again with `no_returns`: the worker computes the new value itself.
 *
 * Invariants:
 *   1. A call runs in one update, in one local part, or not at all. Exceptions: free calls
 *      (constants) are copied into each part that uses them, and the worker may compute a value
 *      again that an update computes too.
 *   2. The numbers of values begin with the inputs of the step. A value has a number if and
 *      only if it passes between parts, or is an input or a result of the step.
 *   3. A call runs on a server only if it cannot fail, is not random, and gives the same bits
 *      there.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/step_plan.h"

#include <string.h>

#include "graph/extract.h"
#include "job/step_exec.h"
#include "ops/apply.h"
#include "ops/lookup.h"
#include "ops/ops.h"

enum { NONE = -1 };

typedef struct planner {
    const ch_graph *g;
    const int      *placement; /* by resource */
    int             n_calls;
    ch_node       **call; /* heads of the calls, in order */
    ch_step_plan   *plan; /* under construction */

    /* Tables by value id. The entry of a call is that of its head. */

    /* Of a call: the update to which it belongs, a union-find tree (find_update). NONE: the
     * call does not run on a server. */
    int            *update;
    int            *placement_of; /* of a call on a server: its placement */
    unsigned char  *computable;   /* scratch for a placement: the value can be computed there */
    unsigned char  *needed;       /* the worker needs the value */
    unsigned char  *reads_whole;  /* of a read: the worker needs the whole variable */
    unsigned char  *on_worker;    /* of a call: the worker runs it */
    unsigned char  *returned;     /* an update computes the value and may return it */
    unsigned char  *in_part;      /* scratch: calls of the part that is being extracted */
    int            *level;        /* exchanges with servers before the value is available */
    int            *local_part;   /* of a call of the worker: index of its local part */
    int            *value_number; /* of the value in the plan; NONE: it has no number */
    int            *remote_of;    /* remote part that produces the value; NONE: none does */
    const ch_node **first_of_symbol; /* by symbol: the first value that has such a size */
    bool            no_returns;      /* updates must not return values to the worker */
} planner;

/* ---- sizes ---- */

static bool has_symbol(const ch_node *n, int sym)
{
    for (int k = 0; k < n->dims.rank; k++)
        if (n->dims.dim[k].sym == sym)
            return true;
    return false;
}

/* Fills the table of the first value with each symbol. */
static void find_size_sources(planner *c)
{
    for (int i = 0; i < c->n_calls; i++)
        for (int o = 0; o < c->call[i]->n_out; o++)
            for (int k = 0; k < c->call[i][o].dims.rank; k++) {
                int sym = c->call[i][o].dims.dim[k].sym;

                if (sym != 0 && c->first_of_symbol[sym] == NULL)
                    c->first_of_symbol[sym] = &c->call[i][o];
            }
}

/* Returns the value that output axis k of a call depends on only by its size: the size is a
 * symbol that none of the inputs has. The call depends on that value as on an input. NULL:
 * there is none. Inputs of the step do not count, because they are always available. */
static const ch_node *size_source(const planner *c, const ch_node *n, int k)
{
    int            sym = n->dims.dim[k].sym;
    const ch_node *source = sym != 0 ? c->first_of_symbol[sym] : NULL;

    if (source == NULL || source->head == n->head || source->op == ch__roles.input)
        return NULL;
    for (int i = 0; i < n->n_in; i++)
        if (has_symbol(n->in[i], sym))
            return NULL;
    return source;
}

/* Returns the number of possible dependencies of a call: inputs, and a value for each axis. */
static int count_dependencies(const ch_node *n)
{
    return n->n_in + n->dims.rank;
}

/* Returns dependency k of a call; NULL: none. */
static const ch_node *dependency(const planner *c, const ch_node *n, int k)
{
    return k < n->n_in ? n->in[k] : size_source(c, n, k - n->n_in);
}

/* ---- calls on servers ---- */

/* Returns true if output 0 of the call has the sizes of input i and can be sharded like it. */
static bool keeps_sizes(const ch_node *n, const ch_factors *f, int i)
{
    const ch_dims *in = &n->in[i]->dims;

    if (i >= f->n_in || in->rank > n->dims.rank || (in->rank < n->dims.rank && in->rank != 1))
        return false;
    for (int k = 0; k < in->rank; k++)
        if (!ch__dim_same(in->dim[k], n->dims.dim[k]) ||
            (f->in[i][k] != f->out[0][k] && !ch__dim_is(in->dim[k], 1)))
            return false;
    /* An input of lower rank is a slot of an optimizer with a number for each row. */
    return in->rank == n->dims.rank || f->n_out > 1;
}

/* Returns true if the op of a call may run on a server: it cannot fail, is not random, and
 * gives the same result as on the worker. */
static bool fits_server(const ch_node *n)
{
    const unsigned never = CH_OP_RANDOM | CH_OP_EFFECT | CH_OP_COLLECTIVE | CH_OP_CAN_FAIL |
                           CH_OP_HOST | CH_OP_READS_ENV | CH_OP_VARIES;

    return n->op->factors != NULL && (n->op->flags & never) == 0 && n->n_in <= 8 &&
           n->n_out <= 8;
}

/* Returns true if the call may run on a server and keeps the sizes of a computable input. */
static bool can_run_on_server(const planner *c, const ch_node *n)
{
    ch_factors f = {0};

    if (!fits_server(n) || n->op->factors(n, &f) != CH_OK || f.n_out == 0)
        return false;
    for (int i = 0; i < n->n_in; i++)
        if (c->computable[n->in[i]->id] && keeps_sizes(n, &f, i))
            return true;
    return false;
}

/* Marks all values that can be computed on the servers of a placement. */
static void mark_computable(planner *c, int placement)
{
    memset(c->computable, 0, (size_t)c->g->n_values);
    for (int i = 0; i < c->g->n_resources; i++)
        if (c->placement[i] == placement && c->g->resource[i].read != NULL)
            c->computable[c->g->resource[i].read->id] = 1;
    for (int i = 0; i < c->n_calls; i++)
        if (can_run_on_server(c, c->call[i]))
            for (int k = 0; k < c->call[i]->n_out; k++)
                c->computable[c->call[i][k].id] = 1;
}

static bool is_written(const ch_resource *r)
{
    return r->value != r->read;
}

static bool is_read(const ch_node *n)
{
    return n->head->op == ch__roles.read;
}

/* Lets the call of `n` run on servers, if it can and is not assigned to other servers. */
static void assign_to_server(planner *c, const ch_node *n, int placement)
{
    int id = n->head->id;

    if (!c->computable[n->id] || c->update[id] != NONE)
        return;
    c->update[id] = id;
    c->placement_of[id] = placement;
}

/* Assigns calls to the servers of a placement: from the values that are written to its
 * variables backwards, as far as the calls can run there. */
static void mark_servers(planner *c, int placement)
{
    mark_computable(c, placement);
    for (int i = 0; i < c->g->n_resources; i++)
        if (c->placement[i] == placement && is_written(&c->g->resource[i]))
            assign_to_server(c, c->g->resource[i].value, placement);
    for (int i = c->n_calls - 1; i >= 0; i--) {
        const ch_node *n = c->call[i];

        for (int k = 0;
             c->update[n->id] != NONE && c->placement_of[n->id] == placement && k < n->n_in;
             k++)
            assign_to_server(c, n->in[k], placement);
    }
}

/* ---- calls that form an update ---- */

/* Returns the root of the update to which a call belongs. */
static int find_update(planner *c, int id)
{
    while (c->update[id] != id)
        id = c->update[id] = c->update[c->update[id]];
    return id;
}

/* Returns true if the call of `n` runs on a server. */
static bool is_on_server(const planner *c, const ch_node *n)
{
    return c->update[n->head->id] != NONE;
}

/* Returns true if input k of a call on a server is computed on the same servers. */
static bool is_on_same_server(const planner *c, const ch_node *n, int k)
{
    return is_on_server(c, n->in[k]) &&
           c->placement_of[n->in[k]->head->id] == c->placement_of[n->id];
}

/* Returns true if calls on its own server read the resource. */
static bool is_read_on_server(const planner *c, const ch_resource *r)
{
    return r->read != NULL && is_on_server(c, r->read);
}

/* Returns true if the value that is written to a resource is not computed on its own server. */
static bool is_assigned(const planner *c, int resource)
{
    const ch_resource *r = &c->g->resource[resource];

    return is_written(r) && (!is_on_server(c, r->value) ||
                             c->placement_of[r->value->head->id] != c->placement[resource]);
}

/* Joins calls on servers to updates. A call joins the calls whose results it uses; a read joins
 * all calls that use it. The calls that read a variable join the calls that write it, because
 * they must read its old value. */
static void join_updates(planner *c)
{
    for (int i = 0; i < c->n_calls; i++) {
        const ch_node *n = c->call[i];

        for (int k = 0; is_on_server(c, n) && !is_read(n) && k < n->n_in; k++)
            if (is_on_same_server(c, n, k))
                c->update[find_update(c, n->in[k]->head->id)] = find_update(c, n->id);
    }
    for (int i = 0; i < c->g->n_resources; i++) {
        const ch_resource *r = &c->g->resource[i];

        if (is_written(r) && !is_assigned(c, i) && is_read_on_server(c, r))
            c->update[find_update(c, r->read->id)] = find_update(c, r->value->head->id);
    }
}

/* ---- values that the worker needs ---- */

/* Returns true if the call looks up rows of a variable. The servers can do this, so that only
 * the rows are sent. */
static bool is_row_gather(const ch_node *n)
{
    return n->op == &ch__op_gather && is_read(n->in[0]) && ch__gather_is_rows(n);
}

/* Returns true if the call computes norms of a variable and its slots that have the same
 * placement. Then each server computes the sum over its shard. */
static bool is_shard_sum(const planner *c, const ch_node *n)
{
    int placement = NONE;

    if (n->op != &ch__op_apply_norms)
        return false;
    for (int k = 0; k < n->n_in; k++) {
        const ch_read_attrs *a;

        if (!ch__norms_reads_variable(k))
            continue;
        if (!is_read(n->in[k]))
            return false;
        a = ch__attrs(n->in[k]);
        if (placement != NONE && c->placement[a->resource] != placement)
            return false;
        placement = c->placement[a->resource];
    }
    return true;
}

/* Marks a value that the worker needs. */
static void mark_needed(planner *c, const ch_node *n)
{
    c->needed[n->id] = 1;
    if (is_read(n))
        c->reads_whole[n->id] = 1;
}

/* Returns true if a value is a free scalar, which the server computes itself. A free value with
 * axes does not count, because a shard would need its part of it. */
static bool is_free_on_server(const ch_node *n)
{
    return n->dims.rank == 0 && ch__call_is_copyable(n->head);
}

/* Marks the inputs of a call on a server that the worker must send. */
static void mark_update_inputs(planner *c, const ch_node *n)
{
    for (int k = 0; k < n->n_in; k++)
        if (!is_on_same_server(c, n, k) && !is_free_on_server(n->in[k]))
            mark_needed(c, n->in[k]);
}

/* Marks the new values of variables that updates can return to the worker. */
static void mark_returned(planner *c)
{
    for (int i = 0; i < c->g->n_resources && !c->no_returns; i++) {
        const ch_resource *r = &c->g->resource[i];

        if (is_written(r) && is_on_server(c, r->value) && !is_read(r->value))
            c->returned[r->value->id] = 1;
    }
}

/* Returns true if the worker must run a call: the call has an effect, or the worker needs
 * an output of it that no update returns. */
static bool is_needed(const planner *c, const ch_node *n)
{
    bool needed = ch__call_is_root(n);

    for (int k = 0; k < n->n_out; k++)
        needed |= c->needed[n[k].id] && !c->returned[n[k].id];
    return needed;
}

/* Marks the dependencies of a call of the worker, except those that stay on servers: the table
 * of a lookup, or the variable and slots of norms. */
static void mark_call_inputs(planner *c, const ch_node *n)
{
    bool is_sum_call = is_shard_sum(c, n), is_lookup_call = is_row_gather(n);

    for (int k = 0; k < count_dependencies(n); k++) {
        const ch_node *in = dependency(c, n, k);
        bool           stays =
            is_lookup_call ? k == 0 : is_sum_call && k < n->n_in && ch__norms_reads_variable(k);

        if (in != NULL && !stays)
            mark_needed(c, in);
    }
}

/* Marks the values that the worker needs and the calls that it runs. */
static void mark_worker(planner *c)
{
    const ch_graph *g = c->g;

    mark_returned(c);
    for (int i = 0; i < g->n_outputs; i++)
        mark_needed(c, g->output[i].node);
    for (int i = 0; i < g->n_resources; i++)
        if (is_assigned(c, i) && !is_free_on_server(g->resource[i].value))
            mark_needed(c, g->resource[i].value);
    for (int i = c->n_calls - 1; i >= 0; i--) {
        const ch_node *n = c->call[i];

        if (is_on_server(c, n) && !is_read(n))
            mark_update_inputs(c, n);
        if (is_read(n) || n->op == ch__roles.input || !is_needed(c, n))
            continue;
        c->on_worker[n->id] = 1;
        mark_call_inputs(c, n);
    }
}

/* Returns true if the call is a lookup that the servers do. The worker does the lookup itself
 * if it reads the whole table anyway. */
static bool is_lookup(const planner *c, const ch_node *n)
{
    return c->on_worker[n->id] && is_row_gather(n) && !c->reads_whole[n->in[0]->id];
}

/* ---- remote parts ---- */

/* Allocates n objects, at least one, in the arena of the plan. NULL: out of memory. */
static void *alloc(planner *c, int n, size_t size)
{
    return ch__arena_alloc(&c->plan->arena, (size_t)(n > 0 ? n : 1) * size);
}

/* Returns the number of a value in the plan. Assigns the next number if it has none. */
static int number_of(planner *c, const ch_node *n)
{
    if (c->value_number[n->id] == NONE)
        c->value_number[n->id] = c->plan->n_values++;
    return c->value_number[n->id];
}

/* Adds a value to the results of a remote part. */
static ch_status add_result(planner *c, ch_remote_part *r, const ch_node *n)
{
    if (r->out == NULL && (r->out = alloc(c, CH_MAX_OUT, sizeof(int))) == NULL)
        return ch__fail_memory("a step plan");
    if (r->n_out == CH_MAX_OUT)
        return ch__fail(CH_UNIMPLEMENTED, "%s: an update returns more than %d values",
                        c->g->name, CH_MAX_OUT);
    r->out[r->n_out++] = number_of(c, n);
    c->remote_of[n->id] = (int)(r - c->plan->remote);
    return CH_OK;
}

/* Sets the variables of a remote part, given as resources of the graph. */
static ch_status set_variables(planner *c, ch_remote_part *r, int n, const int *resource)
{
    r->placement = c->placement[resource[0]];
    r->n_variables = n;
    r->variable = alloc(c, n, sizeof(int));
    if (r->variable == NULL)
        return ch__fail_memory("a step plan");
    memcpy(r->variable, resource, (size_t)n * sizeof(int));
    return CH_OK;
}

static ch_status add_read(planner *c, int resource)
{
    ch_remote_part *r = &c->plan->remote[c->plan->n_remote_parts++];
    ch_status       rc;

    *r = (ch_remote_part){.kind = CH_REMOTE_READ};
    rc = set_variables(c, r, 1, &resource);
    return rc == CH_OK ? add_result(c, r, c->g->resource[resource].read) : rc;
}

static ch_status add_lookup(planner *c, const ch_node *n)
{
    ch_remote_part      *r = &c->plan->remote[c->plan->n_remote_parts++];
    const ch_read_attrs *a = ch__attrs(n->in[0]);
    int                  resource = (int)a->resource;
    ch_status            rc;

    *r = (ch_remote_part){.kind = CH_REMOTE_ROWS,
                          .or_zero = ch__gather_gives_zeros(n),
                          .n_in = 1,
                          .in = alloc(c, 1, sizeof(ch_plan_input))};
    rc = r->in == NULL ? ch__fail_memory("a step plan") : set_variables(c, r, 1, &resource);
    if (rc != CH_OK)
        return rc;
    r->in[0] = (ch_plan_input){number_of(c, n->in[1]), CH_SHARD_IDS, NONE};
    c->on_worker[n->id] = 0;
    return add_result(c, r, n);
}

/* Adds a remote part for each variable that the worker reads, and for each lookup. */
static ch_status add_reads(planner *c)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < c->g->n_resources && rc == CH_OK; i++)
        if (c->g->resource[i].read != NULL && c->reads_whole[c->g->resource[i].read->id])
            rc = add_read(c, i);
    for (int i = 0; i < c->n_calls && rc == CH_OK; i++)
        if (is_lookup(c, c->call[i]))
            rc = add_lookup(c, c->call[i]);
    return rc;
}

/* ---- updates ---- */

/* An update under construction. The lists have room for all values of the graph. */
typedef struct update_builder {
    int             n_resources, n_in, n_out;
    int            *resource;
    const ch_node **in, **out;
    ch_remote_part *remote;
} update_builder;

/* Returns the index of an input of the update. Adds the input if it is new. */
static int update_input(update_builder *u, const ch_node *n)
{
    for (int i = 0; i < u->n_in; i++)
        if (u->in[i] == n)
            return i;
    u->in[u->n_in] = n;
    return u->n_in++;
}

/* Returns true if input k of a call is aligned with its output 0 in some axis, so that a shard
 * needs a slice of it. The hyperparameters of an optimizer rule are not. */
static bool is_aligned(const ch_node *n, const ch_factors *f, int k)
{
    int rank = n->in[k]->dims.rank, skip = n->dims.rank - rank;

    for (int d = 0; d < rank && skip >= 0 && k < f->n_in; d++)
        if (f->in[k][d] >= 0 && f->in[k][d] == f->out[0][d + skip])
            return true;
    return false;
}

/* Returns true if the call updates rows by ids: input 1 has ids, input 2 has rows. */
static bool is_indexed(const ch_node *n, const ch_factors *f)
{
    return n->dims.rank > 0 && f->in[0][0] >= 0 && f->kind[f->in[0][0]] == CH_IDX;
}

/* Adds input k of a call to the update, with the role that says which part a shard receives. */
static ch_status add_update_input(planner *c, update_builder *u, const ch_node *n, int k)
{
    ch_factors    f = {0};
    ch_status     rc = n->op->factors(n, &f);
    ch_plan_input in = {number_of(c, n->in[k]), CH_SHARD_WHOLE, NONE};

    if (is_indexed(n, &f) && k == 1) {
        in.role = CH_SHARD_IDS;
    } else if (is_indexed(n, &f) && k == 2 && is_on_same_server(c, n, 1)) {
        in.role =
            CH_SHARD_SLICE; /* ids that a server computes: an id for each row of its shard */
    } else if (is_indexed(n, &f) && k == 2) {
        in.role = CH_SHARD_ROWS;
        in.ids = update_input(u, n->in[1]);
    } else if (is_aligned(n, &f, k)) {
        in.role = CH_SHARD_SLICE;
    }
    u->remote->in[update_input(u, n->in[k])] = in;
    return rc;
}

/* Adds a call with its inputs, and the results that the worker needs, to the update. */
static ch_status add_update_call(planner *c, update_builder *u, const ch_node *n)
{
    ch_status rc = CH_OK;

    c->in_part[n->id] = 1;
    for (int k = 0; k < n->n_in && rc == CH_OK; k++)
        if (!is_on_same_server(c, n, k) && !is_free_on_server(n->in[k]))
            rc = add_update_input(c, u, n, k);
    for (int k = 0; k < n->n_out && rc == CH_OK; k++)
        if (c->returned[n[k].id] && c->needed[n[k].id]) {
            u->out[u->n_out++] = &n[k];
            rc = add_result(c, u->remote, &n[k]);
        }
    return rc;
}

static void add_update_resource(update_builder *u, int i)
{
    u->resource[u->n_resources++] = i;
}

/* Begins a new remote part with room for `max_in` inputs. */
static ch_status begin_update(planner *c, update_builder *u, int max_in)
{
    u->remote = &c->plan->remote[c->plan->n_remote_parts++];
    *u->remote = (ch_remote_part){.kind = CH_REMOTE_UPDATE,
                                  .in = alloc(c, max_in, sizeof(ch_plan_input))};
    u->n_resources = u->n_in = u->n_out = 0;
    memset(c->in_part, 0, (size_t)c->g->n_values);
    return u->remote->in == NULL ? ch__fail_memory("a step plan") : CH_OK;
}

/* Extracts the graph of the update. */
static ch_status end_update(planner *c, update_builder *u)
{
    char       name[64];
    ch_extract e = {.name = name,
                    .take = c->in_part,
                    .n_in = u->n_in,
                    .n_out = u->n_out,
                    .in = u->in,
                    .out = u->out,
                    .n_resources = u->n_resources,
                    .resource = u->resource,
                    .only_reads = u->remote->is_sum};

    snprintf(name, sizeof(name), "%.40s update %d", c->g->name,
             (int)(u->remote - c->plan->remote));
    u->remote->n_in = u->n_in;
    if (set_variables(c, u->remote, u->n_resources, u->resource) != CH_OK)
        return CH_RESOURCE_EXHAUSTED;
    return ch__graph_extract(c->g, &e, &u->remote->graph);
}

/* Makes the value that is assigned to a resource an input of the update, unless it is free. A
 * shard receives its slice of the value, so no other call may need it in another role. */
static ch_status add_assigned_value(planner *c, update_builder *u, int resource)
{
    const ch_node *w = c->g->resource[resource].value;
    int            n_in = u->n_in, at;

    if (is_free_on_server(w))
        return CH_OK;
    at = update_input(u, w);
    if (at < n_in && u->remote->in[at].role != CH_SHARD_SLICE)
        return ch__fail(CH_UNIMPLEMENTED,
                        "%s: variable %s: its new value is also an input of another update on "
                        "its server, but not sliced like the variable; assign it in a separate "
                        "step",
                        c->g->name, c->g->resource[resource].name);
    u->remote->in[at] = (ch_plan_input){number_of(c, w), CH_SHARD_SLICE, NONE};
    return CH_OK;
}

/* Adds the update with this root. */
static ch_status add_update(planner *c, update_builder *u, int root)
{
    ch_status rc = begin_update(c, u, c->g->n_values);

    for (int i = 0; i < c->n_calls && rc == CH_OK; i++)
        if (is_on_server(c, c->call[i]) && !is_read(c->call[i]) &&
            find_update(c, c->call[i]->id) == root)
            rc = add_update_call(c, u, c->call[i]);
    for (int i = 0; i < c->g->n_resources && rc == CH_OK; i++) {
        const ch_resource *r = &c->g->resource[i];
        bool reads = is_read_on_server(c, r) && find_update(c, r->read->id) == root;
        bool writes =
            is_written(r) && !is_assigned(c, i) && find_update(c, r->value->head->id) == root;

        if (reads || writes)
            add_update_resource(u, i);
        if (reads && is_assigned(c, i))
            rc = add_assigned_value(c, u, i);
    }
    return rc == CH_OK ? end_update(c, u) : rc;
}

/* Adds an update that only assigns a value of the worker to a variable. */
static ch_status add_assign(planner *c, update_builder *u, int resource)
{
    ch_status rc = begin_update(c, u, 1);

    if (rc == CH_OK)
        rc = add_assigned_value(c, u, resource);
    if (rc != CH_OK)
        return rc;
    add_update_resource(u, resource);
    return end_update(c, u);
}

/* Adds an update that computes norms and writes nothing. The worker adds its results. */
static ch_status add_norms(planner *c, update_builder *u, const ch_node *n)
{
    ch_status rc = begin_update(c, u, n->n_in);

    if (rc != CH_OK)
        return rc;
    u->remote->is_sum = true;
    c->in_part[n->id] = 1;
    for (int k = 0; k < n->n_in; k++) {
        bool is_like =
            n->in[k]->dims.rank > 0 && ch__dims_same(&n->in[k]->dims, &n->in[0]->dims);

        if (ch__norms_reads_variable(k))
            add_update_resource(u, (int)((const ch_read_attrs *)ch__attrs(n->in[k]))->resource);
        else
            u->remote->in[update_input(u, n->in[k])] = (ch_plan_input){
                number_of(c, n->in[k]), is_like ? CH_SHARD_SLICE : CH_SHARD_WHOLE, NONE};
    }
    u->out[u->n_out++] = n;
    c->on_worker[n->id] = 0;
    rc = add_result(c, u->remote, n);
    return rc == CH_OK ? end_update(c, u) : rc;
}

/* Adds all updates: calls on servers, norms, and assigns. */
static ch_status add_updates(planner *c)
{
    update_builder u = {.resource = alloc(c, c->g->n_resources, sizeof(int)),
                        .in = alloc(c, c->g->n_values, sizeof(ch_node *)),
                        .out = alloc(c, c->g->n_values, sizeof(ch_node *))};
    ch_status      rc = u.resource == NULL || u.in == NULL || u.out == NULL
                            ? ch__fail_memory("a step plan")
                            : CH_OK;

    for (int i = 0; i < c->n_calls && rc == CH_OK; i++) {
        int id = c->call[i]->id;

        if (c->update[id] == id)
            rc = add_update(c, &u, id);
        else if (c->on_worker[id] && is_shard_sum(c, c->call[i]))
            rc = add_norms(c, &u, c->call[i]);
    }
    for (int i = 0; i < c->g->n_resources && rc == CH_OK; i++)
        if (is_assigned(c, i) && !is_read_on_server(c, &c->g->resource[i]))
            rc = add_assign(c, &u, i);
    return rc;
}

/* ---- order of execution ---- */

/* Returns true if update `r` writes a variable. */
static bool writes(const ch_remote_part *r, int variable)
{
    for (int i = 0; i < r->n_variables; i++)
        if (r->variable[i] == variable)
            return is_written(&r->graph->resource[i]);
    return false;
}

bool ch__remote_follows(const ch_remote_part *r, const ch_remote_part *other)
{
    if (r->kind != CH_REMOTE_UPDATE || r->is_sum ||
        (other->kind == CH_REMOTE_UPDATE && !other->is_sum))
        return false;
    for (int i = 0; i < other->n_variables; i++)
        if (writes(r, other->variable[i]))
            return true;
    return false;
}

/* Returns the level at which a remote part can use a value: its own level, or the next if the
 * worker computes it, because a local part must run first. */
static int ready_level(const planner *c, const ch_node *n)
{
    return c->level[n->id] + c->on_worker[n->head->id];
}

/* Returns the node of the value with this number. */
static const ch_node *value_node(const planner *c, int number)
{
    for (int i = 0; i < c->n_calls; i++)
        for (int k = 0; k < c->call[i]->n_out; k++)
            if (c->value_number[c->call[i][k].id] == number)
                return &c->call[i][k];
    return NULL;
}

/* Raises the levels of the results of a remote part. Returns true if a level has changed. */
static bool raise_remote(planner *c, const ch_remote_part *r, const ch_node *const *node)
{
    bool changed = false;
    int  level = 0;

    for (int i = 0; i < r->n_in; i++)
        if (ready_level(c, node[r->in[i].value]) > level)
            level = ready_level(c, node[r->in[i].value]);
    for (int i = 0; i < c->plan->n_remote_parts; i++) {
        const ch_remote_part *other = &c->plan->remote[i];

        if (ch__remote_follows(r, other) && c->level[node[other->out[0]]->id] > level)
            level = c->level[node[other->out[0]]->id];
    }
    for (int i = 0; i < r->n_out; i++) {
        int *at = &c->level[node[r->out[i]]->id];

        changed |= *at < level;
        *at = level > *at ? level : *at;
    }
    return changed;
}

/* Raises the levels of the outputs of a call of the worker. Returns true if one changed. */
static bool raise_call(planner *c, const ch_node *n)
{
    bool changed = false;
    int  level = 0;

    for (int k = 0; k < count_dependencies(n); k++)
        if (dependency(c, n, k) != NULL && c->level[dependency(c, n, k)->id] > level)
            level = c->level[dependency(c, n, k)->id];
    for (int k = 0; k < n->n_out; k++)
        if (c->remote_of[n[k].id] == NONE && c->level[n[k].id] < level) {
            c->level[n[k].id] = level;
            changed = true;
        }
    return changed;
}

/* Sets all levels, by iteration to a fixed point. Returns false if there is none: an update
 * needs an input, or must wait for a read, that depends on its own results. */
static bool set_levels(planner *c, const ch_node *const *node)
{
    const ch_step_plan *r = c->plan;
    bool                changed = true;

    for (int round = 0; changed; round++) {
        if (round > r->n_remote_parts + 1)
            return false;
        changed = false;
        for (int i = 0; i < c->n_calls; i++)
            changed |= c->on_worker[c->call[i]->id] && raise_call(c, c->call[i]);
        for (int i = 0; i < r->n_remote_parts; i++)
            changed |= raise_remote(c, &r->remote[i], node);
    }
    return true;
}

/* Limits the local part of the call that computes `n`. */
static void limit_local_part(planner *c, const ch_node *n, int max)
{
    int *at = &c->local_part[n->head->id];

    *at = *at < max ? *at : max;
}

/* Sets the local part of each call of the worker, as late as the users of its results allow. So
 * a lookup does not wait for calls that it does not need. Returns the number of local parts. */
static int set_local_parts(planner *c, const ch_node *const *node)
{
    const ch_step_plan *r = c->plan;
    int                 last = 0;

    for (int i = 0; i < c->n_calls; i++)
        for (int k = 0; c->on_worker[c->call[i]->id] && k < count_dependencies(c->call[i]);
             k++) {
            const ch_node *in = dependency(c, c->call[i], k);

            last = in != NULL && c->level[in->id] > last ? c->level[in->id] : last;
        }
    for (int i = 0; i < c->n_calls; i++)
        c->local_part[c->call[i]->id] = last;
    for (int i = 0; i < r->n_remote_parts; i++)
        for (int k = 0; k < r->remote[i].n_in && r->remote[i].n_out > 0; k++)
            limit_local_part(c, node[r->remote[i].in[k].value],
                             c->level[node[r->remote[i].out[0]]->id] - 1);
    for (int i = c->n_calls - 1; i >= 0; i--)
        for (int k = 0; c->on_worker[c->call[i]->id] && k < count_dependencies(c->call[i]); k++)
            if (dependency(c, c->call[i], k) != NULL)
                limit_local_part(c, dependency(c, c->call[i], k),
                                 c->local_part[c->call[i]->id]);
    return last + 1;
}

/* ---- local parts ---- */

/* A local part under construction. */
typedef struct local_part_builder {
    const ch_node **in, **out; /* values that enter and leave it */
    int             n_in, n_out, n_calls;
    unsigned char  *is_in, *is_out; /* by value id */
} local_part_builder;

/* Returns true if local part `at` computes the value. */
static bool is_in_part(const planner *c, const ch_node *n, int at)
{
    return c->on_worker[n->head->id] && c->local_part[n->head->id] == at &&
           c->remote_of[n->id] == NONE;
}

/* Adds a value that enters (`into`) or leaves the local part, once. */
static void add_crossing(planner *c, local_part_builder *s, const ch_node *n, bool into)
{
    unsigned char  *seen = into ? s->is_in : s->is_out;
    const ch_node **list = into ? s->in : s->out;

    if (seen[n->id])
        return;
    seen[n->id] = 1;
    list[into ? s->n_in++ : s->n_out++] = n;
    (void)number_of(c, n);
}

/* Adds the inputs of the step that have symbols in their sizes, because a call may have such a
 * size and not use the input itself. */
static void add_size_inputs(planner *c, local_part_builder *s)
{
    for (int i = 0; i < c->g->n_inputs; i++)
        for (int k = 0; k < c->g->input[i]->dims.rank; k++)
            if (c->g->input[i]->dims.dim[k].sym != 0)
                add_crossing(c, s, c->g->input[i], true);
}

/* Finds the calls of local part `at` and the values that enter and leave it. Free values do not
 * pass between local parts, because each part has its own copy. They leave only if they have a
 * number: a remote part uses them or they are results of the step. */
static void find_crossings(planner *c, local_part_builder *s, int at)
{
    for (int i = 0; i < c->n_calls; i++) {
        const ch_node *n = c->call[i];
        bool           here = c->on_worker[n->id] && c->local_part[n->id] == at;

        c->in_part[n->id] = here;
        s->n_calls += here;
        for (int k = 0; c->on_worker[n->id] && k < count_dependencies(n); k++) {
            const ch_node *in = dependency(c, n, k);

            if (in == NULL || ch__call_is_copyable(in->head))
                continue;
            if (here && !is_in_part(c, in, at))
                add_crossing(c, s, in, true);
            if (!here && is_in_part(c, in, at))
                add_crossing(c, s, in, false);
        }
        for (int k = 0; k < n->n_out; k++)
            if (c->value_number[n[k].id] != NONE && is_in_part(c, &n[k], at))
                add_crossing(c, s, &n[k], false);
    }
}

static ch_status list_values(planner *c, int n, const ch_node *const *node, int **out)
{
    *out = alloc(c, n, sizeof(int));
    if (*out == NULL)
        return ch__fail_memory("a step plan");
    for (int i = 0; i < n; i++)
        (*out)[i] = c->value_number[node[i]->id];
    return CH_OK;
}

/* Adds local part `at` to the plan, unless it has no calls. */
static ch_status add_local_part(planner *c, local_part_builder *s, int at)
{
    char           name[64];
    ch_local_part *to = &c->plan->local_part[c->plan->n_local_parts];
    ch_extract     e = {.name = name, .take = c->in_part, .in = s->in, .out = s->out};
    ch_status      rc;

    s->n_in = s->n_out = s->n_calls = 0;
    memset(s->is_in, 0, (size_t)c->g->n_values);
    memset(s->is_out, 0, (size_t)c->g->n_values);
    memset(c->in_part, 0, (size_t)c->g->n_values);
    find_crossings(c, s, at);
    if (s->n_calls == 0)
        return CH_OK;
    add_size_inputs(c, s);
    snprintf(name, sizeof(name), "%.40s part %d", c->g->name, at);
    e.n_in = s->n_in;
    e.n_out = s->n_out;
    rc = ch__graph_extract(c->g, &e, &to->graph);
    if (rc != CH_OK)
        return rc;
    c->plan->n_local_parts++;
    to->n_in = s->n_in;
    to->n_out = s->n_out;
    rc = list_values(c, s->n_in, s->in, &to->in);
    return rc == CH_OK ? list_values(c, s->n_out, s->out, &to->out) : rc;
}

static ch_status add_local_parts(planner *c, int n)
{
    size_t             values = (size_t)c->g->n_values;
    local_part_builder s = {.in = alloc(c, c->g->n_values, sizeof(ch_node *)),
                            .out = alloc(c, c->g->n_values, sizeof(ch_node *)),
                            .is_in = alloc(c, (int)values, 1),
                            .is_out = alloc(c, (int)values, 1)};
    ch_status          rc = CH_OK;

    c->plan->local_part = alloc(c, n, sizeof(ch_local_part));
    if (s.in == NULL || s.out == NULL || s.is_in == NULL || s.is_out == NULL ||
        c->plan->local_part == NULL)
        return ch__fail_memory("a step plan");
    for (int i = 0; i < n && rc == CH_OK; i++)
        rc = add_local_part(c, &s, i);
    return rc;
}

/* ---- the plan ---- */

/* Finds the input that has the rows of the step. It is the first input, or, if that is the flat
 * values of a ragged component, the input with their row splits. */
static void find_rows(const ch_graph *g, ch_step_plan *plan)
{
    const ch_input_attrs *first = g->n_inputs > 0 ? ch__attrs(g->input[0]) : NULL;

    if (first == NULL)
        return;
    plan->rows_are_split = first->rows.rank == 1;
    for (int i = 0; i < g->n_inputs && first->splits != 0 && !plan->rows_are_split; i++) {
        const ch_input_attrs *a = ch__attrs(g->input[i]);

        if (a->rows.rank == 1 && a->dims.dim[0].sym == first->splits) {
            plan->rows = i;
            plan->rows_are_split = true;
        }
    }
}

/* Numbers the inputs, which come first, and the results of the step. A result that is a
 * constant is computed by the last local part. */
static ch_status number_ends(planner *c)
{
    const ch_graph *g = c->g;

    c->plan->n_inputs = g->n_inputs;
    find_rows(g, c->plan);
    for (int i = 0; i < g->n_inputs; i++)
        (void)number_of(c, g->input[i]);
    c->plan->n_outputs = g->n_outputs;
    c->plan->output = alloc(c, g->n_outputs, sizeof(int));
    if (c->plan->output == NULL)
        return ch__fail_memory("a step plan");
    for (int i = 0; i < g->n_outputs; i++)
        c->plan->output[i] = number_of(c, g->output[i].node);
    return CH_OK;
}

/* Returns true if no earlier resource has the same placement. */
static bool is_first_with_placement(const planner *c, int resource)
{
    for (int i = 0; i < resource; i++)
        if (c->placement[i] == c->placement[resource])
            return false;
    return true;
}

/* Builds the plan. Returns CH_ABORTED, without a message, if no_returns is needed. */
static ch_status build_plan(planner *c)
{
    const ch_node **node;
    ch_status       rc = number_ends(c);

    for (int i = 0; i < c->g->n_resources; i++)
        if (is_first_with_placement(c, i))
            mark_servers(c, c->placement[i]);
    join_updates(c);
    mark_worker(c);
    c->plan->remote = alloc(c, c->g->n_calls + 2 * c->g->n_resources, sizeof(ch_remote_part));
    if (rc == CH_OK && c->plan->remote == NULL)
        rc = ch__fail_memory("a step plan");
    if (rc == CH_OK)
        rc = add_reads(c);
    if (rc == CH_OK)
        rc = add_updates(c);
    node = rc == CH_OK ? alloc(c, c->plan->n_values, sizeof(ch_node *)) : NULL;
    if (rc == CH_OK && node == NULL)
        rc = ch__fail_memory("a step plan");
    for (int i = 0; rc == CH_OK && i < c->plan->n_values; i++)
        node[i] = value_node(c, i);
    if (rc != CH_OK)
        return rc;
    if (!set_levels(c, node))
        return CH_ABORTED;
    return add_local_parts(c, set_local_parts(c, node));
}

static ch_status alloc_tables(planner *c)
{
    size_t n = (size_t)c->g->n_values + 1;

    c->update = ch__arena_alloc(&c->plan->arena, n * sizeof(int));
    c->placement_of = ch__arena_alloc(&c->plan->arena, n * sizeof(int));
    c->level = ch__arena_alloc(&c->plan->arena, n * sizeof(int));
    c->local_part = ch__arena_alloc(&c->plan->arena, n * sizeof(int));
    c->value_number = ch__arena_alloc(&c->plan->arena, n * sizeof(int));
    c->remote_of = ch__arena_alloc(&c->plan->arena, n * sizeof(int));
    c->first_of_symbol = ch__arena_alloc(&c->plan->arena, ((size_t)c->g->n_symbols + 1) *
                                                              sizeof(*c->first_of_symbol));
    c->computable = ch__arena_alloc(&c->plan->arena, 6 * n);
    c->call = ch__arena_alloc(&c->plan->arena, ((size_t)c->g->n_calls + 1) * sizeof(*c->call));
    if (c->update == NULL || c->placement_of == NULL || c->level == NULL ||
        c->local_part == NULL || c->value_number == NULL || c->remote_of == NULL ||
        c->first_of_symbol == NULL || c->computable == NULL || c->call == NULL)
        return ch__fail_memory("a step plan");
    c->needed = c->computable + n;
    c->reads_whole = c->needed + n;
    c->on_worker = c->reads_whole + n;
    c->returned = c->on_worker + n;
    c->in_part = c->returned + n;
    for (size_t i = 0; i < n; i++)
        c->update[i] = c->value_number[i] = c->remote_of[i] = NONE;
    ch__graph_calls(c->g, c->call);
    c->n_calls = c->g->n_calls;
    find_size_sources(c);
    return CH_OK;
}

void ch__step_plan_free(ch_step_plan *r)
{
    if (r == NULL)
        return;
    for (int i = 0; i < r->n_remote_parts; i++)
        ch_graph_unref(r->remote[i].graph);
    for (int i = 0; i < r->n_local_parts; i++)
        ch_graph_unref(r->local_part[i].graph);
    ch__step_exec_cache_free(r->cache);
    ch__arena_drop(&r->arena);
    ch__free(r);
}

ch_status ch__step_plan_new(const ch_graph *g, const int *placement, ch_step_plan **out)
{
    ch_status rc = CH_ABORTED;

    for (int k = 0; k < 2 && rc == CH_ABORTED; k++) {
        planner c = {.g = g, .placement = placement, .no_returns = k == 1};

        c.plan = ch__calloc(1, sizeof(*c.plan));
        if (c.plan == NULL)
            return ch__fail_memory("a step plan");
        rc = alloc_tables(&c);
        if (rc == CH_OK)
            rc = build_plan(&c);
        if (rc == CH_OK)
            *out = c.plan;
        else
            ch__step_plan_free(c.plan);
    }
    return rc;
}
