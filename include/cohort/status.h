/* cohort/status.h -- status codes and error messages.
 *
 * A function that can fail returns a ch_status. If it is not CH_OK, the calling thread also
 * holds a message that says which call failed, on which object, why, and how to fix it.
 *
 *     ch_status rc = ch_tensor_new(CH_F32, ch_shape_of(2, 3), &x);
 *     if (rc != CH_OK)
 *         fprintf(stderr, "%s: %s\n", ch_status_name(rc), ch_error_message());
 *
 * The codes and their numbers are the canonical codes of gRPC. Messages belong to the thread:
 * another thread does not see them. The library never prints, exits or aborts because of an
 * argument, a file or a peer.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_STATUS_H
#define COHORT_STATUS_H

#ifdef __cplusplus
#define CH_EXTERN_C extern "C"
#else
#define CH_EXTERN_C
#endif

/* Marks the functions that the shared library exports. The build hides all others. */
#if defined(__GNUC__)
#define CH_API CH_EXTERN_C __attribute__((visibility("default")))
#else
#define CH_API CH_EXTERN_C
#endif

/* Makes the compiler warn if the caller ignores the status. */
#if (defined(__cplusplus) && __cplusplus >= 201703L) ||                                        \
    (defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L)
#define CH_MUST_CHECK [[nodiscard]]
#elif defined(__GNUC__)
#define CH_MUST_CHECK __attribute__((warn_unused_result))
#else
#define CH_MUST_CHECK
#endif

#if defined(__GNUC__)
#define CH_LIKE_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define CH_LIKE_PRINTF(text, first)
#endif

/* The codes: name, number, meaning, and the largest scope that an error of this kind breaks:
 * nothing, this CALL, the PEER that was called, or the whole JOB. Retry policies use the
 * scope. */
/* clang-format off */
#define CH_STATUS_MAP(X)                                                              \
    X(OK,                  0, "ok",                                          NOTHING) \
    X(CANCELLED,           1, "cancelled by the caller",                     CALL)    \
    X(UNKNOWN,             2, "unknown error",                               CALL)    \
    X(INVALID_ARGUMENT,    3, "an argument is wrong",                        CALL)    \
    X(DEADLINE_EXCEEDED,   4, "not done in time",                            CALL)    \
    X(NOT_FOUND,           5, "no such thing",                               CALL)    \
    X(ALREADY_EXISTS,      6, "exists already",                              CALL)    \
    X(PERMISSION_DENIED,   7, "not allowed",                                 CALL)    \
    X(RESOURCE_EXHAUSTED,  8, "out of memory or of another resource",        CALL)    \
    X(FAILED_PRECONDITION, 9, "not in this state or context",                CALL)    \
    X(ABORTED,            10, "given up because another part failed",        CALL)    \
    X(OUT_OF_RANGE,       11, "past the end",                                CALL)    \
    X(UNIMPLEMENTED,      12, "not supported",                               CALL)    \
    X(INTERNAL,           13, "an invariant of the library does not hold",   JOB)     \
    X(UNAVAILABLE,        14, "the peer cannot be reached",                  PEER)    \
    X(DATA_LOSS,          15, "data is damaged or lost",                     JOB)     \
    X(UNAUTHENTICATED,    16, "the peer has not proved who it is",           PEER)
/* clang-format on */

#define CH_STATUS_CODE(name, number, text, breaks) CH_##name = number,
typedef enum ch_status { CH_STATUS_MAP(CH_STATUS_CODE) CH_STATUS_COUNT } ch_status;
#undef CH_STATUS_CODE

/* The largest scope that an error breaks. */
typedef enum ch_breaks {
    CH_BREAKS_NOTHING,
    CH_BREAKS_CALL, /* this call; other calls may succeed */
    CH_BREAKS_PEER, /* the task that was called */
    CH_BREAKS_JOB   /* the whole job */
} ch_breaks;

/* Returns the name of a code, such as "INVALID_ARGUMENT"; "UNKNOWN" if the number is no code.
 * Never NULL. */
CH_API const char *ch_status_name(ch_status rc);

/* Returns the meaning of a code as a line of text, such as "an argument is wrong". Never
 * NULL. */
CH_API const char *ch_status_text(ch_status rc);

/* Returns the largest scope that an error of this kind breaks. */
CH_API ch_breaks ch_status_breaks(ch_status rc);

/* Returns the message of the last failed call on this thread; "" if no call has failed. Valid
 * until the next failure on this thread. */
CH_API const char *ch_error_message(void);

/* The location of the last failed call on this thread, for programs that react to it. Texts are
 * valid until the next failure on this thread. */
typedef struct ch_error_info {
    ch_status   code;     /* CH_OK: no call has failed */
    long long   step;     /* number of the scheduled step (ch_remote_step); 0: no step failed */
    const char *function; /* name of the step's function; "": no step failed */
    const char *task;     /* the task that failed, such as "worker/1"; "": this process */
    int         replica;  /* replica of that task; -1: not known */
} ch_error_info;

/* Writes the location of the last failed call on this thread. */
CH_API void ch_error_get_info(ch_error_info *out);

/* Sets this thread's message, with a printf format, and returns `rc`. For C functions that the
 * library calls: generators, input functions and the functions of map_call, filter_call and
 * take_while_call (cohort/dataset.h).
 *
 *     if (image == NULL)
 *         return ch_fail(CH_DATA_LOSS, "%s is no JPEG file", path);
 *
 * The library puts the location before the message: "map, element 4: a.jpg is no JPEG file". If
 * a function returns an error without a message, the message is the text of the status. A
 * message of more than 1023 bytes is cut. If `rc` is CH_OK, the call does nothing. */
CH_API ch_status ch_fail(ch_status rc, const char *format, ...) CH_LIKE_PRINTF(2, 3);

/* In a field of options where 0 means the default: none, or off. */
#define CH_OFF (-1)

#endif
