/* strategy/parameter_server.h -- private definitions of the parameter-server strategy.
 *
 * ch_ps is the strategy, ch_ps_function a graph that was sent to the coordinator task,
 * ch_ps_var the storage of a variable. parameter_server.c creates the strategy,
 * parameter_server_vars.c and parameter_server_per_worker.c implement its variables,
 * parameter_server_function.c makes the functions that workers run, parameter_server_run.c runs
 * steps. strategy/coordinator.c is the public ch_coordinator on top of them.
 *
 * Locking: a section between ch__task_enter(ps->coord) and ch__task_leave protects the fields
 * of ch_ps that are marked below. The coordinator task must not be entered twice by the same
 * thread.
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

/* A graph that was sent to the coordinator task, and its number there. */
typedef struct ch_ps_function ch_ps_function;

typedef struct ch_ps {
    ch_strategy      *strategy; /* the strategy that has this struct as its `self` */
    ch_resolver      *cluster;  /* referenced */
    ch_local_cluster *local;
    ch_task          *coord;
    int         n_servers, n_devices; /* number of servers, and of devices of each worker */
    ch_device  *device[64];           /* devices of worker 0; one replica on each */
    ch_device **server_device;        /* device of each parameter server */
    /* Device of the coordinator; holds the program's copies of per-worker variables. */
    ch_device     *own_device;
    ch_partitioner partitioner;
    ch_placement   placement;
    /* The following fields may be used only after ch__task_enter(coord). */
    int             next;  /* server of the next variable or shard, for CH_PLACE_ROUND_ROBIN */
    int64_t        *bytes; /* bytes of variables on each server */
    ch_ps_function *functions;
    int             n_functions;
    ch_coordinator *coordinator; /* not referenced; NULL: there is none */
    bool            has_options; /* true: ch_coordinator_new has set `options` */
    ch_coordinator_options options;
} ch_ps;

/* Returns the ch_ps of a strategy, or NULL if it is a strategy of another kind. */
ch_ps *ch__ps_of(const ch_strategy *st);
/* Stores the number of the function that workers run for graph `g`. Makes and sends the step
 * plan if the graph is new or its variables have changed. (parameter_server_function.c) */
CH_MUST_CHECK ch_status ch__ps_function(ch_ps *ps, ch_graph *g, uint64_t *number);
/* Frees all functions. Called when the strategy is freed. */
void ch__ps_functions_drop(ch_ps *ps);
/* Makes a tuple of the results of a step from the reply `p` of a worker. The tuple has
 * components for the first n replicas. */
CH_MUST_CHECK ch_status ch__ps_results(const ch_ps *ps, const ch_graph *g, int n,
                                       const ch_message *p, ch_tuple **out);

/* The input tensors of a step request (ch_step_request). First come the leaves of the step's
 * tuple: shared by the replicas of a worker, or the leaves of one replica after those of
 * another. Then come the values of the variables of Default that the graph reads. Workers treat
 * them as inputs of the step. Every attempt of the step uses the same tensors. */
typedef struct ch_ps_inputs {
    int         n_in, n_inputs, n_shared; /* as in ch_step_request */
    ch_tensor **in; /* the last n_shared tensors are referenced, the others borrowed */
    ch_tensor  *inline_in[16]; /* storage of `in` if it is large enough */
} ch_ps_inputs;

/* Fills *out from the leaves of `in`, which may be NULL. On success the caller must call
 * ch__ps_inputs_drop, on an error not. */
CH_MUST_CHECK ch_status  ch__ps_inputs_read(const ch_ps *ps, const ch_graph *g,
                                            const ch_tuple *in, ch_ps_inputs *out);
void                     ch__ps_inputs_drop(ch_ps_inputs *i);
extern const ch_exec_ops ch__ps_exec;

/* ---- variables (parameter_server_vars.c, parameter_server_per_worker.c) ---- */

/* A shard on a server, or a whole variable that is not divided. A divided variable and the
 * variable of its shard share a ch_ps_shard. */
typedef struct ch_ps_shard {
    atomic_int refs;
    ch_ps     *ps;
    int64_t    bytes; /* size of the shard */

    struct ch_plan_shard at; /* its server, and its number there */
} ch_ps_shard;

/* The storage of a variable (v->storage). A per-worker variable has no shards: the program has
 * a copy in v->copy[0], and each worker has its own copy. */
typedef struct ch_ps_var {
    ch_ps *ps;
    /* Fields of a per-worker variable: */
    uint64_t   number;  /* number of the variable on the workers */
    ch_tensor *initial; /* initial value of the workers' copies; the tensor is never changed */
    /* Fields of a variable on servers: */
    /* Steps that add to the variable and subtract from it; NULL: not made yet. The coordinator
     * task protects them. */
    ch_function *change[2];
    struct ch_ps_change {
        ch_var *var;
        bool    subtract;
    } arg[2];
    ch_plan_variable on_servers;   /* description for step plans; n_shards is 0 if per-worker */
    struct ch_plan_shard *at;      /* array of on_servers.shard: the `at` of each shard */
    ch_ps_shard          *shard[]; /* one for each part of the layout, referenced */
} ch_ps_var;

/* Returns true if v is a per-worker variable. v->storage must exist. */
static inline bool ch__ps_is_per_worker(const ch_var *v)
{
    return ((const ch_ps_var *)v->storage)->on_servers.n_shards == 0;
}

/* Chooses the layout of a variable (ch_strategy_ops.place): the partitioner gives the parts,
 * the placement option a server for each part. */
ch_status               ch__ps_placement(void *self, const ch_var_spec *spec, ch_layout *out);
extern const ch_var_ops ch__ps_var_ops;

/* Create and free the storage of a per-worker variable. `initial` is copied. */
ch_status ch__ps_per_worker_create(ch_ps *ps, ch_var *v, const ch_tensor *initial);
void      ch__ps_per_worker_free(ch_ps_var *s);
/* Implements ch_var_ops.restart. */
void ch__ps_per_worker_restart(ch_var *v, ch_tensor *initial);
/* Reads the copies of all workers. A worker without a copy is reported with the initial
 * value. */
ch_status ch__ps_per_worker_read(ch_var *v, ch_tuple **out);
/* Makes the graph that workers run from the recorded graph `g`; var[i] is the variable of
 * resource i. Only variables on servers stay resources. After the inputs of `g` come inputs for
 * the variables of Default, then inputs for the per-worker variables that are read. After the
 * results of `g` come the new values of the per-worker variables that are written. */
CH_MUST_CHECK ch_status ch__ps_worker_graph(const ch_graph *g, ch_var *const *var,
                                            ch_graph **out);
/* Lists the per-worker variables of `g`, in the order of ch__ps_worker_graph, and returns their
 * number. `out` must have room for all resources of `g`. */
int ch__ps_per_worker_list(const ch_graph *g, ch_var *const *var, ch_per_worker_spec *out);

#endif
