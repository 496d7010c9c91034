/* file/sys.h -- the system's calls on files.
 *
 * One door, as base/mem.h is for memory: tests make the n-th call fail (PROMISES F12), or all of
 * them move few bytes at a time. Each function returns what the call of that name does, with errno;
 * those that signals interrupt are made again.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef FILE_SYS_H
#define FILE_SYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "cohort/status.h"

struct stat;

int     ch__sys_open(const char *path, int flags, mode_t mode); /* always O_CLOEXEC */
ssize_t ch__sys_read(int fd, void *to, size_t n);
ssize_t ch__sys_write(int fd, const void *from, size_t n);
ssize_t ch__sys_pread(int fd, void *to, size_t n, int64_t offset);
ssize_t ch__sys_pwrite(int fd, const void *from, size_t n, int64_t offset);
int64_t ch__sys_seek(int fd, int64_t offset, int whence);
int     ch__sys_stat(int fd, struct stat *out);
int     ch__sys_look(const char *path, struct stat *out); /* of a link itself */
int     ch__sys_chmod(int fd, mode_t mode);
int     ch__sys_sync(int fd);
int     ch__sys_rename(const char *from, const char *to);
int     ch__sys_unlink(const char *path);
int     ch__sys_mkdir(const char *path); /* for all, as far as the umask lets */
int     ch__sys_close(int fd);
/* Takes the lock of an open file: nobody else has it then, in this process or another, until this
 * descriptor and all its copies are closed. Does not wait: EWOULDBLOCK; ENOENT: the file is removed. */
bool ch__sys_lock(int fd);
int  ch__sys_copy(int fd); /* another descriptor of the same open file */

/* The status that says the most of an errno, with the message "<format>: <what errno means>". */
ch_status ch__fail_errno(int error, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* What tests see. Calls since the process began, closing, unlinking and locking apart, which never fail. */
int64_t ch__file_calls(void);
/* Makes the n-th call from now (1 is the next) fail with EIO; 0 ends it. */
void ch__file_fail_at(int64_t n);
/* Reads and writes move at most `most` bytes, and are interrupted before that; 0 ends it. */
void ch__file_cut(size_t most);

#endif
