/* data/rows.h -- elements as the rows of one element.   SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_ROWS_H
#define DATA_ROWS_H

#include "data/belt.h"
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

/* How many batches of `size` there are of `n` elements, which may be CH_UNKNOWN or CH_INFINITE. */
static inline int64_t ch__rows_batches(int64_t n, int64_t size, bool drop_remainder)
{
    return n < 0 ? n : n / size + (!drop_remainder && n % size != 0);
}

/* `n` elements, at least one, as one element of dataset `d`, whose memory is the pool's. */
ch_status ch__rows_join(const ch_dataset *d, const ch_rows_how *how, int n,
                        ch_element *const *row, ch_block_pool *pool, ch_element **out);

/* For belts. Pull: `n` elements, and the errors among them. Make: the errors, then the elements as one. */
void ch__rows_pull(ch_item *i, ch_cursor *from, int n, bool drop_remainder);
void ch__rows_make(const ch_dataset *d, const ch_rows_how *how, ch_block_pool *pool,
                   ch_item *i);

#endif
