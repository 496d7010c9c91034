/* job/id_split.c -- divides row ids by the shard that holds each row (shard.h).
 *
 * Two passes over the list of ids. find_shards finds the shard of each id and counts the ids of
 * each shard. fill_shards lists the positions of each shard, and finds repeated ids with a hash
 * table. Callers are step_exec/ and strategy/var_rows.c.
 *
 * Invariants:
 *   1. Positions of a shard are in the order of the list. So an update receives the rows of a
 *      repeated id in the order in which the worker has them.
 *   2. The hash table is not cleared between lists. Each list has its own `pass` number, and a
 *      slot is in use if it has the number of the current list.
 *   3. The table has at least twice as many slots as the list has ids.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/mem.h"
#include "base/prefetch.h"
#include "job/shard.h"
#include "kernel/rows.h"
#include "tensor/buffer_pool.h"
#include "tensor/tensor.h"

/* A slot of the hash table of distinct ids. */
typedef struct slot {
    int64_t  id;
    uint32_t pass;         /* see invariant 2 */
    uint32_t unique_index; /* index among the distinct ids of its shard */
} slot;

struct ch_id_split {
    int n_shards;
    /* Number of ids; rows of the variable; first position with an id out of range, or -1. */
    int64_t   n, size, first_invalid;
    ch_shape  shape; /* of the list of ids */
    ch_dtype  dtype; /* of the ids: i32 or i64 */
    int64_t   cap, cap_slots, cap_shards;
    int32_t  *shard;        /* by position: the shard of the id; -1: out of range */
    uint32_t *unique_index; /* by position: index among the distinct ids of the shard */
    int64_t  *local;        /* by position: the row, counted from the shard's first row */
    int64_t  *position;     /* positions, shard by shard: those of shard i from begin[i] on */
    int64_t  *unique;       /* distinct local rows: those of shard i from begin[i] on */
    int64_t  *begin;        /* n_shards + 1 entries; the last is the number of ids in range */
    int64_t  *first;        /* by shard: its first row */
    int64_t  *n_unique;     /* by shard: number of distinct ids */
    slot     *table;
    uint32_t  pass;

    ch_buffer_pool pool;
    ch_device     *device; /* of the tensors that are created; NULL: the current device */
};

ch_status ch__id_split_new(ch_id_split **out)
{
    *out = ch__calloc(1, sizeof(**out));
    return *out != NULL ? CH_OK : ch__fail_memory("a lookup");
}

static void free_id_tables(ch_id_split *s)
{
    ch__free(s->shard);
    ch__free(s->unique_index);
    ch__free(s->local);
    ch__free(s->position);
    ch__free(s->unique);
    s->shard = NULL;
    s->unique_index = NULL;
    s->local = s->position = s->unique = NULL;
    s->cap = 0;
}

static void free_shard_tables(ch_id_split *s)
{
    ch__free(s->begin);
    ch__free(s->first);
    ch__free(s->n_unique);
    s->begin = s->first = s->n_unique = NULL;
    s->cap_shards = 0;
}

void ch__id_split_free(ch_id_split *s)
{
    if (s == NULL)
        return;
    free_id_tables(s);
    ch__buffer_pool_drop(&s->pool);
    free_shard_tables(s);
    ch__free(s->table);
    ch__free(s);
}

void ch__id_split_set_device(ch_id_split *s, ch_device *device)
{
    s->device = device;
}

/* Creates a tensor with undefined contents. */
static ch_status new_tensor(ch_id_split *s, ch_dtype dtype, ch_shape shape, ch_tensor **out)
{
    ch_device *device = s->device != NULL ? s->device : ch_device_current();

    return ch__buffer_pool_get(&s->pool, device, dtype, shape, out);
}

static ch_status reserve_ids(ch_id_split *s, int64_t n)
{
    if (n <= s->cap)
        return CH_OK;
    free_id_tables(s);
    s->shard = ch__calloc((size_t)n, sizeof(*s->shard));
    s->unique_index = ch__calloc((size_t)n, sizeof(*s->unique_index));
    s->local = ch__calloc((size_t)n, sizeof(*s->local));
    s->position = ch__calloc((size_t)n, sizeof(*s->position));
    s->unique = ch__calloc((size_t)n, sizeof(*s->unique));
    if (s->shard == NULL || s->unique_index == NULL || s->local == NULL ||
        s->position == NULL || s->unique == NULL)
        return ch__fail_memory("a lookup");
    s->cap = n;
    return CH_OK;
}

static ch_status reserve_shards(ch_id_split *s, int n)
{
    if (n <= s->cap_shards)
        return CH_OK;
    free_shard_tables(s);
    s->begin = ch__calloc((size_t)n + 2, sizeof(*s->begin));
    s->first = ch__calloc((size_t)n + 1, sizeof(*s->first));
    s->n_unique = ch__calloc((size_t)n + 1, sizeof(*s->n_unique));
    if (s->begin == NULL || s->first == NULL || s->n_unique == NULL)
        return ch__fail_memory("a lookup");
    s->cap_shards = n;
    return CH_OK;
}

/* Makes the hash table large enough and begins a new pass. */
static ch_status reserve_slots(ch_id_split *s, int64_t n)
{
    int64_t want = 64;

    while (want < 2 * n)
        want *= 2;
    if (want > s->cap_slots) {
        ch__free(s->table);
        s->cap_slots = 0;
        s->table = ch__calloc((size_t)want, sizeof(*s->table));
        if (s->table == NULL)
            return ch__fail_memory("a lookup");
        s->cap_slots = want;
        s->pass = 0;
    }
    if (++s->pass == 0) { /* the counter wrapped: old slots could seem to be in use */
        memset(s->table, 0, (size_t)s->cap_slots * sizeof(*s->table));
        s->pass = 1;
    }
    return CH_OK;
}

/* Returns the hash of an id: the slot to begin the search at, before masking. */
static uint64_t hash_of(int64_t id)
{
    return ((uint64_t)id * 0x9E3779B97F4A7C15u) >> 20;
}

/* Returns the slot of an id, or the free slot where it belongs (linear probing). */
static slot *find_slot(const ch_id_split *s, int64_t id)
{
    uint64_t mask = (uint64_t)s->cap_slots - 1, at = hash_of(id);

    while (s->table[at & mask].pass == s->pass && s->table[at & mask].id != id)
        at++;
    return &s->table[at & mask];
}

/* Turns counts, begin[i + 1] for shard i, into the beginnings of the shards. */
static void sum_counts(ch_id_split *s)
{
    for (int i = 0; i < s->n_shards; i++)
        s->begin[i + 1] += s->begin[i];
}

/* Returns the shard of an id in range. If there are few shards, compares instead of dividing,
 * because a division for each id would take most of the time. */
static int shard_of(const ch_id_split *s, int64_t id)
{
    enum { FEW = 8 };
    int i = 0;

    if (s->n_shards > FEW)
        return ch__part_of(s->size, s->n_shards, id);
    for (int k = 1; k < s->n_shards; k++)
        i += id >= s->first[k];
    return i;
}

/* Finds the shard and the local row of each id, and counts the ids of each shard. */
static void find_shards(ch_id_split *s, ch_ids ids)
{
    for (int i = 0; i < s->n_shards; i++)
        s->first[i] = ch__part_begin(s->size, s->n_shards, i);
    memset(s->begin, 0, ((size_t)s->n_shards + 1) * sizeof(*s->begin));
    memset(s->n_unique, 0, (size_t)s->n_shards * sizeof(*s->n_unique));
    s->first_invalid = -1;
    for (int64_t p = 0; p < s->n; p++) {
        int64_t id = ch__id(ids, p);

        s->shard[p] = -1;
        if ((uint64_t)id >= (uint64_t)s->size) {
            s->first_invalid = s->first_invalid < 0 ? p : s->first_invalid;
            continue;
        }
        s->shard[p] = shard_of(s, id);
        s->local[p] = id - s->first[s->shard[p]];
        s->begin[s->shard[p] + 1]++;
    }
    sum_counts(s);
}

/* Lists the positions and the distinct ids of each shard. `next` is scratch memory for one
 * number per shard. */
static void fill_shards(ch_id_split *s, ch_ids ids, int64_t *next)
{
    uint64_t mask = (uint64_t)s->cap_slots - 1;

    memcpy(next, s->begin, (size_t)s->n_shards * sizeof(*next));
    for (int64_t p = 0; p < s->n; p++) {
        int   i = s->shard[p];
        slot *at;

        if (p + CH_PREFETCH_ROWS < s->n)
            ch__prefetch_write(
                (const char *)&s->table[hash_of(ch__id(ids, p + CH_PREFETCH_ROWS)) & mask],
                (int64_t)sizeof(slot));
        if (i < 0)
            continue;
        s->position[next[i]++] = p;
        at = find_slot(s, ch__id(ids, p));
        if (at->pass != s->pass) {
            *at = (slot){ch__id(ids, p), s->pass, (uint32_t)s->n_unique[i]};
            s->unique[s->begin[i] + s->n_unique[i]++] = s->local[p];
        }
        s->unique_index[p] = at->unique_index;
    }
}

ch_status ch__id_split(ch_id_split *s, const ch_tensor *ids, int64_t size, int n)
{
    ch_ids    at = ch__ids(ids->data, ids->dtype == CH_I64);
    int64_t   count = ch_tensor_count(ids), *next;
    ch_status rc = reserve_ids(s, count);

    if (rc == CH_OK)
        rc = reserve_shards(s, n);
    if (rc == CH_OK)
        rc = reserve_slots(s, count);
    next = rc == CH_OK ? ch__calloc((size_t)n, sizeof(*next)) : NULL;
    if (rc == CH_OK && next == NULL)
        rc = ch__fail_memory("a lookup");
    if (rc != CH_OK)
        return rc;
    s->n = count;
    s->shape = ids->shape;
    s->dtype = ids->dtype;
    s->size = size;
    s->n_shards = n;
    find_shards(s, at);
    fill_shards(s, at, next);
    ch__free(next);
    return CH_OK;
}

int64_t ch__id_split_first_invalid(const ch_id_split *s)
{
    return s->first_invalid;
}

/* ---- lookups ---- */

int64_t ch__id_split_lookup_count(const ch_id_split *s, int i)
{
    return s->n_unique[i];
}

ch_status ch__id_split_lookup_ids(ch_id_split *s, int i, ch_tensor **out)
{
    ch_status rc;

    *out = NULL;
    if (s->n_unique[i] == 0)
        return CH_OK;
    rc = new_tensor(s, CH_I64, ch_shape_of(s->n_unique[i]), out);
    if (rc == CH_OK)
        memcpy((*out)->data, s->unique + s->begin[i], (size_t)s->n_unique[i] * sizeof(int64_t));
    return rc;
}

ch_status ch__id_split_lookup_rows(ch_id_split *s, ch_dtype dtype, ch_shape row,
                                   ch_tensor *const *part, ch_tensor **out)
{
    ch_shape  shape = s->shape;
    size_t    bytes = (size_t)ch_shape_count(row) * ch_dtype_bytes(dtype);
    ch_status rc;

    if (shape.rank + row.rank > CH_MAX_RANK)
        return ch__fail(CH_INVALID_ARGUMENT, "lookup: the result would have %d axes",
                        shape.rank + row.rank);
    for (int k = 0; k < row.rank; k++)
        shape.dim[shape.rank++] = row.dim[k];
    rc = new_tensor(s, dtype, shape, out);
    for (int64_t p = 0; p < s->n && rc == CH_OK; p++)
        if (s->shard[p] >= 0)
            memcpy((*out)->data + (size_t)p * bytes,
                   part[s->shard[p]]->data + s->unique_index[p] * bytes, bytes);
        else
            memset((*out)->data + (size_t)p * bytes, 0, bytes);
    return rc;
}

/* ---- updates ---- */

/* Rounds a number of ids up, so that few different sizes occur. */
static int64_t round_up(int64_t n)
{
    int64_t unit = 8;

    while (unit * 16 <= n)
        unit *= 2;
    return (n + unit - 1) / unit * unit;
}

/* The dtype is that of the worker's ids, for which the update was recorded. */
ch_status ch__id_split_update_ids(ch_id_split *s, int i, ch_tensor **out)
{
    int64_t   n = s->begin[i + 1] - s->begin[i], room = round_up(n);
    ch_status rc = new_tensor(s, s->dtype, ch_shape_of(room), out);

    for (int64_t k = 0; k < room && rc == CH_OK; k++) {
        int64_t id = k < n ? s->local[s->position[s->begin[i] + k]] : -1;

        if (s->dtype == CH_I64)
            ((int64_t *)(void *)(*out)->data)[k] = id;
        else
            ((int32_t *)(void *)(*out)->data)[k] = (int32_t)id;
    }
    return rc;
}

ch_status ch__id_split_update_rows(ch_id_split *s, ch_tensor *rows, int i, ch_tensor **out)
{
    int64_t   n = s->begin[i + 1] - s->begin[i];
    ch_shape  shape = rows->shape;
    size_t    bytes;
    ch_status rc;

    if (shape.rank < 1 || shape.dim[0] != s->n)
        return ch__fail(CH_INTERNAL, "update: %lld rows for %lld ids",
                        (long long)(shape.rank < 1 ? 0 : shape.dim[0]), (long long)s->n);
    bytes = s->n > 0 ? ch_tensor_bytes(rows) / (size_t)s->n : 0;
    shape.dim[0] = round_up(n);
    rc = new_tensor(s, rows->dtype, shape, out);
    if (rc == CH_OK)
        ch__rows_gather(ch__ids(s->position + s->begin[i], true), 0, n, rows->data, s->n,
                        (int64_t)bytes, (*out)->data);
    if (rc == CH_OK)
        memset((*out)->data + (size_t)n * bytes, 0, (size_t)(shape.dim[0] - n) * bytes);
    return rc;
}
