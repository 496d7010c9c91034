/* cohort/status.h -- how every call of this library says whether it worked.
 *
 * A function that can fail returns a ch_status. When that is not CH_OK, the calling
 * thread also holds a message: what was tried, on what, why it failed, what to do.
 *
 *     ch_status rc = ch_tensor_new(CH_F32, ch_shape_of(2, 3), &x);
 *     if (rc != CH_OK)
 *         fprintf(stderr, "%s: %s\n", ch_status_name(rc), ch_error_message());
 *
 * The codes are gRPC's canonical ones and keep their numbers. The library never prints,
 * exits or aborts because of what a caller, a file or a peer did.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_STATUS_H
#define COHORT_STATUS_H

#ifdef __cplusplus
#define CH_EXTERN_C extern "C"
#else
#define CH_EXTERN_C
#endif

/* Marks what the shared library exports; the build hides everything else. */
#if defined(__GNUC__)
#define CH_API CH_EXTERN_C __attribute__((visibility("default")))
#else
#define CH_API CH_EXTERN_C
#endif

/* A status that nobody looks at is a bug that nobody finds. */
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

/* Name, number, what it means, and the largest thing it breaks: nothing, this CALL, the
 * PEER it was made to, or the whole JOB. Retry policy reads the last column. */
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

typedef enum ch_breaks {
    CH_BREAKS_NOTHING,
    CH_BREAKS_CALL,
    CH_BREAKS_PEER,
    CH_BREAKS_JOB
} ch_breaks;

/* "INVALID_ARGUMENT"; "UNKNOWN" for a number that is no code. Never NULL. */
CH_API const char *ch_status_name(ch_status rc);

/* One line for people, such as "an argument is wrong". */
CH_API const char *ch_status_text(ch_status rc);

/* The largest thing that an error of this kind breaks. */
CH_API ch_breaks ch_status_breaks(ch_status rc);

/* Why the last call that failed on this thread failed; "" if none did. Valid until the
 * next failure on this thread. */
CH_API const char *ch_error_message(void);

/* Where the last call that failed on this thread failed, for programs that decide by it. Texts are valid until the next
 * failure on this thread. */
typedef struct ch_error_info {
    ch_status   code; /* CH_OK: no call has failed */
    long long   step; /* number of the scheduled step (ch_remote_step); 0: not a step's error */
    const char *function; /* name of the step's function; "": not a step's error */
    const char *task;     /* "worker/1" or "ps/0": the task that failed; "": this process */
    int         replica;  /* of that task; -1: not said */
} ch_error_info;

/* Writes these fields. */
CH_API void ch_error_get_info(ch_error_info *out);

/* For C functions that the library calls -- of map_call, filter_call, take_while_call, generators,
 * input functions (dataset.h): sets this thread's message, as printf would, and returns `rc`.
 *
 *     if (image == NULL)
 *         return ch_fail(CH_DATA_LOSS, "%s is no JPEG file", path);
 *
 * The error that the program gets has it behind where it was: "map, element 4: a.jpg is no JPEG
 * file". A function that returns a status and says nothing gets the status's own words. A message
 * that does not fit 1023 bytes is cut. CH_OK sets nothing. */
CH_API ch_status ch_fail(ch_status rc, const char *format, ...) CH_LIKE_PRINTF(2, 3);

/* In an options struct: not at all, where zero is "as usual". */
#define CH_OFF (-1)

#endif
