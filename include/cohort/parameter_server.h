/* cohort/parameter_server.h -- variables on parameter servers, steps on workers.
 *
 *     ch_local_cluster *cluster = NULL;
 *     rc = ch_cluster_local(&(ch_local_cluster_options){.ps = 2, .workers = 3}, &cluster);
 *     rc = ch_strategy_parameter_server(ch_local_cluster_resolver(cluster), NULL, &st);
 *
 * Variables live on the servers; a step is recorded here, and run by a worker, which reads what it needs of them and sends what changes.
 * ch_strategy_run gives a step to the worker that has least to do and waits for it; ch_fit and a coordinator (cohort/coordinator.h)
 * keep all workers busy. Replicas are the devices of one worker.
 *
 * An update is computed where its variable is: updates of several workers never lose anything of each other, and each is made once, also
 * when a message was lost or a worker had to be replaced in mid-step. Reads of different variables may see different moments.
 *
 * A variable may be cut in shards, on several servers: cohort/partitioner.h. It stays one variable for steps, gradients, optimizers and
 * ch_var_get; rows that are looked up are asked of the shards that have them, each once.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_PARAMETER_SERVER_H
#define COHORT_PARAMETER_SERVER_H

#include "cohort/partitioner.h"
#include "cohort/strategy.h"

typedef enum ch_placement {
    CH_PLACE_ROUND_ROBIN, /* each variable or shard on the next server */
    CH_PLACE_BY_BYTES /* on the server that has least; shards of a variable on different ones, while there are enough */
} ch_placement;

typedef struct ch_parameter_server_options {
    ch_partitioner partitioner; /* all zeros: variables are in one piece */
    ch_placement   placement;
} ch_parameter_server_options;

/* Keeps the resolver. Refused, INVALID_ARGUMENT, in this order: an empty cluster; what ch_cluster_check refuses; no ps; no worker.
 * Returns when every server and a worker have answered. Now only tasks of this process can be reached (ch_cluster_local): a cluster of
 * others is UNIMPLEMENTED. */
CH_API CH_MUST_CHECK ch_status ch_strategy_parameter_server(
    ch_resolver *cluster, const ch_parameter_server_options *opt, ch_strategy **out);

/* Where every variable and shard is, with its bytes, and what each server has, as a table; as snprintf does. */
CH_API int ch_strategy_print_placement(ch_strategy *st, char *text, size_t size);

/* ---- what each worker has its own of ----
 *
 * A variable that is per_worker (ch_var_spec) is on no server, and counts for no placement. Each worker has a copy of it, which begins as the
 * variable's first value when the worker first runs a step that uses it, and the program has one, which ch_var_get, ch_var_set and the like are of. In a
 * step it is that of the worker that runs it: the devices of a worker share it, and what they assign is aggregated as of any variable.
 *
 * A copy changes when a step has ended well on its worker, once for a step. It is the worker's memory, and no more: it is lost with the
 * worker, whose next life begins with the first value again; a step that is given to a second worker, as a backup or since the first one's answer was
 * lost, may count in both; and no mode or version of a coordinator holds it still. */

/* What each worker has now, a value for each, in their order; of a worker that has used it in no step yet, or that is lost, the first
 * value. Under a strategy without workers one value. INVALID_ARGUMENT for a variable that is not per_worker. */
CH_API CH_MUST_CHECK ch_status ch_var_get_all(ch_var *v, ch_tuple **out);

/* ---- a cluster in this process ---- */

typedef struct ch_local_cluster ch_local_cluster;

typedef struct ch_local_cluster_options {
    int ps;      /* 0: 1 */
    int workers; /* 0: 1 */
    int devices; /* of each worker, which are its replicas; 0: 1 */
} ch_local_cluster_options;

/* Starts parameter servers and workers as threads of this process, which share no memory except through messages. They live
 * until the last reference to the cluster or to its resolver is gone. One strategy can use the cluster. */
CH_API CH_MUST_CHECK ch_status ch_cluster_local(const ch_local_cluster_options *opt,
                                                ch_local_cluster              **out);
CH_API ch_local_cluster       *ch_local_cluster_ref(ch_local_cluster *c);
CH_API void                    ch_local_cluster_unref(ch_local_cluster *c); /* NULL is fine */
/* Returns the resolver that strategies are made with; this process is its chief. Borrowed. */
CH_API ch_resolver *ch_local_cluster_resolver(const ch_local_cluster *c);

/* Ends a task ("worker", 1) as a crash would: no other task hears of it. Blocks until its computation has ended, because a thread
 * cannot be killed. */
CH_API CH_MUST_CHECK ch_status ch_local_cluster_kill(ch_local_cluster *c, const char *job,
                                                     int task);
/* Starts a task again that was killed. */
CH_API CH_MUST_CHECK ch_status ch_local_cluster_restart(ch_local_cluster *c, const char *job,
                                                        int task);
/* Adds a worker. A strategy that uses the cluster schedules steps on it from now on. `task` may be NULL. */
CH_API CH_MUST_CHECK ch_status ch_local_cluster_add_worker(ch_local_cluster *c, int *task);

#endif
