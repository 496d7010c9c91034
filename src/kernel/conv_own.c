/* kernel/conv_own.c -- convolution as matrix products (im2col).
 *
 * For a block of outputs, the inputs under the filter are gathered into a matrix with a row for
 * each output (the taps). Its product with the filter, seen as a matrix, is a block of y. The
 * gradients are the other two products of the same three matrices. If each channel is a group
 * of its own, the matrices would have a single column, so plain sums are used instead.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/mem.h"
#include "kernel/conv.h"
#include "kernel/gemm.h"

/* A block has BLOCK_TAPS elements of taps, if that gives MIN_BLOCK to MAX_BLOCK outputs. */
enum { BLOCK_TAPS = 64 << 10, MIN_BLOCK = 16, MAX_BLOCK = 256 };

typedef struct conv {
    ch_conv_kind          kind;
    ch_dtype              dtype;
    ch_conv_dims          dims;
    bool                  is_by_channel, is_empty;
    int64_t               n_outputs, block, n_taps;
    const ch_gemm_engine *engine[2]; /* [1]: the last block, if it is smaller */
    ch_gemm_dims          product[2];
    void                 *state[2];
    size_t                product_at; /* offset in the scratch memory, behind the taps */
} conv;

/* Returns the pixel, counted over all images, that tap (i, j) of output p reads; -1 if the tap
 * is in the padding. */
static int64_t tap_of(const ch_conv_dims *d, int64_t p, int64_t i, int64_t j)
{
    int64_t x = p % d->ow * d->stride[1] + j * d->spread[1] - d->pad[1];
    int64_t y = p / d->ow % d->oh * d->stride[0] + i * d->spread[0] - d->pad[0];

    if (y < 0 || y >= d->h || x < 0 || x >= d->w)
        return -1;
    return (p / d->ow / d->oh * d->h + y) * d->w + x;
}

#define ELEMENT float
#define NAME(x) f32_##x
#include "kernel/conv_own.inc"

#define ELEMENT double
#define NAME(x) f64_##x
#include "kernel/conv_own.inc"

static bool own_fits(ch_conv_kind kind, ch_dtype dtype, const ch_conv_dims *d)
{
    (void)kind, (void)d;
    return dtype == CH_F32 || dtype == CH_F64;
}

static void own_close(void *state)
{
    conv *v = state;

    if (v == NULL)
        return;
    for (int i = 0; i < 2; i++)
        if (v->engine[i] != NULL)
            v->engine[i]->close(v->state[i]);
    ch__free(v);
}

/* Returns the product for `rows` outputs of a group. */
static ch_gemm_dims product_of(const conv *v, int64_t rows)
{
    const ch_conv_dims *d = &v->dims;
    int64_t             out = d->o / d->groups;
    ch_gemm_dims        g = {.dtype = v->dtype, .batch = 1};

    if (v->kind == CH_CONV_OUTPUT) /* taps . filter */
        g.m = rows, g.n = out, g.k = v->n_taps, g.lda = v->n_taps, g.ldb = d->o, g.ldc = d->o;
    else if (v->kind == CH_CONV_INPUT) /* dy . filter' */
        g.m = rows, g.n = v->n_taps, g.k = out, g.lda = d->o, g.ldb = d->o, g.ldc = v->n_taps;
    else /* taps' . dy */
        g.m = v->n_taps, g.n = out, g.k = rows, g.lda = v->n_taps, g.ldb = d->o, g.ldc = d->o;
    g.ta = v->kind == CH_CONV_FILTER;
    g.tb = v->kind == CH_CONV_INPUT;
    g.add = v->kind == CH_CONV_FILTER; /* blocks add up */
    return g;
}

static ch_status open_products(conv *v, ch_conv_needs *needs)
{
    size_t taps = (size_t)(v->block * v->n_taps) * ch_dtype_bytes(v->dtype), most = 0;

    for (int i = 0; i < 2; i++) {
        size_t    bytes = 0;
        ch_status rc;
        int64_t   rows = i == 0 ? v->block : v->n_outputs % v->block;

        if (rows == 0)
            continue;
        v->product[i] = product_of(v, rows);
        v->engine[i] = ch__gemm_for(&v->product[i]);
        rc = v->engine[i]->open(&v->product[i], &v->state[i], &bytes);
        if (rc != CH_OK) {
            v->engine[i] = NULL;
            return rc;
        }
        most = bytes > most ? bytes : most;
    }
    v->product_at = ch__aligned(taps);
    needs->scratch_bytes = v->product_at + most;
    return CH_OK;
}

static ch_status own_open(ch_conv_kind kind, ch_dtype dtype, const ch_conv_dims *d,
                          ch_conv_needs *needs, void **state)
{
    conv     *v = ch__calloc(1, sizeof(*v));
    ch_status rc = CH_OK;

    if (v == NULL)
        return ch__fail_memory("convolution");
    v->kind = kind;
    v->dtype = dtype;
    v->dims = *d;
    v->is_by_channel = d->groups == d->c && d->c > 1;
    v->n_outputs = d->n * d->oh * d->ow;
    v->n_taps = d->kh * d->kw * (d->c / d->groups);
    v->is_empty = v->n_outputs == 0 || v->n_taps == 0 || d->o == 0;
    v->block = v->n_taps > 0 ? BLOCK_TAPS / v->n_taps : MAX_BLOCK;
    v->block = v->block < MIN_BLOCK ? MIN_BLOCK : v->block > MAX_BLOCK ? MAX_BLOCK : v->block;
    if (v->block > v->n_outputs)
        v->block = v->n_outputs;
    if (!v->is_by_channel && !v->is_empty)
        rc = open_products(v, needs);
    if (rc != CH_OK) {
        own_close(v);
        return rc;
    }
    *state = v;
    return CH_OK;
}

static ch_status own_pack(const void *state, const void *filter, void *packed)
{
    (void)state, (void)filter, (void)packed;
    return CH_OK;
}

static const char *at(const void *base, ch_dtype t, int64_t index)
{
    return (const char *)base + index * (int64_t)ch_dtype_bytes(t);
}

/* Computes outputs [from, from + block) of group g, or their share of a gradient. */
static ch_status run_block(const conv *v, int64_t g, int64_t from, const void *a, const void *b,
                           void *out, void *scratch)
{
    const ch_conv_dims   *d = &v->dims;
    int64_t               to = from + v->block < v->n_outputs ? from + v->block : v->n_outputs;
    int64_t               column = g * (d->o / d->groups), y = from * d->o + column;
    bool                  is_f32 = v->dtype == CH_F32;
    int                   last = to - from < v->block;
    const ch_gemm_engine *e = v->engine[last];
    void                 *gemm_scratch = (char *)scratch + v->product_at;
    ch_status             rc;

    if (v->kind == CH_CONV_INPUT) {
        rc = e->run(&v->product[last], v->state[last], at(a, v->dtype, y),
                    at(b, v->dtype, column), scratch, gemm_scratch);
        (is_f32 ? f32_scatter : f64_scatter)(d, scratch, g, from, to, out);
        return rc;
    }
    (is_f32 ? f32_gather : f64_gather)(d, a, g, from, to, scratch);
    if (v->kind == CH_CONV_OUTPUT)
        return e->run(&v->product[last], v->state[last], scratch, at(b, v->dtype, column),
                      (char *)out + y * (int64_t)ch_dtype_bytes(v->dtype), gemm_scratch);
    return e->run(&v->product[last], v->state[last], scratch, at(b, v->dtype, y),
                  (char *)out + column * (int64_t)ch_dtype_bytes(v->dtype), gemm_scratch);
}

static ch_status own_run(const void *state, const void *a, const void *b, void *out,
                         void *scratch)
{
    const conv         *v = state;
    const ch_conv_dims *d = &v->dims;
    int64_t             size[] = {[CH_CONV_OUTPUT] = v->n_outputs * d->o,
                                  [CH_CONV_INPUT] = d->n * d->h * d->w * d->c,
                                  [CH_CONV_FILTER] = v->n_taps * d->o};
    ch_status           rc = CH_OK;

    memset(out, 0, (size_t)size[v->kind] * ch_dtype_bytes(v->dtype));
    if (v->is_empty)
        return CH_OK;
    if (v->is_by_channel) {
        (v->dtype == CH_F32 ? f32_by_channel : f64_by_channel)(v->kind, d, a, b, out);
        return CH_OK;
    }
    for (int64_t p = 0; p < v->n_outputs; p += v->block)
        for (int64_t g = 0; g < d->groups && rc == CH_OK; g++)
            rc = run_block(v, g, p, a, b, out, scratch);
    return rc;
}

const ch_conv_engine ch__conv_own = {"own", own_fits, own_open, own_pack, own_run, own_close};
