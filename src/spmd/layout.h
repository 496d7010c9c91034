/* spmd/layout.h -- layouts: how a value lies over the cores of a replica.
 *
 * A layout divides each axis of a value into parts, and says which part of each axis a core
 * has. Cores with the same parts have copies. A value may also be partial: then there are
 * n_partial groups of cores, every group has a partial result of the whole value, and a
 * combiner makes the value from them. Some layouts over 4 cores:
 *
 *     parts {1, 1}                        replicated: every core has the whole value
 *     parts {4, 1}, core c has part c     split along axis 0
 *     parts {2, 1}, cores 0, 1 have part 0, cores 2, 3 have part 1: two copies of each half
 *     parts {1, 1}, n_partial 4           partial sum: each core has a summand
 *     parts {1, 1}, n_partial 3, cores 0 to 2 have it: core 3 has nothing to add
 *     parts {1, 1}, only core 2 has it    the value is on core 2
 *
 * The parts of an axis are as equal as possible: of n positions in t parts, the first n % t
 * have one more. An axis that merges two axes of which the first is split may have another
 * unit: (7, 4) split in 4 parts along axis 0, reshaped to (28), lies as 8, 8, 8, 4 positions,
 * which are parts of 7 units of 4 positions.
 *
 * A layout does not depend on the sizes of a value. The same struct, with a factor in place of
 * each axis, says which ranges of the factors of a call a core computes (spmd/ranges.c).
 *
 * Invariants:
 *   1. Every combination of parts and partial results is on at least one core.
 *   2. Layouts of a ch_layout_table are unique: equal layouts are the same pointer. They live
 *      as long as the table.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef SPMD_LAYOUT_H
#define SPMD_LAYOUT_H

#include <stddef.h>
#include <string.h>

#include "cohort/logical.h"
#include "graph/factors.h"

enum {
    CH_MAX_CORES = CH_LOGICAL_DEVICES_MAX, /* cores of a replica; sets of cores are uint64_t */
    CH_LAYOUT_RANK = CH_MAX_FACTORS        /* axes of a value, or factors of a call */
};

/* Returns true if core c is in a set, of which bit c is core c. */
static inline bool ch__has_core(uint64_t cores, int c)
{
    return (cores >> c & 1) != 0;
}
/* Returns the lowest core of a set, which must not be empty. A loop over a set removes it with
 * m &= m - 1. */
static inline int ch__first_core(uint64_t cores)
{
    return __builtin_ctzll(cores);
}
static inline int ch__count_cores(uint64_t cores)
{
    return __builtin_popcountll(cores);
}
/* Returns the set of the first n cores; n is 1 or more. */
static inline uint64_t ch__first_cores(int n)
{
    return ~UINT64_C(0) >> (CH_MAX_CORES - n);
}

typedef struct ch_core_layout {
    int           n_cores, rank;
    uint64_t      cores;     /* bit c: core c has a part */
    int           n_partial; /* number of partial results; 1: the value is complete */
    ch_partial_op combiner;  /* of the partial results; CH_PARTIAL_SUM if n_partial is 1 */
    int           parts[CH_LAYOUT_RANK]; /* number of parts of each axis, at least 1 */
    int64_t       unit[CH_LAYOUT_RANK];  /* positions of a unit of each axis; 1 if parts is 1 */
    /* by core: its partial result; 0 for a core without any part, and beyond the cores */
    unsigned char partial[CH_MAX_CORES];
    /* by axis and core: its part, likewise; only the rows of the axes are set */
    unsigned char part[CH_LAYOUT_RANK][CH_MAX_CORES];
} ch_core_layout;

/* Returns the bytes of a layout of this rank, up to the rows of axes that it does not have. */
static inline size_t ch__layout_bytes(int rank)
{
    return offsetof(ch_core_layout, part) + (size_t)rank * CH_MAX_CORES;
}
/* Copies the members of a layout that are set. */
static inline void ch__layout_copy(const ch_core_layout *l, ch_core_layout *out)
{
    if (l != out)
        memcpy(out, l, ch__layout_bytes(l->rank));
}

/* Returns true if core c has a part of the value. The part may have no elements. */
static inline bool ch__layout_has(const ch_core_layout *l, int core)
{
    return ch__has_core(l->cores, core);
}
/* Returns true if cores a and b, which have parts, have the same part of each axis. */
static inline bool ch__layout_same_part(const ch_core_layout *l, int a, int b)
{
    for (int k = 0; k < l->rank; k++)
        if (l->parts[k] > 1 && l->part[k][a] != l->part[k][b])
            return false;
    return true;
}
/* Returns true if every core has the whole, complete value. */
bool ch__layout_is_replicated(const ch_core_layout *l);
/* Returns true if every core has a part of the complete value. */
bool ch__layout_is_complete(const ch_core_layout *l);
/* Returns true if a single core of several has the value. */
static inline bool ch__layout_is_on_one_core(const ch_core_layout *l)
{
    return l->n_cores > 1 && (l->cores & (l->cores - 1)) == 0;
}
/* Returns true if every combination of parts and partial results is on one core only. */
bool ch__layout_has_no_copies(const ch_core_layout *l);
/* Returns the number of cores that have each combination of parts and partial results; 0 if
 * these numbers differ. */
int ch__layout_n_copies(const ch_core_layout *l);
/* Returns the lowest core of each combination of parts and partial results. */
uint64_t ch__layout_first_cores(const ch_core_layout *l);
/* Returns true if invariant 1 holds. */
bool ch__layout_is_covered(const ch_core_layout *l);

/* ---- unique layouts ---- */

typedef struct ch_layout_table ch_layout_table;

ch_status ch__layout_table_new(int n_cores, ch_layout_table **out);
void      ch__layout_table_free(ch_layout_table *t);
/* Sets *out to the unique layout that equals `l`, after normalising it: the unit of an axis in
 * one part is 1, members without meaning are 0. The caller must keep invariant 1. `l` may be a
 * layout of the table. */
ch_status ch__layout_intern(ch_layout_table *t, const ch_core_layout *l,
                            const ch_core_layout **out);

/* The regions of an array that cores need or have. */
typedef struct ch_core_regions {
    uint64_t              cores;  /* bit c: core c has a region */
    const ch_core_layout *layout; /* the unique layout that has these regions; NULL: unknown */
    bool                  same_sizes; /* all cores have regions, and these have equal sizes;
                                       * false: unknown */
    /* by core; in the memory of tables and divisions only as many as there are cores, so these
     * structs are copied by ch__regions_copy */
    ch_region at[CH_MAX_CORES];
} ch_core_regions;

/* Returns the bytes of the regions of n cores. */
static inline size_t ch__regions_bytes(int n_cores)
{
    return offsetof(ch_core_regions, at) + (size_t)n_cores * sizeof(ch_region);
}
static inline ch_core_regions *ch__regions_copy(ch_arena *arena, const ch_core_regions *r,
                                                int n_cores)
{
    return ch__arena_copy(arena, r, ch__regions_bytes(n_cores));
}

/* Returns the regions of a value of shape `whole` in a unique layout of the table. They are
 * made once, and live as long as the table. NULL: out of memory. */
const ch_core_regions *ch__layout_regions(ch_layout_table *t, const ch_core_layout *l,
                                          ch_shape whole);
/* Returns the text of a unique layout (ch__core_layout_print). The table keeps it. NULL: out of
 * memory. */
const char *ch__layout_text(ch_layout_table *t, const ch_core_layout *l);
/* The cost of a reshard. */
typedef struct ch_reshard_cost {
    int64_t n_moved;  /* elements that cores read from other cores; -1: not known */
    int     n_stages; /* 1 or 2 */
} ch_reshard_cost;

/* Returns the cost that the table keeps for a reshard from a unique layout to regions of
 * ch__layout_regions. It is not known at first. NULL: out of memory. */
ch_reshard_cost *ch__layout_cost(ch_layout_table *t, const ch_core_layout *from,
                                 const ch_core_regions *to);

/* ---- common layouts, not interned ---- */

/* Every core has the whole value. */
void ch__layout_replicated(int n_cores, int rank, ch_core_layout *out);
/* Splits axis i into parts[i] parts; the product of all must be n_cores. Core row_major(parts)
 * has the part with these indices. */
void ch__layout_split(int n_cores, int rank, const int *parts, ch_core_layout *out);
/* Splits an axis over all cores. */
void ch__layout_over_cores(int n_cores, int rank, int axis, ch_core_layout *out);
/* Only `core` has the value. */
void ch__layout_on_core(int n_cores, int rank, int core, ch_core_layout *out);
/* Splits axis i over axis mesh_axis[i] of a logical mesh with n_mesh axes, whose product is the
 * number of cores. CH_MESH_ALL: over all axes; CH_OFF: not split. The mesh axes that are not
 * used hold copies. Core row_major(mesh indices). INVALID_ARGUMENT: an axis that the mesh does
 * not have, or that occurs twice. `what` begins the message. */
ch_status ch__layout_over_mesh(const char *what, int n_mesh, const int *mesh, int rank,
                               const int *mesh_axis, ch_core_layout *out);

/* Gives a layout the partial results of another one. */
static inline void ch__layout_set_partial(ch_core_layout *l, const ch_core_layout *from)
{
    l->n_partial = from->n_partial;
    l->combiner = from->combiner;
    memcpy(l->partial, from->partial, sizeof(l->partial));
}

/* ---- sizes and regions ---- */

/* Returns the number of elements that a and b share. */
static inline int64_t ch__region_shared(const ch_region *a, const ch_region *b, int rank)
{
    int64_t n = 1;

    for (int k = 0; k < rank; k++) {
        int64_t begin = a->begin[k] > b->begin[k] ? a->begin[k] : b->begin[k];
        int64_t end = ch__min(a->begin[k] + a->size[k], b->begin[k] + b->size[k]);

        n *= end > begin ? end - begin : 0;
    }
    return n;
}
static inline bool ch__region_equal(const ch_region *a, const ch_region *b, int rank)
{
    size_t bytes = sizeof(a->size[0]) * (size_t)rank;

    return memcmp(a->begin, b->begin, bytes) == 0 && memcmp(a->size, b->size, bytes) == 0;
}

/* Sets *out to the region of a value of shape `whole` that core c has. Returns false if the
 * core has no part. A region may be empty. */
bool ch__core_region(const ch_core_layout *l, ch_shape whole, int core, ch_region *out);
/* Sets out[c] to the regions of all cores; those of cores without a part have no elements.
 * Returns true if every core has a region and all have equal sizes. */
bool ch__core_regions(const ch_core_layout *l, ch_shape whole, ch_region *out);
/* Sets begin[i] to the first position of part i of an axis of `size` positions, and begin[n] to
 * `size`, where n is the number of parts. Returns true if all parts have equal sizes. */
bool ch__core_parts(const ch_core_layout *l, int axis, int64_t size, int64_t *begin);
/* Sets [*from, *to) to the positions of part i of an axis of `size` positions. */
void ch__core_part(const ch_core_layout *l, int axis, int64_t size, int i, int64_t *from,
                   int64_t *to);

/* ---- comparison and combination ---- */

/* Returns true if every core's part in `fine` lies in its part in `coarse`, for values of every
 * size, and neither is partial: then `coarse` becomes `fine` without communication. */
bool ch__layout_refines(const ch_core_layout *fine, const ch_core_layout *coarse);
/* Returns true if both layouts give every core the same part. Neither is partial. */
bool ch__layout_same_tiles(const ch_core_layout *a, const ch_core_layout *b);
/* Sets *out to the layout whose parts are the intersections of the parts of a and b. Returns
 * false if there is none: both split an axis in different ways, both are partial, or some
 * combination of parts would be on no core. `out` may be a or b, and stays as it is then. */
bool ch__layout_merge(const ch_core_layout *a, const ch_core_layout *b, ch_core_layout *out);
/* Sets *out to a layout of `rank` axes in which axis i has the parts of axis from[i] of l, or 1
 * part if from[i] is -1. Cores that differ only in axes that are not named have copies. The
 * result is not partial. */
void ch__layout_project(const ch_core_layout *l, int rank, const int *from,
                        ch_core_layout *out);

/* Returns a hash of a layout, which is not 0. Equal layouts have equal hashes, if the parts of
 * cores without any are 0. */
uint64_t ch__layout_hash(const ch_core_layout *l);

/* Prints "replicated", "{4, 1}", "{2, 1} in 2 copies", "partial sum of 4", "on core 2", "{1, 4}
 * in parts of 8". Truncates and returns the whole length, as snprintf does. */
int ch__core_layout_print(const ch_core_layout *l, char *text, size_t size);

#endif
