/* data/names.h -- names that are looked for among the names of a file: which of them is it?
 *
 * Made once, then only read: any number of threads may look.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_NAMES_H
#define DATA_NAMES_H

#include "base/mem.h"

typedef struct ch_name {
    const char *text; /* NULL: this index has none */
    size_t      bytes;
    uint64_t    hash;
} ch_name;

/* Where names are by their hashes: 1 + index at hash & mask, or in the places behind it; 0 is
 * nowhere. More than half of the places are 0. */
typedef struct ch_names {
    int      n;
    ch_name *name;
    int     *place;
    uint64_t mask;
    size_t   longest; /* bytes */
} ch_names;

/* Room for n names, none of them there yet, in the arena. False: no memory. */
bool ch__names_new(int n, ch_arena *arena, ch_names *out);
/* Gives the index a name, which is copied, and which none has yet. False: no memory. */
bool ch__names_put(ch_names *s, ch_arena *arena, int index, const char *text);

/* A name is a few words of eight bytes: each takes one multiplication. */
static inline uint64_t ch__name_hash(const void *name, size_t bytes)
{
    const uint8_t *at = name;
    uint64_t       h = bytes, word;

    for (; bytes >= sizeof(word); at += sizeof(word), bytes -= sizeof(word)) {
        __builtin_memcpy(&word, at, sizeof(word));
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    for (word = 0; bytes > 0; bytes--)
        word = word << 8 | *at++;
    h = (h ^ word) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

/* The index of this name; -1: none has it. */
static inline int ch__names_find(const ch_names *s, const void *text, size_t bytes)
{
    if (bytes > s->longest)
        return -1;
    uint64_t hash = ch__name_hash(text, bytes), i = hash;
    for (; s->place[i & s->mask] != 0; i++) {
        int            index = s->place[i & s->mask] - 1;
        const ch_name *x = &s->name[index];

        if (x->hash == hash && x->bytes == bytes && __builtin_memcmp(x->text, text, bytes) == 0)
            return index;
    }
    return -1;
}

#endif
