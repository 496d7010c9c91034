/* kernel/attention.h -- scaled dot-product attention and its gradient.
 *
 *     o (t, e) = softmax(scale * q (t, d) . k (s, d)' + mask) . v (s, e)
 *
 * for each head of each batch element.
 *
 * The computation goes over blocks of queries. The scores of a block against all keys are
 * computed, turned into weights and used while they are in the cache, so the whole (t, s)
 * matrix never exists in memory. The gradient computes the weights again. With `causal`, a
 * block of keys is skipped if no query of the block may see any of them.
 *
 * If a query may see no key, its output is zero, and it contributes zero to all gradients.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_ATTENTION_H
#define KERNEL_ATTENTION_H

#include "kernel/gemm.h"
#include "kernel/norm.h"

typedef struct ch_attention_dims {
    ch_dtype dtype; /* 16-bit floats are computed in f32 and rounded at the end */
    /* t queries, s keys, d elements of a query or key, e elements of a value */
    int64_t batch, heads, t, s, d, e;
    double  scale;
    bool    causal; /* query i sees the keys 0 .. i + offset */
    bool    has_mask;
    /* CH_BOOL: true means that the key is visible. Otherwise equal to `dtype`, and the mask is
     * added. */
    ch_dtype mask_dtype;
    /* Steps in elements along batch, head, query and key. 0: the mask repeats along this
     * axis. */
    int64_t mask_step[4];
} ch_attention_dims;

typedef struct ch_attention_product {
    const ch_gemm_engine *engine; /* NULL: this product is not used */
    void                 *state;
    ch_gemm_dims          dims;
} ch_attention_product;

enum { CH_ATTENTION_PRODUCTS = 6 };

typedef struct ch_attention_plan {
    ch_attention_dims dims;
    ch_dtype          compute;
    bool              is_gradient;
    int64_t           rows, keys;     /* size of a block: queries and keys */
    int64_t           n_rows, n_keys; /* numbers of blocks of queries and of keys */
    int64_t           step;           /* elements between two rows of scores */
    /* Units of work: blocks of queries of all heads; for the gradient, heads. */
    int64_t              n_units;
    int                  n_tiles;
    const ch_norm_loops *loops;
    /* Indexed by [product][last block of rows][last block of keys][adds to the result]. */
    ch_attention_product product[CH_ATTENTION_PRODUCTS][2][2][2];
    size_t               scores_bytes, wide_at, product_at, tile_bytes;
} ch_attention_plan;

/* Plans the computation and opens its matrix products. After an error the caller must not call
 * ch__attention_close. */
CH_MUST_CHECK ch_status ch__attention_open(ch_attention_plan *a, const ch_attention_dims *d,
                                           bool is_gradient);
void                    ch__attention_close(ch_attention_plan *a);
/* Returns the bytes of scratch memory that all tiles together need. */
size_t ch__attention_scratch_bytes(const ch_attention_plan *a);

/* Runs a tile of [0, n_tiles). in: q, k, v, mask (ignored without has_mask); out: o. `offset`
 * is for causal attention; s - t, so that the last query sees all keys, unless the queries are
 * a part of all queries. Tiles may run in parallel on the same scratch memory, because each
 * uses its own part. */
CH_MUST_CHECK ch_status ch__attention_run(const ch_attention_plan *a, int tile, int64_t offset,
                                          const void *const *in, void *out, void *scratch);
/* Runs a tile of the gradient. in: q, k, v, do, mask; out: dq, dk, dv. */
CH_MUST_CHECK ch_status ch__attention_grad(const ch_attention_plan *a, int tile, int64_t offset,
                                           const void *const *in, void *const *out,
                                           void *scratch);

/* Loops over a row of n scores, for each SIMD level. `scale` multiplies by the scale. `add`
 * also adds the mask. `hide` also sets the score to -infinity where the mask is 0. `step` is
 * the distance of two mask elements. */
typedef struct ch_score_loops {
    void (*scale)(int64_t n, void *x, double scale);
    void (*add)(int64_t n, void *x, double scale, const void *mask, int64_t step);
    void (*hide)(int64_t n, void *x, double scale, const void *mask, int64_t step);
} ch_score_loops;

typedef struct ch_score_table {
    ch_score_loops f32, f64;
} ch_score_table;

CH_SIMD_DECLARE(ch_score_table, ch__score_table)

#endif
