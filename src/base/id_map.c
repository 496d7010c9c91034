/* base/id_map.c -- a table of pointers by two numbers: open addressing, at most half full.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/id_map.h"

#include <stdbool.h>

#include "base/fault.h"
#include "base/mem.h"

static uint64_t place_of(ch_key k)
{
    uint64_t h = (k.a ^ (k.b * 0xD6E8FEB86659FD93u)) * 0x9E3779B97F4A7C15u;

    return h ^ (h >> 29);
}

static bool is_key(const ch_map_entry *e, ch_key k)
{
    return e->key.a == k.a && e->key.b == k.b;
}

/* The entry of a key, or the free one where it would be. */
static ch_map_entry *entry_of(const ch_map *m, ch_key key)
{
    uint64_t at = place_of(key), mask = (uint64_t)m->cap - 1;

    while (m->entry[at & mask].value != NULL && !is_key(&m->entry[at & mask], key))
        at++;
    return &m->entry[at & mask];
}

void *ch__map_find(const ch_map *m, ch_key key)
{
    return m->n > 0 ? entry_of(m, key)->value : NULL;
}

static ch_status grow(ch_map *m)
{
    ch_map to = {.cap = m->cap > 0 ? 2 * m->cap : 16};

    to.entry = ch__calloc((size_t)to.cap, sizeof(*to.entry));
    if (to.entry == NULL)
        return ch__fail_memory("a table");
    for (int i = 0; i < m->cap; i++)
        if (m->entry[i].value != NULL) {
            *entry_of(&to, m->entry[i].key) = m->entry[i];
            to.n++;
        }
    ch__free(m->entry);
    *m = to;
    return CH_OK;
}

ch_status ch__map_set(ch_map *m, ch_key key, void *value)
{
    ch_map_entry *e;
    ch_status     rc = 2 * (m->n + 1) > m->cap ? grow(m) : CH_OK;

    if (rc != CH_OK)
        return rc;
    e = entry_of(m, key);
    m->n += e->value == NULL;
    *e = (ch_map_entry){key, value};
    return CH_OK;
}

/* Those behind it move up, so that nobody stops looking too early. */
static void close_gap(ch_map *m, int gap)
{
    int mask = m->cap - 1;

    for (int i = (gap + 1) & mask; m->entry[i].value != NULL; i = (i + 1) & mask) {
        int home = (int)(place_of(m->entry[i].key) & (uint64_t)mask);

        if (((i - home) & mask) >= ((i - gap) & mask)) {
            m->entry[gap] = m->entry[i];
            gap = i;
        }
    }
    m->entry[gap].value = NULL;
}

void *ch__map_remove(ch_map *m, ch_key key)
{
    ch_map_entry *e = m->n > 0 ? entry_of(m, key) : NULL;
    void         *value = e != NULL ? e->value : NULL;

    if (value == NULL)
        return NULL;
    m->n--;
    close_gap(m, (int)(e - m->entry));
    return value;
}

/* Who moves into a gap comes from behind it, or, round the end, from where all have been asked: so places are asked until they
 * hold what stays, and nobody is passed over. */
void ch__map_sift(ch_map *m, bool (*when)(void *arg, ch_key key, void *value), void *arg)
{
    for (int i = 0; i < m->cap; i++)
        while (m->entry[i].value != NULL && when(arg, m->entry[i].key, m->entry[i].value)) {
            m->n--;
            close_gap(m, i);
        }
}

void ch__map_drop(ch_map *m)
{
    ch__free(m->entry);
    *m = (ch_map){0};
}
