/* cohort/table.h -- static tables: what keys stand for.
 *
 *     rc = ch_table_new(words, NULL, -1, &t);        // words (n): each stands for its place
 *     ch_node *ids = ch_table_lookup(t, ch_step_in(s, 0));
 *     rc = ch_table_find(t, more_words, &found);     // outside of steps
 *
 * A vocabulary: words, or ids of any size, become small numbers, of which a model has rows. A
 * table is made once and never changes. It is counted, may be used by any number of threads, and
 * belongs to no strategy.
 *
 * A step or the step of a dataset that looks keys up has its table with it, wherever it is sent:
 * every worker has a copy of its own, which it makes when it is told the step or the dataset.
 * A key takes up to 16 bytes, a word its text too, and each its value's. To find one among a
 * million takes tens of nanoseconds.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_TABLE_H
#define COHORT_TABLE_H

#include "cohort/step.h"
#include "cohort/tensor.h"

typedef struct ch_table ch_table;

/* Key i, of keys (n), stands for value i, of values (n), and all other keys for `missing`. Keys
 * are i32, i64 or strings, values numbers of any type; NULL: each key stands for its place, an
 * i64. A key may be there twice with the same value; one with two values, or with none, is named
 * by INVALID_ARGUMENT. Copies both. */
CH_API CH_MUST_CHECK ch_status ch_table_new(ch_tensor *keys, ch_tensor *values, double missing,
                                            ch_table **out);
CH_API ch_table               *ch_table_ref(ch_table *t);
CH_API void                    ch_table_unref(ch_table *t);

/* How many keys it has, each counted once. */
CH_API int64_t ch_table_count(const ch_table *t);

/* What keys stand for, in a step, which keeps `t`: in the shape of `keys`, which are i32 or i64
 * (both find the same) or strings. Its gradient is 0. */
CH_API ch_node *ch_table_lookup(ch_table *t, ch_node *keys);
/* The same of a tensor. */
CH_API CH_MUST_CHECK ch_status ch_table_find(const ch_table *t, ch_tensor *keys,
                                             ch_tensor **out);

#endif
