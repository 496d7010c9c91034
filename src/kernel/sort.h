/* kernel/sort.h -- order along one axis: sort, the k largest, where the largest is.
 *
 * Every element becomes a number whose order is the element's (-0 and 0 are equal, NaN is
 * larger than all), with its position beside it. Equal elements keep their order.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_SORT_H
#define KERNEL_SORT_H

#include "kernel/scan.h"
#include "kernel/simd.h"

/* Which way keys run, and the key of NaN. */
typedef struct ch_sort_order {
    uint64_t flip; /* all ones: the largest element has the smallest key */
    uint64_t nan;
} ch_sort_order;

typedef struct ch_sort_table {
    void (*keys_f32)(int64_t n, const void *x, ch_sort_order order, uint64_t *key);
    void (*keys_f64)(int64_t n, const void *x, ch_sort_order order, uint64_t *key);
    void (*keys_i64)(int64_t n, const void *x, ch_sort_order order, uint64_t *key);
    uint64_t (*largest)(int64_t n, const uint64_t *key);
    /* Where key[j] is larger than best[j], it takes its place, and where[j] is `now`. */
    void (*take_larger)(int64_t n, const uint64_t *key, int64_t now, uint64_t *best,
                        int64_t *where);
} ch_sort_table;

CH_SIMD_DECLARE(ch_sort_table, ch__sort_table)

typedef struct ch_ranked {
    uint64_t key;
    int64_t  index;
} ch_ranked;

/* Lines [from, to) of outer * inner. `room` has 2 n. */
void ch__sort(const ch_along *a, bool descending, int64_t from, int64_t to, const void *in,
              void *values, int64_t *index, ch_ranked *room);
/* The k largest of each line, the largest first; inner is 1, k at most n. `room` has k. */
void ch__top_k(const ch_along *a, int64_t k, int64_t from, int64_t to, const void *in,
               void *values, int64_t *index, ch_ranked *room);
/* The first position of the largest (smallest); the first NaN's, if there is one; -1 of
 * nothing. `out` has (outer, inner) elements. Units [from, to), see kernel/scan.h. */
void ch__argmax(const ch_along *a, bool smallest, int64_t from, int64_t to, const void *in,
                int64_t *out);
/* `take`: out (outer, k, inner) is x (outer, n, inner) at index (outer, k, inner). The other
 * way round, out (outer, n, inner) is 0 but for x (outer, k, inner) at index; no position comes
 * twice. What is out of range is 0, or left out. Lines [from, to). */
void ch__take_along(const ch_along *a, int64_t k, int64_t from, int64_t to, const void *x,
                    const int64_t *index, void *out);
void ch__put_along(const ch_along *a, int64_t k, int64_t from, int64_t to, const void *x,
                   const int64_t *index, void *out);

#endif
