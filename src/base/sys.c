/* base/sys.c -- system calls on files; tests can count, fail, limit and observe them.
 *
 * Each wrapper counts its call, fails if a test asked for that, repeats the system call after
 * EINTR, and reports a change to the observer of a test. All modules that read or write files
 * call these wrappers. The counters are atomic, because several threads read and write files.
 * An observed call holds `observing`, so that the observer gets the calls in the order of their
 * effects: a sync is reported after exactly the writes that it made durable.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"

static atomic_int_least64_t n_calls;
/* number of the first call that may fail, counted as n_calls; 0: none */
static atomic_int_least64_t fail_at;
static atomic_int           fail_errno;
static atomic_bool          fail_lasts;   /* all calls from fail_at on fail, not only one */
static atomic_size_t        max_io_bytes; /* most bytes of a read or write; 0: no limit */

static _Atomic(ch_file_observer) observer; /* NULL: none; changed under `observing` */
static void                     *observer_arg;
static pthread_mutex_t           observing = PTHREAD_MUTEX_INITIALIZER;

/* Returns true and sets errno if a test wants this call, number `nth`, to fail. */
static bool must_fail(int64_t nth, bool needs_space)
{
    int64_t first = atomic_load_explicit(&fail_at, memory_order_acquire);
    int     error = atomic_load_explicit(&fail_errno, memory_order_relaxed);

    if (first == 0 || nth < first || (!needs_space && (error == ENOSPC || error == EDQUOT)))
        return false;
    if (!atomic_load_explicit(&fail_lasts, memory_order_relaxed) &&
        !atomic_compare_exchange_strong(&fail_at, &first, 0))
        return false; /* a call of another thread fails */
    errno = error;
    return true;
}

/* Counts a call. Returns false and sets errno if a test wants this call to fail. `needs_space`:
 * the call may fail because the disk is full. */
static bool may_call(bool needs_space)
{
    int64_t nth = atomic_fetch_add_explicit(&n_calls, 1, memory_order_relaxed) + 1;

    return atomic_load_explicit(&fail_at, memory_order_relaxed) == 0 ||
           !must_fail(nth, needs_space);
}

/* Begins a call that a test may observe. Returns whether a test does; report must follow
 * then. */
static bool is_observed(void)
{
    if (atomic_load_explicit(&observer, memory_order_relaxed) == NULL)
        return false;
    pthread_mutex_lock(&observing);
    return true;
}

/* Ends an observed call. Keeps errno. */
static void report(bool succeeded, const ch_file_op *op)
{
    int              error = errno;
    ch_file_observer f = atomic_load_explicit(&observer, memory_order_relaxed);

    if (succeeded && f != NULL)
        f(observer_arg, op);
    pthread_mutex_unlock(&observing);
    errno = error;
}

/* Returns n, or the limit that a test has set if that is smaller. */
static size_t limit(size_t n)
{
    size_t most = atomic_load_explicit(&max_io_bytes, memory_order_relaxed);

    return most > 0 && n > most ? most : n;
}

/* Simulates a signal: if a test has set a limit, the first round of each call is
 * interrupted. */
static bool is_interrupted(int round)
{
    if (round > 0 || atomic_load_explicit(&max_io_bytes, memory_order_relaxed) == 0)
        return false;
    errno = EINTR;
    return true;
}

int ch__sys_open(const char *path, int flags, mode_t mode)
{
    int  fd;
    bool observed;

    if (!may_call((flags & O_CREAT) != 0))
        return -1;
    observed = is_observed();
    do
        fd = open(path, flags | O_CLOEXEC, mode);
    while (fd < 0 && errno == EINTR);
    if (observed)
        report(fd >= 0,
               &(ch_file_op){.kind = CH_FILE_OPEN, .fd = fd, .flags = flags, .path = path});
    return fd;
}

ssize_t ch__sys_read(int fd, void *to, size_t n)
{
    ssize_t got;
    int     round = 0;

    if (!may_call(false))
        return -1;
    do
        got = is_interrupted(round) ? -1 : read(fd, to, limit(n));
    while (got < 0 && errno == EINTR && ++round > 0);
    return got;
}

ssize_t ch__sys_write(int fd, const void *from, size_t n)
{
    ssize_t put;
    int     round = 0;
    bool    observed;

    if (!may_call(true))
        return -1;
    observed = is_observed();
    do
        put = is_interrupted(round) ? -1 : write(fd, from, limit(n));
    while (put < 0 && errno == EINTR && ++round > 0);
    if (observed)
        report(put > 0, &(ch_file_op){.kind = CH_FILE_WRITE,
                                      .fd = fd,
                                      .offset = lseek(fd, 0, SEEK_CUR) - put,
                                      .bytes = from,
                                      .n = put > 0 ? (size_t)put : 0});
    return put;
}

ssize_t ch__sys_pread(int fd, void *to, size_t n, int64_t offset)
{
    ssize_t got;
    int     round = 0;

    if (!may_call(false))
        return -1;
    do
        got = is_interrupted(round) ? -1 : pread(fd, to, limit(n), offset);
    while (got < 0 && errno == EINTR && ++round > 0);
    return got;
}

ssize_t ch__sys_pwrite(int fd, const void *from, size_t n, int64_t offset)
{
    ssize_t put;
    int     round = 0;
    bool    observed;

    if (!may_call(true))
        return -1;
    observed = is_observed();
    do
        put = is_interrupted(round) ? -1 : pwrite(fd, from, limit(n), offset);
    while (put < 0 && errno == EINTR && ++round > 0);
    if (observed)
        report(put > 0, &(ch_file_op){.kind = CH_FILE_WRITE,
                                      .fd = fd,
                                      .offset = offset,
                                      .bytes = from,
                                      .n = put > 0 ? (size_t)put : 0});
    return put;
}

int64_t ch__sys_seek(int fd, int64_t offset, int whence)
{
    return may_call(false) ? lseek(fd, offset, whence) : -1;
}

int ch__sys_stat(int fd, struct stat *out)
{
    return may_call(false) ? fstat(fd, out) : -1;
}

int ch__sys_lstat(const char *path, struct stat *out)
{
    return may_call(false) ? lstat(path, out) : -1;
}

int ch__sys_chmod(int fd, mode_t mode)
{
    return may_call(false) ? fchmod(fd, mode) : -1;
}

int ch__sys_truncate(int fd, int64_t bytes)
{
    int  rc;
    bool observed;

    if (!may_call(true))
        return -1;
    observed = is_observed();
    do
        rc = ftruncate(fd, bytes);
    while (rc < 0 && errno == EINTR);
    if (observed)
        report(rc == 0, &(ch_file_op){.kind = CH_FILE_TRUNCATE, .fd = fd, .offset = bytes});
    return rc;
}

int ch__sys_sync(int fd)
{
    int  rc;
    bool observed;

    if (!may_call(true))
        return -1;
    observed = is_observed();
    do
        rc = fsync(fd);
    while (rc < 0 && errno == EINTR);
    if (observed)
        report(rc == 0, &(ch_file_op){.kind = CH_FILE_SYNC, .fd = fd});
    return rc;
}

/* Does not repeat after EINTR: on Linux the descriptor is closed then, and another thread may
 * already have got its number. */
int ch__sys_close(int fd)
{
    if (is_observed())
        report(true, &(ch_file_op){.kind = CH_FILE_CLOSE, .fd = fd});
    return close(fd);
}

/* ---- names ---- */

/* Begins a call that changes names. Returns false if the call must fail. Sets *observed to
 * whether end_change must report it. */
static bool begin_change(bool needs_space, bool *observed)
{
    if (!may_call(needs_space))
        return false;
    *observed = is_observed();
    return true;
}

/* Reports the call to the observer, if it is observed. Returns rc, the result of the system
 * call. */
static int end_change(int rc, bool observed, const ch_file_op *op)
{
    if (observed)
        report(rc == 0, op);
    return rc;
}

int ch__sys_rename(const char *from, const char *to)
{
    bool observed;

    return !begin_change(true, &observed)
               ? -1
               : end_change(rename(from, to), observed,
                            &(ch_file_op){.kind = CH_FILE_RENAME, .path = from, .to = to});
}

int ch__sys_unlink(const char *path)
{
    bool observed;

    return !begin_change(false, &observed)
               ? -1
               : end_change(unlink(path), observed,
                            &(ch_file_op){.kind = CH_FILE_UNLINK, .path = path});
}

int ch__sys_mkdir(const char *path)
{
    bool observed;

    return !begin_change(true, &observed)
               ? -1
               : end_change(mkdir(path, 0777), observed,
                            &(ch_file_op){.kind = CH_FILE_MKDIR, .path = path});
}

int ch__sys_rmdir(const char *path)
{
    bool observed;

    return !begin_change(false, &observed)
               ? -1
               : end_change(rmdir(path), observed,
                            &(ch_file_op){.kind = CH_FILE_RMDIR, .path = path});
}

int ch__sys_sync_folder(const char *path)
{
    int fd = ch__sys_open(path, O_RDONLY | O_DIRECTORY, 0), rc, error;

    if (fd < 0)
        return -1;
    rc = ch__sys_sync(fd) == 0 || errno == EINVAL ? 0 : -1;
    error = errno;
    ch__sys_close(fd);
    errno = error;
    return rc;
}

DIR *ch__sys_opendir(const char *path)
{
    return may_call(false) ? opendir(path) : NULL;
}

struct dirent *ch__sys_readdir(DIR *d)
{
    if (!may_call(false))
        return NULL;
    errno = 0;
    return readdir(d);
}

int ch__sys_closedir(DIR *d)
{
    return closedir(d);
}

/* ---- locks, the umask ---- */

bool ch__sys_lock(int fd)
{
    struct stat about;

    if (flock(fd, LOCK_EX | LOCK_NB) != 0 || fstat(fd, &about) != 0)
        return false;
    if (about.st_nlink > 0)
        return true;
    errno = ENOENT;
    return false;
}

int ch__sys_dup(int fd)
{
    bool observed = is_observed();
    int  copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);

    if (observed)
        report(copy >= 0, &(ch_file_op){.kind = CH_FILE_DUP, .fd = copy, .flags = fd});
    return copy;
}

mode_t ch__sys_umask(void)
{
    char        text[512]; /* "Umask:" is the second line */
    int         fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    ssize_t     n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;
    const char *line;

    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    line = strstr(text, "\nUmask:");
    return line != NULL ? (mode_t)strtoul(line + 7, NULL, 8) & 0777 : 077;
}

static ch_status status_of(int error)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR:
        return CH_NOT_FOUND;
    case EACCES:
    case EPERM:
    case EROFS:
        return CH_PERMISSION_DENIED;
    case EEXIST:
        return CH_ALREADY_EXISTS;
    case ENOMEM:
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
        return CH_RESOURCE_EXHAUSTED;
    case EINVAL:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
        return CH_INVALID_ARGUMENT;
    case EIO:
        return CH_DATA_LOSS;
    default:
        return CH_UNKNOWN;
    }
}

ch_status ch__fail_errno(int error, const char *format, ...)
{
    char    text[CH_FAULT_TEXT], reason[128];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return ch__fail_io(status_of(error), "%s: %s", text,
                       strerror_r(error, reason, sizeof(reason)));
}

int64_t ch__file_calls(void)
{
    return atomic_load_explicit(&n_calls, memory_order_relaxed);
}

static void fail_calls(int64_t n, int error, bool lasts)
{
    atomic_store_explicit(&fail_errno, error, memory_order_relaxed);
    atomic_store_explicit(&fail_lasts, lasts, memory_order_relaxed);
    atomic_store_explicit(&fail_at, n > 0 ? ch__file_calls() + n : 0, memory_order_release);
}

void ch__file_fail_at(int64_t n, int error)
{
    fail_calls(n, error, false);
}

void ch__file_fail_from(int64_t n, int error)
{
    fail_calls(n, error, true);
}

void ch__file_limit_io(size_t most)
{
    atomic_store_explicit(&max_io_bytes, most, memory_order_relaxed);
}

void ch__file_observe(ch_file_observer f, void *arg)
{
    pthread_mutex_lock(&observing);
    observer_arg = arg;
    atomic_store_explicit(&observer, f, memory_order_relaxed);
    pthread_mutex_unlock(&observing);
}
