/* job/worker.h -- the worker task: runs steps whose variables are on parameter servers.
 *
 * A worker receives step functions, streams and steps to run from the coordinator (methods
 * CH_WORKER_* of job/message.h). A step function is a step plan (job/step_plan.h) with its
 * per-worker variables. A stream is a dataset that is read by element number
 * (job/worker/stream.h).
 *
 * How a scheduled step runs:
 *   1. The coordinator takes the step from its queue and chooses a worker. It first sends the
 *      step function and the streams that this worker does not have yet (CH_WORKER_FUNCTION,
 *      CH_WORKER_STREAM).
 *   2. It calls CH_WORKER_RUN. The request has the step number, the worker's registration, the
 *      input tensors and the numbers of the elements to read. This call is an attempt of the
 *      step. It stays open until the attempt has ended.
 *   3. The worker appends the attempt to a list of runs (job/worker/run.h). It executes a
 *      single run at a time, in the order of the calls.
 *   4. The run reads its elements and executes the step plan (job/step_exec.h): it calls
 *      servers for the remote parts and computes the local parts on the worker's devices.
 *      Before it uses an update for the first time, it sends the graph of the update to the
 *      server.
 *   5. The servers apply each update of the step once, and reply (job/server.h).
 *   6. When all parts are done, the worker changes its per-worker variables and replies to
 *      CH_WORKER_RUN with the results. The reply is the acknowledgement: the coordinator ends
 *      the step. When all older steps have ended too, the step is retired: servers and workers
 *      receive the number of the oldest step that has not ended, and forget older steps.
 *
 * If a call to a server is lost or late, the worker sends the same message again. This is safe
 * because servers apply an update once. If the server does not reply within `patience_ns`, the
 * worker replies that it cannot reach the server, and the coordinator queues the step again.
 *
 * If a server replies with an error, the worker ends the run and passes the error on to the
 * coordinator. CH_ABORTED is no exception: the server has rejected an update because the
 * registration of the worker is fenced, or the step has ended or is held. The coordinator
 * ignores this error (job/coordinator.h). A worker itself replies CH_ABORTED to a call with a
 * registration older than its own.
 *
 * If the worker dies during 1, the step is still in the queue of the coordinator. If the worker
 * dies during 2 to 6, the coordinator finds out by a missing heartbeat, a lost connection or a
 * new incarnation under the worker's name. It increments the registration of the worker and
 * sends a fence to every server. When all servers have replied, it queues the steps of the
 * worker again. The next attempt has the same step number and reads the same elements. Servers
 * apply the updates that are missing, and no update twice. The attempt reads the variables
 * again, and some of them may already contain updates of the first attempt.
 *
 * To cancel a step, the coordinator sends CH_WORKER_DROP. If the run has sent no update, the
 * worker ends it without a reply, because the coordinator no longer waits for that call. A run
 * that has sent an update is not dropped. If a hold rejects its next update, the coordinator
 * runs the step again after the hold.
 *
 * A worker that was declared lost may still be alive. When it receives a call with a newer
 * registration, it drops the runs of older registrations and resets its per-worker variables to
 * their initial values.
 *
 * The per-worker variables change when a run finishes, all or none. The worker remembers the
 * steps that have changed them, until these are retired, so a step that it runs twice changes
 * them once. A run that is dropped, fails or hands the step back does not change them. A step
 * that another worker takes over uses the copies of that worker (job/coordinator.h).
 *
 * Two numbers must not be confused. The incarnation identifies a process: it grows when a task
 * is started again. The registration is counted by the coordinator: it grows when the
 * coordinator declares the worker lost.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_WORKER_H
#define JOB_WORKER_H

#include "cohort/device.h"
#include "net/net.h"

enum { CH_WORKER_DEVICES = 64 }; /* devices of a worker at most */

typedef struct ch_worker_options {
    int        n_devices; /* each runs a replica of a step */
    ch_device *device[CH_WORKER_DEVICES];
    /* Timeout of an attempt of a call to a server, in ns; 0: 2 s. A large call has more. */
    int64_t call_ns;
    int64_t retry_ns; /* pause before a lost call is sent again, in ns; 0: 20 ms */
    /* Time from the first attempt of a call until the worker gives the step back to the
     * coordinator, because the server does not reply, in ns; 0: 5 s. */
    int64_t patience_ns;
} ch_worker_options;

/* The operations of the task, for ch_task_options.ops. */
extern const ch_task_ops ch__worker_ops;
/* Creates the state of an incarnation of the task, for ch_task_options.make. `arg` is a
 * ch_worker_options. It must stay valid as long as the task may be started again. */
ch_status ch__worker_make(void *arg, ch_task *t, uint64_t incarnation, ch_outbox *outbox,
                          void **self);

#endif
