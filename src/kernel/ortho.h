/* kernel/ortho.h -- rows made orthonormal.
 *
 * Gram and Schmidt's way, a block of rows at a time, so that the rows before it are read once
 * for each block. The same bits at every SIMD level: first values of variables are made of it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_ORTHO_H
#define KERNEL_ORTHO_H

#include <stddef.h>
#include <stdint.h>

#include "kernel/simd.h"

/* k rows of n, k at most n and the rows independent: as the Q of a QR of their columns, with a
 * positive diagonal in R. */
void   ch__orthonormalise(int64_t k, int64_t n, double *x, void *scratch);
size_t ch__orthonormalise_scratch(int64_t k);

typedef struct ch_ortho_table {
    /* share (r, q) += rows (r, n) . of (q, n)'; rows of both are `step` apart, those of share
     * `wide`. */
    void (*dots)(int64_t r, int64_t q, int64_t n, const double *rows, const double *of,
                 int64_t step, double *share, int64_t wide);
    /* rows -= share . of */
    void (*take)(int64_t r, int64_t q, int64_t n, double *rows, const double *of, int64_t step,
                 const double *share, int64_t wide);
} ch_ortho_table;

CH_SIMD_DECLARE(ch_ortho_table, ch__ortho_table)

#endif
