/* graph/plan_shared.c -- resources that all replicas share: only the first replica writes them.
 *
 * Replicas meet before the first write, as always; then the first one updates what is shared, with what is
 * computed for that alone, while the others wait; then they meet again, and all go on with what is there now.
 * New values that could not be computed in place are copied by the first one at the very end, after one
 * more meeting: nobody reads the old ones any more.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "graph/plan.h"

bool ch__plan_is_shared(const ch_planner *pl, int r)
{
    return pl->opt->shared != NULL && pl->opt->shared[r];
}

/* True if output k of call c is the new value, or on its way, of a resource that is shared. */
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

/* `wanted`: by value id, whether all replicas want it. Those of results are. */
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

/* Whether all replicas want what only the first would have. */
static bool is_needed_elsewhere(const ch_planner *pl, const ch_node *c, const bool *needed)
{
    for (int k = 0; k < c->n_out; k++)
        if (needed[c[k].id] && !is_in_shared(pl, c, k))
            return true;
    return false;
}

/* Finds the calls that are for shared resources alone. False: one of them gives all replicas something too, or
 * needs what all of them compute only later. */
static bool find_first_only(ch_planner *pl, bool *needed)
{
    mark_results(pl, needed);
    memset(pl->first_only, 0, (size_t)pl->n_values);
    for (int i = pl->n_calls - 1; i >= 0; i--) {
        ch_node *c = pl->call[i];
        bool     updates = updates_shared(pl, c), needed_elsewhere = is_needed_elsewhere(pl, c, needed);

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
