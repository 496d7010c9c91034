/* cohort/log.h -- what the library has to say while it works.
 *
 * The library does not print. It hands records to one sink, which the program may set; without
 * one, what steps print, warnings and errors go to stderr, one line each, and the rest nowhere.
 *
 *     static void sink(const ch_log_record *r, void *arg)
 *     {
 *         fprintf(arg, "%s %s: %s\n", ch_log_level_name(r->level), r->code, r->text);
 *     }
 *     ch_log_set_sink(sink, logfile, CH_LOG_INFO);
 *
 * A sink may be called from any thread, by one thread at a time. It must not call back
 * into ch_log_set_sink.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_LOG_H
#define COHORT_LOG_H

#include "cohort/status.h"

typedef enum ch_log_level {
    CH_LOG_DEBUG,   /* every call: for the authors */
    CH_LOG_INFO,    /* decisions taken once: which kernel, which sharding, which cluster */
    CH_LOG_PRINT,   /* what the program asked to see: ch_print */
    CH_LOG_WARNING, /* works, but not as you may think */
    CH_LOG_ERROR    /* failed, and nobody else will tell you */
} ch_log_level;

typedef struct ch_log_record {
    ch_log_level level;
    const char  *code; /* short and stable, such as "program-cache"; for tests and filters */
    const char  *text; /* one line, no newline */
} ch_log_record;

typedef void (*ch_log_sink)(const ch_log_record *record, void *arg);

/* Sends records of `least` and above to `sink`; NULL restores the default. */
CH_API void ch_log_set_sink(ch_log_sink sink, void *arg, ch_log_level least);

CH_API const char *ch_log_level_name(ch_log_level level);

#endif
