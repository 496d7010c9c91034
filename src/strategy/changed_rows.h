/* strategy/changed_rows.h -- rows of variables that have changed since a moment, for deltas.
 *
 * A row is an element of axis 0. While the rows of a variable are marked, each update by rows
 * (optimizers of sparse gradients, scatters) marks the rows that it writes, wherever it runs,
 * and every other write marks all rows. More rows may be marked than have changed, never fewer.
 * Without marking nothing is done. save/ calls these functions:
 *
 *     rc = ch__mark_rows(v);                       // with a full checkpoint, for each variable
 *     ... training ...
 *     rc = ch__changed_rows(NULL, v, &changed);    // with a delta
 *     ch__changed_rows_drop(&changed);
 *
 * Variables on parameter servers are marked from a cut on that was taken with CH_MARKS_BEGIN
 * (strategy/cut.h), all of them at the moment of the snapshot. Every cut shows the marks from
 * before its moment.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef STRATEGY_CHANGED_ROWS_H
#define STRATEGY_CHANGED_ROWS_H

#include "strategy/cut.h"

/* Rows in ascending order, counted from the first row of the variable or shard. */
typedef struct ch_changed_rows {
    bool     all; /* all rows may have changed, or were not marked; `ids` is NULL */
    int64_t  n;
    int64_t *ids; /* owned */
} ch_changed_rows;

/* Begins to mark the rows of a variable of this process, or forgets the marks so far: no row is
 * marked. Must be called between steps. Takes one bit for each row. If each replica has its own
 * value of v, or if the program has the tensors of its copies (ch_var_copies), all rows always
 * count as changed. INVALID_ARGUMENT: v is on servers, or has no rows. */
CH_MUST_CHECK ch_status ch__mark_rows(ch_var *v);
/* Ends marking and frees the marks. */
void ch__unmark_rows(ch_var *v);

/* Lists the rows that have changed since marking began. cut is NULL for a variable of this
 * process, which must be between steps; otherwise `v` is a shard on a server, or a variable
 * that is not divided, and the rows are those at the moment of the cut. The caller must drop
 * *out. */
CH_MUST_CHECK ch_status ch__changed_rows(const ch_cut *cut, ch_var *v, ch_changed_rows *out);
void                    ch__changed_rows_drop(ch_changed_rows *c);

#endif
