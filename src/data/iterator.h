/* data/iterator.h -- the inside of an iterator.   SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_ITERATOR_H
#define DATA_ITERATOR_H

#include <pthread.h>

#include "base/thread.h"
#include "data/budget.h"
#include "data/workqueue.h"

/* For whom an iterator works, if it is not the program alone. */
typedef struct ch_iterator_owner {
    void *self;
    ch_status (*may_take)(void *self); /* asked before an element is taken */
    void (*drop)(void *self);          /* the iterator has ended */
} ch_iterator_owner;

struct ch_iterator {
    atomic_int   refs;
    ch_dataset  *dataset;
    ch_cursor   *root; /* the stage `out`, which makes tuples of the dataset's elements */
    bool         go_on, has_started, has_failed, has_ended;
    int          n_replicas, n_group;
    ch_element **group;  /* of the replicas, n_group so far. NULL: an element that failed */
    ch_device  **device; /* NULL: where they are */
    int          ahead;
    ch_stream_name
        name; /* of the random numbers that its stages draw; of the place, once restored */
    ch_iterator_owner owner; /* NULL functions: none */

    int         n_threads; /* wanted */
    ch_budget   budget;
    bool        unordered;
    atomic_bool stops;      /* everybody: give up what you do */
    ch_skips    skips[2];   /* of the tree that runs, and while a place is loaded of the next */
    ch_skips   *skips_made; /* those of a tree that is made now */

    pthread_mutex_t lock;   /* of the belts and of what follows */
    ch_waiters      idle;   /* threads that found nothing to do */
    ch_waiters      others; /* who waits for more than one belt */
    bool            is_paused;
    int64_t         notice_ms; /* that a wait takes till it is told of; 0: as configured */
    char            file[256]; /* that was opened last; "": none */
    int             n_workqueues, cap_workqueues;
    ch_workqueue  **workqueue; /* those nearer to the sources first */
    int             n_workers;
    ch_thread     **worker;
};

/* Makes an iterator as ch_iterator_new does, which draws the random numbers of the stream `name`. */
CH_MUST_CHECK ch_status ch__iterator_new_named(ch_dataset *d, const ch_iterator_options *opt,
                                               ch_stream_name name, ch_iterator **out);
/* Takes `self` over. Before the first element, and once. */
void ch__iterator_own(ch_iterator *it, const ch_iterator_owner *owner);
/* An element of no rows, for a replica that the data did not reach. What has a value has zero. */
ch_status ch__element_of_no_rows(const ch_dataset *d, ch_element **out);
/* As ch_iterator_next gives them, but of no rows, for all replicas. */
ch_status ch__iterator_no_rows(ch_iterator *it, ch_tuple **out);

/* With the lock held: tells everybody that something changed. */
void ch__iterator_wake_all(ch_iterator *it);
/* With the lock held: joins a crowd until it is told; says whom it waits for when that takes long. */
void ch__iterator_wait(ch_iterator *it, ch_waiters *waiters, const char *whom);
/* Without the lock: a file is opened now, and may be what is waited for. */
void ch__iterator_opens(ch_iterator *it, const char *path);

#endif
