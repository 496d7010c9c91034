/* base/sys.h -- wraps the system calls on files.
 *
 * All file access goes through these functions, as all memory comes from base/mem.h. Tests can
 * make the n-th call fail with any errno, limit the bytes of each read and write, and observe
 * the calls that change files. From these, test/file/crash.h builds the states that a power
 * failure may leave. Each function returns the result of its system call and sets errno. Calls
 * that a signal interrupts are repeated. Any thread may call them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_SYS_H
#define BASE_SYS_H

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "cohort/status.h"

struct stat;

int     ch__sys_open(const char *path, int flags, mode_t mode); /* adds O_CLOEXEC */
ssize_t ch__sys_read(int fd, void *to, size_t n);
ssize_t ch__sys_write(int fd, const void *from, size_t n);
ssize_t ch__sys_pread(int fd, void *to, size_t n, int64_t offset);
ssize_t ch__sys_pwrite(int fd, const void *from, size_t n, int64_t offset);
int64_t ch__sys_seek(int fd, int64_t offset, int whence);
int     ch__sys_stat(int fd, struct stat *out);
int     ch__sys_lstat(const char *path, struct stat *out); /* of a link, not of its target */
int     ch__sys_chmod(int fd, mode_t mode);
int     ch__sys_truncate(int fd, int64_t bytes); /* ftruncate */
int     ch__sys_sync(int fd);
int     ch__sys_rename(const char *from, const char *to);
int     ch__sys_unlink(const char *path);
int     ch__sys_close(int fd);
/* Locks an open file exclusively, against this process and others. The lock ends when the
 * descriptor and all its duplicates are closed. Does not block. Returns false with errno
 * EWOULDBLOCK if the file is locked, or ENOENT if it has been removed. */
bool ch__sys_lock(int fd);
int  ch__sys_dup(int fd); /* a second descriptor of the same open file; shares its lock */
/* Returns the umask of the process. Returns 077 if /proc/self/status does not state it: no
 * other function reads the umask without changing it for the other threads. */
mode_t ch__sys_umask(void);

/* ---- folders ---- */

int ch__sys_mkdir(const char *path); /* mode 0777, less the umask */
int ch__sys_rmdir(const char *path);
/* Syncs a folder, so that the names in it are durable. Returns 0 if the file system cannot sync
 * folders (EINVAL). */
int ch__sys_sync_folder(const char *path);
/* Lists the names in a folder, "." and ".." included. ch__sys_readdir returns NULL with errno 0
 * at the end, and NULL with another errno if it fails. */
DIR           *ch__sys_opendir(const char *path);
struct dirent *ch__sys_readdir(DIR *d);
int            ch__sys_closedir(DIR *d);

/* Returns the ch_status for `error`, an errno, and sets the message "<format>: <strerror>". */
ch_status ch__fail_errno(int error, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* ---- for tests ---- */

/* Returns the number of calls since the process began. Calls of close, closedir, lock, dup and
 * umask are not counted and never fail on request. */
int64_t ch__file_calls(void);
/* Makes the n-th counted call from now (1: the next) fail with `error`, an errno. If the error
 * is ENOSPC or EDQUOT, the first call from there on that may need space fails instead: a write,
 * truncate, sync, rename, mkdir, or an open that may create a file. n = 0: no call fails. */
void ch__file_fail_at(int64_t n, int error);
/* The same for all such calls from the n-th on. */
void ch__file_fail_from(int64_t n, int error);
/* Limits each read and write to `most` bytes and interrupts each once with EINTR first; 0: ends
 * this. */
void ch__file_limit_io(size_t most);

typedef enum ch_file_op_kind {
    CH_FILE_OPEN,  /* `flags` are those of the call; `fd` is the new descriptor */
    CH_FILE_CLOSE, /* reported before the call */
    CH_FILE_DUP,   /* `fd` is the new descriptor, `flags` the old */
    CH_FILE_WRITE, /* also pwrite; `n` bytes were written at `offset` */
    CH_FILE_TRUNCATE,
    CH_FILE_SYNC, /* of a file or a folder */
    CH_FILE_RENAME,
    CH_FILE_UNLINK,
    CH_FILE_MKDIR,
    CH_FILE_RMDIR
} ch_file_op_kind;

/* A call that succeeded. Pointers are valid until the observer returns. */
typedef struct ch_file_op {
    ch_file_op_kind kind;
    int             fd, flags;
    const char     *path, *to; /* as the caller gave them; `to` is the new name of a rename */
    int64_t         offset;    /* of a truncate: the new size */
    const void     *bytes;
    size_t          n;
} ch_file_op;
typedef void (*ch_file_observer)(void *arg, const ch_file_op *op);
/* Passes each of these calls to `f` after it succeeded, in the order in which they took effect:
 * while there is an observer, they run one at a time. `f` must not call functions of this file.
 * NULL: ends this. Without an observer, a call costs one more relaxed load. */
void ch__file_observe(ch_file_observer f, void *arg);

#endif
