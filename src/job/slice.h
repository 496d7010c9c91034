/* job/slice.h -- rows of a variable in shards, x[i] and x[start:stop:step], as Python and numpy mean them.
 *
 *     rc = ch__slice_rows(size, &(ch_bounds){.start = -3, .has_start = true, .step = 1}, &all); // x[-3:]
 *     for (int i = 0; i < n; i++) {
 *         ch_picked of = ch__slice_shard(all, size, n, i); // read once, put to rows of.at to of.at + of.count of the result
 *
 * The variable is cut along axis 0. Along another one every shard has a piece of each row, and is asked for `all`.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_SLICE_H
#define JOB_SLICE_H

#include <stdbool.h>
#include <stdint.h>

#include "cohort/status.h"

typedef struct ch_bounds {
    int64_t start, stop; /* from the end if negative; beyond the ends is at them */
    bool    has_start, has_stop;
    int64_t step; /* 1 where none is said */
} ch_bounds;

/* Rows begin, begin + step, ..., in this order. */
typedef struct ch_picked {
    int64_t begin, step, count; /* without any: begin is 0 */
    int64_t at;                 /* in the result, of the first of them */
} ch_picked;

/* The rows of a slice, of `size` rows. INVALID_ARGUMENT if the step is 0. */
ch_status ch__slice_rows(int64_t size, const ch_bounds *b, ch_picked *out);
/* Those of them that shard i of n has, counted from its first row. They lie side by side in the result; with a
 * negative step the last shard's come first. */
ch_picked ch__slice_shard(ch_picked all, int64_t size, int n, int i);

/* The shard that has x[index], and the row in it. INVALID_ARGUMENT if there is no such row. */
ch_status ch__slice_row(int64_t size, int n, int64_t index, int *shard, int64_t *row);

#endif
