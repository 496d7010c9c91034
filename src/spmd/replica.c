/* spmd/replica.c -- the ranges of a call in another replica than that of the division.
 *
 * Ranges are chosen for the replica with the largest inputs. The graph of another replica has
 * the same calls, with other numbers of rows, and the rule of a call depends on its sizes. With
 * a single row, the reshape of (rows, 2, 4) to (2 rows, 4) is one of (1, 2, 4) to (2, 4), and
 * its rule has no factor of the rows: the chosen ranges name other factors, or factors that do
 * not exist.
 *
 * So such a call has the rule of the division, with its own sizes, if these agree with it.
 * Otherwise, and if the ranges give the smaller values no layout, ranges are chosen again.
 * Replicas may compute a call in different ranges, because no replica waits for another in the
 * reshards of its inputs.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "spmd/divide.h"

/* ---- rules ---- */

/* An axis of an input or output of a call: in the division, and in another replica. */
typedef struct axis_pair {
    const ch_axis_rule *rule, *own;
    int64_t             size, own_size;
} axis_pair;

/* Lists the axes of all inputs and outputs. Returns their number; -1: out of memory. */
static int list_axes(ch_core_division *d, const ch_call_plan *p, const ch_node *call,
                     const ch_factors *own, axis_pair **out)
{
    int n = 0, room = (call->n_in + call->n_out) * CH_MAX_RANK;

    *out = ch__arena_alloc(&d->arena, (size_t)(room + 1) * sizeof(**out));
    if (*out == NULL)
        return -1;
    for (int i = 0; i < call->n_in; i++)
        for (int k = 0; k < call->in[i]->dims.rank; k++)
            (*out)[n++] =
                (axis_pair){&p->rule.in[i][k], &own->in[i][k], p->call->in[i]->dims.dim[k].n,
                            call->in[i]->dims.dim[k].n};
    for (int i = 0; i < call->n_out; i++)
        for (int k = 0; k < call[i].dims.rank; k++)
            (*out)[n++] = (axis_pair){&p->rule.out[i][k], &own->out[i][k],
                                      p->call[i].dims.dim[k].n, call[i].dims.dim[k].n};
    return n;
}

/* Returns true if the rules differ in sizes and maps only. */
static bool same_factors(const ch_factors *a, const ch_factors *b, int n, const axis_pair *axis)
{
    if (a->n != b->n || a->n_set_out != b->n_set_out)
        return false;
    for (int k = 0; k < a->n; k++)
        if (a->factor[k].kind != b->factor[k].kind ||
            a->factor[k].combiner != b->factor[k].combiner)
            return false;
    for (int i = 0; i < n; i++)
        if (axis[i].rule->n != axis[i].own->n ||
            memcmp(axis[i].rule->factor, axis[i].own->factor, (size_t)axis[i].own->n) != 0)
            return false;
    return true;
}

/* Sets the size of the only factor of an axis that has no size yet (-1), if there is one.
 * Returns true if it has set a size. */
static bool solve(ch_factors *f, const axis_pair *axis)
{
    int64_t known = 1;
    int     unknown = -1;

    for (int j = 0; j < axis->rule->n; j++) {
        int k = axis->rule->factor[j];

        if (f->factor[k].size.n >= 0)
            known *= f->factor[k].size.n;
        else if (unknown < 0)
            unknown = k;
        else
            return false;
    }
    if (unknown < 0 || known == 0 || axis->own_size % known != 0)
        return false;
    f->factor[unknown].size = ch__dim(axis->own_size / known);
    return true;
}

/* Returns true if the size of an axis is the product of those of its factors. An axis of size 1
 * may have no factor because it is 1. */
static bool agrees(const ch_factors *f, const axis_pair *axis)
{
    int64_t product = 1;

    if (axis->rule->is_mapped)
        return false; /* maps depend on sizes */
    if (axis->rule->n == 0)
        return axis->size != 1 || axis->own_size == 1;
    for (int j = 0; j < axis->rule->n; j++)
        product *= f->factor[axis->rule->factor[j]].size.n;
    return product == axis->own_size;
}

/* Gives the factors of rule `f` of the division the sizes that follow from the axes of the
 * replica. Returns false if the rule is not one for these sizes. Factors of kind CH_FIX must
 * keep theirs: a reshape has them between axes that agree only because of their sizes. */
static bool resize(ch_factors *f, int n, const axis_pair *axis)
{
    for (int k = 0; k < f->n; k++)
        if (f->factor[k].kind != CH_FIX)
            f->factor[k].size = ch__dim(-1);
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < n; i++)
            more |= solve(f, &axis[i]);
    }
    for (int k = 0; k < f->n; k++)
        if (f->factor[k].size.n < 0)
            return false;
    for (int i = 0; i < n; i++)
        if (!agrees(f, &axis[i]))
            return false;
    return true;
}

/* Sets p->rule to the rule of a call in another replica. Sets *same if its factors are those of
 * the division. */
static ch_status set_rule(ch_core_division *d, ch_call_plan *p, const ch_node *call, bool *same)
{
    ch_factors own, of_division = p->rule;
    axis_pair *axis;
    ch_status  rc = ch__factors_of(call, &d->arena, &own);
    int        n = rc == CH_OK ? list_axes(d, p, call, &own, &axis) : 0;

    if (rc != CH_OK || n < 0)
        return rc == CH_OK ? ch__fail_memory("a partition rule") : rc;
    *same = same_factors(&p->rule, &own, n, axis);
    p->rule = own;
    if (!*same && resize(&of_division, n, axis)) {
        *same = true;
        p->rule = of_division;
    }
    return CH_OK;
}

/* ---- ranges ---- */

/* Returns the ranges of a call, with these forms of its inputs. In another replica than that of
 * the division, other cores may have partial results: the function fills in `room`, and changes
 * p->stays_partial. */
static const ch_core_layout *partial_ranges(ch_core_division *d, const ch_forms *forms,
                                            ch_call_plan *p, ch_core_layout *room)
{
    const ch_core_layout *has;
    bool                  agree;

    if (p->stays_partial == 0)
        return p->ranges;
    has = forms->first[p->call->in[__builtin_ctz(p->stays_partial)]->id]->layout;
    ch__layout_copy(p->ranges, room);
    room->cores = has->cores;
    ch__layout_set_partial(room, has);
    agree = ch__layout_is_covered(room);
    for (int i = 0; i < p->call->n_in; i++)
        agree &= !ch__stays_partial(p->stays_partial, i) ||
                 ch__has_partial(d, p->call, &p->rule, room, i,
                                 forms->first[p->call->in[i]->id]->layout);
    if (agree)
        return room;
    p->stays_partial = 0; /* all inputs are made complete */
    room->cores = p->ranges->cores;
    room->n_partial = 1;
    memset(room->partial, 0, sizeof(room->partial));
    return room;
}

ch_status ch__plan_in_replica(ch_core_division *d, const ch_forms *forms, const ch_node *call,
                              ch_call_plan *p, ch_core_layout *room)
{
    bool      same = true;
    ch_status rc = call != p->call ? set_rule(d, p, call, &same) : CH_OK;
    bool      is_other = call != p->call;

    p->call = call;
    if (rc != CH_OK || p->ranges == NULL)
        return rc;
    if (same)
        p->ranges = partial_ranges(d, forms, p, room);
    return is_other ? ch__choose_again(d, forms, p, same) : CH_OK;
}
