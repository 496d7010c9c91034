/* kernel/gemm.c -- our own matrix multiply, and the choice among engines.
 *
 * C is made in blocks that stay in cache. For each block and each stretch of k, the micro-kernels see panels of
 * a few rows of A and of one or two vectors of B: where they are if they can be read so, else packed, and
 * small integers widened. An element of C is a sum over k in order, in stretches of K_BLOCK: it does
 * not depend on how C was cut.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/gemm.h"

#include <string.h>

#include "base/mem.h"
#include "kernel/block.h"
#include "kernel/gemm_micro.h"

enum { M_BLOCK = 96, N_BLOCK = 256, K_BLOCK = 256 }; /* M_BLOCK: a multiple of CH_MICRO_ROWS */

static const ch_micro *micro(void)
{
    static const ch_micro *const levels[] = CH_SIMD_LIST(ch__micro);

    return levels[ch__simd_level()];
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

static const char *at(const void *base, ch_dtype t, int64_t index)
{
    return (const char *)base + index * (int64_t)ch_dtype_bytes(t);
}

static char *at_mut(void *base, ch_dtype t, int64_t index)
{
    return (char *)base + index * (int64_t)ch_dtype_bytes(t);
}

/* ---- blocks ---- */

/* One product of two matrices, and where its packed parts go in the scratch memory. */
typedef struct work {
    const ch_gemm_dims  *d;
    const ch_micro      *micro;
    const ch_micro_move *move;
    const void          *a, *b;
    void                *c;
    char   *packed_a, *packed_b, *room; /* room: for blocks of C that are not direct */
    int64_t width, room_row;            /* of a panel of B; of a row of `room` */
    bool    direct_a, direct_b, direct_c;
} work;

/* A block of C, with the stretch of k that is being added to it. */
typedef struct block {
    int64_t i, m, j, n, p, k;
} block;

/* Sizes of the parts of the scratch memory; all of it in the end. */
static size_t lay_out(const ch_gemm_dims *d, size_t *b_at, size_t *room_at)
{
    const ch_micro      *mk = micro();
    const ch_micro_move *v = &mk->move[d->dtype];
    int64_t              width = CH_MICRO_VECTORS * mk->vector_bytes / v->bytes;
    int64_t              m = least(d->m, M_BLOCK), k = least(d->k, K_BLOCK);
    int64_t              n = round_up(least(d->n, N_BLOCK), width);

    *b_at = (size_t)round_up(m * k * v->bytes, CH_ALIGN);
    *room_at = *b_at + (size_t)round_up(n * k * v->bytes, CH_ALIGN);
    return *room_at + (size_t)(m * n * v->bytes);
}

static work work_of(const ch_gemm_dims *d, char *scratch)
{
    const ch_micro *mk = micro();
    size_t          b_at, room_at;
    work            w = {.d = d, .micro = mk, .move = &mk->move[d->dtype]};

    (void)lay_out(d, &b_at, &room_at);
    w.packed_a = scratch;
    w.packed_b = scratch + b_at;
    w.room = scratch + room_at;
    w.width = CH_MICRO_VECTORS * mk->vector_bytes / w.move->bytes;
    w.room_row = round_up(least(d->n, N_BLOCK), w.width);
    /* Rows of A are read as they are; of B too, if they are read only once or twice; and C is written
     * where it belongs if vectors end where its rows do. */
    w.direct_a = w.move->is_same && !d->ta;
    w.direct_b = w.move->is_same && !d->tb && d->n % w.width == 0 && d->m <= 2 * CH_MICRO_ROWS;
    w.direct_c = w.move->is_same && d->n % w.width == 0;
    return w;
}

/* A's part of a block, as panels a[p][row]. */
static void pack_a(const work *w, const block *x)
{
    const ch_gemm_dims *d = w->d;
    int64_t             row = d->ta ? 1 : d->lda, col = d->ta ? d->lda : 1;
    char               *to = w->packed_a;

    for (int64_t r = 0; r < x->m;
         r += CH_MICRO_ROWS, to += CH_MICRO_ROWS * x->k * w->move->bytes) {
        int64_t     n = least(CH_MICRO_ROWS, x->m - r);
        const char *from = at(w->a, d->dtype, (x->i + r) * row + x->p * col);

        if (d->ta)
            w->move->widen(x->k, n, from, col, row, to, n, 1);
        else
            w->move->widen(n, x->k, from, row, col, to, 1, n);
    }
}

/* B's part of a block, as panels b[p][column] of `width`, the last filled up with zeros. */
static void pack_b(const work *w, const block *x)
{
    const ch_gemm_dims *d = w->d;
    int64_t             row = d->tb ? 1 : d->ldb, col = d->tb ? d->ldb : 1;
    char               *to = w->packed_b;

    for (int64_t c = 0; c < x->n; c += w->width, to += w->width * x->k * w->move->bytes) {
        int64_t     n = least(w->width, x->n - c);
        const char *from = at(w->b, d->dtype, x->p * row + (x->j + c) * col);

        if (n < w->width)
            memset(to, 0, (size_t)(w->width * x->k * w->move->bytes));
        if (d->tb)
            w->move->widen(n, x->k, from, col, row, to, 1, w->width);
        else
            w->move->widen(x->k, n, from, row, col, to, w->width, 1);
    }
}

/* Panel j of B by all panels of A. */
static void multiply_panel(const work *w, const block *x, int64_t j)
{
    const ch_gemm_dims *d = w->d;
    int64_t             size = w->move->bytes;
    int                 vectors = x->n - j <= w->width / 2 ? 1 : 2;
    ch_micro_call       c = {.k = x->k, .b_row = w->width, .c_row = w->room_row};

    c.add = x->p > 0 || (w->direct_c && d->add);
    c.b = w->packed_b + j * x->k * size;
    if (w->direct_b) {
        c.b = at(w->b, d->dtype, x->p * d->ldb + x->j + j);
        c.b_row = d->ldb;
    }
    if (w->direct_c)
        c.c_row = d->ldc;
    for (int64_t i = 0; i < x->m; i += CH_MICRO_ROWS) {
        int rows = (int)least(CH_MICRO_ROWS, x->m - i);

        c.a = w->direct_a ? at(w->a, d->dtype, (x->i + i) * d->lda + x->p)
                          : w->packed_a + i * x->k * size;
        c.a_row = w->direct_a ? d->lda : 1;
        c.a_col = w->direct_a ? 1 : rows;
        c.c = w->direct_c ? at_mut(w->c, d->dtype, (x->i + i) * d->ldc + x->j + j)
                          : w->room + (i * w->room_row + j) * size;
        w->micro->fn[w->move->type][rows - 1][vectors - 1](&c);
    }
}

static void multiply_block(const work *w, block x)
{
    const ch_gemm_dims *d = w->d;

    for (x.p = 0; x.p < d->k; x.p += K_BLOCK) {
        x.k = least(K_BLOCK, d->k - x.p);
        if (!w->direct_a)
            pack_a(w, &x);
        if (!w->direct_b)
            pack_b(w, &x);
        for (int64_t j = 0; j < x.n; j += w->width)
            multiply_panel(w, &x, j);
    }
    if (!w->direct_c)
        w->move->narrow(x.m, x.n, w->room, w->room_row,
                        at_mut(w->c, d->dtype, x.i * d->ldc + x.j), d->ldc, d->add);
}

/* A sum over nothing. */
static void set_zero(const ch_gemm_dims *d, char *c)
{
    for (int64_t i = 0; i < d->m && !d->add; i++)
        memset(at_mut(c, d->dtype, i * d->ldc), 0, (size_t)d->n * ch_dtype_bytes(d->dtype));
}

static void multiply(const ch_gemm_dims *d, const void *a, const void *b, void *c,
                     void *scratch)
{
    work  w = work_of(d, scratch);
    block x = {0};

    w.a = a;
    w.b = b;
    w.c = c;
    if (d->k == 0)
        set_zero(d, c);
    for (x.i = 0; x.i < d->m && d->k > 0; x.i += M_BLOCK)
        for (x.j = 0; x.j < d->n; x.j += N_BLOCK) {
            x.m = least(M_BLOCK, d->m - x.i);
            x.n = least(N_BLOCK, d->n - x.j);
            multiply_block(&w, x);
        }
}

/* ---- 16-bit floats: widened whole, multiplied in f32, rounded ---- */

typedef struct wide {
    const ch_gemm_engine *engine;
    void                 *state;
    ch_gemm_dims          dims; /* of one product in f32, dense */
    size_t                b_at, c_at, more_at;
} wide;

static bool is_short(ch_dtype t)
{
    return t == CH_BF16 || t == CH_F16;
}

static ch_gemm_dims wide_dims(const ch_gemm_dims *d)
{
    ch_gemm_dims w = *d;

    w.dtype = CH_F32;
    w.batch = 1;
    w.lda = d->ta ? d->m : d->k;
    w.ldb = d->tb ? d->k : d->n;
    w.ldc = d->n;
    w.a_step = w.b_step = w.c_step = 0;
    return w;
}

static void wide_close(void *state)
{
    wide *w = state;

    if (w != NULL && w->engine != NULL)
        w->engine->close(w->state);
    ch__free(w);
}

static ch_status wide_open(const ch_gemm_dims *d, const ch_gemm_engine *engine, void **state,
                           size_t *scratch_bytes)
{
    size_t    more = 0;
    wide     *w = ch__calloc(1, sizeof(*w));
    ch_status rc;

    if (w == NULL)
        return ch__fail_memory("a matrix product");
    w->dims = wide_dims(d);
    rc = engine->open(&w->dims, &w->state, &more);
    if (rc != CH_OK) {
        wide_close(w);
        return rc;
    }
    w->engine = engine;
    w->b_at = (size_t)round_up(d->m * d->k * 4, CH_ALIGN);
    w->c_at = w->b_at + (size_t)round_up(d->k * d->n * 4, CH_ALIGN);
    w->more_at = w->c_at + (size_t)round_up(d->m * d->n * 4, CH_ALIGN);
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

static ch_status wide_run(const ch_gemm_dims *d, const void *state, const void *a,
                          const void *b, void *c, void *scratch)
{
    const wide *w = state;
    char       *wa = scratch, *wb = wa + w->b_at, *wc = wa + w->c_at;
    ch_block_fn narrow = ch__blocks()->narrow[d->dtype];
    ch_status   rc = CH_OK;

    for (int64_t s = 0; s < d->batch && rc == CH_OK; s++) {
        char *to = at_mut(c, d->dtype, s * d->c_step);

        if (s == 0 || d->a_step != 0)
            widen(d->dtype, d->ta ? d->k : d->m, w->dims.lda, at(a, d->dtype, s * d->a_step),
                  d->lda, wa);
        if (s == 0 || d->b_step != 0)
            widen(d->dtype, d->tb ? d->n : d->k, w->dims.ldb, at(b, d->dtype, s * d->b_step),
                  d->ldb, wb);
        if (d->add)
            widen(d->dtype, d->m, d->n, to, d->ldc, wc);
        rc = w->engine->run(&w->dims, w->state, wa, wb, wc, wa + w->more_at);
        for (int64_t r = 0; r < d->m; r++)
            narrow(d->n, (const void *const[]){(float *)(void *)wc + r * d->n},
                   at_mut(to, d->dtype, r * d->ldc), NULL);
    }
    return rc;
}

/* ---- our own ---- */

static bool own_fits(const ch_gemm_dims *d)
{
    return is_short(d->dtype) || micro()->move[d->dtype].widen != NULL;
}

static ch_status own_open(const ch_gemm_dims *d, void **state, size_t *scratch_bytes)
{
    size_t b_at, room_at;

    if (is_short(d->dtype))
        return wide_open(d, &ch__gemm_own, state, scratch_bytes);
    *scratch_bytes = lay_out(d, &b_at, &room_at);
    return CH_OK;
}

static ch_status own_run(const ch_gemm_dims *d, const void *state, const void *a, const void *b,
                         void *c, void *scratch)
{
    if (is_short(d->dtype))
        return wide_run(d, state, a, b, c, scratch);
    for (int64_t s = 0; s < d->batch; s++)
        multiply(d, at(a, d->dtype, s * d->a_step), at(b, d->dtype, s * d->b_step),
                 at_mut(c, d->dtype, s * d->c_step), scratch);
    return CH_OK;
}

const ch_gemm_engine ch__gemm_own = {"own", own_fits, own_open, own_run, wide_close};

/* ---- widened, for an engine ---- */

static const ch_gemm_engine *wide_engine(const ch_gemm_dims *d)
{
    ch_gemm_dims w = wide_dims(d);

    return ch__gemm_onednn.fits(&w) ? &ch__gemm_onednn
           : ch__gemm_blas.fits(&w) ? &ch__gemm_blas
                                    : NULL;
}

static bool engine_fits(const ch_gemm_dims *d)
{
    return is_short(d->dtype) && d->m > 0 && d->n > 0 && d->k > 0 && wide_engine(d) != NULL;
}

static ch_status engine_open(const ch_gemm_dims *d, void **state, size_t *scratch_bytes)
{
    return wide_open(d, wide_engine(d), state, scratch_bytes);
}

const ch_gemm_engine ch__gemm_wide = {"widened", engine_fits, engine_open, wide_run,
                                      wide_close};

/* ---- the choice ---- */

bool ch__gemm_never(const ch_gemm_dims *d)
{
    (void)d;
    return false;
}

const ch_gemm_engine *ch__gemm_for(const ch_gemm_dims *d)
{
    static const ch_gemm_engine *const all[] = {&ch__gemm_onednn, &ch__gemm_blas,
                                                &ch__gemm_wide, &ch__gemm_own};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i]->fits(d))
            return all[i];
    return NULL;
}
