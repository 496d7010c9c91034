/* job/shard.h -- variables in shards: which shard has what, and what of a value belongs to which.
 *
 * A variable is cut along one axis in shards that are as equal as can be: the first ones have one more ("div"). Workers send each
 * shard its part of what an update takes, and put together what shards give.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_SHARD_H
#define JOB_SHARD_H

#include "job/step_plan.h"
#include "tensor/layout.h"

/* What an input is to shards that are cut like this: along another axis than the first, every shard has a piece of each row, and gets all
 * ids. */
ch_shard_role ch__shard_role(ch_shard_role role, ch_layout l);

/* An update's graph for shard i of the variables that it changes. */
ch_status ch__shard_graph(const ch_graph *g, const ch_plan_input *in, ch_layout l, int i,
                          ch_graph **out);

/* Ids of rows, by the shard that has them; -1, and what else is out of range, belongs to nobody. Of equal ids the rows are asked
 * for once. Made once and used again: its memory grows with the most ids it has seen, and what it gave comes back to it (tensor/buffer_pool.h). */
typedef struct ch_id_split ch_id_split;

ch_status ch__id_split_new(ch_id_split **out);
void      ch__id_split_free(ch_id_split *s);
/* `ids` is i32 or i64 of any shape; the rows are those of a variable of `size` rows in n shards. */
ch_status ch__id_split(ch_id_split *s, const ch_tensor *ids, int64_t size, int n);
/* Of all: the first position whose id is out of range; -1: none is. */
int64_t ch__id_split_stray(const ch_id_split *s);

/* Tensors that it gives from now on are of this device; NULL: of the current one. */
void ch__id_split_place(ch_id_split *s, ch_device *device);

/* How many ids shard i is asked for. */
int64_t ch__id_split_count(const ch_id_split *s, int i);
/* For a lookup: the ids that shard i is asked for, counted from its first row, each once; NULL in *out: none. */
ch_status ch__id_split_asked(ch_id_split *s, int i, ch_tensor **out);
/* The rows that were looked up, from those that each shard gave (NULL where none were asked for), in the order of the ids. Zeros for
 * ids out of range. `row` are the sizes of a row. */
ch_status ch__id_split_spread(ch_id_split *s, ch_dtype dtype, ch_shape row,
                              ch_tensor *const *part, ch_tensor **out);

/* For an update: the ids that shard i gets, with those that come again, in their order, and a few of -1 behind them, so that not every
 * number of ids is a graph to be planned; and the rows that belong to them. */
ch_status ch__id_split_sent(ch_id_split *s, int i, ch_tensor **out);
ch_status ch__id_split_rows(ch_id_split *s, ch_tensor *rows, int i, ch_tensor **out);

#endif
