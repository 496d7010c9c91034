/* job/local_cluster.h -- a cluster in this process.   SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_LOCAL_CLUSTER_H
#define JOB_LOCAL_CLUSTER_H

#include "cohort/parameter_server.h"
#include "job/coordinator.h"
#include "job/server.h"
#include "job/worker.h"
#include "net/net.h"

enum { CH_LOCAL_TASKS = 256 }; /* of a job, at most */

/* What the tasks are told, but for what the options of the cluster say. */
typedef struct ch_local_cluster_how {
    ch_coord_options  coord;
    ch_worker_options worker;
    ch_server_options server;
} ch_local_cluster_how;

/* Over an engine that is taken over, on an error too. For tests, which have a simulated one. */
CH_MUST_CHECK ch_status ch__local_cluster_on(ch_net *net, const ch_local_cluster_options *opt,
                                             const ch_local_cluster_how *how,
                                             ch_local_cluster          **out);
/* The cluster of a resolver; NULL: it is of another kind. */
ch_local_cluster *ch__local_cluster_of(const ch_resolver *r);
int               ch__local_cluster_devices(const ch_local_cluster *l);
ch_net           *ch__local_cluster_net(const ch_local_cluster *l);
/* Starts the chief, for the one strategy that uses it. */
CH_MUST_CHECK ch_status ch__local_cluster_start_coordinator(ch_local_cluster *l, ch_task **out);
ch_task *ch__local_cluster_coordinator(const ch_local_cluster *l); /* NULL: not started */
ch_task *ch__local_cluster_task(const ch_local_cluster *l, const char *job, int task);

#endif
