/* collective/cross.c -- the implementations of ch_cross_device, which add the members' arrays.
 *
 * group.c calls the function that ch__cross_of returns. ch_addends describes the arrays, a
 * `share` is a member's part of them, and a `piece` is the part of a share in an array. Arrays
 * are divided at cache lines.
 *
 * Invariants of all implementations:
 *   1. Between two barriers an element of an array is written by at most one member, and no
 *      other member then reads it. in and out may be the same memory.
 *   2. The result has the same bits on every member, because each element is computed by one
 *      member and copied, or by all members in the same order.
 *   3. The order of additions depends on the position of an element in its array at most, never
 *      on the other arrays of the reduction, nor on time.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "collective/member.h"
#include "kernel/accumulate.h"

static const char *const label = "all_reduce";

/* ---- shares ---- */

/* Elements [from, to) of an array. */
typedef struct piece {
    int      set; /* index of ch_member.arrays */
    int      array;
    ch_dtype dtype;
    int64_t  from, to;
} piece;

/* Returns the size in cache lines. Shares are whole lines, so that no two members write
 * to the same line. */
static int64_t lines_of(const ch_addend *a)
{
    return ch__units(a->count * (int64_t)ch_dtype_bytes(a->dtype), CH_ALIGN);
}

/* Returns the elements of an array that are in these cache lines. */
static piece piece_of(const ch_addends *s, int array, int64_t from_line, int64_t to_line)
{
    const ch_addend *a = &s->array[array];
    int64_t          each = CH_ALIGN / (int64_t)ch_dtype_bytes(a->dtype);

    return (piece){0, array, a->dtype, ch__min(from_line * each, a->count),
                   ch__min(to_line * each, a->count)};
}

/* A member's share of the concatenation of all arrays. The shares of the members are equal,
 * whatever the sizes of the arrays. */
typedef struct share {
    int64_t from, to;    /* cache lines of the concatenation */
    int     array;       /* the next array to visit */
    int64_t array_begin; /* its first line */
} share;

/* Returns share `part` of `parts`. */
static share share_of(const ch_addends *s, int part, int parts)
{
    int64_t lines = 0;

    for (int i = 0; i < s->n; i++)
        lines += lines_of(&s->array[i]);
    return (share){.from = lines * part / parts, .to = lines * (part + 1) / parts};
}

/* Sets *out to the next piece of a share. Returns false after the last piece. */
static bool next_piece(const ch_addends *s, share *h, piece *out)
{
    while (h->array < s->n && h->array_begin < h->to) {
        int     i = h->array++;
        int64_t begin = h->array_begin, lines = lines_of(&s->array[i]);
        int64_t from = h->from > begin ? h->from - begin : 0;

        h->array_begin += lines;
        *out = piece_of(s, i, from, ch__min(h->to - begin, lines));
        if (out->from < out->to)
            return true;
    }
    return false;
}

/* Return the address of a piece in the input, or the output, of a member. */
static const void *in_at(const ch_group *g, int member, const piece *p)
{
    return (const char *)g->member[member].arrays[p->set].in[p->array] +
           p->from * (int64_t)ch_dtype_bytes(p->dtype);
}

static void *out_at(const ch_group *g, int member, const piece *p)
{
    return (char *)g->member[member].arrays[p->set].out[p->array] +
           p->from * (int64_t)ch_dtype_bytes(p->dtype);
}

static int64_t bytes_of(const piece *p)
{
    return (p->to - p->from) * (int64_t)ch_dtype_bytes(p->dtype);
}

static int divisor_of(const ch_group *g, const ch_addends *s)
{
    return s->op == CH_MEAN ? g->n : 1;
}

/* Adds the inputs of members [begin, end), in this order, and writes the sum to n outputs. */
static void add_up(const ch_group *g, const piece *p, int begin, int end, int n,
                   void *const *to, int divisor)
{
    const void *src[CH_GROUP_MAX];

    for (int i = begin; i < end; i++)
        src[i - begin] = in_at(g, i, p);
    ch__accumulate_all(p->dtype, p->to - p->from, end - begin, src, n, to, divisor);
}

static void outs_of(const ch_group *g, const piece *p, void **to)
{
    for (int i = 0; i < g->n; i++)
        to[i] = out_at(g, i, p);
}

static void copy_piece(const piece *p, const void *from, void *to)
{
    if (from != to && p->from < p->to)
        memcpy(to, from, (size_t)(p->to - p->from) * ch_dtype_bytes(p->dtype));
}

/* ---- shared: each member adds its share of all members' arrays, in place ---- */

/* Returns the offset of array i in a slot. For i = n, returns the bytes of all arrays. */
static int64_t slot_begin(const ch_addends *s, int i)
{
    int64_t at = 0;

    for (int k = 0; k < i && at <= CH_SLOT_BYTES; k++)
        at += lines_of(&s->array[k]) * CH_ALIGN;
    return at;
}

static int64_t total_bytes(const ch_addends *s)
{
    int64_t bytes = 0;

    for (int i = 0; i < s->n; i++)
        bytes += s->array[i].count * (int64_t)ch_dtype_bytes(s->array[i].dtype);
    return bytes;
}

static bool is_small(const ch_addends *s)
{
    return slot_begin(s, s->n) <= CH_SLOT_BYTES;
}

/* Adds all slots. Every member computes the whole sum, because it is small. */
static void add_slots(const ch_group *g, int me, const ch_addends *s, int slot,
                      void *const *out)
{
    const void *src[CH_GROUP_MAX];

    for (int i = 0; i < s->n; i++) {
        for (int r = 0; r < g->n; r++)
            src[r] = ch__slot(g, r, slot) + slot_begin(s, i);
        ch__accumulate_all(s->array[i].dtype, s->array[i].count, g->n, src, 1, &out[i],
                           divisor_of(g, s));
    }
    ch__count_cross(g, me, (g->n - 1) * total_bytes(s));
}

/* Adds this member's share, and writes it to the outputs of all members. */
static void add_share(const ch_group *g, int me, const ch_addends *s, int set)
{
    share h = share_of(s, me, g->n);
    void *to[CH_GROUP_MAX];
    piece p;

    while (next_piece(s, &h, &p)) {
        p.set = set;
        outs_of(g, &p, to);
        add_up(g, &p, 0, g->n, g->n, to, divisor_of(g, s));
        ch__count_cross(g, me, 2 * (g->n - 1) * bytes_of(&p));
    }
}

/* Publishes the arrays for the other members to read. */
static void publish(ch_group *g, int me, const void *const *in, void *const *out)
{
    ch_member *m = &g->member[me];

    m->arrays[m->next_set] = (ch_reduce_arrays){in, out};
}

ch_status ch__shared_begin(ch_group *g, int me, const ch_addends *s, const void *const *in,
                           void *const *out)
{
    ch_member *m = &g->member[me];
    bool       small = is_small(s);
    ch_status  rc = ch__shared_complete(g, me); /* a second reduction must not be open */

    if (rc != CH_OK)
        return rc;
    publish(g, me, in, out);
    for (int i = 0; small && i < s->n; i++)
        if (s->array[i].count > 0)
            memcpy(ch__slot(g, me, m->next_slot) + slot_begin(s, i), in[i],
                   (size_t)s->array[i].count * ch_dtype_bytes(s->array[i].dtype));
    ch__group_arrive(g, me, label);
    m->open_sum = s;
    m->open_set = m->next_set;
    m->open_slot = m->next_slot;
    m->next_set ^= 1;
    m->next_slot ^= small;
    return CH_OK;
}

/* A small sum is complete on return. A large sum needs a further barrier (is_closing), because
 * every member writes a part of it. */
ch_status ch__shared_complete(ch_group *g, int me)
{
    ch_member        *m = &g->member[me];
    const ch_addends *s = m->open_sum;
    int64_t           limit_ms = m->limit_ms; /* of the next collective */
    ch_status         rc;

    if (s == NULL)
        return CH_OK;
    m->limit_ms = s->limit_ms;
    rc = ch__group_wait(g, me, label);
    m->limit_ms = limit_ms;
    if (rc != CH_OK)
        return rc;
    bool small = is_small(s);
    m->open_sum = NULL;
    m->is_closing = !small;
    m->closing_limit_ms = s->limit_ms;
    if (small)
        add_slots(g, me, s, m->open_slot, m->arrays[m->open_set].out);
    else
        add_share(g, me, s, m->open_set);
    return CH_OK;
}

/* The arguments of the other implementations. Action 0 of each publishes the arrays. */
typedef struct sum_args {
    const ch_addends  *s;
    const void *const *in;
    void *const       *out;
} sum_args;

/* ---- one device: member 0 adds everything, and the others copy the result ---- */

static ch_status one_device_act(ch_group *g, int me, int k, const void *args)
{
    const sum_args *x = args;
    share           h = share_of(x->s, 0, 1);
    piece           p;

    if (k == 0)
        publish(g, me, x->in, x->out);
    while (k == 1 && me == 0 && next_piece(x->s, &h, &p)) {
        void *to = out_at(g, 0, &p);

        add_up(g, &p, 0, g->n, 1, &to, divisor_of(g, x->s));
        ch__count_cross(g, 0, (g->n - 1) * bytes_of(&p));
    }
    while (k == 2 && me != 0 && next_piece(x->s, &h, &p)) {
        copy_piece(&p, out_at(g, 0, &p), out_at(g, me, &p));
        ch__count_cross(g, me, bytes_of(&p));
    }
    return CH_OK;
}

static ch_status one_device(ch_group *g, int me, const ch_addends *s, const void *const *in,
                            void *const *out)
{
    return ch__group_perform(g, me, &(ch_routine){label, 3, one_device_act},
                             &(sum_args){s, in, out});
}

/* ---- hierarchical: sums within two halves of the group, then across ---- */

/* Returns the size of the first half of n members, which is larger by one if n is odd. */
static int first_half(int n)
{
    return (n + 1) / 2;
}

/* Returns the share of a member in the sum of its half, and sets [*begin, *end) to the half. */
static share share_within(const ch_addends *s, int n, int me, int *begin, int *end)
{
    int middle = first_half(n);

    *begin = me < middle ? 0 : middle;
    *end = me < middle ? middle : n;
    return share_of(s, me - *begin, *end - *begin);
}

/* Return the arrays of other members that a member of n reads and writes, for each byte of its
 * share within its half, and across the halves. */
static int others_within(int me, int begin, int end)
{
    return end - begin - 1 + (me != begin);
}
static int others_across(int n, int me)
{
    return (me != 0) + (me != first_half(n)) + n - 1;
}

/* Adds this member's share of the sum of its half, in the output of the half's first member. */
static void add_within(const ch_group *g, int me, const ch_addends *s)
{
    int   begin, end;
    share within = share_within(s, g->n, me, &begin, &end);
    piece p;

    while (next_piece(s, &within, &p)) {
        void *to = out_at(g, begin, &p);

        add_up(g, &p, begin, end, 1, &to, 1);
        ch__count_cross(g, me, others_within(me, begin, end) * bytes_of(&p));
    }
}

/* Adds this member's share of the two sums. */
static void add_across(const ch_group *g, int me, const ch_addends *s)
{
    share across = share_of(s, me, g->n);
    void *to[CH_GROUP_MAX];
    piece p;

    while (next_piece(s, &across, &p)) {
        const void *half[] = {out_at(g, 0, &p), out_at(g, first_half(g->n), &p)};

        outs_of(g, &p, to);
        ch__accumulate_all(p.dtype, p.to - p.from, 2, half, g->n, to, divisor_of(g, s));
        ch__count_cross(g, me, others_across(g->n, me) * bytes_of(&p));
    }
}

static ch_status hierarchical_act(ch_group *g, int me, int k, const void *args)
{
    const sum_args *x = args;

    if (k == 0)
        publish(g, me, x->in, x->out);
    else if (k == 1)
        add_within(g, me, x->s);
    else if (k == 2)
        add_across(g, me, x->s);
    return CH_OK;
}

static ch_status hierarchical(ch_group *g, int me, const ch_addends *s, const void *const *in,
                              void *const *out)
{
    return ch__group_perform(g, me, &(ch_routine){label, 3, hierarchical_act},
                             &(sum_args){s, in, out});
}

/* ---- ring: each member passes chunks to the next ---- */

/* Returns chunk c (modulo n) of an array. Each array is divided by itself, so that the order of
 * additions does not depend on the other arrays. */
static piece chunk(int n, const ch_addends *s, int array, int c)
{
    int64_t lines = lines_of(&s->array[array]);

    c = (c + 2 * n) % n;
    return piece_of(s, array, lines * c / n, lines * (c + 1) / n);
}

/* Adds chunk me - 1 - k of this member to the partial sum of that chunk that the previous
 * member has. The partial sum of a chunk began at the member with the chunk's number. */
static void add_chunk(const ch_group *g, int me, const ch_addends *s, int array, int k)
{
    int         previous = (me + g->n - 1) % g->n;
    piece       p = chunk(g->n, s, array, me - 1 - k);
    const void *src[] = {k == 0 ? in_at(g, previous, &p) : out_at(g, previous, &p),
                         in_at(g, me, &p)};
    void *to = out_at(g, me, &p);

    ch__accumulate_all(p.dtype, p.to - p.from, 2, src, 1, &to,
                       k == g->n - 2 ? divisor_of(g, s) : 1);
    ch__count_cross(g, me, bytes_of(&p));
}

/* Copies chunk me - k, which is complete on the previous member. */
static void copy_chunk(const ch_group *g, int me, const ch_addends *s, int array, int k)
{
    piece p = chunk(g->n, s, array, me - k);

    copy_piece(&p, out_at(g, (me + g->n - 1) % g->n, &p), out_at(g, me, &p));
    ch__count_cross(g, me, bytes_of(&p));
}

/* Actions 1 to n - 1 add; the next n - 1 actions copy. */
static ch_status ring_act(ch_group *g, int me, int k, const void *args)
{
    const sum_args *x = args;

    if (k == 0)
        publish(g, me, x->in, x->out);
    for (int i = 0; k >= 1 && i < x->s->n; i++)
        if (k < g->n)
            add_chunk(g, me, x->s, i, k - 1);
        else if (k < 2 * g->n - 1)
            copy_chunk(g, me, x->s, i, k - g->n);
    return CH_OK;
}

static ch_status ring(ch_group *g, int me, const ch_addends *s, const void *const *in,
                      void *const *out)
{
    return ch__group_perform(g, me, &(ch_routine){label, 2 * g->n - 1, ring_act},
                             &(sum_args){s, in, out});
}

/* ---- the bytes that a member counts, without a reduction ---- */

static int64_t bytes_of_share(const ch_addends *s, share h)
{
    int64_t bytes = 0;
    piece   p;

    while (next_piece(s, &h, &p))
        bytes += bytes_of(&p);
    return bytes;
}

static int64_t bytes_of_halves(int n, int me, const ch_addends *s)
{
    int   begin, end;
    share within = share_within(s, n, me, &begin, &end);

    return others_within(me, begin, end) * bytes_of_share(s, within) +
           others_across(n, me) * bytes_of_share(s, share_of(s, me, n));
}

static int64_t bytes_of_ring(int n, int me, const ch_addends *s)
{
    int64_t bytes = 0;

    for (int i = 0; i < s->n; i++)
        for (int k = 0; k < n - 1; k++) {
            piece added = chunk(n, s, i, me - 1 - k), copied = chunk(n, s, i, me - k);

            bytes += bytes_of(&added) + bytes_of(&copied);
        }
    return bytes;
}

int64_t ch__cross_bytes(ch_cross_fn cross, int n, int me, const ch_addends *s)
{
    if (n == 1)
        return 0;
    if (cross == one_device)
        return (me == 0 ? n - 1 : 1) * total_bytes(s);
    if (cross == hierarchical)
        return bytes_of_halves(n, me, s);
    if (cross == ring)
        return bytes_of_ring(n, me, s);
    return is_small(s) ? (n - 1) * total_bytes(s)
                       : 2 * (n - 1) * bytes_of_share(s, share_of(s, me, n));
}

/* ---- the same sums on the calling thread ---- */

/* Adds in the order of `hierarchical`. `other` is memory for the second half's sum. */
static void add_halves(ch_dtype t, int64_t count, int n, const void *const *src, void *dst,
                       void *other, int divisor)
{
    int         middle = (n + 1) / 2;
    const void *half[] = {dst, other};

    ch__accumulate(t, count, n - middle, src + middle, other, 1);
    ch__accumulate(t, count, middle, src, dst, 1);
    ch__accumulate(t, count, 2, half, dst, divisor);
}

/* Adds in the order of `ring`. */
static void add_round(ch_dtype t, int64_t count, int n, const void *const *src, void *dst,
                      int divisor)
{
    ch_addend  array = {t, count};
    ch_addends s = {.n = 1, .array = &array};
    size_t     bytes = ch_dtype_bytes(t);
    int64_t    lines = lines_of(&array);

    for (int c = 0; c < n; c++) {
        piece p = piece_of(&s, 0, lines * c / n, lines * (c + 1) / n);
        char *to = (char *)dst + (size_t)p.from * bytes;

        for (int k = 1; k < n; k++) {
            const void *two[] = {k == 1 ? (const char *)src[c] + (size_t)p.from * bytes : to,
                                 (const char *)src[(c + k) % n] + (size_t)p.from * bytes};

            ch__accumulate(t, p.to - p.from, 2, two, to, k == n - 1 ? divisor : 1);
        }
    }
}

/* If memory for a half is exhausted, adds in the order of the arrays; the bits may differ. */
void ch__reduce_on_one_thread(ch_cross_device cross, ch_dtype t, int64_t count, int n,
                              const void *const *src, void *dst, int divisor)
{
    void *half = cross == CH_CROSS_HIERARCHICAL && n > 2 && count > 0
                     ? ch__malloc((size_t)count * ch_dtype_bytes(t))
                     : NULL;

    if (half != NULL)
        add_halves(t, count, n, src, dst, half, divisor);
    else if (cross == CH_CROSS_RING && n > 2)
        add_round(t, count, n, src, dst, divisor);
    else
        ch__accumulate(t, count, n, src, dst, divisor);
    ch__free(half);
}

ch_cross_fn ch__cross_of(ch_cross_device how)
{
    static const ch_cross_fn by_name[] = {
        [CH_CROSS_AUTO] = ch__shared_begin,
        [CH_CROSS_SHARED] = ch__shared_begin,
        [CH_CROSS_ONE_DEVICE] = one_device,
        [CH_CROSS_HIERARCHICAL] = hierarchical,
        [CH_CROSS_RING] = ring,
    };

    return by_name[how];
}
