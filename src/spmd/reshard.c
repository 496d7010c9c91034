/* spmd/reshard.c -- plans of reshards (reshard.h).
 *
 * A complete value consists of source parts, which are disjoint boxes: a core copies the
 * intersection of its wanted region with each part, from itself or from a core that has the
 * part. This gives one copy for each part, so the copies of a core never need to be merged.
 *
 * A partial value is divided into cells (cells.h). Every cell is planned by itself; then
 * adjacent copies with equal sources are merged.
 *
 * Usual patterns divide one axis, so there are few parts and cells: an all-gather over D cores
 * has D parts, an all-reduce has one cell. pattern.c names them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "spmd/reshard.h"

#include <assert.h>
#include <string.h>

#include "base/fault.h"
#include "spmd/cells.h"

static void problem_set(ch_reshard_problem *p, const ch_core_layout *from, ch_shape whole,
                        const ch_region *want, const bool *wants)
{
    p->from = from;
    p->whole = whole;
    p->want = want;
    p->wanting = 0;
    (void)ch__core_regions(from, whole, p->has);
    for (int c = 0; c < from->n_cores; c++) {
        assert(!wants[c] || ch__region_fits(&want[c], whole));
        if (wants[c] && ch__region_count(&want[c], whole.rank) > 0)
            p->wanting |= UINT64_C(1) << c;
    }
}

/* Sets p->same. */
static void find_same(ch_reshard_problem *p)
{
    enum { SLOTS = 2 * CH_MAX_CORES };
    unsigned char slot[SLOTS] = {0}; /* by hash: 1 + the lowest core that wants a region */

    for (uint64_t m = p->wanting; m != 0; m &= m - 1) {
        int      c = ch__first_core(m);
        uint64_t hash = 0;
        size_t   i;

        for (int k = 0; k < p->whole.rank; k++)
            hash = (hash + (uint64_t)p->want[c].begin[k]) * UINT64_C(0x9e3779b97f4a7c15) +
                   (uint64_t)p->want[c].size[k];
        i = (hash ^ hash >> 32) % SLOTS;
        while (slot[i] != 0 &&
               !ch__region_equal(&p->want[slot[i] - 1], &p->want[c], p->whole.rank))
            i = (i + 1) % SLOTS;
        if (slot[i] == 0)
            slot[i] = (unsigned char)(c + 1);
        p->same[c] = (unsigned char)(slot[i] - 1);
    }
}

/* Returns true if the cores that need the cell may read its partial results directly, because
 * no more elements move than if they share the combination. */
static bool cell_is_direct(const ch_cells *s, int n_partial)
{
    return ch__count_cores(s->need) == 1 || (n_partial == 2 && (s->need & ~s->have) == 0);
}

void ch__reshard_cost(const ch_core_layout *from, ch_shape whole, const ch_region *want,
                      const bool *wants, ch_reshard_cost *out)
{
    ch_reshard_problem p;
    ch_cells           s;

    problem_set(&p, from, whole, want, wants);
    *out = (ch_reshard_cost){.n_moved = 0, .n_stages = 1};
    if (from->n_partial == 1) {
        for (uint64_t m = p.wanting; m != 0; m &= m - 1) {
            int c = ch__first_core(m);

            out->n_moved += ch__region_count(&want[c], whole.rank);
            if (ch__layout_has(from, c))
                out->n_moved -= ch__region_shared(&want[c], &p.has[c], whole.rank);
        }
        return;
    }
    ch__cells_begin(&p, &s);
    while (ch__cells_next(&s)) {
        int combine = (s.need & s.have) != 0 ? from->n_partial - 1 : from->n_partial;

        out->n_moved +=
            ch__region_count(&s.region, whole.rank) * (combine + ch__count_cores(s.need) - 1);
        if (!cell_is_direct(&s, from->n_partial))
            out->n_stages = 2;
    }
}

/* ---- lists of copies ---- */

typedef struct copy_list {
    ch_reshard_copy *copy;
    int              n, cap;
    uint64_t         first_sources; /* the first sources of all copies: others need no search */
} copy_list;

typedef struct planner {
    ch_reshard_problem p;
    ch_arena          *arena;
    copy_list          list[2][CH_MAX_CORES]; /* by stage and core */
    int64_t            n_moved;
    int n_chosen[CH_MAX_CORES]; /* by core: how often others chose to read from it */
    /* Of a partial value: the cores that have partial results of a cell, each a single one, and
     * these cores in the order of their results, in the arena. */
    uint64_t             forced;
    const unsigned char *forced_source;
} planner;

static const unsigned char core_number[CH_MAX_CORES] = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
    22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
    44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

/* Sets all members except the problem. */
static void planner_begin(planner *pl, ch_arena *arena)
{
    size_t lists = sizeof(pl->list[0][0]) * (size_t)pl->p.from->n_cores;

    pl->arena = arena;
    pl->n_moved = 0;
    pl->forced = 0;
    pl->forced_source = NULL;
    memset(pl->list[0], 0, lists);
    memset(pl->list[1], 0, lists);
    memset(pl->n_chosen, 0, sizeof(pl->n_chosen));
}

static ch_status list_reserve(ch_arena *arena, copy_list *l, int n)
{
    ch_reshard_copy *copy;
    int              cap = n > 2 * l->cap ? n : 2 * l->cap;

    if (n <= l->cap)
        return CH_OK;
    copy = ch__arena_alloc(arena, sizeof(*copy) * (size_t)cap);
    if (copy == NULL)
        return ch__fail_memory("plan of a reshard");
    if (l->n > 0)
        memcpy(copy, l->copy, sizeof(*copy) * (size_t)l->n);
    l->copy = copy;
    l->cap = cap;
    return CH_OK;
}

/* Makes *r the union of a and *r, if the union is a box. Returns false otherwise. */
static bool region_join(const ch_region *a, ch_region *r, int rank)
{
    int axis = -1;

    for (int k = 0; k < rank; k++) {
        if (a->begin[k] == r->begin[k] && a->size[k] == r->size[k])
            continue;
        if (axis >= 0 || (a->begin[k] + a->size[k] != r->begin[k] &&
                          r->begin[k] + r->size[k] != a->begin[k]))
            return false;
        axis = k;
    }
    if (axis < 0)
        return false;
    r->begin[axis] = ch__min(a->begin[axis], r->begin[axis]);
    r->size[axis] += a->size[axis];
    return true;
}

/* Adds a copy of core c to the list of a stage. Merges it with copies in the list. The sources
 * of a copy are different cores. */
static ch_status add_copy(planner *pl, int stage, int c, ch_reshard_copy copy)
{
    copy_list *l = &pl->list[stage][c];
    int        rank = pl->p.whole.rank;
    int64_t    n = ch__region_count(&copy.region, rank);
    uint64_t   first = UINT64_C(1) << copy.source[0];
    ch_status  rc;

    pl->n_moved +=
        n * (copy.n_sources - (memchr(copy.source, c, (size_t)copy.n_sources) != NULL));
    for (int i = (l->first_sources & first) != 0 ? l->n - 1 : -1; i >= 0; i--) {
        if (l->copy[i].n_sources != copy.n_sources ||
            memcmp(l->copy[i].source, copy.source, (size_t)copy.n_sources) != 0 ||
            !region_join(&l->copy[i].region, &copy.region, rank))
            continue;
        l->copy[i] = l->copy[--l->n]; /* the union may join with other copies */
        i = l->n;
    }
    rc = list_reserve(pl->arena, l, l->n + 1);
    if (rc != CH_OK)
        return rc;
    l->copy[l->n++] = copy;
    l->first_sources |= first;
    return CH_OK;
}

/* Returns the core from which core c reads an element that the cores of a mask have. */
static int choose_source(planner *pl, int c, uint64_t cores)
{
    int best = -1;

    assert(cores != 0);
    if (ch__has_core(cores, c))
        return c;
    for (; cores != 0; cores &= cores - 1) {
        int i = ch__first_core(cores);

        if (best < 0 || pl->n_chosen[i] < pl->n_chosen[best])
            best = i;
    }
    pl->n_chosen[best]++;
    return best;
}

/* ---- complete values ---- */

/* The parts of an axis of the source. */
typedef struct source_axis {
    int64_t  begin[CH_MAX_CORES + 1]; /* part i is [begin[i], begin[i + 1]) */
    uint64_t have[CH_MAX_CORES];      /* by part: the cores that have it */
} source_axis;

/* Plans the copies of core c: one for each source part that its region meets. */
static ch_status plan_core(planner *pl, const source_axis *axis, int c)
{
    const ch_core_layout *from = pl->p.from;
    const ch_region      *want = &pl->p.want[c];
    copy_list            *l = &pl->list[0][c];
    int                   first[CH_MAX_RANK], last[CH_MAX_RANK], at[CH_MAX_RANK], n = 1, k;
    int                   rank = pl->p.whole.rank;
    ch_status             rc;

    assert(rank >= 0 && rank <= CH_MAX_RANK);
    for (k = 0; k < rank; k++) {
        ch__parts_of_region(from, pl->p.whole, want, k, &first[k], &last[k]);
        at[k] = first[k];
        n *= last[k] - first[k] + 1;
    }
    rc = list_reserve(pl->arena, l, n);
    if (rc != CH_OK)
        return rc;
    do {
        ch_reshard_copy *copy = &l->copy[l->n++];
        uint64_t         cores = from->cores;
        int              source;

        copy->region = *want;
        for (k = 0; k < rank; k++) {
            int64_t want_end = want->begin[k] + want->size[k];

            if (from->parts[k] == 1)
                continue;
            if (axis[k].begin[at[k]] > want->begin[k])
                copy->region.begin[k] = axis[k].begin[at[k]];
            copy->region.size[k] =
                ch__min(axis[k].begin[at[k] + 1], want_end) - copy->region.begin[k];
            cores &= axis[k].have[at[k]];
        }
        source = choose_source(pl, c, cores);
        copy->n_sources = 1;
        copy->source = &core_number[source];
        if (source != c)
            pl->n_moved += ch__region_count(&copy->region, rank);
        for (k = rank - 1; k >= 0 && ++at[k] > last[k]; k--)
            at[k] = first[k];
    } while (k >= 0);
    return CH_OK;
}

static void find_source_axis(const ch_reshard_problem *p, int k, source_axis *axis)
{
    (void)ch__core_parts(p->from, k, p->whole.dim[k], axis->begin);
    memset(axis->have, 0, sizeof(axis->have[0]) * (size_t)p->from->parts[k]);
    for (uint64_t m = p->from->cores; m != 0; m &= m - 1)
        axis->have[p->from->part[k][ch__first_core(m)]] |= m & -m;
}

/* If no part is on several cores, cores that want the same region make the same copies. */
static ch_status plan_complete(planner *pl)
{
    source_axis axis[CH_MAX_RANK];
    int         rank = pl->p.whole.rank;
    bool        share = ch__layout_has_no_copies(pl->p.from);
    ch_status   rc = CH_OK;

    for (int k = 0; k < rank; k++)
        if (pl->p.from->parts[k] > 1)
            find_source_axis(&pl->p, k, &axis[k]);
    for (uint64_t m = pl->p.wanting; m != 0 && rc == CH_OK; m &= m - 1) {
        int c = ch__first_core(m), same = pl->p.same[c];

        if (!share || same == c) {
            rc = plan_core(pl, axis, c);
            continue;
        }
        pl->list[0][c] = pl->list[0][same];
        pl->n_moved += ch__region_count(&pl->p.want[c], rank);
        if (ch__layout_has(pl->p.from, c))
            pl->n_moved -= ch__region_shared(&pl->p.want[c], &pl->p.has[c], rank);
    }
    return rc;
}

/* ---- partial values ---- */

/* Sets pl->forced_source for a cell of which every partial result is on a single core. */
static ch_status find_forced(planner *pl, const ch_cells *s, const uint64_t *partial)
{
    int            n = pl->p.from->n_partial;
    unsigned char *source;

    if (pl->forced == s->have)
        return CH_OK;
    source = ch__arena_alloc(pl->arena, (size_t)n);
    if (source == NULL)
        return ch__fail_memory("plan of a reshard");
    for (int i = 0; i < n; i++)
        source[i] = (unsigned char)ch__first_core(s->have & partial[i]);
    pl->forced = s->have;
    pl->forced_source = source;
    return CH_OK;
}

/* Counts the forced sources of core c, except those of its last copy. */
static void count_forced(planner *pl, const copy_list *l, int c)
{
    const unsigned char *before = l->n > 0 ? l->copy[l->n - 1].source : NULL;

    for (int i = 0; i < pl->p.from->n_partial && before != pl->forced_source; i++) {
        int source = pl->forced_source[i];

        pl->n_chosen[source] += source != c && (before == NULL || before[i] != source);
    }
}

/* Adds the combination of a box of the current cell by core c. partial[i] are the cores with
 * partial result i. */
static ch_status add_combination(planner *pl, const ch_cells *s, const uint64_t *partial, int c,
                                 const ch_region *box)
{
    const copy_list *l = &pl->list[0][c];
    int              n = pl->p.from->n_partial;
    unsigned char    source[CH_MAX_CORES];
    ch_reshard_copy  copy = {.n_sources = n, .region = *box};

    if (ch__count_cores(s->have) == n) {
        ch_status rc = find_forced(pl, s, partial);

        copy.source = pl->forced_source;
        if (rc == CH_OK)
            count_forced(pl, l, c);
        return rc == CH_OK ? add_copy(pl, 0, c, copy) : rc;
    }
    for (int i = 0; i < n; i++) {
        uint64_t cores = s->have & partial[i];
        int      before = l->n > 0 ? l->copy[l->n - 1].source[i] : c;

        /* The same source as for the cell before, if possible, so that copies can be merged. */
        if (!ch__has_core(cores, c) && ch__has_core(cores, before))
            source[i] = (unsigned char)before;
        else
            source[i] = (unsigned char)choose_source(pl, c, cores);
    }
    if (l->n > 0 && memcmp(l->copy[l->n - 1].source, source, (size_t)n) == 0)
        copy.source = l->copy[l->n - 1].source;
    else
        copy.source = ch__arena_copy(pl->arena, source, (size_t)n);
    if (copy.source == NULL)
        return ch__fail_memory("plan of a reshard");
    return add_copy(pl, 0, c, copy);
}

/* Returns the longest axis of a box, of rank 1 at least. */
static int longest_axis(const ch_region *box, int rank)
{
    int axis = 0;

    for (int k = 1; k < rank; k++) {
        if (box->size[k] > box->size[axis])
            axis = k;
    }
    return axis;
}

/* Plans the current cell in two stages: the cores that need it combine even shares, preferably
 * those that have a partial result of it, and all copy the shares of the others. `is_only`:
 * there is no other cell, so all these cores have the list of the first of them. */
static ch_status plan_shares(planner *pl, const ch_cells *s, const uint64_t *partial,
                             bool is_only)
{
    int      first = ch__first_core(s->need);
    uint64_t combining = (s->need & s->have) != 0 ? s->need & s->have : s->need;
    int      axis = longest_axis(&s->region, s->rank);
    int64_t  length = s->rank > 0 ? s->region.size[axis] : 1;
    int      n = (int)ch__min(ch__count_cores(combining), length);

    for (int i = 0; i < n; i++, combining &= combining - 1) {
        int             c = ch__first_core(combining);
        ch_reshard_copy share = {1, &core_number[c], s->region};
        ch_status       rc;

        if (n > 1) {
            int64_t begin = ch__part_begin(length, n, i);

            share.region.begin[axis] += begin;
            share.region.size[axis] = ch__part_begin(length, n, i + 1) - begin;
        }
        rc = add_combination(pl, s, partial, c, &share.region);
        if (is_only && rc == CH_OK) {
            rc = add_copy(pl, 1, first, share);
            pl->n_moved += ch__region_count(&share.region, s->rank) *
                           ch__count_cores(s->need & ~(UINT64_C(1) << c) & (s->need - 1));
        }
        for (uint64_t m = is_only ? 0 : s->need; m != 0 && rc == CH_OK; m &= m - 1)
            rc = add_copy(pl, 1, ch__first_core(m), share);
        if (rc != CH_OK)
            return rc;
    }
    for (uint64_t m = is_only ? s->need : 0; m != 0; m &= m - 1)
        pl->list[1][ch__first_core(m)] = pl->list[1][first];
    return CH_OK;
}

/* Plans a partial value. Sets *n_stages, and *is_shared if several cores need an element. */
static ch_status plan_partial(planner *pl, int *n_stages, bool *is_shared)
{
    const ch_core_layout *from = pl->p.from;
    uint64_t              partial[CH_MAX_CORES] = {0}; /* by partial result: its cores */
    ch_status             rc = CH_OK;
    int                   n_cells = 0;
    ch_cells              s;

    for (uint64_t m = from->cores; m != 0; m &= m - 1)
        partial[from->partial[ch__first_core(m)]] |= m & -m;
    *n_stages = 1;
    *is_shared = false;
    ch__cells_begin(&pl->p, &s);
    while (ch__cells_next(&s)) {
        n_cells++;
        *is_shared |= ch__count_cores(s.need) > 1;
        if (!cell_is_direct(&s, from->n_partial))
            *n_stages = 2;
    }
    ch__cells_begin(&pl->p, &s);
    while (rc == CH_OK && ch__cells_next(&s)) {
        if (*n_stages == 2)
            rc = plan_shares(pl, &s, partial, n_cells == 1);
        for (uint64_t m = s.need; *n_stages == 1 && m != 0 && rc == CH_OK; m &= m - 1)
            rc = add_combination(pl, &s, partial, ch__first_core(m), &s.region);
    }
    return rc;
}

/* ---- plans ---- */

/* Returns true if every core has exactly the region that it wants. */
static bool is_done(const ch_reshard_problem *p, const bool *wants)
{
    if (p->from->n_partial > 1)
        return false;
    for (int c = 0; c < p->from->n_cores; c++) {
        if (wants[c] && (!ch__layout_has(p->from, c) ||
                         !ch__region_equal(&p->has[c], &p->want[c], p->whole.rank)))
            return false;
    }
    return true;
}

/* Sets *held to the smallest region that contains all copies of a list. */
static void list_bounds(const copy_list *l, int rank, ch_region *held)
{
    *held = l->copy[0].region;
    for (int i = 1; i < l->n; i++) {
        const ch_region *r = &l->copy[i].region;

        for (int k = 0; k < rank; k++) {
            int64_t end = held->begin[k] + held->size[k], r_end = r->begin[k] + r->size[k];

            held->begin[k] = ch__min(held->begin[k], r->begin[k]);
            held->size[k] = (end > r_end ? end : r_end) - held->begin[k];
        }
    }
}

/* Makes the work of all cores from the lists of copies. */
static ch_status plan_finish(planner *pl, const bool *wants, ch_reshard *r)
{
    for (int i = 0; i < r->n_stages; i++) {
        ch_reshard_work *work = ch__arena_alloc(pl->arena, sizeof(*work) * (size_t)r->n_cores);

        if (work == NULL)
            return ch__fail_memory("plan of a reshard");
        r->stage[i] = work;
        for (int c = 0; c < r->n_cores; c++) {
            copy_list       *l = &pl->list[i][c];
            ch_reshard_work *w = &work[c];

            w->n = l->n;
            w->copy = l->copy;
            if (i < r->n_stages - 1) {
                w->has = l->n > 0;
                if (w->has)
                    list_bounds(l, r->whole.rank, &w->held);
            } else {
                w->has = wants[c];
                if (w->has)
                    w->held = pl->p.want[c];
            }
        }
    }
    return CH_OK;
}

ch_status ch__reshard_plan(const ch_core_layout *from, ch_shape whole, const ch_region *want,
                           const bool *wants, ch_arena *arena, const ch_reshard **out)
{
    planner     pl;
    ch_reshard *r = ch__arena_alloc(arena, sizeof(*r));
    bool        is_shared = false;
    ch_status   rc;

    if (r == NULL)
        return ch__fail_memory("plan of a reshard");
    problem_set(&pl.p, from, whole, want, wants);
    *r = (ch_reshard){
        .whole = whole, .combiner = from->combiner, .n_cores = from->n_cores, .from = from};
    if (is_done(&pl.p, wants)) {
        *out = r;
        return CH_OK;
    }
    r->n_stages = 1;
    planner_begin(&pl, arena);
    find_same(&pl.p);
    if (from->n_partial == 1)
        rc = plan_complete(&pl);
    else
        rc = plan_partial(&pl, &r->n_stages, &is_shared);
    if (rc == CH_OK)
        rc = plan_finish(&pl, wants, r);
    if (rc != CH_OK)
        return rc;
    r->n_moved = pl.n_moved;
    r->kind = r->n_moved > 0 ? ch__reshard_name(&pl.p, is_shared) : CH_TRAFFIC_NONE;
    *out = r;
    return CH_OK;
}
