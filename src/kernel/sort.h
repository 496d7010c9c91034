/* kernel/sort.h -- order along an axis: sort, top k, argmax.
 *
 * Every element is converted to an integer key with the same order, and its position is stored
 * with the key. -0 and 0 are equal, NaN is larger than all numbers. Equal elements keep their
 * order.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_SORT_H
#define KERNEL_SORT_H

#include "kernel/scan.h"
#include "kernel/simd.h"

/* The order of keys, and the key of NaN. */
typedef struct ch_sort_order {
    uint64_t flip; /* all bits set: the largest element has the smallest key */
    uint64_t nan;
} ch_sort_order;

typedef struct ch_sort_table {
    void (*keys_f32)(int64_t n, const void *x, ch_sort_order order, uint64_t *key);
    void (*keys_f64)(int64_t n, const void *x, ch_sort_order order, uint64_t *key);
    void (*keys_i64)(int64_t n, const void *x, ch_sort_order order, uint64_t *key);
    uint64_t (*largest)(int64_t n, const uint64_t *key);
    /* If key[j] is larger than best[j], sets best[j] to key[j] and where[j] to `now`. */
    void (*update_largest)(int64_t n, const uint64_t *key, int64_t now, uint64_t *best,
                           int64_t *where);
} ch_sort_table;

CH_SIMD_DECLARE(ch_sort_table, ch__sort_table)

typedef struct ch_ranked {
    uint64_t key;
    int64_t  index;
} ch_ranked;

/* Sorts lines [from, to) of outer * inner. `buffer` has 2 n elements. */
void ch__sort(const ch_axis_view *a, bool descending, int64_t from, int64_t to, const void *in,
              void *values, int64_t *index, ch_ranked *buffer);
/* Finds the k largest elements of each line, the largest first. inner must be 1, and k at most
 * n. `buffer` has k elements. */
void ch__top_k(const ch_axis_view *a, int64_t k, int64_t from, int64_t to, const void *in,
               void *values, int64_t *index, ch_ranked *buffer);
/* Finds the first position of the largest (smallest) element; of the first NaN, if there is
 * one; -1 if n is 0. `out` has (outer, inner) elements. Computes units [from, to), see
 * kernel/scan.h. */
void ch__argmax(const ch_axis_view *a, bool smallest, int64_t from, int64_t to, const void *in,
                int64_t *out);
/* ch__take_along reads: out (outer, k, inner) is x (outer, n, inner) at index (outer, k,
 * inner); an index out of range gives 0. ch__put_along writes: out (outer, n, inner) is x
 * (outer, k, inner) at index, and 0 elsewhere. There an index must not occur twice in a line,
 * and an index out of range is ignored. Both compute lines [from, to). */
void ch__take_along(const ch_axis_view *a, int64_t k, int64_t from, int64_t to, const void *x,
                    const int64_t *index, void *out);
void ch__put_along(const ch_axis_view *a, int64_t k, int64_t from, int64_t to, const void *x,
                   const int64_t *index, void *out);

#endif
