/* fit/source.h -- input data of any kind, read as batches for the replicas.
 *
 * A ch_source reads a ch_data: a dataset, arrays, or an iterator of the caller. Each batch has
 * a part for each replica.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_SOURCE_H
#define FIT_SOURCE_H

#include "fit/compiled.h"

/* How arrays are split into batches, and which of their rows are used. */
typedef struct ch_array_options {
    int64_t  batch; /* rows of a batch */
    bool     shuffles;
    uint64_t seed;
    double   from, to; /* first and end row, as shares of all rows: 0 and 1 are all */
    /* If all rows fit in one batch, use them directly, without a pipeline. */
    bool is_direct;
} ch_array_options;

typedef struct ch_source {
    ch_iterator *it;
    /* Steps of a pass; CH_INFINITE or CH_UNKNOWN; never a number for an iterator. */
    int64_t   steps;
    bool      was_read;   /* a batch was read since the last restart */
    bool      is_callers; /* `it` is the caller's iterator; it may have ended already */
    ch_tuple *whole;      /* the only batch, if the source has no `it`; else NULL */
} ch_source;

/* Returns true if the struct names any data. */
bool ch__data_is_given(const ch_data *d);
/* Opens a source for the strategy of `c`. The data is referenced. `how` is used for arrays
 * only. `call` is the name of the public function, for messages. On an error `out` may still be
 * closed. */
ch_status ch__source_open(const char *call, const ch_compiled *c, const ch_data *d,
                          const ch_array_options *how, ch_source *out);
/* Fails with INVALID_ARGUMENT if a pass would not end: the data is infinite and `steps` is
 * 0. */
ch_status ch__source_check_end(const char *call, const ch_source *s, int64_t steps);
/* Restarts the source for another pass. Does nothing if nothing was read since the last
 * restart. */
ch_status ch__source_restart(ch_source *s);
/* Returns the next batch in *out; NULL at the end of the data. The caller unrefs it. A caller's
 * iterator continues at its position. If it is at its end at the first read of a pass, it
 * restarts. */
ch_status ch__source_next(ch_source *s, ch_tuple **out);
/* Returns a batch without rows, with the shapes and dtypes of the others. *out is NULL if a
 * shape is not known. */
ch_status ch__source_no_rows(ch_source *s, ch_tuple **out);
void      ch__source_close(ch_source *s);

#endif
