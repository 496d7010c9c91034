/* graph/absorb.c -- pass that merges a call with its only user, such as matmul, + bias, relu.
 *
 * Ops decide which calls can be merged (ch_op.absorb). The merged call replaces the user at the
 * user's position, where all inputs of both calls are available. A call with origins is not
 * merged, because the merged call would need the positions of both calls.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/attr.h"
#include "graph/graph.h"

typedef struct uses {
    int      *n;    /* by value: number of uses */
    ch_node **last; /* by value: the last call that uses it; NULL: none */
} uses;

static void count_uses(const ch_graph *g, uses *u)
{
    for (ch_node *n = g->first; n != NULL; n = n->next)
        for (int i = 0; i < n->n_in; i++) {
            u->n[n->in[i]->id]++;
            u->last[n->in[i]->id] = n;
        }
    for (int i = 0; i < g->n_outputs; i++)
        u->n[g->output[i].node->id]++;
    for (int i = 0; i < g->n_resources; i++)
        if (g->resource[i].value != NULL)
            u->n[g->resource[i].value->id]++;
}

/* Changes the op, attributes and inputs of `call` to those of *w, and its kind of work to
 * `work`, that of the absorbing call. Its position and outputs stay. */
static ch_status rewrite(ch_graph *g, ch_node *call, ch_work_kind work, const ch_rewrite *w)
{
    void     *attrs = w->op->attrs != NULL ? ch__attrs_copy(&g->arena, w->op, w->attrs) : NULL;
    ch_node **in = ch__arena_copy(&g->arena, w->in, sizeof(w->in));

    if (in == NULL || (w->op->attrs != NULL && attrs == NULL)) {
        ch__attrs_drop(w->op, attrs);
        return ch__fail_memory("a program");
    }
    ch__attrs_drop(call->op, call->attrs);
    call->op = w->op;
    call->attrs = attrs;
    call->n_in = w->n_in;
    call->in = in;
    call->work = work;
    return CH_OK;
}

static bool can_absorb(const ch_node *n, const uses *u, ch_rewrite *w)
{
    const ch_node *user = u->last[n->id];

    return n->op->absorb != NULL && n->n_out == 1 && u->n[n->id] == 1 && user != NULL &&
           n->origins == NULL && user->origins == NULL && n->op->absorb(n, user, w);
}

ch_status ch__pass_absorb(ch_graph *g)
{
    size_t    n_values = (size_t)g->n_values + 1;
    uses      u = {ch__calloc(n_values, sizeof(*u.n)), ch__calloc(n_values, sizeof(*u.last))};
    ch_status rc = CH_OK;

    if (u.n == NULL || u.last == NULL)
        rc = ch__fail_memory("a program");
    else
        count_uses(g, &u);
    for (ch_node *n = g->first; n != NULL && rc == CH_OK; n = n->next) {
        ch_rewrite w = {0};

        if (can_absorb(n, &u, &w))
            rc = rewrite(g, u.last[n->id], n->work, &w);
    }
    ch__free(u.n);
    ch__free(u.last);
    return rc == CH_OK ? ch__pass_dead(g) : rc;
}
