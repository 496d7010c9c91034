/* ops/draw.c -- random words for the elements of an output.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ops/draw.h"

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

int64_t ch__draw(const ch_philox_table *t, const ch_philox *s, const ch_chunks *c,
                 int64_t chunk, uint32_t *w)
{
    int64_t left = c->n - chunk * c->each, n = left < c->each ? left : c->each;

    t->words(s, chunk * (CH_PHILOX_CHUNK / CH_PHILOX_GROUP),
             (n * c->words + CH_PHILOX_GROUP - 1) / CH_PHILOX_GROUP, w);
    return n;
}
