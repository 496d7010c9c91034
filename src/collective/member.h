/* collective/member.h -- the inside of a group, for the ways in which its members add up.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COLLECTIVE_MEMBER_H
#define COLLECTIVE_MEMBER_H

#include "base/mem.h"
#include "base/thread.h"
#include "collective/group.h"

/* Each on lines of its own: members write theirs and read the others'. */
typedef struct ch_member {
    _Alignas(CH_ALIGN) _Atomic int64_t came; /* to how many meetings of this run */
    const void *const    *in;                /* what it brought to the last one */
    void *const          *out;
    const int64_t        *run;
    _Atomic(const char *) what; /* the last one */
    int                   turn; /* which of its two slots is next */
    int64_t               meetings;
} ch_member;

/* How members add up: one of the implementations of ch_cross_device. There are two members or more. */
typedef ch_status (*ch_cross_fn)(ch_group *g, int me, const ch_addends *s,
                                 const void *const *in, void *const *out);

struct ch_group {
    int         n, spin;
    int64_t     limit_ms; /* 0: the setting */
    ch_cross_fn cross;
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

#endif
