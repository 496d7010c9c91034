/* ops/draw.c -- random words for the elements of an output.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ops/draw.h"

#include "tensor/layout.h"

ch_philox ch__draw_stream(const ch_call *c, int64_t own, int64_t ordinal)
{
    ch_philox_name name = {
        .seed = c->env->seed,
        .own = (uint64_t)own,
        .step = c->env->step,
        .iteration = c->env->iteration,
        .ordinal = ordinal > 0 ? (uint32_t)(ordinal - 1) : (uint32_t)c->node->ordinal,
        .replica = (uint32_t)c->env->replica,
    };

    return ch__philox_stream(&name);
}

ch_chunks ch__draw_cut(const ch_node *n, int words, int64_t cost, ch_prep *p)
{
    ch_chunks c = {.n = ch__count(n), .each = CH_PHILOX_CHUNK / words, .words = words};

    c.count = ch__units(c.n, c.each);
    c.tiles = ch__tile_count(c.count, c.each * cost);
    p->n_phases = 1;
    p->tiles[0] = c.tiles;
    return c;
}

/* Words of a range of groups of a stream. */
typedef struct drawn {
    int64_t  group, n; /* groups [group, group + n) */
    uint32_t w[CH_PHILOX_CHUNK];
} drawn;

/* Returns the position of the first word of a draw, in groups that begin with draw 0. The other
 * words are CH_PHILOX_LANES apart. */
static int64_t word_of(int64_t draw, int words)
{
    return draw / CH_PHILOX_LANES * CH_PHILOX_LANES * words + draw % CH_PHILOX_LANES;
}

/* Writes the words of the draws [first, first + n) of the stream to the places of the draws
 * [at, at + n) in w. */
static void move_draws(const ch_philox_table *t, const ch_philox *s, int words, int64_t first,
                       int64_t n, drawn *d, int64_t at, uint32_t *w)
{
    const int64_t each = CH_PHILOX_GROUP / words; /* draws of a group */

    while (n > 0) {
        int64_t group = first / each, end = (first + n - 1) / each + 1, here;

        if (group < d->group || group >= d->group + d->n) {
            d->group = group;
            d->n = end - group;
            if (d->n > CH_PHILOX_CHUNK / CH_PHILOX_GROUP)
                d->n = CH_PHILOX_CHUNK / CH_PHILOX_GROUP;
            t->words(s, d->group, d->n, d->w);
        }
        here = (d->group + d->n) * each - first;
        if (here > n)
            here = n;
        first -= d->group * each;
        for (int64_t i = 0; i < here; i++)
            for (int k = 0; k < words; k++)
                w[word_of(at + i, words) + k * CH_PHILOX_LANES] =
                    d->w[word_of(first + i, words) + k * CH_PHILOX_LANES];
        first += d->group * each + here;
        at += here;
        n -= here;
    }
}

/* Writes the words of elements [from, from + n) of a part of a call. */
static void draw_part(const ch_call *call, const ch_philox_table *t, const ch_philox *s,
                      int words, int64_t from, int64_t n, uint32_t *w)
{
    ch_region_runs r;
    drawn          d = {.n = 0};

    ch__region_runs(ch__out_origin(call), ch__shape(call->node),
                    ch__dims_shape(&call->node->origins->whole_out), &r);
    for (int64_t at = 0; at < n;) {
        int64_t skip = (from + at) % r.length, size = r.length - skip;

        if (size > n - at)
            size = n - at;
        move_draws(t, s, words, ch__region_run(&r, (from + at) / r.length) + skip, size, &d, at,
                   w);
        at += size;
    }
}

int64_t ch__draw(const ch_call *call, const ch_philox_table *t, const ch_philox *s,
                 const ch_chunks *c, int64_t chunk, uint32_t *w)
{
    int64_t left = c->n - chunk * c->each, n = left < c->each ? left : c->each;

    if (call->node->origins != NULL)
        draw_part(call, t, s, c->words, chunk * c->each, n, w);
    else
        t->words(s, chunk * (CH_PHILOX_CHUNK / CH_PHILOX_GROUP),
                 (n * c->words + CH_PHILOX_GROUP - 1) / CH_PHILOX_GROUP, w);
    return n;
}
