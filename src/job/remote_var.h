/* job/remote_var.h -- variables on parameter servers, as the program creates, reads and writes them.
 *
 * The coordinator task makes the calls: it repeats them until they are answered, and a write is applied once. All functions
 * block until every server has replied. They do not wait for steps that are running; a read may see some of a step's
 * updates and not others if they are on different servers.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_REMOTE_VAR_H
#define JOB_REMOTE_VAR_H

#include "cohort/init.h"
#include "job/coordinator.h"
#include "job/step_plan.h"
#include "tensor/layout.h"

/* Creates the shards on their servers with the parts of `initial`. If that is NULL, servers compute the values that `init`
 * describes: it must be complete, and computable part by part (kernel/init.h). */
CH_MUST_CHECK ch_status ch__remote_create(ch_task *coord, const ch_plan_variable *v,
                                          ch_tensor *initial, const ch_init *init);
/* Frees a shard. Does not block. */
void ch__remote_free(ch_task *coord, struct ch_plan_shard shard);

/* Reads a region, or everything if `region` is NULL, into a new tensor. Only the servers that hold any of it are called. */
CH_MUST_CHECK ch_status ch__remote_read(ch_task *coord, const ch_plan_variable *v,
                                        const ch_region *region, ch_tensor **out);
/* Writes a region, or everything if `region` is NULL. `value` has the dtype and the region's shape. */
CH_MUST_CHECK ch_status ch__remote_write(ch_task *coord, const ch_plan_variable *v,
                                         const ch_region *region, ch_tensor *value);
/* Reads rows. If axis 0 is divided, ids[i] are those of shard i, counted from its first row, and rows[i] is what it gives. Else
 * every shard has a piece of each row: all are asked for ids[0], and rows[0] is the joined result. Ids are i64 and in range;
 * a list may be NULL. */
CH_MUST_CHECK ch_status ch__remote_gather(ch_task *coord, const ch_plan_variable *v,
                                          ch_tensor *const *ids, ch_tensor **rows);

#endif
