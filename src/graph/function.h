/* graph/function.h -- the inside of a function: what it has recorded and prepared.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef GRAPH_FUNCTION_H
#define GRAPH_FUNCTION_H

#include <pthread.h>

#include "cohort/function.h"
#include "graph/program.h"
#include "graph/run.h"
#include "graph/turns.h"

#define CH_MAX_PROGRAMS   64
#define CH_MAX_RECORDINGS 64

/* The inputs of a run: contiguous, on their devices. */
typedef struct ch_args {
    int         n_in, n_local, n_replicas;
    ch_tensor **tensor; /* [replica * n_in + input] */
    ch_shape   *shape; /* likewise: the sizes to plan for, which may have room (graph/room.h) */
} ch_args;

typedef struct ch_recording {
    struct ch_recording *next; /* in the function, most recently used first */
    void                *owner;
    ch_speaks_of         speaks_of;
    int                  n_in, n_replicas;
    ch_dtype            *dtype;
    ch_dims             *dims;
    bool                *may_have_room; /* of each input: it may have room (graph/room.h) */
    ch_graph            *graph;
} ch_recording;

/* A graph made ready for one signature on given devices: a program for each variant, an
 * instance for each replica, and the results that come back to be used again. */
typedef struct ch_prepared {
    atomic_int          refs;
    struct ch_prepared *next;  /* in the function, most recently used first */
    ch_graph           *graph; /* referenced */
    bool                watched;
    int                 n_local, n_in, n_out;
    ch_value_kind       kind; /* of results */
    ch_device         **device;
    ch_shape           *shape; /* of the inputs, as ch_args orders them; with room */
    void          **staged; /* likewise: copies of inputs that have no room; NULL: none yet */
    int            *live_input;   /* of each output: the input whose live rows it has; -1: all rows */
    int             n_variants;
    int            *variant;    /* of each replica */
    ch_program    **program;    /* of each variant */
    ch_instance   **instance;   /* of each replica */
    void          **resource;   /* [replica * n_resources + i] */
    unsigned        generation; /* of the owner's variables when those were looked up */
    bool            has_resources;
    pthread_mutex_t lock; /* of the free results */
    struct ch_result_set *free_result_sets;
    void                 *run_memory; /* run.c's, while it holds the devices */
    bool     needs_threads;     /* its replicas cannot run in turns: see ch__graph_calls_host */
    ch_turns turns;             /* else: whether they do, guarded as `room` is */
} ch_prepared;

ch_status    ch__prepared_new(ch_graph *g, const ch_run *run, const ch_args *a, bool watched,
                              ch_prepared **out);
ch_prepared *ch__prepared_ref(ch_prepared *p);
void         ch__prepared_unref(ch_prepared *p);

/* A set of results: a tuple, its values, their tensors and buffers in one piece. It goes back
 * to where it came from when the last of them is let go. */
ch_status  ch__result_set_get(ch_prepared *p, struct ch_result_set **out);
ch_tuple  *ch__result_set_tuple(struct ch_result_set *k); /* the one reference to it */
void      *ch__result_set_data(struct ch_result_set *k, int replica, int output);
ch_tensor *ch__result_set_tensor(struct ch_result_set *k, int replica, int output);

struct ch_function {
    atomic_int      refs;
    char           *name;
    ch_step_fn      step;
    void           *arg;
    ch_graph       *fixed_graph; /* instead of a step */
    bool           *fixed_may_have_room;
    pthread_mutex_t lock; /* of all that follows */
    bool            static_rows;
    atomic_bool     is_recording;
    pthread_t       recorder;
    ch_recording   *recordings;
    int             n_cached_recordings;       /* of those */
    int             n_recordings; /* ever made */
    ch_prepared    *programs;
    int             n_programs;
    ch_graph       *last_graph;
    ch_program     *last_program;
    int64_t         n_runs;
    int64_t         planning_ns; /* spent on recording and planning, ever */
    ch_node_see     see;
    void           *see_arg;
};

/* Has the function run this graph, which it references, instead of a step. */
ch_status ch__function_set_graph(ch_function *f, ch_graph *g);
/* Nanoseconds that were spent on recording, specialising and planning, ever. */
int64_t ch__function_planning_ns(ch_function *f);

/* With the function's lock held. *may_have_room: for each input, whether it may have room; the
 * recording's. */
ch_status ch__function_record(ch_function *f, const ch_run *run, const ch_args *a,
                              ch_graph **out, const bool **may_have_room);
/* Sets a->shape: the sizes of the inputs, rounded up where they may have room. */
void      ch__function_shapes(const ch_function *f, const ch_graph *g, const bool *may_have_room,
                              ch_args *a);
ch_status ch__function_prepare(ch_function *f, ch_graph *g, const ch_run *run, const ch_args *a,
                               ch_prepared **out);

#endif
