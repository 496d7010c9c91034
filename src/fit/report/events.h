/* fit/report/events.h -- event files for TensorBoard.
 *
 *     rc = ch__events_open("logs/train", 10000, &e);
 *     rc = ch__events_add(e, epoch,
 *                         &(ch_summary){CH_SUMMARY_SCALAR, .tag = "loss", .value = 0.5});
 *     rc = ch__events_close(e);
 *
 * An event file is a TFRecord file (file/record.h) of Event messages. The messages are encoded
 * by hand, because only a few fields are used. TensorBoard may read the file while it grows:
 * records are appended whole, unless the process is killed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FIT_REPORT_EVENTS_H
#define FIT_REPORT_EVENTS_H

#include "base/bytes_builder.h"
#include "cohort/tensor.h"

enum { CH_HISTOGRAM_BUCKETS = 30 };

/* Buckets (from, to, count) in ascending order. Values that are not finite are not counted. */
typedef struct ch_histogram {
    int    n;
    double bucket[CH_HISTOGRAM_BUCKETS][3];
} ch_histogram;

/* Makes the histogram of n numbers. It has no bucket if no number is finite, and a single
 * bucket around the value if all are equal. */
ch_histogram ch__histogram_of(ch_dtype dtype, int64_t n, const void *x);

typedef enum ch_summary_kind {
    CH_SUMMARY_SIMPLE, /* `value` in the format of TensorFlow 1 */
    CH_SUMMARY_SCALAR, /* `value` */
    CH_SUMMARY_HISTOGRAM,
    CH_SUMMARY_TEXT /* Markdown */
} ch_summary_kind;

typedef struct ch_summary {
    ch_summary_kind     kind;
    const char         *tag;   /* borrowed */
    double              value; /* written as f32 */
    const ch_histogram *histogram;
    ch_str              text;
} ch_summary;

/* Append an encoded Event: the first message of a file, or a message with a summary.
 * `wall_time` is in seconds since 1970. */
void ch__event_version(ch_bytes_builder *p, double wall_time);
void ch__event_summary(ch_bytes_builder *p, double wall_time, int64_t step,
                       const ch_summary *s);

typedef struct ch_events ch_events;

/* Creates a new file in a directory, which is created if it does not exist. Records are
 * buffered. They are written when the buffer is full, at the first add after `flush_ms`
 * milliseconds without a write, and by ch__events_flush. */
CH_MUST_CHECK ch_status ch__events_open(const char *folder, int64_t flush_ms, ch_events **out);
/* Adds an event with a summary. After a failed write all later calls fail. */
CH_MUST_CHECK ch_status ch__events_add(ch_events *e, int64_t step, const ch_summary *s);
CH_MUST_CHECK ch_status ch__events_flush(ch_events *e);
/* Writes the buffered records, and closes the file and frees `e` also on an error. Returns
 * CH_OK if an earlier call has returned the write error. NULL is allowed. */
CH_MUST_CHECK ch_status ch__events_close(ch_events *e);
/* Returns the path of the file; borrowed. */
const char *ch__events_path(const ch_events *e);

#endif
