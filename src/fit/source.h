/* fit/source.h -- data of whatever kind as batches for the replicas.   SPDX-License-Identifier:
 * Apache-2.0 */
#ifndef FIT_SOURCE_H
#define FIT_SOURCE_H

#include "fit/compiled.h"

/* How arrays become batches; and which of their rows. */
typedef struct ch_array_options {
    int64_t  batch;
    bool     shuffles;
    uint64_t seed;
    double   from, to;  /* shares of the rows: 0 and 1 are all */
    bool     is_direct; /* rows of one batch are handed out as they are, without a pipeline */
} ch_array_options;

typedef struct ch_source {
    ch_iterator *it;
    int64_t      steps; /* of one pass; CH_INFINITE, CH_UNKNOWN: of an iterator, one of these */
    bool         was_read;
    bool         is_given; /* the caller's iterator: it may have ended already */
    ch_tuple    *whole;    /* instead of `it`: the only batch; else NULL */
} ch_source;

/* Whether there is data at all. */
bool ch__data_is_given(const ch_data *d);
/* `call` is for messages. */
ch_status ch__source_open(const char *call, const ch_compiled *c, const ch_data *d,
                          const ch_array_options *how, ch_source *out);
/* A pass of `steps` ends; with 0 of them the data must. */
ch_status ch__source_check_end(const char *call, const ch_source *s, int64_t steps);
/* From the beginning, for another pass; the first call does nothing. */
ch_status ch__source_restart(ch_source *s);
/* The next batch; NULL at the end. An iterator of the caller's goes on where it is, and begins
 * anew if it is at its end when it is first asked. */
ch_status ch__source_next(ch_source *s, ch_tuple **out);
/* A batch as they all are, but without rows; NULL: its shape is not known. */
ch_status ch__source_no_rows(ch_source *s, ch_tuple **out);
void      ch__source_close(ch_source *s);

#endif
