/* job/worker/stream.h -- a dataset that a worker reads for its steps, by the number of the element.
 *
 *     rc = ch__stream_new(&(ch_stream_options){.dataset = bytes, .n_dataset = n}, &s);
 *     rc = ch__stream_element(s, 41, &element);    // for the step that was given number 41
 *     ...
 *     ch__stream_free(s);
 *
 * A step is told which element of which stream it gets, so that it gets the same one when it is run again, here or by another
 * worker. So an element is a function of the description, the reader, the pass and the number: whatever was asked for before, wherever the
 * stream was taken up.
 *
 *   - Numbers are those of the elements that an iterator gives that goes on after errors. What is wrong with the data (DATA_LOSS,
 *     INVALID_ARGUMENT, OUT_OF_RANGE) has a number as an element has, and is given as often as that is asked for.
 *   - Any other error (no memory, a file that cannot be opened) has none, since another worker would have an element there: it is
 *     given for every number that cannot be reached because of it, and the next call tries again.
 *   - Stages that may give their elements in any order do it in one: such a dataset is read without threads that work ahead.
 *   - One thread at a time calls its functions. Who waits for it are its callers: all but new, place and free may take long.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_WORKER_STREAM_H
#define JOB_WORKER_STREAM_H

#include "cohort/iterator.h"

enum { CH_STREAM_POSITIONS = 64 };

typedef struct ch_stream ch_stream;

typedef struct ch_stream_options {
    const char *name;    /* what errors call it: "stream 3"; NULL: "stream" */
    const void *dataset; /* a description: ch_dataset_encode; from anywhere, not trusted */
    size_t      n_dataset;
    /* Name the random numbers that are drawn (ch_stream_name): the index of the worker or part whose stream this is, and the
     * number of the pass. Each pair has sequences of its own. Beside a place they are ignored, because a place includes them. */
    int64_t     reader, pass;
    int64_t     first; /* number of the element that comes next at: */
    const void *place; /* of ch__stream_position; NULL: the beginning, and first is 0 */
    size_t      n_place;
    int         n_replicas;   /* 0 or 1: elements one by one; else groups, as of iterators */
    ch_device *const *device; /* n_replicas; NULL: where they were made */
} ch_stream_options;

/* Copies what it is given but the devices themselves. A description that is none is the error of this; files are opened, and
 * the place looked at, when the first element is asked for. */
ch_status ch__stream_new(const ch_stream_options *opt, ch_stream **out);
void      ch__stream_free(ch_stream *s); /* NULL is fine; ends the iterator's threads */

/* Element `number`, a reference that is the caller's; NULL: the data ended before it. One that lies before where the stream
 * is comes from the few that it keeps, or is read again from the last place before it that is kept. OUT_OF_RANGE if it comes
 * before the first place of all, that the stream was made with or moved to. */
ch_status ch__stream_element(ch_stream *s, int64_t number, ch_tuple **out);

/* The place that was kept last: the number of the element that comes next there, and its bytes, which are the stream's and
 * last until the next call. False: none but the one it was made with. A place is kept every CH_STREAM_POSITIONS elements; one
 * that takes more bytes than these (a large shuffle's) when as many bytes have been read again. */
bool ch__stream_position(const ch_stream *s, int64_t *number, const void **bytes, size_t *n);

/* Takes it up elsewhere: at a place that somebody else kept, where `number` comes next. Nothing is done where the stream is
 * there, or has been there and can go back. On an error it stays as it was. */
ch_status ch__stream_move(ch_stream *s, int64_t number, const void *place, size_t n);

#endif
