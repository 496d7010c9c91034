/* kernel/bag.c -- sums of table rows in bags.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/bag.h"

#include <string.h>

#include "kernel/bag_loops.h"
#include "kernel/block.h"
#include "tensor/tensor.h"

#define LINE        64
#define WIDEN_CHUNK 512 /* 16-bit elements that are widened at a time */

static const ch_bag_loops *const levels[] = CH_SIMD_LIST(ch__bag_loops);

/* ---- a bag of f32 or f64 sums in its own type, of 16-bit floats in f32 ---- */

static void add_half(const ch_bag *b, const uint16_t *row, float w, float *sum)
{
    for (int64_t i = 0; i < b->width; i += WIDEN_CHUNK) {
        int64_t n = b->width - i < WIDEN_CHUNK ? b->width - i : WIDEN_CHUNK;
        float   wide[WIDEN_CHUNK];

        ch__blocks()->widen[b->dtype](n, (const void *[]){row + i}, wide, NULL);
        levels[ch__simd_level()]->add_f32(n, wide, w, sum + i);
    }
}

static void sum_half(const ch_bag *b, const ch_bag_rows *r, float *sum)
{
    const uint16_t *weight = r->weight;

    memset(sum, 0, (size_t)b->width * sizeof(*sum));
    for (int64_t i = r->first; i < r->last; i++) {
        const uint16_t *row = ch__bag_row(r, i);

        if (row != NULL)
            add_half(b, row, weight != NULL ? (float)ch__load(b->dtype, weight + i) : 1, sum);
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

/* Returns split i, clamped to [0, n_ids]. */
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

void ch__bag_sum(const ch_bag *b, ch_ids splits, ch_ids ids, const void *weights,
                 const void *table, int64_t from, int64_t to, void *out, void *scratch)
{
    const ch_bag_loops *f = levels[ch__simd_level()];
    int64_t             bytes = b->width * (int64_t)ch_dtype_bytes(b->dtype);
    ch_bag_rows         r = {.table = table,
                             .n_rows = b->n_rows,
                             .width = b->width,
                             .bytes = bytes,
                             .ids = ids,
                             .end = split_at(b, splits, to),
                             .weight = weights};

    for (int64_t bag = from; bag < to; bag++) {
        char *row = (char *)out + bag * bytes;
        void *sum = ch__dtype_is_half(b->dtype) ? scratch : row;

        r.first = split_at(b, splits, bag);
        r.last = split_at(b, splits, bag + 1);
        if (b->dtype == CH_F64)
            f->sum_f64(&r, sum);
        else if (b->dtype == CH_F32)
            f->sum_f32(&r, sum);
        else
            sum_half(b, &r, sum);
        if (b->mean && r.last > r.first + 1)
            divide(b->dtype, b->width, sum, r.last - r.first);
        if (ch__dtype_is_half(b->dtype))
            ch__blocks()->narrow[b->dtype](b->width, (const void *[]){sum}, row, NULL);
    }
}

int64_t ch__bag_live(const ch_bag *b, ch_ids splits)
{
    return b->n_bags > 0 ? split_at(b, splits, b->n_bags) : 0;
}

/* ---- the bag of a position ---- */

/* Returns the last bag that begins at or before a position; -1 if no bag does. */
static int64_t bag_of(const ch_bag *b, ch_ids splits, int64_t position)
{
    int64_t low = 0, high = b->n_bags; /* invariant: the result is in [low - 1, high - 1] */

    while (low < high) {
        int64_t middle = low + (high - low) / 2;

        if (ch__id(splits, middle) <= position)
            low = middle + 1;
        else
            high = middle;
    }
    return low - 1;
}

void ch__bag_index(const ch_bag *b, ch_ids splits, int64_t from, int64_t to, void *out)
{
    int64_t bag = bag_of(b, splits, from);

    for (int64_t i = from; i < to; i++) {
        int64_t mine;

        while (bag + 1 < b->n_bags && ch__id(splits, bag + 1) <= i)
            bag++;
        mine = bag >= 0 && i < ch__id(splits, bag + 1) ? bag : -1;
        if (splits.wide)
            ((int64_t *)out)[i] = mine;
        else
            ((int32_t *)out)[i] = (int32_t)mine;
    }
}
