/* kernel/gemm.c -- the engine for 16-bit floats by way of f32, and the choice among engines.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/gemm.h"

#include "base/mem.h"
#include "kernel/block.h"

static const char *at(const void *base, ch_dtype t, int64_t index)
{
    return (const char *)base + index * (int64_t)ch_dtype_bytes(t);
}

static char *at_mut(void *base, ch_dtype t, int64_t index)
{
    return (char *)base + index * (int64_t)ch_dtype_bytes(t);
}

/* ---- 16-bit floats: widened, multiplied in f32, rounded ----
 *
 * A band of rows of a and c is widened at a time. So only little memory is in f32, because
 * callers use 16-bit floats to save memory. */

typedef struct wide {
    const ch_gemm_engine *engine;
    void                 *state;
    ch_gemm_dims          dims; /* of a band in f32, dense */
    /* Offsets in the scratch memory: b and c as f32, the scratch memory of `engine`. a is at
     * 0. */
    size_t b_at, c_at, more_at;
} wide;

static bool wide_fits(const ch_gemm_dims *d)
{
    return d->dtype == CH_BF16 || d->dtype == CH_F16;
}

static void wide_close(void *state)
{
    wide *w = state;

    if (w != NULL && w->engine != NULL)
        w->engine->close(w->state);
    ch__free(w);
}

static ch_status wide_open(const ch_gemm_dims *d, void **state, size_t *scratch_bytes)
{
    const ch_gemm_engine *engine;
    size_t                more = 0;
    /* Each band packs b again, so bands of few rows are used only for a small b. */
    int64_t   band = ch__min(d->m, d->k * d->n <= 1 << 14 ? 32 : 128);
    wide     *w = ch__calloc(1, sizeof(*w));
    ch_status rc;

    if (w == NULL)
        return ch__fail_memory("matrix product");
    w->dims = *d;
    w->dims.dtype = CH_F32;
    w->dims.batch = 1;
    w->dims.m = band;
    w->dims.lda = d->ta ? band : d->k;
    w->dims.ldb = d->tb ? d->k : d->n;
    w->dims.ldc = d->n;
    w->dims.a_step = w->dims.b_step = w->dims.c_step = 0;
    engine = ch__gemm_for(&w->dims);
    rc = engine->open(&w->dims, &w->state, &more);
    if (rc != CH_OK) {
        wide_close(w);
        return rc;
    }
    w->engine = engine;
    w->b_at = (size_t)ch__round_up(w->dims.m * d->k * 4, CH_ALIGN);
    w->c_at = w->b_at + (size_t)ch__round_up(d->k * d->n * 4, CH_ALIGN);
    w->more_at = w->c_at + (size_t)ch__round_up(w->dims.m * d->n * 4, CH_ALIGN);
    *state = w;
    *scratch_bytes = w->more_at + more;
    return CH_OK;
}

static void widen(ch_dtype t, int64_t rows, int64_t cols, const void *from, int64_t step,
                  void *to)
{
    ch_block_fn fn = ch__blocks()->widen[t];

    for (int64_t r = 0; r < rows; r++)
        fn(cols, (const void *const[]){at(from, t, r * step)}, (float *)to + r * cols, NULL);
}

/* Computes rows [row, row + rows) of a product. The widened b must already be in the scratch
 * memory. */
static ch_status wide_band(const ch_gemm_dims *d, const wide *w, int64_t row, int64_t rows,
                           const char *a, char *c, char *scratch)
{
    ch_gemm_dims band = w->dims;
    char        *wb = scratch + w->b_at, *wc = scratch + w->c_at;
    ch_block_fn  narrow = ch__blocks()->narrow[d->dtype];
    ch_status    rc;

    band.m = rows;
    band.lda = d->ta ? rows : d->k;
    if (d->ta)
        widen(d->dtype, d->k, rows, at(a, d->dtype, row), d->lda, scratch);
    else
        widen(d->dtype, rows, d->k, at(a, d->dtype, row * d->lda), d->lda, scratch);
    if (d->add)
        widen(d->dtype, rows, d->n, at(c, d->dtype, row * d->ldc), d->ldc, wc);
    rc = w->engine->run(&band, w->state, scratch, wb, wc, scratch + w->more_at);
    for (int64_t r = 0; r < rows; r++)
        narrow(d->n, (const void *const[]){(float *)(void *)wc + r * d->n},
               at_mut(c, d->dtype, (row + r) * d->ldc), NULL);
    return rc;
}

static ch_status wide_run(const ch_gemm_dims *d, const void *state, const void *a,
                          const void *b, void *c, void *scratch)
{
    const wide *w = state;
    ch_status   rc = CH_OK;

    for (int64_t s = 0; s < d->batch; s++) {
        if (s == 0 || d->b_step != 0)
            widen(d->dtype, d->tb ? d->n : d->k, w->dims.ldb, at(b, d->dtype, s * d->b_step),
                  d->ldb, (char *)scratch + w->b_at);
        for (int64_t row = 0; row < d->m && rc == CH_OK; row += w->dims.m)
            rc = wide_band(d, w, row, d->m - row < w->dims.m ? d->m - row : w->dims.m,
                           at(a, d->dtype, s * d->a_step), at_mut(c, d->dtype, s * d->c_step),
                           scratch);
    }
    return rc;
}

const ch_gemm_engine ch__gemm_wide = {"widened", wide_fits,  wide_open,
                                      wide_run,  wide_close, NULL};

/* ---- the choice of the engine ---- */

bool ch__gemm_never(const ch_gemm_dims *d)
{
    (void)d;
    return false;
}

const ch_gemm_engine *ch__gemm_for(const ch_gemm_dims *d)
{
    static const ch_gemm_engine *const all[] = {&ch__gemm_onednn, &ch__gemm_wide,
                                                &ch__gemm_own};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i]->fits(d))
            return all[i];
    return NULL;
}
