/* file/temp.c -- temporary files: names, locks, renames, removal of stale files.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "file/temp.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/sys.h"
#include "file/folder.h"

/* The temporary file is called ".name.tmp-PID-COUNTER". The leading dot keeps patterns that
 * match the destination from matching the temporary file. The name is cut to 200 bytes, because
 * the longer name must fit into a directory entry too. */
#define TEMP_PREFIX ".%.200s.tmp-"

static ch_status name_temp(ch_temp *t)
{
    static atomic_uint counter;
    const char        *slash = strrchr(t->path, '/');
    size_t             room = strlen(t->path) + 64;

    t->folder_bytes = slash != NULL ? (int)(slash - t->path) + 1 : 0;
    if (t->name == NULL)
        t->name = ch__malloc(room);
    if (t->name == NULL)
        return ch__fail_memory(t->path);
    snprintf(t->name, room, "%.*s" TEMP_PREFIX "%ld-%u", t->folder_bytes, t->path,
             t->path + t->folder_bytes, (long)getpid(), atomic_fetch_add(&counter, 1));
    return CH_OK;
}

/* Locks the temporary file. Returns false if the caller must try another name, because
 * ch__temp_tidy of another writer has locked or removed this file. If the file system has no
 * locks, returns true without a lock; ch__temp_tidy removes nothing there. */
static bool lock_temp(ch_temp *t, int tries)
{
    enum { MAX_TRIES = 100 }; /* in case a file system always reports a link count of 0 */

    if (!ch__sys_lock(t->fd) && (errno == EWOULDBLOCK || errno == ENOENT) &&
        tries < MAX_TRIES) {
        ch__sys_close(t->fd);
        t->fd = -1;
        return false;
    }
    t->lock = ch__sys_dup(t->fd);
    return true;
}

/* If the name exists, a process with the same id has left it; the next counter gives another
 * name. */
ch_status ch__temp_open(ch_temp *t, const char *path)
{
    int       tries = 0;
    ch_status rc;

    *t = (ch_temp){.path = path, .fd = -1, .lock = -1};
    do {
        rc = name_temp(t);
        if (rc != CH_OK)
            return rc;
        t->fd = ch__sys_open(t->name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    } while (t->fd < 0 ? errno == EEXIST : !lock_temp(t, tries++));
    if (t->fd < 0)
        return ch__fail_errno(errno,
                              "%s: cannot be written: temporary file %s cannot be created",
                              t->path, t->name);
    t->exists = true;
    return CH_OK;
}

/* A new file stays as it is if its file system has no modes (EPERM, EOPNOTSUPP). */
ch_status ch__temp_set_mode(const ch_temp *t, int mode)
{
    bool   replaces = mode >= 0;
    mode_t final = replaces ? (mode_t)mode : 0666 & ~ch__sys_umask();

    if (ch__sys_chmod(t->fd, final) == 0 ||
        (!replaces && (errno == EPERM || errno == EOPNOTSUPP)))
        return CH_OK;
    return ch__fail_errno(errno,
                          "%s: cannot be written: temporary file %s cannot be given mode %o",
                          t->path, t->name, (unsigned) final);
}

ch_status ch__temp_rename(ch_temp *t)
{
    if (ch__sys_rename(t->name, t->path) != 0)
        return ch__fail_errno(
            errno, "%s: not replaced: the complete temporary file %s cannot be renamed",
            t->path, t->name);
    t->exists = false;
    return CH_OK;
}

ch_status ch__temp_sync_folder(const ch_temp *t)
{
    int error = ch__folder_sync(t->path);

    return error == 0
               ? CH_OK
               : ch__fail_errno(error,
                                "%s: written, but its folder cannot be synced; a power failure "
                                "may lose the file",
                                t->path);
}

void ch__temp_drop(ch_temp *t)
{
    if (t->fd >= 0)
        ch__sys_close(t->fd);
    if (t->exists)
        ch__sys_unlink(t->name);
    if (t->lock >= 0)
        ch__sys_close(t->lock);
    ch__free(t->name);
    *t = (ch_temp){.fd = -1, .lock = -1};
}

/* ---- removing stale temporary files ---- */

/* The search for stale files in a folder. */
typedef struct stale {
    const char *folder;
    char        prefix[256]; /* of the names, with the leading dot */
    bool        is_whole;    /* `prefix` is the whole name up to the process id */
} stale;

/* Removes a temporary file unless its writer holds the lock. */
static void remove_stale(const char *folder, const char *name)
{
    size_t room = strlen(folder) + strlen(name) + 2;
    char  *path = ch__malloc(room);
    int    fd;

    if (path == NULL)
        return;
    snprintf(path, room, "%s/%s", folder, name);
    fd = ch__sys_open(path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd >= 0 && ch__sys_lock(fd))
        ch__sys_unlink(path);
    if (fd >= 0)
        ch__sys_close(fd);
    ch__free(path);
}

/* Returns whether `name` ends with ".tmp-", digits and dashes, from byte `from` on. */
static bool has_temp_end(const char *name, size_t from)
{
    const char *end = NULL;

    for (const char *at = strstr(name + from, ".tmp-"); at != NULL;
         at = strstr(at + 1, ".tmp-"))
        end = at + strlen(".tmp-");
    return end != NULL && end[strspn(end, "0123456789-")] == '\0';
}

static bool visit_stale(void *arg, const char *name)
{
    const stale *s = arg;
    size_t       n = strlen(s->prefix);

    if (strncmp(name, s->prefix, n) != 0)
        return true;
    if (s->is_whole ? name[n + strspn(name + n, "0123456789-")] == '\0' : has_temp_end(name, n))
        remove_stale(s->folder, name);
    return true;
}

void ch__temp_tidy(const char *path)
{
    const char *slash = strrchr(path, '/');
    char       *folder = ch__strdup(slash != NULL ? path : ".");
    stale       s = {.folder = folder, .is_whole = true};

    if (folder == NULL)
        return;
    if (slash != NULL)
        folder[slash - path + (slash == path)] = '\0';
    snprintf(s.prefix, sizeof(s.prefix), TEMP_PREFIX, slash != NULL ? slash + 1 : path);
    (void)ch__folder_list(folder, visit_stale, &s);
    ch__free(folder);
}

void ch__temp_tidy_folder(const char *folder, const char *prefix)
{
    stale s = {.folder = folder};

    snprintf(s.prefix, sizeof(s.prefix), ".%.200s", prefix);
    (void)ch__folder_list(folder, visit_stale, &s);
}
