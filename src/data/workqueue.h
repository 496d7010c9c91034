/* data/workqueue.h -- ordered work queues: stages enqueue jobs, worker threads run them.
 *
 * A job holds a few elements and goes through three steps. Pull: its elements are read from the
 * inputs of the stage. Make: they are transformed into the results of the stage. Delivery: the
 * consumer of the stage receives the results. A single thread at a time pulls, in order. Any
 * number of threads make. Results are delivered in the order of pulling, unless the queue is
 * unordered. So the output does not depend on which thread did the work.
 *
 *     static void make(ch_cursor *c, ch_data_job *job) { ... each job->slot[k] ... }
 *     static const ch_workqueue_ops ops = {ch__workqueue_pull_input, make};
 *     ... rc = ch__workqueue_open(c, &ops, &(ch_workqueue_options){.want = 1}); ...
 *     const ch_stage ch__stage_x = {.name = "x", ..., CH_QUEUED_STAGE,
 *                                   .close = ch__close_nothing};
 *
 * A position need not hold results that can be made again from inputs that can be had again
 * (per_result below). It then has the inputs in their place: as references that the queue reads
 * before its input, or because the input steps back (ch_stage.can_step_back). If a consumer has
 * rewound the queue since, the references are those of several passes, with the rewinds between
 * them: the input is saved as it is now, and is not rewound again where a rewind was saved.
 *
 * The threads belong to the iterator (data/iterator_threads.c). Each thread searches the queues
 * for work, beginning at the sources. A consumer that waits for a job runs jobs of the same
 * queue meanwhile. If the iterator has no threads, the consumer does all work, one element at a
 * time.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_WORKQUEUE_H
#define DATA_WORKQUEUE_H

#include <pthread.h>

#include "data/job.h"

/* A condition variable with a count of its waiters, used with the iterator's lock. There is one
 * for each event, because waking a thread takes longer than producing most elements. */
typedef struct ch_waiters {
    pthread_cond_t changed;
    int            n; /* threads that wait now */
} ch_waiters;

void ch__waiters_init(ch_waiters *w);
void ch__waiters_wake_all(ch_waiters *w);
/* Wakes a single thread. That thread must wake the next if more work is left. */
void ch__waiters_wake_one(ch_waiters *w);

typedef struct ch_workqueue_ops {
    /* Adds up to job->want results with ch__data_job_add. Sets has_end at the end of the
     * input. */
    void (*pull)(ch_cursor *c, ch_data_job *job);
    /* Replaces the results by at most as many others. NULL: leaves them unchanged. */
    void (*make)(ch_cursor *c, ch_data_job *job);
} ch_workqueue_ops;

typedef struct ch_workqueue_options {
    int want; /* elements per job; 0: tuned so that a job is worth a thread switch */
    /* Jobs to prefetch; 0: tuned at run time; CH_OFF: none, the consumer runs each job
     * itself. */
    int  prefetch;
    int  at_once;   /* threads that may work at the same time; 0: any number */
    bool unordered; /* deliver the job that is ready first */
    /* Inputs that make a result, if making them again gives an equal result; 0: it does not.
     * If it is above 1, a job is one result, and the last of a pass may have fewer inputs. */
    int  per_result;
    bool is_output; /* the program's thread is the consumer */
} ch_workqueue_options;

typedef struct ch_workqueue ch_workqueue;

/* Returns the waiters for events of this queue. */
ch_waiters *ch__workqueue_waiters(ch_workqueue *q);

/* Creates c->workqueue. ch__cursor_close closes the queue before the rest of the cursor. */
ch_status ch__workqueue_open(ch_cursor *c, const ch_workqueue_ops *ops,
                             const ch_workqueue_options *opt);
void      ch__workqueue_close(ch_workqueue *q); /* NULL is allowed */

/* Blocks until the next result is ready. Returns its element in *out, or its error; NULL at the
 * end. Only the consumer may call it, from a single thread at a time. */
ch_status ch__workqueue_next(ch_workqueue *q, ch_element **out);

/* Stops all work of the queue until ch__workqueue_resume. Blocks until running jobs have
 * finished. While the queue is paused, the caller may change the inputs of the stage. */
void ch__workqueue_pause(ch_workqueue *q);
void ch__workqueue_resume(ch_workqueue *q);
/* Discards all jobs and clears the end of the input. The queue must be paused. */
void ch__workqueue_clear(ch_workqueue *q);
/* Does the same and begins the next pass of the input. The queue must be paused. */
ch_status ch__workqueue_rewind(ch_workqueue *q);
/* Saves and restores the results that are not delivered yet. The queue must be paused. */
void      ch__workqueue_save(ch_workqueue *q, ch_saver *s);
ch_status ch__workqueue_load(ch_workqueue *q, ch_loader *from);
/* For load: the stage itself has n inputs of the next result. */
void ch__workqueue_hold(ch_workqueue *q, int64_t n);
/* Saves the position at the place ch__save_place(s), without the results that are not
 * delivered, if all of them can be made again; else does the same as ch__workqueue_save.
 * Returns true in the first case: all inputs that the stage has read for later results count as
 * not read then. The input must be saved at the place *input. */
bool ch__workqueue_save_back(ch_workqueue *q, ch_saver *s, ch_back *input);
/* Returns an upper limit of the elements of `c` that its consumers hold, as elements or as
 * results of them, and could have made again: they may ask for a place so far back. */
int64_t ch__workqueue_most_held(const ch_cursor *c);

/* Blocks until any of n cursors can deliver a result or its end, and returns its index in *out.
 * The search begins at index `first` and wraps around. Each cursor has a workqueue; NULL
 * entries are skipped. While it waits, the calling stage `consumer` runs jobs of all these
 * queues. */
ch_status ch__workqueue_any(const ch_cursor *consumer, ch_cursor *const *c, int n, int first,
                            int *out);

/* Operations of a stage that returns the results of its queue and has no other state. */
ch_status ch__queued_next(ch_cursor *c, ch_element **out);
ch_status ch__queued_rewind(ch_cursor *c);
bool      ch__queued_can_step_back(ch_cursor *c, ch_back to);
void      ch__queued_save(ch_cursor *c, ch_saver *s);
ch_status ch__queued_load(ch_cursor *c, ch_loader *l);
/* clang-format off */
#define CH_QUEUED_STAGE                                                                        \
    .next = ch__queued_next, .rewind = ch__queued_rewind,                                      \
    .can_step_back = ch__queued_can_step_back,                                                 \
    .save = ch__queued_save, .load = ch__queued_load
/* clang-format on */

/* For pull: reads the next element of the only input, or NULL at the end. */
ch_status ch__workqueue_read(ch_cursor *c, ch_element **out);
/* A pull that reads up to job->want elements of the only input. */
void ch__workqueue_pull_input(ch_cursor *c, ch_data_job *job);

/* ---- for the iterator ---- */

/* Runs a job of this queue if there is work to prefetch, and returns true. The caller must
 * hold the iterator's lock; the call releases it while the job runs. */
bool ch__workqueue_work(ch_workqueue *q);
/* Returns the queue's cursor while a thread runs a job of it, else NULL. The caller must hold
 * the iterator's lock. */
const ch_cursor *ch__workqueue_busy(const ch_workqueue *q);
/* Sets the fields of `out` that describe the queue. The caller must hold the iterator's
 * lock. */
void ch__workqueue_profile(const ch_workqueue *q, ch_stage_profile *out);
/* Returns true if each job of the queue is timed. If the iterator has no threads, only jobs of
 * the last queue are: jobs of the other queues are single elements, and reading the clock takes
 * longer than most elements do. Their work then counts as part of the calls of their cursors,
 * of which a sample is timed. */
bool ch__workqueue_is_timed(const ch_workqueue *q);
/* Returns the CPU time, in nanoseconds, that this thread has spent on timed jobs so far. */
int64_t ch__workqueue_helped_ns(void);

#endif
