/* kernel/conv.c -- a whole convolution: tiles, partial sums, 16-bit floats.
 *
 * Phases:     output, input gradient          filter gradient
 *   before    the filter is widened, packed
 *   tiles     widen, run, round               widen, run into a partial sum
 *   after                                     partial sums added in order, rounded
 *
 * A phase or a copy that is not needed is left out. 16-bit floats are widened image by image,
 * so that each tile has a single image in memory as f32.
 *
 * ch_conv is the plan, made by ch__conv_open and read-only while tiles run. The caller is
 * ops/conv.c.
 *
 * Invariants:
 *   1. The number of tiles depends on the shape alone, so results do not depend on the number
 *      of threads.
 *   2. A tile writes only its own part of the scratch memory and of the result.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/conv.h"

#include <string.h>

#include "base/mem.h"
#include "kernel/block.h"
#include "kernel/widen.h"
#include "tensor/tensor.h"

enum {
    TILE_WORK = 8 << 20, /* multiplications that are worth a tile */
    MAX_TILES = 8,
    /* Most tiles of the filter gradient. Few, because each has a partial sum. */
    MAX_SUMS = 4,
    /* Cost of an element of a partial sum, in multiplications. */
    SUM_COST = 512,
    SUM_TILES = 8, /* most tiles of the phase that adds the partial sums */
    /* Elements of the filter for each tile of that phase. */
    SUM_WORK = 64 << 10
};

/* Return the elements of x, y and the filter, for the images of d. */
static int64_t x_count(const ch_conv_dims *d)
{
    return d->n * d->h * d->w * d->c;
}

static int64_t y_count(const ch_conv_dims *d)
{
    return d->n * d->oh * d->ow * d->o;
}

static int64_t filter_count(const ch_conv_dims *d)
{
    return d->kh * d->kw * (d->c / d->groups) * d->o;
}

/* Return the elements of the operands a and b and of the result, for each kind. */
static int64_t a_count(ch_conv_kind kind, const ch_conv_dims *d)
{
    return kind == CH_CONV_INPUT ? y_count(d) : x_count(d);
}

static int64_t b_count(ch_conv_kind kind, const ch_conv_dims *d)
{
    return kind == CH_CONV_FILTER ? y_count(d) : filter_count(d);
}

static int64_t out_count(ch_conv_kind kind, const ch_conv_dims *d)
{
    return kind == CH_CONV_FILTER  ? filter_count(d)
           : kind == CH_CONV_INPUT ? x_count(d)
                                   : y_count(d);
}

/* ---- opening ---- */

static double work_of(const ch_conv_dims *d)
{
    int64_t taps = d->kh * d->kw * (d->c / d->groups);

    return (double)y_count(d) * (double)taps;
}

static int tiles_of(ch_conv_kind kind, const ch_conv_dims *d)
{
    double most = MAX_TILES, tiles = work_of(d) / TILE_WORK;

    if (kind == CH_CONV_FILTER && d->kh > 0) {
        double sum = (double)filter_count(d) * SUM_COST;

        most = MAX_SUMS;
        tiles = sum > TILE_WORK ? work_of(d) / sum : tiles;
    }
    tiles = tiles > most ? most : tiles;
    tiles = tiles > (double)d->n ? (double)d->n : tiles;
    return tiles < 1 ? 1 : (int)tiles;
}

static ch_dtype compute_type(ch_dtype t)
{
    return ch__dtype_is_half(t) ? CH_F32 : t;
}

bool ch__conv_fits(const ch_conv_engine *e, ch_conv_kind kind, ch_dtype dtype,
                   const ch_conv_dims *d)
{
    ch_conv_dims tile = *d;

    tile.n = ch__dtype_is_half(dtype) ? d->n > 0 : ch__units(d->n, tiles_of(kind, d));
    return e->fits(kind, compute_type(dtype), &tile);
}

/* Assigns the offsets in the scratch memory. */
static void lay_out(ch_conv *v)
{
    const ch_conv_dims *image = &v->part[1].dims; /* used for 16-bit floats only */
    size_t              size = ch_dtype_bytes(v->compute), end = 0, engine = 0;
    bool is_wide = ch__dtype_is_half(v->dtype), makes_filter = v->kind == CH_CONV_FILTER;

    if (is_wide && !makes_filter)
        end += ch__aligned((size_t)filter_count(&v->dims) * size);
    for (int i = 0; i < 2; i++) {
        v->part[i].filter_at = end;
        end += ch__aligned(v->part[i].needs.filter_bytes);
        if (engine < v->part[i].needs.scratch_bytes)
            engine = v->part[i].needs.scratch_bytes;
    }
    if (is_wide) {
        v->b_at = ch__aligned((size_t)a_count(v->kind, image) * size);
        v->out_at = v->b_at + (makes_filter ? ch__aligned((size_t)y_count(image) * size) : 0);
        v->engine_at = v->out_at + ch__aligned((size_t)out_count(v->kind, image) * size);
    }
    v->tiles_at = end;
    v->tile_bytes = v->engine_at + ch__aligned(engine);
    end += v->tile_bytes * (size_t)v->n_tiles;
    v->sums_at = end;
    if (makes_filter && (is_wide || v->n_tiles > 1)) {
        v->sum_bytes = ch__aligned((size_t)filter_count(&v->dims) * size);
        end += v->sum_bytes * (size_t)v->n_tiles;
    }
    v->scratch_bytes = end > 0 ? end : CH_ALIGN; /* never 0 bytes */
}

static void plan_phases(ch_conv *v)
{
    bool packs = v->part[0].needs.filter_bytes + v->part[1].needs.filter_bytes > 0;

    if (v->kind != CH_CONV_FILTER && (packs || ch__dtype_is_half(v->dtype)))
        v->phase_tiles[v->n_phases++] = 1;
    v->phase_tiles[v->n_phases++] = v->n_tiles;
    if (v->sum_bytes > 0) {
        int64_t tiles = filter_count(&v->dims) / SUM_WORK;

        v->phase_tiles[v->n_phases++] = (int)(tiles < 1           ? 1
                                              : tiles > SUM_TILES ? SUM_TILES
                                                                  : tiles);
    }
}

static ch_status open_part(ch_conv *v, int last, int64_t images)
{
    ch_conv_part *t = &v->part[last];
    ch_status     rc;

    t->dims = v->dims;
    t->dims.n = images;
    if (images == 0 && v->dims.n > 0)
        return CH_OK;
    rc = v->engine->open(v->kind, v->compute, &t->dims, &t->needs, &t->state);
    t->is_open = rc == CH_OK;
    return rc;
}

ch_status ch__conv_open(ch_conv *v, const ch_conv_engine *e, ch_conv_kind kind, ch_dtype dtype,
                        const ch_conv_dims *d)
{
    ch_status rc = CH_OK;

    memset(v, 0, sizeof(*v));
    v->engine = e;
    v->kind = kind;
    v->dtype = dtype;
    v->compute = compute_type(dtype);
    v->dims = *d;
    v->images = ch__units(d->n, tiles_of(kind, d));
    v->n_tiles = d->n > 0 ? (int)ch__units(d->n, v->images) : 1;
    if (ch__dtype_is_half(dtype))
        rc = open_part(v, 1, d->n > 0);
    else if (v->n_tiles > 1)
        rc = open_part(v, 0, v->images);
    if (rc == CH_OK && !ch__dtype_is_half(dtype))
        rc = open_part(v, 1, d->n - (v->n_tiles - 1) * v->images);
    if (rc != CH_OK) {
        ch__conv_close(v);
        return rc;
    }
    lay_out(v);
    plan_phases(v);
    return CH_OK;
}

void ch__conv_close(ch_conv *v)
{
    for (int i = 0; i < 2; i++)
        if (v->part[i].is_open)
            v->engine->close(v->part[i].state);
}

/* ---- running ---- */

static ch_status run_before(const ch_conv *v, const void *filter, char *scratch)
{
    ch_status rc = CH_OK;

    if (ch__dtype_is_half(v->dtype)) {
        ch__widen(v->dtype, filter_count(&v->dims), filter, scratch);
        filter = scratch;
    }
    for (int i = 0; i < 2 && rc == CH_OK; i++)
        if (v->part[i].needs.filter_bytes > 0)
            rc = v->engine->pack(v->part[i].state, filter, scratch + v->part[i].filter_at);
    return rc;
}

/* Returns the filter as the engine reads it: packed, widened or unchanged. */
static const void *ready_filter(const ch_conv *v, const ch_conv_part *t, const void *filter,
                                const char *scratch)
{
    if (t->needs.filter_bytes > 0)
        return scratch + t->filter_at;
    return ch__dtype_is_half(v->dtype) ? scratch : filter;
}

static int64_t images_of(const ch_conv *v, int tile)
{
    return tile == v->n_tiles - 1 ? v->dims.n - tile * v->images : v->images;
}

/* Runs a tile of 16-bit floats, image by image. */
static ch_status run_wide_tile(const ch_conv *v, int tile, const char *a, const char *b,
                               char *out, char *scratch)
{
    const ch_conv_part *t = &v->part[1];
    bool                makes_filter = v->kind == CH_CONV_FILTER;
    int64_t             bytes = (int64_t)ch_dtype_bytes(v->dtype), n = images_of(v, tile);
    int64_t a_step = a_count(v->kind, &t->dims), b_step = b_count(v->kind, &t->dims);
    int64_t out_step = out_count(v->kind, &t->dims), first = tile * v->images;
    char   *own = scratch + v->tiles_at + (size_t)tile * v->tile_bytes, *made = own + v->out_at;
    float  *sum = (float *)(void *)(scratch + v->sums_at + (size_t)tile * v->sum_bytes);
    const void *filter = makes_filter ? NULL : ready_filter(v, t, b, scratch);
    ch_status   rc = CH_OK;

    if (makes_filter)
        memset(sum, 0, (size_t)out_step * sizeof(*sum));
    for (int64_t i = first; i < first + n && rc == CH_OK; i++) {
        ch__widen(v->dtype, a_step, a + i * a_step * bytes, own);
        if (makes_filter)
            ch__widen(v->dtype, b_step, b + i * b_step * bytes, own + v->b_at);
        rc = v->engine->run(t->state, own, makes_filter ? own + v->b_at : filter, made,
                            own + v->engine_at);
        if (makes_filter)
            ch__blocks()->fn[CH_BLOCK_add][CH_F32](out_step, (const void *const[]){sum, made},
                                                   sum, NULL);
        else
            ch__narrow(v->dtype, out_step, made, out + i * out_step * bytes);
    }
    return rc;
}

static ch_status run_tile(const ch_conv *v, int tile, const char *a, const char *b, char *out,
                          char *scratch)
{
    const ch_conv_part *t = &v->part[tile == v->n_tiles - 1];
    /* Dimensions of a full tile, which give the distance of two tiles in memory. */
    const ch_conv_dims *d = &v->part[v->n_tiles == 1].dims;
    int64_t             size = (int64_t)ch_dtype_bytes(v->dtype);
    bool                makes_filter = v->kind == CH_CONV_FILTER;
    char               *own = scratch + v->tiles_at + (size_t)tile * v->tile_bytes;
    void               *result = makes_filter ? out : out + tile * out_count(v->kind, d) * size;

    a += tile * a_count(v->kind, d) * size;
    if (makes_filter)
        b += tile * b_count(v->kind, d) * size;
    else
        b = ready_filter(v, t, b, scratch);
    if (v->sum_bytes > 0)
        result = scratch + v->sums_at + (size_t)tile * v->sum_bytes;
    return v->engine->run(t->state, a, b, result, own + v->engine_at);
}

/* Adds the partial sums of the tiles, in the order of the tiles, for a part of the filter. */
static void run_after(const ch_conv *v, int part, int n_parts, char *out, char *scratch)
{
    int64_t n = filter_count(&v->dims), from = n * part / n_parts;
    int64_t size = (int64_t)ch_dtype_bytes(v->compute), count = n * (part + 1) / n_parts - from;
    char   *sum = scratch + v->sums_at + from * size;
    ch_block_fn add = ch__blocks()->fn[CH_BLOCK_add][v->compute];

    out += from * (int64_t)ch_dtype_bytes(v->dtype);
    for (int i = 1; i < v->n_tiles; i++) {
        const void *in[] = {sum, sum + (size_t)i * v->sum_bytes};

        add(count, in, sum, NULL);
    }
    if (ch__dtype_is_half(v->dtype))
        ch__narrow(v->dtype, count, sum, out);
    else
        memcpy(out, sum, (size_t)(count * size));
}

ch_status ch__conv_run(const ch_conv *v, int phase, int tile, const void *a, const void *b,
                       void *out, void *scratch)
{
    int before = v->n_phases - 1 - (v->sum_bytes > 0); /* phases before that of the tiles */

    if (phase < before)
        return run_before(v, b, scratch);
    if (phase == before)
        return (ch__dtype_is_half(v->dtype) ? run_wide_tile : run_tile)(v, tile, a, b, out,
                                                                        scratch);
    run_after(v, tile, v->phase_tiles[phase], out, scratch);
    return CH_OK;
}

void ch__conv_region(const ch_conv *v, int tile, int64_t *row, int64_t *rows)
{
    int64_t outputs = v->dims.oh * v->dims.ow;

    *row = tile * v->images * outputs;
    *rows = images_of(v, tile) * outputs;
}
