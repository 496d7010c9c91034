/* kernel/bag_loops.h -- the rows of one bag added up, for each SIMD level.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_BAG_LOOPS_H
#define KERNEL_BAG_LOOPS_H

#include "base/prefetch.h"
#include "kernel/rows.h"
#include "kernel/simd.h"

typedef struct ch_bag_rows {
    const char *table;
    int64_t     n_rows, width, bytes; /* of a row */
    ch_ids      ids;
    int64_t     first, last; /* positions of the bag */
    int64_t     end;         /* of positions after it: their rows are asked for */
    const void *weight;      /* of the table's dtype, or NULL */
} ch_bag_rows;

typedef struct ch_bag_loops {
    void (*sum_f32)(const ch_bag_rows *r, float *out);
    void (*sum_f64)(const ch_bag_rows *r, double *out);
    void (*add_f32)(int64_t n, const float *row, float w, float *to); /* to += w * row */
} ch_bag_loops;

CH_SIMD_DECLARE(ch_bag_loops, ch__bag_loops)

/* The row at a position; NULL if its id is out of range. Asks for one that will be needed. */
static inline const void *ch__bag_row(const ch_bag_rows *r, int64_t at)
{
    int64_t id = ch__id(r->ids, at);

    if (at + CH_PREFETCH_ROWS < r->end)
        ch__prefetch_read(r->table + ch__id(r->ids, at + CH_PREFETCH_ROWS) * r->bytes,
                          r->bytes);
    return (uint64_t)id < (uint64_t)r->n_rows ? r->table + id * r->bytes : NULL;
}

#endif
