/* job/shard.h -- sharded variables: the graph of an update for a shard, and ids by shard.
 *
 * A variable may be divided along one axis into n shards. Their sizes differ by at most one;
 * the larger shards come first (TensorFlow's "div" strategy). A worker sends each shard its
 * part of the inputs of an update, and assembles the results of the shards.
 *
 * ch__shard_graph is in shard.c, ch_id_split in id_split.c. Callers are step_exec/ and, for
 * lookups outside steps, strategy/var_rows.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_SHARD_H
#define JOB_SHARD_H

#include "job/step_plan.h"
#include "tensor/layout.h"

/* Returns the role that an input has for shards of this layout. If the variable is not divided,
 * every input is whole. If it is divided along an axis other than 0, every shard has a piece of
 * each row: then every shard receives all ids, and its slice of the rows. */
ch_shard_role ch__shard_role(ch_shard_role role, ch_layout l);

/* Creates the graph of an update for shard i: the same calls with the sizes of the shard. `in`
 * describes the inputs of the graph. The caller must unref *out. */
ch_status ch__shard_graph(const ch_graph *g, const ch_plan_input *in, ch_layout l, int i,
                          ch_graph **out);

/* ---- ids by shard ---- */

/* Divides a list of row ids by the shard that holds each row. An id out of range, such as -1,
 * belongs to no shard. A lookup requests each distinct id once; an update sends every id.
 *
 * An object can be used again for other ids. Its tables grow with the largest list, and the
 * tensors that it creates come from a pool of its own (tensor/buffer_pool.h). */
typedef struct ch_id_split ch_id_split;

/* Creates an object without ids. The caller must free it with ch__id_split_free. */
ch_status ch__id_split_new(ch_id_split **out);
/* Frees the object. NULL is allowed. Tensors that it created stay valid. */
void ch__id_split_free(ch_id_split *s);
/* Divides `ids`, contiguous i32 or i64 of any shape, for a variable of `size` rows in n shards.
 * Replaces the ids from before. */
ch_status ch__id_split(ch_id_split *s, const ch_tensor *ids, int64_t size, int n);
/* Returns the first position with an id out of range; -1: there is none. */
int64_t ch__id_split_first_invalid(const ch_id_split *s);

/* Sets the device of the tensors that are created from now on; NULL: the current device. */
void ch__id_split_set_device(ch_id_split *s, ch_device *device);

/* Returns the number of distinct ids in shard i. */
int64_t ch__id_split_lookup_count(const ch_id_split *s, int i);
/* For a lookup: creates a vector (i64) of the distinct ids in shard i, counted from the shard's
 * first row. *out is NULL if there are none. */
ch_status ch__id_split_lookup_ids(ch_id_split *s, int i, ch_tensor **out);
/* For a lookup: assembles the rows in the order of the ids. part[i] has the rows of the ids
 * from ch__id_split_lookup_ids for shard i, or is NULL if there are none. An id out of range
 * gives a row of zeros. `row` is the shape of a row. */
ch_status ch__id_split_lookup_rows(ch_id_split *s, ch_dtype dtype, ch_shape row,
                                   ch_tensor *const *part, ch_tensor **out);

/* For an update: creates a vector of all ids in shard i, in the order of the list, repeated ids
 * included. Entries of -1 are appended so that few different lengths occur, because servers
 * plan a graph for each length. The dtype is that of the list. */
ch_status ch__id_split_update_ids(ch_id_split *s, int i, ch_tensor **out);
/* For an update: creates the rows that belong to these ids, with rows of zeros for the appended
 * entries. `rows` has a row for each id of the list. */
ch_status ch__id_split_update_rows(ch_id_split *s, ch_tensor *rows, int i, ch_tensor **out);

#endif
