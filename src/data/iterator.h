/* data/iterator.h -- the private struct of an iterator, and functions for the stages it runs.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_ITERATOR_H
#define DATA_ITERATOR_H

#include <pthread.h>

#include "base/thread.h"
#include "data/budget.h"
#include "data/row_ref.h"
#include "data/workqueue.h"

/* The object that owns an iterator, for example a strategy. The iterator calls its
 * functions. */
typedef struct ch_iterator_owner {
    void *self;
    /* Returns an error if ch_iterator_next must not be called now; that call then fails. */
    ch_status (*may_advance)(void *self);
    void (*drop)(void *self); /* releases `self`; called when the iterator is freed */
} ch_iterator_owner;

struct ch_iterator {
    atomic_int refs;
    /* The stage `iterator` over the user's dataset. If the dataset ends with `split`, the stage
     * `iterator` is below `split`, and this is `split`. Referenced. */
    ch_dataset    *dataset;
    ch_row_tensors tensors; /* of the dataset; positions refer to their rows */
    ch_cursor     *root;    /* the cursor of `dataset`, at the top of the tree */
    /* go_on: ch_iterator_options.go_on. has_started: the worker threads were started.
     * has_failed: ch_iterator_next failed since the last restart. has_ended: the root cursor
     * has ended. */
    bool go_on, has_started, has_failed, has_ended;
    int  n_replicas, n_group; /* elements of a full group (at least 1), and of this group */
    /* The elements of the next step, one for each replica; owned. NULL: that element failed. */
    ch_element **group;
    ch_device  **device;   /* n_replicas; NULL: the current device */
    int          prefetch; /* groups to prefetch; 0: chosen at run time; CH_OFF: none */
    /* The name of the stream of random numbers that the stages draw from. ch_iterator_restore
     * replaces it by the saved name. */
    ch_stream_name    name;
    ch_iterator_owner owner; /* all NULL: the program owns the iterator */
    /* The position that ch_iterator_save returns (ch__iterator_capture); NULL: the current. */
    void  *captured;
    size_t n_captured;

    int         n_threads; /* worker threads requested; 0: the caller's thread does all work */
    ch_budget   budget;
    bool        unordered; /* workqueues may return results as they become ready */
    atomic_bool stops;     /* cancels all work: the iterator is being freed */
    /* Counts of skipped records: of the running tree and, during a restore, of the new tree. */
    ch_skips  skips[2];
    ch_skips *skips_made; /* the entry of `skips` that new cursors count in */

    /* Guards the workqueues and all fields below. */
    pthread_mutex_t lock;
    ch_waiters      idle;      /* worker threads that found no work */
    ch_waiters      others;    /* threads that wait for more than one workqueue */
    bool            is_paused; /* worker threads must not start a job */
    int64_t         notice_ms; /* wait before the next slow-input warning; 0: as configured */
    char            file[256]; /* path of the last file that was opened; "": none */
    int             n_workqueues, cap_workqueues;
    ch_workqueue  **workqueue; /* in opening order: a stage comes after its inputs */
    int             n_workers; /* threads that run */
    ch_thread     **worker;    /* n_workers; room for n_threads */
};

/* Returns the cursor of the stage `iterator`, whose workqueue prefetches for the program. */
static inline ch_cursor *ch__iterator_output(const ch_iterator *it)
{
    return it->root->workqueue != NULL ? it->root : it->root->in[0];
}

/* Creates an iterator like ch_iterator_new. Its stages draw the random numbers of the stream
 * `name`. */
CH_MUST_CHECK ch_status ch__iterator_new_named(ch_dataset *d, const ch_iterator_options *opt,
                                               ch_stream_name name, ch_iterator **out);
/* Sets the owner; the iterator takes over `owner->self`. Must be called at most once, before
 * the first element is read. */
void ch__iterator_set_owner(ch_iterator *it, const ch_iterator_owner *owner);
/* Captures the position. Until ch__iterator_release, ch_iterator_save returns this position,
 * whatever is read meanwhile. Replaces a position that was captured before. */
CH_MUST_CHECK ch_status ch__iterator_capture(ch_iterator *it);
void                    ch__iterator_release(ch_iterator *it);
/* Creates an element without rows, for a replica that has no data in this step. Components that
 * have a value nevertheless (scalars) are zero. */
ch_status ch__element_of_no_rows(const ch_dataset *d, ch_element **out);
/* Creates a tuple like those of ch_iterator_next, with an element without rows for each
 * replica. */
ch_status ch__iterator_no_rows(ch_iterator *it, ch_tuple **out);

/* ---- data/iterator_threads.c ---- */

/* Starts the worker threads. If a thread cannot be started, the iterator runs with fewer
 * threads; without any, the caller's thread does all work. */
void ch__iterator_start_workers(ch_iterator *it);
/* Cancels all work and blocks until the worker threads have ended. */
void ch__iterator_stop_workers(ch_iterator *it);
/* Stops the worker threads from starting jobs until ch__iterator_resume_workers. Blocks until
 * all running jobs have finished. */
void ch__iterator_pause_workers(ch_iterator *it);
void ch__iterator_resume_workers(ch_iterator *it);

/* Wakes all threads that wait for the iterator or for any of its workqueues. The caller must
 * hold the lock. */
void ch__iterator_wake_all(ch_iterator *it);
/* Blocks until `waiters` is woken, or until the time for a warning has passed. Wakeups may be
 * spurious, so the caller must check its condition again. If the wait is long, logs the warning
 * `slow-input`, which names the busy stage; if no workqueue is busy, it names `stage`. The
 * caller must hold the lock; the lock is released while the thread waits. */
void ch__iterator_wait(ch_iterator *it, ch_waiters *waiters, const char *stage);
/* Records that the file `path` is being opened, for the warning `slow-input`. The caller must
 * not hold the lock. */
void ch__iterator_set_file(ch_iterator *it, const char *path);

#endif
