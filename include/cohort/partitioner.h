/* cohort/partitioner.h -- partitioners: rules that divide variables into shards.
 *
 * A partitioner decides for each variable into how many shards it is divided, and along which
 * axis. The parameter-server strategy uses it (cohort/parameter_server.h).
 *
 *     ch_partitioner p = ch_partitioner_min_size(256 << 10, n_servers);
 *     p.axis = -1;                                          // the last axis, not the first
 *     ch_partitioner own = {.fn = my_rule, .arg = &limits}; // a function of the program
 *
 *   - A partitioner is a plain value; all zeros divides nothing. It borrows `arg`.
 *   - The strategy calls it once for each variable, when the variable is created, on the thread
 *     that creates the variable.
 *   - Shards are as equal as possible: 13 rows in 5 shards are 3, 3, 3, 2 and 2. A variable is
 *     divided along a single axis, which may be any.
 *   - A scalar is never divided, and the partitioner is not called for it. A variable is also
 *     not divided if the result would be a single shard, or if the axis has size 0.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_PARTITIONER_H
#define COHORT_PARTITIONER_H

#include "cohort/layout.h"
#include "cohort/tensor.h"

enum { CH_PARTITIONER_SHARDS = 4096 }; /* maximum number of shards of a variable */

/* Decides how a variable is divided. `parts` has a number for each axis, all of them 1; the
 * function may increase one of them. A number above the size of the axis means that size. */
typedef ch_status (*ch_partitioner_fn)(void *arg, const ch_tensor_spec *of, int64_t *parts);

typedef enum ch_partitioner_kind {
    CH_PARTITIONER_CALL, /* divides as `fn` decides */
    CH_PARTITIONER_FIXED,
    CH_PARTITIONER_MIN_SIZE,
    CH_PARTITIONER_MAX_SIZE
} ch_partitioner_kind;

/* A partitioner. `fn` and `arg` are for CH_PARTITIONER_CALL, the fields after `kind` for the
 * others. */
typedef struct ch_partitioner {
    /* Used only if `kind` is CH_PARTITIONER_CALL. NULL: variables are not divided, so a
     * partitioner of all zeros divides nothing. */
    ch_partitioner_fn   fn;
    void               *arg;
    ch_partitioner_kind kind;
    int                 shards;           /* FIXED: number of shards; else: maximum number */
    int64_t             shard_bytes;      /* minimum or maximum bytes of a shard */
    int                 axis;             /* axis to divide; negative: from the last */
    int64_t             bytes_per_string; /* assumed size of a string; 0: 16 */
} ch_partitioner;

/* Returns a partitioner that makes `shards` shards, or as many as the axis has rows. */
CH_API ch_partitioner ch_partitioner_fixed(int shards);
/* Returns a partitioner that makes as many shards as possible, each of at least min_shard_bytes
 * (0: 256 KiB), up to `max_shards`. */
CH_API ch_partitioner ch_partitioner_min_size(int64_t min_shard_bytes, int max_shards);
/* Returns a partitioner that makes as few shards as possible, each of at most max_shard_bytes,
 * up to `max_shards` (0: as many as needed). A row that is larger than the limit is a shard by
 * itself. */
CH_API ch_partitioner ch_partitioner_max_size(int64_t max_shard_bytes, int max_shards);

/* Applies a partitioner to a variable and writes out->parts: all zeros if the variable is not
 * divided. A NULL partitioner divides nothing.
 *
 * INVALID_ARGUMENT, with the name of the variable: a size is unknown; a limit is too small; the
 * variable does not have the axis; a function returns a number below 1 or divides two axes;
 * there would be more than CH_PARTITIONER_SHARDS shards. An error of the function is
 * returned. */
CH_API CH_MUST_CHECK ch_status ch_partitioner_divide(const ch_partitioner *p,
                                                     const ch_tensor_spec *of, ch_layout *out);

#endif
