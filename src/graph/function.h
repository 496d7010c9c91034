/* graph/function.h -- private structs of functions: recordings, prepared graphs and result
 * sets.
 *
 * A ch_function has a step (or a fixed graph), a cache of recordings, and a cache of prepared
 * graphs. graph/function.c creates functions and caches prepared graphs, graph/recording.c
 * records steps and caches the recordings, graph/prepared.c makes prepared graphs,
 * graph/result_set.c the memory of their results. graph/run.c uses all of them for a run.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_FUNCTION_H
#define GRAPH_FUNCTION_H

#include <pthread.h>

#include "cohort/function.h"
#include "graph/program.h"
#include "graph/run.h"
#include "graph/turns.h"

/* The largest number of prepared graphs and recordings that a function keeps. */
#define CH_MAX_PROGRAMS   64
#define CH_MAX_RECORDINGS 64

/* The inputs of a run: contiguous tensors on the devices of their replicas. */
typedef struct ch_args {
    int         n_in, n_local, n_replicas;
    ch_tensor **tensor; /* [replica * n_in + input] */
    ch_shape   *shape;  /* same order: sizes to plan for, with room (graph/room.h) */
} ch_args;

/* A graph and the kinds of inputs that it was recorded for. */
typedef struct ch_recording {
    struct ch_recording *next; /* in the function's list, most recently used first */
    void                *owner;
    ch_step_context      context;
    int                  n_in, n_replicas;
    ch_dtype            *dtype;
    ch_dims             *dims;
    bool                *may_have_room; /* by input: axis 0 may have room (graph/room.h) */
    ch_graph            *graph;
} ch_recording;

void ch__recording_free(ch_recording *r);

/* A graph that is ready to run with given input shapes on given devices: an instance for each
 * member of the run (graph/run.h), a program for each different graph of members, and a pool of
 * result sets. Replicas of one core with equal shapes have the same graph. */
typedef struct ch_prepared {
    atomic_int          refs;
    struct ch_prepared *next;    /* in the function's list, most recently used first */
    ch_graph           *graph;   /* the recorded graph, referenced */
    bool                watched; /* a user observes all nodes (ch_function_watch) */
    int                 n_local, n_cores, n_members, n_in, n_out;
    ch_value_kind       kind;   /* kind of the results */
    ch_device         **device; /* by member */
    ch_shape *shape; /* shapes of the inputs with room, in the order of ch_args.tensor */
    /* same order: copies of inputs whose memory has no room; NULL: not allocated yet */
    void **staged;
    /* by output: the input whose live rows the output has; -1: all rows are live */
    int          *live_input;
    int           n_variants;
    int          *variant; /* by replica; replicas with equal shapes share a variant */
    ch_shape     *out;     /* [variant * n_out + output]: shapes of the results */
    int           n_programs;
    ch_program  **program;
    int          *which;    /* by member: its program */
    ch_instance **instance; /* by member, in instances */
    void         *instances;
    bool          writes;  /* some program writes resources: members pass a barrier before */
    int           n_calls; /* calls of replica 0 before the division, without its sources */
    void         *report;  /* of ch_run_ops.partition; NULL: none */
    void (*report_free)(void *report);
    /* What the collectives between replicas will count in CH_TRAFFIC_CROSS, over all members;
     * and what all kernels counted in the last run, over the cores of local replica 0 or, of
     * CH_TRAFFIC_CROSS, over all members. Guarded by holding the devices. */
    int64_t           cross_calls, cross_bytes;
    ch_traffic_counts traffic;
    /* by member: executes the calls of shared resources for other members (plan_shared.c) */
    bool  *is_first;
    void **resource; /* [member * n_resources + i]: storage of the variables; NULL: not used */
    uint64_t             *layout;    /* by resource: ch_resource.layout */
    ch_row_marks        **marks;     /* by resource: its marks; NULL: its rows are not marked */
    pthread_mutex_t       marking;   /* guards `marks`, if replica 0 has several cores */
    bool                  has_marks; /* some element of `marks` is not NULL */
    unsigned              generation; /* ch_run.generation when these were set */
    bool                  has_resources;
    pthread_mutex_t       lock; /* guards free_result_sets */
    struct ch_result_set *free_result_sets;
    /* memory for pointers and jobs of a run; guarded by holding the devices */
    void    *run_memory;
    bool     needs_threads; /* members must not run in turns (ch__graph_calls_host) */
    ch_turns turns;         /* choice between threads and turns; guarded as run_memory is */
} ch_prepared;

/* Specialises g and plans its programs. The caller must unref *out. */
ch_status    ch__prepared_new(ch_graph *g, const bool *may_have_room, const ch_run *run,
                              const ch_args *a, bool watched, ch_prepared **out);
ch_prepared *ch__prepared_ref(ch_prepared *p);
void         ch__prepared_unref(ch_prepared *p);

/* A result set is the tuple, values, tensors and buffers of the results of a run. When all
 * references to them are given up, the set returns to the pool of its prepared graph.
 *
 * ch__result_set_get takes a set from the pool, or allocates it. */
ch_status ch__result_set_get(ch_prepared *p, struct ch_result_set **out);
/* Returns the tuple. The caller owns its only reference. */
ch_tuple *ch__result_set_tuple(struct ch_result_set *k);
/* Return the memory and the tensor of an output for a replica. */
void      *ch__result_set_data(struct ch_result_set *k, int replica, int output);
ch_tensor *ch__result_set_tensor(struct ch_result_set *k, int replica, int output);
/* Frees the sets in the pool of p. */
void ch__result_sets_free(ch_prepared *p);

struct ch_function {
    atomic_int refs;
    char      *name;
    ch_step_fn step;
    void      *arg;
    ch_graph  *fixed_graph;         /* graph that is used instead of a step; NULL: none */
    bool      *fixed_may_have_room; /* by input of fixed_graph */
    /* record axis 0 of inputs as a number too; atomic, because a step may set it while the
     * function is recorded */
    atomic_bool     static_rows;
    pthread_mutex_t lock; /* guards the members below */
    atomic_bool     is_recording;
    pthread_t       recorder; /* thread that records, if is_recording */
    ch_recording   *recordings;
    int             n_cached_recordings; /* length of `recordings` */
    int             n_recordings;        /* number of recordings ever made */
    ch_prepared    *programs;
    int             n_programs;
    int             n_resized;  /* programs made because a size changed that is no capacity */
    ch_graph       *last_graph; /* graph and prepared graph of the last run, referenced */
    ch_prepared    *last_prepared;
    /* runs that have started; the number of the next run */
    atomic_int_least64_t n_runs;
    int64_t              planning_ns; /* total time of recording and planning in ns */
    ch_node_see          see;
    void                *see_arg;
};

/* Makes the function run graph g, which it references, instead of its step. */
ch_status ch__function_set_graph(ch_function *f, ch_graph *g);
/* Returns the prepared graph of the last run, which the caller must unref. NULL: the function
 * has not run. */
ch_prepared *ch__function_last(ch_function *f);
/* Sets *out to the counts of the last run (ch_prepared.traffic); zeros before a run. */
void ch__function_traffic(ch_function *f, ch_traffic_counts *out);
/* Returns the total time of recording, specialising and planning in ns. */
int64_t ch__function_planning_ns(ch_function *f);

/* Finds the recording for these inputs, or records the step. Sets *out to the graph, and
 * *may_have_room to an array by input; both are borrowed. The caller must hold the function's
 * lock. */
ch_status ch__function_record(ch_function *f, const ch_run *run, const ch_args *a,
                              ch_graph **out, const bool **may_have_room);
/* Returns true if runs of the function are observed, so that its programs keep all values. */
bool ch__function_is_watched(const ch_function *f);
/* Sets a->shape: the sizes of the inputs, rounded up to a capacity if they may have room. */
void ch__function_shapes(const ch_function *f, const ch_graph *g, const bool *may_have_room,
                         ch_args *a);
/* Finds the prepared graph for these inputs and devices, or makes it. May raise capacities in
 * a->shape to those of a prepared graph. *out is borrowed. The caller must hold the function's
 * lock. */
ch_status ch__function_prepare(ch_function *f, ch_graph *g, const bool *may_have_room,
                               const ch_run *run, const ch_args *a, ch_prepared **out);

#endif
