/* kernel/gemm_own.c -- our own matrix multiply.
 *
 * C is made in blocks that stay in cache, for each stretch of k. The micro-kernels see panels of a
 * few rows of A and of one or two vectors of B: where they are if they are read so seldom that
 * packing does not pay, else packed, and small integers widened. An element of C is a sum over k
 * in order, in stretches of K_BLOCK: it does not depend on how C was cut.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdalign.h>
#include <string.h>

#include "base/mem.h"
#include "kernel/gemm.h"
#include "kernel/gemm_micro.h"

enum {
    M_BLOCK = 192, /* a multiple of any level's rows */
    N_BLOCK = 1024,
    K_BLOCK = 384,
    L1_BYTES = 32 << 10,
    LINE = 64,
    MAX_TILE = CH_MICRO_ROWS * CH_MICRO_VECTORS * 64 /* bytes of a block of C */
};

static const ch_micro *micro(void)
{
    static const ch_micro *const levels[] = CH_SIMD_LIST(ch__micro);

    return levels[ch__simd_level()];
}

static const char *at(const void *base, ch_dtype t, int64_t index)
{
    return (const char *)base + index * (int64_t)ch_dtype_bytes(t);
}

static char *at_mut(void *base, ch_dtype t, int64_t index)
{
    return (char *)base + index * (int64_t)ch_dtype_bytes(t);
}

/* One product of two matrices. */
typedef struct work {
    const ch_gemm_dims  *d;
    const ch_micro      *micro;
    const ch_micro_move *move;
    const void          *a, *b;
    void                *c;
    char                *packed_a, *packed_b;
    int64_t              lanes, width; /* of a vector; of a panel of B */
    bool                 direct_a, direct_b;
} work;

/* A block of C, and the stretch of k that is being added to it. */
typedef struct block {
    int64_t i, m, j, n, p, k;
} block;

/* Bytes of the packed part of A, where that of B begins; and of both. */
static size_t lay_out(const ch_gemm_dims *d, size_t *b_at)
{
    const ch_micro      *mk = micro();
    const ch_micro_move *v = &mk->move[d->dtype];
    int64_t              width = CH_MICRO_VECTORS * mk->vector_bytes / v->bytes;
    int64_t              m = ch__least(d->m, M_BLOCK), k = ch__least(d->k, K_BLOCK);
    int64_t              n = ch__round_up(ch__least(d->n, N_BLOCK), width);

    *b_at = (size_t)ch__round_up(m * k * v->bytes, CH_ALIGN);
    return *b_at + (size_t)(n * k * v->bytes);
}

/* Rows of A are read where they are if few panels of B need them, or if they do not all
 * clash in the cache, as rows of whole pages do. */
static bool reads_a(const ch_gemm_dims *d)
{
    const ch_micro      *mk = micro();
    const ch_micro_move *v = &mk->move[d->dtype];

    return v->is_same && (d->n <= 4 * CH_MICRO_VECTORS * mk->vector_bytes / v->bytes ||
                          (!d->ta && d->lda * v->bytes % 4096 != 0));
}

static work work_of(const ch_gemm_dims *d, const void *a, const void *b, void *c, char *scratch)
{
    const ch_micro *mk = micro();
    size_t          b_at;
    work w = {.d = d, .micro = mk, .move = &mk->move[d->dtype], .a = a, .b = b, .c = c};

    (void)lay_out(d, &b_at);
    w.packed_a = scratch;
    w.packed_b = scratch + b_at;
    w.lanes = mk->vector_bytes / w.move->bytes;
    w.width = CH_MICRO_VECTORS * w.lanes;
    w.direct_a = reads_a(d);
    w.direct_b = w.move->is_same && !d->tb && d->n % w.lanes == 0 &&
                 (d->m <= 4 * mk->rows || d->k * d->n * w.move->bytes <= L1_BYTES);
    return w;
}

/* A's part of a block, as panels a[p][row]. */
static void pack_a(const work *w, const block *x)
{
    const ch_gemm_dims *d = w->d;
    int64_t             row = d->ta ? 1 : d->lda, col = d->ta ? d->lda : 1;
    const char         *from = at(w->a, d->dtype, x->i * row + x->p * col);

    for (int64_t r = 0; r < x->m; r += w->micro->rows) {
        int64_t n = ch__least(w->micro->rows, x->m - r);

        w->move->pack(n, x->k, at(from, d->dtype, r * row), row, col,
                      w->packed_a + r * x->k * w->move->bytes, n);
    }
}

/* Where B's column j of a block begins. */
static const char *column_of_b(const work *w, const block *x, int64_t j)
{
    const ch_gemm_dims *d = w->d;
    int64_t             row = d->tb ? 1 : d->ldb, col = d->tb ? d->ldb : 1;

    return at(w->b, d->dtype, x->p * row + (x->j + j) * col);
}

/* Panel j of B's part of a block, as b[p][column] of `width`; the last may have one vector less, and
 * zeros at its end. */
static void pack_panel(const work *w, const block *x, int64_t j)
{
    const ch_gemm_dims *d = w->d;
    int64_t             row = d->tb ? 1 : d->ldb, col = d->tb ? d->ldb : 1;
    int64_t             n = ch__least(w->width, x->n - j), to_row = ch__round_up(n, w->lanes);
    char               *to = w->packed_b + j * x->k * w->move->bytes;

    if (n < to_row)
        memset(to, 0, (size_t)(to_row * x->k * w->move->bytes));
    w->move->pack(n, x->k, column_of_b(w, x, j), col, row, to, to_row);
}

/* Lets the product with rows [i, ..) ask for its share of panel j of B. A line holds some steps of k if B
 * is to be turned, and part of a row of the panel if not. */
static void look_ahead(const work *w, const block *x, int64_t j, int64_t i, ch_micro_call *c)
{
    const ch_gemm_dims *d = w->d;
    int64_t             row = d->ldb * (int64_t)ch_dtype_bytes(d->dtype);
    int64_t             calls = ch__units(x->m, w->micro->rows), call = i / w->micro->rows;

    if (j >= x->n)
        return;
    c->ahead = column_of_b(w, x, j) + (d->tb ? call : ch__units(x->k, calls) * call) * row;
    c->ahead_gap = d->tb ? calls * row : LINE;
    c->ahead_step = d->tb ? LINE : row;
}

/* Panel j of B by all panels of A. */
static void multiply_panel(const work *w, const block *x, int64_t j, bool packs)
{
    const ch_gemm_dims *d = w->d;
    int64_t             size = w->move->bytes, n = ch__least(w->width, x->n - j);
    int                 vectors = n <= w->lanes ? 1 : 2;
    bool                is_direct = w->move->is_same && n % w->lanes == 0;
    bool                add = x->p > 0 || d->add;
    ch_micro_call       c = {.k = x->k, .b_row = vectors * w->lanes, .add = is_direct && add};
    alignas(CH_ALIGN) char tile[MAX_TILE];

    c.b = w->packed_b + j * x->k * size;
    if (w->direct_b) {
        c.b = at(w->b, d->dtype, x->p * d->ldb + x->j + j);
        c.b_row = d->ldb;
    }
    c.ahead = c.b;
    c.c_row = is_direct ? d->ldc : w->width;
    for (int64_t i = 0; i < x->m; i += w->micro->rows) {
        int   rows = (int)ch__least(w->micro->rows, x->m - i);
        char *to = at_mut(w->c, d->dtype, (x->i + i) * d->ldc + x->j + j);

        c.a = w->packed_a + i * x->k * size;
        c.a_row = 1;
        c.a_col = rows;
        if (w->direct_a) {
            c.a_row = d->ta ? 1 : d->lda;
            c.a_col = d->ta ? d->lda : 1;
            c.a = at(w->a, d->dtype, (x->i + i) * c.a_row + x->p * c.a_col);
        }
        c.c = is_direct ? to : tile;
        if (packs)
            look_ahead(w, x, j + w->width, i, &c);
        w->micro->fn[w->move->type][rows - 1][vectors - 1](&c);
        if (!is_direct)
            w->move->unpack(rows, n, tile, w->width, to, d->ldc, add);
    }
}

/* All rows of some columns of C, for one stretch of k: what is packed of B serves them all. */
static void multiply_columns(const work *w, block x)
{
    for (x.i = 0; x.i < w->d->m; x.i += M_BLOCK) {
        bool packs = !w->direct_b && x.i == 0;

        x.m = ch__least(M_BLOCK, w->d->m - x.i);
        if (!w->direct_a)
            pack_a(w, &x);
        for (int64_t j = 0; j < x.n; j += w->width) {
            if (packs)
                pack_panel(w, &x, j);
            multiply_panel(w, &x, j, packs);
        }
    }
}

/* A sum over nothing. */
static void set_zero(const ch_gemm_dims *d, char *c)
{
    for (int64_t i = 0; i < d->m && !d->add; i++)
        memset(at_mut(c, d->dtype, i * d->ldc), 0, (size_t)d->n * ch_dtype_bytes(d->dtype));
}

static void multiply(const ch_gemm_dims *d, const void *a, const void *b, void *c,
                     char *scratch)
{
    work  w;
    block x = {0};

    if (d->k == 0) {
        set_zero(d, c);
        return;
    }
    w = work_of(d, a, b, c, scratch);
    for (x.j = 0; x.j < d->n; x.j += N_BLOCK)
        for (x.p = 0; x.p < d->k; x.p += K_BLOCK) {
            x.n = ch__least(N_BLOCK, d->n - x.j);
            x.k = ch__least(K_BLOCK, d->k - x.p);
            multiply_columns(&w, x);
        }
}

/* ---- the engine ---- */

static bool own_fits(const ch_gemm_dims *d)
{
    return micro()->move[d->dtype].pack != NULL;
}

static ch_status own_open(const ch_gemm_dims *d, void **state, size_t *scratch_bytes)
{
    size_t b_at;

    (void)state;
    *scratch_bytes = lay_out(d, &b_at);
    return CH_OK;
}

static ch_status own_run(const ch_gemm_dims *d, const void *state, const void *a, const void *b,
                         void *c, void *scratch)
{
    (void)state;
    for (int64_t s = 0; s < d->batch; s++)
        multiply(d, at(a, d->dtype, s * d->a_step), at(b, d->dtype, s * d->b_step),
                 at_mut(c, d->dtype, s * d->c_step), scratch);
    return CH_OK;
}

static void own_close(void *state)
{
    (void)state;
}

const ch_gemm_engine ch__gemm_own = {"own", own_fits, own_open, own_run, own_close, reads_a};
