/* file/writer.c -- writes to a temporary file, syncs, renames.
 *
 * struct ch_writer holds the temporary file, a buffer and an optional encoder. Bytes go through
 * the encoder into the buffer, and from there to the file. Arrays, records, archives and
 * exports are saved with this writer; log files that grow during training are not.
 *
 *   1. The temporary file is in the folder of the destination, so that rename is atomic.
 *   2. The writer holds the temporary file's lock until the rename. ch__writer_tidy removes
 *      only temporary files that it can lock.
 *   3. The temporary file has mode 0600 until the commit, so that no other user can open it
 *      earlier. It gets its final mode before the sync, so that the mode is durable too.
 *   4. After the first failure the writer never renames: `failed` makes all later calls fail.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "file/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/mutant.h"
#include "base/sys.h"
#include "file/codec.h"

enum { BUFFER_BYTES = 256 << 10 };

struct ch_writer {
    char *path, *temp; /* destination, and path of the temporary file */
    /* length of the folder in `path` and `temp`, with its slash; 0: the current folder */
    int       folder_bytes;
    int       fd;       /* the temporary file; -1: closed */
    int       lock;     /* duplicate of `fd`: keeps the lock after `fd` is closed; -1: none */
    bool      has_temp; /* the temporary file exists */
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

/* ---- opening ---- */

/* The temporary file is called ".name.tmp-PID-COUNTER". The leading dot keeps patterns that
 * match the destination from matching the temporary file. The name is cut to 200 bytes, because
 * the longer name must fit into a directory entry too. */
#define TEMP_PREFIX ".%.200s.tmp-"

static ch_status name_temp(ch_writer *w)
{
    static atomic_uint counter;
    const char        *slash = strrchr(w->path, '/');
    size_t             room = strlen(w->path) + 64;

    w->folder_bytes = slash != NULL ? (int)(slash - w->path) + 1 : 0;
    if (w->temp == NULL)
        w->temp = ch__malloc(room);
    if (w->temp == NULL)
        return ch__fail_memory(w->path);
    snprintf(w->temp, room, "%.*s" TEMP_PREFIX "%ld-%u", w->folder_bytes, w->path,
             w->path + w->folder_bytes, (long)getpid(), atomic_fetch_add(&counter, 1));
    return CH_OK;
}

/* Locks the temporary file. Returns false if the caller must try another name, because
 * ch__writer_tidy of another writer has locked or removed this file. If the file system has no
 * locks, returns true without a lock; ch__writer_tidy removes nothing there. */
static bool lock_temp(ch_writer *w, int tries)
{
    enum { MAX_TRIES = 100 }; /* in case a file system always reports a link count of 0 */

    if (!ch__sys_lock(w->fd) && (errno == EWOULDBLOCK || errno == ENOENT) &&
        tries < MAX_TRIES) {
        ch__sys_close(w->fd);
        w->fd = -1;
        return false;
    }
    w->lock = ch__sys_dup(w->fd);
    return true;
}

/* Creates and locks the temporary file. If the name exists, a process with the same id has left
 * it; the next counter gives another name. */
static ch_status open_temp(ch_writer *w)
{
    int       tries = 0;
    ch_status rc;

    do {
        rc = name_temp(w);
        if (rc != CH_OK)
            return rc;
        w->fd = ch__sys_open(w->temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    } while (w->fd < 0 ? errno == EEXIST : !lock_temp(w, tries++));
    if (w->fd < 0)
        return ch__fail_errno(errno,
                              "%s: cannot be written: temporary file %s cannot be created",
                              w->path, w->temp);
    w->has_temp = true;
    return CH_OK;
}

/* ---- the existing file ---- */

/* Checks the object at the destination. A regular file is replaced and its mode is kept. A link
 * is replaced and not followed, because otherwise the creator of the link would choose which
 * file is written (PROMISES S8). Anything else is INVALID_ARGUMENT. */
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
    return open_temp(w);
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
    if (w->has_temp)
        ch__sys_unlink(w->temp);
    if (w->lock >= 0)
        ch__sys_close(w->lock);
    ch__codec_free(w->codec);
    ch__free(w->buffer);
    ch__free(w->temp);
    ch__free(w->path);
    ch__free(w);
}

/* ---- removing stale temporary files ---- */

/* Removes a temporary file unless a writer holds its lock. */
static void remove_stale(const char *folder, size_t folder_bytes, const char *name)
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

/* Returns whether `name` is `prefix`, followed only by digits and dashes. */
static bool is_temp_name(const char *name, const char *prefix)
{
    size_t n = strlen(prefix);

    return strncmp(name, prefix, n) == 0 && name[n + strspn(name + n, "0123456789-")] == '\0';
}

void ch__writer_tidy(const char *path)
{
    const char    *slash = strrchr(path, '/');
    size_t         folder_bytes = slash != NULL ? (size_t)(slash - path) + 1 : 0;
    char           prefix[256], *folder = ch__strdup(folder_bytes > 0 ? path : ".");
    DIR           *d;
    struct dirent *e;

    if (folder == NULL)
        return;
    if (folder_bytes > 0)
        folder[folder_bytes] = '\0';
    snprintf(prefix, sizeof(prefix), TEMP_PREFIX, path + folder_bytes);
    d = ch__sys_opendir(folder);
    while (d != NULL && (e = ch__sys_readdir(d)) != NULL)
        if (is_temp_name(e->d_name, prefix))
            remove_stale(path, folder_bytes, e->d_name);
    if (d != NULL)
        ch__sys_closedir(d);
    ch__free(folder);
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
        ssize_t put = ch__sys_write(w->fd, data, n);

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

/* Gives the temporary file, which was private until now, the mode of the file that it replaces,
 * or else the mode that the umask leaves. A new file stays as it is if its file system has no
 * modes (EPERM, EOPNOTSUPP). */
static ch_status set_mode(ch_writer *w)
{
    mode_t mode = w->replaces ? w->mode : 0666 & ~ch__sys_umask();

    if (ch__sys_chmod(w->fd, mode) == 0 ||
        (!w->replaces && (errno == EPERM || errno == EOPNOTSUPP)))
        return CH_OK;
    return ch__fail_errno(errno,
                          "%s: cannot be written: temporary file %s cannot be given mode %o",
                          w->path, w->temp, (unsigned)mode);
}

static ch_status sync_file(ch_writer *w)
{
    int fd = w->fd;

    /* After a failed fsync the contents on disk are unknown, so there is no retry (F12). */
    if (!w->no_sync && CH_KEEPS(FILESYNC) && ch__sys_sync(fd) != 0)
        return fail_write(w, errno, "syncing");
    w->fd = -1;
    return ch__sys_close(fd) == 0 ? CH_OK : fail_write(w, errno, "closing");
}

/* Syncs the folder, so that the rename is durable. */
static ch_status sync_folder(ch_writer *w)
{
    w->temp[w->folder_bytes] = '\0';
    if (ch__sys_sync_folder(w->folder_bytes > 0 ? w->temp : ".") == 0)
        return CH_OK;
    return ch__fail_errno(
        errno,
        "%s: written, but its folder cannot be synced; a power failure may lose the file",
        w->path);
}

static ch_status commit(ch_writer *w)
{
    ch_status rc = w->failed != CH_OK ? fail_after_failure(w) : CH_OK;

    if (rc == CH_OK && w->codec != NULL)
        rc = put_encoded(w, "", 0, true);
    if (rc == CH_OK)
        rc = flush(w);
    if (rc == CH_OK)
        rc = set_mode(w);
    if (rc == CH_OK)
        rc = sync_file(w);
    if (rc != CH_OK)
        return rc;
    if (ch__sys_rename(w->temp, w->path) != 0)
        return ch__fail_errno(
            errno, "%s: not replaced: the complete temporary file %s cannot be renamed",
            w->path, w->temp);
    w->has_temp = false;
    return w->no_sync || !CH_KEEPS(FOLDERSYNC) ? CH_OK : sync_folder(w);
}

ch_status ch__writer_commit(ch_writer *w)
{
    ch_status rc = commit(w);

    ch__writer_drop(w);
    return rc;
}
