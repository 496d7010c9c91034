/* job/step_plan/step_plan.c -- makes and frees step plans (step_plan.h).
 *
 * ch__step_plan_new runs the decisions of planner.h in order: it allocates the tables of the
 * planner, numbers the inputs and results of the step, and calls place.c, remote_parts.c and
 * local_parts.c. If an update cannot return a value to the worker, it begins again.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "job/step_exec.h"
#include "job/step_plan/planner.h"

void *ch__planner_alloc(ch_step_planner *c, int n, size_t size)
{
    return ch__arena_alloc(&c->plan->arena, (size_t)(n > 0 ? n : 1) * size);
}

int ch__planner_number(ch_step_planner *c, const ch_node *n)
{
    if (c->value_number[n->id] == CH_NO_INDEX)
        c->value_number[n->id] = c->plan->n_values++;
    return c->value_number[n->id];
}

/* Returns true if update `r` writes a variable. */
static bool writes(const ch_remote_part *r, int variable)
{
    for (int i = 0; i < r->n_variables; i++)
        if (r->variable[i] == variable)
            return ch__planner_is_written(&r->graph->resource[i]);
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

/* Finds the input that has the rows of the step. It is the first input, or, if that is the flat
 * values of a ragged component, the input with their row splits. */
static void find_rows(const ch_graph *g, ch_step_plan *plan)
{
    const ch_input_attrs *first = g->n_inputs > 0 ? ch__attrs(g->input[0]) : NULL;

    if (first == NULL)
        return;
    plan->rows_are_split = first->rows.rank == 1;
    if (first->splits_input > 0 && first->splits_input <= g->n_inputs) {
        const ch_input_attrs *splits = ch__attrs(g->input[first->splits_input - 1]);

        plan->rows_are_split = splits->rows.rank == 1;
        plan->rows = plan->rows_are_split ? (int)first->splits_input - 1 : 0;
    }
}

/* Numbers the inputs, which come first, and the results of the step. A result that is a
 * constant is computed by the last local part. */
static ch_status number_ends(ch_step_planner *c)
{
    const ch_graph *g = c->g;

    c->plan->n_inputs = g->n_inputs;
    find_rows(g, c->plan);
    for (int i = 0; i < g->n_inputs; i++)
        (void)ch__planner_number(c, g->input[i]);
    c->plan->n_outputs = g->n_outputs;
    c->plan->output = ch__planner_alloc(c, g->n_outputs, sizeof(int));
    if (c->plan->output == NULL)
        return ch__fail_memory("a step plan");
    for (int i = 0; i < g->n_outputs; i++)
        c->plan->output[i] = ch__planner_number(c, g->output[i].node);
    return CH_OK;
}

static ch_status alloc_tables(ch_step_planner *c)
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
        c->update[i] = c->value_number[i] = c->remote_of[i] = CH_NO_INDEX;
    ch__graph_calls(c->g, c->call);
    c->n_calls = c->g->n_calls;
    return CH_OK;
}

/* Builds the plan. Returns CH_ABORTED, without a message, if no_returns is needed. */
static ch_status build_plan(ch_step_planner *c)
{
    ch_status rc;

    if ((rc = alloc_tables(c)) != CH_OK || (rc = number_ends(c)) != CH_OK)
        return rc;
    ch__planner_place_calls(c);
    if ((rc = ch__planner_add_remote_parts(c)) != CH_OK)
        return rc;
    return ch__planner_add_local_parts(c);
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

ch_status ch__step_plan_new(const ch_graph *g, const int *placement, const int *axis,
                            ch_step_plan **out)
{
    ch_status rc = CH_ABORTED;

    for (int k = 0; k < 2 && rc == CH_ABORTED; k++) {
        ch_step_planner c = {
            .g = g, .placement = placement, .axis = axis, .no_returns = k == 1};

        c.plan = ch__calloc(1, sizeof(*c.plan));
        if (c.plan == NULL)
            return ch__fail_memory("a step plan");
        rc = build_plan(&c);
        if (rc == CH_OK)
            *out = c.plan;
        else
            ch__step_plan_free(c.plan);
    }
    return rc;
}
