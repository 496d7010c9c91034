/* file/writer.c -- writing aside, and renaming.   SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "file/writer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/mem.h"
#include "file/codec.h"
#include "file/sys.h"

enum { BUFFER_BYTES = 256 << 10 };

struct ch_writer {
    char     *path, *aside; /* what it will be called, and what it is called until then */
    int       folder_bytes; /* of both, the folder with its slash */
    int       fd;
    int       lock;     /* a copy of it, which keeps the lock until the file has its name */
    bool      is_there; /* `aside` exists */
    bool      replaces; /* a file of this mode */
    mode_t    mode;
    bool      no_sync;
    ch_status failed; /* the first failure */
    int64_t   n_file; /* bytes that are written, without those in the buffer */
    ch_codec *codec;  /* NULL: as it is */
    char     *buffer; /* BUFFER_BYTES */
    size_t    n_buffer;

    bool       in_section;
    ch_section section; /* packed_bytes: the offset at which it began */
};

static ch_status fail_write(ch_writer *w, int error, const char *what)
{
    return w->failed = ch__fail_errno(error, "%s: %s failed at byte %lld", w->path, what,
                                      (long long)w->n_file);
}

/* ---- opening ---- */

/* ".name.tmp-123-1" beside it: patterns that match the name do not match that. Long names
 * are cut, since this one has to fit too. */
#define ASIDE ".%.200s.tmp-"

static ch_status name_aside(ch_writer *w)
{
    static atomic_uint counter;
    const char        *slash = strrchr(w->path, '/');
    size_t             room = strlen(w->path) + 64;

    w->folder_bytes = slash != NULL ? (int)(slash - w->path) + 1 : 0;
    if (w->aside == NULL)
        w->aside = ch__malloc(room);
    if (w->aside == NULL)
        return ch__fail_memory(w->path);
    snprintf(w->aside, room, "%.*s" ASIDE "%ld-%u", w->folder_bytes, w->path,
             w->path + w->folder_bytes, (long)getpid(), atomic_fetch_add(&counter, 1));
    return CH_OK;
}

/* False: who tidies up was quicker than the lock, and removes it: another try. Where files have no
 * locks nobody does that. */
static bool lock_aside(ch_writer *w, int tries)
{
    enum {
        MOST_TRIES = 100
    }; /* a file system that counts no names would have us try for ever */

    if (!ch__sys_lock(w->fd) && (errno == EWOULDBLOCK || errno == ENOENT) &&
        tries < MOST_TRIES) {
        ch__sys_close(w->fd);
        w->fd = -1;
        return false;
    }
    w->lock = ch__sys_copy(w->fd);
    return true;
}

/* A name that is taken is one that a process of our number left behind: the next will do. */
static ch_status open_aside(ch_writer *w)
{
    int       tries = 0;
    ch_status rc;

    do {
        rc = name_aside(w);
        if (rc != CH_OK)
            return rc;
        w->fd = ch__sys_open(w->aside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
    } while (w->fd < 0 ? errno == EEXIST : !lock_aside(w, tries++));
    if (w->fd < 0)
        return ch__fail_errno(errno, "%s: cannot be written: %s cannot be made", w->path,
                              w->aside);
    w->is_there = true;
    return CH_OK;
}

/* ---- what is there ---- */

/* What is replaced is a file, whose mode the new one has, or a link, which is not followed: who can put one
 * there must not choose what is written to (PROMISES S8). */
static ch_status look_at_old(ch_writer *w)
{
    struct stat about;

    if (ch__sys_look(w->path, &about) != 0)
        return errno == ENOENT ? CH_OK
                               : ch__fail_errno(errno, "%s: cannot be looked at", w->path);
    if (S_ISLNK(about.st_mode))
        return CH_OK;
    if (!S_ISREG(about.st_mode))
        return ch__fail(CH_INVALID_ARGUMENT,
                        "%s: it is %s, and no file that could be replaced; give another name",
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
    rc = look_at_old(w);
    if (rc != CH_OK)
        return rc;
    if (kind != CH_UNCOMPRESSED) {
        rc = ch__encoder_new(kind, opt->level, &w->codec);
        if (rc != CH_OK)
            return ch__fail_at(rc, "%s", path);
    }
    rc = open_aside(w);
    if (rc == CH_OK && w->replaces && ch__sys_chmod(w->fd, w->mode) != 0)
        rc = ch__fail_errno(errno, "%s: cannot be written: %s cannot have its mode, %o",
                            w->path, w->aside, (unsigned)w->mode);
    return rc;
}

ch_status ch__writer_open(const char *path, const ch_save_options *opt, ch_writer **out)
{
    static const ch_save_options defaults;
    ch_writer                   *w;

    if (path == NULL || path[0] == '\0')
        return ch__fail(CH_INVALID_ARGUMENT, "a file to write: it has no name");
    w = ch__calloc(1, sizeof(*w));
    if (w == NULL)
        return ch__fail_memory(path);
    opt = opt != NULL ? opt : &defaults;
    w->fd = w->lock = -1;
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
    if (w->fd >= 0)
        ch__sys_close(w->fd);
    if (w->is_there)
        ch__sys_unlink(w->aside);
    if (w->lock >= 0)
        ch__sys_close(w->lock);
    ch__codec_free(w->codec);
    ch__free(w->buffer);
    ch__free(w->aside);
    ch__free(w->path);
    ch__free(w);
}

/* ---- tidying up ---- */

/* The file of a folder, if nobody has its lock. */
static void remove_dead(const char *folder, size_t folder_bytes, const char *name)
{
    size_t room = folder_bytes + strlen(name) + 1;
    char  *path = ch__malloc(room);
    int    fd;

    if (path == NULL)
        return;
    snprintf(path, room, "%.*s%s", (int)folder_bytes, folder, name);
    fd = ch__sys_open(path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd >= 0 && ch__sys_lock(fd))
        ch__sys_unlink(path);
    if (fd >= 0)
        ch__sys_close(fd);
    ch__free(path);
}

static bool is_aside(const char *name, const char *begin)
{
    size_t n = strlen(begin);

    return strncmp(name, begin, n) == 0 && name[n + strspn(name + n, "0123456789-")] == '\0';
}

void ch__writer_tidy(const char *path)
{
    const char    *slash = strrchr(path, '/');
    size_t         folder_bytes = slash != NULL ? (size_t)(slash - path) + 1 : 0;
    char           begin[256], *folder = ch__strdup(folder_bytes > 0 ? path : ".");
    DIR           *d;
    struct dirent *e;

    if (folder == NULL)
        return;
    if (folder_bytes > 0)
        folder[folder_bytes] = '\0';
    snprintf(begin, sizeof(begin), ASIDE, path + folder_bytes);
    d = opendir(folder);
    while (d != NULL && (e = readdir(d)) != NULL)
        if (is_aside(e->d_name, begin))
            remove_dead(path, folder_bytes, e->d_name);
    if (d != NULL)
        closedir(d);
    ch__free(folder);
}

int64_t ch__writer_offset(const ch_writer *w)
{
    return w->n_file + (int64_t)w->n_buffer;
}

const char *ch__writer_path(const ch_writer *w)
{
    return w->path;
}

/* ---- writing ---- */

static ch_status fail_again(const ch_writer *w)
{
    return ch__fail(w->failed, "%s: given up, since writing it failed before", w->path);
}

static ch_status write_out(ch_writer *w, const char *data, size_t n)
{
    while (n > 0) {
        ssize_t put = ch__sys_write(w->fd, data, n);

        if (put < 0)
            return fail_write(w, errno, "writing");
        data += put;
        n -= (size_t)put;
        w->n_file += put;
    }
    return CH_OK;
}

static ch_status flush(ch_writer *w)
{
    size_t n = w->n_buffer;

    w->n_buffer = 0;
    return write_out(w, w->buffer, n);
}

static ch_status put_plain(ch_writer *w, const char *data, size_t n)
{
    if (n > BUFFER_BYTES - w->n_buffer) {
        ch_status rc = flush(w);

        if (rc != CH_OK)
            return rc;
    }
    if (n >= BUFFER_BYTES)
        return write_out(w, data, n);
    memcpy(w->buffer + w->n_buffer, data, n);
    w->n_buffer += n;
    return CH_OK;
}

/* All of `data` through the encoder, and with `is_last` what that still holds. */
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
        return fail_again(w);
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
    ch_status rc = w->failed != CH_OK ? fail_again(w) : CH_OK;

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
    ch_status   rc = w->failed != CH_OK ? fail_again(w) : flush(w);

    while (rc == CH_OK && n > 0) {
        ssize_t put = ch__sys_pwrite(w->fd, from, n, offset);

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
    int fd = w->fd;

    if (!w->no_sync && ch__sys_sync(fd) != 0)
        return fail_write(w, errno,
                          "syncing"); /* what is on disk is not known: no second try */
    w->fd = -1;
    return ch__sys_close(fd) == 0 ? CH_OK : fail_write(w, errno, "closing");
}

/* Where it is not known how to sync a folder (EINVAL), renaming has to do. */
static ch_status sync_folder(ch_writer *w)
{
    ch_status rc = CH_OK;

    w->aside[w->folder_bytes] = '\0';
    const char *folder = w->folder_bytes > 0 ? w->aside : ".";
    int         fd = ch__sys_open(folder, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0)
        return ch__fail_errno(
            errno, "%s: written, but its folder cannot be opened to be synced", w->path);
    if (ch__sys_sync(fd) != 0 && errno != EINVAL)
        rc = ch__fail_errno(errno, "%s: written, but its folder cannot be synced", w->path);
    ch__sys_close(fd);
    return rc;
}

static ch_status commit(ch_writer *w)
{
    ch_status rc = w->failed != CH_OK ? fail_again(w) : CH_OK;

    if (rc == CH_OK && w->codec != NULL)
        rc = put_encoded(w, "", 0, true);
    if (rc == CH_OK)
        rc = flush(w);
    if (rc == CH_OK)
        rc = sync_file(w);
    if (rc != CH_OK)
        return rc;
    if (ch__sys_rename(w->aside, w->path) != 0)
        return ch__fail_errno(errno, "%s: all is written, but %s cannot be renamed to it",
                              w->path, w->aside);
    w->is_there = false;
    return w->no_sync ? CH_OK : sync_folder(w);
}

ch_status ch__writer_commit(ch_writer *w)
{
    ch_status rc = commit(w);

    ch__writer_drop(w);
    return rc;
}
