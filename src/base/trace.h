/* base/trace.h -- writes a trace file for chrome://tracing and Perfetto.
 *
 * The file is a JSON array in Chrome's trace event format. Each span belongs to a track, which
 * is identified by its name: a device, the training loop, or a thread. Spans of a track may be
 * nested. A process has at most one open trace file. The setting COHORT_TRACE opens a file at
 * the first call of ch__trace_is_on, which every run of a function calls. The file is closed
 * when the process exits, unless it was closed before.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_TRACE_H
#define BASE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "cohort/status.h"

/* Creates the file, or truncates it. FAILED_PRECONDITION: a trace file is open already. */
CH_MUST_CHECK ch_status ch__trace_open(const char *path);
/* Completes and closes the file. Returns the first error of writing it; CH_OK if no file is
 * open. */
CH_MUST_CHECK ch_status ch__trace_close(void);
/* Returns true if a file is open. The first call opens the file of COHORT_TRACE, unless
 * ch__trace_open or ch__trace_close was called before. */
bool ch__trace_is_on(void);

/* Writes a span. Does nothing if no file is open. Times are those of ch__now_ns. Names are
 * copied and truncated to 200 bytes. Several threads may call it; it is faster if each thread
 * has its own track. After COHORT_TRACE_LIMIT events, further events are only counted. Their
 * number is written to the file and to the log. */
void ch__trace_span(const char *track, const char *name, int64_t begin_ns, int64_t end_ns);
/* Begin and end a span. ch__trace_begin returns the time for ch__trace_end; 0: no file is open,
 * and ch__trace_end does nothing. A track of NULL is that of the calling thread. */
int64_t ch__trace_begin(void);
void    ch__trace_end(const char *track, const char *name, int64_t began_ns);

#endif
