/* job/worker/stream.h -- a stream: a dataset that a worker reads by element number.
 *
 *     rc = ch__stream_new(&(ch_stream_options){.dataset = bytes, .n_dataset = n}, &s);
 *     rc = ch__stream_element(s, 41, &element); // for the step with the lease on element 41
 *     ...
 *     ch__stream_free(s);
 *
 * The coordinator assigns element numbers to steps. A repeated step must read the same element,
 * on this or another worker. So an element depends only on the dataset, the reader, the pass
 * and its number. It does not depend on earlier reads or on the first position.
 *
 *   1. Numbers count the elements of an iterator that continues after errors. An error of the
 *      data itself (DATA_LOSS, INVALID_ARGUMENT, OUT_OF_RANGE) has a number like an element,
 *      and is returned each time that number is read.
 *   2. Any other error, such as exhausted memory or a file that cannot be opened, has no
 *      number, because another worker could read an element there. It is returned for every
 *      element that cannot be reached because of it, and the next call tries again.
 *   3. Stages that may return elements in any order use a fixed order here: such a dataset is
 *      read without prefetching threads.
 *   4. One thread at a time may use a stream. All functions except new, position and free may
 *      block for a long time.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_WORKER_STREAM_H
#define JOB_WORKER_STREAM_H

#include "cohort/iterator.h"

enum { CH_STREAM_POSITION_INTERVAL = 64 }; /* elements between saved positions */

typedef struct ch_stream ch_stream;

typedef struct ch_stream_options {
    const char *name;    /* for errors, such as "stream 3"; NULL: "stream" */
    const void *dataset; /* a dataset encoded by ch_dataset_encode; untrusted */
    size_t      n_dataset;
    /* Select the random numbers of the stream (ch_stream_name): the index of the worker or part
     * that the stream belongs to, and the number of the pass. Each pair has its own random
     * numbers. Ignored if there is a position, because a position includes them. */
    int64_t     reader, pass;
    int64_t     first;      /* number of the next element at the position */
    const void *position;   /* position to begin at; NULL: the beginning, and first must be 0 */
    size_t      n_position; /* bytes of the position */
    /* 0 or 1: one element at a time. More: one element per replica, as per-replica values. */
    int               n_replicas;
    ch_device *const *device; /* n_replicas devices; NULL: elements stay where they are made */
} ch_stream_options;

/* Creates a stream. Copies the options; the devices are borrowed. Returns an error if the
 * dataset cannot be decoded. Files are opened, and the position is checked, when the first
 * element is read. */
ch_status ch__stream_new(const ch_stream_options *opt, ch_stream **out);
/* Frees the stream and ends the threads of its iterator. NULL is allowed. */
void ch__stream_free(ch_stream *s);

/* Reads an element, which the caller must unref; NULL: the data ends before it. If the stream
 * is past the element, it comes from a small cache of recent elements, or is read again from
 * the last saved position before it. OUT_OF_RANGE if it is before the oldest position of the
 * stream, at which the stream began. */
ch_status ch__stream_element(ch_stream *s, int64_t number, ch_tuple **out);

/* Gives the position that was saved last: the number of its next element, and its bytes, which
 * belong to the stream and are valid until the next call. Returns false if none was saved since
 * the stream was created.
 *
 * A position is saved every CH_STREAM_POSITION_INTERVAL elements. If a position has many
 * bytes (a large shuffle), the next is saved only when as many bytes have been read. */
bool ch__stream_position(const ch_stream *s, int64_t *number, const void **bytes, size_t *n);

#endif
