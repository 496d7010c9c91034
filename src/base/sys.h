/* base/sys.h -- wraps the system calls on files.
 *
 * All file access goes through these functions, as all memory comes from base/mem.h. Tests can
 * make the n-th call fail (PROMISES F12) or limit the bytes of each read and write. Each
 * function returns the result of its system call and sets errno. Calls that a signal interrupts
 * are repeated. Any thread may call them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_SYS_H
#define BASE_SYS_H

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
int     ch__sys_sync(int fd);
int     ch__sys_rename(const char *from, const char *to);
int     ch__sys_unlink(const char *path);
int     ch__sys_mkdir(const char *path); /* mode 0777, less the umask */
int     ch__sys_close(int fd);
/* Locks an open file exclusively, against this process and others. The lock ends when the
 * descriptor and all its duplicates are closed. Does not block. Returns false with errno
 * EWOULDBLOCK if the file is locked, or ENOENT if it has been removed. */
bool ch__sys_lock(int fd);
int  ch__sys_dup(int fd); /* a second descriptor of the same open file; shares its lock */

/* Returns the ch_status for `error`, an errno, and sets the message "<format>: <strerror>". */
ch_status ch__fail_errno(int error, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* For tests. Returns the number of calls since the process began. Calls of close, unlink, lock
 * and dup are not counted and never fail on request. */
int64_t ch__file_calls(void);
/* Makes the n-th counted call from now (1: the next) fail with EIO; 0: ends this. */
void ch__file_fail_at(int64_t n);
/* Limits each read and write to `most` bytes and interrupts each once with EINTR first; 0: ends
 * this. */
void ch__file_limit_io(size_t most);

#endif
