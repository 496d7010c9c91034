/* data/job.h -- jobs of a workqueue: elements and errors that a stage pulls and makes.
 *
 * data/workqueue.h describes the steps of a job. The functions need no lock, because one thread
 * at a time uses the contents of a job.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_JOB_H
#define DATA_JOB_H

#include "data/data.h"

/* A result of a job: an element, or the error in its place. */
typedef struct ch_job_result {
    ch_element *element; /* owned; NULL: an error, or a result that was dropped */
    ch_status   rc;
    bool        is_between; /* the error does not stand for an element (ch__error_between) */
    char       *text;       /* message of the error; NULL: there was no memory for it */
    int64_t     extra;      /* a value that pull passes to make */
} ch_job_result;

typedef struct ch_data_job {
    bool is_ready; /* make has finished */
    bool has_end;  /* set by pull: the input has ended */
    bool is_last;  /* set by make: the stage ends here, and jobs pulled later are discarded */
    /* Memory was exhausted while a result was added. The error is delivered after the results
     * that the job has. */
    bool    has_lost;
    int     n, n_delivered; /* results: in the job, and of these delivered */
    int     want;           /* number of results that pull should add */
    int64_t bytes;          /* charged to the budget (data/budget.h) */
    int64_t first;          /* index of its first element among all elements the queue pulled */
    /* Text that pull passes to make, for example a file name. It stays until pull sets another;
     * NULL: none. */
    char          *note;
    int            capacity; /* of `result` */
    ch_job_result *result;   /* n results */
} ch_data_job;

/* For pull: add a result to the job. */
void ch__data_job_add(ch_data_job *job, ch_element *e); /* takes ownership of the element */
void ch__data_job_add_error(ch_data_job *job, ch_status rc); /* with this thread's message */
/* Sets job->note to a copy of `text`. If memory is exhausted, the note becomes NULL. */
void ch__data_job_note(ch_data_job *job, const char *text);
/* For make: removes the results that were dropped. */
void ch__data_job_close_gaps(ch_data_job *job);
/* Replaces a result by this thread's error. */
void ch__job_result_fail(ch_job_result *s, ch_status rc);
/* Frees the element or error of a result. */
void ch__job_result_drop(ch_job_result *s);

/* ---- for the workqueue ---- */

/* Frees the job with its results. NULL is allowed. */
void ch__data_job_free(ch_data_job *job);
/* Drops the results that were not delivered. */
void ch__data_job_clear(ch_data_job *job);
/* Saves the results that were not delivered. */
void ch__data_job_save(const ch_data_job *job, ch_saver *s);

#endif
