/* job/step_plan/place.c -- decides which calls of a step run on servers or on the worker.
 *
 * ch__planner_place_calls makes decisions 1 to 3 of planner.h and records them in the tables of
 * the planner: `update` and `placement_of` for the calls on servers, `needed`, `reads_whole`,
 * `on_worker` and `returned` for the worker. The other functions that planner.h declares read
 * these decisions; remote_parts.c and local_parts.c call them.
 *
 * A call runs on a server only if it cannot fail, is not random, and gives the same bits there
 * (fits_server). Everything else runs on the worker, if anything needs it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "graph/extract.h"
#include "job/step_plan/planner.h"
#include "ops/apply.h"
#include "ops/lookup.h"
#include "ops/ops.h"

/* ---- sizes ---- */

static bool has_symbol(const ch_node *n, int sym)
{
    for (int k = 0; k < n->dims.rank; k++)
        if (n->dims.dim[k].sym == sym)
            return true;
    return false;
}

/* Fills the table of the first value with each symbol. */
static void find_size_sources(ch_step_planner *c)
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
static const ch_node *size_source(const ch_step_planner *c, const ch_node *n, int k)
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

int ch__planner_count_dependencies(const ch_node *n)
{
    return n->n_in + n->dims.rank;
}

const ch_node *ch__planner_dependency(const ch_step_planner *c, const ch_node *n, int k)
{
    return k < n->n_in ? n->in[k] : size_source(c, n, k - n->n_in);
}

/* ---- calls on servers ---- */

/* Returns true if output 0 of the call has the sizes of input i and can be sharded like it,
 * along `axis`; -1: it is not sharded. */
static bool keeps_sizes(const ch_node *n, const ch_factors *f, int i, int axis)
{
    const ch_dims *in = &n->in[i]->dims;

    if (i >= f->n_in || in->rank > n->dims.rank || (in->rank < n->dims.rank && in->rank != 1))
        return false;
    for (int k = 0; k < in->rank; k++)
        if (!ch__dim_same(in->dim[k], n->dims.dim[k]) ||
            (ch__axis_factor(&f->in[i][k]) != ch__axis_factor(&f->out[0][k]) &&
             !ch__dim_is(in->dim[k], 1)))
            return false;
    if (axis >= 0 && axis < in->rank && ch__axis_factor(&f->out[0][axis]) >= 0 &&
        f->factor[ch__axis_factor(&f->out[0][axis])].kind == CH_FIX)
        return false;
    /* An input of lower rank is a slot of an optimizer with a number for each row. */
    return in->rank == n->dims.rank || f->n_out > 1;
}

/* Returns true if the op of a call may run on a server: it cannot fail, is not random, gives
 * the same result as on the worker, and has the same attributes on every shard. */
static bool fits_server(const ch_node *n)
{
    const unsigned never = CH_OP_RANDOM | CH_OP_EFFECT | CH_OP_COLLECTIVE | CH_OP_CAN_FAIL |
                           CH_OP_HOST | CH_OP_READS_ENV | CH_OP_VARIES;

    return n->op->factors != NULL && n->op->local == NULL && (n->op->flags & never) == 0 &&
           n->n_in <= 8 && n->n_out <= 8;
}

/* Returns true if the call may run on a server and keeps the sizes of a computable input. */
static bool can_run_on_server(const ch_step_planner *c, const ch_node *n, int axis)
{
    ch_arena   memory = {0};
    ch_factors f;
    bool       can = false;

    if (fits_server(n) && ch__factors_of(n, &memory, &f) == CH_OK && f.n_set_out > 0)
        for (int i = 0; i < n->n_in && !can; i++)
            can = c->computable[n->in[i]->id] && keeps_sizes(n, &f, i, axis);
    ch__arena_drop(&memory);
    return can;
}

/* Marks all values that can be computed on the servers of a placement. */
static void mark_computable(ch_step_planner *c, int placement)
{
    int axis = -1;

    memset(c->computable, 0, (size_t)c->g->n_values);
    for (int i = 0; i < c->g->n_resources; i++)
        if (c->placement[i] == placement && c->g->resource[i].read != NULL) {
            c->computable[c->g->resource[i].read->id] = 1;
            axis = c->axis[i];
        }
    for (int i = 0; i < c->n_calls; i++)
        if (can_run_on_server(c, c->call[i], axis))
            for (int k = 0; k < c->call[i]->n_out; k++)
                c->computable[c->call[i][k].id] = 1;
}

/* Lets the call of `n` run on servers, if it can and is not assigned to other servers. */
static void assign_to_server(ch_step_planner *c, const ch_node *n, int placement)
{
    int id = n->head->id;

    if (!c->computable[n->id] || c->update[id] != CH_NO_INDEX)
        return;
    c->update[id] = id;
    c->placement_of[id] = placement;
}

/* Assigns calls to the servers of a placement: from the values that are written to its
 * variables backwards, as far as the calls can run there. */
static void mark_servers(ch_step_planner *c, int placement)
{
    mark_computable(c, placement);
    for (int i = 0; i < c->g->n_resources; i++)
        if (c->placement[i] == placement && ch__planner_is_written(&c->g->resource[i]))
            assign_to_server(c, c->g->resource[i].value, placement);
    for (int i = c->n_calls - 1; i >= 0; i--) {
        const ch_node *n = c->call[i];

        for (int k = 0; c->update[n->id] != CH_NO_INDEX &&
                        c->placement_of[n->id] == placement && k < n->n_in;
             k++)
            assign_to_server(c, n->in[k], placement);
    }
}

/* ---- calls that form an update ---- */

int ch__planner_find_update(ch_step_planner *c, int id)
{
    while (c->update[id] != id)
        id = c->update[id] = c->update[c->update[id]];
    return id;
}

bool ch__planner_is_on_server(const ch_step_planner *c, const ch_node *n)
{
    return c->update[n->head->id] != CH_NO_INDEX;
}

bool ch__planner_is_on_same_server(const ch_step_planner *c, const ch_node *n, int k)
{
    return ch__planner_is_on_server(c, n->in[k]) &&
           c->placement_of[n->in[k]->head->id] == c->placement_of[n->id];
}

bool ch__planner_is_read_on_server(const ch_step_planner *c, const ch_resource *r)
{
    return r->read != NULL && ch__planner_is_on_server(c, r->read);
}

bool ch__planner_is_assigned(const ch_step_planner *c, int resource)
{
    const ch_resource *r = &c->g->resource[resource];

    return ch__planner_is_written(r) &&
           (!ch__planner_is_on_server(c, r->value) ||
            c->placement_of[r->value->head->id] != c->placement[resource]);
}

/* Joins calls on servers to updates. A call joins the calls whose results it uses; a read joins
 * all calls that use it. The calls that read a variable join the calls that write it, because
 * they must read its old value. */
static void join_updates(ch_step_planner *c)
{
    for (int i = 0; i < c->n_calls; i++) {
        const ch_node *n = c->call[i];

        for (int k = 0;
             ch__planner_is_on_server(c, n) && !ch__planner_is_read(n) && k < n->n_in; k++)
            if (ch__planner_is_on_same_server(c, n, k))
                c->update[ch__planner_find_update(c, n->in[k]->head->id)] =
                    ch__planner_find_update(c, n->id);
    }
    for (int i = 0; i < c->g->n_resources; i++) {
        const ch_resource *r = &c->g->resource[i];

        if (ch__planner_is_written(r) && !ch__planner_is_assigned(c, i) &&
            ch__planner_is_read_on_server(c, r))
            c->update[ch__planner_find_update(c, r->read->id)] =
                ch__planner_find_update(c, r->value->head->id);
    }
}

/* ---- values that the worker needs ---- */

/* Returns true if the call looks up rows of a variable. The servers can do this, so that only
 * the rows are sent. */
static bool is_row_gather(const ch_node *n)
{
    return n->op == &ch__op_gather && ch__planner_is_read(n->in[0]) && ch__gather_is_rows(n);
}

bool ch__planner_is_shard_sum(const ch_step_planner *c, const ch_node *n)
{
    int placement = CH_NO_INDEX;

    if (n->op != &ch__op_apply_norms)
        return false;
    for (int k = 0; k < n->n_in; k++) {
        const ch_read_attrs *a;

        if (!ch__norms_reads_variable(k))
            continue;
        if (!ch__planner_is_read(n->in[k]))
            return false;
        a = ch__attrs(n->in[k]);
        if (placement != CH_NO_INDEX && c->placement[a->resource] != placement)
            return false;
        placement = c->placement[a->resource];
    }
    return true;
}

/* Marks a value that the worker needs. */
static void mark_needed(ch_step_planner *c, const ch_node *n)
{
    c->needed[n->id] = 1;
    if (ch__planner_is_read(n))
        c->reads_whole[n->id] = 1;
}

bool ch__planner_is_free_on_server(const ch_node *n)
{
    return n->dims.rank == 0 && ch__call_is_copyable(n->head);
}

/* Marks the inputs of a call on a server that the worker must send. */
static void mark_update_inputs(ch_step_planner *c, const ch_node *n)
{
    for (int k = 0; k < n->n_in; k++)
        if (!ch__planner_is_on_same_server(c, n, k) && !ch__planner_is_free_on_server(n->in[k]))
            mark_needed(c, n->in[k]);
}

/* Marks the new values of variables that updates can return to the worker. */
static void mark_returned(ch_step_planner *c)
{
    for (int i = 0; i < c->g->n_resources && !c->no_returns; i++) {
        const ch_resource *r = &c->g->resource[i];

        if (ch__planner_is_written(r) && ch__planner_is_on_server(c, r->value) &&
            !ch__planner_is_read(r->value))
            c->returned[r->value->id] = 1;
    }
}

/* Returns true if the worker must run a call: the call has an effect, or the worker needs
 * an output of it that no update returns. */
static bool is_needed(const ch_step_planner *c, const ch_node *n)
{
    bool needed = ch__call_is_root(n);

    for (int k = 0; k < n->n_out; k++)
        needed |= c->needed[n[k].id] && !c->returned[n[k].id];
    return needed;
}

/* Marks the dependencies of a call of the worker, except those that stay on servers: the table
 * of a lookup, or the variable and slots of norms. */
static void mark_call_inputs(ch_step_planner *c, const ch_node *n)
{
    bool is_sum_call = ch__planner_is_shard_sum(c, n), is_lookup_call = is_row_gather(n);

    for (int k = 0; k < ch__planner_count_dependencies(n); k++) {
        const ch_node *in = ch__planner_dependency(c, n, k);
        bool           stays =
            is_lookup_call ? k == 0 : is_sum_call && k < n->n_in && ch__norms_reads_variable(k);

        if (in != NULL && !stays)
            mark_needed(c, in);
    }
}

/* Marks the values that the worker needs and the calls that it runs. */
static void mark_worker(ch_step_planner *c)
{
    const ch_graph *g = c->g;

    mark_returned(c);
    for (int i = 0; i < g->n_outputs; i++)
        mark_needed(c, g->output[i].node);
    for (int i = 0; i < g->n_resources; i++)
        if (ch__planner_is_assigned(c, i) &&
            !ch__planner_is_free_on_server(g->resource[i].value))
            mark_needed(c, g->resource[i].value);
    for (int i = c->n_calls - 1; i >= 0; i--) {
        const ch_node *n = c->call[i];

        if (ch__planner_is_on_server(c, n) && !ch__planner_is_read(n))
            mark_update_inputs(c, n);
        if (ch__planner_is_read(n) || n->op == ch__roles.input || !is_needed(c, n))
            continue;
        c->on_worker[n->id] = 1;
        mark_call_inputs(c, n);
    }
}

bool ch__planner_is_lookup(const ch_step_planner *c, const ch_node *n)
{
    return c->on_worker[n->id] && is_row_gather(n) && !c->reads_whole[n->in[0]->id];
}

/* ---- all of it ---- */

/* Returns true if no earlier resource has the same placement. */
static bool is_first_with_placement(const ch_step_planner *c, int resource)
{
    for (int i = 0; i < resource; i++)
        if (c->placement[i] == c->placement[resource])
            return false;
    return true;
}

void ch__planner_place_calls(ch_step_planner *c)
{
    find_size_sources(c);
    for (int i = 0; i < c->g->n_resources; i++)
        if (is_first_with_placement(c, i))
            mark_servers(c, c->placement[i]);
    join_updates(c);
    mark_worker(c);
}
