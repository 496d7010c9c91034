/* data/format/names.h -- a hash table from names to indices, for the columns and features of a
 * file.
 *
 * The table is built once and then only read, so any number of threads may search it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_FORMAT_NAMES_H
#define DATA_FORMAT_NAMES_H

#include "base/mem.h"

typedef struct ch_name {
    const char *text;  /* NULL: this index has no name */
    size_t      bytes; /* length of the text */
    uint64_t    hash;  /* ch__name_hash of the text */
} ch_name;

/* An open-addressing hash table with linear probing. More than half of the buckets are empty,
 * so a search ends soon. */
typedef struct ch_names {
    int      n;       /* indices */
    ch_name *name;    /* n, by index */
    int     *bucket;  /* mask + 1: 1 + index of the name; 0: empty */
    uint64_t mask;    /* number of buckets - 1; the number is a power of two */
    size_t   longest; /* length of the longest name, in bytes */
} ch_names;

/* Initialises a table for `n` indices without names. Its memory belongs to the arena. Returns
 * false if memory is exhausted. */
bool ch__names_new(int n, ch_arena *arena, ch_names *out);
/* Sets the name of an index. The text is copied; no other index may have the same name. Must be
 * called at most once for each index. Returns false if memory is exhausted. */
bool ch__names_put(ch_names *s, ch_arena *arena, int index, const char *text);

/* Hashes eight bytes at a time, with a multiplication each, because names are short. */
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

/* Returns the index of this name, or -1 if no index has it. */
static inline int ch__names_find(const ch_names *s, const void *text, size_t bytes)
{
    if (bytes > s->longest)
        return -1;
    uint64_t hash = ch__name_hash(text, bytes), i = hash;
    for (; s->bucket[i & s->mask] != 0; i++) {
        int            index = s->bucket[i & s->mask] - 1;
        const ch_name *x = &s->name[index];

        if (x->hash == hash && x->bytes == bytes && __builtin_memcmp(x->text, text, bytes) == 0)
            return index;
    }
    return -1;
}

#endif
