/* cohort/input.h -- distributed input: batches for the replicas of a strategy.
 *
 * A distributed dataset is an iterator that gives an element for all replicas of the strategy
 * at a time.
 *
 *     ch_iterator *it = NULL;
 *     rc = ch_strategy_distribute_dataset(st, dataset, NULL, &it);
 *     while (rc == CH_OK && (rc = ch_iterator_next(it, &batch)) == CH_OK && batch != NULL) {
 *         rc = ch_strategy_run(st, train, batch, NULL);
 *         ch_tuple_unref(batch);
 *     }
 *
 * To transform the batches of the replicas further (map, filter, take), distribute the dataset
 * in a function:
 *
 *     static ch_dataset *shifted(const ch_input_context *c, void *dataset)
 *     {
 *         ch_dataset *mine = NULL; // element k is for replica k % replicas
 *
 *         if (ch_dataset_distribute(dataset, c, &mine) != CH_OK)
 *             return NULL;
 *         return ch_dataset_map(mine, shift, NULL, NULL);
 *     }
 *     rc = ch_strategy_distribute_datasets_from_function(st, shifted, dataset, NULL, &it);
 *
 *   - The values of an element are per-replica if the strategy has several replicas, else
 *     plain.
 *   - There is an element as long as a replica has rows. The other replicas get batches without
 *     rows.
 *   - The caller unrefs the iterator, which holds a reference to the strategy.
 *     cohort/iterator.h has the rules for threads.
 *   - A distributed iterator must be advanced outside steps, and not in the scope of another
 *     strategy.
 *   - A saved position (ch_iterator_save) of ch_strategy_distribute_dataset fits any strategy
 *     and any number of replicas. A position of a function's dataset fits if the function
 *     returns an equal dataset again; a dataset that depends on the number of replicas, for
 *     example by the size of its batches, needs the same number.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_INPUT_H
#define COHORT_INPUT_H

#include "cohort/iterator.h"
#include "cohort/strategy.h"

/* How many input pipelines there are: one for all replicas of a worker, or one for each
 * replica. */
typedef enum ch_replication { CH_PER_WORKER, CH_EACH_REPLICA } ch_replication;

typedef struct ch_input_options {
    int fetch_to_device; /* 0, 1: elements are on the replicas' devices; CH_OFF: on the host */
    /* CH_EACH_REPLICA needs ch_strategy_distribute_datasets_from_function, and Mirrored or a
     * custom strategy with own_pipelines (cohort/strategy_ops.h). Else it is UNIMPLEMENTED. */
    ch_replication replication;
    /* Create the elements on the devices. Needs CH_EACH_REPLICA, and fetch_to_device CH_OFF. */
    bool           place_on_device;
    int            per_replica_buffer; /* prefetched elements; 0: adaptive; CH_OFF: none */
    ch_batch_split split;              /* how a batch is cut for the replicas */
    /* Continue after an error with the next element, as ch_iterator_options.go_on does; false:
     * the iterator ends with the error. Data of a coordinator (ch_per_worker_iterate) always
     * continues. */
    bool go_on;
} ch_input_options;

/* Creates an iterator over the batches of `d`, cut for the replicas. Borrows `d`. `opt` may be
 * NULL. */
CH_API CH_MUST_CHECK ch_status ch_strategy_distribute_dataset(ch_strategy *st, ch_dataset *d,
                                                              const ch_input_options *opt,
                                                              ch_iterator           **out);
/* Creates an iterator over the dataset that `fn` returns, unchanged: element k goes to replica
 * k % replicas. With CH_EACH_REPLICA `fn` is called for each replica, and each replica reads
 * its own dataset. `opt` may be NULL. */
CH_API CH_MUST_CHECK ch_status ch_strategy_distribute_datasets_from_function(
    ch_strategy *st, ch_input_fn fn, void *arg, const ch_input_options *opt, ch_iterator **out);

/* ---- older names of tf.distribute ---- */

/* Do the same as the two functions above, with default options. `mode` must be
 * CH_PER_WORKER. */
CH_API CH_MUST_CHECK ch_status ch_strategy_make_dataset_iterator(ch_strategy *st, ch_dataset *d,
                                                                 ch_iterator **out);
CH_API CH_MUST_CHECK ch_status ch_strategy_make_input_fn_iterator(ch_strategy *st,
                                                                  ch_input_fn fn, void *arg,
                                                                  ch_replication mode,
                                                                  ch_iterator  **out);
/* Runs `f` with the next element. OUT_OF_RANGE: the data has ended. `it` may be NULL: `f` then
 * has no inputs. FAILED_PRECONDITION: the iterator is of another strategy; it does not
 * advance. */
CH_API CH_MUST_CHECK ch_status ch_strategy_experimental_run(ch_strategy *st, ch_function *f,
                                                            ch_iterator *it, ch_tuple **out);
/* Creates a dataset of the rows of n arrays. Copies the arrays. NULL on an error. */
CH_API ch_dataset *ch_strategy_make_numpy_dataset(ch_strategy *st, int n,
                                                  ch_tensor *const  *array,
                                                  const char *const *name);
/* Runs `f` n times, each time with the next element. Sets *out to the results of the last run.
 * OUT_OF_RANGE: there are fewer than n elements; `f` has run with each of them. */
CH_API CH_MUST_CHECK ch_status ch_strategy_run_steps(ch_strategy *st, ch_function *f,
                                                     ch_iterator *it, int n, ch_tuple **out);

#endif
