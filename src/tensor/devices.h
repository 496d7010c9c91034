/* tensor/devices.h -- the table of devices, as device.c, run.c and spec.c share it.
 *
 * The table is made once and then does not change; a device's parts are guarded as said.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TENSOR_DEVICES_H
#define TENSOR_DEVICES_H

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>

#include "base/counter.h"
#include "tensor/device.h"

#define CH_DEVICE_NAME 192 /* room for the longest name */

struct ch_device {
    char           name[CH_DEVICE_NAME];
    ch_device_spec where;
    int            ordinal;
    int            n_threads;
    int            n_cores; /* of the process, when its devices were made */

    ch_counter bytes; /* threads that run on other devices count their host memory here */

    /* Aligned, because two threads that run on two devices must not share a cache line. */
    alignas(CH_ALIGN) pthread_mutex_t hold; /* by whoever runs a program */
    ch_workspace workspace;                 /* under `hold` */

    pthread_mutex_t start; /* guards the making of these two */
    ch_team        *team;
    ch_thread      *worker; /* runs jobs; see run.c */

    /* What the worker is to do: written by the caller of a run, then `work` opens. */
    ch_gate work;
    void (*job)(void *); /* NULL: end */
    void      *arg;
    ch_device *leader; /* the run's device 0 */
    int        spin;
    /* Of the run that this device leads. */
    ch_gate    done;
    atomic_int n_left;
};

/* FAILED_PRECONDITION after a fork: their threads are in the parent. */
CH_MUST_CHECK ch_status ch__devices_check_fork(const char *what);
/* Ends the worker, if there is one. */
void ch__device_stop(ch_device *d);

/* True if there is a device of this type, in any case. Does not make the table. */
bool ch__devices_have_type(const char *type);
/* `text` over `base`: base's parts fill the gaps. INVALID_ARGUMENT for a type with small
 * letters. */
CH_MUST_CHECK ch_status ch__device_spec_over(const ch_device_spec *base, const char *text,
                                             ch_device_spec *out);

#endif
