/* tensor/table.h -- the inside of static tables, for those who look up, compare and send them.
 *
 *   1. Entries are in the order of the hashes of their keys; words with one hash by size, then by
 *      bytes. No key is there twice. So equal tables have equal arrays, whatever order they were
 *      made in.
 *   2. Bucket b is entries [first[b], first[b + 1]): those whose hashes begin with the bits of b.
 *      There are no fewer buckets than keys.
 *   3. value[n] is what other keys stand for.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TENSOR_TABLE_H
#define TENSOR_TABLE_H

#include <stdatomic.h>

#include "cohort/table.h"

struct ch_table {
    atomic_int refs;
    bool       has_words; /* else ids */
    ch_dtype   dtype;     /* of the values */
    int        shift;     /* of a hash, to its bucket */
    uint32_t   n;
    uint32_t  *first;
    int64_t   *id;   /* of ids, the keys; */
    uint32_t  *at;   /* of words, where each begins in `text`, and where the last one ends */
    char      *text; /* not ended by zeros */
    char      *value;
    char      *room; /* that all of these are in */
};

/* Keys and values as they are sent. */
typedef struct ch_table_parts {
    bool            has_words;
    size_t          n;
    const void     *ids;  /* of ids: i64, of any alignment; */
    const char     *text; /* of words: one after the other, */
    const uint32_t *size; /* of so many bytes each */
    ch_dtype        dtype;
    const void     *values; /* n + 1, the last one of other keys; of any alignment */
} ch_table_parts;

/* INVALID_ARGUMENT if a key stands for two values. That sizes add up is the caller's affair. */
CH_MUST_CHECK ch_status ch__table_of(const ch_table_parts *p, ch_table **out);

bool ch__table_equal(const ch_table *a, const ch_table *b); /* either may be NULL */
/* Some bytes of its keys. */
uint64_t ch__table_hash(const ch_table *t);

/* The keys that it takes, ids of either size or words. */
static inline bool ch__table_takes(const ch_table *t, ch_dtype keys)
{
    return t->has_words ? keys == CH_STR : keys == CH_I32 || keys == CH_I64;
}
/* What n keys stand for. */
void ch__table_find(const ch_table *t, ch_dtype dtype, const void *keys, int64_t n, void *out);

#endif
