/* file/writer.c -- writes to a temporary file, syncs, renames.
 *
 * struct ch_writer holds the temporary file (file/temp.h), a buffer and an encoder. Bytes go
 * through the encoder into the buffer, and from there to the file. Arrays, records, archives
 * and exports are saved with this writer; log files that grow during training are not.
 *
 * The temporary file is private until the commit, which gives it its final mode before the
 * sync, so that the mode is durable too. After the first failure the writer never renames:
 * `failed` makes all later calls fail.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "file/writer.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/mutant.h"
#include "base/sys.h"
#include "file/codec.h"
#include "file/temp.h"

enum { BUFFER_BYTES = 256 << 10 };

struct ch_writer {
    char     *path;     /* destination */
    ch_temp   temp;     /* the temporary file */
    bool      replaces; /* a regular file exists at `path`; `mode` is its mode */
    mode_t    mode;
    bool      no_sync;
    ch_status failed;    /* status of the first failure, or CH_OK */
    int64_t   n_written; /* bytes in the file, without the buffered bytes */
    ch_codec *codec;     /* encoder; NULL: uncompressed */
    char     *buffer;    /* BUFFER_BYTES, of which n_buffer are in use */
    size_t    n_buffer;

    bool in_section;
    /* packed_bytes: while the section is open, the offset at which it began */
    ch_section section;
};

static ch_status fail_write(ch_writer *w, int error, const char *action)
{
    return w->failed = ch__fail_errno(error, "%s: %s failed at byte %lld", w->path, action,
                                      (long long)w->n_written);
}

/* ---- the existing file ---- */

/* Checks the object at the destination. A regular file is replaced and its mode is kept. A link
 * is replaced and not followed, because otherwise the creator of the link would choose which
 * file is written. Anything else is INVALID_ARGUMENT. */
static ch_status check_existing(ch_writer *w)
{
    struct stat about;

    if (ch__sys_lstat(w->path, &about) != 0)
        return errno == ENOENT
                   ? CH_OK
                   : ch__fail_errno(errno, "%s: its attributes cannot be read", w->path);
    if (S_ISLNK(about.st_mode))
        return CH_OK;
    if (!S_ISREG(about.st_mode))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: is %s and cannot be replaced by a file; choose another name",
                        w->path, S_ISDIR(about.st_mode) ? "a directory" : "a FIFO or device");
    w->replaces = true;
    w->mode = about.st_mode & 07777;
    return CH_OK;
}

static ch_status open_all(ch_writer *w, const char *path, const ch_save_options *opt)
{
    ch_compression kind = ch__compression_of(path, opt->compression);

    ch_status rc;

    w->path = ch__strdup(path);
    w->buffer = ch__malloc(BUFFER_BYTES);
    if (w->path == NULL || w->buffer == NULL)
        return ch__fail_memory(path);
    rc = check_existing(w);
    if (rc != CH_OK)
        return rc;
    if (kind != CH_UNCOMPRESSED) {
        rc = ch__encoder_new(kind, opt->level, &w->codec);
        if (rc != CH_OK)
            return ch__fail_at(rc, "%s", path);
    }
    return ch__temp_open(&w->temp, w->path);
}

ch_status ch__writer_open(const char *path, const ch_save_options *opt, ch_writer **out)
{
    static const ch_save_options defaults;
    ch_writer                   *w;

    if (path == NULL || path[0] == '\0')
        return ch__fail(CH_INVALID_ARGUMENT,
                        "writing a file: no name given (path is NULL or empty)");
    w = ch__calloc(1, sizeof(*w));
    if (w == NULL)
        return ch__fail_memory(path);
    opt = opt != NULL ? opt : &defaults;
    w->temp.fd = w->temp.lock = -1;
    w->no_sync = opt->no_sync;
    ch_status rc = open_all(w, path, opt);
    if (rc != CH_OK) {
        ch__writer_drop(w);
        return rc;
    }
    *out = w;
    return CH_OK;
}

void ch__writer_drop(ch_writer *w)
{
    if (w == NULL)
        return;
    ch__temp_drop(&w->temp);
    ch__codec_free(w->codec);
    ch__free(w->buffer);
    ch__free(w->path);
    ch__free(w);
}

int64_t ch__writer_offset(const ch_writer *w)
{
    return w->n_written + (int64_t)w->n_buffer;
}

const char *ch__writer_path(const ch_writer *w)
{
    return w->path;
}

ch_status ch__writer_fail(ch_writer *w, ch_status rc)
{
    w->failed = w->failed != CH_OK ? w->failed : rc;
    return rc;
}

/* ---- writing ---- */

/* Fails because an earlier call failed. */
static ch_status fail_after_failure(const ch_writer *w)
{
    return ch__fail(w->failed, "%s: not written, because writing failed before", w->path);
}

static ch_status write_all(ch_writer *w, const char *data, size_t n)
{
    while (n > 0) {
        ssize_t put = ch__sys_write(w->temp.fd, data, n);

        if (put < 0)
            return fail_write(w, errno, "writing");
        data += put;
        n -= (size_t)put;
        w->n_written += put;
    }
    return CH_OK;
}

static ch_status flush(ch_writer *w)
{
    size_t n = w->n_buffer;

    w->n_buffer = 0;
    return write_all(w, w->buffer, n);
}

static ch_status put_plain(ch_writer *w, const char *data, size_t n)
{
    if (n > BUFFER_BYTES - w->n_buffer) {
        ch_status rc = flush(w);

        if (rc != CH_OK)
            return rc;
    }
    if (n >= BUFFER_BYTES)
        return write_all(w, data, n);
    memcpy(w->buffer + w->n_buffer, data, n);
    w->n_buffer += n;
    return CH_OK;
}

/* Sends all of `data` through the encoder. If `is_last` is true, also ends the compressed
 * data. */
static ch_status put_encoded(ch_writer *w, const char *data, size_t n, bool is_last)
{
    ch_codec_io io = {.in = data, .n_in = n};
    bool        ended = false;
    ch_status   rc = CH_OK;

    while (rc == CH_OK && (is_last ? !ended : io.n_in > 0)) {
        io.out = w->buffer + w->n_buffer;
        io.n_out = BUFFER_BYTES - w->n_buffer;
        rc = w->codec->step(w->codec, &io, is_last, &ended);
        if (rc != CH_OK)
            return w->failed = ch__fail_at(rc, "%s", w->path);
        w->n_buffer = BUFFER_BYTES - io.n_out;
        if (io.n_out == 0)
            rc = flush(w);
    }
    return rc;
}

ch_status ch__writer_put(ch_writer *w, const void *data, size_t n)
{
    if (w->failed != CH_OK)
        return fail_after_failure(w);
    if (n == 0)
        return CH_OK;
    if (w->in_section) {
        w->section.bytes += (int64_t)n;
        w->section.crc = ch__crc32(w->section.crc, data, n);
    }
    return w->codec != NULL ? put_encoded(w, data, n, false) : put_plain(w, data, n);
}

ch_status ch__writer_begin(ch_writer *w, ch_compression kind, int level)
{
    ch_status rc = kind != CH_UNCOMPRESSED ? ch__encoder_new(kind, level, &w->codec) : CH_OK;

    if (rc != CH_OK)
        return w->failed = ch__fail_at(rc, "%s", w->path);
    w->in_section = true;
    w->section = (ch_section){.packed_bytes = ch__writer_offset(w)};
    return CH_OK;
}

ch_status ch__writer_end(ch_writer *w, ch_section *out)
{
    ch_status rc = w->failed != CH_OK ? fail_after_failure(w) : CH_OK;

    if (rc == CH_OK && w->codec != NULL)
        rc = put_encoded(w, "", 0, true);
    ch__codec_free(w->codec);
    w->codec = NULL;
    w->in_section = false;
    w->section.packed_bytes = ch__writer_offset(w) - w->section.packed_bytes;
    *out = w->section;
    return rc;
}

ch_status ch__writer_patch(ch_writer *w, int64_t offset, const void *data, size_t n)
{
    const char *from = data;
    ch_status   rc = w->failed != CH_OK ? fail_after_failure(w) : flush(w);

    while (rc == CH_OK && n > 0) {
        ssize_t put = ch__sys_pwrite(w->temp.fd, from, n, offset);

        if (put < 0)
            return fail_write(w, errno, "writing");
        from += put;
        offset += put;
        n -= (size_t)put;
    }
    return rc;
}

/* ---- committing ---- */

static ch_status sync_file(ch_writer *w)
{
    int fd = w->temp.fd;

    /* After a failed fsync the contents on disk are unknown, so there is no retry. */
    if (!w->no_sync && CH_KEEPS(FILESYNC) && ch__sys_sync(fd) != 0)
        return fail_write(w, errno, "syncing");
    w->temp.fd = -1;
    return ch__sys_close(fd) == 0 ? CH_OK : fail_write(w, errno, "closing");
}

static ch_status commit(ch_writer *w)
{
    ch_status rc = w->failed != CH_OK ? fail_after_failure(w) : CH_OK;

    if (rc == CH_OK && w->codec != NULL)
        rc = put_encoded(w, "", 0, true);
    if (rc == CH_OK)
        rc = flush(w);
    if (rc == CH_OK)
        rc = ch__temp_set_mode(&w->temp, w->replaces ? (int)w->mode : -1);
    if (rc == CH_OK)
        rc = sync_file(w);
    if (rc == CH_OK)
        rc = ch__temp_rename(&w->temp);
    return rc == CH_OK && !w->no_sync && CH_KEEPS(FOLDERSYNC) ? ch__temp_sync_folder(&w->temp)
                                                              : rc;
}

ch_status ch__writer_commit(ch_writer *w)
{
    ch_status rc = commit(w);

    ch__writer_drop(w);
    return rc;
}
