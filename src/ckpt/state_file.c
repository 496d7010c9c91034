/* ckpt/state_file.c -- reads and writes the state file of a directory of checkpoints.
 *
 * The text is a protobuf message in text format: lines `name: value`, where a value is a text
 * in quotes with escapes, or a number. The parser makes two passes: the first counts, the
 * second fills a single block of memory.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/state_file.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes_builder.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/sys.h"
#include "ckpt/index.h"
#include "file/writer.h"

enum { MAX_TEXT = 16 << 20 };

/* ---- paths ---- */

/* Returns whether a relative path stays inside its directory. */
static bool stays_inside(const char *path)
{
    if (path[0] == '/' || path[0] == '\0')
        return false;
    for (const char *part = path; part != NULL; part = strchr(part, '/')) {
        part += *part == '/';
        if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || part[2] == '\0'))
            return false;
    }
    return true;
}

/* Returns the path relative to the directory, or NULL if it leads out of it. */
static const char *relative_path(const char *directory, const char *path)
{
    size_t n = strlen(directory);

    while (n > 1 && directory[n - 1] == '/')
        n--;
    if (path[0] == '/' && strncmp(path, directory, n) == 0 && path[n] == '/')
        path += n + strspn(path + n, "/");
    return stays_inside(path) ? path : NULL;
}

/* ---- parsing ---- */

/* A state file that is being parsed. */
typedef struct state_text {
    const char   *at, *end, *begin;
    const char   *directory;
    bool          fills; /* the second pass */
    int           n_paths, n_times;
    int64_t       n_bytes; /* of texts, with their final zeros */
    const char  **path;
    double       *time;
    char         *memory; /* of the texts */
    ch_state_file state;
} state_text;

static ch_status fail_text(const state_text *x, const char *problem)
{
    return ch__fail(CH_DATA_LOSS, "%s/" CH_STATE_FILE ": %s at byte %lld", x->directory,
                    problem, (long long)(x->at - x->begin));
}

/* Skips blanks and comments. */
static void skip_blanks(state_text *x)
{
    for (; x->at < x->end; x->at++)
        if (*x->at == '#')
            while (x->at + 1 < x->end && x->at[1] != '\n')
                x->at++;
        else if (memchr(" \t\r\n", *x->at, 4) == NULL)
            return;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : 16;
}

/* Decodes up to `most` digits of a base. Returns -1 if there is none. */
static int get_digits(state_text *x, int base, int most)
{
    int value = -1;

    for (; most > 0 && x->at < x->end && hex_digit(*x->at) < base; most--)
        value = (value < 0 ? 0 : value) * base + hex_digit(*x->at++);
    return value;
}

/* Decodes the character after a backslash; -1: no such escape. */
static int get_escape(state_text *x)
{
    static const char names[] = "abfnrtv\\'\"?", values[] = "\a\b\f\n\r\t\v\\'\"?";
    const char       *found;

    if (x->at == x->end)
        return -1;
    if (hex_digit(*x->at) < 8)
        return get_digits(x, 8, 3) & 0xff;
    if (*x->at == 'x' || *x->at == 'X') {
        x->at++;
        return get_digits(x, 16, 2);
    }
    found = strchr(names, *x->at++);
    return found != NULL && *found != '\0' ? (unsigned char)values[found - names] : -1;
}

/* Decodes a text in quotes. *out is NULL in the first pass. */
static ch_status get_quoted(state_text *x, const char **out)
{
    char quote, *to = x->fills ? x->memory + x->n_bytes : NULL;

    *out = to;
    if (x->at == x->end || (*x->at != '"' && *x->at != '\''))
        return fail_text(x, "no text in quotes");
    for (quote = *x->at++; x->at < x->end && *x->at != quote && *x->at != '\n';) {
        int c = (unsigned char)*x->at++;

        if (c == '\\')
            c = get_escape(x);
        if (c <= 0)
            return fail_text(x, "invalid escape");
        if (to != NULL)
            *to++ = (char)c;
        x->n_bytes++;
    }
    if (x->at == x->end || *x->at != quote)
        return fail_text(x, "text without closing quote");
    x->at++;
    if (to != NULL)
        *to = '\0';
    x->n_bytes++;
    return CH_OK;
}

/* Decodes a decimal number, independent of the locale. */
static ch_status get_number(state_text *x, double *out)
{
    const char *begin;
    double      sign = 1, value = 0;
    uint64_t    digits = 0;
    int         exponent = 0, n = 0;

    if (x->at < x->end && (*x->at == '-' || *x->at == '+'))
        sign = *x->at++ == '-' ? -1 : 1;
    begin = x->at;
    for (bool point = false; x->at < x->end; x->at++) {
        if (*x->at == '.' && !point) {
            point = true;
            continue;
        }
        if (hex_digit(*x->at) > 9)
            break;
        n++;
        if (digits < UINT64_C(100000000000000000)) {
            digits = digits * 10 + (uint64_t)hex_digit(*x->at);
            exponent -= point;
        } else {
            exponent += !point;
        }
    }
    if (n > 0 && x->at < x->end && (*x->at == 'e' || *x->at == 'E')) {
        int direction = 1, more;

        x->at++;
        if (x->at < x->end && (*x->at == '-' || *x->at == '+'))
            direction = *x->at++ == '-' ? -1 : 1;
        more = get_digits(x, 10, 4);
        n = more < 0 ? 0 : n;
        exponent += direction * more;
    }
    value =
        exponent < 0 ? (double)digits / pow(10, -exponent) : (double)digits * pow(10, exponent);
    *out = sign * value;
    if (n == 0 || !isfinite(value)) {
        x->at = begin;
        return fail_text(x, "no number");
    }
    return CH_OK;
}

static ch_status get_path(state_text *x, const char **out)
{
    ch_status rc = get_quoted(x, out);

    if (rc != CH_OK || *out == NULL)
        return rc;
    if ((*out)[0] == '\0')
        return ch__fail(CH_INVALID_ARGUMENT, "%s/" CH_STATE_FILE ": a path is empty",
                        x->directory);
    const char *inside = relative_path(x->directory, *out);
    if (inside == NULL)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s/" CH_STATE_FILE ": the path \"%.200s\" leads out of the directory",
                        x->directory, *out);
    *out = inside;
    return CH_OK;
}

/* Decodes `name: value`. */
static ch_status get_field(state_text *x)
{
    static const char *const names[] = {"model_checkpoint_path", "all_model_checkpoint_paths",
                                        "all_model_checkpoint_timestamps",
                                        "last_preserved_timestamp"};
    const char              *name = x->at, *path = NULL;
    double                   time = 0;
    size_t                   n;
    int                      which = 0;
    ch_status                rc;

    while (x->at < x->end && (*x->at == '_' || (*x->at >= 'a' && *x->at <= 'z')))
        x->at++;
    n = (size_t)(x->at - name);
    while (which < 4 && !(n == strlen(names[which]) && memcmp(name, names[which], n) == 0))
        which++;
    if (which == 4)
        return fail_text(x, "unknown field");
    skip_blanks(x);
    if (x->at == x->end || *x->at++ != ':')
        return fail_text(x, "no colon after the name of a field");
    skip_blanks(x);
    rc = which < 2 ? get_path(x, &path) : get_number(x, &time);
    if (rc != CH_OK)
        return rc;
    switch (which) {
    case 0:
        x->state.latest = path != NULL ? path : "";
        break;
    case 1:
        if (x->fills)
            x->path[x->n_paths] = path;
        x->n_paths++;
        break;
    case 2:
        if (x->fills)
            x->time[x->n_times] = time;
        x->n_times++;
        break;
    default:
        x->state.has_preserved = true;
        x->state.last_preserved = time;
        break;
    }
    skip_blanks(x);
    if (x->at < x->end && (*x->at == ';' || *x->at == ','))
        x->at++;
    return CH_OK;
}

static ch_status parse_text(state_text *x, const char *text, size_t n)
{
    ch_status rc = CH_OK;

    x->begin = x->at = text;
    x->end = text + n;
    x->n_paths = x->n_times = 0;
    x->n_bytes = 0;
    for (skip_blanks(x); x->at < x->end && rc == CH_OK; skip_blanks(x))
        rc = get_field(x);
    return rc;
}

ch_status ch__state_file_parse(const char *directory, const char *text, size_t n,
                               ch_state_file *out)
{
    state_text x = {.directory = directory};
    size_t     paths, times;
    char      *memory;
    ch_status  rc = parse_text(&x, text, n);

    if (rc != CH_OK)
        return rc;
    if (x.state.latest == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "%s/" CH_STATE_FILE ": names no checkpoint",
                        directory);
    if (x.n_times > 0 && x.n_times != x.n_paths)
        return ch__fail(CH_DATA_LOSS,
                        "%s/" CH_STATE_FILE ": the number of paths is %d, and of timestamps %d",
                        directory, x.n_paths, x.n_times);
    paths = (size_t)x.n_paths * sizeof(*x.path);
    times = (size_t)x.n_times * sizeof(*x.time);
    memory = ch__malloc(paths + times + (size_t)x.n_bytes + 1);
    if (memory == NULL)
        return ch__fail_memory(directory);
    x.path = (void *)memory;
    x.time = (void *)(memory + paths);
    x.memory = memory + paths + times;
    x.fills = true;
    rc = parse_text(&x, text, n);
    if (rc != CH_OK) {
        ch__free(memory);
        return rc;
    }
    *out = x.state;
    out->n = x.n_paths;
    out->path = x.path;
    out->time = x.n_times > 0 ? x.time : NULL;
    out->memory = memory;
    return CH_OK;
}

/* ---- files ---- */

/* Returns the path of the state file, which the caller must free; NULL: out of memory. */
static char *state_path(const char *directory)
{
    size_t room = strlen(directory) + sizeof("/" CH_STATE_FILE);
    char  *path = ch__malloc(room);

    if (path != NULL)
        snprintf(path, room, "%s/" CH_STATE_FILE, directory);
    return path;
}

static ch_status read_text(const char *path, ch_bytes_builder *text)
{
    int64_t   bytes;
    int       fd = -1;
    ch_status rc = ch__ckpt_open_file(path, &fd, &bytes);

    if (rc != CH_OK)
        return rc;
    if (bytes > MAX_TEXT)
        rc = ch__fail_limit("%s: has %lld bytes (at most %d are read)", path, (long long)bytes,
                            MAX_TEXT);
    else
        rc = ch__bytes_builder_read(text, fd, path);
    ch__sys_close(fd);
    return rc;
}

ch_status ch__state_file_read(const char *directory, ch_state_file *out)
{
    ch_bytes_builder text = {0};
    char            *path = state_path(directory);
    ch_status        rc = path != NULL ? read_text(path, &text) : ch__fail_memory(directory);

    if (rc == CH_OK)
        rc = ch__state_file_parse(directory, text.n > 0 ? text.at : "", text.n, out);
    ch__bytes_builder_drop(&text);
    ch__free(path);
    return rc;
}

static void put_quoted(ch_bytes_builder *b, const char *name, const char *path)
{
    ch__bytes_builder_text(b, name);
    ch__bytes_builder_text(b, ": \"");
    for (; *path != '\0'; path++) {
        unsigned char c = (unsigned char)*path;
        char          text[8];

        snprintf(text, sizeof(text),
                 c == '"' || c == '\\' ? "\\%c"
                 : c < 32 || c >= 127  ? "\\%03o"
                                       : "%c",
                 c);
        ch__bytes_builder_text(b, text);
    }
    ch__bytes_builder_text(b, "\"\n");
}

/* Writes seconds with six decimals, independent of the locale. */
static void put_time(ch_bytes_builder *b, const char *name, double time)
{
    double  limit = 1e12; /* 30,000 years: a time beyond is damaged */
    int64_t micros = llround(fmin(fmax(time, -limit), limit) * 1e6);
    char    text[128];

    snprintf(text, sizeof(text), "%s: %s%lld.%06lld\n", name, micros < 0 ? "-" : "",
             llabs(micros / 1000000), llabs(micros % 1000000));
    ch__bytes_builder_text(b, text);
}

static ch_status check_path(const char *directory, const char *path)
{
    const char *problem = path == NULL || path[0] == '\0'    ? "is empty"
                          : !stays_inside(path)              ? "leads out of the directory"
                          : strcmp(path, CH_STATE_FILE) == 0 ? "is that of the state file"
                                                             : NULL;

    return problem == NULL
               ? CH_OK
               : ch__fail(CH_INVALID_ARGUMENT, "%s/" CH_STATE_FILE ": the path \"%.200s\" %s",
                          directory, path != NULL ? path : "", problem);
}

ch_status ch__state_file_write(const char *directory, const ch_state_file *s, bool no_sync)
{
    ch_bytes_builder text = {0};
    ch_writer       *w = NULL;
    char            *path = state_path(directory);
    ch_status rc = path != NULL ? check_path(directory, s->latest) : ch__fail_memory(directory);

    put_quoted(&text, "model_checkpoint_path", rc == CH_OK ? s->latest : "");
    for (int i = 0; i < s->n && rc == CH_OK; i++) {
        rc = check_path(directory, s->path[i]);
        if (rc == CH_OK)
            put_quoted(&text, "all_model_checkpoint_paths", s->path[i]);
    }
    for (int i = 0; i < s->n && s->time != NULL; i++)
        put_time(&text, "all_model_checkpoint_timestamps", s->time[i]);
    if (s->has_preserved)
        put_time(&text, "last_preserved_timestamp", s->last_preserved);
    if (rc == CH_OK && text.has_failed)
        rc = ch__fail_memory(directory);
    if (rc == CH_OK)
        rc = ch__writer_open(path, &(ch_save_options){.no_sync = no_sync}, &w);
    if (rc == CH_OK)
        rc = ch__writer_put(w, text.at, text.n);
    if (rc == CH_OK)
        rc = ch__writer_commit(w);
    else
        ch__writer_drop(w);
    ch__bytes_builder_drop(&text);
    ch__free(path);
    return rc;
}
