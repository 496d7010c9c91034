/* graph/plan_shared.c -- planning of resources that all replicas share: only the first replica
 * writes them.
 *
 * The order of execution with shared resources:
 *   1. Barrier before the first write, as in every program that writes.
 *   2. The first replica updates the shared resources in place, and computes the values that
 *      only these updates need. The other replicas wait.
 *   3. Barrier. Then all replicas continue with the new values.
 *   4. Barrier at the end, after which no replica reads old values any more. The first replica
 *      copies the new values that were not computed in place.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "graph/plan.h"

bool ch__plan_is_shared(const ch_planner *pl, int r)
{
    return pl->opt->shared != NULL && pl->opt->shared[r];
}

/* Returns true if output k of call c is stored in a shared resource: it is the new value, or an
 * intermediate result of computing it in place. */
static bool is_in_shared(const ch_planner *pl, const ch_node *c, int k)
{
    int claim = pl->value[c[k].id].claim;

    return claim > 0 && pl->in_place[claim - 1] && ch__plan_is_shared(pl, claim - 1);
}

static bool updates_shared(const ch_planner *pl, const ch_node *c)
{
    for (int k = 0; k < c->n_out; k++)
        if (is_in_shared(pl, c, k))
            return true;
    return false;
}

/* Sets needed[id] for values that all replicas need: outputs, and new values of resources that
 * are not shared or not updated in place. */
static void mark_results(const ch_planner *pl, bool *needed)
{
    memset(needed, 0, (size_t)pl->n_values);
    for (int i = 0; i < pl->g->n_outputs; i++)
        needed[pl->g->output[i].node->id] = true;
    for (int r = 0; r < pl->g->n_resources; r++)
        if (pl->g->resource[r].value != NULL &&
            (!pl->in_place[r] || !ch__plan_is_shared(pl, r)))
            needed[pl->g->resource[r].value->id] = true;
}

/* Returns true if all replicas need an output of c that is not stored in a shared resource. */
static bool is_needed_elsewhere(const ch_planner *pl, const ch_node *c, const bool *needed)
{
    for (int k = 0; k < c->n_out; k++)
        if (needed[c[k].id] && !is_in_shared(pl, c, k))
            return true;
    return false;
}

/* Sets first_only for the calls that only shared resources need. Returns false if such a call
 * also has an output that all replicas need, or needs a late call that all replicas execute. */
static bool find_first_only(ch_planner *pl, bool *needed)
{
    mark_results(pl, needed);
    memset(pl->first_only, 0, (size_t)pl->n_values);
    for (int i = pl->n_calls - 1; i >= 0; i--) {
        ch_node *c = pl->call[i];
        bool     updates = updates_shared(pl, c),
             needed_elsewhere = is_needed_elsewhere(pl, c, needed);

        if (updates && needed_elsewhere)
            return false;
        pl->first_only[c->id] = updates || (pl->late[c->id] && !needed_elsewhere);
        for (int k = 0; k < c->n_in && !pl->first_only[c->id]; k++)
            needed[c->in[k]->id] = true;
    }
    for (int i = 0; i < pl->n_calls; i++)
        for (int k = 0; k < pl->call[i]->n_in && pl->first_only[pl->call[i]->id]; k++) {
            const ch_node *before = pl->call[i]->in[k]->head;

            if (pl->late[before->id] && !pl->first_only[before->id])
                return false;
        }
    return true;
}

ch_status ch__plan_share(ch_planner *pl, bool *is_possible)
{
    bool *needed;

    *is_possible = true;
    if (pl->opt->shared == NULL)
        return CH_OK;
    needed = ch__calloc((size_t)pl->n_values + 1, sizeof(*needed));
    if (needed == NULL)
        return ch__fail_memory("a program");
    *is_possible = find_first_only(pl, needed);
    ch__free(needed);
    return CH_OK;
}
