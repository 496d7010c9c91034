/* kernel/rows.c -- rows of a table, by their ids.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/rows.h"

#include <string.h>

#include "tensor/tensor.h"

#define AHEAD 16 /* rows that are asked for before they are needed */
#define LINE  64

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

/* Slots of a table of positions: a power of two that stays half empty. */
static uint64_t slots_for(int64_t n)
{
    uint64_t slots = 2;

    while (slots < 2 * (uint64_t)n)
        slots *= 2;
    return slots;
}

size_t ch__ids_last_scratch(int64_t n)
{
    return (size_t)slots_for(n) * sizeof(int64_t);
}

/* The slot of an id holds its last position, plus one; 0 is an empty slot. */
static int64_t *slot_of(ch_ids ids, int64_t id, int64_t *slot, uint64_t mask)
{
    uint64_t at = mix(id) & mask;

    while (slot[at] != 0 && ch__id(ids, slot[at] - 1) != id)
        at = (at + 1) & mask;
    return &slot[at];
}

void ch__ids_last(ch_ids ids, int64_t n, void *out, void *scratch)
{
    uint64_t mask = slots_for(n) - 1;

    memset(scratch, 0, ch__ids_last_scratch(n));
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

static inline void ask_for(const char *row, int64_t bytes)
{
    int64_t most = bytes < 8 * LINE ? bytes : 8 * LINE; /* the rest the CPU sees coming */

    for (int64_t i = 0; i < most; i += LINE)
        __builtin_prefetch(row + i, 0, 3);
}

static inline bool in_range(int64_t id, int64_t n_rows)
{
    return (uint64_t)id < (uint64_t)n_rows;
}

/* Inlined with a constant `bytes`, each memcpy is a few moves. */
static inline void gather_rows(ch_ids ids, int64_t from, int64_t to, const char *table,
                               int64_t n_rows, int64_t bytes, char *out)
{
    for (int64_t i = from; i < to; i++) {
        int64_t id = ch__id(ids, i);

        if (i + AHEAD < to && in_range(ch__id(ids, i + AHEAD), n_rows))
            ask_for(table + ch__id(ids, i + AHEAD) * bytes, bytes);
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
    else
        gather_rows(ids, from, to, table, n_rows, bytes, out);
}

/* ---- adding rows ---- */

typedef void (*add_row)(int64_t n, const void *from, void *to);

static void add_f32(int64_t n, const void *from, void *to)
{
    const float *a = from;
    float       *b = to;

    for (int64_t i = 0; i < n; i++)
        b[i] += a[i];
}

static void add_f64(int64_t n, const void *from, void *to)
{
    const double *a = from;
    double       *b = to;

    for (int64_t i = 0; i < n; i++)
        b[i] += a[i];
}

/* Integers wrap around, as unsigned ones do. */
static void add_8(int64_t n, const void *from, void *to)
{
    const uint8_t *a = from;
    uint8_t       *b = to;

    for (int64_t i = 0; i < n; i++)
        b[i] = (uint8_t)(b[i] + a[i]);
}

static void add_32(int64_t n, const void *from, void *to)
{
    const uint32_t *a = from;
    uint32_t       *b = to;

    for (int64_t i = 0; i < n; i++)
        b[i] += a[i];
}

static void add_64(int64_t n, const void *from, void *to)
{
    const uint64_t *a = from;
    uint64_t       *b = to;

    for (int64_t i = 0; i < n; i++)
        b[i] += a[i];
}

static void add_bf16(int64_t n, const void *from, void *to)
{
    const uint16_t *a = from;
    uint16_t       *b = to;

    for (int64_t i = 0; i < n; i++)
        b[i] = ch__bf16_of_f32(ch__bf16_to_f32(b[i]) + ch__bf16_to_f32(a[i]));
}

static void add_f16(int64_t n, const void *from, void *to)
{
    const uint16_t *a = from;
    uint16_t       *b = to;

    for (int64_t i = 0; i < n; i++)
        b[i] = ch__f16_of_f32(ch__f16_to_f32(b[i]) + ch__f16_to_f32(a[i]));
}

static void add_bf16_wide(int64_t n, const void *from, void *to)
{
    const uint16_t *a = from;
    float          *b = to;

    for (int64_t i = 0; i < n; i++)
        b[i] += ch__bf16_to_f32(a[i]);
}

static void add_f16_wide(int64_t n, const void *from, void *to)
{
    const uint16_t *a = from;
    float          *b = to;

    for (int64_t i = 0; i < n; i++)
        b[i] += ch__f16_to_f32(a[i]);
}

static add_row adder_of(ch_dtype t, bool wide)
{
    switch (t) {
    case CH_F32:
        return add_f32;
    case CH_F64:
        return add_f64;
    case CH_BF16:
        return wide ? add_bf16_wide : add_bf16;
    case CH_F16:
        return wide ? add_f16_wide : add_f16;
    case CH_I32:
        return add_32;
    case CH_I64:
        return add_64;
    default:
        return add_8;
    }
}

/* ---- writing ---- */

int ch__scatter_tiles(int64_t n_ids, int64_t width, int tiles)
{
    int64_t most = 2 + width / 4; /* looking at an id costs as much as a few elements */

    (void)n_ids;
    return most < tiles ? (int)most : tiles;
}

/* Which tile owns a row: mixed, so that busy rows side by side are not all one tile's. */
static inline bool owns(int64_t id, int tiles, int tile)
{
    return (int)(mix(id) * (uint64_t)tiles >> 32) == tile;
}

void ch__scatter_add(const ch_scatter *s, ch_ids ids, const void *rows, void *table, int tile)
{
    int64_t step = s->width * (int64_t)ch_dtype_bytes(s->dtype);
    int64_t stride = s->wide ? s->width * (int64_t)sizeof(float) : step;
    add_row add = adder_of(s->dtype, s->wide);

    for (int64_t i = 0; i < s->n_ids; i++) {
        int64_t id = ch__id(ids, i);

        if (in_range(id, s->n_rows) && (s->tiles == 1 || owns(id, s->tiles, tile)))
            add(s->width, (const char *)rows + i * step, (char *)table + id * stride);
    }
}

void ch__scatter_set(const ch_scatter *s, ch_ids ids, const void *rows, void *table, int tile)
{
    int64_t step = s->width * (int64_t)ch_dtype_bytes(s->dtype);

    for (int64_t i = 0; i < s->n_ids; i++) {
        int64_t id = ch__id(ids, i);

        if (in_range(id, s->n_rows) && (s->tiles == 1 || owns(id, s->tiles, tile)))
            memcpy((char *)table + id * step, (const char *)rows + i * step, (size_t)step);
    }
}

void ch__round_to(ch_dtype dtype, int64_t n, const float *from, void *to)
{
    uint16_t *b = to;

    if (dtype == CH_BF16)
        for (int64_t i = 0; i < n; i++)
            b[i] = ch__bf16_of_f32(from[i]);
    else
        for (int64_t i = 0; i < n; i++)
            b[i] = ch__f16_of_f32(from[i]);
}
