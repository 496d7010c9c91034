/* kernel/ortho.c -- the Gram-Schmidt process in blocks.
 *
 * After the projections on the earlier rows are subtracted from a row, the rest has lost digits
 * if it is short. Subtracting twice is enough (Kahan and Parlett). A whole block is repeated if
 * the rest of any of its rows is short. Within a block the subtraction is always done twice.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/ortho.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/mem.h"

enum {
    BLOCK = 32,  /* rows */
    SPAN = 1024, /* columns of a block that stay in the cache while other rows are read */
};

static const ch_ortho_table *loops(void)
{
    static const ch_ortho_table *const levels[] = CH_SIMD_LIST(ch__ortho_table);

    return levels[ch__simd_level()];
}

size_t ch__orthonormalise_scratch(int64_t k)
{
    return (size_t)k * BLOCK * sizeof(double);
}

/* Makes r rows orthogonal to q rows, which must be orthonormal. */
static void project_out(int64_t r, int64_t q, int64_t n, double *rows, const double *of,
                        double *share)
{
    memset(share, 0, (size_t)(r * q) * sizeof(*share));
    for (int64_t j = 0; j < n; j += SPAN)
        loops()->dots(r, q, ch__min(SPAN, n - j), rows + j, of + j, n, share, q);
    for (int64_t j = 0; j < n; j += SPAN)
        loops()->subtract(r, q, ch__min(SPAN, n - j), rows + j, of + j, n, share, q);
}

static double norm(int64_t n, const double *row)
{
    double square = 0;

    loops()->dots(1, 1, n, row, row, n, &square, 1);
    return sqrt(square);
}

/* Makes the r rows of a block orthogonal to all q rows before it. */
static void project_block_out(int64_t r, int64_t q, int64_t n, double *rows, const double *of,
                              double *share)
{
    double before[BLOCK];
    bool   repeat = false;

    for (int64_t i = 0; i < r; i++)
        before[i] = norm(n, rows + i * n);
    project_out(r, q, n, rows, of, share);
    for (int64_t i = 0; i < r; i++)
        repeat |= !(norm(n, rows + i * n) > 0.5 * before[i]);
    if (repeat)
        project_out(r, q, n, rows, of, share);
}

void ch__orthonormalise(int64_t k, int64_t n, double *x, void *scratch)
{
    for (int64_t at = 0; at < k; at += BLOCK) {
        double *rows = x + at * n;
        int64_t r = ch__min(BLOCK, k - at);

        if (at > 0)
            project_block_out(r, at, n, rows, x, scratch);
        for (int64_t i = 0; i < r; i++) {
            double *row = rows + i * n, by;

            for (int pass = 0; pass < 2 && i > 0; pass++)
                project_out(1, i, n, row, rows, scratch);
            by = norm(n, row);
            for (int64_t j = 0; j < n; j++)
                row[j] /= by;
        }
    }
}
