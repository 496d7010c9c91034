/* ops/lookup.h -- functions that ops on rows and ids share.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef OPS_LOOKUP_H
#define OPS_LOOKUP_H

#include "graph/op.h"
#include "kernel/rows.h"

/* Returns the ids unchanged; the run fails unless all are in [0, limit). `limit` may be a
 * symbol. The error message begins with `of` unless `of` is NULL. (ops/index_sparse.c) */
ch_node *ch__check_ids_dim(ch_node *ids, ch_dim limit, const char *of);
/* Returns a sparse gradient of n_rows rows: ids (n), rows (n, ...). An id out of range names no
 * row. (ops/index_sparse.c) */
ch_node *ch__sparse_rows(ch_node *ids, ch_node *rows, ch_dim n_rows);
/* Returns the rows of x (along axis 0) that the ids name. An id out of range gives a row of
 * zeros, so the run does not fail. (ops/index.c) */
ch_node *ch__gather_or_zero(ch_node *x, ch_node *ids);

/* Converts a ragged list to ordinary lists without room; their length is the capacity of the
 * ragged list. Output 0 has the ids, output 1 the row of the ragged list that each id is in.
 * Both are -1 after the last split. (ops/index_bag.c) */
ch_node *ch__bag_entries(ch_node *ids, ch_node *splits);
/* Returns the flat values x (n, ...) with the length of `entries`, a result of ch__bag_entries.
 * Rows after the last split are 0. (ops/index_bag.c) */
ch_node *ch__bag_live_rows(ch_node *x, ch_node *splits, ch_node *entries);

/* Returns flat values x without room: a list as long as the capacity, with a size symbol of its
 * own, in which the room has become rows of `value`. (ops/room.c) */
ch_node *ch__without_room(ch_node *x, double value);
/* Converts x to the length `rows`: that of a result of ch__without_room, or that of the flat
 * values that the result was made from. Rows that are not live become `value`. (ops/room.c) */
ch_node *ch__resize_rows(ch_node *x, double value, ch_dim rows);
/* Returns the flat values that a result x of ch__without_room or ch__resize_rows was made from;
 * otherwise x itself. (ops/room.c) */
ch_node *ch__with_room(ch_node *x);

/* n must be a call of gather. ch__gather_is_rows returns true if it gathers along axis 0,
 * ch__gather_gives_zeros if an id out of range gives zeros instead of an error.
 * (ops/index.c) */
bool ch__gather_is_rows(const ch_node *n);
bool ch__gather_gives_zeros(const ch_node *n);

/* Part of shape rules. Fails unless input `ids` has ids, rank 1 and as many elements as input
 * `rows` has rows. (ops/index_sparse.c) */
ch_status ch__infer_id_rows(const ch_infer *c, int ids, int rows);

/* Returns the ids of an input, of a call whose table is input 0 or output 0 and has its rows
 * along `axis`. If the call is a part, the ids name rows of this part of the table, and those
 * of other parts name no row. (ops/index.c) */
ch_ids ch__ids_in(const ch_call *c, int ids, bool wide, int axis);
ch_ids ch__ids_out(const ch_call *c, int ids, bool wide, int axis);
/* Fails the run with a message such as "id 7 at position 3 is not in [0, 5)".
 * (ops/index_sparse.c) */
ch_status ch__fail_id(const ch_call *c, ch_ids ids, int64_t at, int64_t limit);

#endif
