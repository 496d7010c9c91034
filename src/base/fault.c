/* base/fault.c -- this thread's error message, and faults, which carry an error across threads.
 *
 * The thread-local variables below are the last error of a thread: its message, its code and
 * its location. ch__failv sets all of them; every other function that fails calls ch__failv.
 * A ch_fault is a copy of them. ch__fault_record copies the error of this thread into a
 * fault, ch__fault_raise makes a fault the error of this thread. All parts of the library
 * call these functions.
 *
 * Invariants:
 *   1. No function here allocates or locks, so an error can be reported when memory
 *      is exhausted.
 *   2. ch__fault_record changes the state of a fault from FAULT_NONE to FAULT_WRITING and then
 *      to FAULT_SET. Only the thread that made the first change writes the other fields.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define BASE_FAULT_C
#include "base/fault.h"

#include <assert.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char      message[CH_FAULT_TEXT];
static _Thread_local bool      is_limit; /* the error is from ch__fail_limit */
static _Thread_local bool      is_io;    /* the error is from ch__fail_io */
static _Thread_local ch_status code;     /* of the last error; CH_OK: no call has failed */
static _Thread_local uint64_t  n_faults; /* errors of this thread so far */
/* The location of the error, as far as it is known. */
static _Thread_local ch_fault_location location = {.replica = -1};

/* Declared in cohort/status.h. Defined here, because this file has the message. */
const char *ch_error_message(void)
{
    return message;
}

static void clear_location(ch_fault_location *p)
{
    p->step = 0;
    p->replica = -1;
    p->function[0] = p->task[0] = '\0';
}

/* Declared in cohort/status.h. */
void ch_error_get_info(ch_error_info *out)
{
    if (out == NULL)
        return;
    *out = (ch_error_info){.code = code,
                           .step = location.step,
                           .function = location.function,
                           .task = location.task,
                           .replica = location.replica};
}

/* Replaces the end of a full buffer by "...", without cutting a UTF-8 character. */
static void mark_cut(char text[CH_FAULT_TEXT])
{
    static const char dots[] = "...";
    size_t            end = CH_FAULT_TEXT - sizeof(dots);

    while (end > 0 && ((unsigned char)text[end] & 0xC0) == 0x80)
        end--;
    memcpy(text + end, dots, sizeof(dots));
}

/* Formats into a local buffer first, because the arguments may point into the current
 * message. */
ch_status ch__failv(ch_status rc, const char *format, va_list args)
{
    char text[CH_FAULT_TEXT];
    int  length = vsnprintf(text, sizeof(text), format, args);

    assert(rc != CH_OK);
    if (length < 0) /* vsnprintf failed: the message is the format itself */
        length = snprintf(text, sizeof(text), "%s", format);
    if (length >= CH_FAULT_TEXT)
        mark_cut(text);
    memcpy(message, text, strlen(text) + 1);
    is_limit = is_io = false;
    code = rc;
    clear_location(&location);
    n_faults++;
    return rc;
}

ch_status ch__fail_limit(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    ch__failv(CH_RESOURCE_EXHAUSTED, format, args);
    va_end(args);
    is_limit = true;
    return CH_RESOURCE_EXHAUSTED;
}

bool ch__failed_at_limit(void)
{
    return is_limit;
}

ch_status ch__fail_io(ch_status rc, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    ch__failv(rc, format, args);
    va_end(args);
    is_io = true;
    return rc;
}

bool ch__failed_at_io(void)
{
    return is_io;
}

ch_status ch__fail(ch_status rc, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    ch__failv(rc, format, args);
    va_end(args);
    return rc;
}

/* Declared in cohort/status.h. Unlike ch__fail, accepts CH_OK and a NULL format, because
 * programs call it. */
ch_status ch_fail(ch_status rc, const char *format, ...)
{
    va_list args;

    if (rc == CH_OK)
        return rc;
    va_start(args, format);
    ch__failv(rc, format != NULL ? format : ch_status_text(rc), args);
    va_end(args);
    return rc;
}

uint64_t ch__fail_mark(void)
{
    return n_faults;
}

ch_status ch__fail_since(uint64_t mark, ch_status rc)
{
    return rc == CH_OK || n_faults != mark ? rc : ch__fail(rc, "%s", ch_status_text(rc));
}

ch_status ch__fail_memory(const char *what)
{
    return ch__fail(CH_RESOURCE_EXHAUSTED, "%s: out of memory", what);
}

ch_status ch__check_not_null(const char *call, const char *a, const void *is_a, const char *b,
                             const void *is_b)
{
    const char *missing = a != NULL && is_a == NULL ? a : b != NULL && is_b == NULL ? b : NULL;

    if (missing == NULL)
        return CH_OK;
    return ch__fail(CH_INVALID_ARGUMENT, "%s: %s is NULL", call, missing);
}

ch_status ch__fail_at(ch_status rc, const char *format, ...)
{
    char              where[CH_FAULT_TEXT];
    bool              was_limit = is_limit, was_io = is_io;
    ch_fault_location was_location = location;
    va_list           args;

    va_start(args, format);
    vsnprintf(where, sizeof(where), format, args);
    va_end(args);
    if (message[0] == '\0')
        return ch__fail(rc, "%s: %s", where, ch_status_text(rc));
    /* The reason of an error is more important than its location: do not cut the reason. */
    if (strlen(where) + strlen(": ") + strlen(message) >= sizeof(message))
        return rc;
    ch__fail(rc, "%s: %s", where, message);
    is_limit = was_limit;
    is_io = was_io;
    location = was_location;
    return rc;
}

ch_status ch__fail_earlier(const char *format, ...)
{
    char    where[CH_FAULT_TEXT];
    va_list args;

    va_start(args, format);
    vsnprintf(where, sizeof(where), format, args);
    va_end(args);
    return ch__fail_at(message[0] != '\0' ? code : CH_INVALID_ARGUMENT, "%s", where);
}

enum { FAULT_NONE, FAULT_WRITING, FAULT_SET };

void ch__fault_clear(ch_fault *f)
{
    f->code = CH_OK;
    f->replica = -1;
    f->op[0] = f->task[0] = f->text[0] = f->function[0] = '\0';
    f->step = 0;
    clear_location(&f->in_text);
    atomic_store_explicit(&f->state, FAULT_NONE, memory_order_release);
}

bool ch__fault_record(ch_fault *f, ch_status rc, int replica, const char *op)
{
    int none = FAULT_NONE;

    assert(rc != CH_OK);
    if (!atomic_compare_exchange_strong(&f->state, &none, FAULT_WRITING))
        return false;
    f->code = rc;
    f->replica = replica;
    f->is_limit = is_limit;
    snprintf(f->op, sizeof(f->op), "%s", op != NULL ? op : "");
    memcpy(f->text, message, strlen(message) + 1);
    f->in_text = location;
    atomic_store_explicit(&f->state, FAULT_SET, memory_order_release);
    return true;
}

void ch__fault_publish(ch_fault *f)
{
    atomic_store_explicit(&f->state, FAULT_SET, memory_order_release);
}

bool ch__fault_is_set(const ch_fault *f)
{
    return atomic_load_explicit(&f->state, memory_order_acquire) != FAULT_NONE;
}

/* Returns the fault's own location. Its unset fields are filled from the location in its
 * text. */
static ch_fault_location location_of(const ch_fault *f)
{
    ch_fault_location p = f->in_text;

    if (f->step > 0) {
        p.step = f->step;
        memcpy(p.function, f->function, sizeof(p.function));
    }
    if (f->task[0] != '\0')
        memcpy(p.task, f->task, sizeof(p.task));
    if (f->replica >= 0)
        p.replica = f->replica;
    return p;
}

ch_status ch__fault_raise(const ch_fault *f)
{
    char              replica[32] = "", step[96] = "";
    ch_fault_location at;
    int               state;

    /* This loop is short, because the writing thread neither locks nor allocates. */
    while ((state = atomic_load_explicit(&f->state, memory_order_acquire)) == FAULT_WRITING)
        sched_yield();
    if (state == FAULT_NONE)
        return CH_OK;
    at = location_of(f);
    if (f->step > 0)
        snprintf(step, sizeof(step), "step %lld of %s: ", (long long)f->step, f->function);
    if (f->replica >= 0)
        snprintf(replica, sizeof(replica), "replica %d: ", f->replica);
    ch__fail(f->code, "%s%s%s%s%s%s%s", step, f->task, f->task[0] != '\0' ? ": " : "", replica,
             f->op, f->op[0] != '\0' ? ": " : "", f->text);
    is_limit = f->is_limit;
    location = at;
    return f->code;
}
