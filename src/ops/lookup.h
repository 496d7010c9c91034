/* ops/lookup.h -- what ops on rows and ids lend each other.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_LOOKUP_H
#define OPS_LOOKUP_H

#include "graph/op.h"
#include "kernel/rows.h"

/* The ids, if all are in [0, limit), which may be a symbol. The error begins with `of`, unless that is NULL. */
ch_node *ch__check_ids_dim(ch_node *ids, ch_dim limit, const char *of);
/* The gradient of a lookup: ids (n), rows (n, ...). Ids out of range stand for no row. */
ch_node *ch__sparse_rows(ch_node *ids, ch_node *rows, ch_dim n_rows);
/* Rows of axis 0, zeros for ids out of range; does not fail. */
ch_node *ch__gather_or_zero(ch_node *x, ch_node *ids);

/* A ragged list as an ordinary one, as long as its capacity: output 0 has the ids, output 1 their
 * rows of the list; both are -1 behind the last split. */
ch_node *ch__bag_entries(ch_node *ids, ch_node *splits);
/* Flat values x (n, ...) as long as such entries, with zeros behind the last split. */
ch_node *ch__bag_live_rows(ch_node *x, ch_node *splits, ch_node *entries);

/* Of a call of gather: whether it takes rows of axis 0; whether ids out of range give zeros. */
bool ch__gather_is_rows(const ch_node *n);
bool ch__gather_gives_zeros(const ch_node *n);

/* Shape rules: a dtype that can be added; ids of rank 1 with a row for each. */
ch_status ch__infer_adds(const ch_infer *c, int i);
ch_status ch__infer_id_rows(const ch_infer *c, int ids, int rows);

/* "id 7 at position 3 is not in [0, 5)". */
ch_status ch__fail_id(const ch_call *c, ch_ids ids, int64_t at, int64_t limit);

#endif
