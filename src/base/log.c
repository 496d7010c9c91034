/* base/log.c -- passes log records to the sink, which is called by a single thread at a time.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/fault.h"
#include "base/terminal.h"

enum { LOG_TEXT = CH_FAULT_TEXT + 256 }; /* bytes: an error message and its context */

/* The default sink. Prints a record with a single call of fprintf, so that lines of several
 * processes do not mix, and above the live line. */
static void sink_stderr(const ch_log_record *r, void *arg)
{
    (void)arg;
    ch__live_hide();
    fprintf(stderr, "cohort: %s [%s]: %s\n", ch_log_level_name(r->level), r->code, r->text);
    ch__live_show();
}

/* Protects sink and sink_arg. Held during calls of the sink. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ch_log_sink     sink = sink_stderr;
static void           *sink_arg;
/* Read without the lock, because every log call reads it. */
static atomic_int least_level = CH_LOG_PRINT;

/* True while this thread runs the sink. If the sink calls the library and the library logs, the
 * record is dropped; otherwise it would deadlock. */
static _Thread_local bool is_in_sink;

void ch_log_set_sink(ch_log_sink to, void *arg, ch_log_level least)
{
    pthread_mutex_lock(&lock);
    sink = to != NULL ? to : sink_stderr;
    sink_arg = arg;
    atomic_store(&least_level, (int)(to != NULL ? least : CH_LOG_PRINT));
    pthread_mutex_unlock(&lock);
}

const char *ch_log_level_name(ch_log_level level)
{
    static const char *const names[] = {
        [CH_LOG_DEBUG] = "debug",     [CH_LOG_INFO] = "info",   [CH_LOG_PRINT] = "print",
        [CH_LOG_WARNING] = "warning", [CH_LOG_ERROR] = "error",
    };

    return (unsigned)level <= CH_LOG_ERROR ? names[level] : "unknown";
}

bool ch__log_is_enabled(ch_log_level level)
{
    return (int)level >= atomic_load_explicit(&least_level, memory_order_relaxed);
}

/* Replaces newlines, which names and values of users may contain, because a record is one
 * line. */
static void make_one_line(char *text)
{
    for (; *text != '\0'; text++)
        if (*text == '\n' || *text == '\r')
            *text = ' ';
}

/* Tests the level again under the lock, because ch_log_set_sink may have been called
 * meanwhile. */
static void deliver(const ch_log_record *record)
{
    pthread_mutex_lock(&lock);
    is_in_sink = true;
    if (ch__log_is_enabled(record->level))
        sink(record, sink_arg);
    is_in_sink = false;
    pthread_mutex_unlock(&lock);
}

void ch__log(ch_log_level level, const char *code, const char *format, ...)
{
    char    text[LOG_TEXT];
    va_list args;

    if (is_in_sink || !ch__log_is_enabled(level))
        return;
    va_start(args, format);
    if (vsnprintf(text, sizeof(text), format, args) < 0)
        snprintf(text, sizeof(text), "%s", format);
    va_end(args);
    make_one_line(text);
    deliver(&(ch_log_record){.level = level, .code = code, .text = text});
}
