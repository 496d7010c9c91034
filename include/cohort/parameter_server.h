/* cohort/parameter_server.h -- variables on parameter servers, steps on workers.
 *
 *     ch_resolver *cluster = NULL;
 *     rc = ch_cluster_local(&(ch_local_options){.ps = 2, .workers = 3}, &cluster);
 *     rc = ch_strategy_parameter_server(cluster, NULL, &st);
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

/* Rows of a variable, outside a step, without the others; in a step, ch_gather of ch_var_read asks for no more either. Of variables of other
 * strategies too. A scalar has none: INVALID_ARGUMENT. Of strings: UNIMPLEMENTED.
 *
 * By a slice, as Python's: from `start` to before `stop`, every `step`-th; negative ones count from the end, CH_SLICE_END is
 * left out, and what is beyond an end is at it. Only the shards that have any of them are asked. A step of 0 is INVALID_ARGUMENT. */
enum { CH_SLICE_END = -2147483647 - 1 };
CH_API CH_MUST_CHECK ch_status ch_var_slice(ch_var *v, int64_t start, int64_t stop,
                                            int64_t step, ch_tensor **out);
/* Rows by their numbers, in that order, each asked of the shard that has it; `ids` is i32 or i64 of any shape, and the result's first sizes
 * are those. An id out of range is INVALID_ARGUMENT. */
CH_API CH_MUST_CHECK ch_status ch_var_lookup(ch_var *v, ch_tensor *ids, ch_tensor **out);
/* One row, from the end if negative: x[index]. INVALID_ARGUMENT if there is none. */
CH_API CH_MUST_CHECK ch_status ch_var_row(ch_var *v, int64_t index, ch_tensor **out);

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

typedef struct ch_local_options {
    int ps;      /* 0: 1 */
    int workers; /* 0: 1 */
    int devices; /* of each worker: replicas; 0: 1 */
} ch_local_options;

/* Parameter servers and workers as threads of this process, which share no memory but through messages. They live as long as the
 * resolver, which is a chief's. One strategy can use them. */
CH_API CH_MUST_CHECK ch_status ch_cluster_local(const ch_local_options *opt, ch_resolver **out);
/* Ends a task ("worker", 1): nobody hears of it again, as of one that has crashed. Returns when what it computes has ended, for a
 * thread cannot be killed. And starts one anew that has died; to see what a program makes of it. */
CH_API CH_MUST_CHECK ch_status ch_cluster_local_kill(ch_resolver *cluster, const char *job,
                                                     int task);
CH_API CH_MUST_CHECK ch_status ch_cluster_local_restart(ch_resolver *cluster, const char *job,
                                                        int task);
/* One worker more; a strategy that uses the cluster has it from now on. */
CH_API CH_MUST_CHECK ch_status ch_cluster_local_add_worker(ch_resolver *cluster, int *task);

#endif
