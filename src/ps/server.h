/* ps/server.h -- a parameter server: variables, and graphs that change them.
 *
 * A server is a task. It is told which variables it has (PsCreate) and which graphs change them (PsDefine), gives values and
 * rows, and applies updates one message at a time: who reads sees all of a step's updates here, or none.
 *
 *   - An update is applied once. (step, sequence) is remembered, with what it gave, until the step is retired, which is when no
 *     attempt of it can come any more; another attempt is answered as the first was.
 *     What a step assigns (PsAssign) is remembered likewise. Steps below the retired one are refused: what comes late
 *     changes nothing. Every message that says which are retired is heard, a ping (PsPing) too.
 *   - A worker that was given up is fenced: updates of its earlier lives are refused from then on.
 *   - What is given is never changed: an update that finds a value in others' hands writes over a copy. So giving a value
 *     costs nothing where others release it in time, and a pin is a reference to each. Pins have rising numbers: releasing
 *     one ends all up to it for good, so that the second copy of a call, late, keeps no memory.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef PS_SERVER_H
#define PS_SERVER_H

#include "cohort/device.h"
#include "net/net.h"

/* Told of each update when it is applied. */
typedef void (*ch_server_saw)(void *arg, const char *worker, uint64_t life, uint64_t step,
                              uint32_t sequence);

typedef struct ch_server_options {
    ch_device    *device; /* of its own: graphs run there, on the thread that drives the task */
    ch_server_saw saw;    /* for tests; NULL: nobody looks */
    void         *arg;
} ch_server_options;

/* The parts of ch_task_options; `arg` is a ch_server_options, which is kept. */
extern const ch_task_ops ch__server_ops;
ch_status ch__server_make(void *arg, ch_task *t, uint64_t incarnation, ch_post *post,
                          void **self);

#endif
