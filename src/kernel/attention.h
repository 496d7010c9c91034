/* kernel/attention.h -- scaled dot-product attention, and its gradient.
 *
 *     o (t, e) = softmax(scale * q (t, d) . k (s, d)' + mask) . v (s, e),   for each head of each batch
 *
 * Done in blocks of queries: the scores of a block against all keys are made, turned into weights and
 * used while in cache; the whole (t, s) never exists. The gradient makes the weights again. With
 * `causal`, blocks of keys that no query of the block may see are left out.
 *
 * A query that may see no key at all gives zeros, and gets none.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_ATTENTION_H
#define KERNEL_ATTENTION_H

#include "kernel/gemm.h"
#include "kernel/norm.h"

typedef struct ch_attention_dims {
    ch_dtype dtype; /* 16-bit floats are computed in f32 and rounded at the end */
    int64_t  batch, heads, t, s, d, e;
    double   scale;
    bool     causal; /* query i sees keys up to i + s - t */
    bool     has_mask;
    ch_dtype mask_dtype;   /* CH_BOOL: true is seen; else of `dtype`, and added */
    int64_t  mask_step[4]; /* in elements along batch, head, query, key; 0: repeats */
} ch_attention_dims;

typedef struct ch_attention_product {
    const ch_gemm_engine *engine; /* NULL: not needed */
    void                 *state;
    ch_gemm_dims          dims;
} ch_attention_product;

enum { CH_ATTENTION_PRODUCTS = 6 };

typedef struct ch_attending {
    ch_attention_dims    dims;
    ch_dtype             compute;
    bool                 is_gradient;
    int64_t              rows, keys;     /* of a block */
    int64_t              n_rows, n_keys; /* blocks */
    int64_t              step;           /* from a row of scores to the next */
    int64_t              n_units;        /* heads, or blocks of queries */
    int                  n_tiles;
    const ch_norm_loops *loops;
    /* [which][last rows][last keys][added to what is there] */
    ch_attention_product product[CH_ATTENTION_PRODUCTS][2][2][2];
    size_t               scores_bytes, wide_at, product_at, tile_bytes;
} ch_attending;

/* After a failure there is nothing to close. */
CH_MUST_CHECK ch_status ch__attention_open(ch_attending *a, const ch_attention_dims *d,
                                           bool is_gradient);
void                    ch__attention_close(ch_attending *a);
size_t                  ch__attention_scratch_bytes(const ch_attending *a);

/* in: q, k, v, mask; out: o. */
CH_MUST_CHECK ch_status ch__attention_run(const ch_attending *a, int tile,
                                          const void *const *in, void *out, void *scratch);
/* in: q, k, v, do, mask; out: dq, dk, dv. */
CH_MUST_CHECK ch_status ch__attention_grad(const ch_attending *a, int tile,
                                           const void *const *in, void *const *out,
                                           void *scratch);

/* The loops over scores, for each SIMD level: x * scale, and with a mask that is added or hides. */
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
