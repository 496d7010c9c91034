/* net/pending.c -- the table of pending calls and timers: an array, a heap and a hash table.
 *
 * ch_pending_table stores its entries in an array of slots. A binary heap orders the slots by
 * time of expiry. A hash table with linear probing finds calls and timers by (kind, id). The
 * callers are outbox.c (adds), deliver.c (finds, expires, drops), task.c and the engines.
 *
 * Invariants:
 *   1. free_slot holds exactly the slots without an entry. All arrays have room for every slot.
 *   2. An entry that expires has heap >= 0, and t->heap[entry.heap] is its slot. The slot in
 *      t->heap[0] expires first.
 *   3. A call or timer is in the bucket of its hash, or in a later bucket of the same run:
 *      there is no empty bucket between the two.
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

static void bucket_put(ch_pending_table *t, int slot)
{
    int b = bucket_of(t, t->entry[slot].kind, t->entry[slot].id);

    while (t->bucket[b] >= 0)
        b = next_bucket(t, b);
    t->bucket[b] = slot;
}

/* Removes a slot from its bucket. Later slots of the run move up, unless that would put them
 * before the bucket of their hash, so that no search ends at the hole. */
static void bucket_remove(ch_pending_table *t, int slot)
{
    int mask = 2 * t->cap - 1, hole = bucket_of(t, t->entry[slot].kind, t->entry[slot].id);

    while (t->bucket[hole] != slot)
        hole = next_bucket(t, hole);
    for (int b = next_bucket(t, hole); t->bucket[b] >= 0; b = next_bucket(t, b)) {
        const ch_pending *e = &t->entry[t->bucket[b]];
        int               home = bucket_of(t, e->kind, e->id);

        if (((b - home) & mask) >= ((b - hole) & mask)) {
            t->bucket[hole] = t->bucket[b];
            hole = b;
        }
    }
    t->bucket[hole] = -1;
}

/* ---- the heap ---- */

static bool is_before(const ch_pending_table *t, int a, int b)
{
    const ch_pending *x = &t->entry[a], *y = &t->entry[b];

    return x->at < y->at || (x->at == y->at && x->sequence < y->sequence);
}

static void heap_set(ch_pending_table *t, int at, int slot)
{
    t->heap[at] = slot;
    t->entry[slot].heap = at;
}

static void heap_up(ch_pending_table *t, int at, int slot)
{
    while (at > 0 && is_before(t, slot, t->heap[(at - 1) / 2])) {
        heap_set(t, at, t->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    heap_set(t, at, slot);
}

static void heap_down(ch_pending_table *t, int at, int slot)
{
    for (int child; (child = 2 * at + 1) < t->n_heap; at = child) {
        if (child + 1 < t->n_heap && is_before(t, t->heap[child + 1], t->heap[child]))
            child++;
        if (!is_before(t, t->heap[child], slot))
            break;
        heap_set(t, at, t->heap[child]);
    }
    heap_set(t, at, slot);
}

static void heap_add(ch_pending_table *t, int slot)
{
    if (t->entry[slot].at != INT64_MAX)
        heap_up(t, t->n_heap++, slot);
}

static void heap_remove(ch_pending_table *t, int slot)
{
    int at = t->entry[slot].heap, last;

    if (at < 0)
        return;
    t->entry[slot].heap = -1;
    last = t->heap[--t->n_heap];
    if (last == slot)
        return;
    heap_down(t, at, last);
    heap_up(t, t->entry[last].heap, last);
}

/* ---- slots ---- */

/* Returns false and leaves the table unchanged if memory is exhausted. The heap, the free slots
 * and the buckets share a block; the caller must fill the last two. */
static bool grow_to(ch_pending_table *t, int cap)
{
    ch_pending *entry = ch__malloc((size_t)cap * sizeof(*entry));
    int        *more = ch__malloc((size_t)cap * 4 * sizeof(*more));

    if (entry == NULL || more == NULL) {
        ch__free(entry);
        ch__free(more);
        return false;
    }
    for (int i = 0; i < t->cap; i++)
        entry[i] = t->entry[i];
    for (int i = t->cap; i < cap; i++)
        entry[i] = (ch_pending){.heap = -1};
    for (int i = 0; i < t->n_heap; i++)
        more[i] = t->heap[i];
    ch__free(t->entry);
    ch__free(t->heap);
    t->entry = entry;
    t->heap = more;
    t->free_slot = more + cap;
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
    if (t->n_free == cap - t->n)
        return true;
    t->n_free = 0;
    for (int i = 0; i < 2 * cap; i++)
        t->bucket[i] = -1;
    for (int i = cap - 1; i >= 0; i--) /* downwards, so that low slots are used first */
        if (t->entry[i].kind == CH_PENDING_FREE)
            t->free_slot[t->n_free++] = i;
        else if (is_hashed(t->entry[i].kind))
            bucket_put(t, i);
    return true;
}

void ch__pending_free(ch_pending_table *t)
{
    ch__free(t->entry);
    ch__free(t->heap);
    *t = (ch_pending_table){0};
}

ch_pending *ch__pending_add(ch_pending_table *t, ch_pending_kind kind, uint64_t id, int64_t at)
{
    int         i;
    ch_pending *e;

    if (t->n_free == 0)
        return NULL;
    i = t->free_slot[--t->n_free];
    e = &t->entry[i];
    *e = (ch_pending){.kind = kind,
                      .generation = e->generation + 1,
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
    heap_remove(t, (int)(e - t->entry));
    e->at = at;
    e->sequence = t->sequence++;
    heap_add(t, (int)(e - t->entry));
}

void ch__pending_defer(ch_pending_table *t, ch_pending *e, int64_t at)
{
    heap_remove(t, (int)(e - t->entry));
    e->at = at;
    heap_add(t, (int)(e - t->entry));
}

void ch__pending_drop(ch_pending_table *t, ch_pending *e)
{
    int i = (int)(e - t->entry);

    assert(e->kind != CH_PENDING_FREE);
    if (is_hashed(e->kind))
        bucket_remove(t, i);
    heap_remove(t, i);
    e->kind = CH_PENDING_FREE;
    t->free_slot[t->n_free++] = i;
    t->n--;
}

ch_pending *ch__pending_find(const ch_pending_table *t, ch_pending_kind kind, uint64_t id)
{
    if (t->cap == 0)
        return NULL;
    for (int b = bucket_of(t, kind, id); t->bucket[b] >= 0; b = next_bucket(t, b)) {
        ch_pending *e = &t->entry[t->bucket[b]];

        if (e->kind == kind && e->id == id)
            return e;
    }
    return NULL;
}

uint64_t ch__pending_number(const ch_pending_table *t, const ch_pending *e)
{
    return (uint64_t)e->generation << 32 | (uint32_t)(e - t->entry);
}

ch_pending *ch__pending_at(const ch_pending_table *t, ch_pending_kind kind, uint64_t number)
{
    uint32_t    i = (uint32_t)number;
    ch_pending *e = i < (uint32_t)t->cap ? &t->entry[i] : NULL;

    return e != NULL && e->kind == kind && e->generation == number >> 32 ? e : NULL;
}

ch_pending *ch__pending_first(const ch_pending_table *t)
{
    return t->n_heap > 0 ? &t->entry[t->heap[0]] : NULL;
}
