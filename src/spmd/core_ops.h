/* spmd/core_ops.h -- the ops in the graphs of cores that move parts of values.
 *
 * partition.c records them in the step that writes the graph of a class of cores. Their
 * attributes refer to tables by core, in the arena of that graph or in memory that the graphs
 * of all classes share (ch_graph.shared).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef SPMD_CORE_OPS_H
#define SPMD_CORE_OPS_H

#include "spmd/divide.h"

extern const ch_op ch__op_exchange, ch__op_take_part, ch__op_put_part;

/* The plan of an exchange, for all cores. */
typedef struct ch_exchange_table ch_exchange_table;

/* Makes the table of a plan for a value with this dtype. Both must be in the arena. */
ch_status ch__exchange_table_new(ch_arena *arena, const ch_reshard *plan, ch_dtype dtype,
                                 const ch_exchange_table **out);
/* Records the exchange of a table, which must live as long as the graph of s. `value` is the
 * value in the step of the replica. `in` is the core's part of it; NULL: the core has none.
 * Sets *result to the core's new part, of the given dims; `dims` is NULL if the core needs
 * nothing, and *result is NULL then. Errors name the line of the value; if it has none, as the
 * read of a variable, s->caller. */
ch_status ch__exchange(ch_step *s, const ch_exchange_table *t, const ch_node *value,
                       ch_node *in, const ch_dims *dims, ch_node **result);
/* Return the plan of an exchange, without its layout `from`, and the dtype of the value. */
const ch_reshard *ch__exchange_plan(const ch_node *call);
ch_dtype          ch__exchange_dtype(const ch_node *call);
/* Records that the core takes its region of the whole value; core c of the regions has the
 * sizes of all cores that share the graph. Returns NULL if an error is recorded in s. */
ch_node *ch__take_part(ch_step *s, ch_node *whole, int n_cores, int c,
                       const ch_core_regions *at);
/* Records that the core writes `part` to its region of a result with the dtype and dims of
 * `whole`. `cores` are those that share the graph, as bits. A core that has no region, or an
 * empty one, writes nothing; `part` may be NULL then. Returns the result. */
ch_node *ch__put_part(ch_step *s, ch_node *part, const ch_node *whole, int n_cores,
                      uint64_t cores, const ch_core_regions *at);

/* Returns the bytes that core c reads or writes in a call of take_part or put_part. */
int64_t ch__core_part_bytes(const ch_node *call, int core);

#endif
