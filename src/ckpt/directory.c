/* ckpt/directory.c -- lists, finds and removes checkpoints, and locks their directory.
 *
 * A name X belongs to a checkpoint if the file X.index exists; its data files are called
 * X.data-NNNNN-of-NNNNN. The module save/ keeps a directory with these functions.
 *
 *   1. The index is removed first, and the removal is synced before any data file is removed.
 *      So a crash never leaves an index without its data.
 *   2. The lock is a lock on the file LOCK_FILE, which ends with the process. The file holds
 *      the process id, for messages.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "ckpt/directory.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/sys.h"
#include "ckpt/state_file.h"
#include "file/folder.h"
#include "file/temp.h"

#define INDEX_SUFFIX ".index"
#define LOCK_FILE    ".cohort-lock"

/* ---- names ---- */

/* Returns the length of the checkpoint's name if the file is an index, else 0. */
static size_t index_stem(const char *file)
{
    size_t n = strlen(file), m = strlen(INDEX_SUFFIX);

    return file[0] != '.' && n > m && strcmp(file + n - m, INDEX_SUFFIX) == 0 ? n - m : 0;
}

/* Returns the length of the checkpoint's name if the file is a data file, else 0. */
static size_t data_stem(const char *file)
{
    static const char form[] = ".data-00000-of-00000";
    size_t            n = strlen(file), m = strlen(form);

    if (file[0] == '.' || n <= m)
        return 0;
    for (size_t i = 0; i < m; i++) {
        char c = file[n - m + i];

        if (form[i] == '0' ? c < '0' || c > '9' : c != form[i])
            return 0;
    }
    return n - m;
}

/* Writes "directory/name" with a suffix. Returns false if the path is too long. */
static bool join(char path[PATH_MAX], const char *directory, const char *name, size_t n,
                 const char *suffix)
{
    return snprintf(path, PATH_MAX, "%s/%.*s%s", directory, (int)n, name, suffix) < PATH_MAX;
}

/* ---- listing ---- */

static bool add_name(ch_ckpt_list *l, const char *name, size_t n)
{
    char *copy;

    if (!ch__grow((void **)&l->name, &l->capacity, l->n + 1, sizeof(*l->name)))
        return false;
    copy = ch__malloc(n + 1);
    if (copy == NULL)
        return false;
    memcpy(copy, name, n);
    copy[n] = '\0';
    l->name[l->n++] = copy;
    return true;
}

/* The files that a listing looks for. */
typedef struct dir_search {
    ch_ckpt_list *found;
    const char   *prefix; /* of the names */
    size_t (*stem)(const char *file);
    bool is_exact;  /* the stem must be `prefix` */
    bool keep_file; /* the list gets names of files, not of checkpoints */
    bool has_failed;
} dir_search;

static bool visit_file(void *arg, const char *file)
{
    dir_search *s = arg;
    size_t      n = s->stem(file), m = strlen(s->prefix);

    if (n == 0 || n < m || strncmp(file, s->prefix, m) != 0 || (s->is_exact && n != m))
        return true;
    s->has_failed = !add_name(s->found, file, s->keep_file ? strlen(file) : n);
    return !s->has_failed;
}

static ch_status search(const char *directory, dir_search *s)
{
    int error = ch__folder_list(directory, visit_file, s);

    return s->has_failed ? ch__fail_memory(directory)
           : error != 0  ? ch__fail_errno(error, "%s: cannot be listed", directory)
                         : CH_OK;
}

/* Returns the length of a name without the digits at its end. */
static size_t without_number(const char *name)
{
    size_t n = strlen(name);

    while (n > 0 && name[n - 1] >= '0' && name[n - 1] <= '9')
        n--;
    return n;
}

static int compare_checkpoints(const void *a, const void *b)
{
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    size_t      m = without_number(x), n = without_number(y);
    int         order = strncmp(x, y, m < n ? m : n);

    if (order != 0)
        return order;
    if (m != n)
        return m < n ? -1 : 1;
    x += m + strspn(x + m, "0");
    y += n + strspn(y + n, "0");
    m = strlen(x);
    n = strlen(y);
    order = m != n ? (m < n ? -1 : 1) : strcmp(x, y);
    return order != 0 ? order : strcmp(*(char *const *)a, *(char *const *)b);
}

ch_status ch__ckpt_list(const char *directory, ch_ckpt_list *out)
{
    dir_search s = {.found = out, .prefix = "", .stem = index_stem};
    ch_status  rc = search(directory, &s);

    if (rc == CH_OK && out->n > 1)
        qsort(out->name, (size_t)out->n, sizeof(*out->name), compare_checkpoints);
    return rc;
}

void ch__ckpt_list_drop(ch_ckpt_list *l)
{
    for (int i = 0; i < l->n; i++)
        ch__free(l->name[i]);
    ch__free(l->name);
    *l = (ch_ckpt_list){0};
}

/* A listing of all files. */
typedef struct files_search {
    ch_ckpt_files *found;
    const char    *directory;
    bool           has_failed;
} files_search;

static bool visit_any_file(void *arg, const char *file)
{
    files_search  *s = arg;
    ch_ckpt_files *l = s->found;
    size_t         index = index_stem(file), n = index > 0 ? index : data_stem(file);
    char           path[PATH_MAX];
    struct stat    about;
    ch_ckpt_file  *x;

    if (n == 0 || !join(path, s->directory, file, strlen(file), ""))
        return true;
    s->has_failed = !ch__grow((void **)&l->file, &l->capacity, l->n + 1, sizeof(*l->file));
    if (s->has_failed)
        return false;
    x = &l->file[l->n];
    *x = (ch_ckpt_file){.name = ch__malloc(n + 1), .has_index = index > 0};
    s->has_failed = x->name == NULL;
    if (s->has_failed)
        return false;
    memcpy(x->name, file, n);
    x->name[n] = '\0';
    if (ch__sys_lstat(path, &about) == 0)
        x->bytes = about.st_size;
    l->n++;
    return true;
}

/* Joins neighbours that are files of the same checkpoint. */
static void join_files(ch_ckpt_files *l)
{
    int n = 0;

    for (int i = 0; i < l->n; i++) {
        ch_ckpt_file *x = &l->file[i], *last = n > 0 ? &l->file[n - 1] : NULL;

        if (last != NULL && strcmp(last->name, x->name) == 0) {
            last->has_index |= x->has_index;
            last->bytes += x->bytes;
            ch__free(x->name);
        } else {
            l->file[n++] = *x;
        }
    }
    l->n = n;
}

static int compare_files(const void *a, const void *b)
{
    const ch_ckpt_file *x = a, *y = b;

    return compare_checkpoints(&x->name, &y->name);
}

ch_status ch__ckpt_list_files(const char *directory, ch_ckpt_files *out)
{
    files_search s = {.found = out, .directory = directory};
    int          error = ch__folder_list(directory, visit_any_file, &s);

    if (s.has_failed)
        return ch__fail_memory(directory);
    if (error != 0)
        return ch__fail_errno(error, "%s: cannot be listed", directory);
    if (out->n > 1)
        qsort(out->file, (size_t)out->n, sizeof(*out->file), compare_files);
    join_files(out);
    return CH_OK;
}

void ch__ckpt_files_drop(ch_ckpt_files *l)
{
    for (int i = 0; i < l->n; i++)
        ch__free(l->file[i].name);
    ch__free(l->file);
    *l = (ch_ckpt_files){0};
}

/* ---- finding ---- */

static bool exists(const char *path)
{
    struct stat about;

    return ch__sys_lstat(path, &about) == 0;
}

/* Returns whether the index of a prefix exists. */
static bool has_index(const char *prefix)
{
    char path[PATH_MAX];

    return snprintf(path, sizeof(path), "%s" INDEX_SUFFIX, prefix) < (int)sizeof(path) &&
           exists(path);
}

static ch_status copy_path(const char *path, size_t n, char *to, size_t size)
{
    if (n >= size)
        return ch__fail(CH_INVALID_ARGUMENT, "%.200s: the path needs %zu bytes (got %zu)", path,
                        n + 1, size);
    memcpy(to, path, n);
    to[n] = '\0';
    return CH_OK;
}

ch_status ch__ckpt_join(const char *directory, const char *name, char *path, size_t size)
{
    char   joined[2 * PATH_MAX];
    size_t n = strlen(directory);

    while (n > 1 && directory[n - 1] == '/')
        n--;
    snprintf(joined, sizeof(joined), "%.*s%s%s", (int)n, directory,
             n == 1 && directory[0] == '/' ? "" : "/", name);
    return copy_path(joined, strlen(joined), path, size);
}

ch_status ch__ckpt_find_latest(const char *directory, char *prefix, size_t size)
{
    ch_state_file s = {.memory = NULL};
    char          path[PATH_MAX];
    ch_status     rc = ch__state_file_read(directory, &s);

    if (rc == CH_NOT_FOUND)
        return ch__fail(rc,
                        "%s: no checkpoint: the directory has no file \"" CH_STATE_FILE
                        "\"; a checkpoint that it does not list is named by its prefix",
                        directory);
    if (rc == CH_OK)
        rc = ch__ckpt_join(directory, s.latest, path, sizeof(path));
    ch__free(s.memory);
    if (rc == CH_OK && !has_index(path))
        rc = ch__fail(CH_NOT_FOUND,
                      "%s: no checkpoint: the file \"" CH_STATE_FILE
                      "\" names %s, which does not exist",
                      directory, path);
    return rc == CH_OK ? copy_path(path, strlen(path), prefix, size) : rc;
}

ch_status ch__ckpt_check_name(const char *prefix)
{
    const char *slash = strrchr(prefix, '/');

    return (slash != NULL ? slash[1] : prefix[0]) != '\0'
               ? CH_OK
               : ch__fail(CH_INVALID_ARGUMENT,
                          "checkpoint: \"%s\" is a directory; add a name, such as \"%sckpt\"",
                          prefix, prefix);
}

ch_status ch__ckpt_make_folder(const char *prefix)
{
    const char *slash = strrchr(prefix, '/');
    char        path[PATH_MAX];

    if (slash == NULL || slash == prefix)
        return CH_OK;
    if (snprintf(path, sizeof(path), "%.*s", (int)(slash - prefix), prefix) >=
        (int)sizeof(path))
        return ch__fail_errno(ENAMETOOLONG, "%s: cannot be written", prefix);
    return ch__folder_make(path);
}

ch_status ch__ckpt_check_free(const char *prefix, const char *remedy)
{
    char        path[PATH_MAX];
    struct stat about;

    if (snprintf(path, sizeof(path), "%s" INDEX_SUFFIX, prefix) >= (int)sizeof(path))
        return ch__fail_errno(ENAMETOOLONG, "%s: cannot be written", prefix);
    if (ch__sys_lstat(path, &about) == 0)
        return ch__fail(CH_ALREADY_EXISTS, "checkpoint: %s exists; %s", path, remedy);
    return errno == ENOENT ? CH_OK : ch__fail_errno(errno, "%s: cannot be written", prefix);
}

static bool is_directory(const char *path)
{
    int fd = ch__sys_open(path, O_RDONLY | O_DIRECTORY | O_NONBLOCK, 0);

    if (fd >= 0)
        ch__sys_close(fd);
    return fd >= 0;
}

ch_status ch__ckpt_resolve(const char *path, char *prefix, size_t size)
{
    size_t    n = strlen(path), m = strlen(INDEX_SUFFIX);
    char      model[PATH_MAX];
    ch_status rc;

    if (has_index(path))
        return copy_path(path, n, prefix, size);
    if (n > m && strcmp(path + n - m, INDEX_SUFFIX) == 0)
        return copy_path(path, n - m, prefix, size);
    if (!is_directory(path))
        return copy_path(path, n, prefix, size);
    rc = ch__ckpt_join(path, "variables/variables", model, sizeof(model));
    return rc == CH_OK && has_index(model) ? copy_path(model, strlen(model), prefix, size)
                                           : ch__ckpt_find_latest(path, prefix, size);
}

/* ---- removal ---- */

/* Removes a file; a file that does not exist is no error. A directory in its place is no file
 * of a checkpoint, and stays. */
static ch_status remove_file(const char *path)
{
    return ch__sys_unlink(path) == 0 || errno == ENOENT || errno == EISDIR
               ? CH_OK
               : ch__fail_errno(errno, "%s: cannot be removed", path);
}

ch_status ch__ckpt_remove(const char *prefix, bool no_sync)
{
    ch_ckpt_list files = {0};
    const char  *slash = strrchr(prefix, '/');
    char         directory[PATH_MAX] = ".", path[PATH_MAX];
    dir_search   s = {.found = &files,
                      .prefix = slash != NULL ? slash + 1 : prefix,
                      .stem = data_stem,
                      .is_exact = true,
                      .keep_file = true};
    ch_status    rc;

    if (slash != NULL)
        snprintf(directory, sizeof(directory), "%.*s",
                 (int)(slash - prefix) + (slash == prefix), prefix);
    if (snprintf(path, sizeof(path), "%s" INDEX_SUFFIX, prefix) >= (int)sizeof(path))
        return ch__fail_errno(ENAMETOOLONG, "%s: cannot be removed", prefix);
    rc = remove_file(path);
    if (rc == CH_OK && !no_sync) {
        int error = ch__folder_sync(path);

        if (error != 0)
            rc = ch__fail_errno(error, "%s: removed, but its folder cannot be synced", path);
    }
    if (rc == CH_OK)
        rc = search(directory, &s);
    for (int i = 0; i < files.n && rc == CH_OK; i++)
        if (join(path, directory, files.name[i], strlen(files.name[i]), ""))
            rc = remove_file(path);
    ch__ckpt_list_drop(&files);
    return rc;
}

/* Returns whether a file exists; true if that is not known. */
static bool may_exist(const char *path)
{
    int fd = ch__sys_open(path, O_RDONLY | O_NONBLOCK, 0);

    if (fd >= 0)
        ch__sys_close(fd);
    return fd >= 0 || errno != ENOENT;
}

void ch__ckpt_remove_leftovers(const char *directory, const char *name)
{
    ch_ckpt_list files = {0};
    dir_search   s = {.found = &files, .prefix = name, .stem = data_stem, .keep_file = true};
    char         path[PATH_MAX];

    ch__temp_tidy_folder(directory, name);
    if (join(path, directory, CH_STATE_FILE, strlen(CH_STATE_FILE), ""))
        ch__temp_tidy(path);
    if (search(directory, &s) == CH_OK)
        for (int i = 0; i < files.n; i++) {
            size_t n = data_stem(files.name[i]);

            if (join(path, directory, files.name[i], n, INDEX_SUFFIX) && !may_exist(path) &&
                join(path, directory, files.name[i], strlen(files.name[i]), ""))
                ch__sys_unlink(path);
        }
    ch__ckpt_list_drop(&files);
}

/* ---- the lock ---- */

struct ch_ckpt_lock {
    int  fd;
    char path[PATH_MAX];
};

/* Fails because another process holds the lock of the open file. */
static ch_status fail_locked(const char *directory, int fd)
{
    char    text[32] = "";
    ssize_t n = ch__sys_pread(fd, text, sizeof(text) - 1, 0);

    text[n > 0 ? n : 0] = '\0';
    text[strspn(text, "0123456789")] = '\0';
    return ch__fail(CH_FAILED_PRECONDITION,
                    "%s: another checkpoint manager writes to this directory (process %s); "
                    "choose another directory, or end that process",
                    directory, text[0] != '\0' ? text : "not known");
}

/* Writes the process id into the lock file. The file is new or from a killed process; a longer
 * id of that process is cut off by the newline. */
static ch_status write_pid(const ch_ckpt_lock *l)
{
    char text[32];
    int  n = snprintf(text, sizeof(text), "%ld\n", (long)getpid());

    for (int at = 0; at < n;) {
        ssize_t put = ch__sys_pwrite(l->fd, text + at, (size_t)(n - at), at);

        if (put <= 0)
            return ch__fail_errno(put < 0 ? errno : ENOSPC, "%s: cannot be written", l->path);
        at += (int)put;
    }
    return CH_OK;
}

ch_status ch__ckpt_lock(const char *directory, ch_ckpt_lock **out)
{
    enum { MAX_TRIES = 100 };
    ch_ckpt_lock *l = ch__malloc(sizeof(*l));
    ch_status     rc = CH_OK;
    bool          is_locked = false;

    if (l == NULL)
        return ch__fail_memory(directory);
    if (!join(l->path, directory, LOCK_FILE, strlen(LOCK_FILE), ""))
        rc = ch__fail_errno(ENAMETOOLONG, "%s: cannot be locked", directory);
    /* The holder removes the file when it unlocks; then a new file must be locked. */
    for (int i = 0; i < MAX_TRIES && !is_locked && rc == CH_OK; i++) {
        l->fd = ch__sys_open(l->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0666);
        if (l->fd < 0) {
            rc = ch__fail_errno(errno, "%s: cannot be locked: %s cannot be opened", directory,
                                l->path);
            break;
        }
        is_locked = ch__sys_lock(l->fd);
        if (is_locked)
            break;
        if (errno == EWOULDBLOCK)
            rc = fail_locked(directory, l->fd);
        else if (errno != ENOENT || i == MAX_TRIES - 1)
            rc = ch__fail_errno(errno, "%s: cannot be locked", directory);
        ch__sys_close(l->fd);
    }
    if (rc == CH_OK) {
        rc = write_pid(l);
        if (rc != CH_OK) {
            ch__sys_unlink(l->path);
            ch__sys_close(l->fd);
        }
    }
    if (rc == CH_OK)
        *out = l;
    else
        ch__free(l);
    return rc;
}

bool ch__ckpt_is_locked(const ch_ckpt_lock *l)
{
    struct stat mine, now;

    return ch__sys_stat(l->fd, &mine) == 0 && ch__sys_lstat(l->path, &now) == 0 &&
           mine.st_dev == now.st_dev && mine.st_ino == now.st_ino;
}

void ch__ckpt_unlock(ch_ckpt_lock *l)
{
    if (l == NULL)
        return;
    if (ch__ckpt_is_locked(l)) /* the file may be another manager's */
        ch__sys_unlink(l->path);
    ch__sys_close(l->fd);
    ch__free(l);
}
