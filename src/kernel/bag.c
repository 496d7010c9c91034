/* kernel/bag.c -- rows of a table added up in bags.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/bag.h"

#include <string.h>

#include "kernel/block.h"
#include "kernel/times.h"
#include "tensor/tensor.h"

#define AHEAD 16
#define LINE  64

static const ch_times_table *const levels[] = CH_SIMD_LIST(ch__times_table);

/* ---- a row times a number; f64 in f64, the others in f32 ---- */

#define ROOM 512 /* elements of 16 bits that are widened at a time */

static void add_times(const ch_bag *b, const void *row, double w, void *sum)
{
    const ch_times_table *f = levels[ch__simd_level()];

    if (b->dtype == CH_F64) {
        f->add_f64(b->width, row, w, sum);
    } else if (b->dtype == CH_F32) {
        f->add_f32(b->width, row, (float)w, sum);
    } else {
        for (int64_t i = 0; i < b->width; i += ROOM) {
            int64_t n = b->width - i < ROOM ? b->width - i : ROOM;
            float   wide[ROOM];

            ch__blocks()->widen[b->dtype](n, (const void *[]){(const uint16_t *)row + i}, wide,
                                          NULL);
            f->add_f32(n, wide, (float)w, (float *)sum + i);
        }
    }
}

static void set_times(const ch_bag *b, const void *row, double w, void *out)
{
    const ch_times_table *f = levels[ch__simd_level()];

    if (b->dtype == CH_F64) {
        f->set_f64(b->width, row, w, out);
    } else if (b->dtype == CH_F32) {
        f->set_f32(b->width, row, (float)w, out);
    } else {
        for (int64_t i = 0; i < b->width; i += ROOM) {
            int64_t n = b->width - i < ROOM ? b->width - i : ROOM;
            float   wide[ROOM];

            ch__blocks()->widen[b->dtype](n, (const void *[]){(const uint16_t *)row + i}, wide,
                                          NULL);
            f->set_f32(n, wide, (float)w, wide);
            ch__blocks()->narrow[b->dtype](n, (const void *[]){wide}, (uint16_t *)out + i,
                                           NULL);
        }
    }
}

static void divide(ch_dtype t, int64_t n, void *sum, int64_t by)
{
    if (t == CH_F64)
        for (int64_t i = 0; i < n; i++)
            ((double *)sum)[i] /= (double)by;
    else
        for (int64_t i = 0; i < n; i++)
            ((float *)sum)[i] /= (float)by;
}

/* ---- bags ---- */

static inline int64_t split_at(const ch_bag *b, ch_ids splits, int64_t i)
{
    int64_t at = ch__id(splits, i);

    return at < 0 ? 0 : at > b->n_ids ? b->n_ids : at;
}

size_t ch__bag_scratch(const ch_bag *b)
{
    return ch__dtype_is_half(b->dtype)
               ? ((size_t)b->width * sizeof(float) + LINE - 1) / LINE * LINE
               : 0;
}

/* Asks for the row that is needed AHEAD ids from now, which may be another bag's. */
static inline void ask_ahead(const ch_bag *b, ch_ids ids, int64_t at, int64_t end,
                             const char *table, int64_t bytes)
{
    int64_t most = bytes < 8 * LINE ? bytes : 8 * LINE;

    if (at + AHEAD >= end || (uint64_t)ch__id(ids, at + AHEAD) >= (uint64_t)b->n_rows)
        return;
    table += ch__id(ids, at + AHEAD) * bytes;
    for (int64_t i = 0; i < most; i += LINE)
        __builtin_prefetch(table + i, 0, 3);
}

void ch__bag_sum(const ch_bag *b, ch_ids splits, ch_ids ids, const void *weights,
                 const void *table, int64_t from, int64_t to, void *out, void *scratch)
{
    int64_t     size = (int64_t)ch_dtype_bytes(b->dtype), bytes = b->width * size;
    size_t      sum_bytes = ch__dtype_is_half(b->dtype) ? sizeof(float) : (size_t)size;
    int64_t     end = split_at(b, splits, to);
    const char *weight = weights;

    for (int64_t bag = from; bag < to; bag++) {
        int64_t first = split_at(b, splits, bag), last = split_at(b, splits, bag + 1);
        char   *row = (char *)out + bag * bytes;
        void   *sum = ch__dtype_is_half(b->dtype) ? scratch : row;

        memset(sum, 0, (size_t)b->width * sum_bytes);
        for (int64_t i = first; i < last; i++) {
            int64_t id = ch__id(ids, i);

            ask_ahead(b, ids, i, end, table, bytes);
            if ((uint64_t)id < (uint64_t)b->n_rows)
                add_times(b, (const char *)table + id * bytes,
                          weight != NULL ? ch__load(b->dtype, weight + i * size) : 1.0, sum);
        }
        if (b->mean && last > first + 1)
            divide(b->dtype, b->width, sum, last - first);
        if (ch__dtype_is_half(b->dtype))
            ch__blocks()->narrow[b->dtype](b->width, (const void *[]){sum}, row, NULL);
    }
}

/* ---- spreading ---- */

/* The last bag that begins at or before a position; -1: none does. */
static int64_t bag_of(const ch_bag *b, ch_ids splits, int64_t position)
{
    int64_t low = 0, high = b->n_bags; /* the answer is low - 1 when they meet */

    while (low < high) {
        int64_t middle = low + (high - low) / 2;

        if (ch__id(splits, middle) <= position)
            low = middle + 1;
        else
            high = middle;
    }
    return low - 1;
}

void ch__bag_spread(const ch_bag *b, ch_ids splits, const void *weights, const void *rows,
                    int64_t from, int64_t to, void *out)
{
    int64_t     size = (int64_t)ch_dtype_bytes(b->dtype), bytes = b->width * size;
    int64_t     bag = bag_of(b, splits, from);
    const char *weight = weights;

    for (int64_t i = from; i < to; i++) {
        char  *row = (char *)out + i * bytes;
        double w = weight != NULL ? ch__load(b->dtype, weight + i * size) : 1.0;

        while (bag + 1 < b->n_bags && ch__id(splits, bag + 1) <= i)
            bag++;
        if (bag < 0 || i >= ch__id(splits, bag + 1)) {
            memset(row, 0, (size_t)bytes);
            continue;
        }
        if (b->mean)
            w /= (double)(ch__id(splits, bag + 1) - ch__id(splits, bag));
        set_times(b, (const char *)rows + bag * bytes, w, row);
    }
}
