/* strategy/parameter_server.h -- the inside of the parameter-server strategy, for the coordinator's calls.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef STRATEGY_PARAMETER_SERVER_H
#define STRATEGY_PARAMETER_SERVER_H

#include "cohort/parameter_server.h"
#include "graph/run.h"
#include "job/coordinator.h"
#include "job/local_cluster.h"
#include "job/step_plan.h"
#include "strategy/strategy.h"

typedef struct ch_ps_function ch_ps_function; /* a graph that workers can be told */

typedef struct ch_ps {
    ch_strategy      *strategy; /* whose `self` this is */
    ch_resolver      *cluster;  /* referenced */
    ch_local_cluster *local;
    ch_task          *coord;
    int               n_servers, n_devices;
    ch_device        *device[64]; /* of worker 0: replicas */
    ch_device       **server_device;
    ch_device *
        own_device; /* of the coordinator: holds the program's copies of per-worker variables */
    ch_partitioner partitioner;
    ch_placement   placement;
    /* In the chief's turn. */
    int                    next;  /* the server for what comes next */
    int64_t               *bytes; /* that each has */
    ch_ps_function        *functions;
    int                    n_functions;
    ch_coordinator        *coordinator; /* not referenced; NULL: there is none */
    bool                   has_options;
    ch_coordinator_options options;
} ch_ps;

/* NULL: it is a strategy of another kind. */
ch_ps *ch__ps_of(const ch_strategy *st);
/* The number that workers know the graph of a run by. (parameter_server_run.c) */
CH_MUST_CHECK ch_status ch__ps_function(ch_ps *ps, ch_graph *g, uint64_t *number);
void                    ch__ps_functions_drop(ch_ps *ps);
/* A step's results. */
CH_MUST_CHECK ch_status ch__ps_results(const ch_ps *ps, const ch_graph *g, int n,
                                       const ch_message *p, ch_tuple **out);

/* The tensors that a step is ordered with (ch_step_request): the leaves of its tuple, shared by a worker's replicas or one
 * replica's after the other's, and then the values that the variables of Default which its graph reads have now.
 * These are inputs of the step as workers run it. Every attempt gets the same tensors. */
typedef struct ch_ps_inputs {
    int         n_in, n_inputs, n_shared; /* as of ch_step_request */
    ch_tensor **in;                       /* the shared ones are referenced */
    ch_tensor  *few[16];                  /* `in`, if they are enough */
} ch_ps_inputs;

/* `in` may be NULL. After an error there is nothing to drop. */
CH_MUST_CHECK ch_status  ch__ps_inputs_read(const ch_ps *ps, const ch_graph *g,
                                            const ch_tuple *in, ch_ps_inputs *out);
void                     ch__ps_inputs_drop(ch_ps_inputs *i);
extern const ch_exec_ops ch__ps_exec;

/* ---- variables (parameter_server_vars.c, parameter_server_per_worker.c) ---- */

/* A variable of a server: a shard of a variable, or all of it. A variable that is divided and the variable of its shard
 * share one. */
typedef struct ch_ps_shard {
    atomic_int refs;
    ch_ps     *ps;
    int64_t    bytes;

    struct ch_plan_shard at; /* its server, and its number there */
} ch_ps_shard;

/* The storage of a variable: v->storage. A per-worker variable has no shards. Its copy in this process belongs to the program,
 * and each worker has one of its own. */
typedef struct ch_ps_var {
    ch_ps *ps;
    /* Of a per-worker variable. */
    uint64_t   number;  /* by which workers know it */
    ch_tensor *initial; /* the value that the workers' copies begin with; never changed */
    /* Of a variable on servers. */
    ch_function *change[2]; /* adds, subtracts; NULL: not made yet */
    struct ch_ps_change {
        ch_var *var;
        bool    subtract;
    } arg[2];
    ch_plan_variable      where;   /* n_shards 0: it is per-worker */
    struct ch_plan_shard *at;      /* where.shard: the `at` of each shard */
    ch_ps_shard          *shard[]; /* of each part of the layout */
} ch_ps_var;

static inline bool ch__ps_is_per_worker(const ch_var *v)
{
    return ((const ch_ps_var *)v->storage)->where.n_shards == 0;
}

/* Chooses the layout of a variable: ch_strategy_ops.place. */
ch_status               ch__ps_placement(void *self, const ch_var_spec *spec, ch_layout *out);
extern const ch_var_ops ch__ps_var_ops;

ch_status ch__ps_per_worker_create(ch_ps *ps, ch_var *v, const ch_tensor *initial);
void      ch__ps_per_worker_free(ch_ps_var *s);
/* Reads the copies of all workers; the initial value for a worker that has none. */
ch_status ch__ps_per_worker_read(ch_var *v, ch_tuple **out);
/* The graph of a step with these variables as its resources as workers run it: only those on servers are resources. Behind its
 * inputs come the variables of Default, then those of each worker's own that it reads; behind its results come the values
 * that it assigns to the latter. */
CH_MUST_CHECK ch_status ch__ps_worker_graph(const ch_graph *g, ch_var *const *var,
                                            ch_graph **out);
/* The variables of each worker's own, in the same order: how many; `out` has room for all resources. */
int ch__ps_per_worker_list(const ch_graph *g, ch_var *const *var, ch_per_worker_spec *out);

#endif
