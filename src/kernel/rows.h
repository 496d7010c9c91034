/* kernel/rows.h -- rows of a table, by their ids.
 *
 * Ids are i32 or i64. Those who only read rows check ids before (ch__ids_check); those who
 * write pass over ids that are not in range, so that no id can make them write elsewhere, and
 * so that -1 can stand for no row at all.
 *
 * Threads own rows, not positions: a row is written by one tile alone, in order of position. So
 * duplicates are folded in the same order, and the last one wins, for any number of threads.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_ROWS_H
#define KERNEL_ROWS_H

#include <stdbool.h>

#include "cohort/shape.h"
#include "kernel/block.h"

typedef struct ch_ids {
    const void *at;
    bool        wide; /* i64; else i32 */
} ch_ids;

static inline int64_t ch__id(ch_ids ids, int64_t i)
{
    return ids.wide ? ((const int64_t *)ids.at)[i] : ((const int32_t *)ids.at)[i];
}

/* The first position in [from, to) whose id is not in [0, limit); -1: none. */
int64_t ch__ids_check(ch_ids ids, int64_t from, int64_t to, int64_t limit);

/* Ids of which all but the last of each are -1; `out` is of the same type. */
size_t ch__ids_last_scratch(int64_t n);
void   ch__ids_last(ch_ids ids, int64_t n, void *out, void *scratch);

/* to[i] = table[ids[i]] for positions [from, to); rows of `bytes`. Ids out of range give zeros.
 */
void ch__rows_gather(ch_ids ids, int64_t from, int64_t to, const void *table, int64_t n_rows,
                     int64_t bytes, void *out);

/* Writing into a table. A few tiles divide its rows; before they write, positions are sorted by
 * who owns their row, in chunks, each of which any thread may do. */
typedef struct ch_scatter {
    ch_dtype      dtype; /* of the table */
    bool          wide;  /* the table is f32 while the rows are of a 16-bit dtype */
    ch_block_code fold;  /* for ch__scatter_fold: add, sub, mul, div, minimum or maximum */
    int64_t       n_ids, n_rows, width; /* elements of a row */
    int           tiles, chunks;        /* ch__scatter_cut sets them */
} ch_scatter;

/* Cuts into at most so many tiles. */
void   ch__scatter_cut(ch_scatter *s, int tiles);
size_t ch__scatter_scratch(const ch_scatter *s);
/* Sorts chunk [0, s->chunks) into scratch. */
void ch__scatter_sort(const ch_scatter *s, ch_ids ids, int chunk, void *scratch);
/* What tile `tile` owns of chunk `chunk`: positions in order, whose ids are all in range. For
 * those who have another thing to do with rows. With one tile nothing is sorted: NULL. */
const uint32_t *ch__scatter_owned(const ch_scatter *s, const void *scratch, int chunk, int tile,
                                  int64_t *n);
/* What tile `tile` owns of table[ids[i]] = fold(table[ids[i]], rows[i]), and of table[ids[i]] =
 * rows[i]. */
void ch__scatter_fold(const ch_scatter *s, ch_ids ids, const void *rows, void *table, int tile,
                      const void *scratch);
void ch__scatter_set(const ch_scatter *s, ch_ids ids, const void *rows, void *table, int tile,
                     const void *scratch);

#endif
