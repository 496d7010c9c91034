/* data/workqueue.c -- ordered work queues.
 *
 * A ch_workqueue belongs to a cursor and holds a list of ch_data_job (data/job.h) in the order
 * of pulling.
 * Stages open it and read its results; the iterator's threads call ch__workqueue_work.
 * "Consumer" below is the thread that calls ch__workqueue_next, usually on behalf of the parent
 * cursor.
 *
 * Invariants:
 *   1. The iterator's lock guards all fields. It is held only for short times, because jobs are
 *      passed by pointer and run without the lock.
 *   2. `current` is the job that the consumer reads results from. Only the consumer uses the
 *      contents of this job, and there is one consumer at a time, so delivering an element
 *      takes no lock.
 *   3. At most one job is being pulled at a time (is_pulling). While `is_paused` is set, no new
 *      job starts. When n_busy is 0 as well, no thread uses the cursor.
 *   4. The thread that pulls uses the fields from `log` to `job_end` without the lock. `log`
 *      has the last inputs, also those of earlier passes. It has those of all results that are
 *      not delivered to the program, if all of them were read without an error and can be
 *      referenced.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/workqueue.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/thread.h"
#include "data/iterator.h"
#include "data/row_ref.h"

enum {
    MAX_COUNT = 256,       /* limit of elements per job and of jobs per queue */
    SHORT_JOB_NS = 200000, /* a job that takes less time may be larger */
    LONG_JOB_NS = 2000000  /* a job that takes more time should be smaller */
};

struct ch_workqueue {
    ch_cursor              *cursor;
    ch_iterator            *it;
    const ch_workqueue_ops *ops;
    ch_workqueue_options    opt;
    int                     want;     /* elements of the next job */
    int                     capacity; /* jobs to prefetch, at present */
    /* has_ended: the input has ended, or a job had is_last. */
    bool is_pulling, is_paused, has_ended;
    /* A worker thread had no memory for a job. The consumer runs the next job itself, so that
     * it gets the error. */
    bool         is_out_of_memory;
    int          n_busy;           /* jobs being pulled or made */
    int          n;                /* jobs in queue[]: busy or ready */
    ch_data_job *queue[MAX_COUNT]; /* in the order of pulling */
    ch_data_job *free_job;         /* an empty job for reuse; or NULL */
    int64_t      n_pulled;         /* elements */
    int64_t      wait_ns;          /* time that consumers waited */
    int64_t      own_ns; /* CPU time of its jobs, without jobs of other queues run meanwhile */
    ch_cursor   *runner; /* stage that runs the body around this queue; NULL: in no body */
    ch_charge    charge;

    ch_waiters waiters; /* threads that wait for an event of this queue */

    ch_row_refs log;      /* the last inputs; empty if results cannot be made again */
    ch_row_refs begins;   /* the `begin` of the last passes before this */
    ch_row_refs put_back; /* inputs of a restored position, which are read before the input */
    /* The places in put_back where the input was rewound: the value that put_back.first has
     * there. */
    ch_row_refs rewinds;
    int64_t     n_in;    /* inputs read, in all passes */
    int64_t     begin;   /* n_in at the beginning of this pass */
    int64_t     direct;  /* n_in at the last error, or behind the last input of put_back */
    int64_t     job_end; /* n_in at the end of the last job that had inputs */
    int         n_last;  /* inputs of that job */

    ch_data_job *current; /* the job being delivered; only the consumer uses it */
};

/* ---- waiters ---- */

void ch__waiters_init(ch_waiters *w)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &attr);
    pthread_condattr_destroy(&attr);
}

void ch__waiters_wake_all(ch_waiters *w)
{
    if (w->n > 0)
        pthread_cond_broadcast(&w->changed);
}

void ch__waiters_wake_one(ch_waiters *w)
{
    if (w->n > 0)
        pthread_cond_signal(&w->changed);
}

ch_waiters *ch__workqueue_waiters(ch_workqueue *q)
{
    return &q->waiters;
}

/* ---- opening and closing ---- */

/* Adds the queue to its cursor and to the iterator's list. Cursors open their inputs first, so
 * queues closer to the sources come first. Jobs of this queue and of its inputs may run at
 * once. */
static ch_status register_queue(ch_workqueue *q)
{
    ch_iterator *it = q->it;
    bool         fits;

    pthread_mutex_lock(&it->lock);
    fits = ch__grow((void **)&it->workqueue, &it->cap_workqueues, it->n_workqueues + 1,
                    sizeof(*it->workqueue));
    if (fits) {
        q->cursor->workqueue = q;
        it->workqueue[it->n_workqueues++] = q;
        ch__charge_open(&it->budget, &q->charge, q->want);
        ch__waiters_wake_one(&it->idle);
    }
    pthread_mutex_unlock(&it->lock);
    return fits ? CH_OK : ch__fail_memory(q->cursor->stage->name);
}

static void unregister_queue(ch_workqueue *q)
{
    ch_iterator *it = q->it;

    for (int i = 0; i < it->n_workqueues; i++)
        if (it->workqueue[i] == q) {
            memmove(&it->workqueue[i], &it->workqueue[i + 1],
                    (size_t)(it->n_workqueues - i - 1) * sizeof(*it->workqueue));
            it->n_workqueues--;
            ch__charge_close(&it->budget, &q->charge);
            return;
        }
}

ch_status ch__workqueue_open(ch_cursor *c, const ch_workqueue_ops *ops,
                             const ch_workqueue_options *opt)
{
    ch_workqueue *q = ch__calloc(1, sizeof(*q));
    int           threads = c->it->n_threads;
    ch_status     rc;

    if (q == NULL)
        return ch__fail_memory(c->stage->name);
    ch__waiters_init(&q->waiters);
    q->cursor = c;
    q->runner = ch__cursor_runner(c);
    q->it = c->it;
    q->ops = ops;
    q->opt = *opt;
    q->want = opt->want > 0 ? opt->want : 1;
    q->n_last = opt->per_result;
    q->capacity = opt->prefetch > 0 ? opt->prefetch : 2 * threads + 2;
    if (threads == 0 || opt->prefetch == CH_OFF)
        q->capacity = 1;
    if (q->capacity > MAX_COUNT)
        q->capacity = MAX_COUNT;
    rc = register_queue(q);
    if (rc != CH_OK) {
        pthread_cond_destroy(&q->waiters.changed);
        ch__free(q);
    }
    return rc;
}

void ch__workqueue_close(ch_workqueue *q)
{
    if (q == NULL)
        return;
    ch__workqueue_pause(q);
    ch__workqueue_clear(q);
    pthread_mutex_lock(&q->it->lock);
    unregister_queue(q);
    q->cursor->workqueue = NULL;
    pthread_mutex_unlock(&q->it->lock);
    ch__data_job_free(q->free_job);
    ch__row_refs_drop(&q->log);
    ch__row_refs_drop(&q->begins);
    ch__row_refs_drop(&q->put_back);
    ch__row_refs_drop(&q->rewinds);
    pthread_cond_destroy(&q->waiters.changed);
    ch__free(q);
}

/* ---- bytes ---- */

/* Returns true if the budget has room for another job. A queue without jobs may always have
 * one, because otherwise the pipeline would stop. */
static bool has_room(const ch_workqueue *q)
{
    return q->it->budget.most == 0 || (q->n == 0 && q->current == NULL) ||
           ch__charge_fits(&q->it->budget, &q->charge, q->want);
}

/* Halves the size of the next job until it fits the budget or reaches its minimum. */
static void shrink_to_fit(ch_workqueue *q)
{
    while (q->it->budget.most > 0 && q->want > q->charge.least_want &&
           !ch__charge_fits(&q->it->budget, &q->charge, q->want))
        q->want /= 2;
}

/* Sets the bytes that the job is charged for. The caller must hold the lock. */
static void charge(ch_workqueue *q, ch_data_job *job, int64_t bytes)
{
    ch__charge_add(&q->it->budget, &q->charge, bytes - job->bytes);
    job->bytes = bytes;
}

/* Returns the bytes of the job's results that are not delivered; 0 if bytes are not limited. */
static int64_t bytes_of(const ch_workqueue *q, const ch_data_job *job)
{
    int64_t bytes = 0;

    for (int k = job->n_delivered; k < job->n && q->it->budget.most > 0; k++)
        if (job->result[k].element != NULL)
            bytes += ch__element_bytes(job->result[k].element);
    return bytes;
}

/* Returns the queue with the largest minimum job. */
static const ch_workqueue *largest_queue(const ch_iterator *it)
{
    const ch_workqueue *most = it->workqueue[0];

    for (int i = 1; i < it->n_workqueues; i++)
        if (ch__charge_least(&it->workqueue[i]->charge) > ch__charge_least(&most->charge))
            most = it->workqueue[i];
    return most;
}

/* Charges a finished job: `at_most` is the peak of its bytes, `now` its bytes now. If the
 * minimum of all buffers exceeds the limit, replaces the results of the job by an error. The
 * caller must hold the lock. */
static void settle_charge(ch_workqueue *q, ch_data_job *job, int64_t at_most, int64_t now)
{
    ch_budget *b = &q->it->budget;
    int64_t    kept = atomic_load_explicit(&b->kept, memory_order_relaxed);

    if (b->most == 0)
        return;
    ch__charge_measured(b, &q->charge, job->want, at_most);
    charge(q, job, now);
    if (b->least + kept <= ch__budget_limit(b) || job->n == 0)
        return;
    const ch_workqueue *largest = largest_queue(q->it);
    int64_t             needs = ch__charge_least(&largest->charge);
    ch_status           rc =
        ch__fail(CH_RESOURCE_EXHAUSTED,
                 "%s: it must hold %lld bytes; all buffers of the pipeline need at least %lld, "
                 "but memory_bytes is %lld; use smaller batches and buffers, or raise "
                 "memory_bytes",
                 kept > needs ? b->keeper : largest->cursor->stage->name,
                 (long long)(kept > needs ? kept : needs), (long long)(b->least + kept),
                 (long long)b->most);
    for (int k = 1; k < job->n; k++)
        ch__job_result_drop(&job->result[k]);
    ch__job_result_fail(&job->result[0], rc);
    job->n = 1;
    charge(q, job, 0);
}

/* ---- working ---- */

static bool has_work(const ch_workqueue *q)
{
    return !q->is_pulling && !q->is_paused && !q->has_ended && q->n < q->capacity &&
           (q->opt.at_once == 0 || q->n_busy < q->opt.at_once) && has_room(q);
}

/* Returns true if the consumer runs jobs while it waits. The program's thread, the consumer of
 * the last stage, does not if there are worker threads, unless prefetching is off. */
static bool consumer_works(const ch_workqueue *q)
{
    return q->it->n_workers == 0 || q->opt.prefetch == CH_OFF || !q->opt.is_output;
}

/* Returns true if there is work for threads that prefetch. */
static bool has_prefetch_work(const ch_workqueue *q)
{
    return q->opt.prefetch != CH_OFF && has_work(q);
}

/* Returns true if a job can be popped, or if the queue is at its end. */
static bool has_result(const ch_workqueue *q)
{
    for (int i = 0; i < q->n; i++)
        if (q->queue[i]->is_ready && (i == 0 || q->opt.unordered))
            return true;
    return q->n == 0 && q->has_ended;
}

/* Wakes the threads that can continue after a change of the queue. If bytes are limited, wakes
 * all threads, because freed bytes may let any queue continue. The caller must hold the
 * lock. */
static void wake(ch_workqueue *q)
{
    if (q->it->budget.most > 0) {
        ch__iterator_wake_all(q->it);
        return;
    }
    if (q->waiters.n + q->it->others.n + q->it->idle.n == 0)
        return;
    if (has_result(q) || ((q->is_paused || q->it->is_paused) && q->n_busy == 0) ||
        (consumer_works(q) && has_work(q))) {
        ch__waiters_wake_all(&q->waiters);
        ch__waiters_wake_all(&q->it->others);
    }
    if (has_prefetch_work(q))
        ch__waiters_wake_one(&q->it->idle);
}

/* Returns an empty job of q->want elements, reusing the free job; NULL: out of memory. */
static ch_data_job *job_new(ch_workqueue *q)
{
    ch_data_job *job = q->free_job;

    q->free_job = NULL;
    if (job == NULL)
        job = ch__calloc(1, sizeof(*job));
    if (job == NULL)
        return NULL;
    ch__data_job_clear(job);
    job->bytes = 0;
    job->is_ready = job->has_end = job->is_last = job->has_lost = false;
    job->want = q->want;
    job->first = q->n_pulled;
    return job;
}

/* Doubles or halves the job size after a job of `n` results took `ns`. A job should be just
 * large enough that the cost of passing it between threads is small. */
static void tune(ch_workqueue *q, int64_t ns, int n)
{
    if (ns < SHORT_JOB_NS && n == q->want && q->want < MAX_COUNT)
        q->want *= 2;
    else if (ns > LONG_JOB_NS && q->want > 1)
        q->want /= 2;
}

/* ---- time ---- */

static _Thread_local int64_t helped_ns; /* CPU time of this thread's timed jobs */

int64_t ch__workqueue_helped_ns(void)
{
    return helped_ns;
}

/* Ends the timing of a job: helped_ns was `before` and the CPU time `from` when it began.
 * Returns the CPU time of this job alone, because a job that waits for its inputs runs jobs of
 * other queues meanwhile. */
static int64_t stop_clock(int64_t before, int64_t from)
{
    int64_t all = ch__cpu_ns() - from, others = helped_ns - before;

    helped_ns = before + all;
    return all - others;
}

/* Adds work and waiting time. Time in a body also counts for the stage that runs the body. The
 * caller must hold the lock. */
static void add_time(ch_workqueue *q, int64_t own_ns, int64_t wait_ns)
{
    if (q->runner != NULL) {
        q->runner->counts.body_ns += own_ns;
        q->runner->counts.body_wait_ns += wait_ns;
    }
    q->own_ns += own_ns;
    q->wait_ns += wait_ns;
}

/* Ends the pull of `n` elements, so that the next job can be pulled. The caller must hold the
 * lock. */
static void end_pull(ch_workqueue *q, const ch_data_job *job, int n)
{
    q->n_pulled += n;
    if (n > 0) {
        q->n_last = n;
        q->job_end = q->n_in;
    }
    q->is_pulling = false;
    q->has_ended |= job->has_end;
    wake(q);
}

/* Pulls and makes one job. The caller must hold the lock; the call releases it meanwhile. */
static ch_status work(ch_workqueue *q)
{
    bool is_timed = ch__workqueue_is_timed(q);
    bool pulls_overlap = q->it->n_threads > 0; /* others may pull while this thread makes */
    bool is_tuned = q->opt.want == 0 && q->it->n_threads > 0; /* the time decides q->want */
    ch_data_job *job;
    int64_t      began, from, before, own, pulled, made;
    int          n;

    shrink_to_fit(q);
    job = job_new(q);
    if (job == NULL)
        return ch__fail_memory(q->cursor->stage->name);
    charge(q, job, q->charge.element_bytes * q->want);
    q->queue[q->n++] = job;
    q->is_pulling = true;
    q->n_busy++;
    pthread_mutex_unlock(&q->it->lock);
    began = is_tuned ? ch__now_ns() : 0;
    before = helped_ns;
    from = is_timed ? ch__cpu_ns() : 0;
    q->ops->pull(q->cursor, job);
    n = job->n;
    pulled = bytes_of(q, job);
    if (pulls_overlap) {
        pthread_mutex_lock(&q->it->lock);
        end_pull(q, job, n);
        pthread_mutex_unlock(&q->it->lock);
    }
    if (q->ops->make != NULL)
        q->ops->make(q->cursor, job);
    made = bytes_of(q, job);
    own = is_timed ? stop_clock(before, from) : 0;
    pthread_mutex_lock(&q->it->lock);
    if (!pulls_overlap)
        end_pull(q, job, n);
    settle_charge(q, job, q->ops->make != NULL ? pulled + made : made, made);
    job->is_ready = true;
    q->has_ended |= job->is_last;
    q->n_busy--;
    add_time(q, own, 0);
    if (is_tuned)
        tune(q, ch__now_ns() - began, job->n);
    wake(q);
    return CH_OK;
}

bool ch__workqueue_work(ch_workqueue *q)
{
    if (!has_prefetch_work(q))
        return false;
    if (work(q) == CH_OK)
        return true;
    q->is_out_of_memory = true;
    ch__waiters_wake_all(&q->waiters);
    ch__waiters_wake_all(&q->it->others);
    return false;
}

const ch_cursor *ch__workqueue_busy(const ch_workqueue *q)
{
    return q->n_busy > 0 ? q->cursor : NULL;
}

/* ---- delivery ---- */

/* Removes the next job from the queue; NULL: it is not ready. */
static ch_data_job *pop_job(ch_workqueue *q)
{
    int at = 0;

    while (q->opt.unordered && at + 1 < q->n && !q->queue[at]->is_ready)
        at++;
    if (at >= q->n || !q->queue[at]->is_ready)
        return NULL;
    ch_data_job *job = q->queue[at];
    memmove(&q->queue[at], &q->queue[at + 1], (size_t)(q->n - at - 1) * sizeof(ch_data_job *));
    q->n--;
    /* Wakes threads only when there is room for several jobs, not after every job. */
    if (q->n <= q->capacity / 2 || q->it->budget.most > 0)
        wake(q);
    return job;
}

/* Doubles the number of jobs to prefetch if the consumer must wait although threads are idle.
 * Leaves a fixed number (opt.prefetch) unchanged. */
static void grow_capacity(ch_workqueue *q)
{
    if (q->opt.prefetch > 0 || q->n_pulled <= 8 || q->it->idle.n == 0 ||
        q->capacity * 2 > 8 * q->it->n_threads + 8)
        return;
    q->capacity *= 2;
    wake(q);
}

/* Sets `current` to the next job; NULL at the end. Blocks until the job is ready. The caller
 * must hold the lock. */
static ch_status advance(ch_workqueue *q)
{
    ch_status rc = CH_OK;

    while (rc == CH_OK && (q->current = pop_job(q)) == NULL) {
        if (atomic_load_explicit(&q->it->stops, memory_order_relaxed))
            return ch__fail(CH_CANCELLED, "%s: the iterator was closed",
                            q->cursor->stage->name);
        if (q->n == 0 && q->has_ended)
            return CH_OK;
        if (has_work(q) && (consumer_works(q) || q->is_out_of_memory)) {
            q->is_out_of_memory = false;
            rc = work(q);
            continue;
        }
        int64_t t0 = ch__now_ns();

        grow_capacity(q);
        ch__iterator_wait(q->it, &q->waiters, q->cursor->stage->name);
        add_time(q, 0, ch__now_ns() - t0);
    }
    return rc;
}

/* Moves the element of a result to *out, or raises its error in this thread. */
static ch_status deliver(ch_job_result *s, ch_element **out)
{
    ch_status rc = s->rc;

    if (rc == CH_OK) {
        *out = s->element;
        *s = (ch_job_result){0};
        return CH_OK;
    }
    (void)ch__fail(rc, "%s", s->text != NULL ? s->text : "no memory for the message");
    if (s->is_between)
        (void)ch__error_between(rc);
    ch__job_result_drop(s);
    return rc;
}

ch_status ch__workqueue_next(ch_workqueue *q, ch_element **out)
{
    ch_data_job *job;

    while ((job = q->current) == NULL || job->n_delivered == job->n) {
        ch_status rc;

        if (job != NULL && job->has_lost) {
            job->has_lost = false;
            return ch__fail_memory(q->cursor->stage->name);
        }
        if (job != NULL && job->is_last) {
            *out = NULL;
            return CH_OK;
        }
        pthread_mutex_lock(&q->it->lock);
        if (job != NULL) {
            charge(q, job, 0);
            ch__data_job_free(q->free_job);
            q->free_job = job;
            q->current = NULL;
            if (q->it->budget.most > 0)
                ch__iterator_wake_all(q->it); /* the budget has room now */
        }
        rc = advance(q);
        pthread_mutex_unlock(&q->it->lock);
        if (rc != CH_OK)
            return rc;
        if (q->current == NULL) {
            *out = NULL;
            return CH_OK;
        }
    }
    return deliver(&job->result[job->n_delivered++], out);
}

/* ---- several queues ---- */

/* Returns true if the next ch__workqueue_next does not block. Only the consumer may call it,
 * and it must hold the lock. */
static bool can_deliver(const ch_workqueue *q)
{
    const ch_data_job *job = q->current;

    if (job != NULL && (job->n_delivered < job->n || job->has_lost || job->is_last))
        return true;
    return has_result(q);
}

static int find_any(ch_cursor *const *c, int n, int first)
{
    for (int i = 0; i < n; i++)
        if (c[(first + i) % n] != NULL && can_deliver(c[(first + i) % n]->workqueue))
            return (first + i) % n;
    return -1;
}

static bool work_for_any(ch_cursor *const *c, int n, int first, ch_status *rc)
{
    for (int i = 0; i < n; i++) {
        ch_cursor *at = c[(first + i) % n];

        if (at != NULL && has_work(at->workqueue)) {
            *rc = work(at->workqueue);
            return true;
        }
    }
    return false;
}

/* Waits for a change of any queue. Adds the time to the first queue only, so that the sum over
 * all queues is right. */
static void wait_for_any(const ch_cursor *consumer, ch_cursor *const *c, int n)
{
    int64_t from = ch__now_ns();

    ch__iterator_wait(consumer->it, &consumer->it->others, consumer->stage->name);
    for (int i = 0; i < n; i++)
        if (c[i] != NULL) {
            add_time(c[i]->workqueue, 0, ch__now_ns() - from);
            break;
        }
}

/* If a queue has neither a result nor work, another thread runs a job of it and wakes this
 * thread afterwards. */
ch_status ch__workqueue_any(const ch_cursor *consumer, ch_cursor *const *c, int n, int first,
                            int *out)
{
    ch_iterator *it = consumer->it;
    ch_status    rc = CH_OK;

    pthread_mutex_lock(&it->lock);
    while (rc == CH_OK && (*out = find_any(c, n, first)) < 0) {
        if (atomic_load_explicit(&it->stops, memory_order_relaxed))
            rc = ch__fail(CH_CANCELLED, "%s: the iterator was closed", consumer->stage->name);
        else if (!work_for_any(c, n, first, &rc))
            wait_for_any(consumer, c, n);
    }
    pthread_mutex_unlock(&it->lock);
    return rc;
}

/* ---- pausing, saving ---- */

void ch__workqueue_pause(ch_workqueue *q)
{
    pthread_mutex_lock(&q->it->lock);
    q->is_paused = true;
    while (q->n_busy > 0)
        ch__iterator_wait(q->it, &q->waiters, q->cursor->stage->name);
    pthread_mutex_unlock(&q->it->lock);
}

void ch__workqueue_resume(ch_workqueue *q)
{
    pthread_mutex_lock(&q->it->lock);
    q->is_paused = false;
    ch__iterator_wake_all(q->it);
    pthread_mutex_unlock(&q->it->lock);
}

/* Returns true if inputs of a restored position are read before the input. */
static bool has_put_back(const ch_workqueue *q)
{
    return q->put_back.n + q->rewinds.n > 0;
}

/* Returns true if the inputs that are put back have a rewind next. */
static bool is_at_rewind(const ch_workqueue *q)
{
    return q->rewinds.n > 0 && ch__row_refs_at(&q->rewinds, 0)->number == q->put_back.first;
}

void ch__workqueue_clear(ch_workqueue *q)
{
    pthread_mutex_lock(&q->it->lock);
    ch__charge_add(&q->it->budget, &q->charge, -q->charge.held);
    pthread_mutex_unlock(&q->it->lock);
    for (int i = 0; i < q->n; i++)
        ch__data_job_free(q->queue[i]);
    ch__data_job_free(q->current);
    q->current = NULL;
    q->n = 0;
    q->has_ended = false;
    q->n_pulled = 0;
    q->job_end = q->n_in;
    q->n_last = q->opt.per_result;
}

/* Goes to the next rewind in put_back. If there is none, rewinds the input. */
static ch_status rewind_input(ch_workqueue *q)
{
    bool is_put_back = q->rewinds.n > 0;

    while (q->put_back.n > 0 && !(is_put_back && is_at_rewind(q)))
        ch__row_refs_pop(&q->put_back);
    if (!is_put_back)
        return ch__rewind_inputs(q->cursor);
    ch__row_refs_pop(&q->rewinds);
    return CH_OK;
}

/* Records where this pass began. Without memory, earlier passes are forgotten: the next
 * position is larger then. */
static void log_rewind(ch_workqueue *q)
{
    bool grows = ch__row_refs_is_due(&q->begins) &&
                 ch__workqueue_most_held(q->cursor) > q->begins.capacity / 2;
    ch_row_word *word = ch__row_refs_add(&q->begins, true, 1, grows);

    if (word != NULL)
        word->number = q->begin;
    else
        ch__row_refs_empty(&q->begins);
    q->begin = q->n_in;
}

ch_status ch__workqueue_rewind(ch_workqueue *q)
{
    if (q->opt.per_result > 0)
        log_rewind(q);
    ch__workqueue_clear(q);
    return rewind_input(q);
}

/* Adds the number of results of a job that must be saved. Returns false if the stage ends with
 * this job, so that later jobs are discarded. */
static bool count_results(const ch_data_job *job, int64_t *n)
{
    if (job != NULL)
        *n += job->n - job->n_delivered + job->has_lost;
    return job == NULL || !job->is_last;
}

/* Saves where the inputs that are put back have rewinds, if n others come before them. */
static void save_rewinds(const ch_workqueue *q, ch_saver *s, int64_t n)
{
    for (int64_t i = 0; i < q->rewinds.n; i++)
        ch__save_int(s, n + ch__row_refs_at(&q->rewinds, i)->number - q->put_back.first);
}

void ch__workqueue_save(ch_workqueue *q, ch_saver *s)
{
    int64_t n = 0;
    int     n_jobs = 0;
    bool    goes_on = count_results(q->current, &n);

    while (goes_on && n_jobs < q->n)
        goes_on = count_results(q->queue[n_jobs++], &n);
    ch__save_int(s, q->n_pulled);
    ch__save_int(s, q->has_ended);
    ch__save_int(s, n);
    if (q->current != NULL)
        ch__data_job_save(q->current, s);
    for (int i = 0; i < n_jobs; i++)
        ch__data_job_save(q->queue[i], s);
    ch__save_int(s, q->put_back.n);
    ch__save_int(s, q->rewinds.n);
    save_rewinds(q, s, 0);
    ch__save_refs(s, &q->put_back, 0);
}

/* Adds the results of a job that are not delivered to *n. Returns false if they cannot be made
 * again: one is an error, or the stage ends with this job. */
static bool count_good_results(const ch_data_job *job, int64_t *n)
{
    for (int k = job->n_delivered; k < job->n; k++)
        if (job->result[k].rc != CH_OK)
            return false;
    *n += job->n - job->n_delivered;
    return !job->has_lost && !job->is_last;
}

/* Adds the results of all jobs that are not delivered to *n. Returns false if any cannot be
 * made again. */
static bool counts_good_results(const ch_workqueue *q, int64_t *n)
{
    bool is_good = q->opt.per_result > 0 && !q->opt.unordered;

    if (is_good && q->current != NULL)
        is_good = count_good_results(q->current, n);
    for (int i = 0; i < q->n && is_good; i++)
        is_good = count_good_results(q->queue[i], n);
    return is_good;
}

/* Returns the number of inputs that the last `n` delivered results and all later results were
 * made of, and of those read after them. Returns 0 if there are no such results, or if they
 * cannot be made again. */
static int64_t inputs_since(const ch_workqueue *q, int64_t n)
{
    int64_t per_result = q->opt.per_result;

    if (!counts_good_results(q, &n) || n == 0)
        return 0;
    return (per_result > 1 ? (n - 1) * per_result + q->n_last : n) + q->n_in - q->job_end;
}

/* Returns the value that n_in had at the beginning of the pass `passes` rewinds before this. */
static int64_t begin_of(const ch_workqueue *q, int64_t passes)
{
    return passes == 0 ? q->begin : ch__row_refs_at(&q->begins, q->begins.n - passes)->number;
}

/* A place of the queue: before a result, and before the first input of this result. */
typedef struct queue_place {
    int64_t passes;   /* rewinds since then */
    int64_t n_in;     /* value of the queue's field at this place */
    int64_t n_pulled; /* likewise */
    ch_back input;    /* the same place, for the input */
} queue_place;

/* Finds the place `to`, or the place before the results that are not delivered if `to` is the
 * present. Returns false if there are no such results, if the results since then cannot be made
 * again, or if it is too far back. */
static bool find_place(const ch_workqueue *q, ch_back to, queue_place *out)
{
    int64_t n = 0, at;

    if (to.passes == 0) {
        n = inputs_since(q, to.n);
        *out =
            (queue_place){0, q->n_in - n, q->n_pulled - (n - (q->n_in - q->job_end)), {0, n}};
        return n > 0;
    }
    if (to.passes > q->begins.n || !counts_good_results(q, &n) ||
        !ch__mul_size(to.n, q->opt.per_result, &at) ||
        at >= begin_of(q, to.passes - 1) - begin_of(q, to.passes))
        return false;
    *out = (queue_place){to.passes, begin_of(q, to.passes) + at, at, {to.passes, at}};
    return true;
}

/* Returns true if the log has all inputs since a place, so that a position can refer to
 * them. */
static bool has_in_log(const ch_workqueue *q, const queue_place *p)
{
    return q->n_in - p->n_in <= q->log.n && (q->log.is_number || q->it->tensors.is_clear);
}

/* Returns true if all inputs since a place can be had again. */
static bool can_read_again(const ch_workqueue *q, const queue_place *p)
{
    return has_in_log(q, p) || (p->n_in >= q->direct && !has_put_back(q) &&
                                ch__input_can_step_back(q->cursor, p->input));
}

bool ch__queued_can_step_back(ch_cursor *c, ch_back to)
{
    queue_place p;

    return find_place(c->workqueue, to, &p) && can_read_again(c->workqueue, &p);
}

/* Saves references to all inputs since a place, and where they were rewound. */
static void save_log(const ch_workqueue *q, ch_saver *s, const queue_place *p)
{
    int64_t n = q->n_in - p->n_in;

    ch__save_int(s, n + q->put_back.n);
    ch__save_int(s, p->passes + q->rewinds.n);
    for (int64_t i = p->passes; i > 0; i--)
        ch__save_int(s, begin_of(q, i - 1) - p->n_in);
    save_rewinds(q, s, n);
    ch__save_refs(s, &q->log, q->log.n - n);
    ch__save_refs(s, &q->put_back, 0);
}

/* A position of the input behind its end may be saved as before: the input ends again. */
bool ch__workqueue_save_back(ch_workqueue *q, ch_saver *s, ch_back *input)
{
    queue_place p;

    *input = (ch_back){0};
    if (!find_place(q, ch__save_place(s), &p) || !can_read_again(q, &p)) {
        ch__workqueue_save(q, s);
        return false;
    }
    ch__save_int(s, p.n_pulled);
    ch__save_int(s, false); /* has_ended */
    ch__save_int(s, 0);     /* results */
    if (has_in_log(q, &p)) {
        save_log(q, s, &p);
    } else {
        ch__save_int(s, 0); /* inputs to put back, and rewinds */
        ch__save_int(s, 0);
        *input = p.input;
    }
    return true;
}

/* Loads the inputs that are put back. Their numbers are untrusted. */
static ch_status load_put_back(ch_workqueue *q, ch_loader *from)
{
    int64_t most = q->opt.per_result > 0 ? INT32_MAX : 0, last = 0;
    int64_t n = ch__load_int(from, 0, most);
    int64_t n_rewinds = ch__load_has_passes(from) ? ch__load_int(from, 0, most) : 0;

    for (int64_t i = 0; i < n_rewinds && !ch__load_fails(from); i++) {
        ch_row_word *word = ch__row_refs_add(&q->rewinds, true, 1, true);

        if (word == NULL)
            return ch__fail_memory(q->cursor->stage->name);
        last = ch__load_int(from, last, n);
        word->number = last;
    }
    return n > 0 ? ch__load_refs(from, n, q->cursor->dataset->in[0], &q->put_back)
                 : ch__load_status(from);
}

/* Loads all results into a single job, `current`, whatever their number. The cursor is new. */
ch_status ch__workqueue_load(ch_workqueue *q, ch_loader *from)
{
    ch__workqueue_clear(q);
    q->n_pulled = ch__load_count(from);
    q->begin = q->n_in - q->n_pulled;
    q->has_ended = ch__load_int(from, 0, 1) != 0;
    int64_t n = ch__load_int(from, 0, INT32_MAX);

    q->current = ch__calloc(1, sizeof(*q->current));
    if (q->current == NULL)
        return ch__fail_memory(q->cursor->stage->name);
    for (int64_t i = 0; i < n && !ch__load_fails(from); i++) {
        ch_status   rc = CH_OK;
        ch_element *e = ch__load_result(from, q->cursor->dataset, &rc);

        if (rc == CH_OK)
            ch__data_job_add(q->current, e);
        else
            ch__data_job_add_error(q->current, rc);
    }
    pthread_mutex_lock(&q->it->lock);
    charge(q, q->current, bytes_of(q, q->current));
    if (q->has_ended) /* no job will follow that could be measured */
        ch__charge_measured(&q->it->budget, &q->charge, q->want, 0);
    pthread_mutex_unlock(&q->it->lock);
    return ch__load_is_old(from) ? ch__load_status(from) : load_put_back(q, from);
}

void ch__workqueue_hold(ch_workqueue *q, int64_t n)
{
    q->begin -= n;
    q->job_end -= n;
}

/* ---- stages that return the results of their queue ---- */

static int64_t most_held(const ch_cursor *c);

/* Returns an upper limit of the results in the queue, and of those that its consumers hold and
 * could have made again. The caller must hold the lock. */
static int64_t most_results(const ch_workqueue *q)
{
    int64_t n = q->current != NULL ? q->current->want : 0;

    for (int i = 0; i < q->n; i++)
        n += q->queue[i]->want;
    return n + most_held(q->cursor);
}

/* Implements ch__workqueue_most_held. The caller must hold the lock. */
static int64_t most_held(const ch_cursor *c)
{
    const ch_cursor *up = c->parent;

    while (up != NULL && up->workqueue == NULL && up->stage->can_step_back != NULL)
        up = up->parent; /* it has no results of its own */
    if (up == NULL || up->workqueue == NULL)
        return 0;
    return (1 + most_results(up->workqueue)) * up->workqueue->opt.per_result;
}

int64_t ch__workqueue_most_held(const ch_cursor *c)
{
    int64_t n;

    pthread_mutex_lock(&c->it->lock);
    n = most_held(c);
    pthread_mutex_unlock(&c->it->lock);
    return n;
}

/* Returns an upper limit of the inputs in the log that may be needed: those of the results that
 * may be made again, and at each rewind between them those that were discarded. The caller must
 * hold the lock. */
static int64_t most_inputs(const ch_workqueue *q)
{
    int64_t n = 1 + most_results(q), passes = 0, first = q->n_in - q->log.n;

    while (passes < n && passes < q->begins.n && begin_of(q, passes) >= first)
        passes++;
    return (n + passes * (1 + (int64_t)q->capacity * q->want)) * q->opt.per_result;
}

/* Returns true if the log must become larger, because its first input may be needed. */
static bool must_log_more(ch_workqueue *q)
{
    int64_t n;

    if (!ch__row_refs_is_due(&q->log))
        return false;
    pthread_mutex_lock(&q->it->lock);
    n = most_inputs(q);
    pthread_mutex_unlock(&q->it->lock);
    return n > q->log.capacity / 2;
}

/* Adds an input to the log, or empties the log if it cannot be referenced. Without memory the
 * log is empty too: the next position is larger then. */
static void log_input(ch_workqueue *q, const ch_element *e)
{
    bool         is_number;
    int          n = ch__row_ref_words(e, &is_number);
    ch_row_word *word =
        n > 0 ? ch__row_refs_add(&q->log, is_number, n, must_log_more(q)) : NULL;

    if (word != NULL)
        ch__row_ref_write(e, word);
    else
        ch__row_refs_empty(&q->log);
}

/* Makes the first element that a restored position has put back. A rewind in its place is the
 * end of the pass. */
static ch_status read_put_back(ch_workqueue *q, ch_element **out)
{
    ch_status rc;

    if (is_at_rewind(q))
        return CH_OK;
    rc = ch__row_ref_make(&q->it->tensors, q->put_back.is_number, q->put_back.n_words,
                          ch__row_refs_at(&q->put_back, 0), out);
    if (rc == CH_OK)
        ch__row_refs_pop(&q->put_back);
    return rc;
}

ch_status ch__workqueue_read(ch_cursor *c, ch_element **out)
{
    ch_workqueue *q = c->workqueue;
    bool          is_put_back = has_put_back(q);
    ch_status     rc = is_put_back ? read_put_back(q, out) : ch__cursor_next(c->in[0], out);

    q->n_in += rc == CH_OK && *out != NULL;
    if (rc != CH_OK || is_put_back)
        q->direct = q->n_in;
    if (rc != CH_OK)
        ch__row_refs_empty(&q->log);
    else if (*out != NULL && q->opt.per_result > 0 && q->ops->make != NULL)
        log_input(q, *out);
    return rc;
}

void ch__workqueue_pull_input(ch_cursor *c, ch_data_job *job)
{
    while (job->n < job->want && !job->has_lost) {
        ch_element *e = NULL;
        ch_status   rc = ch__workqueue_read(c, &e);

        if (rc != CH_OK) {
            ch__data_job_add_error(job, rc);
            if (rc == CH_CANCELLED)
                return;
        } else if (e == NULL) {
            job->has_end = true;
            return;
        } else {
            ch__data_job_add(job, e);
        }
    }
}

ch_status ch__queued_next(ch_cursor *c, ch_element **out)
{
    return ch__workqueue_next(c->workqueue, out);
}

ch_status ch__queued_rewind(ch_cursor *c)
{
    ch_status rc;

    ch__workqueue_pause(c->workqueue);
    rc = ch__workqueue_rewind(c->workqueue);
    ch__workqueue_resume(c->workqueue);
    return rc;
}

void ch__queued_save(ch_cursor *c, ch_saver *s)
{
    ch_back input;

    ch__workqueue_pause(c->workqueue);
    (void)ch__workqueue_save_back(c->workqueue, s, &input);
    ch__save_input_back(c, s, input);
    ch__workqueue_resume(c->workqueue);
}

ch_status ch__queued_load(ch_cursor *c, ch_loader *l)
{
    ch_status rc;

    ch__workqueue_pause(c->workqueue);
    rc = ch__workqueue_load(c->workqueue, l);
    if (rc == CH_OK)
        rc = ch__load_inputs(c, l);
    ch__workqueue_resume(c->workqueue);
    return rc;
}

bool ch__workqueue_is_timed(const ch_workqueue *q)
{
    return q->it->n_threads > 0 || q->opt.is_output;
}

void ch__workqueue_profile(const ch_workqueue *q, ch_stage_profile *out)
{
    out->ready = 0; /* without `current`, because only the consumer may read it */
    for (int i = 0; i < q->n; i++)
        out->ready += q->queue[i]->is_ready ? q->queue[i]->n : 0;
    out->capacity = q->capacity * q->want;
    out->busy_ns = q->own_ns;
    out->wait_ns = q->wait_ns;
}
