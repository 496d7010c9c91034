/* tensor/device.h -- memory, threads and runs of devices.
 *
 * A device owns a team (the threads of its kernels), a workspace (the arena in which programs
 * run) and a worker thread that runs jobs. A device whose jobs run only on the caller's thread
 * has no worker.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TENSOR_DEVICE_H
#define TENSOR_DEVICE_H

#include "base/thread.h"
#include "cohort/device.h"

/* Returns the number of devices that this thread has entered and not left. */
int ch__device_depth(void);

/* Finds n devices, as ch_device_find does. If a device is missing, the error shows a setting
 * that provides all n. */
CH_MUST_CHECK ch_status ch__devices_find(int n, const char *const *name, ch_device **out);

/* Allocates memory of a device: aligned to CH_ALIGN, zeroed, with all pages touched, and
 * counted. Returns NULL if memory is exhausted. The caller must free it with ch__device_free
 * and the same `bytes`. */
void *ch__device_alloc(ch_device *d, size_t bytes);
/* The same, but does not write to the memory, so its contents are undefined. */
void *ch__device_alloc_untouched(ch_device *d, size_t bytes);
void  ch__device_free(ch_device *d, void *p, size_t bytes);

/* Counts bytes of a device that its limit applies to (ch_devices_options.memory_bytes): those
 * of its workspace and of variables. The memory itself is allocated by others. `what` begins
 * the message if the limit would be exceeded. The caller must give them back with the same
 * `bytes`. */
CH_MUST_CHECK ch_status ch__device_reserve(ch_device *d, size_t bytes, const char *what);
void                    ch__device_unreserve(ch_device *d, size_t bytes);
/* Counts bytes again that were given back and are still in use, also beyond the limit. */
void ch__device_reserve_again(ch_device *d, size_t bytes);
/* Return the bytes that are reserved, those of them that the workspace has, and the limit (0:
 * no limit). */
size_t ch__device_reserved(const ch_device *d);
size_t ch__device_workspace_bytes(const ch_device *d);
size_t ch__device_limit(const ch_device *d);

/* Gives the device's team and starts its threads on first use; NULL for a device with a single
 * thread. */
CH_MUST_CHECK ch_status ch__device_team(ch_device *d, ch_team **out);

/* The memory block in which programs on a device run. */
typedef struct ch_workspace {
    char    *base;
    size_t   bytes;
    unsigned generation; /* changes when the block moves */
} ch_workspace;
/* Grows the workspace to at least `bytes`; it never shrinks. A new block has all pages touched
 * unless `touches_part`; its contents are undefined. The block moves when it grows: a caller
 * that keeps pointers into it must compare `generation`. The caller must hold the device. */
CH_MUST_CHECK ch_status ch__device_workspace(ch_device *d, size_t bytes, bool touches_part,
                                             ch_workspace *out);
/* Gives the memory of the workspace back when no program runs on the device. The next program
 * allocates another workspace. The caller must not hold devices. */
void ch__device_workspace_free(ch_device *d);

/* Lock and unlock n distinct devices. A device runs one program at a time. Devices are locked
 * in the order of ch__device_ordinal, so that two runs cannot deadlock. A thread that holds
 * devices must not hold others. */
void ch__devices_hold(int n, ch_device *const *device);
void ch__devices_release(int n, ch_device *const *device);
/* Returns the index of ch_device_at. Task devices have larger numbers. */
int ch__device_ordinal(const ch_device *d);

/* Starts the worker threads that a run on these devices needs, unless they are running. */
CH_MUST_CHECK ch_status ch__devices_start(int n, ch_device *const *device);
/* Runs job(arg[0]) on the calling thread and job(arg[i]) on the worker thread of device[i] for
 * every i >= 1. Returns when all calls have returned. Wakes each thread once. The devices must
 * be distinct, and the caller must hold them. Fails only before any call, if a thread cannot
 * start or if the process was forked after the devices were created. */
CH_MUST_CHECK ch_status ch__devices_run(int n, ch_device *const *device, void (*job)(void *),
                                        void *const *arg);
/* Calls work(arg) as often as the n devices have threads together, on all these threads at the
 * same time, and returns when all calls have returned. A thread may make several calls, so the
 * calls must divide the work among themselves. Holds the devices meanwhile: must not be called
 * in a run. Fails only before any call, as ch__devices_run does. */
CH_MUST_CHECK ch_status ch__devices_share_work(int n, ch_device *const       *device,
                                               void (*work)(void *arg), void *arg);
/* Returns true if these devices have more threads than there are cores. Their threads must not
 * spin then. */
bool ch__devices_oversubscribed(int n, ch_device *const *device);

/* Gives a task device: the device of another task of the job that runs in this process. It has
 * a single thread and is not among the devices of ch_device_at. The same name gives the same
 * device. The process owns it. */
CH_MUST_CHECK ch_status ch__device_of_task(const char *job, int task, int index,
                                           ch_device **out);

/* Stops the threads of all devices and frees the devices, so that others can be configured. For
 * tests. No program may run and no tensor may exist. */
void ch__devices_reset(void);

/* Returns the part of a device's name that names it in its task: "GPU:0" of
 * "/job:localhost/replica:0/task:0/device:GPU:0". */
const char *ch__device_short_name(const ch_device *d);
/* Returns the CPU of the same job, replica and task as `spec`. */
ch_device_spec ch__device_spec_host(const ch_device_spec *spec);
/* Returns the spec without job and task: the name within its task. */
ch_device_spec ch__device_spec_local(const ch_device_spec *spec);

/* Returns FAILED_PRECONDITION if the process was forked after the devices were created, because
 * their threads are in the parent. `what` begins the message. */
CH_MUST_CHECK ch_status ch__devices_check_fork(const char *what);

#endif
