/* tensor/row_marks.h -- marks of the rows of a tensor that have changed: a bit for each row.
 *
 *     rc = ch__row_marks_new(n_rows, &m);         // no row is marked
 *     ch__row_marks_add(m, n, ids, is_i64);       // before or after the rows are written
 *     rc = ch__row_marks_list(n_rows, m->bits, &n, &list);
 *
 * Variables have marks while deltas of checkpoints are made (strategy/changed_rows.h). The
 * program of a step marks the rows that it writes (graph/exec.c), and every other write marks a
 * range or all rows. A marked row may be unchanged. A row that has changed is marked.
 *
 * One thread at a time may use a ch_row_marks.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TENSOR_ROW_MARKS_H
#define TENSOR_ROW_MARKS_H

#include <stdbool.h>
#include <stdint.h>

#include "cohort/status.h"
#include "tensor/layout.h"

typedef struct ch_row_marks {
    int64_t n_rows;
    bool    all;    /* all rows are marked, whatever `bits` says */
    uint8_t bits[]; /* row i: bit i % 8 of byte i / 8; ch__row_marks_bytes bytes */
} ch_row_marks;

/* Returns the number of bytes of the bits of n rows. */
static inline int64_t ch__row_marks_bytes(int64_t n_rows)
{
    return n_rows / 8 + (n_rows % 8 != 0);
}

/* Create marks: without a marked row, or a copy. The caller must free *out with ch__free. */
CH_MUST_CHECK ch_status ch__row_marks_new(int64_t n_rows, ch_row_marks **out);
CH_MUST_CHECK ch_status ch__row_marks_copy(const ch_row_marks *m, ch_row_marks **out);
/* Removes all marks. */
void ch__row_marks_clear(ch_row_marks *m);

/* Marks the rows of n ids, which are i64 if `wide` is true, otherwise i32. An id out of range
 * names no row. */
void ch__row_marks_add(ch_row_marks *m, int64_t n, const void *ids, bool wide);
/* Marks the rows of [from, to), which must be in range. */
void ch__row_marks_add_range(ch_row_marks *m, int64_t from, int64_t to);
void ch__row_marks_add_all(ch_row_marks *m);
/* Marks the rows of a region that is about to be written, or all rows if `region` is NULL. Call
 * it before the write, which may fail in the middle. Does nothing if m is NULL. */
void ch__row_marks_add_region(ch_row_marks *m, const ch_region *region);

/* Lists the rows that the bits of n_rows rows mark, in ascending order. The caller must free
 * *ids with ch__free; it is NULL if there are none. `bits` may be untrusted: bits behind the
 * last row are ignored. */
CH_MUST_CHECK ch_status ch__row_marks_list(int64_t n_rows, const uint8_t *bits, int64_t *n,
                                           int64_t **ids);

#endif
