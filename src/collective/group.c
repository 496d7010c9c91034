/* collective/group.c -- the replicas of one process, meeting in shared memory.
 *
 * A meeting is a counter and a gate. The last to come resets the counter and opens the gate; so
 * the state is ready for the next meeting before anybody can leave this one.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "collective/group.h"

#include <stdio.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/thread.h"
#include "kernel/accumulate.h"

enum { SPIN_ROUNDS = 4000 };

typedef struct member {
    _Alignas(CH_ALIGN) const void *in; /* a line each: members write their own */
    void           *out;
    size_t          bytes;   /* of in, where members have different ones */
    _Atomic int64_t meeting; /* how many it has come to */
    const char     *what;    /* the one it is at */
} member;

struct ch_group {
    int             n, spin;
    atomic_int      here;
    ch_gate         gate;
    atomic_bool     broken;
    _Atomic int64_t meetings;
    member         *member;
};

ch_status ch__group_new(int n, bool spin, ch_group **out)
{
    ch_group *g = ch__calloc(1, sizeof(*g));

    if (g == NULL)
        return ch__fail_memory("a group of replicas");
    g->member = ch__alloc_aligned((size_t)n * sizeof(*g->member));
    if (g->member == NULL) {
        ch__free(g);
        return ch__fail_memory("a group of replicas");
    }
    g->n = n;
    g->spin = spin ? SPIN_ROUNDS : 0;
    *out = g;
    return CH_OK;
}

void ch__group_free(ch_group *g)
{
    if (g == NULL)
        return;
    ch__free_aligned(g->member);
    ch__free(g);
}

int64_t ch__group_meetings(const ch_group *g)
{
    return atomic_load(&g->meetings);
}

static ch_status aborted(const char *what)
{
    return ch__fail(CH_ABORTED, "%s: given up because another replica failed", what);
}

/* Says who has not come, and where they were last. */
static ch_status overdue(ch_group *g, int me)
{
    char   text[512] = "";
    size_t used = 0;

    for (int i = 0; i < g->n && used < sizeof(text) - 64; i++)
        if (atomic_load(&g->member[i].meeting) < atomic_load(&g->member[me].meeting))
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%sreplica %d",
                                     used > 0 ? ", " : "", i);
    return ch__fail(CH_DEADLINE_EXCEEDED,
                    "%s: replica %d waited longer than COHORT_WAIT_LIMIT_MS for %s",
                    g->member[me].what, me, text);
}

ch_status ch__group_meet(ch_group *g, int me, const char *what)
{
    unsigned  seen = atomic_load(&g->gate);
    ch_status rc = CH_OK;

    g->member[me].what = what;
    atomic_fetch_add(&g->member[me].meeting, 1);
    if (atomic_load(&g->broken))
        return aborted(what);
    if (atomic_fetch_add(&g->here, 1) == g->n - 1) {
        atomic_store(&g->here, 0);
        atomic_fetch_add(&g->meetings, 1);
        ch__gate_open(&g->gate);
    } else {
        rc = ch__gate_wait(&g->gate, seen, g->spin, what);
    }
    if (rc == CH_DEADLINE_EXCEEDED)
        return overdue(g, me);
    if (rc == CH_OK && atomic_load(&g->broken))
        return aborted(what);
    return rc;
}

/* Member m combines the m-th part of everybody's input and hands it to everybody. Nobody else
 * reads or writes that part, so in and out may be the same memory. */
static void reduce_part(ch_group *g, int me, ch_reduce_op op, ch_dtype dtype, int64_t count,
                        const void **in)
{
    int64_t from = count * me / g->n, to = count * (me + 1) / g->n;
    size_t  size = ch_dtype_bytes(dtype), bytes = (size_t)(to - from) * size;
    char   *mine = (char *)g->member[me].out + (size_t)from * size;

    if (bytes == 0)
        return;
    for (int i = 0; i < g->n; i++)
        in[i] = (const char *)g->member[i].in + (size_t)from * size;
    ch__accumulate(dtype, to - from, g->n, in, mine, op == CH_MEAN ? g->n : 1);
    for (int i = 0; i < g->n; i++)
        if (i != me)
            memcpy((char *)g->member[i].out + (size_t)from * size, mine, bytes);
}

#define MAX_MEMBERS 256

ch_status ch__group_all_reduce(ch_group *g, int me, ch_reduce_op op, ch_dtype dtype,
                               int64_t count, const void *in, void *out)
{
    const void *part[MAX_MEMBERS];
    ch_status   rc;

    if (g->n > MAX_MEMBERS)
        return ch__fail(CH_UNIMPLEMENTED, "all_reduce: %d replicas in one process, at most %d",
                        g->n, MAX_MEMBERS);
    g->member[me].in = in;
    g->member[me].out = out;
    rc = ch__group_meet(g, me, "all_reduce");
    if (rc != CH_OK)
        return rc;
    reduce_part(g, me, op, dtype, count, part);
    return ch__group_meet(g, me, "all_reduce");
}

ch_status ch__group_all_gather(ch_group *g, int me, size_t bytes, const void *in, void *out)
{
    char     *at = out;
    ch_status rc;

    g->member[me].in = in;
    g->member[me].bytes = bytes;
    rc = ch__group_meet(g, me, "all_gather");
    if (rc != CH_OK)
        return rc;
    for (int i = 0; i < g->n; i++) {
        const member *m = &g->member[i];

        if (m->bytes > 0 && m->in != at)
            memcpy(at, m->in, m->bytes);
        at += m->bytes;
    }
    return ch__group_meet(g, me, "all_gather");
}

/* ---- as the runs see it ---- */

static ch_status agree(void *group, int local)
{
    return ch__group_meet(group, local, "the end of the step");
}

static void give_up(void *group)
{
    ch_group *g = group;

    atomic_store(&g->broken, true);
    ch__gate_open(&g->gate);
}

static void reset(void *group)
{
    ch_group *g = group;

    atomic_store(&g->broken, false);
    atomic_store(&g->here, 0);
    for (int i = 0; i < g->n; i++)
        atomic_store(&g->member[i].meeting, 0);
}

const ch_meet ch__group_as_meet = {agree, give_up, reset};
