/* tensor/table.c -- lookup tables: creation, comparison and lookup.
 *
 * Creation: keys become an array of `entry`, which is sorted by hash, freed of duplicates, and
 * copied to the arrays of a ch_table (table_new). Lookup: the first bits of a key's hash select
 * a bucket, whose entries are compared in order. Callers are the public functions of
 * cohort/table.h, the op in ops/table.c and the graph codec. tensor/table.h has the struct and
 * its invariants.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "tensor/table.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/hash.h"
#include "base/mem.h"
#include "tensor/print.h"

#define MIX 0x9e3779b97f4a7c15u /* 2^64 over the golden ratio */

/* Returns the hash of an id. Different ids have different hashes. Its upper bits are mixed
 * best. */
static inline uint64_t hash_id(int64_t id)
{
    uint64_t x = (uint64_t)id;

    return (x ^ x >> 32) * MIX;
}

static inline uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * MIX;
    return h ^ h >> 32;
}

static uint64_t hash_word(const char *s, size_t n)
{
    uint64_t h = n, x = 0;

    for (; n > 8; n -= 8, s += 8) {
        memcpy(&x, s, 8);
        h = mix(h, x);
    }
    x = 0;
    if (n > 0)
        memcpy(&x, s, n);
    return mix(h, x) * MIX;
}

/* ---- creation ---- */

/* A key and its index in the caller's list. */
typedef struct entry {
    uint64_t hash;
    union {
        int64_t     id;
        const char *text;
    } key;
    uint32_t size; /* bytes of a word; 0 for ids */
    uint32_t from; /* index of the key and its value */
} entry;

static int compare(const entry *a, const entry *b)
{
    if (a->hash != b->hash)
        return a->hash < b->hash ? -1 : 1;
    if (a->size != b->size)
        return a->size < b->size ? -1 : 1;
    return a->size > 0 ? memcmp(a->key.text, b->key.text, a->size) : 0;
}

/* Orders equal keys by their index. */
static int compare_entries(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    int          c = compare(x, y);

    return c != 0 ? c : x->from < y->from ? -1 : 1;
}

/* Sorts the entries. Tests first whether they are in order, because the entries of a decoded
 * table are. */
static void sort(entry *e, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (compare_entries(&e[i - 1], &e[i]) > 0) {
            qsort(e, n, sizeof(*e), compare_entries);
            return;
        }
}

static void print_key(ch_text *o, const entry *e, bool has_words)
{
    if (has_words)
        ch__text_element(o, CH_STR, &(ch_str){e->key.text, e->size});
    else
        ch__text_element(o, CH_I64, &e->key.id);
}

/* Removes duplicate keys and sets *n to the number of remaining entries. Returns
 * INVALID_ARGUMENT if a key has two different values. */
static ch_status merge(entry *e, size_t *n, bool has_words, const char *values, size_t bytes)
{
    size_t kept = 0;

    for (size_t i = 0; i < *n; i++) {
        const entry *last = &e[kept - (kept > 0)];

        if (kept == 0 || compare(last, &e[i]) != 0) {
            e[kept++] = e[i];
        } else if (memcmp(values + last->from * bytes, values + e[i].from * bytes, bytes) !=
                   0) {
            char    text[128];
            ch_text o = ch__text(text, sizeof(text));

            print_key(&o, last, has_words);
            return ch__fail(CH_INVALID_ARGUMENT,
                            "table: key %s occurs twice, at %u and %u, with different values",
                            text, last->from, e[i].from);
        }
    }
    *n = kept;
    return CH_OK;
}

/* Allocates all arrays in a single block. Returns false if memory is exhausted. */
static bool allocate_arrays(ch_table *t, size_t n_buckets, size_t text_bytes)
{
    const size_t first = ch__aligned((n_buckets + 1) * sizeof(uint32_t)), n = t->n;
    const size_t keys =
        ch__aligned(t->has_words ? (n + 1) * sizeof(uint32_t) : n * sizeof(int64_t));
    const size_t value = ch__aligned((n + 1) * ch_dtype_bytes(t->dtype));

    t->room = ch__alloc_aligned(first + keys + value + text_bytes + 1);
    if (t->room == NULL)
        return false;
    t->first = (uint32_t *)(void *)t->room;
    if (t->has_words)
        t->at = (uint32_t *)(void *)(t->room + first);
    else
        t->id = (int64_t *)(void *)(t->room + first);
    t->value = t->room + first + keys;
    t->text = t->value + value;
    return true;
}

static void fill_arrays(ch_table *t, const entry *e, size_t n_buckets, const char *values)
{
    const size_t bytes = ch_dtype_bytes(t->dtype);
    size_t       bucket = 0;

    for (uint32_t i = 0; i < t->n; i++) {
        while (bucket <= e[i].hash >> t->shift)
            t->first[bucket++] = i;
        if (t->has_words) {
            if (e[i].size > 0)
                memcpy(t->text + t->at[i], e[i].key.text, e[i].size);
            t->at[i + 1] = t->at[i] + e[i].size;
        } else {
            t->id[i] = e[i].key.id;
        }
        memcpy(t->value + i * bytes, values + e[i].from * bytes, bytes);
    }
    while (bucket <= n_buckets)
        t->first[bucket++] = t->n;
}

/* Creates a table of n entries, which it sorts. `missing` points to the value of all other
 * keys. */
static ch_status table_new(entry *e, size_t n, bool has_words, ch_dtype dtype,
                           const char *values, const char *missing, ch_table **out)
{
    size_t    n_buckets = 2, text_bytes = 0; /* 2, so that the shift is less than 64 */
    ch_table *t;
    ch_status rc;

    sort(e, n);
    rc = merge(e, &n, has_words, values, ch_dtype_bytes(dtype));
    if (rc != CH_OK)
        return rc;
    t = ch__calloc(1, sizeof(*t));
    if (t == NULL)
        return ch__fail_memory("table");
    atomic_init(&t->refs, 1);
    t->has_words = has_words;
    t->dtype = dtype;
    t->n = (uint32_t)n;
    for (t->shift = 63; n_buckets < n; t->shift--)
        n_buckets *= 2;
    for (size_t i = 0; has_words && i < n; i++)
        text_bytes += e[i].size;
    if (!allocate_arrays(t, n_buckets, text_bytes)) {
        ch__free(t);
        return ch__fail(CH_RESOURCE_EXHAUSTED, "table: out of memory for %zu keys", n);
    }
    fill_arrays(t, e, n_buckets, values);
    memcpy(t->value + n * ch_dtype_bytes(dtype), missing, ch_dtype_bytes(dtype));
    *out = t;
    return CH_OK;
}

ch_table *ch_table_ref(ch_table *t)
{
    if (t != NULL)
        atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    return t;
}

void ch_table_unref(ch_table *t)
{
    if (t == NULL || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1)
        return;
    ch__free_aligned(t->room);
    ch__free(t);
}

int64_t ch_table_count(const ch_table *t)
{
    return t != NULL ? t->n : 0;
}

/* ---- creation from decoded parts ---- */

static ch_status new_entries(size_t n, entry **out)
{
    if (n >= UINT32_MAX)
        return ch__fail(CH_INVALID_ARGUMENT, "table: got %zu keys, want at most %u", n,
                        UINT32_MAX - 1);
    *out = ch__malloc((n + 1) * sizeof(**out));
    return *out != NULL
               ? CH_OK
               : ch__fail(CH_RESOURCE_EXHAUSTED, "table: out of memory for %zu keys", n);
}

static entry entry_of_id(int64_t id, size_t from)
{
    return (entry){.hash = hash_id(id), .key.id = id, .from = (uint32_t)from};
}

static entry entry_of_word(const char *text, uint32_t size, size_t from)
{
    return (entry){hash_word(text, size), {.text = text}, size, (uint32_t)from};
}

ch_status ch__table_of(const ch_table_parts *p, ch_table **out)
{
    const char *text = p->text != NULL ? p->text : "", *values = p->values;
    entry      *e = NULL;
    ch_status   rc = new_entries(p->n, &e);

    for (size_t i = 0; i < p->n && rc == CH_OK; i++) {
        int64_t id;

        if (p->has_words) {
            e[i] = entry_of_word(text, p->size[i], i);
            text += p->size[i];
        } else {
            memcpy(&id, (const char *)p->ids + i * sizeof(id), sizeof(id));
            e[i] = entry_of_id(id, i);
        }
    }
    if (rc == CH_OK)
        rc = table_new(e, p->n, p->has_words, p->dtype, values,
                       values + p->n * ch_dtype_bytes(p->dtype), out);
    ch__free(e);
    return rc;
}

/* ---- creation from tensors ---- */

static ch_status check_keys(const ch_tensor *keys)
{
    const ch_str *word = keys->dtype == CH_STR ? (const ch_str *)(void *)keys->data : NULL;
    uint64_t      bytes = 0;

    for (int64_t i = 0; word != NULL && i < keys->shape.dim[0]; i++) {
        bytes += word[i].size;
        if (word[i].size > UINT32_MAX || bytes > UINT32_MAX)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "table: the first %lld keys have more than %u bytes in total",
                            (long long)i + 1, UINT32_MAX);
    }
    return CH_OK;
}

static entry entry_at(const ch_tensor *keys, int64_t i)
{
    const void *at = keys->data;

    if (keys->dtype == CH_STR) {
        const ch_str *word = at;

        return entry_of_word(word[i].data, (uint32_t)word[i].size, (size_t)i);
    }
    return entry_of_id(
        keys->dtype == CH_I64 ? ((const int64_t *)at)[i] : ((const int32_t *)at)[i], (size_t)i);
}

/* Creates a table. Both tensors must be contiguous. If `values` is NULL, the values are the
 * indices of the keys. */
static ch_status table_of_tensors(const ch_tensor *keys, const ch_tensor *values,
                                  double missing, ch_table **out)
{
    const int64_t n = keys->shape.dim[0];
    ch_dtype      dtype = values != NULL ? values->dtype : CH_I64;
    char          missing_value[8];
    int64_t      *index = NULL;
    entry        *e = NULL;
    ch_status     rc = check_keys(keys);

    if (rc == CH_OK)
        rc = new_entries((size_t)n, &e);
    if (rc == CH_OK && values == NULL &&
        (index = ch__malloc(((size_t)n + 1) * sizeof(*index))) == NULL)
        rc = ch__fail_memory("table");
    for (int64_t i = 0; i < n && rc == CH_OK; i++) {
        e[i] = entry_at(keys, i);
        if (index != NULL)
            index[i] = i;
    }
    ch__store(dtype, missing_value, missing);
    if (rc == CH_OK)
        rc = table_new(e, (size_t)n, keys->dtype == CH_STR, dtype,
                       values != NULL ? values->data : (const char *)index, missing_value, out);
    ch__free(index);
    ch__free(e);
    return rc;
}

/* Fails because the numbers of keys and values differ, and names the first key without a value,
 * or the reverse. */
static ch_status fail_sizes(const ch_tensor *keys, const ch_tensor *values)
{
    int64_t n = keys->shape.dim[0], m = values->shape.dim[0];
    char    text[128];
    ch_text o = ch__text(text, sizeof(text));
    entry   e;

    if (n < m)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "table: %lld keys and %lld values: value %lld has no key", (long long)n,
                        (long long)m, (long long)n);
    e = entry_at(keys, m);
    print_key(&o, &e, keys->dtype == CH_STR);
    return ch__fail(CH_INVALID_ARGUMENT,
                    "table: %lld keys and %lld values: key %s has no value", (long long)n,
                    (long long)m, text);
}

static ch_status check(const ch_tensor *keys, const ch_tensor *values, double missing)
{
    ch_dtype dtype = values != NULL ? values->dtype : CH_I64;

    if ((keys->dtype != CH_I32 && keys->dtype != CH_I64 && keys->dtype != CH_STR) ||
        keys->shape.rank != 1)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "table: keys are %s, want i32, i64 or string of rank 1",
                        ch__tensor_label(keys).text);
    if (values != NULL && (dtype == CH_STR || values->shape.rank != 1))
        return ch__fail(CH_INVALID_ARGUMENT, "table: values are %s, want numbers of rank 1",
                        ch__tensor_label(values).text);
    if (!ch__dtype_holds(dtype, missing))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "table: the value of missing keys, %.17g, does not fit %s", missing,
                        ch_dtype_name(dtype));
    return values != NULL && values->shape.dim[0] != keys->shape.dim[0]
               ? fail_sizes(keys, values)
               : CH_OK;
}

ch_status ch_table_new(ch_tensor *keys, ch_tensor *values, double missing, ch_table **out)
{
    ch_tensor *k = NULL, *v = NULL;
    ch_status  rc = ch__check_not_null("table", "keys", keys, "out", out);

    if (rc == CH_OK)
        rc = ch_tensor_contiguous(keys, &k);
    if (rc == CH_OK && values != NULL)
        rc = ch_tensor_contiguous(values, &v);
    if (rc == CH_OK)
        rc = check(k, v, missing);
    if (rc == CH_OK)
        rc = table_of_tensors(k, v, missing, out);
    ch_tensor_unref(k);
    ch_tensor_unref(v);
    return rc;
}

/* ---- comparison ---- */

/* Returns the array of keys and sets *bytes to its size. */
static const void *keys_of(const ch_table *t, size_t *bytes)
{
    *bytes = t->has_words ? t->at[t->n] : t->n * sizeof(int64_t);
    return t->has_words ? (const void *)t->text : (const void *)t->id;
}

bool ch__table_equal(const ch_table *a, const ch_table *b)
{
    size_t n = 0, m = 0;

    if (a == b || a == NULL || b == NULL)
        return a == b;
    if (a->has_words != b->has_words || a->dtype != b->dtype || a->n != b->n)
        return false;
    if (memcmp(a->value, b->value, ((size_t)a->n + 1) * ch_dtype_bytes(a->dtype)) != 0)
        return false;
    if (a->has_words && memcmp(a->at, b->at, ((size_t)a->n + 1) * sizeof(a->at[0])) != 0)
        return false;
    return memcmp(keys_of(a, &n), keys_of(b, &m), n) == 0;
}

uint64_t ch__table_hash(const ch_table *t)
{
    size_t      bytes = 0;
    const void *keys = keys_of(t, &bytes);

    return ch__hash(CH_HASH_START + t->n, keys, bytes < 64 ? bytes : 64);
}

/* ---- lookup ---- */

/* Number of keys that are looked up together. Each step prefetches the memory that the next
 * step reads, for all keys of the batch, so that the cache misses overlap. */
enum { BATCH = 64 };

static void find_ids(const ch_table *t, int n, const int64_t *id, uint32_t *index)
{
    const size_t bytes = ch_dtype_bytes(t->dtype);
    uint64_t     bucket[BATCH];

    for (int i = 0; i < n; i++) {
        bucket[i] = hash_id(id[i]) >> t->shift;
        __builtin_prefetch(&t->first[bucket[i]]);
    }
    for (int i = 0; i < n; i++) {
        index[i] = t->first[bucket[i]];
        __builtin_prefetch(&t->id[index[i]]);
        __builtin_prefetch(t->value + index[i] * bytes);
    }
    for (int i = 0; i < n; i++) {
        uint32_t at = index[i], end = t->first[bucket[i] + 1];

        while (at < end && t->id[at] != id[i])
            at++;
        index[i] = at < end ? at : t->n;
    }
}

static bool is_word(const ch_table *t, uint32_t at, const ch_str *s)
{
    return t->at[at + 1] - t->at[at] == s->size &&
           (s->size == 0 || memcmp(t->text + t->at[at], s->data, s->size) == 0);
}

static void find_words(const ch_table *t, int n, const ch_str *word, uint32_t *index)
{
    uint64_t bucket[BATCH];

    for (int i = 0; i < n; i++) {
        bucket[i] = hash_word(word[i].data, word[i].size) >> t->shift;
        __builtin_prefetch(&t->first[bucket[i]]);
    }
    for (int i = 0; i < n; i++) {
        index[i] = t->first[bucket[i]];
        __builtin_prefetch(&t->at[index[i]]);
    }
    for (int i = 0; i < n; i++)
        __builtin_prefetch(t->text + t->at[index[i]]);
    for (int i = 0; i < n; i++) {
        uint32_t at = index[i], end = t->first[bucket[i] + 1];

        while (at < end && !is_word(t, at, &word[i]))
            at++;
        index[i] = at < end ? at : t->n;
    }
}

static void find(const ch_table *t, ch_dtype dtype, const void *keys, int64_t from, int n,
                 uint32_t *index)
{
    if (dtype == CH_STR) {
        find_words(t, n, (const ch_str *)keys + from, index);
    } else if (dtype == CH_I64) {
        find_ids(t, n, (const int64_t *)keys + from, index);
    } else {
        int64_t wide[BATCH];

        for (int i = 0; i < n; i++)
            wide[i] = ((const int32_t *)keys)[from + i];
        find_ids(t, n, wide, index);
    }
}

/* Sets out[i] = value[index[i]]. `bytes` is a constant in each call, so that memcpy becomes a
 * load and a store. */
static inline void copy_values_of(const ch_table *t, int n, const uint32_t *index, char *out,
                                  size_t bytes)
{
    for (int i = 0; i < n; i++)
        memcpy(out + (size_t)i * bytes, t->value + index[i] * bytes, bytes);
}

static void copy_values(const ch_table *t, int n, const uint32_t *index, char *out)
{
    switch (ch_dtype_bytes(t->dtype)) {
    case 1:
        copy_values_of(t, n, index, out, 1);
        break;
    case 2:
        copy_values_of(t, n, index, out, 2);
        break;
    case 4:
        copy_values_of(t, n, index, out, 4);
        break;
    default:
        copy_values_of(t, n, index, out, 8);
    }
}

void ch__table_find(const ch_table *t, ch_dtype dtype, const void *keys, int64_t n, void *out)
{
    const int64_t bytes = (int64_t)ch_dtype_bytes(t->dtype);
    uint32_t      index[BATCH];

    for (int64_t from = 0; from < n; from += BATCH) {
        int count = (int)ch__min(n - from, BATCH);

        find(t, dtype, keys, from, count, index);
        copy_values(t, count, index, (char *)out + from * bytes);
    }
}

ch_status ch_table_find(const ch_table *t, ch_tensor *keys, ch_tensor **out)
{
    ch_tensor *k = NULL, *found = NULL;
    ch_status  rc = ch__check_not_null("table find", "the table", t, "out", out);

    if (rc == CH_OK)
        rc = ch__check_not_null("table find", "keys", keys, NULL, NULL);
    if (rc == CH_OK && !ch__table_accepts(t, keys->dtype))
        rc = ch__fail(CH_INVALID_ARGUMENT, "table find: keys are %s, want %s",
                      ch__tensor_label(keys).text, t->has_words ? "string" : "i32 or i64");
    if (rc == CH_OK)
        rc = ch_tensor_contiguous(keys, &k);
    if (rc == CH_OK)
        rc = ch_tensor_new(t->dtype, keys->shape, &found);
    if (rc == CH_OK) {
        ch__table_find(t, k->dtype, k->data, ch_tensor_count(k), found->data);
        *out = found;
    }
    ch_tensor_unref(k);
    return rc;
}
