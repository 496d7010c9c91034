/* kernel/gemm.h -- C = A . B for matrices and batches of them, row-major.
 *
 * Ways to do it, in the order in which they are tried: oneDNN for bf16, which it does with the
 * matrix instructions of newer CPUs; 16-bit floats widened; our own for everything else, which
 * is as fast as OpenBLAS, calls nobody and allocates nothing. All are single-threaded and may
 * run on several threads at once; whoever has a large product cuts it into tiles.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_GEMM_H
#define KERNEL_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/fault.h"
#include "cohort/shape.h"

/* c (m, n) = a (m, k) . b (k, n), `batch` times. Steps are in elements. */
typedef struct ch_gemm_dims {
    ch_dtype dtype; /* 16-bit floats are summed in f32 and rounded once */
    int64_t  m, n, k;
    bool     ta, tb;        /* a is stored as (k, m), b as (n, k) */
    int64_t  lda, ldb, ldc; /* from a row to the next, as stored */
    int64_t  batch;
    int64_t  a_step, b_step,
        c_step; /* from a matrix to the next; of a and b 0: always the same */
    bool add;   /* to what c holds */
} ch_gemm_dims;

typedef struct ch_gemm_engine {
    const char *name;
    bool (*fits)(const ch_gemm_dims *d);
    /* What running it again and again takes; *state may stay NULL. */
    ch_status (*open)(const ch_gemm_dims *d, void **state, size_t *scratch_bytes);
    ch_status (*run)(const ch_gemm_dims *d, const void *state, const void *a, const void *b,
                     void *c, void *scratch);
    void (*close)(void *state); /* NULL is fine */
    /* Whether it reads A where it is, so that doing it again for other columns costs nothing. NULL: no. */
    bool (*reads_a)(const ch_gemm_dims *d);
} ch_gemm_engine;

/* One that was left out of the build never fits. */
bool ch__gemm_never(const ch_gemm_dims *d);

extern const ch_gemm_engine ch__gemm_onednn, ch__gemm_wide, ch__gemm_own;

/* The first that fits. */
const ch_gemm_engine *ch__gemm_for(const ch_gemm_dims *d);

#endif
