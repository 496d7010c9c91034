/* data/names.c -- names that are looked for among the names of a file.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/names.h"

#include <string.h>

bool ch__names_new(int n, ch_arena *arena, ch_names *out)
{
    uint64_t places = 4;

    while (places <= 2 * (uint64_t)n)
        places *= 2;
    *out = (ch_names){.n = n, .mask = places - 1};
    out->name = ch__arena_alloc(arena, (size_t)n * sizeof(*out->name));
    out->place = ch__arena_alloc(arena, (size_t)places * sizeof(*out->place));
    return out->name != NULL && out->place != NULL;
}

bool ch__names_put(ch_names *s, ch_arena *arena, int index, const char *text)
{
    size_t   bytes = strlen(text);
    ch_name *x = &s->name[index];
    char    *copy = ch__arena_strdup(arena, text);
    uint64_t place;

    if (copy == NULL)
        return false;
    *x = (ch_name){copy, bytes, ch__name_hash(text, bytes)};
    for (place = x->hash & s->mask; s->place[place] != 0;)
        place = (place + 1) & s->mask;
    s->place[place] = index + 1;
    s->longest = bytes > s->longest ? bytes : s->longest;
    return true;
}
