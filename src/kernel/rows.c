/* kernel/rows.c -- rows of a table, by their ids.
 *
 * Reading: ch__ids_check, ch__rows_gather. Writing: ch_scatter describes a write;
 * ch__scatter_sort assigns positions to tiles, ch__scatter_fold and ch__scatter_set write. The
 * callers are the index ops, strategy/ and job/.
 *
 * Invariants:
 *   1. An id out of range never causes a read or a write of the table.
 *   2. A row of the table is written by a single tile, in order of position.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/rows.h"
#include "tensor/tensor.h"

#include <string.h>

#include "base/prefetch.h"
#include "kernel/block.h"

/* ---- reading ---- */

int64_t ch__ids_check(ch_ids ids, int64_t from, int64_t to, int64_t limit)
{
    for (int64_t i = from; i < to; i++)
        if ((uint64_t)ch__id(ids, i) >= (uint64_t)limit)
            return i;
    return -1;
}

static uint64_t mix(int64_t id)
{
    return (uint64_t)id * 0x9e3779b97f4a7c15u >> 32;
}

/* Returns the slots of a hash table of n positions: a power of two, so that at least half is
 * empty. */
static uint64_t slots_for(int64_t n)
{
    uint64_t slots = 2;

    while (slots < 2 * (uint64_t)n)
        slots *= 2;
    return slots;
}

size_t ch__ids_keep_last_scratch(int64_t n)
{
    return (size_t)slots_for(n) * sizeof(int64_t);
}

/* Returns the slot of an id. A slot holds the last position of an id plus 1; 0 means empty. */
static int64_t *slot_of(ch_ids ids, int64_t id, int64_t *slot, uint64_t mask)
{
    uint64_t at = mix(id) & mask;

    while (slot[at] != 0 && ch__id(ids, slot[at] - 1) != id)
        at = (at + 1) & mask;
    return &slot[at];
}

void ch__ids_keep_last(ch_ids ids, int64_t n, void *out, void *scratch)
{
    uint64_t mask = slots_for(n) - 1;

    memset(scratch, 0, ch__ids_keep_last_scratch(n));
    for (int64_t i = 0; i < n; i++)
        *slot_of(ids, ch__id(ids, i), scratch, mask) = i + 1;
    for (int64_t i = 0; i < n; i++) {
        int64_t id = ch__id(ids, i);

        if (*slot_of(ids, id, scratch, mask) != i + 1)
            id = -1;
        if (ids.wide)
            ((int64_t *)out)[i] = id;
        else
            ((int32_t *)out)[i] = (int32_t)id;
    }
}

static inline bool in_range(int64_t id, int64_t n_rows)
{
    return (uint64_t)id < (uint64_t)n_rows;
}

/* If `bytes` is a compile-time constant, each memcpy becomes a few moves. */
static inline void gather_rows(ch_ids ids, int64_t from, int64_t to, const char *table,
                               int64_t n_rows, int64_t bytes, char *out)
{
    for (int64_t i = from; i < to; i++) {
        int64_t id = ch__id(ids, i);

        if (i + CH_PREFETCH_ROWS < to && in_range(ch__id(ids, i + CH_PREFETCH_ROWS), n_rows))
            ch__prefetch_read(table + ch__id(ids, i + CH_PREFETCH_ROWS) * bytes, bytes);
        if (in_range(id, n_rows))
            memcpy(out + i * bytes, table + id * bytes, (size_t)bytes);
        else
            memset(out + i * bytes, 0, (size_t)bytes);
    }
}

void ch__rows_gather(ch_ids ids, int64_t from, int64_t to, const void *table, int64_t n_rows,
                     int64_t bytes, void *out)
{
    if (bytes == 1)
        gather_rows(ids, from, to, table, n_rows, 1, out);
    else if (bytes == 2)
        gather_rows(ids, from, to, table, n_rows, 2, out);
    else if (bytes == 4)
        gather_rows(ids, from, to, table, n_rows, 4, out);
    else if (bytes == 8)
        gather_rows(ids, from, to, table, n_rows, 8, out);
    else if (bytes == 64)
        gather_rows(ids, from, to, table, n_rows, 64, out);
    else if (bytes == 128)
        gather_rows(ids, from, to, table, n_rows, 128, out);
    else if (bytes == 256)
        gather_rows(ids, from, to, table, n_rows, 256, out);
    else
        gather_rows(ids, from, to, table, n_rows, bytes, out);
}

/* ---- owners of rows ---- */

#define CHUNK     8192 /* ids that are sorted at a time */
#define MOST_TILE 64

/* With more positions than 32 bits can hold there is a single tile, because scratch positions
 * have 32 bits. */
void ch__scatter_cut(ch_scatter *s, int tiles)
{
    s->tiles = tiles > MOST_TILE ? MOST_TILE : tiles < 1 || s->n_ids > UINT32_MAX ? 1 : tiles;
    s->chunks = s->tiles == 1 ? 0 : (int)((s->n_ids + CHUNK - 1) / CHUNK);
}

/* The scratch memory has, for each chunk, the begin of the positions of each tile and the end
 * of the last; then the positions. */
size_t ch__scatter_scratch(const ch_scatter *s)
{
    if (s->tiles == 1)
        return 0;
    return ((size_t)s->chunks * (size_t)(s->tiles + 1) + (size_t)s->n_ids) * sizeof(uint32_t);
}

static uint32_t *chunk_begins(const ch_scatter *s, void *scratch, int chunk)
{
    return (uint32_t *)scratch + (size_t)chunk * (size_t)(s->tiles + 1);
}

/* Returns the tile that owns a row. Ids are hashed, so that neighbouring busy rows go to
 * different tiles. */
static inline int owner_of(int64_t id, int tiles)
{
    return (int)(mix(id) * (uint64_t)tiles >> 32);
}

void ch__scatter_sort(const ch_scatter *s, ch_ids ids, int chunk, void *scratch)
{
    uint32_t *begin = chunk_begins(s, scratch, chunk);
    uint32_t *order = chunk_begins(s, scratch, s->chunks), at[MOST_TILE] = {0};
    int64_t   first = (int64_t)chunk * CHUNK;
    int64_t   last = first + CHUNK < s->n_ids ? first + CHUNK : s->n_ids;

    for (int64_t i = first; i < last; i++)
        if (in_range(ch__id(ids, i), s->n_rows))
            at[owner_of(ch__id(ids, i), s->tiles)]++;
    begin[0] = (uint32_t)first;
    for (int t = 0; t < s->tiles; t++) {
        begin[t + 1] = begin[t] + at[t];
        at[t] = begin[t];
    }
    for (int64_t i = first; i < last; i++)
        if (in_range(ch__id(ids, i), s->n_rows))
            order[at[owner_of(ch__id(ids, i), s->tiles)]++] = (uint32_t)i;
}

const uint32_t *ch__scatter_owned(const ch_scatter *s, const void *scratch, int chunk, int tile,
                                  int64_t *n)
{
    const uint32_t *begin = (const uint32_t *)scratch + (size_t)chunk * (size_t)(s->tiles + 1);
    const uint32_t *order =
        (const uint32_t *)scratch + (size_t)s->chunks * (size_t)(s->tiles + 1);

    *n = (int64_t)begin[tile + 1] - begin[tile];
    return order + begin[tile];
}

/* ---- folds of rows ---- */

#define WIDEN_CHUNK 512 /* 16-bit elements that are widened at a time */

/* Folds a row of 16-bit floats into f32, or into 16 bits with rounding. */
static void fold_half_row(const ch_scatter *s, const uint16_t *from, void *to)
{
    const ch_block_table *b = ch__blocks();
    ch_block_fn           fold = b->fn[s->fold][CH_F32];

    for (int64_t i = 0; i < s->width; i += WIDEN_CHUNK) {
        int64_t   n = s->width - i < WIDEN_CHUNK ? s->width - i : WIDEN_CHUNK;
        float     x[WIDEN_CHUNK], y[WIDEN_CHUNK];
        uint16_t *half = (uint16_t *)to + i;
        float    *into = s->wide ? (float *)to + i : y;

        b->widen[s->dtype](n, (const void *[]){from + i}, x, NULL);
        if (!s->wide)
            b->widen[s->dtype](n, (const void *[]){half}, y, NULL);
        fold(n, (const void *[]){into, x}, into, NULL);
        if (!s->wide)
            b->narrow[s->dtype](n, (const void *[]){y}, half, NULL);
    }
}

/* ---- writing ---- */

typedef struct target {
    char   *table;
    int64_t from, to; /* bytes of a row of the source and of the table */
} target;

static inline void write_row(const ch_scatter *s, const target *t, const char *row, int64_t id,
                             bool set)
{
    char *to = t->table + id * t->to;

    if (set)
        memcpy(to, row, (size_t)t->to);
    else if (ch__dtype_is_half(s->dtype))
        fold_half_row(s, (const uint16_t *)(const void *)row, to);
    else
        ch__blocks()->fn[s->fold][s->dtype](s->width, (const void *[]){to, row}, to, NULL);
}

static inline void write_all(const ch_scatter *s, ch_ids ids, const char *rows, const target *t,
                             bool set)
{
    for (int64_t i = 0; i < s->n_ids; i++) {
        int64_t id = ch__id(ids, i);

        if (i + CH_PREFETCH_ROWS < s->n_ids &&
            in_range(ch__id(ids, i + CH_PREFETCH_ROWS), s->n_rows))
            ch__prefetch_write(t->table + ch__id(ids, i + CH_PREFETCH_ROWS) * t->to, t->to);
        if (in_range(id, s->n_rows))
            write_row(s, t, rows + i * t->from, id, set);
    }
}

static inline void write_owned(const ch_scatter *s, ch_ids ids, const char *rows,
                               const target *t, bool set, int tile, const void *scratch)
{
    for (int chunk = 0; chunk < s->chunks; chunk++) {
        int64_t         n;
        const uint32_t *at = ch__scatter_owned(s, scratch, chunk, tile, &n);

        for (int64_t k = 0; k < n; k++) {
            if (k + CH_PREFETCH_ROWS < n)
                ch__prefetch_write(t->table + ch__id(ids, at[k + CH_PREFETCH_ROWS]) * t->to,
                                   t->to);
            write_row(s, t, rows + at[k] * t->from, ch__id(ids, at[k]), set);
        }
    }
}

static target target_of(const ch_scatter *s, void *table)
{
    int64_t bytes = s->width * (int64_t)ch_dtype_bytes(s->dtype);

    return (target){table, bytes, s->wide ? s->width * (int64_t)sizeof(float) : bytes};
}

void ch__scatter_fold(const ch_scatter *s, ch_ids ids, const void *rows, void *table, int tile,
                      const void *scratch)
{
    target t = target_of(s, table);

    if (s->tiles == 1)
        write_all(s, ids, rows, &t, false);
    else
        write_owned(s, ids, rows, &t, false, tile, scratch);
}

void ch__scatter_set(const ch_scatter *s, ch_ids ids, const void *rows, void *table, int tile,
                     const void *scratch)
{
    target t = target_of(s, table);

    if (s->tiles == 1)
        write_all(s, ids, rows, &t, true);
    else
        write_owned(s, ids, rows, &t, true, tile, scratch);
}
