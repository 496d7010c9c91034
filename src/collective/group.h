/* collective/group.h -- the replicas of one process, meeting in shared memory.
 *
 * Members come to meetings in the same order. Whoever gives up lets all the others go, now and
 * for the rest of the run; nobody waits for a replica that has failed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTIVE_GROUP_H
#define COLLECTIVE_GROUP_H

#include "cohort/status.h"
#include "cohort/replica.h"
#include "graph/run.h"

typedef struct ch_group ch_group;

/* A group of n members, which spin before they park unless there are too few cores. */
ch_status ch__group_new(int n, bool spin, ch_group **out);
void      ch__group_free(ch_group *g);

/* Waits until all members are here. `what` is for messages: the op. */
ch_status ch__group_meet(ch_group *g, int member, const char *what);
/* Every member's `out` becomes the combination of all members' `in`, in member order. */
ch_status ch__group_all_reduce(ch_group *g, int member, ch_reduce_op op, ch_dtype dtype,
                               int64_t count, const void *in, void *out);
/* Every member's `out` becomes all members' `in`, one after another; each has its own number of
 * bytes. A member's `in` may be its `out` if the others have none. */
ch_status ch__group_all_gather(ch_group *g, int member, size_t bytes, const void *in,
                               void *out);
/* Meetings since the group was made: for tests. */
int64_t ch__group_meetings(const ch_group *g);

/* For graph/run.h. */
extern const ch_meet ch__group_as_meet;

#endif
