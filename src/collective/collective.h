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

/* Records an all_gather of n arrays along axis 0. The arrays must have equal numbers of rows.
 * Returns false if the step has an error. A timeout of 0 is the group's.
 * (collective/all_gather.c) */
bool ch__all_gather(int n, ch_node *const *in, double timeout_seconds, ch_node **out);

/* Records a broadcast of replica 0's values of n arrays. Returns false if the step has an
 * error. (collective/broadcast.c) */
bool ch__broadcast(int n, ch_node *const *in, ch_node **out);

/* Returns the dtype of a mean of values of dtype t, which is floating point for integers. */
static inline ch_dtype ch__mean_dtype(ch_dtype t)
{
    return ch_dtype_is_float(t) ? t : ch_dtype_bytes(t) <= 2 ? CH_F32 : CH_F64;
}

static inline bool ch__is_mean_of_integers(ch_reduce_op op, const ch_node *x)
{
    return op == CH_MEAN && x != NULL && ch_dtype_is_int(ch_node_dtype(x));
}

/* The largest number of arrays in a collective. ch_prep.over has 32 bits, one for each input
 * that an output may overwrite. */
enum { CH_PACK_MAX = 32 };

/* Record an all-reduce: the first of a node, as ch_all_reduce does; the second of n dense nodes
 * together, which begins where the last of them is computed. The fields of `how` that are not 0
 * override the group's options; NULL overrides nothing. `caller` is the return address of the
 * public function, for error messages. (collective/all_reduce.c) */
ch_node *ch__all_reduce_one(const void *caller, ch_reduce_op op, ch_node *x,
                            const ch_communication_options *how);
void     ch__all_reduce_dense(const void *caller, ch_reduce_op op, int n, ch_node *const *x,
                              const ch_communication_options *how, ch_node **out);
/* Records an all-reduce of n nodes. Dense nodes are reduced in packs. (collective/packs.c) */
void ch__all_reduce_packs(const void *caller, ch_reduce_op op, int n, ch_node *const *x,
                          const ch_communication_options *how, ch_node **out);

#endif
