/* cohort/partitioner.h -- which variables are cut into shards, and into how many.
 *
 *     ch_partitioner p = ch_partitioner_min_size(256 << 10, n_servers);
 *     p.axis = -1;                            // along the last axis, not the first
 *     p = (ch_partitioner){.fn = by_my_rules, .arg = rules}; // one of one's own
 *
 * A partitioner is a plain value; all zeros is "whole". It is asked once for each variable, when that is made. Shards are
 * as equal as can be: 13 rows in 5 shards are 3, 3, 3, 2 and 2. They are cut along one axis, any one. Scalars are whole, and
 * nobody is asked about them; so are variables of which one shard would have all, or whose axis has size 0.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_PARTITIONER_H
#define COHORT_PARTITIONER_H

#include "cohort/layout.h"
#include "cohort/tensor.h"

enum { CH_PARTITIONER_SHARDS = 4096 }; /* of one variable, at most */

/* A partitioner of one's own: of how many parts each axis of a variable is. `parts` has a number for each axis, all of them 1;
 * it may make one of them larger. More than the axis has is as many as it has. */
typedef ch_status (*ch_partitioner_fn)(void *arg, const ch_tensor_spec *of, int64_t *parts);

typedef enum ch_partitioner_kind {
    CH_PARTITIONER_CALL, /* as `fn` says */
    CH_PARTITIONER_FIXED,
    CH_PARTITIONER_MIN_SIZE,
    CH_PARTITIONER_MAX_SIZE
} ch_partitioner_kind;

/* What stands behind `kind` is for those that are made here; a function gets `arg`. */
typedef struct ch_partitioner {
    ch_partitioner_fn   fn; /* one's own; NULL: variables are whole */
    void               *arg;
    ch_partitioner_kind kind;
    int                 shards;           /* fixed: so many; else: so many at most */
    int64_t             shard_bytes;      /* the least or the most of a shard */
    int                 axis;             /* along which; from the last one if negative */
    int64_t             bytes_per_string; /* what one counts for; 0: 16 */
} ch_partitioner;

/* So many shards, of one row or more. */
CH_API ch_partitioner ch_partitioner_fixed(int shards);
/* As many shards as have at least so many bytes each (0: 256 KiB), and no more than `max_shards`. */
CH_API ch_partitioner ch_partitioner_min_size(int64_t min_shard_bytes, int max_shards);
/* As few shards as have at most so many bytes each, and no more than `max_shards` (0: as many as are needed). A row that is larger is a
 * shard of its own. */
CH_API ch_partitioner ch_partitioner_max_size(int64_t max_shard_bytes, int max_shards);

/* Asks a partitioner how a variable is divided, and writes out->parts; all zeros if it is whole. NULL is the partitioner
 * that divides nothing. INVALID_ARGUMENT, which names the variable: a size that is not known; limits below 1; an axis that
 * the variable does not have; from a function, numbers below 1 or two axes that are divided; more than
 * CH_PARTITIONER_SHARDS. What a function fails with is passed on. */
CH_API CH_MUST_CHECK ch_status ch_partitioner_divide(const ch_partitioner *p,
                                                     const ch_tensor_spec *of, ch_layout *out);

#endif
