/* tensor/device.h -- running on devices.
 *
 * A device owns a team (its threads), a workspace (the arena that programs run in) and, for
 * all but the one that runs on the caller's thread, a thread that takes jobs.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TENSOR_DEVICE_H
#define TENSOR_DEVICE_H

#include "base/thread.h"
#include "cohort/device.h"

/* How many devices this thread has entered and not left. */
int ch__device_depth(void);

/* Finds devices as ch_device_find does. The error for a missing device shows a setting that has all n of them. */
CH_MUST_CHECK ch_status ch__devices_find(int n, const char *const *name, ch_device **out);

/* Takes and returns memory of a device: CH_ALIGN-aligned, zeroed, touched, counted. */
void *ch__device_alloc(ch_device *d, size_t bytes);
void  ch__device_free(ch_device *d, void *p, size_t bytes);

/* The device's threads, started on first use; NULL for a device of one thread. */
CH_MUST_CHECK ch_status ch__device_team(ch_device *d, ch_team **out);

/* The one block that programs on this device run in, grown to at least `bytes` and never
 * shrunk. A block that grows is touched at once unless `touches_part`; its contents are
 * undefined. It moves when it grows: whoever keeps pointers into it compares `generation`.
 * Only while holding the device. */
typedef struct ch_workspace {
    char    *base;
    size_t   bytes;
    unsigned generation;
} ch_workspace;
CH_MUST_CHECK ch_status ch__device_workspace(ch_device *d, size_t bytes, bool touches_part,
                                             ch_workspace *out);

/* A device runs one program at a time. Several devices are always held in the order of
 * ch_device_at, so that two launches cannot wait for each other. */
void ch__device_hold(ch_device *d);
void ch__device_release(ch_device *d);
int  ch__device_ordinal(const ch_device *d); /* its place in ch_device_at */

/* Starts the threads that a run of jobs on these devices needs, unless they are there. */
CH_MUST_CHECK ch_status ch__devices_start(int n, ch_device *const *device);
/* Runs job[i](arg[i]) on device[i]'s own thread for every i >= 1 and job 0 on the calling
 * thread, and returns when all are done. Wakes each thread once. The devices are distinct
 * and held. Fails only before anything ran (a thread could not be started, or the process
 * was forked since the devices were made). */
CH_MUST_CHECK ch_status ch__devices_run(int n, ch_device *const *device, void (*job)(void *),
                                        void *const *arg);
/* True where the devices of a run have more threads than there are cores: do not spin. */
bool ch__devices_crowded(int n, ch_device *const *device);

/* A device of another task of the job that runs in this process: of one thread, not among those of ch_device_at, the same for the same
 * name, as long as the process. */
CH_MUST_CHECK ch_status ch__device_of_task(const char *job, int task, int index,
                                           ch_device **out);

/* Stops all devices' threads and forgets the devices, so that others can be configured. For
 * tests: only while nobody runs and no tensor lives. */
void ch__devices_reset(void);

/* The CPU beside a device: the same job, replica and task. */
ch_device_spec ch__device_spec_host(const ch_device_spec *spec);
/* The name within its task: without job and task. */
ch_device_spec ch__device_spec_local(const ch_device_spec *spec);

#endif
