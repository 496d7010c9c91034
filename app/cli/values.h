/* app/cli/values.h -- statistics of the values of a tensor, and differences between two tensors.
 *
 * Values are read in pieces, so that a tensor of any size needs little memory.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_VALUES_H
#define CLI_VALUES_H

#include "cohort/checkpoint_reader.h"

/* Statistics of numbers. Without any number, min, max and mean are NaN. */
typedef struct cli_stats {
    double  min, max, mean; /* of the values that are not NaN */
    int64_t n_nan;
} cli_stats;

/* Computes the statistics of a tensor of numbers. */
ch_status cli_stats_of(ch_checkpoint_reader *r, const ch_checkpoint_item *item, cli_stats *out);

typedef struct cli_difference {
    int64_t n;     /* values that differ in any bit */
    int64_t first; /* number of the first, in row-major order */
    double  most;  /* the largest difference; NaN: all differences involve a NaN */
} cli_difference;

/* Compares two tensors of numbers with the same dtype and shape. */
ch_status cli_compare(ch_checkpoint_reader *a, ch_checkpoint_reader *b,
                      const ch_checkpoint_item *item, cli_difference *out);

#endif
