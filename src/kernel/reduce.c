/* kernel/reduce.c -- reduction (fold) of axes: plan, tiles, and the walk over memory.
 *
 * ch_fold is the plan. A unit is an output (if the innermost axis is folded) or a strip of
 * outputs (if it is kept). Tiles are ranges of units. If there are fewer units than tiles, the
 * depth of each unit is cut into parts, and ch__fold_join adds them up. The callers are
 * ops/reduce.c and strategy/reduce.c.
 *
 * Invariants: see kernel/reduce.h. The cut into parts depends on the shape, because callers
 * choose `tiles` by the shape (ch__tile_count).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/reduce.h"

#include <math.h>
#include <string.h>

#include "kernel/widen.h"

static const ch_fold_table *const levels[] = CH_SIMD_LIST(ch__fold_table);

static const ch_fold_loops *loops_of(ch_fold_kind kind, ch_fold_type type)
{
    return &levels[ch__simd_level()]->loops[kind][type];
}

/* ---- plan ---- */

/* Inserts an axis before the others, or merges it with the first if it continues that axis. */
static void add_axis(int *n, int64_t *sizes, int64_t *strides, int64_t size, int64_t stride)
{
    if (*n > 0 && strides[0] * sizes[0] == stride) {
        sizes[0] *= size;
        return;
    }
    memmove(sizes + 1, sizes, (size_t)*n * sizeof(*sizes));
    memmove(strides + 1, strides, (size_t)*n * sizeof(*strides));
    sizes[0] = size;
    strides[0] = stride;
    ++*n;
}

static void lay_out(ch_fold *f, ch_shape shape, const bool *is_folded)
{
    int     k = shape.rank - 1;
    int64_t stride = 1;

    while (k >= 0 && shape.dim[k] == 1) /* an axis of size 1 may count as either */
        k--;
    f->inner_kept = k >= 0 && !is_folded[k];
    f->inner = 1;
    f->count = 1;
    f->outputs = 1;
    for (; k >= 0 && (shape.dim[k] == 1 || is_folded[k] != f->inner_kept); k--)
        f->inner *= shape.dim[k];
    stride = f->inner;
    for (; k >= 0; k--) {
        if (shape.dim[k] == 1)
            continue;
        if (is_folded[k])
            add_axis(&f->n_folded, f->folded, f->folded_stride, shape.dim[k], stride);
        else
            add_axis(&f->n_kept, f->kept, f->kept_stride, shape.dim[k], stride);
        stride *= shape.dim[k];
    }
    for (int i = 0; i < shape.rank; i++)
        *(is_folded[i] ? &f->count : &f->outputs) *= shape.dim[i];
}

static ch_fold_type type_of(ch_fold_kind kind, ch_dtype dtype)
{
    if (!ch_dtype_is_float(dtype))
        return CH_FOLD_I64;
    return dtype == CH_F64 || kind == CH_FOLD_PROD ? CH_FOLD_F64 : CH_FOLD_F32;
}

static void choose_tiles(ch_fold *f, int tiles)
{
    f->units = f->outputs;
    if (f->inner_kept && f->inner > 0)
        f->units = f->outputs / f->inner * ((f->inner + CH_FOLD_STRIP - 1) / CH_FOLD_STRIP);
    f->parts = 1;
    f->tiles = 1;
    if (f->units >= tiles) {
        f->tiles = tiles;
    } else if (f->units > 0) {
        if (f->kind != CH_FOLD_LOGSUMEXP && f->depth > 0)
            f->parts = (int)(tiles / f->units);
        f->tiles = (int)f->units * f->parts;
    }
}

void ch__fold_init(ch_fold *f, ch_fold_kind kind, ch_dtype dtype, ch_shape shape,
                   const bool *is_folded, int tiles)
{
    static const ch_dtype direct[] = {CH_F32, CH_F64, CH_I64};
    bool                  is_sum = kind == CH_FOLD_MEAN || kind == CH_FOLD_LOGSUMEXP;

    *f = (ch_fold){.kind = kind, .type = type_of(kind, dtype), .dtype = dtype};
    f->size = ch_dtype_bytes(dtype);
    f->is_direct = dtype == direct[f->type];
    f->loops = loops_of(is_sum ? CH_FOLD_SUM : kind, f->type);
    lay_out(f, shape, is_folded);
    f->depth = f->count;
    f->group = 1;
    if (f->inner_kept && f->n_folded == 1 && f->folded_stride[0] == f->inner && f->inner > 0 &&
        f->inner <= CH_FOLD_WIDE / 2)
        f->group = CH_FOLD_WIDE / f->inner;
    choose_tiles(f, tiles);
}

/* Returns the offset of element i of n axes. */
static int64_t offset_of(int64_t i, int n, const int64_t *size, const int64_t *stride)
{
    int64_t at = 0;

    for (int k = n - 1; k > 0; k--) {
        at += i % size[k] * stride[k];
        i /= size[k];
    }
    return n > 0 ? at + i * stride[0] : 0;
}

/* ---- results ---- */

static void type_range(ch_dtype t, int64_t *low, int64_t *high)
{
    int bits = 8 * (int)ch_dtype_bytes(t);

    *low = t == CH_U8 || t == CH_BOOL ? 0 : INT64_MIN >> (64 - bits);
    *high = t == CH_BOOL ? 1 : t == CH_U8 ? UINT8_MAX : INT64_MAX >> (64 - bits);
}

static void store_floats(const ch_fold *f, int64_t n, const ch_fold_acc *acc, void *at)
{
    double x[CH_FOLD_STRIP];

    for (int64_t j = 0; j < n; j++)
        x[j] = f->kind == CH_FOLD_MEAN ? acc[j].f / (double)f->count : acc[j].f;
    ch__from_f64(f->dtype, n, x, at);
}

/* Stores integer results. Sums and products wrap, as in numpy. The extremes of no elements are
 * the ends of the range of the dtype. */
static void store_ints(const ch_fold *f, int64_t n, const ch_fold_acc *acc, void *at)
{
    int64_t x[CH_FOLD_STRIP], low = INT64_MIN, high = INT64_MAX;

    if (f->kind == CH_FOLD_MAX || f->kind == CH_FOLD_MIN)
        type_range(f->dtype, &low, &high);
    for (int64_t j = 0; j < n; j++)
        x[j] = acc[j].i < low ? low : acc[j].i > high ? high : acc[j].i;
    ch__from_i64(f->dtype, n, x, at);
}

/* Stores n results at outputs first .. first + n - 1. n must be at most CH_FOLD_STRIP. */
static void store(const ch_fold *f, int64_t n, const ch_fold_acc *acc, int64_t first, void *out)
{
    char *at = (char *)out + (size_t)first * f->size;

    if (f->type == CH_FOLD_I64)
        store_ints(f, n, acc, at);
    else
        store_floats(f, n, acc, at);
}

/* ---- the walk over memory ---- */

/* A buffer of elements in the fold type. */
typedef union buffer {
    float   f32[CH_FOLD_STRIP];
    double  f64[CH_FOLD_STRIP];
    int64_t i64[CH_FOLD_STRIP];
} buffer;

static const char *at(const ch_fold *f, const void *in, int64_t i)
{
    return (const char *)in + (size_t)i * f->size;
}

/* Returns n elements in the fold type: x itself if that is possible, otherwise r. With `shift`,
 * returns exp(x - shift). */
static const void *load(const ch_fold *f, int64_t n, const void *x, const ch_fold_acc *shift,
                        buffer *r)
{
    if (f->type == CH_FOLD_F32)
        x = ch__as_f32(f->dtype, n, x, r->f32);
    else if (f->type == CH_FOLD_F64)
        x = ch__as_f64(f->dtype, n, x, r->f64);
    else
        x = ch__as_i64(f->dtype, n, x, r->i64);
    if (shift == NULL)
        return x;
    levels[ch__simd_level()]->exp[f->type](n, x, shift, f->inner_kept, r);
    return r;
}

/* Folds elements [from, to) of the unit that begins at x. They must be contiguous and of the
 * fold type. */
static void fold_run(const ch_fold *f, const ch_fold_loops *loops, const char *x, int64_t from,
                     int64_t to, ch_fold_acc *acc)
{
    for (int64_t n; from < to; from += n) {
        n = to - from < CH_FOLD_RUN ? to - from : CH_FOLD_RUN;
        loops->run(n, at(f, x, from), acc);
    }
}

/* Folds elements [from, to) of a unit, run by run, for any dtype and layout. */
static void fold_runs(const ch_fold *f, const ch_fold_loops *loops, const char *x, int64_t from,
                      int64_t to, const ch_fold_acc *shift, ch_fold_acc *acc)
{
    _Alignas(64) buffer r;

    while (from < to) {
        int64_t skip = from % f->inner;
        int64_t n = f->inner - skip < to - from ? f->inner - skip : to - from;

        if (n > CH_FOLD_STRIP)
            n = CH_FOLD_STRIP;
        skip += offset_of(from / f->inner, f->n_folded, f->folded, f->folded_stride);
        loops->run(n, load(f, n, at(f, x, skip), shift, &r), acc);
        from += n;
    }
}

/* Folds rows [from, to) of n elements, at most a strip. Rows begin at x and are `step` elements
 * apart; with a step of 0 the folded axes give their positions. A block of rows is folded in
 * the fold type, blocks are folded in the wide type. */
static void fold_rows(const ch_fold *f, const ch_fold_loops *loops, const char *x, int64_t n,
                      int64_t step, int64_t from, int64_t to, const ch_fold_acc *shift,
                      ch_fold_acc *acc)
{
    _Alignas(64) buffer r, block;

    loops->first(n, &block, NULL);
    for (int64_t q = from, end; q < to; q = end) {
        end = q + CH_FOLD_ROWS < to ? q + CH_FOLD_ROWS : to;
        if (f->is_direct && step > 0 && shift == NULL)
            loops->rows(end - q, n, at(f, x, q * step), step, &block);
        else
            for (int64_t i = q; i < end; i++) {
                int64_t skip = step > 0
                                   ? i * step
                                   : offset_of(i, f->n_folded, f->folded, f->folded_stride);

                loops->rows(1, n, load(f, n, at(f, x, skip), shift, &r), 0, &block);
            }
        loops->flush(n, &block, acc);
        loops->first(n, &block, NULL);
    }
}

/* Folds narrow rows: as many as make a wide row are folded together, then the wide row is
 * folded. Returns the first row that is not done. */
static int64_t fold_groups(const ch_fold *f, const ch_fold_loops *loops, const char *x,
                           int64_t from, int64_t to, ch_fold_acc *acc)
{
    ch_fold_acc wide[CH_FOLD_WIDE];
    int64_t     n = f->group * f->inner, rows = (to - from) / f->group;

    loops->first(n, NULL, wide);
    fold_rows(f, loops, at(f, x, from * f->inner), n, n, 0, rows, NULL, wide);
    for (int64_t i = 0; i < f->group; i++)
        loops->join(f->inner, wide + i * f->inner, acc);
    return from + rows * f->group;
}

/* Folds elements or rows [from, to) of the unit of n outputs that begins at x. */
static void fold_unit(const ch_fold *f, const ch_fold_loops *loops, const char *x, int64_t n,
                      int64_t from, int64_t to, const ch_fold_acc *shift, ch_fold_acc *acc)
{
    loops->first(n, NULL, acc);
    if (f->inner_kept) {
        if (f->group > 1 && shift == NULL)
            from = fold_groups(f, loops, x, from, to, acc);
        fold_rows(f, loops, x, n, f->n_folded == 1 ? f->folded_stride[0] : 0, from, to, shift,
                  acc);
    } else if (f->n_folded == 0 && f->is_direct && shift == NULL) {
        fold_run(f, loops, x, from, to, acc);
    } else {
        fold_runs(f, loops, x, from, to, shift, acc);
    }
}

/* Computes m + log(sum(exp(x - m))), where m is the largest element, or 0 if that is
 * infinite. */
static void logsumexp_unit(const ch_fold *f, const char *x, int64_t n, ch_fold_acc *acc)
{
    ch_fold_acc m[CH_FOLD_STRIP];

    fold_unit(f, loops_of(CH_FOLD_MAX, f->type), x, n, 0, f->depth, NULL, m);
    for (int64_t j = 0; j < n; j++)
        if (isinf(m[j].f))
            m[j].f = 0;
    fold_unit(f, f->loops, x, n, 0, f->depth, m, acc);
    for (int64_t j = 0; j < n; j++)
        acc[j].f = m[j].f + log(acc[j].f);
}

/* Returns the first output of a unit. Sets *n to its outputs and *start to the offset of its
 * elements. */
static int64_t unit_of(const ch_fold *f, int64_t unit, int64_t *n, int64_t *start)
{
    int64_t strips, outer, first;

    if (!f->inner_kept) {
        *n = 1;
        *start = offset_of(unit, f->n_kept, f->kept, f->kept_stride);
        return unit;
    }
    strips = (f->inner + CH_FOLD_STRIP - 1) / CH_FOLD_STRIP;
    outer = unit / strips;
    first = unit % strips * CH_FOLD_STRIP;
    *n = f->inner - first < CH_FOLD_STRIP ? f->inner - first : CH_FOLD_STRIP;
    *start = offset_of(outer, f->n_kept, f->kept, f->kept_stride) + first;
    return outer * f->inner + first;
}

/* ---- tiles ---- */

/* Computes units [from, to). Outputs are stored a strip at a time: a strip is a single unit, or
 * many units of a single output. */
static void fold_units(const ch_fold *f, int64_t from, int64_t to, const void *in, void *out)
{
    ch_fold_acc acc[CH_FOLD_STRIP];
    int64_t     done = 0;

    for (int64_t u = from; u < to; u++) {
        int64_t n, start, first = unit_of(f, u, &n, &start);

        if (f->kind == CH_FOLD_LOGSUMEXP)
            logsumexp_unit(f, at(f, in, start), n, acc + done);
        else
            fold_unit(f, f->loops, at(f, in, start), n, 0, f->depth, NULL, acc + done);
        done += n;
        if (f->inner_kept || done == CH_FOLD_STRIP || u == to - 1) {
            store(f, done, acc, first + n - done, out);
            done = 0;
        }
    }
}

void ch__fold_tile(const ch_fold *f, int tile, const void *in, void *out, void *scratch)
{
    int          part = tile % f->parts;
    ch_fold_acc *parts = scratch;
    int64_t      n, start, first;

    if (f->parts == 1) {
        fold_units(f, f->units * tile / f->tiles, f->units * (tile + 1) / f->tiles, in, out);
        return;
    }
    first = unit_of(f, tile / f->parts, &n, &start);
    fold_unit(f, f->loops, at(f, in, start), n, f->depth * part / f->parts,
              f->depth * (part + 1) / f->parts, NULL, parts + part * f->outputs + first);
}

void ch__fold_join(const ch_fold *f, const void *scratch, void *out)
{
    const ch_fold_acc *parts = scratch;
    ch_fold_acc        acc[CH_FOLD_STRIP];

    for (int64_t i = 0, n; i < f->outputs; i += n) {
        n = f->outputs - i < CH_FOLD_STRIP ? f->outputs - i : CH_FOLD_STRIP;
        f->loops->first(n, NULL, acc);
        for (int part = 0; part < f->parts; part++)
            f->loops->join(n, parts + part * f->outputs + i, acc);
        store(f, n, acc, i, out);
    }
}
