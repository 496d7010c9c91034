/* kernel/gemm_own.c -- our own matrix multiply.
 *
 * C is computed in blocks that stay in the cache, for each stretch of k. The micro-kernels
 * (gemm_micro.c) read panels: a few rows of A, and one or two vectors of columns of B. A panel
 * is read in place if it is used so seldom that packing does not pay. Otherwise it is packed,
 * and small integers are widened.
 *
 * `struct work` is a product of two matrices; `struct block` is the current block of C. The
 * callers reach this engine, ch__gemm_own, through ch__gemm_for (kernel/gemm.h).
 *
 * Invariants:
 *   1. An element of C is a sum over k in order, in stretches of K_BLOCK. So its bits do not
 *      depend on how C is cut.
 *   2. No memory is allocated. Packed panels are in the scratch memory of the caller.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdalign.h>
#include <string.h>

#include "base/mem.h"
#include "kernel/gemm.h"
#include "kernel/gemm_micro.h"

enum {
    M_BLOCK = 192, /* a multiple of the rows of a full block at any SIMD level */
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

/* A product of two matrices. */
typedef struct work {
    const ch_gemm_dims  *d;
    const ch_micro      *micro;
    const ch_micro_move *move;
    const void          *a, *b;
    void                *c;
    char                *packed_a, *packed_b;
    int64_t              lanes, width; /* elements of a vector; of a row of a panel of B */
    /* The operand is read in place, not packed. */
    bool direct_a, direct_b;
} work;

/* A block of C, rows [i, i + m) and columns [j, j + n), and the stretch [p, p + k) that is
 * added. */
typedef struct block {
    int64_t i, m, j, n, p, k;
} block;

/* Returns the bytes of both packed operands. Sets *b_at to the bytes of A, where B begins. */
static size_t lay_out(const ch_gemm_dims *d, size_t *b_at)
{
    const ch_micro      *mk = micro();
    const ch_micro_move *v = &mk->move[d->dtype];
    int64_t              width = CH_MICRO_VECTORS * mk->vector_bytes / v->bytes;
    int64_t              m = ch__min(d->m, M_BLOCK), k = ch__min(d->k, K_BLOCK);
    int64_t              n = ch__round_up(ch__min(d->n, N_BLOCK), width);

    *b_at = (size_t)ch__round_up(m * k * v->bytes, CH_ALIGN);
    return *b_at + (size_t)(n * k * v->bytes);
}

/* Returns true if the rows of A are read in place: if at most 4 panels of B use them, or if
 * their addresses do not collide in the cache. Rows of a multiple of 4096 bytes collide. */
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

/* Packs the part of A of a block, as panels a[p][row]. */
static void pack_a(const work *w, const block *x)
{
    const ch_gemm_dims *d = w->d;
    int64_t             row = d->ta ? 1 : d->lda, col = d->ta ? d->lda : 1;
    const char         *from = at(w->a, d->dtype, x->i * row + x->p * col);

    for (int64_t r = 0; r < x->m; r += w->micro->rows) {
        int64_t n = ch__min(w->micro->rows, x->m - r);

        w->move->pack(n, x->k, at(from, d->dtype, r * row), row, col,
                      w->packed_a + r * x->k * w->move->bytes, n);
    }
}

/* Returns the address of column j of the part of B of a block. */
static const char *column_of_b(const work *w, const block *x, int64_t j)
{
    const ch_gemm_dims *d = w->d;
    int64_t             row = d->tb ? 1 : d->ldb, col = d->tb ? d->ldb : 1;

    return at(w->b, d->dtype, x->p * row + (x->j + j) * col);
}

/* Packs panel j of the part of B of a block, as b[p][column] of `width` columns. The last panel
 * may have one vector less, and is padded with zeros. */
static void pack_panel(const work *w, const block *x, int64_t j)
{
    const ch_gemm_dims *d = w->d;
    int64_t             row = d->tb ? 1 : d->ldb, col = d->tb ? d->ldb : 1;
    int64_t             n = ch__min(w->width, x->n - j), to_row = ch__round_up(n, w->lanes);
    char               *to = w->packed_b + j * x->k * w->move->bytes;

    if (n < to_row)
        memset(to, 0, (size_t)(to_row * x->k * w->move->bytes));
    w->move->pack(n, x->k, column_of_b(w, x, j), col, row, to, to_row);
}

/* Sets the prefetch addresses of call c, which multiplies rows [i, ..), to its share of panel j
 * of B. If B must be transposed, a cache line holds several steps of k; otherwise it holds a
 * part of a row of the panel. */
static void prefetch_panel(const work *w, const block *x, int64_t j, int64_t i,
                           ch_micro_call *c)
{
    const ch_gemm_dims *d = w->d;
    int64_t             row = d->ldb * (int64_t)ch_dtype_bytes(d->dtype);
    int64_t             calls = ch__units(x->m, w->micro->rows), call = i / w->micro->rows;

    if (j >= x->n)
        return;
    c->prefetch = column_of_b(w, x, j) + (d->tb ? call : ch__units(x->k, calls) * call) * row;
    c->prefetch_gap = d->tb ? calls * row : LINE;
    c->prefetch_step = d->tb ? LINE : row;
}

/* Multiplies panel j of B by all panels of A. */
static void multiply_panel(const work *w, const block *x, int64_t j, bool packs)
{
    const ch_gemm_dims *d = w->d;
    int64_t             size = w->move->bytes, n = ch__min(w->width, x->n - j);
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
    c.prefetch = c.b;
    c.c_row = is_direct ? d->ldc : w->width;
    for (int64_t i = 0; i < x->m; i += w->micro->rows) {
        int   rows = (int)ch__min(w->micro->rows, x->m - i);
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
            prefetch_panel(w, x, j + w->width, i, &c);
        w->micro->fn[w->move->type][rows - 1][vectors - 1](&c);
        if (!is_direct)
            w->move->unpack(rows, n, tile, w->width, to, d->ldc, add);
    }
}

/* Computes all rows of some columns of C for a stretch of k. All rows use the same packed B. */
static void multiply_columns(const work *w, block x)
{
    for (x.i = 0; x.i < w->d->m; x.i += M_BLOCK) {
        bool packs = !w->direct_b && x.i == 0;

        x.m = ch__min(M_BLOCK, w->d->m - x.i);
        if (!w->direct_a)
            pack_a(w, &x);
        for (int64_t j = 0; j < x.n; j += w->width) {
            if (packs)
                pack_panel(w, &x, j);
            multiply_panel(w, &x, j, packs);
        }
    }
}

static void multiply(const ch_gemm_dims *d, const void *a, const void *b, void *c,
                     char *scratch)
{
    work  w;
    block x = {0};

    if (d->k == 0) { /* the sum over an empty k is 0 */
        for (int64_t i = 0; i < d->m && !d->add; i++)
            memset(at_mut(c, d->dtype, i * d->ldc), 0, (size_t)d->n * ch_dtype_bytes(d->dtype));
        return;
    }
    w = work_of(d, a, b, c, scratch);
    for (x.j = 0; x.j < d->n; x.j += N_BLOCK)
        for (x.p = 0; x.p < d->k; x.p += K_BLOCK) {
            x.n = ch__min(N_BLOCK, d->n - x.j);
            x.k = ch__min(K_BLOCK, d->k - x.p);
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
