/* spmd/cells.c -- divides a partial value into cells (cells.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "spmd/cells.h"

#include <assert.h>
#include <string.h>

/* Returns the index of the first boundary that is not below `position`. */
static int boundary_find(const ch_axis_cells *a, int n, int64_t position)
{
    int low = 0, high = n;

    while (low < high) {
        int middle = (low + high) / 2;

        if (a->begin[middle] < position)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Adds a boundary; *n counts boundaries. */
static void boundary_add(ch_axis_cells *a, int *n, int64_t position)
{
    int i = boundary_find(a, *n, position);

    if (i < *n && a->begin[i] == position)
        return;
    memmove(a->begin + i + 1, a->begin + i, sizeof(a->begin[0]) * (size_t)(*n - i));
    a->begin[i] = position;
    ++*n;
}

/* Toggles a core in the masks of the intervals where its range begins and ends. The exclusive
 * or of all masks up to an interval then is the mask of the interval. */
static void toggle(const ch_axis_cells *a, uint64_t *mask, const ch_region *r, int axis,
                   int core)
{
    if (r->size[axis] == 0)
        return;
    mask[boundary_find(a, a->n + 1, r->begin[axis])] ^= UINT64_C(1) << core;
    mask[boundary_find(a, a->n + 1, r->begin[axis] + r->size[axis])] ^= UINT64_C(1) << core;
}

static void axis_divide(const ch_reshard_problem *p, int axis, ch_axis_cells *a)
{
    int     n = 0;
    int64_t size = p->whole.dim[axis];

    boundary_add(a, &n, 0);
    boundary_add(a, &n, size);
    for (int i = 1; i < p->from->parts[axis]; i++) {
        int64_t begin, end;

        ch__core_part(p->from, axis, size, i, &begin, &end);
        boundary_add(a, &n, begin);
    }
    for (uint64_t m = p->wanting; m != 0; m &= m - 1) {
        const ch_region *want = &p->want[ch__first_core(m)];

        boundary_add(a, &n, want->begin[axis]);
        boundary_add(a, &n, want->begin[axis] + want->size[axis]);
    }
    a->n = n - 1;
    memset(a->need, 0, sizeof(a->need[0]) * (size_t)n);
    memset(a->have, 0, sizeof(a->have[0]) * (size_t)n);
    for (uint64_t m = p->wanting; m != 0; m &= m - 1)
        toggle(a, a->need, &p->want[ch__first_core(m)], axis, ch__first_core(m));
    for (uint64_t m = p->from->cores; m != 0; m &= m - 1)
        toggle(a, a->have, &p->has[ch__first_core(m)], axis, ch__first_core(m));
    for (int i = 1; i < n; i++) {
        a->need[i] ^= a->need[i - 1];
        a->have[i] ^= a->have[i - 1];
    }
}

void ch__cells_begin(const ch_reshard_problem *p, ch_cells *s)
{
    s->rank = p->whole.rank;
    assert(s->rank >= 0);
    s->region = (ch_region){.begin = {0}};
    s->need = p->wanting;
    s->have = p->from->cores;
    for (int k = 0; k < s->rank; k++) {
        axis_divide(p, k, &s->axis[k]);
        s->at[k] = 0;
    }
    s->at[s->rank > 0 ? s->rank - 1 : 0] = -1;
}

bool ch__cells_next(ch_cells *s)
{
    do {
        int k = s->rank - 1;

        if (s->rank == 0) /* a scalar is a single cell */
            return s->at[0]++ < 0 && s->need != 0;
        while (k >= 0 && ++s->at[k] >= s->axis[k].n)
            s->at[k--] = 0;
        if (k < 0)
            return false;
        s->need = s->have = ~UINT64_C(0);
        for (k = 0; k < s->rank; k++) {
            const ch_axis_cells *a = &s->axis[k];
            int                  i = s->at[k];

            s->region.begin[k] = a->begin[i];
            s->region.size[k] = a->begin[i + 1] - a->begin[i];
            s->need &= a->need[i];
            s->have &= a->have[i];
        }
    } while (s->need == 0);
    return true;
}
