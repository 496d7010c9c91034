/* cohort/coordinator.h -- the coordinator: runs steps on workers in the background.
 *
 * A coordinator belongs to a strategy with parameter servers. Each scheduled step runs on a
 * free worker. The variables are on the parameter servers.
 *
 *     rc = ch_coordinator_new(st, NULL, &c); // st: ch_strategy_parameter_server
 *     rc = ch_coordinator_create_per_worker_dataset(c, d, &data);
 *     rc = ch_per_worker_iterate(data, &it); // a new pass over the data, on every worker
 *     ch_arguments args = {.n_each = 1, .each = &it};
 *     for (int i = 0; i < steps && rc == CH_OK; i++)
 *         rc = ch_coordinator_schedule(c, train, &args, NULL);
 *     rc = ch_coordinator_join(c); // all steps have finished: variables can be read
 *
 * Ownership and threads. Coordinators, remote results (ch_remote) and per-worker objects
 * (ch_per_worker) are reference counted. Any thread may call these functions, several at the
 * same time.
 *
 * Lost workers. If a worker is lost, another worker runs its steps again, with the same data
 * and the same random numbers. Updates that the first attempt has made are not made twice.
 * Workers may join and leave at any time. If a parameter server is lost, the job has failed:
 * from then on calls return UNAVAILABLE and name the server.
 *
 * Errors. If a step fails, the next call of ch_coordinator_schedule, ch_coordinator_join or
 * ch_coordinator_done cancels all queued and running steps and returns the step's error, once.
 * The coordinator is usable again after that call. ch_remote_fetch returns the result of each
 * step.
 *
 * Cancelled steps. A step that ends as CANCELLED has changed no variable on a server, and never
 * will, so the program may schedule it again. A step that has already changed a variable is not
 * cancelled: it runs to its end. A worker stops a cancelled step before its next kernel, so the
 * call that returns the error waits at most for the kernels that are running. The elements of a
 * cancelled step return to their datasets, and the next steps read them. The elements of a step
 * that failed with an error of its own are used up.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_COORDINATOR_H
#define COHORT_COORDINATOR_H

#include "cohort/dataset.h"
#include "cohort/strategy.h"

typedef struct ch_coordinator ch_coordinator;
typedef struct ch_remote      ch_remote;     /* the future results of a scheduled step */
typedef struct ch_per_worker  ch_per_worker; /* an object with a value for each worker */

/* When a scheduled step may begin. */
typedef enum ch_coordinator_mode {
    CH_ASYNCHRONOUS, /* when a worker is free */
    /* When all steps have ended that were scheduled more than `staleness` steps before it. */
    CH_BOUNDED_STALENESS,
    /* In rounds. All steps of a round read the values that the variables had when the round
     * began. Servers apply the updates of a round in the order in which its steps were
     * scheduled, whichever worker is faster or lost. So the same steps give the same bits. For
     * that, a server keeps the updates of a round in memory until it is their turn. A step that
     * uses a result of an update, such as a value that it reads after it has changed it, or the
     * norms of ch_optimizer_lamb, begins when the steps before it have ended. The next round
     * begins when all steps of the round have ended. Rounds are counted
     * from the last join, or from the last call that returned the error of a step. A checkpoint
     * that is saved in the middle of a round waits for its steps, and counts like a join if the
     * program has not scheduled all of them. Steps read the parts of per-worker datasets in
     * turn, in the order in which they were scheduled, whichever worker runs them. */
    CH_SYNCHRONOUS
} ch_coordinator_mode;

typedef struct ch_coordinator_options {
    ch_coordinator_mode mode;
    /* For CH_BOUNDED_STALENESS, in steps. 0: a step sees the updates of all steps before it. */
    int staleness;
    int round; /* for CH_SYNCHRONOUS: steps in a round; 0: the number of workers */
    /* Most steps in the queue; if it is full, ch_coordinator_schedule blocks. 0: 262144. */
    int64_t capacity;
    /* Most bytes of inputs in the queue, counted for each step; if they are reached,
     * ch_coordinator_schedule blocks. A single step may exceed them. 0: 1 GiB. */
    int64_t capacity_bytes;
    bool    backups; /* also run a slow step on an idle worker; the first result counts */
    /* Time limit of a step on its worker, in seconds, counted from the end of the step before
     * it; 0: COHORT_WAIT_LIMIT_MS. A step that exceeds it fails with DEADLINE_EXCEEDED. Its
     * worker stops it before the next kernel, and gets no other steps until then. */
    double step_seconds;
} ch_coordinator_options;

/* Returns a reference to the coordinator of a strategy, which has only one. The options of the
 * first call count; NULL: the defaults. In a later call `opt` must be NULL or the same options,
 * else FAILED_PRECONDITION. INVALID_ARGUMENT: the strategy has no parameter servers. */
CH_API CH_MUST_CHECK ch_status ch_coordinator_new(ch_strategy                  *st,
                                                  const ch_coordinator_options *opt,
                                                  ch_coordinator              **out);
CH_API ch_coordinator         *ch_coordinator_ref(ch_coordinator *c);
CH_API void                    ch_coordinator_unref(ch_coordinator *c);
/* Returns the strategy, borrowed. */
CH_API ch_strategy *ch_coordinator_strategy(const ch_coordinator *c);

/* ---- steps ---- */

/* The inputs of a step: first the leaves of `in`, then for each per-worker object the value of
 * the worker that runs the step: the next element of its dataset, or its tuple. */
typedef struct ch_arguments {
    ch_tuple             *in;     /* may be NULL */
    int                   n_each; /* number of per-worker objects */
    ch_per_worker *const *each;   /* of ch_per_worker_iterate or ..._create_per_worker_values */
} ch_arguments;

/* Adds a step to the queue, and returns without waiting for it. Blocks only if the queue is
 * full, or while another thread joins.
 *
 * The step is recorded in this call, which returns the errors of recording. `args` may be NULL.
 * `out` may be NULL: the results of the step are then not sent. Until the step has ended, the
 * caller must not write to the tensors of `in`, because they are not copied. It must not free
 * the variables that the step uses either. */
CH_API CH_MUST_CHECK ch_status ch_coordinator_schedule(ch_coordinator *c, ch_function *f,
                                                       const ch_arguments *args,
                                                       ch_remote         **out);
/* Blocks until no step is queued or running. Returns the error of a step, or CH_OK.
 * DEADLINE_EXCEEDED: no step has ended for COHORT_WAIT_LIMIT_MS, plus the time limit of a step
 * if steps are running. */
CH_API CH_MUST_CHECK ch_status ch_coordinator_join(ch_coordinator *c);
/* Joins, but waits at most `seconds`; 0: does not wait. DEADLINE_EXCEEDED: steps are still
 * queued or running. They continue, and the next join waits for them. If the time was too short
 * to report the error of a step, the next call reports it. */
CH_API CH_MUST_CHECK ch_status ch_coordinator_join_for(ch_coordinator *c, double seconds);
/* Cancels all queued and running steps, except the steps that have already changed a variable.
 * Does not block. A join waits for the end of the steps, and returns CH_OK if no other step has
 * failed. */
CH_API CH_MUST_CHECK ch_status ch_coordinator_cancel(ch_coordinator *c);
/* Writes true to `out` if no step is queued or running. */
CH_API CH_MUST_CHECK ch_status ch_coordinator_done(ch_coordinator *c, bool *out);

/* Blocks until the step has ended, and returns its results; a step without results gives an
 * empty tuple. The caller unrefs the tuple. Returns the error of the step if it failed, and
 * CANCELLED if it was cancelled. */
CH_API CH_MUST_CHECK ch_status ch_remote_fetch(ch_remote *r, ch_tuple **out);
/* Fetches, but waits at most `seconds`; 0: does not wait. DEADLINE_EXCEEDED: the step has not
 * ended. It continues. */
CH_API CH_MUST_CHECK ch_status ch_remote_fetch_for(ch_remote *r, double seconds,
                                                   ch_tuple **out);
/* Cancels the step, unless it has ended or has already changed a variable. Does not block.
 * ch_remote_fetch then returns CANCELLED if the step was cancelled. A cancelled step is no
 * error for a join. */
CH_API CH_MUST_CHECK ch_status ch_remote_cancel(ch_remote *r);
/* Returns the number of the step, as in error messages: counted from 1, unique for the
 * coordinator. Returns 0 if r is NULL. */
CH_API long long  ch_remote_step(const ch_remote *r);
CH_API bool       ch_remote_has_ended(const ch_remote *r); /* done, failed or cancelled */
CH_API ch_remote *ch_remote_ref(ch_remote *r);
CH_API void       ch_remote_unref(ch_remote *r);
/* Fetches n results into out[0] to out[n - 1]. On an error it gives none. */
CH_API CH_MUST_CHECK ch_status ch_coordinator_fetch(ch_coordinator *c, int n,
                                                    ch_remote *const *r, ch_tuple **out);

/* ---- per-worker objects ----
 *
 * A per-worker object has a part for each worker that exists when the object is created. A
 * worker that joins later, with index i, uses the part of worker i % n, where n is the number
 * of parts. In rounds (CH_SYNCHRONOUS), the parts of datasets do not belong to workers. */

/* Creates a per-worker dataset: each worker reads the whole dataset. The dataset is encoded and
 * sent, and not read in this process. Borrows `d`. The position in the data survives the loss
 * of a worker: its replacement continues there. UNIMPLEMENTED: a stage contains a C function
 * and cannot be sent; the error names it. */
CH_API CH_MUST_CHECK ch_status ch_coordinator_create_per_worker_dataset(ch_coordinator *c,
                                                                        ch_dataset     *d,
                                                                        ch_per_worker **out);
/* Creates a per-worker dataset from a function, which is called once for each worker, in this
 * process.
 *
 * The datasets are used unchanged: batches are not cut, and data is not divided. Element k goes
 * to replica k % devices of the worker. The input context describes a single worker: 1
 * pipeline, and the worker's devices as replicas, so ch_input_context_batch_size divides a
 * batch among these devices. To divide data among workers, use the fields `worker` and
 * `n_workers`. */
CH_API CH_MUST_CHECK ch_status ch_coordinator_create_per_worker_dataset_from_function(
    ch_coordinator *c, ch_input_fn fn, void *arg, ch_per_worker **out);
/* Divides a dataset among the workers. Each element of a pass is used by exactly one step that
 * is done or has failed, whichever worker runs it. That holds if workers are lost, and if steps
 * are cancelled and scheduled again. Borrows `d`.
 *
 * Each worker has a part. If there are enough files and the stages allow it (a stage that drops
 * a remainder does not), a part is a set of files; it then ends with its own last batch, which
 * may be short. Else a part is every n-th element, and batches and maps below it are computed
 * only for that part. A policy of ch_dataset_options that would read an example twice is
 * ignored. The log says which way was chosen, and why ("autoshard", cohort/log.h). */
CH_API CH_MUST_CHECK ch_status ch_coordinator_distribute_dataset(ch_coordinator *c,
                                                                 ch_dataset     *d,
                                                                 ch_per_worker **out);
/* Begins a new pass over a per-worker dataset, on every worker. If no element is left, a step
 * fails with OUT_OF_RANGE. Elements that cancelled steps have returned are left. If an element
 * fails, the step that reads it fails with its error. Later steps read the elements after it: a
 * pass always continues after errors, as an iterator with ch_iterator_options.go_on does.
 *
 * Every worker, pass and epoch (of ch_dataset_repeat) has its own random numbers, for shuffles
 * and for random ops in maps. They do not depend on which worker runs a step: after the loss of
 * a worker, others read its data in the same order. Stages below a ch_dataset_shard have the
 * same random numbers on all workers, so that the shards are disjoint. */
CH_API CH_MUST_CHECK ch_status ch_per_worker_iterate(ch_per_worker  *dataset,
                                                     ch_per_worker **out);
/* Creates a tuple for each worker. `fn` is called for each worker in this process; `replica` in
 * its context is the index of the worker. All replicas of the worker share a plain leaf. A
 * per-replica leaf must have a component for each device of a worker. */
CH_API CH_MUST_CHECK ch_status ch_coordinator_create_per_worker_values(ch_coordinator *c,
                                                                       ch_value_fn     fn,
                                                                       void           *arg,
                                                                       ch_per_worker **out);
CH_API ch_per_worker          *ch_per_worker_ref(ch_per_worker *p);
CH_API void                    ch_per_worker_unref(ch_per_worker *p);

/* ---- statistics ---- */

typedef struct ch_coordinator_stats {
    int64_t queued, running;             /* steps, at present */
    int64_t finished, failed, cancelled; /* steps, in total */
    int64_t repeated;       /* attempts repeated because a worker or a message was lost */
    int64_t backups;        /* attempts started beside a slow attempt */
    int64_t workers_lost;   /* number of times that a worker was declared lost */
    int     workers, ready; /* all workers; workers that accept steps at present */
    int64_t moved;          /* steps that an idle worker took over from a slow worker */
    int     last_lost;      /* index of the worker that was declared lost last; -1: none */
} ch_coordinator_stats;

typedef struct ch_worker_stats {
    bool    is_ready; /* the worker accepts steps: it replies, and no step exceeds its limit */
    int64_t running;  /* steps that the worker has at present */
    int64_t finished; /* steps that the worker has finished without error, in total */
    int64_t lost;     /* number of times that the worker was declared lost */
} ch_worker_stats;

CH_API CH_MUST_CHECK ch_status ch_coordinator_get_stats(ch_coordinator       *c,
                                                        ch_coordinator_stats *out);
/* Writes the statistics of a worker. Worker 0 is the task "worker/0" of the cluster.
 * INVALID_ARGUMENT: there is no such worker. */
CH_API CH_MUST_CHECK ch_status ch_coordinator_get_worker_stats(ch_coordinator *c, int worker,
                                                               ch_worker_stats *out);

#endif
