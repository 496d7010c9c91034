/* kernel/bag.h -- sums of table rows in bags (embedding_bag).
 *
 * Bag r consists of the positions [splits[r], splits[r + 1]) of a list of ids and, optionally,
 * of weights. Positions behind the last split are padding.
 *
 * Splits that are out of order or out of range are safe. They are clamped to [0, n_ids], so
 * such a bag has fewer ids, and no memory outside the list is read.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_BAG_H
#define KERNEL_BAG_H

#include "kernel/rows.h"

typedef struct ch_bag {
    ch_dtype dtype;         /* of the table and the weights: f32, f64, bf16 or f16 */
    int64_t  n_rows, width; /* size of the table */
    int64_t  n_bags, n_ids; /* n_ids: length of the list of ids, padding included */
    bool     mean;          /* divide by the number of positions in the bag */
} ch_bag;

/* Returns the bytes of scratch memory of a call of ch__bag_sum. Not 0 for 16-bit floats,
 * because they are added in f32. */
size_t ch__bag_scratch(const ch_bag *b);
/* Computes bags [from, to) of out (n_bags, width). `weights` may be NULL. An id out of range
 * adds nothing. */
void ch__bag_sum(const ch_bag *b, ch_ids splits, ch_ids ids, const void *weights,
                 const void *table, int64_t from, int64_t to, void *out, void *scratch);
/* Returns the number of ids that are in bags: the last split, clamped to [0, n_ids]. */
int64_t ch__bag_live(const ch_bag *b, ch_ids splits);
/* Writes to out[i], for positions i in [from, to), the bag that contains position i, or -1 if
 * no bag does. `out` has the integer type of the splits. */
void ch__bag_index(const ch_bag *b, ch_ids splits, int64_t from, int64_t to, void *out);

#endif
