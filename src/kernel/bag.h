/* kernel/bag.h -- rows of a table added up in bags.
 *
 * Bag r holds positions [splits[r], splits[r + 1]) of a list of ids, and perhaps of weights;
 * what is behind the last split is padding. Splits that are not in order, or not in the list,
 * hold less than they say; they never make anybody look elsewhere.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_BAG_H
#define KERNEL_BAG_H

#include "kernel/rows.h"

typedef struct ch_bag {
    ch_dtype dtype;         /* of the table and the weights: f32, f64, bf16, f16 */
    int64_t  n_rows, width; /* of the table */
    int64_t  n_bags, n_ids; /* n_ids is how many there is room for */
    bool     mean;          /* divided by the number of ids in the bag */
} ch_bag;

/* Bytes of scratch that a call needs: 16-bit floats are added in f32. */
size_t ch__bag_scratch(const ch_bag *b);
/* Bags [from, to) of out (n_bags, width). Weights may be NULL. Ids out of range add nothing. */
void ch__bag_sum(const ch_bag *b, ch_ids splits, ch_ids ids, const void *weights,
                 const void *table, int64_t from, int64_t to, void *out, void *scratch);
/* How many ids are in bags: the last split, within [0, n_ids]. */
int64_t ch__bag_live(const ch_bag *b, ch_ids splits);
/* The other way: the bag of positions [from, to) in `out`, of the type of the splits; -1 where
 * they are in none. */
void ch__bag_index(const ch_bag *b, ch_ids splits, int64_t from, int64_t to, void *out);

#endif
