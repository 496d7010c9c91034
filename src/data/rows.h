/* data/rows.h -- elements as the rows of one element.   SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_ROWS_H
#define DATA_ROWS_H

#include <string.h>

#include "data/workqueue.h"
#include "file/block.h"

typedef enum ch_rows_kind {
    CH_ROWS_EQUAL,  /* all of one shape */
    CH_ROWS_RAGGED, /* a part whose first size differs becomes values and row splits */
    CH_ROWS_PADDED, /* behind their ends */
    CH_ROWS_APPEND  /* each is rows already: all of them, one after the other */
} ch_rows_kind;

typedef struct ch_rows_how {
    ch_rows_kind    kind;
    const ch_shape *shape; /* PADDED: of each part; a size of -1 is the largest. NULL: all -1 */
    const double   *value; /* PADDED: of each part; NULL: 0 */
} ch_rows_how;

/* The parts of `in` with a new axis 0 of `rows`, -1: not known. */
ch_status ch__rows_spec(ch_dataset *d, const ch_dataset *in, int64_t rows, ch_rows_kind kind);

/* A ragged component is two parts, which are found by their names (tensor/ragged.h), behind steps and
 * functions too. Returns the other part; -1 if the part is none of a ragged component. */
int ch__rows_splits_of(const ch_dataset *d, int values);
int ch__rows_values_of(const ch_dataset *d, int splits);
/* Rows that every element of `d` has in all its parts; -1: not known, -2: they are not equal. */
int64_t ch__rows_known(const ch_dataset *d);
/* Parts have `rows` rows, -1: any number. */
void ch__rows_set(ch_dataset *d, int64_t rows);
/* How many rows an element of `d` has; an error where its parts have not equally many, or where
 * splits are not what they should be, for `stage`. */
ch_status ch__rows_count(const ch_dataset *d, const ch_element *e, const char *stage,
                         int64_t *out);
/* Where row r begins, which is where the one before it ends. */
static inline int64_t ch__row_split(const ch_part *splits, int64_t r)
{
    int64_t at;

    memcpy(&at, (const char *)splits->data + (size_t)r * sizeof(at), sizeof(at));
    return at;
}

/* How many batches of `size` there are of `n` elements, which may be CH_UNKNOWN or CH_INFINITE. */
static inline int64_t ch__rows_batches(int64_t n, int64_t size, bool drop_remainder)
{
    return n < 0 ? n : n / size + (!drop_remainder && n % size != 0);
}

/* `n` elements, at least one, as one element of dataset `d`, whose memory is the pool's. */
ch_status ch__rows_join(const ch_dataset *d, const ch_rows_how *how, int n,
                        ch_element *const *row, ch_block_pool *pool, ch_element **out);

/* ---- for belts ---- */

/* A cursor that makes batches: what those of such stages begin with. */
typedef struct ch_batching {
    ch_cursor      base;
    ch_block_pool *pool; /* of the batches' memory */
    ch_elements    rows; /* of the batch that is being pulled */
} ch_batching;

/* Pull: `n` elements, or an error, and then what came before it waits for the next item. */
void ch__rows_pull(ch_batching *b, ch_data_job *i, int n, bool drop_remainder);
/* Make: the elements as one. */
void ch__rows_make(ch_batching *b, const ch_rows_how *how, ch_data_job *i);

ch_status ch__rows_open(ch_batching *b, const ch_workqueue_ops *ops);
ch_status ch__rows_rewind(ch_cursor *c);
void      ch__rows_save(ch_cursor *c, ch_saver *s);
ch_status ch__rows_load(ch_cursor *c, ch_loader *l);
void      ch__rows_close(ch_cursor *c);
/* clang-format off */
#define CH_BATCHED                                                                             \
    .next = ch__queued_next, .rewind = ch__rows_rewind,                                        \
    .save = ch__rows_save, .load = ch__rows_load
/* clang-format on */

#endif
