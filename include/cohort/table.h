/* cohort/table.h -- lookup tables: immutable maps from keys to values, such as vocabularies.
 *
 * A table maps words, or ids of any size, to numbers, such as the row numbers of an embedding.
 *
 *     rc = ch_table_new(words, NULL, -1, &table);        // words (n): each maps to its index
 *     ch_node *ids = ch_table_lookup(table, ch_step_in(s, 0));
 *     rc = ch_table_find(table, more_words, &found);     // outside steps
 *
 *   - A table never changes. It is reference counted, belongs to no strategy, and any number of
 *     threads may use it.
 *   - A step or dataset that looks up keys includes the table. A worker gets a copy with the
 *     step or the dataset.
 *   - A key takes up to 16 bytes, plus the text of a word, plus its value. A lookup among a
 *     million keys takes tens of nanoseconds.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_TABLE_H
#define COHORT_TABLE_H

#include "cohort/step.h"
#include "cohort/tensor.h"

typedef struct ch_table ch_table;

/* Creates a table that maps key i of `keys` (n) to value i of `values` (n), and all other keys
 * to `missing`. Keys are i32, i64 or strings. Values are numbers of any dtype. `values` NULL:
 * each key maps to its index, as i64. Copies both tensors.
 *
 * A key may occur twice with the same value. INVALID_ARGUMENT: a key has two different values
 * or no value (the error names it), or the dtype of the values cannot hold `missing`. */
CH_API CH_MUST_CHECK ch_status ch_table_new(ch_tensor *keys, ch_tensor *values, double missing,
                                            ch_table **out);
CH_API ch_table               *ch_table_ref(ch_table *t);
CH_API void                    ch_table_unref(ch_table *t);

/* Returns the number of different keys. */
CH_API int64_t ch_table_count(const ch_table *t);

/* Records a lookup in a step. Returns the values, in the shape of `keys`. Keys are strings, or
 * i32 or i64, which find the same keys. The gradient is 0. The step holds a reference to the
 * table. */
CH_API ch_node *ch_table_lookup(ch_table *t, ch_node *keys);
/* Looks up the keys of a tensor, outside steps. Returns a new tensor of values, in the shape of
 * `keys`. */
CH_API CH_MUST_CHECK ch_status ch_table_find(const ch_table *t, ch_tensor *keys,
                                             ch_tensor **out);

#endif
