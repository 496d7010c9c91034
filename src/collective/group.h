/* collective/group.h -- groups: members of a run, with collectives in shared memory.
 *
 * The members of a run are its replicas or, if replicas have several cores, all their cores
 * (graph/run.h). A group has some or all of them, numbered from 0. All members of a group call
 * the same collectives in the same order. A member can be in several groups: the collectives of
 * all groups then have an order in which every member calls its own.
 *
 * The groups of a run share a ch_group_sync: a member that fails aborts the run
 * (ch_group_ops.abort_run), and all members of all groups then return CH_ABORTED from the
 * collective in which they wait, and from all later collectives of this run. No member waits
 * longer than the time limit.
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

#include "base/mem.h"
#include "cohort/replica.h"
#include "cohort/status.h"
#include "graph/factors.h"
#include "graph/run.h"

#define CH_GROUP_MAX 256 /* the largest number of members */

typedef struct ch_group ch_group;

/* The state that all groups of a run share: whether the run is aborted, its decision to commit,
 * and the gate at which members park. */
typedef struct ch_group_sync ch_group_sync;

typedef struct ch_group_options {
    int             n;    /* number of members, 1 to CH_GROUP_MAX */
    bool            spin; /* spin before parking; false if there are more threads than cores */
    ch_cross_device cross;
    double          timeout_seconds; /* limit of a wait; 0: COHORT_WAIT_LIMIT_MS */
    ch_group_sync  *sync;            /* of the run; NULL: the run has no other group */
    const int      *member;          /* their numbers in the run, copied; NULL: 0 to n - 1 */
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

/* Creates the shared state of the groups of a run. The caller must release it with
 * ch__group_sync_unref. Each group has a reference. Not atomic: groups of a run must not be
 * created and freed by several threads at the same time. */
ch_status ch__group_sync_new(int n_replicas, int n_cores, ch_group_sync **out);
void      ch__group_sync_unref(ch_group_sync *s);

/* All groups of a run whose replicas have several cores. */
typedef struct ch_group_set {
    int           n_replicas, n_cores;
    ch_group     *all;  /* NULL: the run has a single member */
    ch_run_groups part; /* as for ch_run.groups; without arrays if there is one core */
    void        **list; /* memory of the arrays of `part` */
} ch_group_set;
/* Creates the groups of n_replicas local replicas of n_cores cores each. `opt->n` and the
 * members below it are ignored. `what` begins the message of an error. If there is one core,
 * `all` is the only group. */
ch_status ch__group_set_new(const char *what, const ch_group_options *opt, int n_replicas,
                            int n_cores, ch_group_set *out);
/* Frees the groups, and sets *g to zeros. */
void ch__group_set_free(ch_group_set *g);

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

/* ---- exchange ---- */

/* A copy of a box by the member that owns the list. */
typedef struct ch_exchange_copy {
    int                  n_sources; /* 1, or the number of partial results that are combined */
    const unsigned char *source;    /* members to read from, in the order of combination */
    ch_region            region;    /* of the whole value */
} ch_exchange_copy;

/* The work of a member in a stage. */
typedef struct ch_exchange_work {
    bool                    has;  /* the member has memory for `held`; false: it only waits */
    ch_region               held; /* the region that the member writes in this stage */
    int                     n;
    const ch_exchange_copy *copy;
} ch_exchange_work;

/* An exchange: every member has a region of a value, and gets another region. It has one or two
 * stages; in a stage, every member reads regions that other members have. In the first stage
 * they have `from`, in the second they have what they wrote in the first. The struct must be
 * the same on every member (its address need not be). */
typedef struct ch_exchange {
    const char             *label; /* name of the op, for messages */
    int                     rank;
    ch_dtype                dtype;
    ch_partial_op           combiner; /* of copies with several sources */
    ch_traffic_kind         kind; /* for the counts; CH_TRAFFIC_NONE: no barrier is needed */
    int                     n_stages; /* 1 or 2 */
    const ch_region        *from;     /* by member */
    const ch_exchange_work *stage[2]; /* by member */
    bool                    is_small; /* ch__exchange_is_small */
} ch_exchange;

/* Returns true if the arrays of every member fit the slots of a group: then a stage needs one
 * barrier, otherwise two stages need three. has[m] is false for a member without an array. */
bool ch__exchange_is_small(const ch_exchange *x, int n, const bool *has);
/* Returns the number of barriers of an exchange with 1 or 2 stages whose largest array of a
 * member has so many bytes. */
int ch__exchange_barriers(int n_stages, int64_t bytes);

/* Performs an exchange. `in` is this member's array of x->from, NULL if it has none; `out` is
 * its array of the region that it writes in the last stage, NULL if it writes none. `middle` is
 * memory for the first of two stages; it is not used if x->is_small. The arrays must be
 * contiguous and must not overlap. Adds the bytes that this member reads from others to
 * `count`, which may be NULL. Afterwards `in` may be changed. */
ch_status ch__group_exchange(ch_group *g, int member, const ch_exchange *x, const void *in,
                             void *middle, void *out, ch_traffic_counts *count);

/* Combines n arrays element by element, in this order. dst may be the same array as a source.
 * CH_PARTIAL_AND and CH_PARTIAL_OR are for bool, the others for numbers. (combine.c) */
void ch__combine(ch_partial_op op, ch_dtype t, int64_t count, int n, const void *const *src,
                 void *dst);

/* Returns the number of barriers since the group was created, for tests. */
int64_t ch__group_barriers(const ch_group *g);

/* The functions that graph/run.h needs of the group of all members. */
extern const ch_group_ops ch__group_ops;

#endif
