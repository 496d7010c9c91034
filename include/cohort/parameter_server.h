/* cohort/parameter_server.h -- the parameter-server strategy: variables on servers, steps on
 * workers.
 *
 * A parameter server is a task that stores variables. A worker is a task that runs steps: it
 * reads the variables that a step needs from the servers, and sends updates back. The program
 * is the coordinator: it records steps and schedules them.
 *
 *     rc = ch_cluster_local(&(ch_local_cluster_options){.ps = 2, .workers = 3}, &cluster);
 *     rc = ch_strategy_parameter_server(ch_local_cluster_resolver(cluster), NULL, &st);
 *
 * ch_strategy_run sends a step to the least busy worker and waits for it. ch_fit and a
 * coordinator (cohort/coordinator.h) keep all workers busy. The replicas of a step are the
 * devices of its worker.
 *
 *   - Updates that keep the sizes of a variable (ch_var_assign_add, scatters, optimizers) run
 *     on its server, so updates of several workers do not overwrite each other. A value that a
 *     worker computes and assigns may overwrite the update of another worker. Each update is
 *     applied exactly once, also if a message is lost or a worker is replaced in the middle of
 *     a step.
 *   - Reads of different variables are not a snapshot: they may see different points in time.
 *   - A variable may be divided into shards on several servers (cohort/partitioner.h). For
 *     steps, gradients, optimizers and ch_var_get it is still a single variable. A lookup of
 *     rows sends requests only to the shards that hold the rows, a single request to each.
 *   - Ownership: the strategy holds a reference to the resolver.
 *   - Threads: several threads may use the strategy, as with every strategy.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_PARAMETER_SERVER_H
#define COHORT_PARAMETER_SERVER_H

#include "cohort/local_cluster.h"
#include "cohort/partitioner.h"
#include "cohort/strategy.h"

/* The server on which a variable or shard is placed. */
typedef enum ch_placement {
    CH_PLACE_ROUND_ROBIN, /* the next server, for each variable or shard */
    /* The server with the fewest bytes. Shards of a variable go to different servers as long as
     * there are enough. */
    CH_PLACE_BY_BYTES
} ch_placement;

typedef struct ch_parameter_server_options {
    ch_partitioner partitioner; /* all zeros: variables are not divided */
    ch_placement   placement;
} ch_parameter_server_options;

/* Creates the strategy. Holds a reference to the resolver. Blocks until all servers and a first
 * worker have answered.
 *
 * INVALID_ARGUMENT, checked in this order: the cluster is empty; ch_cluster_check fails; there
 * is no ps; there is no worker. UNIMPLEMENTED: the tasks are not in this process. For now only
 * the clusters of ch_cluster_local can be used. */
CH_API CH_MUST_CHECK ch_status ch_strategy_parameter_server(
    ch_resolver *cluster, const ch_parameter_server_options *opt, ch_strategy **out);

/* Writes a table with the server and the bytes of every variable and shard, and the bytes of
 * each server. Returns the length needed, as snprintf does. */
CH_API int ch_strategy_print_placement(ch_strategy *st, char *text, size_t size);

/* ---- per-worker variables ----
 *
 * A per-worker variable (per_worker of ch_var_spec) is not on a server. Each worker has its own
 * copy, and the program has another. ch_var_get, ch_var_set and similar functions use the
 * program's copy. A step uses the copy of the worker that runs it. The devices of a worker
 * share this copy; their assigns are aggregated as for any variable.
 *
 * The copy of a worker starts with the initial value of the variable, when the worker first
 * runs a step that uses it. It changes when a step has succeeded on the worker, once for each
 * step.
 *
 * The copies have no guarantees beyond the memory of the worker:
 *   - If a worker is lost, its copy is lost. When the worker returns, the copy starts with the
 *     initial value again.
 *   - If a step is sent to a second worker, as a backup or because the reply of the first was
 *     lost, the step may change both copies.
 *   - Modes and snapshots of a coordinator do not include these copies. */

/* Returns the values of all workers, in the order of the workers. A worker that is lost, or
 * that has not used the variable in a step, has the initial value. Under a strategy without
 * workers there is a single value. INVALID_ARGUMENT: the variable is not per_worker. */
CH_API CH_MUST_CHECK ch_status ch_var_get_all(ch_var *v, ch_tuple **out);

#endif
