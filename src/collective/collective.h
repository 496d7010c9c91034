/* collective/collective.h -- the list of collective ops, for src/cohort.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTIVE_COLLECTIVE_H
#define COLLECTIVE_COLLECTIVE_H

#include "cohort/replica.h"
#include "graph/op.h"

#define CH_OPS_COLLECTIVE(X)                                                                   \
    X(all_reduce)                                                                              \
    X(all_reduce_begin)                                                                        \
    X(all_reduce_end) X(all_gather) X(reduce_scatter) X(broadcast) X(reduce_to_first)

#define CH_OP_DECLARE(name) extern const ch_op ch__op_##name;
CH_OPS_COLLECTIVE(CH_OP_DECLARE)
#undef CH_OP_DECLARE

/* The rows of all replicas of n arrays that have as many rows as each other; false: an error
 * sticks. A timeout of 0 is the group's. (collective/all_gather.c) */
bool ch__all_gather(int n, ch_node *const *in, double timeout_seconds, ch_node **out);

/* What replica 0 has of n arrays; false: an error sticks. (collective/broadcast.c) */
bool ch__broadcast(int n, ch_node *const *in, ch_node **out);

/* The type of a mean of values of type t: of integers it is floating point. */
static inline ch_dtype ch__mean_dtype(ch_dtype t)
{
    return ch_dtype_is_float(t) ? t : ch_dtype_bytes(t) <= 2 ? CH_F32 : CH_F64;
}

static inline bool ch__is_mean_of_integers(ch_reduce_op op, const ch_node *x)
{
    return op == CH_MEAN && x != NULL && ch_dtype_is_int(ch_node_dtype(x));
}

/* Arrays that are reduced together at most: as many as a kernel can say of that they may be written over. */
enum { CH_TOGETHER = 32 };

/* ch_all_reduce; and of n dense ones together, begun where the last of them is. `how` is over what the group has;
 * NULL: nothing is said. (collective/all_reduce.c) */
ch_node *ch__all_reduce_one(const void *caller, ch_reduce_op op, ch_node *x,
                            const ch_communication_options *how);
void     ch__all_reduce_dense(const void *caller, ch_reduce_op op, int n, ch_node *const *x,
                              const ch_communication_options *how, ch_node **out);
/* ch_all_reduce of n nodes: the dense ones in packs. (collective/packs.c) */
void ch__all_reduce_packs(const void *caller, ch_reduce_op op, int n, ch_node *const *x,
                          const ch_communication_options *how, ch_node **out);

#endif
