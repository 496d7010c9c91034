/* job/server.h -- the parameter server task.
 *
 * A parameter server holds shards of variables. It receives calls of the coordinator and of the
 * workers (methods CH_PS_* of job/message.h), passes each call to the server state
 * (job/server/state.h) and replies. It calls no other task.
 *
 * How an update is applied:
 *   1. A worker sends the graph of the update (CH_PS_DEFINE), once for each update and shard.
 *   2. In each step the worker sends CH_PS_UPDATE. The call carries the step number, the
 *      worker's name and registration, and for each update a sequence number and its input
 *      tensors.
 *   3. The server rejects the call with CH_ABORTED if the registration is fenced, if the step
 *      has ended, or if the step is held because the coordinator wants to cancel it.
 *   4. Otherwise the server runs the graphs on its variables. If an update with the same step
 *      and sequence number was applied before, the server does not apply it again. This is the
 *      case for a repeated call and for another attempt of the step.
 *   5. The server replies with the results of the updates, with those of the first time if an
 *      update was not applied again. The reply is the acknowledgement.
 *
 * If a worker is lost, the coordinator sends CH_PS_FENCE to every server with the worker's next
 * registration. From its reply on, a server rejects updates with an older registration, so an
 * update of the lost worker that arrives late changes nothing. When all servers have replied,
 * the coordinator lets other workers run the steps of the lost worker.
 *
 * In rounds of CH_SYNCHRONOUS, the result must not depend on which worker is faster. So servers
 * only keep the updates of a round (PsUpdate.defer) and reply. The coordinator sends
 * CH_PS_SETTLE with the steps that have replied and before which no step is left. The server
 * then applies their updates in the order of the steps.
 *
 * To cancel steps, the coordinator sends CH_PS_HOLD to every server. From its reply on, a
 * server rejects updates of these steps. The reply lists the steps of which the server had
 * applied an update. A step of which no server has applied an update ends as cancelled. Then
 * the coordinator releases the hold (CH_PS_PING), and the other steps are run again, to their
 * end.
 *
 * The server replies to a call before it receives the next. So a read sees all updates of a
 * call or none of them, unless an update failed. CH_PS_UPDATE, CH_PS_ASSIGN and CH_PS_PING
 * carry `retired`, the number of the oldest step that has not ended. The server rejects updates
 * of older steps and forgets which of their updates it applied.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_SERVER_H
#define JOB_SERVER_H

#include "job/server/state.h"
#include "net/net.h"

typedef struct ch_server_options {
    /* Device of this server alone. Graphs run on it, on the thread that drives the task. */
    ch_device *device;
    /* Limit in bytes of a variable whose initial value the server computes; 0: no limit. */
    int64_t         max_init_bytes;
    ch_update_watch watch; /* for tests: called after each applied update; NULL: not called */
    void           *arg;   /* first argument of `watch` */
} ch_server_options;

/* The operations of the task, for ch_task_options.ops. */
extern const ch_task_ops ch__server_ops;
/* Creates the state of an incarnation of the task, for ch_task_options.make. `arg` is a
 * ch_server_options. It must stay valid as long as the task may be started again. */
ch_status ch__server_make(void *arg, ch_task *t, uint64_t incarnation, ch_outbox *outbox,
                          void **self);

#endif
