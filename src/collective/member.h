/* collective/member.h -- the private state of groups, shared by the files of collective/.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTIVE_MEMBER_H
#define COLLECTIVE_MEMBER_H

#include "base/mem.h"
#include "base/thread.h"
#include "collective/group.h"

/* The arrays of a member in a reduction. */
typedef struct ch_reduce_arrays {
    const void *const *in;
    void *const       *out;
} ch_reduce_arrays;

/* A member of a group. The other members read the fields up to `stage_at`. Each member has its
 * own cache lines, because it writes its fields while others read theirs. */
typedef struct ch_member {
    /* Number of barriers of this run that the member has arrived at. */
    _Alignas(CH_ALIGN) _Atomic int64_t n_arrived;
    ch_reduce_arrays      arrays[2]; /* of the last two reductions, alternating as slots do */
    const void *const    *in;        /* arrays of the last collective that is no reduction */
    const int64_t        *run;       /* ch_join.run of that collective */
    _Atomic(const char *) label;     /* name of the op of its last barrier */
    const void *stage_at[2];         /* array that an exchange reads in each stage; not small */
    int         run_member;          /* number of the member in the run */
    int         next_slot, next_set; /* 0 or 1: index of the next slot, of the next `arrays` */
    int64_t     total_barriers;      /* since the group was created */

    /* Private to the member: a reduction that was begun and has not ended. */
    const ch_addends *open_sum; /* arrived, but its share is not computed yet; NULL: none */
    int               open_slot, open_set;
    bool              is_closing; /* share computed; the sum is usable after the next barrier */
    int64_t           closing_limit_ms; /* limit_ms of that reduction */
    int64_t           limit_ms;         /* of the current collective; 0: the group's */
    /* The position in a collective that has returned CH__BLOCKED. */
    const ch_addends *begun; /* by ch__group_all_reduce; NULL: none */
    int     barrier;    /* of the routine, at which the member has arrived; 0: no routine */
    int64_t blocked_at; /* n_arrivals of the run at its last CH__BLOCKED */
} ch_member;

/* A collective: the actions 0 to n_barriers, with a barrier between consecutive actions. */
typedef struct ch_routine {
    const char *label;
    int         n_barriers;                                         /* 1 or more */
    ch_status (*act)(ch_group *g, int me, int k, const void *args); /* NULL: nothing to do */
} ch_routine;

/* Performs a routine, after the member's share of an open reduction. If it returns CH__BLOCKED,
 * the caller must call it again with an equal routine and arguments. (barrier.c) */
ch_status ch__group_perform(ch_group *g, int me, const ch_routine *r, const void *args);

/* An implementation of ch_cross_device: reduces the arrays of s. The group has two
 * members or more. */
typedef ch_status (*ch_cross_fn)(ch_group *g, int me, const ch_addends *s,
                                 const void *const *in, void *const *out);

struct ch_group {
    int            n, spin;  /* members; rounds to spin before a member parks */
    int64_t        limit_ms; /* 0: COHORT_WAIT_LIMIT_MS */
    ch_cross_fn    cross;
    bool           in_turns; /* ch_group_run.in_turns of this run */
    ch_member     *member;
    char          *slots; /* two for each member: ch__slot */
    ch_group_sync *sync;  /* referenced */
    ch_group      *next;  /* in the list of `sync` */
};

/* A member of a run. It writes `doing` before every call, so it has its own cache line. */
typedef struct ch_run_member {
    _Alignas(CH_ALIGN) ch_current_call doing; /* the call that it executes, for messages */
    /* while it is parked: the group and the barrier that it waits for; NULL: it is not */
    _Atomic(const ch_group *) waits_in;
    _Atomic int64_t           waits_for;
} ch_run_member;

struct ch_group_sync {
    int            n, n_cores; /* members of the run; cores of each replica */
    int            refs;       /* number of groups, and 1 for the creator */
    ch_group      *groups;
    ch_run_member *member;
    ch_group_run   run;        /* the current run */
    int64_t        n_arrivals; /* of all members at barriers of all groups, if run.in_turns */
    /* is_aborted and n_parked rarely change. */
    _Alignas(CH_ALIGN) atomic_bool is_aborted;
    atomic_int n_parked;
    _Alignas(CH_ALIGN) ch_gate gate;
    /* 2 * k + 1 if the members commit after barrier k of the group of all members, 2 * k if
     * they do not, where k is the last barrier with a decision. */
    _Atomic int64_t decision;
};

/* Small arrays go through a slot: their owner copies them there, and need not wait until the
 * other members have read them. A member has two slots and alternates between them. That is
 * safe because no member arrives at the second barrier after this one while another still
 * reads this slot. */
enum { CH_SLOT_BYTES = 8192 };

/* Returns slot 0 or 1 of a member. */
static inline char *ch__slot(const ch_group *g, int member, int turn)
{
    return g->slots + (size_t)(2 * member + turn) * CH_SLOT_BYTES;
}

/* Returns the implementation; CH_CROSS_AUTO stands for CH_CROSS_SHARED. */
ch_cross_fn ch__cross_of(ch_cross_device how);

/* CH_CROSS_SHARED in two functions. ch__shared_begin arrives at the barrier and leaves the
 * reduction open. ch__shared_complete waits for all members and computes this member's share;
 * it does nothing if no reduction is open. (cross.c) */
ch_status ch__shared_begin(ch_group *g, int me, const ch_addends *s, const void *const *in,
                           void *const *out);
ch_status ch__shared_complete(ch_group *g, int me);

/* Returns where a member counts the bytes that it moves between replicas; NULL: nowhere. */
static inline ch_traffic_counts *ch__cross_counts(const ch_group *g, int me)
{
    ch_traffic_counts *all = g->sync->run.traffic;

    return all != NULL ? &all[g->member[me].run_member] : NULL;
}
/* Counts bytes of arrays of other members that a member has read or written. */
static inline void ch__count_cross(const ch_group *g, int me, int64_t bytes)
{
    ch_traffic_counts *c = ch__cross_counts(g, me);

    if (c != NULL)
        c->bytes[CH_TRAFFIC_CROSS] += bytes;
}
/* Counts a collective that a member has completed, if rc is CH_OK. Returns rc. */
static inline ch_status ch__count_collective(const ch_group *g, int me, ch_status rc)
{
    ch_traffic_counts *c = ch__cross_counts(g, me);

    if (c != NULL && rc == CH_OK)
        c->calls[CH_TRAFFIC_CROSS]++;
    return rc;
}

/* Returns the bytes that a member of a group of n counts in a reduction. (cross.c) */
int64_t ch__cross_bytes(ch_cross_fn cross, int n, int me, const ch_addends *s);
/* Describes the reduction of a call of all_reduce, all_reduce_begin or all_reduce_end. `array`
 * has an element for each input. (all_reduce.c) */
void ch__all_reduce_addends(const ch_node *call, ch_addend *array, ch_addends *out);
/* Implements ch_group_ops.cross_bytes. (traffic.c) */
int64_t ch__group_cross_bytes(const void *group, int me, const ch_node *call);
/* Returns the implementation of a reduction in this group. (group.c) */
ch_cross_fn ch__cross_in(const ch_group *g, const ch_addends *s);

/* The two halves of a barrier. ch__group_arrive arrives at the next barrier and does not block.
 * ch__group_wait blocks until all members have arrived at it. (barrier.c) */
void      ch__group_arrive(ch_group *g, int me, const char *label);
ch_status ch__group_wait(ch_group *g, int me, const char *label);

#endif
