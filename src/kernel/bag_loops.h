/* kernel/bag_loops.h -- sums of the rows of a bag, for each SIMD level.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_BAG_LOOPS_H
#define KERNEL_BAG_LOOPS_H

#include "base/prefetch.h"
#include "kernel/rows.h"
#include "kernel/simd.h"

typedef struct ch_bag_rows {
    const char *table;
    int64_t     n_rows, width, bytes; /* bytes: of a row */
    ch_ids      ids;
    int64_t     first, last; /* positions [first, last) of the bag */
    /* End of the positions of this call. Rows of positions before it are prefetched. */
    int64_t     end;
    const void *weight; /* of the table's dtype; NULL: all weights are 1 */
} ch_bag_rows;

typedef struct ch_bag_loops {
    void (*sum_f32)(const ch_bag_rows *r, float *out);
    void (*sum_f64)(const ch_bag_rows *r, double *out);
    void (*add_f32)(int64_t n, const float *row, float w, float *to); /* to += w * row */
} ch_bag_loops;

CH_SIMD_DECLARE(ch_bag_loops, ch__bag_loops)

/* Returns the row of position `at`; NULL if its id is out of range. Prefetches the row of a
 * later position. */
static inline const void *ch__bag_row(const ch_bag_rows *r, int64_t at)
{
    int64_t id = ch__id(r->ids, at), later = -1;

    if (at + CH_PREFETCH_ROWS < r->end)
        later = ch__id(r->ids, at + CH_PREFETCH_ROWS);
    if ((uint64_t)later < (uint64_t)r->n_rows) /* the address of another id may overflow */
        ch__prefetch_read(r->table + later * r->bytes, r->bytes);
    return (uint64_t)id < (uint64_t)r->n_rows ? r->table + id * r->bytes : NULL;
}

#endif
