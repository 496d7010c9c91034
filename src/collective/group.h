/* collective/group.h -- the replicas of one process, meeting in shared memory.
 *
 * Members come to meetings in the same order. Whoever gives up lets all the others go, now and
 * for the rest of the run; nobody waits for a replica that has failed, and nobody for longer than
 * the group's limit.
 *
 * What a member brings to a meeting is arrays: lists of pointers that stay where they are until
 * the run is over, since a member that gave up may be gone while others still look at its list.
 *
 * If the members run in turns on one thread (ch_meet.reset), a collective that would wait returns
 * CH__BLOCKED. It must be called again, with the same arguments, when the other members had a turn.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTIVE_GROUP_H
#define COLLECTIVE_GROUP_H

#include "cohort/replica.h"
#include "cohort/status.h"
#include "graph/run.h"

#define CH_GROUP_MOST 256 /* members */

typedef struct ch_group ch_group;

typedef struct ch_group_options {
    int             n;    /* members, 1 to CH_GROUP_MOST */
    bool            spin; /* before they park: false where there are more threads than cores */
    ch_cross_device cross;
    double          timeout_seconds; /* 0: COHORT_WAIT_LIMIT_MS */
} ch_group_options;

/* A wait limit in ms, rounded up; 0: none is said. */
int64_t ch__limit_ms(double timeout_seconds);

/* Adds n arrays up on one thread, in the order in which members of a group of n would in this way: the same bits. */
void ch__add_up_as(ch_cross_device cross, ch_dtype t, int64_t count, int n,
                   const void *const *src, void *dst, int divisor);

ch_status ch__group_new(const ch_group_options *opt, ch_group **out);
void      ch__group_free(ch_group *g);

/* Waits until all members are here. `what` is for messages: the op. */
ch_status ch__group_barrier(ch_group *g, int member, const char *what);

/* What is added up: as many arrays as there are, the same on every member. */
typedef struct ch_addend {
    ch_dtype dtype;
    int64_t  count;
} ch_addend;

typedef struct ch_addends {
    ch_reduce_op     op;
    int              n;
    const ch_addend *array;
    ch_cross_device  cross;    /* CH_CROSS_AUTO: the group's */
    int64_t          limit_ms; /* 0: the group's */
} ch_addends;

/* Every member's out[i] becomes the combination of all members' in[i]; in[i] may be out[i]. */
ch_status ch__group_all_reduce(ch_group *g, int member, const ch_addends *s,
                               const void *const *in, void *const *out);
/* The same in two halves, for who has other things to do meanwhile: further sums may be begun, and other meetings held.
 * Until the end, which is that of all that were begun, out[i] and s are the group's; in[i] is free at once. */
ch_status ch__group_all_reduce_begin(ch_group *g, int member, const ch_addends *s,
                                     const void *const *in, void *const *out);
ch_status ch__group_all_reduce_end(ch_group *g, int member);

/* What is joined: n arrays, of `outer` runs each; run[i] is the bytes of this member's in array i, and
 * lives as long as the run. */
typedef struct ch_join {
    int            n;
    int64_t        outer;
    const int64_t *run;
    int64_t        limit_ms; /* 0: the group's */
} ch_join;

/* Run k of every member's out[i] becomes run k of all members' in[i], one after another. A member's
 * in[i] may be its out[i] if the others have nothing. */
ch_status ch__group_all_gather(ch_group *g, int member, const ch_join *j, const void *const *in,
                               void *const *out);
/* The other way, for one array: out becomes what belongs to this member of the sum of all members' in,
 * whose runs have `total` bytes. They do not overlap. */
ch_status ch__group_reduce_scatter(ch_group *g, int member, ch_dtype dtype, const ch_join *j,
                                   int64_t total, const void *const *in, void *out);
/* Every member's out[i], of bytes[i], becomes member 0's in[i]; in[i] may be out[i]. */
ch_status ch__group_broadcast(ch_group *g, int member, int n, const int64_t *bytes,
                              const void *const *in, void *const *out);

/* Meetings since the group was made: for tests. */
int64_t ch__group_barriers(const ch_group *g);

/* For graph/run.h. */
extern const ch_meet ch__group_as_meet;

#endif
