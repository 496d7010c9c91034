/* strategy/coordinator.h -- private structs of the public coordinator: coordinator.c and
 * per_worker_data.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef STRATEGY_COORDINATOR_H
#define STRATEGY_COORDINATOR_H

#include "cohort/coordinator.h"
#include "strategy/parameter_server.h"

struct ch_coordinator {
    atomic_int   refs;
    ch_strategy *strategy; /* referenced */
    ch_ps       *ps;
};

/* A per-worker dataset, an iteration over it, or per-worker values. */
struct ch_per_worker {
    atomic_int      refs;
    ch_coordinator *coordinator; /* referenced */
    int             n_streams;   /* number of entries of dataset; 0: not a dataset */
    ch_tensor     **dataset;     /* encoded dataset of each worker, as u8 tensors */
    /* is_shared: the streams are parts of one dataset. rows_unknown: axis 0 of a component is
     * unknown. */
    bool         is_shared, rows_unknown;
    atomic_llong n_passes; /* number of iterations that were created */
    /* Of a dataset: the dataset that is divided, referenced; NULL: the workers' datasets are
     * whole, or the program's function has made them (is_from_function). */
    ch_dataset *divided;
    bool        is_from_function;
    /* Of a dataset: its newest iteration, not referenced; NULL: that was freed. And the worker
     * input of a restored pass, with which the next iteration begins; NULL: none. Both may be
     * used only after ch__task_enter(ps->coord). */
    ch_per_worker   *newest;
    ch_worker_input *restored;
    ch_per_worker   *parent; /* of an iteration: its dataset, referenced; else NULL */
    ch_worker_input *input;  /* of an iteration or of values; NULL: a dataset */
    int              width;  /* number of components of an element */
    /* A value with the dtype and shape of each component. Steps are recorded with these. */
    ch_value **sample;
    char     **name;
};

#endif
