/* collective/group.h -- groups: the replicas of a process, with collectives in shared memory.
 *
 * A member of a group is a replica, with a number from 0. All members call the same collectives
 * in the same order. A member that fails aborts the run (ch_group_ops.abort_run): all other
 * members then return CH_ABORTED from the collective in which they wait, and from all later
 * collectives of this run. No member waits longer than the time limit.
 *
 * The arguments `in` and `out` of a collective are lists of pointers to arrays. The lists must
 * stay valid until the run is over, because other members may still read the list of a member
 * that has aborted.
 *
 * If the members run in turns on one thread (ch_group_ops.reset), a collective that would block
 * returns CH__BLOCKED. The caller must call it again, with the same arguments, after the other
 * members had a turn.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTIVE_GROUP_H
#define COLLECTIVE_GROUP_H

#include "cohort/replica.h"
#include "cohort/status.h"
#include "graph/run.h"

#define CH_GROUP_MAX 256 /* the largest number of members */

typedef struct ch_group ch_group;

typedef struct ch_group_options {
    int             n;    /* number of members, 1 to CH_GROUP_MAX */
    bool            spin; /* spin before parking; false if there are more threads than cores */
    ch_cross_device cross;
    double          timeout_seconds; /* limit of a wait; 0: COHORT_WAIT_LIMIT_MS */
} ch_group_options;

/* Returns a time limit in ms, rounded up. 0 stays 0: the default. */
int64_t ch__limit_ms(double timeout_seconds);

/* Adds n arrays on one thread, and divides by `divisor`. Adds in the same order as a group of n
 * members with this ch_cross_device, so the result has the same bits. The exception is
 * CH_CROSS_HIERARCHICAL if memory is exhausted. */
void ch__reduce_on_one_thread(ch_cross_device cross, ch_dtype t, int64_t count, int n,
                              const void *const *src, void *dst, int divisor);

ch_status ch__group_new(const ch_group_options *opt, ch_group **out);
void      ch__group_free(ch_group *g);

/* Blocks until all members have arrived. `label` is the name of the op, for messages. */
ch_status ch__group_barrier(ch_group *g, int member, const char *label);

/* The dtype and the number of elements of an array to be reduced. */
typedef struct ch_addend {
    ch_dtype dtype;
    int64_t  count;
} ch_addend;

/* A reduction of n arrays. It must be the same on every member. */
typedef struct ch_addends {
    ch_reduce_op     op;
    int              n;
    const ch_addend *array;
    ch_cross_device  cross;    /* CH_CROSS_AUTO: the group's */
    int64_t          limit_ms; /* limit of a wait; 0: the group's */
} ch_addends;

/* Sets every member's out[i] to the sum or mean of all members' in[i]. in[i]
 * may equal out[i]. */
ch_status ch__group_all_reduce(ch_group *g, int member, const ch_addends *s,
                               const void *const *in, void *const *out);
/* The same reduction in two calls, so that the member can compute between them. Between the two
 * the member may begin further reductions and call other collectives. The end completes all
 * reductions that were begun. Until then `out`, its arrays and `s` must stay valid, and the
 * arrays must not be used. The arrays of `in` may be reused at once. */
ch_status ch__group_all_reduce_begin(ch_group *g, int member, const ch_addends *s,
                                     const void *const *in, void *const *out);
ch_status ch__group_all_reduce_end(ch_group *g, int member);

/* A gather of n arrays. An array consists of `outer` contiguous segments, because the gathered
 * axis need not be the first. run[i] is the size in bytes of a segment of this member's array
 * i. The list must stay valid until the run is over. */
typedef struct ch_join {
    int            n;
    int64_t        outer;
    const int64_t *run;
    int64_t        limit_ms; /* limit of a wait; 0: the group's */
} ch_join;

/* Sets segment k of every member's out[i] to the segments k of all members' in[i], in the order
 * of the members. A member's in[i] may equal its out[i] if the other members have 0 bytes. */
ch_status ch__group_all_gather(ch_group *g, int member, const ch_join *j, const void *const *in,
                               void *const *out);
/* The gradient of a gather of one array: sets `out` to this member's part of the sum of
 * all members' in[0]. `total` is the size in bytes of a segment of in[0]. `in` and `out`
 * must not overlap. */
ch_status ch__group_reduce_scatter(ch_group *g, int member, ch_dtype dtype, const ch_join *j,
                                   int64_t total, const void *const *in, void *out);
/* Sets every member's out[i] to member 0's in[i], of bytes[i] bytes. in[i] may equal out[i]. */
ch_status ch__group_broadcast(ch_group *g, int member, int n, const int64_t *bytes,
                              const void *const *in, void *const *out);

/* Returns the number of barriers since the group was created, for tests. */
int64_t ch__group_barriers(const ch_group *g);

/* The functions that graph/run.h needs of a group. */
extern const ch_group_ops ch__group_ops;

#endif
