/* collective/exchange.c -- exchanges: every member of a group reads regions of other members.
 *
 * spmd/ makes the plans (spmd/reshard.h) and calls ch__group_exchange in the kernel of the op
 * exchange. A stage of a plan reads the arrays that the members had before the stage: those of
 * the call in the first stage, and the results of the first stage in the second.
 *
 * Large arrays are read where they are. So a barrier precedes every stage, and another follows
 * the last stage, after which a member may change its array. Small arrays are read in the slots
 * of the group (member.h): then no barrier follows, because slots alternate. The second stage
 * uses the other slot.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/mutant.h"
#include "collective/member.h"
#include "kernel/move.h"

/* An array that holds a region of the value, and an array that receives it. */
typedef struct held {
    const ch_region *region;
    const char      *data;
} held;
typedef struct target {
    const ch_region *region;
    char            *data;
} target;

/* The arguments of a member. */
typedef struct exchange_args {
    const ch_exchange *x;
    const void        *in;
    void              *middle, *out;
    ch_traffic_counts *count;
} exchange_args;

static int64_t bytes_of(const ch_exchange *x, const ch_region *r)
{
    return ch__region_count(r, x->rank) * (int64_t)ch_dtype_bytes(x->dtype);
}

bool ch__exchange_is_small(const ch_exchange *x, int n, const bool *has)
{
    for (int m = 0; m < n; m++)
        if ((has[m] && bytes_of(x, &x->from[m]) > CH_SLOT_BYTES) ||
            (x->n_stages == 2 && x->stage[0][m].has &&
             bytes_of(x, &x->stage[0][m].held) > CH_SLOT_BYTES))
            return false;
    return true;
}

int ch__exchange_barriers(int n_stages, int64_t bytes)
{
    return n_stages + (bytes > CH_SLOT_BYTES);
}

/* Sets the strides, in elements, of a contiguous array of this region. */
static void strides_of(const ch_region *r, int rank, int64_t *stride)
{
    int64_t n = 1;

    for (int k = rank - 1; k >= 0; k--) {
        stride[k] = n;
        n *= r->size[k];
    }
}

/* Returns the index of the first element of `box` in an array of region r. */
static int64_t first_in(const ch_region *box, const ch_region *r, int rank,
                        const int64_t *stride)
{
    int64_t at = 0;

    for (int k = 0; k < rank; k++)
        at += (box->begin[k] - r->begin[k]) * stride[k];
    return at;
}

static void copy_box(const ch_exchange *x, const ch_region *box, held from, const target *to)
{
    int64_t from_stride[CH_MAX_RANK], to_stride[CH_MAX_RANK];
    int64_t each = (int64_t)ch_dtype_bytes(x->dtype);
    ch_move m;

    strides_of(from.region, x->rank, from_stride);
    strides_of(to->region, x->rank, to_stride);
    ch__move_make(&m, x->rank, box->size, from_stride, to_stride, (size_t)each);
    ch__move_pieces(&m, from.data + each * first_in(box, from.region, x->rank, from_stride),
                    to->data + each * first_in(box, to->region, x->rank, to_stride), 0,
                    m.n_pieces);
}

/* Returns the first axis from which on the box is contiguous in an array of region r. */
static int contiguous_from(const ch_region *box, const ch_region *r, int rank)
{
    int k = rank > 0 ? rank - 1 : 0;

    while (k > 0 && box->size[k] == r->size[k])
        k--;
    return k;
}

/* Combines a box of n arrays. at[i] is the index of the next element in array i, at[n] that in
 * the result. The box is a number of runs that are contiguous in all arrays, and the outer axes
 * are walked like an odometer. */
static void combine_box(const ch_exchange *x, const ch_region *box, int n, const held *from,
                        const target *to)
{
    int64_t     stride[CH_GROUP_MAX + 1][CH_MAX_RANK], at[CH_GROUP_MAX + 1];
    int64_t     index[CH_MAX_RANK] = {0}, run = 1, each = (int64_t)ch_dtype_bytes(x->dtype);
    const void *src[CH_GROUP_MAX];
    int         inner = 0, k;

    for (int i = 0; i <= n; i++) {
        const ch_region *r = i < n ? from[i].region : to->region;
        int              axis = contiguous_from(box, r, x->rank);

        strides_of(r, x->rank, stride[i]);
        at[i] = first_in(box, r, x->rank, stride[i]);
        inner = axis > inner ? axis : inner;
    }
    for (k = inner; k < x->rank; k++)
        run *= box->size[k];
    do {
        for (int i = 0; i < n; i++)
            src[i] = from[i].data + at[i] * each;
        ch__combine(x->combiner, x->dtype, run, n, src, to->data + at[n] * each);
        for (k = inner - 1; k >= 0; k--) {
            bool is_last = ++index[k] == box->size[k];

            for (int i = 0; i <= n; i++)
                at[i] += is_last ? -(box->size[k] - 1) * stride[i][k] : stride[i][k];
            if (!is_last)
                break;
            index[k] = 0;
        }
    } while (k >= 0);
}

/* Returns the array that a member has before stage k. */
static held held_before(const ch_group *g, int me, int member, const ch_exchange *x, int k)
{
    /* put has changed next_slot since the members wrote their slots */
    const char *slot = ch__slot(g, member, g->member[me].next_slot ^ 1);

    return (held){k == 0 ? &x->from[member] : &x->stage[k - 1][member].held,
                  x->is_small ? slot : g->member[member].stage_at[k]};
}

/* Returns the array that this member writes in stage k. The result of the first of two stages
 * goes directly to the slot from which the second stage reads. */
static char *target_of(const ch_group *g, int me, const exchange_args *a, int k)
{
    if (k == a->x->n_stages - 1)
        return a->out;
    return a->x->is_small ? ch__slot(g, me, g->member[me].next_slot) : a->middle;
}

/* Performs this member's copies of stage k. */
static void run_stage(ch_group *g, int me, const exchange_args *a, int k)
{
    const ch_exchange      *x = a->x;
    const ch_exchange_work *w = &x->stage[k][me];
    target                  to = {&w->held, target_of(g, me, a, k)};
    held                    from[CH_GROUP_MAX];

    for (int i = 0; w->has && i < w->n; i++) {
        const ch_exchange_copy *c = &w->copy[i];
        int                     n_others = 0;

        if (ch__region_count(&c->region, x->rank) == 0)
            continue;
        for (int s = 0; s < c->n_sources; s++) {
            from[s] = held_before(g, me, c->source[s], x, k);
            n_others += c->source[s] != me;
        }
        if (a->count != NULL)
            a->count->bytes[x->kind] += n_others * bytes_of(x, &c->region);
        if (c->n_sources == 1)
            copy_box(x, &c->region, from[0], &to);
        else
            combine_box(x, &c->region, c->n_sources, from, &to);
    }
}

/* Makes the array that this member has before stage k readable. */
static void put(ch_group *g, int me, const exchange_args *a, int k)
{
    const ch_exchange *x = a->x;
    ch_member         *m = &g->member[me];

    if (!x->is_small)
        m->stage_at[k] = k == 0 ? a->in : a->middle;
    else if (k == 0 && a->in != NULL)
        memcpy(ch__slot(g, me, m->next_slot), a->in, (size_t)bytes_of(x, &x->from[me]));
    m->next_slot ^= x->is_small;
}

/* Action k: stage k - 1, and then the preparation of stage k. */
static ch_status exchange_act(ch_group *g, int me, int k, const void *args)
{
    const exchange_args *a = args;

    if (k > 0 && k <= a->x->n_stages)
        run_stage(g, me, a, k - 1);
    if (k < a->x->n_stages)
        put(g, me, a, k);
    return CH_OK;
}

/* Copies within this member's array, if no member reads from another. */
static void copy_own(int me, const exchange_args *a)
{
    const ch_exchange      *x = a->x;
    const ch_exchange_work *w = &x->stage[0][me];
    held                    from = {&x->from[me], a->in};
    target                  to = {&w->held, a->out};

    for (int i = 0; w->has && i < w->n; i++)
        if (ch__region_count(&w->copy[i].region, x->rank) > 0)
            copy_box(x, &w->copy[i].region, from, &to);
}

ch_status ch__group_exchange(ch_group *g, int me, const ch_exchange *x, const void *in,
                             void *middle, void *out, ch_traffic_counts *count)
{
    exchange_args a = {x, in, middle, out, count};
    bool       leaves = !x->is_small && CH_KEEPS(LEAVE); /* a barrier follows the last stage */
    ch_routine routine = {x->label, x->n_stages + leaves, exchange_act};
    ch_status  rc = CH_OK;

    if (x->kind == CH_TRAFFIC_NONE)
        copy_own(me, &a);
    else if (!CH_KEEPS(ARRIVE))
        for (int k = 0; k <= x->n_stages; k++)
            (void)exchange_act(g, me, k, &a);
    else
        rc = ch__group_perform(g, me, &routine, &a);
    if (rc == CH_OK && count != NULL)
        count->calls[x->kind]++;
    return rc;
}
