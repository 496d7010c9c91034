/* net/pending.c -- places in an array, a heap over their times, a hash over their ids.
 *
 * Invariants:
 *   1. `spare` holds exactly the places that are free; all arrays have room for every place.
 *   2. A place with a time has heap >= 0 and heap[place.heap] is it; heap[0] is due first.
 *   3. A call or timer is in its bucket or, without a gap between, in one behind it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "net/pending.h"

#include <assert.h>
#include <limits.h>

#include "base/mem.h"

static bool is_hashed(ch_pending_kind kind)
{
    return kind == CH_PENDING_CALL || kind == CH_PENDING_TIMER;
}

static int bucket_of(const ch_pending_table *t, ch_pending_kind kind, uint64_t id)
{
    uint64_t h = (id + (uint64_t)kind * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;

    return (int)((h ^ h >> 32) & (uint64_t)(2 * t->cap - 1));
}

static int next_bucket(const ch_pending_table *t, int b)
{
    return (b + 1) & (2 * t->cap - 1);
}

static void bucket_put(ch_pending_table *t, int place)
{
    int b = bucket_of(t, t->place[place].kind, t->place[place].id);

    while (t->bucket[b] >= 0)
        b = next_bucket(t, b);
    t->bucket[b] = place;
}

/* Those behind it move up where their own bucket allows it, so that no search ends early. */
static void bucket_take(ch_pending_table *t, int place)
{
    int mask = 2 * t->cap - 1, hole = bucket_of(t, t->place[place].kind, t->place[place].id);

    while (t->bucket[hole] != place)
        hole = next_bucket(t, hole);
    for (int b = next_bucket(t, hole); t->bucket[b] >= 0; b = next_bucket(t, b)) {
        const ch_pending *e = &t->place[t->bucket[b]];
        int               home = bucket_of(t, e->kind, e->id);

        if (((b - home) & mask) >= ((b - hole) & mask)) {
            t->bucket[hole] = t->bucket[b];
            hole = b;
        }
    }
    t->bucket[hole] = -1;
}

/* ---- times ---- */

static bool is_before(const ch_pending_table *t, int a, int b)
{
    const ch_pending *x = &t->place[a], *y = &t->place[b];

    return x->at < y->at || (x->at == y->at && x->sequence < y->sequence);
}

static void heap_set(ch_pending_table *t, int at, int place)
{
    t->heap[at] = place;
    t->place[place].heap = at;
}

static void heap_up(ch_pending_table *t, int at, int place)
{
    while (at > 0 && is_before(t, place, t->heap[(at - 1) / 2])) {
        heap_set(t, at, t->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    heap_set(t, at, place);
}

static void heap_down(ch_pending_table *t, int at, int place)
{
    for (int child; (child = 2 * at + 1) < t->n_heap; at = child) {
        if (child + 1 < t->n_heap && is_before(t, t->heap[child + 1], t->heap[child]))
            child++;
        if (!is_before(t, t->heap[child], place))
            break;
        heap_set(t, at, t->heap[child]);
    }
    heap_set(t, at, place);
}

static void heap_add(ch_pending_table *t, int place)
{
    if (t->place[place].at != INT64_MAX)
        heap_up(t, t->n_heap++, place);
}

static void heap_remove(ch_pending_table *t, int place)
{
    int at = t->place[place].heap, last;

    if (at < 0)
        return;
    t->place[place].heap = -1;
    last = t->heap[--t->n_heap];
    if (last == place)
        return;
    heap_down(t, at, last);
    heap_up(t, t->place[last].heap, last);
}

/* ---- places ---- */

static bool grow_to(ch_pending_table *t, int cap)
{
    ch_pending *place = ch__malloc((size_t)cap * sizeof(*place));
    int        *more = ch__malloc((size_t)cap * 4 * sizeof(*more));

    if (place == NULL || more == NULL) {
        ch__free(place);
        ch__free(more);
        return false;
    }
    for (int i = 0; i < t->cap; i++)
        place[i] = t->place[i];
    for (int i = t->cap; i < cap; i++)
        place[i] = (ch_pending){.heap = -1};
    for (int i = 0; i < t->n_heap; i++)
        more[i] = t->heap[i];
    ch__free(t->place);
    ch__free(t->heap);
    t->place = place;
    t->heap = more;
    t->spare = more + cap;
    t->bucket = more + 2 * cap;
    t->cap = cap;
    return true;
}

bool ch__pending_reserve(ch_pending_table *t, int more)
{
    int cap = t->cap > 0 ? t->cap : 128;

    while (cap - t->n < more && cap <= INT_MAX / 8)
        cap *= 2;
    if (cap - t->n < more || (cap > t->cap && !grow_to(t, cap)))
        return false;
    if (t->n_spare == cap - t->n)
        return true;
    t->n_spare = 0;
    for (int i = 0; i < 2 * cap; i++)
        t->bucket[i] = -1;
    for (int i = cap - 1; i >= 0; i--) /* so that low places are given first */
        if (t->place[i].kind == CH_PENDING_FREE)
            t->spare[t->n_spare++] = i;
        else if (is_hashed(t->place[i].kind))
            bucket_put(t, i);
    return true;
}

void ch__pending_free(ch_pending_table *t)
{
    ch__free(t->place);
    ch__free(t->heap);
    *t = (ch_pending_table){0};
}

ch_pending *ch__pending_add(ch_pending_table *t, ch_pending_kind kind, uint64_t id, int64_t at)
{
    int         i;
    ch_pending *e;

    if (t->n_spare == 0)
        return NULL;
    i = t->spare[--t->n_spare];
    e = &t->place[i];
    *e = (ch_pending){.kind = kind,
                      .round = e->round + 1,
                      .heap = -1,
                      .id = id,
                      .at = at,
                      .sequence = t->sequence++};
    t->n++;
    heap_add(t, i);
    if (is_hashed(kind))
        bucket_put(t, i);
    return e;
}

void ch__pending_move(ch_pending_table *t, ch_pending *e, int64_t at)
{
    heap_remove(t, (int)(e - t->place));
    e->at = at;
    e->sequence = t->sequence++;
    heap_add(t, (int)(e - t->place));
}

void ch__pending_drop(ch_pending_table *t, ch_pending *e)
{
    int i = (int)(e - t->place);

    assert(e->kind != CH_PENDING_FREE);
    if (is_hashed(e->kind))
        bucket_take(t, i);
    heap_remove(t, i);
    e->kind = CH_PENDING_FREE;
    t->spare[t->n_spare++] = i;
    t->n--;
}

ch_pending *ch__pending_find(const ch_pending_table *t, ch_pending_kind kind, uint64_t id)
{
    if (t->cap == 0)
        return NULL;
    for (int b = bucket_of(t, kind, id); t->bucket[b] >= 0; b = next_bucket(t, b)) {
        ch_pending *e = &t->place[t->bucket[b]];

        if (e->kind == kind && e->id == id)
            return e;
    }
    return NULL;
}

uint64_t ch__pending_number(const ch_pending_table *t, const ch_pending *e)
{
    return (uint64_t)e->round << 32 | (uint32_t)(e - t->place);
}

ch_pending *ch__pending_at(const ch_pending_table *t, ch_pending_kind kind, uint64_t number)
{
    uint32_t    i = (uint32_t)number;
    ch_pending *e = i < (uint32_t)t->cap ? &t->place[i] : NULL;

    return e != NULL && e->kind == kind && e->round == number >> 32 ? e : NULL;
}

ch_pending *ch__pending_first(const ch_pending_table *t)
{
    return t->n_heap > 0 ? &t->place[t->heap[0]] : NULL;
}
