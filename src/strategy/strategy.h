/* strategy/strategy.h -- the inside of a strategy: its devices, its variables, how they meet.
 *
 * A strategy of this process is its list of devices: one replica on each, a copy of every
 * variable on each. One device is no special case anywhere.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef STRATEGY_STRATEGY_H
#define STRATEGY_STRATEGY_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/by_name.h"
#include "cohort/iterator.h"
#include "cohort/strategy_ops.h"
#include "collective/group.h"
#include "strategy/devices.h"
#include "strategy/exec.h"
#include "strategy/var.h"

struct ch_strategy {
    const ch_strategy_ops *ops;
    void                  *self;    /* for ops */
    const ch_var_ops      *var_ops; /* storage of its variables */
    const ch_exec_ops     *exec;    /* execution of its steps */
    atomic_int             refs;
    int                    n_replicas; /* in the job */
    int                    n_local;    /* of those, in this process */
    ch_group              *group;      /* NULL for one replica */
    char                   label[96];  /* for messages: "Mirrored#2 (GPU:0, GPU:1)" */
    ch_strategy_parts      parts;      /* as it was made; its traits point to these: */
    ch_strategy_traits     traits;
    pthread_mutex_t        lock;       /* of what follows */
    ch_by_name             vars;       /* all of them, not referenced */
    atomic_uint            generation; /* changes when vars does */
};

ch_strategy *ch__strategy_default(void);
/* Who distributed what the iterator gives; NULL: nobody. Borrowed. (input.c) */
ch_strategy *ch__iterator_strategy(const ch_iterator *it);
/* The one meant by an argument: itself, or the current one. */
ch_strategy *ch__strategy_of(ch_strategy *st);
/* The same in *st, for a call that is for code outside replicas: FAILED_PRECONDITION in a step (which names
 * `instead`, if it is not NULL) and in another strategy's scope. */
ch_status ch__strategy_cross(ch_strategy **st, const char *call, const char *instead);
/* As ch_strategy_new, in memory that is the caller's. */
ch_status ch__strategy_init(ch_strategy *st, const ch_strategy_ops *ops, void *self,
                            const ch_strategy_parts *parts);
/* The devices of its replicas, as they are now; INVALID_ARGUMENT if they cannot be that. */
ch_status ch__strategy_devices(const ch_strategy *st, ch_device *const **out);

/* INVALID_ARGUMENT for options that make no sense. (communication.c) */
ch_status ch__communication_check(const char *name, const ch_communication_options *c);
/* The strategy's options, and over them a call's (NULL: none), which are checked. */
ch_status ch__communication_of(const ch_strategy *st, const char *call,
                               const ch_communication_options *over,
                               ch_communication_options       *out);

/* Returns whether steps of `st` may read variables of `of`: their own, Default's, and under Default those
 * of every strategy. (assign.c) */
bool ch__strategy_may_read(const ch_strategy *st, const ch_strategy *of);
/* Whom the code that is being recorded speaks of. (merge.c) */
ch_speaks_of ch__speaks_of(const ch_step *s);

/* The graph of a step for such inputs, referenced, and the number of this run. `rows_unknown`: those of `in` mean nothing. */
ch_status ch__strategy_record(ch_strategy *st, ch_function *f, ch_tuple *in, bool rows_unknown,
                              ch_graph **out, int64_t *number);

/* Starts a run for a caller that goes on meanwhile. If `snapshot` is 0, the run is not own (ch_start_options). */
ch_status ch__strategy_start(ch_strategy *st, ch_function *f, ch_tuple *in, uint64_t snapshot,
                             ch_started *out);

/* As ch_strategy_run, and measures where the time went: also that of a run that failed. */
ch_status ch__strategy_run_timed(ch_strategy *st, ch_function *f, ch_tuple *in, ch_tuple **out,
                                 ch_timing *timing);

#endif
