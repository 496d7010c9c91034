/* kernel/ortho.c -- Gram and Schmidt in blocks.
 *
 * What is left of a row after its shares of the rows before are taken has lost digits if it is
 * short; doing it twice is enough (Kahan and Parlett). Whole blocks are looked at, and done
 * again if that is so of one of their rows; within a block it is always done twice.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/ortho.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/mem.h"

enum {
    BLOCK = 32,  /* rows */
    SPAN = 1024, /* columns of a block that stay in cache, while other rows pass by */
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

/* Makes r rows orthogonal to q others, which are orthonormal. */
static void part_from(int64_t r, int64_t q, int64_t n, double *rows, const double *of,
                      double *share)
{
    memset(share, 0, (size_t)(r * q) * sizeof(*share));
    for (int64_t j = 0; j < n; j += SPAN)
        loops()->dots(r, q, ch__least(SPAN, n - j), rows + j, of + j, n, share, q);
    for (int64_t j = 0; j < n; j += SPAN)
        loops()->take(r, q, ch__least(SPAN, n - j), rows + j, of + j, n, share, q);
}

static double length(int64_t n, const double *row)
{
    double square = 0;

    loops()->dots(1, 1, n, row, row, n, &square, 1);
    return sqrt(square);
}

/* Against all rows before the block. */
static void part_block(int64_t r, int64_t q, int64_t n, double *rows, const double *of,
                       double *share)
{
    double before[BLOCK];
    bool   again = false;

    for (int64_t i = 0; i < r; i++)
        before[i] = length(n, rows + i * n);
    part_from(r, q, n, rows, of, share);
    for (int64_t i = 0; i < r; i++)
        again |= !(length(n, rows + i * n) > 0.5 * before[i]);
    if (again)
        part_from(r, q, n, rows, of, share);
}

void ch__orthonormalise(int64_t k, int64_t n, double *x, void *scratch)
{
    for (int64_t at = 0; at < k; at += BLOCK) {
        double *rows = x + at * n;
        int64_t r = ch__least(BLOCK, k - at);

        if (at > 0)
            part_block(r, at, n, rows, x, scratch);
        for (int64_t i = 0; i < r; i++) {
            double *row = rows + i * n, by;

            for (int pass = 0; pass < 2 && i > 0; pass++)
                part_from(1, i, n, row, rows, scratch);
            by = length(n, row);
            for (int64_t j = 0; j < n; j++)
                row[j] /= by;
        }
    }
}
