/* graph/memory.c -- assigns offsets in an arena to buffers with limited lifetimes.
 *
 * Buffers are placed in some order. Each buffer gets the lowest gap that is large enough, among
 * the placed buffers whose lifetimes overlap. The size of the arena depends on the order.
 * Several orders are tried, and the smallest arena is used. Finding the best order is NP-hard.
 * In practice the best of these orders is within a few percent of the lower bound, and mostly
 * equal to it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "graph/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"

int ch__buffers_add(ch_buffers *b, size_t bytes, int from, int to)
{
    /* While the sum of all sizes fits in 63 bits, no offset can overflow. */
    if (bytes > PTRDIFF_MAX - CH_ALIGN)
        return -1;
    bytes = ch__aligned(bytes);
    if (bytes > PTRDIFF_MAX - b->total ||
        !ch__grow((void **)&b->at, &b->cap, b->n + 1, sizeof(*b->at)))
        return -1;
    b->total += bytes;
    b->at[b->n] = (ch_memory_span){.bytes = bytes, .from = from, .to = to};
    return b->n++;
}

void ch__buffers_drop(ch_buffers *b)
{
    ch__free(b->at);
    *b = (ch_buffers){0};
}

static int compare(uint64_t a, uint64_t b)
{
    return a < b ? 1 : a > b ? -1 : 0; /* larger first */
}

static int by_time(const ch_memory_span *a, const ch_memory_span *b)
{
    return a->from != b->from ? a->from - b->from : a->to - b->to;
}

static int by_size(const void *x, const void *y)
{
    const ch_memory_span *a = *(ch_memory_span *const *)x, *b = *(ch_memory_span *const *)y;
    int                   c = compare(a->bytes, b->bytes);

    return c != 0 ? c : by_time(a, b);
}

static int by_duration(const void *x, const void *y)
{
    const ch_memory_span *a = *(ch_memory_span *const *)x, *b = *(ch_memory_span *const *)y;
    int                   c = (b->to - b->from) - (a->to - a->from);

    return c != 0 ? c : by_size(x, y);
}

static int by_area(const void *x, const void *y)
{
    const ch_memory_span *a = *(ch_memory_span *const *)x, *b = *(ch_memory_span *const *)y;
    int                   c = compare((uint64_t)a->bytes * (uint64_t)(a->to - a->from + 1),
                                      (uint64_t)b->bytes * (uint64_t)(b->to - b->from + 1));

    return c != 0 ? c : by_time(a, b);
}

static int by_start(const void *x, const void *y)
{
    const ch_memory_span *a = *(ch_memory_span *const *)x, *b = *(ch_memory_span *const *)y;
    int                   c = a->from - b->from;

    return c != 0 ? c : by_size(x, y);
}

/* Computes the lower bound of the arena: the largest number of bytes that are in use at the
 * same time. */
static ch_status peak_live_bytes(const ch_buffers *b, size_t *out)
{
    int     end = 0;
    int64_t now = 0, *change;

    for (int i = 0; i < b->n; i++)
        if (b->at[i].to > end)
            end = b->at[i].to;
    change = ch__calloc((size_t)end + 2, sizeof(*change));
    if (change == NULL)
        return ch__fail_memory("a program");
    for (int i = 0; i < b->n; i++) {
        change[b->at[i].from] += (int64_t)b->at[i].bytes;
        change[b->at[i].to + 1] -= (int64_t)b->at[i].bytes;
    }
    *out = 0;
    for (int t = 0; t <= end; t++) {
        now += change[t];
        if ((size_t)now > *out)
            *out = (size_t)now;
    }
    ch__free(change);
    return CH_OK;
}

/* Returns the lowest offset for `s` among n placed buffers, which are sorted by offset. */
static size_t lowest_gap(ch_memory_span *const *placed, int n, const ch_memory_span *s)
{
    size_t at = 0;

    for (int i = 0; i < n; i++) {
        const ch_memory_span *p = placed[i];

        if (p->to < s->from || p->from > s->to)
            continue;
        if (p->offset >= at + s->bytes)
            return at;
        if (p->offset + p->bytes > at)
            at = p->offset + p->bytes;
    }
    return at;
}

/* Sets the offsets of n buffers in the given order, and returns the size of the arena. `placed`
 * is working memory. */
static size_t assign_in_order(ch_memory_span *const *order, ch_memory_span **placed, int n)
{
    size_t end = 0;

    for (int i = 0; i < n; i++) {
        ch_memory_span *s = order[i];
        int             k = i;

        s->offset = lowest_gap(placed, i, s);
        if (s->offset + s->bytes > end)
            end = s->offset + s->bytes;
        for (; k > 0 && placed[k - 1]->offset > s->offset; k--)
            placed[k] = placed[k - 1];
        placed[k] = s;
    }
    return end;
}

ch_status ch__buffers_assign(ch_buffers *b, size_t *arena, size_t *live)
{
    static int (*const orders[])(const void *, const void *) = {by_size, by_area, by_duration,
                                                                by_start};
    ch_memory_span **order = ch__calloc((size_t)b->n + 1, sizeof(*order));
    ch_memory_span **placed = ch__calloc((size_t)b->n + 1, sizeof(*placed));
    size_t          *best = ch__calloc((size_t)b->n + 1, sizeof(*best));
    ch_status        rc = CH_OK;

    *arena = SIZE_MAX;
    if (order == NULL || placed == NULL || best == NULL)
        rc = ch__fail_memory("a program");
    else
        rc = peak_live_bytes(b, live);
    for (size_t k = 0; rc == CH_OK && k < 4 && *arena > *live; k++) {
        size_t end;

        for (int i = 0; i < b->n; i++)
            order[i] = &b->at[i];
        qsort(order, (size_t)b->n, sizeof(*order), orders[k]);
        end = assign_in_order(order, placed, b->n);
        for (int i = 0; end < *arena && i < b->n; i++)
            best[i] = b->at[i].offset;
        *arena = end < *arena ? end : *arena;
    }
    for (int i = 0; rc == CH_OK && i < b->n; i++)
        b->at[i].offset = best[i];
    ch__free(order);
    ch__free(placed);
    ch__free(best);
    return rc;
}
