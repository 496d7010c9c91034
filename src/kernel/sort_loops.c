/* kernel/sort_loops.c -- keys of elements: integers with the same order; compiled for each SIMD
 * level.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernel/sort.h"

enum { LANES = 16 };

/* Positive floats count up from the middle of the keys, negative floats count down. -0 becomes
 * 0. */
static void keys_f32(int64_t n, const void *from, ch_sort_order order, uint64_t *key)
{
    const float *x = from;

    for (int64_t j = 0; j < n; j++) {
        float    v = x[j] + 0.0f;
        uint32_t u, top = 0x80000000u;

        memcpy(&u, &v, sizeof(u));
        u ^= (u & top) != 0 ? UINT32_MAX : top;
        key[j] = v != v ? order.nan : u ^ order.flip;
    }
}

static void keys_f64(int64_t n, const void *from, ch_sort_order order, uint64_t *key)
{
    const double *x = from;

    for (int64_t j = 0; j < n; j++) {
        double   v = x[j] + 0.0;
        uint64_t u, top = UINT64_C(1) << 63;

        memcpy(&u, &v, sizeof(u));
        u ^= (u & top) != 0 ? UINT64_MAX : top;
        key[j] = v != v ? order.nan : u ^ order.flip;
    }
}

static void keys_i64(int64_t n, const void *from, ch_sort_order order, uint64_t *key)
{
    const int64_t *x = from;

    for (int64_t j = 0; j < n; j++)
        key[j] = (uint64_t)x[j] ^ UINT64_C(1) << 63 ^ order.flip;
}

static uint64_t largest(int64_t n, const uint64_t *key)
{
    uint64_t lane[LANES] = {0}, most = 0;
    int64_t  i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] = key[i + j] > lane[j] ? key[i + j] : lane[j];
    for (; i < n; i++)
        most = key[i] > most ? key[i] : most;
    for (int j = 0; j < LANES; j++)
        most = lane[j] > most ? lane[j] : most;
    return most;
}

static void update_largest(int64_t n, const uint64_t *key, int64_t now, uint64_t *restrict best,
                           int64_t *restrict where)
{
    for (int64_t j = 0; j < n; j++) {
        where[j] = key[j] > best[j] ? now : where[j];
        best[j] = key[j] > best[j] ? key[j] : best[j];
    }
}

const ch_sort_table CH_SIMD_NAME(ch__sort_table) = {keys_f32, keys_f64, keys_i64, largest,
                                                    update_largest};
