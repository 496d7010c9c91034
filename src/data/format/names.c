/* data/format/names.c -- a hash table from names to indices.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/format/names.h"

#include <string.h>

bool ch__names_new(int n, ch_arena *arena, ch_names *out)
{
    uint64_t buckets = 4;

    while (buckets <= 2 * (uint64_t)n)
        buckets *= 2;
    *out = (ch_names){.n = n, .mask = buckets - 1};
    out->name = ch__arena_alloc(arena, (size_t)n * sizeof(*out->name));
    out->bucket = ch__arena_alloc(arena, (size_t)buckets * sizeof(*out->bucket));
    return out->name != NULL && out->bucket != NULL;
}

bool ch__names_put(ch_names *s, ch_arena *arena, int index, const char *text)
{
    size_t   bytes = strlen(text);
    ch_name *x = &s->name[index];
    char    *copy = ch__arena_strdup(arena, text);
    uint64_t bucket;

    if (copy == NULL)
        return false;
    *x = (ch_name){copy, bytes, ch__name_hash(text, bytes)};
    for (bucket = x->hash & s->mask; s->bucket[bucket] != 0;)
        bucket = (bucket + 1) & s->mask;
    s->bucket[bucket] = index + 1;
    s->longest = bytes > s->longest ? bytes : s->longest;
    return true;
}
