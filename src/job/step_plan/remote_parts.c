/* job/step_plan/remote_parts.c -- builds the reads, lookups and updates of a step plan.
 *
 * ch__planner_add_remote_parts is decision 4 of planner.h. It follows the tables that place.c
 * has filled. An update_builder collects the calls, resources, inputs and results of an update;
 * end_update then extracts its graph. Three kinds of updates exist: the calls on servers that
 * join_updates has joined (add_update), the assignment of a value of the worker (add_assign),
 * and norms, which write nothing (add_norms).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "graph/extract.h"
#include "job/step_plan/planner.h"
#include "ops/apply.h"
#include "ops/lookup.h"
#include "ops/ops.h"

/* ---- reads and lookups ---- */

/* Adds a value to the results of a remote part. */
static ch_status add_result(ch_step_planner *c, ch_remote_part *r, const ch_node *n)
{
    if (r->out == NULL && (r->out = ch__planner_alloc(c, CH_MAX_OUT, sizeof(int))) == NULL)
        return ch__fail_memory("a step plan");
    if (r->n_out == CH_MAX_OUT)
        return ch__fail(CH_UNIMPLEMENTED, "%s: an update returns more than %d values",
                        c->g->name, CH_MAX_OUT);
    r->out[r->n_out++] = ch__planner_number(c, n);
    c->remote_of[n->id] = (int)(r - c->plan->remote);
    return CH_OK;
}

/* Sets the variables of a remote part, given as resources of the graph. */
static ch_status set_variables(ch_step_planner *c, ch_remote_part *r, int n,
                               const int *resource)
{
    r->placement = c->placement[resource[0]];
    r->n_variables = n;
    r->variable = ch__planner_alloc(c, n, sizeof(int));
    if (r->variable == NULL)
        return ch__fail_memory("a step plan");
    memcpy(r->variable, resource, (size_t)n * sizeof(int));
    return CH_OK;
}

static ch_status add_read(ch_step_planner *c, int resource)
{
    ch_remote_part *r = &c->plan->remote[c->plan->n_remote_parts++];
    ch_status       rc;

    *r = (ch_remote_part){.kind = CH_REMOTE_READ};
    rc = set_variables(c, r, 1, &resource);
    return rc == CH_OK ? add_result(c, r, c->g->resource[resource].read) : rc;
}

static ch_status add_lookup(ch_step_planner *c, const ch_node *n)
{
    ch_remote_part      *r = &c->plan->remote[c->plan->n_remote_parts++];
    const ch_read_attrs *a = ch__attrs(n->in[0]);
    int                  resource = (int)a->resource;
    ch_status            rc;

    *r = (ch_remote_part){.kind = CH_REMOTE_ROWS,
                          .or_zero = ch__gather_gives_zeros(n),
                          .n_in = 1,
                          .in = ch__planner_alloc(c, 1, sizeof(ch_plan_input))};
    rc = r->in == NULL ? ch__fail_memory("a step plan") : set_variables(c, r, 1, &resource);
    if (rc != CH_OK)
        return rc;
    r->in[0] = (ch_plan_input){ch__planner_number(c, n->in[1]), CH_SHARD_IDS, CH_NO_INDEX};
    c->on_worker[n->id] = 0;
    return add_result(c, r, n);
}

/* Adds a remote part for each variable that the worker reads, and for each lookup. */
static ch_status add_reads(ch_step_planner *c)
{
    ch_status rc = CH_OK;

    for (int i = 0; i < c->g->n_resources && rc == CH_OK; i++)
        if (c->g->resource[i].read != NULL && c->reads_whole[c->g->resource[i].read->id])
            rc = add_read(c, i);
    for (int i = 0; i < c->n_calls && rc == CH_OK; i++)
        if (ch__planner_is_lookup(c, c->call[i]))
            rc = add_lookup(c, c->call[i]);
    return rc;
}

/* ---- updates ---- */

/* An update under construction. The lists of inputs have room for all values of the graph and
 * all inputs of its calls, the other lists for all values. A value is in `in` several times if
 * shards receive different parts of it, such as the same rows for two lists of ids. */
typedef struct update_builder {
    int             n_resources, n_in, n_out, max_in;
    int            *resource;
    const ch_node **in, **out;
    ch_use         *use; /* of each input */
    ch_remote_part *remote;
} update_builder;

/* Returns the index of input k of a call among the inputs of the update; CH_NO_INDEX: it is not
 * there. If the call is NULL, looks for the value `n` for all uses. */
static int find_update_input(const update_builder *u, const ch_node *call, int k,
                             const ch_node *n)
{
    int general = CH_NO_INDEX;

    for (int i = 0; i < u->n_in; i++)
        if (u->in[i] == n && u->use[i].call == NULL)
            general = i;
        else if (call != NULL && u->use[i].call == call && u->use[i].k == k)
            return i;
    return general;
}

/* Adds an input to the update, unless it is there with the same role. If the value is there
 * with another role, the input is for input k of the call only. */
static void want_update_input(update_builder *u, const ch_node *call, int k, const ch_node *n,
                              ch_plan_input in)
{
    int  at = find_update_input(u, NULL, 0, n);
    bool is_there = at != CH_NO_INDEX;

    if (is_there && u->remote->in[at].role == in.role && u->remote->in[at].ids == in.ids)
        return;
    u->use[u->n_in] = is_there ? (ch_use){call, k} : (ch_use){NULL, 0};
    u->in[u->n_in] = n;
    u->remote->in[u->n_in++] = in;
}

/* Returns true if input k of a call is aligned with its output 0 in some axis, so that a shard
 * needs a slice of it. The hyperparameters of an optimizer rule are not. */
static bool is_aligned(const ch_node *n, const ch_factors *f, int k)
{
    int rank = n->in[k]->dims.rank, skip = n->dims.rank - rank;

    for (int d = 0; d < rank && skip >= 0; d++) {
        int i = ch__axis_factor(&f->in[k][d]);

        if (i >= 0 && i == ch__axis_factor(&f->out[0][d + skip]))
            return true;
    }
    return false;
}

/* Returns true if the call updates rows by ids: input 1 has ids, input 2 has rows. */
static bool is_indexed(const ch_node *n, const ch_factors *f)
{
    int rows = n->dims.rank > 0 ? ch__axis_factor(&f->in[0][0]) : -1;

    return rows >= 0 && f->factor[rows].kind == CH_IDX;
}

/* Adds input k of a call to the update, with the role that says which part a shard receives. */
static ch_status add_update_input(ch_step_planner *c, update_builder *u, const ch_node *n,
                                  int k)
{
    ch_arena      memory = {0};
    ch_factors    f;
    ch_status     rc = ch__factors_of(n, &memory, &f);
    ch_plan_input in = {ch__planner_number(c, n->in[k]), CH_SHARD_WHOLE, CH_NO_INDEX};

    if (rc != CH_OK) {
        ch__arena_drop(&memory);
        return rc;
    }
    if (is_indexed(n, &f) && k == 1) {
        in.role = CH_SHARD_IDS;
    } else if (is_indexed(n, &f) && k == 2 && ch__planner_is_on_same_server(c, n, 1)) {
        in.role =
            CH_SHARD_SLICE; /* ids that a server computes: an id for each row of its shard */
    } else if (is_indexed(n, &f) && k == 2) {
        in.role = CH_SHARD_ROWS;
        in.ids = find_update_input(u, n, 1, n->in[1]);
    } else if (is_aligned(n, &f, k)) {
        in.role = CH_SHARD_SLICE;
    }
    want_update_input(u, n, k, n->in[k], in);
    ch__arena_drop(&memory);
    return CH_OK;
}

/* Adds a call with its inputs, and the results that the worker needs, to the update. */
static ch_status add_update_call(ch_step_planner *c, update_builder *u, const ch_node *n)
{
    ch_status rc = CH_OK;

    c->in_part[n->id] = 1;
    for (int k = 0; k < n->n_in && rc == CH_OK; k++)
        if (!ch__planner_is_on_same_server(c, n, k) && !ch__planner_is_free_on_server(n->in[k]))
            rc = add_update_input(c, u, n, k);
    for (int k = 0; k < n->n_out && rc == CH_OK; k++)
        if (c->returned[n[k].id] && c->needed[n[k].id]) {
            u->out[u->n_out++] = &n[k];
            rc = add_result(c, u->remote, &n[k]);
        }
    return rc;
}

/* Begins a new remote part with room for `max_in` inputs. */
static ch_status begin_update(ch_step_planner *c, update_builder *u, int max_in)
{
    u->remote = &c->plan->remote[c->plan->n_remote_parts++];
    *u->remote = (ch_remote_part){.kind = CH_REMOTE_UPDATE,
                                  .in = ch__planner_alloc(c, max_in, sizeof(ch_plan_input))};
    u->n_resources = u->n_in = u->n_out = 0;
    memset(c->in_part, 0, (size_t)c->g->n_values);
    return u->remote->in == NULL ? ch__fail_memory("a step plan") : CH_OK;
}

/* Extracts the graph of the update. */
static ch_status end_update(ch_step_planner *c, update_builder *u)
{
    char       name[64];
    ch_extract e = {.name = name,
                    .take = c->in_part,
                    .n_in = u->n_in,
                    .n_out = u->n_out,
                    .in = u->in,
                    .use = u->use,
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
static ch_status add_assigned_value(ch_step_planner *c, update_builder *u, int resource)
{
    const ch_node *w = c->g->resource[resource].value;
    int            at;

    if (ch__planner_is_free_on_server(w))
        return CH_OK;
    at = find_update_input(u, NULL, 0, w);
    if (at != CH_NO_INDEX && u->remote->in[at].role != CH_SHARD_SLICE)
        return ch__fail(CH_UNIMPLEMENTED,
                        "%s: variable %s: its new value is also an input of another update on "
                        "its server, but not sliced like the variable; assign it in a separate "
                        "step",
                        c->g->name, c->g->resource[resource].name);
    want_update_input(u, NULL, 0, w,
                      (ch_plan_input){ch__planner_number(c, w), CH_SHARD_SLICE, CH_NO_INDEX});
    return CH_OK;
}

/* Adds the update with this root. */
static ch_status add_update(ch_step_planner *c, update_builder *u, int root)
{
    ch_status rc = begin_update(c, u, u->max_in);

    for (int i = 0; i < c->n_calls && rc == CH_OK; i++)
        if (ch__planner_is_on_server(c, c->call[i]) && !ch__planner_is_read(c->call[i]) &&
            ch__planner_find_update(c, c->call[i]->id) == root)
            rc = add_update_call(c, u, c->call[i]);
    for (int i = 0; i < c->g->n_resources && rc == CH_OK; i++) {
        const ch_resource *r = &c->g->resource[i];
        bool               reads = ch__planner_is_read_on_server(c, r) &&
                     ch__planner_find_update(c, r->read->id) == root;
        bool writes = ch__planner_is_written(r) && !ch__planner_is_assigned(c, i) &&
                      ch__planner_find_update(c, r->value->head->id) == root;

        if (reads || writes)
            u->resource[u->n_resources++] = i;
        if (reads && ch__planner_is_assigned(c, i))
            rc = add_assigned_value(c, u, i);
    }
    return rc == CH_OK ? end_update(c, u) : rc;
}

/* Adds an update that only assigns a value of the worker to a variable. */
static ch_status add_assign(ch_step_planner *c, update_builder *u, int resource)
{
    ch_status rc = begin_update(c, u, 1);

    if (rc == CH_OK)
        rc = add_assigned_value(c, u, resource);
    if (rc != CH_OK)
        return rc;
    u->resource[u->n_resources++] = resource;
    return end_update(c, u);
}

/* Adds an update that computes norms and writes nothing. The worker adds its results. */
static ch_status add_norms(ch_step_planner *c, update_builder *u, const ch_node *n)
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
            u->resource[u->n_resources++] =
                (int)((const ch_read_attrs *)ch__attrs(n->in[k]))->resource;
        else
            want_update_input(u, n, k, n->in[k],
                              (ch_plan_input){ch__planner_number(c, n->in[k]),
                                              is_like ? CH_SHARD_SLICE : CH_SHARD_WHOLE,
                                              CH_NO_INDEX});
    }
    u->out[u->n_out++] = n;
    c->on_worker[n->id] = 0;
    rc = add_result(c, u->remote, n);
    return rc == CH_OK ? end_update(c, u) : rc;
}

/* Adds all updates: calls on servers, norms, and assigns. */
static ch_status add_updates(ch_step_planner *c)
{
    update_builder u = {.resource = ch__planner_alloc(c, c->g->n_resources, sizeof(int)),
                        .out = ch__planner_alloc(c, c->g->n_values, sizeof(ch_node *)),
                        .max_in = c->g->n_values};
    ch_status      rc;

    for (int i = 0; i < c->n_calls; i++)
        u.max_in += c->call[i]->n_in;
    u.in = ch__planner_alloc(c, u.max_in, sizeof(ch_node *));
    u.use = ch__planner_alloc(c, u.max_in, sizeof(ch_use));
    rc = u.resource == NULL || u.in == NULL || u.use == NULL || u.out == NULL
             ? ch__fail_memory("a step plan")
             : CH_OK;
    for (int i = 0; i < c->n_calls && rc == CH_OK; i++) {
        int id = c->call[i]->id;

        if (c->update[id] == id)
            rc = add_update(c, &u, id);
        else if (c->on_worker[id] && ch__planner_is_shard_sum(c, c->call[i]))
            rc = add_norms(c, &u, c->call[i]);
    }
    for (int i = 0; i < c->g->n_resources && rc == CH_OK; i++)
        if (ch__planner_is_assigned(c, i) &&
            !ch__planner_is_read_on_server(c, &c->g->resource[i]))
            rc = add_assign(c, &u, i);
    return rc;
}

ch_status ch__planner_add_remote_parts(ch_step_planner *c)
{
    ch_status rc;

    c->plan->remote =
        ch__planner_alloc(c, c->g->n_calls + 2 * c->g->n_resources, sizeof(ch_remote_part));
    if (c->plan->remote == NULL)
        return ch__fail_memory("a step plan");
    rc = add_reads(c);
    return rc == CH_OK ? add_updates(c) : rc;
}
