/* kernel/gemm.h -- C = A . B for matrices and batches of matrices, row-major.
 *
 * The engines, in the order in which they are tried:
 *   - oneDNN for bf16, because it uses the matrix instructions of newer CPUs
 *   - 16-bit floats widened to f32
 *   - our own for all other types. It is as fast as OpenBLAS, calls no other library and
 *     allocates no memory.
 *
 * All engines are single-threaded and may run on several threads at the same time. A caller
 * with a large product must cut it into tiles.
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
    bool     ta, tb;        /* a is stored as (k, m); b is stored as (n, k) */
    int64_t  lda, ldb, ldc; /* step between two stored rows */
    int64_t  batch;
    /* Step between two matrices of the batch. 0 for a or b: all products use the same
     * matrix. */
    int64_t a_step, b_step, c_step;
    bool    add; /* add the product to c */
} ch_gemm_dims;

typedef struct ch_gemm_engine {
    const char *name;
    bool (*fits)(const ch_gemm_dims *d);
    /* Prepares repeated runs. *state may stay NULL; the caller must pass it to run and
     * close. */
    ch_status (*open)(const ch_gemm_dims *d, void **state, size_t *scratch_bytes);
    /* Computes c. `scratch` has the scratch_bytes that open returned. */
    ch_status (*run)(const ch_gemm_dims *d, const void *state, const void *a, const void *b,
                     void *c, void *scratch);
    void (*close)(void *state); /* accepts NULL */
    /* Returns true if the engine reads A in place. A product with the same A and other columns
     * then repeats no packing of A. NULL: the engine always packs A. */
    bool (*reads_a)(const ch_gemm_dims *d);
} ch_gemm_engine;

/* Returns false: the `fits` of an engine that is not in the build. */
bool ch__gemm_never(const ch_gemm_dims *d);

extern const ch_gemm_engine ch__gemm_onednn, ch__gemm_wide, ch__gemm_own;

/* Returns the first engine that fits; NULL if there is none. */
const ch_gemm_engine *ch__gemm_for(const ch_gemm_dims *d);

#endif
