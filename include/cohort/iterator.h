/* cohort/iterator.h -- a place in a dataset: gives one element after the other.
 *
 *     ch_iterator *it = NULL;
 *     ch_tuple    *batch = NULL;
 *     rc = ch_iterator_new(d, NULL, &it);
 *     while (rc == CH_OK && (rc = ch_iterator_next(it, &batch)) == CH_OK && batch != NULL) {
 *         ...
 *         ch_tuple_unref(batch);
 *     }
 *     ch_iterator_unref(it);
 *
 * An iterator works ahead with threads of its own, which start with the first element and end with
 * the iterator, wherever it is. Its place can be saved at any time and taken up by another process:
 * what follows is the same, bit for bit.
 *
 *   - One thread at a time calls its functions.
 *   - Elements are counted as all tuples are, and outlive the iterator.
 *   - C functions of the pipeline run on the iterator's threads.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_ITERATOR_H
#define COHORT_ITERATOR_H

#include "cohort/dataset.h"

typedef struct ch_iterator ch_iterator;

typedef struct ch_iterator_options {
    /* Goes on after an error with the elements behind it. Else the iterator has ended. An element
     * that failed keeps its place in the group of the replicas: after the error, its replica gets
     * an element of no rows, and the others get theirs. A group that failed whole is left out. A row that
     * fails below a batch is not an element: the rows behind it move up into its batch, and so may go
     * to another replica than they would have gone to. */
    bool go_on;
    /* Elements are given in groups, one for each replica, as per-replica values on these devices.
     * A group that the data does not fill is filled with elements of no rows; components without rows,
     * scalars, are 0 there, or "". 0: one by one. */
    int               n_replicas;
    ch_device *const *device; /* n_replicas; NULL: where they were made */
    int               ahead;  /* groups that are ready beforehand; 0: as it turns out; CH_OFF */
} ch_iterator_options;

/* Borrows `d`; if it is NULL, fails with what went wrong when it was made. */
CH_API CH_MUST_CHECK ch_status ch_iterator_new(ch_dataset *d, const ch_iterator_options *opt,
                                               ch_iterator **out);
CH_API ch_iterator            *ch_iterator_ref(ch_iterator *it);
CH_API void                    ch_iterator_unref(ch_iterator *it);

/* The next element, a reference that is yours; NULL at the end. */
CH_API CH_MUST_CHECK ch_status ch_iterator_next(ch_iterator *it, ch_tuple **out);
/* The same where the end is not expected: OUT_OF_RANGE. */
CH_API CH_MUST_CHECK ch_status ch_iterator_get_next(ch_iterator *it, ch_tuple **out);
/* Back to the beginning, for the next pass: shuffles draw another order. */
CH_API CH_MUST_CHECK ch_status ch_iterator_restart(ch_iterator *it);

/* As ch_dataset_element_spec. */
CH_API int ch_iterator_element_spec(const ch_iterator *it, const ch_tensor_spec **out);

/* The place, in memory that ch_bytes_free returns. Elements that wait in buffers are in it. */
CH_API CH_MUST_CHECK ch_status ch_iterator_save(ch_iterator *it, void **bytes, size_t *n);
/* Goes to a place that was saved by an iterator over an equal dataset; options of the dataset and of
 * the iterator may differ. On an error the iterator stays where it was. */
CH_API CH_MUST_CHECK ch_status ch_iterator_restore(ch_iterator *it, const void *bytes,
                                                   size_t n);

/* Where the time went, by stage, from the last to the sources. */
typedef struct ch_stage_profile {
    const char *stage;      /* "shuffle" */
    int         depth;      /* of the tree */
    int64_t     n_elements; /* given so far */
    int64_t     busy_ns;    /* the processor's time, of its own, over all threads; sampled */
    int64_t     wait_ns;    /* of those who wanted elements that were not ready */
    int         ready;      /* elements in its buffer now */
    int         capacity;   /* of that buffer; 0: has none */
} ch_stage_profile;

/* Writes up to `n`, and returns how many there are. */
CH_API int ch_iterator_profile(ch_iterator *it, ch_stage_profile *out, int n);
/* The same as a table, with the sum and how long the program waited; as snprintf does. */
CH_API int ch_iterator_print_profile(ch_iterator *it, char *text, size_t size);
/* Damaged records that were left out, where skip_bad asked for that; a part of the place. */
CH_API int64_t ch_iterator_skipped(const ch_iterator *it);

#endif
