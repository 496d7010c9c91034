/* base/id_map.c -- a hash table of pointers with open addressing, at most half full.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/id_map.h"

#include <stdbool.h>

#include "base/fault.h"
#include "base/mem.h"

static uint64_t hash_of(ch_key k)
{
    uint64_t h = (k.a ^ (k.b * 0xD6E8FEB86659FD93u)) * 0x9E3779B97F4A7C15u;

    return h ^ (h >> 29);
}

static bool has_key(const ch_map_entry *e, ch_key k)
{
    return e->key.a == k.a && e->key.b == k.b;
}

/* Returns the entry of the key, or the free entry to put the key in. */
static ch_map_entry *entry_of(const ch_map *m, ch_key key)
{
    uint64_t at = hash_of(key), mask = (uint64_t)m->cap - 1;

    while (m->entry[at & mask].value != NULL && !has_key(&m->entry[at & mask], key))
        at++;
    return &m->entry[at & mask];
}

void *ch__map_find(const ch_map *m, ch_key key)
{
    return m->n > 0 ? entry_of(m, key)->value : NULL;
}

static ch_status grow(ch_map *m)
{
    ch_map grown = {.cap = m->cap > 0 ? 2 * m->cap : 16};

    grown.entry = ch__calloc((size_t)grown.cap, sizeof(*grown.entry));
    if (grown.entry == NULL)
        return ch__fail_memory("id map");
    for (int i = 0; i < m->cap; i++)
        if (m->entry[i].value != NULL) {
            *entry_of(&grown, m->entry[i].key) = m->entry[i];
            grown.n++;
        }
    ch__free(m->entry);
    *m = grown;
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

/* Frees the entry `gap`. Moves later entries forward, because a search ends at the first free
 * entry. */
static void close_gap(ch_map *m, int gap)
{
    int mask = m->cap - 1;

    for (int i = (gap + 1) & mask; m->entry[i].value != NULL; i = (i + 1) & mask) {
        int home = (int)(hash_of(m->entry[i].key) & (uint64_t)mask);

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

/* After a removal, close_gap may move a later entry into entry i, so entry i is tested again.
 * An entry that moves around the end of the array was tested before, in the first entries: it
 * is tested twice at most. */
void ch__map_remove_if(ch_map *m, bool (*should_remove)(void *arg, ch_key key, void *value),
                       void   *arg)
{
    for (int i = 0; i < m->cap; i++)
        while (m->entry[i].value != NULL &&
               should_remove(arg, m->entry[i].key, m->entry[i].value)) {
            m->n--;
            close_gap(m, i);
        }
}

void ch__map_drop(ch_map *m)
{
    ch__free(m->entry);
    *m = (ch_map){0};
}
