/* cohort/log.h -- the log: messages of the library about its decisions, and warnings.
 *
 * The library passes log records to a sink, a function that the program may set. Without a
 * sink, records of CH_LOG_PRINT and above go to stderr, a line each, and others are dropped.
 *
 *     static void sink(const ch_log_record *r, void *arg)
 *     {
 *         fprintf(arg, "%s %s: %s\n", ch_log_level_name(r->level), r->code, r->text);
 *     }
 *
 *     ch_log_set_sink(sink, stdout, CH_LOG_INFO);
 *
 * The process has a single sink. Any thread may call it, but only one at a time. A sink must
 * not call ch_log_set_sink. It may call other functions of the library; records that these
 * would log are dropped. A record and its texts are valid until the sink returns.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_LOG_H
#define COHORT_LOG_H

#include "cohort/status.h"

typedef enum ch_log_level {
    CH_LOG_DEBUG,   /* every call; for developers of the library */
    CH_LOG_INFO,    /* decisions made once: kernel, sharding, cluster */
    CH_LOG_PRINT,   /* output that the program asked for with ch_print */
    CH_LOG_WARNING, /* the program works, but perhaps not as intended */
    CH_LOG_ERROR    /* an error that no call returns */
} ch_log_level;

typedef struct ch_log_record {
    ch_log_level level;
    const char  *code; /* short and stable, such as "program-cache"; for tests and filters */
    const char  *text; /* a single line, without a newline */
} ch_log_record;

/* Receives a record. `arg` is the argument of ch_log_set_sink. */
typedef void (*ch_log_sink)(const ch_log_record *record, void *arg);

/* Sets the sink for records of level `least` and above. A NULL sink restores the default. `arg`
 * must stay valid until another sink is set. */
CH_API void ch_log_set_sink(ch_log_sink sink, void *arg, ch_log_level least);

CH_API const char *ch_log_level_name(ch_log_level level); /* such as "warning" */

#endif
