/* job/slice.h -- rows x[i] and x[start:stop:step] of a sharded variable, as in Python.
 *
 *     ch_slice_bounds last_3 = {.start = -3, .has_start = true, .step = 1}; // x[-3:]
 *     rc = ch__slice_rows(size, &last_3, &all);
 *     for (int i = 0; i < n; i++) {
 *         ch_slice_range of = ch__slice_shard(all, size, n, i);
 *         ... read rows `of` of shard i into rows of.at to of.at + of.count - 1 of the result
 *     }
 *
 * The functions are for a variable that is divided along axis 0. If it is divided along another
 * axis, every shard has a piece of each row, and the caller reads `all` from each shard.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_SLICE_H
#define JOB_SLICE_H

#include <stdbool.h>
#include <stdint.h>

#include "cohort/status.h"

/* The bounds of a slice, as the program gave them. */
typedef struct ch_slice_bounds {
    /* Row numbers; negative: counted from the end. Numbers out of range are clamped. */
    int64_t start, stop;
    bool    has_start, has_stop;
    int64_t step; /* 1 if the program gave none; must not be 0 */
} ch_slice_bounds;

/* The rows begin, begin + step, ... in this order. */
typedef struct ch_slice_range {
    int64_t begin, step, count; /* begin is 0 if count is 0 */
    int64_t at;                 /* row of the result that receives the first of them */
} ch_slice_range;

/* Writes the rows of a slice of a variable of `size` rows. INVALID_ARGUMENT: the step is 0. */
ch_status ch__slice_rows(int64_t size, const ch_slice_bounds *b, ch_slice_range *out);
/* Returns the rows of `all` in shard i of n, counted from the shard's first row. They are
 * adjacent in the result. If the step is negative, the rows of the last shard come first. */
ch_slice_range ch__slice_shard(ch_slice_range all, int64_t size, int n, int i);

/* Writes the shard that holds row `index`, and the row's number in the shard. A negative index
 * counts from the end. INVALID_ARGUMENT if there is no such row. */
ch_status ch__slice_row(int64_t size, int n, int64_t index, int *shard, int64_t *row);

#endif
