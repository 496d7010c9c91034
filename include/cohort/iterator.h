/* cohort/iterator.h -- iterators: run a dataset and give its elements, one after the other.
 *
 * An iterator is a position in a dataset, with the threads that prefetch the next elements.
 *
 *     ch_iterator *it = NULL;
 *     ch_tuple    *batch = NULL;
 *     rc = ch_iterator_new(d, NULL, &it);
 *     while (rc == CH_OK && (rc = ch_iterator_next(it, &batch)) == CH_OK && batch != NULL) {
 *         rc = ch_strategy_run(st, train, batch, NULL);
 *         ch_tuple_unref(batch);
 *     }
 *     ch_iterator_unref(it);
 *
 *   - Iterators are reference counted. Elements are too, and outlive the iterator.
 *   - The functions of an iterator must be called by one thread at a time.
 *   - The threads of the iterator start with the first element, and end when the iterator is
 *     freed. C functions of the pipeline run in these threads.
 *   - The position can be saved at any time and restored in another process. The elements after
 *     it are the same, bit for bit, whatever the number of replicas is.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_ITERATOR_H
#define COHORT_ITERATOR_H

#include "cohort/dataset.h"

typedef struct ch_iterator ch_iterator;

typedef struct ch_iterator_options {
    /* Continue after an error with the next element; false: the iterator ends with the error.
     *
     * With n_replicas, a failed element keeps its place in the group: after the error, its
     * replica gets an element without rows, and the other replicas get their elements. A group
     * in which all elements failed is left out. A row that fails before it is batched is not an
     * element: the rows after it move up in the batch, and so may go to other replicas. */
    bool go_on;
    /* Give elements in groups, an element for each replica, as per-replica values on these
     * devices. If the data does not fill the last group, the others get elements without rows;
     * a scalar component is then 0 or "". 0: give single elements. */
    int               n_replicas;
    ch_device *const *device; /* n_replicas devices; NULL: elements stay where they are made */
    int               prefetch; /* prefetched groups; 0: adaptive; CH_OFF: none */
} ch_iterator_options;

/* Creates an iterator at the beginning of `d`, which is borrowed. `opt` may be NULL. If `d` is
 * NULL, fails with the error that creating the dataset had. */
CH_API CH_MUST_CHECK ch_status ch_iterator_new(ch_dataset *d, const ch_iterator_options *opt,
                                               ch_iterator **out);
CH_API ch_iterator            *ch_iterator_ref(ch_iterator *it);
CH_API void                    ch_iterator_unref(ch_iterator *it);

/* Sets *out to the next element, or to NULL at the end. The caller unrefs the element. Blocks
 * until the element is ready. */
CH_API CH_MUST_CHECK ch_status ch_iterator_next(ch_iterator *it, ch_tuple **out);
/* Does the same, but returns OUT_OF_RANGE at the end. */
CH_API CH_MUST_CHECK ch_status ch_iterator_get_next(ch_iterator *it, ch_tuple **out);
/* Begins the next pass over the data. Shuffles use another order, unless same_each_time is
 * set. */
CH_API CH_MUST_CHECK ch_status ch_iterator_restart(ch_iterator *it);

/* Returns the components of an element, like ch_dataset_element_spec. */
CH_API int ch_iterator_element_spec(const ch_iterator *it, const ch_tensor_spec **out);

/* Saves the position. The caller frees `*bytes` with ch_bytes_free.
 *
 * A position is small if its elements can be had again. Rows of tensors in memory and numbers
 * of a range are saved as indices, for example in the buffer of a shuffle. Batches of them, and
 * the results of recorded steps (ch_dataset_map), are not saved: a restore makes those that
 * were prefetched again, also if they belong to several passes (ch_dataset_repeat). Other
 * elements in buffers are saved with their data: records of files, and batches or results of
 * steps in the buffer of a stage other than batch, map, prefetch and cache, for example in a
 * shuffle behind a map. C functions are not called again for elements that they have seen. */
CH_API CH_MUST_CHECK ch_status ch_iterator_save(ch_iterator *it, void **bytes, size_t *n);
/* Goes to a position that an iterator over an equal dataset saved. Its tensors in memory must
 * have the same rows. The options of the dataset and of the iterator may differ. On an error
 * the position does not change.
 *
 * The number of replicas may differ too: a position belongs to the dataset before it was
 * divided (ch_dataset_distribute, ch_strategy_distribute_dataset). The rest is the same
 * batches, divided among the replicas of this iterator. If the position is inside a batch, the
 * remaining rows of this batch are divided; an iterator for a single replica rejects such a
 * position. */
CH_API CH_MUST_CHECK ch_status ch_iterator_restore(ch_iterator *it, const void *bytes,
                                                   size_t n);

/* The time that a stage has used. */
typedef struct ch_stage_profile {
    const char *stage;      /* "shuffle" */
    int         depth;      /* in the tree */
    int64_t     n_elements; /* elements given so far */
    int64_t     busy_ns;    /* CPU time of the stage itself, over all threads; sampled */
    int64_t     wait_ns;    /* time that consumers waited for elements of the stage */
    int         ready;      /* elements in the buffer at present */
    int         capacity;   /* capacity of the buffer; 0: there is none */
} ch_stage_profile;

/* Writes the profiles of the first n stages, from the last stage to the sources. Returns the
 * number of all stages. */
CH_API int ch_iterator_profile(ch_iterator *it, ch_stage_profile *out, int n);
/* Prints the profile as a table, with the sum and the time that the program waited, as snprintf
 * does. */
CH_API int ch_iterator_print_profile(ch_iterator *it, char *text, size_t size);
/* Returns the number of damaged records that were skipped (skip_bad). It is part of the
 * position. */
CH_API int64_t ch_iterator_skipped(const ch_iterator *it);

#endif
