/* spmd/layout.c -- layouts: how a value lies over the cores of a replica (layout.h).
 *
 * The functions make layouts, keep unique copies of them, compute the regions of cores, and
 * compare, combine and print layouts. Callers are all passes of the partitioner.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "spmd/layout.h"

#include <assert.h>
#include <string.h>

#include "base/fault.h"
#include "base/hash.h"
#include "base/map.h"
#include "tensor/print.h"

/* Returns the number of combinations of parts and partial results. */
static int64_t layout_combinations(const ch_core_layout *l)
{
    int64_t n = l->n_partial;

    for (int k = 0; k < l->rank; k++)
        n *= l->parts[k];
    return n;
}

/* Sets number[c] to the number of the combination that core c has: row-major over the parts,
 * the partial results last. There must be at most CH_MAX_CORES combinations. */
static void layout_number(const ch_core_layout *l, unsigned char *number)
{
    memset(number, 0, CH_MAX_CORES);
    for (int k = 0; k < l->rank; k++)
        for (int c = 0; c < CH_MAX_CORES && l->parts[k] > 1; c++)
            number[c] = (unsigned char)(number[c] * l->parts[k] + l->part[k][c]);
    for (int c = 0; c < CH_MAX_CORES && l->n_partial > 1; c++)
        number[c] = (unsigned char)(number[c] * l->n_partial + l->partial[c]);
}

bool ch__layout_is_replicated(const ch_core_layout *l)
{
    return layout_combinations(l) == 1 && l->cores == ch__first_cores(l->n_cores);
}

bool ch__layout_has_no_copies(const ch_core_layout *l)
{
    return layout_combinations(l) == ch__count_cores(l->cores);
}

int ch__layout_n_copies(const ch_core_layout *l)
{
    int           n = (int)layout_combinations(l), count[CH_MAX_CORES] = {0};
    unsigned char number[CH_MAX_CORES];

    if (n == 1)
        return ch__count_cores(l->cores);
    layout_number(l, number);
    for (uint64_t m = l->cores; m != 0; m &= m - 1)
        count[number[ch__first_core(m)]]++;
    for (int i = 1; i < n; i++) {
        if (count[i] != count[0])
            return 0;
    }
    return count[0];
}

uint64_t ch__layout_first_cores(const ch_core_layout *l)
{
    uint64_t      first = 0, seen = 0;
    unsigned char number[CH_MAX_CORES];

    layout_number(l, number);
    for (uint64_t m = l->cores; m != 0; m &= m - 1) {
        uint64_t own = UINT64_C(1) << number[ch__first_core(m)];

        first |= (seen & own) == 0 ? m & -m : 0;
        seen |= own;
    }
    return first;
}

/* ---- unique layouts ---- */

/* The regions of a layout for values of one shape. */
typedef struct regions_entry {
    ch_shape              whole;
    struct cost_entry    *costs;
    struct regions_entry *next;
    ch_core_regions       regions; /* the last member: shorter if there are fewer cores */
} regions_entry;

/* The cost of a reshard from a layout. */
typedef struct cost_entry {
    const ch_core_layout *from;
    ch_reshard_cost       cost;
    struct cost_entry    *next;
} cost_entry;

typedef struct layout_entry {
    ch_core_layout       layout;
    const char          *text;    /* ch__layout_text; NULL: not printed yet */
    regions_entry       *regions; /* one for each shape */
    struct layout_entry *next;    /* another layout with the same hash */
} layout_entry;

struct ch_layout_table {
    int      n_cores;
    ch_arena arena;
    ch_map   by_hash; /* layout_entry */
};

ch_status ch__layout_table_new(int n_cores, ch_layout_table **out)
{
    ch_layout_table *t = ch__calloc(1, sizeof(*t));

    assert(n_cores >= 1 && n_cores <= CH_MAX_CORES);
    if (t == NULL)
        return ch__fail_memory("table of layouts");
    t->n_cores = n_cores;
    *out = t;
    return CH_OK;
}

void ch__layout_table_free(ch_layout_table *t)
{
    if (t == NULL)
        return;
    ch__map_drop(&t->by_hash);
    ch__arena_drop(&t->arena);
    ch__free(t);
}

/* Copies numbers of cores, with 0 for cores that are not in the set. Both arrays may be the
 * same. */
static void copy_row(const unsigned char *from, int n_cores, uint64_t cores, unsigned char *out)
{
    unsigned char row[CH_MAX_CORES] = {0};

    if (cores == ch__first_cores(n_cores))
        memcpy(row, from, (size_t)n_cores);
    else
        for (; cores != 0; cores &= cores - 1)
            row[ch__first_core(cores)] = from[ch__first_core(cores)];
    memcpy(out, row, sizeof(row));
}

/* Copies a layout, with 0 for members without meaning and for padding, so that equal layouts
 * have equal bytes. */
static void layout_normalise(const ch_core_layout *l, ch_core_layout *out)
{
    memset(out, 0, ch__layout_bytes(l->rank));
    out->n_cores = l->n_cores;
    out->rank = l->rank;
    out->n_partial = l->n_partial;
    out->combiner = l->n_partial > 1 ? l->combiner : CH_PARTIAL_SUM;
    out->cores = l->cores & ch__first_cores(l->n_cores);
    for (int k = 0; k < l->rank; k++) {
        out->parts[k] = l->parts[k];
        out->unit[k] = 1;
        if (l->parts[k] == 1)
            continue;
        out->unit[k] = l->unit[k];
        copy_row(l->part[k], l->n_cores, out->cores, out->part[k]);
    }
    if (l->n_partial > 1)
        copy_row(l->partial, l->n_cores, out->cores, out->partial);
}

/* Returns hash `h`, continued over a number. */
static uint64_t hash_word(uint64_t h, uint64_t word)
{
    h = (h ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

static uint64_t hash_row(uint64_t h, const unsigned char *row, int n_cores)
{
    for (int c = 0; c < n_cores; c += 8) {
        uint64_t word;

        memcpy(&word, row + c, sizeof(word));
        h = hash_word(h, word);
    }
    return h;
}

/* An axis in one part adds nothing to the hash. */
uint64_t ch__layout_hash(const ch_core_layout *l)
{
    uint64_t h = hash_word(CH_HASH_START, l->cores);

    for (int k = 0; k < l->rank; k++)
        if (l->parts[k] > 1)
            h = hash_row(hash_word(hash_word(h, (uint64_t)k), (uint64_t)l->unit[k]), l->part[k],
                         l->n_cores);
    if (l->n_partial > 1)
        h = hash_row(h, l->partial, l->n_cores);
    return h != 0 ? h : 1;
}

ch_status ch__layout_intern(ch_layout_table *t, const ch_core_layout *l,
                            const ch_core_layout **out)
{
    ch_core_layout unique;
    ch_key         key;
    layout_entry  *first, *e;
    ch_status      rc;

    assert(l->n_cores == t->n_cores);
    layout_normalise(l, &unique);
    key = ch__key(ch__layout_hash(&unique));
    first = ch__map_find(&t->by_hash, key);
    for (e = first; e != NULL; e = e->next) {
        if (e->layout.rank == unique.rank &&
            memcmp(&e->layout, &unique, ch__layout_bytes(unique.rank)) == 0) {
            *out = &e->layout;
            return CH_OK;
        }
    }
    e = ch__arena_alloc(&t->arena, sizeof(*e));
    if (e == NULL)
        return ch__fail_memory("layout");
    ch__layout_copy(&unique, &e->layout);
    e->next = first;
    rc = ch__map_set(&t->by_hash, key, e);
    if (rc == CH_OK)
        *out = &e->layout;
    return rc;
}

/* Returns the entry of which a unique layout, or its regions, are a member. The table changes
 * the other members. */
static void *entry_of(const void *member, size_t offset)
{
    char *at;

    memcpy(&at, &member, sizeof(at));
    return at - offset;
}

const ch_core_regions *ch__layout_regions(ch_layout_table *t, const ch_core_layout *l,
                                          ch_shape whole)
{
    layout_entry  *of = entry_of(l, offsetof(layout_entry, layout));
    regions_entry *e = of->regions;
    size_t         bytes = sizeof(whole.dim[0]) * (size_t)l->rank;

    while (e != NULL && memcmp(e->whole.dim, whole.dim, bytes) != 0)
        e = e->next;
    if (e != NULL)
        return &e->regions;
    e = ch__arena_alloc(&t->arena,
                        offsetof(regions_entry, regions) + ch__regions_bytes(l->n_cores));
    if (e == NULL)
        return NULL;
    e->whole = whole;
    e->regions.layout = l;
    e->regions.cores = l->cores;
    e->regions.same_sizes = ch__core_regions(l, whole, e->regions.at);
    e->next = of->regions;
    of->regions = e;
    return &e->regions;
}

ch_reshard_cost *ch__layout_cost(ch_layout_table *t, const ch_core_layout *from,
                                 const ch_core_regions *to)
{
    regions_entry *of = entry_of(to, offsetof(regions_entry, regions));
    cost_entry    *e = of->costs;

    while (e != NULL && e->from != from)
        e = e->next;
    if (e != NULL)
        return &e->cost;
    e = ch__arena_alloc(&t->arena, sizeof(*e));
    if (e == NULL)
        return NULL;
    *e = (cost_entry){.from = from, .cost = {.n_moved = -1}, .next = of->costs};
    of->costs = e;
    return &e->cost;
}

const char *ch__layout_text(ch_layout_table *t, const ch_core_layout *l)
{
    layout_entry *of = entry_of(l, offsetof(layout_entry, layout));
    char          text[512];

    if (of->text == NULL) {
        (void)ch__core_layout_print(l, text, sizeof(text));
        of->text = ch__arena_strdup(&t->arena, text);
    }
    return of->text;
}

/* ---- common layouts ---- */

void ch__layout_replicated(int n_cores, int rank, ch_core_layout *out)
{
    assert(n_cores >= 1 && n_cores <= CH_MAX_CORES && rank <= CH_LAYOUT_RANK);
    memset(out, 0, ch__layout_bytes(rank));
    out->n_cores = n_cores;
    out->rank = rank;
    out->n_partial = 1;
    out->cores = ch__first_cores(n_cores);
    for (int k = 0; k < rank; k++) {
        out->parts[k] = 1;
        out->unit[k] = 1;
    }
}

void ch__layout_split(int n_cores, int rank, const int *parts, ch_core_layout *out)
{
    ch__layout_replicated(n_cores, rank, out);
    for (int k = 0; k < rank; k++)
        out->parts[k] = parts[k];
    assert(layout_combinations(out) == n_cores);
    for (int c = 0; c < n_cores; c++) {
        for (int k = rank - 1, i = c; k >= 0; i /= parts[k--])
            out->part[k][c] = (unsigned char)(i % parts[k]);
    }
}

void ch__layout_over_cores(int n_cores, int rank, int axis, ch_core_layout *out)
{
    ch__layout_replicated(n_cores, rank, out);
    out->parts[axis] = n_cores;
    for (int c = 0; c < n_cores; c++)
        out->part[axis][c] = (unsigned char)c;
}

void ch__layout_on_core(int n_cores, int rank, int core, ch_core_layout *out)
{
    assert(core >= 0 && core < n_cores);
    ch__layout_replicated(n_cores, rank, out);
    out->cores = UINT64_C(1) << core;
}

ch_status ch__layout_over_mesh(const char *what, int n_mesh, const int *mesh, int rank,
                               const int *mesh_axis, ch_core_layout *out)
{
    int stride[CH_MAX_CORES]; /* by mesh axis: distance of neighbouring cores */
    int n_cores = 1, all_axis = -1, user[CH_MAX_CORES];

    assert(n_mesh >= 1 && n_mesh <= CH_MAX_CORES);
    for (int m = n_mesh - 1; m >= 0; m--) {
        user[m] = -1;
        stride[m] = n_cores;
        n_cores *= mesh[m];
    }
    for (int k = 0; k < rank; k++) {
        int m = mesh_axis[k];

        if (m == CH_OFF)
            continue;
        if (m != CH_MESH_ALL && (m < 0 || m >= n_mesh))
            return ch__fail(CH_INVALID_ARGUMENT,
                            "%s: axis %d is split over mesh axis %d (want 0 to %d, "
                            "CH_MESH_ALL or CH_OFF)",
                            what, k, m, n_mesh - 1);
        for (int i = 0; i < n_mesh; i++) {
            if (m != i && m != CH_MESH_ALL)
                continue;
            if (user[i] >= 0)
                return ch__fail(CH_INVALID_ARGUMENT,
                                "%s: mesh axis %d occurs twice, for axes %d and %d; split one "
                                "axis over it",
                                what, i, user[i], k);
            user[i] = k;
        }
        if (m == CH_MESH_ALL)
            all_axis = k;
    }
    ch__layout_replicated(n_cores, rank, out);
    for (int k = 0; k < rank; k++) {
        int m = mesh_axis[k];

        if (m == CH_OFF)
            continue;
        out->parts[k] = k == all_axis ? n_cores : mesh[m];
        for (int c = 0; c < n_cores; c++)
            out->part[k][c] = (unsigned char)(k == all_axis ? c : c / stride[m] % mesh[m]);
    }
    return CH_OK;
}

/* ---- sizes and regions ---- */

void ch__core_part(const ch_core_layout *l, int axis, int64_t size, int i, int64_t *from,
                   int64_t *to)
{
    int64_t unit = l->unit[axis], units;
    int     n = l->parts[axis];

    if (n == 1) {
        *from = 0;
        *to = size;
        return;
    }
    units = unit == 1 ? size : ch__units(size, unit);
    *from = ch__min(ch__part_begin(units, n, i) * unit, size);
    *to = ch__min(ch__part_begin(units, n, i + 1) * unit, size);
}

bool ch__core_parts(const ch_core_layout *l, int axis, int64_t size, int64_t *begin)
{
    int64_t unit = l->unit[axis], n = l->parts[axis];
    int64_t units = n > 1 ? ch__units(size, unit) : size, each = units / n, more = units % n;
    bool    is_even = true;

    begin[0] = 0;
    for (int64_t i = 0, at = 0; i < n; i++) {
        at += each + (i < more);
        begin[i + 1] = n > 1 ? ch__min(at * unit, size) : size;
        is_even &= begin[i + 1] - begin[i] == begin[1];
    }
    return is_even;
}

bool ch__core_regions(const ch_core_layout *l, ch_shape whole, ch_region *out)
{
    bool      same_sizes = l->cores == ch__first_cores(l->n_cores);
    ch_region all = {.begin = {0}};

    assert(l->rank == whole.rank);
    for (int k = 0; k < whole.rank; k++)
        all.size[k] = whole.dim[k];
    for (int c = 0; c < l->n_cores; c++)
        out[c] = ch__layout_has(l, c) ? all : (ch_region){.begin = {0}};
    for (int k = 0; k < whole.rank; k++) {
        int64_t begin[CH_MAX_CORES + 1];

        if (l->parts[k] == 1)
            continue;
        same_sizes &= ch__core_parts(l, k, whole.dim[k], begin);
        for (uint64_t m = l->cores; m != 0; m &= m - 1) {
            int c = ch__first_core(m), i = l->part[k][c];

            out[c].begin[k] = begin[i];
            out[c].size[k] = begin[i + 1] - begin[i];
        }
    }
    return same_sizes;
}

bool ch__core_region(const ch_core_layout *l, ch_shape whole, int core, ch_region *out)
{
    assert(l->rank == whole.rank);
    *out = (ch_region){.begin = {0}};
    if (!ch__layout_has(l, core))
        return false;
    for (int k = 0; k < whole.rank; k++) {
        int64_t to;

        ch__core_part(l, k, whole.dim[k], l->part[k][core], &out->begin[k], &to);
        out->size[k] = to - out->begin[k];
    }
    return true;
}

/* ---- comparison and combination ---- */

/* Returns true if the parts of an axis have the same positions in both layouts, for every size
 * of the axis. */
static bool same_parts(const ch_core_layout *a, const ch_core_layout *b, int axis)
{
    return a->parts[axis] == b->parts[axis] &&
           (a->parts[axis] == 1 || a->unit[axis] == b->unit[axis]);
}

/* Returns true if the cores of a set have equal numbers in two rows. */
static bool same_row(const unsigned char *a, const unsigned char *b, int n_cores,
                     uint64_t cores)
{
    if (cores == ch__first_cores(n_cores))
        return memcmp(a, b, (size_t)n_cores) == 0;
    for (; cores != 0; cores &= cores - 1)
        if (a[ch__first_core(cores)] != b[ch__first_core(cores)])
            return false;
    return true;
}

bool ch__layout_refines(const ch_core_layout *fine, const ch_core_layout *coarse)
{
    assert(fine->rank == coarse->rank);
    if (fine->n_partial > 1 || coarse->n_partial > 1 || (fine->cores & ~coarse->cores) != 0)
        return false;
    for (int k = 0; k < fine->rank; k++) {
        if (coarse->parts[k] == 1)
            continue;
        /* Only for some sizes, parts of t lie in parts of another number than t. */
        if (!same_parts(fine, coarse, k))
            return false;
        if (!same_row(fine->part[k], coarse->part[k], fine->n_cores, fine->cores))
            return false;
    }
    return true;
}

bool ch__layout_same_tiles(const ch_core_layout *a, const ch_core_layout *b)
{
    if (a->rank != b->rank || a->cores != b->cores)
        return false;
    for (int k = 0; k < a->rank; k++)
        if (a->parts[k] != b->parts[k] ||
            (a->parts[k] > 1 && !same_row(a->part[k], b->part[k], a->n_cores, a->cores)))
            return false;
    return true;
}

bool ch__layout_is_complete(const ch_core_layout *l)
{
    return l->n_partial == 1 && l->cores == ch__first_cores(l->n_cores);
}

bool ch__layout_is_covered(const ch_core_layout *l)
{
    int64_t       n = layout_combinations(l);
    uint64_t      seen = 0;
    unsigned char number[CH_MAX_CORES];

    if (n > l->n_cores)
        return false;
    layout_number(l, number);
    for (uint64_t m = l->cores; m != 0; m &= m - 1)
        seen |= UINT64_C(1) << number[ch__first_core(m)];
    return seen == ch__first_cores((int)n);
}

/* Sets axis k of `out`, which has its cores, to the parts of a and b. Returns false if they
 * split it in different ways. */
static bool merge_axis(const ch_core_layout *a, const ch_core_layout *b, int k,
                       ch_core_layout *out)
{
    const ch_core_layout *l = a->parts[k] > 1 ? a : b;

    out->parts[k] = l->parts[k];
    out->unit[k] = l->unit[k];
    if (l->parts[k] == 1)
        memset(out->part[k], 0, sizeof(out->part[k]));
    else
        copy_row(l->part[k], l->n_cores, out->cores, out->part[k]);
    return l == b || b->parts[k] == 1 ||
           (same_parts(a, b, k) && same_row(a->part[k], b->part[k], a->n_cores, out->cores));
}

bool ch__layout_merge(const ch_core_layout *a, const ch_core_layout *b, ch_core_layout *out)
{
    const ch_core_layout *partial = a->n_partial > 1 ? a : b;
    ch_core_layout        m;
    bool is_a = b->n_partial == 1, is_b = a->n_partial == 1; /* the result is a, or b */

    assert(a->rank == b->rank && a->n_cores == b->n_cores);
    if (a->n_partial > 1 && b->n_partial > 1)
        return false;
    m.n_cores = a->n_cores;
    m.rank = a->rank;
    m.cores = a->cores & b->cores;
    for (int k = 0; k < a->rank; k++) {
        if (!merge_axis(a, b, k, &m))
            return false;
        is_a &= a->parts[k] > 1 || b->parts[k] == 1;
        is_b &= b->parts[k] > 1 || a->parts[k] == 1;
    }
    m.n_partial = partial->n_partial;
    m.combiner = partial->combiner;
    copy_row(partial->partial, m.n_cores, m.cores, m.partial);
    if (!(is_a && m.cores == a->cores) && !(is_b && m.cores == b->cores) &&
        !ch__layout_is_covered(&m))
        return false;
    ch__layout_copy(&m, out);
    return true;
}

void ch__layout_project(const ch_core_layout *l, int rank, const int *from, ch_core_layout *out)
{
    ch_core_layout p;

    ch__layout_replicated(l->n_cores, rank, &p);
    p.cores = l->cores;
    for (int k = 0; k < rank; k++) {
        if (from[k] < 0)
            continue;
        p.parts[k] = l->parts[from[k]];
        p.unit[k] = l->unit[from[k]];
        memcpy(p.part[k], l->part[from[k]], sizeof(p.part[k]));
    }
    ch__layout_copy(&p, out);
}

/* ---- print ---- */

static const char *combiner_name(ch_partial_op op)
{
    switch (op) {
    case CH_PARTIAL_SUM:
        return "sum";
    case CH_PARTIAL_MAX:
        return "max";
    case CH_PARTIAL_MIN:
        return "min";
    case CH_PARTIAL_PRODUCT:
        return "product";
    case CH_PARTIAL_AND:
        return "and";
    case CH_PARTIAL_OR:
        return "or";
    }
    return "?";
}

/* Returns true if core i has combination i. */
static bool is_in_order(const ch_core_layout *l, const unsigned char *number)
{
    for (int c = 0; c < l->n_cores; c++) {
        if (!ch__layout_has(l, c) || number[c] != c)
            return false;
    }
    return true;
}

/* Prints the cores in the order of the combinations that they have. */
static void print_cores(ch_text *o, const ch_core_layout *l, const unsigned char *number)
{
    const char *before = ch__count_cores(l->cores) == 1 ? "core" : "cores";
    uint64_t    having[CH_MAX_CORES] = {0}; /* by combination */

    for (uint64_t m = l->cores; m != 0; m &= m - 1)
        having[number[ch__first_core(m)]] |= m & -m;
    ch__text_add(o, "%son ", o->used > 0 ? " " : "");
    for (int i = 0; i < layout_combinations(l); i++)
        for (uint64_t m = having[i]; m != 0; m &= m - 1) {
            ch__text_add(o, "%s %d", before, ch__first_core(m));
            before = ",";
        }
}

int ch__core_layout_print(const ch_core_layout *l, char *text, size_t size)
{
    ch_text       o = ch__text(text, size);
    int           copies;
    bool          is_split = layout_combinations(l) > l->n_partial;
    const char   *before = " in parts of";
    unsigned char number[CH_MAX_CORES];

    if (ch__layout_is_replicated(l)) {
        ch__text_add(&o, "replicated");
        return ch__text_length(&o);
    }
    layout_number(l, number);
    copies = ch__layout_n_copies(l);
    for (int k = 0; k < l->rank && is_split; k++)
        ch__text_add(&o, "%s%d%s", k == 0 ? "{" : ", ", l->parts[k],
                     k == l->rank - 1 ? "}" : "");
    for (int k = 0; k < l->rank; k++) {
        if (l->parts[k] == 1 || l->unit[k] == 1)
            continue;
        ch__text_add(&o, "%s %lld", before, (long long)l->unit[k]);
        before = " and";
    }
    if (l->n_partial > 1)
        ch__text_add(&o, "%spartial %s of %d", is_split ? ", " : "", combiner_name(l->combiner),
                     l->n_partial);
    if (copies > 1 && l->cores == ch__first_cores(l->n_cores))
        ch__text_add(&o, " in %d copies", copies);
    else if (!is_in_order(l, number))
        print_cores(&o, l, number);
    return ch__text_length(&o);
}
