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
 * 5. If the replicas run in turns on one thread, a member never waits: a collective returns CH__BLOCKED
 *    instead, and is called again with the same arguments once the other members had their turns.
 *    So every collective is a row of actions with a barrier between each two (ch__group_perform),
 *    and the member remembers which barrier it has arrived at.
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

int64_t ch__group_barriers(const ch_group *g)
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

void ch__group_arrive(ch_group *g, int me, const char *what)
{
    ch_member *m = &g->member[me];
    int64_t    k = atomic_load_explicit(&m->came, memory_order_relaxed) + 1;

    atomic_store_explicit(&m->what, what, memory_order_relaxed);
    m->meetings++;
    if (g->in_turns) {
        atomic_store_explicit(&m->came, k, memory_order_relaxed);
        g->n_arrivals++;
        return;
    }
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

/* For replicas that run in turns. The other members had a turn each since this one was last here:
 * if none of them has arrived anywhere in that time, none ever will. */
static ch_status wait_for_turn(ch_group *g, int me, int64_t k, const char *what)
{
    ch_member *m = &g->member[me];
    char       missing[512];

    if (atomic_load(&g->broken))
        return aborted(what);
    if (m->blocked_at != g->n_arrivals) {
        m->blocked_at = g->n_arrivals;
        return CH__BLOCKED;
    }
    list_missing(g, k, false, missing, sizeof(missing));
    return ch__fail(CH_INTERNAL,
                    "%s, meeting %lld of this run: replica %d waits for %s, which cannot come",
                    what, (long long)k, me, missing);
}

ch_status ch__group_wait(ch_group *g, int me, const char *what)
{
    int64_t   k = atomic_load_explicit(&g->member[me].came, memory_order_relaxed);
    ch_pause  before;
    ch_status rc;

    if (all_came(g, k))
        return CH_OK;
    if (g->in_turns)
        return wait_for_turn(g, me, k, what);
    if (g->clock == NULL)
        return wait_for_all(g, me, k, what);
    before = ch__clock_pause(&g->clock[me]);
    rc = wait_for_all(g, me, k, what);
    ch__clock_resume(&g->clock[me], before, what);
    return rc;
}

ch_status ch__group_perform(ch_group *g, int me, const ch_routine *r, const void *args)
{
    ch_member *m = &g->member[me];
    ch_status  rc = CH_OK;

    if (m->barrier == 0) {
        rc = ch__shared_settle(g, me);
        if (rc == CH_OK && r->act != NULL)
            rc = r->act(g, me, 0, args);
        if (rc != CH_OK)
            return rc;
        m->barrier = 1;
        ch__group_arrive(g, me, r->what);
    }
    for (;;) {
        rc = ch__group_wait(g, me, r->what);
        if (rc != CH_OK)
            break;
        m->is_closing = false;
        if (r->act != NULL)
            rc = r->act(g, me, m->barrier, args);
        if (rc != CH_OK || m->barrier == r->n_barriers)
            break;
        m->barrier++;
        ch__group_arrive(g, me, r->what);
    }
    if (rc != CH__BLOCKED)
        m->barrier = 0;
    return rc;
}

ch_status ch__group_barrier(ch_group *g, int me, const char *what)
{
    return ch__group_perform(g, me, &(ch_routine){what, 1, NULL}, NULL);
}

/* ---- what members do together ---- */

/* Copies all inputs to their outputs. */
static void copy_all(const ch_addends *s, const void *const *in, void *const *out)
{
    for (int i = 0; i < s->n; i++)
        if (in[i] != out[i] && s->array[i].count > 0)
            memcpy(out[i], in[i],
                   (size_t)s->array[i].count * ch_dtype_bytes(s->array[i].dtype));
}

static bool is_shared(const ch_group *g, const ch_addends *s)
{
    return (s->cross != CH_CROSS_AUTO ? ch__cross_of(s->cross) : g->cross) == ch__shared_begin;
}

/* For every way except the shared one, which is complete when it returns CH_OK. */
static ch_status reduce_at_once(ch_group *g, int me, const ch_addends *s, const void *const *in,
                                void *const *out)
{
    ch_cross_fn cross = s->cross != CH_CROSS_AUTO ? ch__cross_of(s->cross) : g->cross;
    ch_status   rc = ch__group_all_reduce_end(g, me); /* of the sums begun before */

    if (rc != CH_OK)
        return rc;
    g->member[me].bring = 0;
    g->member[me].limit_ms = s->limit_ms;
    rc = cross(g, me, s, in, out);
    g->member[me].limit_ms = 0;
    return rc;
}

ch_status ch__group_all_reduce(ch_group *g, int me, const ch_addends *s, const void *const *in,
                               void *const *out)
{
    ch_member *m = &g->member[me];
    ch_status  rc = CH_OK;

    if (g->n == 1) {
        copy_all(s, in, out);
        return CH_OK;
    }
    if (!is_shared(g, s))
        return reduce_at_once(g, me, s, in, out);
    if (m->begun != s)
        rc = ch__shared_begin(g, me, s, in, out);
    if (rc != CH_OK)
        return rc;
    m->begun = s;
    rc = ch__group_all_reduce_end(g, me);
    if (rc != CH__BLOCKED)
        m->begun = NULL;
    return rc;
}

ch_status ch__group_all_reduce_begin(ch_group *g, int me, const ch_addends *s,
                                     const void *const *in, void *const *out)
{
    ch_status rc;

    if (g->n > 1 && !is_shared(g, s))
        return reduce_at_once(g, me, s, in, out);
    rc = ch__shared_settle(g, me);
    if (rc != CH_OK)
        return rc;
    copy_all(s, in, out);
    return g->n > 1 ? ch__shared_begin(g, me, s, (const void *const *)out, out) : CH_OK;
}

ch_status ch__group_all_reduce_end(ch_group *g, int me)
{
    ch_member *m = &g->member[me];
    ch_status  rc = ch__shared_settle(g, me);

    if (rc != CH_OK || !m->is_closing)
        return rc;
    m->limit_ms = m->closing_ms;
    rc = ch__group_barrier(g, me, "all_reduce");
    m->limit_ms = 0;
    return rc;
}

/* What a member brings to a collective, and where its result goes. */
typedef struct ch_exchange {
    const void *const *in;
    void *const       *out;
    const ch_join     *join;  /* of gathers */
    int64_t            total; /* reduce_scatter: bytes of a run of the input */
    ch_dtype           dtype;
    int                n; /* broadcast: arrays, */
    const int64_t     *bytes;
    bool               is_small; /* and whether they fit into a slot together */
} ch_exchange;

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

/* What others may still read of earlier meetings is not touched until all have come to the last. */
static void bring(ch_group *g, int me, const ch_exchange *x)
{
    g->member[me].in = x->in;
    g->member[me].run = x->join != NULL ? x->join->run : NULL;
}

static ch_status gather_act(ch_group *g, int me, int k, const void *args)
{
    const ch_exchange *x = args;

    if (k == 0)
        bring(g, me, x);
    for (int i = 0; k == 1 && i < x->join->n; i++)
        gather_one(g, i, x->join->outer, x->out[i]);
    return CH_OK;
}

ch_status ch__group_all_gather(ch_group *g, int me, const ch_join *j, const void *const *in,
                               void *const *out)
{
    static const ch_routine routine = {"all_gather", 2, gather_act};
    ch_status               rc;

    g->member[me].limit_ms = j->limit_ms;
    rc = ch__group_perform(g, me, &routine, &(ch_exchange){.in = in, .out = out, .join = j});
    g->member[me].limit_ms = 0;
    return rc;
}

static const char *const gradient_of_gather = "the gradient of all_gather";

static ch_status scatter_share(const ch_group *g, int me, const ch_exchange *x)
{
    const void *src[CH_GROUP_MOST];
    int64_t     run = x->join->run[0], at = run_begin(g, me, 0);

    if (run_begin(g, g->n, 0) != x->total)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: its shares have %lld bytes, not %lld",
                        gradient_of_gather, (long long)run_begin(g, g->n, 0),
                        (long long)x->total);
    for (int64_t k = 0; k < x->join->outer && run > 0; k++) {
        for (int r = 0; r < g->n; r++)
            src[r] = (const char *)g->member[r].in[0] + k * x->total + at;
        ch__accumulate(x->dtype, run / (int64_t)ch_dtype_bytes(x->dtype), g->n, src,
                       (char *)x->out[0] + k * run, 1);
    }
    return CH_OK;
}

static ch_status scatter_act(ch_group *g, int me, int k, const void *args)
{
    if (k == 0)
        bring(g, me, args);
    return k == 1 ? scatter_share(g, me, args) : CH_OK;
}

ch_status ch__group_reduce_scatter(ch_group *g, int me, ch_dtype dtype, const ch_join *j,
                                   int64_t total, const void *const *in, void *out)
{
    return ch__group_perform(
        g, me, &(ch_routine){gradient_of_gather, 2, scatter_act},
        &(ch_exchange){.in = in, .out = &out, .join = j, .total = total, .dtype = dtype});
}

/* Bytes of the first n arrays in a slot, each on lines of its own. */
static int64_t bytes_in_slot(const int64_t *bytes, int n)
{
    int64_t at = 0;

    for (int i = 0; i < n && at <= CH_SLOT_BYTES; i++)
        at += ch__units(bytes[i], CH_ALIGN) * CH_ALIGN;
    return at;
}

static void broadcast_put(ch_group *g, int me, const ch_exchange *x)
{
    ch_member *m = &g->member[me];
    char      *slot = ch__slot(g, 0, m->slot);

    bring(g, me, x);
    for (int i = 0; me == 0 && x->is_small && i < x->n; i++)
        if (x->bytes[i] > 0)
            memcpy(slot + bytes_in_slot(x->bytes, i), x->in[i], (size_t)x->bytes[i]);
    m->slot ^= x->is_small;
}

static void broadcast_take(ch_group *g, int me, const ch_exchange *x)
{
    const char *slot = ch__slot(g, 0, g->member[me].slot ^ x->is_small); /* that of the put */

    for (int i = 0; i < x->n; i++) {
        const void *from = x->is_small ? slot + bytes_in_slot(x->bytes, i) : g->member[0].in[i];

        if (from != x->out[i] && x->bytes[i] > 0)
            memcpy(x->out[i], from, (size_t)x->bytes[i]);
    }
}

static ch_status broadcast_act(ch_group *g, int me, int k, const void *args)
{
    if (k == 0)
        broadcast_put(g, me, args);
    else if (k == 1)
        broadcast_take(g, me, args);
    return CH_OK;
}

ch_status ch__group_broadcast(ch_group *g, int me, int n, const int64_t *bytes,
                              const void *const *in, void *const *out)
{
    ch_exchange x = {.in = in, .out = out, .n = n, .bytes = bytes};

    x.is_small = bytes_in_slot(bytes, n) <= CH_SLOT_BYTES;
    return ch__group_perform(g, me,
                             &(ch_routine){"broadcast", x.is_small ? 1 : 2, broadcast_act}, &x);
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
    ch_status   rc = ch__group_barrier(g, local, what);
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

static void reset(void *group, ch_clock *clock, bool in_turns)
{
    ch_group *g = group;

    g->in_turns = in_turns;
    g->n_arrivals = 0;

    atomic_store(&g->broken, false);
    atomic_store(&g->verdict, 0);
    g->clock = clock;
    for (int i = 0; i < g->n; i++) {
        ch_member *m = &g->member[i];

        atomic_store(&m->came, 0);
        atomic_store(&m->doing, NULL);
        m->slot = m->bring = 0;
        m->open = m->begun = NULL;
        m->is_closing = false;
        m->limit_ms = 0;
        m->barrier = 0;
        m->blocked_at = -1;
    }
}

const ch_meet ch__group_as_meet = {doing, agree, give_up, reset};
