/* base/by_name.c -- a hash table: a name stands at its hash, or in the places behind it.
 *
 * At most half of the places are taken. Whoever takes a name out moves those up that stand
 * behind it, so that no place between a name and its hash is ever free.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/by_name.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

typedef struct ch_by_name_place {
    const char *name; /* NULL: free */
    uint64_t    hash;
    void       *what;
} place;

enum { LEAST = 16 };

uint64_t ch__name_fnv(const char *name)
{
    return ch__hash(CH_HASH_START, name, strlen(name));
}

static size_t next(const ch_by_name *t, size_t i)
{
    return (i + 1) & (t->cap - 1);
}

/* Where the name is, or the free place where it would be. */
static size_t find(const ch_by_name *t, const char *name, uint64_t hash)
{
    size_t i = hash & (t->cap - 1);

    while (t->place[i].name != NULL &&
           (t->place[i].hash != hash || strcmp(t->place[i].name, name) != 0))
        i = next(t, i);
    return i;
}

void *ch__by_name_get(const ch_by_name *t, const char *name)
{
    return t->n > 0 ? t->place[find(t, name, ch__name_fnv(name))].what : NULL;
}

void *ch__by_name_at(const ch_by_name *t, size_t i)
{
    return t->place[i].what;
}

static bool grow(ch_by_name *t)
{
    ch_by_name wider = {.n = t->n, .cap = t->cap > 0 ? 2 * t->cap : LEAST};

    wider.place = ch__calloc(wider.cap, sizeof(place));
    if (wider.place == NULL)
        return false;
    for (size_t i = 0; i < t->cap; i++)
        if (t->place[i].name != NULL)
            wider.place[find(&wider, t->place[i].name, t->place[i].hash)] = t->place[i];
    ch__free(t->place);
    *t = wider;
    return true;
}

bool ch__by_name_put(ch_by_name *t, const char *name, void *what)
{
    uint64_t hash = ch__name_fnv(name);

    if (2 * (t->n + 1) > t->cap && !grow(t))
        return false;
    t->place[find(t, name, hash)] = (place){name, hash, what};
    t->n++;
    return true;
}

void ch__by_name_remove(ch_by_name *t, const char *name)
{
    size_t mask = t->cap - 1, hole = find(t, name, ch__name_fnv(name));

    for (size_t i = next(t, hole); t->place[i].name != NULL; i = next(t, i)) {
        size_t home = t->place[i].hash & mask;

        if (((i - home) & mask) < ((i - hole) & mask))
            continue; /* the hole is before its home */
        t->place[hole] = t->place[i];
        hole = i;
    }
    t->place[hole] = (place){0};
    if (--t->n == 0)
        ch__by_name_drop(t);
}

void ch__by_name_drop(ch_by_name *t)
{
    ch__free(t->place);
    *t = (ch_by_name){0};
}
