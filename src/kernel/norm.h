/* kernel/norm.h -- row by row: softmax, cross entropy and the normalisations.
 *
 * The loops compute in f32 or f64, a row of (rows, n) at a time. The loops of batch_norm go
 * over many rows and keep sums for each column. 16-bit rows are widened before and narrowed
 * after.
 *
 * Invariants:
 *   1. Sums have LANES lanes and f64 totals, so they have the same bits on every CPU.
 *   2. An output row may be an input row: when element j is written, only element j is still to
 *      be read.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_NORM_H
#define KERNEL_NORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cohort/shape.h"
#include "kernel/simd.h"

/* Rows of a block. Sums over a block are kept in the type of the row, sums over blocks in
 * f64. */
enum { CH_NORM_ROWS = 64 };

typedef struct ch_norm_loops {
    void (*softmax)(int64_t n, const void *x, void *y);
    void (*log_softmax)(int64_t n, const void *x, void *y);
    void (*softmax_grad)(int64_t n, const void *y, const void *d, void *dx);
    void (*log_softmax_grad)(int64_t n, const void *y, const void *d, void *dx);
    /* Returns log(sum(exp(x))). */
    double (*logsumexp)(int64_t n, const void *x);
    /* Computes dx = (exp(x - lse) * a - p) * d, where lse is the result of logsumexp. A p of
     * NULL means zeros. */
    void (*exp_grad)(int64_t n, const void *x, double lse, double a, const void *p, double d,
                     void *dx);
    /* Return sum(p * (lse - x)), and sum(x). */
    double (*cross)(int64_t n, const void *x, const void *p, double lse);
    double (*sum)(int64_t n, const void *x);
    /* Computes y = (x - mean) * r * gamma + beta, and sets stat to mean and r = 1 / standard
     * deviation. Without `center` the mean is 0. `beta` may be NULL. */
    void (*layer)(int64_t n, const void *x, const void *gamma, const void *beta, double eps,
                  bool center, void *y, double stat[2]);
    /* Computes dx, and adds to dgamma and dbeta. `dbeta` may be NULL. */
    void (*layer_grad)(int64_t n, const void *x, const void *gamma, const double stat[2],
                       const void *dy, bool center, void *dx, void *dgamma, void *dbeta);
    /* For each column of `rows` rows: sum += x - k, square += (x - k)^2. */
    void (*moments)(int64_t rows, int64_t n, const void *x, const void *k, void *sum,
                    void *square);
    /* For each column: sum += dy, product += dy * (x - k). */
    void (*dy_moments)(int64_t rows, int64_t n, const void *x, const void *dy, const void *k,
                       void *sum, void *product);
    /* For each column: y = (x - k) * scale + shift. */
    void (*scale)(int64_t rows, int64_t n, const void *x, const void *k, const void *scale,
                  const void *shift, void *y);
    /* For each column: dx = a * dy + b * (x - k) + c. */
    void (*mix)(int64_t rows, int64_t n, const void *x, const void *dy, const void *k,
                const void *a, const void *b, const void *c, void *dx);
    /* Adds the sums of a block to the totals and zeroes the block. */
    void (*flush)(int64_t n, void *block, double *total);
    void (*from_f64)(int64_t n, const double *x, void *y);
} ch_norm_loops;

typedef struct ch_norm_table {
    ch_norm_loops f32, f64;
} ch_norm_table;

CH_SIMD_DECLARE(ch_norm_table, ch__norm_table)

/* ---- rows of any float type ---- */

/* Access to the rows of an array (rows, n) in the compute type. */
typedef struct ch_rows_of {
    ch_dtype             dtype;
    int64_t              rows, n;
    size_t               row_bytes;
    bool                 is_direct; /* f32 or f64: rows are used in place */
    const ch_norm_loops *loops;
} ch_rows_of;

/* Returns the access to an array (rows, n) of a float dtype. */
ch_rows_of ch__rows_of(ch_dtype dtype, int64_t rows, int64_t n);
/* Returns the bytes of a row in the compute type, rounded up so that rows stay aligned. */
size_t ch__row_buffer_bytes(const ch_rows_of *r);
/* Returns row i: in place, or widened into `buffer`, which has ch__row_buffer_bytes bytes. */
const void *ch__row(const ch_rows_of *r, const void *x, int64_t i, void *buffer);
/* Returns where to write row i: in y, or in `buffer`. ch__row_done must be called afterwards;
 * it rounds the row from `buffer` into y. */
void *ch__row_to(const ch_rows_of *r, void *y, int64_t i, void *buffer);
void  ch__row_done(const ch_rows_of *r, void *y, int64_t i, const void *buffer);

#endif
