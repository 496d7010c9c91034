/* spmd/cells.c -- divides a value into cells (cells.h).
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
    int i = *n > 0 && a->begin[*n - 1] < position ? *n : boundary_find(a, *n, position);

    if (i < *n && a->begin[i] == position)
        return;
    memmove(a->begin + i + 1, a->begin + i, sizeof(a->begin[0]) * (size_t)(*n - i));
    a->begin[i] = position;
    ++*n;
}

/* Removes from *m the lowest core, and the cores that follow it in the set and have the same
 * range of an axis in `at`. Returns the removed cores. */
static uint64_t next_range(const ch_region *at, int axis, uint64_t *m)
{
    const ch_region *r = &at[ch__first_core(*m)];
    uint64_t         cores = 0;

    for (; *m != 0; *m &= *m - 1) {
        const ch_region *other = &at[ch__first_core(*m)];

        if (other->begin[axis] != r->begin[axis] || other->size[axis] != r->size[axis])
            break;
        cores |= *m & -*m;
    }
    return cores;
}

/* Returns the same, for a position that is probably near boundary i. */
static int boundary_near(const ch_axis_cells *a, int n, int i, int64_t position)
{
    if (i >= n || a->begin[i] > position)
        return boundary_find(a, n, position);
    while (i < n && a->begin[i] < position)
        i++;
    return i;
}

/* Toggles cores in the masks of the intervals where their ranges begin and end. The exclusive
 * or of all masks up to an interval then is the mask of the interval. */
static void toggle(const ch_axis_cells *a, uint64_t *mask, const ch_region *at, int axis,
                   uint64_t m)
{
    int i = 0;

    while (m != 0) {
        const ch_region *r = &at[ch__first_core(m)];
        uint64_t         cores = next_range(at, axis, &m);

        if (r->size[axis] == 0)
            continue;
        i = boundary_near(a, a->n + 1, i, r->begin[axis]);
        mask[i] ^= cores;
        mask[boundary_near(a, a->n + 1, i, r->begin[axis] + r->size[axis])] ^= cores;
    }
}

static void axis_divide(const ch_reshard_problem *p, int axis, ch_axis_cells *a)
{
    int     n = 0;
    int64_t size = p->whole.dim[axis], begin[CH_MAX_CORES + 1];

    (void)ch__core_parts(p->from, axis, size, begin);
    for (int i = 0; i <= p->from->parts[axis]; i++)
        boundary_add(a, &n, begin[i]);
    for (uint64_t m = p->wanting; m != 0; (void)next_range(p->want, axis, &m)) {
        const ch_region *want = &p->want[ch__first_core(m)];

        boundary_add(a, &n, want->begin[axis]);
        boundary_add(a, &n, want->begin[axis] + want->size[axis]);
    }
    a->n = n - 1;
    memset(a->need, 0, sizeof(a->need[0]) * (size_t)n);
    memset(a->have, 0, sizeof(a->have[0]) * (size_t)n);
    toggle(a, a->need, p->want, axis, p->wanting);
    toggle(a, a->have, p->has, axis, p->from->cores);
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

void ch__cells_shared(const ch_reshard_problem *p, uint64_t *shared)
{
    ch_axis_cells a;

    for (uint64_t m = p->wanting; m != 0; m &= m - 1)
        shared[ch__first_core(m)] = p->wanting;
    for (int k = 0; k < p->whole.rank; k++) {
        axis_divide(p, k, &a);
        for (uint64_t m = p->wanting; m != 0;) {
            const ch_region *r = &p->want[ch__first_core(m)];
            int64_t          end = r->begin[k] + r->size[k];
            uint64_t         along = 0, cores = next_range(p->want, k, &m);

            for (int i = boundary_find(&a, a.n + 1, r->begin[k]); a.begin[i] < end; i++)
                along |= a.need[i];
            for (; cores != 0; cores &= cores - 1)
                shared[ch__first_core(cores)] &= along;
        }
    }
}
