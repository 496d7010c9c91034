/* collective/group.c -- barriers of the replicas of a process, and collectives on top of them.
 *
 * The structs are ch_group and ch_member (member.h). The kernels of the collective ops call the
 * ch__group_ functions. graph/launch.c calls the functions of ch__group_ops around a run.
 * cross.c has the implementations of all_reduce.
 *
 * Invariants:
 *   1. A member arrives at a barrier by writing the barrier's number to its own cache line
 *      (n_arrived). The barrier is complete when the numbers of all members are at least as
 *      high. Members that spin read these lines, and write nothing.
 *   2. A member that parks increments n_parked before it checks the numbers for the last time.
 *      The member that arrives last checks n_parked after it has arrived. So at least one of
 *      the two sees the other.
 *   3. A reduction may be left open: a member that has arrived for it continues, and computes
 *      its share before it arrives at the next barrier. So when a barrier is complete, all
 *      members have finished with all barriers before it.
 *   4. A complete barrier cannot be aborted: a member that sees all numbers continues, even if
 *      the run was aborted meanwhile. Only a member that is not in this barrier can have
 *      aborted, or a member whose wait has timed out. Where no member may continue in that case
 *      (variables change next), the first member that can decide does so for all: see commit.
 *   5. If the replicas run in turns on one thread, a member never blocks. A collective returns
 *      CH__BLOCKED instead, and is called again with the same arguments after the other
 *      members had their turns. So every collective is a list of actions with a barrier
 *      between consecutive actions (ch__group_perform), and the member stores which barrier it
 *      has arrived at.
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

enum { SPIN_ROUNDS = 4000 }; /* before a member parks */

int64_t ch__limit_ms(double timeout_seconds)
{
    return (int64_t)ceil(fmin(timeout_seconds, 1e9) * 1000);
}

ch_status ch__group_new(const ch_group_options *opt, ch_group **out)
{
    ch_group *g;

    if (opt->n < 1 || opt->n > CH_GROUP_MAX)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "group of replicas: %d replicas in one process (want 1 to %d)", opt->n,
                        CH_GROUP_MAX);
    g = ch__alloc_aligned(sizeof(*g));
    if (g == NULL)
        return ch__fail_memory("a group of replicas");
    g->n = opt->n;
    g->spin = opt->spin ? SPIN_ROUNDS : 0;
    g->limit_ms = ch__limit_ms(opt->timeout_seconds);
    g->cross = ch__cross_of(opt->cross);
    g->member = ch__alloc_aligned((size_t)g->n * sizeof(*g->member));
    g->slots = ch__alloc_aligned((size_t)g->n * 2 * CH_SLOT_BYTES);
    if (g->member == NULL || g->slots == NULL) {
        ch__group_free(g);
        return ch__fail_memory("a group of replicas");
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
    return g->member[0].total_barriers;
}

/* ---- barriers ---- */

/* Returns true if barrier k is complete. */
static bool all_arrived(const ch_group *g, int64_t k)
{
    for (int i = 0; i < g->n; i++)
        if (atomic_load(&g->member[i].n_arrived) < k)
            return false;
    return true;
}

static ch_status fail_aborted(const char *label)
{
    return ch__fail(CH_ABORTED, "%s: aborted because another replica failed", label);
}

/* Prints the call that a member executes, as ", in host_call save, at train.c:41". Slow.
 * Returns the number of characters. */
static size_t print_current_call(const ch_group *g, int i, char *text, size_t size)
{
    const ch_node *call = atomic_load_explicit(&g->member[i].doing, memory_order_relaxed);
    char           label[256];

    if (call == NULL || size < sizeof(label) + 8)
        return 0;
    ch__call_print(call, label, sizeof(label));
    return (size_t)snprintf(text, size, ", in %s", label);
}

/* Prints the members that have not arrived at barrier k, as "replica 1 (last at all_reduce,
 * barrier 3 of this run), replica 2 (at no barrier of this run)". */
static void list_missing(const ch_group *g, int64_t k, bool with_call, char *text, size_t size)
{
    size_t used = 0;

    *text = '\0';
    for (int i = 0; i < g->n && used + 96 < size; i++) {
        int64_t n_arrived = atomic_load(&g->member[i].n_arrived);

        if (n_arrived >= k)
            continue;
        used += (size_t)snprintf(text + used, size - used, "%sreplica %d (",
                                 used > 0 ? ", " : "", i);
        if (n_arrived == 0)
            used += (size_t)snprintf(text + used, size - used, "at no barrier of this run)");
        else
            used += (size_t)snprintf(text + used, size - used,
                                     "last at %s, barrier %lld of this run)",
                                     atomic_load(&g->member[i].label), (long long)n_arrived);
        if (with_call)
            used += print_current_call(g, i, text + used, size - used);
    }
}

/* Returns DEADLINE_EXCEEDED, with the missing members and the setting of the limit. */
static ch_status fail_overdue(const ch_group *g, int me, int64_t k, int64_t limit_ms)
{
    char missing[640];

    list_missing(g, k, true, missing, sizeof(missing));
    return ch__fail(
        CH_DEADLINE_EXCEEDED,
        "%s, barrier %lld of this run: replica %d waited %lld ms for %s; "
        "%s sets the limit",
        atomic_load(&g->member[me].label), (long long)k, me, (long long)limit_ms, missing,
        g->member[me].limit_ms > 0 ? "timeout_seconds of the call's communication options"
        : g->limit_ms > 0          ? "timeout_seconds of the strategy's communication options"
                                   : "COHORT_WAIT_LIMIT_MS");
}

/* Parks until barrier k is complete, the run is aborted, or the time limit has passed. */
static ch_status park(ch_group *g, int me, int64_t k, const char *label)
{
    int64_t   limit_ms = g->member[me].limit_ms > 0 ? g->member[me].limit_ms
                         : g->limit_ms > 0          ? g->limit_ms
                                                    : ch__config()->wait_limit_ms;
    int64_t   begin = ch__now_ns();
    char      missing[512];
    ch_status rc = CH_OK;

    list_missing(g, k, false, missing, sizeof(missing));
    for (;;) {
        unsigned seen = atomic_load(&g->gate);

        if (all_arrived(g, k))
            return CH_OK;
        if (atomic_load(&g->is_aborted))
            return fail_aborted(label);
        if (rc != CH_OK)
            return fail_overdue(g, me, k, limit_ms);
        rc = ch__gate_wait_for(&g->gate, seen, limit_ms - (ch__now_ns() - begin) / 1000000,
                               missing);
    }
}

void ch__group_arrive(ch_group *g, int me, const char *label)
{
    ch_member *m = &g->member[me];
    int64_t    k = atomic_load_explicit(&m->n_arrived, memory_order_relaxed) + 1;

    atomic_store_explicit(&m->label, label, memory_order_relaxed);
    m->total_barriers++;
    if (g->in_turns) {
        atomic_store_explicit(&m->n_arrived, k, memory_order_relaxed);
        g->n_arrivals++;
        return;
    }
    atomic_store(&m->n_arrived, k);
    if (all_arrived(g, k) && atomic_load(&g->n_parked) > 0)
        ch__gate_open(&g->gate);
}

/* Blocks until barrier k is complete: spins first, then parks. */
static ch_status wait_for_all(ch_group *g, int me, int64_t k, const char *label)
{
    ch_status rc;

    for (int i = 0; i < g->spin; i++) {
        if (all_arrived(g, k))
            return CH_OK;
        if (atomic_load_explicit(&g->is_aborted, memory_order_relaxed))
            break;
        ch__relax();
    }
    atomic_fetch_add(&g->n_parked, 1);
    rc = park(g, me, k, label);
    atomic_fetch_sub(&g->n_parked, 1);
    return rc;
}

/* Returns CH__BLOCKED, for replicas that run in turns. Every other member had a turn
 * since the last call. If none of them has arrived at a barrier since then, none ever
 * will: that is an error. */
static ch_status wait_in_turns(ch_group *g, int me, int64_t k, const char *label)
{
    ch_member *m = &g->member[me];
    char       missing[512];

    if (atomic_load(&g->is_aborted))
        return fail_aborted(label);
    if (m->blocked_at != g->n_arrivals) {
        m->blocked_at = g->n_arrivals;
        return CH__BLOCKED;
    }
    list_missing(g, k, false, missing, sizeof(missing));
    return ch__fail(
        CH_INTERNAL,
        "%s, barrier %lld of this run: replica %d waits for %s, which cannot arrive", label,
        (long long)k, me, missing);
}

ch_status ch__group_wait(ch_group *g, int me, const char *label)
{
    int64_t   k = atomic_load_explicit(&g->member[me].n_arrived, memory_order_relaxed);
    ch_pause  before;
    ch_status rc;

    if (all_arrived(g, k))
        return CH_OK;
    if (g->in_turns)
        return wait_in_turns(g, me, k, label);
    if (g->clock == NULL)
        return wait_for_all(g, me, k, label);
    before = ch__clock_pause(&g->clock[me]);
    rc = wait_for_all(g, me, k, label);
    ch__clock_resume(&g->clock[me], before, label);
    return rc;
}

ch_status ch__group_perform(ch_group *g, int me, const ch_routine *r, const void *args)
{
    ch_member *m = &g->member[me];
    ch_status  rc = CH_OK;

    if (m->barrier == 0) {
        rc = ch__shared_complete(g, me);
        if (rc == CH_OK && r->act != NULL)
            rc = r->act(g, me, 0, args);
        if (rc != CH_OK)
            return rc;
        m->barrier = 1;
        ch__group_arrive(g, me, r->label);
    }
    for (;;) {
        rc = ch__group_wait(g, me, r->label);
        if (rc != CH_OK)
            break;
        m->is_closing = false;
        if (r->act != NULL)
            rc = r->act(g, me, m->barrier, args);
        if (rc != CH_OK || m->barrier == r->n_barriers)
            break;
        m->barrier++;
        ch__group_arrive(g, me, r->label);
    }
    if (rc != CH__BLOCKED)
        m->barrier = 0;
    return rc;
}

ch_status ch__group_barrier(ch_group *g, int me, const char *label)
{
    return ch__group_perform(g, me, &(ch_routine){label, 1, NULL}, NULL);
}

/* ---- collectives ---- */

/* Copies all inputs to their outputs. */
static void copy_all(const ch_addends *s, const void *const *in, void *const *out)
{
    for (int i = 0; i < s->n; i++)
        if (in[i] != out[i] && s->array[i].count > 0)
            memcpy(out[i], in[i],
                   (size_t)s->array[i].count * ch_dtype_bytes(s->array[i].dtype));
}

/* Returns true if the reduction uses CH_CROSS_SHARED. */
static bool is_shared(const ch_group *g, const ch_addends *s)
{
    return (s->cross != CH_CROSS_AUTO ? ch__cross_of(s->cross) : g->cross) == ch__shared_begin;
}

/* Reduces with an implementation other than CH_CROSS_SHARED: the result is
 * complete on return. */
static ch_status reduce_at_once(ch_group *g, int me, const ch_addends *s, const void *const *in,
                                void *const *out)
{
    ch_cross_fn cross = s->cross != CH_CROSS_AUTO ? ch__cross_of(s->cross) : g->cross;
    ch_status rc = ch__group_all_reduce_end(g, me); /* completes the reductions begun before */

    if (rc != CH_OK)
        return rc;
    g->member[me].next_set = 0;
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
    rc = ch__shared_complete(g, me);
    if (rc != CH_OK)
        return rc;
    copy_all(s, in, out);
    return g->n > 1 ? ch__shared_begin(g, me, s, (const void *const *)out, out) : CH_OK;
}

ch_status ch__group_all_reduce_end(ch_group *g, int me)
{
    ch_member *m = &g->member[me];
    ch_status  rc = ch__shared_complete(g, me);

    if (rc != CH_OK || !m->is_closing)
        return rc;
    m->limit_ms = m->closing_limit_ms;
    rc = ch__group_barrier(g, me, "all_reduce");
    m->limit_ms = 0;
    return rc;
}

/* The arguments of a member in a collective that is no all_reduce. */
typedef struct ch_exchange {
    const void *const *in;
    void *const       *out;
    const ch_join     *join;  /* all_gather and reduce_scatter */
    int64_t            total; /* reduce_scatter: bytes of a segment of the input */
    ch_dtype           dtype;
    /* Broadcast: number of arrays, their bytes, and whether they fit into a slot together. */
    int            n;
    const int64_t *bytes;
    bool           is_small;
} ch_exchange;

/* Returns the offset of a member's segment in a segment of gathered array i, in bytes. For
 * `member` = n, returns the size of the gathered segment. */
static int64_t run_begin(const ch_group *g, int member, int i)
{
    int64_t at = 0;

    for (int r = 0; r < member; r++)
        at += g->member[r].run[i];
    return at;
}

/* Copies the segments of all members into gathered array i. */
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

/* Publishes the arrays for the other members to read. No member still reads the previous ones,
 * because a collective in which `in` is read ends with a barrier. */
static void publish(ch_group *g, int me, const ch_exchange *x)
{
    g->member[me].in = x->in;
    g->member[me].run = x->join != NULL ? x->join->run : NULL;
}

static ch_status gather_act(ch_group *g, int me, int k, const void *args)
{
    const ch_exchange *x = args;

    if (k == 0)
        publish(g, me, x);
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

/* Adds this member's segments of all members' arrays. */
static ch_status scatter_share(const ch_group *g, int me, const ch_exchange *x)
{
    const void *src[CH_GROUP_MAX];
    int64_t     run = x->join->run[0], at = run_begin(g, me, 0);

    if (run_begin(g, g->n, 0) != x->total)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: the shares of the replicas have %lld bytes in all (want %lld)",
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
        publish(g, me, args);
    return k == 1 ? scatter_share(g, me, args) : CH_OK;
}

ch_status ch__group_reduce_scatter(ch_group *g, int me, ch_dtype dtype, const ch_join *j,
                                   int64_t total, const void *const *in, void *out)
{
    return ch__group_perform(
        g, me, &(ch_routine){gradient_of_gather, 2, scatter_act},
        &(ch_exchange){.in = in, .out = &out, .join = j, .total = total, .dtype = dtype});
}

/* Returns the bytes of the first n arrays in a slot. Each array begins on a new cache line. */
static int64_t bytes_in_slot(const int64_t *bytes, int n)
{
    int64_t at = 0;

    for (int i = 0; i < n && at <= CH_SLOT_BYTES; i++)
        at += ch__units(bytes[i], CH_ALIGN) * CH_ALIGN;
    return at;
}

/* Publishes the arrays. Member 0 copies small arrays to its slot. */
static void broadcast_put(ch_group *g, int me, const ch_exchange *x)
{
    ch_member *m = &g->member[me];
    char      *slot = ch__slot(g, 0, m->next_slot);

    publish(g, me, x);
    for (int i = 0; me == 0 && x->is_small && i < x->n; i++)
        if (x->bytes[i] > 0)
            memcpy(slot + bytes_in_slot(x->bytes, i), x->in[i], (size_t)x->bytes[i]);
    m->next_slot ^= x->is_small;
}

static void broadcast_take(ch_group *g, int me, const ch_exchange *x)
{
    /* The slot that broadcast_put has used. */
    const char *slot = ch__slot(g, 0, g->member[me].next_slot ^ x->is_small);

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

/* ---- the functions for graph/run.h ---- */

/* Returns true if all members continue after barrier k. The first member that calls this
 * decides for all. */
static bool decide(ch_group *g, int64_t k, bool proceed)
{
    int64_t decided = atomic_load(&g->decision);

    while (decided >> 1 < k)
        if (atomic_compare_exchange_weak(&g->decision, &decided, 2 * k + proceed))
            return proceed;
    return (decided & 1) != 0;
}

/* Returns CH_OK on all members, or on none. */
static ch_status commit(void *group, int local)
{
    ch_group   *g = group;
    const char *label = "the end of the step";
    ch_status   rc = ch__group_barrier(g, local, label);
    int64_t     k = atomic_load_explicit(&g->member[local].n_arrived, memory_order_relaxed);

    if (rc != CH_OK && rc != CH_DEADLINE_EXCEEDED)
        return rc; /* a member has failed, and will never arrive */
    if (decide(g, k, rc == CH_OK))
        return CH_OK;
    return rc != CH_OK ? rc : fail_aborted(label);
}

static ch_current_call *doing(void *group, int local)
{
    return &((ch_group *)group)->member[local].doing;
}

/* Ends all waits of this run with CH_ABORTED, now and later. */
static void abort_run(void *group)
{
    ch_group *g = group;

    atomic_store(&g->is_aborted, true);
    ch__gate_open(&g->gate);
}

/* Prepares the group for a run. */
static void reset(void *group, ch_clock *clock, bool in_turns)
{
    ch_group *g = group;

    g->in_turns = in_turns;
    g->n_arrivals = 0;

    atomic_store(&g->is_aborted, false);
    atomic_store(&g->decision, 0);
    g->clock = clock;
    for (int i = 0; i < g->n; i++) {
        ch_member *m = &g->member[i];

        atomic_store(&m->n_arrived, 0);
        atomic_store(&m->doing, NULL);
        m->next_slot = m->next_set = 0;
        m->open_sum = m->begun = NULL;
        m->is_closing = false;
        m->limit_ms = 0;
        m->barrier = 0;
        m->blocked_at = -1;
    }
}

const ch_group_ops ch__group_ops = {doing, commit, abort_run, reset};
