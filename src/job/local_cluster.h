/* job/local_cluster.h -- a cluster in this process.   SPDX-License-Identifier: Apache-2.0 */
#ifndef JOB_LOCAL_CLUSTER_H
#define JOB_LOCAL_CLUSTER_H

#include "cohort/parameter_server.h"
#include "job/coordinator.h"
#include "job/server.h"
#include "job/worker.h"
#include "net/net.h"

enum { CH_LOCAL_TASKS = 256 }; /* of a job, at most */

typedef struct ch_local ch_local;

/* What the tasks are told, but for what the options of the cluster say. */
typedef struct ch_local_how {
    ch_chief_options  chief;
    ch_worker_options worker;
    ch_server_options server;
} ch_local_how;

/* Over an engine that is taken over, on an error too. For tests, which have a simulated one. */
CH_MUST_CHECK ch_status ch__cluster_local_on(ch_net *net, const ch_local_options *opt,
                                             const ch_local_how *how, ch_resolver **out);
/* The cluster of a resolver; NULL: it is of another kind. */
ch_local *ch__local_of(const ch_resolver *r);
int       ch__local_devices(const ch_local *l);
ch_net   *ch__local_net(const ch_local *l);
/* Starts the chief, for the one strategy that uses it. */
CH_MUST_CHECK ch_status ch__local_chief(ch_local *l, ch_task **out);
ch_task                *ch__local_chief_task(const ch_local *l); /* NULL: not started */
ch_task                *ch__local_task(const ch_local *l, const char *job, int task);

#endif
