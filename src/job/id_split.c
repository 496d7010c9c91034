/* job/id_split.c -- ids of rows, by the shard that has them.
 *
 * One pass over the ids finds for each its shard and, in a hash table, whether it was seen. The table holds numbers of asked
 * ids and is never emptied: an entry counts if it belongs to this pass. Then positions are laid out shard by
 * shard, in their order, so that an update sees the rows of an id in the order in which the worker has them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/mem.h"
#include "base/prefetch.h"
#include "job/shard.h"
#include "kernel/rows.h"
#include "tensor/buffer_pool.h"
#include "tensor/tensor.h"

typedef struct slot {
    int64_t  id;
    uint32_t pass;
    uint32_t asked; /* which of its shard's */
} slot;

struct ch_id_split {
    int       n_shards;
    int64_t   n, size, stray;
    ch_shape  shape; /* of the ids */
    ch_dtype  dtype; /* i32 or i64 */
    int64_t   cap, cap_slots, cap_shards;
    int32_t  *shard;    /* of each position; -1: nobody's */
    uint32_t *asked;    /* of each position: which of the ids that its shard is asked for */
    int64_t  *local;    /* of each position: the row, counted from the shard's first */
    int64_t  *position; /* laid out shard by shard */
    int64_t  *unique;   /* asked ids, in the places of `position` */
    int64_t  *begin;    /* of each shard in both, and where the last one ends */
    int64_t  *first;    /* row of each shard */
    int64_t  *n_asked;  /* of each shard */
    slot     *table;
    uint32_t  pass;

    ch_buffer_pool pool;
    ch_device     *device; /* NULL: the current one */
};

ch_status ch__id_split_new(ch_id_split **out)
{
    *out = ch__calloc(1, sizeof(**out));
    return *out != NULL ? CH_OK : ch__fail_memory("a lookup");
}

static void drop_room(ch_id_split *s)
{
    ch__free(s->shard);
    ch__free(s->asked);
    ch__free(s->local);
    ch__free(s->position);
    ch__free(s->unique);
    s->shard = NULL;
    s->asked = NULL;
    s->local = s->position = s->unique = NULL;
    s->cap = 0;
}

static void drop_shards(ch_id_split *s)
{
    ch__free(s->begin);
    ch__free(s->first);
    ch__free(s->n_asked);
    s->begin = s->first = s->n_asked = NULL;
    s->cap_shards = 0;
}

void ch__id_split_free(ch_id_split *s)
{
    if (s == NULL)
        return;
    drop_room(s);
    ch__buffer_pool_drop(&s->pool);
    drop_shards(s);
    ch__free(s->table);
    ch__free(s);
}

void ch__id_split_place(ch_id_split *s, ch_device *device)
{
    s->device = device;
}

/* In which there is anything. */
static ch_status new_tensor(ch_id_split *s, ch_dtype dtype, ch_shape shape, ch_tensor **out)
{
    ch_device *device = s->device != NULL ? s->device : ch_device_current();

    return ch__buffer_pool_get(&s->pool, device, dtype, shape, out);
}

static ch_status room_for_ids(ch_id_split *s, int64_t n)
{
    if (n <= s->cap)
        return CH_OK;
    drop_room(s);
    s->shard = ch__calloc((size_t)n, sizeof(*s->shard));
    s->asked = ch__calloc((size_t)n, sizeof(*s->asked));
    s->local = ch__calloc((size_t)n, sizeof(*s->local));
    s->position = ch__calloc((size_t)n, sizeof(*s->position));
    s->unique = ch__calloc((size_t)n, sizeof(*s->unique));
    if (s->shard == NULL || s->asked == NULL || s->local == NULL || s->position == NULL ||
        s->unique == NULL)
        return ch__fail_memory("a lookup");
    s->cap = n;
    return CH_OK;
}

static ch_status room_for_shards(ch_id_split *s, int n)
{
    if (n <= s->cap_shards)
        return CH_OK;
    drop_shards(s);
    s->begin = ch__calloc((size_t)n + 2, sizeof(*s->begin));
    s->first = ch__calloc((size_t)n + 1, sizeof(*s->first));
    s->n_asked = ch__calloc((size_t)n + 1, sizeof(*s->n_asked));
    if (s->begin == NULL || s->first == NULL || s->n_asked == NULL)
        return ch__fail_memory("a lookup");
    s->cap_shards = n;
    return CH_OK;
}

/* At least twice as many slots as ids. */
static ch_status room_for_slots(ch_id_split *s, int64_t n)
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
    if (++s->pass == 0) { /* all that there were have been used */
        memset(s->table, 0, (size_t)s->cap_slots * sizeof(*s->table));
        s->pass = 1;
    }
    return CH_OK;
}

static uint64_t place_of(int64_t id)
{
    return ((uint64_t)id * 0x9E3779B97F4A7C15u) >> 20;
}

static slot *find_slot(const ch_id_split *s, int64_t id)
{
    uint64_t mask = (uint64_t)s->cap_slots - 1, at = place_of(id);

    while (s->table[at & mask].pass == s->pass && s->table[at & mask].id != id)
        at++;
    return &s->table[at & mask];
}

/* Where each shard's part begins, from how many positions it has. */
static void lay_out(ch_id_split *s)
{
    for (int i = 0; i < s->n_shards; i++)
        s->begin[i + 1] += s->begin[i];
}

/* A division for each id is most of what this costs: with few shards there are comparisons instead. */
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

static void find_shards(ch_id_split *s, ch_ids ids)
{
    for (int i = 0; i < s->n_shards; i++)
        s->first[i] = ch__part_begin(s->size, s->n_shards, i);
    memset(s->begin, 0, ((size_t)s->n_shards + 1) * sizeof(*s->begin));
    memset(s->n_asked, 0, (size_t)s->n_shards * sizeof(*s->n_asked));
    s->stray = -1;
    for (int64_t p = 0; p < s->n; p++) {
        int64_t id = ch__id(ids, p);

        s->shard[p] = -1;
        if ((uint64_t)id >= (uint64_t)s->size) {
            s->stray = s->stray < 0 ? p : s->stray;
            continue;
        }
        s->shard[p] = shard_of(s, id);
        s->local[p] = id - s->first[s->shard[p]];
        s->begin[s->shard[p] + 1]++;
    }
    lay_out(s);
}

/* Positions go to their shards in order; `n_asked` counts those that were not seen before. */
static void fill_shards(ch_id_split *s, ch_ids ids, int64_t *next)
{
    uint64_t mask = (uint64_t)s->cap_slots - 1;

    memcpy(next, s->begin, (size_t)s->n_shards * sizeof(*next));
    for (int64_t p = 0; p < s->n; p++) {
        int   i = s->shard[p];
        slot *at;

        if (p + CH_PREFETCH_ROWS < s->n)
            ch__prefetch_write(
                (const char *)&s->table[place_of(ch__id(ids, p + CH_PREFETCH_ROWS)) & mask],
                (int64_t)sizeof(slot));
        if (i < 0)
            continue;
        s->position[next[i]++] = p;
        at = find_slot(s, ch__id(ids, p));
        if (at->pass != s->pass) {
            *at = (slot){ch__id(ids, p), s->pass, (uint32_t)s->n_asked[i]};
            s->unique[s->begin[i] + s->n_asked[i]++] = s->local[p];
        }
        s->asked[p] = at->asked;
    }
}

ch_status ch__id_split(ch_id_split *s, const ch_tensor *ids, int64_t size, int n)
{
    ch_ids    at = {ids->data, ids->dtype == CH_I64};
    int64_t   count = ch_tensor_count(ids), *next;
    ch_status rc = room_for_ids(s, count);

    if (rc == CH_OK)
        rc = room_for_shards(s, n);
    if (rc == CH_OK)
        rc = room_for_slots(s, count);
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

int64_t ch__id_split_stray(const ch_id_split *s)
{
    return s->stray;
}

/* ---- lookups ---- */

int64_t ch__id_split_count(const ch_id_split *s, int i)
{
    return s->n_asked[i];
}

ch_status ch__id_split_asked(ch_id_split *s, int i, ch_tensor **out)
{
    ch_status rc;

    *out = NULL;
    if (s->n_asked[i] == 0)
        return CH_OK;
    rc = new_tensor(s, CH_I64, ch_shape_of(s->n_asked[i]), out);
    if (rc == CH_OK)
        memcpy((*out)->data, s->unique + s->begin[i], (size_t)s->n_asked[i] * sizeof(int64_t));
    return rc;
}

ch_status ch__id_split_spread(ch_id_split *s, ch_dtype dtype, ch_shape row,
                              ch_tensor *const *part, ch_tensor **out)
{
    ch_shape  shape = s->shape;
    size_t    bytes = (size_t)ch_shape_count(row) * ch_dtype_bytes(dtype);
    ch_status rc;

    if (shape.rank + row.rank > CH_MAX_RANK)
        return ch__fail(CH_INVALID_ARGUMENT, "a lookup: its rows would have %d axes",
                        shape.rank + row.rank);
    for (int k = 0; k < row.rank; k++)
        shape.dim[shape.rank++] = row.dim[k];
    rc = new_tensor(s, dtype, shape, out);
    for (int64_t p = 0; p < s->n && rc == CH_OK; p++)
        if (s->shard[p] >= 0)
            memcpy((*out)->data + (size_t)p * bytes,
                   part[s->shard[p]]->data + s->asked[p] * bytes, bytes);
        else
            memset((*out)->data + (size_t)p * bytes, 0, bytes);
    return rc;
}

/* ---- updates ---- */

/* A few sizes in each power of two. */
static int64_t rounded(int64_t n)
{
    int64_t unit = 8;

    while (unit * 16 <= n)
        unit *= 2;
    return (n + unit - 1) / unit * unit;
}

/* As the update was recorded, they are of the dtype that the worker's are. */
ch_status ch__id_split_sent(ch_id_split *s, int i, ch_tensor **out)
{
    int64_t   n = s->begin[i + 1] - s->begin[i], room = rounded(n);
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

ch_status ch__id_split_rows(ch_id_split *s, ch_tensor *rows, int i, ch_tensor **out)
{
    int64_t   n = s->begin[i + 1] - s->begin[i];
    ch_shape  shape = rows->shape;
    size_t    bytes;
    ch_status rc;

    if (shape.rank < 1 || shape.dim[0] != s->n)
        return ch__fail(CH_INTERNAL, "an update has %lld rows for %lld ids",
                        (long long)(shape.rank < 1 ? 0 : shape.dim[0]), (long long)s->n);
    bytes = s->n > 0 ? ch_tensor_bytes(rows) / (size_t)s->n : 0;
    shape.dim[0] = rounded(n);
    rc = new_tensor(s, rows->dtype, shape, out);
    if (rc == CH_OK)
        ch__rows_gather((ch_ids){s->position + s->begin[i], true}, 0, n, rows->data, s->n,
                        (int64_t)bytes, (*out)->data);
    if (rc == CH_OK)
        memset((*out)->data + (size_t)n * bytes, 0, (size_t)(shape.dim[0] - n) * bytes);
    return rc;
}
