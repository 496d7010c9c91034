/* job/remote_var.h -- variables on parameter servers: create, read, write and free.
 *
 * For the program's threads, outside steps. The coordinator task makes the calls. It repeats
 * them until the servers reply, and a write is applied once. All functions except
 * ch__remote_free block until every server has replied. They do not wait for running steps: if
 * updates of a step are on different servers, a read may see some of them and not others.
 *
 * Pieces. A call carries at most CH_REMOTE_PIECE_BYTES of a value, so that no task needs memory
 * for a whole table. A larger value is read or written by several calls, one after the other.
 * If steps run meanwhile, the pieces may be of different moments, unless they are read from a
 * snapshot. If a write fails, the pieces before stay written. Strings are not divided.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_REMOTE_VAR_H
#define JOB_REMOTE_VAR_H

#include "cohort/init.h"
#include "job/coordinator.h"
#include "job/step_plan.h"
#include "tensor/layout.h"

enum { CH_REMOTE_PIECE_BYTES = CH_PIECE_BYTES };

/* Creates the shards of a variable on their servers, with the parts of `initial`. If `initial`
 * is NULL, each server computes its part of the values that `init` describes. `init` must then
 * be complete, and computable in parts (kernel/init.h). */
CH_MUST_CHECK ch_status ch__remote_create(ch_task *coord, const ch_plan_variable *v,
                                          ch_tensor *initial, const ch_init *init);
/* Frees a shard on its server. Does not block. */
void ch__remote_free(ch_task *coord, struct ch_plan_shard shard);

/* Reads a region, or the whole variable if `region` is NULL, into a new tensor. Calls only the
 * servers that hold a part of the region. */
CH_MUST_CHECK ch_status ch__remote_read(ch_task *coord, const ch_plan_variable *v,
                                        const ch_region *region, ch_tensor **out);
/* The same, into a contiguous tensor of the region's shape. Reads the values of a snapshot
 * (ch__coord_snapshot), or the current values if `snapshot` is 0. */
CH_MUST_CHECK ch_status ch__remote_read_to(ch_task *coord, const ch_plan_variable *v,
                                           uint64_t snapshot, const ch_region *region,
                                           ch_tensor *to);
/* Writes a region, or the whole variable if `region` is NULL. `value` must have the variable's
 * dtype and the region's shape. */
CH_MUST_CHECK ch_status ch__remote_write(ch_task *coord, const ch_plan_variable *v,
                                         const ch_region *region, ch_tensor *value);
/* Reads rows of a variable by id, from a snapshot or, if `snapshot` is 0, the current values.
 * Ids are i64 and must be in range. If axis 0 is sharded, ids[i] are the ids for shard i,
 * counted from the shard's first row, and rows[i] are its rows. Otherwise every shard has a
 * piece of each row: all shards read ids[0], and rows[0] is the joined result. If a list of ids
 * is NULL, no rows are read for it. */
CH_MUST_CHECK ch_status ch__remote_gather(ch_task *coord, const ch_plan_variable *v,
                                          uint64_t snapshot, ch_tensor *const *ids,
                                          ch_tensor **rows);
/* Reads the marks of changed rows of a variable in a single shard, from a snapshot: a vector of
 * u8 with a bit for each row (tensor/row_marks.h). It is empty if all rows may have changed. */
CH_MUST_CHECK ch_status ch__remote_read_marks(ch_task *coord, const ch_plan_variable *v,
                                              uint64_t snapshot, ch_tensor **out);

#endif
