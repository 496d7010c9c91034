/* cohort/device.h -- devices: where tensors are stored and steps run.
 *
 * A device has a name such as /job:localhost/replica:0/task:0/device:CPU:0, its own threads and
 * its own memory. By default each core that the process may use is a CPU device, up to 8
 * devices; more cores are divided among 8 devices. The CPU affinity of the process and the CPU
 * quota of its control group limit the cores.
 *
 * A program can replace these by virtual devices of any type over the same cores, so that a
 * program for four GPUs runs on any machine:
 *
 *     COHORT_DEVICES="CPU=1,GPU=4" ./train
 *
 *     rc = ch_devices_configure(&(ch_devices_options){.spec = "GPU=2"}); // or from C
 *     printf("%s\n", ch_device_name(ch_device_at(0)));
 *
 *   - There is always at least one CPU device, the host, even if `spec` does not list it.
 *   - Devices live as long as the process: there is nothing to free. Their threads start on
 *     first use.
 *   - Any thread may call these functions. The current device belongs to the calling thread.
 *   - A process must not fork after the first use of a device, unless the child calls exec: the
 *     threads of the devices are not in the child, and calls that need them return
 *     FAILED_PRECONDITION there.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_DEVICE_H
#define COHORT_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

#include "cohort/status.h"

typedef struct ch_device ch_device;

/* The parts of a device name. A part that is "" or -1 is not set. */
typedef struct ch_device_spec {
    char job[64];
    int  replica, task;
    char type[32]; /* "CPU" */
    int  index;    /* -1: not set, or "*" */
} ch_device_spec;

/* Parses a device name: "/job:worker/task:1/device:GPU:0", "/gpu:0", "CPU:0", "gpu", "". */
CH_API CH_MUST_CHECK ch_status ch_device_spec_parse(const char *text, ch_device_spec *out);
/* Prints the name as snprintf does: "/job:worker/replica:0/task:1/device:GPU:0". */
CH_API int ch_device_spec_print(const ch_device_spec *spec, char *text, size_t size);
/* Returns the parts of `over` that are set, and the parts of `base` for the others. */
CH_API ch_device_spec ch_device_spec_merge(const ch_device_spec *base,
                                           const ch_device_spec *over);
/* Parses `text`, and sets its missing parts from `fallback`, which may be NULL, and then from
 * /job:localhost/replica:0/task:0/device:CPU:0. */
CH_API CH_MUST_CHECK ch_status ch_device_spec_canonical(const char *text, const char *fallback,
                                                        ch_device_spec *out);

typedef struct ch_devices_options {
    /* "CPU=2,GPU=4", at most 1024 devices. NULL: COHORT_DEVICES, or else the cores. */
    const char *spec;
    /* Threads of each device. 0: COHORT_THREADS, or else cores / devices, at least 1. */
    int         threads;
    const char *job;  /* job in the names of the devices; NULL: "localhost" */
    int         task; /* task in the names of the devices */
    /* Bytes that each device has for variables and for the values of a step. 0:
     * COHORT_DEVICE_MEMORY, or else no limit. Inputs and results of steps, and other tensors,
     * are on the host and do not count. A step that needs more is RESOURCE_EXHAUSTED before it
     * runs; the error lists its largest values. */
    size_t memory_bytes;
} ch_devices_options;

/* Sets the devices of this process. Must be called before the first use of a device. Later it
 * is FAILED_PRECONDITION, unless the options describe the devices that exist. `opt` NULL: the
 * defaults. */
CH_API CH_MUST_CHECK ch_status ch_devices_configure(const ch_devices_options *opt);

/* Returns the number of devices of a type ("GPU"; NULL: of all types). */
CH_API int ch_device_count(const char *type);
/* Returns device i of all devices, CPU devices first. NULL: out of range. */
CH_API ch_device *ch_device_at(int i);
/* Finds a device by a name that ch_device_spec_parse accepts. The current device supplies the
 * missing parts. INVALID_ARGUMENT: there is no such device; the error lists the devices. */
CH_API CH_MUST_CHECK ch_status ch_device_find(const char *name, ch_device **out);

CH_API const char           *ch_device_name(const ch_device *d);
CH_API const ch_device_spec *ch_device_where(const ch_device *d);   /* parts of the name */
CH_API int                   ch_device_threads(const ch_device *d); /* number of threads */
CH_API size_t                ch_device_bytes(const ch_device *d);   /* bytes in use */
/* Returns the largest number of bytes that variables and values of steps had at the same time:
 * the bytes to which ch_devices_options.memory_bytes applies. */
CH_API size_t ch_device_peak_bytes(const ch_device *d);

/* Set the current device of this thread until the matching leave. New tensors and variables of
 * the thread are created on the current device, which is the first CPU device by default. Calls
 * nest, up to 64 deep. A leave without an enter does nothing. */
CH_API CH_MUST_CHECK ch_status ch_device_enter(ch_device *d);
CH_API void                    ch_device_leave(void);
/* Returns the current device of this thread. */
CH_API ch_device *ch_device_current(void);

#endif
