/* data/rows.h -- joins elements into a batch, and finds the rows of a batch.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_ROWS_H
#define DATA_ROWS_H

#include <string.h>

#include "data/workqueue.h"
#include "file/block.h"

/* How elements are joined. In all kinds except APPEND, each element becomes a row. */
typedef enum ch_rows_kind {
    CH_ROWS_EQUAL,  /* all elements must have the same shapes */
    CH_ROWS_RAGGED, /* a part with an unknown first size becomes values and row splits */
    CH_ROWS_PADDED, /* parts are padded at the end of each axis */
    CH_ROWS_APPEND  /* the elements have rows already; the rows are concatenated */
} ch_rows_kind;

typedef struct ch_rows_how {
    ch_rows_kind kind;
    /* PADDED: the padded shape of each part; a size of -1 is the largest of the batch. NULL:
     * all sizes are -1. */
    const ch_shape *shape;
    const double   *value; /* PADDED: the padding value of each part; NULL: 0 */
} ch_rows_how;

/* Sets the parts of `d`, for infer, to the parts of `in` with a new axis 0 of `rows` rows; -1:
 * the number is unknown. */
ch_status ch__rows_spec(ch_dataset *d, const ch_dataset *in, int64_t rows, ch_rows_kind kind);

/* A ragged component has two parts, values and row splits. They are found by their names
 * (tensor/ragged.h), so they are found in the outputs of steps and functions too. Both
 * functions return the index of the other part, or -1 if the part does not belong to a ragged
 * component. */
int ch__rows_splits_of(const ch_dataset *d, int values);
int ch__rows_values_of(const ch_dataset *d, int splits);
/* Returns the number of rows of every element of `d`; -1: unknown; -2: the parts differ. */
int64_t ch__rows_known(const ch_dataset *d);
/* Sets the number of rows in the specs of all parts; -1: unknown. */
void ch__rows_set(ch_dataset *d, int64_t rows);
/* Computes the number of rows of an element of `d`. Returns INVALID_ARGUMENT if its parts have
 * different numbers of rows, or if row splits are invalid; `stage` begins the message. */
ch_status ch__rows_count(const ch_dataset *d, const ch_element *e, const char *stage,
                         int64_t *out);
/* Returns row split r: the index of the first value of row r, which is the end of row r - 1. */
static inline int64_t ch__row_split(const ch_part *splits, int64_t r)
{
    int64_t at;

    memcpy(&at, (const char *)splits->data + (size_t)r * sizeof(at), sizeof(at));
    return at;
}

/* Returns true if a cursor of the stage `split` is between two batches: all pieces of the last
 * batch were returned. */
bool ch__split_is_between(const ch_cursor *c);

/* Returns the number of batches of `size` that `n` elements make. `n` may be CH_UNKNOWN or
 * CH_INFINITE; the result is then the same. */
static inline int64_t ch__rows_batches(int64_t n, int64_t size, bool drop_remainder)
{
    return n < 0 ? n : n / size + (!drop_remainder && n % size != 0);
}

/* Joins `n` elements, at least 1, into an element of `d`. Borrows the elements and copies their
 * data. The memory of a large result comes from the pool. */
ch_status ch__rows_join(const ch_dataset *d, const ch_rows_how *how, int n,
                        ch_element *const *row, ch_block_pool *pool, ch_element **out);

/* ---- stages that batch with a workqueue ---- */

/* The base of the cursors of these stages. */
typedef struct ch_batching {
    ch_cursor      base;
    ch_block_pool *pool; /* memory of the batches */
    ch_elements    rows; /* rows pulled so far for the next batch */
} ch_batching;

/* Implements ch_workqueue_ops.pull: adds `n` input elements to the job. If the input fails,
 * adds only the error; the elements read before stay in `rows` for the next job. */
void ch__rows_pull(ch_batching *b, ch_data_job *job, int n, bool drop_remainder);
/* Implements ch_workqueue_ops.make: joins the elements of the job. */
void ch__rows_make(ch_batching *b, const ch_rows_how *how, ch_data_job *job);

/* Implement the functions of the stage. `size` is the number of rows of a full batch. */
ch_status ch__rows_open(ch_batching *b, const ch_workqueue_ops *ops, int size);
ch_status ch__rows_rewind(ch_cursor *c);
void      ch__rows_save(ch_cursor *c, ch_saver *s);
ch_status ch__rows_load(ch_cursor *c, ch_loader *l);
void      ch__rows_close(ch_cursor *c);
/* clang-format off */
#define CH_BATCHED                                                                             \
    .next = ch__queued_next, .rewind = ch__rows_rewind,                                        \
    .can_step_back = ch__queued_can_step_back,                                                 \
    .save = ch__rows_save, .load = ch__rows_load
/* clang-format on */

#endif
