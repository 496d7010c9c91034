/* data/example_schema.h -- what data/example.c knows of the features that it looks for.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_EXAMPLE_SCHEMA_H
#define DATA_EXAMPLE_SCHEMA_H

#include "base/mem.h"
#include "data/example.h"

typedef struct ch_example_feature {
    const char *name;
    size_t      name_bytes;
    uint64_t    hash;
    ch_part     part;   /* as it will be; its data is what a missing feature has */
    int64_t     count;  /* values that it must have; where the first size is -1, of a row */
    size_t      bytes;  /* of a value */
    bool        varies; /* the first size is -1 */
    bool        optional;
} ch_example_feature;

struct ch_example_schema {
    ch_arena            arena;
    int                 n;
    ch_example_feature *feature;
    ch_tensor_spec     *spec;
    /* Where features are by the hash of their names: 1 + index at hash & mask, or in the places
     * behind it; 0 is nowhere. More than half of the places are 0. */
    int       *place;
    uint64_t   mask;
    size_t     longest;  /* bytes of a name */
    ch_buffer *defaults; /* the data of missing features; NULL: there are none */
};

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

/* Which feature it is; -1: none. */
static inline int ch__feature_find(const ch_example_schema *s, const void *name, size_t bytes)
{
    if (bytes > s->longest)
        return -1;
    uint64_t hash = ch__name_hash(name, bytes), i = hash;
    for (; s->place[i & s->mask] != 0; i++) {
        int                       at = s->place[i & s->mask] - 1;
        const ch_example_feature *f = &s->feature[at];

        if (f->hash == hash && f->name_bytes == bytes &&
            __builtin_memcmp(f->name, name, bytes) == 0)
            return at;
    }
    return -1;
}

#endif
