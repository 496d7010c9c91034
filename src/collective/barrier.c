/* collective/barrier.c -- groups of the members of a run, and their barriers.
 *
 * The structs are ch_group, ch_member and ch_group_sync (member.h). The collectives of group.c,
 * cross.c and exchange.c are actions with a barrier between them (ch__group_perform).
 * graph/launch.c calls the functions of ch__group_ops around a run.
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
 *   5. If the members run in turns on one thread, a member never blocks. A collective returns
 *      CH__BLOCKED instead, and is called again with the same arguments after the other
 *      members had their turns. So every collective is a list of actions with a barrier
 *      between consecutive actions (ch__group_perform), and the member stores which barrier it
 *      has arrived at.
 *   6. A reduction that is open in one group does not keep its member from barriers of other
 *      groups. No wait for ever follows, because all members call the collectives of all groups
 *      in one order: the first collective that is not complete can always be completed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/fault.h"
#include "collective/group.h"
#include "collective/member.h"

enum { SPIN_ROUNDS = 4000 }; /* before a member parks */

int64_t ch__limit_ms(double timeout_seconds)
{
    return (int64_t)ceil(fmin(timeout_seconds, 1e9) * 1000);
}

/* ---- the shared state of a run ---- */

ch_status ch__group_sync_new(int n_replicas, int n_cores, ch_group_sync **out)
{
    ch_group_sync *s = ch__alloc_aligned(sizeof(*s));

    if (s == NULL)
        return ch__fail_memory("a group of replicas");
    s->n = n_replicas * n_cores;
    s->n_cores = n_cores;
    s->refs = 1;
    s->member = ch__alloc_aligned((size_t)s->n * sizeof(*s->member));
    if (s->member == NULL) {
        ch__free_aligned(s);
        return ch__fail_memory("a group of replicas");
    }
    *out = s;
    return CH_OK;
}

void ch__group_sync_unref(ch_group_sync *s)
{
    if (s == NULL || --s->refs > 0)
        return;
    ch__free_aligned(s->member);
    ch__free_aligned(s);
}

/* ---- groups ---- */

ch_status ch__group_new(const ch_group_options *opt, ch_group **out)
{
    ch_group *g;
    ch_status rc = CH_OK;

    if (opt->n < 1 || opt->n > CH_GROUP_MAX)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "group of replicas: %d replicas in one process (want 1 to %d)", opt->n,
                        CH_GROUP_MAX);
    g = ch__alloc_aligned(sizeof(*g));
    if (g == NULL)
        return ch__fail_memory("a group of replicas");
    if (opt->sync == NULL)
        rc = ch__group_sync_new(opt->n, 1, &g->sync);
    else
        g->sync = opt->sync;
    if (rc != CH_OK) {
        ch__free_aligned(g);
        return rc;
    }
    g->sync->refs += opt->sync != NULL;
    g->next = g->sync->groups;
    g->sync->groups = g;
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
    for (int i = 0; i < g->n; i++)
        g->member[i].run_member = opt->member != NULL ? opt->member[i] : i;
    *out = g;
    return CH_OK;
}

void ch__group_free(ch_group *g)
{
    if (g == NULL)
        return;
    for (ch_group **link = &g->sync->groups; *link != NULL; link = &(*link)->next)
        if (*link == g) {
            *link = g->next;
            break;
        }
    ch__group_sync_unref(g->sync);
    ch__free_aligned(g->slots);
    ch__free_aligned(g->member);
    ch__free_aligned(g);
}

/* Creates the group of `n` members of the run: first, first + step, ... */
static ch_status new_part(const ch_group_options *opt, ch_group_sync *s, int n, int first,
                          int step, void **out)
{
    ch_group_options of_part = *opt;
    ch_group        *g = NULL;
    int              member[CH_GROUP_MAX];
    ch_status        rc;

    for (int i = 0; i < n; i++)
        member[i] = first + i * step;
    of_part.n = n;
    of_part.sync = s;
    of_part.member = member;
    rc = ch__group_new(&of_part, &g);
    *out = g;
    return rc;
}

/* Creates all groups of a run whose replicas have several cores. */
static ch_status new_parts(const ch_group_options *opt, ch_group_sync *s, ch_group_set *g)
{
    int       n_replicas = g->n_replicas, n_cores = g->n_cores;
    void     *all = NULL;
    ch_status rc = new_part(opt, s, n_replicas * n_cores, 0, 1, &all);

    g->all = all;
    g->list = ch__calloc((size_t)n_replicas + (size_t)n_cores, sizeof(*g->list));
    if (rc == CH_OK && g->list == NULL)
        rc = ch__fail_memory("a group of replicas");
    if (rc != CH_OK)
        return rc;
    g->part = (ch_run_groups){.replicas = n_replicas > 1 ? g->list : NULL,
                              .cores = g->list + n_cores};
    for (int c = 0; c < n_cores && n_replicas > 1 && rc == CH_OK; c++)
        rc = new_part(opt, s, n_replicas, c, n_cores, &g->list[c]);
    for (int r = 0; r < n_replicas && rc == CH_OK; r++)
        rc = new_part(opt, s, n_cores, r * n_cores, 1, &g->list[n_cores + r]);
    return rc;
}

ch_status ch__group_set_new(const char *what, const ch_group_options *opt, int n_replicas,
                            int n_cores, ch_group_set *out)
{
    ch_group_set     g = {.n_replicas = n_replicas, .n_cores = n_cores};
    ch_group_options all = *opt;
    ch_group_sync   *s = NULL;
    ch_status        rc;

    all.n = n_replicas * n_cores;
    all.sync = NULL;
    all.member = NULL;
    *out = g;
    if (all.n == 1)
        return CH_OK;
    if (n_cores > CH_GROUP_MAX / n_replicas)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: %d replicas of %d cores in one process (want at most %d cores)",
                        what, n_replicas, n_cores, CH_GROUP_MAX);
    if (n_cores == 1) {
        rc = ch__group_new(&all, &g.all);
    } else {
        rc = ch__group_sync_new(n_replicas, n_cores, &s);
        if (rc == CH_OK)
            rc = new_parts(opt, s, &g);
        ch__group_sync_unref(s);
    }
    if (rc == CH_OK)
        *out = g;
    else
        ch__group_set_free(&g);
    return rc;
}

void ch__group_set_free(ch_group_set *g)
{
    for (int i = 0; g->list != NULL && i < g->n_replicas + g->n_cores; i++)
        ch__group_free(g->list[i]);
    ch__free(g->list);
    ch__group_free(g->all);
    *g = (ch_group_set){0};
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

/* Prints the name of a member for messages. */
static void print_member(const ch_group *g, int i, char *text, size_t size)
{
    const ch_group_sync *s = g->sync;
    int                  m = g->member[i].run_member;

    ch__run_member_print(m, s->n_cores, s->run.device, text, size);
}

/* Prints the call that a member executes, as ", in host_call save, at train.c:41". Slow.
 * Returns the number of characters. */
static size_t print_current_call(const ch_group *g, int i, char *text, size_t size)
{
    const ch_node *call = atomic_load_explicit(&g->sync->member[g->member[i].run_member].doing,
                                               memory_order_relaxed);
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
    char   name[CH_MEMBER_NAME];
    size_t used = 0;

    *text = '\0';
    for (int i = 0; i < g->n && used + 160 < size; i++) {
        int64_t n_arrived = atomic_load(&g->member[i].n_arrived);

        if (n_arrived >= k)
            continue;
        print_member(g, i, name, sizeof(name));
        used +=
            (size_t)snprintf(text + used, size - used, "%s%s (", used > 0 ? ", " : "", name);
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

/* Returns the first of the members that have not arrived at barrier k if all of them wait in
 * other groups; -1 otherwise. */
static int find_waiting(const ch_group *g, int64_t k)
{
    int first = -1;

    for (int i = 0; i < g->n; i++) {
        const ch_run_member *m = &g->sync->member[g->member[i].run_member];

        if (atomic_load(&g->member[i].n_arrived) >= k)
            continue;
        if (atomic_load(&m->waits_in) == NULL)
            return -1;
        first = first < 0 ? i : first;
    }
    return first;
}

/* Prints the members that have not arrived at barrier k, and their calls. If all of them wait
 * for members of another group, prints these after the first: "replica 1, core 1, which waits
 * for replica 1, core 0 (at no barrier of this run), in matmul, at train.c:41". */
static void print_late(const ch_group *g, int64_t k, char *text, size_t size)
{
    char   name[CH_MEMBER_NAME];
    size_t used = 0;

    for (int depth = 0; depth < g->sync->n && used + 400 < size; depth++) {
        int                  i = find_waiting(g, k);
        const ch_run_member *m;
        const ch_group      *next;

        if (i < 0)
            break;
        m = &g->sync->member[g->member[i].run_member];
        next = atomic_load(&m->waits_in);
        if (next == NULL)
            break;
        print_member(g, i, name, sizeof(name));
        used += (size_t)snprintf(text + used, size - used, "%s, which waits for ", name);
        k = atomic_load(&m->waits_for);
        g = next;
    }
    list_missing(g, k, true, text + used, size - used);
    if (text[used] == '\0')
        (void)snprintf(text + used, size - used, "a member that has arrived since");
}

/* Returns DEADLINE_EXCEEDED, with the missing members and the setting of the limit. */
static ch_status fail_overdue(const ch_group *g, int me, int64_t k, int64_t limit_ms)
{
    char missing[800], name[CH_MEMBER_NAME];

    print_late(g, k, missing, sizeof(missing));
    print_member(g, me, name, sizeof(name));
    return ch__fail(
        CH_DEADLINE_EXCEEDED,
        "%s, barrier %lld of this run: %s waited %lld ms for %s; "
        "%s sets the limit",
        atomic_load(&g->member[me].label), (long long)k, name, (long long)limit_ms, missing,
        g->member[me].limit_ms > 0 ? "timeout_seconds of the call's communication options"
        : g->limit_ms > 0          ? "timeout_seconds of the strategy's communication options"
                                   : "COHORT_WAIT_LIMIT_MS");
}

/* Parks until barrier k is complete, the run is aborted, or the time limit has passed. */
static ch_status park(ch_group *g, int me, int64_t k, const char *label)
{
    int64_t        limit_ms = g->member[me].limit_ms > 0 ? g->member[me].limit_ms
                              : g->limit_ms > 0          ? g->limit_ms
                                                         : ch__config()->wait_limit_ms;
    int64_t        begin = ch__now_ns();
    ch_group_sync *s = g->sync;
    char           missing[512];
    ch_status      rc = CH_OK;

    list_missing(g, k, false, missing, sizeof(missing));
    for (;;) {
        unsigned seen = atomic_load(&s->gate);

        if (all_arrived(g, k))
            return CH_OK;
        if (atomic_load(&s->is_aborted))
            return fail_aborted(label);
        if (rc != CH_OK)
            return fail_overdue(g, me, k, limit_ms);
        rc = ch__gate_wait_for(&s->gate, seen, limit_ms - (ch__now_ns() - begin) / 1000000,
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
        g->sync->n_arrivals++;
        return;
    }
    atomic_store(&m->n_arrived, k);
    if (all_arrived(g, k) && atomic_load(&g->sync->n_parked) > 0)
        ch__gate_open(&g->sync->gate);
}

/* Blocks until barrier k is complete: spins first, then parks. */
static ch_status wait_for_all(ch_group *g, int me, int64_t k, const char *label)
{
    ch_run_member *m;
    ch_status      rc;

    for (int i = 0; i < g->spin; i++) {
        if (all_arrived(g, k))
            return CH_OK;
        if (atomic_load_explicit(&g->sync->is_aborted, memory_order_relaxed))
            break;
        ch__relax();
    }
    m = &g->sync->member[g->member[me].run_member];
    atomic_fetch_add(&g->sync->n_parked, 1);
    atomic_store(&m->waits_for, k);
    atomic_store(&m->waits_in, g);
    rc = park(g, me, k, label);
    atomic_store(&m->waits_in, NULL);
    atomic_fetch_sub(&g->sync->n_parked, 1);
    return rc;
}

/* Returns CH__BLOCKED, for members that run in turns. Every other member of the run had a turn
 * since the last call. If none of them has arrived at a barrier of any group since then, none
 * ever will: that is an error. */
static ch_status wait_in_turns(ch_group *g, int me, int64_t k, const char *label)
{
    ch_member *m = &g->member[me];
    char       missing[512], name[CH_MEMBER_NAME];

    if (atomic_load(&g->sync->is_aborted))
        return fail_aborted(label);
    if (m->blocked_at != g->sync->n_arrivals) {
        m->blocked_at = g->sync->n_arrivals;
        return CH__BLOCKED;
    }
    list_missing(g, k, false, missing, sizeof(missing));
    print_member(g, me, name, sizeof(name));
    return ch__fail(CH_INTERNAL,
                    "%s, barrier %lld of this run: %s waits for %s, which cannot arrive", label,
                    (long long)k, name, missing);
}

ch_status ch__group_wait(ch_group *g, int me, const char *label)
{
    int64_t   k = atomic_load_explicit(&g->member[me].n_arrived, memory_order_relaxed);
    ch_clock *clock;
    ch_pause  before;
    ch_status rc;

    if (all_arrived(g, k))
        return CH_OK;
    if (g->in_turns)
        return wait_in_turns(g, me, k, label);
    if (g->sync->run.clock == NULL)
        return wait_for_all(g, me, k, label);
    clock = &g->sync->run.clock[g->member[me].run_member];
    before = ch__clock_pause(clock);
    rc = wait_for_all(g, me, k, label);
    ch__clock_resume(clock, before, label);
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

/* ---- the functions for graph/run.h ---- */

/* Returns true if all members continue after barrier k. The first member that calls this
 * decides for all. */
static bool decide(ch_group_sync *s, int64_t k, bool proceed)
{
    int64_t decided = atomic_load(&s->decision);

    while (decided >> 1 < k)
        if (atomic_compare_exchange_weak(&s->decision, &decided, 2 * k + proceed))
            return proceed;
    return (decided & 1) != 0;
}

/* Returns CH_OK on all members, or on none. */
static ch_status commit(void *group, int member)
{
    ch_group   *g = group;
    const char *label = "the end of the step";
    ch_status   rc = ch__group_barrier(g, member, label);
    int64_t     k = atomic_load_explicit(&g->member[member].n_arrived, memory_order_relaxed);

    if (rc != CH_OK && rc != CH_DEADLINE_EXCEEDED)
        return rc; /* a member has failed, and will never arrive */
    if (decide(g->sync, k, rc == CH_OK))
        return CH_OK;
    return rc != CH_OK ? rc : fail_aborted(label);
}

static ch_current_call *doing(void *group, int member)
{
    return &((ch_group *)group)->sync->member[member].doing;
}

/* Ends all waits of this run with CH_ABORTED, now and later. */
static void abort_run(void *group)
{
    ch_group_sync *s = ((ch_group *)group)->sync;

    atomic_store(&s->is_aborted, true);
    ch__gate_open(&s->gate);
}

static void reset_member(ch_member *m)
{
    atomic_store(&m->n_arrived, 0);
    m->next_slot = m->next_set = 0;
    m->open_sum = m->begun = NULL;
    m->is_closing = false;
    m->limit_ms = 0;
    m->barrier = 0;
    m->blocked_at = -1;
}

/* Prepares all groups for a run. */
static void reset(void *group, const ch_group_run *run)
{
    ch_group_sync *s = ((ch_group *)group)->sync;

    s->run = *run;
    s->n_arrivals = 0;
    atomic_store(&s->is_aborted, false);
    atomic_store(&s->decision, 0);
    for (int i = 0; i < s->n; i++)
        atomic_store(&s->member[i].doing, NULL);
    for (ch_group *g = s->groups; g != NULL; g = g->next) {
        g->in_turns = run->in_turns;
        for (int i = 0; i < g->n; i++)
            reset_member(&g->member[i]);
    }
}

const ch_group_ops ch__group_ops = {doing, commit, abort_run, reset, ch__group_cross_bytes};
