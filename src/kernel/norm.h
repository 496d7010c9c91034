/* kernel/norm.h -- row by row: softmax, cross entropy, and the normalisations.
 *
 * The loops work in f32 or f64. They take one row at a time, (rows, n), except those of
 * batch_norm, which go over many rows and keep sums for each column. 16-bit rows are widened
 * before and narrowed after.
 *
 * Invariants:
 *   1. Sums have LANES lanes and f64 totals: the same bits on every CPU.
 *   2. An output row may be one of the input rows: element j is written when nothing but
 * element j is still to be read.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_NORM_H
#define KERNEL_NORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cohort/shape.h"
#include "kernel/simd.h"

/* Sums of a block of rows are kept in the row's type, those of blocks in f64. */
enum { CH_NORM_ROWS = 64 };

typedef struct ch_norm_loops {
    void (*softmax)(int64_t n, const void *x, void *y);
    void (*log_softmax)(int64_t n, const void *x, void *y);
    void (*softmax_grad)(int64_t n, const void *y, const void *d, void *dx);
    void (*log_softmax_grad)(int64_t n, const void *y, const void *d, void *dx);
    /* log(sum(exp(x))). And, of that, (exp(x - lse) * a - p) * d; a p of NULL is zeros. */
    double (*logsumexp)(int64_t n, const void *x);
    void (*exp_grad)(int64_t n, const void *x, double lse, double a, const void *p, double d,
                     void *dx);
    /* sum(p * (lse - x)), and sum(p). */
    double (*cross)(int64_t n, const void *x, const void *p, double lse);
    double (*sum)(int64_t n, const void *x);
    /* stat: mean and 1 / standard deviation; without `center` the mean is taken as 0. */
    void (*layer)(int64_t n, const void *x, const void *gamma, const void *beta, double eps,
                  bool center, void *y, double stat[2]);
    /* dx; and dgamma and dbeta add up. */
    void (*layer_grad)(int64_t n, const void *x, const void *gamma, const double stat[2],
                       const void *dy, bool center, void *dx, void *dgamma, void *dbeta);
    /* Of `rows` rows, column by column: sum += x - k, square += (x - k)^2. */
    void (*moments)(int64_t rows, int64_t n, const void *x, const void *k, void *sum,
                    void *square);
    /* sum += dy, product += dy * (x - k). */
    void (*dy_moments)(int64_t rows, int64_t n, const void *x, const void *dy, const void *k,
                       void *sum, void *product);
    /* y = (x - k) * scale + shift. */
    void (*scale)(int64_t rows, int64_t n, const void *x, const void *k, const void *scale,
                  const void *shift, void *y);
    /* dx = a * dy + b * (x - k) + c. */
    void (*mix)(int64_t rows, int64_t n, const void *x, const void *dy, const void *k,
                const void *a, const void *b, const void *c, void *dx);
    /* total += block, block = 0. */
    void (*flush)(int64_t n, void *block, double *total);
    void (*from_f64)(int64_t n, const double *x, void *y);
} ch_norm_loops;

typedef struct ch_norm_table {
    ch_norm_loops f32, f64;
} ch_norm_table;

CH_SIMD_DECLARE(ch_norm_table, ch__norm_table)

/* ---- rows of any float type ---- */

/* Of an array (rows, n): how to get at a row in the type that is computed in. */
typedef struct ch_rows_of {
    ch_dtype             dtype;
    int64_t              rows, n;
    size_t               row_bytes;
    bool                 is_direct; /* f32 and f64 */
    const ch_norm_loops *loops;
} ch_rows_of;

ch_rows_of ch__rows_of(ch_dtype dtype, int64_t rows, int64_t n);
/* Bytes of a row as it is computed in, rounded up so that rows stay aligned. */
size_t ch__row_room(const ch_rows_of *r);
/* Row i: where it is, or widened into `room`. */
const void *ch__row(const ch_rows_of *r, const void *x, int64_t i, void *room);
/* Where to write row i; ch__row_done then puts it where it belongs. */
void *ch__row_to(const ch_rows_of *r, void *y, int64_t i, void *room);
void  ch__row_done(const ch_rows_of *r, void *y, int64_t i, const void *room);

#endif
