/* base/by_name.c -- a hash table with open addressing and linear probing.
 *
 * At most half of the buckets are used. Invariant: there is no free bucket between the home
 * bucket of a name (which its hash selects) and the bucket that holds the name. A removal
 * therefore moves later entries into the hole.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/by_name.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

typedef struct ch_by_name_bucket {
    const char *name; /* NULL: free */
    uint64_t    hash;
    void       *value;
} bucket;

enum { MIN_BUCKETS = 16 };

uint64_t ch__name_fnv(const char *name)
{
    return ch__hash(CH_HASH_START, name, strlen(name));
}

static size_t next(const ch_by_name *t, size_t i)
{
    return (i + 1) & (t->cap - 1);
}

/* Returns the index of the bucket that holds the name, or of the free bucket to put it in. */
static size_t find(const ch_by_name *t, const char *name, uint64_t hash)
{
    size_t i = hash & (t->cap - 1);

    while (t->bucket[i].name != NULL &&
           (t->bucket[i].hash != hash || strcmp(t->bucket[i].name, name) != 0))
        i = next(t, i);
    return i;
}

void *ch__by_name_get(const ch_by_name *t, const char *name)
{
    return t->n > 0 ? t->bucket[find(t, name, ch__name_fnv(name))].value : NULL;
}

void *ch__by_name_at(const ch_by_name *t, size_t i)
{
    return t->bucket[i].value;
}

static bool grow(ch_by_name *t)
{
    ch_by_name grown = {.n = t->n, .cap = t->cap > 0 ? 2 * t->cap : MIN_BUCKETS};

    grown.bucket = ch__calloc(grown.cap, sizeof(bucket));
    if (grown.bucket == NULL)
        return false;
    for (size_t i = 0; i < t->cap; i++)
        if (t->bucket[i].name != NULL)
            grown.bucket[find(&grown, t->bucket[i].name, t->bucket[i].hash)] = t->bucket[i];
    ch__free(t->bucket);
    *t = grown;
    return true;
}

bool ch__by_name_put(ch_by_name *t, const char *name, void *value)
{
    uint64_t hash = ch__name_fnv(name);

    if (2 * (t->n + 1) > t->cap && !grow(t))
        return false;
    t->bucket[find(t, name, hash)] = (bucket){name, hash, value};
    t->n++;
    return true;
}

void ch__by_name_remove(ch_by_name *t, const char *name)
{
    size_t mask = t->cap - 1, hole = find(t, name, ch__name_fnv(name));

    for (size_t i = next(t, hole); t->bucket[i].name != NULL; i = next(t, i)) {
        size_t home = t->bucket[i].hash & mask;

        if (((i - home) & mask) < ((i - hole) & mask))
            continue; /* entry i must not move before its home bucket */
        t->bucket[hole] = t->bucket[i];
        hole = i;
    }
    t->bucket[hole] = (bucket){0};
    if (--t->n == 0)
        ch__by_name_drop(t);
}

void ch__by_name_drop(ch_by_name *t)
{
    ch__free(t->bucket);
    *t = (ch_by_name){0};
}
