/* collective/group.c -- the replicas of one process, meeting in shared memory.
 *
 * 1. A member comes to a meeting by writing its number to its own line; it has begun once all
 *    members' numbers are as high. Those who spin read the lines, and nothing else is written.
 * 2. Who parks says so before it looks at the numbers for the last time, and who comes last
 *    looks for parked ones after it has come: one of the two sees the other.
 * 3. A sum may be left open: who has come for it goes on, and does its share before it comes to the next
 *    meeting. So once all have come to one, everybody is through with all before it.
 * 4. A meeting that has begun cannot be called off: who sees all numbers goes on, even if it hears
 *    that somebody gave up. Only a member that is not in it can have done so, or one that lost
 *    patience. Where it matters that none goes on then (variables change next), the first to
 *    know decides for all: see agree.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "collective/group.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/fault.h"
#include "collective/member.h"
#include "kernel/accumulate.h"

enum { SPIN_ROUNDS = 4000 };

static ch_status make_room(ch_group *g)
{
    g->member = ch__alloc_aligned((size_t)g->n * sizeof(*g->member));
    g->slots = ch__alloc_aligned((size_t)g->n * 2 * CH_SLOT_BYTES);
    return g->member != NULL && g->slots != NULL ? CH_OK
                                                 : ch__fail_memory("a group of replicas");
}

int64_t ch__limit_ms(double timeout_seconds)
{
    return (int64_t)ceil(fmin(timeout_seconds, 1e9) * 1000);
}

ch_status ch__group_new(const ch_group_options *opt, ch_group **out)
{
    ch_group *g;
    ch_status rc;

    if (opt->n < 1 || opt->n > CH_GROUP_MOST)
        return ch__fail(CH_INVALID_ARGUMENT, "%d replicas in one process, want 1 to %d", opt->n,
                        CH_GROUP_MOST);
    g = ch__alloc_aligned(sizeof(*g));
    if (g == NULL)
        return ch__fail_memory("a group of replicas");
    g->n = opt->n;
    g->spin = opt->spin ? SPIN_ROUNDS : 0;
    g->limit_ms = ch__limit_ms(opt->timeout_seconds);
    g->cross = ch__cross_of(opt->cross);
    rc = make_room(g);
    if (rc != CH_OK) {
        ch__group_free(g);
        return rc;
    }
    *out = g;
    return CH_OK;
}

void ch__group_free(ch_group *g)
{
    if (g == NULL)
        return;
    ch__free_aligned(g->slots);
    ch__free_aligned(g->member);
    ch__free_aligned(g);
}

int64_t ch__group_meetings(const ch_group *g)
{
    return g->member[0].meetings;
}

/* ---- meeting ---- */

static bool all_came(const ch_group *g, int64_t k)
{
    for (int i = 0; i < g->n; i++)
        if (atomic_load(&g->member[i].came) < k)
            return false;
    return true;
}

static ch_status aborted(const char *what)
{
    return ch__fail(CH_ABORTED, "%s: given up because another replica failed", what);
}

/* ", in host_call save, at train.c:41": what a member is doing, which takes a while to find out. */
static size_t add_doing(const ch_group *g, int i, char *text, size_t size)
{
    const ch_node *call = atomic_load_explicit(&g->member[i].doing, memory_order_relaxed);
    char           what[256];

    if (call == NULL || size < sizeof(what) + 8)
        return 0;
    ch__call_print(call, what, sizeof(what));
    return (size_t)snprintf(text, size, ", in %s", what);
}

/* "replica 1 (last at all_reduce, meeting 3 of this run), replica 2 (come to no meeting of this run)". */
static void list_missing(const ch_group *g, int64_t k, bool with_doing, char *text, size_t size)
{
    size_t used = 0;

    *text = '\0';
    for (int i = 0; i < g->n && used + 96 < size; i++) {
        int64_t came = atomic_load(&g->member[i].came);

        if (came >= k)
            continue;
        used += (size_t)snprintf(text + used, size - used, "%sreplica %d (",
                                 used > 0 ? ", " : "", i);
        if (came == 0)
            used +=
                (size_t)snprintf(text + used, size - used, "come to no meeting of this run)");
        else
            used += (size_t)snprintf(text + used, size - used,
                                     "last at %s, meeting %lld of this run)",
                                     atomic_load(&g->member[i].what), (long long)came);
        if (with_doing)
            used += add_doing(g, i, text + used, size - used);
    }
}

static ch_status overdue(const ch_group *g, int me, int64_t k, int64_t limit_ms)
{
    char missing[640];

    list_missing(g, k, true, missing, sizeof(missing));
    return ch__fail(
        CH_DEADLINE_EXCEEDED,
        "%s, meeting %lld of this run: replica %d waited %lld ms for %s; "
        "%s sets the limit",
        atomic_load(&g->member[me].what), (long long)k, me, (long long)limit_ms, missing,
        g->member[me].limit_ms > 0 ? "timeout_seconds of the call's communication options"
        : g->limit_ms > 0          ? "timeout_seconds of the strategy's communication options"
                                   : "COHORT_WAIT_LIMIT_MS");
}

static ch_status park(ch_group *g, int me, int64_t k, const char *what)
{
    int64_t   limit_ms = g->member[me].limit_ms > 0 ? g->member[me].limit_ms
                         : g->limit_ms > 0          ? g->limit_ms
                                                    : ch__config()->wait_limit_ms;
    int64_t   begin = ch__now_ns();
    char      whom[512];
    ch_status rc = CH_OK;

    list_missing(g, k, false, whom, sizeof(whom));
    for (;;) {
        unsigned seen = atomic_load(&g->gate);

        if (all_came(g, k))
            return CH_OK;
        if (atomic_load(&g->broken))
            return aborted(what);
        if (rc != CH_OK)
            return overdue(g, me, k, limit_ms);
        rc = ch__gate_wait_for(&g->gate, seen, limit_ms - (ch__now_ns() - begin) / 1000000,
                               whom);
    }
}

void ch__group_come(ch_group *g, int me, const char *what)
{
    ch_member *m = &g->member[me];
    int64_t    k = atomic_load_explicit(&m->came, memory_order_relaxed) + 1;

    atomic_store_explicit(&m->what, what, memory_order_relaxed);
    m->meetings++;
    atomic_store(&m->came, k);
    if (all_came(g, k) && atomic_load(&g->n_parked) > 0)
        ch__gate_open(&g->gate);
}

/* Until all have come as far as this member, who is not the last. */
static ch_status wait_for_all(ch_group *g, int me, int64_t k, const char *what)
{
    ch_status rc;

    for (int i = 0; i < g->spin; i++) {
        if (all_came(g, k))
            return CH_OK;
        if (atomic_load_explicit(&g->broken, memory_order_relaxed))
            break;
        ch__relax();
    }
    atomic_fetch_add(&g->n_parked, 1);
    rc = park(g, me, k, what);
    atomic_fetch_sub(&g->n_parked, 1);
    return rc;
}

ch_status ch__group_wait(ch_group *g, int me, const char *what)
{
    int64_t   k = atomic_load_explicit(&g->member[me].came, memory_order_relaxed);
    ch_pause  before;
    ch_status rc;

    if (all_came(g, k))
        return CH_OK;
    if (g->clock == NULL)
        return wait_for_all(g, me, k, what);
    before = ch__clock_pause(&g->clock[me]);
    rc = wait_for_all(g, me, k, what);
    ch__clock_resume(&g->clock[me], before, what);
    return rc;
}

ch_status ch__group_meet(ch_group *g, int me, const char *what)
{
    ch_status rc = ch__shared_settle(g, me);

    if (rc != CH_OK)
        return rc;
    ch__group_come(g, me, what);
    rc = ch__group_wait(g, me, what);
    if (rc == CH_OK)
        g->member[me].is_closing = false;
    return rc;
}

/* ---- what members do together ---- */

/* What others may still read of earlier meetings is not touched until all have come to the last. */
static ch_status bring(ch_group *g, int me, const void *const *in, const int64_t *run)
{
    ch_status rc = ch__shared_settle(g, me);

    g->member[me].in = in;
    g->member[me].run = run;
    return rc;
}

/* For a member that is alone. */
static void copy_all(const ch_addends *s, const void *const *in, void *const *out)
{
    for (int i = 0; i < s->n; i++)
        if (in[i] != out[i] && s->array[i].count > 0)
            memcpy(out[i], in[i],
                   (size_t)s->array[i].count * ch_dtype_bytes(s->array[i].dtype));
}

ch_status ch__group_all_reduce(ch_group *g, int me, const ch_addends *s, const void *const *in,
                               void *const *out)
{
    ch_status rc = ch__group_all_reduce_begin(g, me, s, in, out);

    return rc == CH_OK ? ch__group_all_reduce_end(g, me) : rc;
}

/* Other ways than the shared one are through with it at once, and with what was begun before. */
ch_status ch__group_all_reduce_begin(ch_group *g, int me, const ch_addends *s,
                                     const void *const *in, void *const *out)
{
    ch_cross_fn cross = s->cross != CH_CROSS_AUTO ? ch__cross_of(s->cross) : g->cross;
    ch_status   rc = CH_OK;

    if (g->n == 1) {
        copy_all(s, in, out);
        return CH_OK;
    }
    if (cross == ch__shared_begin)
        return ch__shared_begin(g, me, s, in, out);
    rc = ch__group_all_reduce_end(g, me);
    if (rc != CH_OK)
        return rc;
    g->member[me].bring = 0;
    g->member[me].limit_ms = s->limit_ms;
    rc = cross(g, me, s, in, out);
    g->member[me].limit_ms = 0;
    return rc;
}

ch_status ch__group_all_reduce_end(ch_group *g, int me)
{
    ch_member *m = &g->member[me];
    ch_status  rc = ch__shared_settle(g, me);

    if (rc != CH_OK || !m->is_closing)
        return rc;
    m->limit_ms = m->closing_ms;
    rc = ch__group_meet(g, me, "all_reduce");
    m->limit_ms = 0;
    return rc;
}

/* Where the i-th array's run of a member begins in the joined one, or, past the last, its length. */
static int64_t run_begin(const ch_group *g, int member, int i)
{
    int64_t at = 0;

    for (int r = 0; r < member; r++)
        at += g->member[r].run[i];
    return at;
}

static void gather_one(const ch_group *g, int i, int64_t outer, char *out)
{
    int64_t at = 0, total = run_begin(g, g->n, i);

    for (int r = 0; r < g->n; r++) {
        const char *from = g->member[r].in[i];
        int64_t     run = g->member[r].run[i];

        for (int64_t k = 0; k < outer && run > 0 && from != out; k++)
            memcpy(out + k * total + at, from + k * run, (size_t)run);
        at += run;
    }
}

ch_status ch__group_all_gather(ch_group *g, int me, const ch_join *j, const void *const *in,
                               void *const *out)
{
    ch_status rc = bring(g, me, in, j->run);

    g->member[me].limit_ms = j->limit_ms;
    if (rc == CH_OK)
        rc = ch__group_meet(g, me, "all_gather");
    for (int i = 0; i < j->n && rc == CH_OK; i++)
        gather_one(g, i, j->outer, out[i]);
    if (rc == CH_OK)
        rc = ch__group_meet(g, me, "all_gather");
    g->member[me].limit_ms = 0;
    return rc;
}

ch_status ch__group_reduce_scatter(ch_group *g, int me, ch_dtype dtype, const ch_join *j,
                                   int64_t total, const void *const *in, void *out)
{
    const char *what = "the gradient of all_gather";
    const void *src[CH_GROUP_MOST];
    int64_t     run = j->run[0], at;
    ch_status   rc = bring(g, me, in, j->run);

    if (rc == CH_OK)
        rc = ch__group_meet(g, me, what);
    if (rc != CH_OK)
        return rc;
    if (run_begin(g, g->n, 0) != total)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: its shares have %lld bytes, not %lld", what,
                        (long long)run_begin(g, g->n, 0), (long long)total);
    at = run_begin(g, me, 0);
    for (int64_t k = 0; k < j->outer && run > 0; k++) {
        for (int r = 0; r < g->n; r++)
            src[r] = (const char *)g->member[r].in[0] + k * total + at;
        ch__accumulate(dtype, run / (int64_t)ch_dtype_bytes(dtype), g->n, src,
                       (char *)out + k * run, 1);
    }
    return ch__group_meet(g, me, what);
}

ch_status ch__group_broadcast(ch_group *g, int me, int64_t bytes, const void *const *in,
                              void *out)
{
    const void *from;
    int         turn = g->member[me].slot;
    bool        is_small = bytes <= CH_SLOT_BYTES;
    ch_status   rc = bring(g, me, in, NULL);

    if (rc != CH_OK)
        return rc;
    g->member[me].slot ^= is_small;
    if (me == 0 && is_small && bytes > 0)
        memcpy(ch__slot(g, 0, turn), in[0], (size_t)bytes);
    rc = ch__group_meet(g, me, "broadcast");
    if (rc != CH_OK)
        return rc;
    from = is_small ? ch__slot(g, 0, turn) : g->member[0].in[0];
    if (from != out && bytes > 0)
        memcpy(out, from, (size_t)bytes);
    return is_small ? CH_OK : ch__group_meet(g, me, "broadcast");
}

/* ---- as the runs see it ---- */

/* True if all go on after meeting k: the first who can tell says so for all. */
static bool decide(ch_group *g, int64_t k, bool go)
{
    int64_t said = atomic_load(&g->verdict);

    while (said >> 1 < k)
        if (atomic_compare_exchange_weak(&g->verdict, &said, 2 * k + go))
            return go;
    return (said & 1) != 0;
}

static ch_status agree(void *group, int local)
{
    ch_group   *g = group;
    const char *what = "the end of the step";
    ch_status   rc = ch__group_meet(g, local, what);
    int64_t     k = atomic_load_explicit(&g->member[local].came, memory_order_relaxed);

    if (rc != CH_OK && rc != CH_DEADLINE_EXCEEDED)
        return rc; /* there is one who will never come */
    if (decide(g, k, rc == CH_OK))
        return CH_OK;
    return rc != CH_OK ? rc : aborted(what);
}

static ch_doing *doing(void *group, int local)
{
    return &((ch_group *)group)->member[local].doing;
}

static void give_up(void *group)
{
    ch_group *g = group;

    atomic_store(&g->broken, true);
    ch__gate_open(&g->gate);
}

static void reset(void *group, ch_clock *clock)
{
    ch_group *g = group;

    atomic_store(&g->broken, false);
    atomic_store(&g->verdict, 0);
    g->clock = clock;
    for (int i = 0; i < g->n; i++) {
        ch_member *m = &g->member[i];

        atomic_store(&m->came, 0);
        atomic_store(&m->doing, NULL);
        m->slot = m->bring = 0;
        m->open = NULL;
        m->is_closing = false;
        m->limit_ms = 0;
    }
}

const ch_meet ch__group_as_meet = {doing, agree, give_up, reset};
