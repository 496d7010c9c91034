/* cohort/coordinator.h -- steps that workers run while the program goes on.
 *
 *     rc = ch_coordinator_new(st, NULL, &c);                          // st: ch_strategy_parameter_server
 *     rc = ch_coordinator_create_per_worker_dataset(c, d, &data);
 *     rc = ch_per_worker_iterate(data, &it);                          // a new pass over it, on every worker
 *     for (int i = 0; i < steps && rc == CH_OK; i++)
 *         rc = ch_coordinator_schedule(c, train, &(ch_arguments){.n_each = 1, .each = &it}, NULL);
 *     rc = ch_coordinator_join(c);                                    // all have run: variables can be read
 *
 * A step is run by whichever worker is free, with variables on parameter servers. When its worker is lost, another runs it
 * again, with the same data and the same random numbers; what the first attempt had changed already is not changed
 * twice. Workers may come and go.
 *
 * Errors. The first step that fails ends what was scheduled: the next call of schedule, join or done cancels the steps that wait
 * or run, and returns that error, once; then the coordinator is as good as new. The results of each step say what
 * became of it. A step that ends as CANCELLED has changed no variable on a server and never will, so that it may be scheduled
 * again; a step that had begun to change variables runs to its end instead. A step that computes is stopped before its next
 * kernel: the call that cancels it waits for a kernel that runs, and for no more. A parameter server that is lost is the end: every call says so.
 *
 * Any thread may call these functions.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef COHORT_COORDINATOR_H
#define COHORT_COORDINATOR_H

#include "cohort/dataset.h"
#include "cohort/strategy.h"

typedef struct ch_coordinator ch_coordinator;
typedef struct ch_remote      ch_remote;     /* results that may not be there yet */
typedef struct ch_per_worker  ch_per_worker; /* something of which every worker has its own */

typedef enum ch_coordinator_mode {
    CH_ASYNCHRONOUS, /* a step begins when a worker is free */
    /* A step begins when all those have ended that were scheduled more than `staleness` steps before it. */
    CH_BOUNDED_STALENESS,
    /* Steps come in rounds, counted from the last join, or from the last call that returned a step's error: those of a round read the variables as they were when it began, and
     * the next round begins when all of them have ended. */
    CH_SYNCHRONOUS
} ch_coordinator_mode;

typedef struct ch_coordinator_options {
    ch_coordinator_mode mode;
    int     staleness;      /* of CH_BOUNDED_STALENESS; 0: each step sees all before it */
    int     round;          /* of CH_SYNCHRONOUS: steps in a round; 0: one for each worker */
    int64_t capacity;       /* steps that may wait; with so many, schedule waits; 0: 262144 */
    int64_t capacity_bytes; /* the same of their inputs, counted for each step; one step more
                             * goes, however large; 0: 1 GiB */
    bool backups; /* a step that takes long is also given to a worker that has nothing to do */
    /* Seconds that a step may take on its worker, counted from the end of the step before it; 0: COHORT_WAIT_LIMIT_MS. A step
     * that takes longer fails with DEADLINE_EXCEEDED. Its worker is told to stop, which it does before its next kernel, and gets no other steps until then. */
    double step_seconds;
} ch_coordinator_options;

/* The coordinator of a strategy, the same one each time; options are those of the first call, and other ones later are
 * FAILED_PRECONDITION (NULL: whatever they are). INVALID_ARGUMENT for a strategy without parameter servers. */
CH_API CH_MUST_CHECK ch_status ch_coordinator_new(ch_strategy                  *st,
                                                  const ch_coordinator_options *opt,
                                                  ch_coordinator              **out);
CH_API ch_coordinator         *ch_coordinator_ref(ch_coordinator *c);
CH_API void                    ch_coordinator_unref(ch_coordinator *c);
CH_API ch_strategy            *ch_coordinator_strategy(const ch_coordinator *c);

/* ---- steps ---- */

/* The inputs of a step: the leaves of `in`, then for each of `each` what the worker has that runs it: the next element, or its
 * value. */
typedef struct ch_arguments {
    ch_tuple             *in; /* may be NULL */
    int                   n_each;
    ch_per_worker *const *each;
} ch_arguments;

/* Returns at once, unless the queue is full. `args` may be NULL; `out` too, and then results are not sent. The step is recorded here, so what is
 * wrong with it is this call's error. Until it has ended the tensors of `in` are not to be written to (they are not copied: make others for
 * the next step), and the variables that it uses are not to be freed. */
CH_API CH_MUST_CHECK ch_status ch_coordinator_schedule(ch_coordinator *c, ch_function *f,
                                                       const ch_arguments *args,
                                                       ch_remote         **out);
/* Returns when nothing waits or runs. */
CH_API CH_MUST_CHECK ch_status ch_coordinator_join(ch_coordinator *c);
/* Waits so many seconds at most; 0: not at all. DEADLINE_EXCEEDED if steps wait or run then: these go on, and the next join
 * waits for them. An error of a step that could not be reported in that time is reported by the next call. */
CH_API CH_MUST_CHECK ch_status ch_coordinator_join_for(ch_coordinator *c, double seconds);
/* Cancels all steps that wait or run, except those that have begun to change variables, which run to their end. Returns at
 * once; join waits for them, and returns CH_OK if no other step has failed. */
CH_API CH_MUST_CHECK ch_status ch_coordinator_cancel(ch_coordinator *c);
/* Whether nothing waits or runs. */
CH_API CH_MUST_CHECK ch_status ch_coordinator_done(ch_coordinator *c, bool *out);

/* The results of a step, for which it waits; the step's error, or CANCELLED if it did not run to its end. A step without results gives an
 * empty tuple. */
CH_API CH_MUST_CHECK ch_status ch_remote_fetch(ch_remote *r, ch_tuple **out);
/* Waits so many seconds at most; 0: not at all. DEADLINE_EXCEEDED if the step has not ended then; it goes on. */
CH_API CH_MUST_CHECK ch_status ch_remote_fetch_for(ch_remote *r, double seconds,
                                                   ch_tuple **out);
/* Cancels the step, unless it has ended or has begun to change variables. Returns at once. ch_remote_fetch waits for the
 * step and says what became of it: CANCELLED if it has changed nothing. That is no error of join. */
CH_API CH_MUST_CHECK ch_status ch_remote_cancel(ch_remote *r);
/* Returns the number of the step, as errors say it: counted from 1, unique for its coordinator. 0: r is NULL. */
CH_API long long  ch_remote_step(const ch_remote *r);
CH_API bool       ch_remote_has_ended(const ch_remote *r);
CH_API ch_remote *ch_remote_ref(ch_remote *r);
CH_API void       ch_remote_unref(ch_remote *r);
/* Several; on an error none. */
CH_API CH_MUST_CHECK ch_status ch_coordinator_fetch(ch_coordinator *c, int n,
                                                    ch_remote *const *r, ch_tuple **out);

/* ---- what every worker has ----
 *
 * It is made for the workers that there are. One that is added later, number n of them, has a share in what worker n mod so many has. */

/* The whole dataset for each worker, described and not read here. What is read of it survives the worker: the next one goes on where it
 * was. A pipeline with C functions in it cannot be sent: UNIMPLEMENTED names the stage. */
CH_API CH_MUST_CHECK ch_status ch_coordinator_create_per_worker_dataset(ch_coordinator *c,
                                                                        ch_dataset     *d,
                                                                        ch_per_worker **out);
/* What `fn` makes, called once for each worker. As elsewhere it is left as it is, neither cut nor divided: element k goes to the worker's
 * replica k mod devices. A worker is a job of its own to it: its context has one pipeline, and as replicas the worker's devices, so that
 * ch_input_context_batch_size divides a batch among these alone. Who divides data among workers goes by `worker` and `n_workers`. */
CH_API CH_MUST_CHECK ch_status ch_coordinator_create_per_worker_dataset_from_function(
    ch_coordinator *c, ch_input_fn fn, void *arg, ch_per_worker **out);
/* One dataset, of which each element is given to one step, whichever worker runs it: once in a pass, also when workers
 * are lost. Each worker has a part: files of its own, where there are enough and batches need not be full (a part then ends
 * with a batch of its own, which may be short); else every n-th element, of which the batches and maps before it are computed by nobody
 * else. Policies of ch_dataset_options that would give an example twice are not followed. The log says which it is, and why ("autoshard"). */
CH_API CH_MUST_CHECK ch_status ch_coordinator_distribute_dataset(ch_coordinator *c,
                                                                 ch_dataset     *d,
                                                                 ch_per_worker **out);
/* Begins a new pass over the dataset, on every worker. A step that finds no element left fails with OUT_OF_RANGE.
 *
 * Every worker, pass and epoch (of ch_dataset_repeat) has random numbers of its own, for shuffles and for random ops of maps. They do
 * not depend on which worker runs a step: after the loss of a worker the others read its data in the same order. Below a
 * ch_dataset_shard all workers draw alike, so that their shards are disjoint. */
CH_API CH_MUST_CHECK ch_status ch_per_worker_iterate(ch_per_worker  *dataset,
                                                     ch_per_worker **out);
/* A tuple for each worker, from a function that is called for each of them here (`replica` of its context is the worker's number). A plain
 * leaf is what all replicas of the worker get; one with as many components as a worker has devices gives each its own. */
CH_API CH_MUST_CHECK ch_status ch_coordinator_create_per_worker_values(ch_coordinator *c,
                                                                       ch_value_fn     fn,
                                                                       void           *arg,
                                                                       ch_per_worker **out);
CH_API ch_per_worker          *ch_per_worker_ref(ch_per_worker *p);
CH_API void                    ch_per_worker_unref(ch_per_worker *p);

/* ---- what is going on ---- */

typedef struct ch_coordinator_stats {
    int64_t queued, running;             /* steps, now */
    int64_t finished, failed, cancelled; /* steps, ever */
    int64_t
        repeated;    /* attempts that had to be made again, since a worker or a word was lost */
    int64_t backups; /* attempts beside a slow one */
    int64_t workers_lost;   /* how often one was given up */
    int     workers, ready; /* workers, and those that take steps now */
    int64_t moved;          /* steps that an idle worker took from behind a slow one */
    int     last_lost;      /* index of the worker that was given up last; -1: none was */
} ch_coordinator_stats;

/* Of one worker. */
typedef struct ch_worker_stats {
    bool    is_ready; /* takes steps now: it answers, and computes no step that took too long */
    int64_t running;  /* steps that it has now */
    int64_t finished; /* steps that it ended well, ever */
    int64_t lost;     /* how often it was given up */
} ch_worker_stats;

CH_API CH_MUST_CHECK ch_status ch_coordinator_get_stats(ch_coordinator       *c,
                                                        ch_coordinator_stats *out);
/* Worker 0 is task "worker/0" of the cluster. INVALID_ARGUMENT if there is no such worker. */
CH_API CH_MUST_CHECK ch_status ch_coordinator_get_worker_stats(ch_coordinator *c, int worker,
                                                               ch_worker_stats *out);

#endif
