/* base/sys.c -- system calls on files, counted; tests can make them fail or limit their bytes.
 *
 * Each wrapper counts its call, fails if a test asked for that, and repeats the system call
 * after EINTR. The counters are atomic, because several threads read and write files.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"

static atomic_int_least64_t n_calls;
/* number of the call that fails, counted as n_calls; 0: none */
static atomic_int_least64_t fail_at;
static atomic_size_t        max_io_bytes; /* most bytes of a read or write; 0: no limit */

/* Counts a call. Returns false and sets errno to EIO if a test wants this call to fail. */
static bool may_call(void)
{
    int64_t nth = atomic_fetch_add_explicit(&n_calls, 1, memory_order_relaxed) + 1;

    if (nth != atomic_load_explicit(&fail_at, memory_order_relaxed))
        return true;
    errno = EIO;
    return false;
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
    int fd;

    if (!may_call())
        return -1;
    do
        fd = open(path, flags | O_CLOEXEC, mode);
    while (fd < 0 && errno == EINTR);
    return fd;
}

ssize_t ch__sys_read(int fd, void *to, size_t n)
{
    ssize_t got;
    int     round = 0;

    if (!may_call())
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

    if (!may_call())
        return -1;
    do
        put = is_interrupted(round) ? -1 : write(fd, from, limit(n));
    while (put < 0 && errno == EINTR && ++round > 0);
    return put;
}

ssize_t ch__sys_pread(int fd, void *to, size_t n, int64_t offset)
{
    ssize_t got;
    int     round = 0;

    if (!may_call())
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

    if (!may_call())
        return -1;
    do
        put = is_interrupted(round) ? -1 : pwrite(fd, from, limit(n), offset);
    while (put < 0 && errno == EINTR && ++round > 0);
    return put;
}

int64_t ch__sys_seek(int fd, int64_t offset, int whence)
{
    return may_call() ? lseek(fd, offset, whence) : -1;
}

int ch__sys_stat(int fd, struct stat *out)
{
    return may_call() ? fstat(fd, out) : -1;
}

int ch__sys_lstat(const char *path, struct stat *out)
{
    return may_call() ? lstat(path, out) : -1;
}

int ch__sys_chmod(int fd, mode_t mode)
{
    return may_call() ? fchmod(fd, mode) : -1;
}

int ch__sys_sync(int fd)
{
    int rc;

    if (!may_call())
        return -1;
    do
        rc = fsync(fd);
    while (rc < 0 && errno == EINTR);
    return rc;
}

int ch__sys_rename(const char *from, const char *to)
{
    return may_call() ? rename(from, to) : -1;
}

int ch__sys_unlink(const char *path)
{
    return unlink(path);
}

int ch__sys_mkdir(const char *path)
{
    return may_call() ? mkdir(path, 0777) : -1;
}

/* Does not repeat after EINTR: on Linux the descriptor is closed then, and another thread may
 * already have got its number. */
int ch__sys_close(int fd)
{
    return close(fd);
}

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
    return fcntl(fd, F_DUPFD_CLOEXEC, 0);
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

void ch__file_fail_at(int64_t n)
{
    atomic_store_explicit(&fail_at, n > 0 ? ch__file_calls() + n : 0, memory_order_relaxed);
}

void ch__file_limit_io(size_t most)
{
    atomic_store_explicit(&max_io_bytes, most, memory_order_relaxed);
}
