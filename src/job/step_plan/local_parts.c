/* job/step_plan/local_parts.c -- orders the calls of the worker, and builds the local parts.
 *
 * ch__planner_add_local_parts makes decisions 5 to 7 of planner.h. The level of a value is the
 * number of exchanges with servers before the value is available. Levels are raised to a fixed
 * point (set_levels). Local part i holds calls of level i or less: a call runs as late as the
 * users of its results allow (set_local_parts). A local_part_builder then collects the values
 * that enter and leave a part.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "graph/extract.h"
#include "job/step_plan/planner.h"

/* ---- order of execution ---- */

/* Returns the level at which a remote part can use a value: its own level, or the next if the
 * worker computes it, because a local part must run first. */
static int ready_level(const ch_step_planner *c, const ch_node *n)
{
    return c->level[n->id] + c->on_worker[n->head->id];
}

/* Raises the levels of the results of a remote part. Returns true if a level has changed. */
static bool raise_remote(ch_step_planner *c, const ch_remote_part *r,
                         const ch_node *const *node)
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
static bool raise_call(ch_step_planner *c, const ch_node *n)
{
    bool changed = false;
    int  level = 0;

    for (int k = 0; k < ch__planner_count_dependencies(n); k++)
        if (ch__planner_dependency(c, n, k) != NULL &&
            c->level[ch__planner_dependency(c, n, k)->id] > level)
            level = c->level[ch__planner_dependency(c, n, k)->id];
    for (int k = 0; k < n->n_out; k++)
        if (c->remote_of[n[k].id] == CH_NO_INDEX && c->level[n[k].id] < level) {
            c->level[n[k].id] = level;
            changed = true;
        }
    return changed;
}

/* Sets all levels, by iteration to a fixed point. Returns false if there is none: an update
 * needs an input, or must wait for a read, that depends on its own results. */
static bool set_levels(ch_step_planner *c, const ch_node *const *node)
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
static void limit_local_part(ch_step_planner *c, const ch_node *n, int max)
{
    int *at = &c->local_part[n->head->id];

    *at = *at < max ? *at : max;
}

/* Sets the local part of each call of the worker, as late as the users of its results allow. So
 * a lookup does not wait for calls that it does not need. Returns the number of local parts. */
static int set_local_parts(ch_step_planner *c, const ch_node *const *node)
{
    const ch_step_plan *r = c->plan;
    int                 last = 0;

    for (int i = 0; i < c->n_calls; i++)
        for (int k = 0;
             c->on_worker[c->call[i]->id] && k < ch__planner_count_dependencies(c->call[i]);
             k++) {
            const ch_node *in = ch__planner_dependency(c, c->call[i], k);

            last = in != NULL && c->level[in->id] > last ? c->level[in->id] : last;
        }
    for (int i = 0; i < c->n_calls; i++)
        c->local_part[c->call[i]->id] = last;
    for (int i = 0; i < r->n_remote_parts; i++)
        for (int k = 0; k < r->remote[i].n_in && r->remote[i].n_out > 0; k++)
            limit_local_part(c, node[r->remote[i].in[k].value],
                             c->level[node[r->remote[i].out[0]]->id] - 1);
    for (int i = c->n_calls - 1; i >= 0; i--)
        for (int k = 0;
             c->on_worker[c->call[i]->id] && k < ch__planner_count_dependencies(c->call[i]);
             k++)
            if (ch__planner_dependency(c, c->call[i], k) != NULL)
                limit_local_part(c, ch__planner_dependency(c, c->call[i], k),
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
static bool is_in_part(const ch_step_planner *c, const ch_node *n, int at)
{
    return c->on_worker[n->head->id] && c->local_part[n->head->id] == at &&
           c->remote_of[n->id] == CH_NO_INDEX;
}

/* Adds a value that enters (`into`) or leaves the local part, once. */
static void add_crossing(ch_step_planner *c, local_part_builder *s, const ch_node *n, bool into)
{
    unsigned char  *seen = into ? s->is_in : s->is_out;
    const ch_node **list = into ? s->in : s->out;

    if (seen[n->id])
        return;
    seen[n->id] = 1;
    list[into ? s->n_in++ : s->n_out++] = n;
    (void)ch__planner_number(c, n);
}

/* Adds the inputs of the step that have symbols in their sizes, because a call may have such a
 * size and not use the input itself. */
static void add_size_inputs(ch_step_planner *c, local_part_builder *s)
{
    for (int i = 0; i < c->g->n_inputs; i++)
        for (int k = 0; k < c->g->input[i]->dims.rank; k++)
            if (c->g->input[i]->dims.dim[k].sym != 0)
                add_crossing(c, s, c->g->input[i], true);
}

/* Finds the calls of local part `at` and the values that enter and leave it. Free values do not
 * pass between local parts, because each part has its own copy. They leave only if they have a
 * number: a remote part uses them or they are results of the step. */
static void find_crossings(ch_step_planner *c, local_part_builder *s, int at)
{
    for (int i = 0; i < c->n_calls; i++) {
        const ch_node *n = c->call[i];
        bool           here = c->on_worker[n->id] && c->local_part[n->id] == at;

        c->in_part[n->id] = here;
        s->n_calls += here;
        for (int k = 0; c->on_worker[n->id] && k < ch__planner_count_dependencies(n); k++) {
            const ch_node *in = ch__planner_dependency(c, n, k);

            if (in == NULL || ch__call_is_copyable(in->head))
                continue;
            if (here && !is_in_part(c, in, at))
                add_crossing(c, s, in, true);
            if (!here && is_in_part(c, in, at))
                add_crossing(c, s, in, false);
        }
        for (int k = 0; k < n->n_out; k++)
            if (c->value_number[n[k].id] != CH_NO_INDEX && is_in_part(c, &n[k], at))
                add_crossing(c, s, &n[k], false);
    }
}

static ch_status list_values(ch_step_planner *c, int n, const ch_node *const *node, int **out)
{
    *out = ch__planner_alloc(c, n, sizeof(int));
    if (*out == NULL)
        return ch__fail_memory("a step plan");
    for (int i = 0; i < n; i++)
        (*out)[i] = c->value_number[node[i]->id];
    return CH_OK;
}

/* Adds local part `at` to the plan, unless it has no calls. */
static ch_status add_local_part(ch_step_planner *c, local_part_builder *s, int at)
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

/* Returns a table of the nodes of all values, by number, or NULL if memory is exhausted. */
static const ch_node **value_nodes(ch_step_planner *c)
{
    const ch_node **node = ch__planner_alloc(c, c->plan->n_values, sizeof(ch_node *));

    for (int i = 0; i < c->n_calls && node != NULL; i++)
        for (int k = 0; k < c->call[i]->n_out; k++) {
            const ch_node *n = &c->call[i][k];

            if (c->value_number[n->id] != CH_NO_INDEX)
                node[c->value_number[n->id]] = n;
        }
    return node;
}

ch_status ch__planner_add_local_parts(ch_step_planner *c)
{
    const ch_node    **node = value_nodes(c);
    local_part_builder s = {.in = ch__planner_alloc(c, c->g->n_values, sizeof(ch_node *)),
                            .out = ch__planner_alloc(c, c->g->n_values, sizeof(ch_node *)),
                            .is_in = ch__planner_alloc(c, c->g->n_values, 1),
                            .is_out = ch__planner_alloc(c, c->g->n_values, 1)};
    ch_status          rc = CH_OK;
    int                n;

    if (node == NULL || s.in == NULL || s.out == NULL || s.is_in == NULL || s.is_out == NULL)
        return ch__fail_memory("a step plan");
    if (!set_levels(c, node))
        return CH_ABORTED;
    n = set_local_parts(c, node);
    c->plan->local_part = ch__planner_alloc(c, n, sizeof(ch_local_part));
    if (c->plan->local_part == NULL)
        return ch__fail_memory("a step plan");
    for (int i = 0; i < n && rc == CH_OK; i++)
        rc = add_local_part(c, &s, i);
    return rc;
}
