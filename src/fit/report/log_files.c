/* fit/report/log_files.c -- callbacks that write logs to a file: CSV, or JSON lines.
 *
 * A log_file is the state of a callback of ch_callback_csv_log or ch_callback_json_log. Each
 * line is a single write, so that a reader of the growing file sees whole lines.
 *
 * The columns of a CSV file are the names of logs so far. If a new name appears (that of a
 * validation, after lines for steps), the file is rewritten through a temporary file with the
 * additional column, which is empty in the earlier lines. So a file always has one header, and
 * every line has all columns.
 *
 * A saved state counts the lines of the file, not its bytes, because an additional column
 * changes the bytes of all lines. The state also has the text of the last line, by which a load
 * recognises the file. The file is emptied as late as possible, by the first line, so that a
 * load finds the lines that the killed process wrote.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/bytes_builder.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sys.h"
#include "file/folder.h"
#include "file/writer.h"
#include "fit/callback.h"
#include "fit/report/json.h"
#include "fit/report/number.h"

typedef struct log_file {
    ch_callback_ops ops; /* own copy, because `events` has CH_ON_STEP only if every_steps > 0 */
    char           *path;
    int64_t         every_steps;
    /* `appends`: the file has lines that must be kept, of earlier runs or of an earlier
     * training. */
    bool is_json, appends;
    bool has_warned;
    int  fd;         /* -1: not open, because no training is running */
    bool is_regular; /* the open file is a regular file */
    bool
        truncates; /* the file has lines of an earlier program, which the first line replaces */
    bool             is_named; /* the name of the file is durable */
    int64_t          lines;    /* of the file, without the header */
    ch_bytes_builder last;     /* last of these lines as a C string, without its newline */
    ch_bytes_builder line;

    int    n, capacity; /* columns of a CSV file */
    char **column;
    bool   has_header; /* the file or `line` has a header */
} log_file;

/* ---- columns ---- */

static void forget_columns(log_file *l)
{
    for (int i = 0; i < l->n; i++)
        ch__free(l->column[i]);
    l->n = 0;
    l->has_header = false;
}

static ch_status add_column(log_file *l, const char *name, size_t bytes)
{
    char *own;

    for (int i = 0; i < l->n; i++)
        if (strlen(l->column[i]) == bytes && memcmp(l->column[i], name, bytes) == 0)
            return CH_OK;
    if (!ch__grow((void **)&l->column, &l->capacity, l->n + 1, sizeof(*l->column)))
        return ch__fail_memory(l->path);
    own = ch__calloc(bytes + 1, 1);
    if (own == NULL)
        return ch__fail_memory(l->path);
    memcpy(own, name, bytes);
    l->column[l->n++] = own;
    return CH_OK;
}

static void put_quoted(ch_bytes_builder *p, const char *name)
{
    if (name[0] != '\0' && strpbrk(name, ",\"\r\n \t") == NULL) {
        ch__bytes_builder_text(p, name);
        return;
    }
    ch__bytes_builder_add(p, "\"", 1);
    for (; *name != '\0'; name++) {
        if (*name == '"')
            ch__bytes_builder_add(p, "\"", 1);
        ch__bytes_builder_add(p, name, 1);
    }
    ch__bytes_builder_add(p, "\"", 1);
}

static void put_header(const log_file *l, ch_bytes_builder *p)
{
    for (int i = 0; i < l->n; i++) {
        ch__bytes_builder_add(p, ",", i > 0);
        put_quoted(p, l->column[i]);
    }
    ch__bytes_builder_add(p, "\n", 1);
}

/* Parses the header of a CSV file at the beginning of [at, end) and adds its columns. Sets
 * *rest to the address after its newline. */
static ch_status read_header(log_file *l, const char *at, const char *end, const char **rest)
{
    ch_bytes_builder name = {0};
    bool             is_quoted = false;
    ch_status        rc = CH_OK;

    for (; rc == CH_OK && at < end; at++) {
        if (*at == '"') {
            if (is_quoted && at + 1 < end && at[1] == '"')
                ch__bytes_builder_add(&name, at++, 1);
            else
                is_quoted = !is_quoted;
        } else if (!is_quoted && (*at == ',' || *at == '\n')) {
            rc = name.has_failed ? ch__fail_memory(l->path)
                                 : add_column(l, name.n > 0 ? name.at : "", (size_t)name.n);
            name.n = 0;
            if (*at == '\n')
                break;
        } else if (is_quoted || *at != '\r') {
            ch__bytes_builder_add(&name, at, 1);
        }
    }
    ch__bytes_builder_drop(&name);
    *rest = at < end ? at + 1 : end;
    return rc;
}

/* ---- the file ---- */

/* Reads the whole file into `all`, and sets *is_regular. Reads nothing and sets *is_regular to
 * false if the file does not exist, is not a regular file or, with O_NOFOLLOW in `flags`, is a
 * symbolic link. */
static ch_status read_file(const log_file *l, int flags, ch_bytes_builder *all,
                           bool *is_regular)
{
    struct stat about;
    int         fd = ch__sys_open(l->path, O_RDONLY | O_NONBLOCK | flags, 0);
    ch_status   rc = CH_OK;

    *is_regular = false;
    if (fd < 0 && (errno == ENOENT || errno == ELOOP || errno == ENXIO))
        return CH_OK;
    if (fd < 0 || ch__sys_stat(fd, &about) != 0)
        rc = ch__fail_errno(errno, "%s: cannot be read, so it cannot be appended to", l->path);
    else
        *is_regular = S_ISREG(about.st_mode);
    if (*is_regular)
        rc = ch__bytes_builder_read(all, fd, l->path);
    if (fd >= 0)
        ch__sys_close(fd);
    return rc;
}

/* Reads the header of an existing CSV file as read_header does, and checks that it is a header
 * of this kind of file. */
static ch_status read_own_header(log_file *l, const char *at, const char *end,
                                 const char **rest)
{
    ch_status rc = read_header(l, at, end, rest);

    l->has_header = true;
    if (rc != CH_OK || (l->n > 0 && strcmp(l->column[0], "epoch") == 0))
        return rc;
    return ch__fail(CH_INVALID_ARGUMENT,
                    "%s: cannot be appended to: its first line does not begin with \"epoch\"; "
                    "use another file, or do not append",
                    l->path);
}

/* Sets the last line to the text in [at, end), without a carriage return at its end. */
static ch_status set_last(log_file *l, const char *at, const char *end)
{
    ch__bytes_builder_clear(&l->last);
    ch__bytes_builder_add(&l->last, at, (size_t)(end - at) - (end > at && end[-1] == '\r'));
    ch__bytes_builder_add(&l->last, "", 1);
    return l->last.has_failed ? ch__fail_memory(l->path) : CH_OK;
}

/* Counts at most `most` lines in [at, end), and records the last of them. Returns the address
 * after it. Text without a newline is no line. */
static ch_status count_lines(log_file *l, int64_t most, const char *at, const char *end,
                             const char **rest)
{
    const char *last = at, *stop;

    for (l->lines = 0; l->lines < most && at < end; l->lines++) {
        stop = memchr(at, '\n', (size_t)(end - at));
        if (stop == NULL)
            break;
        last = at;
        at = stop + 1;
    }
    *rest = at;
    return set_last(l, last, l->lines > 0 ? at - 1 : last);
}

/* Reads the header and counts the lines of an existing file, for appending. If its last line
 * has no newline, because a process was killed, adds the newline to `line`. */
static ch_status read_existing(log_file *l)
{
    ch_bytes_builder all = {0};
    const char      *rest;
    bool             is_regular;
    ch_status        rc = read_file(l, 0, &all, &is_regular);

    if (rc == CH_OK && all.n > 0 && all.at[all.n - 1] != '\n') {
        ch__bytes_builder_add(&l->line, "\n", 1);
        ch__bytes_builder_add(&all, "\n", 1);
    }
    rest = all.at;
    if (rc == CH_OK && all.n > 0 && !l->is_json)
        rc = read_own_header(l, all.at, all.at + all.n, &rest);
    if (rc == CH_OK && all.n > 0)
        rc = count_lines(l, INT64_MAX, rest, all.at + all.n, &rest);
    ch__bytes_builder_drop(&all);
    return rc;
}

static ch_status open_file(log_file *l)
{
    struct stat about;

    l->fd = ch__sys_open(l->path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (l->fd < 0 || ch__sys_stat(l->fd, &about) != 0)
        return ch__fail_errno(errno, "%s: cannot be written", l->path);
    l->is_regular = S_ISREG(about.st_mode);
    return CH_OK;
}

/* Cuts the file after `bytes` bytes. A pipe or a device has no bytes to remove. */
static ch_status truncate_file(log_file *l, int64_t bytes)
{
    l->truncates = false;
    if (l->is_regular && ch__sys_truncate(l->fd, bytes) != 0)
        return ch__fail_errno(errno, "%s: cannot be truncated", l->path);
    return CH_OK;
}

static ch_status close_file(log_file *l)
{
    int fd = l->fd;

    l->fd = -1;
    if (fd >= 0 && ch__sys_close(fd) != 0)
        return ch__fail_errno(errno, "%s: cannot be written", l->path);
    return CH_OK;
}

/* Opens the file at the beginning of a training. If the callback was used before, it
 * appends. */
static ch_status begin(log_file *l)
{
    ch_status rc = close_file(l);

    forget_columns(l);
    ch__bytes_builder_drop(&l->line);
    ch__bytes_builder_clear(&l->last);
    l->lines = 0;
    l->is_named = false;
    if (rc == CH_OK && l->appends)
        rc = read_existing(l);
    if (rc == CH_OK)
        rc = open_file(l);
    if (rc == CH_OK)
        rc = ch__bytes_builder_write(&l->line, l->fd, l->path);
    l->truncates = !l->appends;
    l->appends = l->appends || rc == CH_OK;
    return rc;
}

/* Appends the lines in [at, end), which follow the header, each with `more` empty columns. */
static void put_widened(ch_bytes_builder *to, const char *at, const char *end, int more)
{
    while (at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        const char *line_end = stop != NULL ? stop : end;

        if (line_end > at && line_end[-1] == '\r')
            line_end--;
        ch__bytes_builder_add(to, at, (size_t)(line_end - at));
        for (int i = 0; i < more; i++)
            ch__bytes_builder_add(to, ",", 1);
        ch__bytes_builder_add(to, "\n", 1);
        at = stop != NULL ? stop + 1 : end;
    }
}

static ch_status replace_file(log_file *l, const ch_bytes_builder *text)
{
    ch_writer *w = NULL;
    ch_status  rc;

    if (text->has_failed)
        return ch__fail_memory(l->path);
    /* The new file is synced, because lines of the old file may be durable already. */
    rc = ch__writer_open(l->path, &(ch_save_options){.compression = CH_UNCOMPRESSED}, &w);
    if (rc != CH_OK)
        return rc;
    rc = ch__writer_put(w, text->at, text->n);
    if (rc != CH_OK) {
        ch__writer_drop(w);
        return rc;
    }
    rc = ch__writer_commit(w);
    if (rc == CH_OK)
        rc = close_file(l);
    return rc == CH_OK ? open_file(l) : rc;
}

/* Rewrites the file with additional columns: those from index `old` on are new, and the header
 * in the file does not have them. If the file cannot be rewritten, drops the new columns and
 * warns once. */
static ch_status widen(log_file *l, int old)
{
    ch_bytes_builder all = {0}, wide = {0};
    const char      *rest = NULL;
    bool             is_regular;
    ch_status        rc = read_file(l, O_NOFOLLOW, &all, &is_regular);

    if (rc == CH_OK && !is_regular) {
        if (!l->has_warned)
            ch__log(
                CH_LOG_WARNING, "csv-log",
                "%s: no column for \"%s\": the log appeared after the header was written, and "
                "the file cannot be rewritten because it is not a regular file",
                l->path, l->column[old]);
        l->has_warned = true;
        while (l->n > old)
            ch__free(l->column[--l->n]);
    } else if (rc == CH_OK) {
        rc = read_header(l, all.at, all.at + all.n, &rest);
        put_header(l, &wide);
        put_widened(&wide, rest, all.at + all.n, l->n - old);
        if (rc == CH_OK)
            rc = replace_file(l, &wide);
    }
    ch__bytes_builder_drop(&all);
    ch__bytes_builder_drop(&wide);
    return rc;
}

/* ---- lines ---- */

static ch_status add_columns(log_file *l, const ch_logs *logs)
{
    int       old = l->n;
    ch_status rc = add_column(l, "epoch", 5);

    if (rc == CH_OK && l->every_steps > 0)
        rc = add_column(l, "step", 4);
    for (int i = 0; rc == CH_OK && i < logs->n; i++)
        rc = add_column(l, logs->at[i].name, strlen(logs->at[i].name));
    if (rc != CH_OK || l->n == old)
        return rc;
    if (l->has_header)
        return widen(l, old);
    put_header(l, &l->line);
    l->has_header = true;
    return CH_OK;
}

/* Appends the value of a column: nothing if this line has no such log. */
static void put_cell(log_file *l, const ch_training *t, const ch_logs *logs, const char *name)
{
    const double *log = ch__logs_find(logs, name);
    double        x;

    if (strcmp(name, "epoch") == 0)
        x = t->epoch;
    else if (strcmp(name, "step") == 0)
        x = (double)t->step;
    else if (log != NULL)
        x = *log;
    else
        return;
    ch__bytes_builder_text(&l->line, ch__number_text(x, false).text);
}

static ch_status csv_line(log_file *l, ch_training *t)
{
    const ch_logs *logs = ch__training_logs(t);
    ch_status      rc = add_columns(l, logs);

    for (int i = 0; i < l->n; i++) {
        ch__bytes_builder_add(&l->line, ",", i > 0);
        put_cell(l, t, logs, l->column[i]);
    }
    ch__bytes_builder_add(&l->line, "\n", 1);
    return rc;
}

static void json_line(log_file *l, ch_training *t, ch_event event)
{
    char head[128];

    snprintf(head, sizeof(head),
             "{\"event\": \"%s\", \"epoch\": %d, \"step\": %lld, \"seconds\": ",
             event == CH_ON_STEP ? "step" : "epoch", ch_training_epoch(t),
             (long long)ch_training_step(t));
    ch__bytes_builder_text(&l->line, head);
    ch__bytes_builder_text(&l->line, ch__rounded_text(ch_training_seconds(t), 1e6).text);
    ch__json_logs(&l->line, ch__training_logs(t));
    ch__bytes_builder_text(&l->line, "}\n");
}

/* Writes `line`: the new line, which may follow a header. */
static ch_status write_line(log_file *l)
{
    const char *at = l->line.at, *end = at + l->line.n;
    const char *before = l->line.n > 1 ? memrchr(at, '\n', l->line.n - 1) : NULL;
    ch_status   rc = l->line.has_failed ? ch__fail_memory(l->path)
                                        : set_last(l, before != NULL ? before + 1 : at, end - 1);

    if (rc == CH_OK)
        rc = ch__bytes_builder_write(&l->line, l->fd, l->path);
    l->lines += rc == CH_OK;
    return rc;
}

static ch_status log_on(void *self, ch_training *t, ch_event event)
{
    log_file *l = self;
    ch_status rc = CH_OK;

    if (ch_training_is_evaluation(t))
        return CH_OK;
    if (event == CH_ON_BEGIN)
        return begin(l);
    if (event == CH_ON_END)
        return close_file(l);
    if (event == CH_ON_STEP && ch_training_step(t) % l->every_steps != 0)
        return CH_OK;
    if (l->truncates)
        rc = truncate_file(l, 0);
    if (rc == CH_OK && l->is_json)
        json_line(l, t, event);
    else if (rc == CH_OK)
        rc = csv_line(l, t);
    return rc == CH_OK ? write_line(l) : rc;
}

/* ---- state ---- */

/* Syncs the file first: a checkpoint that survives a power failure must find the lines that it
 * counts. */
static ch_status log_save(void *self, ch_tuple **out)
{
    log_file *l = self;
    ch_state  s = {0};
    int       error = l->is_regular && ch__sys_sync(l->fd) != 0 ? errno : 0;

    if (error == 0 && l->is_regular && !l->is_named)
        error = ch__folder_sync(l->path);
    if (error != 0)
        return ch__fail_errno(error, "%s: cannot be synced", l->path);
    l->is_named = true;
    ch__state_put_int(&s, "lines", l->lines);
    ch__state_put_int(&s, "has_header", l->has_header);
    ch__state_put_text(&s, "last_line", l->lines > 0 ? l->last.at : "");
    return ch__state_end(&s, out);
}

/* Checks that the last of the lines is the line that was written before the checkpoint. Columns
 * may have been added to it since. */
static ch_status check_last(const log_file *l, ch_str want)
{
    bool begins = l->last.n > want.size &&
                  (want.size == 0 || memcmp(l->last.at, want.data, want.size) == 0);
    const char *more = begins ? l->last.at + want.size : "?";

    if (more[l->is_json ? 0 : strspn(more, ",")] == '\0')
        return CH_OK;
    return ch__fail(CH_FAILED_PRECONDITION,
                    "%s: line %lld is \"%.80s\", but \"%.*s\" was written before the "
                    "checkpoint: the file belongs to another training; move it away",
                    l->path, (long long)l->lines, l->last.at,
                    want.size < 80 ? (int)want.size : 80, want.data);
}

/* The saved state of a log file. */
typedef struct log_state {
    int64_t lines;
    int     has_header;
    ch_str  last_line; /* borrowed */
} log_state;

/* Removes the lines after those of the state from the file, whose bytes are `all`. */
static ch_status keep_lines(log_file *l, const ch_bytes_builder *all, const log_state *s)
{
    const char *begin = all->n > 0 ? all->at : "", *end = begin + all->n, *rest = begin;
    ch_status   rc = CH_OK;

    if (s->has_header && all->n > 0)
        rc = read_own_header(l, begin, end, &rest);
    if (rc == CH_OK)
        rc = count_lines(l, s->lines, rest, end, &rest);
    if (rc == CH_OK && l->lines == s->lines && s->lines > 0)
        rc = check_last(l, s->last_line);
    if (rc == CH_OK && l->lines < s->lines)
        ch__log(CH_LOG_WARNING, "log-file",
                "%s: has only %lld of the %lld lines that were written before the checkpoint; "
                "the log goes on without the others",
                l->path, (long long)l->lines, (long long)s->lines);
    return rc == CH_OK ? truncate_file(l, rest - begin) : rc;
}

static ch_status log_load(void *self, ch_tuple *state)
{
    log_file        *l = self;
    ch_bytes_builder all = {0};
    log_state        s = {0};
    bool             is_regular = false;
    ch_status        rc = ch__state_get_int(state, "lines", &s.lines);

    if (rc == CH_OK)
        rc = ch__state_get_int_in(state, "has_header", 0, 1, &s.has_header);
    if (rc == CH_OK)
        rc = ch__state_get_str(state, "last_line", &s.last_line);
    if (rc == CH_OK)
        rc = read_file(l, 0, &all, &is_regular);
    if (rc == CH_OK && is_regular) {
        forget_columns(l);
        rc = keep_lines(l, &all, &s);
    }
    ch__bytes_builder_drop(&all);
    return rc;
}

/* ---- creation ---- */

static void log_drop(void *self)
{
    log_file *l = self;

    if (l->fd >= 0)
        ch__sys_close(l->fd);
    forget_columns(l);
    ch__free(l->column);
    ch__bytes_builder_drop(&l->line);
    ch__bytes_builder_drop(&l->last);
    ch__free(l->path);
    ch__free(l);
}

static ch_status new_log(const char *name, const char *path,
                         const ch_callback_log_file_options *opt, ch_callback **out)
{
    static const ch_callback_log_file_options none;
    log_file                                 *l;

    opt = opt != NULL ? opt : &none;
    if (path == NULL || path[0] == '\0')
        return ch__fail(CH_INVALID_ARGUMENT, "%s: path is NULL or empty", name);
    if (opt->every_steps < 0)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: every_steps is %lld, want 0 or more", name,
                        (long long)opt->every_steps);
    l = ch__calloc(1, sizeof(*l));
    if (l == NULL)
        return ch__fail_memory(name);
    *l = (log_file){.ops = {.name = name,
                            .events = CH_ON_BEGIN | CH_ON_EPOCH_END | CH_ON_END,
                            .on = log_on,
                            .drop = log_drop,
                            .save = log_save,
                            .load = log_load},
                    .path = ch__strdup(path),
                    .every_steps = opt->every_steps,
                    .is_json = strcmp(name, "json_log") == 0,
                    .appends = opt->append,
                    .fd = -1};
    if (opt->every_steps > 0)
        l->ops.events |= CH_ON_STEP;
    if (l->path == NULL) {
        log_drop(l);
        return ch__fail_memory(name);
    }
    return ch__callback_make(&l->ops, l, out);
}

ch_status ch_callback_csv_log(const char *path, const ch_callback_log_file_options *opt,
                              ch_callback **out)
{
    return new_log("csv_log", path, opt, out);
}

ch_status ch_callback_json_log(const char *path, const ch_callback_log_file_options *opt,
                               ch_callback **out)
{
    return new_log("json_log", path, opt, out);
}
