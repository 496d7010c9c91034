/* base/fault.h -- making an error, and carrying one to another thread or machine.
 *
 * The function that finds a fault writes its message with ch__fail and returns what that
 * returns; callers clean up and pass it on. The message is the thread's. To cross threads, the
 * failing side takes it into a ch_fault and the waiting side raises it again; the first
 * to be taken wins and says where it came from.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cohort/status.h"

#define CH_FAULT_TEXT 1024

/* Sets this thread's message and returns `rc`. Never allocates, cannot fail. A message that
 * does not fit is cut with "..." */
ch_status ch__fail(ch_status rc, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));
ch_status ch__failv(ch_status rc, const char *format, va_list args) __attribute__((cold));
/* RESOURCE_EXHAUSTED, "<what>: out of memory". */
ch_status ch__fail_memory(const char *what) __attribute__((cold));
/* RESOURCE_EXHAUSTED because of a limit that the caller set, or could: more memory would not help. */
ch_status ch__fail_limit(const char *format, ...) __attribute__((format(printf, 1, 2), cold));
/* Around a call of a function of the program's, which may return a status and say nothing: then the
 * message is the status's own words, and not what an earlier fault left. */
uint64_t  ch__fail_mark(void);
ch_status ch__fail_since(uint64_t mark, ch_status rc);
/* Whether this thread's last fault was one of those. */
bool ch__failed_at_limit(void);
/* CH_OK if both are there; else INVALID_ARGUMENT, "<call>: <a> is NULL". A NULL in the place of
 * a name: it is not looked at. */
ch_status ch__want_given(const char *call, const char *a, const void *is_a, const char *b,
                         const void *is_b);
/* Puts text before this thread's message and returns `rc`: for those who know where it was. */
ch_status ch__fail_at(ch_status rc, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* The same for what an earlier call failed to make: returns that call's code, INVALID_ARGUMENT if none
 * failed. */
ch_status ch__fail_still(const char *format, ...) __attribute__((format(printf, 1, 2), cold));

/* Where an error was. */
typedef struct ch_fault_location {
    int64_t step;         /* that was scheduled; 0: not said */
    int     replica;      /* -1: not said */
    char    function[48]; /* of the step; "": not said */
    char    task[96];     /* "": not said */
} ch_fault_location;

typedef struct ch_fault {
    atomic_int        state; /* 0: none, 1: being written, 2: there */
    ch_status         code;
    int               replica; /* -1: not said */
    bool              is_limit;
    char              op[64]; /* "": not said */
    char              task[96];
    int64_t           step;         /* that was scheduled; 0: not said */
    char              function[48]; /* of the step */
    char              text[CH_FAULT_TEXT];
    ch_fault_location said; /* what the text says already */
} ch_fault;

void ch__fault_clear(ch_fault *f);
/* Keeps this thread's message if `f` has none yet. True if it was the first. */
bool ch__fault_record(ch_fault *f, ch_status rc, int replica, const char *op);
/* Its fields have been written, by who came to them from a wire or made them up. */
void ch__fault_set(ch_fault *f);
/* Also true while the first is still being written. */
bool ch__fault_is_set(const ch_fault *f);
/* Makes it this thread's error: returns its code, CH_OK if there is none. The message says
 * the step, the task and the replica, if they were said: "step 3 of train: worker/0: replica 1: gather: id 7 at
 * position 3 ...". ch_error_get_info tells them too. */
ch_status ch__fault_raise(const ch_fault *f);

#if defined(__clang_analyzer__) && !defined(BASE_FAULT_C)
/* The analyzer does not see that a failure is never CH_OK: this tells it. */
#define ch__fail(rc, ...)     ((void)ch__fail(rc, __VA_ARGS__), (rc))
#define ch__fail_limit(...)   ((void)ch__fail_limit(__VA_ARGS__), CH_RESOURCE_EXHAUSTED)
#define ch__fail_memory(what) ((void)ch__fail_memory(what), CH_RESOURCE_EXHAUSTED)
#define ch__fail_still(...)   ((void)ch__fail_still(__VA_ARGS__), CH_INVALID_ARGUMENT)
/* Nor that what was wanted is there. */
#define ch__want_given(call, a, is_a, b, is_b)                                                 \
    (((a) != NULL && (is_a) == NULL) || ((b) != NULL && (is_b) == NULL)                        \
         ? ch__fail(CH_INVALID_ARGUMENT, "%s", call)                                           \
         : CH_OK)
#endif

#endif
