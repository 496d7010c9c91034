/* spmd/reshard.h -- plans of reshards: which core copies which elements from which core.
 *
 * A reshard makes, from a value in any layout, the region that each core needs. It moves
 * exactly the elements that are missing: a core copies an element that it has from its own
 * memory, and reads every other element once. There is one kind of plan for everything:
 * all-gather, all-to-all, permutation and halo differ only in their regions.
 *
 * A partial value has g partial results in groups of cores. A core that has nothing to add to
 * it has none, and is in no group. If a single core needs an element, it reads the other g - 1
 * partial results and combines them. If several cores need it, the cores that need it first
 * combine even shares (stage 1), and the shares are then copied (stage 2), so an all-reduce of
 * B bytes moves 2 (g - 1) B bytes. In general an element that k cores need moves g - 1 + k - 1
 * times if one of these cores has a partial result of it, otherwise g + k - 1 times. If no
 * element moves more often without shares (g = 2, and every core that needs an element has a
 * partial result of it), the plan has one stage.
 *
 * A plan has one or two stages. In a stage every core reads the memory of other cores, which
 * they wrote before the stage. The groups of a collective wait for each other before and after
 * a stage (collective/group.h).
 *
 * Invariants:
 *   1. The copies of a core in the last stage cover its wanted region exactly once. Elements of
 *      the region for which the value has no position do not exist: regions are clipped.
 *   2. Reads are spread: of the cores that have an element, the reader takes itself, else the
 *      one that others have chosen least often before, else the lowest. Copies of a core that
 *      can be merged keep their source.
 *   3. Partial results are combined in the order of their numbers, on every core alike, so
 *      copies have equal bits.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef SPMD_RESHARD_H
#define SPMD_RESHARD_H

#include "collective/group.h"
#include "spmd/layout.h"

/* The copies and the work of a core in a stage: the group that performs the plan defines them
 * (collective/group.h). */
typedef ch_exchange_copy ch_reshard_copy;
typedef ch_exchange_work ch_reshard_work;

typedef struct ch_reshard {
    ch_shape        whole;
    ch_partial_op   combiner;
    int             n_cores, n_stages; /* stages: 0 if nothing must be done, 1 or 2 */
    ch_traffic_kind kind;
    int64_t         n_moved; /* elements that cores read from other cores */
    /* the region that each core reads from in the first stage, where it has a part */
    const ch_core_layout  *from;
    const ch_reshard_work *stage[2]; /* by stage and core */
} ch_reshard;

/* Makes the plan for a value of shape `whole` in layout `from`, in `arena`. The layout must
 * live as long as the plan. `want[c]` is the region that core c needs, within the value;
 * wants[c] is false if core c needs nothing. A core may want an empty region: then it holds a
 * value without elements after the plan. */
ch_status ch__reshard_plan(const ch_core_layout *from, ch_shape whole, const ch_region *want,
                           const bool *wants, ch_arena *arena, const ch_reshard **out);

/* Sets *out to what the plan would move, without making it. */
void ch__reshard_cost(const ch_core_layout *from, ch_shape whole, const ch_region *want,
                      const bool *wants, ch_reshard_cost *out);

#endif
