/* spmd/pattern.c -- names reshards for reports: all-gather, all-to-all, halo and the like.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "spmd/cells.h"

void ch__parts_of_region(const ch_core_layout *l, ch_shape whole, const ch_region *r, int axis,
                         int *first, int *last)
{
    int64_t unit = l->unit[axis], units = ch__units(whole.dim[axis], unit);
    int64_t end = r->begin[axis] + r->size[axis];

    *first = *last = 0;
    if (l->parts[axis] == 1)
        return;
    *first = ch__part_of(units, l->parts[axis], r->begin[axis] / unit);
    *last = ch__part_of(units, l->parts[axis], (end - 1) / unit);
}

/* How the wanted regions of a complete value lie to the regions that the cores have. Cores that
 * need nothing do not count. */
typedef struct pattern {
    unsigned grown, shrunk; /* axes along which a core needs positions that it does not have, or
                             * does not need positions that it has */
    bool     is_placed; /* every core that needs elements has a part, perhaps an empty one */
    bool     is_near;   /* every core needs elements that it has, unless it has none, and
                             * else only elements of parts next to its own part */
    bool     is_even;   /* two wanted regions are equal or share no element */
    bool     is_copied; /* two wanted regions are equal */
} pattern;

static void pattern_add_core(const ch_reshard_problem *p, int c, pattern *t)
{
    const ch_region *want = &p->want[c], *has = &p->has[c];
    int              rank = p->whole.rank;

    if (!ch__layout_has(p->from, c)) {
        t->is_placed = false;
        t->is_near = false;
        return;
    }
    if (ch__region_count(has, rank) > 0 && ch__region_shared(want, has, rank) == 0)
        t->is_near = false;
    for (int k = 0; k < rank; k++) {
        int     first, last, part = p->from->part[k][c];
        int64_t has_end = has->begin[k] + has->size[k];
        int64_t want_end = want->begin[k] + want->size[k];

        ch__parts_of_region(p->from, p->whole, want, k, &first, &last);
        if (first < part - 1 || last > part + 1)
            t->is_near = false;
        if (want->begin[k] < has->begin[k] || want_end > has_end)
            t->grown |= 1u << k;
        if (has->size[k] > 0 && (has->begin[k] < want->begin[k] || has_end > want_end))
            t->shrunk |= 1u << k;
    }
}

static pattern pattern_of(const ch_reshard_problem *p)
{
    pattern  t = {.is_placed = true, .is_near = true, .is_even = true};
    uint64_t shared[CH_MAX_CORES], equal[CH_MAX_CORES] = {0}; /* by lowest core of the region */

    ch__cells_shared(p, shared);
    for (uint64_t m = p->wanting; m != 0; m &= m - 1) {
        int c = ch__first_core(m);

        pattern_add_core(p, c, &t);
        equal[p->same[c]] |= m & -m;
        t.is_copied |= p->same[c] != c;
    }
    for (uint64_t m = p->wanting; m != 0; m &= m - 1)
        t.is_even &= shared[ch__first_core(m)] == equal[p->same[ch__first_core(m)]];
    return t;
}

/* Names a reshard of a partial value. */
static ch_traffic_kind name_partial(const ch_reshard_problem *p, bool is_shared)
{
    for (uint64_t m = p->wanting & p->from->cores; m != 0; m &= m - 1) {
        int c = ch__first_core(m);

        if (ch__region_shared(&p->want[c], &p->has[c], p->whole.rank) !=
            ch__region_count(&p->has[c], p->whole.rank))
            return CH_TRAFFIC_REDUCE_SCATTER;
    }
    return is_shared ? CH_TRAFFIC_ALL_REDUCE : CH_TRAFFIC_REDUCE_SCATTER;
}

/* Names a reshard of a complete value. All-gather: groups of cores get equal regions that
 * consist of what they have. All-to-all: the same along some axes, and along others a core
 * gives elements away. Halo: a core keeps elements, and gets others from its neighbours. */
static ch_traffic_kind name_complete(const ch_reshard_problem *p)
{
    pattern t = pattern_of(p);

    if (t.shrunk == 0 && t.is_even && t.is_copied)
        return CH_TRAFFIC_ALL_GATHER;
    if (t.is_placed && t.is_even && t.grown != 0 && t.shrunk != 0 && (t.grown & t.shrunk) == 0)
        return CH_TRAFFIC_ALL_TO_ALL;
    return t.is_near && ch__count_cores(p->wanting) > 1 ? CH_TRAFFIC_HALO : CH_TRAFFIC_OTHER;
}

ch_traffic_kind ch__reshard_name(const ch_reshard_problem *p, bool is_shared)
{
    return p->from->n_partial > 1 ? name_partial(p, is_shared) : name_complete(p);
}
