/* base/trace.c -- writes the trace file.
 *
 * Modules write spans: graph/timing.c for runs and their calls, fit/loop.c for the training
 * loop. Main structs: `track`, a buffer of events for each track, and `file`, the open file.
 *
 * Invariants:
 *   1. A track has a block of text for its events, and a lock. There is no contention if each
 *      thread has its own track. A full block is written to the file. So the number of tracks
 *      bounds the memory.
 *   2. Tracks are never removed. A pointer to a track stays valid.
 *   3. Lock order: lifecycle_lock, the lock of a track, the lock of the file. Nothing is logged
 *      while a lock is held, because a log sink may run a function.
 *   4. A forked child inherits the open file and does not write to it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* for program_invocation_short_name, pthread_getname_np and gettid */
#include "base/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/config.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sys.h"
#include "base/thread.h"

enum {
    MAX_TRACKS = 320, /* more than the replicas of a process */
    TRACK_NAME = 96,
    SPAN_NAME = 200,                  /* bytes of a name that are written */
    EVENT_TEXT = 6 * SPAN_NAME + 128, /* escaping may turn a byte into six */
    BLOCK = 64 << 10                  /* bytes of the buffer of a track */
};

typedef struct track {
    pthread_mutex_t lock; /* guards the members after `name` */
    char            name[TRACK_NAME];
    bool            is_named; /* the name has been written to the current file */
    char           *text;     /* buffer of BLOCK bytes; NULL: not allocated */
    size_t          used;
} track;

static track      tracks[MAX_TRACKS];
static atomic_int n_tracks; /* changed with lifecycle_lock held */

/* UNKNOWN: the setting COHORT_TRACE has not been read yet. */
typedef enum trace_state { UNKNOWN, OFF, ON } trace_state;
static atomic_int state = UNKNOWN;
static atomic_int owner; /* process that opened the file; 0: none */

/* Guards opening, closing and new tracks. */
static pthread_mutex_t lifecycle_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    pthread_mutex_t lock;
    bool            is_open; /* changed with lifecycle_lock held too */
    int             fd;
    char           *path;
    int64_t         origin_ns;
    ch_fault        fault; /* first error of writing */
} file = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Atomic int64_t n_events, n_dropped;
static _Atomic int64_t limit; /* largest number of events in this file */

/* ---- text ---- */

/* Returns the number of bytes of the UTF-8 character at s; 0: invalid. */
static int utf8_length(const unsigned char *s)
{
    int n = s[0] < 0x80 ? 1 : s[0] < 0xC2 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;

    for (int i = 1; i < n; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    if (n == 3 && ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] >= 0xA0)))
        return 0; /* overlong, or half of a UTF-16 surrogate pair */
    if (n == 4 &&
        (s[0] > 0xF4 || (s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] >= 0x90)))
        return 0;
    return n;
}

/* Escapes a name for a JSON string, and truncates it. `to` has space for 6 * SPAN_NAME + 1
 * bytes. Returns `to`. */
static const char *json_escape(const char *name, char *to)
{
    const unsigned char *s = (const unsigned char *)name;
    char                *at = to;

    while (*s != '\0') {
        int n = utf8_length(s);

        if (s - (const unsigned char *)name + (n > 0 ? n : 1) > SPAN_NAME)
            break;
        if (n == 0)
            *at++ = '?';
        else if (*s < 0x20 || *s == '"' || *s == '\\' || *s == 0x7F)
            at += snprintf(at, 7, "\\u%04x", *s);
        else
            at = (char *)memcpy(at, s, (size_t)n) + n;
        s += n > 0 ? n : 1;
    }
    *at = '\0';
    return to;
}

/* ---- the file ---- */

/* Appends to the file. After an error nothing more is written, because the file may end in the
 * middle of an event. */
static void write_text(const char *text, size_t n)
{
    pthread_mutex_lock(&file.lock);
    while (n > 0 && file.is_open && atomic_load(&owner) == getpid() &&
           !ch__fault_is_set(&file.fault)) {
        ssize_t done = ch__sys_write(file.fd, text, n);

        if (done > 0) {
            text += done;
            n -= (size_t)done;
        } else {
            ch__fault_record(
                &file.fault,
                ch__fail_errno(done == 0 ? ENOSPC : errno,
                               "trace %s: the file could not be written completely", file.path),
                -1, NULL);
            atomic_store(&state, OFF);
        }
    }
    pthread_mutex_unlock(&file.lock);
}

/* Writes a metadata event: the name of the process or of a track. `before` is the separator. */
static void write_metadata(const char *before, int tid, const char *name, const char *key,
                           const char *value)
{
    char escaped[6 * SPAN_NAME + 1], text[EVENT_TEXT];
    int  n = snprintf(
         text, sizeof(text),
         "%s{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"args\":{\"%s\":\"%s\"}}",
         before, (int)getpid(), tid, name, key, json_escape(value, escaped));

    write_text(text, (size_t)n);
}

static void flush(track *t)
{
    write_text(t->text, t->used);
    t->used = 0;
}

static void begin_file(int fd, char *path)
{
    pthread_mutex_lock(&file.lock);
    file.fd = fd;
    file.path = path;
    file.origin_ns = ch__now_ns();
    file.is_open = true;
    ch__fault_clear(&file.fault);
    pthread_mutex_unlock(&file.lock);
    atomic_store(&owner, getpid());
    atomic_store(&n_events, 0);
    atomic_store(&n_dropped, 0);
    atomic_store(&limit, ch__config()->trace_limit);
}

/* Closes the file. Returns the first error of writing or closing it. */
static ch_status end_file(void)
{
    ch_status rc;

    pthread_mutex_lock(&file.lock);
    rc = ch__fault_raise(&file.fault);
    if (ch__sys_close(file.fd) != 0 && rc == CH_OK)
        rc = ch__fail_errno(errno, "trace %s: the file could not be closed", file.path);
    file.is_open = false;
    ch__free(file.path);
    file.path = NULL;
    pthread_mutex_unlock(&file.lock);
    return rc;
}

static ch_status open_file(const char *path)
{
    int   fd;
    char *own;

    if (file.is_open)
        return ch__fail(
            CH_FAILED_PRECONDITION,
            "trace %s: trace %s is open already; a process can write one trace at a time", path,
            file.path);
    own = ch__strdup(path);
    if (own == NULL)
        return ch__fail_memory("a trace");
    fd = ch__sys_open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0) {
        ch__free(own);
        return ch__fail_errno(errno, "trace %s", path);
    }
    begin_file(fd, own);
    write_metadata("[\n", 0, "process_name", "name", program_invocation_short_name);
    if (ch__fault_is_set(&file.fault))
        return end_file();
    atomic_store(&state, ON);
    return CH_OK;
}

ch_status ch__trace_open(const char *path)
{
    ch_status rc = ch__check_not_null("trace", "its path", path, NULL, NULL);

    if (rc != CH_OK)
        return rc;
    pthread_mutex_lock(&lifecycle_lock);
    rc = open_file(path);
    pthread_mutex_unlock(&lifecycle_lock);
    return rc;
}

static void close_tracks(void)
{
    for (int i = 0; i < atomic_load(&n_tracks); i++) {
        track *t = &tracks[i];

        pthread_mutex_lock(&t->lock);
        flush(t);
        ch__free(t->text);
        t->text = NULL;
        t->is_named = false;
        pthread_mutex_unlock(&t->lock);
    }
}

/* Ends the JSON array. The number of dropped events is shown beside the name of the process. */
static void write_end(void)
{
    char    labels[96];
    int64_t dropped = atomic_load(&n_dropped);

    if (dropped > 0) {
        snprintf(labels, sizeof(labels),
                 "%lld events are missing: the trace is full (COHORT_TRACE_LIMIT is %lld)",
                 (long long)dropped, (long long)atomic_load(&limit));
        write_metadata(",\n", 0, "process_labels", "labels", labels);
    }
    write_text("\n]\n", 3);
}

static ch_status close_file(void)
{
    if (!file.is_open)
        return CH_OK;
    atomic_store(&state, OFF);
    close_tracks();
    write_end();
    return end_file();
}

ch_status ch__trace_close(void)
{
    int64_t   dropped;
    bool      was_open;
    ch_status rc;

    pthread_mutex_lock(&lifecycle_lock);
    was_open = file.is_open;
    rc = close_file();
    dropped = was_open ? atomic_load(&n_dropped) : 0;
    pthread_mutex_unlock(&lifecycle_lock);
    if (dropped > 0)
        ch__log(CH_LOG_WARNING, "trace",
                "the trace is full after %lld events; %lld later events were dropped; "
                "COHORT_TRACE_LIMIT sets the limit",
                (long long)atomic_load(&limit), (long long)dropped);
    return rc;
}

/* Closes the file. An error is logged, because COHORT_TRACE has no caller that could receive
 * it. */
__attribute__((destructor)) static void close_at_exit(void)
{
    if (atomic_load(&owner) == getpid() && ch__trace_close() != CH_OK)
        ch__log(CH_LOG_WARNING, "trace", "%s", ch_error_message());
}

/* Opens the file of COHORT_TRACE, once. Returns true if a file is open. */
static bool open_from_setting(void)
{
    const char *path = ch__config()->trace;
    ch_status   rc = CH_OK;

    pthread_mutex_lock(&lifecycle_lock);
    if (atomic_load(&state) == UNKNOWN) {
        atomic_store(&state, OFF);
        rc = path[0] != '\0' ? open_file(path) : CH_OK;
    }
    pthread_mutex_unlock(&lifecycle_lock);
    if (rc != CH_OK)
        ch__log(CH_LOG_WARNING, "trace",
                "%s; no trace is written, although COHORT_TRACE is set", ch_error_message());
    return atomic_load(&state) == ON;
}

bool ch__trace_is_on(void)
{
    int is = atomic_load_explicit(&state, memory_order_acquire);

    return is == ON || (is == UNKNOWN && open_from_setting());
}

/* ---- events ---- */

static track *find_track(const char *name)
{
    int n = atomic_load_explicit(&n_tracks, memory_order_acquire);

    for (int i = 0; i < n; i++)
        if (strncmp(tracks[i].name, name, TRACK_NAME - 1) == 0)
            return &tracks[i];
    return NULL;
}

/* Finds or adds a track; NULL: too many tracks. */
static track *track_of(const char *name)
{
    track *t = find_track(name);
    int    n;

    if (t != NULL)
        return t;
    pthread_mutex_lock(&lifecycle_lock);
    t = find_track(name);
    n = atomic_load(&n_tracks);
    if (t == NULL && n < MAX_TRACKS) {
        t = &tracks[n];
        pthread_mutex_init(&t->lock, NULL);
        snprintf(t->name, sizeof(t->name), "%s", name);
        atomic_store_explicit(&n_tracks, n + 1, memory_order_release);
    }
    pthread_mutex_unlock(&lifecycle_lock);
    return t;
}

/* Makes space for an event in the buffer. Returns false if memory is exhausted. */
static bool reserve_event(track *t)
{
    if (t->text == NULL) {
        t->text = ch__malloc(BLOCK);
        t->used = 0;
    } else if (t->used + EVENT_TEXT > BLOCK) {
        flush(t);
    }
    return t->text != NULL;
}

static int tid_of(const track *t)
{
    return (int)(t - tracks) + 1;
}

/* Appends a span. The format has times in microseconds, here with three decimals. */
static void put_span(track *t, const char *name, int64_t begin_ns, int64_t end_ns)
{
    char    escaped[6 * SPAN_NAME + 1];
    int64_t at = begin_ns - file.origin_ns, ns = end_ns - begin_ns;
    int     n = snprintf(t->text + t->used, EVENT_TEXT,
                         ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%lld.%03d,"
                             "\"dur\":%lld.%03d,\"name\":\"%s\"}",
                         atomic_load(&owner), tid_of(t), (long long)(at / 1000), (int)(at % 1000),
                         (long long)(ns / 1000), (int)(ns % 1000), json_escape(name, escaped));

    t->used += (size_t)n;
}

/* Adds a span, with the track's lock held. Returns false if the event is dropped. */
static bool add_span(track *t, const char *name, int64_t begin_ns, int64_t end_ns)
{
    if (atomic_load(&state) != ON || begin_ns < file.origin_ns || end_ns < begin_ns)
        return true; /* the span does not belong to this file */
    if (!reserve_event(t))
        return false;
    if (!t->is_named)
        write_metadata(",\n", tid_of(t), "thread_name", "name", t->name);
    t->is_named = true;
    put_span(t, name, begin_ns, end_ns);
    return true;
}

void ch__trace_span(const char *track_name, const char *name, int64_t begin_ns, int64_t end_ns)
{
    track *t;
    bool   is_lost;

    if (atomic_load_explicit(&state, memory_order_acquire) != ON)
        return;
    t = track_of(track_name);
    if (t == NULL || atomic_fetch_add(&n_events, 1) >= atomic_load(&limit)) {
        atomic_fetch_add(&n_dropped, 1);
        return;
    }
    pthread_mutex_lock(&t->lock);
    is_lost = !add_span(t, name, begin_ns, end_ns);
    pthread_mutex_unlock(&t->lock);
    if (is_lost)
        atomic_fetch_add(&n_dropped, 1);
}

int64_t ch__trace_begin(void)
{
    return ch__trace_is_on() ? ch__now_ns() : 0;
}

void ch__trace_end(const char *track_name, const char *name, int64_t began_ns)
{
    char    thread[16] = "", own[48];
    int64_t now;

    if (began_ns == 0)
        return;
    now = ch__now_ns();
    if (track_name == NULL) {
        (void)pthread_getname_np(pthread_self(), thread, sizeof(thread));
        snprintf(own, sizeof(own), "%s (thread %ld)", thread, (long)gettid());
        track_name = own;
    }
    ch__trace_span(track_name, name, began_ns, now);
}
