/* job/server.h -- a parameter server: a task that has a store, and speaks for it.
 *
 * What it has, applies, refuses and remembers is the store's affair (job/server/state.h). The server makes messages of calls, tells
 * the store, and answers each call before the next one comes: who reads sees all of a step's updates here, or, unless one of
 * them failed, none. Every message that says which steps are retired is heard, a ping (PsPing) too.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_SERVER_H
#define JOB_SERVER_H

#include "job/server/state.h"
#include "net/net.h"

typedef struct ch_server_options {
    ch_device *device; /* of its own: graphs run there, on the thread that drives the task */
    int64_t    most_bytes; /* of a variable whose first value is made here; 0: any number */
    ch_update_watch saw;   /* for tests; NULL: nobody looks */
    void           *arg;
} ch_server_options;

/* The parts of ch_task_options; `arg` is a ch_server_options, which is kept. */
extern const ch_task_ops ch__server_ops;
ch_status ch__server_make(void *arg, ch_task *t, uint64_t incarnation, ch_outbox *outbox,
                          void **self);

#endif
