/* cohort/input.h -- data for the replicas of a strategy.
 *
 *     ch_iterator *it = NULL;
 *     rc = ch_strategy_distribute_dataset(st, dataset, NULL, &it);
 *     while (rc == CH_OK && (rc = ch_iterator_next(it, &batch)) == CH_OK && batch != NULL) {
 *         rc = ch_strategy_run(st, train, batch, NULL);
 *         ch_tuple_unref(batch);
 *     }
 *
 * A step is there as long as any replica has rows; the others get batches of none. An element is a
 * tuple of per-replica values where there is more than one replica, and of plain ones else.
 *
 * What the replicas get may be transformed further (mapped, filtered, cut off): by a function that cuts the
 * dataset as it is told, and goes on from there.
 *
 *     static ch_dataset *shifted(const ch_input_context *c, void *dataset)
 *     {
 *         ch_dataset *mine = NULL;             // element k is for replica k mod replicas
 *
 *         if (ch_dataset_distribute(dataset, c, &mine) != CH_OK)
 *             return NULL;
 *         return ch_dataset_map(mine, shift, NULL, NULL);
 *     }
 *     rc = ch_strategy_distribute_datasets_from_function(st, shifted, dataset, NULL, &it);
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_INPUT_H
#define COHORT_INPUT_H

#include "cohort/iterator.h"
#include "cohort/strategy.h"

typedef enum ch_replication { CH_PER_WORKER, CH_EACH_REPLICA } ch_replication;

typedef struct ch_input_options {
    int fetch_to_device; /* 0, 1: elements are on their replicas' devices; CH_OFF: on the host's */
    /* Who has a pipeline of its own. CH_EACH_REPLICA is for distribute_datasets_from_function of Mirrored, and
     * of strategies of one's own that allow it (cohort/strategy_ops.h). */
    ch_replication replication;
    /* The pipeline itself; only for CH_EACH_REPLICA without fetch_to_device. */
    bool place_on_device;
    int per_replica_buffer; /* elements that are ready beforehand; 0: as it turns out; CH_OFF */
    ch_batch_split split;   /* how a batch is cut for the replicas */
} ch_input_options;

/* Batches of `d` cut for the replicas. Borrows `d`. */
CH_API CH_MUST_CHECK ch_status ch_strategy_distribute_dataset(ch_strategy *st, ch_dataset *d,
                                                              const ch_input_options *opt,
                                                              ch_iterator           **out);
/* What `fn` makes, as it is: element k of the pipeline goes to replica k mod replicas. */
CH_API CH_MUST_CHECK ch_status ch_strategy_distribute_datasets_from_function(
    ch_strategy *st, ch_input_fn fn, void *arg, const ch_input_options *opt, ch_iterator **out);

/* ---- as they were called at first ---- */

CH_API CH_MUST_CHECK ch_status ch_strategy_make_dataset_iterator(ch_strategy *st, ch_dataset *d,
                                                                 ch_iterator **out);
CH_API CH_MUST_CHECK ch_status ch_strategy_make_input_fn_iterator(ch_strategy *st,
                                                                  ch_input_fn fn, void *arg,
                                                                  ch_replication mode,
                                                                  ch_iterator  **out);
/* A run with the next element; OUT_OF_RANGE at the end. `it` may be NULL. With another strategy's iterator no
 * element is taken: FAILED_PRECONDITION. */
CH_API CH_MUST_CHECK ch_status ch_strategy_experimental_run(ch_strategy *st, ch_function *f,
                                                            ch_iterator *it, ch_tuple **out);
/* A dataset of the rows of arrays, which are copied. */
CH_API ch_dataset *ch_strategy_make_numpy_dataset(ch_strategy *st, int n,
                                                  ch_tensor *const  *array,
                                                  const char *const *name);
/* n runs, each with the next element. What the last one gave is in *out. OUT_OF_RANGE if there are not
 * so many elements: those that are there were used. */
CH_API CH_MUST_CHECK ch_status ch_strategy_run_steps(ch_strategy *st, ch_function *f,
                                                     ch_iterator *it, int n, ch_tuple **out);

#endif
