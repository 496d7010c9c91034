/* fit/log_files.c -- the numbers of a training as lines of a file: CSV, and an object a line.
 *
 * A line is one write, so that who reads the file as it grows sees whole lines. The columns of
 * a CSV file are the names that came so far. When another comes (that of a validation, after
 * lines for steps) the file is written anew, aside, with the column in it, which is empty in
 * the lines before; so there is always one header, and every line has all columns.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "file/sys.h"
#include "file/writer.h"
#include "fit/bytes_builder.h"
#include "fit/callback.h"
#include "fit/json.h"
#include "fit/number.h"

typedef struct log_file {
    ch_callback_ops ops; /* steps are looked at if they have lines */
    char           *path;
    int64_t         every_steps;
    bool is_json, appends; /* appends: to what is there, or was in an earlier training */
    bool has_warned;
    int  fd; /* -1: between trainings */
    ch_bytes_builder line;

    int    n, capacity; /* columns, of CSV */
    char **column;
    bool   has_header; /* in the file */
} log_file;

/* ---- columns ---- */

static void forget_columns(log_file *l)
{
    for (int i = 0; i < l->n; i++)
        ch__free(l->column[i]);
    l->n = 0;
    l->has_header = false;
}

static ch_status want_column(log_file *l, const char *name, size_t bytes)
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

/* Takes the header of a file, and its newline, off the beginning of [at, end); returns what is
 * behind. */
static ch_status read_header(log_file *l, const char *at, const char *end, const char **behind)
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
                                 : want_column(l, name.n > 0 ? name.at : "", (size_t)name.n);
            name.n = 0;
            if (*at == '\n')
                break;
        } else if (is_quoted || *at != '\r') {
            ch__bytes_builder_add(&name, at, 1);
        }
    }
    ch__bytes_builder_drop(&name);
    *behind = at < end ? at + 1 : end;
    return rc;
}

/* ---- the file ---- */

/* All of a file that can be read again: *is_whole. Nothing of one that is not there, or that is
 * a device; or, with O_NOFOLLOW in `how`, that is a link. */
static ch_status read_file(const log_file *l, int how, ch_bytes_builder *all, bool *is_whole)
{
    struct stat about;
    int         fd = ch__sys_open(l->path, O_RDONLY | O_NONBLOCK | how, 0);
    ch_status   rc = CH_OK;

    *is_whole = false;
    if (fd < 0 && (errno == ENOENT || errno == ELOOP || errno == ENXIO))
        return CH_OK;
    if (fd < 0 || ch__sys_stat(fd, &about) != 0)
        rc = ch__fail_errno(errno, "%s: cannot be read, to go on in it", l->path);
    else
        *is_whole = S_ISREG(about.st_mode);
    if (*is_whole)
        rc = ch__bytes_builder_read(all, fd, l->path);
    if (fd >= 0)
        ch__sys_close(fd);
    return rc;
}

/* A line that a process left unfinished is ended. */
static ch_status look_at_file(log_file *l)
{
    ch_bytes_builder all = {0};
    const char      *behind;
    bool             is_whole;
    ch_status        rc = read_file(l, 0, &all, &is_whole);

    if (rc == CH_OK && all.n > 0 && all.at[all.n - 1] != '\n') {
        ch__bytes_builder_add(&l->line, "\n", 1);
        ch__bytes_builder_add(&all, "\n", 1);
    }
    if (rc == CH_OK && all.n > 0 && !l->is_json) {
        rc = read_header(l, all.at, all.at + all.n, &behind);
        l->has_header = true;
        if (rc == CH_OK && (l->n == 0 || strcmp(l->column[0], "epoch") != 0))
            rc = ch__fail(CH_INVALID_ARGUMENT,
                          "%s: cannot be appended to: it is no log, its first line does not "
                          "begin with \"epoch\"",
                          l->path);
    }
    ch__bytes_builder_drop(&all);
    return rc;
}

static ch_status open_file(log_file *l, bool anew)
{
    l->fd = ch__sys_open(l->path, O_WRONLY | O_CREAT | O_APPEND | (anew ? O_TRUNC : 0), 0666);
    if (l->fd < 0)
        return ch__fail_errno(errno, "%s: cannot be written", l->path);
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

/* Used again, it goes on in its file. */
static ch_status begin(log_file *l)
{
    ch_status rc = close_file(l);

    forget_columns(l);
    ch__bytes_builder_drop(&l->line);
    if (rc == CH_OK && l->appends)
        rc = look_at_file(l);
    if (rc == CH_OK)
        rc = open_file(l, !l->appends);
    l->appends = l->appends || rc == CH_OK;
    return rc;
}

/* The lines behind the header, each with `more` columns that are empty. */
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

static ch_status replace_file(log_file *l, const ch_bytes_builder *with)
{
    ch_writer *w = NULL;
    ch_status  rc;

    if (with->has_failed)
        return ch__fail_memory(l->path);
    rc = ch__writer_open(
        l->path, &(ch_save_options){.compression = CH_UNCOMPRESSED, .no_sync = true}, &w);
    if (rc != CH_OK)
        return rc;
    rc = ch__writer_put(w, with->at, (size_t)with->n);
    if (rc != CH_OK) {
        ch__writer_drop(w);
        return rc;
    }
    rc = ch__writer_commit(w);
    l->line.n = 0; /* what was to end an unfinished line, which is ended now */
    if (rc == CH_OK)
        rc = close_file(l);
    return rc == CH_OK ? open_file(l, false) : rc;
}

/* Columns from `had` on are new, and the file has a header without them. */
static ch_status widen(log_file *l, int had)
{
    ch_bytes_builder all = {0}, wide = {0};
    const char      *behind = NULL;
    bool             is_whole;
    ch_status        rc = read_file(l, O_NOFOLLOW, &all, &is_whole);

    if (rc == CH_OK && !is_whole) {
        if (!l->has_warned)
            ch__log(CH_LOG_WARNING, "csv-log",
                    "%s: it cannot be written anew, so it has no column for \"%s\", which came "
                    "after its header",
                    l->path, l->column[had]);
        l->has_warned = true;
        while (l->n > had)
            ch__free(l->column[--l->n]);
    } else if (rc == CH_OK) {
        rc = read_header(l, all.at, all.at + all.n, &behind);
        put_header(l, &wide);
        put_widened(&wide, behind, all.at + all.n, l->n - had);
        if (rc == CH_OK)
            rc = replace_file(l, &wide);
    }
    ch__bytes_builder_drop(&all);
    ch__bytes_builder_drop(&wide);
    return rc;
}

/* ---- lines ---- */

static ch_status want_columns(log_file *l, ch_training *t)
{
    int       had = l->n;
    ch_status rc = want_column(l, "epoch", 5);

    if (rc == CH_OK && l->every_steps > 0)
        rc = want_column(l, "step", 4);
    for (int i = 0; rc == CH_OK && i < ch_training_logs(t); i++) {
        const char *name = ch_training_log_name(t, i);

        rc = want_column(l, name, strlen(name));
    }
    if (rc != CH_OK || l->n == had)
        return rc;
    if (l->has_header)
        return widen(l, had);
    put_header(l, &l->line);
    l->has_header = true;
    return CH_OK;
}

static void put_cell(log_file *l, ch_training *t, const char *name)
{
    double x = 0;

    if (strcmp(name, "epoch") == 0) {
        x = ch_training_epoch(t);
    } else if (strcmp(name, "step") == 0) {
        x = (double)ch_training_step(t);
    } else {
        int i = 0, n = ch_training_logs(t);

        while (i < n && strcmp(ch_training_log_name(t, i), name) != 0)
            i++;
        if (i == n)
            return;
        x = ch_training_log(t, i);
    }
    ch__bytes_builder_text(&l->line, ch__number_text(x, false).text);
}

static ch_status csv_line(log_file *l, ch_training *t)
{
    ch_status rc = want_columns(l, t);

    for (int i = 0; i < l->n; i++) {
        ch__bytes_builder_add(&l->line, ",", i > 0);
        put_cell(l, t, l->column[i]);
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
    ch__json_logs(&l->line, t);
    ch__bytes_builder_text(&l->line, "}\n");
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
    if (l->is_json)
        json_line(l, t, event);
    else
        rc = csv_line(l, t);
    return rc == CH_OK ? ch__bytes_builder_write(&l->line, l->fd, l->path) : rc;
}

/* ---- making them ---- */

static void log_drop(void *self)
{
    log_file *l = self;

    if (l->fd >= 0)
        ch__sys_close(l->fd);
    forget_columns(l);
    ch__free(l->column);
    ch__bytes_builder_drop(&l->line);
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
        return ch__fail(CH_INVALID_ARGUMENT, "%s: the file has no name", name);
    if (opt->every_steps < 0)
        return ch__fail(CH_INVALID_ARGUMENT, "%s: every_steps is %lld, want 0 or more", name,
                        (long long)opt->every_steps);
    l = ch__calloc(1, sizeof(*l));
    if (l == NULL)
        return ch__fail_memory(name);
    *l = (log_file){.ops = {name, CH_ON_BEGIN | CH_ON_EPOCH_END | CH_ON_END, log_on, log_drop},
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
