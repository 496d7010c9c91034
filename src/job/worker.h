/* job/worker.h -- a worker: runs steps that it is told of, with variables on parameter servers.
 *
 * A worker is a task. It is given functions, which are routes (job/step_plan.h), and calls to run them, which it does one after the other.
 * It knows nothing of the program. Calls to servers are made again until they are answered or the call that asked
 * for the step has no time left; servers see to it that an update is applied once.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_WORKER_H
#define JOB_WORKER_H

#include "cohort/device.h"
#include "net/net.h"

enum { CH_WORKER_DEVICES = 64 };

typedef struct ch_worker_options {
    int        n_devices; /* replicas */
    ch_device *device[CH_WORKER_DEVICES];
    int64_t    call_ns;  /* that one call to a server may take; 0: 2 s */
    int64_t    retry_ns; /* after which it is made again if it was lost; 0: 20 ms */
    int64_t
        patience_ns; /* after which a step is given back whose server does not answer; 0: 5 s */
} ch_worker_options;

/* The parts of ch_task_options; `arg` is a ch_worker_options, which is kept. */
extern const ch_task_ops ch__worker_ops;
ch_status ch__worker_make(void *arg, ch_task *t, uint64_t incarnation, ch_outbox *outbox,
                          void **self);

#endif
