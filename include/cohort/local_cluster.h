/* cohort/local_cluster.h -- a cluster of parameter servers and workers in this process.
 *
 * A local cluster runs the tasks of the parameter-server strategy as threads: for programs on
 * one machine, and for tests of lost tasks.
 *
 *     rc = ch_cluster_local(&(ch_local_cluster_options){.ps = 2, .workers = 3}, &cluster);
 *     rc = ch_strategy_parameter_server(ch_local_cluster_resolver(cluster), NULL, &st);
 *     rc = ch_local_cluster_kill(cluster, "worker", 1);   // as a crash of worker 1 would
 *
 *   - Ownership: a local cluster is reference counted. It ends when the last reference to it,
 *     or to its resolver, is dropped.
 *   - Threads: the functions that kill, restart and add tasks must be called by one thread at a
 *     time.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_LOCAL_CLUSTER_H
#define COHORT_LOCAL_CLUSTER_H

#include "cohort/resolver.h"

typedef struct ch_local_cluster ch_local_cluster;

typedef struct ch_local_cluster_options {
    int ps;      /* number of parameter servers; 0: 1 */
    int workers; /* number of workers; 0: 1 */
    int devices; /* number of devices of each worker, which are its replicas; 0: 1 */
} ch_local_cluster_options;

/* Starts parameter servers and workers as threads of this process. They communicate only by
 * messages, as separate processes would. They run until the last reference to the cluster or to
 * its resolver is dropped. At most one strategy can use a cluster. */
CH_API CH_MUST_CHECK ch_status ch_cluster_local(const ch_local_cluster_options *opt,
                                                ch_local_cluster              **out);
CH_API ch_local_cluster       *ch_local_cluster_ref(ch_local_cluster *c);
CH_API void                    ch_local_cluster_unref(ch_local_cluster *c); /* may be NULL */
/* Returns the resolver for ch_strategy_parameter_server. In it, this process is the chief.
 * Borrowed. */
CH_API ch_resolver *ch_local_cluster_resolver(const ch_local_cluster *c);

/* Ends a task, such as ("worker", 1), as a crash would: the other tasks get no message about
 * it. Blocks until the current computation of the task has ended, because a thread cannot be
 * killed. */
CH_API CH_MUST_CHECK ch_status ch_local_cluster_kill(ch_local_cluster *c, const char *job,
                                                     int task);
/* Restarts a task that was killed. FAILED_PRECONDITION: the task is alive. */
CH_API CH_MUST_CHECK ch_status ch_local_cluster_restart(ch_local_cluster *c, const char *job,
                                                        int task);
/* Adds a worker, and writes its number to *task. A strategy that uses the cluster schedules
 * steps on it from now on. `task` may be NULL. */
CH_API CH_MUST_CHECK ch_status ch_local_cluster_add_worker(ch_local_cluster *c, int *task);

#endif
