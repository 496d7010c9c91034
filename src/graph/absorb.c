/* graph/absorb.c -- a call takes in the one that follows it: matmul, then + bias, then relu.
 *
 * Which calls can do so is the ops' own knowledge (ch_op.absorb). A call may take in its only
 * user, if that comes after everything else the user needs; the new call stands where the user
 * stood.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/attr.h"
#include "graph/graph.h"

typedef struct uses {
    int      *n;    /* of each value */
    ch_node **last; /* the last call that uses it */
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

/* Makes `call` another op of other inputs, in its place and with its value, but for what the one that takes
 * it in is for. */
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
           n->op->absorb(n, user, w);
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
