/* base/fault.h -- makes errors, and carries them to other threads and tasks.
 *
 * The function that detects an error writes its message with ch__fail and returns the code
 * that ch__fail returns. Its callers clean up and return the same code. Each thread has its
 * own message.
 *
 * To carry an error to another thread, the failing thread records it in a ch_fault
 * (ch__fault_record) and the waiting thread raises it (ch__fault_raise). A fault keeps only the
 * first error that is recorded, with the replica and the op that failed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cohort/status.h"

/* Size of a message in bytes, including the terminating 0. */
#define CH_FAULT_TEXT 1024

/* Sets this thread's message and returns `rc`, which must not be CH_OK. Never allocates and
 * never fails. A message that is too long is cut and ends with "...". */
ch_status ch__fail(ch_status rc, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));
ch_status ch__failv(ch_status rc, const char *format, va_list args) __attribute__((cold));
/* Fails with RESOURCE_EXHAUSTED, "<what>: out of memory". */
ch_status ch__fail_memory(const char *what) __attribute__((cold));
/* Fails with RESOURCE_EXHAUSTED because a limit was exceeded that the caller can set. More
 * memory would not help. */
ch_status ch__fail_limit(const char *format, ...) __attribute__((format(printf, 1, 2), cold));
/* Fails because a system call on a file failed. The data in the file may be undamaged, even if
 * `rc` is DATA_LOSS. */
ch_status ch__fail_io(ch_status rc, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));
/* Call ch__fail_mark before a function of the program and ch__fail_since with its result. If
 * the function returned an error without setting a message, ch__fail_since sets the message to
 * the text of the status. Otherwise the message would be that of an earlier error. Returns
 * `rc`. */
uint64_t  ch__fail_mark(void);
ch_status ch__fail_since(uint64_t mark, ch_status rc);
/* Returns true if the last error of this thread is from ch__fail_limit. */
bool ch__failed_at_limit(void);
/* Returns true if the last error of this thread is from ch__fail_io. */
bool ch__failed_at_io(void);
/* Returns CH_OK if neither pointer is NULL. Otherwise fails with INVALID_ARGUMENT, "<call>:
 * <name> is NULL". `a` and `b` are the names of the pointers is_a and is_b; if a name is NULL,
 * its pointer is not checked. */
ch_status ch__check_not_null(const char *call, const char *a, const void *is_a, const char *b,
                             const void *is_b);
/* Puts text and ": " before this thread's message and returns `rc`. For callers that know where
 * the error occurred. If the result would be too long, the message stays as it is. */
ch_status ch__fail_at(ch_status rc, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* Like ch__fail_at, for an object that an earlier call failed to create and returned as NULL.
 * Returns the code of this thread's last error, or INVALID_ARGUMENT if no call has failed. */
ch_status ch__fail_earlier(const char *format, ...) __attribute__((format(printf, 1, 2), cold));

/* The location of an error. */
typedef struct ch_fault_location {
    int64_t step;         /* number of the scheduled step; 0: not known */
    int     replica;      /* -1: not known */
    char    function[48]; /* name of the step's function; "": not known */
    char    task[96];     /* such as "worker/0"; "": not known */
} ch_fault_location;

/* An error that is carried across threads. */
typedef struct ch_fault {
    atomic_int        state; /* 0: no error, 1: being written, 2: error set */
    ch_status         code;
    int               replica;      /* -1: not known */
    bool              is_limit;     /* the error is from ch__fail_limit */
    char              op[64];       /* name of the op that failed; "": not known */
    char              task[96];     /* "": not known */
    int64_t           step;         /* number of the scheduled step; 0: not known */
    char              function[48]; /* name of the step's function */
    char              text[CH_FAULT_TEXT];
    ch_fault_location in_text; /* the location that `text` already contains */
} ch_fault;

/* Resets `f` to no error. Must not run while another thread records or raises the fault. */
void ch__fault_clear(ch_fault *f);
/* Copies this thread's error into `f` if `f` has no error yet. Returns true if it did. Several
 * threads may call it at the same time. `op` may be NULL. */
bool ch__fault_record(ch_fault *f, ch_status rc, int replica, const char *op);
/* Marks `f` as set, after the caller has written its fields itself (for example from a message
 * of a peer). */
void ch__fault_publish(ch_fault *f);
/* Returns true if an error was recorded, or is being written by another thread. */
bool ch__fault_is_set(const ch_fault *f);
/* Makes the fault this thread's error. Returns its code, or CH_OK if the fault has no error.
 * The message begins with the step, the task, the replica and the op, as far as they are known:
 * "step 3 of train: worker/0: replica 1: gather: id 7 at position 3 ...". ch_error_get_info
 * returns them too. */
ch_status ch__fault_raise(const ch_fault *f);

#if defined(__clang_analyzer__) && !defined(BASE_FAULT_C)
/* For clang's analyzer, which does not see that ch__fail never returns CH_OK. */
#define ch__fail(rc, ...)     ((void)ch__fail(rc, __VA_ARGS__), (rc))
#define ch__fail_limit(...)   ((void)ch__fail_limit(__VA_ARGS__), CH_RESOURCE_EXHAUSTED)
#define ch__fail_io(rc, ...)  ((void)ch__fail_io(rc, __VA_ARGS__), (rc))
#define ch__fail_memory(what) ((void)ch__fail_memory(what), CH_RESOURCE_EXHAUSTED)
#define ch__fail_earlier(...) ((void)ch__fail_earlier(__VA_ARGS__), CH_INVALID_ARGUMENT)
/* Likewise: if ch__check_not_null returns CH_OK, the pointers are not NULL. */
#define ch__check_not_null(call, a, is_a, b, is_b)                                             \
    (((a) != NULL && (is_a) == NULL) || ((b) != NULL && (is_b) == NULL)                        \
         ? ch__fail(CH_INVALID_ARGUMENT, "%s", call)                                           \
         : CH_OK)
#endif

#endif
