/* data/iterator_threads.c -- the worker threads of an iterator, and waiting.
 *
 * The worker threads run the jobs of all workqueues of an iterator. data/iterator.c starts,
 * pauses and stops them. Every wait for a workqueue goes through ch__iterator_wait, which warns
 * if the input is slow. Consumers of a workqueue (data/workqueue.c) wait here too.
 *
 * Invariants:
 *   1. it->lock guards the workqueues, the waiters and `is_paused`. A job runs without the
 *      lock.
 *   2. While the workers are paused, no job is running and none begins.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/config.h"
#include "base/log.h"
#include "data/iterator.h"
#include "tensor/print.h"

/* ---- waiting ---- */

void ch__iterator_wake_all(ch_iterator *it)
{
    ch__waiters_wake_all(&it->idle);
    ch__waiters_wake_all(&it->others);
    for (int i = 0; i < it->n_workqueues; i++)
        ch__waiters_wake_all(ch__workqueue_waiters(it->workqueue[i]));
}

static struct timespec deadline_in_ms(int64_t ms)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += ms % 1000 * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

/* Prints the stages that may be slow: the stage of the busy workqueue nearest to the sources,
 * and the stages below it that its jobs call. If no workqueue is busy, prints `stage`. */
static void print_busy(const ch_iterator *it, const char *stage, char *text, size_t size)
{
    const ch_cursor *c = NULL;
    ch_text          t = ch__text(text, size);

    for (int i = 0; i < it->n_workqueues && c == NULL; i++)
        c = ch__workqueue_busy(it->workqueue[i]);
    ch__text_add(&t, "%s", c != NULL ? c->stage->name : stage);
    while (c != NULL && c->n_in > 0 && c->in[0]->workqueue == NULL) {
        c = c->in[0];
        ch__text_add(&t, " < %s", c->stage->name);
    }
    if (it->file[0] != '\0')
        ch__text_add(&t, "; the last file opened is %s", it->file);
}

void ch__iterator_set_file(ch_iterator *it, const char *path)
{
    pthread_mutex_lock(&it->lock);
    (void)snprintf(it->file, sizeof(it->file), "%s", path);
    pthread_mutex_unlock(&it->lock);
}

/* The wait has no limit, because a source may be a user's function that waits for external
 * events. Each warning doubles the time before the next warning. */
void ch__iterator_wait(ch_iterator *it, ch_waiters *waiters, const char *stage)
{
    int64_t         ms = it->notice_ms > 0 ? it->notice_ms : ch__config()->wait_notice_ms;
    struct timespec until = deadline_in_ms(ms);
    char            busy[512];
    int             rc;

    waiters->n++;
    rc = pthread_cond_timedwait(&waiters->changed, &it->lock, &until);
    waiters->n--;
    if (rc != 0) {
        print_busy(it, stage, busy, sizeof(busy));
        ch__log(CH_LOG_WARNING, "slow-input", "an input pipeline waits for %s", busy);
        it->notice_ms = ch__min(ms, INT32_MAX) * 2;
    }
}

/* ---- worker threads ---- */

/* Runs a job of the first workqueue that has work; returns false if there is none. Sources come
 * first, so that jobs of later stages find their input ready and do not wait for a reader. The
 * caller must hold the lock; it is released while the job runs. */
static bool run_job(ch_iterator *it)
{
    for (int i = 0; i < it->n_workqueues; i++)
        if (ch__workqueue_work(it->workqueue[i]))
            return true;
    return false;
}

static void worker_main(void *arg)
{
    ch_iterator *it = arg;

    pthread_mutex_lock(&it->lock);
    while (!it->stops)
        if (it->is_paused || !run_job(it)) {
            it->idle.n++;
            pthread_cond_wait(&it->idle.changed, &it->lock);
            it->idle.n--;
        }
    pthread_mutex_unlock(&it->lock);
}

void ch__iterator_start_workers(ch_iterator *it)
{
    for (int i = 0; i < it->n_threads && it->worker != NULL; i++) {
        ch_thread *t = NULL;

        if (ch__thread_start("input", worker_main, it, &t) != CH_OK)
            break;
        it->worker[i] = t;
        pthread_mutex_lock(&it->lock);
        it->n_workers++;
        pthread_mutex_unlock(&it->lock);
    }
    it->has_started = true;
}

void ch__iterator_stop_workers(ch_iterator *it)
{
    pthread_mutex_lock(&it->lock);
    it->stops = true;
    ch__iterator_wake_all(it);
    pthread_mutex_unlock(&it->lock);
    for (int i = 0; i < it->n_workers; i++)
        ch__thread_join(it->worker[i]);
    it->n_workers = 0;
}

void ch__iterator_pause_workers(ch_iterator *it)
{
    pthread_mutex_lock(&it->lock);
    it->is_paused = true;
    for (int i = 0; i < it->n_workqueues; i++) {
        const ch_cursor *busy = ch__workqueue_busy(it->workqueue[i]);

        if (busy != NULL) {
            ch__iterator_wait(it, &it->others, busy->stage->name);
            i = -1; /* scan again: the running job may have run jobs of other workqueues */
        }
    }
    pthread_mutex_unlock(&it->lock);
}

void ch__iterator_resume_workers(ch_iterator *it)
{
    pthread_mutex_lock(&it->lock);
    it->is_paused = false;
    ch__iterator_wake_all(it);
    pthread_mutex_unlock(&it->lock);
}
