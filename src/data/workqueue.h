/* data/workqueue.h -- a belt: what a stage needs done, done beforehand by whoever has time.
 *
 * Work comes in items, each some elements. An item is pulled, that is, its elements are taken from
 * below; then made, which turns them into what the stage gives; then taken. Pulling goes in order,
 * one thread at a time; making goes on in any number of threads; taking goes in the order of
 * pulling again, unless the belt is unordered. So what comes out does not depend on who did it.
 *
 *     static void make(ch_cursor *c, ch_data_job *i)   { ... each i->slot[k] ... }
 *     static const ch_workqueue_ops ops = {ch__workqueue_pull_input, make};
 *     ... rc = ch__workqueue_open(c, &ops, &(ch_workqueue_options){.want = 1}); ...
 *     const ch_stage ch__stage_x = {.name = "x", ..., CH_QUEUED_STAGE, .close = ch__close_nothing};
 *
 * The threads are the iterator's. Each looks for work from the sources on; one
 * that has to wait for an item does work of that belt in the meantime. With no threads, whoever
 * takes does it all, an element at a time.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DATA_WORKQUEUE_H
#define DATA_WORKQUEUE_H

#include <pthread.h>

#include "data/data.h"

/* Those who wait for one thing, under the iterator's lock. To wake a thread costs more than most elements
 * do, so there is one for each thing. */
typedef struct ch_waiters {
    pthread_cond_t changed;
    int            n;
} ch_waiters;

void ch__waiters_init(ch_waiters *c);
void ch__waiters_wake_all(ch_waiters *c); /* all of them */
void ch__waiters_wake_one(ch_waiters *c); /* one, who will tell the next if there is more */

/* What stands in a place: an element, or the error that there was instead. */
typedef struct ch_job_result {
    ch_element *element;
    ch_status   rc;
    bool        is_between; /* an error that no element is missing for (ch__error_between) */
    char       *text;       /* of an error; NULL: no memory for it */
    int64_t     extra;      /* from pull to make */
} ch_job_result;

typedef struct ch_data_job {
    bool    is_ready;
    bool    has_end;  /* nothing comes behind it */
    bool    is_last;  /* of make: what was pulled behind it does not count */
    bool    has_lost; /* there was no memory for a result: an error, behind those there are */
    int     n, taken;
    int     want;  /* how many pull should put there */
    int64_t bytes; /* that it is charged for (data/budget.h) */
    int64_t first; /* the place of its first element among all that the belt pulled */
    char   *note;  /* of pull, for make: a file's name, until pull sets another. NULL: none */
    int     capacity;
    ch_job_result *slot;
} ch_data_job;

typedef struct ch_workqueue_ops {
    /* Puts up to i->want results there with ch__data_job_add; sets has_end where there are no more. */
    void (*pull)(ch_cursor *c, ch_data_job *i);
    /* Replaces them by others, at most as many, or leaves them. NULL: leaves them all. */
    void (*make)(ch_cursor *c, ch_data_job *i);
} ch_workqueue_ops;

typedef struct ch_workqueue_options {
    int  want;      /* elements of an item; 0: as many as make an item worth a thread's while */
    int  ahead;     /* items; 0: as it turns out; CH_OFF: none, who takes an item makes it */
    int  at_once;   /* threads that make; 0: any number */
    bool unordered; /* take what is ready first */
} ch_workqueue_options;

typedef struct ch_workqueue ch_workqueue;

/* Those who wait for something of this belt. */
ch_waiters *ch__workqueue_waiters(ch_workqueue *l);

/* c->belt, which ch__cursor_close closes before anything else of the cursor. */
ch_status ch__workqueue_open(ch_cursor *c, const ch_workqueue_ops *ops,
                             const ch_workqueue_options *opt);
void      ch__workqueue_close(ch_workqueue *l); /* NULL is fine */

/* The next result, its element or error; NULL at the end. */
ch_status ch__workqueue_next(ch_workqueue *l, ch_element **out);

/* Nobody pulls or makes from hold to release: what is below may be changed. */
void ch__workqueue_pause(ch_workqueue *l);
void ch__workqueue_resume(ch_workqueue *l);
/* While held: forgets what is done already, and that there was an end. */
void ch__workqueue_clear(ch_workqueue *l);
/* While held: what is done and not yet taken. */
void      ch__workqueue_save(ch_workqueue *l, ch_saver *s);
ch_status ch__workqueue_load(ch_workqueue *l, ch_loader *from);

/* For `taker`: of these cursors, each with a belt or NULL, one that has a result or its end to give, from
 * `first` on, in a circle. Waits for one, and works for all of them meanwhile. */
ch_status ch__workqueue_any(const ch_cursor *taker, ch_cursor *const *c, int n, int first,
                            int *out);

/* What a stage does that gives what comes off its belt, and keeps nothing else. */
ch_status ch__queued_next(ch_cursor *c, ch_element **out);
ch_status ch__queued_rewind(ch_cursor *c);
void      ch__queued_save(ch_cursor *c, ch_saver *s);
ch_status ch__queued_load(ch_cursor *c, ch_loader *l);
/* clang-format off */
#define CH_QUEUED_STAGE                                                                              \
    .next = ch__queued_next, .rewind = ch__queued_rewind,                                      \
    .save = ch__queued_save, .load = ch__queued_load
/* clang-format on */

/* A pull that takes from the only input. */
void ch__workqueue_pull_input(ch_cursor *c, ch_data_job *i);

/* For pull: one more. */
void ch__data_job_add(ch_data_job *i, ch_element *e);      /* takes it over */
void ch__data_job_add_error(ch_data_job *i, ch_status rc); /* with this thread's message */
/* From a cursor until i->want are there or it ends. */
void ch__data_job_fill(ch_data_job *i, ch_cursor *from);
void ch__data_job_note(ch_data_job *i, const char *text);
/* For make: leaves out slots that were dropped. */
void ch__data_job_close_gaps(ch_data_job *i);
/* Puts this thread's error in the place of what is there. */
void ch__job_result_fail(ch_job_result *s, ch_status rc);
void ch__job_result_drop(ch_job_result *s); /* frees what is there */

/* ---- of the iterator ---- */

/* Work of this belt, if there is some: what idle threads do. With the iterator's lock held, which
 * is let go of meanwhile. */
bool ch__workqueue_work(ch_workqueue *l);
/* With the iterator's lock held: the belt's cursor while somebody pulls or makes, else NULL. */
const ch_cursor *ch__workqueue_busy(const ch_workqueue *l);
void             ch__workqueue_profile(const ch_workqueue *l, ch_stage_profile *out);
/* Returns true if each item of the belt is timed. If the iterator has no threads, only items of the
 * last belt are: the others' items are single elements, and reading the clock takes longer than
 * most elements do. Their work is then part of their cursors' calls, of which few are timed. */
bool ch__workqueue_is_timed(const ch_workqueue *l);
/* How long this thread worked for belts so far, by the processor's time. */
int64_t ch__workqueue_helped_ns(void);

#endif
