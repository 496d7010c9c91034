/* collective/group.c -- collectives on top of barriers: all_reduce, all_gather, broadcast.
 *
 * The kernels of the collective ops call the ch__group_ functions. cross.c has the
 * implementations of all_reduce, barrier.c the barriers and their invariants.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "collective/group.h"

#include <string.h>

#include "base/fault.h"
#include "collective/member.h"
#include "kernel/accumulate.h"

/* Copies all inputs to their outputs. */
static void copy_all(const ch_addends *s, const void *const *in, void *const *out)
{
    for (int i = 0; i < s->n; i++)
        if (in[i] != out[i] && s->array[i].count > 0)
            memcpy(out[i], in[i],
                   (size_t)s->array[i].count * ch_dtype_bytes(s->array[i].dtype));
}

ch_cross_fn ch__cross_in(const ch_group *g, const ch_addends *s)
{
    return s->cross != CH_CROSS_AUTO ? ch__cross_of(s->cross) : g->cross;
}

/* Returns true if the reduction uses CH_CROSS_SHARED. */
static bool is_shared(const ch_group *g, const ch_addends *s)
{
    return ch__cross_in(g, s) == ch__shared_begin;
}

/* Reduces with an implementation other than CH_CROSS_SHARED: the result is
 * complete on return. */
static ch_status reduce_at_once(ch_group *g, int me, const ch_addends *s, const void *const *in,
                                void *const *out)
{
    ch_status rc = ch__group_all_reduce_end(g, me); /* completes the reductions begun before */

    if (rc != CH_OK)
        return rc;
    g->member[me].next_set = 0;
    g->member[me].limit_ms = s->limit_ms;
    rc = ch__cross_in(g, s)(g, me, s, in, out);
    g->member[me].limit_ms = 0;
    return ch__count_collective(g, me, rc);
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
    return ch__count_collective(g, me, rc);
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
    if (g->n == 1)
        return CH_OK;
    rc = ch__shared_begin(g, me, s, (const void *const *)out, out);
    return ch__count_collective(g, me, rc);
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
typedef struct ch_arrays {
    const void *const *in;
    void *const       *out;
    const ch_join     *join;  /* all_gather and reduce_scatter */
    int64_t            total; /* reduce_scatter: bytes of a segment of the input */
    ch_dtype           dtype;
    /* Broadcast: number of arrays, their bytes, and whether they fit into a slot together. */
    int            n;
    const int64_t *bytes;
    bool           is_small;
} ch_arrays;

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
static void gather_one(const ch_group *g, int me, int i, int64_t outer, char *out)
{
    int64_t at = 0, total = run_begin(g, g->n, i);

    for (int r = 0; r < g->n; r++) {
        const char *from = g->member[r].in[i];
        int64_t     run = g->member[r].run[i];

        ch__count_cross(g, me, r != me ? outer * run : 0);
        for (int64_t k = 0; k < outer && run > 0 && from != out; k++)
            memcpy(out + k * total + at, from + k * run, (size_t)run);
        at += run;
    }
}

/* Publishes the arrays for the other members to read. No member still reads the previous ones,
 * because a collective in which `in` is read ends with a barrier. */
static void publish(ch_group *g, int me, const ch_arrays *x)
{
    g->member[me].in = x->in;
    g->member[me].run = x->join != NULL ? x->join->run : NULL;
}

static ch_status gather_act(ch_group *g, int me, int k, const void *args)
{
    const ch_arrays *x = args;

    if (k == 0)
        publish(g, me, x);
    for (int i = 0; k == 1 && i < x->join->n; i++)
        gather_one(g, me, i, x->join->outer, x->out[i]);
    return CH_OK;
}

ch_status ch__group_all_gather(ch_group *g, int me, const ch_join *j, const void *const *in,
                               void *const *out)
{
    static const ch_routine routine = {"all_gather", 2, gather_act};
    ch_status               rc;

    g->member[me].limit_ms = j->limit_ms;
    rc = ch__group_perform(g, me, &routine, &(ch_arrays){.in = in, .out = out, .join = j});
    g->member[me].limit_ms = 0;
    return ch__count_collective(g, me, rc);
}

static const char *const gradient_of_gather = "the gradient of all_gather";

/* Adds this member's segments of all members' arrays. */
static ch_status scatter_share(const ch_group *g, int me, const ch_arrays *x)
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
    ch__count_cross(g, me, (g->n - 1) * run * x->join->outer);
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
    ch_status rc = ch__group_perform(
        g, me, &(ch_routine){gradient_of_gather, 2, scatter_act},
        &(ch_arrays){.in = in, .out = &out, .join = j, .total = total, .dtype = dtype});

    return ch__count_collective(g, me, rc);
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
static void broadcast_put(ch_group *g, int me, const ch_arrays *x)
{
    ch_member *m = &g->member[me];
    char      *slot = ch__slot(g, 0, m->next_slot);

    publish(g, me, x);
    for (int i = 0; me == 0 && x->is_small && i < x->n; i++)
        if (x->bytes[i] > 0)
            memcpy(slot + bytes_in_slot(x->bytes, i), x->in[i], (size_t)x->bytes[i]);
    m->next_slot ^= x->is_small;
}

static void broadcast_take(ch_group *g, int me, const ch_arrays *x)
{
    /* The slot that broadcast_put has used. */
    const char *slot = ch__slot(g, 0, g->member[me].next_slot ^ x->is_small);

    for (int i = 0; i < x->n; i++) {
        const void *from = x->is_small ? slot + bytes_in_slot(x->bytes, i) : g->member[0].in[i];

        if (from != x->out[i] && x->bytes[i] > 0)
            memcpy(x->out[i], from, (size_t)x->bytes[i]);
        ch__count_cross(g, me, me != 0 ? x->bytes[i] : 0);
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
    ch_arrays x = {.in = in, .out = out, .n = n, .bytes = bytes};

    x.is_small = bytes_in_slot(bytes, n) <= CH_SLOT_BYTES;
    return ch__count_collective(
        g, me,
        ch__group_perform(g, me, &(ch_routine){"broadcast", x.is_small ? 1 : 2, broadcast_act},
                          &x));
}
