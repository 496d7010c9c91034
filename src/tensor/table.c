/* tensor/table.c -- static tables: making one, finding keys.   SPDX-License-Identifier: Apache-2.0
 */
#include "tensor/table.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/hash.h"
#include "base/mem.h"
#include "tensor/print.h"

#define MIX 0x9e3779b97f4a7c15u /* 2^64 over the golden ratio */

/* No two ids have the same. The first bits differ most. */
static inline uint64_t hash_id(int64_t id)
{
    uint64_t x = (uint64_t)id;

    return (x ^ x >> 32) * MIX;
}

static inline uint64_t stir(uint64_t h, uint64_t x)
{
    h = (h ^ x) * MIX;
    return h ^ h >> 32;
}

static uint64_t hash_word(const char *s, size_t n)
{
    uint64_t h = n, x = 0;

    for (; n > 8; n -= 8, s += 8) {
        memcpy(&x, s, 8);
        h = stir(h, x);
    }
    x = 0;
    if (n > 0)
        memcpy(&x, s, n);
    return stir(h, x) * MIX;
}

/* ---- making one ---- */

/* A key that was given, and which. */
typedef struct entry {
    uint64_t hash;
    union {
        int64_t     id;
        const char *text;
    } key;
    uint32_t size; /* of a word; 0 */
    uint32_t from;
} entry;

static int compare(const entry *a, const entry *b)
{
    if (a->hash != b->hash)
        return a->hash < b->hash ? -1 : 1;
    if (a->size != b->size)
        return a->size < b->size ? -1 : 1;
    return a->size > 0 ? memcmp(a->key.text, b->key.text, a->size) : 0;
}

/* Of equal keys the one that was given first. */
static int compare_entries(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    int          c = compare(x, y);

    return c != 0 ? c : x->from < y->from ? -1 : 1;
}

/* What was sent is in order already. */
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

/* Leaves one entry of each key: how many. */
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
                            "table: key %s is there twice, at %u and %u, with different values",
                            text, last->from, e[i].from);
        }
    }
    *n = kept;
    return CH_OK;
}

/* All its arrays, in one piece of memory. */
static bool make_room(ch_table *t, size_t n_buckets, size_t text_bytes)
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

static void fill(ch_table *t, const entry *e, size_t n_buckets, const char *values)
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

/* A table of n entries, which it sorts; `missing` is one value. */
static ch_status make(entry *e, size_t n, bool has_words, ch_dtype dtype, const char *values,
                      const char *missing, ch_table **out)
{
    size_t    n_buckets = 2, text_bytes = 0; /* two, so that a shift is less than 64 */
    ch_table *t;
    ch_status rc;

    sort(e, n);
    rc = merge(e, &n, has_words, values, ch_dtype_bytes(dtype));
    if (rc != CH_OK)
        return rc;
    t = ch__calloc(1, sizeof(*t));
    if (t == NULL)
        return ch__fail_memory("a table");
    atomic_init(&t->refs, 1);
    t->has_words = has_words;
    t->dtype = dtype;
    t->n = (uint32_t)n;
    for (t->shift = 63; n_buckets < n; t->shift--)
        n_buckets *= 2;
    for (size_t i = 0; has_words && i < n; i++)
        text_bytes += e[i].size;
    if (!make_room(t, n_buckets, text_bytes)) {
        ch__free(t);
        return ch__fail(CH_RESOURCE_EXHAUSTED, "table: out of memory for %zu keys", n);
    }
    fill(t, e, n_buckets, values);
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

/* ---- of what was sent ---- */

static ch_status new_entries(size_t n, entry **out)
{
    if (n >= UINT32_MAX)
        return ch__fail(CH_INVALID_ARGUMENT, "table: %zu keys, more than %u", n,
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
        rc = make(e, p->n, p->has_words, p->dtype, values,
                  values + p->n * ch_dtype_bytes(p->dtype), out);
    ch__free(e);
    return rc;
}

/* ---- of tensors ---- */

static ch_status check_keys(const ch_tensor *keys)
{
    const ch_str *word = keys->dtype == CH_STR ? (const ch_str *)(void *)keys->data : NULL;
    uint64_t      bytes = 0;

    for (int64_t i = 0; word != NULL && i < keys->shape.dim[0]; i++) {
        bytes += word[i].size;
        if (word[i].size > UINT32_MAX || bytes > UINT32_MAX)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "table: the first %lld keys have more than %u bytes",
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

/* Both contiguous; no values: places. */
static ch_status make_of(const ch_tensor *keys, const ch_tensor *values, double missing,
                         ch_table **out)
{
    const int64_t n = keys->shape.dim[0];
    ch_dtype      dtype = values != NULL ? values->dtype : CH_I64;
    char          other[8];
    int64_t      *place = NULL;
    entry        *e = NULL;
    ch_status     rc = check_keys(keys);

    if (rc == CH_OK)
        rc = new_entries((size_t)n, &e);
    if (rc == CH_OK && values == NULL &&
        (place = ch__malloc(((size_t)n + 1) * sizeof(*place))) == NULL)
        rc = ch__fail_memory("a table");
    for (int64_t i = 0; i < n && rc == CH_OK; i++) {
        e[i] = entry_at(keys, i);
        if (place != NULL)
            place[i] = i;
    }
    ch__store(dtype, other, missing);
    if (rc == CH_OK)
        rc = make(e, (size_t)n, keys->dtype == CH_STR, dtype,
                  values != NULL ? values->data : (const char *)place, other, out);
    ch__free(place);
    ch__free(e);
    return rc;
}

/* Keys without a value, or the other way round: says which is the first. */
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
    return ch__fail(CH_INVALID_ARGUMENT, "table: %lld keys and %lld values: key %s has none",
                    (long long)n, (long long)m, text);
}

static ch_status check(const ch_tensor *keys, const ch_tensor *values, double missing)
{
    ch_dtype dtype = values != NULL ? values->dtype : CH_I64;

    if ((keys->dtype != CH_I32 && keys->dtype != CH_I64 && keys->dtype != CH_STR) ||
        keys->shape.rank != 1)
        return ch__fail(CH_INVALID_ARGUMENT, "table: keys are %s, want i32, i64 or str(n)",
                        ch__tensor_label(keys).text);
    if (values != NULL && (dtype == CH_STR || values->shape.rank != 1))
        return ch__fail(CH_INVALID_ARGUMENT, "table: values are %s, want numbers (n)",
                        ch__tensor_label(values).text);
    if (!ch__dtype_holds(dtype, missing))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "table: other keys cannot stand for %.17g, as values are %s", missing,
                        ch_dtype_name(dtype));
    return values != NULL && values->shape.dim[0] != keys->shape.dim[0]
               ? fail_sizes(keys, values)
               : CH_OK;
}

ch_status ch_table_new(ch_tensor *keys, ch_tensor *values, double missing, ch_table **out)
{
    ch_tensor *k = NULL, *v = NULL;
    ch_status  rc = ch__want_given("table", "keys", keys, "out", out);

    if (rc == CH_OK)
        rc = ch_tensor_contiguous(keys, &k);
    if (rc == CH_OK && values != NULL)
        rc = ch_tensor_contiguous(values, &v);
    if (rc == CH_OK)
        rc = check(k, v, missing);
    if (rc == CH_OK)
        rc = make_of(k, v, missing, out);
    ch_tensor_unref(k);
    ch_tensor_unref(v);
    return rc;
}

/* ---- comparing ---- */

/* What a table of this kind has for keys, and of how many bytes. */
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

/* ---- finding ---- */

/* So many keys are taken at a time: what is wanted next of memory is asked for, for all of them, before any of it is
 * looked at. */
enum { AT_A_TIME = 64 };

static void find_ids(const ch_table *t, int n, const int64_t *id, uint32_t *place)
{
    const size_t bytes = ch_dtype_bytes(t->dtype);
    uint64_t     bucket[AT_A_TIME];

    for (int i = 0; i < n; i++) {
        bucket[i] = hash_id(id[i]) >> t->shift;
        __builtin_prefetch(&t->first[bucket[i]]);
    }
    for (int i = 0; i < n; i++) {
        place[i] = t->first[bucket[i]];
        __builtin_prefetch(&t->id[place[i]]);
        __builtin_prefetch(t->value + place[i] * bytes);
    }
    for (int i = 0; i < n; i++) {
        uint32_t at = place[i], end = t->first[bucket[i] + 1];

        while (at < end && t->id[at] != id[i])
            at++;
        place[i] = at < end ? at : t->n;
    }
}

static bool is_word(const ch_table *t, uint32_t at, const ch_str *s)
{
    return t->at[at + 1] - t->at[at] == s->size &&
           (s->size == 0 || memcmp(t->text + t->at[at], s->data, s->size) == 0);
}

static void find_words(const ch_table *t, int n, const ch_str *word, uint32_t *place)
{
    uint64_t bucket[AT_A_TIME];

    for (int i = 0; i < n; i++) {
        bucket[i] = hash_word(word[i].data, word[i].size) >> t->shift;
        __builtin_prefetch(&t->first[bucket[i]]);
    }
    for (int i = 0; i < n; i++) {
        place[i] = t->first[bucket[i]];
        __builtin_prefetch(&t->at[place[i]]);
    }
    for (int i = 0; i < n; i++)
        __builtin_prefetch(t->text + t->at[place[i]]);
    for (int i = 0; i < n; i++) {
        uint32_t at = place[i], end = t->first[bucket[i] + 1];

        while (at < end && !is_word(t, at, &word[i]))
            at++;
        place[i] = at < end ? at : t->n;
    }
}

static void find(const ch_table *t, ch_dtype dtype, const void *keys, int64_t from, int n,
                 uint32_t *place)
{
    if (dtype == CH_STR) {
        find_words(t, n, (const ch_str *)keys + from, place);
    } else if (dtype == CH_I64) {
        find_ids(t, n, (const int64_t *)keys + from, place);
    } else {
        int64_t wide[AT_A_TIME];

        for (int i = 0; i < n; i++)
            wide[i] = ((const int32_t *)keys)[from + i];
        find_ids(t, n, wide, place);
    }
}

/* out[i] = value[place[i]], of so many bytes: one of a few numbers. */
static inline void give_as(const ch_table *t, int n, const uint32_t *place, char *out,
                           size_t bytes)
{
    for (int i = 0; i < n; i++)
        memcpy(out + (size_t)i * bytes, t->value + place[i] * bytes, bytes);
}

static void give(const ch_table *t, int n, const uint32_t *place, char *out)
{
    switch (ch_dtype_bytes(t->dtype)) {
    case 1:
        give_as(t, n, place, out, 1);
        break;
    case 2:
        give_as(t, n, place, out, 2);
        break;
    case 4:
        give_as(t, n, place, out, 4);
        break;
    default:
        give_as(t, n, place, out, 8);
    }
}

void ch__table_find(const ch_table *t, ch_dtype dtype, const void *keys, int64_t n, void *out)
{
    const int64_t bytes = (int64_t)ch_dtype_bytes(t->dtype);
    uint32_t      place[AT_A_TIME];

    for (int64_t from = 0; from < n; from += AT_A_TIME) {
        int some = (int)ch__least(n - from, AT_A_TIME);

        find(t, dtype, keys, from, some, place);
        give(t, some, place, (char *)out + from * bytes);
    }
}

ch_status ch_table_find(const ch_table *t, ch_tensor *keys, ch_tensor **out)
{
    ch_tensor *k = NULL, *found = NULL;
    ch_status  rc = ch__want_given("table find", "the table", t, "out", out);

    if (rc == CH_OK)
        rc = ch__want_given("table find", "keys", keys, NULL, NULL);
    if (rc == CH_OK && !ch__table_takes(t, keys->dtype))
        rc = ch__fail(CH_INVALID_ARGUMENT, "table find: keys are %s, and those of the table %s",
                      ch__tensor_label(keys).text, t->has_words ? "str" : "i32 or i64");
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
