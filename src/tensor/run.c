/* tensor/run.c -- runs jobs on devices.
 *
 * Invariants:
 *   1. A device takes part in one run at a time, because the caller holds it. So a single
 *      thread writes its job, and its worker reads the job after `work` was opened.
 *   2. Device 0 of a run is the leader: its job runs on the caller's thread, and it counts
 *      the workers that have not finished. The count and the gate are in the device and not
 *      on the caller's stack, because the last worker still uses the gate after the caller
 *      may have returned.
 *   3. A worker always runs the job that it gets. Nothing can fail after the first job
 *      was posted.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "tensor/device.h"
#include "tensor/devices.h"

enum { SPIN = 2000 }; /* rounds before a thread sleeps: some tens of microseconds */

static void device_serve(void *arg)
{
    ch_device *d = arg;
    ch_status st = ch_device_enter(d); /* cannot fail, because it is the first of this thread */
    int       spin = 0;

    (void)st;
    for (unsigned seen = 0;; seen++) {
        ch__gate_idle(&d->work, seen, spin);
        if (d->job == NULL)
            return;
        ch_device *leader = d->leader;
        spin = d->spin;
        d->job(d->arg);
        if (atomic_fetch_sub_explicit(&leader->n_left, 1, memory_order_acq_rel) == 1)
            ch__gate_open(&leader->done);
    }
}

static ch_status device_start(ch_device *d)
{
    ch_status st = CH_OK;

    pthread_mutex_lock(&d->start);
    if (d->worker == NULL) {
        atomic_store(&d->work, 0);
        st = ch__thread_start(d->where.type, device_serve, d, &d->worker);
    }
    pthread_mutex_unlock(&d->start);
    return st;
}

void ch__device_stop(ch_device *d)
{
    if (d->worker == NULL)
        return;
    d->job = NULL;
    ch__gate_open(&d->work);
    ch__thread_join(d->worker);
    d->worker = NULL;
}

ch_status ch__device_team(ch_device *d, ch_team **out)
{
    ch_status st = ch__devices_check_fork("device threads");

    if (st != CH_OK)
        return st;
    pthread_mutex_lock(&d->start);
    if (d->team == NULL && d->n_threads > 1)
        st = ch__team_new(d->where.type, d->n_threads, &d->team);
    if (st == CH_OK)
        *out = d->team;
    pthread_mutex_unlock(&d->start);
    return st;
}

bool ch__devices_oversubscribed(int n, ch_device *const *device)
{
    int n_threads = 0;

    for (int i = 0; i < n; i++)
        n_threads += device[i]->n_threads;
    return n_threads > device[0]->n_cores;
}

ch_status ch__devices_start(int n, ch_device *const *device)
{
    ch_status st = CH_OK;

    for (int i = 1; i < n && st == CH_OK; i++)
        st = device_start(device[i]);
    return st;
}

ch_status ch__devices_run(int n, ch_device *const *device, void (*job)(void *),
                          void *const *arg)
{
    ch_device *leader = device[0];
    ch_status  st = ch__devices_check_fork("run on devices");
    int        spin = n > 1 && !ch__devices_oversubscribed(n, device) ? SPIN : 0;

    if (st == CH_OK)
        st = ch__devices_start(n, device);
    if (st == CH_OK)
        st = ch_device_enter(leader);
    if (st != CH_OK)
        return st;

    unsigned seen = atomic_load(&leader->done);
    atomic_store(&leader->n_left, n - 1);
    for (int i = 1; i < n; i++) {
        ch_device *d = device[i];

        d->job = job;
        d->arg = arg[i];
        d->leader = leader;
        d->spin = spin;
        ch__gate_open(&d->work);
    }
    job(arg[0]);
    /* Waits without a limit, because the workers use memory of the caller. Everything in a job
     * that can block has its own limit. */
    while (n > 1 &&
           ch__gate_wait(&leader->done, seen, spin, "the other devices of this run") != CH_OK)
        ch__log(CH_LOG_WARNING, "devices-run", "run led by %s: still waiting for %d devices",
                leader->name, atomic_load(&leader->n_left));
    ch_device_leave();
    return CH_OK;
}

/* ---- work that all threads share ---- */

/* The part of a device in shared work. */
typedef struct device_share {
    ch_team *team;
    void (*work)(void *arg);
    void *arg;
} device_share;

static void work_once(void *arg, int i)
{
    const device_share *s = arg;

    (void)i;
    s->work(s->arg);
}

static void work_on_team(void *arg)
{
    device_share *s = arg;

    ch__team_run(s->team, ch__team_size(s->team), work_once, s);
}

ch_status ch__devices_share_work(int n, ch_device *const *device, void (*work)(void *arg),
                                 void *arg)
{
    device_share *share = ch__calloc((size_t)n, sizeof(*share));
    void        **job = ch__calloc((size_t)n, sizeof(*job));
    ch_status     rc = share != NULL && job != NULL ? CH_OK : ch__fail_memory("a loop");

    for (int i = 0; i < n && rc == CH_OK; i++) {
        share[i] = (device_share){.work = work, .arg = arg};
        job[i] = &share[i];
        rc = ch__device_team(device[i], &share[i].team);
    }
    if (rc == CH_OK) {
        ch__devices_hold(n, device);
        rc = ch__devices_run(n, device, work_on_team, job);
        ch__devices_release(n, device);
    }
    ch__free(share);
    ch__free(job);
    return rc;
}
