/* data/row_ref.h -- references to elements that can be made again without their data.
 *
 * An element of the stages `slices` and `tensors` points at rows of tensors that belong to the
 * dataset (ch_element.is_row). An element that is a single i64 scalar, as those of `range`, is
 * its number. Positions save such elements as references, a few bytes each: the row of a tensor
 * for each part, or the number. Workqueues remember their last inputs in this form, so that a
 * position need not hold the results that were made of them (data/workqueue.h).
 *
 * A reference is an array of words, a word for each part. In memory, the word of a row is its
 * address. A position has the index of the tensor and the index of the row instead.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_ROW_REF_H
#define DATA_ROW_REF_H

#include "data/data.h"

/* ---- tensors ---- */

/* A tensor of a dataset, and how its elements refer to it. The dataset owns the memory. */
typedef struct ch_row_tensor {
    const char *data;
    size_t      row_bytes;
    int64_t     n_rows; /* 1 for the stage `tensors`, whose element is the whole tensor */
    ch_dtype    dtype;
    ch_shape    shape; /* of a row */
    ch_buffer  *buffer;
} ch_row_tensor;

/* All tensors in memory of a dataset, in the order of a walk over its stages. Equal
 * descriptions have equal lists, so an index in the list is valid in another process. */
typedef struct ch_row_tensors {
    int            n, capacity;
    ch_row_tensor *at;
    /* An address stands for a single element. False if rows are empty, or if tensors share
     * memory and their rows have different types. Elements are then saved with their data. */
    bool is_clear;
} ch_row_tensors;

/* Collects the tensors of `d` into an empty list. */
ch_status ch__row_tensors_collect(ch_row_tensors *t, const ch_dataset *d);
void      ch__row_tensors_drop(ch_row_tensors *t);
/* Finds the row that begins at `data`. The search begins with tensor *tensor. Returns false if
 * there is no such row, or if the tensors are not clear. */
bool ch__row_tensors_find(const ch_row_tensors *t, const void *data, int *tensor, int64_t *row);

/* ---- references ---- */

typedef union ch_row_word {
    const void *data;   /* address of a row */
    int64_t     number; /* value of a scalar */
} ch_row_word;

/* Returns the number of words of a reference to `e`; 0: its data is needed to make it again.
 * *is_number is true if the word is a number. */
static inline int ch__row_ref_words(const ch_element *e, bool *is_number)
{
    *is_number = !e->is_row;
    if (e->is_row)
        return e->n;
    return e->n == 1 && e->part[0].dtype == CH_I64 && e->part[0].shape.rank == 0;
}

/* Writes the words of a reference to `e`, which ch__row_ref_words has counted. */
void ch__row_ref_write(const ch_element *e, ch_row_word *word);
/* Makes the element that a reference stands for. */
ch_status ch__row_ref_make(const ch_row_tensors *t, bool is_number, int n,
                           const ch_row_word *word, ch_element **out);

/* A queue of references of the same kind, in a ring. All zero is an empty queue. It may also
 * hold numbers that are no elements, n_words at a time. */
typedef struct ch_row_refs {
    bool         is_number;
    int          n_words;  /* of a reference */
    int64_t      first;    /* references removed so far: the place of the first in the ring */
    int64_t      n;        /* references */
    int64_t      capacity; /* a power of two, or 0 */
    ch_row_word *word;     /* capacity * n_words */
} ch_row_refs;

/* Returns reference i, from 0. */
static inline ch_row_word *ch__row_refs_at(const ch_row_refs *r, int64_t i)
{
    return r->word + ((r->first + i) & (r->capacity - 1)) * r->n_words;
}

/* Appends a reference and returns its words, which the caller sets. If the queue is full and
 * `grows` is false, removes the first. A reference of another kind empties the queue before.
 * Returns NULL if memory is exhausted; the queue is unchanged then. */
ch_row_word *ch__row_refs_add(ch_row_refs *r, bool is_number, int n_words, bool grows);
/* Returns true each time when the queue is full and half of its references are new. The caller
 * then decides if it must grow: it need not if less than half of them are needed. */
static inline bool ch__row_refs_is_due(const ch_row_refs *r)
{
    return r->n == r->capacity && ((r->first + r->n) & (r->capacity / 2 - 1)) == 0;
}
/* Removes the first reference. */
static inline void ch__row_refs_pop(ch_row_refs *r)
{
    r->first++;
    r->n--;
}
static inline void ch__row_refs_empty(ch_row_refs *r)
{
    r->n = 0;
}
void ch__row_refs_drop(ch_row_refs *r); /* frees the memory */

#endif
