/* collective/collective.h -- the list of collective ops, for src/cohort.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTIVE_COLLECTIVE_H
#define COLLECTIVE_COLLECTIVE_H

#include "cohort/replica.h"
#include "graph/op.h"

#define CH_OPS_COLLECTIVE(X) X(all_reduce) X(all_gather) X(reduce_scatter) X(broadcast)

#define CH_OP_DECLARE(name)  extern const ch_op ch__op_##name;
CH_OPS_COLLECTIVE(CH_OP_DECLARE)
#undef CH_OP_DECLARE

/* The rows of all replicas of n arrays that have as many rows as each other; false: an error
 * sticks. (collective/all_gather.c) */
bool ch__all_gather(int n, ch_node *const *in, ch_node **out);

/* ch_all_reduce of n nodes: the dense ones in packs, for each of which replicas meet once. `bytes_per_pack` as in
 * ch_communication_options. (collective/all_reduce.c) */
void ch__all_reduce_packs(const void *caller, ch_reduce_op op, int n, ch_node *const *x,
                          int64_t bytes_per_pack, ch_node **out);

#endif
