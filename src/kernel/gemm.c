/* kernel/gemm.c -- our own matrix multiply, and the choice among engines.
 *
 * C is made in blocks that stay in cache. For each block and each stretch of k, the part of A
 * is packed into panels of a few rows and the part of B into panels of one or two vectors, both
 * widened to the type that is computed in; the micro-kernels then see nothing but dense panels.
 * An element of C is a sum over k in order, in stretches of K_BLOCK: it does not depend on how
 * C was cut.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/gemm.h"

#include <string.h>

#include "base/mem.h"
#include "kernel/gemm_micro.h"
#include "tensor/tensor.h"

enum { M_BLOCK = 96, N_BLOCK = 256, K_BLOCK = 256 }; /* M_BLOCK: a multiple of CH_MICRO_ROWS */

/* ---- to and from the type that is computed in ---- */

#define AS_IS(x) (x)

#define STORED   float
#define COMPUTED float
#define WIDEN    AS_IS
#define NARROW   AS_IS
#define NAME(x)  f32_##x
#include "kernel/gemm_move.inc"

#define STORED   double
#define COMPUTED double
#define WIDEN    AS_IS
#define NARROW   AS_IS
#define NAME(x)  f64_##x
#include "kernel/gemm_move.inc"

#define STORED   uint16_t
#define COMPUTED float
#define WIDEN    ch__bf16_to_f32
#define NARROW   ch__bf16_of_f32
#define NAME(x)  bf16_##x
#include "kernel/gemm_move.inc"

#define STORED   uint16_t
#define COMPUTED float
#define WIDEN    ch__f16_to_f32
#define NARROW   ch__f16_of_f32
#define NAME(x)  f16_##x
#include "kernel/gemm_move.inc"

#define STORED   int8_t
#define COMPUTED uint32_t
#define WIDEN    (uint32_t)
#define NARROW   (int8_t)
#define NAME(x)  i8_##x
#include "kernel/gemm_move.inc"

#define STORED   uint8_t
#define COMPUTED uint32_t
#define WIDEN    (uint32_t)
#define NARROW   (uint8_t)
#define NAME(x)  u8_##x
#include "kernel/gemm_move.inc"

#define STORED   int32_t
#define COMPUTED uint32_t
#define WIDEN    (uint32_t)
#define NARROW   (int32_t)
#define NAME(x)  i32_##x
#include "kernel/gemm_move.inc"

#define STORED   int64_t
#define COMPUTED uint64_t
#define WIDEN    (uint64_t)
#define NARROW   (int64_t)
#define NAME(x)  i64_##x
#include "kernel/gemm_move.inc"

typedef struct mover {
    ch_micro_type type;
    int           bytes; /* of an element of `type` */
    void (*widen)(int64_t rows, int64_t cols, const void *from, int64_t from_row,
                  int64_t from_col, void *to, int64_t to_row, int64_t to_col);
    void (*narrow)(int64_t rows, int64_t cols, const void *from, int64_t from_row, void *to,
                   int64_t to_row, bool add);
} mover;

static const mover movers[CH_DTYPE_COUNT] = {
    [CH_F32] = {CH_MICRO_F32, 4, f32_widen, f32_narrow},
    [CH_F64] = {CH_MICRO_F64, 8, f64_widen, f64_narrow},
    [CH_BF16] = {CH_MICRO_F32, 4, bf16_widen, bf16_narrow},
    [CH_F16] = {CH_MICRO_F32, 4, f16_widen, f16_narrow},
    [CH_I8] = {CH_MICRO_U32, 4, i8_widen, i8_narrow},
    [CH_U8] = {CH_MICRO_U32, 4, u8_widen, u8_narrow},
    [CH_I32] = {CH_MICRO_U32, 4, i32_widen, i32_narrow},
    [CH_I64] = {CH_MICRO_U64, 8, i64_widen, i64_narrow},
};

static const ch_micro *micro(void)
{
    static const ch_micro *const levels[] = CH_SIMD_LIST(ch__micro);

    return levels[ch__simd_level()];
}

/* ---- packing ---- */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static const char *at(const void *base, ch_dtype t, int64_t index)
{
    return (const char *)base + index * (int64_t)ch_dtype_bytes(t);
}

/* Rows [i, i + rows) and columns [p, p + k) of A, as panels a[p][row]. */
static void pack_a(const ch_gemm_dims *d, const mover *v, const void *a, int64_t i,
                   int64_t rows, int64_t p, int64_t k, char *to)
{
    int64_t row = d->ta ? 1 : d->lda, col = d->ta ? d->lda : 1;

    for (int64_t r = 0; r < rows; r += CH_MICRO_ROWS, to += CH_MICRO_ROWS * k * v->bytes) {
        int64_t n = least(CH_MICRO_ROWS, rows - r);

        if (d->ta)
            v->widen(k, n, at(a, d->dtype, (i + r) * row + p * col), col, row, to, n, 1);
        else
            v->widen(n, k, at(a, d->dtype, (i + r) * row + p * col), row, col, to, 1, n);
    }
}

/* Rows [p, p + k) and columns [j, j + cols) of B, as panels b[p][column] of `width`, the last
 * as wide as it must be, filled up with zeros. */
static void pack_b(const ch_gemm_dims *d, const mover *v, const void *b, int64_t p, int64_t k,
                   int64_t j, int64_t cols, int64_t width, char *to)
{
    int64_t row = d->tb ? 1 : d->ldb, col = d->tb ? d->ldb : 1;

    for (int64_t c = 0; c < cols; c += width, to += width * k * v->bytes) {
        int64_t n = least(width, cols - c), w = n <= width / 2 ? width / 2 : width;

        if (n < w)
            memset(to, 0, (size_t)(w * k * v->bytes));
        if (d->tb)
            v->widen(n, k, at(b, d->dtype, p * row + (j + c) * col), col, row, to, 1, w);
        else
            v->widen(k, n, at(b, d->dtype, p * row + (j + c) * col), row, col, to, w, 1);
    }
}

/* ---- blocks ---- */

/* Where a block's packed parts are in the scratch memory. */
typedef struct workspace {
    char   *a, *b, *c;
    int64_t ldc, width;
} workspace;

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

static size_t workspace_of(const ch_gemm_dims *d, char *scratch, workspace *w)
{
    const mover *v = &movers[d->dtype];
    int64_t      width = CH_MICRO_VECTORS * micro()->vector_bytes / v->bytes;
    int64_t      m = least(d->m, M_BLOCK), k = least(d->k, K_BLOCK);
    int64_t      n = round_up(least(d->n, N_BLOCK), width);
    int64_t      a = round_up(m * k * v->bytes, CH_ALIGN), b = n * k * v->bytes;

    b = round_up(b, CH_ALIGN);
    if (scratch != NULL)
        *w = (workspace){scratch, scratch + a, scratch + a + b, n, width};
    return (size_t)(a + b + m * n * v->bytes);
}

static void multiply_panels(const ch_micro *mk, const mover *v, const workspace *w, int64_t m,
                            int64_t n, int64_t k, bool add)
{
    for (int64_t j = 0; j < n; j += w->width) {
        int     vectors = least(w->width, n - j) <= w->width / 2 ? 1 : 2;
        int64_t i = 0;

        for (; i < m; i += CH_MICRO_ROWS) {
            int rows = (int)least(CH_MICRO_ROWS, m - i);

            mk->fn[v->type][rows - 1][vectors - 1](
                k, w->a + i * k * v->bytes, w->b + j * k * v->bytes,
                w->c + (i * w->ldc + j) * v->bytes, w->ldc, add);
        }
    }
}

static void own_block(const ch_gemm_dims *d, const ch_micro *mk, const workspace *w,
                      const void *a, const void *b, char *c, int64_t i, int64_t j)
{
    const mover *v = &movers[d->dtype];
    int64_t      m = least(M_BLOCK, d->m - i), n = least(N_BLOCK, d->n - j);

    if (d->k == 0)
        memset(w->c, 0, (size_t)(m * w->ldc * v->bytes));
    for (int64_t p = 0; p < d->k; p += K_BLOCK) {
        int64_t k = least(K_BLOCK, d->k - p);

        pack_a(d, v, a, i, m, p, k, w->a);
        pack_b(d, v, b, p, k, j, n, w->width, w->b);
        multiply_panels(mk, v, w, m, n, k, p > 0);
    }
    v->narrow(m, n, w->c, w->ldc, c + (i * d->ldc + j) * (int64_t)ch_dtype_bytes(d->dtype),
              d->ldc, d->add);
}

static bool own_fits(const ch_gemm_dims *d)
{
    return movers[d->dtype].widen != NULL;
}

static ch_status own_open(const ch_gemm_dims *d, void **state, size_t *scratch_bytes)
{
    (void)state;
    *scratch_bytes = workspace_of(d, NULL, NULL);
    return CH_OK;
}

static ch_status own_run(const ch_gemm_dims *d, const void *state, const void *a, const void *b,
                         void *c, void *scratch)
{
    const ch_micro *mk = micro();
    workspace       w = {0};

    (void)state;
    (void)workspace_of(d, scratch, &w);
    for (int64_t s = 0; s < d->batch; s++)
        for (int64_t i = 0; i < d->m; i += M_BLOCK)
            for (int64_t j = 0; j < d->n; j += N_BLOCK)
                own_block(d, mk, &w, at(a, d->dtype, s * d->a_step),
                          at(b, d->dtype, s * d->b_step),
                          (char *)c + s * d->c_step * (int64_t)ch_dtype_bytes(d->dtype), i, j);
    return CH_OK;
}

static void own_close(void *state)
{
    (void)state;
}

const ch_gemm_engine ch__gemm_own = {"own", own_fits, own_open, own_run, own_close};

/* ---- the choice ---- */

bool ch__gemm_never(const ch_gemm_dims *d)
{
    (void)d;
    return false;
}

const ch_gemm_engine *ch__gemm_for(const ch_gemm_dims *d)
{
    static const ch_gemm_engine *const all[] = {&ch__gemm_onednn, &ch__gemm_blas,
                                                &ch__gemm_own};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i]->fits(d))
            return all[i];
    return NULL;
}
