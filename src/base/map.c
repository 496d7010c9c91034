/* base/map.c -- a hash table of pointers with open addressing and linear probing, at most half
 * full.
 *
 * Invariant: there is no free entry between the home entry of a key (which its hash selects)
 * and the entry that holds the key. A removal therefore moves later entries into the gap.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/map.h"

#include <string.h>

#include "base/fault.h"
#include "base/hash.h"
#include "base/mem.h"

static uint64_t hash_of(const ch_map *m, ch_key k)
{
    if (m->has_names)
        return k.a;

    uint64_t h = (k.a ^ (k.b * 0xD6E8FEB86659FD93u)) * 0x9E3779B97F4A7C15u;

    return h ^ (h >> 29);
}

static ch_key key_of_name(const char *name)
{
    return (ch_key){ch__hash_text(name), (uintptr_t)name};
}

static bool is_same_key(const ch_map *m, ch_key x, ch_key y)
{
    return x.a == y.a &&
           (x.b == y.b || (m->has_names && strcmp((const char *)(uintptr_t)x.b,
                                                  (const char *)(uintptr_t)y.b) == 0));
}

/* Returns the entry of the key, or the free entry to put the key in. */
static ch_map_entry *entry_of(const ch_map *m, ch_key key)
{
    uint64_t at = hash_of(m, key), mask = (uint64_t)m->cap - 1;

    while (m->entry[at & mask].value != NULL && !is_same_key(m, m->entry[at & mask].key, key))
        at++;
    return &m->entry[at & mask];
}

void *ch__map_find(const ch_map *m, ch_key key)
{
    return m->n > 0 ? entry_of(m, key)->value : NULL;
}

static ch_status grow(ch_map *m)
{
    ch_map grown = {.cap = m->cap > 0 ? 2 * m->cap : 16, .has_names = m->has_names};

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

/* Frees the entry `gap`. Moves later entries into it, but none before its home entry. */
static void close_gap(ch_map *m, int gap)
{
    int mask = m->cap - 1;

    for (int i = (gap + 1) & mask; m->entry[i].value != NULL; i = (i + 1) & mask) {
        int home = (int)(hash_of(m, m->entry[i].key) & (uint64_t)mask);

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

void *ch__map_find_name(const ch_map *m, const char *name)
{
    return ch__map_find(m, key_of_name(name));
}

ch_status ch__map_set_name(ch_map *m, const char *name, void *value)
{
    m->has_names = true;
    return ch__map_set(m, key_of_name(name), value);
}

void *ch__map_remove_name(ch_map *m, const char *name)
{
    return ch__map_remove(m, key_of_name(name));
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
