/* kernel/ortho.h -- makes the rows of a matrix orthonormal.
 *
 * Uses the Gram-Schmidt process on a block of rows at a time, so that the rows before the block
 * are read once for each block. Results have the same bits at every SIMD level, because they
 * are initial values of variables.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_ORTHO_H
#define KERNEL_ORTHO_H

#include <stddef.h>
#include <stdint.h>

#include "kernel/simd.h"

/* Makes k rows of n elements orthonormal. k must be at most n, and the rows must be
 * independent. The result is the Q of a QR decomposition of the rows as columns, with a
 * positive diagonal in R. `scratch` has ch__orthonormalise_scratch(k) bytes. */
void   ch__orthonormalise(int64_t k, int64_t n, double *x, void *scratch);
size_t ch__orthonormalise_scratch(int64_t k);

typedef struct ch_ortho_table {
    /* share (r, q) += rows (r, n) . of (q, n)'. The rows of `rows` and `of` are `step` elements
     * apart, the rows of share are `wide` elements apart. */
    void (*dots)(int64_t r, int64_t q, int64_t n, const double *rows, const double *of,
                 int64_t step, double *share, int64_t wide);
    /* rows -= share . of */
    void (*subtract)(int64_t r, int64_t q, int64_t n, double *rows, const double *of,
                     int64_t step, const double *share, int64_t wide);
} ch_ortho_table;

CH_SIMD_DECLARE(ch_ortho_table, ch__ortho_table)

#endif
