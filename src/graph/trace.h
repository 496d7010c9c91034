/* graph/trace.h -- a file that shows who did what when, for chrome://tracing and Perfetto.
 *
 * It is an array of events in JSON, Chrome's trace event format. Spans are on tracks, one for
 * each device, known by their names; within a track they lie beside each other or one in another.
 * One file at a time is open in a process. COHORT_TRACE opens one when a function is first run; it
 * is closed when the process ends, if nobody did before.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_TRACE_H
#define GRAPH_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "cohort/status.h"

/* Begins a file; what was in it is gone. FAILED_PRECONDITION: one is open. */
CH_MUST_CHECK ch_status ch__trace_open(const char *path);
/* Ends it, so that it is whole; CH_OK if none is open. The first error of writing it comes out here. */
CH_MUST_CHECK ch_status ch__trace_close(void);
/* Asks COHORT_TRACE, if nobody did anything about a trace before. */
bool ch__trace_is_on(void);

/* Does nothing if none is open. Times are ch__now_ns's. Names are copied, and cut at 200 bytes. May be called
 * by several threads, best each on a track of its own. Past COHORT_TRACE_LIMIT events in a file the rest are
 * counted; the file and a warning in the log say how many there were. */
void ch__trace_span(const char *track, const char *name, int64_t begin_ns, int64_t end_ns);

#endif
