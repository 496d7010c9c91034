/* tensor/table.h -- the struct of lookup tables, for ops, comparison and codecs.
 *
 * Invariants:
 *   1. Entries are sorted by the hashes of their keys, words with the same hash by size and
 *      then by bytes. No key occurs twice. So equal tables have equal arrays, regardless of the
 *      order in which the keys were given.
 *   2. Bucket b is the entries [first[b], first[b + 1]), whose hashes begin with the bits of b.
 *      There are at least as many buckets as keys.
 *   3. value[n] is the value of all other keys.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TENSOR_TABLE_H
#define TENSOR_TABLE_H

#include <stdatomic.h>

#include "cohort/table.h"

struct ch_table {
    atomic_int refs;
    bool       has_words; /* the keys are strings; false: ids */
    ch_dtype   dtype;     /* of the values */
    int        shift;     /* hash >> shift is the bucket */
    uint32_t   n;         /* number of keys */
    uint32_t  *first;     /* first entry of each bucket, and n */
    int64_t   *id;        /* the keys, if they are ids */
    uint32_t  *at;        /* of words: offset of each in `text`, and the size of `text` */
    char      *text;      /* words, without terminating zeros */
    char      *value;     /* n + 1 values */
    char      *room;      /* the memory block of all these arrays */
};

/* Keys and values in their encoded form. */
typedef struct ch_table_parts {
    bool            has_words;
    size_t          n;
    const void     *ids;  /* of ids: n of i64, with any alignment */
    const char     *text; /* of words: their bytes, one after the other */
    const uint32_t *size; /* of words: bytes of each */
    ch_dtype        dtype;
    const void     *values; /* n + 1 with any alignment; the last is for other keys */
} ch_table_parts;

/* Creates a table. The caller must have checked that the sizes of the parts are consistent.
 * Returns INVALID_ARGUMENT if a key has two different values. */
CH_MUST_CHECK ch_status ch__table_of(const ch_table_parts *p, ch_table **out);

/* Returns true if the tables have the same keys and values. Either may be NULL. */
bool ch__table_equal(const ch_table *a, const ch_table *b);
/* Returns a hash of the number of keys and the first 64 bytes of keys. */
uint64_t ch__table_hash(const ch_table *t);

/* Returns true if keys of this dtype can be looked up: i32 or i64, or strings. */
static inline bool ch__table_accepts(const ch_table *t, ch_dtype keys)
{
    return t->has_words ? keys == CH_STR : keys == CH_I32 || keys == CH_I64;
}
/* Writes the values of n keys of this dtype to `out`. */
void ch__table_find(const ch_table *t, ch_dtype dtype, const void *keys, int64_t n, void *out);

#endif
