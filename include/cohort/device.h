/* cohort/device.h -- places with memory and threads.
 *
 * A device has a name, /job:localhost/replica:0/task:0/device:CPU:0, threads of its own and
 * memory of its own. The cores that this process may use make one CPU device each (up to 8;
 * beyond that the cores are divided among 8). Its affinity and the CPU quota of its control
 * group limit them. Any number of virtual devices of any type can be had
 * instead, so that a program written for four GPUs runs anywhere:
 *
 *     COHORT_DEVICES="CPU=1,GPU=4" ./train
 *
 *     ch_devices_configure(&(ch_devices_options){.spec = "GPU=2"});   // the same from C
 *     printf("%s\n", ch_device_name(ch_device_at(0)));
 *
 * Naming a type that is not listed keeps one CPU device: the host is always there.
 * Devices live as long as the process. Their threads start on first use.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_DEVICE_H
#define COHORT_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

#include "cohort/status.h"

typedef struct ch_device ch_device;

/* A device's name in parts; what is "" or -1 is not set. */
typedef struct ch_device_spec {
    char job[64];
    int  replica, task;
    char type[32]; /* "CPU" */
    int  index;    /* -1: not set, or "*" */
} ch_device_spec;

/* Reads "/job:worker/task:1/device:GPU:0", "/gpu:0", "CPU:0", "gpu", "". */
CH_API CH_MUST_CHECK ch_status ch_device_spec_parse(const char *text, ch_device_spec *out);
/* Writes the name as snprintf does: "/job:worker/replica:0/task:1/device:GPU:0". */
CH_API int ch_device_spec_print(const ch_device_spec *spec, char *text, size_t size);
/* `over`'s parts where they are set, else `base`'s. */
CH_API ch_device_spec ch_device_spec_merge(const ch_device_spec *base,
                                           const ch_device_spec *over);
/* Fills in what `text` leaves open, from `fallback` (may be NULL), then from
 * /job:localhost/replica:0/task:0/device:CPU:0. */
CH_API CH_MUST_CHECK ch_status ch_device_spec_canonical(const char *text, const char *fallback,
                                                        ch_device_spec *out);

typedef struct ch_devices_options {
    const char *spec;    /* "CPU=2,GPU=4"; NULL: COHORT_DEVICES, else this machine's cores */
    int         threads; /* in each; 0: COHORT_THREADS, else cores / devices, at least 1 */
    const char *job;     /* in the devices' names, as is the task; NULL: "localhost" */
    int         task;
} ch_devices_options;

/* Chooses the devices of this process. Must come before the first use of any:
 * FAILED_PRECONDITION afterwards, unless nothing would change. */
CH_API CH_MUST_CHECK ch_status ch_devices_configure(const ch_devices_options *opt);

/* How many devices of a type there are ("GPU"; NULL: of all types). */
CH_API int ch_device_count(const char *type);
/* The i-th of all devices, CPU devices first; NULL if there are not so many. */
CH_API ch_device *ch_device_at(int i);
/* The device of a name in any form that parses, the current device filling the gaps;
 * INVALID_ARGUMENT that lists those that exist if there is none. */
CH_API CH_MUST_CHECK ch_status ch_device_find(const char *name, ch_device **out);

CH_API const char           *ch_device_name(const ch_device *d);
CH_API const ch_device_spec *ch_device_where(const ch_device *d); /* the name in parts */
CH_API int                   ch_device_threads(const ch_device *d);
CH_API size_t                ch_device_bytes(const ch_device *d); /* in use now */

/* The device that tensors and variables made on this thread go to; the first CPU at first.
 * Entering nests up to 64 deep; leaving without having entered does nothing. */
CH_API CH_MUST_CHECK ch_status ch_device_enter(ch_device *d);
CH_API void                    ch_device_leave(void);
CH_API ch_device              *ch_device_current(void);

#endif
