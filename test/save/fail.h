/* test/save/fail.h -- makes the calls on files, or the allocations, of saves and restores fail in
 * turn.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_SAVE_FAIL_H
#define TEST_SAVE_FAIL_H

#include "base/mem.h"
#include "base/sys.h"
#include "help.h"

/* Linked instead of fsync, which would take most of the time of these tests. */
int __wrap_fsync(int fd);

int __wrap_fsync(int fd)
{
    (void)fd;
    return 0;
}

typedef enum t_failure {
    T_IO_ONCE,  /* a call on files fails with EIO */
    T_IO_ON,    /* all calls from there on */
    T_SPACE_ON, /* all calls from there on that need space fail with ENOSPC */
    T_MEMORY,   /* an allocation fails */
    T_FAILURES
} t_failure;

/* Makes call n from now fail, or ends that (n is 0). Returns the number of calls so far. */
static inline int64_t t_fail_at(t_failure what, int64_t n)
{
    if (what == T_MEMORY)
        ch__mem_fail_at(n);
    else if (what == T_IO_ONCE)
        ch__file_fail_at(n, EIO);
    else
        ch__file_fail_from(n, what == T_IO_ON ? EIO : ENOSPC);
    return what == T_MEMORY ? ch__mem_allocs() : ch__file_calls();
}

/* `./dev test --long` lets every call fail, where the usual tests leave some out. */
static inline bool t_fails_every_call(void)
{
    return getenv("T_CASES") != NULL;
}

/* Returns the distance of two calls that fail, under a strategy of help.h. */
static inline int64_t t_fail_stride(int kind, t_failure what)
{
    return kind >= SERVERS && what == T_MEMORY && !t_fails_every_call() ? 3 : 1;
}

/* An error of an allocation that fails says so. */
static inline void t_check_failure(t_failure what, int64_t n, ch_status rc)
{
    if (what == T_MEMORY && rc != CH_OK && rc != CH_RESOURCE_EXHAUSTED)
        fail_msg("allocation %lld: %s", (long long)n, ch_error_message());
}

#endif
