/* strategy/parameter_server.h -- the inside of the parameter-server strategy, for the coordinator's calls.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef STRATEGY_PARAMETER_SERVER_H
#define STRATEGY_PARAMETER_SERVER_H

#include "cohort/parameter_server.h"
#include "graph/run.h"
#include "job/coordinator.h"
#include "job/local_cluster.h"
#include "strategy/strategy.h"

typedef struct ch_ps_function ch_ps_function; /* a graph that workers can be told */

typedef struct ch_ps {
    ch_strategy   *strategy; /* whose `self` this is */
    ch_resolver   *cluster;  /* referenced */
    ch_local      *local;
    ch_task       *chief;
    int            n_servers, n_devices;
    ch_device     *device[64]; /* of worker 0: replicas */
    ch_device    **server_device;
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
                                       const ch_parcel *p, ch_tuple **out);

/* The tensors that a step is ordered with (ch_order): the leaves of its tuple, shared by a worker's replicas or one
 * replica's after the other's, and then the values that the variables of Default which its graph reads have now.
 * These are inputs of the step as workers run it. Every attempt gets the same tensors. */
typedef struct ch_ps_inputs {
    int         n_in, n_inputs, n_shared; /* as of ch_order */
    ch_tensor **in;                       /* the shared ones are referenced */
    ch_tensor  *few[16];                  /* `in`, if they are enough */
} ch_ps_inputs;

/* `in` may be NULL. After an error there is nothing to drop. */
CH_MUST_CHECK ch_status   ch__ps_inputs_take(const ch_ps *ps, const ch_graph *g,
                                             const ch_tuple *in, ch_ps_inputs *out);
void                      ch__ps_inputs_drop(ch_ps_inputs *i);
extern const ch_away_runs ch__ps_runs;

/* ---- where variables are (parameter_server_vars.c) ---- */

/* A variable of a server, or a shard of one: of a variable that is in shards, both it and its part have it. */
typedef struct ch_ps_store {
    atomic_int refs;
    ch_ps     *ps;
    int        server;
    uint64_t   number;
    int64_t    bytes;
} ch_ps_store;

typedef struct ch_ps_place {
    int          axis, n;
    ch_function *change[2]; /* adds, takes away; NULL: not made yet */
    struct ch_ps_change {
        ch_var *var;
        bool    takes_away;
    } arg[2];
    ch_ps_store *store[]; /* of each shard */
} ch_ps_place;

extern const ch_away_vars ch__ps_vars;

/* ---- variables of which each worker has its own (parameter_server_each.c) ---- */

typedef struct ch_ps_each {
    ch_ps     *ps;
    uint64_t   number;  /* by which workers know it */
    ch_tensor *initial; /* what theirs begin as; nobody changes it */
} ch_ps_each;

/* v->each, and the copy that is here. */
CH_MUST_CHECK ch_status ch__ps_each_create(ch_ps *ps, ch_var *v, const ch_tensor *initial);
void                    ch__ps_each_drop(ch_var *v);
/* The graph of a step with these variables as its resources as workers run it: only those on servers are resources. Behind its
 * inputs come the variables of Default, then those of each worker's own that it reads; behind its results come the values
 * that it assigns to the latter. */
CH_MUST_CHECK ch_status ch__ps_worker_graph(const ch_graph *g, ch_var *const *var,
                                            ch_graph **out);
/* The variables of each worker's own, in the same order: how many; `out` has room for all resources. */
int ch__ps_each_list(const ch_graph *g, ch_var *const *var, ch_kept_spec *out);

#endif
