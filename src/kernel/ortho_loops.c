/* kernel/ortho_loops.c -- dot products and linear combinations of rows; compiled for each SIMD
 * level.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/ortho.h"

enum { LANES = 8 };

/* The compiler uses as many registers as the level needs. The lanes are independent sums, so
 * the bits do not depend on the width of a register. */
typedef double lanes
    __attribute__((vector_size(LANES * sizeof(double)), aligned(sizeof(double)), may_alias));

/* Returns the dot product: adds the elements behind the last whole vector, then the lanes. */
static double finish(const lanes *sum, int64_t n, const double *a, const double *b)
{
    lanes v = *sum;

    for (int64_t j = n / LANES * LANES; j < n; j++)
        v[j % LANES] += a[j] * b[j];
    return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7]));
}

/* Computes the dot products of two rows with two others. */
static void dots_of_four(int64_t n, const double *a, const double *b, const double *c,
                         const double *d, double out[2][2])
{
    lanes ac = {0}, ad = {0}, bc = {0}, bd = {0};

    for (int64_t j = 0; j + LANES <= n; j += LANES) {
        lanes x = *(const lanes *)(a + j), y = *(const lanes *)(b + j);
        lanes u = *(const lanes *)(c + j), v = *(const lanes *)(d + j);

        ac += x * u;
        ad += x * v;
        bc += y * u;
        bd += y * v;
    }
    out[0][0] = finish(&ac, n, a, c);
    out[0][1] = finish(&ad, n, a, d);
    out[1][0] = finish(&bc, n, b, c);
    out[1][1] = finish(&bd, n, b, d);
}

/* If the number of rows is odd, the last row is used twice and its second result is ignored. */
static void dots(int64_t r, int64_t q, int64_t n, const double *rows, const double *of,
                 int64_t step, double *share, int64_t wide)
{
    double dot[2][2];

    for (int64_t k = 0; k < q; k += 2)
        for (int64_t i = 0; i < r; i += 2) {
            int more_r = i + 1 < r, more_q = k + 1 < q;

            dots_of_four(n, rows + i * step, rows + (i + more_r) * step, of + k * step,
                         of + (k + more_q) * step, dot);
            for (int u = 0; u <= more_r; u++)
                for (int v = 0; v <= more_q; v++)
                    share[(i + u) * wide + k + v] += dot[u][v];
        }
}

static void subtract_four(int64_t n, double *restrict row, const double *restrict of,
                          int64_t step, const double *share)
{
    const double *b = of + step, *c = b + step, *d = c + step;
    double        s = share[0], t = share[1], u = share[2], v = share[3];

    for (int64_t j = 0; j < n; j++)
        row[j] = (((row[j] - s * of[j]) - t * b[j]) - u * c[j]) - v * d[j];
}

static void subtract(int64_t r, int64_t q, int64_t n, double *rows, const double *of,
                     int64_t step, const double *share, int64_t wide)
{
    int64_t k = 0;

    for (; k + 4 <= q; k += 4)
        for (int64_t i = 0; i < r; i++)
            subtract_four(n, rows + i * step, of + k * step, step, share + i * wide + k);
    for (; k < q; k++)
        for (int64_t i = 0; i < r; i++) {
            double *restrict row = rows + i * step;
            const double *restrict other = of + k * step;
            double s = share[i * wide + k];

            for (int64_t j = 0; j < n; j++)
                row[j] -= s * other[j];
        }
}

const ch_ortho_table CH_SIMD_NAME(ch__ortho_table) = {dots, subtract};
