/* job/local_cluster.h -- a cluster of tasks in this process.
 *
 * Implements ch_local_cluster of cohort/local_cluster.h. The tasks share no memory except
 * through messages. The cluster's resolver holds the reference count and owns the cluster.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_LOCAL_CLUSTER_H
#define JOB_LOCAL_CLUSTER_H

#include "cohort/local_cluster.h"
#include "job/coordinator.h"
#include "job/server.h"
#include "job/worker.h"
#include "net/net.h"

enum { CH_LOCAL_TASKS = 256 }; /* servers, and workers, of a cluster at most */

/* Options of the tasks. The cluster sets the devices and the numbers of tasks itself. */
typedef struct ch_local_cluster_task_options {
    ch_coord_options  coord;
    ch_worker_options worker;
    ch_server_options server;
} ch_local_cluster_task_options;

/* Creates a cluster on a given network engine and takes the engine over, on an error too. Tests
 * use it with a simulated network. */
CH_MUST_CHECK ch_status ch__local_cluster_new_on(ch_net                              *net,
                                                 const ch_local_cluster_options      *opt,
                                                 const ch_local_cluster_task_options *how,
                                                 ch_local_cluster                   **out);
/* Returns the cluster of a resolver, or NULL if the resolver is of another kind. Borrowed. */
ch_local_cluster *ch__local_cluster_of(const ch_resolver *r);
/* Returns the number of devices of each worker. */
int ch__local_cluster_devices(const ch_local_cluster *l);
/* Returns the network engine. Borrowed. */
ch_net *ch__local_cluster_net(const ch_local_cluster *l);
/* Starts the coordinator task for a strategy. The cluster owns the task. Returns
 * CH_FAILED_PRECONDITION if a strategy has started it before, because a cluster serves a single
 * strategy. */
CH_MUST_CHECK ch_status ch__local_cluster_start_coordinator(ch_local_cluster *l, ch_task **out);
/* Returns the coordinator task, or NULL if it was not started. Borrowed. */
ch_task *ch__local_cluster_coordinator(const ch_local_cluster *l);
/* Returns a task of job "ps" or "worker", or NULL if there is none. Borrowed. */
ch_task *ch__local_cluster_task(const ch_local_cluster *l, const char *job, int task);

#endif
