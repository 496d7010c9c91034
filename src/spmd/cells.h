/* spmd/cells.h -- private header of reshards: the arguments of a plan, and cells of
 * values.
 *
 * The boundaries of all source parts and wanted regions divide each axis into intervals, and a
 * cell is a box of one interval of each axis. All elements of a cell have the same cores that
 * have it, or a partial result of it, and the same cores that need it. Sets of cores are masks,
 * and the mask of a cell is the intersection of the masks of its intervals.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef SPMD_CELLS_H
#define SPMD_CELLS_H

#include "spmd/reshard.h"

/* The arguments of a plan, and values that are computed from them. */
typedef struct ch_reshard_problem {
    const ch_core_layout *from;
    ch_shape              whole;
    const ch_region      *want;
    uint64_t              wanting;           /* cores that need at least one element */
    ch_region             has[CH_MAX_CORES]; /* the region of each core that has a part */
    /* by core that needs elements: the lowest core that wants the same region; only in plans */
    unsigned char same[CH_MAX_CORES];
} ch_reshard_problem;

enum { CH_MAX_BOUNDARIES = 4 * CH_MAX_CORES + 2 };

/* The intervals of an axis. */
typedef struct ch_axis_cells {
    int      n;                        /* intervals */
    int64_t  begin[CH_MAX_BOUNDARIES]; /* interval i is [begin[i], begin[i + 1]) */
    uint64_t need[CH_MAX_BOUNDARIES];  /* cores whose wanted region has the interval */
    uint64_t have[CH_MAX_BOUNDARIES];  /* cores whose part has the interval */
} ch_axis_cells;

/* A loop over the cells of a value. */
typedef struct ch_cells {
    int           rank;
    ch_axis_cells axis[CH_MAX_RANK];
    int           at[CH_MAX_RANK]; /* the interval of each axis; at[0] is -1 before the first */
    /* the current cell */
    ch_region region;
    uint64_t  need, have;
} ch_cells;

/* Begins the loop. (cells.c) */
void ch__cells_begin(const ch_reshard_problem *p, ch_cells *s);
/* Goes to the next cell that a core needs, the last axis fastest. Returns false at the end. */
bool ch__cells_next(ch_cells *s);
/* Sets shared[c], for each core that needs elements, to the cores whose wanted regions share
 * elements with that of core c, such as c itself. (cells.c) */
void ch__cells_shared(const ch_reshard_problem *p, uint64_t *shared);

/* Sets [*first, *last] to the parts of an axis that share positions with a region.
 * (pattern.c) */
void ch__parts_of_region(const ch_core_layout *l, ch_shape whole, const ch_region *r, int axis,
                         int *first, int *last);
/* Returns the name of a reshard that moves elements; is_shared: several cores need an element.
 * (pattern.c) */
ch_traffic_kind ch__reshard_name(const ch_reshard_problem *p, bool is_shared);

#endif
