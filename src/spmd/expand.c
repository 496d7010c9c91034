/* spmd/expand.c -- replaces calls whose kernels need an axis whole by plain ops.
 *
 * The kernel of a softmax needs the whole axis. If propagation has split that axis, the call is
 * replaced by the same computation in plain ops (ch_op.expand): a maximum, a sum of
 * exponentials and a quotient, which can be divided. Calls in bodies are replaced too. The
 * graphs of all replicas are changed alike.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"
#include "graph/step.h"
#include "spmd/divide.h"

/* Returns true if an axis of an array has a factor that must not be divided, and is split, or
 * if any axis is split and the call has no rule. */
static bool splits_fixed(const ch_factors *f, const ch_axis_rule *axis, const ch_core_layout *l)
{
    for (int k = 0; l != NULL && f->n_set_out == 0 && k < l->rank; k++)
        if (l->parts[k] > 1)
            return true;
    for (int k = 0; l != NULL && k < l->rank; k++)
        for (int j = 0; l->parts[k] > 1 && j < axis[k].n; j++)
            if (f->factor[axis[k].factor[j]].kind == CH_FIX)
                return true;
    return false;
}

static bool must_expand(const ch_core_division *d, const ch_call_plan *p)
{
    if (p->call->op->expand == NULL)
        return false;
    for (int i = 0; i < p->call->n_in; i++)
        if (splits_fixed(&p->rule, p->rule.in[i], d->value[p->call->in[i]->id].want))
            return true;
    for (int i = 0; i < p->rule.n_set_out; i++)
        if (splits_fixed(&p->rule, p->rule.out[i], d->value[p->call[i].id].want))
            return true;
    return false;
}

/* Records the computation of call n in other ops and sets *any, or copies the call if that is
 * not possible. */
static ch_status expand_call(ch_step *s, const ch_node *n, ch_node **map, bool *any)
{
    ch_node **in = ch__calloc((size_t)n->n_in + 1, sizeof(*in)), *out[CH_MAX_OUT];
    bool      is_expanded;

    if (in == NULL)
        return ch__fail_memory("a program");
    for (int i = 0; i < n->n_in; i++)
        in[i] = map[n->in[i]->id];
    s->caller = n->caller;
    s->work = n->work;
    is_expanded = n->op->expand(s, n, in, out);
    ch__free(in);
    for (int i = 0; i < n->n_out && is_expanded; i++)
        map[n[i].id] = out[i];
    *any |= is_expanded;
    if (is_expanded)
        return CH_OK;
    if (ch_step_status(s) != CH_OK)
        return ch_step_status(s);
    return ch__graph_copy_call(s->graph, n, map) != NULL ? CH_OK : ch__fail_memory("a program");
}

uint64_t ch__expanded_calls(const ch_core_division *d)
{
    uint64_t h = 0;

    for (int i = 0; i < d->n_calls; i++) {
        const ch_body_plan *b = d->call[i].bodies;

        if (must_expand(d, &d->call[i]))
            h = ch__hash(h != 0 ? h : CH_HASH_START, &i, sizeof(i));
        for (int k = 0; b != NULL && k < b->n; k++) {
            const uint64_t part[2] = {(uint64_t)i << 1 | (uint64_t)k,
                                      ch__expanded_calls(&b->body[k])};

            if (part[1] != 0)
                h = ch__hash(h != 0 ? h : CH_HASH_START, part, sizeof(part));
        }
    }
    return h;
}

static ch_status copy_expanded(const ch_core_division *d, const ch_graph *g, ch_graph **out,
                               bool *any);

/* Copies a call, with expanded copies of its bodies if it has any. */
static ch_status copy_call(const ch_call_plan *p, ch_step *s, const ch_node *n, ch_node **map,
                           bool *any)
{
    ch_node  *to = ch__graph_copy_call(s->graph, n, map);
    ch_graph *body[CH_MAX_BODIES], *copy[CH_MAX_BODIES] = {NULL};
    int       n_bodies = p->bodies != NULL ? ch__call_bodies(n, body) : 0;
    ch_status rc = to == NULL ? ch__fail_memory("a program") : CH_OK;

    for (int k = 0; k < n_bodies && rc == CH_OK; k++)
        rc = copy_expanded(&p->bodies->body[k], body[k], &copy[k], any);
    if (rc == CH_OK && n_bodies > 0)
        ch__call_set_bodies(to, n_bodies, copy);
    for (int k = 0; k < n_bodies; k++)
        ch_graph_unref(copy[k]);
    return rc;
}

/* Copies graph g, which is divided as d says, with the calls expanded that must be. Sets *any
 * if a call could be expanded. */
static ch_status copy_expanded(const ch_core_division *d, const ch_graph *g, ch_graph **out,
                               bool *any)
{
    ch_node **map = ch__calloc((size_t)g->n_values + 1, sizeof(*map));
    ch_step  *s = NULL;
    int       i = 0;
    ch_status rc = map == NULL ? ch__fail_memory("a program") : ch__step_new(g->name, NULL, &s);

    for (const ch_node *n = g->first; n != NULL && rc == CH_OK; n = n->next, i++)
        if (must_expand(d, &d->call[i]))
            rc = expand_call(s, n, map, any);
        else
            rc = copy_call(&d->call[i], s, n, map, any);
    if (rc == CH_OK)
        rc = ch__graph_copy_roots(s->graph, g, map);
    if (rc == CH_OK)
        rc = ch__step_finish(s, out);
    if (rc == CH_OK) {
        (*out)->is_concrete = true;
        (*out)->step = NULL;
    }
    ch__step_free(s);
    ch__free(map);
    return rc;
}

ch_status ch__expand(const ch_core_division *d, int n, ch_graph **graph, bool *any)
{
    ch_graph **copy;
    ch_status  rc = CH_OK;

    *any = false;
    if (ch__expanded_calls(d) == 0)
        return CH_OK;
    copy = ch__calloc((size_t)n, sizeof(ch_graph *));
    if (copy == NULL)
        return ch__fail_memory("a program");
    for (int i = 0; i < n && rc == CH_OK; i++)
        rc = copy_expanded(d, graph[i], &copy[i], any);
    for (int i = 0; i < n; i++) {
        ch_graph *old = rc == CH_OK ? graph[i] : copy[i];

        if (rc == CH_OK)
            graph[i] = copy[i];
        ch_graph_unref(old); /* the graph of the division is used until every copy is made */
    }
    ch__free(copy);
    return rc;
}
