/* fit/events.h -- event files: what TensorBoard reads.
 *
 *     rc = ch__events_open("logs/train", 10000, &e);
 *     rc = ch__events_add(e, epoch,
 *                         &(ch_summary){CH_SUMMARY_SCALAR, .tag = "loss", .value = 0.5});
 *     rc = ch__events_close(e);
 *
 * A file of records (file/record.h), each a message Event, written by hand since they are few.
 * It is appended to while TensorBoard reads it: a record is written whole, or not at all, but
 * for a process that is killed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_EVENTS_H
#define FIT_EVENTS_H

#include "cohort/tensor.h"
#include "fit/bytes_builder.h"

enum { CH_HISTOGRAM_BUCKETS = 30 };

/* (from, to, how many), in order; those that are not finite are left out. */
typedef struct ch_histogram {
    int    n;
    double bucket[CH_HISTOGRAM_BUCKETS][3];
} ch_histogram;

/* Of n numbers of a type: none if none is finite, one bucket around them if they are all the
 * same. */
ch_histogram ch__histogram_of(ch_dtype dtype, int64_t n, const void *x);

typedef enum ch_summary_kind {
    CH_SUMMARY_SIMPLE, /* `value`, as TensorFlow 1 wrote it */
    CH_SUMMARY_SCALAR, /* `value` */
    CH_SUMMARY_HISTOGRAM,
    CH_SUMMARY_TEXT /* Markdown */
} ch_summary_kind;

typedef struct ch_summary {
    ch_summary_kind     kind;
    const char         *tag;
    double              value; /* becomes an f32 */
    const ch_histogram *histogram;
    ch_str              text;
} ch_summary;

/* The messages: the first of a file, and one with a summary. `wall_time` is in seconds since
 * 1970. */
void ch__event_version(ch_bytes_builder *p, double wall_time);
void ch__event_summary(ch_bytes_builder *p, double wall_time, int64_t step,
                       const ch_summary *s);

typedef struct ch_events ch_events;

/* A new file in a folder, which is made if it is not there. What is added is written when there
 * is much of it, when `flush_ms` have passed since the last time, and when asked for. */
CH_MUST_CHECK ch_status ch__events_open(const char *folder, int64_t flush_ms, ch_events **out);
/* After one that failed to be written all fail. */
CH_MUST_CHECK ch_status ch__events_add(ch_events *e, int64_t step, const ch_summary *s);
CH_MUST_CHECK ch_status ch__events_flush(ch_events *e);
/* Ends it in any case; NULL is fine. */
CH_MUST_CHECK ch_status ch__events_close(ch_events *e);
const char             *ch__events_path(const ch_events *e);

#endif
