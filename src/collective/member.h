/* collective/member.h -- the inside of a group, for the ways in which its members add up.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTIVE_MEMBER_H
#define COLLECTIVE_MEMBER_H

#include "base/mem.h"
#include "base/thread.h"
#include "collective/group.h"

/* What a member brings to be added up. */
typedef struct ch_brought {
    const void *const *in;
    void *const       *out;
} ch_brought;

/* Each on lines of its own: members write theirs and read the others'. */
typedef struct ch_member {
    _Alignas(CH_ALIGN) _Atomic int64_t came; /* to how many meetings of this run */
    ch_brought         brought[2]; /* to the last two where all add up, in turn as slots are */
    const void *const *in;         /* what it brought to the last meeting of another kind */
    const int64_t     *run;
    _Atomic(const char *) what;        /* the last one */
    ch_doing              doing;       /* the call that it is in */
    int                   slot, bring; /* which of its two is next */
    int64_t               meetings;

    /* Nobody else's business: a sum that it has begun and not ended. */
    const ch_addends *open; /* it came for this one, and has not done its share; NULL: it has */
    int               open_slot, open_bring;
    bool    is_closing; /* it has done its share, and may not use the sum until all have */
    int64_t closing_ms; /* that sum's limit */
    int64_t limit_ms;   /* of what it waits for now; 0: the group's */
    /* Where it is in a collective that it is to be called for again. */
    const ch_addends *begun;      /* the sum that ch__group_all_reduce has begun; NULL: none */
    int               barrier;    /* of its routine that it has arrived at; 0: it is in none */
    int64_t           blocked_at; /* the group's n_arrivals when it last returned CH__BLOCKED */
} ch_member;

/* A collective: actions 0 to n_barriers, with a barrier between each two. */
typedef struct ch_routine {
    const char *what;
    int         n_barriers;                                         /* 1 or more */
    ch_status (*act)(ch_group *g, int me, int k, const void *args); /* NULL: nothing to do */
} ch_routine;

/* Performs a routine, after this member's share of an open sum. If it returns CH__BLOCKED, it must be
 * called again with an equal routine and arguments. (group.c) */
ch_status ch__group_perform(ch_group *g, int me, const ch_routine *r, const void *args);

/* How members add up: one of the implementations of ch_cross_device. There are two members or more. */
typedef ch_status (*ch_cross_fn)(ch_group *g, int me, const ch_addends *s,
                                 const void *const *in, void *const *out);

struct ch_group {
    int         n, spin;
    int64_t     limit_ms; /* 0: the setting */
    ch_cross_fn cross;
    ch_clock   *clock;      /* of each member, in this run; NULL: it is not timed */
    bool        in_turns;   /* in this run all members are on one thread */
    int64_t     n_arrivals; /* of all members in this run, if in_turns */
    ch_member  *member;
    char       *slots;
    _Alignas(CH_ALIGN) atomic_bool broken; /* these two change hardly ever */
    atomic_int n_parked;
    _Alignas(CH_ALIGN) ch_gate gate;
    _Atomic int64_t
        verdict; /* twice the last meeting that was to decide, and 1 if it did: go on */
};

/* What is small goes through a slot: its owner copies it there and need not wait until the others have
 * read it. It has two and takes them in turn: nobody comes to the second meeting after this one while
 * another still reads from this one. */
enum { CH_SLOT_BYTES = 8192 };

static inline char *ch__slot(const ch_group *g, int member, int turn)
{
    return g->slots + (size_t)(2 * member + turn) * CH_SLOT_BYTES;
}

ch_cross_fn ch__cross_of(ch_cross_device how);

/* The way that leaves a sum open, and what does the member's share of it once all have come; if none is open,
 * nothing. (cross.c) */
ch_status ch__shared_begin(ch_group *g, int me, const ch_addends *s, const void *const *in,
                           void *const *out);
ch_status ch__shared_settle(ch_group *g, int me);

/* Half a meeting each: comes to the next one; waits until all have come as far. (group.c) */
void      ch__group_arrive(ch_group *g, int me, const char *what);
ch_status ch__group_wait(ch_group *g, int me, const char *what);

#endif
