/* kernel/rows.h -- rows of a table, by their ids.
 *
 * Ids are i32 or i64. A caller that only reads rows checks ids before (ch__ids_check). The
 * functions that write skip ids out of range, so that no id can cause a write elsewhere, and -1
 * can mean no row.
 *
 * Threads own rows, not positions: a row is written by a single tile, in order of position. So
 * rows with equal ids are folded in the same order, and the last one wins, for any number of
 * threads.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_ROWS_H
#define KERNEL_ROWS_H

#include <stdbool.h>

#include "cohort/shape.h"
#include "kernel/block.h"

typedef struct ch_ids {
    const void *at;
    bool        wide;  /* i64; otherwise i32 */
    int64_t     first; /* id of the first row of the table; 0 unless it is a part of a table */
} ch_ids;

static inline ch_ids ch__ids(const void *at, bool wide)
{
    return (ch_ids){at, wide, 0};
}

/* Returns the row that id i names: the id less that of the first row, modulo 2^64. An id of
 * another part gives a row out of range. */
static inline int64_t ch__id(ch_ids ids, int64_t i)
{
    int64_t id = ids.wide ? ((const int64_t *)ids.at)[i] : ((const int32_t *)ids.at)[i];

    return (int64_t)((uint64_t)id - (uint64_t)ids.first);
}

/* Returns the first position in [from, to) with an id that is not in [0, limit); -1 if there is
 * none. */
int64_t ch__ids_check(ch_ids ids, int64_t from, int64_t to, int64_t limit);

/* Copies n ids to `out`, which has the same type. Of equal ids, all except the last become -1.
 * `scratch` has ch__ids_keep_last_scratch(n) bytes. */
size_t ch__ids_keep_last_scratch(int64_t n);
void   ch__ids_keep_last(ch_ids ids, int64_t n, void *out, void *scratch);

/* Copies out[i] = table[ids[i]] for positions i in [from, to). Rows have `bytes` bytes. An id
 * out of range gives a row of zeros. */
void ch__rows_gather(ch_ids ids, int64_t from, int64_t to, const void *table, int64_t n_rows,
                     int64_t bytes, void *out);

/* A write of rows into a table. The tiles divide the rows of the table. Before they write, the
 * positions are sorted by the owner of their row, in chunks. Any thread may sort a chunk. */
typedef struct ch_scatter {
    ch_dtype      dtype; /* of the table */
    bool          wide;  /* the table is f32, the rows have a 16-bit dtype */
    ch_block_code fold;  /* for ch__scatter_fold: add, sub, mul, div, minimum or maximum */
    int64_t       n_ids, n_rows, width; /* width: elements of a row */
    int           tiles, chunks;        /* set by ch__scatter_cut */
} ch_scatter;

/* Sets the tiles, at most `tiles`, and the chunks. */
void   ch__scatter_cut(ch_scatter *s, int tiles);
size_t ch__scatter_scratch(const ch_scatter *s);
/* Sorts the positions of a chunk of [0, s->chunks) into scratch. */
void ch__scatter_sort(const ch_scatter *s, ch_ids ids, int chunk, void *scratch);
/* Returns the positions of chunk `chunk` that tile `tile` owns, in order, and sets *n to their
 * number. Their ids are all in range. For callers with an operation of their own. Must not be
 * called if s->tiles is 1, because then nothing is sorted (s->chunks is 0). */
const uint32_t *ch__scatter_owned(const ch_scatter *s, const void *scratch, int chunk, int tile,
                                  int64_t *n);
/* Computes the part of tile `tile` of table[ids[i]] = fold(table[ids[i]], rows[i]), or of
 * table[ids[i]] = rows[i]. All chunks must be sorted before. */
void ch__scatter_fold(const ch_scatter *s, ch_ids ids, const void *rows, void *table, int tile,
                      const void *scratch);
void ch__scatter_set(const ch_scatter *s, ch_ids ids, const void *rows, void *table, int tile,
                     const void *scratch);

#endif
