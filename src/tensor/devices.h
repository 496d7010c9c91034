/* tensor/devices.h -- the struct of a device, for device.c, run.c and spec.c.
 *
 * The table of devices does not change after its creation. The comments below name the lock of
 * each part of a device.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TENSOR_DEVICES_H
#define TENSOR_DEVICES_H

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>

#include "base/counter.h"
#include "base/counter_table.h"
#include "tensor/device.h"

#define CH_DEVICE_NAME 192 /* bytes of the longest name */

struct ch_device {
    char           name[CH_DEVICE_NAME];
    ch_device_spec where;
    int            ordinal;
    int            n_threads;
    int            n_cores; /* of the process, when the device was created */

    ch_counter     bytes; /* in use; also changed by threads of other devices (host memory) */
    ch_counter_row bytes_row;            /* publishes `bytes` */
    int64_t        limit;                /* of `reserved`; 0: none */
    atomic_int_least64_t reserved, peak; /* ch__device_reserve; the largest value of it */

    /* Aligned, because threads that run on different devices must not share a cache line. */
    alignas(CH_ALIGN) pthread_mutex_t hold; /* held during the run of a program */
    ch_workspace workspace;                 /* under `hold` */

    pthread_mutex_t start;  /* protects the creation of team and worker */
    ch_team        *team;   /* NULL: not started, or a single thread */
    ch_thread      *worker; /* runs jobs (run.c); NULL: not started */

    /* The job of the worker. The caller of a run writes these fields and then opens `work`. */
    ch_gate work;
    void (*job)(void *); /* NULL: the worker must end */
    void      *arg;
    ch_device *leader; /* device 0 of the run */
    int        spin;   /* rounds that the worker spins before it sleeps */
    /* State of the run of which this device is the leader. */
    ch_gate    done;   /* opened when n_left becomes 0 */
    atomic_int n_left; /* workers that have not finished */
};

/* Ends the worker thread, if it is running. */
void ch__device_stop(ch_device *d);

/* Returns true if there is a device of this type, in upper or lower case. Does not create the
 * table. */
bool ch__devices_have_type(const char *type);
/* Parses `text`; the parts that it does not have come from `base`. Returns INVALID_ARGUMENT if
 * the type has lower-case letters. */
CH_MUST_CHECK ch_status ch__device_spec_over(const ch_device_spec *base, const char *text,
                                             ch_device_spec *out);

#endif
